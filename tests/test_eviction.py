"""Idle prefixes that are evicted from the KV cache are restored from snapshots in memory."""

from __future__ import annotations

import re
import urllib.request
from typing import Any

import pytest

from localchat import Client
from localchat.serving.engine import Engine, LoadOptions, load

from .demo_model import DEMO, GREEDY, assert_same_or_near_tie, conversation, read
from .engines import DEADLINE_S, complete, request
from .fakes import FakeBackend
from .generations import request_for
from .live import running_server

TEXTS = tuple(f"{i}: a prompt that is a good deal longer than one that is computed at once" for i in range(6))


def ask(engine: Engine, text: str) -> tuple[str, int]:
    """Steps the engine by hand. Returns the text and the number of cached prompt tokens."""
    output, finish = complete(engine, request(text))
    return output, finish.usage.n_cached


def full_engine(n_cells: int = 1024, **options: Any) -> Engine:
    """An engine that has computed more prompts than slots, or the cells, can hold."""
    engine = Engine(FakeBackend(n_parallel=2, n_idle=2, n_cells=n_cells), **options)
    for text in TEXTS:
        assert ask(engine, text) == (text, 0)
    return engine


@pytest.mark.parametrize("n_cells", [1024, 300])
def test_evicted_prefixes_are_restored(n_cells: int):
    with full_engine(n_cells) as engine:
        for text in TEXTS:
            assert ask(engine, text) == (text, len(text) - 1)
        begun = TEXTS[0][:50]
        assert ask(engine, begun + "###") == (begun + "###", len(begun))


def test_without_memory_for_snapshots_idle_prefixes_stay_while_there_are_cells():
    with full_engine(max_snapshot_bytes=0) as engine:
        engine.backend.read_state = lambda slot: pytest.fail("a snapshot was taken")
        assert ask(engine, TEXTS[-1]) == (TEXTS[-1], len(TEXTS[-1]) - 1)
        assert ask(engine, TEXTS[0]) == (TEXTS[0], 0)


def test_forgotten_prefixes_leave_no_snapshot():
    with full_engine() as engine:
        engine.forget()
        for text in TEXTS:
            assert ask(engine, text)[1] == 0


def test_prefix_whose_snapshot_failed_is_computed(caplog: Any):
    with full_engine() as engine:
        engine.forget()
        engine.backend.read_state = lambda slot: 1 / 0
        for text in (*TEXTS, TEXTS[0]):
            assert ask(engine, text) == (text, 0)
        assert "no snapshot of a prefix" in caplog.text


def test_conversations_restored_from_snapshots_go_on_as_before():
    with load(DEMO, LoadOptions(n_parallel=4, n_ctx=1000, n_cells=1024)) as engine:
        requests = [
            request_for(
                (*engine.tokenize(f"{i} "), *conversation(engine, 20)), sampling=GREEDY, top_logprobs=5, max_tokens=10
            )
            for i in range(6)
        ]
        assert sum(len(request.prompt) for request in requests) > 1200
        before = [read(engine, request) for request in requests]
        for request, (_, tokens, finish) in zip(requests, before):
            again = read(engine, request)
            assert finish.usage.n_cached == 0
            assert again[2].usage.n_cached == len(request.prompt) - 1
            assert_same_or_near_tie(tokens, again[1])


@pytest.mark.parametrize(("megabytes", "is_known"), [("100", True), ("0", False)])
def test_server_restores_as_many_prefixes_as_it_may_keep(megabytes: str, is_known: bool):
    long = " ".join(f"word{i}" for i in range(75))
    options = ("--cache-ram", megabytes, "--ctx", "512", "--parallel", "1")
    with running_server(*options) as url, Client(url) as client:

        def n_cached(i: int) -> int:
            usage = client.chat(f"{i}: {long}", max_tokens=1).usage
            assert usage is not None
            return usage.cached_tokens or 0

        for i in range(4):
            n_cached(i)
        assert n_cached(3) > 150
        assert (n_cached(0) > 150) == is_known
        with urllib.request.urlopen(url.replace("/v1", "/metrics"), timeout=DEADLINE_S) as response:
            found = re.search(r"^localchat_kv_cache_cells_idle (\d+)", response.read().decode(), re.MULTILINE)
        assert found is not None
        assert int(found[1]) > 500
