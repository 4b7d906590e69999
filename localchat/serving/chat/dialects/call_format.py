"""Call formats: one text for each, which the parser, the grammar and the writer of earlier calls read.

    <function=$name>*(~<parameter=$key>$value</parameter>)*~</function>

    $name       the name of a tool
    $args       the arguments as one JSON object
    *( ... )*   repeats for each argument: $key is its name, $value bare text, converted by the schema of the tool
    ?( ... )?   attributes; the parser accepts any text in their place
    $type       inside attributes: the JSON type of the value
    $string     inside attributes: whether the value is a string, "true" or "false"
    $id $n      an id, a number
    ~ ^         up to two line breaks (one is written); any indentation (none is written)

The parser accepts any white space where the text has some. A call that is a JSON object is read by json_calls.py, which
accepts more variants.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from .call_layout import (
    A_BREAK,
    A_NUMBER,
    A_SPACE,
    ALL_TYPES,
    AN_ID,
    STRING,
    THE_NAME,
    ArgumentsLayout,
    CallLayout,
    ValueLayout,
)
from .calls import Calls
from .json_calls import JsonFields, json_arguments, read_json_calls
from .json_scan import maybe_nested
from .scan import Cursor, Markers, Reader, emit_until, is_next, read_end, read_one_of, read_space, read_until
from .values import parameter_types, text_json, value_json

_CALL = re.compile(r"(.*?)\$name(.*?)(?:\$args|\*\((.*)\)\*)(.*)", re.DOTALL)
_ARGUMENT = re.compile(r"(.*)\$key(.*?)(?:\?\((.*)\)\?(.*))?\$value(.*)", re.DOTALL)
_ATTRIBUTES = re.compile(r"\?\((.*?)\)\?")
# The parts of a text around a name: holes, white space and literals.
_PARTS = re.compile(r"(\?\(.*?\)\?|\$id|\$n)|[~^\s]+")
_PLACEHOLDERS = {"$name": THE_NAME, "$key": THE_NAME, "$id": AN_ID, "$n": A_NUMBER, "~": A_BREAK, "^": A_SPACE}
_SPACE = "~^ \n"


@dataclass(frozen=True)
class CallFormat:
    """One format of tool calls."""

    call: str
    """The text of one call; see the module."""
    around: tuple[tuple[str, str], ...] = ()
    """Pairs of texts around all calls, the preferred pair first. Some models leave them out."""
    is_around_each: bool = False
    """Each call has its own pair, instead of one pair around all calls."""
    drops_around: bool = False
    """The texts around the calls are dropped from the output wherever they stand, and end reasoning."""
    separator: str = ""
    """The text between calls."""
    opener: str | None = None
    """The marker that begins the calls, if they have no texts around them. None: the call up to its first hole. "": all
    text up to the arguments is needed to distinguish a call from other text."""
    other_ends: tuple[str, ...] = ()
    """Markers that some models generate instead of the end of `around`."""
    id_has_name: bool = False
    """The name and the texts around it, such as "functions.f:0", are the id of the call."""
    quotes: tuple[str, str] = ("", "")
    """Texts that may be around a string value. They are not part of the value."""
    is_written_as_json: bool = False
    """Grammars and written calls have the arguments as one JSON object; the repeated text is only parsed."""
    indent: int | None = None
    """JSON arguments may be on several lines, indented by at most this many spaces. None: they are on one line."""
    after_reasoning: str = "\n\n"
    """The text between reasoning and calls."""
    template_text: str = ""
    """The format applies only to models whose chat template contains this text. "": to all models of the family."""
    is_native: bool = True
    """Whether models generate this format on their own."""

    # The layouts, for grammars and written calls.

    @property
    def layouts(self) -> tuple[CallLayout, ...]:
        """The layouts of calls in this format, the preferred one first."""
        pairs = self.around or (("", ""),)
        within = tuple(self._layout(start, end, start) for start, end in pairs)
        if not self.around or self._json_fields:
            return within
        return (*within, *(self._layout("", "", start) for start, _ in pairs))

    def _layout(self, start: str, end: str, section: str) -> CallLayout:
        before_name, after_name, argument, after = self._parts
        each = (start, end) if self.is_around_each else ("", "")
        around = ("", "") if self.is_around_each else (start, end)
        return CallLayout(
            opener=_opener(start) or self._call_opener,
            begin=_layout_text(around[0]),
            before_name=_layout_text(each[0] + before_name),
            before_arguments=_layout_text(after_name),
            after_call=_layout_text(after + each[1]),
            separator=_layout_text(self.separator),
            end=_layout_text(around[1]),
            json_name=self._json_fields is not None,
            indent=self.indent,
            arguments=self.argument_layout if argument and not self.is_written_as_json else None,
            is_native=self.is_native,
            after_reasoning=self.after_reasoning,
            template_text=self.template_text or (_opener(section) if argument else ""),
        )

    @property
    def argument_layout(self) -> ArgumentsLayout:
        """The layout of arguments one by one."""
        argument = self._argument
        is_typed = bool(argument.attributes)
        return ArgumentsLayout(
            before_key=_layout_text(argument.before_key),
            after_key="" if is_typed else _layout_text(argument.key_end + argument.before_value),
            values=tuple(self._value_layouts(argument)),
            names=r'[^\s<>"]+',
            on_lines=argument.is_on_lines,
        )

    def _value_layouts(self, argument: _Argument) -> Iterator[ValueLayout]:
        end = argument.value_ends[-1]
        for types, text in _typed(argument.attributes):
            start = argument.key_end + text + argument.before_value
            yield ValueLayout(types, start, end, end if types == STRING else "")
        quote, end_quote = self.quotes
        if quote:
            yield ValueLayout(STRING, quote, end_quote + end, end_quote + end, names_type=False)
        if not argument.attributes:
            yield ValueLayout(ALL_TYPES, "", end, end, not_start=quote)

    # The parser.

    @cached_property
    def _parts(self) -> tuple[str, str, str, str]:
        """The texts before the name, up to the arguments, of one argument, and after the arguments."""
        match = _CALL.fullmatch(self.call)
        assert match, self.call
        before_name, after_name, argument, after = match.groups("")
        return before_name, after_name, argument, after

    @cached_property
    def _argument(self) -> _Argument:
        return _Argument.of(self._parts[2])

    @cached_property
    def _json_fields(self) -> JsonFields | None:
        return JsonFields.of(self.call) if self.call.startswith("{") else None

    @cached_property
    def _call_opener(self) -> str:
        if self.opener is not None:
            return self.opener
        return "" if self._json_fields else _opener(self.call)

    @property
    def openers(self) -> tuple[str, ...]:
        """The markers after which `read` is called. If there are none, an output can only begin with calls."""
        starts = () if self.drops_around else (_opener(start) for start, _ in self.around)
        own = () if self._json_fields and self.around else (self._call_opener,)
        return tuple(filter(None, dict.fromkeys((*starts, *own))))

    @property
    def section_markers(self) -> tuple[str, ...]:
        """Optional markers before all calls, which the parser drops."""
        return tuple(start for start, _ in self.around) if self.drops_around else ()

    @property
    def also_dropped(self) -> tuple[str, ...]:
        """Optional markers after all calls, which the parser drops."""
        return tuple(end for _, end in self.around) if self.drops_around else ()

    @property
    def markers(self) -> tuple[str, ...]:
        """All texts around names and arguments. The parser needs the control tokens among these as text."""
        return (*(marker for layout in self.layouts for marker in layout.markers), *self.other_ends)

    @cached_property
    def _ends(self) -> tuple[str, ...]:
        ends = (end.strip(_SPACE + "]" * (self._json_fields is not None)) for _, end in self.around)
        return tuple(filter(None, (*ends, *self.other_ends)))

    def read(self, cursor: Cursor, calls: Calls, opener: str) -> Reader[bool]:
        """Parse the text after an opener. Returns False if it is not a call; then no event was emitted.

        In this case `cursor` has a record of the text that was read.
        """
        if self._json_fields:
            options = {"is_list": opener.endswith("["), "is_strict": not self.around}
            return (yield from read_json_calls(cursor, calls, self._json_fields, self._ends, **options))
        if not (yield from self._call(cursor, calls, opener)):
            return False
        # Some models leave out the start of the texts around all calls, and generate the end.
        yield from read_end(cursor, *self._ends)
        return True

    def _call(self, cursor: Cursor, calls: Calls, opener: str) -> Reader[bool]:
        before_name, after_name, argument, after = self._parts
        if opener != self._call_opener:
            before_name = next(start for start, _ in self.around if start.startswith(opener)) + before_name
        before_name = before_name[len(opener) :]
        ids = yield from _read_text(cursor, before_name)
        name = None if ids is None else (yield from read_one_of(cursor, *calls.offered))
        more = None if name is None else (yield from _read_text(cursor, after_name))
        if ids is None or name is None or more is None:
            return False
        yield from read_space(cursor)
        has_object = yield from is_next(cursor, "{")
        if has_object or (after_name and not argument):
            call_id = ids + more
            if self.id_has_name:
                call_id = before_name + name + after_name.partition("$")[0] + call_id
            yield from self._object(cursor, calls, name, after.strip(_SPACE), call_id)
            return True
        return bool(argument) and (yield from self._arguments(cursor, calls, name, after.strip(_SPACE)))

    def _object(self, cursor: Cursor, calls: Calls, name: str, end: str, call_id: str) -> Reader[None]:
        """Read arguments that are one object, and the text `end` after them."""
        yield from json_arguments(cursor, calls, name, *filter(None, [end]), call_id=call_id)

    def _arguments(self, cursor: Cursor, calls: Calls, name: str, end: str) -> Reader[bool]:
        """Read arguments one by one. They are a call if one of them or the end of the call is next."""
        key = self._argument.before_key.strip(_SPACE)
        tag = yield from read_one_of(cursor, key, end)
        if tag is None:
            return False
        yield calls.start(name)
        cursor.drop_record()
        opening = "{"
        while tag == key:
            is_end = yield from self._one_argument(cursor, calls, name, opening)
            opening = ", "
            tag = end if is_end else (yield from read_end(cursor, key, end))
        if tag in (None, end):
            # Any other text ends the call as well, and is content.
            yield calls.arguments("{}" if opening == "{" else "}")
            calls.close()
        return True

    def _one_argument(self, cursor: Cursor, calls: Calls, name: str, opening: str) -> Reader[bool]:
        """Read an argument, beginning with its name. Returns whether the end of the call was read, too."""
        argument = self._argument
        key, _ = yield from read_until(cursor, Markers(argument.key_end))
        types = parameter_types(calls.schema(name), key.strip())
        yield calls.arguments(f"{opening}{json.dumps(key.strip(), ensure_ascii=False)}: ")
        ends = argument.value_ends
        before_value = argument.before_value.strip(_SPACE)
        if before_value:
            attributes, mark = yield from read_until(cursor, Markers(before_value, *ends))
            types = argument.stated_types(attributes) or types
            if mark in ends:
                # The model left out the text before the value.
                yield calls.arguments(value_json(attributes.strip("\n"), types))
                return False
        if argument.is_on_lines:
            yield from read_one_of(cursor, "\n")
        quote, end_quote = self.quotes
        if quote and (yield from read_one_of(cursor, quote)):
            yield from stream_text(cursor, calls, end_quote, then=ends)
        elif types == STRING:
            # A value that must be a string can be streamed before its end is known.
            yield from stream_text(cursor, calls, *ends)
        else:
            # Read an object or list by JSON syntax first, since its strings may contain an end marker.
            nested = yield from maybe_nested(cursor)
            rest, mark = yield from read_until(cursor, Markers(*ends))
            yield calls.arguments(value_json(nested + rest, types) if mark else nested + rest)
        return False


@dataclass(frozen=True)
class _Argument:
    """The parts of the text of one argument."""

    before_key: str
    key_end: str
    attributes: str
    before_value: str
    is_on_lines: bool
    """Values are on separate lines. One line break on each side of a value is not part of the value."""
    value_ends: tuple[str, ...]
    """The texts that may end a value."""

    @classmethod
    def of(cls, text: str) -> _Argument:
        match = _ARGUMENT.fullmatch(text)
        assert match, text
        before_key, key_end, attributes, before_value, end = match.groups("")
        if not attributes:
            key_end, space, before_value = key_end.partition("~")
            before_value = space + before_value
        is_on_lines = key_end.endswith("\n") and end.startswith("\n")
        ends = (end, end.lstrip("\n")) if is_on_lines else (end,)
        return cls(before_key, key_end.rstrip("\n"), attributes, before_value, is_on_lines, ends)

    def stated_types(self, attributes: str) -> frozenset[str] | None:
        """The JSON types that the attributes of a value state; None if they state none."""
        pattern = re.sub(r"\\\$(type|string)", r"(\\w+)", re.escape(self.attributes.strip()))
        match = re.search(pattern, attributes) if self.attributes else None
        if match is None:
            return None
        if "$type" in self.attributes:
            return frozenset({match[1]})
        return STRING if match[1] == "true" else None


def _typed(attributes: str) -> list[tuple[frozenset[str], str]]:
    """The attributes for values of each group of JSON types."""
    if "$type" in attributes:
        return [(frozenset({name}), attributes.replace("$type", name)) for name in sorted(ALL_TYPES - {"integer"})]
    if "$string" in attributes:
        groups = {"true": STRING, "false": ALL_TYPES - STRING}
        return [(types, attributes.replace("$string", text)) for text, types in groups.items()]
    return []


def _opener(text: str) -> str:
    """The marker at the beginning of a text. The bracket of a list belongs to it only after a word."""
    return re.sub(r"(?<=\W)\[$", "", re.split(r"[~^$]", text, maxsplit=1)[0].rstrip("\n"))


def _layout_text(text: str) -> str:
    """A text with the placeholders of a layout."""
    text = _ATTRIBUTES.sub(r"\1", text)
    for hole, placeholder in _PLACEHOLDERS.items():
        text = text.replace(hole, placeholder)
    return text


def _read_text(cursor: Cursor, text: str) -> Reader[str | None]:
    """Read a text around a name, with white space before each part.

    Returns the ids in it; None if another text follows.
    """
    parts = [part for part in _PARTS.split(text) if part]
    ids = ""
    while parts:
        part = parts.pop(0)
        if _PARTS.fullmatch(part):
            found, marker = yield from read_until(cursor, Markers(parts.pop(0)))
            if marker is None:
                return None
            ids += found.strip() if part.startswith("$") else ""
        else:
            yield from read_space(cursor)
            if (yield from read_one_of(cursor, part)) is None:
                return None
    yield from read_space(cursor)
    return ids


def stream_text(cursor: Cursor, calls: Calls, *ends: str, then: tuple[str, ...] = ()) -> Reader[bool]:
    """Emit a value that is a string, up to one of the markers `ends`. Returns False if the output ends before it.

    With `then`, one of these markers must follow the end; otherwise the end is part of the string.
    """
    yield calls.arguments('"')
    while True:
        end = yield from emit_until(
            cursor, Markers(*ends), lambda text: calls.arguments(text_json(text)), holds_space=False
        )
        if end is None:
            return False
        cursor.begin()
        cursor.take(len(end))
        if not then or (yield from read_end(cursor, *then)) is not None:
            cursor.drop_record()
            yield calls.arguments('"')
            return True
        yield calls.arguments(text_json(cursor.end_record()))
