"""Output events (content, reasoning, tool calls, log probabilities, end), from which interfaces encode responses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union


@dataclass(frozen=True)
class TokenLogprob:
    """A token, its bytes, and the natural logarithm of its probability before all sampling steps, or after them."""

    token: int
    piece: bytes
    logprob: float


@dataclass(frozen=True)
class OutputToken:
    """A sampled token, or one of a prompt."""

    id: int
    piece: bytes
    """The bytes of the token."""
    logprob: float | None = None
    """Set, like `top`, if the request asks for log probabilities."""
    top: tuple[TokenLogprob, ...] = ()
    """The likeliest tokens at this position."""


@dataclass(frozen=True)
class ContentDelta:
    """Text of the output."""

    text: str


@dataclass(frozen=True)
class ReasoningDelta:
    """Text of the model's reasoning."""

    text: str


@dataclass(frozen=True)
class ToolCallStart:
    """A tool call begins; its arguments follow in pieces."""

    index: int
    id: str
    name: str


@dataclass(frozen=True)
class ToolCallArguments:
    """The next piece of the raw argument text of call number `index`."""

    index: int
    text: str


Event = Union[ContentDelta, ReasoningDelta, ToolCallStart, ToolCallArguments]
"""The events that a parser makes of generated text."""


@dataclass(frozen=True)
class PromptProgress:
    """How many tokens of the prompt are computed, before the first token is sampled."""

    n_computed: int
    n_prompt: int
    n_cached: int
    seconds: float
    """Seconds since the request was submitted."""


@dataclass(frozen=True)
class PromptLogprobs:
    """The tokens of the prompt with log probabilities, all but the first, for a request with `prompt_logprobs`."""

    tokens: tuple[OutputToken, ...]


@dataclass(frozen=True)
class EchoedTokens:
    """The tokens of a prompt that the output repeats, with log probabilities."""

    tokens: tuple[OutputToken, ...]


@dataclass(frozen=True)
class SampledTokens:
    """Sampled tokens. Later events have their text, except that of markers."""

    tokens: tuple[OutputToken, ...]


@dataclass(frozen=True)
class OutputEnd:
    """The one end of an output."""

    reason: str
    """"stop", "length" or "tool_calls"."""
    stop: str | int | None = None
    """The stop text or stop token that ended it, if one did."""
    last: OutputToken | None = None
    """The token that ended it, if one did. It counts as sampled, but is in no other event."""


OutputEvent = Union[Event, PromptProgress, PromptLogprobs, EchoedTokens, SampledTokens, OutputEnd]
