"""Several servers: the file that names them, in the form that many programs share, and their tools together."""

from __future__ import annotations

import dataclasses
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, overload

from ..agent.tools import Tool
from .names import free_name, is_url
from .server import BaseMCPServer, MCPServer

Server = TypeVar("Server", bound=BaseMCPServer)

_FORM = '{"mcpServers": {"NAME": {"command": "...", "args": [...], "env": {...}} or {"url": "...", "headers": {...}}}}'

# The fields of a server and their types.
_PROCESS_FIELDS: dict[str, Any] = {"command": str, "args": list, "env": dict, "cwd": str}
_EXPECTED = {str: "text", list: "a list of texts", dict: "an object of texts"}
_URL_FIELDS: dict[str, Any] = {"url": str, "headers": dict}


@overload
def read_servers(path: str | os.PathLike[str]) -> dict[str, MCPServer]: ...


@overload
def read_servers(path: str | os.PathLike[str], server_class: type[Server]) -> dict[str, Server]: ...


def read_servers(path: str | os.PathLike[str], server_class: Any = MCPServer) -> dict[str, Any]:
    """The servers that a file names, by their names. They are not started; AsyncMCPServer is the other class of them.

    Entries that are `"disabled": true` are left out. Raises ValueError for a file of another form.
    """
    try:
        with open(path, encoding="utf-8-sig") as file:
            parsed = json.load(file)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{os.fspath(path)} is not JSON: {error}") from error
    servers = parsed.get("mcpServers") if isinstance(parsed, dict) else None
    if not isinstance(servers, dict) or not all(isinstance(entry, dict) for entry in servers.values()):
        raise ValueError(f"{os.fspath(path)} has no servers: its form is {_FORM}")
    try:
        entries = {name: entry for name, entry in servers.items() if entry.get("disabled") is not True}
        return {name: _server(name, entry, server_class) for name, entry in entries.items()}
    except ValueError as error:
        raise ValueError(f"{os.fspath(path)}: {error}") from None


def _server(name: str, entry: Mapping[str, Any], server_class: type[Server]) -> Server:
    is_process, has_url = (entry.get(field) not in (None, "") for field in ("command", "url"))
    if is_process == has_url:
        raise ValueError(f"the server {name} needs either a command or a url")
    if entry.get("type") == "sse":
        raise ValueError(
            f"the server {name} uses the old transport sse, which MCP replaced: is there a URL of streamable HTTP?"
        )
    field_types = _PROCESS_FIELDS if is_process else _URL_FIELDS
    fields = {field: entry[field] for field in field_types if entry.get(field) is not None}
    for field, value in fields.items():
        texts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        if not isinstance(value, field_types[field]) or not all(isinstance(text, str) for text in texts):
            expected = _EXPECTED[field_types[field]]
            raise ValueError(f"{field} of the server {name} is {expected}")
    if is_process and is_url(fields["command"]):
        raise ValueError(f"command of the server {name} is a URL, which belongs into url")
    if not is_process and not is_url(fields["url"]):  # It would be taken for a program.
        raise ValueError(f"url of the server {name} begins with https:// or http://")
    return server_class(fields.pop("command" if is_process else "url"), *fields.pop("args", ()), name=name, **fields)


def merge_tools(tools: Mapping[str, Iterable[Tool]]) -> list[Tool]:
    """The tools of several servers, by the names of the servers, which are put before names that two tools have."""
    listed = {server: list(of_server) for server, of_server in tools.items()}
    counts = Counter(tool.name for of_server in listed.values() for tool in of_server)
    merged: dict[str, Tool] = {}
    for server, of_server in listed.items():
        for tool in of_server:
            name = tool.name if counts[tool.name] == 1 else f"{server}_{tool.name}"
            name = free_name(name, merged)
            merged[name] = dataclasses.replace(tool, name=name)
    return list(merged.values())
