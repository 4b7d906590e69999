"""The disk cache: prefixes after a restart, on a fake backend and then on llama.cpp."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from localchat.serving.engine import (
    Cancelled,
    Delta,
    Engine,
    EngineError,
    EngineStopped,
    Finish,
    GenerationRequest,
    LoadOptions,
    disk_cache,
    load,
)
from localchat.serving.engine.state_files import Data, StateFiles

from .demo_model import DEMO, GREEDY, assert_same_or_near_tie, chat, conversation
from .demo_model import read as read_tokens
from .engines import DEADLINE_S, read, request, step_until_idle
from .fakes import FakeBackend, echo, endless
from .generations import request_for, submit
from .live import running_server
from .serving import wait_for

SYSTEM = "a system prompt of some length, which all of them begin with; "


def files_in(folder: Path, *, can_truncate: bool = True) -> StateFiles:
    return StateFiles(folder, "fake", 1 << 20, can_truncate=can_truncate)


@contextmanager
def engine_on(folder: Path, backend: FakeBackend | None = None) -> Iterator[Engine]:
    """A running engine with a disk cache. At its end it saves all prefixes."""
    backend = backend or FakeBackend()
    files = files_in(folder, can_truncate=backend.limits.can_truncate)
    with Engine(backend, state_files=files).start() as engine:
        yield engine
    assert backend.n_samplers == 0


def complete(engine: Engine, text: str, **options: Any) -> tuple[str, Finish]:
    with submit(engine, request(text, **options)) as generation:
        return read(generation)


def save(folder: Path, text: str = SYSTEM, backend: FakeBackend | None = None, **options: Any) -> None:
    """Completes one prompt and saves its prefix in the folder."""
    with engine_on(folder, backend) as engine:
        complete(engine, text, **options)


def test_prefix_is_cached_after_a_restart(tmp_path: Path):
    with engine_on(tmp_path) as engine:
        assert complete(engine, SYSTEM + "one")[1].usage.n_cached == 0
    with engine_on(tmp_path) as engine:
        text, finish = complete(engine, SYSTEM + "two")
        assert (text, finish.usage.n_cached) == (SYSTEM + "two", len(SYSTEM))
        # The saved prefix has all of the first prompt; only the last token is computed for its logits.
        assert complete(engine, SYSTEM + "one")[1].usage.n_cached == len(SYSTEM + "one") - 1


def test_conversation_continues_after_a_restart(tmp_path: Path):
    text = SYSTEM
    for _ in range(3):
        with engine_on(tmp_path, FakeBackend(endless, n_ctx=1000)) as engine:
            output, finish = complete(engine, text, max_tokens=20)
            assert finish.usage.n_cached in (0, len(text) - 1 - len("next"))
            text += output + "next"
    assert len(list(tmp_path.iterdir())) == 1  # The last prefix replaces those before it.


def test_idle_engine_saves_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(disk_cache, "_IDLE_S", 0.01)
    with engine_on(tmp_path) as engine:
        for text in ("one", "two", "three"):
            complete(engine, f"{text} {SYSTEM}")
        wait_for(lambda: len(list(tmp_path.glob("*.state"))) == 3)
        wait_for(lambda: engine._cache.save_wait_s is None)


def test_busy_engine_saves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(disk_cache, "_IDLE_S", 0.0)
    backend = FakeBackend(endless, n_ctx=1000, n_cells=4000)
    with engine_on(tmp_path, backend) as engine:
        running = submit(engine, request("x" * 40, max_tokens=900))
        next(running)
        complete(engine, SYSTEM + "one", max_tokens=5)
        n_files = len(list(tmp_path.iterdir()))
        is_running = engine.stats().n_running
        assert not is_running or n_files == 0
        running.cancel()


def test_short_prefixes_are_not_saved(tmp_path: Path):
    save(tmp_path, "short")
    assert list(tmp_path.iterdir()) == []


def test_saved_prefix_is_not_saved_again(tmp_path: Path):
    save(tmp_path)
    (path,) = tmp_path.iterdir()
    before = path.stat().st_ino
    with engine_on(tmp_path) as engine:
        text, finish = complete(engine, SYSTEM, max_tokens=1)
        assert (text, finish.usage.n_cached) == (SYSTEM[0], len(SYSTEM) - 1)
    assert [path.stat().st_ino for path in tmp_path.iterdir()] == [before]


def test_prefix_in_the_kv_cache_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    save(tmp_path)
    n_reads = []
    monkeypatch.setattr(StateFiles, "read", lambda self, prefix: n_reads.append(1))
    with engine_on(tmp_path) as engine:
        complete(engine, SYSTEM)
        complete(engine, SYSTEM)
    assert n_reads == [1]


def test_scored_prompt_loads_nothing(tmp_path: Path):
    save(tmp_path)
    with engine_on(tmp_path) as engine:
        assert complete(engine, SYSTEM, prompt_logprobs=0)[1].usage.n_cached == 0


def test_concurrent_requests_read_a_file_once(tmp_path: Path):
    save(tmp_path)
    backend = FakeBackend(n_parallel=8)
    with engine_on(tmp_path, backend) as engine:
        generations = [submit(engine, request(SYSTEM + str(i), max_tokens=1)) for i in range(8)]
        ends = [read(generation)[1] for generation in generations]
        assert [end.usage.n_cached for end in ends] == [len(SYSTEM)] * 8
        assert engine.stats().counts.n_computed == 8


class SlowFiles(StateFiles):
    """Reads a file when the test opens the gate."""

    def __init__(self, folder: Path):
        super().__init__(folder, "fake", 1 << 20, can_truncate=True)
        self.gate = threading.Semaphore(0)

    def read(self, prefix: Any) -> Any:
        assert self.gate.acquire(timeout=DEADLINE_S)
        return super().read(prefix)


def test_other_requests_do_not_wait_for_a_prefix_being_loaded(tmp_path: Path):
    save(tmp_path)
    files = SlowFiles(tmp_path)
    with Engine(FakeBackend(), state_files=files).start() as engine:
        fetching = submit(engine, request(SYSTEM))
        assert complete(engine, "hello")[0] == "hello"
        assert not fetching.wait(0)
        files.gate.release()
        assert read(fetching)[1].usage.n_cached == len(SYSTEM) - 1


def test_cancel_while_a_prefix_is_loaded(tmp_path: Path):
    save(tmp_path)
    files = SlowFiles(tmp_path)
    with Engine(FakeBackend(), state_files=files).start() as engine:
        generation = submit(engine, request(SYSTEM))
        generation.cancel()
        with pytest.raises(Cancelled):
            list(generation)
        files.gate.release()
        assert complete(engine, "hello")[0] == "hello"


def test_close_while_a_prefix_is_loaded_ends_the_request(tmp_path: Path):
    save(tmp_path)
    files = SlowFiles(tmp_path)
    with Engine(FakeBackend(), state_files=files).start() as engine:
        generation = submit(engine, request(SYSTEM))
        files.gate.release()
    with pytest.raises(EngineError):
        list(generation)


def test_prefix_of_a_damaged_file_is_computed(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    save(tmp_path)
    (path,) = tmp_path.iterdir()
    content = bytearray(path.read_bytes())
    content[-50] ^= 1
    path.write_bytes(content)
    with engine_on(tmp_path) as engine:
        text, finish = complete(engine, SYSTEM)
        assert (text, finish.usage.n_cached) == (SYSTEM, 0)
    assert len([message for message in caplog.messages if "ignored" in message]) == 1


def test_prefix_whose_state_the_backend_refuses_is_computed(tmp_path: Path):
    class Refusing(FakeBackend):
        def write_state(self, slot: int, data: Data, n_tokens: int) -> bool:
            return False

    save(tmp_path)
    with engine_on(tmp_path, Refusing()) as engine:
        text, finish = complete(engine, SYSTEM)
        assert (text, finish.usage.n_cached) == (SYSTEM, 0)


def test_state_that_the_backend_cannot_copy_is_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    class Refusing(FakeBackend):
        def read_state(self, slot: int) -> bytes:
            raise EngineError("no state")

    monkeypatch.setattr(disk_cache, "_IDLE_S", 0.0)
    with engine_on(tmp_path, Refusing()) as engine:
        for _ in range(2):
            assert complete(engine, SYSTEM)[0] == SYSTEM
            wait_for(lambda: engine._cache.save_wait_s is None)
        assert engine.stats().n_cells_idle > 0
    assert list(tmp_path.iterdir()) == []


def test_prefix_of_a_state_larger_than_the_cache_is_computed(tmp_path: Path):
    """The saved prefix is longer than the KV cache; the prompt is not."""
    save(tmp_path, SYSTEM * 8, FakeBackend(n_ctx=1000, n_cells=4000))
    with engine_on(tmp_path, FakeBackend(n_ctx=200, n_cells=300)) as engine:
        assert complete(engine, SYSTEM)[0] == SYSTEM


def test_loaded_prefix_takes_cells_of_idle_prefixes_and_not_of_running_sequences(tmp_path: Path):
    save(tmp_path, max_tokens=1)
    backend = FakeBackend(endless, n_ctx=200, n_cells=200)
    with engine_on(tmp_path, backend) as engine:
        for i in range(3):
            complete(engine, f"{i}" * 50, max_tokens=2)
        running = submit(engine, request("y" * 60, max_tokens=60))
        first = next(running)
        assert isinstance(first, Delta)
        assert complete(engine, SYSTEM + "?", max_tokens=3)[0] == "abc"
        assert len(first.text + read(running)[0]) == 60


def test_only_whole_saved_prefixes_are_used_where_slots_cannot_be_truncated(tmp_path: Path):
    save(tmp_path, SYSTEM + "one", FakeBackend(can_truncate=False), max_tokens=2)
    with engine_on(tmp_path, FakeBackend(can_truncate=False)) as engine:
        text, finish = complete(engine, SYSTEM + "two")
        assert (text, finish.usage.n_cached) == (SYSTEM + "two", 0)
        # The saved prefix is the prompt and the first of two output tokens.
        text, finish = complete(engine, SYSTEM + "one" + SYSTEM[0] + "!")
        assert finish.usage.n_cached == len(SYSTEM + "one") + 1


def test_prefix_of_a_running_sequence_is_saved_when_the_engine_is_closed(tmp_path: Path):
    backend = FakeBackend(endless, n_ctx=100_000, n_cells=100_000)
    with engine_on(tmp_path, backend) as engine:
        generation = submit(engine, request(SYSTEM))
        next(generation)
    with pytest.raises(EngineStopped):
        list(generation)
    with engine_on(tmp_path) as engine:
        assert complete(engine, SYSTEM)[1].usage.n_cached == len(SYSTEM) - 1


def test_engine_stepped_by_hand_saves_at_its_end(tmp_path: Path):
    with Engine(FakeBackend(echo), state_files=files_in(tmp_path)) as engine:
        generation = submit(engine, request(SYSTEM))
        step_until_idle(engine)
        assert read(generation)[0] == SYSTEM
    assert len(list(tmp_path.iterdir())) == 1


# The built-in model on llama.cpp.


def ask(folder: Path, build: Callable[[Engine], GenerationRequest], **options: Any) -> tuple[Any, Finish]:
    """The tokens and the end of one request on a new engine."""
    with load(DEMO, LoadOptions(n_parallel=2, **options), cache_folder=folder) as engine:
        _, tokens, finish = read_tokens(engine, build(engine))
        return tokens, finish


def long_request(engine: Engine) -> GenerationRequest:
    return request_for(conversation(engine, 8), sampling=GREEDY, max_tokens=40, top_logprobs=5)


def test_conversation_after_a_restart_has_the_tokens_of_one_without(tmp_path: Path):
    output, _ = ask(tmp_path, long_request)

    def following(engine: Engine) -> GenerationRequest:
        prompt = (*conversation(engine, 8), *(token.id for token in output), *chat(engine, "And then?"))
        return request_for(prompt, sampling=GREEDY, max_tokens=40, top_logprobs=5)

    fresh, without = ask(tmp_path / "empty", following)
    cached, finish = ask(tmp_path, following)
    assert without.usage.n_cached == 0
    assert finish.usage.n_cached >= first_prompt_length(tmp_path)
    assert_same_or_near_tie(fresh, cached)


def first_prompt_length(folder: Path) -> int:
    with load(DEMO, LoadOptions(n_parallel=2)) as engine:
        return len(conversation(engine, 8))


def test_prefixes_of_a_changed_model_file_are_not_used(tmp_path: Path):
    model, folder = tmp_path / "model.gguf", tmp_path / "cache"
    model.write_bytes(Path(DEMO).read_bytes())
    n_cached = []
    for _ in range(2):
        with load(str(model), LoadOptions(n_parallel=2), cache_folder=folder, self_test_model=DEMO) as engine:
            n_cached.append(read_tokens(engine, long_request(engine))[2].usage.n_cached)
    assert n_cached[1] > 0
    model.write_bytes(Path(DEMO).read_bytes())  # The same content with a newer time.
    with load(str(model), LoadOptions(n_parallel=2), cache_folder=folder, self_test_model=DEMO) as engine:
        assert read_tokens(engine, long_request(engine))[2].usage.n_cached == 0


def test_server_keeps_prefixes_across_restarts(tmp_path: Path):
    messages = [{"role": "user", "content": "Tell me about the colours of the sea. " * 8}]
    body = json.dumps({"messages": messages, "temperature": 0, "max_tokens": 20}).encode()
    responses = []
    for _ in range(2):
        with running_server("--cache-dir", str(tmp_path), "--cache-size", "100") as url:
            responses.append(json.load(urllib.request.urlopen(f"{url}/chat/completions", body, timeout=30)))
    cached = [response["usage"]["prompt_tokens_details"]["cached_tokens"] for response in responses]
    assert cached == [0, responses[1]["usage"]["prompt_tokens"] - 1]
    assert responses[0]["choices"][0]["message"]["content"] == responses[1]["choices"][0]["message"]["content"]


def test_folder_that_cannot_be_made_is_an_error_with_its_name(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(EngineError, match="cannot be saved"):
        load(DEMO, LoadOptions(), cache_folder=tmp_path / "file" / "folder")
