"""The front of an engine process: starts `python -m localchat.serving.engine`, and has the methods of its Engine.

This process never loads llama.cpp, so a native crash ends only the engine process. Its requests end with EngineDied,
which names the cause, and the next request starts it again. A process that cannot be started some times in a row is
not tried again for a while, or until the model file changes.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, TimeoutError
from dataclasses import replace
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, TypeVar

from ..core.server_state import SequenceStats
from .library_build import MATRIX_INSTRUCTIONS_OFF, rebuild_command
from .messages import LoadRequest
from .run import RequestRun
from .stats import FIRST_TOKEN_BOUNDS_S, EngineCounts, EngineStats, Histogram
from .token_texts import TokenTexts
from .values import Ended, EngineDied, EngineError, EngineStopped, GenerationRequest, ModelFacts

log = logging.getLogger("localchat.engine")

Result = TypeVar("Result")

# A process that fails to start this often in a row is not started again for this many seconds.
MAX_FAILED_STARTS, PAUSE_S = 3, 60.0
# How long an engine process may take to end: its last step, and the memory of its model.
_CLOSE_S = 10.0
# How long a process may live after its connection has ended.
_DEATH_S = 1.0
# The interval at which an embedding checks whether it has been cancelled.
_POLL_S = 0.05
# What the native libraries write before they end a process.
_CAUSE = re.compile(r"GGML_ASSERT\(.*\) failed|GGML_ABORT.*|what\(\):.*|fatal error.*|CUDA error.*")


class EngineProcess:
    """One engine process, from its start to its end."""

    def __init__(self, request: LoadRequest, on_progress: Callable[[float], None]) -> None:
        # Why the process has ended; None while it lives.
        self.death: EngineError | None = None
        self._on_progress = on_progress
        self._is_closing = False
        self._ids = itertools.count()
        # Guards the next two and `death`. The calls whose result is still to come, by their ids.
        self._lock = threading.Lock()
        self._calls: dict[int, Future[Any]] = {}
        # By the id of the call "submit": the run, and the indexes of its sequences that have not ended.
        self._runs: dict[int, tuple[RequestRun, set[int]]] = {}
        self._sending = threading.Lock()
        self._last_lines: deque[str] = deque(maxlen=30)
        self._connection, theirs = Pipe()
        with theirs:
            self._process = _started(theirs)
        self._threads = [
            threading.Thread(target=run, name=f"localchat-engine-{run.__name__}", daemon=True)
            for run in (self._read_output, self._read)
        ]
        for thread in self._threads:
            thread.start()
        self.loaded: Future[tuple[ModelFacts, TokenTexts]] = self.call(self.new_id(), "load", request)

    @property
    def is_serving(self) -> bool:
        return self.loaded.done() and self.death is None

    def new_id(self) -> int:
        return next(self._ids)

    def call(self, id: int, method: str, *arguments: Any) -> Future[Any]:
        """Call a method of `Calls` in the process. Its error may be EngineDied, which this may also raise."""
        future: Future[Any] = Future()
        with self._lock:
            if self.death is not None:
                raise self.death
            self._calls[id] = future
        self.send("call", id, method, arguments)
        return future

    def submit(self, requests: Sequence[GenerationRequest], texts: TokenTexts) -> RequestRun:
        id = self.new_id()
        run = RequestRun(
            requests,
            texts,
            cancel=lambda i: self.send("cancel", id, i),
            suspend=lambda is_suspended: self.send("suspend", id, is_suspended),
        )
        with self._lock:
            self._runs[id] = run, set(range(len(requests)))
        try:
            self.call(id, "submit", requests).result()
        except BaseException:
            self._runs.pop(id, None)
            raise
        return run

    def send(self, *message: Any) -> None:
        try:
            with self._sending:
                self._connection.send(message)
        except OSError:
            pass  # The process has ended, and the reader tells those who wait.

    def close(self) -> None:
        """End the process, and wait until it has ended. Its calls and runs end with EngineStopped."""
        self._is_closing = True
        self.send("close")
        try:
            self._process.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:
            log.warning("the engine process does not end, it is killed")
            self._process.kill()
        for thread in self._threads:
            thread.join(_CLOSE_S)

    # --- the threads of the process ---

    def _read_output(self) -> None:
        """Keep what the native libraries write. After a crash, it goes to the log."""
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._last_lines.append(line.decode("utf-8", "replace").rstrip())
                log.debug("%s", self._last_lines[-1])

    def _read(self) -> None:
        try:
            while True:
                self._receive(*self._connection.recv())
        except (EOFError, OSError):
            pass
        except Exception:
            log.exception("a message of the engine process cannot be read")
        self._end()

    def _receive(self, kind: str, *values: Any) -> None:
        if kind == "step":
            for id, method, index, *arguments in values[0]:
                self._deliver(id, method, index, arguments)
        elif kind == "progress":
            self._on_progress(values[0])
        elif kind == "log":
            name, level, text = values
            logging.getLogger(name).log(level, "%s", text)
        elif kind == "result":
            self._calls.pop(values[0]).set_result(values[1])
        else:
            self._calls.pop(values[0]).set_exception(values[1])

    def _deliver(self, id: int, method: str, index: int, arguments: Sequence[Any]) -> None:
        run, open_indexes = self._runs[id]
        if method == "deliver" and isinstance(arguments[0], (Ended, EngineError)):
            open_indexes.discard(index)
            if not open_indexes:
                self._runs.pop(id)
        getattr(run, method)(index, *arguments)

    def _end(self) -> None:
        """The connection has ended: end all calls and runs."""
        try:
            status = self._process.wait(_DEATH_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        self._threads[0].join(_DEATH_S)
        death = EngineStopped("the engine has been closed") if self._is_closing else self._died(status)
        with self._lock:
            was_serving, self.death = self.is_serving, death
            calls, runs = list(self._calls.values()), list(self._runs.values())
        if was_serving and not self._is_closing:
            log.error("%s; %d requests were running", death, len(runs))
            for line in self._last_lines:
                log.info("it wrote: %s", line)
        for call in calls:
            call.set_exception(death)
        for run, open_indexes in runs:
            for index in open_indexes:
                run.deliver(index, death)
        self._connection.close()

    def _died(self, status: int) -> EngineDied:
        name = signal_name(status)
        text = f"was killed by {name}" if name else f"ended with exit code {status}"
        cause = next((match[0] for line in reversed(self._last_lines) if (match := _CAUSE.search(line))), None)
        if name == "SIGKILL":
            cause = "most likely memory was short"
        elif name is None and cause is None and self._last_lines:
            cause = self._last_lines[-1]
        return EngineDied(f"the engine process {text}{f' ({cause})' if cause else ''}", name)


class Front:
    """Has the methods of `Engine` (see `AnyEngine`) for a model in an engine process, which it starts when needed."""

    def __init__(self, request: LoadRequest, on_progress: Callable[[float], None] = lambda share: None) -> None:
        self._request = request
        self._on_progress = on_progress
        self._is_closed = False
        # Held while a process is started; other requests wait for it.
        self._starting = threading.Lock()
        self._process: EngineProcess | None = None
        self._loaded: tuple[ModelFacts, TokenTexts] | None = None
        self._n_failed_starts = 0
        # After too many failed starts: the error, the time of the next start, and the state of the file.
        self._failure: tuple[EngineError, float, object] | None = None

    def __enter__(self) -> Front:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def start(self) -> Front:
        """Start the process, unless it runs, and wait until the model is loaded. Raises what `load` raises."""
        self._running()
        return self

    def close(self) -> None:
        """End the process. Requests end with EngineStopped, those that wait for a start too."""
        self._is_closed = True
        if self._process is not None:
            self._process.close()

    @property
    def facts(self) -> ModelFacts:
        return self._load_result[0]

    @property
    def _load_result(self) -> tuple[ModelFacts, TokenTexts]:
        assert self._loaded is not None, "the model has not been loaded yet"
        return self._loaded

    @property
    def failure(self) -> EngineError | None:
        if self._failure is None:
            return None
        error, until, file = self._failure
        return error if time.monotonic() < until and file == self._file() else None

    @property
    def max_open(self) -> int:
        return self.facts.n_parallel + self._request.max_queue

    def submit(self, requests: Sequence[GenerationRequest]) -> RequestRun:
        return self._repeated(lambda process: process.submit(requests, self._load_result[1]))

    def tokenize(
        self, text: str, *, add_bos: bool = False, parse_special: bool = True, limit: int | None = None
    ) -> list[int]:
        tokens: array[int] = self._called("tokenize", text, add_bos, parse_special, limit)
        return tokens.tolist()

    def tokenize_prompt(self, parts: Iterable[tuple[str, bool]], *, add_bos: bool = False) -> list[int]:
        tokens: array[int] = self._called("tokenize_prompt", list(parts), add_bos)
        return tokens.tolist()

    def pair_tokens(self, query: str, documents: Sequence[str]) -> list[list[int]]:
        pairs: list[list[int]] = self._called("pair_tokens", query, documents)
        return pairs

    def piece(self, token: int, special: bool = False) -> bytes:
        return self._load_result[1].piece(token, special)

    def embed(
        self, inputs: Sequence[Sequence[int]], is_cancelled: Callable[[], bool] = lambda: False
    ) -> list[array[float]]:
        process = self._running()
        id, was_cancelled = process.new_id(), False
        call: Future[list[array[float]]] = process.call(id, "embed", inputs)
        while True:
            try:
                return call.result(None if was_cancelled else _POLL_S)
            except TimeoutError:
                if is_cancelled():
                    process.send("abandon", id)
                    was_cancelled = True

    def stats(self) -> EngineStats:
        """The state of the engine. It starts no process: in one that is dead or loads its model, nothing runs."""
        nothing = EngineStats(0, 0, 0, 0, EngineCounts(), Histogram(FIRST_TOKEN_BOUNDS_S).values())
        return self._called_if_serving("stats", nothing)

    def running(self) -> list[SequenceStats]:
        return self._called_if_serving("running", [])

    def _called(self, method: str, *arguments: Any) -> Any:
        return self._repeated(lambda process: process.call(process.new_id(), method, *arguments).result())

    def _repeated(self, call: Callable[[EngineProcess], Result]) -> Result:
        """The result of a short call, which is repeated once if the process dies meanwhile."""
        process = self._running()
        try:
            return call(process)
        except EngineDied:
            return call(self._running())

    def _called_if_serving(self, method: str, otherwise: Result) -> Result:
        process = self._process
        if process is None or not process.is_serving:
            return otherwise
        try:
            result: Result = process.call(process.new_id(), method).result()
        except (EngineDied, EngineStopped):
            return otherwise
        return result

    def _running(self) -> EngineProcess:
        """The process, which has loaded the model. Starts it if there is none."""
        with self._starting:
            if self._is_closed:
                raise EngineStopped("the engine has been closed")
            if self._process is not None and self._process.is_serving:
                return self._process
            if self.failure is not None:
                raise EngineError(str(self.failure))
            try:
                process = self._start()
            except EngineStopped:
                raise
            except Exception as error:
                self._n_failed_starts += 1
                if self._n_failed_starts >= MAX_FAILED_STARTS:
                    failure = EngineError(f"the engine cannot be started: {error}")
                    self._failure = failure, time.monotonic() + PAUSE_S, self._file()
                raise
            self._n_failed_starts = 0
            return process

    def _start(self) -> EngineProcess:
        """A new process that has loaded the model. After a crash, a second one without the matrix instructions."""
        request = self._request
        while True:
            process = self._process = EngineProcess(request, self._on_progress)
            if self._is_closed:  # by a thread that did not see this process
                process.close()
            try:
                self._loaded = process.loaded.result()
                break
            except EngineDied as error:
                # With SIGKILL the system ends a process that takes too much memory.
                if error.killed_by in (None, "SIGKILL") or not request.options.use_extra_bufts:
                    raise
                killed_by = error.killed_by
                request = replace(request, options=replace(request.options, use_extra_bufts=False))
            except BaseException:
                process.close()
                raise
        if request is not self._request:
            self._request = request
            log.warning("%s (%s): %s", MATRIX_INSTRUCTIONS_OFF, killed_by, rebuild_command())
        return process

    def _file(self) -> object:
        """Changes with the model file."""
        try:
            status = os.stat(self._request.path)
        except OSError as error:
            return error.errno
        return status.st_size, status.st_mtime_ns


def signal_name(status: int) -> str | None:
    """The name of the signal that killed a process, by its exit status; None if it ended by itself."""
    if status < 0:
        try:
            return signal.Signals(-status).name
        except ValueError:
            return f"signal {-status}"
    # Windows ends a crashed process with an NTSTATUS, which starts with binary 11.
    return f"exception 0x{status:08X}" if status >= 0xC0000000 else None


def engine_command(number: int) -> list[str]:
    return [sys.executable, "-m", "localchat.serving.engine", str(number)]


def _started(connection: Connection) -> subprocess.Popen[bytes]:
    """A process that inherits a connection. It imports this copy of the package, wherever that is."""
    package_parent = str(Path(__file__).resolve().parents[3])
    path = os.pathsep.join(filter(None, [package_parent, os.environ.get("PYTHONPATH")]))
    number = connection.fileno()
    inherited: dict[str, Any] = {}
    if sys.platform == "win32":
        os.set_handle_inheritable(number, True)
        inherited["startupinfo"] = subprocess.STARTUPINFO(lpAttributeList={"handle_list": [number]})
        inherited["creationflags"] = subprocess.CREATE_NEW_PROCESS_GROUP  # without Ctrl-C
    else:
        inherited["pass_fds"] = (number,)
    return subprocess.Popen(
        engine_command(number),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": path},
        **inherited,
    )
