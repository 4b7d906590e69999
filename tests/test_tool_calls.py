"""Assembly of tool calls: with any labels of the deltas, the result is the calls that were sent, or an error."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from localchat.events import ToolCall
from localchat.reply.assembly import Accumulator


class Sent(NamedTuple):
    id: str
    name: str
    arguments: dict[str, Any]


# The index of a delta, from the number of the call, of the piece in the call, and of the piece in the stream.
INDEXES: dict[str, Callable[[int, int, int], Any]] = {
    "proper": lambda call, piece, n: call,
    "text": lambda call, piece, n: str(call),
    "float": lambda call, piece, n: float(call),
    "text and numbers": lambda call, piece, n: str(call) if piece % 2 else call,
    "sparse": lambda call, piece, n: 7 * call + 3,
    "first piece": lambda call, piece, n: None if piece else call,
    "all alike": lambda call, piece, n: 0,
    "all alike, text": lambda call, piece, n: "0",
    "counts pieces": lambda call, piece, n: n,
    "none": lambda call, piece, n: None,
}
DISTINCT = ("proper", "text", "float", "text and numbers", "sparse")

# The id of a delta, from the number of the call, of the piece in the call, and whether the piece is the last one.
IDS: dict[str, Callable[[int, int, bool], str | None]] = {
    "none": lambda call, piece, last: None,
    "first piece": lambda call, piece, last: None if piece else f"id{call}",
    "every piece": lambda call, piece, last: f"id{call}",
    "last piece": lambda call, piece, last: f"id{call}" if last else None,
    "all alike": lambda call, piece, last: "id",
    "changing": lambda call, piece, last: f"id{call}-{piece}",
}
NAMES = ("first piece", "every piece", "in pieces")
# Arguments with pieces that are equal to pieces of other arguments, or to complete arguments.
ARGUMENTS: list[dict[str, Any]] = [
    {},
    {"q": "x{}y"},
    {"q": {"q": {}}},
    {"q": "}", "r": [{}, {"q": 1}]},
    {"q": '{"q": 1}'},
    {"city": "Paris"},
]


def cut(text: str, chance: random.Random) -> list[str]:
    """A text in one to five pieces, some of them cut at braces."""
    places = [place for place in range(1, len(text)) if chance.random() < 0.3 or text[place] in "{}"]
    ends = [*sorted(chance.sample(places, min(len(places), chance.randrange(5)))), len(text)]
    return [text[start:end] for start, end in zip([0, *ends], ends)]


def pieces_of(call: Sent, names: str, chance: random.Random) -> list[tuple[str | None, str]]:
    """A call as pairs of a name and a piece of arguments."""
    arguments = cut(json.dumps(call.arguments), chance)
    if chance.random() < 0.5:
        arguments.insert(0, "")
    if chance.random() < 0.3:
        arguments.append("")
    if names == "every piece":
        return [(call.name, piece) for piece in arguments]
    if names == "in pieces":
        return [(call.name[:4], ""), (call.name[4:], ""), *((None, piece) for piece in arguments)]
    return [(call.name, arguments[0]), *((None, piece) for piece in arguments[1:])]


def stream_of(calls: list[Sent], index: str, id: str, names: str, chance: random.Random) -> Iterator[dict[str, Any]]:
    """The deltas of all calls; those of one call are in order, and calls may be interleaved."""
    left = [list(enumerate(pieces_of(call, names, chance))) for call in calls]
    is_sequential, n = chance.random() < 0.3, 0
    while any(left):
        numbers = [number for number, pieces in enumerate(left) if pieces]
        number = numbers[0] if is_sequential else chance.choice(numbers)
        place, (name, piece) = left[number].pop(0)
        delta: dict[str, Any] = {"function": {"name": name, "arguments": piece}}
        delta["index"] = INDEXES[index](number, place, n)
        delta["id"] = IDS[id](number, place, not left[number])
        yield {key: value for key, value in delta.items() if value is not None}
        n += 1


def assembled(*deltas: dict[str, Any]) -> tuple[ToolCall, ...]:
    accumulator = Accumulator()
    for delta in deltas:
        accumulator.add({"choices": [{"delta": {"tool_calls": [delta]}}]})
    accumulator.finish(done=True)
    return accumulator.reply().tool_calls


def is_two_streams(index: str, id: str, names: str, calls: list[Sent]) -> bool:
    """Whether other calls give the same stream: every delta has a name, and no id or index identifies the call."""
    if names != "every piece" or index in DISTINCT:
        return False
    has_twins = len({call.name for call in calls}) < len(calls)
    return (has_twins and id in ("none", "all alike", "last piece")) or id == "changing" or index == "counts pieces"


@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("id", IDS)
@pytest.mark.parametrize("index", INDEXES)
def test_calls_that_were_sent_or_an_error(index, id, names):
    n_good, n = 0, 100
    for seed in range(n):
        chance = random.Random(f"{index} {id} {names} {seed}")
        chosen = chance.sample(ARGUMENTS, chance.randrange(1, 4))
        functions = [chance.choice(["get_weather", "get_time", "send_mail"]) for _ in chosen]
        calls = [Sent(f"id{n}", name, arguments) for n, (name, arguments) in enumerate(zip(functions, chosen))]
        if is_two_streams(index, id, names, calls):
            continue
        deltas = list(stream_of(calls, index, id, names, chance))
        got = assembled(*deltas)
        good = Counter((call.name, call.arguments_json) for call in got if call.error is None)
        sent = Counter((call.name, json.dumps(call.arguments)) for call in calls)
        assert not good - sent, deltas
        assert good == sent or any(call.error for call in got), deltas
        if id in ("first piece", "every piece"):
            ids = {(call.name, json.dumps(call.arguments)): call.id for call in calls}
            assert all(ids[call.name, call.arguments_json] == call.id for call in got if call.error is None), deltas
        n_good += good == sent
    is_labelled = index in DISTINCT and id in ("none", "first piece", "every piece", "last piece")
    if names == "first piece" and (is_labelled or (index == "none" and id == "every piece")):
        assert n_good == n


@pytest.mark.parametrize("arguments", [{}, {"sides": 6}])
def test_equal_calls_of_one_payload_are_two(arguments):
    entry = {"function": {"name": "roll", "arguments": arguments}}
    accumulator = Accumulator()
    accumulator.add({"choices": [{"message": {"tool_calls": [entry, entry]}, "finish_reason": "stop"}]})
    accumulator.finish(done=True)
    assert [(call.arguments, call.error) for call in accumulator.reply().tool_calls] == [(arguments, None)] * 2
