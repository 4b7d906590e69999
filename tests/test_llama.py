"""llama.cpp on the built-in model: facts, loading, long prompts, preemption, and calls that would abort the process."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from localchat.serving.core.errors import BadRequest, ContextLengthExceeded
from localchat.serving.core.params import SamplingParams
from localchat.serving.engine import load
from localchat.serving.engine.batch import Batch, BatchChunk, Sequence
from localchat.serving.engine.engine import Engine
from localchat.serving.engine.llama import default_threads, library, sampling_from
from localchat.serving.engine.llama.embed import steps
from localchat.serving.engine.values import EngineError, EngineStopped, LoadOptions

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
from .engines import request_for, submit


def test_facts_describe_the_model(engine: Engine):
    facts = engine.facts
    assert round(facts.n_params / 1e6) == 5
    assert facts.n_bytes == pytest.approx(Path(DEMO).stat().st_size, rel=0.1)
    assert facts.n_ctx == facts.n_ctx_train
    assert facts.n_cells >= facts.n_ctx
    assert facts.n_parallel == 32
    assert facts.chat_template is not None
    assert {"<|im_start|>", "<|im_end|>"} <= facts.special_tokens
    assert facts.metadata["general.architecture"] == "llama"


def test_greedy_text_answers_the_question_and_ends(engine: Engine):
    text, tokens, finish = read(engine, request_for(chat(engine, "What is your name?"), sampling=GREEDY))
    assert "localchat" in text
    assert (finish.reason, finish.stop) == ("stop", None)
    assert finish.usage.n_completion == len(tokens) + 1  # The end token is counted and has no text.
    assert b"".join(token.piece for token in tokens).decode() == text


def test_pieces_of_tokens_are_the_text(engine: Engine):
    text = "Grüße, 你好 😀\x00\n\tend"
    assert b"".join(engine.texts.piece(token) for token in engine.tokenize(text)).decode() == text


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({}, {}),
        ({"temp": "0.6", "top_k": "20"}, {"temperature": 0.6, "top_k": 20}),
        ({"top_p": "much", "penalty_repeat": "1.5", "unknown": "1"}, {"repeat_penalty": 1.5}),
        ({"xtc_probability": "0.5", "mirostat": "2"}, {"xtc_probability": 0.5, "mirostat": 2}),
        ({"sequence": "top-k;typ_p;temp"}, {"samplers": ("top_k", "typical_p", "temperature")}),
        ({"sequence": "top_k;magic"}, {}),
    ],
    ids=["none", "recommended", "not a number", "others", "sequence", "unknown sampler"],
)
def test_defaults_come_from_the_metadata(metadata: dict[str, str], expected: dict[str, Any]):
    found = sampling_from({"top_k": "3", **{f"general.sampling.{name}": text for name, text in metadata.items()}})
    assert found == SamplingParams(**expected)


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a model at all" * 100], ids=["empty", "cut", "other"])
def test_file_that_is_not_a_model_is_an_error_with_its_name(tmp_path: Path, content: bytes):
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(EngineError, match=r"bad\.gguf"):
        load(str(path), LoadOptions())


def test_missing_file_is_an_error_with_its_name():
    with pytest.raises(EngineError, match=r"nowhere\.gguf"):
        load("nowhere.gguf", LoadOptions())


def test_more_requests_at_once_than_the_library_runs_are_refused_with_both_numbers():
    with pytest.raises(
        EngineError, match=r"--parallel 256 is more than llama.cpp can run at once: the limit .* is 255"
    ):
        load(DEMO, LoadOptions(n_parallel=256))


def test_progress_goes_from_0_to_1_and_the_loaded_engine_has_run_a_request_and_counts_none():
    seen: list[float] = []
    with load(DEMO, LoadOptions(), progress=seen.append) as engine:
        assert (seen[0], seen[-1]) == (0, 1)
        assert seen == sorted(seen)
        stats = engine.stats()
        assert (stats.n_computed, stats.n_cells_idle, stats.first_token_s.total) == (0, 0, 0)
        finish = read(engine, request_for(chat(engine, "Hello!"), max_tokens=2))[2]
        assert finish.usage.n_cached == 0


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, "2000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, None)],
    ids=["default", "set by the user", "other policy of the user"],
)
def test_spin_count_of_threads_has_a_default_that_the_user_may_override(given: dict[str, str], expected: str):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    program = "import os, localchat.serving.engine.llama; print(os.environ.get('GOMP_SPINCOUNT'))"
    command = [sys.executable, "-c", program]
    child = subprocess.run(command, env={**environment, **given}, capture_output=True, text=True, check=True)
    assert child.stdout.strip() == str(expected)


@pytest.mark.parametrize(
    ("options", "mode"),
    [
        ({}, "AUTO"),
        ({"use_mmap": False}, "NONE"),
        ({"use_mlock": True}, "MMAP_MLOCK"),
        ({"use_mmap": False, "use_mlock": True}, "MLOCK"),
    ],
)
def test_file_is_mapped_and_locked_by_the_options(options: dict[str, bool], mode: str, monkeypatch: pytest.MonkeyPatch):
    modes, real = [], library.L.llama_model_load_from_file

    def loaded(path: bytes, params: Any) -> Any:
        modes.append(params.load_mode)
        params.load_mode = library.L.LLAMA_LOAD_MODE_AUTO  # Not every machine may lock memory.
        return real(path, params)

    monkeypatch.setattr(library.L, "llama_model_load_from_file", loaded)
    load(DEMO, LoadOptions(**options)).close()
    assert modes == [getattr(library.L, f"LLAMA_LOAD_MODE_{mode}")]


def test_default_threads_are_one_for_a_tiny_model_and_within_the_machine_for_others():
    assert default_threads(3 << 20) == 1
    assert 1 <= default_threads(1 << 30) <= (os.cpu_count() or 1)


def test_long_prompt_beside_a_stream_gives_the_tokens_of_the_prompt_alone(engine: Engine):
    """The prompt is computed in several batches."""
    request = request_for(conversation(engine, 25), sampling=GREEDY, max_tokens=20, top_logprobs=5)
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
    with contextlib.suppress(EngineStopped):
        assert list(generation)
    assert engine.texts.piece(300)
    assert engine.tokenize("still there")


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        pytest.param([3], [[(0, 0, 3)]], id="one"),
        pytest.param([3, 3, 3], [[(0, 0, 3), (1, 0, 3)], [(2, 0, 3)]], id="what does not fit waits"),
        pytest.param([1, 1, 1, 1], [[(0, 0, 1), (1, 0, 1), (2, 0, 1)], [(3, 0, 1)]], id="no more inputs than slots"),
        pytest.param([8, 8], [[(0, 0, 8)], [(1, 0, 8)]], id="exactly a step"),
        pytest.param(
            [2, 18, 3], [[(0, 0, 2)], [(1, 0, 8)], [(1, 8, 16)], [(1, 16, 18), (2, 0, 3)]], id="longer than a step"
        ),
        pytest.param([], [], id="none"),
    ],
)
def test_steps_of_embeddings_are_filled_in_order(lengths: list[int], expected: list[list[tuple[int, int, int]]]):
    assert list(steps(lengths, n_step=8, n_inputs=3)) == expected


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        pytest.param([[1], [1] * 9000], ContextLengthExceeded, "an input has 9000 tokens .* holds", id="too long"),
        pytest.param([[]], BadRequest, "empty", id="empty"),
        pytest.param([[10**6]], BadRequest, "token ids go from 0 to", id="beyond the vocabulary"),
        pytest.param([[-1]], BadRequest, "-1", id="negative"),
    ],
)
def test_inputs_of_embeddings_are_checked(engine: Engine, inputs: Any, error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        engine.embed(inputs)


def decode(backend: Any, *sizes: int, slot: int = 0, is_scored: bool = False) -> None:
    """Compute a batch of sequences with these numbers of tokens."""
    sequences = [Sequence(i, [1] * n, n + 1) for i, n in enumerate(sizes)]
    chunks = [BatchChunk(s, slot, s.id, s.n_prompt, True, is_scored=is_scored) for s in sequences]
    backend.decode(Batch(tuple(chunks)))


@pytest.mark.parametrize(
    "misuse",
    [
        lambda backend: backend.texts.piece(backend.facts.n_vocab),
        lambda backend: backend.texts.piece(-1),
        lambda backend: backend.clear(999),
        lambda backend: backend.sample(backend.new_sampler(request_for((1,))), 10_000),
        lambda backend: decode(backend, backend.limits.n_batch + 1),
        lambda backend: decode(backend, 1, slot=999),
        lambda backend: decode(backend, *[1] * (backend.limits.n_outputs + 1)),
        lambda backend: decode(backend, backend.limits.n_outputs + 1, is_scored=True),
    ],
    ids=["id", "negative id", "slot to clear", "row without logits", "batch too large", "slot", "outputs", "scores"],
)
def test_calls_that_would_abort_the_process_are_refused(engine: Engine, misuse: Any):
    wait_until_idle(engine)
    with pytest.raises((ValueError, LookupError, AssertionError)):
        misuse(engine.backend)


def test_errors_of_llama_cpp_are_kept_by_thread():
    def fail() -> None:
        library._on_log(4, b"second", None)
        errors.append(library.last_errors())

    errors: list[str] = []
    library.last_errors()
    library._on_log(4, b"first", None)
    thread = threading.Thread(target=fail)
    thread.start()
    thread.join(10)
    assert (errors, library.last_errors(), library.last_errors()) == (["second"], "first", "it gave no reason")
