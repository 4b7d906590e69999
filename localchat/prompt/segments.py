"""A rendered prompt in segments, and its tokens.

A segment is text that the template wrote (markup) or text that a user wrote. `tokens_of` gives the
tokens of the whole, in which markup may hold special tokens and the user's text may not.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from re import Match
from typing import Callable

from .marked import user_ranges

Tokenize = Callable[[str, bool], list[int]]


@dataclass(frozen=True)
class Segment:
    """A piece of a prompt: `is_markup` says that the template wrote it, not a user."""

    text: str
    is_markup: bool


def text_of(segments: Iterable[Segment]) -> str:
    """The prompt as one text."""
    return "".join(segment.text for segment in segments)


def segments_of(text: str) -> list[Segment]:
    """Cut a text at the borders of what a user wrote in it."""
    found: list[Segment] = []
    plain, at = str.__str__(text), 0
    for start, stop in user_ranges(text):
        found += [Segment(plain[at:start], True), Segment(plain[start:stop], False)]
        at = stop
    return merged([*found, Segment(plain[at:], True)])


def merged(segments: Iterable[Segment]) -> list[Segment]:
    """The same text in as few segments as possible."""
    result: list[Segment] = []
    for segment in segments:
        if result and result[-1].is_markup == segment.is_markup:
            result[-1] = Segment(result[-1].text + segment.text, segment.is_markup)
        elif segment.text:
            result.append(segment)
    return result


class SpecialTexts:
    """The texts of a vocabulary's control tokens."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        longest_first = sorted(filter(None, texts), key=len, reverse=True)
        # Without texts the pattern must find nothing, and an empty alternation finds everything.
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._starts = {text[:n] for text in longest_first for n in range(1, len(text))}
        self._ends = {text[n:] for text in longest_first for n in range(1, len(text))}
        self._longest = max(map(len, longest_first), default=0)

    def __bool__(self) -> bool:
        return self._longest > 0

    def find(self, text: str) -> Iterator[Match[str]]:
        """All control tokens in a text, the longest at each place."""
        return self._pattern.finditer(text)

    def may_be_in(self, text: str) -> bool:
        """Whether a text holds a control token, or could be one together with its neighbours."""
        lengths = range(1, self._longest)
        return (
            bool(self._pattern.search(text))
            or any(text[-n:] in self._starts for n in lengths)
            or any(text[:n] in self._ends for n in lengths)
        )


def tokens_of(segments: Sequence[Segment], tokenize: Tokenize, special: SpecialTexts) -> list[int]:
    """The tokens of a prompt, in which no control token comes from a user's text.

    `tokenize(text, parse_special)` must add nothing of its own (no BOS). As long as no control
    token touches the user's text, the prompt is tokenised as one text: cutting it would change the
    tokens at the cuts. Else it is cut at the template's control tokens only, where every tokeniser
    of llama.cpp cuts it anyway, so that innocent text keeps its tokens even then.
    """
    if not _is_forged(segments, special):
        return tokenize(text_of(segments), True)
    return [token for piece in _pieces(segments, special) for token in tokenize(piece.text, piece.is_markup)]


def _is_forged(segments: Sequence[Segment], special: SpecialTexts) -> bool:
    """Whether a control token would be read in text that is not the template's alone."""
    at = 0
    starts, stops = [], []
    for segment in segments:
        if segment.text and not segment.is_markup:
            starts.append(at)
            stops.append(at + len(segment.text))
        at += len(segment.text)
    if not starts:
        return False
    for match in special.find(text_of(segments)):
        # The last of the user's pieces that begins before the token ends: does it reach into it?
        before = bisect_left(starts, match.end())
        if before and stops[before - 1] > match.start():
            return True
    return False


def _pieces(segments: Sequence[Segment], special: SpecialTexts) -> list[Segment]:
    """What stands between the template's control tokens, as text if a user wrote any of it."""
    pieces: list[Segment] = []
    between: list[Segment] = []
    for segment in segments:
        if not segment.is_markup:
            between.append(segment)
            continue
        at = 0
        for match in special.find(segment.text):
            pieces.append(_joined([*between, Segment(segment.text[at : match.start()], True)]))
            pieces.append(Segment(match.group(), True))
            between, at = [], match.end()
        between.append(Segment(segment.text[at:], True))
    return merged([*pieces, _joined(between)])


def _joined(segments: list[Segment]) -> Segment:
    return Segment(text_of(segments), all(segment.is_markup for segment in segments))
