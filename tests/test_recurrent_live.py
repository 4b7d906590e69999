"""A recurrent model on the real engine: its state cannot be truncated, is reused, and gives the same text."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("gguf", reason="part of the extra `bench`")

from localchat.serving.core.events import SampledTokens
from localchat.serving.engine import load
from localchat.serving.engine.engine import Engine
from localchat.serving.engine.values import EngineError, GenerationRequest, LoadOptions

from .demo_model import GREEDY, assert_same_or_near_tie, read
from .engines import request_for, submit
from .tiny_models import write_mamba

LONG = "Tell me of the sea, the wind and the boats that go out in the morning. " * 4


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("models") / "mamba.gguf"
    write_mamba(path)
    return str(path)


@pytest.fixture
def engine(model: str) -> Iterator[Engine]:
    with load(model, LoadOptions(n_parallel=4)) as engine:
        yield engine


def prompt(engine: Engine, text: str) -> tuple[int, ...]:
    return tuple(engine.tokenize(text))


def greedy_request(tokens: tuple[int, ...], max_tokens: int = 30) -> GenerationRequest:
    return request_for(tokens, sampling=GREEDY, max_tokens=max_tokens, ignore_eos=True, top_logprobs=5)


def test_equal_prompt_is_not_computed_again(engine: Engine):
    request = greedy_request(prompt(engine, LONG))
    _, fresh, first = read(engine, request)
    _, cached, second = read(engine, request)
    assert (first.usage.n_cached, second.usage.n_cached) == (0, len(request.prompt) - 1)
    assert_same_or_near_tie(fresh, cached)


def test_next_turn_reuses_the_last_prompt(engine: Engine, model: str):
    first = prompt(engine, LONG)
    read(engine, greedy_request(first))
    following = greedy_request((*first, *prompt(engine, "an answer that was not generated; and then?")))
    _, cached, finish = read(engine, following)
    assert finish.usage.n_cached == len(first) - 1
    engine.forget()
    _, fresh, finish = read(engine, following)
    assert finish.usage.n_cached == 0
    assert_same_or_near_tie(fresh, cached)


def test_streams_together_have_the_text_of_each_alone(engine: Engine):
    requests = [greedy_request(prompt(engine, LONG + text)) for text in ("one", "two, three", "four")] * 2
    alone = [read(engine, request)[1] for request in requests[:3]]
    engine.forget()
    generations = [submit(engine, request) for request in requests]
    for i, generation in enumerate(generations):
        together = [token for item in generation if isinstance(item, SampledTokens) for token in item.tokens]
        assert_same_or_near_tie(alone[i % 3], together)


def test_recurrent_model_is_refused_as_draft_model(model: str):
    with pytest.raises(EngineError, match="recurrent"):
        load(model, LoadOptions(n_parallel=2, draft_path=model))
