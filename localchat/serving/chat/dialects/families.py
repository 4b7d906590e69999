"""The model families: for each, the texts that identify its templates, its call formats and its reasoning tags."""

# ruff: noqa: RUF001 - the markers of some models are written with a wide bar

from __future__ import annotations

from dataclasses import replace

from .call_layout import CallLayout, call_layouts
from .channels import CHANNEL, MESSAGE, START, ChannelDialect
from .dialect import Dialect
from .reasoning import ReasoningTags
from .special_parsers import ALL, NEXT_PART, RESPONSE, RESPONSE_END, FunctionaryParser, GraniteParser

_OBJECT = '{"name": "$name", "arguments": $args}'
_PARAMETERS = '{"name": "$name", "parameters": $args}'
_FUNCTION = "<function=$name>*(~<parameter=$key>\n$value\n</parameter>)*~</function>"
_ONE_LINE_FUNCTION = _FUNCTION.replace("\n", "")

# Three formats are written between <tool_call> and </tool_call>: a JSON object, function tags, and a name with key and
# value tags. Models trained on one of them sometimes generate another one, so most of their families parse all three,
# and function tags without the outer tag.
_JSON_OBJECT = call_layouts(f"@(<tool_call>\n{_OBJECT}\n</tool_call>)~@")
_FUNCTION_TAGS = call_layouts(f"@(<tool_call>~{_FUNCTION}~</tool_call>)~@")
_BARE_FUNCTION_TAGS = call_layouts(f"@({_FUNCTION})~@", other_ends=("</tool_call>",))
_FUNCTION_JSON = call_layouts("@(<function=$name>$args</function>)~@")
_KEY_VALUE_TAGS = call_layouts(
    "@(<tool_call>$name*(~<arg_key>$key</arg_key>~<arg_value>$value</arg_value>)*~</tool_call>)~@"
)
_COHERE_CALL = '{"tool_call_id": "$n", "tool_name": "$name", "parameters": $args}'
_COMMAND_R = '[^@({^"tool_name": "$name",^"parameters": $args^}),^@^]~```'
_R1_CALL = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>$name\n```json\n$args\n```<｜tool▁call▁end｜>"
_V3_CALL = "<｜tool▁call▁begin｜>$name<｜tool▁sep｜>$args<｜tool▁call▁end｜>"
_K3_CALLS = (
    '<|open|>tools<|sep|>~@(<|open|>call tool="$name"{}<|sep|>*(~<|open|>argument key="$key"$type<|sep|>$value'
    "<|close|>argument<|sep|>)*~<|close|>call<|sep|>)~@~<|close|>tools<|sep|>"
)
_PREFIX = "]<]minimax[>["  # of all tags of MiniMax-M3
_M3_CALLS = 'P<tool_call>~@(P<invoke name="$name">*(~P<$key>$valueP</$key>)*~P</invoke>)~@~P</tool_call>'
_MUSE_TEXT_END = f"<|eom|>{START}assistant"
_MUSE_HEADER = f" to=$name{MESSAGE}"
_MUSE_CALL = '<atem:invoke name="$name">*(~<atem:parameter name="$key">$value</atem:parameter>)*~</atem:invoke>'
# Each call is a message, whose header comes before the opener.
_MUSE_MESSAGES = call_layouts(
    f"{_MUSE_HEADER}@(<atem:function_calls>\n{_MUSE_CALL}~</atem:function_calls>){_MUSE_TEXT_END}{_MUSE_HEADER}@"
)
_FINAL = CHANNEL + "final" + MESSAGE


def _list(opener: str, end: str = "", call: str = _OBJECT) -> tuple[CallLayout, ...]:
    """Calls that are the items of a JSON list."""
    return call_layouts(f"{opener}[^@({call}),^@^]{end}")


def _gigachat(opener: str, template_text: str = "") -> tuple[CallLayout, ...]:
    return call_layouts(opener + _OBJECT, other_ends=("<|message_sep|>",), template_text=template_text)


def _dsml(section: str) -> tuple[CallLayout, ...]:
    opener = f"<｜DSML｜{section}>"
    return call_layouts(
        f'{opener}~@(<｜DSML｜invoke name="$name">'
        '*(~<｜DSML｜parameter name="$key"$string>$value</｜DSML｜parameter>)*~</｜DSML｜invoke>)~@'
        f"~</｜DSML｜{section}>",
        other_ends=("</｜DSML｜function_calls>", "</｜DSML｜tool_calls>"),
        template_text=opener,
    )


# If a template has the texts of several families, it belongs to the first one.
_FAMILIES = (
    Dialect(
        "apertus",
        detected_by=(("<|tools_prefix|>",),),
        calls=call_layouts('<|tools_prefix|>[@({"$name": $args}), @]<|tools_suffix|>'),
        reasoning=ReasoningTags("<|inner_prefix|>", "<|inner_suffix|>"),
    ),
    # DeepSeek V3, V3.1, and R1 with its distillates. R1 has the word "function" before the separator, after it the name
    # and a JSON code block.
    Dialect(
        "deepseek",
        detected_by=(("<｜tool▁call▁begin｜>",),),
        calls=(
            *call_layouts(f"<｜tool▁calls▁begin｜>@({_R1_CALL})\n@<｜tool▁calls▁end｜>", template_text="```json"),
            *call_layouts(f"<｜tool▁calls▁begin｜>@({_V3_CALL})@<｜tool▁calls▁end｜>"),
        ),
        also_dropped=("<｜tool▁calls▁end｜>",),
        has_own_tool_prompt=True,
    ),
    Dialect(
        "functionary-3.2",
        detected_by=((">>>all",), (">>>", "all\\n")),
        parser=FunctionaryParser,
        text_start=(ALL, ALL),
        text_end=NEXT_PART,
        # No layout begins with the marker: the prompt ends with it.
        part_mark=NEXT_PART,
        calls=call_layouts(f"@($name\n$args){NEXT_PART}@"),
    ),
    Dialect(
        "gemma-4",
        detected_by=(("<|tool_call>",),),
        calls=call_layouts("<|tool_call>call:$name$args<tool_call|>", notation="gemma"),
        calls_start="",
        reasoning=ReasoningTags("<|channel>thought", "<channel|>"),
        reasons_anywhere=True,
    ),
    # GLM 4.5 to 4.7, Ling 3, Spark 2.5, Laguna.
    Dialect(
        "glm",
        detected_by=(("<tool_call>", "<arg_key>"),),
        calls=(*_KEY_VALUE_TAGS, *_BARE_FUNCTION_TAGS),
        also_read=(*_JSON_OBJECT, *_FUNCTION_TAGS),
    ),
    Dialect(
        "granite-3",
        detected_by=(("<|tool_call|>",),),
        calls=(
            *call_layouts(f"<|tool_call|>[^@({_OBJECT}),^@^]", other_ends=("<|/tool_call|>",)),
            *_list("<tool_call>", "</tool_call>"),
        ),
        also_dropped=(RESPONSE, RESPONSE_END),
        parser=GraniteParser,
    ),
    ChannelDialect(
        "harmony",
        detected_by=((START, CHANNEL, MESSAGE),),
        reasoning=ReasoningTags(CHANNEL + "analysis" + MESSAGE, "<|end|>"),
        also_dropped=("<|end|>", "<|call|>", "<|return|>"),
        reasoning_header=CHANNEL + "analysis",
        text_start=(_FINAL, START + "assistant" + _FINAL),
        text_end=f"<|end|>{START}assistant",
        calls_start=START + "assistant",
        # Models generate the parts of the header in several orders. Only the whole header distinguishes a call.
        calls=tuple(
            replace(layout, opener="")
            for layout in call_layouts(
                *(
                    f"@({text}{MESSAGE}$args)<|end|>{START}assistant@"
                    for text in (
                        f"{CHANNEL}commentary to=functions.$name <|constrain|>json",
                        f"{CHANNEL}commentary to=functions.$name json",
                        f" to=functions.$name{CHANNEL}commentary <|constrain|>json",
                        f" to=functions.$name{CHANNEL}commentary json",
                    )
                )
            )
        ),
    ),
    # Hermes 2 and 3, Qwen 2.5 and 3, QwQ, Granite 4, Reka, and localchat's built-in model. This is the most common
    # format, and the default for templates of unknown families.
    Dialect(
        "hermes",
        calls=(*_JSON_OBJECT, *_FUNCTION_JSON),
        also_read=(*_FUNCTION_TAGS, *_BARE_FUNCTION_TAGS, *_KEY_VALUE_TAGS),
    ),
    Dialect(
        "hy",
        detected_by=(("<arg_key{}>", ":opensource"),),
        calls=call_layouts(
            "<tool_calls:opensource>~@(<tool_call:opensource>$name<tool_sep:opensource>*(~<arg_key:opensource>$key"
            "</arg_key:opensource>~<arg_value:opensource>$value</arg_value:opensource>)*~</tool_call:opensource>)~@~"
            "</tool_calls:opensource>",
        ),
        reasoning=ReasoningTags("<think:opensource>", "</think:opensource>"),
    ),
    Dialect(
        "minimax-m2",
        detected_by=(("<minimax:tool_call>",),),
        calls=call_layouts(
            '<minimax:tool_call>~@(<invoke name="$name">*(~<parameter name="$key">$value</parameter>)*~</invoke>)~@'
            "~</minimax:tool_call>",
        ),
    ),
    # DeepSeek V3.2 and V4.
    Dialect("deepseek-dsml", detected_by=(("｜DSML｜",),), calls=(*_dsml("function_calls"), *_dsml("tool_calls"))),
    Dialect(
        "cohere",
        detected_by=(("<|START_ACTION|>",),),
        calls=_list("<|START_ACTION|>", "<|END_ACTION|>", _COHERE_CALL),
        section_markers=("<|START_RESPONSE|>", "<|START_TEXT|>"),
        also_dropped=("<|END_RESPONSE|>", "<|END_TEXT|>"),
        reasoning=ReasoningTags("<|START_THINKING|>", "<|END_THINKING|>"),
    ),
    Dialect(
        "command-r",
        detected_by=(("Action:", "```json", "tool_name"),),
        calls=call_layouts("Action:\n```json~" + _COMMAND_R, "Action: ```json~" + _COMMAND_R),
    ),
    Dialect("nemotron-nano-2", detected_by=(("<TOOLCALL>",),), calls=_list("<TOOLCALL>", "</TOOLCALL>")),
    # Apriel generates a list, MiniMax-M1 one object per line.
    Dialect(
        "tool-calls",
        detected_by=(("<tool_calls>", "</tool_calls>"),),
        calls=(
            *_list("<tool_calls>", "</tool_calls>"),
            *call_layouts(f"<tool_calls>\n@({_OBJECT})\n@\n</tool_calls>"),
        ),
        section_markers=("[BEGIN FINAL RESPONSE]",),
        also_dropped=("[END FINAL RESPONSE]",),
    ),
    Dialect("firefunction", detected_by=(("functools[",),), calls=_list("functools")),
    # Some models generate calls in a separate message.
    Dialect(
        "gigachat",
        detected_by=(("<|function_call|>",), ("function call<|role_sep|>",), ("<|message_sep|>", "function call")),
        calls=(
            *_gigachat("<|function_call|>", template_text="<|function_call|>"),
            *_gigachat("<|message_sep|>\n\nfunction call<|role_sep|>\n"),
            *_gigachat("function call<|role_sep|>\n"),
        ),
    ),
    Dialect(
        "kimi-k2",
        detected_by=(("<|tool_call_argument_begin|>",),),
        calls=call_layouts(
            "<|tool_calls_section_begin|>@(<|tool_call_begin|>functions.$name:$n<|tool_call_argument_begin|>$args"
            "<|tool_call_end|>)@<|tool_calls_section_end|>",
        ),
        also_dropped=("<|tool_calls_section_end|>",),
    ),
    Dialect(
        "kimi-k3",
        detected_by=(("<|open|>", "<|close|>", "<|sep|>"),),
        calls=call_layouts(_K3_CALLS.format(' index="$n"')),
        also_read=call_layouts(_K3_CALLS.format("")),
        section_markers=("<|open|>response<|sep|>",),
        also_dropped=("<|close|>response<|sep|>", "<|close|>message<|sep|>", "<|end_of_msg|>"),
        text_start=("<|open|>response<|sep|>", "<|open|>response<|sep|>"),
        reasoning=ReasoningTags("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
    ),
    # JSON is generated only if the prompt asks for it.
    Dialect(
        "lfm2",
        detected_by=(("<|tool_call_start|>",), ("<|tool_list_start|>",), ("List of tools: [", "<|im_start|>")),
        calls=(
            *call_layouts("<|tool_call_start|>[@($name(*($key=$value)*)), @]<|tool_call_end|>", notation="python"),
            *_list("<|tool_call_start|>", "<|tool_call_end|>"),
        ),
        has_own_tool_prompt=True,
    ),
    Dialect(
        "minicpm5",
        detected_by=(('<function name="', '<param name="'),),
        calls=call_layouts(
            '@(<function name="$name">*(~<param name="$key">$value</param>)*~</function>)~@',
            quotes=("<![CDATA[", "]]>"),
        ),
    ),
    Dialect(
        "minimax-m3",
        detected_by=((_PREFIX,),),
        calls=call_layouts(_M3_CALLS.replace("P<", _PREFIX + "<")),
        reasoning=ReasoningTags("<mm:think>", "</mm:think>"),
        no_reasoning="</mm:think>",
    ),
    # Mistral Nemo, Small 3, Devstral, Magistral, Ministral 3, Large 3. Some models leave out [ARGS].
    Dialect(
        "mistral",
        detected_by=(("[TOOL_CALLS]",),),
        calls=(
            *call_layouts("[TOOL_CALLS]$name[CALL_ID]$id[ARGS]$args", template_text="[CALL_ID]"),
            *call_layouts("[TOOL_CALLS]$name[ARGS]$args", template_text="[ARGS]"),
            # The id after the arguments is dropped: the calls are streamed, and begin with an id.
            *_list("[TOOL_CALLS]", call='{"name": "$name", "arguments": $args, "id": "$id"}'),
        ),
        also_read=call_layouts("[TOOL_CALLS]$name$args"),
    ),
    ChannelDialect(
        "muse",
        detected_by=((START,),),
        calls=(replace(_MUSE_MESSAGES[0], opener=""), _MUSE_MESSAGES[1]),
        also_read=call_layouts(f"<atem:function_calls>~@({_MUSE_CALL})~@~</atem:function_calls>"),
        reasoning=ReasoningTags("to=self" + MESSAGE, "<|eom|>"),
        also_dropped=("<|eom|>", "<|eot|>"),
        reasoning_header="to=self",
        text_start=(" to=user" + MESSAGE, START + "assistant to=user" + MESSAGE),
        text_end=_MUSE_TEXT_END,
        calls_start=START + "assistant",
    ),
    # Qwen3-Coder, Qwen 3.5, Nemotron 3 Nano, StepFun 3.5.
    Dialect(
        "qwen-coder",
        detected_by=(("<tool_call>", "<function=", "<parameter="),),
        calls=(*_FUNCTION_TAGS, *_BARE_FUNCTION_TAGS),
        also_read=(*_JSON_OBJECT, *_KEY_VALUE_TAGS),
    ),
    # Seed-OSS.
    Dialect(
        "seed",
        detected_by=(("<seed:tool_call>",),),
        calls=(
            *call_layouts(f"@(<seed:tool_call>~{_ONE_LINE_FUNCTION}~</seed:tool_call>)~@"),
            *call_layouts(f"@({_ONE_LINE_FUNCTION})~@", other_ends=("</seed:tool_call>",)),
        ),
        reasoning=ReasoningTags("<seed:think>", "</seed:think>"),
    ),
    # Solar Open.
    Dialect(
        "solar",
        detected_by=(("<|tool_call:begin|>",),),
        calls=call_layouts(
            "<|tool_calls|>@(<|tool_call:begin|>$id<|tool_call:name|>$name<|tool_call:args|>$args<|tool_call:end|>)@"
            "<|calls|>",
        ),
        calls_start="<|begin|>assistant",
        section_markers=("<|begin|>assistant", "<|content|>"),
        also_dropped=("<|end|>", "<|calls|>"),
        text_start=("<|content|>", "<|begin|>assistant<|content|>"),
        reasoning=ReasoningTags("<|think|>", "<|end|>"),
    ),
    Dialect(
        "functionary-3.1",
        detected_by=(("<function=", "</function>"),),
        calls=_FUNCTION_JSON,
        also_read=_BARE_FUNCTION_TAGS,
    ),
    # A call as the whole output, or after <|python_tag|>.
    Dialect(
        "llama-3",
        detected_by=(("<|python_tag|>",), ('{"name": function name, "parameters":',)),
        calls=call_layouts(*(f"{start}@({_PARAMETERS}); @" for start in ("", "<|python_tag|>"))),
    ),
)

DIALECTS = {dialect.name: dialect for dialect in _FAMILIES}
