"""Embeddings beside streams: the time of many short texts alone and beside eight streams, in turns."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator

from .target import DEADLINE_S, QUESTION, Broken, Target, parsed, post

N_STREAMS = 8
N_TURNS = 3
DEADLINE_OF_TEXTS_S = 300.0


def texts(n: int, seed: int) -> list[str]:
    """Short texts of some words each."""
    chance = random.Random(seed)
    words = ["red", "table", "river", "music", "seven", "letter", "window", "garden", "paper", "winter"]
    return [" ".join(chance.choices(words, k=chance.randrange(3, 12))) for _ in range(n)]


def embed(target: Target, given: list[str]) -> float:
    """Seconds until all vectors are there."""
    start = time.monotonic()
    raw = target.send(post("/v1/embeddings", json.dumps({"input": given}).encode()), timeout_s=DEADLINE_OF_TEXTS_S)
    status, body = parsed(raw)
    if status != 200 or len(body["data"]) != len(given):
        raise Broken(f"embeddings got {status}")
    return time.monotonic() - start


@contextlib.contextmanager
def streams(target: Target) -> Iterator[list[int]]:
    """Streams that go on, and how many bytes each has received."""
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
    """Embed `n` texts alone and beside the streams, in turns."""
    given = texts(n, seed)
    alone, beside = [], []
    rates_alone, rates_beside = [], []
    for _ in range(N_TURNS):
        alone.append(embed(target, given))
        with streams(target) as received:
            time.sleep(2.0)
            rates_alone.append(_rate(received, lambda: time.sleep(2.0)))
            rates_beside.append(_rate(received, lambda: beside.append(embed(target, given))))
    slower = sorted(beside)[N_TURNS // 2] / sorted(alone)[N_TURNS // 2]
    left = sorted(rates_beside)[N_TURNS // 2] / sorted(rates_alone)[N_TURNS // 2]
    return (
        f"{n:,} texts: {sorted(alone)[N_TURNS // 2]:.2f} s alone, {sorted(beside)[N_TURNS // 2]:.2f} s beside "
        f"{N_STREAMS} streams ({slower:.1f} times), which keep {left:.0%} of their speed"
    )


def _rate(received: list[int], work: Callable[[], object]) -> float:
    """Bytes per second of the streams during the work."""
    before, start = sum(received), time.monotonic()
    work()
    return (sum(received) - before) / (time.monotonic() - start)
