"""`python -m localchat.serving.engine NUMBER`: an engine process, which the server starts; see process.py.

NUMBER is that of the inherited connection to the server. The main thread receives messages; it never sends one. Each
request runs on a thread of its own until its sequences are queued, and the engine thread sends the output of steps. The
process ends with the connection, when the server ends.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from logging.handlers import QueueHandler
from multiprocessing.connection import Connection
from typing import Any

from . import load
from .request_runner import Message, RequestRunner, RunningRequest
from .values import EngineError, LoadOptions

# A thread for each connection of the server. Only as many threads start as there are requests at once.
_MAX_THREADS = 512
# The interval at which Python switches between threads: with the default of 5 ms, a thread that tokenizes would delay
# the engine by more than a step.
_SWITCH_INTERVAL_S = 0.001
log = logging.getLogger("localchat.engine")


class EngineMain(RequestRunner):
    """The engine of this process, and its connection to the server."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(self.send, self._start_work)
        self._connection = connection
        # Held while a message is sent, which waits while the server has a full buffer of others to read.
        self._sending = threading.Lock()
        self._threads = ThreadPoolExecutor(_MAX_THREADS)

    def receive_all(self) -> None:
        """Take messages until the server ends."""
        while True:
            try:
                message = self._connection.recv()
            except (EOFError, OSError):
                return
            self.receive(*message)

    def _start_work(self, work: Callable[[], None]) -> None:
        try:
            self._threads.submit(work)
        except RuntimeError:
            # No thread can be started. The work stays in the queue of the pool, so a thread that becomes free does it.
            if not hasattr(self, "engine"):
                raise  # There is no thread yet.

    def load(self, request: RunningRequest, path: str, options: LoadOptions, log_levels: Mapping[str, int]) -> None:
        """The outputs are the progress, 0.0 to 1.0, then the facts and the texts of the tokens."""
        logging.getLogger("localchat").handlers = [QueueHandler(self)]  # type: ignore[arg-type]  # as a queue
        threading.excepthook = lambda error: log.error("a thread failed", exc_info=error.exc_value)
        for name, level in log_levels.items():
            logging.getLogger(name).setLevel(level)
        engine = load(path, options, lambda share: self._output(request, float(share)), self.delivery.send_due)
        self.engine = engine
        threading.Thread(target=self._end_with_engine, daemon=True).start()
        # The existing objects live as long as the process. A collection of all of them would delay a step.
        gc.freeze()
        self._output(request, (engine.facts, engine.texts))

    def send(self, messages: Sequence[Message]) -> None:
        try:
            data = pickle.dumps(messages)
        except BaseException:
            log.exception("a message cannot be sent")
            if any(kind == "steps" for kind, *_ in messages):
                self.fail()  # Texts would have gaps.
            ends = [(kind, id) for kind, id, *_ in messages if kind in ("output", "ended")]
            if not ends:
                return
            data = pickle.dumps([("ended", id, EngineError("its result cannot be sent")) for _, id in ends])
        with self._sending:
            try:
                self._connection.send_bytes(data)
            except OSError:  # The server has ended, or would wait for this message.
                os._exit(1)

    def put_nowait(self, record: logging.LogRecord) -> None:
        """Send a record of the log to the server's process, which has its format."""
        self.send([("log", record)])

    def _end_with_engine(self) -> None:
        """End this process when its engine has failed: the server then starts another one."""
        self.engine.join()
        self.fail()

    def fail(self) -> None:
        """End this process, after a message that is being sent."""
        self._sending.acquire()
        os._exit(1)


def main(number: int) -> None:
    # Signals of a terminal or of systemd reach all processes of the server, and only the server decides on the end.
    for name in ("SIGINT", "SIGTERM"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    with contextlib.suppress(ImportError):  # Windows
        import resource

        # A crash must end the process at once, so it writes no core file.
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    if sys.platform == "win32":
        from multiprocessing.connection import PipeConnection

        connection: Any = PipeConnection(number)
    else:
        connection = Connection(number)
    process = EngineMain(connection)
    try:
        process.receive_all()
    except BaseException:
        traceback.print_exc()
        process.fail()
    # The system frees the memory of the model at once, and nothing is left to be saved.
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
