"""Converts JSON Schemas to grammars for llama.cpp. Every text that a grammar allows matches the schema.

A keyword that no grammar enforces exactly raises SchemaError with its path. A grammar may allow less than the schema:
- Properties come in the order of the schema. Up to `MAX_ANY_ORDER` arguments of a tool call come in any order.
- The digits of numbers and the spaces between tokens are limited.
- If a schema lists properties, other names are generated only with additionalProperties.
"""

from __future__ import annotations

from .call_notations import notation_of
from .errors import SchemaError, errors_located
from .expressions import Expr
from .gbnf import Rules
from .schema_nodes import SchemaDocument
from .schema_rules import SchemaConverter


def schema_to_grammar(schema: object, *, indent: int | None = None) -> str:
    """The grammar of the JSON documents that match a schema.

    With `indent` documents may also be broken into lines, indented by up to that many spaces.

    Raises:
        SchemaError: The schema is malformed, or no grammar enforces it.
    """
    rules = Rules()
    return rules.render(schema_rule(rules, schema, indent=indent))


def json_object_grammar() -> str:
    """The grammar of every JSON object."""
    return schema_to_grammar({"type": "object"})


def schema_rule(
    rules: Rules,
    schema: object,
    *,
    path: str = "#",
    indent: int | None = None,
    notation: str = "json",
    end_marker: str = "",
    any_order: bool = False,
) -> Expr:
    """An expression for the values that match a schema, as part of a larger grammar.

    Args:
        path: The path of the schema: the paths in errors begin with it.
        indent: Documents may be broken into lines, indented by up to this many spaces. None: they are on one line.
        notation: The notation of values: a key of call_notations.NOTATIONS.
        end_marker: A text that no string may contain; "": there is none. The notation "json" ignores it.
        any_order: Allow up to MAX_ANY_ORDER properties of an object in any order.

    Raises:
        SchemaError: The schema is malformed, no grammar enforces it, or no value matches it.
    """
    with errors_located(path):
        document = SchemaDocument(schema, path)
        values = notation_of(rules, notation, indent, end_marker)
        expr = SchemaConverter(document, values, any_order=any_order).value((document.root,))
        if not rules.is_satisfiable(expr):
            raise SchemaError(path, "no value matches this schema: remove a constraint that contradicts the others")
    return expr
