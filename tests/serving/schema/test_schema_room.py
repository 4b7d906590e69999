"""JSON Schemas: hostile references, the syntax of patterns, and time that is linear in the size of a schema."""

import contextlib
import json
import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from localchat.serving.api import ollama
from localchat.serving.api.chat import parse_chat
from localchat.serving.api.messages import parse_messages
from localchat.serving.chat.dialects import DIALECTS
from localchat.serving.core.errors import BadRequest
from localchat.serving.core.fields import Fields
from localchat.serving.schema.check import checked
from localchat.serving.schema.finite import has_finite_value
from localchat.serving.schema.loosen import loosened
from localchat.serving.schema.patterns import between_slashes, in_grammar, in_json_schema, without_anchors
from localchat.serving.schema.prepare import prepared
from localchat.serving.schema.refuse import refusal
from localchat.serving.schema.types import types_at
from localchat.serving.schema.walk import ROOT, Place, at_pointer, subschemas, target_of, used_schemas
from tests.support.chat_requests import HI, parse_responses
from tests.support.constraints import check_fits, constraint_of, formatted
from tests.support.growth import assert_linear
from tests.support.time_limit import limited_time

TEXT = {"type": "string"}

# --- references ---

HOSTILE = (
    "#/anyOf/" + "1" * 5000, "#/anyOf/" + "0" * 5000, "#/anyOf/-1", "#/anyOf/01", "#/anyOf/1_0", "#/anyOf/+1",
    "#/anyOf/\u0661", "#/anyOf/\u00b2", "#/anyOf/1e3", "#/anyOf/0x0", "#/anyOf/ 0", "#/anyOf/", "#/anyOf/2",
    "#/anyOf/%31%31%31", "#/%", "#/%ff", "#//", "#/~", "#/~2", "#/\ud800", "#/properties/a/b/c", "#" + "/a" * 100_000,
    "#/type/0", "#/required/0/0", "#/minLength",
)  # fmt: skip
INTERFACES: dict[str, Callable[[Any], tuple[Any, dict[str, Any], str]]] = {
    "chat": lambda schema: (
        parse_chat, {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}},
        "response_format.json_schema.schema",
    ),
    "guided": lambda schema: (parse_chat, {"guided_json": schema}, "guided_json"),
    "tools": lambda schema: (
        parse_chat, {"tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}]},
        "tools[0].function.parameters",
    ),
    "messages": lambda schema: (
        parse_messages, {"max_tokens": 9, "tools": [{"name": "f", "input_schema": schema}]}, "tools[0].input_schema",
    ),
    "responses": lambda schema: (
        parse_responses, {"tools": [{"type": "function", "name": "f", "parameters": schema}]}, "tools[0].parameters",
    ),
    "ollama": lambda schema: (ollama.parse_ollama, {"format": schema}, "format"),
}  # fmt: skip


@pytest.mark.parametrize("interface", INTERFACES)
def test_hostile_reference_is_refused_with_its_place(interface: str):
    for reference in HOSTILE:
        schema = {"anyOf": [{"type": "integer"}, {"$ref": reference}], "required": ["a"], "minLength": 1}
        parse, fields, path = INTERFACES[interface](schema)
        body = {"model": "m", "input" if parse is parse_responses else "messages": HI, **fields}
        with pytest.raises(BadRequest, match="leads to no part of the schema") as caught:
            parse(Fields(body))
        assert caught.value.param == f"{path}#/anyOf/1/$ref"


def test_reference_is_followed_by_the_rules_of_json_pointers():
    schema = {"$defs": {"a/b": 1, "c%d": 2, "e~f": 3, "": 4, "g": [5, {"0": 6}], "h i": 7}}
    pointers = {"a~1b": 1, "c%25d": 2, "e~0f": 3, "": 4, "g/0": 5, "g/1/0": 6, "h%20i": 7, "g/-": None, "a/b": None}
    assert {pointer: target_of(f"#/$defs/{pointer}", schema) for pointer in pointers} == pointers
    assert target_of("#", schema) is schema
    assert [target_of(other, schema) for other in ("", "$defs", "https://a", "#a", None, 3)] == [None] * 6


def test_places_lead_to_their_schemas():
    schema = {"properties": {"a/b": {"anyOf": [TEXT, {"items": {"$ref": "#/$defs/~0"}}]}}, "$defs": {"~": {"not": {}}}}
    for place, node in subschemas(schema):
        assert at_pointer(place.pointer, schema) is node
    assert [node.place.pointer for node in used_schemas(schema)][-2:] == ["/$defs/~0", "/$defs/~0/not"]
    assert Place(Place(ROOT, "/a"), "/b").pointer == "/a/b"


# A value of `dependencies` (draft 7), and the place that is refused.
DEPENDENCIES = {
    "names": ({"a": ["b"]}, "/dependencies"),
    "a schema": ({"a": TEXT, "c": ["d"]}, "/dependencies"),
    "a malformed schema": ({"a": {"minLength": -1}, "c": ["d"]}, "/dependencies/a/minLength"),
    "a reference to nothing": ({"a": {"$ref": "#/b"}}, "/dependencies/a/$ref"),
}


@pytest.mark.parametrize("case", DEPENDENCIES.values(), ids=DEPENDENCIES)
def test_dependencies_are_lists_of_names_or_schemas(case: Any):
    dependencies, place = case
    with pytest.raises(BadRequest) as caught:
        constraint_of(**field_of_format({"type": "object", "dependencies": dependencies}))
    assert str(caught.value.param).endswith(f"#{place}")


# A malformed schema outside of the known keywords, to which a reference leads, and its place.
MALFORMED = {
    "in a default": ({"$ref": "#/default", "default": {"properties": 5}}, "/default/properties"),
    "inside another one": (
        {"items": {"$ref": "#/a/b"}, "a": {"b": {"items": {"$ref": "#/a/c"}}, "c": {"anyOf": [{"type": "x"}]}}},
        "/a/c/anyOf/0/type",
    ),
    "no schema": ({"$ref": "#/a", "a": {"items": 5}}, "/a/items"),
}


@pytest.mark.parametrize("case", MALFORMED.values(), ids=MALFORMED)
def test_target_of_a_reference_is_checked_everywhere(case: Any):
    schema, place = case
    with pytest.raises(BadRequest) as caught:
        field_of_format(schema)
    assert str(caught.value.param).endswith(f"#{place}")


def test_null_keywords_are_absent_also_in_targets_of_references():
    schema = {"$ref": "#/a/b", "a": {"b": {"required": None, "properties": {"c": None, "d": {"type": None}}}}}
    assert checked(schema) == {"$ref": "#/a/b", "a": {"b": {"properties": {"d": {}}}}}
    assert schema["a"]["b"]["required"] is None  # The request stays as it is.


def test_all_parts_of_a_tool_that_are_not_enforced_are_reported():
    properties = {
        "a": {"type": "array", "uniqueItems": True}, "b": {"not": {}, "if": {}}, "c": {"type": "string"},
        "d": {"oneOf": [{"type": "number"}, {"type": "integer"}]}, "e": {**TEXT, "pattern": "(?=a)"},
        "f": {"properties": {"g": {"not": {}}}, "maxProperties": 0}, "h": {"type": "object", "maxProperties": 2},
    }  # fmt: skip
    schema, refusals = loosened(prepared(checked({"type": "object", "properties": properties})))
    assert sorted(refused.pointer for refused in refusals) == [
        f"/properties/{part}"
        for part in ("a/uniqueItems", "b/if", "b/not", "d/oneOf", "e", "f/maxProperties", "f/properties/g/not")
    ]
    assert refusal(schema) is None


def test_a_tool_with_very_many_parts_that_are_not_enforced_has_arguments_of_any_kind():
    parts = {f"p{i}": {"type": "string", "pattern": f"(?={i})"} for i in range(50)}
    schema, refusals = loosened(prepared(checked({"type": "object", "properties": parts})))
    assert schema == {"type": "object"}
    places = {refused.pointer for refused in refusals}
    assert len(places) == len(refusals) >= 20
    assert places <= {f"/properties/{name}" for name in parts}


def field_of_format(schema: Any) -> dict[str, Any]:
    """The field of a request for this schema, as its parser checks it."""
    body = {"messages": HI, "response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}
    return {"response_format": parse_chat(Fields(body)).response_format}


def test_chain_of_references_to_itself_ends():
    schema = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
    assert len(types_at(schema)) == 7
    assert refusal(prepared(checked(schema))) is not None


# --- schemas without a finite value ---

SELF, NULL = {"$ref": "#"}, {"type": "null"}


def object_of(**properties: Any) -> dict[str, Any]:
    """A schema of objects that require these properties."""
    return {"type": "object", "properties": properties, "required": list(properties)}


# An object whose values of "a" never end.
EITHER = {
    "type": "object", "properties": {"a": {"$ref": "#/properties/a", "type": "null"}, "b": {"type": "null"}},
    "additionalProperties": False,
}  # fmt: skip
# A schema, and whether it has a finite value.
FINITE = {
    "plain": ({"type": "string"}, True),
    "itself": (SELF, False),
    "optional property": ({"type": "object", "properties": {"n": SELF}}, True),
    "required property": (object_of(n=SELF), False),
    "required property of any value": (object_of(n=True), True),
    "required name without a schema": ({"type": "object", "required": ["n"]}, True),
    "one of two properties": (object_of(a=NULL, n=SELF), False),
    "name with a slash": (object_of(**{"a/~b": SELF}), False),
    "not only objects": ({"required": ["n"], "properties": {"n": SELF}}, True),
    "choice": (object_of(n={"anyOf": [SELF, NULL]}), True),
    "choice without a way out": (object_of(n={"anyOf": [SELF, object_of(m=SELF)]}), False),
    "oneOf": (object_of(n={"oneOf": [SELF, NULL]}), True),
    "oneOf without a way out": (object_of(n={"oneOf": [SELF]}), False),
    "all parts": ({"allOf": [NULL, SELF]}, False),
    "all parts are finite": ({"allOf": [NULL, {"title": "a"}]}, True),
    "a property that is needed": ({"type": "object", "additionalProperties": SELF, "minProperties": 1}, False),
    "a property that is not needed": ({"type": "object", "additionalProperties": SELF}, True),
    "a required name among others": ({"type": "object", "additionalProperties": SELF, "required": ["a"]}, False),
    "one of two names": ({**EITHER, "minProperties": 1}, True),
    "both of two names": ({**EITHER, "minProperties": 2}, False),
    "a pattern for many names": (
        {**EITHER, "minProperties": 3, "patternProperties": {"^x": {"type": "null"}}, "required": ["b"]}, True),
    "a branch without values": ({"anyOf": [False, {"type": "array", "minItems": 1, "items": SELF}]}, False),
    "a branch with all values": ({"anyOf": [True, {"type": "array", "minItems": 1, "items": SELF}]}, True),
    "items": ({"type": "array", "items": SELF}, True),
    "at least one item": ({"type": "array", "items": SELF, "minItems": 1}, False),
    "listed items": ({"type": "array", "items": [SELF], "minItems": 1}, False),
    "an optional listed item": ({"type": "array", "items": [NULL, SELF], "minItems": 1}, True),
    "items after the listed ones": (
        {"type": "array", "items": [NULL], "additionalItems": SELF, "minItems": 2}, False),
    "any items after the listed ones": ({"type": "array", "items": [NULL], "minItems": 2}, True),
    "two types": ({**object_of(a=SELF), "type": ["object", "array"], "items": SELF, "minItems": 1}, False),
    "two types, one of them finite": ({**object_of(a=SELF), "type": ["object", "array"], "items": SELF}, True),
    "a type beside a choice": ({**object_of(a=SELF), "anyOf": [{"type": "object"}, {"type": "array"}]}, False),
    "a list of one type": ({**object_of(a=SELF), "type": ["object"]}, False),
    "a simple type": ({**object_of(a=SELF), "type": ["object", "null"]}, True),
    "the first items": ({"type": "array", "prefixItems": [NULL], "items": SELF, "minItems": 1}, True),
    "the first items and more": ({"type": "array", "prefixItems": [NULL], "items": SELF, "minItems": 2}, False),
    "a needed first item": ({"type": "array", "prefixItems": [SELF, NULL], "minItems": 1.0}, False),
    "an optional first item": ({"type": "array", "prefixItems": [SELF], "minItems": 0}, True),
    "two definitions": ({"$ref": "#/$defs/a", "$defs": {
        "a": object_of(b={"$ref": "#/$defs/b"}), "b": object_of(a={"$ref": "#/$defs/a"})
    }}, False),
    "definition that ends": ({"$ref": "#/$defs/a", "$defs": {
        "a": object_of(b={"$ref": "#/$defs/b"}, c={"$ref": "#/$defs/b"}), "b": NULL
    }}, True),
}  # fmt: skip


@pytest.mark.parametrize("case", FINITE.values(), ids=FINITE)
def test_schema_without_a_finite_value_is_found(case: Any):
    schema, is_finite = case
    assert has_finite_value(used_schemas(json.loads(json.dumps(schema)))) == is_finite


# Schemas that no value matches. The words of the refusal of each alone are those of llguidance.
EMPTY = (
    {"enum": []}, {"const": 1, "enum": [2]}, {"type": "string", "enum": [1]},
    {"type": "integer", "minimum": 5, "maximum": 2}, {"type": "string", "minLength": 3, "maxLength": 2},
    {"type": "string", "pattern": r"[^\s\S]"}, {"type": "array", "minItems": 3, "maxItems": 2},
    {"type": "array", "minItems": 2, "maxItems": 1, "items": SELF},
    {"type": "object", "required": ["a"], "maxProperties": 0}, {"allOf": [TEXT, {"type": "integer"}]},
    {"$ref": "#/$defs/none"},
)  # fmt: skip


@pytest.mark.parametrize("empty", EMPTY, ids=json.dumps)
@pytest.mark.parametrize("keyword", ["anyOf", "oneOf"])
def test_branch_without_values_is_no_way_out_of_a_recursion(empty: Any, keyword: str):
    recursive = {"type": "array", "items": SELF, "minItems": 1}

    def refused(*branches: Any) -> Any:
        schema = {keyword: branches, "$defs": {"none": {"enum": []}}}
        return refusal(prepared(checked(json.loads(json.dumps(schema)))))

    assert refused(empty, recursive) is not None
    assert refused(NULL, recursive) is None


# --- patterns ---


@pytest.mark.parametrize(
    ("pattern", "right", "wrong"),
    [
        (r"^a\\$", ["a\\"], ["a\\$", "a"]),
        (r"^a\$", ["a$"], ["a", "a\\"]),
        (r"a\\\$", ["a\\$"], ["a\\"]),
        (r"a\\\\$", ["a\\\\"], ["a\\\\$"]),
        (r"\^a$", ["^a"], ["a"]),
        ("[A-Z]{2}\\d{3}", ["AB123"], ["AB\u0661\u0662\u0663", "AB12\u096a"]),
        (r"\w+", ["aZ_9"], ["\u00e9", "\u4e2d"]),
        (r"\s", [" ", "\t", "\n"], ["\u00a0", "\u2003", "a"]),
        (r"\D\W\S", ["\u0661\u00e9\u00a0"], ["1\u00e9\u00a0", "aa\u00a0", "a- "]),
        (r"[\d.]+", ["1.2"], ["\u0661"]),
        (r"[^\w]", ["\u00e9", "-"], ["a", "_"]),
        (r"[^\D]", ["5"], ["\u0661", "a"]),
        (r"[\W5]", ["5", "\u00e9"], ["a"]),
        ("[a&&b]", ["a", "&", "b"], ["c"]),
        ("[~~]", ["~"], ["a"]),
        ("[[a]", ["[", "a"], ["]"]),
        ("[]a]", ["]", "a"], ["["]),
        ("[+--]", ["+", ",", "-"], ["."]),
        (r"[\w-.]", ["a", "-", "."], ["+"]),
        ("[^&&a]", ["b"], ["a", "&"]),
        (r"[\-a-c^]", ["-", "b", "^"], ["d", "\\"]),
        (r"[\]\[&-]", ["]", "[", "&", "-"], ["\\"]),
        (r"\\d", [r"\d"], ["1", "\\1"]),
        (r"\\\d", [r"\1"], ["\\\\d"]),
        ("a/b", ["a/b"], ["ab"]),
        (r"a\/b", ["a/b"], ["ab"]),
        ("a\nb", ["a\nb"], ["ab"]),
    ],
)
def test_regex_is_read_by_its_characters(pattern: str, right: list[str], wrong: list[str]):
    check_fits(constraint_of(**formatted("regex", pattern)), right, wrong)
    if re.search(r"\\[sS]", pattern):  # In a schema, these include the white space of Unicode.
        return
    schema = {**TEXT, "pattern": f"^(?:{without_anchors(pattern)})$"}
    texts = ([json.dumps(text, ensure_ascii=False) for text in listed] for listed in (right, wrong))
    check_fits(constraint_of(**formatted("json_schema", schema)), *texts)


@pytest.mark.parametrize("dialect", ["hermes", "glm"])  # Arguments as JSON, and as bare text between tags.
def test_classes_of_patterns_are_those_of_ascii(dialect: str):
    parameters = {"type": "object", "properties": {"a": {**TEXT, "pattern": r"^\d\w\\$"}}, "required": ["a"]}
    tools = ({"function": {"name": "f", "parameters": parameters}},)
    constraint = constraint_of("", dialect=DIALECTS[dialect], tools=tools, tool_choice="required")
    texts = ["1a\\", "\u0661a\\", "1\u00e9\\", "1a\\$"]
    if dialect == "glm":
        calls = [f"<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>{text}</arg_value>\n</tool_call>" for text in texts]
    else:
        arguments = [json.dumps({"a": text}, ensure_ascii=False) for text in texts]
        calls = [f'<tool_call>\n{{"name": "f", "arguments": {text}}}\n</tool_call>' for text in arguments]
    check_fits(constraint, calls[:1], calls[1:])


def test_pattern_is_unchanged_where_nothing_is_to_be_done():
    for pattern in ("", "a", r"\\", r"[\]^$]", "a\\", r"\p{L}+", "^", "$"):
        assert re.sub("^\\^|\\$$", "", pattern) == without_anchors(pattern)
        assert in_json_schema(pattern) == between_slashes(pattern) == pattern
        assert in_grammar(pattern) == without_anchors(pattern)


# --- hostile schemas ---


@pytest.mark.parametrize("dialect", ["glm", "gemma-4"])
@pytest.mark.parametrize("n", [200, 201, 1500])
def test_tool_with_many_arguments_is_constrained(dialect: str, n: int):
    """llguidance would end the process if the rule of each argument referred to that of the next one."""
    parameters = {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(n)}}
    tools = ({"function": {"name": "f", "parameters": parameters}},)
    assert constraint_of("", dialect=DIALECTS[dialect], tools=tools, tool_choice="required")


@pytest.mark.parametrize(
    "fields",
    [
        formatted("regex", "a?" * 20_000),
        formatted("json_schema", {**TEXT, "pattern": "a?" * 20_000}),
        formatted("json_schema", {"type": "object", "patternProperties": {"a?" * 20_000: {}}}),
    ],
    ids=["regex", "pattern", "pattern of names"],
)
def test_long_pattern_is_refused_with_both_numbers(fields: Any):
    with pytest.raises(BadRequest, match="40000 characters, the limit is 32768"):
        constraint_of(**fields)


def texts(n: int, start: str = "a") -> list[Any]:
    return [{**TEXT, "pattern": f"{start}{i}"} for i in range(n)]


# Schemas in which n patterns apply to one text.
COMBINED: dict[str, Callable[[int], Any]] = {
    "allOf": lambda n: {"allOf": texts(n)},
    "nested": lambda n: {"allOf": [{"allOf": texts(3, start)} for start in "abcdefghijk"[: n // 3]]},
    "properties": lambda n: {"allOf": [{"properties": {"a": text}} for text in texts(n)]},
    "items": lambda n: {"allOf": [
        *({"items": text} for text in texts(n // 2)), *({"prefixItems": [text]} for text in texts(n // 2, "b")),
    ]},
    "properties of any name": lambda n: {
        "allOf": [
            *({"properties": {"a": text}} for text in texts(n // 2)),
            *({"additionalProperties": text} for text in texts(n // 2, "b")),
        ]
    },
    "references": lambda n: {
        "$defs": {f"d{i}": text for i, text in enumerate(texts(n))}, "properties": {"x": {"$ref": "#/$defs/d20"}},
        "allOf": [{"properties": {"a": {"$ref": f"#/$defs/d{i}"}}} for i in range(n)],
    },
    "branches": lambda n: {"allOf": [{"anyOf": texts(2, f"b{i}")} for i in range(n)]},
}  # fmt: skip


@pytest.mark.parametrize("name", COMBINED)
def test_many_patterns_of_one_text_are_refused_before_they_are_compiled(name: str):
    """llguidance would take 18 GB for 30 of them, and end the process of the server if there are not as many."""
    with limited_time(1):
        refused = refusal(prepared(checked(COMBINED[name](30))))
    assert refused is not None
    assert (refused.keyword, refused.reason) == (
        "pattern",
        "more than 10 patterns apply to one text, which is the limit",
    )


@pytest.mark.parametrize(
    "schema",
    [
        {"anyOf": texts(30)},
        {"properties": {f"p{i}": text for i, text in enumerate(texts(30))}},
        {"allOf": [{"properties": {f"p{i}": text}} for i, text in enumerate(texts(30))]},
        {"allOf": [{**TEXT, "pattern": pattern} for pattern in ("[a-z]", "[A-Z]", "[0-9]")]},
        {
            "$defs": {
                "node": {
                    "allOf": [
                        {"properties": {"name": {**TEXT, "pattern": "a"}}},
                        {"properties": {"inner": {"type": "array", "items": {"$ref": "#/$defs/node"}}}},
                    ]
                }
            },
            "$ref": "#/$defs/node",
        },
    ],
    ids=["branches", "properties", "properties in allOf", "few", "recursive"],
)
def test_patterns_of_different_texts_are_enforced(schema: Any):
    assert refusal(prepared(checked(schema))) is None


def test_definitions_are_copied_for_few_arguments():
    """Between tags, an argument that refers to a definition has a copy of all definitions."""
    definitions = {f"d{i}": {"anyOf": [{"type": "integer"}, {"enum": [str(i)]}]} for i in range(2000)}
    properties = {f"p{i}": {"type": "array", "items": {"$ref": f"#/$defs/d{i}"}} for i in range(190)}
    tools = ({"function": {"name": "f", "parameters": {"properties": properties, "$defs": definitions}}},)
    constraint = constraint_of("", dialect=DIALECTS["glm"], tools=tools, tool_choice="required")
    assert len(constraint.grammar) < 10 * len(json.dumps(tools))


LARGE: dict[str, Callable[[int], Any]] = {
    "a long name": lambda n: {"properties": {"x" * (100 * n): {"properties": {f"p{i}": {} for i in range(n)}}}},
    "a long name with an error": lambda n: {
        "properties": {"x" * (100 * n): {"properties": {f"p{i}": {} for i in range(n // 2)}, "not": {}}}
    },
    "long references": lambda n: {
        "$defs": {"d" * n: TEXT}, "properties": {f"p{i}": {"$ref": "#/$defs/" + "d" * n} for i in range(n // 40)}
    },
    "a chain that ends late": lambda n: {
        "$ref": "#/$defs/d0",
        "$defs": {
            **{f"d{i}": {"type": "array", "items": {"$ref": f"#/$defs/d{i + 1}"}, "minItems": 1} for i in range(290)},
            "d290": {"anyOf": [{"type": "array", "items": {"title": str(i)}, "minItems": 1} for i in range(n)]},
        },
    },
    "patterns with control characters": lambda n: {
        "additionalProperties": {"anyOf": [{**TEXT, "pattern": f"^\\x1f{i}"} for i in range(n // 16)]},
        "properties": {"a": {}},
    },
    "many enums": lambda n: {"properties": {f"p{i}": {"enum": [i, str(i)]} for i in range(n // 4)}},
    "null keywords": lambda n: {"properties": {f"p{i}": {"required": None, "type": "string"} for i in range(n // 4)}},
    "deep": lambda n: json.loads('{"items": ' * 150 + json.dumps({"enum": list(range(n))}) + "}" * 150),
}  # fmt: skip


@pytest.mark.parametrize("name", LARGE)
def test_time_is_linear_in_the_size_of_a_schema(name: str):
    def seconds(n: int) -> float:
        schema, began_at = LARGE[name](n), time.thread_time()
        with contextlib.suppress(ValueError):
            loosened(prepared(checked(schema)))
        return time.thread_time() - began_at

    assert_linear(seconds, 400, 10, 0.01)
