"""Random schemas: texts that their grammars generate are valid, and invalid texts are rejected."""

from __future__ import annotations

import json
import random
import re
from typing import Any

from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from localchat.serving.grammar import SchemaError, regex_to_grammar, schema_to_grammar

from .gbnf import generate, matches
from .grammar_validator import has_double_names, is_valid, load

NAMES = ["a", "ab", "b", 'q"', "é", "x-1"]
PATTERNS = ["^a", "b$", "^[ab]+$", r"^\d{1,3}$", "^(x|yz)*$", "[^a]", r"^\w+-\w*$"]
SCALARS: list[Any] = [None, True, False, 0, 1, -3, 2.5, "", "a", 'b"\\', "é"]
N_DOCUMENTS = 3

# Examples are not shrunk, since they are small and shrinking takes long.
QUICK = settings(
    max_examples=80,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def some(**keywords: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """A strategy for schemas with any subset of the keywords."""
    return st.fixed_dictionaries({}, optional=keywords)


def typed(name: str, **keywords: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return some(**keywords).map(lambda chosen: {"type": name, **chosen})


SMALL = st.integers(0, 4)
NUMBER = st.one_of(st.integers(-120, 120), st.sampled_from([0.5, -0.25, 1.75, 10.01, 99.9, -3.125]))
BOUNDS = {"minimum": NUMBER, "maximum": NUMBER, "exclusiveMinimum": NUMBER, "exclusiveMaximum": NUMBER}
STEPS = st.sampled_from([1, 2, 3, 5, 10, 0.1, 0.01, 0.5])
LEAVES = st.one_of(
    st.booleans(),
    st.just({}),
    st.sampled_from([{"type": "null"}, {"type": "boolean"}, {"type": ["integer", "null"]}]),
    typed("integer", **BOUNDS, multipleOf=STEPS),
    typed("number", **BOUNDS, multipleOf=STEPS),
    typed("string", minLength=SMALL, maxLength=st.integers(0, 130), pattern=st.sampled_from(PATTERNS)),
    typed("string", format=st.sampled_from(["date", "time", "ipv4", "uuid", "email", "other"])),
    st.lists(st.sampled_from(SCALARS), min_size=1, max_size=4).map(lambda values: {"enum": values}),
    st.sampled_from(SCALARS).map(lambda value: {"const": value}),
    st.just({"$ref": "#/$defs/leaf"}),
    st.just({"$ref": "#"}),
)


def compound(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    few = st.lists(inner, min_size=1, max_size=3)
    named = st.dictionaries(st.sampled_from(NAMES), inner, max_size=3)
    names = st.lists(st.sampled_from(NAMES), max_size=2, unique=True)
    return st.one_of(
        typed(
            "object",
            properties=named,
            required=names,
            additionalProperties=inner,
            minProperties=st.integers(0, 2),
            maxProperties=SMALL,
        ),
        typed(
            "object", patternProperties=st.dictionaries(st.sampled_from(PATTERNS), inner, max_size=2), properties=named
        ),
        typed("object", properties=named, dependentRequired=st.dictionaries(st.sampled_from(NAMES), names, max_size=1)),
        typed("object", additionalProperties=inner, propertyNames=st.just({"pattern": "^[ab]+$"})),
        typed("array", items=inner, minItems=SMALL, maxItems=SMALL),
        typed("array", prefixItems=few, items=inner, minItems=SMALL),
        typed("array", items=inner, contains=inner),
        few.map(lambda parts: {"anyOf": parts}),
        few.map(lambda parts: {"oneOf": parts}),
        few.map(lambda parts: {"allOf": parts}),
        st.tuples(inner, inner).map(lambda parts: {"anyOf": [parts[0]], "allOf": [parts[1]]}),
        st.tuples(few, named).map(lambda parts: {"oneOf": parts[0], "properties": parts[1]}),
    )


def with_leaf(parts: tuple[Any, Any]) -> Any:
    schema, leaf = parts
    return {**schema, "$defs": {"leaf": leaf}} if isinstance(schema, dict) else schema


NO_REFERENCES = LEAVES.filter(lambda leaf: "$ref" not in json.dumps(leaf))
SCHEMAS = st.tuples(st.recursive(LEAVES, compound, max_leaves=6), NO_REFERENCES).map(with_leaf)


def changed(value: Any, random_: random.Random) -> Any:
    """The value with one random change."""
    if isinstance(value, list) and value and random_.random() < 0.7:
        n = random_.randrange(len(value))
        return [*value[:n], *([changed(value[n], random_)] if random_.random() < 0.7 else []), *value[n + 1 :]]
    if isinstance(value, dict) and value and random_.random() < 0.7:
        name = random_.choice(list(value))
        other = {key: item for key, item in value.items() if key != name}
        return other if random_.random() < 0.3 else {**other, name: changed(value[name], random_)}
    if isinstance(value, (int, float)) and not isinstance(value, bool) and random_.random() < 0.7:
        return value + random_.choice([-1, 1, 0.5, 100]) if abs(value) < 1e9 else 0
    if isinstance(value, str) and random_.random() < 0.7:
        return value + random_.choice(["", "a", "1"]) if random_.random() < 0.5 else value[1:]
    return random_.choice([*SCALARS, [], {}, {"a": 1}])


def text_of(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@QUICK
@given(SCHEMAS, st.integers(0, 2**32))
def test_generated_texts_are_valid(schema: Any, seed: int):
    grammar, random_ = grammar_or_skip(schema), random.Random(seed)
    for _ in range(N_DOCUMENTS):
        text = generate(grammar, random_)
        if text is not None:
            # A grammar cannot prevent equal names that the schema does not list.
            assert is_valid(text, schema) or has_double_names(text), (text, grammar)
            check_neighbours(schema, grammar, text, random_)


def grammar_or_skip(schema: Any) -> str:
    try:
        return schema_to_grammar(schema)
    except SchemaError:
        assume(False)
        raise


def check_neighbours(schema: Any, grammar: str, text: str, random_: random.Random) -> None:
    if has_double_names(text):
        return
    for _ in range(5):
        other = text_of(changed(load(text), random_))
        assert is_valid(other, schema) or not matches(grammar, other), (other, grammar)


@QUICK
@given(st.from_regex(r"\A(\(?[ab]([*+?]|\{[0-2],3\})?\|?[ab.]\)?|\[^a\]\*?|[ab]{1,3}){1,3}\Z"), st.integers(0, 2**32))
def test_patterns_match_what_python_matches(pattern: str, seed: int):
    try:
        expected = re.compile(pattern)
        grammar = regex_to_grammar(pattern)
    except (re.error, ValueError):
        assume(False)
        raise
    random_ = random.Random(seed)
    for _ in range(10):
        text = "".join(random_.choices("abc", k=random_.randrange(6)))
        assert matches(grammar, text) == bool(expected.fullmatch(text)), (pattern, text, grammar)
