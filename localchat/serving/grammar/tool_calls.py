"""Grammar rules for one or more tool calls, each with arguments that match the schema of its tool.

The format of calls differs from model to model: a CallLayout contains the texts around their parts.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..chat.dialects.call_layout import ALL_TYPES, CallLayout
from .errors import errors_located
from .expressions import EMPTY, Expr, left_factored, seq
from .gbnf import Rules
from .json_schema import schema_rule
from .layout_text import layout_text
from .tool_arguments import ParsedTypes, arguments_expr


@dataclass(frozen=True)
class ToolSchema:
    """A tool that may be called."""

    name: str
    parameters: Any = None
    """The schema of the arguments; None if the tool takes none."""
    rule: Expr | None = None
    """The result of `arguments_rule` for this tool; None: it is made when it is needed."""
    parsed_types: ParsedTypes = lambda *path: ALL_TYPES
    """Returns the types that the parser may give a value in bare text, at a path within the arguments."""
    path: str = ""
    """The path of the parameters in the request, for errors; "" for the name of the tool."""

    @property
    def schema(self) -> Any:
        return {"type": "object", "properties": {}} if self.parameters is None else self.parameters

    @property
    def identity(self) -> Hashable:
        """Equal for equal tools."""
        return self.path, self.name, json.dumps(self.schema, default=repr)

    @property
    def error_path(self) -> str:
        return f"{self.path or self.name}#"


def calls_rule(
    rules: Rules,
    tools: Sequence[ToolSchema],
    layout: CallLayout,
    *,
    max_calls: int | None = None,
    is_opened: bool = False,
) -> Expr:
    """One to `max_calls` calls (None: no limit).

    With `is_opened` the opener of the layout has been generated, so it is left out.

    Raises:
        SchemaError: No grammar enforces the schema of a tool. Its path begins with the path of the tool.
    """
    if not tools or max_calls == 0:
        raise ValueError("calls need at least one tool, and max_calls of at least 1")
    first, others = layout, layout.more or layout
    if is_opened and layout.begin:
        first = replace(layout, begin=layout.begin.removeprefix(layout.opener))
    elif is_opened:
        first = replace(layout, before_name=layout.before_name.removeprefix(layout.opener))
    with errors_located(tools[0].error_path):
        more, end = EMPTY, layout_text(rules, layout.end)
        if max_calls != 1:
            call = seq(layout_text(rules, others.separator), _call_of_any(rules, tools, others))
            more = rules.repeat(call, 0, None if max_calls is None else max_calls - 1)
        # If later calls have a layout of their own, `end` belongs to the first call.
        more = seq(more, end) if others is layout else seq(end, more)
        return seq(layout_text(rules, first.begin), _call_of_any(rules, tools, first), more)


def _call_of_any(rules: Rules, tools: Sequence[ToolSchema], layout: CallLayout) -> Expr:
    return rules.add("call", left_factored(*(call_rule(rules, tool, layout) for tool in tools)))


def call_rule(rules: Rules, tool: ToolSchema, layout: CallLayout) -> Expr:
    """One call of one tool, without the texts around all calls. Raises SchemaError."""
    with errors_located(tool.error_path):
        # Shared by the layouts of calls of a family, which mostly have the same layout of arguments.
        key = ("arguments", tool.identity, layout.arguments, layout.indent, layout.notation, layout.end_marker)
        arguments = rules.once(key, lambda: _arguments(rules, tool, layout))
        return seq(layout_text(rules, layout.head(tool.name)), arguments, layout_text(rules, layout.after_call))


def _arguments(rules: Rules, tool: ToolSchema, layout: CallLayout) -> Expr:
    found = None
    if layout.arguments is not None:
        found = arguments_expr(
            rules,
            tool.schema,
            layout.arguments,
            tool.parsed_types,
            notation=layout.notation,
            end_marker=layout.end_marker,
            path=tool.error_path,
        )
    return _object_rule(rules, tool, layout.indent, layout.notation, layout.end_marker) if found is None else found


def arguments_rule(rules: Rules, tool: ToolSchema) -> Expr:
    """The arguments of one tool as a JSON object, in any order up to `MAX_ANY_ORDER`. Raises SchemaError."""
    return _object_rule(rules, tool, None, "json", "")


def _object_rule(rules: Rules, tool: ToolSchema, indent: int | None, notation: str, end_marker: str) -> Expr:
    if tool.rule is not None and indent is None and notation == "json":
        return tool.rule
    return schema_rule(
        rules,
        tool.schema,
        path=tool.error_path,
        indent=indent,
        notation=notation,
        end_marker=end_marker,
        any_order=True,
    )
