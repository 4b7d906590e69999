"""Measures chat servers in one run: tokens/s, time to first token, gaps between tokens.

    python -m bench.serve                                   starts and measures localchat's own server
    python -m bench.serve a=http://127.0.0.1:8080/v1 b=http://127.0.0.1:8081/v1

The rounds of the servers alternate (A B A B), so that a machine that slows down slows all of them. The last column is
the ratio to the first server.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
from typing import Any
from urllib.parse import urlsplit

from .measure import Round, first_model, percentile, run_load
from .servers import commands, running

PROMPTS = (
    "Count to thirty.",
    "What is your name?",
    "How do I start the server?",
    "What can you do?",
    "My name is Ada. What is my name?",
)


def main(arguments: list[str] | None = None) -> None:
    options = read_arguments(arguments)
    with contextlib.ExitStack() as stack:
        urls = dict(named(server) for server in options.servers)
        if not urls:
            command = commands(options.model, max(options.streams), 0)["localchat"]
            urls["localchat"] = stack.enter_context(running("localchat", command)).url
        loads = {name: bodies(first_model(url), options) for name, url in urls.items()}
        for name, url in urls.items():
            run_load(url, loads[name], 1, 2)  # Warm up.
        for n_streams in options.streams:
            rounds: dict[str, list[Round]] = {name: [] for name in urls}
            for _ in range(options.rounds):
                for name, url in urls.items():
                    rounds[name].append(run_load(url, loads[name], n_streams, options.requests))
            report(n_streams, rounds)


def read_arguments(arguments: list[str] | None) -> argparse.Namespace:
    from localchat.serving.models.model_file import DEMO_PATH

    parser = argparse.ArgumentParser(prog="python -m bench.serve", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("servers", nargs="*", metavar="[NAME=]URL", help="base URLs such as http://127.0.0.1:8080/v1")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 16], help="loads to run (default: 1 4 16)")
    parser.add_argument("--requests", type=int, default=10, help="requests of each stream, one after the other")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each load on each server")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--body", type=json.loads, default={}, help="further request fields, as JSON")
    parser.add_argument("--model", default=str(DEMO_PATH), help="a model for localchat's own server")
    return parser.parse_args(arguments)


def named(server: str) -> tuple[str, str]:
    """The name and the URL of an argument `[NAME=]URL`; by default the name is the host and port."""
    name, separator, url = server.partition("=")
    return (name, url) if separator and "/" not in name else (urlsplit(server).netloc, server)


def bodies(model: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The request bodies of a load. Each stream sends them in this order."""
    common = {
        "model": model,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
        "max_tokens": options.max_tokens,
        **options.body,
    }
    return [{**common, "messages": [{"role": "user", "content": prompt}]} for prompt in PROMPTS]


def report(n_streams: int, rounds: dict[str, list[Round]]) -> None:
    """Print a line for each server: the medians of its rounds, and the ratio to the first server."""
    print(f"\n{n_streams} stream{'s' if n_streams > 1 else ''}")
    heads = ("tokens/s", "first ms", "p95", "gap ms", "p95", "ratio")
    print(f"  {'server':<16}" + "".join(f"{head:>10}" for head in heads))
    base: list[float] | None = None
    for name, measured in rounds.items():
        rates = [round_.tokens_per_s for round_ in measured]
        base = base or rates
        ratio = statistics.median(rate / other for rate, other in zip(rates, base))
        responses = [response for round_ in measured for response in round_.responses]
        firsts = sorted(response.first_s * 1e3 for response in responses)
        gaps = sorted(gap * 1e3 for response in responses for gap in response.gaps_s) or [0.0]
        figures = (
            f"{statistics.median(rates):.0f}",
            *(f"{percentile(firsts, percent):.1f}" for percent in (50, 95)),
            *(f"{percentile(gaps, percent):.2f}" for percent in (50, 95)),
            f"{ratio:.2f}",
        )
        print(f"  {name:<16}" + "".join(f"{figure:>10}" for figure in figures), flush=True)


if __name__ == "__main__":
    main()
