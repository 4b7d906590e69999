"""The run of one request: its sequences, and one queue of the tokens that the engine sampled for them.

The engine thread only puts token ids into the queue. The thread that takes them looks up their bytes, so the steps of
the engine stay short.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import Protocol

from ..core.events import OutputToken, TokenLogprob
from ..core.usage import Usage
from .values import Delta, Ended, EngineError, Finish, GenerationRequest, Item, Progress, Sampled


class TokenReader(Protocol):
    """The texts of tokens."""

    def piece(self, token: int, special: bool = False) -> bytes:
        """The bytes of a token; those of a control token only with `special`."""

    def is_end(self, token: int) -> bool:
        """Whether this is an end-of-generation token."""


class RequestRun:
    """The sequences of one request on the engine, by their index in the request.

    One thread calls `take`; any thread may call `cancel`. Leaving the `with` cancels all sequences that still run.
    """

    def __init__(
        self,
        requests: Sequence[GenerationRequest],
        backend: TokenReader,
        cancel: Callable[[int], None],
        suspend: Callable[[bool], None],
    ):
        """
        Args:
            requests: The request of each sequence.
            backend: Gives the bytes of tokens.
            cancel: Ends the sequence with an index; its error is Cancelled. Any thread may call this.
            suspend: Suspends all sequences (True) or resumes them. Any thread may call this.
        """
        self._cancel = cancel
        self._suspend = suspend
        self._outputs = [_Output(request, backend) for request in requests]
        self._queue: SimpleQueue[tuple[int, Item]] = SimpleQueue()
        # The error of the sequence that failed first, until it is raised.
        self._error: EngineError | None = None

    def __enter__(self) -> RequestRun:
        return self

    def __exit__(self, *exception: object) -> None:
        self.cancel()

    @property
    def is_running(self) -> bool:
        """Whether `take` may still return or raise something."""
        return self._error is not None or any(not output.is_over for output in self._outputs)

    def take(self, timeout_s: float | None = None) -> list[tuple[int, Progress | Delta | Finish]]:
        """Waits for new results, at most `timeout_s`, and returns them with the indexes of their sequences.

        For each sequence there is at most the newest Progress, one Delta, and one Finish at its end, in this order: a
        reader that is slower than the engine gets fewer and larger deltas. The list may be empty even before the
        timeout, and is empty at once if no sequence runs.

        Raises:
            EngineError: A sequence failed or was cancelled, which ends the others too. The results before that have
                been returned.
        """
        while self._error is None and self.is_running:
            results: list[tuple[int, Progress | Delta | Finish]] = []
            for index, items in self._taken_items(timeout_s).items():
                for result in self._outputs[index].read(items):
                    if isinstance(result, EngineError):
                        self._error = result
                    else:
                        results.append((index, result))
            if results or (timeout_s is not None and self._error is None):
                return results
        error, self._error = self._error, None
        if error is None:
            return []
        self.cancel()
        for output in self._outputs:
            output.is_over = True
        raise error

    def cancel(self) -> None:
        """Ends all sequences within one step of the engine; `take` then raises Cancelled. Any thread."""
        for i, output in enumerate(self._outputs):
            if not output.is_over:
                self._cancel(i)

    def end(self, index: int) -> None:
        """Ends one sequence, of which `take` returns nothing more. Only for the thread that calls `take`."""
        self._outputs[index].is_over = True
        self._cancel(index)

    def suspend(self) -> None:
        """Lets the sequences give up their slots while other requests wait for one, until `resume`. Any thread."""
        self._suspend(True)

    def resume(self) -> None:
        """Lets the sequences continue as soon as there are slots for them. Any thread."""
        self._suspend(False)

    def usage(self, index: int) -> Usage:
        """The counts and times of a sequence, for the items that have been taken."""
        return self._outputs[index].usage()

    def prompt_tokens(self, index: int = 0) -> tuple[OutputToken, ...]:
        """The prompt of a sequence with log probabilities, for a request with `prompt_logprobs`.

        It is complete from the first Delta on. The first token has no log probability.
        """
        return self._outputs[index].prompt_tokens()

    # The engine thread calls these.

    def start(self, index: int, n_cached: int, at: float) -> None:
        """Notes that a sequence has left the queue, with `n_cached` tokens of its prompt in the KV cache.

        `at` is the time by `time.perf_counter`, whose clock all processes share. The engine process reads the clock,
        since everything that a step produced arrives here together.
        """
        output = self._outputs[index]
        if output.started_at is None:
            output.n_cached = n_cached
            output.started_at = at

    def deliver(self, index: int, item: Item, at: float) -> None:
        """Queues progress, a sampled token or the end for the reader; see `start` for `at`."""
        if not isinstance(item, (Progress, Ended, EngineError)):
            output = self._outputs[index]
            output.last_at = at
            output.first_at = output.first_at or output.last_at
        self._queue.put((index, item))

    def add_prompt_logprob(self, index: int, logprob: float, top: list[tuple[int, float]]) -> None:
        """Adds the log probability of the next prompt token, beginning with the second, and the likeliest tokens."""
        self._outputs[index].prompt_logprobs.append((logprob, top))

    def count_draft(self, index: int, n_drafted: int, n_accepted: int) -> None:
        self._outputs[index].n_drafted += n_drafted
        self._outputs[index].n_draft_accepted += n_accepted

    def _taken_items(self, timeout_s: float | None) -> dict[int, list[Item]]:
        """The items of each running sequence, by its index. Waits if there are none."""
        pending: list[tuple[int, Item]] = []
        try:
            pending.append(self._queue.get(timeout=timeout_s))
            while True:
                pending.append(self._queue.get_nowait())
        except Empty:
            pass
        taken: dict[int, list[Item]] = {}
        for index, item in pending:
            if not self._outputs[index].is_over:
                taken.setdefault(index, []).append(item)
        return taken


class _Output:
    """The output of one sequence: tokens, counts and times, from the items that the engine delivers."""

    def __init__(self, request: GenerationRequest, backend: TokenReader) -> None:
        self.request = request
        # Whether the end has been returned, or the reader has cancelled the sequence.
        self.is_over = False
        self._backend = backend
        self._n_completion = 0
        # The token that ended the sequence, if one did.
        self._last: OutputToken | None = None
        # The engine thread writes these before it delivers the item to which they belong.
        self.n_cached = 0
        self.prompt_logprobs: list[tuple[float, list[tuple[int, float]]]] = []
        self.n_drafted = 0
        self.n_draft_accepted = 0
        # Times by `time.perf_counter`: of the submission, the start of the prefill, the first and the last token.
        self.submitted_at = time.perf_counter()
        self.started_at: float | None = None
        self.first_at: float | None = None
        self.last_at: float | None = None

    def read(self, items: list[Item]) -> Iterator[Progress | Delta | Finish | EngineError]:
        """Combines items: the newest progress, one delta, and the end if it is among them."""
        n_progress = next((i for i, item in enumerate(items) if not isinstance(item, Progress)), len(items))
        if n_progress:
            newest = items[n_progress - 1]
            assert isinstance(newest, Progress)
            yield newest
        tokens: list[OutputToken] = []
        end: Finish | EngineError | None = None
        for item in items[n_progress:]:
            assert not isinstance(item, Progress), "progress after the first token"
            if isinstance(item, (Ended, EngineError)):
                end = Finish(item.reason, item.stop, self.usage(), self._last) if isinstance(item, Ended) else item
                break
            token = self._counted(item)
            if token is not None:
                tokens.append(token)
        if tokens:
            yield Delta(tuple(tokens))
        if end is not None:
            self.is_over = True
            yield end

    def usage(self) -> Usage:
        return Usage(
            n_prompt=len(self.request.prompt),
            n_cached=self.n_cached,
            n_completion=self._n_completion,
            queue_s=_seconds(self.submitted_at, self.started_at),
            prompt_s=_seconds(self.started_at, self.first_at),
            completion_s=_seconds(self.first_at, self.last_at),
            n_drafted=self.n_drafted,
            n_draft_accepted=self.n_draft_accepted,
        )

    def prompt_tokens(self) -> tuple[OutputToken, ...]:
        def piece(token: int) -> bytes:
            return self._backend.piece(token, special=True)  # The prompt is shown with its control tokens.

        first, *others = self.request.prompt
        scored = (
            OutputToken(token, piece(token), logprob, _top(top, piece))
            for token, (logprob, top) in zip(others, self.prompt_logprobs)
        )
        return (OutputToken(first, piece(first)), *scored)

    def _counted(self, sampled: Sampled) -> OutputToken | None:
        """Counts a sampled token. Returns None if it is not part of the output: the token that ends the sequence."""
        params = self.request.params
        if params.max_tokens == 0:
            return None  # The token that was sampled to compute the prompt.
        token = self._output_token(sampled)
        self._n_completion += 1
        if self._backend.is_end(token.id) or token.id in params.stop_token_ids:
            self._last = token
            return None
        return token

    def _output_token(self, sampled: Sampled) -> OutputToken:
        if isinstance(sampled, int):
            return OutputToken(sampled, self._piece(sampled))
        token, logprob, top = sampled
        return OutputToken(token, self._piece(token), logprob, _top(top, self._piece))

    def _piece(self, token: int) -> bytes:
        return self._backend.piece(token, token in self.request.visible_tokens)


def _seconds(start: float | None, end: float | None) -> float:
    """The time from `start` to `end`; 0 if one of them is still to come."""
    return 0.0 if start is None or end is None else end - start


def _top(top: list[tuple[int, float]], piece: Callable[[int], bytes]) -> tuple[TokenLogprob, ...]:
    return tuple(TokenLogprob(id, piece(id), logprob) for id, logprob in top)
