"""The model families: for each, the texts that identify its templates, its call formats and its reasoning tags.

The families whose output needs a parser of its own are declared beside that parser.
"""

# ruff: noqa: RUF001 - the markers of some models are written with a wide bar

from __future__ import annotations

from dataclasses import replace

from .call_format import CallFormat
from .channels import HARMONY, MUSE
from .dialect import Dialect
from .functionary import FUNCTIONARY_32
from .granite import GRANITE
from .minimax_m3 import MINIMAX_M3
from .notations import GEMMA, LFM
from .reasoning import ReasoningTags

# Three formats are written between <tool_call> and </tool_call>: a JSON object, function tags, and a name with key and
# value tags. Models trained on one of them sometimes generate another one, so most of their families parse all three.
_JSON_OBJECT = CallFormat(
    '{"name": "$name", "arguments": $args}',
    around=(("<tool_call>\n", "\n</tool_call>"),),
    is_around_each=True,
    separator="~",
)
_BARE_FUNCTION_TAGS = CallFormat(
    "<function=$name>*(~<parameter=$key>\n$value\n</parameter>)*~</function>", separator="~"
)
_FUNCTION_TAGS = replace(_BARE_FUNCTION_TAGS, around=(("<tool_call>~", "~</tool_call>"),), is_around_each=True)
_FUNCTION_JSON = replace(_BARE_FUNCTION_TAGS, is_written_as_json=True)
_KEY_VALUE_TAGS = CallFormat(
    "<tool_call>$name*(~<arg_key>$key</arg_key>~<arg_value>$value</arg_value>)*~</tool_call>", separator="~"
)


def _json_list(opener: str, end: str = "", call: str = '{"name": "$name", "arguments": $args}') -> CallFormat:
    return CallFormat(call, around=((f"{opener}[^", f"^]{end}"),), separator=",^")


_COHERE_CALL = '{"tool_call_id": "$n", "tool_name": "$name", "parameters": $args}'
_COMMAND_R = CallFormat(
    '{^"tool_name": "$name",^"parameters": $args^}',
    around=(("Action:\n```json~[^", "^]~```"), ("Action: ```json~[^", "^]~```")),
    separator=",^",
    indent=40,
)
_GIGACHAT_CALL = CallFormat(
    '{"name": "$name", "arguments": $args}',
    around=(("<|function_call|>", ""),),
    is_around_each=True,
    other_ends=("<|message_sep|>",),
    template_text="<|function_call|>",
)
_LLAMA_CALL = CallFormat('{"name": "$name", "parameters": $args}', separator="; ")
_DEEPSEEK_SECTION = (("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),)

_FAMILIES = (
    Dialect(
        "apertus",
        detected_by=(("<|tools_prefix|>",),),
        calls=(CallFormat('{"$name": $args}', around=(("<|tools_prefix|>[", "]<|tools_suffix|>"),), separator=", "),),
        reasoning=ReasoningTags("<|inner_prefix|>", "<|inner_suffix|>"),
    ),
    # DeepSeek V3, V3.1, and R1 with its distillates. R1 has the word "function" before the separator, after it the name
    # and a JSON code block.
    Dialect(
        "deepseek",
        detected_by=(("<｜tool▁call▁begin｜>",),),
        calls=(
            CallFormat(
                "<｜tool▁call▁begin｜>function<｜tool▁sep｜>$name\n```json\n$args\n```<｜tool▁call▁end｜>",
                around=_DEEPSEEK_SECTION,
                drops_around=True,
                separator="\n",
                opener="<｜tool▁call▁begin｜>",
                template_text="```json",
            ),
            CallFormat(
                "<｜tool▁call▁begin｜>$name<｜tool▁sep｜>$args<｜tool▁call▁end｜>",
                around=_DEEPSEEK_SECTION,
                drops_around=True,
            ),
        ),
        has_own_tool_prompt=True,
    ),
    Dialect(
        "functionary-3.1",
        detected_by=(("<function=", "</function>"),),
        overrides=("llama-3",),
        calls=(_FUNCTION_JSON,),
    ),
    FUNCTIONARY_32,
    GEMMA,
    # GLM 4.5 to 4.7, Ling 3, Spark 2.5, Laguna. Models trained on both formats sometimes generate function tags.
    Dialect(
        "glm",
        detected_by=(("<tool_call>", "<arg_key>"),),
        calls=(_KEY_VALUE_TAGS, _BARE_FUNCTION_TAGS),
        also_read=(_JSON_OBJECT, _FUNCTION_TAGS),
    ),
    GRANITE,
    HARMONY,
    # Hermes 2 and 3, Qwen 2.5 and 3, QwQ, Granite 4, Reka, and localchat's built-in model. This is the most common
    # format, and the default for templates of unknown families. Models trained on both formats sometimes generate
    # function tags without the outer tag.
    Dialect(
        "hermes",
        calls=(_JSON_OBJECT, _FUNCTION_JSON),
        also_read=(_FUNCTION_TAGS, _KEY_VALUE_TAGS),
    ),
    Dialect(
        "hy",
        detected_by=(("<arg_key{}>", ":opensource"),),
        calls=(
            CallFormat(
                "<tool_call:opensource>$name<tool_sep:opensource>*(~<arg_key:opensource>$key</arg_key:opensource>"
                "~<arg_value:opensource>$value</arg_value:opensource>)*~</tool_call:opensource>",
                around=(("<tool_calls:opensource>~", "~</tool_calls:opensource>"),),
                separator="~",
            ),
        ),
        reasoning=ReasoningTags("<think:opensource>", "</think:opensource>"),
    ),
    Dialect(
        "minimax-m2",
        detected_by=(("<minimax:tool_call>",),),
        calls=(
            CallFormat(
                '<invoke name="$name">*(~<parameter name="$key">$value</parameter>)*~</invoke>',
                around=(("<minimax:tool_call>~", "~</minimax:tool_call>"),),
                separator="~",
            ),
        ),
    ),
    # DeepSeek V3.2 and V4.
    Dialect(
        "deepseek-dsml",
        detected_by=(("｜DSML｜",),),
        calls=(
            CallFormat(
                '<｜DSML｜invoke name="$name">'
                '*(~<｜DSML｜parameter name="$key"?( string="$string")?>$value</｜DSML｜parameter>)*~</｜DSML｜invoke>',
                around=(
                    ("<｜DSML｜function_calls>~", "~</｜DSML｜function_calls>"),
                    ("<｜DSML｜tool_calls>~", "~</｜DSML｜tool_calls>"),
                ),
                separator="~",
            ),
        ),
    ),
    Dialect(
        "cohere",
        detected_by=(("<|START_ACTION|>",),),
        overrides=("command-r",),
        calls=(_json_list("<|START_ACTION|>", "<|END_ACTION|>", _COHERE_CALL),),
        section_markers=("<|START_RESPONSE|>", "<|START_TEXT|>"),
        also_dropped=("<|END_RESPONSE|>", "<|END_TEXT|>"),
        reasoning=ReasoningTags("<|START_THINKING|>", "<|END_THINKING|>"),
    ),
    Dialect("command-r", detected_by=(("Action:", "```json", "tool_name"),), calls=(_COMMAND_R,)),
    Dialect("nemotron-nano-2", detected_by=(("<TOOLCALL>",),), calls=(_json_list("<TOOLCALL>", "</TOOLCALL>"),)),
    # Apriel generates a list, MiniMax-M1 one object per line.
    Dialect(
        "tool-calls",
        detected_by=(("<tool_calls>", "</tool_calls>"),),
        calls=(
            _json_list("<tool_calls>", "</tool_calls>"),
            CallFormat(_JSON_OBJECT.call, around=(("<tool_calls>\n", "\n</tool_calls>"),), separator="\n"),
        ),
        section_markers=("[BEGIN FINAL RESPONSE]",),
        also_dropped=("[END FINAL RESPONSE]",),
    ),
    Dialect("firefunction", detected_by=(("functools[",),), calls=(_json_list("functools"),)),
    Dialect(
        "gigachat",
        detected_by=(("<|function_call|>",), ("function call<|role_sep|>",), ("<|message_sep|>", "function call")),
        calls=(
            _GIGACHAT_CALL,
            # Calls in a separate message.
            replace(
                _GIGACHAT_CALL,
                around=(
                    ("<|message_sep|>\n\nfunction call<|role_sep|>\n", ""),
                    ("function call<|role_sep|>\n", ""),
                ),
                template_text="",
            ),
        ),
    ),
    # A call as the whole output, or after <|python_tag|>.
    Dialect(
        "llama-3",
        detected_by=(("<|python_tag|>",), ('{"name": function name, "parameters":',)),
        calls=(_LLAMA_CALL, replace(_LLAMA_CALL, around=(("<|python_tag|>", ""),))),
    ),
    Dialect(
        "kimi-k2",
        detected_by=(("<|tool_call_argument_begin|>",),),
        calls=(
            CallFormat(
                "<|tool_call_begin|>functions.$name:$n<|tool_call_argument_begin|>$args<|tool_call_end|>",
                around=(("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),),
                drops_around=True,
                opener="<|tool_call_begin|>",
                # Keep the id that the model generates, so that earlier calls in the prompt have ids in its format.
                id_has_name=True,
            ),
        ),
    ),
    Dialect(
        "kimi-k3",
        detected_by=(("<|open|>", "<|close|>", "<|sep|>"),),
        calls=(
            CallFormat(
                '<|open|>call tool="$name"?( index="$n")?<|sep|>*(~<|open|>argument key="$key"?( type="$type")?<|sep|>'
                "$value<|close|>argument<|sep|>)*~<|close|>call<|sep|>",
                around=(("<|open|>tools<|sep|>~", "~<|close|>tools<|sep|>"),),
                separator="~",
            ),
        ),
        section_markers=("<|open|>response<|sep|>",),
        also_dropped=("<|close|>response<|sep|>", "<|close|>message<|sep|>", "<|end_of_msg|>"),
        text_start=("<|open|>response<|sep|>", "<|open|>response<|sep|>"),
        reasoning=ReasoningTags("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
    ),
    LFM,
    Dialect(
        "minicpm5",
        detected_by=(('<function name="', '<param name="'),),
        calls=(
            CallFormat(
                '<function name="$name">*(~<param name="$key">$value</param>)*~</function>',
                separator="~",
                quotes=("<![CDATA[", "]]>"),
            ),
        ),
    ),
    MINIMAX_M3,
    # Mistral Nemo, Small 3, Devstral, Magistral, Ministral 3, Large 3. Some models leave out [ARGS].
    Dialect(
        "mistral",
        detected_by=(("[TOOL_CALLS]",),),
        calls=(
            CallFormat("[TOOL_CALLS]$name[CALL_ID]$id[ARGS]$args", template_text="[CALL_ID]"),
            CallFormat("[TOOL_CALLS]$name[ARGS]$args", template_text="[ARGS]"),
            # The id after the arguments is dropped: the calls are streamed, and begin with an id.
            _json_list("[TOOL_CALLS]", call='{"name": "$name", "arguments": $args, "id": "$id"}'),
        ),
        also_read=(CallFormat("[TOOL_CALLS]$name$args"),),
    ),
    MUSE,
    # Qwen3-Coder, Qwen 3.5, Nemotron 3 Nano, StepFun 3.5.
    Dialect(
        "qwen-coder",
        detected_by=(("<tool_call>", "<function=", "<parameter="),),
        overrides=("functionary-3.1",),
        calls=(_FUNCTION_TAGS,),
        also_read=(_JSON_OBJECT, _KEY_VALUE_TAGS),
    ),
    # Seed-OSS.
    Dialect(
        "seed",
        detected_by=(("<seed:tool_call>",),),
        overrides=("functionary-3.1",),
        calls=(
            CallFormat(
                "<function=$name>*(~<parameter=$key>$value</parameter>)*~</function>",
                around=(("<seed:tool_call>~", "~</seed:tool_call>"),),
                is_around_each=True,
                separator="~",
            ),
        ),
        reasoning=ReasoningTags("<seed:think>", "</seed:think>"),
    ),
    # Solar Open.
    Dialect(
        "solar",
        detected_by=(("<|tool_call:begin|>",),),
        calls=(
            CallFormat(
                "<|tool_call:begin|>$id<|tool_call:name|>$name<|tool_call:args|>$args<|tool_call:end|>",
                around=(("<|tool_calls|>", "<|calls|>"),),
                drops_around=True,
                after_reasoning="<|begin|>assistant",
            ),
        ),
        section_markers=("<|begin|>assistant", "<|content|>"),
        also_dropped=("<|end|>",),
        text_start=("<|content|>", "<|begin|>assistant<|content|>"),
        reasoning=ReasoningTags("<|think|>", "<|end|>"),
    ),
)

DIALECTS = {dialect.name: dialect for dialect in _FAMILIES}
