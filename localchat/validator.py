"""What in a JSON value breaks a JSON Schema, with the path of each error. No I/O.

Knows the keywords that check a value by itself, and the formats of dates and times; of older drafts and of
OpenAPI 3.0 what they say in their own way about items, bounds, dependencies and null. What it does not know it
passes over: unevaluated properties and items, dynamic references, other formats.
"""

from __future__ import annotations

import datetime
import json
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

_SHOWN_CHARS = 80

# What ECMA-262, whose patterns JSON Schema has, writes in another way than Python, or means by it something else. Other
# escapes are skipped; in sets only escapes are looked at.
_SPACE = r" \t-\r\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
_IN_PYTHON = {"$": r"\Z", ".": r"[^\n\r\u2028\u2029]", r"\s": f"[{_SPACE}]", r"\S": f"[^{_SPACE}]", "(?<": "(?P<"}
_ESCAPE = re.compile(r"\\u[dD][89abAB]..\\u[dD][c-fC-F]..|\\u\{[^}]*\}|\\c[a-zA-Z]|\\.", re.DOTALL)
_TOKEN = re.compile(_ESCAPE.pattern + r"|\[(?:\\.|[^\]\\])*\]|\(\?<(?![=!])|[$.]", re.DOTALL)

TYPE_NAMES: dict[type, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    type(None): "null",
    list: "array",
    dict: "object",
}


class ValidationError(NamedTuple):
    """Where a value breaks its schema, and how."""

    path: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}: {self.text}"


def validation_errors(value: Any, schema: Any) -> Iterator[ValidationError]:
    """What in a parsed JSON value breaks a schema.

    Raises:
        ValueError: The schema itself is broken.
    """
    return _Checker(schema).check(value, schema, "$")


def parse_moment(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(_readable(text))


def parse_time(text: str) -> datetime.time:
    return datetime.time.fromisoformat(_readable(text))


def _check_date(text: str) -> None:
    """Later Pythons read other forms of ISO 8601 too, which the format of JSON Schema does not know."""
    if datetime.date.fromisoformat(text).isoformat() != text:
        raise ValueError(text)


def _readable(text: str) -> str:
    """ISO 8601 as models write it; Python 3.9 reads neither Z nor every number of digits."""
    text = re.sub(r"[zZ]$", "+00:00", text)
    return re.sub(r"\.(\d+)", lambda part: "." + part[1][:6].ljust(6, "0"), text)


class _Checker:
    def __init__(self, root: Any) -> None:
        self._root = root

    def check(self, value: Any, schema: Any, path: str) -> Iterator[ValidationError]:
        if not isinstance(schema, Mapping):  # True allows all, False nothing.
            if schema is False:
                yield ValidationError(path, "not allowed")
            return
        for keyword, limit in schema.items():
            rule = _RULES.get(keyword)
            if rule is not None:
                try:
                    yield from rule(self, limit, value, path, schema)
                except _Unreadable as error:
                    yield ValidationError(path, f"cannot be checked, since Python cannot read the pattern {error}")
            elif keyword in _LIMITS:
                yield from _limit_fault(keyword, limit, value, path, schema)

    def _reference(self, limit: str, value: Any, path: str, schema: Any) -> Iterator[ValidationError]:
        yield from self.check(value, self._find(limit), path)

    def _find(self, reference: str) -> Any:
        """What a reference names: by a JSON pointer, or by an anchor."""
        base, _, fragment = reference.partition("#")
        fragment = unquote(fragment)
        try:
            if base and base != self._root["$id"].rstrip("#"):
                raise LookupError(base)
            if fragment and not fragment.startswith("/"):
                return next(part for part in _parts(self._root) if part.get("$anchor") == fragment)
            target = self._root
            for step in fragment.split("/")[1:]:
                step = step.replace("~1", "/").replace("~0", "~")
                target = target[int(step) if isinstance(target, list) else step]
            return target
        except (LookupError, TypeError, ValueError, StopIteration):
            raise ValueError(f"the schema refers to {reference!r}, which it does not have") from None

    def _type(self, limit: Any, value: Any, path: str, schema: Any) -> Iterator[ValidationError]:
        names = [limit] if isinstance(limit, str) else limit
        if not any(_is_type(value, name) for name in names) and not (value is None and schema.get("nullable") is True):
            yield ValidationError(path, f"expected {' or '.join(names)}, got {show(value)}")

    def _enum(self, limit: Any, value: Any, path: str, schema: Any) -> Iterator[ValidationError]:
        if not any(is_same(value, option) for option in limit):
            yield ValidationError(path, f"expected one of {', '.join(map(show, limit))}, got {show(value)}")

    def _const(self, limit: Any, value: Any, path: str, schema: Any) -> Iterator[ValidationError]:
        return self._enum([limit], value, path, schema)

    def _properties(self, limit: Any, value: Any, path: str, schema: Any) -> Iterator[ValidationError]:
        if isinstance(value, dict):
            for name, part in limit.items():
                if name in value:
                    yield from self.check(value[name], part, member_path(path, name))

    def _required(self, limit: Any, value: Any, path: str, schema: Any) -> Iterator[ValidationError]:
        if isinstance(value, dict):
            yield from (ValidationError(member_path(path, name), "missing") for name in limit if name not in value)

    def _additional(self, limit: Any, value: Any, path: str, schema: Any) -> Iterator[ValidationError]:
        if isinstance(value, dict):
            patterns = schema.get("patternProperties", ())
            for name in (name for name in value if name not in schema.get("properties", {})):
                if not any(_matches(pattern, name) for pattern in patterns):
                    yield from self.check(value[name], limit, member_path(path, name))

    def _alike(self, limit: Any, value: Any, path: str, schema: Any) -> Iterator[ValidationError]:
        if isinstance(value, dict):
            for pattern, part in limit.items():
                for name in filter(lambda name: _matches(pattern, name), value):
                    yield from self.check(value[name], part, member_path(path, name))

    def _names(self, limit: Any, value: Any, path: str, schema: Any) -> Iterator[ValidationError]:
        if isinstance(value, dict):
            for name in value:
                yield from self.check(name, limit, member_path(path, name))

    def _dependent(self, limit: Any, value: Any, path: str, schema: Any) -> Iterator[ValidationError]:
        if isinstance(value, dict):
            for name, needed in limit.items():
                if name in value:
                    yield from self.check(value, {"required": needed} if isinstance(needed, list) else needed, path)

    def _items(self, limit: Any, value: Any, path: str, schema: Any) -> Iterator[ValidationError]:
        if isinstance(limit, list):  # In older drafts.
            yield from self._prefix(limit, value, path, schema)
            yield from self._from(len(limit), schema.get("additionalItems", True), value, path)
        else:
            yield from self._from(len(schema.get("prefixItems", ())), limit, value, path)

    def _from(self, first: int, limit: Any, value: Any, path: str) -> Iterator[ValidationError]:
        if isinstance(value, list):
            for i, item in enumerate(value[first:], first):
                yield from self.check(item, limit, f"{path}[{i}]")

    def _contains(self, limit: Any, value: Any, path: str, schema: Any) -> Iterator[ValidationError]:
        if isinstance(value, list):
            found = sum(not any(self.check(item, limit, path)) for item in value)
            least, most = schema.get("minContains", 1), schema.get("maxContains", found)
            if not least <= found <= most:
                words = f"at least {least}" if found < least else f"at most {most}"
                yield ValidationError(path, f"expected {words} items of one kind, got {found} in {show(value)}")

    def _prefix(self, limit: Any, value: Any, path: str, schema: Any) -> Iterator[ValidationError]:
        if isinstance(value, list):
            for i, (part, item) in enumerate(zip(limit, value)):
                yield from self.check(item, part, f"{path}[{i}]")

    def _unique(self, limit: Any, value: Any, path: str, schema: Any) -> Iterator[ValidationError]:
        if limit and isinstance(value, list):
            for i, item in enumerate(value):
                if any(is_same(item, other) for other in value[:i]):
                    yield ValidationError(f"{path}[{i}]", f"a second {show(item)}")

    def _all(self, limit: Any, value: Any, path: str, schema: Any) -> Iterator[ValidationError]:
        for part in limit:
            yield from self.check(value, part, path)

    def _any(self, limit: Any, value: Any, path: str, schema: Any) -> Iterator[ValidationError]:
        """If none fits, the errors of the one that came furthest tell most."""
        tried = [list(self.check(value, part, path)) for part in limit]
        if not all(tried):
            return
        furthest = max(tried, key=lambda found: len(found[0].path), default=[])
        if furthest and furthest[0].path != path:
            yield from furthest
        else:
            yield ValidationError(
                path, "; or ".join(dict.fromkeys(found[0].text for found in tried)) or "nothing is allowed"
            )

    def _one(self, limit: Any, value: Any, path: str, schema: Any) -> Iterator[ValidationError]:
        fitting = sum(not any(self.check(value, part, path)) for part in limit)
        if fitting == 0:
            yield from self._any(limit, value, path, schema)
        elif fitting > 1:
            yield ValidationError(path, f"fits {fitting} forms where it must fit one")

    def _not(self, limit: Any, value: Any, path: str, schema: Any) -> Iterator[ValidationError]:
        if not any(self.check(value, limit, path)):
            yield ValidationError(path, f"{show(value)} is not allowed")

    def _if(self, limit: Any, value: Any, path: str, schema: Any) -> Iterator[ValidationError]:
        branch = "else" if any(self.check(value, limit, path)) else "then"
        yield from self.check(value, schema.get(branch, True), path)

    def _pattern(self, limit: Any, value: Any, path: str, schema: Any) -> Iterator[ValidationError]:
        if isinstance(value, str) and not _matches(limit, value):
            yield ValidationError(path, f"expected text like {limit}, got {show(value)}")

    def _format(self, limit: Any, value: Any, path: str, schema: Any) -> Iterator[ValidationError]:
        if isinstance(value, str) and limit in _FORMATS:
            try:
                _FORMATS[limit](value)
            except ValueError:
                yield ValidationError(path, f"expected a {limit}, got {show(value)}")


class _Unreadable(Exception):
    """A pattern that Python cannot read."""


def _matches(pattern: str, text: str) -> bool:
    try:
        return re.search(_TOKEN.sub(_in_python, pattern), text, re.ASCII) is not None
    except (re.error, ValueError, OverflowError) as error:  # Flags that exclude each other; too many repeats.
        raise _Unreadable(f"{pattern}: {error}") from error


def _in_python(token: re.Match[str]) -> str:
    """A piece of a pattern as Python writes it."""
    if token[0].startswith("["):
        return _ESCAPE.sub(lambda escape: _SPACE if escape[0] == r"\s" else _character(escape[0]), token[0])
    return _IN_PYTHON.get(token[0]) or _character(token[0])


def _character(text: str) -> str:
    """The character that an escape stands for which Python does not know; others as they are."""
    if text.startswith(r"\c") and len(text) == 3:
        return re.escape(chr(ord(text[2]) % 32))
    if text.startswith(r"\u{"):
        return re.escape(chr(int(text[3:-1], 16)))
    if text.startswith(r"\u") and len(text) == 12:
        return re.escape(chr(0x10000 + ((int(text[2:6], 16) - 0xD800) << 10) + int(text[8:], 16) - 0xDC00))
    return text


def _parts(schema: Any) -> Iterator[Mapping[str, Any]]:
    """Everything that might be a schema, from the outside in."""
    if isinstance(schema, Mapping):
        yield schema
    inner = schema.values() if isinstance(schema, Mapping) else schema if isinstance(schema, list) else ()
    for part in inner:
        yield from _parts(part)


_RULES: dict[str, Callable[[_Checker, Any, Any, str, Any], Iterator[ValidationError]]] = {
    "$ref": _Checker._reference,
    "type": _Checker._type,
    "enum": _Checker._enum,
    "const": _Checker._const,
    "required": _Checker._required,
    "properties": _Checker._properties,
    "additionalProperties": _Checker._additional,
    "patternProperties": _Checker._alike,
    "propertyNames": _Checker._names,
    "dependentRequired": _Checker._dependent,
    "dependentSchemas": _Checker._dependent,
    "dependencies": _Checker._dependent,
    "items": _Checker._items,
    "prefixItems": _Checker._prefix,
    "uniqueItems": _Checker._unique,
    "contains": _Checker._contains,
    "allOf": _Checker._all,
    "anyOf": _Checker._any,
    "oneOf": _Checker._one,
    "not": _Checker._not,
    "if": _Checker._if,
    "pattern": _Checker._pattern,
    "format": _Checker._format,
}

_FORMATS: dict[str, Callable[[str], object]] = {
    "date": _check_date,
    "date-time": parse_moment,
    "time": parse_time,
}


def _is_multiple(value: float, step: float) -> bool:
    if step <= 0:
        raise ValueError(f"the schema has 'multipleOf': {step}, which must be greater than 0")
    if isinstance(value, int) and isinstance(step, int):
        return value % step == 0
    from fractions import Fraction  # Late: it costs some ms.

    try:
        return Fraction(str(value)) % Fraction(str(step)) == 0
    except ValueError:  # JSON's numbers have no end; infinity and NaN are some that Python reads.
        return False


# What is measured, how it is compared, and the words for it.
_LIMITS: dict[str, tuple[Any, Callable[[Any, Any], bool], str]] = {
    "minimum": ((int, float), operator.ge, "at least"),
    "maximum": ((int, float), operator.le, "at most"),
    "exclusiveMinimum": ((int, float), operator.gt, "more than"),
    "exclusiveMaximum": ((int, float), operator.lt, "less than"),
    "multipleOf": ((int, float), _is_multiple, "a multiple of"),
    "minLength": (str, operator.ge, "length at least"),
    "maxLength": (str, operator.le, "length at most"),
    "minItems": (list, operator.ge, "a number of items of at least"),
    "maxItems": (list, operator.le, "a number of items of at most"),
    "minProperties": (dict, operator.ge, "a number of properties of at least"),
    "maxProperties": (dict, operator.le, "a number of properties of at most"),
}


def _limit_fault(keyword: str, limit: Any, value: Any, path: str, schema: Any) -> Iterator[ValidationError]:
    kind, holds, words = _LIMITS[keyword]
    if isinstance(limit, bool):  # In draft 4 and OpenAPI 3.0 it says how `minimum` or `maximum` is meant.
        limit = schema.get(keyword[len("exclusive") :].lower()) if limit else None
    if limit is not None and isinstance(value, kind) and not isinstance(value, bool):
        measure = value if isinstance(value, (int, float)) else len(value)
        if not holds(measure, limit):
            yield ValidationError(path, f"expected {words} {limit}, got {show(value)}")


def _is_type(value: Any, name: str) -> bool:
    """JSON's types: true is no number, 3.0 is an integer."""
    own = TYPE_NAMES.get(type(value), "")
    if name == "integer":
        return own == "integer" or (isinstance(value, float) and value.is_integer())
    return name == own or (name == "number" and own == "integer")


def is_same(one: Any, other: Any) -> bool:
    """Equal as JSON: in Python 1 == True."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_same(one[name], other[name]) for name in one)
    return bool(one == other)


def member_path(path: str, name: str) -> str:
    return f"{path}.{name}" if name.isidentifier() else f"{path}[{json.dumps(name)}]"


def show(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "..."
