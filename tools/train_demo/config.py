"""The sizes of the model and of its training, in one place.

A llama-architecture model of these sizes has 4.9 million parameters, 3.98 MB as `export.py` stores them; the file
may have at most 4 MB.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_FILE_BYTES = 4_000_000


@dataclass(frozen=True)
class ModelConfig:
    """Shape of the network, named as in GGUF metadata where GGUF has a name."""

    vocab_size: int = 1536
    width: int = 256
    layers: int = 7
    heads: int = 8
    kv_heads: int = 4
    head_dim: int = 32
    feed_forward: int = 576
    rope_base: float = 1e6
    norm_eps: float = 1e-5
    context: int = 4096


@dataclass(frozen=True)
class TrainConfig:
    """Everything that decides the result of a run besides the data."""

    tokens: int = 457_000_000
    batch_tokens: int = 6144
    seed: int = 2026
    warmup_steps: int = 30
    muon_lr: float = 0.01
    adam_lr: float = 0.0015
    # The prompt's tokens keep a little weight: they teach copying, and train every symbol's row.
    prompt_weight: float = 0.08
    # An answer's first tokens have more: they decide between a call, a thought and one of many texts.
    opening_weight: float = 4.0
    save_every_s: float = 150.0
