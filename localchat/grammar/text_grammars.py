"""Grammars of plain text: a regular expression, or one of several choices."""

from __future__ import annotations

from collections.abc import Sequence

from .errors import GrammarError, PatternError, errors_located
from .expressions import Literal, left_factored
from .gbnf import Rules
from .regex import parse_full
from .regular_languages import PlainEncoding, language_expr


def regex_to_grammar(pattern: str, *, root: str = "root") -> str:
    """The grammar of the texts that a regular expression matches as a whole.

    Raises:
        PatternError: The pattern is malformed, no grammar expresses it, or it matches nothing.
    """
    rules = Rules(root)
    try:
        with errors_located("", too_deep="the pattern is nested too deeply, or has too many anchors and choices"):
            expr = language_expr(rules, parse_full(pattern), PlainEncoding(), "text")
            if not rules.is_satisfiable(expr):
                raise PatternError(f"the pattern {pattern!r} matches nothing")
            return rules.render(expr)
    except PatternError:
        raise
    except GrammarError as error:
        raise PatternError(error.message) from error


def choice_to_grammar(choices: Sequence[str], *, root: str = "root") -> str:
    """The grammar of exactly these texts.

    Raises:
        GrammarError: There are no choices, or one is empty or has a NUL, or too many are prefixes of others.
    """
    if not choices or not all(choices) or any("\0" in choice for choice in choices):
        raise GrammarError("", "choices must be one or more strings that are not empty and have no NUL")
    with errors_located("", too_deep="too many of the choices begin with another one"):
        return Rules(root).render(left_factored(*map(Literal, choices)))
