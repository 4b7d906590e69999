"""Damaged responses for the client. A failure has its seed.

The recorded dialects are damaged: bytes are changed, events are dropped, doubled, reordered or mixed with those of
another server, and JSON values are replaced. The client may raise only its own errors. A stream ends with a
message_stop or an error, and the events do not depend on how the bytes are cut.
"""

from __future__ import annotations

import copy
import json
import random
from typing import Any

from tests.client.test_wire import NAMES, play, recorded
from tests.support.fuzz_sse import pieces_of

VALUES = [None, True, 0, -1, 1e400, "", " ", "x", [], {}, [None], {"a": 1}, "<think>", "</think>", '{"a":']


def change_bytes(raw: bytes, chance: random.Random) -> bytes:
    changed = bytearray(raw)
    for _ in range(chance.randrange(1, 4) if raw else 0):
        changed[chance.randrange(len(changed))] = chance.choice([0, 10, 13, 34, 58, 92, 123, 125, 255])
    return bytes(changed)


def change_events(raw: bytes, chance: random.Random) -> bytes:
    events = raw.split(b"\n\n")
    for _ in range(chance.randrange(1, 4)):
        place = chance.randrange(len(events))
        kind = chance.randrange(4)
        if kind == 0:
            del events[place]
        elif kind == 1:
            events.insert(place, chance.choice(events))
        elif kind == 2:
            events.insert(place, chance.choice(recorded(chance.choice(NAMES))[0].split(b"\n\n")))
        else:
            chance.shuffle(events)
        events = events or [b""]
    return b"\n\n".join(events)


def change_values(raw: bytes, chance: random.Random) -> bytes:
    lines = raw.split(b"\n")
    for _ in range(chance.randrange(1, 3)):
        place = chance.randrange(len(lines))
        head, brace, rest = lines[place].partition(b"{")
        try:
            payload = json.loads(brace + rest)
        except ValueError:
            continue
        replace_value(payload, chance, VALUES)
        lines[place] = head + json.dumps(payload).encode()
    return b"\n".join(lines)


def replace_value(value: Any, chance: random.Random, values: list[Any]) -> None:
    """Replace a random part of a dict or a list, if it has any, by one of these values."""
    if not value:
        return
    key = chance.choice(list(value) if isinstance(value, dict) else range(len(value)))
    if isinstance(value[key], (dict, list)) and value[key] and chance.random() < 0.8:
        replace_value(value[key], chance, values)
    else:
        value[key] = copy.deepcopy(chance.choice(values))


def cut_off(raw: bytes, chance: random.Random) -> bytes:
    return raw[: chance.randrange(len(raw) + 1)]


CHANGES = [change_bytes, change_events, change_values, cut_off]


def check(seed: int) -> None:
    chance = random.Random(seed)
    name = chance.choice(NAMES)
    raw = recorded(name)[0]
    for change in chance.sample(CHANGES, chance.randrange(1, 3)):
        raw = change(raw, chance)
    shown, accumulator = play(name, [raw])
    assert shown[-1][0] in ("stop", "raises"), (seed, name, shown)
    assert sum(kind == "raises" for kind, *_ in shown) <= 1
    accumulator.reply()
    cut = [piece for piece in pieces_of(raw, chance) if piece]  # An empty read would be the end.
    for pieces in (cut, [raw[i : i + 1] for i in range(len(raw))]):
        assert play(name, pieces)[0] == shown, (seed, name, raw)
