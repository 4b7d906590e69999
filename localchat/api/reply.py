"""POST /v1/chat/completions, the answer: the same calls fill one body or a stream of chunks.

`WholeReply` and `StreamReply` are told what happens, choice by choice, by the methods of `Reply`. The
first ends in `body`, the second hands out chunks as JSON text with `take`, in the order of appendix
A's last line. Nothing here waits, reads a clock or draws an id.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Optional, Protocol, Union

from .errors import ApiError

# K26: JSON has no minus infinity.
LOGPROB_FLOOR = -9999.0

# K38: characters as they are. One encoder for all: json.dumps with options builds a new one each time.
_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)
to_json = _JSON.encode


@dataclass(frozen=True)
class ReplyHead:
    """What all chunks of a reply share (K1, K29)."""

    id: str
    created: int
    model: str


@dataclass(frozen=True)
class Usage:
    """Counts and times of one request. `n_reasoning` is None where it is not known."""

    n_prompt: int
    n_cached: int
    n_completion: int
    prompt_s: float
    completion_s: float
    n_reasoning: Optional[int] = None

    @staticmethod
    def total(parts: Iterable[Usage]) -> Usage:
        """Over the choices of one request: the prompt counts once, completions add up (K14)."""
        usages = list(parts)
        return Usage(
            n_prompt=usages[0].n_prompt,
            n_cached=usages[0].n_cached,
            n_completion=sum(usage.n_completion for usage in usages),
            prompt_s=max(usage.prompt_s for usage in usages),
            completion_s=max(usage.completion_s for usage in usages),
            n_reasoning=sum(usage.n_reasoning or 0 for usage in usages),
        )

    @property
    def completion_rate(self) -> Optional[float]:
        """Tokens per second; the first token belongs to the prompt's time."""
        return _rate(self.n_completion - 1, self.completion_s)

    def body(self) -> dict[str, Any]:
        """K15: the standard members, tabbyAPI's times and rates (null where nothing was timed), details."""
        return {
            "prompt_tokens": self.n_prompt,
            "prompt_time": round(self.prompt_s, 4),
            "prompt_tokens_per_sec": _rate(self.n_prompt - self.n_cached, self.prompt_s),
            "completion_tokens": self.n_completion,
            "completion_time": round(self.completion_s, 4),
            "completion_tokens_per_sec": self.completion_rate,
            "total_tokens": self.n_prompt + self.n_completion,
            "total_time": round(self.prompt_s + self.completion_s, 4),
            "prompt_tokens_details": {"cached_tokens": self.n_cached},
            "completion_tokens_details": {"reasoning_tokens": self.n_reasoning or 0},
        }


class Reply(Protocol):
    """What can happen in an answer; `i` is the choice (K36), `call` counts its tool calls from 0."""

    def content(self, i: int, text: str) -> None: ...

    def reasoning(self, i: int, text: str) -> None: ...

    def tool_head(self, i: int, call: int, id: str, name: str) -> None: ...

    def tool_arguments(self, i: int, call: int, text: str) -> None: ...

    def logprobs(self, i: int, entries: list[dict[str, Any]]) -> None:
        """Entries (see `logprob_entry`) of tokens whose text comes now or later."""

    def finish(self, i: int, reason: str, stop: Union[str, int, None]) -> None: ...


def finish_reason(reason: str, *, has_calls: bool, is_cut: bool) -> str:
    """K6: calls show in the reason, unless the end came inside one."""
    return "tool_calls" if has_calls and not is_cut else reason


def logprob_entry(piece: bytes, logprob: float, top: Iterable[tuple[bytes, float]]) -> dict[str, Any]:
    """One position of `logprobs.content` (K26)."""
    return {**_token(piece, logprob), "top_logprobs": [_token(*other) for other in top]}


class StreamReply:
    """Chunks as JSON text. All that stays equal over a stream is written once, here."""

    def __init__(self, head: ReplyHead, n: int, *, include_usage: bool) -> None:
        kind = "chat.completion.chunk"
        shared = {"id": head.id, "object": kind, "created": head.created, "model": head.model}
        self._start = to_json(shared)[:-1]
        self._include_usage = include_usage
        # K13: null on ordinary chunks where the figures will come at the end, absent elsewhere.
        self._end = ',"usage":null}' if include_usage else "}"
        self._delta_starts = [f'{self._start},"choices":[{{"index":{i},"delta":' for i in range(n)]
        self._delta_end = ',"finish_reason":null}]' + self._end
        # Log probabilities wait for the next chunk of their choice.
        self._logprobs: list[list[dict[str, Any]]] = [[] for _ in range(n)]
        self._chunks: list[str] = []

    def take(self) -> list[str]:
        """The chunks since the last time."""
        chunks, self._chunks = self._chunks, []
        return chunks

    def roles(self) -> None:
        """K2: before all else, one chunk per choice."""
        for i in range(len(self._delta_starts)):
            self._add(i, '{"role":"assistant","content":""}')

    def content(self, i: int, text: str) -> None:
        self._add(i, f'{{"content":{to_json(text)}}}')

    def reasoning(self, i: int, text: str) -> None:
        self._add(i, f'{{"reasoning_content":{to_json(text)}}}')

    def tool_head(self, i: int, call: int, id: str, name: str) -> None:
        """K16: the head has the name and empty arguments, which then come in pieces."""
        head = {"index": call, "id": id, "type": "function", "function": {"name": name, "arguments": ""}}
        self._add(i, to_json({"tool_calls": [head]}))

    def tool_arguments(self, i: int, call: int, text: str) -> None:
        self._add(i, f'{{"tool_calls":[{{"index":{call},"function":{{"arguments":{to_json(text)}}}}}]}}')

    def logprobs(self, i: int, entries: list[dict[str, Any]]) -> None:
        self._logprobs[i] += entries

    def finish(self, i: int, reason: str, stop: Union[str, int, None]) -> None:
        """A chunk of its own with an empty delta (K3), and what was hit (K12)."""
        end = f',"finish_reason":{to_json(reason)},"stop_reason":{to_json(stop)}}}]{self._end}'
        self._chunks.append(f"{self._delta_starts[i]}{{}}{self._taken_logprobs(i)}{end}")

    def usage(self, usage: Usage) -> None:
        """The closing chunk, where it was asked for (K13)."""
        if self._include_usage:
            self._chunks.append(f'{self._start},"choices":[],"usage":{to_json(usage.body())}}}')

    def error(self, error: ApiError) -> None:
        """K5: what went wrong takes the place of everything still to come."""
        self._chunks.append(to_json(error.body()))

    def _add(self, i: int, delta: str) -> None:
        self._chunks.append(f"{self._delta_starts[i]}{delta}{self._taken_logprobs(i)}{self._delta_end}")

    def _taken_logprobs(self, i: int) -> str:
        entries = self._logprobs[i]
        if not entries:
            return ',"logprobs":null'
        self._logprobs[i] = []
        return f',"logprobs":{to_json({"content": entries})}'


class _Choice:
    """What a whole reply gathers of one choice."""

    def __init__(self) -> None:
        self.content: list[str] = []
        self.reasoning: list[str] = []
        self.calls: list[dict[str, Any]] = []
        self.arguments: list[list[str]] = []
        self.logprobs: list[dict[str, Any]] = []
        self.end: Mapping[str, Any] = {"finish_reason": None, "stop_reason": None}

    def body(self, i: int) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant"}
        if self.reasoning:
            message["reasoning_content"] = "".join(self.reasoning)
        # K20: null rather than empty beside calls.
        message["content"] = "".join(self.content) or (None if self.calls else "")
        if self.calls:
            message["tool_calls"] = [self._call(k) for k in range(len(self.calls))]
        logprobs = {"content": self.logprobs} if self.logprobs else None
        return {"index": i, "message": message, "logprobs": logprobs, **self.end}

    def _call(self, k: int) -> dict[str, Any]:
        call = self.calls[k]
        function = {"name": call["name"], "arguments": "".join(self.arguments[k])}
        return {"id": call["id"], "type": "function", "function": function}


class WholeReply:
    """One body for the whole answer."""

    def __init__(self, head: ReplyHead, n: int) -> None:
        self._head = head
        self._choices = [_Choice() for _ in range(n)]

    def content(self, i: int, text: str) -> None:
        self._choices[i].content.append(text)

    def reasoning(self, i: int, text: str) -> None:
        self._choices[i].reasoning.append(text)

    def tool_head(self, i: int, call: int, id: str, name: str) -> None:
        self._choices[i].calls.append({"id": id, "name": name})
        self._choices[i].arguments.append([])

    def tool_arguments(self, i: int, call: int, text: str) -> None:
        self._choices[i].arguments[call].append(text)

    def logprobs(self, i: int, entries: list[dict[str, Any]]) -> None:
        self._choices[i].logprobs += entries

    def finish(self, i: int, reason: str, stop: Union[str, int, None]) -> None:
        self._choices[i].end = {"finish_reason": reason, "stop_reason": stop}

    def body(self, usage: Usage) -> dict[str, Any]:
        return {
            "id": self._head.id,
            "object": "chat.completion",
            "created": self._head.created,
            "model": self._head.model,
            "choices": [choice.body(i) for i, choice in enumerate(self._choices)],
            "usage": usage.body(),
        }


def _token(piece: bytes, logprob: float) -> dict[str, Any]:
    text = piece.decode("utf-8", "replace")
    return {"token": text, "logprob": max(logprob, LOGPROB_FLOOR), "bytes": list(piece)}


def _rate(n: int, seconds: float) -> Optional[float]:
    return round(n / seconds, 2) if n > 0 and seconds > 0 else None
