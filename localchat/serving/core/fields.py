"""Parses and validates the fields of JSON request bodies, for all interfaces.

A field whose value is null counts as absent. A field of the wrong type or range raises BadRequest; the message names
the path of the field, the expected value and the given one.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NoReturn, TypeVar

from .errors import BadRequest, field_error
from .media import Attachment, marker
from .text import decode_json, to_json

_SHOWN_CHARS = 60  # Error messages show this many characters of a value, so that no message repeats a whole prompt.

# The limit of characters in a schema, grammar or list of tools: six times the tools of a hundred MCP servers.
# llguidance compiles all of it in one call, which cannot be interrupted.
MAX_CONSTRAINT_CHARS = 1 << 20

MAX_DEPTH = 200  # The limit of nesting in a body: above any real request, and well below Python's recursion limit.

T = TypeVar("T")
N = TypeVar("N", int, float)

_ENCODER_OF_ERRORS = json.JSONEncoder(ensure_ascii=False, default=str)

_INDEX = re.compile(r"\[\d+\]")  # The index of a list in the path of a field.

# The escape of half a surrogate pair. A body that is valid UTF-8 can contain a lone surrogate only in this form.
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")


def parse_body(raw: bytes) -> Fields:
    """Decode the JSON object of a body. A lone surrogate, which clients send if they cut a pair, becomes U+FFFD."""
    try:
        value = decode_json(raw.removeprefix(codecs.BOM_UTF8).decode())
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors.
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise BadRequest(f"the body must be a JSON object in UTF-8: {reason}", "body") from error
    # Counting brackets is cheap, and most bodies have too few to be nested too deeply.
    if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH and _is_deep(value):
        raise BadRequest(f"the body must be a JSON object of at most {MAX_DEPTH} levels, got more", "body")
    if _SURROGATE_ESCAPE.search(raw):
        text = to_json(value)  # Half of a pair is now a character of its own.
        value = decode_json(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
    if not isinstance(value, dict):
        raise BadRequest(f"the body must be a JSON object, got {show(value)}", "body")
    return Fields(value)


def show(value: object) -> str:
    """Format a value as JSON for an error message, cut to a readable length."""
    text = ""
    for piece in _ENCODER_OF_ERRORS.iterencode(value):  # Stops early, so that a large value is not encoded completely.
        text += piece
        if len(text) > _SHOWN_CHARS:
            return text[:_SHOWN_CHARS] + "..."
    return text


class Fields:
    """The fields of one JSON object, read by name and type.

    `path` is the name of the object in error messages, such as "messages[2]"; empty for the body itself. If a field is
    absent, the method that reads it returns None, or an empty list or object. The methods `required_...` and
    `nonempty_text` refuse that.
    """

    def __init__(self, raw: Mapping[str, Any], path: str = "", parent: Fields | None = None) -> None:
        self.raw = raw
        self.path = path
        self._read: set[str] = set()  # The names of fields that have been read. Other fields are unknown.
        # What the parser ignored, with the error for `--strict`. All objects of a body share this list and the next.
        self._ignored: list[tuple[str, BadRequest]] = [] if parent is None else parent._ignored
        # The images and sounds that were found. Markers stand for them in the texts of messages.
        self.attachments: list[Attachment] = [] if parent is None else parent.attachments

    def at(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name

    def refuse(self, name: str, expected: str) -> NoReturn:
        """Raise BadRequest for the value of a field that must be `expected`, such as "a string"."""
        got = show(self.raw[name]) if name in self.raw else "nothing"
        raise field_error(self.at(name), f"must be {expected}, got {got}")

    def get(self, name: str) -> Any:
        self._read.add(name)
        return self.raw.get(name)

    def number(self, name: str, low: float | None = None, high: float | None = None) -> float | None:
        return self._number(name, float, low, high)

    def integer(self, name: str, low: float | None = None, high: float | None = None) -> int | None:
        """An integer. 16.0 is accepted, since some languages have only floats."""
        return self._number(name, int, low, high)

    def _number(self, name: str, kind: type[N], low: float | None, high: float | None) -> N | None:
        value = self.get(name)
        if value is None:
            return None
        is_kind = type(value) in (int, float) and (kind is float or value % 1 == 0)
        if not is_kind or (low is not None and value < low) or (high is not None and value > high):
            of = f" from {low} to {high}" if high is not None else f" of at least {low}" if low is not None else ""
            self.refuse(name, ("an integer" if kind is int else "a number") + of)
        return kind(value)

    def _of_type(self, name: str, kind: type[T], expected: str) -> T | None:
        value = self.get(name)
        if value is not None and not isinstance(value, kind):
            self.refuse(name, expected)
        return value

    def boolean(self, name: str) -> bool | None:
        return self._of_type(name, bool, "true or false")

    def text(self, name: str) -> str | None:
        return self._of_type(name, str, "a string")

    def nonempty_text(self, name: str) -> str:
        return self.text(name) or self.refuse(name, "a string that is not empty")

    def required_text(self, name: str, expected: str = "a string") -> str:
        """A string, which may be empty. An absent field is refused, like null."""
        text = self.text(name)
        return self.refuse(name, expected) if text is None else text

    def choice(self, name: str, values: Collection[str]) -> str | None:
        value = self.get(name)
        return None if value is None else self.required_choice(name, values)

    def required_choice(self, name: str, values: Collection[str]) -> str:
        value = self.get(name)
        if not isinstance(value, str) or value not in values:
            self.refuse(name, "one of " + ", ".join(f'"{v}"' for v in values))
        return value

    def items(self, name: str, of: str) -> list[Any]:
        """A list whose items are not validated. `of` names the items in the error message, in the plural."""
        return self._of_type(name, list, f"a list of {of}") or []

    def object(self, name: str) -> Fields | None:
        value = self._of_type(name, dict, "an object")
        return None if value is None else self.child(value, self.at(name))

    def required_object(self, name: str) -> Fields:
        return self.object(name) or self.refuse(name, "an object")

    def object_or_empty(self, name: str) -> Fields:
        return self.object(name) or self.child({}, self.at(name))

    def objects(self, name: str) -> Iterator[Fields]:
        for i, value in enumerate(self.items(name, "objects")):
            path = f"{self.at(name)}[{i}]"
            if not isinstance(value, dict):
                raise field_error(path, f"must be an object, got {show(value)}")
            yield self.child(value, path)

    def child(self, raw: Mapping[str, Any], path: str) -> Fields:
        return Fields(raw, path, self)

    def attach(self, attachment: Attachment) -> str:
        """Note an image or a sound. Returns the marker that stands for it."""
        self.attachments.append(attachment)
        return marker(len(self.attachments) - 1)

    def check_size(self, name: str) -> None:
        """Refuse a schema, grammar or list of tools of more than `MAX_CONSTRAINT_CHARS` characters."""
        value = self.get(name)
        n_chars = len(value if isinstance(value, str) else to_json(value))
        if n_chars > MAX_CONSTRAINT_CHARS:
            raise field_error(self.at(name), f"has {n_chars} characters, the limit is {MAX_CONSTRAINT_CHARS}")

    def accept(self, names: Iterable[str]) -> None:
        """Count fields as read that have no effect on this server, so that `--strict` accepts them."""
        self._read.update(names)

    def skip(self) -> None:
        """Note that this object of a list is ignored, because this server does not know its `type`."""
        kind = self.raw.get("type")
        error = field_error(self.at("type"), f"is {show(kind)}, which --strict refuses")
        self._ignored.append((f"{_INDEX.sub('', self.path)} of type {kind}", error))

    def report_unknown(self) -> None:
        """Note that the fields that have not been read are ignored. For objects inside a body, this is optional."""
        for name in [name for name in self.raw if name not in self._read]:
            path = self.at(name)
            self._ignored.append((path, field_error(path, "is an unknown field, which --strict refuses")))

    def ignored(self, *, strict: bool) -> tuple[str, ...]:
        """What the parser ignored: the paths of fields, and the types of objects in lists. `strict` refuses it."""
        if strict and self._ignored:
            raise self._ignored[0][1]
        return tuple(dict.fromkeys(name for name, _ in self._ignored))


def refuse_unsupported(body: Fields, accepted: Mapping[str, tuple[Any, ...]]) -> None:
    """Refuse fields of features that the server lacks, except the `accepted` values, which do not need the feature."""
    for name, values in accepted.items():
        value = body.get(name)
        if value is not None and not any(value == other and type(value) is type(other) for other in values):
            raise field_error(body.at(name), f"is not supported by this server: leave it out (got {show(value)})")


def without_nulls(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in raw.items() if value is not None}


def first_given(values: Iterable[T | None]) -> T | None:
    """The first value that is not None, such as the value of a field that has several names."""
    return next((value for value in values if value is not None), None)


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        nested = (item.values() if isinstance(item, dict) else item for item in level)
        level = [child for children in nested for child in children if isinstance(child, (dict, list))]
        if not level:
            return False
    return True
