"""Reasoning: its tags, whether a prompt leaves it open, and the tracker that counts its tokens and enforces a budget.

`ReasoningTracker` follows reasoning token by token, for the usage and for the budget. It uses the parser of the
dialect, so that counts and events agree.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from ...core.events import Event, ReasoningDelta


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


class ReasoningParser(Protocol):
    """The methods of `OutputParser` that the tracker uses."""

    @property
    def reasoning_is_open(self) -> bool: ...

    @property
    def reasoning_may_open(self) -> bool: ...

    def feed(self, text: str) -> list[Event]: ...

    def finish(self) -> list[Event]: ...


class ReasoningTracker:
    """Follows the reasoning of one output: whether it is open, its number of tokens, and the tokens a budget forces.

    The tracker has its own parser, which gets the bytes of all tokens, including control tokens.
    """

    def __init__(self, parser: ReasoningParser, budget: ReasoningBudget | None) -> None:
        """Start before the first token of an output.

        Args:
            parser: A new parser, which only this tracker may feed.
            budget: The limit at which `forced_token` ends reasoning; None: no limit.
        """
        self._parser = parser
        self._budget = budget
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._is_open = parser.reasoning_is_open
        # The number of tokens so far that may be the start tag, which counts as reasoning; None: the start tag has been
        # counted, or the output does not begin with one.
        self._n_start_tokens: int | None = 0
        self._n_tokens = 0
        # Whether there is text between the tags. Empty reasoning counts no tokens.
        self._has_text = False
        self._n_left = budget.max_tokens if budget else None
        # The forced tokens that are still to come.
        self._closing: Sequence[int] = ()
        # Whether the budget has closed the open reasoning, so that it is not closed again.
        self._is_closed = False
        self._force_end_if_due()

    @property
    def is_open(self) -> bool:
        """Whether reasoning is open after the tokens so far."""
        return self._is_open

    @property
    def is_over(self) -> bool:
        """Whether the output can have no more reasoning."""
        return not self._is_open and not self._parser.reasoning_may_open

    @property
    def n_tokens(self) -> int:
        """The tokens of reasoning so far, including tags; 0 while there is no text between the tags."""
        return self._n_tokens if self._has_text else 0

    @property
    def forced_token(self) -> int | None:
        """The token that must come next; None: the next token is sampled."""
        return self._closing[0] if self._closing else None

    def feed(self, piece: bytes) -> None:
        """Feed the bytes of the next token. If `forced_token` is set, this must be that token."""
        if self.is_over:
            return
        was_open, is_forced = self._is_open, bool(self._closing)
        self._closing = self._closing[1:]
        events = self._parser.feed(self._decoder.decode(piece))
        self._is_open = self._parser.reasoning_is_open
        self._count(events, was_open)
        if not self._is_open or not was_open:
            self._closing = ()
            self._is_closed = False
        if self._n_left is not None and was_open and not is_forced:
            self._n_left -= 1
        self._force_end_if_due()

    def finish(self) -> None:
        """End the output. Text that was held back as a possible tag is counted as text."""
        if not self.is_over:
            self._count_text(self._parser.finish())

    def _count(self, events: Sequence[Event], was_open: bool) -> None:
        """Count a token with these events, if it is a part of the reasoning or of its tags."""
        self._count_text(events)
        if was_open or self._is_open or _has_reasoning(events):
            self._n_tokens += 1 + (self._n_start_tokens or 0)
            self._n_start_tokens = None
        elif self._n_start_tokens is not None:
            self._n_start_tokens = None if events else self._n_start_tokens + 1

    def _count_text(self, events: Sequence[Event]) -> None:
        self._has_text = self._has_text or _has_reasoning(events)

    def _force_end_if_due(self) -> None:
        """Force the end of open reasoning if its budget is used up and the last character is complete."""
        is_within_character = bool(self._decoder.getstate()[0])
        if self._closing or self._n_left is None or self._n_left > 0 or is_within_character:
            return
        if self._budget and self._is_open and not self._is_closed:
            self._closing = self._budget.closing
            self._is_closed = True


def _has_reasoning(events: Sequence[Event]) -> bool:
    return any(isinstance(event, ReasoningDelta) for event in events)
