"""The supervisor restarts a crashed server, and finds the request that caused the crash."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from localchat.serving.http.crashes import CrashRecord, RequestCrashed, fingerprint
from localchat.serving.http.listener import listen_on
from localchat.serving.http.supervisor import ENGINE_FAILED

from .serving import GOOD, serving, wait_for

pytestmark = pytest.mark.skipif(os.name != "posix", reason="supervision needs POSIX")

DEADLINE_S = 60
A, B, C = (fingerprint("POST", "/x", body) for body in (b"a", b"b", b"c"))


@pytest.fixture
def file():
    with tempfile.TemporaryFile() as file:
        yield file.fileno()


def crash(file: int, *requests: bytes) -> None:
    """Crash a server with these requests in flight, and make them suspects, as the supervisor does."""
    server = CrashRecord(file)
    with contextlib.suppress(ZeroDivisionError), contextlib.ExitStack() as stack:
        for request in requests:
            stack.enter_context(server.during(request))
        assert CrashRecord(file).add_suspects() == len(requests)
        _ = 1 / 0  # the error ends all of them, as a crash does


# --- the record ---


def test_fingerprints_differ_by_method_path_and_body():
    parts = [("GET", "/x", b"a"), ("POST", "/x", b"a"), ("POST", "/y", b"a"), ("POST", "/x", b"b"), ("POST", "/", b"")]
    assert len({fingerprint(*part) for part in parts}) == len(parts)


def test_request_that_crashed_twice_is_refused(file):
    crash(file, A, B)
    crash(file, A)
    record = CrashRecord(file)
    with pytest.raises(RequestCrashed, match="crashed the server 2 times"), record.during(A):
        pass
    for request in (B, C):
        with record.during(request):
            pass


def test_suspect_that_ends_is_cleared_also_for_later_servers(file):
    crash(file, A, B)
    with CrashRecord(file).during(A):
        pass
    for request in (A, B):  # suspects run one at a time
        crash(file, request)
    with CrashRecord(file).during(A):  # after being cleared, it has one crash again
        pass
    with pytest.raises(RequestCrashed), CrashRecord(file).during(B):
        pass


def test_requests_that_have_ended_are_no_suspects(file):
    record = CrashRecord(file)
    with record.during(A), pytest.raises(ZeroDivisionError), record.during(B):
        _ = 1 / 0
    assert CrashRecord(file).add_suspects() == 0


def test_suspects_run_one_at_a_time_and_beside_others(file):
    crash(file, A, B)
    record = CrashRecord(file)
    entered = threading.Event()

    def second():
        with record.during(B):
            entered.set()

    thread = threading.Thread(target=second)
    with record.during(A):
        thread.start()
        with record.during(C):
            assert not entered.wait(0.05)
    thread.join(DEADLINE_S)
    assert entered.is_set()


def test_more_requests_than_the_record_holds_run_unrecorded(file):
    record = CrashRecord(file)
    with contextlib.ExitStack() as stack:
        for n in range(1030):
            stack.enter_context(record.during(fingerprint("POST", "/x", str(n).encode())))
        assert CrashRecord(file).add_suspects() == 1024


def test_refused_request_gets_400_over_http(file):
    request = fingerprint("POST", "/v1/chat/completions", GOOD)
    crash(file, request)
    crash(file, request)
    with serving(record=CrashRecord(file)) as running:
        status, body = running.request("POST", "/v1/chat/completions", GOOD)
        assert (status, body["error"]["code"]) == (400, "request_crashed_server")
        assert running.chat("other")[0] == 200
        running.engine.failure = RuntimeError("broken")
        running.thread.join(DEADLINE_S)  # the server ends, so that its supervisor restarts it
        assert not running.thread.is_alive()


# --- the supervisor, with a child that runs commands ---

SUPERVISE = """
import logging, os, sys
from localchat.serving.http.listener import listen_on
from localchat.serving.http.supervisor import Supervisor
logging.basicConfig(format="%(message)s")
with listen_on("127.0.0.1", 0) as listener:
    print(listener.getsockname()[1], flush=True)
    sys.exit(Supervisor([sys.executable, "-c", sys.argv[1]], listener).run())
"""
# The child sends its process id on each connection, and then runs the code that it receives.
CHILD = """
import os, signal, sys
from localchat.serving.http.supervisor import inherited
got = inherited()
got.record.set_ready()
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
while True:
    connection = got.listener.accept()[0]
    connection.sendall(b"%d\\n" % os.getpid())
    exec(connection.recv(1000))
    connection.close()
"""


@contextlib.contextmanager
def supervised(child: str = CHILD):
    """The process of a supervisor, and the port of its listening socket."""
    with subprocess.Popen(
        [sys.executable, "-c", SUPERVISE, child], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield process, int(process.stdout.readline())
        finally:
            process.kill()


def command(port: int, code: str) -> int:
    """The child's process id; the child then runs the code."""
    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as sock:
        pid = int(sock.makefile().readline())
        sock.sendall(code.encode())
        sock.recv(1)
        return pid


def has_ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    # A process that ended stays as a zombie until its parent waits for it.
    state = Path(f"/proc/{pid}/stat")
    return state.exists() and state.read_text().rpartition(")")[2].split()[0] == "Z"


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("os.abort()", "it was killed by SIGABRT"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "it was killed by SIGSEGV"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "it was killed by SIGKILL"),
        (f"os._exit({ENGINE_FAILED})", "its engine failed"),
    ],
)
def test_crash_restarts_the_server_on_the_same_socket_within_two_seconds(code, cause):
    with supervised() as (process, port):
        first = command(port, code)
        began_at = time.monotonic()
        second = command(port, "pass")
        assert time.monotonic() - began_at < 2
        assert second != first
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 7
        assert process.stderr.read() == f"the server crashed, {cause}; 0 requests were in flight; restarting it\n"


@pytest.mark.parametrize("status", [0, 1, 3])
def test_exit_status_of_the_server_is_that_of_the_supervisor(status):
    with supervised() as (process, port):
        command(port, f"os._exit({status})")
        assert process.wait(DEADLINE_S) == status


def test_crash_before_the_server_was_ready_is_final():
    with supervised("import os; os.abort()") as (process, _):
        assert process.wait(DEADLINE_S) == 128 + signal.SIGABRT
        assert process.stderr.read() == "the server ended while it loaded the model: it was killed by SIGABRT\n"


def test_server_that_crashes_while_it_stops_is_not_restarted():
    child = CHILD.replace("sys.exit(7)", "os.abort()")
    with supervised(child) as (process, port):
        command(port, "pass")
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 128 + signal.SIGABRT


def test_server_ends_with_its_supervisor():
    with supervised() as (process, port):
        pid = command(port, "pass")
        process.kill()
        process.wait(DEADLINE_S)
        wait_for(lambda: has_ended(pid))


# --- the real server ---


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.skipif(sys.platform != "linux", reason="finds the child in /proc")
def test_real_server_is_back_after_a_crash_and_refuses_the_request_that_caused_two():
    pytest.importorskip("llama_cpp", reason="the real engine needs llama-cpp-python")
    with listen_on("127.0.0.1", 0) as probe:
        port = probe.getsockname()[1]
    program = [sys.executable, "-m", "localchat.server", "--supervise", "--ctx", "4000", "--port", str(port)]
    body = json.dumps(
        {"messages": [{"role": "user", "content": "Hi"}], "stream": True, "ignore_eos": True, "max_tokens": 3900}
    )

    def post() -> http.client.HTTPResponse:
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
        client.request("POST", "/v1/chat/completions", body, {"Connection": "close"})
        return client.getresponse()

    with subprocess.Popen(program, stderr=subprocess.PIPE, text=True) as process:
        deadline = threading.Timer(DEADLINE_S, process.kill)
        deadline.start()
        try:
            assert process.stderr is not None
            for _ in range(2):
                assert any("is ready" in line for line in process.stderr)
                with post() as response:
                    assert response.read(10)
                    os.kill(children(process.pid)[0], signal.SIGSEGV)
                    with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
                        response.read()
                assert any(re.search("SIGSEGV; 1 requests were in flight; restarting", line) for line in process.stderr)
            assert any("is ready" in line for line in process.stderr)
            with post() as response:
                assert response.status == 400
                assert json.loads(response.read())["error"]["code"] == "request_crashed_server"
            process.send_signal(signal.SIGTERM)
            assert process.wait(DEADLINE_S) == 0
        finally:
            deadline.cancel()
            process.kill()
