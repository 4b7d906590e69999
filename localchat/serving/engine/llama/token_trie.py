"""The texts of a vocabulary as a trie over bytes, to find all tokens that a grammar allows.

One walk visits the trie level by level. Tokens that begin with the same bytes share the nodes of these bytes, and a
node and its children are skipped at the first byte that the grammar does not allow.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...grammar import Budget, ByteAutomaton, State

MAX_ROWS = 8192
"""A transition table with more rows than this, of one KiB each, is cleared before the next walk."""
_NODES_PER_STEP = 50
"""Nodes of the trie that are visited in one step of a budget."""


@dataclass(frozen=True)
class _Level:
    """The nodes at one depth, ordered by their texts. Each array has one element per node."""

    bytes: Any
    """The last byte of its text."""
    first_child: Any
    """The index of its first child in the next level."""
    n_children: Any
    first_token: Any
    """The index in `TokenTrie.tokens` of the first token that begins with its text."""
    n_tokens: Any
    """The number of tokens that have exactly its text."""


class TokenTrie:
    """The trie of some tokens. Immutable."""

    def __init__(self, pieces: Sequence[bytes], tokens: Sequence[int]):
        """
        Args:
            pieces: The texts of all tokens of the vocabulary.
            tokens: The tokens of the trie, each of which has a text.
        """
        order = _sorted_by_text(pieces, tokens)
        self.tokens = np.array(order, np.int32)
        texts = [pieces[token] for token in order]
        self._texts = texts
        self.levels: list[_Level] = []
        parents_below = np.zeros(0, np.int64)
        for last_bytes, parents, first_token, n_tokens in reversed(list(_nodes_by_depth(texts))):
            n_children = np.bincount(parents_below, minlength=len(last_bytes)).astype(np.int64)
            first_child = np.cumsum(n_children) - n_children
            self.levels.append(_Level(last_bytes, first_child, n_children, first_token, n_tokens))
            parents_below = parents
        self.levels.reverse()

    def has_longer(self, text: bytes) -> bool:
        """Whether a token is longer than these bytes and begins with them."""
        i = bisect_right(self._texts, text)
        return i < len(self._texts) and self._texts[i].startswith(text)

    def allowed(self, table: TransitionTable, state: State, budget: Budget) -> Any:
        """The tokens whose text may follow in a state, in no particular order. Raises TooMuchWork."""
        if not self.levels:
            return self.tokens
        found = []
        nodes = np.arange(len(self.levels[0].bytes))
        numbers = np.full(len(nodes), table.number(state), np.int64)
        for level in self.levels:
            budget.spend(4 + len(nodes) // _NODES_PER_STEP)
            rows = table.rows(numbers, budget)
            after = rows[numbers, level.bytes[nodes]]
            is_alive = after > 0
            nodes, after = nodes[is_alive], after[is_alive]
            found.append(_ranges(level.first_token[nodes], level.n_tokens[nodes]))
            n_children = level.n_children[nodes]
            nodes = _ranges(level.first_child[nodes], n_children)
            if not len(nodes):
                break
            numbers = np.repeat(after, n_children)
        return self.tokens[np.concatenate(found)]


def _sorted_by_text(pieces: Sequence[bytes], tokens: Sequence[int]) -> list[int]:
    """The tokens ordered by their texts. They are sorted in parts, since `sorted` does not release the GIL."""
    parts: dict[bytes, list[int]] = {}
    for token in tokens:
        parts.setdefault(pieces[token][:2], []).append(token)
    return [token for start in sorted(parts) for token in sorted(parts[start], key=pieces.__getitem__)]


def _nodes_by_depth(texts: Sequence[bytes]) -> Iterator[tuple[Any, Any, Any, Any]]:
    """For each depth of a trie of sorted texts, four arrays with one element per node.

    These are the last byte of its text, the index of its parent at the depth above, the index of the first text that
    begins with its text, and the number of texts that are equal to its text.
    """
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    offsets = np.concatenate(([0], np.cumsum(lengths)))[:-1]
    data = np.frombuffer(b"".join(texts), np.uint8)
    # The texts that are longer than the depth, by their indexes, and the node of each at the depth above.
    longer = np.arange(len(texts))
    parents, depth = np.zeros(len(texts), np.int64), 0
    while len(longer):
        byte = data[offsets[longer] + depth]
        is_first = np.ones(len(longer), bool)
        is_first[1:] = (parents[1:] != parents[:-1]) | (byte[1:] != byte[:-1])
        firsts, nodes = np.flatnonzero(is_first), np.cumsum(is_first) - 1
        ends = lengths[longer] == depth + 1
        n_ends = np.bincount(nodes, ends, len(firsts)).astype(np.int64)
        yield byte[firsts], parents[firsts], longer[firsts], n_ends
        longer, parents, depth = longer[~ends], nodes[~ends], depth + 1


def _ranges(firsts: Any, counts: Any) -> Any:
    """The concatenated ranges `first` to `first + count`."""
    ends = np.cumsum(counts)
    if not len(ends):
        return np.zeros(0, np.int64)
    return np.repeat(firsts - (ends - counts), counts) + np.arange(ends[-1])


class TransitionTable:
    """The transitions of an automaton as an array [states, 256], for many bytes at once. One thread at a time."""

    def __init__(self, automaton: ByteAutomaton):
        self._automaton = automaton
        self._clear()

    def _clear(self) -> None:
        # Number 0 stands for no state.
        self._states: list[State | None] = [None]
        self._numbers: dict[State | None, int] = {None: 0}
        self._rows = np.zeros((64, 256), np.int32)
        self._is_filled = np.zeros(64, bool)
        self._is_filled[0] = True

    def number(self, state: State) -> int:
        """The number of the first state of a walk."""
        if len(self._states) > MAX_ROWS:
            self._clear()
        return self._add(state)

    def rows(self, numbers: Any, budget: Budget) -> Any:
        """The array, after the rows of these states have been filled in. Raises TooMuchWork."""
        is_wanted = np.zeros(len(self._is_filled), bool)
        is_wanted[numbers] = True
        for number in np.flatnonzero(is_wanted & ~self._is_filled).tolist():
            self._fill(number, budget)
        return self._rows

    def _fill(self, number: int, budget: Budget) -> None:
        state = self._states[number]
        assert state is not None
        self._automaton.expand(state, budget)
        assert state.classes is not None
        targets = np.array([self._add(target) for target in state.targets], np.int32)
        self._rows[number] = targets[np.frombuffer(state.classes, np.uint8)]
        self._is_filled[number] = True
        budget.spend(5)

    def _add(self, state: State | None) -> int:
        number = self._numbers.get(state)
        if number is None:
            number = self._numbers[state] = len(self._states)
            self._states.append(state)
            if number >= len(self._rows):
                self._rows = np.concatenate((self._rows, np.zeros_like(self._rows)))
                self._is_filled = np.concatenate((self._is_filled, np.zeros_like(self._is_filled)))
        return number
