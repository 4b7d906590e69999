"""Ends the reasoning of a sequence at its budget: reads its tags in the text, and forces the tokens that end it."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from ..core.reasoning import ReasoningReader
from ..core.scan import Cursor, Markers, Reader
from .values import ReasoningBudget


class ReasoningTracker:
    """Reads the tokens of one sequence. A call may end the reasoning, so the marker of a call counts as an end tag."""

    def __init__(self, budget: ReasoningBudget, closing: Sequence[int]) -> None:
        """`closing` are the tokens of `budget.closing`."""
        self._markers = budget.markers
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._cursor = Cursor()
        self._reasoning = ReasoningReader(budget.markers, self._cursor)
        self._reader = self._read()
        self._n_left = budget.n_tokens
        self._end_tokens = closing  # The tokens that end the reasoning.
        self._still_forced: Sequence[int] = ()  # Those of them that must come next.
        # Whether the budget has ended the reasoning that is open, so that it is not ended again.
        self._was_ended = False
        self._force_end_if_due()

    @property
    def is_open(self) -> bool:
        """Whether the tokens so far end inside reasoning."""
        return self._reasoning.is_open

    @property
    def forced_token(self) -> int | None:
        """The token that must come next; None: the next token is sampled."""
        return self._still_forced[0] if self._still_forced else None

    def feed(self, piece: bytes) -> None:
        """Feed the bytes of the next token. If `forced_token` is set, this must be that token."""
        if not self._reasoning.may_open:
            return
        is_forced, self._still_forced = bool(self._still_forced), self._still_forced[1:]
        if self.is_open and not is_forced:
            self._n_left -= 1
        self._cursor.feed(self._decoder.decode(piece))
        next(self._reader, None)
        if not self.is_open:
            self._still_forced, self._was_ended = (), False
        self._force_end_if_due()

    def _read(self) -> Reader[None]:
        """Read the output to the end of the last reasoning."""
        cursor, reasoning, start = self._cursor, self._reasoning, Markers(self._markers.start)
        while reasoning.may_open:
            if not reasoning.is_open and self._markers.opens_anywhere:
                marker = yield from cursor.emit_until(start, _drop, holds_space=False)
                cursor.take(len(marker or ""))
            elif not reasoning.is_open and not (yield from reasoning.read_start()):
                return
            marker = yield from reasoning.read_text(_drop, holds_space=False)
            cursor.take(len(marker or ""))
            reasoning.close()

    def _force_end_if_due(self) -> None:
        """Force the end of open reasoning if its budget is used up and the last character is complete."""
        is_within_character = bool(self._decoder.getstate()[0])
        if self._n_left <= 0 and self.is_open and not (self._still_forced or self._was_ended or is_within_character):
            self._still_forced, self._was_ended = self._end_tokens, True


def _drop(text: str) -> None:
    """Emit nothing: the tokens are delivered elsewhere."""
