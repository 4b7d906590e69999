"""Reads the tools of a request, the choice among them, and the calls of earlier messages."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, TypedDict

from ..core.errors import field_error
from ..core.fields import Fields, first_given, show, without_nulls
from .response_formats import read_schema

Tool = dict[str, Any]


class ToolAt(NamedTuple):
    """A tool, and where the body has it."""

    tool: Tool  # {"type": "function", "function": {...}}
    schema_path: str  # The path of the schema of its arguments in the body.

    @property
    def name(self) -> str:
        name: str = self.tool["function"]["name"]
        return name


CUSTOM_INPUT = "input"  # The argument of the function that represents a custom tool.


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


class ToolFields(TypedDict):
    """The fields of a ChatRequest for its tools and the choice among them."""

    tools: tuple[Tool, ...]
    tool_paths: tuple[str, ...]
    tool_choice: str
    allowed_tools: tuple[str, ...]


def read_tool_choice(body: Fields, tools: Sequence[ToolAt]) -> ToolFields:
    """The tools, and the choice in a body of chat completions or of the Responses API."""
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


def chosen_tools(body: Fields, field: str, mode: str, names: Sequence[str], tools: Sequence[ToolAt]) -> ToolFields:
    """The tools, and a choice.

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
