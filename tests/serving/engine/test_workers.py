"""Workers of `--rpc`: what is wrong with one, and the command that starts one. The live tests are in
test_workers_live.py."""

import contextlib
import http.server
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from localchat import worker
from localchat.serving.engine import workers
from localchat.serving.engine.workers import HELLO, PROTOCOL, RESPONSE, worker_problems
from tests.support.command import run_command
from tests.support.deadline import DEADLINE_S
from tests.support.documents import run

MAJOR, MINOR = PROTOCOL
SILENT = "does not respond: it serves another server, is stopped, or is another program"


def response(major: int, minor: int) -> bytes:
    return RESPONSE.pack(28, major, minor, 0)


@contextlib.contextmanager
def listening(*parts: bytes, closes: bool = True, resets: bool = False) -> Iterator[str]:
    """The address of a program that sends these parts after the hello, and then closes or resets the connection.

    With no part and `closes=False` it is silent.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor() as threads:
        listener.settimeout(DEADLINE_S)
        is_over = threading.Event()

        def serve() -> None:
            with contextlib.suppress(OSError):
                sock, _ = listener.accept()
                with sock:
                    assert sock.recv(100) == HELLO
                    for part in parts:
                        sock.sendall(part)
                    if not closes:
                        is_over.wait(DEADLINE_S)
                    if resets:
                        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

        threads.submit(serve)
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        is_over.set()
        listener.close()


def problem(endpoint: str) -> str:
    """What is wrong with a worker, without its name."""
    found = worker_problems([endpoint])
    assert all(text.startswith(f"the worker {endpoint} of --rpc ") for text in found)
    return found[0].removeprefix(f"the worker {endpoint} of --rpc ") if found else ""


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ([response(MAJOR, MINOR)], ""),
        ([response(MAJOR, MINOR)[:5], response(MAJOR, MINOR)[5:]], ""),
        ([response(MAJOR, MINOR + 1)], f"speaks RPC {MAJOR}.{MINOR + 1}, this server {MAJOR}.{MINOR}: "),
        ([response(MAJOR - 1, 3)], f"speaks RPC {MAJOR - 1}.3, this server {MAJOR}.{MINOR}: install the same version"),
        ([b"HTTP/1.1 400 Bad Request\r\n\r\n" + 20 * b"x"], "is another program: it responds b'HTTP/1.1 400 "),
        ([b"220 mail"], "is another program: it responds b'220 mail'"),
        ([RESPONSE.pack(27, MAJOR, MINOR, 0)], "is another program: it responds b'\\x1b"),
        ([response(MAJOR, MINOR)[:20]], "is another program: it responds b'\\x1c"),
        ([], "ends the connection at once"),
    ],
)
def test_the_response_to_the_hello_says_what_a_program_is(parts: list[bytes], text: str):
    with listening(*parts) as endpoint:
        found = problem(endpoint)
    assert found.startswith(text) if text else not found


@pytest.mark.skipif(sys.platform != "linux", reason="a reset may discard bytes that were not read")
@pytest.mark.parametrize(
    ("parts", "text"), [([b"220 mail"], "is another program: it responds b'220 mail'"), ([], "cannot be reached (")]
)
def test_a_program_that_resets_the_connection_is_named_by_what_it_sent(parts: list[bytes], text: str):
    with listening(*parts, resets=True) as endpoint:
        assert problem(endpoint).startswith(text)


def test_silent_programs_are_an_error_within_seconds(monkeypatch: pytest.MonkeyPatch):
    """All workers are asked at the same time: one that accepts, one whose connections nobody accepts, a web server."""
    for limit in ("_CONNECT_S", "_HELLO_S"):
        monkeypatch.setattr(workers, limit, 1.0)
    web = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    with (
        web,
        listening(closes=False) as silent,
        listening(response(MAJOR, MINOR)[:9], closes=False) as slow,
        socket.create_server(("127.0.0.1", 0)) as busy,
    ):
        thread = threading.Thread(target=web.serve_forever, args=(0.05,))
        thread.start()
        started = time.monotonic()
        endpoints = [silent, f"127.0.0.1:{busy.getsockname()[1]}", f"127.0.0.1:{web.server_port}", slow]
        found = worker_problems(endpoints)
        assert time.monotonic() - started < 15
        web.shutdown()
        thread.join()
    assert found[:3] == [f"the worker {endpoint} of --rpc {SILENT}" for endpoint in endpoints[:3]]
    assert found[3].startswith(f"the worker {slow} of --rpc is another program: it responds ")


def test_a_port_where_nobody_listens_is_named_at_once():
    with socket.create_server(("127.0.0.1", 0)) as free:
        endpoint = f"127.0.0.1:{free.getsockname()[1]}"
    assert problem(endpoint).startswith("cannot be reached (")
    assert "start it with `python -m localchat.worker`" in problem(endpoint)


def test_a_host_without_an_address_is_named(monkeypatch: pytest.MonkeyPatch):
    def connect(self: socket.socket, address: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(workers.socket.socket, "connect", connect)
    assert problem("nowhere:50052").startswith("cannot be reached (Name or service not known)")


@pytest.mark.parametrize("value", ["", "host:", ":50052", "host:x", "host:70000", "a:1,a:1", "[::1]:50052"])
def test_wrong_addresses_are_refused(value: str):
    done = run_command("demo", "--rpc", value)
    assert (done.returncode, "argument --rpc" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--host", "0.0.0.0"], 2, "can be reached from the network: whoever reaches the port can use"),
        (["--port", "0"], 2, "must be at least 1, got 0"),
        (["--host", "nowhere.invalid", "--insecure"], 1, "cannot listen at nowhere.invalid:"),
    ],
)
def test_worker_refuses(arguments: list[str], status: int, message: str, capsys: pytest.CaptureFixture[str]):
    try:
        found = worker.main(arguments)
    except SystemExit as done:
        found = done.code
    assert (found, message in capsys.readouterr().err) == (status, True)


def test_worker_names_a_port_that_is_in_use():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        done = run([sys.executable, "-m", "localchat.worker", "--port", port])
    assert done.returncode == 1
    assert f"localchat.worker: cannot listen at 127.0.0.1:{port}: " in done.stderr


def test_process_ends_if_a_part_of_a_load_takes_longer_than_the_limit():
    """llama.cpp waits without a limit for a worker that stopped while it gets its layers."""
    pytest.importorskip("llama_cpp", reason="the real engine needs llama-cpp-python")
    program = """
import time
from localchat.serving.engine.llama import load
from localchat.serving.engine.values import LoadOptions
from localchat.serving.models.model_file import DEMO_PATH
options = LoadOptions(workers=("a:1",), rpc_timeout=1, n_gpu_layers=0)
pauses = iter([0, 5])
load._load_model(str(DEMO_PATH), options, lambda share: time.sleep(next(pauses, 0)))
print("loaded")
"""
    done = run([sys.executable, "-c", program])
    assert (done.returncode, done.stdout) == (1, "")
    assert "Timeout (0:00:01)!" in done.stderr
