"""Tool calls: a grammar for one call or several, each with arguments by the schema of its tool.

How calls are written differs from model to model: `CallLayout` has the texts around the parts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional

from .rules import Expr, Literal, Rules, factored, seq
from .schema import schema_rule


@dataclass(frozen=True)
class ToolSchema:
    """A tool's name, and the schema of its arguments (None: it takes none), or the rule that was made of it."""

    name: str
    parameters: Any = None
    rule: Optional[Expr] = None


@dataclass(frozen=True)
class CallLayout:
    """The texts around calls: `begin`, then calls with `separator` between them, then `end`.

    A call is `before_name`, the name, `before_arguments`, the arguments as JSON, `after_call`.
    `json_name` writes the name as the inside of a JSON string. `indent` allows arguments on several lines.
    """

    begin: str = ""
    before_name: str = '{"name": "'
    before_arguments: str = '", "arguments": '
    after_call: str = "}"
    separator: str = "\n"
    end: str = ""
    json_name: bool = True
    indent: Optional[int] = None

    def head(self, name: str) -> str:
        """How a call of the tool of that name begins, up to its arguments."""
        inside = json.dumps(name, ensure_ascii=False)[1:-1] if self.json_name else name
        return self.before_name + inside + self.before_arguments


def calls_to_grammar(
    tools: Sequence[ToolSchema],
    layout: CallLayout = CallLayout(),
    *,
    max_calls: Optional[int] = None,
    root: str = "root",
) -> str:
    """The grammar of one call or more, `max_calls` at most. Raises SchemaError, its path led by the tool's name."""
    rules = Rules(root)
    return rules.render(calls_rule(rules, tools, layout, max_calls=max_calls))


def calls_rule(
    rules: Rules, tools: Sequence[ToolSchema], layout: CallLayout, *, max_calls: Optional[int] = None
) -> Expr:
    """One call or more as part of a larger grammar."""
    if not tools or max_calls == 0:
        raise ValueError("calls need at least one tool, and max_calls of at least 1")
    call = rules.add("call", factored(*(call_rule(rules, tool, layout) for tool in tools)))
    more = rules.repeat(seq(Literal(layout.separator), call), 0, None if max_calls is None else max_calls - 1)
    return seq(Literal(layout.begin), call, more, Literal(layout.end))


def call_rule(rules: Rules, tool: ToolSchema, layout: CallLayout) -> Expr:
    """One call of one tool, without what stands around all calls."""
    return seq(
        Literal(layout.head(tool.name)), arguments_rule(rules, tool, indent=layout.indent), Literal(layout.after_call)
    )


def arguments_rule(rules: Rules, tool: ToolSchema, *, indent: Optional[int] = None) -> Expr:
    """The arguments of one tool as a JSON object. Raises SchemaError."""
    if tool.rule is not None:
        return tool.rule
    schema = {"type": "object", "properties": {}} if tool.parameters is None else tool.parameters
    return schema_rule(rules, schema, path=f"{tool.name}#", indent=indent)
