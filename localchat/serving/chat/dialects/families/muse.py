"""Muse Glimmer.

 to=self<|message|>text<|eom|><|start|>assistant to=f<|message|><atem:function_calls>
<atem:invoke name="f">
<atem:parameter name="a">text</atem:parameter>
</atem:invoke>
</atem:function_calls>
"""

from __future__ import annotations

from dataclasses import replace

from ....core.events import ContentDelta
from ..call_layout import A_BREAK, THE_NAME, CallLayout
from ..channels import MESSAGE, START, ChannelDialect, ChannelReader
from ..reasoning import ReasoningTags
from ..scan import Reader, read_end, read_one_of, read_space
from ..shared_formats import invoke_tags

_TAGS = invoke_tags("atem:", "atem:function_calls")
_START, _END = _TAGS.around[0]


class _Reader(ChannelReader):
    def _message_call(self, name: str, raw: str) -> Reader[None]:
        """Read a call in tags. The tags also have the name of the tool."""
        cursor = self._cursor
        cursor.begin()
        yield from read_space(cursor)
        opener = yield from read_one_of(cursor, *_TAGS.openers)
        if opener and (yield from _TAGS.read(cursor, self._calls, opener)):
            yield from read_end(cursor, *self._dialect.ends)
        else:
            yield ContentDelta(raw + cursor.end_record())


_TEXT_END = f"<|eom|>{START}assistant"
_CALL = CallLayout(
    before_name=" to=",
    before_arguments=f"{MESSAGE}{_START}\n{_TAGS.call}{THE_NAME}{_TAGS.name_end}",
    after_call=A_BREAK + _TAGS.call_end + A_BREAK + _END,
    separator=_TEXT_END,
    json_name=False,
    is_native=False,
    after_reasoning=START + "assistant",
    arguments=_TAGS.argument_layout,
)

DIALECT = ChannelDialect(
    "muse",
    detected_by=((_START,),),
    calls=(_TAGS,),
    reasoning=ReasoningTags("to=self" + MESSAGE, "<|eom|>"),
    ends=("<|eom|>", "<|eot|>"),
    reasoning_headers=("to=self",),
    text_start=(" to=user" + MESSAGE, START + "assistant to=user" + MESSAGE),
    text_end=_TEXT_END,
    reader=_Reader,
    # A required call begins with its header. If the model calls on its own, the header comes before the first opener.
    layouts=(_CALL, *(replace(layout, more=_CALL) for layout in _TAGS.layouts)),
)
