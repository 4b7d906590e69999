"""The server's side of an engine: starts requests in it, and passes what it produces to the threads that wait.

Each request has one id, which this side chooses. Two messages go to the engine:

    ("start", id, method, arguments)    start a request: a method of `RequestRunner` (request_runner.py)
    ("drop", id, index)                 end the sequence `index` of a request, or all of it if the index is None;
                                        nothing more is expected of it

Lists of these messages come from the engine:

    ("accepted", id)                    the engine has taken the request
    ("output", id, value)               a result of the request
    ("steps", outputs)                  what steps produced for sequences: (id, *fields of StepOutput)
    ("ended", id, error)                the end of the request; the error is None if it succeeded
    ("log", record)                     a record of the log

If an engine dies, all of its requests end with an error. Those that it had not accepted end with EngineGone, and may be
sent to another engine. The thread that receives messages never sends one, and waits for nobody: it puts what it gets
into the mailboxes of the requests.
"""

from __future__ import annotations

import abc
import itertools
import logging
import threading
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from ..core.errors import ApiError
from ..core.mailbox import Mailbox
from ..core.media import MediaFile
from .values import (
    EngineDied,
    EngineGone,
    EngineSilent,
    EngineStats,
    EngineStopped,
    ModelFacts,
    PromptPart,
    SequenceRequest,
    StepOutput,
    TokenTexts,
    check_queue,
)

# How long a request without a mailbox of its own may take, such as one that tokenizes a text, and one for statistics.
_REQUEST_S, _STATS_S = 60.0, 3.0


class _Ended(NamedTuple):
    """The last item of a request in its mailbox."""

    error: Exception | None


class EngineRequest:
    """A request to the engine. Only the thread that started it calls its methods."""

    def __init__(self, client: EngineClient, id: int, mailbox: Mailbox, n_sequences: int) -> None:
        self.id = id
        self.mailbox = mailbox
        self.is_accepted = False  # Set by the thread that receives messages.
        # The indexes of the sequences that have not ended. Both threads discard indexes, which is atomic.
        self.unfinished = set(range(n_sequences))
        self._client = client
        self._has_ended = False
        self._error: Exception | None = None

    def take(self, timeout_s: float | None = None) -> list[Any]:
        """Wait for outputs, and return all that have arrived; none at the end, and after `timeout_s`.

        Raises the error that ended the request, after its last outputs, and what the mailbox raises.
        """
        outputs: list[Any] = []
        for item in () if self._has_ended else self.mailbox.take(self, timeout_s):
            if isinstance(item, _Ended):
                self._has_ended, self._error = True, item.error
            else:
                outputs.append(item)
        if self._error is not None and not outputs:
            if isinstance(self._error, EngineGone):
                self._client.wait_until_dead()
            raise self._error
        return outputs

    def result(self, timeout_s: float | None = None) -> Any:
        """Wait for the one output of a request that has one. Drops the request if this fails."""
        try:
            outputs = self.take(timeout_s)
        except BaseException:
            self.drop()
            raise
        if not outputs:
            self.drop()
            raise EngineSilent(timeout_s or 0)
        return outputs[0]

    def drop(self, index: int | None = None) -> None:
        """End one sequence of the request, or the request. What it still produces is ignored."""
        self._client.drop(self, index)


class EngineClient(abc.ABC):
    """Starts requests in one engine. Any thread may call its methods, which raise the errors of the engine."""

    facts: ModelFacts
    texts: TokenTexts
    max_open: int  # The limit of open sequences, which run or wait in the engine.

    def __init__(self, send: Callable[[tuple[Any, ...]], None]) -> None:
        """`send` sends a message to the engine. It must not wait."""
        self._send = send
        self._ids = itertools.count()
        # Guards the next two. Nothing waits while it is held.
        self._lock = threading.Lock()
        self._requests: dict[int, EngineRequest] = {}  # The requests that have not ended, by their ids.
        # Why the engine has ended; None while it lives.
        self.death: EngineDied | EngineStopped | None = None

    @property
    def has_died(self) -> bool:
        """Whether the engine has ended by itself, so that the model must be loaded again."""
        return isinstance(self.death, EngineDied)

    @property
    def n_open(self) -> int:
        """The sequences that run or wait."""
        return sum(len(request.unfinished) for request in list(self._requests.values()))

    @property
    def n_requests(self) -> int:
        """The requests that have not ended."""
        return len(self._requests)

    def wait_until_dead(self) -> None:  # noqa: B027, since most engines need not wait
        """Wait for the end of an engine that has failed, which comes a moment later."""

    @abc.abstractmethod
    def stop(self) -> None:
        """End the engine; do not wait. Its requests end with EngineStopped."""

    @abc.abstractmethod
    def close(self) -> None:
        """End the engine, and wait until it has ended."""

    # --- requests ---

    def generate(self, requests: Sequence[SequenceRequest], mailbox: Mailbox) -> EngineRequest:
        """Start the sequences of one request, all or none.

        The first output has the TokenizedPrompts, and comes when the sequences are queued. Then come StepOutputs.

        Raises QueueFull. The request ends with ContextLengthExceeded for a prompt that leaves no space for one token of
        output; BadRequest for an empty prompt, a token id that the vocabulary does not have, or an invalid grammar;
        NotSupported if the model makes embeddings only; EngineStopped; EngineDied; EngineGone.
        """
        return self._start("generate", (requests,), mailbox, len(requests))

    def tokenize(self, text: str, mailbox: Mailbox | None = None, **options: bool) -> list[int]:
        """The token ids of a text. `options` are those of `Backend.tokenize`."""
        tokens: list[int] = self._result("tokenize", mailbox, text, options)
        return tokens

    def tokenize_prompt(
        self, parts: Iterable[PromptPart], mailbox: Mailbox | None = None, *, add_bos: bool = False
    ) -> list[int]:
        tokens: list[int] = self._result("tokenize_prompt", mailbox, list(parts), add_bos)
        return tokens

    def count_tokens(
        self, parts: Iterable[PromptPart], mailbox: Mailbox | None = None, *, add_bos: bool = False
    ) -> int:
        """The number of tokens of a prompt, which may be larger than the context."""
        n_tokens: int = self._result("count_tokens", mailbox, list(parts), add_bos)
        return n_tokens

    def media_errors(self, media: Iterable[MediaFile], mailbox: Mailbox) -> list[ApiError | None]:
        """Why each image or sound cannot be used; None for those that can."""
        errors: list[ApiError | None] = self._result("media_errors", mailbox, list(media))
        return errors

    def embed(
        self, inputs: Sequence[str | Sequence[int]], mailbox: Mailbox | None = None, **options: Any
    ) -> tuple[list[array[float]], int]:
        """The vector of each input, and the number of their tokens; see `VectorInputs.embed`."""
        vectors: tuple[list[array[float]], int] = self._result("embed", mailbox or Mailbox(), inputs, options)
        return vectors

    def stats(self, timeout_s: float = _STATS_S) -> EngineStats:
        """The state of the engine; that of one without requests if it has ended.

        Raises EngineSilent if a living one does not respond in time.
        """
        try:
            stats: EngineStats = self._start("stats", (), Mailbox()).result(timeout_s)
            return stats
        except (EngineDied, EngineStopped):
            return EngineStats()

    def _result(self, method: str, mailbox: Mailbox | None, *arguments: Any) -> Any:
        """The result of a request. With a mailbox, the waiting ends when the mailbox says so, else after a minute."""
        request = self._start(method, arguments, mailbox or Mailbox())
        return request.result(_REQUEST_S if mailbox is None else None)

    def _start(self, method: str, arguments: tuple[Any, ...], mailbox: Mailbox, n_sequences: int = 0) -> EngineRequest:
        request = EngineRequest(self, next(self._ids), mailbox, n_sequences)
        with self._lock:
            if self.death is not None:
                raise _refusal(self.death)
            if n_sequences:
                check_queue(n_sequences, self.n_open, self.max_open)
            self._requests[request.id] = request
        try:
            self._send(("start", request.id, method, arguments))
        except BaseException:  # The arguments cannot be sent.
            with self._lock:
                self._requests.pop(request.id, None)
            raise
        return request

    def drop(self, request: EngineRequest, index: int | None) -> None:
        if index is None:
            with self._lock:
                is_open = self._requests.pop(request.id, None) is not None
            if not is_open:
                return
        else:
            request.unfinished.discard(index)
        self._send(("drop", request.id, index))

    # --- what the thread calls that receives the messages of the engine ---

    def receive(self, messages: Iterable[tuple[Any, ...]]) -> None:
        for kind, *values in messages:
            if kind == "steps":
                for id, *fields in values[0]:
                    request = self._requests.get(id)
                    if request is not None:
                        output = StepOutput(*fields)
                        if output.end is not None:
                            request.unfinished.discard(output.sequence)
                        request.mailbox.put(request, output)
            elif kind == "log":
                logging.getLogger(values[0].name).handle(values[0])
            else:
                self._receive(kind, *values)

    def _receive(self, kind: str, id: int, value: Any = None) -> None:
        request = self._requests.get(id)
        if request is None:  # It was dropped.
            return
        if kind == "accepted":
            request.is_accepted = True
        elif kind == "output":
            request.mailbox.put(request, value)
        else:
            self._end(request, value)

    def _end(self, request: EngineRequest, error: Exception | None) -> None:
        with self._lock:
            self._requests.pop(request.id, None)
        request.mailbox.put(request, _Ended(error))

    def end(self, death: EngineDied | EngineStopped) -> None:
        """The engine has ended: end all of its requests."""
        with self._lock:
            self.death = death
            requests = list(self._requests.values())
        for request in requests:
            self._end(request, death if request.is_accepted else _refusal(death))


def _refusal(death: EngineDied | EngineStopped) -> EngineDied | EngineStopped:
    """The error of a request that an engine has not taken before its end: another engine may run it."""
    return death if isinstance(death, EngineStopped) else EngineGone(str(death), death.killed_by)
