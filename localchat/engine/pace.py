"""How much of the prompts a turn may read while others wait for their next token. Pure: is told the times."""

from __future__ import annotations

# A gap that reads as a stream still: a turn with a part of a prompt takes about this long.
GAP_S = 0.1
# Less of a prompt than this in a turn costs more than it saves.
MIN_TOKENS = 32
# Turns differ: one slow turn is no reason to read a prompt in crumbs.
_WEIGHT_OF_NEW = 0.3


class PromptPace:
    """Fits the share of prompts in a turn to the measured speed."""

    def __init__(self, gap_s: float = GAP_S):
        self._gap_s = gap_s
        self._tokens_per_s = 0.0

    def note(self, n_tokens: int, turn_s: float) -> None:
        """A turn computed so many tokens in so many seconds; small turns say nothing of prompts."""
        if n_tokens < MIN_TOKENS or turn_s <= 0:
            return
        speed = n_tokens / turn_s
        weight = _WEIGHT_OF_NEW if self._tokens_per_s else 1.0
        self._tokens_per_s += weight * (speed - self._tokens_per_s)

    @property
    def n_tokens(self) -> int:
        """Prompt tokens for a turn."""
        return max(MIN_TOKENS, int(self._tokens_per_s * self._gap_s))
