"""How a model is loaded: from options to an engine process, with the messages at the start of the server."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import shlex
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import OutOfResources, out_of_resources
from ..core.model_options import SETTINGS, ModelOptions
from ..engine.process import EngineProcess
from ..engine.tuning import has_matrix_instructions
from ..engine.values import EngineDied, EngineError, EngineStopped, LoadOptions, ModelFacts, WorkerMissing
from ..models.gguf import GGUFError, read_header
from ..models.memory import NotEnoughMemory, OtherModels, gigabytes
from ..models.model_file import ModelFile, projector_of
from .logs import report, report_failure
from .options import Options
from .service import ServedModel

if TYPE_CHECKING:
    from ..chat.model import Model

# `Loader._model` imports chat/ while the engine process loads the model: both take about as long.

log = logging.getLogger("localchat.server")

_BAR_WIDTH = 30
_LOG_PAUSE_S = 10.0  # Seconds between log lines of the progress, if stderr is not a terminal.


class Loader:
    """Loads models for a Service. The engine process of the first one starts at once."""

    def __init__(self, file: ModelFile, options: Options) -> None:
        # Set if the first model cannot be loaded. Then `on_failure` is called, which ends the server.
        self.has_failed = False
        self.on_failure: Callable[[], None] = lambda: None
        self.url = ""  # The base URL for clients, for the report.
        self._options = options
        self._is_first = True
        self._is_closed = False
        self._loading: _Start | None = _Start(file, load_options(file, options), has_bar=True)  # The model that loads.

    def close(self) -> None:
        """End the engine process that loads, and load no more."""
        self._is_closed, loading = True, self._loading
        if loading is not None:
            loading.close()

    def load(self, served: ServedModel, others: OtherModels) -> None:
        """Load a model. The first call is for the model with which the loader was made. Raises EngineError or
        OutOfResources, whose message has the path and the reason in one line; NotEnoughMemory, except for the first
        model; EngineStopped if `close` was called."""
        file, is_first, self._is_first = served.file, self._is_first, False
        options = replace(load_options(file, self._options), others=others)
        # A bar of a later model would disturb the log.
        start = self._loading = self._loading or _Start(file, options, has_bar=False)
        start.served = served
        if self._is_closed:  # Before it could see this model.
            start.close()
        try:
            engine = start.engine.result()
            # Here, since clients send requests as soon as the model is reported to be ready.
            served.model = self._model(file, engine)
        except BaseException as error:
            start.close()
            if isinstance(error, EngineStopped) or (isinstance(error, NotEnoughMemory) and not is_first):
                raise
            reason = reason_of(file.path, error)
            if is_first:
                self.has_failed = True
                report_failure(f"cannot load {reason}")
                self.on_failure()
            else:
                log.error("cannot load %s", reason)
            if isinstance(error, (EngineDied, WorkerMissing)):  # They are transient, so the service loads again.
                raise type(error)(reason) from error
            raise (OutOfResources if out_of_resources(error) else EngineError)(reason) from error
        finally:
            self._loading = None
        if is_first:
            # The existing objects live as long as the process. A collection of all of them would delay all requests.
            gc.freeze()
            self._report(file, engine.facts, start.seconds)
        else:
            log.info("the model %s is ready, in %.1f s", file.name, start.seconds)

    def _model(self, file: ModelFile, engine: EngineProcess) -> Model:
        from ..chat.model import Model

        options = self._options
        return Model(
            file.name,
            engine,
            max_tokens=options.max_tokens,
            defaults={**file.settings.get("sampling", {}), **options.defaults},
            chat_template=template_of(file),
            keep_tools=options.keep_tools,
            reasoning_budget=options.reasoning_budget,
            reasoning_message=options.reasoning_budget_message,
        )

    def _report(self, file: ModelFile, facts: ModelFacts, seconds: float) -> None:
        size, context = gigabytes(facts.n_bytes), gigabytes(facts.n_context_bytes)
        cells = f"KV cache of {facts.n_cells} for {facts.n_parallel} requests at once"
        free = "" if facts.n_free_bytes is None else f"; {gigabytes(facts.n_free_bytes)} are free"
        total = gigabytes(facts.n_bytes + facts.n_context_bytes)
        report(f"model    {facts.description}, {facts.n_params / 1e6:,.0f} M parameters, {size}: {file.path}")
        if facts.modalities:
            report(f"takes    {', '.join(('text', *facts.modalities))}, by {load_options(file, self._options).mmproj}")
        report(f"context  {facts.n_ctx} tokens for each request; {cells}")
        report(f"memory   {total} ({size} weights, {context} context){free}")
        report(f"device   {facts.device}; CPU threads: {facts.n_threads}")
        if facts.workers:
            report(f"workers  {', '.join(f'{endpoint} has {n} layers' for endpoint, n in facts.workers)}")
        if adapters := [f"{one.name} ({one.problem or f'scale {one.scale:g}'})" for one in facts.adapters]:
            report(f"adapters {', '.join(adapters)}")
        report(f"loaded   in {seconds:.1f} s")
        report(f"localchat is ready: {file.name} at {self.url} (Ctrl-C ends it)")
        if self.url.startswith("http"):
            python = shlex.quote(sys.executable or "python")
            report(f'try: {python} -m localchat --base-url {self.url} "What is your name?"')


class _Start:
    """An engine process that starts on a thread. Its progress is a bar on a terminal, otherwise lines in the log."""

    def __init__(self, file: ModelFile, options: LoadOptions, has_bar: bool) -> None:
        self.served: ServedModel | None = None
        self._file, self._options = file, options
        is_terminal = sys.stderr is not None and not sys.stderr.closed and sys.stderr.isatty()
        self._is_bar = has_bar and is_terminal and os.environ.get("TERM") != "dumb"
        self._began_at = self._logged_at = time.monotonic()
        self._shown_percent = -1
        self._is_closed = False
        self._process: EngineProcess | None = None
        threads = ThreadPoolExecutor(1)
        self.engine = threads.submit(self._start)
        threads.shutdown(wait=False)

    def _start(self) -> EngineProcess:
        """Start the process, and wait until the model is loaded. If the process crashes and this CPU announces matrix
        instructions, a second one is started without them. Raises what `load` raises, and OSError."""
        options = self._options
        while True:
            process = self._process = EngineProcess(str(self._file.path), options, self._show)
            if self._is_closed:  # `close` was called meanwhile, before it could see this process.
                process.stop()
            try:
                return process.wait_until_loaded()
            except EngineDied as error:
                # SIGKILL ends a process that takes much memory.
                is_crash = error.killed_by not in (None, "SIGKILL")
                if not (is_crash and options.use_extra_bufts and has_matrix_instructions()):
                    raise
                log.warning(
                    "this build of llama.cpp crashes at this CPU's matrix instructions (AMX; %s), so they are off; "
                    "for full speed rebuild it as docs/install.md says",
                    error.killed_by,
                )
                options = replace(options, use_extra_bufts=False)
            finally:
                if self._shown_percent >= 0:
                    self._write("\r\x1b[K")

    def close(self) -> None:
        """End the process, and wait until it has ended."""
        self._is_closed = True
        if self._process is not None:
            self._process.close()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began_at

    def _show(self, done: float) -> None:
        """Show the progress, from 0 to 1."""
        if self.served is not None:
            self.served.progress = done
        percent = int(done * 100)
        if self._is_bar and percent != self._shown_percent:
            self._shown_percent = percent
            bar = ("#" * round(done * _BAR_WIDTH)).ljust(_BAR_WIDTH, ".")
            self._write(f"\rloading {self._file.name} [{bar}] {percent:3} %")
        elif not self._is_bar and time.monotonic() - self._logged_at > _LOG_PAUSE_S:
            self._logged_at = time.monotonic()
            log.info("loading %s: %d %% after %.0f s", self._file.name, percent, self.seconds)

    @staticmethod
    def _write(text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # The terminal may be gone, which does not end the load.
            print(text, end="", file=sys.stderr, flush=True)


def load_options(file: ModelFile, options: Options) -> LoadOptions:
    """How the engine process loads a model. Settings of a mapping file apply where an option has its default."""
    found = {f.name: getattr(options, f.name) for f in fields(ModelOptions)}
    for setting, f in SETTINGS.items():
        if found[f.name] == f.default:
            found[f.name] = file.settings.get(setting, f.default)
    projector = projector_of(file) if options.finds_mmproj else None
    found["adapters"], found["workers"] = file.adapters, file.workers
    found["mmproj"] = None if projector is None else str(projector)
    return LoadOptions(**found)


def template_of(file: ModelFile) -> str | None:
    """The chat template that a mapping file sets; None: that of the model. Raises OSError or ValueError."""
    path = file.settings.get("template")
    return None if path is None else Path(path).read_text(encoding="utf-8")


def reason_of(path: Path, error: BaseException) -> str:
    """Why a model file cannot be loaded, in one line."""
    # If the header has an error, this message is clearer than that of llama.cpp.
    try:
        read_header(path)
    except GGUFError as header_error:
        return str(header_error)
    except (OSError, MemoryError) as header_error:
        error = header_error
    error = out_of_resources(error) or error
    # Some errors, such as the import error of numpy, have many lines. The last one names the cause.
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = lines[-1] if lines else type(error).__name__
    killed_by = error.killed_by if isinstance(error, EngineDied) else None
    if killed_by in ("SIGILL", "exception 0xC000001D"):
        reason += ": llama.cpp was built for another CPU; build it on this machine (docs/install.md)"
    elif killed_by not in (None, "SIGKILL"):
        reason += ": the file is damaged, or this build of llama.cpp does not support it; download it again"
    return f"{path}: {reason}"
