"""The protocols of a limit of reasoning tokens: a tracker reads the sampled tokens and may force the next one.

The engine does not know the markers of reasoning. A request has a `ReasoningLimit`, from which the sampler of each
sequence gets its own tracker. `localchat.generation.reasoning` implements the limit, `localchat.dialects.reasoning` the
tracker and its `ReasoningBudget`: the number of tokens, and the tokens that are forced at that number.
"""

from __future__ import annotations

from typing import Protocol


class ForcedTokens(Protocol):
    """A tracker of one sequence."""

    @property
    def forced_token(self) -> int | None:
        """The token that must come next; None if the sampler may choose."""

    def feed(self, piece: bytes) -> None:
        """Enters the bytes of the next token, which is the forced one if there is one."""


class ReasoningLimit(Protocol):
    """The limit of a request, for each of its sequences."""

    def tracker(self) -> ForcedTokens:
        """A new tracker for a sequence without tokens."""
