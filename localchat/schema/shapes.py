"""Shapes of types: the JSON Schema of a type, and how its values are built from JSON. No I/O.

`shape_of` finds the shape of an annotation: in the table `_PLAIN`, in `_BY_ORIGIN` for a type with parameters such as
`list[int]`, or by what the class is, such as a dataclass.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import datetime
import decimal
import enum
import functools
import inspect
import itertools
import json
import pathlib
import re
import types
import typing
import uuid
from collections import abc
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Union

from ..errors import DoesNotFit
from .annotations import class_annotations, signature_of
from .docstrings import read_docstring
from .validator import (
    TYPE_NAMES,
    Json,
    field_path,
    is_of_type,
    key_of,
    parse_moment,
    parse_time,
    show,
    validation_errors,
)

Args = tuple[Any, ...]

ABSENT: Any = inspect.Parameter.empty


class Definitions:
    """The `$defs` of one document. Each record has one entry, so a type may refer to itself."""

    def __init__(self) -> None:
        self.schemas: dict[str, Json] = {}  # By their names.
        # The names that must stay in `$defs`: those with several references, and those of a class that has made them.
        self.kept_names: set[str] = set()
        self._names: dict[Any, str] = {}  # By the keys of records.

    def reference(self, key: Any, title: str, describe: Callable[[Definitions], Json]) -> Json:
        """A schema that refers to the entry of a record. The first reference adds the entry, which `describe` makes.

        The name of the entry is the title of the record, with a number if another record has the same title.
        """
        if key in self._names:
            self.kept_names.add(self._names[key])
        else:
            title = re.sub(r"[^\w-]", "_", title)
            names = itertools.chain([title], (f"{title}_{number}" for number in itertools.count(2)))
            name = self._names[key] = next(name for name in names if name not in self.schemas)
            self.schemas[name] = {}  # Added before the fields are described, since they may refer to it.
            self.schemas[name].update(describe(self))
        return {"$ref": f"#/$defs/{self._names[key]}"}


class Shape(NamedTuple):
    """The two conversions of one type."""

    # Makes the JSON Schema. Records that it refers to are added to the definitions.
    schema: Callable[[Definitions], Json]
    # Makes the Python value for valid JSON and its path. Raises DoesNotFit if a class of the user raises an error.
    build: Callable[[Any, str], Any]
    description: str = ""  # The description that the annotation itself has.


def whole_schema(shape: Shape) -> Json:
    """The whole schema of a shape.

    Servers want the type `object` at the top level, so the definition of a record is put there. It stays in `$defs` as
    well if the record refers to itself.
    """
    definitions = Definitions()
    schema = shape.schema(definitions)
    name = str(schema.get("$ref")).rpartition("/")[2]
    if list(schema) == ["$ref"] and name in definitions.schemas:
        schema = definitions.schemas[name]
        if name not in definitions.kept_names:
            del definitions.schemas[name]
    return {**schema, "$defs": definitions.schemas} if definitions.schemas else schema


def plain_shape(keywords: Mapping[str, Any], make: Callable[[Any], Any] = lambda value: value) -> Shape:
    """A fixed schema, and a function that converts the JSON value. Without one, the value is the JSON value."""
    return Shape(lambda definitions: dict(keywords), lambda value, path: _call_maker(make, value, path))


def _call_maker(make: Callable[[Any], Any], value: Any, path: str) -> Any:
    """Call a class or function. It may raise any error, for a rule that the schema does not express."""
    try:
        return make(value)
    except Exception as error:
        raise _does_not_fit(path, str(error) or type(error).__name__) from error


def _does_not_fit(path: str, text: str) -> DoesNotFit:
    return DoesNotFit(f"{path}: {text}", path=path)


def with_description(shape: Shape, text: str | None) -> Shape:
    """The shape with a description, unless it has one already."""
    if not text or shape.description:
        return shape
    return Shape(lambda definitions: {**shape.schema(definitions), "description": text}, shape.build, text)


class Field(NamedTuple):
    """A field of a record, or a parameter of a function."""

    name: str
    shape: Shape
    required: bool = True
    default: Any = ABSENT

    def schema(self, definitions: Definitions) -> Json:
        schema = self.shape.schema(definitions)
        if self.default is not ABSENT:
            with contextlib.suppress(TypeError, ValueError):  # If JSON cannot hold it, the field is only optional.
                schema["default"] = json.loads(json.dumps(self.default, default=to_plain_json, allow_nan=False))
        return schema


def record_shape(key: Any, name: str, doc: str, read: Callable[[], list[Field]], make: Callable[..., Any]) -> Shape:
    """An object with named fields; records with the same key share one definition. `make` gets the values by name."""
    # `read` is called at first use, since a field may refer to the record.
    fields = functools.lru_cache(maxsize=1)(read)

    def describe(definitions: Definitions) -> Json:
        schema: Json = {"type": "object", **({"description": doc} if doc else {})}
        schema["properties"] = {field.name: field.schema(definitions) for field in fields()}
        required = [field.name for field in fields() if field.required]
        return {**schema, **({"required": required} if required else {})}

    def build(value: Any, path: str) -> Any:
        shapes = {field.name: field.shape for field in fields()}
        for name in value:
            if name not in shapes:
                known = ", ".join(shapes) or "none"
                raise _does_not_fit(field_path(path, name), f"unknown property; known are {known}")
        built = {name: shapes[name].build(item, field_path(path, name)) for name, item in value.items()}
        return _call_maker(lambda values: make(**values), built, path)

    return Shape(lambda definitions: definitions.reference(key, name, describe), build)


def _class_description(target: type) -> str:
    """The text of a class's docstring; empty for the signature that a dataclass without a docstring gets as one."""
    doc = target.__dict__.get("__doc__") or ""
    return "" if doc.startswith(f"{target.__name__}(") else read_docstring(doc)[0]


def _dataclass_fields(target: Any) -> list[Field]:
    hints, texts = class_annotations(target), read_docstring(target.__doc__ or "")[1]
    fields = []
    for field in dataclasses.fields(target):
        if field.init:
            shape = with_description(
                shape_of(hints[field.name]), field.metadata.get("description") or texts.get(field.name)
            )
            default = ABSENT if field.default is dataclasses.MISSING else field.default
            required = default is ABSENT and field.default_factory is dataclasses.MISSING
            fields.append(Field(field.name, shape, required, default))
    for passed in (fields, [field for field in fields if field.required]):
        try:  # A parameter that is no field, such as an InitVar, has no place in the schema.
            signature_of(target).bind(**{field.name: None for field in passed})
        except TypeError as error:
            raise TypeError(f"{target.__name__} cannot be made from its fields alone: {error}") from error
    return fields


def _typed_dict_fields(target: Any) -> list[Field]:
    hints, texts = class_annotations(target), read_docstring(target.__doc__ or "")[1]
    fields = []
    for name, hint in hints.items():
        required = name in target.__required_keys__
        # `__required_keys__` misses Required and NotRequired in annotations that are strings.
        while getattr(typing.get_origin(hint), "_name", None) in ("Required", "NotRequired", "ReadOnly"):
            wrapper = typing.get_origin(hint)._name
            required = required if wrapper == "ReadOnly" else wrapper == "Required"
            hint = typing.get_args(hint)[0]
        fields.append(Field(name, with_description(shape_of(hint), texts.get(name)), required))
    return fields


ANYTHING = plain_shape({})

_PLAIN: dict[Any, Shape] = {
    str: plain_shape({"type": "string"}),
    int: plain_shape({"type": "integer"}, int),
    float: plain_shape({"type": "number"}, float),
    bool: plain_shape({"type": "boolean"}),
    **dict.fromkeys((None, type(None)), plain_shape({"type": "null"})),
    **dict.fromkeys((Any, object), ANYTHING),
    datetime.datetime: plain_shape({"type": "string", "format": "date-time"}, parse_moment),
    datetime.date: plain_shape({"type": "string", "format": "date"}, datetime.date.fromisoformat),
    datetime.time: plain_shape({"type": "string", "format": "time"}, parse_time),
    uuid.UUID: plain_shape({"type": "string", "format": "uuid"}, uuid.UUID),
    # JSON Schema has no format for numbers as text.
    decimal.Decimal: plain_shape({"type": "string", "pattern": r"^-?[0-9]+(\.[0-9]+)?$"}, decimal.Decimal),
    pathlib.Path: plain_shape({"type": "string", "format": "path"}, pathlib.Path),
    pathlib.PurePath: plain_shape({"type": "string", "format": "path"}, pathlib.PurePath),
}


def shape_of(hint: Any) -> Shape:
    """The shape of an annotation. Raises TypeError if JSON Schema cannot describe it."""
    with contextlib.suppress(TypeError):  # Not hashable, for example an Annotated with a list as metadata.
        if hint in _PLAIN:
            return _PLAIN[hint]
    make = _BY_ORIGIN.get(typing.get_origin(hint) or (hint if isinstance(hint, type) else None))
    if make is not None:
        return make(typing.get_args(hint))
    inner = getattr(hint, "__supertype__", getattr(hint, "__value__", None))  # Of a NewType, or of a `type` statement.
    if inner is not None:
        try:
            return shape_of(inner)
        except RecursionError as error:
            raise TypeError(f"{hint!r} contains itself: only a class may refer to itself") from error
    if isinstance(hint, type):
        return _class(hint)
    raise _no_counterpart(hint)


def _no_counterpart(hint: Any) -> TypeError:
    advice = ": use a dataclass or a TypedDict" if isinstance(hint, type) else ""
    return TypeError(f"JSON Schema has no counterpart for {hint!r}{advice}")


@functools.lru_cache(maxsize=256)  # A class that refers to itself would otherwise be read again for every value.
def _class(hint: type) -> Shape:
    if issubclass(hint, enum.Enum):
        return _constants([(member.value, member) for member in hint])
    if hasattr(hint, "model_json_schema"):
        return _self_describing(hint)
    if dataclasses.is_dataclass(hint):
        return record_shape(hint, hint.__name__, _class_description(hint), lambda: _dataclass_fields(hint), hint)
    if issubclass(hint, dict) and hasattr(hint, "__total__"):
        return record_shape(hint, hint.__name__, _class_description(hint), lambda: _typed_dict_fields(hint), dict)
    raise _no_counterpart(hint)


def _self_describing(model: Any) -> Shape:
    """A class with `model_json_schema`, such as a Pydantic model."""

    def schema(definitions: Definitions) -> Json:
        schema = dict(model.model_json_schema())
        for name, definition in schema.pop("$defs", {}).items():
            if definitions.schemas.setdefault(name, definition) != definition:
                raise TypeError(f"two types named {name} have different schemas: rename one")
            definitions.kept_names.add(name)
        return schema

    make = getattr(model, "model_validate", None) or (lambda fields: model(**fields))
    return Shape(schema, lambda value, path: _call_maker(make, value, path))


def _array(args: Args, make: Callable[[Iterable[Any]], Any] = list, unique: bool = False) -> Shape:
    item_shape = shape_of(args[0]) if args else ANYTHING

    def schema(definitions: Definitions) -> Json:
        items = item_shape.schema(definitions)  # OpenAI refuses arrays without `items`.
        return {"type": "array", "items": items, **({"uniqueItems": True} if unique else {})}

    def build(value: Any, path: str) -> Any:
        return _call_maker(make, [item_shape.build(item, f"{path}[{i}]") for i, item in enumerate(value)], path)

    return Shape(schema, build)


def _set(args: Args, make: Callable[[Iterable[Any]], Any]) -> Shape:
    item_type = typing.get_origin(args[0]) or args[0] if args else str
    if getattr(item_type, "__hash__", None) is None:
        raise TypeError(f"a set cannot hold {args[0]!r}, which is not hashable: use a list, or a frozen dataclass")
    return _array(args, make, unique=True)


def _tuple(args: Args) -> Shape:
    if not args or args[-1] is Ellipsis:
        return _array(args, tuple)
    shapes = [shape_of(arg) for arg in args]

    def schema(definitions: Definitions) -> Json:
        items = [shape.schema(definitions) for shape in shapes]
        different = [item for i, item in enumerate(items) if item not in items[:i]]
        # OpenAI refuses arrays without `items`.
        any_item = different[0] if len(different) == 1 else {"anyOf": different}
        size = {"minItems": len(items), "maxItems": len(items)}
        return {"type": "array", "prefixItems": items, "items": any_item, **size}

    def build(value: Any, path: str) -> Any:
        return tuple(shape.build(item, f"{path}[{i}]") for i, (shape, item) in enumerate(zip(shapes, value)))

    return Shape(schema, build)


def _map(args: Args) -> Shape:
    if args and args[0] not in (str, Any):
        raise TypeError(f"the keys of JSON objects are text, not {args[0]!r}")
    item_shape = shape_of(args[1]) if args else ANYTHING
    return Shape(
        lambda definitions: {
            "type": "object",
            **({"additionalProperties": item_shape.schema(definitions)} if args else {}),
        },
        lambda value, path: {name: item_shape.build(item, field_path(path, name)) for name, item in value.items()},
    )


def _union(args: Args) -> Shape:
    options = [shape_of(arg) for arg in args]
    # Made at first use, since a record may refer to the union.
    documents = functools.lru_cache(maxsize=1)(lambda: list(map(whole_schema, options)))

    def candidates(value: Any) -> list[Shape]:
        """The options that allow a value. At least one does, since `build_shape` has validated the value."""
        pairs = [(option, schema) for option, schema in zip(options, documents()) if is_of_type(value, schema)]
        if len(pairs) > 1:
            pairs = [(option, schema) for option, schema in pairs if not any(validation_errors(value, schema))]
        return [option for option, _ in pairs]

    def build(value: Any, path: str) -> Any:
        """The value of the first option that can be built: a class may refuse an object that its schema allows."""
        last_error = _does_not_fit(path, f"{show(value)} matches no type of the union")
        for option in candidates(value):
            try:
                return option.build(value, path)
            except DoesNotFit as error:
                last_error = error
        raise last_error

    return Shape(lambda definitions: {"anyOf": [option.schema(definitions) for option in options]}, build)


def _constants(options: list[tuple[Any, Any]]) -> Shape:
    """Pairs of a value in JSON and the value in Python."""
    values = [value for value, _ in options]
    if not all(type(value) in TYPE_NAMES for value in values):
        raise TypeError(f"JSON cannot hold all of {values!r}")
    types = {TYPE_NAMES[type(value)] for value in values}
    by_key = {key_of(json_value): value for json_value, value in reversed(options)}  # The first of equal ones counts.
    return Shape(
        lambda definitions: {**({"type": min(types)} if len(types) == 1 else {}), "enum": values},
        lambda value, path: by_key[key_of(value)],
    )


_BY_ORIGIN: dict[Any, Callable[[Args], Shape]] = {
    **dict.fromkeys((list, abc.Sequence, abc.MutableSequence, abc.Collection, abc.Iterable), _array),
    collections.deque: lambda args: _array(args, collections.deque),
    **dict.fromkeys((set, abc.Set, abc.MutableSet), lambda args: _set(args, set)),
    frozenset: lambda args: _set(args, frozenset),
    tuple: _tuple,
    **dict.fromkeys((dict, abc.Mapping, abc.MutableMapping), _map),
    typing.Final: lambda args: shape_of(args[0]),
    Union: _union,
    getattr(types, "UnionType", Union): _union,
    typing.Literal: lambda args: _constants([(arg.value if isinstance(arg, enum.Enum) else arg, arg) for arg in args]),
    typing.Annotated: lambda args: with_description(
        shape_of(args[0]), next((extra for extra in args[1:] if isinstance(extra, str)), None)
    ),
}


def to_plain_json(value: Any) -> Any:
    """The `default` function of `json.dumps`: convert a value that JSON cannot hold to one that it can hold."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, (uuid.UUID, decimal.Decimal, pathlib.PurePath)):
        return str(value)
    if isinstance(value, (abc.Set, abc.ValuesView, abc.Iterator, range, collections.deque)):
        return list(value)
    if hasattr(value, "model_dump"):
        return value.model_dump()
    raise TypeError(f"JSON cannot hold {type(value).__name__}")
