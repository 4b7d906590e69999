"""Starts the servers that are compared: localchat, and other servers if they are installed."""

from __future__ import annotations

import contextlib
import http
import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

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
        """Memory of its processes now, shared pages divided among their users; 0 on a system without /proc."""
        rollups = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in self._pids()]
        return sum(int(re.findall(r"^Pss: *(\d+) kB", text, re.MULTILINE)[0]) for text in rollups) * 1024 / 1e6

    @property
    def cpu_s(self) -> float:
        """Processor time that its processes have used so far; 0 on a system without /proc."""
        stats = (Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in self._pids())
        return sum(int(fields[11]) + int(fields[12]) for fields in stats) / os.sysconf("SC_CLK_TCK")

    def _pids(self) -> list[int]:
        """Its process and the children of it; none on a system without /proc."""
        children = [path.read_text().split() for path in Path(f"/proc/{self.pid}/task").glob("*/children")]
        return [self.pid, *(int(pid) for pids in children for pid in pids)] if children else []


@dataclass(frozen=True)
class Command:
    """The command that starts a server."""

    # `{port}` is replaced by the port, and `{config}` by the path of a file with `config` and the port.
    arguments: list[str]
    config: dict[str, Any] | None = None
    # The working directory; None for the current one.
    folder: str | None = None


# How a server is started: with sizes for many users, with no options at all, or for embeddings.
PURPOSES = ("sized", "defaults", "embeddings")


def commands(
    model: str,
    n_parallel: int,
    n_ctx: int,
    *,
    purpose: str = "sized",
    n_gpu_layers: int | None = None,
    adapters: Sequence[str] = (),
    against: str | None = None,
    mmproj: str | None = None,
) -> dict[str, Command]:
    """The command of each installed server, all with the same model, and no options but those that people set.

    Args:
        n_parallel: Requests that run at a time.
        n_ctx: The context of one request.
        purpose: One of PURPOSES. "defaults" uses neither of these numbers. localchat makes embeddings without options.
        n_gpu_layers: The layers on the GPU, of localchat and llama-server; None: their defaults.
        adapters: The files of LoRA adapters, of localchat and llama-server.
        against: The folder of another checkout of localchat, or None.
        mmproj: The projector of the model, of localchat and llama-server, or None.
    """
    has_sizes = purpose != "defaults"
    projector = [] if mmproj is None else ["--mmproj", os.path.abspath(mmproj)]
    layers = projector if n_gpu_layers is None else [*projector, "-ngl", str(n_gpu_layers)]
    localchat = [os.path.abspath(model), *layers]
    localchat += ["--parallel", str(n_parallel), "--ctx", str(n_ctx)] if has_sizes else []
    localchat += [f"--lora={i}={os.path.abspath(file)}" for i, file in enumerate(adapters)]
    found = {"localchat": _localchat(localchat)}
    if against is not None:
        found["against"] = _localchat(localchat, against)
    llama_server = os.environ.get("LLAMA_SERVER") or shutil.which("llama-server")
    if llama_server:
        sizes = ["-np", str(n_parallel), "-c", str(n_ctx * n_parallel)] if has_sizes else []
        sizes += [*layers, *(part for file in adapters for part in ("--lora", file))]
        kind = ["--embeddings", "--pooling", "mean"] if purpose == "embeddings" else []
        found["llama-server"] = Command([llama_server, "-m", model, "--port", "{port}", *sizes, *kind])
    python = os.environ.get("PEER_PYTHON", sys.executable)
    if _has(python, "llama_cpp", "fastapi", "uvicorn", "sse_starlette", "starlette_context", "pydantic_settings"):
        sizes = ["--n_ctx", str(n_ctx), "--interrupt_requests", "False"] if has_sizes else []
        kind = ["--embedding", "True"] if purpose == "embeddings" else []
        module = [python, "-m", "llama_cpp.server", "--model", model, "--port", "{port}"]
        found["llama_cpp.server"] = Command([*module, *sizes, *kind])
    example = os.environ.get("LLAMA_CPP_EXAMPLE")
    if example and _has(python, "llama_cpp", "fastapi", "uvicorn", "openai", "safetensors", "websockets"):
        sizes_by_name = {
            "n_ctx": n_ctx * n_parallel,
            "n_seq_max": n_parallel,
            "n_batch": 512,
            "n_ubatch": 512,
            "kv_unified": True,
            "store_logits": False,
        }
        kind_by_name = {"embedding": True, "pooling_type": 1} if purpose == "embeddings" else {}
        given = {**(sizes_by_name if has_sizes else {}), **kind_by_name}
        config = {"model": {"path": model, "alias": "model", **given}}
        found["examples/server"] = Command([python, example, "-C", "{config}"], config)
    return found


def _localchat(options: list[str], folder: str | None = None) -> Command:
    # With `-m`, Python imports the package from the working directory.
    return Command([sys.executable, "-m", "localchat.server", *options, "--port", "{port}"], folder=folder)


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
            if is_healthy(url):
                return
        if process.poll() is not None:
            sys.exit(f"a server ended with {process.returncode} before it was ready: {process.args!r}")
        time.sleep(0.02)
    sys.exit(f"{url} was not ready within {DEADLINE_S} s")


def is_healthy(url: str) -> bool:
    """Whether the model is loaded. Servers without /health list their models only then."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=10)
    with contextlib.closing(connection):
        connection.request("GET", "/health")
        return connection.getresponse().status != http.HTTPStatus.SERVICE_UNAVAILABLE


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
