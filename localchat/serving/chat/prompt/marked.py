"""Taint tracking: a str that records which of its characters are user text, since these must not become control tokens.

`Marked` behaves like `str`, so a template renders the same text with it. It also has the ranges of characters that
come from a user. The methods that are defined here keep the ranges. The result of every other operation with user text
is user text as a whole (sandbox.py). Text without marks is text of the template.
"""

from __future__ import annotations

import itertools
from bisect import bisect
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from re import Pattern
from typing import Any, SupportsIndex

from jinja2.utils import Namespace

Range = tuple[int, int]


class Marked(str):
    """A string with its ranges of user text, sorted and without overlap. Default: all of it is user text."""

    _ranges: tuple[Range, ...]

    def __new__(cls, text: str, ranges: Iterable[Range] | None = None) -> Marked:
        self = super().__new__(cls, text)
        self._ranges = ((0, len(text)),) if ranges is None else tuple(ranges)
        return self

    def __str__(self) -> str:
        return self  # Jinja calls str(x) on every value that it prints.

    def __add__(self, other: str) -> str:
        return join("", (self, other)) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: str) -> str:
        # str has no __radd__ and no numeric slot, so Python calls this even if the left operand is a plain str.
        return join("", (other, self)) if isinstance(other, str) else NotImplemented

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        if not isinstance(key, slice):
            start = range(len(self))[key]
            return self._cut(start, start + 1)
        start, stop, step = key.indices(len(self))
        return self._cut(start, max(start, stop)) if step == 1 else marked(str.__getitem__(self, key))

    def __iter__(self) -> Iterator[str]:
        return (self._cut(at, at + 1) for at in range(len(self)))

    def _cut(self, start: int, stop: int) -> str:
        text = str.__getitem__(self, slice(start, stop))
        near = self._ranges[max(bisect(self._ranges, (start,)) - 1, 0) : bisect(self._ranges, (stop,))]
        pairs = ((max(a, start) - start, min(b, stop) - start) for a, b in near)
        return _with_ranges(text, [(a, b) for a, b in pairs if a < b])

    def strip(self, chars: str | None = None, /) -> str:
        return self.lstrip(chars).rstrip(chars)

    def lstrip(self, chars: str | None = None, /) -> str:
        return self[len(self) - len(str.lstrip(self, chars)) :]

    def rstrip(self, chars: str | None = None, /) -> str:
        return self[: len(str.rstrip(self, chars))]

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        found, at = [], 0
        for piece in str.split(self, sep, maxsplit):
            # The white space between two pieces may have any length if `sep` is None. Then search for each piece.
            at = self.find(piece, at) if sep is None else at
            found.append(self._cut(at, at + len(piece)))
            at += len(piece) + len(sep or "")
        return found

    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> str:
        return replace(self, old, new, count)

    def join(self, items: Iterable[str], /) -> str:
        return join(self, items)


def user_ranges(text: str) -> tuple[Range, ...]:
    """The ranges of user text in `text`; none for a plain string."""
    return text._ranges if isinstance(text, Marked) else ()


def join(separator: str, items: Iterable[object]) -> str:
    """`separator.join(map(str, items))`, keeping the marks of all items."""
    texts = [printed(item) for item in items]
    parts = [part for text in texts for part in (separator, text)][1:] if separator else texts
    ranges: list[Range] = []
    at = 0
    for part in parts:
        for start, stop in user_ranges(part):
            if ranges and ranges[-1][1] == at + start:
                ranges[-1] = (ranges[-1][0], at + stop)
            else:
                ranges.append((at + start, at + stop))
        at += len(part)
    return _with_ranges("".join(parts), ranges)


def replace(text: str, old: str, new: str, count: SupportsIndex = -1) -> str:
    """`text.replace(old, new, count)`, keeping the marks of `text` and `new`."""
    if not old:
        whole = str.replace(text, old, new, count)
        return marked(whole) if has_user_text((text, new)) else whole
    return join(new, text.split(old, count))


def printed(value: object) -> str:
    """`str(value)`, which is user text if the value has any."""
    if isinstance(value, str):
        return str(value)
    return marked(str(value)) if has_user_text(value) else str(value)


def has_user_text(value: object) -> bool:
    """Whether a value has user text: a string, or a container whose text shows its items."""
    if isinstance(value, str):
        return bool(user_ranges(value))
    if isinstance(value, Namespace):
        return has_user_text(getattr(value, "_Namespace__attrs", None))
    if isinstance(value, dict):
        return has_user_text(value.items())
    return isinstance(value, (list, tuple, KeysView, ValuesView, ItemsView)) and any(map(has_user_text, value))


def marked(value: Any) -> Any:
    """A copy of a value in which all strings, also those in lists and objects, are user text."""
    if isinstance(value, str):
        return Marked(value)
    if isinstance(value, Mapping):
        return {marked(key): marked(item) for key, item in value.items()}
    return type(value)(map(marked, value)) if type(value) in (list, tuple) else value


def text_parts(prompt: str, special: Pattern[str]) -> list[tuple[str, bool]]:
    """The parts of a prompt to tokenize without BOS, each with whether its control tokens are parsed. `special` matches
    the texts of control tokens. If it matches nothing in user text, the prompt is one part, since a split would change
    the tokens at its borders. Otherwise the prompt is split at the control tokens of the template, and those in user
    text are not parsed. llama.cpp splits text at control tokens too, so the other tokens stay."""
    text, ranges = str.__str__(prompt), user_ranges(prompt)
    is_user = bytearray(len(text))  # one byte for each character
    for start, stop in ranges:
        is_user[start:stop] = b"\1" * (stop - start)
    if not any(1 in is_user[match.start() : match.end()] for match in special.finditer(text)):
        return [(text, True)]
    of_template = zip((0, *(stop for _, stop in ranges)), (*(start for start, _ in ranges), len(text)))
    edges = [at for span in of_template for match in special.finditer(text, *span) for at in match.span()]
    bounds = [0, *edges, len(text)]
    pieces = [(text[a:b], 1 not in is_user[a:b]) for a, b in zip(bounds, bounds[1:]) if a < b]
    by_kind = itertools.groupby(pieces, key=lambda piece: piece[1])
    return [("".join(text for text, _ in group), is_markup) for is_markup, group in by_kind]


def _with_ranges(text: str, ranges: list[Range]) -> str:
    return Marked(text, ranges) if ranges else str(text)
