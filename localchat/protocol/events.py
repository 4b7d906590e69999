"""The output of a generation as events, in their order: what encoders of all interfaces turn into responses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union


@dataclass(frozen=True)
class TokenLogprob:
    """A token, its bytes, and the natural logarithm of its probability, before any sampling step or after all."""

    token: int
    piece: bytes
    logprob: float


@dataclass(frozen=True)
class OutputToken:
    """A sampled token, or one of a prompt."""

    id: int
    piece: bytes
    """The bytes that it stands for."""
    logprob: float | None = None
    """Set where the request asks for log probabilities, as is `top`."""
    top: tuple[TokenLogprob, ...] = ()
    """The likeliest tokens in its place."""


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
"""What generated text turns out to be."""


@dataclass(frozen=True)
class PromptProgress:
    """How many tokens of the prompt are computed, before the first token is sampled."""

    n_done: int
    n_prompt: int
    n_cached: int
    seconds: float
    """Since the request was submitted."""


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
    """Sampled tokens. Their text comes in later events, or has no event, as that of markers."""

    tokens: tuple[OutputToken, ...]


@dataclass(frozen=True)
class OutputEnd:
    """The one end of an output."""

    reason: str
    """"stop", "length" or "tool_calls"."""
    stop: str | int | None = None
    """The stop text or stop token that ended it, if one did."""
    last: OutputToken | None = None
    """The token that ended it, if one did. It is counted, and is in no other event."""


OutputEvent = Union[Event, PromptProgress, PromptLogprobs, EchoedTokens, SampledTokens, OutputEnd]
