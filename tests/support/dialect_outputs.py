"""An output of each model family with reasoning, text and calls, for the tests of dialects."""

import json

from localchat.serving.chat.dialects import DIALECTS
from localchat.serving.core.events import ToolCallArguments, ToolCallStart

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "opt": {"type": "object"}},
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "now"}},
]
ARGUMENTS = {"city": 'Paris "x" <b>', "days": 3, "opt": {"a": [1, True, "q"]}}
BAR = "\uff5c"


def golden(dialect):
    """Reasoning, text, and two calls: `weather` with ARGUMENTS, and `now` without arguments. The markers are those that
    the family declares; the templates of test_dialects show that models generate them."""
    has_reasoning = dialect.name not in WITHOUT_REASONING
    reasoning = f"{dialect.reasoning.start}hm{dialect.reasoning.end}" if has_reasoning else ""
    # The first layout that may follow text.
    layout = next(layout for layout in dialect.calls if layout.opener or dialect.text_end)
    calls = layout.written([{"name": "weather", "arguments": ARGUMENTS}, {"name": "now", "arguments": {}}])
    return reasoning + dialect.text_start[has_reasoning] + "Sure." + dialect.text_end + calls


WITHOUT_REASONING = {"functionary-3.2"}
ALL = {name: golden(dialect) for name, dialect in DIALECTS.items()}
GOLDEN = {name: text for name, text in ALL.items() if name not in WITHOUT_REASONING}
# The call ids of families whose models generate them. The other families get new ids.
OWN_IDS = {
    "kimi-k2": ["functions.weather:0", "functions.now:0"],
    **{name: ["0", "id0"] for name in ("mistral", "solar", "cohere")},
}


def calls_of(events):
    heads = [event for event in events if isinstance(event, ToolCallStart)]
    pieces = {head.index: "" for head in heads}
    for event in events:
        if isinstance(event, ToolCallArguments):
            pieces[event.index] += event.text
    return [(head.name, json.loads(pieces[head.index])) for head in heads]


def text_of(events, kind):
    return "".join(event.text for event in events if isinstance(event, kind))
