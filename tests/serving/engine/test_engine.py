"""The engine on a fake backend: output, ends, log probabilities, cancelling, failing decodes, full caches, drafts."""

import contextlib
import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from localchat.serving.core.errors import BadRequest, ContextLengthExceeded
from localchat.serving.core.events import PromptProgress
from localchat.serving.core.mailbox import Mailbox
from localchat.serving.core.params import SamplingParams
from localchat.serving.engine.engine import Engine
from localchat.serving.engine.values import EngineError, SequenceRequest
from tests.support.engines import (
    LocalEngine,
    read,
    request,
    request_for,
    step_until_idle,
    stepped,
    submit,
    text_of,
    tokens_of,
)
from tests.support.fakes import END, FakeBackend, echo, endless


def completed(request: SequenceRequest, model: Any = echo, **options: Any) -> tuple[str, Any, FakeBackend]:
    """Text and end of one request, and the backend that computed it."""
    backend = FakeBackend(model, **options)
    with stepped(backend) as engine:
        generation = submit(engine, request)
        step_until_idle(engine)
        return (*read(generation), backend)


@pytest.mark.parametrize(
    ("model", "options", "text", "end", "n_completion"),
    [
        (echo, {}, "hello", ("stop", None), 6),
        (endless, {"max_tokens": 5}, "abcde", ("length", None), 5),
        (endless, {}, "abcdefghijk", ("length", None), 11),  # The context ends.
        (endless, {"max_tokens": 10_000}, "abcdefghijk", ("length", None), 11),
        (endless, {"stop_token_ids": (ord("c"),)}, "ab", ("stop", ord("c")), 3),
    ],
)
def test_generation_gives_text_then_one_finish(model: Any, options: Any, text: str, end: Any, n_completion: int):
    output, finish, _ = completed(request("hello", **options), model, n_ctx=16)
    assert (output, (finish.reason, finish.stop)) == (text, end)
    assert (finish.usage.n_prompt, finish.usage.n_completion, finish.usage.n_cached) == (5, n_completion, 0)


def test_progress_comes_before_the_text_on_request():
    """Progress that is not read is replaced by newer progress."""
    with stepped(FakeBackend(n_batch=4)) as engine:
        reporting, late = (submit(engine, request(text, reports_progress=True)) for text in ("hello, world", "later"))
        other = submit(engine, request("x"))
        items = []
        while engine.step():
            if reporting.wait(0) and all(isinstance(item, PromptProgress) for item in items):
                items.append(next(reporting))
        progress = [item for item in items if isinstance(item, PromptProgress)]
        assert (progress[0].n_computed, progress[0].n_prompt, progress[0].n_cached) == (0, 12, 0)
        assert [item.n_computed for item in progress] == sorted({item.n_computed for item in progress})
        assert text_of((*items, *reporting)) == "hello, world"
        assert getattr(next(late), "n_computed", None) == 5
        assert (read(late)[0], read(other)[0]) == ("later", "x")


@pytest.mark.parametrize(("line", "n_tokens"), [(b"ab\ncd", 3), (b"\nab", 1), (b"abcd", 20)])
def test_time_limit_ends_output_that_has_begun_a_second_line(line: bytes, n_tokens: int):
    def model(tokens: list[int], n_prompt: int) -> int:
        return line[(len(tokens) - n_prompt) % len(line)]

    with stepped(FakeBackend(model)) as engine:
        late = submit(engine, request("x", max_tokens=20, t_max_predict_ms=0))
        early = submit(engine, request("x", max_tokens=20, t_max_predict_ms=3_600_000))
        step_until_idle(engine)
        finishes = [read(generation)[1] for generation in (late, early)]
    assert [(finish.reason, finish.usage.n_completion) for finish in finishes] == [("length", n_tokens), ("length", 20)]


@pytest.mark.parametrize("n_requests", [1, 2, 3, 5, 8])
def test_tokens_of_a_large_vocabulary_are_sampled_in_parallel_for_the_right_sequences(n_requests: int):
    def model(tokens: list[int], n_prompt: int) -> int:
        threads.add(threading.get_ident())
        return echo(tokens, n_prompt)

    threads: set[int] = set()
    with stepped(FakeBackend(model, n_vocab=100_000, n_parallel=8)) as engine:
        texts = [f"{i} and so on" for i in range(n_requests)]
        generations = [submit(engine, request(text)) for text in texts]
        step_until_idle(engine)
        assert [read(g)[0] for g in generations] == texts
        assert (len(threads) > 1) == (n_requests > 1 and (os.cpu_count() or 1) > 1)


def test_cancel_takes_effect_in_the_next_step_and_leaves_an_idle_prefix():
    backend = FakeBackend(endless)
    with stepped(backend) as engine:
        with submit(engine, request()) as generation:  # which cancels it
            engine.step()
        assert not engine.step()
        assert (engine.stats().n_cells_active, engine.stats().n_cells_idle) == (0, 5)
        engine.forget()
        assert not engine.step()
        assert backend.n_cells_used() == 0
        assert list(generation) == []


# Without free cells, and with failing decodes.


def test_request_that_never_finds_free_cells_fails_alone():
    with stepped(FakeBackend(n_cells=1024, n_real_cells=20)) as engine:
        small, large = submit(engine, request("abc")), submit(engine, request("x" * 40))
        step_until_idle(engine)
        assert read(small)[0] == "abc"
        with pytest.raises(EngineError, match="no free cells for 40 tokens"):
            read(large)


@pytest.mark.parametrize("max_drafted", [0, 16])
def test_poisoned_request_fails_alone(max_drafted: int):
    with stepped(FakeBackend(poison=ord("!"), max_drafted=max_drafted)) as engine:
        texts = ["good good good good", "good good good good!", "other"]
        good, bad, other = (submit(engine, request(text)) for text in texts)
        step_until_idle(engine)
        assert [read(good)[0], read(other)[0]] == ["good good good good", "other"]
        with pytest.raises(EngineError, match="could not compute this request"):
            read(bad)


@pytest.mark.parametrize("n_sampled", [1, 2, 3])
def test_request_that_lacks_cells_beside_a_poisoned_one_waits_for_them(n_sampled: int):
    """The failed batch has the last free cells, of which each of its two sequences needs one."""

    def model(tokens: list[int], n_prompt: int) -> int:
        return ord("!") if tokens[0] == ord("P") and len(tokens) == n_prompt + n_sampled else ord("a")

    with stepped(FakeBackend(model, poison=ord("!"), n_real_cells=2 * (10 + n_sampled))) as engine:
        good, bad = (submit(engine, request(name * 10, max_tokens=9)) for name in "AP")
        step_until_idle(engine)
        assert read(good)[0] == "a" * 9
        with pytest.raises(EngineError, match="could not compute this request: the batch is poisoned"):
            read(bad)


def test_poisoned_sequence_fails_with_its_request_alone():
    """The other sequences of the request have ended when their turn to be decoded alone comes."""
    with stepped(FakeBackend(poison=ord("!"))) as engine:
        ends: list[Exception | None] = []
        requests = [request(text) for text in ("good!", "good", "good")]
        engine.submit(engine.prepare(requests, lambda output: None, ends.append))
        other = submit(engine, request("other"))
        step_until_idle(engine)
        assert read(other)[0] == "other"
        assert [type(end) for end in ends] == [EngineError]


def test_cells_of_all_sequences_of_a_failed_batch_are_dropped_with_their_request():
    """The batch may have damaged them."""

    def model(tokens: list[int], n_prompt: int) -> int:
        return ord("!") if tokens[0] == ord("b") and len(tokens) == n_prompt + 2 else ord("a")

    with stepped(FakeBackend(model, poison=ord("!"))) as engine:
        ends: list[Exception | None] = []
        engine.submit(engine.prepare([request("bad"), request("good")], lambda output: None, ends.append))
        step_until_idle(engine)
        assert [type(end) for end in ends] == [EngineError]
        again = submit(engine, request("good", max_tokens=2))
        step_until_idle(engine)
        assert read(again)[1].usage.n_cached == 0


def test_request_that_is_dropped_before_its_start_harms_no_other():
    """The thread that receives messages may drop a request while another thread queues its sequences."""
    with stepped(FakeBackend()) as engine:
        ends: list[Exception | None] = []
        generation = engine.prepare([request("dropped")], lambda output: None, ends.append)
        engine.drop(generation)
        engine.submit(generation)
        other = submit(engine, request("other"))
        engine.step()
        engine.drop(generation)
        step_until_idle(engine)
        assert read(other)[0] == "other"
        assert ends == [None]


@pytest.mark.parametrize("limits", [{}, {"is_unified": False}, {"can_truncate": False}])
@pytest.mark.parametrize("seed", range(3))
def test_many_sequences_have_the_tokens_of_each_alone(seed: int, limits: dict[str, bool]):
    """The backend checks what each slot holds, and which rows are computed together."""
    random_ = random.Random(seed)
    n_parallel, n_ctx = ((1, 400), (3, 400), (8, 500))[seed % 3]
    backend = FakeBackend(
        n_parallel=n_parallel,
        n_idle=random_.choice([1, 3]),
        n_ctx=n_ctx,
        n_cells=n_ctx * (16 if "is_unified" in limits else 2),
        n_batch=256 if "is_unified" in limits else random_.choice([32, 256]),
        max_drafted=0 if "can_truncate" in limits else random_.choice([0, 8]),
        **limits,
    )
    beginnings = ["", "a" * 20, "b" * 100, "c" * 70 + "d" * 70]
    with stepped(backend) as engine:
        texts = [random_.choice(beginnings) + "xyz"[i % 3] * random_.randint(1, 60) for i in range(40)]
        generations = []
        for text in texts:
            generations.append(submit(engine, request(text)))
            if random_.random() < 0.1:
                generations[-1].cancel()
                texts[len(generations) - 1] = ""
            for _ in range(random_.randint(0, 6)):
                engine.step()
        step_until_idle(engine)
        for text, generation in zip(texts, generations):
            if text:  # It was not cancelled.
                assert read(generation)[0] == text


@pytest.mark.parametrize("seed", range(4))
def test_sequences_with_several_sets_of_adapters_have_the_tokens_of_each_alone(seed: int):
    """The backend checks with which adapters each cell was computed, also where prefixes and slots move, and where
    memory is too short for that."""
    random_ = random.Random(seed)
    is_unified = seed % 2 == 0
    backend = FakeBackend(
        n_parallel=5, n_idle=random_.choice([1, 4]), n_ctx=400, n_cells=4000, n_batch=256, is_unified=is_unified
    )
    with stepped(backend) as engine:
        texts, generations = [], []
        for i in range(60):
            texts.append(random_.choice(["", "a" * 80, "b" * 150]) + "xyz"[i % 3] * random_.randint(1, 40))
            adapters = random_.choice([(), ((0, 1.0),), ((0, 0.5), (1, 1.0))])
            sampling = SamplingParams(seed=random_.choice([None, 1]))
            options = {"adapters": adapters, "sampling": sampling, "cache_prompt": random_.random() < 0.9}
            generations.append(submit(engine, request(texts[-1], **options)))
            backend.failing = random_.choice([set(), set(), {"state"}, {"set_state"}])
            for _ in range(random_.randint(0, 30)):
                engine.step()
        step_until_idle(engine)
        assert [read(generation)[0] for generation in generations] == texts


@pytest.mark.parametrize("n_prompt", [63, 64, 65, 127, 128, 129, 191, 192, 193, 255, 256, 257, 319, 320])
@pytest.mark.parametrize("limits", [{}, {"is_unified": False}, {"can_truncate": False}])
def test_prompts_of_every_length_are_computed_once(n_prompt: int, limits: dict[str, bool]):
    """Alone, beside a stream, and again."""
    backend = FakeBackend(endless, n_ctx=400, n_cells=4000, n_batch=256, **limits)
    with stepped(backend) as engine:
        stream = submit(engine, request("stream", max_tokens=300))
        engine.step()
        first = submit(engine, request_for(tuple(i % 256 for i in range(n_prompt)), max_tokens=3))
        step_until_idle(engine)
        again = submit(engine, request_for(tuple(i % 256 for i in range(n_prompt)), max_tokens=3))
        step_until_idle(engine)
        assert [read(generation)[1].usage.n_cached for generation in (first, again)] == [0, n_prompt - 1]
        # Of each output, the last token is not computed.
        assert engine.stats().n_computed == 6 + 299 + n_prompt + 2 + 1 + 2
        assert len(read(stream)[0]) == 300


@pytest.mark.parametrize("n_kept", [1, 5, 15])
def test_prompt_of_any_length_is_cut_to_the_tokens_that_are_kept(n_kept: int):
    text = "ab" * 60_000 + "hello, world"
    output, finish, _ = completed(request_for(((text, True),), truncate_prompt_tokens=n_kept), n_ctx=32)
    assert (output, finish.usage.n_prompt) == (text[-n_kept:], n_kept)
    with pytest.raises(ContextLengthExceeded):
        completed(request_for(((text, True),)), n_ctx=32)


@pytest.mark.parametrize("returns_ids", [True, False])
def test_sequences_with_one_prompt_share_its_tokens(returns_ids: bool):
    """Only the list that grows with the output is a copy for each sequence."""
    prompts = [(("hello", True),), (("other", True),)]
    requests = [request_for(prompt, returns_ids=returns_ids) for prompt in prompts for _ in range(3)]
    with stepped(FakeBackend()) as engine:
        sequences, tokenized = engine.prompts.sequences_of(requests, lambda output: None)
    assert [bytes(sequence.request.prompt) for sequence in sequences] == [b"hello"] * 3 + [b"other"] * 3
    assert len({id(sequence.request.prompt) for sequence in sequences}) == 2
    assert len({id(sequence.tokens) for sequence in sequences}) == 6
    assert tokenized.n_tokens == [5] * 6
    assert [bytes(tokens) for tokens in tokenized.tokens] == [b"hello" * returns_ids] * 3 + [b"other" * returns_ids] * 3
    assert len({id(tokens) for tokens in tokenized.tokens}) == (2 if returns_ids else 1)


class MeetingClient(LocalEngine):
    """Two threads that count the open sequences at once both go on with the same number."""

    meeting = threading.Barrier(2)

    @property
    def n_open(self) -> int:
        n_open = super().n_open
        with contextlib.suppress(threading.BrokenBarrierError):
            self.meeting.wait(0.5)
        return n_open


def test_requests_that_come_at_once_get_ids_of_their_own_within_the_limit():
    with Engine(FakeBackend(n_parallel=1)) as engine, ThreadPoolExecutor(2) as pool:
        client = MeetingClient(engine, max_queue=0)
        starting = [pool.submit(client.generate, [request("hello")], Mailbox()) for _ in range(2)]
        errors = [started.exception(60) for started in starting]
        assert sorted(type(error).__name__ for error in errors) == ["NoneType", "QueueFull"]


# Drafts.


QUOTED = "the quick brown fox jumps over the lazy dog"


@pytest.mark.usefixtures("drafts_cost_nothing")
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


@pytest.mark.usefixtures("drafts_cost_nothing")
@pytest.mark.parametrize("is_unified", [True, False])
def test_rejected_draft_that_cannot_be_removed_costs_its_sequence_time_alone(is_unified: bool):
    def loop_that_deviates(tokens: list[int], n_prompt: int) -> int:
        return ord("x") if (len(tokens) - n_prompt) % 7 == 6 else endless_loop(tokens, n_prompt)

    def texts(failing: set[str]) -> tuple[list[str], set[str]]:
        backend = FakeBackend(loop_that_deviates, max_drafted=16, is_unified=is_unified)
        backend.failing = failing
        with stepped(backend) as engine:
            generations = [submit(engine, request(text * 5, max_tokens=40)) for text in ("abcd", "abcdabcdx")]
            step_until_idle(engine)
            return [read(generation)[0] for generation in generations], {name for name, *_ in backend.take_operations()}

    (expected, operations), (actual, _) = texts(set()), texts({"truncate"})
    assert "truncate" in operations
    assert actual == expected


@pytest.mark.usefixtures("drafts_cost_nothing")
@pytest.mark.parametrize("max_tokens", range(1, 30))
def test_limit_within_a_draft_holds(max_tokens: int):
    text, end, _ = completed(request("abcd" * 5, max_tokens=max_tokens), endless_loop, max_drafted=16)
    assert (text, end.reason) == (("abcd" * 10)[:max_tokens], "length")
    assert end.usage.n_completion == max_tokens


def endless_loop(tokens: list[int], n_prompt: int) -> int:
    return ord("abcd"[(len(tokens) - n_prompt) % 4])


@pytest.mark.usefixtures("drafts_cost_nothing")
def test_stop_token_and_end_within_a_draft_end_the_output_there():
    def loop_that_ends(tokens: list[int], n_prompt: int) -> int:
        return END if len(tokens) - n_prompt == 9 else endless_loop(tokens, n_prompt)

    prompt = (*b"abcdabcda", END, *b"abcdabcda")
    text, end, _ = completed(request_for(prompt), loop_that_ends, max_drafted=16)
    assert (text, end.reason, end.usage.n_completion) == ("abcdabcda", "stop", 10)
    text, end, _ = completed(request("abcd" * 5, stop_token_ids=(ord("c"),)), endless_loop, max_drafted=16)
    assert (text, end.stop, end.usage.n_completion) == ("ab", ord("c"), 3)


@pytest.mark.usefixtures("drafts_cost_nothing")
def test_logprobs_come_with_each_token_of_a_draft():
    with stepped(FakeBackend(max_drafted=16)) as engine:
        generation = submit(engine, request(QUOTED, top_logprobs=1))
        step_until_idle(engine)
        tokens = tokens_of(generation)
        assert [token.id for token in tokens] == list(QUOTED.encode())
        assert [[top.id for top in token.top] for token in tokens] == [[token.id] for token in tokens]


@pytest.mark.usefixtures("drafts_cost_nothing")
@pytest.mark.parametrize(
    ("error", "expected", "message"),
    [
        (ZeroDivisionError("a broken sampler"), EngineError, "sampling a token failed: a broken sampler"),
        (BadRequest("it allows no further token"), BadRequest, "it allows no further token"),
    ],
    ids=["a fault", "a grammar"],
)
def test_sampling_error_within_a_draft_comes_after_the_text_before_it(error: Exception, expected: Any, message: str):
    def model(tokens: list[int], n_prompt: int) -> int:
        if len(tokens) == n_prompt + 9:
            raise error
        return endless_loop(tokens, n_prompt)

    with stepped(FakeBackend(model, max_drafted=16)) as engine:
        generation = submit(engine, request("abcd" * 5))
        step_until_idle(engine)
        assert text_of([next(generation)]) == "abcdabcda"
        with pytest.raises(expected, match=message):
            next(generation)
