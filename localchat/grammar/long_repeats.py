"""Long repetitions of a grammar from a request, rewritten within llama.cpp's limit.

llama.cpp refuses to repeat anything more than 2000 times, and takes a larger upper limit for no limit.
"""

from __future__ import annotations

import re

from .check import TOKEN, count_of
from .gbnf import Rules

MAX_COUNT = 2000


def rewrite_long_repeats(text: str, *, prefix: str) -> str:
    """The same grammar with every count of at most 2000. The names of new rules begin with `prefix`.

    `check_grammar` must have accepted the text.
    """
    return _Rewriter(text, prefix).rewrite()


class _Rewriter:
    """Copies the text token by token. What a count may follow is one piece, so that a rule can replace it."""

    def __init__(self, text: str, prefix: str):
        self._text = text
        self._prefix = prefix
        # The pieces of each open group, after those outside of all groups.
        self._groups: list[list[str]] = [[]]
        # The text of the new rules.
        self._added: list[str] = []

    def rewrite(self) -> str:
        position = 0
        while position < len(self._text):
            match = TOKEN.match(self._text, position)
            assert match is not None, "the grammar was checked"
            position = match.end()
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
        last = next(n for n in reversed(range(len(pieces))) if pieces[n].strip() and pieces[n][0] != "#")
        prefix = f"{self._prefix}{len(self._added)}-"
        rules = Rules(prefix + "all", prefix=prefix)
        item = rules.external(prefix + "item")
        self._added.append(rules.render(rules.repeat(item, low, high)).strip() + f"\n{item.name} ::= {pieces[last]}")
        pieces[last:] = [f" {prefix}all "]
