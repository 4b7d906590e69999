"""Measures how the engine's threads should wait for each other: tokens/s of decoding by threads and spin counts.

    python -m bench.threads MODEL.gguf                 every setting on an idle machine
    python -m bench.threads MODEL.gguf --busy 1        beside one process that keeps a core busy

llama.cpp's CPU threads wait for each other at a barrier after each operation. GOMP_SPINCOUNT is the number of times
that a thread checks the barrier before it sleeps. A spinning thread continues sooner, but takes the core from other
processes. OpenMP reads the variable when it is loaded, so each setting runs in its own process. Settings alternate
(A B A B); each figure is the median of its rounds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from itertools import product

from .loads import busy_processes

# 300000 is the default of OpenMP; with 0 a thread sleeps at once.
SPINS = (0, 200, 2_000, 5_000, 20_000, 300_000)


def main(arguments: list[str] | None = None) -> None:
    options = read_arguments(arguments)
    if options.child:
        print(decode_rate(options.model, options.threads[0], options.streams[0], options.seconds))
        return
    settings = [(threads, spins) for threads, spins in product(options.threads, options.spins) if threads > 1]
    settings += [(1, 0)] if 1 in options.threads else []
    rates: dict[tuple[int, int, int], list[float]] = {}
    with busy_processes(options.busy):
        for _ in range(options.rounds):
            for (threads, spins), streams in product(settings, options.streams):
                rate = measure(options.model, threads, spins, streams, options.seconds)
                rates.setdefault((threads, spins, streams), []).append(rate)
    print("tokens/s      " + "".join(f"{f'{n} streams':>12}" for n in options.streams))
    for threads, spins in settings:
        name = "1 thread" if threads == 1 else f"{threads} x {spins}"
        medians = [statistics.median(rates[threads, spins, streams]) for streams in options.streams]
        print(f"{name:<14}" + "".join(f"{median:>12.0f}" for median in medians), flush=True)


def read_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.threads", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", help="a GGUF file; bench.model writes one of any size")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, os.cpu_count() or 1])
    parser.add_argument("--spins", type=int, nargs="+", default=SPINS, help="values of GOMP_SPINCOUNT")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 16], help="sequences in a batch")
    parser.add_argument("--busy", type=int, default=0, help="processes that keep a core busy meanwhile")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def measure(model: str, threads: int, spins: int, streams: int, seconds: float) -> float:
    """Tokens per second of one setting, measured in its own process."""
    values = {"threads": threads, "streams": streams, "seconds": seconds}
    command = [sys.executable, "-m", "bench.threads", model, "--child"]
    command += [part for name, value in values.items() for part in (f"--{name}", str(value))]
    environment = {**os.environ, "GOMP_SPINCOUNT": str(spins)}
    child = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return float(child.stdout.split()[-1])


def decode_rate(path: str, n_threads: int, n_streams: int, seconds: float) -> float:
    """Tokens per second of greedy decoding in one batch, without server, scheduler and detokenization."""
    from localchat.serving.core.params import SamplingParams
    from localchat.serving.engine.batch import Batch, BatchChunk
    from localchat.serving.engine.llama import load_backend
    from localchat.serving.engine.sequence import Sequence
    from localchat.serving.engine.tuning import has_matrix_instructions
    from localchat.serving.engine.values import LoadOptions, SequenceRequest

    n_ctx = 1024
    options = LoadOptions(
        n_ctx=n_ctx,
        n_parallel=n_streams,
        n_threads=n_threads,
        use_extra_bufts=not has_matrix_instructions(),  # They crash on some machines.
    )
    backend = load_backend(path, options)
    sampler = backend.new_sampler(SequenceRequest((0,), sampling=SamplingParams(temperature=0)))
    sequences = [Sequence(i, [i + 1], n_ctx) for i in range(n_streams)]
    for slot, sequence in enumerate(sequences):
        sequence.slot = slot

    def step() -> None:
        batch = Batch(tuple(BatchChunk(sequence, slot, 1, True) for slot, sequence in enumerate(sequences)))
        backend.decode(batch)
        for slot, sequence in enumerate(sequences):
            sequence.n_computed += 1
            sequence.tokens.append(backend.sample(sampler, slot))

    for _ in range(8):
        step()
    n_steps, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds and n_steps < n_ctx - 16:
        step()
        n_steps += 1
    rate = n_steps * n_streams / (time.perf_counter() - started)
    backend.close()
    return rate


if __name__ == "__main__":
    main()
