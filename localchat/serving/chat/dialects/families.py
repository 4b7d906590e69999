"""The model families: for each, the texts that identify its templates, its call formats and its reasoning tags.

Models with one format share an entry, which has the name of one of them: Qwen 2.5 and 3 are in "hermes".
"""

# ruff: noqa: RUF001, RUF003 - the markers of some models are written with a wide bar

from __future__ import annotations

from dataclasses import replace
from typing import Any

from .argument_format import ArgumentFormat
from .call_format import CallFormat, CallHeader, CallId, ObjectKeys
from .channels import CHANNEL, MESSAGE, START, ChannelDialect
from .dialect import THINK, Dialect, ReasoningTags, TextStart
from .holes import BREAK

_NAME_AND_ARGUMENTS = ObjectKeys("name", "arguments")

# Three formats are written between <tool_call> and </tool_call>: a JSON object, function tags, and a name with key and
# value tags. Models trained on one of them sometimes generate another one, so most of their families parse all three,
# and function tags without the outer tag.

# <tool_call>
# {"name": "f", "arguments": {"a": 1}}
# </tool_call>
_JSON_OBJECT = CallFormat(
    call_begin="<tool_call>\n", keys=_NAME_AND_ARGUMENTS, call_end="\n</tool_call>", separator=BREAK
)

# <tool_call>
# <function=f>
# <parameter=a>
# 1
# </parameter>
# </function>
# </tool_call>
_FUNCTION_TAGS = CallFormat(
    call_begin="<tool_call>",
    before_name="<function=",
    before_arguments=">",
    arguments=ArgumentFormat(before_key="<parameter=", after_key=">", after_value="</parameter>", value_on_lines=True),
    after_arguments="</function>",
    call_end="</tool_call>",
)
_BARE_FUNCTION_TAGS = replace(_FUNCTION_TAGS, call_begin="", call_end="", other_ends=("</tool_call>",))

# <tool_call>f
# <arg_key>a</arg_key>
# <arg_value>1</arg_value>
# </tool_call>
_KEY_VALUE_TAGS = CallFormat(
    before_name="<tool_call>",
    arguments=ArgumentFormat(
        before_key="<arg_key>", after_key="</arg_key>", before_value="<arg_value>", after_value="</arg_value>"
    ),
    after_arguments="</tool_call>",
)

# <function=f>{"a": 1}</function>
_FUNCTION_JSON = CallFormat(
    before_name="<function=", before_arguments=">", after_arguments="</function>", separator=BREAK
)


def _sections(format: CallFormat) -> tuple[CallFormat, CallFormat]:
    """A format, and the same without the texts around all calls."""
    return format, format.without_section()


def _list(begin: str, end: str = "", **options: Any) -> CallFormat:
    """Calls that are objects in a JSON list."""
    return CallFormat(**{"begin": begin, "end": end, "is_list": True, "keys": _NAME_AND_ARGUMENTS, **options})


def _dsml(section: str) -> tuple[CallFormat, CallFormat]:
    return _sections(
        CallFormat(
            begin=f"<｜DSML｜{section}>",
            before_name='<｜DSML｜invoke name="',
            before_arguments='">',
            arguments=ArgumentFormat(
                before_key='<｜DSML｜parameter name="',
                after_key='"',
                attribute="string",
                before_value=">",
                after_value="</｜DSML｜parameter>",
            ),
            after_arguments="</｜DSML｜invoke>",
            end=f"</｜DSML｜{section}>",
            other_ends=("</｜DSML｜function_calls>", "</｜DSML｜tool_calls>"),
            template_text=f"<｜DSML｜{section}>",
        )
    )


def _harmony(before_name: str, before_arguments: str) -> CallFormat:
    return CallFormat(
        before_name=before_name,
        before_arguments=before_arguments + MESSAGE,
        separator=f"<|end|>{START}assistant",
        explicit_opener="",  # Only the whole header distinguishes a call.
    )


_DEEPSEEK = CallFormat(
    begin="<｜tool▁calls▁begin｜>",
    before_name="<｜tool▁call▁begin｜>",
    before_arguments="<｜tool▁sep｜>",
    after_arguments="<｜tool▁call▁end｜>",
    end="<｜tool▁calls▁end｜>",
)
_DEEPSEEK_R1 = replace(
    _DEEPSEEK,
    before_name="<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
    before_arguments="\n```json\n",
    after_arguments="\n```<｜tool▁call▁end｜>",
    separator="\n",
    template_text="```json",
)
_COMMAND_R = _list("Action:\n```json", "```", keys=ObjectKeys("tool_name", "parameters"), is_indented=True)
_GIGACHAT = CallFormat(
    call_begin="<|function_call|>",
    keys=_NAME_AND_ARGUMENTS,
    other_ends=("<|message_sep|>",),
    template_text="<|function_call|>",
)
_KIMI_K2 = CallFormat(
    begin="<|tool_calls_section_begin|>",
    call_begin="<|tool_call_begin|>",
    before_name="functions.",
    id=CallId(":", is_number=True, template="functions.{name}:{id}"),
    before_arguments="<|tool_call_argument_begin|>",
    call_end="<|tool_call_end|>",
    end="<|tool_calls_section_end|>",
)
_KIMI_K3 = CallFormat(
    begin="<|open|>tools<|sep|>",
    before_name='<|open|>call tool="',
    before_arguments='"<|sep|>',
    arguments=ArgumentFormat(
        before_key='<|open|>argument key="',
        after_key='"',
        attribute="type",
        before_value="<|sep|>",
        after_value="<|close|>argument<|sep|>",
    ),
    after_arguments="<|close|>call<|sep|>",
    end="<|close|>tools<|sep|>",
)
_M3 = "]<]minimax[>["  # The prefix of all tags of MiniMax-M3.
_MISTRAL = CallFormat(before_name="[TOOL_CALLS]", before_arguments="[ARGS]", template_text="[ARGS]")
_MUSE = CallFormat(
    call_begin="<atem:function_calls>\n",
    before_name='<atem:invoke name="',
    before_arguments='">',
    arguments=ArgumentFormat(before_key='<atem:parameter name="', after_key='">', after_value="</atem:parameter>"),
    after_arguments="</atem:invoke>",
    call_end="</atem:function_calls>",
    separator=f"<|eom|>{START}assistant",
    header=CallHeader(" to=", MESSAGE),
    explicit_opener="",
)
_FINAL = CHANNEL + "final" + MESSAGE


# If a template has the texts of several families, it belongs to the first one. So "harmony" precedes "muse", and
# "qwen-coder" and "seed" precede "functionary-3.1". No known template has the texts of two others.
_FAMILIES = (
    # <|tools_prefix|>[{"f": {"a": 1}}, {"g": {}}]<|tools_suffix|>
    Dialect(
        "apertus",
        (_list("<|tools_prefix|>", "<|tools_suffix|>", separator=", ", keys=ObjectKeys(name="")),),
        reasoning=ReasoningTags("<|inner_prefix|>", "<|inner_suffix|>", on_lines=False),
    ),
    # DeepSeek V3, V3.1, and R1 with its distillates, which has the name and a JSON code block after the separator:
    # <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>
    Dialect(
        "deepseek",
        (*_sections(_DEEPSEEK_R1), *_sections(_DEEPSEEK)),
        detected_by=(("<｜tool▁call▁begin｜>",),),
        closing_markers=("<｜tool▁calls▁end｜>",),
    ),
    # all
    # Some text>>>f
    # {"a": 1}>>>g
    # {}
    Dialect(
        "functionary-3.2",
        # The first call does not begin with the marker: the prompt ends with it.
        (CallFormat(before_arguments="\n", separator=">>>"),),
        detected_by=((">>>all",), (">>>", "all\\n")),
        also_read=(CallFormat(before_name=">>>", before_arguments="\n"),),
        opening_markers=(">>>all\n",),
        text_start=TextStart("all\n", "all\n"),
        text_end=">>>",
        recipient_mark=">>>",
    ),
    # <|tool_call>call:f{a:1,b:<|"|>text<|"|>}<tool_call|>
    Dialect(
        "gemma-4",
        (
            CallFormat(
                call_begin="<|tool_call>",
                before_name="call:",
                call_end="<tool_call|>",
                notation="gemma",
            ),
        ),
        calls_start="",
        reasoning=ReasoningTags("<|channel>thought", "<channel|>"),
        closing_markers=("<|channel>",),  # The beginning of the start tag, which some models double.
        reasons_anywhere=True,
    ),
    # GLM 4.5 to 4.7, Ling 3, Spark 2.5, Laguna: key and value tags.
    Dialect(
        "glm",
        (_KEY_VALUE_TAGS, _BARE_FUNCTION_TAGS),
        detected_by=(("<tool_call>", "<arg_key>"),),
        also_read=(_JSON_OBJECT, _FUNCTION_TAGS),
    ),
    # <|tool_call|>[{"name": "f", "arguments": {"a": 1}}]
    Dialect(
        "granite-3",
        (_list("<|tool_call|>", other_ends=("<|/tool_call|>",)), _list("<tool_call>", "</tool_call>")),
        text_tags=("<response>", "</response>"),
    ),
    # <|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>
    ChannelDialect(
        "harmony",
        # Models generate the parts of the header in several orders.
        tuple(
            _harmony(before_name, before_arguments)
            for before_name, after_name in (
                (f"{CHANNEL}commentary to=functions.", ""),
                (" to=functions.", f"{CHANNEL}commentary"),
            )
            for before_arguments in (after_name + " <|constrain|>json", after_name + " json")
        ),
        detected_by=((START, CHANNEL, MESSAGE),),
        reasoning=ReasoningTags(CHANNEL + "analysis" + MESSAGE, "<|end|>", on_lines=False),
        closing_markers=("<|end|>", "<|call|>", "<|return|>"),
        text_start=TextStart(_FINAL, START + "assistant" + _FINAL),
        text_end=f"<|end|>{START}assistant",
    ),
    # Hermes 2 and 3, Qwen 2.5 and 3, QwQ, Granite 4, Reka, and localchat's built-in model: a JSON object in a tag. This
    # is the most common format, and the default for templates of unknown families.
    Dialect(
        "hermes",
        (_JSON_OBJECT, _FUNCTION_JSON),
        detected_by=(),
        also_read=(_FUNCTION_TAGS, _BARE_FUNCTION_TAGS, _KEY_VALUE_TAGS),
    ),
    # <tool_calls:opensource>
    # <tool_call:opensource>f<tool_sep:opensource>
    # <arg_key:opensource>a</arg_key:opensource>
    # <arg_value:opensource>1</arg_value:opensource>
    # </tool_call:opensource>
    # </tool_calls:opensource>
    Dialect(
        "hy",
        _sections(
            CallFormat(
                begin="<tool_calls:opensource>",
                before_name="<tool_call:opensource>",
                before_arguments="<tool_sep:opensource>",
                arguments=ArgumentFormat(
                    before_key="<arg_key:opensource>",
                    after_key="</arg_key:opensource>",
                    before_value="<arg_value:opensource>",
                    after_value="</arg_value:opensource>",
                ),
                after_arguments="</tool_call:opensource>",
                end="</tool_calls:opensource>",
            )
        ),
        detected_by=(("<arg_key{}>", ":opensource"),),
        reasoning=ReasoningTags("<think:opensource>", "</think:opensource>"),
    ),
    # <minimax:tool_call>
    # <invoke name="f">
    # <parameter name="a">1</parameter>
    # </invoke>
    # </minimax:tool_call>
    Dialect(
        "minimax-m2",
        _sections(
            CallFormat(
                begin="<minimax:tool_call>",
                before_name='<invoke name="',
                before_arguments='">',
                arguments=ArgumentFormat(before_key='<parameter name="', after_key='">', after_value="</parameter>"),
                after_arguments="</invoke>",
                end="</minimax:tool_call>",
            )
        ),
    ),
    # DeepSeek V3.2 and V4, whose section is "function_calls" or "tool_calls":
    # <｜DSML｜tool_calls>
    # <｜DSML｜invoke name="f">
    # <｜DSML｜parameter name="a" string="false">1</｜DSML｜parameter>
    # </｜DSML｜invoke>
    # </｜DSML｜tool_calls>
    Dialect("deepseek-dsml", (*_dsml("function_calls"), *_dsml("tool_calls")), detected_by=(("｜DSML｜",),)),
    # <|START_ACTION|>[{"tool_call_id": "0", "tool_name": "f", "parameters": {"a": 1}}]<|END_ACTION|>
    Dialect(
        "cohere",
        (
            _list(
                "<|START_ACTION|>",
                "<|END_ACTION|>",
                keys=ObjectKeys("tool_name", "parameters"),
                id=CallId("tool_call_id", "first", is_number=True),
            ),
        ),
        opening_markers=("<|START_RESPONSE|>", "<|START_TEXT|>"),
        closing_markers=("<|END_RESPONSE|>", "<|END_TEXT|>"),
        reasoning=ReasoningTags("<|START_THINKING|>", "<|END_THINKING|>", on_lines=False),
    ),
    # Action:
    # ```json
    # [{"tool_name": "f","parameters": {"a": 1}}]
    # ```
    Dialect(
        "command-r",
        (_COMMAND_R, replace(_COMMAND_R, begin="Action: ```json")),
        detected_by=(("Action:", "```json", "tool_name"),),
    ),
    # <TOOLCALL>[{"name": "f", "arguments": {"a": 1}}]</TOOLCALL>
    Dialect("nemotron-nano-2", (_list("<TOOLCALL>", "</TOOLCALL>"),)),
    # <tool_calls>[{"name": "f", "arguments": {"a": 1}}]</tool_calls>
    Dialect(
        "tool-calls",
        # Apriel generates a list, MiniMax-M1 one object per line.
        (
            _list("<tool_calls>", "</tool_calls>"),
            CallFormat(begin="<tool_calls>\n", keys=_NAME_AND_ARGUMENTS, separator="\n", end="\n</tool_calls>"),
        ),
        detected_by=(("<tool_calls>", "</tool_calls>"),),
        opening_markers=("[BEGIN FINAL RESPONSE]",),
        closing_markers=("[END FINAL RESPONSE]",),
    ),
    # functools[{"name": "f", "arguments": {"a": 1}}]
    Dialect("firefunction", (_list("functools", explicit_opener="functools["),)),
    # <|function_call|>{"name": "f", "arguments": {"a": 1}}
    Dialect(
        "gigachat",
        # Some models generate calls in a separate message.
        (
            _GIGACHAT,
            *(
                replace(_GIGACHAT, call_begin=f"{before}function call<|role_sep|>\n", template_text="")
                for before in ("<|message_sep|>\n\n", "")
            ),
        ),
        detected_by=(("<|function_call|>",), ("function call<|role_sep|>",), ("<|message_sep|>", "function call")),
    ),
    # <|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": 1}<|tool_call_end|>
    # <|tool_calls_section_end|>, all on one line
    Dialect(
        "kimi-k2",
        _sections(_KIMI_K2),
        # Where earlier calls have the ids of another server, some models leave out "functions." or the number, too.
        also_read=tuple(
            format
            for changes in ({"before_name": ""}, {"id": None}, {"before_name": "", "id": None})
            for format in _sections(replace(_KIMI_K2, **changes))
        ),
        closing_markers=("<|tool_calls_section_end|>",),
    ),
    # <|open|>tools<|sep|>
    # <|open|>call tool="f" index="0"<|sep|>
    # <|open|>argument key="a" type="number"<|sep|>1<|close|>argument<|sep|>
    # <|close|>call<|sep|>
    # <|close|>tools<|sep|>
    Dialect(
        "kimi-k3",
        _sections(replace(_KIMI_K3, id=CallId('" index="', is_number=True))),
        detected_by=(("<|open|>", "<|close|>", "<|sep|>"),),
        also_read=_sections(_KIMI_K3),
        opening_markers=("<|open|>response<|sep|>",),
        closing_markers=("<|close|>response<|sep|>", "<|close|>message<|sep|>", "<|end_of_msg|>"),
        text_start=TextStart("<|open|>response<|sep|>", "<|open|>response<|sep|>"),
        reasoning=ReasoningTags("<|open|>think<|sep|>", "<|close|>think<|sep|>", on_lines=False),
    ),
    # <|tool_call_start|>[f(a=1, b="text"), g()]<|tool_call_end|>
    Dialect(
        "lfm2",
        (
            CallFormat(
                begin="<|tool_call_start|>",
                is_list=True,
                separator=", ",
                arguments=ArgumentFormat(after_key="=", separator=", ", line_breaks=False),
                notation="python",
                end="<|tool_call_end|>",
            ),
            # JSON is generated only if the prompt asks for it.
            _list("<|tool_call_start|>", "<|tool_call_end|>"),
        ),
        detected_by=(("<|tool_call_start|>",), ("<|tool_list_start|>",), ("List of tools: [", "<|im_start|>")),
    ),
    # <function name="f">
    # <param name="a"><![CDATA[text]]></param>
    # </function>
    Dialect(
        "minicpm5",
        (
            CallFormat(
                before_name='<function name="',
                before_arguments='">',
                arguments=ArgumentFormat(
                    before_key='<param name="',
                    after_key='">',
                    after_value="</param>",
                    quotes=("<![CDATA[", "]]>"),
                ),
                after_arguments="</function>",
            ),
        ),
        detected_by=(('<function name="', '<param name="'),),
    ),
    # ]<]minimax[>[<tool_call>
    # ]<]minimax[>[<invoke name="f">
    # ]<]minimax[>[<a>1]<]minimax[>[</a>
    # ]<]minimax[>[</invoke>
    # ]<]minimax[>[</tool_call>
    Dialect(
        "minimax-m3",
        _sections(
            CallFormat(
                begin=_M3 + "<tool_call>",
                before_name=_M3 + '<invoke name="',
                before_arguments='">',
                arguments=ArgumentFormat(before_key=_M3 + "<", after_key=">", after_value=_M3 + "</", repeats_key=True),
                after_arguments=_M3 + "</invoke>",
                end=_M3 + "</tool_call>",
            )
        ),
        detected_by=((_M3,),),
        reasoning=ReasoningTags("<mm:think>", "</mm:think>", on_lines=False),
        no_reasoning="</mm:think>",
    ),
    # Mistral Nemo, Small 3, Devstral, Magistral, Ministral 3, Large 3: [TOOL_CALLS]f[ARGS]{"a": 1}
    Dialect(
        "mistral",
        (
            replace(_MISTRAL, id=CallId("[CALL_ID]"), template_text="[CALL_ID]"),
            _MISTRAL,
            # The id comes after the arguments, which are therefore not streamed: the template wants this id back.
            _list("[TOOL_CALLS]", id=CallId("id", "last")),
        ),
        # Some models leave out [ARGS].
        also_read=(replace(_MISTRAL, before_arguments="", template_text=""),),
    ),
    #  to=f<|message|><atem:function_calls>
    # <atem:invoke name="f">
    # <atem:parameter name="a">1</atem:parameter>
    # </atem:invoke>
    # </atem:function_calls>
    ChannelDialect(
        "muse",
        # Each call is a message, whose header comes before the opener.
        _sections(_MUSE),
        detected_by=((START,),),
        also_read=_sections(
            replace(
                _MUSE,
                begin="<atem:function_calls>",
                call_begin="",
                call_end="",
                end="</atem:function_calls>",
                separator="",
                header=None,
                explicit_opener=None,
            )
        ),
        reasoning=ReasoningTags("to=self" + MESSAGE, "<|eom|>", on_lines=False),
        closing_markers=("<|eom|>", "<|eot|>"),
        text_start=TextStart(" to=user" + MESSAGE, START + "assistant to=user" + MESSAGE),
        text_end=f"<|eom|>{START}assistant",
    ),
    # Qwen3-Coder, Qwen 3.5, Nemotron 3 Nano, StepFun 3.5: function tags in <tool_call>.
    Dialect(
        "qwen-coder",
        (_FUNCTION_TAGS, _BARE_FUNCTION_TAGS),
        detected_by=(("<tool_call>", "<function=", "<parameter="),),
        also_read=(_JSON_OBJECT, _KEY_VALUE_TAGS),
    ),
    # Seed-OSS:
    # <seed:tool_call>
    # <function=f>
    # <parameter=a>1</parameter>
    # </function>
    # </seed:tool_call>
    Dialect(
        "seed",
        tuple(
            replace(
                format,
                call_begin=format.call_begin and "<seed:tool_call>",
                call_end=format.call_end and "</seed:tool_call>",
                arguments=ArgumentFormat(before_key="<parameter=", after_key=">", after_value="</parameter>"),
                other_ends=format.other_ends and ("</seed:tool_call>",),
            )
            for format in (_FUNCTION_TAGS, _BARE_FUNCTION_TAGS)
        ),
        reasoning=ReasoningTags("<seed:think>", "</seed:think>"),
    ),
    # Solar Open:
    # <|tool_calls|><|tool_call:begin|>0<|tool_call:name|>f<|tool_call:args|>{"a": 1}<|tool_call:end|><|calls|>
    Dialect(
        "solar",
        _sections(
            CallFormat(
                begin="<|tool_calls|>",
                id=CallId("<|tool_call:begin|>", "first"),
                before_name="<|tool_call:name|>",
                before_arguments="<|tool_call:args|>",
                after_arguments="<|tool_call:end|>",
                end="<|calls|>",
            )
        ),
        detected_by=(("<|tool_call:begin|>",),),
        calls_start="<|begin|>assistant",
        opening_markers=("<|begin|>assistant", "<|content|>"),
        closing_markers=("<|end|>", "<|calls|>"),
        text_start=TextStart("<|content|>", "<|begin|>assistant<|content|>"),
        reasoning=ReasoningTags("<|think|>", "<|end|>", on_lines=False),
    ),
    # <function=f>{"a": 1}</function>
    Dialect(
        "functionary-3.1",
        (_FUNCTION_JSON,),
        detected_by=(("<function=", "</function>"),),
        also_read=(_BARE_FUNCTION_TAGS,),
    ),
    # <|python_tag|>{"name": "f", "parameters": {"a": 1}}, or the call as the whole output.
    Dialect(
        "llama-3",
        tuple(
            CallFormat(begin=begin, keys=ObjectKeys("name", "parameters"), separator="; ")
            for begin in ("", "<|python_tag|>")
        ),
        detected_by=(("<|python_tag|>",), ('{"name": function name, "parameters":',)),
    ),
)

DIALECTS = {dialect.name: dialect for dialect in _FAMILIES}
"""All dialects by name."""

# The reasoning tags of all families, and tags that some models use instead of those of their family.
_KNOWN_TAGS = (
    THINK,
    *(dialect.reasoning for dialect in _FAMILIES),
    ReasoningTags("[THINK]", "[/THINK]", on_lines=False),
    ReasoningTags("<thinking>", "</thinking>"),
    ReasoningTags("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
)


def detect(template: str) -> Dialect:
    """The dialect of the family whose markers are in the template, or "hermes" if there is none.

    Its reasoning tags and call formats are those that the template contains, if it contains any.
    """
    template = template.replace('\\"', '"')  # Markers in Jinja strings have escaped quotes.
    dialect = next((dialect for dialect in _FAMILIES if dialect.matches(template)), DIALECTS["hermes"])
    known = (dialect.reasoning, *_KNOWN_TAGS)
    tags = next((tags for tags in known if tags.start in template and tags.end in template), dialect.reasoning)
    calls = tuple(format for format in dialect.calls if format.template_text in template)
    return replace(dialect, reasoning=tags, calls=calls or dialect.calls)
