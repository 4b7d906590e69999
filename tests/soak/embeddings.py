"""Measures embeddings beside streams: the time of many short texts, alternately alone and beside eight streams."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator

from .target import DEADLINE_S, QUESTION, Broken, Target, parsed, post

N_STREAMS = 8
N_ROUNDS = 3
DEADLINE_OF_TEXTS_S = 300.0


def texts(n: int, seed: int) -> list[str]:
    """Short texts of a few words each."""
    chance = random.Random(seed)
    words = ["red", "table", "river", "music", "seven", "letter", "window", "garden", "paper", "winter"]
    return [" ".join(chance.choices(words, k=chance.randrange(3, 12))) for _ in range(n)]


def embed(target: Target, given: list[str]) -> float:
    """The time in seconds of one request for the vectors of all texts."""
    start = time.monotonic()
    raw = target.send(post("/v1/embeddings", json.dumps({"input": given}).encode()), timeout_s=DEADLINE_OF_TEXTS_S)
    status, body = parsed(raw)
    if status != 200 or len(body["data"]) != len(given):
        raise Broken(f"embeddings got {status}")
    return time.monotonic() - start


@contextlib.contextmanager
def streams(target: Target) -> Iterator[list[int]]:
    """Streams that run within the `with` block, and the number of bytes that each has received."""
    fields = {"messages": [{"role": "user", "content": QUESTION}], "stream": True, "ignore_eos": True}
    raw = post("/v1/chat/completions", json.dumps({**fields, "max_tokens": 400}).encode())
    must_end = threading.Event()
    received = [0] * N_STREAMS

    def read(i: int) -> None:
        while not must_end.is_set():
            with socket.create_connection(target.address, timeout=DEADLINE_S) as sock:
                sock.sendall(raw)
                while not must_end.is_set() and (piece := sock.recv(65536)):
                    received[i] += len(piece)

    threads = [threading.Thread(target=read, args=(i,), daemon=True) for i in range(N_STREAMS)]
    for thread in threads:
        thread.start()
    try:
        yield received
    finally:
        must_end.set()
        for thread in threads:
            thread.join(DEADLINE_S)


def run(target: Target, n: int, seed: int) -> str:
    """Embed `n` texts, alternately alone and beside the streams."""
    given = texts(n, seed)
    alone, beside = [], []
    rates_alone, rates_beside = [], []
    for _ in range(N_ROUNDS):
        alone.append(embed(target, given))
        with streams(target) as received:
            time.sleep(2.0)
            rates_alone.append(_rate(received, lambda: time.sleep(2.0)))
            rates_beside.append(_rate(received, lambda: beside.append(embed(target, given))))
    alone_s, beside_s = statistics.median(alone), statistics.median(beside)
    speed = statistics.median(rates_beside) / statistics.median(rates_alone)
    return (
        f"{n:,} texts: {alone_s:.2f} s alone, {beside_s:.2f} s beside {N_STREAMS} streams "
        f"({beside_s / alone_s:.1f} times), which keep {speed:.0%} of their speed"
    )


def _rate(received: list[int], work: Callable[[], object]) -> float:
    """The bytes per second of all streams while `work` runs."""
    before, start = sum(received), time.monotonic()
    work()
    return (sum(received) - before) / (time.monotonic() - start)
