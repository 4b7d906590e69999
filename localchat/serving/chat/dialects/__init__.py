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
    name = next((dialect.name for dialect in DIALECTS.values() if dialect.matches(template)), "hermes")
    return for_template(name, template)


def for_template(name: str, template: str) -> Dialect:
    """The dialect of this name, with the reasoning tags and the call layouts that the template contains."""
    return DIALECTS[name].adapted_to(template, _KNOWN_TAGS)


__all__ = ["DIALECTS", "Dialect", "detect", "for_template"]
