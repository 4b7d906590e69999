"""The steps of a llama.cpp sampler chain for the sampling parameters of a request. Pure."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass

from ..protocol.params import SamplingParams

# LLAMA_DEFAULT_SEED, with which llama.cpp chooses a random seed.
_RANDOM_SEED = 0xFFFFFFFF
# The number of tokens from which Mirostat estimates, as in its paper.
_MIROSTAT_M = 100
# The smallest temperature. With a much smaller one the logits overflow; with this one sampling is already greedy.
_LEAST_TEMPERATURE = 1e-4


@dataclass(frozen=True)
class Step:
    """One sampler of the chain: the name of its constructor without `llama_sampler_init_`, and its arguments."""

    name: str
    arguments: tuple[int | float, ...] = ()


GREEDY = Step("greedy")


def chain_steps(sampling: SamplingParams) -> list[Step]:
    """The steps for one request. The last one selects a token: llama.cpp aborts the process if none does."""
    seed = seed_of(sampling.seed)
    greedy = sampling.temperature <= 0
    wanted = sampling.samplers
    if greedy:
        # The other samplers do not change which token is the likeliest.
        wanted = tuple(name for name in wanted if name in ("penalties", "dry"))
    elif sampling.mirostat:
        wanted = tuple(name for name in wanted if name in ("penalties", "dry", "temperature"))
    steps = [step for name in wanted if (step := _STEPS[name](sampling, seed)) is not None]
    return [*steps, GREEDY if greedy else _selecting_step(sampling, seed)]


def seed_of(seed: int | None) -> int:
    """The 32-bit seed of a sampler; a random one for None."""
    if seed is None:
        return secrets.randbelow(_RANDOM_SEED)
    return seed % _RANDOM_SEED


def _selecting_step(s: SamplingParams, seed: int) -> Step:
    if s.mirostat == 1:
        return Step("mirostat", (seed, s.mirostat_tau, s.mirostat_eta, _MIROSTAT_M))
    if s.mirostat == 2:
        return Step("mirostat_v2", (seed, s.mirostat_tau, s.mirostat_eta))
    if s.adaptive_target >= 0:
        return Step("adaptive_p", (s.adaptive_target, s.adaptive_decay, seed))
    return Step("dist", (seed,))


def _penalties(s: SamplingParams, seed: int) -> Step | None:
    changes = (s.repeat_penalty != 1, s.frequency_penalty != 0, s.presence_penalty != 0)
    if s.penalty_last_n == 0 or not any(changes):
        return None
    return Step("penalties", (s.penalty_last_n, s.repeat_penalty, s.frequency_penalty, s.presence_penalty))


def _dry(s: SamplingParams, seed: int) -> Step | None:
    if s.dry_multiplier == 0 or s.dry_penalty_last_n == 0:
        return None
    return Step("dry", (s.dry_multiplier, s.dry_base, s.dry_allowed_length, s.dry_penalty_last_n))


def _temperature(s: SamplingParams, seed: int) -> Step | None:
    if s.dynatemp_range > 0:
        lowest, highest = max(s.temperature - s.dynatemp_range, _LEAST_TEMPERATURE), s.temperature + s.dynatemp_range
        return Step("temp_ext", ((highest + lowest) / 2, (highest - lowest) / 2, s.dynatemp_exponent))
    return Step("temp", (max(s.temperature, _LEAST_TEMPERATURE),)) if s.temperature != 1 else None


def _xtc(s: SamplingParams, seed: int) -> Step | None:
    if s.xtc_probability <= 0:
        return None
    return Step("xtc", (s.xtc_probability, s.xtc_threshold, s.min_keep, seed))


_STEPS: dict[str, Callable[[SamplingParams, int], Step | None]] = {
    "penalties": _penalties,
    "dry": _dry,
    "top_n_sigma": lambda s, seed: Step("top_n_sigma", (s.top_n_sigma,)) if s.top_n_sigma >= 0 else None,
    "top_k": lambda s, seed: Step("top_k", (s.top_k,)) if s.top_k > 0 else None,
    "typical_p": lambda s, seed: Step("typical", (s.typical_p, s.min_keep)) if s.typical_p < 1 else None,
    "top_p": lambda s, seed: Step("top_p", (s.top_p, s.min_keep)) if s.top_p < 1 else None,
    "min_p": lambda s, seed: Step("min_p", (s.min_p, s.min_keep)) if s.min_p > 0 else None,
    "xtc": _xtc,
    "temperature": _temperature,
}
