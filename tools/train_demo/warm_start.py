"""Initial weights and data with which a model learns copying quickly.

A transformer copies with two attention heads (an induction circuit): one attends to the previous token, the other to
the position after an earlier occurrence of the current token. A small model needs millions of tokens to learn both. So
the first layer begins with previous-token heads whose weights are set by hand, and the other heads are trained on
random tokens that repeat. The heads read one channel of the embedding, which has the same value for all tokens. The
training does not change this channel, since the heads depend on its value.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from .model import DemoModel

CONSTANT_CHANNEL = 0
_CONSTANT = 0.25  # Five times the standard deviation of the embedding.
_STRENGTH = 1.4  # The weight of the channel in keys and queries.
_PAIRS = 4  # How many of the fastest RoPE pairs are used: these distinguish neighbouring positions.
_DISTANCES = ((1, 2), (1, 3))  # For each KV head, how many tokens back each of its query heads attends.
_PERIODS = (4, 40)


@torch.no_grad()
def set_previous_token_heads(model: DemoModel) -> None:
    """Make heads of the first layer attend one, two and three tokens back, for all tokens."""
    c = model.config
    model.embedding[:, CONSTANT_CHANNEL] = _CONSTANT
    keys_at = c.heads * c.head_dim
    weights = model.qkv[0]
    for kv_head, distances in enumerate(_DISTANCES):
        first_key = keys_at + kv_head * c.head_dim
        weights[first_key : first_key + c.head_dim] = 0
        weights[first_key : first_key + 2 * _PAIRS : 2, CONSTANT_CHANNEL] = _STRENGTH
        for i, distance in enumerate(distances):
            first = (kv_head * (c.heads // c.kv_heads) + i) * c.head_dim
            weights[first : first + c.head_dim] = 0
            for pair in range(_PAIRS):
                angle = -distance * c.rope_base ** (-2 * pair / c.head_dim)
                weights[first + 2 * pair, CONSTANT_CHANNEL] = _STRENGTH * math.cos(angle)
                weights[first + 2 * pair + 1, CONSTANT_CHANNEL] = _STRENGTH * math.sin(angle)


def repeated_tokens(generator: torch.Generator, vocab_size: int, rows: int, length: int) -> torch.Tensor:
    """Uniform random tokens [rows, length + 1]; each row repeats with its own period."""
    tokens = torch.randint(0, vocab_size, (rows, length + 1), generator=generator)
    periods = torch.randint(*_PERIODS, (rows, 1), generator=generator)
    return tokens.gather(1, torch.arange(length + 1)[None] % periods)


def repetition_loss(model: DemoModel, tokens: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Cross entropy in nats per token after the longest period, from which on all tokens are determined."""
    hidden = model(tokens[:, :-1], dtype)[:, _PERIODS[1] :]
    targets = tokens[:, 1 + _PERIODS[1] :]
    return F.cross_entropy(model.logits(hidden).float().flatten(0, 1), targets.flatten())
