"""The real server as a process, for tests that talk to it over the network."""

import contextlib
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

START_DEADLINE_S = 60
END_DEADLINE_S = 30


@dataclass(frozen=True)
class ServerProcess:
    """A server that is ready."""

    url: str
    process: subprocess.Popen[str]
    # The lines that the process has written to stderr; complete after the `with` block.
    lines: list[str]

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2].removesuffix("/v1"))


@contextlib.contextmanager
def running_process(*arguments: str) -> Iterator[ServerProcess]:
    """The process of `python -m localchat.server`, which runs on a free port within the `with` block."""
    command = [sys.executable, "-m", "localchat.server", "--port", "0", *arguments]
    with started(command) as server:
        yield server
        server.process.terminate()
        assert server.process.wait(END_DEADLINE_S) in (0, 143, -15), "".join(server.lines)


@contextlib.contextmanager
def started(command: Sequence[str]) -> Iterator[ServerProcess]:
    """Start a command that runs the server, wait until it is ready, and end it after the `with` block.

    Raises:
        AssertionError: The process ended, or the deadline passed, before the server was ready.
    """
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, errors="replace") as process:
        lines: list[str] = []
        found: list[str] = []
        is_ready = threading.Event()

        def read() -> None:
            assert process.stderr is not None
            for line in process.stderr:
                lines.append(line)
                if match := re.search(r"ready.*?(https?://[\w.]+:\d+/v1)", line):
                    found.append(match[1])
                    is_ready.set()
            is_ready.set()

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            assert is_ready.wait(START_DEADLINE_S), "the server was not ready in time"
            assert found, "".join([f"exit status {process.wait(END_DEADLINE_S)}\n", *lines])
            yield ServerProcess(found[0], process, lines)
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_DEADLINE_S)
            process.kill()
            reader.join(END_DEADLINE_S)


def engines_of(pid: int) -> list[int]:
    """The engine processes of a server; Linux."""
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # a process that has just ended
            state, parent = file.read_text().rpartition(")")[2].split()[:2]
            if int(parent) == pid and state != "Z":
                found.append(int(file.parent.name))
    return sorted(found)


def engine_of(pid: int) -> int | None:
    """The engine process of a server with one model, if it has one."""
    return next(iter(engines_of(pid)), None)
