"""Runs many clients at once, of which some disconnect or do not read, and checks texts, memory and threads."""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from collections import Counter

import numpy as np

from .target import DEADLINE_S, Broken, Target, counted, post, responses

QUESTIONS = [
    *("What is your name?", "What can you do?", "Say hello.", "Count to five.", "Tell me a joke.", "Thank you!"),
    *(f"What is {n} plus {n + 3}?" for n in range(3, 23)),
    *(f"My name is {name}. What is my name?" for name in ("Ada", "Bob", "Carla", "Dan", "Eve", "Mallory")),
]
N_TOKENS = 48
# How long a client that does not read waits.
UNREAD_S = 5.0


class Load:
    """`n_connections` client threads, each of which sends one request after the other."""

    def __init__(self, target: Target, n_connections: int, seed: int) -> None:
        self.target = target
        self.n_connections = n_connections
        self.seed = seed
        self.alone = {question: target.chat(question, max_tokens=N_TOKENS) for question in QUESTIONS}
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []
        # Seconds since the start of the load, and resident MB of the server.
        self.memory: list[tuple[float, float]] = []
        self._end_at = 0.0

    def run(self, seconds: float) -> None:
        self._end_at = time.monotonic() + seconds
        threads = [threading.Thread(target=self._client, args=(i,), daemon=True) for i in range(self.n_connections)]
        for thread in threads:
            thread.start()
        while time.monotonic() < self._end_at:
            self.memory.append((seconds - self._end_at + time.monotonic(), self.target.resources()["MB"]))
            time.sleep(min(1.0, seconds / 20))
        for thread in threads:
            thread.join(seconds + 4 * DEADLINE_S)
        if self.failures or any(thread.is_alive() for thread in threads):
            raise Broken(f"{len(self.failures)} failures, or a request without an end: {self.failures[:1]}")

    def _client(self, index: int) -> None:
        chance = random.Random(self.seed * 1000 + index)
        while time.monotonic() < self._end_at and not self.failures:
            (kind,) = chance.choices(("disconnected", "unread", "read"), (10, 5, 85))
            try:
                self.counts[self._request(chance.choice(QUESTIONS), kind, chance)] += 1
            except Exception as error:
                self.failures.append(f"client {index}, {kind}: {error!r}")

    def _request(self, question: str, kind: str, chance: random.Random) -> str:
        fields = {"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": N_TOKENS}
        raw = post("/v1/chat/completions", json.dumps({**fields, "stream": chance.random() < 0.7}).encode())
        with socket.create_connection(self.target.address, timeout=4 * DEADLINE_S) as sock:
            if kind == "unread":
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            sock.sendall(raw)
            if kind == "disconnected":
                time.sleep(chance.random() / 2)
                return kind
            if kind == "unread":
                time.sleep(min(UNREAD_S, max(0.0, self._end_at - time.monotonic())))
            received = b"".join(iter(lambda: sock.recv(65536), b""))
        [(status, body)] = responses(received)
        if status in (429, 503):
            return str(status)
        text = text_of(body) if status == 200 else f"status {status}: {body[:300]!r}"
        if text != self.alone[question]:
            raise Broken(f"{question!r} gave {text!r}, and alone {self.alone[question]!r}")
        return kind


def text_of(body: bytes) -> str:
    """The text of a whole or streamed response."""
    if body.startswith(b"{"):
        return str(json.loads(body)["choices"][0]["message"]["content"])
    chunks = [json.loads(line[len(b"data: ") :]) for line in body.split(b"\n") if line.startswith(b"data: {")]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def run(target: Target, n: int, seed: int, n_connections: int = 256, settle_s: float = DEADLINE_S) -> str:
    """Run the load for `n` seconds, then compare the resources of the server with those before."""
    load = Load(target, n_connections, seed)
    load.run(min(5.0, n / 4))
    target.check()
    before = target.resources()
    load.run(n)
    after = settled(target, before, settle_s)
    changed = ", ".join(f"{after[name] - value:+.0f} {name}" for name, value in before.items())
    return (
        f"{n} s with {n_connections} clients and {len(QUESTIONS)} prompts: {counted(load.counts)}; resources "
        f"afterwards: {changed}; resident memory in the second half: {slope(load.memory):+.1f} MB an hour"
    )


def settled(target: Target, before: dict[str, float], settle_s: float) -> dict[str, float]:
    """The resources after the last connections are closed: the server closes those of clients that do not read late."""
    deadline = time.monotonic() + settle_s
    while True:
        after = target.resources()
        if time.monotonic() > deadline or (after["threads"] <= before["threads"] and after["files"] <= before["files"]):
            return after
        time.sleep(0.1)


def slope(samples: list[tuple[float, float]]) -> float:
    """The growth in MB an hour in the second half of the samples, by least squares."""
    later = np.array(samples[len(samples) // 2 :])
    return float(3600 * np.polyfit(later[:, 0], later[:, 1], 1)[0])
