"""What responses are encoded from: their head, output events (text, tool calls, log probabilities, the end), usage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Union

from .params import SamplingParams


class ResponseHead(NamedTuple):
    """The fields that identify a response, and facts of the request that a response repeats."""

    id: str
    created: int  # The time of the request, in seconds since 1970.
    model: str
    prompts: tuple[tuple[int, ...], ...] = ()  # The token ids of each prompt, if the response has them.
    sampling: SamplingParams = SamplingParams()  # The sampling parameters in use.


@dataclass(frozen=True)
class OutputToken:
    """A token of the output, or an alternative to one."""

    id: int
    piece: bytes  # The bytes of the token.
    # The logarithm of the probability before all samplers, or after them (`post_sampling_probs`); None: not requested.
    logprob: float | None = None
    top: tuple[OutputToken, ...] = ()  # The likeliest tokens at this position, if the request asks for them.


@dataclass(frozen=True)
class ContentDelta:
    text: str


@dataclass(frozen=True)
class ReasoningDelta:
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
    """The progress of the prefill, in tokens of the prompt."""

    n_computed: int  # In the KV cache now, computed or cached.
    n_prompt: int  # All.
    n_cached: int  # In the KV cache before.
    seconds: float  # Since the request was submitted.


@dataclass(frozen=True)
class SampledTokens:
    """Sampled tokens. Later events have their text, without that of the format, such as tags."""

    tokens: tuple[OutputToken, ...]


@dataclass(frozen=True)
class OutputEnd:
    """The end of an output. Each output has exactly one."""

    reason: str  # The finish reason: "stop", "length" or "tool_calls".
    stop: str | int | None = None  # The stop text or stop token id that ended the output, if any.
    last: OutputToken | None = (
        None  # The token that ended it, if any. It counts as a token of the output, but no SampledTokens has it.
    )


OutputEvent = Union[Event, PromptProgress, SampledTokens, OutputEnd]


@dataclass(frozen=True)
class Usage:
    """Counts and times of one sequence, or of all sequences of a request, and their fields in responses."""

    n_prompt: int = 0  # Tokens of the prompt.
    n_cached: int = 0  # Tokens of the prompt that were in the KV cache and were not computed.
    n_completion: int = 0  # Sampled tokens, including the one that ended the sequence.
    n_first: int = 1  # Those of them that are the first of a sequence: `prompt_s` has their time.
    prompt_s: float = 0.0  # Seconds from the start of the prefill to the first token.
    completion_s: float = 0.0  # Seconds from the first token to the last one.
    queue_s: float = 0.0  # Seconds from the submission to the start of the prefill.
    n_reasoning: int = 0  # Sampled tokens that belong to reasoning.
    n_drafted: int = 0  # Draft tokens of speculative decoding.
    n_draft_accepted: int = 0  # Draft tokens that were accepted.

    @staticmethod
    def total(usages: Sequence[Usage], per_prompt: int) -> Usage:
        """The total over the sequences of a request, with `per_prompt` for each prompt. Each prompt counts once."""
        total: dict[str, Any] = {}
        for name in (field.name for field in fields(Usage)):
            counted = usages[::per_prompt] if name in ("n_prompt", "n_cached") else usages
            total[name] = (max if name.endswith("_s") else sum)(getattr(usage, name) for usage in counted)
        return Usage(**total)

    @property
    def total_s(self) -> float:
        return self.queue_s + self.prompt_s + self.completion_s

    @property
    def prompt_rate(self) -> float | None:
        """Prefill speed in tokens per second, without cached tokens; None: unknown."""
        return _rate(self.n_prompt - self.n_cached, self.prompt_s)

    @property
    def completion_rate(self) -> float | None:
        """Generation speed in tokens per second, without the first token of each sequence; None: unknown."""
        return _rate(self.n_completion - self.n_first, self.completion_s)

    def body(self) -> dict[str, Any]:
        """OpenAI's fields, and tabbyAPI's times and rates. An unknown rate is null."""
        return {
            "prompt_tokens": self.n_prompt, "prompt_time": round(self.prompt_s, 4),
            "prompt_tokens_per_sec": self.prompt_rate,
            "completion_tokens": self.n_completion, "completion_time": round(self.completion_s, 4),
            "completion_tokens_per_sec": self.completion_rate, "total_tokens": self.n_prompt + self.n_completion,
            "queue_time": round(self.queue_s, 4), "total_time": round(self.total_s, 4),
            "prompt_tokens_details": {"cached_tokens": self.n_cached},
            "completion_tokens_details": {"reasoning_tokens": self.n_reasoning},
        }  # fmt: skip

    def timings(self) -> dict[str, Any]:
        """The same counts and times under llama.cpp's names. Draft counts are included if there were drafts."""
        n_computed = self.n_prompt - self.n_cached
        drafts = {"draft_n": self.n_drafted, "draft_n_accepted": self.n_draft_accepted}
        return {
            "cache_n": self.n_cached, "prompt_n": n_computed, "prompt_ms": round(self.prompt_s * 1000, 3),
            "prompt_per_token_ms": _ms_each(n_computed, self.prompt_s), "prompt_per_second": self.prompt_rate,
            "predicted_n": self.n_completion, "predicted_ms": round(self.completion_s * 1000, 3),
            "predicted_per_token_ms": _ms_each(self.n_completion - self.n_first, self.completion_s),
            "predicted_per_second": self.completion_rate, "queue_ms": round(self.queue_s * 1000, 3),
            **(drafts if self.n_drafted else {}),
        }  # fmt: skip


def _rate(n: int, seconds: float) -> float | None:
    return round(n / seconds, 2) if n > 0 and seconds > 0 else None


def _ms_each(n: int, seconds: float) -> float | None:
    return round(seconds * 1000 / n, 3) if n > 0 else None
