"""The run of one request: its sequences, and one queue of what the engine produced for them.

The engine thread only puts token ids into the queue. The thread that takes them looks up their bytes, so the steps of
the engine stay short.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import Union

from ..core.events import OutputEnd, OutputToken, PromptProgress, SampledTokens, Usage
from .values import GenerationRequest, Sampled, StepOutput, TokenTexts, Top

Result = Union[PromptProgress, SampledTokens, OutputEnd]


class RequestRun:
    """The sequences of one request on the engine, by their index in the request.

    One thread calls `take`; any thread may call `cancel`. Leaving the `with` cancels all sequences that still run.
    """

    def __init__(self, requests: Sequence[GenerationRequest], texts: TokenTexts, cancel: Callable[[int], None]):
        """`cancel` ends the sequence with an id; its error is Cancelled. Any thread may call it."""
        self._cancel = cancel
        # The ids of the sequences, which the engine sets.
        self.ids: Sequence[int] = ()
        # The indexes of the sequences whose end has not been delivered.
        self.undelivered = set(range(len(requests)))
        self._outputs = [_Output(request, texts) for request in requests]
        self._queue: SimpleQueue[StepOutput] = SimpleQueue()
        # The error of the sequence that failed first, until it is raised.
        self._error: Exception | None = None

    def __enter__(self) -> RequestRun:
        return self

    def __exit__(self, *exception: object) -> None:
        self.cancel()

    @property
    def is_running(self) -> bool:
        """Whether `take` may still return or raise something."""
        return self._error is not None or any(not output.is_over for output in self._outputs)

    def deliver(self, new: StepOutput) -> None:
        """Queues what a step produced. The engine thread calls this, or the thread that reads its messages."""
        if new.end is not None:
            self.undelivered.discard(new.sequence)
        if self._outputs[new.sequence].note(new):
            self._queue.put(new)

    def take(self, timeout_s: float | None = None) -> list[tuple[int, Result]]:
        """Waits for new results, at most `timeout_s`, and returns them with the indexes of their sequences.

        For each sequence there is at most the newest progress, one SampledTokens, and one OutputEnd, in this order.
        The list may be empty even before the timeout, and is empty at once if no sequence runs.

        Raises:
            ApiError: A sequence failed, which ends the others too. The results before that have been returned.
            Cancelled: `cancel` was called.
        """
        while self._error is None and self.is_running:
            results: list[tuple[int, Result]] = []
            for index, outputs in self._taken(timeout_s).items():
                for result in self._outputs[index].read(outputs):
                    if isinstance(result, Exception):
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
                self._cancel(self.ids[i])

    def end(self, index: int) -> None:
        """Ends one sequence, of which `take` returns nothing more. Only for the thread that calls `take`."""
        self._outputs[index].is_over = True
        self._cancel(self.ids[index])

    def usage(self, index: int) -> Usage:
        """The counts and times of a sequence, for the tokens that have been taken."""
        return self._outputs[index].usage()

    def prompt_tokens(self, index: int = 0) -> tuple[OutputToken, ...]:
        """The prompt of a sequence with log probabilities, except for its first token, for a request with
        `prompt_logprobs`. It is complete from the first SampledTokens on."""
        return self._outputs[index].prompt_tokens()

    def _taken(self, timeout_s: float | None) -> dict[int, list[StepOutput]]:
        """The outputs of each running sequence, by its index. Waits if there are none."""
        taken: dict[int, list[StepOutput]] = {}
        try:
            new = self._queue.get(timeout=timeout_s)
            while True:
                if not self._outputs[new.sequence].is_over:
                    taken.setdefault(new.sequence, []).append(new)
                new = self._queue.get_nowait()
        except Empty:
            return taken


class _Output:
    """The output of one sequence: tokens, counts and times, from what the engine delivers."""

    def __init__(self, request: GenerationRequest, texts: TokenTexts) -> None:
        self._request = request
        self._texts = texts
        # Whether the end has been returned, or the reader has cancelled the sequence.
        self.is_over = False
        self._n_completion = 0
        # The token that ended the sequence, if one did.
        self._last: OutputToken | None = None
        # `note` writes these before the reader gets the tokens to which they belong.
        self._n_cached = 0
        self._prompt_logprobs: list[tuple[float, Top]] = []
        self._n_drafted = 0
        self._n_draft_accepted = 0
        # Times by `time.perf_counter`: of the submission, the start of the prefill, the first and the last token.
        self._submitted_at = time.perf_counter()
        self._started_at: float | None = None
        self._first_at: float | None = None
        self._last_at: float | None = None

    def note(self, new: StepOutput) -> bool:
        """Notes counts and times. Returns whether there is something for the reader."""
        if new.progress is not None and self._started_at is None:
            self._started_at, self._n_cached = new.at, new.progress.n_cached
        if new.tokens:
            self._last_at = new.at
            self._first_at = self._first_at or new.at
        self._prompt_logprobs += new.prompt_logprobs
        self._n_drafted += new.n_drafted
        self._n_draft_accepted += new.n_draft_accepted
        return bool(new.tokens or new.end or (new.progress and self._request.reports_progress))

    def read(self, outputs: list[StepOutput]) -> Iterator[Result | Exception]:
        """Combines outputs: the newest progress, one SampledTokens, and the end if it is among them."""
        progress = [new.progress for new in outputs if new.progress is not None]
        if progress and self._request.reports_progress:
            yield progress[-1]
        sampled = [self._counted(item) for new in outputs for item in new.tokens]
        tokens = tuple(token for token in sampled if token is not None)
        if tokens:
            yield SampledTokens(tokens)
        end = outputs[-1].end
        if end is not None:
            self.is_over = True
            yield self._end(end) if isinstance(end, str) else end

    def usage(self) -> Usage:
        return Usage(
            n_prompt=len(self._request.prompt),
            n_cached=self._n_cached,
            n_completion=self._n_completion,
            queue_s=_seconds(self._submitted_at, self._started_at),
            prompt_s=_seconds(self._started_at, self._first_at),
            completion_s=_seconds(self._first_at, self._last_at),
            n_drafted=self._n_drafted,
            n_draft_accepted=self._n_draft_accepted,
        )

    def prompt_tokens(self) -> tuple[OutputToken, ...]:
        # The prompt is shown with its control tokens.
        logprobs = zip(self._request.prompt[1:], self._prompt_logprobs)
        first = self._output_token(self._request.prompt[0], is_shown=True)
        return (first, *(self._output_token((token, *scored), is_shown=True) for token, scored in logprobs))

    def _counted(self, sampled: Sampled) -> OutputToken | None:
        """Counts a sampled token. Returns None if it is not part of the output: the token that ends the sequence."""
        params = self._request.params
        if params.max_tokens == 0:
            return None  # The token that was sampled to compute the prompt.
        token = self._output_token(sampled)
        self._n_completion += 1
        if self._texts.is_end(token.id) or token.id in params.stop_token_ids:
            self._last = token
            return None
        return token

    def _output_token(self, sampled: Sampled, is_shown: bool = False) -> OutputToken:
        """A token with its bytes; those of control tokens if the request or `is_shown` wants them."""

        def piece(token: int) -> bytes:
            return self._texts.piece(token, is_shown or token in self._request.visible_tokens)

        if isinstance(sampled, int):
            return OutputToken(sampled, piece(sampled))
        token, logprob, top = sampled
        return OutputToken(token, piece(token), logprob, tuple(OutputToken(id, piece(id), p) for id, p in top))

    def _end(self, reason: str) -> OutputEnd:
        last = self._last
        stop = None if last is None or self._texts.is_end(last.id) else last.id
        return OutputEnd(reason, stop, last)


def _seconds(start: float | None, end: float | None) -> float:
    """The time from `start` to `end`; 0 if one of them is still to come."""
    return 0.0 if start is None or end is None else end - start
