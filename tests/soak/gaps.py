"""Gaps between the chunks of an ordinary stream, read by a process of its own while something else loads the server."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from .target import DEADLINE_S, QUESTION, Broken, Target, post

ROOT = Path(__file__).parents[2]
# How long the stream is read alone at the end, at most.
ALONE_S = 20.0
REQUEST = {"messages": [{"role": "user", "content": QUESTION}], "stream": True, "max_tokens": 400, "ignore_eos": True}


class Gaps:
    """The gaps of one stream after the other, each with the time of its end (`time.monotonic`)."""

    def __init__(self, target: Target) -> None:
        command = [sys.executable, "-m", "tests.soak.gaps", target.url]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        self._gaps: list[tuple[float, float]] = []
        self._began = threading.Event()
        self._thread = threading.Thread(target=self._collect, daemon=True)
        self._thread.start()
        # What ran in the meantime, for the report: from when to when, and its name.
        self._spans: list[tuple[float, float, str]] = []

    @contextlib.contextmanager
    def during(self, name: str) -> Iterator[None]:
        """Gaps that end within the `with` are those of `name`."""
        began_at = time.monotonic()
        yield
        self._spans.append((began_at, time.monotonic(), name))
        if self._process.poll() is not None:
            raise Broken(f"{name}: the stream beside it failed")

    def alone(self) -> None:
        """Read the stream alone for a while: the machine has gaps of its own."""
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
        """The median and the largest gap, what it is of, and the largest gap of the stream alone."""
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
