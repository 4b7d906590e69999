"""The response body of GET /slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SequenceStats:
    """A running sequence as GET /slots shows it, without its text. All counts are in tokens."""

    id: int
    n_prompt: int
    n_cached: int
    """Tokens of the prompt that were in the KV cache before."""
    n_computed: int
    """Tokens that are in the KV cache."""
    n_sampled: int
    max_length: int
    """The limit of prompt and output together."""


def slots_body(running: Sequence[SequenceStats], n_parallel: int, n_ctx: int) -> list[dict[str, Any]]:
    """The body of GET /slots: `n_parallel` entries, first those of running sequences, then those of idle slots."""
    busy = [_slot(sequence) for sequence in running[:n_parallel]]
    idle = [{"is_processing": False}] * (n_parallel - len(busy))
    return [{"id": i, "n_ctx": n_ctx, **slot} for i, slot in enumerate([*busy, *idle])]


def _slot(sequence: SequenceStats) -> dict[str, Any]:
    n_left = sequence.max_length - sequence.n_prompt - sequence.n_sampled
    return {
        "is_processing": True,
        "id_task": sequence.id,
        "n_prompt_tokens": sequence.n_prompt,
        "n_prompt_tokens_processed": min(sequence.n_computed, sequence.n_prompt),
        "n_prompt_tokens_cache": sequence.n_cached,
        "next_token": [{"has_next_token": n_left > 0, "n_remain": n_left, "n_decoded": sequence.n_sampled}],
    }
