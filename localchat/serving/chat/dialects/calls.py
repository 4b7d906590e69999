"""The state of the tool calls in one output: the tools offered, the calls made, and whether a call is open."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Callable

from ...core.events import Event, ToolCallArguments, ToolCallStart

# Ids that clients can send back: no white space, and not too long for their databases.
_ID = re.compile("[!-~]{1,64}")


def new_call_id() -> str:
    """A unique id for a call."""
    return "call_" + secrets.token_hex(12)


class CallFound(Exception):
    """A call would begin, but `Calls.is_trial` is set."""


class Calls:
    """Emits the events of tool calls. A call of a tool that is not offered is treated as text.

    Attributes:
        schemas: The JSON schema of the arguments of each tool that may be called.
        made: The number of calls that have begun.
        is_open: Whether the arguments of the last call are incomplete. An output that ends here has the finish reason
            "length".
        is_trial: Raise CallFound instead of beginning a call, to find out whether a text is one.
    """

    def __init__(
        self, tools: Sequence[Mapping[str, Any]], new_id: Callable[[], str], emit: Callable[[Event], object]
    ) -> None:
        functions = [tool.get("function", tool) for tool in tools]
        self.schemas: dict[str, Mapping[str, Any]] = {
            function["name"]: function.get("parameters") or {} for function in functions if function.get("name")
        }
        self.made = 0
        self.is_open = self.is_trial = False
        self._new_id = new_id
        self._emit = emit
        self._ids: set[str] = set()

    def start(self, name: str, call_id: str | None = None) -> None:
        """Begin a call. `call_id` is the id that the model generated; an invalid or repeated one is replaced."""
        if self.is_trial:
            raise CallFound
        if call_id is None or not _ID.fullmatch(call_id) or call_id in self._ids:
            call_id = self._new_id()
        self._ids.add(call_id)
        self._emit(ToolCallStart(self.made, call_id, name))
        self.made += 1
        self.is_open = True

    def arguments(self, text: str) -> None:
        """Add a piece to the arguments of the open call."""
        if text:
            self._emit(ToolCallArguments(self.made - 1, text))

    def close(self) -> None:
        """End the open call."""
        self.is_open = False
