"""Schemas and grammars in GBNF: what their constraints allow, and what is refused with its place."""

import itertools
import json
import re
from typing import Any

import pytest

from localchat.serving.core.errors import BadRequest
from localchat.serving.schema import refuse
from localchat.serving.schema.check import checked
from localchat.serving.schema.prepare import prepared
from tests.support.constraints import check_fits, constraint_of, formatted, gbnf, matcher_of

INTEGER, TEXT = {"type": "integer"}, {"type": "string"}
DECLARED = {"properties": {"a": INTEGER}, "required": ["a"]}
BASE = {"type": "object", "properties": {"a": INTEGER, "k": {"$ref": "#/$defs/base"}}}
KINDS = {name: {"type": "object", "properties": {"k": {"const": name}}, "required": ["k"]} for name in ("x", "y")}
# A schema, JSON that it allows, and JSON that it does not.
ENFORCED = {
    "uri of Pydantic": ({"type": "string", "format": "uri", "maxLength": 2083}, ['"https://a.b/c"'], ['"a b"', "1"]),
    "required null": ({"type": "object", "required": None, "properties": {"a": {}}}, ["{}", '{"a": 1}'], ["[]"]),
    "unknown format": ({"type": "string", "format": "color"}, ['"red"'], ["1"]),
    "nullable": ({"type": "integer", "nullable": True}, ["1", "null"], ['"a"']),
    "nullable enum": ({"enum": ["a"], "nullable": True}, ['"a"', "null"], ["1"]),
    "nullable constant": ({"type": "string", "const": "a", "nullable": True}, ['"a"', "null"], ['"b"']),
    "nullable object without type": (
        {"properties": {"a": INTEGER}, "nullable": True}, ['{"a": 1}', "null"], ["1", '{"b": 1}'],
    ),
    "nullable reference": (
        {"$ref": "#/$defs/q", "nullable": True, "$defs": {"q": {"properties": {"a": INTEGER}}}},
        ['{"a": 1}', "null"], ["1", '{"b": 1}'],
    ),
    "nullable combinations": (
        {"properties": {"a": {"allOf": [TEXT], "nullable": True}, "b": {"anyOf": [TEXT, INTEGER], "nullable": True}}},
        ['{"a": null, "b": null}', '{"a": "", "b": 1}'], ['{"a": 1}', '{"b": true}'],
    ),
    "nullable branches": (
        {"oneOf": [{"type": "string", "nullable": True}, INTEGER]}, ['"a"', "1", "null"], ["true"],
    ),
    "not nullable": ({"type": "integer", "nullable": False}, ["1"], ["null"]),
    "other properties": ({"type": "object", "properties": {"a": {}}}, ["{}", '{"a": 1}'], ['{"b": 1}']),
    "definitions": ({"$ref": "#/$defs/q", "$defs": {"q": {"enum": [1, "b"]}}}, ["1", '"b"'], ["2"]),
    "default of uniqueItems": ({"type": "array", "uniqueItems": False}, ["[1, 1]"], ["1"]),
    "options of llguidance": ({"type": "integer", "x-guidance": {"lenient": True}}, ["1"], ['"a"']),
    "null in values": (
        {"enum": [{"a": None, "b": 1}, {"properties": None}], "title": None},
        ['{"a": null, "b": 1}', '{"properties": null}'], ['{"b": 1}', "{}"],
    ),
    "object without type": (DECLARED, ['{"a": 1}'], ["-2", "{}"]),
    "names of any text": ({"type": "object", "propertyNames": {"type": "string"}}, ['{"a": 1}'], ["1"]),
    "names with a title": ({"type": "object", "propertyNames": {"title": "Name"}}, ['{"a": 1}'], ["1"]),
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
    "name of a pattern in escapes": (
        {"type": "object", "patternProperties": {"^x": INTEGER}, "additionalProperties": TEXT},
        ['{"xa": 1, "b": ""}'], ['{"\\u0078a": ""}', '{"xa": ""}'],
    ),
    "allOf of one": (
        {"properties": {"a": {"allOf": [{"$ref": "#/$defs/q"}], "title": "A"}}, "$defs": {"q": INTEGER}},
        ['{"a": 1}', "{}"], ['{"a": ""}', '{"b": 1}'],
    ),
    "one property at least": ({"type": "object", "minProperties": 1}, ['{"a": 1}'], ["{}"]),
    "closed allOf": (
        {"allOf": [DECLARED, {"properties": {"b": INTEGER}}]},
        ['{"a": 1, "b": 2}', '{"a": 1}'], ["{}", '{"a": 1, "c": 2}'],
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
    "names of a pattern beside anyOf": (
        {**DECLARED, "patternProperties": {"^x": INTEGER}, "anyOf": [{"properties": {"b": TEXT}}, {"type": "object"}]},
        ['{"a": 1, "xa": 1}', '{"a": 1, "b": "", "xa": 1}'], ['{"a": 1, "z": 1}', '{"a": 1, "xa": ""}'],
    ),
    "name of a pattern beside anyOf": (
        {"patternProperties": {"^a$": INTEGER}, "anyOf": [{"properties": {"b": TEXT}}, {"properties": {"c": TEXT}}]},
        ['{"a": 1}', '{"b": ""}', '{"c": ""}'], ['{"z": 1}', '{"a": ""}'],
    ),
    "oneOf of references": (
        {"oneOf": [{"$ref": "#/$defs/x"}, {"$ref": "#/$defs/y"}], "$defs": KINDS}, ['{"k": "x"}'],
        ['{"k": "z"}', '{"k": "x", "b": 1}'],
    ),
    "oneOf of objects": (
        {"oneOf": [{**DECLARED, "type": "object"}, {"properties": {"b": TEXT}, "required": ["b"]}]},
        ['{"a": 1}', '{"b": ""}'], ['{"a": 1, "b": ""}', "{}"],
    ),
    "oneOf of references with keywords beside them": (
        {
            "oneOf": [
                {"$ref": "#/$defs/x", "properties": {"c": {"const": 1}}, "required": ["c"]},
                {"$ref": "#/$defs/y", "properties": {"c": {"const": 2}}},
            ],
            "$defs": KINDS,
        },
        ['{"k": "x", "c": 1}', '{"k": "y"}'], ['{"k": "x"}', '{"k": "y", "c": 1}', '{"k": "y", "d": 1}'],
    ),
    "oneOf of values with titles": (
        {"oneOf": [{"const": 1, "title": "low"}, {"const": 2, "title": "high"}, {"enum": [True, None, 2.5]}]},
        ["1", "2", "2.5", "true", "null"], ["3", "false", '"1"'],
    ),
    "oneOf of objects with a number each": (
        {"oneOf": [{"properties": {"v": {"const": v}, "a": {}}, "required": ["v"]} for v in (0, False, "0")]},
        ['{"v": 0}', '{"v": false}', '{"v": "0", "a": 1}'], ['{"v": 1}', '{"a": 1}'],
    ),
    "oneOf of texts behind references": (
        {"oneOf": [
            {"type": "object", "properties": {"k": {"$ref": f"#/$defs/{name}"}}, "required": ["k"]} for name in "ab"
        ], "$defs": {"a": {"enum": ["a"]}, "b": {"enum": ["b"]}}},
        ['{"k": "a"}', '{"k": "b"}'], ['{"k": "c"}', '{"k": "a", "b": 1}'],
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
    "lengths of names": (
        {"type": "object", "propertyNames": {"minLength": 1, "maxLength": 2}}, ['{"ab": 1}'], ['{"abc": 1}', '{"": 1}'],
    ),
    "any number of items": ({"type": "array", "items": INTEGER, "maxItems": 2**31 - 1}, ["[1, 2]"], ['[""]']),
    "negated class in a name": (
        {"type": "object", "patternProperties": {'^[^"]+$': INTEGER}, "additionalProperties": False},
        ['{"a": 1}'], ['{"\\"": 1}', '{"a": ""}'],
    ),
    "negated class in names": (
        {"propertyNames": {"pattern": r"^[^\\]$"}, "additionalProperties": INTEGER}, ['{"a": 1}'], ['{"\\\\": 1}'],
    ),
    "closed names of a listing pattern": (
        {"properties": {"c": {}}, "anyOf": [{"patternProperties": {"^(a|b)$": INTEGER}}, {"required": ["c"]}]},
        ['{"a": 1, "b": 1}', '{"c": 0}'], ['{"d": 1}', '{"a": 1, "a": 1}'],
    ),
    "closed names of patterns": (
        {"properties": {"a": INTEGER}, "anyOf": [{"patternProperties": {"^[^a]$": INTEGER}}, {"required": ["a"]}]},
        ['{"a": 1, "b": 1}'], ['{"cc": 1}', '{"b": ""}'],
    ),
    "40 patterns": (
        {"type": "object", "patternProperties": {f"^{i}_": INTEGER for i in range(40)}},
        ['{"7_a": 1}'], ['{"7_a": ""}'],
    ),
    "length as a float": ({"type": "string", "maxLength": 1.0}, ['"a"'], ['"ab"']),
    "an exclusive bound that has no effect": (
        {"type": "number", "exclusiveMinimum": 0, "minimum": 0.25, "maximum": 0.75}, ["0.25", "0.75"], ["0", "1"],
    ),
    "anchor": (
        {"items": {"$ref": "#i"}, "$defs": {"x/y": {"$anchor": "i", "type": "integer"}}}, ["[1]"], ['["a"]', "[0.5]"],
    ),
    "patterns of names close no object": (
        {"type": "object", "patternProperties": {"^x": INTEGER, "^a$": INTEGER}},
        ['{"a": 1, "z": "q"}', '{"x1": 1}'], ['{"a": "', '{"x1": "'],
    ),
    "places with names alike": (
        {"required": ["x", "y", "z"], "properties": {
            "a": {"type": "array", "items": INTEGER}, "a.items": TEXT, "a/items": {"type": "null"},
            "x": {"$ref": "#/properties/a/items"}, "y": {"$ref": "#/properties/a.items"},
            "z": {"$ref": "#/properties/a~1items"},
        }},
        ['{"x": 1, "y": "s", "z": null}'], ['{"x": 1, "y": 2', '{"x": "s"', '{"x": 1, "y": "s", "z": 1'],
    ),
    "near bounds": ({"type": "number", "minimum": 0.1, "exclusiveMaximum": 0.9}, ["0.1"], ["0.9", "0"]),
    "negated class": ({"type": "string", "pattern": '^[^"]+$'}, ['"a"'], ['"\\""']),
    "negated class with a hyphen": (
        {"type": "string", "pattern": "^[^-_]+$"}, ['"AB1"', '"a b"'], ['"a-b"', '"a_b"'],
    ),
    "negated class that ends with a hyphen": ({"type": "string", "pattern": "^[^_-]+$"}, ['"AB1"'], ['"-"', '"_"']),
    "negated hyphen and class": ({"type": "string", "pattern": r"^[^-\s]+$"}, ['"AB1"'], ['"a-b"', '"a b"']),
    "length of names as a float": (
        {"type": "object", "propertyNames": {"minLength": 1.0, "maxLength": 2.0}}, ['{"ab": 1}'], ['{"abc": 1}'],
    ),
    "control character": ({"properties": {"a": {"const": "\1"}}}, ['{"a": "\\u0001"}'], ['{"a": ""}']),
    # Unknown keywords, a default and examples restrict nothing.
    "large numbers in unknown keywords": (
        {"x-id": 2**60, "properties": {"a": {**INTEGER, "x-ids": [{"b": 2**80}]}}}, ['{"a": 1}'], ['{"a": ""}'],
    ),
    "large default": (
        {"properties": {"a": {**INTEGER, "default": 2**60, "example": 2**60, "examples": [2**60]}}},
        ['{"a": 1}'], ['{"a": ""}'],
    ),
    "list of nodes": (
        {**DECLARED, "properties": {"a": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}}, ['{"a": {"a": null}}'],
        ['{"a": {}}'],
    ),
}  # fmt: skip

UNIQUE = {"type": "array", "uniqueItems": True}
REFERENCES = [{"$ref": f"#/$defs/{i}"} for i in range(100)]
CHAIN = {f"d{i}": {"properties": {"n": {"$ref": f"#/$defs/d{i + 1}"}}} for i in range(3000)}
# A schema that cannot be enforced, and the place in it; None: the error names the field.
UNENFORCEABLE = {
    "names of a format": ({"type": "object", "propertyNames": {"format": "date"}}, "/propertyNames"),
    "reference beside": (
        {"properties": {"a": {"$ref": "#/properties/b"}, "b": INTEGER, "c": {"not": INTEGER}}}, "/properties/c/not",
    ),
    "too few names": ({"type": "object", "propertyNames": {"const": "a"}, "minProperties": 2}, "/minProperties"),
    "large objects": ({"prefixItems": [{"properties": {str(i): {} for i in range(2500)}}] * 2}, "/prefixItems/1"),
    "branch that becomes another keyword": ({"oneOf": [{"type": "string"}, UNIQUE]}, "/oneOf/1/uniqueItems"),
    "only part": ({"allOf": [UNIQUE]}, "/allOf/0/uniqueItems"),
    "only part of an only part": ({"items": {"allOf": [{"allOf": [UNIQUE]}]}}, "/items/allOf/0/allOf/0/uniqueItems"),
    "copied definition": (
        {"properties": {"a": {"allOf": [{"$ref": "#/$defs/x"}, {"properties": {"b": {}}}]}},
         "$defs": {"x": {"properties": {"c": UNIQUE}}}}, "/$defs/x/properties/c/uniqueItems",
    ),
    "names from a pattern": ({"patternProperties": {"^(a|b)$": UNIQUE}}, "/patternProperties/^(a|b)$/uniqueItems"),
    "empty name": ({"properties": {"": {"properties": {"": UNIQUE}}}}, "/properties//properties//uniqueItems"),
    "definition behind an anchor": (
        {"properties": {"a": {"$ref": "#foo"}}, "$defs": {"x": {"$anchor": "foo", **UNIQUE}}}, "/$defs/x/uniqueItems"),
    "bounds behind an anchor": (
        {"properties": {"a": {"$ref": "#foo"}},
         "$defs": {"x": {"$anchor": "foo", "type": "number", "exclusiveMinimum": 1, "maximum": 1.5}}}, "/$defs/x"),
    "definition behind an id": (
        {"properties": {"a": {"$ref": "http://a.b/c"}}, "$defs": {"x": {"$id": "http://a.b/c", **UNIQUE}}},
        "/properties/a/$ref"),
    "reference to no anchor": ({"items": {"$ref": "#foo"}}, "/items/$ref"),
    "comment": ({"$comment": "c", "allOf": [{"$comment": "d", **UNIQUE}]}, "/allOf/0/uniqueItems"),
    "near bounds": ({"items": {"type": "number", "exclusiveMinimum": 2, "maximum": 2.5}}, "/items"),
    "an exclusive bound beside a wider one": (
        {"items": {"type": "number", "minimum": -0.5, "exclusiveMinimum": 0, "exclusiveMaximum": 1.5, "maximum": 0.75}},
        "/items",
    ),
    "bounds near zero": ({"items": {"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}}, "/items"),
    "control character": ({**DECLARED, "additionalProperties": {"enum": ["x\1"]}}, "/additionalProperties"),
    "control patterns": ({**DECLARED, "additionalProperties": {"pattern": "^\\x1b$"}}, "/additionalProperties"),
    "many combinations": (
        {"$ref": "#/$defs/0", "$defs": {str(i): {"properties": {"a": {}}, "anyOf": REFERENCES} for i in range(100)}},
        None,
    ),
    # llguidance follows references on the stack, and would end the process.
    "long chain of references": ({"$ref": "#/$defs/d0", "$defs": {**CHAIN, "d3000": {}}}, "/$defs/d300"),
    "names that differ": ({"type": "object", "minProperties": 2}, "/minProperties"),
    "pattern of taken names": (
        {**DECLARED, "patternProperties": {"^[a]$": {}}, "additionalProperties": False}, "/patternProperties",
    ),
    "closed objects that overlap": (
        {"oneOf": [{**DECLARED, "properties": {"a": {}, "b": {}}}, {"properties": {"b": {}}, "required": ["b"]}]}, "",
    ),
    # The second branch allows {"a": 1, "b": 1} unless it is closed.
    "closed objects that overlap by what is beside a reference": (
        {"oneOf": [{"$ref": "#/$defs/a", "properties": {"b": {}}}, {"$ref": "#/$defs/b"}], "$defs": {
            name: {"type": "object", "properties": {name: {}}, "required": [name]} for name in "ab"
        }}, "",
    ),
    "nullable branch and null": (
        {"oneOf": [{"$ref": "#/$defs/a", "nullable": True}, {"type": "null"}], "$defs": {"a": TEXT}}, "",
    ),
    "target in another keyword": ({"$ref": "#/a", "a": {"properties": {"b": UNIQUE}}}, "/a/properties/b/uniqueItems"),
    "endless": ({"properties": {"a": {"$ref": "#"}}, "required": ["a"]}, ""),
    "properties": ({"items": {"properties": {str(i): {} for i in range(3001)}}}, "/items/properties"),
    "patterns": ({"type": "object", "patternProperties": {f"^{i}_": {} for i in range(101)}}, "/patternProperties"),
    "not": ({"properties": {"a": {"not": {"type": "null"}}}}, "/properties/a/not"),
    "if": ({"items": {"anyOf": [{"type": "null"}, {"if": {}}]}}, "/items/anyOf/1/if"),
    "unique": ({"$defs": {"q": {"type": "array", "uniqueItems": True}}, "$ref": "#/$defs/q"}, "/$defs/q/uniqueItems"),
    "look-ahead": ({"properties": {"a/b": {"type": "string", "pattern": "(?=a)"}}}, "/properties/a~1b"),
    "oneOf with any value": ({"oneOf": [True, {"type": "integer"}]}, ""),
    "oneOf of equal constants": ({"oneOf": [KINDS["x"], {**KINDS["x"], "title": "another"}]}, ""),
    "oneOf of equal numbers": ({"oneOf": [{"const": 1}, {"enum": [2, 1.0]}]}, ""),
    "overlapping oneOf": ({"oneOf": [{"type": "number", "minimum": 1}, {"type": "integer"}]}, ""),
    "rounded integer": ({"properties": {"id": {"enum": [2**53 + 1]}}}, "/properties/id"),
    "rounded integer in a constant": ({"properties": {"id": {"const": {"default": 2**60 + 1}}}}, "/properties/id"),
    "rounded bound": ({"properties": {"id": {**INTEGER, "maximum": 2**63 - 1}}}, "/properties/id"),
    "unknown type": ({"properties": {"a": {"type": "foo"}}}, "/properties/a"),
    "false": (False, ""),
}  # fmt: skip


@pytest.mark.parametrize("case", ENFORCED.values(), ids=ENFORCED)
def test_schema_is_enforced(case: Any):
    schema, right, wrong = case
    check_fits(constraint_of(**formatted("json_schema", checked(schema))), right, wrong)


@pytest.mark.parametrize("keyword", ["anyOf", "allOf", "$ref"])
def test_order_of_keywords_changes_no_values(keyword: str):
    names = {"type": "object", "patternProperties": {"^x": INTEGER}, "additionalProperties": TEXT}
    combined = {**names, keyword: "#/$defs/q" if keyword == "$ref" else [{"type": "object"}]}
    for items in itertools.permutations(combined.items()):
        constraint = constraint_of(**formatted("json_schema", {**dict(items), "$defs": {"q": {"type": "object"}}}))
        check_fits(constraint, ['{"xa": 1, "b": ""}', "{}"], ['{"xa": ""}', '{"b": 1}', "[]"])


@pytest.mark.parametrize(
    "endless",
    [
        {"$ref": "#/$defs/q"},
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/q"}}, "required": ["a"]},
        {"type": "array", "items": {"anyOf": [{"$ref": "#/$defs/q"}]}, "minItems": 1},
    ],
    ids=json.dumps,
)
def test_output_does_not_begin_a_value_that_never_ends(endless: Any):
    schema = {"properties": {"a": {"$ref": "#/$defs/q"}, "b": {"anyOf": [{"$ref": "#/$defs/q"}, INTEGER]}}}
    constraint = constraint_of(**formatted("json_schema", {**schema, "$defs": {"q": endless}}))
    check_fits(constraint, ["{}", '{"b": 1}'], [])
    for beginning in b'{"a"', b'{"b": {', b'{"b": [':
        assert matcher_of(constraint).try_consume_tokens([*beginning]) < len(beginning)


@pytest.mark.parametrize("case", UNENFORCEABLE.values(), ids=UNENFORCEABLE)
def test_schema_that_cannot_be_enforced_is_refused_with_its_place(case: Any):
    schema, place = case
    schema = json.loads(json.dumps(schema))  # A schema of a request has no object twice.
    with pytest.raises(BadRequest, match="cannot be enforced") as caught:
        constraint_of(**formatted("json_schema", schema))
    assert caught.value.param == ("json_schema" if place is None else f"json_schema#{place}")
    assert not re.search("llguidance|Unsatisfiable|coerce|Unimplemented", caught.value.message)


def test_refusal_of_many_patterns_has_both_numbers():
    schema = {"type": "object", "patternProperties": {f"^{i}_": {} for i in range(101)}}
    with pytest.raises(BadRequest, match="101 patterns; with 0 properties, the limit is 100,"):
        constraint_of(**formatted("json_schema", schema))


def test_place_among_many_definitions_is_found_with_little_work(monkeypatch: pytest.MonkeyPatch):
    part = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 9}}, "description": "words " * 20}
    definitions: dict[str, Any] = {f"d{i}": {**part, "title": str(i)} for i in range(299)}
    definitions["bad"] = {"properties": {"z": {"type": "string", "pattern": "(?=a)"}}}
    schema = {"properties": {name: {"$ref": f"#/$defs/{name}"} for name in definitions}, "$defs": definitions}
    n_chars, error_in = [], refuse.error_in
    monkeypatch.setattr(refuse, "error_in", lambda grammar: n_chars.append(len(grammar)) or error_in(grammar))
    refused = refuse.refusal(prepared(schema))
    assert refused is not None
    assert refused.pointer == "/$defs/bad/properties/z"
    assert sum(n_chars) < 8 * len(json.dumps(schema))


JSON_GBNF = r"""root ::= object # a "comment }
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
        ("root ::= [a&&b~~]+", ["a&b~"], ["c", ""]),
        ("root ::= [[a]+ [^[-]", ["[ab"], ["[a[", "-a", "a-"]),
        ('root ::= start "z" | "(" root ")"\nstart ::= [a-z]+', ["abz", "((zzz))"], ["z", "(ab)"]),
    ],
)
def test_gbnf_is_followed(grammar: str, right: list[str], wrong: list[str]):
    check_fits(gbnf(grammar), right, wrong)


@pytest.mark.parametrize(
    "grammar",
    ["", " \n", 'root ::= undefined "x"', "no grammar", 'other ::= "x"', "root ::= )", "root ::= +", 'root ::= "\\'],
)
def test_gbnf_that_cannot_be_parsed_is_refused(grammar: str):
    with pytest.raises(ValueError, match=r"\w"):
        gbnf(grammar)
