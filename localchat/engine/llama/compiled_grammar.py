"""A grammar for one vocabulary: the tokens that it allows in each state, shared by all requests with this grammar."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from ...grammar import Budget, ByteAutomaton, GrammarError, State, TooMuchWork
from ..compiling import compiling
from ..values import Constraint, InvalidGrammar
from .token_trie import TransitionTable

if TYPE_CHECKING:
    from .vocabulary import Vocabulary

COMPILE_STEPS = 1_000_000
"""Work to read a grammar and to find its first tokens: a second or two of one thread, in slices."""
MAX_GRAMMARS = 32
"""Grammars that are remembered for a vocabulary."""
MAX_REMEMBERED = 4_000_000
"""Tokens in all remembered sets of allowed tokens of one grammar, four bytes each."""


class CompiledGrammar:
    """A grammar with the tokens of a vocabulary. Any thread may use it; what it remembers does not depend on requests.

    The grammar binds the text that is shown. So a control token is allowed only if it ends the text, if it is
    `visible`, or if the grammar names tokens itself.
    """

    def __init__(self, text: str, root: str, vocabulary: Vocabulary, visible: Iterable[int]):
        """Raises GrammarError and TooMuchWork."""
        self._vocabulary = vocabulary
        self._automaton = ByteAutomaton(text, root, vocabulary.token_named)
        self._table = TransitionTable(self._automaton)
        self._lock = threading.Lock()
        self._is_hidden = vocabulary.is_control.copy()
        self._is_hidden[list(visible)] = False
        if self._automaton.has_token_rules:
            self._is_hidden[:] = False
        # The ends have no text for a grammar: they are allowed where the text may end.
        self._is_hidden[list(vocabulary.ends)] = True
        self._hidden = frozenset(np.flatnonzero(self._is_hidden).tolist())
        self._allowed: dict[State, Any] = {}
        self._n_remembered = 0
        self.start = self._automaton.start

    def after(self, state: State, token: int, budget: Budget) -> State | None:
        """The state after a token; None if it is not allowed. A token that ends the text changes nothing."""
        if token in self._vocabulary.ends:
            self._automaton.expand(state, budget)
            if state.may_end:
                return state
        piece = b"" if token in self._hidden else self._vocabulary.all_pieces[token]
        return self._automaton.after_token(state, token, piece, budget)

    def after_text(self, state: State, text: bytes, budget: Budget) -> State | None:
        """The state after a text; None if it is not allowed."""
        return self._automaton.walk(state, text, budget)

    def allowed_among(self, state: State, tokens: Iterable[int], budget: Budget) -> list[int]:
        """Those of the tokens that are allowed."""
        self._automaton.expand(state, budget)
        if self._automaton.has_token_rules or state.may_end:
            return [token for token in tokens if self.after(state, token, budget) is not None]
        pieces, expand, hidden = self._vocabulary.all_pieces, self._automaton.expand, self._hidden
        found = []
        for token in tokens:
            piece = pieces[token]
            if not piece or token in hidden:
                continue
            at: State | None = state
            for byte in piece:
                assert at is not None
                if at.classes is None:
                    expand(at, budget)
                    assert at.classes is not None
                at = at.targets[at.classes[byte]]
                if at is None:
                    break
            else:
                found.append(token)
        return found

    def remembered(self, state: State) -> Any:
        """All allowed tokens, if they are known: an array in ascending order; otherwise None."""
        return self._allowed.get(state)

    def allowed(self, state: State, budget: Budget) -> Any:
        """All allowed tokens, as an array in ascending order."""
        with self._lock:
            found = self._allowed.get(state)
            if found is None:
                found = self._find_allowed(state, budget)
                if self._n_remembered + len(found) > MAX_REMEMBERED:
                    self._allowed.clear()
                    self._n_remembered = 0
                self._allowed[state] = found
                self._n_remembered += len(found)
        return found

    def _find_allowed(self, state: State, budget: Budget) -> Any:
        is_allowed = np.zeros(self._vocabulary.n_tokens, bool)
        is_allowed[self._vocabulary.trie.allowed(self._table, state, budget)] = True
        is_allowed &= ~self._is_hidden
        self._automaton.expand(state, budget)
        if state.token_stacks:
            named, is_excluding = self._automaton.named_tokens(state)
            is_named = np.zeros(len(is_allowed), bool)
            is_named[list(named)] = True
            is_allowed |= ~is_named if is_excluding else is_named
        if state.may_end:
            is_allowed[list(self._vocabulary.ends)] = True
        return np.flatnonzero(is_allowed).astype(np.int32)

    def forced_text(self, state: State, budget: Budget) -> bytes:
        """The bytes that must follow, as far as there is no choice."""
        return self._automaton.forced_text(state, budget)


class GrammarCache:
    """The grammars of a vocabulary that were used last. Any thread may use it."""

    def __init__(self, vocabulary: Vocabulary):
        self._vocabulary = vocabulary
        self._lock = threading.Lock()
        self._grammars: OrderedDict[tuple[str, str, frozenset[int]], CompiledGrammar] = OrderedDict()

    def get(self, constraint: Constraint, visible: Iterable[int]) -> CompiledGrammar:
        """The grammar of a constraint, with the tokens that it may begin with.

        Raises:
            InvalidGrammar: it cannot be read or followed, or takes too much work.
            Cancelled: see `compiling_cancelled_by`.
        """
        key = (constraint.grammar, constraint.root, frozenset(visible))
        with self._lock:
            found = self._grammars.get(key)
            if found is not None:
                self._grammars.move_to_end(key)
                return found
        try:
            with compiling(COMPILE_STEPS) as budget:
                found = CompiledGrammar(*key[:2], self._vocabulary, key[2])
                for state in _first_states(found, constraint.triggers, budget):
                    found.allowed(state, budget)
        except (GrammarError, TooMuchWork, RecursionError) as error:
            reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
            raise InvalidGrammar(reason, constraint.origin) from error
        with self._lock:
            self._grammars[key] = found
            while len(self._grammars) > MAX_GRAMMARS:
                self._grammars.popitem(last=False)
        return found


def _first_states(grammar: CompiledGrammar, triggers: tuple[str, ...], budget: Budget) -> list[State]:
    """The states in which the grammar may begin to bind, so that sampling finds their tokens remembered."""
    texts = [trigger.encode() for trigger in triggers] or [b""]
    states = [grammar.after_text(grammar.start, text, budget) for text in texts]
    return [state for state in dict.fromkeys(states) if state is not None]
