"""When an engine process sends what its steps produce."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from .values import StepOutput, TokenizedPrompts

# Each message wakes the server's process, which writes to all clients, and the clients, on the cores that compute the
# next step. So a sequence gets its tokens at most this often, and all sequences together get at most so many events a
# second. Measured with a model of 10M parameters on 2 cores. A model with slower steps sends each token.
_MIN_INTERVAL_S = 0.016
_MAX_EVENTS_PER_S = 2000


class Delivery:
    """The output that is to be sent. Belongs to the engine thread."""

    def __init__(self, send: Callable[[Sequence[tuple[Any, ...]]], None]) -> None:
        self._send = send
        # The id of the request and the output.
        self._outputs: list[tuple[int, StepOutput]] = []
        # By request and sequence: the index in `_outputs` of the output that the next one is joined to.
        self._joinable: dict[tuple[int, int], int] = {}
        self._starts: list[tuple[str, int, TokenizedPrompts]] = []
        self._ends: list[tuple[str, int, Exception | None]] = []
        self._is_urgent = False
        # When the last message was sent, and when the last step ended.
        self._sent_at = self._stepped_at = 0.0

    def start(self, id: int, prompts: TokenizedPrompts) -> None:
        """Take the first output of the request `id`."""
        self._starts.append(("output", id, prompts))
        self._is_urgent = True

    def add(self, id: int, output: StepOutput) -> None:
        """Take the output of a sequence of the request `id`.

        It is joined to the last output of the sequence that waits here. Progress is joined to no output, and no output
        to progress. An end may be joined, and no output of the sequence follows it.
        """
        place = self._joinable.get((id, output.sequence))
        if place is not None and output.progress is None:
            earlier = self._outputs[place][1]
            output = output._replace(
                tokens=[*earlier.tokens, *output.tokens],
                n_drafted=earlier.n_drafted + output.n_drafted,
                n_draft_accepted=earlier.n_draft_accepted + output.n_draft_accepted,
            )
            self._outputs[place] = id, output
        else:
            self._joinable.pop((id, output.sequence), None)
            if output.tokens and not output.is_urgent:
                self._joinable[id, output.sequence] = len(self._outputs)
            self._outputs.append((id, output))
        self._is_urgent = self._is_urgent or output.is_urgent

    def end(self, id: int, error: Exception | None) -> None:
        """Take the end of the request `id`, which is sent after all of its outputs."""
        self._ends.append(("ended", id, error))
        self._is_urgent = True

    def send_due(self, at_once: bool) -> None:
        """Send the output: now if `at_once` or if it is urgent, otherwise from time to time."""
        now = time.perf_counter()
        step_s, self._stepped_at = now - self._stepped_at, now
        interval_s = max(_MIN_INTERVAL_S, len(self._joinable) / _MAX_EVENTS_PER_S)
        # The output also waits for the end of the next step, which takes as long as this one.
        is_time = at_once or self._is_urgent or now + step_s > self._sent_at + interval_s
        if is_time and (self._starts or self._outputs or self._ends):
            # Plain tuples, since a class takes ten times as long to send.
            steps = ("steps", [(id, *output) for id, output in self._outputs])
            self._send([*self._starts, steps, *self._ends])
            self._starts.clear()
            self._outputs.clear()
            self._joinable.clear()
            self._ends.clear()
            self._is_urgent, self._sent_at = False, now
