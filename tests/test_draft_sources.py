"""The choice of a drafter for each sequence."""

from __future__ import annotations

from typing import Any

from localchat.serving.engine.batch import Sequence
from localchat.serving.engine.draft_sources import DraftSources


class Timer:
    """A step timer whose costs are the seconds of a draft token, and whose clock the drafters set."""

    now = 0.0

    def clock(self) -> float:
        return self.now

    def draft_token_cost(self, running: list[Sequence], token_s: float) -> float:
        return token_s


class Drafter:
    """Drafts the same tokens for some sequences, in `seconds`, and records the calls of its methods."""

    def __init__(self, timer: Timer, ids: set[int], tokens: list[int], seconds: float):
        self._timer, self._ids, self._tokens, self._seconds = timer, ids, tokens, seconds
        self.calls: list[Any] = []

    def draft(self, sequences: list[Sequence], n_tokens: int, cost: float) -> None:
        self.calls.append(([sequence.id for sequence in sequences], n_tokens, round(cost, 6)))
        self._timer.now += self._seconds
        for sequence in sequences:
            if sequence.id in self._ids:
                sequence.draft = list(self._tokens)

    def note(self, sequence: Sequence, n_drafted: int, n_accepted: int, cost: float) -> None:
        self.calls.append((sequence.id, n_drafted, n_accepted, round(cost, 6)))

    def forget(self, sequence: Sequence) -> None:
        self.calls.append(("forget", sequence.id))

    def close(self) -> None:
        self.calls.append("close")


def test_later_drafter_drafts_where_the_earlier_one_has_nothing_and_its_time_is_averaged():
    timer = Timer()
    first, second = Drafter(timer, {1}, [5], 0.2), Drafter(timer, {2}, [6, 7], 1.0)
    sources: Any = DraftSources([first, second], timer)  # type: ignore[list-item, arg-type]
    one, two = Sequence(1, [1], 100), Sequence(2, [2], 100)
    sources.draft([one, two], 0)
    assert not first.calls
    for _ in range(2):
        one.draft, two.draft = [], []
        sources.draft([one, two], 4)
        assert (one.draft, two.draft) == ([5], [6, 7])
    sources.note(one, [one, two], 1, 1)
    sources.note(two, [one, two], 2, 0)
    sources.forget(one)
    sources.close()
    # A tenth of each measured time of a token: 0.2 s of the first drafter, and 0.5 s of the second.
    assert first.calls == [([1, 2], 4, 0.0), ([1, 2], 4, 0.02), (1, 1, 1, 0.038), ("forget", 1), "close"]
    assert second.calls == [([2], 4, 0.0), ([2], 4, 0.05), (2, 2, 0, 0.095), ("forget", 1), "close"]
