"""The server's side of an engine process, `python -m localchat.serving.engine`: its start, its messages, its death.

When the process dies, all its requests end with EngineDied, which names the cause. Two threads belong to it: one
receives messages, one reads what the native libraries write. A message to the process is a pickled call, `(id, method,
arguments, options)`, of a method of `Engine` or of `Calls` in `__main__.py`; without a result if the id is None. None
ends the process. From it come tuples whose first item is their kind:

    ("result", id, value)             the result of a call
    ("error", id, error)              the error of a call
    ("step", outputs)                 everything that a step produced: (id, *fields of StepOutput), with the id of the
                                      call "enqueue" that started the sequence
    ("progress", share)               the loaded share of the model, 0 to 1
    ("log", record)                   a record of the log
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
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

from .run import RequestRun
from .values import EngineDied, EngineStopped, GenerationRequest, LoadOptions, ModelFacts, StepOutput, TokenTexts

log = logging.getLogger("localchat.engine")

# The loggers whose levels the process takes from this one.
_LOGGERS = ("localchat", "localchat.engine.llama")
# How long an engine process may take to end: its last step, and the memory of its model.
_CLOSE_S = 10.0
# How long a process may live after its connection has ended.
_DEATH_S = 1.0
# What the native libraries write before they end a process.
_CAUSE = re.compile(r"GGML_ASSERT\(.*\) failed|GGML_ABORT.*|what\(\):.*|fatal error.*|CUDA error.*")


class EngineProcess:
    """One engine process, from its start to its end."""

    def __init__(self, path: str, options: LoadOptions, on_progress: Callable[[float], None]) -> None:
        # Why the process has ended; None while it lives.
        self.death: EngineDied | EngineStopped | None = None
        self._on_progress = on_progress
        self._is_closing = False
        self._ids = itertools.count()
        # Guards the next two and `death`. The calls whose result is still to come, by their ids.
        self._lock = threading.Lock()
        self._calls: dict[int, Future[Any]] = {}
        # The runs that have not ended, by the ids of their calls of "enqueue".
        self._runs: dict[int, RequestRun] = {}
        self._sending = threading.Lock()
        self._last_lines: deque[str] = deque(maxlen=30)
        self._connection, theirs = Pipe()
        with theirs:
            self._process = _started(theirs)
        self._threads = [
            threading.Thread(target=run, name=f"localchat-engine-{run.__name__}", daemon=True)
            for run in (self._read_output, self._read)
        ]
        levels = {name: logging.getLogger(name).getEffectiveLevel() for name in _LOGGERS}
        self.loaded: Future[tuple[ModelFacts, TokenTexts]] = self.call("load", path, options, levels)
        for thread in self._threads:
            thread.start()

    @property
    def is_serving(self) -> bool:
        return self.loaded.done() and self.loaded.exception() is None and self.death is None

    @property
    def n_open(self) -> int:
        """The sequences whose end has not been delivered."""
        return sum(len(run.undelivered) for run in list(self._runs.values()))

    def call(self, method: str, *arguments: Any, run: RequestRun | None = None, **options: Any) -> Future[Any]:
        """Call a method in the process. Its error may be EngineDied, which this may also raise. `run` gets the output
        of a call of "enqueue"."""
        id, future = next(self._ids), Future[Any]()
        with self._lock:
            if self.death is not None:
                raise self.death
            self._calls[id] = future
            if run is not None:
                self._runs[id] = run
        self._send((id, method, arguments, options))
        return future

    def submit(self, requests: Sequence[GenerationRequest]) -> RequestRun:
        run = RequestRun(len(requests), lambda sequence: self._send((None, "cancel", (sequence,), {})))
        run.ids = self.call("enqueue", requests, run=run).result()
        return run

    def close(self) -> None:
        """End the process, and wait until it has ended. Its calls and runs end with EngineStopped."""
        self._is_closing = True
        # On a thread, since it blocks if the process does not read.
        threading.Thread(target=self._send, args=(None,), daemon=True).start()
        try:
            self._process.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:
            log.warning("the engine process does not end, it is killed")
            self._process.kill()
        self.join(_CLOSE_S)

    def join(self, timeout_s: float = _DEATH_S) -> None:
        """Wait until the process has ended, at most this long for each of its threads."""
        for thread in self._threads:
            thread.join(timeout_s)

    def _send(self, message: object) -> None:
        try:
            with self._sending:
                self._connection.send(message)
        except OSError:
            pass  # The process has ended: the thread that receives messages ends all calls and runs.

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
            for id, *fields in values[0]:
                run = self._runs[id]
                run.deliver(StepOutput(*fields))
                if not run.undelivered:
                    del self._runs[id]
        elif kind == "progress":
            self._on_progress(values[0])
        elif kind == "log":
            logging.getLogger(values[0].name).handle(values[0])
        elif kind == "result":
            self._calls.pop(values[0]).set_result(values[1])
        else:
            self._runs.pop(values[0], None)
            self._calls.pop(values[0]).set_exception(values[1])

    def _end(self) -> None:
        """The connection has ended, as the process died or was closed: end all calls and runs with the reason."""
        try:
            status = self._process.wait(_DEATH_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        self._threads[0].join(_DEATH_S)
        death = EngineStopped() if self._is_closing else self._died(status)
        with self._lock:
            was_serving, self.death = self.is_serving, death
            calls, runs = list(self._calls.values()), list(self._runs.values())
        if was_serving and not self._is_closing:
            log.error("%s; %d requests were running", death, len(runs))
            for line in self._last_lines:
                log.info("it wrote: %s", line)
        for call in calls:
            call.set_exception(death)
        for run in runs:
            for index in list(run.undelivered):
                run.deliver(StepOutput(index, time.perf_counter(), end=death))
        # Not while another thread sends: its bytes would go to the socket that gets the number of this connection.
        with self._sending:
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


def signal_name(status: int) -> str | None:
    """The name of the signal that killed a process, by its exit status; None if it ended by itself."""
    if status < 0:
        try:
            return signal.Signals(-status).name
        except ValueError:
            return f"signal {-status}"
    # Windows ends a crashed process with an NTSTATUS, which starts with binary 11.
    return f"exception 0x{status:08X}" if status >= 0xC0000000 else None


# The command of the process, without the number of its connection.
COMMAND = [sys.executable, "-m", "localchat.serving.engine"]


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
        [*COMMAND, str(number)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        # PYTHONSAFEPATH: do not import a package of this name in the working directory. Python before 3.11 ignores it.
        env={**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"},
        **inherited,
    )
