"""A loaded model with its context: the engine's `Backend`."""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..batch import Batch, BatchChunk, CacheLimits
from ..protocols import CopyFailed, DecodeFailed, NoFreeCells
from ..sequence import Span
from ..values import Adapters, EngineError, EngineStopped, ModelFacts, SequenceRequest
from .context_size import MemoryPool
from .embed import LlamaEmbedding, pair_tokenizer
from .library import BatchRows, L, LlamaModel, last_errors, pointer_to
from .rpc import NewWatchdog
from .sampler import Sampler
from .threads import ThreadCount, max_short_rows
from .vocabulary import Vocabulary

if TYPE_CHECKING:
    from ..media.projector import LlamaProjector


class LlamaBackend:
    """A loaded model with its context. Methods that use the context run on the engine thread."""

    def __init__(
        self,
        model: LlamaModel,
        context: Any,
        vocabulary: Vocabulary,
        facts: ModelFacts,
        limits: CacheLimits,
        n_ids: int,
        projector: LlamaProjector | None = None,
        adapters: Sequence[Any] = (),
        *,
        adapts_threads: bool,
        new_watchdog: NewWatchdog = contextlib.nullcontext,
        vector_pools: Callable[[Any], Sequence[MemoryPool]] = lambda params: (),
    ):
        """`n_ids` is the number of llama.cpp's sequence ids for each slot.

        `adapters` are llama.cpp's, in the order of `facts.adapters`. They are freed with the model.

        What computes on workers runs within `new_watchdog()`. With `adapts_threads`, short steps have fewer threads
        while other processes use the cores. For `vector_pools` see `LlamaEmbedding`.
        """
        self.facts = facts
        # Encodes images and sounds; None: the model takes only text. It is closed by its user.
        self.projector = projector
        self._adapters = adapters
        self._new_watchdog = new_watchdog
        self._vector_pools = vector_pools
        self.limits = limits
        self.vocabulary = vocabulary
        self.tokenize, self.texts = vocabulary.tokenize, vocabulary.texts
        self._model = model
        self._context = context
        self._memory = L.llama_get_memory(context)
        # The sequence ids of llama.cpp for each slot.
        self._ids = [range(slot, n_ids * limits.n_slots, limits.n_slots) for slot in range(limits.n_slots)]
        self._n_threads_set: int = L.llama_n_threads(context)  # What the context has now.
        self._thread_count = ThreadCount(self._n_threads_set) if adapts_threads else None
        self._rows = BatchRows(limits.n_batch, n_ids)
        # Results of the last batch: the index of the output of each row with logits, and the logits
        # [outputs, vocabulary].
        self._outputs: dict[int, int] = {}
        self._logits: Any = None
        # Created at the first request for vectors, since most servers never need it.
        self._embedding: LlamaEmbedding | None = None
        self._embedding_lock = threading.Lock()  # Guards it, and the next one.
        self._is_closed = False

    def new_sampler(self, request: SequenceRequest) -> Sampler:
        return Sampler(request, self.vocabulary, self.facts.n_ctx)

    def prepare_constraints(self) -> None:
        with contextlib.suppress(EngineError):  # The request that needs it gets the error.
            self.vocabulary.grammars.prepare()

    def clear(self, slot: int) -> None:
        for id in self._ids[slot]:
            L.llama_memory_seq_rm(self._memory, id, -1, -1)

    def share(self, source: int, target: int, position: int) -> None:
        for id in self._ids[target]:
            L.llama_memory_seq_cp(self._memory, self._ids[source][0], id, 0, position)

    # Between streams `llama_memory_seq_cp` would copy the whole stream.

    def state(self, slot: int) -> Any:
        n_bytes = L.llama_state_seq_get_size(self._context, slot)
        try:
            state = np.empty(n_bytes, np.uint8)
        except MemoryError as error:
            raise CopyFailed(f"there is no memory for {n_bytes} bytes") from error
        n_written = L.llama_state_seq_get_data(self._context, pointer_to(state, ctypes.c_uint8), n_bytes, slot)
        if n_written != n_bytes:  # The rest is what was in this memory before.
            raise CopyFailed(f"llama.cpp wrote {n_written} of {n_bytes} bytes: {last_errors()}")
        return state

    def set_state(self, slot: int, state: Any) -> None:
        n_read = L.llama_state_seq_set_data(self._context, pointer_to(state, ctypes.c_uint8), len(state), slot)
        if n_read != len(state):
            raise CopyFailed(f"llama.cpp took {n_read} of {len(state)} bytes: {last_errors()}")

    def truncate(self, slot: int, position: int) -> bool:
        return all(L.llama_memory_seq_rm(self._memory, id, position, -1) for id in self._ids[slot])

    def decode(self, batch: Batch) -> None:
        """Compute a batch. After a failure, the cells that a batch of text may have used are freed."""
        # llama.cpp stores the logits in the order of the rows.
        rows = (row for chunk in batch.chunks for row in chunk.output_rows)
        self._outputs = {row: i for i, row in enumerate(rows)}
        n_most = self.limits.n_parallel + self.limits.max_drafted
        assert len(self._outputs) <= n_most, "llama.cpp would abort the process"
        span = batch.chunks[0].sequence.span
        with self._new_watchdog():
            self._set_adapters(batch.adapters)
            if span is None:
                code = self._compute(self._llama_batch(batch))
            else:
                code = self._compute_span(batch.chunks[0], span)
            if code == 0 and self._outputs:
                shape = (len(self._outputs), self.vocabulary.n_tokens)
                self._logits = np.ctypeslib.as_array(L.llama_get_logits(self._context), shape)
        if code == 0:
            return
        for chunk in batch.chunks if span is None else ():
            position = chunk.sequence.position_of(chunk.sequence.n_computed)
            for id in self._ids[chunk.slot]:
                L.llama_memory_seq_rm(self._memory, id, position, -1)
        if code == 1:
            raise NoFreeCells("the KV cache has no free cells")
        raise DecodeFailed(f"llama_decode returned {code}: {last_errors()}")

    def _set_adapters(self, adapters: Adapters) -> None:
        """Let the next batch have these adapters. This takes time only if they are others than those of the last."""
        if self._adapters:
            pointers = (L.llama_adapter_lora_p_ctypes * len(adapters))(*(self._adapters[i] for i, _ in adapters))
            scales = (ctypes.c_float * len(adapters))(*(scale for _, scale in adapters))
            L.llama_set_adapters_lora(self._context, pointers, len(adapters), scales)

    def _compute(self, rows: Any) -> int:
        count = self._thread_count
        if count is None or count.most == 1:
            return L.llama_decode(self._context, rows)  # type: ignore[no-any-return]  # ctypes
        is_short = rows.n_tokens <= max_short_rows(self.facts.n_params)
        is_encoding = self.projector is not None and self.projector.is_encoding
        if is_encoding:  # An image or a sound is encoded on the other half of the cores.
            n_threads = (count.most + 1) // 2
        elif is_short:
            n_threads = count.n
        else:
            n_threads = count.most
        if n_threads != self._n_threads_set:
            L.llama_set_n_threads(self._context, n_threads, n_threads)
            self._n_threads_set = n_threads
        if is_encoding or not is_short:
            with count.leaving_out():
                return L.llama_decode(self._context, rows)  # type: ignore[no-any-return]  # ctypes
        started = time.perf_counter()
        code: int = L.llama_decode(self._context, rows)
        count.add(time.perf_counter() - started)
        return code

    def sample(self, sampler: Sampler, row: int) -> int:
        logits = self._row(row)
        # llama.cpp counts a negative index from the last output.
        return sampler.sample(self._context, self._outputs[row] - len(self._outputs), logits)

    def logprobs(self, row: int, token: int, n_top: int) -> tuple[float, list[tuple[int, float]]]:
        logits = self._row(row).astype(np.float64)
        highest = logits.max()
        log_total = highest + np.log(np.exp(logits - highest).sum())
        n_top = min(n_top, len(logits))
        likeliest = np.argpartition(logits, -n_top)[-n_top:] if n_top else np.empty(0, np.intp)
        likeliest = likeliest[np.argsort(-logits[likeliest], kind="stable")]
        top = [(int(id), float(logits[id] - log_total)) for id in likeliest]
        return float(logits[token] - log_total), top

    def _llama_batch(self, batch: Batch) -> Any:
        self._rows.clear()
        for chunk in batch.chunks:
            outputs = [row - chunk.first for row in chunk.output_rows]
            position = chunk.sequence.position_of(chunk.sequence.n_computed)
            self._rows.add(self._ids[chunk.slot], position, chunk.tokens(), outputs)
        return self._rows.batch

    def _compute_span(self, chunk: BatchChunk, span: Span) -> int:
        """Compute rows of an image or a sound. Returns the code of llama.cpp."""
        offset, n_rows = chunk.sequence.n_computed - span.start, chunk.n_tokens
        self._rows.clear()
        self._rows.add(self._ids[chunk.slot], span.position + offset, [0] * n_rows)
        batch = L.llama_batch.from_buffer_copy(self._rows.batch)
        batch.token = None
        batch.embd = ctypes.cast(ctypes.byref(span.chunk.rows[offset]), ctypes.POINTER(ctypes.c_float))
        if span.chunk.positions is not None:  # One section after another, for all rows.
            at_start, growth = (np.reshape(values, (4, -1)) for values in span.chunk.positions)
            positions = (at_start + growth * span.position)[:, offset : offset + n_rows].ravel().tolist()
            batch.pos = (L.llama_pos * len(positions))(*positions)
        if not span.chunk.is_causal:
            L.llama_set_causal_attn(self._context, False)
        code = self._compute(batch)
        L.llama_set_causal_attn(self._context, True)
        return code

    def _row(self, row: int) -> Any:
        """The logits of a row; a view, valid until the next decode."""
        return self._logits[self._outputs[row]]

    def embed(self, inputs: Sequence[Sequence[int]], check: Callable[[], None] = lambda: None) -> list[array[float]]:
        with self._embedding_lock:
            if self._is_closed:  # It was closed while this thread waited.
                raise EngineStopped
            if self._embedding is None:
                self._embedding = LlamaEmbedding(
                    self._model, self.facts, self.facts.n_threads, self._new_watchdog, self._vector_pools
                )
            return self._embedding.embed(inputs, check)

    def pair_tokenizer(self, query: str, limit: int) -> Callable[[str], list[int]]:
        template = self.facts.metadata.get("tokenizer.chat_template.rerank", "")
        return pair_tokenizer(self.vocabulary, query, template, limit)

    def close(self) -> None:
        with self._embedding_lock:
            self._is_closed = True
            if self._embedding is not None:
                self._embedding.close()
        L.llama_free(self._context)
