"""Compares the client with `openai` and with a minimal reader: time per event, time to import, memory.

    python -m bench.client [--events N] [--rounds N]

The minimal reader ("floor") does only what every client must do: read1, split, json.loads. A server in its own process
sends one recorded response, each event in its own chunk, as chat servers do. The rounds of all rows alternate, so that
a busy machine slows all rows, and the best round counts: compare ratios, not times. The aims are those of the
acceptance list, item 7.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import importlib.util
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

WORDS = ("The", " sky", " is", " blue", ",", " they", " say", ".")

# For each row the import that is timed, and a request that follows it when the memory is measured.
IMPORTS = {
    "http.client alone": ("import http.client", ""),
    "localchat": ("import localchat", ""),
    "localchat with network": (
        "import localchat.client",
        "localchat.client.Client({url!r}, model='m').chat('hi')",
    ),
    "localchat with network, TLS": (
        "import localchat.client, ssl",
        "localchat.client.Client({url!r}, model='m').chat('hi')",
    ),
    "openai": (
        "import openai",
        "list(openai.OpenAI(base_url={url!r}, api_key='x').chat.completions.create("
        "model='m', messages=[], stream=True))",
    ),
}

# Prints the peak memory of the process in kB. On Linux getrusage includes the memory of the parent process.
PEAK_MEMORY = """
import os, sys
if os.path.exists("/proc/self/status"):
    print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
else:
    import resource
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1024 if sys.platform == "darwin" else 1))
"""


class Aim(NamedTuple):
    """One line of the acceptance list."""

    name: str
    reached: float
    # The largest value that meets the aim; with `at_least` the smallest.
    limit: float
    at_least: bool = False

    def __str__(self) -> str:
        met = self.reached >= self.limit if self.at_least else self.reached <= self.limit
        sign = ">=" if self.at_least else "<="
        return f"{self.name:44} {self.reached:8.2f}  aim {sign} {self.limit:<6g} {'met' if met else 'MISSED'}"


# The server


def stream(n_events: int) -> bytes:
    """A whole HTTP response with `n_events` events of text."""
    payloads = [_payload({"content": WORDS[i % len(WORDS)]}) for i in range(n_events)]
    payloads += [_payload({}, "stop"), "[DONE]"]
    events = [f"data: {payload}\n\n".encode() for payload in payloads]
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%s\r\n" % (len(event), event) for event in events) + b"0\r\n\r\n"


def _payload(delta: dict[str, str], finish: str | None = None) -> str:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    fields = {"id": "chatcmpl-8f3a", "object": "chat.completion.chunk", "created": 1760000000, "model": "m"}
    return json.dumps({**fields, "system_fingerprint": "b1", "choices": [choice]})


def serve(n_events: int) -> None:
    """Print the port, then send the stream to every request, one connection after the other."""
    raw = stream(n_events)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            sock, _ = listener.accept()
            with sock, contextlib.suppress(ConnectionError):
                _serve_connection(sock, raw)


def _serve_connection(sock: socket.socket, raw: bytes) -> None:
    with sock.makefile("rb") as requests:
        while requests.readline():
            length = 0
            while line := requests.readline().strip().lower():
                length = int(line[15:]) if line.startswith(b"content-length:") else length
            requests.read(length)
            sock.sendall(raw)


@contextlib.contextmanager
def running_server(n_events: int) -> Iterator[str]:
    """The server in its own process; yields its base URL."""
    command = [sys.executable, "-m", "bench.client", "--serve", str(n_events)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield f"http://127.0.0.1:{int(server.stdout.readline())}/v1"
        finally:
            server.kill()


# Events


def floor(url: str) -> int:
    """Read, split and parse: the least that every client does."""
    connection = http.client.HTTPConnection(url.split("/")[2])
    connection.request("POST", "/v1/chat/completions", b"{}")
    response = connection.getresponse()
    held, n_pieces = b"", 0
    while chunk := response.read1(65536):
        *blocks, held = (held + chunk).split(b"\n\n")
        for block in blocks:
            if block != b"data: [DONE]":
                n_pieces += bool(json.loads(block[6:])["choices"][0]["delta"].get("content"))
    connection.close()
    return n_pieces


def localchat_events(url: str) -> int:
    import localchat

    with localchat.Client(url, model="m", api_key="") as client, client.stream("hi") as stream:
        return sum(event.type == "content_delta" for event in stream)


def localchat_async_events(url: str) -> int:
    import asyncio

    import localchat

    async def count() -> int:
        async with localchat.AsyncClient(url, model="m", api_key="") as client, client.stream("hi") as stream:
            return len([event async for event in stream if event.type == "content_delta"])

    return asyncio.run(count())


def openai_events(url: str) -> int:
    import openai

    with openai.OpenAI(base_url=url, api_key="x") as client:
        chunks = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}], stream=True)
        return sum(bool(chunk.choices and chunk.choices[0].delta.content) for chunk in chunks)


def time_events(rows: dict[str, Callable[[str], int]], n_events: int, rounds: int) -> dict[str, float]:
    """Microseconds per event of each row."""
    best = dict.fromkeys(rows, float("inf"))
    with running_server(n_events) as url:
        for _ in range(rounds):
            for name, row in rows.items():
                start = time.perf_counter()
                n_seen = row(url)
                best[name] = min(best[name], (time.perf_counter() - start) / n_events * 1e6)
                assert n_seen == n_events, f"{name} saw {n_seen} of {n_events} events"
    return best


# Imports and memory


def time_imports(rows: Sequence[str], rounds: int) -> dict[str, float]:
    """Milliseconds of each import beyond the start of an interpreter, with compiled bytecode."""
    programs = {"": "pass", **{name: IMPORTS[name][0] for name in rows}}
    best = dict.fromkeys(programs, float("inf"))
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": cache}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for _ in range(rounds + 1):
            for name, program in programs.items():
                start = time.perf_counter()
                subprocess.run([sys.executable, "-c", program], env=environment, check=True)
                best[name] = min(best[name], (time.perf_counter() - start) * 1e3)
    return {name: best[name] - best[""] for name in rows}


def peak_memory(name: str) -> float:
    """The peak memory in MB of an interpreter that makes one request."""
    load, request = IMPORTS[name]
    with running_server(10) as url:
        program = "\n".join([load, request.format(url=url), PEAK_MEMORY])
        out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    return int(out) / 1024


# The report


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.client", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--events", type=int, default=5000, help="events of one response")
    parser.add_argument("--rounds", type=int, default=7, help="rounds, of which the best one counts")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.serve is not None:
        serve(arguments.serve)
        return
    with_openai = importlib.util.find_spec("openai") is not None
    if not with_openai:
        print("openai is not installed: its rows are left out")
    for aim in measure(with_openai, arguments.events, arguments.rounds):
        print(aim)


def measure(with_openai: bool, n_events: int, rounds: int) -> Iterator[Aim]:
    """Measure and print the rows, and yield the aims with the values reached."""
    rows: dict[str, Callable[[str], int]] = {
        "floor": floor,
        "localchat": localchat_events,
        "localchat, asynchronous": localchat_async_events,
    }
    if with_openai:
        rows["openai"] = openai_events
    spent = time_events(rows, n_events, rounds)
    for name, microseconds in spent.items():
        print(f"{name:28} {microseconds:8.2f} us per event  {1e6 / microseconds:10.0f} events/s")
    imports = [name for name in IMPORTS if with_openai or name != "openai"]
    loaded = time_imports(imports, rounds)
    memory = {name: peak_memory(name) for name in imports}
    for name in imports:
        print(f"{name:28} {loaded[name]:8.2f} ms to import    {memory[name]:10.1f} MB")
    yield Aim("7. times the floor, per event", spent["localchat"] / spent["floor"], 2)
    yield Aim("7. us per event above the floor", spent["localchat"] - spent["floor"], 10)
    if with_openai:
        yield Aim("7. times faster than openai, per event", spent["openai"] / spent["localchat"], 10, at_least=True)
    yield Aim("7. ms to import, without network modules", loaded["localchat"], 5)
    yield Aim("7. ms to import, with network modules", loaded["localchat with network"], 30)
    yield Aim("7. ms to import, with those of https too", loaded["localchat with network, TLS"], 30)
    yield Aim("7. MB held after one request", memory["localchat with network"], 25)


if __name__ == "__main__":
    main()
