"""Compares localchat with other servers on the same model: the loads people have, as ratios in one run.

    python -m bench.model /tmp/random.gguf --params 10M --vocab 152000
    LLAMA_SERVER=/path/to/llama-server python -m bench.compare /tmp/random.gguf

All servers run one after the other within each round, A B A B, and a load's figure is the median of its
rounds. Above 1 is better for localchat in every ratio, also where the figure itself is a time.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from .measure import Refused, first_model, percentile, post, run_load
from .servers import Command, Server, commands, running

Body = dict[str, Any]

# 400 words that nobody has in a cache by chance.
SYSTEM = " ".join(f"rule {i} of this house is number {i * 37 % 101}" for i in range(50))
LONG_PROMPT = " ".join(f"item {i} costs {i * 7919 % 1009} coins and" for i in range(170))
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "ages": {"type": "array", "items": {"type": "integer"}},
    },
    "required": ["name", "ages"],
}


@dataclass(frozen=True)
class Load:
    """One kind of work. `measure` gives a figure for one server; `unit` says what it is.

    Most servers make embeddings only when they are started for nothing else: such loads have a process of
    their own.
    """

    name: str
    unit: str
    more_is_better: bool
    measure: Callable[[Server, str, argparse.Namespace], float]
    embeds: bool = False


def chat(model: str, *messages: tuple[str, str], n_tokens: int, **fields: Any) -> Body:
    return {
        "model": model,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.8,
        "max_tokens": n_tokens,
        "ignore_eos": True,
        "messages": [{"role": role, "content": content} for role, content in messages],
        **fields,
    }


def decode(n_streams: int) -> Load:
    def measure(server: Server, model: str, options: argparse.Namespace) -> float:
        bodies = [chat(model, ("user", f"Tell me {i} things."), n_tokens=options.tokens) for i in range(n_streams)]
        return run_load(server.url, bodies, n_streams, 1).tokens_per_s

    return Load(f"decode, {n_streams} streams", "tokens/s", True, measure)


def first_token(server: Server, model: str, options: argparse.Namespace) -> float:
    """The median of short requests, one after the other, that have nothing in common."""
    bodies = [chat(model, ("user", f"{time.time_ns()} {i} says hello."), n_tokens=8) for i in range(10)]
    firsts = [answer.first_s for body in bodies for answer in run_load(server.url, [body], 1, 1).answers]
    return statistics.median(firsts) * 1e3


def shared_prefix(server: Server, model: str, options: argparse.Namespace) -> float:
    salt = time.time_ns()
    bodies = [chat(model, ("system", f"{salt} {SYSTEM}"), ("user", f"Question {i}?"), n_tokens=8) for i in range(16)]
    firsts = [answer.first_s for answer in run_load(server.url, bodies, 16, 1).answers]
    return statistics.median(firsts) * 1e3


def conversation(server: Server, model: str, options: argparse.Namespace) -> float:
    messages: list[tuple[str, str]] = [("system", f"{time.time_ns()} {SYSTEM}")]
    firsts = []
    for turn in range(10):
        messages.append(("user", f"This is turn {turn}: what now?"))
        (answer,) = run_load(server.url, [chat(model, *messages, n_tokens=32)], 1, 1).answers
        messages.append(("assistant", answer.text))
        firsts.append(answer.first_s)
    return statistics.median(firsts[1:]) * 1e3


def choices(server: Server, model: str, options: argparse.Namespace) -> float:
    body = chat(model, ("user", f"{time.time_ns()} {SYSTEM}"), n_tokens=options.tokens, n=8)
    return run_load(server.url, [body], 1, 1).tokens_per_s


def json_schema(server: Server, model: str, options: argparse.Namespace) -> float:
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
    body = chat(model, ("user", "Who?"), n_tokens=options.tokens, response_format=form, ignore_eos=False)
    return run_load(server.url, [body] * 4, 4, 2).tokens_per_s


def gap_beside_a_long_prompt(server: Server, model: str, options: argparse.Namespace) -> float:
    """The 95th percentile of 8 streams' gaps while others' long prompts are read."""
    bodies = [chat(model, ("user", f"Tell me {i} things."), n_tokens=options.tokens) for i in range(8)]
    long = chat(model, ("user", f"{time.time_ns()} {LONG_PROMPT}"), n_tokens=8)
    with ThreadPoolExecutor(1) as pool:
        streams = pool.submit(run_load, server.url, bodies, 8, 1)
        time.sleep(0.2)
        run_load(server.url, [long], 1, 2)
        gaps = sorted(gap for answer in streams.result().answers for gap in answer.gaps_s)
    return percentile(gaps, 95) * 1e3


def embeddings(server: Server, model: str, options: argparse.Namespace) -> float:
    """Texts per second, 4 requests of 16 texts at once, each of some 30 words."""
    salt = time.time_ns()
    texts = [f"{salt} {i} " + " ".join(SYSTEM.split()[i : i + 28]) for i in range(64)]
    started = time.perf_counter()
    with ThreadPoolExecutor(4) as pool:

        def ask(i: int) -> int:
            body = {"model": model, "input": texts[16 * i : 16 * i + 16]}
            return len(post(server.url, "/embeddings", body)["data"])

        n_vectors = sum(pool.map(ask, range(4)))
    return n_vectors / (time.perf_counter() - started)


def memory(server: Server, model: str, options: argparse.Namespace) -> float:
    return server.memory_mb


def start(server: Server, model: str, options: argparse.Namespace) -> float:
    return server.start_s * 1e3


def idle_cpu(server: Server, model: str, options: argparse.Namespace) -> float:
    """Milliseconds of processor time in a second in which nothing is asked; never quite nothing, for the ratio."""
    time.sleep(1)  # what the load before has left to do is done by then
    before = server.cpu_s
    time.sleep(1)
    return max((server.cpu_s - before) * 1e3, 1.0)


LOADS = {
    "decode1": decode(1),
    "decode4": decode(4),
    "decode16": decode(16),
    "decode64": decode(64),
    "first": Load("first token of a short request alone", "ms", False, first_token),
    "shared": Load("16 requests, one system prompt: median first token", "ms", False, shared_prefix),
    "conversation": Load("conversation, turns 2 to 10: first token", "ms", False, conversation),
    "n8": Load("8 choices of one prompt", "tokens/s", True, choices),
    "schema": Load("4 streams under a JSON schema", "tokens/s", True, json_schema),
    "gap": Load("8 streams' gap p95 beside a long prompt", "ms", False, gap_beside_a_long_prompt),
    "embeddings": Load("embeddings, 4 x 16 texts", "texts/s", True, embeddings, embeds=True),
    "memory": Load("resident memory after all this", "MB", False, memory),
    "start": Load("start to first answer", "ms", False, start),
    "idle": Load("processor time per idle second", "ms", False, idle_cpu),
}


def main(arguments: list[str] | None = None) -> None:
    options = read_arguments(arguments)
    sizes = (options.model, options.slots, options.ctx, options.threads)
    found = commands(*sizes)
    to_embed = commands(*sizes, embeds=True)
    names = [name for name in options.servers or found if name in found]
    print(f"servers: {', '.join(names)}; model: {options.model}; {options.rounds} rounds")
    figures: dict[str, dict[str, list[float]]] = {load: {name: [] for name in names} for load in options.loads}
    for _ in range(options.rounds):
        for name in names:
            measure_all(name, found[name], False, options, figures)
            measure_all(name, to_embed[name], True, options, figures)
    report(names, figures)


def read_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.compare",
        description=__doc__,
        epilog="loads:\n" + "\n".join(f"  {name:<13} {load.name} ({load.unit})" for name, load in LOADS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", help="a GGUF file; bench.model writes one of any size")
    parser.add_argument("--servers", nargs="+", help="which to compare, localchat first (default: all that are there)")
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=list(LOADS), metavar="LOAD", help="see below")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=128, help="tokens of an answer")
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--ctx", type=int, default=8192, help="context of one request")
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args(arguments)


def measure_all(
    name: str, command: Command, embeds: bool, options: argparse.Namespace, figures: dict[str, dict[str, list[float]]]
) -> None:
    """One round of one server: the loads for embeddings, or all others."""
    loads = [load for load in options.loads if LOADS[load].embeds == embeds]
    if not loads:
        return
    with running(name, command) as server:
        model = first_model(server.url)
        if not embeds:
            with contextlib.suppress(Refused):  # to warm up, an answer without a token will do
                run_load(server.url, [chat(model, ("user", "Hello!"), n_tokens=8)], 1, 2)
        for load in loads:
            figure = math.nan  # so that the rounds of all servers stay side by side
            try:
                figure = LOADS[load].measure(server, model, options)
            except (Refused, OSError, ValueError, LookupError) as error:
                print(f"{name}: {load}: {str(error)[:200]}", file=sys.stderr)
            figures[load][name].append(figure)


def report(names: list[str], figures: dict[str, dict[str, list[float]]]) -> None:
    """Per load the median figure of each server, and the first server's ratio to each other one."""
    width = max(len(LOADS[load].name) for load in figures)
    print(f"{'':<{width}}  {'':<9}" + "".join(f"{name:>18}" for name in names))
    for load, by_name in figures.items():
        ours = by_name[names[0]]
        cells = [f"{median(by_name[name]):.1f}" for name in names]
        ratios = ["", *(f" ({ratio(LOADS[load], ours, by_name[name])})" for name in names[1:])]
        row = "".join(f"{cell + mark:>18}" for cell, mark in zip(cells, ratios))
        print(f"{LOADS[load].name:<{width}}  {LOADS[load].unit:<9}{row}")


def ratio(load: Load, ours: list[float], theirs: list[float]) -> str:
    """Of the rounds in which both have a figure."""
    found = median([our / their if load.more_is_better else their / our for our, their in zip(ours, theirs)])
    return "-" if math.isnan(found) else f"{found:.2f}"


def median(figures: list[float]) -> float:
    """Without those that are missing; none if all are."""
    return statistics.median([figure for figure in figures if not math.isnan(figure)] or [math.nan])


if __name__ == "__main__":
    main()
