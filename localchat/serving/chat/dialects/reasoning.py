"""The tags of reasoning, and whether a prompt leaves it open."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


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
