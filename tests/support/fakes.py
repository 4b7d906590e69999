"""A backend without llama.cpp: tokens are bytes, and the model is a function.

The backend checks the rules of llama.cpp: contiguous positions, no more cells than there are, slots in range, and
logits only of rows that request them. It also checks that shared cells have the right tokens.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import re
import threading
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from localchat.serving.core.errors import BadRequest
from localchat.serving.core.media import MediaFile
from localchat.serving.core.params import SamplingParams
from localchat.serving.engine.batch import Batch, BatchChunk, CacheLimits
from localchat.serving.engine.kv_cache import KVCache
from localchat.serving.engine.media.decoding import decode
from localchat.serving.engine.protocols import CopyFailed, DecodeFailed, NoFreeCells
from localchat.serving.engine.sequence import MediaChunk
from localchat.serving.engine.values import (
    Adapters,
    EngineError,
    ModelFacts,
    SequenceRequest,
    TokenTexts,
    text_too_long,
)

END = 256
N_VOCAB = 257


def echo(tokens: list[int], n_prompt: int) -> int:
    """A model that repeats its prompt, then ends."""
    n_generated = len(tokens) - n_prompt
    return tokens[n_generated] if n_generated < n_prompt else END


def endless(tokens: list[int], n_prompt: int) -> int:
    """A model that generates the letters of the alphabet in order and never ends."""
    return ord("a") + (len(tokens) - n_prompt) % 26


class Cell(NamedTuple):
    """A cell of the KV cache, with what it was computed of."""

    number: int  # Slots that share a cell have the same number.
    token: int
    adapters: Adapters
    n_rows: int  # The rows of its sequence in the step that computed it.


class FakeCells:
    """The cells of a context, by slot, without a model. Operations that break a rule of llama.cpp are errors.

    A step that continues cells of other tokens or of other adapters is an error.
    """

    def __init__(self, limits: CacheLimits, *, n_each: int | None = None, n_real_cells: int | None = None):
        self.limits = limits
        # The limit of cells of a slot, and the number of all cells, which may differ from that in `limits`.
        self._n_each = limits.n_cells if n_each is None else n_each
        self._n_real_cells = limits.n_cells if n_real_cells is None else n_real_cells
        self.slots: dict[int, list[Cell]] = {slot: [] for slot in range(limits.n_slots)}
        # The position of each cell, by its number. All cells of an image with M-RoPE have that of the first one.
        self.positions: dict[int, int] = {}
        self.failing: set[str] = set()  # The names of operations that fail, such as for lack of memory.
        # What `clock` returns, and the seconds of a step: some in any case, some for each of its rows, and some if a
        # sequence has several rows.
        self.now = 0.0
        self.step_s, self.row_s, self.several_rows_s = 0.0, 0.001, 0.0
        # The operations since the last call of `take_operations`, each a name and its arguments.
        self._operations: list[tuple[Any, ...]] = []
        self._numbers = itertools.count()

    def clock(self) -> float:
        return self.now

    def take_operations(self) -> list[tuple[Any, ...]]:
        operations, self._operations = self._operations, []
        return operations

    def clear(self, slot: int) -> None:
        self._operations.append(("clear", slot))
        self.slots[slot].clear()

    def share(self, source: int, target: int, position: int) -> None:
        self._operations.append(("share", source, target, position))
        assert not self.slots[target], "the target is not empty"
        shared = self._before(source, position)
        assert shared
        assert self.limits.can_truncate or shared == self.slots[source]
        assert self.limits.is_unified
        self.slots[target] = shared

    def state(self, slot: int) -> list[Cell]:
        self._operations.append(("state", slot))
        assert not self.limits.is_unified
        assert self.slots[slot]
        if "state" in self.failing:
            raise CopyFailed("there is no memory")
        return list(self.slots[slot])

    def set_state(self, slot: int, state: list[Cell]) -> None:
        self._operations.append(("set_state", slot))
        assert not self.limits.is_unified
        assert not self.slots[slot], "the target is not empty"
        copies = [cell._replace(number=next(self._numbers)) for cell in state]
        self.positions.update((copy.number, self.positions[cell.number]) for cell, copy in zip(state, copies))
        if "set_state" in self.failing:
            self.slots[slot] = copies[: len(copies) // 2]
            raise CopyFailed("there is no memory")
        self.slots[slot] = copies

    def truncate(self, slot: int, position: int) -> bool:
        self._operations.append(("truncate", slot, position))
        assert self.limits.can_truncate
        kept = self._before(slot, position)
        assert len(kept) < len(self.slots[slot])
        if "truncate" in self.failing:
            return False
        self.slots[slot] = kept
        return True

    def _before(self, slot: int, position: int) -> list[Cell]:
        """The cells of a slot before a position, which must be one at which llama.cpp could cut."""
        kept = [cell for cell in self.slots[slot] if self.positions[cell.number] < position]
        assert kept == self.slots[slot][: len(kept)]
        return kept

    def decode(self, batch: Batch) -> None:
        """Fill the cells of a batch.

        Raises:
            NoFreeCells: There are not enough free cells. Nothing is changed.
        """
        n_most = sum(map(len, self.slots.values())) + batch.n_tokens  # Slots that share cells count each of them.
        if n_most > self._n_real_cells and self.n_cells_used() + batch.n_tokens > self._n_real_cells:
            raise NoFreeCells
        assert len(batch.chunks) == 1 or not any(chunk.sequence.span for chunk in batch.chunks), "tokens beside media"
        for chunk in batch.chunks:
            cells = self.slots[chunk.slot]
            n_computed = chunk.sequence.n_computed
            assert [cell.token for cell in cells] == chunk.sequence.tokens[:n_computed], "the slot has other tokens"
            assert all(cell.adapters == batch.adapters for cell in cells), "the cells are those of other adapters"
            assert chunk.sequence.adapters == batch.adapters, "a step has one set of adapters"
            new = [Cell(next(self._numbers), token, batch.adapters, chunk.n_tokens) for token in chunk.tokens()]
            self._set_positions(chunk, [cell.number for cell in new])
            cells.extend(new)
            assert len(cells) <= self._n_each
        several_rows_s = self.several_rows_s * any(chunk.n_tokens > 1 for chunk in batch.chunks)
        self.now += self.step_s + batch.n_tokens * self.row_s + several_rows_s

    def _set_positions(self, chunk: BatchChunk, numbers: list[int]) -> None:
        """Set the positions of new cells, which are tokens, or rows of one image or sound that is encoded."""
        n_computed, span = chunk.sequence.n_computed, chunk.sequence.span
        first = chunk.sequence.position_of(n_computed)
        held = self.slots[chunk.slot]
        if span is None:
            assert min(chunk.tokens()) >= 0
            assert not held or first > self.positions[held[-1].number]
            assert chunk.sequence.spans or first == n_computed
            self.positions.update(zip(numbers, itertools.count(first)))
            return
        assert set(chunk.tokens()) == {span.chunk.placeholder}
        assert span.chunk.rows is not None
        assert not chunk.wants_output
        offset, n_cells = n_computed - span.start, span.chunk.n_cells
        assert span.chunk.is_causal or (offset, chunk.n_tokens) == (0, n_cells)
        is_mrope = span.chunk.n_positions < n_cells
        self.positions.update((id, span.position + (0 if is_mrope else i)) for i, id in enumerate(numbers, offset))

    def n_cells_used(self) -> int:
        return len({cell.number for cells in self.slots.values() for cell in cells})

    def check(self, cache: KVCache) -> None:
        """Checks between two steps that what a KVCache knows of each slot is what the slot has."""
        assert len(cache._contents) == len(self.slots)
        for (slot, cells), content in zip(self.slots.items(), cache._contents):
            tokens = [cell.token for cell in cells]
            if content is None:
                assert not tokens, f"slot {slot} is free and has cells"
                continue
            assert all(cell.adapters == content.adapters for cell in cells)
            assert tokens == content.tokens[: content.n_tokens]
            assert content.n_exact <= content.n_tokens
            if content.sequence is None:
                assert tokens, f"slot {slot} is idle without tokens"
            else:
                assert (content.sequence.slot, content.sequence.adapters) == (slot, content.adapters)
                assert not content.idle_tokens
        n_active, n_idle = cache.n_cells()
        assert n_active == min(sum(len(self.slots[slot]) for slot in cache.active), self.limits.n_cells)
        assert n_active + n_idle <= self.limits.n_cells


class FakeProjector:
    """A projector without libmtmd.

    The data of its images may be their name, cells, positions, whether they are causal, and chunks, such as
    b"a 40 40 1 1". Other files are decoded and have four cells. `gate` is acquired before each encoding.
    """

    around = ord("<"), ord(">")  # The tokens around an image.

    def __init__(self, gate: threading.Semaphore | None = None) -> None:
        self.gate = gate
        self.encoded: list[str] = []  # The names of what was encoded, in order.
        self.broken: set[str] = set()  # The names of what cannot be encoded,
        self.error: Exception = EngineError("no memory")  # and the error that this raises.
        self.is_closed = False

    def prompt_items(self, file: MediaFile) -> list[int | MediaChunk]:
        name, n_cells, n_positions, is_causal, n_chunks = self._read(file)
        if name == "bad":
            raise BadRequest("it cannot be decoded")
        begin, end = self.around
        chunks = [MediaChunk(n_cells, n_positions, bool(is_causal)) for _ in range(n_chunks)]
        return [begin, *(item for chunk in chunks for item in (chunk, end))]

    def encode(self, file: MediaFile) -> list[bytes]:
        name, *_, n_chunks = self._read(file)
        if self.gate is not None:
            assert self.gate.acquire(timeout=60), "the test never opened the gate"
        self.encoded.append(name)
        if name in self.broken:
            raise self.error
        return [bytes(1000)] * n_chunks

    def close(self) -> None:
        self.is_closed = True

    @staticmethod
    def _read(file: MediaFile) -> tuple[str, int, int, int, int]:
        found = re.fullmatch(rb"(\w+) (\d+) (\d+) (\d) (\d)", file.data)
        if found is None:
            decode(file, 16_000)
            return hashlib.sha256(file.data).hexdigest(), 4, 4, 1, 1
        name, *numbers = found.groups()
        return (name.decode(), *map(int, numbers))  # type: ignore[return-value]


class FakeSampler:
    """Knows the length of the prompt of its request, which is an argument of the model."""

    def __init__(self, request: SequenceRequest) -> None:
        self.n_prompt = len(request.prompt)

    def sample_forced(self) -> int | None:
        return None

    def sampled_logprobs(self, token: int, n_top: int) -> tuple[float, list[tuple[int, float]]]:
        return math.log(0.75), [(token, math.log(0.75)), (0, math.log(0.25))][:n_top]


class FakeBackend(FakeCells):
    """A backend with a byte-level model: `model(tokens so far, length of the prompt)` returns the next token."""

    def __init__(
        self,
        model: Callable[[list[int], int], int] = echo,
        *,
        n_ctx: int = 256,
        n_cells: int = 1024,
        n_parallel: int = 4,
        n_idle: int = 4,
        n_batch: int = 128,
        can_truncate: bool = True,
        max_drafted: int = 0,
        n_real_cells: int | None = None,  # If it is less than the backend reports in `n_cells`.
        poison: int | None = None,  # A token; a batch that contains it fails.
        gate: threading.Semaphore | None = None,  # Acquired before each decode: the test decides when a step runs.
        n_vocab: int = N_VOCAB,
        is_unified: bool = True,
        chat_template: str | None = None,
        fim: Mapping[str, Any] | None = None,  # The FIM tokens, by their names in ModelFacts.
        modalities: tuple[str, ...] = (),
        metadata: Mapping[str, str] = {},
    ):
        self.facts = ModelFacts(
            description="a fake", n_params=0, n_bytes=0, n_vocab=n_vocab, n_ctx_train=n_ctx, n_ctx=n_ctx,
            n_cells=n_cells, n_parallel=n_parallel, chat_template=chat_template, bos="", eos="", add_bos=False,
            special_tokens=frozenset(), sampling=SamplingParams(), metadata=metadata, modalities=modalities,
            **(fim or {}),
        )  # fmt: skip
        n_slots = n_parallel + n_idle
        limits = CacheLimits(n_cells, n_parallel, n_slots, n_batch, can_truncate, max_drafted, is_unified=is_unified)
        super().__init__(limits, n_each=n_cells if is_unified else n_ctx, n_real_cells=n_real_cells)
        texts = [*(bytes([i]) for i in range(END)), *[b""] * (n_vocab - END)]
        self.texts = TokenTexts(texts, frozenset(), frozenset({END}))
        self.model, self.poison, self.gate = model, poison, gate
        # The sequences that were submitted, in order.
        self.requests: list[SequenceRequest] = []
        # The chunks of each batch: (slot, first position, n_tokens, wants_output).
        self.batches: list[list[tuple[int, int, int, bool]]] = []
        self.is_closed = False
        self._outputs: dict[int, list[int]] = {}

    def tokenize(self, text: str, *, limit: int | None = None, **options: bool) -> list[int]:
        tokens = list(text.encode())
        if limit is not None and len(tokens) > limit:
            raise text_too_long(len(tokens), limit)
        return tokens

    def new_sampler(self, request: SequenceRequest) -> Any:
        self.requests.append(request)
        return FakeSampler(request)

    def decode(self, batch: Batch) -> None:
        if self.gate is not None:
            assert self.gate.acquire(timeout=60), "the test never opened the gate"
        assert 0 < batch.n_tokens <= self.limits.n_batch
        if any(self.poison in chunk.tokens() for chunk in batch.chunks):
            raise DecodeFailed("the batch is poisoned")
        if not self.limits.is_unified and batch.chunks[0].sequence.span is None:
            # A tile or more of prompts, as many rows of each, or less than a tile of each sequence.
            slots, n_rows = zip(*((chunk.slot, chunk.n_tokens) for chunk in batch.chunks))
            assert list(slots) == sorted(slots)
            assert max(n_rows) < 64 or len(set(n_rows)) == 1
            # llama.cpp divides larger batches, perhaps into less than a tile of each sequence.
            assert max(n_rows) < 64 or sum(n_rows) <= 512
        super().decode(batch)
        self._outputs = {}
        record, next_row = [], 0
        for chunk in batch.chunks:
            assert chunk.first == next_row, "rows have gaps"
            next_row += chunk.n_tokens
            tokens = [cell.token for cell in self.slots[chunk.slot]]
            for row in chunk.output_rows:
                self._outputs[row] = tokens[: len(tokens) - (chunk.first + chunk.n_tokens - 1 - row)]
            record.append((chunk.slot, chunk.sequence.n_computed, chunk.n_tokens, chunk.wants_output))
        assert len(self._outputs) <= self.limits.n_parallel + self.limits.max_drafted
        self.batches.append(record)

    def sample(self, sampler: Any, row: int) -> int:
        return self.model(self._outputs[row], sampler.n_prompt)

    def logprobs(self, row: int, token: int, n_top: int) -> tuple[float, list[tuple[int, float]]]:
        assert row in self._outputs
        return -0.5, [(token, -0.5), (0, -1.5), (1, -2.5)][:n_top]

    def embed(self, inputs: Sequence[Sequence[int]], check: Callable[[], None] = lambda: None) -> list[array[float]]:
        check()
        return [array("f", [sum(tokens), len(tokens)]) for tokens in inputs]

    def pair_tokenizer(self, query: str, limit: int) -> Callable[[str], list[int]]:
        return lambda document: [*query.encode(), *document.encode()]

    def prepare_constraints(self) -> None: ...

    def close(self) -> None:
        self.is_closed = True
