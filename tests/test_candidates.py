"""Sampling from selected candidates of a large vocabulary gives the tokens that sampling from all of them gives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llama_cpp", reason="the engine needs llama-cpp-python")
pytest.importorskip("gguf", reason="part of the extra `bench`")

from bench.model import main
from localchat.serving.core.params import SamplingParams
from localchat.serving.engine import Delta, Engine, Finish, GenerationRequest, LoadOptions, load
from localchat.serving.engine.batch import Batch, BatchChunk, Sequence
from localchat.serving.engine.llama import load_backend
from localchat.serving.engine.llama.backend import LlamaBackend
from localchat.serving.engine.llama.candidates import largest_of_rows
from localchat.serving.engine.llama.sampler import Sampler
from localchat.serving.engine.self_test import passing_options
from localchat.serving.models.catalog import DEMO_PATH

from .generations import request_for, submit

N_VOCAB = 40_000
SAMPLING = SamplingParams(temperature=1.0, top_k=40, seed=5)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("likeliest") / "random.gguf"
    main([str(path), "--params", "3M", "--vocab", str(N_VOCAB), "--ctx", "512"])
    return path


def options_of(n_parallel: int) -> LoadOptions:
    """Options that avoid the matrix instructions of the CPU if they crash."""
    return passing_options(LoadOptions(n_parallel=n_parallel, n_ctx=512), str(DEMO_PATH))


@pytest.fixture(scope="module")
def backend(path: Path) -> Iterator[LlamaBackend]:
    """A backend that has computed the logits of three rows."""
    backend = load_backend(str(path), options_of(3))
    chunks = [BatchChunk(Sequence(i, [7 + i, 8, 9], 20), i, 3 * i, 3, wants_output=True) for i in range(3)]
    backend.decode(Batch(chunks=tuple(chunks)))
    yield backend
    backend.close()


ROWS = (2, 5, 8)


def request(sampling: SamplingParams, **options: Any) -> GenerationRequest:
    return request_for((7, 8, 9), sampling=sampling, **options)


@pytest.mark.parametrize(
    ("sampling", "options"),
    [
        (SAMPLING, {}),
        (SAMPLING, {"ignore_eos": True}),
        (SAMPLING, {"min_tokens": 6}),
        (SAMPLING, {"post_sampling_probs": True, "top_logprobs": 3}),
        (replace(SAMPLING, top_k=1), {}),
        (replace(SAMPLING, top_p=0.9, min_p=0.01), {}),
        (replace(SAMPLING, repeat_penalty=1.5, frequency_penalty=1.0), {}),
        (replace(SAMPLING, logit_bias=((7, 30.0), (8, -100.0))), {}),
        (replace(SAMPLING, temperature=0.0, presence_penalty=2.0), {}),
    ],
)
def test_samples_are_those_from_all_tokens(backend: LlamaBackend, sampling: SamplingParams, options: dict[str, Any]):
    def samplers() -> list[Sampler]:
        return [backend.new_sampler(request(replace(sampling, seed=row), **options)) for row in ROWS]

    quick, slow = samplers(), samplers()
    for n_sampled in range(50):
        assert backend.select_candidates([(sampler, row, 0) for sampler, row in zip(quick, ROWS)])
        tokens = [backend.sample(sampler, row) for sampler, row in zip(quick, ROWS)]
        backend._candidates.clear()
        assert [backend.sample(sampler, row) for sampler, row in zip(slow, ROWS)] == tokens
        sampled_logprobs = [
            [backend.sampled_logprobs(*pair, 3) for pair in zip(half, tokens)] for half in (quick, slow)
        ]
        assert sampled_logprobs[0] == sampled_logprobs[1]
        if options.get("min_tokens") == n_sampled + 1:
            for sampler in (*quick, *slow):
                backend.allow_ends(sampler)
    for sampler in (*quick, *slow):
        backend.free_sampler(sampler)


def test_candidates_of_a_draft_are_selected_in_one_pass(backend: LlamaBackend):
    """The penalties of a row count the tokens sampled before it, which are among the likeliest."""
    sampling = replace(SAMPLING, top_k=2, presence_penalty=50.0, penalty_last_n=8)
    for row in ROWS:
        quick, slow = (backend.new_sampler(request(replace(sampling, seed=row))) for _ in range(2))
        draft = (row,) * 6  # Equal logits, so the likeliest tokens are soon all sampled.
        assert backend.select_candidates([(quick, row, i) for i, row in enumerate(draft)])
        tokens = [backend.sample(quick, row) for row in draft]
        backend._candidates.clear()
        assert [backend.sample(slow, row) for row in draft] == tokens
        backend.free_sampler(quick)
        backend.free_sampler(slow)


@pytest.mark.parametrize("n_others", [0, 1, 3])
def test_draft_is_sampled_like_single_tokens_on_any_thread(path: Path, n_others: int):
    """The penalties of a row count the tokens of the draft before the row, on whichever thread it is sampled."""
    backend = load_backend(str(path), options_of(4))
    decode, steps = backend.decode, [0.0]

    def decode_descending(batch: Batch) -> None:
        decode(batch)
        steps[0] += 1  # The clock: a draft takes no time, so there are many.
        if backend._outputs:
            backend._logits[:] = -np.arange(N_VOCAB)

    backend.decode = decode_descending  # type: ignore[method-assign]
    prompt = (*range(60), *[N_VOCAB - 3] * 64, 0, 1, 2)  # The drafted tokens are outside of the window of the penalty.
    new = SamplingParams(temperature=0, presence_penalty=1e6, penalty_last_n=64)
    with Engine(backend, clock=lambda: steps[0]).start() as engine:
        others = [
            submit(engine, request_for((5, 6, 7), sampling=SamplingParams(temperature=0))) for _ in range(n_others)
        ]
        *deltas, finish = submit(engine, request_for(prompt, max_tokens=40, sampling=new))
        for other in others:
            other.cancel()
        tokens = [token.id for delta in deltas if isinstance(delta, Delta) for token in delta.tokens]
        assert tokens == list(range(3, 43))
        assert isinstance(finish, Finish)
        assert finish.usage.n_draft_accepted > 10


def test_sampler_that_needs_all_tokens_works_beside_one_that_does_not(backend: LlamaBackend):
    kinds = (SAMPLING, replace(SAMPLING, top_k=0), replace(SAMPLING, top_k=20))
    samplers = [backend.new_sampler(request(sampling)) for sampling in kinds]
    assert not backend.select_candidates([(sampler, row, 0) for sampler, row in zip(samplers, ROWS)])
    assert set(backend._candidates) == {2, 8}
    assert all(set(np.argsort(-backend._row(row))[:20]) <= set(found) for row, found in backend._candidates.items())
    for sampler in samplers:
        backend.free_sampler(sampler)


def test_streams_of_all_kinds_complete_together(path: Path):
    kinds = (SAMPLING, replace(SAMPLING, top_k=0), SamplingParams(temperature=0), replace(SAMPLING, repeat_penalty=1.3))
    with load(str(path), LoadOptions(n_parallel=8, n_ctx=512)) as engine:
        for n_streams, kind in product((1, 3, 8), ("same", "mixed")):
            generations = [
                submit(engine, request(kinds[i % 4] if kind == "mixed" else SAMPLING, max_tokens=20, ignore_eos=True))
                for i in range(n_streams)
            ]
            for generation in generations:
                assert sum(len(item.tokens) for item in generation if isinstance(item, Delta)) == 20


@pytest.mark.parametrize("n", [1, 40, 100])
@pytest.mark.parametrize("n_tokens", [32_000, 40_001, 65_599])
def test_largest_of_each_row_are_found(n: int, n_tokens: int):
    chance = np.random.default_rng(n)
    logits = chance.standard_normal((5, n_tokens)).astype(np.float32)
    # The largest are at the end, outside of all columns; or side by side; or all values are equal.
    logits[1] = np.arange(n_tokens)
    logits[2] = -np.arange(n_tokens)
    logits[3] = 0
    for i, (row, found) in enumerate(zip(logits, largest_of_rows(logits, n))):
        if found is None:
            assert i in (1, 3)
            continue
        assert n <= len(found) <= 4 * n
        assert len(set(found)) == len(found)
        assert sorted(row[found])[-n:] == sorted(row)[-n:]
