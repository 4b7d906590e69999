"""Parses the tools of the Responses API: functions, custom tools (with free text as input), and namespaces of both.

The model sees a custom tool as a function with one string argument. Tools that run on OpenAI's servers are ignored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.errors import BadRequest
from ..core.fields import Fields, show
from .chat import function_tool
from .responses_items import CUSTOM_INPUT, qualified

_MODES = ("none", "auto", "required")
_CALLABLE = ("function", "custom")


@dataclass(frozen=True)
class Tool:
    """A tool that the model may call."""

    name: str
    """The name in the request, without the namespace."""
    namespace: str | None
    """The name of the namespace; None: the tool is in none."""
    is_custom: bool
    path: str
    """The path in the request, for error messages."""
    function: dict[str, Any]
    """The function as in chat: name (with the namespace), description, parameters, strict."""
    wire: dict[str, Any]
    """The tool as in the response object."""

    @property
    def model_name(self) -> str:
        return str(self.function["name"])


def read_tools(body: Fields) -> tuple[tuple[Tool, ...], tuple[str, ...]]:
    """The functions and custom tools, and the types of the ignored tools.

    Raises:
        BadRequest: A tool is invalid.
    """
    tools: list[Tool] = []
    ignored: dict[str, None] = {}
    body.check_size("tools")
    for given in body.objects("tools"):
        kind = given.text("type")
        if kind is None:
            given.refuse("type", '"function" or "custom"')
        if kind == "namespace":
            tools += _namespace(given)
        elif kind in _CALLABLE:
            tools.append(_tool(given, None))
        else:
            ignored[kind] = None
    return tuple(tools), tuple(ignored)


def _namespace(given: Fields) -> Iterator[Tool]:
    name = given.required_text("name")
    for tool in given.objects("tools"):
        tool.required_choice("type", _CALLABLE)
        yield _tool(tool, name)


def _tool(given: Fields, namespace: str | None) -> Tool:
    checked = function_tool(given)["function"]
    is_custom = checked["type"] == "custom"
    function: dict[str, Any] = {"name": qualified(namespace, checked["name"])}
    if is_custom:
        function.update(description=_with_grammar(given), parameters=_CUSTOM_PARAMETERS)
        wire = {"type": "custom", **_selected(checked, "name", "description", "format")}
    else:
        function.update({"parameters": _NO_PARAMETERS, **_selected(checked, "description", "parameters", "strict")})
        wire = {"type": "function", **{name: checked.get(name) for name in _FUNCTION_FIELDS}}
    return Tool(checked["name"], namespace, is_custom, given.path, function, wire)


_FUNCTION_FIELDS = ("name", "description", "parameters", "strict")
_NO_PARAMETERS = {"type": "object", "properties": {}}
_CUSTOM_PARAMETERS = {
    "type": "object",
    "properties": {CUSTOM_INPUT: {"type": "string"}},
    "required": [CUSTOM_INPUT],
    "additionalProperties": False,
}


def _selected(fields: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: fields[name] for name in names if name in fields}


def _with_grammar(given: Fields) -> str:
    """The description with the grammar of the input. The prompt shows the grammar; it is not enforced."""
    description = given.text("description") or ""
    format = given.object("format")
    if format is None or format.choice("type", ("text", "grammar")) != "grammar":
        return description
    syntax = format.choice("syntax", ("lark", "regex"))
    return f"{description}\n\nThe input must match this grammar ({syntax}):\n{format.text('definition') or ''}".lstrip()


def read_tool_choice(body: Fields, tools: Sequence[Tool]) -> dict[str, Any]:
    """`tool_choice` and `allowed` of a ChatRequest.

    Raises:
        BadRequest: The field is invalid, or names a tool that the request does not have.
    """
    value = body.get("tool_choice")
    names: tuple[str, ...] = ()
    if isinstance(value, dict):
        mode, names = _read_choice_object(Fields(value, body.at("tool_choice")), tools)
    else:
        mode = body.choice("tool_choice", _MODES) or "auto"
    if mode == "required" and not tools:
        message = f"'tool_choice' is {show(value)}, which needs 'tools' of type function or custom"
        raise BadRequest(message, "tool_choice")
    return {"tool_choice": mode if tools else "none", "allowed": names}


def _read_choice_object(choice: Fields, tools: Sequence[Tool]) -> tuple[str, tuple[str, ...]]:
    kind = choice.text("type")
    if kind in _CALLABLE:
        return "required", (_chosen_name(choice, tools),)
    if kind != "allowed_tools":
        choice.refuse("type", '"function", "custom" or "allowed_tools" (other tools are not supported)')
    mode = choice.choice("mode", ("auto", "required")) or "auto"
    listed = [tool for tool in choice.objects("tools") if tool.text("type") in _CALLABLE]
    if not listed:
        choice.refuse("tools", "a list with at least one function or custom tool")
    return mode, tuple(_chosen_name(tool, tools) for tool in listed)


def _chosen_name(choice: Fields, tools: Sequence[Tool]) -> str:
    name, namespace = choice.text("name"), choice.text("namespace")
    found = [tool for tool in tools if tool.name == name and namespace in (None, tool.namespace)]
    if not found:
        offered = show([tool.name for tool in tools])
        raise BadRequest(f"'{choice.at('name')}' is {show(name)}; 'tools' offers {offered}", choice.at("name"))
    return found[0].model_name
