"""Reads the parts of requests that several interfaces have: content, inputs, tools and response formats.

An image or audio becomes an attachment of the body, and a marker in the text of the message. No model reads files, so
new messages with one are refused. In replayed messages (those before the last output of the model, and results of
tools) a note replaces it unless the model takes it (chat/runs/attachments.py), and parts of unknown types are skipped,
except their text: programs send the whole conversation with each request, so an error would end the conversation.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ..core.errors import BadRequest, field_error
from ..core.fields import Fields, first_given, refuse_unsupported, show
from ..core.media import AUDIO, IMAGE, Attachment, note_of
from ..core.params import is_token
from ..core.request import Input, ResponseFormat
from ..core.text import to_json
from ..schema.check import Malformed, checked

Tool = dict[str, Any]
Message = dict[str, Any]
MessageAt = tuple[Message, str]  # A chat message, and the path in the body of what it is made of.


class ToolAt(NamedTuple):
    """A tool, and where the body has it."""

    tool: Tool  # {"type": "function", "function": {...}}
    schema_path: str  # The path of the schema of its arguments in the body.

    @property
    def name(self) -> str:
        name: str = self.tool["function"]["name"]
        return name


CUSTOM_INPUT = "input"  # The argument of the function that represents a custom tool.

# The fields of other parts and items that hold text for the model.
_TEXT_FIELDS = ("title", "url", "source", "tool_name", "text", "stdout", "stderr", "summary", "content",
                "tool_references")  # fmt: skip


# The limit in characters of an unknown part that the model gets as JSON. A longer one is most likely a file.
_MAX_UNKNOWN_PART = 4000


class Origin(enum.Enum):
    """Where a text of a request comes from. Only the text of a new message is refused if it has unsupported parts."""

    NEW = "written for this turn"
    EARLIER = "written for an earlier turn, which has a response: the model sees at least that each part was there"
    OUTPUT = "generated earlier, so nobody can correct it now"
    RESULT = "a result of a tool: the same, and the model sees every part of it"

    @property
    def is_replayed(self) -> bool:
        """Whether earlier requests of the conversation had the text, as programs send all of it each time."""
        return self is not Origin.NEW


_ORIGINS = {"assistant": Origin.OUTPUT, "tool": Origin.RESULT, "function": Origin.RESULT}


def origins(roles: Iterable[Any]) -> list[Origin]:
    """The origin of each message of a conversation, by their roles.

    What comes before an output of the model has a response. The last message does not count as such an output, since it
    may be an assistant prefill: the beginning of the response to the messages before it.
    """
    names = [role if isinstance(role, str) else "" for role in roles]
    n_earlier = max((i for i, name in enumerate(names[:-1]) if name == "assistant"), default=0)
    return [_ORIGINS.get(name) or (Origin.EARLIER if i < n_earlier else Origin.NEW) for i, name in enumerate(names)]


def read_text(holder: Fields, name: str, origin: Origin = Origin.NEW) -> str:
    """The text of a field that is a string or a list of parts. Parts are joined without a separator."""
    value = holder.get(name)
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        holder.refuse(name, "a string or a list of parts")
    return "".join(part_text(part, origin) for part in holder.objects(name))


def part_text(part: Fields, origin: Origin = Origin.NEW) -> str:
    """The text of a part, or the marker of its image or sound."""
    kind = part.required_text("type", '"text"')
    return _PART_READERS.get(kind, _unsupported_part)(part, origin)


def _text_part(part: Fields, origin: Origin) -> str:
    return part.required_text("text")


def _refusal(part: Fields, origin: Origin) -> str:
    return part.required_text("refusal")


def _image_url(part: Fields, origin: Origin) -> str:
    return _attached(part, IMAGE, "image_url", origin)


def _image(part: Fields, origin: Origin) -> str:
    """An image in Anthropic's format."""
    return _attached(part, IMAGE, "source", origin)


def _audio(part: Fields, origin: Origin) -> str:
    return _attached(part, AUDIO, "input_audio", origin)


def _attached(part: Fields, medium: str, field: str, origin: Origin) -> str:
    """Attach an image or audio, whose source, a URL or base64, is in a field. Returns its marker.

    The format beside it is not read, since the bytes of the file show it. A part without a source, such as the id of an
    uploaded file, is no error here, since its model may read only text.
    """
    value = part.raw.get(field)
    fields = value if isinstance(value, dict) else {"url": value}
    source = fields.get("data") or fields.get("url")
    source = source if isinstance(source, str) else ""
    return part.attach(Attachment(medium, part.path, source, origin.is_replayed))


def _document(part: Fields, origin: Origin) -> str:
    """A document of Anthropic's format, whose source is a text, a list of parts, or a file."""
    source = part.raw.get("source")
    field = {"text": "data", "content": "content"}.get(str(source.get("type"))) if isinstance(source, dict) else None
    if field is None:
        return _file(part, origin)
    text = read_text(part.required_object("source"), field, origin)
    return "\n".join(texts_in([part.raw.get("title"), part.raw.get("context"), text]))


def _file(part: Fields, origin: Origin) -> str:
    if not origin.is_replayed:
        raise field_error(part.path, "is a file; this server reads no files: leave it out, or send text about it")
    return note_of("a file", "this server reads no files")


def _unsupported_part(part: Fields, origin: Origin) -> str:
    kind = show(part.raw["type"])
    if not origin.is_replayed:
        raise field_error(part.path, f"is of type {kind}, which this server does not support: leave it out")
    part.skip()
    return _texts_of_part(part, origin)


def _texts_of_part(part: Fields, origin: Origin) -> str:
    """The texts in a part of another type, or what shows the model that it was there."""
    text = "\n".join(texts_in(part.raw))
    if text or origin not in (Origin.EARLIER, Origin.RESULT):
        return text
    fields = {name: value for name, value in part.raw.items() if name != "type" and value is not None}
    text = to_json(fields)
    if fields and len(text) <= _MAX_UNKNOWN_PART:
        return text
    return note_of(f"a part of type {show(part.raw['type'])}", "this server does not support it")


# The types of parts, of all interfaces, and the functions that read them.
_PART_READERS: Mapping[str, Callable[[Fields, Origin], str]] = {
    **dict.fromkeys(("text", "input_text", "output_text", "reasoning_text", "summary_text"), _text_part),
    "refusal": _refusal,
    **dict.fromkeys(("image_url", "input_image"), _image_url),
    "image": _image,
    "input_audio": _audio,
    "document": _document,
    **dict.fromkeys(("file", "input_file"), _file),
    "search_result": _texts_of_part,
}


def texts_in(value: Any) -> Iterator[str]:
    """The texts in a part or item of another type, in order."""
    if isinstance(value, str):
        yield from filter(None, [value])
    elif isinstance(value, list):
        for item in value:
            yield from texts_in(item)
    elif isinstance(value, dict):
        for name in _TEXT_FIELDS:
            yield from texts_in(value.get(name))


def read_messages(body: Fields, convert: Callable[[Fields, Origin], Iterable[Message]]) -> list[MessageAt]:
    """The chat messages of the field `messages`, at least one; `convert` returns those of one object."""
    objects = [*body.objects("messages")]
    listed = zip(objects, origins(message.raw.get("role") for message in objects))
    messages = [(converted, message.path) for message, origin in listed for converted in convert(message, origin)]
    if not messages:
        body.refuse("messages", "a list with at least one message")
    return messages


def messages_with_paths(messages: Iterable[MessageAt]) -> dict[str, Any]:
    """The fields of a ChatRequest for its messages."""
    messages = tuple(messages)
    return {"messages": tuple(message for message, _ in messages), "message_paths": tuple(path for _, path in messages)}


def without_nulls(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in raw.items() if value is not None}


def read_inputs(body: Fields, name: str, most: int) -> tuple[Input, ...]:
    """The prompts or inputs in a field, at least one. A text may be empty; a list of token ids may not."""
    value = body.get(name)
    inputs = [value] if _is_input(value) else value
    if not isinstance(inputs, list) or not inputs:
        body.refuse(name, "a string, a list of token ids, or a list of these")
    if len(inputs) > most:
        raise field_error(name, f"has {len(inputs)} items, and the limit is {most}")
    for i, item in enumerate(inputs):
        if not _is_input(item):
            raise field_error(f"{name}[{i}]", f"must be a string or a list of token ids, got {show(item)}")
    return tuple(item if isinstance(item, str) else tuple(item) for item in inputs)


def _is_input(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and bool(value) and all(map(is_token, value)))


def function_tool(function: Fields, field: str = "parameters") -> ToolAt:
    """The tool of a function, whose schema is in `field`."""
    function.nonempty_text("name")
    function.text("description")
    function.boolean("strict")
    function.object(field)
    others = {name: value for name, value in function.raw.items() if name != field}
    described = without_nulls({**others, "parameters": read_schema(function, field)})
    return ToolAt({"type": "function", "function": described}, function.at(field))


def read_tools(body: Fields) -> tuple[ToolAt, ...]:
    """The functions in the format of chat completions, also those in the older field `functions`, and their paths.

    Custom tools, and tools that run on a provider's servers, which agents also send, are skipped.
    """
    body.check_size("tools")
    body.check_size("functions")
    tools = [tool.required_object("function") for tool in body.objects("tools") if is_of_type(tool, "function")]
    return tuple(map(function_tool, (*tools, *body.objects("functions"))))


def is_of_type(tool: Fields, kind: str) -> bool:
    """Whether a tool has this type, or none. Others are skipped."""
    is_known = (tool.text("type") or kind) == kind
    if not is_known:
        tool.skip()
    return is_known


def read_tool_choice(body: Fields, tools: Sequence[ToolAt]) -> dict[str, Any]:
    """The fields of a ChatRequest for its tools and `tool_choice`, by chat completions or the Responses API."""
    older = body.get("tool_choice") is None and body.get("function_call") is not None
    field = "function_call" if older else "tool_choice"
    if not isinstance(body.get(field), dict):
        return chosen_tools(body, field, body.choice(field, ("none", "auto", "required")) or "auto", [], tools)
    choice = body.required_object(field)
    if choice.get("type") != "allowed_tools":
        return chosen_tools(body, field, "required", [_chosen_name(choice, field)], tools)
    mode, names = _allowed_tools(choice, {tool.name for tool in tools})
    return chosen_tools(body, field, mode, names, tools)


def _allowed_tools(choice: Fields, offered: Collection[str]) -> tuple[str, list[str]]:
    """The mode and the names in a `tool_choice` of the type "allowed_tools"."""
    # Chat completions nest the fields in an object `allowed_tools`; the Responses API does not.
    listed = choice.object("allowed_tools") or choice
    mode = listed.choice("mode", ("auto", "required")) or "auto"
    # Tools of other types run on the provider's servers, and were skipped.
    callable = [tool for tool in listed.objects("tools") if tool.raw.get("type") in (None, "function", "custom")]
    named = [(tool, _chosen_name(tool, listed.at("tools"))) for tool in callable]
    # Chat completions skip custom tools.
    names = [name for tool, name in named if name in offered or tool.raw.get("type") != "custom"]
    if not names and (mode == "required" or not listed.raw.get("tools")):
        listed.refuse("tools", "a list of at least one function")
    return (mode if names else "none"), names


def chosen_tools(body: Fields, field: str, mode: str, names: Sequence[str], tools: Sequence[ToolAt]) -> dict[str, Any]:
    """The fields of a ChatRequest for its tools and `tool_choice`.

    `mode` is "none", "auto" or "required"; without tools, the request gets "none". `names` are those of the tools that
    may be called, which must be offered; none: all of them. `field` is the one that chooses, for error messages.
    """
    offered = dict.fromkeys(tool.name for tool in tools)
    if mode == "required" and not offered:
        needed = (
            "a function in 'tools': this server has no tools of other types" if body.raw.get("tools") else "'tools'"
        )
        raise field_error(field, f"is {show(body.raw[field])}, which needs {needed}")
    for name in names:
        if name not in offered:
            raise field_error(field, f"names {show(name)}; 'tools' offers {show([*offered])}")
    return {
        "tools": tuple(tool.tool for tool in tools), "tool_paths": tuple(tool.schema_path for tool in tools),
        "tool_choice": mode if offered else "none", "allowed_tools": tuple(names),
    }  # fmt: skip


def _chosen_name(choice: Fields, field: str) -> str:
    function = choice.object("function") or choice.object("custom") or choice
    name = function.text("name")
    if not name:
        kind = choice.text("type")
        if kind in (None, "function", "custom"):
            raise field_error(field, f"must be a mode or name a function, got {show(choice.raw)}")
        # The response to a request that insists on a search would be wrong without one.
        problem = f"names a tool of type {show(kind)}, which this server does not have"
        raise field_error(field, f'{problem}: send "auto", or offer a function in its place')
    return qualified(function.text("namespace"), name)


def qualified(namespace: str | None, name: str) -> str:
    """The name of a tool for the model, which includes the namespace."""
    if not namespace:
        return name
    return namespace + name if namespace.endswith("_") else f"{namespace}__{name}"


def tool_call(id: str | None, name: str, arguments: Any) -> dict[str, Any]:
    """A tool call of an earlier message. Arguments are JSON text or an object; the prompt package decodes them."""
    return without_nulls({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})


def called(id: str | None, function: Fields) -> dict[str, Any]:
    """The tool call of a message whose fields are in the object `function`."""
    arguments = first_given([function.get("arguments"), "{}"])
    if not isinstance(arguments, (str, dict)):
        function.refuse("arguments", "JSON text or an object")
    return tool_call(id, function.nonempty_text("name"), arguments)


# The fields of a request with a format, of llama.cpp, and of vLLM before `structured_outputs`.
_STRUCTURED = ("json", "grammar", "regex", "choice")
_FIELDS = ("json_schema", "grammar", "regex", "choice", *(f"guided_{kind}" for kind in _STRUCTURED))


def read_response_format(body: Fields) -> ResponseFormat | None:
    """The response format of a request; None if it has none."""
    structured = body.object_or_empty("structured_outputs")
    refuse_unsupported(structured, {"structural_tag": ()})
    is_object = structured.boolean("json_object")
    readings = [
        read_format_object(body.object("response_format")),
        *(_read_format(body, name) for name in _FIELDS),
        *(_read_format(structured, name) for name in _STRUCTURED),
        ResponseFormat("json_object", None, structured.at("json_object")) if is_object else None,
    ]
    formats = list(filter(None, readings))
    if len(formats) > 1:
        first, second = formats[0].param, formats[1].param
        raise BadRequest(f"'{first}' and '{second}' cannot both be set: each constrains the output", second)
    return formats[0] if formats else None


def _read_format(holder: Fields, name: str) -> ResponseFormat | None:
    holder.check_size(name)
    kind, value = name.replace("guided_", ""), None
    if kind in ("json", "json_schema"):
        kind = "json_schema"
        value = read_schema(holder, name)
    elif kind == "choice":
        value = tuple(holder.items(name, "texts"))
        if not all(isinstance(choice, str) and choice for choice in value):
            holder.refuse(name, "a list of texts that are not empty")
    else:
        value = holder.text(name)
    return None if value is None or value in ("", ()) else ResponseFormat(kind, value, holder.at(name))


def read_format_object(form: Fields | None) -> ResponseFormat | None:
    """Parse `response_format`. The schema may be beside `type`, as in the Responses API and llama-server."""
    if form is None:
        return None
    kind = form.required_choice("type", ("text", "json_object", "json_schema"))
    if kind == "text":
        return None
    has_schema = form.get("schema") is not None
    if kind == "json_object" and not has_schema:
        return ResponseFormat(kind, None, form.path)
    holder = form if has_schema else form.required_object("json_schema")
    if holder.get("schema") is None:
        holder.refuse("schema", "a JSON schema")
    return ResponseFormat("json_schema", read_schema(holder, "schema"), holder.at("schema"))


def read_schema(holder: Fields, name: str) -> Any:
    """A JSON schema: an object, true or false; None if the field is absent. Refuses one that is malformed."""
    holder.check_size(name)
    value = holder.get(name)
    if value is None:
        return None
    if not isinstance(value, (dict, bool)):
        holder.refuse(name, "a JSON schema")
    try:
        return checked(value)
    except Malformed as error:
        raise field_error(f"{holder.at(name)}#{error.pointer}", error.problem) from error
