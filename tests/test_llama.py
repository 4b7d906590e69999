"""The real engine: llama.cpp on the built-in model."""

from __future__ import annotations

import contextlib
import math
import os
import random
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from localchat.dialects import DIALECTS
from localchat.dialects.parser import OutputParser
from localchat.dialects.reasoning import ReasoningBudget, ReasoningTracker
from localchat.engine import (
    Constraint,
    Delta,
    Engine,
    EngineError,
    Finish,
    GenerationRequest,
    InvalidGrammar,
    LoadOptions,
    OutputToken,
    load,
)
from localchat.engine.batch import Batch, BatchChunk, CacheLimits, Sequence
from localchat.engine.llama import default_threads, load_backend, sampling_from
from localchat.engine.llama.library import L
from localchat.engine.llama.load import _state_key
from localchat.protocol.params import SamplingParams

from .generations import request_for, submit

DEMO = str(Path(__file__).parents[1] / "localchat" / "models" / "demo.gguf")
GREEDY = SamplingParams(temperature=0)
# Two logits this close can change places when a batch rounds differently: those of one and the same token were
# seen to differ by up to 0.2, without guesses, too.
NEAR_TIE = 0.4
# So much the log probability of one token differs between batches, most where it is small.
ROUNDING = 0.5


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with load(DEMO, LoadOptions(n_slots=32)) as engine:
        yield engine


def chat(engine: Engine, text: str) -> tuple[int, ...]:
    return tuple(engine.tokenize(f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"))


def conversation(engine: Engine, n_turns: int) -> tuple[int, ...]:
    """A long prompt of the kind that the model knows."""
    greeting = "<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\nHello! How can I help you?<|im_end|>\n"
    return (*engine.tokenize(greeting * n_turns), *chat(engine, "What is your name?"))


def read(engine: Engine, request: GenerationRequest) -> tuple[str, list[OutputToken], Finish]:
    with submit(engine, request) as generation:
        items = list(generation)
    deltas = [item for item in items if isinstance(item, Delta)]
    finish = items[-1]
    assert isinstance(finish, Finish)
    return "".join(delta.text for delta in deltas), [token for delta in deltas for token in delta.tokens], finish


def wait_until_idle(engine: Engine) -> None:
    """Runs after everything that was posted before, and after the turn that follows it."""
    for _ in range(2):
        done = threading.Event()
        engine.post(done.set)
        assert done.wait(20)


def assert_same_or_near_tie(alone: list[OutputToken], together: list[OutputToken]) -> None:
    """Equal tokens, or different ones from a place on where both were about as likely."""
    for one, other in zip(alone, together):
        if one.id != other.id:
            likely = {top.token: top.logprob for top in one.top}
            assert other.id in likely
            assert one.logprob is not None
            assert one.logprob - likely[other.id] < NEAR_TIE
            return
    if len(alone) != len(together):
        # One went on where the other ended, with a token that has no bytes and is not told.
        went_on = max(alone, together, key=len)[min(len(alone), len(together))]
        assert went_on.logprob is not None
        assert went_on.logprob - max(top.logprob for top in went_on.top if not top.piece) < NEAR_TIE


def assert_together_as_alone(alone: Engine, together: Engine, requests: list[GenerationRequest]) -> None:
    """What one engine says to each request by itself, another says to all at once."""
    expected = [read(alone, request)[1] for request in requests]
    generations = [submit(together, request) for request in requests]
    for tokens, generation in zip(expected, generations):
        said = [token for item in generation if isinstance(item, Delta) for token in item.tokens]
        assert_same_or_near_tie(tokens, said)


def test_facts_describe_the_model(engine: Engine):
    facts = engine.facts
    assert facts.n_params > 1_000_000
    assert facts.n_bytes == pytest.approx(Path(DEMO).stat().st_size, rel=0.1)
    assert facts.n_ctx == facts.n_ctx_train
    assert facts.n_cells >= facts.n_ctx
    assert facts.n_slots == 32
    assert facts.chat_template is not None
    assert {"<|im_start|>", "<|im_end|>"} <= facts.special_tokens
    assert facts.metadata["general.architecture"] == "llama"


def test_greedy_text_is_an_answer_and_ends_by_itself(engine: Engine):
    text, tokens, finish = read(engine, request_for(chat(engine, "What is your name?"), sampling=GREEDY))
    assert "localchat" in text
    assert (finish.reason, finish.stop) == ("stop", None)
    assert finish.usage.n_completion == len(tokens) + 1  # the end token is counted, not shown
    assert b"".join(token.piece for token in tokens).decode() == text


def test_what_the_model_says_of_its_size_is_true(engine: Engine):
    prompt = chat(engine, "How many parameters do you have?")
    text, _, _ = read(engine, request_for(prompt, sampling=GREEDY))
    assert "about five million parameters and my file is smaller than 4 MB" in text
    assert round(engine.facts.n_params / 1e6) == 5
    assert Path(DEMO).stat().st_size < 4_000_000


def test_tokens_come_back_as_the_same_text(engine: Engine):
    text = "Grüße, 你好 😀\x00\n\tend"
    tokens = engine.tokenize(text)
    assert b"".join(engine.backend.piece(token) for token in tokens).decode() == text


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(temperature=1e-50),
        SamplingParams(temperature=1e-38, top_p=1.0),
        SamplingParams(temperature=1e-8, samplers=("temperature", "top_p")),
        SamplingParams(temperature=1.0, top_p=1.0, dynatemp_range=1.0, dynatemp_exponent=15.0),
    ],
    ids=["zero for the library", "tiny", "before the cuts", "dynamic"],
)
def test_smallest_temperatures_draw_what_is_likeliest(engine: Engine, sampling: SamplingParams):
    prompt = chat(engine, "What is your name?")
    expected, _, _ = read(engine, request_for(prompt, max_tokens=8, sampling=GREEDY))
    request = request_for(prompt, max_tokens=8, sampling=sampling, top_logprobs=0, post_sampling_probs=True)
    text, tokens, _ = read(engine, request)
    assert text == expected
    assert [token.logprob for token in tokens] == [pytest.approx(0.0, abs=1e-6)] * 8


def test_special_text_is_one_token_only_when_asked(engine: Engine):
    assert len(engine.tokenize("<|im_end|>")) == 1
    plain = engine.tokenize("<|im_end|>", parse_special=False)
    assert b"".join(engine.backend.piece(token) for token in plain) == b"<|im_end|>"


def test_seed_repeats_the_text(engine: Engine):
    def drawn(seed: int) -> str:
        sampling = SamplingParams(temperature=2.0, top_p=1.0, top_k=0, seed=seed)
        return read(engine, request_for(chat(engine, "Hello!"), max_tokens=20, sampling=sampling))[0]

    assert drawn(1) == drawn(1) != drawn(2)


def test_max_tokens_and_stop_text(engine: Engine):
    prompt = chat(engine, "What is your name?")
    text = read(engine, request_for(prompt, sampling=GREEDY))[0]
    _, tokens, finish = read(engine, request_for(prompt, sampling=GREEDY, max_tokens=3))
    assert (len(tokens), finish.reason) == (3, "length")
    stop = text[8:12]
    cut, _, finish = read(engine, request_for(prompt, sampling=GREEDY, stop=(stop,)))
    assert (cut, finish.reason, finish.stop) == (text[: text.index(stop)], "stop", stop)


def test_logit_bias_forbids_and_forces(engine: Engine):
    prompt = chat(engine, "What is your name?")
    first = read(engine, request_for(prompt, sampling=GREEDY, max_tokens=1))[1][0]
    forbidden = SamplingParams(temperature=0, logit_bias=((first.id, -1000.0),))
    assert read(engine, request_for(prompt, sampling=forbidden, max_tokens=1))[1][0].id != first.id
    forced = SamplingParams(temperature=0, logit_bias=((42, 1000.0),))
    assert [t.id for t in read(engine, request_for(prompt, sampling=forced, max_tokens=3))[1]] == [42] * 3


def test_repeat_penalty_knows_the_prompt(engine: Engine):
    """A token that only the prompt has is pushed down by the penalty, never up."""
    prompt = chat(engine, "Repeat after me: zebra zebra zebra")
    plain = read(engine, request_for(prompt, sampling=GREEDY, max_tokens=20))[0]
    strong = SamplingParams(temperature=0, repeat_penalty=5.0, penalty_last_n=-1)
    assert read(engine, request_for(prompt, sampling=strong, max_tokens=20))[0] != plain


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(typical_p=0.5),
        SamplingParams(top_n_sigma=1.0),
        SamplingParams(xtc_probability=0.5),
        SamplingParams(dynatemp_range=0.5),
        SamplingParams(dry_multiplier=0.8),
        SamplingParams(dry_multiplier=0.8, dry_sequence_breakers=()),
        SamplingParams(mirostat=1),
        SamplingParams(mirostat=2),
        SamplingParams(adaptive_target=0.4, adaptive_decay=0.5),
        SamplingParams(repeat_penalty=1.2, frequency_penalty=0.5, presence_penalty=0.5, penalty_last_n=-1),
        SamplingParams(min_p=0.2, min_keep=3),
        SamplingParams(samplers=("top_p", "temperature", "top_k"), temperature=0.3),
    ],
    ids=[
        "typical",
        "sigma",
        "xtc",
        "dynatemp",
        "dry",
        "dry alone",
        "mirostat",
        "mirostat 2",
        "adaptive",
        "all",
        "min_p",
        "order",
    ],
)
def test_every_sampler_draws_by_its_seed(engine: Engine, sampling: SamplingParams):
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
def test_window_longer_than_the_context_is_the_context(engine: Engine, sampling: SamplingParams):
    """The library would take its memory at once, and end the process."""
    _, _, finish = read(engine, request_for(chat(engine, "Hello!"), max_tokens=3, sampling=sampling))
    assert finish.usage.n_completion > 0


def test_ignore_eos_goes_on_to_the_limit(engine: Engine):
    request = request_for(chat(engine, "Hello!"), sampling=GREEDY, ignore_eos=True, max_tokens=60)
    assert read(engine, request)[2].reason == "length"


def test_min_tokens_forbids_the_end_until_then_and_allows_it_after(engine: Engine):
    prompt = chat(engine, "Hello!")
    plain = read(engine, request_for(prompt, sampling=GREEDY))[2]
    request = request_for(prompt, sampling=GREEDY, min_tokens=plain.usage.n_completion + 5)
    longer = read(engine, request)[2]
    assert longer.reason == "stop"
    assert longer.usage.n_completion > plain.usage.n_completion + 5


@pytest.mark.parametrize("n_least", [0, 1, 3])
@pytest.mark.parametrize("constraint", [None, Constraint("root ::= [a-z ]+")], ids=["free", "grammar"])
@pytest.mark.parametrize("sampling", [GREEDY, SamplingParams(temperature=1, top_k=40, seed=1)], ids=["greedy", "top_k"])
def test_min_tokens_forbids_stop_tokens_until_then_and_ignored_ends_for_ever(
    engine: Engine, sampling: SamplingParams, constraint: Constraint | None, n_least: int
):
    (stop,), (end,) = engine.tokenize("a"), engine.tokenize("<|im_end|>")
    wanted = replace(sampling, logit_bias=((stop, 100.0), (end, 200.0)))
    request = request_for(
        chat(engine, "Hello!"),
        sampling=wanted,
        stop_token_ids=(stop,),
        min_tokens=n_least,
        max_tokens=20,
        ignore_eos=True,
        constraint=constraint,
    )
    finish = read(engine, request)[2]
    assert (finish.reason, finish.stop, finish.usage.n_completion) == ("stop", stop, n_least + 1)


def test_logprobs_are_of_the_whole_vocabulary(engine: Engine):
    request = request_for(chat(engine, "Hello!"), sampling=GREEDY, max_tokens=4, top_logprobs=5)
    for token in read(engine, request)[1]:
        assert len(token.top) == 5
        assert token.logprob == token.top[0].logprob
        assert token.id == token.top[0].token
        assert [t.logprob for t in token.top] == sorted((t.logprob for t in token.top), reverse=True)
        assert all(t.logprob <= 0 for t in token.top)


def test_prompt_is_scored_as_it_would_be_said(engine: Engine):
    """What the model says of its own words is the same when they come back as a prompt, in several turns."""
    # In a user's place it is less sure of its words, and says none that are all but impossible.
    prompt = (*conversation(engine, 6), *engine.tokenize("I am a model.<|im_end|>\n<|im_start|>user\n"))
    sampling = SamplingParams(temperature=1, seed=2)
    said = read(engine, request_for(prompt, sampling=sampling, max_tokens=40, top_logprobs=3))[1]
    assert any(token.logprob < -0.5 for token in said)
    whole = (*prompt, *(token.id for token in said))
    with submit(engine, request_for(whole, max_tokens=1, prompt_logprobs=3)) as generation:
        finish = list(generation)[-1]
        scored = generation.prompt_tokens()
    assert isinstance(finish, Finish)
    assert (finish.usage.n_cached, finish.usage.n_prompt) == (0, len(whole))
    assert [token.id for token in scored] == list(whole)
    assert scored[0].logprob is None
    assert all(token.logprob is not None for token in scored[1:])
    for one, other in zip(said, scored[len(prompt) :]):
        assert one.logprob == pytest.approx(other.logprob, abs=ROUNDING)
        assert one.top[0].logprob == pytest.approx(other.top[0].logprob, abs=ROUNDING)
        assert other.logprob is not None
        assert other.top[0].logprob >= other.logprob


def test_many_prompts_are_scored_beside_as_many_answers(engine: Engine):
    """The library ends the process when a batch asks for more rows of logits than it has room for."""
    prompt = conversation(engine, 4)
    with contextlib.ExitStack() as stack:
        score = request_for(prompt, max_tokens=2, prompt_logprobs=0)
        say = request_for(chat(engine, "Hello!"), max_tokens=30, ignore_eos=True)
        scored, said = ([stack.enter_context(submit(engine, work)) for _ in range(20)] for work in (score, say))
        assert [list(generation)[-1].usage.n_completion for generation in said] == [30] * 20  # type: ignore[union-attr]
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
@pytest.mark.parametrize("grammar", [None, Constraint('root ::= ("ab" | "cd" | [e-z])+')], ids=["free", "grammar"])
def test_probabilities_after_sampling_are_of_what_was_left_to_draw_from(
    engine: Engine, sampling: SamplingParams, grammar: Constraint | None
):
    request = request_for(
        chat(engine, "Tell me about yourself."), max_tokens=12, constraint=grammar, sampling=replace(sampling, seed=3)
    )
    n_vocab = engine.facts.n_vocab
    # What an earlier test left behind must not share a batch with one of the two: sums round differently then.
    wait_until_idle(engine)
    read(engine, request)
    text, tokens, _ = read(
        engine, replace(request, params=replace(request.params, top_logprobs=n_vocab, post_sampling_probs=True))
    )
    assert text == read(engine, request)[0]
    for token in tokens:
        left = {top.token: math.exp(top.logprob) for top in token.top}
        assert sum(left.values()) == pytest.approx(1, abs=1e-3)
        assert token.logprob is not None
        assert left[token.id] == pytest.approx(math.exp(token.logprob))
        assert len(left) <= (sampling.top_k if sampling.temperature else 1) or sampling.mirostat


@dataclass(frozen=True)
class OpenReasoning:
    """A limit on reasoning that the prompt has opened."""

    max_tokens: int
    closing: tuple[int, ...]

    def tracker(self) -> ReasoningTracker:
        return ReasoningTracker(
            OutputParser(DIALECTS["hermes"], prompt="<think>"), ReasoningBudget(self.max_tokens, self.closing)
        )


@pytest.mark.parametrize(
    ("budget", "grammar"),
    [(2, None), (0, Constraint('root ::= "So.</think>" [0-9]{3}'))],
    ids=["free", "grammar"],
)
@pytest.mark.parametrize("n_top", [0, 3])
@pytest.mark.parametrize(
    "sampling",
    [SamplingParams(top_k=5, top_p=1, min_p=0, seed=2), SamplingParams(temperature=0)],
    ids=["drawn", "greedy"],
)
def test_forced_token_is_certain_after_sampling(
    engine: Engine, sampling: SamplingParams, n_top: int, budget: int, grammar: Constraint | None
):
    """It was not drawn, and what the token before it was drawn from is not shown for it."""
    closing = tuple(engine.tokenize("So.</think>"))
    request = request_for(
        chat(engine, "Tell me about yourself."),
        max_tokens=budget + len(closing) + 2,
        min_tokens=budget + len(closing) + 2,
        constraint=grammar,
        sampling=sampling,
        reasoning_limit=OpenReasoning(budget, closing),
        top_logprobs=n_top,
        post_sampling_probs=True,
    )
    _, tokens, _ = read(engine, request)
    forced = tokens[budget : budget + len(closing)]
    assert tuple(token.id for token in forced) == closing
    for token in forced:
        assert token.logprob == 0
        assert [(top.token, top.logprob) for top in token.top] == [(token.id, 0)][:n_top]
    drawn = tokens[:budget] + tokens[budget + len(closing) :]
    assert len(drawn) == budget + 2
    # Those that were drawn have others beside them.
    assert {len(token.top) for token in drawn} == {n_top if sampling.temperature else min(n_top, 1)}


def test_32_streams_together_give_what_each_gives_alone(engine: Engine):
    texts = [f"My name is {name}. What is my name?" for name in ("Ada", "Linus", "Grace", "Alan")]
    texts += ["What is your name?", "How do I start the server?", "Hello!", "Count to ten."]
    requests = [request_for(chat(engine, text), sampling=GREEDY, max_tokens=80, top_logprobs=5) for text in texts * 4]
    alone = [read(engine, request)[1] for request in requests[: len(texts)]]
    generations = [submit(engine, request) for request in requests]
    together = [[t for item in g if isinstance(item, Delta) for t in item.tokens] for g in generations]
    for i, tokens in enumerate(together):
        assert_same_or_near_tie(alone[i % len(texts)], tokens)


def test_long_prompt_in_chunks_gives_what_a_small_batch_gives(engine: Engine):
    """A prompt of several batches, read while another stream runs."""
    prompt = conversation(engine, 30)
    request = request_for(prompt, sampling=GREEDY, max_tokens=20, top_logprobs=5)
    alone = read(engine, request)[1]
    engine.forget()
    with submit(engine, request_for(chat(engine, "Count to ten."), sampling=GREEDY)) as other:
        next(other)
        assert_same_or_near_tie(alone, read(engine, request)[1])


def test_cancelled_generations_leave_no_cells(engine: Engine):
    random_ = random.Random(1)
    for _ in range(50):
        with submit(engine, request_for(chat(engine, "Count to thirty."), max_tokens=50)) as generation:
            for _ in range(random_.randint(0, 10)):
                if isinstance(next(generation), Finish):
                    break
    engine.forget()
    wait_until_idle(engine)
    assert engine.backend.n_cells_used() == 0
    assert engine.stats().n_running == engine.stats().n_waiting == 0


def test_more_tokens_than_cells_all_finish_by_preemption(engine: Engine):
    """6 conversations of their own need more than 768 cells: some are preempted, none suffers."""
    prompts = [(*engine.tokenize(f"{i} "), *conversation(engine, 5)) for i in range(6)]
    requests = [request_for(p, sampling=GREEDY, max_tokens=60, top_logprobs=5) for p in prompts]
    assert sum(map(len, prompts)) > 768
    with load(DEMO, LoadOptions(n_ctx=256, n_cells=768, n_slots=8)) as small:
        assert_together_as_alone(engine, small, requests)


def test_cached_prefix_gives_what_a_fresh_one_gives(engine: Engine):
    request = request_for(conversation(engine, 10), sampling=GREEDY, max_tokens=60, top_logprobs=5)
    engine.forget()
    _, fresh, first = read(engine, request)
    _, cached, second = read(engine, request)
    assert (first.usage.n_cached, second.usage.n_cached) == (0, len(request.prompt) - 1)
    assert_same_or_near_tie(fresh, cached)


def test_8_choices_of_a_prompt_compute_it_once(engine: Engine):
    engine.forget()
    wait_until_idle(engine)
    n_before = engine.stats().n_tokens_computed
    prompt = conversation(engine, 10)
    seeds = [SamplingParams(temperature=1, seed=seed) for seed in range(8)]
    generations = [submit(engine, request_for(prompt, max_tokens=1, sampling=sampling)) for sampling in seeds]
    for generation in generations:
        list(generation)
    assert engine.stats().n_tokens_computed - n_before == len(prompt) + 7


def test_tokens_can_be_read_after_the_engine_was_closed():
    engine = load(DEMO, LoadOptions())
    generation = submit(engine, request_for(chat(engine, "Hello!"), sampling=GREEDY))
    next(generation)
    engine.close()
    with contextlib.suppress(EngineError):
        assert list(generation)
    assert engine.backend.piece(300)
    assert engine.tokenize("still there")


# Grammars.


def constrained(engine: Engine, grammar: str, text: str = "Hello!", **options: Any) -> tuple[str, Finish]:
    constraint = Constraint(grammar, options.pop("triggers", ()))
    request = request_for(chat(engine, text), constraint=constraint, **{"max_tokens": 100, **options})
    said, _, finish = read(engine, request)
    return said, finish


@pytest.mark.parametrize(
    "sampling",
    [
        GREEDY,
        SamplingParams(temperature=2.0),
        SamplingParams(temperature=2.0, top_k=0, top_p=1.0),
        SamplingParams(temperature=1.0, repeat_penalty=1.5),
        SamplingParams(temperature=1.0, logit_bias=((5, 3.0),)),
    ],
    ids=["greedy", "hot", "whole vocabulary", "penalty", "bias"],
)
@pytest.mark.parametrize("seed", range(5))
def test_grammar_holds_at_any_temperature(engine: Engine, sampling: SamplingParams, seed: int):
    grammar = 'root ::= "{\\"n\\": " [0-9]{1,3} ", \\"ok\\": " ("true" | "false") "}"'
    text, finish = constrained(engine, grammar, sampling=replace(sampling, seed=seed))
    assert re.fullmatch(r'\{"n": [0-9]{1,3}, "ok": (true|false)\}', text)
    assert finish.reason == "stop"


@pytest.mark.parametrize("seed", range(10))
def test_characters_are_whole_where_a_grammar_counts_them(engine: Engine, seed: int):
    """The library takes bytes that are no UTF-8 for characters, and a caller would see several for each."""
    flat = SamplingParams(temperature=100.0, top_k=0, top_p=1.0, seed=seed)
    text, finish = constrained(engine, "root ::= [^\\x01-\\x7F]{20}", sampling=flat)
    assert finish.reason == "stop"
    assert len(text) == 20
    assert "\ufffd" not in text


MARK = "<|im_start|>"
BOUND_TO_A_MARK = Constraint(f'root ::= "{MARK}" [a-c]')


@pytest.mark.parametrize("temperature", [0, 1, 2])
def test_grammar_binds_the_text_that_is_seen(engine: Engine, temperature: float):
    """A control token has the text of a mark too, but it would leave nothing of it in the answer."""
    prompt, (control,) = chat(engine, "Hello!"), engine.tokenize(MARK)
    # The control token is by far the likeliest.
    sampling = SamplingParams(temperature=temperature, seed=3, logit_bias=((control, 50.0),))
    request = request_for(prompt, max_tokens=30, constraint=BOUND_TO_A_MARK, sampling=sampling)
    text, tokens, _ = read(engine, request)
    assert re.fullmatch(re.escape(MARK) + "[a-c]", text)
    assert control not in [token.id for token in tokens]
    text, tokens, _ = read(engine, replace(request, visible_tokens=frozenset({control})))
    assert re.fullmatch(re.escape(MARK) + "[a-c]", text)
    assert tokens[0].id == control


def test_grammar_that_names_a_control_token_gets_it(engine: Engine):
    (control,) = engine.tokenize(MARK)
    request = request_for(chat(engine, "Hello!"), constraint=Constraint(f'root ::= {MARK} "a"'), max_tokens=9)
    text, tokens, _ = read(engine, request)
    assert (text, tokens[0].id) == ("a", control)


def test_grammar_binds_from_its_trigger_on(engine: Engine):
    """The trigger begins within a token and ends with one."""
    request = request_for(chat(engine, "What is your name?"), sampling=GREEDY)
    plain, tokens, _ = read(engine, request)
    before, word = b"".join(token.piece for token in tokens[:3]).decode(), tokens[3].piece.decode()
    trigger = (before + word)[-len(word) - 1 :]
    constraint = Constraint(f'root ::= "{trigger}" "!" [x]{{3}}', (trigger,))
    text, _, finish = read(engine, replace(request, constraint=constraint))
    assert text == plain[: plain.index(trigger)] + trigger + "!xxx"
    assert finish.reason == "stop"


def test_grammar_whose_trigger_never_comes_changes_nothing(engine: Engine):
    plain = read(engine, request_for(chat(engine, "What is your name?"), sampling=GREEDY))[0]
    text, _ = constrained(engine, 'root ::= "x"', "What is your name?", triggers=("\x01never",), sampling=GREEDY)
    assert text == plain


@pytest.mark.parametrize("grammar", ["", " \n", 'root ::= undefined "x"', "no grammar at all", 'other ::= "x"'])
def test_grammar_that_cannot_be_read_is_refused_at_once(engine: Engine, grammar: str):
    with pytest.raises(InvalidGrammar):
        constrained(engine, grammar)


@pytest.mark.parametrize("grammar", [r"root ::= [\x00]", r'root ::= "a" [\uD800]'])
def test_grammar_that_no_token_can_follow_is_the_requests_fault(engine: Engine, grammar: str):
    with pytest.raises(InvalidGrammar, match="no tokens for"):
        constrained(engine, grammar)


def test_constrained_and_free_requests_share_a_batch(engine: Engine):
    free = request_for(chat(engine, "What is your name?"), sampling=GREEDY)
    alone = read(engine, free)[0]
    bound = replace(free, constraint=Constraint("root ::= [ab]{20}"))
    generations = [submit(engine, request) for request in (free, bound, free, bound)]
    texts = ["".join(item.text for item in g if isinstance(item, Delta)) for g in generations]
    assert texts[0] == texts[2] == alone
    assert all(re.fullmatch("[ab]{20}", text) for text in texts[1::2])


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({}, SamplingParams()),
        ({"general.sampling.temp": "0.6", "general.sampling.top_k": "20"}, SamplingParams(temperature=0.6, top_k=20)),
        ({"general.sampling.top_p": "much"}, SamplingParams()),
        (
            {"general.sampling.xtc_probability": "0.5", "general.sampling.mirostat": "2"},
            SamplingParams(xtc_probability=0.5, mirostat=2),
        ),
        (
            {"general.sampling.sequence": "top-k;typ_p;temp"},
            SamplingParams(samplers=("top_k", "typical_p", "temperature")),
        ),
        ({"general.sampling.sequence": "top_k;magic"}, SamplingParams()),
    ],
    ids=["none", "recommended", "no number", "more", "sequence", "unknown step"],
)
def test_defaults_come_from_the_metadata(metadata: dict[str, str], expected: SamplingParams):
    assert sampling_from(metadata) == expected


@pytest.mark.parametrize(("scaling", "same"), [("longrope", False), ("yarn", True), (None, True)])
def test_saved_prefixes_are_for_one_size_of_context_where_that_counts(engine: Engine, scaling: Any, same: bool):
    facts = replace(engine.facts, metadata={} if scaling is None else {"phi3.rope.scaling.type": scaling})
    keys = {_state_key(DEMO, replace(facts, n_cells=n), LoadOptions(), CacheLimits(n, 4, 8, 64)) for n in (512, 2048)}
    assert len(keys) == (1 if same else 2)


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a model at all" * 100], ids=["empty", "cut", "other"])
def test_file_that_is_no_model_is_an_error_with_its_name(tmp_path: Path, content: bytes):
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(EngineError, match=r"bad\.gguf"):
        load(str(path), LoadOptions(), proof_model=DEMO)


def test_missing_file_is_an_error_with_its_name():
    with pytest.raises(EngineError, match=r"nowhere\.gguf"):
        load("nowhere.gguf", LoadOptions(), proof_model=DEMO)


def test_more_requests_at_once_than_the_library_runs_are_refused_with_both_numbers():
    with pytest.raises(
        EngineError, match=r"--parallel 256 is more than llama.cpp can run at once: .* it is 255 at most"
    ):
        load(DEMO, LoadOptions(n_slots=256))


def test_progress_goes_from_0_to_1():
    seen: list[float] = []
    load(DEMO, LoadOptions(), progress=seen.append).close()
    assert seen[0] == 0
    assert seen[-1] == 1
    assert seen == sorted(seen)


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, "10000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, None)],
    ids=["by default", "what the user set", "another wish of the user"],
)
def test_threads_wait_as_was_measured_best_and_never_against_the_users_wish(given: dict[str, str], expected: str):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    program = "import os, localchat.engine.llama; print(os.environ.get('GOMP_SPINCOUNT'))"
    command = [sys.executable, "-c", program]
    child = subprocess.run(command, env={**environment, **given}, capture_output=True, text=True, check=True)
    assert child.stdout.strip() == str(expected)


def test_default_threads_are_one_for_a_tiny_model_and_within_the_machine_for_others():
    assert default_threads(3 << 20) == 1
    assert 1 <= default_threads(1 << 30) <= (os.cpu_count() or 1)


def test_the_number_of_threads_changes_between_batches():
    backend = load_backend(DEMO, LoadOptions(n_threads=2, n_gpu_layers=0))
    try:
        assert backend.threads == (2, 2)
        backend.set_threads(1)
        assert L.llama_n_threads(backend._context) == L.llama_n_threads_batch(backend._context) == 1
    finally:
        backend.close()


# Calls that would abort the whole process are refused before they reach the library.


def misuse_batch(backend: Any) -> None:
    sequence = Sequence(1, [1] * (backend.limits.n_batch + 1), backend.limits.n_batch + 2)
    backend.decode(Batch(chunks=(BatchChunk(sequence, 0, 0, backend.limits.n_batch + 1, True),)))


def misuse_slot(backend: Any) -> None:
    backend.decode(Batch(chunks=(BatchChunk(Sequence(1, [1], 2), 999, 0, 1, True),)))


def misuse_outputs(backend: Any) -> None:
    n = backend.limits.n_running + 1
    backend.decode(Batch(chunks=tuple(BatchChunk(Sequence(i, [1], 2), 0, i, 1, True) for i in range(n))))


def misuse_scores(backend: Any) -> None:
    n = backend.limits.n_outputs + 1
    backend.decode(Batch(chunks=(BatchChunk(Sequence(1, [1] * n, n + 1), 0, 0, n, True, is_scored=True),)))


@pytest.mark.parametrize(
    "misuse",
    [
        lambda backend: backend.piece(backend.facts.n_vocab),
        lambda backend: backend.piece(-1),
        lambda backend: backend.clear(999),
        lambda backend: backend.sample(backend.new_sampler(request_for((1,))), 10_000),
        misuse_batch,
        misuse_slot,
        misuse_outputs,
        misuse_scores,
    ],
    ids=(
        *("id too large", "negative id", "slot to clear", "row without logits", "batch too large", "slot"),
        *("outputs", "scores"),
    ),
)
def test_calls_that_would_kill_the_process_are_refused(engine: Engine, misuse: Any):
    wait_until_idle(engine)
    with pytest.raises(ValueError):  # noqa: PT011  # the messages differ; that it is refused is the point
        misuse(engine.backend)


def test_errors_of_the_library_belong_to_the_thread_on_which_it_failed():
    from localchat.engine.llama import library

    def fail() -> None:
        library._on_log(4, b"mine", None)
        theirs.append(library.problems())

    theirs: list[str] = []
    library.problems()
    library._on_log(4, b"of the first", None)
    thread = threading.Thread(target=fail)
    thread.start()
    thread.join(10)
    assert (theirs, library.problems(), library.problems()) == (["mine"], "of the first", "it gave no reason")


def test_the_texts_of_all_tokens_are_those_of_each(engine: Engine):
    vocabulary = engine.backend.vocabulary  # type: ignore[attr-defined]  # that of llama.cpp has one
    assert vocabulary.all_pieces == [vocabulary.piece(id, special=True) for id in range(vocabulary.n_tokens)]
    assert b"".join(vocabulary.all_pieces[id] for id in engine.tokenize("Hello, wörld!")) == "Hello, wörld!".encode()


FORCED = Constraint(
    'root ::= "{\\"measured_temperature\\": " [0-9] ", \\"location_of_the_station\\": \\"" [a-z]{3} "\\"}"'
)


@pytest.mark.parametrize("temperature", [0, 1])
def test_tokens_that_a_constraint_forces_need_no_step_and_change_no_text(temperature: float):
    request = request_for(
        (1, 2, 3), max_tokens=60, constraint=FORCED, sampling=SamplingParams(temperature=temperature, seed=1)
    )
    results = []
    for speculates in (True, False):
        with load(DEMO, LoadOptions(n_slots=2, speculates=speculates)) as one:
            text, tokens, finish = read(one, request)
            results.append([token.id for token in tokens])
            assert re.fullmatch(r'\{"measured_temperature": \d, "location_of_the_station": "[a-z]{3}"\}', text)
            assert finish.reason == "stop"
            n_without_step = one.stats().n_drafts_accepted
            assert n_without_step > len(tokens) / 2 if speculates else n_without_step == 0
    assert results[0] == results[1]


def test_a_bias_against_a_forced_token_has_its_text_written_with_others(engine: Engine):
    first = engine.tokenize('{"measured_temperature')[0]
    sampling = SamplingParams(temperature=0, logit_bias=((first, -100.0),))
    text, tokens, _ = read(engine, request_for((1, 2, 3), max_tokens=60, constraint=FORCED, sampling=sampling))
    assert text.startswith('{"measured_temperature": ')
    assert tokens[0].id != first
