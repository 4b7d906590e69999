"""Streams responses from a server and records when bytes arrive. Responses are parsed after the measurement.

The client is one thread over raw sockets, so that it takes little processor time from the server on a small machine.
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
    """One streamed response: when the request was sent, and each read with its time."""

    sent_at: float
    reads: list[tuple[float, bytes]] = field(default_factory=list)


@dataclass(frozen=True)
class Response:
    """The figures of one stream."""

    n_tokens: int
    # Time from the request to the first token.
    first_s: float
    gaps_s: list[float]
    text: str


class Refused(Exception):
    """A server refused a request, or its response is not complete. The message has bytes of the response."""


@dataclass(frozen=True)
class Round:
    """All responses of one load on one server."""

    responses: list[Response]
    wall_s: float

    @property
    def tokens_per_s(self) -> float:
        return sum(response.n_tokens for response in self.responses) / self.wall_s


def first_model(url: str) -> str:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "127.0.0.1", parts.port or 80, timeout=10)
    try:
        connection.request("GET", f"{parts.path.rstrip('/')}/models")
        return str(json.loads(connection.getresponse().read())["data"][0]["id"])
    finally:
        connection.close()


def post(url: str, path: str, fields: dict[str, Any]) -> Any:
    """Send one request; returns the JSON of its response."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "127.0.0.1", parts.port or 80, timeout=DEADLINE_S)
    try:
        connection.request(
            "POST", parts.path.rstrip("/") + path, json.dumps(fields), {"Content-Type": "application/json"}
        )
        response = connection.getresponse()
        content = response.read()
        if response.status != http.HTTPStatus.OK:
            raise Refused(f"{path} got status {response.status}: {content[:300]!r}")
        return json.loads(content)
    finally:
        connection.close()


def run_load(url: str, load: list[dict[str, Any]], n_streams: int, n_requests: int) -> Round:
    """Keep `n_streams` requests in flight until each stream has sent `n_requests`."""
    parts = urlsplit(url)
    address = (parts.hostname or "127.0.0.1", parts.port or 80)
    requests = [encode(f"{parts.path.rstrip('/')}/chat/completions", parts.netloc, fields) for fields in load]
    finished: list[Stream] = []
    started = time.perf_counter()
    with selectors.DefaultSelector() as selector:

        def send(n_sent: int) -> None:
            connection = socket.create_connection(address, timeout=DEADLINE_S)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            stream = Stream(time.perf_counter())
            connection.sendall(requests[n_sent % len(requests)])
            selector.register(connection, selectors.EVENT_READ, (stream, n_sent))

        for i in range(n_streams):
            send(i * n_requests)
        while selector.get_map():
            ready = selector.select(DEADLINE_S)
            if not ready:
                raise Refused(f"{url} sent nothing for {DEADLINE_S} s")
            for key, _ in ready:
                connection, (stream, n_sent) = key.fileobj, key.data
                assert isinstance(connection, socket.socket)
                data = connection.recv(1 << 16)
                stream.reads.append((time.perf_counter(), data))
                if data:
                    continue
                selector.unregister(connection)
                connection.close()
                finished.append(stream)
                if (n_sent + 1) % n_requests:
                    send(n_sent + 1)
    return Round([read_response(stream) for stream in finished], time.perf_counter() - started)


def encode(path: str, host: str, fields: dict[str, Any]) -> bytes:
    content = json.dumps(fields).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        f"Connection: close\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


def read_response(stream: Stream) -> Response:
    """The figures of a stream. If the server reports no usage, each delta counts as one token."""
    dechunk, decoder = Dechunker(), SSEDecoder()
    times: list[float] = []
    texts: list[str] = []
    n_tokens, is_whole = 0, False
    for at, data in stream.reads:
        for event in decoder.feed(dechunk.feed(data)):
            if event.data == "[DONE]":
                is_whole = True
                continue
            chunk = json.loads(event.data)
            if chunk.get("error"):
                raise Refused(f"a response ended with an error: {event.data[:300]}")
            n_tokens = (chunk.get("usage") or {}).get("completion_tokens", n_tokens)
            deltas = [choice.get("delta") or {} for choice in chunk.get("choices") or []]
            if any(map(is_content, deltas)):
                times.append(at)
                texts += [delta.get("content") or "" for delta in deltas]
    n_tokens = n_tokens or sum(map(bool, texts))
    raw = b"".join(data for _, data in stream.reads)
    if not is_whole:
        raise Refused(f"a response was cut: {raw[-300:]!r}")
    if not times or not n_tokens:
        raise Refused(f"a response has no tokens: {raw[:300]!r}")
    gaps = [later - earlier for earlier, later in zip(times, times[1:])]
    return Response(n_tokens, times[0] - stream.sent_at, gaps, "".join(texts))


def is_content(delta: dict[str, Any]) -> bool:
    return any(delta.get(name) for name in ("content", "reasoning_content", "tool_calls"))


class Dechunker:
    """Removes the HTTP head and the chunk framing from a response, in pieces as they arrive."""

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
