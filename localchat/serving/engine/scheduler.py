"""The scheduler: which sequences run, and which of their tokens the next step computes.

There are no prefill and decode phases: each step computes some of the known tokens of a sequence that are not computed
yet. A step is `schedule()`, then decoding the batch elsewhere, then `update()` or `refuse()`. Draft tokens are computed
after the newest token as if they were known; rejected ones are then removed from the KV cache. The scheduler does not
know llama.cpp, threads, clocks or text.

A step has one set of adapters. While several sets run, they take turns, in the order in which they wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from .batch import MIN_SAVED, TILE_ROWS, Batch, BatchChunk, CacheLimits, Sequence
from .drafts import draft_of
from .kv_cache import KVCache, Match
from .values import Adapters

# A sequence waits for another one to compute their common prefix only if this prefix has more tokens. With a chat
# template, all prompts have a short prefix in common.
_MIN_AWAITED = 16
# With more running sequences than this nothing is drafted: their step is long already, and drafts would delay all.
_MAX_DRAFTING = 4
# A set of adapters keeps its turn for so many steps while others wait, since a change takes a tenth of a step of 0.4B
# parameters, half a step of 5M. So many rows of prompts count as a further step, as which they take as long on a CPU.
_TURN_STEPS, _ROWS_PER_STEP = 8, 8


class Scheduler:
    """Sequences in order of arrival. A waiting sequence starts if its known tokens fit into the cells beside those of
    the running ones. If their outputs fill the cells later, the newest sequence is preempted, and none starts until
    another one has ended."""

    def __init__(
        self, limits: CacheLimits, cache: KVCache, encode: Callable[[Iterable[Any]], None] = lambda media: None
    ):
        """`encode` is called with the images and sounds that a waiting sequence needs before it can start."""
        self._limits = limits
        self._cache = cache
        self._encode = encode
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []
        # Whether a sequence was preempted for lack of cells, and none has ended since.
        self._is_full = False
        # Images and sounds share no step with tokens, nor does a chunk of a long prompt if sequences have their own
        # cells: how many steps each set of adapters had since its last such step, whether the next one is of an image
        # or sound, and whether the next chunk is of the shortest of the long prompts or of the oldest.
        self._n_since_apart: dict[Adapters, int] = {}
        self._is_media_next = False
        self._is_shortest_next = True
        # The sets of adapters of running sequences: first the one whose turn it is, then the others as long as they
        # wait; and how many steps are left of the turn.
        self._sets: list[Adapters] = []
        self._n_turn_left = 0

    def add(self, *sequences: Sequence) -> None:
        """Queues sequences, each with a prompt and at most as many tokens as there are cells."""
        self.waiting.extend(sequences)

    def remove(self, sequence: Sequence, *, keep: bool = True) -> None:
        """Ends a sequence, running or waiting. With `keep` its tokens stay as an idle prefix."""
        if sequence.slot is None:
            self.waiting.remove(sequence)
        else:
            self._is_full = False
            self.running.remove(sequence)
            self._cache.release(sequence, keep=keep)

    def schedule(self) -> Batch:
        """Plans the next step: the newest token of every running sequence, then as much of the prompts as fits. Drafts
        are computed only in a step without prompts."""
        self._admit()
        self._cache.close_gaps()
        batch = Batch(tuple(self._chunks(self._in_turn())))
        self._n_turn_left -= 1 + (batch.n_tokens - len(batch.chunks)) // _ROWS_PER_STEP
        return batch

    def update(self, batch: Batch, sampled: list[list[int]]) -> None:
        """Updates the sequences and the KV cache after a decoded batch. `sampled` has the tokens for each of
        `batch.outputs()`."""
        runs = iter(sampled)
        for chunk in batch.chunks:
            run = next(runs) if chunk.wants_output else []
            n_kept = chunk.n_tokens - len(chunk.draft) + chunk.n_accepted(run)
            sequence = chunk.sequence
            sequence.n_computed += n_kept
            sequence.tokens.extend(run)
            if n_kept < chunk.n_tokens:
                self._cache.truncate(sequence)
            # For later requests that begin with this prompt.
            if not self._limits.can_truncate and sequence.n_computed == sequence.n_prompt - 1 >= MIN_SAVED:
                self._cache.keep_copy(sequence)

    def refuse(self) -> Sequence | None:
        """Preempts the newest sequence, for a batch that lacks cells although no idle prefix is left. If only one
        sequence runs, it cannot be computed: returns it."""
        newest = self.running[-1]
        if len(self.running) == 1:
            return newest
        self.running.remove(newest)
        self._cache.release(newest, keep=True)
        self.waiting = sorted([*self.waiting, newest], key=lambda one: one.id)
        self._is_full = True
        return None

    def _admit(self) -> None:
        """Starts waiting sequences in order while they fit, except those whose prefix is being computed, or whose
        media are encoded."""
        n_encoding = 0
        for sequence in list(self.waiting):
            if len(self.running) == self._limits.n_parallel or (self._is_full and self.running):
                return
            match = self._cache.find(sequence)
            if self._is_being_computed(sequence, match):
                continue
            missing = sequence.missing_media(match.length if match else 0) if sequence.spans else ()
            if missing:
                if n_encoding < self._limits.n_parallel:  # Each keeps what is encoded for it.
                    self._encode(missing)
                n_encoding += 1
                continue
            n_shared = match.length if match is not None and match.slot in self._cache.active else 0
            # Each needs a cell for its next token, too, or one of them would be preempted in the next step.
            n_cells = sum(len(other.tokens) - other.n_shared + 1 for other in self.running)
            if self.running and n_cells + len(sequence.tokens) - n_shared + 1 > self._limits.n_cells:
                return
            self.waiting.remove(sequence)
            self._cache.acquire(sequence, match)
            self.running = sorted([*self.running, sequence], key=lambda one: one.id)
            sequence.n_shared = n_shared
            if sequence.n_cached is None:
                sequence.n_cached = sequence.n_computed

    def _is_being_computed(self, sequence: Sequence, match: Match | None) -> bool:
        """Whether an older sequence is computing a prefix of this one that is longer than what can be reused now."""
        n_known = 0 if match is None else match.length
        return any(
            other.n_missing > 1
            and other.id < sequence.id
            and self._cache.n_to_share(other, sequence) > max(n_known, other.n_computed, _MIN_AWAITED)
            for other in self.running
        )

    def _in_turn(self) -> list[Sequence]:
        """The running sequences of the set of adapters whose turn it is."""
        present = list(dict.fromkeys(sequence.adapters for sequence in self.running))
        first, others = self._sets[:1], [*self._sets[1:], *(one for one in present if one not in self._sets)]
        order = [*others, *first] if self._n_turn_left <= 0 else [*first, *others]
        self._sets = [one for one in order if one in present]
        if self._sets[:1] != first or self._n_turn_left <= 0:
            self._n_turn_left = _TURN_STEPS
        return [sequence for sequence in self.running if sequence.adapters == self._sets[0]]

    def _chunks(self, running: list[Sequence]) -> Iterator[BatchChunk]:
        """The newest token of each of the running sequences, with its draft, and the chunks of the prompts."""
        shares = self._plan(running)
        drafts = self._drafts(list(shares))
        first = 0
        for sequence, n_tokens in shares.items():
            draft = drafts.get(sequence, ())
            n_rows, wants_output = n_tokens + len(draft), n_tokens == sequence.n_missing
            yield BatchChunk(sequence, first, n_rows, wants_output, draft)
            first += n_rows

    def _drafts(self, sequences: list[Sequence]) -> dict[Sequence, tuple[int, ...]]:
        """The drafts of the sequences in a step: none if many run, with several sets of adapters, or beside prompts."""
        n_each = self._limits.max_drafted // len(sequences) if sequences else 0
        is_too_much = len(self.running) > _MAX_DRAFTING or len(self._sets) > 1
        if not n_each or is_too_much or any(sequence.n_missing > 1 for sequence in self.running):
            return {}
        # One token is sampled after the last one of the draft.
        drafts = {one: draft_of(one, min(n_each, one.max_length - len(one.tokens) - 1)) for one in sequences}
        # If sequences have their own cells, they are computed in one pass only with equal numbers of rows.
        n_most = n_each if self._limits.is_unified else min(map(len, drafts.values()))
        return {sequence: draft[:n_most] for sequence, draft in drafts.items()}

    def _plan(self, running: list[Sequence]) -> dict[Sequence, int]:
        """Those of the running sequences that are in this step, in order, and how many tokens of each are computed."""
        tuning = self._limits.tuning
        media = [sequence for sequence in running if sequence.spans and sequence.span]
        prefilling = [sequence for sequence in running if sequence.is_prefilling and sequence not in media]
        # A row for the newest token of each other sequence, and rows for forced tokens.
        decoding = {sequence: 1 for sequence in running if not (sequence.is_prefilling or sequence in media)}
        n_left = self._limits.n_batch - len(decoding)
        n_forced_each = self._n_forced_each([sequence.n_missing - 1 for sequence in decoding])
        for sequence in decoding:
            n_forced = min(sequence.n_missing - 1, n_left, n_forced_each)
            decoding[sequence] += n_forced
            n_left -= n_forced
        is_beside = bool(decoding) or len(self._sets) > 1
        n_prompt = min(tuning.n_prompt_beside if is_beside else tuning.n_prompt_alone, self._limits.n_batch)
        long = [s for s in prefilling if s.n_missing_in_part >= TILE_ROWS and not self._limits.is_unified]
        rest = [sequence for sequence in prefilling if sequence not in long]
        # Running sequences never wait for two steps with many rows: the step after one apart has only their tokens.
        counts = {one: n for one, n in self._n_since_apart.items() if one in self._sets}
        own = self._sets[0] if running else ()
        n_since = counts.get(own, 0)
        self._n_since_apart = {**counts, own: n_since + 1}
        if (media or long) and (n_since > bool(decoding and rest) or not (decoding or rest)):
            self._n_since_apart[own] = 0
            if media and (self._is_media_next or not long):
                self._is_media_next = False
                return {media[0]: self._n_of_span(media[0], n_prompt)}
            self._is_media_next = True
            # Alternate between the shortest prompt and the oldest one.
            chosen = min(long, key=_length_of_prompt) if self._is_shortest_next else long[0]
            self._is_shortest_next = not self._is_shortest_next
            n_tokens = min(chosen.n_missing_in_part, n_prompt)
            return {chosen: n_tokens - n_tokens % TILE_ROWS}
        ready = rest if n_since or not decoding else []
        shares = {**decoding, **self._prompt_shares(ready, min(n_left, n_prompt))}
        return dict(sorted(shares.items(), key=lambda share: share[0].slot or 0))

    def _n_of_span(self, sequence: Sequence, n_prompt: int) -> int:
        """How many rows of the span of the next token a step computes: all, unless they may be computed in parts."""
        span = sequence.span
        assert span is not None
        n_missing = span.end - sequence.n_computed
        if not span.chunk.is_causal:
            return n_missing
        n_rows = min(n_missing, n_prompt)
        return n_rows - n_rows % TILE_ROWS if n_rows > TILE_ROWS and not self._limits.is_unified else n_rows

    def _n_forced_each(self, n_forced: list[int]) -> int:
        """How many forced tokens of each sequence a step computes, by the numbers that wait. If sequences have their
        own cells, tokens that not all of them have take another pass, for which all wait: it must be worth it."""
        fewest = min(n_forced, default=0)
        is_worth_a_pass = self._limits.is_unified or sum(n_forced) - fewest * len(n_forced) > len(n_forced)
        return max(n_forced, default=0) if is_worth_a_pass else fewest

    def _prompt_shares(self, sequences: list[Sequence], n_tokens: int) -> dict[Sequence, int]:
        """Divides the prompt tokens of a step: half for the shortest prompts, the rest in order of arrival. So a short
        prompt behind long ones takes at most about twice its own time, and many short ones do not stop a long one."""
        shares = dict.fromkeys(sequences, 0)
        shortest_first = sorted(sequences, key=_length_of_prompt)
        for order, n_left in ((shortest_first, n_tokens // 2), (sequences, n_tokens)):
            n_left -= sum(shares.values())
            for sequence in order:
                n_more = min(self._n_to_compute(sequence) - shares[sequence], n_left)
                shares[sequence] += n_more
                n_left -= n_more
        return {sequence: n_share for sequence, n_share in shares.items() if n_share}

    def _n_to_compute(self, sequence: Sequence) -> int:
        """How many prompt tokens a step may compute: those before the last one, if a copy is to be kept there."""
        n_to_checkpoint = sequence.n_prompt - 1 - sequence.n_computed
        if self._limits.can_truncate or n_to_checkpoint <= 0 or sequence.n_prompt <= MIN_SAVED:
            return sequence.n_missing_in_part
        return min(n_to_checkpoint, sequence.n_missing_in_part)


def _length_of_prompt(sequence: Sequence) -> int:
    """The number of prompt tokens that were not cached."""
    return sequence.n_prompt - (sequence.n_cached or 0)
