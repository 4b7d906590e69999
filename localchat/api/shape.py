"""The members that say what form an answer must have: at most one of them, with its place in the request.

Knows what the members are called and where they stand; what a schema or a grammar means is told elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Optional

from .errors import BadRequest
from .fields import Members

_TYPES = ("text", "json_object", "json_schema")


@dataclass(frozen=True)
class Shape:
    """The form of an answer: `kind` is json_object, json_schema, grammar, regex or choice; `param` its place."""

    kind: str
    value: Any
    param: str


def read_shape(body: Members) -> Optional[Shape]:
    """The form that the request asks for, if it asks for any.

    Raises:
        BadRequest: It asks for several, or for one that is not as it should be.
    """
    shapes = list(_shapes(body))
    if len(shapes) > 1:
        first, second = shapes[0].param, shapes[1].param
        raise BadRequest(f"'{first}' and '{second}' cannot both say what form the answer has", second)
    return shapes[0] if shapes else None


def _shapes(body: Members) -> Iterator[Shape]:
    formatted = _response_format(body)
    if formatted is not None:
        yield formatted
    if body.get("json_schema") is not None:
        yield Shape("json_schema", _schema(body, "json_schema"), "json_schema")
    for name in ("grammar", "regex"):
        text = body.text(name)
        if text:
            yield Shape(name, text, name)
    choices = body.items("choice", "texts")
    if not all(isinstance(choice, str) and choice for choice in choices):
        body.refuse("choice", "a list of texts that are not empty")
    if choices:
        yield Shape("choice", tuple(choices), "choice")


def _response_format(body: Members) -> Optional[Shape]:
    """OpenAI's forms, and llama-server's: a schema beside the type, with either of both types."""
    form = body.object("response_format")
    kind = form.choice("type", _TYPES) if form else "text"
    if form is None or kind == "text":
        return None
    if kind is None:
        form.refuse("type", "one of " + ", ".join(f'"{name}"' for name in _TYPES))
    holder = form if form.get("schema") is not None else form.object("json_schema")
    if kind == "json_object" and holder is not form:
        return Shape(kind, None, "response_format")
    if holder is None:
        form.refuse("json_schema", 'an object with a "schema"')
    return Shape("json_schema", _schema(holder, "schema"), holder.at("schema"))


def _schema(holder: Members, name: str) -> Any:
    """A schema is an object, or true or false."""
    value = holder.get(name)
    if not isinstance(value, (dict, bool)):
        holder.refuse(name, "a JSON schema")
    return value
