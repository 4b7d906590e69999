"""Call formats: one text for each. The parser, the constraint and the writer of earlier calls read the same layouts.

    <tool_calls>~@(<function=$name>*(~<parameter=$key>$value</parameter>)*~</function>)~@~</tool_calls>

    @( ... ), @     the call, and the text between calls
    $name           the name of a tool
    $args           the arguments as one object
    *( ... )*       repeats for each argument: $key is its name, $value bare text, converted by the schema of the tool
    ?( ... )?       attributes of the value; the parser accepts any text in their place
    $type $string   inside attributes: the JSON type of the value, or whether it is a string, "true" or "false"
    $id $n          an id, a number
    ~ ^             up to two line breaks (one is written); any indentation (none is written)

The parser accepts any white space where the text has some. A call that is a JSON object is read by json_calls.py, which
accepts more variants.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Callable

# Placeholders in the texts of layouts: a number of one to three digits, the name of the tool or argument, up to two
# line breaks, any indentation, an id.
A_NUMBER, THE_NAME, A_BREAK, A_SPACE, AN_ID = "\x00", "\x01", "\x02", "\x03", "\x04"
_PLACEHOLDERS = {"$name": THE_NAME, "$key": THE_NAME, "$id": AN_ID, "$n": A_NUMBER, "~": A_BREAK, "^": A_SPACE}
# The texts that replace placeholders in written calls.
_FILLED = str.maketrans({A_NUMBER: "0", A_BREAK: "\n", A_SPACE: "", AN_ID: "0"})
# The parts of the texts around names: ids, and literal texts. White space separates them.
_PARTS = re.compile(f"([{A_NUMBER}{AN_ID}])|[{A_BREAK}{A_SPACE}\\s]+")

_CALLS = re.compile(r"(.*)@\((.*)\)([^)@]*)@(.*)", re.DOTALL)
_CALL = re.compile(r"(.*?)\$name(.*?)(?:\$args|\*\((.*)\)\*)(.*)", re.DOTALL)
_ARGUMENT = re.compile(r"(.*)\$key(.*?)(?:\?\((.*)\)\?(.*))?\$value(.*)", re.DOTALL)

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
    key_end: str
    """The text after the name."""
    attributes: str = ""
    """The attributes of the value, with "$type" or "$string". "": the format has none."""
    before_value: str = ""
    """The text between the attributes and the value. The parser can do without it."""
    end: str = ""
    """The text after the value."""
    separator: str = ""
    names: str = r'[^\s<>"]+'
    """The pattern of names that this layout can represent."""
    on_lines: bool = False
    """Whether a line break may be on each side of a value."""
    item: str = ""
    """The name of array items, for families that nest this layout: objects are written as arguments, and arrays as
    arguments with this name. "": objects and arrays are written in the notation of the `CallLayout`."""
    quotes: tuple[str, str] = ("", "")
    """Texts that may be around a string value. They are not part of the value."""

    @classmethod
    def of(cls, text: str, **options: Any) -> ArgumentsLayout:
        """The layout in the text of a call format."""
        match = _ARGUMENT.fullmatch(text)
        assert match, text
        before_key, key_end, attributes, before_value, end = match.groups("")
        if not attributes:
            key_end, space, before_value = key_end.partition("~")
            before_value = space + before_value
        on_lines = key_end.endswith("\n") and end.startswith("\n")
        before_key, key_end, before_value, end = map(_layout_text, (before_key, key_end, before_value, end))
        end = end.lstrip("\n")
        return cls(before_key, key_end.rstrip("\n"), attributes, before_value, end, on_lines=on_lines, **options)

    @property
    def after_key(self) -> str:
        """The text between the name and the start of the value."""
        return "" if self.attributes else self.key_end + self.before_value

    @property
    def values(self) -> tuple[ValueLayout, ...]:
        """The layouts of values."""
        return tuple(self._values())

    def _values(self) -> Iterator[ValueLayout]:
        end, (quote, end_quote) = self.end, self.quotes
        for types, text in self._typed():
            start = self.key_end + text + self.before_value
            yield ValueLayout(types, start, end, end if types == STRING else "")
        if quote:
            yield ValueLayout(STRING, quote, end_quote + end, end_quote + end, names_type=False)
        if not self.attributes:
            # With nested elements, the start tag of an element also ends a text.
            marker = end.partition("</")[0] if self.item else end
            yield ValueLayout(ALL_TYPES, "", end, marker, not_start=quote)

    def _typed(self) -> Iterator[tuple[frozenset[str], str]]:
        """The attributes for values of each group of JSON types."""
        if "$type" in self.attributes:
            for name in sorted(ALL_TYPES - {"integer"}):
                yield frozenset({name}), self.attributes.replace("$type", name)
        if "$string" in self.attributes:
            yield STRING, self.attributes.replace("$string", "true")
            yield ALL_TYPES - STRING, self.attributes.replace("$string", "false")

    def stated_types(self, attributes: str) -> frozenset[str] | None:
        """The JSON types that the attributes of a value state; None if they state none."""
        pattern = re.sub(r"\\\$(type|string)", r"(\\w+)", re.escape(self.attributes.strip()))
        match = re.search(pattern, attributes) if self.attributes else None
        if match is None:
            return None
        if "$type" in self.attributes:
            return frozenset({match[1]})
        return STRING if match[1] == "true" else None

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
    """Whether a call is a JSON object, so that the name is escaped as in a JSON string."""
    notation: str = "json"
    """The notation of arguments that are one object, and of values that are not bare text: "json", "gemma" or
    "python"."""
    end_marker: str = ""
    """The marker at which the parser stops reading arguments. Strings may not contain it. "": there is none."""
    arguments: ArgumentsLayout | None = None
    """The layout of arguments that are written one by one, if the schema permits. None: they are one object."""
    other_ends: tuple[str, ...] = ()
    """Markers that some models generate instead of `end`."""
    id_has_name: bool = False
    """The name and the texts around it, such as "functions.f:0", are the id of the call."""
    is_native: bool = True
    """Whether models generate this layout on their own. False: only requests that require calls use it."""
    after_reasoning: str = "\n\n"
    """The text between reasoning and calls."""
    template_text: str = ""
    """The layout applies only to models whose chat template contains this text. "": to all models of the family."""
    more: CallLayout | None = None
    """The layout of calls after the first. None: this layout."""

    @property
    def ends(self) -> tuple[str, ...]:
        """The markers after the arguments: of the call, if there is one, then those after all calls."""
        own = parts_of(self.after_call.partition("}")[2] if self.json_name else self.after_call.lstrip(")"))
        return (*own, *parts_of(self.end.lstrip(A_SPACE).removeprefix("]")), *self.other_ends)

    @property
    def markers(self) -> tuple[str, ...]:
        """The texts that are the same in all calls, without placeholders. The parser needs them as text."""
        texts = [self.begin, self.before_name, self.before_arguments, self.after_call, self.separator, self.end]
        if self.arguments is not None:
            texts += [self.arguments.before_key, self.arguments.after_key]
            texts += [text for value in self.arguments.values for text in (value.start, value.end)]
        if self.notation == "gemma":
            texts.append(GEMMA_QUOTE)
        pieces = (piece for text in (*texts, self.after_reasoning) for piece in re.split("[\x00-\x04]", text) if piece)
        return (*pieces, *self.other_ends)

    def head(self, name: str) -> str:
        """The beginning of a call of the tool `name`, up to its arguments."""
        inside = json.dumps(name, ensure_ascii=False)[1:-1] if self.json_name else name
        return (self.before_name + inside + self.before_arguments).replace(THE_NAME, inside)

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


def call_layouts(*texts: str, opener: str | None = None, **options: Any) -> tuple[CallLayout, ...]:
    """The layouts of call formats. Calls in tags also have a layout without the texts around all calls.

    Args:
        opener: The marker that begins a call. Default: the call up to its first placeholder or line break.
        options: Other fields of CallLayout, and `names`, `item` and `quotes` of ArgumentsLayout.
    """
    of_arguments = {name: options.pop(name) for name in ("names", "item", "quotes") if name in options}
    layouts: list[CallLayout] = []
    for text in texts:
        match = _CALLS.fullmatch(text)
        begin, call, separator, end = match.groups() if match else ("", text, "", "")
        parts = _CALL.fullmatch(call)
        assert parts, text
        before_name, before_arguments, argument, after_call = parts.groups("")
        arguments = ArgumentsLayout.of(argument, **of_arguments) if argument else None
        names = ("before_name", "before_arguments", "after_call", "begin", "separator", "end")
        filled = (before_name, before_arguments, after_call, begin, separator, end)
        own_opener = _opener(call) if opener is None else opener
        layout = CallLayout(
            **dict(zip(names, map(_layout_text, filled))),  # type: ignore[arg-type]  # the fields are texts
            opener=_opener(begin) or own_opener,
            json_name="{" in before_name,
            arguments=arguments,
            **options,
        )
        if layout.notation != "json":
            layout = replace(layout, end_marker=layout.ends[0])
        layouts.append(layout)
        if begin and not layout.json_name and layout.notation == "json":
            ends = (*layout.other_ends, *parts_of(layout.end))
            layouts.append(replace(layout, begin="", end="", opener=own_opener, other_ends=ends))
    return tuple(layouts)


def parts_of(text: str) -> tuple[str, ...]:
    """The literal texts and the ids in a text of a layout, without white space."""
    return tuple(filter(None, _PARTS.split(text)))


def bare(text: str) -> str:
    """A text of a layout without the white space around it."""
    return text.strip(f"{A_BREAK}{A_SPACE} \n")


def _opener(text: str) -> str:
    """The marker at the beginning of a text. The bracket of a list belongs to it only after a word."""
    return re.sub(r"(?<=\W)\[$", "", re.split(r"[~^${]", text, maxsplit=1)[0].rstrip("\n"))


def _layout_text(text: str) -> str:
    """A text with the placeholders of a layout."""
    for hole, placeholder in _PLACEHOLDERS.items():
        text = text.replace(hole, placeholder)
    return text


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
