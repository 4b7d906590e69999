"""The steps of a llama.cpp sampler chain for the sampling parameters of a request. Pure."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from ..core.params import SamplingParams

# LLAMA_DEFAULT_SEED, with which llama.cpp chooses a random seed.
_RANDOM_SEED = 0xFFFFFFFF
# The number of tokens from which Mirostat estimates, as in its paper.
_MIROSTAT_M = 100
# The smallest temperature. With a much smaller one the logits overflow; with this one sampling is already greedy.
_LEAST_TEMPERATURE = 1e-4
# Samplers that change which tokens are the likeliest, by the changed logits of some tokens.
REORDERING_STEPS = ("penalties", "dry")


@dataclass(frozen=True)
class Step:
    """One sampler of the chain: the name of its constructor without `llama_sampler_init_`, and its arguments."""

    name: str
    arguments: tuple[int | float, ...] = ()


GREEDY = Step("greedy")


def chain_steps(sampling: SamplingParams) -> list[Step]:
    """The steps for one request. The last one selects a token: llama.cpp aborts the process if none does."""
    seed = seed_of(sampling.seed)
    names = sampling.samplers
    if sampling.temperature <= 0:
        # The other samplers do not change which token is the likeliest.
        names = tuple(name for name in names if name in REORDERING_STEPS)
    elif sampling.mirostat:
        names = tuple(name for name in names if name in (*REORDERING_STEPS, "temperature"))
    steps = _effective_steps(sampling, seed)
    return [*(steps[name] for name in names if name in steps), _selecting_step(sampling, seed)]


def seed_of(seed: int | None) -> int:
    """The 32-bit seed of a sampler; a random one for None."""
    if seed is None:
        return secrets.randbelow(_RANDOM_SEED)
    return seed % _RANDOM_SEED


def _effective_steps(s: SamplingParams, seed: int) -> dict[str, Step]:
    """The steps of the samplers that have an effect, by the names of the samplers."""
    steps = {}
    if s.penalty_last_n and (s.repeat_penalty != 1 or s.frequency_penalty or s.presence_penalty):
        arguments = (s.penalty_last_n, s.repeat_penalty, s.frequency_penalty, s.presence_penalty)
        steps["penalties"] = Step("penalties", arguments)
    if s.dry_multiplier and s.dry_penalty_last_n:
        steps["dry"] = Step("dry", (s.dry_multiplier, s.dry_base, s.dry_allowed_length, s.dry_penalty_last_n))
    if s.top_n_sigma >= 0:
        steps["top_n_sigma"] = Step("top_n_sigma", (s.top_n_sigma,))
    if s.top_k > 0:
        steps["top_k"] = Step("top_k", (s.top_k,))
    if s.typical_p < 1:
        steps["typical_p"] = Step("typical", (s.typical_p, s.min_keep))
    if s.top_p < 1:
        steps["top_p"] = Step("top_p", (s.top_p, s.min_keep))
    if s.min_p > 0:
        steps["min_p"] = Step("min_p", (s.min_p, s.min_keep))
    if s.xtc_probability > 0:
        steps["xtc"] = Step("xtc", (s.xtc_probability, s.xtc_threshold, s.min_keep, seed))
    if s.dynatemp_range > 0:
        lowest, highest = max(s.temperature - s.dynatemp_range, _LEAST_TEMPERATURE), s.temperature + s.dynatemp_range
        steps["temperature"] = Step("temp_ext", ((highest + lowest) / 2, (highest - lowest) / 2, s.dynatemp_exponent))
    elif s.temperature != 1:
        steps["temperature"] = Step("temp", (max(s.temperature, _LEAST_TEMPERATURE),))
    return steps


def _selecting_step(s: SamplingParams, seed: int) -> Step:
    if s.temperature <= 0:
        return GREEDY
    if s.mirostat == 1:
        return Step("mirostat", (seed, s.mirostat_tau, s.mirostat_eta, _MIROSTAT_M))
    if s.mirostat == 2:
        return Step("mirostat_v2", (seed, s.mirostat_tau, s.mirostat_eta))
    if s.adaptive_target >= 0:
        return Step("adaptive_p", (s.adaptive_target, s.adaptive_decay, seed))
    return Step("dist", (seed,))
