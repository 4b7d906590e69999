"""Content of a message that is a list of parts, as Mistral sends it. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .payloads import dump


def part_texts(part: Any) -> Iterator[tuple[str, str]]:
    """The channel (content, reasoning, refusal) and the text of each text in a part; "unknown" and JSON of no text."""
    if isinstance(part, str):
        yield "content", part
    elif is_thinking(part):
        thinking = part.get("thinking") or []
        for inner in thinking if isinstance(thinking, list) else [thinking]:
            for _, text in part_texts(inner):
                yield "reasoning", text
    elif isinstance(part, dict) and isinstance(part.get("refusal"), str):
        yield "refusal", part["refusal"]
    elif isinstance(part, dict) and isinstance(part.get("text"), str):
        yield "content", part["text"]
    else:
        yield "unknown", dump(part)


def is_thinking(part: Any) -> bool:
    """Whether a part has reasoning."""
    return isinstance(part, dict) and part.get("type") == "thinking"


def is_plain_text(part: Any) -> bool:
    """Whether a part is a text and nothing else."""
    return isinstance(part, str) or (
        isinstance(part, dict)
        and any(isinstance(part.get(name), str) for name in ("text", "refusal"))
        and len(part.keys() - {"type"}) == 1
        and part.get("type") in (None, "text", "output_text", "refusal")
    )
