"""Calls written as a name, then arguments in JSON, each between markers."""

from __future__ import annotations

from .calls import Calls
from .json_calls import raw_arguments
from .json_scan import stream_value
from .scan import Cursor, Reader, closing, is_next, one_of, space


def offered_name(cursor: Cursor, calls: Calls, *ends: str) -> Reader[str | None]:
    """Read an offered name and one of the markers that may end it; None if anything else comes.

    Only what may still become an offered name waits.
    """
    names = {name + end: name for name in calls.offered for end in ends}
    found = yield from one_of(cursor, *names)
    return names[found] if found else None


def json_arguments(
    cursor: Cursor, calls: Calls, name: str, *ends: str, call_id: str | None = None
) -> Reader[str | None]:
    """Send a call whose name was read: its arguments follow as one JSON value, then an end, which is returned."""
    yield calls.head(name, call_id)
    cursor.commit()
    yield from space(cursor)
    if not (yield from is_next(cursor, "{")):
        end = yield from one_of(cursor, *ends)
        if end:
            yield calls.arguments("{}")
            calls.close()
        elif cursor.left():
            end = yield from raw_arguments(cursor, calls, *ends)
        return end
    if (yield from stream_value(cursor, calls.arguments)):
        calls.close()
        return (yield from closing(cursor, *ends))
    return (yield from raw_arguments(cursor, calls, *ends))
