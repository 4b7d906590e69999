"""When an engine process sends what its steps produce."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from .values import StepOutput

# Each message wakes the server's process, which writes to all clients, and the clients, on the cores that compute the
# next step. So a sequence gets its tokens at most this often, and all sequences together get at most so many events a
# second. Measured with a model of 10M parameters on 2 cores. A model with slower steps sends each token.
_MIN_INTERVAL_S = 0.008
_MAX_EVENTS_PER_S = 2000


class Delivery:
    """The output that is to be sent. Belongs to the engine thread."""

    def __init__(self, send: Callable[[list[tuple[Any, ...]]], None]) -> None:
        self._send = send
        # The id of the call that started the sequence, and the output. Those without progress are joined; their places
        # are by call and sequence.
        self._outputs: list[tuple[int, StepOutput]] = []
        self._places: dict[tuple[int, int], int] = {}
        self._is_urgent = False
        # When the last message was sent, and when the last step ended.
        self._sent_at = self._stepped_at = 0.0

    def add(self, call: int, output: StepOutput) -> None:
        place = self._places.get((call, output.sequence))
        if place is not None and output.progress is None:
            earlier = self._outputs[place][1]
            output = output._replace(
                tokens=[*earlier.tokens, *output.tokens],
                n_drafted=earlier.n_drafted + output.n_drafted,
                n_draft_accepted=earlier.n_draft_accepted + output.n_draft_accepted,
            )
            self._outputs[place] = call, output
        else:
            if output.tokens and not output.is_urgent:
                self._places[call, output.sequence] = len(self._outputs)
            self._outputs.append((call, output))
        self._is_urgent = self._is_urgent or output.is_urgent

    def after_step(self, is_due: bool) -> None:
        """Send the output, at once if it is due or urgent, otherwise from time to time."""
        now = time.perf_counter()
        step_s, self._stepped_at = now - self._stepped_at, now
        interval_s = max(_MIN_INTERVAL_S, len(self._places) / _MAX_EVENTS_PER_S)
        # The output also waits for the end of the next step, which takes as long as this one.
        if self._outputs and (is_due or self._is_urgent or now + step_s > self._sent_at + interval_s):
            # Plain tuples, since a class takes ten times as long to send.
            self._send([(call, *output) for call, output in self._outputs])
            self._outputs.clear()
            self._places.clear()
            self._is_urgent, self._sent_at = False, now
