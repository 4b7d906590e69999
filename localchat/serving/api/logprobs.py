"""Encodes log probabilities, in the format of chat completions and of vLLM's `prompt_logprobs`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..core.events import OutputToken

# Replaces minus infinity, which JSON cannot represent.
LOGPROB_FLOOR = -9999.0


def logprob_entry(token: OutputToken, *, as_ids: bool = False, after_sampling: bool = False) -> dict[str, Any]:
    """One entry of `logprobs.content`: a token, and the likeliest tokens at its position.

    With `as_ids`, tokens are shown as "token_id:N". With `after_sampling`, the entry has probabilities instead of
    their logarithms, under llama.cpp's names.
    """
    own = _entry(token.id, token.piece, token.logprob or 0.0, as_ids, after_sampling)
    top = [_entry(other.token, other.piece, other.logprob, as_ids, after_sampling) for other in token.top]
    return {**own, "top_probs" if after_sampling else "top_logprobs": top}


def native_entry(token: OutputToken, *, after_sampling: bool) -> dict[str, Any]:
    """One entry of llama.cpp's `completion_probabilities`: like `logprob_entry`, with the id of each token."""
    entry = logprob_entry(token, after_sampling=after_sampling)
    name = "top_probs" if after_sampling else "top_logprobs"
    top = [{"id": other.token, **value} for other, value in zip(token.top, entry[name])]
    return {"id": token.id, **entry, name: top}


def prompt_logprobs(tokens: Sequence[OutputToken], n_top: int) -> list[Any]:
    """vLLM's `prompt_logprobs`, a list with an entry for each token. The first is null: no token precedes it."""
    return [None if token.logprob is None else _prompt_entry(token, n_top) for token in tokens]


def id_text(id: int) -> str:
    """vLLM's notation of a token by its id."""
    return f"token_id:{id}"


def floored(logprob: float) -> float:
    return max(logprob, LOGPROB_FLOOR)


def _entry(id: int, piece: bytes, logprob: float, as_ids: bool, after_sampling: bool) -> dict[str, Any]:
    text = id_text(id) if as_ids else piece.decode("utf-8", "replace")
    value = {"prob": math.exp(logprob)} if after_sampling else {"logprob": floored(logprob)}
    return {"token": text, **value, "bytes": list(piece)}


def _prompt_entry(token: OutputToken, n_top: int) -> dict[str, Any]:
    """A token and the likeliest tokens at its position, by id. The rank is null for a token that is not among these."""
    top = [(other.token, other.piece, other.logprob) for other in token.top[:n_top]]
    ranks = {id: rank for rank, (id, _, _) in enumerate(top, 1)}
    return {
        str(id): {
            "logprob": floored(logprob),
            "rank": ranks.get(id),
            "decoded_token": piece.decode("utf-8", "replace"),
        }
        for id, piece, logprob in ((token.id, token.piece, token.logprob or 0.0), *top)
    }
