"""Sampling by llama.cpp on the built-in model: seeds, biases, penalties, minimum lengths, log probabilities."""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace
from functools import partial

import pytest

from localchat.serving.chat.dialects import DIALECTS
from localchat.serving.chat.dialects.budget import ReasoningTracker
from localchat.serving.core.params import SamplingParams
from localchat.serving.engine import Constraint, Engine, Finish

from .constraints import gbnf
from .demo_model import GREEDY, ROUNDING, chat, conversation, read, wait_until_idle
from .engines import request_for, submit


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(temperature=1e-50),
        SamplingParams(temperature=1e-38, top_p=1.0),
        SamplingParams(temperature=1e-8, samplers=("temperature", "top_p")),
        SamplingParams(temperature=1.0, top_p=1.0, dynatemp_range=1.0, dynatemp_exponent=15.0),
    ],
    ids=["zero for llama.cpp", "tiny", "before the cuts", "dynamic"],
)
def test_smallest_temperatures_sample_the_likeliest(engine: Engine, sampling: SamplingParams):
    prompt = chat(engine, "What is your name?")
    expected, _, _ = read(engine, request_for(prompt, max_tokens=8, sampling=GREEDY))
    request = request_for(prompt, max_tokens=8, sampling=sampling, top_logprobs=0, post_sampling_probs=True)
    text, tokens, _ = read(engine, request)
    assert text == expected
    assert [token.logprob for token in tokens] == [pytest.approx(0.0, abs=1e-6)] * 8


def test_special_text_is_one_token_only_on_request(engine: Engine):
    assert len(engine.tokenize("<|im_end|>")) == 1
    plain = engine.tokenize("<|im_end|>", parse_special=False)
    assert b"".join(engine.piece(token) for token in plain) == b"<|im_end|>"


def test_seed_repeats_the_text(engine: Engine):
    def text_of(seed: int) -> str:
        sampling = SamplingParams(temperature=2.0, top_p=1.0, top_k=0, seed=seed)
        return read(engine, request_for(chat(engine, "Hello!"), max_tokens=20, sampling=sampling))[0]

    assert text_of(1) == text_of(1) != text_of(2)


def test_max_tokens(engine: Engine):
    prompt = chat(engine, "What is your name?")
    _, tokens, finish = read(engine, request_for(prompt, sampling=GREEDY, max_tokens=3))
    assert (len(tokens), finish.reason) == (3, "length")


def test_logit_bias_forbids_and_forces(engine: Engine):
    prompt = chat(engine, "What is your name?")
    first = read(engine, request_for(prompt, sampling=GREEDY, max_tokens=1))[1][0]
    forbidden = SamplingParams(temperature=0, logit_bias=((first.id, -1000.0),))
    assert read(engine, request_for(prompt, sampling=forbidden, max_tokens=1))[1][0].id != first.id
    forced = SamplingParams(temperature=0, logit_bias=((42, 1000.0),))
    assert [t.id for t in read(engine, request_for(prompt, sampling=forced, max_tokens=3))[1]] == [42] * 3


def test_repeat_penalty_counts_the_prompt(engine: Engine):
    """The penalty makes a token less likely that only the prompt has."""
    prompt = chat(engine, "Repeat after me: zebra zebra zebra")
    plain = read(engine, request_for(prompt, sampling=GREEDY, max_tokens=20))[0]
    strong = SamplingParams(temperature=0, repeat_penalty=5.0, penalty_last_n=-1)
    assert read(engine, request_for(prompt, sampling=strong, max_tokens=20))[0] != plain


SAMPLERS = {
    "typical": SamplingParams(typical_p=0.5),
    "sigma": SamplingParams(top_n_sigma=1.0),
    "xtc": SamplingParams(xtc_probability=0.5),
    "dynatemp": SamplingParams(dynatemp_range=0.5),
    "dry": SamplingParams(dry_multiplier=0.8),
    "dry alone": SamplingParams(dry_multiplier=0.8, dry_sequence_breakers=()),
    "mirostat": SamplingParams(mirostat=1),
    "mirostat 2": SamplingParams(mirostat=2),
    "adaptive": SamplingParams(adaptive_target=0.4, adaptive_decay=0.5),
    "all": SamplingParams(repeat_penalty=1.2, frequency_penalty=0.5, presence_penalty=0.5, penalty_last_n=-1),
    "min_p": SamplingParams(min_p=0.2, min_keep=3),
    "order": SamplingParams(samplers=("top_p", "temperature", "top_k"), temperature=0.3),
}


@pytest.mark.parametrize("sampling", SAMPLERS.values(), ids=SAMPLERS)
def test_every_sampler_repeats_with_its_seed(engine: Engine, sampling: SamplingParams):
    prompt = chat(engine, "Tell me about yourself.")
    texts = [
        read(engine, request_for(prompt, max_tokens=16, sampling=replace(sampling, seed=seed)))[0] for seed in (1, 1)
    ]
    assert texts[0] == texts[1] != ""


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(repeat_penalty=1.5, penalty_last_n=2**31 - 1),
        SamplingParams(dry_multiplier=1, dry_penalty_last_n=2**31 - 1),
    ],
    ids=["penalties", "dry"],
)
def test_window_is_limited_to_the_context(engine: Engine, sampling: SamplingParams):
    """llama.cpp would allocate memory for the whole window, and abort the process."""
    _, _, finish = read(engine, request_for(chat(engine, "Hello!"), max_tokens=3, sampling=sampling))
    assert finish.usage.n_completion > 0


def test_ignore_eos_generates_up_to_the_limit(engine: Engine):
    request = request_for(chat(engine, "Hello!"), sampling=GREEDY, ignore_eos=True, max_tokens=60)
    assert read(engine, request)[2].reason == "length"


def test_min_tokens_forbids_the_end_token_before_them_and_not_after(engine: Engine):
    prompt = chat(engine, "Hello!")
    plain = read(engine, request_for(prompt, sampling=GREEDY))[2]
    request = request_for(prompt, sampling=GREEDY, min_tokens=plain.usage.n_completion + 5)
    longer = read(engine, request)[2]
    assert longer.reason == "stop"
    assert longer.usage.n_completion > plain.usage.n_completion + 5


@pytest.mark.parametrize("min_tokens", [0, 1, 3])
@pytest.mark.parametrize("constraint", [None, gbnf("root ::= [a-z ]+")], ids=["free", "grammar"])
@pytest.mark.parametrize("sampling", [GREEDY, SamplingParams(temperature=1, top_k=40, seed=1)], ids=["greedy", "top_k"])
def test_min_tokens_forbids_stop_tokens_and_ignore_eos_the_end_token(
    engine: Engine, sampling: SamplingParams, constraint: Constraint | None, min_tokens: int
):
    (stop,), (end,) = engine.tokenize("a"), engine.tokenize("<|im_end|>")
    wanted = replace(sampling, logit_bias=((stop, 100.0), (end, 200.0)))
    request = request_for(
        chat(engine, "Hello!"),
        sampling=wanted,
        stop_token_ids=(stop,),
        min_tokens=min_tokens,
        max_tokens=20,
        ignore_eos=True,
        constraint=constraint,
    )
    finish = read(engine, request)[2]
    assert (finish.reason, finish.stop, finish.usage.n_completion) == ("stop", stop, min_tokens + 1)


def test_logprobs_are_of_the_whole_vocabulary(engine: Engine):
    request = request_for(chat(engine, "Hello!"), sampling=GREEDY, max_tokens=4, top_logprobs=5)
    for token in read(engine, request)[1]:
        assert len(token.top) == 5
        assert token.logprob == token.top[0].logprob
        assert token.id == token.top[0].token
        assert [t.logprob for t in token.top] == sorted((t.logprob for t in token.top), reverse=True)
        assert all(t.logprob <= 0 for t in token.top)


def test_prompt_logprobs_are_those_of_sampling_the_same_tokens(engine: Engine):
    """The output of a request is the prompt of the next one, which is computed in several steps."""
    # In the role of the user the model is less certain, and samples no token that is nearly impossible.
    prompt = (*conversation(engine, 6), *engine.tokenize("I am a model.<|im_end|>\n<|im_start|>user\n"))
    sampling = SamplingParams(temperature=1, seed=2)
    output = read(engine, request_for(prompt, sampling=sampling, max_tokens=40, top_logprobs=3))[1]
    assert any(token.logprob < -0.5 for token in output)
    whole = (*prompt, *(token.id for token in output))
    with submit(engine, request_for(whole, max_tokens=1, prompt_logprobs=3)) as generation:
        finish = list(generation)[-1]
        scored = generation.prompt_tokens()
    assert isinstance(finish, Finish)
    assert (finish.usage.n_cached, finish.usage.n_prompt) == (0, len(whole))
    assert [token.id for token in scored] == list(whole)
    assert scored[0].logprob is None
    assert all(token.logprob is not None for token in scored[1:])
    for one, other in zip(output, scored[len(prompt) :]):
        assert one.logprob == pytest.approx(other.logprob, abs=ROUNDING)
        assert one.top[0].logprob == pytest.approx(other.top[0].logprob, abs=ROUNDING)
        assert other.logprob is not None
        assert other.top[0].logprob >= other.logprob


def test_many_prompts_are_scored_beside_as_many_completions(engine: Engine):
    """llama.cpp aborts the process if a batch needs more rows of logits than its buffer has."""
    prompt = conversation(engine, 1)
    with contextlib.ExitStack() as stack:
        score = request_for(prompt, max_tokens=2, prompt_logprobs=0)
        complete = request_for(chat(engine, "Hello!"), max_tokens=30, ignore_eos=True)
        scored, completed = (
            [stack.enter_context(submit(engine, request)) for _ in range(12)] for request in (score, complete)
        )
        assert [list(generation)[-1].usage.n_completion for generation in completed] == [30] * 12  # type: ignore[union-attr]
        values = []
        for generation in scored:
            assert isinstance(list(generation)[-1], Finish)
            values.append([token.logprob for token in generation.prompt_tokens()[1:]])
    for other in values[1:]:
        assert other == pytest.approx(values[0], abs=ROUNDING)


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(top_k=3, top_p=1.0),
        SamplingParams(top_k=3, top_p=1.0, repeat_penalty=1.3),
        SamplingParams(top_k=5, xtc_probability=1.0, xtc_threshold=0.01),
        SamplingParams(mirostat=1),
        SamplingParams(mirostat=2),
        SamplingParams(top_k=5, adaptive_target=0.3),
        SamplingParams(temperature=0),
        SamplingParams(temperature=0, repeat_penalty=1.3),
    ],
    ids=["top_k", "penalties", "xtc", "mirostat", "mirostat 2", "adaptive", "greedy", "greedy, penalties"],
)
@pytest.mark.parametrize("grammar", [None, gbnf('root ::= ("ab" | "cd" | [e-z])+')], ids=["free", "grammar"])
def test_probabilities_after_sampling_are_of_the_remaining_candidates(
    engine: Engine, sampling: SamplingParams, grammar: Constraint | None
):
    request = request_for(
        chat(engine, "Tell me about yourself."), max_tokens=12, constraint=grammar, sampling=replace(sampling, seed=3)
    )
    n_vocab = engine.facts.n_vocab
    # A request of an earlier test must not share a batch with one of the two: its sums would be rounded differently.
    wait_until_idle(engine)
    read(engine, request)
    text, tokens, _ = read(
        engine, replace(request, params=replace(request.params, top_logprobs=n_vocab, post_sampling_probs=True))
    )
    assert text == read(engine, request)[0]
    for token in tokens:
        probabilities = {top.token: math.exp(top.logprob) for top in token.top}
        assert sum(probabilities.values()) == pytest.approx(1, abs=1e-3)
        assert token.logprob is not None
        assert probabilities[token.id] == pytest.approx(math.exp(token.logprob))
        assert len(probabilities) <= (sampling.top_k if sampling.temperature else 1) or sampling.mirostat


def open_reasoning(max_tokens: int, closing: tuple[int, ...]) -> ReasoningTracker:
    """The tracker of a budget for reasoning that the prompt has opened."""
    return ReasoningTracker(DIALECTS["hermes"], {"prompt": "<think>"}, max_tokens, closing)


@pytest.mark.parametrize(
    ("budget", "grammar"), [(2, None), (0, gbnf('root ::= "So.</think>" [0-9]{3}'))], ids=["free", "grammar"]
)
@pytest.mark.parametrize("n_top", [0, 3])
@pytest.mark.parametrize(
    "sampling",
    [SamplingParams(top_k=5, top_p=1, min_p=0, seed=2), SamplingParams(temperature=0)],
    ids=["random", "greedy"],
)
def test_forced_token_is_certain_after_sampling(
    engine: Engine, sampling: SamplingParams, n_top: int, budget: int, grammar: Constraint | None
):
    """It is not sampled, and does not get the candidates of the token before it."""
    closing = tuple(engine.tokenize("So.</think>"))
    request = request_for(
        chat(engine, "Tell me about yourself."),
        max_tokens=budget + len(closing) + 2,
        min_tokens=budget + len(closing) + 2,
        constraint=grammar,
        sampling=sampling,
        new_budget_tracker=partial(open_reasoning, budget, closing),
        top_logprobs=n_top,
        post_sampling_probs=True,
    )
    _, tokens, _ = read(engine, request)
    forced = tokens[budget : budget + len(closing)]
    assert tuple(token.id for token in forced) == closing
    for token in forced:
        assert token.logprob == 0
        assert [(top.token, top.logprob) for top in token.top] == [(token.id, 0)][:n_top]
    sampled = tokens[:budget] + tokens[budget + len(closing) :]
    assert len(sampled) == budget + 2
    # Sampled tokens have other candidates.
    assert {len(token.top) for token in sampled} == {n_top if sampling.temperature else min(n_top, 1)}
