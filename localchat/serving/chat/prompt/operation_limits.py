"""Limits of single operations of a chat template, which no deadline can interrupt.

`'%999999999d' % 1` and `'x' | center(999999999)` take a second each and a gigabyte, and Python runs no other thread
meanwhile. So the length of a result is estimated before, from the operands.
"""

from __future__ import annotations

import contextlib
import functools
import math
import re
from collections.abc import Iterable, Iterator
from string import Formatter
from typing import Any, Callable

MAX_INTEGER_BITS = 1024
"""The limit of a product or a power. JSON's numbers have no more."""
MAX_INDENT = 100
"""The limit of the indent of `tojson`. Published templates have 4."""
# Operators, filters and methods whose result may be as long as a number, or as the product of two lengths.
_FORMATTING = frozenset(("%", "format", "format_map"))
GROWING = _FORMATTING.union(
    ("*", "batch", "center", "expandtabs", "indent", "join", "ljust", "replace", "rjust", "slice", "to_bytes",
     "translate", "wordwrap", "zfill")
)  # fmt: skip
# The limit of such a result, in characters or items, as it is estimated. To replace one marker of ten characters by
# another in a prompt of 2 MB takes most of it.
_MAX_RESULT = 1 << 28
# What follows "%" and the name of a field in "%(name)+9.2f": flags, a width and a precision, of which "*" is computed.
_PERCENT_FORMAT = re.compile(r"[ #0+-]*(\*|\d*)(?:\.(\*|\d*))?[hlL]?")


class TooMuchWork(Exception):
    """A template exceeds a limit."""


def check_integers(operator: str, left: int, right: int) -> None:
    """Refuse a product or a power of integers that has too many digits."""
    n_left, n_right = left.bit_length(), right.bit_length()
    n_bits = n_left * abs(right) if operator == "**" else n_left + n_right
    if n_bits > MAX_INTEGER_BITS:
        raise TooMuchWork(f"the result of {operator!r} has about {n_bits} bits, the limit is {MAX_INTEGER_BITS}")


def check_indent(indent: int | str | None) -> None:
    """Refuse an indent of `tojson` that is too long."""
    if _size(indent) > MAX_INDENT:
        raise TooMuchWork(f"'tojson' has an indent of {_size(indent)} characters, the limit is {MAX_INDENT}")


def check_result(operation: str, *operands: Any) -> None:
    """Refuse an operation whose result may be too long.

    The estimate is the product of its numbers and of the lengths of its texts. For each character of a text to format,
    that is the length of all values, and all widths and precisions in the text.
    """
    if operation not in GROWING:
        return
    factors = [*map(_size, operands)]
    if operation in _FORMATTING:
        text, *values = operands
        factors = [_size(text), _size(values) + sum(_widths(operation, str(text)))]
    n_items = math.prod(max(1, factor) for factor in factors)
    if n_items > _MAX_RESULT:
        raise TooMuchWork(f"the result of {operation!r} can have {n_items} items, the limit is {_MAX_RESULT}")


def _widths(operation: str, text: str) -> Iterator[int]:
    """The widths and precisions in a text to format. Refuses those that are computed, as in "%*d" and "{:{}}"."""
    # The filter `format` formats as "%" does, and the method of this name as `format_map` does.
    widths = [] if operation == "format_map" else [*_percent_widths(text)]
    widths += [] if operation == "%" else _brace_widths(text)
    for width in widths:
        if not width.isdecimal():
            raise TooMuchWork(f"{operation!r} has a width that is computed")
        yield int(width)


def _percent_widths(text: str) -> Iterator[str]:
    """Those in "%(name)+9.2f". One that is computed is "*"."""
    at = text.find("%")
    while at >= 0:
        match = _PERCENT_FORMAT.match(text, _end_of_key(text, at + 1))
        assert match, "the pattern matches an empty text"
        yield from filter(None, match.groups())
        at = text.find("%", match.end() + 1)  # The letter after the width may be "%", too.


def _end_of_key(text: str, at: int) -> int:
    """The index after the key "(name)" at an index, which may have brackets inside it; the same index without a key."""
    depth = 0
    for match in re.compile("[()]").finditer(text, at) if text.startswith("(", at) else ():
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return match.end()
    return at


def _brace_widths(text: str) -> list[str]:
    """Those in "{name:>+9.2f}". A format with a field inside it stands for its width, which is computed."""
    formats: list[str] = []
    # A text that is not well-formed fails at its error, when the fields before it have been formatted.
    with contextlib.suppress(ValueError):
        formats.extend(format or "" for _, _, format, _ in Formatter().parse(text))
    # A fill that is a digit counts, too.
    return [width for format in formats for width in ([format] if "{" in format else re.findall(r"\d+", format))]


def as_lists(operands: Iterable[Any]) -> tuple[Any, ...]:
    """The operands, with lists in place of iterators, whose length is unknown."""
    return tuple(list(operand) if isinstance(operand, Iterator) else operand for operand in operands)


def _size(operand: Any) -> int:
    """A number, the length of a text, or the length of the texts in a list, where other items count as one."""
    if isinstance(operand, int):
        return abs(operand)
    if isinstance(operand, (str, bytes, range)):
        return len(operand)
    items = operand.values() if isinstance(operand, dict) else operand if isinstance(operand, (list, tuple)) else ()
    return sum(1 if isinstance(item, int) else max(1, _size(item)) for item in items)


def limited_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that refuses operands whose result may be too long."""

    @functools.wraps(function)  # With the attribute by which Jinja passes the environment to some filters.
    def limited(*args: Any, **kwargs: Any) -> Any:
        args = as_lists(args)
        check_result(name, *args, *kwargs.values())
        return function(*args, **kwargs)

    return limited
