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
from dataclasses import replace
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from queue import Empty, SimpleQueue
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
# The interval at which a call checks whether it has been cancelled.
_POLL_S = 0.05
# What the native libraries write before they end a process.
_CAUSE = re.compile(r"GGML_ASSERT\(.*\) failed|GGML_ABORT.*|what\(\):.*|fatal error.*|CUDA error.*")


class EngineProcess:
    """One engine process, from its start to its end."""

    def __init__(self, request: LoadRequest, on_progress: Callable[[float], None]) -> None:
        self._on_progress = on_progress
        # Why the process has ended; None while it lives.
        self.death: EngineError | None = None
        self._is_closing = False
        # Guards the next three, and `death`.
        self._lock = threading.Lock()
        self._ids = itertools.count(0)
        self._replies: dict[int, SimpleQueue[tuple[str, Any]]] = {}
        # By the id of the call "submit": the run, and the indexes of its sequences that have not ended.
        self._runs: dict[int, tuple[RequestRun, set[int]]] = {}
        self._sending = threading.Lock()
        self.is_loaded = False
        self._last_lines: deque[str] = deque(maxlen=30)
        self._connection, theirs = Pipe()
        with theirs:
            self._process = _started(theirs)
        self._threads = [
            threading.Thread(target=run, name=f"localchat-engine-{name}", daemon=True)
            for name, run in (("output", self._read_output), ("reader", self._read))
        ]
        for thread in self._threads:
            thread.start()
        self._load_id, self._loaded = self._call("load", (request,))

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until_loaded(self) -> tuple[ModelFacts, TokenTexts]:
        """Wait for the facts of the loaded model. Raises what `load` raises, and EngineDied."""
        facts: tuple[ModelFacts, TokenTexts] = self._result(self._load_id, self._loaded)
        self.is_loaded = True
        return facts

    def call(self, method: str, *arguments: Any, is_cancelled: Callable[[], bool] | None = None) -> Any:
        """The result of a method of `Calls` in the process. Raises its error, and EngineDied."""
        return self._result(*self._call(method, arguments), is_cancelled)

    def submit(self, requests: Sequence[GenerationRequest], texts: TokenTexts) -> RequestRun:
        id = next(self._ids)
        run = RequestRun(
            requests,
            texts,
            cancel=lambda i: self._send("cancel", id, i),
            suspend=lambda is_suspended: self._send("suspend", id, is_suspended),
        )
        with self._lock:
            self._runs[id] = run, set(range(len(requests)))
        try:
            self._result(*self._call("submit", (requests,), id))
        except BaseException:
            self._runs.pop(id, None)
            raise
        return run

    def close(self) -> None:
        """End the process, and wait until it has ended. Its calls and runs end with EngineStopped."""
        self._is_closing = True
        self._send("close")
        try:
            self._process.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:
            log.warning("the engine process does not end, it is killed")
            self._process.kill()
        for thread in self._threads:
            thread.join(_CLOSE_S)

    def _call(self, method: str, arguments: Sequence[Any], id: int | None = None) -> tuple[int, SimpleQueue[Any]]:
        replies: SimpleQueue[Any] = SimpleQueue()
        with self._lock:
            if self.death is not None:
                raise self.death
            id = next(self._ids) if id is None else id
            self._replies[id] = replies
        try:
            self._send("call", id, method, tuple(arguments))
        except BaseException:  # The arguments cannot be pickled.
            self._replies.pop(id, None)
            raise
        return id, replies

    def _result(
        self, id: int, replies: SimpleQueue[tuple[str, Any]], is_cancelled: Callable[[], bool] | None = None
    ) -> Any:
        while True:
            try:
                kind, value = replies.get(timeout=None if is_cancelled is None else _POLL_S)
            except Empty:
                if is_cancelled is not None and is_cancelled():
                    self._send("abandon", id)
                    is_cancelled = None
                continue
            if kind == "error":
                raise value
            return value

    def _send(self, *message: Any) -> None:
        try:
            with self._sending:
                self._connection.send(message)
        except OSError:
            pass  # The process has ended, and the reader tells those who wait.

    # --- the threads of the process ---

    def _read_output(self) -> None:
        """Keep what the native libraries write. After a crash, it goes to the log."""
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                text = line.decode("utf-8", "replace").rstrip()
                self._last_lines.append(text)
                log.debug("%s", text)

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
        else:
            id, value = values
            replies = self._replies.pop(id, None)
            if replies is not None:
                replies.put((kind, value))

    def _deliver(self, id: int, method: str, index: int, arguments: Sequence[Any]) -> None:
        found = self._runs.get(id)
        if found is None:
            return
        run, open_indexes = found
        if method == "deliver" and isinstance(arguments[0], (Ended, EngineError)):
            open_indexes.discard(index)
            if not open_indexes:
                self._runs.pop(id, None)
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
            self.death = death
            replies, self._replies = self._replies, {}
            runs, self._runs = self._runs, {}
        if self.is_loaded and not self._is_closing:
            log.error("%s; %d requests were running", death, len(runs))
            for line in self._last_lines:
                log.info("it wrote: %s", line)
        for queue in replies.values():
            queue.put(("error", death))
        for run, open_indexes in runs.values():
            for index in open_indexes:
                run.deliver(index, death)
        self._connection.close()

    def _died(self, status: int) -> EngineDied:
        name = signal_name(status)
        cause = next((match[0] for line in reversed(self._last_lines) if (match := _CAUSE.search(line))), None)
        text = f"was killed by {name}" if name else f"ended with exit code {status}"
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
        # Held while a process is started; other requests wait for it.
        self._starting = threading.Lock()
        self._process: EngineProcess | None = None
        self._facts: ModelFacts | None = None
        self._texts: TokenTexts | None = None
        self._is_closed = False
        self._n_failed_starts = 0
        # Why the last start failed, and until when and for which file no other one is tried.
        self._start_error: EngineError | None = None
        self._paused_until = 0.0
        self._paused_for: object = None

    def __enter__(self) -> Front:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def start(self) -> Front:
        """Start the process, unless it runs, and wait until the model is loaded. Raises what `load` raises."""
        self._running_process()
        return self

    def close(self) -> None:
        """End the process. Requests end with EngineStopped, those that wait for a start too."""
        self._is_closed = True
        if self._process is not None:
            self._process.close()

    @property
    def facts(self) -> ModelFacts:
        assert self._facts is not None, "the model has not been loaded yet"
        return self._facts

    @property
    def failure(self) -> BaseException | None:
        return self._start_error if self._is_paused() else None

    @property
    def max_open(self) -> int:
        return self.facts.n_parallel + self._request.max_queue

    @property
    def pid(self) -> int | None:
        """The id of the engine process; None while there is none."""
        process = self._process
        return None if process is None or process.death is not None else process.pid

    def submit(self, requests: Sequence[GenerationRequest]) -> RequestRun:
        def submitted(process: EngineProcess) -> RequestRun:
            assert self._texts is not None
            return process.submit(requests, self._texts)

        return self._repeated(submitted)

    def tokenize(
        self, text: str, *, add_bos: bool = False, parse_special: bool = True, limit: int | None = None
    ) -> list[int]:
        return self._repeated(lambda process: process.call("tokenize", text, add_bos, parse_special, limit).tolist())

    def tokenize_prompt(self, parts: Iterable[tuple[str, bool]], *, add_bos: bool = False) -> list[int]:
        given = list(parts)
        return self._repeated(lambda process: process.call("tokenize_prompt", given, add_bos).tolist())

    def piece(self, token: int, special: bool = False) -> bytes:
        assert self._texts is not None
        return self._texts.piece(token, special)

    def embed(
        self, inputs: Sequence[Sequence[int]], is_cancelled: Callable[[], bool] = lambda: False
    ) -> list[array[float]]:
        vectors: list[array[float]] = self._running_process().call("embed", inputs, is_cancelled=is_cancelled)
        return vectors

    def pair_tokens(self, query: str, documents: Sequence[str]) -> list[list[int]]:
        pairs: list[list[int]] = self._running_process().call("pair_tokens", query, documents)
        return pairs

    def stats(self) -> EngineStats:
        """The state of the engine. It starts no process: in one that is dead or loads its model, nothing runs."""
        nothing = EngineStats(0, 0, 0, 0, EngineCounts(), Histogram(FIRST_TOKEN_BOUNDS_S).values())
        stats: EngineStats = self._call_if_running("stats", nothing)
        return stats

    def running(self) -> list[SequenceStats]:
        running: list[SequenceStats] = self._call_if_running("running", [])
        return running

    def _repeated(self, call: Callable[[EngineProcess], Result]) -> Result:
        """The result of a short call, which is repeated once if the process dies meanwhile."""
        process = self._running_process()
        try:
            return call(process)
        except EngineDied:
            return call(self._running_process())

    def _call_if_running(self, method: str, otherwise: Any) -> Any:
        process = self._process
        if process is None or not process.is_loaded:
            return otherwise
        try:
            return process.call(method)
        except (EngineDied, EngineStopped):
            return otherwise

    def _running_process(self) -> EngineProcess:
        process = self._process
        if process is not None and process.death is None and not self._starting.locked():
            return process
        with self._starting:
            if self._is_closed:
                raise EngineStopped("the engine has been closed")
            process = self._process
            if process is None or process.death is not None:
                process = self._start()
            return process

    def _start(self) -> EngineProcess:
        if self._is_paused():
            raise EngineError(str(self._start_error))
        try:
            process = self._started()
        except EngineStopped:
            raise
        except Exception as error:
            self._n_failed_starts += 1
            if self._n_failed_starts >= MAX_FAILED_STARTS:
                self._start_error = EngineError(f"the engine cannot be started: {error}")
                self._paused_until, self._paused_for = time.monotonic() + PAUSE_S, self._file()
            raise
        self._n_failed_starts, self._start_error = 0, None
        return process

    def _started(self) -> EngineProcess:
        """A new process that has loaded the model. After a crash, a second one without the matrix instructions."""
        try:
            return self._loaded_process()
        except EngineDied as error:
            # With SIGKILL the system ends a process that takes too much memory.
            if error.killed_by in (None, "SIGKILL") or not self._request.options.use_extra_bufts:
                raise
            log.warning("the engine process crashed while it started (%s); trying without AMX", error.killed_by)
            before, options = self._request, replace(self._request.options, use_extra_bufts=False)
            self._request = replace(self._request, options=options)
            try:
                process = self._loaded_process()
            except BaseException:
                self._request = before
                raise
            log.warning("%s (%s): %s", MATRIX_INSTRUCTIONS_OFF, error.killed_by, rebuild_command())
            return process

    def _loaded_process(self) -> EngineProcess:
        process = self._process = EngineProcess(self._request, self._on_progress)
        if self._is_closed:  # by another thread that did not see this process
            process.close()
        try:
            self._facts, self._texts = process.wait_until_loaded()
        except BaseException:
            process.close()
            raise
        return process

    def _is_paused(self) -> bool:
        return (
            self._start_error is not None and time.monotonic() < self._paused_until and self._paused_for == self._file()
        )

    def _file(self) -> object:
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
