"""A guard for grammars that somebody else wrote: what would hang or end the process is refused.

llama.cpp's engine finds most mistakes itself. It does not find left recursion behind a rule that is
only empty by way of another one (it fills the memory), counts in the wrong order (the same), and groups
nested so deep that its own recursion overflows. Nor does it mind rules that take it for ever to check.
What is no GBNF at all is left to the engine.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from .rules import EMPTY, Alt, Expr, Ref, Repeat, Seq, chars

MAX_CHARS = 500_000
MAX_DEPTH = 100
MAX_CHAIN = 5000
# The engine writes every repetition out as rules.
MAX_REPEATED = 200_000
# It looks for left recursion along every way through the beginnings of rules, however often they meet.
MAX_WAYS = 1_000_000

TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]+|\#[^\r\n]*)
    |(?P<head>[A-Za-z0-9-]+[ \t]*::=)
    |(?P<literal>"(?:\\.|[^"\\])*")
    |(?P<class>\[(?:\\.|[^\]\\])*\])
    |(?P<token>!?<[^>]*>|\.)
    |(?P<name>[A-Za-z0-9-]+)
    |(?P<count>[*+?]|\{\s*(?P<low>\d{1,9})\s*(?P<comma>,\s*(?P<high>\d{0,9})\s*)?\})
    |(?P<sign>[|()])""",
    re.VERBOSE | re.DOTALL,
)
_QUOTED = re.compile(r"""\#[^\r\n]*|"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]""", re.DOTALL)
_SIGNS = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_TERMINAL = chars("az")


class GrammarError(ValueError):
    """A grammar that the engine must not see."""


def check_grammar(text: str) -> None:
    """Raises GrammarError if loading or following the grammar would harm the process."""
    if len(text) > MAX_CHARS:
        raise GrammarError(f"the grammar has {len(text)} characters, and {MAX_CHARS} are allowed")
    bodies = _Reader(text).read()
    empty = _empty_rules(bodies)
    starts = {name: list(_starts(body, empty)) for name, body in bodies.items()}
    _check_ways(starts)


def has_token_rules(text: str) -> bool:
    """Whether a grammar names tokens as such, <[5]> or <|end|>, which are allowed whatever text they are."""
    without_texts = _QUOTED.sub("", text)
    return "<" in without_texts


class _Reader:
    """Reads rules one after the other; the open groups are a list, so depth costs nothing here."""

    def __init__(self, text: str):
        self._text = text
        self._bodies: dict[str, Expr] = {}
        # Of each open group, the rule itself first: its finished options, and the items of the current one.
        self._groups: list[tuple[list[Expr], list[Expr]]] = []
        self._n_repeated = 0

    def read(self) -> dict[str, Expr]:
        name, at = "", 0
        while at < len(self._text):
            match = TOKEN.match(self._text, at)
            if match is None:
                raise GrammarError(f"the grammar has no meaning at character {at}: {self._text[at : at + 20]!r}")
            at = match.end()
            if match.lastgroup == "head" or match["head"]:
                self._finish(name)
                name, self._groups = match["head"][:-3].strip(), [([], [])]
            elif not match["space"]:
                self._take(match)
        self._finish(name)
        return self._bodies

    def _finish(self, name: str) -> None:
        if len(self._groups) > 1:
            raise GrammarError(f"the rule {name} has a `(` without its `)`")
        if self._groups:
            self._bodies[name] = self._closed()

    def _take(self, match: re.Match[str]) -> None:
        if not self._groups:
            raise GrammarError("the grammar must begin with a rule: name ::= ...")
        options, items = self._groups[-1]
        if match["sign"] == "|":
            options.append(Seq(tuple(items)))
            items.clear()
        elif match["sign"] == "(":
            self._open()
        elif match["sign"] == ")":
            self._close()
        elif match["count"]:
            self._repeat(items, match)
        else:
            items.append(_item(match))

    def _open(self) -> None:
        if len(self._groups) > MAX_DEPTH:
            raise GrammarError(f"the grammar nests groups deeper than {MAX_DEPTH}")
        self._groups.append(([], []))

    def _close(self) -> None:
        if len(self._groups) < 2:
            raise GrammarError("the grammar has a `)` without its `(`")
        group = self._closed()
        self._groups[-1][1].append(group)

    def _closed(self) -> Expr:
        options, items = self._groups.pop()
        # As it stands: `alt` would drop doubles, which the engine follows one by one.
        return Alt((*options, Seq(tuple(items))))

    def _repeat(self, items: list[Expr], match: re.Match[str]) -> None:
        if not items:
            raise GrammarError(f"the grammar has {match['count']} with nothing before it to repeat")
        low, high = count_of(match)
        if high is not None and high < low:
            raise GrammarError(f"the grammar repeats {match['count']}: the order is wrong")
        self._n_repeated += max(low, high or 0)
        if self._n_repeated > MAX_REPEATED:
            raise GrammarError(f"the grammar has more than {MAX_REPEATED} repetitions in all")
        items.append(Repeat(items.pop(), low, high))


def count_of(match: re.Match[str]) -> tuple[int, int | None]:
    """How often a count repeats: at least, and at most if there is a limit."""
    return _SIGNS.get(match["count"]) or (int(match["low"]), _high(match))


def _high(match: re.Match[str]) -> int | None:
    return int(match["low"]) if not match["comma"] else int(match["high"]) if match["high"] else None


def _item(match: re.Match[str]) -> Expr:
    if match["name"]:
        return Ref(match["name"])
    # The engine reads an empty class like an empty text.
    return EMPTY if match[0] in ('""', "[]", "[^]") else _TERMINAL


def _empty_rules(bodies: dict[str, Expr]) -> set[str]:
    """The rules that match the empty text, by way of others too."""
    found: set[str] = set()
    while True:
        new = {name for name, body in bodies.items() if name not in found and _is_empty(body, found)}
        if not new:
            return found
        found |= new


def _is_empty(expr: Expr, empty: set[str]) -> bool:
    if isinstance(expr, Ref):
        return expr.name in empty
    if isinstance(expr, Seq):
        return all(_is_empty(item, empty) for item in expr.items)
    if isinstance(expr, Alt):
        return any(_is_empty(option, empty) for option in expr.options)
    return isinstance(expr, Repeat) and (expr.low == 0 or _is_empty(expr.item, empty))


def _starts(expr: Expr, empty: set[str]) -> Iterator[str]:
    """The rules with which a text of the expression may begin."""
    if isinstance(expr, Ref):
        yield expr.name
    elif isinstance(expr, Repeat):
        if (expr.high is None or expr.high > 1) and _is_empty(expr.item, empty):
            raise GrammarError("the grammar repeats what may be empty, which never ends")
        yield from _starts(expr.item, empty)
    elif isinstance(expr, (Seq, Alt)):
        for part in expr.items if isinstance(expr, Seq) else expr.options:
            yield from _starts(part, empty)
            if isinstance(expr, Seq) and not _is_empty(part, empty):
                return


def _check_ways(starts: dict[str, list[str]]) -> None:
    """Follows the beginnings of rules, depth first: none may lead back, and they must not be too many."""
    ways: dict[str, int] = {}
    for root in starts:
        trail, todo = {root: None}, [iter(starts[root])]
        while todo:
            name = next(todo[-1], None)
            if name is None:
                done, _ = trail.popitem()
                todo.pop()
                ways[done] = 1 + sum(ways.get(one, 0) for one in starts[done])
            elif name in trail:
                raise GrammarError(f"the rule {name} begins with itself (left recursion)")
            elif name in starts and name not in ways:
                trail[name] = None
                todo.append(iter(starts[name]))
                if len(trail) > MAX_CHAIN:
                    raise GrammarError(f"more than {MAX_CHAIN} rules of the grammar begin with one another")
    if sum(ways.values()) > MAX_WAYS:
        raise GrammarError("the beginnings of the grammar's rules can be combined in too many ways")
