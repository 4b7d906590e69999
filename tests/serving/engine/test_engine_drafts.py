"""Speculative decoding: fewer steps, and the same text, ends and log probabilities."""

from __future__ import annotations

import random
from typing import Any

import pytest

from localchat.serving.core.events import SampledTokens
from localchat.serving.engine.drafts import looked_up
from localchat.serving.engine.values import EngineError, GenerationRequest
from tests.support.engines import (
    Finish,
    complete,
    read,
    request,
    request_for,
    step_until_idle,
    stepped,
    submit,
    text_of,
)
from tests.support.fakes import END, FakeBackend, echo


def completed(request: GenerationRequest, model: Any = echo, **options: Any) -> tuple[str, Finish, FakeBackend]:
    """Text and end of one request, and the backend that computed it."""
    backend = FakeBackend(model, **options)
    with stepped(backend) as engine:
        return (*complete(engine, request), backend)


QUOTED = "the quick brown fox jumps over the lazy dog"


def test_text_that_repeats_its_prompt_takes_fewer_steps_and_is_the_same():
    plain, plain_end, slow = completed(request(QUOTED))
    text, end, fast = completed(request(QUOTED), max_drafted=16)
    assert text == plain == QUOTED
    assert (end.usage.n_completion, end.reason) == (plain_end.usage.n_completion, "stop")
    assert len(fast.batches) < len(slow.batches) / 3
    assert 0 < end.usage.n_draft_accepted <= end.usage.n_drafted
    assert (plain_end.usage.n_drafted, plain_end.usage.n_draft_accepted) == (0, 0)
    # Each step gives one token beside the accepted draft tokens.
    assert end.usage.n_completion == len(fast.batches) + end.usage.n_draft_accepted


@pytest.mark.parametrize("max_tokens", range(1, 30))
def test_limit_within_a_draft_holds(max_tokens: int):
    text, end, _ = completed(request("abcd" * 5, max_tokens=max_tokens), endless_loop, max_drafted=16)
    assert (text, end.reason) == (("abcd" * 10)[:max_tokens], "length")
    assert end.usage.n_completion == max_tokens


def endless_loop(tokens: list[int], n_prompt: int) -> int:
    return ord("abcd"[(len(tokens) - n_prompt) % 4])


def test_stop_token_and_end_within_a_draft_end_the_output_there():
    def loop_that_ends(tokens: list[int], n_prompt: int) -> int:
        return END if len(tokens) - n_prompt == 9 else endless_loop(tokens, n_prompt)

    prompt = (*b"abcdabcda", END, *b"abcdabcda")
    text, end, _ = completed(request_for(prompt), loop_that_ends, max_drafted=16)
    assert (text, end.reason, end.usage.n_completion) == ("abcdabcda", "stop", 10)
    text, end, _ = completed(request("abcd" * 5, stop_token_ids=(ord("c"),)), endless_loop, max_drafted=16)
    assert (text, end.stop, end.usage.n_completion) == ("ab", ord("c"), 3)


@pytest.mark.parametrize("seed", range(10))
def test_many_sequences_with_drafts_have_the_tokens_of_each_alone(seed: int):
    random_ = random.Random(seed)
    requests = [
        request("".join(random_.choices("abc", k=random_.randint(1, 40))), max_tokens=random_.randint(1, 60))
        for _ in range(12)
    ]
    alone = [completed(one)[0] for one in requests]
    # Few cells, so that sequences are preempted and drafts shortened.
    backend = FakeBackend(max_drafted=8, n_ctx=100, n_cells=160, n_parallel=4, n_batch=16)
    with stepped(backend) as engine:
        generations = []
        for one in requests:
            generations.append(submit(engine, one))
            for _ in range(random_.randint(0, 8)):
                engine.step()
        step_until_idle(engine)
        assert [read(generation)[0] for generation in generations] == alone
        assert engine.stats().n_draft_accepted > 0


def test_logprobs_come_with_each_token_of_a_draft():
    with stepped(FakeBackend(max_drafted=16)) as engine:
        generation = submit(engine, request(QUOTED, top_logprobs=1))
        step_until_idle(engine)
        tokens = [token for item in generation if isinstance(item, SampledTokens) for token in item.tokens]
        assert [token.id for token in tokens] == list(QUOTED.encode())
        assert [[top.id for top in token.top] for token in tokens] == [[token.id] for token in tokens]


def test_sampling_error_within_a_draft_comes_after_the_text_before_it():
    def model(tokens: list[int], n_prompt: int) -> int:
        if len(tokens) == n_prompt + 9:
            raise ZeroDivisionError("a broken sampler")
        return endless_loop(tokens, n_prompt)

    with stepped(FakeBackend(model, max_drafted=16)) as engine:
        generation = submit(engine, request("abcd" * 5))
        step_until_idle(engine)
        assert text_of([next(generation)]) == "abcdabcda"
        with pytest.raises(EngineError, match="sampling a token failed"):
            next(generation)


LOOKUPS: dict[str, tuple[list[int], list[int]]] = {
    "nothing": ([], []),
    "one": ([1], []),
    "one run": ([1, 2, 3], []),
    "no repetition": ([1, 2, 3, 4, 5], []),
    "a shorter run only": ([1, 2, 3, 4, 5, 6, 1, 2], []),
    "the shortest match": ([1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3], [4]),
    "a longer match": ([1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5], [6, 7, 8]),
    "the newest of two places": ([1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3], [5]),
    "the place with more in common": ([0, 1, 2, 3, 4, 9, 1, 2, 3, 5, 0, 1, 2, 3], [4, 9]),
    "one token again and again": ([7] * 8, [7, 7, 7, 7]),
    "two tokens again and again": ([5, 1, 2, 1, 2, 1, 2, 1, 2], [1, 2, 1, 2]),
}


@pytest.mark.parametrize(("tokens", "expected"), LOOKUPS.values(), ids=LOOKUPS)
def test_draft_is_the_continuation_of_the_longest_earlier_match(tokens: list[int], expected: list[int]):
    assert list(map(ord, looked_up("".join(map(chr, tokens)), 4))) == expected
