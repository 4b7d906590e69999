"""Grammars for structured output: JSON Schema, regular expressions, choices and tool calls to GBNF.

Pure and of the standard library alone. `*_to_grammar` give the text for llama.cpp's grammar engine;
`*_rule` give parts for grammars that are composed with `Rules`; `check_grammar` guards against grammars
of others that would harm the process.
"""

from .calls import ToolSchema, arguments_rule, call_rule, calls_rule
from .check import GrammarError, check_grammar, has_token_rules
from .errors import PatternError, SchemaError
from .free_text import free_text
from .repeats import long_repeats_written_out
from .rules import EMPTY, NEVER, Expr, Literal, Ref, Rules, alt, chars, seq
from .schema import choice_to_grammar, json_object_grammar, regex_to_grammar, schema_rule, schema_to_grammar
from .texts import written

__all__ = [
    "schema_to_grammar",
    "json_object_grammar",
    "regex_to_grammar",
    "choice_to_grammar",
    "check_grammar",
    "has_token_rules",
    "long_repeats_written_out",
    "ToolSchema",
    "SchemaError",
    "PatternError",
    "GrammarError",
    "free_text",
    "written",
    "Rules",
    "EMPTY",
    "NEVER",
    "Expr",
    "Literal",
    "Ref",
    "alt",
    "chars",
    "seq",
    "schema_rule",
    "arguments_rule",
    "call_rule",
    "calls_rule",
]
