"""Convert types to JSON Schema, and JSON to values of those types. No I/O.

A target is a dataclass, a TypedDict, any other annotation that JSON can hold, a function (its parameters), a class with
`model_json_schema`, a schema as a dict, or the short form "name, age int". `json_schema` converts a target to a schema;
`build` validates JSON and makes the value; `structured` does both for a chat response. JSON that is not valid raises
DoesNotFit with the path; a target that JSON Schema cannot describe raises TypeError.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import datetime
import enum
import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Union

from ..errors import DoesNotFit
from .shapes import (
    ABSENT,
    ANYTHING,
    AnyOf,
    Array,
    BuildError,
    Constants,
    Described,
    Field,
    Map,
    Plain,
    Record,
    SelfDescribing,
    Shape,
    Tuple,
    document,
    has_plain_values,
)
from .signatures import evaluated_hints, own_docstring, read_docstring, read_function, without_return
from .validator import TYPE_NAMES, ValidationError, parse_moment, parse_time, validation_errors

Json = dict[str, Any]

_SHOWN_ERRORS = 3


def json_schema(target: Any, *, strict: bool = False) -> Json:
    """The JSON Schema of a target.

    Args:
        target: One of the kinds that the docstring of this module lists.
        strict: Follow OpenAI's rules for `strict`: all properties are required, and no others are allowed.
    """
    return document(_shape_of(target), strict)


def build(target: Any, value: Any) -> Any:
    """Convert parsed JSON to a value of the target: an instance, a member of an enum, a dict of arguments.

    Raises:
        DoesNotFit: The JSON is not valid.
    """
    shape = _shape_of(target)
    try:
        errors = list(validation_errors(value, document(shape)))
        if errors:
            raise _does_not_fit(errors)
        return shape.build(value, "$")
    except BuildError as error:
        raise _does_not_fit([error.error]) from error.__cause__
    except RecursionError as error:
        raise DoesNotFit("$: nested too deeply") from error


def _does_not_fit(errors: Sequence[ValidationError]) -> DoesNotFit:
    shown = "; ".join(map(str, errors[:_SHOWN_ERRORS]))
    more = f" (and {len(errors) - _SHOWN_ERRORS} more)" if len(errors) > _SHOWN_ERRORS else ""
    return DoesNotFit(shown + more, path=errors[0].path)


def is_schema(target: Any) -> bool:
    """Whether a target is a JSON Schema, not a type."""
    return isinstance(target, Mapping)


# Annotations to shapes


_PLAIN: dict[Any, Plain] = {
    str: Plain({"type": "string"}),
    int: Plain({"type": "integer"}, int),
    float: Plain({"type": "number"}, float),
    bool: Plain({"type": "boolean"}),
    None: Plain({"type": "null"}),
    type(None): Plain({"type": "null"}),
    Any: ANYTHING,
    object: ANYTHING,
    datetime.datetime: Plain({"type": "string", "format": "date-time"}, parse_moment),
    datetime.date: Plain({"type": "string", "format": "date"}, datetime.date.fromisoformat),
    datetime.time: Plain({"type": "string", "format": "time"}, parse_time),
}


def _shape_of(target: Any) -> Shape:
    """The shape of a target, which may also be a schema, a function or the short form."""
    if isinstance(target, str):
        return _short_form(target)
    if isinstance(target, Mapping):
        return Plain(target)
    if _is_function(target):
        return _function(target)
    return _shape(target)


def _shape(hint: Any) -> Shape:
    try:
        known = _PLAIN.get(hint)
    except TypeError:  # Not hashable, for example an Annotated with a list as metadata.
        known = None
    make = _BY_ORIGIN.get(typing.get_origin(hint) or (hint if isinstance(hint, type) else None))
    if known is not None:
        return known
    if make is not None:
        return make(typing.get_args(hint))
    inner = getattr(hint, "__supertype__", getattr(hint, "__value__", None))
    if inner is None:
        return _class(hint)
    try:
        return _shape(inner)  # A NewType, or the alias of a `type` statement.
    except RecursionError:
        raise TypeError(f"{hint!r} refers to itself, as only dataclasses and typed dicts may") from None


def _class(hint: Any) -> Shape:
    if isinstance(hint, type):
        if issubclass(hint, enum.Enum):
            return _enum(hint)
        if hasattr(hint, "model_json_schema"):
            return SelfDescribing(hint)
        if dataclasses.is_dataclass(hint):
            return Record(hint, hint.__name__, own_docstring(hint), lambda: _dataclass_fields(hint), hint)
        if issubclass(hint, dict) and hasattr(hint, "__total__"):
            return Record(hint, hint.__name__, own_docstring(hint), lambda: _typed_dict_fields(hint), dict)
    raise TypeError(f"JSON Schema has no counterpart for {hint!r}")


def _array(make: Callable[[Iterable[Any]], Any], unique: bool = False) -> Callable[[tuple[Any, ...]], Shape]:
    return lambda args: Array(_shape(args[0]) if args else None, make, unique)


def _tuple(args: tuple[Any, ...]) -> Shape:
    if not args or args[-1] is Ellipsis:
        return Array(_shape(args[0]) if args else None, tuple)
    return Tuple(tuple(map(_shape, args)))


def _map(args: tuple[Any, ...]) -> Shape:
    if args and args[0] not in (str, Any):
        raise TypeError(f"the keys of JSON objects are text, not {args[0]!r}")
    return Map(_shape(args[1]) if args else None)


def _union(args: tuple[Any, ...]) -> Shape:
    return AnyOf(tuple(map(_shape, args)))


def _literal(args: tuple[Any, ...]) -> Shape:
    options = tuple((arg.value if isinstance(arg, enum.Enum) else arg, arg) for arg in args)
    if not all(type(value) in TYPE_NAMES for value, _ in options):
        raise TypeError(f"JSON cannot hold all of {args!r}")
    return Constants(options)


def _annotated(args: tuple[Any, ...]) -> Shape:
    inner, description = _shape(args[0]), next((extra for extra in args[1:] if isinstance(extra, str)), "")
    return Described(inner, description) if description else inner


def _enum(hint: type[enum.Enum]) -> Shape:
    """The values of an enum, or its names if JSON cannot hold the values."""
    by_value = has_plain_values(hint)
    return Constants(tuple((member.value if by_value else member.name, member) for member in hint))


_BY_ORIGIN: dict[Any, Callable[[tuple[Any, ...]], Shape]] = {
    list: _array(list),
    collections.abc.Sequence: _array(list),
    collections.abc.Iterable: _array(list),
    set: _array(set, unique=True),
    frozenset: _array(frozenset, unique=True),
    tuple: _tuple,
    dict: _map,
    collections.abc.Mapping: _map,
    Union: _union,
    getattr(types, "UnionType", Union): _union,
    typing.Literal: _literal,
    typing.Annotated: _annotated,
}


# Fields


def _dataclass_fields(target: Any) -> list[Field]:
    hints, described = evaluated_hints(target), read_docstring(target.__doc__ or "")[1]
    fields = []
    for field in target.__dataclass_fields__.values():  # dataclasses.fields() leaves out InitVar.
        hint = hints[field.name]
        hint = hint.type if isinstance(hint, dataclasses.InitVar) else hint
        if field.init and typing.ClassVar not in (hint, typing.get_origin(hint)):
            description = field.metadata.get("description") or described.get(field.name)
            default = ABSENT if field.default is dataclasses.MISSING else field.default
            required = default is ABSENT and field.default_factory is dataclasses.MISSING
            fields.append(Field(field.name, _with_description(_shape(hint), description), required, default))
    return fields


def _typed_dict_fields(target: Any) -> list[Field]:
    hints, described = evaluated_hints(target), read_docstring(target.__doc__ or "")[1]
    return [_typed_dict_field(target, name, hint, described.get(name)) for name, hint in hints.items()]


def _typed_dict_field(target: Any, name: str, hint: Any, description: str | None) -> Field:
    """A field of a TypedDict. `__required_keys__` misses Required and NotRequired in annotations that are strings."""
    required = name in target.__required_keys__
    while getattr(typing.get_origin(hint), "_name", None) in ("Required", "NotRequired", "ReadOnly"):
        wrapper = typing.get_origin(hint)._name
        required = required if wrapper == "ReadOnly" else wrapper == "Required"
        hint = typing.get_args(hint)[0]
    return Field(name, _with_description(_shape(hint), description), required, ABSENT)


def _is_function(target: Any) -> bool:
    if hasattr(target, "__supertype__"):  # In Python 3.9 a NewType is a function.
        return False
    if inspect.isroutine(target) or isinstance(target, functools.partial):
        return True
    known = isinstance(target, type) or typing.get_origin(target) or type(target).__module__ in ("typing", "types")
    return callable(target) and not known


def _function(function: Any) -> Record:
    name = getattr(function, "__name__", None) or type(function).__name__
    return Record(id(function), name, "", lambda: _function_fields(function, name), dict)


def _function_fields(function: Any, name: str) -> list[Field]:
    inner = function.func if isinstance(function, functools.partial) else function
    hints = evaluated_hints(without_return(inspect.unwrap(inner if inspect.isroutine(inner) else type(inner).__call__)))
    described = read_function(function)[1]
    fields = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"{name}: a model can only give parameters by name, not {str(parameter)!r}")
        hint = hints.get(parameter.name, Any)
        if parameter.default is None and hint is not Any:
            hint = Union[hint, None]  # The model may pass the default too. Before Python 3.11, typing does this.
        shape = _with_description(_shape(hint), described.get(parameter.name))
        fields.append(Field(parameter.name, shape, parameter.default is ABSENT, parameter.default))
    return fields


def _with_description(shape: Shape, description: str | None) -> Shape:
    """The shape with a description from a docstring, unless the annotation has one already."""
    return Described(shape, description) if description and not isinstance(shape, Described) else shape


# The short form

_SHORT_TYPES = {"str": str, "int": int, "float": float, "bool": bool}


def _short_form(text: str) -> Shape:
    """Parse "name, age int, bio: one line": fields with type and description, separated by commas or lines."""
    parts = [part.strip() for part in text.split("\n" if "\n" in text.strip() else ",")]
    fields = [_short_field(part) for part in parts if part]
    names = [field.name for field in fields]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"the short form needs fields of different names: {text!r}")
    return Record(text, "answer", "", lambda: fields, dict)


def _short_field(text: str) -> Field:
    head, _, description = text.partition(":")
    name, _, kind = " ".join(head.split()).partition(" ")
    if not name.isidentifier() or (kind or "str") not in _SHORT_TYPES:
        raise ValueError(f"a field must be `name`, `name type` or `name type: description`, not {text!r}")
    return Field(name, _with_description(_shape(_SHORT_TYPES[kind or "str"]), description.strip()), True, ABSENT)
