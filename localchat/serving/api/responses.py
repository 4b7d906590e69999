"""POST /v1/responses: parses a JSON body into a ResponsesRequest, encodes the response, and stores it.

A ResponsesRequest is a ChatRequest. Its messages are converted from items: first those of an earlier response, then
those of `input`. The model sees a custom tool (with free text as input) as a function with one string argument.

Each block of the output becomes an item. Its events (added, deltas, done) are complete before the next item begins.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..core.errors import ApiError
from ..core.events import OutputToken, ResponseHead, Usage
from ..core.fields import Fields, first_given, refuse_unsupported, without_nulls
from ..core.params import MAX_TOP_LOGPROBS, read_params
from ..core.request import NO_PARAMETERS, ChatRequest
from .chat import chat_template_kwargs, reasoning_budget
from .content import messages_with_paths
from .encoder import CALL, CONTENT, REASONING, Block, Choice, Encoder, UsageOf, logprob_entry
from .response_formats import read_format_object
from .response_items import REASONING_MARK, input_items, messages_of_items
from .response_store import Item, ResponseStore
from .tools import CUSTOM_INPUT, ToolAt, function_tool, qualified, read_tool_choice

# Fields of features that this server does not have, each with the values that do not need the feature.
REFUSED: Mapping[str, tuple[Any, ...]] = {"background": (False,), "conversation": (), "prompt": (), "moderation": ()}

# The values of `include` that have an effect. The others are for tools that run on other servers.
_LOGPROBS = "message.output_text.logprobs"
_ENCRYPTED = "reasoning.encrypted_content"

_WITHOUT_EFFECT = ("max_tool_calls", "prompt_cache_options", "background_options", "truncation", "stream_options")


@dataclass(frozen=True)
class ResponsesRequest(ChatRequest):
    """A validated request: the fields of ChatRequest for the generation, and these for the response object."""

    # By the name that a tool has for the model, the fields of items that call the tool. For a tool `f` of "files":
    # {"type": "function_call", "name": "f", "namespace": "files"}.
    item_fields_of_tool: Mapping[str, Item] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)  # Fields of the response that repeat the request's.
    items: tuple[Item, ...] = ()  # The items of the earlier response and of `input`.
    include: tuple[str, ...] = ()  # Fields to add to items, such as `_ENCRYPTED`.
    summary: str | None = None  # If set, reasoning is returned as a summary, for clients that show only summaries.
    store: ResponseStore | None = None  # The store for the response; None: do not store it.


def parse_response(store: ResponseStore, body: Fields) -> ResponsesRequest:
    """The request in a body. Raises NotFound if it refers to a response or an item that is not in the store."""
    refuse_unsupported(body, REFUSED)
    body.accept(_WITHOUT_EFFECT)
    previous = body.text("previous_response_id")
    earlier = store.get(previous, "previous_response_id", "previous_response_not_found").items if previous else ()
    all_items = [body.child(item, "previous_response_id") for item in earlier]
    all_items += input_items(body, store)
    added = [item for item in all_items if item.raw["type"] == "additional_tools"]
    offered: dict[str, tuple[ToolAt, Item]] = {}
    for holder in (body, *added):
        for tool, item_fields in _tools(holder, {}):
            offered.setdefault(tool.name, (tool, item_fields))  # Of tools with one name, the first counts.
    tools = tuple(tool for tool, _ in offered.values())
    reasoning, include = body.object_or_empty("reasoning"), body.items("include", "strings")
    if not all(isinstance(name, str) for name in include):
        body.refuse("include", "a list of strings")
    top = body.integer("top_logprobs", 0, MAX_TOP_LOGPROBS) or (0 if _LOGPROBS in include else None)
    return ResponsesRequest(
        model=body.text("model") or "",
        **messages_with_paths(messages_of_items(body, all_items)),
        messages_field="input",
        attachments=tuple(body.attachments),
        **read_tool_choice(body, tools),
        parallel_tool_calls=body.boolean("parallel_tool_calls") is not False,
        response_format=read_format_object(body.object_or_empty("text").object("format")),
        chat_template_kwargs=chat_template_kwargs(body, reasoning.text("effort")),
        reasoning_budget=reasoning_budget(body),
        params=read_params(body, lengths=("max_output_tokens",), top_logprobs=top),
        stream=body.boolean("stream") or False,
        request_id=body.text("request_id"),
        item_fields_of_tool={name: item_fields for name, (_, item_fields) in offered.items()},
        settings=_settings(body, reasoning),
        items=tuple(dict(item.raw) for item in all_items),
        store=None if body.boolean("store") is False else store,
        include=tuple(include),
        summary=_summary(reasoning),
    )


def _summary(reasoning: Fields) -> str | None:
    """The kind of the summary; None: reasoning is returned as it is. `generate_summary` is the older name."""
    kinds = [
        reasoning.choice(name, ("auto", "concise", "detailed", "none")) for name in ("summary", "generate_summary")
    ]
    kind = first_given(kinds)
    return None if kind == "none" else kind


def _settings(body: Fields, reasoning: Fields) -> dict[str, Any]:
    """The fields of a response object that repeat fields of the request; null if the request has none."""
    text, metadata = body.object_or_empty("text"), body.object_or_empty("metadata")
    texts = ("instructions", "previous_response_id", "prompt_cache_key", "safety_identifier", "user")
    format, verbosity = text.object_or_empty("format").raw, text.choice("verbosity", ("low", "medium", "high"))
    return {
        "background": False, "conversation": None, "service_tier": "default", "truncation": "disabled",
        **{name: body.text(name) for name in texts},
        "max_output_tokens": body.integer("max_output_tokens"), "max_tool_calls": body.integer("max_tool_calls", 1),
        "metadata": {name: metadata.text(name) or "" for name in metadata.raw},
        "parallel_tool_calls": body.boolean("parallel_tool_calls") is not False,
        "reasoning": {"effort": reasoning.text("effort"), "summary": _summary(reasoning)},
        "store": body.boolean("store") is not False,
        "text": {"format": format or {"type": "text"}, "verbosity": verbosity or "medium"},
        "tool_choice": body.raw.get("tool_choice") or "auto", "tools": body.raw.get("tools") or [],
        "top_logprobs": body.integer("top_logprobs") or 0,
    }  # fmt: skip


def _tools(holder: Fields, namespace: Item) -> Iterator[tuple[ToolAt, Item]]:
    """The functions and custom tools, each with its `item_fields_of_tool`, which include those of the `namespace`.

    Tools that run on OpenAI's servers, which agents also send, are skipped.
    """
    holder.check_size("tools")
    for declared in holder.objects("tools"):
        kind = declared.required_text("type", '"function" or "custom"')
        if kind == "namespace":
            yield from _tools(declared, {"namespace": declared.nonempty_text("name")})
        elif kind in ("function", "custom"):
            name = declared.nonempty_text("name")
            described = _custom(declared) if kind == "custom" else _function(declared)
            whole_name = qualified(namespace.get("namespace"), name)
            tool = function_tool(declared.child({"name": whole_name, **described}, declared.path))
            yield tool, {"type": "custom_tool_call" if kind == "custom" else "function_call", "name": name, **namespace}
        else:
            declared.skip()


_CUSTOM_PARAMETERS = {
    "type": "object", "properties": {CUSTOM_INPUT: {"type": "string"}}, "required": [CUSTOM_INPUT],
    "additionalProperties": False,
}  # fmt: skip


def _function(declared: Fields) -> dict[str, Any]:
    described = {name: declared.raw.get(name) for name in ("description", "parameters", "strict")}
    return {"parameters": NO_PARAMETERS, **without_nulls(described)}


def _custom(declared: Fields) -> dict[str, Any]:
    """A custom tool as a function. The prompt shows the grammar of the input; it is not enforced."""
    description, format = declared.text("description") or "", declared.object_or_empty("format")
    if format.choice("type", ("text", "grammar")) == "grammar":
        syntax, definition = format.choice("syntax", ("lark", "regex")), format.text("definition") or ""
        description += f"\n\nThe input must match this grammar ({syntax}):\n{definition}"
    return {"description": description.lstrip(), "parameters": _CUSTOM_PARAMETERS}


class _ItemFormat(NamedTuple):
    """How the items of one type, and the events of their text, are encoded."""

    type: str
    id_prefix: str
    text_event: str  # The type of the events of the text, without "delta" and "done".
    text_field: str  # The field of the last one with the whole text. Items without parts have the text in it, too.
    part: str = ""  # The type of the part that has the text; "": the item has no parts.
    part_event: str = "response.content_part"
    index_field: str = "content_index"
    streams_text: bool = True  # Whether the text is sent while it is generated. If not, it is decoded when complete.
    done_fields: tuple[str, ...] = ()  # The fields of the item that the last event of its text repeats.


_MESSAGE = _ItemFormat(
    type="message",
    id_prefix="msg",
    text_event="response.output_text",
    text_field="text",
    part="output_text",
)
_REASONING = _ItemFormat(
    type="reasoning",
    id_prefix="rs",
    text_event="response.reasoning_text",
    text_field="text",
    part="reasoning_text",
)
# Reasoning as a summary, which has the full text.
_SUMMARY = _ItemFormat(
    type="reasoning",
    id_prefix="rs",
    text_event="response.reasoning_summary_text",
    text_field="text",
    part="summary_text",
    part_event="response.reasoning_summary_part",
    index_field="summary_index",
)
_FUNCTION_CALL = _ItemFormat(
    type="function_call",
    id_prefix="fc",
    text_event="response.function_call_arguments",
    text_field="arguments",
    done_fields=("name",),
)
_CUSTOM_CALL = _ItemFormat(
    type="custom_tool_call",
    id_prefix="ctc",
    text_event="response.custom_tool_call_input",
    text_field="input",
    streams_text=False,
)


class _OutputItem:
    """An item of the output, which is made of a block, and the parts of the events about it."""

    def __init__(self, block: Block, request: ResponsesRequest, response_id: str) -> None:
        self.block = block
        self.status = "in_progress"  # Later "completed"; "incomplete" if the length limit cut the item.
        self._request = request
        name = block.call.name
        self._call_fields = request.item_fields_of_tool.get(name, {"type": "function_call", "name": name})
        self.format = self._find_format()
        self.id = f"{self.format.id_prefix}_{response_id.partition('_')[2]}{block.index:x}"

    def _find_format(self) -> _ItemFormat:
        if self.block.kind == CONTENT:
            return _MESSAGE
        if self.block.kind == REASONING:
            return _SUMMARY if self._request.summary else _REASONING
        return _CUSTOM_CALL if self._call_fields["type"] == "custom_tool_call" else _FUNCTION_CALL

    @property
    def text(self) -> str:
        """The text so far; "" for one that is decoded later."""
        if self.format.streams_text:
            return self.block.text
        return "" if self.status == "in_progress" else custom_input(self.block.text)

    def body(self) -> Item:
        """The item as a JSON object."""
        item: Item = {"id": self.id, "type": self.format.type, "status": self.status}
        if self.block.kind == CALL:
            return {**item, **self._call_fields, "call_id": self.block.call.id, self.format.text_field: self.text}
        content = [self.part()] if self.text or self.status != "in_progress" else []
        if self.block.kind == CONTENT:
            return {**item, "role": "assistant", "content": content}
        item.update({"summary": content} if self.format is _SUMMARY else {"summary": [], "content": content})
        if _ENCRYPTED in self._request.include and self.status != "in_progress":
            item["encrypted_content"] = REASONING_MARK + self.text
        return item

    def part(self) -> dict[str, Any]:
        """The part of the item that has its text."""
        part = {"type": self.format.part, "text": self.block.text}
        is_content = self.block.kind == CONTENT
        return {**part, "annotations": [], **self.logprobs(self.block.tokens)} if is_content else part

    def logprobs(self, tokens: list[OutputToken]) -> dict[str, Any]:
        """The field with log probabilities, which only the text of messages has."""
        is_on = self._request.params.top_logprobs is not None
        return {"logprobs": list(map(logprob_entry, tokens if is_on else ()))} if self.block.kind == CONTENT else {}


class ResponseEncoder(Encoder[ResponsesRequest]):
    """Encodes a response, and stores it if the request asks for that."""

    id_prefix = "resp_"

    def __init__(self, head: ResponseHead, request: ResponsesRequest, usage: UsageOf) -> None:
        super().__init__(head, request, usage)
        self._items: list[_OutputItem] = []  # Those of the blocks so far.

    def started(self) -> None:
        for kind in ("response.created", "response.in_progress"):
            self._emit(kind, response=self._response("in_progress"))

    def ping(self) -> None:
        """Codex CLI closes a stream that has no events for five minutes, and counts no comments."""
        if self._is_started:
            self._emit("response.in_progress", response=self._response("in_progress"))
        else:
            self._start()

    def opened(self, choice: Choice, block: Block) -> None:
        item = _OutputItem(block, self.request, self.head.id)
        self._items.append(item)
        self._emit("response.output_item.added", output_index=block.index, item=item.body())
        self._emit_part(item, "added")

    def delta(self, choice: Choice, block: Block, text: str) -> None:
        tokens = choice.take_tokens()
        block.tokens += tokens
        item = self._items[-1]
        if item.format.streams_text:
            self._emit_text(item, "delta", tokens, delta=text)

    def closed(self, choice: Choice, block: Block) -> None:
        item = self._items[-1]
        item.status = "incomplete" if choice.end is not None and choice.end.reason == "length" else "completed"
        body, text = item.body(), item.text
        if text and not item.format.streams_text:
            self._emit_text(item, "delta", [], delta=text)
        repeated = {name: body[name] for name in item.format.done_fields}
        self._emit_text(item, "done", block.tokens, **repeated, **{item.format.text_field: text})
        self._emit_part(item, "done")
        self._emit("response.output_item.done", output_index=block.index, item=body)

    def ended(self, choice: Choice) -> None:
        if not choice.blocks:  # Clients require at least one message, even an empty one.
            self._open(choice, CONTENT)
            self._close(choice)

    def finish(self) -> None:
        response = self.body()
        self._emit(f"response.{response['status']}", response=response)

    def failed(self, error: ApiError, body: Any) -> None:
        self._start()
        code = "rate_limit_exceeded" if error.status == 429 else "server_error"
        failure = {"code": code, "message": error.message}
        self._emit("response.failed", response=self._response("failed", error=failure))

    def body(self) -> dict[str, Any]:
        end = self.choices[0].end
        is_cut = end is not None and end.reason == "length"
        details = {"reason": "max_output_tokens"} if is_cut else None
        usage = self.usage()
        completed_at = None if is_cut else self.head.created + round(usage.total_s)
        fields = {"incomplete_details": details, "completed_at": completed_at, "usage": _usage_body(usage)}
        response = self._response("incomplete" if is_cut else "completed", **fields)
        if self.request.store is not None:
            self.request.store.put(response, self.request.items)
        return response

    def _response(self, status: str, **fields: Any) -> dict[str, Any]:
        head, sampling = self.head, self.head.sampling
        same = ("temperature", "top_p", "presence_penalty", "frequency_penalty")
        return {
            "id": head.id, "object": "response", "created_at": head.created, "model": head.model, "status": status,
            **dict.fromkeys(("completed_at", "error", "incomplete_details", "usage")),
            **fields,
            **self.request.settings,
            **{name: getattr(sampling, name) for name in same},
            "output": [item.body() for item in self._items],
        }  # fmt: skip

    def _emit_part(self, item: _OutputItem, kind: str) -> None:
        if item.format.part:
            self._emit_for(item, f"{item.format.part_event}.{kind}", part=item.part())

    def _emit_text(self, item: _OutputItem, kind: str, tokens: list[OutputToken], **fields: Any) -> None:
        self._emit_for(item, f"{item.format.text_event}.{kind}", **fields, **item.logprobs(tokens))

    def _emit_for(self, item: _OutputItem, kind: str, **fields: Any) -> None:
        """Emit an event about the text of an item."""
        index = {item.format.index_field: 0} if item.format.part else {}
        self._emit(kind, item_id=item.id, output_index=item.block.index, **index, **fields)

    def _emit(self, kind: str, **fields: Any) -> None:
        self.emit({"type": kind, "sequence_number": self.n_chunks, **fields})


def _usage_body(usage: Usage) -> dict[str, Any]:
    n_computed = usage.n_prompt - usage.n_cached
    return {
        "input_tokens": usage.n_prompt, "output_tokens": usage.n_completion,
        "total_tokens": usage.n_prompt + usage.n_completion,
        "input_tokens_details": {"cached_tokens": usage.n_cached, "cache_write_tokens": n_computed},
        "output_tokens_details": {"reasoning_tokens": usage.n_reasoning},
    }  # fmt: skip


_INPUT = re.compile(rf'\s*\{{\s*"{CUSTOM_INPUT}"\s*:\s*"((?:[^"\\]|\\.)*)', re.DOTALL)
_ESCAPE = re.compile(r'(\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))|\\')


def custom_input(arguments: str) -> str:
    """The text in the arguments of a custom tool. Arguments of any other format are returned unchanged."""
    match = _INPUT.match(arguments)
    if match is None:
        return arguments
    # A backslash that begins no escape of JSON stands for itself: models forget to escape those of patterns.
    text = _ESCAPE.sub(lambda escape: escape[1] or r"\\", match[1])
    return str(json.loads(f'"{text}"', strict=False))
