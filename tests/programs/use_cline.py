"""`python use_cline.py QUESTION`: ask a question in the last conversation of Cline, on a pseudo-terminal.

Without a terminal, Cline continues no conversation. The answer is read from the file of the conversation.
"""

import fcntl
import json
import os
import pty
import select
import signal
import struct
import sys
import termios
import time
from pathlib import Path
from typing import Any

# The size of the terminal, and the text that shows that Cline waits for input.
N_ROWS, N_COLUMNS, READY = 40, 120, "Ask anything"
START_S, ECHO_S, RESPONSE_S = 60, 20, 120
# Cline ignores Enter for some time after it has loaded a conversation, so it is typed again after this time.
ENTER_S = 5
READ_BYTES = 65536


class Terminal:
    """A program on a pseudo-terminal."""

    def __init__(self, *command: str) -> None:
        self._pid, self._fd = pty.fork()
        if self._pid == 0:
            os.execvpe(command[0], command, {**os.environ, "TERM": "xterm-256color"})
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", N_ROWS, N_COLUMNS, 0, 0))
        self._shown = ""

    def wait_for(self, text: str, limit_s: float) -> None:
        """Read what the program writes, up to a text."""
        deadline = time.monotonic() + limit_s
        while text not in self._shown:
            self.read(deadline - time.monotonic())
            if time.monotonic() > deadline:
                raise TimeoutError(f"after {limit_s} s there is no {text!r} in\n{self._shown}")

    def read(self, limit_s: float) -> None:
        """Read what the program writes, for so long at most."""
        if select.select([self._fd], [], [], max(limit_s, 0))[0]:
            self._shown += os.read(self._fd, READ_BYTES).decode("utf-8", "replace")

    def type(self, text: str) -> None:
        self._shown = ""
        os.write(self._fd, text.encode())

    def end(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)


def messages_in(path: Path) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["messages"]
    return messages


def text_of(message: dict[str, Any]) -> str:
    return "".join(part.get("text", "") for part in message["content"])


def response_to(question: str, path: Path) -> str | None:
    """The text of the last message of a conversation, if it responds to the question."""
    *earlier, message = messages_in(path)
    if message["role"] == "assistant" and question in json.dumps(earlier[-1]):
        return text_of(message)
    return None


(question,) = sys.argv[1:]
(path,) = (Path.home() / ".cline" / "data" / "sessions").glob("*/*.messages.json")
terminal = Terminal("cline", "--id", path.name.partition(".")[0])
try:
    terminal.wait_for(READY, START_S)
    # The conversation is loaded when its last word is shown. Between the words the cursor is moved.
    terminal.wait_for(text_of(messages_in(path)[-1]).split()[-1], START_S)
    terminal.type(question)
    terminal.wait_for(question, ECHO_S)
    deadline, enter_at = time.monotonic() + RESPONSE_S, 0.0
    while (response := response_to(question, path)) is None and time.monotonic() < deadline:
        if time.monotonic() >= enter_at:
            terminal.type("\r")
            enter_at = time.monotonic() + ENTER_S
        terminal.read(0.1)
    print(response)
finally:
    terminal.end()
