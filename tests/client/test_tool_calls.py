"""Assembly of tool calls: the id decides, then the index, then whether the arguments are complete."""

from __future__ import annotations

import itertools
import json
import random
import time
import typing
from collections.abc import Callable, Collection
from typing import Any

import pytest

from localchat.events import ToolCall
from localchat.reply.assembly import Accumulator
from localchat.reply.tool_calls import RULES, _Arguments, _Labels, _Name, _Piece
from tests.support.growth import assert_linear
from tests.support.scripted import chunk


def delta(name: str | None = None, arguments: Any = None, index: Any = None, id: str | None = None) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    given = {key: value for key, value in function.items() if value is not None}
    return {key: value for key, value in {"index": index, "id": id, "function": given}.items() if value is not None}


def assembled(*deltas: dict[str, Any], tool_names: Collection[str] = ()) -> tuple[ToolCall, ...]:
    accumulator = Accumulator(tool_names=tool_names)
    events = []
    for call in deltas:
        events += accumulator.add(chunk(tool_calls=[call]))
    events += accumulator.finish(has_end_mark=True)
    calls = accumulator.reply().tool_calls
    assert [event for event in events if event.type == "tool_call"] == list(calls)
    sent_back = [call.request_item["function"] for call in calls]
    # Servers refuse an empty name.
    assert [function["name"] for function in sent_back] == [call.name or "unknown" for call in calls]
    assert [json.loads(function["arguments"]) for function in sent_back] == [call.arguments or {} for call in calls]
    return calls


ONE, TWO = '{"a": 1}', '{"a": 2}'
F1, F2, G1 = ("f", {"a": 1}), ("f", {"a": 2}), ("g", {"a": 1})
# Deltas that servers send, each with name, arguments, index and id, and the calls with their arguments; an error is
# shown as None. Other clients failed with some, by public reports.
SENT: dict[str, tuple[list[tuple[Any, ...]], list[tuple[str, Any]]]] = {
    "same name and id": ([("f", "", 0, "x"), ("f", ONE[:7], None, "x"), ("f", "}", 0, "x"), ("f", "", 0, "x")], [F1]),
    "name again at the end, no labels": ([("f", ONE), ("f", "")], [F1]),
    "empty object first": ([("f", "{}", 0, "x"), (None, '{"a"', 0), (None, ": 1}", 0)], [F1]),
    "Gemini, the same function twice": ([("f", ONE), ("f", TWO), ("f", TWO)], [F1, F2, F2]),
    "second call announced": ([("f", ONE, 0), ("f", "", 0), (None, '{"a"', 0), (None, ": 2}", 0)], [F1, F2]),
    "same index, new name, empty arguments": ([("f", "", 0), ("g", "", 0), (None, ONE, 0)], [("f", {}), G1]),
    "same index, new name, no arguments at all": ([("f", ONE, 0), ("g", None, 0)], [F1, ("g", {})]),
    "arguments before the name, after a call": ([("f", TWO), (None, ONE), ("g",)], [F2, G1]),
    "same id, other index, no arguments": ([("f", "", 0, "x"), ("g", "", 1, "x")], [("f", {}), ("g", {})]),
    "sent twice in full": ([("f", ONE, 0, "x"), ("f", ONE, 0, "x")], [F1]),
    # Which of the two gets the first arguments is unknown: neither call may be run.
    "one index": ([("f", "", 0), ("g", "", 0), (None, ONE, 0), (None, TWO, 0)], [("f", None), ("g", None), ("", None)]),
    "two objects for one call": ([("f", ONE, 0, "x"), (None, TWO, 0, "x")], [("f", None)]),
    # DeepSeek and GLM send parallel calls of one function with one id and different indexes.
    "one id, whole calls": ([("f", ONE, 0, "x"), ("f", TWO, 1, "x")], [F1, F2]),
    "one id, equal calls": ([("f", ONE, 0, "x"), ("f", ONE, 1, "x")], [F1, F1]),
    "one id, in pieces": (
        [("f", "", 0, "x"), (None, ONE, 0), ("f", "", 1, "x"), (None, '{"a"', 1), (None, ": 2}", 1)],
        [F1, F2],
    ),
    "one id in every piece": (
        [("f", "", 0, "x"), (None, ONE, 0, "x"), ("f", "", 1, "x"), (None, TWO, 1, "x")],
        [F1, F2],
    ),
    "one id, interleaved": (
        [("f", "", 0, "x"), ("f", "", 1, "x"), (None, '{"a"', 0), (None, TWO, 1), (None, ": 1}", 0)],
        [F1, F2],
    ),
    "one id, no arguments": ([("f", "", 0, "x"), ("f", "", 1, "x")], [("f", {}), ("f", {})]),
    "one id, name in every piece": ([("f", '{"a"', 0, "x"), ("f", ": 1}", 1, "x")], [F1]),
    "name and arguments cut": ([("get_wea", '{"a"', 0, "x"), ("ther", ": 1}", 0)], [("get_weather", F1[1])]),
    "name cut, the id in both pieces": ([("get_", "", 0, "x"), ("f", ONE, 0, "x")], [("get_f", {"a": 1})]),
    "name cut before the arguments": (
        [("edit_ex", None, 0, "x"), ("isting_", None, 0), ("file", None, 0), (None, ONE, 0)],
        [("edit_existing_file", {"a": 1})],
    ),
    "name grows": ([("edit", None, 0, "x"), ("edit_file", None, 0, "x"), (None, ONE, 0)], [("edit_file", {"a": 1})]),
    "name after the first arguments": ([(None, '{"a"', 0, "x"), ("f", ": 1}", 0)], [F1]),
    "empty names and ids later": ([("f", "", 0, "x"), ("", '{"a":', 0, ""), ("", " 1}", 0, "")], [F1]),
    "id and name in every piece": ([("f", text, 0, "x") for text in ("", '{"a":', " 1}")], [F1]),
    "arguments as JSON in a JSON string": ([("f", json.dumps(ONE), 0, "x")], [F1]),
    "line ends in strings": ([("f", '{\n"text": "a\n\tb"\n}', 0, "x")], [("f", {"text": "a\n\tb"})]),
    "escapes outside of strings": ([("f", '{"text": \\"a\\"}', 0, "x")], [("f", None)]),
    # json.loads accepts these numbers, but a server refuses them in the next request.
    **{name: ([("f", f'{{"a": {name}}}', 0, "x")], [("f", None)]) for name in ("NaN", "-Infinity", "1e999")},
}


@pytest.mark.parametrize(("pieces", "calls"), SENT.values(), ids=SENT)
def test_calls_that_servers_send(pieces, calls):
    """A second name, which is null, beside every piece changes nothing."""
    deltas = [delta(*piece) for piece in pieces]
    for given in (deltas, [{**one, "type": "function", "name": None} for one in deltas]):
        got = assembled(*given)
        assert [(call.name, call.arguments) for call in got] == calls
        ids = [call["id"] for call in given if call.get("id")]
        assert not ids or got[0].id == ids[0]


@pytest.mark.parametrize("wrong", [1, "f", ["f"]], ids=str)
@pytest.mark.parametrize("comes_first", [True, False])
def test_function_that_is_no_object_is_left_out_with_a_warning(wrong: Any, comes_first: bool):
    call: Any = {"index": 0, "id": "x", "function": {"name": "f", "arguments": "{}", "strict": True}}
    deltas = [{"index": 0, "id": "x", "function": wrong}, call]
    accumulator = Accumulator()
    for one in deltas if comes_first else reversed(deltas):
        accumulator.add(chunk(tool_calls=[one]))
    accumulator.finish(has_end_mark=True)
    reply = accumulator.reply()
    assert [(call.name, call.extra) for call in reply.tool_calls] == [("f", {"function": {"strict": True}})]
    assert reply.warnings[0] == f"the function of a call is no object and was left out: {json.dumps(wrong)}"


@pytest.mark.parametrize(("tools", "names"), [(["ab"], ["ab"]), (["a", "b"], ["a", "b"]), (["a", "b", "ab"], ["ab"])])
@pytest.mark.parametrize("second", ["", '{"x": 1}'])
def test_name_of_an_offered_tool_gets_no_further_piece(tools, names, second):
    """The two deltas have the same index and id."""
    got = assembled(delta("a", "", 0, "x"), delta("b", second, 0, "x"), tool_names=tools)
    assert [call.name for call in got] == names
    assert got[-1].arguments_json == second


# The index of a delta, from the number of the call, of the piece in the call, and of the piece in the stream.
INDEXES: dict[str, Callable[[int, int, int], Any]] = {
    "proper": lambda call, piece, n: call,
    "text and numbers": lambda call, piece, n: str(call) if piece % 2 else float(call),
    "sparse": lambda call, piece, n: 7 * call + 3,
    "first piece": lambda call, piece, n: None if piece else call,
    "all alike": lambda call, piece, n: 0,
    "counts pieces": lambda call, piece, n: n,
    "none": lambda call, piece, n: None,
}
# The id of a delta, from the number of the call, of the piece in the call, and whether the piece is the last one.
IDS: dict[str, Callable[[int, int, bool], str | None]] = {
    "none": lambda call, piece, last: None,
    "first piece": lambda call, piece, last: None if piece else f"id{call}",
    "every piece": lambda call, piece, last: f"id{call}",
    "last piece": lambda call, piece, last: f"id{call}" if last else None,
    "changing": lambda call, piece, last: f"id{call}-{piece}",
}
# Arguments with pieces that are equal to pieces of other arguments, or to complete arguments.
ARGUMENTS = ['{"q": "x{}y"}', '{"q": {"q": {}}}', '{"q": "}", "r": [{}, {"q": 1}]}', r'{"q": "{\"q\": 1}"}']


def pieces_of(text: str, chance: random.Random) -> list[str]:
    """The text in one to five pieces, some of them cut at braces, after an empty one."""
    places = [place for place in range(2, len(text)) if chance.random() < 0.3 or text[place] in "{}"]
    ends = [*sorted(chance.sample(places, min(len(places), chance.randrange(5)))), len(text)]
    return ["", *(text[start:end] for start, end in zip([0, *ends], ends)), *chance.choice([[], [""]])]


@pytest.mark.parametrize("names", ["first piece", "every piece"])
@pytest.mark.parametrize("id", IDS)
@pytest.mark.parametrize("index", INDEXES)
def test_calls_at_random_cuts(index, id, names):
    """Models generate calls one after another. With an index or an id in every piece, calls may be interleaved."""
    if names == "every piece" and (id == "changing" or index == "counts pieces"):
        pytest.skip("every piece looks like the beginning of a call")
    may_mix = index in ("proper", "text and numbers", "sparse") or id == "every piece"
    for seed in range(40):
        chance = random.Random(f"{index} {id} {names} {seed}")
        sent = [(chance.choice("fgh"), text) for text in chance.sample(ARGUMENTS, chance.randrange(1, 4))]
        left = [list(enumerate(pieces_of(text, chance))) for _, text in sent]
        deltas: list[dict[str, Any]] = []
        while any(left):
            numbers = [number for number, pieces in enumerate(left) if pieces]
            number = chance.choice(numbers) if may_mix else numbers[0]
            place, piece = left[number].pop(0)
            name = sent[number][0] if names == "every piece" or not place else None
            label = INDEXES[index](number, place, len(deltas)), IDS[id](number, place, not left[number])
            deltas.append(delta(name, piece, *label))
        got = assembled(*deltas)
        assert sorted((call.name, call.arguments_json) for call in got) == sorted(sent), deltas
        if id in ("first piece", "every piece"):
            ids = {f"id{number}": text for number, (_, text) in enumerate(sent)}
            assert {call.id: call.arguments_json for call in got} == ids, deltas


def test_every_rule_is_the_first_that_fits_some_delta():
    """And some rule fits every delta."""
    columns = (typing.get_args(column) for column in (_Labels, _Name, _Arguments, _Piece))
    first_fitting = {next(rule for rule in RULES if rule.fits(*facts)) for facts in itertools.product(*columns)}
    assert [rule for rule in RULES if rule not in first_fitting] == []


# Deltas of n pieces or calls whose assembly was quadratic.
GROWING: dict[str, Callable[[int], list[dict[str, Any]]]] = {
    "pieces that end in a brace": lambda n: [
        delta("f", '{"a": "', 0, "x"),
        *(delta(None, "{}}", 0) for _ in range(n)),
        delta(None, '"}', 0),
    ],
    "pieces after the end": lambda n: [delta("f", "{}", 0, "x"), *(delta(None, "}", 0) for _ in range(n))],
    "a name in every piece": lambda n: [delta("f", piece, 0) for piece in ['{"a": "', *["x}"] * n, '"}']],
    "other indexes": lambda n: [
        delta("f", '{"a": "', 0),
        *(delta(None, "b}", i) for i in range(1, n)),
        delta(None, '"}'),
    ],
}


@pytest.mark.parametrize("deltas", GROWING.values(), ids=GROWING)
def test_time_of_the_assembly_of_calls_is_linear(deltas):
    def seconds(n: int) -> float:
        accumulator, payloads = Accumulator(), [chunk(tool_calls=[call]) for call in deltas(n)]
        start = time.process_time()
        for payload in payloads:
            accumulator.add(payload)
        accumulator.finish(has_end_mark=True)
        return time.process_time() - start

    assert_linear(seconds, 300, 20, 0.001)


def test_time_for_many_calls_that_a_message_repeats_is_linear():
    def seconds(n: int) -> float:
        entries = [{"id": f"c{i}", "function": {"name": "f", "arguments": f'{{"a": {i}}}'}} for i in range(n)]
        accumulator = Accumulator()
        for entry in entries:
            accumulator.add(chunk(tool_calls=[entry]))
        start = time.process_time()
        accumulator.add({"choices": [{"message": {"tool_calls": entries}, "finish_reason": "tool_calls"}]})
        assert len(accumulator.reply().tool_calls) == n
        return time.process_time() - start

    assert_linear(seconds, 50, 20, 0.0005)


@pytest.mark.parametrize("arguments", [{}, {"sides": 6}])
def test_equal_calls_of_one_payload_are_two(arguments):
    entry = {"function": {"name": "roll", "arguments": arguments}}
    accumulator = Accumulator()
    accumulator.add({"choices": [{"message": {"tool_calls": [entry, entry]}, "finish_reason": "stop"}]})
    accumulator.finish(has_end_mark=True)
    assert [(call.arguments, call.error) for call in accumulator.reply().tool_calls] == [(arguments, None)] * 2


def test_pieces_of_arguments_are_joined_under_an_id_that_stays_until_the_server_sends_one():
    accumulator, made = Accumulator(), set()
    for text in ('{"q": "', "Hi \ud83d", "\ude00!", '"}'):
        accumulator.add(chunk(tool_calls=[delta("f", text, 0)]))
        made.add(accumulator.reply().tool_calls[0].id)
    assert len(made) == 1
    accumulator.add(chunk(tool_calls=[delta(index=0, id="late")]))
    (call,) = accumulator.reply().tool_calls
    assert (call.id, call.arguments) == ("late", {"q": "Hi \N{GRINNING FACE}!"})


@pytest.mark.parametrize("finish", ["length", "content_filter"])
def test_call_that_is_cut_before_its_arguments_has_an_error(finish):
    """Without the error, the function would be called with its defaults."""
    accumulator = Accumulator()
    accumulator.add(chunk(finish, tool_calls=[delta("clean", "", 0, "c0"), delta("clean", "", 1, "c1")]))
    accumulator.finish()
    first, second = accumulator.reply().tool_calls
    assert (first.arguments, first.error) == ({}, None)
    assert (second.arguments, second.error) == (None, "the response was cut before the arguments")
