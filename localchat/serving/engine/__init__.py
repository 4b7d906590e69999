"""The engine runs many sequences at once on one model: token ids go in, tokens and text come out.

Importing this package does not import llama_cpp; `load` does.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Union

from ..core.params import GenerationParams
from .engine import Engine
from .front import Front
from .kv_cache import DEFAULT_SNAPSHOT_BYTES
from .run import RequestRun
from .tuning import GPU
from .values import (
    Cancelled,
    Constraint,
    EngineDied,
    EngineError,
    EngineStopped,
    GenerationRequest,
    Histogram,
    LoadOptions,
    ModelFacts,
    NotEnoughMemory,
    WrongDraftModel,
)

__all__ = [
    "AnyEngine",
    "Cancelled",
    "Constraint",
    "Engine",
    "EngineDied",
    "EngineError",
    "EngineStopped",
    "Front",
    "GenerationRequest",
    "Histogram",
    "LoadOptions",
    "ModelFacts",
    "NotEnoughMemory",
    "RequestRun",
    "WrongDraftModel",
    "load",
]

log = logging.getLogger("localchat.engine")

# What the rest of the server uses: an engine in this process, or the front of one in a child process.
AnyEngine = Union[Engine, Front]

# The lengths of the prompts that warm up an engine. On a GPU, where each size of batch has its own kernels, one fills a
# pass of llama.cpp. Then a step has two rows, and the last one has a single row.
_WARM_UP_TOKENS = {True: (512, 1), False: (8, 1)}


def load(
    path: str,
    options: LoadOptions,
    *,
    progress: Callable[[float], None] | None = None,
    after_step: Callable[[], None] = lambda: None,
) -> Engine:
    """Loads a GGUF model and starts its engine thread.

    Snapshots of a recurrent model take at most a quarter of the memory that is free when the model is loaded.

    Args:
        path: The model.
        options: The size of the context, threads and devices, and a draft model.
        progress: Called with the loaded share of the model, 0 to 1.
        after_step: As in `Engine`.

    Raises:
        WrongDraftModel: the draft model has another vocabulary, or a KV cache that cannot be truncated.
        EngineError: llama-cpp-python is missing or unusable here, or a model cannot be loaded.
    """
    from .llama import load_backend, load_draft_backend, supports_gpu

    if (options.n_gpu_layers or 0) > 0 and not supports_gpu():
        log.warning(
            "--gpu-layers %d has no effect: llama.cpp is built for the CPU alone; docs/install.md says how to build it",
            options.n_gpu_layers,
        )
    backend = load_backend(path, options, progress)
    try:
        draft_backend = load_draft_backend(options.draft_path, options, backend) if options.draft_path else None
    except BaseException:
        backend.close()
        raise
    facts, n_snapshot_bytes = backend.facts, DEFAULT_SNAPSHOT_BYTES
    if facts.n_free_bytes is not None:
        n_snapshot_bytes = min(n_snapshot_bytes, facts.n_free_bytes // 4)
    engine = Engine(
        backend,
        max_queue=options.max_queue,
        draft_backend=draft_backend,
        max_snapshot_bytes=n_snapshot_bytes,
        after_step=after_step,
    )
    if not facts.is_non_causal:
        n_most = min(facts.n_ctx, facts.n_cells // 2) - 2
        engine.warm_up(
            [
                GenerationRequest((0,) * min(n_tokens, n_most), GenerationParams(max_tokens=2 + i, ignore_eos=True))
                for i, n_tokens in enumerate(_WARM_UP_TOKENS[backend.limits.tuning is GPU])
            ]
        )
        threading.Thread(target=backend.prepare_constraints, name="localchat-masks", daemon=True).start()
    return engine.start()
