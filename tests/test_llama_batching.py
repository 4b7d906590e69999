"""Long prompts, preemption and the end of an engine, on the built-in model."""

from __future__ import annotations

import contextlib

from localchat.serving.engine import Engine, EngineError, LoadOptions, load

from .demo_model import DEMO, GREEDY, assert_same_or_near_tie, assert_together_as_alone, chat, conversation, read
from .engines import request_for, submit


def test_long_prompt_beside_a_stream_gives_the_tokens_of_the_prompt_alone(engine: Engine):
    """The prompt is computed in several batches."""
    prompt = conversation(engine, 25)
    request = request_for(prompt, sampling=GREEDY, max_tokens=20, top_logprobs=5)
    alone = read(engine, request)[1]
    engine.forget()
    with submit(engine, request_for(chat(engine, "Count to ten."), sampling=GREEDY)) as other:
        next(other)
        assert_same_or_near_tie(alone, read(engine, request)[1])


def test_more_tokens_than_cells_all_finish_by_preemption(engine: Engine):
    """Six conversations without a common prefix need more than 768 cells, so some are preempted."""
    prompts = [(*engine.tokenize(f"{i} "), *conversation(engine, 5)) for i in range(6)]
    requests = [request_for(p, sampling=GREEDY, max_tokens=40, top_logprobs=5) for p in prompts]
    assert sum(map(len, prompts)) > 768
    with load(DEMO, LoadOptions(n_ctx=256, n_cells=768, n_parallel=8)) as small:
        assert_together_as_alone(engine, small, requests)


def test_tokens_can_be_read_after_the_engine_was_closed():
    engine = load(DEMO, LoadOptions())
    generation = submit(engine, request_for(chat(engine, "Hello!"), sampling=GREEDY))
    next(generation)
    engine.close()
    with contextlib.suppress(EngineError):
        assert list(generation)
    assert engine.piece(300)
    assert engine.tokenize("still there")
