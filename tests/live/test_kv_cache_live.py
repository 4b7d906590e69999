"""The KV cache of llama.cpp: streams of sequences, sliding windows, and recurrent states that cannot be truncated."""

import contextlib
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from localchat.serving.core.params import SamplingParams
from localchat.serving.engine import load
from localchat.serving.engine.batch import Batch, BatchChunk
from localchat.serving.engine.engine import Engine
from localchat.serving.engine.llama import backend, load_backend
from localchat.serving.engine.llama.backend import LlamaBackend
from localchat.serving.engine.sequence import Sequence
from localchat.serving.engine.values import EngineError, LoadOptions, SequenceRequest
from tests.support.demo_model import DEMO, GREEDY, assert_as_alone, assert_same_or_near_tie, chat, conversation, read
from tests.support.engines import request_for, submit, tokens_of
from tests.support.tiny_models import write_mamba, write_sliding

QUESTIONS = (
    *("What is your name?", "Who are you?", "What can you do?", "Say hello.", "What is the capital of France?"),
    *("Repeat after me: blue table", "Count to five.", "My name is Ada. What is my name?", "What is 2 plus 3?"),
    *("Name a colour.", "Thank you!", "Good morning!"),
)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with load(DEMO, LoadOptions(n_parallel=8, n_ctx=512)) as engine:
        yield engine


def together(engine: Engine, requests: list[SequenceRequest]) -> list[list[int]]:
    """The tokens of each request, with as many at once as there are slots."""
    generations = [submit(engine, request) for request in requests]
    return [[token.id for token in tokens_of(generation)] for generation in generations]


@pytest.mark.cpu_only
def test_greedy_texts_together_are_those_alone(engine: Engine):
    assert not engine.backend.limits.is_unified
    # After random tokens many tokens are about equally likely.
    chance = random.Random(0)
    noise = [tuple(chance.choices(range(300, 900), k=chance.randint(10, 200))) for _ in range(8)]
    prompts = [*(chat(engine, question) for question in QUESTIONS), *noise]
    requests = [request_for(prompt, sampling=GREEDY, max_tokens=12) for prompt in prompts]
    alone = []
    for request in requests:
        engine.forget()
        alone.append([token.id for token in read(engine, request)[1]])
    engine.forget()
    for has_cache in (False, True):
        n_cached = engine.stats().n_cached
        # The newest prefixes are still cached. Only requests with a seed have the same texts with them.
        chosen = slice(-8, None) if has_cache else slice(None)
        seeded = SamplingParams(temperature=0, seed=1)
        found = together(engine, [replace(request, sampling=seeded) for request in requests[chosen]])
        assert [i for i, (a, b) in enumerate(zip(alone[chosen], found)) if a != b] == []
        assert (engine.stats().n_cached > n_cached + 250) == has_cache


@pytest.mark.cpu_only
@pytest.mark.parametrize("temperature", [0, 1])
def test_texts_with_a_seed_do_not_depend_on_cached_prefixes(engine: Engine, temperature: float):
    """All log probabilities are equal to the last bit: of the same request, of choices, and of the next turns."""
    seeded = SamplingParams(temperature=temperature, seed=7, top_k=0)

    def outputs(*prompts: tuple[int, ...], sampling: SamplingParams = seeded) -> list[list[tuple[int, Any]]]:
        options = {"sampling": sampling, "max_tokens": 12, "ignore_eos": True, "top_logprobs": 0}
        generations = [submit(engine, request_for(prompt, **options)) for prompt in prompts]
        return [[(token.id, token.logprob) for token in tokens_of(generation)] for generation in generations]

    noise = random.Random(3).choices(range(300, 900), k=150)
    prompt = (*noise, *chat(engine, "Hello!"))
    for _ in range(2):
        engine.forget()
        alone = outputs(prompt)
        assert outputs(prompt) == alone
        assert outputs(prompt, prompt, prompt) == alone * 3
        engine.forget()
        outputs((*prompt[:100], *noise[:70]), sampling=SamplingParams())
        outputs(prompt, sampling=SamplingParams())
        assert outputs(prompt) == alone
        prompt = (*prompt, *(id for id, _ in alone[0]), *noise[:5])


@pytest.mark.cpu_only
def test_prefix_is_copied_to_other_sequences(engine: Engine):
    """The common prefix of several prompts is computed once."""
    engine.forget()
    prefix = conversation(engine, 10)
    options = {"sampling": GREEDY, "max_tokens": 8, "top_logprobs": 2}
    requests = [request_for((*prefix, 300 + i % 4), **options) for i in range(8)]
    n_computed = engine.stats().n_computed
    generations = [submit(engine, request) for request in requests]
    texts = [tokens_of(generation) for generation in generations]
    assert engine.stats().n_computed - n_computed < len(prefix) + 8 * 20
    engine.forget()
    for request, tokens in zip(requests, texts):
        assert_same_or_near_tie(read(engine, request)[1], tokens)


@pytest.mark.cpu_only
@pytest.mark.parametrize("name", ["llama_state_seq_set_data", "empty"])
def test_prefix_that_memory_cannot_hold_twice_is_computed(engine: Engine, name: str, monkeypatch: pytest.MonkeyPatch):
    engine.forget()
    prefix = conversation(engine, 10)
    requests = [request_for((*prefix, 300 + i), sampling=GREEDY, max_tokens=8, top_logprobs=2) for i in range(3)]
    expected = [read(engine, request)[1] for request in requests]
    engine.forget()
    read(engine, request_for((*prefix, *prefix), max_tokens=2))  # So long that a part of it is copied.
    failures: list[str] = []

    def fail(*arguments: Any) -> Any:
        failures.append(name)
        if name == "empty":
            raise MemoryError
        return 0

    monkeypatch.setattr(backend.np if name == "empty" else backend.L, name, fail)
    for request, tokens in zip(requests, expected):
        _, found, finish = read(engine, request)
        assert_same_or_near_tie(tokens, found)
        assert finish.usage.n_cached == (0 if request is requests[0] else len(prefix))
    assert failures == [name]
    assert engine.failure is None


@pytest.mark.cpu_only
def test_sequences_that_move_into_a_gap_change_no_text_and_no_idle_prefix(engine: Engine):
    engine.forget()
    requests = [request_for(chat(engine, question), sampling=GREEDY, max_tokens=24) for question in QUESTIONS[:7]]
    alone = [[token.id for token in read(engine, request)[1]] for request in requests]
    n_idle = engine.stats().n_cells_idle
    # Each of these requests takes its earlier slot; the slots are not adjacent.
    assert together(engine, requests[::3]) == alone[::3]
    assert engine.stats().n_cells_idle == n_idle
    assert together(engine, requests) == alone


@pytest.mark.cpu_only
@pytest.mark.parametrize(
    ("options", "is_unified"),
    [(LoadOptions(n_parallel=2, n_ctx=512), False), (LoadOptions(n_parallel=200, n_ctx=4096), True)],
)
def test_each_sequence_has_a_stream_if_memory_holds_a_whole_context_for_each(options, is_unified, monkeypatch):
    monkeypatch.setattr("localchat.serving.engine.llama.context_size.SMALL_CACHE_BYTES", 1 << 28)
    with contextlib.closing(load_backend(DEMO, options)) as backend:
        assert (backend.limits.is_unified, backend.facts.n_ctx) == (is_unified, options.n_ctx)


# A sliding window.


@pytest.fixture(scope="module")
def sliding(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("sliding") / "sliding.gguf"
    write_sliding(path, 32)
    return str(path)


def compute(backend: LlamaBackend, slot: int, tokens: list[int], n_computed: int = 0) -> list[float]:
    """The logits after the last token."""
    sequence = Sequence(slot, list(tokens), 500)
    sequence.slot, sequence.n_computed = slot, n_computed
    n_new = len(tokens) - n_computed
    backend.decode(Batch((BatchChunk(sequence, 0, n_new, wants_output=True),)))
    return backend._row(n_new - 1).tolist()


def test_more_sequences_than_the_limit_of_llama_cpp_are_refused_with_both_numbers(sliding: str):
    with pytest.raises(EngineError, match=r"--parallel 128 is more than .* is 127"):
        load_backend(sliding, LoadOptions(n_parallel=128, n_ctx=500))
    load_backend(sliding, LoadOptions(n_parallel=127, n_ctx=500)).close()


def test_prefixes_of_idle_sequences_are_kept_beside_other_sequences(sliding: str):
    """llama.cpp frees a cell when no sequence attends to it any more; a second sequence keeps it."""
    backend, alone = (load_backend(sliding, LoadOptions(n_parallel=4, n_ctx=500)) for _ in range(2))
    chance = random.Random(1)
    held: dict[int, list[int]] = {}
    for i in range(20):
        slot = i % 4
        held[slot] = [chance.randrange(1, 1900) for _ in range(chance.randint(100, 120))]
        backend.clear(slot)
        compute(backend, slot, held[slot])
        for source, tokens in held.items():
            backend.share(source, 5, 20)
            prompt = [*tokens[:20], 7]
            expected = compute(alone, 0, prompt)
            assert compute(backend, 5, prompt, 20) == pytest.approx(expected, abs=0.05)
            backend.clear(5)
            alone.clear(0)
    backend.close()
    alone.close()


# A recurrent model.

LONG = "Tell me of the sea, the wind and the boats that go out in the morning. " * 4


@pytest.fixture(scope="module")
def recurrent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path = tmp_path_factory.mktemp("recurrent") / "mamba.gguf"
    write_mamba(path)
    with load(str(path), LoadOptions(n_parallel=4)) as engine:
        yield engine


def greedy_request(*tokens: int) -> SequenceRequest:
    return request_for(tokens, sampling=GREEDY, max_tokens=30, ignore_eos=True, top_logprobs=5)


@pytest.mark.cpu_only
def test_prompt_and_its_next_turns_continue_from_its_state(recurrent: Engine):
    """Other requests follow in between, and the next turns have other tokens than the output."""
    first = recurrent.backend.tokenize(LONG)
    turns = [
        recurrent.backend.tokenize(f"an answer that was not generated; and {word}?") for word in ("then", "why", "how")
    ]
    requests = [greedy_request(*first, *turn) for turn in ((), *turns, ())]
    found = []
    for request in requests:
        found.append(read(recurrent, request)[1:])
        read(recurrent, greedy_request(*recurrent.backend.tokenize(f"{len(found)}: {LONG}")))
    assert [finish.usage.n_cached for _, finish in found] == [0, *[len(first) - 1] * 4]
    for request, (cached, _) in zip(requests, found):
        recurrent.forget()
        fresh, finish = read(recurrent, request)[1:]
        assert finish.usage.n_cached == 0
        assert_same_or_near_tie(fresh, cached)


@pytest.mark.cpu_only
def test_recurrent_streams_together_have_the_text_of_each_alone(recurrent: Engine):
    requests = [greedy_request(*recurrent.backend.tokenize(LONG + text)) for text in ("one", "two, three", "four")]
    assert_as_alone(recurrent, recurrent, requests * 2)
