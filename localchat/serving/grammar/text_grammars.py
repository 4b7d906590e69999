"""Grammars of plain text: a regular expression, or one of several choices."""

from __future__ import annotations

from collections.abc import Sequence

from .errors import GrammarError, PatternError, errors_located
from .expressions import Literal, left_factored
from .gbnf import Rules
from .regex import parse_full
from .regular_languages import PlainEncoding, language_expr


def regex_to_grammar(pattern: str) -> str:
    """The grammar of the texts that a regular expression matches as a whole.

    Raises:
        PatternError: The pattern is malformed, no grammar expresses it, or it matches no text.
    """
    too_deep = "the pattern is nested too deeply, or has too many anchors and alternatives: make it simpler"
    rules = Rules()
    try:
        with errors_located("", too_deep=too_deep):
            expr = language_expr(rules, parse_full(pattern), PlainEncoding(), "text")
            if not rules.is_satisfiable(expr):
                raise PatternError(f"the pattern {pattern!r} matches no text: check its anchors and character classes")
            return rules.render(expr)
    except PatternError:
        raise
    except GrammarError as error:
        raise PatternError(error.message) from error


def choice_to_grammar(choices: Sequence[str]) -> str:
    """The grammar of exactly these texts.

    Raises:
        GrammarError: There are no choices, or one is empty or has a NUL, or too many begin with another one.
    """
    if not choices or not all(choices) or any("\0" in choice for choice in choices):
        raise GrammarError("", "choices must be one or more strings, each of which is not empty and has no NUL")
    with errors_located("", too_deep="too many of the choices begin with another one: use fewer"):
        return Rules().render(left_factored(*map(Literal, choices)))
