"""POST /v1/chat/completions, the response: encodes output events as one body or a stream of chunks.

The encoders do no I/O: ids and times come from the ResponseHead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .chat import ChatRequest, parse_chat
from .errors import ApiError
from .events import (
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
from .interface import Interface, ResponseHead
from .json_text import to_json
from .logprobs import logprob_entry, prompt_logprobs
from .usage import Usage, progress_body


class ChatStream:
    """Encodes chunks of a chat completion as JSON text. Parts that all chunks of a stream share are encoded once."""

    def __init__(self, head: ResponseHead, request: ChatRequest, usage: Callable[[], Usage]) -> None:
        shared = {"id": head.id, "object": "chat.completion.chunk", "created": head.created, "model": head.model}
        self._request = request
        self._usage = usage
        self._start = to_json(shared)[:-1]
        self._delta_starts = [f'{self._start},"choices":[{{"index":{i},"delta":' for i in range(request.params.n)]
        # The log probabilities and token ids for the next chunk of each choice.
        self._tokens = [_Tokens(request) for _ in self._delta_starts]
        self._chunks: list[str] = []
        prompt = f',"prompt_token_ids":{to_json(head.prompts[0])}' if request.return_token_ids else ""
        for i in range(len(self._delta_starts)):
            self._add(i, f'{{"role":{to_json(request.role)},"content":""}}', "" if i else prompt)

    def add(self, index: int, event: OutputEvent) -> None:
        if isinstance(event, ContentDelta):
            self._add(index, f'{{"content":{to_json(event.text)}}}')
        elif isinstance(event, SampledTokens):
            self._tokens[index].add(event)
        elif isinstance(event, ReasoningDelta):
            text = to_json(event.text)
            thought = f',"thought":{text}' if self._request.thought_field and index == 0 else ""
            self._add(index, f'{{"reasoning_content":{text}}}', thought)
        elif isinstance(event, ToolCallArguments):
            function = f'{{"arguments":{to_json(event.text)}}}'
            self._add(index, f'{{"tool_calls":[{{"index":{event.index},"function":{function}}}]}}')
        elif isinstance(event, ToolCallStart):
            # The first chunk of a call has the name and empty arguments. Later chunks have pieces of the arguments.
            head = {"index": event.index, "id": event.id, "type": "function"}
            self._add(index, to_json({"tool_calls": [{**head, "function": {"name": event.name, "arguments": ""}}]}))
        elif isinstance(event, PromptProgress):
            self._add(index, "{}", f',"prompt_progress":{to_json(progress_body(event))}')
        elif isinstance(event, OutputEnd):
            # As in OpenAI's API, a separate chunk with an empty delta has the finish reason.
            end = f'"finish_reason":{to_json(event.reason)},"stop_reason":{to_json(event.stop)}'
            tokens = self._tokens[index].take()
            self._chunks.append(f"{self._delta_starts[index]}{{}}{tokens},{end}}}]{self._counts()}}}")

    def take(self) -> list[str]:
        chunks, self._chunks = self._chunks, []
        return chunks

    def finish(self) -> list[str]:
        """The chunks that are left. The last one has the timings and, if requested, the usage."""
        chunks, usage, request = self.take(), self._usage(), self._request
        timings = f',"timings":{to_json(usage.timings())}}}'
        if request.include_usage:
            chunks.append(f'{self._start},"choices":[],"usage":{to_json(usage.body())}{timings}')
        elif chunks and not request.timings_per_token:
            last = chunks.pop()
            chunks.append(last[:-1] + timings)
        return chunks

    def failed(self, error: ApiError) -> list[str]:
        """The chunks so far, then the error as the last chunk."""
        return [*self.take(), to_json(error.body())]

    def _add(self, index: int, delta: str, beside: str = "") -> None:
        tokens = self._tokens[index].take()
        self._chunks.append(
            f'{self._delta_starts[index]}{delta}{tokens},"finish_reason":null}}]{beside}{self._counts()}}}'
        )

    def _counts(self) -> str:
        """The usage and timings so far, as JSON fields. `usage` is null if only the last chunk has it."""
        request = self._request
        usage = self._usage() if request.continuous_usage or request.timings_per_token else None
        fields = ""
        if request.include_usage:
            fields += f',"usage":{to_json(usage.body()) if usage and request.continuous_usage else "null"}'
        if usage and request.timings_per_token:
            fields += f',"timings":{to_json(usage.timings())}'
        return fields


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

    def take(self) -> str:
        """The JSON fields for a choice."""
        logprobs = to_json({"content": self.logprobs}) if self.logprobs else "null"
        ids = f',"token_ids":{to_json(self.ids)}' if self.ids else ""
        self.logprobs, self.ids = [], []
        return f',"logprobs":{logprobs}{ids}'


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
