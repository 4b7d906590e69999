"""Streams answers from a server and notes when bytes came; everything is parsed afterwards.

One thread over raw sockets, so that the client takes little from the servers on a small machine.
"""

from __future__ import annotations

import http
import http.client
import json
import selectors
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from localchat.sse import SSEDecoder

DEADLINE_S = 300


@dataclass
class Stream:
    """One streamed answer: when it was asked for, and every read with its time."""

    asked_at: float
    reads: list[tuple[float, bytes]] = field(default_factory=list)


@dataclass(frozen=True)
class Answer:
    """What a stream came to; times in seconds."""

    n_tokens: int
    first_s: float
    gaps_s: list[float]
    text: str
    n_prompt: int = 0


class Refused(Exception):
    """A server did not do what was asked: its answer's first bytes."""


@dataclass(frozen=True)
class Round:
    """All answers of one load on one server."""

    answers: list[Answer]
    wall_s: float

    @property
    def tokens_per_s(self) -> float:
        return sum(answer.n_tokens for answer in self.answers) / self.wall_s


def first_model(url: str) -> str:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "127.0.0.1", parts.port or 80, timeout=10)
    try:
        connection.request("GET", f"{parts.path.rstrip('/')}/models")
        return str(json.loads(connection.getresponse().read())["data"][0]["id"])
    finally:
        connection.close()


def post(url: str, path: str, fields: dict[str, Any]) -> Any:
    """One request that is answered in one body."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "127.0.0.1", parts.port or 80, timeout=DEADLINE_S)
    try:
        connection.request(
            "POST", parts.path.rstrip("/") + path, json.dumps(fields), {"Content-Type": "application/json"}
        )
        response = connection.getresponse()
        content = response.read()
        if response.status != http.HTTPStatus.OK:
            raise Refused(f"{path} was answered with {response.status}: {content[:300]!r}")
        return json.loads(content)
    finally:
        connection.close()


def run_load(url: str, load: list[dict[str, Any]], n_streams: int, n_requests: int) -> Round:
    """Keeps `n_streams` answers in flight until each stream has asked `n_requests` times."""
    parts = urlsplit(url)
    address = (parts.hostname or "127.0.0.1", parts.port or 80)
    requests = [encode(f"{parts.path.rstrip('/')}/chat/completions", parts.netloc, fields) for fields in load]
    finished: list[Stream] = []
    started = time.perf_counter()
    with selectors.DefaultSelector() as selector:

        def ask(n_asked: int) -> None:
            connection = socket.create_connection(address, timeout=DEADLINE_S)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            stream = Stream(time.perf_counter())
            connection.sendall(requests[n_asked % len(requests)])
            selector.register(connection, selectors.EVENT_READ, (stream, n_asked))

        for i in range(n_streams):
            ask(i * n_requests)
        while selector.get_map():
            ready = selector.select(DEADLINE_S)
            if not ready:
                raise Refused(f"{url} sent nothing for {DEADLINE_S} s")
            for key, _ in ready:
                connection, (stream, n_asked) = key.fileobj, key.data
                assert isinstance(connection, socket.socket)
                data = connection.recv(1 << 16)
                stream.reads.append((time.perf_counter(), data))
                if data:
                    continue
                selector.unregister(connection)
                connection.close()
                finished.append(stream)
                if (n_asked + 1) % n_requests:
                    ask(n_asked + 1)
    return Round([read_answer(stream) for stream in finished], time.perf_counter() - started)


def encode(path: str, host: str, fields: dict[str, Any]) -> bytes:
    content = json.dumps(fields).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        f"Connection: close\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


def read_answer(stream: Stream) -> Answer:
    """Tokens by the server's own count or, where it tells none, one for each delta; and when content came."""
    dechunk, decoder = Dechunker(), SSEDecoder()
    times: list[float] = []
    texts: list[str] = []
    n_tokens, n_prompt, is_whole = 0, 0, False
    for at, data in stream.reads:
        for event in decoder.feed(dechunk.feed(data)):
            if event.data == "[DONE]":
                is_whole = True
                continue
            chunk = json.loads(event.data)
            if chunk.get("error"):
                raise Refused(f"an answer broke off: {event.data[:300]}")
            usage = chunk.get("usage") or {}
            n_tokens, n_prompt = usage.get("completion_tokens", n_tokens), usage.get("prompt_tokens", n_prompt)
            deltas = [choice.get("delta") or {} for choice in chunk.get("choices") or []]
            if any(map(is_content, deltas)):
                times.append(at)
                texts += [delta.get("content") or "" for delta in deltas]
    n_tokens = n_tokens or sum(map(bool, texts))
    raw = b"".join(data for _, data in stream.reads)
    if not is_whole:
        raise Refused(f"an answer was cut: {raw[-300:]!r}")
    if not times or not n_tokens:
        raise Refused(f"no tokens in an answer: {raw[:300]!r}")
    gaps = [later - earlier for earlier, later in zip(times, times[1:])]
    return Answer(n_tokens, times[0] - stream.asked_at, gaps, "".join(texts), n_prompt)


def is_content(delta: dict[str, Any]) -> bool:
    return any(delta.get(name) for name in ("content", "reasoning_content", "tool_calls"))


class Dechunker:
    """Takes the HTTP head and the chunk frames off a response, as its bytes come."""

    def __init__(self) -> None:
        self._held = b""
        self._in_body = False
        self._is_chunked = False
        self._n_left = 0

    def feed(self, data: bytes) -> bytes:
        self._held += data
        if not self._in_body:
            head, separator, rest = self._held.partition(b"\r\n\r\n")
            if not separator:
                return b""
            if b" 200 " not in head.partition(b"\r\n")[0]:
                raise Refused(f"a server refused: {self._held[:500]!r}")
            self._in_body, self._held = True, rest
            self._is_chunked = b"chunked" in head.lower()
        if not self._is_chunked:
            out, self._held = self._held, b""
            return out
        return b"".join(self._chunks())

    def _chunks(self) -> Iterator[bytes]:
        while self._held:
            if self._n_left:
                part, self._held = self._held[: self._n_left], self._held[self._n_left :]
                self._n_left -= len(part)
                yield part
                continue
            size, separator, rest = self._held.lstrip(b"\r\n").partition(b"\r\n")
            if not separator:
                return
            self._n_left, self._held = int(size.split(b";")[0], 16), rest


def percentile(ordered: list[float], percent: int) -> float:
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]
