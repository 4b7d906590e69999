"""Ends the reasoning of a sequence at its budget: finds its tags in the text, and forces the tokens that end it."""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence

from .values import ReasoningBudget


class ReasoningTracker:
    """Reads the tokens of one sequence. A call may end the reasoning, so the marker of a call counts as an end tag."""

    def __init__(self, budget: ReasoningBudget, closing: Sequence[int]) -> None:
        """`closing` are the tokens of `budget.closing`."""
        self.is_open = budget.is_open
        self._budget = budget
        self._ends = re.compile("|".join(map(re.escape, budget.ends)))
        self._longest = max(map(len, (budget.start, *budget.ends)))
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        # The text that may begin a tag.
        self._text = ""
        self._may_open = not budget.is_open
        self._n_left = budget.n_tokens
        # All tokens that end the reasoning, and those that are still to come.
        self._end = closing
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
        if not (self.is_open or self._may_open):
            return
        is_forced, was_open = bool(self._closing), self.is_open
        self._closing = self._closing[1:]
        self._text += self._decoder.decode(piece)
        if was_open:
            self._n_left -= not is_forced
            self._find_end()
        else:
            self._find_start()
        if not self.is_open:
            self._closing, self._is_closed = (), False
        self._force_end_if_due()

    def _find_start(self) -> None:
        start, text = self._budget.start, self._text
        at = text.find(start)
        self.is_open = at >= 0 and (self._budget.opens_anywhere or not text[:at].strip())
        if self.is_open:
            self._may_open, self._text = False, text[at + len(start) :]
        elif self._budget.opens_anywhere:
            self._text = text[-self._longest :]
        else:
            self._may_open = start.startswith(text.lstrip())

    def _find_end(self) -> None:
        found = self._ends.search(self._text)
        if found is None:
            self._text = self._text[-self._longest :]
        else:
            self.is_open, self._may_open = False, self._budget.opens_anywhere
            self._text = self._text[found.end() :]

    def _force_end_if_due(self) -> None:
        """Force the end of open reasoning if its budget is used up and the last character is complete."""
        is_within_character = bool(self._decoder.getstate()[0])
        if self._n_left <= 0 and self.is_open and not (self._closing or self._is_closed or is_within_character):
            self._closing, self._is_closed = self._end, True
