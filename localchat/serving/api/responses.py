"""POST /v1/responses, the request: parses a JSON body into a ResponsesRequest, or raises an ApiError.

A ResponsesRequest is a ChatRequest. Its messages are converted from items: first those of an earlier response, then
those of `input`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..core.errors import BadRequest
from ..core.fields import Fields, parse_body, refuse_unsupported, unknown_fields
from ..core.params import MAX_TOP_LOGPROBS, WITHOUT_EFFECT, read_params
from ..core.request import DEFAULT_OPTIONS, ParseOptions, read_streaming
from ..core.response_format import read_format_object
from .chat import ChatRequest, reasoning_budget, template_vars
from .responses_items import ADDED_TOOLS, input_items, read_messages, unknown_kinds
from .responses_store import ResponseStore
from .responses_tools import Tool, read_tool_choice, read_tools

# The name of the length limit. OpenAI's API requires at least 16 tokens; this server, at least 1.
LENGTHS = ("max_output_tokens",)

# Fields of features that this server does not have, each with the values that do not need the feature.
REFUSED: Mapping[str, tuple[Any, ...]] = {
    "background": (False,),
    "conversation": (),
    "prompt": (),
    "moderation": (),
}

# Values of `include` for tools that run on other servers; they are ignored.
_INCLUDE_WITHOUT_EFFECT = ("web_search_call.", "file_search_call.", "code_interpreter_call.", "computer_call_output.",
                           "message.input_image.")  # fmt: skip
_LOGPROBS = "message.output_text.logprobs"
_ENCRYPTED = "reasoning.encrypted_content"

_SUMMARIES = ("auto", "concise", "detailed")
_WITHOUT_EFFECT = (*WITHOUT_EFFECT, "max_tool_calls", "prompt_cache_options", "background_options", "truncation")


@dataclass(frozen=True)
class ResponsesRequest(ChatRequest):
    """A validated request: the fields of ChatRequest for the generation, and these for the response object."""

    offered: tuple[Tool, ...] = ()
    """The tools, in the same order as in `tools`."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The fields of the response that repeat fields of the request."""
    earlier: tuple[dict[str, Any], ...] = ()
    """The items of the earlier response."""
    items: tuple[dict[str, Any], ...] = ()
    """The items of `input`."""
    includes_encrypted: bool = False
    """Add `encrypted_content` to reasoning items."""
    summarises: bool = False
    """Return reasoning as a summary, for clients that show only summaries."""
    store: ResponseStore | None = None
    """The store for the response; None: do not store it."""

    def save(self, response: dict[str, Any]) -> None:
        """Store the response for later requests, if the request asks for that."""
        if self.store is not None:
            self.store.put(response, (*self.earlier, *self.items))


def parse_response(store: ResponseStore, raw: bytes, options: ParseOptions = DEFAULT_OPTIONS) -> ResponsesRequest:
    """The request in a body, which may refer to responses in `store`.

    Raises:
        BadRequest: A field is invalid.
        NotFound: The request refers to a response or an item that is not stored.
    """
    body = parse_body(raw)
    refuse_unsupported(body, REFUSED)
    tools, ignored_tools = read_tools(body)
    items = tuple(_resolve_reference(item, f"input[{i}].id", store) for i, item in enumerate(input_items(body)))
    previous = body.text("previous_response_id")
    earlier = store.context(previous) if previous else ()
    messages, ignored_items = _messages(body, earlier, items), unknown_kinds(items, options.strict)
    for added in (Fields(item, "input") for item in (*earlier, *items) if item["type"] == ADDED_TOOLS):
        # Of tools with one name, the first counts.
        tools = tuple({tool.model_name: tool for tool in reversed((*tools, *read_tools(added)[0]))}.values())[::-1]
    reasoning, include = body.object_or_empty("reasoning"), _include(body)
    request = ResponsesRequest(
        model=body.text("model") or "",
        messages=messages,
        tools=tuple({"type": "function", "function": tool.function} for tool in tools),
        **read_tool_choice(body, tools),
        parallel_tool_calls=body.boolean("parallel_tool_calls") is not False,
        response_format=read_format_object(body.object_or_empty("text").object("format")),
        template_vars=template_vars(body, reasoning.text("effort")),
        reasoning_budget=reasoning_budget(body),
        params=read_params(body, lengths=LENGTHS, top_logprobs=_top_logprobs(body, include)),
        **read_streaming(body),
        request_id=body.text("request_id"),
        offered=tools,
        earlier=earlier,
        items=items,
        store=None if body.boolean("store") is False else store,
        includes_encrypted=_ENCRYPTED in include,
        summarises=_summary(reasoning) is not None,
    )
    settings = _settings(body, request, reasoning)
    unknown = [*unknown_fields(body, _WITHOUT_EFFECT, options.strict)]
    unknown += [f"tools of type {kind}" for kind in ignored_tools] + [f"input of type {kind}" for kind in ignored_items]
    return dataclasses.replace(request, settings=settings, unknown=tuple(unknown))


def _resolve_reference(item: dict[str, Any], path: str, store: ResponseStore) -> dict[str, Any]:
    """The item that an `item_reference` refers to. Any other item is returned unchanged."""
    return store.item(str(item.get("id")), path) if item["type"] == "item_reference" else item


def _messages(
    body: Fields, earlier: Sequence[dict[str, Any]], items: Sequence[dict[str, Any]]
) -> tuple[dict[str, Any], ...]:
    """The messages of all items."""
    given = [Fields(item, "previous_response_id") for item in earlier]
    given += [Fields(item, f"input[{i}]") for i, item in enumerate(items)]
    messages = read_messages(body.text("instructions"), given)
    if not messages or (
        not any(message["role"] not in ("system", "developer") for message in messages) and not body.raw.get("input")
    ):
        body.refuse("input", "a string or a list with at least one item")
    return messages


def _include(body: Fields) -> frozenset[str]:
    given = body.items("include", "strings")
    for i, name in enumerate(given):
        is_known = isinstance(name, str) and (
            name in (_LOGPROBS, _ENCRYPTED) or name.startswith(_INCLUDE_WITHOUT_EFFECT)
        )
        if not is_known:
            path = f"include[{i}]"
            raise BadRequest(f'\'{path}\' must be "{_LOGPROBS}" or "{_ENCRYPTED}", got {name!r}', path)
    return frozenset(given)


def _top_logprobs(body: Fields, include: frozenset[str]) -> int | None:
    top = body.integer("top_logprobs", 0, MAX_TOP_LOGPROBS) or 0
    return top if top or _LOGPROBS in include else None


def _summary(reasoning: Fields) -> str | None:
    newer, older = reasoning.choice("summary", _SUMMARIES), reasoning.choice("generate_summary", _SUMMARIES)
    return newer or older


def _settings(body: Fields, request: ResponsesRequest, reasoning: Fields) -> dict[str, Any]:
    """The fields of a response object that do not depend on the generated text.

    The ResponseEncoder adds `temperature` and other sampling values, since they depend on the model's defaults.
    """
    text = body.object_or_empty("text")
    format = text.object_or_empty("format").raw or {"type": "text"}
    return {
        "background": False,
        "conversation": None,
        "instructions": body.text("instructions"),
        "max_output_tokens": body.integer("max_output_tokens"),
        "max_tool_calls": body.integer("max_tool_calls", 1),
        "metadata": _metadata(body),
        "parallel_tool_calls": request.parallel_tool_calls,
        "previous_response_id": body.text("previous_response_id"),
        "prompt_cache_key": body.text("prompt_cache_key"),
        "reasoning": {"effort": reasoning.text("effort"), "summary": _summary(reasoning)},
        "safety_identifier": body.text("safety_identifier"),
        "service_tier": "default",
        "store": request.store is not None,
        "text": {"format": format, "verbosity": text.choice("verbosity", ("low", "medium", "high")) or "medium"},
        "tool_choice": "auto" if body.get("tool_choice") is None else body.get("tool_choice"),
        "tools": _wire_tools([tool for tool in request.offered if tool.path.startswith("tools")]),
        "top_logprobs": request.params.top_logprobs or 0,
        "truncation": "disabled",
        "user": body.text("user"),
    }


def _wire_tools(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """The tools as in the request: consecutive tools of a namespace become one object."""
    listed: list[dict[str, Any]] = []
    for tool in tools:
        if tool.namespace is None:
            listed.append(tool.wire)
        elif listed and listed[-1]["type"] == "namespace" and listed[-1]["name"] == tool.namespace:
            listed[-1]["tools"].append(tool.wire)
        else:
            listed.append({"type": "namespace", "name": tool.namespace, "description": "", "tools": [tool.wire]})
    return listed


def _metadata(body: Fields) -> dict[str, str]:
    metadata = body.object_or_empty("metadata")
    return {name: metadata.text(name) or "" for name in metadata.raw}
