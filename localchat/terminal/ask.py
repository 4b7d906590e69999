"""The command line of the one-file client: send one prompt and print the response.

`python -m localchat` uses the functions of this module too.

The output of the model goes to stdout, everything else to stderr. Exit codes: 0 for a complete response, 1 for
an error, 2 for wrong usage, 3 for a response that was cut, 130 for Ctrl-C.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TextIO

from ..client import Client
from ..errors import IncompleteStream, LocalChatError, TimedOut
from ..events import Reply, StreamEvent

OK, FAILED, USAGE, CUT, INTERRUPTED = 0, 1, 2, 3, 130

# Control characters and their replacements: escapes, and nothing for the carriage returns of Windows line ends.
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n\r"}
_CONTROLS[ord("\r")] = ""

_NOTICE_S = 2.0  # Seconds without the end of the piped input, after which the program reports that it waits.

NO_PROMPT = "localchat: there is no prompt: give a text, or pipe one in"
_USAGE = 'usage: python FILE.py "text": send a prompt to the server at OPENAI_BASE_URL. Piped input is put before it.'


def main(argv: Sequence[str] | None = None) -> int:
    """Send the prompt from the arguments and the piped input, stream the response to stdout, return the exit code."""
    words = sys.argv[1:] if argv is None else argv
    return run_command(lambda: _ask(words))


def run_command(command: Callable[[], int]) -> int:
    """Run a command and return its exit code. An error becomes one line on stderr."""
    sys.stderr = sys.stderr or io.StringIO()  # If stderr is closed (2>&-), print would write to stdout.
    if sys.stdout is None:  # Closed by the shell (>&-).
        report("localchat: stdout is closed: there is no place to write the answer to")
        return FAILED
    _use_utf8()
    try:
        code = command()
        print(end="", flush=True)  # Raise the error of a failed write here, not when Python exits.
        return code
    except KeyboardInterrupt:
        report("")
        return INTERRUPTED
    except (LocalChatError, ValueError, TypeError) as error:  # TypeError: an option has a value of the wrong type.
        report(f"localchat: {error}")
        partial = getattr(error, "partial", None)
        is_cut = isinstance(error, (IncompleteStream, TimedOut)) and partial and partial.choices
        return CUT if is_cut or (partial and partial.finish_reason == "length") else FAILED
    except OSError as error:
        # The output pipe was closed, or the disk is full. Python flushes stdout again at exit: let that succeed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            report(f"localchat: {error}")
        return FAILED


def _use_utf8() -> None:
    """Read and write pipes and files in UTF-8, whatever the locale: Windows has another encoding for them."""
    if isinstance(sys.stdin, io.TextIOWrapper) and not sys.stdin.isatty():
        sys.stdin.reconfigure(encoding="utf-8-sig")  # Without a byte order mark at the start.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Characters that the terminal cannot encode become "?".
            stream.reconfigure(encoding=None if stream.isatty() else "utf-8", errors="replace")


def read_prompt(words: Sequence[str]) -> str:
    """Read the piped input, if there is any, and append the words. Raises ValueError if the input is not UTF-8."""
    piped = ""
    try:
        if sys.stdin is not None and not sys.stdin.isatty():
            with notice("localchat: waiting for the end of the piped input; </dev/null stands for none", _NOTICE_S):
                piped = sys.stdin.read()
        text = "\n\n".join(part for part in (piped.rstrip(), " ".join(words)) if part)
        text.encode()  # Python reads invalid bytes of arguments as surrogates, which servers refuse.
    except UnicodeError as error:
        raise ValueError(f"the text is not UTF-8. Convert it first, with iconv for example: {error}") from error
    return text


def output_text(event: StreamEvent) -> str:
    """The text that an event adds to stdout: only events of the first choice add text. Warnings go to stderr."""
    if event.type == "warning":
        report(f"localchat: warning: {event.text}")
    if event.choice_index != 0:
        return ""
    if event.type in ("content_delta", "refusal_delta"):
        return event.delta
    if event.type == "tool_call":
        return f"{event.name}({event.arguments_json})\n"
    return ""


class Printer:
    """Prints one response: `show` calls `add` for each event, `end` after the last one, and always `close`."""

    def __init__(self) -> None:
        self._in_line = False  # Whether the last line on stdout is unfinished.

    def add(self, event: StreamEvent) -> None:
        self.write(output_text(event))

    def end(self, reply: Reply[Any]) -> None:
        """Print what is known only now."""

    def close(self) -> None:
        """End the line, also of an incomplete response."""
        if self._in_line:
            print(flush=True)

    def write(self, text: str) -> None:
        if text:
            self._in_line = not text.endswith("\n")
            print(printable(text, sys.stdout), end="", flush=True)


def show(stream: Any, printer: Printer) -> Reply[Any]:
    """Print the events of a stream or a run, and return the reply."""
    try:
        with stream:
            for event in stream:
                printer.add(event)
        reply: Reply[Any] = stream.reply
        printer.end(reply)
        return reply
    finally:
        printer.close()


def finish_code(finish_reason: str | None) -> int:
    """The exit code for a finish reason. Report a response that was cut."""
    if finish_reason not in ("length", "content_filter"):
        return OK
    report(f"localchat: the server cut the answer: {finish_reason}")
    return CUT


def report(text: str) -> None:
    """Write a line to stderr."""
    print(printable(text, sys.stderr), file=sys.stderr, flush=True)


@contextlib.contextmanager
def notice(text: str, after_s: float) -> Iterator[threading.Timer]:
    """Report this text if the block takes longer than these seconds; `cancel` of the timer prevents that."""
    timer = threading.Timer(after_s, report, [text])
    timer.daemon = True
    timer.start()
    try:
        yield timer
    finally:
        timer.cancel()


def printable(text: str, stream: TextIO) -> str:
    """The text for this stream: on a terminal, control characters are replaced by visible escapes."""
    return text.translate(_CONTROLS) if stream.isatty() else text


def _ask(words: Sequence[str]) -> int:
    if words and words[0] in ("-h", "--help"):
        print(_USAGE)
        return OK
    prompt = read_prompt(words)
    if not prompt.strip():
        report(f"{_USAGE}\n{NO_PROMPT}")
        return USAGE
    with Client() as client:
        return finish_code(show(client.stream(prompt), Printer()).finish_reason)
