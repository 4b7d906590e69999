"""Converts between the types of llama-stack and those of OpenAI's API: a module to copy into a program that has both.

Messages, tool definitions, sampling options, replies, log probabilities and streams are converted. Arguments of
llama-stack's types may be its objects or dicts. Results are dicts, or the dataclasses of this module, whose fields have
llama-stack's names. Where llama-stack's own conversions differ from each other or lose data, this module has one rule.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, Union

from localchat.events import Choice, StreamEvent, ToolCall
from localchat.reply.finish_reason import normal_reason
from localchat.reply.payloads import Json
from localchat.request import media
from localchat.schema.shapes import to_plain_json
from localchat.schema.validator import TYPE_NAMES

StopReason = Literal["end_of_turn", "end_of_message", "out_of_tokens"]
Maps = list[dict[str, float]]


def _fields_of(value: Any) -> Mapping[str, Any]:
    """The fields of a dict, a dataclass, a Pydantic model or any other object."""
    if isinstance(value, Mapping):
        return value
    try:
        fields = to_plain_json(value)
    except TypeError:
        fields = getattr(value, "__dict__", None)
    if not isinstance(fields, Mapping):
        raise ValueError(f"expected a dict, dataclass or Pydantic model, got {value!r}")
    return fields


# Stop reasons and sampling

# llama-stack maps these differently in different places; this one table replaces all its maps.
_STOP_REASONS: dict[str, StopReason] = {
    "stop": "end_of_turn",
    "eom": "end_of_message",
    "tool_calls": "end_of_message",
    "length": "out_of_tokens",
}
# The control tokens of the Llama family that end a text, if the server leaves them in it.
_MARKERS: dict[str, StopReason] = {"<|eot_id|>": "end_of_turn", "<|eom_id|>": "end_of_message"}


def stop_reason(raw: str | None) -> StopReason | None:
    """llama-stack's stop reason for a server's finish reason. An unknown reason is "end_of_turn".

    None means that there is no finish reason yet, or that the generation failed.
    """
    if raw is None or not raw.strip():
        return None
    word = raw.strip().lower()
    normal = normal_reason(word)
    return None if normal == "error" else _STOP_REASONS.get(word) or _STOP_REASONS.get(normal or "", "end_of_turn")


# The fields of each sampling strategy that become request fields.
_STRATEGIES = {"greedy": (), "top_p": ("temperature", "top_p"), "top_k": ("temperature", "top_k")}


def sampling_options(params: Any) -> Json:
    """The request fields for llama-stack's SamplingParams; none for None.

    Every field that is not None is sent, also one that llama-stack does not have, such as min_p and seed. A repetition
    penalty of 1 has no effect and is omitted. Raises ValueError for an unknown strategy.
    """
    fields = dict(_fields_of(params)) if params is not None else {}
    strategy, penalty = _fields_of(fields.pop("strategy", None) or {}), fields.pop("repetition_penalty", None)
    kind = str(strategy.get("type"))
    if strategy and kind not in _STRATEGIES:
        raise ValueError(f"unknown sampling strategy {kind!r}: use greedy, top_p or top_k")
    options: Json = {name: strategy.get(name) for name in _STRATEGIES.get(kind, ())}
    options.update(fields)
    if kind == "greedy":
        options["temperature"] = 0.0
    if penalty != 1.0:
        options["repeat_penalty"] = penalty
    return {name: value for name, value in options.items() if value is not None}


# Log probabilities: for each position, a map of token to log probability


def completion_logprobs(logprobs: Any, text: str = "") -> Maps | None:
    """The maps for the field `logprobs` of a completion, or of a piece of one.

    Some servers send only a number for a piece, whose text is `text`.
    """
    if isinstance(logprobs, (int, float)):
        return [{text: float(logprobs)}]
    if not isinstance(logprobs, Mapping):
        return None
    if logprobs.get("top_logprobs"):
        return [dict(position or {}) for position in logprobs["top_logprobs"]]
    tokens, values = logprobs.get("tokens"), logprobs.get("token_logprobs")
    return [{token: value} for token, value in zip(tokens, values)] if tokens and values else None


def chat_logprobs(items: Iterable[Any] | None) -> Maps | None:
    """The maps for the items of a chat response: the alternatives, and the sampled token too."""
    positions = [
        {option["token"]: option["logprob"] for option in (*(item.get("top_logprobs") or ()), item)}
        for item in items or ()
        if isinstance(item, Mapping)
    ]
    return positions or None


# Tool definitions

_TYPES = {**{kind.__name__: name for kind, name in TYPE_NAMES.items()}, "none": "null"}


def type_schema(name: str) -> Json:
    """The schema of a Python annotation, such as "list[int]" or "Optional[str]", or of the name of a JSON type."""
    name = name.strip().replace("typing.", "")
    optional = re.fullmatch(r"Optional\[(.+)\]|(.+)\| *None", name)
    if optional:
        return {"anyOf": [type_schema(optional[1] or optional[2]), {"type": "null"}]}
    outer, _, inner = name.partition("[")
    plain = {} if name == "Any" else {"type": _TYPES.get(outer.lower(), outer)}
    return {**plain, "items": type_schema(inner[:-1])} if plain.get("type") == "array" and inner else plain


def tool_definition(tool: Any) -> Json:
    """Convert a llama-stack ToolDefinition. A default of None is omitted; 0, False and "" are kept."""
    tool = _fields_of(tool)
    parameters = {name: _fields_of(parameter) for name, parameter in (tool.get("parameters") or {}).items()}
    function: Json = {"name": _tool_name(tool["tool_name"])}
    if tool.get("description"):
        function["description"] = tool["description"]
    if parameters:
        required = [name for name, parameter in parameters.items() if parameter.get("required", True)]
        properties = {name: _parameter(parameter) for name, parameter in parameters.items()}
        function["parameters"] = {"type": "object", "properties": properties}
        if required:
            function["parameters"]["required"] = required
    return {"type": "function", "function": function}


def _parameter(parameter: Mapping[str, Any]) -> Json:
    described = {name: parameter.get(name) for name in ("description", "default")}
    kept = {name: value for name, value in described.items() if value is not None}
    return {**type_schema(parameter["param_type"]), **kept}


def _tool_name(name: Any) -> str:
    """The name of a tool. In llama-stack, built-in tools are members of an enum."""
    return str(name.value if isinstance(name, Enum) else name or "")


# Messages

_ROLES = {"user": "user", "assistant": "assistant", "tool": "tool", "system": "system", "developer": "system"}


def to_openai(message: Any) -> Json:
    """Convert a llama-stack message to OpenAI's. The role `developer` becomes `system`.

    Raises ValueError for an unknown role or type of content.
    """
    message = _fields_of(message)
    role = _ROLES.get(str(message.get("role", "")))
    if role is None:
        raise ValueError(f"the role must be one of {', '.join(_ROLES)}, not {message.get('role')!r}")
    content, calls = message.get("content"), message.get("tool_calls")
    has_calls = role == "assistant" and bool(calls)
    converted: Json = {"role": role, "content": None if has_calls and content is None else _content(content)}
    converted.update(message.get("extra") or {})
    if has_calls:
        converted["tool_calls"] = [_call(_fields_of(call)) for call in calls]
    if role == "tool":
        converted["tool_call_id"] = message.get("call_id", "")
    return converted


def _call(call: Mapping[str, Any]) -> Json:
    """Convert a call. The text of the arguments is kept if it is known, for the prefix cache of the server."""
    arguments = call.get("arguments_json") or call.get("arguments") or {}
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    function = {"name": _tool_name(call.get("tool_name")), "arguments": text}
    return {**(call.get("extra") or {}), "id": call.get("call_id", ""), "type": "function", "function": function}


def _content(content: Any) -> Any:
    if content is None or isinstance(content, str):
        return content or ""
    return [_part(item) for item in (content if isinstance(content, Sequence) else [content])]


def _part(item: Any) -> Json:
    if isinstance(item, str):
        return {"type": "text", "text": item}
    item = _fields_of(item)
    kind = item.get("type")
    if kind == "text":
        return {"type": "text", "text": item["text"]}
    if kind == "image":
        return _image(_fields_of(item.get("image") or item))
    if kind == "image_url":  # A part of OpenAI's API.
        return dict(item)
    raise ValueError(f"there is no counterpart of content of type {kind!r}")


def _image(image: Mapping[str, Any]) -> Json:
    url, data = image.get("url"), image.get("data")
    if url is not None:
        return media.image_part(url if isinstance(url, str) else _fields_of(url)["uri"])
    if data is None:
        raise ValueError("an image needs a url or data")
    try:
        return media.image_part(base64.b64decode(data, validate=True) if isinstance(data, str) else bytes(data))
    except binascii.Error as error:
        raise ValueError(f"the data of an image is not base64: {error}") from error


# Calls and replies


@dataclass(frozen=True)
class StackCall:
    """A call with its arguments decoded, and as the text that the model generated."""

    call_id: str
    tool_name: str
    arguments: dict[str, Any]
    arguments_json: str
    # Other fields of the call, which the next request has to contain.
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class UnparseableToolCall:
    """A call whose arguments, kept as text, are not a JSON object."""

    call_id: str = ""
    tool_name: str = ""
    arguments: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)


AnyCall = Union[StackCall, UnparseableToolCall]


def stack_calls(calls: Iterable[ToolCall | Mapping[str, Any]] | None) -> list[AnyCall]:
    """Convert the calls of a reply or of a message; None is no calls.

    This never raises, and one unparseable call does not affect the others.
    """
    return [_stack_call(call) for call in calls or ()]


def _stack_call(call: ToolCall | Mapping[str, Any]) -> AnyCall:
    if isinstance(call, ToolCall):
        id, name, text, extra = call.id, call.name, call.arguments_json, call.extra
    else:
        function = call.get("function")
        function = function if isinstance(function, Mapping) else {}
        arguments = function.get("arguments")
        text = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
        id, name = call.get("id") or "", function.get("name") or ""
        extra = {key: value for key, value in call.items() if key not in ("id", "type", "function", "index")}
    try:
        parsed = json.loads(text or "{}")
    except (ValueError, RecursionError):
        parsed = None
    complete = isinstance(parsed, dict) and name
    return StackCall(id, name, parsed, text, extra) if complete else UnparseableToolCall(id, name, text, extra)


@dataclass(frozen=True)
class StackReply:
    """A complete response, with the fields of llama-stack's CompletionMessage."""

    content: str
    tool_calls: tuple[AnyCall, ...]
    stop_reason: StopReason | None
    logprobs: Maps | None
    # Other fields of the message, which the next request has to contain, such as reasoning.
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)


def stack_reply(choice: Choice) -> StackReply:
    """Convert a choice of a reply."""
    markers = _Markers()
    content, calls = markers.remove(choice.text, is_last=True), stack_calls(choice.tool_calls)
    reason = markers.stop_reason(choice.finish_reason_raw or choice.finish_reason, bool(calls))
    known = {"role", "tool_calls", *(["content"] if choice.message["content"] == choice.text else [])}
    extra = {name: value for name, value in choice.message.items() if name not in known}
    return StackReply(content, tuple(calls), reason, chat_logprobs(choice.logprobs), extra)


class _Markers:
    """Removes the markers of the Llama family from text that comes in pieces of any size."""

    def __init__(self) -> None:
        self._held = ""  # The end of the text, which may be the beginning of a marker.
        self._reason: StopReason | None = None  # The stop reason of the first marker.

    def remove(self, text: str, is_last: bool = False) -> str:
        """The text without markers. What may begin a marker is held back, unless the text is the last one."""
        text = self._held + text
        for marker, reason in _MARKERS.items():
            if marker in text:
                self._reason = self._reason or reason
                text = text.replace(marker, "")
        longest = 0 if is_last else min(len(text), max(map(len, _MARKERS)) - 1)
        ends = (len(text) - length for length in range(longest, 0, -1))
        end = next((end for end in ends if any(marker.startswith(text[end:]) for marker in _MARKERS)), len(text))
        self._held = text[end:]
        return text[:end]

    def stop_reason(self, finish_reason: str | None, has_calls: bool = False) -> StopReason | None:
        """The stop reason of a message. One with calls is not the end of the turn."""
        reason = self._reason or stop_reason(finish_reason)
        return "end_of_message" if has_calls and reason == "end_of_turn" else reason


# Streams


@dataclass(frozen=True)
class CompletionPiece:
    """A piece of a streamed completion. The last one has the stop reason and no text."""

    delta: str
    stop_reason: StopReason | None = None
    logprobs: Maps | None = None


@dataclass(frozen=True)
class StackText:
    """llama-stack's TextDelta."""

    text: str


@dataclass(frozen=True)
class StackToolCall:
    """llama-stack's ToolCallDelta: text while the call is generated, then the complete call."""

    tool_call: str | StackCall
    parse_status: Literal["started", "in_progress", "succeeded", "failed"]


@dataclass(frozen=True)
class StackEvent:
    """llama-stack's event of a streamed chat response."""

    event_type: Literal["start", "progress", "complete"]
    delta: StackText | StackToolCall
    stop_reason: StopReason | None = None
    logprobs: Maps | None = None


def completion_pieces(events: Iterable[StreamEvent]) -> Iterator[CompletionPiece]:
    """Convert the events of a completion. The error of a failed or cut stream is raised."""
    for event in _stack_events(events, 0, completion_logprobs):
        if event.event_type != "start" and isinstance(event.delta, StackText):
            yield CompletionPiece(event.delta.text, event.stop_reason, event.logprobs)


def stack_events(events: Iterable[StreamEvent], choice_index: int = 0) -> Iterator[StackEvent]:
    """Convert the events of one choice of a chat stream.

    The result has one `start` event, `progress` events for text and calls, and one `complete` event with the stop
    reason. The error of a failed or cut stream is raised; there is no `complete` event then. Events of other types,
    such as reasoning and token counts, have no counterpart in llama-stack.
    """
    return _stack_events(events, choice_index, lambda logprobs, text: chat_logprobs((logprobs or {}).get("content")))


def _stack_events(
    events: Iterable[StreamEvent], choice_index: int, read_logprobs: Callable[[Any, str], Maps | None]
) -> Iterator[StackEvent]:
    markers = _Markers()
    started: set[int] = set()  # The indexes of the calls that have a `started` event.
    has_calls = False
    for event in events:
        if event.type == "message_start":
            yield StackEvent("start", StackText(""))
        elif event.choice_index != choice_index:
            continue
        elif event.type == "content_delta":
            text = markers.remove(event.delta)
            if text:
                yield StackEvent("progress", StackText(text), None, read_logprobs(_logprobs(event), event.delta))
        elif event.type == "tool_call_delta":  # The text of a call is `name(arguments)`.
            if event.index not in started:
                started.add(event.index)
                yield StackEvent("progress", StackToolCall("", "started"))
                yield StackEvent("progress", StackToolCall(f"{event.name}(", "in_progress"))
            if event.delta:
                yield StackEvent("progress", StackToolCall(event.delta, "in_progress"))
        elif event.type == "tool_call":
            has_calls = True
            if event.index in started:
                yield StackEvent("progress", StackToolCall(")", "in_progress"))
            call, text = _stack_call(event), f"{event.name}({event.arguments_json})"
            done = StackToolCall(call, "succeeded") if isinstance(call, StackCall) else StackToolCall(text, "failed")
            yield StackEvent("progress", done)
        elif event.type == "message_stop":
            rest = markers.remove("", is_last=True)
            if rest:
                yield StackEvent("progress", StackText(rest))
            reason = markers.stop_reason(event.reason_raw or event.reason, has_calls)
            yield StackEvent("complete", StackText(""), reason)


def _logprobs(event: StreamEvent) -> Any:
    """The field `logprobs` in the payload of an event."""
    choices = event.raw.get("choices") if isinstance(event.raw, Mapping) else None
    listed = choices if isinstance(choices, list) else []
    own = (one for one in listed if isinstance(one, Mapping) and one.get("index", 0) == event.choice_index)
    return next(own, {}).get("logprobs")
