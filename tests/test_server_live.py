"""The server on the real engine and the built-in model: real clients, many at once, some of whom leave."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from localchat.engine import Engine, LoadOptions, load
from localchat.models.catalog import DEMO, DEMO_PATH, Catalog, ModelFile
from localchat.routes import Settings
from localchat.server import ChatServer
from localchat.service import Model, Service

DEADLINE_S = 60
# Two log probabilities this close can change places when a batch rounds differently.
NEAR_TIE = 0.1
QUESTIONS = ("What is your name?", "What can you do?", "Count from 1 to 9.", "Hello!", "I am Ada. Who am I?")


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    pytest.importorskip("llama_cpp", reason="the real engine needs llama-cpp-python")
    with load(str(DEMO_PATH), LoadOptions(n_slots=32), max_queue=256) as engine:
        yield engine


@pytest.fixture(scope="module")
def port(engine: Engine) -> Iterator[int]:
    service = Service(Catalog([ModelFile(DEMO_PATH, DEMO)]))
    server = ChatServer(service, Settings(port=0))
    service.ready(Model(DEMO, engine))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server.server_port
    server.shutdown()
    server.close()
    thread.join(DEADLINE_S)


def request_body(question: str, **members: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": question}], "temperature": 0, **members}).encode()


def stream(port: int, question: str) -> list[Any]:
    """All chunks of a greedy answer, with log probabilities."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)) as client:
        client.request(
            "POST", "/v1/chat/completions", request_body(question, stream=True, logprobs=True, top_logprobs=2)
        )
        response = client.getresponse()
        assert response.status == 200
        *events, done, empty = response.read().decode().split("\n\n")
    assert (done, empty) == ("data: [DONE]", "")
    return [json.loads(event[len("data: ") :]) for event in events]


def tokens_of(chunks: list[Any]) -> list[Any]:
    found = [choice["logprobs"] for chunk in chunks for choice in chunk["choices"]]
    return [entry for logprobs in found if logprobs for entry in logprobs["content"]]


def is_same_or_near_tie(alone: list[Any], batched: list[Any]) -> bool:
    """Equal, or first different where the two likeliest tokens were as good as equal."""
    for one, other in zip(alone, batched):
        if one["bytes"] != other["bytes"]:
            first, second = one["top_logprobs"]
            is_second = other["bytes"] == second["bytes"]
            return is_second and first["logprob"] - second["logprob"] < NEAR_TIE
    return len(alone) == len(batched)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.005)


def test_32_streams_at_once_say_what_each_says_alone(port: int):
    alone = {question: tokens_of(stream(port, question)) for question in QUESTIONS}
    assert all(len(tokens) > 3 for tokens in alone.values())
    asked = [QUESTIONS[i % len(QUESTIONS)] for i in range(32)]
    with ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(lambda question: stream(port, question), asked))
    for question, chunks in zip(asked, answers):
        assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
        assert is_same_or_near_tie(alone[question], tokens_of(chunks)), question


def leave_early(port: int, request: bytes, chance: random.Random) -> None:
    """Sends some or all of a request, reads some or nothing of the answer, and goes, politely or not."""
    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as sock:
        is_whole = chance.random() < 0.8
        sock.sendall(request if is_whole else request[: chance.randrange(len(request))])
        sock.settimeout(chance.uniform(0.001, 0.3))
        with contextlib.suppress(TimeoutError):
            for _ in range(chance.randrange(40)):
                if not sock.recv(chance.randrange(1, 400)):
                    break
        if chance.random() < 0.3:
            # A reset in place of an orderly end.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def test_200_clients_that_leave_at_random_moments_leave_nothing_behind(port: int, engine: Engine):
    chance = random.Random(5)
    (end,) = engine.tokenize(engine.facts.eos)
    threads_before = threading.active_count()

    def request() -> bytes:
        # Without its end token the model would go on to the end of the context.
        options = {"stream": chance.random() < 0.7, "n": chance.choice((1, 1, 2)), "logit_bias": {str(end): -100}}
        body = request_body(chance.choice(QUESTIONS), **options)
        head = f"POST /v1/chat/completions HTTP/1.1\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        return head.encode() + body

    clients = [(request(), random.Random(i)) for i in range(200)]
    with ThreadPoolExecutor(40) as pool:
        list(pool.map(lambda client: leave_early(port, *client), clients))

    def is_idle() -> bool:
        stats = engine.stats()
        return stats.n_running + stats.n_waiting + stats.n_cells_used == 0

    wait_for(is_idle)
    # What rests by now are prefixes kept for others; without them the memory itself is empty.
    engine.forget()
    wait_for(lambda: engine.backend.n_cells_used() == 0)
    wait_for(lambda: threading.active_count() <= threads_before)
    assert stream(port, QUESTIONS[0])[-1]["choices"][0]["finish_reason"] == "stop"


# --- the openai package ---


@pytest.fixture
def client(port: int) -> Iterator[Any]:
    openai = pytest.importorskip("openai", reason="the real client comes with the test extra")
    with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0) as client:
        yield client


MESSAGES = [{"role": "user", "content": QUESTIONS[0]}]


def test_openai_package_chats(client: Any):
    reply = client.chat.completions.create(model=DEMO, messages=MESSAGES, temperature=0, seed=1, logprobs=True)
    choice = reply.choices[0]
    assert choice.message.role == "assistant"
    assert "localchat" in choice.message.content
    assert choice.finish_reason == "stop"
    assert choice.logprobs.content[0].bytes
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    assert reply.usage.prompt_tokens_details.cached_tokens is not None


def test_openai_package_streams(client: Any):
    options: Any = {"model": DEMO, "messages": MESSAGES, "temperature": 0}
    whole = client.chat.completions.create(**options).choices[0].message.content
    chunks = list(client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}))
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == whole
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage.completion_tokens > 3


def test_openai_package_lists_models(client: Any):
    assert [model.id for model in client.models.list()] == [DEMO]
    assert client.models.retrieve(DEMO).id == DEMO


def test_openai_package_understands_errors(client: Any):
    import openai

    with pytest.raises(openai.BadRequestError) as wrong:
        client.chat.completions.create(model=DEMO, messages=MESSAGES, temperature=-1)
    assert wrong.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as long:
        client.chat.completions.create(model=DEMO, messages=[{"role": "user", "content": "word " * 5000}])
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="gpt-9", messages=MESSAGES)
    assert unknown.value.code == "model_not_found"


# --- the command ---


@contextlib.contextmanager
def command(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], int, list[str]]]:
    """The server as a process, once it is ready: with its port and what it writes."""
    program = [sys.executable, "-m", "localchat.server", "--port", "0", *arguments]
    with subprocess.Popen(program, stderr=subprocess.PIPE, text=True) as process:
        lines: list[str] = []
        try:
            assert process.stderr is not None
            for line in process.stderr:
                lines.append(line)
                if match := re.search(r"ready.*:(\d+)/v1", line):
                    break
            else:
                pytest.fail("".join(lines))
            yield process, int(match[1]), lines
        finally:
            process.kill()


def test_file_that_is_no_model_ends_the_command_with_1(tmp_path: Path):
    pytest.importorskip("llama_cpp", reason="the real engine needs llama-cpp-python")
    file = tmp_path / "notes.gguf"
    file.write_text("no model")
    program = [sys.executable, "-m", "localchat.server", "--port", "0", str(file)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 1
    assert "notes.gguf" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_streams_in_order_and_the_process_with_0(number: int):
    pytest.importorskip("llama_cpp", reason="the real engine needs llama-cpp-python")
    with command() as (process, port, _):
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
        with contextlib.closing(client):
            # Sampled flatly, and many: some are surely running when the signal comes.
            body = request_body("Hi", stream=True, temperature=100, top_k=0, n=8)
            client.request("POST", "/v1/chat/completions", body)
            response = client.getresponse()
            process.send_signal(number)
            raw = response.read()
        assert raw.endswith(b"data: [DONE]\n\n")
        _, rest = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0
        assert "Traceback" not in rest
