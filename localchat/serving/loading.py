"""Loads the model on a thread of its own, while the server responds with 503 and how long it will take."""

from __future__ import annotations

import argparse
import errno
import logging
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ..engine import LoadOptions, load
from ..models.catalog import DEMO_PATH, ModelFile
from ..models.gguf import GGUFError, read_header
from .exchange import NO_MEMORY
from .options import DEFAULT_CACHE_MB

if TYPE_CHECKING:  # It needs jinja2, and the command first checks whether that is installed.
    from ..generation.model import Model
    from ..generation.service import Service

log = logging.getLogger("localchat.server")


class Loader(threading.Thread):
    """Gives the service its model and calls `on_ready`; without one it sets `has_failed` and calls `on_failure`.

    `url` is where clients reach the server.
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
        self._shown_percent = -1

    def run(self) -> None:
        try:
            self._service.ready(self._load())
        except Exception as error:
            self.has_failed = True
            self._clear_line()
            log.debug("loading failed", exc_info=True)
            complain(f"cannot load {_problem_of(self._file.path) or f'{self._file.path}: {_last_line(error)}'}")
            self._on_failure()
            return
        self._on_ready()
        self._clear_line()
        say(f"localchat is ready: {self._file.name} at {self._url} (Ctrl-C ends it)")
        if self._url.startswith("http"):
            say(f'try: python -m localchat --base-url {self._url} "What is your name?"')

    def _load(self) -> Model:
        from ..generation.model import Model
        from ..generation.reasoning import ReasoningDefaults

        options = self._options
        load_options = LoadOptions(
            n_ctx=options.ctx,
            n_slots=options.parallel,
            n_gpu_layers=options.gpu_layers,
            n_threads=options.threads,
            speculates=not options.no_speculation,
        )
        engine = load(
            str(self._file.path),
            load_options,
            draft_path=options.draft,
            cache_folder=options.cache_dir,
            cache_bytes=(options.cache_size or DEFAULT_CACHE_MB) << 20,
            max_copied_bytes=options.cache_ram << 20,
            proof_model=str(DEMO_PATH),
            tries_files=True,
            max_queue=options.queue,
            progress=self._show,
        )
        try:
            return Model(
                self._file.name,
                engine,
                max_tokens=options.max_tokens,
                defaults={name: value for given in options.default for name, value in given.items()},
                keep_tools=options.keep_tools,
                thinking=ReasoningDefaults(options.reasoning_budget, options.reasoning_budget_message),
            )
        except BaseException:
            engine.close()
            raise

    def _show(self, done: float) -> None:
        """Show progress on a terminal. A service may have no stderr at all."""
        self._service.progress = done
        percent = int(done * 100)
        if percent != self._shown_percent and sys.stderr is not None and sys.stderr.isatty():
            self._shown_percent = percent
            print(f"\rloading {self._file.name}: {percent} %", end="", file=sys.stderr, flush=True)

    def _clear_line(self) -> None:
        if self._shown_percent >= 0:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _problem_of(path: Path) -> str:
    """What is wrong with a model file by its header, in plainer words than llama.cpp's; "" for nothing."""
    try:
        read_header(path)
    except GGUFError as error:
        return str(error)
    except (OSError, MemoryError) as error:
        return f"{path}: {_last_line(error)}"
    return ""


def _last_line(error: BaseException) -> str:
    """The cause in a line; numpy explains at length why it could not be loaded, and names the cause last."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return NO_MEMORY
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def say(message: str) -> None:
    """Write a line for the person who started the server."""
    print(message, file=sys.stderr, flush=True)


def complain(message: str) -> int:
    """Write why the server cannot start; the exit status for it."""
    say(f"localchat.server: {message}")
    return 1
