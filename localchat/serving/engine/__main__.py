"""`python -m localchat.serving.engine NUMBER`: an engine process, which the server starts; see process.py.

NUMBER is that of the inherited connection to the server. Calls run on their own threads, and the engine on another one,
which sends the output of each step. The process ends with the connection, when the server ends.
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
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from logging.handlers import QueueHandler
from multiprocessing.connection import Connection
from typing import Any

from ..core.errors import INTERNAL_ERROR, ApiError, out_of_resources
from . import load
from .delivery import Delivery
from .engine import Engine
from .values import EngineError, GenerationRequest, LoadOptions, ModelFacts, Submitted, TokenTexts

# A thread for each connection of the server. Only as many threads start as there are calls at once.
_MAX_THREADS = 512
# The interval at which Python switches between threads: with the default of 5 ms, a thread that runs a call would delay
# the engine by more than a step.
_SWITCH_INTERVAL_S = 0.001
log = logging.getLogger("localchat.engine")


class Calls:
    """Receives calls from the server, runs each on a thread, and sends the results. The server may call the methods of
    `Engine`, and those of this class that get the id of the call."""

    def __init__(self, connection: Connection) -> None:
        self.engine: Engine
        self._connection = connection
        # Held while a message is sent. It waits only while the server has a full buffer of others to read.
        self._sending = threading.Lock()
        # The ids of calls of `embed` that are to end.
        self._dropped: set[int] = set()
        self._delivery = Delivery(partial(self.send, "step"))

    def serve(self) -> None:
        """Run calls until the server ends."""
        threads = ThreadPoolExecutor(_MAX_THREADS)
        while True:
            try:
                call = self._connection.recv()
            except (EOFError, OSError):
                return
            if call[0] is None:
                self.answer(*call)
                continue
            engine = getattr(self, "engine", None)
            if engine is not None and engine.failure is not None:
                continue  # The process is about to end, and has not taken this call: another process runs it.
            self.send("received", call[0])
            try:
                threads.submit(self.answer, *call)
            except RuntimeError as error:
                # The call stays in the queue of the pool, so a thread that becomes free runs it. The call "load" has
                # started one at least.
                if call[1] == "load":
                    raise
                log.warning("a call waits for another one: %s", out_of_resources(error) or error)

    def answer(self, id: int | None, method: str, arguments: Sequence[Any], options: Mapping[str, Any]) -> None:
        """Call a method, and send its result or its error, unless the call has no id."""
        try:
            if method in ("load", "submit", "embed", "drop"):
                value = getattr(self, method)(id, *arguments, **options)
            else:
                value = getattr(self.engine, method)(*arguments, **options)
            answer = "result", id, value
        except BaseException as error:  # A panic of a library in Rust is no Exception.
            known = error if isinstance(error, ApiError) else out_of_resources(error)
            if known is None:
                log.error("the call %s failed", method, exc_info=True)
            # Errors of other classes may not exist in the server's process.
            text = str(error) or type(error).__name__ if method == "load" else INTERNAL_ERROR
            answer = "error", id, known or EngineError(text)
        if id is not None:
            self.send(*answer)

    def load(
        self, id: int, path: str, options: LoadOptions, log_levels: Mapping[str, int]
    ) -> tuple[ModelFacts, TokenTexts]:
        logging.getLogger("localchat").handlers = [QueueHandler(self)]  # type: ignore[arg-type]  # as a queue
        threading.excepthook = lambda error: log.error("a thread failed", exc_info=error.exc_value)
        for name, level in log_levels.items():
            logging.getLogger(name).setLevel(level)
        self.engine = load(path, options, partial(self.send, "progress"), self._delivery.after_step)
        threading.Thread(target=self._end_with_engine, daemon=True).start()
        # The existing objects live as long as the process. A collection of all of them would delay a step.
        gc.freeze()
        return self.engine.facts, self.engine.texts

    def submit(self, id: int, requests: Sequence[GenerationRequest]) -> Submitted:
        return self.engine.submit(requests, partial(self._delivery.add, id))

    def embed(self, id: int, inputs: Sequence[Any], **options: Any) -> Any:
        def check() -> None:
            if id in self._dropped:
                raise EngineError("the request was cancelled")

        try:
            return self.engine.embed(inputs, check=check, **options)
        finally:
            self._dropped.discard(id)

    def drop(self, id: None, call: int) -> None:
        """End a call of `embed`, whose result nobody needs."""
        self._dropped.add(call)

    def send(self, *message: Any) -> None:
        try:
            data = pickle.dumps(message)
        except BaseException:
            log.exception("a message cannot be sent")
            if message[0] not in ("result", "error"):
                return
            data = pickle.dumps(("error", message[1], EngineError("its result cannot be sent")))
        with self._sending:
            try:
                self._connection.send_bytes(data)
            except OSError:  # The server has ended, or would wait for this message.
                os._exit(1)

    def put_nowait(self, record: logging.LogRecord) -> None:
        """Send a record of the log to the server's process, which has its format."""
        self.send("log", record)

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
    calls = Calls(connection)
    try:
        calls.serve()
    except BaseException:
        traceback.print_exc()
        calls.fail()
    # The system frees the memory of the model at once, and nothing is left to be saved.
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
