"""The tools of MCP servers on the command line: their servers, their descriptions, and the approval of each call.

What servers and models write is shown with escapes in place of control characters, also if the output is no terminal.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shlex
import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ..agent.tools import Tool, ToolResult
from ..errors import LocalChatError
from ..events import ToolCall
from ..mcp import MCPServer, merge_tools, read_servers
from ..mcp.names import is_url
from ..texts import escaped, visible
from .console import delayed_notice, report, write_error

if TYPE_CHECKING:
    from argparse import Namespace

    from typing_extensions import Self

_NOTICE_S = 10.0  # Seconds after which the program reports that it waits for a server: npx may fetch it first.
_SHOWN_CHARS = 10_000  # How much of the arguments of a call is shown.
_RESULT_CHARS = 200  # How much of a result is shown.
_NOT_APPROVED = "the user did not allow this call"
_QUESTION = "Run it? [y]es, [n]o, [a]lways for this tool: "


class Toolset:
    """The servers that the command line names. They run within the `with` block.

    A server that does not start is reported, and the others are used.
    """

    def __init__(self, arguments: Namespace) -> None:
        """Raise ValueError or OSError for a wrong command line or file."""
        self._servers = [MCPServer(*_words(text)) for text in arguments.mcp]
        if arguments.mcp_config:
            self._servers += read_servers(arguments.mcp_config).values()
        self._runs_all = arguments.yes
        # The server of each tool and its name there, by the name that the model knows. Another server may have a tool
        # of that name later.
        self._origins: dict[str, tuple[str, str]] = {}
        self._always_run: set[tuple[str, str]] = set()  # The tools whose calls need no approval.
        self._stack = contextlib.ExitStack()
        self._running: dict[str, MCPServer] = {}  # The servers that have started, by different names.

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:  # It ends the servers that have started if a later one raises.
            # The program shows failed calls itself. Their tracebacks would hide the rest.
            agent_log = logging.getLogger("localchat.agent")
            stack.callback(agent_log.setLevel, agent_log.level)
            agent_log.setLevel(logging.ERROR)
            for server in self._servers:
                waiting = f"localchat: waiting for the MCP server {server.name}; Ctrl-C ends this"
                try:
                    with delayed_notice(waiting, _NOTICE_S):
                        stack.enter_context(server)
                except LocalChatError as error:
                    report(f"localchat: {error}")
                    continue
                name, number = server.name, 1
                while name in self._running:
                    number += 1
                    name = f"{server.name} {number}"
                self._running[name] = server
            if self._servers and not self._running:
                raise ValueError("no MCP server could be used")
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, error_class: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def tools(self) -> list[Tool]:
        """The tools that the servers have now. Those of a server that has ended are left out."""
        listed = self._listed()
        merged = merge_tools(listed)
        origins = [(server, tool.name) for server, tools in listed.items() for tool in tools]
        self._origins = {tool.name: origin for tool, origin in zip(merged, origins)}
        return merged

    def _listed(self) -> dict[str, list[Tool]]:
        listed = {}
        for name, server in self._running.items():
            try:
                listed[name] = server.tools()
            except LocalChatError as error:
                report(f"localchat: {error}")
        return listed

    def description(self) -> str:
        """The servers and their tools, for `--tools`."""
        lines = []
        for server, tools in self._listed().items():
            lines.append(escaped(server))
            for tool in tools:
                properties = tool.parameters.get("properties")
                required = tool.parameters.get("required", ())
                names = properties if isinstance(properties, dict) else ()
                shown = ", ".join(name if name in required else f"{name}?" for name in names)
                lines.append(f"  {tool.name}({visible(shown)})")
                lines += [f"      {visible(line)}" for line in tool.description.strip().splitlines()]
        return "\n".join(lines)

    def approve(self, call: ToolCall) -> bool | str:
        """Show a call, and ask whether it may run unless that is known. Returns True, or the reason for the model."""
        shown = json.dumps(call.arguments, ensure_ascii=False)
        n_omitted = len(shown) - _SHOWN_CHARS
        end = f"... and {n_omitted} more characters" if n_omitted > 0 else ""
        report(f"{call.name} {visible(shown[:_SHOWN_CHARS])}{end}")
        origin = self._origins[call.name]
        if self._runs_all or origin in self._always_run:
            return True
        if sys.stdin is None or not sys.stdin.isatty():
            report("localchat: this call needs a terminal to be confirmed on; --yes confirms all calls")
            return _NOT_APPROVED
        _drop_typed_input()
        while True:
            write_error(_QUESTION)
            answer = sys.stdin.readline()
            choice = answer.strip().lower()
            if choice in ("a", "always"):
                self._always_run.add(origin)
            if choice in ("y", "yes", "a", "always"):
                return True
            if choice in ("n", "no") or not answer:  # Ctrl-D.
                return _NOT_APPROVED

    def show_result(self, result: ToolResult) -> None:
        report(f"  -> {escaped(result.content, _RESULT_CHARS)}")


def _words(text: str) -> list[str]:
    """The URL or the command and the arguments of `--mcp`. Raises ValueError."""
    if is_url(text):
        return [text]
    try:
        words = shlex.split(text, posix=os.name != "nt")
    except ValueError as error:
        raise ValueError(f"--mcp {text!r}: {error}") from error
    if not words:
        raise ValueError("--mcp needs a command or a URL")
    return words


def _drop_typed_input() -> None:
    """Drop what was typed before a question, which would answer it."""
    with contextlib.suppress(ImportError, OSError):  # Windows has no termios.
        import termios

        flush: Any = termios.tcflush
        flush(sys.stdin, termios.TCIFLUSH)
