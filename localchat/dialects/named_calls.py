"""Tool calls as a name and a JSON object of arguments, each between markers."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .call_layout import A_NUMBER, AN_ID, CallLayout
from .call_style import CallStyle
from .calls import Calls
from .json_calls import raw_arguments
from .json_scan import stream_value
from .scan import Cursor, Markers, Reader, closing, is_next, one_of, space, until

_GAPS = re.compile(f"([{A_NUMBER}{AN_ID}])")


@dataclass(frozen=True)
class NamedCalls(CallStyle):
    """Each call is `call`, `before_name`, the name, `before_arguments`, the arguments, `after_call`.

    The texts before and after the name may have a gap for an id or a number.
    """

    call: str
    """The marker with which each call begins."""
    before_name: str = ""
    before_arguments: str = ""
    after_call: str = ""
    separator: str = ""
    section: tuple[str, str] = ("", "")
    """The markers around all calls."""
    after_reasoning: str = "\n\n"
    mark: str = ""
    """The style applies only to models with this text in their template."""
    has_own_id: bool = False
    """The name with the texts around it, up to the last marker, is the id of the call."""

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
            mark=self.mark,
        )
        return (layout, layout.bare(self.call)) if start else (layout,)

    @property
    def openers(self) -> tuple[str, ...]:
        return (self.call,)

    @property
    def sections(self) -> tuple[str, ...]:
        return tuple(filter(None, self.section[:1]))

    @property
    def dropped(self) -> tuple[str, ...]:
        return tuple(filter(None, self.section[1:]))

    def read(self, cursor: Cursor, calls: Calls, opener: str) -> Reader[bool]:
        before = yield from _fixed_text(cursor, self.before_name)
        first, *others = _pieces(self.before_arguments) or [""]
        white_space = self.before_arguments[: self.before_arguments.index(first)]
        name = None if before is None else (yield from offered_name(cursor, calls, first, white_space + first))
        after = None if name is None else (yield from _fixed_text(cursor, *others))
        if name is None or before is None or after is None:
            return False
        if not self.before_arguments and not (yield from is_next(cursor, "{")):
            return False
        call_id = "".join([*before, *after]) or None
        if self.has_own_id:
            call_id = f"{self.before_name}{name}{first}{call_id}"
        yield from json_arguments(cursor, calls, name, *filter(None, (self.after_call.strip(),)), call_id=call_id)
        return True


def _pieces(text: str) -> list[str]:
    """The markers and gaps of a text, without the white space around them."""
    return [piece.strip(" \n") for piece in _GAPS.split(text) if piece.strip(" \n")]


def _fixed_text(cursor: Cursor, *texts: str) -> Reader[list[str] | None]:
    """Read the texts, with white space before each piece. Returns the texts of the gaps; None if others come."""
    pieces = [piece for text in texts for piece in _pieces(text)]
    found: list[str] = []
    while pieces:
        piece = pieces.pop(0)
        if _GAPS.fullmatch(piece):
            text, marker = yield from until(cursor, Markers(pieces.pop(0)))
            if marker is None:
                return None
            found.append(text.strip())
        else:
            yield from space(cursor)
            if (yield from one_of(cursor, piece)) is None:
                return None
    yield from space(cursor)
    return found


def offered_name(cursor: Cursor, calls: Calls, *ends: str) -> Reader[str | None]:
    """Read an offered name and one of the markers that may end it; None if anything else comes.

    Text is held back only as long as it may still become an offered name.
    """
    names = {name + end: name for name in calls.offered for end in ends}
    found = yield from one_of(cursor, *names)
    return names[found] if found else None


def json_arguments(
    cursor: Cursor, calls: Calls, name: str, *ends: str, call_id: str | None = None
) -> Reader[str | None]:
    """Send a call whose name was read: its arguments, one JSON value. Returns the marker that was read after it."""
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
