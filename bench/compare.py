"""Compares localchat with other servers on the same model and prints the ratios.

    python -m bench.model /tmp/random.gguf --params 10M --vocab 152000
    LLAMA_SERVER=/path/to/llama-server python -m bench.compare /tmp/random.gguf

Each round runs all servers one after the other (A B A B). The figure of a load is the median of its rounds. A ratio
above 1 is better for localchat, for rates and for times; the least and the largest ratio of the rounds follow it.

On a GPU, with builds of both servers for it:

    python -m bench.compare model.gguf --set gpu --slots 64 --ctx 2048 --gpu-layers 99 --rounds 1
"""

from __future__ import annotations

import argparse
import contextlib
import math
import statistics
import sys
from itertools import product

from .loads import LOADS, SETS, Figure, chat
from .measure import Refused, first_model, run_load
from .servers import PURPOSES, Command, commands, running

# By load, then by server: one tuple of figures for each round.
Values = dict[str, dict[str, list[tuple[float, ...]]]]


def main(arguments: list[str] | None = None) -> None:
    compare(read_arguments(arguments))


def compare(options: argparse.Namespace) -> None:
    """Measures the loads on all servers, and prints the figures."""
    loads = options.loads or SETS[options.set]
    given = {"n_gpu_layers": options.gpu_layers, "against": options.against}
    given |= {"mmproj": options.mmproj, "adapters": options.lora}
    sizes = (options.model, options.slots, options.ctx)
    by_purpose = {purpose: commands(*sizes, purpose=purpose, **given) for purpose in PURPOSES}
    found = by_purpose["sized"]
    names = [name for name in options.servers or found if name in found]
    print(f"servers: {', '.join(names)}; model: {options.model}; {options.rounds} rounds", flush=True)
    values: Values = {load: {name: [] for name in names} for load in loads}
    for _ in range(options.rounds):
        for purpose, name in product(PURPOSES, names):
            measure_all(name, by_purpose[purpose][name], purpose, options, values)
    report(names, values)


def read_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.compare",
        description=__doc__,
        epilog="loads:\n" + "\n".join(f"  {name:<13} {load.name}" for name, load in LOADS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", help="a GGUF file; bench.model writes one of any size")
    parser.add_argument("--servers", nargs="+", help="which to compare, localchat first (default: all installed ones)")
    parser.add_argument("--against", metavar="FOLDER", help="another checkout of localchat, to compare with as well")
    parser.add_argument("--set", choices=SETS, default="all", help="the loads, if --loads does not name them")
    parser.add_argument("--loads", nargs="+", choices=LOADS, metavar="LOAD", help="see below")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=128, help="tokens of a completion")
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--ctx", type=int, default=8192, help="context of one request")
    parser.add_argument("--lora", nargs="+", default=(), metavar="FILE", help="two adapters, for the load `lora`")
    parser.add_argument("--mmproj", metavar="FILE", help="projector of the model, for the load `images`")
    parser.add_argument("--gpu-layers", type=int, help="layers on the GPU (default: that of each server)")
    return parser.parse_args(arguments)


def measure_all(name: str, command: Command, purpose: str, options: argparse.Namespace, values: Values) -> None:
    """One round of one server: the loads that need a server with this purpose, those of its first requests first."""
    loads = sorted(
        (load for load in values if LOADS[load].purpose == purpose), key=lambda load: not LOADS[load].is_first
    )
    if not loads:
        return
    with running(name, command) as server:
        model = first_model(server.url)
        if purpose != "embeddings" and not LOADS[loads[0]].is_first:
            with contextlib.suppress(Refused):  # The warm-up may give a response without a token.
                run_load(server.url, [chat(model, ("user", "Hello!"), n_tokens=8)], 1, 2)
        for load in loads:
            # A failed round has no value, so that the rounds of all servers have the same numbers.
            measured = (math.nan,) * len(LOADS[load].figures)
            try:
                measured = LOADS[load].measure(server, model, options)
            except (Refused, OSError, ValueError, LookupError) as error:
                print(f"{name}: {load}: {str(error)[:200]}", file=sys.stderr)
            values[load][name].append(measured)


def report(names: list[str], values: Values) -> None:
    """Print for each figure the median of each server, and the ratio of the first server to each other one."""
    labels = {load: [label(load, figure) for figure in LOADS[load].figures] for load in values}
    width = max(len(text) for texts in labels.values() for text in texts)
    print(f"{'':<{width}}  {'':<9}" + "".join(f"{name:>28}" for name in names))
    for load, by_name in values.items():
        for i, figure in enumerate(LOADS[load].figures):
            rounds = {name: [measured[i] for measured in by_name[name]] for name in names}
            ours = rounds[names[0]]
            cells = [f"{median(rounds[name]):.1f}" for name in names]
            ratios = ["", *(f" ({ratio(figure, ours, rounds[name])})" for name in names[1:])]
            row = "".join(f"{cell + mark:>28}" for cell, mark in zip(cells, ratios))
            print(f"{labels[load][i]:<{width}}  {figure.unit:<9}{row}")


def label(load: str, figure: Figure) -> str:
    return f"{LOADS[load].name}: {figure.name}" if figure.name else LOADS[load].name


def ratio(figure: Figure, ours: list[float], theirs: list[float]) -> str:
    """The median of the ratios in the rounds in which both servers have a value, the least one and the largest one."""
    found = [our / their if figure.more_is_better else their / our for our, their in zip(ours, theirs)]
    found = [value for value in found if not math.isnan(value)]
    return f"{median(found):.2f}; {min(found):.2f}-{max(found):.2f}" if found else "-"


def median(values: list[float]) -> float:
    """The median of the values that are not nan; nan if there are none."""
    return statistics.median([value for value in values if not math.isnan(value)] or [math.nan])


if __name__ == "__main__":
    main()
