"""A JSON Schema document as nodes. A node is a schema and its path; it checks the types of its keywords' values.

The document resolves references. The other modules implement the meaning of the keywords.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NoReturn
from urllib.parse import unquote

from .budget import spend
from .errors import SchemaError
from .intervals import exact, is_number

TYPES = ("null", "boolean", "object", "array", "number", "integer", "string")

# Keywords that no grammar can enforce, and what to use instead of each.
UNSUPPORTED = {
    "if": "write the cases as anyOf",
    "unevaluatedProperties": "use additionalProperties",
    "unevaluatedItems": "use items",
    "$dynamicRef": "use $ref",
    "$recursiveRef": "use $ref",
}
COMBINING_KEYWORDS = ("$ref", "allOf", "anyOf", "oneOf", "dependentRequired", "dependentSchemas", "dependencies")
NUMBER_KEYWORDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
STRING_KEYWORDS = ("minLength", "maxLength", "pattern", "format")
ARRAY_KEYWORDS = (
    *("items", "prefixItems", "additionalItems", "minItems", "maxItems"),
    *("uniqueItems", "contains", "minContains", "maxContains"),
)
OBJECT_KEYWORDS = (
    *("properties", "required", "additionalProperties", "patternProperties"),
    *("propertyNames", "minProperties", "maxProperties"),
)
# The keywords that assert something about a value. Every other keyword is an annotation.
ASSERTIONS = frozenset(("type", "enum", "const", "nullable", "not", *COMBINING_KEYWORDS)).union(
    NUMBER_KEYWORDS, STRING_KEYWORDS, ARRAY_KEYWORDS, OBJECT_KEYWORDS, UNSUPPORTED
)


@dataclass(frozen=True)
class SchemaNode:
    """A schema within a document, and the keywords of that schema. Nodes with the same path are equal.

    The methods that return the value of a keyword raise SchemaError if it has the wrong type.
    """

    path: str
    """The place of the schema: a URI fragment (`#/properties/a`), perhaps after the name of the document."""
    schema: Any = field(compare=False)
    """An object, true or false; anything else is an error that `SchemaResolver.branches` reports."""

    def has(self, *keywords: str) -> bool:
        """Whether the schema has one of the keywords."""
        return isinstance(self.schema, dict) and any(keyword in self.schema for keyword in keywords)

    def assertions(self) -> frozenset[str] | None:
        """The keywords that assert something; None if the schema is true or false, or is not a schema."""
        return ASSERTIONS & self.schema.keys() if isinstance(self.schema, dict) else None

    def child(self, *names: object) -> SchemaNode:
        """The schema below these keys."""
        inner = self.schema
        for name in names:
            inner = inner[name]
        return SchemaNode("/".join([self.path, *(_escaped(str(name)) for name in names)]), inner)

    def children(self, keyword: str) -> list[SchemaNode]:
        """The schemas in the list of a keyword."""
        listed = self.schema.get(keyword, [])
        if not isinstance(listed, list):
            self.fail(keyword, "must be a list of schemas")
        return [self.child(keyword, n) for n in range(len(listed))]

    def fail(self, keyword: str, message: str) -> NoReturn:
        raise SchemaError(f"{self.path}/{_escaped(keyword)}", message)

    def count(self, keyword: str) -> int | None:
        """The value of a keyword such as maxLength: an integer that is not negative."""
        number = self.schema.get(keyword)
        if number is None:
            return None
        # 3 and 3.0 are the same number in JSON.
        if not is_number(number) or number < 0 or number % 1:
            self.fail(keyword, f"must be an integer that is not negative, got {shortened(number)}")
        return int(number)

    def number(self, keyword: str) -> Fraction | None:
        value = self.schema.get(keyword)
        if value is None:
            return None
        if not is_number(value):
            self.fail(keyword, f"must be a number, got {shortened(value)}")
        return exact(value)

    def text(self, keyword: str) -> str | None:
        value = self.schema.get(keyword)
        if value is not None and not isinstance(value, str):
            self.fail(keyword, f"must be a string, got {shortened(value)}")
        return value

    def flag(self, keyword: str) -> bool:
        value: object = self.schema.get(keyword, False)
        if not isinstance(value, bool):
            self.fail(keyword, f"must be true or false, got {shortened(value)}")
        return value is True

    def names(self, keyword: str) -> list[str]:
        value = self.schema.get(keyword, [])
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            self.fail(keyword, f"must be a list of strings, got {shortened(value)}")
        return list(dict.fromkeys(value))

    def mapping(self, keyword: str) -> Mapping[str, Any]:
        value = self.schema.get(keyword, {})
        if not isinstance(value, dict):
            self.fail(keyword, f"must be an object, got {shortened(value)}")
        return value

    def types(self) -> frozenset[str]:
        """The allowed types. If "number" is one of them, so is "integer"."""
        value = self.schema.get("type", list(TYPES))
        found = [value] if isinstance(value, str) else value
        if not isinstance(found, list) or not found or not all(name in TYPES for name in found):
            self.fail("type", f"must be one or several of {', '.join(TYPES)}, got {shortened(value)}")
        wider = {"integer"} if "number" in found else set()
        return frozenset(found) | wider | ({"null"} if self.flag("nullable") else set())

    def values(self) -> dict[Hashable, Any] | None:
        """The values that enum and const allow, by their equality keys; None without these keywords."""
        if self.has("enum") and not isinstance(self.schema["enum"], list):
            self.fail("enum", "must be a list of values")
        lists = []
        if self.has("enum"):
            lists.append(self.schema["enum"])
        if self.has("const"):
            lists.append([self.schema["const"]])
        spend(sum(map(len, lists)))
        return common_values([{equality_key(value): value for value in values} for values in lists])


def common_values(tables: list[dict[Hashable, Any]]) -> dict[Hashable, Any] | None:
    """The values that are in all of the tables; None if there are no tables."""
    if not tables:
        return None
    return {key: value for key, value in tables[0].items() if all(key in table for table in tables)}


def _escaped(name: str) -> str:
    """A name as a part of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def pointer_names(pointer: str) -> list[str]:
    """The names in a JSON pointer (`/properties/a`)."""
    return [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]


def equality_key(value: Any) -> Hashable:
    """The same key for values that are equal in JSON: 1 equals 1.0 but not true; the order of names is irrelevant."""
    if isinstance(value, dict):
        return "object", frozenset((name, equality_key(item)) for name, item in value.items())
    if isinstance(value, list):
        return "array", tuple(map(equality_key, value))
    return isinstance(value, bool), value


class SchemaDocument:
    """A schema document. Resolves the references within it."""

    def __init__(self, root: object, path: str):
        """Raises SchemaError if the schema is not a JSON value: the other modules rely on its types."""
        try:
            json.dumps(root, allow_nan=False)
        except (ValueError, TypeError) as error:
            raise SchemaError(path, f"is not JSON: {error}") from error
        self.root = SchemaNode(path, root)
        own_id = root.get("$id") if isinstance(root, dict) else None
        # A reference may begin with the `$id` of the document; None if it has none.
        self._id = own_id.rstrip("#") if isinstance(own_id, str) else None

    def check_id(self, node: SchemaNode) -> None:
        """Refuse an $id below the root if the node contains references: the $id changes their base URI."""
        inner_id = node.schema.get("$id")
        if node == self.root or not isinstance(inner_id, str) or inner_id.startswith("#"):
            return
        if any(inner.has("$ref") for inner in _all_nodes(node)):
            node.fail("$id", "changes what the references below it mean: only the root may have an $id")

    def resolve(self, node: SchemaNode) -> SchemaNode:
        """The node that the `$ref` of a node refers to."""
        self.check_id(node)
        ref = node.text("$ref") or ""
        base, _, fragment = ref.partition("#")
        if base and base != self._id:
            node.fail("$ref", f"{ref!r} is in another document: copy it into $defs")
        fragment = unquote(fragment)
        found = self._by_pointer(fragment) if fragment[:1] in ("", "/") else self._by_anchor(fragment)
        if found is None:
            node.fail("$ref", f"{ref!r} does not refer to anything in this schema")
        return found

    def _by_pointer(self, pointer: str) -> SchemaNode | None:
        """The node at a JSON pointer (`/properties/a`)."""
        node = self.root
        for name in pointer_names(pointer):
            is_index = isinstance(node.schema, list) and name.isascii() and name.isdigit()
            try:
                node = node.child(int(name) if is_index else name)
            except (KeyError, IndexError, TypeError):
                return None
            if isinstance(node.schema, dict):
                self.check_id(node)
        return node

    def _by_anchor(self, name: str) -> SchemaNode | None:
        for node in _all_nodes(self.root):
            if node.schema.get("$anchor") == name or node.schema.get("$id") == f"#{name}":
                return node
        return None


def _all_nodes(node: SchemaNode) -> Iterator[SchemaNode]:
    """Every node that might be a schema, the node itself first."""
    if isinstance(node.schema, dict):
        yield node
        names = list(node.schema)
    else:
        names = list(range(len(node.schema)))
    for name in names:
        if isinstance(node.schema[name], (dict, list)) and name not in ("enum", "const", "default", "examples"):
            yield from _all_nodes(node.child(name))


def shortened(value: object) -> str:
    """A value as JSON for a message, cut after 60 characters."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."
