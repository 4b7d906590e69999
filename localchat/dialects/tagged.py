"""Calls written in tags, with each argument's value as bare text: the JSON is put together here.

Values are typed by the tool's schema. A value that can only be a string is sent as it comes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Callable

from ..protocol.events import ContentDelta, Event
from .call_layout import A_BREAK, ALL_TYPES, STRING, ArgumentsLayout, ValueLayout
from .calls import Calls
from .dialect import CallTexts
from .json_scan import maybe_nested
from .named_json import json_arguments
from .scan import Cursor, Markers, Reader, closing, is_next, one_of, read, space, stream, until
from .values import is_text_only, parameter_types, text_json, value_json


@dataclass(frozen=True)
class Tags:
    """The tags of one family, in the order of a call.

    Attributes:
        call: what comes before the name, `name_end` after it.
        attributes_end: what ends the attributes after the name, if there may be any.
        key: what comes before an argument's name, `key_end` after it.
        value: what comes before its value, if not `key_end`; between them stand attributes.
        value_ends: what comes after the value.
        call_end: what ends the call.
        attributes: what stands before that, if a template writes any.
        sections: tags around all calls, if any: (opening, closing) each.
        is_section_each: every call has such tags of its own.
        is_on_lines: the value stands on lines of its own: one line break before it is not part of it.
        quotes: tags around a value that are not part of it.
        attribute_types: the types that the attributes of a value tell, None if they tell none.
        typed_values: what stands between a name and values of these types, where it says which they are.
    """

    call: str
    name_end: str
    key: str
    key_end: str
    value_ends: tuple[str, ...]
    call_end: str
    attributes_end: str = ""
    attributes: str = ""
    value: str = ""
    sections: tuple[tuple[str, str], ...] = ()
    is_section_each: bool = False
    is_on_lines: bool = False
    quotes: tuple[str, str] | None = None
    attribute_types: Callable[[str], frozenset[str] | None] = lambda attributes: None
    typed_values: tuple[tuple[frozenset[str], str], ...] = ()

    @property
    def openers(self) -> tuple[str, ...]:
        """The markers that begin a call, with or without its section."""
        return (*(start for start, _ in self.sections), self.call)

    @property
    def closers(self) -> tuple[str, ...]:
        """The other markers."""
        inner = (self.key, self.key_end, self.value, *self.value_ends, self.call_end)
        return tuple(filter(None, (*inner, *(end for _, end in self.sections))))

    @property
    def call_texts(self) -> tuple[CallTexts, ...]:
        """How calls are written: with each section that is in use, and without."""
        within = [self._call_texts(*section) for section in self.sections]
        # A template that has not this section does not call so without it either.
        without = [replace(self.bare_texts, mark=start) for start, _ in self.sections or (("", ""),)]
        return (*within, *without)

    @property
    def bare_texts(self) -> CallTexts:
        """How calls are written without a section, as models forget to begin one."""
        return self._call_texts("", "")

    def _call_texts(self, start: str, end: str) -> CallTexts:
        begin, end = start and start + A_BREAK, end and A_BREAK + end
        is_each = self.is_section_each
        return CallTexts(
            opener=start or self.call,
            begin="" if is_each else begin,
            before_name=(begin if is_each else "") + self.call,
            before_arguments=self.name_end + self.attributes + self.attributes_end,
            after_call=A_BREAK + self.call_end + (end if is_each else ""),
            separator=A_BREAK,
            end="" if is_each else end,
            json_name=False,
            mark=start,
            arguments=self.argument_texts,
        )

    @property
    def argument_texts(self) -> ArgumentsLayout:
        """How arguments are written."""
        end = self.value_ends[-1]
        typed = tuple(
            ValueLayout(types, start, end, end if types == STRING else "") for types, start in self.typed_values
        )
        middle = self.key_end + (A_BREAK + self.value if self.value else "")
        return ArgumentsLayout(
            before_key=A_BREAK + self.key,
            after_key="" if typed else middle,
            values=typed or (ValueLayout(ALL_TYPES, "", end, end),),
            names=r'[^\s<>"]+',
            on_lines=self.is_on_lines,
        )

    def read_calls(self, cursor: Cursor, calls: Calls, opener: str) -> Reader[bool]:
        """Read the calls after an opener: those of one section, or a single one."""
        if opener != self.call:
            return (yield from self._section(cursor, calls))
        if not (yield from self._call(cursor, calls)):
            return False
        # Some models leave out the opening tag of the section only.
        yield from closing(cursor, *(end for _, end in self.sections))
        return True

    def _section(self, cursor: Cursor, calls: Calls) -> Reader[bool]:
        is_call = False
        while True:
            yield from space(cursor)
            if is_call:
                cursor.begin()
            if (yield from one_of(cursor, self.call)) is None:
                break
            if not (yield from self._call(cursor, calls)):
                if is_call:
                    yield ContentDelta(cursor.recorded())
                return is_call
            is_call = True
        if is_call:
            yield from closing(cursor, *(end for _, end in self.sections))
        return is_call

    def _call(self, cursor: Cursor, calls: Calls) -> Reader[bool]:
        """Read a call from its name on. It is one if the name is offered and a tag follows."""
        name = yield from self._name(cursor, calls)
        if name is None:
            return False
        if (yield from is_next(cursor, "{")):
            yield from json_arguments(cursor, calls, name, self.call_end)
            return True
        tag = yield from one_of(cursor, self.key, self.call_end)
        if tag is None:
            return False
        yield calls.head(name)
        cursor.commit()
        opening = "{"
        while tag == self.key:
            yield from self._argument(cursor, calls, name, opening)
            opening = ", "
            tag = yield from closing(cursor, self.key, self.call_end)
        if tag in (None, self.call_end):
            # Text that is no tag ends the call too: it can only be content.
            yield calls.arguments("{}" if opening == "{" else "}")
            calls.close()
        return True

    def _name(self, cursor: Cursor, calls: Calls) -> Reader[str | None]:
        yield from space(cursor)
        name = yield from one_of(cursor, *calls.offered)
        if name is None or (self.name_end and (yield from one_of(cursor, self.name_end)) is None):
            return None
        if self.attributes_end:
            yield from until(cursor, Markers(self.attributes_end))
        yield from space(cursor)
        return name

    def _argument(self, cursor: Cursor, calls: Calls, name: str, opening: str) -> Reader[None]:
        key, _ = yield from until(cursor, Markers(self.key_end))
        types = parameter_types(calls.schema(name), key.strip())
        if self.value:
            attributes, mark = yield from until(cursor, Markers(self.value, *self.value_ends))
            types = self.attribute_types(attributes) or types
        yield calls.arguments(f"{opening}{json.dumps(key.strip(), ensure_ascii=False)}: ")
        ends = self.value_ends
        if self.value and mark in ends:
            # What comes before the value was left out.
            yield calls.arguments(value_json(attributes.strip("\n"), types))
            return
        if self.is_on_lines:
            yield from one_of(cursor, "\n")
        if self.quotes and (yield from one_of(cursor, self.quotes[0])):
            ends = tuple(self.quotes[1] + end for end in ends)
        if is_text_only(types):
            yield from _text_value(cursor, calls, ends)
        else:
            # JSON first, since its strings may hold what else would end the value.
            begun = yield from maybe_nested(cursor)
            raw, end = yield from until(cursor, Markers(*ends))
            yield calls.arguments(value_json(begun + raw, types) if end else begun + raw)


def _text_value(cursor: Cursor, calls: Calls, ends: tuple[str, ...]) -> Reader[None]:
    def piece(text: str) -> Event:
        return calls.arguments(text_json(text))

    yield calls.arguments('"')
    end = yield from stream(cursor, Markers(*ends), piece, seam=False)
    if end:
        read(cursor, end)
        yield calls.arguments('"')
