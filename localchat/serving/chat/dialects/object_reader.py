"""Reads a call that is a JSON object, whose name and arguments come in either order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ...core.scan import Cursor, Mismatch, Reader
from .call_format import CallFormat, ObjectKeys
from .calls import Calls, emit_broken_arguments
from .values import ValueReader, decode, read_value


@dataclass
class ObjectReader:
    """Reads one call.

    The call begins at its name. If it breaks before the end of its arguments, the rest of its text is emitted as
    arguments, unless the end of the output cuts it. After the arguments, the call is complete, and a broken field stays
    unread. Fields other than the name, arguments and id are skipped.
    """

    format: CallFormat
    keys: ObjectKeys
    cursor: Cursor
    calls: Calls
    _values: dict[str, str] = field(default_factory=dict)  # The JSON of fields that may be needed later, by their keys.
    _name: str = ""
    _has_begun: bool = False
    _has_arguments: bool = False  # Whether all arguments were emitted.

    def read(self) -> Reader[None]:
        """Read the object. Raises Mismatch, without an event, if it is not a call."""
        cursor, calls = self.cursor, self.calls
        yield from cursor.expect("{")
        try:
            ends = ("}", *self.format.ends)  # Some models leave out the bracket before the marker.
            while (mark := (yield from cursor.read_end(",", *ends))) not in ends:
                if not mark:
                    yield from self._field()
        except Mismatch:
            if not self._has_begun:
                raise
            if self._has_arguments:
                if cursor.ended:  # The field is cut, and with a limit the call.
                    cursor.commit()
                else:
                    cursor.rewind()
                self._end(is_cut=cursor.is_cut)
                return
            broken = cursor.commit()
            calls.arguments("" if cursor.ended else broken)
            calls.release()
            yield from emit_broken_arguments(cursor, calls, *self.format.ends)
            return
        if not self._has_begun:
            raise Mismatch
        cursor.commit()
        if not self._has_arguments:
            calls.arguments("{}")
        self._end()

    def _end(self, *, is_cut: bool = False) -> None:
        """End the call, whose arguments are complete."""
        self.calls.release(self._id)
        self.calls.is_open = is_cut

    @property
    def _id_key(self) -> str:
        return self.format.id.mark if self.format.id else "id"

    @property
    def _id(self) -> Any:
        generated_id = decode(self._values.get(self._id_key, ""))
        return self.format.id.id_of_call(self._name, generated_id) if self.format.id else generated_id

    @property
    def _argument_keys(self) -> tuple[str, ...]:
        """The keys that may have the arguments: some models use those of other families."""
        return (self.keys.arguments, "arguments", "parameters")

    def _field(self) -> Reader[None]:
        if self._has_begun:
            self.cursor.checkpoint()
        key = yield from self._key()
        # Without an opener, the object may be JSON content, which must be streamed without delay.
        if not self.format.opener and key not in (self.keys.name, *self._argument_keys, self._id_key, "type"):
            raise Mismatch
        if not self._has_begun and not self.keys.name:
            self._begin(key)
            yield from self._arguments()
        elif not self._has_begun and key == self.keys.name:
            self._begin(decode((yield from read_value(self.cursor, may_be_text=True))))
        elif self._has_begun and key in self._argument_keys and not self._has_arguments:
            yield from self._arguments()
        else:
            self._values.setdefault(key, (yield from read_value(self.cursor)))

    def _key(self) -> Reader[str]:
        """Read the key of a field, and its colon."""
        key = decode((yield from read_value(self.cursor, may_be_text=True)))
        yield from self.cursor.read_run()
        if not isinstance(key, str):
            raise Mismatch
        yield from self.cursor.expect(":")
        yield from self.cursor.read_run()
        return key

    def _begin(self, name: object) -> None:
        """Begin the call, with the arguments if they came before the name."""
        if not isinstance(name, str) or name not in self.calls.names:
            raise Mismatch
        self._name = name
        self.calls.start(name, self._id, id_is_last=self.format.id_is_last)
        self.cursor.commit()
        self._has_begun = True
        earlier = [self._values[key] for key in self._argument_keys if key in self._values]
        if earlier:
            self.calls.arguments(_object_text(earlier[0]))
            self._has_arguments = True

    def _arguments(self) -> Reader[None]:
        """Emit the arguments, which are next."""
        if (yield from self.cursor.is_next("{")):
            self.cursor.commit()
            yield from ValueReader(self.cursor, self.calls.arguments).read()
        else:
            self.cursor.checkpoint()
            self.calls.arguments(_object_text((yield from read_value(self.cursor))))
        self._has_arguments = True


def _object_text(raw: str) -> str:
    """The JSON of arguments. Some models write them as JSON within a JSON string, or null if there are none.

    Other values than objects stay as they are: the interfaces show them.
    """
    value = decode(raw)
    text = value if isinstance(value, str) else raw
    return text if text.strip() not in ("", "null") else "{}"
