"""Dialects: the markers of reasoning and tool calls of each model family, declared in the modules of `families/`.

`detect` chooses the dialect for a chat template. `DIALECTS` has all dialects by name.
"""

from __future__ import annotations

from .dialect import Dialect
from .families import declared

DIALECTS: dict[str, Dialect] = declared()


def detect(template: str) -> Dialect:
    """The dialect of the family whose markers are in the template, or "hermes" if there is none."""
    template = template.replace('\\"', '"')  # Markers in Jinja strings have escaped quotes.
    matching = [dialect for dialect in DIALECTS.values() if dialect.matches(template)]
    overridden = {name for dialect in matching for name in dialect.overrides}
    detected = next((dialect for dialect in matching if dialect.name not in overridden), DIALECTS["hermes"])
    return detected.for_template(template)


__all__ = ["DIALECTS", "Dialect", "detect"]
