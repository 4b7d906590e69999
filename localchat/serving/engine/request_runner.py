"""The engine's side of the messages that engine_client.py lists: runs each request, and sends what it produces.

It runs in the engine process. The server is the other process.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ..core.errors import INTERNAL_ERROR, ApiError, out_of_resources
from ..core.media import MediaFile
from .delivery import Delivery
from .engine import Engine, SequenceGroup
from .values import EngineError, EngineStats, PromptPart, SequenceRequest, StepOutput

log = logging.getLogger("localchat.engine")

Message = tuple[Any, ...]


class _Dropped(Exception):
    """The request was dropped while it ran, so it has no result."""


class RunningRequest:
    """A request of the server that runs in this process, which is the engine process."""

    def __init__(self, id: int) -> None:
        self.id = id
        self.is_dropped = False
        self.group: SequenceGroup | None = None  # Its sequences, once they are prepared.

    def check(self) -> None:
        if self.is_dropped:
            raise _Dropped


class RequestRunner:
    """Runs the requests of one server on an engine."""

    engine: Engine

    def __init__(
        self,
        send: Callable[[Sequence[Message]], None],
        run_on_thread: Callable[[Callable[[], None]], None],
        delivery: type[Delivery] = Delivery,
    ) -> None:
        """`send` sends messages; any thread calls it, except the one that calls `receive`.

        `run_on_thread` runs a function on another thread, some time later.
        """
        self._send = send
        self._run_on_thread = run_on_thread
        self._requests: dict[int, RunningRequest] = {}
        self.delivery = delivery(send)

    def receive(self, kind: str, id: int, *values: Any) -> None:
        """Take a message. Runs on the thread that receives them: it sends nothing and waits for nothing."""
        if kind == "drop":
            self._drop(id, *values)
            return
        engine = getattr(self, "engine", None)
        if engine is not None and engine.failure is not None:
            return  # The process is about to end. The request is not accepted, so another process runs it.
        request = self._requests[id] = RunningRequest(id)
        self._run_on_thread(partial(self._run, request, *values))

    def _drop(self, id: int, index: int | None) -> None:
        request = self._requests.get(id)
        if request is None:
            return
        if index is None:
            request.is_dropped = True
        if request.group is not None:
            self.engine.drop(request.group, index)

    def _run(self, request: RunningRequest, method: str, arguments: Sequence[Any]) -> None:
        """Run a request to its end; one for sequences, until they are queued."""
        error: Exception | None = None
        self._send([("accepted", request.id)])
        try:
            request.check()
            getattr(self, method)(request, *arguments)
        except _Dropped:
            self._requests.pop(request.id, None)
            return
        except BaseException as failure:  # A panic of a library in Rust is no Exception.
            known = failure if isinstance(failure, ApiError) else out_of_resources(failure)
            if known is None:
                log.error("the request %s failed", method, exc_info=True)
            # Errors of other classes may not exist in the server's process.
            text = (str(failure) or type(failure).__name__) if method == "load" else INTERNAL_ERROR
            error = known or EngineError(text)
        # Without an error, queued sequences go on: the function `end` of `generate` ends their request.
        if error is not None or request.group is None:
            self._end(request, error)

    def _end(self, request: RunningRequest, error: Exception | None) -> None:
        self._requests.pop(request.id, None)
        self._send([("ended", request.id, error)])

    def _output(self, request: RunningRequest, value: Any) -> None:
        self._send([("output", request.id, value)])

    # --- the methods of requests ---

    def generate(self, request: RunningRequest, sequences: Sequence[SequenceRequest]) -> None:
        def deliver(output: StepOutput) -> None:
            self.delivery.add(request.id, output)

        def end(error: Exception | None) -> None:
            self._requests.pop(request.id, None)
            self.delivery.end(request.id, error)

        group = self.engine.prepare(sequences, deliver, end, request.check)
        request.group = group
        # The first output comes with the start. An engine that has failed before can pass the request to another one.
        self.engine.submit(group, partial(self.delivery.start, request.id, group.prompts))
        if request.is_dropped:  # Perhaps before `submit`, when it had no sequences that could be dropped.
            self.engine.drop(group)

    def tokenize(self, request: RunningRequest, text: str, options: Mapping[str, bool]) -> None:
        self._output(request, self.engine.backend.tokenize(text, **options))

    def tokenize_prompt(self, request: RunningRequest, parts: Sequence[PromptPart], add_bos: bool) -> None:
        self._output(request, self.engine.prompts.tokenize_prompt(parts, add_bos=add_bos))

    def count_tokens(self, request: RunningRequest, parts: Sequence[PromptPart], add_bos: bool) -> None:
        self._output(request, len(self.engine.prompts.tokenize_prompt(parts, add_bos=add_bos)))

    def media_errors(self, request: RunningRequest, media: Sequence[MediaFile]) -> None:
        self._output(request, self.engine.prompts.media_errors(media, request.check))

    def embed(self, request: RunningRequest, inputs: Sequence[str | Sequence[int]], options: Mapping[str, Any]) -> None:
        vectors: tuple[list[array[float]], int] = self.engine.vectors.embed(inputs, check=request.check, **options)
        self._output(request, vectors)

    def stats(self, request: RunningRequest) -> None:
        stats: EngineStats = self.engine.stats()
        self._output(request, stats)
