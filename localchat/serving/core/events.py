"""What responses are encoded from: their head, and output events (text, tool calls, log probabilities, the end)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Union

from .params import SamplingParams


class ResponseHead(NamedTuple):
    """The fields that identify a response, and facts of the request that a response repeats."""

    id: str
    created: int
    """The time of the request, in seconds since 1970."""
    model: str
    prompts: tuple[tuple[int, ...], ...] = ()
    """The token ids of each prompt."""
    sampling: SamplingParams = SamplingParams()
    """The sampling parameters in use."""


@dataclass(frozen=True)
class TokenLogprob:
    """A token with its log probability."""

    token: int
    """The token id."""
    piece: bytes
    """The bytes of the token."""
    logprob: float
    """The natural logarithm of the probability: before all sampling steps, or after them (`post_sampling_probs`)."""


@dataclass(frozen=True)
class OutputToken:
    """A token of the output or of the prompt."""

    id: int
    """The token id."""
    piece: bytes
    """The bytes of the token."""
    logprob: float | None = None
    """The log probability; None if the request does not ask for it, and for the first token of a prompt."""
    top: tuple[TokenLogprob, ...] = ()
    """The likeliest tokens at this position, if the request asks for them."""


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
    """The progress of the prefill."""

    n_computed: int
    """Tokens of the prompt that are in the KV cache: computed or cached."""
    n_prompt: int
    """Tokens of the prompt."""
    n_cached: int
    """Tokens of the prompt that were in the KV cache before."""
    seconds: float
    """Seconds since the request was submitted."""


@dataclass(frozen=True)
class PromptLogprobs:
    """The tokens of the prompt with log probabilities, for a request with `prompt_logprobs`."""

    tokens: tuple[OutputToken, ...]


@dataclass(frozen=True)
class EchoedTokens:
    """The tokens of a prompt that the output repeats (`echo`), with log probabilities."""

    tokens: tuple[OutputToken, ...]


@dataclass(frozen=True)
class SampledTokens:
    """Sampled tokens. Later events have the text of these tokens, without markers."""

    tokens: tuple[OutputToken, ...]


@dataclass(frozen=True)
class OutputEnd:
    """The end of an output. Each output has exactly one."""

    reason: str
    """The finish reason: "stop", "length" or "tool_calls"."""
    stop: str | int | None = None
    """The stop text or stop token id that ended the output, if any."""
    last: OutputToken | None = None
    """The token that ended the output, if any. It counts as sampled, but no SampledTokens has it."""


OutputEvent = Union[Event, PromptProgress, PromptLogprobs, EchoedTokens, SampledTokens, OutputEnd]
