"""The layout in which all sequences share one buffer of cells: llama.cpp's unified KV cache.

A prefix is shared without a copy. Prompts are computed in the same step as the newest tokens of other sequences, so
these do not wait for a step of their own.

The state of a recurrent model cannot be truncated, so a request continues a copy of a whole idle prefix. For this, a
copy of the state before the last token of each prompt is kept as an idle prefix.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from .batch import Batch, BatchChunk
from .kv_cache import Candidate, KVCache, Match, SlotContent
from .planning import batch_of, drafts_of, newest_tokens, pending_of, prompt_rows
from .protocols import CacheBackend
from .sequence import Sequence
from .values import Adapters

# If slots cannot be truncated, a copy is kept of at least this many prompt tokens, since it takes a step of its own.
_MIN_SAVED = 32
# Prompt rows of a step beside sequences that decode: at least so many, also where they take longer than MAX_WAIT_S.
_MIN_ROWS_BESIDE = 16


class SharedCells(KVCache):
    """The slots of a backend whose slots share all cells."""

    def __init__(self, backend: CacheBackend, clock: Callable[[], float] = time.perf_counter) -> None:
        super().__init__(backend, clock)
        self._had_media = False  # Whether the last step was of an image or a sound.

    def _best_match(self, sequence: Sequence, candidates: list[Candidate]) -> Match | None:
        """The longest cached prefix. Of equally long ones, an idle one without further tokens, then an active one."""

        def rank(candidate: Candidate) -> tuple[int, bool, bool]:
            is_idle_alone = candidate.is_whole and not candidate.is_active
            return sequence.without_cut_span(candidate.n_common), is_idle_alone, candidate.is_active

        best = max(candidates, key=rank, default=None)
        length = 0 if best is None else sequence.without_cut_span(best.n_common)
        if best is None or not length:
            return None
        return Match(best.slot, length, n_shared=length if best.is_active else 0)

    def _n_awaited(self, running: Sequence, sequence: Sequence, n_common: int) -> int:
        if self._limits.can_truncate:
            return sequence.without_cut_span(n_common)
        n_saved = running.n_prompt - 1
        return n_saved if _MIN_SAVED <= n_saved <= n_common else 0

    def advance(self, chunk: BatchChunk, n_kept: int) -> None:
        super().advance(chunk, n_kept)
        sequence = chunk.sequence
        if not self._limits.can_truncate and sequence.n_computed == sequence.n_prompt - 1 >= _MIN_SAVED:
            self._keep_copy(sequence)

    def plan(self, running: list[Sequence], *, others_wait: bool) -> Batch:
        """A step of an image or a sound, or one of text: the newest tokens, and as much of the prompts as fits.

        llama.cpp computes no mixture. The two kinds alternate.
        """
        pending = pending_of(running)
        n_rows = prompt_rows(pending, self._limits, self._pace, others_wait=others_wait)
        if pending.decoding or others_wait:
            # More rows are no faster for each, and the tokens beside them would come later.
            n_rows = max(min(n_rows, self._limits.tuning.n_prompt_beside), _MIN_ROWS_BESIDE)
        has_text = bool(pending.decoding or pending.prefilling)
        takes_media = bool(pending.media) and not (has_text and self._had_media)
        self._had_media = takes_media
        if takes_media:
            oldest = pending.media[0]
            n_missing = oldest.n_missing_in_part
            return batch_of({oldest: n_missing if oldest.is_indivisible else min(n_missing, n_rows)}, {})
        n_tokens = newest_tokens(pending.decoding, self._limits.n_batch)
        n_left = self._limits.n_batch - sum(n_tokens.values())
        n_tokens.update(self._prompt_tokens(pending.prefilling, min(n_rows, n_left)))
        return batch_of(n_tokens, {} if others_wait else drafts_of(pending, self._limits, self._pace))

    def _candidates(self, tokens: list[int], adapters: Adapters) -> list[Candidate]:
        candidates = super()._candidates(tokens, adapters)
        if self._limits.can_truncate:
            return candidates
        return [candidate for candidate in candidates if candidate.is_whole and not candidate.is_active]

    def _slot_of_match(self, sequence: Sequence, match: Match) -> int | None:
        """See `KVCache`: the slot of the match, or a free one that shares its cells.

        The slot itself is used if it is idle and loses few tokens.
        """
        content = self._content(match.slot)
        n_lost = content.n_tokens - match.length
        # The alternative to the loss is the eviction of another prefix.
        is_cheap = not n_lost or (n_lost <= match.length and None not in self._contents)
        if content.sequence is None and is_cheap and self._limits.can_truncate:
            if n_lost and not self._truncate(match.slot, sequence, match.length):
                self._contents[match.slot] = None
                return None
            return match.slot
        self._use(content)
        slot = self._free_slot()
        self._backend.share(match.slot, slot, sequence.position_of(match.length))
        self._contents[slot] = SlotContent(sequence.adapters)
        return slot

    def _keep_copy(self, sequence: Sequence) -> None:
        """Keep the computed tokens of a running sequence as an idle prefix, as slots cannot be truncated later."""
        assert sequence.slot is not None
        tokens = sequence.tokens[: sequence.n_computed]
        candidates = self._candidates(tokens, sequence.adapters)
        if not any(candidate.n_common == len(tokens) for candidate in candidates):
            slot = self._free_slot()
            self._backend.share(sequence.slot, slot, sequence.position_of(len(tokens)))
            self._contents[slot] = content = SlotContent(sequence.adapters, idle_tokens=tokens)
            self._use(content)

    def _prompt_tokens(self, sequences: list[Sequence], n_rows: int) -> dict[Sequence, int]:
        """Divide the prompt rows of a step: half for the shortest prompts, the others in order of arrival.

        So a short prompt behind long ones takes at most about twice its own time, and many short ones do not stop a
        long one.
        """
        n_tokens = dict.fromkeys(sequences, 0)
        shortest_first = sorted(sequences, key=lambda sequence: sequence.n_prompt_uncached)
        for order, n_left in ((shortest_first, n_rows // 2), (sequences, n_rows)):
            n_left -= sum(n_tokens.values())
            for sequence in order:
                n_taken = min(self._n_to_compute(sequence) - n_tokens[sequence], n_left)
                n_tokens[sequence] += n_taken
                n_left -= n_taken
        return {sequence: n for sequence, n in n_tokens.items() if n}

    def _n_to_compute(self, sequence: Sequence) -> int:
        """How many prompt tokens a step may compute: those before the last one, if a copy is to be kept there."""
        n_to_saved = sequence.n_prompt - 1 - sequence.n_computed
        if self._limits.can_truncate or n_to_saved <= 0 or sequence.n_prompt <= _MIN_SAVED:
            return sequence.n_missing_in_part
        return min(n_to_saved, sequence.n_missing_in_part)
