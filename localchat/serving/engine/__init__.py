"""The engine runs many sequences at once on one model: token ids go in, tokens and text come out.

Importing this package does not import llama_cpp; `load` does.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from ..core.events import OutputToken, TokenLogprob
from ..core.params import GenerationParams
from ..core.server_state import SequenceStats
from .embedding import Embedder, InputTooLong, is_non_causal, normalised, pooling_of
from .engine import Engine
from .front import Front
from .kv_cache import DEFAULT_SNAPSHOT_BYTES
from .messages import AnyEngine, LoadRequest
from .run import RequestRun
from .stats import EngineStats, Histogram, HistogramValues
from .tuning import GPU
from .values import (
    Cancelled,
    Constraint,
    Delta,
    EngineDied,
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
    "AnyEngine",
    "Cancelled",
    "Constraint",
    "Delta",
    "Embedder",
    "Engine",
    "EngineDied",
    "EngineError",
    "EngineStats",
    "EngineStopped",
    "Finish",
    "Front",
    "GenerationRequest",
    "Histogram",
    "HistogramValues",
    "InputTooLong",
    "InvalidGrammar",
    "InvalidToken",
    "LoadOptions",
    "LoadRequest",
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

# The lengths of the prompts that warm up an engine. On a GPU, where each size of batch has its own kernels, one fills a
# pass of llama.cpp. Then a step has two rows, and the last one has a single row.
_WARM_UP_TOKENS = {True: (512, 1), False: (8, 1)}


def load(
    path: str,
    options: LoadOptions,
    *,
    draft_path: str | None = None,
    max_snapshot_bytes: int = DEFAULT_SNAPSHOT_BYTES,
    max_queue: int = 256,
    progress: Callable[[float], None] | None = None,
    after_step: Callable[[], None] = lambda: None,
) -> Engine:
    """Loads a GGUF model and starts its engine thread.

    Args:
        path: The model.
        options: The size of the context, threads and devices.
        draft_path: A smaller model of the same vocabulary for speculative decoding.
        max_snapshot_bytes: The limit of snapshots of a recurrent model in memory. It is also at most a quarter of the
            memory that is free when the model is loaded.
        max_queue: The limit of waiting sequences.
        progress: Called with the loaded share of the model, 0 to 1.
        after_step: As in `Engine`.

    Raises:
        WrongDraftModel: the draft model has another vocabulary, or a KV cache that cannot be truncated.
        EngineError: llama-cpp-python is missing or unusable here, or a model cannot be loaded.
    """
    from .llama import load_backend, load_draft_backend

    _warn_without_gpu(options)
    backend = load_backend(path, options, progress)
    try:
        draft_backend = None if draft_path is None else load_draft_backend(draft_path, options, backend)
    except BaseException:
        backend.close()
        raise
    free = backend.facts.resources.free if backend.facts.resources else None
    if free is not None:
        max_snapshot_bytes = min(max_snapshot_bytes, free // 4)
    engine = Engine(
        backend,
        max_queue=max_queue,
        draft_backend=draft_backend,
        max_snapshot_bytes=max_snapshot_bytes,
        after_step=after_step,
    )
    if not is_non_causal(backend.facts.metadata):
        n_most = min(backend.facts.n_ctx, backend.facts.n_cells // 2) - 2
        engine.warm_up(
            [
                GenerationRequest((0,) * min(n_tokens, n_most), GenerationParams(max_tokens=2 + i, ignore_eos=True))
                for i, n_tokens in enumerate(_WARM_UP_TOKENS[backend.limits.tuning is GPU])
            ]
        )
    if not is_non_causal(backend.facts.metadata):
        threading.Thread(target=backend.prepare_constraints, name="localchat-masks", daemon=True).start()
    return engine.start()


def _warn_without_gpu(options: LoadOptions) -> None:
    from .llama import supports_gpu

    if options.n_gpu_layers > 0 and not supports_gpu():
        log.warning(
            "--gpu-layers %d has no effect: llama.cpp is built for the CPU alone; docs/install.md says how to build it",
            options.n_gpu_layers,
        )
