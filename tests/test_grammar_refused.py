"""Schemas and patterns that no grammar can enforce: the error names the path."""

from __future__ import annotations

from typing import Any

import pytest

from localchat.serving.grammar import (
    PatternError,
    SchemaError,
    choice_to_grammar,
    regex_to_grammar,
    schema_to_grammar,
)

INT = {"type": "integer"}
STR = {"type": "string"}
A_AND_B = {"properties": {"a": INT, "b": INT}, "type": "object"}

# Name: schema, path of the error, words of its message.
REFUSED: dict[str, tuple[Any, str, str]] = {
    "if": ({"type": "object", "if": {}, "then": {}}, "#/if", "anyOf"),
    "unevaluatedProperties": (
        {"properties": {"a": {"unevaluatedProperties": False}}},
        "#/properties/a/unevaluatedProperties",
        "additionalProperties",
    ),
    "unevaluatedItems": ({"unevaluatedItems": False}, "#/unevaluatedItems", "items"),
    "dynamicRef": ({"$dynamicRef": "#x"}, "#/$dynamicRef", "$ref"),
    "not a schema": ({"properties": {"a": 5}}, "#/properties/a", "must be a schema"),
    "null in place of a schema": (None, "#", "must be a schema"),
    "unknown type": ({"type": "str"}, "#/type", "integer"),
    "empty type list": ({"type": []}, "#/type", "one or several"),
    "enum not a list": ({"enum": "a"}, "#/enum", "list"),
    "enum empty": ({"enum": []}, "#", "no value"),
    "no value: types": ({"allOf": [STR, INT]}, "#", "no value"),
    "no value: false": (False, "#", "no value"),
    "no value: bounds": ({"type": "integer", "minimum": 5, "maximum": 4}, "#", "no value"),
    "no value: between integers": (
        {"type": "integer", "exclusiveMinimum": 5, "exclusiveMaximum": 6},
        "#",
        "no value",
    ),
    "no value: lengths": ({"type": "string", "minLength": 5, "maxLength": 4}, "#", "no value"),
    "no value: items": ({"type": "array", "items": False, "minItems": 1}, "#", "no value"),
    "no value: counts": ({"type": "array", "minItems": 3, "maxItems": 2}, "#", "no value"),
    "no value: required is false": (
        {"type": "object", "properties": {"a": False}, "required": ["a"]},
        "#",
        "no value",
    ),
    "no value: closed and required": (
        {"type": "object", "required": ["a"], "additionalProperties": False},
        "#",
        "no value",
    ),
    "no value: endless": (
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        "#",
        "no value",
    ),
    "no value: pattern and length": ({"type": "string", "pattern": "^a{3}$", "maxLength": 2}, "#", "no value"),
    "no value: names": ({**A_AND_B, "required": ["a"], "propertyNames": {"maxLength": 0}}, "#", "no value"),
    "no value: object counts": ({**A_AND_B, "minProperties": 2, "maxProperties": 1}, "#", "no value"),
    "minLength text": ({"type": "string", "minLength": "3"}, "#/minLength", "integer"),
    "minLength negative": ({"type": "string", "minLength": -1}, "#/minLength", "negative"),
    "maxLength fraction": ({"type": "string", "maxLength": 1.5}, "#/maxLength", "integer"),
    "maxLength true": ({"type": "string", "maxLength": True}, "#/maxLength", "integer"),
    "minimum text": ({"type": "integer", "minimum": "3"}, "#/minimum", "number"),
    "maximum infinite": ({"type": "number", "maximum": float("inf")}, "#", "not JSON"),
    "multipleOf 0": ({"type": "integer", "multipleOf": 0}, "#/multipleOf", "greater"),
    "multipleOf large": ({"type": "integer", "multipleOf": 1234, "minimum": 7}, "#", "multiples of 1234"),
    "multipleOf fraction without bounds": ({"type": "number", "multipleOf": 0.5}, "#", "0.1, 0.01"),
    "pattern not a string": ({"type": "string", "pattern": 5}, "#/pattern", "string"),
    "pattern lookahead": ({"properties": {"a": {"pattern": "(?=x)"}}}, "#/properties/a/pattern", "looks ahead"),
    "pattern backreference": ({"pattern": r"(a)\1"}, "#/pattern", r"\1"),
    "pattern in patternProperties": ({"type": "object", "patternProperties": {"(": INT}}, "#/patternProperties", "`)`"),
    "pattern and length too large": ({"type": "string", "pattern": "x.*y", "maxLength": 5000}, "#", "states"),
    "pattern and length with large states": (
        {"type": "string", "pattern": "^(a?b?c?d?e?f?g?h?i?j?){12}$", "maxLength": 30},
        "#",
        "more than 50000 parts",
    ),
    "properties not an object": ({"type": "object", "properties": []}, "#/properties", "object"),
    "required not a list": ({"type": "object", "required": "a"}, "#/required", "list of strings"),
    "uniqueItems": ({"type": "array", "items": INT, "uniqueItems": True}, "#/uniqueItems", "enum"),
    "uniqueItems of a large enum": (
        {"type": "array", "items": {"enum": list(range(9))}, "uniqueItems": True},
        "#/uniqueItems",
        "8 values",
    ),
    "contains with maxItems": ({"type": "array", "contains": INT, "maxItems": 3}, "#/contains", "maxItems"),
    "maxContains": ({"type": "array", "contains": INT, "maxContains": 3}, "#/maxContains", "leave it out"),
    "minProperties of free names": ({"type": "object", "minProperties": 2}, "#/minProperties", "declare them"),
    "many patternProperties": (
        {"type": "object", "patternProperties": {f"^{n}": INT for n in range(5)}},
        "#/patternProperties",
        "limit is 4",
    ),
    "oneOf overlapping": ({"oneOf": [INT, {"type": "number"}]}, "#/oneOf", "branches 0 and 1"),
    "oneOf of ranges that meet": (
        {"oneOf": [{**INT, "maximum": 5}, {**INT, "minimum": 5}]},
        "#/oneOf",
        "branches 0 and 1",
    ),
    "oneOf same required names": (
        {"oneOf": [{**A_AND_B, "required": ["a"]}, {**A_AND_B, "required": ["b"]}]},
        "#/oneOf",
        "anyOf",
    ),
    "oneOf beside the names": (
        {**A_AND_B, "oneOf": [{"properties": {n: INT}, "required": [n], "type": "object"} for n in "ab"]},
        "#/oneOf",
        "anyOf",
    ),
    "oneOf, names in allOf": (
        {"allOf": [{"oneOf": [{"properties": {n: INT}, "required": [n], "type": "object"} for n in "ab"]}, A_AND_B]},
        "#/allOf/0/oneOf",
        "anyOf",
    ),
    "oneOf empty": ({"oneOf": []}, "#/oneOf", "at least one"),
    "allOf not a list": ({"allOf": {"a": INT}}, "#/allOf", "list of schemas"),
    "NaN": ({"enum": [float("nan")]}, "#", "not JSON"),
    "not JSON": ({"enum": [object()]}, "#", "not JSON"),
    "anyOf not a list": ({"anyOf": 5}, "#/anyOf", "list"),
    "not schema": ({"type": "string", "not": {"pattern": "a"}}, "#/not", "say what is allowed"),
    "not number": ({"type": "integer", "not": {"const": 5}}, "#/not", "say what is allowed"),
    "not integer": ({"type": "number", "not": {"type": "integer"}}, "#/not", "say what is allowed"),
    "unknown reference": ({"$ref": "#/$defs/x"}, "#/$ref", "does not refer to anything"),
    "reference outside": ({"items": {"$ref": "other.json#/x"}}, "#/items/$ref", "another document"),
    "reference not a string": ({"$ref": 5}, "#/$ref", "string"),
    "reference to itself": ({"$ref": "#"}, "#", "itself"),
    "references in a circle": (
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        "#/$defs/a",
        "itself",
    ),
    "anyOf in a circle": ({"anyOf": [INT, {"$ref": "#"}]}, "#", "itself"),
    "oneOf in a circle": ({"oneOf": [INT, {"$ref": "#"}]}, "#", "itself"),
    "unknown anchor": ({"$ref": "#nowhere"}, "#/$ref", "does not refer to anything"),
    "$id below the root": (
        {"properties": {"a": {"$id": "x", "$ref": "#/$defs/b"}}},
        "#/properties/a/$id",
        "only the root",
    ),
    "path with special characters": (
        {"properties": {"a/b~c": {"type": "x"}}},
        "#/properties/a~1b~0c/type",
        "one or several",
    ),
    "path through a reference": (
        {"$defs": {"d": {"maxLength": -1}}, "properties": {"a": {"$ref": "#/$defs/d"}}},
        "#/$defs/d/maxLength",
        "negative",
    ),
    "many branches": (
        {"allOf": [{"anyOf": [{"required": [f"{n}{m}"]} for m in range(4)]} for n in range(5)]},
        "#",
        "branches",
    ),
}


@pytest.mark.parametrize(("schema", "path", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_error_names_the_place_in_the_schema(schema: Any, path: str, words: str):
    with pytest.raises(SchemaError) as raised:
        schema_to_grammar(schema)
    assert raised.value.path == path
    assert words in raised.value.message
    assert str(raised.value) == f"{raised.value.path}: {raised.value.message}"


def test_deep_nesting_is_refused():
    schema: Any = INT
    for _ in range(2000):
        schema = {"type": "array", "items": schema}
    with pytest.raises(SchemaError, match="too deeply"):
        schema_to_grammar(schema)


PATTERNS = {
    "lookahead": "a(?=b)",
    "negative lookahead": "(?!b)a",
    "lookbehind": "(?<=b)a",
    "negative lookbehind": "(?<!b)a",
    "backreference": r"(a)\1",
    "named backreference": r"(?<n>a)\k<n>",
    "flags": "(?i)a",
    "atomic group": "(?>a)",
    "word boundary": r"\ba",
    "unicode property": r"\p{L}",
    "unknown escape": r"\q",
    "python's anchors": r"\Aa\Z",
    "open group": "(a",
    "closed group": "a)",
    "open class": "[a",
    "empty class": "[]",
    "reversed range": "[z-a]",
    "range of classes": r"[\d-z]",
    "star at the start": "*a",
    "two quantifiers": "a**",
    "possessive": "a*+",
    "open brace": "a{",
    "count without a minimum": "a{,3}",
    "reversed count": "a{3,2}",
    "huge count": "a{1000000}",
    "half of a surrogate pair": r"\ud83d",
    "NUL": r"\x00",
    "short hex": r"\x4",
    "code point beyond Unicode": r"\u{110000}",
    "anchor in a repetition": "(^a)*b(a$){2}",
    "backslash at the end": "a\\",
}


@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS.keys())
def test_pattern_is_refused(pattern: str):
    with pytest.raises(PatternError, match="the pattern"):
        regex_to_grammar(pattern)
    with pytest.raises(SchemaError) as raised:
        schema_to_grammar({"type": "string", "pattern": pattern})
    assert raised.value.path == "#/pattern"


@pytest.mark.parametrize("choices", [[], [""], ["a", ""], ["\0"]], ids=["none", "empty", "one empty", "NUL"])
def test_choices_are_refused(choices: list[str]):
    with pytest.raises(ValueError, match="choices"):
        choice_to_grammar(choices)


def test_long_pattern_is_refused_with_both_numbers():
    regex_to_grammar("a" * 5000)
    with pytest.raises(PatternError, match="5001 characters, the limit is 5000"):
        regex_to_grammar("a" * 5001)


def test_nested_pattern_and_choices_with_common_beginnings_are_limited():
    with pytest.raises(PatternError, match="nested too deeply"):
        regex_to_grammar("(" * 300 + "a" + ")" * 300)
    with pytest.raises(ValueError, match="begin with another one"):
        choice_to_grammar(["a" * n for n in range(1, 600)])
