r"""Grammars in the notation of llguidance: rules and terminals, and grammars in GBNF.

regex_literal("a.b")              the regular expression of one text: a\.b
text_regex(text, "now")           that of a text of a call format, with the name of a tool in its holes
rules.regex("a\.b")               the terminal of a regular expression: T_0, whose body is /a\.b/
rules.terminal("T_0 /c/")         the terminal of several: T_1, whose body is T_0 /c/
rules.free_text(["<x>"])          the terminal of any text without these markers
rules.rule("T_0 T_1")             a rule of terminals and rules: rule_2
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from typing import Any, NewType

from ..dialects.call_format import Hole, Text

_HOLES = {
    Hole.NUMBER: "[0-9]{1,3}",
    Hole.ID: "[A-Za-z0-9_-]{1,64}",
    Hole.BREAK: r"\n{0,2}",
    Hole.INDENT: r"\n? {0,16}",
}
ANY = "(?s:.*)"

Terminal = NewType("Terminal", str)
"""The name of a terminal: of a lexeme of the grammar."""

_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|.)", re.DOTALL)


def regex_literal(text: str) -> str:
    """The regular expression of exactly this text, for use between slashes."""
    return re.sub(r"([\\.+*?()|\[\]{}^$/&~#-])", r"\\\1", text).replace("\n", r"\n").replace("\0", r"\x00")


def text_regex(text: Text, name: str = "") -> str:
    """The regular expression of a text of a call format, with the name of a tool or argument in its holes."""
    return "".join(
        regex_literal(part) if isinstance(part, str) else _HOLES.get(part) or regex_literal(name) for part in text
    )


def seq(*parts: str) -> str:
    return " ".join(filter(None, parts)) or '""'


class Rules:
    """Collects the rules and terminals of one grammar. Equal bodies have one name."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def rule(self, body: str) -> str:
        return self._named("rule", body)

    def terminal(self, body: str) -> Terminal:
        """A lexeme: regular expressions between slashes and other terminals, joined by ` `, `|` and `&`."""
        return Terminal(self._named("T", body))

    def regex(self, regex: str) -> Terminal:
        return self.terminal(f"/{regex}/")

    def free_text(self, markers: Iterable[str], *restrictions: str) -> Terminal:
        """Any text that contains none of the markers, which are regular expressions.

        `restrictions` are bodies of terminals that match it, too.
        """
        alternatives = "|".join(dict.fromkeys(markers))
        without_markers = [f"~/{ANY}({alternatives}){ANY}/"] if alternatives else []
        return self.terminal(" & ".join([f"/{ANY}/", *restrictions, *without_markers]))

    def render(self, start: str) -> str:
        return "\n".join([f"start: {start}", *(f"{name}: {body}" for body, name in self._names.items()), ""])

    def _named(self, prefix: str, body: str) -> str:
        if re.fullmatch(r"(rule|T)_\d+", body):
            return body
        return self._names.setdefault(body, f"{prefix}_{len(self._names)}")


def gbnf_rule(grammar: str) -> str:
    """The body of a rule: the text of a grammar in GBNF, the notation of llama.cpp. Raises ValueError."""
    from llguidance import gbnf_to_lark as gbnf

    try:
        rules = gbnf.GrammarParser().parse(_ESCAPE.sub(_gbnf_escape, grammar))
    except Exception as error:  # the parser raises Exception, and IndexError at the end of the text
        position = getattr(error, "pos", None)
        line = position.text.count("\n", 0, position.pos) + 1 if position else grammar.count("\n") + 1
        raise ValueError(f"it is not a grammar in GBNF: see line {line}") from error
    names: dict[str, str] = {}

    def use(name: str) -> Any:
        """Give a rule a new name, link it to the rules to which it refers, and return it."""
        if name not in rules:
            raise ValueError(f"the rule {name!r} is not defined")
        rule = rules[name]
        if name not in names:
            rule.name = names[name] = f"gbnf_{len(names)}"
            rule.alternatives = rule.alternatives.simplify()
            link(rule.alternatives)
            if rule.alternatives.is_terminal():
                rule.rule_is_terminal, rule.name = True, rule.name.upper()
        return rule

    def link(node: Any) -> None:
        if isinstance(node, gbnf.RuleRefNode):
            node.target = use(node.name)
        elif isinstance(node, gbnf.RegexNode):
            # Any character includes a line break. In a class, && and ~~ would be operators.
            node.rx = "(?s:.)" if node.rx == "." else re.sub(r"([&~])\1+", r"\1", node.rx)
        for child in node.children():
            link(child)

    lines = [f"start: {use('root').name}"]

    def join_terminals(node: Any) -> None:
        """Make one terminal of adjacent ones: llguidance takes the longest text of each, even if another follows."""
        for child in node.children():
            join_terminals(child)
        if not isinstance(node, gbnf.SequenceNode):
            return
        nodes: list[Any] = []
        for is_terminal, group in itertools.groupby(node.nodes, key=lambda child: child.is_terminal()):
            parts = list(group)
            if is_terminal and len(parts) > 1:
                lines.append(f"JOINED_{len(lines)}: {gbnf.SequenceNode(parts)}")
                parts = [gbnf.RuleRefNode(lines[-1].partition(":")[0])]
            nodes += parts
        node.nodes = nodes

    for rule in map(rules.__getitem__, names):
        if not rule.rule_is_terminal:
            join_terminals(rule)
        lines.append(str(rule))
    return "%lark {\n" + "\n".join(lines) + "\n}"


def _gbnf_escape(match: re.Match[str]) -> str:
    """An escape as the parser of llguidance knows it: a character outside ASCII is itself."""
    code = int(match[1] or match[2] or match[3] or "0", 16)
    return chr(min(code, 0x10FFFF)) if code >= 0x80 else f"\\x{code:02x}" if match.lastindex else match[0]
