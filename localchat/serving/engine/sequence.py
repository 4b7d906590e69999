"""A sequence: the state of one output that is generated, with its tokens and the places of images in its prompt.

Does not know llama.cpp, threads or the scheduler.
"""

from __future__ import annotations

import time
from array import array
from collections import abc
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..core.events import PromptProgress
from .drafts import Drafter
from .values import SequenceRequest, SequenceStats, StepOutput, TokenTexts

# The limit of forced tokens in a step. A constraint forces a token if it allows no other after the sampled ones.
MAX_FORCED = 32


class SectionPositions(NamedTuple):
    """The positions of the cells of an image with M-RoPE.

    Each cell has four, for four sections of its vector: time, row, column, and a reserved one. Both arrays have those
    of all cells, section after section.
    """

    at_start: array[int]  # If the image begins at position 0.
    growth: array[int]  # How much each grows with the position at which the image begins: 1 or 0 times.


@dataclass(eq=False)
class MediaChunk:
    """The cells of an image or a sound, or of a part of one: what is encoded at a time."""

    n_cells: int
    n_positions: int  # How many positions they take: fewer for images of models with M-RoPE.
    is_causal: bool = True  # Whether its cells attend only to earlier ones. If not, one pass computes all of them.
    positions: SectionPositions | None = None  # None: each cell has one position, and these are consecutive.
    placeholder: int = 0  # Stands for each of its cells in lists of tokens. It is negative, and made of the content.
    medium: Any = None  # The image or sound (media/encoder.py).
    # What the text model computes in place of the vectors of tokens; None: it is not encoded yet. The thread that
    # encodes sets it once, and the engine thread reads it.
    rows: Any = None


class Span(NamedTuple):
    """A chunk of media in a sequence, from the token `start` to `end`, from the position `position` on."""

    start: int
    end: int
    position: int
    chunk: MediaChunk


def spans_of(tokens: list[int], chunks: abc.Sequence[MediaChunk]) -> list[Span]:
    """The spans of the chunks of a prompt, in order."""
    spans: list[Span] = []
    # `n_saved` is how many cells more than positions the spans have so far.
    end, n_saved = 0, 0
    for chunk in chunks:
        start = tokens.index(chunk.placeholder, end)
        end = start + chunk.n_cells
        spans.append(Span(start, end, start - n_saved, chunk))
        n_saved += chunk.n_cells - chunk.n_positions
    return spans


class Sequence:
    """One sequence: its tokens, how many of them are computed, and its request. Only the engine thread changes it."""

    def __init__(
        self,
        id: int,
        prompt: list[int],
        max_length: int,
        request: SequenceRequest | None = None,
        *,
        chunks: abc.Sequence[MediaChunk] = (),
        sampler: Any = None,
        index: int = 0,
        deliver: abc.Callable[[StepOutput], None] = lambda output: None,
    ):
        self.id = id  # Ids grow in order of arrival.
        self.tokens = prompt  # The known tokens: the prompt, then the sampled ones.
        self.spans = spans_of(prompt, chunks)  # The images and sounds in the prompt.
        self.max_length = max_length  # The limit of prompt and output together.
        self.n_prompt = len(prompt)
        self.slot: int | None = None  # None while the sequence waits.
        self.n_computed = 0  # How many of the first tokens have cells in `slot`.
        # How many of the first tokens shared the cells of another running sequence when this one started.
        self.n_shared = 0
        self.n_cached: int | None = None  # Prompt tokens that were cached when it first ran; None before that.
        self.drafter = Drafter()
        self.request = request or SequenceRequest(())
        self.adapters = self.request.adapters
        self.sampler = sampler
        self.index = index  # Which sequence of its request this is.
        self._deliver = deliver  # Gets each StepOutput.
        # Whether its first progress was delivered, with which its prefill begins for the server. It stays so if the
        # sequence is preempted.
        self.has_reported_start = False
        self.submitted_at = time.perf_counter()
        # When the last step ended that computed tokens of it, by the clock of the KV cache. 0 before the first one: the
        # sequence then counts as one that has waited longest.
        self.computed_at = 0.0
        self.first_at: float | None = None  # When the first token was sampled, by `time.perf_counter`.
        self._has_newline = False  # The time limit ends an output only after a newline.

    @property
    def reuses_prefixes(self) -> bool:
        """Whether the request allows that cached prefixes are reused."""
        return self.request.params.cache_prompt

    @property
    def reusable_tokens(self) -> list[int]:
        """All tokens but the last one, which is always computed, since its logits are needed."""
        return self.tokens[:-1]

    @property
    def n_missing(self) -> int:
        """The number of known tokens that are not computed: 1 while each step samples a token."""
        return len(self.tokens) - self.n_computed

    @property
    def is_prefilling(self) -> bool:
        """Whether more is missing than the newest token and forced ones.

        This is a part of the prompt, or of the tokens of a preempted sequence. One of these that lacks at most
        MAX_FORCED tokens beside the newest counts as decoding, with these as forced tokens.
        """
        return self.n_missing > 1 and (self.n_computed < self.n_prompt or self.n_missing > 1 + MAX_FORCED)

    @property
    def n_sampled(self) -> int:
        return len(self.tokens) - self.n_prompt

    @property
    def span(self) -> Span | None:
        """The span of the next token; None: it is text."""
        return next((span for span in self.spans if span.start <= self.n_computed < span.end), None)

    @property
    def is_indivisible(self) -> bool:
        """Whether the next token is of an image that one step must compute as a whole."""
        span = self.span
        return span is not None and not span.chunk.is_causal

    @property
    def edges(self) -> list[int]:
        """The indexes at which texts, images and sounds begin or end, in order."""
        edges = {edge for span in self.spans for edge in (span.start, span.end)}
        return sorted({0, *edges, len(self.tokens)})

    @property
    def n_missing_in_part(self) -> int:
        """The number of known tokens that are not computed, up to the next start or end of a span."""
        edges = (edge for span in self.spans for edge in (span.start, span.end) if edge > self.n_computed)
        return min(edges, default=len(self.tokens)) - self.n_computed

    @property
    def n_prompt_uncached(self) -> int:
        """The number of prompt tokens that were not cached when it first ran."""
        return self.n_prompt - (self.n_cached or 0)

    def missing_media(self, n_tokens: int) -> list[Any]:
        """The images and sounds behind the first tokens that are not encoded."""
        return [span.chunk.medium for span in self.spans if span.end > n_tokens and span.chunk.rows is None]

    def position_of(self, n_tokens: int) -> int:
        """The position in the context of the token at an index.

        For example, a text of 3 tokens has the positions 0 to 2. With M-RoPE an image of 4 cells may take 2 positions:
        the text after it begins at position 5. Its cells, whose positions are `SectionPositions`, have 3, 4, 5 and 5
        here.
        """
        position = n_tokens
        for span in self.spans:
            if span.end <= n_tokens:
                position = n_tokens - span.end + span.position + span.chunk.n_positions
            elif span.start <= n_tokens:
                position = span.position + min(n_tokens - span.start, span.chunk.n_positions)
        return position

    def without_cut_span(self, n_tokens: int) -> int:
        """The length of a prefix of `n_tokens` without the span within which it ends, if it ends within one."""
        return next((span.start for span in self.spans if span.start < n_tokens < span.end), n_tokens)

    @property
    def stats(self) -> SequenceStats:
        n_cached, n_computed = self.n_cached or 0, self.n_computed
        return SequenceStats(self.id, self.n_prompt, n_cached, n_computed, self.n_sampled, self.max_length)

    @property
    def progress(self) -> PromptProgress:
        seconds = time.perf_counter() - self.submitted_at
        return PromptProgress(self.n_computed, self.n_prompt, self.n_cached or 0, seconds)

    def deliver(self, **fields: Any) -> None:
        """Deliver a StepOutput with these fields."""
        self._deliver(StepOutput(self.index, time.perf_counter(), **fields))

    def finish_reason_after(self, token: int, n_new: int, texts: TokenTexts) -> str | None:
        """The finish reason if a token ends the sequence, else None. Called once for each token, in order.

        `token` is the last of `n_new` tokens that were sampled in this step. Stop texts are found elsewhere, in
        `chat/runs/output_reader.py`.
        """
        params = self.request.params
        if params.max_tokens == 0:
            return "length"
        if texts.is_end(token) or token in params.stop_token_ids:
            return "stop"
        is_full = len(self.tokens) + n_new >= self.max_length
        return "length" if is_full or self._is_late(token, texts) else None

    def _is_late(self, token: int, texts: TokenTexts) -> bool:
        limit_ms = self.request.params.t_max_predict_ms
        if limit_ms is None:
            return False
        self._has_newline = self._has_newline or b"\n" in texts.piece(token)
        now = time.perf_counter()
        return self._has_newline and (now - (self.first_at or now)) * 1000 >= limit_ms
