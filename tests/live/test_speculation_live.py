"""Speculative decoding by prompt lookup on the real engine: the text is the same."""

from collections.abc import Iterator

import pytest

from localchat.serving.core.params import SamplingParams
from localchat.serving.engine import load
from localchat.serving.engine.engine import Engine
from localchat.serving.engine.values import LoadOptions
from tests.support.constraints import gbnf
from tests.support.demo_model import DEMO, GREEDY, assert_as_alone, assert_same_or_near_tie, chat, conversation, read
from tests.support.engines import request_for
from tests.support.exchanges import ask

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


@pytest.mark.cpu_only
@pytest.mark.parametrize("sampling", [GREEDY, PENALTIES], ids=["greedy", "penalties"])
def test_texts_with_drafts_are_those_without(plain: Engine, engine: Engine, sampling: SamplingParams):
    options = {"sampling": sampling, "max_tokens": 60, "ignore_eos": True, "top_logprobs": 5}
    requests = [request_for(chat(plain, text), **options) for text in PROMPTS]
    assert_as_alone(plain, engine, requests)
    assert plain.stats().n_drafted == 0


@pytest.mark.cpu_only
def test_drafts_under_a_grammar_change_no_text(plain: Engine, engine: Engine):
    options = {"constraint": gbnf("root ::= ([ab] ){40}"), "max_tokens": 200}
    request = request_for(chat(plain, "Hello!"), sampling=GREEDY, **options)
    text, _, finish = read(engine, request)
    assert text == read(plain, request)[0]
    assert finish.usage.n_drafted >= finish.usage.n_draft_accepted > 0


@pytest.mark.cpu_only
def test_conversation_continues_after_rejected_drafts(plain: Engine, engine: Engine):
    """The next turn of a conversation finds the cells of the last one, and none of a rejected draft."""
    prompt = conversation(plain, 5)
    # Three equally likely tokens: a draft from an earlier occurrence is sometimes accepted.
    likely = tuple((id, 10_000.0) for id in (42, 43, 44))
    dice = SamplingParams(temperature=100, top_k=0, top_p=1, logit_bias=likely, seed=1)
    _, tokens, finish = read(engine, request_for(prompt, sampling=dice, max_tokens=80))
    assert {token.id for token in tokens} == {42, 43, 44}
    assert finish.usage.n_drafted > finish.usage.n_draft_accepted > 0
    turn = (*prompt, *(token.id for token in tokens))
    # Of one candidate the likeliest is sampled. A request with temperature 0 would not reuse the cells of an output.
    options = {"sampling": SamplingParams(top_k=1), "max_tokens": 40, "ignore_eos": True, "top_logprobs": 5}
    following = request_for((*turn, *chat(plain, "Go on!")), **options)
    plain.forget()
    _, alone, _ = read(plain, following)
    _, cached, end = read(engine, following)
    assert end.usage.n_cached >= len(turn) - 1
    assert_same_or_near_tie(alone, cached)


LOOP = {"max_tokens": 60, "logit_bias": {"42": 100}, "messages": [{"role": "user", "content": "Hello!"}]}


def test_server_speculates(port: int):
    """test_options_of_the_command_take_effect turns it off."""
    _, body = ask(port, "/v1/chat/completions", LOOP)
    assert body["usage"]["completion_tokens"] == 60
    assert body["timings"]["draft_n"] >= body["timings"]["draft_n_accepted"] > 0
