"""Speculative decoding: drafts of the next tokens, by prompt lookup.

A draft token costs a row of a batch. The model samples a token at each position of a draft, so a wrong draft token
costs time and never changes the text.
"""

from __future__ import annotations

from .batch import Sequence

# Shorter matches are by chance.
_MIN_MATCH = 3
# The limits of the length of a match, and of the searches for each draft. They bound the time of a draft.
_MAX_MATCH = 32
_MAX_SEARCHES = 8
# The character of the cells of images and sounds. No vocabulary has as many tokens.
_MEDIA = chr(0x10FFFF)


def draft_of(sequence: Sequence, n_tokens: int) -> tuple[int, ...]:
    """A draft of at most `n_tokens` tokens; empty if the text of the sequence has no earlier match of its end."""
    new = sequence.tokens[len(sequence.lookup_text) :]
    sequence.lookup_text += "".join(_MEDIA if token < 0 else chr(token) for token in new)
    return tuple(map(ord, looked_up(sequence.lookup_text, n_tokens).partition(_MEDIA)[0]))


def looked_up(text: str, n_tokens: int) -> str:
    """The tokens after the longest earlier match of the end of the text; of equally long matches, the newest. They are
    one token for the shortest match, and one more for each further token of the match: a short match is often by
    chance, and while a text is copied the match grows with each accepted token."""
    best, n_best, n_most = 0, 0, min(_MAX_MATCH, len(text) - 1)
    for _ in range(_MAX_SEARCHES):
        n = max(_MIN_MATCH, n_best + 1)
        start = text.rfind(text[-n:], 0, -1) if n <= n_most else -1
        if start < 0:
            break
        while n < n_most and start and text[start - 1] == text[-n - 1]:
            start, n = start - 1, n + 1
        best, n_best = start + n, n
    # A draft that reaches the end of the text continues at `best` again.
    period = len(text) - best
    n_drafted = min(n_tokens, n_best - _MIN_MATCH + 1) if n_best else 0
    return "".join(text[best + i % period] for i in range(n_drafted))
