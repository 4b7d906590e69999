"""Check of a GBNF grammar from a request: a grammar that would hang or end the process is refused.

llama.cpp finds most mistakes itself. It does not find left recursion behind a rule that is empty only by way of
another rule (it fills the memory), a count in the wrong order (the same), nor groups nested so deep that its own
recursion overflows, and it reads the text as far as its first NUL. It has no limit of time for a grammar either.
Text that is no GBNF at all is left to llama.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from .errors import GrammarError
from .expressions import EMPTY, Alt, Expr, Repeat, RuleRef, Seq, chars

MAX_CHARS = 500_000
MAX_GROUP_DEPTH = 100
# Rules that begin with one another, one after the other.
MAX_RULE_DEPTH = 5000
# llama.cpp expands every repetition into rules.
MAX_REPETITIONS = 200_000
# It searches for left recursion along every path through the first rules of rules, however often the paths meet.
MAX_PATHS = 1_000_000

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
_NOT_TEXT = re.compile("[\0\ud800-\udfff]")
_SIGNS = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_TERMINAL = chars("az")


def check_grammar(text: str) -> None:
    """Refuse a grammar that would harm the process when llama.cpp loads or follows it.

    Raises:
        GrammarError: The reason, with a position in the text where there is one.
    """
    if len(text) > MAX_CHARS:
        raise GrammarError("", f"the grammar has {len(text)} characters, and {MAX_CHARS} are allowed")
    found = _NOT_TEXT.search(text)
    if found:
        kind = "a NUL" if found[0] == "\0" else "half of a surrogate pair"
        raise GrammarError("", f"the grammar has {kind} at character {found.start()}: remove it")
    bodies = _Parser(text).parse()
    nullable = _nullable_rules(bodies)
    first_rules = {name: list(_first_rules(body, nullable)) for name, body in bodies.items()}
    _check_left_recursion(first_rules)


def has_token_rules(text: str) -> bool:
    """Whether a grammar names tokens as such, <[5]> or <|end|>. These are allowed whatever their text is."""
    return "<" in _QUOTED.sub("", text)


class _Parser:
    """Parses the rules one after the other. The open groups are a list: no depth of them overflows the stack."""

    def __init__(self, text: str):
        self._text = text
        self._bodies: dict[str, Expr] = {}
        # For each open group, after the rule itself: the complete options, and the items of the current option.
        self._groups: list[tuple[list[Expr], list[Expr]]] = []
        self._n_repeated = 0

    def parse(self) -> dict[str, Expr]:
        name, at = "", 0
        while at < len(self._text):
            match = TOKEN.match(self._text, at)
            if match is None:
                raise GrammarError("", f"the grammar has no meaning at character {at}: {self._text[at : at + 20]!r}")
            at = match.end()
            if match.lastgroup == "head" or match["head"]:
                self._end_rule(name)
                name, self._groups = match["head"][:-3].strip(), [([], [])]
            elif not match["space"]:
                self._take(match)
        self._end_rule(name)
        return self._bodies

    def _end_rule(self, name: str) -> None:
        if len(self._groups) > 1:
            raise GrammarError("", f"the rule {name} has a `(` without its `)`")
        if self._groups:
            self._bodies[name] = self._pop_group()

    def _take(self, match: re.Match[str]) -> None:
        if not self._groups:
            raise GrammarError("", "the grammar must begin with a rule: name ::= ...")
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
        if len(self._groups) > MAX_GROUP_DEPTH:
            raise GrammarError("", f"the grammar nests groups deeper than {MAX_GROUP_DEPTH}")
        self._groups.append(([], []))

    def _close(self) -> None:
        if len(self._groups) < 2:
            raise GrammarError("", "the grammar has a `)` without its `(`")
        group = self._pop_group()
        self._groups[-1][1].append(group)

    def _pop_group(self) -> Expr:
        options, items = self._groups.pop()
        # Not `alt`, which removes duplicates: llama.cpp follows each of them.
        return Alt((*options, Seq(tuple(items))))

    def _repeat(self, items: list[Expr], match: re.Match[str]) -> None:
        if not items:
            raise GrammarError("", f"the grammar has {match['count']} with nothing before it to repeat")
        low, high = count_of(match)
        if high is not None and high < low:
            raise GrammarError("", f"the grammar repeats {match['count']}: the order is wrong")
        self._n_repeated += max(low, high or 0)
        if self._n_repeated > MAX_REPETITIONS:
            raise GrammarError("", f"the grammar has more than {MAX_REPETITIONS} repetitions in all")
        items.append(Repeat(items.pop(), low, high))


def count_of(match: re.Match[str]) -> tuple[int, int | None]:
    """The least and the greatest number of repetitions; None is without limit."""
    return _SIGNS.get(match["count"]) or (int(match["low"]), _high(match))


def _high(match: re.Match[str]) -> int | None:
    return int(match["low"]) if not match["comma"] else int(match["high"]) if match["high"] else None


def _item(match: re.Match[str]) -> Expr:
    if match["name"]:
        return RuleRef(match["name"])
    # llama.cpp reads an empty class as the empty text.
    return EMPTY if match[0] in ('""', "[]", "[^]") else _TERMINAL


def _nullable_rules(bodies: dict[str, Expr]) -> set[str]:
    """The rules that match the empty text, directly or by way of other rules."""
    found: set[str] = set()
    while True:
        new = {name for name, body in bodies.items() if name not in found and _is_nullable(body, found)}
        if not new:
            return found
        found |= new


def _is_nullable(expr: Expr, nullable: set[str]) -> bool:
    if isinstance(expr, RuleRef):
        return expr.name in nullable
    if isinstance(expr, Seq):
        return all(_is_nullable(item, nullable) for item in expr.items)
    if isinstance(expr, Alt):
        return any(_is_nullable(option, nullable) for option in expr.options)
    return isinstance(expr, Repeat) and (expr.low == 0 or _is_nullable(expr.item, nullable))


def _first_rules(expr: Expr, nullable: set[str]) -> Iterator[str]:
    """The rules that a text of the expression may begin with."""
    if isinstance(expr, RuleRef):
        yield expr.name
    elif isinstance(expr, Repeat):
        if (expr.high is None or expr.high > 1) and _is_nullable(expr.item, nullable):
            raise GrammarError("", "the grammar repeats what may be empty, which never ends")
        yield from _first_rules(expr.item, nullable)
    elif isinstance(expr, (Seq, Alt)):
        for part in expr.items if isinstance(expr, Seq) else expr.options:
            yield from _first_rules(part, nullable)
            if isinstance(expr, Seq) and not _is_nullable(part, nullable):
                return


def _check_left_recursion(first_rules: dict[str, list[str]]) -> None:
    """Follow the first rules of rules, depth first: no path may lead back, and there may not be too many paths."""
    n_paths: dict[str, int] = {}
    for root in first_rules:
        path, todo = {root: None}, [iter(first_rules[root])]
        while todo:
            name = next(todo[-1], None)
            if name is None:
                done, _ = path.popitem()
                todo.pop()
                n_paths[done] = 1 + sum(n_paths.get(first, 0) for first in first_rules[done])
            elif name in path:
                raise GrammarError("", f"the rule {name} begins with itself (left recursion)")
            elif name in first_rules and name not in n_paths:
                path[name] = None
                todo.append(iter(first_rules[name]))
                if len(path) > MAX_RULE_DEPTH:
                    raise GrammarError("", f"more than {MAX_RULE_DEPTH} rules of the grammar begin with one another")
    if sum(n_paths.values()) > MAX_PATHS:
        raise GrammarError("", "the beginnings of the grammar's rules can be combined in too many ways")
