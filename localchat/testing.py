"""A server for tests of programs that use a chat client. It has no model: it responds with what the test adds.

    with FakeServer() as server:
        server.reply("Hello!")
        assert Client(server.url).chat("hi").text == "Hello!"
        assert server.requests[0].json["messages"][-1]["content"] == "hi"

It is a real server on this machine, so the tests run everything that the program does, with any client.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self

Json = dict[str, Any]


@dataclass(frozen=True)
class FakeRequest:
    """A request that a FakeServer has received."""

    path: str
    headers: Mapping[str, str]  # Names are in lower case.
    json: Json  # The body.


@dataclass(frozen=True)
class _ModelResponse:
    """A response of a model, which is sent as a stream if the request asks for one."""

    text: str
    calls: Sequence[tuple[str, Json]]
    reasoning: str
    finish_reason: str | None

    def message(self) -> Json:
        """The role and the calls: for the message of a whole response, and for a delta of a stream."""
        calls = [
            {
                "index": number,
                "id": f"call_{number}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments)},
            }
            for number, (name, arguments) in enumerate(self.calls)
        ]
        return {"role": "assistant", **({"tool_calls": calls} if calls else {})}


@dataclass(frozen=True)
class _JsonResponse:
    """Any other response: JSON with a status."""

    status: int
    json: Json
    headers: Mapping[str, str]


class FakeServer:
    """Responds to requests for chats and completions with the added responses, in their order, each once.

    `url` is the base URL. `requests` are those received so far, without those for the list of models, which has the
    name `fake` alone. A request for which no response is left gets status 400, which a client does not retry.
    """

    def __init__(self) -> None:
        self.requests: list[FakeRequest] = []
        self._responses: deque[_ModelResponse | _JsonResponse] = deque()
        self._server = _HTTPServer(("127.0.0.1", 0), _Handler)
        self._server.fake = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    @property
    def url(self) -> str:
        if not self._thread.is_alive():  # The socket accepts connections, and a client would wait for its timeout.
            raise RuntimeError("the fake server runs within its `with` block")
        return f"http://127.0.0.1:{self._server.server_port}/v1"

    def reply(
        self,
        text: str = "",
        calls: Sequence[tuple[str, Json]] = (),
        *,
        reasoning: str = "",
        finish_reason: str | None = "auto",
    ) -> None:
        """Add a response of a model: its text, the names and the arguments of its tool calls, and its reasoning.

        A stream has one event for each word. The `finish_reason` "auto" is "tool_calls" or "stop"; with None the
        connection ends before the end of the response, as if the server had crashed: that of a stream after the text.
        """
        reason = ("tool_calls" if calls else "stop") if finish_reason == "auto" else finish_reason
        self._responses.append(_ModelResponse(text, tuple(calls), reasoning, reason))

    def error(self, status: int, message: str = "", headers: Mapping[str, str] | None = None) -> None:
        """Add an error, such as error(429, "busy", {"Retry-After": "1"})."""
        self._responses.append(
            _JsonResponse(status, {"error": {"message": message or f"status {status}"}}, headers or {})
        )

    def json(self, body: Json) -> None:
        """Add any other response, such as the vectors of /embeddings."""
        self._responses.append(_JsonResponse(200, body, {}))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _next_response(self, request: FakeRequest) -> _ModelResponse | _JsonResponse:
        self.requests.append(request)
        if self._responses:
            return self._responses.popleft()
        message = f"the fake server has no response for request {len(self.requests)}: add one with reply()"
        return _JsonResponse(400, {"error": {"message": message}}, {})


class _HTTPServer(ThreadingHTTPServer):
    daemon_threads = True
    fake: FakeServer


class _Handler(BaseHTTPRequestHandler):
    server: _HTTPServer

    def log_message(self, format: str, *arguments: Any) -> None:
        """Write no log."""

    def do_GET(self) -> None:
        self._send(_JsonResponse(200, {"object": "list", "data": [{"id": "fake", "object": "model"}]}, {}))

    def do_POST(self) -> None:
        body = None
        with contextlib.suppress(ValueError):
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        if not isinstance(body, dict):
            self._send(_JsonResponse(400, {"error": {"message": "the body is no JSON object"}}, {}))
            return
        headers = {name.lower(): value for name, value in self.headers.items()}
        response = self.server.fake._next_response(FakeRequest(self.path, headers, body))
        if isinstance(response, _JsonResponse):
            self._send(response)
        elif body.get("stream"):
            self._stream(response)
        else:
            message = {**response.message(), "content": response.text, "reasoning_content": response.reasoning}
            choice = {"index": 0, "message": message, "text": response.text, "finish_reason": response.finish_reason}
            body = {"id": "fake-1", "model": "fake", "choices": [choice], "usage": _USAGE}
            self._send(_JsonResponse(200, body, {}), is_cut=response.finish_reason is None)

    def _send(self, response: _JsonResponse, is_cut: bool = False) -> None:
        """Send the head and the body. `is_cut`: the connection ends in the middle of the body."""
        data = json.dumps(response.json).encode()
        self.send_response(response.status)
        for name, value in {**response.headers, "Content-Type": "application/json"}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: len(data) // 2] if is_cut else data)

    def _stream(self, response: _ModelResponse) -> None:
        """Send the words as events; the connection ends after them."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        deltas = [{"role": "assistant", "content": ""}]
        deltas += [{"reasoning_content": piece} for piece in _pieces(response.reasoning)]
        deltas += [{"content": piece} for piece in _pieces(response.text)]
        deltas += [response.message()] if response.calls else []
        for delta in deltas:
            self._event({"choices": [{"index": 0, "delta": delta, "text": delta.get("content", "")}]})
        if response.finish_reason is not None:
            self._event({"choices": [{"index": 0, "delta": {}, "finish_reason": response.finish_reason}]})
            self._event({"choices": [], "usage": _USAGE})
            self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, fields: Json) -> None:
        self.wfile.write(b"data: %s\n\n" % json.dumps({"id": "fake-1", "model": "fake", **fields}).encode())


_USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}


def _pieces(text: str) -> list[str]:
    """The words of a text, each with the blanks before it."""
    return re.findall(r"\s*\S+|\s+$", text)
