"""Finds a text of a conversation that a rendered prompt does not have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Callable

from jinja2.utils import htmlsafe_json_dumps

from ...core.request import SYSTEM_ROLES


def missing_text(
    prompt: str,
    messages: Sequence[Mapping[str, Any]],
    without_reasoning: Callable[[str], str],
    replaced: Sequence[str] = (),
) -> int | None:
    """The index of the first message with a text that the prompt lacks behind the texts before it; None: it has all.

    The texts of a message are its content, and the strings in the arguments of its calls. What templates do with texts
    is no lack:

        they print system messages elsewhere, so these have an order of their own
        they print calls behind results, so calls have an order of their own, too
        they sort the arguments of a call
        they strip texts, so white space does not count
        they print texts as JSON
        they replace texts in others, such as "/no_think": those in `replaced` do not count
        they leave out the reasoning of earlier messages: `without_reasoning` returns a text of the assistant without it
    """
    if _missing(prompt, messages, without_reasoning, lambda text: [text.strip()]) is None:
        return None
    words = [word for word in map(_compact, replaced) if word]

    def compact(text: str) -> str:
        text = _compact(text)
        for word in words:
            text = text.replace(word, "")
        return text

    return _missing(compact(prompt), messages, without_reasoning, lambda text: map(compact, _printed(text)))


def replaced_texts(source: str) -> list[str]:
    """The texts that a template with this source replaces in others, with Jinja's filter or the method of strings."""
    return [match[2] for match in _REPLACE.finditer(source)]


_REPLACE = re.compile(r"""\breplace\(\s*(['"])(.+?)\1""")


def _missing(
    prompt: str,
    messages: Sequence[Mapping[str, Any]],
    without_reasoning: Callable[[str], str],
    spellings: Callable[[str], Iterable[str]],
) -> int | None:
    """`missing_text`, where `spellings` returns how a text may be written in this prompt.

    Each text is searched behind those before, so the time is linear.
    """
    end = system_end = call_end = 0
    for index, message in enumerate(messages):
        text = message.get("content") or ""
        if message["role"] in SYSTEM_ROLES:
            system_end = _end_of(prompt, [spellings(text)], system_end)
        elif message["role"] == "assistant":
            end = _end_of(prompt, [spellings(without_reasoning(text))], end)
            call_end = _end_of(prompt, map(spellings, _call_texts(message)), call_end)
        else:
            end = _end_of(prompt, [spellings(text)], end)
        if min(end, system_end, call_end) < 0:
            return index
    return None


def _end_of(prompt: str, texts: Iterable[Iterable[str]], start: int) -> int:
    """Where the last of these texts ends, each of which the prompt has behind `start`; -1 if it lacks one.

    Each text is a list of its spellings.
    """
    end = start
    for spellings in texts:
        ends = (_end_of_spelling(prompt, spelling, end, start) for spelling in spellings)
        end_of_text = next((place for place in ends if place >= 0), -1)
        if end_of_text < 0:
            return -1
        end = max(end, end_of_text)
    return end


def _end_of_spelling(prompt: str, spelling: str, after: int, start: int) -> int:
    """Where a spelling of a text ends, searched behind `after`, then behind `start`; -1 if it is not there.

    Some templates sort the arguments of a call, so a text may stand before the last one.
    """
    place = prompt.find(spelling, after)
    if place < 0 and start < after:
        place = prompt.find(spelling, start)
    return place + len(spelling) if place >= 0 else -1


def _call_texts(message: Mapping[str, Any]) -> Iterator[str]:
    """The strings in the arguments of the calls of a message."""
    for call in message.get("tool_calls", ()):
        arguments = call["function"]["arguments"]
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except ValueError:
                yield arguments
                continue
        yield from _strings(arguments)


def _strings(value: Any) -> Iterator[str]:
    """The strings in a JSON value, except the names of fields."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


def _printed(text: str) -> Iterator[str]:
    """The ways in which templates print a text: as it is, and as JSON.

    JSON may have escapes for the characters beyond ASCII, or for those that are special in HTML (Jinja's `tojson`).
    """
    yield text
    text = text.strip()
    yield json.dumps(text, ensure_ascii=False)
    yield json.dumps(text)
    yield str(htmlsafe_json_dumps(text))


# JSON inside a JSON string has more backslashes than the JSON alone. Without backslashes and quotes, both are equal.
_compact = partial(re.compile(r"""[\s\\"']+""").sub, "")
