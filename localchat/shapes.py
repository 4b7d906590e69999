"""Shapes: what the types of a schema are made of. No I/O.

A shape gives the JSON Schema of a type, and builds a value of the type from JSON that was checked with it. `schema`
makes shapes of annotations; `document` joins the schemas of a shape and of the types that it refers to.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import functools
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .validator import TYPE_NAMES, ValidationError, is_same, member_path, show, validation_errors

Json = dict[str, Any]

ABSENT: Any = inspect.Parameter.empty


class Unbuildable(Exception):
    """A class refused what its schema allows."""

    def __init__(self, error: ValidationError) -> None:
        super().__init__(str(error))
        self.error = error


class Definitions:
    """The named schemas of one document, each described once, so that types may refer to themselves."""

    def __init__(self) -> None:
        self.schemas: dict[str, Json] = {}
        self.used: set[str] = set()
        self._names: dict[Any, str] = {}

    def name(self, record: Record) -> str:
        known = self._names.get(record.target)
        if known is not None:
            self.used.add(known)
            return known
        name = self._names[record.target] = self._unused(record.name)
        self.schemas[name] = {}  # Its place; its own fields may ask for it.
        self.schemas[name].update(record.body(self))
        return name

    def _unused(self, name: str) -> str:
        numbered = (f"{name}_{number}" for number in range(2, sys.maxsize))
        return name if name not in self.schemas else next(other for other in numbered if other not in self.schemas)


class Shape:
    def schema(self, definitions: Definitions) -> Json:
        raise NotImplementedError

    def build(self, value: Any, path: str) -> Any:
        return value


@dataclasses.dataclass(frozen=True)
class Plain(Shape):
    """A fixed schema, and a function that makes the value where JSON's own will not do."""

    keywords: Mapping[str, Any]
    make: Callable[[Any], Any] | None = None

    def schema(self, definitions: Definitions) -> Json:
        return dict(self.keywords)

    def build(self, value: Any, path: str) -> Any:
        return value if self.make is None else _made(self.make, value, path)


ANYTHING = Plain({})


@dataclasses.dataclass(frozen=True)
class Array(Shape):
    item: Shape | None
    make: Callable[[Iterable[Any]], Any]
    unique: bool = False

    def schema(self, definitions: Definitions) -> Json:
        items = {} if self.item is None else {"items": self.item.schema(definitions)}
        return {"type": "array", **items, **({"uniqueItems": True} if self.unique else {})}

    def build(self, value: Any, path: str) -> Any:
        item = self.item or ANYTHING
        return _made(self.make, [item.build(one, f"{path}[{i}]") for i, one in enumerate(value)], path)


@dataclasses.dataclass(frozen=True)
class Tuple(Shape):
    items: tuple[Shape, ...]

    def schema(self, definitions: Definitions) -> Json:
        size = len(self.items)
        items = [item.schema(definitions) for item in self.items]
        return {"type": "array", "prefixItems": items, "minItems": size, "maxItems": size}

    def build(self, value: Any, path: str) -> Any:
        return tuple(item.build(one, f"{path}[{i}]") for i, (item, one) in enumerate(zip(self.items, value)))


@dataclasses.dataclass(frozen=True)
class Map(Shape):
    value: Shape | None

    def schema(self, definitions: Definitions) -> Json:
        values = {} if self.value is None else {"additionalProperties": self.value.schema(definitions)}
        return {"type": "object", **values}

    def build(self, value: Any, path: str) -> Any:
        shape = self.value or ANYTHING
        return {name: shape.build(one, member_path(path, name)) for name, one in value.items()}


@dataclasses.dataclass(frozen=True)
class OneOf(Shape):
    """A Literal or an Enum: pairs of the value in JSON and the value in Python."""

    options: tuple[tuple[Any, Any], ...]

    def schema(self, definitions: Definitions) -> Json:
        values = [value for value, _ in self.options]
        kinds = {TYPE_NAMES[type(value)] for value in values}
        return {**({"type": kinds.pop()} if len(kinds) == 1 else {}), "enum": values}

    def build(self, value: Any, path: str) -> Any:
        return next(python for json_value, python in self.options if is_same(json_value, value))


@dataclasses.dataclass(frozen=True)
class Either(Shape):
    options: tuple[Shape, ...]

    def schema(self, definitions: Definitions) -> Json:
        return {"anyOf": [option.schema(definitions) for option in self.options]}

    def build(self, value: Any, path: str) -> Any:
        """The first that fits. A schema alone may allow properties that a class then does not know."""
        refusal = Unbuildable(ValidationError(path, f"no type is made of {show(value)}"))
        for option in self.options:
            if not any(validation_errors(value, document(option))):
                try:
                    return option.build(value, path)
                except Unbuildable as error:
                    refusal = error
        raise refusal


@dataclasses.dataclass(frozen=True)
class Described(Shape):
    inner: Shape
    description: str

    def schema(self, definitions: Definitions) -> Json:
        return {**self.inner.schema(definitions), "description": self.description}

    def build(self, value: Any, path: str) -> Any:
        return self.inner.build(value, path)


@dataclasses.dataclass(frozen=True)
class Foreign(Shape):
    """A class that describes and checks itself, as Pydantic's models do."""

    model: Any

    def schema(self, definitions: Definitions) -> Json:
        schema = dict(self.model.model_json_schema())
        for name, definition in schema.pop("$defs", {}).items():
            if definitions.schemas.setdefault(name, definition) != definition:
                raise TypeError(f"{self.model!r} brings a second definition of {name}")
            definitions.used.add(name)
        return schema

    def build(self, value: Any, path: str) -> Any:
        make = getattr(self.model, "model_validate", None) or (lambda fields: self.model(**fields))
        return _made(make, value, path)


@dataclasses.dataclass(frozen=True)
class Field:
    name: str
    shape: Shape
    required: bool
    default: Any

    def schema(self, definitions: Definitions) -> Json:
        schema = self.shape.schema(definitions)
        try:
            shown = {} if self.default is ABSENT else {"default": _as_json(self.default)}
        except (TypeError, ValueError):
            shown = {}  # A default that JSON cannot hold is one all the same.
        return {**schema, **shown}


class Record(Shape):
    """An object with named fields. They are read late, since a type may refer to itself."""

    def __init__(
        self, target: Any, name: str, doc: str, read: Callable[[], list[Field]], make: Callable[..., Any]
    ) -> None:
        self.target = target
        self.name = re.sub(r"[^\w-]", "_", name)
        self._doc = doc
        self._read = read
        self._make = make

    @functools.cached_property
    def fields(self) -> list[Field]:
        return self._read()

    def schema(self, definitions: Definitions) -> Json:
        return {"$ref": f"#/$defs/{definitions.name(self)}"}

    def body(self, definitions: Definitions) -> Json:
        schema: Json = {"type": "object", **({"description": self._doc} if self._doc else {})}
        schema["properties"] = {field.name: field.schema(definitions) for field in self.fields}
        required = [field.name for field in self.fields if field.required]
        return {**schema, **({"required": required} if required else {})}

    def build(self, value: Any, path: str) -> Any:
        shapes = {field.name: field.shape for field in self.fields}
        for name in value:
            if name not in shapes:
                raise Unbuildable(
                    ValidationError(member_path(path, name), f"unknown; there are {', '.join(shapes) or 'none'}")
                )
        fields = {name: shapes[name].build(one, member_path(path, name)) for name, one in value.items()}
        return _made(lambda given: self._make(**given), fields, path)


def _made(make: Callable[[Any], Any], value: Any, path: str) -> Any:
    """The value that a class of the user makes, which may have rules that no schema expresses."""
    try:
        return make(value)
    except Exception as error:
        raise Unbuildable(ValidationError(path, str(error) or type(error).__name__)) from error


def document(shape: Shape, strict: bool = False) -> Json:
    """The whole schema: an object's own fields at the top, what they refer to below `$defs`."""
    definitions = Definitions()
    schema = shape.schema(definitions)
    if isinstance(shape, Record):
        name = schema["$ref"].rpartition("/")[2]
        schema = definitions.schemas[name] if name in definitions.used else definitions.schemas.pop(name)
    if definitions.schemas:
        schema = {**schema, "$defs": definitions.schemas}
    return _strict(schema) if strict else schema


def _strict(schema: Any) -> Any:
    """OpenAI's rules: objects are closed, all properties required, no defaults, nothing beside a $ref."""
    if isinstance(schema, list):
        return [_strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        kept = {name: value for name, value in schema.items() if name in ("$ref", "$defs")}
        return {**kept, **({"$defs": _strict_each(kept["$defs"])} if "$defs" in kept else {})}
    closed = {name: value if name in _VERBATIM else _strict(value) for name, value in schema.items()}
    closed.pop("default", None)
    for name in ("properties", "$defs"):
        if isinstance(schema.get(name), dict):
            closed[name] = _strict_each(schema[name])
    if isinstance(schema.get("properties"), dict):
        closed.update(required=list(schema["properties"]), additionalProperties=False)
    return closed


def _strict_each(schemas: Json) -> Json:
    """Names are no keywords here: a property may well be called `default`."""
    return {name: _strict(schema) for name, schema in schemas.items()}


_VERBATIM = frozenset({"enum", "const", "required"})


# Values to JSON


def plain(value: Any) -> Any:
    """For `json.dumps(..., default=plain)`: what JSON can hold in place of a value that it cannot."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value if has_plain_values(type(value)) else value.name
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, (set, frozenset)):
        return list(value)
    if hasattr(value, "model_dump"):
        return value.model_dump()
    raise TypeError(f"JSON cannot hold {type(value).__name__}")


def has_plain_values(hint: type[enum.Enum]) -> bool:
    return all(type(member.value) in (str, int, float, bool, type(None)) for member in hint)


def _as_json(value: Any) -> Any:
    return json.loads(json.dumps(value, default=plain, allow_nan=False))
