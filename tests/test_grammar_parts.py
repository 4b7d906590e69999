"""Other grammars: regular expressions, choices, JSON objects, indentation and tool calls; bounds of numbers; sizes."""

from __future__ import annotations

import itertools
import json
import math
import random
import time
from decimal import Decimal, localcontext
from typing import Any

import pytest

from localchat.serving.chat.dialects.call_layout import CallLayout
from localchat.serving.grammar import (
    GrammarError,
    Literal,
    Rules,
    SchemaError,
    ToolSchema,
    calls_rule,
    chars,
    choice_to_grammar,
    json_object_grammar,
    regex_to_grammar,
    schema_rule,
    schema_to_grammar,
    seq,
)
from localchat.serving.grammar.any_order import MAX_ANY_ORDER

from .gbnf import generate, matches
from .grammar_cases import CASES
from .grammar_validator import is_valid, load

REGEXES = {
    "whole text": ("ab", ["ab"], ["xab", "abx", ""]),
    "anchors change nothing": ("^ab$", ["ab"], ["aab"]),
    "version": (r"v\d+\.\d+(-(alpha|beta))?", ["v1.0", "v10.22-beta"], ["1.0", "v1", "v1.0-"]),
    "quotes and line breaks": ('"[^"]*"\n', ['"a b"\n', '"\n"\n'], ['"a"', '"a""\n']),
    "dot matches no line break": ("a.b", ["axb", "a\tb", "aéb"], ["a\nb", "ab"]),
    "empty text": ("(a|)", ["a", ""], ["b"]),
    "long": ("[ab]{150,400}", ["a" * 150, "b" * 400], ["a" * 149, "a" * 401]),
    "characters that GBNF escapes": (r"[\]\\^-]+\"#\|", ['\\]^-"#|'], ["a"]),
}


@pytest.mark.parametrize(("pattern", "good", "bad"), REGEXES.values(), ids=REGEXES.keys())
def test_regex(pattern: str, good: list[str], bad: list[str]):
    grammar = regex_to_grammar(pattern)
    assert [matches(grammar, text) for text in good + bad] == [True] * len(good) + [False] * len(bad)


def test_object_with_many_names_is_split_into_rules():
    names = [f"p{n}" for n in range(450)]
    schema = {"type": "object", "properties": {name: {"type": "integer"} for name in names}, "required": names}
    grammar = schema_to_grammar(schema)
    for left_out in ("", names[0], names[100], names[-1]):
        text = json.dumps({name: 1 for name in names if name != left_out}, separators=(",", ":"))
        assert matches(grammar, text) == (not left_out)
    assert max(map(len, grammar.splitlines())) < len(grammar) / 3


def test_choice_is_one_of_the_texts():
    choices = ["yes", "no", "yes, but", 'a "b"\n\\', "ja 😀"]
    grammar = choice_to_grammar(choices)
    assert all(matches(grammar, choice) for choice in choices)
    assert not any(matches(grammar, text) for text in ("", "ye", "yesno", "yes, but ", "Yes"))


def test_json_object_is_any_object():
    grammar = json_object_grammar()
    assert matches(grammar, '{"a": [1, {"b": null}], "c": "d"}')
    assert not any(matches(grammar, text) for text in ("[]", "1", '"a"', "{", '{"a":1} ', " {}"))


def test_root_has_the_requested_name():
    assert Rules("answer").render(Literal("a")) == 'answer ::= "a"\n'
    with pytest.raises(ValueError, match="name"):
        Rules("no name")


def test_same_schema_gives_same_text():
    schema = CASES["reference: pydantic recursive model"].schema
    assert schema_to_grammar(schema) == schema_to_grammar(json.loads(json.dumps(schema)))


SPACED = {
    "type": "object",
    "properties": {"a": {"type": "array", "items": {"type": "integer"}}, "b": {"const": {"c": [1]}}, "d": {}},
    "required": ["a"],
}
VALUE = {"a": [1, 2], "b": {"c": [1]}, "d": [{"e": {}}, []]}


@pytest.mark.parametrize("indent", [None, 1, 2, 4])
def test_indented_documents_only_with_indent(indent: int | None):
    text = json.dumps(VALUE, indent=indent)
    assert matches(schema_to_grammar(SPACED), text) == (indent is None)
    assert matches(schema_to_grammar(SPACED, indent=12), text)


def test_indentation_is_bounded():
    grammar = schema_to_grammar(SPACED, indent=4)
    assert matches(grammar, '{\n    "a": []\n}')
    assert not any(matches(grammar, text) for text in ('{\n     "a": []\n}', '{\n\n"a": []\n}', '{"a": [\n\n]}'))


def test_indented_documents_validate():
    grammar, random_ = schema_to_grammar(SPACED, indent=3), random.Random(3)
    texts = [text for _ in range(20) if (text := generate(grammar, random_, 150))]
    assert texts
    assert all(is_valid(text, SPACED) for text in texts)


# Tool calls

WEATHER = ToolSchema(
    "weather",
    {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["city"],
    },
)
NOW = ToolSchema("now")
SEARCH = ToolSchema("search_web", {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]})
TOOLS = [WEATHER, NOW, SEARCH]
PLAIN = CallLayout(separator="\n")
HERMES = CallLayout(begin="<tool_call>\n", separator="\n</tool_call>\n<tool_call>\n", end="\n</tool_call>")
MISTRAL = CallLayout(begin="[TOOL_CALLS][", separator=", ", end="]")
FUNCTION = CallLayout(
    before_name="<function=", before_arguments=">", after_call="</function>", separator="", json_name=False
)

CALLS: dict[str, tuple[CallLayout, list[str], list[str]]] = {
    "hermes": (
        HERMES,
        [
            '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris", "days": 3}}\n</tool_call>',
            '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>\n<tool_call>\n{"name": "search_web", '
            '"arguments": {"q":"x"}}\n</tool_call>',
        ],
        [
            "",
            '<tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call>',
            '<tool_call>\n{"name": "weather", "arguments": {"city": "x", "days": 10}}\n</tool_call>',
            '<tool_call>\n{"name": "other", "arguments": {}}\n</tool_call>',
            '<tool_call>\n{"name": "now", "arguments": {}}',
            '{"name": "now", "arguments": {}}',
        ],
    ),
    "mistral": (
        MISTRAL,
        ['[TOOL_CALLS][{"name": "now", "arguments": {}}, {"name": "now", "arguments": {}}]'],
        ["[TOOL_CALLS][]", '[TOOL_CALLS][{"name": "now", "arguments": {"a": 1}}]'],
    ),
    "function": (
        FUNCTION,
        ["<function=now>{}</function>", '<function=search_web>{"q": "é"}</function><function=now>{}</function>'],
        ["<function=now></function>", "<function=no>{}</function>"],
    ),
}


def calls_to_grammar(tools: list[ToolSchema], layout: CallLayout = PLAIN, max_calls: int | None = None) -> str:
    rules = Rules()
    return rules.render(calls_rule(rules, tools, layout, max_calls=max_calls))


@pytest.mark.parametrize(("layout", "good", "bad"), CALLS.values(), ids=CALLS.keys())
def test_calls(layout: CallLayout, good: list[str], bad: list[str]):
    grammar = calls_to_grammar(TOOLS, layout)
    assert [matches(grammar, text) for text in good + bad] == [True] * len(good) + [False] * len(bad)


@pytest.mark.parametrize(("n_calls", "max_calls", "fits"), [(1, 1, True), (2, 1, False), (3, 3, True), (4, 3, False)])
def test_number_of_calls_is_limited(n_calls: int, max_calls: int, fits: bool):
    text = "\n".join(['{"name": "now", "arguments": {}}'] * n_calls)
    assert matches(calls_to_grammar([NOW], max_calls=max_calls), text) == fits


@pytest.mark.parametrize("notation", ["json", "gemma", "python"])
def test_tools_share_their_rules(notation: str):
    """Requests with a hundred tools are common, so rules that their arguments share occur once in the grammar."""
    properties = {"a": {"type": "string"}, "at": {"type": "string", "format": "date-time"}, "any": {}}
    layout = CallLayout(end="</call>", end_marker="</call>", notation=notation)
    few, many = (
        calls_to_grammar(
            [ToolSchema(f"f{n}", {"type": "object", "properties": properties}) for n in range(n_tools)], layout
        )
        for n_tools in (1, 21)
    )
    assert len(many) - len(few) < 20 * len('| "{\\"name\\": \\"f20\\", \\"arguments\\": " pairs ')


def test_names_are_written_as_json():
    grammar = calls_to_grammar([ToolSchema('a"b\\c')])
    assert matches(grammar, '{"name": "a\\"b\\\\c", "arguments": {}}')


def test_generated_calls_validate():
    grammar, random_ = calls_to_grammar(TOOLS, max_calls=1), random.Random(1)
    schemas = {tool.name: tool.parameters or {"maxProperties": 0} for tool in TOOLS}
    calls = [load(text) for _ in range(30) if (text := generate(grammar, random_, 200))]
    assert {call["name"] for call in calls} == set(schemas)
    assert all(is_valid(json.dumps(call["arguments"]), schemas[call["name"]]) for call in calls)


@pytest.mark.parametrize("required", [(), ("a",), ("a", "c")], ids=len)
@pytest.mark.parametrize("is_open", [False, True], ids=["closed", "open"])
def test_arguments_come_in_any_order(required: tuple[str, ...], is_open: bool):
    """Each name occurs at most once, every required name occurs, and undeclared names follow the declared ones."""
    parameters = {"properties": {name: {"type": "integer"} for name in "abc"}, "required": list(required)}
    grammar = calls_to_grammar([ToolSchema("t", {**parameters, "additionalProperties": is_open})])
    for names in (names for n in range(5) for names in itertools.product("abcx", repeat=n)):
        known = "".join(names).rstrip("x")
        fits = len(set(known)) == len(known) and "x" not in known and set(required) <= set(known)
        fits = fits and (is_open or "x" not in names)
        text = ", ".join(f'"{name}": 1' for name in names)
        assert matches(grammar, f'{{"name": "t", "arguments": {{{text}}}}}') == fits, names


@pytest.mark.parametrize("n_names", [MAX_ANY_ORDER, MAX_ANY_ORDER + 1])
def test_only_few_arguments_come_in_any_order(n_names: int):
    """The size of a grammar for every order doubles with each name."""
    names = [f"n{i}" for i in range(n_names)]
    grammar = calls_to_grammar([ToolSchema("t", {"properties": {name: {"type": "integer"} for name in names}})])
    for order, fits in ((names, True), (names[::-1], n_names <= MAX_ANY_ORDER)):
        text = ", ".join(f'"{name}": 1' for name in order)
        assert matches(grammar, f'{{"name": "t", "arguments": {{{text}}}}}') == fits


def test_error_names_the_bad_tool_schema():
    with pytest.raises(SchemaError) as raised:
        calls_to_grammar([NOW, ToolSchema("bad", {"properties": {"a": {"type": "x"}}})])
    assert raised.value.path == "bad#/properties/a/type"


@pytest.mark.parametrize("arguments", [([], None), ([NOW], 0)], ids=["no tools", "no calls"])
def test_grammar_without_calls_is_refused(arguments: tuple[list[ToolSchema], int | None]):
    with pytest.raises(ValueError, match="at least"):
        calls_to_grammar(arguments[0], max_calls=arguments[1])


def test_parts_are_composed_to_a_larger_grammar():
    rules = Rules()
    reasoning = rules.repeat(chars("az", " "), 0, 200)
    answer = schema_rule(rules, {"type": "object", "properties": {"a": {"type": "string"}}})
    calls = calls_rule(rules, TOOLS, HERMES)
    grammar = rules.render(seq(Literal("<think>"), reasoning, Literal("</think>"), rules.repeat(calls, 0, 1), answer))
    assert matches(grammar, '<think>so be it</think>{"a": "b"}')
    assert matches(grammar, '<think></think><tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>{}')
    assert not matches(grammar, "<think>SO</think>{}")
    # The rules of JSON occur once, although two schemas need them.
    assert grammar.count("char ::=") == 1


def test_rules_without_an_end_are_not_rendered():
    rules = Rules()
    endless = rules.declare("endless")
    rules.define(endless, seq(Literal("a"), endless))
    assert "endless" not in rules.render(rules.repeat(endless, 0, None))
    with pytest.raises(GrammarError):
        rules.render(endless)


# Bounds of numbers, for parsers that convert numbers to doubles


def random_bound(random_: random.Random) -> float:
    size = random_.choice(
        [
            random_.randrange(100),
            random_.randrange(10**6) / 100,
            random_.random(),
            random_.random() * 10 ** random_.randrange(25),
            10 ** random_.randrange(6, 25),
            float(10 ** random_.randrange(6, 25)),
            2 ** random_.randrange(52, 70) + random_.randrange(-3, 4),
        ]
    )
    return random_.choice([-1, 1]) * size


def random_bounds(random_: random.Random) -> dict[str, float]:
    """A schema of a number with one bound or two."""
    low, high = sorted(random_bound(random_) for _ in range(2))
    lows = [{"minimum": low}, {"exclusiveMinimum": low}]
    highs = [{"maximum": high}, {"exclusiveMaximum": high}]
    both = [{**first, **last} for first in lows for last in highs]
    return random_.choice([*lows, *highs, *both])


def is_within(bounds: dict[str, float], number: float) -> bool:
    is_in_range = bounds.get("minimum", -math.inf) <= number <= bounds.get("maximum", math.inf)
    return is_in_range and bounds.get("exclusiveMinimum", -math.inf) < number < bounds.get("exclusiveMaximum", math.inf)


def texts_near(bound: float) -> list[str]:
    """The bound, the doubles next to it, and numbers between these and the bound."""
    value = Decimal(repr(bound))
    with localcontext() as context:
        context.prec = 60
        steps = [Decimal(step).scaleb(-n) for n in range(0, 18, 2) for step in (-1, 0, 1)]
        doubles = [Decimal(math.nextafter(bound, end)) for end in (-math.inf, math.inf)]
        return [f"{number:f}" for number in (*(value + step for step in steps), *doubles)]


@pytest.mark.parametrize("seed", range(60))
def test_numbers_are_within_their_bounds_as_doubles(seed: int):
    """Numbers that are far from the bounds are all allowed."""
    random_ = random.Random(seed)
    bounds = random_bounds(random_)
    grammar = schema_to_grammar({"type": "number", **bounds})
    near = [text for bound in bounds.values() for text in texts_near(bound)]
    small = [f"{random_.uniform(-1, 1) * 10 ** random_.randrange(1, 7):.{random_.randrange(3)}f}" for _ in range(20)]
    accepted = {text for text in (*near, *small) if matches(grammar, text)}
    assert [text for text in accepted if not is_within(bounds, float(text))] == []
    # The grammar does not allow "-0.0", another way to write 0.
    far = [text for text in small if float(text) and all(is_within(bounds, float(text) + by) for by in (-1, 1))]
    assert [text for text in far if text not in accepted] == []


def test_bounds_with_no_double_between_them_are_refused():
    with pytest.raises(SchemaError, match="no value"):
        schema_to_grammar({"type": "number", "exclusiveMinimum": 0.1, "exclusiveMaximum": math.nextafter(0.1, 1)})


# Sizes


def large_schema(width: int = 50) -> dict[str, Any]:
    """A schema of fifty properties of every kind, nested five levels deep, as in tools of real agents."""
    kinds: list[Any] = [
        {"type": "string", "maxLength": 5000},
        {"type": "string", "pattern": r"^[A-Z]{2,4}-\d{1,6}$"},
        {"type": "string", "format": "date-time"},
        {"type": "integer", "minimum": -1000, "maximum": 86400},
        {"type": "number", "minimum": 0, "maximum": 99.99},
        {"enum": [f"option {n}" for n in range(30)]},
        {"type": "array", "items": {"type": "string", "minLength": 1, "maxLength": 2000}, "maxItems": 500},
        {"anyOf": [{"type": "null"}, {"type": "string", "format": "uri"}]},
        {"$ref": "#/$defs/node"},
        {"type": "object", "additionalProperties": {"type": "number"}},
    ]
    node = {"type": "object", "properties": {"v": kinds[0], "next": {"$ref": "#/$defs/node"}}, "required": ["v"]}
    schema: dict[str, Any] = {"type": "string"}
    for depth in range(5):
        names = [f"property_{depth}_{n}" for n in range(width // 5)]
        properties = {name: kinds[(n + depth) % len(kinds)] for n, name in enumerate(names)}
        schema = {"type": "object", "properties": {**properties, "inner": schema}, "required": names[::3]}
    return {**schema, "$defs": {"node": node}}


def wide_schema() -> dict[str, Any]:
    properties = {f"field_number_{n}": {"type": "string", "maxLength": 100 * n} for n in range(60)}
    return {"type": "object", "properties": properties, "additionalProperties": True}


SIZES = {"deep and wide": large_schema(), "250 properties": large_schema(250), "60 names excluded": wide_schema()}


@pytest.mark.parametrize("schema", SIZES.values(), ids=SIZES.keys())
def test_large_schemas_are_fast(schema: dict[str, Any]):
    schema_to_grammar(schema)  # Patterns and formats are parsed once per process.
    start = time.thread_time()
    grammar = schema_to_grammar(schema)
    seconds = time.thread_time() - start
    # An idle machine needs about a tenth of this time.
    assert seconds < 0.5
    assert len(grammar) < 300_000
    text = generate(grammar, random.Random(5), 600)
    assert text is None or is_valid(text, schema)


def test_engine_stays_fast_in_long_texts():
    """The number of parse stacks stays small, so the time per character does not grow."""
    grammar = schema_to_grammar({"type": "array", "items": {"type": "string", "minLength": 300, "maxLength": 5000}})
    text = json.dumps(["x" * 4000] * 3)
    start = time.thread_time()
    assert matches(grammar, text)
    assert (time.thread_time() - start) / len(text) < 0.000_2
