"""The engine process of a model, `python -m localchat.serving.engine`: its start, its threads, its death.

The server's process never loads llama.cpp, so a native crash ends only the engine process: all its requests end with
EngineDied, which names the cause, and `loading/` loads the model again, in another process.

Three threads of the server belong to a process: one sends messages (engine_client.py lists them), one receives them,
and one reads what the native libraries write. No other thread waits for the connection.
"""

from __future__ import annotations

import logging
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from ..core.mailbox import Mailbox
from .engine_client import EngineClient
from .values import EngineDied, EngineStopped, LoadOptions
from .workers import worker_problems

log = logging.getLogger("localchat.engine")

# The loggers whose levels the process takes from this one.
_LOGGERS = ("localchat", "localchat.engine.llama")
# How long each thread of a process may take to end: the system frees the memory of the model before.
_CLOSE_S = 10.0
# How long a process may live after its connection has ended.
_DEATH_S = 1.0
# What the native libraries write before they end a process.
_CAUSE = re.compile(
    r"Remote RPC server .*|Timeout \(.*\)|GGML_ASSERT\(.*\) failed|GGML_ABORT.*|what\(\):.*|fatal error.*|CUDA error.*"
)


class EngineProcess(EngineClient):
    """The engine of a model in a process of its own, from the start of the process to its end.

    Any thread may call its methods; those of `EngineClient` only after `wait_until_loaded`.
    """

    def __init__(
        self, path: str, options: LoadOptions, on_progress: Callable[[float], None] = lambda share: None
    ) -> None:
        """Start the process. `on_progress` is called with the loaded share of the model, 0 to 1. Raises OSError."""
        self._outgoing: SimpleQueue[bytes | None] = SimpleQueue()  # None: the process has ended.
        super().__init__(lambda message: self._outgoing.put(pickle.dumps(message)))
        self._options = options
        self._on_progress = on_progress
        self._is_closing = False
        # Why this process killed it, if its messages cannot be received or sent.
        self._fault = ""
        self._last_lines: deque[str] = deque(maxlen=30)
        self._is_loaded = False
        self._connection, theirs = Pipe()
        # The receiving thread starts last: at the end of the connection it waits for the end of the two others, which
        # must have been started.
        self._output_thread = _new_thread("output", self._read_output)
        self._send_thread = _new_thread("send", self._send_all)
        self._threads = self._output_thread, self._send_thread, _new_thread("receive", self._receive_all)
        levels = {name: logging.getLogger(name).getEffectiveLevel() for name in _LOGGERS}
        with theirs:
            self._process = _spawn(theirs)
        try:
            self._loading = self._start("load", (path, options, levels), Mailbox())
            for thread in self._threads:
                thread.start()
        except BaseException:
            self._process.kill()
            self._outgoing.put(None)  # The thread that sends may have started.
            raise

    def wait_until_loaded(self) -> EngineProcess:
        """Raises what `load` raises, after the end of the process."""
        try:
            while not self._is_loaded:
                for value in self._loading.take():
                    if isinstance(value, float):
                        self._on_progress(value)
                    else:
                        self.facts, self.texts = value
                        self._is_loaded = True
            self.max_open = self.facts.n_parallel + self._options.max_queue
        except BaseException:
            self.close()
            raise
        return self

    def stop(self) -> None:
        # It is killed, even if it is stopped (SIGSTOP) or hangs: it has nothing to save.
        self._is_closing = True
        self._process.kill()

    def close(self) -> None:
        self.stop()
        self.wait_until_dead()

    def wait_until_dead(self) -> None:
        """Wait until the process has ended and the reason is known: its workers may be asked for it."""
        for thread in self._threads:
            thread.join(_CLOSE_S)

    def _kill(self, fault: str) -> None:
        self._fault = self._fault or fault
        self._process.kill()

    # --- the threads of the process ---

    def _read_output(self) -> None:
        """Keep what the native libraries write. After a crash, it goes to the log."""
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._last_lines.append(line.decode("utf-8", "replace").rstrip())
                log.debug("%s", self._last_lines[-1])

    def _send_all(self) -> None:
        """Send messages until the process has ended. A process that is stopped (SIGSTOP) may delay this for ever."""
        try:
            while (message := self._outgoing.get()) is not None:
                self._connection.send_bytes(message)
        except ConnectionError:
            self._process.kill()  # It is about to end. The receiving thread finds out why.
        except OSError as error:  # A part of the message may have been sent.
            self._kill(f"a message could not be sent ({error})")

    def _receive_all(self) -> None:
        try:
            while True:
                try:
                    data = self._connection.recv_bytes()
                except (EOFError, OSError):  # The connection has ended.
                    break
                self.receive(pickle.loads(data))
        except BaseException as error:
            self._kill(f"a message of it cannot be read ({error!r})")
            log.exception("a message of the engine process cannot be read")
        finally:
            self._end_of_connection()

    def _end_of_connection(self) -> None:
        """The process has died or was closed: end all requests with the reason."""
        death: EngineDied | EngineStopped = EngineDied("the engine process has ended")
        try:
            try:
                status = self._process.wait(_DEATH_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                status = self._process.wait()
            self._output_thread.join(_DEATH_S)
            death = EngineStopped() if self._is_closing else self._died(status)
        finally:
            if self._is_loaded and isinstance(death, EngineDied):
                log.error("%s; %d requests were running", death, self.n_requests)
                for line in self._last_lines:
                    log.info("it wrote: %s", line)
            self.end(death)
            self._outgoing.put(None)
            self._send_thread.join()
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


def _new_thread(name: str, function: Callable[[], None]) -> threading.Thread:
    return threading.Thread(target=function, name=f"localchat-engine-{name}", daemon=True)


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


def _spawn(connection: Connection) -> subprocess.Popen[bytes]:
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
