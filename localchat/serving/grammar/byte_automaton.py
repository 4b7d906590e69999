"""Matches a grammar: an automaton over the bytes of UTF-8, computed lazily while texts are matched.

The grammar is context-free, so a state is a set of parse stacks, as in llama.cpp: each stack is one way in which the
text so far may continue. Equal states are the same object, and a state caches its transitions. A text that stays within
a few states, such as the inside of a string, therefore costs one lookup per byte. Equal stacks are merged, so the cost
of an ambiguous grammar depends on the number of distinct stacks and not on the number of parses.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from enum import IntEnum

from .budget import Budget, TooMuchWork, spend
from .check import check_rules
from .errors import GrammarError
from .expressions import Alt, CharClass, Expr, Literal, Repeat, RuleRef, Seq, TokenRef, all_parts
from .gbnf_parser import parse_gbnf
from .utf8 import COMPLETE, byte_states

MAX_STACKS = 100_000
"""Limit of cached stacks. When it is exceeded the caches are cleared."""
MAX_STACKS_OF_STATE = 20_000
"""Limit of stacks of one state, including those with a rule on top. Freeing more at once would delay other threads."""
MAX_FORCED = 256
"""Limit of bytes that `forced_text` returns."""

_ONE_BYTE = tuple(bytes(byte == other for other in range(256)) for byte in range(256))


class _Kind(IntEnum):
    LITERAL = 0
    CHARS = 1
    TOKEN = 2
    RULE = 3
    SEQUENCE = 4
    ALTERNATIVE = 5
    REPEAT = 6


class _Node:
    """An expression of the grammar, prepared for matching."""

    __slots__ = ("data", "high", "is_excluded", "kind", "low", "name", "parts", "states", "token")

    def __init__(self, kind: _Kind):
        self.kind = kind
        self.data = b""  # of a literal
        self.states: tuple[tuple[tuple[int, int, int], ...], ...] = ()  # of a character class; see utf8.py
        self.name = ""  # of a rule
        self.parts: tuple[_Node, ...] = ()  # of a sequence, an alternative or a repetition
        self.low, self.high = 0, 0  # of a repetition; a `high` of -1: no limit
        self.token, self.is_excluded = 0, False  # of a token rule


class Stack:
    """A parse stack: `node` from `position` on is still to be matched, then the stack `below`.

    Equal stacks are the same object.
    """

    __slots__ = ("below", "node", "position", "unfolded")

    def __init__(self, node: _Node | None, position: int, below: Stack | None):
        self.node = node
        self.position = position
        """Bytes of a literal, a state of a class, items of a sequence, or repetitions that have been matched."""
        self.below = below
        self.unfolded: tuple[Stack, ...] | None = None
        """The stacks with a part of `node` on top that replace this stack; None until they are computed."""


_END = Stack(None, 0, None)


class State:
    """A set of stacks. `ByteAutomaton.expand` computes its transitions, once."""

    __slots__ = ("classes", "kernel", "may_end", "targets", "token_stacks")

    def __init__(self, kernel: frozenset[Stack]):
        self.kernel = kernel
        self.classes: bytes | None = None
        """For each byte the index of its target in `targets`; None until the state is expanded."""
        self.targets: tuple[State | None, ...] = (None,)
        """The next states. Item 0 is None: the byte is not allowed."""
        self.may_end = False
        self.token_stacks: tuple[Stack, ...] = ()
        """The stacks with a token rule on top."""


# Pairs of the index of a stack in a state and its next position. In an ambiguous class a stack has several pairs.
_Moves = tuple[tuple[int, int], ...]


class ByteAutomaton:
    """The states of one grammar. Thread-safe: a lock lets one thread at a time expand states."""

    def __init__(self, text: str, root: str, token_id: Callable[[str], int | None]):
        """`token_id` returns the id of the token that a token rule names, and None if there is no such token.

        Raises:
            GrammarError: The text is not a grammar, or the grammar cannot be matched.
        """
        self._rules = parse_gbnf(text)
        if root not in self._rules:
            raise GrammarError("", f"the grammar has no rule {root}")
        check_rules(self._rules)
        self._token_id = token_id
        self._lock = threading.Lock()
        self._nodes: dict[Expr, _Node] = {}
        self._bodies: dict[str, _Node] = {}
        self._stacks: dict[tuple[_Node | None, int, Stack | None], Stack] = {}
        self._states: dict[frozenset[Stack], State] = {}
        self._partitions: dict[tuple[tuple[_Node, int], ...], tuple[bytes, tuple[_Moves, ...]]] = {}
        self.has_token_rules = self._resolve_tokens()
        self.start = self._state((self._stack(self._node(RuleRef(root)), 0, _END),))

    def expand(self, state: State, budget: Budget) -> None:
        """Compute the transitions of a state, unless it is expanded. Raises TooMuchWork."""
        with self._lock:
            if state.classes is not None:
                return
            if len(self._stacks) > MAX_STACKS:
                self._stacks.clear()
                self._states.clear()
                self._partitions.clear()
            heads, state.token_stacks, state.may_end = self._closure(state.kernel, budget)
            classes, moves = self._partition(heads, budget)
            state.targets = (None, *(self._target(heads, move) for move in moves))
            state.classes = classes  # assigned last: other threads read the rest without the lock

    def walk(self, state: State | None, data: bytes, budget: Budget) -> State | None:
        """The state after some bytes; None if they are not allowed. Raises TooMuchWork."""
        for byte in data:
            if state is None:
                return None
            if state.classes is None:
                self.expand(state, budget)
                assert state.classes is not None
            state = state.targets[state.classes[byte]]
        return state

    def after_token(self, state: State, token: int, data: bytes, budget: Budget) -> State | None:
        """The state after a token with these bytes, by its text or by a token rule. Raises TooMuchWork."""
        after = self.walk(state, data, budget) if data else None
        if not self.has_token_rules:
            return after
        self.expand(state, budget)
        below = self._below_tokens(state, token)
        if not below:
            return after
        with self._lock:
            return self._state((*below, *(after.kernel if after is not None else ())))

    def forced_text(self, state: State, budget: Budget) -> bytes:
        """The bytes that must follow, up to the first choice or possible end of the text. Raises TooMuchWork."""
        forced = bytearray()
        at: State | None = state
        while len(forced) < MAX_FORCED and at is not None:
            self.expand(at, budget)
            assert at.classes is not None
            if at.may_end or at.token_stacks or at.classes.count(0) != 255:
                break
            forced.append(next(byte for byte in range(256) if at.classes[byte]))
            at = at.targets[1]
        return bytes(forced)

    def named_tokens(self, state: State) -> tuple[frozenset[int], bool]:
        """The token ids that the token rules of an expanded state allow, and False; or those they forbid, and True.

        An excluding rule allows all tokens but one, so two rules that exclude different tokens allow all tokens.
        """
        nodes = [stack.node for stack in state.token_stacks if stack.node is not None]
        excluded = [node.token for node in nodes if node.is_excluded]
        included = {node.token for node in nodes if not node.is_excluded}
        if not excluded:
            return frozenset(included), False
        return frozenset(set(excluded[:1]) - included if len(set(excluded)) == 1 else ()), True

    def _below_tokens(self, state: State, token: int) -> list[Stack]:
        """The stacks that remain after a token, for each token rule that allows it."""
        return [
            stack.below
            for stack in state.token_stacks
            if stack.node is not None
            and stack.below is not None
            and (stack.node.token == token) != stack.node.is_excluded
        ]

    # From expressions to nodes

    def _resolve_tokens(self) -> bool:
        """Make the nodes of all token rules, so that an unknown token is an error at once. False if there are none."""
        tokens = [part for body in self._rules.values() for part in all_parts(body) if isinstance(part, TokenRef)]
        for token in tokens:
            self._node(token)
        return bool(tokens)

    def _node(self, expr: Expr) -> _Node:
        node = self._nodes.get(expr)
        if node is None:
            node = self._nodes[expr] = self._new_node(expr)
        return node

    def _new_node(self, expr: Expr) -> _Node:
        spend()
        if isinstance(expr, Literal):
            node = _Node(_Kind.LITERAL)
            node.data = expr.text.encode()
        elif isinstance(expr, CharClass):
            node = _Node(_Kind.CHARS)
            node.states = byte_states(expr)
        elif isinstance(expr, RuleRef):
            node = _Node(_Kind.RULE)
            node.name = expr.name
        elif isinstance(expr, Seq):
            node = _Node(_Kind.SEQUENCE)
            node.parts = tuple(map(self._node, expr.items))
        elif isinstance(expr, Alt):
            node = _Node(_Kind.ALTERNATIVE)
            node.parts = tuple(map(self._node, expr.options))
        elif isinstance(expr, Repeat):
            node = _Node(_Kind.REPEAT)
            node.parts = (self._node(expr.item),)
            node.low, node.high = expr.low, -1 if expr.high is None else expr.high
        else:
            node = _Node(_Kind.TOKEN)
            token = self._token_id(expr.name)
            if token is None:
                raise GrammarError("", f"the grammar names the token {expr.name}, which this model does not have")
            node.token, node.is_excluded = token, expr.is_excluded
        return node

    # From stacks to states

    def _stack(self, node: _Node | None, position: int, below: Stack | None) -> Stack:
        key = (node, position, below)
        stack = self._stacks.get(key)
        if stack is None:
            stack = self._stacks[key] = Stack(node, position, below)
        return stack

    def _state(self, stacks: Iterable[Stack]) -> State:
        kernel = frozenset(stacks)
        state = self._states.get(kernel)
        if state is None:
            state = self._states[kernel] = State(kernel)
        return state

    def _closure(self, kernel: frozenset[Stack], budget: Budget) -> tuple[tuple[Stack, ...], tuple[Stack, ...], bool]:
        """The stacks with a literal or a class on top, those with a token rule on top, and whether the text may end."""
        heads: list[Stack] = []
        token_stacks: list[Stack] = []
        may_end = False
        seen = set(kernel)
        todo = list(kernel)
        while todo:
            stack = todo.pop()
            node = stack.node
            if node is None:
                may_end = True
            elif node.kind <= _Kind.CHARS:
                heads.append(stack)
            elif node.kind == _Kind.TOKEN:
                token_stacks.append(stack)
            else:
                unfolded = stack.unfolded
                if unfolded is None:
                    unfolded = stack.unfolded = self._unfold(stack, node)
                    budget.spend(3 * len(unfolded))
                budget.spend(len(unfolded))
                todo += [one for one in unfolded if one not in seen]
                seen.update(unfolded)
                if len(seen) > MAX_STACKS_OF_STATE:
                    raise TooMuchWork(
                        f"its text can continue in more than {MAX_STACKS_OF_STATE:,} ways, which is the limit: make it "
                        "less ambiguous"
                    )
        budget.spend(len(heads) + 2)
        return tuple(heads), tuple(token_stacks), may_end

    def _unfold(self, stack: Stack, node: _Node) -> tuple[Stack, ...]:
        """Replace a stack by stacks with a part of its top node on top."""
        below, position = stack.below, stack.position
        assert below is not None
        if node.kind == _Kind.RULE:
            body = self._bodies.get(node.name)
            if body is None:
                body = self._bodies[node.name] = self._node(self._rules[node.name])
            return (self._stack(body, 0, below),)
        if node.kind == _Kind.SEQUENCE:
            if position == len(node.parts):
                return (below,)
            is_last = position + 1 == len(node.parts)
            rest = below if is_last else self._stack(node, position + 1, below)
            return (self._stack(node.parts[position], 0, rest),)
        if node.kind == _Kind.ALTERNATIVE:
            return tuple(self._stack(part, 0, below) for part in node.parts)
        may_stop, may_go_on = position >= node.low, node.high < 0 or position < node.high
        stop = (below,) if may_stop else ()
        if not may_go_on:
            return stop
        # Without an upper limit all counts from the lower limit on are equivalent.
        n_done = min(position + 1, node.low) if node.high < 0 else position + 1
        rest = below if n_done == node.high else self._stack(node, n_done, below)
        return (*stop, self._stack(node.parts[0], 0, rest))

    # From states to the next states

    def _partition(self, heads: tuple[Stack, ...], budget: Budget) -> tuple[bytes, tuple[_Moves, ...]]:
        """The class of each byte, and the moves of the stacks for each class except 0 (no move)."""
        if len(heads) == 1 and heads[0].node is not None and heads[0].node.kind == _Kind.LITERAL:
            (((byte, _, after),),) = (_ranges(heads[0]),)
            return _ONE_BYTE[byte], (((0, after),),)
        key = tuple((head.node, head.position) for head in heads if head.node is not None)
        if key not in self._partitions:
            self._partitions[key] = _sweep(heads, budget)
        return self._partitions[key]

    def _target(self, heads: tuple[Stack, ...], moves: _Moves) -> State:
        return self._state(
            head.below if after == COMPLETE else self._stack(head.node, after, head.below)  # type: ignore[misc]
            for head, after in ((heads[number], after) for number, after in moves)
        )


def _ranges(head: Stack) -> tuple[tuple[int, int, int], ...]:
    """The ranges of bytes that may follow, each with the next position of the stack."""
    node, position = head.node, head.position
    assert node is not None
    if node.kind == _Kind.CHARS:
        return node.states[position]
    byte = node.data[position]
    return ((byte, byte, COMPLETE if position + 1 == len(node.data) else position + 1),)


def _sweep(heads: tuple[Stack, ...], budget: Budget) -> tuple[bytes, tuple[_Moves, ...]]:
    """Compute `ByteAutomaton._partition` by a sweep over the bytes: moves change only where a range begins or ends."""
    begins: dict[int, list[tuple[int, int]]] = {}
    ends: dict[int, list[tuple[int, int]]] = {}
    for number, head in enumerate(heads):
        for first, last, after in _ranges(head):
            begins.setdefault(first, []).append((number, after))
            ends.setdefault(last + 1, []).append((number, after))
            budget.spend()
    classes = bytearray(256)
    numbers: dict[_Moves, int] = {(): 0}
    active: dict[tuple[int, int], None] = {}
    cuts = sorted({*begins, *ends})
    for cut, next_cut in zip(cuts, cuts[1:]):
        for move in ends.get(cut, ()):
            del active[move]
        active.update(dict.fromkeys(begins.get(cut, ())))
        budget.spend(len(active))
        number = numbers.setdefault(tuple(active), len(numbers))
        classes[cut:next_cut] = bytes((number,)) * (next_cut - cut)
    return bytes(classes), tuple(numbers)[1:]
