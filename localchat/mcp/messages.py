"""JSON-RPC messages without I/O: values to text, text to values; the lines of the stdio transport; the error.

    client  {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "add", ...}}         a request
    server  {"jsonrpc": "2.0", "method": "notifications/progress", "params": {...}}                     a notification
    server  {"jsonrpc": "2.0", "id": 1, "result": {"content": [{"type": "text", "text": "3"}]}}         its response
            {"jsonrpc": "2.0", "id": 1, "error": {"code": -32602, "message": "..."}}                    or an error

Texts of a server in errors and logs are escaped here, since a terminal may show them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from ..errors import LocalChatError
from ..texts import escaped

Json = dict[str, Any]

# Larger than an image or a file in a result, and small enough for the memory of a small machine.
MAX_MESSAGE_BYTES = 64 * 1024 * 1024

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR = -32700, -32600, -32601, -32602, -32603


class MCPError(LocalChatError):
    """A server could not be started or reached, ended, sent what is no message, or returned an error."""

    server: str = ""  # The name of the server.
    code: int | None = None  # The code of an error that the server returned.
    data: Any = None  # Its data.
    status: int | None = None  # The HTTP status, if the server returned one other than 2xx.


class NotAMessage(ValueError):
    """A text is no JSON-RPC message."""


def parse_messages(text: str) -> list[Json]:
    """The messages of a JSON text: one, or the several of a batch, which revision 2025-03-26 has."""
    try:
        parsed = json.loads(text.removeprefix("\ufeff"))
    except (ValueError, RecursionError) as error:
        raise NotAMessage(f"it is no JSON: {escaped(text)!r}") from error
    messages = parsed if isinstance(parsed, list) else [parsed]
    if not messages or not all(map(_is_message, messages)):
        raise NotAMessage(f"it is no message: {escaped(text)!r}")
    return messages


def _is_message(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    return isinstance(value.get("method"), str) or "result" in value or isinstance(value.get("error"), dict)


def encode(message: Json) -> bytes:
    """A message as one line of ASCII. Raises TypeError or ValueError if it is not JSON."""
    try:
        return json.dumps(message, allow_nan=False).encode("ascii") + b"\n"
    except RecursionError:
        raise ValueError("the arguments are nested too deeply to be sent as JSON") from None


def failure(server: str, reason: str, **attributes: Any) -> MCPError:
    """The error of a server with this name."""
    return MCPError(f"MCP server {server}: {reason}", server=server, **attributes)


def reported_failure(server: str, reported: Json, shown: Callable[[str], str], status: int | None = None) -> MCPError:
    """The error for the field `error` of a response. `shown` masks its message before it cuts it."""
    code = reported.get("code")
    code = code if isinstance(code, int) else None
    text = shown(str(reported.get("message") or "no message"))
    return failure(server, f"{text} (error {code})", code=code, data=reported.get("data"), status=status)


class LineDecoder:
    """Splits bytes into lines, in linear time. Raises NotAMessage for a line that is too long."""

    def __init__(self, max_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._incomplete = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Take the next bytes and return the lines that they complete, without their ends."""
        *complete, rest = data.split(b"\n")
        lines = []
        for line in complete:
            self._extend(line)
            lines.append(bytes(self._incomplete))
            self._incomplete.clear()
        self._extend(rest)
        return lines

    def _extend(self, piece: bytes) -> None:
        if len(self._incomplete) + len(piece) > self._max_bytes:
            raise NotAMessage(f"a line has more than {self._max_bytes} bytes")
        self._incomplete += piece
