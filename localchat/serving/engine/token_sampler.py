"""Samples the next tokens of all sequences of a computed batch, on several threads if the vocabulary is large."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from ..core.errors import ApiError
from .batch import BatchChunk
from .protocols import Backend
from .sequence import MAX_FORCED
from .values import EngineError, Sampled, TokenTexts

log = logging.getLogger("localchat.engine")

# The limit of threads that sample, with the engine thread. The speed is limited by memory, not by cores.
_MAX_THREADS = 8
# With a smaller vocabulary one thread is faster: a token is sampled before another thread has started.
_MIN_PARALLEL_VOCAB = 16_384


class SequenceSample(NamedTuple):
    """The tokens sampled for one sequence in a step."""

    items: list[Sampled]
    reason: str | None = None  # The finish reason, if the last token ends the sequence.
    error: ApiError | None = None  # Why no further token could be sampled.

    def tokens(self) -> list[int]:
        return list(map(_token_of, self.items))


class TokenSampler:
    """Samples from the logits of the last batch. `sample` is called on the engine thread."""

    def __init__(self, backend: Backend, texts: TokenTexts) -> None:
        self._backend = backend
        self._texts = texts
        n_threads = 1 if backend.facts.n_vocab < _MIN_PARALLEL_VOCAB else min(_MAX_THREADS, os.cpu_count() or 1)
        self._helpers = ThreadPoolExecutor(max(n_threads - 1, 1), "localchat-sample")
        # All threads start here: one that could not be started in a step would end the engine.
        all_are_started = threading.Event()
        try:
            for _ in range(n_threads - 1):
                self._helpers.submit(all_are_started.wait)
        except RuntimeError as error:
            log.warning("one thread samples all tokens: %s", error)
            n_threads = 1
        finally:
            all_are_started.set()
        self._n_shares = n_threads

    def close(self) -> None:
        self._helpers.shutdown()

    def sample(self, chunks: list[BatchChunk]) -> list[SequenceSample]:
        """The tokens of each sequence: one, one more for each accepted draft token, and forced tokens."""
        n_shares = max(min(self._n_shares, len(chunks)), 1)
        shares = [chunks[i::n_shares] for i in range(n_shares)]
        others = self._helpers.map(self._sample_share, shares[1:])  # They start now.
        samples = [SequenceSample([])] * len(chunks)
        for i, share in enumerate((self._sample_share(shares[0]), *others)):
            samples[i::n_shares] = share
        return samples

    def _sample_share(self, share: list[BatchChunk]) -> list[SequenceSample]:
        return [self._sample_sequence(chunk) for chunk in share]

    def _sample_sequence(self, chunk: BatchChunk) -> SequenceSample:
        """The next tokens, up to the end of the sequence."""
        items: list[Sampled] = []
        try:
            # In a loop, since the tokens before an error are kept.
            for item in self._sampled_and_forced(chunk):
                items.append(item)
                reason = chunk.sequence.finish_reason_after(_token_of(item), len(items), self._texts)
                if reason is not None:
                    return SequenceSample(items, reason)
        except ApiError as error:
            return SequenceSample(items, error=error)
        except Exception as error:
            log.exception("sampling a token failed")
            return SequenceSample(items, error=EngineError(f"sampling a token failed: {error}"))
        return SequenceSample(items)

    def _sampled_and_forced(self, chunk: BatchChunk) -> Iterator[Sampled]:
        """Sample the next token, further ones while they are equal to the draft, and then forced tokens.

        Each token is sampled from the logits after exactly the tokens before it, so the tokens are those that would be
        sampled without a draft. Forced tokens need no logits. With log probabilities, which need them, none are forced.
        """
        sampler, wants_logprobs = chunk.sequence.sampler, chunk.sequence.request.params.top_logprobs is not None
        for row, drafted in zip(chunk.output_rows, (*chunk.draft, None)):
            token = self._backend.sample(sampler, row)
            yield self._with_logprobs(chunk, row, token) if wants_logprobs else token
            if token != drafted:
                break
        for _ in range(0 if wants_logprobs else MAX_FORCED):
            forced = sampler.sample_forced()
            if forced is None:
                return
            yield forced

    def _with_logprobs(self, chunk: BatchChunk, row: int, token: int) -> Sampled:
        params = chunk.sequence.request.params
        n_top = params.top_logprobs or 0
        if params.post_sampling_probs:
            return (token, *chunk.sequence.sampler.sampled_logprobs(token, n_top))
        return (token, *self._backend.logprobs(row, token, n_top))


def _token_of(item: Sampled) -> int:
    return item if isinstance(item, int) else item[0]
