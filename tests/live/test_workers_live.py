"""A model on two workers of llama.cpp's RPC, each a process on this machine. Skipped where llama.cpp has no RPC."""

import contextlib
import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from localchat.serving.engine.llama import rpc
from localchat.serving.engine.values import EngineError
from localchat.serving.engine.workers import worker_problems
from tests.support.deadline import DEADLINE_S
from tests.support.demo_model import DEMO
from tests.support.exchanges import ask
from tests.support.live import ServerProcess, running_process
from tests.support.serving import wait_for

# Why no worker can be started here.
NO_RPC = ""
try:
    rpc.server("127.0.0.1", 1, 1)
except EngineError as error:
    NO_RPC = str(error)


class Workers:
    """Two worker processes, and the addresses for `--rpc`."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        with contextlib.ExitStack() as free:
            listeners = [free.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
            self.endpoints = [f"127.0.0.1:{listener.getsockname()[1]}" for listener in listeners]
        self.processes = [self._started(endpoint) for endpoint in self.endpoints]
        self.wait()

    def start_again(self, i: int) -> None:
        self.processes[i].kill()
        self.processes[i].wait(DEADLINE_S)
        self.processes[i] = self._started(self.endpoints[i])
        self.wait()

    def wait(self) -> None:
        wait_for(lambda: not worker_problems(self.endpoints), DEADLINE_S)

    def _started(self, endpoint: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "localchat.worker", "--threads", "1", "--port", endpoint.split(":")[1]]
        process = self._stack.enter_context(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        self._stack.callback(process.kill)
        return process


@pytest.fixture
def workers() -> Iterator[Workers]:
    if NO_RPC:
        pytest.skip(NO_RPC)
    with contextlib.ExitStack() as stack:
        yield Workers(stack)


@contextlib.contextmanager
def server_on(workers: Workers, *options: str) -> Iterator[ServerProcess]:
    with running_process("demo", "--ctx", "1024", "--rpc", ",".join(workers.endpoints), *options) as server:
        yield server


CHAT = "/v1/chat/completions"


def chat(text: str, **options: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 32, **options}


def completion(server: ServerProcess, text: str, **options: Any) -> str:
    status, body = ask(server.port, CHAT, chat(text, **options))
    assert status == 200, body
    return str(body["choices"][0]["message"]["content"])


QUESTIONS = ["What is your name?", "Tell me a story.", "Count to ten."]


def test_texts_are_those_of_one_machine_and_the_layers_are_reported(workers: Workers):
    with running_process("demo", "--ctx", "1024") as server:
        alone = [completion(server, question) for question in QUESTIONS]
    with server_on(workers) as server:
        assert [completion(server, question) for question in QUESTIONS] == alone
        shown = ask(server.port, "/props")[1]["workers"]
    assert [one["endpoint"] for one in shown] == workers.endpoints
    layers = [one["n_layers"] for one in shown]
    assert min(layers) >= 1
    line = "workers  " + ", ".join(f"{endpoint} has {n} layers" for endpoint, n in zip(workers.endpoints, layers))
    assert any(line in text for text in server.lines)
    assert any(f"all {sum(layers)} layers" in text for text in server.lines)


def test_a_killed_worker_ends_its_requests_by_name_and_the_next_ones_start_again(workers: Workers, tmp_path: Path):
    mapping = tmp_path / "models.json"
    mapping.write_text(json.dumps({"other": {"path": DEMO, "ctx": 512}}))
    name = workers.endpoints[1]
    with server_on(workers, "--models", str(mapping)) as server, ThreadPoolExecutor(8) as threads:
        assert completion(server, "Hello", model="other")
        endless = chat("Tell me a story.", stream=True, ignore_eos=True, max_tokens=900)
        streams = [threads.submit(ask, server.port, CHAT, endless) for _ in range(8)]
        wait_for(lambda: sum(slot["is_processing"] for slot in ask(server.port, "/slots")[1]) == 8, DEADLINE_S)
        workers.processes[1].kill()
        for one in streams:
            text = str(one.result(DEADLINE_S)[1])
            assert f"the worker {name} of --rpc cannot be reached" in text
            assert len(re.findall("[\"']error[\"']:", text)) == 1  # A stream may not have begun.
        status, error = ask(server.port, CHAT, chat("Hello", model="demo"))
        assert (status, f"the worker {name} of --rpc cannot be reached" in error["error"]["message"]) == (500, True)
        # Another model lives.
        assert completion(server, "Hello", model="other")
        workers.start_again(1)
        assert completion(server, "Hello", model="demo")


VECTOR = {"input": "What is your name?"}


@pytest.mark.parametrize(("path", "body"), [(CHAT, chat("Hello")), ("/v1/embeddings", VECTOR)])
@pytest.mark.parametrize("has_context", [True, False], ids=["step", "first request"])
def test_a_stopped_worker_ends_its_requests_after_the_limit(workers: Workers, path: str, body: Any, has_context: bool):
    with server_on(workers, "--rpc-timeout", "5") as server:
        if has_context:
            assert ask(server.port, path, body)[0] == 200
        workers.processes[0].send_signal(signal.SIGSTOP)
        status, error = ask(server.port, path, body)
        assert status == 500
        assert f"the worker {workers.endpoints[0]} of --rpc does not respond" in error["error"]["message"]
        workers.processes[0].send_signal(signal.SIGCONT)
        workers.wait()
        assert ask(server.port, path, body)[0] == 200


def test_vectors_beside_texts_on_workers_are_those_alone(workers: Workers):
    with server_on(workers) as server, ThreadPoolExecutor(8) as threads:
        (alone,) = ask(server.port, "/v1/embeddings", VECTOR)[1]["data"]
        text = completion(server, QUESTIONS[0])
        texts = [threads.submit(completion, server, QUESTIONS[0]) for _ in range(4)]
        vectors = [threads.submit(ask, server.port, "/v1/embeddings", VECTOR) for _ in range(20)]
        assert [one.result(DEADLINE_S) for one in texts] == [text] * 4
        for one in vectors:
            assert one.result(DEADLINE_S)[1]["data"][0]["embedding"] == pytest.approx(alone["embedding"], abs=1e-4)


def test_a_worker_of_another_server_and_a_missing_one_end_the_start(workers: Workers):
    command = [sys.executable, "-m", "localchat.server", "demo", "--port", "0", "--rpc", ",".join(workers.endpoints)]
    with server_on(workers):
        busy = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    workers.processes[0].kill()
    workers.processes[0].wait(DEADLINE_S)
    missing = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    texts = [f"the worker {endpoint} of --rpc does not respond" for endpoint in workers.endpoints]
    assert (busy.returncode, [text in busy.stderr for text in texts]) == (1, [True, True])
    assert missing.returncode == 1
    assert f"the worker {workers.endpoints[0]} of --rpc cannot be reached" in missing.stderr


@pytest.mark.skipif(not NO_RPC, reason="this build has RPC")
@pytest.mark.parametrize("module", ["worker", "server"])
def test_a_build_without_rpc_says_what_to_do(module: str):
    options = ["demo", "--rpc", "127.0.0.1:1"] if module == "server" else []
    command = [sys.executable, "-m", f"localchat.{module}", *options, "--port", "50987"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "this build of llama.cpp has no RPC: build it with CMAKE_ARGS=-DGGML_RPC=ON" in done.stderr
