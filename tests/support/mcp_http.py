"""The MCP server of the tests over HTTP. Tests change single responses of it."""

from __future__ import annotations

import contextlib
import json
import queue
import threading
from collections.abc import Callable
from typing import Any, Optional

from tests.support.mcp_server import MODERN, ToolServer
from tests.support.raw_responses import chunks, with_length
from tests.support.raw_server import Peer, Request, Server

Json = dict[str, Any]
# Responds to a request in place of the server, which does if the result is None.
Respond = Callable[[Request, Peer], Optional[bytes]]

CLOSE = b"Connection: close"  # In place of a response: the server closes the connection.
ACCEPTED = with_length(b"", "202 Accepted")
NOT_ALLOWED = with_length(b"", "405 Method Not Allowed")
NOT_FOUND = with_length(b"no such session", "404 Not Found")
EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"


def event(message: Json | None, event_id: str = "", retry_ms: int | None = None) -> bytes:
    """An event with a message, or without one."""
    lines = [f"id: {event_id}"] if event_id else []
    lines += [f"retry: {retry_ms}"] if retry_ms is not None else []
    return "".join(f"{line}\n" for line in [*lines, f"data: {json.dumps(message) if message else ''}", ""]).encode()


def json_response(message: Json, status: str = "200 OK", headers: str = "") -> bytes:
    return with_length(json.dumps(message).encode(), status, f"Content-Type: application/json\r\n{headers}")


class MCPHTTPServer:
    """The test server at a URL.

    Args:
        revision: The revision that it knows.
        has_events: Respond with streams of events, with ids. Otherwise with JSON.
        has_sessions: Begin sessions, of which a test may remove the id from `sessions`.
        respond: Sees each request first.
    """

    def __init__(
        self,
        revision: str = "2025-11-25",
        has_events: bool = True,
        has_sessions: bool = True,
        respond: Respond = lambda request, peer: None,
    ) -> None:
        self.has_events = has_events
        self.has_sessions = has_sessions and revision != MODERN
        self.sessions: list[str] = []  # The ids of those that have not ended.
        self.n_sessions = 0
        self.tools = ToolServer(self._route, revision)
        self._respond = respond
        # The messages of each request, by its id, and of the stream that belongs to none.
        self._streams: dict[Any, queue.Queue[Json]] = {}
        self._listener: queue.Queue[Json] = queue.Queue()
        self._has_ended = threading.Event()
        self._server = Server(self._handle)

    @property
    def url(self) -> str:
        return self._server.url.removesuffix("/v1") + "/mcp"

    @property
    def requests(self) -> list[Request]:
        return self._server.requests

    def sent(self, method: str) -> list[Request]:
        """The requests with messages of this method."""
        return [request for request in self.requests if request.body and request.json.get("method") == method]

    def __enter__(self) -> MCPHTTPServer:
        self._server.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._has_ended.set()
        self._server.__exit__(*exception)

    def _route(self, message: Json) -> None:
        """Put a message of the server into the stream that it belongs to."""
        if "method" not in message:
            self._streams[message["id"]].put(message)
        elif "list_changed" in message["method"]:
            self._listener.put(message)
        else:
            token = message.get("params", {}).get("progressToken")
            self._streams.get(token, list(self._streams.values())[-1]).put(message)

    def _handle(self, peer: Peer, server: Server) -> None:
        while (request := peer.request()) is not None:
            server.requests.append(request)
            response = self._respond(request, peer)
            if response is None:
                response = self._response(request, peer)
            if response == CLOSE:
                return
            peer.send(response)
            if b"Connection: close" in response:
                return

    def _response(self, request: Request, peer: Peer) -> bytes:
        assert request.path == "/mcp"
        is_new = request.method == "POST" and request.json.get("method") == "initialize"
        if self.has_sessions and not is_new and request.headers.get("mcp-session-id") not in self.sessions:
            return NOT_FOUND
        if request.method == "DELETE":
            self.sessions.remove(request.headers["mcp-session-id"])
            return with_length(b"")
        if request.method == "GET":
            return self._listen(peer) if self.tools.revision != MODERN else NOT_ALLOWED
        return self._post(request, peer)

    def _listen(self, peer: Peer) -> bytes:
        peer.send(EVENTS + b"\r\n")
        message = self._next(self._listener)
        return chunks(event(message)) if message else chunks()

    def _next(self, messages: queue.Queue[Json]) -> Json | None:
        """The next message; None at the end of the test."""
        while not self._has_ended.is_set():
            with contextlib.suppress(queue.Empty):
                return messages.get(timeout=0.02)
        return None

    def _post(self, request: Request, peer: Peer) -> bytes:
        message, headers = request.json, ""
        if "id" not in message or "method" not in message:
            self.tools.take(message)
            return ACCEPTED
        if message["method"] == "initialize" and self.has_sessions:
            self.n_sessions += 1
            self.sessions.append(f"id-{self.n_sessions}-aZ81kq")
            headers = f"Mcp-Session-Id: {self.sessions[-1]}\r\n"
        if self.tools.revision == MODERN:
            assert request.headers["mcp-protocol-version"] == MODERN
            assert request.headers["mcp-method"] == message["method"]
        elif message["method"] not in ("initialize", "server/discover"):
            assert request.headers["mcp-protocol-version"] == self.tools.revision
        stream = self._streams[message["id"]] = queue.Queue()
        self.tools.take(message)
        if self.has_events:
            peer.send(EVENTS + f"{headers}\r\n".encode() + chunks(event(None, f"{message['id']}-0"), end=False))
        number = 0
        while True:
            sent = self._next(stream)
            if sent is None:
                return CLOSE
            number += 1
            is_last = "method" not in sent
            if self.has_events:
                peer.send(chunks(event(sent, f"{message['id']}-{number}"), end=is_last))
            if is_last:
                return b"" if self.has_events else json_response(sent, headers=headers)
