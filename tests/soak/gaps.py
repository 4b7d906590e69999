"""Measures the gaps between the chunks of an ordinary stream, in a process, while another program loads the server."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from .target import DEADLINE_S, DOCUMENTED, QUESTION, Broken, Target, counted, post, responses

ROOT = Path(__file__).parents[2]
# The longest time that the stream is read alone at the end.
ALONE_S = 20.0
REQUEST = {"messages": [{"role": "user", "content": QUESTION}], "stream": True, "max_tokens": 400, "ignore_eos": True}


class Gaps:
    """Runs one stream after the other, and records each gap with the time of its end (`time.monotonic`)."""

    def __init__(self, target: Target) -> None:
        command = [sys.executable, "-m", "tests.soak.gaps", target.url]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        self._gaps: list[tuple[float, float]] = []
        self._began = threading.Event()
        self._thread = threading.Thread(target=self._collect, daemon=True)
        self._thread.start()
        # What ran beside the stream: start, end and name.
        self._spans: list[tuple[float, float, str]] = []

    @contextlib.contextmanager
    def during(self, name: str) -> Iterator[None]:
        """Record that `name` runs within the `with` block."""
        began_at = time.monotonic()
        yield
        self._spans.append((began_at, time.monotonic(), name))
        if self._process.poll() is not None:
            raise Broken(f"{name}: the stream beside it failed")

    def alone(self) -> None:
        """Read the stream alone for a while, to measure the gaps that the machine causes."""
        if self._process.poll() is None:
            time.sleep(min(ALONE_S, sum(end - start for start, end, _ in self._spans)))

    def wait_until_read(self) -> None:
        """Wait until the first chunks have come."""
        if not self._began.wait(DEADLINE_S):
            raise Broken("the stream has no chunks")

    def close(self) -> None:
        with self._process:
            self._process.kill()
            self._thread.join(DEADLINE_S)

    def report(self) -> str:
        """The median gap, the largest gap beside another program with its name, and the largest gap alone."""
        ordered = sorted(gap for _, gap in self._gaps) or [0.0]
        busy_from = min((start for start, _, _ in self._spans), default=0.0)
        busy_until = max((end for _, end, _ in self._spans), default=0.0)
        busy = [(gap, at) for at, gap in self._gaps if busy_from <= at and at - gap <= busy_until]
        alone = max((gap for ended_at, gap in self._gaps if ended_at - gap > busy_until), default=0.0)
        worst, ended_at = max(busy, default=(0.0, 0.0))
        names = [name for start, end, name in self._spans if start <= ended_at and ended_at - worst <= end]
        return (
            f"median {1000 * ordered[len(ordered) // 2]:.0f} ms, at most {1000 * worst:.0f} ms ({', '.join(names)}), "
            f"and alone at most {1000 * alone:.0f} ms"
        )

    def _collect(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not line.endswith("\n"):
                return  # `close` killed the process within a line.
            ended_at, gap = line.split()
            self._gaps.append((float(ended_at), float(gap)))
            self._began.set()


def send_beside_stream(target: Target, requests: Iterable[tuple[str, str, bytes]], *, timeout_s: float) -> str:
    """Send requests (name, path, body) one after the other beside a stream; returns the results for the report."""
    statuses: Counter[int] = Counter()
    gaps = Gaps(target)
    try:
        gaps.wait_until_read()
        for name, path, body in requests:
            with gaps.during(name):
                raw = target.send(post(path, body), timeout_s=timeout_s)
            [(status, payload)] = responses(raw)
            statuses[status] += 1
            if status not in DOCUMENTED:
                target.fault(f"{name}: status {status}: {payload[:300]!r}")
        gaps.alone()
    finally:
        gaps.close()
    return f"{counted(statuses)}; the gaps between chunks of another stream: {gaps.report()}"


def main() -> None:
    target, body = Target(sys.argv[1]), json.dumps(REQUEST).encode()
    while True:
        with socket.create_connection(target.address, timeout=DEADLINE_S) as sock:
            sock.sendall(post("/v1/chat/completions", body))
            if not sock.recv(65536).startswith(b"HTTP/1.1 200"):
                raise Broken("the stream is refused")
            last = time.monotonic()
            while sock.recv(65536):
                now = time.monotonic()
                print(now, now - last, flush=True)
                last = now


if __name__ == "__main__":
    main()
