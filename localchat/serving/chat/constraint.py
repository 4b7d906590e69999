"""Makes the constraint of a request: one grammar of llguidance for its reasoning, tool calls and response format.

A response format and required tool calls constrain the output from its first token. Otherwise text and reasoning are
free up to the marker of a tool call, which also ends reasoning. Tool calls have the layout of the model family. If its
tags cannot represent every value that the schema of a tool allows, the arguments are one JSON object instead, which the
parser accepts too.

llguidance splits a text into lexemes, as long as possible ones. A free text and the marker that ends it are therefore
one lexeme.
"""

from __future__ import annotations

import functools
import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..api.chat import ChatRequest
from ..api.completions import CompletionRequest
from ..core.errors import BadRequest, NotSupported
from ..core.params import GenerationParams
from ..core.response_format import ResponseFormat
from ..engine import Constraint
from .argument_rules import argument_rule
from .dialects import Dialect
from .dialects.call_layout import THE_NAME, CallLayout
from .dialects.reasoning import ReasoningStart
from .lark import Rules, gbnf_rule, layout_regex, regex_literal, seq
from .prompt.template import ChatTemplate
from .schema_rules import error_in, error_place, json_rule, loosened, normalized

log = logging.getLogger("localchat.server")

# The number of cached constraints: agents send the same tools with every request.
MAX_CACHED = 64
_MISSING = "this server cannot constrain outputs, since the package llguidance is missing: pip install llguidance"


def constraint_for(request: ChatRequest, template: ChatTemplate, prompt: str) -> Constraint | None:
    """The constraint of a chat request with this prompt for the parser; None if the output is unconstrained.

    Raises:
        BadRequest: The constraint cannot be enforced; `param` is the path of the field.
    """
    tools, response_format = request.callable_tools, request.response_format
    if not tools and response_format is None:
        return None
    if response_format is not None:
        _check_prefill(request, response_format)
    _check_sampling(request.params)
    _check_names(request)
    return _constraint(
        _Key(
            dialect=template.dialect,
            reasoning=reasoning_start(request, template, prompt),
            has_prefill=bool(request.prefill[1]),
            tools=tuple((request.tools.index(tool), json.dumps(tool["function"])) for tool in tools),
            must_call=request.tool_choice == "required",
            max_calls=None if request.parallel_tool_calls else 1,
            response_format=_frozen(response_format),
        )
    )


def plain_constraint(request: CompletionRequest) -> Constraint | None:
    """The constraint of a text completion; None if the output is unconstrained.

    Raises:
        BadRequest: The constraint cannot be enforced; `param` is the path of the field.
    """
    if request.response_format is None:
        return None
    _check_sampling(request.params)
    return _constraint(_Key(Dialect(""), response_format=_frozen(request.response_format)))


def reasoning_start(request: ChatRequest, template: ChatTemplate, prompt: str) -> ReasoningStart:
    """Whether reasoning is open, possible or closed before the first token, given the prompt and the request."""
    start = template.dialect.reasoning_start(prompt)
    is_named = template.dialect.reasoning.start in template.source
    is_off = request.template_vars.get("enable_thinking") is False or not is_named
    if start is ReasoningStart.POSSIBLE and (is_off or request.prefill[1]):
        return ReasoningStart.CLOSED
    return start


@dataclass(frozen=True)
class _Key:
    """The parts of a request that determine its constraint. Used as the key of the cache."""

    dialect: Dialect
    reasoning: ReasoningStart = ReasoningStart.CLOSED
    has_prefill: bool = False
    """Whether the request has an assistant prefill of text."""
    tools: tuple[tuple[int, str], ...] = ()
    """The tools that may be called: the index of each in the request, and its function as JSON."""
    must_call: bool = False
    max_calls: int | None = None
    """The largest number of calls in one output; None: no limit."""
    response_format: tuple[str, str, str] | None = None
    """The kind, the value as JSON and the path of the field; None: no response format."""


def _frozen(response_format: ResponseFormat | None) -> tuple[str, str, str] | None:
    if response_format is None:
        return None
    return response_format.kind, json.dumps(response_format.value), response_format.param


@functools.lru_cache(MAX_CACHED)
def _constraint(key: _Key) -> Constraint:
    field = key.response_format[2] if key.response_format else "tools"
    try:
        constraint = _Grammar(key).constraint(field)
        reason = error_in(constraint.grammar)
    except ImportError as error:
        raise NotSupported(_MISSING, field) from error
    except RecursionError as error:
        raise BadRequest(f"'{field}' cannot be enforced: it is nested too deeply", field) from error
    if reason:
        raise BadRequest(f"'{field}' cannot be enforced: {reason}", field)
    return constraint


@dataclass(frozen=True)
class _Tool:
    name: str
    parameters: Any
    """The schema of the arguments, of an object."""


class _Grammar:
    """Makes the grammar of one request. Raises BadRequest."""

    def __init__(self, key: _Key) -> None:
        self._key = key
        self._dialect = key.dialect
        self._rules = Rules()
        self._tools = [self._tool(index, json.loads(function)) for index, function in key.tools]

    def constraint(self, field: str) -> Constraint:
        text = None
        if self._key.response_format is not None:
            kind, value, param = self._key.response_format
            # With required calls the output has only calls, so the format has no effect. It is still checked.
            text = self._format(kind, json.loads(value), param)
        start = self._required() if self._key.must_call else self._auto() if text is None else self._formatted(text)
        return Constraint(self._rules.render(start), field)

    # --- the text of a response format ---

    def _format(self, kind: str, value: Any, param: str) -> str:
        if kind in ("json_object", "json_schema"):
            schema = {"type": "object"} if kind == "json_object" else normalized(value)
            self._check_schema(schema, param, param + "#")
            return self._rules.rule(json_rule(schema))
        if kind == "choice":
            texts = ["".join(map(regex_literal, choice)) for choice in value]
            if any("\0" in choice for choice in value):
                raise BadRequest(f"'{param}' cannot be enforced: a choice has a NUL", param)
            return self._rules.regex("|".join(texts))
        if kind == "regex":
            body = f"(?:{_without_anchors(value)})"
            reason = error_in(f"start: {_slashed(body)}")
            if reason:
                raise BadRequest(f"'{param}' cannot be enforced: the regular expression has an error: {reason}", param)
            return self._rules.terminal(_slashed(body))
        try:
            return self._rules.rule(gbnf_rule(value))
        except ValueError as error:
            raise BadRequest(f"'{param}' cannot be enforced: {error}", param) from error

    def _formatted(self, text: str) -> str:
        """Text of a response format or, if there are tools, tool calls."""
        starts = ("", "") if self._key.has_prefill else self._dialect.text_start
        first, after = (seq(self._literal(start), text) for start in starts)
        # After an assistant prefill, the output continues the text of the prefill and cannot begin with a call.
        if self._tools and not self._key.has_prefill:
            layout = self._dialect.calls[0]
            first = f"({first} | {self._calls(layout)})"
            after = f"({after} | {self._calls(layout, before=self._dialect.calls_start)})"
        return self._after_reasoning(first, after, text)

    # --- calls ---

    def _required(self) -> str:
        """Only tool calls, after the assistant prefill if there is one."""
        layout = self._dialect.calls[0]
        first = self._calls(layout, before=self._dialect.text_end if self._key.has_prefill else "")
        return self._after_reasoning(first, self._calls(layout, before=self._dialect.calls_start), None)

    def _auto(self) -> str:
        """Free text, and calls after the marker of a call."""
        dialect = self._dialect
        if dialect.part_mark:
            return self._parts(dialect.calls)
        # A header with the name belongs to the text: it comes before the opener of another layout.
        layouts = [layout for layout in dialect.calls if THE_NAME not in layout.begin]
        heads = [
            layout.head_of(tool.name, layout.begin) for layout in layouts if not layout.opener for tool in self._tools
        ]
        markers = [*map(regex_literal, dialect.openers), *map(layout_regex, heads)]
        text = self._rules.free_text(markers)
        options = [text, *(self._calls(layout, after_text=text) for layout in layouts)]
        return " | ".join(options)

    def _parts(self, layouts: Sequence[CallLayout]) -> str:
        """An output in parts with headers. The first token shows whether a part is a call."""
        mark, opener = map(regex_literal, (self._dialect.part_mark, self._dialect.text_start[0]))
        text = self._rules.free_text([mark])
        part = self._rules.new_name("part")
        more = self._rules.terminal(f"{text} {_slashed(mark)}")
        calls = " | ".join(map(self._calls, layouts))
        end, middle = (self._rules.terminal(f"{_slashed(opener)} {lexeme}") for lexeme in (text, more))
        self._rules.add(f"{part}: {calls} | {end} | {middle} {part}\n")
        if self._key.has_prefill:
            return f"{text} | {more} {part}"
        return f"{part} | {_slashed(mark)} {part}"

    def _calls(self, layout: CallLayout, *, before: str = "", after_text: str = "") -> str:
        """One or more calls.

        Args:
            before: The text before the calls.
            after_text: The terminal of a text whose end is the beginning of the calls.
        """
        heads = [layout.head_of(tool.name, before + layout.begin) for tool in self._tools]
        prefix = ""
        if after_text and layout.opener:
            prefix = self._rules.terminal(f"{after_text} {_slashed(regex_literal(layout.opener))}")
            heads = [head.removeprefix(layout.opener) for head in heads]
        elif after_text:
            heads_of = [self._rules.terminal(f"{after_text} {_slashed(layout_regex(head))}") for head in heads]
            calls = [seq(head, self._call(tool, layout)) for head, tool in zip(heads_of, self._tools)]
            return seq(f"({' | '.join(calls)})", self._more(layout))
        calls = [seq(self._literal(head), self._call(tool, layout)) for head, tool in zip(heads, self._tools)]
        return seq(prefix, f"({' | '.join(calls)})", self._more(layout))

    def _more(self, layout: CallLayout) -> str:
        """The calls after the first one, and the text after the calls."""
        more = ""
        if self._key.max_calls != 1:
            heads = [self._literal(layout.head_of(tool.name, layout.separator)) for tool in self._tools]
            calls = [seq(head, self._call(tool, layout)) for head, tool in zip(heads, self._tools)]
            more = f"({' | '.join(calls)})*"
        return seq(more, self._literal(layout.end))

    def _call(self, tool: _Tool, layout: CallLayout) -> str:
        """The arguments of a call and the text after them."""
        return seq(argument_rule(self._rules, tool.parameters, layout), self._literal(layout.after_call))

    # --- reasoning ---

    def _after_reasoning(self, first: str, after: str, after_marker: str | None) -> str:
        """Reasoning, if the model reasons, then the output: `first` without reasoning, `after` after it.

        `after_marker` is the output after a marker that opens text and ends reasoning; None: there is none.
        """
        dialect = self._dialect
        if self._key.reasoning is ReasoningStart.CLOSED:
            return first
        # The marker of a call also ends reasoning. Other end markers are forbidden: unconstrained text would follow.
        text = self._rules.free_text(map(regex_literal, dialect.reasoning_ends))
        ends = {dialect.reasoning.end: after}
        if dialect.text_start[0] in dialect.section_markers and after_marker is not None:
            ends[dialect.text_start[0]] = after_marker
        options = [
            seq(self._rules.terminal(f"{text} {_slashed(regex_literal(end))}"), f"({rest})")
            for end, rest in ends.items()
        ]
        for layout in dialect.calls if self._tools and not self._key.has_prefill else ():
            if layout.opener:
                options.append(self._calls(layout, after_text=text))
        reasoning = self._rules.rule(" | ".join(options))
        if self._key.reasoning is ReasoningStart.OPEN:
            return reasoning
        no_reasoning = [seq(self._literal(dialect.no_reasoning), first)] if dialect.no_reasoning else []
        return " | ".join([first, *no_reasoning, seq(self._literal(dialect.reasoning.start), reasoning)])

    def _literal(self, text: str) -> str:
        """A text of a layout, with its placeholders, as a terminal; "" if it is empty."""
        return self._rules.regex(layout_regex(text)) if text else ""

    # --- tools ---

    def _tool(self, index: int, function: Mapping[str, Any]) -> _Tool:
        """A tool. If `strict` is false, any object matches its schema."""
        name, path = function["name"], f"tools[{index}].function.parameters"
        parameters = function.get("parameters")
        if function.get("strict") is False:
            return _Tool(name, {"type": "object"})
        if not parameters:
            parameters = {"type": "object", "properties": {}, "additionalProperties": False}
        if not isinstance(parameters, dict):
            parameters = {}
        schema = {**normalized(parameters), "type": "object"}
        if not self._key.must_call and function.get("strict") is not True:
            return _Tool(name, self._loosened(name, schema))
        self._check_schema(
            schema, "", path + "#", f'; with "strict": false the arguments of "{name}" may be any object'
        )
        return _Tool(name, schema)

    def _loosened(self, name: str, schema: Any) -> Any:
        """The schema, or as much of it as can be enforced: this tool need not be called."""
        if not error_in(f"start: {json_rule(schema)}"):
            return schema
        pointer, reason = error_place(schema)
        _report(name, "#" + pointer, reason)
        loose = loosened(schema)
        return loose if not error_in(f"start: {json_rule(loose)}") else {"type": "object"}

    def _check_schema(self, schema: Any, name: str, path: str, hint: str = "") -> None:
        if error_in(f"start: {json_rule(schema)}"):
            pointer, reason = error_place(schema)
            place = path + pointer
            text = f"'{name}' cannot be enforced at #{pointer}" if name else f"'{place}' cannot be enforced"
            raise BadRequest(f"{text}: {reason}{hint}", place)


def _slashed(regex: str) -> str:
    return f"/{regex}/"


def _without_anchors(pattern: str) -> str:
    """A pattern for a whole text, as it may stand between slashes."""
    pattern = pattern.removeprefix("^")
    if pattern.endswith("$") and not pattern.endswith("\\$"):
        pattern = pattern[:-1]
    return re.sub(
        r"(\\.)|/|\n", lambda match: match[1] or {"/": r"\/", "\n": r"\n"}[match[0]], pattern, flags=re.DOTALL
    )


@functools.lru_cache(1000)
def _report(name: str, path: str, reason: str) -> None:
    """Log once that a constraint of a tool is not enforced: agents send the same tools with every request."""
    log.warning('%s of the tool "%s" is not enforced: %s', ascii(path), name, ascii(reason[:300])[1:-1])


def _check_sampling(params: GenerationParams) -> None:
    """Refuse options that forbid end-of-generation tokens: after a complete text, no token would be allowed."""
    for name, is_set in (("ignore_eos", params.ignore_eos), ("min_tokens", bool(params.min_tokens))):
        if is_set:
            raise BadRequest(f"'{name}' cannot be combined with tools or a response format", name)


def _check_names(request: ChatRequest) -> None:
    """Refuse tools with equal names: the parser looks up the schema of a call by the name of the tool."""
    indexes: dict[str, int] = {}
    callable_names = [tool["function"]["name"] for tool in request.callable_tools]
    for i, tool in enumerate(request.tools):
        name = tool["function"]["name"]
        if name in callable_names and name in indexes:
            raise BadRequest(
                f"'tools[{indexes[name]}].function.name' and 'tools[{i}].function.name' are both \"{name}\"; "
                "give each tool a unique name",
                f"tools[{i}].function.name",
            )
        indexes[name] = i


def _check_prefill(request: ChatRequest, response_format: ResponseFormat) -> None:
    """Refuse a JSON response format with an assistant prefill: the format would apply to the prefill too."""
    _, text = request.prefill
    if text and response_format.kind in ("json_object", "json_schema"):
        field = "response_prefix" if request.prefix else "messages"
        raise BadRequest(f"'{response_format.param}' cannot be combined with an assistant prefill in '{field}'", field)
