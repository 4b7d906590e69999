"""The state of the tool calls in one output: the tools offered, the calls made, and whether a call is open."""

from __future__ import annotations

import copy
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Callable

from ...core.events import Event, ToolCallArguments, ToolCallStart
from .scan import Cursor, Markers, Reader, emit_until, read_end
from .values import text_json

# Ids that clients can send back: no white space, and not too long for their databases.
_ID = re.compile("[!-~]{1,64}")


def new_call_id() -> str:
    """A unique id for a call."""
    return "call_" + secrets.token_hex(12)


class Calls:
    """Makes the events of tool calls, and has the tools that may be called.

    A call of any other tool is treated as text. Without tools, all calls are text.
    """

    def __init__(self, tools: Sequence[Mapping[str, Any]], new_id: Callable[[], str]) -> None:
        functions = [tool.get("function", tool) for tool in tools]
        self._schemas: dict[str, Mapping[str, Any]] = {
            function["name"]: function.get("parameters") or {} for function in functions if function.get("name")
        }
        self._new_id = new_id
        self._ids: set[str] = set()
        self.made = 0
        # Whether a call has begun and its arguments are incomplete. An output that ends here has the finish reason
        # "length".
        self.is_open = False

    def trial(self) -> Calls:
        """The state before any call, to find out whether a text is a call without making one."""
        trial = copy.copy(self)
        trial._ids, trial._new_id = set(), str
        return trial

    @property
    def offered(self) -> Sequence[str]:
        """The names of the tools that may be called."""
        return tuple(self._schemas)

    def may_call(self, name: object) -> bool:
        """Whether `name` is the name of a tool that may be called."""
        return isinstance(name, str) and name in self._schemas

    def schema(self, name: str) -> Mapping[str, Any]:
        """The JSON schema for the arguments of the tool `name`."""
        return self._schemas.get(name, {})

    def start(self, name: str, call_id: str | None = None) -> Event:
        """Begin a call. `call_id` is the id that the model generated; an invalid or repeated one is replaced."""
        if call_id is None or not _ID.fullmatch(call_id) or call_id in self._ids:
            call_id = self._new_id()
        self._ids.add(call_id)
        self.made += 1
        self.is_open = True
        return ToolCallStart(self.made - 1, call_id, name)

    def arguments(self, text: str) -> Event:
        """Add a piece to the arguments of the open call."""
        return ToolCallArguments(self.made - 1, text)

    def close(self) -> None:
        """End the open call."""
        self.is_open = False


def stream_text(cursor: Cursor, calls: Calls, *ends: str, then: tuple[str, ...] = ()) -> Reader[bool]:
    """Emit a value that is a string, up to one of the markers `ends`. Returns False if the output ends before it.

    With `then`, one of these markers must follow the end; otherwise the end is part of the string.
    """
    yield calls.arguments('"')
    while True:
        end = yield from emit_until(
            cursor, Markers(*ends), lambda text: calls.arguments(text_json(text)), holds_space=False
        )
        if end is None:
            return False
        cursor.begin()
        cursor.take(len(end))
        if not then or (yield from read_end(cursor, *then)) is not None:
            cursor.end_record()
            yield calls.arguments('"')
            return True
        yield calls.arguments(text_json(cursor.end_record()))
