"""Targets: what a program gives to describe values. They become JSON Schema, and JSON becomes values of them. No I/O.

A target is a dataclass, a TypedDict, any other annotation that JSON can hold, a function (its parameters), a class with
`model_json_schema`, or a schema as a mapping. `json_schema` converts a target to a schema; `build` validates JSON and
makes the value. JSON that is not valid raises DoesNotFit with the path; a target that JSON Schema cannot describe
raises TypeError, and a schema that is wrong ValueError.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import DoesNotFit
from .schema_check import checked_schema
from .shapes import Shape, plain_shape, record_shape, shape_of, whole_schema
from .signatures import function_fields, is_function
from .validator import Json, validation_errors
from .variants import strict_schema

_SHOWN_ERRORS = 3


def json_schema(target: Any, *, strict: bool = False) -> Json:
    """The JSON Schema of a target. `strict` applies OpenAI's rules: all properties are required, no others allowed."""
    schema = whole_schema(target_shape(target))
    return strict_schema(schema) if strict else schema


def build(target: Any, value: Any) -> Any:
    """Convert parsed JSON to a value of the target. Raises DoesNotFit if the JSON is not valid."""
    return build_shape(target_shape(target), value)


def target_shape(target: Any) -> Shape:
    """The shape of a target. Raises TypeError or ValueError if it is none."""
    if isinstance(target, str):
        raise TypeError(f"{target[:100]!r} is a text: give a type such as a dataclass, or a JSON Schema as a dict")
    if isinstance(target, Mapping):
        return plain_shape(checked_schema(target))
    if not is_function(target):
        return shape_of(target)
    name = getattr(target, "__name__", None) or type(target).__name__
    # A callable object may not be hashable, or be equal to another one.
    return record_shape(id(target), name, "", lambda: function_fields(target, name), dict)


def build_shape(shape: Shape, value: Any) -> Any:
    """Convert parsed JSON to a value of a shape. Raises DoesNotFit if the JSON is not valid."""
    try:
        errors = list(validation_errors(value, whole_schema(shape)))
        if not errors:
            return shape.build(value, "$")
    except RecursionError as error:
        raise DoesNotFit("$: nested too deeply") from error
    shown = "; ".join(map(str, errors[:_SHOWN_ERRORS]))
    others = f" (and {len(errors) - _SHOWN_ERRORS} more)" if len(errors) > _SHOWN_ERRORS else ""
    raise DoesNotFit(shown + others, path=errors[0].path)
