"""Images and sound in the engine, on a fake backend and a fake projector: cells, positions, prefixes, the encoder."""

import os
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from localchat.serving.core.errors import NO_MEMORY, NO_THREADS, BadRequest, ContextLengthExceeded, OutOfResources
from localchat.serving.core.media import IMAGE, MediaFile
from localchat.serving.core.params import SamplingParams
from localchat.serving.engine.engine import Engine
from localchat.serving.engine.media.encoder import MediaEncoder
from localchat.serving.engine.values import EngineError, EngineStopped
from tests.support.engines import Generation, client_of, read, request_for, started, step_until_idle, submit
from tests.support.fakes import FakeBackend, FakeProjector
from tests.support.serving import wait_for

# The tokens around an image.
BEGIN, END = FakeProjector.around


def image(n_cells: int, n_positions: int = 0, *, name: str = "a", is_causal: int = 1, n_chunks: int = 1) -> MediaFile:
    """An image for the fake projector."""
    return MediaFile(IMAGE, f"{name} {n_cells} {n_positions or n_cells} {is_causal} {n_chunks}".encode(), "p")


def mixing(tokens: list[int], n_prompt: int) -> int:
    """A model whose output depends on all tokens and media before it."""
    return 97 + sum((i + 1) * (token % 1009) for i, token in enumerate(tokens)) % 26


@contextmanager
def seeing(projector: FakeProjector | None = None, max_bytes: int = 1 << 20, **options: Any) -> Iterator[Engine]:
    projector = projector or FakeProjector()
    backend = FakeBackend(options.pop("model", mixing), **{"n_ctx": 512, "n_cells": 4096, **options})
    with started(backend, new_encoder=partial(MediaEncoder, projector, max_bytes=max_bytes)) as engine:
        yield engine
    assert (backend.is_closed, projector.is_closed) == (True, True)


def ask(engine: Engine, *parts: Any, **options: Any) -> Generation:
    """Submit a prompt of texts and media."""
    prompt = tuple(part if isinstance(part, MediaFile) else (part, True) for part in parts)
    return submit(engine, request_for(prompt, **{"max_tokens": 8, **options}))


def completion(engine: Engine, *parts: Any, **options: Any) -> tuple[str, int, int]:
    """The text, and how many tokens the prompt has and how many of them were cached."""
    text, finish = read(ask(engine, *parts, **options))
    return text, finish.usage.n_prompt, finish.usage.n_cached


A, B = image(40), image(40, name="b")
WHOLE, GRID = image(30, name="whole", is_causal=0), image(36, 6, name="grid")


@pytest.mark.parametrize("is_unified", [True, False], ids=["one buffer", "streams"])
def test_texts_depend_on_the_images_and_their_order(is_unified: bool):
    with seeing(is_unified=is_unified) as engine:
        orders = ((A,), (B,), (A, B), (B, A), (A, A), (GRID,))
        texts = [completion(engine, "look: ", *images, " what?")[0] for images in orders]
        assert len(set(texts)) == 6
        for images, text in zip(orders[:3], texts):
            assert completion(engine, "look: ", *images, " what?")[0] == text


def test_media_count_as_tokens_of_the_prompt():
    with seeing() as engine:
        assert completion(engine, "look: ", A, GRID, " what?")[1] == 6 + 42 + 38 + 6
        begin, cell, *_ = alone = engine.prompts.tokenize_prompt([A])
        assert (begin, alone[-1], alone.count(cell)) == (BEGIN, END, 40)
        assert engine.prompts.tokenize_prompt([("a", True), A, ("!", True)]) == [97, *alone, 33]
        generation = ask(engine, "a", image(3), "b")
        assert list(generation.run.head.prompts[0]) == [97, BEGIN, -1, -1, -1, END, 98]


@pytest.mark.parametrize("is_unified", [True, False], ids=["one buffer", "streams"])
@pytest.mark.parametrize("sampling", [SamplingParams(), SamplingParams(seed=1)], ids=["sampled", "seed"])
@pytest.mark.parametrize("media", [A, WHOLE, GRID, image(130), image(10, n_chunks=3)], ids=lambda m: m.data.decode())
def test_same_image_is_neither_encoded_nor_computed_again(media: MediaFile, is_unified: bool, sampling: SamplingParams):
    projector = FakeProjector()
    n_image = sum(1 if isinstance(item, int) else item.n_cells for item in projector.prompt_items(media))
    with seeing(projector, is_unified=is_unified) as engine:
        first = completion(engine, "look: ", media, " what?", sampling=sampling)
        again = completion(engine, "look: ", media, " what?", sampling=sampling)
        next_turn = completion(engine, "look: ", media, " what?", first[0], "and now?", sampling=sampling)
        other = completion(engine, "look: ", B, " what?", sampling=sampling)
    assert first[0] == again[0]
    # The media and what is before them, at least.
    assert again[2] >= 6 + n_image - 1
    assert next_turn[2] >= 6 + n_image - 1
    assert other[2] <= 7
    assert projector.encoded == [media.data.decode().split()[0], "b"]


def test_image_of_a_cached_prefix_is_not_encoded_again_when_its_vectors_are_gone():
    projector = FakeProjector()
    with seeing(projector, max_bytes=10) as engine:
        first = completion(engine, A, " what?")
        assert completion(engine, B, " who?")[2] == 1
        assert completion(engine, A, " what?") == (first[0], first[1], first[1] - 1)
        assert projector.encoded == ["a", "b"]
        engine.forget()
        assert completion(engine, A, " what?")[0] == first[0]
    assert projector.encoded == ["a", "b", "a"]


@pytest.mark.parametrize("failing", ["truncate", "state", "set_state"])
@pytest.mark.parametrize("is_unified", [True, False], ids=["one buffer", "streams"])
def test_image_is_encoded_again_whose_cached_cells_cannot_be_used(is_unified: bool, failing: str):
    """Its vectors are gone, since its cells were cached."""
    projector = FakeProjector()
    with seeing(projector, max_bytes=10, is_unified=is_unified) as engine:
        alone = completion(engine, A, " what?")[0]
        engine.forget()
        completion(engine, A, " who was there at the end of a long day?")
        completion(engine, B, " who?")
        cells: Any = engine.backend
        cells.failing.add(failing)
        assert completion(engine, A, " what?")[0] == alone
        assert engine.failure is None


def test_cache_holds_the_media_that_were_used_last_within_its_limit():
    projector = FakeProjector()
    with seeing(projector, max_bytes=3100) as engine:
        for name in ("a", "b", "c", "a", "d", "a", "b"):
            completion(engine, image(20, name=name), "?")
            engine.forget()
    assert projector.encoded == ["a", "b", "c", "d", "b"]


def test_text_goes_on_while_an_image_is_encoded():
    projector = FakeProjector(threading.Semaphore(0))
    with seeing(projector, n_parallel=1) as engine:
        seen = ask(engine, A, "?")
        assert read(ask(engine, "hello"))[1].usage.n_prompt == 5
        assert not seen.wait(0)
        projector.gate.release()  # type: ignore[union-attr]
        assert len(read(seen)[0]) == 8


def test_cancelled_request_is_not_encoded():
    projector = FakeProjector(threading.Semaphore(0))
    with seeing(projector) as engine:
        first, second, third = (ask(engine, image(20, name=name), "?") for name in "abc")
        wait_for(lambda: engine.stats().n_waiting == 3)
        second.cancel()
        wait_for(lambda: engine.stats().n_waiting == 2)
        projector.gate.release(3)  # type: ignore[union-attr]
        assert read(first)[1].usage.n_prompt == read(third)[1].usage.n_prompt == 23
    assert projector.encoded == ["a", "c"]


def test_image_of_several_requests_is_encoded_once():
    projector = FakeProjector(threading.Semaphore(0))
    with seeing(projector) as engine:
        asked = [ask(engine, "look ", A, "?") for _ in range(3)]
        asked.pop(0).cancel()
        projector.gate.release(3)  # type: ignore[union-attr]
        assert len({read(one)[0] for one in asked}) == 1
    assert projector.encoded == ["a"]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (EngineError("no memory"), EngineError("no memory")),
        (MemoryError(), OutOfResources(NO_MEMORY)),
        (RuntimeError("can't start new thread"), OutOfResources(NO_THREADS)),
        (ValueError("no memory"), EngineError("it cannot be encoded: no memory")),
    ],
    ids=repr,
)
def test_error_of_an_encoding_ends_its_requests_alone_and_the_next_one_tries_again(error, expected):
    projector = FakeProjector(threading.Semaphore(0))
    projector.broken, projector.error = {"a"}, error
    with seeing(projector) as engine:
        failing, other = ask(engine, A, "?"), ask(engine, B, "?")
        projector.gate.release(10)  # type: ignore[union-attr]
        with pytest.raises(type(expected)) as ended:
            read(failing)
        assert str(ended.value) == str(expected)
        assert len(read(other)[0]) == 8
        projector.broken = set()
        assert len(completion(engine, A, "?")[0]) == 8
    assert projector.encoded == ["a", "b", "a"]


class LateEngine(Engine):
    """An engine, stepped by hand, that gets the results of encodings when the test says so."""

    def __init__(self, projector: FakeProjector, **options: Any) -> None:
        self.late: list[Any] = []
        new_encoder = partial(MediaEncoder, projector, max_bytes=10)  # It keeps the newest medium.
        super().__init__(FakeBackend(mixing, n_ctx=512, n_cells=4096, **options), new_encoder=new_encoder)

    def post(self, command: Any) -> None:
        if threading.current_thread().name == "localchat-media":
            self.late.append(command)
        else:
            super().post(command)

    def finish_encoding(self) -> None:
        wait_for(lambda: self.step() or self.late)
        self.late.pop()()
        step_until_idle(self)


def test_medium_is_not_encoded_again_before_its_error_has_ended_its_requests():
    projector = FakeProjector()
    projector.broken = {"a"}
    with LateEngine(projector) as engine:
        failing = ask(engine, A, "?")
        engine.step()
        wait_for(lambda: engine.late)
        engine.step()
        wait_for(lambda: not any(thread.name == "localchat-media" for thread in threading.enumerate()))
        engine.finish_encoding()
        with pytest.raises(EngineError, match="no memory"):
            read(failing)
        assert (projector.encoded, engine.late) == (["a"], [])


def test_error_of_an_encoding_does_not_end_a_request_whose_cached_prefix_has_the_medium():
    projector = FakeProjector()
    with LateEngine(projector, n_parallel=1) as engine:
        texts = []
        for parts in (("cached", A, "?"), (B, "?")):  # The second one takes the place of the vectors of A.
            generation = ask(engine, *parts)
            engine.finish_encoding()
            texts.append(read(generation)[0])
        projector.broken = {"a"}
        failing, text, waiting = ask(engine, "other", A, "?"), ask(engine, "hello"), ask(engine, "cached", A, "?")
        engine.step()
        assert (engine.stats().n_running, engine.stats().n_waiting) == (1, 2)
        wait_for(lambda: engine.late)
        engine.finish_encoding()
        with pytest.raises(EngineError, match="no memory"):
            read(failing)
        assert len(read(text)[0]) == 8
        assert read(waiting)[0] == texts[0]


@pytest.mark.parametrize(
    ("parts", "options", "expected"),
    [
        ((image(5, name="bad"), "?"), {}, "cannot be decoded"),
        ((A, "?"), {"truncate_prompt_tokens": 10}, "'truncate_prompt_tokens' is not supported"),
    ],
)
def test_media_that_cannot_be_used_are_refused(parts: Any, options: Any, expected: str):
    with seeing() as engine:
        with pytest.raises(BadRequest, match=expected):
            ask(engine, *parts, **options)
        with pytest.raises(ContextLengthExceeded):
            ask(engine, *[A] * 20, "?")
        assert len(completion(engine, A, "?")[0]) == 8


def test_prompt_that_ends_with_an_image_is_refused():
    """Some models have no token after an image."""
    projector = FakeProjector()
    prompt_items = projector.prompt_items
    projector.prompt_items = lambda media: prompt_items(media)[:-1]  # type: ignore[method-assign]
    with seeing(projector) as engine:
        with pytest.raises(BadRequest, match="ends with an image"):
            ask(engine, "?", A)
        assert len(completion(engine, A, "?")[0]) == 8


KINDS = [
    lambda n, name: image(n, name=name),
    lambda n, name: image(n, name=name, is_causal=0),
    lambda n, name: image(n, max(n // 5, 1), name=name),
    lambda n, name: image(max(n // 3, 1), name=name, n_chunks=3),
]


@pytest.mark.parametrize("seed", range(12))
def test_random_requests_together_have_the_texts_that_they_have_alone(seed: int):
    """With preemption, shared prefixes, cancels and drafts. The fake cells check positions and contents."""
    chance = random.Random(seed)
    make, is_unified = KINDS[seed % 4], seed % 3 > 0
    media = [make(chance.choice([1, 7, 20, 64, 70, 100]), f"m{i}") for i in range(5)]
    prompts = []
    for _ in range(25):
        parts: list[Any] = ["start "]
        for _ in range(chance.randrange(1, 4)):
            parts += [chance.choice(media), "x" * chance.randrange(0, 80) + chance.choice("yz")]
        prompts.append(parts)
    options: dict[str, Any] = {"is_unified": is_unified, "n_batch": 256, "n_ctx": 1024, "n_cells": 8192}
    if is_unified:
        options.update(n_cells=chance.choice([1100, 3000]), max_drafted=chance.choice([0, 4]))
        if seed in (4, 5, 11):
            options.update(can_truncate=False, max_drafted=0)
    sampling = SamplingParams(seed=1) if chance.random() < 0.5 else SamplingParams()
    with seeing(**options) as engine:
        alone = {}
        for i in (0, 5, 10):
            alone[i] = completion(engine, *prompts[i], max_tokens=30, sampling=sampling)[0]
            engine.forget()
        asked = [ask(engine, *parts, max_tokens=30, sampling=sampling) for parts in prompts]
        for generation in asked[20:]:
            generation.cancel()
        texts = [read(generation)[0] for generation in asked[:20]]
        assert {i: texts[i] for i in alone} == alone
        wait_for(lambda: client_of(engine).n_open == 0)
        assert engine.failure is None


def test_step_without_a_thread_waits_for_nothing():
    """An engine that is stepped by hand has nothing to run while it encodes."""
    projector = FakeProjector(threading.Semaphore(0))
    with Engine(FakeBackend(mixing, n_ctx=512), new_encoder=partial(MediaEncoder, projector)) as engine:
        generation = ask(engine, A, "?")
        assert step_until_idle(engine) == 0
        projector.gate.release()  # type: ignore[union-attr]
        wait_for(lambda: engine.step() or generation.wait(0))
        step_until_idle(engine)
        assert len(read(generation)[0]) == 8


def test_encoding_for_which_no_thread_starts_ends_its_requests_alone(monkeypatch: pytest.MonkeyPatch):
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "localchat-media":
            raise RuntimeError("can't start new thread")
        start(thread)

    with seeing() as engine:
        monkeypatch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(OutOfResources):
            read(ask(engine, A, "?"))
        assert len(completion(engine, "hello")[0]) == 8
        monkeypatch.undo()
        assert len(completion(engine, A, "?")[0]) == 8


def test_media_are_not_counted_after_the_end_of_the_engine():
    """A thread may have waited for that. The projector is freed."""
    with seeing() as engine:
        encoder = engine.prompts._encoder
        assert encoder is not None
        assert len(encoder.prepared(A).chunks) == 1
    for media in (A, B):
        with pytest.raises(EngineStopped):
            encoder.prepared(media)


@pytest.mark.parametrize("n_prepared", [0, 1, 2])
def test_dropped_request_decodes_no_further_medium(n_prepared: int):
    """Nor does it begin when its turn comes, after others."""
    counted: list[MediaFile] = []

    class Projector(FakeProjector):
        def prompt_items(self, file: MediaFile) -> Any:
            counted.append(file)
            return super().prompt_items(file)

    with seeing(Projector()) as engine:
        encoder = engine.prompts._encoder
        assert encoder is not None

        def check() -> None:
            assert encoder._count_lock.locked()
            if len(counted) == n_prepared:
                raise InterruptedError

        with pytest.raises(InterruptedError):
            engine.prompts.media_errors([A, B, WHOLE], check)
        assert counted == [A, B, WHOLE][:n_prepared]
        assert engine.prompts.media_errors([A, B, WHOLE]) == [None] * 3


def test_thread_ends_when_all_is_encoded(monkeypatch: pytest.MonkeyPatch):
    """OpenMP would keep its team of threads for it. Its priority may be lower than the one that is set."""

    def refuse(*arguments: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "setpriority", refuse)
    with seeing() as engine:
        completion(engine, A, "?")
        wait_for(lambda: not any(thread.name == "localchat-media" for thread in threading.enumerate()))
