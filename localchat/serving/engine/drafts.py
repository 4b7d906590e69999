"""Speculative decoding: drafts of the next tokens, by prompt lookup and by a draft model.

A draft token costs a row of a batch. The model samples a token at each position of a draft, so a wrong draft token
costs time and never changes the text.
"""

from __future__ import annotations

import logging

from ..core.params import SamplingParams
from .batch import Batch, BatchChunk, Sequence, n_common_of
from .kv_cache import KVCache
from .protocols import Backend, DecodeFailed, NoFreeCells
from .values import GenerationRequest

log = logging.getLogger("localchat.engine")

# Shorter matches are by chance.
_MIN_MATCH = 3
# The limits of the length of a match, and of the searches for each draft. They bound the time of a draft.
_MAX_MATCH = 32
_MAX_SEARCHES = 8
# The character of the cells of images and sounds. No vocabulary has as many tokens.
_MEDIA = chr(0x10FFFF)


def look_up_drafts(sequences: list[Sequence], n_tokens: int) -> None:
    """Sets `draft`, to at most `n_tokens` tokens, for each sequence whose own text has an earlier match of its end."""
    for sequence in sequences:
        new = sequence.tokens[len(sequence.lookup_text) :]
        sequence.lookup_text += "".join(map(chr, new) if min(new, default=0) >= 0 else map(_character, new))
        sequence.draft = list(map(ord, looked_up(sequence.lookup_text, n_tokens).partition(_MEDIA)[0]))


def _character(token: int) -> str:
    return _MEDIA if token < 0 else chr(token)


def looked_up(text: str, n_tokens: int) -> str:
    """The tokens after the longest earlier match of the end of the text; of equally long matches, the newest.

    They are one token for the shortest match, and one more for each further token of the match: a short match is often
    by chance, and while a text is copied the match grows with each accepted token.
    """
    best, n_best, n_most = 0, 0, min(_MAX_MATCH, len(text) - 1)
    for _ in range(_MAX_SEARCHES):
        n = max(_MIN_MATCH, n_best + 1)
        start = text.rfind(text[-n:], 0, -1) if n <= n_most else -1
        if start < 0:
            break
        while n < n_most and start and text[start - 1] == text[-n - 1]:
            start, n = start - 1, n + 1
        best, n_best = start + n, n
    # A draft that reaches the end of the text continues at `best` again.
    period = len(text) - best
    n_drafted = min(n_tokens, n_best - _MIN_MATCH + 1) if n_best else 0
    return "".join(text[best + i % period] for i in range(n_drafted))


class _Text(Sequence):
    """A sequence in the draft model. Its tokens are those of the large model's sequence, and then its draft."""

    n_wanted = 0
    """The length of the next draft: one token more than were accepted of the last one."""


class DraftModel:
    """Drafts with a smaller model of the same vocabulary, on a backend of its own that can truncate its KV cache.

    Runs on the engine thread. It computes each text in a slot, with a limit of prompt tokens per step. A text that has
    ended stays as an idle prefix. Nothing is drafted for a sequence for which there is no slot or no cells.
    """

    def __init__(self, backend: Backend, n_vocab: int):
        """`n_vocab` is the size of the large model's vocabulary."""
        self._backend = backend
        self._cache = KVCache(backend)
        self._tuning = backend.limits.tuning
        self._n_vocab = n_vocab
        self._greedy = backend.new_sampler(GenerationRequest((0,), sampling=SamplingParams(temperature=0)))
        # By sequence id; None: nothing more is drafted for it, since there were no free cells or decoding failed.
        self._texts: dict[int, _Text | None] = {}

    def draft(self, sequences: list[Sequence], n_tokens: int) -> None:
        wanted: dict[Sequence, _Text] = {}
        for sequence in sequences:
            text = self._text(sequence)
            if text is None:
                continue
            self._follow(text, sequence.tokens)
            if len(sequence.tokens) + min(n_tokens, text.n_wanted) <= self._backend.facts.n_ctx:
                wanted[sequence] = text
        try:
            self._draft(list(wanted.values()), n_tokens)
        except (NoFreeCells, DecodeFailed) as error:
            log.info("the draft model could not draft: %s", error or "its KV cache is full")
            for sequence, text in wanted.items():
                self._cache.release(text, keep=False)
                self._texts[sequence.id] = None
            return
        for sequence, text in wanted.items():
            sequence.draft = list(text.draft)

    def forget(self, sequence: Sequence) -> None:
        """Makes an idle prefix of the text of a sequence that has ended."""
        text = self._texts.pop(sequence.id, None)
        if text is not None:
            self._cache.release(text, keep=True)

    def close(self) -> None:
        self._backend.close()

    def _text(self, sequence: Sequence) -> _Text | None:
        """The text of this sequence in the draft model; None if there is no slot or there are no cells for it."""
        if sequence.id not in self._texts:
            if sum(text is not None for text in self._texts.values()) == self._backend.limits.n_parallel:
                return None
            match = self._cache.find(sequence.reusable_tokens)
            text = _Text(sequence.id, sequence.tokens[: match.length if match else 0], 0)
            text.n_wanted = self._tuning.draft_model_tokens
            self._cache.acquire(text, match)
            self._texts[sequence.id] = text
        return self._texts[sequence.id]

    def _follow(self, text: _Text, tokens: list[int]) -> None:
        """Truncates the slot to its common prefix with `tokens`, and sets these tokens."""
        n_before, n_computed = len(text.tokens) - len(text.draft), text.n_computed
        if text.draft and len(tokens) > n_before:
            n_accepted = n_common_of(text.draft, tokens[n_before:])
            text.n_wanted = min(n_accepted + 1, self._tuning.draft_model_tokens)
        # At least the newest token is computed, since its logits give the first draft token.
        text.n_computed = min(n_common_of(text.tokens[:n_computed], tokens), len(tokens) - 1)
        if text.n_computed < n_computed:
            self._cache.truncate(text)
        text.tokens, text.draft = list(tokens), []

    def _draft(self, texts: list[_Text], n_tokens: int) -> None:
        """Computes the new tokens of the texts, then drafts at most `n_tokens` tokens, one for each text in a step.

        A text whose new tokens do not fit into the first step gets no draft.
        """
        while texts:
            ready, texts = self._computed(texts), []
            for text, row in ready:
                token = self._backend.sample(self._greedy, row)
                if token >= self._n_vocab:
                    continue
                text.draft.append(token)
                text.tokens.append(token)
                if len(text.draft) < min(n_tokens, text.n_wanted) and not self._backend.texts.is_end(token):
                    texts.append(text)

    def _computed(self, texts: list[_Text]) -> list[tuple[_Text, int]]:
        """Computes the missing tokens of the texts, as many as fit into a step: those with the fewest first. Returns
        the texts of which none is missing, each with its row of logits."""
        n_most = min(self._tuning.n_prompt_beside, self._backend.limits.n_batch)
        chunks: list[BatchChunk] = []
        ready: list[tuple[_Text, int]] = []
        first = 0
        for text in sorted(texts, key=lambda text: text.n_missing):
            n_tokens = min(text.n_missing, n_most - first)
            if n_tokens:
                chunks.append(BatchChunk(text, first, n_tokens, n_tokens == text.n_missing))
                first += n_tokens
                if n_tokens == text.n_missing:
                    ready.append((text, first - 1))
        self._cache.decode(Batch(tuple(chunks)))
        for chunk in chunks:
            chunk.sequence.n_computed += chunk.n_tokens
        return ready
