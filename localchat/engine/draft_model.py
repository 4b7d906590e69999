"""Drafts by a draft model: a smaller model of the same vocabulary.

Knows the `Backend` protocol. The draft model computes each text in a slot of its own KV cache, with a limit of prompt
tokens per step. A text that has ended stays in its slot for the next turn of its conversation, until another text needs
the slot.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ..protocol.params import SamplingParams
from .backend import Backend, DecodeFailed, NoFreeCells
from .batch import Batch, BatchChunk, Sequence
from .drafting import DraftLength
from .prefix import n_common_of
from .step_cost import StepCost, StepSize
from .values import GenerationRequest

log = logging.getLogger("localchat.engine")

# Seconds per step for prefill by the draft model: all sequences wait for it.
_PREFILL_S = 0.05


@dataclass
class _Text:
    """A text in a slot of the draft model."""

    own: Sequence
    """The tokens in the slot: the text and its draft."""
    length: DraftLength = field(default_factory=DraftLength)
    draft: list[int] = field(default_factory=list)


class DraftModel:
    """A drafter on a backend of its own, whose KV cache can be truncated. `n_vocab` is the large model's.

    A sequence that has no slot or no cells there gets no drafts. `clock` gives seconds.
    """

    def __init__(self, backend: Backend, n_vocab: int, clock: Callable[[], float] = time.perf_counter):
        self._backend = backend
        self._clock = clock
        self._cost = StepCost()
        self._n_vocab = n_vocab
        self._greedy = backend.new_sampler(GenerationRequest((0,), sampling=SamplingParams(temperature=0)))
        self._texts: dict[int, _Text] = {}
        # Of texts that ended, the least recent first; and slots that never held one.
        self._ended: list[Sequence] = []
        self._free_slots = list(range(backend.limits.n_parallel))
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
            self._ended.append(text.own)

    def close(self) -> None:
        self._backend.free_sampler(self._greedy)
        self._backend.close()

    def _text(self, sequence: Sequence) -> _Text | None:
        """The text of this sequence in the draft model; None if there is no slot for it."""
        if sequence.id in self._without_cells:
            return None
        if sequence.id not in self._texts:
            own = self._slot_for(sequence)
            if own is None:
                return None
            self._texts[sequence.id] = _Text(own)
        return self._texts[sequence.id]

    def _slot_for(self, sequence: Sequence) -> Sequence | None:
        """The ended text that is most like this one, if they have more than a little in common; else a free slot."""

        def n_common(ended: Sequence) -> int:
            return n_common_of(ended.tokens[: ended.n_computed], sequence.tokens, 0)

        best = max(self._ended, key=n_common, default=None)
        if best is None or (self._free_slots and n_common(best) == 0):
            if not self._free_slots:
                return None
            best = Sequence(sequence.id, [], 0)
            best.slot = self._free_slots.pop()
            return best
        self._ended.remove(best)
        return best

    def _follow(self, text: _Text, tokens: list[int]) -> None:
        """Truncates the slot to what the text and its draft have in common, and sets the new tokens."""
        own = text.own
        # The newest token is computed again if need be: its logits give the first draft token.
        n_kept = min(n_common_of(own.tokens[: own.n_computed], tokens, 0), len(tokens) - 1)
        if n_kept < own.n_computed:
            assert own.slot is not None
            self._backend.truncate(own.slot, n_kept)
        own.n_computed = n_kept
        own.tokens, text.draft = list(tokens), []

    def _draft(self, wanted: list[tuple[_Text, int]]) -> None:
        """Computes the new tokens of the texts, then drafts token by token."""
        n_most = min(self._cost.prompt_tokens_within(_PREFILL_S, StepSize()), self._backend.limits.n_batch)
        while wanted:
            batch = _batch([text.own for text, _ in wanted], n_most)
            self._decode(batch)
            by_sequence = {id(text.own): (text, n) for text, n in wanted}
            wanted = []
            for chunk in batch.outputs():
                text, n = by_sequence[id(chunk.sequence)]
                token = self._backend.sample(self._greedy, chunk.output_rows[0])
                if token >= self._n_vocab:
                    continue
                text.draft.append(token)
                text.own.tokens.append(token)
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
        for own in ended:
            assert own.slot is not None
            self._backend.clear(own.slot)
            self._free_slots.append(own.slot)
        ended.clear()


def _batch(sequences: list[Sequence], n_most: int) -> Batch:
    """The missing tokens of all sequences, as far as they fit: the shortest first, which then give a token."""
    chunks: list[BatchChunk] = []
    first = 0
    for own in sorted(sequences, key=lambda own: own.n_missing):
        n_tokens = min(own.n_missing, n_most - first)
        if n_tokens:
            assert own.slot is not None
            chunks.append(BatchChunk(own, own.slot, first, n_tokens, n_tokens == own.n_missing))
            first += n_tokens
    return Batch(chunks=tuple(chunks))
