"""Assembly of tool calls from the deltas of a stream, for the dialects of all servers. No I/O.

Which call a delta belongs to: the id decides, then the index. A model generates calls one after another, so a delta
with neither belongs to the last call. With the same index and no id, another name begins a second call, and the same
name does so only if the arguments so far are complete JSON and new arguments come with the name or after it. A name
comes in pieces if the pieces have the same index and id, or if only the first has an id; the whole name of an offered
tool gets no further pieces, unless these make the name of another tool.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection
from typing import Any

from ..errors import ProtocolError, cut
from ..events import ToolCall, ToolCallDelta
from .payloads import Json, as_integer, dump, non_blank
from .text import SurrogateJoiner

# The limit of calls in a choice. Each delta is compared with all calls, so the time is quadratic in their number.
_MAX_CALLS = 1000

_CALL_FIELDS = frozenset({"index", "id", "type", "function", "name", "arguments"})


class _OpenCall:
    """The state of one call."""

    def __init__(self, position: int, index: int | None, payload: Any, joiner: SurrogateJoiner) -> None:
        self.position = position  # The number of the call in its choice.
        self.index = index  # The index that the server sent. Several calls may have the same one.
        # The last payload that began or repeated the call. Two entries of one payload are two calls.
        self.payload = payload
        self.ids: list[str] = []  # The ids of its deltas; the first is the id of the call.
        self.made_id = ""  # The id that the client made for a call without one, or with the id of another call.
        self.name: str | None = None
        # Whether the name came again after the arguments: if more arguments follow, they are those of a second call.
        self.is_named_again = False
        self.extra: Json = {}
        self.joiner = joiner
        # Whether an event of the call was made. The first one is made when the name is known.
        self.is_announced = False
        # The pieces of the arguments, and whether the text so far is complete JSON; None if that is not known.
        self._pieces: list[str] = []
        self._is_complete: bool | None = False
        # The last piece, and whether every piece contains the one before, which is what some servers send.
        self._latest = ""
        self._is_cumulative = True

    def name_with(self, name: str | None) -> str | None:
        """The name after another one, which may be the same, a further piece, or the name with a further piece."""
        if name is None or name == self.name:
            return self.name
        return name if self.name is None or name.startswith(self.name) else self.name + name

    def text(self) -> str:
        """The arguments so far."""
        self._pieces = ["".join(self._pieces)]
        return self._pieces[0]

    def is_complete(self) -> bool:
        """Whether the arguments so far are a JSON object. The JSON is parsed only if the last character is a brace."""
        if self._is_complete is None:
            last = next((piece for piece in reversed(self._pieces) if piece.strip()), "")
            self._is_complete = last.rstrip().endswith("}") and _loads(self.text())[1] is None
        return self._is_complete

    def is_repeated_by(self, piece: str) -> bool:
        """Whether a piece is all the arguments of this complete call."""
        return self.is_complete() and piece.strip() == self.text().strip()

    def add(self, piece: str) -> str:
        """Append a piece and return the new part of it."""
        if not piece:
            return ""
        self._pieces.append(piece)
        self._is_complete = None
        self._is_cumulative &= len(piece) > len(self._latest) and piece.startswith(self._latest)
        new = piece[len(self._latest) :] if self._is_cumulative else piece
        self._latest = piece
        return new

    def parse(self) -> tuple[str, Json | None, str | None, str]:
        """The text of the arguments, their value or None, the error, and a warning if the text was repaired."""
        text = self.text()
        arguments, error = _loads(text)
        if error is None and _loads(text, strict=True)[1] is not None:
            return dump(arguments), arguments, None, "the arguments of a call were not exact JSON and are written anew"
        rest = text.lstrip()[2:].lstrip()
        if error is not None and text.lstrip().startswith("{}") and _loads(rest)[1] is None:
            return rest, _loads(rest)[0], None, "empty arguments came before the arguments of a call"
        if error is not None and self._is_cumulative and _loads(self._latest)[1] is None:
            warning = "the arguments were sent anew with every piece; the last one is used"
            return self._latest, _loads(self._latest)[0], None, warning
        return text, arguments, error, ""


class ToolCalls:
    """Assembles the calls of one choice: `take` adds a delta, `finish` returns the calls. `warn` gets each warning."""

    def __init__(self, choice_index: int, warn: Callable[[str], object], tool_names: Collection[str] = ()) -> None:
        self._choice_index = choice_index
        self._warn = warn
        self._tool_names = tool_names
        self._calls: list[_OpenCall] = []

    def __bool__(self) -> bool:
        return bool(self._calls)

    def take(self, delta: Json, raw: Any = None, is_summary: bool = False) -> ToolCallDelta | None:
        """Add an element of `tool_calls` in `raw`, with `is_summary` of a message at the end; return its event."""
        function = delta.get("function")
        if not isinstance(function, dict):
            function = delta if "name" in delta else {}
        index = as_integer(delta.get("index", function.get("index")))
        id, name = non_blank(delta.get("id")), non_blank(function.get("name"))
        piece = _arguments_text(function.get("arguments"))
        if not (self._calls or id or name or piece):
            return None
        call = self._repeated(name, piece, raw) if is_summary else None
        is_repeated = call is not None
        if call is None:
            call = self._find(index, id, name, piece)
            is_repeated = call is not None and call.is_repeated_by(piece)
            if call is not None and is_repeated:
                self._warn(f"call {call.name!r} was sent twice in full")
        call = call or self._open(index, raw)
        call.name = call.name_with(name)
        call.extra.update({key: value for key, value in delta.items() if key not in _CALL_FIELDS})
        if id is not None and id not in call.ids:
            call.ids.append(id)
        new = "" if is_repeated else call.add(call.joiner.feed(piece))
        if call.name is None or (call.is_announced and not new):
            return None
        new = new if call.is_announced else call.text()
        call.is_announced = True
        return ToolCallDelta(call.position, call.ids[0] if call.ids else None, call.name, new, self._choice_index, raw)

    def _find(self, index: int | None, id: str | None, name: str | None, piece: str) -> _OpenCall | None:
        """The call that a delta belongs to; None if the delta begins a call."""
        known = [call for call in self._calls if id in call.ids]
        calls = [call for call in known or self._calls if call.index == index or index is None]
        if name is None:
            if piece and self._calls and not (calls or known or self._calls[-1].is_complete()):
                self._warn("arguments came without a call to belong to; added to the last call")
            return self._continued(calls or known or self._calls, piece, is_known=bool(known))
        calls = calls or known
        last = calls[-1] if calls and index in (None, calls[-1].index) else None
        is_continued = known if id is not None else last is not None and last.ids and index is not None
        if is_continued and last is not None and self._is_piece(name, last):
            return last
        named = [call for call in calls if call.name in (name, None)]
        call = named[-1] if named else None
        if call is None or call.name is None or not call.is_complete():
            return call if call is None or not (id and not known and call.ids) else None
        has_arguments = piece.strip() != ""
        if id is not None:
            # Other arguments with a known id begin a second call.
            is_same = not has_arguments or call.is_repeated_by(piece)
            return call if is_same and (known or not call.ids) else None
        call.is_named_again = call is calls[-1] and not has_arguments
        return call if call.is_named_again else None

    def _is_piece(self, name: str, call: _OpenCall) -> bool:
        """Whether this is a further piece of the name of the call."""
        is_whole = call.name in self._tool_names and call.name_with(name) not in self._tool_names
        return call.name not in (name, None) and not is_whole and not call.is_complete()

    def _continued(self, calls: list[_OpenCall], piece: str, is_known: bool) -> _OpenCall | None:
        """The call to which a delta without a name belongs, of those that fit its id and index; None: a new one."""
        call = calls[-1] if calls else None
        if call is None or is_known or not piece.strip() or not call.is_complete():
            return call
        if call.is_named_again:
            second = self._open(call.index, None)
            second.name, call.is_named_again = call.name, False
            return second
        is_placeholder = call.text().strip() == "{}"  # Some servers send it before the arguments.
        return call if is_placeholder or call.is_repeated_by(piece) else None

    def _repeated(self, name: str | None, piece: str, raw: Any) -> _OpenCall | None:
        """The call that an element of a message repeats; None if the element is a new call."""
        for call in self._calls:
            is_same = call.text().strip() == piece.strip() or _loads(call.text()) == _loads(piece)
            if call.payload is not raw and call.name == name and is_same:
                call.payload = raw
                return call
        return None

    def _open(self, index: int | None, raw: Any) -> _OpenCall:
        if len(self._calls) >= _MAX_CALLS:
            raise ProtocolError(f"the response has more than {_MAX_CALLS} tool calls")
        call = _OpenCall(len(self._calls), index, raw, SurrogateJoiner(self._warn))
        self._calls.append(call)
        return call

    def finish(self, cut_off: bool = False) -> list[ToolCall]:
        """The calls at the end of the stream. `cut_off`: it was cut, so that the last call may lack its arguments."""
        used: set[str] = set()
        return [self._finished(call, used, cut_off and call is self._calls[-1]) for call in self._calls]

    def _finished(self, call: _OpenCall, used: set[str], cut_off: bool) -> ToolCall:
        text, arguments, error, warning = call.parse()
        if warning:
            self._warn(warning)
        if call.name is None:
            error = "the call has no name"
        elif cut_off and not text.strip():
            error = "the response was cut before the arguments"
        elif any(other.name is None and other.index == call.index for other in self._calls):
            error = "arguments came that belong to one of several calls"
        id = call.ids[0] if call.ids else None
        if id in used:
            self._warn(f"two calls had the id {id!r}; the later one got another")
        if id is None or id in used:
            id = call.made_id = call.made_id or "call_" + os.urandom(12).hex()
        used.add(id)
        value = arguments if error is None else None
        return ToolCall(id, call.name or "", value, text, error, call.position, call.extra, self._choice_index)


def _arguments_text(arguments: Any) -> str:
    if isinstance(arguments, str):
        return arguments
    if arguments is None:
        return ""
    return dump(arguments) if arguments else "{}"  # Some servers send an empty list if there are no arguments.


def _loads(text: str, strict: bool = False) -> tuple[Json | None, str | None]:
    """The parsed arguments or the error; blank text is none. Not `strict`: with control characters, or in a string."""
    if not text.strip():
        return {}, None
    try:
        value = json.loads(text, strict=strict, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        return None, f"the arguments are not JSON: {error}"
    if value is None:
        return {}, None
    if isinstance(value, str) and not strict:
        return _loads(value)
    if not isinstance(value, dict):
        return None, f"the arguments are not a JSON object: {cut(text, 60)}"
    return value, None


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not a number of JSON")
