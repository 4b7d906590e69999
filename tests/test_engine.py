"""The engine on a fake backend: turns by hand, then the real thread."""

from __future__ import annotations

import contextlib
import math
import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from localchat.engine import (
    Cancelled,
    Delta,
    Engine,
    EngineError,
    EngineStopped,
    Finish,
    GenerationRequest,
    InvalidToken,
    Progress,
    PromptTooLong,
    QueueFull,
)
from localchat.engine.backend import DecodeFailed, NoFreeCells
from localchat.protocol.params import SamplingParams

from .fakes import END, FakeBackend, echo, endless
from .generations import Generation, request_for, submit

DEADLINE_S = 20


def request(text: str = "hello", **options: Any) -> GenerationRequest:
    return request_for(tuple(text.encode()), **options)


def read(generation: Generation) -> tuple[str, Finish]:
    """All text and the finish; fails unless there is exactly one, at the end."""
    items = list(generation)
    assert all(isinstance(item, Delta) for item in items[:-1])
    assert isinstance(items[-1], Finish)
    return "".join(item.text for item in items[:-1] if isinstance(item, Delta)), items[-1]


def step_until_idle(engine: Engine) -> int:
    n_turns = 0
    while engine.step():
        n_turns += 1
        assert n_turns < 10_000
    return n_turns


@contextmanager
def stepped(backend: FakeBackend, **options: Any) -> Iterator[Engine]:
    with Engine(backend, clock=backend.clock, **options) as engine:
        yield engine
    assert_left_clean(engine, backend)


@contextmanager
def running(backend: FakeBackend, **options: Any) -> Iterator[Engine]:
    with Engine(backend, clock=backend.clock, **options).start() as engine:
        yield engine
    assert_left_clean(engine, backend)


def assert_left_clean(engine: Engine, backend: FakeBackend) -> None:
    assert backend.is_closed
    assert backend.n_samplers == 0
    stats = engine.stats()
    assert (stats.n_running, stats.n_waiting, stats.n_cells_used) == (0, 0, 0)


def test_generation_gives_text_then_one_finish():
    with stepped(FakeBackend()) as engine:
        generation = submit(engine, request("hello"))
        step_until_idle(engine)
        text, finish = read(generation)
        assert text == "hello"
        assert (finish.reason, finish.stop) == ("stop", None)
        assert (finish.usage.n_prompt, finish.usage.n_completion, finish.usage.n_cached) == (5, 6, 0)
        assert list(generation) == []


def test_first_delta_comes_with_the_first_token():
    with stepped(FakeBackend()) as engine:
        generation = submit(engine, request("abc"))
        engine.step()
        first = next(generation)
        assert isinstance(first, Delta)
        assert (first.text, [token.id for token in first.tokens]) == ("a", [ord("a")])


def test_tokens_that_are_ready_come_in_one_delta():
    with stepped(FakeBackend()) as engine:
        generation = submit(engine, request("abc"))
        step_until_idle(engine)
        assert [type(item) for item in generation] == [Delta, Finish]


def test_progress_comes_before_the_text_where_it_was_asked_for():
    with stepped(FakeBackend(n_batch=4)) as engine:
        asked, other = submit(engine, request("hello, world", reports_progress=True)), submit(engine, request("x"))
        seen = []
        while engine.step():
            if asked.wait(0) and not any(isinstance(item, (Delta, Finish)) for item in seen):
                seen.append(next(asked))
        progress = [item for item in seen if isinstance(item, Progress)]
        assert progress[0] == Progress(0, 12, 0)
        assert progress[-1] == Progress(12, 12, 0) or isinstance(seen[-1], Progress)
        assert [item.n_done for item in progress] == sorted({item.n_done for item in progress})
        text, _ = read(other)
        assert text == "x"
        assert "".join(item.text for item in (*seen, *asked) if isinstance(item, Delta)) == "hello, world"


def test_progress_that_nobody_read_in_time_is_only_the_newest():
    with stepped(FakeBackend(n_batch=4)) as engine:
        generation = submit(engine, request("hello, world", reports_progress=True))
        step_until_idle(engine)
        assert next(generation) == Progress(12, 12, 0)
        assert read(generation)[0] == "hello, world"


def test_take_is_empty_after_its_timeout():
    with stepped(FakeBackend()) as engine:
        generation = submit(engine, request("ab"))
        assert not generation.wait(0)
        assert not generation.wait(0.001)
        assert generation.run.usage(0).n_completion == 0
        step_until_idle(engine)
        assert generation.wait(0)
        assert generation.wait(None)
        text, finish = read(generation)
        assert (text, generation.run.usage(0).n_completion) == ("ab", finish.usage.n_completion)


def test_max_tokens_ends_with_length():
    with stepped(FakeBackend(endless)) as engine:
        generation = submit(engine, request("x", max_tokens=5))
        step_until_idle(engine)
        text, finish = read(generation)
        assert (text, finish.reason, finish.usage.n_completion) == ("abcde", "length", 5)


@pytest.mark.parametrize("max_tokens", [None, 10_000], ids=["absent", "too large"])
def test_context_end_is_length_too(max_tokens: int | None):
    with stepped(FakeBackend(endless, n_ctx=16)) as engine:
        generation = submit(engine, request("x" * 6, max_tokens=max_tokens))
        step_until_idle(engine)
        _, finish = read(generation)
        assert (finish.reason, finish.usage.n_completion) == ("length", 10)


def test_stop_text_is_cut_and_reported():
    with stepped(FakeBackend(endless)) as engine:
        generation = submit(engine, request("x", stop=("de",)))
        for _ in range(10):
            engine.step()
        text, finish = read(generation)
        assert (text, finish.reason, finish.stop, finish.usage.n_completion) == ("abc", "stop", "de", 5)
        step_until_idle(engine)
        assert engine.stats().n_running == 0


def test_stop_token_is_not_shown_and_reported():
    with stepped(FakeBackend(endless)) as engine:
        generation = submit(engine, request("x", stop_token_ids=(ord("c"),)))
        step_until_idle(engine)
        text, finish = read(generation)
        assert (text, finish.reason, finish.stop) == ("ab", "stop", ord("c"))


def test_logprobs_only_where_asked():
    with stepped(FakeBackend()) as engine:
        with_top, chosen, without = (submit(engine, request("a", top_logprobs=n)) for n in (2, 0, None))
        step_until_idle(engine)
        tokens = [next(g).tokens[0] for g in (with_top, chosen, without)]  # type: ignore[union-attr]
        assert [token.logprob for token in tokens] == [-0.5, -0.5, None]
        assert [(t.token, t.piece, t.logprob) for t in tokens[0].top] == [(97, b"a", -0.5), (0, b"\0", -1.5)]
        assert tokens[1].top == tokens[2].top == ()


class ScoringBackend(FakeBackend):
    """A token's log probability is minus the number of tokens before it; only what is known may be asked for."""

    def logprobs(self, row: int, token: int, n_top: int) -> tuple[float, list[tuple[int, float]]]:
        known = self._outputs[row]
        return -float(len(known)), [(known[-1], -0.25)][:n_top]


@pytest.mark.parametrize("n_prompt", [1, 2, 31, 32, 33, 100])
def test_prompt_is_scored_whole_and_in_order(n_prompt: int):
    text = "".join(chr(ord("a") + i % 26) for i in range(n_prompt))
    with stepped(ScoringBackend(n_batch=16)) as engine:
        others = [submit(engine, request(text, max_tokens=40)) for _ in range(2)]
        engine.step()
        scored = submit(engine, request(text, max_tokens=2, prompt_logprobs=1, top_logprobs=0))
        step_until_idle(engine)
        _, finish = read(scored)
        tokens = scored.prompt_tokens()
        assert b"".join(token.piece for token in tokens).decode() == text
        assert [token.logprob for token in tokens] == [None, *(-float(i) for i in range(1, n_prompt))]
        assert [[top.token for top in token.top] for token in tokens[1:]] == [[ord(c)] for c in text[:-1]]
        assert finish.usage.n_cached == 0
        assert {read(other)[0] for other in others} == {(text * 40)[: min(n_prompt, 40)]}


def test_preempted_prompt_is_scored_once():
    with stepped(ScoringBackend(endless, n_ctx=66, n_cells=66, n_slots=2, n_batch=10)) as engine:
        older = submit(engine, request("xy", max_tokens=64))
        engine.step()
        scored = submit(engine, request("a" * 60, max_tokens=5, prompt_logprobs=0))
        n_scored_when_preempted = 0
        while engine.step():
            if engine.stats().n_waiting:
                n_scored_when_preempted = len(scored.prompt_tokens()) - 1
        assert 0 < n_scored_when_preempted < 59
        assert [token.logprob for token in scored.prompt_tokens()[1:]] == [-float(i) for i in range(1, 60)]
        assert [read(generation)[1].usage.n_completion for generation in (older, scored)] == [64, 5]


@pytest.mark.parametrize("model", [echo, endless, lambda tokens, n_prompt: END], ids=["echo", "endless", "mute"])
def test_prompt_may_be_read_for_its_own_sake(model: Callable[[list[int], int], int]):
    with stepped(ScoringBackend(model)) as engine:
        generation = submit(engine, request("abc", max_tokens=0, prompt_logprobs=0, top_logprobs=0))
        step_until_idle(engine)
        text, finish = read(generation)
    assert (text, finish.reason, finish.stop, finish.usage.n_completion, finish.last) == ("", "length", None, 0, None)
    assert [token.logprob for token in generation.prompt_tokens()] == [None, -1.0, -2.0]
    assert finish.usage.prompt_s > 0


@pytest.mark.parametrize(
    ("members", "last"),
    [
        pytest.param({}, END, id="the model's end"),
        pytest.param({"stop_token_ids": (ord("b"),)}, ord("b"), id="a stop token"),
        pytest.param({"stop": ("b",)}, None, id="a stop text"),
        pytest.param({"max_tokens": 2}, None, id="the limit"),
    ],
)
def test_end_tells_the_token_that_was_hit(members: dict[str, Any], last: int | None):
    with stepped(FakeBackend()) as engine:
        generation = submit(engine, request("abc", top_logprobs=1, **members))
        step_until_idle(engine)
        finish = read(generation)[1]
    assert (finish.last and (finish.last.id, finish.last.logprob)) == (last and (last, -0.5))


@pytest.mark.parametrize(
    ("line", "n_tokens"), [(b"ab\ncd", 3), (b"\nab", 1), (b"abcd", 20)], ids=["in a line", "at once", "no line"]
)
def test_limit_of_time_ends_an_answer_that_has_begun_a_second_line(line: bytes, n_tokens: int):
    def model(tokens: list[int], n_prompt: int) -> int:
        return line[(len(tokens) - n_prompt) % len(line)]

    with stepped(FakeBackend(model)) as engine:
        late = submit(engine, request("x", max_tokens=20, max_completion_s=0.0))
        early = submit(engine, request("x", max_tokens=20, max_completion_s=3600.0))
        step_until_idle(engine)
        finishes = [read(generation)[1] for generation in (late, early)]
    assert [(finish.reason, finish.usage.n_completion) for finish in finishes] == [("length", n_tokens), ("length", 20)]


def test_probabilities_after_sampling_are_those_of_the_sampler():
    with stepped(FakeBackend()) as engine:
        generation = submit(engine, request("a", top_logprobs=1, post_sampling_probs=True))
        step_until_idle(engine)
        (token,) = next(generation).tokens  # type: ignore[union-attr]
    assert token.logprob == pytest.approx(math.log(0.75))
    assert [top.token for top in token.top] == [ord("a")]


def test_sequences_of_one_turn_share_a_batch():
    backend = FakeBackend()
    with stepped(backend) as engine:
        generations = [submit(engine, request(text)) for text in ("ab", "cdef", "g")]
        step_until_idle(engine)
        assert [read(g)[0] for g in generations] == ["ab", "cdef", "g"]
        assert len(backend.batches[0]) == 3


@pytest.mark.parametrize("n_requests", [1, 2, 3, 5, 8])
def test_tokens_of_a_large_vocabulary_are_drawn_in_parallel_for_the_right_sequences(n_requests: int):
    def model(tokens: list[int], n_prompt: int) -> int:
        threads.add(threading.get_ident())
        return echo(tokens, n_prompt)

    threads: set[int] = set()
    with stepped(FakeBackend(model, n_vocab=100_000, n_slots=8)) as engine:
        texts = [f"{i} and so on" for i in range(n_requests)]
        generations = [submit(engine, request(text)) for text in texts]
        step_until_idle(engine)
        assert [read(g)[0] for g in generations] == texts
        assert (len(threads) > 1) == (n_requests > 1 and (os.cpu_count() or 1) > 1)


def test_prompt_of_several_turns_with_a_large_vocabulary():
    """In all but the last of them nothing is drawn."""
    with stepped(FakeBackend(n_vocab=100_000, n_batch=8)) as engine:
        generation = submit(engine, request("a prompt that takes several turns"))
        step_until_idle(engine)
        assert read(generation)[0] == "a prompt that takes several turns"


def test_cancel_takes_effect_in_the_next_turn_and_its_cells_can_be_freed():
    backend = FakeBackend(endless)
    with stepped(backend) as engine:
        generation = submit(engine, request())
        engine.step()
        generation.cancel()
        assert not engine.step()
        assert (engine.stats().n_cells_used, engine.stats().n_cells_idle) == (0, 5)
        engine.forget()
        assert not engine.step()
        assert backend.n_cells_used() == 0
        next(generation)
        with pytest.raises(Cancelled):
            next(generation)
        assert list(generation) == []


def test_cancel_before_the_first_turn():
    with stepped(FakeBackend()) as engine:
        generation = submit(engine, request())
        generation.cancel()
        assert not engine.step()
        with pytest.raises(Cancelled):
            next(generation)


def test_leaving_the_with_cancels():
    with stepped(FakeBackend(endless)) as engine:
        with submit(engine, request()) as generation:
            engine.step()
            next(generation)
        engine.step()
        assert engine.stats().n_running == 0


def test_cancel_after_the_end_changes_nothing():
    with stepped(FakeBackend()) as engine:
        generation = submit(engine, request())
        step_until_idle(engine)
        generation.cancel()
        engine.step()
        assert read(generation)[1].reason == "stop"


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (request_for(()), InvalidToken),
        (request_for((END + 1,)), InvalidToken),
        (request_for((-1,)), InvalidToken),
        (request_for((1,), stop_token_ids=(999,)), InvalidToken),
        (request_for((1,), sampling=SamplingParams(logit_bias=((999, 1.0),))), InvalidToken),
        (request_for((1,) * 256), PromptTooLong),
    ],
    ids=["empty", "id too large", "negative id", "stop id", "bias id", "context full"],
)
def test_bad_request_is_refused_at_once(bad: GenerationRequest, error: type[EngineError]):
    with stepped(FakeBackend()) as engine:
        with pytest.raises(error):
            submit(engine, bad)
        assert not engine.step()


def test_prompt_too_long_says_both_numbers():
    with stepped(FakeBackend()) as engine, pytest.raises(PromptTooLong, match=r"300 tokens.*256.*: shorten it or"):
        submit(engine, request("x" * 300))


def test_full_queue_refuses_and_room_is_given_back():
    with stepped(FakeBackend(n_slots=2), max_queue=1) as engine:
        generations = [submit(engine, request()) for _ in range(3)]
        with pytest.raises(QueueFull, match="3 requests are open and 3 are the limit"):
            submit(engine, request())
        generations[0].cancel()
        engine.step()
        submit(engine, request()).cancel()


def test_backend_without_the_cells_it_said_preempts_and_all_finish():
    backend = FakeBackend(n_cells=1024, n_real_cells=40)
    with stepped(backend) as engine:
        generations = [submit(engine, request("x" * 12)) for _ in range(4)]
        step_until_idle(engine)
        assert [read(g)[0] for g in generations] == ["x" * 12] * 4


class RefusingBackend(FakeBackend):
    """Finds no free cells, or fails, in the decodes of these numbers."""

    refused: range = range(0)
    error: type[Exception] = NoFreeCells

    def decode(self, batch: Any) -> None:
        if self._n_decodes in self.refused:
            self._n_decodes += 1
            raise self.error("refused for once")
        super().decode(batch)


@pytest.mark.parametrize("n_times", [1, 2, 3])
@pytest.mark.parametrize("error", [NoFreeCells, DecodeFailed])
@pytest.mark.parametrize("n_running", [1, 4])
def test_capacity_recovers_after_decodes_that_were_refused_for_once(
    n_running: int, error: type[Exception], n_times: int
):
    backend = RefusingBackend(n_ctx=100, n_cells=200, n_resting=16)
    backend.error = error
    with stepped(backend) as engine:

        def ask_all(letters: str) -> list[str]:
            generations = [submit(engine, request(letter * 12)) for letter in letters]
            step_until_idle(engine)
            return [read(generation)[0] for generation in generations]

        ask_all("uvwxyz")
        backend.refused = range(backend._n_decodes + 3, backend._n_decodes + 3 + n_times)
        if error is NoFreeCells or n_times == 1:
            assert ask_all("abcd"[:n_running]) == [letter * 12 for letter in "abcd"[:n_running]]
        else:
            with contextlib.suppress(EngineError):
                ask_all("abcd"[:n_running])
        backend.refused = range(0)
        letters = "efghijklmn"
        assert ask_all(letters) == [letter * 12 for letter in letters]
        # No prefix is evicted while there are cells for it.
        assert engine.stats().n_cells_idle > 200 - 2 * 24


def test_request_that_never_finds_room_fails_alone():
    backend = FakeBackend(n_cells=1024, n_real_cells=20)
    with stepped(backend) as engine:
        small, large = submit(engine, request("abc")), submit(engine, request("x" * 40))
        step_until_idle(engine)
        assert read(small)[0] == "abc"
        with pytest.raises(EngineError, match="no free cells for 40 tokens"):
            read(large)


def test_poisoned_request_fails_alone():
    backend = FakeBackend(poison=ord("!"))
    with stepped(backend) as engine:
        good, bad, other = (submit(engine, request(text)) for text in ("good", "bad!", "other"))
        step_until_idle(engine)
        assert [read(good)[0], read(other)[0]] == ["good", "other"]
        with pytest.raises(EngineError, match="could not compute this request"):
            read(bad)


def test_text_before_an_error_is_given_out_first():
    def model(tokens: list[int], n_prompt: int) -> int:
        if len(tokens) > n_prompt + 2:
            raise ZeroDivisionError("a broken sampler")
        return ord("a")

    with stepped(FakeBackend(model)) as engine:
        generation = submit(engine, request())
        step_until_idle(engine)
        assert next(generation).text == "aaa"  # type: ignore[union-attr]
        with pytest.raises(EngineError, match="sampling a token failed"):
            next(generation)


class BrokenBackend(FakeBackend):
    n_failures = 1

    def decode(self, batch: Any) -> None:
        if self.n_failures > 0:
            self.n_failures -= 1
            raise RuntimeError("the backend is broken")
        super().decode(batch)


def test_failed_turn_ends_its_requests_and_the_next_ones_run():
    with stepped(BrokenBackend()) as engine:
        generations = [submit(engine, request()) for _ in range(2)]
        step_until_idle(engine)
        for generation in generations:
            with pytest.raises(EngineError, match="failed while it computed"):
                next(generation)
        assert engine.failure is None
        generation = submit(engine, request("again"))
        step_until_idle(engine)
        assert read(generation)[0] == "again"


def test_engine_that_fails_every_turn_gives_up_and_says_so():
    backend = BrokenBackend()
    backend.n_failures = 100
    with stepped(backend) as engine:
        for _ in range(3):
            generation = submit(engine, request())
            step_until_idle(engine)
            with pytest.raises(EngineError):
                next(generation)
        assert isinstance(engine.failure, RuntimeError)
        with pytest.raises(EngineStopped, match="the backend is broken"):
            submit(engine, request())


def test_known_prompt_is_not_computed_again_and_counted_as_cached():
    backend = FakeBackend()
    with stepped(backend) as engine:
        texts = []
        for question in ("one", "two"):
            generation = submit(engine, request("a long system prompt; " + question))
            step_until_idle(engine)
            text, finish = read(generation)
            texts.append(text)
            n_cached = finish.usage.n_cached
        assert texts == ["a long system prompt; one", "a long system prompt; two"]
        assert n_cached == len("a long system prompt; ")


def test_requests_that_come_together_compute_their_prompt_once():
    backend = FakeBackend(n_slots=8)
    with stepped(backend) as engine:
        prompt = "the same prompt of some length"
        generations = [submit(engine, request(prompt, max_tokens=1)) for _ in range(8)]
        step_until_idle(engine)
        assert [read(g)[0] for g in generations] == ["t"] * 8
        assert engine.stats().n_tokens_computed == len(prompt) + 7


def test_preempted_sequence_gives_the_same_text():
    with stepped(FakeBackend(endless, n_ctx=24, n_cells=32, n_slots=4)) as engine:
        generations = [submit(engine, request("xxxx", max_tokens=18)) for _ in range(4)]
        step_until_idle(engine)
        assert [read(g)[0] for g in generations] == ["abcdefghijklmnopqr"] * 4


# Memories that cannot be cut.

LONG = "a prompt that is long enough to be worth a copy; "


@pytest.mark.parametrize("n_batch", [8, 64])
def test_next_turn_finds_the_copy_of_the_last_prompt(n_batch: int):
    """Though the answer comes back as other tokens than it was said with."""
    backend = FakeBackend(endless, can_cut=False, n_batch=n_batch)
    with stepped(backend) as engine:
        text, n_cached = LONG, []
        for _ in range(3):
            generation = submit(engine, request(text, max_tokens=5))
            step_until_idle(engine)
            said, finish = read(generation)
            assert said == "abcde"
            n_cached.append((finish.usage.n_cached, len(text)))
            text += said.upper() + "; and what else?"
        assert [n for n, _ in n_cached] == [0, *(length - 1 for _, length in n_cached[:2])]


def test_same_prompt_many_times_is_computed_once_in_a_memory_that_cannot_be_cut():
    with stepped(FakeBackend(can_cut=False, n_slots=4)) as engine:
        generations = [submit(engine, request(LONG, max_tokens=2)) for _ in range(6)]
        step_until_idle(engine)
        assert [read(generation)[0] for generation in generations] == [LONG[:2]] * 6
        # All but the last token once; then of each the last one, and the first that was drawn.
        assert engine.stats().n_tokens_computed == len(LONG) - 1 + 6 * 2


def test_prompt_that_is_scored_takes_no_copy():
    with stepped(FakeBackend(can_cut=False)) as engine:
        for prompt_logprobs in (None, 0, None):
            generation = submit(engine, request(LONG, max_tokens=2, prompt_logprobs=prompt_logprobs))
            step_until_idle(engine)
            cached = read(generation)[1].usage.n_cached
            assert len(generation.prompt_tokens()) - 1 == (0 if prompt_logprobs is None else len(LONG) - 1)
            assert cached == 0 or prompt_logprobs is None
        assert cached == len(LONG) - 1


def test_forget_forgets_copies_too():
    with stepped(FakeBackend(can_cut=False)) as engine:
        n_cached = []
        for _ in range(3):
            generation = submit(engine, request(LONG, max_tokens=2))
            step_until_idle(engine)
            n_cached.append(read(generation)[1].usage.n_cached)
            if len(n_cached) == 2:
                engine.forget()
        assert n_cached == [0, len(LONG) - 1, 0]


def test_copy_that_the_backend_does_not_give_is_done_without():
    class Refusing(FakeBackend):
        def read_state(self, slot: int) -> bytes:
            raise MemoryError

    with stepped(Refusing(can_cut=False)) as engine:
        generation = submit(engine, request(LONG))
        step_until_idle(engine)
        assert read(generation)[0] == LONG


def test_copy_that_the_backend_does_not_take_back_is_computed():
    class Refusing(FakeBackend):
        def write_state(self, slot: int, data: Any, n_tokens: int) -> bool:
            return False

    with stepped(Refusing(can_cut=False)) as engine:
        for _ in range(2):
            generation = submit(engine, request(LONG))
            step_until_idle(engine)
            assert read(generation)[0] == LONG


@pytest.mark.parametrize("seed", range(10))
def test_answers_are_the_same_where_the_memory_cannot_be_cut(seed: int):
    random_ = random.Random(seed)
    requests = [
        request(LONG * random_.randint(0, 2) + "".join(random_.choices("ab", k=random_.randint(1, 9))), max_tokens=12)
        for _ in range(12)
    ]
    backend = FakeBackend(can_cut=False, n_ctx=120, n_cells=200, n_slots=3, n_resting=2, n_batch=16)
    with stepped(backend) as engine:
        generations = []
        for one in requests:
            generations.append(submit(engine, one))
            for _ in range(random_.randint(0, 6)):
                engine.step()
        step_until_idle(engine)
        texts = [read(generation)[0] for generation in generations]
    assert texts == [bytes(one.prompt[:12]).decode() for one in requests]


# Speculation.


def said(request: GenerationRequest, model: Any = echo, **options: Any) -> tuple[str, Finish, FakeBackend]:
    """Text and end of one request, and the backend that computed it."""
    backend = FakeBackend(model, **options)
    with stepped(backend) as engine:
        generation = submit(engine, request)
        step_until_idle(engine)
        return (*read(generation), backend)


QUOTED = "the quick brown fox jumps over the lazy dog"


def test_text_that_repeats_its_prompt_takes_fewer_turns_and_is_the_same():
    plain, plain_end, slow = said(request(QUOTED))
    text, end, fast = said(request(QUOTED), n_drafted=16)
    assert text == plain == QUOTED
    assert (end.usage.n_completion, end.reason) == (plain_end.usage.n_completion, "stop")
    assert len(fast.batches) < len(slow.batches) / 3
    assert 0 < end.usage.n_draft_accepted <= end.usage.n_drafted
    assert (plain_end.usage.n_drafted, plain_end.usage.n_draft_accepted) == (0, 0)
    # Each turn gives one token of its own beside those that were guessed.
    assert end.usage.n_completion == len(fast.batches) + end.usage.n_draft_accepted


@pytest.mark.parametrize("max_tokens", range(1, 30))
def test_limit_within_a_draft_holds(max_tokens: int):
    text, end, _ = said(request("abcd" * 5, max_tokens=max_tokens), endless_loop, n_drafted=16)
    assert (text, end.reason) == (("abcd" * 10)[:max_tokens], "length")
    assert end.usage.n_completion == max_tokens


def endless_loop(tokens: list[int], n_prompt: int) -> int:
    return ord("abcd"[(len(tokens) - n_prompt) % 4])


def test_stop_text_within_a_draft_is_cut_and_counted():
    stop = request("abcd" * 5, stop=("cda",), max_tokens=60)
    text, end, _ = said(request("abcd" * 5, stop=("dabcdabcdab",), max_tokens=60), endless_loop, n_drafted=16)
    assert (text, end.stop, end.usage.n_completion) == ("abc", "dabcdabcdab", 14)
    text, end, _ = said(stop, endless_loop, n_drafted=16)
    assert (text, end.stop, end.usage.n_completion) == ("ab", "cda", 5)


def test_stop_token_and_end_within_a_draft_end_the_answer_there():
    def loop_that_ends(tokens: list[int], n_prompt: int) -> int:
        return END if len(tokens) - n_prompt == 9 else endless_loop(tokens, n_prompt)

    prompt = (*b"abcdabcda", END, *b"abcdabcda")
    text, end, _ = said(request_for(prompt), loop_that_ends, n_drafted=16)
    assert (text, end.reason, end.usage.n_completion) == ("abcdabcda", "stop", 10)
    text, end, _ = said(request("abcd" * 5, stop_token_ids=(ord("c"),)), endless_loop, n_drafted=16)
    assert (text, end.stop, end.usage.n_completion) == ("ab", ord("c"), 3)


class DrawingBackend(FakeBackend):
    """Draws by chance: a sampler has a state, which each draw changes, and says what it drew."""

    def new_sampler(self, request: GenerationRequest) -> Any:
        super().new_sampler(request)
        return random.Random(request.sampling.seed), []

    def sample(self, sampler: Any, row: int) -> int:
        chance, drawn = sampler
        tokens = self._outputs[row]
        assert tokens[len(tokens) - len(drawn) :] == drawn, "the sampler was told what was not said"
        # Mostly goes on in a loop, so that guesses are right for a while.
        token = ord("abcd"[len(tokens) % 4]) if chance.random() < 0.9 else chance.choice(b"abcdwxyz")
        drawn.append(token)
        return token


@pytest.mark.parametrize("seed", range(10))
def test_drawing_by_a_seed_gives_the_same_text_with_guesses(seed: int):
    texts, n_turns = [], []
    for n_drafted in (0, 3, 16):
        backend = DrawingBackend(n_drafted=n_drafted)
        with stepped(backend) as engine:
            generation = submit(engine, request("abcdabcd", max_tokens=200, sampling=SamplingParams(seed=seed)))
            step_until_idle(engine)
            texts.append(read(generation)[0])
            n_turns.append(len(backend.batches))
    assert texts[0] == texts[1] == texts[2]
    assert n_turns[2] < n_turns[0]


@pytest.mark.parametrize("seed", range(10))
def test_many_at_once_with_guesses_say_what_each_says_alone(seed: int):
    random_ = random.Random(seed)
    requests = [
        request("".join(random_.choices("abc", k=random_.randint(1, 40))), max_tokens=random_.randint(1, 60))
        for _ in range(12)
    ]
    alone = [said(one)[0] for one in requests]
    # Little room, so that sequences are preempted and drafts cut.
    backend = FakeBackend(n_drafted=8, n_ctx=100, n_cells=160, n_slots=4, n_batch=16)
    with stepped(backend) as engine:
        generations = []
        for one in requests:
            generations.append(submit(engine, one))
            for _ in range(random_.randint(0, 8)):
                engine.step()
        step_until_idle(engine)
        assert [read(generation)[0] for generation in generations] == alone
        assert engine.stats().n_drafts_accepted > 0


def test_guesses_that_do_not_pay_are_given_up():
    """All are right, but each row takes as long as a whole turn."""
    backend = FakeBackend(endless_loop, n_drafted=16, n_ctx=1000)
    with Engine(backend, clock=lambda: float(backend.n_rows)) as engine:
        generation = submit(engine, request("abcd" * 5, max_tokens=300))
        step_until_idle(engine)
        _, finish = read(generation)
        assert 0 < finish.usage.n_drafted < 60


def test_guesses_that_cost_nothing_go_far():
    _, finish, backend = said(request("abcd" * 5, max_tokens=300), endless_loop, n_drafted=16, n_ctx=1000)
    assert finish.usage.n_draft_accepted > 250
    assert len(backend.batches) < 50


def test_cancel_between_turns_with_drafts_leaves_no_cells():
    backend = FakeBackend(endless_loop, n_drafted=16)
    with stepped(backend) as engine:
        generation = submit(engine, request("abcd" * 5))
        for _ in range(4):
            engine.step()
        generation.cancel()
        engine.forget()
        assert not engine.step()
        assert backend.n_cells_used() == 0
        with pytest.raises(Cancelled):
            list(generation)


def test_minimum_of_tokens_within_a_draft_allows_the_end_in_time():
    _, end, backend = said(request("abcd" * 5, min_tokens=11, max_tokens=30), endless_loop, n_drafted=16)
    assert end.usage.n_completion == 30
    assert backend.n_allowed_ends == 1


def test_minimum_of_tokens_is_over_in_time_where_ends_are_ignored():
    _, end, backend = said(request("abc", min_tokens=2, stop_token_ids=(ord("c"),), ignore_eos=True, max_tokens=9))
    assert (end.stop, end.usage.n_completion) == (ord("c"), 3)
    assert backend.n_allowed_ends == 1


def test_logprobs_come_with_each_token_of_a_draft():
    with stepped(FakeBackend(n_drafted=16)) as engine:
        generation = submit(engine, request(QUOTED, top_logprobs=1))
        step_until_idle(engine)
        tokens = [token for item in generation if isinstance(item, Delta) for token in item.tokens]
        assert [token.id for token in tokens] == list(QUOTED.encode())
        assert [[top.token for top in token.top] for token in tokens] == [[token.id] for token in tokens]


def test_draw_that_fails_within_a_draft_comes_after_the_text_before_it():
    def model(tokens: list[int], n_prompt: int) -> int:
        if len(tokens) == n_prompt + 9:
            raise ZeroDivisionError("a broken sampler")
        return endless_loop(tokens, n_prompt)

    with stepped(FakeBackend(model, n_drafted=16)) as engine:
        generation = submit(engine, request("abcd" * 5))
        step_until_idle(engine)
        assert next(generation).text == "abcdabcda"  # type: ignore[union-attr]
        with pytest.raises(EngineError, match="sampling a token failed"):
            next(generation)


def test_poisoned_draft_is_no_harm_to_others():
    backend = FakeBackend(n_drafted=16, poison=ord("!"))
    with stepped(backend) as engine:
        good = submit(engine, request("good good good good"))
        bad = submit(engine, request("good good good good!"))
        step_until_idle(engine)
        assert read(good)[0] == "good good good good"
        with pytest.raises(EngineError, match="could not compute this request"):
            read(bad)


def test_thread_serves_many_submitters():
    with running(FakeBackend(n_slots=8)) as engine:
        texts = [f"text number {i} " * 3 for i in range(64)]
        results: dict[str, str] = {}

        def ask(text: str) -> None:
            with submit(engine, request(text)) as generation:
                results[text] = read(generation)[0]

        threads = [threading.Thread(target=ask, args=(text,)) for text in texts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
        assert results == {text: text for text in texts}


def test_new_request_joins_a_running_batch_within_one_turn():
    gate = threading.Semaphore(0)
    backend = FakeBackend(endless, gate=gate)
    with running(backend) as engine:
        first = submit(engine, request())
        gate.release()
        next(first)
        second = submit(engine, request())
        # The turn that may already have been scheduled, then the one that has both.
        gate.release(2)
        next(second)
        assert [len(record) for record in backend.batches[:3]] in ([1, 1, 2], [1, 2, 2], [1, 2])
        first.cancel()
        second.cancel()
        gate.release(100)


def test_blocked_reader_is_woken_by_cancel_from_another_thread():
    gate = threading.Semaphore(0)
    with running(FakeBackend(endless, gate=gate)) as engine:
        generation = submit(engine, request())
        threading.Timer(0.01, lambda: (generation.cancel(), gate.release())).start()
        with pytest.raises(Cancelled):
            for _ in generation:
                pass
        gate.release(100)


def test_close_ends_what_runs_and_what_waits():
    backend = FakeBackend(endless, n_slots=1, n_ctx=100_000, n_cells=100_000)
    with running(backend) as engine:
        generations = [submit(engine, request()) for _ in range(3)]
        next(generations[0])
    for generation in generations:
        with pytest.raises(EngineStopped):
            list(generation)
    with pytest.raises(EngineStopped):
        submit(engine, request())


def test_close_twice_is_harmless():
    with running(FakeBackend()) as engine:
        engine.close()


@pytest.mark.parametrize("is_unified", [True, False])
def test_suspended_requests_give_their_slots_to_others_and_go_on_with_the_same_text(is_unified: bool):
    backend = FakeBackend(n_slots=2, n_ctx=100, n_cells=400, is_unified=is_unified)
    with stepped(backend) as engine:
        texts = ["suspended " * 3, "too " * 6]
        held = [submit(engine, request(text)) for text in texts]
        for _ in range(5):
            engine.step()
        for generation in held:
            generation.run.suspend()
        engine.step()
        assert engine.stats().n_running == 2, "slots are given up only while others wait"
        others = [submit(engine, request("other" + letter)) for letter in "abc"]
        for _ in range(40):
            engine.step()
        assert [read(generation)[0] for generation in others] == ["othera", "otherb", "otherc"]
        assert not any(generation.run.usage(0).n_completion for generation in held)
        for generation in held:
            generation.run.resume()
        step_until_idle(engine)
        assert [read(generation)[0] for generation in held] == texts


def test_suspended_request_can_be_cancelled():
    backend = FakeBackend(endless, n_slots=1)
    with stepped(backend) as engine:
        held = submit(engine, request())
        engine.step()
        held.run.suspend()
        other = submit(engine, request("other", max_tokens=3))
        step_until_idle(engine)
        assert read(other)[0] == "abc"
        held.cancel()
        step_until_idle(engine)
        with pytest.raises(Cancelled):
            list(held)


@pytest.mark.parametrize("seed", range(10))
def test_sequences_with_cells_of_their_own_say_what_they_say_alone(seed: int):
    """The backend checks what each slot holds, and which rows are computed together."""
    random_ = random.Random(seed)
    n_slots, n_ctx = random_.choice([(1, 400), (3, 400), (8, 500)])
    backend = FakeBackend(
        n_slots=n_slots,
        n_resting=random_.choice([1, 3]),
        n_ctx=n_ctx,
        n_cells=16 * n_ctx,
        n_batch=256,
        n_drafted=random_.choice([0, 8]),
        is_unified=False,
    )
    beginnings = ["", "a" * 20, "b" * 100, "c" * 70 + "d" * 70]
    with stepped(backend, max_copied_bytes=random_.choice([0, 2000, 1 << 20])) as engine:
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
            if text:
                assert read(generation)[0] == text


@pytest.mark.parametrize("seed", range(5))
def test_random_cancels_leave_nothing_behind(seed: int):
    random_ = random.Random(seed)
    backend = FakeBackend(endless, n_slots=4, n_ctx=64, n_cells=128)
    with running(backend) as engine:

        def ask(n_reads: int) -> None:
            with submit(engine, request("x" * 10)) as generation:
                for _ in range(n_reads):
                    if isinstance(next(generation), Finish):
                        break

        threads = [threading.Thread(target=ask, args=(random_.randint(0, 80),)) for _ in range(50)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
            assert not thread.is_alive()
        # The last cancel is a command like any other: what comes after it is run after it.
        engine.forget()
        for _ in range(2):
            done = threading.Event()
            engine.post(done.set)
            assert done.wait(DEADLINE_S)
        assert backend.n_cells_used() == 0
