"""Runs one reliability program, or all: `python -m tests.soak http --n 1000`, `python -m tests.soak all`."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from ..live import running_process
from . import (
    embeddings,
    engine_kills,
    faults,
    fuzz_bodies,
    fuzz_client,
    fuzz_constraints,
    fuzz_http,
    fuzz_json,
    fuzz_models,
    load,
)
from .target import Broken, Target

ARGUMENTS = ("--ctx", "512", "--max-tokens", "16", "--queue", "600", "--parallel")
N_PARALLEL, N_STREAMS_OF_LOAD = "8", "64"
# The programs that need a running server, each with the length of its run by `make soak`: requests, or seconds of load.
ON_SERVER: dict[str, tuple[Callable[[Target, int, int], str], int]] = {
    "http": (fuzz_http.run, 100_000),
    "json": (fuzz_json.run, 50_000),
    "constraints": (fuzz_constraints.run, 1_000),
    "bodies": (fuzz_bodies.run, 500),
    "embeddings": (embeddings.run, 2_000),
    "load": (load.run, 1_200),
}
ALONE: dict[str, tuple[Callable[[int, int], str], int]] = {
    "models": (fuzz_models.run, 1_000),
    "client": (fuzz_client.run, 1_000_000),
    "faults": (lambda n, seed: faults.run(), 1),
    "kills": (engine_kills.run, 200),
}


@contextlib.contextmanager
def target_at(
    url: str | None, *, keeps_going: bool = False, pid: int | None = None, n_parallel: str = N_PARALLEL
) -> Iterator[Target]:
    """The server at `url`, with the process `pid` if it is given; without `url`, a new one with the built-in model."""
    if url:
        yield Target(url, pid, keeps_going=keeps_going)
        return
    with running_process(*ARGUMENTS, n_parallel) as server:
        yield Target(server.url, server.process.pid, keeps_going=keeps_going)


def run(
    name: str, n: int | None, seed: int, url: str | None = None, *, keeps_going: bool = False, pid: int | None = None
) -> str:
    """Run one program; returns its line for the report.

    Raises:
        Broken: The server or the client violated a rule.
    """
    if name in ALONE:
        alone, default = ALONE[name]
        return alone(default if n is None else n, seed)
    on_server, default = ON_SERVER[name]
    n_parallel = N_STREAMS_OF_LOAD if name == "load" else N_PARALLEL
    with target_at(url, keeps_going=keeps_going, pid=pid, n_parallel=n_parallel) as target:
        line = on_server(target, default if n is None else n, seed)
    if target.faults:
        line += f"; {len(target.faults)} faults, the first: {target.faults[0][:300]}"
    return line


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("name", choices=[*ON_SERVER, *ALONE, "all"])
    parser.add_argument("--n", type=int, help="requests, files or seconds (default: those of the report)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--url", help="a running server, for the programs that need one")
    parser.add_argument("--pid", type=int, help="the process of that server, for its memory, threads and descriptors")
    parser.add_argument("--keep-going", action="store_true", help="count the faults of the server instead of ending")
    arguments = parser.parse_args()
    names = [*ON_SERVER, *ALONE] if arguments.name == "all" else [arguments.name]
    n_broken = 0
    for name in names:
        start = time.monotonic()
        try:
            keeps_going, pid = arguments.keep_going, arguments.pid
            line = run(name, arguments.n, arguments.seed, arguments.url, keeps_going=keeps_going, pid=pid)
        except Broken as error:
            n_broken, line = n_broken + 1, f"BROKEN: {error}"
        print(f"{name}: {line} ({time.monotonic() - start:.0f} s)", flush=True)
    return 1 if n_broken else 0


if __name__ == "__main__":
    sys.exit(main())
