"""Measures chat servers by one program in one run: tokens/s, time to first token, gaps between tokens.

    python -m bench.serve                                   localchat's own server, started for the purpose
    python -m bench.serve a=http://127.0.0.1:8080/v1 b=http://127.0.0.1:8081/v1

The servers are measured in turn, A B A B, so that a machine that slows down slows all of them, and
the last columns are ratios to the first one. The client is one thread over raw sockets that only
notes when bytes came; everything is parsed afterwards, so that it takes little from the servers.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import selectors
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Optional
from urllib.parse import urlsplit

from localchat.sse import SSEDecoder

PROMPTS = (
    "Count to thirty.",
    "What is your name?",
    "How do I start the server?",
    "What can you do?",
    "My name is Ada. What is my name?",
)
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


@dataclass(frozen=True)
class Round:
    """All answers of one load on one server."""

    answers: list[Answer]
    wall_s: float

    @property
    def tokens_per_s(self) -> float:
        return sum(answer.n_tokens for answer in self.answers) / self.wall_s


def main(arguments: Optional[list[str]] = None) -> None:
    options = read_arguments(arguments)
    with contextlib.ExitStack() as stack:
        servers = dict(named(url) for url in options.servers)
        if not servers:
            servers["localchat"] = stack.enter_context(own_server(options.model, options.server_args.split()))
        models = {name: first_model(url) for name, url in servers.items()}
        for name, url in servers.items():
            run_load(url, bodies(models[name], options), 1, 2)  # warms up
        for n_streams in options.streams:
            rounds: dict[str, list[Round]] = {name: [] for name in servers}
            for _ in range(options.rounds):
                for name, url in servers.items():
                    load = bodies(models[name], options)
                    rounds[name].append(run_load(url, load, n_streams, options.requests))
            report(n_streams, rounds)


def read_arguments(arguments: Optional[list[str]]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.serve", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("servers", nargs="*", metavar="[NAME=]URL", help="base URLs such as http://127.0.0.1:8080/v1")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 16], help="loads to run (default: 1 4 16)")
    parser.add_argument("--requests", type=int, default=10, help="answers that each stream asks for in a row")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each load on each server")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--body", type=json.loads, default={}, help="further request fields, as JSON")
    parser.add_argument("--model", help="a model for localchat's own server")
    parser.add_argument("--server-args", default="", help="options for localchat's own server, in one text")
    return parser.parse_args(arguments)


def named(server: str) -> tuple[str, str]:
    name, separator, url = server.partition("=")
    return (name, url) if separator and "/" not in name else (urlsplit(server).netloc, server)


@contextlib.contextmanager
def own_server(model: Optional[str], arguments: list[str]) -> Iterator[str]:
    """Runs localchat's server on a free port; its base URL."""
    command = [sys.executable, "-m", "localchat.server", *([model] if model else []), "--port", "0", *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        try:
            for line in server.stderr:
                found = re.search(r"http://[\w.]+:\d+/v1", line)
                if found:
                    break
            else:
                sys.exit("localchat's server did not start")
            # What it logs from here on must be read, or it would wait for room in the pipe.
            with subprocess.Popen(["cat"], stdin=server.stderr, stdout=subprocess.DEVNULL):
                wait_until_ready(found.group())
                yield found.group()
                server.terminate()
        finally:
            server.kill()


def wait_until_ready(url: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, ValueError, LookupError):
            first_model(url)
            return
        time.sleep(0.1)
    sys.exit(f"{url} was not ready within {DEADLINE_S} s")


def first_model(url: str) -> str:
    import http.client

    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "127.0.0.1", parts.port or 80, timeout=10)
    try:
        connection.request("GET", f"{parts.path.rstrip('/')}/models")
        return str(json.loads(connection.getresponse().read())["data"][0]["id"])
    finally:
        connection.close()


def bodies(model: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The requests of a load, which the streams go through in turn."""
    common = {
        "model": model,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
        "max_tokens": options.max_tokens,
        **options.body,
    }
    return [{**common, "messages": [{"role": "user", "content": prompt}]} for prompt in PROMPTS]


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
                sys.exit(f"{url} sent nothing for {DEADLINE_S} s")
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
    """Tokens by the server's own count, and the times at which content came."""
    dechunk, decoder = Dechunker(), SSEDecoder()
    times: list[float] = []
    n_tokens = 0
    for at, data in stream.reads:
        for event in decoder.feed(dechunk.feed(data)):
            if event.data == "[DONE]":
                continue
            chunk = json.loads(event.data)
            n_tokens = (chunk.get("usage") or {}).get("completion_tokens", n_tokens)
            if any(is_content(choice.get("delta") or {}) for choice in chunk.get("choices") or []):
                times.append(at)
    if not times or not n_tokens:
        sys.exit(f"no tokens in an answer: {b''.join(data for _, data in stream.reads)[:300]!r}")
    gaps = [later - earlier for earlier, later in zip(times, times[1:])]
    return Answer(n_tokens, times[0] - stream.asked_at, gaps)


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
                sys.exit(f"a server refused: {self._held[:500]!r}")
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


def report(n_streams: int, rounds: dict[str, list[Round]]) -> None:
    """One line for each server: medians of the rounds, and the ratio to the first server."""
    print(f"\n{n_streams} stream{'s' if n_streams > 1 else ''}")
    heads = ("tokens/s", "first ms", "p95", "gap ms", "p95", "ratio")
    print(f"  {'server':<16}" + "".join(f"{head:>10}" for head in heads))
    base: Optional[list[float]] = None
    for name, its_rounds in rounds.items():
        rates = [round_.tokens_per_s for round_ in its_rounds]
        base = base or rates
        ratio = statistics.median(rate / other for rate, other in zip(rates, base))
        firsts = sorted(answer.first_s * 1e3 for round_ in its_rounds for answer in round_.answers)
        gaps = sorted(gap * 1e3 for round_ in its_rounds for answer in round_.answers for gap in answer.gaps_s) or [0.0]
        figures = (
            f"{statistics.median(rates):.0f}",
            *(f"{percentile(firsts, percent):.1f}" for percent in (50, 95)),
            *(f"{percentile(gaps, percent):.2f}" for percent in (50, 95)),
            f"{ratio:.2f}",
        )
        print(f"  {name:<16}" + "".join(f"{figure:>10}" for figure in figures), flush=True)


def percentile(ordered: list[float], percent: int) -> float:
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


if __name__ == "__main__":
    main()
