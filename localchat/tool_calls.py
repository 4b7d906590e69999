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


class _OpenCall:
    """One call while its pieces come in."""

    def __init__(self, position: int, index: int | None) -> None:
        self.position = position
        self.index = index
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
        # Whether the arguments are complete JSON; None if that has to be found out again.
        self._whole: bool | None = None

    def text(self) -> str:
        self.parts = ["".join(self.parts)]
        return self.parts[0]

    def is_whole(self) -> bool:
        """Whether the arguments are complete JSON by now. The last character tells most of the time."""
        if self._whole is None:
            last = next((part for part in reversed(self.parts) if part.strip()), "")
            self._whole = last.rstrip().endswith("}") and _loads(self.text())[1] is None
        return self._whole

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
    """Assembles the calls of one choice by the rules that serve every dialect (K16, C22, L39).

    A server's index is a label, never a position: some servers give all calls the same one, or none.
    """

    def __init__(self, choice_index: int, warnings: Warnings) -> None:
        self._choice_index = choice_index
        self._warnings = warnings
        self._calls: list[_OpenCall] = []
        self._by_id: dict[str, _OpenCall] = {}
        self._by_index: dict[int, _OpenCall] = {}

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
        call = self._find(index, id, name, piece) or self._open(index)
        self._name(call, id, name)
        call.extra.update(extra)
        return self._event(call, piece, raw)

    def take_whole(self, delta: Json, raw: Any = None) -> ToolCallDelta | None:
        """The same from a message that repeats what came before: a call that is known is not added to."""
        function = delta.get("function")
        if isinstance(function, dict):
            piece = _arguments_text(function.get("arguments"))
            id, index = filled(delta.get("id")), as_index(delta.get("index")) or 0
            known = self._by_id.get(id or "") or self._by_index.get(index)
            if known is not None and None not in (id, known.id) and id != known.id:
                known = None  # Another call of a server that numbers all calls alike.
            if known is not None and known.name == function.get("name") and known.text() == piece:
                return None
        return self.take(delta, raw)

    def finish(self, cut_off: bool = False) -> list[ToolCall]:
        """The calls, complete. Only the end of the stream is the end of a call: a prefix may parse too.

        Args:
            cut_off: Whether the answer ended by force, so that the last call may lack its arguments.
        """
        used: set[str] = set()
        return [self._finished(call, used, cut_off and call is self._calls[-1]) for call in self._calls]

    def _find(self, index: int | None, id: str | None, name: str | None, piece: str) -> _OpenCall | None:
        """The call that a delta belongs to, None if it begins a new one."""
        known = self._by_id.get(id) if id is not None else None
        if known is not None and (name is None or index is None or index == known.index):
            return known
        if index is not None and index in self._by_index:
            held = self._by_index[index]
            if self._begins_anew(held, id, name, piece):
                return None
            if name and not piece and not held.parts and None not in (id, held.id) and id != held.id:
                self._warn(f"call {name!r} came again with another id and no arguments; taken as one call")
            return held
        if name is not None:
            return self._repeated(index, id, name, piece)
        if id is not None:
            return self._calls[-1] if index is None and self._calls else None
        return self._nameless(index, piece)

    @staticmethod
    def _begins_anew(held: _OpenCall, id: str | None, name: str | None, piece: str) -> bool:
        """Whether a delta at an index in use is the next call of a server that numbers all calls alike."""
        if name is None or held.name is None:
            return False
        if name != held.name:
            return True
        other_id = id is not None and held.id is not None and id != held.id
        opens = piece.lstrip().startswith("{") or (other_id and not piece)
        return opens and held.is_whole()

    def _repeated(self, index: int | None, id: str | None, name: str, piece: str) -> _OpenCall | None:
        """A name without index or id is a new call, unless it repeats that of the call under way."""
        last = self._calls[-1] if self._calls else None
        if last is None or index is not None or id is not None or last.name not in (name, None):
            return None
        opens = piece.lstrip().startswith("{")
        return None if opens or not piece or last.is_whole() else last

    def _nameless(self, index: int | None, piece: str) -> _OpenCall | None:
        """A piece without id and name: part of the only call that is open."""
        if not self._calls:
            return None
        last = self._calls[-1]
        if index is not None:
            if piece and last.is_whole():
                return None  # Arguments before their name.
            self._by_index[index] = last
        elif len(self._calls) == 1 or not piece:
            return last
        open_calls = [call for call in self._calls if not call.is_whole()]
        if len(open_calls) == 1 and index is None:
            return open_calls[0]
        self._warn("arguments came without a call to belong to; added to the last call")
        return last

    def _open(self, index: int | None) -> _OpenCall:
        call = _OpenCall(len(self._calls), index)
        self._calls.append(call)
        if index is not None:
            self._by_index[index] = call
        return call

    def _name(self, call: _OpenCall, id: str | None, name: str | None) -> None:
        """Ids and names are set once; repeats are not appended."""
        if id is not None:
            if call.id is None:
                call.id = id
            self._by_id.setdefault(id, call)
        if name is not None and call.name is None:
            call.name = name
        elif name is not None and name != call.name:
            self._warn(f"call {call.name!r} was named {name!r} later; the first name is kept")

    def _event(self, call: _OpenCall, piece: str, raw: Any) -> ToolCallDelta | None:
        fresh = call.take(piece)
        if call.name is None:
            call.waiting.append(fresh)
            return None
        if call.waiting:
            fresh = "".join(call.waiting) + fresh
            call.waiting.clear()
        if call.announced and not fresh:
            return None
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
        if cut_off and not text.strip():
            arguments, error = None, "the answer was cut before the arguments"
        if call.name is None:
            arguments, error = None, "the call has no name"
        id = call.id
        if id in used:
            self._warn(f"two calls had the id {id!r}; the later one got another")
        if id is None or id in used:
            id = call.made_id = call.made_id or "call_" + os.urandom(12).hex()
        used.add(id)
        return ToolCall(id, call.name or "", arguments, text, error, call.position, call.extra, self._choice_index)

    def _warn(self, text: str) -> None:
        self._warnings.add(text, self._choice_index)


_CALL_MEMBERS = frozenset({"index", "id", "type", "function", "name", "arguments"})


def _arguments_text(arguments: Any) -> str:
    if isinstance(arguments, str):
        return arguments
    return dump(arguments) if arguments else ""


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
