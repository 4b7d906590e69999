"""An output of each model family with reasoning, text and calls, and parsers of outputs that are cut anywhere."""

import json
import os
import random

from localchat.serving.chat.dialects import DIALECTS
from localchat.serving.chat.dialects.parser import merged
from localchat.serving.core.events import ContentDelta, ReasoningDelta, ToolCallArguments, ToolCallStart

# The number of places at which a text is cut in two; LOCALCHAT_CASES=1000 tests all places.
N_CUTS = int(os.environ.get("LOCALCHAT_CASES", "25"))

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "opt": {"type": "object"}},
}
OTHERS = ("now", "f", "get_analysis", "get-it", "x-get-it", "return")
TOOLS = [{"function": {"name": "weather", "parameters": SCHEMA}}, *({"function": {"name": name}} for name in OTHERS)]
ARGUMENTS = {"city": 'Paris "x" <b>', "days": 3, "opt": {"a": [1, True, "q"]}}
BAR = "\uff5c"


def golden(dialect):
    """Reasoning, text, and two calls: `weather` with ARGUMENTS, and `now` without arguments. The markers are those that
    the family declares; the templates of test_dialects show that models generate them."""
    has_reasoning = dialect.name not in WITHOUT_REASONING
    reasoning = f"{dialect.reasoning.start}hm{dialect.reasoning.end}" if has_reasoning else ""
    # The first format that may follow text.
    format = next(format for format in dialect.calls if format.opener or dialect.text_end)
    calls = format.written([{"name": "weather", "arguments": ARGUMENTS}, {"name": "now", "arguments": {}}])
    return reasoning + dialect.text_start[has_reasoning] + "Sure." + dialect.text_end + calls


WITHOUT_REASONING = {"functionary-3.2"}
ALL = {name: golden(dialect) for name, dialect in DIALECTS.items()}
GOLDEN = {name: text for name, text in ALL.items() if name not in WITHOUT_REASONING}
# The call ids of families whose models generate them. The other families get new ids.
OWN_IDS = {
    "kimi-k2": ["functions.weather:0", "functions.now:0"],
    **{name: ["0", "id0"] for name in ("mistral", "solar")},
}


def calls_of(events):
    heads = [event for event in events if isinstance(event, ToolCallStart)]
    return [(head.name, json.loads(text)) for head, text in zip(heads, arguments_of(events))]


def arguments_of(events):
    """The text of the arguments of each call."""
    texts = ["" for event in events if isinstance(event, ToolCallStart)]
    for event in events:
        if isinstance(event, ToolCallArguments):
            texts[event.index] += event.text
    return texts


def text_of(events, kind):
    return "".join(event.text for event in events if isinstance(event, kind))


def parser(dialect=DIALECTS["hermes"], prompt="", **options):
    ids = (f"id{i}" for i in range(99))
    options = {"tools": TOOLS, "new_id": lambda: next(ids), **options}
    return dialect.parser(dialect, prompt_end=dialect.prompt_end(prompt), **options)


def parse(pieces, dialect=DIALECTS["hermes"], **options):
    made = parser(dialect, **options)
    events = [event for piece in pieces for event in made.feed(piece)]
    return merged([*events, *made.finish()])


def cuts(data):
    """A text or bytes whole, in single characters, cut in two, and cut at random."""
    dice = random.Random(data)
    yield from ([data], [data[i : i + 1] for i in range(len(data))])
    places = [[at] for at in dice.sample(range(len(data)), min(len(data), N_CUTS))]
    places += [sorted(dice.choices(range(len(data) + 1), k=dice.randint(2, 8))) for _ in range(N_CUTS // 5)]
    yield from ([data[a:b] for a, b in zip([0, *at], [*at, len(data)])] for at in places)


def parse_every_way(text, dialect=DIALECTS["hermes"], **options):
    """The events of a text, which must be the same however it is cut."""
    whole = parse([text], dialect, **options)
    for pieces in cuts(text):
        assert parse(pieces, dialect, **options) == whole, pieces
    return whole


class Reasoning(str):
    """Text of reasoning in a list of expected events."""


def events_of(expected):
    """The events in short: a text is content, a tuple is the name, the arguments and the id of a call."""
    events, n_calls = [], 0
    for item in expected:
        if isinstance(item, tuple):
            name, arguments, call_id = (*item, f"id{n_calls}")[:3]
            events.append(ToolCallStart(n_calls, call_id, name))
            events += [ToolCallArguments(n_calls, arguments)] if arguments else []
            n_calls += 1
        else:
            events.append((ReasoningDelta if isinstance(item, Reasoning) else ContentDelta)(str(item)))
    return events
