"""The process of `python -m localchat.server` with a scripted model, which records the requests that it receives.

with scripted_server(folder, [Rule("", "Hello!")]) as server:
    assert Client(server.url).chat("hi").text == "Hello!"
    assert [request.status for request in server.requests()] == [200]
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localchat import server
from localchat.serving.engine import process
from localchat.serving.http.exchange import Exchange
from tests.support.live import ServerProcess, started
from tests.support.scripted_engine import Rule, Script

# Bytes, since the tokens of the scripted model are bytes: the prompts of coding agents have up to 100,000.
N_CTX = 400_000


@dataclass(frozen=True)
class RecordedRequest:
    """A request that the server has responded to."""

    method: str
    target: str  # With the query.
    headers: dict[str, str]
    body: str
    status: int
    summary: str  # As in the log of the server: the usage, or the error.
    began_at: float  # By `time.monotonic` of the server.

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class ScriptedServer:
    """A server that is ready."""

    process: ServerProcess
    path: Path  # The file of the requests.

    @property
    def url(self) -> str:
        """The base URL, which ends in /v1."""
        return self.process.url

    def requests(self) -> list[RecordedRequest]:
        """The requests that have ended, in the order of their beginnings.

        A request ends after its response: the next one may end first, and the program that sent it, too.
        """
        with contextlib.suppress(FileNotFoundError):
            requests = [RecordedRequest(**json.loads(line)) for line in self.path.read_text("utf-8").splitlines()]
            return sorted(requests, key=lambda request: request.began_at)
        return []


@contextlib.contextmanager
def scripted_server(
    folder: Path, rules: Sequence[Rule], *arguments: str, n_ctx: int = N_CTX
) -> Iterator[ScriptedServer]:
    """Run a server with these rules and these arguments on a free port. Its log is a file of the folder, too."""
    script, requests, log = folder / "script.json", folder / "requests.jsonl", folder / "server.log"
    Script(rules, n_ctx).write(script)
    command = [sys.executable, "-m", "tests.support.scripted_server", script, requests, "--port", "0", *arguments]
    with contextlib.ExitStack() as at_end, started([str(part) for part in command]) as server_process:
        # When the process has ended, since the log is complete then.
        at_end.callback(lambda: log.write_text("".join(server_process.lines), encoding="utf-8"))
        yield ScriptedServer(server_process, requests)


def record_requests(path: Path) -> None:
    """Let each exchange of this process append its request to a file."""
    read, end = Exchange.read, Exchange.log
    bodies: dict[Exchange, bytes] = {}

    def read_and_keep(exchange: Exchange) -> bytes:
        bodies[exchange] = read(exchange)
        return bodies[exchange]

    def end_and_record(exchange: Exchange) -> None:
        end(exchange)
        query = "&".join(f"{name}={value}" for name, value in exchange.query.items())
        fields = {
            "method": exchange.method,
            "target": f"{exchange.path}?{query}" if query else exchange.path,
            "headers": dict(exchange.headers.items()),
            "body": bodies.pop(exchange, b"").decode("utf-8", "replace"),
            "status": exchange.status,
            "summary": exchange.summary,
            "began_at": exchange._began_at,
        }
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(fields) + "\n")

    Exchange.read, Exchange.log = read_and_keep, end_and_record  # type: ignore[method-assign]


def main() -> int:
    script, requests, *arguments = sys.argv[1:]
    process.COMMAND = [sys.executable, "-m", "tests.support.scripted_engine", script]
    record_requests(Path(requests))
    return server.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
