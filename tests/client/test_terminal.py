"""The chat of `python -m localchat` on a pseudo-terminal, and the options of the command line."""

import json
import os
import re
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from localchat import Client
from localchat.agent.conversation import read_messages
from localchat.terminal.chat import greeting
from tests.client import test_main
from tests.client.test_main import PROGRAM, environment
from tests.client.test_model_list import listing
from tests.support.documents import ROOT
from tests.support.raw_responses import DONE, HELLO, MODELS, OPEN, chunked, delta, piece, sse, with_length
from tests.support.raw_server import DEADLINE_S, Server, always, serving

pty = pytest.importorskip("pty", reason="there are no pseudo-terminals here")

CTRL_C = "\x03"
STYLES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class Terminal:
    """A child process on a pseudo-terminal of its own: type input and read the output."""

    def __init__(self, home: Path, url: str, *arguments: str, **others: str) -> None:
        self._shown = ""
        # All output, with escape sequences.
        self.raw = b""
        own = {"XDG_STATE_HOME": str(home), "TERM": "xterm", "PYTHONPATH": f"{ROOT}:{home}", **others}
        self._pid, self._file = pty.fork()
        if self._pid == 0:
            os.chdir(home)
            os.execve(sys.executable, [*PROGRAM, *arguments], {**os.environ, **environment(url), **own})

    def type(self, text: str) -> None:
        os.write(self._file, text.encode())

    def enter(self, line: str, shown: str) -> None:
        """Type a line at the prompt, and wait until these words are shown."""
        self.wait_for("> ")
        self.type(f"{line}\r")
        self.wait_for(shown)

    def wait_for(self, words: str) -> str:
        """Wait until the words are shown. Return the output between the last wait and these words."""
        while words not in self._shown:
            assert self._read(), f"the program ended before {words!r}: {self._shown!r}"
        before, _, self._shown = self._shown.partition(words)
        return before

    def close(self) -> tuple[int, str]:
        """Wait for the end of the program. Return its exit code and the output since the last wait."""
        while self._read():
            pass
        _, status = os.waitpid(self._pid, 0)
        os.close(self._file)
        return os.WEXITSTATUS(status), self._shown

    def end(self, typed: str = "\x04") -> None:
        """Type Ctrl-D at the prompt; the program must end without an error."""
        self.type(typed)
        assert self.close()[0] == 0

    def _read(self) -> bool:
        """Read output; False if the program has ended."""
        if not select.select([self._file], [], [], 3 * DEADLINE_S)[0]:
            os.kill(self._pid, signal.SIGKILL)
            raise AssertionError(f"nothing more was shown after {self._shown!r}")
        try:
            data = os.read(self._file, 65536)
        except OSError:  # The end of a pseudo-terminal, on Linux.
            return False
        self.raw += data
        self._shown += STYLES.sub("", data.decode("utf-8", "replace")).replace("\r\n", "\n")
        return bool(data)


def numbered() -> Server:
    """A server whose response is the number of the request and the last message."""

    def respond(request: Any, number: int) -> bytes:
        if request.method == "GET":
            return MODELS
        return chunked(piece(f"<{number}: {request.json['messages'][-1]['content']}>", "stop"), DONE)

    return serving(respond)


def sent(server: Server) -> list[tuple[str, str]]:
    """The roles and contents of the messages in the last request."""
    return [(message["role"], message["content"]) for message in server.requests[-1].json["messages"]]


def test_chat_with_the_built_in_model(tmp_path, base_url):
    """Two prompts with a response each, then Ctrl-D. The conversation and the history are saved."""
    terminal = Terminal(tmp_path, base_url, "-o", "temperature=0", "-o", "max_tokens=40")
    assert base_url in terminal.wait_for("> ")
    for question in ("What is your name?", "Hello!"):
        terminal.type(f"{question}\r")
        terminal.wait_for(f"{question}\n")
        assert terminal.wait_for("\n> ").strip()
    terminal.end()
    messages = read_messages(tmp_path / "localchat" / "last.json")
    assert [message["role"] for message in messages] == ["user", "assistant"] * 2
    assert "What is your name?" in (tmp_path / "localchat" / "history").read_text(encoding="utf-8")
    for path in (tmp_path / "localchat").iterdir():
        assert path.stat().st_mode & 0o077 == 0


def test_greeting_has_the_name_of_the_model():
    several = "2 models (/model NAME selects one)"
    for names, model, words in (("a", None, "a"), ("ab", None, several), ("ab", "b", "b")):
        with always(HELLO, listing(*names)) as server, Client(server.url) as client:
            assert greeting(client, model) == f"{words} at {server.url}"


def test_commands_of_the_chat(tmp_path):
    with numbered() as server:
        terminal = Terminal(tmp_path, server.url)
        for typed, shown in (
            ("/help", "Ctrl-C ends the answer"),
            ("/sistem", "there is no command /sistem"),
            ("/retry", "there is no question to ask again"),
            ("/system be brief", "be brief"),
            ("one", ": one>"),
            ("/retry", ": one>"),
            ('"""two\rlines"""', "two\nlines>"),
            ("three\\\rfour", "three\nfour>"),
            (" /five", "/five>"),
            ("/save talk.json", "saved 9 messages"),
            ("/clear", "the conversation is empty, the instructions are kept"),
            ("/model second", "* second"),
            ("six", ": six>"),
        ):
            terminal.enter(typed, shown)
        assert (tmp_path / "talk.json").stat().st_mode & 0o777 == 0o600
        assert server.requests[-1].json["model"] == "second"
        assert sent(server) == [("system", "be brief"), ("user", "six")]
        terminal.enter("/load talk.json", "loaded 9 messages")
        terminal.enter("seven", ": seven>")
        users = [content for role, content in sent(server) if role == "user"]
        assert users == ["one", "two\nlines", "three\nfour", " /five", "seven"]
        terminal.end("/quit\r")


def test_interrupt_cancels_the_response_and_not_the_chat(tmp_path):
    responses = iter([OPEN])
    with serving(lambda request, _: MODELS if request.method == "GET" else next(responses, HELLO)) as server:
        (tmp_path / "a.gif").write_bytes(b"GIF89a")
        terminal = Terminal(tmp_path, server.url, "--image", "a.gif")
        terminal.enter("first", "first\na")
        terminal.type(CTRL_C)
        terminal.wait_for("not kept)\n> ")
        terminal.type(CTRL_C)  # At the prompt, Ctrl-C does not end the chat either.
        terminal.type("\r")  # Just after the prompt is shown, Python handles an interrupt only at the next key.
        terminal.wait_for("Ctrl-D ends the chat)")
        terminal.enter("/retry", "Hello")
        terminal.enter("next", "Hello\n> ")
        (_, (_, text)), _, last = sent(server)
        assert (text["text"], last) == ("first", ("user", "next"))
        terminal.end()
        assert server.left.wait(DEADLINE_S)


def test_error_response_does_not_end_the_chat_and_a_refused_connection_at_the_start_does(tmp_path):
    with always(chunked(sse({"error": "bad luck"}))) as server:
        terminal, url = Terminal(tmp_path, server.url), server.url
        terminal.enter("hi", "localchat: bad luck\n> ")
        terminal.end()
    code, shown = Terminal(tmp_path, url, "--retries", "0").close()
    assert (code, shown.count("\n")) == (1, 1)
    assert "start a server there" in shown


def run(server: Server | None, home: Path, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return test_main.run(server, *arguments, cwd=home, XDG_STATE_HOME=str(home), **options)


def test_last_conversation_is_continued(tmp_path):
    with numbered() as server:
        assert "no last conversation" in run(server, tmp_path, "-c", "hi").stderr
        assert Terminal(tmp_path, server.url, "-s", "be brief", "one").close()[0] == 0
        assert Terminal(tmp_path, server.url, "--no-save", "two").close()[0] == 0
        run(server, tmp_path, "of a script, whose output is no terminal")
        run(server, tmp_path, "-c", "three")
        run(server, tmp_path, "-c", "four")
        roles, contents = zip(*sent(server))
    assert roles == ("system", *("user", "assistant") * 2, "user")
    assert contents[1::2] == ("one", "three", "four")
    assert (tmp_path / "localchat" / "last.json").stat().st_mode & 0o777 == 0o600


def test_files_and_images_come_before_the_text(tmp_path):
    (tmp_path / "a.txt").write_text("inside\n", encoding="utf-8")
    (tmp_path / "a.gif").write_bytes(b"GIF89a")
    with numbered() as server:
        (tmp_path / "a.flac").write_bytes(b"fLaC" + bytes(10))
        media = ("--file", "a.txt", "--image", "a.gif", "--audio", "a.flac", "--image", "http://h/b")
        done = run(server, tmp_path, *media, "what?", piped="p")
        assert done.returncode == 0, done.stderr
        first, second, sound, text = server.requests[-1].json["messages"][0]["content"]
    assert first["image_url"]["url"].startswith("data:image/gif;base64,")
    assert second["image_url"]["url"] == "http://h/b"
    assert sound["input_audio"]["format"] == "flac"
    assert text["text"] == "a.txt:\n\ninside\n\np\n\nwhat?"


def test_escape_sequences_of_the_model_are_shown_on_a_terminal(tmp_path):
    raw = chunked(piece("b\r\n\x1b]52;c;eA==\x07", "stop"), DONE)
    with always(raw) as server:
        terminal = Terminal(tmp_path, server.url, "-m", "m", "hi")
        assert terminal.close() == (0, "b\n\\x1b]52;c;eA==\\x07\n")
        assert run(server, tmp_path, "hi").stdout == "b\n\x1b]52;c;eA==\x07\n"


TITLE = "\x1b]0;title\x07"
CALLS = [{"index": 0, "id": TITLE, "function": {"name": TITLE, "arguments": TITLE}}]
# A response with an escape sequence in each place that the terminal shows, and the arguments of the program.
ESCAPES: dict[str, tuple[bytes, list[str]]] = {
    "error": (with_length(json.dumps({"error": {"message": TITLE}}).encode(), "400 Bad"), ["hi"]),
    "text of a status": (with_length(TITLE.encode(), "503 Bad", "Retry-After: 0\r\n"), ["--retries", "1", "hi"]),
    "head of a response": (with_length(TITLE.encode()), ["hi"]),
    "redirect": (with_length(b"", "302 Found", f"Location: /{TITLE}\r\n"), ["hi"]),
    "error in the stream": (chunked(sse({"error": TITLE})), ["hi"]),
    "call": (chunked(delta("stop", tool_calls=CALLS), DONE), ["hi"]),
    "reasoning": (chunked(delta("stop", reasoning=TITLE), DONE), ["--show-reasoning", "hi"]),
    "refusal": (chunked(delta("stop", refusal=TITLE), DONE), ["hi"]),
    "warning": (chunked(piece("a", TITLE), DONE), ["hi"]),
    "JSON": (chunked(piece(TITLE + "\x9b", "stop"), DONE), ["--json", "hi"]),
    "names of models": (b"", ["--models"]),
    "names of models in an error": (b"", ["hi"]),
}


@pytest.mark.parametrize(("raw", "arguments"), ESCAPES.values(), ids=ESCAPES)
def test_terminal_gets_no_escape_sequence_of_the_server(raw, arguments, tmp_path):
    names = [TITLE, f"{TITLE}2"] if not raw else ["m"]
    with always(raw, listing(*names)) as server:
        terminal = Terminal(tmp_path, server.url, *arguments, NO_COLOR="1")
        terminal.close()
    assert b"title" in terminal.raw
    assert not {*terminal.raw} & {*range(9), *range(14, 32), 127, 0x9B}, terminal.raw


def test_chat_shows_no_escape_sequence_of_the_server(tmp_path):
    with always(HELLO, listing(TITLE)) as server:
        terminal = Terminal(tmp_path, server.url, TERM="dumb")
        terminal.enter("/model", "title")
        terminal.enter("/model x", "title")
        terminal.enter("hi", "Hello\n> ")
        terminal.end()
    assert b"\x1b" not in terminal.raw, terminal.raw


@pytest.mark.parametrize(("variables", "styled"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_reasoning_has_a_style_only_where_it_is_wanted(variables, styled, tmp_path):
    with always(chunked(delta(reasoning="h"), delta(reasoning="m"), piece("a", "stop"), DONE)) as server:
        terminal = Terminal(tmp_path, server.url, "-m", "m", "--show-reasoning", "hi", **variables)
        assert terminal.close() == (0, "hm\na\n")
    assert (b"\x1b" in terminal.raw) == styled


@pytest.mark.parametrize("options", [[], ["--no-save"]], ids=["saves", "does not save"])
def test_typed_lines_are_edited_and_may_be_long(options, tmp_path):
    pytest.importorskip("readline", reason="this Python has no readline")
    with numbered() as server:
        terminal = Terminal(tmp_path, server.url, *options)
        terminal.enter("ac\x1b[Db", "abc>")  # The left arrow key.
        terminal.wait_for("> ")
        for digit in "123456":  # A terminal shows what is typed; all of it at once is more than it buffers.
            terminal.type("x" * 999 + digit)
            terminal.wait_for(digit)
        terminal.type("\r")
        terminal.wait_for("6>\n> ")
        terminal.end()
        assert len(sent(server)[-1][1]) == 6000
    assert (tmp_path / "localchat").exists() == (not options)
