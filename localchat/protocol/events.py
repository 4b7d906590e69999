"""What generated text turns out to be, in the order of the text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union


@dataclass(frozen=True)
class ContentDelta:
    """Text of the answer."""

    text: str


@dataclass(frozen=True)
class ReasoningDelta:
    """Text of the model's thinking."""

    text: str


@dataclass(frozen=True)
class ToolCallStart:
    """A call begins; its arguments follow in pieces (K16)."""

    index: int
    id: str
    name: str


@dataclass(frozen=True)
class ToolCallArguments:
    """The next piece of the raw argument text of call number `index`."""

    index: int
    text: str


Event = Union[ContentDelta, ReasoningDelta, ToolCallStart, ToolCallArguments]
