"""A llama.cpp context for embeddings: the engine's `EmbeddingBackend`.

A model that generates text computes logits for every row with a vector. Its steps are therefore short, an input may
take several steps, and this module pools the vectors of its rows. llama.cpp pools the vectors of models without causal
attention, which compute an input in one step, and of models that score pairs (rerank).
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..embedding import EmbeddingLimits, Piece, is_non_causal, pooling_of
from ..values import EngineError, ModelFacts
from .library import BatchRows, L, Model, last_errors
from .vocabulary import Vocabulary

# Limit of tokens of an input. Longer ones are rare (OpenAI's limit is 8191), and the cells for them take memory.
_MAX_INPUT = 8192
# The context is made smaller if it does not fit into memory, down to this number of tokens.
_MIN_INPUT = 256
# Rows of a step of a model that generates text: 150 MB of logits with a vocabulary of 150,000 tokens.
_STEP = 256
# Steps with more rows use flash attention. Without it, the memory for attention grows with the square of the rows.
_MAX_EXACT_STEP = 2048
# Limit of inputs of a step. In a recurrent model, each input needs the memory of a whole state.
_N_INPUTS, _N_RECURRENT_INPUTS = 64, 8


def open_embedding_backend(model: Model, facts: ModelFacts, n_threads: int) -> LlamaEmbedding:
    """Create an embedding context for a loaded model, as large as fits into memory, up to `_MAX_INPUT`.

    Raises:
        EngineError: Not even a context of `_MIN_INPUT` tokens fits into memory.
    """
    is_whole = is_non_causal(facts.metadata) or bool(L.llama_model_has_encoder(model.pointer))
    # A model that computes whole inputs has no positions beyond its training length, where llama.cpp would abort.
    n_ctx = min(facts.n_ctx_train if is_whole else facts.n_ctx, _MAX_INPUT)
    while True:
        params = _params(model, facts, n_ctx, is_whole, n_threads)
        context = L.llama_init_from_model(model.pointer, params)
        if context is not None:
            limits = EmbeddingLimits(n_ctx, params.n_batch, params.n_seq_max, facts.n_vocab)
            return LlamaEmbedding(model, context, limits, pooling_of(facts.metadata))
        if n_ctx <= _MIN_INPUT:
            raise EngineError(f"llama.cpp could not create a context for embeddings: {last_errors()}")
        n_ctx = max(n_ctx // 2, _MIN_INPUT)


def _params(model: Model, facts: ModelFacts, n_ctx: int, is_whole: bool, n_threads: int) -> Any:
    is_recurrent = L.llama_model_is_recurrent(model.pointer) or L.llama_model_is_hybrid(model.pointer)
    n_inputs = _N_RECURRENT_INPUTS if is_recurrent else _N_INPUTS
    n_step = max(n_ctx, n_inputs) if is_whole else _STEP
    pooling = pooling_of(facts.metadata) if is_whole or pooling_of(facts.metadata) == "rank" else "none"
    params = L.llama_context_default_params()
    # The last step of a long input also has other inputs, which need cells beside those of the long input.
    params.n_ctx = n_ctx if is_whole else n_ctx + n_step
    # Without causal attention llama.cpp aborts if an input is not in one ubatch.
    params.n_batch = params.n_ubatch = params.n_outputs_max = n_step
    params.n_seq_max = n_inputs
    params.n_threads = params.n_threads_batch = n_threads
    params.embeddings = True
    params.pooling_type = getattr(L, f"LLAMA_POOLING_TYPE_{pooling.upper()}")
    if n_step <= _MAX_EXACT_STEP:
        # The rounding of flash attention depends on the other inputs of the step: the vectors of the built-in model
        # differ by 1e-3. Without it they are equal.
        params.flash_attn_type = L.LLAMA_FLASH_ATTN_TYPE_DISABLED
    # With streams, llama.cpp splits inputs of different lengths into pieces of the same length.
    params.kv_unified = True
    return params


class LlamaEmbedding:
    """An embedding context, for one thread at a time. Only an unfinished input keeps its state between two calls."""

    def __init__(self, model: Model, context: Any, limits: EmbeddingLimits, pooling: str):
        self.limits = limits
        self._model = model  # The context needs it.
        self._context = context
        self._memory = L.llama_get_memory(context)
        self._is_pooled = L.llama_pooling_type(context) != L.LLAMA_POOLING_TYPE_NONE
        self._pooling = pooling
        read_width = L.llama_model_n_cls_out if pooling == "rank" else L.llama_model_n_embd_out
        self._width: int = read_width(model.pointer)
        # The sum of the rows of the input that continues in the next step, by its index.
        self._sums: dict[int, Any] = {}
        self._rows = BatchRows(limits.n_step, n_ids=1)

    def compute(self, inputs: Sequence[Sequence[int]], step: Sequence[Piece]) -> dict[int, array[float]]:
        n_rows = sum(piece.stop - piece.start for piece in step)
        self._rows.clear()
        for piece in step:
            tokens = inputs[piece.index][piece.start : piece.stop]
            self._rows.add([self._slot(piece)], piece.start, tokens, range(len(tokens)))
        code = (L.llama_decode if self._memory else L.llama_encode)(self._context, self._rows.batch)
        if code != 0:
            raise EngineError(f"llama.cpp could not compute embeddings (code {code}): {last_errors()}")
        # The vector of each token [rows, width]; a view, valid until the next step.
        rows = None if self._is_pooled else self._array(L.llama_get_embeddings(self._context), n_rows, self._width)
        vectors, first = {}, 0
        for piece in step:
            n_tokens, end = len(inputs[piece.index]), first + piece.stop - piece.start
            if rows is None:
                vector = self._array(L.llama_get_embeddings_seq(self._context, self._slot(piece)), self._width)
            else:
                vector = self._pool(piece, n_tokens, rows[first:end])
            if piece.stop == n_tokens:
                vectors[piece.index] = array("f", vector.tolist())
                self._forget_slot(self._slot(piece))
            first = end
        return vectors

    def forget(self) -> None:
        self._sums.clear()
        for slot in range(self.limits.n_inputs):
            self._forget_slot(slot)

    def close(self) -> None:
        L.llama_free(self._context)

    def _pool(self, piece: Piece, n_tokens: int, rows: Any) -> Any:
        """The pooled vector of the rows so far."""
        if self._pooling == "last":
            return rows[-1]
        before = self._sums.pop(piece.index, None)
        if self._pooling == "cls":
            total = rows[0].copy() if before is None else before
        else:
            mean = rows.sum(axis=0, dtype=np.float64) / n_tokens
            total = mean if before is None else before + mean
        if piece.stop < n_tokens:
            self._sums[piece.index] = total
        return total

    def _array(self, pointer: Any, *shape: int) -> Any:
        if not pointer:
            raise EngineError(f"the model gave no vector: {last_errors()}")
        return np.ctypeslib.as_array(pointer, shape)

    def _slot(self, piece: Piece) -> int:
        # The inputs of a step have consecutive indexes, so each has its own slot.
        return piece.index % self.limits.n_inputs

    def _forget_slot(self, slot: int) -> None:
        if self._memory:
            L.llama_memory_seq_rm(self._memory, slot, -1, -1)


def pair_tokens(vocabulary: Vocabulary, query: str, document: str, template: str) -> list[int]:
    """The tokens of a query and a document for a model that scores pairs: by its template, or with its separators."""
    if template:
        return _filled(vocabulary, template, {"{query}": query, "{document}": document})
    pointer = vocabulary.pointer
    end, separator = L.llama_vocab_eos(pointer), L.llama_vocab_sep(pointer)
    begins = [L.llama_vocab_bos(pointer)] if vocabulary.add_bos else []
    separators = [separator] if L.llama_vocab_get_add_sep(pointer) else []
    if L.llama_vocab_get_add_eos(pointer):
        ends, between = [end if end >= 0 else separator], separators
    else:
        ends, between = separators, []  # Both texts end with the separator, as in BERT.
    first, second = (vocabulary.tokenize(text, parse_special=False) for text in (query, document))
    return [token for token in (*begins, *first, *ends, *between, *second, *ends) if token >= 0]


def _filled(vocabulary: Vocabulary, template: str, texts: dict[str, str]) -> list[int]:
    pieces = [(texts.get(piece, piece), piece not in texts) for piece in re.split(r"({query}|{document})", template)]
    whole = "".join(texts.values())
    if not any(special and special in whole for special in vocabulary.special_tokens):
        # Tokenize one text: separate pieces would have other tokens where they meet.
        return vocabulary.tokenize("".join(text for text, _ in pieces))
    return [token for text, is_markup in pieces for token in vocabulary.tokenize(text, parse_special=is_markup)]
