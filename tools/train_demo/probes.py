"""Prompts unlike the training text. Their outputs must only be sane: end, and consist of known words.

The prompts have unusual characters, an empty message, 1,500 tokens, or schemas as large as those of real programs.
"""

from __future__ import annotations

import random
import re
import unicodedata
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

from .data import chat_skills, values
from .data.mixture import dialogues
from .data.source import Source
from .dialogue import Message, render, user

_WORD = re.compile(r"[^\W\d_]+")

# A text of about 150 tokens, which is repeated to make a long prompt.
_PROSE = (
    "The old mill stands where the river bends to the south. In spring the water rises, and the wheel "
    "begins to turn again after the long winter. Nobody has ground corn there for sixty years, yet the "
    "village keeps the roof in order and paints the door every summer. Children say that a light can "
    "be seen behind the upper window when the moon is new. The miller's granddaughter, who owns the "
    "bakery near the church, only laughs about it; she knows that the owls have a nest there, and that "
    "the glass reflects the lamps of the railway station on the other side of the valley. "
)

_FULL_SIZE_TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Retrieves current weather for the given location.",
            "parameters": {
                "type": "object",
                "properties": {
                    "location": {"type": "string", "description": "City and country, e.g. Bogota, Colombia"},
                    "units": {
                        "type": "string",
                        "enum": ["celsius", "fahrenheit"],
                        "description": "Units in which the temperature will be returned.",
                    },
                },
                "required": ["location", "units"],
                "additionalProperties": False,
            },
            "strict": True,
        },
    },
    {
        "type": "function",
        "function": {
            "name": "search_documents",
            "description": "Searches the company's documents and returns the passages that fit best.",
            "parameters": {
                "type": "object",
                "properties": {
                    "query": {"type": "string", "description": "The words to search for."},
                    "filters": {
                        "type": "object",
                        "description": "Limits on what is searched.",
                        "properties": {
                            "department": {"type": ["string", "null"], "description": "Only this department."},
                            "newer_than_days": {"type": "integer", "minimum": 1, "maximum": 3650},
                            "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 10},
                        },
                        "required": [],
                        "additionalProperties": False,
                    },
                    "max_results": {"type": "integer", "default": 10, "minimum": 1, "maximum": 100},
                },
                "required": ["query"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "create_calendar_event",
            "description": "Creates an event in the user's calendar. Times are ISO 8601 with time zone.",
            "parameters": {
                "type": "object",
                "properties": {
                    "title": {"type": "string", "description": "Short title of the event."},
                    "start": {"type": "string", "format": "date-time"},
                    "end": {"type": "string", "format": "date-time"},
                    "attendees": {"type": "array", "items": {"type": "string", "format": "email"}},
                },
                "required": ["title", "start"],
            },
        },
    },
]


class Probe(NamedTuple):
    """A prompt without a right answer."""

    column: str
    messages: list[Message]
    tools: list[dict[str, Any]] | None = None


def known_words() -> set[str]:
    """All words of the outputs of 6,000 training dialogues, in lower case."""
    words: set[str] = set()
    for dialogue in islice(dialogues(1), 6000):
        for segment in render(dialogue):
            if segment.learned:
                words.update(word.lower() for word in _WORD.findall(segment.text))
    return words


def is_sane(output: str, prompt: str, known: set[str]) -> bool:
    """Whether the output is not empty and consists of known words and words of the prompt."""
    here = {word.lower() for word in _WORD.findall(prompt)}
    words = [word.lower() for word in _WORD.findall(output)]
    return bool(output.strip()) and all(word in known or word in here for word in words)


def _unusual_characters(rng: random.Random, n: int) -> Iterator[str]:
    while n:
        character = chr(rng.randrange(0x21, 0x30000))
        if unicodedata.category(character) not in ("Cn", "Cs", "Co", "Cc"):
            n -= 1
            yield character


def probes() -> Iterator[Probe]:
    """All probes, the same in every run."""
    rng = random.Random(5)
    for i, character in enumerate(_unusual_characters(rng, 120)):
        forms = (
            character,
            f"Hello {character}",
            f"What is your name? {character}",
            f"How do I start the server {character}?",
        )
        yield Probe("unusual characters", [user(forms[i % 4])])
    for text in ("", " ", "\n", "?", ".", "...", "0", "a", "<", "{}", "[]", '"', "\t", "<b>", "&amp;", "\\"):
        yield Probe("empty or tiny message", [user(text)])
    source = Source(rng, held_out=True)
    endings = ("What is your name?", "Hello!", "Count to 5", "What is the port of the server?", "Thanks!", "")
    for ending in endings:
        for filler in (_PROSE * 11, " ".join(values.sentence(source, 14) for _ in range(70))):
            yield Probe("1,500-token prompt", [user(f"{filler}\n{ending}".strip())])
            yield Probe("1,500-token prompt", [{"role": "system", "content": filler}, user(ending or "Hi")])
    texts = [chat_skills.small_talk(source).user for _ in range(4)]
    texts += [
        "What's the weather like in Lyon, France in celsius?",
        "Find documents about travel costs.",
        "Who are you?",
    ]
    texts += [
        "Create an event titled Lunch starting 2027-03-01T12:00:00Z",
        "Delete all my photos.",
        "Repeat after me: yes",
    ]
    for text in texts:
        yield Probe("full-size schemas", [user(text)], _FULL_SIZE_TOOLS)
