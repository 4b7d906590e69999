"""Reasoning: its tags, whether a prompt leaves it open, and the tracker that enforces a budget."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .parser import OutputParser


class ReasoningStart(Enum):
    """Whether reasoning is open, possible or closed before the first token of an output."""

    OPEN = auto()  # The prompt ends inside reasoning.
    POSSIBLE = auto()  # The output may begin with reasoning.
    CLOSED = auto()  # The prompt ends after reasoning.


@dataclass(frozen=True)
class ReasoningTags:
    """The tags around reasoning. A prompt may end with the start tag."""

    start: str
    end: str

    def are_in(self, template: str) -> bool:
        """Whether a template contains both tags."""
        return self.start in template and self.end in template

    def start_state(self, prompt: str) -> ReasoningStart:
        """Whether reasoning is open, possible or closed at the end of a prompt."""
        prompt = prompt.rstrip()
        if prompt.endswith(self.start):
            return ReasoningStart.OPEN
        return ReasoningStart.CLOSED if prompt.endswith(self.end) else ReasoningStart.POSSIBLE


THINK = ReasoningTags("<think>", "</think>")

# Tags that no family declares: some models use them instead of the tags of their family.
MORE_TAGS: tuple[ReasoningTags, ...] = (
    ReasoningTags("[THINK]", "[/THINK]"),
    ReasoningTags("<thinking>", "</thinking>"),
    ReasoningTags("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
)


@dataclass(frozen=True)
class ReasoningBudget:
    """The limit of reasoning tokens of an output, and the tokens that are forced at the limit."""

    max_tokens: int
    closing: tuple[int, ...]
    """The tokens that end the reasoning: those of the budget message, then those of the end tag."""


class ReasoningTracker:
    """Ends the reasoning of one output at its budget. This is the engine's BudgetTracker.

    The tracker has its own parser, which gets the bytes of all tokens, including control tokens.
    """

    def __init__(self, parser: OutputParser, budget: ReasoningBudget) -> None:
        """Start before the first token of an output. Only this tracker may feed the parser."""
        self._parser = parser
        self._budget = budget
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._n_left = budget.max_tokens
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
            self._closing = self._budget.closing
            self._is_closed = True
