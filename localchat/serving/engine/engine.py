"""The engine: one thread that runs the sequences of all requests on one model, step by step.

A step drains the inbox, schedules, decodes, samples and delivers. The thread waits only when there is nothing to run.
Only the engine thread uses the context of the backend. Every sequence ends with exactly one finish reason or error, on
every path: a stop, a cancel, a failed step, a closed engine. The engine uses the `Backend` protocol, not llama.cpp.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import threading
import time
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Many
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue

from ..core.errors import ContextLengthExceeded, NotSupported
from .backend import Backend, DecodeFailed, NoFreeCells, Sampler
from .batch import Batch, BatchChunk, Sequence
from .drafts import DraftModel, look_up_drafts
from .kv_cache import KVCache
from .run import RequestRun
from .scheduler import Scheduler
from .token_sampler import TokenRun, TokenSampler
from .values import (
    Cancelled,
    End,
    EngineDied,
    EngineError,
    EngineStats,
    EngineStopped,
    GenerationRequest,
    ModelFacts,
    StepOutput,
    check_queue,
    check_tokens,
)

log = logging.getLogger("localchat.engine")

# The tokens of a prompt that does not fit are counted up to this number, which takes less than a second.
_COUNTED_TOKENS = 100_000


class Engine:
    """Runs requests on a backend. `start` starts the thread; a test may call `step` instead."""

    def __init__(
        self,
        backend: Backend,
        *,
        max_queue: int = 256,
        draft_backend: Backend | None = None,
        after_step: Callable[[], None] = lambda: None,
    ):
        """The engine owns both backends and closes them.

        Args:
            max_queue: The limit of waiting sequences; further ones get QueueFull.
            draft_backend: A smaller model of the same vocabulary for speculative decoding.
            after_step: Called on the engine thread when the output of a step has been delivered, before the next step
                is decoded, which waits for it: it must only pass the output on.
        """
        self.backend = backend
        self.facts = backend.facts
        self.texts = backend.texts
        self.tokenize, self.embed, self.pair_tokens = backend.tokenize, backend.embed, backend.pair_tokens
        # The error that stopped the engine thread, if one did.
        self.failure: BaseException | None = None
        # The limit of open sequences: those that run or wait.
        self.max_open = self.facts.n_parallel + max_queue
        self._after_step = after_step
        self._thread: threading.Thread | None = None
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._is_closed = False
        # Guards what submitting threads and the engine thread share: the next three.
        self._lock = threading.Lock()
        self._open: dict[int, Sequence] = {}
        self._last_id = 0
        # The error of further requests, when the engine thread has ended.
        self._stopped: EngineDied | EngineStopped | None = None
        # Only the engine thread changes the rest.
        self._stats = EngineStats()
        self._cache = KVCache(backend)
        self._scheduler = Scheduler(backend.limits, self._cache)
        self._draft_model = None if draft_backend is None else DraftModel(draft_backend, self.facts.n_vocab)
        self._token_sampler = TokenSampler(backend, self.texts)

    # Any thread may call these.

    @property
    def n_open(self) -> int:
        """The sequences that run or wait."""
        return len(self._open)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def start(self) -> Engine:
        self._thread = threading.Thread(target=self._run, name="localchat-engine")
        self._thread.start()
        return self

    def warm_up(self, requests: Many[GenerationRequest]) -> None:
        """Runs requests before the start, so that the first real one does not wait for memory and kernels. They leave
        no prefixes and are not counted."""
        self.submit(requests)
        while self.step():
            pass
        self.forget()
        self.step()
        if self._stopped is not None:
            raise self._stopped
        self._stats, self._last_id = EngineStats(), 0

    def join(self, timeout_s: float | None = None) -> bool:
        """Waits until the engine thread has ended, after `close` or a failure. False: it has not within the timeout."""
        assert self._thread is not None, "the engine has not been started"
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def close(self) -> None:
        """Ends all sequences with EngineStopped and frees the model. Waits for the step in progress."""
        if self._is_closed:
            return
        self._is_closed = True
        self.post(_close)
        if self._thread is None:
            self._run()
        else:
            self._thread.join()
        self._token_sampler.close()
        if self._draft_model is not None:
            self._draft_model.close()
        self.backend.close()

    def submit(self, requests: Many[GenerationRequest]) -> RequestRun:
        """Queues the sequences of one request, all or none, and returns at once; see `enqueue` for errors."""
        run = RequestRun(len(requests), self.cancel)
        run.ids = self.enqueue(requests, run.deliver)
        return run

    def enqueue(self, requests: Many[GenerationRequest], deliver: Callable[[StepOutput], None]) -> list[int]:
        """Queues the sequences of one request, all or none, and returns their ids.

        `deliver` is called on the engine thread with what a step produced for one of the sequences.

        Raises:
            ContextLengthExceeded: A prompt leaves no space for one token of output.
            BadRequest: A token id that the vocabulary does not have, an empty prompt, or an invalid grammar.
            NotSupported: The model makes embeddings only.
            QueueFull: Too many sequences wait.
            EngineStopped: The engine is closed.
            EngineDied: The engine has failed.
        """
        for request in requests:
            _check(request, self.facts)
        check_queue(len(requests), self.n_open, self.max_open)  # Before the work for a request that is refused.
        # The samplers are made on this thread, since parsing a large grammar would delay the engine thread.
        sequences = [
            _sequence(request, self.facts.n_ctx, self.backend.new_sampler(request), index, deliver)
            for index, request in enumerate(requests)
        ]
        with self._lock:
            if self._stopped is not None:
                raise self._stopped
            check_queue(len(sequences), self.n_open, self.max_open)
            # Inside the lock, so that ids grow in the order in which the scheduler gets the sequences.
            for sequence in sequences:
                self._last_id += 1
                sequence.id = self._last_id
                self._open[sequence.id] = sequence
                self.post(partial(self._scheduler.add, sequence))
        return [sequence.id for sequence in sequences]

    def cancel(self, id: int) -> None:
        """Ends a sequence before the next step, with Cancelled, if it still runs."""
        self.post(lambda: self._end(id, Cancelled("the request was cancelled")))

    def tokenize_prompt(self, parts: Iterable[tuple[str, bool]], *, add_bos: bool = False) -> list[int]:
        """The tokens of a prompt that is given in parts, each a text and its `parse_special`.

        Raises:
            ContextLengthExceeded: The prompt has many more tokens than the context. The rest was not counted.
        """
        tokens: list[int] = []
        n_most = max(self.facts.n_ctx, _COUNTED_TOKENS)
        for text, parse_special in parts:
            n_left = n_most - len(tokens)
            try:
                tokens += self.backend.tokenize(text, add_bos=add_bos, parse_special=parse_special, limit=n_left)
            except ContextLengthExceeded as error:
                raise _too_long(len(tokens) + error.n_tokens, self.facts.n_ctx, "at least ") from error
            add_bos = False
        return tokens

    def stats(self) -> EngineStats:
        n_active, n_idle = self._cache.n_cells()
        return replace(
            self._stats,
            running=[sequence.stats for sequence in list(self._scheduler.running)],
            n_waiting=len(self._scheduler.waiting),
            n_cells_active=n_active,
            n_cells_idle=n_idle,
            first_token_s=copy.deepcopy(self._stats.first_token_s),
        )

    def forget(self) -> None:
        """Drops all cached prefixes before the next step."""
        self.post(self._cache.forget)

    def post(self, command: Callable[[], None]) -> None:
        """Runs a command on the engine thread before its next step."""
        self._inbox.put(command)

    # The rest runs on the engine thread.

    def _run(self) -> None:
        was_busy = False
        while self._stopped is None:
            was_busy = self.step(wait=not was_busy)

    def step(self, *, wait: bool = False) -> bool:
        """Runs one step. Returns False if there was nothing to run. With `wait`, first waits for a command.

        Every error ends in `_stop`, except those that end a single sequence.
        """
        if self._stopped is not None:
            return False
        try:
            has_run = self._step(wait)
            self._after_step()
        except BaseException as error:
            self._stop(error)
            return False
        return has_run

    def _step(self, wait: bool) -> bool:
        if wait:
            self._inbox.get()()
        with contextlib.suppress(Empty):
            while True:
                self._inbox.get_nowait()()
        n_to_draft = self._scheduler.n_to_draft
        if n_to_draft:
            running = self._scheduler.running
            look_up_drafts(running, n_to_draft)
            if self._draft_model is not None:
                self._draft_model.draft([sequence for sequence in running if not sequence.draft], n_to_draft)
        batch = self._scheduler.schedule()
        if not batch.chunks:
            return False
        for chunk in batch.chunks:
            if not chunk.sequence.n_sampled:
                chunk.sequence.deliver(progress=chunk.sequence.progress)
        self._compute(batch)
        return True

    def _compute(self, batch: Batch) -> None:
        """Decodes a batch and delivers what is sampled from it.

        If there are no free cells, leaves out drafts, then preempts the newest sequence.
        """
        try:
            self._cache.decode(batch)
        except NoFreeCells:
            if any(chunk.draft for chunk in batch.chunks):
                self._compute(batch.without_drafts())
            elif (only := self._scheduler.refuse()) is not None:
                text = f"the KV cache has no free cells for {len(only.tokens)} tokens: use a smaller --ctx"
                self._end(only.id, EngineError(text))
        except DecodeFailed as error:
            self._isolate(batch, error)
        else:
            self._deliver(batch)

    def _isolate(self, batch: Batch, error: DecodeFailed) -> None:
        """Decodes each sequence of a failed batch alone, and ends those that fail again."""
        log.warning("a batch of %d sequences failed (%s); they now run one by one", len(batch.chunks), error)
        for chunk in batch.chunks:
            single = Batch((chunk,)).without_drafts()
            try:
                self._cache.decode(single)
            except (NoFreeCells, DecodeFailed) as own_error:
                text = f"the model could not compute this request: {own_error}"
                self._end(chunk.sequence.id, EngineError(text), keep=False)
            else:
                self._deliver(single)

    def _deliver(self, batch: Batch) -> None:
        """Samples from a decoded batch and delivers the tokens. An error of sampling ends only its sequence."""
        for chunk in batch.chunks:
            if chunk.is_scored:
                chunk.sequence.deliver(prompt_logprobs=self._prompt_logprobs(chunk))
        outputs = list(batch.outputs())
        runs = self._token_sampler.sample(outputs)
        tokens = [run.tokens() for run in runs]
        self._scheduler.update(batch, tokens)
        self._stats.n_computed += batch.n_tokens
        for chunk, run, run_tokens in zip(outputs, runs, tokens):
            self._deliver_run(chunk, run, chunk.n_accepted(run_tokens))

    def _prompt_logprobs(self, chunk: BatchChunk) -> list[tuple[float, list[tuple[int, float]]]]:
        """The log probabilities of prompt tokens that have none yet. The row of a token gives that of the next one."""
        sequence = chunk.sequence
        n_top = sequence.request.params.prompt_logprobs or 0
        return [
            self.backend.logprobs(row, sequence.tokens[position], n_top)
            for position, row in enumerate(chunk.scored_rows, sequence.n_computed + 1)
            if position > sequence.n_scored
        ]

    def _deliver_run(self, chunk: BatchChunk, run: TokenRun, n_accepted: int) -> None:
        sequence, stats = chunk.sequence, self._stats
        stats.n_sampled += len(run.items)
        stats.n_drafted += len(chunk.draft)
        stats.n_draft_accepted += n_accepted
        progress = None
        if run.items and sequence.first_at is None:
            sequence.first_at = time.perf_counter()
            stats.n_cached += sequence.n_cached or 0
            stats.first_token_s.add(sequence.first_at - sequence.submitted_at)
            progress = sequence.progress
        sequence.deliver(progress=progress, tokens=run.items, n_drafted=len(chunk.draft), n_draft_accepted=n_accepted)
        end = run.error or sequence.end(self.texts)
        if end is not None:
            self._end(sequence.id, end)

    def _end(self, id: int, end: End, *, keep: bool = True) -> None:
        """Ends a sequence, unless it has ended. With `keep` its tokens stay cached for other requests."""
        sequence = self._open.get(id)
        if sequence is None:
            return
        self._scheduler.remove(sequence, keep=keep)
        if self._draft_model is not None:
            self._draft_model.forget(sequence)
        with self._lock:
            del self._open[id]
        sequence.deliver(end=end)

    def _stop(self, error: BaseException) -> None:
        """Ends all requests, for good: after `close`, and after every error of the engine thread, since the state of
        the scheduler and the KV cache may then be wrong. An engine process ends, and the next request starts another.
        """
        end = error if isinstance(error, EngineStopped) else EngineDied(f"the engine has stopped: {error!r}")
        if end is not error:
            log.critical("the engine has stopped", exc_info=error)
            self.failure = error
        with self._lock:
            self._stopped = end
            sequences = list(self._open.values())
            self._open.clear()
        try:
            for sequence in sequences:
                sequence.deliver(end=end)
            self._after_step()
        except BaseException:
            log.exception("the engine was not cleaned up after its failure")


def _close() -> None:
    raise EngineStopped


def _check(request: GenerationRequest, facts: ModelFacts) -> None:
    if facts.is_non_causal:
        message = "this model makes vectors of texts and writes none: use /v1/embeddings or /v1/rerank"
        raise NotSupported(message, "model")
    if len(request.prompt) >= facts.n_ctx:
        raise _too_long(len(request.prompt), facts.n_ctx)
    check_tokens(request.prompt, facts.n_vocab)


def _too_long(n_prompt: int, n_ctx: int, least: str = "") -> ContextLengthExceeded:
    return ContextLengthExceeded(
        f"This model's maximum context length is {n_ctx} tokens, of which the output needs at least one. However, "
        f"your request has {least}{n_prompt} tokens: shorten it or start the server with a larger --ctx",
        n_tokens=n_prompt,
        n_ctx=n_ctx,
    )


def _sequence(
    request: GenerationRequest, n_ctx: int, sampler: Sampler, index: int, deliver: Callable[[StepOutput], None]
) -> Sequence:
    """The sequence of a request, without an id, with its length limited by the request and the context."""
    n_prompt, max_tokens = len(request.prompt), request.params.max_tokens
    # Even with a limit of 0 one token is sampled, so that the prompt is computed.
    limit = n_ctx if max_tokens is None else min(n_ctx, n_prompt + max(max_tokens, 1))
    return Sequence(0, list(request.prompt), limit, request, sampler=sampler, index=index, deliver=deliver)
