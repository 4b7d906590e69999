"""Starts the server with damaged model files. It must serve the file, or end with one line that names it."""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
from pathlib import Path

from localchat.serving.models.catalog import DEMO_PATH

from .target import Broken

HEADER_BYTES = 200_000
START_DEADLINE_S = 60


def damaged(raw: bytes, chance: random.Random) -> bytes:
    """The model file with a few wrong bytes near its beginning."""
    changed = bytearray(raw)
    for _ in range(chance.randrange(1, 5)):
        at = chance.randrange(chance.choice([64, 4096, HEADER_BYTES]))
        value = chance.choice([0, 1, 255, chance.randrange(256)])
        n = chance.choice([1, 1, 4, 8])
        changed[at : at + n] = bytes([value]) * n
    return bytes(changed)


def start(path: Path) -> tuple[int | None, str]:
    """Start a server with this file; returns its exit status, None if it became ready, and its output."""
    command = [sys.executable, "-m", "localchat.server", "--port", "0", str(path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, errors="replace") as process:
        lines = []
        try:
            assert process.stderr is not None
            for line in process.stderr:
                lines.append(line)
                if "ready" in line:
                    process.terminate()
                    process.wait(START_DEADLINE_S)
                    return None, "".join(lines)
            return process.wait(START_DEADLINE_S), "".join(lines)
        finally:
            process.kill()


def run(n: int, seed: int) -> str:
    """Start `n` servers, each with a damaged file."""
    raw = DEMO_PATH.read_bytes()
    n_served = n_refused = 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "damaged.gguf")
        for i in range(n):
            path.write_bytes(damaged(raw, random.Random(seed + i)))
            status, text = start(path)
            if status is None:
                n_served += 1
            elif status == 1 and "Traceback" not in text and str(path) in text:
                n_refused += 1
            else:
                raise Broken(f"seed {seed + i}: exit status {status}, and it wrote {text[-1000:]!r}")
    return f"{n:,} damaged model files: {n_served} served, {n_refused} refused in one line, no crash"
