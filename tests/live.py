"""The real server in a process of its own, for tests that talk to it as a stranger would."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import threading
from collections.abc import Iterator

START_DEADLINE_S = 60


@contextlib.contextmanager
def running_server(*arguments: str) -> Iterator[str]:
    """Runs `python -m localchat.server` on a free port until it is ready; its base URL."""
    with running_process(*arguments) as (url, _):
        yield url


@contextlib.contextmanager
def running_process(*arguments: str) -> Iterator[tuple[str, int]]:
    """The same; its base URL and its process id."""
    command = [sys.executable, "-m", "localchat.server", "--no-supervise", "--port", "0", *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        lines: list[str] = []
        ready = threading.Event()
        found: list[str] = []

        def read() -> None:
            assert server.stderr is not None
            for line in server.stderr:
                lines.append(line)
                match = re.search(r"ready.*?(http://[\w.]+:\d+/v1)", line)
                if match:
                    found.append(match.group(1))
                    ready.set()
            ready.set()

        reader = threading.Thread(target=read)
        reader.start()
        try:
            assert ready.wait(START_DEADLINE_S), "the server was not ready in time"
            assert found, "".join(lines)
            yield found[0], server.pid
            server.terminate()
            assert server.wait(30) in (0, 143, -15), "".join(lines)
        finally:
            server.kill()
            reader.join(30)
