"""Sampling options and limits of a request over a socket: each reaches the engine and overrides the default."""

from __future__ import annotations

import dataclasses
import math

import pytest

from localchat.serving.chat.model import Model
from localchat.serving.core.params import SamplingParams, parse_default

from .fakes import endless
from .serving import serving


@pytest.fixture(scope="module")
def running():
    with serving() as running:
        yield running


DRY = {"dry_multiplier": 0.8, "dry_base": 2, "dry_allowed_length": 3, "dry_penalty_last_n": 9}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"temperature": 0, "top_p": 0, "top_k": 0, "min_p": 0}, None),
        (
            {"typical": 0.5, "repetition_penalty": 1.2, "repeat_last_n": 7},
            {"typical_p": 0.5, "repeat_penalty": 1.2, "penalty_last_n": 7},
        ),
        ({"top_n_sigma": 1.5, "xtc_probability": 0.5, "dynatemp_range": 0.5, "mirostat_tau": 4, "seed": 11}, None),
        ({**DRY, "dry_sequence_breakers": ["."]}, {**DRY, "dry_sequence_breakers": (".",)}),
        # adaptive_p is no step of the chain: it samples the token.
        (
            {"adaptive_target": 0.5, "samplers": ["typ_p", "adaptive_p"]},
            {"adaptive_target": 0.5, "samplers": ("typical_p",)},
        ),
        ({"logit_bias": {"97": 5}}, {"logit_bias": ((97, 5.0),)}),
        ({"logit_bias": {"ab": -1}}, {"logit_bias": ((97, -1.0), (98, -1.0))}),
        ({"logit_bias": [[97, 1], ["b", False]]}, {"logit_bias": ((97, 1.0), (98, -math.inf))}),
    ],
)
def test_v9_sampling_fields_reach_the_engine(running, fields, expected):
    """V9, T48, G3, K42, and llama.cpp's table of sampling fields. None: the fields themselves."""
    assert running.chat(**fields)[0] == 200
    sampling = running.requests[-1].sampling
    assert dataclasses.replace(sampling, **(expected or fields)) == sampling


@pytest.mark.parametrize(
    ("fields", "attribute", "value"),
    [
        ({"max_completion_tokens": 3, "n_predict": 9}, "max_tokens", 3),
        ({"n_predict": -1}, "max_tokens", None),
        ({"ignore_eos": True, "max_tokens": 3}, "ignore_eos", True),
        ({"stop": ["x", "y"]}, "stop", ("x", "y")),
        ({"stop": None}, "stop", ()),
        ({"n_probs": 2}, "top_logprobs", 2),
        ({"t_max_predict_ms": 1500}, "max_completion_s", 1.5),
    ],
)
def test_limits_reach_the_engine(running, fields, attribute, value):
    """T25, G8, K11, K41, V13."""
    assert running.chat(**fields)[0] == 200
    assert getattr(running.requests[-1].params, attribute) == value


def test_k9_request_then_command_line_then_model_then_built_in():
    """K9, G2, V4: and an explicit zero counts at every level (G3)."""
    with serving() as running:
        facts = dataclasses.replace(
            running.engine.facts, sampling=SamplingParams(temperature=0.5, top_k=20, top_p=0.5, min_p=0.3)
        )
        running.engine.facts = facts
        options = ("top_p=0.6", "min_p=0", "top_k=30", "seed=7")
        defaults = {name: value for option in options for name, value in parse_default(option).items()}
        running.server.service.ready(Model("Fake", running.engine, defaults=defaults))
        running.chat(top_k=0)
        running.chat(seed=-1)
        sampling = running.requests[0].sampling
    assert [request.sampling.seed for request in running.requests] == [7, None]
    assert (sampling.top_k, sampling.top_p, sampling.min_p) == (0, 0.6, 0)
    assert (sampling.temperature, sampling.repeat_penalty) == (0.5, 1.0)
    assert (SamplingParams().temperature, SamplingParams().top_p, SamplingParams().top_k) == (1.0, 0.95, 64)


def test_v13_without_a_limit_the_context_is_the_limit():
    """V13, K9, G32: the end of the context is `length`, as is a default limit."""
    with serving(endless, n_ctx=16) as running:
        _, body = running.chat(content="hello")
        _, more = running.chat(content="hello", max_tokens=1000)
    for found in (body, more):
        assert found["usage"]["total_tokens"] == 16
        assert found["choices"][0]["finish_reason"] == "length"


def test_g32_natural_end_at_exactly_the_limit_is_stop():
    with serving() as running:
        _, body = running.chat(content="ab", max_tokens=3)
    assert body["choices"][0]["finish_reason"] == "stop"


def test_seeds_of_the_choices_differ():
    """T17: with equal seeds, all choices would have the same text."""
    with serving() as running:
        running.chat(n=3, seed=5)
        assert [request.sampling.seed for request in running.requests] == [5, 6, 7]
