"""Tools of the command line: load functions by MODULE:FUNCTION, and let the user approve each call."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from ..agent.tools import Tool
from ..events import ToolCall
from .ask import printable, report

ALLOWED = ("y", "yes")
ALLOWED_ALWAYS = ("a", "always")


def load_tool(name: str) -> Tool:
    """Import MODULE and return FUNCTION as a tool. Modules in the current folder can be imported too.

    Raises:
        ValueError: The function does not exist or cannot be a tool.
    """
    module, colon, function = name.partition(":")
    if not (module and colon and function):
        raise ValueError(f"--tool takes MODULE:FUNCTION, such as datetime:datetime.now, not {name!r}")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found: Any = importlib.import_module(module)
        for part in function.split("."):
            found = getattr(found, part)
        return Tool.of(found)
    except (ImportError, AttributeError, TypeError) as error:
        raise ValueError(f"--tool {name}: {error}") from error


class Approval:
    """The `on_call` hook: ask the user on the terminal, since stdin may be a pipe, whether a call may run.

    Args:
        allows_all: Run every call without asking.
    """

    def __init__(self, allows_all: bool) -> None:
        self._allows_all = allows_all
        self._always: set[str] = set()

    def __call__(self, call: ToolCall) -> bool | str:
        """True if the call may run, else the reason that is sent to the model."""
        if self._allows_all or call.name in self._always:
            return True
        try:
            chosen = _ask_user(f"{call.name}({call.arguments_json})\nRun it? [y]es, [n]o, [a]lways: ")
        except OSError:
            report(f"localchat: {call.name} does not run: there is no terminal to ask on; --yes runs all calls")
            return "there is no terminal to ask the user for approval"
        if chosen in ALLOWED_ALWAYS:
            self._always.add(call.name)
        return True if chosen in ALLOWED + ALLOWED_ALWAYS else "the user did not approve this call"


def _ask_user(text: str) -> str:
    """Show the text on the terminal and return the line that the user types.

    Raises:
        OSError: There is no terminal.
    """
    keyboard, screen = ("CONIN$", "CONOUT$") if sys.platform == "win32" else ("/dev/tty", "/dev/tty")
    with open(keyboard, encoding="utf-8", errors="replace") as source, open(screen, "w", encoding="utf-8") as target:
        target.write(printable(text, target))
        target.flush()
        return source.readline().strip().lower()
