"""The model families: for each, the texts that identify its templates, its call formats and its reasoning tags.

Models with one format share an entry, which has the name of one of them: Qwen 2.5 and 3 are in "hermes".
"""

# ruff: noqa: RUF001 - the markers of some models are written with a wide bar

from __future__ import annotations

from dataclasses import replace
from typing import Any

from .call_layout import CallLayout, call_layouts
from .channels import CHANNEL, MESSAGE, START, ChannelDialect
from .dialect import THINK, Dialect, ReasoningTags
from .values import GEMMA_QUOTE

_OBJECT = '{"name": "$name", "arguments": $args}'
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
_COMMAND_R = '[^@({^"tool_name": "$name",^"parameters": $args^}),^@^]~```'
_R1_CALL = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>$name\n```json\n$args\n```<｜tool▁call▁end｜>"
_V3_CALL = "<｜tool▁call▁begin｜>$name<｜tool▁sep｜>$args<｜tool▁call▁end｜>"
_K3_CALLS = (
    '<|open|>tools<|sep|>~@(<|open|>call tool="$name"{}<|sep|>*(~<|open|>argument key="$key"$type<|sep|>$value'
    "<|close|>argument<|sep|>)*~<|close|>call<|sep|>)~@~<|close|>tools<|sep|>"
)
_PREFIX = "]<]minimax[>["  # of all tags of MiniMax-M3
_M3_CALLS = 'P<tool_call>~@(P<invoke name="$name">*(~P<$key>$valueP</$key>)*~P</invoke>)~@~P</tool_call>'
_FINAL = CHANNEL + "final" + MESSAGE
# Models generate the parts of the header in several orders.
_HARMONY_HEADERS = [
    start + end
    for start in (f"{CHANNEL}commentary to=functions.$name", f" to=functions.$name{CHANNEL}commentary")
    for end in (" <|constrain|>json", " json")
]
_MUSE_HEADER = f" to=$name{MESSAGE}"
_MUSE_TEXT_END = f"<|eom|>{START}assistant"
_MUSE_CALL = '<atem:invoke name="$name">*(~<atem:parameter name="$key">$value</atem:parameter>)*~</atem:invoke>'


def _list(opener: str, end: str = "", call: str = _OBJECT, **options: Any) -> tuple[CallLayout, ...]:
    """Calls that are the items of a JSON list."""
    return call_layouts(f"{opener}[^@({call}),^@^]{end}", **options)


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
        call_layouts('<|tools_prefix|>[@({"$name": $args}), @]<|tools_suffix|>'),
        reasoning=ReasoningTags("<|inner_prefix|>", "<|inner_suffix|>"),
    ),
    # DeepSeek V3, V3.1, and R1 with its distillates, which has the name and a JSON code block after the separator.
    Dialect(
        "deepseek",
        (
            *call_layouts(f"<｜tool▁calls▁begin｜>@({_R1_CALL})\n@<｜tool▁calls▁end｜>", template_text="```json"),
            *call_layouts(f"<｜tool▁calls▁begin｜>@({_V3_CALL})@<｜tool▁calls▁end｜>"),
        ),
        detected_by=(("<｜tool▁call▁begin｜>",),),
        also_dropped=("<｜tool▁calls▁end｜>",),
    ),
    Dialect(
        "functionary-3.2",
        # The first call does not begin with the marker: the prompt ends with it.
        call_layouts("@($name\n$args)>>>@"),
        detected_by=((">>>all",), (">>>", "all\\n")),
        also_read=call_layouts(">>>$name\n$args"),
        section_markers=(">>>all\n",),
        text_start=("all\n", "all\n"),
        text_end=">>>",
        part_mark=">>>",
    ),
    Dialect(
        "gemma-4",
        call_layouts("<|tool_call>call:$name$args<tool_call|>", notation="gemma", quotes=(GEMMA_QUOTE, GEMMA_QUOTE)),
        calls_start="",
        reasoning=ReasoningTags("<|channel>thought", "<channel|>"),
        also_dropped=("<|channel>",),  # Some models double it.
        reasons_anywhere=True,
    ),
    # GLM 4.5 to 4.7, Ling 3, Spark 2.5, Laguna.
    Dialect(
        "glm",
        (*_KEY_VALUE_TAGS, *_BARE_FUNCTION_TAGS),
        detected_by=(("<tool_call>", "<arg_key>"),),
        also_read=(*_JSON_OBJECT, *_FUNCTION_TAGS),
    ),
    Dialect(
        "granite-3",
        (*_list("<|tool_call|>", other_ends=("<|/tool_call|>",)), *_list("<tool_call>", "</tool_call>")),
        text_tags=("<response>", "</response>"),
    ),
    ChannelDialect(
        "harmony",
        # Only the whole header distinguishes a call.
        call_layouts(*(f"@({text}{MESSAGE}$args)<|end|>{START}assistant@" for text in _HARMONY_HEADERS), opener=""),
        detected_by=((START, CHANNEL, MESSAGE),),
        reasoning=ReasoningTags(CHANNEL + "analysis" + MESSAGE, "<|end|>"),
        also_dropped=("<|end|>", "<|call|>", "<|return|>"),
        text_start=(_FINAL, START + "assistant" + _FINAL),
        text_end=f"<|end|>{START}assistant",
    ),
    # Hermes 2 and 3, Qwen 2.5 and 3, QwQ, Granite 4, Reka, and localchat's built-in model. This is the most common
    # format, and the default for templates of unknown families.
    Dialect(
        "hermes",
        (*_JSON_OBJECT, *_FUNCTION_JSON),
        detected_by=(),
        also_read=(*_FUNCTION_TAGS, *_BARE_FUNCTION_TAGS, *_KEY_VALUE_TAGS),
    ),
    Dialect(
        "hy",
        call_layouts(
            "<tool_calls:opensource>~@(<tool_call:opensource>$name<tool_sep:opensource>*(~<arg_key:opensource>$key"
            "</arg_key:opensource>~<arg_value:opensource>$value</arg_value:opensource>)*~</tool_call:opensource>)~@~"
            "</tool_calls:opensource>"
        ),
        detected_by=(("<arg_key{}>", ":opensource"),),
        reasoning=ReasoningTags("<think:opensource>", "</think:opensource>"),
    ),
    Dialect(
        "minimax-m2",
        call_layouts(
            '<minimax:tool_call>~@(<invoke name="$name">*(~<parameter name="$key">$value</parameter>)*~</invoke>)~@'
            "~</minimax:tool_call>"
        ),
    ),
    # DeepSeek V3.2 and V4.
    Dialect("deepseek-dsml", (*_dsml("function_calls"), *_dsml("tool_calls")), detected_by=(("｜DSML｜",),)),
    Dialect(
        "cohere",
        _list(
            "<|START_ACTION|>", "<|END_ACTION|>", '{"tool_call_id": "$n", "tool_name": "$name", "parameters": $args}'
        ),
        section_markers=("<|START_RESPONSE|>", "<|START_TEXT|>"),
        also_dropped=("<|END_RESPONSE|>", "<|END_TEXT|>"),
        reasoning=ReasoningTags("<|START_THINKING|>", "<|END_THINKING|>"),
    ),
    Dialect(
        "command-r",
        call_layouts("Action:\n```json~" + _COMMAND_R, "Action: ```json~" + _COMMAND_R),
        detected_by=(("Action:", "```json", "tool_name"),),
    ),
    Dialect("nemotron-nano-2", _list("<TOOLCALL>", "</TOOLCALL>")),
    # Apriel generates a list, MiniMax-M1 one object per line.
    Dialect(
        "tool-calls",
        (*_list("<tool_calls>", "</tool_calls>"), *call_layouts(f"<tool_calls>\n@({_OBJECT})\n@\n</tool_calls>")),
        detected_by=(("<tool_calls>", "</tool_calls>"),),
        section_markers=("[BEGIN FINAL RESPONSE]",),
        also_dropped=("[END FINAL RESPONSE]",),
    ),
    Dialect("firefunction", _list("functools")),
    # Some models generate calls in a separate message.
    Dialect(
        "gigachat",
        (
            *call_layouts(
                "<|function_call|>" + _OBJECT, other_ends=("<|message_sep|>",), template_text="<|function_call|>"
            ),
            *call_layouts(
                "<|message_sep|>\n\nfunction call<|role_sep|>\n" + _OBJECT,
                "function call<|role_sep|>\n" + _OBJECT,
                other_ends=("<|message_sep|>",),
            ),
        ),
        detected_by=(("<|function_call|>",), ("function call<|role_sep|>",), ("<|message_sep|>", "function call")),
    ),
    Dialect(
        "kimi-k2",
        call_layouts(
            "<|tool_calls_section_begin|>@(<|tool_call_begin|>functions.$name:$n<|tool_call_argument_begin|>$args"
            "<|tool_call_end|>)@<|tool_calls_section_end|>"
        ),
        also_dropped=("<|tool_calls_section_end|>",),
    ),
    Dialect(
        "kimi-k3",
        call_layouts(_K3_CALLS.format(' index="$n"')),
        detected_by=(("<|open|>", "<|close|>", "<|sep|>"),),
        also_read=call_layouts(_K3_CALLS.format("")),
        section_markers=("<|open|>response<|sep|>",),
        also_dropped=("<|close|>response<|sep|>", "<|close|>message<|sep|>", "<|end_of_msg|>"),
        text_start=("<|open|>response<|sep|>", "<|open|>response<|sep|>"),
        reasoning=ReasoningTags("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
    ),
    # JSON is generated only if the prompt asks for it.
    Dialect(
        "lfm2",
        (
            *call_layouts("<|tool_call_start|>[@($name(*($key=$value)*)), @]<|tool_call_end|>", notation="python"),
            *_list("<|tool_call_start|>", "<|tool_call_end|>"),
        ),
        detected_by=(("<|tool_call_start|>",), ("<|tool_list_start|>",), ("List of tools: [", "<|im_start|>")),
    ),
    Dialect(
        "minicpm5",
        call_layouts(
            '@(<function name="$name">*(~<param name="$key">$value</param>)*~</function>)~@',
            quotes=("<![CDATA[", "]]>"),
        ),
        detected_by=(('<function name="', '<param name="'),),
    ),
    Dialect(
        "minimax-m3",
        call_layouts(_M3_CALLS.replace("P<", _PREFIX + "<")),
        detected_by=((_PREFIX,),),
        reasoning=ReasoningTags("<mm:think>", "</mm:think>"),
        no_reasoning="</mm:think>",
    ),
    # Mistral Nemo, Small 3, Devstral, Magistral, Ministral 3, Large 3. Some models leave out [ARGS].
    Dialect(
        "mistral",
        (
            *call_layouts("[TOOL_CALLS]$name[CALL_ID]$id[ARGS]$args", template_text="[CALL_ID]"),
            *call_layouts("[TOOL_CALLS]$name[ARGS]$args", template_text="[ARGS]"),
            # The id comes after the arguments, which are therefore not streamed: the template wants this id back.
            *_list("[TOOL_CALLS]", call='{"name": "$name", "arguments": $args, "id": "$id"}'),
        ),
        also_read=call_layouts("[TOOL_CALLS]$name$args"),
    ),
    ChannelDialect(
        "muse",
        # Each call is a message, whose header comes before the opener.
        call_layouts(
            f"{_MUSE_HEADER}@(<atem:function_calls>\n{_MUSE_CALL}~</atem:function_calls>){_MUSE_TEXT_END}{_MUSE_HEADER}@",
            opener="",
        ),
        detected_by=((START,),),
        also_read=call_layouts(f"<atem:function_calls>~@({_MUSE_CALL})~@~</atem:function_calls>"),
        reasoning=ReasoningTags("to=self" + MESSAGE, "<|eom|>"),
        also_dropped=("<|eom|>", "<|eot|>"),
        text_start=(" to=user" + MESSAGE, START + "assistant to=user" + MESSAGE),
        text_end=_MUSE_TEXT_END,
    ),
    # Qwen3-Coder, Qwen 3.5, Nemotron 3 Nano, StepFun 3.5.
    Dialect(
        "qwen-coder",
        (*_FUNCTION_TAGS, *_BARE_FUNCTION_TAGS),
        detected_by=(("<tool_call>", "<function=", "<parameter="),),
        also_read=(*_JSON_OBJECT, *_KEY_VALUE_TAGS),
    ),
    # Seed-OSS.
    Dialect(
        "seed",
        (
            *call_layouts(f"@(<seed:tool_call>~{_ONE_LINE_FUNCTION}~</seed:tool_call>)~@"),
            *call_layouts(f"@({_ONE_LINE_FUNCTION})~@", other_ends=("</seed:tool_call>",)),
        ),
        reasoning=ReasoningTags("<seed:think>", "</seed:think>"),
    ),
    # Solar Open.
    Dialect(
        "solar",
        call_layouts(
            "<|tool_calls|>@(<|tool_call:begin|>$id<|tool_call:name|>$name<|tool_call:args|>$args<|tool_call:end|>)@"
            "<|calls|>"
        ),
        detected_by=(("<|tool_call:begin|>",),),
        calls_start="<|begin|>assistant",
        section_markers=("<|begin|>assistant", "<|content|>"),
        also_dropped=("<|end|>", "<|calls|>"),
        text_start=("<|content|>", "<|begin|>assistant<|content|>"),
        reasoning=ReasoningTags("<|think|>", "<|end|>"),
    ),
    Dialect(
        "functionary-3.1", _FUNCTION_JSON, detected_by=(("<function=", "</function>"),), also_read=_BARE_FUNCTION_TAGS
    ),
    # A call as the whole output, or after <|python_tag|>.
    Dialect(
        "llama-3",
        call_layouts(*(f'{start}@({{"name": "$name", "parameters": $args}}); @' for start in ("", "<|python_tag|>"))),
        detected_by=(("<|python_tag|>",), ('{"name": function name, "parameters":',)),
    ),
)

DIALECTS = {dialect.name: dialect for dialect in _FAMILIES}
"""All dialects by name."""

# The reasoning tags of all families, and tags that some models use instead of those of their family.
_KNOWN_TAGS = (
    THINK,
    *(dialect.reasoning for dialect in _FAMILIES),
    ReasoningTags("[THINK]", "[/THINK]"),
    ReasoningTags("<thinking>", "</thinking>"),
    ReasoningTags("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
)


def detect(template: str) -> Dialect:
    """The dialect of the family whose markers are in the template, or "hermes" if there is none, with the reasoning
    tags and the call layouts that the template contains, if there are any."""
    template = template.replace('\\"', '"')  # Markers in Jinja strings have escaped quotes.
    dialect = next((dialect for dialect in _FAMILIES if dialect.matches(template)), DIALECTS["hermes"])
    known = (dialect.reasoning, *_KNOWN_TAGS)
    tags = next((tags for tags in known if tags.start in template and tags.end in template), dialect.reasoning)
    calls = tuple(layout for layout in dialect.calls if layout.template_text in template)
    return replace(dialect, reasoning=tags, calls=calls or dialect.calls)
