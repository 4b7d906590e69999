"""Kills the engine process again and again under streams: each stream ends, and the server goes on."""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import threading
import time
from collections import Counter

from .faults import engine_of, served, wait_until_served
from .target import DEADLINE_S, Broken, Target, counted

N_STREAMS = 16
SIGNALS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT)
# A stream whose engine was killed ends within this time, and so does GET /health.
ENDS_S = 1.0


class Streams:
    """Clients that read one stream after the other, until they are stopped."""

    def __init__(self, target: Target, seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []
        self.must_stop = threading.Event()
        self._target = target
        self._threads = [threading.Thread(target=self._run, args=(seed + i,), daemon=True) for i in range(N_STREAMS)]
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        self.must_stop.set()
        for thread in self._threads:
            thread.join(DEADLINE_S)
            if thread.is_alive():
                raise Broken("a stream has no end")
        if self.failures:
            raise Broken(f"{len(self.failures)} failures, the first: {self.failures[0]}")

    def _run(self, seed: int) -> None:
        chance = random.Random(seed)
        while not self.must_stop.is_set():
            try:
                self.counts[self._end_of_stream(chance)] += 1
            except Exception as error:
                self.failures.append(repr(error))

    def _end_of_stream(self, chance: random.Random) -> str:
        messages = [{"role": "user", "content": f"Count from {chance.randrange(100)}. " * chance.randrange(1, 30)}]
        fields = {"messages": messages, "stream": True, "max_tokens": chance.randrange(1, 200), "ignore_eos": True}
        client = http.client.HTTPConnection(*self._target.address, timeout=DEADLINE_S)
        try:
            client.request("POST", "/v1/chat/completions", json.dumps(fields))
            response = client.getresponse()
            text = response.read().decode()
        finally:
            client.close()
        if "was killed by" in text:
            return "ended with the signal"
        if response.status != 200 or not text.endswith("data: [DONE]\n\n") or '"finish_reason":"length"' not in text:
            raise Broken(f"{response.status} {text[-300:]}")
        return "complete"


def run(n: int, seed: int) -> str:
    """Kill the engine process `n` times at random moments: idle, in a prompt, in a stream, and while it loads."""
    chance = random.Random(seed)
    slowest_s = 0.0
    # No ordinary request waits for a slot: beside other programs that takes longer than the engine to start.
    with served("--parallel", "32") as (target, process):
        text = target.chat()
        before = target.resources()
        streams = Streams(target, seed)
        was_loading = False
        for _ in range(n):
            # Three failed starts in a row would be final for a minute, so at most one is killed while it loads.
            if was_loading or chance.random() < 0.7:
                wait_until_served(target)
                was_loading = False
            else:
                was_loading = True
            time.sleep(chance.random() * 0.3)
            engine = engine_of(process.pid)
            if engine is not None:
                os.kill(engine, chance.choice(SIGNALS))
            start = time.monotonic()
            if target.health() != 200:
                raise Broken("GET /health failed after a kill")
            slowest_s = max(slowest_s, time.monotonic() - start)
        wait_until_served(target)
        streams.join()
        if target.chat() != text:
            raise Broken("the greedy text is another one")
        after = target.resources()
        if after["threads"] > before["threads"] + 2 or after["files"] > before["files"] + 2:
            raise Broken(f"something is left: {before}, then {after}")
    return (
        f"{n} kills under {N_STREAMS} streams: {counted(streams.counts)}; GET /health within {slowest_s:.2f} s; "
        f"{after['MB'] - before['MB']:.0f} MB more"
    )
