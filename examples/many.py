"""Sends many prompts at once, one per line of stdin, with a progress bar on stderr.

    python examples/many.py < prompts.txt > answers.txt

If stdin is a terminal it sends the prompts below. The server computes the requests in one batch, so they take little
longer than one request. The answers are printed in the order of the prompts.
The server is the one at OPENAI_BASE_URL, by default http://127.0.0.1:8080/v1.
"""

from __future__ import annotations

import sys

from localchat import Client

PROMPTS = ("What is your name?", "How do I start the server?", "Count to 5.", "Say thanks.")
WIDTH = 30


def show(n_done: int, n: int) -> None:
    """Print the progress bar."""
    bar = ("#" * (WIDTH * n_done // n)).ljust(WIDTH, ".")
    print(f"\r[{bar}] {n_done}/{n}", end="\n" if n_done == n else "", file=sys.stderr, flush=True)


def main() -> int:
    prompts = list(PROMPTS) if sys.stdin.isatty() else [line.strip() for line in sys.stdin if line.strip()]
    n_failed = 0
    for prompt, answer in zip(prompts, Client().map(prompts, concurrency=8, on_progress=show)):
        n_failed += answer.error is not None
        print(f"{prompt}\n  {answer.text if answer.error is None else f'failed: {answer.error}'}")
    return 1 if n_failed else 0


if __name__ == "__main__":
    sys.exit(main())
