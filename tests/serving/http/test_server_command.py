"""The command `python -m localchat.server`: its options and errors, what it writes at the start, and its log."""

import contextlib
import errno
import io
import logging
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest

from localchat.server import read_options
from localchat.serving.chat.model import Model
from localchat.serving.core.errors import NO_MEMORY
from localchat.serving.core.server_options import Options
from localchat.serving.engine.tuning import LIBRARY
from localchat.serving.engine.values import EngineDied, EngineError
from localchat.serving.loading import load_log, stderr_log
from localchat.serving.loading import loader as loading
from localchat.serving.loading.load_log import StartLog
from localchat.serving.models.memory import OtherModels
from localchat.serving.models.model_file import DEMO_PATH, ModelFile
from tests.support.command import restored, run_command
from tests.support.deadline import DEADLINE_S
from tests.support.documents import ROOT, run
from tests.support.engines import client_of, stepped
from tests.support.fakes import FakeBackend
from tests.support.serving import GOOD, raw_request, read_all, serving, wait_for

OTHER_CPU = "E: llama.cpp was built for another CPU; build it on this machine (docs/install.md)"
TLS, OTHER_TLS, ENCRYPTED_KEY = (
    str(ROOT / f"tests/data/tls/{name}.pem") for name in ("localhost", "other", "encrypted")
)
START = "from localchat.server import main; sys.exit(main(['--port', '0']))"

# --- options ---

# As browsers send them, or with a slash.
ORIGINS = ["*", "null", "http://localhost:3000", "https://example.org/", "http://[::1]:80", "app-x://a.b"]


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("a.gguf", "model", "a.gguf"),
        ("-c 8k", "n_ctx", 8192),
        ("--ctx-size 1M", "n_ctx", 1 << 20),
        ("-ngl 99", "n_gpu_layers", 99),
        ("--n-gpu-layers -1", "n_gpu_layers", -1),
        ("--no-page", "has_page", False),
        ("--idle-unload 1.5", "idle_unload", 90.0),
        ("--tensor-split 3,1", "tensor_split", (3.0, 1.0)),
        ("-ngl auto", "n_gpu_layers", None),
        ("--allow-chat-template", "allow_template", True),
        ("--default top_k=1 --default seed=2", "defaults", {"top_k": 1, "seed": 2}),
        *((f"--cors {origin}", "cors", [origin]) for origin in ORIGINS),
        pytest.param("--mmproj=~/a.gguf", "mmproj", str(Path.home() / "a.gguf"), id="home folder"),
        pytest.param("--tls-cert=~/a.pem", "tls_cert", Path.home() / "a.pem", id="home folder of a path"),
    ],
)
def test_short_options_and_numbers(line: str, name: str, value: object):
    assert getattr(read_options(line.split()), name) == value


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["--version"], 0, "localchat "),
        (["--help"], 0, "--gpu-layers"),
        (["-m", "a.gguf", "b.gguf"], 2, "two models are given, b.gguf and a.gguf: name one"),
        (["--contxt", "1"], 2, "localchat.server: unknown argument --contxt; did you mean --ctx?"),
        (["--zzz=1"], 2, "localchat.server: unknown argument --zzz=1; --help lists the options"),
        (["a.gguf", "b.gguf"], 2, "unknown argument b.gguf"),
        (["-c", "1"], 2, "--ctx/--ctx-size: must be at least 256, got 1"),
        (["-c", "1.5k"], 2, "expected a whole number, such as 4096 or 4k, got '1.5k'"),
        (["--port", ""], 2, "expected a whole number, such as 4096 or 4k, got ''"),
        (["--port", "99999"], 2, "at most 65535, got 99999"),
        (["--idle-unload", "0"], 2, "expected a number of minutes above 0, got '0'"),
        (["--rpc", "gpu1:65536"], 2, "expected hosts with their ports, such as gpu1:50052, got 'gpu1:65536'"),
        (["--rpc", "gpu1,gpu1:50052"], 2, "workers, each once, got 'gpu1,gpu1:50052'"),
        (["--tensor-split", "0,0"], 2, "expected shares, such as 3,1, got '0,0'"),
        (["--api-key", ""], 2, "the key is empty"),
        (["--api-key", "a\nb"], 2, "that an HTTP header cannot have"),
        (["--api-key-file", "/nowhere/keys"], 2, "cannot read keys from /nowhere/keys"),
        (["--api-key-file", os.devnull], 2, "has no key: write one per line"),
        (["--host", "0.0.0.0"], 2, "or add --insecure to allow requests without a key"),
        (["--tls-key", "key.pem"], 2, "add --tls-cert"),
        (["--tls-cert", "/nowhere.pem"], 1, "cannot use the certificate /nowhere.pem"),
        (["--tls-cert", os.devnull], 1, f"cannot use the certificate {os.devnull}: both must be in PEM"),
        (["--tls-cert", str(ROOT)], 1, f"cannot use the certificate {ROOT}: Is a directory"),
        (["--tls-cert", TLS, "--tls-key", "/nowhere.pem"], 1, "with the key /nowhere.pem: No such file"),
        (["--tls-cert", OTHER_TLS, "--tls-key", TLS], 1, ": the key is that of another certificate"),
        (["--tls-cert", TLS, "--tls-key", ENCRYPTED_KEY], 1, "the key is encrypted: decrypt it"),
        (["--uds", os.devnull], 1, f"cannot listen on {os.devnull}: Address already in use; a server or"),
        (["--uds", "/nowhere/s"], 1, "cannot listen on /nowhere/s"),
        (["--cors", "https://example.org/app"], 2, "example.org/app'"),
        (["--default", "top_p=2"], 2, "from 0 to 1, got 2"),
        (["--default", "topp=1"], 2, "topp"),
        (["/nowhere/model.gguf"], 1, "/nowhere/model.gguf"),
        (["m" * 300], 1, "there is no model"),
        ([""], 1, "there is no model ''"),
        (["--get", ""], 1, "expected PUBLISHER/REPOSITORY"),
        (["--alias", " "], 2, "--alias: the name is empty"),
        (["--host", "203.0.113.1", "--insecure"], 1, "cannot listen on 203.0.113.1"),
    ],
)
def test_command_line(arguments: list[str], status: int, text: str):
    done = run_command(*arguments)
    assert done.returncode == status
    assert text in done.stdout + done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("localchat.server: ")]
    assert len(errors) == (1 if status else 0)
    assert done.stderr.splitlines()[-1:] == errors


def test_port_in_use_is_one_sentence():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = run_command("--port", str(port))
    assert done.returncode == 1
    other = f"--port {port + 1} (make run ARGS='--port {port + 1}')"
    assert done.stderr.endswith(f" port {port}: Address already in use; choose another: {other}\n")
    assert done.stderr.count("\n") == 1


def test_interrupt_before_the_server_runs_prints_no_traceback(tmp_path: Path):
    pipe = tmp_path / "keys"
    os.mkfifo(pipe)
    command = [sys.executable, "-m", "localchat.server", "--api-key-file", str(pipe)]
    starting = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    with starting as process, pipe.open("w"):  # The pipe is open once the server reads it.
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=DEADLINE_S)[1] == ""
    assert process.returncode == 128 + signal.SIGINT


def test_keys_of_a_file_are_those_of_its_lines_and_an_option_or_variable_adds_one(tmp_path, monkeypatch):
    (tmp_path / "keys").write_text("one\n\n  two  \r\n", encoding="utf-8")
    file = ["--api-key-file", str(tmp_path / "keys")]
    assert read_options([*file, "--api-key", "three\n"]).api_keys == ["one", "two", "three"]
    monkeypatch.setenv("LOCALCHAT_API_KEY", "from env\n")
    assert read_options([]).api_keys == ["from env"]
    assert read_options(["--api-key", "a"]).api_keys == ["a"]


# --- the environment ---


@pytest.mark.skipif(sys.platform != "linux", reason="other systems limit the address space otherwise")
def test_memory_limit_is_one_line():
    """The memory is too little for the model file, for numpy or for a thread. Which of them fails first may differ."""
    program = ["sh", "-c", 'ulimit -v 250000; exec "$@"', "sh", sys.executable, "-m", "localchat.server", "--port", "0"]
    done = run(program, OPENBLAS_NUM_THREADS="1")
    assert "Traceback" not in done.stderr
    # OpenBLAS, which numpy loads, and the dynamic linker end the process themselves.
    ends = {"localchat.server: cannot ": 1, "OpenBLAS error: ": 1, "cannot allocate memory for thread-local": 127}
    last = done.stderr.splitlines()[-1]
    assert [status for text, status in ends.items() if last.startswith(text)] == [done.returncode]


def test_error_of_a_missing_library_names_the_tested_release():
    done = run([sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); {START}"])
    assert done.returncode == 1
    assert done.stderr.endswith(f"-m pip install {LIBRARY}\n")
    _, release = LIBRARY.split("==")
    for file in ("pyproject.toml", "docs/install.md"):
        assert set(re.findall(r"llama-cpp-python\S*=([\d.]+)", (ROOT / file).read_text(encoding="utf-8"))) == {release}


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a terminal")
def test_terminal_shows_a_bar_and_then_model_memory_device_and_a_command():
    pytest.importorskip("llama_cpp", reason="the real engine needs llama-cpp-python")
    reading, writing = os.openpty()
    command = [sys.executable, "-m", "localchat.server", "--port", "0", "--ctx", "1k", "-np", "3"]
    with subprocess.Popen(command, stderr=writing) as process:
        os.close(writing)
        try:
            output, deadline = "", time.monotonic() + DEADLINE_S
            while "your name?" not in output:
                assert select.select([reading], [], [], max(deadline - time.monotonic(), 0))[0], output
                output += os.read(reading, 65536).decode()
        finally:
            process.kill()
            os.close(reading)
    bar, _, rest = output.partition("\r\x1b[K")
    assert re.search(r"\rloading demo \[#+\.*\] +\d+ %", bar)
    # One buffer of cells for all requests, or one for each and idle prefixes.
    size = r"[\d.]+ [MG]B"
    python = re.escape(sys.executable.removeprefix(os.getcwd() + os.sep))
    pattern = rf"""
model    llama Q5_1, 5 M parameters, {size}: {re.escape(str(DEMO_PATH))}
         a tiny one for a first try; docs/models\.md lists others: make run GET=Qwen/Qwen3-4B-GGUF
context  1024 tokens for each request, 3 requests at once; KV cache of \d+ tokens
memory   {size} \({size} weights, {size} context\); {size} are free.*
device   CPU.*; CPU threads: \d+
loaded   in [\d.]+ s
localchat is ready: demo at (http://127\.0\.0\.1:\d+)/v1 \(Ctrl-C ends it\)
browser  \1
terminal {python} -m localchat --base-url \1/v1 "What is your name\?"""
    assert re.search(pattern, "\n" + rest.replace("\r\n", "\n")), rest


@pytest.mark.skipif(sys.platform == "win32", reason="needs a Unix socket")
def test_server_without_stdin_stdout_and_stderr_serves(tmp_path: Path):
    pytest.importorskip("llama_cpp", reason="the real engine needs llama-cpp-python")
    path = str(tmp_path / "s")
    server = [sys.executable, "-m", "localchat.server", "--uds", path, "demo"]
    with subprocess.Popen(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *server]) as process:

        def is_ready() -> bool:
            assert process.poll() is None
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as sock:
                sock.settimeout(DEADLINE_S)
                sock.connect(path)
                sock.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                return b" 200 " in sock.recv(100)
            return False

        try:
            wait_for(is_ready, DEADLINE_S)
        finally:
            process.terminate()
        assert process.wait(DEADLINE_S) == 0


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (MemoryError(), NO_MEMORY),
        (EngineError("llama.cpp could not create a context: std::bad_alloc"), NO_MEMORY),
        (EngineDied("killed by SIGABRT (GGML_ASSERT(ctx->mem_buffer != NULL) failed)", "SIGABRT"), NO_MEMORY),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), NO_MEMORY),
        (OSError(errno.EACCES, "Permission denied"), "[Errno 13] Permission denied"),
        (ImportError("Long advice.\n\nnumpy is broken\n"), "numpy is broken"),
        (ValueError(), "ValueError"),
        (EngineDied("E", "SIGILL"), OTHER_CPU),
    ],
)
def test_reason_why_a_file_cannot_be_loaded_is_one_line(error: Exception, reason: str):
    assert loading.reason_of(DEMO_PATH, error) == reason


class Gone(io.StringIO):
    """A terminal that has vanished."""

    n_writes = 0

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.n_writes += 1
        raise OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize(("term", "has_bar"), [("xterm", True), ("dumb", False)])
def test_terminal_that_is_gone_ends_no_load(term: str, has_bar: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr(sys, "stderr", Gone())
    StartLog(Options()).on_progress(ModelFile(DEMO_PATH, "demo"), 0.5)
    assert bool(sys.stderr.n_writes) == has_bar
    with restored():
        stderr_log.log_to_stderr()
        n_writes = sys.stderr.n_writes
        stderr_log.report("a line")
        assert sys.stderr.n_writes == n_writes + 1  # and no traceback


def test_bar_is_cleared_before_other_lines(monkeypatch: pytest.MonkeyPatch):
    """A load that starts again reports 0."""
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    file, start_log = ModelFile(DEMO_PATH, "demo"), StartLog(Options())
    for share in (0, 0.001, 0.5, 0.5, 0, 1):
        start_log.on_progress(file, share)
    bars = [f"\rloading demo [{bar}] {percent:3} %" for bar, percent in (("#" * 15 + "." * 15, 50), ("#" * 30, 100))]
    assert terminal.getvalue() == f"{bars[0]}\r\x1b[K{bars[1]}"


def test_progress_of_a_load_is_logged_every_ten_seconds(monkeypatch: pytest.MonkeyPatch, caplog):
    """A load that begins later starts to count again."""
    caplog.set_level(logging.INFO)
    now = 1000.0
    monkeypatch.setattr(load_log, "time", SimpleNamespace(monotonic=lambda: now))
    file, log = ModelFile(DEMO_PATH, "demo"), load_log.LoadLog()
    for _ in range(2):
        log.on_begin()
        for share, seconds in ((0.1, 9), (0.2, 2), (0.3, 9), (0.4, 2)):
            now += seconds
            log.on_progress(file, share)
        now += 1000
    lines = ["loading demo: 20 % after 11 s", "loading demo: 40 % after 22 s"]
    assert caplog.messages == 2 * lines


def test_first_model_that_fails_ends_the_server_and_a_later_one_is_a_line_of_the_log(monkeypatch, caplog):
    ended: list[bool] = []
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    file, start_log = ModelFile(DEMO_PATH, "demo"), StartLog(Options())
    start_log.on_open("http://localhost", lambda: ended.append(True))
    for _ in range(2):
        start_log.on_begin()
        start_log.on_progress(file, 0.5)
        start_log.on_failure(file, EngineError("it is broken"))
    assert (ended, start_log.has_failed) == ([True], True)
    assert sys.stderr.getvalue().count("\rloading demo [") == 1
    reason = f"cannot load {DEMO_PATH}: it is broken"
    assert caplog.messages == [f"localchat.server: {reason}", reason]


def lines_of_start(monkeypatch: pytest.MonkeyPatch, backend: FakeBackend, *, has_several_models: bool) -> list[str]:
    """What a server says when its first model is loaded."""
    lines: list[str] = []
    monkeypatch.setattr(load_log, "report", lines.append)
    start_log = StartLog(Options())
    start_log.on_begin()
    start_log.on_open("http://localhost", lambda: None, has_several_models=has_several_models)
    with stepped(backend) as engine:
        start_log.on_loaded(ModelFile(DEMO_PATH, "demo"), Model("Fake", client_of(engine)))
    return lines


@pytest.mark.parametrize("several", [False, True])
def test_command_of_the_start_names_the_model_if_there_are_several(several: bool, monkeypatch):
    """The client would refuse to choose once two models are loaded."""
    command = lines_of_start(monkeypatch, FakeBackend(), has_several_models=several)[-1]
    model = " --model demo" if several else ""
    assert command.endswith(f' -m localchat --base-url http://localhost{model} "What is your name?"')


@pytest.mark.parametrize("template", [None, "{{ messages }}"])
def test_start_says_that_a_file_has_no_chat_template(template: str | None, monkeypatch):
    lines = lines_of_start(monkeypatch, FakeBackend(chat_template=template), has_several_models=False)
    assert [line for line in lines if line.startswith("template")] == (
        []
        if template
        else ["template none in the file: chats use ChatML; a mapping file names another (docs/models.md)"]
    )


def test_invalid_mapping_file_ends_the_start_also_beside_a_model(tmp_path: Path):
    (tmp_path / "models.json").write_text("{bad")
    command = [sys.executable, "-m", "localchat.server", "-m", "demo", "--models-dir", tmp_path]
    done = run(command, HOME=str(tmp_path))
    assert (done.returncode, str(tmp_path / "models.json") in done.stderr) == (1, True)


def test_list_is_written_in_any_encoding_and_to_a_reader_that_leaves(tmp_path: Path):
    (tmp_path / "m\xfcller.gguf").touch()
    command = [sys.executable, "-m", "localchat.server", "--list", "--models-dir", tmp_path]
    assert "m\\xfcller" in run(command, PYTHONIOENCODING="ascii", HOME=str(tmp_path)).stdout
    done = run(["sh", "-c", '"$@" | true', "sh", *command], HOME=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")


def test_engine_of_a_model_that_cannot_be_used_is_ended(monkeypatch: pytest.MonkeyPatch):
    engine = mock.Mock()
    monkeypatch.setattr(loading, "EngineProcess", lambda *_: engine)
    monkeypatch.setattr(loading.Loader, "_model", mock.Mock(side_effect=ValueError("the template is broken")))
    file = ModelFile(DEMO_PATH, "demo")
    engine.wait_until_loaded.return_value = engine
    loader = loading.Loader(Options())
    for n_ended in (1, 2):
        with pytest.raises(EngineError, match="the template is broken"):
            loader.load(file, OtherModels(), lambda share: None)
        assert engine.close.call_count == n_ended


# --- the log ---


def test_lines_for_people_have_no_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with restored():
        stderr_log.log_to_stderr()
        stderr_log.report("plain")
        stderr_log.log.info("timed")
        assert stderr_log.report_failure("bad") == 1
        assert re.fullmatch(r"plain\n\d\d:\d\d:\d\d timed\nlocalchat\.server: bad\n", sys.stderr.getvalue())


def test_log_has_one_line_per_request_and_nothing_forged(caplog):
    caplog.set_level(logging.INFO, "localchat.server")
    with serving(settings=Options(port=0, api_keys=("s3cret",))) as running, running.connect() as sock:
        key = "Authorization: Bearer s3cret"
        sock.sendall(raw_request(GOOD, key) + raw_request(b"", key, path="/\x1b[2J\x9bx", method="GET"))
        with running.connect(raw_request(b"", key, path="/" + "y" * 9000, method="GET")) as odd:
            odd.sendall(raw_request(b"", key, method="B\x1b[2JREW"))
            read_all(odd)
        for path in ("/metrics", "/v1/slots"):  # their successes are not logged, as for /health
            sock.sendall(raw_request(b"", key, path=path, method="GET"))
        sock.sendall(raw_request(b"", "Connection: close", path="/health", method="GET"))
        read_all(sock)
    lines = [record.getMessage() for record in caplog.records]
    assert "\x1b" not in caplog.text
    assert max(map(len, lines)) < 1000
    (odd,) = (line for line in lines if " 501 " in line)
    assert odd.startswith(r"- 501 B\x1b[2JREW")
    lines = [line for line in lines if line != odd and "/yyy" not in line]
    assert len(lines) == 2
    usage = r"in 5 \(0 cached\) at [\d.]+/s, out 6 at [\d.]+/s, stop"
    assert re.fullmatch(rf"chatcmpl-[0-9a-f]{{32}} 200 POST /v1/chat/completions [\d.]+ s: {usage}", lines[0])
    assert lines[1].startswith(r"- 404 GET /\x1b[2J\x9bx")
    assert "s3cret" not in caplog.text
