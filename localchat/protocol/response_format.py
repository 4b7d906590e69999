"""The members that say what form an answer must have: at most one of them, with its place in the request.

Knows what the members are called and where they stand; what a schema or a grammar means is told elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .errors import BadRequest
from .fields import Fields, refuse_unsupported

_TYPES = ("text", "json_object", "json_schema")

# What each kind is called as a member of the request, in vLLM's older form, and within vLLM's `structured_outputs`.
_MEMBERS: Mapping[str, str] = {"json_schema": "json_schema", "grammar": "grammar", "regex": "regex", "choice": "choice"}
_GUIDED: Mapping[str, str] = {kind: "guided_" + kind.replace("_schema", "") for kind in _MEMBERS}
_STRUCTURED: Mapping[str, str] = {**_MEMBERS, "json_schema": "json"}


@dataclass(frozen=True)
class Shape:
    """The form of an answer: `kind` is json_object, json_schema, grammar, regex or choice; `param` its place."""

    kind: str
    value: Any
    param: str


def read_shape(body: Fields) -> Shape | None:
    """The form that the request asks for, if it asks for any.

    Raises:
        BadRequest: It asks for several, or for one that is not as it should be.
    """
    shapes = list(_shapes(body))
    if len(shapes) > 1:
        first, second = shapes[0].param, shapes[1].param
        raise BadRequest(f"'{first}' and '{second}' cannot both say what form the answer has", second)
    return shapes[0] if shapes else None


def _shapes(body: Fields) -> Iterator[Shape]:
    formatted = read_format(body.object("response_format"))
    if formatted is not None:
        yield formatted
    yield from _named(body, _MEMBERS)
    yield from _named(body, _GUIDED)
    structured = body.object("structured_outputs")
    if structured is not None:
        refuse_unsupported(structured, {"structural_tag": ()})
        yield from _named(structured, _STRUCTURED)
        if structured.boolean("json_object"):
            yield Shape("json_object", None, structured.at("json_object"))


def _named(holder: Fields, names: Mapping[str, str]) -> Iterator[Shape]:
    """The forms in members of their own, which `names` says."""
    schema = names["json_schema"]
    if holder.get(schema) is not None:
        yield Shape("json_schema", _schema(holder, schema), holder.at(schema))
    for kind in ("grammar", "regex"):
        text = holder.text(names[kind])
        if text:
            yield Shape(kind, text, holder.at(names[kind]))
    choices = holder.items(names["choice"], "texts")
    if not all(isinstance(choice, str) and choice for choice in choices):
        holder.refuse(names["choice"], "a list of texts that are not empty")
    if choices:
        yield Shape("choice", tuple(choices), holder.at(names["choice"]))


def read_format(form: Fields | None) -> Shape | None:
    """OpenAI's forms, and those with a schema beside the type, as the Responses API and llama-server have them."""
    kind = form.choice("type", _TYPES) if form else "text"
    if form is None or kind == "text":
        return None
    if kind is None:
        form.refuse("type", "one of " + ", ".join(f'"{name}"' for name in _TYPES))
    holder = form if form.get("schema") is not None else form.object("json_schema")
    if kind == "json_object" and holder is not form:
        return Shape(kind, None, form.path)
    if holder is None:
        form.refuse("json_schema", 'an object with a "schema"')
    return Shape("json_schema", _schema(holder, "schema"), holder.at("schema"))


def _schema(holder: Fields, name: str) -> Any:
    """A schema is an object, or true or false."""
    value = holder.get(name)
    if not isinstance(value, (dict, bool)):
        holder.refuse(name, "a JSON schema")
    return value
