"""Call formats: one text for each. The parser, the constraint and the writer of earlier calls read the same layouts.

    <tool_calls>~@(<function=$name>*(~<parameter=$key>$value</parameter>)*~</function>)~@~</tool_calls>

    @( ... ), @     the call, and the text between calls
    $name           the name of a tool
    $args           the arguments as one object
    *( ... )*       repeats for each argument: $key is its name, $value bare text, converted by the schema of the tool
    $type $string   the JSON type of the value as an attribute (type="array"), or whether it is a string (string="true")
    $id $n          an id, a number
    ~ ^             up to two line breaks (one is written); any indentation (none is written)

The parser accepts any white space where the text has some, and any text in the place of attributes. A call that is a
JSON object may have other fields, in any order.
"""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Callable, NamedTuple

from ...schema.types import ALL_TYPES, STRING, TYPE_NAMES
from .values import GEMMA_QUOTE

# Placeholders in the texts of layouts: the name of the tool or argument, a number of one to three digits, an id, up to
# two line breaks, any indentation; and the texts that replace them in written calls.
THE_NAME, A_NUMBER, AN_ID, A_BREAK, A_SPACE = "$name", "$n", "$id", "~", "^"
PLACEHOLDER = re.compile(r"(\$(?:name|id|n)|[~^])")
_FILLED = {A_NUMBER: "0", AN_ID: "0", A_BREAK: "\n", A_SPACE: ""}
# The parts of the texts around arguments: names, ids, and literal texts. White space separates them.
_PARTS = re.compile(r"(\$(?:name|id|n))|[~^\s]+")

# The parts of a call format: placeholders and brackets; the texts around calls; around the arguments; of an argument.
_HOLES = re.compile(r"\$[a-z]+|[~^]|@\(?|\*\(|\)[*@]?")
_CALLS = re.compile(r"(.*)@\((.*)\)([^)@]*)@(.*)", re.DOTALL)
_CALL = re.compile(r"(.*?\$name.*?)(?:\$args|\*\((.*)\)\*)(.*)", re.DOTALL)
_ARGUMENT = re.compile(r"(.*?)\$name(.*?)(?:(\$type|\$string)(.*))?\$value(.*)", re.DOTALL)
# The attributes of values: the JSON types of a value, and its attribute.
_ATTRIBUTES = {
    "$type": tuple((frozenset({name}), f' type="{name}"') for name in sorted(ALL_TYPES - {"integer"})),
    "$string": ((STRING, ' string="true"'), (ALL_TYPES - STRING, ' string="false"')),
}


class ValueLayout(NamedTuple):
    """How values of some JSON types are written, with the name of the argument: `start`, the value, `end`."""

    types: frozenset[str]
    start: str
    end: str
    marker: str  # Strings are bare text that may not contain this marker. "": strings are not bare text.
    not_start: str = ""  # Bare text may not begin with this text, the start of another layout.


@dataclass(frozen=True)
class ArgumentsLayout:
    """How arguments are written one by one: `before_key`, the name, `key_end`, attributes, `before_value`, a value."""

    before_key: str
    key_end: str
    attributes: str  # "$type", "$string" or "".
    before_value: str  # The text between the attributes and the value. The parser can do without it.
    end: str  # The text after the value.
    separator: str
    on_lines: bool  # Whether a line break may be on each side of a value.
    quotes: tuple[str, str]  # Texts that may be around a string value. They are not part of the value.

    @property
    def is_nested(self) -> bool:
        """Whether objects and lists are written as arguments inside the argument, whose end tags have their names."""
        return THE_NAME in self.end

    @property
    def values(self) -> tuple[ValueLayout, ...]:
        """The layouts of values. The last one for a type is preferred."""
        before, end, (quote, end_quote) = self.before_key + THE_NAME + self.key_end, self.end, self.quotes
        if self.attributes:
            return tuple(
                ValueLayout(types, before + text + self.before_value, end, end if types == STRING else "")
                for types, text in _ATTRIBUTES[self.attributes]
            )
        start = before + self.before_value
        # With nested elements, the start tag of an element also ends a text.
        bare = ValueLayout(ALL_TYPES, start, end, end.partition("</")[0] if self.is_nested else end, quote)
        return (ValueLayout(STRING, start + quote, end_quote + end, end_quote + end), bare) if quote else (bare,)

    def can_name(self, name: str) -> bool:
        if self.key_end == "=":
            return name.isidentifier() and not keyword.iskeyword(name)
        return re.fullmatch(r"[^\s<>\"'/\[\](){}=,:]+", name) is not None

    def written(self, name: str, value: Any, notation: str) -> str:
        type_name = TYPE_NAMES[type(value)]
        names = {type_name, "number"} if type_name == "integer" else {type_name}
        layout = next(layout for layout in reversed(self.values) if names & layout.types)
        text = value if layout.marker and isinstance(value, str) else _WRITERS[notation](value)
        start, end = (filled(part, name) for part in (layout.start, layout.end))
        return f"{start}\n{text}\n{end}" if self.on_lines else start + text + end


@dataclass(frozen=True)
class CallLayout:
    """One layout of the tool calls in an output: `begin`, calls with `separator` between them, `end`. A call is `head`,
    which has the name, the arguments, `after_call`. The texts may have placeholders."""

    head: str
    after_call: str
    begin: str = ""
    separator: str = ""
    end: str = ""
    # The marker that begins the calls. "": all text up to the arguments is needed to distinguish a call from text.
    opener: str = ""
    # The notation of arguments that are one object, and of values that are not bare text: "json", "gemma" or "python".
    notation: str = "json"
    # The layout of arguments that are written one by one, if the schema permits. None: they are one object.
    arguments: ArgumentsLayout | None = None
    other_ends: tuple[str, ...] = ()  # Markers that some models generate instead of `end`.
    # The layout applies only to models whose chat template contains this text. "": to all models of the family.
    template_text: str = ""
    markers: tuple[str, ...] = ()  # The texts that are the same in all calls. The parser needs them as text.

    @property
    def is_object(self) -> bool:
        """Whether a call is a JSON object, which has the name and the arguments."""
        return "{" in self.head

    @property
    def ends(self) -> tuple[str, ...]:
        """The markers after the arguments: of the call, if there is one, then those after all calls."""
        own = parts_of(self.after_call.partition("}")[2] if self.is_object else self.after_call.lstrip(")"))
        return (*own, *parts_of(self.end.lstrip(A_SPACE).removeprefix("]")), *self.other_ends)

    def shown(self, name: str) -> str:
        """The name of a tool, as it is written in `head` and in `begin`."""
        return json.dumps(name, ensure_ascii=False)[1:-1] if self.is_object else name

    def written(self, calls: Sequence[Mapping[str, Any]]) -> str:
        texts = [
            filled((self.separator if i else self.begin) + self.head, self.shown(call["name"]))
            + self._written_arguments(call["arguments"])
            + filled(self.after_call)
            for i, call in enumerate(calls)
        ]
        return "".join(texts) + filled(self.end)

    def _written_arguments(self, arguments: Any) -> str:
        layout = self.arguments
        if layout is None or not isinstance(arguments, dict):
            return _WRITERS[self.notation](arguments)
        texts = (layout.written(name, value, self.notation) for name, value in arguments.items())
        return layout.separator.join(texts)


def call_layouts(*texts: str, quotes: tuple[str, str] = ("", ""), **options: Any) -> tuple[CallLayout, ...]:
    """The layouts of call formats. Calls in tags also have a layout without the texts around all calls."""
    layouts: list[CallLayout] = []
    for text in texts:
        literals = filter(None, _HOLES.split(text))
        text = text.replace("$key", THE_NAME)
        match = _CALLS.fullmatch(text)
        begin, call, separator, end = match.groups() if match else ("", text, "", "")
        parts = _CALL.fullmatch(call)
        assert parts, text
        head, argument, after_call = parts.groups("")
        arguments = _arguments_layout(argument, quotes, options.get("notation")) if argument else None
        markers = (*literals, *quotes, *options.get("other_ends", ()))
        own = {"arguments": arguments, "markers": markers, "opener": _opener(begin) or _opener(call), **options}
        layout = CallLayout(head, after_call, begin, separator, end, **own)
        layouts.append(layout)
        if begin and not layout.is_object and layout.notation == "json":
            ends = (*layout.other_ends, *parts_of(layout.end))
            layouts.append(replace(layout, begin="", end="", opener=_opener(call), other_ends=ends))
    return tuple(layouts)


def _arguments_layout(text: str, quotes: tuple[str, str], notation: str | None) -> ArgumentsLayout:
    match = _ARGUMENT.fullmatch(text)
    assert match, text
    before_key, key_end, attributes, before_value, end = match.groups("")
    if not attributes:
        key_end, space, before_value = key_end.partition(A_BREAK)
        before_value = space + before_value
    on_lines = key_end.endswith("\n") and end.startswith("\n")
    separator = ", " if notation == "python" else ""
    texts = (before_key, key_end.rstrip("\n"), attributes, before_value, end.lstrip("\n"))
    return ArgumentsLayout(*texts, separator, on_lines, quotes)


def filled(text: str, name: str = "") -> str:
    """A text of a layout as it is written, with the name of a tool or argument."""
    return PLACEHOLDER.sub(lambda match: _FILLED.get(match[0], name), text)


def parts_of(text: str) -> tuple[str, ...]:
    """The literal texts, the names and the ids in a text of a layout, without white space."""
    return tuple(filter(None, _PARTS.split(text)))


def _opener(text: str) -> str:
    """The marker at the beginning of a text, without words after a tag. A list's bracket belongs to it after a word."""
    return re.sub(r"(?<=>)[\w.:]+$|(?<=\W)\[$", "", re.split(r"[~^$@{]", text, maxsplit=1)[0].rstrip("\n"))


def gemma_text(value: Any) -> str:
    """A value in the notation of Gemma 4. A string with its quote is JSON."""
    if isinstance(value, str) and GEMMA_QUOTE not in value:
        return GEMMA_QUOTE + value + GEMMA_QUOTE
    if isinstance(value, dict):
        pairs = (f"{key}:{gemma_text(value[key])}" for key in sorted(value, key=str.lower))
        return "{" + ",".join(pairs) + "}"
    return "[" + ",".join(map(gemma_text, value)) + "]" if isinstance(value, list) else _json(value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


_WRITERS: Mapping[str, Callable[[Any], str]] = {
    "json": _json,
    # The strings, lists and objects of LFM2's template are JSON.
    "python": lambda value: repr(value) if value is None or isinstance(value, bool) else _json(value),
    "gemma": gemma_text,
}
