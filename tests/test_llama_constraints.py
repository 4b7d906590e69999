"""Constraints on the built-in model: grammars, triggers, forced tokens."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from localchat.serving.core.params import SamplingParams
from localchat.serving.engine.engine import Engine

from .constraints import gbnf
from .demo_model import GREEDY, chat, read
from .engines import Finish, request_for, submit, text_of


def constrained(engine: Engine, grammar: str, text: str = "Hello!", **options: Any) -> tuple[str, Finish]:
    request = request_for(chat(engine, text), constraint=gbnf(grammar), **{"max_tokens": 100, **options})
    output, _, finish = read(engine, request)
    return output, finish


@pytest.mark.parametrize("seed", range(10))
def test_grammar_counts_whole_characters(engine: Engine, seed: int):
    """A byte that is not UTF-8 is not counted as a character."""
    flat = SamplingParams(temperature=100.0, top_k=0, top_p=1.0, seed=seed)
    text, finish = constrained(engine, "root ::= [^\\x01-\\x7F]{20}", sampling=flat)
    assert finish.reason == "stop"
    assert len(text) == 20
    assert "\ufffd" not in text


MARKER = "<|im_start|>"
WITH_MARKER = gbnf(f'root ::= "{MARKER}" [a-c]')


@pytest.mark.parametrize("temperature", [0, 1, 2])
def test_grammar_applies_to_the_visible_text(engine: Engine, temperature: float):
    """The control token has the text of the marker too, but its text is not in the output."""
    prompt, (control,) = chat(engine, "Hello!"), engine.tokenize(MARKER)
    # The control token is by far the likeliest.
    sampling = SamplingParams(temperature=temperature, seed=3, logit_bias=((control, 50.0),))
    request = request_for(prompt, max_tokens=30, constraint=WITH_MARKER, sampling=sampling)
    text, tokens, _ = read(engine, request)
    assert re.fullmatch(re.escape(MARKER) + "[a-c]", text)
    assert control not in [token.id for token in tokens]
    text, tokens, _ = read(engine, replace(request, visible_tokens=frozenset({control})))
    assert re.fullmatch(re.escape(MARKER) + "[a-c]", text)
    assert tokens[0].id == control


def test_constrained_and_free_requests_share_a_batch(engine: Engine):
    free = request_for(chat(engine, "What is your name?"), sampling=GREEDY)
    alone = read(engine, free)[0]
    constrained = replace(free, constraint=gbnf("root ::= [ab]{20}"))
    generations = [submit(engine, request) for request in (free, constrained, free, constrained)]
    texts = [text_of(generation) for generation in generations]
    assert texts[0] == texts[2] == alone
    assert all(re.fullmatch("[ab]{20}", text) for text in texts[1::2])


FORCED = gbnf('root ::= "{\\"measured_temperature\\": " [0-9] ", \\"location_of_the_station\\": \\"" [a-z]{3} "\\"}"')


@pytest.mark.parametrize("temperature", [0, 1])
def test_tokens_that_a_constraint_forces_need_no_step_and_change_no_text(
    engine: Engine, temperature: float, monkeypatch: pytest.MonkeyPatch
):
    sampling = SamplingParams(temperature=temperature, seed=1)
    request = request_for((1, 2, 3), max_tokens=60, constraint=FORCED, sampling=sampling)
    batches, decode = [], engine.backend.decode
    monkeypatch.setattr(engine.backend, "decode", lambda batch: (batches.append(batch), decode(batch)))
    results, steps = [], []
    # Log probabilities need the logits of each token, so each token takes a step.
    for top_logprobs in (None, 0):
        batches.clear()
        params = replace(request.params, top_logprobs=top_logprobs)
        text, tokens, finish = read(engine, replace(request, params=params))
        results.append([token.id for token in tokens])
        steps.append(len(batches))
        assert re.fullmatch(r'\{"measured_temperature": \d, "location_of_the_station": "[a-z]{3}"\}', text)
        assert finish.reason == "stop"
    assert results[0] == results[1]
    assert steps[0] < len(results[0]) / 2 < len(results[0]) <= steps[1]


@pytest.mark.parametrize("max_tokens", [1, 2, 5])
def test_forced_tokens_end_at_the_limit(engine: Engine, max_tokens: int):
    _, tokens, finish = read(engine, request_for((1, 2, 3), max_tokens=max_tokens, constraint=FORCED))
    assert (len(tokens), finish.reason, finish.usage.n_completion) == (max_tokens, "length", max_tokens)
