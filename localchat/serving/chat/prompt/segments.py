"""A rendered prompt in segments, and its tokens.

A segment is either text of the template (markup) or user text. `parts_of` splits the prompt so that only markup
yields control tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from re import Pattern

from .marked import user_ranges


@dataclass(frozen=True)
class Segment:
    """A part of a prompt."""

    text: str
    is_markup: bool
    """Whether this is text of the template. False: user text."""


def text_of(segments: Iterable[Segment]) -> str:
    """The prompt as one text."""
    return "".join(segment.text for segment in segments)


def segments_of(text: str) -> list[Segment]:
    """Split a rendered text into user text and text of the template."""
    found: list[Segment] = []
    plain, at = str.__str__(text), 0
    for start, stop in user_ranges(text):
        found += [Segment(plain[at:start], True), Segment(plain[start:stop], False)]
        at = stop
    return merge_segments([*found, Segment(plain[at:], True)])


def merge_segments(segments: Iterable[Segment]) -> list[Segment]:
    """Join adjacent segments of the same kind, and drop empty ones."""
    result: list[Segment] = []
    for segment in segments:
        if result and result[-1].is_markup == segment.is_markup:
            result[-1] = Segment(result[-1].text + segment.text, segment.is_markup)
        elif segment.text:
            result.append(segment)
    return result


def parts_of(segments: Sequence[Segment], special: Pattern[str]) -> Iterator[tuple[str, bool]]:
    """The parts of a prompt to tokenize without BOS, each with whether its control tokens are parsed.

    `special` matches the texts of control tokens. User text yields none. If none overlaps user text, the prompt is one
    part, since a split would change the tokens at its borders. Otherwise the prompt is split at the control tokens of
    the template. llama.cpp splits text there too, so the tokens of the other text do not change.
    """
    # One character for each character of the prompt: "u" for user text.
    kinds = "".join(("m" if segment.is_markup else "u") * len(segment.text) for segment in segments)
    if not any("u" in kinds[match.start() : match.end()] for match in special.finditer(text_of(segments))):
        yield text_of(segments), True
        return
    for piece in _pieces(segments, special):
        yield piece.text, piece.is_markup


def _pieces(segments: Sequence[Segment], special: Pattern[str]) -> list[Segment]:
    """Split a prompt at the control tokens of the template. A piece with any user text is user text."""
    pieces: list[Segment] = []
    between: list[Segment] = []
    for segment in segments:
        if not segment.is_markup:
            between.append(segment)
            continue
        at = 0
        for match in special.finditer(segment.text):
            pieces.append(_join([*between, Segment(segment.text[at : match.start()], True)]))
            pieces.append(Segment(match.group(), True))
            between, at = [], match.end()
        between.append(Segment(segment.text[at:], True))
    return merge_segments([*pieces, _join(between)])


def _join(segments: list[Segment]) -> Segment:
    return Segment(text_of(segments), all(segment.is_markup for segment in segments))
