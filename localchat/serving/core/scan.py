"""The building blocks of streaming parsers: a cursor over text that is still being generated, and readers.

A reader is a generator that yields when it needs more text, emits the texts that it reads, and returns a result. So a
reader is written as if all text were there. Readers hold back text only if it may be the beginning of a marker, or
white space before a marker. All other text is emitted at once.

    cursor = Cursor()
    reader = cursor.read_until("</think>")
    for text in pieces:
        cursor.feed(text)
        next(reader, None)  # Runs to the next yield, or to the end.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Generator
from re import Pattern
from typing import Callable, TypeVar

from .text import pattern_of

T = TypeVar("T")
Reader = Generator[None, None, T]
Emit = Callable[[str], object]

SPACE = re.compile(r"\s*")


class Mismatch(Exception):
    """The next text is not what a reader expects. It stays unread; text before it may have been read."""


class Markers:
    """Texts to find in a text that is still being generated."""

    def __init__(self, *literals: str) -> None:
        self.literals = tuple(filter(None, literals))
        self._longest = max(map(len, literals), default=0)
        self._firsts = frozenset(literal[0] for literal in self.literals)

    @functools.cached_property
    def _pattern(self) -> Pattern[str]:
        return _compiled(self.literals)

    def find(self, text: str, at: int, *, ended: bool = True) -> tuple[int, str] | None:
        """The index of the first marker and the marker; None if there is none.

        Unless the text has `ended`, also None if more text may make the marker a longer one.
        """
        match = self._pattern.search(text, at)
        if match is None:
            return None
        tail = text[match.start() : match.start() + self._longest]
        if not ended and any(literal.startswith(tail) and literal != match.group() for literal in self.literals):
            return None
        return match.start(), match.group()

    def safe_end(self, text: str, at: int) -> int:
        """The index up to which `text` cannot belong to an incomplete marker at its end."""
        start = max(at, len(text) - self._longest + 1)
        for place in range(start, len(text)):
            tail = text[place:]
            if tail[0] in self._firsts and any(literal.startswith(tail) for literal in self.literals):
                return place
        return len(text)


@functools.lru_cache(maxsize=512)
def _compiled(literals: tuple[str, ...]) -> Pattern[str]:
    """The pattern of these texts.

    Cached, since each output has the markers of its dialect, and each text in quotes those of its value. Stop texts,
    which may be long, are searched without a pattern.
    """
    return re.compile(pattern_of(literals))


class Cursor:
    """The unread text, and the text since the last checkpoint, which can become unread again.

    A reader that tries a text begins with `checkpoint` and ends with `rewind`, if the text is another one, or with
    `commit`. There is one checkpoint: a later one takes the place of an earlier one. So a reader that is certain of its
    text commits also for its caller, whose `rewind` then has no effect.
    """

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self.ended = False  # Set when no more text will come, so that no text is held back.
        self.is_cut = False  # Whether a limit ended the text.
        self._start: int | None = None  # The checkpoint; None: there is none.

    @property
    def done(self) -> int:
        """The end of the text that was read and cannot become unread."""
        return self.at if self._start is None else self._start

    def feed(self, text: str) -> None:
        n_done = self.done
        self.text = self.text[n_done:] + text
        self.at -= n_done
        if self._start is not None:
            self._start = 0

    def take(self, size: int) -> str:
        self.at += size
        return self.text[self.at - size : self.at]

    def unread(self, text: str) -> None:
        """Make the text unread again that was read last, since the last `yield`."""
        self.at -= len(text)

    def checkpoint(self) -> None:
        """Keep the text that is read from here on, up to the next `commit` or `rewind`."""
        self._start = self.at

    def commit(self) -> str:
        """Remove the checkpoint, and return the text that was read since then; "" if there is none."""
        text = "" if self._start is None else self.text[self._start : self.at]
        self._start = None
        return text

    def rewind(self) -> None:
        """Make the text since the checkpoint unread again, and remove the checkpoint."""
        self.at -= len(self.commit())

    def has_text(self) -> Reader[bool]:
        """Wait until there is unread text. Returns False at the end of the output."""
        while self.at == len(self.text):
            if self.ended:
                return False
            yield
        return True

    def is_next(self, characters: str) -> Reader[bool]:
        """Whether one of these characters is next. It stays unread."""
        return (yield from self.has_text()) and self.text[self.at] in characters

    def read_run(self, pattern: Pattern[str] = SPACE) -> Reader[str]:
        """Read characters of a pattern, which may match no character. Default: white space."""
        run = ""
        while True:
            match = pattern.match(self.text, self.at)
            run += self.take(match.end() - self.at if match else 0)
            if self.at < len(self.text) or self.ended:
                return run
            yield

    def next_run(self, pattern: Pattern[str]) -> Reader[str]:
        """The next characters of a pattern, which stay unread; "" if the end of the output cuts them."""
        while True:
            match = pattern.match(self.text, self.at)
            end = match.end() if match else self.at
            if end < len(self.text):
                return self.text[self.at : end]
            if self.ended:
                return ""
            yield

    def read_one_of(self, *literals: str) -> Reader[str | None]:
        """Read the longest of these literals that the next text begins with. Returns None if there is none."""
        longest = max(map(len, literals), default=0)
        while True:
            rest = self.text[self.at : self.at + longest]
            undecided = [text for text in literals if text.startswith(rest) and len(text) > len(rest)]
            if not undecided or self.ended:
                break
            yield
        literal = max((text for text in literals if rest.startswith(text)), key=len, default=None)
        self.take(len(literal or ""))
        return literal

    def read_whole(self, *literals: str) -> Reader[str | None]:
        """Read white space and one of these literals. Returns None and reads nothing if another text is next."""
        self.checkpoint()
        yield from self.read_run()
        literal = yield from self.read_one_of(*filter(None, literals))
        if literal:
            self.commit()
        else:
            self.rewind()
        return literal

    def expect(self, *literals: str) -> Reader[str]:
        """Read the longest of these literals that the next text begins with. Raises Mismatch if there is none."""
        literal = yield from self.read_one_of(*literals)
        if literal is None:
            raise Mismatch
        return literal

    def read_end(self, *literals: str) -> Reader[str | None]:
        """Read white space and one of these literals. Returns None if another text is next.

        The end of the output may cut a literal: then this returns the part of it that is there, perhaps "".
        """
        yield from self.read_run()
        literal = yield from self.read_one_of(*literals)
        rest = self.text[self.at :]
        if literal is None and self.ended and any(text.startswith(rest) for text in literals):
            return self.take(len(rest))
        return literal

    def emit_until(self, markers: Markers, emit: Emit, *, holds_space: bool = True) -> Reader[str | None]:
        """Emit the text before a marker as it is generated. Returns the marker, which stays unread.

        Returns None at the end of the output. With `holds_space`, white space before the marker stays unread, since it
        belongs to the format.
        """
        while True:
            place_and_marker = markers.find(self.text, self.at, ended=self.ended)
            end = place_and_marker[0] if place_and_marker else markers.safe_end(self.text, self.at)
            if self.ended and not place_and_marker:
                end = len(self.text)
            elif holds_space and markers.literals:
                end = self.at + len(self.text[self.at : end].rstrip())
            if end > self.at:
                emit(self.take(end - self.at))
            if place_and_marker:
                return place_and_marker[1]
            if self.ended:
                return None
            yield

    def read_until(self, *markers: str) -> Reader[tuple[str, str | None]]:
        """Read the text before a marker, and the marker. Returns both; the marker is None at the end of the output."""
        texts: list[str] = []
        marker = yield from self.emit_until(Markers(*markers), texts.append, holds_space=False)
        self.take(len(marker or ""))
        return "".join(texts), marker
