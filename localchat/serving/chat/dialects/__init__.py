"""Dialects: the markers of reasoning and tool calls of each model family, declared in `families.py`.

`detect` chooses the dialect for a chat template. `DIALECTS` has all dialects by name.
"""

from __future__ import annotations

from .dialect import Dialect
from .families import DIALECTS
from .reasoning import MORE_TAGS, THINK

# The reasoning tags of all families. A template may have tags that its family does not declare.
_KNOWN_TAGS = tuple(dict.fromkeys((THINK, *(dialect.reasoning for dialect in DIALECTS.values()), *MORE_TAGS)))


def detect(template: str) -> Dialect:
    """The dialect of the family whose markers are in the template, or "hermes" if there is none."""
    template = template.replace('\\"', '"')  # Markers in Jinja strings have escaped quotes.
    dialect = next((dialect for dialect in DIALECTS.values() if dialect.matches(template)), DIALECTS["hermes"])
    return dialect.adapted_to(template, _KNOWN_TAGS)


__all__ = ["DIALECTS", "Dialect", "detect"]
