"""Character classes as small automata over the bytes of UTF-8.

A class of characters becomes states; each state has ranges of bytes, and each range leads to another state or completes
a character. Surrogates have no encoding, and NUL ends a text for llama.cpp, so no state ever accepts them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from .expressions import CharClass

COMPLETE = -1
"""In place of the number of a state: the bytes so far are a complete character of the class."""

ByteState = tuple[tuple[int, int, int], ...]
"""Disjoint ranges of bytes as (first, last, number of the next state); `last` is included."""

# The first and last code points of each length of an encoding, without NUL and the surrogates.
_LENGTHS = ((1, 0x7F), (0x80, 0x7FF), (0x800, 0xD7FF), (0xE000, 0xFFFF), (0x10000, 0x10FFFF))

_Sequence = tuple[tuple[int, int], ...]


@lru_cache(maxsize=4096)
def byte_states(chars: CharClass) -> tuple[ByteState, ...]:
    """The states of a class; state 0 is the initial one. A class without characters has one state without ranges."""
    states: list[ByteState] = []
    numbers: dict[tuple[_Sequence, ...], int] = {}

    def number(sequences: tuple[_Sequence, ...]) -> int:
        if sequences in numbers:
            return numbers[sequences]
        own = numbers[sequences] = len(states)
        states.append(())
        cuts = sorted({cut for (first, last), *_ in sequences for cut in (first, last + 1)})
        ranges = []
        for first, end in zip(cuts, cuts[1:]):
            tails = tuple(dict.fromkeys(s[1:] for s in sequences if s[0][0] <= first <= s[0][1]))
            if tails:
                ranges.append((first, end - 1, number(tails) if tails != ((),) else COMPLETE))
        states[own] = tuple(ranges)
        return own

    number(tuple(sequence for pair in chars.ranges for sequence in _sequences(*pair)))
    return tuple(states)


def _sequences(first: int, last: int) -> Iterator[_Sequence]:
    """The encodings of a range of characters as sequences of byte ranges, one range for each byte of the encoding."""
    for low, high in _LENGTHS:
        if first <= high and last >= low:
            yield from _same_length(_encoded(max(first, low)), _encoded(min(last, high)))


def _same_length(first: tuple[int, ...], last: tuple[int, ...]) -> Iterator[_Sequence]:
    """The encodings from `first` to `last`, which have the same length.

    The first byte is that of `first`, that of `last` or one between; then all continuation bytes may follow.
    """
    if len(first) == 1:
        yield ((first[0], last[0]),)
        return
    if first[0] == last[0]:
        for rest in _same_length(first[1:], last[1:]):
            yield ((first[0], first[0]), *rest)
        return
    n_rest = len(first) - 1
    lowest, highest = (0x80,) * n_rest, (0xBF,) * n_rest
    start, end = first[0], last[0]
    if first[1:] != lowest:
        for rest in _same_length(first[1:], highest):
            yield ((start, start), *rest)
        start += 1
    if last[1:] != highest:
        end -= 1
    if start <= end:
        yield ((start, end), *(((0x80, 0xBF),) * n_rest))
    if last[1:] != highest:
        for rest in _same_length(lowest, last[1:]):
            yield ((last[0], last[0]), *rest)


def _encoded(char: int) -> tuple[int, ...]:
    return tuple(chr(char).encode())
