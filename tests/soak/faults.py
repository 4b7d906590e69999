"""Kills of the engine process under streams: what clients get, and how long GET /health takes."""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import signal
import time
from pathlib import Path

from tests.support.exchanges import ask, opened
from tests.support.live import running_process

from .target import DEADLINE_S, Broken, Target, clients, counted


def engines_of(pid: int) -> list[int]:
    """The engine processes of a server; Linux."""
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # a process that has just ended
            state, parent = file.read_text().rpartition(")")[2].split()[:2]
            if int(parent) == pid and state != "Z":
                found.append(int(file.parent.name))
    return sorted(found)


def engine_of(pid: int) -> int | None:
    """The engine process of a server with one model, if it has one."""
    return next(iter(engines_of(pid)), None)


def wait_until_served(target: Target) -> None:
    """Send an ordinary request until one succeeds."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        with contextlib.suppress(Broken, OSError, http.client.HTTPException):
            target.chat(max_tokens=4)
            return
        time.sleep(0.02)
    raise Broken("the server was not back in time")


SIGNALS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT)


def end_of_stream(target: Target, chance: random.Random) -> str:
    """Read a stream, which must be complete or end with an error that names the signal."""
    messages = [{"role": "user", "content": f"Count from {chance.randrange(100)}. " * chance.randrange(1, 30)}]
    fields = {"messages": messages, "stream": True, "max_tokens": chance.randrange(1, 200), "ignore_eos": True}
    with opened(f"127.0.0.1:{target.port}", "/v1/chat/completions", fields) as response:
        text = response.read().decode()
    if "was killed by" in text:
        return "ended with the signal"
    if response.status != 200 or not text.endswith("data: [DONE]\n\n") or '"finish_reason":"length"' not in text:
        raise Broken(f"{response.status} {text[-300:]}")
    return "complete"


def kills(n: int, seed: int, n_streams: int = 16) -> str:
    """Kill the engine process `n` times at random moments: idle, in a prompt, in a stream, and while it loads."""
    chance = random.Random(seed)
    slowest_s = 0.0
    # No ordinary request waits for a slot: beside other programs that takes longer than the engine to start.
    with running_process("--parallel", "32") as server:
        target = Target(server.port, server.process.pid)
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
                engine = engine_of(target.pid)
                if engine is not None:
                    os.kill(engine, chance.choice(SIGNALS))
                start = time.monotonic()
                if ask(target.port, "/health")[0] != 200:
                    raise Broken("GET /health failed after a kill")
                slowest_s = max(slowest_s, time.monotonic() - start)
            wait_until_served(target)
        if target.chat() != text:
            raise Broken("the greedy text is another one")
        after = target.resources()
        if after["threads"] > before["threads"] + 2 or after["files"] > before["files"] + 2:
            raise Broken(f"something is left: {before}, then {after}")
    return (
        f"{n} kills under {n_streams} streams: {counted(counts)}; GET /health within {slowest_s:.2f} s; "
        f"{after['MB'] - before['MB']:.0f} MB more"
    )
