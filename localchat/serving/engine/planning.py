"""What the plans of both layouts of the KV cache have in common: what is pending, and the batch of a step.

The plan of a step has rows of tokens that are pending: the newest token of each sequence that decodes, and tokens of
prompts, whose number is bounded by the time that they take.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from .batch import Batch, BatchChunk, CacheLimits
from .drafts import Prediction
from .pace import MAX_WAIT_S, Pace
from .sequence import Sequence

# With more sequences than this nothing is drafted: their step is long already, and drafts would delay all.
_MAX_DRAFTING = 4


class Pending(NamedTuple):
    """The running sequences by what is to be computed next of them, each list in order of arrival."""

    decoding: list[Sequence]  # Their newest token, perhaps with forced tokens.
    prefilling: list[Sequence]  # Text of their prompt.
    media: list[Sequence]  # Rows of an image or a sound.

    @property
    def has_prompts(self) -> bool:
        return bool(self.prefilling or self.media)


def pending_of(running: list[Sequence]) -> Pending:
    pending = Pending([], [], [])
    for sequence in running:
        if sequence.spans and sequence.span:
            pending.media.append(sequence)
        elif sequence.is_prefilling:
            pending.prefilling.append(sequence)
        else:
            pending.decoding.append(sequence)
    return pending


def prompt_rows(pending: Pending, limits: CacheLimits, pace: Pace, *, others_wait: bool) -> int:
    """How many rows of prompts the next step may have, so that no sequence waits longer than MAX_WAIT_S for them."""
    n_most = min(limits.tuning.n_prompt_alone, limits.n_batch)
    if not pending.decoding and not others_wait:
        return n_most
    return min(pace.n_rows_within(MAX_WAIT_S - pace.waited_s(pending.decoding)), n_most)


def left_out_of_last_step(pending: Pending) -> bool:
    """Whether a sequence that decodes had no token in the last step of the running sequences.

    That step was one of a prompt, or no step has computed the sequence yet. All sequences of a step have the same
    `computed_at`, the time of its end.
    """
    computed_at = [sequence.computed_at for sequences in pending for sequence in sequences]
    return bool(pending.decoding) and min(sequence.computed_at for sequence in pending.decoding) < max(computed_at)


def newest_tokens(decoding: list[Sequence], n_batch: int, max_forced: int | None = None) -> dict[Sequence, int]:
    """A row for the newest token of each sequence, and rows for its forced tokens, as far as the batch allows.

    `max_forced` is the limit of forced tokens of each; None: no limit.
    """
    n_left = n_batch - len(decoding)
    n_tokens: dict[Sequence, int] = {}
    for sequence in decoding:
        n_forced = min(sequence.n_missing - 1, n_left)
        if max_forced is not None:
            n_forced = min(n_forced, max_forced)
        n_tokens[sequence] = 1 + n_forced
        n_left -= n_forced
    return n_tokens


def drafts_of(
    pending: Pending, limits: CacheLimits, pace: Pace, *, of_one_length: bool = False
) -> dict[Sequence, tuple[int, ...]]:
    """The drafts of the sequences that decode, as long as they pay.

    There are none if many sequences decode, or beside prompts, which they would delay.
    """
    has_forced = any(sequence.n_missing > 1 for sequence in pending.decoding)
    if not 1 <= len(pending.decoding) <= _MAX_DRAFTING or pending.has_prompts or has_forced:
        return {}
    n_each = limits.max_drafted // len(pending.decoding)
    if not n_each:
        return {}
    predicted = {}
    for sequence in pending.decoding:
        # One token is sampled after the last one of the draft.
        n_left = sequence.max_length - len(sequence.tokens) - 1
        predicted[sequence] = sequence.drafter.predict(sequence.tokens, min(n_each, n_left))
    if of_one_length:
        shortest = min(map(len, predicted.values()))
        predicted = {sequence: tokens[:shortest] for sequence, tokens in predicted.items()}
    n_paying = pace.draft_length(
        [Prediction(len(tokens), sequence.drafter.acceptance) for sequence, tokens in predicted.items()]
    )
    return {sequence: tokens[:n_paying] for sequence, tokens in predicted.items()}


def batch_of(n_tokens: Mapping[Sequence, int], drafts: Mapping[Sequence, tuple[int, ...]]) -> Batch:
    """A batch with so many known tokens of each sequence and its draft, in the order of their slots."""
    chunks: list[BatchChunk] = []
    first = 0
    for sequence in sorted(n_tokens, key=lambda sequence: sequence.slot or 0):
        draft = drafts.get(sequence, ())
        n_known = n_tokens[sequence]
        chunk = BatchChunk(sequence, first, n_known + len(draft), n_known == sequence.n_missing, draft)
        chunks.append(chunk)
        first += chunk.n_tokens
    return Batch(tuple(chunks))
