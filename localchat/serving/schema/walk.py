"""The structure of JSON Schemas: the schemas inside a schema, their places, and where references lead."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Callable, NamedTuple
from urllib.parse import unquote

Schema = dict[str, Any]

# Keywords whose value is a schema, a list of schemas, or an object of schemas. Values of other keywords are data.
ONE = frozenset(
    ("additionalItems", "additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then",
     "unevaluatedItems", "unevaluatedProperties")
)  # fmt: skip
LISTS = frozenset(("allOf", "anyOf", "oneOf", "prefixItems"))
DEFINITIONS = frozenset(("$defs", "definitions"))
MAPS = DEFINITIONS | {"dependencies", "dependentSchemas", "patternProperties", "properties"}
# Keywords whose schemas apply to the same value as the schema that has them. A name in `not` is also one of the value.
IN_PLACE = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies")
# Keywords that restrict no value.
ANNOTATIONS = DEFINITIONS | {
    "title", "description", "default", "example", "examples", "deprecated", "readOnly", "writeOnly", "$comment",
    "$schema", "$id", "format_description",
}  # fmt: skip

# The index of a list in a JSON pointer. No schema has a list of more than nine digits.
_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")
# The limit of a chain of references, which may be circular. No real schema needs more.
_MAX_REFERENCES = 8


class Place(NamedTuple):
    """The place of a schema inside another one.

    A place has the end of its pointer alone: the pointers of all places together could be much longer than the schema.
    """

    parent: Place | None = None
    step: str = ""  # The JSON pointer from the parent, or from the root if there is no parent.

    @property
    def pointer(self) -> str:
        """The JSON pointer to the schema, from the root."""
        steps: list[str] = []
        place: Place | None = self
        while place is not None:
            steps.append(place.step)
            place = place.parent
        return "".join(reversed(steps))


ROOT = Place()


def children(schema: Any) -> Iterator[tuple[str, str, Any]]:
    """The schemas directly inside a schema: the keyword, the JSON pointer from the schema, and the inner schema."""
    for keyword, value in schema.items() if isinstance(schema, dict) else ():
        items: Iterable[tuple[Any, Any]] = ()
        if isinstance(value, list) and (keyword in LISTS or keyword == "items"):
            items = enumerate(value)
        elif isinstance(value, dict) and keyword in MAPS:
            items = (item for item in value.items() if keyword != "dependencies" or not isinstance(item[1], list))
        elif keyword in ONE:
            yield keyword, f"/{keyword}", value
        for name, child in items:
            yield keyword, f"/{keyword}/{escaped(str(name))}", child


def with_children(keyword: str, value: Any, convert: Callable[[Any], Any]) -> Any:
    """The value of a keyword, with each schema directly inside it converted."""
    if isinstance(value, list) and (keyword in LISTS or keyword == "items"):
        return [convert(child) for child in value]
    if isinstance(value, dict) and keyword in MAPS:
        return {name: convert(child) for name, child in value.items()}
    return convert(value) if keyword in ONE else value


def subschemas(root: Any) -> Iterator[tuple[Place, Any]]:
    """A schema and all schemas inside it, with their places; then those in other keywords to which references lead.

        {"$ref": "#/components/a", "components": {"a": {"type": "string"}}}

    The second schema here is that of "a". A schema that the caller changes is changed before its inner ones are read.
    """
    stack, targets = [(ROOT, root)], deque[tuple[Place, Any]]()
    seen: set[int] = set()
    while stack or targets:
        place, schema = stack.pop() if stack else targets.popleft()
        if id(schema) in seen:
            continue
        yield place, schema
        if isinstance(schema, dict):
            seen.add(id(schema))
            stack += reversed([(Place(place, step), child) for _, step, child in children(schema)])
            target = target_of(schema.get("$ref"), root)
            if isinstance(target, dict):
                targets.append((_place_of(schema["$ref"]), target))


@dataclass(eq=False)
class Node:
    """A schema in the graph of the schemas that are used, where references are edges too."""

    schema: dict[str, Any]
    place: Place  # The place at which it was found first.
    n_levels: int  # How many schemas are around it there. To follow a "$ref" counts as one level, too.
    # The schemas directly inside it, by the JSON pointers from here, such as "/items", and the target of its "$ref".
    # Those that are true or false have no node.
    inner: dict[str, Node] = field(default_factory=dict)


def used_schemas(schema: Any) -> list[Node]:
    """The nodes of a schema and of all schemas inside it, with definitions only if they are used, the schema first."""
    nodes: list[Node] = []
    # The node of each schema. A schema is recognised by its identity, since equal ones at two places are two schemas,
    # and all references to one lead to the same object.
    node_of: dict[int, Node] = {}
    stack: list[tuple[Any, Place, int, Node | None, str]] = [(schema, ROOT, 0, None, "")]
    while stack:
        part, place, n_levels, parent, step = stack.pop()
        if not isinstance(part, dict):
            continue
        node = node_of.get(id(part))
        if node is None:
            node = node_of[id(part)] = Node(part, place, n_levels)
            nodes.append(node)
            edges = [(child, Place(place, at), at) for name, at, child in children(part) if name not in DEFINITIONS]
            reference = part.get("$ref", "")
            if is_pointer(reference):
                edges.append((target_of(reference, schema), _place_of(reference), "$ref"))
            stack += [(child, place, n_levels + 1, node, at) for child, place, at in reversed(edges)]
        if parent is not None:
            parent.inner[step] = node
    return nodes


def escaped(name: str) -> str:
    """A name as a step of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def unescaped(step: str) -> str:
    return step.replace("~1", "/").replace("~0", "~")


def is_pointer(reference: Any) -> bool:
    """Whether a reference is a JSON pointer inside the schema: "#", or "#/$defs/a", and not "#a" or "https://a"."""
    return isinstance(reference, str) and (reference == "#" or reference.startswith("#/"))


def target_of(reference: Any, root: Any) -> Any:
    """The schema to which a reference leads; None if there is none, or if it is no pointer."""
    return at_pointer(unquote(reference[1:]), root) if is_pointer(reference) else None


def _place_of(reference: str) -> Place:
    """The place of the target of a reference."""
    return Place(None, unquote(reference[1:]))


def at_pointer(pointer: str, root: Any) -> Any:
    """The value at a JSON pointer; None if there is none."""
    for step in pointer.split("/")[1:]:
        if isinstance(root, dict):
            root = root.get(unescaped(step))
        elif isinstance(root, list) and _INDEX.fullmatch(step) and int(step) < len(root):
            root = root[int(step)]
        else:
            return None
    return root


def holder_of(pointer: str, root: Any) -> tuple[Any, Any]:
    """The object or list that has the value at a JSON pointer, and the name or index of the value in it."""
    parent, _, step = pointer.rpartition("/")
    holder = at_pointer(parent, root)
    return holder, int(step) if isinstance(holder, list) else unescaped(step)


def schemas_of_references(schema: dict[str, Any], root: Any) -> list[dict[str, Any]]:
    """A schema and those to which its references lead, one after the other. The last one may have another reference."""
    schemas = [schema]
    while "$ref" in schemas[-1] and len(schemas) < _MAX_REFERENCES:
        target = target_of(schemas[-1]["$ref"], root)
        if not isinstance(target, dict):
            break
        schemas.append(target)
    return schemas


def resolved(schema: Any, root: Any) -> Any:
    """The schema to which the references of a schema lead; None if there is none."""
    for _ in range(_MAX_REFERENCES):
        if not isinstance(schema, dict) or "$ref" not in schema:
            return schema
        schema = target_of(schema["$ref"], root)
    return None


def schemas_of_value(schema: Any, root: Any) -> Iterator[dict[str, Any]]:
    """The schemas that apply to the same value as a schema, with itself, through references."""
    stack, seen = [schema], set()
    while stack:
        part = stack.pop()
        if not isinstance(part, dict) or id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        stack.append(target_of(part["$ref"], root) if "$ref" in part else None)
        for keyword in IN_PLACE:
            value = part.get(keyword)
            is_map = keyword.startswith("depend") and isinstance(value, dict)
            stack += value if isinstance(value, list) else value.values() if is_map and value else [value]
