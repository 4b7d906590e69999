"""A context of llama.cpp that makes vectors: as the engine's `EmbeddingBackend`.

Models that write text compute the logits of every row that gives a vector, so their steps are short and
their vectors are pooled here. Models that see a text as a whole take it in one piece and pool by
themselves; so do those that score pairs.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..embedding import EmbeddingRoom, Piece, pooling_of, reads_whole_texts
from ..values import EngineError, ModelFacts
from .library import L, Model, problems
from .vocabulary import Vocabulary

# Longer inputs are rare (OpenAI's limit is 8191), and the cells are taken from everybody's memory.
_MAX_INPUT = 8192
_MIN_INPUT = 256
# Rows of one step of a model that writes text: at 150,000 tokens of vocabulary 150 MB of logits.
_STEP = 256
_N_INPUTS = 64
# Steps with more rows need flash attention, or the table of all rows by all rows fills the memory.
_MAX_EXACT_STEP = 2048
_GGML_TYPE_F32 = 0
# There each input needs a whole state.
_N_RECURRENT_INPUTS = 8

_IN_GRAPH = {
    "mean": L.LLAMA_POOLING_TYPE_MEAN,
    "cls": L.LLAMA_POOLING_TYPE_CLS,
    "last": L.LLAMA_POOLING_TYPE_LAST,
    "rank": L.LLAMA_POOLING_TYPE_RANK,
}

# Whether the token at a position, of so many, is part of the vector.
_COUNTS: dict[str, Callable[[int, int], bool]] = {
    "mean": lambda position, n_tokens: True,
    "cls": lambda position, n_tokens: position == 0,
    "last": lambda position, n_tokens: position == n_tokens - 1,
}


def open_embedding_backend(model: Model, vocabulary: Vocabulary, facts: ModelFacts, n_threads: int) -> LlamaEmbedding:
    """A context for vectors on a loaded model; the largest that fits, up to what an input may be.

    Raises:
        EngineError: not even a small one fits.
    """
    is_whole = reads_whole_texts(facts.metadata) or bool(L.llama_model_has_encoder(model.pointer))
    # Beyond its own length a model of this kind has no positions: the library would abort.
    n_ctx = min(facts.n_ctx_train if is_whole else facts.n_ctx, _MAX_INPUT)
    while True:
        params = _params(model, facts, n_ctx, is_whole, n_threads)
        context = L.llama_init_from_model(model.pointer, params)
        if context is not None:
            room = EmbeddingRoom(n_ctx, params.n_batch, params.n_seq_max, facts.n_vocab)
            return LlamaEmbedding(model, vocabulary, context, room, pooling_of(facts.metadata))
        if n_ctx <= _MIN_INPUT:
            raise EngineError(f"llama.cpp could not make a context for embeddings: {problems()}")
        n_ctx = max(n_ctx // 2, _MIN_INPUT)


def _params(model: Model, facts: ModelFacts, n_ctx: int, is_whole: bool, n_threads: int) -> Any:
    is_recurrent = L.llama_model_is_recurrent(model.pointer) or L.llama_model_is_hybrid(model.pointer)
    n_inputs = _N_RECURRENT_INPUTS if is_recurrent else _N_INPUTS
    n_step = max(n_ctx, n_inputs) if is_whole else _STEP
    pooling = pooling_of(facts.metadata)
    params = L.llama_context_default_params()
    # One input may be half done while a step is filled up with others.
    params.n_ctx = n_ctx if is_whole else n_ctx + n_step
    # What is not in one ubatch is not seen as a whole, and aborts the process.
    params.n_batch = params.n_ubatch = params.n_outputs_max = n_step
    params.n_seq_max = n_inputs
    params.n_threads = params.n_threads_batch = n_threads
    params.embeddings = True
    params.pooling_type = _IN_GRAPH[pooling] if is_whole or pooling == "rank" else L.LLAMA_POOLING_TYPE_NONE
    if n_step <= _MAX_EXACT_STEP:
        # Flash attention and cells of 16 bits round by what else is in the step: alone and beside others the
        # vectors of the built-in model then differ by 2e-3, and without them by less than 1e-4.
        params.flash_attn_type = L.LLAMA_FLASH_ATTN_TYPE_DISABLED
        params.type_k = params.type_v = _GGML_TYPE_F32
    # Without it inputs of different lengths would be cut into pieces of the same length.
    params.kv_unified = True
    return params


class LlamaEmbedding:
    """Computes steps. One thread at a time; each call leaves no input but the one that goes on."""

    def __init__(self, model: Model, vocabulary: Vocabulary, context: Any, room: EmbeddingRoom, pooling: str):
        self.room = room
        self._model = model  # for as long as there is a context
        self._vocabulary = vocabulary
        self._context = context
        self._memory = L.llama_get_memory(context)
        self._is_pooled = L.llama_pooling_type(context) != L.LLAMA_POOLING_TYPE_NONE
        self._pooling = pooling
        self._counts = _COUNTS.get(pooling, _COUNTS["mean"])
        self._width: int = (
            L.llama_model_n_cls_out(model.pointer) if pooling == "rank" else L.llama_model_n_embd_out(model.pointer)
        )
        # Sums of the input that goes on in the next step, by its index.
        self._sums: dict[int, Any] = {}
        self._batch = L.llama_batch_init(room.n_step, 0, 1)

    def compute(self, inputs: Sequence[Sequence[int]], step: Sequence[Piece]) -> dict[int, array[float]]:
        self._check(step)
        self._fill(inputs, step)
        run = L.llama_decode if self._memory else L.llama_encode
        code = run(self._context, self._batch)
        if code != 0:
            raise EngineError(f"llama.cpp could not compute embeddings (code {code}): {problems()}")
        vectors = {}
        row = 0
        for piece in step:
            n_tokens = len(inputs[piece.index])
            vector = self._pooled(piece) if self._is_pooled else self._pool(piece, n_tokens, row)
            if piece.stop == n_tokens:
                vectors[piece.index] = array("f", vector.tolist())
                self._forget_slot(self._slot(piece))
            row += piece.stop - piece.start
        return vectors

    def forget(self) -> None:
        self._sums.clear()
        for slot in range(self.room.n_inputs):
            self._forget_slot(slot)

    def close(self) -> None:
        L.llama_batch_free(self._batch)
        L.llama_free(self._context)

    def _fill(self, inputs: Sequence[Sequence[int]], step: Sequence[Piece]) -> None:
        row = 0
        for piece in step:
            n_tokens = len(inputs[piece.index])
            for position in range(piece.start, piece.stop):
                self._batch.token[row] = inputs[piece.index][position]
                self._batch.pos[row] = position
                self._batch.n_seq_id[row] = 1
                self._batch.seq_id[row][0] = self._slot(piece)
                self._batch.logits[row] = self._is_pooled or self._counts(position, n_tokens)
                row += 1
        self._batch.n_tokens = row

    def _pooled(self, piece: Piece) -> Any:
        return self._copy(L.llama_get_embeddings_seq(self._context, self._slot(piece)))

    def _pool(self, piece: Piece, n_tokens: int, first_row: int) -> Any:
        """The vector by the rows so far."""
        total = self._sums.pop(piece.index, 0)
        for position in range(piece.start, piece.stop):
            if self._counts(position, n_tokens):
                row = first_row + position - piece.start
                total = total + self._copy(L.llama_get_embeddings_ith(self._context, row))
        if piece.stop < n_tokens:
            self._sums[piece.index] = total
            return total
        return total / (n_tokens if self._pooling == "mean" else 1)

    def _copy(self, pointer: Any) -> Any:
        if not pointer:
            raise EngineError(f"the model gave no vector: {problems()}")
        return np.ctypeslib.as_array(pointer, (self._width,)).astype(np.float64)

    def _slot(self, piece: Piece) -> int:
        # Inputs of a step follow one another, so no two have the same.
        return piece.index % self.room.n_inputs

    def _forget_slot(self, slot: int) -> None:
        if self._memory:
            L.llama_memory_seq_rm(self._memory, slot, -1, -1)

    def _check(self, step: Sequence[Piece]) -> None:
        """The library would abort the process."""
        n_tokens = sum(piece.stop - piece.start for piece in step)
        if not 0 < n_tokens <= self.room.n_step or len(step) > self.room.n_inputs:
            raise ValueError(f"a step of {n_tokens} tokens of {len(step)} inputs; {self.room} is what there is")


def pair_tokens(vocabulary: Vocabulary, query: str, document: str, template: str) -> list[int]:
    """A query and a document as a model that scores pairs wants them: by its template, or its marks between them."""
    if template:
        return _filled(vocabulary, template, {"{query}": query, "{document}": document})
    pointer = vocabulary.pointer
    end = _first_token(pointer, L.llama_vocab_eos, L.llama_vocab_sep)
    begins = [L.llama_vocab_bos(pointer)] if L.llama_vocab_get_add_bos(pointer) else []
    separators = [L.llama_vocab_sep(pointer)] if L.llama_vocab_get_add_sep(pointer) else []
    # A model without an end token ends each of the two with the separator, as BERT does.
    ends, between = ([end], separators) if L.llama_vocab_get_add_eos(pointer) else (separators, [])
    first, second = (vocabulary.tokenize(text, False, False) for text in (query, document))
    return [token for token in (*begins, *first, *ends, *between, *second, *ends) if token >= 0]


def _filled(vocabulary: Vocabulary, template: str, texts: dict[str, str]) -> list[int]:
    pieces = [(texts.get(piece, piece), piece not in texts) for piece in re.split(r"({query}|{document})", template)]
    said = "".join(texts.values())
    if not any(special and special in said for special in vocabulary.special_tokens):
        # As one text: cutting it would change the tokens at the cuts.
        return vocabulary.tokenize("".join(text for text, _ in pieces), False, True)
    return [token for text, is_markup in pieces for token in vocabulary.tokenize(text, False, is_markup)]


def _first_token(vocabulary: Any, *readers: Callable[[Any], int]) -> int:
    return next((token for read in readers if (token := read(vocabulary)) >= 0), -1)
