"""The constraint of a request: its grammar, matched against valid and invalid outputs."""

from __future__ import annotations

import json
import random
import re
import sys
from functools import partial
from typing import Any

import pytest

from localchat.serving.api import ollama
from localchat.serving.api.chat import ChatRequest, parse_chat
from localchat.serving.api.completions import CompletionRequest
from localchat.serving.api.messages import parse_messages
from localchat.serving.api.responses import ResponseStore, parse_response
from localchat.serving.chat.constraints import constraint as constraint_module
from localchat.serving.chat.constraints import json_schema
from localchat.serving.chat.constraints.constraint import constraint_for, plain_constraint
from localchat.serving.chat.dialects import DIALECTS
from localchat.serving.chat.dialects.parser import OutputParser, merged
from localchat.serving.chat.prompt.template import ChatTemplate, prefilled
from localchat.serving.core.errors import BadRequest, NotSupported
from localchat.serving.core.events import ContentDelta, ReasoningDelta
from localchat.serving.core.fields import Fields
from localchat.serving.core.params import GenerationParams
from tests.support.constraints import (
    CITY,
    CLOSED_PROMPT,
    MESSAGES,
    NOW,
    OPEN_PROMPT,
    PLAIN,
    PROMPT,
    REASONING,
    THINKS,
    TOOLS,
    WEATHER,
    WRONG,
    auto,
    check_calls,
    constraint_of,
    fits,
    formatted,
    gbnf,
    generated,
    required,
)


def tools_with(parameters: Any) -> tuple[dict[str, Any], ...]:
    return ({"function": {"name": "f", "parameters": parameters}},)


PREFILLED = {"messages": (*MESSAGES, {"role": "assistant", "content": "Hi"}), "continue_final_message": "content"}
LLAMA = '{{ tools }}{"name": function name, "parameters":'
CALL_F = '<tool_call>\n{"name": "f", "arguments": {%s}}\n</tool_call>'
LISTED_NAMES = {"type": "object", "propertyNames": {"enum": ["a"]}, "additionalProperties": {"type": "integer"}}
# What no grammar can enforce is left out in `auto`.
IN_PART = {
    "to": {"type": "string", "pattern": "^(?!x)"}, "id": {"const": 2**60}, "n": {"type": "integer"},
    "near": {"type": "number", "exclusiveMinimum": 0, "maximum": 0.5},
}  # fmt: skip
IN_TAGS = "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n</tool_call>"
CODER = "{{ tools }}<tool_call><function=<parameter=<think></think>"
CODER_CALL = "<tool_call>\n<function=now>\n</function>\n</tool_call>"
CODER_CALLS = ["hm\n" + CODER_CALL, "hm\n<function=now>\n</function>", "hm\n</think>\n\n" + CODER_CALL]
MINIMAX = "{{ tools }}]<]minimax[>[<mm:think></mm:think>"
MINIMAX_CALL = 'P<tool_call>P<invoke name="now">P</invoke>P</tool_call>'.replace("P<", "]<]minimax[>[<")
MINIMAX_STARTS = ("", "</mm:think>", "<mm:think>hm</mm:think>\n\n")
CHANNELS = "{{ tools }}<|start|><|channel|><|message|>"
CHANNEL_PROMPT = "<|start|>assistant<|channel|>analysis<|message|>"
CHANNEL_ENDS = [
    marker + after
    for marker in ("<|start|>", "<|call|>", "<|return|>")
    for after in ("assistant", "", "<|end|><|start|>assistant")
]
FINAL = '<|channel|>final<|message|>{"city": "Rome"}'
COMMENTARY = "<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}"
SECTIONS = "{{ tools }}<|open|><|close|><|sep|><|open|>think<|sep|><|close|>think<|sep|>"
SECTION_ENDS = ("<|open|>response<|sep|>", "<|close|>think<|sep|><|open|>response<|sep|>")
PARTS = "{{ tools }}>>>all"

# The fields of the request, the template and the prompt; valid outputs, and invalid ones.
OUTPUTS = {
    "required": (required(), PLAIN, PROMPT, [WEATHER, f"{WEATHER}\n{NOW}"], ["", "Sure.", WRONG, REASONING + NOW]),
    "auto-one-call": (
        auto(parallel_tool_calls=False), PLAIN, PROMPT, ["Hi.", NOW, "Hi.\n" + NOW], [f"{NOW}\n{NOW}", NOW + "Hi."],
    ),
    "required-thinks": (
        required(), THINKS, PROMPT, [NOW, REASONING + WEATHER, "<think>\nhm\n" + NOW],
        [REASONING, REASONING + WRONG, "<think>", "<think>hm" + WRONG],
    ),
    "required-open": (
        required(), THINKS, OPEN_PROMPT, ["hm\n</think>\n\n" + NOW, NOW, "hm" + NOW],
        ["hm", "hm</think>\n\nhm", WRONG],
    ),
    "required-off": (required(template_vars={"enable_thinking": False}), THINKS, PROMPT, [NOW], [REASONING + NOW]),
    "required-closed": (required(), THINKS, CLOSED_PROMPT, [NOW], [REASONING + NOW]),
    "schema": (CITY, PLAIN, PROMPT, ['{"city": "Rome"}'], ["", "{}", REASONING + '{"city": "Rome"}', NOW]),
    "schema-thinks": (CITY, THINKS, PROMPT, ['{"city":"Rome"}', REASONING + '{"city":"Rome"}'], [REASONING + "{}"]),
    "schema-or-call": (auto(**CITY), PLAIN, PROMPT, ['{"city":"Rome"}', NOW, f"{NOW}\n{NOW}"], ["{}", WRONG, "Hi."]),
    "grammar": (
        formatted("grammar", 'root ::= "a"+ text\ntext ::= "b"'), THINKS, PROMPT, ["aab", REASONING + "ab"],
        ["a", REASONING],
    ),
    "not-strict": (
        required(tools=({"function": {"name": "f", "strict": False, "parameters": {"if": {}}}},)), PLAIN, PROMPT,
        ['<tool_call>\n{"name": "f", "arguments": {"any": [1]}}\n</tool_call>'],
        ['<tool_call>\n{"name": "f", "arguments": 1}\n</tool_call>'],
    ),
    "prefill": ({**PREFILLED, **formatted("regex", r"\d-c")}, THINKS, PROMPT + "Hi", ["3-c"], ["<think>hm</think>3-c"]),
    "auto": (
        auto(), PLAIN, PROMPT,
        [f"{WEATHER}\n{NOW}", "<function=now>{}</function>", "", "Hi. <tool <", "Hi. " + NOW, "Hi.<" + WEATHER],
        [WRONG, "<tool_call>", NOW + "Hi.", "Hi." + WRONG],
    ),
    "auto-names": (auto(tools=tools_with(LISTED_NAMES)), PLAIN, PROMPT, [CALL_F % '"a": 1'], [CALL_F % '"b": 1']),
    "auto-in-part": (
        auto(tools=tools_with({"properties": IN_PART})), PLAIN, PROMPT,
        [CALL_F % '"to": "x", "id": 3, "n": 1, "near": 0'],
        [CALL_F % text for text in ('"to": 1', '"n": ""', '"near": ""', '"b": 1')],
    ),
    # Calls end reasoning, so they are constrained there too.
    "auto-open": (auto(), THINKS, OPEN_PROMPT, ["hm</think>\n\nHi", "hm" + NOW], ["hm" + WRONG]),
    "auto-bare": (auto(), LLAMA, PROMPT, ['{"name": "now", "parameters": {}}'], ['{"name": "now", "parameters": 1}']),
    "auto-tags": (
        auto(), "{{ tools }}<tool_call><arg_key>", PROMPT, [IN_TAGS, IN_TAGS + "\n<tool_call>now\n</tool_call>"],
        [IN_TAGS.replace("Rome", "Romulus"), IN_TAGS.replace("city", "town"), "<tool_call>weather\n</tool_call>"],
    ),
    "auto-thought": (auto(), CODER, OPEN_PROMPT, CODER_CALLS, [text.replace("now", "then") for text in CODER_CALLS]),
    "empty-reasoning-required": (
        required(), MINIMAX, PROMPT, [start + MINIMAX_CALL for start in MINIMAX_STARTS], ["</mm:think>"],
    ),
    "empty-reasoning-schema": (
        CITY, MINIMAX, PROMPT, [start + '{"city": "Rome"}' for start in MINIMAX_STARTS], ["</mm:think>"],
    ),
    # The parser ends a message at any of these markers, so the text after another marker would be unconstrained.
    "channels-schema": (
        CITY, CHANNELS, CHANNEL_PROMPT, [f"hm<|end|><|start|>assistant{FINAL}"],
        [f"hm{end}{FINAL}" for end in CHANNEL_ENDS],
    ),
    "channels-required": (
        required(), CHANNELS, CHANNEL_PROMPT, [f"hm<|end|><|start|>assistant{COMMENTARY}"],
        [f"hm{end}{COMMENTARY}" for end in CHANNEL_ENDS],
    ),
    # A marker that opens the text also ends reasoning, and the response format begins after it.
    "sections-schema": (
        CITY, SECTIONS, "<|open|>think<|sep|>", [f'hm{end}{{"city": "Rome"}}' for end in SECTION_ENDS],
        [f"hm{end}Rome" for end in SECTION_ENDS],
    ),
    "sections-required": (required(), SECTIONS, "<|open|>think<|sep|>", [], ["hm<|open|>response<|sep|>Hi"]),
    "parts": (
        auto(), PARTS, PROMPT + ">>>",
        ["all\n", "all\nHi > now\n", 'weather\n{"city": "Rome"}', "all\nHi.>>>now\n{}>>>now\n{}", ">>>all\nHi"],
        ["", "Hi", 'weather\n{"city": 1}', "then\n{}", "all\nHi.>>>then\n{}", "now\n{} Hi", "all\nHi>>>weather\n{}"],
    ),
    "parts-prefill": (
        {**PREFILLED, **auto()}, PARTS, PROMPT + ">>>all\nHi", [" there.>>>now\n{}"], [" there.>>>then\n{}"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", OUTPUTS.values(), ids=OUTPUTS)
def test_output_is_constrained_as_requested(case: Any):
    fields, template, prompt, right, wrong = case
    constraint = constraint_of(template, prompt, **fields)
    assert constraint is not None
    assert [text for text in right if not fits(constraint, text)] == []
    assert [text for text in wrong if fits(constraint, text)] == []


@pytest.mark.parametrize("fields", [{}, {"tools": TOOLS, "tool_choice": "none"}], ids=["plain", "none"])
def test_request_without_a_format_has_no_constraint(fields: Any):
    assert constraint_of(**fields) is None


@pytest.mark.parametrize("name", DIALECTS)
def test_auto_constrains_from_every_opener_of_the_parser(name: str):
    """A call that the parser reads and no grammar constrains could have any arguments."""
    template = ChatTemplate("")
    template.dialect = DIALECTS[name]
    constraint = constraint_for(ChatRequest(messages=MESSAGES, **auto()), template, PROMPT)
    assert constraint is not None
    assert fits(constraint, "all\nHi." if template.dialect.part_mark else "Hi.")
    assert not [opener for opener in template.dialect.openers if fits(constraint, f"Hi. {opener} then")]


def test_completion_is_constrained_from_its_start():
    assert plain_constraint(CompletionRequest()) is None
    constraint = plain_constraint(CompletionRequest(**CITY))
    assert fits(constraint, '{"city": "Rome"}')
    with pytest.raises(BadRequest, match="ignore_eos"):
        plain_constraint(CompletionRequest(**CITY, params=GenerationParams(ignore_eos=True)))


BAD = {"type": "object", "properties": {"a": {"type": "string", "if": {}}}}

# The fields of the request, the `param` of the error, and a word of its message.
REFUSED = {
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
    "regex": (formatted("regex", "(a"), "regex", "regular expression is not supported"),
    "empty regex": (formatted("regex", "x[a&&b]"), "regex", "no text matches it"),
    "endless grammar": (formatted("grammar", 'root ::= "a" r\nr ::= "b" root'), "grammar", "no text of the rule"),
    "grammar": (formatted("grammar", "root ::= (" * 200), "grammar", "grammar"),
    "choice": (formatted("choice", ("\0",)), "choice", "NUL"),
    "ignore_eos": (required(params=GenerationParams(ignore_eos=True)), "ignore_eos", "ignore_eos"),
    "min_tokens": ({**CITY, "params": GenerationParams(min_tokens=5)}, "min_tokens", "min_tokens"),
    "prefix": ({**CITY, "prefix": "{"}, "response_prefix", "prefill"),
    "same-name": (auto(tools=(*TOOLS, TOOLS[1])), "tools[2].function.name", r"tools\[1\].*tools\[2\].*now"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_constraint_that_cannot_be_enforced_is_refused(case: Any):
    fields, param, word = case
    with pytest.raises(BadRequest, match=word) as caught:
        constraint_of(**fields)
    assert caught.value.param == param


@pytest.mark.parametrize("tools", [(), TOOLS], ids=["alone", "or calls"])
@pytest.mark.parametrize("name", DIALECTS)
def test_constrained_text_with_markers_is_read_exactly(name: str, tools: Any):
    """The parser reads the markers of the family as text if the response format allows them."""
    dialect = DIALECTS[name]
    markers = (*dialect.openers, *dialect.preserved, *dialect.reasoning_ends)
    value = f' \n"a" {" ".join(markers)} \n'
    template = ChatTemplate(f"{{# {dialect.reasoning.start} #}}")
    template.dialect = dialect
    request = ChatRequest(messages=MESSAGES, tools=tools, **formatted("choice", (value,)))
    constraint = constraint_for(request, template, PROMPT)
    reasoning = f"{dialect.reasoning.start}hm{dialect.reasoning.end}"
    outputs = {dialect.text_start[0] + value: [ContentDelta(value)]}
    if name != "functionary-3.2":  # This family has no reasoning.
        outputs[reasoning + dialect.text_start[1] + value] = [ReasoningDelta("hm"), ContentDelta(value)]
    for text, expected in outputs.items():
        assert fits(constraint, text)
        for pieces in ([text], text):
            parser = OutputParser(dialect, tools=tools, prompt=PROMPT, is_constrained=True)
            events = merged([*(event for piece in pieces for event in parser.feed(piece)), *parser.finish()])
            assert events == expected


@pytest.mark.parametrize("name", DIALECTS)
def test_json_of_a_schema_is_never_in_a_code_fence(name: str):
    """Neither at the start of the output nor after reasoning, so the parser needs no rule for it."""
    dialect, template = DIALECTS[name], ChatTemplate(f"{{# {DIALECTS[name].reasoning.start} #}}")
    template.dialect = dialect
    constraint = constraint_for(ChatRequest(messages=MESSAGES, **CITY), template, PROMPT)
    reasoning = f"{dialect.reasoning.start}hm{dialect.reasoning.end}"
    for before in (dialect.text_start[0], reasoning + dialect.text_start[1]):
        assert fits(constraint, before + '{"city": "Rome"}')
        assert not fits(constraint, before + '```json\n{"city": "Rome"}\n```')


@pytest.mark.parametrize("name", DIALECTS)
def test_calls_may_follow_a_prefilled_text(name: str):
    """The grammar requires the marker that ends the text, if the family has one."""
    dialect, template = DIALECTS[name], ChatTemplate("")
    template.dialect = dialect
    messages = (*MESSAGES, {"role": "assistant", "content": "Hi"})
    fields = required(parallel_tool_calls=False)
    request = ChatRequest(messages=messages, continue_final_message="content", **fields)
    prompt = prefilled(dialect, "<|start|>assistant", "", "Hi")
    constraint = constraint_for(request, template, prompt)
    assert constraint is not None
    text = generated(constraint, random.Random(name))
    assert text is not None
    check_calls(dialect, TOOLS, text, prompt)


# --- schemas and GBNF ---


# A schema, JSON that it allows, and JSON that it does not.
ENFORCED = {
    "uri of Pydantic": ({"type": "string", "format": "uri", "maxLength": 2083}, ['"https://a.b/c"'], ['"a b"', "1"]),
    "required null": ({"type": "object", "required": None, "properties": {"a": {}}}, ["{}", '{"a": 1}'], ["[]"]),
    "unknown format": ({"type": "string", "format": "color"}, ['"red"'], ["1"]),
    "nullable": ({"type": "integer", "nullable": True}, ["1", "null"], ['"a"']),
    "other properties": ({"type": "object", "properties": {"a": {}}}, ["{}", '{"a": 1}'], ['{"b": 1}']),
    "allOf": ({"allOf": [{"properties": {"a": {"type": "integer"}}}, {"required": ["a"]}]}, ['{"a": 1}'], ["{}"]),
    "definitions": ({"$ref": "#/$defs/q", "$defs": {"q": {"enum": [1, "b"]}}}, ["1", '"b"'], ["2"]),
    "default of uniqueItems": ({"type": "array", "uniqueItems": False}, ["[1, 1]"], ["1"]),
    "options of llguidance": ({"type": "integer", "x-guidance": {"lenient": True}}, ["1"], ['"a"']),
}

INTEGER, TEXT = {"type": "integer"}, {"type": "string"}
DECLARED = {"properties": {"a": INTEGER}, "required": ["a"]}
BASE = {"type": "object", "properties": {"a": INTEGER, "k": {"$ref": "#/$defs/base"}}}
KINDS = {name: {"type": "object", "properties": {"k": {"const": name}}, "required": ["k"]} for name in ("x", "y")}
ENFORCED |= {
    "null in values": (
        {"enum": [{"a": None, "b": 1}, {"properties": None}], "title": None},
        ['{"a": null, "b": 1}', '{"properties": null}'], ['{"b": 1}', "{}"],
    ),
    "object without type": (DECLARED, ['{"a": 1}'], ["-2", "{}"]),
    "names of any text": ({"type": "object", "propertyNames": {"type": "string"}}, ['{"a": 1}'], ["1"]),
    "listed names": (
        {"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": INTEGER, "required": ["a"]},
        ['{"a": 1, "b": 2}', '{"a": 1}'], ['{"c": 1}', '{"a": 1, "a": 2}', '{"b": 1}', '{"a": ""}'],
    ),
    "pattern of names": ({"type": "object", "propertyNames": {"pattern": "^x"}}, ['{"xa": 1}'], ['{"a": 1}']),
    "pattern of a declared name": (
        {"properties": {"a": INTEGER}, "patternProperties": {"^a$": {"minimum": 3}}, "additionalProperties": False},
        ['{"a": 3}', "{}"], ['{"a": 1}', '{"a": 3, "a": 3}'],
    ),
    "declared name in escapes": (
        {**DECLARED, "additionalProperties": {"type": "string"}},
        ['{"a": 1, "b": "x"}'], ['{"a": 1, "\\u0061": "x"}'],
    ),
    "closed allOf": (
        {"allOf": [DECLARED, {"properties": {"b": INTEGER}}]}, ['{"a": 1, "b": 2}', '{"a": 1}'], ['{"a": 1, "c": 2}'],
    ),
    "closed reference": (
        {"$ref": "#/$defs/base", "properties": {"b": INTEGER}, "$defs": {"base": BASE}},
        ['{"a": 1, "k": {"a": 2}, "b": 2}'], ['{"c": 2}', '{"k": {"b": 1}}'],
    ),
    "closed anyOf": (
        {**DECLARED, "anyOf": [{"properties": {"y": INTEGER}}, {"properties": {"z": INTEGER}}]},
        ['{"a": 1, "y": 1}', '{"a": 1, "z": 1}'], ['{"a": 1, "w": 1}'],
    ),
    "open allOf": (
        {"allOf": [DECLARED, {"properties": {"b": INTEGER}, "additionalProperties": True}]}, ['{"a": 1, "c": ""}'],
        ["{}"],
    ),
    "oneOf of references": (
        {"oneOf": [{"$ref": "#/$defs/x"}, {"$ref": "#/$defs/y"}], "$defs": KINDS}, ['{"k": "x"}'],
        ['{"k": "z"}', '{"k": "x", "b": 1}'],
    ),
    "oneOf of objects": (
        {"oneOf": [{**DECLARED, "type": "object"}, {"properties": {"b": TEXT}, "required": ["b"]}]},
        ['{"a": 1}', '{"b": ""}'], ['{"a": 1, "b": ""}', "{}"],
    ),
    "unused definition": ({"type": "integer", "$defs": {"q": {"not": {}}, "r": {"$ref": "#/$defs/s"}}}, ["1"], ['""']),
    "reference to a branch": (
        {"oneOf": [TEXT, {"type": "object", "properties": {"a": {"$ref": "#/oneOf/0"}}}]}, ['{"a": ""}'], ['{"a": 1}'],
    ),
    "reference elsewhere": (
        {"$ref": "#/components/A<b>", "components": {"A<b>": {**DECLARED, "properties": {"a": {"format": "x"}}}}},
        ['{"a": 1}'], ['{"a": 1, "b": 1}'],
    ),
    "names of a reference": (
        {"type": "object", "propertyNames": {"$ref": "#/$defs/q"}, "$defs": {"q": {"enum": ["a"]}}},
        ['{"a": 1}'], ['{"b": 1}'],
    ),
    "any number of items": ({"type": "array", "items": INTEGER, "maxItems": 2**31 - 1}, ["[1, 2]"], ['[""]']),
    "40 patterns": (
        {"type": "object", "patternProperties": {f"^{i}_": INTEGER for i in range(40)}},
        ['{"7_a": 1}'], ['{"7_a": ""}'],
    ),
    "length as a float": ({"type": "string", "maxLength": 1.0}, ['"a"'], ['"ab"']),
    "near bounds": ({"type": "number", "minimum": 0.1, "exclusiveMaximum": 0.9}, ["0.1"], ["0.9", "0"]),
    "negated class": ({"type": "string", "pattern": '^[^"]+$'}, ['"a"'], ['"\\""']),
    "control character": ({"properties": {"a": {"const": "\1"}}}, ['{"a": "\\u0001"}'], ['{"a": ""}']),
    "list of nodes": (
        {**DECLARED, "properties": {"a": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}}, ['{"a": {"a": null}}'],
        ['{"a": {}}'],
    ),
}  # fmt: skip

REFERENCES = [{"$ref": f"#/$defs/{i}"} for i in range(100)]
# A schema that cannot be enforced, and the place in it; None: the error names the field.
UNENFORCEABLE = {
    "names of a format": ({"type": "object", "propertyNames": {"format": "date"}}, "/propertyNames"),
    "reference beside": (
        {"properties": {"a": {"$ref": "#/properties/b"}, "b": INTEGER, "c": {"not": INTEGER}}},
        "/properties/c/not",
    ),
    "too few names": ({"type": "object", "propertyNames": {"const": "a"}, "minProperties": 2}, "/minProperties"),
    "several large objects": (
        {"prefixItems": [{"properties": {str(i): {} for i in range(2500)}}] * 2},
        "/prefixItems/1",
    ),
    "near bounds": ({"items": {"type": "number", "exclusiveMinimum": 2, "maximum": 2.5}}, "/items"),
    "bounds near zero": ({"items": {"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}}, "/items"),
    "control character": ({**DECLARED, "additionalProperties": {"enum": ["x\1"]}}, "/additionalProperties"),
    "pattern of control characters": (
        {**DECLARED, "additionalProperties": {"pattern": "^\\x1b$"}},
        "/additionalProperties",
    ),
    "many combinations": (
        {"$ref": "#/$defs/0", "$defs": {str(i): {"properties": {"a": {}}, "anyOf": REFERENCES} for i in range(100)}},
        None,
    ),
    "names that differ": ({"type": "object", "minProperties": 2}, "/minProperties"),
    "pattern of taken names": (
        {**DECLARED, "patternProperties": {"^[a]$": {}}, "additionalProperties": False},
        "/patternProperties",
    ),
    "closed objects that overlap": (
        {
            "oneOf": [
                {"properties": {"a": {}, "b": {}}, "required": ["a"]},
                {"properties": {"b": {}}, "required": ["b"]},
            ]
        },
        "",
    ),
    "endless": ({"properties": {"a": {"$ref": "#"}}, "required": ["a"]}, ""),
    "properties": ({"items": {"properties": {str(i): {} for i in range(3001)}}}, "/items/properties"),
    "not": ({"properties": {"a": {"not": {"type": "null"}}}}, "/properties/a/not"),
    "if": ({"items": {"anyOf": [{"type": "null"}, {"if": {}}]}}, "/items/anyOf/1/if"),
    "uniqueItems": (
        {"$defs": {"q": {"type": "array", "uniqueItems": True}}, "$ref": "#/$defs/q"},
        "/$defs/q/uniqueItems",
    ),
    "look-ahead": ({"properties": {"a/b": {"type": "string", "pattern": "(?=a)"}}}, "/properties/a~1b"),
    "overlapping oneOf": ({"oneOf": [{"type": "number", "minimum": 1}, {"type": "integer"}]}, ""),
    "rounded integer": ({"properties": {"id": {"enum": [2**53 + 1]}}}, "/properties/id"),
    "unknown type": ({"properties": {"a": {"type": "foo"}}}, "/properties/a"),
    "false": (False, ""),
}


@pytest.mark.parametrize("case", ENFORCED.values(), ids=ENFORCED)
def test_schema_is_enforced(case: Any):
    schema, right, wrong = case
    constraint = constraint_of(**formatted("json_schema", schema))
    assert [text for text in right if not fits(constraint, text)] == []
    assert [text for text in wrong if fits(constraint, text)] == []


@pytest.mark.parametrize("case", UNENFORCEABLE.values(), ids=UNENFORCEABLE)
def test_schema_that_cannot_be_enforced_is_refused_with_its_place(case: Any):
    schema, place = case
    with pytest.raises(BadRequest, match="cannot be enforced") as caught:
        constraint_of(**formatted("json_schema", schema))
    assert caught.value.param == ("json_schema" if place is None else f"json_schema#{place}")
    assert not re.search("llguidance|Unsatisfiable|coerce|Unimplemented", caught.value.message)


@pytest.mark.parametrize("bad", [{"not": {}}, {"type": "string", "pattern": "(?=a)"}], ids=["keyword", "pattern"])
def test_place_among_many_definitions_is_found_with_few_compilations(bad: Any, monkeypatch: pytest.MonkeyPatch):
    names = [f"d{i}" for i in range(300)]
    part = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 9}}, "description": "words " * 20}
    definitions = {name: {**part, "title": name} for name in names}
    definitions["d299"] = {"properties": {"z": bad}}
    schema = {"properties": {name: {"$ref": f"#/$defs/{name}"} for name in names}, "$defs": definitions}
    n_chars, error_in = [], json_schema.error_in
    monkeypatch.setattr(json_schema, "error_in", lambda grammar: n_chars.append(len(grammar)) or error_in(grammar))
    pointer, reason = json_schema.error_place(json_schema.normalized(schema))
    assert pointer.startswith("/$defs/d299/properties/z")
    assert reason
    assert sum(n_chars) < 8 * len(json.dumps(schema))


def test_references_in_a_long_chain_are_refused():
    """llguidance follows them on the stack, and would end the process."""
    definitions = {f"d{i}": {"properties": {"n": {"$ref": f"#/$defs/d{i + 1}"}}} for i in range(3000)}
    with pytest.raises(BadRequest, match="nested too deeply"):
        constraint_of(**formatted("json_schema", {"$ref": "#/$defs/d0", "$defs": {**definitions, "d3000": {}}}))


JSON_GBNF = r"""root ::= object # a comment
value ::= object | array | string | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array ::= "[" ws ( value
  ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
ws ::= | " " | "\n" [ \t]{0,20}"""


@pytest.mark.parametrize(
    ("grammar", "right", "wrong"),
    [
        (JSON_GBNF, ["{}", '{"a": [true, "x\\n"], "b": {}}'], ["[]", '{"a"}', '{"a": 1}']),
        ('root ::= "a" root "b" | "c"', ["c", "aacbb"], ["aacb", "ab"]),
        ('root ::= [a-f]{2,4} ("," [^a-f\\]-])?', ["ab,x", "abcd"], ["a", "ab,]", "ab,-"]),
        ('root ::= "\\u00e9\\x41\\n" .', ["\u00e9A\nx", "\u00e9A\n\n"], ["\u00e9A\n"]),
        ('root ::= start "z" | "(" root ")"\nstart ::= [a-z]+', ["abz", "((zzz))"], ["z", "(ab)"]),
    ],
    ids=["json", "recursive", "classes", "escapes", "texts that overlap"],
)
def test_gbnf_is_followed(grammar: str, right: list[str], wrong: list[str]):
    constraint = gbnf(grammar)
    assert [text for text in right if not fits(constraint, text)] == []
    assert [text for text in wrong if fits(constraint, text)] == []


@pytest.mark.parametrize(
    "grammar",
    ["", " \n", 'root ::= undefined "x"', "no grammar", 'other ::= "x"', "root ::= )", "root ::= +", 'root ::= "\\'],
)
def test_gbnf_that_cannot_be_parsed_is_refused(grammar: str):
    with pytest.raises(ValueError, match=r"\w"):
        gbnf(grammar)


PARAMETERS = {"type": "object", "properties": {"a": {"not": {}}}}
SKIPPED = {"type": "web_search", "name": "s"}
FUNCTION = {"type": "function", "name": "f", "parameters": PARAMETERS}
# For each interface: its parser, a body, and the path of the schema in it.
PATHS = {
    "chat": (parse_chat, {"tools": [{"function": FUNCTION}]}, "tools[0].function.parameters"),
    "functions": (parse_chat, {"functions": [FUNCTION], "function_call": {"name": "f"}}, "functions[0].parameters"),
    "messages": (
        parse_messages, {"max_tokens": 9, "tools": [SKIPPED, {"name": "f", "input_schema": PARAMETERS}],
                         "tool_choice": {"type": "any"}}, "tools[1].input_schema",
    ),
    "responses": (partial(parse_response, ResponseStore()), {"tools": [SKIPPED, FUNCTION]}, "tools[1].parameters"),
    "namespace": (
        partial(parse_response, ResponseStore()),
        {"tools": [{"type": "namespace", "name": "n", "tools": [FUNCTION]}]}, "tools[0].tools[0].parameters",
    ),
    "ollama": (ollama.parse_ollama, {"format": PARAMETERS}, "format"),
}  # fmt: skip


@pytest.mark.parametrize("case", PATHS.values(), ids=PATHS)
def test_place_has_the_path_of_the_interface(case: Any):
    parse, fields, path = case
    content = {"input": "hi"} if isinstance(parse, partial) else {"messages": [{"role": "user", "content": "hi"}]}
    body = {"model": "m", "tool_choice": "required", **content, **fields}
    with pytest.raises(BadRequest, match="'not' is not supported") as caught:
        constraint_for(parse(Fields(body)), ChatTemplate(PLAIN), PROMPT)
    assert caught.value.param == f"{path}#/properties/a/not"
    text = json.dumps(body).replace('{"not": {}}', '{"$ref": "#/$defs/q"}')
    with pytest.raises(BadRequest, match="leads to no part of the schema") as caught:
        parse(Fields({**json.loads(text), "tool_choice": None}))
    assert caught.value.param == f"{path}#/properties/a/$ref"


def test_without_llguidance_a_constraint_is_refused_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)  # its import fails
    constraint_module._constraint.cache_clear()
    with pytest.raises(NotSupported, match="pip install llguidance"):
        constraint_of(**formatted("json_schema", {"type": "object", "title": json.dumps("unique")}))
    assert constraint_of(**auto()) is None
