"""Loads the model on a separate thread, while the server responds with 503 and Retry-After."""

from __future__ import annotations

import argparse
import errno
import gc
import logging
import threading
from collections.abc import Callable
from pathlib import Path

from ..chat.model import Model
from ..chat.reasoning import ReasoningDefaults
from ..chat.service import Service
from ..engine import Engine, LoadOptions, load
from ..models.catalog import DEMO_PATH, ModelFile
from ..models.gguf import GGUFError, read_header
from .logs import NO_MEMORY, report_failure
from .start_block import LoadProgress, report_ready

log = logging.getLogger("localchat.server")


class Loader(threading.Thread):
    """Loads the model, passes it to the service and calls `on_ready`.

    If the model cannot be loaded, `has_failed` is set and `on_failure` is called. `url` is the base URL for clients.
    """

    def __init__(
        self,
        service: Service,
        file: ModelFile,
        options: argparse.Namespace,
        url: str,
        *,
        on_ready: Callable[[], None],
        on_failure: Callable[[], None],
    ) -> None:
        super().__init__(name="localchat-loader", daemon=True)
        self.has_failed = False
        self._service = service
        self._file = file
        self._options = options
        self._url = url
        self._on_ready = on_ready
        self._on_failure = on_failure
        self._progress = LoadProgress(file.name, options.log_format)

    def run(self) -> None:
        try:
            model = self._load()
            # The existing objects live as long as the process. Exclude them from garbage collection, which would scan
            # all of them again and again while it holds the GIL.
            gc.freeze()
            self._service.ready(model)
        except Exception as error:
            self.has_failed = True
            self._progress.clear()
            log.debug("loading failed", exc_info=True)
            report_failure(f"cannot load {reason_of(self._file.path, error)}")
            self._on_failure()
            return
        self._on_ready()
        self._progress.clear()
        report_ready(self._file, model.engine.facts, self._url, self._progress.seconds, self._options.log_format)

    def _load(self) -> Model:
        options = self._options
        engine = load_engine(options, self._file, self._show)
        try:
            return Model(
                self._file.name,
                engine,
                max_tokens=options.max_tokens,
                defaults={name: value for given in options.default for name, value in given.items()},
                keep_tools=options.keep_tools,
                reasoning=ReasoningDefaults(options.reasoning_budget, options.reasoning_budget_message),
            )
        except BaseException:
            engine.close()
            raise

    def _show(self, done: float) -> None:
        self._service.progress = done
        self._progress.show(done)


def load_engine(options: argparse.Namespace, file: ModelFile, progress: Callable[[float], None]) -> Engine:
    """Load a model with the options of the command line, and start its engine.

    Raises:
        EngineError: The model cannot be loaded.
    """
    return load(
        str(file.path),
        LoadOptions(
            n_ctx=options.ctx,
            n_parallel=options.parallel,
            n_gpu_layers=options.gpu_layers,
            n_threads=options.threads,
            speculates=not options.no_speculation,
        ),
        draft_path=options.draft,
        max_snapshot_bytes=options.cache_ram << 20,
        self_test_model=str(DEMO_PATH),
        checks_files=True,
        max_queue=options.queue,
        progress=progress,
    )


def reason_of(path: Path, error: BaseException) -> str:
    """Why a model file cannot be loaded, in one line."""
    # If the header has an error, this message is clearer than that of llama.cpp.
    try:
        read_header(path)
    except GGUFError as header_error:
        return str(header_error)
    except (OSError, MemoryError) as header_error:
        error = header_error
    return f"{path}: {_last_line(error)}"


def _last_line(error: BaseException) -> str:
    """The last line of an error, such as the import error of numpy, which has many lines and ends with the cause."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return NO_MEMORY
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
