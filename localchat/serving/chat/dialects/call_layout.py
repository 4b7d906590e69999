"""Layouts of tool calls: the texts around names, arguments and values, as a model family declares them.

The grammar of tool calls, and the code that writes the tool calls of earlier turns into the prompt, use these
declarations. The parsers accept more variants than a layout describes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Callable

# Placeholders in the texts of layouts: a number of one to three digits, the name of the tool or argument, up to two
# line breaks, any indentation, an id.
A_NUMBER, THE_NAME, A_BREAK, A_SPACE, AN_ID = "\x00", "\x01", "\x02", "\x03", "\x04"
_PLACEHOLDERS = re.compile("[\x00-\x04]")
# The texts that replace placeholders in written calls.
_FILLED = str.maketrans({A_NUMBER: "0", A_BREAK: "\n", A_SPACE: "", AN_ID: "0"})

ALL_TYPES = frozenset({"string", "number", "integer", "boolean", "null", "array", "object"})
STRING = frozenset({"string"})
TYPE_NAMES: Mapping[type, str] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
    list: "array",
    dict: "object",
}

# The quotes around strings in the notation "gemma".
GEMMA_QUOTE = '<|"|>'


@dataclass(frozen=True)
class ValueLayout:
    """How values of some JSON types are written: `start`, the value, `end`."""

    types: frozenset[str]
    """The JSON types of the values."""
    start: str
    end: str
    end_marker: str = ""
    """The part of `end` at which the parser stops: strings are bare text that may not contain it. "": strings are
    JSON."""
    names_type: bool = True
    """Whether `start` tells the parser the type of the value."""
    not_start: str = ""
    """Bare text may not begin with this text, the start of another layout. "": no restriction."""


@dataclass(frozen=True)
class ArgumentsLayout:
    """How arguments are written one by one: `before_key`, the name, `after_key`, the value in one of the layouts."""

    before_key: str
    after_key: str
    values: tuple[ValueLayout, ...]
    separator: str = ""
    names: str = r"\S+"
    """The pattern of names that this layout can represent."""
    on_lines: bool = False
    """Whether a line break may be on each side of a value."""
    item: str = ""
    """The name of array items, for families that nest this layout: objects are written as arguments, and arrays as
    arguments with this name. "": objects and arrays are written in the notation of the `CallLayout`."""

    def value(self, name: str, value: Any, notation: str) -> str:
        """Write the value of the argument `name`, with the texts around it."""
        type_name = TYPE_NAMES[type(value)]
        names = {type_name, "number"} if type_name == "integer" else {type_name}
        layout = next(layout for layout in reversed(self.values) if names & layout.types)
        is_bare = bool(layout.end_marker) and isinstance(value, str)
        text = value if is_bare else _WRITERS[notation](value)
        return (layout.start + text + layout.end).replace(THE_NAME, name)


@dataclass(frozen=True)
class CallLayout:
    """One layout of the tool calls in an output: `begin`, calls with `separator` between them, `end`.

    A call is `before_name`, the name, `before_arguments`, the arguments, `after_call`. The texts may have placeholders.
    """

    before_name: str = '{"name": "'
    before_arguments: str = '", "arguments": '
    after_call: str = "}"
    begin: str = ""
    separator: str = ""
    end: str = ""
    opener: str = ""
    """The marker that begins the calls. "": all text up to the arguments is needed to distinguish a call from text."""
    json_name: bool = True
    """Whether the name is escaped as in a JSON string."""
    indent: int | None = None
    """The arguments may be on several lines, indented by at most this many spaces. None: they are on one line."""
    notation: str = "json"
    """The notation of arguments that are one object, and of values that are not bare text: "json", "gemma" or
    "python"."""
    end_marker: str = ""
    """The marker at which the parser stops reading arguments. Strings may not contain it. "": there is none."""
    arguments: ArgumentsLayout | None = None
    """The layout of arguments that are written one by one, if the schema permits. None: they are one object."""
    is_native: bool = True
    """Whether models generate this layout on their own. False: only requests that require calls use it."""
    after_reasoning: str = "\n\n"
    """The text between reasoning and calls."""
    template_text: str = ""
    """The layout applies only to models whose chat template contains this text. "": to all models of the family."""
    more: CallLayout | None = None
    """The layout of calls after the first. None: this layout."""

    def head(self, name: str) -> str:
        """The beginning of a call of the tool `name`, up to its arguments."""
        inside = json.dumps(name, ensure_ascii=False)[1:-1] if self.json_name else name
        return (self.before_name + inside + self.before_arguments).replace(THE_NAME, inside)

    @property
    def markers(self) -> tuple[str, ...]:
        """The texts that are the same in all calls, split at their placeholders."""
        texts = [self.begin, self.before_name, self.before_arguments, self.after_call, self.separator, self.end]
        if self.arguments is not None:
            texts += [self.arguments.before_key, self.arguments.after_key]
            texts += [text for value in self.arguments.values for text in (value.start, value.end)]
        return tuple(piece for text in (*texts, self.after_reasoning) for piece in _PLACEHOLDERS.split(text) if piece)

    def written(self, calls: Sequence[Mapping[str, Any]]) -> str:
        """Write calls (dicts with `name` and `arguments`) in this layout."""
        texts = [self.head(call["name"]) + self._arguments(call["arguments"]) + self.after_call for call in calls]
        return (self.begin + self.separator.join(texts) + self.end).translate(_FILLED)

    def _arguments(self, arguments: Any) -> str:
        layout = self.arguments
        if layout is None or not isinstance(arguments, dict):
            return _WRITERS[self.notation](arguments)
        return layout.separator.join(
            layout.before_key + name + layout.after_key + layout.value(name, value, self.notation)
            for name, value in arguments.items()
        )


def _gemma(value: Any) -> str:
    if isinstance(value, str):
        return GEMMA_QUOTE + value + GEMMA_QUOTE
    if isinstance(value, dict):
        pairs = (f"{key}:{_gemma(value[key])}" for key in sorted(value, key=str.lower))
        return "{" + ",".join(pairs) + "}"
    return "[" + ",".join(map(_gemma, value)) + "]" if isinstance(value, list) else json.dumps(value)


_WRITERS: Mapping[str, Callable[[Any], str]] = {
    "json": lambda value: json.dumps(value, ensure_ascii=False),
    "python": repr,
    "gemma": _gemma,
}
