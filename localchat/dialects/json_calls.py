"""Calls written as JSON objects that hold a name and arguments, alone, in a row or in a list."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from ..protocol.events import ContentDelta
from .calls import Calls
from .dialect import CallReader
from .json_scan import decoded, read_value, stream_value
from .scan import Cursor, Markers, Reader, closing, is_next, one_of, read, space, stream


class Outcome(Enum):
    """How reading a call went."""

    CALL = auto()  # read to its end
    BROKEN = auto()  # its head was sent, then it was cut or no JSON
    NO_CALL = auto()  # nothing was sent


@dataclass(frozen=True)
class Keys:
    """The names of the members; a member `wrapper` holds the call in a further object.

    With `is_strict` an object with any other member is no call: it may be an answer in JSON, which
    should not wait for its end. With `id_is_last` the id comes after the arguments: as it is sent before
    them, calls are sent when they are complete.
    """

    name: tuple[str, ...] = ("name",)
    arguments: tuple[str, ...] = ("arguments", "parameters")
    id: tuple[str, ...] = ("id",)
    wrapper: tuple[str, ...] = ("function",)
    is_strict: bool = False
    id_is_last: bool = False

    def allows(self, key: str) -> bool:
        """Whether an object with this member may be a call."""
        known = (*self.name, *self.arguments, *self.id, *self.wrapper, "type")
        return not self.is_strict or key in known


KEYS = Keys()


def json_calls(*ends: str, keys: Keys = KEYS) -> CallReader:
    """A reader of call objects after an opener: one, several in a row, or a list, then an end."""

    def read_calls(cursor: Cursor, calls: Calls, opener: str) -> Reader[bool]:
        yield from space(cursor)
        is_list = opener.endswith("[") or (yield from one_of(cursor, "["))
        is_call = False
        while True:
            yield from space(cursor)
            if not (yield from is_next(cursor, "{")):
                break
            if is_call:
                cursor.begin()
            outcome = yield from CallObject(cursor, calls, keys).read()
            if outcome is Outcome.NO_CALL and is_call:
                yield ContentDelta(cursor.recorded())
            if outcome is Outcome.BROKEN:
                yield from raw_arguments(cursor, calls, *ends)
            if outcome is not Outcome.CALL:
                return is_call or outcome is Outcome.BROKEN
            is_call = True
            yield from space(cursor)
            yield from one_of(cursor, ",", ";")
        if is_call:
            if is_list:
                yield from closing(cursor, "]")
            yield from closing(cursor, *ends)
        return is_call

    return read_calls


def raw_arguments(cursor: Cursor, calls: Calls, *ends: str) -> Reader[str | None]:
    """Send what follows a broken call's head as its arguments, since it can be nothing else (K19); the end, if any."""
    end = yield from stream(cursor, Markers(*ends), calls.arguments)
    if end:
        read(cursor, end)
        calls.close()
    return end


class CallObject:
    """Reads one call object: the name and arguments in either order, other members skipped."""

    def __init__(self, cursor: Cursor, calls: Calls, keys: Keys = KEYS) -> None:
        self._cursor = cursor
        self._calls = calls
        self._keys = keys
        self._is_wrapped = False
        # The name of the tool, once it was read: then the object is a call.
        self._called: str | None = None
        self._has_head = False
        self._has_arguments = False
        self._id: str | None = None
        # Arguments that were read before the head could be sent.
        self._held: str | None = None

    def read(self) -> Reader[Outcome]:
        """Read from the opening brace to the closing one."""
        complete = yield from self._members()
        if self._called is None:
            return Outcome.NO_CALL
        yield from self._head(self._called)
        if not complete:
            return Outcome.BROKEN
        if not self._has_arguments:
            yield self._calls.arguments("{}")
        self._calls.close()
        return Outcome.CALL

    def _members(self) -> Reader[bool]:
        separator = yield from one_of(self._cursor, "{")
        while separator in ("{", ","):
            yield from space(self._cursor)
            if (yield from one_of(self._cursor, "}")):
                return True
            if self._called is not None:
                self._cursor.begin()
            complete = yield from self._member()
            # Before the name all is kept, since it may be text; after it what is broken can be nothing else than
            # arguments, unless it was sent as such.
            broken = self._cursor.recorded() if self._called is not None else ""
            if broken and not complete and self._called is not None:
                yield from self._head(self._called)
                yield self._calls.arguments(broken)
            if not complete:
                return False
            yield from space(self._cursor)
            separator = yield from one_of(self._cursor, ",", "}")
        return separator == "}"

    def _member(self) -> Reader[bool]:
        raw, _ = yield from read_value(self._cursor)
        key = decoded(raw)
        yield from space(self._cursor)
        if not isinstance(key, str) or not self._keys.allows(key):
            return False
        if (yield from one_of(self._cursor, ":")) is None:
            return False
        yield from space(self._cursor)
        if key in self._keys.name and self._called is None:
            return (yield from self._name())
        if key in self._keys.arguments and not self._has_arguments:
            return (yield from self._arguments())
        if key in self._keys.wrapper and not self._is_wrapped and (yield from is_next(self._cursor, "{")):
            self._is_wrapped = True
            return (yield from self._members())
        raw, complete = yield from read_value(self._cursor)
        if key in self._keys.id:
            call_id = decoded(raw)
            self._id = call_id if isinstance(call_id, str) else None
        return complete

    def _name(self) -> Reader[bool]:
        raw, _ = yield from read_value(self._cursor)
        name = decoded(raw)
        if not self._calls.may_call(name):
            return False
        self._called = name
        self._cursor.commit()
        if not self._keys.id_is_last:
            yield from self._head(name)
        return True

    def _head(self, name: str) -> Reader[None]:
        """Send the name, the id and the arguments as far as they were read, if that was not done yet."""
        if self._has_head:
            return
        self._has_head = True
        yield self._calls.head(name, self._id)
        if self._held is not None:
            yield self._calls.arguments(self._held)

    def _arguments(self) -> Reader[bool]:
        is_text = yield from is_next(self._cursor, '"')
        if self._called is not None:
            self._cursor.commit()
        if self._has_head and not is_text:
            self._has_arguments = True
            return (yield from stream_value(self._cursor, self._calls.arguments))
        raw, complete = yield from read_value(self._cursor)
        # Arguments written as a string are JSON within JSON: callers want the inner text.
        text = (decoded(raw) if is_text else None) or raw
        self._has_arguments = True
        if self._has_head:
            yield self._calls.arguments(text)
        else:
            self._held = text
        return complete
