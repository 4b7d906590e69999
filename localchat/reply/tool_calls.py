"""Assembly of tool calls from the deltas of a stream, for the dialects of all servers. No I/O.

A delta belongs to a call that is already known, or begins another one. Servers label deltas in different ways: with an
id, an index, the name, with several of them, or with none. Two steps find out what a delta means:

1. `ToolCalls._addressed` finds the call that the labels point to: the one with the id, else the one with the index,
   else the last one, since a model generates calls one after another.
2. The first row of `RULES` that fits the delta and this call says whether the delta continues the call, repeats it, or
   begins another one.

An example, two calls of OpenAI. The facts are those of a Rule: labels, name, arguments of the call so far, piece.

    delta                                       call of step 1    facts                                 meaning
    index 0, id "a", name "get", arguments ""   none                                                    begins
    index 0, arguments '{"city": '              the call "a"      same index, none, part, begin         continues
    index 0, arguments '"Rome"}'                the call "a"      same index, none, part, rest          continues
    index 1, id "b", name "get", arguments ""   the call "a"      new index, same, whole, none          begins
    index 1, arguments "{}"                     the call "b"      same index, none, part, begin         continues
"""

from __future__ import annotations

import functools
import os
from collections import defaultdict, deque
from collections.abc import Callable, Collection
from typing import Any, Literal, NamedTuple

from ..errors import ProtocolError
from ..events import ToolCall, ToolCallDelta
from ..texts import excerpt
from .call_arguments import CallArguments, arguments_text, comparable
from .payloads import Json, as_integer, dump, non_blank, sendable
from .text import SurrogateJoiner

_MAX_CALLS = 1000  # No model calls so many functions at once: a server that repeats a call for ever is stopped.


# The facts of a delta and of the call that its labels point to, and what the delta means.
_Labels = Literal[  # What the id and the index of the delta have in common with the call.
    "same id",  # And the same index, if both have one.
    "same id, other index",
    "first id",  # The call has no id yet.
    "other id",
    "same index",  # The delta has no id.
    "new index",  # Neither the id nor the index is known.
    "no labels",
]
_Name = Literal[  # The name in the delta.
    "none",
    "first",  # The call has no name yet.
    "same",
    "piece",  # Of a name that is not complete.
    "other",
]
_Arguments = Literal[  # The arguments of the call so far.
    "part",  # Or none.
    "whole",  # A JSON object.
    "{}",
    "whole, then the name",  # An object, after which the name came again without arguments.
]
_Piece = Literal[  # The arguments in the delta.
    "none",
    "whole again",  # Equal to those of the call.
    "begin",  # With a brace.
    "rest",
]
_Meaning = Literal[
    "continues",
    "continues, unlabelled",  # With a warning.
    "continues, with the name again",
    "repeats",
    "begins",  # Another call.
    "begins, with the same name",
]


class Rule(NamedTuple):
    """What a delta means. Each of the first four fields has the fact that fits, several, or ANY."""

    labels: _Labels | tuple[_Labels, ...]
    name: _Name | tuple[_Name, ...]
    arguments: _Arguments | tuple[_Arguments, ...]
    piece: _Piece | tuple[_Piece, ...]
    meaning: _Meaning

    def fits(self, *facts: str) -> bool:
        """Whether the rule fits the labels, the name, the arguments and the piece."""
        pairs = zip(facts, self)
        return all(fitting in (fact, ANY) or (type(fitting) is tuple and fact in fitting) for fact, fitting in pairs)


ANY: tuple[Any, ...] = ()

# The rules have four groups, by the name in the delta.
_WITHOUT_NAME = (
    # Some servers send the whole arguments once more after their pieces.
    Rule(ANY, "none", ("whole", "{}"), "whole again", "repeats"),
    # OpenAI, vLLM, llama.cpp: the first delta has id, index and name, the others have the index and arguments.
    Rule(("same id", "same id, other index"), "none", ANY, ANY, "continues"),
    # An id or an extra field alone, such as Gemini's signature.
    Rule(ANY, "none", ANY, "none", "continues"),
    # Nebius, Cerebras: the arguments come under another index than the name, without an id.
    Rule("new index", "none", "part", ANY, "continues, unlabelled"),
    Rule(ANY, "none", "part", ANY, "continues"),
    # A second call of the same function under the same index, which a delta with the name alone announced.
    Rule(ANY, "none", "whole, then the name", ANY, "begins, with the same name"),
    # Some servers send an empty object before the arguments.
    Rule(ANY, "none", "{}", ANY, "continues"),
    # Arguments before their name.
    Rule(ANY, "none", "whole", ANY, "begins"),
)
_WITH_NAME_AND_NEW_LABELS = (
    # Ollama, Dynamo, Gemini: each delta is a whole call; all have the index 0, or none has an index.
    Rule(("new index", "other id"), ANY, ANY, ANY, "begins"),
)
_WITH_NEW_NAME = (
    Rule(ANY, "first", ("whole", "{}"), "whole again", "repeats"),
    Rule(ANY, "first", ANY, ANY, "continues"),
    Rule(ANY, "piece", ANY, ANY, "continues"),
    Rule(ANY, "other", ANY, ANY, "begins"),
)
_WITH_SAME_NAME = (
    # DeepSeek, GLM: parallel calls of one function have one id, and different indexes.
    Rule("same id, other index", "same", "part", "rest", "continues"),
    Rule("same id, other index", "same", ANY, ANY, "begins"),
    # llama-cpp-python: id, index and name are in every delta.
    Rule(ANY, "same", "part", ANY, "continues"),
    Rule(("same id", "first id"), "same", ANY, "none", "continues"),
    Rule(("same id", "first id"), "same", ANY, "whole again", "repeats"),
    Rule(ANY, "same", ANY, "none", "continues, with the name again"),
    Rule(ANY, "same", ANY, ANY, "begins"),
)
RULES = (*_WITHOUT_NAME, *_WITH_NAME_AND_NEW_LABELS, *_WITH_NEW_NAME, *_WITH_SAME_NAME)


@functools.cache  # There are few combinations.
def meaning_of(labels: _Labels, name: _Name, arguments: _Arguments, piece: _Piece) -> _Meaning:
    """The meaning in the first row that fits. Some row fits every combination."""
    return next(rule.meaning for rule in RULES if rule.fits(labels, name, arguments, piece))


# The fields of an element of `tool_calls` that are read, each with the test for values that are.
_READ_FIELDS: dict[str, Callable[[Any], bool]] = {
    "index": lambda value: as_integer(value) is not None,
    "id": lambda value: type(value) in (str, int),
    "type": lambda value: value in ("", "function"),
    "function": lambda value: isinstance(value, dict),
    "name": lambda value: isinstance(value, str),
    "arguments": lambda value: True,
}


class _CallDelta:
    """An element of `tool_calls`, with its fields."""

    def __init__(self, payload: Json) -> None:
        self._payload = payload
        function = payload.get("function")
        # The object with the name and the arguments. Some servers send these beside the id.
        self._function: Json = function if isinstance(function, dict) else payload
        id = payload.get("id")
        self.id = str(id) if type(id) is int else non_blank(id)
        self.index = as_integer(payload.get("index", self._function.get("index")))
        self.name = non_blank(self._function.get("name"))
        self.arguments = arguments_text(self._function.get("arguments"))

    def add_further_fields(self, extra: Json, warn: Callable[[str], object]) -> None:
        """Add the fields that are not read to `extra`, also those in `function`. The next request has them."""
        read = {name for name, value in self._payload.items() if name in _READ_FIELDS and _READ_FIELDS[name](value)}
        if self._function is not self._payload:
            read -= {"name", "arguments"}
            others = {
                name: value
                for name, value in self._function.items()
                if name not in ("name", "arguments", "index") or not (value is None or _READ_FIELDS[name](value))
            }
            if others:
                extra["function"] = {**extra.get("function", {}), **sendable(others, warn)}
        elif self._payload.get("function") is not None:  # No request can have it: another delta may have the object.
            read.add("function")
            warn(f"the function of a call is no object and was left out: {excerpt(dump(self._payload['function']))}")
        others = {name: value for name, value in self._payload.items() if name not in read and value is not None}
        if others:
            extra.update(sendable(others, warn))


class _OpenCall:
    """The state of one call."""

    def __init__(self, position: int, index: int | None, name: str | None, joiner: SurrogateJoiner) -> None:
        self.position = position  # The number of the call in its choice.
        self.index = index  # The index that the server sent. Several calls may have the same one.
        self.name = name
        self.ids: list[str] = []  # The ids of its deltas; the first is the id of the call.
        self.made_id = ""  # The id that the client made for a call without one, or with the id of another call.
        self.arguments = CallArguments()
        # Whether the name came again after whole arguments: if more follow, they are those of a second call.
        self.has_name_again = False
        self.extra: Json = {}
        self.joiner = joiner
        # Whether an event of the call was made. The first one is made when the name is known.
        self.is_announced = False

    def name_with(self, name: str) -> str:
        """The name after another one, which may be the same, a further piece, or the name with a further piece."""
        if self.name is None or name.startswith(self.name):
            return name
        return self.name + name


class ToolCalls:
    """Assembles the calls of one choice: `take` adds deltas, `calls` returns the calls so far.

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

    def take(self, payload: Json, raw: Any = None) -> list[ToolCallDelta] | None:
        """Add an element of `tool_calls` of a delta, in the payload `raw` of the response, and return its events.

        None means that it is not a part of a call, since it has neither an id nor a name nor arguments.
        """
        delta = _CallDelta(payload)
        if not (self._calls or delta.id or delta.name or delta.arguments):
            return None
        call, meaning = self._meaning(delta)
        if meaning == "begins, with the same name" and call is not None:
            call.has_name_again = False
            delta.name = call.name
        if meaning == "continues, unlabelled" and delta.arguments:
            self._warn("arguments came without a call to belong to; added to the last call")
        if meaning == "repeats" and call is not None:
            self._warn(f"call {call.name!r} was sent twice in full")
            delta.arguments = ""
        if call is None or meaning.startswith("begins"):
            call = self._open(delta)
        elif delta.name is not None:
            call.name = call.name_with(delta.name)
            call.has_name_again = meaning == "continues, with the name again" and call.arguments.state() != "part"
        return self._add(call, delta, raw)

    def take_message(self, elements: list[Any], raw: Any = None) -> tuple[list[ToolCallDelta], list[Any]]:
        """Add `tool_calls` of a complete message, which may repeat calls of deltas. Return events and unread elements.

        Each call is repeated once at most: two equal elements of one message are two calls.
        """
        known: dict[Any, deque[_OpenCall]] = defaultdict(deque)
        for call in self._calls:
            known[call.name, comparable(call.arguments.text())].append(call)
        events: list[ToolCallDelta] = []
        unread: list[Any] = []
        for element in elements:
            taken = self._take_element(element, known, raw) if isinstance(element, dict) else None
            if taken is None:
                unread.append(element)
            else:
                events += taken
        return events, unread

    def _take_element(self, element: Json, known: dict[Any, deque[_OpenCall]], raw: Any) -> list[ToolCallDelta] | None:
        """Add an element of a complete message: a call of `known`, by name and arguments, or another one."""
        delta = _CallDelta(element)
        repeated = known.get((delta.name, comparable(delta.arguments)))
        if not repeated:
            return self.take(element, raw)
        delta.arguments = ""
        return self._add(repeated.popleft(), delta, raw)

    def _meaning(self, delta: _CallDelta) -> tuple[_OpenCall | None, _Meaning]:
        """The call that the labels of a delta point to, None if there is no call; and what the delta means."""
        call, labels = self._addressed(delta.index, delta.id)
        if call is None:
            return None, "begins"
        arguments: _Arguments = call.arguments.state()
        if call.has_name_again and arguments != "part":
            arguments = "whole, then the name"
        name, piece = self._name_fact(delta.name, call, labels), call.arguments.describe(delta.arguments)
        return call, meaning_of(labels, name, arguments, piece)

    def _addressed(self, index: int | None, id: str | None) -> tuple[_OpenCall | None, _Labels]:
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

    def _name_fact(self, name: str | None, call: _OpenCall, labels: _Labels) -> _Name:
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

    def _open(self, delta: _CallDelta) -> _OpenCall:
        if len(self._calls) >= _MAX_CALLS:
            raise ProtocolError(f"the response has more than {_MAX_CALLS} tool calls")
        call = _OpenCall(len(self._calls), delta.index, delta.name, SurrogateJoiner(self._warn))
        self._calls.append(call)
        self._by_index[delta.index] = call
        return call

    def _add(self, call: _OpenCall, delta: _CallDelta, raw: Any) -> list[ToolCallDelta]:
        """Add the id, the further fields and a piece of the arguments to a call, and return the events."""
        if delta.id is not None:
            self._by_id[delta.id] = self._by_both[delta.id, call.index] = call
            if delta.id not in call.ids:
                call.ids.append(delta.id)
        delta.add_further_fields(call.extra, self._warn)
        new = call.arguments.add(call.joiner.feed(delta.arguments))
        if call.name is None or (call.is_announced and not new):
            return []
        new = new if call.is_announced else call.arguments.text()
        call.is_announced = True
        id = call.ids[0] if call.ids else None
        return [ToolCallDelta(call.position, id, call.name, new, self._choice_index, raw)]

    def calls(self, is_cut: bool, warn: Callable[[str], object] = lambda text: None) -> list[ToolCall]:
        """The calls so far. `is_cut`: the response was cut, so that the last call may lack its arguments.

        `warn` is called with the text of each warning: only at the end of the response, since the calls are read often.
        """
        used: set[str] = set()
        # Arguments without a name are a call of their own. They may be those of a call with a name and the same index:
        # neither is run.
        nameless = {call.index for call in self._calls if call.name is None}
        calls = []
        for call in self._calls:
            text, arguments, error, warning = call.arguments.parse()
            if warning:
                warn(warning)
            if call.name is None:
                error = "the call has no name"
            elif is_cut and call is self._calls[-1] and not text.strip():
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
