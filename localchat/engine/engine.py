"""The engine thread: it alone touches the backend's context; any number of threads submit and iterate.

A turn is: drain the inbox, schedule, decode, draw, deliver. It blocks only when there is nothing to
run. Knows the `Backend` protocol, never llama.cpp. Every generation ends with exactly one Finish or
one EngineError, on every path: a stop, a cancel, a failed turn, a closed engine.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any

from .backend import Backend, DecodeFailed, NoRoom
from .batch import Batch, Part, Sequence
from .disk_cache import DiskCache
from .draft_model import DraftModel
from .drafting import Drafter, ForcedDrafter
from .embedding import Embedder, reads_whole_texts
from .histogram import Histogram, HistogramValues
from .kv_cache import KVCache
from .lookup import LookupDrafter
from .run import Ended, Item, RequestRun
from .scheduler import Scheduler
from .snapshots import DEFAULT_BYTES, Snapshots
from .state_files import StateFiles
from .step_cost import StepCost, StepSize
from .thread_count import ThreadCount
from .token_sampler import TokenRun, TokenSampler, token_of
from .values import (
    Cancelled,
    EngineError,
    EngineStopped,
    GenerationRequest,
    InvalidToken,
    Progress,
    PromptTooLong,
    QueueFull,
    WritesNoText,
)

log = logging.getLogger("localchat.engine")


# From what a cached prompt takes on a GPU to what a long one takes on a laptop.
_FIRST_TOKEN_BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)

# How much one draft says of how long the next one takes.
_WEIGHT_OF_NEW_DRAFT = 0.1

# After this many failed steps in a row the next one is expected to fail as well: the engine stops.
_MAX_FAILED_STEPS = 3


@dataclass(frozen=True)
class EngineStats:
    """A glance at the engine; taken without stopping it, so the figures may be of two neighbouring turns.

    Cells are used by what runs, or rest with prefixes that are kept in case they come again.
    """

    n_running: int
    n_waiting: int
    n_cells_used: int
    n_cells_resting: int
    n_tokens_computed: int
    n_tokens_drawn: int
    n_tokens_cached: int
    n_tokens_drafted: int
    n_drafts_accepted: int
    first_token_s: HistogramValues


@dataclass(frozen=True)
class SequenceStats:
    """A glance at a running generation: tokens of its prompt, those that were cached, computed by now and drawn."""

    id: int
    n_prompt: int
    n_cached: int
    n_computed: int
    n_drawn: int
    max_tokens: int


@dataclass(eq=False)
class _DraftSource:
    """Who guesses, and how long it takes for a token."""

    drafter: Drafter
    token_s: float = 0.0

    def note(self, n_drafted: int, seconds: float) -> None:
        if n_drafted:
            self.token_s += _WEIGHT_OF_NEW_DRAFT * (seconds / n_drafted - self.token_s)


@dataclass(eq=False)
class _Job:
    """What the engine thread has of one sequence of a run."""

    run: RequestRun
    index: int
    request: GenerationRequest
    sequence: Sequence
    sampler: Any
    source: _DraftSource | None = None  # where its newest draft is from
    # Whether a line has ended in the first so many tokens; looked at only where there is a limit of time.
    has_line: bool = False
    n_looked_at: int = 0

    def deliver(self, item: Item) -> None:
        self.run.deliver(self.index, item)


class Engine:
    """Runs generations on a backend. `start` begins the thread; tests may call `step` instead.

    `max_queue` bounds the requests beyond those that the slots can run; further ones get QueueFull.
    `draft_backend` is a smaller model of the same vocabulary that guesses ahead; it is closed with the engine.
    With `state_files` the prefixes that rest are saved there, when nothing is to do and at the end; copies of
    them in memory, beside the context's own, take `max_copied_bytes` at most. By `clock`, in seconds, turns are
    measured: how much of a prompt one may read, and whether guessing pays.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        max_queue: int = 256,
        draft_backend: Backend | None = None,
        state_files: StateFiles | None = None,
        max_copied_bytes: int = DEFAULT_BYTES,
        clock: Callable[[], float] = time.perf_counter,
    ):
        facts = backend.facts
        self.backend = backend
        self.facts = facts
        self._clock = clock
        self.embedder = Embedder(lambda: backend.open_embeddings())
        self.failure: BaseException | None = None
        self._cache = KVCache(backend, Snapshots(max_copied_bytes, can_cut=backend.room.can_cut))
        self._scheduler = Scheduler(backend.room, self._cache)
        self._thread: threading.Thread | None = None
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        # So many requests may run and wait, all together.
        self.max_open = facts.n_slots + max_queue
        # Guards what submitters and the engine thread share: the sequences that have no end yet, and whether new
        # ones are refused (`failure`, `_is_closed`).
        self._lock = threading.Lock()
        self._open: set[_Job] = set()
        self._is_closed = False
        # Owned by the engine thread.
        self._live: dict[int, _Job] = {}
        # Whose prompts' beginnings are being read from a file.
        self._fetching: dict[int, _Job] = {}
        self._next_id = 0
        self._n_failed_steps = 0
        self._is_stopping = False
        self._n_computed = 0
        self._n_drawn = 0
        self._n_cached = 0
        self._n_drafted = 0
        self._n_draft_accepted = 0
        self._first_token_s = Histogram(_FIRST_TOKEN_BOUNDS_S)
        # In order: who comes later is asked about what those before had no guess for.
        self._sources = [
            _DraftSource(ForcedDrafter(lambda sequence: backend.forced_tokens(self._live[sequence.id].sampler))),
            _DraftSource(LookupDrafter()),
        ]
        if draft_backend is not None:
            self._sources.append(_DraftSource(DraftModel(draft_backend, facts.n_vocab, clock)))
        self._cost = StepCost()
        self._threads = ThreadCount(*backend.threads)
        self._disk_cache: DiskCache | None = None
        if state_files is not None and not backend.room.can_copy:
            log.warning("no prefixes are kept in files: this model has a sliding window, and a copy only what is in it")
        elif state_files is not None:
            self._disk_cache = DiskCache(state_files, self._cache, self.post)
        self._token_sampler = TokenSampler(backend)

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, type: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
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
            self._run()
        else:
            self._thread.join()
        self._token_sampler.close()
        for source in self._sources:
            source.drafter.close()
        self.embedder.close()
        self.backend.close()

    def submit(self, requests: Many[GenerationRequest]) -> RequestRun:
        """Queues the sequences of one request, all or none, and returns at once; any thread.

        Raises:
            PromptTooLong: A prompt leaves no room for one token of output.
            InvalidToken: A token id that the vocabulary does not have, or an empty prompt.
            WritesNoText: The model is of another kind.
            InvalidGrammar: The grammar of a constraint cannot be parsed.
            QueueFull: Too many sequences wait.
            EngineStopped: The engine is closed or has failed.
        """
        for request in requests:
            self._check(request)
        samplers: list[Any] = []
        try:
            for request in requests:
                # On this thread, since a large grammar takes long to parse and would hold up the engine thread.
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
                raise QueueFull(f"{n_open} requests are open and {self.max_open} are the limit: try again later")
            jobs: list[_Job] = []
            cancelled = Cancelled("the request was cancelled")
            run = RequestRun(
                requests,
                self.backend,
                cancel=lambda i: self.post(lambda: self._end(jobs[i], cancelled)),
                suspend=lambda is_suspended: self.post(lambda: _set_suspended(jobs, is_suspended)),
            )
            for i, (request, sampler) in enumerate(zip(requests, samplers)):
                jobs.append(_Job(run, i, request, self._sequence(request), sampler))
            self._open.update(jobs)
            # Inside the lock: nothing can be queued behind the close that would then never be seen.
            for job in jobs:
                self.post(partial(self._add, job))
        return run

    def _sequence(self, request: GenerationRequest) -> Sequence:
        n_ctx, n_prompt, max_tokens = self.facts.n_ctx, len(request.prompt), request.params.max_tokens
        # At least one token is sampled: it shows that the prompt has been computed.
        limit = n_ctx if max_tokens is None else min(n_ctx, n_prompt + max(max_tokens, 1))
        self._next_id += 1
        scores_prompt = request.params.prompt_logprobs is not None
        return Sequence(self._next_id, list(request.prompt), limit, scores_prompt=scores_prompt)

    def tokenize(self, text: str, *, add_bos: bool = False, parse_special: bool = True) -> list[int]:
        """Text to token ids, on any thread. With `parse_special`, text like <|im_end|> becomes the control token."""
        return self.backend.tokenize(text, add_bos=add_bos, parse_special=parse_special)

    def stats(self) -> EngineStats:
        scheduler = self._scheduler
        return EngineStats(
            n_running=len(scheduler.running),
            n_waiting=len(scheduler.waiting) + len(self._fetching),
            n_cells_used=self._cache.n_cells_active,
            n_cells_resting=self._cache.n_cells_idle,
            n_tokens_computed=self._n_computed,
            n_tokens_drawn=self._n_drawn,
            n_tokens_cached=self._n_cached,
            n_tokens_drafted=self._n_drafted,
            n_drafts_accepted=self._n_draft_accepted,
            first_token_s=self._first_token_s.values(),
        )

    def running(self) -> list[SequenceStats]:
        """A glance at what runs, oldest first; any thread."""
        return [
            SequenceStats(
                id=sequence.id,
                n_prompt=sequence.n_prompt,
                n_cached=sequence.n_cached or 0,
                n_computed=sequence.n_computed,
                n_drawn=sequence.n_drawn,
                max_tokens=sequence.max_tokens,
            )
            for sequence in list(self._scheduler.running)
        ]

    def forget(self) -> None:
        """Drops, before the next turn, all prefixes that are kept in case they come again; any thread."""
        self.post(self._cache.forget)

    def post(self, command: Callable[[], None]) -> None:
        """Has the engine thread run a command before its next turn."""
        self._inbox.put(command)

    def step(self, *, wait: bool = False) -> bool:
        """One step; False when there was nothing to run. With `wait`, first waits for a command.

        Runs on the engine thread. Raises nothing: an error ends the requests concerned, or the engine (`failure`).
        """
        try:
            return self._step(wait)
        except BaseException as error:
            self._step_failed(error)
            return True

    def _step(self, wait: bool) -> bool:
        if wait:
            self._wait()
        self._drain_inbox()
        if self._is_stopping:
            return False
        self._scheduler.n_prompt_batch = self._n_prompt_tokens()
        self._draft()
        batch = self._scheduler.schedule()
        if not batch.parts:
            return False
        if self._disk_cache is not None:
            self._disk_cache.note_step()
        for part in batch.parts:
            if not part.sequence.n_drawn:
                job = self._live[part.sequence.id]
                job.run.start(job.index, part.sequence.n_cached or 0)
                self._tell_progress(job)
        size, started_at = batch.size, self._clock()
        if self._compute(batch):
            if not self._threads.is_trying:
                self._cost.note(size, self._clock() - started_at)
            self._scheduler.take_checkpoints(batch)
        self._n_failed_steps = 0
        return True

    def _check(self, request: GenerationRequest) -> None:
        n_vocab, n_ctx = self.facts.n_vocab, self.facts.n_ctx
        if reads_whole_texts(self.facts.metadata):
            raise WritesNoText("this model makes vectors of texts and writes none: use /v1/embeddings or /v1/rerank")
        if len(request.prompt) >= n_ctx:
            raise PromptTooLong(len(request.prompt), n_ctx)
        if not request.prompt:
            raise InvalidToken("the prompt is empty: it needs one token at least")
        ids = (*request.prompt, *request.params.stop_token_ids, *(id for id, _ in request.sampling.logit_bias))
        if min(ids) < 0 or max(ids) >= n_vocab:
            raise InvalidToken(f"token ids go from 0 to {n_vocab - 1}; the request has {min(ids)} to {max(ids)}")

    def _run(self) -> None:
        """The engine thread, until the engine is closed or has failed."""
        was_busy = False
        while not self._is_stopping and self.failure is None:
            was_busy = self.step(wait=not was_busy)
        try:
            for job in list(self._open):
                self._end(job, EngineStopped("the engine has been closed"))
            if self._disk_cache is not None:
                self._disk_cache.close(saves=self.failure is None)
        except BaseException as error:
            self._fail(error)

    def _wait(self) -> None:
        """Runs the next command; while none comes, an idle prefix may be saved on disk."""
        disk_cache = self._disk_cache
        try:
            command = self._inbox.get(timeout=None if disk_cache is None else disk_cache.patience_s)
        except Empty:
            assert disk_cache is not None
            disk_cache.save_next()
        else:
            command()

    def _stop(self) -> None:
        self._is_stopping = True

    def _drain_inbox(self) -> None:
        try:
            while True:
                self._inbox.get_nowait()()
        except Empty:
            return

    def _add(self, job: _Job) -> None:
        try:
            tokens, disk_cache = job.sequence.reusable_tokens, self._disk_cache
            if disk_cache is not None and disk_cache.fetch(tokens, lambda: self._enter(job)):
                self._fetching[job.sequence.id] = job
            else:
                self._enter(job)
        except Exception as error:
            log.exception("a request could not be started")
            self._end(job, EngineError(f"the request could not be started: {error}"))

    def _enter(self, job: _Job) -> None:
        self._fetching.pop(job.sequence.id, None)
        if job in self._open:
            self._scheduler.add(job.sequence)
            self._live[job.sequence.id] = job

    def _end(self, job: _Job, end: Ended | EngineError, *, keep: bool = True) -> None:
        """Gives a sequence its one end; later ones are ignored. Its KV cache is kept for other requests, or not."""
        with self._lock:
            if job not in self._open:
                return
            self._open.remove(job)
        try:
            self._fetching.pop(job.sequence.id, None)
            if self._live.pop(job.sequence.id, None) is not None:
                self._scheduler.remove(job.sequence, keep=keep)
                self._forget_drafts(job)
        finally:
            try:
                self._free_sampler(job)
            finally:
                job.deliver(end)

    def _forget_drafts(self, job: _Job) -> None:
        for source in self._sources:
            source.drafter.forget(job.sequence)

    def _free_sampler(self, job: _Job) -> None:
        try:
            self.backend.free_sampler(job.sampler)
        except Exception:  # the request has ended, and others need not end for this
            log.exception("a sampler could not be freed")

    def _draft(self) -> None:
        n_tokens = self._scheduler.n_to_draft
        for source in self._sources if n_tokens else ():
            without = [sequence for sequence in self._scheduler.running if not sequence.draft]
            started_at = self._clock()
            source.drafter.draft(without, n_tokens, self._cost_of(source))
            source.note(sum(len(sequence.draft) for sequence in without), self._clock() - started_at)
            for sequence in without:
                self._live[sequence.id].source = source

    def _n_prompt_tokens(self) -> int:
        """How many prompt tokens the next step may have beside the sequences that wait for their next token."""
        prefilling = (sequence.n_computed for sequence in self._scheduler.running if sequence.n_missing > 1)
        return self._cost.prompt_tokens(self._running_size(), next(prefilling, 0))

    def _running_size(self) -> StepSize:
        """What the sequences that wait for their next token are in a step."""
        lengths = [len(sequence.tokens) for sequence in self._scheduler.running if sequence.n_missing == 1]
        return StepSize(len(lengths), 0, sum(lengths))

    def _cost_of(self, source: _DraftSource) -> float:
        """What one token of a draft for each sequence costs: its row and its making, as a share of a step."""
        running = self._running_size()
        step_s = self._cost.seconds(running)
        making = source.token_s * running.n_outputs / step_s if step_s else 0.0
        return self._cost.row_share(running) + making

    def _tell_progress(self, job: _Job) -> None:
        """Who asked hears how much of the prompt is there: before each turn, and before the first token."""
        sequence = job.sequence
        if job.request.reports_progress:
            job.deliver(Progress(sequence.n_computed, sequence.n_prompt, sequence.n_cached or 0))

    def _compute(self, batch: Batch) -> bool:
        """Decodes a batch and delivers what is sampled from it; False if it could not be computed as a whole."""
        try:
            self._decode(batch)
        except NoRoom:
            if not self._scheduler.refuse(batch):
                sequence = batch.parts[0].sequence
                error = EngineError(
                    f"the context's memory has no room for {len(sequence.tokens)} tokens: use a smaller --ctx"
                )
                self._end(self._live[sequence.id], error)
        except DecodeFailed as error:
            self._isolate(batch, error)
        else:
            self._deliver(batch)
            return True
        return False

    def _decode(self, batch: Batch) -> None:
        """Computes a batch, and adapts the number of threads to what the machine gave for it."""
        n_threads, started_at, used_s = self._threads.n, self._clock(), time.process_time()
        self.backend.decode(batch)
        predicted_s = self._cost.seconds(batch.size)
        self._threads.note(predicted_s, self._clock() - started_at, time.process_time() - used_s)
        if self._threads.n != n_threads:
            self.backend.set_threads(self._threads.n)

    def _isolate(self, batch: Batch, error: DecodeFailed) -> None:
        """One request's trouble is that request's alone: each sequence runs by itself, and what fails alone ends."""
        log.warning("a batch of %d sequences failed (%s); they now run one by one", len(batch.parts), error)
        for single in batch.alone():
            job = self._live[single.parts[0].sequence.id]
            try:
                self.backend.decode(single)
            except (NoRoom, DecodeFailed) as own_error:
                self._end(job, EngineError(f"the model could not compute this request: {own_error}"), keep=False)
            else:
                self._deliver(single)

    def _deliver(self, batch: Batch) -> None:
        """Draws from a decoded batch and hands the tokens out. A request whose draw fails ends; the others go on."""
        for part in batch.parts:
            if part.is_scored:
                self._score(self._live[part.sequence.id], part)
        work = [(self._live[part.sequence.id], part) for part in batch.outputs()]
        runs = self._token_sampler.sample([(job.sampler, job.request, part) for job, part in work])
        self._scheduler.update(batch, [[token_of(item) for item in run] for run in runs])
        self._n_computed += batch.n_tokens
        self._n_drawn += sum(map(len, runs))
        for (job, part), run in zip(work, runs):
            if part.draft:
                self._count_draft(job, len(part.draft), len(run) - 1)
            self._deliver_run(job, run)

    def _deliver_run(self, job: _Job, run: TokenRun) -> None:
        is_first = job.sequence.n_drawn == len(run)
        for item in run:
            if isinstance(item, EngineError):
                self._end(job, item)
                return
            if is_first:
                self._tell_progress(job)
            job.deliver(item)
            if is_first:
                self._count_first(job)
                is_first = False
        end = self._natural_end(job)
        if end is not None:
            self._end(job, end)

    def _score(self, job: _Job, part: Part) -> None:
        """What the rows of a prompt say of the tokens after them; those that were scored before are left out."""
        tokens, n_top = part.sequence.tokens, job.request.params.prompt_logprobs or 0
        for i, row in enumerate(part.scored_rows, part.sequence.n_computed + 1):
            if i > part.sequence.n_scored:
                job.run.add_prompt_logprob(job.index, *self.backend.logprobs(row, tokens[i], n_top))

    def _count_draft(self, job: _Job, n_drafted: int, n_accepted: int) -> None:
        assert job.source is not None
        job.source.drafter.note(job.sequence, n_drafted, n_accepted, self._cost_of(job.source))
        job.run.count_draft(job.index, n_drafted, n_accepted)
        self._n_drafted += n_drafted
        self._n_draft_accepted += n_accepted

    def _count_first(self, job: _Job) -> None:
        self._n_cached += job.sequence.n_cached or 0
        usage = job.run.usage(job.index)
        self._first_token_s.add(usage.queue_s + usage.prompt_s)

    def _natural_end(self, job: _Job) -> Ended | None:
        token = job.sequence.tokens[-1]
        if job.request.params.max_tokens == 0:
            return Ended("length", None)
        if self.backend.is_end(token):
            return Ended("stop", None)
        if token in job.request.params.stop_token_ids:
            return Ended("stop", token)
        if job.sequence.is_full or self._is_late(job):
            return Ended("length", None)
        return None

    def _is_late(self, job: _Job) -> bool:
        limit_s = job.request.params.max_completion_s
        if limit_s is None:
            return False
        new = job.sequence.tokens[max(job.n_looked_at, job.sequence.n_prompt) :]
        job.n_looked_at = len(job.sequence.tokens)
        job.has_line = job.has_line or any(b"\n" in self.backend.piece(token) for token in new)
        return job.has_line and job.run.usage(job.index).completion_s >= limit_s

    def _step_failed(self, error: BaseException) -> None:
        """The one place where errors of the engine thread end: the engine goes on without its requests, or stops."""
        self._n_failed_steps += 1
        if not isinstance(error, Exception) or self._n_failed_steps >= _MAX_FAILED_STEPS:
            self._fail(error)
            return
        try:
            log.error("a step of the engine failed", exc_info=error)
            cause = "the engine failed while it computed this request; the server's log has the cause"
            self._end_all([*self._live.values(), *self._fetching.values()], EngineError(cause))
        except BaseException as second_error:
            self._fail(second_error)

    def _fail(self, error: BaseException) -> None:
        """Stops the engine for good: all requests end with an error, and those to come are refused."""
        with self._lock:
            self.failure = error
        try:
            self._end_all(list(self._open), EngineStopped(f"the engine has stopped: {error!r}"))
            log.critical("the engine has stopped", exc_info=error)
        except BaseException:
            log.exception("the engine was not cleaned up after its failure")

    def _end_all(self, jobs: list[_Job], error: EngineError) -> None:
        """Ends sequences and starts again with an empty KV cache, whatever state the failed step left."""
        with self._lock:
            jobs = [job for job in jobs if job in self._open]
            self._open.difference_update(jobs)
        for job in jobs:
            job.deliver(error)
        for job in jobs:
            self._free_sampler(job)
            self._forget_drafts(job)
        self._live.clear()
        self._fetching.clear()
        self._scheduler.reset()


def _set_suspended(jobs: list[_Job], is_suspended: bool) -> None:
    for job in jobs:
        job.sequence.is_suspended = is_suspended
