"""Emits the events of tool calls, and knows which tools may be called."""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Callable

from ...core.events import Event, ToolCallArguments, ToolCallStart
from ...core.scan import Cursor, Markers, Reader
from ...schema.prepare import prepared_arguments
from ...schema.types import types_at

_ID = re.compile("[!-~]{1,64}")  # Ids that clients can send back: no white space, and not too long for their databases.


def new_call_id() -> str:
    return "call_" + secrets.token_hex(12)


class Calls:
    """Emits the events of tool calls. A call of a tool that is not offered is treated as text."""

    def __init__(
        self, tools: Sequence[Mapping[str, Any]], new_id: Callable[[], str], emit: Callable[[Event], object]
    ) -> None:
        # The JSON schema of the arguments of each tool that may be called, by the name of the tool.
        self._parameters = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools}
        # Those that were needed so far, as the grammar of the call has them.
        self._prepared: dict[str, Mapping[str, Any]] = {}
        self.n_begun = 0
        self.is_open = False  # Whether the arguments of the last call are incomplete.
        self._new_id = new_id
        self._emit = emit
        self._ids: set[str] = set()
        # A call whose events wait for its id.
        self._waiting: _WaitingCall | None = None

    @property
    def names(self) -> Collection[str]:
        """The names of the tools that may be called."""
        return self._parameters.keys()

    def types_at(self, tool: str, *path: str | None) -> frozenset[str]:
        """The JSON types that the schema of a tool allows for the value at a path, that of `schema.types.types_at`."""
        if tool not in self._prepared:
            self._prepared[tool] = self._parameters[tool]
            with contextlib.suppress(ValueError, RecursionError):  # It is too large to be enforced, too.
                self._prepared[tool] = prepared_arguments(self._parameters[tool])
        return types_at(self._prepared[tool], *path)

    def start(self, name: str, call_id: str | None = None, *, id_is_last: bool = False) -> None:
        """Begin a call.

        `call_id` is the id that the model generated; an invalid or repeated one is replaced. With `id_is_last`, the id
        comes after the arguments, so the events wait for `release`.
        """
        self.n_begun += 1
        self.is_open = True
        self._waiting = _WaitingCall(name, call_id)
        if not id_is_last:
            self.release()

    def release(self, call_id: str | None = None) -> None:
        """Emit the call that waits for its id, if there is one. `call_id` is the id that came after its arguments."""
        if self._waiting is None:
            return
        call, self._waiting = self._waiting, None
        call_id = call_id if call.id is None else call.id
        if not isinstance(call_id, str) or not _ID.fullmatch(call_id) or call_id in self._ids:
            call_id = self._new_id()
        self._ids.add(call_id)
        self._emit(ToolCallStart(self.n_begun - 1, call_id, call.name))
        self.arguments("".join(call.arguments))

    def arguments(self, text: str) -> None:
        """Emit a piece of the arguments of the last call."""
        if self._waiting is not None:
            self._waiting.arguments.append(text)
        elif text:
            self._emit(ToolCallArguments(self.n_begun - 1, text))


class CallFound(Exception):
    """A call would begin here."""


class CallProbe(Calls):
    """Takes the place of Calls to find out whether a text is a call: raises CallFound in place of beginning one."""

    def start(self, name: str, call_id: str | None = None, *, id_is_last: bool = False) -> None:
        raise CallFound


@dataclass
class _WaitingCall:
    name: str
    id: str | None  # The id before the arguments; None: there is none.
    arguments: list[str] = field(default_factory=list)  # The pieces so far.


def emit_broken_arguments(cursor: Cursor, calls: Calls, *ends: str) -> Reader[None]:
    """Emit the text of a broken call as its arguments, up to one of the markers `ends`.

    If the end of the output cuts the call, its last text is dropped: what a call has up to there is a beginning of its
    arguments, which clients parse while they are streamed.
    """
    if cursor.ended:
        cursor.take(len(cursor.text) - cursor.at)
    elif (yield from cursor.emit_until(Markers(*ends), calls.arguments)):
        yield from cursor.read_end(*ends)
        calls.is_open = False
