"""Loads the model on a separate thread, while the server responds with 503 and Retry-After."""

from __future__ import annotations

import argparse
import errno
import gc
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ..engine import EngineDied, EngineStopped, Front, LoadOptions
from ..models.catalog import ModelFile
from ..models.gguf import GGUFError, read_header
from .logs import NO_MEMORY, report_failure
from .start_block import LoadProgress, report_ready

if TYPE_CHECKING:
    from ..chat.model import Model
    from ..chat.service import Service

# The engine process loads the model while this process imports the modules of chat/, which takes as long.

log = logging.getLogger("localchat.server")


class Loader(threading.Thread):
    """Starts the engine process at once, and passes the loaded model to the service of `serve`.

    If the model cannot be loaded, `has_failed` is set and `on_failure` is called.
    """

    def __init__(self, file: ModelFile, options: argparse.Namespace) -> None:
        super().__init__(name="localchat-loader", daemon=True)
        self.has_failed = False
        self._file = file
        self._options = options
        self._progress = LoadProgress(file.name, options.log_format)
        self._front = Front(str(file.path), load_options(options), self._show)
        self._service: Service | None = None
        self._url = ""
        self._on_failure: Callable[[], None] = lambda: None
        # Set when the server has been made, or has failed.
        self._has_server = threading.Event()
        self.start()

    def serve(self, service: Service, url: str, on_failure: Callable[[], None]) -> None:
        """Serve the model by `service`; `url` is the base URL for clients."""
        self._service, self._url, self._on_failure = service, url, on_failure
        self._has_server.set()

    def close(self) -> None:
        """End the engine process, also one that still loads."""
        self._front.close()
        self._has_server.set()
        self.join()

    def run(self) -> None:
        try:
            self._front.start()
            self._has_server.wait()
            if self._service is None:
                return
            model = self._model()
        except EngineStopped:
            return  # The server closes.
        except Exception as error:
            self.has_failed = True
            self._progress.clear()
            log.debug("loading failed", exc_info=True)
            report_failure(f"cannot load {reason_of(self._file.path, error)}")
            self._has_server.wait()
            self._on_failure()
            return
        # The existing objects live as long as the process. A collection of all of them would delay all requests.
        gc.freeze()
        self._service.ready(model)
        self._progress.clear()
        report_ready(self._file, self._front.facts, self._url, self._progress.seconds, self._options.log_format)

    def _model(self) -> Model:
        from ..chat.model import Model

        options = self._options
        return Model(
            self._file.name,
            self._front,
            max_tokens=options.max_tokens,
            defaults={name: value for given in options.default for name, value in given.items()},
            keep_tools=options.keep_tools,
            reasoning_budget=options.reasoning_budget,
            reasoning_message=options.reasoning_budget_message,
        )

    def _show(self, done: float) -> None:
        if self._service is not None:
            self._service.progress = done
        self._progress.show(done)


def load_options(options: argparse.Namespace) -> LoadOptions:
    """How the engine process loads a model, by the options of the command line."""
    return LoadOptions(
        n_ctx=options.ctx,
        n_parallel=options.parallel,
        n_gpu_layers=options.gpu_layers,
        n_threads=options.threads,
        speculates=not options.no_speculation,
        draft_path=options.draft,
        max_queue=options.queue,
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
    reason = _last_line(error)
    if isinstance(error, EngineDied) and error.killed_by not in (None, "SIGKILL"):
        reason += ": the file is damaged, or this build of llama.cpp does not support it; download it again"
    return f"{path}: {reason}"


def _last_line(error: BaseException) -> str:
    """The last line of an error, such as the import error of numpy, which has many lines and ends with the cause."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return NO_MEMORY
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
