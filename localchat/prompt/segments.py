"""A rendered prompt in segments, and its tokens.

A segment is either text of the template (markup) or text of a user. `parts_of` splits the prompt so that
control tokens come from markup alone.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from re import Match

from ..literals import pattern_of
from .marked import user_ranges

# A search holds the interpreter lock: a long text is searched in windows of so many characters, a millisecond each.
_WINDOW = 50_000


@dataclass(frozen=True)
class Segment:
    """A piece of a prompt."""

    text: str
    is_markup: bool
    """Whether it is text of the template; otherwise it is user text."""


def text_of(segments: Iterable[Segment]) -> str:
    """The prompt as one text."""
    return "".join(segment.text for segment in segments)


def segments_of(text: str) -> list[Segment]:
    """Split a text at the borders of its ranges of user text."""
    found: list[Segment] = []
    plain, at = str.__str__(text), 0
    for start, stop in user_ranges(text):
        found += [Segment(plain[at:start], True), Segment(plain[start:stop], False)]
        at = stop
    return merged([*found, Segment(plain[at:], True)])


def merged(segments: Iterable[Segment]) -> list[Segment]:
    """Join neighbours of one kind, and drop empty segments."""
    result: list[Segment] = []
    for segment in segments:
        if result and result[-1].is_markup == segment.is_markup:
            result[-1] = Segment(result[-1].text + segment.text, segment.is_markup)
        elif segment.text:
            result.append(segment)
    return result


class SpecialTexts:
    """The texts of the control tokens of a vocabulary, searched for in other texts."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        texts = set(texts)
        self._pattern = re.compile(pattern_of(texts))
        self._starts = {text[:n] for text in texts for n in range(1, len(text))}
        self._ends = {text[n:] for text in texts for n in range(1, len(text))}
        self._longest = max(map(len, texts), default=0)

    def __bool__(self) -> bool:
        return self._longest > 0

    def find(self, text: str) -> Iterator[Match[str]]:
        """All control tokens in a text, the longest at each place."""
        at = 0
        for begin in range(0, len(text), _WINDOW):
            end = begin + _WINDOW
            for match in self._pattern.finditer(text, max(at, begin), end + self._longest):
                if match.start() >= end:
                    break
                at = match.end()
                yield match

    def may_be_in(self, text: str) -> bool:
        """Whether a text holds a control token, or may form one together with the text beside it."""
        lengths = range(1, self._longest)
        return (
            any(self.find(text))
            or any(text[-n:] in self._starts for n in lengths)
            or any(text[:n] in self._ends for n in lengths)
        )


def parts_of(segments: Sequence[Segment], special: SpecialTexts) -> Iterator[tuple[str, bool]]:
    """The parts of a prompt to tokenize without BOS, each with whether to parse its control tokens.

    No control token comes from user text. If no control token overlaps user text, the prompt is one part, since
    splitting it would change the tokens at the borders. Otherwise it is split at the control tokens of the template,
    where every tokenizer of llama.cpp splits it anyway; so the other text keeps its tokens.
    """
    if not _overlaps_user_text(segments, special):
        yield text_of(segments), True
        return
    for piece in _pieces(segments, special):
        yield piece.text, piece.is_markup


def _overlaps_user_text(segments: Sequence[Segment], special: SpecialTexts) -> bool:
    """Whether any control token in the prompt contains characters of user text."""
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
        # Test whether the last piece of user text that begins before the end of the token reaches into it.
        before = bisect_left(starts, match.end())
        if before and stops[before - 1] > match.start():
            return True
    return False


def _pieces(segments: Sequence[Segment], special: SpecialTexts) -> list[Segment]:
    """Split at the control tokens of the template. A piece between them is markup only if all of it is."""
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
