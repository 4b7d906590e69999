"""The texts around arguments that are written one by one, as data.

The argument `city` in the format of DeepSeek V3.2, with the fields of `ArgumentFormat`, in ASCII:

    <|DSML|parameter name="          before_key
    city
    "                                after_key
     string="true"                   attribute: that the value is a string
    >                                before_value
    Rome
    </|DSML|parameter>               after_value; `separator` would follow if another argument did
"""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from ...schema.types import ALL_TYPES, STRING, types_of
from .holes import BREAK, Hole, Text, filled, text_of
from .value_writer import written_value

# The attributes of values: for each, JSON types of a value, and how the attribute is written for them.
_ATTRIBUTES = {
    "type": tuple((frozenset({name}), f' type="{name}"') for name in sorted(ALL_TYPES - {"integer"})),
    "string": ((STRING, ' string="true"'), (ALL_TYPES - STRING, ' string="false"')),
}


def stated_types(attributes: str) -> frozenset[str]:
    """The JSON types that the attributes of a value state; none if they state nothing that its schema does not."""
    attribute = _ATTRIBUTE.search(attributes)
    if attribute is None:
        return frozenset()
    if attribute[1] == "type":
        return frozenset({attribute[2]})
    return STRING if attribute[2] == "true" else frozenset()


_ATTRIBUTE = re.compile(rf'\b({"|".join(_ATTRIBUTES)})="(\w+)"')


class ValueFormat(NamedTuple):
    """How values of some JSON types are written, with the name of the argument: `start`, the value, `end`."""

    types: frozenset[str]
    start: Text
    end: Text
    # The marker that bare text may not contain. "": no value is bare text.
    marker: str
    # Bare text may not begin with this text, with which another format of values starts.
    not_start: str = ""

    @property
    def has_bare_text(self) -> bool:
        """Whether strings are bare text, without quotes and escapes."""
        return bool(self.marker)

    def can_have(self, value: Any) -> bool:
        """Whether the parser reads this value, written in this format, as the same value."""
        is_bare = self.has_bare_text and isinstance(value, str)
        is_other = is_bare and ((self.not_start and value.startswith(self.not_start)) or self.marker in value)
        return bool(types_of(value) & self.types) and not is_other


@dataclass(frozen=True)
class ArgumentFormat:
    """The texts around the key and the value of an argument."""

    before_key: str = ""
    after_key: str = ""
    # An attribute after the key: "type" has the JSON type of the value, "string" whether it is a string. "": none.
    attribute: str = ""
    before_value: str = ""  # The parser can do without it.
    after_value: str = ""
    # Whether the end tag has the key, too: `after_value`, the key, `after_key`. Objects and lists are then written as
    # arguments inside the argument.
    repeats_key: bool = False
    separator: str = ""  # The text between two arguments.
    line_breaks: bool = True  # Whether line breaks may be between tags.
    value_on_lines: bool = False  # Whether a line break may be on each side of a value.
    quotes: tuple[str, str] = ("", "")  # Texts that may be around a string value. They are not part of the value.

    @property
    def texts(self) -> tuple[str, ...]:
        return (self.before_key, self.after_key, self.before_value, self.after_value, *self.quotes)

    @cached_property
    def values(self) -> tuple[ValueFormat, ...]:
        """The formats of values. The last one for a type is preferred."""
        line_break = (BREAK,) if self.line_breaks else ()
        before = text_of(line_break if self.before_key else (), self.before_key, Hole.NAME, self.after_key)
        end = text_of(self.after_value, *((Hole.NAME, self.after_key) if self.repeats_key else ()))
        if self.attribute:
            return tuple(
                ValueFormat(
                    types,
                    text_of(before, attribute, self.before_value),
                    end,
                    self.after_value if types == STRING else "",
                )
                for types, attribute in _ATTRIBUTES[self.attribute]
            )
        start = text_of(before, line_break if self.before_value else (), self.before_value)
        quote, end_quote = self.quotes
        # With arguments inside the argument, their start tag ends a text, too, and the end tag begins like it.
        marker = self.before_key if self.repeats_key else self.after_value
        bare = ValueFormat(ALL_TYPES, start, end, marker, quote)
        if not quote:
            return (bare,)
        quoted = ValueFormat(STRING, text_of(start, quote), text_of(end_quote, end), end_quote + self.after_value)
        return (quoted, bare)

    def can_name(self, name: str) -> bool:
        """Whether the parser can read this key."""
        if self.after_key == "=":
            return name.isidentifier() and not keyword.iskeyword(name)
        return re.fullmatch(r"[^\s<>\"'/\[\](){}=,:]+", name) is not None

    def written(self, name: str, value: Any, notation: str) -> str:
        formats = [format for format in reversed(self.values) if types_of(value) & format.types]
        format = next((format for format in formats if format.can_have(value)), formats[0])
        text = value if format.has_bare_text and isinstance(value, str) else written_value(value, notation)
        start, end = filled(format.start, name), filled(format.end, name)
        return f"{start}\n{text}\n{end}" if self.value_on_lines else start + text + end
