"""POST /v1/chat/completions, the answer: the same calls fill one body or a stream of chunks.

`WholeReply` and `StreamReply` are told what happens, choice by choice, by the methods of `Reply`. The
first ends in `body`, the second hands out chunks as JSON text with `take`, in the order of appendix
A's last line. Nothing here waits, reads a clock or draws an id.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from .errors import ApiError
from .streaming import progress_body
from .usage import Usage

# K26: JSON has no minus infinity.
LOGPROB_FLOOR = -9999.0

# K38: characters as they are. One encoder for all: json.dumps with options builds a new one each time.
_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)
to_json = _JSON.encode


@dataclass(frozen=True)
class ReplyHead:
    """What all of a reply shares (K1, K29). `prompt_tokens` are told where the caller asked for token ids."""

    id: str
    created: int
    model: str
    role: str = "assistant"
    prompt_tokens: tuple[int, ...] | None = None


class Reply(Protocol):
    """What can happen in an answer; `i` is the choice (K36), `call` counts its tool calls from 0.

    With `wants_figures` it is told those by `figures` before what they are to be sent with.
    """

    wants_figures: bool

    def figures(self, usage: Usage) -> None:
        """The counts by now, over all choices (K14)."""

    def progress(self, n_done: int, n_prompt: int, n_cached: int, seconds: float) -> None:
        """So much of the prompt has been read since so many seconds."""

    def content(self, i: int, text: str) -> None: ...

    def reasoning(self, i: int, text: str) -> None: ...

    def tool_head(self, i: int, call: int, id: str, name: str) -> None: ...

    def tool_arguments(self, i: int, call: int, text: str) -> None: ...

    def logprobs(self, i: int, entries: list[dict[str, Any]]) -> None:
        """Entries (see `logprob_entry`) of tokens whose text comes now or later."""

    def token_ids(self, i: int, ids: list[int]) -> None:
        """The tokens whose text comes now or later."""

    def finish(self, i: int, reason: str, stop: str | int | None) -> None: ...


def finish_reason(reason: str, *, has_calls: bool, is_cut: bool) -> str:
    """K6: calls show in the reason, unless the end came inside one."""
    return "tool_calls" if has_calls and not is_cut else reason


def logprob_entry(
    token: tuple[int, bytes, float],
    top: Iterable[tuple[int, bytes, float]],
    *,
    as_ids: bool = False,
    after_sampling: bool = False,
) -> dict[str, Any]:
    """One position of `logprobs.content` (K26), of tokens as id, bytes and log probability.

    With `as_ids` a token's text is its id (V48). `after_sampling` gives probabilities under llama.cpp's names.
    """
    tokens = [_token(*one, as_ids, after_sampling) for one in (token, *top)]
    return {**tokens[0], "top_probs" if after_sampling else "top_logprobs": tokens[1:]}


def prompt_entry(token: tuple[int, bytes, float], top: Sequence[tuple[int, bytes, float]]) -> dict[str, Any]:
    """One position of `prompt_logprobs` (V44): the token and the likeliest in its place, by their ids.

    The rank of a token that is not among these is not known.
    """
    ranks = {id: rank for rank, (id, _, _) in enumerate(top, 1)}
    return {
        str(id): {
            "logprob": max(logprob, LOGPROB_FLOOR),
            "rank": ranks.get(id),
            "decoded_token": piece.decode("utf-8", "replace"),
        }
        for id, piece, logprob in (token, *top)
    }


def id_text(id: int) -> str:
    """A token spelled as its id (V48)."""
    return f"token_id:{id}"


class StreamReply:
    """Chunks as JSON text. All that stays equal over a stream is written once, here.

    `continuous_usage` and `timings_per_token` put the figures of the moment on each chunk (V18); the ends
    of a stream have them anyway. `thought` repeats the thinking of choice 0 beside the choices (K8).
    """

    def __init__(
        self,
        head: ReplyHead,
        n: int,
        *,
        include_usage: bool = False,
        continuous_usage: bool = False,
        timings_per_token: bool = False,
        thought: bool = False,
    ) -> None:
        kind = "chat.completion.chunk"
        shared = {"id": head.id, "object": kind, "created": head.created, "model": head.model}
        self.wants_figures = continuous_usage or timings_per_token
        self._head = head
        self._start = to_json(shared)[:-1]
        self._include_usage = include_usage
        self._continuous_usage = continuous_usage
        self._timings_per_token = timings_per_token
        self._thought = thought
        # K13: null on ordinary chunks where the figures will come at the end, absent elsewhere.
        self._end = ',"usage":null}' if include_usage else "}"
        self._delta_starts = [f'{self._start},"choices":[{{"index":{i},"delta":' for i in range(n)]
        # Log probabilities and token ids wait for the next chunk of their choice.
        self._logprobs: list[list[dict[str, Any]]] = [[] for _ in range(n)]
        self._token_ids: list[list[int]] = [[] for _ in range(n)]
        self._chunks: list[str] = []

    def take(self) -> list[str]:
        """The chunks since the last time."""
        chunks, self._chunks = self._chunks, []
        return chunks

    def roles(self) -> None:
        """K2: before all else, one chunk per choice. The prompt's tokens, if asked for, are on the first."""
        prompt = "" if self._head.prompt_tokens is None else f',"prompt_token_ids":{to_json(self._head.prompt_tokens)}'
        for i in range(len(self._delta_starts)):
            self._add(i, f'{{"role":{to_json(self._head.role)},"content":""}}', "" if i else prompt)

    def figures(self, usage: Usage) -> None:
        ends = ""
        if self._include_usage:
            ends += f',"usage":{to_json(usage.body()) if self._continuous_usage else "null"}'
        if self._timings_per_token:
            ends += f',"timings":{to_json(usage.timings())}'
        self._end = ends + "}"

    def progress(self, n_done: int, n_prompt: int, n_cached: int, seconds: float) -> None:
        """llama.cpp's member, on a chunk that changes nothing."""
        progress = progress_body(n_done, n_prompt, n_cached, seconds)
        self._add(0, "{}", f',"prompt_progress":{to_json(progress)}')

    def content(self, i: int, text: str) -> None:
        self._add(i, f'{{"content":{to_json(text)}}}')

    def reasoning(self, i: int, text: str) -> None:
        thought = f',"thought":{to_json(text)}' if self._thought and i == 0 else ""
        self._add(i, f'{{"reasoning_content":{to_json(text)}}}', thought)

    def tool_head(self, i: int, call: int, id: str, name: str) -> None:
        """K16: the head has the name and empty arguments, which then come in pieces."""
        head = {"index": call, "id": id, "type": "function", "function": {"name": name, "arguments": ""}}
        self._add(i, to_json({"tool_calls": [head]}))

    def tool_arguments(self, i: int, call: int, text: str) -> None:
        self._add(i, f'{{"tool_calls":[{{"index":{call},"function":{{"arguments":{to_json(text)}}}}}]}}')

    def logprobs(self, i: int, entries: list[dict[str, Any]]) -> None:
        self._logprobs[i] += entries

    def token_ids(self, i: int, ids: list[int]) -> None:
        self._token_ids[i] += ids

    def finish(self, i: int, reason: str, stop: str | int | None) -> None:
        """A chunk of its own with an empty delta (K3), and what was hit (K12)."""
        end = f'"finish_reason":{to_json(reason)},"stop_reason":{to_json(stop)}'
        self._chunks.append(f"{self._delta_starts[i]}{{}}{self._riders(i)},{end}}}]{self._end}")

    def usage(self, usage: Usage) -> None:
        """The closing chunk, where it was asked for (K13). The times go with the last chunk there is."""
        timings = f',"timings":{to_json(usage.timings())}}}'
        if self._include_usage:
            self._chunks.append(f'{self._start},"choices":[],"usage":{to_json(usage.body())}{timings}')
        elif self._chunks and not self._timings_per_token:
            self._chunks[-1] = self._chunks[-1][:-1] + timings

    def failed(self, error: ApiError) -> list[str]:
        """The last chunks: what went wrong takes the place of everything still to come (K5)."""
        return [*self.take(), to_json(error.body())]

    def _add(self, i: int, delta: str, beside: str = "") -> None:
        self._chunks.append(
            f'{self._delta_starts[i]}{delta}{self._riders(i)},"finish_reason":null}}]{beside}{self._end}'
        )

    def _riders(self, i: int) -> str:
        """What tokens have beside their text."""
        entries, self._logprobs[i] = self._logprobs[i], []
        ids, self._token_ids[i] = self._token_ids[i], []
        riders = f',"logprobs":{to_json({"content": entries})}' if entries else ',"logprobs":null'
        return f'{riders},"token_ids":{to_json(ids)}' if ids else riders


class _Choice:
    """What a whole reply gathers of one choice."""

    def __init__(self) -> None:
        self.content: list[str] = []
        self.reasoning: list[str] = []
        self.calls: list[dict[str, Any]] = []
        self.arguments: list[list[str]] = []
        self.logprobs: list[dict[str, Any]] = []
        self.token_ids: list[int] = []
        self.end: Mapping[str, Any] = {"finish_reason": None, "stop_reason": None}

    @property
    def thought(self) -> str:
        return "".join(self.reasoning)

    def body(self, i: int, head: ReplyHead) -> dict[str, Any]:
        message: dict[str, Any] = {"role": head.role}
        if self.reasoning:
            message["reasoning_content"] = self.thought
        # K20: null rather than empty beside calls.
        message["content"] = "".join(self.content) or (None if self.calls else "")
        if self.calls:
            message["tool_calls"] = [self._call(k) for k in range(len(self.calls))]
        logprobs = {"content": self.logprobs} if self.logprobs else None
        ids = {} if head.prompt_tokens is None else {"token_ids": self.token_ids}
        return {"index": i, "message": message, "logprobs": logprobs, **ids, **self.end}

    def _call(self, k: int) -> dict[str, Any]:
        call = self.calls[k]
        function = {"name": call["name"], "arguments": "".join(self.arguments[k])}
        return {"id": call["id"], "type": "function", "function": function}


class WholeReply:
    """One body for the whole answer."""

    wants_figures = False

    def __init__(self, head: ReplyHead, n: int, *, thought: bool = False) -> None:
        self._head = head
        self._thought = thought
        self._choices = [_Choice() for _ in range(n)]

    def figures(self, usage: Usage) -> None:
        """They are in the body, once."""

    def progress(self, n_done: int, n_prompt: int, n_cached: int, seconds: float) -> None:
        """Nobody can see it before the body."""

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

    def token_ids(self, i: int, ids: list[int]) -> None:
        self._choices[i].token_ids += ids

    def finish(self, i: int, reason: str, stop: str | int | None) -> None:
        self._choices[i].end = {"finish_reason": reason, "stop_reason": stop}

    def body(self, usage: Usage, prompt_logprobs: Sequence[Any] | None = None) -> dict[str, Any]:
        head, thought = self._head, self._choices[0].thought
        return {
            "id": head.id,
            "object": "chat.completion",
            "created": head.created,
            "model": head.model,
            "choices": [choice.body(i, head) for i, choice in enumerate(self._choices)],
            "usage": usage.body(),
            **({} if head.prompt_tokens is None else {"prompt_token_ids": head.prompt_tokens}),
            **({} if prompt_logprobs is None else {"prompt_logprobs": prompt_logprobs}),
            **({"thought": thought} if self._thought and thought else {}),
            "timings": usage.timings(),
        }


def _token(id: int, piece: bytes, logprob: float, as_ids: bool, after_sampling: bool) -> dict[str, Any]:
    text = id_text(id) if as_ids else piece.decode("utf-8", "replace")
    value = {"prob": math.exp(logprob)} if after_sampling else {"logprob": max(logprob, LOGPROB_FLOOR)}
    return {"token": text, **value, "bytes": list(piece)}
