"""The engine process: its death at every moment, its start again, and its end with the server."""

import contextlib
import errno
import http.client
import json
import multiprocessing
import os
import pickle
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from localchat.serving.core.errors import ContextLengthExceeded, HttpError, ModelLoading
from localchat.serving.core.mailbox import Mailbox
from localchat.serving.core.params import GenerationParams
from localchat.serving.core.server_options import Options
from localchat.serving.engine import process, values, workers
from localchat.serving.engine.process import EngineProcess
from localchat.serving.engine.values import LoadOptions, SequenceRequest
from localchat.serving.loading import load_log
from localchat.serving.loading import loader as loading
from localchat.serving.loading.loader import Loader
from localchat.serving.loading.served_model import RETRY_S, State
from localchat.serving.loading.service import Service
from localchat.serving.models.memory import OtherModels
from localchat.serving.models.model_file import DEMO_PATH, ModelFile
from tests.support import engine_programs as programs
from tests.support.deadline import DEADLINE_S
from tests.support.exchanges import ask, exchange, opened
from tests.support.live import ServerProcess, engine_of, running_process, started
from tests.support.serving import served, wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds and kills processes by Linux's means")

# How long a client may wait for the error of a request whose engine died. A loaded machine needs seconds.
ERROR_S = 30.0
# A request that generates for some seconds.
LONG = {"max_tokens": 3000, "ignore_eos": True}
MESSAGES = [{"role": "user", "content": "Hello"}]
CHAT = "/v1/chat/completions"
# A small context, whose memory is cleared at each start.
COMMAND = [sys.executable, "-m", "localchat.server", "--port", "0", "--ctx", "1024"]


def kill_engine(server: ServerProcess) -> int:
    if engine_of(server.process.pid) is None:
        chat_at(server.port)  # The test before has killed it.
    pid = engine_of(server.process.pid)
    os.kill(pid, signal.SIGKILL)
    return pid


def has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def chat_at(port: int, **fields: Any) -> tuple[int, Any]:
    return ask(port, CHAT, {"messages": MESSAGES, "max_tokens": 4, **fields})


def stream_of(port: int, **fields: Any) -> contextlib.AbstractContextManager[http.client.HTTPResponse]:
    """A stream that takes some seconds."""
    return opened(f"127.0.0.1:{port}", CHAT, {"messages": MESSAGES, **LONG, **fields, "stream": True})


def n_busy(port: int) -> int:
    return sum(slot["is_processing"] for slot in ask(port, "/slots")[1])


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with running_process("--any-name", "--ctx", "1024") as running:
        yield running


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def test_outputs_whose_engine_dies_end_with_the_name_of_its_signal(server: ServerProcess, pool: ThreadPoolExecutor):
    with stream_of(server.port) as response:
        response.readline()
        asking = pool.submit(chat_at, server.port, **LONG)
        wait_for(lambda: n_busy(server.port) == 2)
        pid = kill_engine(server)
        rest = response.read().decode()
        status, body = asking.result(ERROR_S)
    assert (response.status, status) == (200, 500)
    for text in (rest, json.dumps(body)):
        assert "was killed by SIGKILL (most likely memory was short)" in text
    assert ask(server.port, "/health")[0] == 200
    assert chat_at(server.port)[0] == 200
    assert engine_of(server.process.pid) not in (None, pid)


def test_log_of_the_engine_is_in_the_log_of_the_server(server: ServerProcess):
    kill_engine(server)
    assert ask(server.port, "/v1/embeddings", {"input": "a"})[0] == 200
    wait_for(lambda: any("created a context for embeddings" in line for line in server.lines))


def test_death_of_an_idle_engine_is_not_noticed_by_the_next_requests(server: ServerProcess, pool: ThreadPoolExecutor):
    kill_engine(server)
    assert [status for status, _ in pool.map(chat_at, [server.port] * 4)] == [200] * 4


def test_metrics_of_a_dead_engine_do_not_start_it(server: ServerProcess):
    pid = kill_engine(server)
    wait_for(lambda: engine_of(server.process.pid) is None or has_ended(pid))
    for path in ("/slots", "/props", "/health"):
        assert ask(server.port, path)[0] == 200
    assert 'localchat_requests_running{model="demo"} 0' in ask(server.port, "/metrics")[1]
    assert engine_of(server.process.pid) is None
    assert chat_at(server.port)[0] == 200


def test_main_process_loads_neither_llama_cpp_nor_numpy(server: ServerProcess):
    """Not even while it generates, with a schema and log probabilities."""
    schema = {"type": "object", "properties": {"a": {"enum": ["b"]}}, "required": ["a"]}
    format = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    _, body = chat_at(server.port, response_format=format, logprobs=True, max_tokens=None)
    assert json.loads(body["choices"][0]["message"]["content"]) == {"a": "b"}
    pids = (server.process.pid, engine_of(server.process.pid))
    libraries = [set(re.findall(r"libllama|numpy", Path(f"/proc/{pid}/maps").read_text())) for pid in pids]
    assert libraries == [set(), {"libllama", "numpy"}]


def test_engine_ends_with_a_killed_server():
    with started(COMMAND) as running, stream_of(running.port) as response:
        pid = engine_of(running.process.pid)
        assert pid is not None
        response.readline()
        running.process.kill()
        wait_for(lambda: has_ended(pid))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_to_the_process_group_ends_server_and_engine(number: signal.Signals):
    """As a terminal, `timeout` and systemd send it. SIGTERM lets the stream end."""
    with started(["setsid", *COMMAND, "--drain", "20"]) as running:
        pid = engine_of(running.process.pid)
        assert pid is not None
        with stream_of(running.port, max_tokens=500) as response:
            response.readline()
            os.killpg(running.process.pid, number)
            rest = response.read().decode()
        assert running.process.wait(DEADLINE_S) == 0
        wait_for(lambda: has_ended(pid))
    assert ('"finish_reason":"length"' in rest) == (number == signal.SIGTERM)
    assert rest.endswith("data: [DONE]\n\n")


def test_death_of_the_engine_while_the_server_drains_ends_the_server():
    with started([*COMMAND, "--drain", "20"]) as running:
        with stream_of(running.port) as response:
            response.readline()
            running.process.terminate()
            wait_for(lambda: chat_at(running.port)[0] == 503)
            kill_engine(running)
            assert "SIGKILL" in response.read().decode()
        assert running.process.wait(DEADLINE_S) == 0


def test_server_that_is_ended_while_it_loads_leaves_no_engine():
    with subprocess.Popen(COMMAND, stderr=subprocess.PIPE) as process:
        wait_for(lambda: engine_of(process.pid) is not None)
        pid = engine_of(process.pid)
        assert pid is not None
        process.terminate()
        assert process.wait(DEADLINE_S) in (0, -signal.SIGTERM)
        wait_for(lambda: has_ended(pid))


def write_changed(path: Path, key: bytes, value: int) -> None:
    """The built-in model with another number in its header."""
    data = DEMO_PATH.read_bytes()
    at = data.index(key) + len(key) + 4
    path.write_bytes(data[:at] + struct.pack("<I", value) + data[at + 4 :])


def test_engine_that_starts_again_has_the_facts_of_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "model.gguf"
    path.write_bytes(DEMO_PATH.read_bytes())
    with serving_process(monkeypatch, path=path) as (service, port):
        pid = pid_of(service)
        assert ask(port, "/v1/models")[1]["data"][0]["max_model_len"] == 256
        path.unlink()  # The process has mapped the old file.
        write_changed(path, b"llama.context_length", 128)
        os.kill(pid, signal.SIGKILL)
        assert chat_at(port)[0] == 200
        assert ask(port, "/v1/models")[1]["data"][0]["meta"]["n_ctx_train"] == 128


def test_file_that_aborts_llama_cpp_ends_the_command_with_one_line(tmp_path: Path):
    path = tmp_path / "hostile.gguf"
    write_changed(path, b"llama.block_count", 7_000_000)
    done = subprocess.run([*COMMAND, str(path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    *log, last = done.stderr.splitlines()
    reason = "the engine process was killed by SIGABRT (GGML_ASSERT("
    assert last.startswith(f"localchat.server: cannot load {path}: {reason}")
    assert last.endswith("download it again")
    assert len(log) <= 2
    assert "Traceback" not in done.stderr


# --- other programs in the engine process ---


@contextlib.contextmanager
def serving_process(
    monkeypatch: pytest.MonkeyPatch, program: str = "", path: Path = DEMO_PATH, ping_s: float = 20, **service: Any
) -> Iterator[tuple[Service, int]]:
    """A server in this process whose engine process runs this program, and its port."""
    if program:
        monkeypatch.setattr(process, "COMMAND", [sys.executable, "-c", program])
    file, options = ModelFile(path, "demo"), Options(port=0, n_parallel=2, n_ctx=256, ping_s=ping_s)
    loader = Loader(options)
    models = Service(file, load=loader.load, **service)
    with served(models, options) as (server, _):
        models.request_load(models.default)
        wait_for(lambda: models.default.model is not None, DEADLINE_S)
        try:
            yield models, server.server_port
        finally:
            models.stop()
            loader.close()


def pid_of(service: Service) -> int:
    return service.default.model.engine._process.pid


def test_process_that_crashes_at_the_matrix_instructions_starts_without_them(monkeypatch, caplog):
    monkeypatch.setattr(loading, "has_matrix_instructions", lambda: True)
    with serving_process(monkeypatch, programs.CRASHES_AT_AMX) as (_, port):
        assert chat_at(port)[0] == 200
    [message] = [message for message in caplog.messages if "SIGSEGV" in message]
    assert "rebuild" in message


@pytest.mark.parametrize(
    ("program", "n_starts"),
    [
        ("os.kill(os.getpid(), signal.SIGILL)", 2),
        ("os.kill(os.getpid(), signal.SIGSEGV)", 2),
        ("os.kill(os.getpid(), signal.SIGKILL)", 1),  # as the system does if memory is short
        ("os._exit(3)", 1),
    ],
)
def test_only_a_crash_is_taken_for_a_faulty_instruction(program: str, n_starts: int, monkeypatch: pytest.MonkeyPatch):
    starts: list[bool] = []

    def start(path: str, options: LoadOptions, *others: Any) -> EngineProcess:
        starts.append(options.use_extra_bufts)
        return EngineProcess(path, options, *others)

    monkeypatch.setattr(loading, "EngineProcess", start)
    monkeypatch.setattr(loading, "has_matrix_instructions", lambda: True)
    monkeypatch.setattr(process, "COMMAND", [sys.executable, "-c", programs.ends_in_load(program)])
    with pytest.raises(values.EngineError) as failed:
        Loader(Options()).load(ModelFile(DEMO_PATH, "demo"), OtherModels(), lambda share: None)
    assert starts == [True, False][:n_starts]
    assert failed.value.is_transient


def test_process_whose_threads_cannot_start_is_killed(monkeypatch: pytest.MonkeyPatch):
    started: list[subprocess.Popen[bytes]] = []
    spawn = process._spawn
    monkeypatch.setattr(process, "_spawn", lambda connection: started.append(spawn(connection)) or started[0])
    refusing = mock.patch("threading.Thread.start", side_effect=RuntimeError("can't start new thread"))
    with refusing, pytest.raises(RuntimeError) as error:
        EngineProcess(str(DEMO_PATH), LoadOptions())
    # The error has a reference to the connection, at whose end the process would end.
    with started[0] as engine, contextlib.ExitStack() as stack:
        stack.callback(engine.kill)
        assert engine.wait(DEADLINE_S) == -signal.SIGKILL, error


def test_engine_process_finds_modules_of_the_user_and_this_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "module_of_the_user.py").write_text("print('it was imported', flush=True)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    program = "import module_of_the_user, localchat, sys; sys.exit(3)"
    monkeypatch.setattr(process, "COMMAND", [sys.executable, "-c", program])
    with pytest.raises(values.EngineDied, match=r"exit code 3 \(it was imported\)"):
        EngineProcess(str(DEMO_PATH), LoadOptions()).wait_until_loaded()


def test_model_is_there_before_it_is_reported_to_be_ready(monkeypatch: pytest.MonkeyPatch):
    """Clients send requests as soon as they read the report, which waits until the server is open."""
    at_report: list[State] = []
    monkeypatch.setattr(load_log, "report", lambda message: at_report.append(service.default.state))
    options, start_log = Options(n_parallel=2, n_ctx=256), load_log.StartLog(Options())
    service = Service(ModelFile(DEMO_PATH, "demo"), load=Loader(options).load, load_log=start_log)
    with contextlib.closing(service):
        service.request_load(service.default)
        wait_for(lambda: service.default.state is State.READY)
        assert not at_report
        start_log.on_open("http://localhost", lambda: None)
        wait_for(lambda: len(at_report) > 6)
    assert set(at_report) == {State.READY}


def test_third_failed_start_in_a_row_is_final_for_a_while(monkeypatch: pytest.MonkeyPatch):
    now = time.monotonic()
    starts: list[str] = []
    with serving_process(monkeypatch, clock=lambda: now) as (service, port):
        monkeypatch.setattr(loading, "has_matrix_instructions", lambda: False)
        monkeypatch.setattr(loading, "EngineProcess", lambda *args: starts.append("") or EngineProcess(*args))
        monkeypatch.setattr(process, "COMMAND", [sys.executable, "-c", programs.ABORTS])
        os.kill(pid_of(service), signal.SIGKILL)
        wait_for(lambda: service.default.model is not None and service.default.model.engine.has_died)
        for i in range(5):
            now += 1
            status, body = chat_at(port)
            assert (status, "killed by SIGABRT (GGML_ASSERT(n > 0) failed)" in body["error"]["message"]) == (500, True)
            assert ask(port, "/health")[0] == (200 if i < 2 else 500)
        assert len(starts) == 3
        monkeypatch.undo()
        now += RETRY_S
        assert (ask(port, "/health")[0], chat_at(port)[0]) == (200, 200)


@pytest.mark.parametrize(
    ("change", "cause"),
    [("Engine._stop = ", "ended with exit code 1"), ("", "a fault of the test")],
    ids=["without ending its requests", "after ending them"],
)
def test_request_after_a_failure_of_the_engine_is_served(change: str, cause: str, monkeypatch: pytest.MonkeyPatch):
    with serving_process(monkeypatch, programs.FAILS.replace("STOP = ", change)) as (_, port):
        status, body = chat_at(port)
        assert (status, cause in body["error"]["message"]) == (500, True)
        monkeypatch.undo()  # The next process runs the engine as it is.
        assert chat_at(port)[0] == 200


def test_process_that_cannot_send_the_output_of_steps_ends(monkeypatch: pytest.MonkeyPatch):
    """Without these tokens a text would have a gap, and nobody would notice."""
    with serving_process(monkeypatch, programs.WITHOUT_MEMORY_TO_SEND) as (_, port):
        status, body = chat_at(port, n=2)
        assert (status, "ended with exit code 1" in body["error"]["message"]) == (500, True)
        monkeypatch.undo()
        assert chat_at(port, n=2)[0] == 200


def test_close_waits_until_the_process_has_ended():
    engine = EngineProcess(str(DEMO_PATH), LoadOptions(n_parallel=1, n_ctx=256)).wait_until_loaded()
    request = engine.generate([SequenceRequest((1,), GenerationParams(ignore_eos=True))], Mailbox())
    assert request.take(DEADLINE_S)
    engine.close()
    assert engine._process.returncode is not None
    with pytest.raises(values.EngineStopped):
        list(iter(lambda: request.take(0), []))


def test_loader_that_closes_ends_a_process_that_starts(monkeypatch: pytest.MonkeyPatch, pool: ThreadPoolExecutor):
    monkeypatch.setattr(process, "COMMAND", [sys.executable, "-c", "import time; time.sleep(60)"])
    file = ModelFile(DEMO_PATH, "demo")
    loader = Loader(Options())
    load = pool.submit(loader.load, file, OtherModels(), lambda share: None)
    loader.close()
    assert type(load.exception(DEADLINE_S)) is values.EngineStopped


# --- errors of the machine, and processes that do not respond ---


def test_request_that_crashes_the_process_is_not_sent_again(monkeypatch: pytest.MonkeyPatch):
    """A grammar may crash the library."""
    starts: list[str] = []
    monkeypatch.setattr(loading, "EngineProcess", lambda *args: starts.append("") or EngineProcess(*args))
    with serving_process(monkeypatch, programs.CRASHES_AT_SUBMIT) as (_, port):
        status, body = chat_at(port)
        assert (status, "killed by SIGSEGV" in body["error"]["message"], len(starts)) == (500, True, 1)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(errno.EMFILE, "Too many open files"), "raise the limit of open files"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "no memory is left"),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), "no process or thread can be started"),
    ],
)
def test_engine_that_cannot_start_again_is_503_with_the_reason(error: OSError, text: str, monkeypatch: Any):
    with serving_process(monkeypatch) as (service, port):
        with monkeypatch.context() as patched:
            patched.setattr(subprocess, "Popen", mock.Mock(side_effect=error))
            os.kill(pid_of(service), signal.SIGKILL)
            status, body = chat_at(port)
            assert (status, text in body["error"]["message"]) == (503, True)
        assert chat_at(port)[0] == 200


def test_stream_that_waits_for_a_restart_gets_pings_and_no_wait_gets_503(monkeypatch: pytest.MonkeyPatch):
    with serving_process(monkeypatch, ping_s=0.02) as (service, port):
        monkeypatch.setattr(process, "COMMAND", [sys.executable, "-c", "import time; time.sleep(60)"])
        os.kill(pid_of(service), signal.SIGKILL)
        with stream_of(port) as response:
            assert response.readline() == b": \n"
            service.requests_wait = False
            assert chat_at(port)[0] == 503
            # The metrics of an engine that loads again are not waited for.
            assert "localchat_up 0" in ask(port, "/metrics")[1]


@pytest.mark.parametrize("fails", ['RuntimeError("can\'t start new thread")', "BaseException('a panic')"])
def test_call_that_fails_in_any_way_ends_alone(fails: str, monkeypatch: pytest.MonkeyPatch):
    with serving_process(monkeypatch, programs.FAILS_AT_SUBMIT.replace("ERROR", fails)) as (service, port):
        pid = pid_of(service)
        assert chat_at(port)[0] == (503 if "thread" in fails else 500)
        assert (chat_at(port)[0], pid_of(service)) == (200, pid)


def test_requests_are_prepared_at_the_same_time(monkeypatch: Any, pool: ThreadPoolExecutor):
    """The prompt of each may take long to tokenize."""
    with serving_process(monkeypatch, programs.IN_PAIRS) as (_, port):
        assert [status for status, _ in pool.map(chat_at, [port] * 2)] == [200] * 2


def test_process_that_can_start_no_further_thread_serves(monkeypatch: Any, pool: ThreadPoolExecutor):
    with serving_process(monkeypatch, programs.WITHOUT_THREADS) as (service, port):
        pid = pid_of(service)
        assert [status for status, _ in pool.map(chat_at, [port] * 4)] == [200] * 4
        assert pid_of(service) == pid


# A server that waits for half a second for the figures of an engine, not for three.
IMPATIENT = """
import sys
from localchat import server
from localchat.serving.engine.process import EngineProcess
from localchat.serving.http import metrics
metrics._STATS_S, EngineProcess.stats.__defaults__ = 0.5, (0.5,)
sys.exit(server.main(sys.argv[1:]))
"""


def test_stopped_engine_delays_neither_metrics_nor_the_end():
    """Its requests end with an error response, those of clients that leave at once."""
    command = [sys.executable, "-c", IMPATIENT, "--port", "0", "--drain", "0"]
    with started(command) as running, ThreadPoolExecutor() as pool:
        pid = engine_of(running.process.pid)
        os.kill(pid, signal.SIGSTOP)
        for path in (CHAT, "/v1/embeddings"):
            with contextlib.closing(http.client.HTTPConnection("127.0.0.1", running.port)) as leaving:
                leaving.request("POST", path, json.dumps({"messages": MESSAGES, "input": "a"}))
        wait_for(lambda: sum(" 499 POST " in line for line in running.lines) == 2)
        asking = [pool.submit(chat_at, running.port, n=n) for n in (1, 2)]
        large = pool.submit(ask, running.port, "/tokenize", {"content": "a " * 2_000_000})  # more than the pipe holds
        metrics = pool.submit(ask, running.port, "/metrics")
        response, body = exchange(f"127.0.0.1:{running.port}", "/slots")
        assert "localchat_slots" not in metrics.result(DEADLINE_S)[1]
        assert (response.status, response.headers["Retry-After"]) == (503, "2")
        assert "has not responded" in body["error"]["message"]
        running.process.terminate()
        assert [call.result(DEADLINE_S)[0] for call in (*asking, large)] == [503] * 3
        assert running.process.wait(DEADLINE_S) == 0
        wait_for(lambda: has_ended(pid))


def test_errors_cross_between_processes_with_their_attributes():
    died, too_long = values.EngineDied("m", "SIGSEGV"), ContextLengthExceeded("m", n_tokens=5, n_ctx=4)
    others = values.EngineSilent(3.0), ModelLoading("m", 5.0), HttpError(411, "c", "m", {"Allow": "GET"})
    for error in (died, too_long, values.EngineStopped(), values.invalid_grammar("r", "tools"), *others):
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


def test_end_of_a_process_names_the_worker_that_is_missing():
    with socket.create_server(("127.0.0.1", 0)) as free:
        endpoint = f"127.0.0.1:{free.getsockname()[1]}"
    engine = EngineProcess(str(DEMO_PATH), LoadOptions(workers=(endpoint,)))
    with pytest.raises(values.EngineError):
        list(iter(engine._loading.take, []))
    engine._process.kill()
    engine.wait_until_dead()
    reason = f"the worker {endpoint} of --rpc cannot be reached"
    assert str(engine.death).startswith(f"the engine process has ended: {reason}")


def test_wait_for_the_end_of_a_process_includes_that_for_its_workers(monkeypatch):
    """The next request is sent to another process only if this one has a reason for its end."""
    monkeypatch.setattr(workers, "_HELLO_S", 0.5)
    monkeypatch.setattr(process, "_DEATH_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"127.0.0.1:{silent.getsockname()[1]}"
        engine = EngineProcess(str(DEMO_PATH), LoadOptions(workers=(endpoint,)))
        engine._process.kill()
        engine.wait_until_dead()
    assert engine.has_died
    assert f"the worker {endpoint} of --rpc does not respond" in str(engine.death)


def test_engine_process_finds_the_modules_of_the_user_and_this_package(tmp_path: Path, monkeypatch):
    (tmp_path / "module_of_the_user.py").write_text("NAME = 'found'")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    program = "import localchat, module_of_the_user; print(module_of_the_user.NAME, localchat.__file__)"
    monkeypatch.setattr(process, "COMMAND", [sys.executable, "-c", program])
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs:
        started_process = process._spawn(theirs)
        output, _ = started_process.communicate(timeout=DEADLINE_S)
    assert output.decode().split() == ["found", str(Path(process.__file__).parents[2] / "__init__.py")]
