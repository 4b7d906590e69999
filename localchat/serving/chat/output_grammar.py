"""The grammar of an output: reasoning if the model reasons, then tool calls, a response format or free text.

A response format and required tool calls constrain the output from its first token. Otherwise text and reasoning are
unconstrained up to the marker of a tool call (a lazy grammar); such a marker also ends reasoning. Tool calls have the
layout of the model family. If its tags cannot represent every value that the schema of a tool allows, the arguments
are one JSON object instead, which the parser accepts too.
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..core.errors import BadRequest
from ..core.response_format import ResponseFormat
from ..engine import Constraint
from ..grammar import (
    NEVER,
    Expr,
    Literal,
    Rules,
    SchemaError,
    ToolSchema,
    alt,
    arguments_rule,
    call_rule,
    calls_rule,
    check_grammar,
    choice_to_grammar,
    convert_loosely,
    free_text,
    json_object_grammar,
    regex_to_grammar,
    schema_to_grammar,
    seq,
)
from .dialects import Dialect
from .dialects.call_layout import CallLayout
from .dialects.reasoning import ReasoningStart
from .dialects.values import parameter_types

log = logging.getLogger("localchat.server")

# The number of logged constraints that are stored, so that each is logged once.
MAX_REPORTED = 1000
MAX_LOGGED_CHARS = 300

# The prefix of all rule names of this module. It is reserved, since these rules may be joined with a request's grammar.
_PREFIX = "localchat-"
_FORMAT_ROOT = "root"


@dataclass(frozen=True)
class GrammarKey:
    """The parts of a request that determine its grammar. Used as the key of the cache."""

    dialect: Dialect
    reasoning: ReasoningStart
    has_prefill: bool
    """Whether the request has an assistant prefill of text."""
    tools: tuple[tuple[int, str], ...]
    """The tools that may be called: the index of each in the request, and its function as JSON."""
    must_call: bool
    max_calls: int | None
    """The largest number of calls in one output; None: no limit."""
    response_format: tuple[str, str, str] | None
    """The kind, the value as JSON and the path of the field; None: no response format."""


def format_grammar(response_format: ResponseFormat) -> str:
    """The GBNF grammar of a response format.

    Raises:
        BadRequest: A grammar cannot enforce the format; `param` is the path of the field.
    """
    try:
        return _CONVERTERS[response_format.kind](response_format.value)
    except SchemaError as error:
        raise BadRequest(
            f"'{response_format.param}' cannot be enforced at {error}", response_format.param + error.path
        ) from error
    except ValueError as error:
        raise BadRequest(f"'{response_format.param}' cannot be enforced: {error}", response_format.param) from error


def _checked_gbnf(grammar: str) -> str:
    check_grammar(grammar)
    if _PREFIX in grammar:
        raise ValueError(f"rule names that begin with {_PREFIX} are reserved")
    return grammar


_CONVERTERS: Mapping[str, Callable[[Any], str]] = {
    "json_object": lambda value: json_object_grammar(),
    "json_schema": schema_to_grammar,
    "grammar": _checked_gbnf,
    "regex": regex_to_grammar,
    "choice": choice_to_grammar,
}


@dataclass(frozen=True)
class _Output:
    """The expressions of the text or the calls of an output, one for each position at which they can begin."""

    first: Expr
    """At the first token, in an output without reasoning."""
    after_reasoning: Expr
    """After the end tag of reasoning."""
    after_text_marker: Expr = NEVER
    """After a marker that opens text and ends reasoning."""


class OutputGrammar:
    """Makes the grammar of one request. Raises BadRequest or GrammarError."""

    def __init__(self, key: GrammarKey) -> None:
        self._key = key
        self._dialect = key.dialect
        self._rules = Rules(_PREFIX + "root", prefix=_PREFIX)
        self._tools = [self._tool(index, json.loads(function)) for index, function in key.tools]

    def constraint(self) -> Constraint:
        """The grammar and, for a lazy grammar, the triggers after which it takes effect."""
        response_format = None
        if self._key.response_format is not None:
            kind, value, field = self._key.response_format
            response_format = ResponseFormat(kind, json.loads(value), field)
        if self._key.must_call:
            if response_format is not None:
                # The output has only calls, so the format has no effect. It is still checked.
                format_grammar(response_format)
            return self._required()
        return self._auto() if response_format is None else self._formatted(response_format)

    def _required(self) -> Constraint:
        """Only tool calls, after the assistant prefill if there is one."""
        calls = self._main_calls()
        if self._key.has_prefill:
            calls = replace(calls, first=seq(Literal(self._dialect.text_end), calls.first))
        return self._after_reasoning(calls)

    def _formatted(self, response_format: ResponseFormat) -> Constraint:
        """Text of a response format or, if there are tools, tool calls."""
        grammar = format_grammar(response_format)
        starts = ("", "") if self._key.has_prefill else self._dialect.text_start
        if self._key.reasoning is ReasoningStart.CLOSED and not self._tools and not starts[0]:
            return Constraint(grammar, origin=response_format.param)
        text = self._rules.external(_FORMAT_ROOT)
        first, after = (seq(Literal(start), text) for start in starts)
        # After an assistant prefill, the output continues the text of the prefill and cannot begin with a call.
        if self._tools and not self._key.has_prefill:
            calls = self._main_calls()
            first, after = alt(first, calls.first), alt(after, calls.after_reasoning)
        constraint = self._after_reasoning(_Output(first, after, text))
        return replace(constraint, grammar=constraint.grammar + grammar)

    def _auto(self) -> Constraint:
        """Free text, and the grammar of calls after the marker of a call."""
        layouts = [layout for layout in self._dialect.layouts if layout.is_native]
        if self._dialect.part_mark:
            return self._parts(layouts)
        triggers: list[str] = []
        for layout in layouts:
            if layout.opener:
                triggers.append(layout.opener)
            else:
                triggers += [layout.begin + layout.head(tool.name) for tool in self._tools]
        return self._rendered(alt(*map(self._calls, layouts)), tuple(dict.fromkeys(triggers)))

    def _parts(self, layouts: Sequence[CallLayout]) -> Constraint:
        """The grammar of an output in parts with headers, in which the first token shows whether a part is a call."""
        mark = Literal(self._dialect.part_mark)
        part = self._rules.declare("part")
        text = free_text(self._rules, {self._dialect.part_mark: part}, may_end=True)
        opened_text = seq(Literal(self._dialect.text_start[0]), text)
        self._rules.define(part, alt(*map(self._calls, layouts), opened_text))
        return self._rendered(text if self._key.has_prefill else alt(part, seq(mark, part)))

    def _after_reasoning(self, output: _Output) -> Constraint:
        """Reasoning, if the model reasons, then the output."""
        if self._key.reasoning is ReasoningStart.CLOSED:
            return self._rendered(output.first)
        dialect = self._dialect
        # The marker of a call also ends reasoning. Other end markers are forbidden: unconstrained text would follow.
        ends: dict[str, Expr] = {end: NEVER for end in dialect.reasoning_ends if end not in dialect.openers}
        for layout in dialect.layouts if self._tools else ():
            if layout.opener in dialect.reasoning_ends:
                ends[layout.opener] = alt(ends.get(layout.opener, NEVER), self._calls(layout, is_opened=True))
        if dialect.text_start[0] in dialect.section_markers:
            ends[dialect.text_start[0]] = output.after_text_marker
        ends[dialect.reasoning.end] = output.after_reasoning
        reasoning = free_text(self._rules, ends, may_end=False)
        if self._key.reasoning is ReasoningStart.OPEN:
            return self._rendered(reasoning)
        no_reasoning = seq(Literal(dialect.no_reasoning), output.first) if dialect.no_reasoning else NEVER
        return self._rendered(alt(output.first, no_reasoning, seq(Literal(dialect.reasoning.start), reasoning)))

    def _main_calls(self) -> _Output:
        """Tool calls in the first layout of the model family."""
        layout = self._dialect.layouts[0]
        calls = self._calls(layout)
        return _Output(calls, seq(Literal(layout.after_reasoning), calls))

    def _calls(self, layout: CallLayout, *, is_opened: bool = False) -> Expr:
        return calls_rule(self._rules, self._tools, layout, max_calls=self._key.max_calls, is_opened=is_opened)

    def _rendered(self, root: Expr, triggers: tuple[str, ...] = ()) -> Constraint:
        origin = self._key.response_format[2] if self._key.response_format else "tools"
        return Constraint(self._rules.render(root), triggers, _PREFIX + "root", origin)

    def _tool(self, index: int, function: Mapping[str, Any]) -> ToolSchema:
        """A tool with the rule of its arguments; if `strict` is false, the rule allows any object."""
        parameters = {"type": "object"} if function.get("strict") is False else function.get("parameters")
        schema = parameters or {}
        tool = ToolSchema(
            function["name"],
            parameters,
            parsed_types=lambda *path: parameter_types(schema, *path),
            path=f"tools[{index}].function.parameters",
        )
        if not self._key.must_call and function.get("strict") is not True and parameters is not None:
            return self._loosened(tool)
        try:
            return replace(tool, rule=arguments_rule(self._rules, tool))
        except SchemaError as error:
            raise BadRequest(
                f"'{error.path}' cannot be enforced: {error.message}; with \"strict\": false the arguments of "
                f'"{tool.name}" may be any object',
                error.path,
            ) from error

    def _loosened(self, tool: ToolSchema) -> ToolSchema:
        """The tool with its schema reduced to constraints that a grammar can enforce in all layouts of the family."""

        def convert(parameters: object) -> ToolSchema:
            loose = replace(tool, parameters=parameters)
            loose = replace(loose, rule=arguments_rule(self._rules, loose))
            for layout in self._dialect.layouts:
                call_rule(self._rules, loose, layout)
            return loose

        found, errors = convert_loosely(tool.parameters, convert, tool.error_path)
        for error in errors:
            _report(tool.name, error.path.removeprefix(tool.path), error.message)
        return found


@functools.lru_cache(MAX_REPORTED)
def _report(name: str, path: str, reason: str) -> None:
    """Log once that a constraint of a tool is not enforced: agents send the same tools with every request."""
    log.warning('%s of the tool "%s" is not enforced: %s', ascii(path), name, ascii(reason[:MAX_LOGGED_CHARS])[1:-1])
