"""Convert tool definitions of llama-stack to OpenAI's, and names of Python types to JSON Schema."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from .values import Json, fields_of, tool_name

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
    """The schema of a Python annotation, such as "List[int]", or of the name of a JSON Schema type."""
    try:
        return _type_schema(ast.parse(name.strip(), mode="eval").body)
    except (SyntaxError, ValueError):
        return {"type": name.strip()}


def _type_schema(node: ast.expr) -> Json:
    """Raise ValueError if the expression is not an annotation."""
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
    """Convert a llama-stack ToolDefinition. A default of None is omitted; 0, False and "" are kept."""
    tool = fields_of(tool)
    parameters = {name: fields_of(parameter) for name, parameter in (tool.get("parameters") or {}).items()}
    function: Json = {"name": tool_name(tool["tool_name"])}
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
