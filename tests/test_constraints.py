"""What binds an answer: the grammars of requests, tried on the engine's own matcher and read by the real parser."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import time
from dataclasses import replace
from typing import Any

import pytest

from localchat.dialects import DIALECTS, Dialect
from localchat.dialects.parser import OutputParser, merged
from localchat.engine import Constraint
from localchat.generation.constraints import constraint_for, plain_constraint
from localchat.prompt.segments import text_of
from localchat.prompt.template import ChatTemplate
from localchat.protocol.chat import ChatRequest
from localchat.protocol.completions import CompletionRequest
from localchat.protocol.errors import BadRequest
from localchat.protocol.events import ContentDelta, ReasoningDelta, ToolCallArguments, ToolCallStart
from localchat.protocol.params import GenerationParams
from localchat.protocol.response_format import ResponseFormat
from tools import formats as templates

from .gbnf import generate, matches
from .grammar_validator import is_valid

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 5}, "days": {"type": "integer", "minimum": 0}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = (
    {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "now"}},
)
OPEN_SCHEMA = {**SCHEMA, "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
MESSAGES = ({"role": "user", "content": "hello"},)
PLAIN = "{{ messages[-1].content }}{{ tools }}<tool_call></tool_call>"
THINKS = PLAIN + "{# <think> </think> #}"
PROMPT = "<|im_start|>assistant\n"
OPEN_PROMPT = PROMPT + "<think>\n"
CLOSED_PROMPT = PROMPT + "<think>\n\n</think>\n\n"

WEATHER = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
WRONG = '<tool_call>\n{"name": "weather", "arguments": {"city": 1}}\n</tool_call>'
THOUGHT = "<think>\nI wonder: <tool?\n</think>\n\n"


def bound(template: str = PLAIN, prompt: str = PROMPT, **members: Any) -> Constraint | None:
    request = ChatRequest(messages=MESSAGES, **members)
    return constraint_for(request, ChatTemplate(template), prompt)


def fits(constraint: Constraint | None, text: str) -> bool:
    assert constraint is not None
    return matches(constraint.grammar, text, constraint.root)


def required(**members: Any) -> dict[str, Any]:
    return {"tools": TOOLS, "tool_choice": "required", **members}


def auto(**members: Any) -> dict[str, Any]:
    return {"tools": TOOLS, "tool_choice": "auto", **members}


def formatted(kind: str, value: Any = None) -> dict[str, Any]:
    return {"response_format": ResponseFormat(kind, value, kind)}


CITY = formatted("json_schema", SCHEMA)

# What is asked for, of which template with which prompt; texts that may be the whole answer, and such that may not.
ANSWERS = {
    "required": (required(), PLAIN, PROMPT, [WEATHER, f"{WEATHER}\n{NOW}"], ["", "Sure.", WRONG, THOUGHT + NOW]),
    "one-call": (required(parallel_tool_calls=False), PLAIN, PROMPT, [NOW], [f"{NOW}\n{NOW}"]),
    "named": (required(allowed=("now",)), PLAIN, PROMPT, [NOW, f"{NOW}\n{NOW}"], [WEATHER]),
    "required-thinks": (
        required(),
        THINKS,
        PROMPT,
        [NOW, THOUGHT + WEATHER, "<think>\nhm\n" + NOW],
        [THOUGHT, THOUGHT + WRONG, "<think>", "<think>hm" + WRONG],
    ),
    "required-open": (
        required(),
        THINKS,
        OPEN_PROMPT,
        ["hm\n</think>\n\n" + NOW, NOW, "hm" + NOW],
        ["hm", "hm</think>\n\nhm", WRONG],
    ),
    "required-closed": (required(), THINKS, CLOSED_PROMPT, [NOW], [THOUGHT + NOW]),
    "required-off": (
        required(template_vars={"enable_thinking": False}),
        THINKS,
        PROMPT,
        [NOW],
        [THOUGHT + NOW],
    ),
    "schema": (CITY, PLAIN, PROMPT, ['{"city": "Rome"}'], ["", "{}", THOUGHT + '{"city": "Rome"}', NOW]),
    "schema-thinks": (CITY, THINKS, PROMPT, ['{"city":"Rome"}', THOUGHT + '{"city":"Rome"}'], [THOUGHT + "{}"]),
    "schema-open": (CITY, THINKS, OPEN_PROMPT, ['hm</think>\n\n{"city":"Rome"}'], ['{"city":"Rome"}', "hm"]),
    "schema-or-call": (auto(**CITY), PLAIN, PROMPT, ['{"city":"Rome"}', NOW, f"{NOW}\n{NOW}"], ["{}", WRONG, "Hi."]),
    "schema-or-call-thinks": (
        auto(**CITY),
        THINKS,
        PROMPT,
        [THOUGHT + '{"city":"Rome"}', THOUGHT + NOW],
        [THOUGHT + "{}"],
    ),
    "object": (formatted("json_object"), PLAIN, PROMPT, ["{}", '{"a": [1, null]}'], ["[]", "1", ""]),
    "regex": (formatted("regex", r"\d{3}-[a-c]+"), THINKS, PROMPT, ["123-abc", THOUGHT + "000-c"], ["12-a", ""]),
    "choice": (formatted("choice", ("yes", "no")), PLAIN, PROMPT, ["yes", "no"], ["", "maybe", "yesno"]),
    "grammar": (
        formatted("grammar", 'root ::= "a"+ text\ntext ::= "b"'),
        THINKS,
        PROMPT,
        ["aab", THOUGHT + "ab"],
        ["a", THOUGHT],
    ),
    "none-shaped": ({**auto(**CITY), "tool_choice": "none"}, PLAIN, PROMPT, ['{"city":"Rome"}'], [NOW]),
    "not-strict": (
        required(tools=({"function": {"name": "f", "strict": False, "parameters": {"if": {}}}},)),
        PLAIN,
        PROMPT,
        ['<tool_call>\n{"name": "f", "arguments": {"any": [1]}}\n</tool_call>'],
        ['<tool_call>\n{"name": "f", "arguments": 1}\n</tool_call>'],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ANSWERS.values(), ids=ANSWERS)
def test_answer_is_bound_as_asked(case: Any):
    members, template, prompt, right, wrong = case
    constraint = bound(template, prompt, **members)
    assert constraint is not None
    assert constraint.triggers == ()
    assert [text for text in right if not fits(constraint, text)] == []
    assert [text for text in wrong if fits(constraint, text)] == []


@pytest.mark.parametrize("members", [{}, {"tools": TOOLS, "tool_choice": "none"}], ids=["plain", "none"])
def test_nothing_binds_an_answer_that_nothing_was_asked_of(members: Any):
    assert bound(**members) is None


def test_model_may_say_that_it_does_not_think():
    thinks = "{{ tools }}]<]minimax[>[<mm:think></mm:think>"
    call = 'P<tool_call>P<invoke name="now">P</invoke>P</tool_call>'.replace("P<", "]<]minimax[>[<")
    for members, text in ((required(), call), (CITY, '{"city": "Rome"}')):
        constraint = bound(thinks, **members)
        assert all(fits(constraint, start + text) for start in ("", "</mm:think>", "<mm:think>hm</mm:think>\n\n"))
        assert not fits(constraint, "</mm:think>")


def test_auto_binds_from_the_marks_of_calls_on():
    constraint = bound(**auto())
    assert constraint is not None
    assert constraint.triggers == ("<tool_call>", "<function=")
    assert fits(constraint, f"{WEATHER}\n{NOW}")
    assert fits(constraint, "<function=now>{}</function>")
    for text in (WRONG, "<tool_call>", NOW + "Hi."):
        assert not fits(constraint, text)
    # Calls end reasoning, so they are bound there too.
    assert bound(THINKS, OPEN_PROMPT, **auto()) == bound(THINKS, **auto()) == constraint


def test_auto_of_bare_calls_binds_from_an_offered_name_on():
    constraint = bound('{{ tools }}{"name": function name, "parameters":', **auto())
    assert constraint is not None
    assert constraint.triggers[0] == '{"name": "weather", "parameters": '
    assert fits(constraint, '{"name": "now", "parameters": {}}')


def test_auto_binds_calls_in_tags_too():
    constraint = bound("{{ tools }}<tool_call><arg_key>", **auto())
    assert constraint is not None
    call = "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n</tool_call>"
    assert fits(constraint, call)
    assert fits(constraint, call + "\n<tool_call>now\n</tool_call>")
    assert not fits(constraint, call.replace("Rome", "Romulus"))
    assert not fits(constraint, call.replace("city", "town"))
    assert not fits(constraint, "<tool_call>weather\n</tool_call>")


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"type": "string"}, ["", "a\n\nb", "3", '{"a": </b>'], []),
        ({"type": ["string", "null"]}, ["", "null", "a < b"], []),
        ({}, ["", "x", "[1]"], []),
        ({"type": "string", "maxLength": 2}, ["", "ab", "</"], ["abc"]),
        ({"type": "boolean"}, ["true", "False"], ["", "yes", '"true"']),
        ({"type": ["integer", "null"]}, ["12", "null", "None"], ["", "x", "1.5"]),
        ({"enum": ["a b", 1, None]}, ["a b", "1", "null"], ["a", "2", '"a b"']),
        ({"type": "array", "items": {"type": "string"}}, ['["</arg_value>"]', "[]"], ["", "[1]"]),
        # What could be read as something else is not written as bare text.
        ({"type": ["string", "integer"], "maxLength": 3}, [], ["a", "1"]),
        ({"enum": ["1", 1]}, [], ["1"]),
    ],
    ids=str,
)
def test_value_in_tags_is_bound_by_its_schema(schema: Any, right: list[str], wrong: list[str]):
    tools = ({"function": {"name": "f", "parameters": {"properties": {"a": schema}, "required": ["a"]}}},)
    constraint = bound("{{ tools }}<tool_call><arg_key>", **required(tools=tools))
    call = "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>{}</arg_value>\n</tool_call>"
    assert [value for value in right if not fits(constraint, call.format(value))] == []
    assert [value for value in wrong if fits(constraint, call.format(value))] == []


@pytest.mark.parametrize(
    ("others", "is_in_tags"),
    [
        ({}, True),
        ({"additionalProperties": False}, True),
        ({"additionalProperties": {"type": "string"}}, False),
        ({"additionalProperties": True}, True),
        ({"patternProperties": {"^x": {"type": "string"}}}, False),
        ({"patternProperties": {"^x": False}}, True),
    ],
    ids=str,
)
def test_arguments_that_are_not_declared_are_members_of_an_object(others: Any, is_in_tags: bool):
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, **others}
    tools = ({"function": {"name": "f", "parameters": schema}},)
    constraint = bound("{{ tools }}<tool_call><arg_key>", **required(tools=tools))
    in_tags = "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>b</arg_value>\n</tool_call>"
    as_object = '<tool_call>f{"a": "b", "x": "c"}\n</tool_call>'
    assert (fits(constraint, in_tags), fits(constraint, as_object)) == (is_in_tags, not is_in_tags)


TREE = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "sizes": {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2},
        "next": {"$ref": "#/properties/tree"},
        "any": {"type": "object"},
    },
    "required": ["name"],
    "additionalProperties": False,
}


def test_values_in_elements_are_bound_to_their_depth():
    tools = ({"function": {"name": "f", "parameters": {"properties": {"tree": TREE}, "required": ["tree"]}}},)
    constraint = bound("{{ tools }}]<]minimax[>[", **required(tools=tools))
    assert constraint is not None
    call = 'P<tool_call>P<invoke name="f">P<tree>{}P</tree>P</invoke>P</tool_call>'
    right = [
        "P<name>5P</name>",
        "P<name>a b\nP</name>P<sizes>P<item>1P</item>P<item>-2P</item>P</sizes>",
        'P<name>P</name>P<any>{"a": [1]}P</any>',
        'P<name>P</name>P<next>{"name": "what contains itself is JSON"}P</next>',
    ]
    wrong = [
        "",
        '{"name": "a"}',
        "P<sizes>P<item>1P</item>P</sizes>",
        "P<name>aP</name>P<sizes>P</sizes>",
        "P<name>aP</name>P<sizes>P<item>xP</item>P</sizes>",
        "P<name>aP</name>P<sizes>" + "P<item>1P</item>" * 3 + "P</sizes>",
        "P<name>aP</name>P<other>1P</other>",
        'P<name>P</name>P<next>{"sizes": [1]}P</next>',
    ]
    for texts, is_right in ((right, True), (wrong, False)):
        for body in texts:
            text = call.replace("{}", body, 1).replace("P<", "]<]minimax[>[<")
            assert fits(constraint, text) == is_right, body
            if is_right:
                check_calls(DIALECTS["minimax-m3"], tools, text)


@pytest.mark.parametrize("schema", [{"type": "string"}, {"type": "string", "maxLength": 90}, {}], ids=str)
@pytest.mark.parametrize(
    ("marks", "call", "end"),
    [
        ("<|tool_call>", '<|tool_call>call:f{a:<|"|>{}<|"|>}<tool_call|>', "<tool_call|>"),
        ("<|tool_call_start|>", '<|tool_call_start|>[f(a="{}")]<|tool_call_end|>', "<|tool_call_end|>"),
        ("<|tool_call_start|>", "<|tool_call_start|>[f(a='{}')]<|tool_call_end|>", "<|tool_call_end|>"),
    ],
    ids=["gemma", "lfm", "lfm, other quotes"],
)
def test_text_in_a_notation_holds_no_end_of_the_calls(marks: str, call: str, end: str, schema: Any):
    """A model that ends its call within a text would leave what nobody can read."""
    tools = ({"function": {"name": "f", "parameters": {"properties": {"a": schema}, "required": ["a"]}}},)
    constraint = bound("{{ tools }}" + marks, **required(tools=tools))
    assert not fits(constraint, call.replace("{}", end))
    assert not fits(constraint, call.replace("{}", "x" + end + "y"))
    # Where the length is bound there is one kind of quotes, and no mark may even begin.
    held = "x" + end[1:] if "maxLength" in schema else "x" + end[:-1] + "\u00e9"
    assert fits(constraint, call.replace("{}", held)) or ("'" in call and "maxLength" in schema)


@pytest.mark.parametrize("end", ["<|start|>", "<|call|>", "<|return|>"])
def test_reasoning_in_channels_ends_only_where_the_response_format_begins(end: str):
    """The parser ends a message at any of these markers, and the text after it would not be bound."""
    channels = "{{ tools }}<|start|><|channel|><|message|>"
    prompt = "<|start|>assistant<|channel|>analysis<|message|>"
    for members, text in ((CITY, '<|channel|>final<|message|>{"city": "Rome"}'), (required(), None)):
        constraint = bound(channels, prompt, **members)
        text = text or "<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}"
        assert fits(constraint, f"hm<|end|><|start|>assistant{text}")
        for after in ("assistant", "", "<|end|><|start|>assistant"):
            assert not fits(constraint, f"hm{end}{after}{text}")


def test_calls_that_end_thinking_are_bound_there():
    thinks = "{{ tools }}<tool_call><function=<parameter=<think></think>"
    call = "<tool_call>\n<function=now>\n</function>\n</tool_call>"
    wrong = call.replace("now", "then")
    bare = "<function=now>\n</function>"
    for members in (auto(), required()):
        constraint = bound(thinks, OPEN_PROMPT, **members)
        assert constraint is not None
        before = "" if constraint.triggers else "hm\n"
        assert fits(constraint, before + call)
        assert not fits(constraint, before + wrong)
        assert fits(constraint, before + bare)
        assert not fits(constraint, before + bare.replace("now", "then"))
        assert constraint.triggers or fits(constraint, before + "</think>\n\n" + call)


def test_response_section_that_ends_reasoning_is_bound():
    """A mark that opens the text ends reasoning too, and what follows is of the response format."""
    kimi = "{{ tools }}<|open|><|close|><|sep|><|open|>think<|sep|><|close|>think<|sep|>"
    response = "<|open|>response<|sep|>"
    constraint = bound(kimi, "<|open|>think<|sep|>", **CITY)
    for end in (response, "<|close|>think<|sep|>" + response):
        assert fits(constraint, f'hm{end}{{"city": "Rome"}}')
        assert not fits(constraint, f"hm{end}Rome")
    constraint = bound(kimi, "<|open|>think<|sep|>", **required())
    assert not fits(constraint, f"hm{response}Hi")


@pytest.mark.parametrize("name", DIALECTS)
def test_auto_binds_from_every_opener_that_is_read(name: str):
    """What the parser takes for a call and no grammar bound would be a call with any arguments."""
    template = ChatTemplate("")
    template.format = DIALECTS[name]
    constraint = constraint_for(ChatRequest(messages=MESSAGES, **auto()), template, PROMPT)
    assert constraint is not None
    assert set(template.format.openers) <= set(constraint.triggers)


# Patterns of long strings, and whether they are bound where strings may not hold the end markers of calls.
LONG_PATTERNS = {
    "^.{1,1500}$": True,
    "^[a-z<|>_]{1,1500}$": True,
    "^(tool_call>){0,99}.{0,800}$": True,
    # It needs every character of the markers, and the exact automaton would be huge.
    "^(<tool_call[|]>|<[|]tool_call_end[|]>){0,9}.{0,800}$": False,
}


@pytest.mark.parametrize("name", DIALECTS)
def test_long_pattern_is_bound_or_refused_in_milliseconds(name: str):
    """Gemma 4 and LFM keep the marker that ends a call out of strings."""
    template = ChatTemplate("")
    template.format = DIALECTS[name]
    for pattern, is_bound_beside_markers in LONG_PATTERNS.items():
        schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}}
        tools = ({"function": {"name": "f", "parameters": schema}},)
        is_bound = is_bound_beside_markers or not template.format.layouts[0].end_marker
        started = time.process_time()
        assert constraint_for(ChatRequest(messages=MESSAGES, **auto(tools=tools)), template, PROMPT) is not None
        with contextlib.nullcontext() if is_bound else pytest.raises(BadRequest, match="too long to keep out") as error:
            assert constraint_for(ChatRequest(messages=MESSAGES, **required(tools=tools)), template, PROMPT)
        assert is_bound or error.value.param == "tools[0].function.parameters#/properties/a"
        assert time.process_time() - started < 0.5


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        (
            {"type": "string"},
            ["", "a < b", "<![CDAT", "a<![CDATA[", "<![CDATA[</param>]]>"],
            ["<![CDATA[", "<![CDATA[a"],
        ),
        ({"type": "string", "maxLength": 12}, ["<b>", "<![CDATA[</param>]]>"], ["<![CDATA[a", "a" * 13]),
        ({"enum": ["a", "b"]}, ["a", "<![CDATA[b]]>"], ["<![CDATA[a"]),
        ({}, ["a", "3", "<!"], ["<![CDATA[a"]),
        # What no bare text can be is left to JSON.
        ({"enum": ["<![CDATA[a"]}, [], ["<![CDATA[a"]),
    ],
    ids=str,
)
def test_bare_text_does_not_begin_as_quoted_text_does(schema: Any, right: list[str], wrong: list[str]):
    tools = ({"function": {"name": "f", "parameters": {"properties": {"a": schema}, "required": ["a"]}}},)
    constraint = bound('{{ tools }}<function name="<param name="', **required(tools=tools))
    call = '<function name="f"><param name="a">{}</param></function>'
    assert [value for value in right if not fits(constraint, call.format(value))] == []
    assert [value for value in wrong if fits(constraint, call.format(value))] == []
    for value in right:
        check_calls(DIALECTS["minicpm5"], tools, call.format(value))


# As a model writes them that has learnt from its template.
CALLS = (("get_weather", {"city": 'S\u00e3o "Paulo" <1>\n2nd line', "days": 3, "exact": True}), ("get_time", {}))
SOURCES = dict(templates.sources([]))


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("thought", ["", templates.THOUGHT])
def test_auto_lets_models_write_calls_as_they_do(name: str, thought: str):
    template = ChatTemplate(SOURCES[name], bos_token=templates.BOS, eos_token=templates.EOS)
    prompt, output = templates.generated(template, templates.Message(thought, "", CALLS))
    request = ChatRequest(messages=MESSAGES, tools=templates.TOOLS, tool_choice="auto")
    constraint = constraint_for(request, template, prompt)
    assert constraint is not None
    # Kimi K3 ends its turns with a mark that also ends its calls.
    text = output.rstrip() + ("<|sep|>" if name == "kimi-k3.jinja" else "")
    if constraint.triggers:
        text = text[min(text.find(trigger) for trigger in constraint.triggers if trigger in text) :]
    assert fits(constraint, text), text
    assert not fits(constraint, text.replace("get_time", "get_tame"))
    assert not fits(constraint, text.replace("days", "hours"))


PARTS = "{{ tools }}>>>all"


def test_auto_of_parts_binds_each_of_them():
    constraint = bound(PARTS, PROMPT + ">>>", **auto())
    assert constraint is not None
    assert constraint.triggers == ()
    right = ["all\n", "all\nHi > now\n", 'weather\n{"city": "Rome"}', "all\nHi.>>>now\n{}>>>now\n{}", ">>>all\nHi"]
    assert [text for text in right if not fits(constraint, text)] == []
    wrong = ["", "Hi", 'weather\n{"city": 1}', "then\n{}", "all\nHi.>>>then\n{}", "now\n{} Hi", "all\nHi>>>weather\n{}"]
    assert [text for text in wrong if fits(constraint, text)] == []


def test_auto_of_parts_goes_on_with_text_that_is_open():
    messages = (*MESSAGES, {"role": "assistant", "content": "Hi"})
    request = ChatRequest(messages=messages, continue_final_message="content", **auto())
    constraint = constraint_for(request, ChatTemplate(PARTS), PROMPT + ">>>all\nHi")
    assert fits(constraint, " there.>>>now\n{}")
    assert not fits(constraint, " there.>>>then\n{}")


def test_plain_text_is_bound_from_its_start():
    assert plain_constraint(CompletionRequest()) is None
    constraint = plain_constraint(CompletionRequest(**CITY))
    assert fits(constraint, '{"city": "Rome"}')
    with pytest.raises(BadRequest, match="ignore_eos"):
        plain_constraint(CompletionRequest(**CITY, params=GenerationParams(ignore_eos=True)))


BAD = {"type": "object", "properties": {"a": {"type": "string", "if": {}}}}

# What is asked for, the parameter that the error names, and a word of its message.
REFUSED = {
    "schema": (formatted("json_schema", BAD), "json_schema#/properties/a/if", "anyOf"),
    "tool": (
        required(tools=(*TOOLS, {"function": {"name": "f", "parameters": BAD}})),
        "tools[2].function.parameters#/properties/a/if",
        "strict",
    ),
    "tool-auto": (
        auto(tools=({"function": {"name": "f", "parameters": BAD, "strict": True}},)),
        "tools[0].function.parameters#/properties/a/if",
        "strict",
    ),
    "regex": (formatted("regex", "(a"), "regex", "regex"),
    "grammar": (formatted("grammar", "root ::= (" * 200), "grammar", "grammar"),
    "grammar-taken": (formatted("grammar", 'root ::= localchat-x\nlocalchat-x ::= "a"'), "grammar", "taken"),
    "choice": (formatted("choice", ("\0",)), "choice", "NUL"),
    "ignore_eos": (required(params=GenerationParams(ignore_eos=True)), "ignore_eos", "ignore_eos"),
    "min_tokens": ({**CITY, "params": GenerationParams(min_tokens=5)}, "min_tokens", "min_tokens"),
    "prefix": ({**CITY, "prefix": "{"}, "response_prefix", "begun"),
    "required-schema": (required(**formatted("json_schema", BAD)), "json_schema#/properties/a/if", "anyOf"),
    "required-regex": (required(**formatted("regex", "(a")), "regex", "regex"),
    "same-name": (auto(tools=(*TOOLS, TOOLS[1])), "tools[2].function.name", r"tools\[1\].*tools\[2\].*now"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_honoured_is_refused_by_name(case: Any):
    members, param, word = case
    with pytest.raises(BadRequest, match=word) as caught:
        bound(**members)
    assert caught.value.param == param


@pytest.mark.parametrize("tools", [(), TOOLS], ids=["alone", "or calls"])
@pytest.mark.parametrize("name", DIALECTS)
def test_form_comes_back_to_the_character(name: str, tools: Any):
    """What a form allows may look like a mark of the family: that ends nothing and is not left out."""
    format = DIALECTS[name]
    marks = (*format.openers, *format.preserved, *format.reasoning_ends)
    value = f' \n"a" {" ".join(marks)} \n'
    template = ChatTemplate(f"{{# {format.reasoning.start} #}}")
    template.format = format
    request = ChatRequest(messages=MESSAGES, tools=tools, **formatted("choice", (value,)))
    constraint = constraint_for(request, template, PROMPT)
    thought = f"{format.reasoning.start}hm{format.reasoning.end}"
    said = {format.text_start[0] + value: [ContentDelta(value)]}
    if name != "functionary-3.2":  # which has no thinking
        said[thought + format.text_start[1] + value] = [ReasoningDelta("hm"), ContentDelta(value)]
    for text, expected in said.items():
        assert fits(constraint, text)
        for pieces in ([text], text):
            parser = OutputParser(format, tools=tools, prompt=PROMPT, is_bound=True)
            events = merged([*(event for piece in pieces for event in parser.feed(piece)), *parser.finish()])
            assert events == expected


WAYS = [(name, i) for name, format in DIALECTS.items() for i in range(len(format.layouts))]


# Of every kind that bare text could be taken for another.
KINDS = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "minLength": 1, "maxLength": 9},
        "count": {"type": "integer", "minimum": -3, "maximum": 30},
        "ratio": {"type": "number"},
        "flag": {"type": "boolean"},
        "mood": {"enum": ["good", "so so", "<b>", 'a "b"', "5"]},
        "level": {"enum": ["low", 1, None]},
        "code": {"type": "string", "pattern": "^[A-Z<]{2,4}$"},
        "day": {"type": "string", "format": "date"},
        "list": {"type": "array", "items": {"type": "string", "maxLength": 4}, "maxItems": 2},
        "inner": {
            "type": "object",
            "properties": {"b": {"type": "string", "maxLength": 3}, "a": {"type": "boolean"}},
            "required": ["a"],
            "additionalProperties": False,
        },
    },
    "required": ["text", "mood", "inner"],
    "additionalProperties": False,
}
RICH = ({"type": "function", "function": {"name": "rich", "parameters": KINDS}},)
# No bare text can hold exactly this; what is not of Python or in tags cannot be a name there.
HARD = (
    {
        "type": "function",
        "function": {
            "name": "get-it",
            "parameters": {
                "type": "object",
                "properties": {
                    "5 or more": {"type": ["string", "integer"], "minimum": 5, "maxLength": 3},
                    "class": {"enum": ["1", 1]},
                },
                "required": ["5 or more", "class"],
                "additionalProperties": False,
            },
        },
    },
)


@pytest.mark.parametrize("tools", [TOOLS, RICH, HARD], ids=["plain", "rich", "hard"])
@pytest.mark.parametrize(("name", "i"), WAYS, ids=lambda value: str(value))
def test_every_way_of_calls_is_read_back_as_written(name: str, i: int, tools: Any):
    """The grammar of calls and the parser of the same format agree on what a call is, and it fits the schema."""
    format = DIALECTS[name]
    template = ChatTemplate("")
    way = format.layouts[i]
    template.format = type(format)(**{**vars(format), "layouts": (way,)})
    constraint = constraint_for(ChatRequest(messages=MESSAGES, **required(tools=tools)), template, PROMPT)
    assert constraint is not None
    texts = (generate(constraint.grammar, random.Random(seed), 1500, constraint.root) for seed in range(9))
    found = list(itertools.islice((text for text in texts if text is not None), 3))
    assert found
    for text in found:
        check_calls(format, tools, text)


WRITTEN = (("weather", {"city": 'a "<b>"', "days": 3}), ("now", {}), ("weather", {"city": ""}))


@pytest.mark.parametrize(("name", "i"), WAYS, ids=lambda value: str(value))
def test_every_way_of_calls_is_written_as_it_is_bound_and_read(name: str, i: int):
    """The writer of histories, the grammar and the parser are made of one declaration."""
    format, template = DIALECTS[name], ChatTemplate("")
    layout = format.layouts[i]
    template.format = replace(format, layouts=(layout,))
    tools = ({"function": {"name": "weather", "parameters": OPEN_SCHEMA}}, TOOLS[1])
    for calls in (WRITTEN, WRITTEN[1:2]):
        if layout.more:
            calls = calls[:1]
        text = layout.written([{"name": called, "arguments": arguments} for called, arguments in calls])
        constraint = constraint_for(ChatRequest(messages=MESSAGES, **required(tools=tools)), template, PROMPT)
        assert fits(constraint, text), text
        assert read_calls(format, tools, text) == list(calls)


@pytest.mark.parametrize("name", DIALECTS)
def test_calls_come_after_text_that_is_open(name: str):
    """What ends such a text where it has to is not left to the model."""
    format, template = DIALECTS[name], ChatTemplate("")
    template.format = format
    messages = (*MESSAGES, {"role": "assistant", "content": "Hi"})
    asked = required(parallel_tool_calls=False)
    request = ChatRequest(messages=messages, continue_final_message="content", **asked)
    prompt = "<|start|>assistant"
    prompt += text_of(format.opened_text("", "Hi", prompt))
    constraint = constraint_for(request, template, prompt)
    assert constraint is not None
    text = generate(constraint.grammar, random.Random(name), 1500, constraint.root)
    assert text is not None
    check_calls(format, TOOLS, text, prompt)


def read_calls(format: Dialect, tools: Any, text: str) -> list[Any]:
    header = f"<|start|>assistant to={tools[0]['function']['name']}<|message|>"
    parser = OutputParser(format, tools=tools, prompt=header if text.startswith("<atem") else PROMPT)
    events = merged([*parser.feed(text), *parser.finish()])
    assert {type(event) for event in events} == {ToolCallStart, ToolCallArguments}
    arguments = [json.loads(event.text) for event in events if isinstance(event, ToolCallArguments)]
    return list(zip((event.name for event in events if isinstance(event, ToolCallStart)), arguments))


def check_calls(format: Dialect, tools: Any, text: str, prompt: str = PROMPT) -> None:
    """The text is nothing but calls, with arguments that fit."""
    # Such calls have a header before them.
    header = f"<|start|>assistant to={tools[0]['function']['name']}<|message|>"
    prompt = header if text.startswith("<atem") else prompt
    parser = OutputParser(format, tools=tools, prompt=prompt)
    events = [*parser.feed(text), *parser.finish()]
    heads = [event for event in events if isinstance(event, ToolCallStart)]
    assert heads, (text, events)
    assert not [event for event in events if isinstance(event, (ContentDelta, ReasoningDelta)) and event.text], (
        text,
        events,
    )
    schemas = {tool["function"]["name"]: tool["function"].get("parameters", {}) for tool in tools}
    for head in heads:
        pieces = [e.text for e in events if isinstance(e, ToolCallArguments) and e.index == head.index]
        assert is_valid("".join(pieces), schemas[head.name]), (text, events)


@pytest.mark.parametrize(("name", "i"), WAYS, ids=lambda value: str(value))
def test_opener_begins_the_calls(name: str, i: int):
    format = DIALECTS[name]
    texts = format.layouts[i]
    assert (texts.begin + texts.before_name).startswith(texts.opener)
    known = (*format.openers, *format.ignored)
    assert not texts.is_native or not texts.opener or any(mark.startswith(texts.opener) for mark in known)
