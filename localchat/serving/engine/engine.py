"""The engine: one thread that runs the sequences of all requests on one model, step by step.

A step drains the inbox, schedules, decodes, samples and delivers. The thread waits only when there is nothing to run.
Any number of threads submit requests and read their outputs. Only the engine thread uses the context of the backend.
Every sequence ends with exactly one Ended or EngineError, on every path: a stop, a cancel, a failed step, a closed
engine. The engine uses the `Backend` protocol, not llama.cpp.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Many
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from ..core.server_state import SequenceStats
from .backend import Backend, DecodeFailed, NoFreeCells
from .batch import Batch
from .disk_cache import DiskCache
from .draft_model import DraftModel
from .draft_sources import DraftSources
from .drafting import Drafter
from .embedding import Embedder
from .end_conditions import EndConditions
from .histogram import Histogram
from .kv_cache import KVCache
from .lookup import LookupDrafter
from .request_check import check_request, new_sequence
from .run import Ended, RequestRun
from .scheduler import Scheduler
from .sequence_state import SequenceState
from .snapshots import DEFAULT_SNAPSHOT_BYTES, Snapshots
from .state_files import StateFiles
from .stats import FIRST_TOKEN_BOUNDS_S, EngineCounts, EngineStats, sequence_stats
from .step_timer import StepTimer
from .token_sampler import TokenRun, TokenSampler, token_of
from .values import Cancelled, EngineError, EngineStopped, GenerationRequest, PromptTooLong, QueueFull, TextTooLong

log = logging.getLogger("localchat.engine")

# The tokens of a prompt that does not fit are counted up to this number, which takes less than a second.
_COUNTED_TOKENS = 100_000
# The engine stops after this many failed steps in a row, since the next one would probably fail as well.
_MAX_FAILED_STEPS = 3


class Engine:
    """Runs requests on a backend. `start` starts the thread; a test may call `step` instead."""

    def __init__(
        self,
        backend: Backend,
        *,
        max_queue: int = 256,
        draft_backend: Backend | None = None,
        state_files: StateFiles | None = None,
        max_snapshot_bytes: int = DEFAULT_SNAPSHOT_BYTES,
        clock: Callable[[], float] = time.perf_counter,
    ):
        """The engine owns both backends and closes them.

        Args:
            backend: The model.
            max_queue: The limit of waiting sequences; further ones get QueueFull.
            draft_backend: A smaller model of the same vocabulary for speculative decoding.
            state_files: The files of the disk cache; None for no disk cache.
            max_snapshot_bytes: The limit of snapshots of evicted prefixes in memory.
            clock: Returns seconds, to measure steps.
        """
        self.backend = backend
        self.facts = backend.facts
        self.embedder = Embedder(lambda: backend.open_embeddings())
        # The error that stopped the engine thread, if one did.
        self.failure: BaseException | None = None
        # The limit of open sequences: those that run or wait.
        self.max_open = self.facts.n_parallel + max_queue
        self._thread: threading.Thread | None = None
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        # Guards what submitting threads and the engine thread share: `failure` and the next three.
        self._lock = threading.Lock()
        self._open: set[SequenceState] = set()
        self._is_closed = False
        self._last_id = 0
        # Only the engine thread changes the rest. By id: the sequences of the scheduler, and those whose cached prefix
        # is being read from a file.
        self._scheduled: dict[int, SequenceState] = {}
        self._loading: dict[int, SequenceState] = {}
        self._n_failed_steps = 0
        self._is_stopping = False
        self._counts = EngineCounts()
        self._first_token_s = Histogram(FIRST_TOKEN_BOUNDS_S)
        self._timer = StepTimer(backend, clock)
        snapshots = Snapshots(max_snapshot_bytes, can_truncate=backend.limits.can_truncate)
        self._cache = KVCache(backend, snapshots, self._new_disk_cache(state_files))
        self._scheduler = Scheduler(backend.limits, self._cache)
        self._drafts = DraftSources(self._new_drafters(draft_backend), self._timer)
        self._token_sampler = TokenSampler(backend)

    def _new_disk_cache(self, state_files: StateFiles | None) -> DiskCache | None:
        if state_files is not None and not self.backend.limits.can_copy:
            log.warning("the disk cache is off: a saved state of this model has only the cells of its sliding window")
            return None
        return None if state_files is None else DiskCache(state_files, self.post)

    def _new_drafters(self, draft_backend: Backend | None) -> list[Drafter]:
        drafters: list[Drafter] = [LookupDrafter()]
        if draft_backend is not None:
            drafters.append(DraftModel(draft_backend, self.facts.n_vocab, self._timer.clock))
        return drafters

    # Any thread may call these.

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def start(self) -> Engine:
        self._thread = threading.Thread(target=self._run, name="localchat-engine")
        self._thread.start()
        return self

    def close(self) -> None:
        """Ends all sequences with EngineStopped and frees the model. Waits for the step in progress."""
        with self._lock:
            was_closed, self._is_closed = self._is_closed, True
        if was_closed:
            return
        self.post(self._stop)
        if self._thread is None:
            self._run()
        else:
            self._thread.join()
        self._token_sampler.close()
        self._drafts.close()
        self.embedder.close()
        self.backend.close()

    def submit(self, requests: Many[GenerationRequest]) -> RequestRun:
        """Queues the sequences of one request, all or none, and returns at once.

        Raises:
            PromptTooLong: A prompt leaves no space for one token of output.
            InvalidToken: A token id that the vocabulary does not have, or an empty prompt.
            WritesNoText: The model makes embeddings only.
            InvalidGrammar: The grammar of a constraint cannot be parsed.
            QueueFull: Too many sequences wait.
            EngineStopped: The engine is closed or has failed.
        """
        for request in requests:
            check_request(request, self.facts)
        samplers: list[Any] = []
        try:
            for request in requests:
                # On this thread, since parsing a large grammar takes long and would delay the engine thread.
                samplers.append(self.backend.new_sampler(request))
            return self._enqueue(requests, samplers)
        except BaseException:
            for sampler in samplers:
                self.backend.free_sampler(sampler)
            raise

    def _enqueue(self, requests: Many[GenerationRequest], samplers: Many[Any]) -> RequestRun:
        with self._lock:
            if self._is_closed or self.failure is not None:
                raise EngineStopped(
                    f"the engine has stopped: {'it was closed' if self.failure is None else repr(self.failure)}"
                )
            n_open = len(self._open)
            if n_open + len(requests) > self.max_open:
                raise QueueFull(f"{n_open} requests are open, the limit is {self.max_open}: try again later")
            states: list[SequenceState] = []
            cancelled = Cancelled("the request was cancelled")
            run = RequestRun(
                requests,
                self.backend,
                cancel=lambda i: self.post(lambda: self._end(states[i], cancelled)),
                suspend=lambda is_suspended: self.post(lambda: _set_suspended(states, is_suspended)),
            )
            for i, (request, sampler) in enumerate(zip(requests, samplers)):
                self._last_id += 1
                sequence = new_sequence(self._last_id, request, self.facts)
                end_conditions = EndConditions(request.params, self.backend)
                states.append(SequenceState(run, i, request, sequence, sampler, end_conditions))
            self._open.update(states)
            # Inside the lock, so that no sequence is added after `close`, which posts `_stop`: it would never end.
            for state in states:
                self.post(partial(self._add, state))
        return run

    def tokenize(
        self, text: str, *, add_bos: bool = False, parse_special: bool = True, limit: int | None = None
    ) -> list[int]:
        """Text to token ids. With `parse_special`, text like <|im_end|> becomes the control token.

        Raises:
            TextTooLong: There are more than `limit` tokens, or more than any context holds.
        """
        return self.backend.tokenize(text, add_bos=add_bos, parse_special=parse_special, limit=limit)

    def tokenize_prompt(self, parts: Iterable[tuple[str, bool]], *, add_bos: bool = False) -> list[int]:
        """The tokens of a prompt that is given in parts, each a text and its `parse_special`.

        Raises:
            PromptTooLong: The prompt has many more tokens than the context holds. The rest of it was not counted.
        """
        tokens: list[int] = []
        n_most = max(self.facts.n_ctx, _COUNTED_TOKENS)
        for text, parse_special in parts:
            n_left = n_most - len(tokens)
            try:
                tokens += self.backend.tokenize(text, add_bos=add_bos, parse_special=parse_special, limit=n_left)
            except TextTooLong as error:
                raise PromptTooLong(len(tokens) + error.n_tokens, self.facts.n_ctx, is_least=True) from error
            add_bos = False
        return tokens

    def stats(self) -> EngineStats:
        return EngineStats(
            n_running=len(self._scheduler.running),
            n_waiting=len(self._scheduler.waiting) + len(self._loading),
            n_cells_active=self._cache.n_cells_active,
            n_cells_idle=self._cache.n_cells_idle,
            counts=replace(self._counts),
            first_token_s=self._first_token_s.values(),
        )

    def running(self) -> list[SequenceStats]:
        """The running sequences, the oldest first."""
        return [sequence_stats(sequence) for sequence in list(self._scheduler.running)]

    def forget(self) -> None:
        """Drops all cached prefixes before the next step. Files stay."""
        self.post(self._cache.forget)

    def post(self, command: Callable[[], None]) -> None:
        """Runs a command on the engine thread before its next step."""
        self._inbox.put(command)

    # The rest runs on the engine thread.

    def step(self, *, wait: bool = False) -> bool:
        """Runs one step. Returns False if there was nothing to run. With `wait`, first waits for a command.

        Raises nothing: an error ends the requests in flight, or the engine (`failure`).
        """
        try:
            return self._step(wait)
        except BaseException as error:
            self._step_failed(error)
            return True

    def _run(self) -> None:
        """Runs steps until the engine is closed or fails."""
        was_busy = False
        while not self._is_stopping and self.failure is None:
            was_busy = self.step(wait=not was_busy)
        try:
            for state in list(self._open):
                self._end(state, EngineStopped("the engine has been closed"))
            self._cache.close(saves=self.failure is None)
        except BaseException as error:
            self._fail(error)

    def _step(self, wait: bool) -> bool:
        if wait:
            self._wait()
        self._drain_inbox()
        if self._is_stopping:
            return False
        running = self._scheduler.running
        self._scheduler.n_prompt_batch = self._timer.n_prompt_tokens(running)
        self._drafts.draft(running, self._scheduler.n_to_draft)
        batch = self._scheduler.schedule()
        if not batch.chunks:
            return False
        for chunk in batch.chunks:
            if not chunk.sequence.n_sampled:
                self._scheduled[chunk.sequence.id].start()
        started_at = self._timer.clock()
        if self._compute(batch):
            self._timer.note(self._timer.clock() - started_at)
            self._scheduler.take_checkpoints(batch)
        self._n_failed_steps = 0
        return True

    def _wait(self) -> None:
        """Waits for a command and runs it. If none comes in time, saves an idle prefix on disk."""
        try:
            command = self._inbox.get(timeout=self._cache.save_wait_s)
        except Empty:
            self._cache.save_next()
        else:
            command()

    def _drain_inbox(self) -> None:
        try:
            while True:
                self._inbox.get_nowait()()
        except Empty:
            return

    def _stop(self) -> None:
        self._is_stopping = True

    def _add(self, state: SequenceState) -> None:
        try:
            if self._cache.fetch(state.sequence.reusable_tokens, lambda: self._schedule(state)):
                self._loading[state.sequence.id] = state
            else:
                self._schedule(state)
        except Exception as error:
            self._not_started(state, error)

    def _schedule(self, state: SequenceState) -> None:
        self._loading.pop(state.sequence.id, None)
        if state not in self._open:
            return
        try:
            self._scheduler.add(state.sequence)
            self._scheduled[state.sequence.id] = state
        except Exception as error:  # A failed step would not end this sequence: it is in neither list.
            self._not_started(state, error)

    def _not_started(self, state: SequenceState, error: Exception) -> None:
        log.error("a request could not be started", exc_info=error)
        self._end(state, EngineError(f"the request could not be started: {error}"))

    def _compute(self, batch: Batch) -> bool:
        """Decodes a batch and delivers what is sampled from it; False if it could not be computed as a whole."""
        try:
            self._timer.compute(batch.size, lambda: self.backend.decode(batch))
        except NoFreeCells:
            if not self._scheduler.refuse(batch):
                sequence = batch.chunks[0].sequence
                error = EngineError(
                    f"the KV cache has no free cells for {len(sequence.tokens)} tokens: use a smaller --ctx"
                )
                self._end(self._scheduled[sequence.id], error)
        except DecodeFailed as error:
            self._isolate(batch, error)
        else:
            self._deliver(batch)
            return True
        return False

    def _isolate(self, batch: Batch, error: DecodeFailed) -> None:
        """Decodes each sequence of a failed batch alone, and ends those that fail again."""
        log.warning("a batch of %d sequences failed (%s); they now run one by one", len(batch.chunks), error)
        for single in batch.alone():
            state = self._scheduled[single.chunks[0].sequence.id]
            try:
                self.backend.decode(single)
            except (NoFreeCells, DecodeFailed) as own_error:
                self._end(state, EngineError(f"the model could not compute this request: {own_error}"), keep=False)
            else:
                self._deliver(single)

    def _deliver(self, batch: Batch) -> None:
        """Samples from a decoded batch and delivers the tokens. An error of sampling ends only its sequence."""
        for chunk in batch.chunks:
            if chunk.is_scored:
                self._scheduled[chunk.sequence.id].deliver_prompt_logprobs(chunk, self.backend)
        work = [(self._scheduled[chunk.sequence.id], chunk) for chunk in batch.outputs()]
        runs = self._token_sampler.sample([(state.sampler, state.request.params, chunk) for state, chunk in work])
        tokens = [[token_of(item) for item in run] for run in runs]
        self._scheduler.update(batch, tokens)
        self._counts.n_computed += batch.n_tokens
        self._counts.n_sampled += sum(map(len, runs))
        for (state, chunk), run, run_tokens in zip(work, runs, tokens):
            if chunk.draft:
                self._count_draft(state, len(chunk.draft), chunk.n_accepted(run_tokens))
            self._deliver_run(state, run)

    def _deliver_run(self, state: SequenceState, run: TokenRun) -> None:
        is_first = state.sequence.n_sampled == len(run)
        for item in run:
            if isinstance(item, EngineError):
                self._end(state, item)
                return
            if is_first:
                state.deliver_progress()
            state.deliver(item)
            if is_first:
                self._counts.n_cached += state.sequence.n_cached or 0
                self._first_token_s.add(state.first_token_s())
                is_first = False
        end = state.natural_end()
        if end is not None:
            self._end(state, end)

    def _count_draft(self, state: SequenceState, n_drafted: int, n_accepted: int) -> None:
        self._drafts.note(state.sequence, self._scheduler.running, n_drafted, n_accepted)
        state.run.count_draft(state.index, n_drafted, n_accepted)
        self._counts.n_drafted += n_drafted
        self._counts.n_draft_accepted += n_accepted

    def _end(self, state: SequenceState, end: Ended | EngineError, *, keep: bool = True) -> None:
        """Ends a sequence; further calls for it do nothing. With `keep` its tokens stay cached for other requests."""
        with self._lock:
            if state not in self._open:
                return
            self._open.remove(state)
        try:
            self._loading.pop(state.sequence.id, None)
            if self._scheduled.pop(state.sequence.id, None) is not None:
                self._scheduler.remove(state.sequence, keep=keep)
                self._drafts.forget(state.sequence)
        finally:
            try:
                self._free_sampler(state)
            finally:
                state.deliver(end)

    def _free_sampler(self, state: SequenceState) -> None:
        try:
            self.backend.free_sampler(state.sampler)
        except Exception:  # This error must not end other requests.
            log.exception("a sampler could not be freed")

    def _step_failed(self, error: BaseException) -> None:
        """Handles an error of the engine thread: ends the requests in flight, or stops the engine."""
        self._n_failed_steps += 1
        if not isinstance(error, Exception) or self._n_failed_steps >= _MAX_FAILED_STEPS:
            self._fail(error)
            return
        try:
            log.error("a step of the engine failed", exc_info=error)
            cause = "the engine failed while it computed this request; the server's log has the cause"
            self._end_all([*self._scheduled.values(), *self._loading.values()], EngineError(cause))
        except BaseException as second_error:
            self._fail(second_error)

    def _fail(self, error: BaseException) -> None:
        """Stops the engine for good: ends all requests with an error, and refuses later ones."""
        with self._lock:
            self.failure = error
        try:
            self._end_all(list(self._open), EngineStopped(f"the engine has stopped: {error!r}"))
            log.critical("the engine has stopped", exc_info=error)
        except BaseException:
            log.exception("the engine was not cleaned up after its failure")

    def _end_all(self, states: list[SequenceState], error: EngineError) -> None:
        """Ends sequences and empties the KV cache, whatever state the failed step left."""
        with self._lock:
            states = [state for state in states if state in self._open]
            self._open.difference_update(states)
        for state in states:
            state.deliver(error)
        for state in states:
            self._free_sampler(state)
            self._drafts.forget(state.sequence)
        self._scheduled.clear()
        self._loading.clear()
        self._scheduler.reset()


def _set_suspended(states: list[SequenceState], is_suspended: bool) -> None:
    for state in states:
        state.sequence.is_suspended = is_suspended
