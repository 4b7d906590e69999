"""Extracts dataclasses from texts: one object for each line of a file.

    python examples/extract.py lines.txt

Without a file it uses the lines below. `response_format` constrains the output to the fields and types of the
dataclass; an output that does not match raises `DoesNotFit`. The messages include one example, since a small model
needs it; a large model does not.
The server is the one at OPENAI_BASE_URL, by default http://127.0.0.1:8080/v1.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from localchat import Client, DoesNotFit, IncompleteReply

LINES = (
    "I travel to Oslo on Monday.",
    "I travel to Bonn on Friday.",
    "I travel to Rome on Tuesday.",
)


@dataclass
class Trip:
    city: Literal["Bonn", "Oslo", "Paris", "Rome"]
    day: Literal["Monday", "Tuesday", "Wednesday", "Thursday", "Friday"]


EXAMPLE: tuple[dict[str, Any], ...] = (
    {"role": "user", "content": "I travel to Paris on Wednesday."},
    {"role": "assistant", "content": json.dumps(asdict(Trip("Paris", "Wednesday")))},
)


def main() -> None:
    lines = Path(sys.argv[1]).read_text(encoding="utf-8").splitlines() if len(sys.argv) > 1 else LINES
    client = Client()
    for line in lines:
        try:
            trip = client.chat(
                [*EXAMPLE, {"role": "user", "content": line}], response_format=Trip, temperature=0
            ).parsed
        except (DoesNotFit, IncompleteReply) as error:
            print(f"{line}\n  no trip: {error}")
        else:
            print(f"{line}\n  {trip}")


if __name__ == "__main__":
    main()
