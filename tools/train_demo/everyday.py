"""Plain requests to tools that programs have, written by hand: how the model does outside of its generators.

None of these tools or requests is trained. Each request is asked with its tool alone and beside one and two others.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

# Each: name, description, parameters, all of which are required, and requests with the arguments that they give.
_WRITTEN = json.loads((Path(__file__).parent / "data" / "written" / "everyday_held_out.json").read_text("utf-8"))


class EverydayRequest(NamedTuple):
    """A request among tools."""

    text: str
    tools: list[dict[str, Any]]
    call: tuple[str, dict[str, Any]]


def _tool(written: dict[str, Any]) -> dict[str, Any]:
    properties = written["parameters"]
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    function = {"name": written["name"], "description": written["description"], "parameters": parameters}
    return {"type": "function", "function": function}


def everyday_requests(n_tools: int) -> Iterator[EverydayRequest]:
    """Each request beside `n_tools` - 1 other tools, in any order; the same every time."""
    rng = random.Random(n_tools)
    for written in _WRITTEN:
        others = [other for other in _WRITTEN if other is not written]
        for asked in written["asked"]:
            offered = [written, *rng.sample(others, n_tools - 1)]
            rng.shuffle(offered)
            call = (written["name"], asked["arguments"])
            yield EverydayRequest(asked["text"], [_tool(other) for other in offered], call)
