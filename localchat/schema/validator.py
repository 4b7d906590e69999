"""Validate a JSON value against a JSON Schema: the path and the text of each error. No I/O.

Supported are the keywords of draft 2020-12 except unevaluatedProperties, unevaluatedItems and dynamic references, and
the formats of dates and times. Of older drafts and OpenAPI 3.0, their notations of tuples, exclusive bounds,
dependencies and null are supported. All other keywords and formats are ignored.
"""

from __future__ import annotations

import datetime
import json
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

_SHOWN_CHARS = 80

# JSON Schema has the patterns of ECMA-262. These tokens have another notation, or another meaning, in Python; `_TOKEN`
# finds them. Of a character set, only the escapes are converted.
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
    """The path of a value that is not valid, and the reason."""

    path: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}: {self.text}"


def validation_errors(value: Any, schema: Any) -> Iterator[ValidationError]:
    """The errors of a parsed JSON value.

    Raises:
        ValueError: The schema itself is not valid.
    """
    return _Validator(schema).check(value, schema, "$")


_TIME = r"(\d\d:\d\d:\d\d)(?:\.(\d+))?(?:([zZ])|([+-]\d\d:\d\d))?"


def parse_moment(text: str) -> datetime.datetime:
    """Parse a date-time of RFC 3339, whose offset may be missing.

    Raises:
        ValueError: The text has another notation, some of which Python reads from 3.11 on.
    """
    return datetime.datetime.fromisoformat(_for_python(r"(\d{4}-\d\d-\d\d[tT ])", text))


def parse_time(text: str) -> datetime.time:
    """Parse a time of RFC 3339; see `parse_moment`."""
    return datetime.time.fromisoformat(_for_python("()", text))


def _for_python(date: str, text: str) -> str:
    """The text in the notation of Python 3.9, which has six digits of a second and no Z."""
    match = re.fullmatch(date + _TIME, text, re.ASCII)
    if match is None:
        raise ValueError(text)
    day, time, fraction, is_utc, offset = match.groups()
    return f"{day}{time}.{(fraction or '')[:6]:0<6}{'+00:00' if is_utc else offset or ''}"


def _check_date(text: str) -> None:
    """Raise ValueError for a text that is not YYYY-MM-DD. Python 3.11 and later also read other forms of ISO 8601."""
    if datetime.date.fromisoformat(text).isoformat() != text:
        raise ValueError(text)


class _Validator:
    """Validates values against a schema and its parts.

    Each keyword has a method, which gets the value of the keyword as `limit`, and the schema that has the keyword.
    """

    def __init__(self, root: Any) -> None:
        self._root = root

    def check(self, value: Any, schema: Any, path: str) -> Iterator[ValidationError]:
        if not isinstance(schema, Mapping):  # True allows every value, False none.
            if schema is False:
                yield ValidationError(path, "not allowed")
            return
        for keyword, limit in schema.items():
            rule = _RULES.get(keyword)
            if rule is not None:
                try:
                    yield from rule(self, limit, value, path, schema)
                except _InvalidPattern as error:
                    yield ValidationError(path, f"cannot be checked, since Python cannot read the pattern {error}")
            elif keyword in _LIMITS:
                yield from _bound_errors(keyword, limit, value, path, schema)

    def _reference(self, limit: str, value: Any, path: str, schema: Any) -> Iterator[ValidationError]:
        yield from self.check(value, self._find(limit), path)

    def _find(self, reference: str) -> Any:
        """The schema to which a reference points, by a JSON pointer or an anchor."""
        base, _, fragment = reference.partition("#")
        fragment = unquote(fragment)
        try:
            if base and base != self._root["$id"].rstrip("#"):
                raise LookupError(base)
            if fragment and not fragment.startswith("/"):
                return next(part for part in _subschemas(self._root) if part.get("$anchor") == fragment)
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
                    yield from self.check(value[name], part, field_path(path, name))

    def _required(self, limit: Any, value: Any, path: str, schema: Any) -> Iterator[ValidationError]:
        if isinstance(value, dict):
            yield from (ValidationError(field_path(path, name), "missing") for name in limit if name not in value)

    def _additional_properties(self, limit: Any, value: Any, path: str, schema: Any) -> Iterator[ValidationError]:
        if isinstance(value, dict):
            patterns = schema.get("patternProperties", ())
            for name in (name for name in value if name not in schema.get("properties", {})):
                if not any(_matches(pattern, name) for pattern in patterns):
                    yield from self.check(value[name], limit, field_path(path, name))

    def _pattern_properties(self, limit: Any, value: Any, path: str, schema: Any) -> Iterator[ValidationError]:
        if isinstance(value, dict):
            for pattern, part in limit.items():
                for name in filter(lambda name: _matches(pattern, name), value):
                    yield from self.check(value[name], part, field_path(path, name))

    def _property_names(self, limit: Any, value: Any, path: str, schema: Any) -> Iterator[ValidationError]:
        if isinstance(value, dict):
            for name in value:
                yield from self.check(name, limit, field_path(path, name))

    def _dependent(self, limit: Any, value: Any, path: str, schema: Any) -> Iterator[ValidationError]:
        if isinstance(value, dict):
            for name, needed in limit.items():
                if name in value:
                    yield from self.check(value, {"required": needed} if isinstance(needed, list) else needed, path)

    def _items(self, limit: Any, value: Any, path: str, schema: Any) -> Iterator[ValidationError]:
        if isinstance(limit, list):  # A tuple in older drafts.
            yield from self._prefix_items(limit, value, path, schema)
            yield from self._items_from(len(limit), schema.get("additionalItems", True), value, path)
        else:
            yield from self._items_from(len(schema.get("prefixItems", ())), limit, value, path)

    def _items_from(self, first: int, limit: Any, value: Any, path: str) -> Iterator[ValidationError]:
        if isinstance(value, list):
            for i, item in enumerate(value[first:], first):
                yield from self.check(item, limit, f"{path}[{i}]")

    def _contains(self, limit: Any, value: Any, path: str, schema: Any) -> Iterator[ValidationError]:
        if isinstance(value, list):
            found = sum(not any(self.check(item, limit, path)) for item in value)
            least, most = schema.get("minContains", 1), schema.get("maxContains", found)
            if not least <= found <= most:
                words = f"at least {least}" if found < least else f"at most {most}"
                yield ValidationError(
                    path, f"expected {words} items that 'contains' allows, got {found} in {show(value)}"
                )

    def _prefix_items(self, limit: Any, value: Any, path: str, schema: Any) -> Iterator[ValidationError]:
        if isinstance(value, list):
            for i, (part, item) in enumerate(zip(limit, value)):
                yield from self.check(item, part, f"{path}[{i}]")

    def _unique(self, limit: Any, value: Any, path: str, schema: Any) -> Iterator[ValidationError]:
        if limit and isinstance(value, list):
            for i, item in enumerate(value):
                if any(is_same(item, other) for other in value[:i]):
                    yield ValidationError(f"{path}[{i}]", f"duplicate of an earlier item: {show(item)}")

    def _all_of(self, limit: Any, value: Any, path: str, schema: Any) -> Iterator[ValidationError]:
        for part in limit:
            yield from self.check(value, part, path)

    def _any_of(self, limit: Any, value: Any, path: str, schema: Any) -> Iterator[ValidationError]:
        """If no option matches, report the errors of the option whose first error is deepest in the value.

        If all first errors are at the value itself, report the first error of every option.
        """
        options = [list(self.check(value, part, path)) for part in limit]
        if not all(options):
            return
        deepest = max(options, key=lambda errors: len(errors[0].path), default=[])
        if deepest and deepest[0].path != path:
            yield from deepest
        else:
            texts = dict.fromkeys(errors[0].text for errors in options)
            yield ValidationError(path, "; or ".join(texts) or "nothing is allowed")

    def _one_of(self, limit: Any, value: Any, path: str, schema: Any) -> Iterator[ValidationError]:
        n_matching = sum(not any(self.check(value, part, path)) for part in limit)
        if n_matching == 0:
            yield from self._any_of(limit, value, path, schema)
        elif n_matching > 1:
            yield ValidationError(path, f"{show(value)} matches {n_matching} schemas of 'oneOf' instead of one")

    def _not(self, limit: Any, value: Any, path: str, schema: Any) -> Iterator[ValidationError]:
        if not any(self.check(value, limit, path)):
            yield ValidationError(path, f"{show(value)} is not allowed")

    def _if(self, limit: Any, value: Any, path: str, schema: Any) -> Iterator[ValidationError]:
        branch = "else" if any(self.check(value, limit, path)) else "then"
        yield from self.check(value, schema.get(branch, True), path)

    def _pattern(self, limit: Any, value: Any, path: str, schema: Any) -> Iterator[ValidationError]:
        if isinstance(value, str) and not _matches(limit, value):
            yield ValidationError(path, f"expected text that matches the pattern {limit}, got {show(value)}")

    def _format(self, limit: Any, value: Any, path: str, schema: Any) -> Iterator[ValidationError]:
        if isinstance(value, str) and limit in _FORMATS:
            try:
                _FORMATS[limit](value)
            except ValueError:
                yield ValidationError(path, f"expected a {limit}, got {show(value)}")


class _InvalidPattern(Exception):
    """A pattern that is not valid in Python."""


def _matches(pattern: str, text: str) -> bool:
    try:
        return re.search(_TOKEN.sub(_in_python, pattern), text, re.ASCII) is not None
    except (re.error, ValueError, OverflowError) as error:  # ValueError: incompatible flags. OverflowError: repeats.
        raise _InvalidPattern(f"{pattern}: {error}") from error


def _in_python(token: re.Match[str]) -> str:
    """A token of a pattern in the notation of Python."""
    if token[0].startswith("["):
        return _ESCAPE.sub(lambda escape: _SPACE if escape[0] == r"\s" else _unescaped(escape[0]), token[0])
    return _IN_PYTHON.get(token[0]) or _unescaped(token[0])


def _unescaped(text: str) -> str:
    """The character of an escape that Python does not have. Other escapes are returned unchanged."""
    if text.startswith(r"\c") and len(text) == 3:
        return re.escape(chr(ord(text[2]) % 32))
    if text.startswith(r"\u{"):
        return re.escape(chr(int(text[3:-1], 16)))
    if text.startswith(r"\u") and len(text) == 12:
        return re.escape(chr(0x10000 + ((int(text[2:6], 16) - 0xD800) << 10) + int(text[8:], 16) - 0xDC00))
    return text


def _subschemas(schema: Any) -> Iterator[Mapping[str, Any]]:
    """All objects in a schema, outer ones before inner ones."""
    if isinstance(schema, Mapping):
        yield schema
    inner = schema.values() if isinstance(schema, Mapping) else schema if isinstance(schema, list) else ()
    for part in inner:
        yield from _subschemas(part)


_RULES: dict[str, Callable[[_Validator, Any, Any, str, Any], Iterator[ValidationError]]] = {
    "$ref": _Validator._reference,
    "type": _Validator._type,
    "enum": _Validator._enum,
    "const": _Validator._const,
    "required": _Validator._required,
    "properties": _Validator._properties,
    "additionalProperties": _Validator._additional_properties,
    "patternProperties": _Validator._pattern_properties,
    "propertyNames": _Validator._property_names,
    "dependentRequired": _Validator._dependent,
    "dependentSchemas": _Validator._dependent,
    "dependencies": _Validator._dependent,
    "items": _Validator._items,
    "prefixItems": _Validator._prefix_items,
    "uniqueItems": _Validator._unique,
    "contains": _Validator._contains,
    "allOf": _Validator._all_of,
    "anyOf": _Validator._any_of,
    "oneOf": _Validator._one_of,
    "not": _Validator._not,
    "if": _Validator._if,
    "pattern": _Validator._pattern,
    "format": _Validator._format,
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
    from fractions import Fraction  # Imported here: the import takes some ms.

    try:
        return Fraction(str(value)) % Fraction(str(step)) == 0
    except ValueError:  # Infinity or NaN: Python also reads 1e999 as infinity.
        return False


# The keywords with a bound: the types that have one, the comparison, and the words of the error.
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


def _bound_errors(keyword: str, limit: Any, value: Any, path: str, schema: Any) -> Iterator[ValidationError]:
    types, is_within, words = _LIMITS[keyword]
    if isinstance(limit, bool):  # In draft 4 and OpenAPI 3.0, it makes the bound `minimum` or `maximum` exclusive.
        limit = schema.get(keyword[len("exclusive") :].lower()) if limit else None
    if limit is not None and isinstance(value, types) and not isinstance(value, bool):
        measure = value if isinstance(value, (int, float)) else len(value)
        if not is_within(measure, limit):
            yield ValidationError(path, f"expected {words} {limit}, got {show(value)}")


def _is_type(value: Any, name: str) -> bool:
    """Whether a value has a type of JSON Schema, in which true is not a number and 3.0 is an integer."""
    own = TYPE_NAMES.get(type(value), "")
    if isinstance(value, float) and not math.isfinite(value):
        return False  # Python reads 1e999 as infinity, and cannot write it as JSON.
    if name == "integer":
        return own == "integer" or (isinstance(value, float) and value.is_integer())
    return name == own or (name == "number" and own == "integer")


def is_same(one: Any, other: Any) -> bool:
    """Whether two values are equal in JSON. In Python, 1 == True."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_same(one[name], other[name]) for name in one)
    return bool(one == other)


def field_path(path: str, name: str) -> str:
    return f"{path}.{name}" if name.isidentifier() else f"{path}[{json.dumps(name)}]"


def show(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "..."
