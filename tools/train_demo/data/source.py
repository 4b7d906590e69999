"""The source of words for generators: seeded random choices from the trained or the held-out half of the words.

A generator takes words, values and phrasings from a Source. A Source with `held_out=True` gives only those that no
training dialogue contains.
"""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

T = TypeVar("T")

# One of this many made-up values is held out, by its checksum, so that no list of them is needed.
HELD_OUT_SHARE = 8

_ALTERNATION = re.compile(r"\{([^{}]*)\}")


def is_held_out(value: str) -> bool:
    """Whether a made-up value belongs to the held-out part."""
    return zlib.crc32(value.lower().encode("utf-8")) % HELD_OUT_SHARE == 0


@dataclass(frozen=True)
class Pool:
    """Words or phrasings, trained and held out."""

    trained: tuple[str, ...]
    held_out: tuple[str, ...]


def pool(text: str) -> Pool:
    """Split a comma-separated listing into a Pool; every seventh entry is held out."""
    entries = text.split(",")
    held = tuple(entries[6::7])
    return Pool(tuple(entry for entry in entries if entry not in held), held)


def listed(trained: str, held_out: str) -> Pool:
    """A Pool of two comma-separated listings."""
    return Pool(tuple(trained.split(",")), tuple(held_out.split(",")))


def pool_by_checksum(text: str) -> Pool:
    """Split a comma-separated listing by checksum: a word is held out in every list that has it, or in none."""
    entries = text.split(",")
    held = tuple(entry for entry in entries if is_held_out(entry))
    return Pool(tuple(entry for entry in entries if entry not in held), held)


def phrases(trained: str, held_out: str = "") -> Pool:
    """A Pool of phrasings, one per line; the held-out half may be empty."""
    lines = [[line.strip() for line in text.strip().splitlines()] for text in (trained, held_out)]
    return Pool(tuple(lines[0]), tuple(lines[1]))


class Phrasings(NamedTuple):
    """The ways in which people write one thing."""

    # Texts with alternatives {a|b|}. All are trained.
    patterns: tuple[str, ...]
    lines: Pool


def written(name: str) -> dict[str, Phrasings]:
    """Phrasings by heading. The files `name_patterns` and `name` are trained, `name_held_out` is held out."""
    patterns, trained, held_out = headed(f"{name}_patterns"), headed(name), headed(f"{name}_held_out")
    return {heading: Phrasings(patterns[heading], Pool(trained[heading], held_out[heading])) for heading in trained}


def headed(name: str) -> dict[str, tuple[str, ...]]:
    """The lines of a text under each of its headings."""
    text = (Path(__file__).parent / "written" / f"{name}.txt").read_text(encoding="utf-8")
    parts = (part.splitlines() for part in re.split(r"^# ", text, flags=re.MULTILINE)[1:])
    return {heading: tuple(line for line in lines if line) for heading, *lines in parts}


class Source:
    """Seeded choices out of one half of the split."""

    def __init__(self, rng: random.Random, held_out: bool = False) -> None:
        self.rng = rng
        self.held_out = held_out

    def chance(self, probability: float) -> bool:
        """True with the given probability."""
        return self.rng.random() < probability

    def choice(self, options: Sequence[T]) -> T:
        """One of the options, for things that are not split."""
        return options[int(self.rng.random() * len(options))]

    def word(self, words: Pool) -> str:
        """A word of this half."""
        return self.choice(words.held_out if self.held_out else words.trained)

    def words(self, words: Pool, n: int) -> list[str]:
        """`n` different words of this half, or all if there are fewer."""
        options = words.held_out if self.held_out else words.trained
        return self.rng.sample(options, min(n, len(options)))

    def phrase(self, patterns: Pool, **fields: str) -> str:
        """A phrasing of this half, filled in by `fill`."""
        return self.fill(self.word(patterns), **fields)

    def fill(self, pattern: str, **fields: str) -> str:
        """Choose one of each {a|b|}, then replace each $name by its value."""
        text = self.expand(pattern)
        for name, value in fields.items():
            text = text.replace("$" + name, value)
        return text

    def expand(self, pattern: str) -> str:
        """Choose one of each {a|b|c}, inner ones first. Two spaces around an empty choice become one."""
        while "{" in pattern:
            pattern = _ALTERNATION.sub(lambda m: self.choice(m[1].split("|")), pattern)
        return re.sub(" +", " ", pattern).strip()

    def made_up(self, make: Callable[[random.Random], str]) -> str:
        """A made-up value of this half."""
        while True:
            value = make(self.rng)
            if is_held_out(value) == self.held_out:
                return value
