"""POST /v1/messages, the response: encodes output events as a stream of events, or as one message.

The events of a content block (start, deltas, stop) are complete before the next block begins.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from typing import Any

from ..core.errors import ApiError, ContextLengthExceeded
from ..core.events import ContentDelta, OutputEnd, OutputEvent, ReasoningDelta, ToolCallArguments, ToolCallStart
from ..core.interface import Interface, ResponseHead
from ..core.json_text import to_json
from ..core.usage import Usage
from .chat import ChatRequest
from .messages import parse_messages

# The error type for each HTTP status. Any other status is an "api_error".
_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    411: "invalid_request_error",
    413: "request_too_large",
    429: "rate_limit_error",
    501: "invalid_request_error",
    503: "overloaded_error",
}

PING = '{"type":"ping"}'


def error_body(error: ApiError) -> dict[str, Any]:
    """The error object in Anthropic's format."""
    message = error.message
    if isinstance(error, ContextLengthExceeded) and error.n_ctx:
        message = f"prompt is too long: {error.n_tokens} tokens > {error.n_ctx} maximum"
    return {"type": "error", "error": {"type": _ERROR_TYPES.get(error.status, "api_error"), "message": message}}


def _stop_reason(reason: str, stop: str | int | None, *, is_context_full: bool) -> str:
    """The `stop_reason` for a finish reason. `stop` is the stop text or token that ended the output, if any."""
    if reason == "length":
        return "model_context_window_exceeded" if is_context_full else "max_tokens"
    if reason == "tool_calls":
        return "tool_use"
    return "end_turn" if stop is None else "stop_sequence"


def _usage_body(usage: Usage) -> dict[str, Any]:
    """The token counts. As in Anthropic's API, `input_tokens` excludes cached tokens."""
    return {
        "input_tokens": usage.n_prompt - usage.n_cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.n_cached,
        "output_tokens": usage.n_completion,
    }


class MessageEncoder:
    """Encodes the events of a stream, each as JSON text that begins with its type, or a message as one body."""

    def __init__(self, head: ResponseHead, request: ChatRequest, usage: Callable[[], Usage] | None = None) -> None:
        """`usage` returns the counts so far, for a stream; None: encode one body."""
        self._head = {"id": head.id, "type": "message", "role": "assistant", "model": head.model}
        self._max_tokens = request.params.max_tokens
        self._usage_so_far = usage
        self._is_started = False
        self._end: OutputEnd | None = None
        self._blocks: list[dict[str, Any]] = []
        # The pieces of text of the open block; None: no block is open.
        self._pieces: list[str] | None = None
        self._chunks: list[str] = []

    def add(self, index: int, event: OutputEvent) -> None:
        self._start()
        if isinstance(event, ContentDelta):
            self._text("text", event.text, {"type": "text_delta", "text": event.text})
        elif isinstance(event, ReasoningDelta):
            self._text("thinking", event.text, {"type": "thinking_delta", "thinking": event.text})
        elif isinstance(event, ToolCallStart):
            self._open({"type": "tool_use", "id": event.id, "name": event.name, "input": {}})
        elif isinstance(event, ToolCallArguments):
            self._grow(event.text, {"type": "input_json_delta", "partial_json": event.text})
        elif isinstance(event, OutputEnd):
            self._close()
            self._end = event

    def take(self) -> list[str]:
        chunks, self._chunks = self._chunks, []
        return chunks

    def finish(self) -> list[str]:
        assert self._usage_so_far is not None
        usage = self._usage_so_far()
        self._start()
        self._emit("message_delta", delta=self._stop_fields(usage), usage=_usage_body(usage))
        self._emit("message_stop")
        return self.take()

    def failed(self, error: ApiError) -> list[str]:
        return [*self.take(), to_json(error_body(error))]

    def body(self, usage: Usage) -> dict[str, Any]:
        return {**self._head, "content": self._blocks, **self._stop_fields(usage), "usage": _usage_body(usage)}

    def _start(self) -> None:
        if self._usage_so_far is None or self._is_started:
            return
        self._is_started = True
        self._emit("message_start", message=self.body(self._usage_so_far()))
        self._chunks.append(PING)

    def _stop_fields(self, usage: Usage) -> dict[str, Any]:
        if self._end is None:
            return {"stop_reason": None, "stop_sequence": None}
        is_context_full = self._max_tokens is None or usage.n_completion < self._max_tokens
        reason = _stop_reason(self._end.reason, self._end.stop, is_context_full=is_context_full)
        return {"stop_reason": reason, "stop_sequence": self._end.stop if reason == "stop_sequence" else None}

    def _text(self, kind: str, text: str, delta: dict[str, Any]) -> None:
        if self._pieces is None or self._blocks[-1]["type"] != kind:
            signature = {"signature": ""} if kind == "thinking" else {}
            self._open({"type": kind, kind: "", **signature})
        self._grow(text, delta)

    def _open(self, block: dict[str, Any]) -> None:
        self._close()
        # Copy the block: text is added to it later, and the event needs the empty one.
        self._emit("content_block_start", index=len(self._blocks), content_block=block)
        self._blocks.append(dict(block))
        self._pieces = []

    def _grow(self, text: str, delta: dict[str, Any]) -> None:
        assert self._pieces is not None, "a delta belongs to an open block"
        self._pieces.append(text)
        if text:
            self._emit("content_block_delta", index=len(self._blocks) - 1, delta=delta)

    def _close(self) -> None:
        if self._pieces is None:
            return
        block, text, index = self._blocks[-1], "".join(self._pieces), len(self._blocks) - 1
        if block["type"] == "tool_use":
            block["input"] = _arguments(text)
        else:
            block[block["type"]] = text
        if block["type"] == "thinking":
            block["signature"] = _signature(text)
            self._emit(
                "content_block_delta", index=index, delta={"type": "signature_delta", "signature": block["signature"]}
            )
        self._emit("content_block_stop", index=index)
        self._pieces = None

    def _emit(self, kind: str, **fields: Any) -> None:
        if self._usage_so_far is not None:
            self._chunks.append(to_json({"type": kind, **fields}))


def _signature(thinking: str) -> str:
    """A signature for thinking: clients require one, and send it back with the thinking. It is not verified here."""
    return base64.b64encode(hashlib.sha256(thinking.encode("utf-8", "replace")).digest()).decode()


def _arguments(text: str) -> Any:
    """The arguments of a call as an object. Arguments cut by the length limit are kept as text in a field."""
    try:
        value = json.loads(text or "{}")
    except ValueError:
        return {"_incomplete_json": text}
    return value if isinstance(value, dict) else {"_value": value}


INTERFACE = Interface(id_prefix="msg_", parse=parse_messages, stream=MessageEncoder, whole=MessageEncoder)
