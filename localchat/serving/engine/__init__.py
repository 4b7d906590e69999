"""The engine runs many sequences at once on one model: token ids go in, tokens and text come out.

Importing this package does not import llama_cpp; `load` does.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

from ..core.events import OutputToken, TokenLogprob
from ..core.server_state import SequenceStats
from .backend import Backend
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

# The size of a few dozen long conversations with a model of a few billion parameters.
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
        options: The size of the context, threads and devices.
        draft_path: A smaller model of the same vocabulary for speculative decoding.
        cache_folder: The folder of the disk cache; None for no disk cache.
        cache_bytes: The size limit of the disk cache.
        max_snapshot_bytes: The limit of snapshots of evicted prefixes in memory.
        self_test_model: A small quantised model for the self-test of llama.cpp (self_test.py); None to use `path`.
        checks_files: Whether files that this build has not loaded before are loaded in a child process first
            (crash_check.py).
        max_queue: The limit of waiting sequences.
        progress: Called with the loaded share of the model, 0 to 1.

    Raises:
        WrongDraftModel: the draft model has another vocabulary, or a KV cache that cannot be truncated.
        EngineError: llama-cpp-python is missing or unusable here, or a model cannot be loaded.
    """
    options = _checked_options(path, draft_path, options, self_test_model, checks_files)
    from .llama import load_backend, load_draft_backend

    _warn_without_gpu(options)
    backend = load_backend(path, options, progress)
    try:
        files = None if cache_folder is None else _state_files(cache_folder, backend, cache_bytes)
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


def _checked_options(
    path: str, draft_path: str | None, options: LoadOptions, self_test_model: str | None, checks_files: bool
) -> LoadOptions:
    """Runs the self-test, then checks the files. Returns the options that passed the self-test."""
    from .crash_check import check_model_file
    from .self_test import passing_options

    options = passing_options(options, self_test_model or path)
    if checks_files:
        for file in (path, draft_path):
            if file and os.path.isfile(file) and not (self_test_model and os.path.samefile(file, self_test_model)):
                check_model_file(file, options)
    return options


def _warn_without_gpu(options: LoadOptions) -> None:
    from .llama import supports_gpu

    if options.n_gpu_layers > 0 and not supports_gpu():
        log.warning(
            "--gpu-layers %d has no effect: llama.cpp is built for the CPU alone; docs/install.md says how to build it",
            options.n_gpu_layers,
        )


def _state_files(folder: Path, backend: Backend, max_bytes: int) -> StateFiles:
    try:
        return StateFiles(folder, backend.state_key(), max_bytes, can_truncate=backend.limits.can_truncate)
    except OSError as error:
        raise EngineError(f"prefixes cannot be saved in {str(folder)!r}: {error.strerror or error}") from error
