"""A chat server that sends the responses of a script: streams of text, calls, errors and cut streams."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Union

from localchat import Client
from tests.support.raw_responses import DONE, sse, until_close, with_length
from tests.support.raw_server import Request, serving

Json = dict[str, Any]
# The payloads of one response. If none has a finish reason, the stream is cut: no [DONE] follows.
Response = Union[Sequence[Json], Callable[[Json], Sequence[Json]]]


def chunk(finish: str | None = None, **delta: Any) -> Json:
    return {"id": "chatcmpl-1", "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def text(*pieces: str) -> list[Json]:
    return [*(chunk(content=piece) for piece in pieces), chunk("stop")]


def refusal(message: str) -> list[Json]:
    """A response with status 400."""
    return [{"error": {"message": message}}]


def calls(*named: tuple[str, str], **fields: Any) -> list[Json]:
    """Calls, each a name and its arguments as text, with the ids call_0, call_1 and so on."""
    deltas = []
    for index, (name, arguments) in enumerate(named):
        function = {"name": name, "arguments": arguments}
        call = {"index": index, "id": f"call_{index}", "type": "function", "function": function, **fields}
        deltas.append(chunk(tool_calls=[call]))
    return [*deltas, chunk("tool_calls")]


@dataclass
class Script:
    """The responses of the server, and the requests that it received."""

    responses: list[Response]
    requests: list[Json] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)


@contextlib.contextmanager
def playing(*responses: Response, client_class: Any = Client, **options: Any) -> Iterator[tuple[Any, Script]]:
    """A client of a server that sends these responses one after another, and the script."""
    script = Script(list(responses))

    def respond(request: Request, number: int) -> bytes:
        if request.method == "GET":
            return with_length(json.dumps({"data": [{"id": "m"}]}).encode())
        script.paths.append(request.path)
        script.requests.append(request.json)
        # The last response is repeated.
        response = script.responses.pop(0) if len(script.responses) > 1 else script.responses[0]
        payloads = response(request.json) if callable(response) else response
        is_error = "error" in payloads[0]
        if is_error or not request.json.get("stream"):
            return with_length(json.dumps(payloads[0]).encode(), "400 Bad Request" if is_error else "200 OK")
        whole = any(choice.get("finish_reason") for payload in payloads for choice in payload["choices"])
        return until_close(*map(sse, payloads), *([DONE] if whole else []))

    with serving(respond) as server, client_class(server.url, model="m", **options) as client:
        yield client, script
