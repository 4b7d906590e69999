"""The families whose tool calls are JSON objects between markers: Command R, Nemotron, GigaChat, Llama 3 and others."""

from __future__ import annotations

from dataclasses import replace

from ..call_layout import A_BREAK, A_NUMBER, A_SPACE
from ..dialect import Dialect
from ..json_calls import JsonCalls
from ..reasoning import ReasoningTags

# <|START_ACTION|>[{"tool_call_id": "0", "tool_name": "f", "parameters": {}}]<|END_ACTION|>
COHERE = Dialect(
    "cohere",
    detected_by=(("<|START_ACTION|>",),),
    overrides=("command-r",),
    calls=(
        JsonCalls(
            opener="<|START_ACTION|>",
            end="<|END_ACTION|>",
            name="tool_name",
            arguments="parameters",
            id="tool_call_id",
            id_placeholder=A_NUMBER,
            is_list=True,
        ),
    ),
    section_markers=("<|START_RESPONSE|>", "<|START_TEXT|>"),
    also_dropped=("<|END_RESPONSE|>", "<|END_TEXT|>"),
    reasoning=ReasoningTags("<|START_THINKING|>", "<|END_THINKING|>"),
)

# Action:
# ```json
# [{"tool_name": "f", "parameters": {}}]
# ```
COMMAND_R = Dialect(
    "command-r",
    detected_by=(("Action:", "```json", "tool_name"),),
    calls=tuple(
        JsonCalls(
            opener=action,
            end="```",
            name="tool_name",
            arguments="parameters",
            is_list=True,
            line=A_BREAK,
            space=A_SPACE,
            indent=40,
        )
        for action in ("Action:\n```json", "Action: ```json")
    ),
)

# <TOOLCALL>[{"name": "f", "arguments": {}}]</TOOLCALL>
NEMOTRON = Dialect(
    "nemotron-nano-2",
    detected_by=(("<TOOLCALL>",),),
    calls=(JsonCalls(opener="<TOOLCALL>", end="</TOOLCALL>", is_list=True),),
)

# Apriel generates a list, MiniMax-M1 one object per line.
TOOL_CALLS = Dialect(
    "tool-calls",
    detected_by=(("<tool_calls>", "</tool_calls>"),),
    calls=(
        JsonCalls(opener="<tool_calls>", end="</tool_calls>", is_list=True),
        JsonCalls(opener="<tool_calls>", end="</tool_calls>", line="\n", separator="\n"),
    ),
    section_markers=("[BEGIN FINAL RESPONSE]",),
    also_dropped=("[END FINAL RESPONSE]",),
)

# functools[{"name": "f", "arguments": {}}]
FIREFUNCTION = Dialect(
    "firefunction",
    detected_by=(("functools[",),),
    calls=(JsonCalls(opener="functools[", is_list=True),),
)


# <|function_call|>{"name": "f", "arguments": {}}
_GIGACHAT_CALL = JsonCalls(
    opener="<|function_call|>", is_each=True, other_ends=("<|message_sep|>",), template_text="<|function_call|>"
)
GIGACHAT = Dialect(
    "gigachat",
    detected_by=(("<|function_call|>",), ("function call<|role_sep|>",), ("<|message_sep|>", "function call")),
    calls=(
        _GIGACHAT_CALL,
        # Calls in a separate message.
        replace(_GIGACHAT_CALL, opener="<|message_sep|>\n\nfunction call<|role_sep|>", line="\n", template_text=""),
        replace(_GIGACHAT_CALL, opener="function call<|role_sep|>", line="\n", template_text=""),
    ),
)

# {"name": "f", "parameters": {}} as the whole output, or after <|python_tag|>.
_LLAMA_CALL = JsonCalls(arguments="parameters", separator="; ", is_strict=True)
LLAMA = Dialect(
    "llama-3",
    detected_by=(("<|python_tag|>",), ('{"name": function name, "parameters":',)),
    calls=(_LLAMA_CALL, replace(_LLAMA_CALL, opener="<|python_tag|>", is_strict=False)),
)
