"""Runs many clients at once, of which some disconnect or do not read, and checks texts, memory and threads."""

from __future__ import annotations

import functools
import json
import random
import socket
import time
from collections.abc import Sequence

import numpy as np

from tests.support.exchanges import events_of
from tests.support.serving import delta_text

from .target import DEADLINE_S, Broken, Target, clients, counted, post, responses

QUESTIONS = [
    *("What is your name?", "What can you do?", "Say hello.", "Count to five.", "Tell me a joke.", "Thank you!"),
    *(f"What is {n} plus {n + 3}?" for n in range(3, 23)),
    *(f"My name is {name}. What is my name?" for name in ("Ada", "Bob", "Carla", "Dan", "Eve", "Mallory")),
]
N_TOKENS = 48
# How long a client that does not read waits.
UNREAD_S = 5.0


def request(target: Target, alone: dict[str, str], unread_s: float, chance: random.Random) -> str:
    """Send one of the questions, and return what became of it. The text must be that of the question alone."""
    (kind,) = chance.choices(("disconnected", "unread", "read"), (10, 5, 85))
    question = chance.choice(list(alone))
    fields = {"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": N_TOKENS}
    raw = post("/v1/chat/completions", json.dumps({**fields, "stream": chance.random() < 0.7}).encode())
    with target.connect(4 * DEADLINE_S) as sock:
        if kind == "unread":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        sock.sendall(raw)
        if kind == "disconnected":
            time.sleep(chance.random() / 2)
            return kind
        if kind == "unread":
            time.sleep(unread_s)
        received = b"".join(iter(lambda: sock.recv(65536), b""))
    [(status, body)] = responses(received)
    if status in (429, 503):
        return str(status)
    text = text_of(body) if status == 200 else f"status {status}: {body[:300]!r}"
    if text != alone[question]:
        raise Broken(f"{kind}: {question!r} gave {text!r}, and alone {alone[question]!r}")
    return kind


def text_of(body: bytes) -> str:
    """The text of a whole or streamed response."""
    if body.startswith(b"{"):
        return str(json.loads(body)["choices"][0]["message"]["content"])
    return delta_text(events_of(body.decode())[:-1])


def run(target: Target, n: int, seed: int, questions: Sequence[str] = QUESTIONS, n_clients: int = 256) -> str:
    """Run the load for `n` seconds, then compare the resources of the server with those before."""
    alone = {question: target.chat(question, max_tokens=N_TOKENS) for question in questions}
    send = functools.partial(request, target, alone, min(UNREAD_S, n))
    with clients(n_clients, send, seed):
        time.sleep(min(5.0, n / 4))
    target.check()
    before, memory, start = target.resources(), [], time.monotonic()
    with clients(n_clients, send, seed) as counts:
        while (at := time.monotonic() - start) < n:
            memory.append((at, target.resources()["MB"]))
            time.sleep(min(1.0, n / 20))
    after = settled(target, before, min(DEADLINE_S, n))
    changed = ", ".join(f"{after[name] - value:+.0f} {name}" for name, value in before.items())
    return (
        f"{n} s with {n_clients} clients and {len(questions)} prompts: {counted(counts)}; resources "
        f"afterwards: {changed}; resident memory in the second half: {slope(memory):+.1f} MB an hour"
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
