"""How tool calls are laid out as text: what stands around their names, arguments and values. Values alone.

A family's way of calling is told once in these, for those who know it (chat/formats) and for those who make
grammars of it (engine/grammar).
"""

from __future__ import annotations

import json
from dataclasses import dataclass

# Gaps in texts: a number of one to three digits, the name that the text is about, up to two line breaks, any
# indentation, an id.
A_NUMBER, THE_NAME, A_BREAK, A_SPACE, AN_ID = "\x00", "\x01", "\x02", "\x03", "\x04"

ALL_TYPES = frozenset({"string", "number", "integer", "boolean", "null", "array", "object"})
STRING = frozenset({"string"})


@dataclass(frozen=True)
class ValueLayout:
    """How values of these JSON types are written: `start`, the value, `end`.

    With a `mark`, with which `end` begins, strings are bare text that does not hold it; other values, and all of
    them without a mark, are JSON. `tells_type` says that whoever reads it knows the types by `start`. Bare text may
    not begin with `not_start`, if that is any: it would be read as the start of another way.
    """

    types: frozenset[str]
    start: str
    end: str
    mark: str = ""
    tells_type: bool = True
    not_start: str = ""


@dataclass(frozen=True)
class ArgumentsLayout:
    """The texts around arguments that are written one by one: each is `before_key`, its name, `after_key`, and the
    value in one of the ways.

    They stand between `begin` and `end` with `separator` between them. Only names that match the pattern `names`
    can be written. With `on_lines` a line break may stand around a value. What is called JSON here is written in
    `notation`: "json" or "python". With `item` objects and lists are written in the same way again, as far as they
    can be: the members of an object as its arguments are, the items of a list as arguments of that name.
    """

    before_key: str
    after_key: str
    values: tuple[ValueLayout, ...]
    begin: str = ""
    end: str = ""
    separator: str = ""
    names: str = r"\S+"
    on_lines: bool = False
    notation: str = "json"
    item: str = ""


@dataclass(frozen=True)
class CallLayout:
    """The texts around calls: `begin`, then calls with `separator` between them, then `end`.

    A call is `before_name`, the name, `before_arguments`, the arguments, `after_call`. The texts may have gaps.
    `json_name` writes the name as the inside of a JSON string. Arguments are one JSON object, which may be broken
    into lines and indented by up to `indent` spaces, in a `notation`: "json", "gemma" or "python"; with `arguments`
    they are written one by one, where the schema lets them.
    """

    before_name: str = '{"name": "'
    before_arguments: str = '", "arguments": '
    after_call: str = "}"
    begin: str = ""
    separator: str = ""
    end: str = ""
    json_name: bool = True
    indent: int | None = None
    notation: str = "json"
    arguments: ArgumentsLayout | None = None

    def head(self, name: str) -> str:
        """How a call of the tool of that name begins, up to its arguments."""
        inside = json.dumps(name, ensure_ascii=False)[1:-1] if self.json_name else name
        return (self.before_name + inside + self.before_arguments).replace(THE_NAME, inside)
