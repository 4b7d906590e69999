"""Convert types to JSON Schema, and JSON to values of those types. No I/O.

A target is a dataclass, a TypedDict, any other annotation that JSON can hold, a function (its parameters), a class with
`model_json_schema`, a schema as a dict, or the short form "name, age int". `json_schema` converts a target to a schema;
`build` validates JSON and makes the value; `structured` does both for a chat response. JSON that is not valid raises
DoesNotFit with the path; a target that JSON Schema cannot describe raises TypeError.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Mapping
from typing import Any, Union

from ..errors import DoesNotFit
from .shapes import ABSENT, Field, Shape, described, document, plain, record, shape_of
from .signatures import evaluated_hints, read_function, without_return
from .validator import Json, validation_errors

_SHOWN_ERRORS = 3


def json_schema(target: Any, *, strict: bool = False) -> Json:
    """The JSON Schema of a target. `strict` applies OpenAI's rules: all properties are required, no others allowed."""
    try:
        schema = document(_target_shape(target))
    except RecursionError as error:
        raise TypeError(f"{target!r} contains itself: only a class may refer to itself") from error
    return _strict(schema) if strict else schema


def can_be_strict(schema: Any) -> bool:
    """Whether OpenAI accepts a schema of `_strict`: each part has a type, and no object has other properties."""
    if not isinstance(schema, Mapping) or schema.keys() & {"prefixItems", "uniqueItems", "oneOf", "allOf", "not"}:
        return False
    is_open = "object" in schema.get("type", ()) and schema.get("additionalProperties") is not False
    if is_open or not schema.keys() & {"$ref", "anyOf", "enum", "const", "type"}:
        return False
    parts = [*schema.get("anyOf", ()), *([schema["items"]] if "items" in schema else [])]
    parts += [part for name in ("properties", "$defs") for part in schema.get(name, {}).values()]
    return all(map(can_be_strict, parts))


def build(target: Any, value: Any) -> Any:
    """Convert parsed JSON to a value of the target. Raises DoesNotFit if the JSON is not valid."""
    shape = _target_shape(target)
    try:
        errors = list(validation_errors(value, document(shape)))
        if not errors:
            return shape.build(value, "$")
    except RecursionError as error:
        raise DoesNotFit("$: nested too deeply") from error
    shown = "; ".join(map(str, errors[:_SHOWN_ERRORS]))
    more = f" (and {len(errors) - _SHOWN_ERRORS} more)" if len(errors) > _SHOWN_ERRORS else ""
    raise DoesNotFit(shown + more, path=errors[0].path)


def _target_shape(target: Any) -> Shape:
    if isinstance(target, str):
        return _short_form(target)
    if isinstance(target, Mapping):
        return plain(target)
    return _function(target) if _is_function(target) else shape_of(target)


def _strict(schema: Any) -> Any:
    """Apply OpenAI's rules for `strict`: closed objects, all properties required, no default, nothing beside a $ref."""
    if isinstance(schema, list):
        return [_strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: value if name in _VERBATIM else _strict(value) for name, value in schema.items()}
    closed.pop("default", None)
    for name in _BY_NAME:
        if isinstance(schema.get(name), dict):
            closed[name] = {key: _strict(value) for key, value in schema[name].items()}
    if "$ref" in schema:
        return {name: value for name, value in closed.items() if name in ("$ref", "$defs")}
    if isinstance(schema.get("properties"), dict):
        closed.update(required=list(schema["properties"]), additionalProperties=False)
    return closed


# Keywords whose values are not schemas, and keywords whose keys are names and not keywords.
_VERBATIM = frozenset({"enum", "const", "required", "examples", "dependentRequired"})
_BY_NAME = ("properties", "$defs", "definitions", "patternProperties", "dependentSchemas")


# Functions


def _is_function(target: Any) -> bool:
    if hasattr(target, "__supertype__"):  # In Python 3.9 a NewType is a function.
        return False
    if inspect.isroutine(target) or isinstance(target, functools.partial):
        return True
    known = isinstance(target, type) or typing.get_origin(target) or type(target).__module__ in ("typing", "types")
    return callable(target) and not known


def _function(function: Any) -> Shape:
    name = getattr(function, "__name__", None) or type(function).__name__
    return record(id(function), name, "", lambda: _function_fields(function, name), dict)


def _function_fields(function: Any, name: str) -> list[Field]:
    inner, bound = function, {}
    if isinstance(function, functools.partial):  # Its bound arguments are not for the model.
        inner, bound = function.func, function.keywords
        function = functools.partial(inner, *function.args, **bound)  # Without `__wrapped__`, which has all parameters.
    hints = evaluated_hints(without_return(inspect.unwrap(inner if inspect.isroutine(inner) else type(inner).__call__)))
    texts = read_function(function)[1]
    fields = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in bound:
            continue
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"{name}: a model can only give parameters by name, not {str(parameter)!r}")
        hint = hints.get(parameter.name, Any)
        if parameter.default is None and hint is not Any:
            hint = Union[hint, None]  # The model may pass the default too. Before Python 3.11, typing does this.
        shape = described(shape_of(hint), texts.get(parameter.name))
        fields.append(Field(parameter.name, shape, parameter.default is ABSENT, parameter.default))
    return fields


# The short form

_SHORT_TYPES = {"": str, "str": str, "int": int, "float": float, "bool": bool}
# A text that is nothing but one of these words is a type of a response format or of a value.
_TYPE_WORDS = (
    "json json_object json_schema text str int float bool dict list object array string number integer boolean"
)


def _short_form(text: str) -> Shape:
    """Parse "name, age int, bio: one line": fields with type and description, separated by commas or lines."""
    if text.strip() in _TYPE_WORDS.split():
        ways = "pass {'type': 'json_object'} for any JSON object, a type such as int for a value of it"
        raise ValueError(f"{text.strip()!r} is no field: {ways}, or '{text.strip()} str' for a field of this name")
    parts = [part.strip() for part in text.split("\n" if "\n" in text.strip() else ",")]
    fields = [_short_field(part) for part in parts if part]
    names = [field.name for field in fields]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"the short form needs fields of different names: {text!r}")
    return record(text, "answer", "", lambda: fields, dict)


def _short_field(text: str) -> Field:
    head, _, description = text.partition(":")
    name, _, kind = " ".join(head.split()).partition(" ")
    if not name.isidentifier() or kind not in _SHORT_TYPES:
        raise ValueError(f"a field must be `name`, `name type` or `name type: description`, not {text!r}")
    return Field(name, described(shape_of(_SHORT_TYPES[kind]), description.strip()))
