"""Tool calls as a name and a JSON object of arguments, each between markers."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from .call_layout import A_NUMBER, AN_ID, CallLayout
from .call_style import CallStyle
from .calls import Calls
from .json_calls import raw_arguments
from .json_scan import stream_value
from .scan import Cursor, Markers, Reader, is_next, read_end, read_one_of, read_space, read_until

_PLACEHOLDERS = re.compile(f"([{A_NUMBER}{AN_ID}])")


@dataclass(frozen=True)
class NamedCalls(CallStyle):
    """Each call is `call`, `before_name`, the name, `before_arguments`, the arguments, `after_call`.

    The texts before and after the name may have a placeholder for an id or a number.
    """

    call: str
    """The marker that begins each call."""
    before_name: str = ""
    before_arguments: str = ""
    after_call: str = ""
    separator: str = ""
    section: tuple[str, str] = ("", "")
    """The markers around all calls."""
    after_reasoning: str = "\n\n"
    template_text: str = ""
    """The style applies only to models whose chat template contains this text. "": to all models of the family."""
    has_own_id: bool = False
    """The name and the texts around it, such as "functions.f:0", are the id of the call."""

    @property
    def layouts(self) -> tuple[CallLayout, ...]:
        start, end = self.section
        layout = CallLayout(
            opener=start or self.call,
            begin=start,
            before_name=self.call + self.before_name,
            before_arguments=self.before_arguments,
            after_call=self.after_call,
            separator=self.separator,
            end=end,
            json_name=False,
            after_reasoning=self.after_reasoning,
            template_text=self.template_text,
        )
        if not start:
            return (layout,)
        # Some models leave out the markers around all calls.
        return (layout, replace(layout, opener=self.call, begin="", end=""))

    @property
    def openers(self) -> tuple[str, ...]:
        return (self.call,)

    @property
    def section_markers(self) -> tuple[str, ...]:
        return tuple(filter(None, self.section[:1]))

    @property
    def also_dropped(self) -> tuple[str, ...]:
        return tuple(filter(None, self.section[1:]))

    def read(self, cursor: Cursor, calls: Calls, opener: str) -> Reader[bool]:
        ids_before = yield from _fixed_text(cursor, self.before_name)
        if ids_before is None:
            return False
        # A marker ends the name. There may be white space before the marker.
        end, *others = _pieces(self.before_arguments) or [""]
        white_space = self.before_arguments[: self.before_arguments.index(end)]
        name = yield from offered_name(cursor, calls, end, white_space + end)
        if name is None:
            return False
        ids_after = yield from _fixed_text(cursor, *others)
        if ids_after is None or (not self.before_arguments and not (yield from is_next(cursor, "{"))):
            return False
        call_id = "".join([*ids_before, *ids_after])
        if self.has_own_id:
            call_id = self.before_name + name + end + call_id
        ends = filter(None, [self.after_call.strip()])
        yield from json_arguments(cursor, calls, name, *ends, call_id=call_id or None)
        return True


def _pieces(text: str) -> list[str]:
    """The markers and placeholders of a text, without the white space around them."""
    return [piece.strip(" \n") for piece in _PLACEHOLDERS.split(text) if piece.strip(" \n")]


def _fixed_text(cursor: Cursor, *texts: str) -> Reader[list[str] | None]:
    """Read these texts, with white space before each piece.

    Returns the texts at the placeholders; None if another text follows.
    """
    pieces = [piece for text in texts for piece in _pieces(text)]
    found: list[str] = []
    while pieces:
        piece = pieces.pop(0)
        if _PLACEHOLDERS.fullmatch(piece):
            text, marker = yield from read_until(cursor, Markers(pieces.pop(0)))
            if marker is None:
                return None
            found.append(text.strip())
        else:
            yield from read_space(cursor)
            if (yield from read_one_of(cursor, piece)) is None:
                return None
    yield from read_space(cursor)
    return found


def offered_name(cursor: Cursor, calls: Calls, *ends: str) -> Reader[str | None]:
    """Read the name of an offered tool and one of the markers `ends`. Returns the name; None if another text follows.

    Text is held back only while it may become such a name.
    """
    names = {name + end: name for name in calls.offered for end in ends}
    found = yield from read_one_of(cursor, *names)
    return names[found] if found else None


def json_arguments(
    cursor: Cursor, calls: Calls, name: str, *ends: str, call_id: str | None = None
) -> Reader[str | None]:
    """Emit a call whose name was read, and read its arguments, one JSON object. Returns the marker after it, if any."""
    yield calls.start(name, call_id)
    cursor.drop_record()
    yield from read_space(cursor)
    if not (yield from is_next(cursor, "{")):
        end = yield from read_one_of(cursor, *ends)
        if end:
            yield calls.arguments("{}")
            calls.close()
        elif cursor.left():
            end = yield from raw_arguments(cursor, calls, *ends)
        return end
    if (yield from stream_value(cursor, calls.arguments)):
        calls.close()
        return (yield from read_end(cursor, *ends))
    return (yield from raw_arguments(cursor, calls, *ends))
