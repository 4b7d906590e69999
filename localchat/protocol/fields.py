"""Checked reading of a JSON body: typed members in, BadRequest with the path of what is wrong out.

Knows JSON and nothing of any API. A null member counts as absent. Every message names the path, what
was expected and what came.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NoReturn

from .errors import BadRequest

# Values in messages are cut to this: a message should not repeat a whole prompt.
_SHOWN_CHARS = 60

# A double ends at 309 digits; Python would read any number of them, slowly.
_MAX_INTEGER_DIGITS = 300

# Deeper than anything that means something, and far from where Python's own recursion ends.
MAX_DEPTH = 200

# Half of a surrogate pair can enter a string only through such an escape.
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")


def parse_body(raw: bytes) -> Members:
    """The JSON object of a request body.

    Stricter than Python's json where that accepts what is not JSON (NaN, numbers beyond a double), and
    kinder in one point: half of a surrogate pair, which clients that cut strings send, becomes U+FFFD
    as it would in UTF-8.

    Raises:
        BadRequest: The body is not one JSON object in UTF-8.
    """
    try:
        value = DECODER.decode(raw.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors.
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise BadRequest(f"the body must be a JSON object in UTF-8: {reason}", "body") from error
    # Most bodies have fewer brackets than that, strings included.
    if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH and _is_deep(value):
        raise BadRequest(f"the body must be a JSON object of at most {MAX_DEPTH} levels, and it has more", "body")
    if _SURROGATE_ESCAPE.search(raw):
        value = _mend(value)
    if not isinstance(value, dict):
        raise BadRequest(f"the body must be a JSON object, got {show(value)}", "body")
    return Members(value)


def show(value: object) -> str:
    """A value as JSON for a message, cut to a readable length."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "..."


class Members:
    """The members of one JSON object, read by name and type.

    `path` is how error messages call the object ("messages[2]"), empty for the body itself.
    """

    def __init__(self, raw: Mapping[str, Any], path: str = "") -> None:
        self.raw = raw
        self.path = path
        # Names that were asked for: what is left over is unknown (K10).
        self._asked: set[str] = set()

    def at(self, name: str) -> str:
        """The path of a member."""
        return f"{self.path}.{name}" if self.path else name

    def refuse(self, name: str, expected: str) -> NoReturn:
        """Raise the error for a member that is not what was expected."""
        path = self.at(name)
        value = self.raw.get(name)
        got = show(value) if name in self.raw else "nothing"
        raise BadRequest(f"'{path}' must be {expected}, got {got}", path)

    def get(self, name: str) -> Any:
        """The raw value, None where absent."""
        self._asked.add(name)
        return self.raw.get(name)

    def number(self, name: str, low: float | None = None, high: float | None = None) -> float | None:
        value = self.get(name)
        if value is None:
            return None
        if not _is_number(value) or not _within(value, low, high):
            self.refuse(name, "a number" + _range(low, high))
        return float(value)

    def integer(self, name: str, low: float | None = None, high: float | None = None) -> int | None:
        """A whole number; 16.0 is one too, since some languages have only floats."""
        value = self.get(name)
        if value is None:
            return None
        if not _is_number(value) or value != int(value) or not _within(value, low, high):
            self.refuse(name, "an integer" + _range(low, high))
        return int(value)

    def boolean(self, name: str) -> bool | None:
        value = self.get(name)
        if value is not None and not isinstance(value, bool):
            self.refuse(name, "true or false")
        return value

    def text(self, name: str) -> str | None:
        value = self.get(name)
        if value is not None and not isinstance(value, str):
            self.refuse(name, "a string")
        return value

    def choice(self, name: str, values: Collection[str]) -> str | None:
        value = self.get(name)
        if value is not None and (not isinstance(value, str) or value not in values):
            self.refuse(name, "one of " + ", ".join(f'"{v}"' for v in values))
        return value

    def items(self, name: str, of: str) -> list[Any]:
        """A list, empty where absent; `of` says in plural what should be in it."""
        value = self.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            self.refuse(name, f"a list of {of}")
        return value

    def integers(self, name: str, low: int) -> tuple[int, ...]:
        values = self.items(name, "integers")
        if not all(isinstance(v, int) and not isinstance(v, bool) and v >= low for v in values):
            self.refuse(name, f"a list of integers{_range(low, None)}")
        return tuple(values)

    def object(self, name: str) -> Members | None:
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.refuse(name, "an object")
        return Members(value, self.at(name))

    def objects(self, name: str) -> Iterator[Members]:
        """The members of each object in a list."""
        for i, value in enumerate(self.items(name, "objects")):
            if not isinstance(value, dict):
                path = f"{self.at(name)}[{i}]"
                raise BadRequest(f"'{path}' must be an object, got {show(value)}", path)
            yield Members(value, f"{self.at(name)}[{i}]")

    def unknown(self) -> list[str]:
        """Names in the object that nobody has asked for."""
        return [name for name in self.raw if name not in self._asked]


def unknown_members(body: Members, without_effect: Collection[str], strict: bool) -> tuple[str, ...]:
    """The names that nobody has asked for by now; with `strict` the first of them is an error (K10)."""
    unknown = tuple(name for name in body.unknown() if name not in without_effect)
    if strict and unknown:
        raise BadRequest(f"'{unknown[0]}' is not known here, and --strict refuses what is not", unknown[0])
    return unknown


def refuse_unsupported(body: Members, harmless: Mapping[str, tuple[Any, ...]]) -> None:
    """Members that mean something which is not done here: to ignore them would give an answer that looks right."""
    for name, values in harmless.items():
        value = body.get(name)
        if value is not None and not any(value == other and type(value) is type(other) for other in values):
            path = body.at(name)
            raise BadRequest(f"'{path}' is not supported by this server: leave it out (got {show(value)})", path)


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        nested = (item.values() if isinstance(item, dict) else item for item in level)
        level = [child for children in nested for child in children if isinstance(child, (dict, list))]
        if not level:
            return False
    return True


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _within(value: float, low: float | None, high: float | None) -> bool:
    return (low is None or value >= low) and (high is None or value <= high)


def _range(low: float | None, high: float | None) -> str:
    if high is None:
        return "" if low is None else f" of at least {low}"
    return f" from {low} to {high}"


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"the number {digits[:_SHOWN_CHARS]} is too large")
    return value


def _bounded(digits: str) -> int:
    if len(digits) > _MAX_INTEGER_DIGITS:
        raise ValueError(f"an integer of {len(digits)} digits is too large")
    return int(digits)


DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite, parse_int=_bounded)


def _mend(value: Any) -> Any:
    """The same value with U+FFFD for every lone surrogate."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_mend(item) for item in value]
    if isinstance(value, dict):
        return {_mend(name): _mend(item) for name, item in value.items()}
    return value
