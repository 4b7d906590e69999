"""The server's side of an engine process, `python -m localchat.serving.engine`: its start, its messages, its death.

The server's process never loads llama.cpp, so a native crash ends only the engine process: all its requests end with
EngineDied, which names the cause, and `loading/service.py` loads the model again, in another process.

Two threads belong to a process: one receives messages, one reads what the native libraries write. A message to the
process is a pickled call, `(id, method, arguments, options)`, of a method of `Engine` or of `Calls` in `__main__.py`;
without a result if the id is None. From it come tuples whose first item is their kind:

    ("received", id)                  a call has arrived
    ("result", id, value)             the result of a call
    ("error", id, error)              the error of a call
    ("step", outputs)                 what steps produced: (id, *fields of StepOutput), with the id of the
                                      call "submit" that started the sequence
    ("progress", share)               the loaded share of the model, 0 to 1
    ("log", record)                   a record of the log
"""

from __future__ import annotations

import itertools
import logging
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from concurrent.futures import TimeoutError as FutureTimeout
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, Union

from ..core.errors import ApiError
from ..core.media import MediaFile
from .engine import Engine
from .values import (
    EngineDied,
    EngineGone,
    EngineSilent,
    EngineStats,
    EngineStopped,
    GenerationRequest,
    LoadOptions,
    ModelFacts,
    PromptPart,
    StepOutput,
    Submitted,
    TokenTexts,
)
from .workers import worker_problems

log = logging.getLogger("localchat.engine")

# The loggers whose levels the process takes from this one.
_LOGGERS = ("localchat", "localchat.engine.llama")
# How often a request that waits for a call checks whether it is still wanted.
_CHECK_S = 0.25
# How long a call may take that tokenizes texts, and one for the statistics.
_CALL_S, _STATS_S = 60.0, 3.0
# How long the system may take to end a killed process: to free the memory of its model.
_CLOSE_S = 10.0
# How long a process may live after its connection has ended.
_DEATH_S = 1.0
# What the native libraries write before they end a process.
_CAUSE = re.compile(
    r"Remote RPC server .*|Timeout \(.*\)|GGML_ASSERT\(.*\) failed|GGML_ABORT.*|what\(\):.*|fatal error.*|CUDA error.*"
)


class Call(Future[Any]):
    """A call of a method in the process, whose result is still to come."""

    id = -1
    is_received = False


class EngineProcess:
    """Stands for the `Engine` of a model in an engine process, from its start to its end. Any thread may call its
    methods, which raise the errors of `Engine`; those of `Engine` only after `wait_until_loaded`."""

    facts: ModelFacts
    texts: TokenTexts
    max_open: int

    def __init__(
        self, path: str, options: LoadOptions, on_progress: Callable[[float], None] = lambda share: None
    ) -> None:
        """Starts the process. `on_progress` is called with the loaded share of the model, 0 to 1. Raises OSError."""
        self._options = options
        self._on_progress = on_progress
        # Why the process has ended; None while it lives.
        self.death: EngineDied | EngineStopped | None = None
        self._is_closing = False
        self._ids = itertools.count()
        # Why this process killed it, if its messages cannot be received or sent.
        self._fault = ""
        # Guards the next three and `death`. The call of "stats" that is running.
        self._lock = threading.Lock()
        self._stats: Future[EngineStats] | None = None
        # The calls whose result is still to come, by their ids.
        self._calls: dict[int, Call] = {}
        # The requests that have not ended, by the ids of their calls of "submit": the function that gets the output,
        # and the indexes of the sequences that have not ended.
        self._requests: dict[int, tuple[Callable[[StepOutput], None], set[int]]] = {}
        self._sending = threading.Lock()
        self._last_lines: deque[str] = deque(maxlen=30)
        self._connection, theirs = Pipe()
        self._threads = [
            threading.Thread(target=run, name=f"localchat-engine-{run.__name__}", daemon=True)
            for run in (self._read_output, self._read)
        ]
        levels = {name: logging.getLogger(name).getEffectiveLevel() for name in _LOGGERS}
        with theirs:
            self._process = _started(theirs)
        try:
            self._loaded = self._call("load", path, options, levels)
            for thread in self._threads:
                thread.start()
        except BaseException:
            self._process.kill()
            raise

    def wait_until_loaded(self) -> EngineProcess:
        """Raises what `load` raises, after the end of the process."""
        try:
            self.facts, self.texts = self._loaded.result()
            self.max_open = self.facts.n_parallel + self._options.max_queue
        except BaseException:
            self.close()
            raise
        return self

    def stop(self) -> None:
        """End the process; do not wait. Its calls and requests end with EngineStopped. It is killed, even if it is
        stopped or hangs: it has nothing to save."""
        self._is_closing = True
        self._process.kill()

    def close(self) -> None:
        """End the process, and wait until it has ended."""
        self.stop()
        self._join(_CLOSE_S)

    def _join(self, timeout_s: float) -> None:
        """Wait until the process has ended, at most this long for each of its threads."""
        for thread in self._threads:
            thread.join(timeout_s)

    @property
    def has_died(self) -> bool:
        """Whether the process has ended, so that the model must be loaded again."""
        return isinstance(self.death, EngineDied)

    @property
    def n_open(self) -> int:
        """The sequences whose end has not been delivered."""
        return sum(len(running) for _, running in list(self._requests.values()))

    def submit(
        self,
        requests: Sequence[GenerationRequest],
        deliver: Callable[[StepOutput], None],
        check: Callable[[], None] = lambda: None,
    ) -> Submitted:
        call = self._call("submit", requests, deliver=deliver)
        try:
            submitted: Submitted = self._result(call, check)
        except BaseException:
            call.add_done_callback(self._cancel_all)
            raise
        return submitted

    def _cancel_all(self, call: Future[Submitted]) -> None:
        if call.exception() is None:
            for id in call.result().ids:
                self.cancel(id)

    def cancel(self, id: int) -> None:
        self._send(pickle.dumps((None, "cancel", (id,), {})))

    def tokenize(self, text: str, **options: Any) -> list[int]:
        tokens: list[int] = self._result(self._call("tokenize", text, **options))
        return tokens

    def tokenize_prompt(self, parts: Iterable[PromptPart], *, add_bos: bool = False) -> list[int]:
        tokens: list[int] = self._result(self._call("tokenize_prompt", list(parts), add_bos=add_bos))
        return tokens

    def media_errors(self, media: Iterable[MediaFile]) -> list[ApiError | None]:
        # Without a limit of time: the files of other requests may come first.
        errors: list[ApiError | None] = self._result(self._call("media_errors", list(media)), lambda: None)
        return errors

    def embed(
        self, inputs: Sequence[str | Sequence[int]], *, check: Callable[[], None] = lambda: None, **options: Any
    ) -> tuple[list[array[float]], int]:
        call = self._call("embed", inputs, **options)
        try:
            vectors: tuple[list[array[float]], int] = self._result(call, check)
        except BaseException:
            if not call.done():
                self._send(pickle.dumps((None, "drop", (call.id,), {})))
            raise
        return vectors

    def stats(self, timeout_s: float = _STATS_S) -> EngineStats:
        """A dead process runs nothing. Raises EngineSilent if a living one does not respond in time."""
        with self._lock:
            # A process that does not respond gets no further calls, which could fill the connection.
            asked = self._stats
            if asked is None or asked.done():
                asked = Future()
                threading.Thread(target=self._ask_stats, args=(asked,), daemon=True).start()
                self._stats = asked
        try:
            return asked.result(timeout_s)
        except FutureTimeout:
            raise EngineSilent(timeout_s) from None
        except (EngineDied, EngineStopped):
            return EngineStats()

    def _ask_stats(self, asked: Future[EngineStats]) -> None:
        """Runs on a thread of its own, since `_send` waits if the process does not read."""
        try:
            asked.set_result(self._call("stats").result())
        except BaseException as error:
            asked.set_exception(error)

    def _call(
        self, method: str, *arguments: Any, deliver: Callable[[StepOutput], None] | None = None, **options: Any
    ) -> Call:
        """Call a method in the process. Its error may be EngineDied, or EngineGone if the process did not receive the
        call. `deliver` gets the output of a call of "submit"."""
        call = Call()
        call.id = next(self._ids)
        data = pickle.dumps((call.id, method, arguments, options))
        with self._lock:
            if self.death is not None:
                raise self.death if isinstance(self.death, EngineStopped) else EngineGone(str(self.death))
            self._calls[call.id] = call
            if deliver is not None:
                self._requests[call.id] = deliver, set(range(len(arguments[0])))
        self._send(data)
        return call

    def _result(self, call: Call, check: Callable[[], None] | None = None) -> Any:
        """The result of a call, within a limit of time; or `check` is called several times a second, and may raise an
        error to stop waiting."""
        while not wait([call], _CHECK_S if check else _CALL_S).done:
            if check is None:
                raise EngineSilent(_CALL_S)
            check()
        try:
            return call.result()
        except EngineGone:
            self._join(_DEATH_S)  # An engine that has failed ends its process a moment later.
            raise

    def _send(self, message: bytes) -> None:
        try:
            with self._sending:
                self._connection.send_bytes(message)
        except OSError as error:
            # The process has ended, or a part of the message may have been sent. The thread that receives messages ends
            # all calls and requests.
            if not isinstance(error, ConnectionError):
                self._fault = f"a message could not be sent ({error})"
            self._process.kill()

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
                try:
                    data = self._connection.recv_bytes()
                except (EOFError, OSError):  # The connection has ended.
                    break
                self._receive(*pickle.loads(data))
        except BaseException as error:
            self._fault = f"a message of it cannot be read ({error!r})"
            self._process.kill()
            log.exception("a message of the engine process cannot be read")
        finally:
            self._end()

    def _receive(self, kind: str, *values: Any) -> None:
        if kind == "step":
            for id, *fields in values[0]:
                output, (deliver, running) = StepOutput(*fields), self._requests[id]
                if output.end is not None:
                    running.remove(output.sequence)
                    if not running:
                        del self._requests[id]
                deliver(output)
        elif kind == "received":
            self._calls[values[0]].is_received = True
        elif kind == "progress":
            self._on_progress(values[0])
        elif kind == "log":
            logging.getLogger(values[0].name).handle(values[0])
        elif kind == "result":
            self._calls.pop(values[0]).set_result(values[1])
        else:
            self._requests.pop(values[0], None)
            self._calls.pop(values[0]).set_exception(values[1])

    def _end(self) -> None:
        """The connection has ended, as the process died or was closed: end all calls and requests with the reason."""
        death: EngineDied | EngineStopped = EngineDied("the engine process has ended")
        try:
            try:
                status = self._process.wait(_DEATH_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                status = self._process.wait()
            self._threads[0].join(_DEATH_S)
            death = EngineStopped() if self._is_closing else self._died(status)
        finally:
            self._end_calls(death)

    def _end_calls(self, death: EngineDied | EngineStopped) -> None:
        with self._lock:
            self.death = death
            calls, requests = list(self._calls.values()), list(self._requests.values())
        was_serving = self._loaded.done() and self._loaded.exception() is None
        if was_serving and isinstance(death, EngineDied):
            log.error("%s; %d requests were running", death, len(requests))
            for line in self._last_lines:
                log.info("it wrote: %s", line)
        for call in calls:
            is_received = call.is_received or isinstance(death, EngineStopped)
            call.set_exception(death if is_received else EngineGone(str(death)))
        for deliver, running in requests:
            for index in running:
                deliver(StepOutput(index, time.perf_counter(), end=death))
        # Not while another thread sends: its bytes would go to the socket that gets the number of this connection.
        with self._sending:
            self._connection.close()

    def _died(self, status: int) -> EngineDied:
        name = signal_name(status)
        if missing := worker_problems(self._options.workers):
            return EngineDied(f"the engine process has ended: {'; '.join(missing)}")
        if self._fault and name == "SIGKILL":
            return EngineDied(f"the engine process was ended: {self._fault}")
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


AnyEngine = Union[Engine, EngineProcess]
"""What the rest of the server uses: an engine in this process, or in a process of its own."""
