"""POST /v1/messages (Anthropic's Messages API), the request: parses a JSON body into a ChatRequest.

A message becomes one or more chat messages. An assistant message with blocks of thinking, text and tool calls becomes
one chat message; each tool result becomes a separate one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ..core.errors import BadRequest
from ..core.fields import Fields, parse_body, show, texts_in, unknown_fields
from ..core.media import FILE, IMAGE, note_of, refuse_media
from ..core.params import read_params
from ..core.request import DEFAULT_OPTIONS, ParseOptions
from ..core.response_format import ResponseFormat, without_null_keywords
from .chat import MAX_REASONING_BUDGET, ChatRequest, ends_in_prefill, without_nulls

# Agents begin the first system block with a line that differs in every request. The line is dropped: the model does
# not need it, and it would prevent requests from sharing a cached prefix.
_VOLATILE_LINE = re.compile(r"\Ax-anthropic-[\w-]+:[^\n]*\n*")

# Prefix of the result of a failed tool (`is_error`) that does not begin with "error".
_ERROR_PREFIX = "Error: "

# Fields that have no effect on the output of this server. --strict accepts them.
_WITHOUT_EFFECT = (
    "metadata",
    "service_tier",
    "cache_control",
    "context_management",
    "container",
    "inference_geo",
    "diagnostics",
    "speed",
)

# Blocks that clients replay from Anthropic's servers. This server passes on the text in them. Blocks of other types are
# logged too, or refused with --strict.
_OTHER_BLOCKS = (
    "server_tool_use", "mcp_tool_use", "mcp_tool_result", "web_search_tool_result", "web_fetch_tool_result",
    "code_execution_tool_result", "bash_code_execution_tool_result", "text_editor_code_execution_tool_result",
    "tool_search_tool_result", "tool_reference", "container_upload", "compaction",
)  # fmt: skip

_TOOL_CHOICES = {"auto": "auto", "any": "required", "tool": "required", "none": "none"}


def parse_messages(raw: bytes, options: ParseOptions = DEFAULT_OPTIONS) -> ChatRequest:
    """The request in a body.

    Raises:
        BadRequest: A field is missing or invalid.
    """
    body = parse_body(raw)
    if body.integer("max_tokens", 1) is None:
        body.refuse("max_tokens", "an integer of at least 1")
    return _request(body, options)


def parse_count_tokens(raw: bytes, options: ParseOptions = DEFAULT_OPTIONS) -> ChatRequest:
    """The request in a body of POST /v1/messages/count_tokens, which has no `max_tokens`.

    Raises:
        BadRequest: A field is missing or invalid.
    """
    return _request(parse_body(raw), options)


def _request(body: Fields, options: ParseOptions) -> ChatRequest:
    messages = (*_system(body), *_messages(body))
    unknown_blocks = _unknown_blocks(body, options.strict)
    tools, ignored = _tools(body)
    thinking = body.object_or_empty("thinking")
    return ChatRequest(
        model=body.text("model") or "",
        messages=messages,
        tools=tools,
        **_tool_choice(body, tools),
        response_format=_format(body),
        template_vars=_template_vars(body, thinking),
        reasoning_budget=thinking.integer("budget_tokens", 0, MAX_REASONING_BUDGET),
        continue_final_message=ends_in_prefill(messages),
        params=read_params(body, lengths=("max_tokens",), stop="stop_sequences"),
        stream=body.boolean("stream") or False,
        unknown=(*ignored, *unknown_blocks, *unknown_fields(body, _WITHOUT_EFFECT, options.strict)),
    )


def _template_vars(body: Fields, thinking: Fields) -> dict[str, Any]:
    kind = thinking.choice("type", ("enabled", "adaptive", "between_tools", "disabled"))
    effort = body.object_or_empty("output_config").text("effort")
    # Reasoning is off by default: clients that do not request thinking expect text in the first block.
    enabled = {"enable_thinking": kind not in (None, "disabled")}
    return {**enabled, **({} if effort is None else {"reasoning_effort": effort})}


def _format(body: Fields) -> ResponseFormat | None:
    """The JSON Schema of the output, from `output_config.format` or the older field `output_format`."""
    for parent, name in ((body.object_or_empty("output_config"), "format"), (body, "output_format")):
        format = parent.object(name)
        if format is not None:
            format.choice("type", ("json_schema",))
            format.check_size("schema")
            schema = without_null_keywords(format.required_object("schema").raw)
            return ResponseFormat("json_schema", schema, format.at("schema"))
    return None


def _tools(body: Fields) -> tuple[tuple[dict[str, Any], ...], tuple[str, ...]]:
    """The functions, and the names of ignored tools: agents also send tools that run on Anthropic's servers."""
    body.check_size("tools")
    tools, ignored = [], []
    for tool in body.objects("tools"):
        kind = tool.text("type") or "custom"
        if kind != "custom":
            ignored.append(f"{tool.path} ({kind})")
            continue
        function = {
            "name": tool.required_text("name"),
            "description": tool.text("description"),
            "parameters": without_null_keywords(tool.required_object("input_schema").raw),
            "strict": tool.boolean("strict"),
        }
        tools.append({"type": "function", "function": without_nulls(function)})
    return tuple(tools), tuple(ignored)


def _tool_choice(body: Fields, tools: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    choice = body.object_or_empty("tool_choice")
    kind = choice.choice("type", _TOOL_CHOICES) or "auto"
    name = choice.text("name")
    parallel = choice.boolean("disable_parallel_tool_use") is not True
    offered = [tool["function"]["name"] for tool in tools]
    if kind in ("any", "tool") and not offered:
        raise BadRequest(f"'tool_choice' is {show(choice.raw)}, which needs 'tools'", "tool_choice")
    if kind == "tool" and name not in offered:
        raise BadRequest(f"'tool_choice' names {show(name)}; 'tools' offers {show(offered)}", "tool_choice")
    return {
        "tool_choice": _TOOL_CHOICES[kind] if offered else "none",
        "allowed": (name,) if kind == "tool" else (),
        "parallel_tool_calls": parallel,
    }


def _system(body: Fields) -> Iterator[dict[str, Any]]:
    value = body.get("system")
    if value is None:
        return
    texts = [value] if isinstance(value, str) else [_text_of(block) for block in body.objects("system")]
    if texts:
        texts[0] = _VOLATILE_LINE.sub("", texts[0])
    text = "\n\n".join(filter(None, texts))
    if text:
        yield {"role": "system", "content": text}


def _messages(body: Fields) -> tuple[dict[str, Any], ...]:
    messages = [one for message in body.objects("messages") for one in _convert(message)]
    if not messages:
        body.refuse("messages", "a list with at least one message")
    return tuple(messages)


def _unknown_blocks(body: Fields, strict: bool) -> list[str]:
    """The unknown types of blocks in the messages.

    Raises:
        BadRequest: There is one, and `strict` is set.
    """
    known = ("text", "thinking", "redacted_thinking", "tool_use", "tool_result", "document", "search_result", "image")
    contents = [message for message in body.objects("messages") if isinstance(message.raw.get("content"), list)]
    blocks = [block for message in contents for block in message.objects("content")]
    blocks += [part for block in blocks if isinstance(block.raw.get("content"), list) for part in _parts(block)]
    unknown = [block for block in blocks if block.raw.get("type") not in (*known, *_OTHER_BLOCKS)]
    if unknown and strict:
        path = unknown[0].at("type")
        raise BadRequest(f"'{path}' is {show(unknown[0].raw.get('type'))}, which --strict refuses", path)
    return [f"blocks of type {block.raw.get('type')}" for block in unknown]


def _parts(block: Fields) -> Iterator[Fields]:
    return block.objects("content") if block.raw.get("type") == "tool_result" else iter(())


def _convert(message: Fields) -> Iterator[dict[str, Any]]:
    """The chat messages for one message. A user message with tool results yields several."""
    role = message.required_choice("role", ("user", "assistant", "system"))
    content = message.get("content")
    if isinstance(content, str):
        yield {"role": role, "content": content}
    elif not isinstance(content, list):
        message.refuse("content", "a string or a list of blocks")
    elif role == "assistant":
        yield _assistant(message)
    else:
        yield from _user(message, role)


def _assistant(message: Fields) -> dict[str, Any]:
    texts: dict[str, list[str]] = {"content": [], "reasoning_content": []}
    calls = []
    for block in message.objects("content"):
        kind = block.text("type")
        if kind == "tool_use":
            calls.append(_call(block))
        elif kind == "thinking":
            texts["reasoning_content"].append(block.text("thinking") or "")
        elif kind != "redacted_thinking":  # Its text is encrypted, and only Anthropic's servers can decrypt it.
            texts["content"].append(_text_of(block))
    joined = {name: "".join(parts) for name, parts in texts.items()}
    reasoning = {"reasoning_content": joined["reasoning_content"]} if joined["reasoning_content"] else {}
    content = {"content": joined["content"]} if joined["content"] or not calls else {}
    return {"role": "assistant", **content, **reasoning, **({"tool_calls": calls} if calls else {})}


def _call(block: Fields) -> dict[str, Any]:
    function = {"name": block.required_text("name"), "arguments": block.object_or_empty("input").raw}
    return without_nulls({"id": block.text("id"), "type": "function", "function": function})


def _user(message: Fields, role: str) -> Iterator[dict[str, Any]]:
    """A message for each tool result, and one for each run of text blocks, joined without a separator."""
    texts: list[str] = []
    for block in message.objects("content"):
        if block.get("type") != "tool_result":
            texts.append(_text_of(block))
            continue
        if texts:
            yield {"role": role, "content": "".join(texts)}
            texts = []
        yield _tool_result(block)
    if texts or not message.raw["content"]:
        yield {"role": role, "content": "".join(texts)}


def _tool_result(block: Fields) -> dict[str, Any]:
    id = block.required_text("tool_use_id")
    value = block.get("content")
    if value is None or isinstance(value, str):
        text = value or ""
    else:
        text = "".join(_result_text(part) for part in block.objects("content"))
    if block.boolean("is_error") and not text.lower().startswith("error"):
        text = _ERROR_PREFIX + text
    return {"role": "tool", "tool_call_id": id, "content": text}


def _result_text(block: Fields) -> str:
    """The text of a block in the result of a tool."""
    if block.get("type") == "image":
        return note_of(IMAGE)
    if block.get("type") == "document" and not _is_text(block):
        return note_of(FILE)
    return _text_of(block)


def _is_text(document: Fields) -> bool:
    return document.object_or_empty("source").text("type") == "text"


def _text_of(block: Fields) -> str:
    """The text of a text block, a plain text document or a search result."""
    kind = block.text("type")
    if kind == "document":
        if not _is_text(block):
            refuse_media(block.path, FILE)
        source, title = block.object_or_empty("source"), block.text("title")
        return (f"{title}\n" if title else "") + (source.text("data") or "")
    if kind == "search_result":
        texts = [_text_of(part) for part in block.objects("content")]
        return "\n".join([block.text("title") or "", block.text("source") or "", *texts]).strip("\n")
    if kind == "image":
        refuse_media(block.path, IMAGE)
    if kind is None:
        block.refuse("type", "the type of a block")
    if kind != "text":
        return "\n".join(texts_in(block.raw))
    text = block.text("text")
    if text is None:
        block.refuse("text", "a string")
    return text
