"""Ends the reasoning of a sequence at its budget: finds its tags in the text, and forces the tokens that end it."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from ..core.scan import Cursor, Markers, Reader
from .values import ReasoningBudget


class ReasoningTracker:
    """Reads the tokens of one sequence. A call may end the reasoning, so the marker of a call counts as an end tag."""

    def __init__(self, budget: ReasoningBudget, closing: Sequence[int]) -> None:
        """`closing` are the tokens of `budget.closing`."""
        self.is_open = budget.is_open
        self._budget = budget
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._cursor = Cursor()
        self._reader = self._read()
        self._may_open = True  # Whether reasoning is open or can still begin.
        self._n_left = budget.n_tokens
        # All tokens that end the reasoning, and those that are still to come.
        self._all_closing = closing
        self._closing: Sequence[int] = ()
        # Whether the budget has closed the open reasoning, so that it is not closed again.
        self._is_closed = False
        self._force_end_if_due()

    @property
    def forced_token(self) -> int | None:
        """The token that must come next; None: the next token is sampled."""
        return self._closing[0] if self._closing else None

    def feed(self, piece: bytes) -> None:
        """Feed the bytes of the next token. If `forced_token` is set, this must be that token."""
        if not self._may_open:
            return
        is_forced, self._closing = bool(self._closing), self._closing[1:]
        if self.is_open and not is_forced:
            self._n_left -= 1
        self._cursor.feed(self._decoder.decode(piece))
        next(self._reader, None)
        if not self.is_open:
            self._closing, self._is_closed = (), False
        self._force_end_if_due()

    def _read(self) -> Reader[None]:
        """Set `is_open` at each tag."""
        cursor, budget = self._cursor, self._budget
        start, ends = Markers(budget.start), Markers(*budget.ends)
        while True:
            if not self.is_open and budget.opens_anywhere:
                yield from _skip_to(start, cursor)
            elif not self.is_open and not (yield from cursor.read_whole(budget.start)):
                break
            self.is_open = True
            yield from _skip_to(ends, cursor)
            self.is_open = False
            if not budget.opens_anywhere:
                break
        self._may_open = False

    def _force_end_if_due(self) -> None:
        """Force the end of open reasoning if its budget is used up and the last character is complete."""
        is_within_character = bool(self._decoder.getstate()[0])
        if self._n_left <= 0 and self.is_open and not (self._closing or self._is_closed or is_within_character):
            self._closing, self._is_closed = self._all_closing, True


def _skip_to(markers: Markers, cursor: Cursor) -> Reader[None]:
    """Read the text up to one of these markers, and the marker."""
    marker = yield from cursor.emit_until(markers, lambda text: None, holds_space=False)
    cursor.take(len(marker or ""))
