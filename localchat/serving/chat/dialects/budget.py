"""The budget of reasoning tokens. The engine process imports this module, so it imports no templates or interfaces."""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence
from typing import Any

from .dialect import Dialect
from .parser import OutputParser


class ReasoningTracker:
    """Ends the reasoning of one output at its budget. This is the engine's BudgetTracker.

    The tracker has its own parser, which gets the bytes of all tokens, including control tokens.
    """

    def __init__(self, dialect: Dialect, options: Mapping[str, Any], max_tokens: int, closing: Sequence[int]) -> None:
        """Start before the first token of an output.

        Args:
            dialect: The dialect of the model.
            options: The options of the parser of the output.
            max_tokens: The limit of reasoning tokens.
            closing: The tokens that end the reasoning: those of the budget message, then those of the end tag.
        """
        self._parser = OutputParser(dialect, **options)
        self._end = closing
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._n_left = max_tokens
        # The forced tokens that are still to come.
        self._closing: Sequence[int] = ()
        # Whether the budget has closed the open reasoning, so that it is not closed again.
        self._is_closed = False
        self._force_end_if_due()

    @property
    def is_open(self) -> bool:
        """Whether reasoning is open after the tokens so far."""
        return self._parser.reasoning_is_open

    @property
    def forced_token(self) -> int | None:
        """The token that must come next; None: the next token is sampled."""
        return self._closing[0] if self._closing else None

    def feed(self, piece: bytes) -> None:
        """Feed the bytes of the next token. If `forced_token` is set, this must be that token."""
        was_open, is_forced = self.is_open, bool(self._closing)
        if not was_open and not self._parser.reasoning_may_open:
            return
        self._closing = self._closing[1:]
        self._parser.feed(self._decoder.decode(piece))
        if not self.is_open or not was_open:
            self._closing = ()
            self._is_closed = False
        if was_open and not is_forced:
            self._n_left -= 1
        self._force_end_if_due()

    def _force_end_if_due(self) -> None:
        """Force the end of open reasoning if its budget is used up and the last character is complete."""
        is_within_character = bool(self._decoder.getstate()[0])
        if self._n_left <= 0 and self.is_open and not (self._closing or self._is_closed or is_within_character):
            self._closing = self._end
            self._is_closed = True
