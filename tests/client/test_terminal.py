"""The chat of `python -m localchat` on a pseudo-terminal, and the options of the command line."""

from __future__ import annotations

import codecs
import fcntl
import gc
import io
import json
import os
import random
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from localchat import Client, ContentDelta, MessageStop, Reply, Usage
from localchat.__main__ import main, make_parser
from localchat.files import read_messages
from localchat.terminal.chat import _execute, _Interrupts, greeting
from localchat.terminal.console import OK
from localchat.terminal.printer import Printer
from localchat.terminal.session import ChatSession
from localchat.terminal.toolset import Toolset
from localchat.testing import FakeServer
from tests.client import test_main
from tests.client.test_main import PROGRAM, environment
from tests.client.test_model_list import NO_LISTS, listing
from tests.support.deadline import DEADLINE_S
from tests.support.documents import ROOT
from tests.support.raw_responses import DONE, HELLO, MODELS, OPEN, chunked, delta, piece, sse, with_length
from tests.support.raw_server import Server, always, serving

pty = pytest.importorskip("pty", reason="there are no pseudo-terminals here")

CTRL_C = "\x03"
STYLES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
PARTIAL = re.compile(r"\x1b(?:\[[0-9;?]*)?\Z")


class Terminal:
    """A child process on a pseudo-terminal of its own: type input and read the output."""

    def __init__(self, home: Path, url: str, *arguments: str, **others: str) -> None:
        self._shown = ""
        # Whether the last wait was for a prompt.
        self._is_at_prompt = False
        # All output, with escape sequences; and the end of it that may be the beginning of one.
        self.raw, self._decoder, self._rest = b"", codecs.getincrementaldecoder("utf-8")("replace"), ""
        own = {"XDG_STATE_HOME": str(home), "TERM": "xterm", "PYTHONPATH": f"{ROOT}:{home}", **others}
        self._pid, self._file = pty.fork()
        if self._pid == 0:
            os.chdir(home)
            os.execve(sys.executable, [*PROGRAM, *arguments], {**os.environ, **environment(url), **own})

    def type(self, text: str) -> None:
        self.write(text.encode())

    def write(self, data: bytes) -> None:
        os.write(self._file, data)

    def interrupt(self) -> None:
        """Send SIGINT, as Ctrl-C does."""
        os.kill(self._pid, signal.SIGINT)

    def resize(self, n_rows: int, n_columns: int) -> None:
        """Change the size of the window, of which the program is told by a signal."""
        fcntl.ioctl(self._file, termios.TIOCSWINSZ, struct.pack("HHHH", n_rows, n_columns, 0, 0))

    def wait_for_prompt(self) -> None:
        """Wait until the program reads a line, unless the last wait was for that."""
        if not self._is_at_prompt:
            self.wait_for("> ")

    def enter(self, line: str, shown: str) -> None:
        """Type a line at the prompt, and wait until these words are shown."""
        self.wait_for_prompt()
        self.type(f"{line}\r")
        self.wait_for(shown)

    def wait_for(self, words: str) -> str:
        """Wait until the words are shown. Return the output between the last wait and these words."""
        while words not in self._shown:
            assert self._read(), f"the program ended before {words!r}: {self._shown!r}"
        before, _, self._shown = self._shown.partition(words)
        self._is_at_prompt = words.endswith("> ")
        return before

    def close(self, typed: str = "") -> tuple[int, str]:
        """Wait for the end of the program. Return its exit code and the output since the last wait."""
        self.type(typed)
        while self._read():
            pass
        _, status = os.waitpid(self._pid, 0)
        os.close(self._file)
        return os.WEXITSTATUS(status), self._shown

    def end(self, typed: str = "\x04") -> None:
        """Type Ctrl-D at the prompt; the program must end without an error."""
        self.wait_for_prompt()
        assert self.close(typed)[0] == 0

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
        text = self._rest + self._decoder.decode(data)
        whole = PARTIAL.split(text)[0]
        self._rest = text[len(whole) :]
        self._shown += STYLES.sub("", whole).replace("\r", "")
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


@pytest.mark.parametrize("models", NO_LISTS.values(), ids=NO_LISTS)
def test_greeting_needs_no_list_of_models(models):
    with always(HELLO, models) as server, Client(server.url, max_retries=0) as client:
        assert greeting(client, None) == f"the server's model at {server.url}"


@pytest.mark.parametrize(
    ("options", "variable", "expected"),
    [
        ("", "", "a"),  # The only loaded model of the list.
        ("", "b", "b"),
        ("-o model=b", "c", "b"),
        ("-m b -o model=c", "c", "b"),
        ("-m unlisted", "", "unlisted"),
    ],
)
def test_greeting_and_list_show_the_model_that_the_requests_name(options, variable, expected, monkeypatch, capsys):
    monkeypatch.setenv("LOCALCHAT_MODEL", variable)
    arguments = make_parser().parse_args(["--no-save", *options.split()])
    listed = listing(*({"id": name, "state": "loaded" if name == "a" else "unloaded"} for name in "abc"))
    with always(HELLO, listed) as server, Client(server.url, model=arguments.model) as client:
        session = ChatSession(client, arguments)
        assert greeting(client, session.model) == f"{expected} at {server.url}"
        _execute(session, "/model")
        session.ask("hi")
        assert server.requests[-1].json["model"] == expected
    marked = [line for line in capsys.readouterr().err.splitlines() if line.startswith("* ")]
    assert [line.split()[1] for line in marked] == [expected]


@pytest.mark.parametrize("has_toolset", [False, True])
def test_options_that_add_to_the_messages_are_not_kept_in_the_conversation(has_toolset):
    image = "data:image/gif;base64,R0lGODlh"
    arguments = make_parser().parse_args(["--no-save", "-o", "system=be brief", "-o", f'images=["{image}"]'])
    with FakeServer() as server, Client(server.url) as client, Toolset(arguments) as toolset:
        session = ChatSession(client, arguments, toolset if has_toolset else None)
        for text in ("one", "two", "three"):
            server.reply(f"{text}.")
            assert session.ask(text) == OK
        first, *others, last = server.requests[-1].json["messages"]
    texts = ["one", "one.", "two", "two.", "three", "three."]
    assert [message["content"] for message in session.messages] == texts
    assert first == {"role": "system", "content": "be brief"}
    assert [message["content"] for message in others] == texts[:-2]
    assert [part["type"] for part in last["content"]] == ["image_url", "text"]


class TimedRun:
    """A run of two requests. Each output takes two seconds, and the tools between them a hundred."""

    reply = Reply(usage=Usage(3, 5, 8))

    def __init__(self) -> None:
        self.now_s = 0.0

    def __enter__(self) -> None: ...

    def __exit__(self, *exception: object) -> None: ...

    def __iter__(self) -> Iterator[Any]:
        for _ in range(2):
            self.now_s += 1
            yield ContentDelta("a")
            self.now_s += 2
            yield MessageStop("stop")
            self.now_s += 100


def test_usage_of_a_run_is_that_of_all_its_requests(monkeypatch, capsys):
    run = TimedRun()
    monkeypatch.setattr("localchat.terminal.printer.time", types.SimpleNamespace(monotonic=lambda: run.now_s))
    printer = Printer(threading.Timer(1, print))
    printer.show_run(run, print)
    printer.report_usage()
    assert capsys.readouterr().err == "6 tokens in, 10 out, first after 1.00 s, 2.0 tokens/s\n"


def test_commands_of_the_chat(tmp_path):
    with numbered() as server:
        terminal = Terminal(tmp_path, server.url)
        for typed, shown in (
            ("/help", "Ctrl-C ends the answer"),
            ("/sistem", "there is no command /sistem"),
            ("/retry", "there is no question to ask again"),
            ("/system", "no instructions; /system TEXT sets them"),
            ("/system be brief", "be brief"),
            ("/system", "be brief"),
            ("one", ": one>"),
            ("/retry", ": one>"),
            ('"""two\rlines"""', "two\nlines>"),
            ("three\\\rfour", "three\nfour>"),
            ('"""three\rfour\r\x04', "three\nfour>"),  # Ctrl-D ends the text.
            (" /five", "/five>"),
            ("/save talk.json", "saved 11 messages"),
            ("/clear", "the conversation is empty, the instructions are kept"),
            ("/model second", "* second"),
            ("six", ": six>"),
        ):
            terminal.enter(typed, shown)
        assert (tmp_path / "talk.json").stat().st_mode & 0o777 == 0o600
        assert server.requests[-1].json["model"] == "second"
        assert sent(server) == [("system", "be brief"), ("user", "six")]
        terminal.enter("/load talk.json", "loaded 11 messages")
        terminal.enter("seven", ": seven>")
        users = [content for role, content in sent(server) if role == "user"]
        assert users == ["one", "two\nlines", "three\nfour", "three\nfour", " /five", "seven"]
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


class Screen(io.StringIO):
    """A stream to a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("raw", "arguments"), ESCAPES.values(), ids=ESCAPES)
def test_terminal_gets_no_escape_sequence_of_the_server(raw, arguments, tmp_path, monkeypatch):
    names = [TITLE, f"{TITLE}2"] if not raw else ["m"]
    screen = Screen()
    for name, stream in (("stdin", io.StringIO()), ("stdout", screen), ("stderr", screen)):
        monkeypatch.setattr(sys, name, stream)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with always(raw, listing(*names)) as server:
        main(["-b", server.url, *arguments])
    assert "title" in screen.getvalue()
    assert not {*map(ord, screen.getvalue())} & {*range(9), *range(11, 32), *range(127, 160)}, screen.getvalue()


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


def test_several_lines_that_are_pasted_are_one_message(tmp_path):
    """Also if they begin with a slash. In other terminals, pasted lines come like typed ones."""
    readline = pytest.importorskip("readline", reason="this Python has no readline")
    if "libedit" in readline.__doc__:
        pytest.skip("libedit reads pasted lines like typed ones")
    with numbered() as server:
        terminal = Terminal(tmp_path, server.url)
        for text in ("one\n日本\n\n  three", "/help\nis no command"):
            terminal.enter(f"\x1b[200~{text}\n\x1b[201~", f"{text}>")
            assert sent(server)[-1] == ("user", text)
        terminal.end()


def test_wide_characters_are_edited_and_the_window_may_be_resized(tmp_path):
    pytest.importorskip("readline", reason="this Python has no readline")
    with numbered() as server:
        terminal = Terminal(tmp_path, server.url, LC_ALL="C.UTF-8")
        terminal.wait_for("> ")
        terminal.type("日本語é👍")
        terminal.wait_for("👍")
        terminal.resize(10, 20)
        terminal.type("\x7f\x1b[D\x1b[D\x7f" + "x" * 30 + "\r")  # Backspace, left, left, backspace, a long text.
        terminal.wait_for("é>")
        assert sent(server)[-1] == ("user", "日" + "x" * 30 + "語é")
        terminal.resize(50, 200)
        terminal.enter("b", "b>")
        terminal.end()


def test_typed_bytes_that_are_no_utf_8_are_an_error_of_their_line(tmp_path):
    with numbered() as server:
        terminal = Terminal(tmp_path, server.url)
        terminal.wait_for("> ")
        terminal.write(b"a\xffb\r")
        terminal.wait_for("the text is not UTF-8")
        terminal.enter("a", "a>")
        terminal.end()


def test_interrupts_at_any_moment_end_neither_the_chat_nor_show_a_traceback(tmp_path):
    """At the prompt, before and in a response, at its end, and several within milliseconds."""
    chance, n_lines = random.Random(3), 25
    with numbered() as server:
        # An interrupt while Python reads a module, at its first use, leaves the file to the garbage collector.
        terminal = Terminal(tmp_path, server.url, PYTHONWARNINGS="error,ignore::ResourceWarning")
        terminal.wait_for("> ")
        for i in range(n_lines):
            terminal.type(f"line {i}\r")
            for _ in range(chance.randrange(1, 4)):
                threading.Event().wait(chance.random() * 0.02)
                terminal.interrupt()
            terminal.type("\r")
        for text in ("one more", "and the last"):  # The first one may belong to a line that was interrupted.
            terminal.type(f"\r{text}\r")
            terminal.wait_for(f"{text}>")
        terminal.end("/quit\r")
    _, found, traceback = terminal.raw.partition(b"Traceback")
    assert not found, traceback


def test_interrupt_that_python_takes_for_a_fault_of_the_handler_is_an_interrupt():
    """`input` may call the handler again while the error of the first Ctrl-C leaves it."""
    with _Interrupts() as interrupts:
        with pytest.raises(KeyboardInterrupt), interrupts.allowed():
            raise SystemError("_handle returned a result with an exception set") from KeyboardInterrupt()
        with pytest.raises(SystemError, match="another"), interrupts.allowed():
            raise SystemError("another")


def test_interrupt_that_python_discards_shows_nothing_and_the_next_one_is_raised(capfd):
    """Python discards what is raised in a finalizer, or in a callback of a weak reference."""

    class Dying:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    hook = sys.unraisablehook
    with _Interrupts() as interrupts, interrupts.allowed():
        Dying()
        gc.collect()  # For other Pythons than CPython.
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert sys.unraisablehook is hook
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("status", ["404 Not Found", "405 Not Allowed", "501 No"])
def test_model_is_chosen_where_the_server_has_no_list(status, tmp_path):
    none = with_length(b"{}", status)
    with always(HELLO, none) as server:
        terminal = Terminal(tmp_path, server.url)
        terminal.enter("/model", "the server has no list of models; /model NAME names one\n")
        terminal.enter("/model tiny", "* tiny (the server has no list of models)\n")
        terminal.enter("hi", "Hello\n")
        assert server.requests[-1].json["model"] == "tiny"
        terminal.end()
    assert b"localchat: " not in terminal.raw  # No error.


def test_files_of_the_chat_may_be_in_the_home_folder_or_impossible(tmp_path):
    """A tilde is the home folder. A state folder that cannot be made, as in some containers, disturbs no answer."""
    (tmp_path / "file").touch()
    with numbered() as server:
        terminal = Terminal(tmp_path, server.url, HOME=str(tmp_path), XDG_STATE_HOME=str(tmp_path / "file"))
        terminal.enter("one", ": one>")
        terminal.enter("/save ~/talk.json", f"saved 2 messages in {tmp_path}/talk.json")
        terminal.enter("/load ~/talk.json", "loaded 2 messages from ")
        terminal.enter("/save nowhere/talk.json", "No such file or directory")
        terminal.enter("/load nowhere/talk.json", "No such file or directory")
        terminal.enter("two", ": two>")
        assert [content for _, content in sent(server)][::2] == ["one", "two"]
        terminal.end()
    assert b"file/localchat" not in terminal.raw
