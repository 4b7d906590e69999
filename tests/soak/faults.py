"""Faults of the process, such as signals, jumps of the clock and a full disk: what clients get, and for how long."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from ..live import started
from .target import DEADLINE_S, Broken, Target, counted, post, responses

# How long the process is stopped by SIGSTOP.
STOPPED_S = 2.0


@contextlib.contextmanager
def served(
    *arguments: str, program: tuple[str, ...] = ("-m", "localchat.server"), **environment: str
) -> Iterator[tuple[Target, subprocess.Popen[str]]]:
    """A server, with more environment variables."""
    variables = [f"{name}={value}" for name, value in environment.items()]
    command = ["env", *variables, sys.executable, *program, "--port", "0", *arguments]
    with started(command) as server:
        yield Target(server.url, server.process.pid), server.process


def engine_of(pid: int) -> int | None:
    """The engine process of a server, if it has one; Linux."""
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent = file.read_text().rpartition(")")[2].split()[:2]
            if int(parent) == pid and state != "Z":
                return int(file.parent.name)
    return None


def wait_until_served(target: Target) -> float:
    """Send an ordinary request until one succeeds; returns the seconds that this takes."""
    start = time.monotonic()
    while time.monotonic() - start < DEADLINE_S:
        with contextlib.suppress(Broken, OSError, ValueError):
            target.chat(max_tokens=4)
            return time.monotonic() - start
        time.sleep(0.02)
    raise Broken("the server was not back in time")


def killed(number: signal.Signals) -> str:
    """Kill the engine process. The next request starts a new one."""
    with served() as (target, process):
        text = target.chat()
        os.kill(engine_of(process.pid) or 0, number)
        seconds = wait_until_served(target)
        if target.chat() != text:
            raise Broken("the greedy text is another one after the restart")
    return f"{number.name}: served again after {seconds:.2f} s"


def stopped() -> str:
    """Stop and continue the engine process. A request that arrives meanwhile succeeds afterwards."""
    with served() as (target, process):
        child, text = engine_of(process.pid) or 0, target.chat()
        os.kill(child, signal.SIGSTOP)
        timer = threading.Timer(STOPPED_S, os.kill, (child, signal.SIGCONT))
        timer.start()
        start = time.monotonic()
        text_after = target.chat()
        timer.join()
        if text_after != text:
            raise Broken("the greedy text is another one after SIGSTOP")
    return f"SIGSTOP for {STOPPED_S} s: the request ended after {time.monotonic() - start:.2f} s"


# The server with a time of day that jumps a year back and forth at each call of `time.time`.
JUMPING = """
import itertools, sys, time
from localchat.server import main
real, jumps = time.time, itertools.cycle((-3e7, 3e7))
time.time = lambda: real() + next(jumps)
sys.exit(main(sys.argv[1:]))
"""


def jumping_clock() -> str:
    """The time of day jumps at each call. Requests and their texts are as before."""
    with served() as (target, _):
        text = target.chat()
    with served(program=("-c", JUMPING)) as (target, _):
        for _ in range(5):
            if target.chat() != text:
                raise Broken("the greedy text is another one while the clock jumps")
            target.check()
    return f"a clock that jumps by a year: an ordinary request in {target.ordinary}"


# Modules that Python imports when it starts are run in the engine process alone.
IN_ENGINE = """
import os, pathlib
is_engine = b"localchat.serving.engine" in pathlib.Path("/proc/self/cmdline").read_bytes()
plan = pathlib.Path(os.environ["LOCALCHAT_FAULTS"])
"""
# A llama_decode that returns the codes of a file, one per call, and decodes when none is left.
FAILING = (
    IN_ENGINE
    + """
if is_engine:
    from localchat.serving.engine.llama import backend
    real = backend.L.llama_decode
def decode(context, batch):
    codes = plan.read_text().split() if plan.exists() else []
    if not codes:
        return real(context, batch)
    plan.write_text(" ".join(codes[1:]))
    return int(codes[0])
if is_engine:
    backend.L.llama_decode = decode
"""
)
# The error codes of llama_decode: no free cells, aborted, an invalid batch, no memory, a failed computation.
CODES = (1, 2, -1, -2, -3)


def failing_decode() -> str:
    """`llama_decode` returns each code once, twice and thrice while a request runs."""
    statuses: Counter[int] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder, "plan")
        Path(folder, "sitecustomize.py").write_text(FAILING)
        with served(PYTHONPATH=folder, LOCALCHAT_FAULTS=str(plan)) as (target, _):
            text = target.chat()
            for codes in ([code] * n for code in CODES for n in (1, 2, 3)):
                plan.write_text(" ".join(map(str, codes)))
                body = json.dumps({"messages": [{"role": "user", "content": "Count to ten."}], "max_tokens": 16})
                [(status, _)] = responses(target.send(post("/v1/chat/completions", body.encode())))
                statuses[status] += 1
                plan.write_text("")
                target.check()
                if target.chat() != text:
                    raise Broken(f"the greedy text is another one after llama_decode returned {codes}")
    return (
        f"llama_decode returns each of {CODES} up to thrice: {counted(statuses)}; the next request in {target.ordinary}"
    )


# The methods that raise errors, each as module of localchat.serving.engine, class and method.
RAISED = [
    "token_sampler.TokenSampler.sample",
    "scheduler.Scheduler.schedule",
    "scheduler.Scheduler.update",
    "scheduler.Scheduler.add",
    "kv_cache.KVCache.acquire",
    "kv_cache.KVCache.release",
    "engine.Engine._end",
    "engine.Engine._stop",
]
# Methods that run only after a failure, so that another method must fail first.
FAILURE_PATH = ("engine.Engine._stop",)
FAILS_FIRST = "\nscheduler.Scheduler.schedule 1 Exception"
# These methods raise errors, as often as a file says: a line has the name of a method, a number, and the kind of error.
RAISING = (
    IN_ENGINE
    + f"names = {RAISED!r} if is_engine else ()"
    + """
import importlib
def spoil(name):
    module, owner_name, method_name = name.split(".")
    owner = getattr(importlib.import_module(f"localchat.serving.engine.{module}"), owner_name)
    real = getattr(owner, method_name)
    def method(*args, **kwargs):
        lines = [line.split() for line in plan.read_text().splitlines()] if plan.exists() else []
        for line in lines:
            if line[0] == name and int(line[1]):
                line[1] = str(int(line[1]) - 1)
                plan.write_text("\\n".join(map(" ".join, lines)))
                raise {"Exception": RuntimeError, "SystemExit": SystemExit}[line[2]]("a fault of the test")
        return real(*args, **kwargs)
    setattr(owner, method_name, method)
for name in names:
    spoil(name)
"""
)


def raising() -> str:
    """Methods of the sampler, scheduler, cache and failure path raise: the request ends, and the next one is served."""
    outcomes: Counter[str] = Counter()
    recoveries = []
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder, "plan")
        Path(folder, "sitecustomize.py").write_text(RAISING)
        for name, kind in itertools.product(RAISED, ("Exception", "SystemExit")):
            with served(PYTHONPATH=folder, LOCALCHAT_FAULTS=str(plan)) as (target, _):
                text = target.chat()
                for n in (1, 3):
                    plan.write_text(f"{name} {n} {kind}" + (FAILS_FIRST if name in FAILURE_PATH else ""))
                    outcome = _outcome(target, f"Count to {n}.")
                    if outcome not in ("200", "500", "503", "cut"):
                        raise Broken(f"{name} raised {kind} {n} times: {outcome}")
                    outcomes[outcome] += 1
                    plan.write_text("")
                    recoveries.append((wait_until_served(target), f"{name}, {kind}, {n} times"))
                    if target.chat() != text:
                        raise Broken(f"the greedy text is another one after {name} raised {kind} {n} times")
    seconds, case = max(recoveries)
    return (
        f"sampler, scheduler, cache or failure path raise once or thrice, {len(recoveries)} cases: "
        f"{counted(outcomes)}; served again after at most {seconds:.2f} s ({case})"
    )


def _outcome(target: Target, content: str) -> str:
    """The status of a request, or "cut"."""
    body = json.dumps({"messages": [{"role": "user", "content": content}], "max_tokens": 16}).encode()
    try:
        found = list(responses(target.send(post("/v1/chat/completions", body))))
    except OSError:
        return "cut"
    return str(found[0][0]) if found else "cut"


FAULTS = [
    lambda: killed(signal.SIGKILL),
    lambda: killed(signal.SIGSEGV),
    stopped,
    jumping_clock,
    failing_decode,
    raising,
]


def run() -> str:
    """All faults, one after the other."""
    return "; ".join(fault() for fault in FAULTS)
