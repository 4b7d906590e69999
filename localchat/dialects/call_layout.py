"""Layouts of tool calls: the texts around names, arguments and values, as a model family declares them.

The output parser, the grammar of calls and the writer of calls in the history all use these declarations.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Callable

# Gaps in texts: a number of one to three digits, the name that the text is about, up to two line breaks, any
# indentation, an id.
A_NUMBER, THE_NAME, A_BREAK, A_SPACE, AN_ID = "\x00", "\x01", "\x02", "\x03", "\x04"
_GAPS = re.compile("[\x00-\x04]")
# The texts of the gaps in a history.
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

# The quotes of strings in the notation "gemma".
GEMMA_QUOTE = '<|"|>'


@dataclass(frozen=True)
class ValueLayout:
    """How values of some JSON types are written: `start`, the value, `end`."""

    types: frozenset[str]
    start: str
    end: str
    mark: str = ""
    """The beginning of `end`. Strings are bare text without it; other values are JSON. "": strings are JSON too."""
    names_type: bool = True
    """Whether `start` shows the parser the type of the value."""
    not_start: str = ""
    """Bare text may not begin with this, the start of another layout. "": no restriction."""


@dataclass(frozen=True)
class ArgumentsLayout:
    """How arguments are written one by one: `before_key`, the name, `after_key`, the value in one of the layouts."""

    before_key: str
    after_key: str
    values: tuple[ValueLayout, ...]
    begin: str = ""
    end: str = ""
    separator: str = ""
    names: str = r"\S+"
    """The pattern of the names that can be written."""
    on_lines: bool = False
    """Whether a line break may stand on each side of a value."""
    notation: str = "json"
    """How values that are not bare text are written: "json" or "python"."""
    item: str = ""
    """Objects and arrays are written in this layout again: an object as its arguments, the items of an array as
    arguments of this name. "": they are not."""

    def value(self, name: str, value: Any) -> str:
        """The value of an argument of that name, with the texts around it."""
        type_name = TYPE_NAMES[type(value)]
        names = {type_name, "number"} if type_name == "integer" else {type_name}
        layout = next(layout for layout in reversed(self.values) if names & layout.types)
        is_bare = bool(layout.mark) and isinstance(value, str)
        text = value if is_bare else _WRITERS[self.notation](value)
        return (layout.start + text + layout.end).replace(THE_NAME, name)


@dataclass(frozen=True)
class CallLayout:
    """One way of writing calls: `begin`, then calls with `separator` between them, then `end`.

    A call is `before_name`, the name, `before_arguments`, the arguments, `after_call`. The texts may have gaps.
    """

    before_name: str = '{"name": "'
    before_arguments: str = '", "arguments": '
    after_call: str = "}"
    begin: str = ""
    separator: str = ""
    end: str = ""
    opener: str = ""
    """The marker with which the calls begin. "": only the text up to the arguments distinguishes a call from text."""
    json_name: bool = True
    """Whether the name is written as the inside of a JSON string."""
    indent: int | None = None
    """The arguments may be on several lines, indented by this many spaces. None: they are on one line."""
    notation: str = "json"
    """How arguments that are one object are written: "json", "gemma" or "python"."""
    end_marker: str = ""
    """The marker up to which the parser collects the arguments, so that no string may hold it. "": none."""
    arguments: ArgumentsLayout | None = None
    """How arguments are written one by one, if the schema permits it. None: they are one object."""
    is_native: bool = True
    """Models write this layout without being prompted for it. False: only where the request requires calls."""
    after_reasoning: str = "\n\n"
    """The text between reasoning and calls."""
    mark: str = ""
    """The layout applies only to models with this text in their template."""
    more: CallLayout | None = None
    """How calls after the first are written. None: in this layout."""

    def head(self, name: str) -> str:
        """The beginning of a call of the tool of that name, up to its arguments."""
        inside = json.dumps(name, ensure_ascii=False)[1:-1] if self.json_name else name
        return (self.before_name + inside + self.before_arguments).replace(THE_NAME, inside)

    def bare(self, opener: str) -> CallLayout:
        """The same calls without the texts around all of them, since some models forget to begin with these."""
        return replace(self, opener=opener, begin="", end="")

    @property
    def markers(self) -> tuple[str, ...]:
        """The texts that all calls in this layout have, in pieces without gaps."""
        texts = [self.begin, self.before_name, self.before_arguments, self.after_call, self.separator, self.end]
        if self.arguments is not None:
            texts += [self.arguments.before_key, self.arguments.after_key]
            texts += [text for value in self.arguments.values for text in (value.start, value.end)]
        return tuple(piece for text in (*texts, self.after_reasoning) for piece in _GAPS.split(text) if piece)

    def written(self, calls: Sequence[Mapping[str, Any]]) -> str:
        """Write calls (dicts with `name` and `arguments`) as a model does."""
        texts = [self.head(call["name"]) + self._arguments(call["arguments"]) + self.after_call for call in calls]
        return (self.begin + self.separator.join(texts) + self.end).translate(_FILLED)

    def _arguments(self, arguments: Any) -> str:
        layout = self.arguments
        if layout is None or not isinstance(arguments, dict):
            return _WRITERS[self.notation](arguments)
        pairs = [layout.before_key + key + layout.after_key + layout.value(key, arguments[key]) for key in arguments]
        return layout.begin + layout.separator.join(pairs) + layout.end


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
