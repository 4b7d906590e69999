"""JSON Schemas for llguidance: in the keywords that it knows, and without parts that it would not enforce exactly."""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from ...api.parts import child_schemas, reachable, subschemas, target_of, with_children, without_null_keywords
from ..dialects.values import ALL_TYPES
from .lark import error_in, is_empty

# The formats that llguidance enforces. By the standard, all others are annotations.
_FORMATS = frozenset(("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"))
# Keywords whose schemas apply to the same value as the schema that has them.
_IN_PLACE = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies")
# Where a schema is. A part of a combination leaves its objects open, for the properties of the other parts, and so does
# everything inside `oneOf`: a closed object could match one branch where open ones match two.
_HERE, _AS_PART, _EXACTLY = "here", "as a part", "exactly"
# Keywords that only objects have, and keywords that restrict no value.
_OF_OBJECTS = frozenset(("properties", "required", "additionalProperties", "patternProperties", "propertyNames"))
_ANNOTATIONS = frozenset(("title", "description", "default", "examples", "$defs", "definitions", "$comment", "type"))
# Keywords that no grammar enforces.
_NOT_ENFORCED = frozenset(
    ("not", "if", "then", "else", "contains", "minContains", "maxContains", "uniqueItems", "propertyNames",
     "dependencies", "dependentSchemas", "dependentRequired", "unevaluatedItems", "unevaluatedProperties",
     "$dynamicRef", "$recursiveRef")
)  # fmt: skip
_NAMES = re.compile(r"\^(?:([\w-]+)|\((?:\?:)?([\w-]+(?:\|[\w-]+)*)\))\$", re.ASCII)  # A pattern of a few whole names.
# The parts of a pattern with escaped characters and classes of characters. A negated class gets NUL: llguidance would
# allow quotation marks and backslashes that it excludes, unless it excludes a control character too.
_CLASS = re.compile(r"\\.|\[\^|\[(?:\\.|[^\]\\])*\]", re.DOTALL)
_CONTROL = re.compile(r"(?<!\\)(?:\\\\)*\\u00[01]|\x7f")  # A character in JSON that a string can only have as \uXXXX.
# What may be between the parts of JSON, as in llama.cpp: a space, or a line break with an indentation.
_SPACE = "[ ]|\\n[ ]{0,40}"
_WITHOUT_ESCAPES = {"json_allowed_escapes": 'nrbtf\\"'}  # Without those of the form \uXXXX.
_MAX_INTEGER = 1 << 53  # llguidance reads numbers as floats, which have all integers up to this one.
# The limits of work that cannot be interrupted: llguidance compares all properties of an object, and all patterns with
# the properties. Levels of schemas, which references continue, are on the stack.
_MAX_PROPERTIES, _MAX_NAMES, _MAX_LEVELS = 3000, 5000, 600
# The limits of the schemas that are read to prepare one, and of the pairs of branches that are compared for this.
_MAX_READ, _MAX_PAIRS = 300_000, 50_000
# To find the place of an error, this many times the text of the schema is compiled, and a minimum of characters.
_MAX_TRIED, _MIN_TRIED = 2, 20_000
# The limits of the parts that are left out of a schema, and of the characters that are checked for it.
_MAX_LEFT_OUT, _MAX_CHECKED = 20, 300_000


def normalized(schema: Any) -> Any:
    """A schema in the keywords that llguidance knows. Raises ValueError if it is too large. A keyword that is null is
    absent, unknown formats are annotations, and `nullable` adds a type. A schema with the keywords of objects alone is
    one of objects. An object that declares properties gets no others, unless the schema says that it may have others.
    Names from a short list are properties, so none is repeated."""
    return _Normalizer(without_null_keywords(schema)).result


class _Normalizer:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._n_read = self._n_pairs = 0
        # Further definitions: targets of references that are needed open, or whose place may change.
        self._added: dict[str, Any] = {}
        self.result = self._build(root)
        if self._added:
            self.result["$defs"] = {**self.result.get("$defs", {}), **self._added}

    def _build(self, node: Any, place: str = _HERE) -> Any:
        if not isinstance(node, dict):
            return node
        self._count(1)
        node = {keyword: value for keyword, value in node.items() if not _is_default(keyword, value)}
        own = node.keys() - _ANNOTATIONS
        if own == {"allOf"} and len(node["allOf"]) == 1 and "type" not in node:
            (only,) = node.pop("allOf")
            return self._build({**only, **node} if isinstance(only, dict) else only, place)
        if "type" in node and node.get("nullable") is True:
            types = node["type"] if isinstance(node["type"], list) else [node["type"]]
            node["type"] = [*types, *({"null"} - set(types))]
        elif place != _EXACTLY and _types(node) == {"object"}:
            node["type"] = "object"
        self._list_names(node)
        is_choice = len(own) == 1 and bool(own & {"anyOf", "oneOf", "$ref"})
        parts = [] if is_choice else list(_parts(node, self._root))
        self._count(len(parts))
        inside = _AS_PART if place == _HERE and len(parts) > 1 else place
        if "oneOf" in node and "anyOf" not in node and self._is_disjoint(node["oneOf"], is_closed=inside == _HERE):
            node = {("anyOf" if keyword == "oneOf" else keyword): value for keyword, value in node.items()}
        new: dict[str, Any] = {}
        for keyword, value in node.items():
            is_same_value = keyword in _IN_PLACE or keyword == "$ref"
            is_exact = place == _EXACTLY or keyword == "oneOf"
            of_child = _EXACTLY if is_exact else inside if is_same_value else _HERE
            if keyword == "$ref":
                value = self._reference(value, of_child)
            elif keyword == "pattern":
                value = _CLASS.sub(lambda match: match[0] + (r"\x00" if match[0] == "[^" else ""), value)
            elif keyword.startswith(("min", "max")) and isinstance(value, float) and abs(value) < _MAX_INTEGER:
                value = int(value) if value % 1 == 0 else value
            new[keyword] = with_children(keyword, value, functools.partial(self._build, place=of_child))
        if place == _HERE and not is_choice:
            _close(new, parts)
        return new

    def _count(self, n: int) -> None:
        self._n_read += n
        if self._n_read > _MAX_READ:
            raise ValueError("it is too large, or combines too many schemas")

    def _reference(self, reference: str, place: str) -> str:
        """A reference to the same schema. Its target keeps its place if that is a definition, unless it is a part."""
        target = target_of(reference, self._root)
        if target is None or (place == _HERE and re.fullmatch(r"#(/(\$defs|definitions)/[\w.-]+)?", reference)):
            return reference
        name = f"{reference} {place}".replace("/", ".")
        if name not in self._added:
            self._added[name] = None
            self._added[name] = self._build(target, place)
        return "#/$defs/" + quote(name.replace("~", "~0"))

    def _list_names(self, node: dict[str, Any]) -> None:
        """Rewrite patterns of a few names as properties, and `propertyNames` as properties or as a pattern."""
        names, others = node.get("propertyNames"), node.get("additionalProperties", True)
        if isinstance(names, dict) and names.keys() - _ANNOTATIONS == {"$ref"}:
            names = target_of(names["$ref"], self._root)
        properties, patterns = dict(node.get("properties", {})), dict(node.get("patternProperties", {}))
        for match in filter(None, map(_NAMES.fullmatch, list(patterns))):
            schema = patterns.pop(match[0])
            for name in (match[1] or match[2]).split("|"):
                properties[name] = {"allOf": [properties[name], schema]} if name in properties else schema
            node["properties"] = properties
        if isinstance(names, dict) and not patterns:
            own = names.keys() - _ANNOTATIONS
            listed = [names["const"]] if own == {"const"} else names["enum"] if own == {"enum"} else None
            if listed is not None and names.get("type", "string") == "string":
                node["properties"] = {name: properties.get(name, others) for name in listed if isinstance(name, str)}
                node["additionalProperties"] = False
                del node["propertyNames"]
            elif not properties and own and (own == {"pattern"} or own <= {"minLength", "maxLength"}):
                length = f"^[\\s\\S]{{{int(names.get('minLength', 0))},{names.get('maxLength', '')}}}$"
                patterns = {names.get("pattern", length): others}
                node["additionalProperties"] = False
                del node["propertyNames"]
        node.pop("patternProperties", None)
        if patterns:
            node["patternProperties"] = patterns

    def _is_disjoint(self, branches: list[Any], *, is_closed: bool) -> bool:
        """Whether it is plain that no value of a branch matches another, as `_excludes` says. Few are compared."""
        self._n_pairs += len(branches) ** 2
        nodes = [target_of(n["$ref"], self._root) if isinstance(n, dict) and "$ref" in n else n for n in branches]
        if self._n_pairs > _MAX_PAIRS or not all(isinstance(node, dict) for node in nodes):
            return False
        return all(_excludes(one, other, is_closed=is_closed) for one, other in itertools.permutations(nodes, 2))


def _is_default(keyword: str, value: Any) -> bool:
    """Whether a keyword restricts nothing, or is not one of JSON Schema."""
    if keyword == "propertyNames":
        is_free = isinstance(value, dict) and value.keys() <= _ANNOTATIONS and "string" in value.get("type", "string")
        return value is True or is_free
    is_unknown_format = keyword == "format" and str(value) not in _FORMATS
    return keyword == "x-guidance" or is_unknown_format or (keyword == "uniqueItems" and value is False)


def _types(node: dict[str, Any]) -> set[str]:
    """The types of the values of a schema. One with keywords of objects alone is one of objects."""
    if "type" in node:
        names = {node["type"]} if isinstance(node["type"], str) else set(node["type"])
        return names | ({"number"} & names and {"integer"}) | ({"null"} if node.get("nullable") else set())
    is_object = _OF_OBJECTS & node.keys() and not {"const", "enum", "$ref"} & node.keys()
    return {"object"} if is_object else set(ALL_TYPES)


def _excludes(one: dict[str, Any], other: dict[str, Any], *, is_closed: bool) -> bool:
    """Whether it is plain that no value of a schema matches another: by the type, or a property that this requires.
    `is_closed`: values of the first schema have only declared properties."""
    if not _types(one) & _types(other):
        return True
    if _types(one) != {"object"}:
        return False
    declared, needed = one.get("properties", {}), set(other.get("required", ()))
    is_single = not one.keys() & {*_IN_PLACE, "$ref", "patternProperties", "propertyNames"}
    is_closed = is_closed and is_single and bool(declared) and one.get("additionalProperties", False) is False
    if is_closed and needed - declared.keys() - set(one.get("required", ())):
        return True
    for name in needed & set(one.get("required", ())):
        values = [_listed(node.get("properties", {}).get(name)) for node in (one, other)]
        if all(values) and not values[0] & values[1]:
            return True
    return False


def _listed(node: Any) -> set[str]:
    """The texts of a constant or an enum; empty if the schema is another one."""
    values = node.get("enum", [node.get("const")]) if isinstance(node, dict) else []
    return set(values) if all(isinstance(value, str) for value in values) else set()


def _parts(node: Any, root: Any) -> Iterator[dict[str, Any]]:
    """The schemas that apply to the same value as a schema, with itself, through references."""
    stack, seen = [node], set()
    while stack:
        part = stack.pop()
        if not isinstance(part, dict) or id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        stack.append(target_of(part["$ref"], root) if "$ref" in part else None)
        for keyword in _IN_PLACE:
            value = part.get(keyword)
            is_map = keyword.startswith("depend") and isinstance(value, dict)
            stack += value if isinstance(value, list) else value.values() if is_map and value else [value]


def _close(new: dict[str, Any], parts: list[dict[str, Any]]) -> None:
    """Allow only the names that the parts of an object declare, if they declare any and allow no others."""
    declares = any("properties" in part for part in parts)
    if not declares or any("additionalProperties" in part for part in parts):
        return
    if len(parts) > 1 and any("oneOf" in part for part in (new, *parts[1:])):
        return
    for keyword, sources in (("properties", ("properties", "required")), ("patternProperties", ("patternProperties",))):
        names = [name for part in parts for source in sources for name in part.get(source, ())]
        if names:
            new[keyword] = {**new.get(keyword, {}), **{n: True for n in names if n not in new.get(keyword, {})}}
    new["additionalProperties"] = False


def json_rule(schema: Any) -> str:
    """The body of a rule: JSON that matches a normalized schema."""
    schema = {} if schema is True else schema
    if isinstance(schema, dict):
        options = {**schema.get("x-guidance", {}), "whitespace_pattern": _SPACE}
        if _forbids_escapes(schema):
            options.update(_WITHOUT_ESCAPES)
        schema = {**schema, "x-guidance": options}
    return f"%json {json.dumps(schema)}"


def _forbids_escapes(schema: dict[str, Any]) -> bool:
    """Whether no text has \\u escapes, with which a listed name could be written as another name."""
    is_lenient = schema.get("x-guidance", {}).get("lenient")
    return not is_lenient and any(map(_has_other_names, (node for _, node in subschemas(schema))))


def _has_other_names(node: Any) -> bool:
    names = isinstance(node, dict) and (node.get("properties") or node.get("required") or node.get("patternProperties"))
    return bool(names) and node.get("additionalProperties", True) is not False


def loosened(schema: dict[str, Any]) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """A normalized schema of objects without what cannot be enforced, and the place and reason of each such part."""
    errors = [error_place(schema)]
    if not errors[0][1]:
        return schema, []
    text = json.dumps({**schema, "x-guidance": {"lenient": True, "coerce_one_of": True}})
    schema = json.loads(text)
    for _ in range(min(_MAX_LEFT_OUT, 1 + _MAX_CHECKED // len(text))):
        pointer, reason = error_place(schema)
        if not reason:
            return schema, errors
        errors.append((pointer, reason))
        if not pointer:
            break
        parent, _, key = pointer.rpartition("/")
        holder, key = target_of(quote(f"#{parent}", "#/~"), schema), key.replace("~1", "/").replace("~0", "~")
        if all(pointer != place for place, _ in subschemas(schema)):
            del holder[key]
            continue
        index = int(key) if isinstance(holder, list) else key
        part = holder[index]
        holder[index] = {"type": part["type"]} if isinstance(part, dict) and part.keys() > {"type"} else True
    return {"type": "object"}, errors


def error_place(schema: Any) -> tuple[str, str]:
    """The JSON pointer of the innermost subschema that is refused, and the reason; "" if there is no error."""
    if not isinstance(schema, dict):
        return "", error_in("start: " + json_rule(schema))
    options = schema.get("x-guidance", {})
    n_squares = n_names = 0
    nodes: list[tuple[str, dict[str, Any]]] = []
    for pointer, node, n_levels in reachable(schema):
        if n_levels > _MAX_LEVELS:
            return pointer, "it is nested too deeply"
        if not isinstance(node, dict):
            continue
        nodes.append((pointer, node))
        n, n_patterns = len(node.get("properties", ())), len(node.get("patternProperties", ()))
        n_squares += n * n
        n_names += n_patterns * (n + 50)
        if n > _MAX_PROPERTIES:
            return f"{pointer}/properties", f"it has {n} names, the limit is {_MAX_PROPERTIES}"
        if n_squares > _MAX_PROPERTIES**2:
            return pointer, f"its objects have too many properties together; the limit of one is {_MAX_PROPERTIES}"
        if n_names > _MAX_NAMES:
            limit = f"with {n} properties, the limit is {_MAX_NAMES // (n + 50)}, less if other objects have patterns"
            return f"{pointer}/patternProperties", f"it has {n_patterns} patterns; {limit}"
    for pointer, node in nodes:
        for place, reason in _own_errors(node, is_lenient="lenient" in options):
            return pointer + place, reason
    if _forbids_escapes(schema):
        for pointer, node in nodes:
            if any(_needs_escapes(node)):
                return pointer, "a control character is not supported with objects that may have names of any text"
    if _is_endless(schema, [node for _, node in nodes]):
        return "", "no value of it is finite"
    reason = error_in("start: " + json_rule(schema))
    if not reason:
        return "", ""
    # The smallest part that is refused alone. The parts lose their references: they are compiled without definitions.
    texts = {json_rule({**node, "x-guidance": options}): pointer for pointer, node in reversed(nodes[1:])}
    left = max(_MAX_TRIED * len(json.dumps(schema)), _MIN_TRIED)
    for text, pointer in sorted(texts.items(), key=lambda item: len(item[0])):
        left -= len(text)
        own = error_in("start: " + re.sub(r'"\$ref": "[^"]*"', '"title": ""', text)) if left > 0 else ""
        if own:
            return pointer, own
    return "", reason


def _own_errors(node: dict[str, Any], *, is_lenient: bool) -> Iterator[tuple[str, str]]:
    """The errors of a schema without those inside it: "/" and the keyword, or "", and the reason."""
    for keyword in sorted(_NOT_ENFORCED & node.keys()) if not is_lenient else ():
        yield f"/{keyword}", f"'{keyword}' is not supported"
    inner = {step.split("/")[1] for step, _ in child_schemas(node)}
    integer = _inexact({name: value for name, value in node.items() if name not in inner})
    if integer is not None:
        yield "", f"{integer} is larger than 2^53, so it would be rounded"
    if _types(node) != {"integer"} and _has_near_bounds(node):
        yield "", "an exclusive bound that is less than 1 from the other bound is not supported"
    names = node.get("properties", {}).keys() | set(node.get("required", ()))
    least, n_required = node.get("minProperties", 0), len(node.get("required", ()))
    if node.get("additionalProperties", True) is False and not node.get("patternProperties"):
        if least > len(names):
            yield "/minProperties", f"'minProperties' is {least}, and the number of possible names is {len(names)}"
    elif least > max(1, n_required + 1) and not is_lenient:
        yield "/minProperties", "'minProperties' of 2 or more can only be enforced for names that are listed"
    if node.get("patternProperties") and _lacks_names(node):
        yield "/patternProperties", "a pattern matches only names that are in 'properties', or all"


def _inexact(value: Any) -> int | None:
    """An integer of a schema that llguidance would round; None if there is none."""
    if isinstance(value, dict):
        value = [item for name, item in value.items() if name not in ("default", "example", "examples")]
    if isinstance(value, list):
        return next((found for item in value if (found := _inexact(item)) is not None), None)
    return value if isinstance(value, int) and abs(value) > _MAX_INTEGER else None


def _has_near_bounds(node: dict[str, Any]) -> bool:
    """Whether a whole number is an exclusive bound near the other one: llguidance includes it."""
    bounds: list[Any] = []
    is_whole = False
    for name in ("Minimum", "Maximum"):
        exclusive, bound = node.get(f"exclusive{name}", False), node.get(name.lower())
        bounds.append(bound if isinstance(exclusive, bool) else exclusive)
        is_whole = is_whole or (exclusive is not False and bounds[-1] is not None and bounds[-1] % 1 == 0)
    return is_whole and None not in bounds and 0 < bounds[1] - bounds[0] < 1


def _lacks_names(node: dict[str, Any]) -> bool:
    """Whether no name that is not listed matches a pattern for names, or none is left for other names."""
    patterns, listed = node["patternProperties"], dict.fromkeys(node.get("properties", ()), False)
    tests = [{"patternProperties": {pattern: True}, "additionalProperties": False} for pattern in patterns]
    if _has_other_names(node):
        tests.append({"patternProperties": dict.fromkeys(patterns, False), "additionalProperties": True})
    schemas = ({"type": "object", "properties": listed, "minProperties": 1, **test} for test in tests)
    return any(is_empty("start: " + json_rule(schema), '{"') for schema in schemas)


def _needs_escapes(node: dict[str, Any]) -> Iterator[bool]:
    """For each text of a schema, whether all that match it have control characters."""
    yield bool(_CONTROL.search(json.dumps([node.get("const"), node.get("enum")])))
    if "pattern" in node:
        text = {"type": "string", "pattern": node["pattern"], "x-guidance": _WITHOUT_ESCAPES}
        yield is_empty(f"start: %json {json.dumps(text)}")


def _is_endless(root: Any, nodes: list[dict[str, Any]]) -> bool:
    """Whether each value of a schema has another one inside it, without end."""
    finite: set[int] = set()

    def is_finite(node: Any) -> bool:
        return not isinstance(node, dict) or id(node) in finite

    def has_end(node: dict[str, Any]) -> bool:
        needed = [target_of(node["$ref"], root)] if "$ref" in node else []
        needed += node.get("allOf", ())
        if node.get("type") == "object":
            needed += [node.get("properties", {}).get(name) for name in node.get("required", ())]
        if node.get("type") == "array" and node.get("minItems", 0) > 0 and not isinstance(node.get("items"), list):
            needed.append(node.get("items"))
        choices = [node[keyword] for keyword in ("anyOf", "oneOf") if node.get(keyword)]
        return all(map(is_finite, needed)) and all(any(map(is_finite, choice)) for choice in choices)

    n_before = -1
    while n_before < len(finite):
        n_before = len(finite)
        for node in reversed(nodes):
            if id(node) not in finite and has_end(node):
                finite.add(id(node))
    return not is_finite(root)
