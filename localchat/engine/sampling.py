"""From sampling values to the steps of a sampler chain, in order. Pure: builds no sampler itself.

The order is llama.cpp's own: bias, penalties, top_k, top_p, min_p, temperature, draw. Cutting to the
top k first makes every later step cheap: the others sort or exponentiate the whole vocabulary.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Optional, Union

from .values import Sampling

Number = Union[int, float]

# llama.cpp takes this seed for "choose one yourself".
_RANDOM_SEED = 0xFFFFFFFF


@dataclass(frozen=True)
class Step:
    """One sampler of the chain: the name of its constructor (without `llama_sampler_init_`) and its numbers."""

    name: str
    arguments: tuple[Number, ...] = ()


GREEDY = Step("greedy")


def chain_steps(sampling: Sampling) -> list[Step]:
    """The steps for one request. The last one selects a token: a chain that ends otherwise aborts the process."""
    steps = []
    if _has_penalties(sampling):
        steps.append(
            Step(
                "penalties",
                (
                    sampling.penalty_last_n,
                    sampling.repeat_penalty,
                    sampling.frequency_penalty,
                    sampling.presence_penalty,
                ),
            )
        )
    if sampling.temperature <= 0:
        return [*steps, GREEDY]
    if sampling.top_k > 0:
        steps.append(Step("top_k", (sampling.top_k,)))
    if sampling.top_p < 1:
        steps.append(Step("top_p", (sampling.top_p, 1)))
    if sampling.min_p > 0:
        steps.append(Step("min_p", (sampling.min_p, 1)))
    if sampling.temperature != 1:
        steps.append(Step("temp", (sampling.temperature,)))
    return [*steps, Step("dist", (seed_of(sampling.seed),))]


def seed_of(seed: Optional[int]) -> int:
    """The 32 bits that the sampler takes; None draws a fresh seed, 0 is a seed like any other."""
    if seed is None:
        return secrets.randbelow(_RANDOM_SEED)
    return seed % _RANDOM_SEED


def _has_penalties(sampling: Sampling) -> bool:
    changes = (sampling.repeat_penalty != 1, sampling.frequency_penalty != 0, sampling.presence_penalty != 0)
    return sampling.penalty_last_n != 0 and any(changes)
