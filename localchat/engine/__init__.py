"""Many generations at once on one model: submit token ids, iterate text.

Importing this does not import llama_cpp; `load` does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Optional

from .embedding import Embedder, InputTooLong, normalised, pooling_of
from .engine import Engine, EngineStats, SequenceStats
from .generation import Generation
from .histogram import Histogram, HistogramValues
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
    OutputToken,
    Progress,
    PromptTooLong,
    QueueFull,
    Sampling,
    ThinkingLimit,
    TokenLogprob,
    WritesNoText,
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
    "Generation",
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
    "QueueFull",
    "Sampling",
    "SequenceStats",
    "ThinkingLimit",
    "TokenLogprob",
    "WritesNoText",
    "load",
    "normalised",
    "pooling_of",
]

log = logging.getLogger("localchat.engine")


def load(
    path: str,
    options: LoadOptions,
    *,
    proof_model: Optional[str] = None,
    max_queue: int = 256,
    progress: Optional[Callable[[float], None]] = None,
) -> Engine:
    """Loads a GGUF model and starts its engine thread.

    `proof_model` is a small quantised model on which a child process first tries this build of
    llama.cpp (see proof.py); without one the model itself is used.

    Raises:
        EngineError: llama-cpp-python is missing or unusable here, or the model cannot be loaded.
    """
    from .proof import proven

    options = proven(options, proof_model or path)
    from .llama import load_backend, supports_gpu

    if not supports_gpu():
        log.warning("this build of llama.cpp uses the CPU alone: the README says how to build it for a GPU")
    return Engine(load_backend(path, options, progress), max_queue=max_queue).start()
