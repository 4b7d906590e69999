"""Sampling by llama.cpp: the steps of its chain, and on the built-in model seeds, limits, constraints and scores."""

import itertools
import math
import re
from dataclasses import replace

import pytest

from localchat.serving.core.errors import BadRequest
from localchat.serving.core.params import SamplingParams
from localchat.serving.engine.engine import Engine
from localchat.serving.engine.llama.sampler import chain_steps, seed_of
from localchat.serving.engine.values import Constraint
from tests.support.constraints import gbnf
from tests.support.demo_model import GREEDY, chat, read, wait_until_idle
from tests.support.engines import request_for, submit, text_of

CHAINS: dict[str, tuple[SamplingParams, str]] = {
    "defaults": (SamplingParams(), "top_k top_p dist"),
    "greedy": (SamplingParams(temperature=0), "greedy"),
    "all cuts": (SamplingParams(temperature=0.5, min_p=0.1), "top_k top_p min_p temp dist"),
    "pure": (SamplingParams(top_k=0, top_p=1), "dist"),
    "greedy with penalty": (SamplingParams(temperature=0, repeat_penalty=1.1), "penalties greedy"),
    "presence": (SamplingParams(presence_penalty=0.5, top_p=1), "penalties top_k dist"),
    "penalty over no tokens": (SamplingParams(frequency_penalty=0.5, penalty_last_n=0, top_p=1), "top_k dist"),
    "typical, sigma": (SamplingParams(typical_p=0.9, top_n_sigma=1, top_p=1), "top_n_sigma top_k min_p typical dist"),
    "xtc, dry": (SamplingParams(xtc_probability=0.5, dry_multiplier=0.8), "dry top_k top_p xtc dist"),
    "dynamic temperature": (SamplingParams(dynatemp_range=0.5), "top_k top_p temp_ext dist"),
    "mirostat 1": (SamplingParams(mirostat=1, temperature=0.7, repeat_penalty=1.1), "penalties temp min_p mirostat"),
    "mirostat 2": (SamplingParams(mirostat=2, top_k=5), "mirostat_v2"),
    "adaptive": (SamplingParams(adaptive_target=0.5, min_p=0.1, top_p=1), "top_k min_p adaptive_p"),
    "greedy before adaptive": (SamplingParams(adaptive_target=0.5, temperature=0), "greedy"),
    "greedy before mirostat": (SamplingParams(temperature=0, mirostat=2, dry_multiplier=1), "dry greedy"),
    "own order": (SamplingParams(temperature=0.5, samplers=("temperature", "top_k")), "temp top_k dist"),
    "infill": (SamplingParams(samplers=("top_k", "top_p", "infill")), "top_k top_p infill dist"),
    "infill of all tokens": (SamplingParams(samplers=("infill",)), "top_k infill dist"),
    "infill of too many": (SamplingParams(top_k=257, samplers=("top_k", "infill")), "top_k top_k infill dist"),
    "infill of as many as possible": (SamplingParams(top_k=256, samplers=("top_k", "infill")), "top_k infill dist"),
    "infill without a cut": (SamplingParams(top_k=0, samplers=("top_k", "infill")), "top_k infill dist"),
    "infill before the cut": (SamplingParams(samplers=("infill", "top_k")), "top_k infill top_k dist"),
    "greedy before infill": (SamplingParams(temperature=0, samplers=("infill",)), "greedy"),
    "no steps": (SamplingParams(temperature=0.5, samplers=()), "dist"),
    # llama.cpp would allocate memory for the whole window, and abort the process.
    "longest window": (SamplingParams(repeat_penalty=1.5, penalty_last_n=2**31 - 1), "penalties top_k top_p dist"),
    "longest window of dry": (SamplingParams(dry_multiplier=1, dry_penalty_last_n=2**31 - 1), "dry top_k top_p dist"),
    "dry without breakers": (SamplingParams(dry_multiplier=0.8, dry_sequence_breakers=()), "dry top_k top_p dist"),
    "at least 3": (SamplingParams(min_p=0.2, min_keep=3), "top_k top_p min_p dist"),
}


@pytest.mark.parametrize(("sampling", "expected"), CHAINS.values(), ids=CHAINS)
def test_steps_are_in_order_and_only_those_with_an_effect(sampling: SamplingParams, expected: str):
    assert [name for name, *_ in chain_steps(sampling)] == expected.split()


@pytest.mark.parametrize("names", list(itertools.permutations(["penalties", "top_p", "infill", "top_k"])))
@pytest.mark.parametrize("top_k", [0, 64, 2**31 - 1])
def test_few_candidates_are_left_before_the_step_that_compares_each_with_every_other(names: tuple[str], top_k: int):
    steps = chain_steps(SamplingParams(top_k=top_k, repeat_penalty=1.5, samplers=names))
    cuts = [step[1] for step in steps[: steps.index(("infill",))] if step[0] == "top_k"]
    assert min(cuts) <= 256


@pytest.mark.parametrize(("dynatemp_range", "expected"), [(0.25, [0.5, 0.25, 2]), (0.75, [0.625, 0.625, 2])])
def test_dynamic_temperature_has_its_middle_and_half_of_its_range(dynatemp_range: float, expected: list[float]):
    sampling = SamplingParams(temperature=0.5, dynatemp_range=dynatemp_range, dynatemp_exponent=2, top_k=0, top_p=1)
    assert list(chain_steps(sampling)[0][1:]) == pytest.approx(expected, abs=1e-3)


def test_seed_never_means_random_and_a_missing_one_is_random_each_time():
    assert [seed_of(seed) for seed in (0, 42, 2**32 - 1, 2**32, -1)] == [0, 42, 0, 1, 2**32 - 2]
    assert len({seed_of(None) for _ in range(20)}) == 20


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


@pytest.mark.parametrize("sampling", [sampling for sampling, _ in CHAINS.values()], ids=CHAINS)
def test_every_sampler_repeats_with_its_seed(engine: Engine, sampling: SamplingParams):
    request = request_for(chat(engine, "About yourself?"), max_tokens=16, sampling=replace(sampling, seed=1))
    texts = [read(engine, request)[0] for _ in range(2)]
    assert texts[0] == texts[1] != ""


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
def test_min_tokens_forbids_stop_tokens_and_ignore_eos_the_end_token(engine, sampling, constraint, min_tokens):
    (stop,), (end,) = engine.backend.tokenize("a"), engine.backend.tokenize("<|im_end|>")
    wanted = replace(sampling, logit_bias=((stop, 100.0), (end, 200.0)))
    limits = {"stop_token_ids": (stop,), "min_tokens": min_tokens, "max_tokens": 20, "ignore_eos": True}
    request = request_for(chat(engine, "Hello!"), sampling=wanted, constraint=constraint, **limits)
    finish = read(engine, request)[2]
    assert (finish.reason, finish.stop, finish.usage.n_completion) == ("stop", stop, min_tokens + 1)


@pytest.mark.parametrize("bias", [-150.0, -math.inf])
@pytest.mark.parametrize("name", ["typical_p", "mirostat"])
def test_steps_with_logarithms_choose_the_same_beside_forbidden_tokens(engine: Engine, name: str, bias: float):
    """The logarithm of the probability 0 would make their choice arbitrary."""
    plain = SamplingParams(temperature=0.8, top_k=0, top_p=1, seed=1, **{name: 0.5 if name == "typical_p" else 1})
    (end,) = engine.backend.tokenize("<|im_end|>")
    forbidding = replace(plain, logit_bias=((end, bias),))
    options = {"max_tokens": 8, "top_logprobs": engine.facts.n_vocab, "post_sampling_probs": True}
    prompt = chat(engine, "About yourself?")
    expected, tokens = (
        read(engine, request_for(prompt, sampling=sampling, **options))[1] for sampling in (plain, forbidding)
    )
    assert tokens == expected
    assert all(len(token.top) < 100 for token in tokens)


@pytest.mark.parametrize("grammar", [None, gbnf('root ::= "ab"')], ids=["free", "grammar"])
@pytest.mark.parametrize("sampling", [GREEDY, SamplingParams(seed=1), SamplingParams(seed=1, mirostat=1)], ids=repr)
def test_biases_that_forbid_every_token_forbid_none(
    engine: Engine, sampling: SamplingParams, grammar: Constraint | None
):
    """After a complete text, a grammar allows only the tokens that end it."""
    forbidden = engine.backend.vocabulary.eog_tokens if grammar else range(engine.facts.n_vocab)
    biased = replace(sampling, logit_bias=tuple((id, -math.inf) for id in forbidden))
    options = {"max_tokens": 4, "top_logprobs": 2, "post_sampling_probs": True}
    text, tokens, finish = read(
        engine, request_for(chat(engine, "Hello!"), sampling=biased, constraint=grammar, **options)
    )
    assert all(math.isfinite(token.logprob) for token in (*tokens, *([finish.last] if finish.last else [])))
    if grammar:
        assert (text, finish.reason) == ("ab", "stop")


def test_logprobs_are_of_the_whole_vocabulary(engine: Engine):
    request = request_for(chat(engine, "Hello!"), sampling=GREEDY, max_tokens=4, top_logprobs=5)
    for token in read(engine, request)[1]:
        assert len(token.top) == 5
        assert token.logprob == token.top[0].logprob
        assert token.id == token.top[0].id
        assert [t.logprob for t in token.top] == sorted((t.logprob for t in token.top), reverse=True)
        assert all(t.logprob <= 0 for t in token.top)


ENDS = ["defaults", "presence", "xtc, dry", "mirostat 1", "mirostat 2", "adaptive", "greedy", "greedy with penalty"]


@pytest.mark.parametrize("name", ENDS)
@pytest.mark.parametrize("grammar", [None, gbnf('root ::= ("ab" | "cd" | [e-z])+')], ids=["free", "grammar"])
def test_probabilities_after_sampling_are_of_those_that_remain(engine: Engine, name: str, grammar: Constraint | None):
    sampling = replace(CHAINS[name][0], seed=3)
    prompt = chat(engine, "Tell me about yourself.")
    request = request_for(prompt, max_tokens=12, constraint=grammar, sampling=sampling)
    # A request of an earlier test must not share a batch with one of the two: its sums would be rounded differently.
    wait_until_idle(engine)
    read(engine, request)
    params = replace(request.params, top_logprobs=engine.facts.n_vocab, post_sampling_probs=True)
    text, tokens, _ = read(engine, replace(request, params=params))
    assert text == read(engine, request)[0]
    for token in tokens:
        probabilities = {top.id: math.exp(top.logprob) for top in token.top}
        assert sum(probabilities.values()) == pytest.approx(1, abs=1e-3)
        assert probabilities[token.id] == pytest.approx(math.exp(token.logprob))
        assert len(probabilities) <= (sampling.top_k if sampling.temperature else 1) or sampling.mirostat


# --- constraints ---


@pytest.mark.parametrize("seed", range(4))
def test_grammar_counts_whole_characters(engine: Engine, seed: int):
    """A byte that is not UTF-8 is not counted as a character."""
    flat = SamplingParams(temperature=100.0, top_k=0, top_p=1.0, seed=seed)
    grammar = gbnf("root ::= [^\\x01-\\x7F]{20}")
    text, _, finish = read(
        engine, request_for(chat(engine, "Hello!"), constraint=grammar, sampling=flat, max_tokens=100)
    )
    assert finish.reason == "stop"
    assert len(text) == 20
    assert "\ufffd" not in text


WRONG_GRAMMARS = {
    "syntax": 'start: "a',
    "no such rule": "start: missing",
}


@pytest.mark.parametrize("grammar", WRONG_GRAMMARS.values(), ids=WRONG_GRAMMARS)
def test_grammar_that_cannot_be_used_is_refused_before_the_prompt_is_computed(engine: Engine, grammar: str):
    n_computed = engine.stats().n_computed
    for _ in range(2):  # The compiled grammar is not cached.
        constraint = Constraint(grammar, "regex")
        with pytest.raises(BadRequest, match="'regex' cannot be enforced: ") as refused:
            submit(engine, request_for((1, 2, 3), constraint=constraint))
        assert refused.value.param == "regex"
    assert engine.stats().n_computed == n_computed


@pytest.mark.parametrize(
    ("grammar", "text", "reason"),
    [
        ("start: too_limited", "", "it cannot be read as a grammar"),
        ('start: "too much fuel" X\nX: /a/ & /b/', "too much fuel", "it allows no further token"),
        (f'start: a\na: {"a " * 100} | "a" |', "a" * 100, "following it takes too much work"),
    ],
    ids=["malformed", "contradiction", "ambiguous"],
)
def test_error_of_a_grammar_has_its_reason_whatever_words_are_in_it(engine, grammar: str, text: str, reason: str):
    def follow() -> None:
        matcher = engine.backend.vocabulary.grammars.matcher(Constraint(grammar, "regex"), ())
        for token in engine.backend.tokenize(text):
            matcher.mask()
            matcher.accept(token)
        matcher.mask()

    with pytest.raises(BadRequest, match=f"'regex' cannot be enforced: {reason}"):
        follow()


MARKER = "<|im_start|>"
WITH_MARKER = gbnf(f'root ::= "{MARKER}" [a-c]')


@pytest.mark.parametrize("temperature", [0, 1, 2])
def test_grammar_applies_to_the_visible_text(engine: Engine, temperature: float):
    """The control token has the text of the marker too, but its text is not in the output."""
    prompt, (control,) = chat(engine, "Hello!"), engine.backend.tokenize(MARKER)
    # The control token is by far the likeliest.
    sampling = SamplingParams(temperature=temperature, seed=3, logit_bias=((control, 50.0),))
    request = request_for(prompt, max_tokens=30, constraint=WITH_MARKER, sampling=sampling)
    text, tokens, _ = read(engine, request)
    assert re.fullmatch(re.escape(MARKER) + "[a-c]", text)
    assert control not in [token.id for token in tokens]
    text, tokens, _ = read(engine, replace(request, visible_tokens=frozenset({control})))
    assert re.fullmatch(re.escape(MARKER) + "[a-c]", text)
    assert tokens[0].id == control


@pytest.mark.cpu_only
def test_constrained_and_free_requests_share_a_batch(engine: Engine):
    free = request_for(chat(engine, "What is your name?"), sampling=GREEDY)
    alone = read(engine, free)[0]
    constrained = replace(free, constraint=gbnf("root ::= [ab]{20}"))
    generations = [submit(engine, request) for request in (free, constrained, free, constrained)]
    texts = [text_of(generation) for generation in generations]
    assert texts[0] == texts[2] == alone
    assert all(re.fullmatch("[ab]{20}", text) for text in texts[1::2])


FORCED = gbnf('root ::= "{\\"measured_temperature\\": " [0-9] ", \\"location_of_the_station\\": \\"" [a-z]{3} "\\"}"')


@pytest.mark.cpu_only
@pytest.mark.parametrize("temperature", [0, 1])
def test_forced_tokens_need_no_step_nor_change_text(engine: Engine, temperature: int, monkeypatch: pytest.MonkeyPatch):
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
