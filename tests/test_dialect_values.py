"""Argument values as bare text or in the notation of a family, converted to JSON of the types in the schema."""

import pytest

from localchat.serving.chat.dialects import DIALECTS
from localchat.serving.chat.dialects.values import parameter_types, value_json
from localchat.serving.core.events import ContentDelta, ToolCallArguments, ToolCallStart

from .dialect_outputs import SCHEMA, TOOLS, calls_of, text_of
from .test_output import parse, parse_every_way, parser

UNION = {"properties": {"a": {"type": ["string", "null"]}, "b": {"anyOf": [{"type": "integer"}, {"type": "string"}]}}}
NULLABLE = {"properties": {"a": {"type": "integer", "nullable": True}, "b": {"type": "integer", "nullable": False}}}
REFERENCE = {"properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"enum": [1, "one"]}}}


@pytest.mark.parametrize(
    ("schema", "key", "types"),
    [
        pytest.param(SCHEMA, "city", {"string"}, id="type"),
        pytest.param(UNION, "a", {"string", "null"}, id="list of types"),
        pytest.param(NULLABLE, "a", {"integer", "null"}, id="nullable"),
        pytest.param(NULLABLE, "b", {"integer"}, id="not nullable"),
        pytest.param(UNION, "b", {"integer", "string"}, id="anyOf"),
        pytest.param(REFERENCE, "a", {"integer", "string"}, id="reference to an enum"),
        pytest.param({"properties": {"a": {"const": None}}}, "a", {"null"}, id="const"),
    ],
)
def test_types_of_a_parameter(schema, key, types):
    assert parameter_types(schema, key) == types


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"properties": {"a": {}}},
        {"properties": {"a": {"$ref": "#"}}},
        {"properties": {"a": {"$ref": "#name"}}, "type": "object"},
        {"properties": {"a": {"$ref": "elsewhere"}}, "type": "object"},
        {"properties": {"a": True}},
        {"properties": 1},
    ],
)
def test_schema_without_types_allows_all(schema):
    assert len(parameter_types(schema, "a")) == 7


@pytest.mark.parametrize(
    ("raw", "types", "expected"),
    [
        pytest.param("3", {"integer"}, "3", id="integer"),
        pytest.param(" 3\n", {"number"}, "3", id="integer for number, white space"),
        pytest.param("3.0", {"integer"}, "3.0", id="whole float for integer"),
        pytest.param("1_000", {"integer"}, "1000", id="Python's integer"),
        pytest.param("1_000", {"integer", "string"}, '"1_000"', id="text or Python's integer"),
        pytest.param("3.5", {"integer"}, '"3.5"', id="not an integer, stays text"),
        pytest.param("true", {"boolean"}, "true", id="boolean"),
        pytest.param("True", {"boolean"}, "true", id="Python's boolean"),
        pytest.param("None", {"null", "string"}, "null", id="Python's null"),
        pytest.param("null", {"string"}, '"null"', id="word for a string"),
        pytest.param("3", {"string"}, '"3"', id="digits for a string"),
        pytest.param('{"a": 1}', {"object"}, '{"a": 1}', id="object as it is"),
        pytest.param("{'a': (1, True)}", {"object"}, '{"a": [1, true]}', id="Python's object"),
        pytest.param("[1, 2", {"array"}, '"[1, 2"', id="broken"),
        pytest.param("[b'x']", {"array"}, "\"[b'x']\"", id="Python value that is not JSON"),
        pytest.param("NaN", {"number"}, '"NaN"', id="number that is not JSON"),
        pytest.param("[" * 5000, {"array"}, '"' + "[" * 5000 + '"', id="nested too deeply"),
        pytest.param('say "é"', {"string", "integer"}, '"say \\"é\\""', id="text"),
        pytest.param('"x"', {"integer", "string"}, '"\\"x\\""', id="quotes are part of the text"),
    ],
)
def test_value_as_json(raw, types, expected):
    assert value_json(raw, frozenset(types)) == expected


PYTHON = [
    ("[f(a=1)]", [("f", {"a": 1})]),
    ("f(a=-1.5, b=null)", [("f", {"a": -1.5, "b": None})]),
    ("[f(a={'x': [true], 1: None}, b=('y', 2,))]", [("f", {"a": {"x": [True], "1": None}, "b": ["y", 2]})]),
    ("[f()\n, f(a=1)]", [("f", {}), ("f", {"a": 1})]),
    ("f(a=1)\nf(a=2)", [("f", {"a": 1}), ("f", {"a": 2})]),
    ('f({"a": 1})', [("f", {"a": 1})]),
    ("[f(a='b\nc')]", [("f", {"a": "b\nc"})]),
    (r"""[f(a='\'"\n\d\x41\u00e9\ud83d\ude00\U0001f600', b="'")]""", [("f", {"a": "'\"\n\\dAé😀😀", "b": "'"})]),
    ("[get-it(a=1), return()]", [("get-it", {"a": 1}), ("return", {})]),
    ("[x-get-it(), get-it()]", [("x-get-it", {}), ("get-it", {})]),
    ("[f(a='get-it(1)')]", [("f", {"a": "get-it(1)"})]),
    ("[f(a=red)]", [("f", {"a": "red"})]),
    ("[f(1)]", None),
    ("[f(**x)]", None),
    ("[y-get-it()]", None),
    ("f(", None),
    ("1 + 1", None),
]


def named(*names):
    return [{"function": {"name": name}} for name in names]


@pytest.mark.parametrize(("text", "calls"), PYTHON, ids=lambda value: value if isinstance(value, str) else "")
def test_python_calls(text, calls):
    tools = named("f", "get-it", "x-get-it", "return")
    text = f"<|tool_call_start|>{text}<|tool_call_end|>"
    events = parse_every_way(text, DIALECTS["lfm2"], tools=tools)
    assert (calls_of(events) or text_of(events, ContentDelta)) == (calls or text)


@pytest.mark.parametrize(
    ("text", "raw"),
    [
        ("[f(a=g())]", '{"a": "g"())]'),
        ("[f(a=1", '{"a": 1'),
        ('[f(a="x', '{"a": "x'),
        ('[f(a="x\\', '{"a": "x\\'),
    ],
)
def test_python_call_that_breaks_off_counts_as_cut(text, raw):
    made = parser(DIALECTS["lfm2"], tools=named("f"))
    text = "<|tool_call_start|>" + text
    assert parse_every_way(text, DIALECTS["lfm2"], tools=named("f"))[1].text == raw
    made.feed(text)
    made.finish()
    assert made.inside_tool_call


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('{a:<|"|>x:"y", {\\n<|"|>,b:[1,None]}', {"a": 'x:"y", {\\n', "b": [1, None]}),
        ('{"a": "b:c", n: {x: true}}', {"a": "b:c", "n": {"x": True}}),
        ('{city:New York,a:<|"|><tool_call><|"|>}', {"city": "New York", "a": "<tool_call>"}),
    ],
    ids=["quotes of the notation", "JSON", "no quotes"],
)
def test_gemma_notation(text, arguments):
    text = f"<|tool_call>call:f{text}<tool_call|>Hi"
    events = parse_every_way(text, DIALECTS["gemma-4"], tools=named("f"))
    assert calls_of(events) == [("f", arguments)]
    assert text_of(events, ContentDelta) == "Hi"


STREAMED = {
    "gemma-4": '<|tool_call>call:weather{city:<|"|>',
    "lfm2": "<|tool_call_start|>[weather(city='",
    "mistral": '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "',
    "minimax-m3": ']<]minimax[>[<tool_call>]<]minimax[>[<invoke name="weather">]<]minimax[>[<city>',
    "qwen-coder": "<tool_call>\n<function=weather>\n<parameter=city>\n",
    "hermes": '<tool_call>\n{"name": "weather", "arguments": {"city": "',
}


@pytest.mark.parametrize("name", STREAMED)
def test_text_of_an_argument_is_streamed(name):
    made = parser(DIALECTS[name], tools=TOOLS)
    made.feed(STREAMED[name])
    assert made.feed("Par") == [ToolCallArguments(0, "Par")]
    assert made.feed("is") == [ToolCallArguments(0, "is")]


NESTED = {
    "properties": {
        "code": {"type": "array", "items": {"type": "string"}},
        "at": {"type": "object", "properties": {"item": {"type": "string"}, "n": {"$ref": "#/$defs/n"}}},
        "none": {"type": "array"},
        "any": {},
    },
    "$defs": {"n": {"type": "integer"}},
}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param("P<x>P<b>xP</b>P<c>2P</c>P</x>", {"x": {"b": "x", "c": 2}}, id="object without a schema"),
        pytest.param("P<x>P<item>1P</item>P</x>", {"x": [1]}, id="list without a schema"),
        pytest.param("P<code>P<item>1P</item>\nP<item>aP</item>P</code>", {"code": ["1", "a"]}, id="texts of a list"),
        pytest.param("P<at>P<item>5P</item>P</at>", {"at": {"item": "5"}}, id="field with the name of items"),
        pytest.param("P<at>P<n>5P</n>P</at>P<none>P</none>", {"at": {"n": 5}, "none": []}, id="reference, empty list"),
        pytest.param("P<at>\nP</at>", {"at": {}}, id="empty object"),
        pytest.param('P<any>["P</any>"]P</any>', {"any": ["]<]minimax[>[</any>"]}, id="JSON inside"),
        pytest.param("P<any>" + "P<a>" * 2000, None, id="nested too deeply"),
    ],
)
def test_nested_elements(body, expected):
    tools = [{"function": {"name": "f", "parameters": NESTED}}]
    text = f'P<tool_call>P<invoke name="f">{body}P</invoke>P</tool_call>'.replace("P<", "]<]minimax[>[<")
    events = parse([text], DIALECTS["minimax-m3"], tools=tools)
    assert expected is None or calls_of(parse_every_way(text, DIALECTS["minimax-m3"], tools=tools)) == [("f", expected)]
    assert [event.name for event in events if isinstance(event, ToolCallStart)] == ["f"]
