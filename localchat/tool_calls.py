"""Assembly of tool calls from the pieces of a stream, by rules that serve the dialects of all servers. No I/O.

`ToolCalls.take` adds a piece; `finish` returns the calls. What was repaired is reported in a warning event.
"""

from __future__ import annotations

import json
import os
from typing import Any

from .errors import cut
from .events import StreamEvent, ToolCall, ToolCallDelta, WarningEvent
from .payloads import Json, as_index, dump, filled
from .surrogates import HALF_CHARACTER, join_halves


class _OpenCall:
    """One call while its pieces come in."""

    def __init__(self, position: int, index: int | None, payload: Any) -> None:
        # Its place among the calls of the choice; the server's index, a label that several calls may share.
        self.position = position
        self.index = index
        # The payload that began the call. Two entries of one payload are two calls, however alike they are.
        self.payload = payload
        self.id: str | None = None
        self.made_id = ""
        self.name: str | None = None
        self.extra: Json = {}
        self.parts: list[str] = []
        # Pieces that came before the name, not yet handed out; whether the call has been announced.
        self.waiting: list[str] = []
        self.announced = False
        # For servers that send all the arguments so far with every delta.
        self.latest = ""
        self.cumulative = True
        # The first half of a character, whose second half the next piece has to bring.
        self.half = ""
        # Deltas that repeat the name or continue it, deltas without a name, and pieces after the first that begin as
        # an object does: together they tell whether the deltas of a second call are among them.
        self.n_repeats = 0
        self.n_name_pieces = 0
        self.n_nameless = 0
        self.n_openings = 0
        # Whether it began with the name of a complete call and nothing else, which may only repeat that call.
        self.is_echo = False
        # Why it cannot be told what the arguments are; empty if it can.
        self.doubt = ""
        # Whether the arguments are complete JSON; None if that has to be found out again.
        self._whole: bool | None = None

    def text(self) -> str:
        self.parts = ["".join(self.parts)]
        return self.parts[0]

    def is_empty(self) -> bool:
        return not any(part.strip() for part in self.parts)

    def is_open(self) -> bool:
        """Whether arguments may be missing. The last character tells most of the time."""
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
        if piece.lstrip().startswith("{") and not self.is_empty():
            self.n_openings += 1
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

    def take(self, delta: Json, raw: Any = None) -> ToolCallDelta | None:
        """One element of `tool_calls`; returns the event it makes, if any."""
        function = delta.get("function")
        if not isinstance(function, dict):
            function = delta if "name" in delta else {}
        index = as_index(delta.get("index", function.get("index")))
        id, name = filled(delta.get("id")), filled(function.get("name"))
        piece = _arguments_text(function.get("arguments"))
        extra = {key: value for key, value in delta.items() if key not in _CALL_MEMBERS}
        if not (self._calls or id or name or piece):
            return None
        if name is None:
            call = self._continued(index, id, piece) or self._open(index, raw)
            call.n_nameless += 1
        else:
            call = self._named(index, id, name, piece, raw) or self._open(index, raw)
            call.name = call.name or name
        self._identify(call, id)
        call.extra.update(extra)
        if call.repeats(piece):
            self._warn(f"call {call.name!r} was sent twice in full")
            piece = ""
        return self._event(call, self._joined(call, piece), raw)

    def take_whole(self, delta: Json, raw: Any = None) -> ToolCallDelta | None:
        """The same from a message that repeats what came before: a call that is known is not added to."""
        function = delta.get("function")
        if isinstance(function, dict):
            piece = _arguments_text(function.get("arguments"))
            id, index = filled(delta.get("id")), as_index(delta.get("index")) or 0
            for call in (*self._by_id.get(id or "", ()), *self._by_index.get(index, ())):
                is_other = None not in (id, call.id) and id != call.id  # Of a server that numbers all calls alike.
                if not is_other and call.name == function.get("name") and call.text() == piece:
                    return None
        return self.take(delta, raw)

    def finish(self, cut_off: bool = False) -> list[ToolCall]:
        """The calls, complete. Only the end of the stream is the end of a call: a prefix may parse too.

        Args:
            cut_off: Whether the answer ended by force, so that the last call may lack its arguments.
        """
        used: set[str] = set()
        calls = [
            call for call in self._calls if not (call.is_empty() and self._is_echo(call, self._by_index[call.index]))
        ]
        return [
            self._finished(call, self._doubt_of(call, self._by_index[call.index]), used, cut_off and call is calls[-1])
            for call in calls
        ]

    def _matching(self, index: int | None, id: str | None) -> list[_OpenCall]:
        """The calls that a delta may belong to, by its id and its index as far as these are known."""
        found = self._by_id.get(id or "") or self._calls
        same = [call for call in found if call.index == index] if index is not None else []
        return same or found

    def _continued(self, index: int | None, id: str | None, piece: str) -> _OpenCall | None:
        """The call that a delta without a name belongs to, None if it begins one whose name is to come."""
        is_known = id in self._by_id or (index is not None and index in self._by_index)
        if id is not None and index is not None and not is_known:
            return None
        found = self._matching(index, id)
        opened = [call for call in found if call.is_open()]
        if not opened:
            return self._beyond(found, piece, is_known)
        if piece and len(opened) > 1:
            self._doubt(opened, "arguments came that belong to one of several calls")
        elif piece and index is not None and not is_known:
            self._warn("arguments came without a call to belong to; added to the last call")
        return opened[-1]

    def _beyond(self, found: list[_OpenCall], piece: str, is_known: bool) -> _OpenCall | None:
        """The call of a delta that comes where all calls are complete."""
        repeated = [call for call in found if call.repeats(piece)]
        if repeated or not piece.strip():
            alike = repeated or found
            return alike[-1] if alike else None
        if not is_known:
            return None  # Arguments before their name.
        self._doubt(found[-1:], "arguments came after they were complete")
        return found[-1]

    def _named(self, index: int | None, id: str | None, name: str, piece: str, raw: Any) -> _OpenCall | None:
        """The call that a delta with a name belongs to, None if it begins a new one."""
        is_known = id in self._by_id
        found = self._matching(index, id)
        if index is not None and not any(call.index in (index, None) for call in found):
            return None
        alike = [call for call in found if call.name in (name, None)]
        opened = [call for call in alike if call.is_open()]
        if id is not None and not is_known and (index is None or not any(call.id is None for call in opened)):
            mixed = [call for call in opened if index is not None or call.id is None]
            return self._called_again(mixed, index, raw) if mixed else None
        if opened:
            if len(opened) > 1:
                self._doubt(opened, "arguments came that belong to one of several calls")
            opened[-1].n_repeats += opened[-1].name == name
            return opened[-1]
        return self._repeated(alike, is_known, piece, raw) or self._name_continued(found, id, name, raw)

    def _called_again(self, opened: list[_OpenCall], index: int | None, raw: Any) -> _OpenCall:
        """A new call of a function whose last call, at the same index and with another id, is not complete.

        Either the server gives every call the same index, or a piece of one call yet another id.
        """
        call = self._open(index, raw)
        mixed = opened if all(other.is_empty() for other in opened) else [*opened, call]
        self._doubt(mixed, "the same function was called again, with another id, before the call was complete")
        return call

    def _repeated(self, alike: list[_OpenCall], is_known: bool, piece: str, raw: Any) -> _OpenCall | None:
        """The call of a delta that names a complete call once more, None if there is none of this name."""
        if not alike:
            return None
        if not piece:
            call = self._open(alike[-1].index, raw)
            call.is_echo = True
            return call
        earlier = [call for call in alike if raw is None or call.payload is not raw]
        repeated = next((call for call in earlier if call.repeats(piece)), None)
        if repeated is not None and not is_known:
            call = self._open(repeated.index, raw)
            self._doubt([call], "the call came twice, and nothing tells whether two were meant")
            return call
        return repeated

    def _name_continued(self, found: list[_OpenCall], id: str | None, name: str, raw: Any) -> _OpenCall | None:
        """The call whose name a delta continues, None if there is none.

        A server that gives ids would have given another one to another call. Without ids nothing tells a name in
        pieces from two calls without arguments.
        """
        begun = [call for call in found if call.is_open() and call.is_empty() and call.name is not None]
        if not begun:
            return None
        if len(begun) > 1 or begun[0].id is None:
            call = self._open(begun[-1].index, raw)
            self._doubt([*begun, call], "the name came in pieces, or another call began before the arguments")
            return call
        begun[0].name = (begun[0].name or "") + name
        begun[0].n_name_pieces += 1
        return begun[0]

    def _open(self, index: int | None, raw: Any) -> _OpenCall:
        call = _OpenCall(len(self._calls), index, raw)
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

    def _joined(self, call: _OpenCall, piece: str) -> str:
        if piece.isascii() and not call.half:
            return piece
        piece, call.half, is_damaged = join_halves(call.half + piece)
        if is_damaged:
            self._warn(HALF_CHARACTER)
        return piece

    def _event(self, call: _OpenCall, piece: str, raw: Any) -> ToolCallDelta | None:
        fresh = call.take(piece)
        if call.name is None:
            call.waiting.append(fresh)
            return None
        if call.waiting:
            fresh = "".join(call.waiting) + fresh
            call.waiting.clear()
        if (call.announced or call.is_echo) and not fresh:
            return None
        call.announced = True
        return ToolCallDelta(call.position, call.id, call.name, fresh, self._choice_index, raw)

    def _finished(self, call: _OpenCall, doubt: str, used: set[str], cut_off: bool) -> ToolCall:
        if call.half:  # Its other half never came.
            call.take("\ufffd")
            self._warn(HALF_CHARACTER)
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
            doubt,
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

    def _is_echo(self, call: _OpenCall, alike: list[_OpenCall]) -> bool:
        """Whether a call without arguments is the name of another one that was sent again."""
        is_same = call.id is not None and len(self._by_id[call.id]) > 1
        return call.is_echo and (is_same or not any(other.n_nameless for other in alike))

    def _doubt_of(self, call: _OpenCall, alike: list[_OpenCall]) -> str:
        """Why it cannot be told what the arguments of a call are; empty if it can."""
        if call.doubt:
            return call.doubt
        if _may_be_mixed(alike):
            return "the arguments of several calls may be mixed up"
        return self._why_phantom(call) if call.is_empty() else ""

    def _why_phantom(self, call: _OpenCall) -> str:
        """Why a call without arguments may be a part of another one; empty if it is a call of its own."""
        if any(other.name is None for other in self._calls):
            return "arguments came without the name of their call"
        if call.is_echo:
            return "it came again without arguments, and nothing tells whether that was meant"
        same_id = [other for other in self._by_id.get(call.id or "", ()) if other is not call]
        return "its id came again with another index" if any(other.name == call.name for other in same_id) else ""

    def _warn(self, text: str) -> None:
        self._warnings.add(text, self._choice_index)


def _may_be_mixed(alike: list[_OpenCall]) -> bool:
    """Whether pieces of one call may be in another: of calls that have the same index, or none.

    Where a name was repeated in some of the deltas only, or came in pieces, one of these deltas may have begun another
    call. Then there are several calls, or the arguments begin anew in one of them.
    """
    is_irregular = any(call.n_name_pieces for call in alike) or (
        any(call.n_repeats for call in alike) and any(call.n_nameless for call in alike)
    )
    return is_irregular and (len(alike) > 1 or alike[0].n_openings > 0)


_CALL_MEMBERS = frozenset({"index", "id", "type", "function", "name", "arguments"})


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
