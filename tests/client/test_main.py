"""`python -m localchat` as a child process, with a scripted server."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from localchat.__main__ import main
from localchat.terminal import console, printer
from tests.support import documents
from tests.support.deadline import DEADLINE_S
from tests.support.documents import ROOT
from tests.support.raw_responses import DONE, HELLO, HELLO_EVENTS, OPEN, chunked, chunks, delta, piece, sse, with_length
from tests.support.raw_server import Server, always
from tests.support.slow_servers import interrupted, waiting

PROGRAM = [sys.executable, "-m", "localchat"]
OUTPUT = {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8", "PYTHONWARNINGS": "error"}


def run(server: Server | None, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the program with this server, or without one."""
    return documents.run([*PROGRAM, *arguments], **{**environment(server.url if server else ""), **options})


def exit_code(*arguments: str) -> Any:
    """Run the program in this process."""
    try:
        return main(arguments)
    except SystemExit as ended:  # Of its parser.
        return ended.code


def run_shell(command: str, url: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command that begins with the arguments of the program."""
    return documents.run(["sh", "-c", f"{' '.join(PROGRAM)} {command}"], **environment(url), **variables)


def environment(url: str) -> dict[str, str]:
    return {**OUTPUT, "OPENAI_BASE_URL": url}


REASONING = chunked(delta(reasoning_content="hm"), *HELLO_EVENTS)
THOUGHT = chunked(delta(reasoning_content="h"), delta("length", reasoning_content="m"), DONE)
CALL = {"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"q":1}'}}
LOOKS = chunked(piece("Let me look."), delta("tool_calls", tool_calls=[CALL]), DONE)
OTHERS = chunked(delta("stop", 1, reasoning="h", tool_calls=[CALL]), delta("stop", 2, content="no"), *HELLO_EVENTS)
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
FIELDS = '{"model": "m", "text": "Hello", "finish_reason": "stop", "usage": {"input_tokens": 3, "output_tokens": 2}}'

NULL_FIELDS = '{"model": "m", "text": "null", "parsed": null, "finish_reason": "stop"}'


def in_two(text: str, finish: str) -> bytes:
    return chunked(piece(text[:3]), piece(text[3:], finish), DONE)


WRONG_OPTIONS = {
    "response_format=5": "5",
    "timeout=[]": "timeout is a number",
    "api_key=sk-1": "no field",
    "extra_body=x": "extra_body is a Mapping, not a str",
    "extra_body=5 -o x=1": "extra_body is a Mapping, not a int",
}
WRONG_USAGES = ("", "--tools", "--nonsense", "-o novalue hi", "--timeout 0", "--timeout nan", "--retries -1", "--json")
# The arguments and the response of the server, then stdout, a part of stderr, and the exit code.
OUTPUTS: list[tuple[str, bytes, str, str, int]] = [
    ("hi", HELLO, "Hello\n", "", 0),
    ("--models", HELLO, "first\n", "", 0),
    ("--usage hi", HELLO, "Hello\n", "3 tokens in, 2 out, first after ", 0),
    ("hi", REASONING, "Hello\n", "", 0),
    ("--show-reasoning hi", REASONING, "Hello\n", "hm\n", 0),
    ("--show-reasoning hi", THOUGHT, "", "hm\nlocalchat: the server cut the answer: length\n", 3),
    ("hi", chunked(delta("tool_calls", tool_calls=[CALL]), DONE), 'f({"q":1})\n', "", 0),
    ("hi", LOOKS, 'Let me look.\nf({"q":1})\n', "", 0),
    ("--no-stream hi", LOOKS, 'Let me look.\nf({"q":1})\n', "", 0),
    ("-o n=3 --show-reasoning hi", OTHERS, "Hello\n", "", 0),
    ("hi", with_length(b'{"error": "bad luck"}', "400 Bad"), "", "bad luck", 1),
    ("hi", chunked(piece("Hel"), sse({"error": "bad luck"})), "Hel\n", "bad luck", 1),
    ("hi", chunked(piece("Hel")), "Hel\n", "cut after 3 characters", 3),
    ("hi", in_two("Hello", "length"), "Hello\n", "length", 3),
    ("hi", chunked(piece("Hel", "stop"), piece("lo", "stop"), piece("", "error"), DONE), "Hello\n", "'error'", 1),
    ("--json hi", HELLO, f"{FIELDS}\n", "", 0),
    ("--schema s.json hi", in_two('{"a": 1}', "stop"), '{"a": 1}\n', "", 0),
    ("--schema n.json --json hi", in_two("null", "stop"), f"{NULL_FIELDS}\n", "", 0),
    ("--schema s.json hi", in_two('{"a": "x"}', "stop"), "", "does not fit", 1),
    ("--schema s.json hi", in_two('{"a": 1', "length"), "", "no value for response_format: set max_tokens", 3),
    *((f"-o {option} hi", HELLO, "", words, 1) for option, words in WRONG_OPTIONS.items()),
    *((arguments, HELLO, "", "usage:", 2) for arguments in (*WRONG_USAGES, "--schema s.json")),
]


@pytest.mark.parametrize(("arguments", "raw", "out", "errors", "code"), OUTPUTS, ids=[row[0] for row in OUTPUTS])
def test_output_and_exit_code(arguments, raw, out, errors, code, tmp_path, monkeypatch, capsys):
    """In this process: most of the time of a program is its start."""
    (tmp_path / "s.json").write_text(json.dumps(SCHEMA), encoding="utf-8")
    (tmp_path / "n.json").write_text('{"type": "null"}', encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    with always(raw) as server:
        assert exit_code("-b", server.url, "-m", "m", *arguments.split()) == code
    shown = capsys.readouterr()
    assert shown.out == out
    assert errors in shown.err
    assert bool(shown.err) == bool(errors or code)
    assert shown.err.startswith("localchat: ") or code != 1
    if code != 2 and "s.json" in arguments:
        assert server.requests[-1].json["response_format"]["json_schema"]["schema"] == SCHEMA


FILES = ["--file no.txt", "--file latin.txt", "--image no", "--audio s", '-o images=["no"]', "--schema deep.json"]


@pytest.mark.parametrize("file", FILES)
def test_file_that_cannot_be_read_is_reported(file, tmp_path):
    for name, data in (("latin.txt", b"caf\xe9"), ("s", b"GIF89a"), ("deep.json", b"[" * 100_000)):
        (tmp_path / name).write_bytes(data)
    done = run(None, *file.split(), "hi", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr[:11]) == (1, "", "localchat: ")


def test_options_become_fields_of_the_request():
    with always(HELLO) as server:
        deep = "[" * 20_000  # Too deep to be JSON, and so a text.
        fields = {"top_k": "5", "stop": "END", "x": "{}", "y": deep}
        options = ["-m", "mine", "-k", "key", *(f"-o{name}={value}" for name, value in fields.items()), "--no-stream"]
        done = run(None, "--base-url", server.url, "-s", "be brief", *options, "hi")
        assert (done.stdout, done.returncode) == ("Hello\n", 0)
        run(server, "-o", "system=be brief", "hi")
        first, second = (request for request in server.requests if request.method == "POST")
    assert first.headers["authorization"] == "Bearer key"
    sent = {"model": "mine", "top_k": 5, "stop": "END", "x": {}, "y": deep}
    assert {name: first.json[name] for name in sent} == sent
    for request in (first, second):
        assert request.json["messages"][0] == {"role": "system", "content": "be brief"}


def test_piped_input_comes_before_the_text(monkeypatch):
    with always(HELLO) as server:
        for piped, words, sent in (("text\n", "explain", "text\n\nexplain"), ("text", "", "text"), ("", "a b", "a b")):
            monkeypatch.setattr(sys, "stdin", io.StringIO(piped))
            assert exit_code("-b", server.url, *words.split()) == 0
            assert server.requests[-1].json["messages"][0]["content"] == sent


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


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no full disk here")
@pytest.mark.parametrize(("out", "words"), [("&-", "stdout is closed:"), ("/dev/full", "[Errno 28] No space left")])
@pytest.mark.parametrize("arguments", ["hi", "--models"])
def test_output_that_cannot_be_written_is_reported(arguments, out, words):
    with always(HELLO) as server:
        done = run_shell(f"{arguments} </dev/null >{out}", server.url, PYTHONUNBUFFERED="")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith(f"localchat: {words}")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no full disk here")
def test_call_of_main_in_a_program_leaves_its_files_as_they_are(monkeypatch, capsys):
    """Only the program itself redirects an output that cannot be written."""
    # The text that could not be written is still there when the file is closed.
    with contextlib.suppress(OSError), open("/dev/full", "w") as full, always(HELLO) as server:
        for name, stream in (("stdin", io.StringIO()), ("stdout", full), ("stderr", None)):
            monkeypatch.setattr(sys, name, stream)
        encoding, device = full.encoding, os.fstat(full.fileno()).st_rdev
        assert main(["-b", server.url, "-m", "m", "--usage", "hi"]) == 1
        assert (full.encoding, os.fstat(full.fileno()).st_rdev) == (encoding, device)
        assert (sys.stdout, sys.stderr) == (full, None)
        monkeypatch.undo()
    assert capsys.readouterr() == ("", "")


@pytest.mark.skipif(os.name == "nt", reason="there are no locales of POSIX")
@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_input_that_is_no_utf8_is_reported(errors):
    """The locale decides how Python reads such bytes: in C.UTF-8, as in containers, they become surrogates."""
    with always(HELLO) as server:
        done = run(server, "hi", piped="caf\udce9", PYTHONIOENCODING=f"utf-8:{errors}")
        assert (done.returncode, done.stdout, server.requests) == (1, "", [])
        assert "not UTF-8" in done.stderr


def test_long_waits_are_reported(monkeypatch, capsys):
    waited = threading.Event()
    monkeypatch.setattr(console, "_PIPE_NOTICE_S", 0.01)
    monkeypatch.setattr(printer, "_NOTICE_S", 0.01)
    monkeypatch.setattr(console, "report", lambda text: (print(text), waited.set()))

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
    assert started.stdout.read(1) == b"a"
    return started


def test_interrupt_exits_with_130_and_disconnects():
    with waiting(OPEN) as server, child(server) as program:
        start = time.monotonic()
        program.send_signal(signal.SIGINT)
        assert server.left.wait(DEADLINE_S)
        assert time.monotonic() - start < DEADLINE_S / 2  # 50 ms on an idle machine.
        _, errors = program.communicate(timeout=DEADLINE_S)
        assert program.returncode == 130
        assert b"Traceback" not in errors


def test_interrupt_before_an_await_shows_no_warning():
    """Ctrl-C may come between the call of a coroutine function and its `await`, and Python warns of the rest."""
    program = """
from localchat.terminal.console import run_program
async def read(): ...
def main():
    waiting = read()
    raise KeyboardInterrupt
run_program(main)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=DEADLINE_S)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_closed_output_causes_no_message():
    """For example of `python -m localchat ... | head -c 1`."""
    closed = threading.Event()
    with interrupted(closed, OPEN, chunks(*HELLO_EVENTS)) as server, child(server) as program:
        program.stdout.close()
        closed.set()
        assert program.stderr.read() == b""
        assert program.wait(DEADLINE_S) == 1


@pytest.mark.skipif(os.name == "nt", reason="a shell of POSIX is needed")
def test_reports_are_not_written_to_stdout_if_stderr_is_closed():
    with always(REASONING) as server:
        out = run_shell("--usage --show-reasoning hi </dev/null 2>&-", server.url).stdout
        assert out == "Hello\n"
