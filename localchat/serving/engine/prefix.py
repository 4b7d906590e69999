"""The prefix tree (radix tree): which slots have which tokens in the KV cache.

A node is a run of tokens with their cells. Every slot whose tokens pass through a node is a holder of it, so a shared
prefix uses its cells once. Slots that computed the same tokens separately have separate cells, in nodes of their own.
Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

# A state is saved, in memory or on disk, or restored only if that saves the prefill of at least this many tokens: fewer
# tokens are computed as fast as a state is restored.
MIN_SAVED = 32


@dataclass(eq=False)
class Node:
    """A run of tokens after those of its parent, and their cells."""

    parent: Node | None
    start: int
    """The position of the first token."""
    tokens: list[int]
    children: list[Node] = field(default_factory=list)
    n_holders: int = 0
    """Slots that share the cells."""
    n_active: int = 0
    """Active slots among the holders."""

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)

    def path(self) -> Iterator[Node]:
        """This node and its ancestors, without the root."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent


@dataclass(frozen=True)
class Match:
    """The first `length` tokens of a prompt, for which `slot` has cells."""

    slot: int
    length: int


@dataclass
class PrefixTree:
    """The tokens of all slots in use.

    A slot is first active (`hold`, `extend`), then idle (`set_idle`) until it is dropped.
    """

    n_cells: int = 0
    """Cells of all slots; a shared cell counts once."""
    n_cells_active: int = 0
    """Cells of active slots; a shared cell counts once."""
    _root: Node = field(default_factory=lambda: Node(None, 0, []))
    # The last node of each slot.
    _leaves: dict[int, Node] = field(default_factory=dict)
    # The idle slots, the least recently used first.
    _idle: dict[int, None] = field(default_factory=dict)

    def length(self, slot: int) -> int:
        """The number of tokens of a slot."""
        return self._leaves[slot].end

    def tokens(self, slot: int) -> list[int]:
        """The tokens of a slot."""
        runs = [node.tokens for node in self._leaves[slot].path()]
        return [token for run in reversed(runs) for token in run]

    def idle(self) -> list[int]:
        """The idle slots, the least recently used first."""
        return list(self._idle)

    def active(self) -> list[int]:
        """The slots of running sequences."""
        return [slot for slot in self._leaves if slot not in self._idle]

    def match(self, tokens: list[int], *, shortest: bool = False) -> Match | None:
        """The longest cached prefix of `tokens`, in any slot that has it; with `shortest`, in the shortest one."""
        node, n_common = self._descend(tokens)
        if node is None:
            return None
        slot = self._shortest_holder(node) if shortest else self._holder(node)
        return Match(slot, node.start + n_common)

    def match_whole(self, tokens: list[int]) -> Match | None:
        """The longest idle slot all of whose tokens `tokens` begin with, for a KV cache that cannot be truncated."""
        fitting = [slot for slot in self._idle if self._is_prefix(self._leaves[slot], tokens)]
        best = max(fitting, key=self.length, default=None)
        return None if best is None else Match(best, self.length(best))

    def n_cells_inactive(self, match: Match) -> int:
        """The cells of a match that no active slot uses."""
        path = self._leaves[match.slot].path()
        return sum(
            min(node.end, match.length) - node.start
            for node in path
            if node.n_active == 0 and node.start < match.length
        )

    def hold(self, slot: int, match: Match | None = None) -> None:
        """Makes a free slot active, with the tokens of the match, if any."""
        leaf = self._root if match is None else self._split(self._leaves[match.slot], match.length)
        self._leaves[slot] = leaf
        for node in leaf.path():
            node.n_holders += 1
            self._activate(node)

    def extend(self, slot: int, tokens: list[int]) -> None:
        """Adds computed tokens to an active slot."""
        leaf = self._leaves[slot]
        if leaf is self._root or leaf.children or leaf.n_holders > 1:
            leaf = Node(leaf, leaf.end, [], n_holders=1, n_active=1)
            assert leaf.parent is not None
            leaf.parent.children.append(leaf)
            self._leaves[slot] = leaf
        leaf.tokens.extend(tokens)
        self.n_cells += len(tokens)
        self.n_cells_active += len(tokens)

    def truncate(self, slot: int, length: int) -> None:
        """Removes all but the first `length` tokens of an active slot."""
        node = self._leaves[slot]
        last = self._leaves[slot] = self._split(node, length)
        while node is not last:
            assert node.parent is not None
            self._deactivate(node)
            node.n_holders -= 1
            if node.n_holders == 0:
                node.parent.children.remove(node)
                self.n_cells -= len(node.tokens)
            node = node.parent

    def set_idle(self, slot: int) -> None:
        """Makes an active slot idle. Its tokens stay until it is dropped."""
        for node in self._leaves[slot].path():
            self._deactivate(node)
        self._idle[slot] = None

    def is_idle(self, slot: int) -> bool:
        return slot in self._idle

    def set_active(self, slot: int) -> None:
        """Makes an idle slot active, with its tokens."""
        del self._idle[slot]
        for node in self._leaves[slot].path():
            self._activate(node)

    def twin(self, slot: int, *, exact: bool = False) -> int | None:
        """Another slot that begins with the tokens of this one. With `exact`, an idle slot that has no other tokens."""
        tokens = self.tokens(slot)
        for other in self._leaves:
            if other == slot or not self._begins_with(other, tokens):
                continue
            if not exact or (self.is_idle(other) and self.length(other) == len(tokens)):
                return other
        return None

    def refresh(self, slot: int) -> None:
        """Makes an idle slot the most recently used one."""
        if self.is_idle(slot):
            del self._idle[slot]
            self._idle[slot] = None

    def drop(self, slot: int) -> None:
        """Removes an active or idle slot. The cells that no other slot uses become free."""
        was_active = slot not in self._idle
        self._idle.pop(slot, None)
        for node in list(self._leaves.pop(slot).path()):
            if was_active:
                self._deactivate(node)
            node.n_holders -= 1
            if node.n_holders == 0:
                assert node.parent is not None
                node.parent.children.remove(node)
                self.n_cells -= len(node.tokens)
            else:
                self._merge(node)

    def _activate(self, node: Node) -> None:
        if node.n_active == 0:
            self.n_cells_active += len(node.tokens)
        node.n_active += 1

    def _deactivate(self, node: Node) -> None:
        node.n_active -= 1
        if node.n_active == 0:
            self.n_cells_active -= len(node.tokens)

    def _descend(self, tokens: list[int]) -> tuple[Node | None, int]:
        """The node in which the longest common prefix ends, and the number of its tokens that belong to the prefix."""
        best: Node | None = None
        length, n_common = 0, 0
        # Several branches can begin with the same tokens, if sequences computed them separately.
        open_nodes = [self._root]
        while open_nodes:
            for child in open_nodes.pop().children:
                n = n_common_of(child.tokens, tokens, child.start)
                if child.start + n > length:
                    best, length, n_common = child, child.start + n, n
                if n == len(child.tokens):
                    open_nodes.append(child)
        return best, n_common

    def _holder(self, node: Node) -> int:
        """A slot that has this node."""
        # Every leaf belongs to a slot.
        for slot, leaf in self._leaves.items():
            if leaf is node:
                return slot
        return self._holder(node.children[0])

    def _shortest_holder(self, node: Node) -> int:
        return min((slot for slot, leaf in self._leaves.items() if node in leaf.path()), key=self.length)

    def _split(self, leaf: Node, length: int) -> Node:
        """The node on the path to `leaf` that ends at `length`. If there is none, splits a node there."""
        node = next((node for node in leaf.path() if node.start < length <= node.end), None)
        if node is None or node.end == length:
            return node or self._root
        assert node.parent is not None
        n_upper = length - node.start
        upper = Node(node.parent, node.start, node.tokens[:n_upper], [node], node.n_holders, node.n_active)
        node.parent.children[node.parent.children.index(node)] = upper
        node.parent, node.start, node.tokens = upper, length, node.tokens[n_upper:]
        return upper

    def _merge(self, node: Node) -> None:
        """Joins a node with its only child if the same slots hold both, so that paths stay short."""
        if len(node.children) != 1 or node.children[0].n_holders < node.n_holders:
            return
        (child,) = node.children
        assert node.parent is not None
        child.parent, child.start, child.tokens = node.parent, node.start, node.tokens + child.tokens
        node.parent.children[node.parent.children.index(node)] = child

    def _begins_with(self, slot: int, tokens: list[int]) -> bool:
        leaf, n_tokens = self._leaves[slot], len(tokens)
        nodes = [node for node in leaf.path() if node.start < n_tokens]
        return leaf.end >= n_tokens and all(
            node.tokens[: n_tokens - node.start] == tokens[node.start : node.end] for node in reversed(nodes)
        )

    def _is_prefix(self, leaf: Node, tokens: list[int]) -> bool:
        return leaf.end <= len(tokens) and all(node.tokens == tokens[node.start : node.end] for node in leaf.path())


def n_common_of(run: Sequence[int], tokens: Sequence[int], start: int = 0) -> int:
    """The number of first tokens of `run` that are equal to those of `tokens` from `start` on.

    A binary search over slices, which Python compares quickly. Both arguments are lists, or both are tuples.
    """
    low, high = 0, max(min(len(run), len(tokens) - start), 0)
    if high and run[0] != tokens[start]:
        return 0
    if run[:high] == tokens[start : start + high]:
        return high
    while low < high - 1:
        middle = (low + high) // 2
        if run[low:middle] == tokens[start + low : start + middle]:
            low = middle
        else:
            high = middle
    return low
