"""The server with the built-in model: many clients at once, some of which disconnect, and the command."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from localchat import server as server_module
from localchat.serving.core.params import NUMBERS
from localchat.serving.engine.engine import Engine
from localchat.serving.models.catalog import DEMO_PATH

from .demo_model import NEAR_TIE
from .live import running_process
from .serving import delta_text, payloads, reset, wait_for

pytest.importorskip("llama_cpp", reason="the real engine needs llama-cpp-python")

DEADLINE_S = 60
QUESTIONS = ("What is your name?", "What can you do?", "Count from 1 to 9.", "Hello!", "I am Ada. Who am I?")


ENDS = ("stop", "length")


def request_body(question: str, **fields: Any) -> bytes:
    """A greedy request with a length limit. No test depends on the text of the model or on its end."""
    messages = [{"role": "user", "content": question}]
    return json.dumps({"messages": messages, "temperature": 0, "max_tokens": 60, **fields}).encode()


# The options for comparing texts. With the reasoning in the content, the text is that of the tokens.
COMPARED: dict[str, Any] = {"logprobs": True, "top_logprobs": 2, "reasoning_format": "none"}


def post(port: int, body: bytes) -> bytes:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)) as client:
        client.request("POST", "/v1/chat/completions", body)
        response = client.getresponse()
        assert response.status == 200
        return response.read()


def stream(port: int, question: str, **fields: Any) -> list[Any]:
    """The chunks of a greedy completion, with log probabilities."""
    return payloads(post(port, request_body(question, stream=True, **COMPARED, **fields)))


def whole(port: int, question: str, **fields: Any) -> list[Any]:
    """The choices of a greedy completion in one body, with log probabilities."""
    choices: list[Any] = json.loads(post(port, request_body(question, **{**COMPARED, **fields})))["choices"]
    return choices


def tokens_of(chunks: list[Any]) -> list[Any]:
    found = [choice["logprobs"] for chunk in chunks for choice in chunk["choices"]]
    return [entry for logprobs in found if logprobs for entry in logprobs["content"]]


def decoded(entries: list[Any]) -> str:
    """The text of tokens. The length limit may cut it within a character."""
    return b"".join(bytes(entry["bytes"]) for entry in entries).decode("utf-8", "replace")


def is_same_or_near_tie(alone: list[Any], batched: list[Any]) -> bool:
    """Whether the tokens are equal, or first differ where the two likeliest tokens were almost equally likely."""
    for one, other in zip(alone, batched):
        if one["bytes"] != other["bytes"]:
            first, second = one["top_logprobs"]
            is_second = other["bytes"] == second["bytes"]
            return is_second and first["logprob"] - second["logprob"] < NEAR_TIE
    return len(alone) == len(batched)


@pytest.mark.cpu_only
def test_greedy_texts_in_a_batch_of_32_are_those_generated_alone(port: int, alone: dict[str, list[Any]]):
    """The tokens are equal, or first differ where the log probabilities show a near tie. The text is that of the
    tokens. Every second response is a stream."""
    assert all(alone.values())

    def ask(i: int) -> tuple[Any, str, list[Any]]:
        question = QUESTIONS[i % len(QUESTIONS)]
        if i % 2:
            chunks = stream(port, question)
            return chunks[-1]["choices"][0], delta_text(chunks), tokens_of(chunks)
        (choice,) = whole(port, question)
        return choice, choice["message"]["content"], choice["logprobs"]["content"]

    with ThreadPoolExecutor(32) as pool:
        found = list(pool.map(ask, range(32)))
    for i, (end, text, tokens) in enumerate(found):
        assert end["finish_reason"] in ENDS
        assert text == decoded(tokens)
        assert is_same_or_near_tie(alone[QUESTIONS[i % len(QUESTIONS)]], tokens), i


@pytest.fixture(scope="module")
def alone(port: int, engine: Engine) -> dict[str, list[Any]]:
    """The tokens of each greedy completion, computed when nothing else ran, without a cached prefix."""
    engine.forget()
    return {question: tokens_of(stream(port, question)) for question in QUESTIONS}


@pytest.mark.parametrize("name", NUMBERS)
def test_values_at_the_ends_of_their_ranges_are_accepted(port: int, name: str):
    """The ranges exclude the values at which llama.cpp aborts the process."""
    others = {"temperature": 1, "repeat_penalty": 1.1, "dry_multiplier": 1, "xtc_probability": 1, "top_p": 0.5}
    for value in (NUMBERS[name].low, NUMBERS[name].high):
        for mirostat in (0, 1, 2):
            choices = whole(port, QUESTIONS[0], **{**others, "max_tokens": 4, "mirostat": mirostat, name: value})
            assert choices[0]["finish_reason"] in ("stop", "length")


def test_all_tokens_banned_is_no_error(port: int, engine: Engine):
    never = [[token, False] for token in range(engine.facts.n_vocab)]
    for temperature in (0, 1):
        (choice,) = whole(port, QUESTIONS[0], logit_bias=never, max_tokens=3, temperature=temperature)
        assert choice["finish_reason"] in ("stop", "length")


def disconnect_early(port: int, request: bytes, chance: random.Random) -> None:
    """Send a request or its beginning, read a part of the response or nothing, and close or reset the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as sock:
        is_whole = chance.random() < 0.8
        sock.sendall(request if is_whole else request[: chance.randrange(len(request))])
        sock.settimeout(chance.uniform(0.001, 0.3))
        with contextlib.suppress(TimeoutError):
            for _ in range(chance.randrange(40)):
                if not sock.recv(chance.randrange(1, 400)):
                    break
        if chance.random() < 0.3:
            reset(sock)


def test_200_disconnects_at_random_moments_leave_no_sequence(port: int, engine: Engine):
    chance = random.Random(5)
    (end,) = engine.tokenize(engine.facts.eos)
    threads_before = threading.active_count()

    def request() -> bytes:
        # Without its end-of-generation token, the model generates until the context is full.
        options = {"stream": chance.random() < 0.7, "n": chance.choice((1, 1, 2)), "logit_bias": {str(end): -100}}
        options["max_tokens"] = None
        path = "chat/completions"
        if chance.random() < 0.3:
            # Scoring this prompt takes many steps.
            path, options = "completions", {**options, "prompt": "word " * 300, "echo": True, "logprobs": 1}
        body = request_body(chance.choice(QUESTIONS), **options)
        head = (
            f"POST /v1/{path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    clients = [(request(), random.Random(i)) for i in range(200)]
    with ThreadPoolExecutor(40) as pool:
        list(pool.map(lambda client: disconnect_early(port, *client), clients))

    def is_idle() -> bool:
        stats = engine.stats()
        return stats.n_running + stats.n_waiting + stats.n_cells_active == 0

    def is_empty() -> bool:
        # Remove the idle prefixes, which stay in the KV cache.
        engine.forget()
        return is_idle() and engine.stats().n_cells_idle == 0

    wait_for(lambda: threading.active_count() <= threads_before)
    wait_for(is_empty)
    assert stream(port, QUESTIONS[0])[-1]["choices"][0]["finish_reason"] in ENDS


# --- the command ---


PAGE = "https://page.example"
OPTIONS = f"""
    --alias Tiny --any-name --strict --allow-chat-template --keep-tools --thought-field --cors {PAGE} --api-key secret
    --default temperature=0 --default seed=7 --max-tokens 3 --reasoning-budget 0 --reasoning-budget-message Enough.
    --ctx 300 --parallel 2 --queue 1 --threads 1
"""


def test_options_of_the_command_take_effect():
    """Each option changes a response."""
    key = {"Authorization": "Bearer secret"}
    messages = [{"role": "user", "content": "Count from 1 to 9."}]
    tool = {"type": "function", "function": {"name": "look_at_this"}}
    reasoning = {"role": "assistant", "content": "", "reasoning_content": "So"}
    continued = {"messages": [*messages, reasoning], "continue_final_message": "reasoning_content", "max_tokens": 20}
    with running_process(*OPTIONS.split()) as server:

        def ask(path: str, headers: dict[str, str] = key, **fields: Any) -> tuple[int, Any]:
            with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE_S)) as client:
                body = json.dumps({"messages": messages, **fields}) if fields else None
                client.request("POST" if fields else "GET", path, body, headers)
                response = client.getresponse()
                if "Origin" in headers:
                    assert response.getheader("Access-Control-Allow-Origin") == PAGE
                return response.status, json.loads(response.read())

        assert ask("/v1/models", {})[0] == 401
        _, models = ask("/v1/models", {**key, "Origin": PAGE})
        _, props = ask("/props")
        _, body = ask("/v1/chat/completions", model="any")
        _, too_many = ask("/v1/chat/completions", n=4)
        _, unknown = ask("/v1/chat/completions", frobnicate=1)
        _, shown = ask("/apply-template", tools=[tool], tool_choice="none")
        _, rendered = ask("/apply-template", chat_template="<{{ messages[0].content }}>")
        _, with_thought = ask("/v1/chat/completions", **continued)
    assert [(model["id"], model["meta"]["n_ctx"]) for model in models["data"]] == [("Tiny", 300)]
    assert str(DEMO_PATH.parent) not in json.dumps(props)
    params = props["default_generation_settings"]["params"]
    assert (params["temperature"], params["seed"], props["total_slots"]) == (0, 7, 2)
    assert (body["model"], body["usage"]["completion_tokens"]) == ("Tiny", 3)
    assert "accepts 3 at once" in too_many["error"]["message"]
    assert unknown["error"]["param"] == "frobnicate"
    assert "look_at_this" in shown["prompt"]
    assert rendered["prompt"] == "<Count from 1 to 9.>"
    assert with_thought["thought"] == "Enough."


@pytest.mark.skipif(os.name == "nt", reason="the test needs a POSIX shell")
def test_server_without_a_stderr_serves():
    """Some services are started without it: with `2>&-`, or by pythonw."""
    port = free_port()
    program = ["sh", "-c", 'exec "$@" 2>&-', "sh", sys.executable, "-m", "localchat.server", "--port", str(port)]
    with subprocess.Popen(program, stdout=subprocess.DEVNULL) as process:
        try:
            wait_for(lambda: health(port) == 200 or process.poll() is not None, DEADLINE_S)
            assert process.poll() is None
        finally:
            process.kill()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def health(port: int) -> int | None:
    """The status of /health; None: no server responds."""
    with contextlib.suppress(OSError), contextlib.closing(http.client.HTTPConnection("127.0.0.1", port)) as client:
        client.request("GET", "/health")
        return client.getresponse().status
    return None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_streams_properly_and_the_process_with_0(number: int):
    with running_process() as server:
        client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE_S)
        with contextlib.closing(client):
            # With many choices at a high temperature, some are still running when the signal arrives.
            body = request_body("Hi", stream=True, temperature=100, top_k=0, n=8)
            client.request("POST", "/v1/chat/completions", body)
            response = client.getresponse()
            server.process.send_signal(number)
            raw = response.read()
        assert raw.endswith(b"data: [DONE]\n\n")
        assert server.process.wait(DEADLINE_S) == 0
    assert "Traceback" not in "".join(server.lines)


STUCK = """
import sys, threading
from localchat import server
from localchat.serving.engine.values import EngineStopped
from localchat.serving.http import loading

class StuckFront:
    def __init__(self, *arguments):
        self.is_closed = threading.Event()

    def start(self):
        self.is_closed.wait()
        raise EngineStopped("closed")

    def close(self):
        self.is_closed.set()

loading.Front = StuckFront
sys.exit(server.main(["--port", sys.argv[1]]))
"""


def test_signal_ends_a_server_whose_model_still_loads():
    port = free_port()
    with subprocess.Popen([sys.executable, "-c", STUCK, str(port)]) as process:
        try:
            wait_for(lambda: health(port) == 503, DEADLINE_S)
            process.send_signal(signal.SIGTERM)
            assert process.wait(DEADLINE_S) == 0
        finally:
            process.kill()


def test_second_signal_ends_the_process():
    body = request_body("Hi", stream=True, ignore_eos=True, max_tokens=90_000, repeat_penalty=1.5)
    with (
        running_process("--drain", "60", "--ctx", "100000") as server,
        contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE_S)) as client,
    ):
        client.request("POST", "/v1/chat/completions", body)
        response = client.getresponse()
        server.process.send_signal(signal.SIGTERM)
        wait_for(lambda: health(server.port) != 200)
        # An immediate second signal counts as the same one, since systemd and `timeout` send it twice.
        server.process.send_signal(signal.SIGTERM)
        assert response.read(1000)
        time.sleep(server_module.ONE_SIGNAL_S)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(DEADLINE_S) == -signal.SIGTERM
