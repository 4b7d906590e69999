"""A server for the chat page alone, which streams given texts as fast as they come.

The real server with a fake model generates some thousand bytes. This one is for answers of a megabyte.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from localchat.serving.http.status_endpoints import chat_page

# The texts of an answer, each sent as one chunk, to the messages of a request.
Answer = Callable[[list[Any]], Iterable[str]]


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, answer: Answer, *args: Any) -> None:
        self._answer = answer
        super().__init__(*args)

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/":
            text, headers = chat_page()
            self._reply(text, "text/html; charset=utf-8", headers)
        else:
            models = {"object": "list", "data": [{"id": "model", "object": "model", "owned_by": "localchat"}]}
            props = {"default_generation_settings": {"params": {}, "n_ctx": 100_000}}
            self._reply(json.dumps(props if self.path.endswith("/props") else models), "application/json", {})

    def _reply(self, text: str, content_type: str, headers: dict[str, str]) -> None:
        body = text.encode()
        self.send_response(200)
        for name, value in {**headers, "Content-Type": content_type, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        with contextlib.suppress(OSError):  # The page has been closed.
            for text in self._answer(request["messages"]):
                self._send_chunk({"delta": {"content": text}, "finish_reason": None})
            self._send_chunk({"delta": {}, "finish_reason": "stop"})
            self.wfile.write(b"data: [DONE]\n\n")

    def _send_chunk(self, choice: dict[str, Any]) -> None:
        chunk = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "model"}
        self.wfile.write(f"data: {json.dumps({**chunk, 'choices': [{'index': 0, **choice}]})}\n\n".encode())


@contextlib.contextmanager
def page_server(answer: Answer) -> Iterator[str]:
    """The URL of a server of the page with these answers."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, answer))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
