"""The headers of the HTTP transport that repeat a part of a message, since revision 2026-07-28. No I/O."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

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
    for mark in _marks(schema, ()):
        value: Any = arguments
        for key in mark.path:
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is not None:
            text = str(value).lower() if isinstance(value, bool) else str(value)
            headers[f"Mcp-Param-{mark.header}"] = _encoded(text)
    return headers


def check_marks(schema: Mapping[str, Any]) -> None:
    """Raise ValueError if a schema marks arguments for headers in a way that the specification does not allow."""
    marks = list(_marks(schema, ()))
    names = []
    for name, path, property_schema in marks:
        where = f"{_ANNOTATION} of {'.'.join(path)}"
        if not isinstance(name, str) or not TOKEN.fullmatch(name):
            raise ValueError(f"{where} is no name of a header: {name!r}")
        if property_schema.get("type") not in ("string", "integer", "boolean"):
            raise ValueError(f"{where} marks a value of the type {property_schema.get('type')!r}")
        names.append(name.lower())
    if len(set(names)) < len(names):
        raise ValueError(f"two properties have one {_ANNOTATION}: {', '.join(names)}")
    if sum(_ANNOTATION in part for part in parts_of(schema)) > len(marks):
        raise ValueError(f"{_ANNOTATION} stands at a place that is not reached by properties alone")


class _Mark(NamedTuple):
    """The annotation of a property whose argument is repeated in a header."""

    header: Any  # The name of the header after `Mcp-Param-`; a server may send something else than a text.
    path: tuple[str, ...]  # The names of the properties that lead to the argument.
    schema: Mapping[str, Any]  # That of the property.


def _marks(schema: Any, path: tuple[str, ...]) -> Iterator[_Mark]:
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    for key, value in properties.items() if isinstance(properties, Mapping) else ():
        if isinstance(value, Mapping):
            if _ANNOTATION in value:
                yield _Mark(value[_ANNOTATION], (*path, key), value)
            yield from _marks(value, (*path, key))


def _encoded(text: str) -> str:
    """A text as the value of a header: as it is, or in base64 if HTTP does not allow it."""
    if _PLAIN.fullmatch(text) and not _ENCODED.fullmatch(text):
        return text
    return f"=?base64?{base64.b64encode(text.encode(errors='replace')).decode()}?="
