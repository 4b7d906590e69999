"""Requests to an engine process that are dropped at any moment, beside large prompts and large results."""

from __future__ import annotations

import contextlib
import random
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from localchat.serving.core.mailbox import Mailbox
from localchat.serving.core.params import GenerationParams
from localchat.serving.engine import process
from localchat.serving.engine.process import EngineProcess
from localchat.serving.engine.values import LoadOptions, SequenceRequest
from localchat.serving.models.model_file import DEMO_PATH

DEADLINE_S = 60.0
# Several times as much as the connection between the processes holds.
LARGE = "a word and another " * 16_000

# An engine process that can tell which requests it has not forgotten.
PROGRAM = """
import sys
from localchat.serving.engine import __main__ as program
def open_ids(self, request):
    self._output(request, sorted(self._requests))
program.EngineMain.open_ids = open_ids
program.main(int(sys.argv[1]))
"""


def protocol(n: int, seed: int) -> str:
    """`n` rounds, each of which drops a large prompt, gets a large result, and generates. Returns what was done."""
    process.COMMAND = [sys.executable, "-c", PROGRAM]
    engine = EngineProcess(str(DEMO_PATH), LoadOptions(n_parallel=4, n_ctx=256)).wait_until_loaded()
    with contextlib.closing(engine), ThreadPoolExecutor(8) as pool:
        longest_s = 0.0
        for round in range(n):
            random_ = random.Random(f"{seed} {round}")
            works = [drop_large_prompt, drop_large_prompt, large_tokens, generate_some, generate_some]
            if round % 10 == 0:
                works.append(large_vectors)
            began_at = time.monotonic()
            for done in [pool.submit(work, engine, random_) for work in works]:
                done.result(DEADLINE_S)
            longest_s = max(longest_s, time.monotonic() - began_at)
        ends_at = time.monotonic() + DEADLINE_S
        while (ids := engine._result("open_ids", None)[:-1]) or engine.n_requests:
            assert time.monotonic() < ends_at, f"the engine has not ended {ids}; {engine.n_requests} requests are open"
            time.sleep(0.05)
        stats = engine.stats()
        assert (stats.n_running, stats.n_waiting) == (0, 0)
    return f"{n} rounds, the longest took {longest_s:.1f} s"


def drop_large_prompt(engine: EngineProcess, random_: random.Random) -> None:
    request = engine.generate([SequenceRequest(((LARGE, True),))], Mailbox())
    threading.Event().wait(random_.choice([0, 0.001, 0.01]))
    request.drop()


def large_tokens(engine: EngineProcess, random_: random.Random) -> None:
    n_tokens = len(engine.tokenize(LARGE))
    assert n_tokens > 16_000, f"{n_tokens} tokens"


def large_vectors(engine: EngineProcess, random_: random.Random) -> None:
    vectors, n_tokens = engine.embed([[5]] * 2000, field="input")
    assert (len(vectors), n_tokens) == (2000, 2000)


def generate_some(engine: EngineProcess, random_: random.Random) -> None:
    params = GenerationParams(max_tokens=20, ignore_eos=True)
    request = engine.generate([SequenceRequest((1, 2, 3), params)] * 2, Mailbox())
    (n_prompts, _), *steps = request.take(DEADLINE_S)
    if random_.random() < 0.5:
        request.drop()
        return
    while outputs := request.take(DEADLINE_S):
        steps += outputs
    assert n_prompts == [3, 3]
    assert [sum(len(step.tokens) for step in steps if step.sequence == i) for i in range(2)] == [20, 20]
