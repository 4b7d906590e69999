"""POST /v1/messages, the response: encodes output events as a stream of events, or as one message.

The events of a content block (start, deltas, stop) are complete before the next block begins.
"""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

from ..core.errors import ApiError, ContextLengthExceeded
from ..core.usage import Usage
from .chat import ChatRequest
from .encoder import CALL, CONTENT, REASONING, Block, Choice, Encoder, Interface
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


class MessageEncoder(Encoder[ChatRequest]):
    """Encodes a message."""

    def started(self) -> None:
        self._emit("message_start", message=self._message([]))
        self._emit("ping")

    def opened(self, choice: Choice, block: Block) -> None:
        self._emit("content_block_start", index=block.index, content_block=_block_body(block, is_open=True))

    def delta(self, choice: Choice, block: Block, text: str) -> None:
        kind, name = _DELTAS[block.kind]
        self._emit("content_block_delta", index=block.index, delta={"type": kind, name: text})

    def closed(self, choice: Choice, block: Block) -> None:
        if block.kind == REASONING:
            delta = {"type": "signature_delta", "signature": _signature(block.text)}
            self._emit("content_block_delta", index=block.index, delta=delta)
        self._emit("content_block_stop", index=block.index)

    def finish(self) -> None:
        usage = self.usage()
        self._emit("message_delta", delta=self._stop_fields(usage), usage=_usage_body(usage))
        self._emit("message_stop")

    def failed(self, error: ApiError) -> None:
        self.emit(error_body(error))

    def body(self) -> dict[str, Any]:
        return self._message([_block_body(block) for block in self.choices[0].blocks])

    def _message(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        head, usage = self.head, self.usage()
        return {
            "id": head.id,
            "type": "message",
            "role": "assistant",
            "model": head.model,
            "content": content,
            **self._stop_fields(usage),
            "usage": _usage_body(usage),
        }

    def _stop_fields(self, usage: Usage) -> dict[str, Any]:
        end, max_tokens = self.choices[0].end, self.request.params.max_tokens
        if end is None:
            return {"stop_reason": None, "stop_sequence": None}
        is_context_full = max_tokens is None or usage.n_completion < max_tokens
        reason = _stop_reason(end.reason, end.stop, is_context_full=is_context_full)
        return {"stop_reason": reason, "stop_sequence": end.stop if reason == "stop_sequence" else None}

    def _emit(self, kind: str, **fields: Any) -> None:
        self.emit({"type": kind, **fields})


# For each kind of block, the type of its deltas and the field with their text.
_DELTAS = {
    CONTENT: ("text_delta", "text"),
    REASONING: ("thinking_delta", "thinking"),
    CALL: ("input_json_delta", "partial_json"),
}


def _block_body(block: Block, *, is_open: bool = False) -> dict[str, Any]:
    """A content block, with its text unless it `is_open`."""
    text = "" if is_open else block.text
    if block.kind == CALL:
        return {"type": "tool_use", "id": block.call.id, "name": block.call.name, "input": _arguments(text)}
    if block.kind == REASONING:
        return {"type": "thinking", "thinking": text, "signature": "" if is_open else _signature(text)}
    return {"type": "text", "text": text}


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


INTERFACE = Interface(id_prefix="msg_", parse=parse_messages, encoder=MessageEncoder)
