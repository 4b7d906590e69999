"""The engine runs many sequences at once on one model: token ids go in, tokens and text come out.

Importing this package does not import llama_cpp; `load` does.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from ..core.errors import out_of_resources
from ..core.params import GenerationParams
from .engine import Engine
from .tuning import GPU
from .values import EngineError, LoadOptions, SequenceRequest

log = logging.getLogger("localchat.engine")

# The tokens of the longer prompt that warms up an engine. On a GPU, where each size of batch has its own kernels, the
# prompt fills a pass of llama.cpp.
_WARM_UP_TOKENS, _WARM_UP_TOKENS_GPU = 8, 512

# How long to wait before the vocabulary is read for constraints: the model has been loaded for a request, which comes
# within this time and goes first.
_IDLE_S = 0.5


def load(
    path: str,
    options: LoadOptions,
    progress: Callable[[float], None] | None = None,
    send_due: Callable[[bool], None] = lambda at_once: None,
) -> Engine:
    """Start an engine thread, which loads a GGUF model.

    `progress` is called on that thread with the loaded share of the model, 0 to 1; for `send_due` see `Engine`.
    Raises EngineError if llama-cpp-python is missing or unusable here, or the model cannot be loaded.
    """
    loaded: Future[Engine] = Future()

    # OpenMP keeps a team of threads for each thread that computes, and shortens its waits when all teams have more
    # threads than there are cores. So the thread that computes the first tokens computes all others, too.
    def load_and_run() -> None:
        try:
            engine = _load(path, options, progress, send_due)
        except BaseException as error:
            loaded.set_exception(error)
        else:
            engine.run(lambda: loaded.set_result(engine))

    threading.Thread(target=load_and_run, name="localchat-engine").start()
    engine = loaded.result()
    if not engine.facts.is_non_causal:
        threading.Thread(target=_prepare_constraints, args=(engine,), name="localchat-masks", daemon=True).start()
    return engine


def _load(
    path: str, options: LoadOptions, progress: Callable[[float], None] | None, send_due: Callable[[bool], None]
) -> Engine:
    try:
        from .llama import built_for, load_backend, supports_gpu
    except (ImportError, OSError, RuntimeError) as error:
        raise out_of_resources(error) or EngineError(f"llama-cpp-python cannot be used here: {error}") from error

    if (options.n_gpu_layers or 0) > 0 and not supports_gpu():
        lacking = f"llama.cpp is built for {built_for()}; see docs/install.md, With a GPU"
        log.warning("--gpu-layers %d has no effect: %s", options.n_gpu_layers, lacking)
    backend = load_backend(path, options, progress)
    new_encoder = None
    if backend.projector is not None:
        from .media.encoder import MediaEncoder

        new_encoder = partial(MediaEncoder, backend.projector)
    engine = Engine(backend, new_encoder=new_encoder, send_due=send_due)
    if not backend.facts.is_non_causal:
        engine.warm_up(_warm_up_requests(engine))
    return engine


def _warm_up_requests(engine: Engine) -> list[SequenceRequest]:
    """Two sequences with which the engine computes three sizes of batches: prompts, two rows, and a single row."""
    facts = engine.facts
    n_tokens = _WARM_UP_TOKENS_GPU if engine.backend.limits.tuning is GPU else _WARM_UP_TOKENS
    n_most = min(facts.n_ctx, facts.n_cells // 2) - 2
    return [
        SequenceRequest((0,) * min(n_tokens, n_most), GenerationParams(max_tokens=2, ignore_eos=True)),
        SequenceRequest((0,), GenerationParams(max_tokens=3, ignore_eos=True)),
    ]


def _prepare_constraints(engine: Engine) -> None:
    """Let llguidance read the vocabulary when no request runs, since it holds the GIL for some tenths of a second."""
    while not engine.join(_IDLE_S):
        if not engine.stats().n_running:
            engine.backend.prepare_constraints()
            return
