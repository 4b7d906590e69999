"""Assembly of tool calls from the deltas of a stream, for the dialects of all servers. No I/O.

A delta belongs to a call that is already known, or begins another one. Servers label deltas in different ways: with an
id, an index, the name, with several of them, or with none. Two steps find out what a delta means:

1. `ToolCalls._addressed` finds the call that the labels point to: the one with the id, else the one with the index,
   else the last one, since a model generates calls one after another.
2. The first row of `RULES` that fits the delta and this call says whether the delta continues the call, repeats it, or
   begins another one.
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections import defaultdict, deque
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from ..errors import ProtocolError, cut
from ..events import ToolCall, ToolCallDelta
from .payloads import Json, as_integer, dump, non_blank
from .text import SurrogateJoiner

_MAX_CALLS = 1000  # No model calls so many functions at once: a server that repeats a call for ever is stopped.


class Rule(NamedTuple):
    """What a delta means. Each of the first four fields has the values that fit, separated by `|`; "any" fits always.

    labels: What the id and the index of the delta have in common with the call: "same id" (and the same index, if both
        have one), "same id, other index", "first id" (the call has no id yet), "other id", "same index" (the delta has
        no id), "new index" (neither the id nor the index is known), "no labels".
    name: The name in the delta: "none", "first" (the call has no name yet), "same", "piece" (of a name that is not
        complete), "other".
    arguments: The arguments of the call so far: "part" (or none), "whole" (a JSON object), "{}", "named again" (an
        object, and then the name came again without arguments).
    piece: The arguments in the delta: "none", "whole again" (equal to those of the call), "begin" (with a brace),
        "rest".
    meaning: "continues", "repeats", "begins" (another call), "begins, same name", "continues, named again", "continues,
        unlabelled" (with a warning).
    """

    labels: str
    name: str
    arguments: str
    piece: str
    meaning: str


RULES = (
    # Some servers send the whole arguments once more after their pieces.
    Rule("any", "none", "whole|{}", "whole again", "repeats"),
    # OpenAI, vLLM, llama.cpp: the first delta has id, index and name, the others have the index and arguments.
    Rule("same id|same id, other index", "none", "any", "any", "continues"),
    # An id or an extra field alone, such as Gemini's signature.
    Rule("any", "none", "any", "none", "continues"),
    # Nebius, Cerebras: the arguments come under another index than the name, without an id.
    Rule("new index", "none", "part", "any", "continues, unlabelled"),
    Rule("any", "none", "part", "any", "continues"),
    # A second call of the same function under the same index, which a delta with the name alone announced.
    Rule("any", "none", "named again", "any", "begins, same name"),
    # Some servers send an empty object before the arguments.
    Rule("any", "none", "{}", "any", "continues"),
    # Arguments before their name.
    Rule("any", "none", "whole", "any", "begins"),
    # Ollama, Dynamo, Gemini: each delta is a whole call; all have the index 0, or none has an index.
    Rule("new index|other id", "any", "any", "any", "begins"),
    Rule("any", "first", "whole|{}", "whole again", "repeats"),
    Rule("any", "first", "any", "any", "continues"),
    Rule("any", "piece", "any", "any", "continues"),
    Rule("any", "other", "any", "any", "begins"),
    # DeepSeek, GLM: parallel calls of one function have one id, and different indexes.
    Rule("same id, other index", "same", "part", "rest", "continues"),
    Rule("same id, other index", "same", "any", "any", "begins"),
    # llama-cpp-python: id, index and name are in every delta.
    Rule("any", "same", "part", "any", "continues"),
    Rule("same id|first id", "same", "any", "none", "continues"),
    Rule("same id|first id", "same", "any", "whole again", "repeats"),
    Rule("any", "same", "any", "none", "continues, named again"),
    Rule("any", "same", "any", "any", "begins"),
)


@functools.cache  # There are few combinations.
def meaning_of(labels: str, name: str, arguments: str, piece: str) -> str:
    """The meaning in the first row that fits. Some row fits every combination."""
    facts = labels, name, arguments, piece
    fits = (all(value in ("any", fact) or fact in value.split("|") for fact, value in zip(facts, row)) for row in RULES)
    return next(row.meaning for row, is_fit in zip(RULES, fits) if is_fit)


class _Arguments:
    """The text of the arguments of one call, which comes in pieces.

    The time is linear: each piece is searched for brackets once, and the text is parsed once, when the last is closed.
    """

    def __init__(self) -> None:
        self._pieces: list[str] = []
        # "open"; "closed", when the text may be a JSON object; then "whole" or "{}" if it is one, otherwise "broken".
        self._state = "open"
        # The brackets that are open, whether the text ends in a string, and a backslash at the end of the last piece.
        self._depth = 0
        self._in_string = False
        self._escape = ""
        # The last piece, and whether every piece begins with the one before, which is what some servers send.
        self._latest = ""
        self._is_cumulative = True

    def text(self) -> str:
        self._pieces = ["".join(self._pieces)]
        return self._pieces[0]

    def state(self) -> str:
        """The arguments so far, as in a Rule: "part", "whole" or "{}"."""
        if self._state == "closed":
            text = self.text().strip()
            self._state = "{}" if text == "{}" else "whole" if parse_arguments(text)[1] is None else "broken"
        return self._state if self._state in ("whole", "{}") else "part"

    def describe(self, piece: str) -> str:
        """A further piece, as in a Rule."""
        stripped = piece.strip()
        if not stripped:
            return "none"
        if self.state() != "part" and stripped == self.text().strip():
            return "whole again"
        return "begin" if stripped.startswith("{") else "rest"

    def add(self, piece: str) -> str:
        """Append a piece and return the new part of it."""
        if not piece:
            return ""
        if piece.strip():
            self._scan(piece)
        self._pieces.append(piece)
        self._is_cumulative = self._is_cumulative and len(piece) > len(self._latest) and piece.startswith(self._latest)
        new = piece[len(self._latest) :] if self._is_cumulative else piece
        self._latest = piece
        return new

    def _scan(self, piece: str) -> None:
        if self._state != "open":
            # Text after an object makes it invalid. Only an empty object may stand before the arguments.
            self._state = "open" if self.state() == "{}" else "broken"
        if self._state == "broken":
            return
        text, self._escape = self._escape + piece, ""
        n_brackets = 0
        for mark in _MARKS.findall(text):
            if mark == '"':
                self._in_string = not self._in_string
            elif mark == "\\":
                self._escape = mark
            elif len(mark) == 1 and not self._in_string:
                self._depth += 1 if mark in "{[" else -1
                n_brackets += 1
        if n_brackets and self._depth <= 0 and not self._in_string:
            self._state = "closed"

    def parse(self) -> tuple[str, Json | None, str | None, str]:
        """The text of the arguments, their value or None, the error, and a warning if the text was repaired."""
        text = self.text()
        arguments, error = parse_arguments(text)
        if error is None and parse_arguments(text, strict=True)[1] is not None:
            return dump(arguments), arguments, None, "the arguments of a call were not exact JSON and are written anew"
        rest = text.lstrip()[2:].lstrip()
        if error is not None and text.lstrip().startswith("{}") and parse_arguments(rest)[1] is None:
            return rest, parse_arguments(rest)[0], None, "empty arguments came before the arguments of a call"
        if error is not None and self._is_cumulative and parse_arguments(self._latest)[1] is None:
            warning = "the arguments were sent anew with every piece; the last one is used"
            return self._latest, parse_arguments(self._latest)[0], None, warning
        return text, arguments, error, ""


# The marks of JSON that open and close values: escapes (the last one may be cut), quotes and brackets.
_MARKS = re.compile(r'\\.?|["{}\[\]]', re.DOTALL)


class _OpenCall:
    """The state of one call."""

    def __init__(self, position: int, index: int | None, name: str | None, joiner: SurrogateJoiner) -> None:
        self.position = position  # The number of the call in its choice.
        self.index = index  # The index that the server sent. Several calls may have the same one.
        self.name = name
        self.ids: list[str] = []  # The ids of its deltas; the first is the id of the call.
        self.made_id = ""  # The id that the client made for a call without one, or with the id of another call.
        self.arguments = _Arguments()
        # Whether the name came again after whole arguments: if more follow, they are those of a second call.
        self.is_named_again = False
        self.extra: Json = {}
        self.joiner = joiner
        # Whether an event of the call was made. The first one is made when the name is known.
        self.is_announced = False

    def name_with(self, name: str) -> str:
        """The name after another one, which may be the same, a further piece, or the name with a further piece."""
        if self.name is None or name.startswith(self.name):
            return name
        return self.name + name

    def key(self) -> tuple[str | None, str]:
        return self.name, _comparable(self.arguments.text())


class ToolCalls:
    """Assembles the calls of one choice: `take` adds deltas, `finish` returns the calls.

    Args:
        choice_index: The index of the choice.
        warn: Called with the text of each warning.
        tool_names: The names of the offered tools. Such a name has no further pieces, unless they make another of them.
    """

    def __init__(self, choice_index: int, warn: Callable[[str], object], tool_names: Collection[str] = ()) -> None:
        self._choice_index = choice_index
        self._warn = warn
        self._tool_names = tool_names
        self._calls: list[_OpenCall] = []
        # The newest call with an id, with an index, and with both.
        self._by_id: dict[str, _OpenCall] = {}
        self._by_index: dict[int | None, _OpenCall] = {}
        self._by_both: dict[tuple[str, int | None], _OpenCall] = {}

    def __bool__(self) -> bool:
        return bool(self._calls)

    def take(self, delta: Json, raw: Any = None) -> list[ToolCallDelta] | None:
        """Add an element of `tool_calls` of a delta in the payload `raw`, and return its events.

        None means that it is not a part of a call, since it has neither an id nor a name nor arguments.
        """
        function, index, id, name, piece = _fields(delta)
        if not (self._calls or id or name or piece):
            return None
        call, meaning = self._belonging(index, id, name, piece)
        if meaning == "begins, same name" and call is not None:
            call.is_named_again, name = False, call.name
        if meaning == "continues, unlabelled" and piece:
            self._warn("arguments came without a call to belong to; added to the last call")
        if meaning == "repeats" and call is not None:
            self._warn(f"call {call.name!r} was sent twice in full")
        if call is None or meaning.startswith("begins"):
            call = self._open(index, name)
        elif name is not None:
            call.name = call.name_with(name)
            call.is_named_again = meaning == "continues, named again" and call.arguments.state() != "part"
        return self._add(call, delta, function, id, "" if meaning == "repeats" else piece, raw)

    def take_message(self, elements: list[Any], raw: Any = None) -> tuple[list[ToolCallDelta], list[Any]]:
        """Add `tool_calls` of a complete message, which may repeat calls of deltas. Return events and unread elements.

        Each call is repeated once at most: two equal elements of one message are two calls.
        """
        known: dict[Any, deque[_OpenCall]] = defaultdict(deque)
        for call in self._calls:
            known[call.key()].append(call)
        events: list[ToolCallDelta] = []
        unread: list[Any] = []
        for element in elements:
            taken: list[ToolCallDelta] | None = None
            if isinstance(element, dict):
                function, _, id, name, piece = _fields(element)
                repeated = known.get((name, _comparable(piece)))
                taken = (
                    self._add(repeated.popleft(), element, function, id, "", raw)
                    if repeated
                    else self.take(element, raw)
                )
            if taken is None:
                unread.append(element)
            else:
                events += taken
        return events, unread

    def _belonging(
        self, index: int | None, id: str | None, name: str | None, piece: str
    ) -> tuple[_OpenCall | None, str]:
        """The call that the labels of a delta point to, None if there is no call; and what the delta means."""
        call, labels = self._addressed(index, id)
        if call is None:
            return None, "begins"
        arguments = call.arguments.state()
        if call.is_named_again and arguments != "part":
            arguments = "named again"
        return call, meaning_of(labels, self._name_fact(name, call, labels), arguments, call.arguments.describe(piece))

    def _addressed(self, index: int | None, id: str | None) -> tuple[_OpenCall | None, str]:
        """The call that an id and an index point to, and the labels as in a Rule."""
        if id is not None and id in self._by_id:
            call = self._by_both.get((id, index)) or self._by_id[id]
            is_same = index is None or call.index is None or call.index == index
            return call, "same id" if is_same else "same id, other index"
        last = self._calls[-1] if self._calls else None
        labelled = last if index is None else self._by_index.get(index)
        if labelled is None:
            return last, "new index"
        if id is not None:
            return labelled, "other id" if labelled.ids else "first id"
        return labelled, "no labels" if index is None else "same index"

    def _name_fact(self, name: str | None, call: _OpenCall, labels: str) -> str:
        """The name in a delta, as in a Rule.

        A name comes in pieces only if the call has an id, and the pieces have the same id, or none and the same index.
        """
        if name is None:
            return "none"
        if call.name is None:
            return "first"
        if name == call.name:
            return "same"
        is_labelled = labels == "same id" or (labels == "same index" and bool(call.ids))
        is_whole = call.name in self._tool_names and call.name_with(name) not in self._tool_names
        is_piece = is_labelled and not is_whole and call.arguments.state() == "part"
        return "piece" if is_piece else "other"

    def _open(self, index: int | None, name: str | None) -> _OpenCall:
        if len(self._calls) >= _MAX_CALLS:
            raise ProtocolError(f"the response has more than {_MAX_CALLS} tool calls")
        call = _OpenCall(len(self._calls), index, name, SurrogateJoiner(self._warn))
        self._calls.append(call)
        self._by_index[index] = call
        return call

    def _add(
        self, call: _OpenCall, delta: Json, function: Json, id: str | None, piece: str, raw: Any
    ) -> list[ToolCallDelta]:
        """Add the id, the further fields and a piece of the arguments to a call, and return the events."""
        if id is not None and id not in call.ids:
            call.ids.append(id)
        if id is not None:
            self._by_id[id] = self._by_both[id, call.index] = call
        _add_extra(call.extra, delta, function)
        new = call.arguments.add(call.joiner.feed(piece))
        if call.name is None or (call.is_announced and not new):
            return []
        new = new if call.is_announced else call.arguments.text()
        call.is_announced = True
        id = call.ids[0] if call.ids else None
        return [ToolCallDelta(call.position, id, call.name, new, self._choice_index, raw)]

    def finish(self, cut_off: bool = False, warn: Callable[[str], object] = lambda text: None) -> list[ToolCall]:
        """The calls so far. `cut_off`: the response was cut, so that the last call may lack its arguments."""
        used: set[str] = set()
        nameless = {call.index for call in self._calls if call.name is None}
        calls = []
        for call in self._calls:
            text, arguments, error, warning = call.arguments.parse()
            if warning:
                warn(warning)
            if call.name is None:
                error = "the call has no name"
            elif cut_off and call is self._calls[-1] and not text.strip():
                error = "the response was cut before the arguments"
            elif call.index in nameless:
                error = "arguments came that belong to one of several calls"
            id = call.ids[0] if call.ids else None
            if id in used:
                warn(f"two calls had the id {id!r}; the later one got another")
            if id is None or id in used:
                id = call.made_id = call.made_id or "call_" + os.urandom(12).hex()
            used.add(id)
            value = arguments if error is None else None
            extra = dict(call.extra)
            calls.append(ToolCall(id, call.name or "", value, text, error, call.position, extra, self._choice_index))
        return calls


def _fields(delta: Json) -> tuple[Json, int | None, str | None, str | None, str]:
    """The object `function` of an element of `tool_calls`; its index, id and name; and the text of its arguments."""
    function = delta.get("function")
    if not isinstance(function, dict):
        function = delta  # Some servers send the name and the arguments beside the id.
    index, id = as_integer(delta.get("index", function.get("index"))), delta.get("id")
    id = str(id) if type(id) is int else non_blank(id)
    return function, index, id, non_blank(function.get("name")), _arguments_text(function.get("arguments"))


def _add_extra(extra: Json, delta: Json, function: Json) -> None:
    """Keep the fields of a delta that `_fields` does not read, also those in `function`."""
    read = {name for name, value in delta.items() if name in _READ_FIELDS and _READ_FIELDS[name](value)}
    if function is not delta:
        read -= {"name", "arguments"}
    extra.update({name: value for name, value in delta.items() if name not in read and value is not None})
    if function is not delta:
        others = {name: value for name, value in function.items() if name not in ("arguments", "index")}
        if others.get("name") is None or isinstance(others["name"], str):
            others.pop("name", None)
        if others:
            extra["function"] = {**extra.get("function", {}), **others}


# The fields of an element of `tool_calls` that are read, each with the test for values that are.
_READ_FIELDS: dict[str, Callable[[Any], bool]] = {
    "index": lambda value: as_integer(value) is not None,
    "id": lambda value: type(value) in (str, int),
    "type": lambda value: value in ("", "function"),
    "function": lambda value: isinstance(value, dict),
    "name": lambda value: isinstance(value, str),
    "arguments": lambda value: True,
}


def _arguments_text(arguments: Any) -> str:
    if isinstance(arguments, str):
        return arguments
    if arguments is None:
        return ""
    return dump(arguments) if arguments else "{}"  # Some servers send an empty list if there are no arguments.


def _comparable(text: str) -> str:
    """Arguments in a form in which the same JSON is the same text."""
    arguments, error = parse_arguments(text)
    return text.strip() if error is not None else json.dumps(arguments, sort_keys=True)


def parse_arguments(text: str, strict: bool = False) -> tuple[Json | None, str | None]:
    """The value of arguments or the error; blank text is {}. Not `strict`: with control characters, or in a string."""
    if not text.strip():
        return {}, None
    try:
        value = json.loads(text, strict=strict, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        return None, f"the arguments are not JSON: {error}"
    if value is None:
        return {}, None
    if isinstance(value, str) and not strict:
        return parse_arguments(value)
    if not isinstance(value, dict):
        return None, f"the arguments are not a JSON object: {cut(text, 60)}"
    return value, None


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not a number of JSON")
