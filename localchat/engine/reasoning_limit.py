"""What the engine knows of a limit on reasoning: an object that reads the sampled tokens and may force the next one.

The engine does not know how a model marks its reasoning. A request brings a `ReasoningLimit`, and the sampler of
each sequence asks it for a tracker of its own. `localchat.dialects.reasoning` has the implementation.
"""

from __future__ import annotations

from typing import Protocol


class ForcedTokens(Protocol):
    """Reads one sequence token by token."""

    @property
    def forced_token(self) -> int | None:
        """The token that has to come next; None where the sampler is free."""

    def feed(self, piece: bytes) -> None:
        """The bytes of the next token: of the forced one if there is any."""


class ReasoningLimit(Protocol):
    """Belongs to a request, of which several sequences may be made."""

    def tracker(self) -> ForcedTokens:
        """A new tracker, before the first token of a sequence."""
