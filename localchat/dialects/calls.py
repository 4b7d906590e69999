"""The state of tool calls in one output: which tools are offered, which calls were made, whether one is open."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Callable

from ..protocol.events import Event, ToolCallArguments, ToolCallStart

# What clients can send back as an id: no white space, and not too long for their databases.
_ID = re.compile("[!-~]{1,64}")


def new_call_id() -> str:
    """A unique id for a call."""
    return "call_" + secrets.token_hex(12)


class Calls:
    """Makes the events of calls, and has the tools that may be called.

    Text like a call of any other tool is content; without tools, all text is.
    """

    def __init__(self, tools: Sequence[Mapping[str, Any]] = (), new_id: Callable[[], str] = new_call_id) -> None:
        functions = [tool.get("function", tool) for tool in tools]
        self._schemas: dict[str, Mapping[str, Any]] = {
            function["name"]: function.get("parameters") or {} for function in functions if function.get("name")
        }
        self._new_id = new_id
        self._ids: set[str] = set()
        self.made = 0
        # The start of a call was sent and its arguments are incomplete: an output that ends here ends as "length".
        self.is_open = False

    @property
    def offered(self) -> Sequence[str]:
        """The names that may be called."""
        return tuple(self._schemas)

    def may_call(self, name: object) -> bool:
        """Whether a tool of that name was offered."""
        return isinstance(name, str) and name in self._schemas

    def schema(self, name: str) -> Mapping[str, Any]:
        """The JSON schema of that tool's arguments."""
        return self._schemas.get(name, {})

    def head(self, name: str, call_id: str | None = None) -> Event:
        """Begin a call. The id that the model wrote is kept if it is valid and no other call of the output has it."""
        if call_id is None or not _ID.fullmatch(call_id) or call_id in self._ids:
            call_id = self._new_id()
        self._ids.add(call_id)
        self.made += 1
        self.is_open = True
        return ToolCallStart(self.made - 1, call_id, name)

    def arguments(self, text: str) -> Event:
        """The next piece of the open call's arguments."""
        return ToolCallArguments(self.made - 1, text)

    def close(self) -> None:
        """The open call is complete."""
        self.is_open = False
