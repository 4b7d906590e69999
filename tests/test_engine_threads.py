"""The engine with its thread: many submitters, closing, random cancels."""

from __future__ import annotations

import random
import threading

import pytest

from localchat.serving.engine.values import Cancelled, EngineStopped

from .engines import DEADLINE_S, Finish, read, request, running, step_until_idle, stepped, submit
from .fakes import FakeBackend, endless


def test_thread_serves_many_submitters():
    with running(FakeBackend(n_parallel=8)) as engine:
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


def test_new_request_joins_a_running_batch_within_one_step():
    gate = threading.Semaphore(0)
    backend = FakeBackend(endless, gate=gate)
    with running(backend) as engine:
        first = submit(engine, request())
        gate.release()
        next(first)
        second = submit(engine, request())
        # The step that may already have been scheduled, then the one that has both.
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


def test_close_ends_running_and_waiting_requests():
    backend = FakeBackend(endless, n_parallel=1, n_ctx=100_000, n_cells=100_000)
    with running(backend) as engine:
        generations = [submit(engine, request()) for _ in range(3)]
        next(generations[0])
        engine.close()  # The end of the block closes it again.
    for generation in generations:
        with pytest.raises(EngineStopped):
            list(generation)
    with pytest.raises(EngineStopped):
        submit(engine, request())


@pytest.mark.parametrize("seed", range(10))
def test_sequences_with_streams_have_the_tokens_of_each_alone(seed: int):
    """The backend checks what each slot holds, and which rows are computed together."""
    random_ = random.Random(seed)
    n_parallel, n_ctx = random_.choice([(1, 400), (3, 400), (8, 500)])
    backend = FakeBackend(
        n_parallel=n_parallel,
        n_idle=random_.choice([1, 3]),
        n_ctx=n_ctx,
        n_cells=16 * n_ctx,
        n_batch=256,
        max_drafted=random_.choice([0, 8]),
        is_unified=False,
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
            if text:
                assert read(generation)[0] == text


@pytest.mark.parametrize("seed", range(5))
def test_random_cancels_leave_nothing_behind(seed: int):
    random_ = random.Random(seed)
    backend = FakeBackend(endless, n_parallel=4, n_ctx=64, n_cells=128)
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
        # Commands run in order: these run after the last cancel.
        engine.forget()
        for _ in range(2):
            done = threading.Event()
            engine.post(done.set)
            assert done.wait(DEADLINE_S)
        assert backend.n_cells_used() == 0
