"""The batch of a step, and the limits of a context. Does not know llama.cpp, threads or the scheduler."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import takewhile

from .sequence import Sequence
from .tuning import CPU, Tuning
from .values import Adapters

# The rows of a sequence from which on llama.cpp computes attention in tiles, which adds up in another order than for
# fewer rows; see docs/design.md, "Streams: the rows of a pass".
TILE_ROWS = 64


@dataclass(frozen=True)
class BatchChunk:
    """The tokens of one running sequence in a batch, or rows of one span: rows `first` to `first + n_tokens`."""

    sequence: Sequence
    first: int
    n_tokens: int
    wants_output: bool  # Whether the chunk ends with the newest token and its draft, whose logits give the next tokens.
    draft: tuple[int, ...] = ()  # The draft tokens, in the last rows.

    @property
    def slot(self) -> int:
        assert self.sequence.slot is not None
        return self.sequence.slot

    @property
    def output_rows(self) -> range:
        """The rows with logits."""
        end = self.first + self.n_tokens
        return range(end - 1 - len(self.draft), end) if self.wants_output else range(0)

    def n_accepted(self, sampled: list[int]) -> int:
        """How many draft tokens are accepted: the first ones that are equal to the sampled tokens.

        The last sampled token does not count. It becomes the newest token, which is not computed yet.
        """
        pairs = zip(self.draft, sampled[:-1])
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

    def tokens(self) -> list[int]:
        start = self.sequence.n_computed
        return self.sequence.tokens[start : start + self.n_tokens - len(self.draft)] + list(self.draft)


@dataclass(frozen=True)
class Batch:
    """What one step computes."""

    chunks: tuple[BatchChunk, ...] = ()

    @property
    def n_tokens(self) -> int:
        return sum(chunk.n_tokens for chunk in self.chunks)

    @property
    def adapters(self) -> Adapters:
        """The adapters of all its sequences: a step has one set."""
        return self.chunks[0].sequence.adapters

    def outputs(self) -> Iterator[BatchChunk]:
        return (chunk for chunk in self.chunks if chunk.wants_output)

    def without_drafts(self) -> Batch:
        chunks, first = [], 0
        for chunk in self.chunks:
            n_tokens = chunk.n_tokens - len(chunk.draft)
            chunks.append(replace(chunk, first=first, n_tokens=n_tokens, draft=()))
            first += n_tokens
        return Batch(tuple(chunks))


@dataclass(frozen=True)
class CacheLimits:
    """The capacity of a context, and the operations that its KV cache supports."""

    n_cells: int  # Cells of all slots together.
    n_parallel: int  # The limit of running sequences.
    # For running sequences and idle prefixes; more than `n_parallel`. Each is one or two sequence ids of llama.cpp.
    n_slots: int
    n_batch: int  # The limit of tokens in a step.
    # Whether a slot can be truncated. If not (recurrent models), only whole idle prefixes can be reused, nothing is
    # drafted, and a step ends before the last token of a prompt, so that a copy can be kept there.
    can_truncate: bool = True
    max_drafted: int = 0  # The limit of draft tokens in a step; 0 for no speculative decoding.
    # Whether all slots share the cells. If not, each slot has as many cells as a request may use, a prefix is copied
    # instead of shared, and the logits of a sequence must not depend on the other running sequences.
    is_unified: bool = True
    tuning: Tuning = CPU  # The sizes of steps on this device.
