"""Models with sliding-window attention: shared prefixes give the logits of prompts computed alone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("llama_cpp", reason="the engine needs llama-cpp-python")
pytest.importorskip("gguf", reason="part of the extra `bench`")

from localchat.serving.engine.batch import Batch, BatchChunk, Sequence
from localchat.serving.engine.llama import load_backend
from localchat.serving.engine.llama.backend import LlamaBackend
from localchat.serving.engine.values import EngineError, LoadOptions

from .tiny_models import write_sliding

N_WINDOW = 32
OPTIONS = LoadOptions(n_parallel=4, n_ctx=500, n_cells=512)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sliding") / "sliding.gguf"
    write_sliding(path, N_WINDOW)
    return path


@pytest.fixture
def backend(path: Path) -> Iterator[LlamaBackend]:
    backend = load_backend(str(path), OPTIONS)
    yield backend
    backend.close()


def compute(backend: LlamaBackend, slot: int, tokens: list[int], n_computed: int = 0) -> list[float]:
    """The logits after the last token."""
    sequence = Sequence(slot, list(tokens), 500)
    sequence.slot, sequence.n_computed = slot, n_computed
    n_new = len(tokens) - n_computed
    backend.decode(Batch(chunks=(BatchChunk(sequence, 0, n_new, wants_output=True),)))
    logits: list[float] = backend._row(n_new - 1).tolist()
    return logits


def test_more_sequences_than_the_limit_of_llama_cpp_are_refused_with_both_numbers(path: Path):
    with pytest.raises(EngineError, match=r"--parallel 128 is more than .* is 127"):
        load_backend(str(path), LoadOptions(n_parallel=128, n_ctx=500))
    load_backend(str(path), LoadOptions(n_parallel=127, n_ctx=500)).close()


def test_prefixes_of_idle_sequences_are_kept_beside_other_sequences(path: Path, backend: LlamaBackend):
    """llama.cpp frees a cell when no sequence attends to it any more; a second sequence keeps it."""
    alone = load_backend(str(path), OPTIONS)
    chance = random.Random(1)
    held: dict[int, list[int]] = {}
    for i in range(20):
        slot = i % 4
        held[slot] = [chance.randrange(1, 1900) for _ in range(chance.randint(100, 120))]
        backend.clear(slot)
        compute(backend, slot, held[slot])
        for source, tokens in held.items():
            backend.share(source, 5, 20)
            prompt = [*tokens[:20], 7]
            expected = compute(alone, 0, prompt)
            assert compute(backend, 5, prompt, 20) == pytest.approx(expected, abs=0.05)
            backend.clear(5)
            alone.clear(0)
    alone.close()
