"""Runs one reliability program, or all: `python -m tests.soak http --n 1000`, `python -m tests.soak all`."""

import argparse
import contextlib
import sys
import time
from collections.abc import Callable

from . import clients, fuzz, mcp, outputs, protocol
from .target import running_target

ARGUMENTS = ("--ctx", "512", "--max-tokens", "16", "--queue", "600", "--parallel")
# The programs, each with the length of its run by `make soak` (requests, files, kills, rounds, outputs, or seconds of
# load), and the arguments of its server, which has the built-in model.
PROGRAMS: dict[str, tuple[Callable[..., str], int, tuple[str, ...]]] = {
    "http": (fuzz.http, 100_000, (*ARGUMENTS, "8")),
    "json": (fuzz.json_bodies, 50_000, (*ARGUMENTS, "8")),
    "constraints": (fuzz.constraints, 1_000, (*ARGUMENTS, "8")),
    "load": (clients.load, 1_200, (*ARGUMENTS, "64")),
    # No ordinary request waits for a slot: beside other programs that takes longer than the engine to start.
    "kills": (clients.kills, 200, ("--parallel", "32")),
    # These start their own servers.
    "models": (fuzz.models, 1_000, ()),
    "media": (fuzz.media, 20_000, ()),
    "protocol": (protocol.protocol, 1_000, ()),
    "mcp": (mcp.damaged_messages, 20_000, ()),
    "mcp_processes": (mcp.starts, 1_000, ()),
    "outputs": (outputs.outputs, 100_000, ()),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("name", choices=[*PROGRAMS, "all"])
    parser.add_argument("--n", type=int, help="the length of the run (default: that of the report)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    n_broken = 0
    for name in PROGRAMS if options.name == "all" else [options.name]:
        program, n, arguments = PROGRAMS[name]
        start = time.monotonic()
        try:
            with contextlib.ExitStack() as stack:
                targets = [stack.enter_context(running_target(*arguments))] if arguments else []
                line = program(*targets, n if options.n is None else options.n, options.seed)
        except AssertionError as error:
            n_broken, line = n_broken + 1, f"BROKEN: {error}"
        print(f"{name}: {line} ({time.monotonic() - start:.0f} s)", flush=True)
    return 1 if n_broken else 0


if __name__ == "__main__":
    sys.exit(main())
