"""POST /v1/messages (Anthropic's Messages API): parses a JSON body into a ChatRequest, and encodes the response."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from ..core.errors import ApiError, ContextLengthExceeded
from ..core.events import Usage
from ..core.fields import Fields, without_nulls
from ..core.params import read_params
from ..core.request import ChatRequest
from .chat import ends_in_prefill
from .content import MessageAt, Origin, messages_with_paths, part_text, read_messages, read_text
from .encoder import CALL, CONTENT, REASONING, Block, Choice, Encoder, arguments_object
from .response_formats import read_format_object
from .tools import ToolAt, ToolFields, chosen_tools, function_tool, is_of_type, tool_call

# Claude Code begins the first system block with a line for billing that differs in every request. The line is dropped:
# the model does not need it, and it would prevent requests from sharing a cached prefix.
_BILLING_LINE = re.compile(r"\Ax-anthropic-[\w-]+:[^\n]*\n*")

# Fields that have no effect on the output of this server, besides those of other interfaces.
_WITHOUT_EFFECT = ("cache_control", "context_management", "container", "inference_geo", "diagnostics", "speed")

_TOOL_CHOICES = {"auto": "auto", "any": "required", "tool": "required", "none": "none"}


def parse_messages(body: Fields) -> ChatRequest:
    if body.integer("max_tokens", 1) is None:
        body.refuse("max_tokens", "an integer of at least 1")
    return _chat_request(body)


def parse_count_tokens(body: Fields) -> ChatRequest:
    """The request in a body of POST /v1/messages/count_tokens, which has no `max_tokens`."""
    return _chat_request(body)


def _chat_request(body: Fields) -> ChatRequest:
    body.accept(_WITHOUT_EFFECT)
    messages = messages_with_paths([*_system(body), *read_messages(body, _convert)])
    tools, tool_choice = tuple(_tools(body)), body.object_or_empty("tool_choice")
    thinking, output = body.object_or_empty("thinking"), body.object_or_empty("output_config")
    kind = thinking.choice("type", ("enabled", "adaptive", "between_tools", "disabled"))
    # Reasoning is off by default: clients that do not request thinking expect text in the first block.
    variables = {"enable_thinking": kind not in (None, "disabled"), "reasoning_effort": output.text("effort")}
    # `output_format` is the older name of `output_config.format`.
    format = output.object("format") or body.object("output_format")
    return ChatRequest(
        model=body.text("model") or "",
        **messages,
        attachments=tuple(body.attachments),
        **_tool_choice(body, tool_choice, tools),
        parallel_tool_calls=tool_choice.boolean("disable_parallel_tool_use") is not True,
        response_format=read_format_object(format),
        chat_template_kwargs=without_nulls(variables),
        reasoning_budget=thinking.integer("budget_tokens", 0),
        continue_final_message=ends_in_prefill(messages["messages"]),
        params=read_params(body, lengths=("max_tokens",), stop="stop_sequences"),
        stream=body.boolean("stream") or False,
    )


def _tools(body: Fields) -> Iterator[ToolAt]:
    """The functions. Tools that run on Anthropic's servers, which agents also send, are skipped."""
    body.check_size("tools")
    for tool in body.objects("tools"):
        if is_of_type(tool, "custom"):
            tool.required_object("input_schema")
            named = {name: tool.raw.get(name) for name in ("name", "description", "strict", "input_schema")}
            yield function_tool(tool.child(named, tool.path), "input_schema")


def _tool_choice(body: Fields, choice: Fields, tools: tuple[ToolAt, ...]) -> ToolFields:
    kind = choice.choice("type", _TOOL_CHOICES) or "auto"
    names = [choice.nonempty_text("name")] if kind == "tool" else []
    return chosen_tools(body, "tool_choice", _TOOL_CHOICES[kind], names, tools)


def _system(body: Fields) -> list[MessageAt]:
    value = body.get("system")
    texts = [value] if isinstance(value, str) else [part_text(block) for block in body.objects("system")]
    texts[:1] = [_BILLING_LINE.sub("", text) for text in texts[:1]]
    text = "\n\n".join(filter(None, texts))
    return [({"role": "system", "content": text}, "system")] if text else []


def _convert(message: Fields, origin: Origin) -> Iterator[dict[str, Any]]:
    """The chat messages for one message. A user message with tool results yields several."""
    role, content = message.required_choice("role", ("user", "assistant", "system")), message.get("content")
    if not isinstance(content, list) or not content:
        yield {"role": role, "content": read_text(message, "content", origin)}
    elif role == "assistant":
        yield _assistant(message)
    else:
        yield from _user(message, role, origin)


def _assistant(message: Fields) -> dict[str, Any]:
    content, thoughts = "", list[str]()
    calls = []
    for block in message.objects("content"):
        kind = block.text("type")
        if kind == "tool_use":
            arguments = block.object_or_empty("input").raw
            calls.append(tool_call(block.text("id"), block.nonempty_text("name"), arguments))
        elif kind == "thinking":
            thoughts.append(block.text("thinking") or "")
        elif kind != "redacted_thinking":  # Its text is encrypted, and only Anthropic's servers can decrypt it.
            content += part_text(block, Origin.OUTPUT)
    others = {"reasoning_content": "\n\n".join(filter(None, thoughts)) or None, "tool_calls": calls or None}
    return without_nulls({"role": "assistant", "content": content or (None if calls else ""), **others})


def _user(message: Fields, role: str, origin: Origin) -> Iterator[dict[str, Any]]:
    """A message for each tool result, and one for each run of text blocks, joined without a separator."""
    for is_result, blocks in groupby(message.objects("content"), lambda block: block.get("type") == "tool_result"):
        if is_result:
            yield from map(_tool_result, blocks)
        else:
            yield {"role": role, "content": "".join(part_text(block, origin) for block in blocks)}


def _tool_result(block: Fields) -> dict[str, Any]:
    id = block.nonempty_text("tool_use_id")
    text = read_text(block, "content", Origin.RESULT)
    if block.boolean("is_error") and not text.lower().startswith("error"):
        text = f"Error: {text}"
    return {"role": "tool", "tool_call_id": id, "content": text}


# The error types of HTTP statuses. Others are "invalid_request_error" below 500, and "api_error".
_ERROR_TYPES = {
    401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large",
    429: "rate_limit_error", 503: "overloaded_error",
}  # fmt: skip
_SIGNATURE = "localchat"  # Of thinking. Clients require it and send it back; this server does not verify it.


def error_body(error: ApiError) -> dict[str, Any]:
    message = error.message
    if isinstance(error, ContextLengthExceeded) and error.n_ctx:
        message = f"prompt is too long: {error.n_tokens} tokens > {error.n_ctx} maximum"
    kind = _ERROR_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


def _usage_body(usage: Usage) -> dict[str, Any]:
    """The token counts. As in Anthropic's API, `input_tokens` excludes cached tokens."""
    return {
        "input_tokens": usage.n_prompt - usage.n_cached, "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.n_cached, "output_tokens": usage.n_completion,
    }  # fmt: skip


class MessageEncoder(Encoder[ChatRequest]):
    id_prefix = "msg_"

    @classmethod
    def ping_chunk(cls, request: ChatRequest) -> Any:
        return {"type": "ping"}

    def started(self) -> None:
        self._emit("message_start", message=self._message([]))
        self.emit(self.ping_chunk(self.request))

    def opened(self, choice: Choice, block: Block) -> None:
        self._emit("content_block_start", index=block.index, content_block=_block_body(block, is_open=True))

    def delta(self, choice: Choice, block: Block, text: str) -> None:
        kind, name = _DELTAS[block.kind]
        self._emit("content_block_delta", index=block.index, delta={"type": kind, name: text})

    def closed(self, choice: Choice, block: Block) -> None:
        if block.kind == REASONING:
            delta = {"type": "signature_delta", "signature": _SIGNATURE}
            self._emit("content_block_delta", index=block.index, delta=delta)
        self._emit("content_block_stop", index=block.index)

    def finish(self) -> None:
        usage = self.usage()
        self._emit("message_delta", delta=self._stop_fields(usage), usage=_usage_body(usage))
        self._emit("message_stop")

    def body(self) -> dict[str, Any]:
        return self._message([_block_body(block) for block in self.choices[0].blocks])

    def _message(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        head, usage = self.head, self.usage()
        return {
            "id": head.id, "type": "message", "role": "assistant", "model": head.model, "content": content,
            **self._stop_fields(usage), "usage": _usage_body(usage),
        }  # fmt: skip

    def _stop_fields(self, usage: Usage) -> dict[str, Any]:
        end, max_tokens = self.choices[0].end, self.request.params.max_tokens
        if end is None:
            return {"stop_reason": None, "stop_sequence": None}
        if end.reason == "length":
            is_full = max_tokens is None or usage.n_completion < max_tokens
            reason = "model_context_window_exceeded" if is_full else "max_tokens"
        elif end.reason == "tool_calls":
            reason = "tool_use"
        else:
            reason = "end_turn" if end.stop is None else "stop_sequence"
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
        return {"type": "tool_use", "id": block.call.id, "name": block.call.name, "input": arguments_object(text)}
    if block.kind == REASONING:
        return {"type": "thinking", "thinking": text, "signature": "" if is_open else _SIGNATURE}
    return {"type": "text", "text": text}
