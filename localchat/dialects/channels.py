"""gpt-oss (harmony) and Muse Glimmer: every message of an answer has a header that says for whom it is.

<|channel|>analysis<|message|>text<|end|><|start|>assistant<|channel|>final<|message|>text
<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{"a": 1}<|call|>
 to=self<|message|>text<|eom|><|start|>assistant to=f<|message|><atem:function_calls>...
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Callable

from ..protocol.events import ContentDelta, Event, ReasoningDelta
from .call_layout import A_BREAK, THE_NAME, CallLayout
from .calls import Calls
from .dialect import Dialect
from .json_scan import stream_value
from .reasoning import ReasoningStart, ReasoningTags
from .scan import Cursor, Markers, Reader, closing, is_next, one_of, read, space, stream, until
from .tagged import TaggedCalls

_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_FINAL = _CHANNEL + "final" + _MESSAGE
_RECIPIENT = re.compile(r"\bto=(?:functions\.)?([^\s<]+)")


class Kind(Enum):
    """What a message is, by its header."""

    REASONING = auto()
    TEXT = auto()
    CALL = auto()
    FOREIGN = auto()  # for a recipient that nobody offered


@dataclass(frozen=True)
class _Channels(Dialect):
    """Headers up to <|message|>, bodies up to one of `ends`."""

    ends: tuple[str, ...] = ()
    reasoning_marks: tuple[str, ...] = ()

    reasons_anywhere: bool = True

    @property
    def reasoning_ends(self) -> tuple[str, ...]:
        return (*self.ends, _START)

    def reasoning_start(self, prompt: str) -> ReasoningStart:
        header = _open_header(prompt)
        is_open = header is not None and self._is_reasoning(header)
        return ReasoningStart.OPEN if is_open else ReasoningStart.POSSIBLE

    @property
    def preserved(self) -> tuple[str, ...]:
        return (_START, _CHANNEL, _MESSAGE, "<|constrain|>", *self.ends)

    def for_template(self, template: str) -> Dialect:
        return self

    def read(
        self, cursor: Cursor, calls: Calls, prompt: str, splits_reasoning: bool, *, is_bound: bool = False
    ) -> Reader[None]:
        header = _open_header(prompt)
        while cursor.left() or not cursor.ended:
            cursor.begin()
            if header is None:
                header = yield from self._header(cursor)
            if header is None:
                yield from self._loose_text(cursor)
            else:
                yield from self._message(cursor, calls, header, splits_reasoning, is_bound)
            header = None

    def _header(self, cursor: Cursor) -> Reader[str | None]:
        """Read a header, if one comes and is complete."""
        start = yield from one_of(cursor, _START + "assistant", _CHANNEL, " to=", "to=")
        if start is None:
            return None
        text, end = yield from until(cursor, Markers(_MESSAGE))
        return start + text if end else None

    def _loose_text(self, cursor: Cursor) -> Reader[None]:
        """Text without a header: what came of a header that was none, and all up to the next."""
        raw = cursor.recorded() or (yield from one_of(cursor, _START))
        if raw:
            yield ContentDelta(raw)
        yield from stream(cursor, Markers(_START, _CHANNEL), ContentDelta, seam=False)

    def _message(
        self, cursor: Cursor, calls: Calls, header: str, splits_reasoning: bool, is_bound: bool
    ) -> Reader[None]:
        kind, name = self._kind(header, calls)
        raw = cursor.recorded()
        if kind is Kind.CALL:
            yield from self._call(cursor, calls, name, raw)
            return
        shown = kind is Kind.FOREIGN or (kind is Kind.REASONING and not splits_reasoning)
        if shown and raw:
            yield ContentDelta(raw)
        event: Callable[[str], Event] = ReasoningDelta if kind is Kind.REASONING and splits_reasoning else ContentDelta
        # A form goes on to the end of the answer, and may hold the texts of markers.
        ends = () if is_bound and kind is Kind.TEXT else (*self.ends, _START)
        calls.reasoning_is_open = kind is Kind.REASONING
        end = yield from stream(cursor, Markers(*ends), event, seam=False)
        calls.reasoning_is_open = calls.reasoning_is_open and end is None
        if end in self.ends:
            read(cursor, end)
            if shown:
                yield ContentDelta(end)

    def _kind(self, header: str, calls: Calls) -> tuple[Kind, str]:
        if self._is_reasoning(header):
            return Kind.REASONING, ""
        match = _RECIPIENT.search(header)
        name = match[1] if match else "user"
        if calls.may_call(name):
            return Kind.CALL, name
        return (Kind.TEXT if name == "user" else Kind.FOREIGN), name

    def _is_reasoning(self, header: str) -> bool:
        return any(mark in header for mark in self.reasoning_marks) and "to=functions" not in header

    def _call(self, cursor: Cursor, calls: Calls, name: str, raw: str) -> Reader[None]:
        yield calls.head(name)
        yield from space(cursor)
        end = yield from one_of(cursor, *self.ends)
        if end:
            yield calls.arguments("{}")
        else:
            if (yield from is_next(cursor, "{")):
                # A string may hold the text of a marker.
                yield from stream_value(cursor, calls.arguments)
            end = yield from stream(cursor, Markers(*self.ends, _START), calls.arguments)
            if end in self.ends:
                read(cursor, end)
        if end in self.ends:
            calls.close()


def _open_header(prompt: str) -> str | None:
    """The header that the prompt has written to its end, if it has."""
    _, _, last = prompt.rpartition(_START + "assistant")
    header, found, body = last.partition(_MESSAGE)
    return header if found and "<|" not in body else None


_TEXT_END = "<|end|>" + _START + "assistant"


def _harmony_calls(before_name: str, after_name: str) -> CallLayout:
    return CallLayout(
        before_name=before_name,
        before_arguments=after_name + _MESSAGE,
        after_call="",
        separator=_TEXT_END,
        json_name=False,
        after_reasoning=_START + "assistant",
    )


HARMONY = _Channels(
    "harmony",
    detected_by=((_START, _CHANNEL, _MESSAGE),),
    reasoning=ReasoningTags(_CHANNEL + "analysis" + _MESSAGE, "<|end|>"),
    ends=("<|end|>", "<|call|>", "<|return|>"),
    reasoning_marks=("analysis",),
    text_start=(_FINAL, _START + "assistant" + _FINAL),
    text_end=_TEXT_END,
    # The header is written in more than one order, so only its whole gives a call away.
    layouts=(
        _harmony_calls(_CHANNEL + "commentary to=functions.", " <|constrain|>json"),
        _harmony_calls(_CHANNEL + "commentary to=functions.", " json"),
        _harmony_calls(" to=functions.", _CHANNEL + "commentary <|constrain|>json"),
        _harmony_calls(" to=functions.", _CHANNEL + "commentary json"),
    ),
)

_ATEM_TAGS = TaggedCalls(
    call='<atem:invoke name="',
    name_end='">',
    key='<atem:parameter name="',
    key_end='">',
    value_ends=("</atem:parameter>",),
    call_end="</atem:invoke>",
    around=(("<atem:function_calls>", "</atem:function_calls>"),),
)


class _Muse(_Channels):
    def _call(self, cursor: Cursor, calls: Calls, name: str, raw: str) -> Reader[None]:
        cursor.begin()
        yield from space(cursor)
        opener = yield from one_of(cursor, *_ATEM_TAGS.openers)
        if opener and (yield from _ATEM_TAGS.read(cursor, calls, opener)):
            yield from closing(cursor, *self.ends)
        else:
            yield ContentDelta(raw + cursor.recorded())


_MUSE_TEXT_END = f"<|eom|>{_START}assistant"
_MUSE_CALL = CallLayout(
    before_name=" to=",
    before_arguments=f'{_MESSAGE}<atem:function_calls>\n<atem:invoke name="{THE_NAME}">',
    after_call=f"{A_BREAK}</atem:invoke>{A_BREAK}</atem:function_calls>",
    separator=_MUSE_TEXT_END,
    json_name=False,
    is_native=False,
    after_reasoning=_START + "assistant",
    arguments=_ATEM_TAGS.argument_layout,
)

MUSE = _Muse(
    "muse",
    detected_by=(("<atem:function_calls>",),),
    calls=(_ATEM_TAGS,),
    reasoning=ReasoningTags("to=self" + _MESSAGE, "<|eom|>"),
    ends=("<|eom|>", "<|eot|>"),
    reasoning_marks=("to=self",),
    text_start=(" to=user" + _MESSAGE, _START + "assistant to=user" + _MESSAGE),
    text_end=_MUSE_TEXT_END,
    # The header belongs to a call that was asked for; left to itself the model has written it by then.
    layouts=(_MUSE_CALL, *(replace(layout, more=_MUSE_CALL) for layout in _ATEM_TAGS.layouts)),
)
