"""Reads tools and `tool_choice`, for all interfaces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..core.errors import BadRequest
from ..core.fields import Fields, show
from .content import without_nulls
from .response_format import without_null_keywords

Tool = dict[str, Any]

# The argument of the function that represents a custom tool.
CUSTOM_INPUT = "input"


def function_tool(function: Fields) -> Tool:
    """The tool `{"type": "function", "function": {...}}` of a function.

    Raises:
        BadRequest: A field is invalid.
    """
    function.required_text("name")
    function.text("description")
    function.object("parameters")
    parameters = without_null_keywords(function.raw.get("parameters"))
    return {"type": "function", "function": without_nulls({**function.raw, "parameters": parameters})}


def read_tools(body: Fields) -> tuple[Tool, ...]:
    """The tools in the format of chat completions, including those in the older field `functions`."""
    body.check_size("tools")
    body.check_size("functions")
    tools = []
    for tool in body.objects("tools"):
        tool.choice("type", ("function",))
        tools.append(function_tool(tool.required_object("function")))
    return (*tools, *map(function_tool, body.objects("functions")))


def read_tool_choice(body: Fields, tools: Sequence[Tool]) -> dict[str, Any]:
    """`tool_choice` and `allowed` of a ChatRequest, in the format of chat completions or of the Responses API."""
    older = body.get("tool_choice") is None and body.get("function_call") is not None
    field = "function_call" if older else "tool_choice"
    if not isinstance(body.get(field), dict):
        return chosen_tools(body, field, body.choice(field, ("none", "auto", "required")) or "auto", [], tools)
    choice = body.required_object(field)
    if choice.get("type") != "allowed_tools":
        return chosen_tools(body, field, "required", [_chosen_name(choice, field)], tools)
    # Chat completions nest the fields in an object `allowed_tools`; the Responses API does not.
    listed = choice.object("allowed_tools") or choice
    mode = listed.choice("mode", ("auto", "required")) or "auto"
    # Tools of other types run on the provider's servers, and were skipped.
    callable = [tool for tool in listed.objects("tools") if tool.raw.get("type") in (None, "function", "custom")]
    names = [_chosen_name(tool, listed.at("tools")) for tool in callable]
    if not names:
        listed.refuse("tools", "a list of at least one function")
    return chosen_tools(body, field, mode, names, tools)


def chosen_tools(body: Fields, field: str, mode: str, names: Sequence[str], tools: Sequence[Tool]) -> dict[str, Any]:
    """`tool_choice` and `allowed` of a ChatRequest: a mode and names that the request must offer.

    The default mode is "auto" with tools and "none" without.

    Raises:
        BadRequest: The request does not offer such tools.
    """
    offered = [tool["function"]["name"] for tool in tools]
    if mode == "required" and not offered:
        raise BadRequest(f"'{field}' is {show(body.raw[field])}, which needs 'tools'", field)
    for name in names:
        if name not in offered:
            raise BadRequest(f"'{field}' names {show(name)}; 'tools' offers {show(offered)}", field)
    return {"tool_choice": mode if offered else "none", "allowed": tuple(names)}


def _chosen_name(choice: Fields, field: str) -> str:
    function = choice.object("function") or choice.object("custom") or choice
    name = function.text("name")
    if not name:
        raise BadRequest(
            f"'{field}' must name a function: "
            'a mode or {"type": "function", "function": {"name": ...}}, got ' + show(choice.raw),
            field,
        )
    return qualified(function.text("namespace"), name)


def qualified(namespace: str | None, name: str) -> str:
    """The name of a tool for the model, which includes the namespace."""
    if not namespace:
        return name
    return namespace + name if namespace.endswith("_") else f"{namespace}__{name}"


def tool_call(id: str | None, name: str, arguments: Any) -> dict[str, Any]:
    """A tool call of an earlier message. Arguments are JSON text or an object; the prompt package decodes them."""
    return without_nulls({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
