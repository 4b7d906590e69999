"""`python -m localchat` as a child process, with a scripted server."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import localchat
from localchat.__main__ import main
from localchat.terminal import ask, printing
from tests.support.raw_server import (
    DEADLINE_S,
    DONE,
    HELLO,
    HELLO_EVENTS,
    OPEN,
    Server,
    always,
    choice,
    chunked,
    chunks,
    interrupted,
    piece,
    sse,
    waiting,
    with_length,
)

ROOT = Path(localchat.__file__).parents[1]


def environment(url: str | None = None) -> dict[str, str]:
    hidden = ("OPENAI_", "LOCALCHAT_")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    clean.update(PYTHONPATH=str(ROOT), PYTHONIOENCODING="utf-8", PYTHONWARNINGS="error")
    return clean if url is None else {**clean, "OPENAI_BASE_URL": url}


def run(server: Server | None, *arguments: str, piped: str = "", **options: Any) -> subprocess.CompletedProcess[str]:
    return run_program(environment(server.url if server else None), *arguments, piped=piped, **options)


def run_program(
    variables: dict[str, str], *arguments: str, piped: Any = "", encoding: str | None = "utf-8", **options: Any
) -> subprocess.CompletedProcess[Any]:
    command = [sys.executable, "-m", "localchat", *arguments]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "encoding": encoding, **options}
    return subprocess.run(command, input=piped, env=variables, timeout=DEADLINE_S, check=False, **options)


def run_shell(command: str, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command that begins with the arguments of the program."""
    command = f"{sys.executable} -m localchat {command}"
    return subprocess.run(
        command, shell=True, env=variables, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )


REASONING = sse({"choices": [choice({"reasoning_content": "hm"})]})
CALL = {"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"q":1}'}}
OTHERS = [
    {**choice({"reasoning_content": "hm", "tool_calls": [CALL]}, "tool_calls"), "index": 1},
    {**choice({"content": "no"}, "stop"), "index": 2},
]
# The response of the server and the options, then stdout, a part of stderr, and the exit code.
OUTPUTS: dict[str, tuple[bytes, list[str], str, str, int]] = {
    "answer": (HELLO, [], "Hello\n", "", 0),
    "models": (HELLO, ["--models"], "first\n", "", 0),
    "usage": (HELLO, ["--usage"], "Hello\n", "3 tokens in, 2 out, first after ", 0),
    "reasoning": (chunked(REASONING, *HELLO_EVENTS), [], "Hello\n", "", 0),
    "reasoning on demand": (chunked(REASONING, *HELLO_EVENTS), ["--show-reasoning"], "Hello\n", "hm\n", 0),
    "call": (
        chunked(sse({"choices": [choice({"tool_calls": [CALL]}, "tool_calls")]}), DONE),
        [],
        'f({"q":1})\n',
        "",
        0,
    ),
    "first of several choices": (
        chunked(*(sse({"choices": [other]}) for other in OTHERS), *HELLO_EVENTS),
        ["-o", "n=3", "--show-reasoning"],
        "Hello\n",
        "",
        0,
    ),
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
        variables, options = {**environment(server.url), "PYTHONIOENCODING": encoding}, ["--file", str(path)]
        options += ["--schema", str(schema), "hi"]
        done = run_program(variables, *options, piped="\ufeffé日".encode(), encoding=None)
        assert (done.stdout.decode().strip(), done.stderr, done.returncode) == ('"é€日"', b"", 0)
        assert server.requests[-1].json["messages"][-1]["content"] == f"{path}:\n\nÜ€\n\né日\n\nhi"


@pytest.mark.skipif(os.name == "nt", reason="a shell of POSIX is needed")
@pytest.mark.parametrize("options", ["hi", "--models"])
def test_closed_stdout_is_reported(options):
    done = run_shell(f"{options} </dev/null >&-", environment())
    assert (done.returncode, done.stderr.count("\n"), done.stderr[:28]) == (1, 1, "localchat: stdout is closed:")


@pytest.mark.skipif(os.name == "nt", reason="there are no locales of POSIX")
@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_input_that_is_no_utf8_is_reported(errors):
    """The locale decides how Python reads such bytes: in C.UTF-8, as in containers, they become surrogates."""
    with always(HELLO) as server:
        variables = {**environment(server.url), "PYTHONIOENCODING": f"utf-8:{errors}"}
        done = run_program(variables, "hi", piped=b"caf\xe9", encoding=None)
        assert (done.returncode, done.stdout, server.requests) == (1, b"", [])
        assert b"not UTF-8" in done.stderr


def test_content_begins_a_new_line_after_reasoning():
    reasoning = [sse({"choices": [choice({"reasoning_content": text})]}) for text in ("h", "m")]
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
        done = run_program({**environment(server.url), "PYTHONUNBUFFERED": ""}, *arguments, stdout=full)
    assert (done.returncode, done.stderr) == (1, "localchat: [Errno 28] No space left on device\n")


def test_long_waits_are_reported(monkeypatch, capsys):
    waited = threading.Event()
    for module in (ask, printing):
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
    started = subprocess.Popen(
        [sys.executable, "-m", "localchat", "-m", "m", "hi"],
        env=environment(server.url),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert started.stdout is not None
    assert started.stdout.read(1) == b"a"
    return started


def test_interrupt_exits_with_130_and_disconnects():
    with waiting(OPEN) as server, child(server) as program:
        program.send_signal(signal.SIGINT)
        _, errors = program.communicate(timeout=DEADLINE_S)
        assert program.returncode == 130
        assert b"Traceback" not in errors
        assert server.left.wait(DEADLINE_S)


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
    with always(chunked(REASONING, *HELLO_EVENTS)) as server:
        out = run_shell("--usage --show-reasoning hi </dev/null 2>&-", environment(server.url)).stdout
        assert out == "Hello\n"
