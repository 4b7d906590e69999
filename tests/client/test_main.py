"""`python -m localchat` as a child process, with a scripted server."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from localchat.__main__ import main
from localchat.terminal import ask, session
from tests.support import documents
from tests.support.documents import ROOT
from tests.support.raw_server import (
    DEADLINE_S,
    DONE,
    HELLO,
    HELLO_EVENTS,
    OPEN,
    Server,
    always,
    chunked,
    chunks,
    delta,
    interrupted,
    piece,
    sse,
    waiting,
    with_length,
)

PROGRAM = [sys.executable, "-m", "localchat"]
OUTPUT = {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8", "PYTHONWARNINGS": "error"}


def run(server: Server | None, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the program with this server, or without one."""
    return documents.run([*PROGRAM, *arguments], **{**environment(server.url if server else ""), **options})


def run_shell(command: str, url: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command that begins with the arguments of the program."""
    return documents.run(["sh", "-c", f"{' '.join(PROGRAM)} {command}"], **environment(url))


def environment(url: str) -> dict[str, str]:
    return {**OUTPUT, "OPENAI_BASE_URL": url}


REASONING = chunked(delta(reasoning_content="hm"), *HELLO_EVENTS)
CALL = {"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"q":1}'}}
OTHERS = chunked(
    delta("tool_calls", 1, reasoning_content="hm", tool_calls=[CALL]), delta("stop", 2, content="no"), *HELLO_EVENTS
)
# The response of the server and the options, then stdout, a part of stderr, and the exit code.
OUTPUTS: dict[str, tuple[bytes, list[str], str, str, int]] = {
    "answer": (HELLO, [], "Hello\n", "", 0),
    "models": (HELLO, ["--models"], "first\n", "", 0),
    "usage": (HELLO, ["--usage"], "Hello\n", "3 tokens in, 2 out, first after ", 0),
    "reasoning": (REASONING, [], "Hello\n", "", 0),
    "reasoning on demand": (REASONING, ["--show-reasoning"], "Hello\n", "hm\n", 0),
    "call": (chunked(delta("tool_calls", tool_calls=[CALL]), DONE), [], 'f({"q":1})\n', "", 0),
    "first of several choices": (OTHERS, ["-o", "n=3", "--show-reasoning"], "Hello\n", "", 0),
    "status": (with_length(b'{"error": "bad luck"}', "400 Bad"), [], "", "bad luck", 1),
    "error in the stream": (chunked(piece("Hel"), sse({"error": "bad luck"})), [], "Hel\n", "bad luck", 1),
    "cut": (chunked(piece("Hel")), [], "Hel\n", "cut after 3 characters", 3),
    "cut by a limit": (chunked(piece("Hel", "length"), DONE), [], "Hel\n", "length", 3),
}


@pytest.mark.parametrize(("raw", "options", "out", "errors", "code"), OUTPUTS.values(), ids=OUTPUTS)
def test_output_and_exit_code(raw, options, out, errors, code):
    with always(raw) as server:
        done = run(server, "-m", "m", *options, "hi")
    assert (done.stdout, done.returncode) == (out, code)
    assert errors in done.stderr
    assert bool(done.stderr) == bool(errors)
    assert "Traceback" not in done.stderr


def test_options_become_fields_of_the_request():
    with always(HELLO) as server:
        options = ["-m", "mine", "-k", "key", "-o", "top_k=5", "-o", "stop=END", "-o", "x={}", "--no-stream"]
        done = run(None, "--base-url", server.url, "-s", "be brief", *options, "hi")
        assert (done.stdout, done.returncode) == ("Hello\n", 0)
        run(server, "-o", "system=be brief", "hi")
        first, second = (request for request in server.requests if request.method == "POST")
    assert first.headers["authorization"] == "Bearer key"
    fields = {"model": "mine", "top_k": 5, "stop": "END", "x": {}}
    assert {name: first.json[name] for name in fields} == fields
    for request in (first, second):
        assert request.json["messages"][0] == {"role": "system", "content": "be brief"}


def test_piped_input_comes_before_the_text():
    with always(HELLO) as server:
        for piped, words, prompt in (
            ("text\n", "explain", "text\n\nexplain"),
            ("text", "", "text"),
            ("", "a b", "a b"),
        ):
            run(server, *words.split(), piped=piped)
            assert server.requests[-1].json["messages"][0]["content"] == prompt


@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "utf-8"])
def test_pipes_and_files_are_utf_8_without_byte_order_marks(encoding, tmp_path):
    """Whatever the locale, which PYTHONIOENCODING stands for here: in Windows, pipes have cp1252."""
    path, schema = tmp_path / "a.txt", tmp_path / "schema.json"
    path.write_bytes("\ufeffÜ€".encode())
    schema.write_bytes("\ufeff{}".encode())
    with always(chunked(piece('"é€日"', "stop"), DONE)) as server:
        options = ["--file", str(path), "--schema", str(schema), "hi"]
        done = run(server, *options, piped="\ufeffé日", PYTHONIOENCODING=encoding)
        assert (done.stdout, done.stderr, done.returncode) == ('"é€日"\n', "", 0)
        assert server.requests[-1].json["messages"][-1]["content"] == f"{path}:\n\nÜ€\n\né日\n\nhi"


@pytest.mark.skipif(os.name == "nt", reason="a shell of POSIX is needed")
@pytest.mark.parametrize("options", ["hi", "--models"])
def test_closed_stdout_is_reported(options):
    done = run_shell(f"{options} </dev/null >&-")
    assert (done.returncode, done.stderr.count("\n"), done.stderr[:28]) == (1, 1, "localchat: stdout is closed:")


@pytest.mark.skipif(os.name == "nt", reason="there are no locales of POSIX")
@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_input_that_is_no_utf8_is_reported(errors):
    """The locale decides how Python reads such bytes: in C.UTF-8, as in containers, they become surrogates."""
    with always(HELLO) as server:
        done = run(server, "hi", piped="caf\udce9", PYTHONIOENCODING=f"utf-8:{errors}")
        assert (done.returncode, done.stdout, server.requests) == (1, "", [])
        assert "not UTF-8" in done.stderr


def test_content_begins_a_new_line_after_reasoning():
    reasoning = [delta(reasoning_content=text) for text in ("h", "m")]
    with always(chunked(*reasoning, *HELLO_EVENTS)) as server:
        done = run(server, "--show-reasoning", "hi", stderr=subprocess.STDOUT)
        assert done.stdout == "hm\nHello\n"
    with always(chunked(*reasoning, piece("", "length"), DONE)) as server:
        done = run(server, "--show-reasoning", "hi", stderr=subprocess.STDOUT)
        assert done.stdout.startswith("hm\nlocalchat: the server cut the answer: length")


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ('images=["no.png"]', "no.png"),
        ("response_format=5", "5"),
        ("timeout=[]", "timeout is a number"),
        ("api_key=sk-1", "no field"),
        ("extra_body=x", "extra_body is a Mapping, not a str"),
    ],
)
def test_wrong_value_of_an_option_is_reported(option, words):
    done = run(None, "-o", option, "hi")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("localchat: ")
    assert words in done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no full disk here")
@pytest.mark.parametrize("arguments", [["hi"], ["--models"]], ids=" ".join)
def test_output_that_cannot_be_written_is_reported(arguments):
    with always(HELLO) as server, open("/dev/full", "wb") as full:
        done = run(server, *arguments, stdout=full, PYTHONUNBUFFERED="")
    assert (done.returncode, done.stderr) == (1, "localchat: [Errno 28] No space left on device\n")


def test_long_waits_are_reported(monkeypatch, capsys):
    waited = threading.Event()
    for module in (ask, session):
        monkeypatch.setattr(module, "_NOTICE_S", 0.01)
    monkeypatch.setattr(ask, "report", lambda text: (print(text), waited.set()))

    class Pipe(io.StringIO):
        def read(self, size: int | None = -1) -> str:
            assert waited.wait(DEADLINE_S)
            waited.clear()
            return "piped"

    with interrupted(waited, b"", HELLO) as server:
        url = server.url
        monkeypatch.setattr(sys, "stdin", Pipe())
        assert main(["-b", server.url, "-m", "m", "hi"]) == 0
    piped, server_waits, *answer = capsys.readouterr().out.splitlines()
    assert piped.startswith("localchat: waiting for the end of the piped input")
    assert server_waits == f"localchat: waiting for {url}; Ctrl-C ends this"
    assert answer == ["Hello"]


def child(server: Server) -> subprocess.Popen[bytes]:
    """The program, which has printed the first character of the response."""
    pipes: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    started = subprocess.Popen([*PROGRAM, "-m", "m", "hi"], env={**os.environ, **environment(server.url)}, **pipes)
    assert started.stdout is not None
    assert started.stdout.read(1) == b"a"
    return started


def test_interrupt_exits_with_130_and_disconnects():
    with waiting(OPEN) as server, child(server) as program:
        start = time.monotonic()
        program.send_signal(signal.SIGINT)
        assert server.left.wait(DEADLINE_S)
        assert time.monotonic() - start < 0.5  # 50 ms on an idle machine.
        _, errors = program.communicate(timeout=DEADLINE_S)
        assert program.returncode == 130
        assert b"Traceback" not in errors


def test_closed_output_causes_no_message():
    """For example of `python -m localchat ... | head -c 1`."""
    closed = threading.Event()
    with interrupted(closed, OPEN, chunks(*HELLO_EVENTS)) as server, child(server) as program:
        assert program.stdout is not None
        assert program.stderr is not None
        program.stdout.close()
        closed.set()
        assert program.stderr.read() == b""
        assert program.wait(DEADLINE_S) == 1


@pytest.mark.skipif(os.name == "nt", reason="a shell of POSIX is needed")
def test_reports_are_not_written_to_stdout_if_stderr_is_closed():
    with always(REASONING) as server:
        out = run_shell("--usage --show-reasoning hi </dev/null 2>&-", server.url).stdout
        assert out == "Hello\n"
