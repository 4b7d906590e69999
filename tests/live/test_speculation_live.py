"""Speculative decoding by prompt lookup on the real engine: the text is the same."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator

import pytest

from localchat.serving.core.params import SamplingParams
from localchat.serving.engine import load
from localchat.serving.engine.engine import Engine
from localchat.serving.engine.values import LoadOptions
from tests.support.constraints import gbnf
from tests.support.demo_model import (
    DEMO,
    GREEDY,
    assert_same_or_near_tie,
    assert_together_as_alone,
    chat,
    conversation,
    read,
)
from tests.support.engines import request_for
from tests.support.live import running_server

PENALTIES = SamplingParams(temperature=0, repeat_penalty=1.3, dry_multiplier=0.8)
PROMPTS = [
    "Repeat after me: the green boat goes to the small green island and the green boat goes home.",
    'Copy this: {"name": "Ada", "born": 1815, "tags": ["math", "math", "math"], "name2": "Ada"}',
    "What is your name?",
    "Count to thirty.",
]


@pytest.fixture(scope="module")
def plain() -> Iterator[Engine]:
    with load(DEMO, LoadOptions(n_parallel=4, speculates=False)) as engine:
        yield engine


@pytest.fixture(scope="module")
def speculating() -> Iterator[Engine]:
    with load(DEMO, LoadOptions(n_parallel=4)) as engine:
        yield engine


@pytest.mark.cpu_only
@pytest.mark.parametrize("sampling", [GREEDY, PENALTIES], ids=["greedy", "penalties"])
def test_texts_with_drafts_are_those_without(plain: Engine, speculating: Engine, sampling: SamplingParams):
    requests = [
        request_for(chat(plain, text), sampling=sampling, max_tokens=60, ignore_eos=True, top_logprobs=5)
        for text in PROMPTS
    ]
    assert_together_as_alone(plain, speculating, requests)
    assert plain.stats().n_drafted == 0


@pytest.mark.cpu_only
def test_drafts_under_a_grammar_change_no_text(plain: Engine, speculating: Engine):
    constraint = gbnf("root ::= ([ab] ){40}")
    request = request_for(chat(plain, "Hello!"), sampling=GREEDY, constraint=constraint, max_tokens=200)
    text, _, finish = read(speculating, request)
    assert text == read(plain, request)[0]
    assert finish.usage.n_drafted >= finish.usage.n_draft_accepted > 0


@pytest.mark.cpu_only
def test_conversation_continues_after_rejected_drafts(plain: Engine, speculating: Engine):
    """The next turn of a conversation finds the cells of the last one, and none of a rejected draft."""
    prompt = conversation(plain, 5)
    # Three equally likely tokens: a draft from an earlier occurrence is sometimes accepted.
    dice = SamplingParams(
        temperature=100, top_k=0, top_p=1, logit_bias=tuple((id, 10_000.0) for id in (42, 43, 44)), seed=1
    )
    _, tokens, finish = read(speculating, request_for(prompt, sampling=dice, max_tokens=80))
    assert {token.id for token in tokens} == {42, 43, 44}
    assert finish.usage.n_drafted > finish.usage.n_draft_accepted > 0
    turn = (*prompt, *(token.id for token in tokens))
    # Of one candidate the likeliest is sampled. A request with temperature 0 would not reuse the cells of an output.
    likeliest = SamplingParams(top_k=1)
    following = request_for(
        (*turn, *chat(plain, "Go on!")), sampling=likeliest, max_tokens=40, ignore_eos=True, top_logprobs=5
    )
    plain.forget()
    _, alone, _ = read(plain, following)
    _, cached, end = read(speculating, following)
    assert end.usage.n_cached >= len(turn) - 1
    assert_same_or_near_tie(alone, cached)


LOOP = {"max_tokens": 60, "logit_bias": {"42": 100}, "messages": [{"role": "user", "content": "Hello!"}]}


@pytest.mark.parametrize(
    ("arguments", "is_drafted"), [((), True), (("--no-speculation",), False)], ids=["default", "off"]
)
def test_server_speculates_unless_it_is_turned_off(arguments: tuple[str, ...], is_drafted: bool):
    with running_server(*arguments) as url:
        request = urllib.request.Request(f"{url}/chat/completions", json.dumps(LOOP).encode())
        with urllib.request.urlopen(request, timeout=30) as response:
            body = json.load(response)
    assert body["usage"]["completion_tokens"] == 60
    assert ("draft_n" in body["timings"]) == is_drafted
    if is_drafted:
        assert body["timings"]["draft_n"] >= body["timings"]["draft_n_accepted"] > 0
