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
from array import array
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Many
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue

from ..core.server_state import SequenceStats
from .backend import Backend, DecodeFailed, NoFreeCells
from .batch import Batch, BatchChunk, Sequence
from .drafts import Drafter, DraftModel, LookupDrafter
from .embedding import Embedder, is_non_causal
from .kv_cache import DEFAULT_SNAPSHOT_BYTES, KVCache
from .run import RequestRun
from .scheduler import Scheduler
from .stats import FIRST_TOKEN_BOUNDS_S, EngineCounts, EngineStats, Histogram, sequence_stats
from .token_sampler import TokenRun, TokenSampler, token_of
from .values import (
    Cancelled,
    Ended,
    EngineError,
    EngineStopped,
    GenerationRequest,
    InvalidToken,
    ModelFacts,
    PromptTooLong,
    QueueFull,
    TextTooLong,
    WritesNoText,
)

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
        max_snapshot_bytes: int = DEFAULT_SNAPSHOT_BYTES,
        after_step: Callable[[], None] = lambda: None,
    ):
        """The engine owns both backends and closes them.

        Args:
            backend: The model.
            max_queue: The limit of waiting sequences; further ones get QueueFull.
            draft_backend: A smaller model of the same vocabulary for speculative decoding.
            max_snapshot_bytes: The limit of snapshots of a recurrent model in memory.
            after_step: Called on the engine thread when the output of a step has been delivered, before the next step
                is decoded. It must only pass the output on to another thread, which works while the next step runs.
        """
        self.backend = backend
        self.facts = backend.facts
        self.embedder = Embedder(lambda: backend.open_embeddings())
        # The error that stopped the engine thread, if one did.
        self.failure: BaseException | None = None
        # The limit of open sequences: those that run or wait.
        self.max_open = self.facts.n_parallel + max_queue
        self._after_step = after_step
        self._thread: threading.Thread | None = None
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        # Guards what submitting threads and the engine thread share: `failure` and the next three.
        self._lock = threading.Lock()
        self._open: set[Sequence] = set()
        self._is_closed = False
        self._last_id = 0
        # Only the engine thread changes the rest. The sequences that the scheduler has.
        self._scheduled: set[Sequence] = set()
        self._n_failed_steps = 0
        self._is_stopping = False
        self._start_counts()
        self._cache = KVCache(backend, max_snapshot_bytes)
        self._scheduler = Scheduler(backend.limits, self._cache)
        self._drafters: list[Drafter] = [LookupDrafter()]
        if draft_backend is not None:
            self._drafters.append(DraftModel(draft_backend, self.facts.n_vocab))
        self._token_sampler = TokenSampler(backend)

    def _start_counts(self) -> None:
        self._counts = EngineCounts()
        self._first_token_s = Histogram(FIRST_TOKEN_BOUNDS_S)

    # Any thread may call these.

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
        run = self.submit(requests)
        while self.step():
            pass
        while run.is_running:
            run.take(0)
        self.forget()
        self.step()
        self._start_counts()
        self._last_id = 0

    def join(self) -> None:
        """Waits until the engine thread has ended: after `close`, or a failure."""
        assert self._thread is not None, "the engine has not been started"
        self._thread.join()

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
        for drafter in self._drafters:
            drafter.close()
        self.embedder.close()
        self.backend.close()

    def submit(self, requests: Many[GenerationRequest], new_run: Callable[..., RequestRun] = RequestRun) -> RequestRun:
        """Queues the sequences of one request, all or none, and returns at once.

        Args:
            requests: The request of each sequence.
            new_run: Makes the run, which gets the output, from the arguments of `RequestRun`.

        Raises:
            PromptTooLong: A prompt leaves no space for one token of output.
            InvalidToken: A token id that the vocabulary does not have, or an empty prompt.
            WritesNoText: The model makes embeddings only.
            InvalidGrammar: The grammar of a constraint cannot be parsed.
            QueueFull: Too many sequences wait.
            EngineStopped: The engine is closed or has failed.
        """
        for request in requests:
            _check(request, self.facts)
        sequences: list[Sequence] = []
        try:
            for request in requests:
                # On this thread, since parsing a large grammar takes long and would delay the engine thread.
                sequences.append(_new_sequence(request, self.backend))
            return self._enqueue(requests, sequences, new_run)
        except BaseException:
            for sequence in sequences:
                self.backend.free_sampler(sequence.sampler)
            raise

    def _enqueue(
        self, requests: Many[GenerationRequest], sequences: list[Sequence], new_run: Callable[..., RequestRun]
    ) -> RequestRun:
        cancelled = Cancelled("the request was cancelled")
        run = new_run(
            requests,
            self.backend,
            cancel=lambda i: self.post(lambda: self._end(sequences[i], cancelled)),
            suspend=lambda is_suspended: self.post(lambda: _set_suspended(sequences, is_suspended)),
        )
        with self._lock:
            if self._is_closed or self.failure is not None:
                raise EngineStopped(
                    f"the engine has stopped: {'it was closed' if self.failure is None else repr(self.failure)}"
                )
            n_open = len(self._open)
            if n_open + len(sequences) > self.max_open:
                raise QueueFull(f"{n_open} requests are open, the limit is {self.max_open}: try again later")
            self._open.update(sequences)
            # Inside the lock, so that no sequence is added after `close`, which posts `_stop`: it would never end.
            for index, sequence in enumerate(sequences):
                self._last_id += 1
                sequence.id, sequence.run, sequence.index = self._last_id, run, index
                self.post(partial(self._add, sequence))
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

    def piece(self, token: int, special: bool = False) -> bytes:
        """The bytes of a token; those of a control token only with `special`."""
        return self.backend.piece(token, special)

    def embed(self, inputs: Many[Many[int]], is_cancelled: Callable[[], bool] = lambda: False) -> list[array[float]]:
        """The pooled vector of each input; see `Embedder.embed`."""
        return self.embedder.embed(inputs, is_cancelled)

    def pair_tokens(self, query: str, documents: Many[str]) -> list[list[int]]:
        """The tokens of a query with each document, for a model with `rank` pooling."""
        return [self.backend.pair_tokens(query, document) for document in documents]

    def stats(self) -> EngineStats:
        return EngineStats(
            n_running=len(self._scheduler.running),
            n_waiting=len(self._scheduler.waiting),
            n_cells_active=self._cache.n_cells_active,
            n_cells_idle=self._cache.n_cells_idle,
            counts=replace(self._counts),
            first_token_s=self._first_token_s.values(),
        )

    def running(self) -> list[SequenceStats]:
        """The running sequences, the oldest first."""
        return [sequence_stats(sequence) for sequence in list(self._scheduler.running)]

    def forget(self) -> None:
        """Drops all cached prefixes before the next step."""
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
            try:
                has_run = self._step(wait)
            finally:
                self._after_step()
        except BaseException as error:
            self._fail(error)
            return True
        return has_run

    def _run(self) -> None:
        """Runs steps until the engine is closed or fails."""
        was_busy = False
        while not self._is_stopping and self.failure is None:
            was_busy = self.step(wait=not was_busy)
        if self.failure is None:
            try:
                self._end_all(list(self._open), EngineStopped("the engine has been closed"))
            except BaseException as error:
                self._fail(error)

    def _step(self, wait: bool) -> bool:
        if wait:
            self._inbox.get()()
        try:
            while True:
                self._inbox.get_nowait()()
        except Empty:
            pass
        if self._is_stopping:
            return False
        n_to_draft = self._scheduler.n_to_draft
        for drafter in self._drafters if n_to_draft else ():
            drafter.draft([sequence for sequence in self._scheduler.running if not sequence.draft], n_to_draft)
        batch = self._scheduler.schedule()
        if not batch.chunks:
            return False
        for chunk in batch.chunks:
            if not chunk.sequence.n_sampled:
                chunk.sequence.report_start()
        self._compute(batch)
        self._n_failed_steps = 0
        return True

    def _stop(self) -> None:
        self._is_stopping = True

    def _add(self, sequence: Sequence) -> None:
        if sequence not in self._open:
            return
        try:
            self._scheduler.add(sequence)
            self._scheduled.add(sequence)
        except Exception as error:  # A failed step would not end this sequence: the scheduler does not have it.
            log.error("a request could not be started", exc_info=error)
            self._end(sequence, EngineError(f"the request could not be started: {error}"))

    def _compute(self, batch: Batch) -> None:
        """Decodes a batch and delivers what is sampled from it.

        If there are no free cells, evicts idle prefixes, then leaves out drafts, then preempts the newest sequence.
        """
        try:
            while True:
                try:
                    self.backend.decode(batch)
                    break
                except NoFreeCells:
                    if self._cache.evict():
                        continue
                    if any(chunk.draft for chunk in batch.chunks):
                        batch = batch.without_drafts()
                        continue
                    only = self._scheduler.refuse()
                    if only is not None:
                        text = f"the KV cache has no free cells for {len(only.tokens)} tokens: use a smaller --ctx"
                        self._end(only, EngineError(text))
                    return
        except DecodeFailed as error:
            self._isolate(batch, error)
        else:
            self._deliver(batch)

    def _isolate(self, batch: Batch, error: DecodeFailed) -> None:
        """Decodes each sequence of a failed batch alone, and ends those that fail again."""
        log.warning("a batch of %d sequences failed (%s); they now run one by one", len(batch.chunks), error)
        for single in batch.alone():
            try:
                self.backend.decode(single)
            except (NoFreeCells, DecodeFailed) as own_error:
                text = f"the model could not compute this request: {own_error}"
                self._end(single.chunks[0].sequence, EngineError(text), keep=False)
            else:
                self._deliver(single)

    def _deliver(self, batch: Batch) -> None:
        """Samples from a decoded batch and delivers the tokens. An error of sampling ends only its sequence."""
        for chunk in batch.chunks:
            if chunk.is_scored:
                self._deliver_prompt_logprobs(chunk)
        outputs = list(batch.outputs())
        runs = self._token_sampler.sample(outputs)
        tokens = [[token_of(item) for item in run] for run in runs]
        self._scheduler.update(batch, tokens)
        self._counts.n_computed += batch.n_tokens
        self._counts.n_sampled += sum(map(len, runs))
        for chunk, run, run_tokens in zip(outputs, runs, tokens):
            if chunk.draft:
                n_accepted = chunk.n_accepted(run_tokens)
                self._counts.n_drafted += len(chunk.draft)
                self._counts.n_draft_accepted += n_accepted
                assert chunk.sequence.run is not None
                chunk.sequence.run.count_draft(chunk.sequence.index, len(chunk.draft), n_accepted)
            self._deliver_run(chunk.sequence, run)

    def _deliver_prompt_logprobs(self, chunk: BatchChunk) -> None:
        """Delivers the log probabilities of prompt tokens. The row of a token gives that of the next one.

        A preempted prompt is computed again; tokens that already have log probabilities are left out.
        """
        sequence = chunk.sequence
        n_top = sequence.request.params.prompt_logprobs or 0
        for position, row in enumerate(chunk.scored_rows, sequence.n_computed + 1):
            if position > sequence.n_scored:
                assert sequence.run is not None
                logprobs = self.backend.logprobs(row, sequence.tokens[position], n_top)
                sequence.run.add_prompt_logprob(sequence.index, *logprobs)

    def _deliver_run(self, sequence: Sequence, run: TokenRun) -> None:
        for item in run:
            if isinstance(item, EngineError):
                self._end(sequence, item)
                return
            is_first = sequence.first_at is None
            if is_first:
                sequence.first_at = time.perf_counter()
                self._counts.n_cached += sequence.n_cached or 0
                self._first_token_s.add(sequence.first_at - sequence.submitted_at)
                sequence.report_progress()
            sequence.deliver(item)
        end = sequence.end(self.backend)
        if end is not None:
            self._end(sequence, end)

    def _end(self, sequence: Sequence, end: Ended | EngineError, *, keep: bool = True) -> None:
        """Ends a sequence; further calls for it do nothing. With `keep` its tokens stay cached for other requests."""
        with self._lock:
            if sequence not in self._open:
                return
            self._open.remove(sequence)
        try:
            if sequence in self._scheduled:
                self._scheduled.remove(sequence)
                self._scheduler.remove(sequence, keep=keep)
        finally:
            try:
                self._free(sequence)
            finally:
                sequence.deliver(end)

    def _free(self, sequence: Sequence) -> None:
        """Frees what a sequence has beside its cells. An error is logged: it must not end other requests."""
        try:
            self.backend.free_sampler(sequence.sampler)
            for drafter in self._drafters:
                drafter.forget(sequence)
        except Exception:
            log.exception("a sequence could not be freed")

    def _fail(self, error: BaseException) -> None:
        """Handles every error of the engine thread: ends the requests in flight and empties the KV cache.

        The engine stops for good after an error that is not an Exception, after several failed steps in a row, and if
        this handling itself fails: it ends all requests, and refuses later ones.
        """
        self._n_failed_steps += 1
        if isinstance(error, Exception) and self._n_failed_steps < _MAX_FAILED_STEPS:
            log.error("a step of the engine failed", exc_info=error)
            cause = EngineError("the engine failed while it computed this request; the server's log has the cause")
            try:
                self._end_all(list(self._scheduled), cause)
                return
            except BaseException as second_error:
                error = second_error
        with self._lock:
            self.failure = error
        log.critical("the engine has stopped", exc_info=error)
        try:
            self._end_all(list(self._open), EngineStopped(f"the engine has stopped: {error!r}"))
        except BaseException:
            log.exception("the engine was not cleaned up after its failure")

    def _end_all(self, sequences: list[Sequence], error: EngineError) -> None:
        """Ends sequences and empties the scheduler and the KV cache, whose state a failed step may have left wrong."""
        with self._lock:
            sequences = [sequence for sequence in sequences if sequence in self._open]
            self._open.difference_update(sequences)
        self._scheduled.clear()
        for sequence in sequences:
            sequence.deliver(error)
        for sequence in sequences:
            self._free(sequence)
        self._after_step()
        self._scheduler.reset()


def _set_suspended(sequences: list[Sequence], is_suspended: bool) -> None:
    for sequence in sequences:
        sequence.is_suspended = is_suspended


def _check(request: GenerationRequest, facts: ModelFacts) -> None:
    """Checks the prompt and all token ids of a request."""
    if is_non_causal(facts.metadata):
        raise WritesNoText("this model makes vectors of texts and writes none: use /v1/embeddings or /v1/rerank")
    if len(request.prompt) >= facts.n_ctx:
        raise PromptTooLong(len(request.prompt), facts.n_ctx)
    if not request.prompt:
        raise InvalidToken("the prompt is empty: it needs one token at least")
    ids = (*request.prompt, *request.params.stop_token_ids, *(id for id, _ in request.sampling.logit_bias))
    if min(ids) < 0 or max(ids) >= facts.n_vocab:
        raise InvalidToken(f"token ids go from 0 to {facts.n_vocab - 1}; the request has {min(ids)} to {max(ids)}")


def _new_sequence(request: GenerationRequest, backend: Backend) -> Sequence:
    """The sequence of a request, with its sampler, and with its length limited by the request and the context."""
    n_ctx, n_prompt, max_tokens = backend.facts.n_ctx, len(request.prompt), request.params.max_tokens
    # Even with a limit of 0 one token is sampled, so that the prompt is computed.
    limit = n_ctx if max_tokens is None else min(n_ctx, n_prompt + max(max_tokens, 1))
    return Sequence(
        0,
        list(request.prompt),
        limit,
        scores_prompt=request.params.prompt_logprobs is not None,
        request=request,
        sampler=backend.new_sampler(request),
    )
