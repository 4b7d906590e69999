"""Arguments in notations other than JSON, converted to JSON while they are generated: those of Gemma 4 and LFM2."""

from __future__ import annotations

import json
import keyword
import re
from dataclasses import dataclass, replace

from .call_format import CallFormat
from .call_layout import ALL_TYPES, GEMMA_QUOTE, ArgumentsLayout, CallLayout, ValueLayout
from .calls import Calls
from .dialect import Dialect
from .json_calls import raw_arguments
from .reasoning import ReasoningTags
from .scan import Cursor, Markers, Reader, emit_until, has_text, is_next, read_end, read_one_of, read_space, read_until
from .values import text_json, value_json

_CLOSERS = {"{": "}", "[": "]", "(": ")"}
_KEY = re.compile(r"[^,:={}\[\]()\"'<]*")
# A value without quotes.
_WORD = re.compile(r"[^,{}\[\]()<]*")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|U(0010[0-9a-fA-F]{4}|000[0-9a-fA-F]{5})|([\s\S]))")
_CUT_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,3}|x[0-9a-fA-F]?|U[0-9a-fA-F]{0,7})?\Z")
# The JSON of the character after a backslash. Any other character keeps its backslash.
_ESCAPED = {**{char: "\\" + char for char in 'bfnrt"\\'}, "/": "/", "'": "'", "\n": "", "0": "\\u0000"}


@dataclass(frozen=True)
class Notation:
    """One notation of arguments."""

    key_end: str
    """The text between the name of an argument and its value."""
    closer: str
    """The text after the last argument."""
    plain_quote: str = ""
    """A quote around strings without escapes. Strings in other quotes have the escapes of Python."""


_GEMMA = Notation(key_end=":", closer="}", plain_quote=GEMMA_QUOTE)
_PYTHON = Notation(key_end="=", closer=")")
_OBJECT = Notation(key_end=":", closer="}")
# The names of arguments that are valid in Python.
_PYTHON_NAMES = rf"(?!(?:{'|'.join(keyword.kwlist)})\Z)[^\W\d]\w*"


def read_arguments(cursor: Cursor, calls: Calls, notation: Notation, *ends: str) -> Reader[bool]:
    """Emit the arguments after their opening bracket as JSON. Returns whether they are complete.

    The text of broken arguments is emitted as it is, up to one of the markers `ends`.
    """
    if (yield from _Arguments(cursor, calls, notation, ends).read()):
        calls.close()
        return True
    raw = cursor.end_record()
    if raw:
        yield calls.arguments(raw)
    yield from raw_arguments(cursor, calls, *ends)
    # A call whose arguments are not JSON counts as cut.
    calls.is_open = True
    return False


def _read_run(cursor: Cursor, pattern: re.Pattern[str]) -> Reader[str]:
    """Read characters of a pattern, without white space around them. Returns "" if the end of the output cuts them."""
    while True:
        match = pattern.match(cursor.text, cursor.at)
        end = match.end() if match else cursor.at
        if end < len(cursor.text):
            return cursor.take(end - cursor.at).strip()
        if cursor.ended:
            return ""
        yield None


class _Arguments:
    def __init__(self, cursor: Cursor, calls: Calls, notation: Notation, ends: tuple[str, ...]) -> None:
        self._cursor = cursor
        self._event = calls.arguments
        self._notation = notation
        self._ends = ends
        # The closing brackets of the open objects and lists.
        self._closers = [notation.closer]
        # The text before the next item of the innermost one.
        self._separator = ""

    def read(self) -> Reader[bool]:
        """Read items up to the last closing bracket. If one is broken, the cursor has a record of its text."""
        cursor = self._cursor
        yield self._event("{")
        while self._closers:
            yield from read_space(cursor)
            if not (yield from has_text(cursor)):
                return False
            if cursor.peek() == self._closers[-1]:
                cursor.take(1)
                yield self._event("}" if self._is_in_object else "]")
                self._closers.pop()
                self._separator = ", "
            elif not (yield from self._item()):
                return False
            if self._separator and self._closers:
                yield from read_space(cursor)
                yield from read_one_of(cursor, ",")
        return True

    @property
    def _is_in_object(self) -> bool:
        return len(self._closers) == 1 or self._closers[-1] == "}"

    def _item(self) -> Reader[bool]:
        """Read a value, after its key in an object. Of an object or list, read only the opening bracket."""
        cursor, before = self._cursor, self._separator
        cursor.begin()
        if self._is_in_object:
            key = yield from self._key()
            if key is None:
                return False
            before += key + ": "
        yield from read_space(cursor)
        opener = yield from read_one_of(cursor, *_CLOSERS)
        if opener:
            self._closers.append(_CLOSERS[opener])
            self._separator = ""
            cursor.drop_record()
            yield self._event(before + ("{" if opener == "{" else "["))
            return True
        self._separator = ", "
        quote = yield from self._quote()
        if quote:
            cursor.drop_record()
            yield self._event(before + '"')
            return (yield from self._string(quote))
        word = yield from _read_run(cursor, _WORD)
        if not word:
            return False
        cursor.drop_record()
        yield self._event(before + value_json(word, ALL_TYPES))
        return True

    def _key(self) -> Reader[str | None]:
        """Read a key and the text after it. Returns the key as JSON; None if another text follows."""
        quote = yield from self._quote()
        if quote:
            text, _ = yield from read_until(self._cursor, Markers(quote))
        else:
            text = yield from _read_run(self._cursor, _KEY)
        yield from read_space(self._cursor)
        key_end = self._notation.key_end if len(self._closers) == 1 else ":"
        if not text or (yield from read_one_of(self._cursor, key_end)) is None:
            return None
        return json.dumps(text, ensure_ascii=False)

    def _quote(self) -> Reader[str | None]:
        return (yield from read_one_of(self._cursor, '"', "'", *filter(None, [self._notation.plain_quote])))

    def _string(self, quote: str) -> Reader[bool]:
        """Emit the rest of a string. Returns False if it is cut."""
        cursor = self._cursor
        escape = () if quote == self._notation.plain_quote else ("\\",)
        markers = Markers(quote, *escape, *self._ends)
        while True:
            marker = yield from emit_until(
                cursor, markers, lambda text: self._event(text_json(text)), holds_space=False
            )
            if marker == quote:
                cursor.take(len(quote))
                yield self._event('"')
                return True
            if marker not in escape:
                return False
            while _CUT_ESCAPE.match(cursor.text, cursor.at):
                if cursor.ended:
                    return False
                yield None
            yield from self._escape()

    def _escape(self) -> Reader[None]:
        match = _ESCAPE.match(self._cursor.text, self._cursor.at)
        assert match
        self._cursor.take(len(match[0]))
        short, byte, long, char = match.groups()
        if char:
            text = _ESCAPED.get(char) if char in _ESCAPED else r"\\" + text_json(char)
        elif long and long > "0000ffff":
            text = chr(int(long, 16))
        else:
            text = "\\u" + (short or ("00" + byte if byte else long[4:]))
        if text:
            yield self._event(text)


class _GemmaCalls(CallFormat):
    """Gemma 4: JSON with other quotes around strings, and without quotes around keys."""

    @property
    def layouts(self) -> tuple[CallLayout, ...]:
        (layout,) = super().layouts
        return (replace(layout, notation="gemma", end_marker=layout.after_call),)

    @property
    def markers(self) -> tuple[str, ...]:
        return (*super().markers, GEMMA_QUOTE)

    def _object(self, cursor: Cursor, calls: Calls, name: str, end: str, call_id: str) -> Reader[None]:
        yield calls.start(name)
        cursor.drop_record()
        cursor.take(1)
        if (yield from read_arguments(cursor, calls, _GEMMA, end)):
            yield from read_end(cursor, end)


class _PythonCalls(CallFormat):
    """LFM2 and LFM2.5: a list of calls in Python's syntax."""

    @property
    def layouts(self) -> tuple[CallLayout, ...]:
        value = ValueLayout(ALL_TYPES, "", "")
        arguments = ArgumentsLayout("", "=", (value,), separator=", ", names=_PYTHON_NAMES)
        end = self._ends[0].lstrip("]")
        return (replace(super().layouts[0], arguments=arguments, notation="python", end_marker=end),)

    def read(self, cursor: Cursor, calls: Calls, opener: str) -> Reader[bool]:
        end = self._ends[0].lstrip("]")
        yield from read_space(cursor)
        yield from read_one_of(cursor, "[")
        is_call = False
        while True:
            if is_call:
                cursor.begin()
            is_complete = yield from self._python_call(cursor, calls, end)
            if is_complete is False:
                return True
            if is_complete is None:
                break
            is_call = True
            yield from read_space(cursor)
            yield from read_one_of(cursor, ",", ";")
        if is_call:
            cursor.put_back()
            yield from read_end(cursor, "]")
            yield from read_end(cursor, end)
        return is_call

    def _python_call(self, cursor: Cursor, calls: Calls, end: str) -> Reader[bool | None]:
        """Read a call with named arguments, or with one object. Returns whether it is complete; None if it is none."""
        yield from read_space(cursor)
        names = {name + "(": name for name in calls.offered}
        found = yield from read_one_of(cursor, *names)
        if found is None:
            return None
        n_read = cursor.n_recorded
        yield from read_space(cursor)
        first = yield from read_one_of(cursor, ")", "{")
        if first is None and not ((yield from _read_run(cursor, _KEY)) and (yield from is_next(cursor, "="))):
            return None
        cursor.put_back(n_read)
        yield calls.start(names[found])
        cursor.drop_record()
        yield from read_space(cursor)
        if first != "{":
            return (yield from read_arguments(cursor, calls, _PYTHON, end))
        cursor.take(1)
        is_complete = yield from read_arguments(cursor, calls, _OBJECT, end)
        yield from read_end(cursor, ")")
        return is_complete


GEMMA = Dialect(
    "gemma-4",
    detected_by=(("<|tool_call>",),),
    calls=(_GemmaCalls("<|tool_call>call:$name$args<tool_call|>", opener="<|tool_call>", after_reasoning=""),),
    reasoning=ReasoningTags("<|channel>thought", "<channel|>"),
    reasons_anywhere=True,
)

LFM = Dialect(
    "lfm2",
    detected_by=(("<|tool_call_start|>",), ("<|tool_list_start|>",), ("List of tools: [", "<|im_start|>")),
    calls=(
        _PythonCalls("$name($args)", around=(("<|tool_call_start|>[", "]<|tool_call_end|>"),), separator=", "),
        # JSON is generated only if the prompt asks for it.
        CallFormat(
            '{"name": "$name", "arguments": $args}',
            around=(("<|tool_call_start|>[^", "^]<|tool_call_end|>"),),
            separator=",^",
        ),
    ),
    has_own_tool_prompt=True,
)
