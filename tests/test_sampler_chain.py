"""The steps of a sampler chain and their order."""

from __future__ import annotations

import pytest

from localchat.serving.core.params import SamplingParams
from localchat.serving.engine.llama.sampler import chain_steps, seed_of


def names(sampling: SamplingParams) -> list[str]:
    return [step[0] for step in chain_steps(sampling)]


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (SamplingParams(), ["top_k", "top_p", "dist"]),
        (SamplingParams(temperature=0), ["greedy"]),
        (SamplingParams(temperature=0.5, min_p=0.1), ["top_k", "top_p", "min_p", "temp", "dist"]),
        (SamplingParams(top_k=0, top_p=1.0), ["dist"]),
        (SamplingParams(temperature=0, repeat_penalty=1.1), ["penalties", "greedy"]),
        (SamplingParams(presence_penalty=0.5, top_p=1.0), ["penalties", "top_k", "dist"]),
        (SamplingParams(frequency_penalty=0.5, penalty_last_n=0, top_p=1.0), ["top_k", "dist"]),
        (SamplingParams(typical_p=0.9, top_n_sigma=1.0, top_p=1.0), ["top_n_sigma", "top_k", "typical", "dist"]),
        (SamplingParams(xtc_probability=0.5, dry_multiplier=0.8), ["dry", "top_k", "top_p", "xtc", "dist"]),
        (SamplingParams(dynatemp_range=0.5), ["top_k", "top_p", "temp_ext", "dist"]),
        (SamplingParams(mirostat=1, temperature=0.7, repeat_penalty=1.1), ["penalties", "temp", "mirostat"]),
        (SamplingParams(mirostat=2, top_k=5), ["mirostat_v2"]),
        (SamplingParams(adaptive_target=0.5, min_p=0.1, top_p=1.0), ["top_k", "min_p", "adaptive_p"]),
        (SamplingParams(adaptive_target=0.5, temperature=0), ["greedy"]),
        (SamplingParams(temperature=0, mirostat=2, dry_multiplier=1.0), ["dry", "greedy"]),
        (SamplingParams(temperature=0.5, samplers=("temperature", "top_k")), ["temp", "top_k", "dist"]),
        (SamplingParams(temperature=0.5, samplers=()), ["dist"]),
    ],
    ids=[
        "defaults",
        "greedy",
        "all cuts",
        "pure",
        "greedy with penalty",
        "presence",
        "penalty over no tokens",
        "typical and sigma",
        "xtc and dry",
        "dynamic temperature",
        "mirostat 1",
        "mirostat 2",
        "adaptive",
        "greedy before adaptive",
        "greedy before mirostat",
        "own order",
        "no steps",
    ],
)
def test_steps_are_in_order_and_only_those_with_an_effect(sampling: SamplingParams, expected: list[str]):
    assert names(sampling) == expected


def test_penalties_have_their_arguments_in_the_order_of_llama_cpp():
    sampling = SamplingParams(
        temperature=0, penalty_last_n=32, repeat_penalty=1.1, frequency_penalty=0.2, presence_penalty=0.3
    )
    assert chain_steps(sampling)[0][1:] == (32, 1.1, 0.2, 0.3)


@pytest.mark.parametrize(
    ("dynatemp_range", "expected"),
    [(0.25, (0.5, 0.25, 2.0)), (0.75, (0.625, 0.625, 2.0))],
    ids=["whole", "cut"],
)
def test_dynamic_temperature_has_its_middle_and_half_of_its_range(
    dynatemp_range: float, expected: tuple[float, float, float]
):
    sampling = SamplingParams(temperature=0.5, dynatemp_range=dynatemp_range, dynatemp_exponent=2.0, top_k=0, top_p=1)
    assert chain_steps(sampling)[0][1:] == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(("seed", "expected"), [(0, 0), (42, 42), (2**32 - 1, 0), (2**32, 1), (-1, 2**32 - 2)])
def test_seed_never_means_random(seed: int, expected: int):
    assert seed_of(seed) == expected


def test_missing_seed_is_random_each_time():
    assert len({seed_of(None) for _ in range(20)}) == 20
