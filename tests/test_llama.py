"""llama.cpp on the built-in model: facts, tokens, loading, threads, and calls that would abort the process."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from localchat.serving.core.params import SamplingParams
from localchat.serving.engine import Engine, EngineError, LoadOptions, load
from localchat.serving.engine.batch import Batch, BatchChunk, Sequence
from localchat.serving.engine.llama import default_threads, sampling_from

from .demo_model import DEMO, GREEDY, chat, read, wait_until_idle
from .engines import request_for


def test_facts_describe_the_model(engine: Engine):
    facts = engine.facts
    assert facts.n_params > 1_000_000
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


def test_model_states_its_size_correctly(engine: Engine):
    prompt = chat(engine, "How many parameters do you have?")
    text, _, _ = read(engine, request_for(prompt, sampling=GREEDY))
    assert "about five million parameters and my file is smaller than 4 MB" in text
    assert round(engine.facts.n_params / 1e6) == 5
    assert Path(DEMO).stat().st_size < 4_000_000


def test_pieces_of_tokens_are_the_text(engine: Engine):
    text = "Grüße, 你好 😀\x00\n\tend"
    tokens = engine.tokenize(text)
    assert b"".join(engine.piece(token) for token in tokens).decode() == text


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({}, SamplingParams()),
        ({"general.sampling.temp": "0.6", "general.sampling.top_k": "20"}, SamplingParams(temperature=0.6, top_k=20)),
        ({"general.sampling.top_p": "much"}, SamplingParams()),
        (
            {"general.sampling.xtc_probability": "0.5", "general.sampling.mirostat": "2"},
            SamplingParams(xtc_probability=0.5, mirostat=2),
        ),
        (
            {"general.sampling.sequence": "top-k;typ_p;temp"},
            SamplingParams(samplers=("top_k", "typical_p", "temperature")),
        ),
        ({"general.sampling.sequence": "top_k;magic"}, SamplingParams()),
    ],
    ids=["none", "recommended", "not a number", "others", "sequence", "unknown sampler"],
)
def test_defaults_come_from_the_metadata(metadata: dict[str, str], expected: SamplingParams):
    assert sampling_from(metadata) == expected


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


def test_loaded_engine_has_run_a_request_and_counts_none():
    with load(DEMO, LoadOptions()) as engine:
        stats = engine.stats()
        assert (stats.n_computed, stats.n_cells_idle, stats.first_token_s.total) == (0, 0, 0)
        finish = read(engine, request_for(chat(engine, "Hello!"), max_tokens=2))[2]
        assert finish.usage.n_cached == 0


def test_progress_goes_from_0_to_1():
    seen: list[float] = []
    load(DEMO, LoadOptions(), progress=seen.append).close()
    assert seen[0] == 0
    assert seen[-1] == 1
    assert seen == sorted(seen)


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


def test_default_threads_are_one_for_a_tiny_model_and_within_the_machine_for_others():
    assert default_threads(3 << 20) == 1
    assert 1 <= default_threads(1 << 30) <= (os.cpu_count() or 1)


# Calls that would abort the process are refused before they reach llama.cpp.


def misuse_batch(backend: Any) -> None:
    sequence = Sequence(1, [1] * (backend.limits.n_batch + 1), backend.limits.n_batch + 2)
    backend.decode(Batch(chunks=(BatchChunk(sequence, 0, 0, backend.limits.n_batch + 1, True),)))


def misuse_slot(backend: Any) -> None:
    backend.decode(Batch(chunks=(BatchChunk(Sequence(1, [1], 2), 999, 0, 1, True),)))


def misuse_outputs(backend: Any) -> None:
    n = backend.limits.n_parallel + 1
    backend.decode(Batch(chunks=tuple(BatchChunk(Sequence(i, [1], 2), 0, i, 1, True) for i in range(n))))


def misuse_scores(backend: Any) -> None:
    n = backend.limits.n_outputs + 1
    backend.decode(Batch(chunks=(BatchChunk(Sequence(1, [1] * n, n + 1), 0, 0, n, True, is_scored=True),)))


@pytest.mark.parametrize(
    "misuse",
    [
        lambda backend: backend.texts.piece(backend.facts.n_vocab),
        lambda backend: backend.texts.piece(-1),
        lambda backend: backend.clear(999),
        lambda backend: backend.sample(backend.new_sampler(request_for((1,))), 10_000),
        misuse_batch,
        misuse_slot,
        misuse_outputs,
        misuse_scores,
    ],
    ids=(
        *("id too large", "negative id", "slot to clear", "row without logits", "batch too large", "slot"),
        *("outputs", "scores"),
    ),
)
def test_calls_that_would_abort_the_process_are_refused(engine: Engine, misuse: Any):
    wait_until_idle(engine)
    with pytest.raises(ValueError):  # noqa: PT011  # Each call has another message.
        misuse(engine.backend)


def test_errors_of_llama_cpp_are_kept_by_thread():
    from localchat.serving.engine.llama import library

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


def test_list_of_all_pieces_has_the_piece_of_each_token(engine: Engine):
    vocabulary = engine.backend.vocabulary  # type: ignore[attr-defined]  # Only LlamaBackend has one.
    assert vocabulary.all_pieces == [vocabulary.texts.piece(id, special=True) for id in range(vocabulary.n_tokens)]
    assert b"".join(vocabulary.all_pieces[id] for id in engine.tokenize("Hello, wörld!")) == "Hello, wörld!".encode()
