"""POST /v1/responses, the request: parses a JSON body into a ResponsesRequest, or raises an ApiError.

A ResponsesRequest is a ChatRequest. Its messages are converted from items: first those of an earlier response, then
those of `input`. The model sees a custom tool (with free text as input) as a function with one string argument.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..core.errors import NotFound
from ..core.fields import Fields, refuse_unsupported
from ..core.params import MAX_TOP_LOGPROBS, read_params
from ..core.text import to_json
from .chat import ChatRequest, reasoning_budget, template_vars
from .parts import (
    CUSTOM_INPUT,
    Tool,
    function_tool,
    part_text,
    qualified,
    read_format_object,
    read_text,
    read_tool_choice,
    texts_in,
    tool_call,
    without_nulls,
)

# Fields of features that this server does not have, each with the values that do not need the feature.
REFUSED: Mapping[str, tuple[Any, ...]] = {"background": (False,), "conversation": (), "prompt": (), "moderation": ()}

# The values of `include` that have an effect. The others are for tools that run on other servers.
_LOGPROBS = "message.output_text.logprobs"
_ENCRYPTED = "reasoning.encrypted_content"

_SUMMARIES = ("auto", "concise", "detailed")
_WITHOUT_EFFECT = ("max_tool_calls", "prompt_cache_options", "background_options", "truncation", "stream_options")
_SYSTEM = ("system", "developer")

# Prefix of the `encrypted_content` of this server, to distinguish it from content that other servers have encrypted.
_REASONING_MARK = "localchat:"


# The limit of the stored responses, enough for several hours of work with one agent.
MAX_BYTES = 64 * 1024 * 1024

Item = dict[str, Any]


class Stored(NamedTuple):
    """A stored response."""

    body: Mapping[str, Any]  # The response object that GET returns.
    items: tuple[Item, ...]  # All items: those of earlier responses, of the request, and the output.
    n_bytes: int  # The size as JSON. Entries may share earlier items, so the sum over entries is an upper bound.


class ResponseStore:
    """The stored responses by id, least recently used first."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, Stored] = OrderedDict()
        self._n_bytes = 0

    def put(self, body: Mapping[str, Any], items: Sequence[Item]) -> None:
        """Store a response under its id, with the items before its output."""
        n_bytes = len(to_json([body, *items]))
        with self._lock:
            self._drop(body["id"])
            self._entries[body["id"]] = Stored(body, (*items, *body["output"]), n_bytes)
            self._n_bytes += n_bytes
            while self._n_bytes > self._max_bytes:
                self._drop(next(iter(self._entries)))

    def get(self, id: str, param: str | None = None, code: str | None = None) -> Stored:
        """The entry with this id, which becomes the most recently used one. Raises NotFound."""
        with self._lock:
            entry = self._entries.get(id)
            if entry is None:
                message = f"no response has the id {id!r}: it was not stored, or it was deleted or dropped"
                raise NotFound(message, param, code)
            self._entries.move_to_end(id)
            return entry

    def delete(self, id: str) -> None:
        """Delete an entry. Raises NotFound as `get` does."""
        self.get(id)
        with self._lock:
            self._drop(id)

    def item(self, id: str, param: str) -> Item:
        """The item with this id, from the most recently used entry that has it."""
        with self._lock:
            entries = [*reversed(self._entries.values())]
        for entry in entries:
            for item in reversed(entry.items):
                if item.get("id") == id:
                    return item
        raise NotFound(f"no item is stored under {id!r}: send the item itself, or do not set 'store' to false", param)

    def _drop(self, id: str) -> None:
        entry = self._entries.pop(id, None)
        if entry is not None:
            self._n_bytes -= entry.n_bytes


class Offered(NamedTuple):
    """A tool that the model may call, as the request names it."""

    name: str
    namespace: str | None
    is_custom: bool


@dataclass(frozen=True)
class ResponsesRequest(ChatRequest):
    """A validated request: the fields of ChatRequest for the generation, and these for the response object."""

    offered: Mapping[str, Offered] = field(default_factory=dict)  # The tools by their names for the model.
    # The fields of the response that repeat fields of the request.
    settings: Mapping[str, Any] = field(default_factory=dict)
    items: tuple[Item, ...] = ()  # The items of the earlier response and of `input`.
    includes_encrypted: bool = False  # Add `encrypted_content` to reasoning items.
    summarises: bool = False  # Return reasoning as a summary, for clients that show only summaries.
    store: ResponseStore | None = None  # The store for the response; None: do not store it.


def parse_response(store: ResponseStore, body: Fields) -> ResponsesRequest:
    """The request in a body. Raises NotFound if it refers to a response or an item that is not in the store."""
    refuse_unsupported(body, REFUSED)
    body.ignore(_WITHOUT_EFFECT)
    previous = body.text("previous_response_id")
    earlier = store.get(previous, "previous_response_id", "previous_response_not_found").items if previous else ()
    given = [body.child(item, "previous_response_id") for item in earlier]
    given += _input_items(body, store)
    added = [item for item in given if item.raw["type"] == "additional_tools"]
    tools: dict[str, Tool] = {}
    offered: dict[str, Offered] = {}
    for holder in (body, *added):
        for tool, names in _tools(holder, None):
            if tool["function"]["name"] not in tools:  # Of tools with one name, the first counts.
                tools[tool["function"]["name"]] = tool
                offered[tool["function"]["name"]] = names
    reasoning, include = body.object_or_empty("reasoning"), body.items("include", "strings")
    top = body.integer("top_logprobs", 0, MAX_TOP_LOGPROBS) or (0 if _LOGPROBS in include else None)
    return ResponsesRequest(
        model=body.text("model") or "",
        messages=_messages(body, given),
        tools=tuple(tools.values()),
        **read_tool_choice(body, tuple(tools.values())),
        parallel_tool_calls=body.boolean("parallel_tool_calls") is not False,
        response_format=read_format_object(body.object_or_empty("text").object("format")),
        template_vars=template_vars(body, reasoning.text("effort")),
        reasoning_budget=reasoning_budget(body),
        params=read_params(body, lengths=("max_output_tokens",), top_logprobs=top),
        stream=body.boolean("stream") or False,
        request_id=body.text("request_id"),
        offered=offered,
        settings=_settings(body, reasoning),
        items=tuple(dict(item.raw) for item in given),
        store=None if body.boolean("store") is False else store,
        includes_encrypted=_ENCRYPTED in include,
        summarises=reasoning.choice("summary", _SUMMARIES) is not None,
    )


def _settings(body: Fields, reasoning: Fields) -> dict[str, Any]:
    """The fields of a response object that repeat fields of the request; null if the request has none."""
    text, metadata = body.object_or_empty("text"), body.object_or_empty("metadata")
    texts = ("instructions", "previous_response_id", "prompt_cache_key", "safety_identifier", "user")
    format, verbosity = text.object_or_empty("format").raw, text.choice("verbosity", ("low", "medium", "high"))
    return {
        "background": False,
        "conversation": None,
        **{name: body.text(name) for name in texts},
        "max_output_tokens": body.integer("max_output_tokens"),
        "max_tool_calls": body.integer("max_tool_calls", 1),
        "metadata": {name: metadata.text(name) or "" for name in metadata.raw},
        "parallel_tool_calls": body.boolean("parallel_tool_calls") is not False,
        "reasoning": {"effort": reasoning.text("effort"), "summary": reasoning.text("summary")},
        "service_tier": "default",
        "store": body.boolean("store") is not False,
        "text": {"format": format or {"type": "text"}, "verbosity": verbosity or "medium"},
        "tool_choice": body.raw.get("tool_choice") or "auto",
        "tools": body.raw.get("tools") or [],
        "top_logprobs": body.integer("top_logprobs") or 0,
        "truncation": "disabled",
    }


# --- tools ---


def _tools(holder: Fields, namespace: str | None) -> Iterator[tuple[Tool, Offered]]:
    """The functions and custom tools. Tools that run on OpenAI's servers, which agents also send, are skipped."""
    holder.check_size("tools")
    for given in holder.objects("tools"):
        kind = given.text("type")
        if kind is None:
            given.refuse("type", '"function" or "custom"')
        if kind == "namespace":
            yield from _tools(given, given.required_text("name"))
        elif kind in ("function", "custom"):
            name = given.required_text("name")
            described = _custom(given) if kind == "custom" else _function(given)
            tool = function_tool(given.child({"name": qualified(namespace, name), **described}, given.path))
            yield tool, Offered(name, namespace, kind == "custom")
        else:
            given.skip()


_CUSTOM_PARAMETERS = {
    "type": "object",
    "properties": {CUSTOM_INPUT: {"type": "string"}},
    "required": [CUSTOM_INPUT],
    "additionalProperties": False,
}


def _function(given: Fields) -> dict[str, Any]:
    parameters = given.raw.get("parameters")
    parameters = {"type": "object", "properties": {}} if parameters is None else parameters
    return {"description": given.raw.get("description"), "parameters": parameters, "strict": given.raw.get("strict")}


def _custom(given: Fields) -> dict[str, Any]:
    """A custom tool as a function. The prompt shows the grammar of the input; it is not enforced."""
    description, format = given.text("description") or "", given.object_or_empty("format")
    if format.choice("type", ("text", "grammar")) == "grammar":
        syntax, definition = format.choice("syntax", ("lark", "regex")), format.text("definition") or ""
        description += f"\n\nThe input must match this grammar ({syntax}):\n{definition}"
    return {"description": description.lstrip(), "parameters": _CUSTOM_PARAMETERS}


# --- items ---


def _input_items(body: Fields, store: ResponseStore) -> Iterator[Fields]:
    """The items of `input`, each with its type. A text becomes a user message; references become their items."""
    value = body.get("input")
    if isinstance(value, str):
        yield body.child({"type": "message", "role": "user", "content": value}, "input[0]")
        return
    if value is not None and not isinstance(value, list):
        body.refuse("input", "a string or a list of items")
    for item in body.objects("input"):
        is_reference = "type" not in item.raw and "role" not in item.raw and "id" in item.raw
        if item.text("type") == "item_reference" or is_reference:
            yield body.child(store.item(str(item.raw.get("id")), item.at("id")), item.path)
        else:
            yield body.child({"type": "message", **without_nulls(item.raw)}, item.path)


def _messages(body: Fields, items: Iterable[Fields]) -> tuple[dict[str, Any], ...]:
    """The chat messages of `instructions` and the items.

    A response consists of several items: reasoning, text, and an item for each tool call. Chat templates expect one
    assistant message, so consecutive items of the assistant are joined.
    """
    instructions = body.text("instructions")
    messages = [{"role": "developer", "content": instructions}] if instructions else []
    for item in items:
        for message in _read_item(item):
            if messages and _are_one(messages[-1], message, n_before=len(messages)):
                _join(messages[-1], message)
            else:
                messages.append(message)
    is_new = body.raw.get("input") or any(message["role"] not in _SYSTEM for message in messages)
    if not messages or not is_new:
        body.refuse("input", "a string or a list with at least one item")
    return tuple(messages)


def _are_one(last: dict[str, Any], message: dict[str, Any], *, n_before: int) -> bool:
    if last["role"] != "assistant" or message["role"] != "assistant":
        # Many templates accept only one system message, at the start.
        return n_before == 1 and last["role"] in _SYSTEM and message["role"] in _SYSTEM
    # Text after text begins another message. A message with tool calls is open until the results of the calls follow.
    return "content" not in last or "tool_calls" in last or "tool_calls" in message


def _join(message: dict[str, Any], other: dict[str, Any]) -> None:
    """Add the fields of a message of the same role."""
    for name, value in other.items():
        if name == "tool_calls":
            message[name] = [*message.get(name, ()), *value]
        elif name != "role":
            message[name] = "\n\n".join(filter(None, [message.get(name), value]))


def _read_item(item: Fields) -> Iterator[dict[str, Any]]:
    """The chat message of an item, if it has one."""
    kind = item.raw["type"]
    if kind == "message":
        role = item.required_choice("role", ("user", "assistant", *_SYSTEM))
        yield {"role": role, "content": read_text(item, "content", is_replayed=role == "assistant")}
    elif kind in ("function_call", "custom_tool_call"):
        name = qualified(item.text("namespace"), item.required_text("name"))
        is_custom = kind == "custom_tool_call"
        arguments = {CUSTOM_INPUT: item.text("input") or ""} if is_custom else item.text("arguments") or "{}"
        yield {"role": "assistant", "tool_calls": [tool_call(item.required_text("call_id"), name, arguments)]}
    elif kind in ("function_call_output", "custom_tool_call_output"):
        id = item.required_text("call_id")
        yield {"role": "tool", "tool_call_id": id, "content": read_text(item, "output", is_replayed=True)}
    elif kind == "reasoning":
        text = "".join(part_text(part, is_replayed=True) for part in item.objects("content"))
        text = text or decode_reasoning(item.text("encrypted_content") or "")
        text = text or "\n\n".join(part_text(part, is_replayed=True) for part in item.objects("summary"))
        if text:
            yield {"role": "assistant", "reasoning_content": text}
    elif kind != "additional_tools":  # `parse_response` has read these tools.
        item.skip()
        text = "\n".join(texts_in({**item.raw, "title": None, "url": None}))
        role = item.get("role")
        if text:  # In the words of the user, unless the item names another role.
            yield {"role": role if role in ("assistant", *_SYSTEM) else "user", "content": text}


def encode_reasoning(text: str) -> str:
    """Reasoning as the `encrypted_content` of an item, which clients send back unchanged; some keep only this field.

    The text is not encrypted, since the item also has it as plain text.
    """
    return _REASONING_MARK + text


def decode_reasoning(content: str) -> str:
    """The text in an `encrypted_content`; empty if another server made it."""
    return content[len(_REASONING_MARK) :] if content.startswith(_REASONING_MARK) else ""
