"""A JSON Schema document: places in it, references between them, and keywords read with their types checked.

Knows which keywords exist and what their values look like, not what they mean.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NoReturn
from urllib.parse import unquote

from .errors import SchemaError
from .numbers import exact

TYPES = ("null", "boolean", "object", "array", "number", "integer", "string")

# Keywords that assert something no grammar can hold to, and what to do about each.
UNSUPPORTED = {
    "if": "write the cases as anyOf",
    "unevaluatedProperties": "use additionalProperties",
    "unevaluatedItems": "use items",
    "$dynamicRef": "use $ref",
    "$recursiveRef": "use $ref",
}
# What asserts something about a value. Every other keyword is an annotation.
COMBINING = ("$ref", "allOf", "anyOf", "oneOf", "dependentRequired", "dependentSchemas", "dependencies")
OF_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
OF_STRINGS = ("minLength", "maxLength", "pattern", "format")
OF_ARRAYS = (
    *("items", "prefixItems", "additionalItems", "minItems", "maxItems"),
    *("uniqueItems", "contains", "minContains", "maxContains"),
)
OF_OBJECTS = (
    *("properties", "required", "additionalProperties", "patternProperties"),
    *("propertyNames", "minProperties", "maxProperties"),
)
# What asserts something about a value. Every other keyword is an annotation.
ASSERTIONS = frozenset(
    ("type", "enum", "const", "nullable", "not", *COMBINING, *OF_NUMBERS, *OF_STRINGS, *OF_ARRAYS, *OF_OBJECTS)
) | frozenset(UNSUPPORTED)


@dataclass(frozen=True)
class Place:
    """A schema and where it stands. The path alone tells places apart."""

    path: str
    schema: Any = field(compare=False)

    def has(self, *keywords: str) -> bool:
        return isinstance(self.schema, dict) and any(keyword in self.schema for keyword in keywords)

    def child(self, *names: object) -> Place:
        """The schema below these keys."""
        inner = self.schema
        for name in names:
            inner = inner[name]
        return Place("/".join([self.path, *(_escaped(str(name)) for name in names)]), inner)

    def children(self, keyword: str) -> list[Place]:
        """The schemas that a keyword lists."""
        listed = self.schema.get(keyword, [])
        if not isinstance(listed, list):
            self.fail(keyword, "must be a list of schemas")
        return [self.child(keyword, n) for n in range(len(listed))]

    def fail(self, keyword: str, message: str) -> NoReturn:
        raise SchemaError(f"{self.path}/{_escaped(keyword)}", message)

    def count(self, keyword: str) -> int | None:
        """A number of things: an integer that is not negative."""
        number = self.schema.get(keyword)
        if number is None:
            return None
        # JSON knows no difference between 3 and 3.0.
        if isinstance(number, bool) or not isinstance(number, (int, float)) or number < 0 or number % 1:
            self.fail(keyword, f"must be an integer that is not negative, got {number!r}")
        return int(number)

    def number(self, keyword: str) -> Fraction | None:
        value = self.schema.get(keyword)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value - value != 0:
            self.fail(keyword, f"must be a number, got {value!r}")
        return exact(value)

    def text(self, keyword: str) -> str | None:
        value = self.schema.get(keyword)
        if value is not None and not isinstance(value, str):
            self.fail(keyword, f"must be a string, got {value!r}")
        return value

    def flag(self, keyword: str) -> bool:
        value: object = self.schema.get(keyword, False)
        if not isinstance(value, bool):
            self.fail(keyword, f"must be true or false, got {value!r}")
        return value is True

    def names(self, keyword: str) -> list[str]:
        value = self.schema.get(keyword, [])
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            self.fail(keyword, f"must be a list of strings, got {value!r}")
        return list(dict.fromkeys(value))

    def mapping(self, keyword: str) -> Mapping[str, Any]:
        value = self.schema.get(keyword, {})
        if not isinstance(value, dict):
            self.fail(keyword, f"must be an object, got {value!r}")
        return value

    def types(self) -> frozenset[str]:
        """The types that are allowed; a number may be an integer too."""
        value = self.schema.get("type", list(TYPES))
        found = [value] if isinstance(value, str) else value
        if not isinstance(found, list) or not found or not all(name in TYPES for name in found):
            self.fail("type", f"must be one or several of {', '.join(TYPES)}, got {value!r}")
        wider = {"integer"} if "number" in found else set()
        return frozenset(found) | wider | ({"null"} if self.flag("nullable") else set())

    def values(self) -> dict[Hashable, Any] | None:
        """The only values that enum and const leave, under their keys, if they say anything."""
        if self.has("enum") and not isinstance(self.schema["enum"], list):
            self.fail("enum", "must be a list of values")
        listed = [self.schema["enum"]] if self.has("enum") else []
        listed += [[self.schema["const"]]] if self.has("const") else []
        return shared([{key_of(value): value for value in values} for values in listed])


def shared(tables: list[dict[Hashable, Any]]) -> dict[Hashable, Any] | None:
    """What is in all of the tables; None if there are none."""
    if not tables:
        return None
    return {key: value for key, value in tables[0].items() if all(key in table for table in tables)}


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def key_of(value: Any) -> Hashable:
    """The same for what is equal in JSON: 1 equals 1.0 but not true, and the order of names does not matter."""
    if isinstance(value, dict):
        return "object", frozenset((name, key_of(item)) for name, item in value.items())
    if isinstance(value, list):
        return "array", tuple(map(key_of, value))
    return isinstance(value, bool), value


class Document:
    """The whole schema, for references."""

    def __init__(self, root: object, path: str = "#"):
        self.root = Place(path, root)
        self._ids = {
            place.schema["$id"].rstrip("#"): place
            for place in [self.root]
            if place.has("$id") and isinstance(place.schema["$id"], str)
        }

    def check_base(self, place: Place) -> None:
        """An $id below the root would give the references under it another meaning."""
        if place == self.root or not isinstance(place.schema.get("$id"), str) or place.schema["$id"].startswith("#"):
            return
        if any(inner.has("$ref") for inner in _all_places(place)):
            place.fail("$id", "changes what the references below it mean: only the root may have an $id")

    def resolve(self, place: Place) -> Place:
        """The place that `$ref` of a place names."""
        self.check_base(place)
        ref = place.text("$ref") or ""
        base, _, fragment = ref.partition("#")
        if base and base not in self._ids:
            place.fail("$ref", f"{ref!r} is in another document: copy it into $defs")
        fragment = unquote(fragment)
        found = self._by_pointer(fragment) if fragment[:1] in ("", "/") else self._by_anchor(fragment)
        if found is None:
            place.fail("$ref", f"{ref!r} names nothing in this schema")
        return found

    def at(self, pointer: str) -> Place:
        """The place that a JSON pointer names (`#/properties/a`)."""
        found = self._by_pointer(unquote(pointer.partition("#")[2]))
        if found is None:
            raise SchemaError(pointer, "names nothing in this schema")
        return found

    def _by_pointer(self, pointer: str) -> Place | None:
        place = self.root
        for part in pointer.split("/")[1:]:
            name: object = part.replace("~1", "/").replace("~0", "~")
            if isinstance(place.schema, list) and part.isdigit():
                name = int(part)
            try:
                place = place.child(name)
            except (KeyError, IndexError, TypeError):
                return None
            if isinstance(place.schema, dict):
                self.check_base(place)
        return place

    def _by_anchor(self, name: str) -> Place | None:
        for place in _all_places(self.root):
            if place.schema.get("$anchor") == name or place.schema.get("$id") == f"#{name}":
                return place
        return None


def _all_places(place: Place) -> Iterator[Place]:
    """Everything that might be a schema, the place itself first."""
    if isinstance(place.schema, dict):
        yield place
        names = list(place.schema)
    else:
        names = list(range(len(place.schema)))
    for name in names:
        if isinstance(place.schema[name], (dict, list)) and name not in ("enum", "const", "default", "examples"):
            yield from _all_places(place.child(name))


def shown(value: object) -> str:
    """A value in a message, shortened."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."
