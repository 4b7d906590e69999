"""Validation against a JSON Schema: each keyword, and the time that it takes."""

import enum
import re
import time
from collections.abc import Callable
from typing import Any, List

import pytest

from localchat.schema.targets import build
from localchat.schema.validator import validation_errors
from tests.support.growth import assert_linear


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": ["integer", "null"]}, [1, 2.0, None], [True, "a", 1.5]),
        ({"const": [1, {"a": 0}]}, [[1, {"a": 0.0}]], [[1, {"a": False}], [True, {"a": 0}], [1]]),
        ({"minimum": 1, "exclusiveMaximum": 3}, [1, 2.9, "0", True], [0, 3]),
        ({"minimum": 1, "exclusiveMinimum": True, "maximum": 3, "exclusiveMaximum": False}, [2, 3], [1, 4]),
        ({"exclusiveMinimum": True}, [0], []),
        ({"type": "integer", "nullable": True}, [1, None], ["a", False]),
        ({"multipleOf": 0.1}, [0.3, 7, 10**400], [0.35, float("inf"), float("nan")]),
        ({"multipleOf": 10}, [10_000_000_000], [10_000_000_001, 10**30 + 1]),
        ({"multipleOf": 1}, [1e9, 2.0], [1000000000.5]),
        ({"pattern": r"^[$a]+$|\$b"}, ["a$", "$b"], ["a\n", "b"]),
        ({"pattern": r"^\w\d\W$"}, ["a1é"], ["é1-", "a٣-"]),
        ({"pattern": r"^(?<x>a)(?<!b)[$\]]$"}, ["a$", "a]"], ["a", "$"]),
        ({"minLength": 2, "maxLength": 3, "pattern": "^a"}, ["ab", 1], ["a", "abcd", "ba"]),
        ({"minItems": 1, "maxItems": 2, "uniqueItems": True}, [[1], [1, True]], [[], [1, 1], [1, 2, 3]]),
        ({"prefixItems": [{"type": "integer"}], "items": False}, [[], [1]], [["a"], [1, 2]]),
        ({"required": ["a"], "properties": {"a": True, "b": False}}, [{"a": 1}, 3], [{}, {"a": 1, "b": 1}]),
        ({"properties": {"a": {}}, "additionalProperties": False}, [{"a": 1}], [{"b": 1}]),
        ({"minProperties": 1, "maxProperties": 1}, [{"a": 1}], [{}, {"a": 1, "b": 1}]),
        ({"allOf": [{"minimum": 1}, {"maximum": 2}]}, [1], [0, 3]),
        ({"anyOf": [{"type": "string"}, {"minimum": 5}]}, ["a", 5], [4]),
        ({"oneOf": [{"minimum": 1}, {"maximum": 3}]}, [0, 4], [2]),
        ({"not": {"type": "string"}}, [1], ["a"]),
        ({"not": {"contains": {"const": 1}}}, [[2]], [[1], "a"]),
        ({"contains": {"const": 1}, "minContains": 0, "maxContains": 1}, [[], [1, 2]], [[1, 1]]),
        ({"if": {"minimum": 5}, "then": {"multipleOf": 5}, "else": {"multipleOf": 2}}, [2, 10], [3, 6]),
        ({"patternProperties": {"[": {}}}, [{}, 1], [{"a": 1}]),
        ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "integer"}}}, [1], ["a"]),
        ({"type": "number"}, [1, 1.5], [True, "1", float("inf"), float("-inf"), float("nan")]),
        (
            {"format": "date-time"},
            ["2024-01-22T07:30:00Z", "2024-01-22t07:30:00.123456789+01:00", "2024-01-22T07:30:00"],
            ["2024-01-22", "20240122T073000Z", "2024-01-22T07:30Z", "2024-02-30T07:30:00Z", "2024-01-22T07:30:00+01"],
        ),
        ({"format": "time"}, ["07:30:00", "07:30:00.5Z"], ["07", "0730", "07:30", "T07:30:00", "24:30:00Z"]),
        ({"format": "date"}, ["2024-02-29"], ["20240229", "2024-W09-4", "2023-02-29"]),
        ({"$ref": "#/$defs/a%20b", "$defs": {"a b": {"type": "integer"}}}, [1], ["a"]),
        ({"$ref": "#/$defs/a~0b~01", "$defs": {"a~b~1": {"type": "integer"}}}, [1], ["a"]),
        ({"$ref": "#/allOf/1", "allOf": [True, {"type": "integer"}]}, [1], ["a"]),
        ({"unknown": 1, "format": "email"}, ["a"], []),
        ({"format": ["date"]}, ["a"], []),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) and value else None,
)
def test_keyword_allows_good_and_refuses_bad_values(schema: Any, good: List[Any], bad: List[Any]):
    assert [value for value in good if list(validation_errors(value, schema))] == []
    assert [value for value in bad if not list(validation_errors(value, schema))] == []


@pytest.mark.parametrize("reference", ["#/nowhere", "#nowhere", "#/allOf/1", "#/allOf/x", "other.json", "other#/$ref"])
def test_unresolved_reference_is_a_value_error(reference: str):
    with pytest.raises(ValueError, match=re.escape(f"refers to {reference!r}")):
        list(validation_errors(1, {"$ref": reference, "allOf": [True]}))


def test_messages_show_letters_and_no_escapes():
    (error,) = validation_errors("Grüße", {"type": "integer"})
    assert error.text == 'expected integer, got "Grüße"'


@pytest.mark.parametrize("step", [0, -2, 0.0])
def test_multiple_of_zero_or_less_is_a_value_error(step):
    with pytest.raises(ValueError, match=rf"'multipleOf': {step}, which must be greater than 0"):
        list(validation_errors(1.5, {"multipleOf": step}))


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"next": value}
    return value


NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "required": ["next"]}
CHAIN = {"$ref": "#/$defs/node", "$defs": {"node": {"oneOf": [NODE, {"type": "null"}]}}}
LINEAR: dict[str, Callable[[int], tuple[Any, Any]]] = {
    "uniqueItems": lambda n: ({"uniqueItems": True}, list(range(n))),
    "uniqueItems of objects": lambda n: ({"uniqueItems": True}, [{"a": [i, str(i)]} for i in range(n)]),
    "duplicates": lambda n: ({"uniqueItems": True}, [1] * n),
    "enum": lambda n: ({"items": {"enum": list(range(n))}}, list(range(n))),
    "enum that nothing matches": lambda n: ({"items": {"enum": list(range(n))}}, ["a"] * n),
    "properties": lambda n: ({"additionalProperties": {"type": "integer"}}, {str(i): i for i in range(n)}),
    "contains": lambda n: ({"contains": {"const": -1}}, list(range(n))),
}


@pytest.mark.parametrize("make", LINEAR.values(), ids=LINEAR)
def test_time_is_linear(make: Callable[[int], tuple[Any, Any]]):
    def seconds(n: int) -> float:
        schema, value = make(n)
        began_at = time.thread_time()
        list(validation_errors(value, schema))
        return time.thread_time() - began_at

    assert_linear(seconds, 500, 20, 0.001)


def test_time_does_not_double_with_each_level():
    """The innermost value matches no option, so that each level reports the errors of the options."""

    def seconds(depth: int) -> float:
        began_at = time.thread_time()
        assert list(validation_errors(nested(depth), CHAIN))
        return time.thread_time() - began_at

    assert_linear(seconds, 4, 4, 0.0005)


def test_time_to_find_constants_is_linear():
    def seconds(n: int) -> float:
        large = enum.Enum("large", {f"v{i}": i for i in range(n)})
        began_at = time.thread_time()
        assert build(List[large], list(range(n))) == list(large)  # type: ignore[valid-type]
        return time.thread_time() - began_at

    assert_linear(seconds, 200, 20, 0.001)


def tagged(kind: str, **properties: Any) -> dict[str, Any]:
    properties = {"kind": {"enum": [kind]}, **properties}
    return {"type": "object", "properties": properties, "required": list(properties)}


PETS = [
    tagged("cat", age={"type": "integer"}, lives={"type": "integer"}, collar={"required": ["b"]}),
    tagged("dog", age={"type": "integer"}),
    {"type": "null"},
]


@pytest.mark.parametrize("keyword", ["anyOf", "oneOf"])
@pytest.mark.parametrize("pets", [PETS, PETS[::-1], [{"$ref": "#/$defs/cat"}, *PETS[1:]]], ids=["1", "2", "3"])
@pytest.mark.parametrize(
    ("value", "errors"),
    [
        ({"kind": "dog", "age": "old"}, ['$.age: expected integer, got "old"']),
        ({"kind": "dog", "collar": {}}, ["$.age: missing"]),
        ({"kind": "cat", "age": 3, "lives": 9, "collar": {}}, ["$.collar.b: missing"]),
        ({"kind": "bird", "age": 3}, ['$.kind: expected one of "dog", got "bird"']),
    ],
)
def test_errors_of_alternatives_are_those_of_the_closest_one(keyword: str, pets: Any, value: Any, errors: list[str]):
    assert list(map(str, validation_errors(value, {keyword: pets, "$defs": {"cat": PETS[0]}}))) == errors


@pytest.mark.parametrize(("n", "shown"), [(78, '"' + "x" * 78 + '"'), (79, '"' + "x" * 79 + "...")])
def test_only_a_long_value_is_cut_in_an_error(n: int, shown: str):
    assert [error.text for error in validation_errors("x" * n, {"const": 1})] == [f"expected 1, got {shown}"]
