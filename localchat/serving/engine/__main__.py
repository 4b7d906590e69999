"""`python -m localchat.serving.engine NUMBER`: an engine process, which the server starts; see front.py.

NUMBER is that of the inherited connection to the server. Calls run on their own threads, the engine on another one,
and one thread sends, so that the engine never waits for the connection. What it has not sent yet is at most the output
of the running requests. The process ends with the connection: when the server closes it, and when the server is killed.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import sys
import threading
import traceback
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

from ..core.server_state import SequenceStats
from ..models.catalog import DEMO_PATH
from . import load
from .engine import Engine
from .library_build import has_matrix_instructions
from .messages import LoadRequest
from .stats import EngineStats
from .token_texts import TokenTexts
from .values import Ended, EngineError, GenerationRequest, Item, LoadOptions, ModelFacts

# A thread for each connection of the server. Only as many threads start as there are calls at once.
_MAX_THREADS = 512
# The interval at which Python switches between threads: with the default of 5 ms, a thread that runs a call would delay
# the engine by more than a step.
_SWITCH_INTERVAL_S = 0.001

Message = tuple[Any, ...]

log = logging.getLogger("localchat.engine")


class Sender:
    """Sends messages on its own thread."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._messages: SimpleQueue[Message | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="localchat-sender", daemon=True)
        self._thread.start()

    def send(self, *message: Any) -> None:
        """Send a message soon."""
        self._messages.put(message)

    def close(self) -> None:
        """Send what is left."""
        self._messages.put(None)
        self._thread.join()

    def _run(self) -> None:
        with contextlib.suppress(OSError):  # The server has ended, which ends this process as well.
            while (message := self._messages.get()) is not None:
                try:
                    self._connection.send(message)
                except OSError:
                    raise
                except Exception:  # An error in one message must not end the sending of others.
                    log.exception("a message cannot be sent")
                    if message[0] in ("result", "error"):
                        self._connection.send(("error", message[1], EngineError("its result cannot be sent")))


class RunOutput:
    """Stands for the RequestRun of the server's process: notes what the engine delivers, for the message of the step.

    The engine thread calls its methods, except `cancel` and `suspend`.
    """

    def __init__(self, id: int, outputs: list[Message], on_end: Callable[[int], None]) -> None:
        self._id = id
        self._outputs = outputs
        self._on_end = on_end
        self._n_open = 0
        self.cancel: Callable[[int], None]
        self.suspend: Callable[[bool], None]

    def begin(
        self,
        requests: Sequence[GenerationRequest],
        backend: object,
        cancel: Callable[[int], None],
        suspend: Callable[[bool], None],
    ) -> Any:
        """Has the arguments of RequestRun, for which the engine takes it."""
        self._n_open, self.cancel, self.suspend = len(requests), cancel, suspend
        return self

    def start(self, index: int, n_cached: int, at: float) -> None:
        self._outputs.append((self._id, "start", index, n_cached, at))

    def deliver(self, index: int, item: Item, at: float) -> None:
        self._outputs.append((self._id, "deliver", index, item, at))
        if isinstance(item, (Ended, EngineError)):
            self._n_open -= 1
            if self._n_open == 0:
                self._on_end(self._id)

    def add_prompt_logprob(self, index: int, logprob: float, top: list[tuple[int, float]]) -> None:
        self._outputs.append((self._id, "add_prompt_logprob", index, logprob, top))

    def count_draft(self, index: int, n_drafted: int, n_accepted: int) -> None:
        self._outputs.append((self._id, "count_draft", index, n_drafted, n_accepted))


class Calls:
    """The methods that the server's process may call. Each gets the id of the call as its first argument."""

    def __init__(self, sender: Sender) -> None:
        self.runs: dict[int, RunOutput] = {}
        # The ids of the calls that the server's process no longer waits for.
        self.abandoned: set[int] = set()
        self._sender = sender
        self._outputs: list[Message] = []
        self._engine: Engine | None = None

    @property
    def engine(self) -> Engine:
        assert self._engine is not None, "load is the first call"
        return self._engine

    def load(self, id: int, request: LoadRequest) -> tuple[ModelFacts, TokenTexts]:
        _log_to(self._sender, request.log_levels)
        if request.options.use_extra_bufts and has_matrix_instructions():
            # If this machine faults at these instructions, then here, before a large file has been read.
            load(str(DEMO_PATH), LoadOptions(n_ctx=512, n_parallel=1, n_gpu_layers=0)).close()
        self._engine = load(
            request.path,
            request.options,
            draft_path=request.draft_path,
            max_queue=request.max_queue,
            progress=lambda share: self._sender.send("progress", share),
            after_step=self._send_step,
        )
        threading.Thread(target=self._end_with, args=(self._engine,), daemon=True).start()
        # The existing objects live as long as the process. A collection of all of them would delay a step.
        gc.freeze()
        return self._engine.facts, self._engine.backend.token_texts()

    def submit(self, id: int, requests: Sequence[GenerationRequest]) -> None:
        run = self.runs[id] = RunOutput(id, self._outputs, self._forget_run)
        try:
            self.engine.submit(requests, run.begin)
        except BaseException:
            self._forget_run(id)
            raise

    def tokenize(self, id: int, text: str, add_bos: bool, parse_special: bool, limit: int | None) -> array[int]:
        tokens = self.engine.tokenize(text, add_bos=add_bos, parse_special=parse_special, limit=limit)
        return array("i", tokens)  # which takes a tenth of the time to send

    def tokenize_prompt(self, id: int, parts: Sequence[tuple[str, bool]], add_bos: bool) -> array[int]:
        return array("i", self.engine.tokenize_prompt(parts, add_bos=add_bos))

    def pair_tokens(self, id: int, query: str, documents: Sequence[str]) -> list[list[int]]:
        return self.engine.pair_tokens(query, documents)

    def embed(self, id: int, inputs: Sequence[Sequence[int]]) -> list[array[float]]:
        try:
            return self.engine.embed(inputs, lambda: id in self.abandoned)
        finally:
            self.abandoned.discard(id)

    def stats(self, id: int) -> EngineStats:
        return self.engine.stats()

    def running(self, id: int) -> list[SequenceStats]:
        return self.engine.running()

    def answer(self, id: int, method: str, arguments: Message) -> None:
        """Call a method, and send its result or its error."""
        try:
            value = getattr(self, method)(id, *arguments)
        except Exception as error:
            if not isinstance(error, EngineError):
                log.debug("the call %s failed", method, exc_info=True)
            self._sender.send("error", id, error)
        else:
            self._sender.send("result", id, value)

    def _send_step(self) -> None:
        """Runs on the engine thread after each step."""
        if self._outputs:
            self._sender.send("step", self._outputs.copy())
            self._outputs.clear()

    def _end_with(self, engine: Engine) -> None:
        """End this process when its engine has failed for good: the server then starts another one."""
        engine.join()
        self._send_step()
        self._sender.close()
        os._exit(1)

    def _forget_run(self, id: int) -> None:
        self.runs.pop(id, None)


class _LogHandler(logging.Handler):
    """Sends the log to the server's process, which has its format."""

    def __init__(self, sender: Sender) -> None:
        super().__init__()
        self._sender = sender

    def emit(self, record: logging.LogRecord) -> None:
        self._sender.send("log", record.name, record.levelno, self.format(record))


def _log_to(sender: Sender, levels: Sequence[tuple[str, int]]) -> None:
    logging.getLogger("localchat").handlers = [_LogHandler(sender)]
    threading.excepthook = lambda error: log.error("a thread failed", exc_info=error.exc_value)
    for name, level in levels:
        logging.getLogger(name).setLevel(level)


def _serve(connection: Connection, calls: Calls) -> None:
    """Receive messages until the server closes or ends."""
    threads = ThreadPoolExecutor(_MAX_THREADS)
    while True:
        kind, *values = connection.recv()
        if kind == "call":
            threads.submit(calls.answer, *values)
        elif kind == "abandon":
            calls.abandoned.add(values[0])
        elif kind == "close":
            return
        else:
            id, value = values
            run = calls.runs.get(id)
            if run is not None:
                getattr(run, kind)(value)


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
    sender = Sender(connection)
    try:
        _serve(connection, Calls(sender))
    except (EOFError, OSError):
        pass  # The server has ended.
    except BaseException:
        traceback.print_exc()
        sender.close()
        os._exit(1)
    # The system frees the memory of the model at once, and nothing is left to be saved.
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
