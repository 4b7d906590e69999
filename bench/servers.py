"""Starts the servers that are compared: localchat, and peers where they are installed."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .measure import DEADLINE_S, first_model


@dataclass(frozen=True)
class Server:
    """A running server; `start_s` is the time from its start to its first answer."""

    name: str
    url: str
    pid: int
    start_s: float

    @property
    def memory_mb(self) -> float:
        """Resident memory now, where the system tells it."""
        with contextlib.suppress(OSError):
            pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
            return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
        return 0.0

    @property
    def cpu_s(self) -> float:
        """Processor time taken so far, where the system tells it."""
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return 0.0


def commands(model: str, n_slots: int, n_ctx: int, n_threads: int) -> dict[str, list[str]]:
    """How each server is started with the same model, slots, context and threads; {port} is filled in later."""
    sizes = ["--threads", str(n_threads)]
    llama_server = os.environ.get("LLAMA_SERVER") or shutil.which("llama-server")
    found = {
        "localchat": [
            *[sys.executable, "-m", "localchat.server", model, "--port", "{port}"],
            *["--parallel", str(n_slots), "--ctx", str(n_ctx), *sizes],
        ],
        "llama_cpp.server": [
            *[sys.executable, "-m", "llama_cpp.server", "--model", model, "--port", "{port}"],
            *["--n_ctx", str(n_ctx), "--n_threads", str(n_threads), "--interrupt_requests", "False"],
        ],
    }
    if llama_server:
        found["llama-server"] = [
            *[llama_server, "-m", model, "--port", "{port}", "--no-ui"],
            *["-np", str(n_slots), "-c", str(n_ctx * n_slots), *sizes],
        ]
    return found


@contextlib.contextmanager
def running(name: str, command: list[str]) -> Iterator[Server]:
    """Runs a server until it answers, then until the `with` is left."""
    port = free_port()
    started_at = time.perf_counter()
    filled = [part.replace("{port}", str(port)) for part in command]
    with subprocess.Popen(filled, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            url = f"http://127.0.0.1:{port}/v1"
            wait_until_ready(url, process)
            yield Server(name, url, process.pid, time.perf_counter() - started_at)
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()


def wait_until_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, ValueError, LookupError):
            first_model(url)
            return
        if process.poll() is not None:
            sys.exit(f"a server ended with {process.returncode} before it answered: {process.args!r}")
        time.sleep(0.02)
    sys.exit(f"{url} was not ready within {DEADLINE_S} s")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
