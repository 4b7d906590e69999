"""Tools of MCP servers (Model Context Protocol) for the client. `localchat` does not import this package.

from localchat import Client
from localchat.mcp import MCPServer

with MCPServer("npx", "-y", "@modelcontextprotocol/server-filesystem", ".") as files:
    print(Client().run("What is in this folder?", tools=files.tools()))

From the outside in:

server.py, aio.py               MCPServer and AsyncMCPServer: list and call tools
config.py                       the servers of a file, and their tools together
negotiation.py, revisions.py    the beginning of a connection; the revisions of the protocol
session.py                      Session: the requests that wait for responses, and what the server sends
features.py                     the functions of the program for requests of the server
process.py, http.py             the transports: a process, or a URL; their threads do the I/O
messages.py, headers.py         messages as text; the headers that repeat a part of them
results.py, names.py            the results of tools for a model; names of servers and tools

A *modern* server has a revision of the protocol since 2026-07-28: each request has the revision, and there is no
session. A *legacy* server has an earlier one: a connection begins with `initialize`, and may have a session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .config import merge_tools, read_servers
from .messages import MCPError
from .results import MCPResult
from .server import MCPServer
from .session import Progress

if TYPE_CHECKING:
    from .aio import AsyncMCPServer

__all__ = ["AsyncMCPServer", "MCPError", "MCPResult", "MCPServer", "Progress", "merge_tools", "read_servers"]


def __getattr__(name: str) -> object:
    """Import asyncio only for programs that use it."""
    if name != "AsyncMCPServer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .aio import AsyncMCPServer

    return AsyncMCPServer
