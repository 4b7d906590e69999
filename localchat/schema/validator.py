"""Validate a JSON value against a JSON Schema: the path and the text of each error. No I/O.

Supported are the keywords of draft 2020-12 except unevaluatedProperties, unevaluatedItems and references by anchors or
identifiers, and the formats of dates and times. Of older drafts and OpenAPI 3.0, their notations of tuples, exclusive
bounds, dependencies and null are supported. All other keywords and formats are ignored.
"""

from __future__ import annotations

import datetime
import functools
import json
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Union
from urllib.parse import unquote

from ..texts import cut

Json = dict[str, Any]

_SHOWN_CHARS = 80
_SHOWN_OPTIONS = 20

# These tokens of patterns have another notation in Python. `_TOKEN` finds them, and skips escapes and character sets.
_IN_PYTHON = {"$": r"\Z", "(?<": "(?P<"}
_TOKEN = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|\(\?<(?![=!])|\$", re.DOTALL)

TYPE_NAMES = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array", dict: "object"}
TYPE_NAMES[type(None)] = "null"


class ValidationError(NamedTuple):
    """The path of a value that is not valid, and the reason."""

    path: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}: {self.text}"


Path = tuple[Union[str, int], ...]  # The names and the indexes that lead to a value.


class _Error(NamedTuple):
    """A ValidationError whose path is not a text yet."""

    path: Path
    text: str


_Errors = Iterator[_Error]

_CONSTANTS = frozenset({"const", "enum"})


def validation_errors(value: Any, schema: Any) -> Iterator[ValidationError]:
    """The errors of a parsed JSON value. Raises ValueError if the schema itself is not valid."""
    for error in _Validator(schema).check(value, schema, ()):
        yield ValidationError(functools.reduce(_extended, error.path, "$"), error.text)


_TIME = r"(\d\d:\d\d:\d\d)(?:\.(\d+))?(?:([zZ])|([+-]\d\d:\d\d))?"


def parse_moment(text: str) -> datetime.datetime:
    """Parse a date-time of RFC 3339, whose offset may be missing. Raises ValueError for another notation."""
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
    """Validates values against the parts of one schema.

    The table `_RULES`, below the class, has a method for each keyword. It gets the value to validate, the value of the
    keyword, the path of the value to validate, and the schema with the keyword.
    """

    def __init__(self, root: Any) -> None:
        self._root = root
        # The keys of the options of each `enum`, and the options as a text, by its identity: both take long to make.
        self._options: dict[int, tuple[set[Any], str]] = {}
        # The errors of values against the alternatives of `anyOf` and `oneOf`, by the identities of both and the path.
        # Alternatives that contain one another would otherwise be checked again at every level. The value and the
        # schema live as long as the validator.
        self._errors: dict[tuple[int, int, Path], list[_Error]] = {}

    def check(self, value: Any, schema: Any, path: Path) -> _Errors:
        """The errors of a value at a path, against a part of the schema."""
        if not isinstance(schema, Mapping):  # True allows every value, False none.
            if schema is False:
                yield _Error(path, "not allowed")
            return
        for keyword, keyword_value in schema.items():
            value_type, rule = _RULES.get(keyword, (object, None))
            if rule is not None and isinstance(value, value_type):
                try:
                    yield from rule(self, value, keyword_value, path, schema)
                except _InvalidPattern as error:
                    yield _Error(path, f"cannot be checked, since Python cannot read the pattern {error}")
            elif keyword in _BOUNDS:
                yield from _bound_errors(keyword, keyword_value, value, path, schema)

    def _allows(self, value: Any, schema: Any, path: Path) -> bool:
        return not any(self.check(value, schema, path))

    def _reference(self, value: Any, reference: str, path: Path, schema: Any) -> _Errors:
        yield from self.check(value, resolve(self._root, reference), path)

    def _type(self, value: Any, type_names: Any, path: Path, schema: Any) -> _Errors:
        names = [type_names] if isinstance(type_names, str) else type_names
        if not any(_is_type(value, name) for name in names) and not (value is None and schema.get("nullable") is True):
            yield _Error(path, f"expected {' or '.join(names)}, got {show(value)}")

    def _enum(self, value: Any, options: Any, path: Path, schema: Any) -> _Errors:
        if id(options) not in self._options:
            others = f" or {len(options) - _SHOWN_OPTIONS} others" if len(options) > _SHOWN_OPTIONS else ""
            shown = ", ".join(map(show, options[:_SHOWN_OPTIONS])) + others
            self._options[id(options)] = set(map(key_of, options)), shown
        keys, shown = self._options[id(options)]
        if key_of(value) not in keys:
            yield _Error(path, f"expected one of {shown}, got {show(value)}")

    def _const(self, value: Any, constant: Any, path: Path, schema: Any) -> _Errors:
        if key_of(value) != key_of(constant):
            yield _Error(path, f"expected {show(constant)}, got {show(value)}")

    def _properties(self, value: Json, subschemas: Any, path: Path, schema: Any) -> _Errors:
        for name, subschema in subschemas.items():
            if name in value:
                yield from self.check(value[name], subschema, (*path, name))

    def _required(self, value: Json, names: Any, path: Path, schema: Any) -> _Errors:
        yield from (_Error((*path, name), "missing") for name in names if name not in value)

    def _additional_properties(self, value: Json, subschema: Any, path: Path, schema: Any) -> _Errors:
        patterns = schema.get("patternProperties", ())
        for name in (name for name in value if name not in schema.get("properties", {})):
            if not any(_matches(pattern, name) for pattern in patterns):
                yield from self.check(value[name], subschema, (*path, name))

    def _pattern_properties(self, value: Json, subschemas: Any, path: Path, schema: Any) -> _Errors:
        for pattern, subschema in subschemas.items():
            for name in filter(lambda name: _matches(pattern, name), value):
                yield from self.check(value[name], subschema, (*path, name))

    def _property_names(self, value: Json, subschema: Any, path: Path, schema: Any) -> _Errors:
        for name in value:
            yield from self.check(name, subschema, (*path, name))

    def _dependent(self, value: Json, dependencies: Any, path: Path, schema: Any) -> _Errors:
        for name, needed in dependencies.items():
            if name in value:
                yield from self.check(value, {"required": needed} if isinstance(needed, list) else needed, path)

    def _items(self, value: list[Any], subschema: Any, path: Path, schema: Any) -> _Errors:
        n_before = len(schema.get("prefixItems", ()))
        if isinstance(subschema, list):  # A tuple in older drafts.
            yield from self._prefix_items(value, subschema, path, schema)
            n_before, subschema = len(subschema), schema.get("additionalItems", True)
        for i, item in enumerate(value[n_before:], n_before):
            yield from self.check(item, subschema, (*path, i))

    def _prefix_items(self, value: list[Any], subschemas: Any, path: Path, schema: Any) -> _Errors:
        for i, (subschema, item) in enumerate(zip(subschemas, value)):
            yield from self.check(item, subschema, (*path, i))

    def _contains(self, value: list[Any], subschema: Any, path: Path, schema: Any) -> _Errors:
        n_allowed = sum(self._allows(item, subschema, path) for item in value)
        least, most = schema.get("minContains", 1), schema.get("maxContains", n_allowed)
        if not least <= n_allowed <= most:
            words = f"expected {f'at least {least}' if n_allowed < least else f'at most {most}'} items"
            yield _Error(path, f"{words} that 'contains' allows, got {n_allowed} in {show(value)}")

    def _unique(self, value: list[Any], is_unique: Any, path: Path, schema: Any) -> _Errors:
        earlier = set()
        for i, item in enumerate(value if is_unique else ()):
            key = key_of(item)
            if key in earlier:
                yield _Error((*path, i), f"duplicate of an earlier item: {show(item)}")
            earlier.add(key)

    def _all_of(self, value: Any, subschemas: Any, path: Path, schema: Any) -> _Errors:
        for subschema in subschemas:
            yield from self.check(value, subschema, path)

    def _alternative(self, value: Any, subschema: Any, path: Path) -> list[_Error]:
        """The errors of a value against an alternative."""
        key = id(value), id(subschema), path
        if key not in self._errors:
            self._errors[key] = list(self.check(value, subschema, path))
        return self._errors[key]

    def _any_of(self, value: Any, subschemas: Any, path: Path, schema: Any) -> _Errors:
        errors = []
        for subschema in subschemas:
            errors.append(self._alternative(value, subschema, path))
            if not errors[-1]:
                return
        yield from self._no_match(subschemas, errors, path)

    def _no_match(self, subschemas: list[Any], errors: list[list[_Error]], path: Path) -> _Errors:
        """Report the errors of the subschema that comes closest, or else the first error of each subschema.

        Only subschemas come close that allow the value but for something in it. If all of these have a tag, such as
        `kind`, it decides; then the one whose first error is deepest; then the one with the fewest errors. The value
        {"kind": "dog", "age": "x"} is reported as a dog with a wrong age, and not as a cat of a wrong kind.
        """
        close = [pair for pair in zip(subschemas, errors) if pair[1][0].path != path]
        if not close:
            texts = dict.fromkeys(of_subschema[0].text for of_subschema in errors)
            yield _Error(path, "; or ".join(texts) or "nothing is allowed")
            return
        names = set.intersection(*(self._tags_of(subschema) for subschema, _ in close))
        tags = {(*path, name) for name in names}
        closest = [of_subschema for _, of_subschema in close if tags.isdisjoint(error.path for error in of_subschema)]
        candidates = closest or [of_subschema for _, of_subschema in close]
        yield from max(candidates, key=lambda of_subschema: (len(of_subschema[0].path), -len(of_subschema)))

    def _tags_of(self, schema: Any) -> set[str]:
        """The names of the properties of an object that have one value, or one of several."""
        while isinstance(schema, Mapping) and "$ref" in schema:
            schema = resolve(self._root, schema["$ref"])
        properties = schema.get("properties", {}) if isinstance(schema, Mapping) else {}
        return {name for name, part in properties.items() if isinstance(part, Mapping) and part.keys() & _CONSTANTS}

    def _one_of(self, value: Any, subschemas: Any, path: Path, schema: Any) -> _Errors:
        errors = [self._alternative(value, subschema, path) for subschema in subschemas]
        n_matching = sum(not of_subschema for of_subschema in errors)
        if n_matching == 0:
            yield from self._no_match(subschemas, errors, path)
        elif n_matching > 1:
            yield _Error(path, f"{show(value)} matches {n_matching} schemas of 'oneOf' instead of one")

    def _not(self, value: Any, subschema: Any, path: Path, schema: Any) -> _Errors:
        if self._allows(value, subschema, path):
            yield _Error(path, f"{show(value)} is not allowed")

    def _if(self, value: Any, condition: Any, path: Path, schema: Any) -> _Errors:
        branch = "then" if self._allows(value, condition, path) else "else"
        yield from self.check(value, schema.get(branch, True), path)

    def _pattern(self, value: str, pattern: Any, path: Path, schema: Any) -> _Errors:
        if not _matches(pattern, value):
            yield _Error(path, f"expected text that matches the pattern {pattern}, got {show(value)}")

    def _format(self, value: str, format_name: Any, path: Path, schema: Any) -> _Errors:
        try:
            _FORMATS.get(str(format_name), str)(value)
        except ValueError:
            yield _Error(path, f"expected a {format_name}, got {show(value)}")


def can_read_pattern(pattern: object) -> bool:
    """Whether Python can read a pattern. Those of JSON Schema are of JavaScript, which also has \\p{L}, for example."""
    try:
        _matches(str(pattern), "")
    except _InvalidPattern:
        return False
    return True


class _InvalidPattern(Exception):
    """A pattern that is not valid in Python."""


def _matches(pattern: str, text: str) -> bool:
    try:
        in_python = _TOKEN.sub(lambda token: _IN_PYTHON.get(token[0], token[0]), pattern)
        return re.search(in_python, text, re.ASCII) is not None
    except (re.error, ValueError, OverflowError) as error:  # ValueError: incompatible flags. OverflowError: repeats.
        raise _InvalidPattern(f"{pattern}: {error}") from error


# For each keyword, the type of the values that it is for, and its method.
_RULES: dict[str, tuple[type, Callable[[_Validator, Any, Any, Path, Any], _Errors]]] = {
    "$ref": (object, _Validator._reference),
    "type": (object, _Validator._type),
    "enum": (object, _Validator._enum),
    "const": (object, _Validator._const),
    "required": (dict, _Validator._required),
    "properties": (dict, _Validator._properties),
    "additionalProperties": (dict, _Validator._additional_properties),
    "patternProperties": (dict, _Validator._pattern_properties),
    "propertyNames": (dict, _Validator._property_names),
    **dict.fromkeys(("dependentRequired", "dependentSchemas", "dependencies"), (dict, _Validator._dependent)),
    "items": (list, _Validator._items),
    "prefixItems": (list, _Validator._prefix_items),
    "uniqueItems": (list, _Validator._unique),
    "contains": (list, _Validator._contains),
    "allOf": (object, _Validator._all_of),
    "anyOf": (object, _Validator._any_of),
    "oneOf": (object, _Validator._one_of),
    "not": (object, _Validator._not),
    "if": (object, _Validator._if),
    "pattern": (str, _Validator._pattern),
    "format": (str, _Validator._format),
}

_FORMATS: dict[str, Callable[[str], object]] = {"date": _check_date, "date-time": parse_moment, "time": parse_time}


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
_BOUNDS: dict[str, tuple[Any, Callable[[Any, Any], bool], str]] = {
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


def _bound_errors(keyword: str, limit: Any, value: Any, path: Path, schema: Any) -> _Errors:
    types, is_within, words = _BOUNDS[keyword]
    if isinstance(limit, bool):  # In draft 4 and OpenAPI 3.0, it makes the bound `minimum` or `maximum` exclusive.
        limit = schema.get(keyword[len("exclusive") :].lower()) if limit else None
    if limit is not None and isinstance(value, types) and not isinstance(value, bool):
        measure = value if isinstance(value, (int, float)) else len(value)
        if not is_within(measure, limit):
            yield _Error(path, f"expected {words} {limit}, got {show(value)}")


def is_of_type(value: Any, schema: Any) -> bool:
    """Whether a value has the type that a schema names, if it names one. All else in the schema is ignored."""
    name = schema.get("type")
    return not isinstance(name, str) or _is_type(value, name)


def _is_type(value: Any, name: str) -> bool:
    """Whether a value has a type of JSON Schema, in which true is not a number and 3.0 is an integer."""
    type_name = TYPE_NAMES.get(type(value), "")
    if isinstance(value, float) and not math.isfinite(value):
        return False  # Python reads 1e999 as infinity, and cannot write it as JSON.
    if name == "integer":
        return type_name == "integer" or (isinstance(value, float) and value.is_integer())
    return name == type_name or (name == "number" and type_name == "integer")


def key_of(value: Any) -> Any:
    """A hashable key of a JSON value: two values are equal in JSON if their keys are. In Python, 1 == True."""
    if isinstance(value, bool):
        return ("boolean", value)
    if isinstance(value, (list, tuple)):
        return ("array", *map(key_of, value))
    if isinstance(value, Mapping):
        return frozenset((name, key_of(item)) for name, item in value.items())
    return value


def resolve(root: Any, reference: str) -> Any:
    """The part of a schema that a JSON pointer names. Raises ValueError if there is none."""
    base, _, pointer = reference.partition("#")
    target = root
    try:
        if base or (pointer and not pointer.startswith("/")):
            raise LookupError(reference)
        for step in unquote(pointer).split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            target = target[int(step) if isinstance(target, list) else step]
    except (LookupError, TypeError, ValueError):
        raise ValueError(f"the schema refers to {reference!r}, which it does not have") from None
    return target


def _extended(path: str, step: str | int) -> str:
    return field_path(path, step) if isinstance(step, str) else f"{path}[{step}]"


def field_path(path: str, name: str) -> str:
    return f"{path}.{name}" if name.isidentifier() else f"{path}[{json.dumps(name)}]"


def show(value: Any) -> str:
    """The beginning of a value as JSON, for an error."""
    return cut(json.dumps(value, ensure_ascii=False, default=repr), _SHOWN_CHARS)
