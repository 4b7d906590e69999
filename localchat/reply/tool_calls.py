"""Assembly of tool calls from the deltas of a stream, for the dialects of all servers. No I/O.

`ToolCalls.take` adds a delta; `finish` returns the calls. Each repair is reported in a warning event.
"""

from __future__ import annotations

import json
import os
from typing import Any

from ..errors import ProtocolError, cut
from ..events import StreamEvent, ToolCall, ToolCallDelta, WarningEvent
from .payloads import Json, as_index, dump, non_blank
from .surrogates import SurrogateJoiner

# The limit of calls in a choice. Each delta is compared with all calls, so the time is quadratic in their number.
_MAX_CALLS = 1000


class _OpenCall:
    """The state of one call."""

    def __init__(self, position: int, index: int | None, payload: Any, joiner: SurrogateJoiner) -> None:
        # The number of the call in its choice.
        self.position = position
        # The index that the server sent. Several calls may have the same index.
        self.index = index
        # The payload that began the call. Two entries of one payload are two calls, even if they are equal.
        self.payload = payload
        self.id: str | None = None
        # The id that the client made for a call without one, or with the id of another call.
        self.made_id = ""
        self.name: str | None = None
        self.extra: Json = {}
        self.joiner = joiner
        # The pieces of the arguments.
        self.pieces: list[str] = []
        # Whether an event of the call was made. The first one is made when the name is known.
        self.announced = False
        # The last piece, and whether every piece so far contained the one before: some servers send all the arguments
        # so far in every delta.
        self.latest = ""
        self.cumulative = True
        # Whether a later delta had the name again, and whether a delta had no name.
        self.has_repeats = False
        self.has_nameless = False
        # Whether the call may be a repetition of a complete call. It is a new call if it gets arguments.
        self.may_repeat = False
        # Why the arguments are uncertain; empty if they are certain.
        self.ambiguity = ""
        # Whether the arguments are complete JSON; None if a piece was added since the last check.
        self._is_complete: bool | None = None

    def text(self) -> str:
        """The arguments so far."""
        self.pieces = ["".join(self.pieces)]
        return self.pieces[0]

    def is_empty(self) -> bool:
        return not any(piece.strip() for piece in self.pieces)

    def is_open(self) -> bool:
        """Whether more arguments may follow. The JSON is parsed only if the last character is a brace."""
        if self._is_complete is None:
            last = next((piece for piece in reversed(self.pieces) if piece.strip()), "")
            self._is_complete = last.rstrip().endswith("}") and _loads(self.text())[1] is None
        return not self._is_complete or bool(self.ambiguity)

    def is_repeated_by(self, piece: str) -> bool:
        """Whether a piece is equal to all the arguments of a complete call."""
        return piece.strip() != "" and not self.is_open() and piece.strip() == self.text().strip()

    def add(self, piece: str) -> str:
        """Append a piece and return the new part of it."""
        if not piece:
            return ""
        self.pieces.append(piece)
        self._is_complete = None
        self.cumulative = self.cumulative and len(piece) > len(self.latest) and piece.startswith(self.latest)
        new = piece[len(self.latest) :] if self.cumulative else piece
        self.latest = piece
        return new


class Warnings:
    """The warnings of one response, each text once."""

    def __init__(self) -> None:
        self.texts: dict[str, None] = {}
        self.new: list[StreamEvent] = []

    def add(self, text: str, choice_index: int) -> None:
        if text not in self.texts:
            self.texts[text] = None
            self.new.append(WarningEvent(text, choice_index))

    def take(self) -> list[StreamEvent]:
        """The events of the warnings added since the last call."""
        new, self.new = self.new, []
        return new


class ToolCalls:
    """Assembles the calls of one choice.

    The index of a delta is a label and not a position: some servers send the same index for all calls, or none.
    Arguments are a JSON object, so the end of a call is visible, and a piece without an id, an index or a name belongs
    to the only incomplete call. If several are incomplete, the arguments are ambiguous: each of these calls gets an
    error, so that none is run.
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
        """Add an element of `tool_calls` and return its event, if it has one.

        Args:
            raw: The payload.
            is_summary: Whether the element is from a message at the end of a stream, which repeats the calls.
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
        if call.is_repeated_by(piece):
            if not is_summary:
                self._warn(f"call {call.name!r} was sent twice in full")
            piece = ""
        return self._event(call, call.joiner.feed(piece), raw)

    def finish(self, cut_off: bool = False) -> list[ToolCall]:
        """The calls at the end of the stream.

        Args:
            cut_off: Whether a limit or an error ended the text, so that the last call may lack its arguments.
        """
        used: set[str] = set()
        return [self._finished(call, used, cut_off and call is self._calls[-1]) for call in self._calls]

    def _find(
        self, index: int | None, id: str | None, name: str | None, piece: str, raw: Any, is_summary: bool
    ) -> _OpenCall | None:
        """The call that a delta belongs to; None if the delta begins a call."""
        # The candidates are the calls with the id and the index of the delta; an id or index without a call is ignored.
        has_known_id = id in self._by_id
        candidates = self._by_id.get(id or "") or self._calls
        if index is not None:
            candidates = [call for call in candidates if call.index == index] or candidates
        if name is None:
            return self._continued(candidates, index, piece, has_known_id)
        if index is not None and all(call.index not in (index, None) for call in candidates):
            return None  # The index is new.
        same_name = [call for call in candidates if call.name in (name, None)]
        opened = [call for call in same_name if call.is_open()]
        if id is not None and not has_known_id and (index is None or all(call.id for call in opened)):
            # The id is new, so the delta begins a call. Later pieces may belong to it or to these incomplete calls.
            mixed = [call for call in opened if index is not None or call.id is None]
            if mixed:
                return self._open_ambiguous(index, raw, mixed, "another call began before it was complete")
            call = self._open(index, raw)
            call.may_repeat = any(index is not None or other.id is None for other in same_name)
            return call
        if opened:
            opened[-1].has_repeats = opened[-1].name is not None
            return self._last_of(opened)
        if same_name:
            return self._repeated(same_name, has_known_id, piece, raw, is_summary)
        begun = [call for call in candidates if call.is_open() and call.is_empty()]
        why = "its name came in pieces, or another call began before its arguments"
        return self._open_ambiguous(index, raw, begun, why) if begun else None

    def _continued(
        self, candidates: list[_OpenCall], index: int | None, piece: str, is_known: bool
    ) -> _OpenCall | None:
        """The call that a delta without a name belongs to; None if the delta begins a call."""
        is_known = is_known or (index is not None and index in self._by_index)
        opened = [call for call in candidates if call.is_open()]
        if opened:
            if piece and index is not None and not is_known:
                self._warn("arguments came without a call to belong to; added to the last call")
            return self._last_of(opened) if piece else opened[-1]
        repeated = [call for call in candidates if call.is_repeated_by(piece)]
        if repeated or not piece.strip():
            return (repeated or candidates)[-1] if candidates else None
        if not is_known:
            return None  # The name follows the arguments.
        self._mark_ambiguous(candidates[-1:], "arguments came after they were complete")
        return candidates[-1]

    def _last_of(self, opened: list[_OpenCall]) -> _OpenCall:
        """The last of the incomplete calls. If there are several, all become ambiguous."""
        if len(opened) > 1:
            self._mark_ambiguous(opened, "arguments came that belong to one of several calls")
        return opened[-1]

    def _repeated(
        self, same_name: list[_OpenCall], has_known_id: bool, piece: str, raw: Any, is_summary: bool
    ) -> _OpenCall | None:
        """The call of a delta with the name of complete calls; None if the delta begins another call of this name."""
        if not piece:
            if has_known_id or not any(call.has_nameless for call in same_name):
                return same_name[-1]
            return self._open_ambiguous(same_name[-1].index, raw, [], "it came again without arguments")
        earlier = [call for call in same_name if raw is None or call.payload is not raw]
        repeated = next((call for call in earlier if call.is_repeated_by(piece)), None)
        if repeated is None or has_known_id or is_summary:
            return repeated
        return self._open_ambiguous(repeated.index, raw, [], "it came twice, and it is unknown whether two were meant")

    def _open_ambiguous(self, index: int | None, raw: Any, others: list[_OpenCall], why: str) -> _OpenCall:
        """Begin a call that cannot be distinguished from `others`; all of them get an error."""
        call = self._open(index, raw)
        self._mark_ambiguous([*others, call], why)
        return call

    def _open(self, index: int | None, raw: Any) -> _OpenCall:
        if len(self._calls) >= _MAX_CALLS:
            raise ProtocolError(f"the response has more than {_MAX_CALLS} tool calls")
        call = _OpenCall(len(self._calls), index, raw, SurrogateJoiner(self._warn))
        self._calls.append(call)
        self._by_index.setdefault(index, []).append(call)
        return call

    def _identify(self, call: _OpenCall, id: str | None) -> None:
        """Store an id. The first is the id of the call; deltas with a later one belong to the call as well."""
        if id is None:
            return
        call.id = call.id or id
        known = self._by_id.setdefault(id, [])
        if call not in known:
            known.append(call)

    def _mark_ambiguous(self, calls: list[_OpenCall], why: str) -> None:
        for call in calls:
            call.ambiguity = call.ambiguity or why
            self._warn(f"call {call.name!r} is not run: {why}")

    def _event(self, call: _OpenCall, piece: str, raw: Any) -> ToolCallDelta | None:
        new = call.add(piece)
        if call.name is None or (call.announced and not new):
            return None
        if not call.announced:
            new = call.latest if call.cumulative else call.text()
        call.announced = True
        return ToolCallDelta(call.position, call.id, call.name, new, self._choice_index, raw)

    def _finished(self, call: _OpenCall, used: set[str], cut_off: bool) -> ToolCall:
        text = call.text()
        arguments, error = _loads(text)
        if error is not None and call.cumulative:
            latest, latest_error = _loads(call.latest)
            if latest_error is None:
                text, arguments, error = call.latest, latest, None
                self._warn("the arguments were sent anew with every piece; the last one is used")
        reasons = (
            "the call has no name" if call.name is None else "",
            "the response was cut before the arguments" if cut_off and not text.strip() else "",
            self._ambiguity_of(call),
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

    def _ambiguity_of(self, call: _OpenCall) -> str:
        """Why the arguments of a call are uncertain at the end of the stream; empty if they are certain."""
        if call.ambiguity:
            return call.ambiguity
        # A delta that repeated the name may have begun another call.
        same_index = self._by_index[call.index]
        if any(other.has_repeats for other in same_index) and any(other.has_nameless for other in same_index):
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
    return dump(arguments) if arguments else "{}"  # Some servers send an empty list if there are no arguments.


def _loads(text: str) -> tuple[Json | None, str | None]:
    """Parse arguments: return them and None, or None and the error. Blank text means no arguments."""
    if not text.strip():
        return {}, None
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        return None, f"the arguments are not JSON: {error}"
    if value is None:
        return {}, None
    if not isinstance(value, dict):
        return None, f"the arguments are not a JSON object: {cut(text, 60)}"
    return value, None


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not a number of JSON")
