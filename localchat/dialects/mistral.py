"""Mistral Nemo, Small 3, Devstral, Magistral, Ministral 3, Large 3.

[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}, "id": "nine chars"}]
[TOOL_CALLS]f[CALL_ID]nine chars[ARGS]{"a": 1}
"""

from __future__ import annotations

from .call_layout import AN_ID
from .calls import Calls
from .dialect import CallTexts, Dialect, call_objects
from .json_calls import Keys, json_calls
from .named_json import json_arguments
from .scan import Cursor, Markers, Reader, is_next, more, one_of, space, until

_CALLS, _ID, _ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"

_read_list = json_calls(keys=Keys(id_is_last=True))


def _read_call(cursor: Cursor, calls: Calls, opener: str) -> Reader[bool]:
    yield from space(cursor)
    if (yield from more(cursor)) and cursor.peek() in "[{":
        return (yield from _read_list(cursor, calls, opener))
    name = yield from one_of(cursor, *calls.offered)
    marker = yield from one_of(cursor, _ARGUMENTS, _ID)
    call_id = None
    if marker == _ID:
        call_id, marker = yield from until(cursor, Markers(_ARGUMENTS))
    # Some models leave out [ARGS].
    if name is None or (marker is None and not (yield from is_next(cursor, "{"))):
        return False
    yield from json_arguments(cursor, calls, name, call_id=call_id)
    return True


def _named(between: str, mark: str) -> CallTexts:
    return CallTexts(
        opener=_CALLS,
        before_name=_CALLS,
        before_arguments=between + _ARGUMENTS,
        after_call="",
        json_name=False,
        mark=mark,
    )


DIALECT = Dialect(
    "mistral",
    detected_by=((_CALLS,),),
    openers=(_CALLS,),
    read_call=_read_call,
    closers=(_ID, _ARGUMENTS),
    call_texts=(
        _named(_ID + AN_ID, _ID),
        _named("", _ARGUMENTS),
        call_objects(_CALLS, "", after_call=f', "id": "{AN_ID}"}}'),
    ),
)
