"""The output of the command at its start: on a terminal, in a pipe, and as JSON."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from localchat.serving.models.catalog import DEMO_PATH

pytest.importorskip("llama_cpp", reason="the real engine needs llama-cpp-python")

DEADLINE_S = 60


@contextlib.contextmanager
def output_until(end: str, *arguments: str, terminal: bool = False) -> Iterator[str]:
    """The output of the command up to and including `end`."""
    reading, writing = os.openpty() if terminal else os.pipe()
    command = [sys.executable, "-m", "localchat.server", "--port", "0", *arguments]
    process = subprocess.Popen(command, stderr=writing)
    os.close(writing)
    try:
        output, deadline = "", time.monotonic() + DEADLINE_S
        while end not in output:
            assert time.monotonic() < deadline
            output += os.read(reading, 65536).decode()
        yield output
    finally:
        process.kill()
        process.wait()
        os.close(reading)


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a terminal")
def test_terminal_shows_a_bar_and_then_model_memory_device_and_a_command():
    with output_until("your name?", "--ctx", "1k", "-np", "3", terminal=True) as output:
        bar, _, rest = output.partition("\r\x1b[K")
    assert re.search(r"\rloading demo \[#+\.*\] +\d+ %", bar)
    assert "loading" not in rest
    lines = rest.splitlines()
    ready = next(i for i, line in enumerate(lines) if line.startswith("localchat is ready: demo at http://"))
    url = re.findall(r"http://\S+", lines[ready])[0]
    assert [re.sub(r"[\d.,]+", "N", line) for line in lines[ready - 5 : ready]] == [
        re.sub(r"[\d.,]+", "N", line)
        for line in [
            f"model    llama Q5_1, 5 M parameters, 4 MB: {DEMO_PATH}",
            "context  1024 tokens for each request; KV cache of 3072 for 3 requests at once",
            "memory   55 MB (4 MB weights, 51 MB context); 8.1 GB are free",
            lines[ready - 2],
            "loaded   in 0.7 s",
        ]
    ]
    n_ctx, n_cells, n_parallel = map(int, re.findall(r"\d+", lines[ready - 4]))
    assert (n_ctx, n_parallel) == (1024, 3)
    assert n_cells in {n * 1024 for n in range(3, 12)}  # One buffer for all, or one for each and idle prefixes.
    assert re.fullmatch(r"device   CPU.*; CPU threads: \d+", lines[ready - 2])
    command = lines[ready + 1].partition("try: ")[2]
    assert f"-m localchat --base-url {url} " in command
    assert os.path.samefile(command.split()[0], sys.executable)


def test_output_is_json_on_request():
    n_threads = str((os.cpu_count() or 1) + 1)
    with output_until("load_seconds", "--log-format", "json", "--threads", n_threads) as output:
        entries = [json.loads(line) for line in output.splitlines()]
    assert all({"time", "level", "logger", "message"} <= entry.keys() for entry in entries)
    assert any(f"--threads {n_threads}" in entry["message"] and entry["level"] == "warning" for entry in entries)
    ready = entries[-1]
    assert ready["message"] == f"localchat is ready: demo at {ready['url']}"
    assert (ready["n_ctx"], ready["parallel"], ready["path"]) == (4096, 8, str(DEMO_PATH))
    assert (bool(ready["device"]), ready["threads"]) == (True, int(n_threads))
    assert ready["free_bytes"] > ready["context_bytes"] > ready["weight_bytes"] > 1 << 20
