"""Taint tracking: a str that records which of its characters are user text.

`Marked` behaves like `str`, so a template renders the same text with it. It also has the ranges of characters that
come from a user. Methods that cut, join or trim text keep the ranges. Methods that rewrite text (such as upper() and
format()) mark the whole result or drop the marks. Text without marks is treated as text of the template.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Callable, SupportsIndex

Range = tuple[int, int]


class Marked(str):
    """A string with its ranges of user text, sorted and without overlap. Default: all of it is user text."""

    _ranges: tuple[Range, ...]

    def __new__(cls, text: str, ranges: Iterable[Range] | None = None) -> Marked:
        self = super().__new__(cls, text)
        self._ranges = ((0, len(text)),) if ranges is None else tuple(ranges)
        return self

    def __str__(self) -> str:
        # Jinja calls str(x) on every value that it prints.
        return self

    def __add__(self, other: str) -> str:
        return join("", (self, other)) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: str) -> str:
        # str has no __radd__ and no numeric slot, so Python calls this even if the left operand is a plain str.
        return join("", (other, self)) if isinstance(other, str) else NotImplemented

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        text = str.__getitem__(self, key)
        if not isinstance(key, slice):
            start = range(len(self))[key]
            return self._cut(start, start + 1)
        start, stop, step = key.indices(len(self))
        return self._cut(start, max(start, stop)) if step == 1 else _mark_whole(text, self)

    def __iter__(self) -> Iterator[str]:
        return (self._cut(at, at + 1) for at in range(len(self)))

    def _cut(self, start: int, stop: int) -> str:
        text = str.__getitem__(self, slice(start, stop))
        pairs = ((max(a, start) - start, min(b, stop) - start) for a, b in self._ranges)
        return _mark(text, [(a, b) for a, b in pairs if a < b])

    def strip(self, chars: str | None = None, /) -> str:
        return self.lstrip(chars).rstrip(chars)

    def lstrip(self, chars: str | None = None, /) -> str:
        return self[len(self) - len(str.lstrip(self, chars)) :]

    def rstrip(self, chars: str | None = None, /) -> str:
        return self[: len(str.rstrip(self, chars))]

    def removeprefix(self, prefix: str, /) -> str:
        return self[len(prefix) :] if prefix and self.startswith(prefix) else self

    def removesuffix(self, suffix: str, /) -> str:
        return self[: -len(suffix)] if suffix and self.endswith(suffix) else self

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._pieces(str.split(self, sep, maxsplit), sep)

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._pieces(str.rsplit(self, sep, maxsplit), sep)

    def splitlines(self, keepends: bool = False) -> list[str]:
        lines = self._pieces(str.splitlines(self, True), "")
        if keepends:
            return lines
        return [line[: len(bare)] for line, bare in zip(lines, str.splitlines(self))]

    def partition(self, sep: str, /) -> tuple[str, str, str]:
        head, middle, tail = str.partition(self, sep)
        return self._split_three(head, middle, tail)

    def rpartition(self, sep: str, /) -> tuple[str, str, str]:
        head, middle, tail = str.rpartition(self, sep)
        return self._split_three(head, middle, tail)

    def _split_three(self, head: str, middle: str, tail: str) -> tuple[str, str, str]:
        border = len(head) + len(middle)
        return self[: len(head)], self[len(head) : border], self[border : border + len(tail)]

    def _pieces(self, pieces: list[str], sep: str | None) -> list[str]:
        # The white space between two pieces may have any length if `sep` is None. Then search for each piece.
        found, at = [], 0
        for piece in pieces:
            at = self.find(piece, at) if sep is None else at
            found.append(self._cut(at, at + len(piece)))
            at += len(piece) + len(sep or "")
        return found

    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> str:
        return join(new, self.split(old, count)) if old else _mark_whole(str.replace(self, old, new, count), self)

    def join(self, items: Iterable[str], /) -> str:
        return join(self, items)

    def upper(self) -> str:
        return _mark_whole(str.upper(self), self)

    def lower(self) -> str:
        return _mark_whole(str.lower(self), self)

    def title(self) -> str:
        return _mark_whole(str.title(self), self)

    def capitalize(self) -> str:
        return _mark_whole(str.capitalize(self), self)


def user_ranges(text: str) -> tuple[Range, ...]:
    """The ranges of user text in `text`; none for a plain string."""
    return text._ranges if isinstance(text, Marked) else ()


def join(separator: str, items: Iterable[object]) -> str:
    """`separator.join(map(str, items))`, keeping the marks of all items."""
    texts = [str(item) for item in items]
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
    return _mark("".join(parts), ranges)


def copy_json(value: Any, string: Callable[[str], str] = str) -> Any:
    """Copy a JSON value deeply and apply `string`, such as `Marked`, to all its strings and keys."""
    if isinstance(value, str):
        return string(value)
    if isinstance(value, (list, tuple)):
        return [copy_json(item, string) for item in value]
    if isinstance(value, Mapping):
        return {string(key): copy_json(item, string) for key, item in value.items()}
    return value


def has_user_text(value: object) -> bool:
    """Whether any string in this JSON value has user text."""
    if isinstance(value, str):
        return bool(user_ranges(value))
    if isinstance(value, (list, tuple)):
        return any(map(has_user_text, value))
    if isinstance(value, dict):
        return any(map(has_user_text, value)) or any(map(has_user_text, value.values()))
    return False


def mark_result(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `function`: if any argument has user text, its whole result is marked as user text."""

    def marked(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        return Marked(result) if isinstance(result, str) and has_user_text(args) else result

    # An attribute of a filter tells Jinja whether to pass the context as first argument.
    marked.__dict__.update(function.__dict__)
    return marked


def _mark(text: str, ranges: list[Range]) -> str:
    return Marked(text, ranges) if ranges else str(text)


def _mark_whole(text: str, source: Marked) -> str:
    return Marked(text) if source._ranges and text else text
