"""Which slots hold which tokens: a tree of prefixes over all slots, running and idle.

Pure bookkeeping of the cells: a node is a run of cells, held by every slot whose tokens
pass through it. Sharing a prefix is one more holder and no more cells. Two slots that computed the
same tokens apart have cells apart, and stand in two nodes with equal tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field


@dataclass(eq=False)
class Node:
    """A run of tokens after those of its parent. `n_holders` slots have cells of it, `n_active` of them are running."""

    parent: Node | None
    start: int
    tokens: list[int]
    children: list[Node] = field(default_factory=list)
    n_holders: int = 0
    n_active: int = 0

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)

    def path(self) -> Iterator[Node]:
        """This node and those above it, without the root."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent


@dataclass(frozen=True)
class Match:
    """The first `length` tokens of a prompt, which `slot` has cells of."""

    slot: int
    length: int


@dataclass
class PrefixTree:
    """The tokens in every held slot. `n_cells` counts each cell once, `n_cells_active` those of running slots.

    A slot is first active (`hold`, `extend`), then idle (`set_idle`) until it is dropped. Idle slots are
    dropped by least recent use.
    """

    n_cells: int = 0
    n_cells_active: int = 0
    _root: Node = field(default_factory=lambda: Node(None, 0, []))
    _leaves: dict[int, Node] = field(default_factory=dict)
    # In order of use, the least recent first.
    _idle: dict[int, None] = field(default_factory=dict)

    def length(self, slot: int) -> int:
        """Tokens that a held slot has."""
        return self._leaves[slot].end

    def tokens(self, slot: int) -> list[int]:
        """What a held slot has."""
        runs = [node.tokens for node in self._leaves[slot].path()]
        return [token for run in reversed(runs) for token in run]

    def idle(self) -> list[int]:
        """The idle slots in order of use, the least recent first."""
        return list(self._idle)

    def active(self) -> list[int]:
        """The slots of running sequences."""
        return [slot for slot in self._leaves if slot not in self._idle]

    def match(self, tokens: list[int], *, shortest: bool = False) -> Match | None:
        """The longest known prefix of `tokens`, and a slot that has it: the one with the fewest tokens, if wanted."""
        node, n_common = self._descend(tokens)
        if node is None:
            return None
        slot = self._shortest_holder(node) if shortest else self._holder(node)
        return Match(slot, node.start + n_common)

    def match_whole(self, tokens: list[int]) -> Match | None:
        """The idle slot with the most tokens, all of which `tokens` begin with: for memories that cannot be cut."""
        fitting = [slot for slot in self._idle if self._is_prefix(self._leaves[slot], tokens)]
        best = max(fitting, key=self.length, default=None)
        return None if best is None else Match(best, self.length(best))

    def n_cells_inactive(self, match: Match) -> int:
        """Cells of a match that no running slot holds: those that it would keep from being freed."""
        path = self._leaves[match.slot].path()
        return sum(
            min(node.end, match.length) - node.start
            for node in path
            if node.n_active == 0 and node.start < match.length
        )

    def hold(self, slot: int, match: Match | None = None) -> None:
        """Makes a free slot active, with the tokens of a match or none."""
        leaf = self._root if match is None else self._cut(self._leaves[match.slot], match.length)
        self._leaves[slot] = leaf
        for node in leaf.path():
            node.n_holders += 1
            self._activate(node)

    def extend(self, slot: int, tokens: list[int]) -> None:
        """An active slot has got cells for more tokens."""
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
        """An active slot gives up all tokens but the first ones."""
        node = self._leaves[slot]
        last = self._leaves[slot] = self._cut(node, length)
        while node is not last:
            assert node.parent is not None
            self._deactivate(node)
            node.n_holders -= 1
            if node.n_holders == 0:
                node.parent.children.remove(node)
                self.n_cells -= len(node.tokens)
            node = node.parent

    def set_idle(self, slot: int) -> None:
        """An active slot stops running; its tokens stay until their cells are needed."""
        for node in self._leaves[slot].path():
            self._deactivate(node)
        self._idle[slot] = None

    def is_idle(self, slot: int) -> bool:
        return slot in self._idle

    def set_active(self, slot: int) -> None:
        """An idle slot runs again, with all that it has."""
        del self._idle[slot]
        for node in self._leaves[slot].path():
            self._activate(node)

    def twin(self, slot: int, *, exact: bool = False) -> int | None:
        """Another slot with the same tokens, in these cells or others, and maybe more after them.

        With `exact` it has no more, and is idle.
        """
        tokens = self.tokens(slot)
        others = (other for other in self._leaves if other != slot and self._begins_with(other, tokens))
        return next((other for other in others if not exact or self._is_idle_with(other, len(tokens))), None)

    def refresh(self, slot: int) -> None:
        """An idle slot turned out to be of use: it becomes the most recent one."""
        if self.is_idle(slot):
            del self._idle[slot]
            self._idle[slot] = None

    def drop(self, slot: int) -> None:
        """Forgets a slot, active or idle; cells that no other slot holds are free."""
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
        """The node in which the longest common prefix ends, and how many tokens of that node are in it."""
        best: Node | None = None
        length, n_common = 0, 0
        # More than one branch can begin alike: sequences that computed the same tokens apart.
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
        """A slot that holds this node: every branch ends in one."""
        for slot, leaf in self._leaves.items():
            if leaf is node:
                return slot
        return self._holder(node.children[0])

    def _shortest_holder(self, node: Node) -> int:
        return min((slot for slot, leaf in self._leaves.items() if node in leaf.path()), key=self.length)

    def _cut(self, leaf: Node, length: int) -> Node:
        """The node on the way to `leaf` that ends at `length`, made by cutting one in two if need be."""
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
        """Joins a node with its only child if the same slots hold both, so that conversations have few nodes."""
        if len(node.children) != 1 or node.children[0].n_holders < node.n_holders:
            return
        (child,) = node.children
        assert node.parent is not None
        child.parent, child.start, child.tokens = node.parent, node.start, node.tokens + child.tokens
        node.parent.children[node.parent.children.index(node)] = child

    def _is_idle_with(self, slot: int, length: int) -> bool:
        return self.is_idle(slot) and self.length(slot) == length

    def _begins_with(self, slot: int, tokens: list[int]) -> bool:
        leaf, n_tokens = self._leaves[slot], len(tokens)
        nodes = [node for node in leaf.path() if node.start < n_tokens]
        return leaf.end >= n_tokens and all(
            node.tokens[: n_tokens - node.start] == tokens[node.start : node.end] for node in reversed(nodes)
        )

    def _is_prefix(self, leaf: Node, tokens: list[int]) -> bool:
        return leaf.end <= len(tokens) and all(node.tokens == tokens[node.start : node.end] for node in leaf.path())


def n_common_of(run: Sequence[int], tokens: Sequence[int], start: int) -> int:
    """How many tokens of `run` are those of `tokens` from `start` on; by halves, so that they compare in C.

    Both are lists or both are tuples.
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
