"""The front door: JSON Schemas, regular expressions and choices to grammars for llama.cpp's engine.

What cannot be honoured exactly raises, with its place: never does a grammar allow more than it should.
It may allow less where JSON leaves a choice: names come in the order of the schema (but up to five
arguments of a call come in any), numbers and spaces are bounded, and names that the schema does not
mention are only generated if it says they may be.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from .convert import Converter
from .document import Document
from .errors import PatternError, SchemaError
from .json_text import PlainEncoding, Spacing
from .language import language_rules
from .notations import NOTATIONS
from .regex import parse_full
from .rules import Expr, Literal, Rules, factored
from .shapes import Shapes


def schema_to_grammar(schema: object, *, root: str = "root", indent: int | None = None) -> str:
    """The grammar of the JSON documents that fit a schema.

    With `indent` documents may also be broken into lines, indented by up to that many spaces.
    Raises SchemaError with the place of what cannot be honoured.
    """
    rules = Rules(root)
    return rules.render(schema_rule(rules, schema, indent=indent))


def schema_rule(
    rules: Rules,
    schema: object,
    *,
    at: str = "#",
    path: str = "#",
    indent: int | None = None,
    notation: str = "json",
    any_order: bool = False,
) -> Expr:
    """The documents that fit a schema, or the schema at a JSON pointer in it, as part of a larger grammar.

    `path` is how the schema itself is called in errors, `notation` one of notations.py. With `any_order` the names
    of an object may come in any order, as far as there are not too many. Raises SchemaError.
    """
    try:
        document = Document(_checked(schema, path), path)
        text = NOTATIONS[notation](rules, Spacing(indent))
        expr = Converter(Shapes(document), text, any_order=any_order).value((document.at(at),))
        possible = rules.is_possible(expr)
    except RecursionError:
        raise SchemaError(path, "is nested too deeply") from None
    if not possible:
        raise SchemaError(path, "no value can fit this schema")
    return expr


def _checked(schema: object, path: str) -> object:
    """The same schema, of which it is certain then that it is JSON."""
    try:
        json.dumps(schema, allow_nan=False)
    except (ValueError, TypeError) as error:
        raise SchemaError(path, f"is no JSON: {error}") from error
    return schema


def json_object_grammar(*, root: str = "root", indent: int | None = None) -> str:
    """The grammar of every JSON object."""
    return schema_to_grammar({"type": "object"}, root=root, indent=indent)


def regex_to_grammar(pattern: str, *, root: str = "root") -> str:
    """The grammar of the texts that a regular expression matches as a whole. Raises PatternError."""
    rules = Rules(root)
    try:
        expr = language_rules(rules, parse_full(pattern), PlainEncoding(), "text")
        if not rules.is_possible(expr):
            raise PatternError(f"the pattern {pattern!r} matches nothing")
        return rules.render(expr)
    except RecursionError:
        raise PatternError("the pattern is nested too deeply, or has too many anchors and choices") from None


def choice_to_grammar(choices: Sequence[str], *, root: str = "root") -> str:
    """The grammar of exactly these texts. Raises ValueError if there are none, or one is empty or has a NUL."""
    if not choices or not all(choices) or any("\0" in choice for choice in choices):
        raise ValueError("choices must be texts that are not empty and have no NUL, and at least one")
    try:
        return Rules(root).render(factored(*map(Literal, choices)))
    except RecursionError:
        raise ValueError("too many of the choices begin with another one") from None
