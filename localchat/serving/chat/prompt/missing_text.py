"""Finds a text of a conversation that a rendered prompt does not have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Callable

SYSTEM_ROLES = ("system", "developer")


def missing_text(
    prompt: str,
    messages: Sequence[Mapping[str, Any]],
    without_reasoning: Callable[[str], str],
    replaced: Sequence[str] = (),
) -> int | None:
    """The index of the first message of which the prompt lacks a text, after those before it; None: it has all.

    A message has its content, and the strings in the arguments of its calls. System messages and calls have an order of
    their own: templates print system messages elsewhere, and a call may follow the result of the one before. White
    space and the escapes of JSON do not count, since templates strip texts, and some print them as JSON; neither do the
    texts that the template replaces (`replaced`), such as "/no_think". `without_reasoning` returns the text of an
    assistant message without the reasoning in it, which templates leave out of earlier messages.
    """
    if _missing(prompt, messages, without_reasoning, str.strip) is None:
        return None
    words = [word for word in map(_compact, replaced) if word]

    def compact(text: str) -> str:
        text = _compact(text)
        for word in words:
            text = text.replace(word, "")
        return text

    return _missing(compact(prompt), messages, without_reasoning, compact)


def replaced_texts(source: str) -> list[str]:
    """The texts that a template with this source replaces in others, with Jinja's filter or the method of strings."""
    return [match[2] for match in _REPLACE.finditer(source)]


_REPLACE = re.compile(r"""\breplace\(\s*(['"])(.+?)\1""")


def _missing(
    prompt: str,
    messages: Sequence[Mapping[str, Any]],
    without_reasoning: Callable[[str], str],
    normalized: Callable[[str], str],
) -> int | None:
    """`missing_text` for a normalized prompt. Each text is searched after those before, so the time is linear."""
    end = system_end = call_end = 0
    for index, message in enumerate(messages):
        text = message.get("content") or ""
        if message["role"] in SYSTEM_ROLES:
            system_end = _end_of(prompt, [normalized(text)], system_end)
        elif message["role"] == "assistant":
            end = _end_of(prompt, [normalized(without_reasoning(text))], end)
            call_end = _end_of(prompt, map(normalized, _call_texts(message)), call_end)
        else:
            end = _end_of(prompt, [normalized(text)], end)
        if min(end, system_end, call_end) < 0:
            return index
    return None


def _end_of(prompt: str, texts: Iterable[str], start: int) -> int:
    """Where the last of these texts ends, each of which the prompt has behind `start`; -1 if it lacks one."""
    end = start
    for text in texts:
        at = prompt.find(text, end)
        if at < 0:  # Some templates sort the arguments of a call.
            at = prompt.find(text, start)
        if at < 0:
            return -1
        end = max(end, at + len(text))
    return end


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


_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{4}|.)", re.DOTALL)


def _compact(text: str) -> str:
    """A text without white space, quotes and backslashes, so that a text and the same as JSON are equal."""
    without_escapes = _ESCAPE.sub(_character, text)
    return "".join(without_escapes.split()).replace('"', "").replace("\\", "")


def _character(escape: re.Match[str]) -> str:
    """The character of an escape of JSON; the same text if it is none."""
    try:
        return str(json.loads(f'"{escape[0]}"'))
    except ValueError:
        return escape[0]
