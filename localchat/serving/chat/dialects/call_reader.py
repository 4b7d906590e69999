"""Reads tool calls in the formats of a family while they are generated. All formats may lack their end markers.

A function that begins a call reads the text up to the name of an offered tool first, and raises Mismatch, without an
event, if another text is next. After the name the call is certain: what follows is its arguments, even if it is broken.
"""

from __future__ import annotations

import json

from ...core.scan import Cursor, Mismatch, Reader
from .argument_reader import ArgumentReader
from .call_format import CallFormat
from .calls import Calls, emit_broken_arguments
from .element_reader import ElementReader
from .holes import Hole, Text, text_of, words_of
from .object_reader import ObjectReader
from .values import NAME, ValueReader, read_value


def read_calls(format: CallFormat, cursor: Cursor, calls: Calls) -> Reader[None]:
    """Read a call with the texts around it, or all calls of a list. Some models leave out the end of these texts.

    Raises Mismatch, without an event, if the text is not a call; `cursor.rewind()` makes it unread again.
    """
    if format.keys is not None or format.notation == "python":
        yield from _listed_calls(format, cursor, calls)
    else:
        yield from _named_call(format, cursor, calls)


def _named_call(format: CallFormat, cursor: Cursor, calls: Calls) -> Reader[None]:
    """Read a call that is a name and arguments: `<function=f>{"a": 1}`, or with a text around each argument."""
    head = text_of(format.section_begin, " ", format.call_head)
    name, generated_id = yield from _head(cursor, head, calls)
    call_id = format.id.id_of_call(name, generated_id) if format.id else generated_id
    # If nothing in the format follows the name, the text is a call only if an object is next.
    has_object = format.arguments is None and words_of(head)[-1] is not Hole.NAME
    if has_object or (yield from cursor.is_next("{")):
        is_json = format.notation == "json"
        yield from read_arguments(cursor, calls, name, *format.ends[:1], call_id=call_id, is_json=is_json)
    elif format.arguments is None:
        raise Mismatch
    else:
        assert not call_id, "the only id before arguments one by one is a number, that of Kimi K3"
        reader = ElementReader if format.arguments.repeats_key else ArgumentReader
        yield from reader(format, format.arguments, cursor, calls, name).read()
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
            name = yield from cursor.expect(*calls.names)
        else:
            end = words.pop(0)
            assert isinstance(end, str), "a word follows each id"
            generated_id, marker = yield from cursor.read_until(end)
            if marker is None:
                raise Mismatch
            call_id = generated_id.strip()
    yield from cursor.read_run()
    return name, call_id


def _listed_calls(format: CallFormat, cursor: Cursor, calls: Calls) -> Reader[None]:
    """Read calls that are objects or Python, `{"name": "f"}` or `f(a=1)`: the items of a list, or without brackets."""
    yield from _head(cursor, text_of(format.begin, " ", format.call_begin), calls)
    is_list = (yield from cursor.read_one_of("[")) is not None
    n_before = calls.n_begun
    try:
        while True:
            yield from cursor.read_run()
            if format.keys is None:
                yield from _python_call(cursor, calls, format)
            else:
                yield from ObjectReader(format, format.keys, cursor, calls).read()
            if calls.is_open:  # The arguments are broken or cut: what follows was read with them.
                return
            cursor.checkpoint()  # The separator stays unread if no call follows.
            yield from cursor.read_end(",", ";")
    except Mismatch:
        if calls.n_begun == n_before:
            raise
    cursor.rewind()
    if is_list:
        yield from cursor.read_end("]", ",]")
    yield from cursor.read_end(*format.ends)


def read_unmarked_call(cursor: Cursor, calls: Calls, *ends: str) -> Reader[None]:
    """Read an output that is nothing but the JSON of a call, `{"name": ..., "arguments": {...}}`, or has it in a fence.

    Small models of all families write calls like this at times. The call is emitted at the end of the output. Raises
    Mismatch at any other text than the markers `ends`.
    """
    yield from cursor.read_run()
    fence = yield from cursor.read_one_of("```json", "```")
    yield from cursor.read_run()
    yield from cursor.expect("{")
    names = {json.dumps(name, ensure_ascii=False): name for name in calls.names}
    expected_keys: tuple[str, ...] = ("name", "arguments", "parameters")
    name = arguments = ""
    for end_of_field in ",", "}":
        yield from cursor.read_run()
        key = yield from cursor.expect(*(f'"{key}"' for key in expected_keys))
        yield from cursor.read_run()
        yield from cursor.expect(":")
        yield from cursor.read_run()
        if key == '"name"':
            expected_keys = expected_keys[1:]
            name = names[(yield from cursor.expect(*names))]
        elif (yield from cursor.is_next("{")):
            expected_keys = expected_keys[:1]
            arguments = yield from read_value(cursor)
        else:
            raise Mismatch
        yield from cursor.read_run()
        yield from cursor.expect(end_of_field)
    if fence:
        yield from cursor.read_end("```")
    while (yield from cursor.read_end(*ends)):
        pass
    if (yield from cursor.has_text()):
        raise Mismatch
    calls.start(name)
    calls.arguments(arguments)
    calls.is_open = False


def read_arguments(
    cursor: Cursor,
    calls: Calls,
    name: str,
    *ends: str,
    call_id: str | None = None,
    is_json: bool = True,
    closer: str = "",
) -> Reader[None]:
    """Begin a call whose name was read, and read its arguments, one object, and one of the markers `ends`.

    The text of broken arguments is emitted as it is. For `is_json` and `closer` see `ValueReader`.
    """
    calls.start(name, call_id)
    cursor.commit()  # It is a call, which the caller can no longer make unread.
    yield from cursor.read_run()
    try:
        if closer or (yield from cursor.is_next("{")):
            yield from ValueReader(cursor, calls.arguments, *ends, is_json=is_json, closer=closer).read()
        else:
            yield from cursor.expect(*ends)
            calls.arguments("{}")
            ends = ()
    except Mismatch:
        yield from emit_broken_arguments(cursor, calls, *ends)
        # Broken arguments in another notation are converted to JSON only in part, so the call counts as cut.
        calls.is_open = calls.is_open or not is_json
        return
    calls.is_open = False
    yield from cursor.read_end(*ends)


def _python_call(cursor: Cursor, calls: Calls, format: CallFormat) -> Reader[None]:
    """Read a call in Python's notation, `f(a=1)`. Some models write an object in the brackets, `f({"a": 1})`."""
    name = (yield from cursor.expect(*(name + "(" for name in calls.names))).removesuffix("(")
    key = yield from cursor.next_run(NAME)
    first = cursor.text[cursor.at + len(key) :][:1]
    if first not in (("=",) if key.strip() else ("{", ")")):  # a=1, or an object, or no arguments.
        raise Mismatch
    has_object = first == "{"
    closer = "" if has_object else ")"
    yield from read_arguments(cursor, calls, name, *format.ends, is_json=False, closer=closer)
    if has_object and not calls.is_open:
        yield from cursor.read_end(")")
