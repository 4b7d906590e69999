"""Random outputs of every model family, parsed whole and at random cuts, on all cores."""

from __future__ import annotations

import multiprocessing
import os
import random

from localchat.serving.chat.dialects import DIALECTS
from tests.support import random_outputs

# The outputs of one task of a process.
BATCH = 1000


def outputs(n: int, seed: int) -> str:
    """Parse `n` outputs of each family. Nothing of them is lost, and the cuts change nothing."""
    tasks = [(name, seed + start, min(BATCH, n - start)) for start in range(0, n, BATCH) for name in DIALECTS]
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        for _ in pool.imap_unordered(_check, tasks):
            pass
    return f"{n:,} random outputs for each of {len(DIALECTS)} families: nothing is lost at any cut"


def _check(task: tuple[str, int, int]) -> None:
    name, first, n = task
    for seed in range(first, first + n):
        try:
            random_outputs.check(name, random.Random(f"{name} {seed}"))
        except Exception as error:  # Of the parser, too.
            raise AssertionError(f"seed {seed} of {name}: {error!r}") from error
