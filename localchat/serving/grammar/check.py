"""Checks a GBNF grammar for left recursion and repetitions of the empty text, on which a matcher does not terminate.

Left recursion behind nullable rules is found too. The check takes linear time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .budget import spend
from .errors import GrammarError
from .expressions import Alt, Expr, Repeat, RuleRef, Seq, direct_parts, references
from .gbnf_parser import parse_gbnf

MAX_CHARS = 500_000


def check_grammar(text: str) -> None:
    """Refuse a grammar that cannot be matched or is too long.

    Raises:
        GrammarError: The reason, with a position in the text where there is one.
    """
    if len(text) > MAX_CHARS:
        raise GrammarError("", f"the grammar has {len(text)} characters, the limit is {MAX_CHARS}")
    rules = parse_gbnf(text)
    if "root" not in rules:
        raise GrammarError("", "the grammar does not define the rule root, with which each text begins")
    check_rules(rules)


def check_rules(rules: Mapping[str, Expr]) -> None:
    """Check the parsed rules of a grammar. Raises GrammarError."""
    for name, body in rules.items():
        for other in references(body):
            if other not in rules:
                raise GrammarError("", f"the rule {name} refers to the rule {other}, which the grammar does not define")
    nullable = _nullable_rules(rules)
    _check_left_recursion({name: list(_first_rules(body, nullable)) for name, body in rules.items()})


def _nullable_rules(rules: Mapping[str, Expr]) -> set[str]:
    """The rules that match the empty text, directly or through other rules."""
    users: dict[str, list[str]] = {}
    for name, body in rules.items():
        for other in dict.fromkeys(references(body)):
            users.setdefault(other, []).append(name)
    found: set[str] = set()
    todo = list(rules)
    while todo:
        name = todo.pop()
        spend()
        if name not in found and _is_nullable(rules[name], found):
            found.add(name)
            todo += users.get(name, ())
    return found


def _is_nullable(expr: Expr, nullable: set[str]) -> bool:
    if isinstance(expr, RuleRef):
        return expr.name in nullable
    if isinstance(expr, Seq):
        spend(len(expr.items))
        return all(_is_nullable(item, nullable) for item in expr.items)
    if isinstance(expr, Alt):
        spend(len(expr.options))
        return any(_is_nullable(option, nullable) for option in expr.options)
    return isinstance(expr, Repeat) and (expr.low == 0 or _is_nullable(expr.item, nullable))


def _first_rules(expr: Expr, nullable: set[str]) -> Iterator[str]:
    """The rules with which a text of the expression may begin. Raises GrammarError for an endless repetition."""
    if isinstance(expr, RuleRef):
        yield expr.name
    elif isinstance(expr, Repeat):
        if (expr.high is None or expr.high > 1) and _is_nullable(expr.item, nullable):
            raise GrammarError(
                "",
                "the grammar repeats an expression that matches the empty text: such a repetition never ends",
            )
        yield from _first_rules(expr.item, nullable)
    elif isinstance(expr, (Seq, Alt)):
        for part in direct_parts(expr):
            yield from _first_rules(part, nullable)
            if isinstance(expr, Seq) and not _is_nullable(part, nullable):
                return


def _check_left_recursion(first_rules: Mapping[str, list[str]]) -> None:
    """Raise GrammarError if a rule may begin with itself, found by depth-first search for a cycle."""
    is_done: set[str] = set()
    for root in first_rules:
        path, todo = {root: None}, [iter(first_rules[root])]
        while todo:
            name = next(todo[-1], None)
            spend()
            if name is None:
                is_done.add(path.popitem()[0])
                todo.pop()
            elif name in path:
                raise GrammarError(
                    "", f"the rule {name} begins with itself (left recursion): write the recursion at its end"
                )
            elif name not in is_done:
                path[name] = None
                todo.append(iter(first_rules[name]))
