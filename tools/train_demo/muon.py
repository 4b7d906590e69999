"""The optimiser Muon for stacks of matrices: momentum with orthogonal updates.

Newton-Schulz steps bring the singular values of each update near one, so that all directions of a matrix learn at the
same speed. AdamW trains embeddings and norms.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from . import workers

# Coefficients of a quintic that, applied repeatedly, moves singular values from (0, 1] towards one.
QUINTIC = (3.4445, -4.7750, 2.0315)


def orthogonalise(matrices: torch.Tensor, steps: int = 5, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Nearly orthogonal matrices with the same singular directions, for a stack [n, rows, cols].

    A `dtype` of 16 bits is exact enough; whether it is faster depends on the machine.
    """
    a, b, c = QUINTIC
    wide = matrices.shape[-2] <= matrices.shape[-1]
    x = matrices if wide else matrices.mT
    x = (x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)).to(dtype)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x if wide else x.mT).float()


class Muon(torch.optim.Optimizer):
    """Nesterov momentum and orthogonal updates.

    Args:
        params: Pairs of a parameter [layers, rows, columns] and the row counts of the matrices that it joins, such as
            (256, 128, 128) for q, k and v.
        dtype: The type in which updates are made orthogonal.
    """

    def __init__(
        self,
        params: Iterable[tuple[torch.Tensor, tuple[int, ...]]],
        lr: float,
        momentum: float = 0.95,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        groups = [{"params": [tensor], "rows": rows} for tensor, rows in params]
        super().__init__(groups, {"lr": lr, "momentum": momentum})
        self._dtype = dtype

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # we never pass a closure
        """Apply one update from the gradients."""
        for group in self.param_groups:
            (param,) = group["params"]
            velocity = self.state[param].setdefault("velocity", torch.zeros_like(param))
            velocity.lerp_(param.grad, 1 - group["momentum"])
            update = param.grad.lerp(velocity, group["momentum"])
            # All workers have the same gradients. Each computes the updates of some layers; the sum has all of them.
            mine = slice(workers.rank(), None, workers.count())
            changes = torch.zeros_like(param)
            for part, change in zip(update.split(group["rows"], 1), changes.split(group["rows"], 1)):
                scale = max(1.0, part.shape[-2] / part.shape[-1]) ** 0.5
                change[mine] = scale * orthogonalise(part[mine], dtype=self._dtype)
            workers.add_up(changes)
            param.add_(changes, alpha=-group["lr"])
