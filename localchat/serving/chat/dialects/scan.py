"""The building blocks of streaming parsers: a cursor over text that is still being generated, and readers.

A reader is a generator that yields events, yields None when it needs more text, and returns a result. So a reader is
written as if all text were there. Readers hold back text only if it may be the beginning of a marker, or white space
before a marker. All other text is emitted at once.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from re import Pattern
from typing import Callable, Optional, TypeVar

from ...core.events import Event

T = TypeVar("T")
U = TypeVar("U")
Reader = Generator[Optional[Event], None, T]
Pieces = Generator[Optional[str], None, T]  # A reader that yields texts instead of events.
Silent = Generator[None, None, T]  # A reader that yields no events.

SPACE = re.compile(r"\s*")


class Cursor:
    """The unread text, and a record of the text read since `begin`."""

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        # Set when no more text will come, so that no text is held back.
        self.ended = False
        # The text read since `begin`. If it turns out not to be a call, it is emitted as content. None: not recording.
        self._record: list[str] | None = None

    def feed(self, text: str) -> None:
        """Add generated text."""
        self.text = self.text[self.at :] + text
        self.at = 0

    def left(self) -> int:
        """The number of unread characters."""
        return len(self.text) - self.at

    def peek(self) -> str:
        """The next character. There must be one; see `has_text`."""
        return self.text[self.at]

    def take(self, size: int) -> str:
        """Read `size` characters."""
        piece = self.text[self.at : self.at + size]
        self.at += size
        if self._record is not None:
            self._record.append(piece)
        return piece

    def begin(self) -> None:
        """Start a new record of the text that is read."""
        self._record = []

    def end_record(self) -> str:
        """Stop recording, and return the text read since `begin`."""
        text = "".join(self._record or ())
        self._record = None
        return text

    @property
    def n_recorded(self) -> int:
        """The number of characters read since `begin`."""
        return sum(map(len, self._record or ()))

    def rewind(self, n_kept: int) -> None:
        """Make the recorded text unread again, except its first `n_kept` characters, and go on recording."""
        text = self.end_record()
        self._record = [text[:n_kept]]
        self.text = text[n_kept:] + self.text[self.at :]
        self.at = 0

    def put_back(self) -> None:
        """Make the recorded text unread again, and stop recording."""
        self.rewind(0)
        self._record = None


class Markers:
    """A set of literal texts to look for."""

    def __init__(self, *literals: str) -> None:
        self.literals = tuple(filter(None, literals))
        longest_first = sorted(self.literals, key=len, reverse=True)
        # An empty alternation would match everywhere; "(?!)" matches nowhere.
        self._pattern: Pattern[str] = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._longest = max(map(len, literals), default=0)

    def find(self, text: str, at: int) -> tuple[int, str] | None:
        """The index of the first marker and the marker; None if there is none."""
        match = self._pattern.search(text, at)
        return (match.start(), match.group()) if match else None

    def safe_end(self, text: str, at: int) -> int:
        """The index up to which `text` cannot belong to an incomplete marker at its end."""
        start = max(at, len(text) - self._longest + 1)
        for place in range(start, len(text)):
            tail = text[place:]
            if any(literal.startswith(tail) for literal in self.literals):
                return place
        return len(text)


def emit(pieces: Pieces[T], event: Callable[[str], U]) -> Generator[U | None, None, T]:
    """Emit the texts of a reader as events."""
    while True:
        try:
            text = next(pieces)
        except StopIteration as end:
            result: T = end.value
            return result
        if text != "":
            yield None if text is None else event(text)


def collect(pieces: Pieces[T]) -> Silent[tuple[str, T]]:
    """Read the texts of a reader. Returns them, joined, and its result."""
    texts: list[str] = []
    while True:
        try:
            text = next(pieces)
        except StopIteration as end:
            return "".join(texts), end.value
        if text is None:
            yield None
        else:
            texts.append(text)


def has_text(cursor: Cursor) -> Silent[bool]:
    """Wait until there is unread text. Returns False at the end of the output."""
    while not cursor.left():
        if cursor.ended:
            return False
        yield None
    return True


def is_next(cursor: Cursor, character: str) -> Silent[bool]:
    """Whether this is the next character, which stays unread."""
    return (yield from has_text(cursor)) and cursor.peek() == character


def read_run(cursor: Cursor, pattern: Pattern[str] = SPACE) -> Silent[str]:
    """Read characters of a pattern, which may match no character. Default: white space."""
    run = ""
    while True:
        match = pattern.match(cursor.text, cursor.at)
        run += cursor.take(match.end() - cursor.at if match else 0)
        if cursor.left() or cursor.ended:
            return run
        yield None


def next_run(cursor: Cursor, pattern: Pattern[str]) -> Silent[str]:
    """The next characters of a pattern, which stay unread; "" if the end of the output cuts them."""
    while True:
        match = pattern.match(cursor.text, cursor.at)
        end = match.end() if match else cursor.at
        if end < len(cursor.text):
            return cursor.text[cursor.at : end]
        if cursor.ended:
            return ""
        yield None


def read_one_of(cursor: Cursor, *literals: str) -> Silent[str | None]:
    """Read the longest of these literals that the next text begins with. Returns None if there is none."""
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


def read_end(cursor: Cursor, *literals: str) -> Silent[str | None]:
    """Read white space and one of these literals. At the end of the output, a literal may be incomplete.

    If another text follows, only the white space is read, and None is returned.
    """
    yield from read_run(cursor)
    found = yield from read_one_of(cursor, *literals)
    rest = cursor.text[cursor.at :]
    if found is None and cursor.ended and any(text.startswith(rest) for text in literals):
        return cursor.take(len(rest))
    return found


def emit_until(
    cursor: Cursor, markers: Markers, event: Callable[[str], U], *, holds_space: bool = True
) -> Generator[U | None, None, str | None]:
    """Emit the text before a marker as it is generated, and return the marker, which stays unread.

    Returns None at the end of the output. With `holds_space`, white space before the marker is held back and stays
    unread, since it belongs to the format. If `markers` is empty, no text is held back.
    """
    while True:
        hit = markers.find(cursor.text, cursor.at)
        end = hit[0] if hit else markers.safe_end(cursor.text, cursor.at)
        if cursor.ended and not hit:
            end = len(cursor.text)
        elif holds_space and markers.literals:
            end = cursor.at + len(cursor.text[cursor.at : end].rstrip())
        if end > cursor.at:
            yield event(cursor.take(end - cursor.at))
        if hit:
            return hit[1]
        if cursor.ended:
            return None
        yield None


def read_until(cursor: Cursor, *markers: str) -> Silent[tuple[str, str | None]]:
    """Read the text before a marker, and the marker. Returns both; the marker is None at the end of the output."""
    text, marker = yield from collect(emit_until(cursor, Markers(*markers), str, holds_space=False))
    cursor.take(len(marker or ""))
    return text, marker


def read_marker(cursor: Cursor, marker: str) -> None:
    """Read up to and including the marker that `emit_until` returned."""
    cursor.take(cursor.text.index(marker, cursor.at) + len(marker) - cursor.at)
