"""The server under test: requests to it, the resources of its process, and checks with ordinary requests."""

import contextlib
import http.client
import io
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.support import exchanges
from tests.support.live import ServerProcess, running_process

DEADLINE_S = 30.0
# The documented statuses of requests that do not make the server fail.
DOCUMENTED = frozenset({200, 204, 400, 401, 403, 404, 405, 411, 413, 414, 415, 429, 431, 501, 503, 505})


@dataclass
class Target:
    """A server on this machine."""

    server: ServerProcess
    ordinary_s: list[float] = field(default_factory=list)
    """The times of the ordinary requests, which are sent between the hostile ones."""

    def statuses(self, raw: bytes) -> list[int]:
        """Send bytes on a new connection, and close this side; returns the status of each response.

        The server may treat the client as disconnected, and cut the last response.
        """
        received = b""
        with socket.create_connection(("127.0.0.1", self.server.port), DEADLINE_S) as sock:
            with contextlib.suppress(ConnectionError):
                sock.sendall(raw)
                sock.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionError):
                while piece := sock.recv(65536):
                    received += piece
        file, found = io.BytesIO(received), []
        file.close = lambda: None  # A response closes its file.
        # The end follows a response, a part of one, or 100 Continue.
        with contextlib.suppress(http.client.RemoteDisconnected, http.client.IncompleteRead):
            while True:
                response = http.client.HTTPResponse(SimpleNamespace(makefile=lambda mode: file))  # type: ignore[arg-type]
                response.begin()
                found.append(response.status)
                response.read()
        assert set(found) <= DOCUMENTED, f"statuses {found} for {raw[:500]!r}"
        return found

    def ask(self, path: str, fields: object) -> tuple[int, Any]:
        """The status and the body of the response to a POST request.

        The status must be documented. An error must have a message, without details of the server.
        """
        status, body = exchanges.ask(self.server.port, path, fields)
        assert status in DOCUMENTED, f"status {status}: {body}"
        if status >= 400:
            message = body["error"] if isinstance(body["error"], str) else body["error"]["message"]
            assert message, f"no message for {path} {fields}"
            assert not re.search("Traceback|internal", message), f"{message!r} for {path} {fields}"
        return status, body

    def chat(self, content: str = "What is your name?", **fields: Any) -> str:
        """The text of a greedy completion."""
        fields = {"messages": [{"role": "user", "content": content}], "max_tokens": 16, "temperature": 0, **fields}
        status, body = self.ask("/v1/chat/completions", fields)
        assert status == 200, f"an ordinary request got {status}: {body}"
        return str(body["choices"][0]["message"]["content"])

    def check(self) -> None:
        """Send an ordinary request and record its time."""
        start = time.perf_counter()
        self.chat(max_tokens=4)
        self.ordinary_s.append(time.perf_counter() - start)

    @property
    def ordinary(self) -> str:
        """The times of ordinary requests, for the report."""
        ordered = sorted(self.ordinary_s) or [0.0]
        return f"{1000 * ordered[len(ordered) // 2]:.0f} ms, at most {1000 * ordered[-1]:.0f} ms"

    def resources(self) -> dict[str, float]:
        """Resident MB, threads and descriptors of the process; Linux."""
        proc = Path(f"/proc/{self.server.process.pid}")
        pages = int(proc.joinpath("statm").read_text().split()[1])
        n_threads = len(list(proc.joinpath("task").iterdir()))
        n_files = len(list(proc.joinpath("fd").iterdir()))
        return {"MB": pages * os.sysconf("SC_PAGE_SIZE") / 1e6, "threads": n_threads, "files": n_files}


@contextlib.contextmanager
def running_target(*arguments: str) -> Iterator[Target]:
    """A new server with these arguments."""
    with running_process(*arguments) as server:
        yield Target(server)


def counted(counts: Mapping[Any, int]) -> str:
    """Statuses or other outcomes with their counts, for the report."""
    return ", ".join(f"{n} times {outcome}" for outcome, n in sorted(counts.items()))
