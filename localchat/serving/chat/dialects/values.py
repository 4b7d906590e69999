"""Reads values of arguments in JSON, or in the notations of Gemma 4 and LFM2, and emits them as JSON.

Valid JSON is not changed. In other JSON, these are corrected: escapes that JSON does not have, control characters in
strings, names and words without quotes, words such as True, None and NaN, numbers that JSON writes in another way, and
a comma that is missing or precedes a closing bracket. A value ends as broken at any other text, so that an unclosed
value does not include the rest of the output.
"""

from __future__ import annotations

import ast
import contextlib
import json
import re
from typing import Any

from ...core.scan import Cursor, Emit, Markers, Mismatch, Reader
from ...schema.types import ALL_TYPES, STRING
from .bare_text import text_json, value_json

GEMMA_QUOTE = '<|"|>'  # The quotes around strings in the notation of Gemma 4. Such strings have no escapes.

_CLOSERS = {"{": "}", "[": "]", "(": ")"}
# The name of an argument or a field without quotes.
NAME = re.compile(r"[^,:={}\[\]()\"'<]*")
# A number or a word, a number of JSON, and the JSON of words in other cases or languages. As in JavaScript, NaN becomes
# null.
_JSON_WORD = re.compile(r"[+\-.\w]*")
_JSON_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_WORDS = {
    "true": "true",
    "false": "false",
    **dict.fromkeys(("null", "none", "nan", "infinity", "+infinity", "-infinity"), "null"),
}
# A value without quotes in other notations: a number, a word or a text.
_BARE_VALUE = re.compile(r"[^,{}\[\]()<]*")
# An escape that the end of the text cuts, and the escapes that are known.
_CUT_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,3}|x[0-9a-fA-F]?|U[0-9a-fA-F]{0,7})?\Z")
_JSON_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
_PYTHON_ESCAPE = re.compile(
    r"\\(?:[\\'\"bfnrt0\n]|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U(?:0010|000[0-9a-fA-F])[0-9a-fA-F]{4})"
)


def read_value(cursor: Cursor, *, may_be_text: bool = False) -> Reader[str]:
    """Read the next JSON value. Returns its text, corrected. Raises Mismatch if it is broken.

    With `may_be_text`, it is also broken at a word without quotes.
    """
    texts: list[str] = []
    yield from ValueReader(cursor, texts.append, may_be_text=may_be_text).read()
    return "".join(texts)


def read_container(cursor: Cursor) -> Reader[tuple[str, str]]:
    """Read the next JSON value if it is a complete object or list.

    Returns its text as it was generated, and corrected; "" and "" if nothing was read.
    """
    cursor.checkpoint()
    yield from cursor.read_run()
    if (yield from cursor.is_next("{[")):
        with contextlib.suppress(Mismatch):
            corrected = yield from read_value(cursor, may_be_text=True)
            return cursor.commit(), corrected
    cursor.rewind()
    return "", ""


def decode(raw: str) -> Any:
    """The value of a JSON text; None if the text is not well-formed."""
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return None


class ValueReader:
    """Reads one value, item by item, without recursion. The items are emitted while they are generated.

    JSON      {"a": "text", "b": [1, true]}
    Gemma 4   {a:<|"|>text<|"|>,b:[1,true]}
    LFM2      a="text", b=[1, True])
    """

    def __init__(
        self,
        cursor: Cursor,
        emit: Emit,
        *ends: str,
        is_json: bool = True,
        may_be_text: bool = False,
        closer: str = "",
    ) -> None:
        """`ends` are markers that no string without escapes may contain.

        With `is_json`, quotes, words and escapes are those of JSON, instead of those of Gemma 4 and Python. `closer` is
        the closing bracket of named arguments, `a=1)`, which become an object; "": a value is next. With `may_be_text`,
        a text such as `[draft]` is no list.
        """
        self._cursor = cursor
        self._emit = emit
        self._ends = ends
        self._is_json = is_json
        self._may_be_text = may_be_text
        self._quotes = ('"',) if is_json else (GEMMA_QUOTE, '"', "'")
        self._brackets = "{[" if is_json else "{[("
        # The closing brackets of the open objects and lists, and of the named arguments around them.
        self._closers = [closer] if closer else []
        self._has_arguments = bool(closer)
        # The white space and commas before the next item, and whether an item precedes them.
        self._before = ""
        self._follows_item = False

    def read(self) -> Reader[None]:
        """Emit the value as JSON. Raises Mismatch if it is broken; its beginning was emitted, the rest stays unread."""
        if self._has_arguments:
            self._emit("{")
        try:
            yield from self._next_part()
            while self._closers:
                yield from self._next_part()
        except Mismatch:
            self._emit(self._before)
            raise

    def _next_part(self) -> Reader[None]:
        """Read a comma, a closing bracket, or an item: a value, after its name in an object."""
        closers = self._closers
        self._before += yield from self._cursor.read_run()
        are_arguments = self._has_arguments and len(closers) == 1
        has_names = are_arguments or closers[-1:] == ["}"]
        mark = (yield from self._cursor.read_one_of(",", closers[-1])) if closers else None
        if mark == ",":
            self._before += mark
        elif mark:
            self._emit(self._before.replace(",", "") + ("}" if has_names else "]"))
            closers.pop()
            self._before, self._follows_item = "", True
        else:
            if has_names:
                yield from self._name("=" if are_arguments else ":")
            yield from self._value()

    def _emit_item(self, text: str) -> None:
        """Emit the beginning of an item after the white space and commas before it, with a comma if it is missing."""
        before, self._before = self._before, ""
        self._emit(before if not self._follows_item or "," in before else "," + before)
        self._emit(text)
        self._follows_item = True

    def _name(self, end: str) -> Reader[None]:
        """Read a name, with or without quotes, and the text `end` after it."""
        cursor = self._cursor
        quote = yield from cursor.read_one_of(*self._quotes)
        if quote:
            yield from self._string(quote)
            self._before = yield from cursor.read_run()
            yield from cursor.expect(end)
        else:
            name = yield from cursor.next_run(NAME)
            if not name.strip() or cursor.text[cursor.at + len(name)] != end:
                raise Mismatch
            cursor.take(len(name) + 1)
            self._emit_item(json.dumps(name.strip(), ensure_ascii=False))
        self._emit(self._before + (": " if end == "=" else ":"))
        self._before = yield from cursor.read_run()
        self._follows_item = False

    def _value(self) -> Reader[None]:
        """Read a value. Of an object or a list, read only the opening bracket."""
        opener = yield from self._cursor.read_one_of(*self._brackets, *self._quotes)
        if opener in _CLOSERS:
            self._emit_item("{" if opener == "{" else "[")
            self._closers.append(_CLOSERS[opener])
            self._follows_item = False
        elif opener:
            yield from self._string(opener)
        else:
            yield from self._word()

    def _word(self) -> Reader[None]:
        """Read a value without quotes: a number, a word such as true, or text in other notations."""
        if self._is_json:
            word = yield from self._cursor.read_run(_JSON_WORD)
            word = _WORDS.get(word.lower(), word)
            is_cut = self._cursor.ended and self._cursor.at == len(self._cursor.text)
            if not (is_cut or _JSON_NUMBER.fullmatch(word)):
                word = self._json_word(word)
        else:
            text = yield from self._cursor.next_run(_BARE_VALUE)
            word = value_json(text.strip(), ALL_TYPES) if text.strip() else ""
            self._cursor.take(len(text) if word else 0)
        if not word:
            raise Mismatch
        self._emit_item(word)

    def _json_word(self, word: str) -> str:
        """The JSON of a number in Python's notation or of a word; "" if it is neither."""
        corrected = value_json(word, ALL_TYPES - STRING) if word else ""
        return "" if self._may_be_text and corrected.startswith('"') else corrected

    def _string(self, quote: str) -> Reader[None]:
        """Read a string, whose opening quote was read."""
        cursor = self._cursor
        self._emit_item('"')
        markers = Markers(quote, *(self._ends if quote == GEMMA_QUOTE else "\\"))
        while True:
            marker = yield from cursor.emit_until(markers, lambda text: self._emit(text_json(text)), holds_space=False)
            if marker == quote:
                cursor.take(len(quote))
                self._emit('"')
                return
            if marker != "\\":
                raise Mismatch
            while _CUT_ESCAPE.match(cursor.text, cursor.at):
                if cursor.ended:
                    raise Mismatch
                yield
            match = (_JSON_ESCAPE if self._is_json else _PYTHON_ESCAPE).match(cursor.text, cursor.at)
            text = cursor.take(len(match[0]) if match else 1)
            if match is None:
                self._emit(r"\\")
            else:
                self._emit(text if self._is_json else json.dumps(ast.literal_eval(f"'{text}'"))[1:-1])
