"""Excludes markers from strings: a string may not contain the marker that ends it or the marker that ends the calls."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from .errors import TooLarge
from .expressions import (
    NEVER,
    Alt,
    CharClass,
    Expr,
    Literal,
    Repeat,
    Seq,
    alt,
    char_complement,
    char_intersection,
    chars,
    seq,
)
from .regular_languages import (
    ANY_TEXT,
    MAX_STATES,
    Complement,
    Intersection,
    Language,
    complement,
    intersection,
    parts_of,
    repeated,
)

# Limit of `n_counted` up to which markers are excluded exactly. Longer texts would need too many states.
_MAX_COUNTED = 20


def without_marker(marker: str) -> Language:
    """The texts that do not contain the marker."""
    return complement(seq(ANY_TEXT, Literal(marker), ANY_TEXT))


def without_markers(language: Language, markers: Sequence[str]) -> Language:
    """The texts of the language that contain no marker; a subset of these if the exact grammar would be too large.

    The subset contains the texts without one chosen character of each marker.

    Raises:
        TooLarge: The grammar would be too large, and the language needs every character of a marker.
    """
    possible = [marker for marker in markers if _may_contain(language, marker)]
    if possible and n_counted(language) > _MAX_COUNTED:
        subset = _without_chars(language, possible)
        if subset != NEVER:
            return subset
    return exactly_without_markers(language, possible)


def _without_chars(language: Language, markers: Sequence[str]) -> Language:
    """The texts of the language without one character of each marker; NEVER if the language needs them all."""
    excluded = _excluded_chars(language, markers)
    if excluded is None:
        return NEVER
    allowed = char_complement(chars(*excluded))
    if isinstance(language, (Intersection, Complement)):
        return intersection(language, Repeat(allowed, 0, None))
    return _restricted(language, allowed)


def exactly_without_markers(language: Language, markers: Sequence[str]) -> Language:
    """The texts of the language that contain no marker.

    Raises:
        TooLarge: The automaton would have too many states. Their number is estimated, since counting them is slow.
    """
    possible = [marker for marker in markers if _may_contain(language, marker)]
    # An estimate: each counted character needs one state for each prefix of the marker, and half as many others.
    if any(n_counted(language) * len(marker) * 3 / 2 > MAX_STATES for marker in possible):
        raise TooLarge(
            f"its strings are too long to keep out the markers {' and '.join(map(repr, possible))}: allow fewer "
            "characters"
        )
    return intersection(language, *map(without_marker, possible))


@lru_cache(maxsize=1024)
def n_counted(language: Language) -> int:
    """The number of positions that the language distinguishes, which is about the number of its states."""
    if isinstance(language, Literal):
        return len(language.text)
    if isinstance(language, Repeat):
        return n_counted(language.item) * max(language.low, language.high or 0, 1)
    if isinstance(language, Complement):
        return n_counted(language.language)
    return 1 if isinstance(language, CharClass) else sum(n_counted(part) for part in parts_of(language))


def _may_contain(language: Language, marker: str) -> bool:
    return all(_may_contain_char(language, ord(char)) for char in set(marker))


def _may_contain_char(language: Language, char: int) -> bool:
    """Whether some text of the language may contain the character. True may be wrong, False is certain."""
    if isinstance(language, Literal):
        return chr(char) in language.text
    if isinstance(language, CharClass):
        return char in language
    if isinstance(language, Repeat):
        return _may_contain_char(language.item, char)
    if isinstance(language, Intersection):
        return all(_may_contain_char(part, char) for part in language.parts)
    return isinstance(language, Complement) or any(_may_contain_char(part, char) for part in parts_of(language))


def _excluded_chars(language: Language, markers: Sequence[str]) -> list[str] | None:
    """For each marker its first character that no literal of the language contains; None if a marker has none."""
    needed = _needed_chars(language)
    found = [next((char for char in marker if char not in needed), None) for marker in markers]
    return None if None in found else [char for char in found if char is not None]


def _needed_chars(language: Language) -> set[str]:
    """The characters of the literals and of the single-character classes of the language."""
    if isinstance(language, Literal):
        return set(language.text)
    if isinstance(language, CharClass):
        return {chr(a) for a, b in language.ranges if a == b} if len(language.ranges) == 1 else set()
    if isinstance(language, Repeat):
        return _needed_chars(language.item)
    if isinstance(language, Complement):
        return set()
    return {char for part in parts_of(language) for char in _needed_chars(part)}


def _restricted(node: Expr, allowed: CharClass) -> Expr:
    """The expression with its character classes limited to the allowed characters. Its literals contain no others."""
    if isinstance(node, CharClass):
        left = char_intersection(node, allowed)
        return left if left.ranges else NEVER
    if isinstance(node, Repeat):
        return repeated(_restricted(node.item, allowed), node.low, node.high)
    if isinstance(node, Seq):
        return seq(*(_restricted(item, allowed) for item in node.items))
    if isinstance(node, Alt):
        return alt(*(_restricted(option, allowed) for option in node.options))
    return node
