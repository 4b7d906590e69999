"""Prefixes that rest are moved out of a crowded memory and back: by hand on a fake backend, then on the real one."""

from __future__ import annotations

import re
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from localchat import Client
from localchat.engine import Engine, Finish, LoadOptions, load
from localchat.engine.llama import load as llama_load
from localchat.engine.state_files import StateFiles
from localchat.events import Usage

from .fakes import FakeBackend
from .generations import request_for, submit
from .live import running_server
from .test_keeping import wait_for
from .test_llama import DEMO, GREEDY, assert_same_or_near_tie, conversation, read

DEADLINE_S = 20
TEXTS = tuple(f"{i}: a prompt that is a good deal longer than one that is computed at once" for i in range(4))


def ask(engine: Engine, text: str) -> tuple[str, int]:
    """By hand, without the engine's thread: what is said, and how much of the prompt was known."""
    with submit(engine, request_for(tuple(text.encode()))) as generation:
        while engine.step():
            pass
        *deltas, finish = generation
        assert isinstance(finish, Finish)
        return "".join(delta.text for delta in deltas), finish.usage.n_cached


def park_all(engine: Engine) -> None:
    """What the engine's thread does while nobody asks."""
    deadline = time.monotonic() + DEADLINE_S
    while engine.stats().n_cells_resting:
        assert time.monotonic() < deadline, "nothing is parked"
        engine.step(wait=True)


def crowded_engine(**options: Any) -> Engine:
    """Four prefixes rest where one and a half may beside the newest one."""
    engine = Engine(FakeBackend(n_slots=2, n_resting=6, n_idle_cells=3 * len(TEXTS[0])), **options)
    for text in TEXTS:
        assert ask(engine, text) == (text, 0)
    return engine


def test_crowded_memory_is_emptied_and_all_of_it_is_known_again():
    with crowded_engine() as engine:
        park_all(engine)
        assert not any(engine.backend.slots.values())
        for text in TEXTS:
            assert ask(engine, text) == (text, len(text) - 1)


def test_beginning_of_what_was_parked_is_of_use_to_others():
    with crowded_engine() as engine:
        park_all(engine)
        assert ask(engine, TEXTS[2] + " and more") == (TEXTS[2] + " and more", len(TEXTS[2]))
        begun = TEXTS[3][:40]
        assert ask(engine, begun + "###") == (begun + "###", len(begun))


def test_memory_with_room_is_left_alone():
    engine = Engine(FakeBackend(n_slots=2, n_resting=6, n_idle_cells=1000))
    with engine:
        for text in TEXTS:
            ask(engine, text)
        assert not engine._scheduler.is_crowded
        assert engine.stats().n_cells_resting > len(TEXTS) * len(TEXTS[0])


def test_one_long_conversation_is_no_crowd():
    """What was used last is not counted: the next turn begins with it."""
    with Engine(FakeBackend(n_slots=2, n_idle_cells=10)) as engine:
        ask(engine, TEXTS[0])
        assert engine.stats().n_cells_resting > 10
        assert not engine._scheduler.is_crowded


def test_who_runs_or_waits_is_not_parked():
    with crowded_engine() as engine:
        assert engine._scheduler.is_crowded
        with submit(engine, request_for(tuple(b"hello"))):
            engine.step()
            assert not engine._scheduler.is_crowded


def test_request_comes_between_two_that_are_parked():
    with crowded_engine() as engine:
        engine.step(wait=True)
        n_left = engine.stats().n_cells_resting
        assert n_left > 0
        assert ask(engine, TEXTS[0]) == (TEXTS[0], len(TEXTS[0]) - 1)
        assert engine.stats().n_cells_resting >= n_left


@pytest.mark.parametrize("n_copies", [0, 2])
def test_prefixes_without_room_for_a_copy_stay_in_the_kv_cache(n_copies: int):
    n_bytes = 4 * 2 * len(TEXTS[0]) * n_copies
    with crowded_engine(max_copied_bytes=n_bytes) as engine:
        while engine._parking.has_work:
            engine.step(wait=True)
        assert engine.stats().n_cells_resting > (3 - n_copies) * len(TEXTS[0])
        for text in TEXTS:
            assert ask(engine, text) == (text, len(text) - 1)


def test_prefix_that_cannot_be_copied_stays_in_the_kv_cache(caplog: Any):
    with crowded_engine() as engine:
        engine.backend.read_state = lambda slot: 1 / 0
        while engine._parking.has_work:
            engine.step(wait=True)
        assert "cannot be copied" in caplog.text
        assert ask(engine, TEXTS[1]) == (TEXTS[1], len(TEXTS[1]) - 1)


def test_prefixes_are_saved_before_they_are_parked(tmp_path: Path):
    backend = FakeBackend(n_slots=2, n_resting=6, n_idle_cells=3 * len(TEXTS[0]))
    with Engine(backend, state_files=StateFiles(tmp_path, "fake", 1 << 20)).start() as engine:
        for text in TEXTS:
            with submit(engine, request_for(tuple(text.encode()))) as generation:
                list(generation)
        # A request that comes between may end the emptying early: so much may then rest, beside the last answer.
        wait_for(lambda: engine.stats().n_cells_resting <= 3 * len(TEXTS[0]) + 2 * len(TEXTS[-1]))
        wait_for(lambda: len(list(tmp_path.rglob("*.*"))) >= len(TEXTS))
        with submit(engine, request_for(tuple(TEXTS[0].encode()))) as generation:
            *_, finish = generation
        assert finish.usage.n_cached == len(TEXTS[0]) - 1


def test_parked_conversations_go_on_as_if_they_had_rested():
    with load(DEMO, LoadOptions(n_slots=4)) as engine:
        requests = [
            request_for((*engine.tokenize(f"{i} "), *conversation(engine, 20)), sampling=GREEDY, top_logprobs=5)
            for i in range(4)
        ]
        before = [read(engine, request) for request in requests]
        assert sum(len(request.prompt) for request in requests) > 1000
        n_idle_cells = engine.backend.room.n_idle_cells
        assert n_idle_cells is not None
        wait_for(lambda: engine.backend.n_cells_used() <= n_idle_cells + len(requests[-1].prompt) + len(before[-1][1]))
        for request, (_, tokens, finish) in zip(requests, before):
            again = read(engine, request)
            assert finish.usage.n_cached == 0
            assert again[2].usage.n_cached == len(request.prompt) - 1
            assert_same_or_near_tie(tokens, again[1])


@pytest.mark.parametrize("megabytes", ["100", "0"])
def test_server_knows_idle_prefixes_with_and_without_copies(megabytes: str):
    long = " ".join(f"word{i}" for i in range(150))
    with running_server("--cache-ram", megabytes) as url, Client(url) as client:

        def usage_of(i: int) -> Usage:
            usage = client.chat(f"{i}: {long}", max_tokens=1).usage
            assert usage is not None
            return usage

        def n_resting() -> int:
            with urllib.request.urlopen(url.replace("/v1", "/metrics"), timeout=DEADLINE_S) as answer:
                found = re.search(r"^localchat_kv_cache_cells_idle (\d+)", answer.read().decode(), re.MULTILINE)
            assert found is not None
            return int(found[1])

        for i in range(4):
            n_last = usage_of(i).total_tokens
        if megabytes != "0":
            # So many may rest beside the last one; the least recently used is copied first.
            wait_for(lambda: n_resting() <= 512 + n_last)
        assert (usage_of(0).cached_tokens or 0) > 150


def test_gpu_is_not_bothered_with_copies(monkeypatch: pytest.MonkeyPatch):
    with load(DEMO, LoadOptions()) as engine:
        assert engine.backend.room.n_idle_cells is not None
    monkeypatch.setattr(llama_load, "supports_gpu", lambda: True)
    with load(DEMO, LoadOptions()) as engine:
        assert engine.backend.room.n_idle_cells is None
    with load(DEMO, LoadOptions(n_gpu_layers=0)) as engine:
        assert engine.backend.room.n_idle_cells is not None
