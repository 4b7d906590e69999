"""Drafts: prompt lookup, and that computing them pays, whatever a row costs and however often they are right."""

import random
from statistics import median

import pytest

from localchat.serving.engine.batch import Batch, BatchChunk, CacheLimits
from localchat.serving.engine.drafts import Drafter, prompt_lookup
from localchat.serving.engine.layouts import new_kv_cache
from localchat.serving.engine.scheduler import Scheduler
from localchat.serving.engine.sequence import Sequence
from localchat.serving.engine.tuning import CPU, GPU
from tests.support.fakes import FakeCells

LOOKUPS: dict[str, tuple[list[int], list[int]]] = {
    "nothing": ([], []),
    "one": ([1], []),
    "one run": ([1, 2, 3], []),
    "no repetition": ([1, 2, 3, 4, 5], []),
    "a shorter run only": ([1, 2, 3, 4, 5, 6, 1, 2], []),
    "the shortest match": ([1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3], [4]),
    "a longer match": ([1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5], [6, 7, 8]),
    "the newest of two places": ([1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3], [5]),
    "the place with more in common": ([0, 1, 2, 3, 4, 9, 1, 2, 3, 5, 0, 1, 2, 3], [4, 9]),
    "one token again and again": ([7] * 8, [7, 7, 7, 7]),
    "two tokens again and again": ([5, 1, 2, 1, 2, 1, 2, 1, 2], [1, 2, 1, 2]),
}


@pytest.mark.parametrize(("tokens", "expected"), LOOKUPS.values(), ids=LOOKUPS)
def test_draft_is_the_continuation_of_the_longest_earlier_match(tokens: list[int], expected: list[int]):
    assert list(map(ord, prompt_lookup("".join(map(chr, tokens)), 4))) == expected


# When drafts pay.


def copied_text(n: int, share: float, rng: random.Random) -> list[int]:
    """A prompt of 100 tokens, and a text of `n` tokens of which this share follow an earlier occurrence of the tokens
    before."""
    text = [rng.randrange(2000) for _ in range(100)]
    at = 0
    while len(text) < 100 + n:
        text.append(text[at] if rng.random() < share else rng.randrange(2000))
        at = at + 1 if text[-1] == text[at] else rng.randrange(len(text) - 1)
    return text


class Machine(Scheduler):
    """A scheduler on fake cells, stepped by hand, whose steps take some time and some for each row. Each sequence
    samples the tokens of a text that is known before."""

    def __init__(self, texts: list[list[int]], row_s: float, *, drafts: bool, is_unified: bool = True):
        max_drafted = (GPU if row_s < 0.1 else CPU).max_drafted
        limits = CacheLimits(40_000, 8, 16, 2048, max_drafted=max_drafted * drafts, is_unified=is_unified)
        self.cells = FakeCells(limits)
        # A step that decodes one token takes a second.
        self.cells.row_s, self.cells.step_s = row_s, 1 - row_s
        self.texts = dict(enumerate(texts))
        super().__init__(limits, new_kv_cache(self.cells, self.cells.clock))
        self.add(*(Sequence(id, text[:100], len(text)) for id, text in self.texts.items()))

    def step(self) -> Batch:
        batch = self.schedule()
        self._cache.decode(batch)
        self.update(batch, [self.run_of(chunk) for chunk in batch.outputs()])
        return batch

    def run_of(self, chunk: BatchChunk) -> list[int]:
        """What is sampled: the tokens of the text, up to the first that differs from the draft."""
        known = chunk.sequence.tokens
        following = self.texts[chunk.sequence.id][len(known) :]
        n_right = next((i for i, (a, b) in enumerate(zip(chunk.draft, following)) if a != b), len(chunk.draft))
        return following[: n_right + 1]

    def decoding_s(self) -> list[float]:
        """The duration of each step after the prompts, until the first text is complete."""
        while any(sequence.is_prefilling for sequence in self.running) or not self.running:
            self.step()
        seconds = []
        while all(len(sequence.tokens) < len(self.texts[sequence.id]) for sequence in self.running):
            before = self.cells.now
            self.step()
            seconds.append(self.cells.now - before)
        self.cells.check(self._cache)
        assert all(one.tokens == self.texts[one.id][: len(one.tokens)] for one in self.running)
        self.n_decoded = sum(len(one.tokens) - 100 for one in self.running)
        return seconds


ROWS = {"free": 0.0, "GPU": 0.02, "cheap": 0.2, "half a step": 0.5, "nearly a step": 0.9, "more than a step": 1.5}
SHARES = {"random": 0.0, "natural": 0.4, "code": 0.8, "copy": 0.97, "exact copy": 1.0}


@pytest.mark.parametrize(
    ("n_texts", "is_unified"), [(1, True), (3, True), (3, False)], ids=["one text", "one buffer", "streams"]
)
@pytest.mark.parametrize("share", SHARES.values(), ids=SHARES)
@pytest.mark.parametrize("row_s", ROWS.values(), ids=ROWS)
def test_drafts_make_no_text_slower_and_no_step_much_longer(row_s: float, share: float, n_texts: int, is_unified: bool):
    """A text of 300 tokens takes at most 3 % longer than without drafts, and the gaps between tokens are even, unless
    they make it much faster."""
    texts = [copied_text(300, share, random.Random(seed)) for seed in range(n_texts)]
    plain = Machine(texts, row_s, drafts=False, is_unified=is_unified)
    drafting = Machine(texts, row_s, drafts=True, is_unified=is_unified)
    plain_s, drafting_s = plain.decoding_s(), drafting.decoding_s()
    rate, plain_rate = drafting.n_decoded / sum(drafting_s), plain.n_decoded / sum(plain_s)
    assert rate >= 0.97 * plain_rate
    gaps = sorted(drafting_s)
    assert gaps[len(gaps) * 95 // 100] <= 2 * median(plain_s) + 1e-9 or rate >= 1.2 * plain_rate
    if share == 1 and n_texts == 1:
        # With a row of half a step, a step of two tokens takes one and a half times as long.
        gain = next(gain for most, gain in ((0.02, 3), (0.2, 2), (0.5, 1.3), (2, 0.97)) if row_s <= most)
        assert rate >= gain * plain_rate


@pytest.mark.parametrize(("share", "gain"), [(0.0, 0.97), (0.4, 0.97), (0.8, 0.97), (0.98, 1.3), (1.0, 1.6)])
def test_long_drafts_pay_although_short_ones_do_not(share: float, gain: float):
    """With some quantizations, 2 rows take twice as long as 1 row, and 8 rows four times as long."""
    texts = [copied_text(400, share, random.Random(1))]
    plain, drafting = Machine(texts, 0.2, drafts=False), Machine(texts, 0.2, drafts=True)
    drafting.cells.several_rows_s = 1.0
    plain_s, drafting_s = plain.decoding_s(), drafting.decoding_s()
    assert drafting.n_decoded / sum(drafting_s) >= gain * plain.n_decoded / sum(plain_s)


def test_drafts_begin_again_after_other_processes_made_rows_seem_dear():
    machine = Machine([copied_text(6000, 1, random.Random(1))], 0.2, drafts=True)
    n_drafted = []
    for i in range(600):
        machine.cells.row_s = 3.0 if 60 <= i < 90 else 0.2
        machine.cells.step_s = 1 - machine.cells.row_s
        n_drafted.append(sum(len(chunk.draft) for chunk in machine.step().chunks))
    assert sum(n_drafted[30:60]) > 60
    assert sum(n_drafted[75:90]) <= 2
    assert sum(n_drafted[-30:]) > 60


def test_sequences_in_streams_draft_equally_many_tokens():
    """llama.cpp computes them in one pass only with equal numbers of rows."""
    texts = [copied_text(300, share, random.Random(1)) for share in (1.0, 0.6, 0.9)]
    machine = Machine(texts, 0.02, drafts=True, is_unified=False)
    n_drafted = [{len(chunk.draft) for chunk in machine.step().chunks} for _ in range(150)]
    assert all(len(lengths) == 1 for lengths in n_drafted[10:])
    assert max(max(lengths) for lengths in n_drafted) > 2


@pytest.mark.parametrize("share", [0.0, 0.3, 0.7, 1.0])
def test_acceptance_is_measured_without_computing_drafts(share: float):
    rng, drafter, tokens = random.Random(1), Drafter(), list(range(50))
    acceptances = []
    for i in range(1000):
        predicted = drafter.predict(tokens, 4)[:1]
        is_right = rng.random() < share
        # A token that is new is never predicted; those of the beginning bring the next prediction.
        tokens = [
            *tokens,
            predicted[0] if predicted and is_right else 1000 + i if predicted else tokens[len(tokens) % 50],
        ]
        acceptances += [drafter.acceptance] if predicted else []
    measured = acceptances[20:]
    assert abs(sum(measured) / len(measured) - share) < 0.05
