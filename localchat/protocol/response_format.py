"""The response format of a request: a JSON schema, grammar, regular expression or choice, in any field that sets one.

This module parses the fields. The package `grammar` compiles the formats.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .errors import BadRequest
from .fields import Fields, refuse_unsupported

_TYPES = ("text", "json_object", "json_schema")

# The field for each kind of format: in the request, under vLLM's older names, and in vLLM's `structured_outputs`.
_FIELDS: Mapping[str, str] = {"json_schema": "json_schema", "grammar": "grammar", "regex": "regex", "choice": "choice"}
_GUIDED: Mapping[str, str] = {kind: "guided_" + kind.replace("_schema", "") for kind in _FIELDS}
_STRUCTURED: Mapping[str, str] = {**_FIELDS, "json_schema": "json"}


@dataclass(frozen=True)
class ResponseFormat:
    """A constraint on the output."""

    kind: str
    """json_object, json_schema, grammar, regex or choice."""
    value: Any
    """The schema, the text of the grammar or pattern, or a tuple of choices; None for json_object."""
    param: str
    """The path of the field in the request, for error messages."""


def read_response_format(body: Fields) -> ResponseFormat | None:
    """The response format of a request; None if it has none.

    Raises:
        BadRequest: The request has several formats, or an invalid one.
    """
    formats = list(_response_formats(body))
    if len(formats) > 1:
        first, second = formats[0].param, formats[1].param
        raise BadRequest(f"'{first}' and '{second}' cannot both be set: each constrains the output", second)
    return formats[0] if formats else None


def _response_formats(body: Fields) -> Iterator[ResponseFormat]:
    formatted = read_format_object(body.object("response_format"))
    if formatted is not None:
        yield formatted
    yield from _named(body, _FIELDS)
    yield from _named(body, _GUIDED)
    structured = body.object("structured_outputs")
    if structured is not None:
        refuse_unsupported(structured, {"structural_tag": ()})
        yield from _named(structured, _STRUCTURED)
        if structured.boolean("json_object"):
            yield ResponseFormat("json_object", None, structured.at("json_object"))


def _named(holder: Fields, names: Mapping[str, str]) -> Iterator[ResponseFormat]:
    """The response formats in separate fields. `names` has the name of the field for each kind."""
    for name in names.values():
        holder.check_size(name)
    schema = names["json_schema"]
    if holder.get(schema) is not None:
        yield ResponseFormat("json_schema", _schema(holder, schema), holder.at(schema))
    for kind in ("grammar", "regex"):
        text = holder.text(names[kind])
        if text:
            yield ResponseFormat(kind, text, holder.at(names[kind]))
    choices = holder.items(names["choice"], "texts")
    if not all(isinstance(choice, str) and choice for choice in choices):
        holder.refuse(names["choice"], "a list of texts that are not empty")
    if choices:
        yield ResponseFormat("choice", tuple(choices), holder.at(names["choice"]))


def read_format_object(form: Fields | None) -> ResponseFormat | None:
    """Parse `response_format`. The schema may be beside `type`, as in the Responses API and llama-server."""
    kind = form.choice("type", _TYPES) if form else "text"
    if form is None or kind == "text":
        return None
    if kind is None:
        form.refuse("type", "one of " + ", ".join(f'"{name}"' for name in _TYPES))
    holder = form if form.get("schema") is not None else form.object("json_schema")
    if kind == "json_object" and holder is not form:
        return ResponseFormat(kind, None, form.path)
    if holder is None:
        form.refuse("json_schema", 'an object with a "schema"')
    return ResponseFormat("json_schema", _schema(holder, "schema"), holder.at("schema"))


def _schema(holder: Fields, name: str) -> Any:
    """A JSON schema: an object, true or false."""
    holder.check_size(name)
    value = holder.get(name)
    if not isinstance(value, (dict, bool)):
        holder.refuse(name, "a JSON schema")
    return value
