"""Training on several cores: one process per core, with averaged gradients.

With small matrices, threads would mostly wait for each other; processes exchange data only a few times per step. All
workers begin with the same weights and make the same updates, so only their batches differ.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing


def count() -> int:
    """The number of workers."""
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    """The number of this worker. Worker 0 does the work that is done once."""
    return dist.get_rank() if dist.is_initialized() else 0


def run(n: int, work: Callable[..., None], *arguments: Any) -> None:
    """Call `work` in `n` processes that can exchange data, or in this process if `n` is 1.

    Raises:
        torch.multiprocessing.ProcessRaisedException: A worker raised an error. The others are ended.
    """
    if n == 1:
        work(*arguments)
        return
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(found.getsockname()[1]))
    torch.multiprocessing.spawn(_join, (n, work, arguments), nprocs=n)


def _join(rank: int, n: int, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    # The system sends this signal when the command ends. In a background job it is ignored by default.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=n)
    try:
        work(*arguments)
    finally:
        dist.destroy_process_group()


def average(gradients: Iterable[torch.Tensor]) -> None:
    """Replace gradients by their mean over all workers."""
    if count() > 1:
        for gradient in gradients:
            dist.all_reduce(gradient)
            gradient /= count()


def add_up(values: torch.Tensor) -> None:
    """Replace values by their sum over all workers."""
    if count() > 1:
        dist.all_reduce(values)


def total(value: float) -> float:
    """The sum of a number over all workers."""
    if count() == 1:
        return value
    shared = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(shared)
    return float(shared)


def agreed(choice: int) -> int:
    """The choice of the first worker."""
    if count() == 1:
        return choice
    shared = torch.tensor(choice)
    dist.broadcast(shared, 0)
    return int(shared)
