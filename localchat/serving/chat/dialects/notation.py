"""Reads values in JSON, and in the notations of Gemma 4 and LFM2, as JSON while they are generated.

Valid JSON is not changed. In other JSON, these are corrected: escapes that JSON does not have, control characters in
strings, names without quotes, and a comma that is missing or precedes a closing bracket. A value ends as broken at any
other text, so that an unclosed value does not include the rest of the output.
"""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass
from typing import Any

from .scan import Cursor, Emit, Markers, Reader
from .values import ALL_TYPES, text_json, value_json

# The quotes around strings in the notation of Gemma 4. Such strings have no escapes.
GEMMA_QUOTE = '<|"|>'

_CLOSERS = {"{": "}", "[": "]", "(": ")"}
NAME = re.compile(r"[^,:={}\[\]()\"'<]*")
_JSON_WORD = re.compile(r"[+\-.\w]*")
_WORD = re.compile(r"[^,{}\[\]()<]*")
_CUT_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,3}|x[0-9a-fA-F]?|U[0-9a-fA-F]{0,7})?\Z")
_JSON_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
_PYTHON_ESCAPE = re.compile(
    r"\\(?:[\\'\"bfnrt0\n]|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U(?:0010|000[0-9a-fA-F])[0-9a-fA-F]{4})"
)


@dataclass(frozen=True)
class Notation:
    """One notation of values."""

    quotes: tuple[str, ...] = ('"', "'")
    brackets: str = "{[("
    """The opening brackets."""
    is_json: bool = False
    """Whether words and escapes are those of JSON, instead of Python's."""
    arguments: str = ""
    """The closing bracket of arguments with names, `f(a=1)`. "": arguments are an object."""


JSON = Notation(('"',), "{[", is_json=True)
NOTATIONS = {"json": JSON, "gemma": Notation((GEMMA_QUOTE, '"', "'")), "python": Notation()}
PYTHON_ARGUMENTS = Notation(arguments=")")


def stream_value(cursor: Cursor, emit: Emit, notation: Notation = JSON, *ends: str) -> Reader[bool]:
    """Emit the next value as JSON. Returns whether it is complete.

    No string without escapes may contain one of the markers `ends`. The text at which a broken value ends stays unread.
    """
    return (yield from _Value(cursor, emit, notation, ends).read())


def read_value(cursor: Cursor) -> Reader[tuple[str, bool]]:
    """Read the next JSON value. Returns its text, corrected, and whether it is complete."""
    texts: list[str] = []
    is_complete = yield from stream_value(cursor, texts.append)
    return "".join(texts), is_complete


def maybe_nested(cursor: Cursor) -> Reader[str]:
    """Read the next JSON value if it is a complete object or list. Returns its text; "" if nothing was read.

    Its strings may contain markers.
    """
    cursor.begin()
    yield from cursor.read_run()
    if (yield from cursor.is_next("{[")):
        text, is_complete = yield from read_value(cursor)
        if is_complete:
            cursor.end_record()
            return text
    cursor.put_back()
    return ""


def decoded(raw: str) -> Any:
    """The value of a JSON text; None if the text is not well-formed."""
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return None


class _Value:
    def __init__(self, cursor: Cursor, emit: Emit, notation: Notation, ends: tuple[str, ...]) -> None:
        self._cursor = cursor
        self._emit = emit
        self._notation = notation
        self._ends = ends
        # The closing brackets of the open objects and lists.
        self._closers = [notation.arguments] if notation.arguments else []
        # The white space and commas before the next item, and whether an item precedes them.
        self._before = ""
        self._follows_item = False

    def read(self) -> Reader[bool]:
        if self._closers:
            self._emit("{")
        while (yield from self._part()):
            if not self._closers:
                return True
        self._emit(self._before)
        return False

    def _part(self) -> Reader[bool]:
        """Read a comma, a closing bracket, or an item: a value, after its name in an object. False if it is broken."""
        cursor, closers = self._cursor, self._closers
        self._before += yield from cursor.read_run()
        if not (yield from cursor.has_text()):
            return False
        are_arguments = bool(self._notation.arguments) and len(closers) == 1
        has_names = are_arguments or closers[-1:] == ["}"]
        if closers and cursor.peek() == ",":
            self._before += cursor.take(1)
            return True
        if closers and cursor.peek() == closers[-1]:
            cursor.take(1)
            self._emit(self._before.replace(",", "") + ("}" if has_names else "]"))
            closers.pop()
            self._before, self._follows_item = "", True
            return True
        return (not has_names or (yield from self._name("=" if are_arguments else ":"))) and (yield from self._value())

    def _emit_item(self, text: str) -> None:
        """Emit the beginning of an item after the white space and commas before it, with a comma if it is missing."""
        before, self._before = self._before, ""
        self._emit(before if not self._follows_item or "," in before else "," + (before or " "))
        self._emit(text)
        self._follows_item = True

    def _name(self, end: str) -> Reader[bool]:
        """Read a name and the text after it."""
        cursor = self._cursor
        quote = yield from cursor.read_one_of(*self._notation.quotes)
        if quote:
            self._emit_item('"')
            if not (yield from self._string(quote)):
                return False
            self._before = yield from cursor.read_run()
            if not (yield from cursor.is_next(end)):
                return False
        else:
            name = yield from cursor.next_run(NAME)
            if not name.strip() or cursor.text[cursor.at + len(name)] != end:
                return False
            cursor.take(len(name))
            self._emit_item(json.dumps(name.strip(), ensure_ascii=False))
        cursor.take(1)
        self._emit(self._before + (": " if end == "=" else ":"))
        self._before = yield from cursor.read_run()
        self._follows_item = False
        return True

    def _value(self) -> Reader[bool]:
        """Read a value. Of an object or a list, read only the opening bracket."""
        opener = yield from self._cursor.read_one_of(*self._notation.brackets, *self._notation.quotes)
        if opener in _CLOSERS:
            self._emit_item("{" if opener == "{" else "[")
            self._closers.append(_CLOSERS[opener])
            self._follows_item = False
            return True
        if opener:
            self._emit_item('"')
            return (yield from self._string(opener))
        word = yield from self._word()
        if word:
            self._emit_item(word)
        return bool(word)

    def _word(self) -> Reader[str]:
        """Read a value without quotes. Returns its JSON; "" if there is none."""
        if self._notation.is_json:
            return (yield from self._cursor.read_run(_JSON_WORD))
        word = yield from self._cursor.next_run(_WORD)
        if not word.strip():
            return ""
        self._cursor.take(len(word))
        return value_json(word.strip(), ALL_TYPES)

    def _string(self, quote: str) -> Reader[bool]:
        """Read the rest of a string. Returns False if it is cut."""
        cursor = self._cursor
        markers = Markers(quote, *(self._ends if quote == GEMMA_QUOTE else "\\"))
        while True:
            marker = yield from cursor.emit_until(markers, lambda text: self._emit(text_json(text)), holds_space=False)
            if marker == quote:
                cursor.take(len(quote))
                self._emit('"')
                return True
            if marker != "\\":
                return False
            while _CUT_ESCAPE.match(cursor.text, cursor.at):
                if cursor.ended:
                    return False
                yield
            match = (_JSON_ESCAPE if self._notation.is_json else _PYTHON_ESCAPE).match(cursor.text, cursor.at)
            text = cursor.take(len(match[0]) if match else 1)
            if match is None:
                self._emit(r"\\")
            else:
                self._emit(text if self._notation.is_json else json.dumps(ast.literal_eval(f"'{text}'"))[1:-1])
