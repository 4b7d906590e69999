"""Tool calls: a grammar for one call or several, each with arguments by the schema of its tool.

How calls are written differs from model to model: a CallLayout has the texts around the parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..dialects.call_layout import ALL_TYPES, CallLayout
from .arguments import ReadTypes, arguments_expr
from .rules import Expr, Rules, factored, seq
from .schema import schema_rule
from .texts import written


@dataclass(frozen=True)
class ToolSchema:
    """A tool's name, and the schema of its arguments (None: it takes none), with the rule that was made of it if any.

    `read_types` are the types as which an argument is read where it is written as bare text.
    """

    name: str
    parameters: Any = None
    rule: Expr | None = None
    read_types: ReadTypes = lambda *path: ALL_TYPES

    @property
    def schema(self) -> Any:
        return {"type": "object", "properties": {}} if self.parameters is None else self.parameters


def calls_rule(rules: Rules, tools: Sequence[ToolSchema], layout: CallLayout, *, max_calls: int | None = None) -> Expr:
    """One call or more, `max_calls` at most. Raises SchemaError, its path led by the tool's name."""
    if not tools or max_calls == 0:
        raise ValueError("calls need at least one tool, and max_calls of at least 1")
    call = rules.add("call", factored(*(call_rule(rules, tool, layout) for tool in tools)))
    begin, separator, end = (written(rules, text) for text in (layout.begin, layout.separator, layout.end))
    more = rules.repeat(seq(separator, call), 0, None if max_calls is None else max_calls - 1)
    return seq(begin, call, more, end)


def call_rule(rules: Rules, tool: ToolSchema, layout: CallLayout) -> Expr:
    """One call of one tool, without what stands around all calls."""
    arguments = None
    if layout.arguments is not None:
        arguments = arguments_expr(rules, tool.schema, layout.arguments, tool.read_types, f"{tool.name}#")
    if arguments is None:
        arguments = arguments_rule(rules, tool, indent=layout.indent, notation=layout.notation)
    return seq(written(rules, layout.head(tool.name)), arguments, written(rules, layout.after_call))


def arguments_rule(rules: Rules, tool: ToolSchema, *, indent: int | None = None, notation: str = "json") -> Expr:
    """The arguments of one tool as an object, in the order in which the model thinks of them. Raises SchemaError."""
    if tool.rule is not None and indent is None and notation == "json":
        return tool.rule
    path = f"{tool.name}#"
    return schema_rule(rules, tool.schema, path=path, indent=indent, notation=notation, any_order=True)
