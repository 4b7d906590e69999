"""Finds the end of a JSON value in text that is still being generated.

Only brackets and strings are parsed, to find the end. Nothing checks that the text is well-formed: the arguments of
calls are emitted as the model generates them, except for escapes that JSON does not have.
"""

from __future__ import annotations

import json
import re
from enum import Enum, auto
from typing import Any, Callable

from ...core.events import Event
from .scan import Cursor, Reader, has_text, read_space


class State(Enum):
    """The state of the scanner."""

    START = auto()
    NESTED = auto()
    STRING = auto()
    SCALAR = auto()
    DONE = auto()
    BROKEN = auto()


_CLOSER = {"{": "}", "[": "]"}
# Characters that may be between the strings and brackets of a value. Any other character ends the value as broken, so
# that an unclosed value does not include the rest of the output.
_BETWEEN = re.compile(r"[\s,:+\-.\w]*")
_SCALAR = re.compile(r"[+\-.\w]*")
# Text in a string. An escape that is cut is left for later.
_IN_STRING = re.compile(r'(?:[^"\\]+|\\(?!u[0-9a-fA-F]{0,3}\Z)[\s\S])*')
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})|\\')
_ENDS = frozenset({State.DONE, State.BROKEN})


class JsonScanner:
    """Finds the end of one JSON value. The value starts with the first character that is scanned."""

    def __init__(self) -> None:
        self.state = State.START
        self._closers: list[str] = []

    def scan(self, text: str, at: int) -> int:
        """Scan `text` from index `at`. Returns the end of the part that belongs to the value; see `state`.

        An escape that is cut at the end of the text is left to be scanned again.
        """
        before = None
        while at < len(text) and self.state not in _ENDS and (at, self.state) != before:
            before = at, self.state
            at = _STEPS[self.state](self, text, at)
        return at

    def end(self) -> None:
        """End the text. This completes a number or a literal at the top level."""
        self.state = State.DONE if self.state in (State.SCALAR, State.DONE) else State.BROKEN

    def _start(self, text: str, at: int) -> int:
        if text[at] in '"{[':
            return self._enter(text[at], at)
        self.state = State.SCALAR if _SCALAR.fullmatch(text[at]) else State.BROKEN
        return at

    def _enter(self, opener: str, at: int) -> int:
        if opener == '"':
            self.state = State.STRING
        else:
            self.state = State.NESTED
            self._closers.append(_CLOSER[opener])
        return at + 1

    def _nested(self, text: str, at: int) -> int:
        at = _end(_BETWEEN, text, at)
        if at == len(text):
            return at
        if text[at] in '"{[':
            return self._enter(text[at], at)
        if text[at] != self._closers[-1]:
            self.state = State.BROKEN
            return at
        self._closers.pop()
        return self._leave(at)

    def _leave(self, at: int) -> int:
        self.state = State.NESTED if self._closers else State.DONE
        return at + 1

    def _string(self, text: str, at: int) -> int:
        at = _end(_IN_STRING, text, at)
        if at < len(text) and text[at] == '"':
            return self._leave(at)
        return at

    def _scalar(self, text: str, at: int) -> int:
        at = _end(_SCALAR, text, at)
        if at < len(text):
            self.state = State.DONE
        return at


_STEPS: dict[State, Callable[[JsonScanner, str, int], int]] = {
    State.START: JsonScanner._start,
    State.NESTED: JsonScanner._nested,
    State.STRING: JsonScanner._string,
    State.SCALAR: JsonScanner._scalar,
}


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return match.end() if match else at


def with_valid_escapes(text: str) -> str:
    r"""A part of a JSON value in which a backslash that begins no escape of JSON, as in `\d`, is escaped itself."""
    return _ESCAPE.sub(lambda match: match[0] if len(match[0]) > 1 else r"\\", text)


def stream_value(cursor: Cursor, event: Callable[[str], Event]) -> Reader[bool]:
    """Emit the text of the next JSON value, with valid escapes. Returns False if the value is cut or broken."""
    scanner = JsonScanner()
    while True:
        size = scanner.scan(cursor.text, cursor.at) - cursor.at
        if size:
            yield event(with_valid_escapes(cursor.take(size)))
        if cursor.ended:
            scanner.end()
        if scanner.state in _ENDS:
            return scanner.state is State.DONE
        yield None


def read_value(cursor: Cursor) -> Reader[tuple[str, bool]]:
    """Read the next JSON value. Returns its text, with valid escapes, and whether it is complete."""
    scanner = JsonScanner()
    parts: list[str] = []
    while True:
        parts.append(with_valid_escapes(cursor.take(scanner.scan(cursor.text, cursor.at) - cursor.at)))
        if cursor.ended:
            scanner.end()
        if scanner.state in _ENDS:
            return "".join(parts), scanner.state is State.DONE
        yield None


def maybe_nested(cursor: Cursor) -> Reader[str]:
    """Read the next JSON value if it is a complete object or list. Returns its raw text; "" if nothing was read.

    Its strings may contain markers.
    """
    cursor.begin()
    yield from read_space(cursor)
    if (yield from has_text(cursor)) and cursor.peek() in "{[":
        text, is_complete = yield from read_value(cursor)
        if is_complete:
            cursor.drop_record()
            return text
    cursor.put_back()
    return ""


def decoded(raw: str) -> Any:
    """The value of a JSON text; None if the text is not well-formed."""
    try:
        return json.loads(raw, strict=False)
    except (ValueError, RecursionError):
        return None
