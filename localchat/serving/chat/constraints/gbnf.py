"""Grammars of requests in GBNF, the notation of llama.cpp, as a rule of llguidance.

llguidance parses a grammar in GBNF itself. This module changes what its parser returns where the two notations differ:

- Every rule and terminal gets a new name, since its own could be a word of llguidance's notation.
- Any character includes a line break, and a class has no operators and no classes inside.
- Adjacent terminals become one, since llguidance takes the longest text of each, even if another one follows.
"""

from __future__ import annotations

import itertools
import re
from typing import Any

from ...schema.patterns import in_gbnf

_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|.)", re.DOTALL)


def gbnf_rule(grammar: str) -> str:
    """The body of a rule: the text of a grammar in GBNF. Raises ValueError if it is none."""
    from llguidance import gbnf_to_lark as gbnf

    try:
        rules = gbnf.GrammarParser().parse(_ESCAPE.sub(_gbnf_escape, grammar))
    except Exception as error:  # the parser raises Exception, and IndexError at the end of the text
        position = getattr(error, "pos", None)
        line = position.text.count("\n", 0, position.pos) + 1 if position else grammar.count("\n") + 1
        raise ValueError(f"it is not a grammar in GBNF: see line {line}") from error
    return "%lark {\n" + "\n".join(_Translation(gbnf, rules).lines()) + "\n}"


def _gbnf_escape(match: re.Match[str]) -> str:
    """An escape as the parser of llguidance knows it: a character outside ASCII is itself."""
    code = int(match[1] or match[2] or match[3] or "0", 16)
    return chr(min(code, 0x10FFFF)) if code >= 0x80 else f"\\x{code:02x}" if match.lastindex else match[0]


class _Translation:
    """Rewrites the rules that llguidance's parser of GBNF returns, and that it writes as lines of its notation."""

    def __init__(self, gbnf: Any, rules: dict[str, Any]) -> None:
        self._gbnf = gbnf  # The module of the parser, which has the classes of its nodes.
        self._rules = rules
        self._names: dict[str, str] = {}  # The new names of the rules that are used.
        self._joined: list[str] = []  # The lines of the terminals that stand for adjacent ones.

    def lines(self) -> list[str]:
        """The lines of the grammar, which begins with the rule `root`. Raises ValueError if a rule is not defined."""
        start = f"start: {self._used('root').name}"
        rules = [self._rules[name] for name in self._names]
        for rule in rules:
            if not rule.rule_is_terminal:
                self._join_terminals(rule)
        return [start, *self._joined, *map(str, rules)]

    def _used(self, name: str) -> Any:
        """The rule of this name, with a new name, and linked to the rules to which it refers."""
        if name not in self._rules:
            raise ValueError(f"the rule {name!r} is not defined")
        rule = self._rules[name]
        if name not in self._names:
            rule.name = self._names[name] = f"gbnf_{len(self._names)}"
            rule.alternatives = rule.alternatives.simplify()
            self._link(rule.alternatives)
            if rule.alternatives.is_terminal():
                rule.rule_is_terminal, rule.name = True, rule.name.upper()
        return rule

    def _link(self, node: Any) -> None:
        """Link the references in a node to their rules, and rewrite its regular expressions."""
        if isinstance(node, self._gbnf.RuleRefNode):
            node.target = self._used(node.name)
        elif isinstance(node, self._gbnf.RegexNode):
            node.rx = "(?s:.)" if node.rx == "." else in_gbnf(node.rx)
        for child in node.children():
            self._link(child)

    def _join_terminals(self, node: Any) -> None:
        """Make one terminal of adjacent ones, in a node and those inside it."""
        for child in node.children():
            self._join_terminals(child)
        if not isinstance(node, self._gbnf.SequenceNode):
            return
        nodes: list[Any] = []
        for is_terminal, group in itertools.groupby(node.nodes, key=lambda child: child.is_terminal()):
            parts = list(group)
            if is_terminal and len(parts) > 1:
                name = f"JOINED_{len(self._joined)}"
                self._joined.append(f"{name}: {self._gbnf.SequenceNode(parts)}")
                parts = [self._gbnf.RuleRefNode(name)]
            nodes += parts
        node.nodes = nodes
