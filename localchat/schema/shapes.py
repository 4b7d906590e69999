"""Shapes: descriptions of Python types for conversion to JSON Schema and from JSON. No I/O.

A shape makes the JSON Schema of a type, and builds a value of the type from JSON that was validated with that schema.
`schema.py` makes shapes from annotations; `document` makes the whole schema, with the types that the shape refers to.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import functools
import inspect
import itertools
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .validator import TYPE_NAMES, ValidationError, field_path, is_same, show, validation_errors

Json = dict[str, Any]

ABSENT: Any = inspect.Parameter.empty


class BuildError(Exception):
    """A class raised an error for JSON that its schema allows."""

    def __init__(self, error: ValidationError) -> None:
        super().__init__(str(error))
        self.error = error


class Definitions:
    """The `$defs` of one document. Each record has one entry, so a type may refer to itself."""

    def __init__(self) -> None:
        self.schemas: dict[str, Json] = {}
        # Names that must stay in `$defs`.
        self.used: set[str] = set()
        self._names: dict[Any, str] = {}

    def name(self, record: Record) -> str:
        """The name of the entry for a record. The first call adds the entry."""
        known = self._names.get(record.key)
        if known is not None:
            self.used.add(known)
            return known
        name = self._names[record.key] = self._unused(record.name)
        self.schemas[name] = {}  # Added before the fields are described, since they may refer to it.
        self.schemas[name].update(record.body(self))
        return name

    def _unused(self, name: str) -> str:
        candidates = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(2)))
        return next(candidate for candidate in candidates if candidate not in self.schemas)


class Shape:
    def schema(self, definitions: Definitions) -> Json:
        """The JSON Schema. Records that it refers to are added to the definitions."""
        raise NotImplementedError

    def build(self, value: Any, path: str) -> Any:
        """The Python value for valid JSON at this path.

        Raises:
            BuildError: A class of the user raised an error.
        """
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Plain(Shape):
    """A fixed schema, and a function that converts the JSON value. Without one, the value is the JSON value."""

    keywords: Mapping[str, Any]
    make: Callable[[Any], Any] | None = None

    def schema(self, definitions: Definitions) -> Json:
        return dict(self.keywords)

    def build(self, value: Any, path: str) -> Any:
        return value if self.make is None else _construct(self.make, value, path)


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
        return _construct(self.make, [item.build(one, f"{path}[{i}]") for i, one in enumerate(value)], path)


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
        return {name: shape.build(one, field_path(path, name)) for name, one in value.items()}


@dataclasses.dataclass(frozen=True)
class Constants(Shape):
    """A Literal or an Enum."""

    # Pairs of the value in JSON and the value in Python.
    options: tuple[tuple[Any, Any], ...]

    def schema(self, definitions: Definitions) -> Json:
        values = [value for value, _ in self.options]
        kinds = {TYPE_NAMES[type(value)] for value in values}
        return {**({"type": kinds.pop()} if len(kinds) == 1 else {}), "enum": values}

    def build(self, value: Any, path: str) -> Any:
        return next(python for json_value, python in self.options if is_same(json_value, value))


@dataclasses.dataclass(frozen=True)
class AnyOf(Shape):
    """A Union."""

    options: tuple[Shape, ...]

    def schema(self, definitions: Definitions) -> Json:
        return {"anyOf": [option.schema(definitions) for option in self.options]}

    def build(self, value: Any, path: str) -> Any:
        """The value of the first option that can be built.

        A class may refuse an object that its schema allows; then the next option is tried.
        """
        last_error = BuildError(ValidationError(path, f"{show(value)} matches no type of the union"))
        for option in self.options:
            if not any(validation_errors(value, document(option))):
                try:
                    return option.build(value, path)
                except BuildError as error:
                    last_error = error
        raise last_error


@dataclasses.dataclass(frozen=True)
class Described(Shape):
    inner: Shape
    description: str

    def schema(self, definitions: Definitions) -> Json:
        return {**self.inner.schema(definitions), "description": self.description}

    def build(self, value: Any, path: str) -> Any:
        return self.inner.build(value, path)


@dataclasses.dataclass(frozen=True)
class SelfDescribing(Shape):
    """A class with `model_json_schema`, such as a Pydantic model."""

    model: Any

    def schema(self, definitions: Definitions) -> Json:
        schema = dict(self.model.model_json_schema())
        for name, definition in schema.pop("$defs", {}).items():
            if definitions.schemas.setdefault(name, definition) != definition:
                raise TypeError(f"two types named {name} have different schemas: rename one")
            definitions.used.add(name)
        return schema

    def build(self, value: Any, path: str) -> Any:
        make = getattr(self.model, "model_validate", None) or (lambda fields: self.model(**fields))
        return _construct(make, value, path)


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
            shown = {}  # JSON cannot hold the default; the field stays optional.
        return {**schema, **shown}


class Record(Shape):
    """An object with named fields.

    Args:
        key: Identifies the record: two records with the same key share one definition.
        name: The name of the definition.
        doc: The description.
        read: Returns the fields. Called at first use, since a field may refer to the record.
        make: Called with the values of the fields as keyword arguments.
    """

    def __init__(
        self, key: Any, name: str, doc: str, read: Callable[[], list[Field]], make: Callable[..., Any]
    ) -> None:
        self.key = key
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
        """The schema of the object itself, to which `schema` refers."""
        schema: Json = {"type": "object", **({"description": self._doc} if self._doc else {})}
        schema["properties"] = {field.name: field.schema(definitions) for field in self.fields}
        required = [field.name for field in self.fields if field.required]
        return {**schema, **({"required": required} if required else {})}

    def build(self, value: Any, path: str) -> Any:
        shapes = {field.name: field.shape for field in self.fields}
        for name in value:
            if name not in shapes:
                raise BuildError(
                    ValidationError(
                        field_path(path, name), f"unknown property; known are {', '.join(shapes) or 'none'}"
                    )
                )
        fields = {name: shapes[name].build(one, field_path(path, name)) for name, one in value.items()}
        return _construct(lambda given: self._make(**given), fields, path)


def _construct(make: Callable[[Any], Any], value: Any, path: str) -> Any:
    """Call a class or function. It may raise any error, for a rule that the schema does not express."""
    try:
        return make(value)
    except Exception as error:
        raise BuildError(ValidationError(path, str(error) or type(error).__name__)) from error


def document(shape: Shape, strict: bool = False) -> Json:
    """The whole schema of a shape. A record is described at the top level, the types of its fields in `$defs`."""
    definitions = Definitions()
    schema = shape.schema(definitions)
    if isinstance(shape, Record):
        name = schema["$ref"].rpartition("/")[2]
        schema = definitions.schemas[name] if name in definitions.used else definitions.schemas.pop(name)
    if definitions.schemas:
        schema = {**schema, "$defs": definitions.schemas}
    return _strict(schema) if strict else schema


def _strict(schema: Any) -> Any:
    """Apply OpenAI's rules for `strict`: closed objects, all properties required, no default, nothing beside a $ref."""
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
    """Apply `_strict` to the values. The keys are property or definition names, not schema keywords."""
    return {name: _strict(schema) for name, schema in schemas.items()}


# Keywords whose values are not schemas.
_VERBATIM = frozenset({"enum", "const", "required"})


# Values to JSON


def to_plain_json(value: Any) -> Any:
    """The `default` function of `json.dumps`: convert a value that JSON cannot hold to one that it can hold."""
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
    return json.loads(json.dumps(value, default=to_plain_json, allow_nan=False))
