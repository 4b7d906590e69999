"""Grammars of others whose counts are too large for the engine, written so that it takes and keeps to them.

The engine refuses to repeat anything more than 2000 times, and takes a larger upper limit for none at all.
"""

from __future__ import annotations

import re

from .check import TOKEN, count_of
from .rules import Rules

MAX_COUNT = 2000


def long_repeats_written_out(text: str, *, prefix: str) -> str:
    """The same grammar, of which `check_grammar` has found nothing wrong. New rules have names with `prefix`."""
    return _Writer(text, prefix).written()


class _Writer:
    """Copies the text token by token; what a count may stand after is one piece, so that a rule can replace it."""

    def __init__(self, text: str, prefix: str):
        self._text = text
        self._prefix = prefix
        # The pieces of each open group, those outside of all groups first.
        self._groups: list[list[str]] = [[]]
        # The rules for what is repeated.
        self._added: list[str] = []

    def written(self) -> str:
        at = 0
        while at < len(self._text):
            match = TOKEN.match(self._text, at)
            assert match is not None, "the grammar was checked"
            at = match.end()
            self._take(match)
        return "\n".join(["".join(self._groups[0]), *self._added]) if self._added else self._text

    def _take(self, match: re.Match[str]) -> None:
        if match[0] == "(":
            self._groups.append(["("])
        elif match[0] == ")":
            group = self._groups.pop()
            self._groups[-1].append("".join([*group, ")"]))
        elif match["count"] and max(*(n or 0 for n in count_of(match))) > MAX_COUNT:
            self._repeat(*count_of(match))
        else:
            self._groups[-1].append(match[0])

    def _repeat(self, low: int, high: int | None) -> None:
        pieces = self._groups[-1]
        at = next(n for n in reversed(range(len(pieces))) if pieces[n].strip() and pieces[n][0] != "#")
        prefix = f"{self._prefix}{len(self._added)}-"
        rules = Rules(prefix + "all", prefix=prefix)
        item = rules.elsewhere(prefix + "item")
        self._added.append(rules.render(rules.repeat(item, low, high)).strip() + f"\n{item.name} ::= {pieces[at]}")
        pieces[at:] = [f" {prefix}all "]
