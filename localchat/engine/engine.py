"""The engine thread: it alone touches the backend's context; any number of threads submit and iterate.

A turn is: drain the inbox, schedule, decode, draw, deliver. It blocks only when there is nothing to
run. Knows the `Backend` protocol, never llama.cpp. Every generation ends with exactly one Finish or
one EngineError, on every path: a stop, a cancel, a failed turn, a closed engine.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Optional, Protocol, Union

from .scheduler import Batch, Scheduler, Sequence
from .text import TextStream
from .values import (
    Cancelled,
    Delta,
    EngineError,
    EngineStopped,
    Finish,
    GenerationRequest,
    InvalidToken,
    ModelFacts,
    OutputToken,
    PromptTooLong,
    QueueFull,
    Sampling,
    TokenLogprob,
)

log = logging.getLogger("localchat.engine")

# As many failed turns in a row mean that the next one will fail too: the engine gives up and says so.
_MAX_FAILED_TURNS = 3


class NoRoom(Exception):
    """The backend found no free cells for a batch; nothing has been changed."""


class DecodeFailed(Exception):
    """The backend could not compute a batch; its sequences have to be computed again from the start."""


class Backend(Protocol):
    """What the engine needs of a model in memory. Methods that touch the context run on the engine thread only."""

    facts: ModelFacts
    n_batch: int

    def tokenize(self, text: str, *, add_bos: bool = False, parse_special: bool = True) -> list[int]:
        """Text to token ids; any thread."""

    def piece(self, token: int) -> bytes:
        """The bytes that a token stands for, empty for control tokens; any thread."""

    def is_end(self, token: int) -> bool:
        """Whether the model ends its answer with this token; any thread."""

    def new_sampler(self, sampling: Sampling, prompt: list[int]) -> Any:
        """The state that draws one request's tokens."""

    def free_sampler(self, sampler: Any) -> None: ...

    def clear(self, slot: int) -> None:
        """Frees all cells of a slot."""

    def decode(self, batch: Batch) -> None:
        """Computes a batch. Raises NoRoom or DecodeFailed."""

    def sample(self, sampler: Any, row: int) -> int:
        """Draws from the logits of an output row of the last batch."""

    def logprobs(self, row: int, token: int, n_top: int) -> tuple[float, list[tuple[int, float]]]:
        """The log probability of `token` in an output row, and the `n_top` likeliest tokens with theirs."""

    def n_cells_used(self) -> int:
        """Cells that hold something, counted in the memory itself."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class EngineStats:
    """A glance at the engine; taken without stopping it, so the figures may be of two neighbouring turns."""

    n_running: int
    n_waiting: int
    n_cells_used: int
    n_tokens_computed: int
    n_tokens_drawn: int


@dataclass(frozen=True)
class _Ended:
    """The engine thread's last word on a generation that ended by itself."""

    reason: str
    stop: Optional[int]


# A drawn token; with log probabilities a tuple of the token, its own and the likeliest ones.
_Drawn = Union[int, "tuple[int, float, list[tuple[int, float]]]"]


class Generation:
    """The tokens of one request as they are drawn: an iterator of Delta, then one Finish.

    Iterating raises EngineError when the generation ends otherwise, once. Leaving the `with` cancels
    what is still running. One thread iterates; `cancel` may be called from any.
    """

    def __init__(self, engine: Engine, request: GenerationRequest, sequence: Sequence):
        self.request = request
        self.n_prompt = len(request.prompt)
        self._engine = engine
        self._backend = engine.backend
        self._outbox: SimpleQueue[Union[_Drawn, _Ended, EngineError]] = SimpleQueue()
        self._text = TextStream(request.stop)
        self._n_drawn = 0
        # The end, from when it is known until it is handed out; `_is_over` from then on.
        self._end: Union[Finish, EngineError, None] = None
        self._is_over = False
        # Owned by the engine thread.
        self.sequence = sequence
        self.sampler: Any = None
        self.has_ended = False
        # Written by the engine thread before the token it belongs to is delivered.
        self._submitted_at = self._first_at = self._last_at = time.perf_counter()

    def __enter__(self) -> Generation:
        return self

    def __exit__(
        self, type: Optional[type[BaseException]], value: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        if self._end is None and not self._is_over:
            self.cancel()

    def __iter__(self) -> Iterator[Union[Delta, Finish]]:
        return self

    def __next__(self) -> Union[Delta, Finish]:
        if self._is_over:
            raise StopIteration
        if self._end is None:
            delta = self._read(self._ready())
            if self._end is None or delta.text or delta.tokens:
                return delta
        self._is_over = True
        if isinstance(self._end, EngineError):
            raise self._end
        assert self._end is not None
        return self._end

    def cancel(self) -> None:
        """Ends the generation within one turn; who iterates then gets Cancelled."""
        self._engine.post(lambda: self._engine.end(self, Cancelled("the generation was cancelled")))

    def deliver(self, drawn: _Drawn) -> None:
        """Runs on the engine thread."""
        self._last_at = time.perf_counter()
        if self._n_delivered == 0:
            self._first_at = self._last_at
        self._outbox.put(drawn)

    def close_outbox(self, end: Union[_Ended, EngineError]) -> None:
        """Runs on the engine thread, or where the engine thread is no more."""
        self._outbox.put(end)

    @property
    def _n_delivered(self) -> int:
        return len(self.sequence.tokens) - self.n_prompt - 1

    def _ready(self) -> list[Union[_Drawn, _Ended, EngineError]]:
        # Waits for one item and takes what else is there: a slow reader gets fewer, larger deltas.
        items = [self._outbox.get()]
        try:
            while True:
                items.append(self._outbox.get_nowait())
        except Empty:
            return items

    def _read(self, items: list[Union[_Drawn, _Ended, EngineError]]) -> Delta:
        """The items up to the first one that ends the generation, as one delta."""
        texts, tokens = [], []
        for item in items:
            if isinstance(item, EngineError):
                texts.append(self._text.finish())
                self._end = item
                break
            if isinstance(item, _Ended):
                texts.append(self._text.finish())
                stopped_by = self._text.stopped_by
                self._end = (
                    self._finish(item.reason, item.stop) if stopped_by is None else self._finish("stop", stopped_by)
                )
                break
            token = self._output_token(item)
            self._n_drawn += 1
            if self._backend.is_end(token.id) or token.id in self.request.stop_token_ids:
                continue  # counted, not shown; the end follows
            texts.append(self._text.feed(token.piece))
            tokens.append(token)
            if self._text.stopped_by is not None:
                self.cancel()
                self._end = self._finish("stop", self._text.stopped_by)
                break
        return Delta("".join(texts), tuple(tokens))

    def _output_token(self, drawn: _Drawn) -> OutputToken:
        piece = self._backend.piece
        if isinstance(drawn, int):
            return OutputToken(drawn, piece(drawn))
        token, logprob, top = drawn
        return OutputToken(token, piece(token), logprob, tuple(TokenLogprob(id, piece(id), p) for id, p in top))

    def _finish(self, reason: str, stop: Union[str, int, None]) -> Finish:
        return Finish(
            reason=reason,
            stop=stop,
            prompt_tokens=self.n_prompt,
            cached_tokens=0,
            completion_tokens=self._n_drawn,
            prompt_s=self._first_at - self._submitted_at,
            completion_s=self._last_at - self._first_at,
        )


class Engine:
    """Runs generations on a backend. `start` begins the thread; tests may call `step` instead.

    `max_queue` bounds the requests beyond those that the slots can run; further ones get QueueFull.
    """

    def __init__(self, backend: Backend, *, max_queue: int = 256):
        facts = backend.facts
        self.backend = backend
        self.facts = facts
        self.failure: Optional[BaseException] = None
        self._scheduler = Scheduler(facts.n_cells, facts.n_slots, backend.n_batch)
        self._thread: Optional[threading.Thread] = None
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._max_open = facts.n_slots + max_queue
        # Guards what submitters and the engine thread share: the count of open generations and the end.
        self._lock = threading.Lock()
        self._n_open = 0
        self._is_closed = False
        # Owned by the engine thread.
        self._live: dict[int, Generation] = {}
        self._next_id = 0
        self._n_failed_turns = 0
        self._is_stopping = False
        self._n_computed = 0
        self._n_drawn = 0

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, type: Optional[type[BaseException]], value: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()

    def start(self) -> Engine:
        self._thread = threading.Thread(target=self._run, name="localchat-engine")
        self._thread.start()
        return self

    def close(self) -> None:
        """Ends all generations with EngineStopped and frees the model. Waits for the turn in progress."""
        with self._lock:
            was_closed, self._is_closed = self._is_closed, True
        if was_closed:
            return
        self.post(self._stop)
        if self._thread is None:
            self._drain_inbox()
        else:
            self._thread.join()
        self._fail_all(EngineStopped("the engine has been closed"))
        self.backend.close()

    def submit(self, request: GenerationRequest) -> Generation:
        """Queues a request and returns at once; any thread.

        Raises:
            PromptTooLong: the prompt leaves no room for one token of answer.
            InvalidToken: a token id that the vocabulary does not have, or an empty prompt.
            QueueFull: too many requests wait.
            EngineStopped: the engine is closed or has failed.
        """
        self._check(request)
        n_prompt, n_ctx = len(request.prompt), self.facts.n_ctx
        max_tokens = n_ctx if request.max_tokens is None else min(n_ctx, n_prompt + request.max_tokens)
        with self._lock:
            if self._is_closed or self.failure is not None:
                raise EngineStopped(f"the engine has stopped: {self.failure or 'it was closed'}")
            if self._n_open >= self._max_open:
                raise QueueFull(f"{self._n_open} requests are open and {self._max_open} are the limit: try again later")
            self._n_open += 1
            self._next_id += 1
            sequence = Sequence(self._next_id, list(request.prompt), max_tokens)
            generation = Generation(self, request, sequence)
            # Inside the lock: nothing can be queued behind the close that would then never be seen.
            self.post(lambda: self._add(generation))
        return generation

    def tokenize(self, text: str, *, add_bos: bool = False, parse_special: bool = True) -> list[int]:
        """Text to token ids, on any thread. With `parse_special`, text like <|im_end|> becomes the control token."""
        return self.backend.tokenize(text, add_bos=add_bos, parse_special=parse_special)

    def stats(self) -> EngineStats:
        scheduler = self._scheduler
        return EngineStats(
            n_running=len(scheduler.running),
            n_waiting=len(scheduler.waiting),
            n_cells_used=scheduler.n_cells_used,
            n_tokens_computed=self._n_computed,
            n_tokens_drawn=self._n_drawn,
        )

    def post(self, command: Callable[[], None]) -> None:
        """Has the engine thread run a command before its next turn."""
        self._inbox.put(command)

    def step(self) -> bool:
        """One turn; False when there was nothing to run. Runs on the engine thread."""
        self._drain_inbox()
        batch = self._scheduler.schedule()
        try:
            for slot in batch.cleared:
                self.backend.clear(slot)
            if not batch.parts:
                return False
            self._turn(batch)
            self._n_failed_turns = 0
        except Exception as error:
            self._turn_failed(error)
        return True

    def end(self, generation: Generation, end: Union[_Ended, EngineError]) -> None:
        """Gives a generation its one end; later ones are ignored. Runs on the engine thread."""
        if generation.has_ended:
            return
        generation.has_ended = True
        if self._live.pop(generation.sequence.id, None) is not None:
            self._scheduler.remove(generation.sequence)
        if generation.sampler is not None:
            self.backend.free_sampler(generation.sampler)
            generation.sampler = None
        with self._lock:
            self._n_open -= 1
        generation.close_outbox(end)

    def _check(self, request: GenerationRequest) -> None:
        n_vocab, n_ctx = self.facts.n_vocab, self.facts.n_ctx
        if len(request.prompt) >= n_ctx:
            raise PromptTooLong(len(request.prompt), n_ctx)
        if not request.prompt:
            raise InvalidToken("the prompt is empty: it needs one token at least")
        ids = (*request.prompt, *request.stop_token_ids, *(id for id, _ in request.sampling.logit_bias))
        if min(ids) < 0 or max(ids) >= n_vocab:
            raise InvalidToken(f"token ids go from 0 to {n_vocab - 1}; the request has {min(ids)} to {max(ids)}")

    def _run(self) -> None:
        while not self._is_stopping:
            if not self.step() and not self._is_stopping:
                self._inbox.get()()

    def _stop(self) -> None:
        self._is_stopping = True

    def _drain_inbox(self) -> None:
        try:
            while True:
                self._inbox.get_nowait()()
        except Empty:
            return

    def _add(self, generation: Generation) -> None:
        if generation.has_ended:
            return
        try:
            generation.sampler = self.backend.new_sampler(generation.request.sampling, list(generation.request.prompt))
            self._scheduler.add(generation.sequence)
            self._live[generation.sequence.id] = generation
        except Exception as error:
            log.exception("a request could not be started")
            self.end(generation, EngineError(f"the request could not be started: {error}"))

    def _turn(self, batch: Batch) -> None:
        try:
            self.backend.decode(batch)
        except NoRoom:
            if not self._scheduler.shrink(batch):
                sequence = batch.parts[0].sequence
                error = EngineError(
                    f"the context's memory has no room for {len(sequence.tokens)} tokens: use a smaller --ctx"
                )
                self.end(self._live[sequence.id], error)
        except DecodeFailed as error:
            self._isolate(batch, error)
        else:
            self._deliver(batch)

    def _isolate(self, batch: Batch, error: DecodeFailed) -> None:
        """One request's trouble is that request's alone: each sequence runs by itself, and what fails alone ends."""
        log.warning("a batch of %d sequences failed (%s); they now run one by one", len(batch.parts), error)
        for single in batch.alone():
            generation = self._live[single.parts[0].sequence.id]
            try:
                self.backend.decode(single)
            except (NoRoom, DecodeFailed) as own_error:
                self.end(generation, EngineError(f"the model could not compute this request: {own_error}"))
            else:
                self._deliver(single)

    def _deliver(self, batch: Batch) -> None:
        drawn: list[int] = []
        ended: list[tuple[Generation, Union[_Ended, EngineError]]] = []
        delivered: list[tuple[Generation, _Drawn]] = []
        for part in batch.outputs():
            generation = self._live[part.sequence.id]
            try:
                item = self._draw(generation, part.output_row)
            except Exception as error:
                log.exception("drawing a token failed")
                ended.append((generation, EngineError(f"drawing a token failed: {error}")))
                drawn.append(0)
                continue
            drawn.append(item if isinstance(item, int) else item[0])
            delivered.append((generation, item))
        self._scheduler.update(batch, drawn)
        self._n_computed += batch.n_tokens
        self._n_drawn += len(delivered)
        for generation, item in delivered:
            generation.deliver(item)
            natural_end = self._natural_end(generation)
            if natural_end is not None:
                ended.append((generation, natural_end))
        for generation, end in ended:
            self.end(generation, end)

    def _draw(self, generation: Generation, row: int) -> _Drawn:
        token = self.backend.sample(generation.sampler, row)
        n_top = generation.request.top_logprobs
        if n_top is None:
            return token
        return (token, *self.backend.logprobs(row, token, n_top))

    def _natural_end(self, generation: Generation) -> Optional[_Ended]:
        token = generation.sequence.tokens[-1]
        if self.backend.is_end(token):
            return _Ended("stop", None)
        if token in generation.request.stop_token_ids:
            return _Ended("stop", token)
        if generation.sequence.is_full:
            return _Ended("length", None)
        return None

    def _turn_failed(self, error: Exception) -> None:
        """A bug or a broken backend: this turn's requests end with an error, and the next ones get their chance."""
        log.exception("a turn failed")
        self._n_failed_turns += 1
        if self._n_failed_turns >= _MAX_FAILED_TURNS:
            with self._lock:
                self.failure = error
            log.critical("%d turns failed in a row: the engine has stopped", self._n_failed_turns)
        self._fail_all(EngineError("the engine failed while it computed this request; the server's log has the cause"))

    def _fail_all(self, error: EngineError) -> None:
        for generation in list(self._live.values()):
            self.end(generation, error)
