"""Drafts by a draft model: a smaller model of the same vocabulary, on a backend of its own.

The draft model computes each text in a slot of its KV cache, with a limit of prompt tokens per step. A text that has
ended stays in its slot for the next turn of its conversation, until another text needs the slot.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ..core.params import SamplingParams
from .backend import Backend, DecodeFailed, NoFreeCells
from .batch import Batch, BatchChunk, Sequence
from .drafting import DraftLength
from .prefix import n_common_of
from .step_cost import StepCost, StepSize
from .values import GenerationRequest

log = logging.getLogger("localchat.engine")

# The time limit for prefill by the draft model in a step. All sequences wait for it.
_PREFILL_S = 0.05


@dataclass
class _Text:
    """The text of a sequence in the draft model."""

    copy: Sequence
    """The sequence of the draft model, with a slot of it. Its tokens are the text and the draft."""
    length: DraftLength = field(default_factory=DraftLength)
    draft: list[int] = field(default_factory=list)


class DraftModel:
    """Drafts with a model whose KV cache can be truncated.

    Nothing is drafted for a sequence for which the draft model has no slot or no cells.
    """

    def __init__(self, backend: Backend, n_vocab: int, clock: Callable[[], float] = time.perf_counter):
        """`n_vocab` is the size of the large model's vocabulary. `clock` returns seconds."""
        self._backend = backend
        self._clock = clock
        self._cost = StepCost()
        self._n_vocab = n_vocab
        self._greedy = backend.new_sampler(GenerationRequest((0,), sampling=SamplingParams(temperature=0)))
        # By sequence id.
        self._texts: dict[int, _Text] = {}
        # Texts that have ended and still have their slots, the least recent first.
        self._ended: list[Sequence] = []
        self._free_slots = list(range(backend.limits.n_parallel))
        # The ids of sequences for which nothing is drafted any more, since there were no free cells.
        self._without_cells: set[int] = set()

    def draft(self, sequences: list[Sequence], n_tokens: int, cost: float) -> None:
        wanted = []
        for sequence in sequences:
            text = self._text(sequence)
            if text is None:
                continue
            n = min(n_tokens, text.length.at(len(sequence.tokens), cost))
            if n and len(sequence.tokens) + n <= self._backend.facts.n_ctx:
                self._follow(text, sequence.tokens)
                wanted.append((sequence, text, n))
        try:
            self._draft([(text, n) for _, text, n in wanted])
        except (NoFreeCells, DecodeFailed) as error:
            log.info("the draft model could not draft: %s", error or "its KV cache is full")
            self._give_up([sequence for sequence, _, _ in wanted])
            return
        for sequence, text, _ in wanted:
            sequence.draft = text.draft

    def note(self, sequence: Sequence, n_drafted: int, n_accepted: int, cost: float) -> None:
        text = self._texts.get(sequence.id)
        if text is not None:
            text.length.note(len(sequence.tokens), n_drafted, n_accepted, cost)

    def forget(self, sequence: Sequence) -> None:
        self._without_cells.discard(sequence.id)
        text = self._texts.pop(sequence.id, None)
        if text is not None:
            self._ended.append(text.copy)

    def close(self) -> None:
        self._backend.free_sampler(self._greedy)
        self._backend.close()

    def _text(self, sequence: Sequence) -> _Text | None:
        """The text of this sequence in the draft model; None if there is no slot for it."""
        if sequence.id in self._without_cells:
            return None
        if sequence.id not in self._texts:
            copy = self._new_copy(sequence)
            if copy is None:
                return None
            self._texts[sequence.id] = _Text(copy)
        return self._texts[sequence.id]

    def _new_copy(self, sequence: Sequence) -> Sequence | None:
        """A sequence of the draft model for a text: that of the ended text with the longest common prefix, or a new one
        in a free slot if no ended text has a common prefix. None if there is neither."""

        def n_common(ended: Sequence) -> int:
            return n_common_of(ended.tokens[: ended.n_computed], sequence.tokens)

        best = max(self._ended, key=n_common, default=None)
        if best is not None and (n_common(best) or not self._free_slots):
            self._ended.remove(best)
            return best
        if not self._free_slots:
            return None
        new = Sequence(sequence.id, [], 0)
        new.slot = self._free_slots.pop()
        return new

    def _follow(self, text: _Text, tokens: list[int]) -> None:
        """Truncates the slot to its common prefix with `tokens`, and sets these tokens."""
        copy = text.copy
        # At least the newest token is computed, since its logits give the first draft token.
        n_kept = min(n_common_of(copy.tokens[: copy.n_computed], tokens), len(tokens) - 1)
        if n_kept < copy.n_computed:
            assert copy.slot is not None
            self._backend.truncate(copy.slot, n_kept)
        copy.n_computed = n_kept
        copy.tokens, text.draft = list(tokens), []

    def _draft(self, wanted: list[tuple[_Text, int]]) -> None:
        """Computes the new tokens of the texts, then drafts the wanted number of tokens, one for each text in a step.

        A text whose new tokens do not fit into the first step gets no draft.
        """
        n_most = min(self._cost.prompt_tokens_within(_PREFILL_S, StepSize()), self._backend.limits.n_batch)
        while wanted:
            batch = _batch([text.copy for text, _ in wanted], n_most)
            self._decode(batch)
            by_copy = {text.copy: (text, n) for text, n in wanted}
            wanted = []
            for chunk in batch.outputs():
                text, n = by_copy[chunk.sequence]
                token = self._backend.sample(self._greedy, chunk.output_rows[0])
                if token >= self._n_vocab:
                    continue
                text.draft.append(token)
                text.copy.tokens.append(token)
                if len(text.draft) < n and not self._backend.is_end(token):
                    wanted.append((text, n))

    def _decode(self, batch: Batch) -> None:
        size, started_at = batch.size, self._clock()
        try:
            self._backend.decode(batch)
        except NoFreeCells:
            if not self._ended:
                raise
            self._clear(self._ended)
            self._backend.decode(batch)
        self._cost.note(size, self._clock() - started_at)
        for chunk in batch.chunks:
            chunk.sequence.n_computed += chunk.n_tokens

    def _give_up(self, sequences: list[Sequence]) -> None:
        for sequence in sequences:
            self.forget(sequence)
            self._without_cells.add(sequence.id)
        self._clear(self._ended)

    def _clear(self, ended: list[Sequence]) -> None:
        for copy in ended:
            assert copy.slot is not None
            self._backend.clear(copy.slot)
            self._free_slots.append(copy.slot)
        ended.clear()


def _batch(copies: list[Sequence], n_most: int) -> Batch:
    """The missing tokens of all sequences, up to `n_most`: those with the fewest first, so that they give a token."""
    chunks: list[BatchChunk] = []
    first = 0
    for copy in sorted(copies, key=lambda copy: copy.n_missing):
        n_tokens = min(copy.n_missing, n_most - first)
        if n_tokens:
            assert copy.slot is not None
            chunks.append(BatchChunk(copy, copy.slot, first, n_tokens, n_tokens == copy.n_missing))
            first += n_tokens
    return Batch(chunks=tuple(chunks))
