"""Makes batches of dialogues: token ids, targets, and the positions that count.

Dialogues of similar length share a batch of about `batch_tokens` tokens, so that there is little padding. The batches
depend only on the seed, so a resumed run skips those that an earlier run has computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from .config import TrainConfig
from .data.mixture import dialogues
from .dialogue import Dialogue, render
from .tokenizer import Tokenizer

# Longer dialogues, in tokens, are not trained.
LONGEST = 4096
# Batches are padded to a multiple of this, so that there are few different shapes.
_LENGTH_STEP = 32
# The number of first tokens of an output that decide its kind, such as a call or text.
_N_FIRST = 3
# How many dialogues are sorted by length at a time: enough for batches with little padding.
_POOL = 4096


@dataclass(frozen=True)
class Batch:
    """Inputs [rows, time] and, for the chosen positions of the flattened batch, targets and weights."""

    inputs: np.ndarray
    positions: np.ndarray
    targets: np.ndarray
    weights: np.ndarray
    n_tokens: int


def encode(tokenizer: Tokenizer, dialogue: Dialogue) -> tuple[list[int], list[bool]]:
    """The token ids of the rendered dialogue, and for each whether the model learns to generate it."""
    ids: list[int] = []
    learned: list[bool] = []
    for segment in render(dialogue):
        part = tokenizer.encode_template(segment.text)
        ids += part
        learned += [segment.learned] * len(part)
    return ids, learned


def _are_first(learned: list[bool]) -> np.ndarray:
    """Which tokens are among the first ones of an output of the model."""
    starts = np.diff(np.asarray([False, *learned], np.int8)) == 1
    return (np.convolve(starts, np.ones(_N_FIRST))[: len(learned)] > 0) & learned


class BatchStream:
    """An endless iterator of the batches for one seed."""

    def __init__(self, tokenizer: Tokenizer, config: TrainConfig) -> None:
        self._tokenizer = tokenizer
        self._dialogues = dialogues(config.seed)
        self._rng = np.random.default_rng(config.seed)
        self._config = config

    def __iter__(self) -> Iterator[Batch]:
        while True:
            encoded = (encode(self._tokenizer, dialogue) for dialogue in islice(self._dialogues, _POOL))
            rows = sorted((row for row in encoded if len(row[0]) <= LONGEST), key=lambda row: -len(row[0]))
            groups = []
            while rows:
                length = -(-(len(rows[0][0]) - 1) // _LENGTH_STEP) * _LENGTH_STEP
                n = max(1, self._config.batch_tokens // length)
                groups.append((rows[:n], length))
                del rows[:n]
            for i in self._rng.permutation(len(groups)):
                yield self._pack(*groups[i])

    def _pack(self, rows: list[tuple[list[int], list[bool]]], length: int) -> Batch:
        inputs = np.zeros((len(rows), length), np.int64)
        targets = np.zeros((len(rows), length), np.int64)
        weights = np.zeros((len(rows), length), np.float32)
        for row, (ids, learned) in enumerate(rows):
            n = len(ids) - 1
            inputs[row, :n], targets[row, :n] = ids[:-1], ids[1:]
            # Scoring every prompt token is costly and teaches little. A third of them with three times the weight
            # has the same mean.
            scored = self._rng.random(n) < 1 / 3
            weights[row, :n] = np.where(learned[1:], 1.0, 3 * self._config.prompt_weight * scored)
            weights[row, :n][_are_first(learned)[1:]] = self._config.opening_weight
        positions = np.flatnonzero(weights)
        return Batch(
            inputs,
            positions,
            targets.reshape(-1)[positions],
            weights.reshape(-1)[positions],
            sum(len(ids) for ids, _ in rows),
        )
