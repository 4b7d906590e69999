"""Reads tool calls in the formats of a family while they are generated. All formats may lack their end markers."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Callable

from ...core.events import Event, ToolCallArguments, ToolCallStart
from ...core.scan import Cursor, Markers, Mismatch, Reader
from ...schema.types import STRING, types_at
from .call_format import ArgumentFormat, CallFormat, Hole, Text, text_of, words_of
from .values import NAME, Value, decode, maybe_nested, read_value, text_json, value_json

_ID = re.compile("[!-~]{1,64}")  # Ids that clients can send back: no white space, and not too long for their databases.
_TYPE = re.compile(r'\b(type|string)="(\w+)"')  # The attributes that state the type of a value.
_ITEM = "item"  # The name of list items that are elements.
_MAX_DEPTH = 60  # The limit of nested elements: deeper than any real schema, and below Python's recursion limit.


def new_call_id() -> str:
    return "call_" + secrets.token_hex(12)


class CallFound(Exception):
    """A call would begin, but `Calls.is_trial` is set."""


class Calls:
    """Emits the events of tool calls. A call of a tool that is not offered is treated as text."""

    def __init__(
        self, tools: Sequence[Mapping[str, Any]], new_id: Callable[[], str], emit: Callable[[Event], object]
    ) -> None:
        functions = [tool["function"] for tool in tools]
        # The JSON schema of the arguments of each tool that may be called.
        self.schemas: dict[str, Mapping[str, Any]] = {one["name"]: one.get("parameters") or {} for one in functions}
        self.made = 0  # The number of calls that have begun.
        self.is_open = False  # Whether the arguments of the last call are incomplete.
        self.is_trial = False  # Raise CallFound instead of beginning a call, to find out whether a text is one.
        self._new_id = new_id
        self._emit = emit
        self._ids: set[str] = set()
        # The name, the id and the arguments of a call that is held; None: there is none.
        self._held: tuple[str, str | None, list[str]] | None = None

    def start(self, name: str, call_id: str | None = None, *, is_held: bool = False) -> None:
        """Begin a call. `call_id` is the id that the model generated; an invalid or repeated one is replaced. With
        `is_held`, the events wait for `release`, since the id comes after the arguments."""
        if self.is_trial:
            raise CallFound
        self.made += 1
        self.is_open = True
        self._held = (name, call_id, [])
        if not is_held:
            self.release()

    def release(self, call_id: str | None = None) -> None:
        """Emit the call that is held, if there is one. `call_id` is the id that came after its arguments."""
        if self._held is None:
            return
        (name, first_id, texts), self._held = self._held, None
        call_id = call_id if first_id is None else first_id
        if not isinstance(call_id, str) or not _ID.fullmatch(call_id) or call_id in self._ids:
            call_id = self._new_id()
        self._ids.add(call_id)
        self._emit(ToolCallStart(self.made - 1, call_id, name))
        self.arguments("".join(texts))

    def arguments(self, text: str) -> None:
        if self._held is not None:
            self._held[2].append(text)
        elif text:
            self._emit(ToolCallArguments(self.made - 1, text))


def read_calls(format: CallFormat, cursor: Cursor, calls: Calls) -> Reader[None]:
    """Read a call with the texts around it, or all calls of a list. Some models leave out the end of these texts.
    Raises Mismatch, without an event, if the text is not a call; `cursor.put_back()` makes it unread again."""
    if format.keys is not None or format.notation == "python":
        yield from _list(format, cursor, calls)
        return
    head = text_of(format.section_begin, format.call_head)
    name, call_id = yield from _head(cursor, head, calls)
    if format.before_id is not None:
        call_id = format.full_id.format(name=name, id=call_id)
    # If nothing in the format follows the name, the text is a call only if an object is next.
    is_object = format.arguments is None and words_of(head)[-1] is not Hole.NAME
    if is_object or (yield from cursor.is_next("{")):
        is_json = format.notation == "json"
        yield from read_arguments(cursor, calls, name, *format.ends[:1], call_id=call_id, is_json=is_json)
    elif format.arguments is None:
        raise Mismatch
    else:
        yield from _Arguments(format.arguments, cursor, calls, name, format.ends[0]).read()
    yield from cursor.read_end(*format.ends)


def _head(cursor: Cursor, text: Text, calls: Calls) -> Reader[tuple[str, str]]:
    """Read the text before arguments, with white space before each word. Returns the name and the id in it."""
    words, name, call_id = list(words_of(text)), "", ""
    while words:
        word = words.pop(0)
        if isinstance(word, str):
            yield from cursor.read_run()
            yield from cursor.expect(word)
        elif word is Hole.NAME:
            yield from cursor.read_run()
            name = yield from cursor.expect(*calls.schemas)
        else:
            end = words.pop(0)
            assert isinstance(end, str), "a word follows each id"
            text_before, marker = yield from cursor.read_until(end)
            if marker is None:
                raise Mismatch
            call_id += text_before.strip()
    yield from cursor.read_run()
    return name, call_id


def _list(format: CallFormat, cursor: Cursor, calls: Calls) -> Reader[None]:
    """Read calls that may be the items of a list."""
    yield from _head(cursor, text_of(format.begin, " ", format.call_begin), calls)
    is_list = (yield from cursor.read_one_of("[")) is not None
    read = _python_call if format.keys is None else _object_call
    n_before = calls.made
    try:
        while True:
            yield from cursor.read_run()
            yield from read(cursor, calls, format)
            if calls.is_open:
                return
            cursor.begin()
            yield from cursor.read_end(",", ";")
    except Mismatch:
        if calls.made == n_before:
            raise
    cursor.put_back()
    if is_list:
        yield from cursor.read_end("]", ",]")
    yield from cursor.read_end(*format.ends)


def read_sole_call(cursor: Cursor, calls: Calls, *ends: str) -> Reader[None]:
    """Read an output that is nothing but `{"name": ..., "arguments": {...}}`, bare or in a code fence. The call is
    emitted at the end of the output. Raises Mismatch at any other text than the markers `ends`."""
    yield from cursor.read_run()
    fence = yield from cursor.read_one_of("```json", "```")
    yield from cursor.read_run()
    yield from cursor.expect("{")
    names = {json.dumps(name, ensure_ascii=False): name for name in calls.schemas}
    keys: tuple[str, ...] = ("name", "arguments", "parameters")
    name = arguments = ""
    for end in ",", "}":
        yield from cursor.read_run()
        key = yield from cursor.expect(*(f'"{key}"' for key in keys))
        yield from cursor.read_run()
        yield from cursor.expect(":")
        yield from cursor.read_run()
        if key == '"name"':
            keys = keys[1:]
            name = names[(yield from cursor.expect(*names))]
        elif (yield from cursor.is_next("{")):
            keys = keys[:1]
            arguments = yield from read_value(cursor)
        else:
            raise Mismatch
        yield from cursor.read_run()
        yield from cursor.expect(end)
    if fence:
        yield from cursor.read_end("```")
    while (yield from cursor.read_end(*ends)):
        pass
    if (yield from cursor.has_text()):
        raise Mismatch
    calls.start(name)
    calls.arguments(arguments)
    calls.is_open = False


def _object_call(cursor: Cursor, calls: Calls, format: CallFormat) -> Reader[None]:
    """Read one call object: the name and arguments in either order. Other fields are skipped. If a call breaks after
    its name, the rest of its text is emitted as arguments. Without an opener, a field other than the name, arguments,
    id and type is refused at once, since the object may be JSON content, which must be streamed without delay."""
    yield from cursor.expect("{")
    keys = format.keys
    assert keys is not None
    name_key, id_key = keys.name, keys.id or "id"
    argument_keys = (keys.arguments, "arguments", "parameters")  # Some models use those of other families.
    # The JSON of the fields before the name.
    fields: dict[str, str] = {}
    has_started = has_arguments = False
    try:
        while (mark := (yield from cursor.read_end(",", "}"))) != "}":
            if mark:
                continue
            if has_started:
                cursor.begin()
            key = yield from _key(cursor)
            if not format.opener and key not in (name_key, *argument_keys, id_key, "type"):
                raise Mismatch
            if not has_started and name_key in (key, ""):
                name = decode((yield from read_value(cursor))) if name_key else key
                if not isinstance(name, str) or name not in calls.schemas:
                    raise Mismatch
                calls.start(name, decode(fields.get(id_key, "")), is_held=format.id_is_last)
                cursor.end_record()
                has_started = True
                before = next((fields[key] for key in argument_keys if key in fields), None)
                if before is not None:
                    calls.arguments(_object_text(before))
                    has_arguments = True
                if name_key:
                    continue
                key = argument_keys[0]
            if not has_started or key not in argument_keys or has_arguments:
                fields.setdefault(key, (yield from read_value(cursor)))
                continue
            has_arguments = True
            if (yield from cursor.is_next('"')):
                cursor.begin()
                calls.arguments(_object_text((yield from read_value(cursor))))
            else:
                cursor.end_record()
                yield from Value(cursor, calls.arguments).read()
    except Mismatch:
        if not has_started:
            raise
        calls.arguments(cursor.end_record())
        calls.release()
        yield from _raw_arguments(cursor, calls, *format.ends)
        return
    if not has_started:
        raise Mismatch
    cursor.end_record()
    if not has_arguments:
        calls.arguments("{}")
    calls.release(decode(fields.get(id_key, "")))
    calls.is_open = False


def _key(cursor: Cursor) -> Reader[str]:
    key = decode((yield from read_value(cursor)))
    yield from cursor.read_run()
    if not isinstance(key, str):
        raise Mismatch
    yield from cursor.expect(":")
    yield from cursor.read_run()
    return key


def _object_text(raw: str) -> str:
    """The JSON of arguments. Some models write them as JSON within a JSON string."""
    text = decode(raw)
    return (text if text.strip() else "{}") if isinstance(text, str) else raw


def read_arguments(
    cursor: Cursor,
    calls: Calls,
    name: str,
    *ends: str,
    call_id: str | None = None,
    is_json: bool = True,
    closer: str = "",
) -> Reader[None]:
    """Emit a call whose name was read, and read its arguments, one object, and one of the markers `ends`. The text of
    broken arguments is emitted as it is. For `is_json` and `closer` see `Value`."""
    calls.start(name, call_id)
    cursor.end_record()
    yield from cursor.read_run()
    try:
        if closer or (yield from cursor.is_next("{")):
            yield from Value(cursor, calls.arguments, *ends, is_json=is_json, closer=closer).read()
        else:
            yield from cursor.expect(*ends)
            calls.arguments("{}")
            ends = ()
    except Mismatch:
        yield from _raw_arguments(cursor, calls, *ends)
        # Broken arguments in another notation are converted to JSON only in part, so the call counts as cut.
        calls.is_open = calls.is_open or not is_json
        return
    calls.is_open = False
    yield from cursor.read_end(*ends)


def _raw_arguments(cursor: Cursor, calls: Calls, *ends: str) -> Reader[None]:
    """Emit the text of a broken call as its arguments, up to one of the markers `ends`."""
    if (yield from cursor.emit_until(Markers(*ends), calls.arguments)):
        yield from cursor.read_end(*ends)
        calls.is_open = False


def _python_call(cursor: Cursor, calls: Calls, format: CallFormat) -> Reader[None]:
    found = yield from cursor.expect(*(name + "(" for name in calls.schemas))
    key = yield from cursor.next_run(NAME)
    first = cursor.text[cursor.at + len(key) :][:1]
    if not first or first not in ("=" if key.strip() else "{)"):
        raise Mismatch
    closer = "" if first == "{" else ")"
    yield from read_arguments(cursor, calls, found[:-1], *format.ends, is_json=False, closer=closer)
    if first == "{" and not calls.is_open:
        yield from cursor.read_end(")")


@dataclass(frozen=True)
class _Arguments:
    """Reads arguments that are written one by one.

    Those of MiniMax-M3 are nested elements, with a prefix P before every tag. {"a": "text", "b": [1]} is written as

        P<a>textP</a>P<b>P<item>1P</item>P</b>
    """

    format: ArgumentFormat
    cursor: Cursor
    calls: Calls
    name: str  # The name of the tool.
    call_end: str

    @property
    def start(self) -> str:
        return self.format.before_key

    def read(self) -> Reader[None]:
        """Read the arguments. Raises Mismatch unless an argument or the end of the call is next."""
        calls = self.calls
        tag: str | None = yield from self.cursor.expect(self.start, self.call_end)
        calls.start(self.name)
        self.cursor.end_record()
        if tag == self.start:
            tag = yield from self._items(self.call_end, frozenset({"object"}))
        else:
            calls.arguments("{}")
        calls.is_open = tag not in (None, self.call_end)  # Any other text ends the call as well, and is content.

    def _items(self, end: str, types: frozenset[str], *path: str | None) -> Reader[str | None]:
        """Emit the arguments, or the elements in an element, as an object or a list. `start` was read already. Returns
        the marker that ends them; None: another text follows; "" or a part of a marker: the output ends."""
        opening, is_list = "", False
        tag: str | None = self.start
        # Any other end tag ends them too, since models leave out end tags.
        ends = (end, self.call_end, self.start + "/")
        while tag == self.start:
            name = (yield from self.cursor.read_until(self.format.after_key))[0].strip()
            # A first element `item` begins a list. If the schema allows only an object, it is a field of this name.
            is_list = is_list or (not opening and name == _ITEM and types != {"object"})
            opening = ", " if opening else "[" if is_list else "{"
            self.calls.arguments(opening if is_list else f"{opening}{json.dumps(name, ensure_ascii=False)}: ")
            tag = yield from self._value(name, *path, None if types == {"array"} else name)
            if tag and tag != self.call_end and path:
                # Other text between elements is dropped.
                tag = (yield from self.cursor.read_until(self.start, *ends))[1] or ""
            elif tag and tag != self.call_end:
                tag = yield from self.cursor.read_end(self.start, *ends)
        if tag in (None, *ends):
            self.calls.arguments("]" if is_list else "}")
        return tag

    def _value(self, name: str, *path: str | None) -> Reader[str | None]:
        """Emit the value of the argument or element `name`. Returns the marker that ends it, or what `_items` returns.
        `path`: see `types_at`. The end marker of the call may also end an element."""
        format, cursor, calls = self.format, self.cursor, self.calls
        types = types_at(calls.schemas[self.name], *path)
        end = format.after_value + (name + format.after_key if format.repeats_key else "")
        ends: tuple[str, ...]
        ends = (end, self.call_end) if format.repeats_key else (f"\n{end}", end) if format.value_on_lines else (end,)
        if format.before_value:
            attributes, mark = yield from cursor.read_until(format.before_value, *ends)
            if mark in ends:
                # The model left out the text before the value.
                calls.arguments(value_json(attributes.strip("\n"), types))
                return mark
            stated = _TYPE.search(attributes)
            if stated and stated[1] == "type":
                types = frozenset({stated[2]})
            elif stated and stated[2] == "true":
                types = STRING
        if format.value_on_lines:
            yield from cursor.read_one_of("\n")
        quote, end_quote = format.quotes
        if quote and (yield from cursor.read_one_of(quote)):
            types, ends = STRING, tuple(end_quote + space + end for space in ("", " ", "\n"))
        if types == STRING:
            # A value that must be a string can be streamed before its end is known.
            calls.arguments('"')
            markers = Markers(*ends)
            mark = yield from cursor.emit_until(
                markers, lambda text: calls.arguments(text_json(text)), holds_space=False
            )
            if mark:
                cursor.take(len(mark))
                calls.arguments('"')
            return mark or ""
        # Read an object or list by JSON syntax first, since its strings may contain an end marker.
        text = yield from maybe_nested(cursor)
        if format.repeats_key and not text and len(path) < _MAX_DEPTH:
            cursor.begin()
            yield from cursor.read_run()
            if (yield from cursor.read_one_of(self.start, self.start + "/")) == self.start:
                cursor.end_record()
                return (yield from self._items(end, types, *path))
            cursor.put_back()
        rest, mark = yield from cursor.read_until(*ends)
        calls.arguments(value_json(text + rest, types) if mark else text + rest)
        return mark or ""
