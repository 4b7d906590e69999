"""Reads the response format of a request: a JSON schema, grammar, regular expression or choice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..core.errors import BadRequest
from ..core.fields import Fields, refuse_unsupported
from ..core.request import ResponseFormat

# The kinds of formats that have a field of their own, by the name of the field: in a body (llama.cpp's, and vLLM's
# older names), and in vLLM's `structured_outputs`.
_FIELDS = {
    **{kind: kind for kind in ("json_schema", "grammar", "regex", "choice")},
    "guided_json": "json_schema",
    "guided_grammar": "grammar",
    "guided_regex": "regex",
    "guided_choice": "choice",
}
_STRUCTURED = {"json": "json_schema", "grammar": "grammar", "regex": "regex", "choice": "choice"}


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
    structured = body.object("structured_outputs")
    if structured is not None:
        refuse_unsupported(structured, {"structural_tag": ()})
        yield from _named(structured, _STRUCTURED)
        if structured.boolean("json_object"):
            yield ResponseFormat("json_object", None, structured.at("json_object"))


def _named(holder: Fields, kinds: dict[str, str]) -> Iterator[ResponseFormat]:
    """The response formats in the fields with these names."""
    for name, kind in kinds.items():
        holder.check_size(name)
        value: Any = None
        if kind == "json_schema":
            value = read_schema(holder, name)
        elif kind == "choice":
            value = tuple(holder.items(name, "texts"))
            if not all(isinstance(choice, str) and choice for choice in value):
                holder.refuse(name, "a list of texts that are not empty")
        else:
            value = holder.text(name)
        if value is not None and value not in ("", ()):
            yield ResponseFormat(kind, value, holder.at(name))


def read_format_object(form: Fields | None) -> ResponseFormat | None:
    """Parse `response_format`. The schema may be beside `type`, as in the Responses API and llama-server."""
    if form is None:
        return None
    kind = form.required_choice("type", ("text", "json_object", "json_schema"))
    if kind == "text":
        return None
    holder = form if form.get("schema") is not None else form.object("json_schema")
    if kind == "json_object" and holder is not form:
        return ResponseFormat(kind, None, form.path)
    if holder is None:
        form.refuse("json_schema", 'an object with a "schema"')
    if holder.get("schema") is None:
        holder.refuse("schema", "a JSON schema")
    return ResponseFormat("json_schema", read_schema(holder, "schema"), holder.at("schema"))


def read_schema(holder: Fields, name: str) -> Any:
    """A JSON schema: an object, true or false; None if the field is absent."""
    holder.check_size(name)
    value = holder.get(name)
    if value is not None and not isinstance(value, (dict, bool)):
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
