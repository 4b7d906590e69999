"""Values of arguments as JSON: values in JSON, or in the notations of Gemma 4 and LFM2, and bare text between tags.

Valid JSON is not changed. In other JSON, these are corrected: escapes that JSON does not have, control characters in
strings, names without quotes, and a comma that is missing or precedes a closing bracket. A value ends as broken at any
other text, so that an unclosed value does not include the rest of the output.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .scan import Cursor, Emit, Markers, Reader

TYPE_NAMES: Mapping[type, str] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
    list: "array",
    dict: "object",
}
ALL_TYPES = frozenset(TYPE_NAMES.values())
STRING = frozenset({"string"})

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


# Bare text

# The limit of a chain of references, which may be circular. No real schema needs more.
_MAX_REFERENCES = 8
_WORDS: Mapping[str, bool | None] = {"true": True, "false": False, "null": None, "none": None}


def parameter_types(schema: Mapping[str, Any], *path: str | None) -> frozenset[str]:
    """The JSON types that a schema allows for the value at `path`; all types if it does not restrict them.

    The path is the name of an argument, or a longer path to a value inside the argument, with None for list items.
    """
    found: Any = schema
    for name in path:
        found = _resolved(found, schema)
        if isinstance(found, Mapping):
            found = found.get("items") if name is None else found.get("properties")
        if name is not None and isinstance(found, Mapping):
            found = found.get(name)
    return _types(found, schema, _MAX_REFERENCES)


def _resolved(schema: Any, root: Mapping[str, Any]) -> Any:
    """The schema that the references of a schema lead to; None if there is none.

    References other than JSON pointers, such as anchors, lead nowhere.
    """
    for _ in range(_MAX_REFERENCES):
        if not isinstance(schema, Mapping) or "$ref" not in schema:
            return schema
        schema = referenced(schema, root)
    return None


def referenced(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Any:
    """The schema at the reference of a schema; None if there is none."""
    start, *parts = str(schema["$ref"]).split("/")
    found: Any = root if start == "#" else None
    for part in parts:
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _types(schema: Any, root: Mapping[str, Any], depth: int) -> frozenset[str]:
    """The JSON types that a schema allows. `depth` is the limit of combinations within each other."""
    schema = _resolved(schema, root)
    if not isinstance(schema, Mapping) or depth == 0:
        return ALL_TYPES
    if "type" in schema:
        named = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        names = {name for name in named if isinstance(name, str)}
        return frozenset(names | ({"null"} if schema.get("nullable") is True else set()))
    listed = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(listed, list):
        return frozenset(TYPE_NAMES[type(value)] for value in listed)
    for word in ("anyOf", "oneOf"):
        if isinstance(schema.get(word), list):
            return frozenset().union(*(_types(item, root, depth - 1) for item in schema[word]))
    return ALL_TYPES


def text_json(text: str) -> str:
    """Escape a text for a JSON string, without the quotes. A text may be converted in pieces."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def value_json(raw: str, types: frozenset[str]) -> str:
    """Convert bare text to JSON: `raw` itself if it is JSON of an allowed type, else a JSON string.

    Python literals such as True and None are accepted, too, since some templates print them. But a number that JSON
    writes in another way, such as 0x10, stays text if text is allowed.
    """
    text, is_json = raw.strip(), True
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        value, is_json = _python_value(text), False
    name = TYPE_NAMES[type(value)]
    if name == "integer" or (isinstance(value, float) and value.is_integer()):
        is_allowed = bool(types & {"integer", "number"})
    else:
        # Strings are written without quotes, so quotes are part of the string.
        is_allowed = name != "string" and name in types
    may_be_text = not is_json and name in ("integer", "number") and "string" in types
    if not is_allowed or may_be_text:
        return json.dumps(raw, ensure_ascii=False)
    return text if is_json else json.dumps(value, ensure_ascii=False)


def _refuse_constant(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")


def _python_value(text: str) -> Any:
    """The value of a Python literal, if JSON can represent it; otherwise the text."""
    try:
        value = _WORDS[text.lower()] if text.lower() in _WORDS else ast.literal_eval(text)
        json.dumps(value, allow_nan=False)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return text
    return value if type(value) in TYPE_NAMES else text
