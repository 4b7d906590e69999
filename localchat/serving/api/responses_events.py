"""POST /v1/responses, the response: encodes output events as a stream of events, or as one response object.

The events of an item (added, deltas, done) are complete before the next item begins. The id of an item is derived from
the id of the response and the index of the item.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from ..core.errors import ApiError
from ..core.events import (
    ContentDelta,
    OutputEnd,
    OutputEvent,
    ReasoningDelta,
    SampledTokens,
    ToolCallArguments,
    ToolCallStart,
)
from ..core.interface import ResponseHead
from ..core.json_text import to_json
from ..core.logprobs import logprob_entry
from ..core.usage import Usage
from .responses import ResponsesRequest
from .responses_items import encode_reasoning
from .responses_store import item_id
from .responses_tools import Tool

# Emits an event, given its type and fields.
Emit = Callable[..., None]


class ResponseEncoder:
    """Encodes the events of a stream, each as JSON text that begins with its type, or a response as one body."""

    def __init__(
        self,
        head: ResponseHead,
        request: ResponsesRequest,
        sampling: Mapping[str, Any],
        usage: Callable[[], Usage],
        keep: Callable[[dict[str, Any]], None] = lambda response: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Emit the first events.

        Args:
            sampling: The sampling values in use, some of which the response repeats.
            usage: Returns the counts so far.
            keep: Stores the complete response. Called before the last event is sent.
            clock: Returns the time in seconds since 1970.
        """
        self._request = request
        self._tools = {tool.model_name: tool for tool in request.offered}
        self._usage = usage
        self._keep = keep
        self._clock = clock
        self._id = head.id
        self._head = {"id": head.id, "object": "response", "created_at": head.created, "model": head.model}
        names = ("temperature", "top_p", "presence_penalty", "frequency_penalty")
        self._settings = {**request.settings, **{name: sampling[name] for name in names}}
        self._status = "in_progress"
        self._end_fields: dict[str, Any] = {
            "completed_at": None,
            "error": None,
            "incomplete_details": None,
            "usage": None,
        }
        self._items: list[_Item] = []
        # The item to which deltas are added; None: all items are complete.
        self._open: _Item | None = None
        self._logprobs: list[dict[str, Any]] = []
        self._end = OutputEnd("stop")
        self._n_events = 0
        self._chunks: list[str] = []
        for kind in ("response.created", "response.in_progress"):
            self._emit(kind, response=self._response())

    def take(self) -> list[str]:
        chunks, self._chunks = self._chunks, []
        return chunks

    def add(self, index: int, event: OutputEvent) -> None:
        if isinstance(event, SampledTokens):
            if self._request.params.top_logprobs is not None:
                self._logprobs += [logprob_entry(token) for token in event.tokens]
            return
        if isinstance(event, OutputEnd):
            self._end = event
        elif isinstance(event, ContentDelta):
            self._item(_Message).delta(event.text, self._logprobs)
        elif isinstance(event, ReasoningDelta):
            self._item(_SummarisedReasoning if self._request.summarises else _Reasoning).delta(event.text, [])
        elif isinstance(event, ToolCallStart):
            tool = self._tools.get(event.name)
            self._begin(_CustomCall if tool is not None and tool.is_custom else _FunctionCall, event, tool)
        elif isinstance(event, ToolCallArguments) and self._open is not None:
            self._open.delta(event.text, [])
        self._logprobs = []

    def finish(self) -> list[str]:
        self._complete(self._usage())
        return self.take()

    def body(self, usage: Usage) -> dict[str, Any]:
        self._complete(usage)
        return self._response()

    def _complete(self, usage: Usage) -> None:
        is_cut = self._end.reason == "length"
        if not self._items:
            # Clients require at least one message, even an empty one.
            self._begin(_Message)
        self._close("incomplete" if is_cut else "completed")
        self._status = "incomplete" if is_cut else "completed"
        details = {"reason": "max_output_tokens"} if is_cut else None
        completed_at = None if is_cut else int(self._clock())
        self._end_fields.update(incomplete_details=details, usage=_usage_body(usage), completed_at=completed_at)
        self._emit(f"response.{self._status}", response=self._response())
        self._keep(self._response())

    def failed(self, error: ApiError) -> list[str]:
        code = "rate_limit_exceeded" if error.status == 429 else "server_error"
        self._status = "failed"
        self._end_fields["error"] = {"code": code, "message": error.message}
        self._emit("response.failed", response=self._response())
        return self.take()

    def _response(self) -> dict[str, Any]:
        output = [item.body() for item in self._items]
        return {**self._head, "status": self._status, **self._end_fields, **self._settings, "output": output}

    def _item(self, kind: type[_Item]) -> _Item:
        """The open item if it has this type, else a new item."""
        if type(self._open) is not kind:
            self._begin(kind)
        assert self._open is not None
        return self._open

    def _begin(self, kind: type[_Item], *more: Any) -> None:
        """Complete the open item and begin a new one. `more` are the arguments that only its class has."""
        self._close("completed")
        index = len(self._items)
        self._open = kind(item_id(kind.type, self._id, f"{index:x}"), index, self._emit, self._request, *more)
        self._items.append(self._open)
        self._open.open()

    def _close(self, status: str) -> None:
        if self._open is not None:
            self._open.close(status)
            self._open = None

    def _emit(self, kind: str, **fields: Any) -> None:
        if self._request.stream:
            self._chunks.append(to_json({"type": kind, "sequence_number": self._n_events, **fields}))
            self._n_events += 1


def _usage_body(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.n_prompt,
        "input_tokens_details": {
            "cached_tokens": usage.n_cached,
            "cache_write_tokens": usage.n_prompt - usage.n_cached,
        },
        "output_tokens": usage.n_completion,
        "output_tokens_details": {"reasoning_tokens": usage.n_reasoning},
        "total_tokens": usage.n_prompt + usage.n_completion,
    }


class _Item:
    """An item of the output."""

    type = ""

    def __init__(self, id: str, index: int, emit: Emit, request: ResponsesRequest) -> None:
        self.id = id
        # The text so far, in pieces.
        self.text: list[str] = []
        self.status = "in_progress"
        self._index = index
        self._emit_event = emit
        self._request = request

    @property
    def all_text(self) -> str:
        return "".join(self.text)

    def open(self) -> None:
        self._emit_event("response.output_item.added", output_index=self._index, item=self.body())

    def delta(self, text: str, logprobs: list[dict[str, Any]]) -> None:
        raise NotImplementedError

    def close(self, status: str) -> None:
        self.status = status
        self._emit_event("response.output_item.done", output_index=self._index, item=self.body())

    def body(self) -> dict[str, Any]:
        return {"id": self.id, "type": self.type, "status": self.status}

    def _emit(self, kind: str, **fields: Any) -> None:
        self._emit_event(kind, item_id=self.id, output_index=self._index, **fields)


class _PartItem(_Item):
    """An item with one part of text. The part has its own events."""

    part_event = "response.content_part"
    text_event = ""
    index_field = "content_index"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._logprobs: list[dict[str, Any]] = []

    def open(self) -> None:
        super().open()
        self._emit_part("added")

    def delta(self, text: str, logprobs: list[dict[str, Any]]) -> None:
        self.text.append(text)
        self._logprobs += logprobs
        self._emit_text("delta", delta=text, **self.logprob_fields(logprobs))

    def close(self, status: str) -> None:
        self._emit_text("done", text=self.all_text, **self.logprob_fields(self._logprobs))
        self._emit_part("done")
        super().close(status)

    def part(self) -> dict[str, Any]:
        raise NotImplementedError

    def parts(self) -> list[dict[str, Any]]:
        """The part as a list; empty before the part has text, unless the item is closed."""
        return [self.part()] if self.text or self.status != "in_progress" else []

    def logprob_fields(self, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
        """The field with log probabilities in the events of the text, if these events have one."""
        return {}

    def _emit_part(self, kind: str) -> None:
        self._emit(f"{self.part_event}.{kind}", **{self.index_field: 0}, part=self.part())

    def _emit_text(self, kind: str, **fields: Any) -> None:
        self._emit(f"{self.text_event}.{kind}", **{self.index_field: 0}, **fields)


class _Message(_PartItem):
    type = "message"
    text_event = "response.output_text"

    def part(self) -> dict[str, Any]:
        return {"type": "output_text", "text": self.all_text, "annotations": [], "logprobs": self._logprobs}

    def body(self) -> dict[str, Any]:
        return {**super().body(), "role": "assistant", "content": self.parts()}

    def logprob_fields(self, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
        return {"logprobs": logprobs}


class _Reasoning(_PartItem):
    """Reasoning as text."""

    type = "reasoning"
    text_event = "response.reasoning_text"

    def part(self) -> dict[str, Any]:
        return {"type": "reasoning_text", "text": self.all_text}

    def body(self) -> dict[str, Any]:
        body = {**super().body(), **self._contents()}
        if self._request.includes_encrypted and self.status != "in_progress":
            body["encrypted_content"] = encode_reasoning(self.all_text)
        return body

    def _contents(self) -> dict[str, Any]:
        return {"summary": [], "content": self.parts()}


class _SummarisedReasoning(_Reasoning):
    """Reasoning as a summary, which has the full text."""

    part_event = "response.reasoning_summary_part"
    text_event = "response.reasoning_summary_text"
    index_field = "summary_index"

    def part(self) -> dict[str, Any]:
        return {"type": "summary_text", "text": self.all_text}

    def _contents(self) -> dict[str, Any]:
        return {"summary": self.parts()}


class _Call(_Item):
    """A tool call."""

    def __init__(
        self, id: str, index: int, emit: Emit, request: ResponsesRequest, call: ToolCallStart, tool: Tool | None
    ) -> None:
        super().__init__(id, index, emit, request)
        self._call_id = call.id
        self._name = call.name if tool is None else tool.name
        self._namespace = {"namespace": tool.namespace} if tool is not None and tool.namespace else {}

    def body(self) -> dict[str, Any]:
        return {**super().body(), "call_id": self._call_id, "name": self._name, **self._namespace}


class _FunctionCall(_Call):
    type = "function_call"

    def delta(self, text: str, logprobs: list[dict[str, Any]]) -> None:
        self.text.append(text)
        self._emit("response.function_call_arguments.delta", delta=text)

    def close(self, status: str) -> None:
        self._emit("response.function_call_arguments.done", name=self._name, arguments=self.all_text)
        super().close(status)

    def body(self) -> dict[str, Any]:
        return {**super().body(), "arguments": self.all_text}


class _CustomCall(_Call):
    """A call of a custom tool. The model calls a function with one argument, the input of the tool."""

    type = "custom_tool_call"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._argument = InputArgument()

    def delta(self, text: str, logprobs: list[dict[str, Any]]) -> None:
        self._add(self._argument.feed(text))

    def close(self, status: str) -> None:
        self._add(self._argument.rest())
        self._emit("response.custom_tool_call_input.done", input=self.all_text)
        super().close(status)

    def body(self) -> dict[str, Any]:
        return {**super().body(), "input": self.all_text}

    def _add(self, text: str) -> None:
        if text:
            self.text.append(text)
            self._emit("response.custom_tool_call_input.delta", delta=text)


class InputArgument:
    """Incrementally decodes the string in `{"input": "..."}` from pieces of this JSON text."""

    _START = re.compile(r'\s*\{\s*"input"\s*:\s*"')
    # Complete characters. An incomplete escape, or the first half of a surrogate pair, waits for the next piece.
    _WHOLE = re.compile(
        r"""(?: [^"\\] | \\["\\/bfnrt] | \\u(?![dD][89abAB])[0-9a-fA-F]{4}
            | \\u[dD][89abAB][0-9a-fA-F]{2} (?: \\u[0-9a-fA-F]{4} | (?=[^\\]|\\[^u]) ) )*""",
        re.VERBOSE,
    )

    def __init__(self) -> None:
        self._raw = ""
        self._is_inside = self._is_over = False

    def feed(self, piece: str) -> str:
        self._raw += piece
        if not self._is_inside and (start := self._START.match(self._raw)):
            self._is_inside, self._raw = True, self._raw[start.end() :]
        if not self._is_inside or self._is_over:
            return ""
        whole = self._WHOLE.match(self._raw)
        text = whole[0] if whole else ""
        self._raw = self._raw[len(text) :]
        self._is_over = self._raw.startswith('"')
        return str(json.loads(f'"{text}"', strict=False))

    def rest(self) -> str:
        """The rest of the input. Arguments of any other format are returned unchanged."""
        return "" if self._is_inside else self._raw
