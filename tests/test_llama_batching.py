"""Many sequences on the built-in model give what each gives alone; cells, preemption and cached prefixes."""

from __future__ import annotations

import contextlib
import random

from localchat.engine import (
    Engine,
    EngineError,
    Finish,
    LoadOptions,
    load,
)

from .demo_model import (
    DEMO,
    GREEDY,
    assert_same_or_near_tie,
    assert_together_as_alone,
    chat,
    conversation,
    read,
    wait_until_idle,
)
from .generations import request_for, submit


def test_long_prompt_in_chunks_gives_what_a_small_batch_gives(engine: Engine):
    """A prompt of several batches, read while another stream runs."""
    prompt = conversation(engine, 25)
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
    requests = [request_for(p, sampling=GREEDY, max_tokens=40, top_logprobs=5) for p in prompts]
    assert sum(map(len, prompts)) > 768
    with load(DEMO, LoadOptions(n_ctx=256, n_cells=768, n_parallel=8)) as small:
        assert_together_as_alone(engine, small, requests)


def test_cached_prefix_gives_what_a_fresh_one_gives(engine: Engine):
    request = request_for(conversation(engine, 10), sampling=GREEDY, max_tokens=60, top_logprobs=5)
    engine.forget()
    _, fresh, first = read(engine, request)
    _, cached, second = read(engine, request)
    assert (first.usage.n_cached, second.usage.n_cached) == (0, len(request.prompt) - 1)
    assert_same_or_near_tie(fresh, cached)


def test_tokens_can_be_read_after_the_engine_was_closed():
    engine = load(DEMO, LoadOptions())
    generation = submit(engine, request_for(chat(engine, "Hello!"), sampling=GREEDY))
    next(generation)
    engine.close()
    with contextlib.suppress(EngineError):
        assert list(generation)
    assert engine.backend.piece(300)
    assert engine.tokenize("still there")
