"""Random outputs of the model families, whole and damaged, and the check that the parser loses nothing of them."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from typing import Any

from localchat.serving.chat.dialects import DIALECTS, Dialect
from localchat.serving.chat.dialects.parser import merged
from localchat.serving.chat.dialects.raw_text import FormatText
from localchat.serving.core.events import ContentDelta, Event, ReasoningDelta, ToolCallArguments, ToolCallStart

from .dialect_outputs import ALL, TOOLS, WITHOUT_REASONING, parse

# Pieces of texts and of values. Beginnings of markers are added, which the parser holds back.
_PIECES = (
    "a",
    "Paris",
    "5",
    " ",
    "  ",
    "\n",
    "\n\n",
    '"',
    "'",
    "\\",
    "\\n",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "=",
    "é",
    "😀",
)
_NAMES = ("weather", "now", "get-it")


def check(name: str, dice: random.Random) -> None:
    """Check one random output of a family: half of them are whole, half are damaged."""
    dialect = DIALECTS[name]
    if dice.random() < 0.5:
        check_whole(dialect, dice)
    else:
        check_damaged(dialect, dice)


# --- outputs as the models are trained to generate them ---


def check_whole(dialect: Dialect, dice: random.Random) -> None:
    """The parser returns the reasoning, the text and the calls of which an output is made, however it is cut."""
    reasoning = "" if dialect.name in WITHOUT_REASONING or dice.random() < 0.3 else _text(dialect, dice)
    content = _text(dialect, dice)
    calls = [(dice.choice(_NAMES), _arguments(dialect, dice)) for _ in range(dice.choice((0, 1, 1, 2, 5)))]
    text = content
    if calls:
        # After text, a call needs an opener, the marker at the end of the text, or a header.
        formats = [format for format in dialect.calls if format.opener or dialect.text_end]
        formats = [format for format in formats if format.begins_with_header or not format.header]
        written = [{"name": called, "arguments": arguments} for called, arguments in calls]
        text += dialect.text_end + dice.choice(formats).written(written)
    if reasoning:
        text = dialect.reasoning.start + reasoning + dialect.reasoning.end + dialect.text_start.after_reasoning + text
    else:
        text = dialect.text_start.first + text
    for pieces in ([text], cut(text, dice)):
        events = parse(pieces, dialect)
        assert parts_of(events) == (reasoning, content, calls), (dialect.name, text, pieces)


def parts_of(events: Sequence[Event]) -> tuple[str, str, list[tuple[str, Any]]]:
    """The reasoning, the content, and the names and arguments of the calls."""
    texts = {ReasoningDelta: "", ContentDelta: ""}
    names, arguments = dict[int, str](), dict[int, str]()
    for event in events:
        if isinstance(event, ToolCallStart):
            names[event.index], arguments[event.index] = event.name, ""
        elif isinstance(event, ToolCallArguments):
            arguments[event.index] += event.text
        else:
            texts[type(event)] += event.text
    calls = [(name, json.loads(arguments[index])) for index, name in names.items()]
    return texts[ReasoningDelta], texts[ContentDelta], calls


def _text(dialect: Dialect, dice: random.Random) -> str:
    """A text without a marker. It begins and ends with a letter, since white space there belongs to the format."""
    markers = sorted({*dialect.preserved, *dialect.reasoning_ends, dialect.recipient_mark} - {""})
    pieces = [*_PIECES, *(marker[: dice.randint(1, len(marker))] for marker in markers)]
    while True:
        text = "I" + "".join(dice.choices(pieces, k=dice.randint(0, 12))) + "x"
        if not any(marker.strip() in text for marker in markers if marker.strip()):
            return text


def _arguments(dialect: Dialect, dice: random.Random) -> dict[str, Any]:
    """Arguments of any of the tools. Only `weather` declares some."""
    values: dict[str, Any] = {
        "city": _text(dialect, dice),
        "days": dice.choice((0, 3, -12, 10**12)),
        "opt": {"a": [1, True, None, 0.5, _text(dialect, dice)], "b": {}},
    }
    return {name: values[name] for name in sorted(dice.sample(list(values), dice.randint(0, 3)))}


# --- outputs with parts that are left out, doubled, moved or cut ---


def check_damaged(dialect: Dialect, dice: random.Random) -> None:
    """The events do not depend on the cuts, and all text outside calls is in the events of a raw output, in order."""
    text = damaged(dialect, dice)
    tools, prompt = dice.choice([TOOLS, TOOLS, ()]), dice.choice(["", dialect.reasoning.start])
    options = {"tools": tools, "prompt": prompt, "is_constrained": dice.random() < 0.2}
    pieces = cut(text, dice)
    events = parse([text], dialect, **options)
    place = (dialect.name, text, pieces, options)
    assert parse(pieces, dialect, **options) == events, place
    raw = parse(pieces, dialect, is_raw=True, **options)
    assert merged([event for event in raw if not isinstance(event, FormatText)]) == events, place
    # The text between two calls follows the text of the first one, and precedes that of the second one.
    between = [""]
    for event in raw:
        if isinstance(event, ToolCallStart):
            between.append("")
        elif isinstance(event, (ContentDelta, ReasoningDelta, FormatText)):
            between[-1] += event.text
    first, *others = between
    assert text.startswith(first), place
    assert text.endswith(between[-1]), place
    at = len(first)
    for shown in others:
        at = text.find(shown, at + 1)  # A call has one character at least.
        assert at >= 0, place
        at += len(shown)
    assert at <= len(text) if others else first == text, place


def damaged(dialect: Dialect, dice: random.Random) -> str:
    """The output of `dialect_outputs`, damaged in one to four places."""
    known = re.findall(r"<[^<>\s]*>|\w+|\s+|.", ALL[dialect.name])
    parts = list(known)
    for _ in range(dice.randint(1, 4)):
        at = dice.randrange(len(parts))
        parts[at : at + dice.randint(0, 2)] = dice.choice([[], [], ["x"], dice.sample(known, 2)])
    text = "".join(parts)
    return text[: dice.randrange(1, len(text) + 1)] if dice.random() < 0.5 else text


def cut(text: str, dice: random.Random) -> list[str]:
    """A text in up to six pieces, or in single characters."""
    if dice.random() < 0.1:
        return list(text)
    at = sorted(dice.choices(range(len(text) + 1), k=5))
    return [text[a:b] for a, b in zip([0, *at], [*at, len(text)])]
