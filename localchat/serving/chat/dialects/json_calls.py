"""Tool calls as JSON objects with a name and arguments: one, several in a row, or a list."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from ...core.events import ContentDelta
from .call_layout import A_SPACE, CallLayout
from .call_style import CallStyle
from .calls import Calls
from .json_scan import decoded, read_value, stream_value
from .scan import Cursor, Markers, Reader, emit_until, is_next, read_end, read_marker, read_one_of, read_space

# Some models nest the name and the arguments in an object with this name.
_WRAPPER = "function"


class Outcome(Enum):
    """The result of reading a call."""

    CALL = auto()  # A complete call.
    BROKEN = auto()  # The start of a call was emitted, and its arguments are cut or not JSON.
    NO_CALL = auto()  # Not a call. No event was emitted.


@dataclass(frozen=True)
class JsonCalls(CallStyle):
    """Calls as JSON objects between `opener` and `end`.

    The parser also accepts other orders of the fields, additional fields, and missing end markers.
    """

    opener: str = ""
    """The marker before the calls. "": the calls are the whole output."""
    end: str = ""
    """The marker after the calls. "": there is none."""
    name: str = "name"
    """The field with the name of the tool."""
    arguments: str = "arguments"
    """The field with the arguments."""
    id: str = "id"
    """The field with the id of the call."""
    id_placeholder: str = ""
    """The format of ids: A_NUMBER or AN_ID. "": calls have no ids."""
    id_is_last: bool = False
    """The id comes after the arguments. Events have the id first, so calls are emitted only when they are complete."""
    is_list: bool = False
    """The calls are a JSON list."""
    is_each: bool = False
    """Each call has its own markers, instead of one pair around all calls."""
    line: str = ""
    """The text between the markers and the calls."""
    separator: str = ""
    """The text between calls, unless they are a list."""
    space: str = ""
    """The white space inside the braces and between the fields of an object."""
    indent: int | None = None
    """Arguments may be on several lines, indented by at most this many spaces. None: they are on one line."""
    is_strict: bool = False
    """An object with any other field is not a call. It may be JSON content, which is then streamed without delay."""
    other_ends: tuple[str, ...] = ()
    """Markers that some models generate instead of `end`."""
    template_text: str = ""
    """The style applies only to models whose chat template contains this text. "": to all models of the family."""

    @property
    def layouts(self) -> tuple[CallLayout, ...]:
        begin, end = self.opener + self.line, self.line + self.end if self.end else ""
        separator = self.separator
        id_field = f'"{self.id}": "{self.id_placeholder}"'
        has_first_id = bool(self.id_placeholder) and not self.id_is_last
        has_last_id = bool(self.id_placeholder) and self.id_is_last
        before_name = "{" + self.space + (f"{id_field}, " if has_first_id else "") + f'"{self.name}": "'
        after_call = (f", {id_field}" if has_last_id else "") + self.space + "}"
        if self.is_list:
            begin, end = f"{self.opener.removesuffix('[')}{self.line}[{A_SPACE}", f"{A_SPACE}]{end}"
            separator = f",{A_SPACE}"
        elif self.is_each:
            before_name, after_call, begin, end = begin + before_name, after_call + end, "", ""
        layout = CallLayout(
            opener=self.opener,
            begin=begin,
            before_name=before_name,
            before_arguments=f'",{self.space or " "}"{self.arguments}": ',
            after_call=after_call,
            separator=separator,
            end=end,
            indent=self.indent,
            template_text=self.template_text,
        )
        return (layout,)

    @property
    def markers(self) -> tuple[str, ...]:
        return (*super().markers, *self.other_ends)

    def read(self, cursor: Cursor, calls: Calls, opener: str) -> Reader[bool]:
        ends = tuple(filter(None, (self.end, *self.other_ends)))
        yield from read_space(cursor)
        is_list = opener.endswith("[") or (yield from read_one_of(cursor, "["))
        is_call = False
        while True:
            yield from read_space(cursor)
            if not (yield from is_next(cursor, "{")):
                break
            if is_call:
                cursor.begin()
            outcome = yield from _CallObject(cursor, calls, self).read()
            if outcome is Outcome.NO_CALL and is_call:
                yield ContentDelta(cursor.end_record())
            if outcome is Outcome.BROKEN:
                yield from raw_arguments(cursor, calls, *ends)
            if outcome is not Outcome.CALL:
                return is_call or outcome is Outcome.BROKEN
            is_call = True
            yield from read_space(cursor)
            yield from read_one_of(cursor, ",", ";")
        if is_call:
            if is_list:
                yield from read_end(cursor, "]")
            yield from read_end(cursor, *ends)
        return is_call

    @property
    def argument_fields(self) -> tuple[str, ...]:
        """The accepted names of the field with the arguments: some models use the name of another family."""
        return (self.arguments, "arguments", "parameters")

    def may_have(self, field: str) -> bool:
        """Whether a call may have this field."""
        known = (self.name, *self.argument_fields, self.id, _WRAPPER, "type")
        return not self.is_strict or field in known


def raw_arguments(cursor: Cursor, calls: Calls, *ends: str) -> Reader[str | None]:
    """Emit the text of a broken call as its arguments, up to one of the markers `ends`. Returns the marker, if any."""
    end = yield from emit_until(cursor, Markers(*ends), calls.arguments)
    if end:
        read_marker(cursor, end)
        calls.close()
    return end


class _CallObject:
    """Reads one call object: the name and arguments in either order. Other fields are skipped."""

    def __init__(self, cursor: Cursor, calls: Calls, style: JsonCalls) -> None:
        self._cursor = cursor
        self._calls = calls
        self._style = style
        self._is_wrapped = False
        # The name of the tool. None: not read yet, so the object may not be a call.
        self._called: str | None = None
        self._has_started = False
        self._has_arguments = False
        self._id: str | None = None
        # Arguments that were read before the start of the call could be emitted.
        self._held: str | None = None

    def read(self) -> Reader[Outcome]:
        """Read from the opening brace to the closing one."""
        complete = yield from self._fields()
        if self._called is None:
            return Outcome.NO_CALL
        yield from self._start(self._called)
        if not complete:
            return Outcome.BROKEN
        if not self._has_arguments:
            yield self._calls.arguments("{}")
        self._calls.close()
        return Outcome.CALL

    def _fields(self) -> Reader[bool]:
        separator = yield from read_one_of(self._cursor, "{")
        while separator in ("{", ","):
            yield from read_space(self._cursor)
            if (yield from read_one_of(self._cursor, "}")):
                return True
            if self._called is not None:
                self._cursor.begin()
            complete = yield from self._field()
            if self._called is not None:
                broken = self._cursor.end_record()
                # Broken JSON before the name is content. After the name, it is emitted as arguments.
                if broken and not complete:
                    yield from self._start(self._called)
                    yield self._calls.arguments(broken)
            if not complete:
                return False
            yield from read_space(self._cursor)
            separator = yield from read_one_of(self._cursor, ",", "}")
        return separator == "}"

    def _field(self) -> Reader[bool]:
        raw, _ = yield from read_value(self._cursor)
        key = decoded(raw)
        yield from read_space(self._cursor)
        if not isinstance(key, str) or not self._style.may_have(key):
            return False
        if (yield from read_one_of(self._cursor, ":")) is None:
            return False
        yield from read_space(self._cursor)
        if key == self._style.name and self._called is None:
            return (yield from self._name())
        if key in self._style.argument_fields and not self._has_arguments:
            return (yield from self._arguments())
        if key == _WRAPPER and not self._is_wrapped and (yield from is_next(self._cursor, "{")):
            self._is_wrapped = True
            return (yield from self._fields())
        raw, complete = yield from read_value(self._cursor)
        if key == self._style.id:
            call_id = decoded(raw)
            self._id = call_id if isinstance(call_id, str) else None
        return complete

    def _name(self) -> Reader[bool]:
        raw, _ = yield from read_value(self._cursor)
        name = decoded(raw)
        if not self._calls.may_call(name):
            return False
        self._called = name
        self._cursor.drop_record()
        if not self._style.id_is_last:
            yield from self._start(name)
        return True

    def _start(self, name: str) -> Reader[None]:
        """Emit the start of the call and the arguments so far, unless this was done."""
        if self._has_started:
            return
        self._has_started = True
        yield self._calls.start(name, self._id)
        if self._held is not None:
            yield self._calls.arguments(self._held)

    def _arguments(self) -> Reader[bool]:
        is_text = yield from is_next(self._cursor, '"')
        if self._called is not None:
            self._cursor.drop_record()
        if self._has_started and not is_text:
            self._has_arguments = True
            return (yield from stream_value(self._cursor, self._calls.arguments))
        raw, complete = yield from read_value(self._cursor)
        # Arguments may be JSON within a JSON string. Emit the decoded string.
        text = (decoded(raw) if is_text else None) or raw
        self._has_arguments = True
        if self._has_started:
            yield self._calls.arguments(text)
        else:
            self._held = text
        return complete
