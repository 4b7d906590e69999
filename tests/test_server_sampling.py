"""Sampling options and limits of a request over a socket: each reaches the engine and overrides the default."""

from __future__ import annotations

import dataclasses
import math

import pytest

from localchat.serving.chat.model import Model
from localchat.serving.core.params import SamplingParams, parse_default

from .fakes import endless
from .serving import serving


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({"temperature": 0, "top_p": 0, "top_k": 0, "min_p": 0}, {"temperature": 0, "top_k": 0}, id="g3"),
        pytest.param({"typical_p": 0.5}, {"typical_p": 0.5}, id="typical_p"),
        pytest.param({"typical": 0.5}, {"typical_p": 0.5}, id="typical"),
        pytest.param({"top_n_sigma": 1.5}, {"top_n_sigma": 1.5}, id="top_n_sigma"),
        pytest.param(
            {"xtc_probability": 0.5, "xtc_threshold": 0.2}, {"xtc_probability": 0.5, "xtc_threshold": 0.2}, id="xtc"
        ),
        pytest.param(
            {"dynatemp_range": 0.5, "dynatemp_exponent": 2}, {"dynatemp_range": 0.5, "dynatemp_exponent": 2}, id="dyn"
        ),
        pytest.param(
            {
                "dry_multiplier": 0.8,
                "dry_base": 2,
                "dry_allowed_length": 3,
                "dry_penalty_last_n": 9,
                "dry_sequence_breakers": ["."],
            },
            {
                "dry_multiplier": 0.8,
                "dry_base": 2,
                "dry_allowed_length": 3,
                "dry_penalty_last_n": 9,
                "dry_sequence_breakers": (".",),
            },
            id="dry",
        ),
        pytest.param(
            {"mirostat": 2, "mirostat_tau": 4, "mirostat_eta": 0.2},
            {"mirostat": 2, "mirostat_tau": 4, "mirostat_eta": 0.2},
            id="mirostat",
        ),
        pytest.param({"repetition_penalty": 1.2}, {"repeat_penalty": 1.2}, id="k42"),
        pytest.param({"repeat_last_n": 7}, {"penalty_last_n": 7}, id="repeat_last_n"),
        pytest.param({"presence_penalty": 1, "frequency_penalty": -1}, {"presence_penalty": 1}, id="penalties"),
        pytest.param({"min_keep": 3, "seed": 11}, {"min_keep": 3, "seed": 11}, id="min_keep and seed"),
        pytest.param({"samplers": ["top_k", "typ_p"]}, {"samplers": ("top_k", "typical_p")}, id="samplers"),
        pytest.param(
            {"adaptive_target": 0.5, "adaptive_decay": 0.2, "samplers": ["min_p", "adaptive_p"]},
            {"adaptive_target": 0.5, "adaptive_decay": 0.2, "samplers": ("min_p",)},
            id="adaptive_p, which is no step but the draw",
        ),
        pytest.param({"logit_bias": {"97": 5}}, {"logit_bias": ((97, 5.0),)}, id="bias by id"),
        pytest.param({"logit_bias": {"ab": -1}}, {"logit_bias": ((97, -1.0), (98, -1.0))}, id="bias by text"),
        pytest.param(
            {"logit_bias": [[97, 1], ["b", False], ["7", 2]]},
            {"logit_bias": ((97, 1.0), (98, -math.inf), (55, 2.0))},
            id="bias by pairs",
        ),
    ],
)
def test_v9_sampling_fields_reach_the_engine(fields, expected):
    """V9, T48, G3, K42, and llama.cpp's table of sampling fields."""
    with serving() as running:
        assert running.chat(**fields)[0] == 200
        sampling = running.requests[-1].sampling
    assert dataclasses.replace(sampling, **expected) == sampling


@pytest.mark.parametrize(
    ("fields", "attribute", "value"),
    [
        pytest.param({"max_tokens": 3}, "max_tokens", 3, id="max_tokens"),
        pytest.param({"max_completion_tokens": 3, "n_predict": 9}, "max_tokens", 3, id="k41"),
        pytest.param({"n_predict": -1}, "max_tokens", None, id="v13-no limit"),
        pytest.param({"min_tokens": 2}, "min_tokens", 2, id="min_tokens"),
        pytest.param({"ignore_eos": True, "max_tokens": 3}, "ignore_eos", True, id="ignore_eos"),
        pytest.param({"stop": ["x", "y"]}, "stop", ("x", "y"), id="t25"),
        pytest.param({"stop": None}, "stop", (), id="t25-null"),
        pytest.param({"stop_token_ids": [5]}, "stop_token_ids", (5,), id="g8"),
        pytest.param({"n_probs": 2}, "top_logprobs", 2, id="n_probs"),
        pytest.param({"t_max_predict_ms": 1500}, "max_completion_s", 1.5, id="t_max_predict_ms"),
    ],
)
def test_limits_reach_the_engine(fields, attribute, value):
    """T25, G8, K11, K41, V13."""
    with serving() as running:
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
