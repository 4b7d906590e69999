"""The engine: one thread that runs the sequences of all requests on one model, step by step.

A step drains the inbox, schedules, decodes, samples and delivers. The thread waits only when there is nothing to run.
Only the engine thread uses the context of the backend. Every request ends exactly once, on every path: all of its
sequences have a finish reason, a step failed, it was dropped, the engine was closed. The engine uses the `Backend`
protocol, not llama.cpp.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import abc
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from .batch import Batch, BatchChunk
from .layouts import new_kv_cache
from .prompts import Prompts
from .protocols import Backend, DecodeFailed, NoFreeCells
from .scheduler import Scheduler
from .sequence import Sequence
from .token_sampler import SequenceSample, TokenSampler
from .values import (
    End,
    EngineDied,
    EngineError,
    EngineGone,
    EngineStats,
    EngineStopped,
    SequenceRequest,
    StepOutput,
    TokenizedPrompts,
)
from .vector_inputs import VectorInputs

if TYPE_CHECKING:
    from .media.encoder import MediaEncoder, PreparedMedium

    NewEncoder = abc.Callable[
        [
            abc.Callable[[PreparedMedium], bool],
            abc.Callable[[PreparedMedium, Exception | None], None],
            abc.Callable[[abc.Callable[[], None]], None],
        ],
        MediaEncoder,
    ]

log = logging.getLogger("localchat.engine")

# A step with more rows than this, beside one for each sequence, may take long: it computes a prompt, or many forced
# tokens. On a CPU, a step has fewer drafts.
_SHORT_STEP_ROWS = 16


class SequenceGroup:
    """The sequences of one request. They are queued together, and if one of them fails, all end."""

    def __init__(
        self, sequences: abc.Sequence[Sequence], prompts: TokenizedPrompts, end: abc.Callable[[Exception | None], None]
    ) -> None:
        self.prompts = prompts
        self.sequences = sequences  # By their indexes in the request.
        # The indexes of the sequences that have not ended. Only the engine thread changes it.
        self.unfinished = set(range(len(sequences)))
        # Called on the engine thread with the error of the request, or with None when all sequences have ended.
        self.end = end
        self.is_queued = False  # Whether `Engine.submit` has queued the sequences. Guarded by the lock of the engine.


class Engine:
    """Runs requests on a backend. `run` makes the calling thread the engine thread; a test may call `step` instead."""

    def __init__(
        self,
        backend: Backend,
        *,
        new_encoder: NewEncoder | None = None,
        send_due: abc.Callable[[bool], None] = lambda at_once: None,
    ):
        """The engine owns the backend, and closes it.

        `new_encoder(is_needed, on_end, post)` makes the encoder of images and sounds; None: the model takes text alone.

        `send_due(at_once)` is called on the engine thread, which waits for it, when the output of a step has been
        delivered: it sends output to the readers, and may keep some of it for a while. With `at_once`, before a step
        that takes long and when nothing runs, it sends all.
        """
        self.backend = backend
        self.facts = backend.facts
        self.texts = backend.texts
        self._encoder = None if new_encoder is None else new_encoder(self._needs, self._after_encoding, self.post)
        self.prompts = Prompts(backend, self._encoder)
        self.vectors = VectorInputs(backend)
        # The error that stopped the engine thread, if one did.
        self.failure: BaseException | None = None
        self._send_due = send_due
        self._thread: threading.Thread | None = None
        self._inbox: SimpleQueue[abc.Callable[[], None]] = SimpleQueue()
        self._is_closed = False
        # Guards `_groups`, `_last_id`, `_stopped`, and `is_queued` of each group: submitting threads use them, too.
        self._lock = threading.Lock()
        self._groups: dict[int, SequenceGroup] = {}  # Those of the sequences that run or wait, by the ids of these.
        self._last_id = 0
        # The error of further requests, when the engine thread has ended.
        self._stopped: EngineDied | EngineStopped | None = None
        # Only the engine thread changes the rest.
        self._stats = EngineStats()
        self._cache = new_kv_cache(backend)
        encode = () if self._encoder is None else (self._encoder.encode,)
        self._scheduler = Scheduler(backend.limits, self._cache, *encode)
        self._token_sampler = TokenSampler(backend, self.texts)

    # Any thread may call these.

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def run(self, on_run: abc.Callable[[], None] = lambda: None) -> None:
        """Run the steps on this thread until the engine is closed or fails."""
        self._thread = threading.current_thread()
        on_run()
        was_busy = False
        while self._stopped is None:
            was_busy = self.step(wait=not was_busy)

    def warm_up(self, requests: abc.Sequence[SequenceRequest]) -> None:
        """Run requests before the start, so that the first real one does not wait for memory and kernels.

        They leave no prefixes and are not counted. Raises the error that ends one of them: all later ones would fail,
        too.
        """
        ends: list[Exception | None] = []
        self.submit(self.prepare(requests, lambda output: None, ends.append))
        while self.step():
            pass
        self.forget()
        self.step()
        for error in (self._stopped, *ends):
            if error is not None:
                raise error
        self._stats, self._last_id = EngineStats(), 0

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait until the engine thread has ended, after `close` or a failure. False: it has not within the timeout."""
        assert self._thread is not None, "the engine has not been started"
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def close(self) -> None:
        """End all sequences with EngineStopped and free the model. Waits for the step in progress."""
        if self._is_closed:
            return
        self._is_closed = True
        self.stop()
        if self._thread is None:
            self.run()
        else:
            self._thread.join()
        self._token_sampler.close()
        if self._encoder is not None:
            self._encoder.close()
        self.backend.close()

    def prepare(
        self,
        requests: abc.Sequence[SequenceRequest],
        deliver: abc.Callable[[StepOutput], None],
        end: abc.Callable[[Exception | None], None],
        check: abc.Callable[[], None] = lambda: None,
    ) -> SequenceGroup:
        """Make the sequences of one request: tokenize the prompts and parse the grammars, on the calling thread.

        On the engine thread, `deliver` gets what a step produced for one of the sequences, and `end` the error of the
        request, or None at the end of its last sequence. `check` is called between two sequences, and may raise an
        error. Raises ContextLengthExceeded for a prompt that leaves no space for one token of output; BadRequest for an
        empty prompt, a token id that the vocabulary does not have, or an invalid grammar; NotSupported if the model
        makes embeddings only.
        """
        sequences, prompts = self.prompts.sequences_of(requests, deliver, check)
        return SequenceGroup(sequences, prompts, end)

    def submit(self, group: SequenceGroup, on_start: abc.Callable[[], None] = lambda: None) -> None:
        """Queue the sequences of a request.

        `on_start` is called on the engine thread, before any output of the sequences. Raises EngineStopped if the
        engine is closed, EngineGone if it has failed.
        """
        with self._lock:
            if self._stopped is not None:
                raise self._stopped if isinstance(self._stopped, EngineStopped) else EngineGone(str(self._stopped))
            # Inside the lock, so that ids grow in the order in which the scheduler gets the sequences.
            for sequence in group.sequences:
                self._last_id += 1
                sequence.id = self._last_id
                self._groups[sequence.id] = group
            group.is_queued = True
            # One command, so that the choices of a request always start in the same step.
            self.post(partial(self._add, group, on_start))

    def drop(self, group: SequenceGroup, index: int | None = None) -> None:
        """End one sequence of a request, or all of them, before the next step. Their tokens stay cached.

        This has no effect before `submit`.
        """
        with self._lock:
            if group.is_queued:
                self.post(partial(self._drop, group, index))

    def stop(self) -> None:
        """End the engine before the next step, all sequences with EngineStopped. Does not wait."""
        self.post(_close)

    def stats(self) -> EngineStats:
        n_active, n_idle = self._cache.n_cells()
        return replace(
            self._stats,
            running=[sequence.stats for sequence in list(self._scheduler.running)],
            n_waiting=len(self._scheduler.waiting),
            n_cells_active=n_active,
            n_cells_idle=n_idle,
        )

    def forget(self) -> None:
        """Drop all cached prefixes before the next step."""
        self.post(self._cache.forget)

    def post(self, command: abc.Callable[[], None]) -> None:
        """Run a command on the engine thread before its next step."""
        self._inbox.put(command)

    # The rest runs on the engine thread.

    def step(self, *, wait: bool = False) -> bool:
        """Run one step. Returns False if there was nothing to run. With `wait`, first wait for a command.

        Every error ends in `_stop`, except those that end a single sequence.
        """
        if self._stopped is not None:
            return False
        try:
            has_run = self._step(wait)
            self._send_due(not has_run)
        except BaseException as error:
            self._stop(error)
            return False
        return has_run

    def _step(self, wait: bool) -> bool:
        if wait:
            self._inbox.get()()
        self._run_commands()
        batch = self._scheduler.schedule()
        if not batch.chunks:
            return False
        for sequence in (chunk.sequence for chunk in batch.chunks):
            if not sequence.n_sampled and (not sequence.has_reported_start or sequence.request.reports_progress):
                sequence.deliver(progress=sequence.progress)
                sequence.has_reported_start = True
        if batch.n_tokens > len(batch.chunks) + _SHORT_STEP_ROWS:
            self._send_due(True)
        self._compute(batch)
        return True

    def _run_commands(self) -> None:
        with contextlib.suppress(Empty):
            while True:
                self._inbox.get_nowait()()

    def _compute(self, batch: Batch) -> None:
        """Decode a batch and deliver what is sampled from it.

        If there are no free cells, compute the batch without drafts; if it has none, preempt the newest sequence.
        """
        try:
            self._cache.decode(batch)
        except NoFreeCells:
            if any(chunk.draft for chunk in batch.chunks):
                self._compute(batch.without_drafts())
            else:
                self._preempt_newest()
        except DecodeFailed as error:
            self._isolate(batch, error)
        else:
            self._sample_and_deliver(batch)

    def _preempt_newest(self) -> None:
        """Free the cells of the newest sequence, which runs again later. One that runs alone cannot run at all."""
        only = self._scheduler.preempt_newest()
        if only is not None:
            text = f"the KV cache has no free cells for {len(only.tokens)} tokens: use a smaller --ctx"
            self._fail(only, EngineError(text))

    def _isolate(self, batch: Batch, error: DecodeFailed) -> None:
        """Decode each sequence of a failed batch alone, and end those that fail again.

        The sequences that lack cells now wait for a later step.
        """
        log.warning("a batch of %d sequences failed (%s); they now run one by one", len(batch.chunks), error)
        for chunk in batch.chunks:
            if chunk.sequence.slot is None:  # It was preempted, or has ended with another sequence of its request.
                continue
            single = Batch((chunk,)).without_drafts()
            if chunk.sequence.span is not None:  # The earlier rows of its image may be gone.
                self._fail(
                    chunk.sequence, EngineError(f"the model could not compute an image or a sound: {error}"), keep=False
                )
                continue
            try:
                self._cache.decode(single)
            except NoFreeCells:
                self._preempt_newest()
            except DecodeFailed as error_alone:
                text = f"the model could not compute this request: {error_alone}"
                self._fail(chunk.sequence, EngineError(text), keep=False)
            else:
                self._sample_and_deliver(single)

    def _sample_and_deliver(self, batch: Batch) -> None:
        """Sample from a decoded batch and deliver the tokens. An error of sampling ends only its sequence."""
        chunks = list(batch.outputs())
        samples = self._token_sampler.sample(chunks)
        tokens = [sample.tokens() for sample in samples]
        self._scheduler.update(batch, tokens)
        self._stats.n_computed += batch.n_tokens
        for chunk, sample, sampled in zip(chunks, samples, tokens):
            self._deliver(chunk, sample, chunk.n_accepted(sampled))

    def _deliver(self, chunk: BatchChunk, sample: SequenceSample, n_accepted: int) -> None:
        sequence, stats, tokens = chunk.sequence, self._stats, sample.items
        stats.n_sampled += len(tokens)
        stats.n_drafted += len(chunk.draft)
        stats.n_draft_accepted += n_accepted
        progress = None
        if tokens and sequence.first_at is None:
            sequence.first_at = time.perf_counter()
            stats.n_cached += sequence.n_cached or 0
            stats.first_token_s.add(sequence.first_at - sequence.submitted_at)
            progress = sequence.progress
        last = None
        if sample.reason == "stop":
            *tokens, last = tokens
        elif sample.reason == "length" and sequence.request.params.max_tokens == 0:
            tokens = []  # One token was sampled to compute the prompt.
        output = {"tokens": tokens, "progress": progress, "n_drafted": len(chunk.draft), "n_draft_accepted": n_accepted}
        if sample.reason is not None:
            self._finish(sequence, End(sample.reason, last), **output)
            return
        sequence.deliver(**output)
        if sample.error is not None:
            self._fail(sequence, sample.error)

    def _finish(self, sequence: Sequence, end: End, **output: Any) -> None:
        """End a sequence with a finish reason, unless it has ended. `output` has the rest of its last StepOutput."""
        group = self._groups.get(sequence.id)
        if group is None:
            return
        self._remove(group, sequence, keep=True)
        sequence.deliver(end=end, **output)
        if not group.unfinished:
            group.end(None)

    def _fail(self, sequence: Sequence, error: Exception, *, keep: bool = True) -> None:
        """End a sequence and the others of its request with an error.

        With `keep` their tokens stay cached for other requests. Without, the failed batch may have damaged their cells.
        """
        group = self._groups.get(sequence.id)
        if group is None:
            return
        self._remove(group, sequence, keep=keep)
        for index in list(group.unfinished):
            self._remove(group, group.sequences[index], keep=keep)
        group.end(error)

    def _add(self, group: SequenceGroup, on_start: abc.Callable[[], None]) -> None:
        on_start()
        self._scheduler.add(*group.sequences)

    def _drop(self, group: SequenceGroup, index: int | None) -> None:
        indexes = [i for i in group.unfinished if index in (i, None)]
        for i in indexes:
            self._remove(group, group.sequences[i], keep=True)
        if indexes and not group.unfinished:
            group.end(None)

    def _remove(self, group: SequenceGroup, sequence: Sequence, *, keep: bool) -> None:
        self._scheduler.remove(sequence, keep=keep)
        group.unfinished.remove(sequence.index)
        with self._lock:
            del self._groups[sequence.id]

    def _needs(self, medium: PreparedMedium) -> bool:
        """Whether an open sequence has this image or sound. Any thread may call this."""
        with self._lock:
            groups = set(self._groups.values())
        sequences = (group.sequences[index] for group in groups for index in list(group.unfinished))
        return any(span.chunk.medium is medium for sequence in sequences for span in sequence.spans)

    def _after_encoding(self, medium: PreparedMedium, error: Exception | None) -> None:
        """End the sequences that wait for an image or a sound that could not be encoded.

        Without an error nothing is left to do: the call has woken the engine thread, which schedules its next step.
        """
        if error is not None:
            for sequence in self._scheduler.waiting_for(medium):
                self._fail(sequence, error)

    def _stop(self, error: BaseException) -> None:
        """End all requests, for good: after `close`, and after every error of the engine thread.

        After an error, the state of the scheduler and the KV cache may be wrong. So the engine process ends, and the
        next request starts another one.
        """
        end = error if isinstance(error, EngineStopped) else EngineDied(f"the engine has stopped: {error!r}")
        if end is not error:
            log.critical("the engine has stopped", exc_info=error)
            self.failure = error
        with self._lock:
            self._stopped = end
            groups = set(self._groups.values())
            self._groups.clear()
        try:
            for group in groups:
                group.end(end)
            self._send_due(True)
        except BaseException:
            log.exception("the engine was not cleaned up after its failure")


def _close() -> None:
    raise EngineStopped
