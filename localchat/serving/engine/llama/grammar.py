"""The state of a grammar while the tokens of one request are sampled: which tokens may come next.

The likeliest tokens are checked first, since usually enough of them are allowed. Otherwise all allowed tokens are
found at once and cached for this state of the grammar.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ...grammar import Budget, State, TooMuchWork
from ..constraint import TriggerWatch
from ..values import Constraint, InvalidGrammar
from .candidates import candidates, largest, with_others
from .vocabulary import Vocabulary

_SPARE = 1.5
"""The ratio of likeliest tokens that are checked to those that are needed, since some are not allowed."""

MAX_STEPS = 50_000
"""The limit of work for one token: about 50 ms. States are computed once, so only the first tokens need much of it."""
STEPS_PER_TOKEN = 5_000
"""Steps that each sampled token gives back to the budget."""


class Grammar:
    """A grammar that constrains the text from a trigger on, or from its start. One thread at a time."""

    def __init__(self, constraint: Constraint, vocabulary: Vocabulary, visible: Iterable[int] = ()):
        """
        Raises:
            InvalidGrammar: The grammar cannot be parsed, has no tokens here, or takes too much work.
        """
        self._vocabulary = vocabulary
        self._origin = constraint.origin
        self._watch = TriggerWatch(constraint.triggers) if constraint.triggers else None
        self._compiled = vocabulary.grammars.get(constraint, visible)
        self._budget = Budget(MAX_STEPS)
        self._state: State = self._compiled.start

    @property
    def is_active(self) -> bool:
        """Whether the grammar constrains the next token: its trigger has been generated."""
        return self._watch is None

    def allows(self, token: int) -> bool:
        """Whether the token may come next. Raises InvalidGrammar."""
        try:
            return self._after(token) is not None
        except TooMuchWork as error:
            raise self._error(error) from error

    def accept(self, token: int) -> None:
        """Advance the grammar by the token that was sampled.

        Raises:
            InvalidGrammar: The grammar does not allow it, or takes too much work.
        """
        self._budget.refill(STEPS_PER_TOKEN)
        try:
            after = self._after(token)
        except TooMuchWork as error:
            raise self._error(error) from error
        if after is None:
            raise InvalidGrammar(f"it does not allow the token {token} that was sampled", self._origin)
        if self._watch is not None and self._watch.feed(self._vocabulary.all_pieces[token]) is not None:
            self._watch = None
        self._state = after

    def candidates(self, logits: Any, n_needed: int | None, others: Any) -> Any:
        """Candidates from which sampling has the same result as from all allowed tokens.

        Args:
            n_needed: The number of likeliest allowed tokens that the candidates include. None: all allowed tokens.
            others: Tokens whose logits the sampler changes. The candidates include the allowed ones.

        Raises:
            InvalidGrammar: No token is allowed, or it takes too much work to find one.
        """
        try:
            ids = self._candidates(logits, n_needed, others)
        except TooMuchWork as error:
            raise self._error(error) from error
        if not len(ids):
            raise InvalidGrammar("it requires text for which this model has no tokens", self._origin)
        return candidates(ids, logits[ids])

    def forced_tokens(self) -> tuple[int, ...]:
        """The next tokens, as long as the grammar allows no others."""
        try:
            return self._compiled.forced_tokens(self._state, self._budget) if self.is_active else ()
        except TooMuchWork:
            return ()

    def _candidates(self, logits: Any, n_needed: int | None, others: Any) -> Any:
        known = self._compiled.remembered(self._state)
        are_few = known is not None and known.is_allowed is None
        if n_needed is not None:
            # Some of the likeliest tokens may be among `others`. The sampler may make these less likely.
            n_needed += len(others)
            n_tried = int(n_needed * _SPARE) + 8
            if not are_few and n_tried < len(logits):
                tried = largest(logits, n_tried)
                tried = with_others(tried, others) if len(others) else tried[np.argsort(-logits[tried])]
                n_enough = len(tried) if len(others) else n_needed
                found = self._compiled.allowed_among(self._state, tried, n_enough, self._budget)
                if len(found) >= n_needed:
                    return found
        allowed = self._compiled.allowed(self._state, self._budget).ids
        if n_needed is None or len(allowed) <= 4 * n_needed:
            return allowed
        likeliest = allowed[largest(logits[allowed], n_needed)]
        return with_others(likeliest, np.intersect1d(allowed, others))

    def _after(self, token: int) -> State | None:
        """The state after a token; None if it is not allowed."""
        if self._watch is None:
            return self._compiled.after(self._state, token, self._budget)
        text = self._watch.peek(self._vocabulary.all_pieces[token])
        return self._state if text is None else self._compiled.after_text(self._state, text, self._budget)

    def _error(self, error: TooMuchWork) -> InvalidGrammar:
        return InvalidGrammar(str(error), self._origin)
