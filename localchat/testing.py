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
import sys
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
    number: int  # The number of the response, for ids that no other one has.

    def message(self) -> Json:
        """The role and the calls: for the message of a whole response, and for a delta of a stream."""
        calls = [
            {
                "index": index,
                "id": f"call_{self.number}_{index}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments)},
            }
            for index, (name, arguments) in enumerate(self.calls)
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
        self._n_replies = 0
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
        self._n_replies += 1
        self._responses.append(_ModelResponse(text, tuple(calls), reasoning, reason, self._n_replies))

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
    request_queue_size = 128  # Connections that wait to be accepted, as many as those of `map` may be.
    fake: FakeServer

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print the traceback of an error, unless it is that of a client that has left."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: _HTTPServer
    protocol_version = "HTTP/1.1"  # With chunks, so that every client notices a stream that is cut.

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
            self._stream(response, body.get("stream_options"))
        else:
            message = {**response.message(), "content": response.text, "reasoning_content": response.reasoning}
            value: Json = {"message": message} if self._is_chat else {"text": response.text}
            choice = {"index": 0, **value, "finish_reason": response.finish_reason}
            whole = {**self._labels("chat.completion", response), "choices": [choice], "usage": _USAGE}
            self._send(_JsonResponse(200, whole, {}), is_cut=response.finish_reason is None)

    @property
    def _is_chat(self) -> bool:
        return not self.path.endswith("/completions") or self.path.endswith("/chat/completions")

    def _labels(self, name: str, response: _ModelResponse) -> Json:
        """The fields that all payloads of a response have."""
        id = f"fake-{response.number}"
        return {"id": id, "object": name if self._is_chat else "text_completion", "created": 1, "model": "fake"}

    def _send(self, response: _JsonResponse, is_cut: bool = False) -> None:
        """Send the head and the body. `is_cut`: the connection ends in the middle of the body."""
        data = json.dumps(response.json).encode()
        self.send_response(response.status)
        for name, value in {**response.headers, "Content-Type": "application/json"}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self._end_head()
        self.wfile.write(data[: len(data) // 2] if is_cut else data)

    def _stream(self, response: _ModelResponse, stream_options: Any) -> None:
        """Send the words as events. A stream without a finish reason is cut: the connection ends after the words."""
        self.send_response(200)
        for name, value in (("Content-Type", "text/event-stream"), ("Transfer-Encoding", "chunked")):
            self.send_header(name, value)
        self._end_head()
        labels = self._labels("chat.completion.chunk", response)
        deltas: list[Json] = [{"content": piece} for piece in _pieces(response.text)]
        if self._is_chat:
            reasoning = [{"reasoning_content": piece} for piece in _pieces(response.reasoning)]
            calls = [response.message()] if response.calls else []
            deltas = [{"role": "assistant", "content": ""}, *reasoning, *deltas, *calls]
        reason = response.finish_reason
        last: list[tuple[Json, str | None]] = [] if reason is None else [({}, reason)]
        for delta, finish_reason in [*((delta, None) for delta in deltas), *last]:
            output: Json = {"delta": delta} if self._is_chat else {"text": delta.get("content", "")}
            self._event({**labels, "choices": [{"index": 0, **output, "finish_reason": finish_reason}]})
        if reason is not None:
            if isinstance(stream_options, dict) and stream_options.get("include_usage"):
                self._event({**labels, "choices": [], "usage": _USAGE})
            self._chunk(b"data: [DONE]\n\n")
            self._chunk(b"")

    def _event(self, payload: Json) -> None:
        self._chunk(b"data: %s\n\n" % json.dumps(payload).encode())

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def _end_head(self) -> None:
        self.send_header("Connection", "close")
        self.end_headers()


_USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}


def _pieces(text: str) -> list[str]:
    """The words of a text, each with the blanks before it."""
    return re.findall(r"\s*\S+|\s+$", text)
