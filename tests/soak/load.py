"""Many clients at once, of which some disconnect and some do not read; greedy texts, memory and threads afterwards."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import threading
import time

from .target import DEADLINE_S, Broken, Target, post, responses

QUESTIONS = [
    *("What is your name?", "Who are you?", "What can you do?", "Say hello.", "What is the capital of France?"),
    *("Repeat after me: blue table", "Count to five.", "My name is Ada. What is my name?", "What is 2 plus 3?"),
    *("Name a colour.", "Thank you!", "Good morning!", "How are you?", "List three fruits.", "What is localchat?"),
]
N_TOKENS = 48
# How long a client that does not read keeps its connection.
UNREAD_S = 5.0


class Load:
    """Clients of `n_connections` threads, each with one request after the other."""

    def __init__(self, target: Target, n_connections: int, seed: int) -> None:
        self.target = target
        self.n_connections = n_connections
        self.seed = seed
        self.alone = {question: target.chat(question, max_tokens=N_TOKENS) for question in QUESTIONS}
        self.counts: dict[str, int] = {}
        self.failures: list[str] = []
        self._lock = threading.Lock()
        self._end_at = 0.0

    def run(self, seconds: float) -> None:
        self._end_at = time.monotonic() + seconds
        threads = [threading.Thread(target=self._client, args=(i,), daemon=True) for i in range(self.n_connections)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(seconds + 4 * DEADLINE_S)
            if thread.is_alive():
                raise Broken("a request did not end in time")
        for failure in self.failures:
            self.target.fault(failure)
        self.failures.clear()

    def _client(self, index: int) -> None:
        chance = random.Random(self.seed * 1000 + index)
        while time.monotonic() < self._end_at and (self.target.keeps_going or not self.failures):
            draw = chance.random()
            kind = "disconnected" if draw < 0.1 else "unread" if draw < 0.15 else "read"
            question = chance.choice(QUESTIONS)
            try:
                ended = self._request(question, kind, chance)
            except Exception as error:
                with self._lock:
                    self.failures.append(f"client {index}, {kind}: {error!r}")
                continue
            with self._lock:
                self.counts[ended] = self.counts.get(ended, 0) + 1

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
            received = b""
            while piece := sock.recv(65536):
                received += piece
        [(status, body)] = responses(received)
        if status in (429, 503):
            return str(status)
        if status != 200:
            raise Broken(f"status {status}: {body[:300]!r}")
        text = text_of(body)
        if text != self.alone[question]:
            raise Broken(f"{question!r} gave {text!r}, and alone {self.alone[question]!r}")
        return kind


def text_of(body: bytes) -> str:
    """The text of a response, whether it is a stream or not."""
    if not body.startswith(b"data:"):
        return str(json.loads(body)["choices"][0]["message"]["content"])
    text = ""
    for line in body.split(b"\n"):
        with contextlib.suppress(ValueError):
            payload = json.loads(line[len(b"data:") :]) if line.startswith(b"data: {") else {}
            if "error" in payload:
                raise Broken(f"the stream ended with {payload}")
            text += "".join(choice["delta"].get("content") or "" for choice in payload.get("choices", ()))
    return text


def run(target: Target, n: int, seed: int, n_connections: int = 256) -> str:
    """Run the load for `n` seconds, then compare the resources of the server with those before."""
    load = Load(target, n_connections, seed)
    load.run(min(5.0, n / 4))
    target.check()
    before = target.resources() if target.pid else {}
    load.run(n)
    deadline = time.monotonic() + DEADLINE_S
    after = target.resources() if target.pid else {}
    while target.pid and after["threads"] > before["threads"] + 2 and time.monotonic() < deadline:
        time.sleep(0.1)
        after = target.resources()
    counted = ", ".join(f"{count} {kind}" for kind, count in sorted(load.counts.items()))
    changed = ", ".join(f"{after[name] - value:+.0f} {name}" for name, value in before.items())
    return f"{n} s with {n_connections} clients: {counted}; all greedy texts as alone; resources afterwards: {changed}"
