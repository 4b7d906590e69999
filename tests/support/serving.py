"""A running server in this process, with the real engine and a fake model, and functions that send requests to it."""

import contextlib
import http.client
import json
import math
import re
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from localchat.serving.chat.model import Model
from localchat.serving.core.server_options import Options
from localchat.serving.engine.engine import Engine
from localchat.serving.engine.media.encoder import MediaEncoder
from localchat.serving.http.connections import listening
from localchat.serving.http.http_server import ChatServer
from localchat.serving.loading.served_model import ServedModel
from localchat.serving.loading.service import Service
from localchat.serving.models.memory import OtherModels
from localchat.serving.models.model_file import DEMO, DEMO_PATH, ModelFile
from tests.support import exchanges
from tests.support.deadline import DEADLINE_S, wait_for
from tests.support.engines import client_of, started
from tests.support.exchanges import events_of, read
from tests.support.fakes import END, FakeBackend, echo
from tests.support.raw_server import CERTIFICATE

# With this chat template, the prompt is the text of the last message, which the model `echo` repeats.
LAST_MESSAGE = "{{ messages[-1].content }}"
ANY_PORT = Options(port=0)
TLS = Options(port=0, tls_cert=CERTIFICATE)
CLIENT_TLS = ssl.create_default_context(cafile=str(CERTIFICATE))
BIG = {"n_ctx": 2000, "n_cells": 8000}
REASONING_AND_TEXT = "<think>hm</think>Let me look."


class Serving:
    """A running server, with its engine and backend."""

    def __init__(self, server: ChatServer, engine: Engine, backend: FakeBackend, thread: threading.Thread):
        self.server, self.engine, self.backend, self.thread = server, engine, backend, thread
        self.engine_client = client_of(engine)
        # With `is_gated`: each release lets the engine run one step.
        self.gate: Any = backend.gate
        # With `is_ready=False`: a load of the model waits for this.
        self.may_load = threading.Event()
        # The sequences that were submitted to the engine, in order.
        self.requests = backend.requests
        self.port = server.server_port
        self.address = f"127.0.0.1:{self.port}"

    @property
    def last_prompt(self) -> str:
        """The newest prompt as text. The tokens of the fake model are bytes; media are asterisks."""
        return bytes(ord("*") if token < 0 else token for token in self.requests[-1].prompt).decode()

    def connect(self, sent: bytes = b"") -> socket.socket:
        """A connection on which these bytes were sent."""
        sock = socket.create_connection(("127.0.0.1", self.port), timeout=DEADLINE_S)
        sock.sendall(sent)
        return sock

    def client(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)

    def chat(self, content: str = "hello", **fields: Any) -> tuple[int, Any]:
        """Send a chat request on a new connection; return the status, and the body or the payloads of the stream."""
        with contextlib.closing(self.client()) as client:
            return ask(client, content, **fields)

    def request(self, method: str, path: str, body: Any = None, headers: Any = None) -> tuple[int, Any]:
        """Send a request on a new connection; return the status and the body."""
        return exchanges.ask(self.port, path, body, method, headers)

    def wait_until_idle(self) -> None:
        wait_until_idle(self.engine)
        wait_for(lambda: self.backend.n_cells_used() == 0)


@contextlib.contextmanager
def serving(model=echo, *, max_queue=8, is_ready=True, is_gated=False, projector=None, settings=ANY_PORT, **facts):
    threads_before = set(threading.enumerate())
    gate = threading.Semaphore(0) if is_gated else None
    backend = FakeBackend(model, gate=gate, **{"chat_template": LAST_MESSAGE, **facts})

    def load(file: ModelFile, others: OtherModels, on_progress: Any) -> Model:
        assert running.may_load.wait(DEADLINE_S), "the test never let the model load"
        return Model("Fake", client_of(engine))

    service = Service(ModelFile(DEMO_PATH, "Fake"), settings, load=load)
    options = {"max_queue": max_queue, "new_encoder": None if projector is None else partial(MediaEncoder, projector)}
    with started(backend, **options) as engine, served(service, settings) as (server, thread):
        running = Serving(server, engine, backend, thread)
        if is_ready:
            make_ready(service.default, Model("Fake", client_of(engine)))
        try:
            yield running
        finally:
            running.may_load.set()
            if gate is not None:
                gate.release(100_000)
    wait_for(lambda: set(threading.enumerate()) <= threads_before)


def no_load(file: ModelFile, others: OtherModels, on_progress: Any) -> Model:
    raise AssertionError("the test loads no model")


def make_ready(served: ServedModel, model: Model) -> None:
    """Let a model be loaded without the thread that loads models."""
    served.queue(0)
    served.begin_load()
    served.finish_load(model, 0, math.inf)


@contextlib.contextmanager
def serving_demo(engine: Engine, **options: Any) -> Iterator[int]:
    """Serve an engine that has the built-in model; yields the port."""
    service = Service(ModelFile(DEMO_PATH, DEMO), load=no_load)
    with served(service, Options(port=0, **options)) as (server, _):
        make_ready(server.service.default, Model(DEMO, client_of(engine)))
        yield server.server_port


@contextlib.contextmanager
def served(service: Service, options: Options) -> Iterator[tuple[ChatServer, threading.Thread]]:
    """Run a server on a thread."""

    def serve() -> None:
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever(poll_interval=0.01)

    with listening(options) as listener, contextlib.closing(ChatServer(service, options, listener)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server, thread
        finally:
            server.shutdown()
    thread.join(DEADLINE_S)


def wait_until_idle(engine: Engine) -> None:
    """Wait until the engine has no sequences; then wait until it has dropped its idle prefixes."""
    wait_for(lambda: (stats := engine.stats()).n_running + stats.n_waiting + stats.n_cells_active == 0)
    engine.forget()
    wait_for(lambda: engine.stats().n_cells_idle == 0)


@contextlib.contextmanager
def openai_client(port: int) -> Iterator[Any]:
    """A client of the `openai` package."""
    openai = pytest.importorskip("openai", reason="the real client comes with the test extra")
    options = {"api_key": "none", "max_retries": 0, "timeout": 60}
    with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", **options) as client:
        yield client


def chat_body(content: str = "hello", **fields: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": content}], **fields}).encode()


GOOD = chat_body()


def ask(client: http.client.HTTPConnection, content: str = "hello", **fields: Any) -> tuple[int, Any]:
    client.request("POST", "/v1/chat/completions", chat_body(content, **fields))
    return read_response(client)


def read_response(client: http.client.HTTPConnection) -> tuple[int, Any]:
    """The status, and the JSON or the text of the response, or the payloads of a stream before its end."""
    response, found = read(client.getresponse())
    if response.getheader("Content-Type") == "text/event-stream":
        assert found.pop() == "[DONE]"
    return response.status, found


def payloads(raw: bytes) -> list[Any]:
    *found, end = events_of(raw.decode())
    assert end == "[DONE]"
    return found


def raw_request(body: bytes, *headers: str, path: str = "/v1/chat/completions", method: str = "POST") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


def chat_request(content: str = "hello", **fields: Any) -> bytes:
    return raw_request(chat_body(content, **fields))


def chunked(*lines: str) -> bytes:
    head = ("POST /v1/chat/completions HTTP/1.1", "Host: localhost", "Transfer-Encoding: chunked", "", "")
    return ("\r\n".join(head) + "\r\n".join(lines)).encode()


def read_all(sock: socket.socket) -> bytes:
    """Read until the server closes."""
    return b"".join(iter(lambda: sock.recv(65536), b""))


def trickle(sock: socket.socket, byte: bytes) -> None:
    """Send a byte every few milliseconds until the server responds or closes."""
    deadline = time.monotonic() + DEADLINE_S
    with contextlib.suppress(ConnectionResetError, BrokenPipeError):
        while not select.select([sock], [], [], 0.005)[0]:
            sock.sendall(byte)
            assert time.monotonic() < deadline, "the deadline passed"


def exchange(serving: Serving, request: bytes) -> tuple[bytes, Any]:
    """Send bytes, and read until the server closes; return the head of the response, and its JSON."""
    with serving.connect(request) as sock:
        head, _, body = read_all(sock).partition(b"\r\n\r\n")
    return head, json.loads(body)


def read_until(sock: socket.socket, end: bytes) -> bytes:
    """Read up to and including `end`, and no further."""
    raw = bytearray()
    while not raw.endswith(end):
        piece = sock.recv(1)
        assert piece, f"closed after {raw!r}"
        raw += piece
    return bytes(raw)


def dechunked(raw: bytes) -> bytes:
    body, size = b"", 1
    while size:
        line, _, rest = raw.partition(b"\r\n")
        size = int(line, 16)
        assert rest[size : size + 2] == b"\r\n"
        body, raw = body + rest[:size], rest[size + 2 :]
    assert raw == b""
    return body


def delta_text(chunks: list[Any], i: int = 0) -> str:
    choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == i]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def reset(sock: socket.socket) -> None:
    """Close the connection with a reset."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


def generating(text: str):
    """A model that generates this text."""
    script = [*text.encode(), END]
    return lambda tokens, n_prompt: script[len(tokens) - n_prompt]


def chunk_kind(choice: dict[str, Any]) -> str:
    if choice["finish_reason"] is not None:
        assert choice["delta"] == {}
        assert "stop_reason" in choice
        return "finish"
    return next(iter(choice["delta"]))


ORDER = re.compile(r"role( reasoning_content)*( content)*( tool_calls)* finish")


def assert_in_order(chunks: list[Any], n: int, *, usage: bool) -> None:
    """Check the order of the chunks of n choices, of each choice as in `ORDER`, all after the role chunks."""
    ((id, *_, kind),) = {(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in chunks}
    assert re.fullmatch("chatcmpl-[0-9a-f]{32}", id)
    assert kind == "chat.completion.chunk"
    body = chunks[:-1] if usage else chunks
    if usage:
        assert chunks[-1]["choices"] == []
        assert chunks[-1]["usage"]["completion_tokens"] > 0
    kinds: dict[int, list[str]] = {i: [] for i in range(n)}
    for (choice,) in (chunk["choices"] for chunk in body):
        kinds[choice["index"]].append(chunk_kind(choice))
    assert all(ORDER.fullmatch(" ".join(of_one)) for of_one in kinds.values()), kinds
    firsts = [chunk["choices"][0] for chunk in body[:n]]
    assert [(choice["index"], chunk_kind(choice)) for choice in firsts] == [(i, "role") for i in range(n)]
