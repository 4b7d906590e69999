"""A compiled grammar: the tokens of a vocabulary that it allows in each state. Requests with one grammar share it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ...grammar import Budget, ByteAutomaton, GrammarError, State, TooMuchWork
from ..compiling import compiling
from ..values import Constraint, InvalidGrammar
from .token_trie import TransitionTable

if TYPE_CHECKING:
    from .vocabulary import Vocabulary

COMPILE_STEPS = 1_000_000
"""The limit of work to parse a grammar and to find its first tokens: a second or two of one thread, in slices."""
MAX_GRAMMARS = 32
"""Limit of grammars in the cache of a vocabulary."""
MAX_CHARS = 1_000_000
"""Limit of characters of all cached grammars. A compiled grammar takes some hundred times as much memory."""
MAX_BYTES = 1 << 24
"""Limit of bytes of all cached sets of allowed tokens of one grammar."""
MANY = 4096
"""A set of more tokens than this is cached with an array of booleans over the vocabulary."""
VISITS_BEFORE_ALL = 64
"""After this many visits of a state by sampling, all tokens that it allows are found at once and cached."""
MAX_OPEN_TOKENS = 16
"""The number of forced tokens at the end in which a longer token may begin. Longer tokens rarely span more."""
MAX_COUNTED = 10_000
"""Limit of states whose visits are counted, and of states whose forced tokens are cached."""


@dataclass(frozen=True)
class AllowedTokens:
    """All tokens that a grammar allows in a state."""

    ids: Any
    """The ids in ascending order [tokens]."""
    is_allowed: Any
    """Whether each token is allowed [vocabulary]; None if at most `MANY` are allowed."""


class CompiledGrammar:
    """A grammar with the tokens of a vocabulary. Any thread may use it; its caches do not depend on requests.

    The grammar constrains the visible text, so a control token is allowed only if it ends the text, if it is in
    `visible`, or if the grammar itself names tokens.
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
        # End-of-generation tokens have no text for the grammar. They are allowed where the text may end.
        self._is_hidden[list(vocabulary.eog_tokens)] = True
        self._hidden = frozenset(np.flatnonzero(self._is_hidden).tolist())
        self._allowed: dict[State, AllowedTokens] = {}
        self._n_bytes = 0
        self._n_visits: dict[State, int] = {}
        self._forced: dict[State, tuple[int, ...]] = {}
        self.start = self._automaton.start

    def after(self, state: State, token: int, budget: Budget) -> State | None:
        """The state after a token; None if it is not allowed. A token that ends the text changes nothing."""
        if token in self._vocabulary.eog_tokens:
            self._automaton.expand(state, budget)
            if state.may_end:
                return state
        piece = b"" if token in self._hidden else self._vocabulary.all_pieces[token]
        return self._automaton.after_token(state, token, piece, budget)

    def after_text(self, state: State, text: bytes, budget: Budget) -> State | None:
        """The state after a text; None if it is not allowed."""
        return self._automaton.walk(state, text, budget)

    def allowed_among(self, state: State, tokens: Any, n_needed: int, budget: Budget) -> Any:
        """The allowed ones of these tokens, as an array. The search may stop when it has found `n_needed`."""
        known = self._allowed.get(state)
        if known is None and self._count_visit(state) > VISITS_BEFORE_ALL:
            known = self.allowed(state, budget)
        if known is not None and known.is_allowed is not None:
            return tokens[known.is_allowed[tokens]]
        self._automaton.expand(state, budget)
        if self._automaton.has_token_rules or state.may_end:
            found = [token for token in tokens.tolist() if self.after(state, token, budget) is not None]
        else:
            found = self._walk_all(state, tokens.tolist(), n_needed, budget)
        return np.array(found, np.int32)

    def _walk_all(self, state: State, tokens: list[int], n_needed: int, budget: Budget) -> list[int]:
        """The tokens that `after` allows. Its code is inlined, since this loop takes most of the time of sampling."""
        pieces, expand, hidden = self._vocabulary.all_pieces, self._automaton.expand, self._hidden
        found: list[int] = []
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
                if len(found) == n_needed:
                    break
        return found

    def _count_visit(self, state: State) -> int:
        """Count a visit of a state. Returns the number of visits so far."""
        n = self._n_visits.get(state, 0) + 1
        if len(self._n_visits) > MAX_COUNTED:
            self._n_visits.clear()
        self._n_visits[state] = n
        return n

    def remembered(self, state: State) -> AllowedTokens | None:
        """The allowed tokens if they are cached."""
        return self._allowed.get(state)

    def allowed(self, state: State, budget: Budget) -> AllowedTokens:
        """All allowed tokens."""
        with self._lock:
            found = self._allowed.get(state)
            if found is None:
                is_allowed = self._find_allowed(state, budget)
                ids = np.flatnonzero(is_allowed).astype(np.int32)
                found = AllowedTokens(ids, is_allowed if len(ids) > MANY else None)
                n_bytes = ids.nbytes + (is_allowed.nbytes if len(ids) > MANY else 0)
                if self._n_bytes + n_bytes > MAX_BYTES:
                    self._allowed.clear()
                    self._n_bytes = 0
                self._allowed[state] = found
                self._n_bytes += n_bytes
        return found

    def _find_allowed(self, state: State, budget: Budget) -> Any:
        """An array of booleans over the vocabulary: whether a token is allowed."""
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
            is_allowed[list(self._vocabulary.eog_tokens)] = True
        return is_allowed

    def forced_tokens(self, state: State, budget: Budget) -> tuple[int, ...]:
        """The tokens of the bytes that must follow, as long as the grammar allows one text only.

        The list ends before the first token in which a longer token could begin that continues beyond these bytes.
        """
        found = self._forced.get(state)
        if found is None:
            found = self._find_forced(self._automaton.forced_text(state, budget))
            if len(self._forced) > MAX_COUNTED:
                self._forced.clear()
            self._forced[state] = found
        return found

    def _find_forced(self, text: bytes) -> tuple[int, ...]:
        if len(text) < 2:
            return ()
        # Control tokens come first: if they are visible, a model writes the markers of calls with them.
        for parse_special in (True, False):
            tokens = self._vocabulary.tokenize_bytes(text, False, parse_special)
            if self._hidden.isdisjoint(tokens):
                # The texts differ if the tokenizer adds a space before the text.
                pieces = [self._vocabulary.all_pieces[token] for token in tokens]
                return self._without_open_end(tokens, pieces) if b"".join(pieces) == text else ()
        return ()

    def _without_open_end(self, tokens: list[int], pieces: list[bytes]) -> tuple[int, ...]:
        """The tokens before the first position at which a longer token could begin and continue beyond the text."""
        ends = [b"".join(pieces[i:]) for i in range(max(0, len(pieces) - MAX_OPEN_TOKENS), len(pieces))]
        n_open = max((len(ends) - i for i, end in enumerate(ends) if self._vocabulary.trie.has_longer(end)), default=1)
        return tuple(tokens[: len(tokens) - max(n_open, 1)])


class GrammarCache:
    """The most recently used grammars of a vocabulary. Any thread may use it."""

    def __init__(self, vocabulary: Vocabulary):
        self._vocabulary = vocabulary
        self._lock = threading.Lock()
        self._grammars: OrderedDict[tuple[str, str, frozenset[int]], CompiledGrammar] = OrderedDict()

    def get(self, constraint: Constraint, visible: Iterable[int]) -> CompiledGrammar:
        """The compiled grammar of a constraint. The tokens with which it may begin are cached.

        Raises:
            InvalidGrammar: It cannot be parsed, has no tokens in this vocabulary, or takes too much work.
            Cancelled: See `compiling_cancelled_by`.
        """
        tokens = frozenset(visible)
        key = (constraint.grammar, constraint.root, tokens)
        with self._lock:
            found = self._grammars.get(key)
            if found is not None:
                self._grammars.move_to_end(key)
                return found
        try:
            with compiling(COMPILE_STEPS) as budget:
                found = CompiledGrammar(constraint.grammar, constraint.root, self._vocabulary, tokens)
                for state in _first_states(found, constraint.triggers, budget):
                    found.allowed(state, budget)
        except (GrammarError, TooMuchWork, RecursionError) as error:
            reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
            raise InvalidGrammar(reason, constraint.origin) from error
        with self._lock:
            self._grammars[key] = found
            while len(self._grammars) > MAX_GRAMMARS or sum(len(key[0]) for key in self._grammars) > MAX_CHARS:
                self._grammars.popitem(last=False)
        return found


def _first_states(grammar: CompiledGrammar, triggers: tuple[str, ...], budget: Budget) -> list[State]:
    """The states in which the grammar may begin, whose tokens are cached before sampling needs them."""
    texts = [trigger.encode() for trigger in triggers] or [b""]
    states = [grammar.after_text(grammar.start, text, budget) for text in texts]
    return [state for state in dict.fromkeys(states) if state is not None]
