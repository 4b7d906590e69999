"""Families that write calls as JSON objects between markers of their own: a table."""

from __future__ import annotations

from dataclasses import replace

from ..protocol.events import ContentDelta
from .call_layout import A_BREAK, A_NUMBER, A_SPACE
from .calls import Calls
from .dialect import CallTexts, Dialect, call_objects
from .json_calls import Keys, json_calls
from .reasoning import ReasoningTags
from .scan import Cursor, Markers, Reader, one_of, read, space, stream

_COHERE_KEYS = Keys(name=("tool_name",), arguments=("parameters",), id=("tool_call_id",))

# <|START_ACTION|>[{"tool_call_id": "0", "tool_name": "f", "parameters": {}}]<|END_ACTION|>
COHERE = Dialect(
    "cohere",
    detected_by=(("<|START_ACTION|>",),),
    openers=("<|START_ACTION|>",),
    read_call=json_calls("<|END_ACTION|>", keys=_COHERE_KEYS),
    closers=("<|END_ACTION|>",),
    call_texts=(
        call_objects(
            "<|START_ACTION|>",
            "<|END_ACTION|>",
            before_name=f'{{"tool_call_id": "{A_NUMBER}", "tool_name": "',
            before_arguments='", "parameters": ',
        ),
    ),
    sections=("<|START_RESPONSE|>", "<|START_TEXT|>"),
    dropped=("<|END_RESPONSE|>", "<|END_TEXT|>"),
    think=ReasoningTags("<|START_THINKING|>", "<|END_THINKING|>"),
)

# Action:
# ```json
# [{"tool_name": "f", "parameters": {}}]
# ```
_ACTIONS = ("Action:\n```json", "Action: ```json")
COMMAND_R = Dialect(
    "command-r",
    detected_by=(("Action:", "```json", "tool_name"),),
    openers=_ACTIONS,
    read_call=json_calls("```", keys=_COHERE_KEYS),
    call_texts=tuple(
        call_objects(
            action,
            "```",
            before_name=f'{{{A_SPACE}"tool_name": "',
            before_arguments=f'",{A_SPACE}"parameters": ',
            after_call=f"{A_SPACE}}}",
            line=A_BREAK,
            indent=40,
        )
        for action in _ACTIONS
    ),
)

# <TOOLCALL>[{"name": "f", "arguments": {}}]</TOOLCALL>
NEMOTRON = Dialect(
    "nemotron-nano-2",
    detected_by=(("<TOOLCALL>",),),
    openers=("<TOOLCALL>",),
    read_call=json_calls("</TOOLCALL>"),
    closers=("</TOOLCALL>",),
    call_texts=(call_objects("<TOOLCALL>", "</TOOLCALL>"),),
)

# Apriel writes a list, MiniMax-M1 one object a line.
TOOL_CALLS = Dialect(
    "tool-calls",
    detected_by=(("<tool_calls>", "</tool_calls>"),),
    openers=("<tool_calls>",),
    read_call=json_calls("</tool_calls>"),
    closers=("</tool_calls>",),
    call_texts=(
        call_objects("<tool_calls>", "</tool_calls>"),
        CallTexts(
            opener="<tool_calls>",
            begin="<tool_calls>\n",
            before_name='{"name": "',
            before_arguments='", "arguments": ',
            after_call="}",
            separator="\n",
            end="\n</tool_calls>",
        ),
    ),
    sections=("[BEGIN FINAL RESPONSE]",),
    dropped=("[END FINAL RESPONSE]",),
)

# functools[{"name": "f", "arguments": {}}]
FIREFUNCTION = Dialect(
    "firefunction",
    detected_by=(("functools[",),),
    openers=("functools[",),
    read_call=json_calls(),
    call_texts=(replace(call_objects("functools", ""), opener="functools["),),
)


class _Granite(Dialect):
    """The text may stand between the two marks `dropped`; anywhere else they are text, as in XML."""

    def _text_and_calls(self, cursor: Cursor, calls: Calls, reasoning: bool) -> Reader[None]:
        start, end = self.dropped
        cursor.begin()
        yield from space(cursor)
        is_opened = (yield from one_of(cursor, start)) is not None
        yield from self._after_first(cursor, is_opened)
        openers = self.openers if calls.offered else ()
        # What was not opened is not closed: that end is of the text itself.
        markers = Markers(*openers, *((end,) if is_opened else ()))
        while True:
            marker = yield from stream(cursor, markers, ContentDelta)
            if marker is None:
                return
            cursor.begin()
            read(cursor, marker)
            if marker == end:
                yield from space(cursor)
                marker = yield from one_of(cursor, *openers)
            is_mark = not cursor.left()
            if marker and self.read_call:
                is_mark = yield from self.read_call(cursor, calls, marker)
            yield from self._after(cursor, is_mark)


# <|tool_call|>[{"name": "f", "arguments": {}}], and <response>text</response>
_GRANITE_OPENERS = ("<|tool_call|>", "<tool_call>")
GRANITE = _Granite(
    "granite-3",
    detected_by=(("<|tool_call|>",),),
    openers=_GRANITE_OPENERS,
    read_call=json_calls("<|/tool_call|>", "</tool_call>"),
    call_texts=tuple(call_objects(opener, "") for opener in _GRANITE_OPENERS),
    dropped=("<response>", "</response>"),
)

# <|function_call|>{"name": "f", "arguments": {}}
_GIGACHAT_TURNS = ("<|message_sep|>\n\nfunction call<|role_sep|>", "function call<|role_sep|>")
_GIGACHAT_CALL = CallTexts(
    opener="<|function_call|>",
    before_name='<|function_call|>{"name": "',
    before_arguments='", "arguments": ',
    after_call="}",
    mark="<|function_call|>",
)
GIGACHAT = Dialect(
    "gigachat",
    detected_by=(("<|function_call|>",), ("function call<|role_sep|>",), ("<|message_sep|>", "function call")),
    openers=("<|function_call|>", *_GIGACHAT_TURNS),
    read_call=json_calls("<|message_sep|>"),
    closers=("<|message_sep|>", "<|role_sep|>"),
    call_texts=(
        _GIGACHAT_CALL,
        *(replace(_GIGACHAT_CALL, opener=turn, before_name=turn + '\n{"name": "', mark="") for turn in _GIGACHAT_TURNS),
    ),
)

# {"name": "f", "parameters": {}}, the whole answer, or <|python_tag|> and that.
_LLAMA_CALL = CallTexts(before_name='{"name": "', before_arguments='", "parameters": ', after_call="}", separator="; ")
LLAMA = Dialect(
    "llama-3",
    detected_by=(("<|python_tag|>",), ('{"name": function name, "parameters":',)),
    openers=("<|python_tag|>",),
    read_call=json_calls(),
    read_bare=json_calls(keys=Keys(is_strict=True)),
    call_texts=(_LLAMA_CALL, replace(_LLAMA_CALL, opener="<|python_tag|>", begin="<|python_tag|>")),
)

JSON_FAMILIES: tuple[Dialect, ...] = (
    COHERE,
    COMMAND_R,
    NEMOTRON,
    FIREFUNCTION,
    GRANITE,
    GIGACHAT,
    LLAMA,
    TOOL_CALLS,
)
