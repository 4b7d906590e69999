"""The response format of a request: a JSON schema, grammar, regular expression or choice, in any field that sets one.

This module parses the fields. The package `grammar` compiles the formats.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from .errors import BadRequest
from .fields import Fields, refuse_unsupported

_TYPES = ("text", "json_object", "json_schema")


class _Names(NamedTuple):
    """The name of the field for each kind of format."""

    json_schema: str
    grammar: str
    regex: str
    choice: str


_FIELDS = _Names("json_schema", "grammar", "regex", "choice")
# vLLM's older names.
_GUIDED = _Names("guided_json", "guided_grammar", "guided_regex", "guided_choice")
# The names in vLLM's `structured_outputs`.
_STRUCTURED = _Names("json", "grammar", "regex", "choice")


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


def _named(holder: Fields, names: _Names) -> Iterator[ResponseFormat]:
    """The response formats in the fields with these names."""
    for name in names:
        holder.check_size(name)
    if holder.get(names.json_schema) is not None:
        yield ResponseFormat("json_schema", _schema(holder, names.json_schema), holder.at(names.json_schema))
    for kind, name in (("grammar", names.grammar), ("regex", names.regex)):
        text = holder.text(name)
        if text:
            yield ResponseFormat(kind, text, holder.at(name))
    choices = holder.items(names.choice, "texts")
    if not all(isinstance(choice, str) and choice for choice in choices):
        holder.refuse(names.choice, "a list of texts that are not empty")
    if choices:
        yield ResponseFormat("choice", tuple(choices), holder.at(names.choice))


def read_format_object(form: Fields | None) -> ResponseFormat | None:
    """Parse `response_format`. The schema may be beside `type`, as in the Responses API and llama-server."""
    if form is None:
        return None
    kind = form.required_choice("type", _TYPES)
    if kind == "text":
        return None
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
    return without_null_keywords(value)


# Keywords whose values are data, in which null is a value.
_DATA_KEYWORDS = ("default", "const", "enum", "examples", "example")


def without_null_keywords(schema: Any) -> Any:
    """A JSON schema without keywords that are null: generators write `"required": null` for an absent keyword."""
    if isinstance(schema, list):
        return [without_null_keywords(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: value if name in _DATA_KEYWORDS and not isinstance(value, dict) else without_null_keywords(value)
        for name, value in schema.items()
        if value is not None or name in ("default", "const")
    }
