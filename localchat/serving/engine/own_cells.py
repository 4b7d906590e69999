"""The layout in which each sequence has its own cells: llama.cpp's streams.

A prefix is copied to another slot. llama.cpp computes several sequences of a step in one pass through the layers only
if their slots are consecutive and they have equally many rows.

A text does not depend on what runs beside it. For this, a step computes either newest tokens or prompts, and TILE_ROWS
rows or more of each prompt, or all of a shorter one. The text of a request with a `seed` does not depend on what is
cached, either: it reuses only *exact* cells. docs/design.md explains both, under "Streams: the rows of a pass" and
"Streams: cached prefixes".
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from .batch import TILE_ROWS, Batch, BatchChunk
from .kv_cache import Candidate, KVCache, Match, SlotContent
from .planning import Pending, batch_of, drafts_of, left_out_of_last_step, newest_tokens, pending_of, prompt_rows
from .protocols import CacheBackend, CopyFailed
from .sequence import Sequence

log = logging.getLogger("localchat.engine")

# A prefix of fewer tokens is computed again, which is as fast as a copy.
_MIN_COPIED = 4
# A gap between the active slots costs each step one more pass. Moving this many tokens to another slot takes as long as
# that pass.
_MOVED_PER_STEP = 1000


class OwnCells(KVCache):
    """The slots of a backend whose slots have their own cells, each as many as a request may use."""

    def __init__(self, backend: CacheBackend, clock: Callable[[], float] = time.perf_counter) -> None:
        super().__init__(backend, clock)
        assert backend.limits.n_batch >= 2 * TILE_ROWS - 1, "a step must hold the last rows of a prompt"
        # How the next prompts are chosen, by turns. So neither short prompts nor long ones nor images wait for all
        # others.
        self._order = deque((_image, _shortest, _image, _oldest))
        # How many steps had gaps between the active slots since a sequence was moved.
        self._n_gap_steps = 0

    def _best_match(self, sequence: Sequence, candidates: list[Candidate]) -> Match | None:
        """The longest cached prefix.

        Of equally long ones, an idle one without further tokens, then the one in the slot with the fewest tokens, all
        of which are copied.
        """

        def rank(candidate: Candidate) -> tuple[int, bool, int]:
            length = _n_reused(sequence, candidate.n_common, candidate.content.n_exact)
            return length, candidate.is_whole and not candidate.is_active, -candidate.content.n_tokens

        best = max(candidates, key=rank, default=None)
        length = 0 if best is None else rank(best)[0]
        if best is None or length < _MIN_COPIED:
            return None
        # Also without a seed: a later request with one may reuse the cells.
        n_exact = min(_exact_length(sequence, best.n_common, best.content.n_exact), length)
        return Match(best.slot, length, n_exact=n_exact)

    def _n_awaited(self, running: Sequence, sequence: Sequence, n_common: int) -> int:
        n_exact = self._content(running.slot or 0).n_exact
        # If all of its cells are exact so far, those of the rest of its prompt will be.
        return _n_reused(sequence, n_common, n_common if n_exact == running.n_computed else n_exact)

    def advance(self, chunk: BatchChunk, n_kept: int) -> None:
        content = self._content(chunk.slot)
        if content.n_exact == chunk.sequence.n_computed and _is_exact(chunk):
            content.n_exact += chunk.n_tokens
        super().advance(chunk, n_kept)

    def plan(self, running: list[Sequence], *, others_wait: bool) -> Batch:
        """A step of the newest tokens, of text of prompts, or of an image or a sound.

        Steps of prompts follow one another as long as the sequences that decode may wait. After each step of their
        tokens, there is one of a prompt at least.
        """
        self._close_gaps()
        pending = pending_of(running)
        n_rows = prompt_rows(pending, self._limits, self._pace, others_wait=others_wait)
        prompt = self._next_prompt(pending, n_rows)
        if prompt is None:
            return self._token_step(pending, others_wait)
        if prompt.is_indivisible:
            return batch_of({prompt: prompt.n_missing_in_part}, {})
        return batch_of(_prompt_step(prompt, pending, max(n_rows, TILE_ROWS)), {})

    def _next_prompt(self, pending: Pending, n_rows: int) -> Sequence | None:
        """The sequence whose prompt has the next step; None if it is one of newest tokens."""
        if not pending.has_prompts:
            return None
        while (prompt := self._order[0](pending)) is None:
            self._order.rotate(-1)
        n_least = prompt.n_missing_in_part if prompt.is_indivisible else TILE_ROWS
        if n_rows < n_least and left_out_of_last_step(pending):
            return None
        self._order.rotate(-1)
        return prompt

    def _token_step(self, pending: Pending, others_wait: bool) -> Batch:
        # llama.cpp computes unequal numbers of rows in several passes.
        drafts = {} if others_wait else drafts_of(pending, self._limits, self._pace, of_one_length=True)
        return batch_of(self._newest_tokens(pending.decoding), drafts)

    def _newest_tokens(self, decoding: list[Sequence]) -> dict[Sequence, int]:
        """A row for the newest token of each sequence, and rows for forced tokens.

        Each sequence gets as many forced tokens as all of them have. Rows beyond these need a second pass, for which
        all sequences wait, so it is made only if it computes more tokens than there are sequences. Otherwise these
        tokens wait for the next step.

        Two sequences with 3 and 5 forced tokens get 3 each, and the other 2 wait; with 3 and 6 they get 3 and 6.
        """
        n_forced = [sequence.n_missing - 1 for sequence in decoding]
        fewest = min(n_forced, default=0)
        has_second_pass = sum(n_forced) - fewest * len(n_forced) > len(n_forced)
        return newest_tokens(decoding, self._limits.n_batch, None if has_second_pass else fewest)

    # Copies of cells. An error costs the copy alone: what it would have had is computed.

    def _slot_of_match(self, sequence: Sequence, match: Match) -> int | None:
        """See `KVCache`: the slot of the match, or another one with a copy of it.

        The slot itself is used if it is idle and loses at most as many tokens as it keeps.
        """
        content = self._content(match.slot)
        n_lost = content.n_tokens - match.length
        slot = match.slot
        if content.sequence is None and n_lost <= match.length:
            content.n_exact = match.n_exact
        else:
            self._use(content)
            state = self._state(match.slot)
            slot = self._free_slot()
            if state is None or not self._restore(slot, state):
                return None
            self._contents[slot] = SlotContent(sequence.adapters, n_exact=match.n_exact)
        if n_lost and not self._truncate(slot, sequence, match.length):
            self._contents[slot] = None
            return None
        return slot

    def _close_gaps(self) -> None:
        """Move a running sequence into a gap between the others, once steps with gaps have cost as much as that."""
        active = self.active
        n, slots = len(active), sorted(active)
        if not n or slots[-1] - slots[0] < n:
            self._n_gap_steps = 0
            return
        self._n_gap_steps += 1
        starts = range(self._limits.n_slots - n + 1)
        start = max(starts, key=lambda start: sum(start <= slot < start + n for slot in slots))
        slot = next(slot for slot in slots if not start <= slot < start + n)
        gap = next(slot for slot in range(start, start + n) if slot not in active)
        idle = self._contents[gap]
        n_moved = active[slot].n_computed + (0 if idle is None else idle.n_tokens)
        if active[slot].n_computed and n_moved <= _MOVED_PER_STEP * self._n_gap_steps:
            self._n_gap_steps = 0
            self._exchange(slot, gap)

    def _exchange(self, slot: int, gap: int) -> None:
        """Move a running sequence to a slot that is not active.

        The idle prefix there moves to the slot of the sequence.
        """
        moved, idle = self._content(slot), self._contents[gap]
        state, idle_state = self._state(slot), None if idle is None else self._state(gap)
        if state is None:
            return
        self._clear(gap)
        if not self._restore(gap, state):
            return
        self._clear(slot)
        self._contents[gap] = moved
        assert moved.sequence is not None
        moved.sequence.slot = gap
        if idle_state is not None and self._restore(slot, idle_state):
            self._contents[slot] = idle

    def _state(self, slot: int) -> Any:
        """A copy of the cells of a slot; None if there is not enough memory for it."""
        try:
            return self._backend.state(slot)
        except CopyFailed as error:
            log.warning("cells are not copied: %s", error)
            return None

    def _restore(self, slot: int, state: Any) -> bool:
        """Give a free slot the cells of a copy. False if that failed, and the slot is still free."""
        try:
            self._backend.set_state(slot, state)
        except CopyFailed as error:
            log.warning("cells are not copied: %s", error)
            self._backend.clear(slot)
            return False
        return True


def _prompt_step(prompt: Sequence, pending: Pending, n_rows: int) -> dict[Sequence, int]:
    """What a step of at most about `n_rows` rows computes: rows of a prompt, and of others that can share its pass.

    Those have as many rows, or less than TILE_ROWS if this one has less, too.
    """
    n_tokens = {prompt: step_rows(prompt.n_missing_in_part, n_rows)}
    n_left = n_rows - n_tokens[prompt]
    for sequence in pending.prefilling if prompt.span is None else ():
        n = step_rows(sequence.n_missing_in_part, n_rows)
        can_share = n == n_tokens[prompt] or max(n, n_tokens[prompt]) < TILE_ROWS
        if sequence is not prompt and can_share and n <= n_left:
            n_tokens[sequence] = n
            n_left -= n
    return n_tokens


def step_rows(n_missing: int, n_most: int) -> int:
    """How many of the missing rows of a prompt the next step computes: about `n_most`, and at least TILE_ROWS.

    At least TILE_ROWS are left for the last step, or none.
    """
    if n_missing <= max(n_most, 2 * TILE_ROWS - 1):
        return n_missing
    n_rows = min(n_most, n_missing - TILE_ROWS)
    return max(n_rows - n_rows % TILE_ROWS, TILE_ROWS)


def _n_reused(sequence: Sequence, n_common: int, n_exact: int) -> int:
    """How many tokens a sequence can reuse of a slot with `n_common` of its tokens and `n_exact` exact cells."""
    if sequence.request.sampling.seed is None:
        return sequence.without_cut_span(n_common)
    # Fewer rows than a tile would be added up in another order.
    return _exact_length(sequence, n_common, n_exact, n_recomputed=TILE_ROWS)


def _exact_length(sequence: Sequence, n_common: int, n_exact: int, n_recomputed: int = 0) -> int:
    """How many cells of a slot are exact for a sequence that has `n_common` tokens in common with the slot.

    The first `n_exact` cells are exact for the tokens of the slot. Exact for the sequence are whole images, sounds and
    texts between them, and then whole tiles of the next text, of which at least `n_recomputed` tokens are left.

    For example, a prompt is a text of 40 tokens, an image of 30 cells, and a text of 150 tokens: its `edges` are 0, 40,
    70 and 220. `n_common` and `n_exact` are 200. The parts up to `start`, 70, are whole. Of the text behind it, 130
    tokens are common (`n_in_text`), and two tiles are whole: 70 + 128 cells are exact for the sequence. With an
    `n_recomputed` of 64, `n_in_text` is 86, so there is one tile: 70 + 64 cells.
    """
    n_most = sequence.without_cut_span(min(n_common, n_exact))
    start = _end_of_whole_parts(sequence, n_common, n_most)
    end = min(edge for edge in sequence.edges if edge > start)
    n_in_text = max(min(n_most, end - n_recomputed) - start, 0)
    return start + n_in_text - n_in_text % TILE_ROWS


def _end_of_whole_parts(sequence: Sequence, n_common: int, n_most: int) -> int:
    """Where the last text, image or sound ends that is whole, both here and in the slot, in the first `n_most` tokens.

    A text that ends at the end of the common tokens, before an image of the sequence, is not whole in the slot: of the
    prompts "ab<image>" and "abcd" the text "ab" is common, but the slot computed it together with "cd".
    """
    starts = {span.start for span in sequence.spans}
    edges = (edge for edge in sequence.edges if edge <= n_most and (edge < n_common or edge not in starts))
    return max(edges, default=0)


def _is_exact(chunk: BatchChunk) -> bool:
    """Whether its cells have the values that they have whenever this prompt is computed alone.

    The tokens of the sequence are those that were known when the step was planned.
    """
    sequence = chunk.sequence
    end = min(edge for edge in sequence.edges if edge > sequence.n_computed)
    start = max(edge for edge in sequence.edges if edge <= sequence.n_computed)
    is_of_prompt = sequence.n_computed + chunk.n_tokens <= sequence.n_prompt
    return is_of_prompt and (chunk.n_tokens >= TILE_ROWS or end - start < TILE_ROWS)


# The ways to choose the next prompt; None if there is no image, or no text.


def _image(pending: Pending) -> Sequence | None:
    return pending.media[0] if pending.media else None


def _shortest(pending: Pending) -> Sequence | None:
    return min(pending.prefilling, key=lambda sequence: sequence.n_prompt_uncached, default=None)


def _oldest(pending: Pending) -> Sequence | None:
    return pending.prefilling[0] if pending.prefilling else None
