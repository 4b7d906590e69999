"""Embeddings: a vector for each input of token ids, on a llama.cpp context of its own. Short inputs share a step.

A model that generates text computes logits for every row with a vector. Its steps are therefore short, an input may
take several steps, and this module pools the vectors of its rows. llama.cpp pools the vectors of models without causal
attention, which compute an input in one step, and of models that score pairs (rerank).
"""

from __future__ import annotations

import logging
import re
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ...core.errors import ContextLengthExceeded, OutOfResources
from ...models.memory import gigabytes
from ..values import EngineError, ModelFacts, check_tokens
from .context_size import LARGEST_SHARE, MemoryPool
from .library import BatchRows, L, LlamaModel, last_errors
from .rpc import NewWatchdog
from .vocabulary import Vocabulary

log = logging.getLogger("localchat.engine")

# Limit of tokens of an input. Longer ones are rare (OpenAI's limit is 8191), and the cells for them take memory.
_MAX_INPUT = 8192
# The context is made smaller if it does not fit into memory, down to this number of tokens.
_MIN_INPUT = 256
# Rows of a step of a model that generates text: 150 MB of logits with a vocabulary of 150,000 tokens.
_N_ROWS = 256
# Steps with more rows use flash attention. Without it, the memory for attention grows with the square of the rows.
_MAX_EXACT_ROWS = 2048
# Limit of inputs of a step. In a recurrent model, each input needs the memory of a whole state.
_N_INPUTS, _N_RECURRENT_INPUTS = 64, 8

# A part of one input: its index in the request, and its tokens from the first number up to the second.
Piece = tuple[int, int, int]


class LlamaEmbedding:
    """A context that computes vectors of tokens, for one thread at a time. It is as large as fits into memory."""

    def __init__(
        self,
        model: LlamaModel,
        facts: ModelFacts,
        n_threads: int,
        new_watchdog: NewWatchdog,
        pools: Callable[[Any], Sequence[MemoryPool]] = lambda params: (),
    ):
        """Create the context. What computes on workers runs within `new_watchdog()`.

        `pools` returns what a context with these parameters takes, and what is free now. Raises OutOfResources if
        not even a context of `_MIN_INPUT` tokens fits.
        """
        # Whether one step must have all tokens of an input, since each token attends to all others.
        takes_whole_inputs = facts.is_non_causal or bool(L.llama_model_has_encoder(model.pointer))
        # A model that computes whole inputs has no positions beyond its training length, where llama.cpp would abort.
        n_ctx = min(facts.n_ctx_train if takes_whole_inputs else facts.n_ctx, _MAX_INPUT)
        while True:
            params = _params(model, facts, n_ctx, takes_whole_inputs, n_threads)
            # llama.cpp would take memory that the system does not have, and the system would end the process.
            shortage = _shortage(params.n_ctx, pools(params))
            context = None
            if not shortage:
                with new_watchdog():
                    context = L.llama_init_from_model(model.pointer, params)
            if context is not None:
                break
            if n_ctx <= _MIN_INPUT:
                reason = shortage or f"llama.cpp could not create it: {last_errors()}"
                raise OutOfResources(f"there is no memory for a context for embeddings: {reason}")
            n_ctx = max(n_ctx // 2, _MIN_INPUT)
        log.info("created a context for embeddings: at most %d tokens per input", n_ctx)
        self._n_ctx, self._n_vocab = n_ctx, facts.n_vocab
        self._n_rows: int = params.n_batch  # The limit of a step.
        self._n_inputs: int = params.n_seq_max
        self._model = model  # The context needs it.
        self._new_watchdog = new_watchdog
        self._context = context
        self._memory = L.llama_get_memory(context)
        self._is_pooled = L.llama_pooling_type(context) != L.LLAMA_POOLING_TYPE_NONE
        self._pooling = facts.pooling
        read_width = L.llama_model_n_cls_out if facts.pooling == "rank" else L.llama_model_n_embd_out
        self._width: int = read_width(model.pointer)
        self._rows = BatchRows(params.n_batch, n_ids=1)

    def close(self) -> None:
        L.llama_free(self._context)

    def embed(self, inputs: Sequence[Sequence[int]], check: Callable[[], None]) -> list[array[float]]:
        """See `Backend.embed`."""
        for tokens in inputs:
            check_tokens(tokens, self._n_vocab)
            if len(tokens) > self._n_ctx:
                message = f"an input has {len(tokens)} tokens and the embedding context holds {self._n_ctx}: shorten it"
                raise ContextLengthExceeded(message, n_tokens=len(tokens), n_ctx=self._n_ctx)
        if self._memory:
            L.llama_memory_clear(self._memory, False)  # A call that failed has left cells.
        vectors: dict[int, Any] = {}
        for step in steps([len(tokens) for tokens in inputs], self._n_rows, self._n_inputs):
            check()
            with self._new_watchdog():
                self._compute(inputs, step, vectors)
        return [array("f", vectors[i].tolist()) for i in range(len(inputs))]

    def _compute(self, inputs: Sequence[Sequence[int]], step: list[Piece], vectors: dict[int, Any]) -> None:
        """Compute a step, and add its rows to the vectors of its inputs."""
        self._rows.clear()
        for index, start, stop in step:
            # The inputs of a step have consecutive indexes, so each has its own slot.
            self._rows.add([index % self._n_inputs], start, inputs[index][start:stop], range(stop - start))
        code = (L.llama_decode if self._memory else L.llama_encode)(self._context, self._rows.batch)
        if code != 0:
            raise EngineError(f"llama.cpp could not compute embeddings (code {code}): {last_errors()}")
        n_rows, first = self._rows.batch.n_tokens, 0
        # The vector of each token [rows, width]. All arrays of llama.cpp are valid until the next step.
        rows = None if self._is_pooled else self._array(L.llama_get_embeddings(self._context), n_rows, self._width)
        for index, start, stop in step:
            slot, end = index % self._n_inputs, first + stop - start
            if rows is None:
                vectors[index] = self._array(L.llama_get_embeddings_seq(self._context, slot), self._width).copy()
            elif self._pooling == "last":
                vectors[index] = rows[end - 1].copy()
            elif self._pooling == "cls":
                vectors.setdefault(index, rows[first].copy())
            else:
                share = rows[first:end].sum(axis=0, dtype=np.float64) / len(inputs[index])
                vectors[index] = vectors.get(index, 0) + share
            if self._memory and stop == len(inputs[index]):
                L.llama_memory_seq_rm(self._memory, slot, -1, -1)
            first = end

    def _array(self, pointer: Any, *shape: int) -> Any:
        if not pointer:
            raise EngineError(f"the model gave no vector: {last_errors()}")
        return np.ctypeslib.as_array(pointer, shape)


def _shortage(n_cells: int, pools: Sequence[MemoryPool]) -> str:
    """Why a context of so many cells does not fit into memory; "" if it does."""
    for pool in pools:
        if pool.n_free is not None and pool.n_bytes(n_cells) > pool.n_free * LARGEST_SHARE:
            n_bytes, where = gigabytes(pool.n_bytes(n_cells)), f" on {pool.gpus}" if pool.gpus else ""
            return f"one of {n_cells} tokens takes {n_bytes}, and {gigabytes(pool.n_free)} are free{where}"
    return ""


def _params(model: LlamaModel, facts: ModelFacts, n_ctx: int, takes_whole_inputs: bool, n_threads: int) -> Any:
    is_recurrent = L.llama_model_is_recurrent(model.pointer) or L.llama_model_is_hybrid(model.pointer)
    n_inputs = _N_RECURRENT_INPUTS if is_recurrent else _N_INPUTS
    n_rows = max(n_ctx, n_inputs) if takes_whole_inputs else _N_ROWS
    pooling = facts.pooling if takes_whole_inputs or facts.pooling == "rank" else "none"
    params = L.llama_context_default_params()
    # The last step of a long input also has other inputs, which need cells beside those of the long input.
    params.n_ctx = n_ctx if takes_whole_inputs else n_ctx + n_rows
    # Without causal attention llama.cpp aborts if an input is not in one ubatch.
    params.n_batch = params.n_ubatch = params.n_outputs_max = n_rows
    params.n_seq_max = n_inputs
    params.n_threads = params.n_threads_batch = n_threads
    params.embeddings = True
    params.pooling_type = getattr(L, f"LLAMA_POOLING_TYPE_{pooling.upper()}")
    if n_rows <= _MAX_EXACT_ROWS:
        # The rounding of flash attention depends on the other inputs of the step: the vectors of the built-in model
        # differ by 1e-3. Without it most are equal, and a few differ by 1e-4.
        params.flash_attn_type = L.LLAMA_FLASH_ATTN_TYPE_DISABLED
    # With streams, llama.cpp splits inputs of different lengths into pieces of the same length.
    params.kv_unified = True
    return params


def steps(lengths: Sequence[int], n_rows: int, n_inputs: int) -> Iterator[list[Piece]]:
    """Divide inputs of these lengths into steps of at most `n_rows` tokens and `n_inputs` inputs, in order.

    Only an input that is longer than a step is split.
    """
    step: list[Piece] = []
    n_left = n_rows
    for index, length in enumerate(lengths):
        start = 0
        while start < length:
            if len(step) == n_inputs or (step and length - start > n_left):
                yield step
                step, n_left = [], n_rows
            stop = min(length, start + n_left)
            step.append((index, start, stop))
            n_left -= stop - start
            start = stop
    if step:
        yield step


def pair_tokenizer(vocabulary: Vocabulary, query: str, template: str, limit: int) -> Callable[[str], list[int]]:
    """A function that makes the tokens of a query with a document, for a model that scores pairs.

    It uses the template of the model, or else its separators. Raises ContextLengthExceeded for a query of more than
    `limit` tokens.
    """
    first = vocabulary.tokenize(query, parse_special=False, limit=limit)
    if template:
        return lambda document: _tokens_of_template(vocabulary, template, {"{query}": query, "{document}": document})
    pointer = vocabulary.pointer
    end, separator = L.llama_vocab_eos(pointer), L.llama_vocab_sep(pointer)
    begins = [L.llama_vocab_bos(pointer)] if vocabulary.add_bos else []
    separators = [separator] if L.llama_vocab_get_add_sep(pointer) else []
    if L.llama_vocab_get_add_eos(pointer):
        ends, between = [end if end >= 0 else separator], separators
    else:
        ends, between = separators, []  # Both texts end with the separator, as in BERT.

    def pair(document: str) -> list[int]:
        second = vocabulary.tokenize(document, parse_special=False)
        return [token for token in (*begins, *first, *ends, *between, *second, *ends) if token >= 0]

    return pair


def _tokens_of_template(vocabulary: Vocabulary, template: str, texts: dict[str, str]) -> list[int]:
    """The tokens of a template for pairs, whose placeholders are replaced by texts without control tokens."""
    pieces = [(texts.get(piece, piece), piece not in texts) for piece in re.split(r"({query}|{document})", template)]
    whole = "".join(texts.values())
    if not any(special and special in whole for special in vocabulary.special_tokens):
        # Tokenize one text: separate pieces would have other tokens where they meet.
        return vocabulary.tokenize("".join(text for text, _ in pieces))
    return [token for text, is_markup in pieces for token in vocabulary.tokenize(text, parse_special=is_markup)]
