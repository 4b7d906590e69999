"""Speculative decoding: drafts of the next tokens, by prompt lookup, and when computing them pays.

A draft token costs a row of a batch. The model samples a token at each position of a draft, so a wrong draft token
costs time and never changes the text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

# Shorter matches are by chance.
_MIN_MATCH = 3
# The limits of the length of a match, and of the searches for each draft. They bound the time of a draft.
_MAX_MATCH = 32
_MAX_SEARCHES = 8
# The character of the cells of images and sounds. No vocabulary has as many tokens.
_MEDIA = chr(0x10FFFF)
# The acceptance before any prediction has been compared counts as much as so many predictions.
_FIRST_ACCEPTANCE, _FIRST_WEIGHT = 0.5, 2
# The acceptance is an average of about so many predictions.
_WINDOW = 16
# A step with drafts must make at least so many times the tokens per second of one without. One that takes more than so
# many times as long must make more, since its text arrives in larger pieces.
_LEAST_GAIN, _LONG_STEP, _LEAST_GAIN_OF_LONG_STEP = 1.1, 2.0, 1.5


class Drafter:
    """Predicts the tokens of one sequence, and measures how many of its predictions are right.

    Each prediction is compared with the tokens that are sampled, whether a step computes it as a draft or not. So the
    acceptance of a sequence is known before a draft has cost anything.
    """

    def __init__(self) -> None:
        # The share of predicted tokens that were sampled, where the tokens before them were.
        self.acceptance = _FIRST_ACCEPTANCE
        self._n_compared = 0
        # The text that prompt lookup searches: a character for each token, for a fast search.
        self._text = ""
        self._prediction = ""  # Of the tokens after `_text`.

    def predict(self, tokens: list[int], n_most: int) -> tuple[int, ...]:
        """At most `n_most` tokens that may follow these; none if the text has no earlier match of its end.

        `tokens` are those of the last call and further ones.
        """
        new = "".join(_MEDIA if token < 0 else chr(token) for token in tokens[len(self._text) :])
        self._compare(new)
        self._text += new
        self._prediction = prompt_lookup(self._text, n_most).partition(_MEDIA)[0]
        return tuple(map(ord, self._prediction))

    def _compare(self, new: str) -> None:
        for predicted, sampled in zip(self._prediction, new):
            self._n_compared += 1
            weight = max(1 / (_FIRST_WEIGHT + self._n_compared), 1 / _WINDOW)
            self.acceptance += weight * ((predicted == sampled) - self.acceptance)
            if predicted != sampled:
                break


class Prediction(NamedTuple):
    """What a step may compute as the draft of one sequence."""

    n_tokens: int
    acceptance: float


def paying_length(predictions: Sequence[Prediction], step_s: Callable[[int], float]) -> int:
    """The length of drafts with which the next step makes most tokens per second; 0 if none is worth its rows.

    Args:
        predictions: One for each sequence of the step. A shorter one is a shorter draft.
        step_s: How long a step with so many draft tokens takes.
    """
    plain_s, n_expected = step_s(0), float(len(predictions))
    plain_rate = n_expected / plain_s
    best, best_rate = 0, 0.0
    for n in range(1, max((prediction.n_tokens for prediction in predictions), default=0) + 1):
        seconds = step_s(sum(min(n, prediction.n_tokens) for prediction in predictions))
        # The last of n tokens is accepted if all of them are right.
        n_expected += sum(prediction.acceptance**n for prediction in predictions if prediction.n_tokens >= n)
        rate = n_expected / seconds
        least_gain = _LEAST_GAIN if seconds <= _LONG_STEP * plain_s else _LEAST_GAIN_OF_LONG_STEP
        if rate > max(best_rate, least_gain * plain_rate):
            best, best_rate = n, rate
    return best


def prompt_lookup(text: str, n_tokens: int) -> str:
    """The tokens after the longest earlier match of the end of the text; of equally long matches, the newest.

    They are one token for the shortest match, and one more for each further token of the match: a short match is often
    by chance, and while a text is copied the match grows with each accepted token.
    """
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
