"""When a sequence ends by itself: end-of-generation tokens, stop tokens, the length limit, the time limit.

Stop texts are not searched here, but by the thread that reads the output (stop_texts.py).
"""

from __future__ import annotations

from collections.abc import Callable

from ..core.params import GenerationParams
from .backend import Backend
from .batch import Sequence
from .run import Ended


class EndConditions:
    """The end conditions of one sequence."""

    def __init__(self, params: GenerationParams, backend: Backend):
        self._params = params
        self._backend = backend
        # Whether the output has a newline. The time limit does not end the sequence before that.
        self._has_newline = False
        # Tokens that have been searched for a newline.
        self._n_searched = 0

    def check(self, sequence: Sequence, completion_s: Callable[[], float]) -> Ended | None:
        """The end, if the newest token ends the sequence. `completion_s` gives the seconds since the first token."""
        token = sequence.tokens[-1]
        if self._params.max_tokens == 0:
            return Ended("length", None)
        if self._backend.is_end(token):
            return Ended("stop", None)
        if token in self._params.stop_token_ids:
            return Ended("stop", token)
        if sequence.is_full or self._is_late(sequence, completion_s):
            return Ended("length", None)
        return None

    def _is_late(self, sequence: Sequence, completion_s: Callable[[], float]) -> bool:
        limit_s = self._params.max_completion_s
        if limit_s is None:
            return False
        new = sequence.tokens[max(self._n_searched, sequence.n_prompt) :]
        self._n_searched = len(sequence.tokens)
        self._has_newline = self._has_newline or any(b"\n" in self._backend.piece(token) for token in new)
        return self._has_newline and completion_s() >= limit_s
