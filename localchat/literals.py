"""A regular expression that finds many literal texts at once, such as the control tokens of a vocabulary."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable


def pattern_of(texts: Iterable[str]) -> str:
    """The source of a pattern that matches the longest of these texts at a place, and nothing without texts.

    Equal beginnings are joined. A plain alternation compares each text at each place: 6,000 reserved tokens that begin
    with "<" need 17 s for 200,000 "<", in which the interpreter lock is held.
    """
    return _longest_of(sorted({*texts} - {""})) or "(?!)"


def _longest_of(texts: list[str]) -> str:
    """Of sorted texts, each once."""
    pairs = zip(texts[0], texts[-1]) if texts else ()
    head = "".join(first for first, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    rests = [text[len(head) :] for text in texts]
    groups = itertools.groupby(filter(None, rests), key=lambda rest: rest[0])
    longer = "|".join(_longest_of(list(group)) for _, group in groups)
    if not longer:
        return re.escape(head)
    return f"{re.escape(head)}(?:{longer}){'' if rests[0] else '?'}"
