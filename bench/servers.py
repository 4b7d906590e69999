"""Starts the servers that are compared: localchat, and other servers if they are installed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .measure import DEADLINE_S, first_model


@dataclass(frozen=True)
class Server:
    """A running server."""

    name: str
    url: str
    pid: int
    # Time from the start of the process to its first response.
    start_s: float

    @property
    def memory_mb(self) -> float:
        """Resident memory now; 0 on a system without /proc."""
        with contextlib.suppress(OSError):
            pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
            return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
        return 0.0

    @property
    def cpu_s(self) -> float:
        """Processor time used so far; 0 on a system without /proc."""
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return 0.0


@dataclass(frozen=True)
class Command:
    """The command that starts a server."""

    # `{port}` is replaced by the port, and `{config}` by the path of a file with `config` and the port.
    arguments: list[str]
    config: dict[str, Any] | None = None
    # The working directory; None for the current one.
    folder: str | None = None


def commands(
    model: str, n_parallel: int, n_ctx: int, n_threads: int, *, embeds: bool = False, against: str | None = None
) -> dict[str, Command]:
    """The command of each installed server, all with the same model, slots, context and threads.

    Args:
        embeds: Start the servers for embeddings. localchat needs no option for that.
        against: The folder of another checkout of localchat, or None.
    """
    found = {"localchat": _localchat(model, n_parallel, n_ctx, n_threads)}
    if against is not None:
        found["against"] = _localchat(model, n_parallel, n_ctx, n_threads, against)
    llama_server = os.environ.get("LLAMA_SERVER") or shutil.which("llama-server")
    if llama_server:
        sizes = ["--threads", str(n_threads), "-np", str(n_parallel), "-c", str(n_ctx * n_parallel)]
        kind = ["--embeddings", "--pooling", "mean"] if embeds else []
        found["llama-server"] = Command([llama_server, "-m", model, "--port", "{port}", "--no-ui", *sizes, *kind])
    python = os.environ.get("PEER_PYTHON", sys.executable)
    if _has(python, "llama_cpp", "fastapi", "uvicorn", "sse_starlette", "starlette_context", "pydantic_settings"):
        sizes = ["--n_ctx", str(n_ctx), "--n_threads", str(n_threads), "--interrupt_requests", "False"]
        kind = ["--embedding", "True"] if embeds else []
        module = [python, "-m", "llama_cpp.server", "--model", model, "--port", "{port}"]
        found["llama_cpp.server"] = Command([*module, *sizes, *kind])
    example = os.environ.get("LLAMA_CPP_EXAMPLE")
    if example and _has(python, "llama_cpp", "fastapi", "uvicorn", "openai", "safetensors", "websockets"):
        sizes_by_name = {
            "n_ctx": n_ctx * n_parallel,
            "n_seq_max": n_parallel,
            "n_batch": 512,
            "n_ubatch": 512,
            "threads": n_threads,
            "threads_batch": n_threads,
            "kv_unified": True,
            "store_logits": False,
        }
        kind_by_name = {"embedding": True, "pooling_type": 1} if embeds else {}
        config = {"model": {"path": model, "alias": "model", **sizes_by_name, **kind_by_name}}
        found["examples/server"] = Command([python, example, "-C", "{config}"], config)
    return found


def _localchat(model: str, n_parallel: int, n_ctx: int, n_threads: int, folder: str | None = None) -> Command:
    sizes = ["--parallel", str(n_parallel), "--ctx", str(n_ctx), "--threads", str(n_threads)]
    # With `-m`, Python imports the package from the working directory.
    server = [sys.executable, "-m", "localchat.server"]
    return Command([*server, os.path.abspath(model), "--port", "{port}", *sizes], folder=folder)


def _has(python: str, *modules: str) -> bool:
    """Whether an interpreter can import all of them."""
    program = f"import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, {modules!r})))"
    return subprocess.run([python, "-c", program], capture_output=True, check=False).returncode == 0


@contextlib.contextmanager
def running(name: str, command: Command) -> Iterator[Server]:
    """Start a server, wait until it is ready, and stop it at the end of the `with` block."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "config.json")
        if command.config is not None:
            config.write_text(json.dumps({"server": {"host": "127.0.0.1", "port": port}, **command.config}))
        values = {"{port}": str(port), "{config}": str(config)}
        started_at = time.perf_counter()
        filled = [values.get(part, part) for part in command.arguments]
        with subprocess.Popen(
            filled, cwd=command.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
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
            sys.exit(f"a server ended with {process.returncode} before it was ready: {process.args!r}")
        time.sleep(0.02)
    sys.exit(f"{url} was not ready within {DEADLINE_S} s")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
