"""Argument values as bare text or in the notation of a family, converted to JSON of the types in the schema."""

import pytest

from localchat.serving.chat.dialects import DIALECTS
from localchat.serving.chat.dialects.families.gemma import as_json
from localchat.serving.chat.dialects.families.lfm import parsed_calls
from localchat.serving.chat.dialects.values import parameter_types, value_json
from localchat.serving.core.events import ToolCallStart

from .dialect_outputs import SCHEMA, calls_of
from .test_output import parse, parse_every_way

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


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        pytest.param("[f(a=1)]", [("f", '{"a": 1}')], id="list"),
        pytest.param("f(a=-1.5, b=null)", [("f", '{"a": -1.5, "b": null}')], id="single"),
        pytest.param("[f(a={'x': [true]})]", [("f", '{"a": {"x": [true]}}')], id="words of JSON inside"),
        pytest.param("[f(1)]", [], id="without a name"),
        pytest.param("[f(a=b'x')]", [], id="value that is not JSON"),
        pytest.param("[f(a=-1e999)]", [("f", '{"a": -1.7976931348623157e+308}')], id="number that Python cannot hold"),
        pytest.param('f({"a": 1})', [("f", '{"a": 1}')], id="arguments as an object"),
        pytest.param("[f(**x)]", [], id="stars"),
        pytest.param("[f(a=g())]", [], id="nested call"),
        pytest.param("f(", [], id="cut"),
        pytest.param("1 + 1", [], id="not a call"),
    ],
)
def test_python_calls(text, calls):
    assert parsed_calls(text) == calls


@pytest.mark.parametrize(
    ("text", "offered", "calls"),
    [
        pytest.param("[get-it(a=1), f()]", ["get-it", "f"], [("get-it", '{"a": 1}'), ("f", "{}")], id="hyphen"),
        pytest.param("[return(a=1)]", ["return"], [("return", '{"a": 1}')], id="keyword"),
        pytest.param("[a-b()]", ["b-c", "a-b", "b"], [("a-b", "{}")], id="name with a common end"),
        pytest.param("[x-a-b(), a-b()]", ["a-b", "x-a-b"], [("x-a-b", "{}"), ("a-b", "{}")], id="end of another name"),
        pytest.param("[a-b(c='a-b(1)')]", ["a-b"], [("a-b", '{"c": "a-b(1)"}')], id="in a string"),
        pytest.param('[a-b(c="\\"a-b(")]', ["a-b"], [("a-b", '{"c": "\\"a-b("}')], id="in a string after a quote"),
        pytest.param("[x-a-b()]", ["a-b"], [], id="end of a name that was not offered"),
    ],
)
def test_python_calls_of_names_that_python_does_not_allow(text, offered, calls):
    assert parsed_calls(text, offered) == calls


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            '{a:<|"|>x:"y", {<|"|>,b:[1,None]}', '{"a":"x:\\"y\\", {","b":[1,null]}', id="quotes of the notation"
        ),
        pytest.param('{"a": "b:c"}', '{"a": "b:c"}', id="JSON"),
    ],
)
def test_gemma_notation(text, expected):
    assert as_json(text) == expected


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
