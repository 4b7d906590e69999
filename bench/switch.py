"""python -m bench.switch FOLDER: how long a server takes to answer with another model than the one that is loaded.

The folder has two models or more. Only one may be loaded, so that each request ends a model and loads another one; all
files are in the page cache. llama-server runs as a router.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import time
import urllib.request
from pathlib import Path

from .servers import Command, running


def answer_s(url: str, model: str) -> float:
    """Seconds from a request to its whole response of one token."""
    body = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
    request = urllib.request.Request(f"{url}/chat/completions", json.dumps(body).encode(), method="POST")
    request.add_header("Content-Type", "application/json")
    began_at = time.perf_counter()
    with urllib.request.urlopen(request, timeout=300) as response:
        response.read()
    return time.perf_counter() - began_at


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--ctx", default="2048")
    options = parser.parse_args()
    folder, sizes = str(options.folder.resolve()), ["-c", options.ctx, "-np", "4"]
    localchat = [sys.executable, "-m", "localchat.server", "--models-dir", folder, "--max-models", "1", *sizes]
    commands = {"localchat": Command([*localchat, "--port", "{port}"])}
    router = os.environ.get("LLAMA_SERVER") or shutil.which("llama-server")
    if router:
        arguments = [router, "--models-dir", folder, "--models-max", "1", "--no-ui", *sizes]
        commands["llama-server"] = Command([*arguments, "--port", "{port}"])
    names = sorted(path.stem for path in options.folder.glob("*.gguf"))
    medians = {}
    for name, command in commands.items():
        with running(name, command) as server:
            for model in names:  # not measured
                answer_s(server.url, model)
            times = [answer_s(server.url, model) for _ in range(options.rounds) for model in names]
            again = [answer_s(server.url, names[-1]) for _ in range(options.rounds)]
        medians[name] = statistics.median(times)
        times.sort()
        print(
            f"{name}: switch {medians[name]:.2f} s (median of {len(times)}, {times[0]:.2f} to {times[-1]:.2f}); "
            f"the loaded model again {statistics.median(again):.3f} s",
            flush=True,
        )
    if len(medians) == 2:
        print(f"ratio {medians['llama-server'] / medians['localchat']:.2f}, above 1 is better for localchat")


if __name__ == "__main__":
    main()
