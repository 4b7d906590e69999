"""A start from which copying is learned at once.

Copying takes two steps in a transformer: a head that looks at the previous token, then one that
finds where the present token was preceded by the same. Small models take millions of tokens to
stumble on the pair. So the first layer begins with previous-token heads set by hand, and the second
step is practised on random tokens that repeat. The heads read one channel of the embedding, the same
for all tokens; it stays fixed, since its drift would blind them.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from .model import DemoModel

CONSTANT_CHANNEL = 0
_CONSTANT = 0.25  # five times the usual embedding
_STRENGTH = 1.4  # weight by which keys and queries read that channel
_PAIRS = 4  # fastest RoPE pairs: they tell neighbouring positions apart
_DISTANCES = ((1, 2), (1, 3))  # per KV head: how far back each of its query heads looks
_PERIODS = (4, 40)


@torch.no_grad()
def set_previous_token_heads(model: DemoModel) -> None:
    """Let heads of the first layer look one, two and three tokens back, whatever the tokens are."""
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
    """Rows [rows, length + 1] of uniform random tokens, each row repeating with its own period."""
    tokens = torch.randint(0, vocab_size, (rows, length + 1), generator=generator)
    periods = torch.randint(*_PERIODS, (rows, 1), generator=generator)
    return tokens.gather(1, torch.arange(length + 1)[None] % periods)


def repetition_loss(model: DemoModel, tokens: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Cross entropy in nats per token after the longest period, where every row has repeated."""
    hidden = model(tokens[:, :-1], dtype)[:, _PERIODS[1] :]
    targets = tokens[:, 1 + _PERIODS[1] :]
    return F.cross_entropy(model.logits(hidden).float().flatten(0, 1), targets.flatten())
