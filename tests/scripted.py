"""A chat server that plays what a test wrote down, for exact answers: streams of text, calls and cuts."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Union

from localchat import Client

Json = dict[str, Any]
# The payloads of one answer. Without a finish reason the answer is cut: no [DONE] follows.
Answer = Union[Sequence[Json], Callable[[Json], Sequence[Json]]]


def chunk(finish: str | None = None, **delta: Any) -> Json:
    return {"id": "chatcmpl-1", "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def text(*pieces: str) -> list[Json]:
    return [*(chunk(content=piece) for piece in pieces), chunk("stop")]


def refusal(message: str) -> list[Json]:
    """An answer with status 400."""
    return [{"error": {"message": message}}]


def calls(*named: tuple[str, str], **members: Any) -> list[Json]:
    """Calls, each a name and its arguments as text, with ids call_0, call_1 and so on."""
    deltas = []
    for index, (name, arguments) in enumerate(named):
        function = {"name": name, "arguments": arguments}
        call = {"index": index, "id": f"call_{index}", "type": "function", "function": function, **members}
        deltas.append(chunk(tool_calls=[call]))
    return [*deltas, chunk("tool_calls")]


@dataclass
class Script:
    """What the server plays, and what it was asked."""

    answers: list[Answer]
    base_url: str = ""
    requests: list[Json] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)

    def next(self, path: str, body: Json) -> Sequence[Json]:
        self.paths.append(path)
        self.requests.append(body)
        # The last answer is given for ever.
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return answer(body) if callable(answer) else answer


@contextlib.contextmanager
def scripted(*answers: Answer) -> Iterator[Script]:
    """A server on a free port that gives these answers one after another."""
    script = Script(list(answers))

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.reply("application/json", json.dumps({"data": [{"id": "m"}]}).encode())

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            payloads = script.next(self.path, body)
            if "error" in payloads[0]:
                self.reply("application/json", json.dumps(payloads[0]).encode(), 400)
                return
            if not body.get("stream"):
                self.reply("application/json", json.dumps(payloads[0]).encode())
                return
            whole = any(choice.get("finish_reason") for payload in payloads for choice in payload["choices"])
            frames = [*map(json.dumps, payloads), *(["[DONE]"] if whole else [])]
            self.reply("text/event-stream", "".join(f"data: {frame}\n\n" for frame in frames).encode())

        def reply(self, content_type: str, body: bytes, status: int = 200) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            """Quiet."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        script.base_url = f"http://127.0.0.1:{server.server_port}/v1"
        try:
            yield script
        finally:
            server.shutdown()
            thread.join(10)


@contextlib.contextmanager
def playing(*answers: Answer, client_class: Any = Client, **options: Any) -> Iterator[tuple[Any, Script]]:
    """The same with a client."""
    with scripted(*answers) as script, client_class(script.base_url, model="m", **options) as client:
        yield client, script
