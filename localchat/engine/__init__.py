"""Many generations at once on one model: submit token ids, iterate text.

Importing this does not import llama_cpp; `load` does.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

from ..protocol.events import OutputToken, TokenLogprob
from ..protocol.server_state import SequenceStats
from .embedding import Embedder, InputTooLong, normalised, pooling_of
from .engine import Engine
from .histogram import Histogram, HistogramValues
from .run import RequestRun
from .snapshots import DEFAULT_SNAPSHOT_BYTES
from .state_files import StateFiles
from .stats import EngineStats
from .values import (
    Cancelled,
    Constraint,
    Delta,
    EngineError,
    EngineStopped,
    Finish,
    GenerationRequest,
    InvalidGrammar,
    InvalidToken,
    LoadOptions,
    ModelFacts,
    Progress,
    PromptTooLong,
    QueueFull,
    Resources,
    TextTooLong,
    WritesNoText,
    WrongDraftModel,
)

__all__ = [
    "Cancelled",
    "Constraint",
    "Delta",
    "Embedder",
    "Engine",
    "EngineError",
    "EngineStats",
    "EngineStopped",
    "Finish",
    "GenerationRequest",
    "Histogram",
    "HistogramValues",
    "InputTooLong",
    "InvalidGrammar",
    "InvalidToken",
    "LoadOptions",
    "ModelFacts",
    "OutputToken",
    "Progress",
    "PromptTooLong",
    "TextTooLong",
    "QueueFull",
    "RequestRun",
    "Resources",
    "SequenceStats",
    "TokenLogprob",
    "WritesNoText",
    "WrongDraftModel",
    "load",
    "normalised",
    "pooling_of",
]

log = logging.getLogger("localchat.engine")

# What a few dozen long conversations with a model of some billion parameters take.
DEFAULT_CACHE_BYTES = 4 << 30


def load(
    path: str,
    options: LoadOptions,
    *,
    draft_path: str | None = None,
    cache_folder: Path | None = None,
    cache_bytes: int = DEFAULT_CACHE_BYTES,
    max_snapshot_bytes: int = DEFAULT_SNAPSHOT_BYTES,
    self_test_model: str | None = None,
    checks_files: bool = False,
    max_queue: int = 256,
    progress: Callable[[float], None] | None = None,
) -> Engine:
    """Loads a GGUF model and starts its engine thread.

    Args:
        path: The model.
        options: How it is run.
        draft_path: A smaller model of the same vocabulary for speculative decoding.
        cache_folder: Where cached prefixes are saved and found again after a restart; None for nowhere.
        cache_bytes: The limit of all files in that folder.
        max_snapshot_bytes: The limit of snapshots of evicted prefixes in memory.
        self_test_model: A small quantised model for the self-test of llama.cpp (self_test.py); None for the model.
        checks_files: Whether files that this build has not loaded before are loaded in a child process first
            (crash_check.py).
        max_queue: Sequences that may wait beside those that run.
        progress: Called with the loaded share of the model, 0 to 1.

    Raises:
        WrongDraftModel: the draft model has another vocabulary, or a KV cache that cannot be truncated.
        EngineError: llama-cpp-python is missing or unusable here, or a model cannot be loaded.
    """
    options = _passing_options(path, draft_path, options, self_test_model, checks_files)
    from .llama import load_backend, load_draft_backend

    _warn_without_gpu(options)
    backend = load_backend(path, options, progress)
    try:
        files = None if cache_folder is None else _state_files(cache_folder, backend.state_key(), cache_bytes)
        draft_backend = None if draft_path is None else load_draft_backend(draft_path, options, backend)
    except BaseException:
        backend.close()
        raise
    return Engine(
        backend,
        max_queue=max_queue,
        draft_backend=draft_backend,
        state_files=files,
        max_snapshot_bytes=max_snapshot_bytes,
    ).start()


def _passing_options(
    path: str, draft_path: str | None, options: LoadOptions, self_test_model: str | None, checks_files: bool
) -> LoadOptions:
    """The options that pass the self-test, and with which the files crash no child process."""
    from .crash_check import check_model_file
    from .self_test import passing_options

    options = passing_options(options, self_test_model or path)
    if checks_files:
        for file in {path, draft_path or path}:
            if os.path.isfile(file) and not (self_test_model and os.path.samefile(file, self_test_model)):
                check_model_file(file, options)
    return options


def _warn_without_gpu(options: LoadOptions) -> None:
    from .llama import supports_gpu

    if options.n_gpu_layers > 0 and not supports_gpu():
        log.warning(
            "--gpu-layers %d has no effect: llama.cpp is built for the CPU alone; the README says how to build it",
            options.n_gpu_layers,
        )


def _state_files(folder: Path, key: str, max_bytes: int) -> StateFiles:
    try:
        return StateFiles(folder, key, max_bytes)
    except OSError as error:
        raise EngineError(f"prefixes cannot be saved in {str(folder)!r}: {error.strerror or error}") from error
