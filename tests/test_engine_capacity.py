"""The engine without free cells, with failing decodes, and with slots that cannot be truncated."""

from __future__ import annotations

import random

import pytest

from localchat.serving.engine.values import EngineError

from .engines import complete, read, request, step_until_idle, stepped, submit
from .fakes import FakeBackend, endless


def test_backend_with_fewer_cells_than_stated_preempts_and_all_finish():
    backend = FakeBackend(n_cells=1024, n_real_cells=40)
    with stepped(backend) as engine:
        generations = [submit(engine, request("x" * 12)) for _ in range(4)]
        step_until_idle(engine)
        assert [read(g)[0] for g in generations] == ["x" * 12] * 4


def test_request_that_never_finds_free_cells_fails_alone():
    backend = FakeBackend(n_cells=1024, n_real_cells=20)
    with stepped(backend) as engine:
        small, large = submit(engine, request("abc")), submit(engine, request("x" * 40))
        step_until_idle(engine)
        assert read(small)[0] == "abc"
        with pytest.raises(EngineError, match="no free cells for 40 tokens"):
            read(large)


@pytest.mark.parametrize("max_drafted", [0, 16])
def test_poisoned_request_fails_alone(max_drafted: int):
    backend = FakeBackend(poison=ord("!"), max_drafted=max_drafted)
    with stepped(backend) as engine:
        texts = ["good good good good", "good good good good!", "other"]
        good, bad, other = (submit(engine, request(text)) for text in texts)
        step_until_idle(engine)
        assert [read(good)[0], read(other)[0]] == ["good good good good", "other"]
        with pytest.raises(EngineError, match="could not compute this request"):
            read(bad)


# Slots that cannot be truncated.

LONG = "a prompt that is long enough to be worth a copy; "


@pytest.mark.parametrize("n_batch", [8, 64])
def test_next_turn_of_a_conversation_uses_the_last_prompt(n_batch: int):
    """The next prompt has the output as other tokens."""
    backend = FakeBackend(endless, can_truncate=False, n_batch=n_batch)
    with stepped(backend) as engine:
        text, n_cached = LONG, []
        for _ in range(3):
            output, finish = complete(engine, request(text, max_tokens=5))
            assert output == "abcde"
            n_cached.append((finish.usage.n_cached, len(text)))
            text += output.upper() + "; and what else?"
        assert [n for n, _ in n_cached] == [0, *(length - 1 for _, length in n_cached[:2])]


@pytest.mark.parametrize("seed", range(10))
def test_outputs_are_the_same_where_slots_cannot_be_truncated(seed: int):
    random_ = random.Random(seed)
    requests = [
        request(LONG * random_.randint(0, 2) + "".join(random_.choices("ab", k=random_.randint(1, 9))), max_tokens=12)
        for _ in range(12)
    ]
    backend = FakeBackend(can_truncate=False, n_ctx=120, n_cells=200, n_parallel=3, n_idle=2, n_batch=16)
    with stepped(backend) as engine:
        generations = []
        for one in requests:
            generations.append(submit(engine, one))
            for _ in range(random_.randint(0, 6)):
                engine.step()
        step_until_idle(engine)
        texts = [read(generation)[0] for generation in generations]
    assert texts == [bytes(one.prompt[:12]).decode() for one in requests]
