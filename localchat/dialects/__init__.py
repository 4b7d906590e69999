"""Dialects: the markers of reasoning and tool calls of each model family, declared once, in a module of `families/`.

`detect` chooses a dialect by the text of a chat template; `DIALECTS` has them by name.
"""

from __future__ import annotations

from .dialect import Dialect
from .families import declared

DIALECTS: dict[str, Dialect] = declared()


def detect(template: str) -> Dialect:
    """The dialect of the family whose markers are in the template, else hermes."""
    template = template.replace('\\"', '"')  # as they stand in strings of Jinja
    fitting = [dialect for dialect in DIALECTS.values() if dialect.fits(template)]
    overridden = {name for dialect in fitting for name in dialect.overrides}
    detected = next((dialect for dialect in fitting if dialect.name not in overridden), DIALECTS["hermes"])
    return detected.for_template(template)


__all__ = ["DIALECTS", "Dialect", "detect"]
