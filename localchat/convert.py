"""llama-stack's vocabulary and OpenAI's, converted both ways. No I/O, and llama-stack need not be there.

Messages, tool definitions, sampling options, replies and log probabilities, and `stack_events`, which shows a stream
as llama-stack does (docs/contract.md has the rows). What comes from llama-stack may be its objects or dicts; what goes
there is dicts, or the small classes below, which have its names. Where llama-stack's own conversions disagree or lose
something, one rule holds everywhere.
"""

from __future__ import annotations

import ast
import base64
import binascii
import json
import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, Union

from . import media, schema
from .events import Choice, ContentDelta, MessageStop, StreamEvent, ToolCall, ToolCallDelta
from .payloads import normal_reason

log = logging.getLogger(__name__)

Json = dict[str, Any]
StopReason = Literal["end_of_turn", "end_of_message", "out_of_tokens"]
ParseStatus = Literal["started", "in_progress", "succeeded", "failed"]


# Stop reasons and sampling

# One table, where llama-stack's own conversions disagree.
_STOP_REASONS: dict[str, StopReason] = {
    "stop": "end_of_turn",
    "eos": "end_of_turn",
    "eos_token": "end_of_turn",
    "eom": "end_of_message",
    "tool_calls": "end_of_message",
    "function_call": "end_of_message",
    "length": "out_of_tokens",
}


def stop_reason(raw: str | None) -> StopReason | None:
    """llama-stack's stop reason for a server's finish reason.

    None means that there is no reason yet, or that the turn failed. An unknown word is an end of the turn.
    """
    if raw is None or not raw.strip():
        return None
    word = raw.strip().lower()
    known = normal_reason(word)
    return None if known == "error" else _STOP_REASONS.get(word) or _STOP_REASONS.get(known or "", "end_of_turn")


# Which members of a strategy are sent. Its temperature goes along with top-k too.
_STRATEGIES = {"greedy": (), "top_p": ("temperature", "top_p"), "top_k": ("temperature", "top_k")}


def sampling_options(params: Any) -> Json:
    """Members of a request for llama-stack's SamplingParams; none for None.

    What is set is sent, zeros included; a repetition penalty of 1 does nothing and is left out. Members
    that llama-stack does not have (min_p, seed) pass through.

    Raises:
        ValueError: A strategy that has no counterpart.
    """
    members = dict(_members(params)) if params is not None else {}
    strategy, penalty = _members(members.pop("strategy", None) or {}), members.pop("repetition_penalty", None)
    kind = str(strategy.get("type"))
    if strategy and kind not in _STRATEGIES:
        raise ValueError(f"there is no counterpart of the sampling strategy {kind!r}")
    options: Json = {name: strategy.get(name) for name in _STRATEGIES.get(kind, ())}
    options.update(members)
    if kind == "greedy":
        options["temperature"] = 0.0
    if penalty != 1.0:
        options["repeat_penalty"] = penalty
    return {name: value for name, value in options.items() if value is not None}


# Log probabilities


def completion_logprobs(logprobs: Mapping[str, Any] | None) -> list[dict[str, float]] | None:
    """A map of token to log probability for each position of a completion."""
    logprobs = logprobs or {}
    if logprobs.get("top_logprobs"):
        return [dict(position or {}) for position in logprobs["top_logprobs"]]
    tokens, values = logprobs.get("tokens"), logprobs.get("token_logprobs")
    return [{token: value} for token, value in zip(tokens, values)] if tokens and values else None


def streamed_logprobs(text: str, logprobs: Any) -> list[dict[str, float]] | None:
    """The same for a piece of a streamed completion, where some servers give a bare number."""
    if isinstance(logprobs, (int, float)):
        return [{text: float(logprobs)}]
    return completion_logprobs(logprobs) if isinstance(logprobs, Mapping) else None


def chat_logprobs(items: Iterable[Any] | None) -> list[dict[str, float]] | None:
    """A map for each position of a chat answer: the alternatives and the chosen token."""
    positions = [
        {option["token"]: option["logprob"] for option in (*(item.get("top_logprobs") or ()), item)}
        for item in items or ()
        if isinstance(item, Mapping)
    ]
    return positions or None


# Tool definitions

_TYPES = {
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "str": "string",
    "list": "array",
    "tuple": "array",
    "set": "array",
    "dict": "object",
    "None": "null",
    "NoneType": "null",
}


def type_schema(name: str) -> Json:
    """The schema of a Python type that is given by name, of JSON's own names as they are."""
    try:
        return _type_schema(ast.parse(name.strip(), mode="eval").body)
    except (SyntaxError, ValueError):
        return {"type": name.strip()}


def _type_schema(node: ast.expr) -> Json:
    """ValueError for what is no annotation."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return {"anyOf": [_type_schema(node.left), _type_schema(node.right)]}
    outer = node.value if isinstance(node, ast.Subscript) else node
    if not isinstance(outer, (ast.Name, ast.Attribute, ast.Constant)):
        raise ValueError(ast.unparse(node))
    word = ast.unparse(outer).rpartition(".")[2]
    kind = word.lower()
    plain: Json = {} if word == "Any" else {"type": _TYPES.get(word) or _TYPES.get(kind, word)}
    if not isinstance(node, ast.Subscript):
        return plain
    inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    if kind == "literal":
        return {"enum": [ast.literal_eval(option) for option in inner]}
    if kind in ("optional", "union"):
        return {"anyOf": [*map(_type_schema, inner), *([{"type": "null"}] if kind == "optional" else [])]}
    return {**plain, "items": _type_schema(inner[0])} if kind in ("list", "set") else plain


def tool_definition(tool: Any) -> Json:
    """OpenAI's form of a llama-stack ToolDefinition. A default of 0, false or "" is one, None is none."""
    tool = _members(tool)
    parameters = {name: _members(parameter) for name, parameter in (tool.get("parameters") or {}).items()}
    function: Json = {"name": _name(tool["tool_name"])}
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


# Tool calls


@dataclass(frozen=True)
class StackCall:
    """A call with its arguments decoded, and as they came."""

    call_id: str
    tool_name: str
    arguments: dict[str, Any]
    arguments_json: str


@dataclass(frozen=True)
class UnparseableToolCall:
    """A call whose arguments are not a JSON object: they stay text."""

    call_id: str = ""
    tool_name: str = ""
    arguments: str = ""


AnyCall = Union[StackCall, UnparseableToolCall]


def stack_call(call: ToolCall | Mapping[str, Any]) -> AnyCall:
    """One call, from an event or from the `tool_calls` of a message. Never raises."""
    if isinstance(call, ToolCall):
        return _stack_call(call.id, call.name, call.arguments_json)
    function = call.get("function")
    function = function if isinstance(function, Mapping) else {}
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
    return _stack_call(call.get("id"), function.get("name"), text)


def stack_calls(calls: Iterable[ToolCall | Mapping[str, Any]] | None) -> list[AnyCall]:
    """All calls of a message; null is none. Good ones stay typed beside bad ones."""
    return [stack_call(call) for call in calls or ()]


def _stack_call(id: Any, name: Any, text: str) -> AnyCall:
    try:
        arguments = json.loads(text or "{}")
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict) or not name:
        return UnparseableToolCall(id or "", name or "", text)
    return StackCall(id or "", name, arguments, text)


# Messages


def to_openai(message: Any) -> Json:
    """A llama-stack message as OpenAI's; `developer` becomes system.

    Raises:
        ValueError: There is no role, an unknown one, or content of an unknown form.
    """
    message = _members(message)
    role = message.get("role")
    if role not in _ROLES:
        raise ValueError(f"the role must be one of {', '.join(_ROLES)}, not {role!r}")
    converted: Json = {"role": _ROLES[role], "content": _openai_content(message.get("content"))}
    if role == "assistant" and message.get("tool_calls"):
        converted["tool_calls"] = [_openai_call(_members(call)) for call in message["tool_calls"]]
    if role == "tool":
        converted["tool_call_id"] = message.get("call_id", "")
    return converted


def from_openai(message: Mapping[str, Any]) -> Json:
    """OpenAI's message as llama-stack's.

    Raises:
        ValueError: There is no role, an unknown one, or content of an unknown form.
    """
    role = message.get("role")
    if role not in _ROLES:
        raise ValueError(f"the role must be one of {', '.join(_ROLES)}, not {role!r}")
    converted: Json = {"role": _ROLES[role], "content": _stack_content(message.get("content"))}
    if role == "assistant":
        calls = stack_calls(message.get("tool_calls"))
        converted.update(tool_calls=[dict(vars(call)) for call in calls])
        converted["stop_reason"] = "end_of_message" if calls else "end_of_turn"
    if role == "tool":
        converted["call_id"] = message.get("tool_call_id", "")
    return converted


def with_parts(message: Mapping[str, Any]) -> Json:
    """A message whose content is a list of parts in any case, its other members as they are."""
    content = _openai_content(message.get("content"))
    return {**message, "content": [{"type": "text", "text": content}] if isinstance(content, str) else content}


_ROLES = {"user": "user", "assistant": "assistant", "tool": "tool", "system": "system", "developer": "system"}


def _openai_call(call: Mapping[str, Any]) -> Json:
    """The arguments go back as they came: another spelling would miss the server's prefix cache."""
    arguments = call.get("arguments_json") or call.get("arguments") or {}
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    function = {"name": _name(call.get("tool_name")), "arguments": text}
    return {"id": call.get("call_id", ""), "type": "function", "function": function}


def _openai_content(content: Any) -> Any:
    if content is None or isinstance(content, str):
        return content or ""
    items = content if isinstance(content, Sequence) else [content]
    return [_openai_part(item) for item in items]


def _openai_part(item: Any) -> Json:
    if isinstance(item, str):
        return {"type": "text", "text": item}
    item = _members(item)
    kind = item.get("type")
    if kind == "text":
        return {"type": "text", "text": item["text"]}
    if kind == "image":
        return _openai_image(_members(item.get("image") or item))
    if kind == "image_url":  # Converted already.
        return dict(item)
    raise ValueError(f"there is no counterpart of content of type {kind!r}")


def _openai_image(image: Mapping[str, Any]) -> Json:
    url, data = image.get("url"), image.get("data")
    if url is not None:
        return media.image_part(url if isinstance(url, str) else _members(url)["uri"])
    if data is None:
        raise ValueError("an image needs a url or data")
    try:
        return media.image_part(base64.b64decode(data, validate=True) if isinstance(data, str) else bytes(data))
    except binascii.Error as error:
        raise ValueError(f"the data of an image is not base64: {error}") from error


def _stack_content(content: Any) -> Any:
    if content is None or isinstance(content, str):
        return content or ""
    return [_stack_item(part) for part in content]


def _stack_item(part: Mapping[str, Any]) -> Json:
    if part.get("type") == "text":
        return {"type": "text", "text": part["text"]}
    if part.get("type") != "image_url":
        raise ValueError(f"there is no counterpart of a part of type {part.get('type')!r}")
    url = part["image_url"]["url"]
    embedded = re.match(r"data:[^,]*;base64,", url)
    return {"type": "image", "image": {"data": url[embedded.end() :]} if embedded else {"url": {"uri": url}}}


def _members(value: Any) -> Mapping[str, Any]:
    """The members of a dict, a dataclass, a Pydantic model or any other object."""
    if isinstance(value, Mapping):
        return value
    try:
        members = schema.plain(value)
    except TypeError:
        members = getattr(value, "__dict__", None)
    if not isinstance(members, Mapping):
        raise ValueError(f"this is no message, call or definition: {value!r}")
    return members


def _name(name: Any) -> str:
    """Built-in tools are members of an enum."""
    return str(name.value if isinstance(name, Enum) else name or "")


# Calls as models of the Llama family write them, in their text

_PYTHON_TAG = "<|python_tag|>"
_MARKS: dict[str, StopReason | None] = {
    "<|eot_id|>": "end_of_turn",
    "<|eom_id|>": "end_of_message",
    _PYTHON_TAG: None,
}
_ANY_MARK = re.compile("|".join(map(re.escape, _MARKS)))
_TAGGED_CALL = re.compile(r"\s*<function=([\w.-]+)>(.*?)</function>\s*", re.DOTALL)
_DOTTED_CALL = re.compile(r"\s*(\w+)\.call\((.*)\)\s*", re.DOTALL)


def native_calls(text: str) -> list[StackCall]:
    """The calls in a text, if it is nothing but calls: JSON objects apart by `;`, <function=...>, or
    `name.call(key="value")`.
    """
    text = text.replace(_PYTHON_TAG, "").strip()
    for read in (_tagged_calls, _dotted_call, _json_calls):
        calls = read(text)
        if calls:
            return calls
    return []


def _tagged_calls(text: str) -> list[StackCall]:
    found = list(_TAGGED_CALL.finditer(text))
    calls = [_stack_call("", match[1], match[2].strip()) for match in found]
    return _all_typed(calls) if _TAGGED_CALL.sub("", text) == "" else []


def _dotted_call(text: str) -> list[StackCall]:
    match = _DOTTED_CALL.fullmatch(text)
    if match is None:
        return []
    try:
        call = ast.parse(f"f({match[2]})", mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            return []  # Several calls, or more than a call.
        if call.args or any(word.arg is None for word in call.keywords):
            return []  # Which parameters these are meant for cannot be told.
        named = {word.arg: ast.literal_eval(word.value) for word in call.keywords}
        return _all_typed([_stack_call("", match[1], json.dumps(named))])
    except (ValueError, SyntaxError, TypeError, RecursionError):
        return []


def _json_calls(text: str) -> list[StackCall]:
    calls: list[AnyCall] = []
    while text:
        try:
            value, end = json.JSONDecoder().raw_decode(text)
        except (ValueError, RecursionError):
            return []
        text = text[end:].lstrip("; \r\n\t")
        if not isinstance(value, dict) or not isinstance(value.get("name"), str):
            return []
        arguments = value.get("parameters", value.get("arguments", {}))
        calls.append(_stack_call("", value["name"], json.dumps(arguments, ensure_ascii=False)))
    return _all_typed(calls)


def _all_typed(calls: Sequence[AnyCall]) -> list[StackCall]:
    typed = [call for call in calls if isinstance(call, StackCall)]
    return typed if len(typed) == len(calls) else []


def _is_offered(call: StackCall, offered: Collection[str] | None) -> bool:
    known = offered is None or call.tool_name in offered
    if not known:
        log.warning("the model calls %r, which was not offered", call.tool_name)
    return known


# Replies


@dataclass(frozen=True)
class StackReply:
    """A whole answer as llama-stack has it."""

    content: str
    tool_calls: tuple[AnyCall, ...]
    stop_reason: StopReason | None
    logprobs: list[dict[str, float]] | None


def stack_reply(choice: Choice, offered: Collection[str] = ()) -> StackReply:
    """A choice as llama-stack has it; the choice has been read from all the forms that servers give it.

    Args:
        choice: Of a reply of Client.chat or Client.complete.
        offered: The names of the tools. Calls are looked for in the text only if there are some;
            those to other names stay text.
    """
    content, marked = _without_mark(choice.text)
    calls: list[AnyCall] = stack_calls(choice.tool_calls)
    if offered and not calls:
        found = native_calls(content)
        calls = [call for call in found if _is_offered(call, offered)]
        content = content if len(calls) < len(found) or not found else ""
    reason = marked or stop_reason(choice.finish_reason_raw or choice.finish_reason)
    if calls and reason == "end_of_turn":
        reason = "end_of_message"  # The calls in the reply decide.
    return StackReply(content, tuple(calls), reason, chat_logprobs(choice.logprobs))


def _without_mark(text: str) -> tuple[str, StopReason | None]:
    """Text without the marker at its end, and what the marker says."""
    for mark, reason in _MARKS.items():
        if reason is not None and text.endswith(mark):
            return text[: -len(mark)], reason
    return text, None


# Streams


@dataclass(frozen=True)
class CompletionPiece:
    """A piece of a streamed completion. The last has no text, but the reason."""

    delta: str
    stop_reason: StopReason | None = None
    logprobs: list[dict[str, float]] | None = None


@dataclass(frozen=True)
class StackText:
    """llama-stack's TextDelta."""

    text: str


@dataclass(frozen=True)
class StackToolCall:
    """llama-stack's ToolCallDelta: text while it is under way, a call when it is complete."""

    tool_call: str | StackCall
    parse_status: ParseStatus


@dataclass(frozen=True)
class StackEvent:
    """One event of llama-stack's view."""

    event_type: Literal["start", "progress", "complete"]
    delta: StackText | StackToolCall
    stop_reason: StopReason | None = None
    logprobs: list[dict[str, float]] | None = None


class _MarkScanner:
    """Finds the markers of the Llama family in text, however it is cut."""

    def __init__(self) -> None:
        self._held = ""
        # What the first marker of an end said.
        self.reason: StopReason | None = None

    def feed(self, text: str) -> Iterator[str]:
        """The text that is certain by now, and each python tag as a piece of its own."""
        self._held += text
        match = _ANY_MARK.search(self._held)
        while match:
            yield from self._take(match.start())
            mark, self._held = match[0], self._held[len(match[0]) :]
            self.reason = self.reason or _MARKS[mark]
            if mark == _PYTHON_TAG:
                yield mark
            match = _ANY_MARK.search(self._held)
        yield from self._take(len(self._held) - self._tail())

    def _take(self, length: int) -> Iterator[str]:
        text, self._held = self._held[:length], self._held[length:]
        if text:
            yield text

    def flush(self) -> str:
        """What was held back and turned out to be text."""
        text, self._held = self._held, ""
        return text

    def _tail(self) -> int:
        """How many characters at the end may begin a marker."""
        longest = max(map(len, _MARKS)) - 1
        tails = (self._held[-size:] for size in range(min(longest, len(self._held)), 0, -1))
        return next((len(tail) for tail in tails if any(mark.startswith(tail) for mark in _MARKS)), 0)


def completion_pieces(events: Iterable[StreamEvent]) -> Iterator[CompletionPiece]:
    """The events of a completion as llama-stack's pieces. A cut stream raises, as it always does."""
    scanner = _MarkScanner()
    for event in events:
        if event.choice_index != 0:
            continue
        if event.type == "content_delta":
            logprobs = streamed_logprobs(event.delta, _raw_choice(event).get("logprobs"))
            for text in scanner.feed(event.delta):
                yield CompletionPiece(text, None, logprobs)
                logprobs = None
        elif event.type == "message_stop":
            rest = scanner.flush()
            if rest:
                yield CompletionPiece(rest)
            yield CompletionPiece("", scanner.reason or stop_reason(event.reason_raw or event.reason))


def stack_events(
    events: Iterable[StreamEvent], offered: Collection[str] | None = None, choice_index: int = 0
) -> Iterator[StackEvent]:
    """A stream of chat events as llama-stack shows it.

    One `start`, `progress` for text and calls, one `complete` with the stop reason. A stream that fails or is
    cut raises and has no `complete`.

    Args:
        events: A Stream, or its events.
        offered: Names of the tools; a call in the text to another one fails. None allows all.
        choice_index: llama-stack knows one choice.
    """
    view = _View(offered)
    for event in events:
        handle = _HANDLERS.get(event.type)
        if handle is not None and (event.choice_index == choice_index or event.type == "message_start"):
            yield from handle(view, event)


class _View:
    """What llama-stack's view of one choice has to remember."""

    def __init__(self, offered: Collection[str] | None) -> None:
        self._offered = offered
        self._scanner = _MarkScanner()
        # The text of a call that the model writes into its text; None outside of one.
        self._native: list[str] | None = None
        # Positions of the calls that have been started, and whether there were any of both kinds.
        self._started: set[int] = set()
        self._called = False

    def start(self, event: StreamEvent) -> Iterator[StackEvent]:
        yield StackEvent("start", StackText(""))

    def text(self, event: ContentDelta) -> Iterator[StackEvent]:
        logprobs = chat_logprobs((_raw_choice(event).get("logprobs") or {}).get("content"))
        for text in self._scanner.feed(event.delta):
            yield self._piece(text, logprobs)
            logprobs = None

    def _piece(self, text: str, logprobs: list[dict[str, float]] | None = None) -> StackEvent:
        """Text, or a piece of a call once the tag has been seen."""
        if text == _PYTHON_TAG and self._native is None:
            self._native = []
            return StackEvent("progress", StackToolCall("", "started"), None, logprobs)
        if self._native is None:
            return StackEvent("progress", StackText(text), None, logprobs)
        self._native.append(text)
        return StackEvent("progress", StackToolCall(text, "in_progress"), None, logprobs)

    def call_piece(self, event: ToolCallDelta) -> Iterator[StackEvent]:
        """`name(` and then the arguments as they come."""
        if event.index not in self._started:
            self._started.add(event.index)
            yield StackEvent("progress", StackToolCall("", "started"))
            yield StackEvent("progress", StackToolCall(f"{event.name}(", "in_progress"))
        if event.delta:
            yield StackEvent("progress", StackToolCall(event.delta, "in_progress"))

    def call(self, event: ToolCall) -> Iterator[StackEvent]:
        """The end of a call, with the call or with its text."""
        self._called = True
        if event.index in self._started:
            yield StackEvent("progress", StackToolCall(")", "in_progress"))
        call = stack_call(event)
        if isinstance(call, StackCall):
            yield StackEvent("progress", StackToolCall(call, "succeeded"))
        else:
            yield StackEvent("progress", StackToolCall(f"{event.name}({event.arguments_json})", "failed"))

    def stop(self, event: MessageStop) -> Iterator[StackEvent]:
        rest = self._scanner.flush()
        if rest:
            yield self._piece(rest)
        if self._native is not None:
            yield from self._native_end("".join(self._native))
        reason = self._scanner.reason or stop_reason(event.reason_raw or event.reason)
        if self._called and reason == "end_of_turn" and self._scanner.reason is None:
            reason = "end_of_message"  # The calls in the reply decide.
        yield StackEvent("complete", StackText(""), reason)

    def _native_end(self, text: str) -> Iterator[StackEvent]:
        """The calls in the text; what cannot be read, or was not offered, fails with its text."""
        calls = native_calls(text)
        for call in calls:
            self._called = True
            known = _is_offered(call, self._offered)
            yield StackEvent("progress", StackToolCall(call if known else text, "succeeded" if known else "failed"))
        if not calls:
            yield StackEvent("progress", StackToolCall(text, "failed"))


# Reasoning and token counts have no place in llama-stack's view; an error raises.
_HANDLERS: dict[str, Callable[[_View, Any], Iterator[StackEvent]]] = {
    "message_start": _View.start,
    "content_delta": _View.text,
    "tool_call_delta": _View.call_piece,
    "tool_call": _View.call,
    "message_stop": _View.stop,
}


def _raw_choice(event: StreamEvent) -> Mapping[str, Any]:
    """The choice of the payload that an event came with, for what the event itself does not tell."""
    choices = event.raw.get("choices") if isinstance(event.raw, Mapping) else None
    listed = choices if isinstance(choices, list) else []
    found = (
        choice for choice in listed if isinstance(choice, Mapping) and choice.get("index", 0) == event.choice_index
    )
    return next(found, {})
