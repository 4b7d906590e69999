"""Requests for common tools, written by hand: test cases that no generator made.

None of these tools or requests is trained. Each request is run with its tool alone, and with one and two other tools.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

# For each tool: its name, description and parameters, all required, and requests with the expected arguments.
_WRITTEN = json.loads((Path(__file__).parent / "data" / "written" / "everyday_held_out.json").read_text("utf-8"))


class EverydayRequest(NamedTuple):
    """A request, the tools that it offers, and the expected call."""

    text: str
    tools: list[dict[str, Any]]
    call: tuple[str, dict[str, Any]]


def _tool(written: dict[str, Any]) -> dict[str, Any]:
    properties = written["parameters"]
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    function = {"name": written["name"], "description": written["description"], "parameters": parameters}
    return {"type": "function", "function": function}


def everyday_requests(n_tools: int) -> Iterator[EverydayRequest]:
    """All requests, each with its tool and `n_tools` - 1 others in random order; the same in every run."""
    rng = random.Random(n_tools)
    for written in _WRITTEN:
        others = [other for other in _WRITTEN if other is not written]
        for request in written["asked"]:
            offered = [written, *rng.sample(others, n_tools - 1)]
            rng.shuffle(offered)
            call = (written["name"], request["arguments"])
            yield EverydayRequest(request["text"], [_tool(other) for other in offered], call)
