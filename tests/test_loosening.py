"""A place in a tool's schema that no grammar can enforce is dropped, and only this place, in every family."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from localchat.serving.api.chat import ChatRequest
from localchat.serving.chat import constraints, output_grammar
from localchat.serving.chat.constraints import constraint_for
from localchat.serving.chat.dialects.parser import OutputParser, merged
from localchat.serving.chat.prompt.template import ChatTemplate
from localchat.serving.core.errors import BadRequest
from localchat.serving.core.events import ToolCallArguments
from localchat.serving.grammar import Budget, Rules, SchemaError, convert_loosely, limited_to, schema_rule
from localchat.serving.grammar.budget import TooMuchWork
from localchat.serving.grammar.loosening import MAX_DROPPED, MAX_STEPS, RESERVED_STEPS, loosened
from tools import formats

from .gbnf import matches

STR = {"type": "string"}
INT = {"type": "integer"}
TEMPLATES = dict(formats.sources([]))
PLAIN = "{{ messages[-1].content }}{{ tools }}<tool_call></tool_call>"

# A schema of the argument `a`; the place that is not enforced; values that are allowed; values that are not.
LOOSENED: dict[str, tuple[Any, str, list[Any], list[Any]]] = {
    "if": ({**STR, "maxLength": 3, "if": {"const": "x"}, "then": {"minLength": 9}}, "/if", ["x"], ["long", 1]),
    "oneOf that overlaps": (
        {"oneOf": [{**STR, "maxLength": 3}, {**STR, "enum": ["a", "four"]}]},
        "/oneOf",
        ["a", "four"],
        [1],
    ),
    "look-ahead": ({**STR, "pattern": "^(?!x)[a-z]+$", "maxLength": 3}, "/pattern", ["x", "1"], ["long", 1]),
    "uniqueItems": (
        {"type": "array", "items": INT, "uniqueItems": True, "maxItems": 2},
        "/uniqueItems",
        [[1, 1]],
        [["x"], [1, 2, 3]],
    ),
    "foreign $ref": ({"$ref": "https://example.com/person.json"}, "/$ref", ["x", 1], []),
    "$ref to nothing": ({"allOf": [{"$ref": "#/$defs/none"}, INT]}, "/allOf/0/$ref", [5], ["x"]),
    "huge repetition": ({**STR, "pattern": "^a{900000}$"}, "/pattern", ["b"], [1]),
    "pattern beside a length": ({**STR, "pattern": "^x.*y", "maxLength": 5000}, "", ["xy"], ["z", 1]),
    "not": ({**INT, "not": {"multipleOf": 3}, "maximum": 9}, "/not", [3], [10, "x"]),
    "multipleOf": ({"type": "number", "multipleOf": 0.37}, "", [1], ["x"]),
    "maxContains": (
        {"type": "array", "items": STR, "contains": {"const": "a"}, "maxContains": 1},
        "/maxContains",
        [["a", "a"]],
        [["b"], [1]],
    ),
    "unevaluatedProperties": (
        {"type": "object", "properties": {"b": INT}, "unevaluatedProperties": False},
        "/unevaluatedProperties",
        [{"b": 1}],
        [{"b": "x"}],
    ),
    "many patterns of names": (
        {"type": "object", "patternProperties": {f"^{c}": INT for c in "abcdef"}},
        "/patternProperties",
        [{"a": "x"}],
        [1],
    ),
    "unknown type": ({"type": "any"}, "/type", [1, "x"], []),
    "type with a capital": ({"type": "String", "enum": ["a"]}, "/type", ["a"], ["b"]),
    "required is a flag": ({"type": "object", "properties": {"b": INT}, "required": True}, "/required", [{}], [1]),
    "properties are a list": ({"type": "object", "properties": []}, "/properties", [{"b": 1}], [1]),
    "null in place of a schema": (
        {"type": "object", "properties": {"b": None, "c": INT}},
        "/properties/b",
        [{"b": 1}],
        [{"c": "x"}],
    ),
    "within items": (
        {"type": "array", "items": {**STR, "pattern": "(?=a)b"}, "maxItems": 1},
        "/items/pattern",
        [["x"]],
        [[1], ["x", "y"]],
    ),
    "within anyOf": (
        {"anyOf": [{**STR, "pattern": r"(a)\1"}, {**INT, "maximum": 5}]},
        "/anyOf/0/pattern",
        ["x", 3],
        [7, True],
    ),
    "too much work": ({"allOf": [{"pattern": f"x{n}.*y"} for n in range(30)], "type": "string"}, "", ["x"], [1]),
}

# These cases take a third of a second or more. The test of all families uses the second one, only where it differs: in
# families that exclude markers from strings.
MUCH_WORK = {"too much work", "pattern beside a length"}
EXCLUDES_MARKERS = ("gemma-4.jinja", "lfm2.jinja")


def tool(schema: Any, **fields: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"a": schema, "b": {**STR, "enum": ["one"]}}, "required": ["a"]}
    return {"type": "function", "function": {"name": "f", "parameters": parameters, **fields}}


def constraint_of(template: str, *tools: Any, choice: str = "auto") -> Any:
    request = ChatRequest(messages=({"role": "user", "content": "x"},), tools=tools, tool_choice=choice)
    return constraint_for(request, ChatTemplate(template), "<|im_start|>assistant\n")


def call(arguments: Any) -> str:
    return f'<tool_call>\n{{"name": "f", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


@pytest.mark.parametrize("case", LOOSENED.values(), ids=LOOSENED)
def test_only_the_place_that_no_grammar_can_enforce_is_dropped(case: Any, caplog: pytest.LogCaptureFixture):
    schema, place, right, wrong = case
    output_grammar._report.cache_clear()
    constraints._constraint.cache_clear()
    with caplog.at_level(logging.INFO, "localchat.server"):
        constraint = constraint_of(PLAIN, tool(schema))
        constraints._constraint.cache_clear()
        constraint_of(PLAIN, tool(schema))
    assert [value for value in right if not matches(constraint.grammar, call({"a": value}), constraint.root)] == []
    others = [{"a": value} for value in wrong] + [{"a": right[0], "b": "two"}, {"b": "one"}]
    assert [value for value in others if matches(constraint.grammar, call(value), constraint.root)] == []
    assert f"#/properties/a{place}'" in caplog.messages[0]
    assert '"f" is not enforced' in caplog.messages[0]
    assert len(caplog.messages) == len(set(caplog.messages)), "each place is logged once"


@pytest.mark.parametrize("name", TEMPLATES)
def test_request_with_such_tools_runs_in_every_family(name: str):
    """For some families, markers cannot be excluded from a pattern of long texts."""
    template = ChatTemplate(TEMPLATES[name], bos_token=formats.BOS, eos_token=formats.EOS)
    left_out = MUCH_WORK - ({"pattern beside a length"} if name in EXCLUDES_MARKERS else set())
    schemas = [schema for case, (schema, *_) in LOOSENED.items() if case not in left_out] + [
        {**STR, "pattern": "^.{1,1500}$"},
        {**STR, "pattern": "^<+$"},
    ]
    tools = [
        {"type": "function", "function": {**tool(schema)["function"], "name": f"f{n}"}}
        for n, schema in enumerate(schemas)
    ]
    request = ChatRequest(messages=({"role": "user", "content": "x"},), tools=tuple(tools), tool_choice="auto")
    assert constraint_for(request, template, "<|im_start|>assistant\n") is not None


@pytest.mark.parametrize("name", LOOSENED)
def test_strict_tool_and_required_call_are_refused(name: str):
    schema = LOOSENED[name][0]
    for one, choice in ((tool(schema, strict=True), "auto"), (tool(schema), "required"))[name in MUCH_WORK :]:
        with pytest.raises(BadRequest, match="cannot be enforced") as caught:
            constraint_of(PLAIN, one, choice=choice)
        assert (caught.value.param or "").startswith("tools[0].function.parameters#")


@pytest.mark.parametrize("schema", [schema for schema, *_ in LOOSENED.values()], ids=LOOSENED)
def test_parser_reads_calls_of_such_a_tool(schema: Any):
    template = ChatTemplate("{{ tools }}<tool_call><arg_key>")
    parser = OutputParser(template.dialect, tools=(tool(schema),), prompt="")
    text = "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>x</arg_value>\n</tool_call>"
    events = merged([*parser.feed(text), *parser.finish()])
    assert [event.text for event in events if isinstance(event, ToolCallArguments)] == ['{"a": "x"}']


def test_work_of_hostile_tools_is_bounded():
    schema = LOOSENED["too much work"][0]
    with limited_to(Budget(RESERVED_STEPS + MAX_STEPS)) as budget:
        for n in range(2):
            rules = Rules()
            properties = {"properties": {f"p{n}": schema, "q": schema}}
            _, errors = convert_loosely(properties, lambda one, rules=rules: schema_rule(rules, one), "#")
            assert errors
    assert budget.n_left > 0


POINTERS: dict[str, tuple[Any, str, Any]] = {
    "keyword": (
        {"properties": {"pattern": {"pattern": "("}}},
        "#/properties/pattern/pattern",
        {"properties": {"pattern": {}}},
    ),
    "whole schema": (
        {"properties": {"a": {**STR, "maxLength": 1, "pattern": "a"}}},
        "#/properties/a",
        {"properties": {"a": {**STR, "pattern": "a"}}},
    ),
    "schema around a keyword": (
        {"properties": {"a": {"maxItems": 1, "items": STR}}},
        "#/properties/a/items",
        {"properties": {"a": {"items": STR}}},
    ),
    "escaped": ({"$defs": {"a/b~": {"not": {}}}}, "#/$defs/a~1b~0/not", {"$defs": {"a/b~": {}}}),
    "unknown holder": (
        {"components": {"schemas": {"A": {"if": {}}}}},
        "#/components/schemas/A/if",
        {"components": {"schemas": {"A": {}}}},
    ),
    "pointer without a target": ({"required": ["a"]}, "#/with-a/required", {}),
    "no such property": ({"properties": {"a": {}}}, "#/properties/b", {}),
    "empty pointer": ({"description": "d"}, "#", {}),
    "not a schema": ([], "#", {}),
}


@pytest.mark.parametrize(("schema", "pointer", "result"), POINTERS.values(), ids=POINTERS)
def test_schema_without_a_place(schema: Any, pointer: str, result: Any):
    before = json.dumps(schema)
    assert loosened(schema, pointer.removeprefix("#")) == {"type": "object", **result}
    assert json.dumps(schema) == before, "the schema of the request stays as it is"


def test_schema_that_is_never_enforced_allows_any_object():
    def convert(schema: Any) -> Any:
        if schema != {"type": "object"}:
            raise SchemaError("#/properties/a", "never")
        return schema

    schema = {"properties": {"a": {**STR, "maxLength": 1, "pattern": "a", "format": "date"}}, "required": ["a"]}
    assert convert_loosely(schema, convert, "#")[0] == {"type": "object"}


def test_schema_of_too_many_dropped_constraints_reports_that_any_object_is_allowed():
    properties = {f"p{n}": {**STR, "pattern": "(?=x)"} for n in range(MAX_DROPPED + 1)}
    _, errors = convert_loosely({"properties": properties}, lambda one: schema_rule(Rules(), one), "#")
    assert [error.path for error in errors] == [*(f"#/properties/p{n}/pattern" for n in range(MAX_DROPPED)), "#"]
    assert "any object is allowed" in errors[-1].message


@pytest.mark.parametrize(
    ("n_errors", "expected"),
    [
        (0, {"type": "object", "properties": {"a": {"type": "array", "items": {**STR, "maxLength": 1}}}}),
        (1, {"type": "object", "properties": {"a": {"type": "array", "items": STR}}}),
        (2, {"type": "object", "properties": {"a": {"type": "array"}}}),
        (3, {"type": "object"}),
        (4, {"type": "object"}),
    ],
)
def test_each_schema_of_too_much_work_loosens_one_more_around_it(n_errors: int, expected: Any):
    failures = iter(range(n_errors))

    def convert(schema: Any) -> Any:
        if next(failures, None) is not None:
            raise SchemaError("#/properties/a/items", "too much work") from TooMuchWork("too much work")
        return schema

    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {**STR, "maxLength": 1}}}}
    assert convert_loosely(schema, convert, "#")[0] == expected


def test_second_schema_of_too_much_work_loosens_the_one_around_it():
    """This holds at any place, since the first one used up most of the allowed work."""
    failures = iter("ab")

    def convert(schema: Any) -> Any:
        name = next(failures, None)
        if name is not None:
            raise SchemaError(f"#/properties/{name}/items", "too much work") from TooMuchWork("too much work")
        return schema

    properties = {name: {"type": "array", "items": {**STR, "maxLength": 1}} for name in "ab"}
    loose = {"a": {"type": "array", "items": STR}, "b": {"type": "array"}}
    schema = {"type": "object", "properties": properties}
    assert convert_loosely(schema, convert, "#")[0] == {"type": "object", "properties": loose}
