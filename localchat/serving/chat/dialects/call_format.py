"""Call formats: the texts around the parts of tool calls, as data.

The parser, the grammar of calls and the writer of earlier calls read the same records. A call of `weather` in the
format of Kimi K2, with the field of `CallFormat` that has each piece:

    <|tool_calls_section_begin|>     begin: before all calls
    <|tool_call_begin|>              call_begin: before each call
    functions.                       before_name
    weather
    :                                id.mark
    0
    <|tool_call_argument_begin|>     before_arguments
    {"city": "Rome", "days": 3}
                                     after_arguments: "" here
    <|tool_call_end|>                call_end; `separator` would follow if another call did
    <|tool_calls_section_end|>       end: after all calls

The name and the arguments of a call have one of three forms:

    an object            {"name": "weather", "arguments": {...}}, with the keys in `keys`
    a name, an object    before_name NAME before_arguments {...} after_arguments
    a name, arguments    the same, but each argument is written by itself, as `arguments` declares (argument_format.py)

Some families write the name of the tool in a header before each call, as in this output of Muse:

     to=weather<|message|>           header
    <atem:function_calls>\n          call_begin, as long as the texts around all calls are ""
    <atem:invoke name="              before_name
    weather
    ">                               before_arguments
    <atem:parameter name="city">Rome</atem:parameter>
    </atem:invoke>                   after_arguments
    </atem:function_calls>           call_end
    <|eom|><|start|>assistant        separator; the header of the next call follows

At the `opener` of a format in a text, the parser tries the format. Most openers follow from the texts of the format.
With headers, a family has two records of one format:

    Muse                       opener: "", since messages that are text have a header, too. Earlier calls are written
                               in this format, and the grammar of required calls begins with the header.
    Muse, `without_section()`  opener: <atem:function_calls>. The first call has no header in this format: the parser
                               has read it before (channels.py), and the grammar takes it for free text.

The parser accepts any white space where a text has some, and any text in the place of attributes. A call that is an
object may have other fields, in any order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

from .argument_format import ArgumentFormat
from .holes import BREAK, Hole, Text, filled, text_of, words_of
from .value_writer import written_value
from .values import GEMMA_QUOTE


class ObjectKeys(NamedTuple):
    """The keys of a call that is a JSON object."""

    name: str = "name"  # "": the name of the tool is the key of its arguments, as in {"NAME": ARGUMENTS}.
    arguments: str = "arguments"


class CallId(NamedTuple):
    """The id that the model generates for a call."""

    mark: str  # The text before the id; the key of the id, if the call is an object.
    # Before the name of the tool, between the name and the arguments, or (in objects) after the arguments.
    place: Literal["first", "after_name", "last"] = "after_name"
    is_number: bool = False  # Whether the model generates the number of the call.
    template: str = "{id}"  # The id of the call, with {name}, and {id} for what the model generates.

    @property
    def hole(self) -> Hole:
        return Hole.NUMBER if self.is_number else Hole.ID

    def id_of_call(self, name: str, generated: Any) -> Any:
        """The id that the client gets of a call, from the id that the model generated; None: the call needs a new one.

        A number alone is none: it begins again with each message, and clients need ids that are unique in the
        conversation. The templates of these families do not read the ids of earlier calls.
        """
        if self.is_number and self.template == "{id}":
            return None
        return self.template.format(name=name, id=generated) if isinstance(generated, str) else None


class CallHeader(NamedTuple):
    """The texts around the name of the tool in a header before each call."""

    before_name: str
    after_name: str
    precedes_first: bool = True  # Whether the header of the first call is part of the format.

    @property
    def text(self) -> Text:
        return (self.before_name, Hole.NAME, self.after_name)


@dataclass(frozen=True)
class CallFormat:
    """One format of the tool calls in an output."""

    # --- around all calls ---
    begin: str = ""
    separator: str | Hole = ""  # Between two calls.
    end: str = ""
    other_ends: tuple[str, ...] = ()  # Markers that some models generate instead of `end`.
    # Whether the calls are the items of a JSON list, in brackets after `begin` and before `end`. Without a `separator`,
    # commas separate them, and any indentation is allowed.
    is_list: bool = False
    # --- around each call ---
    header: CallHeader | None = None  # The header before each call; None: calls have no headers.
    call_begin: str = ""
    call_end: str = ""
    # --- the call ---
    # The keys of a call that is a JSON object; None: a call is a name and arguments, with these texts around them.
    keys: ObjectKeys | None = None
    before_name: str = ""
    before_arguments: str = ""
    after_arguments: str = ""
    id: CallId | None = None  # None: a call has no id.
    # How arguments are written one by one, if the schema permits. None: they are one object.
    arguments: ArgumentFormat | None = None
    # The notation of arguments that are one object, and of values that are not bare text: "json", "gemma" or "python".
    notation: str = "json"
    is_indented: bool = False  # Whether any indentation is allowed between the fields of an object.
    # --- where the format applies ---
    # The `opener`. None: it is the first of `begin`, `call_begin` and `before_name` that is not "". "": no marker alone
    # begins a call, so the parser tries the format only where content begins, or after a header.
    explicit_opener: str | None = None
    # The format applies only to models whose chat template contains this text. "": to all models of the family.
    template_text: str = ""

    @cached_property
    def opener(self) -> str:
        """The marker that begins the calls; "" if no marker alone does."""
        if self.explicit_opener is not None:
            return self.explicit_opener
        first = self.id.mark if self.id and self.id.place == "first" else self.before_name
        texts = (self.begin, self.call_begin, "" if self.keys else first)
        return next(filter(None, texts), "").rstrip("\n")

    @cached_property
    def markers(self) -> tuple[str, ...]:
        """The texts that are the same in all calls. The parser needs them as text."""
        header = text_of(self.header.text if self.header else ())
        around = (self.begin, self.separator, self.end, self.call_begin, self.call_end, *header, *self.other_ends)
        id_mark = self.id.mark if self.id and not self.keys else ""
        parts = (self.before_name, id_mark, self.before_arguments, self.after_arguments)
        quotes = (GEMMA_QUOTE,) if self.notation == "gemma" else ()
        texts = (*around, *parts, *quotes, *(self.arguments.texts if self.arguments else ()))
        return tuple(text for text in texts if text and isinstance(text, str))

    @cached_property
    def ends(self) -> tuple[str, ...]:
        """The markers after the arguments: of the call, if there is one, then those after all calls."""
        texts = text_of(self.after_arguments, " ", self.call_end, " ", self.end)
        return (*(word for word in words_of(texts) if isinstance(word, str)), *self.other_ends)

    @property
    def begins_with_header(self) -> bool:
        """Whether the first call begins with a header. `without_section` matches the same call after its header."""
        return self.header is not None and self.header.precedes_first

    @cached_property
    def next_opener(self) -> str:
        """The marker that begins a further call."""
        first = text_of(self.between_calls, self.call_head, " ")
        return next(part for part in first if isinstance(part, str)).rstrip("\n")

    @cached_property
    def section_begin(self) -> Text:
        """The text before the first call: in the format of Kimi K2, `begin`."""
        header = self._header if self.begins_with_header else ()
        is_on_line = self.is_indented or (self._is_in_tags and self.begin)
        bracket = ("[", *self._list_space) if self.is_list else ()
        return text_of(header, self.begin, (BREAK,) if is_on_line else (), bracket)

    @cached_property
    def between_calls(self) -> Text:
        """The text between two calls: `separator`, or what lists and tags need, such as a comma."""
        if self.separator:
            return text_of(self.separator, self._header)
        return text_of(",", self._list_space) if self.is_list else (BREAK,) if self._is_in_tags else ()

    @cached_property
    def section_end(self) -> Text:
        """The text after the last call."""
        is_on_line = self.is_indented or (self._is_in_tags and self.end)
        bracket = (*self._list_space, "]") if self.is_list else ()
        return text_of(bracket, (BREAK,) if is_on_line else (), self.end)

    @cached_property
    def call_head(self) -> Text:
        """The text of a call before its arguments: `<|tool_call_begin|>functions.`, the name, `:`, the number, ..."""
        is_on_line = self._is_in_tags and self.call_begin and not self.call_begin.endswith("\n")
        return text_of(self.call_begin, (BREAK,) if is_on_line else (), self._object_head or self._named_head)

    @cached_property
    def call_tail(self) -> Text:
        """The text of a call after its arguments: `<|tool_call_end|>`, or the last bracket of an object."""
        line_break = (BREAK,) if self._is_in_tags else ()
        if self.keys is not None:
            last = (f', "{self.id.mark}": "', self.id.hole, '"') if self.id and self.id_is_last else ()
            return text_of(*last, self._field_space, "}", self.call_end)
        bracket = ")" if self.notation == "python" else ""
        after = text_of(bracket, line_break if self.after_arguments else (), self.after_arguments)
        return text_of(after, line_break if self.call_end else (), self.call_end)

    @property
    def _header(self) -> Text:
        return self.header.text if self.header else ()

    @property
    def id_is_last(self) -> bool:
        """Whether the id comes after the arguments."""
        return self.id is not None and self.id.place == "last"

    @property
    def _is_in_tags(self) -> bool:
        """Whether line breaks may be between all tags."""
        return self.arguments is not None and self.arguments.line_breaks

    @property
    def _list_space(self) -> Text:
        return () if self.separator else (Hole.INDENT,)

    @property
    def _field_space(self) -> Text:
        return (Hole.INDENT,) if self.is_indented else ()

    @property
    def _object_head(self) -> Text:
        """The text of an object before its arguments."""
        if self.keys is None:
            return ()
        name, arguments = self.keys
        if not name:
            return ('{"', Hole.NAME, '": ')
        first = (f'"{self.id.mark}": "', self.id.hole, '", ') if self.id and self.id.place == "first" else ()
        between = text_of('",', self._field_space or " ")
        return text_of("{", self._field_space, *first, f'"{name}": "', Hole.NAME, between, f'"{arguments}": ')

    @property
    def _named_head(self) -> Text:
        """The text of a call with a name before its arguments."""
        name_and_id = [text_of(self.before_name, Hole.NAME)]
        if self.id:
            name_and_id.insert(0 if self.id.place == "first" else 1, text_of(self.id.mark, self.id.hole))
        bracket = "(" if self.notation == "python" else ""
        return text_of(*name_and_id, self.before_arguments, bracket)

    def without_section(self) -> CallFormat:
        """The format without the texts around all calls, which some models leave out, and without the first header."""
        ends = (*self.other_ends, *self.end.split())
        header = self.header._replace(precedes_first=False) if self.header else None
        return replace(self, begin="", end="", header=header, explicit_opener=None, other_ends=ends)

    def escaped(self, name: str) -> str:
        """The name of a tool, as it is written in a call."""
        return json.dumps(name, ensure_ascii=False)[1:-1] if self.keys else name

    def written(self, calls: Sequence[Mapping[str, Any]]) -> str:
        """The text of calls, each with `name` and `arguments`."""
        texts = [
            filled(text_of(self.between_calls if i else self.section_begin, self.call_head), self.escaped(call["name"]))
            + self._written_arguments(call["arguments"])
            + filled(self.call_tail)
            for i, call in enumerate(calls)
        ]
        return "".join(texts) + filled(self.section_end)

    def _written_arguments(self, arguments: Any) -> str:
        if not isinstance(arguments, dict) and self.keys is None:
            arguments = {"arguments": arguments}  # The text of invalid arguments, as `template_messages.py` passes it.
        if self.arguments is None or not isinstance(arguments, dict):
            return written_value(arguments, self.notation)
        texts = (self.arguments.written(name, value, self.notation) for name, value in arguments.items())
        return self.arguments.separator.join(texts)
