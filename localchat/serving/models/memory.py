"""The memory of other models, the class of the error for too little memory, and how sizes are written."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.errors import InferenceError


@dataclass(frozen=True)
class OtherModels:
    """The memory of the other models that the server has loaded, in bytes."""

    n_mapped: int = 0  # Weights that are mapped from files. The system counts this memory as free.
    # The memory of the models that no request uses, which can be ended: on the machine, and on GPUs.
    n_idle: int = 0
    n_idle_on_gpus: int = 0


class NotEnoughMemory(InferenceError):
    """A model does not fit into the free memory, or would fit better without the idle models."""

    def __init__(self, message: str, n_missing: float = 0):
        super().__init__(message)
        # The missing bytes; 0: it fits, but would have more layers on the GPUs or more context without idle models.
        self.n_missing = n_missing

    @property
    def would_fit(self) -> bool:
        """Whether the model fits, but would fit better without the idle models."""
        return not self.n_missing


def gigabytes(n_bytes: float) -> str:
    """A size for people, such as "0.7 GB" or "12 MB"."""
    return f"{n_bytes / 1e6:.0f} MB" if n_bytes < 1e8 else f"{n_bytes / 1e9:.1f} GB"
