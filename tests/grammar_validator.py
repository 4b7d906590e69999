"""A validator for JSON Schema, slow and simple, to judge grammars by: it shares no code with them.

Raises KeyError for keywords that it does not know.
"""

from __future__ import annotations

import datetime
import ipaddress
import json
import re
import uuid
from collections.abc import Callable
from fractions import Fraction
from typing import Any
from urllib.parse import unquote, urlsplit

ANNOTATIONS = {
    *("title", "description", "default", "examples", "$comment", "$schema", "$id", "$anchor", "$defs", "definitions"),
    *("deprecated", "readOnly", "writeOnly", "discriminator", "x-own"),
}
TYPES: dict[str, Callable[[Any], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: is_number(value) and value % 1 == 0,
    "number": lambda value: is_number(value),
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}
# What the standard library reads is further limited by a pattern, since it is generous.
FORMATS: dict[str, tuple[str, Callable[[str], object]]] = {
    "date": (r"\d{4}-\d\d-\d\d", datetime.date.fromisoformat),
    "time": (r"\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", lambda text: datetime.time.fromisoformat(_offset(text))),
    "date-time": (r".{10}[Tt]\d\d:.*(Z|z|.\d\d:\d\d)", lambda text: datetime.datetime.fromisoformat(_offset(text))),
    "ipv4": (r"[\d.]+", ipaddress.IPv4Address),
    "ipv6": (r"[\da-fA-F:.]+", ipaddress.IPv6Address),
    "uuid": (r"[^-]{8}(-[^-]{4}){3}-[^-]{12}", uuid.UUID),
    "uri": (r"[a-zA-Z][\w+.-]*:([\w.~:/?#@!$&'()*+,;=[\]-]|%[0-9a-fA-F]{2})*", urlsplit),
    "email": (r"(?!.*\.\.)[^@\s]+@[^@\s.-][^@\s]*\.[a-zA-Z]+", str),
    "hostname": (r"(?=.{1,253}$)(?!-)[a-zA-Z0-9-]{0,62}[a-zA-Z0-9](\.(?!-)[a-zA-Z0-9-]{0,62}[a-zA-Z0-9])*", str),
    "duration": (r"P(?=.)(\d+[YMWD])*(T(\d+[HMS])+)?", str),
}


def _offset(text: str) -> str:
    """A form that Python 3.9 reads too: an offset in digits, and three or six digits of a second."""
    return re.sub(r"\.(\d+)", lambda match: "." + match[1].ljust(6, "0"), text.upper().replace("Z", "+00:00"))


def load(text: str) -> Any:
    """JSON with exact numbers; raises ValueError, for duplicate names too."""
    return json.loads(text, parse_float=Fraction, parse_constant=_refuse, object_pairs_hook=_pairs)


def _refuse(name: str) -> Any:
    raise ValueError(name)


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a name comes twice")
    return dict(pairs)


def is_number(value: object) -> bool:
    return isinstance(value, (int, float, Fraction)) and not isinstance(value, bool)


def same(a: Any, b: Any) -> bool:
    if is_number(a) and is_number(b):
        return _exact(a) == _exact(b)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[name], b[name]) for name in a)
    return type(a) is type(b) and bool(a == b)


def has_double_names(text: str) -> bool:
    """A grammar cannot keep two names from being the same if the schema does not list them."""
    try:
        load(text)
    except ValueError as error:
        return "comes twice" in str(error)
    return False


def is_valid(text: str, schema: Any) -> bool:
    try:
        value = load(text)
    except ValueError:
        return False
    return Validator(schema).fits(schema, value)


class Validator:
    def __init__(self, root: Any):
        self.root = root

    def fits(self, schema: Any, value: Any) -> bool:
        if isinstance(schema, bool):
            return schema
        return all(
            getattr(self, "on_" + name.strip("$"))(schema[name], value, schema)
            for name in schema
            if name not in ANNOTATIONS
        )

    def on_ref(self, ref: str, value: Any, schema: Any) -> bool:
        return self.fits(self.find(ref.partition("#")[2]), value)

    def find(self, fragment: str) -> Any:
        found = self.root
        if fragment and not fragment.startswith("/"):
            return next(one for one in self.root["$defs"].values() if one.get("$anchor") == fragment)
        for part in unquote(fragment).split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            found = found[int(name)] if isinstance(found, list) else found[name]
        return found

    def on_type(self, names: Any, value: Any, schema: Any) -> bool:
        names = [names] if isinstance(names, str) else names
        return any(TYPES[name](value) for name in names) or (value is None and schema.get("nullable") is True)

    def on_nullable(self, flag: Any, value: Any, schema: Any) -> bool:
        return True

    def on_enum(self, values: Any, value: Any, schema: Any) -> bool:
        return any(same(one, value) for one in values)

    def on_const(self, one: Any, value: Any, schema: Any) -> bool:
        return same(one, value)

    def on_not(self, inner: Any, value: Any, schema: Any) -> bool:
        return not self.fits(inner, value)

    def on_allOf(self, parts: Any, value: Any, schema: Any) -> bool:  # noqa: N802
        return all(self.fits(part, value) for part in parts)

    def on_anyOf(self, parts: Any, value: Any, schema: Any) -> bool:  # noqa: N802
        return any(self.fits(part, value) for part in parts)

    def on_oneOf(self, parts: Any, value: Any, schema: Any) -> bool:  # noqa: N802
        return sum(self.fits(part, value) for part in parts) == 1


def keyword(name: str, applies: Callable[[Any], bool]) -> Callable[[Callable[..., bool]], None]:
    """Registers a keyword that says nothing about values of other types."""

    def register(function: Callable[..., bool]) -> None:
        def method(self: Validator, limit: Any, value: Any, schema: Any) -> bool:
            return not applies(value) or function(self, limit, value, schema)

        setattr(Validator, "on_" + name, method)

    return register


def _simple(name: str, applies: Callable[[Any], bool], test: Callable[[Any, Any], bool]) -> None:
    keyword(name, applies)(lambda self, limit, value, schema: test(limit, value))


def _exact(number: Any) -> Fraction:
    return Fraction(str(number)) if isinstance(number, float) else Fraction(number)


_simple("multipleOf", is_number, lambda limit, value: _exact(value) % _exact(limit) == 0)
_simple("minLength", TYPES["string"], lambda limit, value: len(value) >= limit)
_simple("maxLength", TYPES["string"], lambda limit, value: len(value) <= limit)
_simple("pattern", TYPES["string"], lambda limit, value: _found(limit, value))
_simple("format", TYPES["string"], lambda limit, value: _has_format(limit, value))
_simple("minItems", TYPES["array"], lambda limit, value: len(value) >= limit)
_simple("maxItems", TYPES["array"], lambda limit, value: len(value) <= limit)
_simple("minProperties", TYPES["object"], lambda limit, value: len(value) >= limit)
_simple("maxProperties", TYPES["object"], lambda limit, value: len(value) <= limit)
_simple("required", TYPES["object"], lambda limit, value: set(limit) <= value.keys())


SPACE = "\\t-\\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
# The few things that ECMA-262 writes differently, as they come in the tables.
IN_PYTHON = {
    "(?<x>": "(?P<x>",
    r"\cA": r"\x01",
    r"\u{43}": "C",
    r"\u{1F600}": "😀",
    r"\ud83d\ude00": "😀",
    r"^\s": f"^[{SPACE}]",
    "^.": r"^[^\n\r\u2028\u2029]",
}


def _found(pattern: str, text: str) -> bool:
    for ours, python in IN_PYTHON.items():
        pattern = pattern.replace(ours, python)
    strict_end = re.sub(r"\\.|\$", lambda match: r"\Z" if match[0] == "$" else match[0], pattern)
    return re.search(strict_end, text, re.ASCII) is not None


def _has_format(name: str, text: str) -> bool:
    if name not in FORMATS:
        return True
    pattern, read = FORMATS[name]
    if not re.fullmatch(pattern, text, re.ASCII):
        return False
    try:
        read(text)
    except ValueError:
        return False
    return True


@keyword("minimum", is_number)
def _minimum(self: Validator, limit: Any, value: Any, schema: Any) -> bool:
    return _exact(value) > _exact(limit) or (
        _exact(value) == _exact(limit) and schema.get("exclusiveMinimum") is not True
    )


@keyword("maximum", is_number)
def _maximum(self: Validator, limit: Any, value: Any, schema: Any) -> bool:
    return _exact(value) < _exact(limit) or (
        _exact(value) == _exact(limit) and schema.get("exclusiveMaximum") is not True
    )


@keyword("exclusiveMinimum", is_number)
def _exclusive_minimum(self: Validator, limit: Any, value: Any, schema: Any) -> bool:
    return isinstance(limit, bool) or _exact(value) > _exact(limit)


@keyword("exclusiveMaximum", is_number)
def _exclusive_maximum(self: Validator, limit: Any, value: Any, schema: Any) -> bool:
    return isinstance(limit, bool) or _exact(value) < _exact(limit)


@keyword("prefixItems", TYPES["array"])
def _prefix_items(self: Validator, parts: Any, value: Any, schema: Any) -> bool:
    return all(map(self.fits, parts, value))


@keyword("items", TYPES["array"])
def _items(self: Validator, part: Any, value: Any, schema: Any) -> bool:
    if isinstance(part, list):
        return all(map(self.fits, part, value))
    return all(self.fits(part, item) for item in value[len(schema.get("prefixItems", [])) :])


@keyword("additionalItems", TYPES["array"])
def _additional_items(self: Validator, part: Any, value: Any, schema: Any) -> bool:
    return all(self.fits(part, item) for item in value[len(schema["items"]) :])


@keyword("uniqueItems", TYPES["array"])
def _unique_items(self: Validator, flag: Any, value: Any, schema: Any) -> bool:
    return not flag or not any(same(a, b) for n, a in enumerate(value) for b in value[:n])


@keyword("contains", TYPES["array"])
def _contains(self: Validator, part: Any, value: Any, schema: Any) -> bool:
    return sum(self.fits(part, item) for item in value) >= schema.get("minContains", 1)


_simple("minContains", TYPES["array"], lambda limit, value: True)


@keyword("properties", TYPES["object"])
def _properties(self: Validator, parts: Any, value: Any, schema: Any) -> bool:
    return all(self.fits(parts[name], value[name]) for name in parts if name in value)


@keyword("patternProperties", TYPES["object"])
def _pattern_properties(self: Validator, parts: Any, value: Any, schema: Any) -> bool:
    return all(self.fits(parts[p], value[name]) for p in parts for name in value if _found(p, name))


@keyword("additionalProperties", TYPES["object"])
def _additional_properties(self: Validator, part: Any, value: Any, schema: Any) -> bool:
    patterns = schema.get("patternProperties", ())
    known = schema.get("properties", {})
    return all(
        self.fits(part, value[name])
        for name in value
        if name not in known and not any(_found(pattern, name) for pattern in patterns)
    )


@keyword("propertyNames", TYPES["object"])
def _property_names(self: Validator, part: Any, value: Any, schema: Any) -> bool:
    return all(self.fits(part, name) for name in value)


@keyword("dependentRequired", TYPES["object"])
def _dependent_required(self: Validator, needed: Any, value: Any, schema: Any) -> bool:
    return all(set(needed[name]) <= value.keys() for name in needed if name in value)


@keyword("dependentSchemas", TYPES["object"])
def _dependent_schemas(self: Validator, parts: Any, value: Any, schema: Any) -> bool:
    return all(self.fits(parts[name], value) for name in parts if name in value)


@keyword("dependencies", TYPES["object"])
def _dependencies(self: Validator, parts: Any, value: Any, schema: Any) -> bool:
    lists = {name: {"required": part} if isinstance(part, list) else part for name, part in parts.items()}
    return all(self.fits(lists[name], value) for name in lists if name in value)
