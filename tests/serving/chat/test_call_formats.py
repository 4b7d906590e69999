"""Every format of calls of every family: the grammar, the parser and the code that writes earlier calls agree."""

import contextlib
import itertools
import json
import random
from dataclasses import replace
from typing import Any

import pytest

from localchat.serving.chat.dialects import DIALECTS, Dialect
from localchat.serving.chat.prompt.template import ChatTemplate
from localchat.serving.core.errors import BadRequest
from localchat.serving.core.events import ContentDelta
from tests.support.constraints import TOOLS, calls_in, check_calls, check_fits, constraint_of, fits, generated, required
from tests.support.dialect_outputs import BAR, calls_of, parse, text_of
from tools import formats as templates


def tool(name: str, properties: Any, required: Any, **schema: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(required), **schema}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def format_constraint(name: str, i: int, tools: Any) -> Any:
    """The constraint that requires calls in one format of a family."""
    dialect = replace(DIALECTS[name], calls=DIALECTS[name].calls[i : i + 1])
    return constraint_of("", dialect=dialect, **required(tools=tools))


DSML = '<|DSML|function_calls>\n<|DSML|invoke name="f">{{"a": {}}}\n</|DSML|invoke>\n</|DSML|function_calls>'
DSML = DSML.replace("|", BAR)
# For each family, the text of its template, and a call of `f` with one argument.
IN_TAGS = {
    "glm": ("<tool_call><arg_key>", "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>{}</arg_value>\n</tool_call>"),
    "minicpm5": ('<function name="<param name="', '<function name="f"><param name="a">{}</param></function>'),
    "gemma-4": ("<|tool_call>", "<|tool_call>call:f{{a:{}}}<tool_call|>"),
    # The arguments are one object.
    "deepseek-dsml": (DSML.partition("\n")[0], DSML),
}
DATE, LIST, NULL = (
    {"type": "string", "format": "date"},
    {"type": "array", "items": {"type": "string"}},
    {"type": "null"},
)


@pytest.mark.parametrize(
    ("name", "schema", "right", "wrong"),
    [
        ("glm", {"type": "string"}, ["", "a\n\nb", "3", '{"a": </b>'], []),
        ("glm", {"type": ["string", "null"]}, ["", "null", "a < b"], []),
        ("glm", {}, ["", "x", "[1]"], []),
        ("glm", True, ["", "x", "[1]"], []),
        ("glm", {"type": "string", "maxLength": 2}, ["", "ab", "</"], ["abc"]),
        ("glm", {"type": "boolean"}, ["true", "False"], ["", "yes", '"true"']),
        ("glm", {"type": ["integer", "null"]}, ["12", "null", "None"], ["", "x", "1.5"]),
        ("glm", {"enum": ["a b", 1, None]}, ["a b", "1", "null"], ["a", "2", '"a b"']),
        # A number may be an integer, and an integer may be written as a number.
        ("glm", {"type": ["string", "number"], "enum": ["auto", 1]}, ["auto", "1"], ["2", "1.5", "a"]),
        ("glm", {"type": ["string", "number"], "enum": ["auto", 1, 1.5]}, ["auto", "1", "1.5"], ["2"]),
        ("glm", {"type": ["string", "integer"], "enum": ["auto", 1.0, 1.5]}, ["auto", "1.0"], ["1.5"]),
        ("glm", {"type": ["number", "null"], "enum": [1, None, True]}, ["1", "null"], ["true"]),
        ("glm", LIST, ['["</arg_value>"]', "[]"], ["", "[1]"]),
        # Bare text that the parser could read as another value is not allowed.
        ("glm", {"type": ["string", "integer"], "maxLength": 3}, [], ["a", "1"]),
        ("glm", {"enum": ["1", 1]}, [], ["1"]),
        # Bare text does not begin like quoted text.
        ("minicpm5", {"type": "string"}, ["", "<![CDAT", "a<![CDATA[", "<![CDATA[</param>]]>"], ["<![CDATA["]),
        ("minicpm5", {"type": "string", "maxLength": 12}, ["<b>", "<![CDATA[</param>]]>"], ["<![CDATA[a", "a" * 13]),
        ("minicpm5", {"enum": ["a", "b"]}, ["a", "<![CDATA[b]]>"], ["<![CDATA[a"]),
        ("minicpm5", {}, ["a", "3", "<!"], ["<![CDATA[a"]),
        # Texts have the quotes of the notation, lists and objects are JSON.
        ("gemma-4", {"anyOf": [{"type": "string"}, NULL]}, ['<|"|>"x"<|"|>', "null"], ["x", "1"]),
        ("gemma-4", LIST, ['["<tool_call|>"]'], ['[<|"|>a<|"|>]', "[1]"]),
        ("gemma-4", DATE, ['"2026-11-28"'], ['<|"|>2026-11-28<|"|>', '"now"']),
        ("deepseek-dsml", {"anyOf": [DATE, NULL]}, ['"2026-11-28"'], ['"a"']),
        # Schemas that bare text cannot enforce: their values are JSON.
        ("minicpm5", {"enum": ["<![CDATA[a"]}, [], ["<![CDATA[a"]),
    ],
    ids=str,
)
def test_value_in_tags_matches_its_schema(name: str, schema: Any, right: list[str], wrong: list[str]):
    (markers, call), tools = IN_TAGS[name], (tool("f", {"a": schema}, "a"),)
    calls = [[call.format(value) for value in values] for values in (right, wrong)]
    check_fits(constraint_of("{{ tools }}" + markers, **required(tools=tools)), *calls)
    for text in calls[0]:
        check_calls(DIALECTS[name], tools, text)


@pytest.mark.parametrize(
    ("others", "is_in_tags"),
    [
        ({}, True),
        ({"additionalProperties": False}, True),
        ({"additionalProperties": {"type": "string"}}, False),
        ({"additionalProperties": True}, True),
        ({"patternProperties": {"^x": {"type": "string"}}}, False),
    ],
    ids=str,
)
def test_undeclared_arguments_are_fields_of_an_object(others: Any, is_in_tags: bool):
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, **others}
    tools = ({"function": {"name": "f", "parameters": schema}},)
    constraint = constraint_of("{{ tools }}<tool_call><arg_key>", **required(tools=tools))
    in_tags = "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>b</arg_value>\n</tool_call>"
    as_object = '<tool_call>f{"a": "b", "x": "c"}\n</tool_call>'
    assert (fits(constraint, in_tags), fits(constraint, as_object)) == (is_in_tags, not is_in_tags)


# Schemas of a text "a" whose type is not in the place where it would be read.
INDIRECT = {
    "an only part": {"properties": {"a": {"allOf": [{"type": "string"}]}}},
    "a described enum": {
        "properties": {"a": {"allOf": [{"$ref": "#/$defs/z"}], "description": "x"}},
        "$defs": {"z": {"enum": ["1", "null"]}},
    },
    "an anchor": {"properties": {"a": {"$ref": "#z"}}, "$defs": {"z": {"$anchor": "z", "type": "string"}}},
    "a pattern of names": {"patternProperties": {"^(a|b)$": {"type": "string"}}},
    "listed names": {"propertyNames": {"enum": ["a"]}, "additionalProperties": {"type": "string"}},
    "arguments that are a part": {"allOf": [{"properties": {"a": {"type": "string"}}}]},
}


IN_PARTS = {name: dialect for name, dialect in DIALECTS.items() if dialect.calls[0].arguments}


@pytest.mark.parametrize("schema", INDIRECT.values(), ids=INDIRECT)
@pytest.mark.parametrize("dialect", IN_PARTS.values(), ids=IN_PARTS)
@pytest.mark.parametrize("text", ["1", "null"])
def test_parser_reads_the_types_that_the_grammar_enforces(dialect: Dialect, schema: Any, text: str):
    """A text such as "1", which the grammar allows because it is a text, stays one."""
    tools = ({"function": {"name": "f", "parameters": schema}},)
    call = dialect.calls[0].written([{"name": "f", "arguments": {"a": text}}])
    assert fits(constraint_of(dialect=dialect, **required(tools=tools)), call)
    assert calls_in(dialect, tools, call) == [("f", {"a": text})]


def test_arguments_may_be_of_a_schema_that_allows_any_value_or_none():
    for schema, is_possible in ({"allOf": [True]}, True), ({"allOf": [False]}, False):
        tools = ({"function": {"name": "f", "parameters": schema}},)
        with contextlib.nullcontext() if is_possible else pytest.raises(BadRequest, match="cannot be enforced"):
            assert fits(
                constraint_of(**required(tools=tools)), '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
            )


# Schemas of an argument that bare text cannot enforce, a value that matches, and others that do not.
NOT_EXACT = {
    "reference beside a keyword": ({"$ref": "#/$defs/q", "maxLength": 1}, "b", ["bc", 1]),
    "reference to all arguments": ({"type": "array", "items": {"$ref": "#"}}, [{"a": []}], [["x"], [{}]]),
    "listed texts beside a keyword": ({"enum": ["b", "bc"], "maxLength": 1}, "b", ["bc", "c"]),
    "listed objects": ({"enum": [{"x": 1}, "b"]}, {"x": 1}, [{"x": 2}, "c"]),
}


@pytest.mark.parametrize("case", NOT_EXACT.values(), ids=NOT_EXACT)
def test_argument_that_bare_text_cannot_enforce_is_a_field_of_an_object(case: Any):
    schema, right, wrong = case
    tools = (tool("f", {"a": schema, "b": {"type": "integer"}}, "a", **{"$defs": {"q": {"type": "string"}}}),)
    constraint = constraint_of("{{ tools }}<tool_call><arg_key>", **required(tools=tools))
    in_tags = "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>b</arg_value>\n</tool_call>"
    as_object = [f'<tool_call>f{{"a": {json.dumps(value)}}}\n</tool_call>' for value in (right, *wrong)]
    check_fits(constraint, as_object[:1], [in_tags, *as_object[1:]])


@pytest.mark.parametrize("schema", [{"type": "string"}, {"type": "string", "maxLength": 90}, {}], ids=str)
def test_text_in_a_notation_cannot_end_the_call(schema: Any):
    """The parser ends a call of Gemma at the marker, also inside a text; a string of LFM2 may contain its marker."""
    tools = (tool("f", {"a": schema}, "a"),)
    call, end = '<|tool_call>call:f{a:<|"|>%s<|"|>}<tool_call|>', "<tool_call|>"
    wrong = [call % end, call % f"x{end}y"]
    check_fits(constraint_of("{{ tools }}<|tool_call>", **required(tools=tools)), [call % ("x" + end[1:])], wrong)
    constraint = constraint_of("{{ tools }}<|tool_call_start|>", **required(tools=tools))
    for quote in ('"', "'"):
        call = f"<|tool_call_start|>[f(a={quote}<|tool_call_end|>{quote})]<|tool_call_end|>"
        assert fits(constraint, call) or (quote == "'" and "maxLength" in schema)
        check_calls(DIALECTS["lfm2"], ({"function": {"name": "f"}},), call)


# Calls that a model generates that was trained with a template.
CALLS = (("get_weather", {"city": 'S\u00e3o "Paulo" <1>\n2nd line', "days": 3, "exact": True}), ("get_time", {}))
SOURCES = dict(templates.sources([]))


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("reasoning", ["", templates.REASONING])
def test_auto_allows_calls_in_the_format_of_the_template(name: str, reasoning: str):
    template = ChatTemplate(SOURCES[name], bos_token=templates.BOS, eos_token=templates.EOS)
    prompt, output = templates.generated(template, templates.Message(reasoning, "", CALLS))
    constraint = constraint_of(SOURCES[name], prompt, tools=templates.TOOLS, tool_choice="auto")
    # Kimi K3 ends its turns with a marker that also ends its calls.
    text = output.rstrip() + ("<|sep|>" if name == "kimi-k3.jinja" else "")
    check_fits(constraint, [text], [text.replace("get_time", "get_tame"), text.replace("days", "hours")])


FORMATS = [(name, i) for name, dialect in DIALECTS.items() for i in range(len(dialect.calls))]

CLOSED: dict[str, Any] = {"additionalProperties": False}
SHORT = {"type": "string", "maxLength": 3}
INNER = {"type": "object", "properties": {"b": SHORT, "a": {"type": "boolean"}}, "required": ["a"], **CLOSED}
# Properties of every kind whose bare text could be read as a value of another kind.
KINDS = {
    "text": {"type": "string", "minLength": 1, "maxLength": 9},
    "count": {"type": "integer", "minimum": -3, "maximum": 30},
    "ratio": {"type": "number"},
    "flag": {"type": "boolean"},
    "mood": {"enum": ["good", "so so", "<b>", 'a "b"', "5"]},
    "level": {"enum": ["low", 1, None]},
    "code": {"type": "string", "pattern": "^[A-Z<]{2,4}$"},
    "day": {"type": "string", "format": "date"},
    "list": {"type": "array", "items": SHORT, "maxItems": 2},
    "inner": INNER,
}
RICH = (tool("rich", KINDS, ("text", "mood", "inner"), **CLOSED),)
# References, and values of several types, which each format represents in its own way.
REFERENCES = {
    "color": {"$ref": "#/$defs/color"},
    "size": {"type": ["integer", "null"]},
    "either": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
    "colors": {"type": "array", "items": {"$ref": "#/$defs/color"}},
    "inner": {"$ref": "#/$defs/inner"},
    "map": {"type": "object", "additionalProperties": {"enum": ["low", 1, None]}},
}
DEFINED = {
    "color": {"enum": ["red", "dark blue"]},
    "inner": {**INNER, "properties": {"b": SHORT, "a": {"$ref": "#/$defs/color"}}},
}
NESTED = (tool("deep", REFERENCES, ("color", "inner"), **CLOSED, **{"$defs": DEFINED}),)
# Bare text cannot enforce this schema, and some names are not valid in Python or in tags, or have placeholders.
UNENFORCED = {
    "5 or more": {"type": ["string", "integer"], "minimum": 5, "maxLength": 3},
    "class": {"enum": ["1", 1]},
    "a~$n^$id": {"type": "boolean"},
}
HARD = (tool("get-it~$n", UNENFORCED, UNENFORCED, **CLOSED),)


@pytest.mark.parametrize("tools", [TOOLS, RICH, NESTED, HARD], ids=["plain", "rich", "nested", "hard"])
@pytest.mark.parametrize(("name", "i"), FORMATS, ids=str)
def test_parser_reads_the_calls_that_the_grammar_generates(name: str, i: int, tools: Any):
    """The grammar and the parser of a format agree on what a call is, and its arguments match the schema."""
    constraint, format = format_constraint(name, i, tools), DIALECTS[name].calls[i]
    texts = (generated(constraint, random.Random(seed)) for seed in range(9))
    found = list(itertools.islice(filter(None, texts), 2))
    assert found
    if tools is NESTED and (format.arguments is not None or format.notation == "gemma"):
        # The format can enforce the schema, so the arguments are not one JSON object.
        assert not any('"color":' in text for text in found)
    for text in found:
        check_calls(DIALECTS[name], tools, text)


OPEN = tool("weather", {"city": {"type": "string"}, "days": {"type": "integer"}}, ["city"], **CLOSED)
WRITTEN = [("weather", {"city": 'a "<b>"', "days": 3}), ("now", {}), ("weather", {"city": ""})]


@pytest.mark.parametrize(("name", "i"), FORMATS, ids=str)
def test_written_calls_match_the_grammar_and_are_parsed(name: str, i: int):
    """The code that writes earlier calls, the grammar and the parser use one declaration."""
    tools = (OPEN, TOOLS[1])
    constraint = format_constraint(name, i, tools)
    for calls in (WRITTEN, WRITTEN[1:2]):
        written = [{"name": called, "arguments": arguments} for called, arguments in calls]
        text = DIALECTS[name].calls[i].written(written)
        assert fits(constraint, text), text
        assert calls_in(DIALECTS[name], tools, text) == calls


@pytest.mark.parametrize(("name", "i"), [(name, i) for name in DIALECTS for i in range(len(DIALECTS[name].calls))])
def test_name_with_json_escapes_is_written_as_the_format_reads_it(name: str, i: int):
    """A quotation mark or a backslash is escaped where the call is JSON, and nowhere else."""
    dialect = DIALECTS[name]
    called = 'say\\"hi"'
    format = dialect.calls[i]
    assert format.escaped(called) == (json.dumps(called)[1:-1] if format.keys else called)
    text = format.written([{"name": called, "arguments": {}}])
    if format.opener or dialect.text_start.first:
        assert calls_in(dialect, [tool(called, {}, ())], text) == [(called, {})]


FIELDS = {"a:b": 1, "": "x", " c ": [], "it's": {"d,e": None}, 'say "hi"': True, "<f": 0.5}


@pytest.mark.parametrize(("name", "i"), FORMATS, ids=str)
def test_names_of_fields_inside_an_argument_are_written_as_the_format_reads_them(name: str, i: int):
    tools = (tool("f", {"opt": {"type": "object"}}, ()),)
    text = DIALECTS[name].calls[i].written([{"name": "f", "arguments": {"opt": FIELDS}}])
    assert calls_in(DIALECTS[name], tools, text) == [("f", {"opt": FIELDS})]


SECTIONS = [(name, i) for name, i in FORMATS if DIALECTS[name].calls[i].begin.rstrip() in DIALECTS[name].openers]


@pytest.mark.parametrize(("name", "i"), SECTIONS, ids=str)
def test_white_space_may_be_between_the_text_before_all_calls_and_the_first_one(name: str, i: int):
    dialect, format = DIALECTS[name], DIALECTS[name].calls[i]
    call = format.written([{"name": "f", "arguments": {"a": 1}}]).removeprefix(format.begin)
    events = parse([f"{dialect.text_start.first}{format.begin}\n {call}"], dialect)
    assert (calls_of(events), text_of(events, ContentDelta)) == ([("f", {"a": 1})], "")
