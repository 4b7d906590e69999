"""Reads response formats, in which the output of a model is generated, and JSON schemas."""

from __future__ import annotations

from typing import Any

from ..core.errors import BadRequest, field_error
from ..core.fields import Fields, refuse_unsupported
from ..core.request import ResponseFormat
from ..schema.check import Malformed, checked

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
