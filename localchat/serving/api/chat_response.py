"""POST /v1/chat/completions, the response: encodes output events as one body or a stream of chunks.

The encoders do no I/O: ids and times come from the ResponseHead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..core.errors import ApiError
from ..core.events import (
    ContentDelta,
    OutputEnd,
    OutputEvent,
    PromptLogprobs,
    PromptProgress,
    ReasoningDelta,
    SampledTokens,
    ToolCallArguments,
    ToolCallStart,
)
from ..core.interface import Interface, ResponseHead
from ..core.json_text import to_json
from ..core.logprobs import logprob_entry, prompt_logprobs
from ..core.usage import Usage, chunk_counts, progress_body
from .chat import ChatRequest, parse_chat


class ChatStream:
    """Encodes chunks of a chat completion as JSON text."""

    def __init__(self, head: ResponseHead, request: ChatRequest, usage: Callable[[], Usage]) -> None:
        self._head = {"id": head.id, "object": "chat.completion.chunk", "created": head.created, "model": head.model}
        self._request = request
        self._usage = usage
        # The log probabilities and token ids for the next chunk of each choice.
        self._tokens = [_Tokens(request) for _ in range(request.params.n)]
        self._chunks: list[dict[str, Any]] = []
        prompt = {"prompt_token_ids": head.prompts[0]} if request.return_token_ids else {}
        for i in range(request.params.n):
            self._add(i, {"role": request.role, "content": ""}, **(prompt if i == 0 else {}))

    def add(self, index: int, event: OutputEvent) -> None:
        if isinstance(event, ContentDelta):
            self._add(index, {"content": event.text})
        elif isinstance(event, SampledTokens):
            self._tokens[index].add(event)
        elif isinstance(event, ReasoningDelta):
            thought = {"thought": event.text} if self._request.thought_field and index == 0 else {}
            self._add(index, {"reasoning_content": event.text}, **thought)
        elif isinstance(event, ToolCallArguments):
            self._add(index, {"tool_calls": [{"index": event.index, "function": {"arguments": event.text}}]})
        elif isinstance(event, ToolCallStart):
            # The first chunk of a call has the name and empty arguments. Later chunks have pieces of the arguments.
            head = {"index": event.index, "id": event.id, "type": "function"}
            self._add(index, {"tool_calls": [{**head, "function": {"name": event.name, "arguments": ""}}]})
        elif isinstance(event, PromptProgress):
            self._add(index, {}, prompt_progress=progress_body(event))
        elif isinstance(event, OutputEnd):
            # As in OpenAI's API, a separate chunk with an empty delta has the finish reason.
            choice = {"index": index, "delta": {}, **self._tokens[index].take()}
            self._chunk({**choice, "finish_reason": event.reason, "stop_reason": event.stop})

    def take(self) -> list[str]:
        chunks, self._chunks = self._chunks, []
        return [to_json(chunk) for chunk in chunks]

    def finish(self) -> list[str]:
        """The rest of the chunks. The last one has the timings and, if requested, the usage."""
        usage = self._usage()
        if self._request.include_usage:
            self._chunks.append({**self._head, "choices": [], "usage": usage.body()})
        if self._chunks:
            self._chunks[-1]["timings"] = usage.timings()
        return self.take()

    def failed(self, error: ApiError) -> list[str]:
        """The chunks so far, then the error as the last chunk."""
        return [*self.take(), to_json(error.body())]

    def _add(self, index: int, delta: dict[str, Any], **extra: Any) -> None:
        self._chunk({"index": index, "delta": delta, **self._tokens[index].take(), "finish_reason": None}, **extra)

    def _chunk(self, choice: dict[str, Any], **extra: Any) -> None:
        counts = chunk_counts(self._request, self._usage)
        self._chunks.append({**self._head, "choices": [choice], **extra, **counts})


class _Tokens:
    """Collects log probabilities and token ids of one choice for its next chunk."""

    def __init__(self, request: ChatRequest) -> None:
        self.logprobs: list[dict[str, Any]] = []
        self.ids: list[int] = []
        self._wants_logprobs = request.params.top_logprobs is not None
        self._wants_ids = request.return_token_ids
        self._after_sampling = request.params.post_sampling_probs
        self._as_ids = request.tokens_as_ids

    def add(self, event: SampledTokens) -> None:
        if self._wants_logprobs:
            self.logprobs += (
                logprob_entry(token, as_ids=self._as_ids, after_sampling=self._after_sampling) for token in event.tokens
            )
        if self._wants_ids:
            self.ids += (token.id for token in event.tokens)

    def take(self) -> dict[str, Any]:
        """The fields of a choice."""
        logprobs = {"logprobs": {"content": self.logprobs} if self.logprobs else None}
        ids = {"token_ids": self.ids} if self.ids else {}
        self.logprobs, self.ids = [], []
        return {**logprobs, **ids}


class ChatBody:
    """Encodes a whole response as one body."""

    def __init__(self, head: ResponseHead, request: ChatRequest) -> None:
        self._head = head
        self._request = request
        self._choices = [_Choice(request) for _ in range(request.params.n)]
        self._prompt_logprobs: list[Any] | None = None

    def add(self, index: int, event: OutputEvent) -> None:
        if isinstance(event, PromptLogprobs):
            self._prompt_logprobs = prompt_logprobs(event.tokens, self._request.params.prompt_logprobs or 0)
        else:
            self._choices[index].add(event)

    def body(self, usage: Usage) -> dict[str, Any]:
        head, thought = self._head, "".join(self._choices[0].reasoning)
        prompt_ids = {"prompt_token_ids": head.prompts[0]} if self._request.return_token_ids else {}
        return {
            "id": head.id,
            "object": "chat.completion",
            "created": head.created,
            "model": head.model,
            "choices": [choice.body(i) for i, choice in enumerate(self._choices)],
            "usage": usage.body(),
            **prompt_ids,
            **({} if self._prompt_logprobs is None else {"prompt_logprobs": self._prompt_logprobs}),
            **({"thought": thought} if self._request.thought_field and thought else {}),
            "timings": usage.timings(),
        }


class _Choice:
    """Collects one choice of a body."""

    def __init__(self, request: ChatRequest) -> None:
        self.content: list[str] = []
        self.reasoning: list[str] = []
        self.calls: list[ToolCallStart] = []
        self.arguments: list[list[str]] = []
        self.end = OutputEnd("stop")
        self._request = request
        self._tokens = _Tokens(request)

    def add(self, event: OutputEvent) -> None:
        if isinstance(event, ContentDelta):
            self.content.append(event.text)
        elif isinstance(event, ReasoningDelta):
            self.reasoning.append(event.text)
        elif isinstance(event, SampledTokens):
            self._tokens.add(event)
        elif isinstance(event, ToolCallStart):
            self.calls.append(event)
            self.arguments.append([])
        elif isinstance(event, ToolCallArguments):
            self.arguments[event.index].append(event.text)
        elif isinstance(event, OutputEnd):
            self.end = event

    def body(self, index: int) -> dict[str, Any]:
        message: dict[str, Any] = {"role": self._request.role}
        if self.reasoning:
            message["reasoning_content"] = "".join(self.reasoning)
        # As in OpenAI's API, empty content is null if there are tool calls.
        message["content"] = "".join(self.content) or (None if self.calls else "")
        if self.calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": "".join(arguments)}}
                for call, arguments in zip(self.calls, self.arguments)
            ]
        return {
            "index": index,
            "message": message,
            "logprobs": {"content": self._tokens.logprobs} if self._tokens.logprobs else None,
            **({"token_ids": self._tokens.ids} if self._request.return_token_ids else {}),
            "finish_reason": self.end.reason,
            "stop_reason": self.end.stop,
        }


INTERFACE = Interface(id_prefix="chatcmpl-", parse=parse_chat, stream=ChatStream, whole=ChatBody)
