"""What the log says about loads: their progress and their outcome, and the report at the start of the server."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import shlex
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..core.errors import InferenceError
from ..core.server_options import Options
from ..models.memory import gigabytes
from ..models.model_file import DEMO_PATH, ModelFile, printable_name
from .stderr_log import report, report_failure

if TYPE_CHECKING:
    from ..chat.model import Model

log = logging.getLogger("localchat.server")

# Where the client looks for a server without another URL.
DEFAULT_URL = "http://127.0.0.1:8080/v1"
_BAR_WIDTH = 30
_CLEAR = "\r\x1b[K"  # Clears the line of the terminal.
_PAUSE_S = 10.0  # Seconds between two lines about the progress of a load.


class LoadLog:
    """Lines in the log about the model that loads.

    The thread of the models calls the methods without a lock; any thread may call `on_progress`.
    """

    def __init__(self) -> None:
        self._began_at = self._logged_at = 0.0

    def on_begin(self) -> None:
        self._began_at = self._logged_at = time.monotonic()

    def on_progress(self, file: ModelFile, share: float) -> None:
        """The loaded share is now this, from 0 to 1."""
        if time.monotonic() - self._logged_at > _PAUSE_S:
            self._logged_at = time.monotonic()
            log.info("loading %s: %d %% after %.0f s", file.name, share * 100, self._seconds)

    def on_loaded(self, file: ModelFile, model: Model) -> None:
        """The model is READY."""
        log.info("the model %s is ready, in %.1f s", file.name, self._seconds)

    def on_failure(self, file: ModelFile, error: InferenceError) -> None:
        """The model is FAILED."""
        log.error("cannot load %s: %s", printable_name(str(file.path)), error)

    @property
    def _seconds(self) -> float:
        """The time since the begin of the load."""
        return time.monotonic() - self._began_at


class StartLog(LoadLog):
    """The log of a server that starts.

    On a terminal a bar shows the progress of the first model. A report follows, or a failure, which ends the server.
    After that, this is an ordinary log, whose lines a bar would disturb.
    """

    def __init__(self, options: Options) -> None:
        super().__init__()
        self.has_failed = False
        self._options = options
        self._is_starting = True
        is_terminal = sys.stderr is not None and not sys.stderr.closed and sys.stderr.isatty()
        self._has_bar = is_terminal and os.environ.get("TERM") != "dumb"
        self._shown_percent = 0  # The bar that is on the terminal; 0: none.
        # Set when the port is open. The model may be loaded before that.
        self._is_open = threading.Event()
        self._url = ""
        self._has_several_models = False  # A command of the client has to name one, once two are loaded.
        self._shut_down: Callable[[], None] = lambda: None

    def on_open(self, url: str, shut_down: Callable[[], None], *, has_several_models: bool = False) -> None:
        """The server is open for clients at this URL. `shut_down` ends it, if the first model cannot be loaded."""
        self._url = url
        self._has_several_models = has_several_models
        self._shut_down = shut_down
        self._is_open.set()

    def on_progress(self, file: ModelFile, share: float) -> None:
        if not (self._is_starting and self._has_bar):
            super().on_progress(file, share)
        elif (percent := int(share * 100)) != self._shown_percent:
            self._shown_percent = percent
            bar = ("#" * round(share * _BAR_WIDTH)).ljust(_BAR_WIDTH, ".")
            _write(f"\rloading {file.name} [{bar}] {percent:3} %" if percent else _CLEAR)

    def on_loaded(self, file: ModelFile, model: Model) -> None:
        if not self._is_starting:
            super().on_loaded(file, model)
            return
        self._end_start()
        # The existing objects live as long as the process. A collection of all of them would delay all requests.
        gc.freeze()
        self._report(file, model)

    def on_failure(self, file: ModelFile, error: InferenceError) -> None:
        if not self._is_starting:
            super().on_failure(file, error)
            return
        self._end_start()
        self.has_failed = True
        report_failure(f"cannot load {printable_name(str(file.path))}: {error}")
        self._shut_down()

    def _end_start(self) -> None:
        if self._shown_percent > 0:
            _write(_CLEAR)
        self._is_starting = False
        self._is_open.wait()

    def _report(self, file: ModelFile, model: Model) -> None:
        facts = model.engine.facts
        size, context = gigabytes(facts.n_bytes), gigabytes(facts.n_context_bytes)
        cells = f"{facts.n_parallel} requests at once; KV cache of {facts.n_cells} tokens"
        free = "" if facts.n_free_bytes is None else f"; {gigabytes(facts.n_free_bytes)} are free"
        total = gigabytes(facts.n_bytes + facts.n_context_bytes)
        report(f"model    {facts.description}, {facts.n_params / 1e6:,.0f} M parameters, {size}: {file.path}")
        if file.path == DEMO_PATH:
            report("         a tiny one for a first try; docs/models.md lists others: make run GET=Qwen/Qwen3-4B-GGUF")
        if facts.modalities:
            report(f"takes    {', '.join(('text', *facts.modalities))}, by {facts.projector}")
        if not model.has_template:
            report("template none in the file: chats use ChatML; a mapping file names another (docs/models.md)")
        report(f"context  {facts.n_ctx} tokens for each request, {cells}")
        report(f"memory   {total} ({size} weights, {context} context){free}")
        report(f"device   {facts.device}; CPU threads: {facts.n_threads}")
        if facts.workers:
            report(f"workers  {', '.join(f'{endpoint} has {n} layers' for endpoint, n in facts.workers)}")
        adapters = [f"{adapter.name} ({adapter.problem or f'scale {adapter.scale:g}'})" for adapter in facts.adapters]
        if adapters:
            report(f"adapters {', '.join(adapters)}")
        report(f"loaded   in {self._seconds:.1f} s")
        report(f"localchat is ready: {file.name} at {self._url} (Ctrl-C ends it)")
        if self._url.startswith("http"):
            if self._options.has_page:
                report(f"browser  {self._url.removesuffix('/v1')}")
            report(f'terminal {self._client_command(file)} "What is your name?"')

    def _client_command(self, file: ModelFile) -> str:
        """The command that sends a prompt to this model."""
        words = [_shown_path(sys.executable or "python"), "-m", "localchat"]
        if self._url != DEFAULT_URL:
            words += ["--base-url", self._url]
        if self._has_several_models:
            words += ["--model", file.name]
        if self._options.api_keys:
            words += ["--api-key", "KEY"]
        return shlex.join(words)


def _shown_path(path: str) -> str:
    """A path that can be typed in the working directory."""
    folder = os.getcwd() + os.sep
    return path.removeprefix(folder) if os.sep in path.removeprefix(folder) else path


def _write(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # The terminal may be gone, which does not end the load.
        print(text, end="", file=sys.stderr, flush=True)
