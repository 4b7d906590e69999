"""Runs one reliability program, or all: `python -m tests.soak http --n 1000`, `python -m tests.soak all`."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from tests.support.live import running_process

from . import faults, fuzz, load
from .target import Broken, Target

ARGUMENTS = ("--ctx", "512", "--max-tokens", "16", "--queue", "600", "--parallel")
N_PARALLEL = "8"
# The programs, each with the length of its run by `make soak` (requests, files, kills, or seconds of load), and the
# number of parallel requests of the server that it needs.
PROGRAMS: dict[str, tuple[Callable[..., str], int, str | None]] = {
    "http": (fuzz.http, 100_000, N_PARALLEL),
    "json": (fuzz.json_bodies, 50_000, N_PARALLEL),
    "constraints": (fuzz.constraints, 1_000, N_PARALLEL),
    "load": (load.run, 1_200, "64"),
    "models": (fuzz.models, 1_000, None),
    "media": (fuzz.media, 20_000, None),
    "kills": (faults.kills, 200, None),
}


@contextlib.contextmanager
def new_target(n_parallel: str = N_PARALLEL) -> Iterator[Target]:
    """A new server with the built-in model."""
    with running_process(*ARGUMENTS, n_parallel) as server:
        yield Target(server.port, server.process.pid)


def run(name: str, n: int | None, seed: int) -> str:
    """Run one program; returns its line for the report.

    Raises:
        Broken: The server violated a rule.
    """
    program, default, n_parallel = PROGRAMS[name]
    n = default if n is None else n
    if n_parallel is None:
        return program(n, seed)
    with new_target(n_parallel) as target:
        return program(target, n, seed)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("name", choices=[*PROGRAMS, "all"])
    parser.add_argument("--n", type=int, help="requests, files or seconds (default: those of the report)")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    n_broken = 0
    for name in PROGRAMS if arguments.name == "all" else [arguments.name]:
        start = time.monotonic()
        try:
            line = run(name, arguments.n, arguments.seed)
        except Broken as error:
            n_broken, line = n_broken + 1, f"BROKEN: {error}"
        print(f"{name}: {line} ({time.monotonic() - start:.0f} s)", flush=True)
    return 1 if n_broken else 0


if __name__ == "__main__":
    sys.exit(main())
