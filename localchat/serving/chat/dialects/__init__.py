"""Dialects: the markers of reasoning and tool calls of each model family, declared in `families.py`.

`detect` chooses the dialect for a chat template. `DIALECTS` has all dialects by name.
"""

from __future__ import annotations

from dataclasses import replace

from .dialect import Dialect
from .families import DIALECTS
from .reasoning import MORE_TAGS, THINK

# The reasoning tags of all families. A template may have tags that its family does not declare.
_KNOWN_TAGS = tuple(dict.fromkeys((THINK, *(dialect.reasoning for dialect in DIALECTS.values()), *MORE_TAGS)))


def detect(template: str) -> Dialect:
    """The dialect of the family whose markers are in the template, or "hermes" if there is none.

    It has the reasoning tags and the call layouts that the template contains. If there are none, it has those of the
    family.
    """
    template = template.replace('\\"', '"')  # Markers in Jinja strings have escaped quotes.
    dialect = next((dialect for dialect in DIALECTS.values() if dialect.matches(template)), DIALECTS["hermes"])
    known = (dialect.reasoning, *_KNOWN_TAGS)
    tags = next((tags for tags in known if tags.start in template and tags.end in template), dialect.reasoning)
    calls = tuple(layout for layout in dialect.calls if layout.template_text in template)
    return replace(dialect, reasoning=tags, calls=calls or dialect.calls)


__all__ = ["DIALECTS", "Dialect", "detect"]
