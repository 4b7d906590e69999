"""Summarises a log in a pipe: groups lines that differ only in numbers, and requests a summary of the groups.

    journalctl --since today | python examples/log_summary.py

The program prints the groups first, so that the summary can be checked. The prompt is short for a log of any length.
The server is the one at OPENAI_BASE_URL, by default http://127.0.0.1:8080/v1.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable

from localchat import Client

# The parts in which lines of one kind differ: numbers, and hexadecimal addresses and ids.
_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-f]{8,}\b|\d+")
N_KINDS, MAX_CHARS = 20, 160
QUESTION = "Summarise this log in two sentences:"


def kinds_of(lines: Iterable[str]) -> Counter[str]:
    """How often each kind of line occurs; numbers are replaced by #."""
    return Counter(_NUMBER.sub("#", line.strip())[:MAX_CHARS] for line in lines if line.strip())


def main() -> None:
    if sys.stdin.isatty():
        sys.exit("usage: COMMAND | python examples/log_summary.py")
    kinds = kinds_of(line.decode("utf-8", "replace") for line in sys.stdin.buffer)
    if not kinds:
        sys.exit("the log is empty")
    # The rarest kinds come first, since they are often the errors.
    shown = sorted(kinds.items(), key=lambda item: item[1])[:N_KINDS]
    digest = "\n".join(f"{n} x {kind}" for kind, n in shown)
    print(f"{sum(kinds.values())} lines of {len(kinds)} kinds:\n{digest}\n")
    with Client().stream(f"{QUESTION}\n\n{digest}", max_tokens=200) as stream:
        for text in stream.text:
            print(text, end="", flush=True)
    print()


if __name__ == "__main__":
    main()
