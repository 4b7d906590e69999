"""Grammars for structured output: JSON Schemas, regular expressions, choices and tool calls as GBNF of llama.cpp.

Needs only the standard library. The functions `*_to_grammar` return the text of a grammar. The functions `*_rule`
return parts of a grammar that is composed with `Rules`. `check_grammar` refuses a grammar of a request that could not
be matched in finite time. Input is refused with a GrammarError, which has a path and a message.

From the schema to the text:
    schema_nodes       a schema document: nodes with paths, keywords, references
    intersection       several nodes at once -> branches; anyOf, oneOf (disjoint), allOf, not; merged_keywords
    schema_rules       branches -> expressions, with object_rules, array_rules, integer_rules, decimal_rules
                       (intervals), string_formats, regex
    regular_languages  patterns with intersection and complement -> automata -> expressions; excluded_markers
    json_notation      how values are written, in JSON or in a family's own way (call_notations)
    expressions, gbnf  expressions, and named rules -> text
    loosening          a schema without the constraints that no grammar enforces
Tool calls: tool_calls, tool_arguments, layout_text, any_order, free_text. Grammars from requests: check.
From the text to the bytes that may come next: gbnf_parser, byte_automaton, utf8. Bounds of work: budget.
"""

from .budget import Budget, TooMuchWork, limited_to
from .byte_automaton import ByteAutomaton, State
from .check import check_grammar
from .errors import GrammarError, Interrupted, PatternError, SchemaError
from .expressions import EMPTY, NEVER, Expr, Literal, alt, chars, seq
from .free_text import free_text
from .gbnf import Rules
from .json_schema import json_object_grammar, schema_rule, schema_to_grammar
from .loosening import convert_loosely
from .text_grammars import choice_to_grammar, regex_to_grammar
from .tool_calls import ToolSchema, arguments_rule, call_rule, calls_rule

__all__ = [
    "schema_to_grammar",
    "json_object_grammar",
    "regex_to_grammar",
    "choice_to_grammar",
    "check_grammar",
    "convert_loosely",
    "Budget",
    "TooMuchWork",
    "Interrupted",
    "limited_to",
    "ByteAutomaton",
    "State",
    "ToolSchema",
    "GrammarError",
    "SchemaError",
    "PatternError",
    "free_text",
    "Rules",
    "EMPTY",
    "NEVER",
    "Expr",
    "Literal",
    "alt",
    "chars",
    "seq",
    "schema_rule",
    "arguments_rule",
    "call_rule",
    "calls_rule",
]
