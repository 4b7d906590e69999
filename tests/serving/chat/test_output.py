"""The parser of generated text: reasoning, content and calls, with the text cut at any place."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.dialect_outputs import Reasoning, events_of, parse, parse_every_way
from tests.support.growth import assert_linear


def tool_call(text):
    return f"<tool_call>\n{text}\n</tool_call>"


R = Reasoning
F, EMPTY = ("f", '{"a": 1}'), ("f", "{}")
IN_STRINGS = r'{"a": "x } \" ] \\", "b": "</tool_call>"}'
CALL, CALL_F = '<tool_call>{"name": "f", "arguments": {}}', '<tool_call>{"name": "f", '
# The case, the text, and its events.
REASONING = [
    ("empty", "", []),
    ("content keeps its white space", " Hi <there> \n", [" Hi <there> \n"]),
    ("white space at the ends of reasoning", "<think>\nhm \n</think>\n\nHi", [R("hm"), "Hi"]),
    ("white space before reasoning", "\n<think>hm</think>Hi", [R("hm"), "Hi"]),
    ("empty reasoning is no event", "<think>\n\n</think>\n\nHi", ["Hi"]),
    ("reasoning that is cut", "<think>a\n\nb", [R("a\n\nb")]),
    ("end tag that is cut", "<think>a </thi", [R("a </thi")]),
    ("opened and cut", "<think>", []),
    ("start tag that is cut", "<thin", ["<thin"]),
    ("another tag", "<thing>", ["<thing>"]),
    ("tags within content", "Hi <think>no</think>", ["Hi <think>no</think>"]),
    ("second end tag", "<think>a</think>b</think>", [R("a"), "b</think>"]),
    ("only white space after reasoning", "<think>a</think> \n ", [R("a")]),
    ("no calls in reasoning", "<think>" + tool_call("{}") + "</think>Hi", [R(tool_call("{}")), "Hi"]),
]
CALLS = [
    ("without white space", '<tool_call>{"name":"f","arguments":{}}</tool_call>', [EMPTY]),
    ("pretty-printed", tool_call('{\n "name" : "f",\n "arguments" : {\n "a": [1]\n }\n}'), [("f", '{\n "a": [1]\n }')]),
    ("arguments first", tool_call('{"arguments": {"a": 1}, "name": "f"}'), [F]),
    ("in strings", tool_call(f'{{"name": "f", "arguments": {IN_STRINGS}}}'), [("f", IN_STRINGS)]),
    ("parameters", tool_call('{"name": "f", "parameters": {"a": 1}}'), [F]),
    ("no arguments", tool_call('{"name": "f"}'), [EMPTY]),
    *(
        (f"arguments {text}", tool_call(f'{{"name": "f", "arguments": {text}}}'), [("f", made)])
        for text, made in (("null", "{}"), ("None", "{}"), ('"null"', "{}"), ("1", "1"), ("[1]", "[1]"))
    ),
    ("null before the name", tool_call('{"arguments": null, "name": "f"}'), [EMPTY]),
    (
        "a broken field after the arguments",
        tool_call('{"name": "f", "arguments": {"a": 1}, "note": *}') + "x",
        [F, '"note": *}\n</tool_call>x'],
    ),
    ("a field after the arguments that is cut", CALL[:-1] + ', "note": "x', [EMPTY]),
    (
        "words of Python",
        tool_call('{"name": "f", "arguments": {"a": True, "b": [None, NaN, -Infinity, FALSE], "None": "None"}}'),
        [("f", '{"a": true, "b": [null, null, null, false], "None": "None"}')],
    ),
    ("as a string", tool_call('{"name": "f", "arguments": "{\\"a\\": 1}"}'), [F]),
    ("as an empty string", tool_call('{"name": "f", "arguments": ""}'), [EMPTY]),
    ("own id", tool_call('{"id": "abc", "name": "f", "arguments": {}}'), [(*EMPTY, "abc")]),
    ("id too long", tool_call(f'{{"id": "{"x" * 65}", "name": "f", "arguments": {{}}}}'), [EMPTY]),
    ("further fields", tool_call('{"name": "f", "x": [1, {"y": 2}], "arguments": {}}'), [EMPTY]),
    ("second name", tool_call('{"name": "f", "name": "g"}'), [EMPTY]),
    ("second arguments", tool_call('{"name": "f", "arguments": {}, "arguments": {"a": 1}}'), [EMPTY]),
    ("an object after a call", tool_call(CALL[11:] + '{"x": 1}'), [EMPTY, '{"x": 1}\n</tool_call>']),
    ("after text", "Sure.\n\n" + tool_call('{"name": "f"}') + "\n", ["Sure.", EMPTY]),
    ("between", "<think>hm</think>\n" + tool_call('{"name": "f"}') + "\nDone. ", [R("hm"), EMPTY, "Done. "]),
    ("closing tags left out", CALL * 2, [EMPTY, EMPTY]),
    ("closing tag cut", CALL + "</tool", [EMPTY]),
    ("last bracket left out", tool_call('{"name": "f", "arguments": {"a": 1}') + "Hi", [F, "Hi"]),
    ("last bracket left out without arguments", tool_call('{"name": "f"') + "Hi", [EMPTY, "Hi"]),
    ("after text that is not a call", "<tool_call>no\n" + CALL, ["<tool_call>no", EMPTY]),
]
# Texts that are almost JSON, and the arguments made of them.
CORRECTED = [
    ("comma before a bracket", '{"a": 1, "b": 2,}', '{"a": 1, "b": 2}'),
    ("commas left out", '{"a": 1 "b": [1\n2]"c":"d""e":[]}', '{"a": 1, "b": [1,\n2],"c":"d","e":[]}'),
    ("names without quotes", '{a: 1, b_c : "x"}', '{"a": 1, "b_c": "x"}'),
    ("words without quotes", '{"a": hello, "b": [x_1, 01, 1.2.3]}', '{"a": "hello", "b": ["x_1", "01", "1.2.3"]}'),
    ("a long number", "[" + "9" * 5000 + ", 1e999]", "[" + "9" * 5000 + ", 1e999]"),
    ("numbers of Python", "[0x10, .5, +1, 1_000, 5., -.5]", "[16, 0.5, 1, 1000, 5.0, -0.5]"),
    ("control characters", '["a\nb\t"]', '["a\\nb\\t"]'),
    ("escapes that JSON does not have", '["\\d\\\'\\x41"]', '["\\\\d\\\\\'\\\\x41"]'),
    ("code that is no code", '["\\u00"]', '["\\\\u00"]'),
]
# The start of the call has been emitted, so the raw text is emitted as its arguments.
BROKEN = [
    ("wrong bracket", tool_call('{"name": "f", "arguments": {"a": 1]}') + "x", [("f", '{"a": 1]}'), "x"]),
    ("only the tag is closed", tool_call('{"name": "f", "arguments": {"a": 1') + "x", [("f", '{"a": 1\n'), "x"]),
    ("another field", tool_call('{"name": "f", "argument": {"a": 1') + "x", [("f", '"argument": {"a": 1\n'), "x"]),
    ("invalid name of a field", CALL_F + "5: 6}", [("f", "5: 6}")]),
    *(
        (f"broken arguments {text!r}", f'{CALL_F}"arguments": {text}', [("f", text)])
        for text in ('{"a": tru', '{"a": hel', '{"a": "}', '{"a": [1}]', "[<", "}")
    ),
]
# The end of the output cuts the call: what it has of arguments is a beginning of them.
CUT = [
    *(
        (f"cut after {text!r}", CALL_F + text, [("f", "")])
        for text in ('"', '"argu', '"x": [1', '"arguments": [1', '"arguments": "{\\"a', '"arguments": "{\\')
    ),
    *(
        (f"arguments cut after {text!r}", f'{CALL_F}"arguments": {text}', [("f", made)])
        for text, made in (('{"a\\', '{"a'), ('{"a": "\\u00', '{"a": "'))
    ),
]
NO_CALLS = [
    *("<tool_call", "Hi \n <tool_call>", "<tool_call> \n", "<tool_call>\nno JSON here </tool_call>\n"),
    tool_call('{"name": "g", "arguments": {"a": 1}}') + " and on\n",
    *map(tool_call, ('{"arguments": {"a": 1}, "name": "g"}', '{"arguments": {"a": 1}}', '{"name": 5, "arguments": 1}')),
    *map(tool_call, ('{"name": "f', '{"arguments": {"a": "f', '["name", "f"]', "{name: f}", "{}")),
    *("<tool_calls>", "a < b <<tool_call <tool_ call>"),
]
CASES = [
    *(*REASONING, *CALLS, *BROKEN, *CUT),
    *((name, f'{CALL_F}"arguments": {text}}}', [("f", made)]) for name, text, made in CORRECTED),
    *((repr(text), text, [text]) for text in NO_CALLS),
    # The prompt opens the reasoning, or does not.
    ("opened", "\nhm\n</think>\n\nHi", [R("hm"), "Hi"], "x<think>"),
    ("opened with a line break", "\nhm\n</think>\n\nHi", [R("hm"), "Hi"], "x<think>\n"),
    ("opened, cut", "hm", [R("hm")], "x<think>"),
    ("opened, empty", "</think>Hi", ["Hi"], "x<think>\n"),
    *(("not open", "Hi</think>", ["Hi</think>"], prompt) for prompt in ("<think>\n\n</think>\n\n", "<think>x", "")),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_events_of_an_output(case):
    _, text, expected, prompt = (*case, "")[:4]
    assert parse_every_way(text, prompt=prompt) == events_of(expected)
    if text in NO_CALLS:
        assert parse_every_way(text, tools=()) == events_of(expected)


@pytest.mark.parametrize("is_whole", [False, True], ids=["by characters", "whole"])
def test_time_for_a_long_output_is_linear(is_whole: bool):
    def seconds(n: int) -> float:
        text = "word " * n + tool_call('{"name": "f", "arguments": {"a": "' + 5 * n * "x" + '"}}')
        began_at = time.thread_time()
        parse([text] if is_whole else text)
        return time.thread_time() - began_at

    assert_linear(seconds, 1000, 20, 0.001)


def test_long_output_by_characters_has_the_events_of_the_whole_one():
    text = "word " * 20_000 + tool_call('{"name": "f", "arguments": {"a": "' + "x" * 100_000 + '"}}')
    assert parse(text) == parse([text])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(value=st.lists(JSON, max_size=3), indent=st.sampled_from([None, 2]), ascii_only=st.booleans())
def test_valid_json_is_not_changed(value, indent, ascii_only):
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    output = tool_call(f'{{"name": "f", "arguments": {text}}}')
    assert parse([output]) == parse(output) == events_of([("f", text)])
