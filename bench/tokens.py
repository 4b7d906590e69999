"""python -m bench.tokens: the processor time that the server's own process takes for each token of plain text.

The engine process and the clients are other processes, whose time does not count.
"""

from __future__ import annotations

import argparse
import statistics
import time

from .measure import Round, first_model, run_load
from .serve import PROMPTS
from .servers import commands, running


def main(arguments: list[str] | None = None) -> None:
    from localchat.serving.models.model_file import DEMO_PATH

    parser = argparse.ArgumentParser(prog="python -m bench.tokens", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default=str(DEMO_PATH), help="a model file (default: the built-in model)")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 16, 64], help="loads to run (default: 1 16 64)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each load")
    options = parser.parse_args(arguments)
    command = commands(options.model, max(options.streams), 0, 0)["localchat"]
    with running("localchat", command) as server:
        common = {"model": first_model(server.url), "stream": True, "temperature": 1, "ignore_eos": True}
        load = [{**common, "max_tokens": 200, "messages": [{"role": "user", "content": text}]} for text in PROMPTS]
        run_load(server.url, load, 1, 1)  # Warm up.
        for n_streams in options.streams:
            spent: list[float] = []
            rounds: list[Round] = []
            for _ in range(options.rounds):
                before = processor_s(server.pid)
                rounds.append(run_load(server.url, load, n_streams, 2))
                spent.append((processor_s(server.pid) - before) / (2 * n_streams * 200))
            rate = statistics.median(2 * n_streams * 200 / one.wall_s for one in rounds)
            print(
                f"{n_streams:3} streams: {statistics.median(spent) * 1e6:.1f} us for each token, {rate:,.0f} tokens/s"
            )


def processor_s(pid: int) -> float:
    """The processor time of a process so far, in user and system mode: Linux has a clock for each process."""
    return time.clock_gettime((~pid << 3) | 2)


if __name__ == "__main__":
    main()
