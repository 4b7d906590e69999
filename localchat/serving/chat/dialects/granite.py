"""Granite 3: <response>text</response>, then <|tool_call|>[{"name": "f", "arguments": {}}].

The tags of the text are not control tokens. They are dropped only around the whole text, since text may contain XML.
"""

from __future__ import annotations

from ...core.events import ContentDelta
from .call_format import CallFormat
from .dialect import Dialect
from .reader import OutputReader
from .scan import Markers, Reader, emit_until, read_marker, read_one_of, read_space

_START, _END = "<response>", "</response>"


class _Reader(OutputReader):
    def _text_and_calls(self) -> Reader[None]:
        cursor = self._cursor
        cursor.begin()
        yield from read_space(cursor)
        is_opened = (yield from read_one_of(cursor, _START)) is not None
        yield from self._accept_or_put_back(is_opened)
        # Without the start tag, an end tag belongs to the text.
        markers = Markers(*self._openers, *((_END,) if is_opened else ()))
        while True:
            marker = yield from emit_until(cursor, markers, ContentDelta)
            if marker is None:
                return
            cursor.begin()
            read_marker(cursor, marker)
            if marker == _END:
                yield from read_space(cursor)
                marker = yield from read_one_of(cursor, *self._openers)
            if marker:
                is_format = yield from self._styles(marker)
            else:
                # An end tag that other text follows belongs to the text.
                is_format = not cursor.left()
            yield from self._accept_or_emit(is_format, ContentDelta)


_CALLS = CallFormat(
    '{"name": "$name", "arguments": $args}',
    around=(("<|tool_call|>[^", "^]"), ("<tool_call>[^", "^]")),
    separator=",^",
    other_ends=("<|/tool_call|>", "</tool_call>"),
)

GRANITE = Dialect(
    "granite-3",
    detected_by=(("<|tool_call|>",),),
    calls=(_CALLS,),
    also_dropped=(_START, _END),
    reader=_Reader,
)
