r"""The notation of llguidance, which is that of the Lark parser: rules and terminals.

regex_literal("a.b")              the regular expression of one text: a\.b
text_regex(text, "now")           that of a text of a call format, with the name of a tool in its holes
rules.regex("a\.b")               the terminal of a regular expression: T_0, whose body is /a\.b/
rules.terminal("T_0 /c/")         the terminal of several: T_1, whose body is T_0 /c/
rules.free_text(["<x>"])          the terminal of any text without these markers
rules.rule("T_0 T_1")             a rule of terminals and rules: rule_2
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NewType

from ..dialects.holes import Hole, Text

_HOLES = {
    Hole.NUMBER: "[0-9]{1,3}",
    Hole.ID: "[A-Za-z0-9_-]{1,64}",
    Hole.BREAK: r"\n{0,2}",
    Hole.INDENT: r"\n? {0,16}",
}
ANY = "(?s:.*)"

Terminal = NewType("Terminal", str)
"""The name of a terminal: of a lexeme of the grammar."""


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
