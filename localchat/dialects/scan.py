"""The building blocks of streaming parsers: a cursor over text that is still being generated, and readers of markers.

A reader is a generator: it yields events, yields None when it needs more text, and returns its result. So its code has
the order of the text. All readers hold back the same text: what may be the beginning of a marker, and white space that
may come before one. All other text is sent at once.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from re import Pattern
from typing import Callable, Optional, TypeVar

from ..protocol.events import Event

T = TypeVar("T")
Reader = Generator[Optional[Event], None, T]

_SPACE = re.compile(r"\s*")


class Cursor:
    """The text that is not read yet, and a record of what was read since `begin`."""

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        # True when no more text will come, so that no text is held back.
        self.ended = False
        # The text read since `begin`; it becomes content if it turns out to be no call.
        self._record: list[str] | None = None

    def feed(self, text: str) -> None:
        """Add generated text."""
        self.text = self.text[self.at :] + text
        self.at = 0

    def left(self) -> int:
        """The number of unread characters."""
        return len(self.text) - self.at

    def peek(self) -> str:
        """The next character. There must be one (see `more`)."""
        return self.text[self.at]

    def take(self, size: int) -> str:
        """Read that many characters."""
        piece = self.text[self.at : self.at + size]
        self.at += size
        if self._record is not None:
            self._record.append(piece)
        return piece

    def begin(self) -> None:
        """Start recording."""
        self._record = []

    def commit(self) -> None:
        """Stop recording, and drop the record."""
        self._record = None

    def recorded(self) -> str:
        """Stop recording, and return the text read since `begin`."""
        text = "".join(self._record or ())
        self._record = None
        return text

    @property
    def n_recorded(self) -> int:
        """The number of characters read since `begin`."""
        return sum(map(len, self._record or ()))

    def put_back(self, n_kept: int = 0) -> None:
        """Unread the text read since `begin`, except the first `n_kept` characters; with 0, stop recording too."""
        text = self.recorded()
        self._record = [text[:n_kept]] if n_kept else None
        self.text = text[n_kept:] + self.text[self.at :]
        self.at = 0


class Markers:
    """A set of literal texts to look for."""

    def __init__(self, *literals: str) -> None:
        self.literals = literals
        longest_first = sorted(literals, key=len, reverse=True)
        # Without literals the pattern must find nothing, and an empty alternation finds everything.
        self._pattern: Pattern[str] = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._longest = max(map(len, literals), default=0)

    def find(self, text: str, at: int) -> tuple[int, str] | None:
        """The first marker and its place."""
        match = self._pattern.search(text, at)
        return (match.start(), match.group()) if match else None

    def safe_end(self, text: str, at: int) -> int:
        """The index up to which `text` has no incomplete marker at its end."""
        start = max(at, len(text) - self._longest + 1)
        for place in range(start, len(text)):
            tail = text[place:]
            if any(literal.startswith(tail) for literal in self.literals):
                return place
        return len(text)


def more(cursor: Cursor) -> Reader[bool]:
    """Wait for a character; False if none comes."""
    while not cursor.left():
        if cursor.ended:
            return False
        yield None
    return True


def is_next(cursor: Cursor, character: str) -> Reader[bool]:
    """Whether this character comes next; it is not read."""
    return (yield from more(cursor)) and cursor.peek() == character


def space(cursor: Cursor) -> Reader[None]:
    """Read white space."""
    while True:
        match = _SPACE.match(cursor.text, cursor.at)
        cursor.take(match.end() - cursor.at if match else 0)
        if cursor.left() or cursor.ended:
            return
        yield None


def one_of(cursor: Cursor, *literals: str) -> Reader[str | None]:
    """Read the longest of these literals that comes next, or nothing and return None."""
    longest = max(map(len, literals), default=0)
    while True:
        rest = cursor.text[cursor.at : cursor.at + longest]
        undecided = [text for text in literals if text.startswith(rest) and len(text) > len(rest)]
        if not undecided or cursor.ended:
            break
        yield None
    found = max((text for text in literals if rest.startswith(text)), key=len, default=None)
    cursor.take(len(found or ""))
    return found


def closing(cursor: Cursor, *literals: str) -> Reader[str | None]:
    """Read white space and one of these literals, or as much of one as the end left of it.

    If another text comes, nothing but the white space is read and None returned.
    """
    yield from space(cursor)
    found = yield from one_of(cursor, *literals)
    rest = cursor.text[cursor.at :]
    if found is None and cursor.ended and any(text.startswith(rest) for text in literals):
        return cursor.take(len(rest))
    return found


def until(cursor: Cursor, markers: Markers) -> Reader[tuple[str, str | None]]:
    """Collect the text before a marker and read the marker too: (text, marker), or (rest, None)."""
    parts: list[str] = []
    while True:
        hit = markers.find(cursor.text, cursor.at)
        if hit:
            parts.append(cursor.take(hit[0] - cursor.at))
            return "".join(parts), cursor.take(len(hit[1]))
        end = len(cursor.text) if cursor.ended else markers.safe_end(cursor.text, cursor.at)
        parts.append(cursor.take(end - cursor.at))
        if cursor.ended:
            return "".join(parts), None
        yield None


def stream(cursor: Cursor, markers: Markers, event: Callable[[str], Event], *, seam: bool = True) -> Reader[str | None]:
    """Send the text before a marker as it comes and return the marker, which is not read yet.

    With `seam` the white space before the marker stays unread as well, since it belongs to the format. If there are no
    markers to search for, nothing is held back. If no marker comes, everything is sent and None returned.
    """
    while True:
        hit = markers.find(cursor.text, cursor.at)
        end = hit[0] if hit else markers.safe_end(cursor.text, cursor.at)
        if cursor.ended and not hit:
            end = len(cursor.text)
        elif seam and markers.literals:
            end = cursor.at + len(cursor.text[cursor.at : end].rstrip())
        if end > cursor.at:
            yield event(cursor.take(end - cursor.at))
        if hit:
            return hit[1]
        if cursor.ended:
            return None
        yield None


def read(cursor: Cursor, marker: str) -> None:
    """Read the white space and the marker that `stream` stopped before."""
    cursor.take(cursor.text.index(marker, cursor.at) + len(marker) - cursor.at)
