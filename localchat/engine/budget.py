"""How long a model may think: counts the tokens of thinking, and ends it where its budget does. Pure.

Tokens are noted as they are drawn; `forced` says which one has to come next, if any. Thinking that ends by
itself in time is left alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from .constraint import TriggerWatch, rest_of_character
from .values import ThinkingLimit


class ThinkingBudget:
    """Follows one answer, token by token."""

    def __init__(self, limit: ThinkingLimit):
        self._limit = limit
        self._n_left = limit.max_tokens
        # The tokens that end the thinking, of those that are still to be said.
        self._closing: Sequence[int] = ()
        # Looks for the end of thinking while there is thinking, else for its start; None when neither can come.
        self._watch: TriggerWatch | None = None
        self._is_inside = False
        # What was said where nothing but a start of thinking could come.
        self._opening = b""
        # The bytes of a character that is not complete yet: thinking is not ended within one.
        self._begun = b""
        if limit.is_open:
            self._enter()
        else:
            self._leave(is_first=True)

    @property
    def forced(self) -> int | None:
        """The token that has to come next; None where the model is free."""
        return self._closing[0] if self._closing else None

    def note(self, token: int, piece: bytes) -> None:
        """The next token of the answer, with its bytes; a forced one if there was any."""
        if self._closing:
            assert token == self._closing[0], "something else was said than what had to be"
            self._closing = self._closing[1:]
            if not self._closing:
                self._leave()
        elif self._is_inside:
            self._think(piece)
        elif self._watch is not None:
            self._look(piece)

    def _enter(self) -> None:
        self._is_inside = True
        self._watch = TriggerWatch(self._limit.ends)
        self._close_if_spent()

    def _leave(self, *, is_first: bool = False) -> None:
        self._is_inside = False
        may_come = is_first or self._limit.may_repeat
        self._watch = TriggerWatch((self._limit.start,)) if may_come else None

    def _think(self, piece: bytes) -> None:
        assert self._watch is not None
        self._n_left -= 1
        self._begun = rest_of_character(self._begun + piece) or b""
        if self._watch.feed(piece) is not None:
            self._leave()
        else:
            self._close_if_spent()

    def _look(self, piece: bytes) -> None:
        assert self._watch is not None
        if self._watch.feed(piece) is not None:
            self._enter()
        elif not self._limit.may_repeat:
            # Such thinking stands at the beginning of an answer or not at all.
            self._opening = (self._opening + piece).lstrip()
            if not self._limit.start.encode().startswith(self._opening):
                self._watch = None

    def _close_if_spent(self) -> None:
        if self._n_left <= 0 and not self._begun:
            self._closing = self._limit.closing
