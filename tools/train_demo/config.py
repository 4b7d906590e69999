"""The sizes of the model and the settings of its training.

A llama-architecture model of these sizes has 4.9 million parameters, which take 3.98 MB as `export.py` stores them. The
limit of the file is 4 MB.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_FILE_BYTES = 4_000_000


@dataclass(frozen=True)
class ModelConfig:
    """The shape of the network, with the names of GGUF metadata if it has one."""

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
    """All settings that change the result of a run, except the data."""

    tokens: int = 457_000_000
    batch_tokens: int = 6144
    seed: int = 2026
    warmup_steps: int = 30
    muon_lr: float = 0.01
    adam_lr: float = 0.0015
    # Weight of the tokens of the prompt. They teach copying, and train the embedding of every token.
    prompt_weight: float = 0.08
    # Weight of the first tokens of an output: they decide between a call, reasoning and one of many texts.
    opening_weight: float = 4.0
    save_every_s: float = 150.0
