"""JSON Schemas and GBNF as constraints: what they allow, and the place in a schema that is refused."""

from __future__ import annotations

import builtins
import json
from typing import Any

import pytest

from localchat.serving.chat import constraint as constraint_module
from localchat.serving.core.errors import BadRequest, NotSupported

from .constraints import constraint_of, fits, formatted, gbnf

A = {"type": "object", "properties": {"kind": {"const": "a"}, "n": {"type": "integer"}}, "required": ["kind", "n"]}
B = {"type": "object", "properties": {"kind": {"const": "b"}, "s": {"type": "string"}}, "required": ["kind"]}

# A schema, JSON that it allows, and JSON that it does not.
ALLOWED = {
    "uri of Pydantic": ({"type": "string", "format": "uri", "maxLength": 2083}, ['"https://a.b/c"'], ['"a b"', "1"]),
    "email": ({"type": "string", "format": "email", "maxLength": 64}, ['"a@b.cd"'], ['"a"']),
    "url pattern": ({"type": "string", "pattern": "^https?://.{1,2000}$"}, ['"http://x"'], ['"ftp://x"']),
    "required null": ({"type": "object", "required": None, "properties": {"a": {}}}, ["{}", '{"a": 1}'], ["[]"]),
    "unknown format": ({"type": "string", "format": "color"}, ['"red"'], ["1"]),
    "nullable": ({"type": "integer", "nullable": True}, ["1", "null"], ['"a"']),
    "oneOf by a constant": ({"oneOf": [A, B]}, ['{"kind": "a", "n": 1}', '{"kind": "b"}'], ['{"kind": "a"}', "{}"]),
    "other properties": ({"type": "object", "properties": {"a": {}}}, ["{}", '{"a": 1}'], ['{"b": 1}']),
    "allOf": ({"allOf": [{"properties": {"a": {"type": "integer"}}}, {"required": ["a"]}]}, ['{"a": 1}'], ["{}"]),
    "definitions": ({"$ref": "#/$defs/q", "$defs": {"q": {"enum": [1, "b"]}}}, ["1", '"b"'], ["2"]),
    "options of llguidance": ({"type": "integer", "x-guidance": {"lenient": True}}, ["1"], ['"a"']),
}

# A schema that cannot be enforced, and the place in it.
REFUSED = {
    "not": ({"properties": {"a": {"not": {"type": "null"}}}}, "/properties/a/not"),
    "if": ({"items": {"anyOf": [{"type": "null"}, {"if": {}}]}}, "/items/anyOf/1/if"),
    "uniqueItems": (
        {"$defs": {"q": {"type": "array", "uniqueItems": True}}, "$ref": "#/$defs/q"},
        "/$defs/q/uniqueItems",
    ),
    "look-ahead": ({"properties": {"a/b": {"type": "string", "pattern": "(?=a)"}}}, "/properties/a~1b"),
    "overlapping oneOf": ({"oneOf": [{"type": "number", "minimum": 1}, {"type": "integer"}]}, ""),
    "unknown type": ({"properties": {"a": {"type": "foo"}}}, "/properties/a"),
    "false": (False, ""),
}


@pytest.mark.parametrize("case", ALLOWED.values(), ids=ALLOWED)
def test_schema_is_enforced(case: Any):
    schema, right, wrong = case
    constraint = constraint_of(**formatted("json_schema", schema))
    assert [text for text in right if not fits(constraint, text)] == []
    assert [text for text in wrong if fits(constraint, text)] == []


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_schema_that_cannot_be_enforced_is_refused_with_its_place(case: Any):
    schema, place = case
    with pytest.raises(BadRequest, match="cannot be enforced") as caught:
        constraint_of(**formatted("json_schema", schema))
    assert caught.value.param == f"json_schema#{place}"


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


def test_without_llguidance_a_constraint_is_refused_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch):
    real = builtins.__import__

    def without(name: str, *arguments: Any, **options: Any) -> Any:
        if name == "llguidance":
            raise ImportError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    constraint_module._constraint.cache_clear()
    with pytest.raises(NotSupported, match="pip install llguidance"):
        constraint_of(**formatted("json_schema", {"type": "object", "title": json.dumps("unique")}))
