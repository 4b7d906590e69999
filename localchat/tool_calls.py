"""Assembly of tool calls from the pieces of a stream, by rules that serve the dialects of all servers. No I/O.

`ToolCalls.take` adds a piece; `finish` returns the calls. What was repaired is reported in a warning event.
"""

from __future__ import annotations

import json
import os
from typing import Any

from .errors import ProtocolError, cut
from .events import StreamEvent, ToolCall, ToolCallDelta, WarningEvent
from .payloads import Json, as_index, dump, non_blank
from .surrogates import SurrogateJoiner

# Each piece is compared with all calls of its choice, so their number is bounded.
_MAX_CALLS = 1000


class _OpenCall:
    """One call while its pieces come in."""

    def __init__(self, position: int, index: int | None, payload: Any, joiner: SurrogateJoiner) -> None:
        # Its place among the calls of the choice; the server's index, a label that several calls may share.
        self.position = position
        self.index = index
        # The payload that began the call. Two entries of one payload are two calls, however alike they are.
        self.payload = payload
        self.id: str | None = None
        self.made_id = ""
        self.name: str | None = None
        self.extra: Json = {}
        self.joiner = joiner
        self.parts: list[str] = []
        # Whether there was an event of it: the first one waits for the name.
        self.announced = False
        # For servers that send all the arguments so far with every delta.
        self.latest = ""
        self.cumulative = True
        # Whether later deltas had the name again, and whether there were deltas without it.
        self.has_repeats = False
        self.has_nameless = False
        # Whether it is a repetition of a complete call, unless arguments come.
        self.may_repeat = False
        # Why it is unknown what the arguments are; empty if they are known.
        self.doubt = ""
        # Whether the arguments are complete JSON; None if that has to be found out again.
        self._whole: bool | None = None

    def text(self) -> str:
        self.parts = ["".join(self.parts)]
        return self.parts[0]

    def is_empty(self) -> bool:
        return not any(part.strip() for part in self.parts)

    def is_open(self) -> bool:
        """Whether arguments may be missing. The last character decides it most of the time."""
        if self._whole is None:
            last = next((part for part in reversed(self.parts) if part.strip()), "")
            self._whole = last.rstrip().endswith("}") and _loads(self.text())[1] is None
        return not self._whole or bool(self.doubt)

    def repeats(self, piece: str) -> bool:
        """Whether a piece is all the arguments once more."""
        return piece.strip() != "" and not self.is_open() and piece.strip() == self.text().strip()

    def take(self, piece: str) -> str:
        """Append a piece; returns what of it is new."""
        if not piece:
            return ""
        self.parts.append(piece)
        self._whole = None
        self.cumulative = self.cumulative and len(piece) > len(self.latest) and piece.startswith(self.latest)
        fresh = piece[len(self.latest) :] if self.cumulative else piece
        self.latest = piece
        return fresh


class Warnings:
    """What was repaired in one answer, each thing once."""

    def __init__(self) -> None:
        self.texts: dict[str, None] = {}
        self.new: list[StreamEvent] = []

    def add(self, text: str, choice_index: int) -> None:
        if text not in self.texts:
            self.texts[text] = None
            self.new.append(WarningEvent(text, choice_index))

    def take(self) -> list[StreamEvent]:
        """The events for what is new."""
        new, self.new = self.new, []
        return new


class ToolCalls:
    """Assembles the calls of one choice by rules that serve every dialect.

    A server's index is a label, never a position: some servers give all calls the same one, or none. The arguments of
    a call are an object, whose end can be seen; so a piece that nothing identifies belongs to the only call that is
    not complete. If there are several, none of them is run: each gets an error.
    """

    def __init__(self, choice_index: int, warnings: Warnings) -> None:
        self._choice_index = choice_index
        self._warnings = warnings
        self._calls: list[_OpenCall] = []
        self._by_id: dict[str, list[_OpenCall]] = {}
        self._by_index: dict[int | None, list[_OpenCall]] = {}

    def __bool__(self) -> bool:
        return bool(self._calls)

    def take(self, delta: Json, raw: Any = None, is_summary: bool = False) -> ToolCallDelta | None:
        """One element of `tool_calls`; returns the event it makes, if any.

        Args:
            is_summary: Whether it is of a message at the end of a stream, which repeats the calls of the deltas.
        """
        function = delta.get("function")
        if not isinstance(function, dict):
            function = delta if "name" in delta else {}
        index = as_index(delta.get("index", function.get("index")))
        id, name = non_blank(delta.get("id")), non_blank(function.get("name"))
        piece = _arguments_text(function.get("arguments"))
        extra = {key: value for key, value in delta.items() if key not in _CALL_FIELDS}
        if not (self._calls or id or name or piece):
            return None
        call = self._find(index, id, name, piece, raw, is_summary) or self._open(index, raw)
        call.has_nameless = call.has_nameless or name is None
        call.name = call.name or name
        self._identify(call, id)
        call.extra.update(extra)
        if call.repeats(piece):
            if not is_summary:
                self._warn(f"call {call.name!r} was sent twice in full")
            piece = ""
        return self._event(call, call.joiner.feed(piece), raw)

    def finish(self, cut_off: bool = False) -> list[ToolCall]:
        """The calls, complete. Only the end of the stream is the end of a call: a prefix may parse too.

        Args:
            cut_off: Whether the answer ended by force, so that the last call may lack its arguments.
        """
        used: set[str] = set()
        return [self._finished(call, used, cut_off and call is self._calls[-1]) for call in self._calls]

    def _find(
        self, index: int | None, id: str | None, name: str | None, piece: str, raw: Any, is_summary: bool
    ) -> _OpenCall | None:
        """The call that a delta belongs to, None if it begins one."""
        has_known_id = id in self._by_id
        found = self._by_id.get(id or "") or self._calls
        if index is not None:
            found = [call for call in found if call.index == index] or found
        if name is None:
            return self._continued(found, index, piece, has_known_id)
        if index is not None and all(call.index not in (index, None) for call in found):
            return None
        alike = [call for call in found if call.name in (name, None)]
        opened = [call for call in alike if call.is_open()]
        if id is not None and not has_known_id and (index is None or all(call.id for call in opened)):
            mixed = [call for call in opened if index is not None or call.id is None]
            if mixed:
                return self._doubtful(index, raw, mixed, "another call began before it was complete")
            call = self._open(index, raw)
            call.may_repeat = any(index is not None or other.id is None for other in alike)
            return call
        if opened:
            opened[-1].has_repeats = opened[-1].name is not None
            return self._one_of(opened)
        if alike:
            return self._repeated(alike, has_known_id, piece, raw, is_summary)
        begun = [call for call in found if call.is_open() and call.is_empty()]
        why = "its name came in pieces, or another call began before its arguments"
        return self._doubtful(index, raw, begun, why) if begun else None

    def _continued(self, found: list[_OpenCall], index: int | None, piece: str, is_known: bool) -> _OpenCall | None:
        """The call that a delta without a name belongs to, None if it begins one whose name is to come."""
        is_known = is_known or (index is not None and index in self._by_index)
        opened = [call for call in found if call.is_open()]
        if opened:
            if piece and index is not None and not is_known:
                self._warn("arguments came without a call to belong to; added to the last call")
            return self._one_of(opened) if piece else opened[-1]
        repeated = [call for call in found if call.repeats(piece)]
        if repeated or not piece.strip():
            return (repeated or found)[-1] if found else None
        if not is_known:
            return None  # Arguments before their name.
        self._doubt(found[-1:], "arguments came after they were complete")
        return found[-1]

    def _one_of(self, opened: list[_OpenCall]) -> _OpenCall:
        if len(opened) > 1:
            self._doubt(opened, "arguments came that belong to one of several calls")
        return opened[-1]

    def _repeated(
        self, alike: list[_OpenCall], has_known_id: bool, piece: str, raw: Any, is_summary: bool
    ) -> _OpenCall | None:
        """The call of a delta that names a complete call once more, None if it begins a call that is like it."""
        if not piece:
            if has_known_id or not any(call.has_nameless for call in alike):
                return alike[-1]
            return self._doubtful(alike[-1].index, raw, [], "it came again without arguments")
        earlier = [call for call in alike if raw is None or call.payload is not raw]
        repeated = next((call for call in earlier if call.repeats(piece)), None)
        if repeated is None or has_known_id or is_summary:
            return repeated
        return self._doubtful(repeated.index, raw, [], "it came twice, and it is unknown whether two were meant")

    def _doubtful(self, index: int | None, raw: Any, others: list[_OpenCall], why: str) -> _OpenCall:
        """A new call that cannot be distinguished from others; all of them get an error."""
        call = self._open(index, raw)
        self._doubt([*others, call], why)
        return call

    def _open(self, index: int | None, raw: Any) -> _OpenCall:
        if len(self._calls) >= _MAX_CALLS:
            raise ProtocolError(f"the answer has more than {_MAX_CALLS} tool calls")
        call = _OpenCall(len(self._calls), index, raw, SurrogateJoiner(self._warn))
        self._calls.append(call)
        self._by_index.setdefault(index, []).append(call)
        return call

    def _identify(self, call: _OpenCall, id: str | None) -> None:
        """Ids are set once; a later one leads to the call as well."""
        if id is None:
            return
        call.id = call.id or id
        known = self._by_id.setdefault(id, [])
        if call not in known:
            known.append(call)

    def _doubt(self, calls: list[_OpenCall], why: str) -> None:
        for call in calls:
            call.doubt = call.doubt or why
            self._warn(f"call {call.name!r} is not run: {why}")

    def _event(self, call: _OpenCall, piece: str, raw: Any) -> ToolCallDelta | None:
        fresh = call.take(piece)
        if call.name is None or (call.announced and not fresh):
            return None
        if not call.announced:
            fresh = call.latest if call.cumulative else call.text()
        call.announced = True
        return ToolCallDelta(call.position, call.id, call.name, fresh, self._choice_index, raw)

    def _finished(self, call: _OpenCall, used: set[str], cut_off: bool) -> ToolCall:
        text = call.text()
        arguments, error = _loads(text)
        if error is not None and call.cumulative:
            whole, whole_error = _loads(call.latest)
            if whole_error is None:
                text, arguments, error = call.latest, whole, None
                self._warn("the arguments were sent anew with every piece; the last one is used")
        reasons = (
            "the call has no name" if call.name is None else "",
            "the answer was cut before the arguments" if cut_off and not text.strip() else "",
            self._doubt_of(call),
        )
        error = next(filter(None, reasons), error)
        id = call.id
        if id in used:
            self._warn(f"two calls had the id {id!r}; the later one got another")
        if id is None or id in used:
            id = call.made_id = call.made_id or "call_" + os.urandom(12).hex()
        used.add(id)
        if error is not None:
            arguments = None
        return ToolCall(id, call.name or "", arguments, text, error, call.position, call.extra, self._choice_index)

    def _doubt_of(self, call: _OpenCall) -> str:
        """Why it is unknown what the arguments of a call are; empty if they are known."""
        alike = self._by_index[call.index]
        if call.doubt:
            return call.doubt
        # One of the deltas that repeated the name may have begun another call.
        if any(other.has_repeats for other in alike) and any(other.has_nameless for other in alike):
            return "the arguments of several calls may be mixed up"
        if not call.is_empty():
            return ""
        if any(other.name is None for other in self._calls):
            return "arguments came without the name of their call"
        if any(other is not call and other.name == call.name for other in self._by_id.get(call.id or "", ())):
            return "its id came again with another index"
        return "it came again without arguments" if call.may_repeat else ""

    def _warn(self, text: str) -> None:
        self._warnings.add(text, self._choice_index)


_CALL_FIELDS = frozenset({"index", "id", "type", "function", "name", "arguments"})


def _arguments_text(arguments: Any) -> str:
    if isinstance(arguments, str):
        return arguments
    if arguments is None:
        return ""
    return dump(arguments) if arguments else "{}"  # Some servers send an empty list for no arguments.


def _loads(text: str) -> tuple[Json | None, str | None]:
    """Arguments and None, or None and the reason why they are none. No text at all means no arguments."""
    if not text.strip():
        return {}, None
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        return None, f"the arguments are not JSON: {error}"
    if value is None:
        return {}, None
    if not isinstance(value, dict):
        return None, f"the arguments are JSON but no object: {cut(text, 60)}"
    return value, None


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no number of JSON")
