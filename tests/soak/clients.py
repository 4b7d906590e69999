"""Many clients at once, of which some disconnect or do not read, or whose engine process is killed."""

import contextlib
import functools
import http.client
import os
import random
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from tests.support.exchanges import ask, opened, read
from tests.support.live import engine_of
from tests.support.serving import chat_body, delta_text, wait_for

from .target import DEADLINE_S, Target, counted


@contextlib.contextmanager
def clients(n: int, send: Callable[[random.Random], str], seed: int) -> Iterator[Counter[str]]:
    """Run `n` client threads in the `with` block, each of which sends one request after the other.

    Yields the number of times that `send` has returned each outcome. No request may fail.
    """
    counts: Counter[str] = Counter()
    failures: list[str] = []
    must_stop = threading.Event()

    def run(chance: random.Random) -> None:
        while not must_stop.is_set() and not failures:
            try:
                counts[send(chance)] += 1
            except Exception as error:
                failures.append(repr(error))

    threads = [threading.Thread(target=run, args=(random.Random(seed * 1000 + i),), daemon=True) for i in range(n)]
    for thread in threads:
        thread.start()
    try:
        yield counts
    finally:
        must_stop.set()
    for thread in threads:
        thread.join(4 * DEADLINE_S)
    assert not failures, f"{len(failures)} failures: {failures[0]}"
    assert not any(thread.is_alive() for thread in threads), "a request has no end"


# --- load ---

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
    question, stream = chance.choice(list(alone)), chance.random() < 0.7
    connection = http.client.HTTPConnection("127.0.0.1", target.server.port, timeout=4 * DEADLINE_S)
    with contextlib.closing(connection):
        connection.connect()
        if kind == "unread":
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        body = chat_body(question, temperature=0, max_tokens=N_TOKENS, stream=stream)
        connection.request("POST", "/v1/chat/completions", body)
        if kind != "read":
            time.sleep(unread_s if kind == "unread" else chance.random() / 2)
        if kind == "disconnected":
            return kind
        response, found = read(connection.getresponse())
    if response.status in (429, 503):
        return str(response.status)
    assert response.status == 200, f"{kind}: {question!r} got {response.status} {found}"
    text = delta_text(found[:-1]) if stream else found["choices"][0]["message"]["content"]
    assert text == alone[question], f"{kind}: {question!r} gave {text!r}, and alone {alone[question]!r}"
    return kind


def load(target: Target, n: int, seed: int, questions: Sequence[str] = QUESTIONS, n_clients: int = 256) -> str:
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
    # The server closes the connections of clients that do not read late.
    with contextlib.suppress(AssertionError):
        names = ("threads", "files")
        wait_for(lambda: all(target.resources()[name] <= before[name] for name in names), min(DEADLINE_S, n))
    after = target.resources()
    later = np.array(memory[len(memory) // 2 :])
    slope = 3600 * np.polyfit(later[:, 0], later[:, 1], 1)[0]
    changed = ", ".join(f"{after[name] - value:+.0f} {name}" for name, value in before.items())
    return (
        f"{n} s with {n_clients} clients and {len(questions)} prompts: {counted(counts)}; resources "
        f"afterwards: {changed}; resident memory in the second half: {slope:+.1f} MB an hour"
    )


# --- kills ---


def wait_until_served(target: Target) -> None:
    """Send an ordinary request until one succeeds."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        with contextlib.suppress(AssertionError, OSError, http.client.HTTPException):
            target.chat(max_tokens=4)
            return
        time.sleep(0.02)
    raise AssertionError("the server was not back in time")


def end_of_stream(target: Target, chance: random.Random) -> str:
    """Read a stream, which must be complete or end with an error that names the signal."""
    messages = [{"role": "user", "content": f"Count from {chance.randrange(100)}. " * chance.randrange(1, 30)}]
    fields = {"messages": messages, "stream": True, "max_tokens": chance.randrange(1, 200), "ignore_eos": True}
    with opened(f"127.0.0.1:{target.server.port}", "/v1/chat/completions", fields) as response:
        text = response.read().decode()
    if "was killed by" in text:
        return "ended with the signal"
    is_complete = text.endswith("data: [DONE]\n\n") and '"finish_reason":"length"' in text
    assert (response.status, is_complete) == (200, True), text[-300:]
    return "complete"


def kills(target: Target, n: int, seed: int, n_streams: int = 16) -> str:
    """Kill the engine process `n` times at random moments: idle, in a prompt, in a stream, and while it loads."""
    chance = random.Random(seed)
    slowest_s = 0.0
    text = target.chat()
    before = target.resources()
    with clients(n_streams, lambda chance: end_of_stream(target, chance), seed) as counts:
        was_loading = False
        for _ in range(n):
            # Three failed starts in a row would be final for a minute, so at most one is killed while it loads.
            was_loading = not was_loading and chance.random() < 0.3
            if not was_loading:
                wait_until_served(target)
            time.sleep(chance.random() * 0.3)
            engine = engine_of(target.server.process.pid)
            if engine is not None:
                os.kill(engine, chance.choice([signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT]))
            start = time.monotonic()
            assert ask(target.server.port, "/health")[0] == 200
            slowest_s = max(slowest_s, time.monotonic() - start)
        wait_until_served(target)
    assert target.chat() == text
    after = target.resources()
    left = {name: after[name] - before[name] for name in ("threads", "files")}
    assert max(left.values()) <= 2, f"something is left: {left}"
    return (
        f"{n} kills under {n_streams} streams: {counted(counts)}; GET /health within {slowest_s:.2f} s; "
        f"{after['MB'] - before['MB']:.0f} MB more"
    )
