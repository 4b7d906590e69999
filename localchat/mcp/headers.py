"""The headers of the HTTP transport that repeat a part of a message, since revision 2026-07-28. No I/O."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ..schema.keywords import parts_of
from ..transport.http1 import TOKEN
from .messages import Json

# The requests whose headers have a name, and the parameter that it comes from.
_NAMED_BY = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}

_ANNOTATION = "x-mcp-header"
_PLAIN = re.compile(r"([!-~]([ -~]*[!-~])?)?")
_ENCODED = re.compile(r"=\?base64\?.*\?=", re.DOTALL)


def message_headers(message: Json) -> dict[str, str]:
    """The headers with the method of a message, and with the name of what it is for."""
    headers = {"Mcp-Method": message["method"]}
    parameter = _NAMED_BY.get(message["method"])
    if parameter is not None:
        headers["Mcp-Name"] = _encoded(str(message["params"].get(parameter, "")))
    return headers


def argument_headers(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, str]:
    """The headers with the arguments of a call that the schema of the tool marks."""
    headers = {}
    for name, path, _ in _marked(schema, ()):
        value: Any = arguments
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is not None:
            text = str(value).lower() if isinstance(value, bool) else str(value)
            headers[f"Mcp-Param-{name}"] = _encoded(text)
    return headers


def check_marks(schema: Mapping[str, Any]) -> None:
    """Raise ValueError if a schema marks arguments for headers in a way that the specification does not allow."""
    marked = list(_marked(schema, ()))
    names = []
    for name, path, property_schema in marked:
        where = f"{_ANNOTATION} of {'.'.join(path)}"
        if not isinstance(name, str) or not TOKEN.fullmatch(name):
            raise ValueError(f"{where} is no name of a header: {name!r}")
        if property_schema.get("type") not in ("string", "integer", "boolean"):
            raise ValueError(f"{where} marks a value of the type {property_schema.get('type')!r}")
        names.append(name.lower())
    if len(set(names)) < len(names):
        raise ValueError(f"two properties have one {_ANNOTATION}: {', '.join(names)}")
    if sum(_ANNOTATION in part for part in parts_of(schema)) > len(marked):
        raise ValueError(f"{_ANNOTATION} stands at a place that is not reached by properties alone")


def _marked(schema: Any, path: tuple[str, ...]) -> Iterator[tuple[Any, tuple[str, ...], Mapping[str, Any]]]:
    """The marked properties: the name of the header, the path of the property and its schema."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    for key, value in properties.items() if isinstance(properties, Mapping) else ():
        if isinstance(value, Mapping):
            if _ANNOTATION in value:
                yield value[_ANNOTATION], (*path, key), value
            yield from _marked(value, (*path, key))


def _encoded(text: str) -> str:
    """A text as the value of a header: as it is, or in base64 if HTTP does not allow it."""
    if _PLAIN.fullmatch(text) and not _ENCODED.fullmatch(text):
        return text
    return f"=?base64?{base64.b64encode(text.encode(errors='replace')).decode()}?="
