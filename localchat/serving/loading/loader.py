"""How a model is loaded: from its file and the options to an engine process."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import NO_MEMORY, OutOfResources, out_of_resources
from ..core.model_options import SETTINGS, ModelOptions
from ..core.server_options import Options
from ..engine.process import EngineProcess
from ..engine.tuning import has_matrix_instructions
from ..engine.values import EngineDied, EngineError, EngineStopped, LoadOptions
from ..models.gguf import GGUFError, read_header
from ..models.memory import NotEnoughMemory, OtherModels
from ..models.model_file import ModelFile, projector_of

if TYPE_CHECKING:
    from ..chat.model import Model

log = logging.getLogger("localchat.server")

# What llama.cpp writes, or aborts with, if an allocation fails.
_NO_MEMORY_TEXTS = ("std::bad_alloc", "mem_buffer != NULL")


class Loader:
    """Loads models, one at a time. Each runs in an engine process of its own."""

    def __init__(self, options: Options) -> None:
        self._options = options
        # Guards the next two, so that `close` finds every process that starts.
        self._lock = threading.Lock()
        self._is_closed = False
        self._process: EngineProcess | None = None  # The last one that was started.

    def close(self) -> None:
        """End the engine process that loads, and load no more. Any thread may call it."""
        with self._lock:
            self._is_closed, process = True, self._process
        if process is not None:
            process.close()

    def load(self, file: ModelFile, others: OtherModels, on_progress: Callable[[float], None]) -> Model:
        """Load a model beside others, and report the loaded share, from 0 to 1.

        Raises NotEnoughMemory; EngineStopped if `close` was called; EngineError or OutOfResources, with the reason in
        one line, for every other error.
        """
        options = replace(load_options(file, self._options), others=others)
        try:
            engine = self._started(file.path, options, on_progress)
            try:
                return self._model(file, engine)
            except BaseException:
                engine.close()
                raise
        except (EngineStopped, NotEnoughMemory):
            raise
        except BaseException as error:
            reason = reason_of(file.path, error)
            if out_of_resources(error):
                raise OutOfResources(reason) from error
            failure = EngineError(reason)
            failure.is_transient = getattr(error, "is_transient", False)
            raise failure from error

    def _started(self, path: Path, options: LoadOptions, on_progress: Callable[[float], None]) -> EngineProcess:
        """An engine process that has loaded the model.

        If it crashes and this CPU announces matrix instructions, a second one is started without them.
        """
        try:
            return self._start(path, options, on_progress).wait_until_loaded()
        except EngineDied as error:
            if not (may_be_bad_instruction(error) and options.use_extra_bufts and has_matrix_instructions()):
                raise
            on_progress(0)
            log.warning(
                "this build of llama.cpp crashes at this CPU's matrix instructions (AMX; %s), so they are off; "
                "for full speed rebuild it as docs/install.md says",
                error.killed_by,
            )
        options = replace(options, use_extra_bufts=False)
        return self._start(path, options, on_progress).wait_until_loaded()

    def _start(self, path: Path, options: LoadOptions, on_progress: Callable[[float], None]) -> EngineProcess:
        with self._lock:
            if self._is_closed:
                raise EngineStopped
            self._process = EngineProcess(str(path), options, on_progress)
            return self._process

    def _model(self, file: ModelFile, engine: EngineProcess) -> Model:
        # Imported here, after the load: meanwhile, the main thread of a server that starts has imported it.
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


def load_options(file: ModelFile, options: Options) -> LoadOptions:
    """How the engine process loads a model.

    Settings of a mapping file apply where an option has its default, also if the command line says so.
    """
    values = {f.name: getattr(options, f.name) for f in fields(ModelOptions)}
    for setting, f in SETTINGS.items():
        if values[f.name] == f.default:
            values[f.name] = file.settings.get(setting, f.default)
    projector = projector_of(file) if options.finds_mmproj else None
    values["adapters"], values["workers"] = file.adapters, file.workers
    values["mmproj"] = None if projector is None else str(projector)
    return LoadOptions(**values)


def template_of(file: ModelFile) -> str | None:
    """The chat template that a mapping file sets; None: that of the model. Raises OSError or ValueError."""
    path = file.settings.get("template")
    return None if path is None else Path(path).read_text(encoding="utf-8")


def may_be_bad_instruction(error: EngineDied) -> bool:
    """Whether the process may have died of an instruction that the CPU does not execute.

    SIGKILL has another cause: the system ends a process that takes too much memory.
    """
    return error.killed_by not in (None, "SIGKILL")


def reason_of(path: Path, error: BaseException) -> str:
    """Why a model file cannot be loaded, in one line without its path."""
    # If the header has an error, this message is clearer than that of llama.cpp.
    try:
        read_header(path)
    except GGUFError as header_error:
        return header_error.problem
    except (OSError, MemoryError) as header_error:
        error = header_error
    error = out_of_resources(error) or error
    # Some errors, such as the import error of numpy, have many lines. The last one names the cause.
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = lines[-1] if lines else type(error).__name__
    if isinstance(error, EngineError) and any(text in reason for text in _NO_MEMORY_TEXTS):
        return NO_MEMORY
    if isinstance(error, EngineDied) and may_be_bad_instruction(error):
        if error.killed_by in ("SIGILL", "exception 0xC000001D"):
            return f"{reason}: llama.cpp was built for another CPU; build it on this machine (docs/install.md)"
        return f"{reason}: the file is damaged, or this build of llama.cpp does not support it; download it again"
    return reason
