r"""Makes the constraint of a request: one grammar of llguidance for its reasoning, tool calls and response format.

A response format and required tool calls constrain the output from its first token. Otherwise text and reasoning are
free up to the marker of a tool call, which also ends reasoning. Tool calls have the format of the model family, except
arguments that it cannot enforce (argument_rules.py).

The grammar of one or more calls of `now`, which has no arguments, in the format of Hermes:

    start: (T_1 rule_2 T_0) (T_3 rule_2 T_0)*
    T_0: /\}\n<\/tool_call>/                              what follows the arguments: `CallFormat.call_tail`
    T_1: /<tool_call>\n\{"name": "now", "arguments": /    what precedes them: `section_begin` and `call_head`
    rule_2: %json {"type": "object", ...}                the arguments, by their schema
    T_3: /\n{0,2}<tool_call>\n\{"name": "now", ... /      what precedes them in a later call: `between_calls`

llguidance splits a text into lexemes, each as long as possible. So a free text and the marker after it are one lexeme,
which is a terminal with both. If the model may call `now`, and need not, the grammar is

    start: T_0 | T_1 (T_3 rule_4 T_2) (T_5 rule_4 T_2)* | ...      calls in the second format of Hermes
    T_0: /(?s:.*)/ & ~/(?s:.*)(<function=|<tool_call>)(?s:.*)/     a free text: any text without an opener
    T_1: T_0 /<tool_call>/                               a free text and the opener after it
    T_3: /\n\{"name": "now", "arguments": /              the rest of what precedes the arguments
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...core.errors import BadRequest, NotSupported, field_error
from ...core.params import GenerationParams
from ...core.request import ChatRequest, CompletionRequest, ResponseFormat
from ...engine.values import Constraint
from ...schema.compiler import error_in, is_empty, json_rule
from ...schema.patterns import between_slashes, in_grammar
from ...schema.prepare import SourcePlaces, prepared
from ...schema.refuse import MAX_PATTERN_CHARS, loosened, refusal
from ..dialects import Dialect
from ..dialects.call_format import CallFormat, Text, text_of
from ..dialects.dialect import ReasoningStart
from ..prompt.template import ChatTemplate
from .argument_rules import argument_rule
from .lark import Rules, Terminal, gbnf_rule, regex_literal, seq, text_regex

log = logging.getLogger("localchat.server")

MAX_CACHED = 64  # The number of cached constraints: agents send the same tools with every request.
_MISSING = "this server cannot constrain outputs without the package llguidance: pip install llguidance (Python 3.10)"


def constraint_for(request: ChatRequest, template: ChatTemplate, reasoning: ReasoningStart) -> Constraint | None:
    """The constraint of a chat request; None if the output is unconstrained. `reasoning` is that of `PromptEnd`.

    Without llguidance, calls that the model may make are not constrained.

    Raises:
        BadRequest: The constraint cannot be enforced. `param` is the path of the field.
        NotSupported: The constraint needs llguidance, which is not installed.
    """
    tools, must_call = _callable_tools(request), request.tool_choice == "required"
    if not tools and request.response_format is None:
        return None
    _check(request, tools)
    is_strict = any(tool["function"].get("strict") for tool, _ in tools)
    is_needed = must_call or request.response_format is not None or is_strict
    if not is_needed and importlib.util.find_spec("llguidance") is None:
        return None
    grammar = _Grammar(
        template.dialect,
        request.response_format,
        reasoning=_possible_reasoning(request, template, reasoning),
        has_prefill=bool(request.prefill[1]),
        functions=tuple((path, tool["function"]) for tool, path in tools),
        must_call=must_call,
        max_calls=None if request.parallel_tool_calls else 1,
    )
    return _constraint(grammar)


def plain_constraint(request: CompletionRequest) -> Constraint | None:
    """The constraint of a text completion; None if the output is unconstrained. Raises BadRequest."""
    if request.response_format is None:
        return None
    _check_sampling(request.params)
    return _constraint(_Grammar(Dialect(""), request.response_format))


def _possible_reasoning(request: ChatRequest, template: ChatTemplate, reasoning: ReasoningStart) -> ReasoningStart:
    """`reasoning`, but closed if it is possible and the request or the template rules it out."""
    is_off = request.chat_template_kwargs.get("enable_thinking") is False
    is_impossible = is_off or bool(request.prefill[1]) or template.dialect.reasoning.start not in template.source
    return "closed" if reasoning == "possible" and is_impossible else reasoning


@functools.lru_cache(MAX_CACHED)
def _constraint(grammar: _Grammar) -> Constraint:
    path = grammar.path
    try:
        text = grammar.text()
        reason = error_in(text)
    except ImportError as error:
        raise NotSupported(_MISSING, path) from error
    except RecursionError:
        reason = "it is nested too deeply"
    if reason:
        raise field_error(path, f"cannot be enforced: {reason}")
    return Constraint(text, path)


@dataclass(frozen=True)
class _Grammar:
    """The grammar of one request. The fields determine it, and are the key of the cache."""

    dialect: Dialect
    response_format: ResponseFormat | None = field(compare=False)
    reasoning: ReasoningStart = "closed"
    has_prefill: bool = False  # Whether the request has an assistant prefill of text.
    # Callable tools: the path of the schema, the function.
    functions: tuple[tuple[str, Mapping[str, Any]], ...] = field(default=(), compare=False)
    must_call: bool = False
    max_calls: int | None = None  # The largest number of calls in one output; None: no limit.
    # The response format and the functions as JSON: the part of the cache key for the two fields that have no hash.
    _key: str = field(init=False)
    _rules: Rules = field(default_factory=Rules, compare=False)

    def __post_init__(self) -> None:
        form = vars(self.response_format) if self.response_format else None
        object.__setattr__(self, "_key", json.dumps([form, self.functions]))

    @property
    def path(self) -> str:
        """The path of the field that an error of the grammar as a whole names."""
        if self.response_format is not None and not self.must_call:
            return self.response_format.param
        schema_path, _ = self.functions[0]
        return schema_path.rpartition("[")[0]  # The list of the tools: "tools" of "tools[0].function.parameters".

    def text(self) -> str:
        """The grammar in the notation of llguidance. Raises ValueError and BadRequest if there is none."""
        format_rule = ""
        if self.response_format is not None:
            # With required calls the output has only calls, so the format has no effect. It is still checked.
            form = self.response_format
            with _naming(form.param):
                format_rule = self._format(form.kind, form.value, form.param)
        if self.must_call:
            return self._rules.render(self._required())
        return self._rules.render(self._formatted(format_rule) if format_rule else self._auto())

    @functools.cached_property
    def _schemas(self) -> dict[str, Any]:
        """The schemas of the arguments, which are objects, by the names of the tools."""
        return {function["name"]: self._parameters(path, function) for path, function in self.functions}

    def _format(self, kind: str, value: Any, param: str) -> str:
        if kind in ("json_object", "json_schema"):
            schema = {"type": "object"} if kind == "json_object" else prepared(value)
            _check_schema(schema, value, param)
            return self._rules.rule(json_rule(schema))
        if kind == "choice":
            if any("\0" in choice for choice in value):
                raise ValueError("a choice has a NUL")
            return self._rules.regex("|".join("".join(map(regex_literal, choice)) for choice in value))
        if kind == "regex":
            if len(value) > MAX_PATTERN_CHARS:
                raise ValueError(f"it has {len(value)} characters, the limit is {MAX_PATTERN_CHARS}")
            rule: str = self._rules.regex(f"(?:{between_slashes(in_grammar(value))})")
        else:
            rule = self._rules.rule(gbnf_rule(value))
        if is_empty(self._rules.render(rule)):
            raise ValueError("no text matches it")
        return rule

    def _formatted(self, format_rule: str) -> str:
        """An output in the response format, or calls if there are tools."""
        starts = ("", "") if self.has_prefill else self.dialect.text_start
        at_start, after_tag = (seq(self._literal(start), format_rule) for start in starts)
        # After an assistant prefill, the output continues the text of the prefill and cannot begin with a call.
        if self.functions and not self.has_prefill:
            format = self.dialect.calls[0]
            at_start = f"({at_start} | {self._calls(format)})"
            after_tag = f"({after_tag} | {self._calls(format, before=self.dialect.calls_start)})"
        return self._with_reasoning(at_start=at_start, after_tag=after_tag, after_marker=format_rule)

    def _required(self) -> str:
        """An output that consists of calls, after an assistant prefill if there is one."""
        format = self.dialect.calls[0]
        at_start = self._calls(format, before=self.dialect.text_end if self.has_prefill else "")
        after_tag = self._calls(format, before=self.dialect.calls_start)
        return self._with_reasoning(at_start=at_start, after_tag=after_tag, after_marker=None)

    def _auto(self) -> str:
        """An output of free text, which calls may follow."""
        dialect = self.dialect
        if dialect.recipient_mark:
            return self._recipients(dialect.calls)
        # Here the header of a call of Muse is free text, up to the opener `<atem:function_calls>`. So a format that
        # includes the header of the first call is not needed: the same format without it matches the call.
        formats = [format for format in dialect.calls if not (format.header[0] and format.has_first_header)]
        heads = [
            text_regex(text_of(format.section_begin, format.call_head), format.escaped(name))
            for format in formats
            if not format.opener
            for name in self._schemas
        ]
        markers = [*map(regex_literal, dialect.openers), *heads]
        text = self._rules.free_text(markers)
        options = [text, *(self._calls(format, after=text) for format in formats)]
        return " | ".join(options)

    def _recipients(self, formats: Sequence[CallFormat]) -> str:
        r"""An output of texts and then calls, each with a recipient, which its first token shows: "all" or a tool.

            all\nSure.>>>weather\n{"city": "Rome"}

        A text and the mark after it are one lexeme.
        """
        recipient_mark = self.dialect.recipient_mark
        mark, text_start = self._literal(recipient_mark), self._literal(self.dialect.text_start.first)
        text = self._rules.free_text([regex_literal(recipient_mark)])
        text_and_mark = self._literal(recipient_mark, after=text)
        calls = " | ".join(map(self._calls, formats))
        middle, end = (self._rules.terminal(f"{text_start} {lexeme}") for lexeme in (text_and_mark, text))
        output = self._rules.rule(f"{middle}* ({calls} | {end})")
        return f"{text} | {text_and_mark} {output}" if self.has_prefill else f"{output} | {mark} {output}"

    def _calls(self, format: CallFormat, *, before: str = "", after: Terminal | None = None) -> str:
        """One or more calls, after the text `before`, or after the free text of the terminal `after`."""
        head, first = text_of(before, format.section_begin, format.call_head), ""
        if after and format.opener:
            # One lexeme for the free text and the opener, and the calls of all tools without it.
            first = self._literal(format.opener, after=after)
            head, after = _without_start(head, format.opener), None
        first = seq(first, self._call(format, head, after=after))
        next_head = text_of(format.between_calls, format.call_head)
        others = "" if self.max_calls == 1 else self._call(format, next_head) + "*"
        return seq(first, others, self._literal(format.section_end))

    def _call(self, format: CallFormat, head: Text, *, after: Terminal | None = None) -> str:
        """A call of one of the tools: `head`, the arguments, `call_tail`. `after` is the terminal before the head."""
        tail = self._literal(format.call_tail)
        calls = []
        for name, schema in self._schemas.items():
            named_head = self._literal(head, format.escaped(name), after=after)
            calls.append(seq(named_head, argument_rule(self._rules, schema, format), tail))
        return f"({' | '.join(calls)})"

    def _with_reasoning(self, *, at_start: str, after_tag: str, after_marker: str | None) -> str:
        r"""Reasoning, if the model reasons, then the output.

        The output is `at_start` without reasoning, `after_tag` after reasoning and its end tag, and `after_marker`
        after a marker that opens text and so ends reasoning; None: no such marker is allowed. The outputs of Hermes,
        and the last one of Cohere, if reasoning is open:

            hm</think>\n\nSure.         a free text and the end tag, `after_tag`
            hm<tool_call>...            a free text and the opener of a call, the call
            hm<|START_RESPONSE|>Sure.   a free text and a marker that opens text, `after_marker`
        """
        dialect = self.dialect
        if self.reasoning == "closed":
            return at_start
        # The marker of a call also ends reasoning. Other end markers are forbidden: unconstrained text would follow.
        text = self._rules.free_text(map(regex_literal, dialect.reasoning_ends))
        ends = {dialect.reasoning.end: after_tag}
        if dialect.text_start.first in dialect.section_markers and after_marker is not None:
            ends[dialect.text_start.first] = after_marker
        options = [seq(self._literal(end, after=text), f"({output})") for end, output in ends.items()]
        for format in dialect.calls if self.functions and not self.has_prefill else ():
            if format.opener:
                options.append(self._calls(format, after=text))
        reasoning = self._rules.rule(" | ".join(options))
        if self.reasoning == "open":
            return reasoning
        no_reasoning = [seq(self._literal(dialect.no_reasoning), at_start)] if dialect.no_reasoning else []
        return " | ".join([at_start, *no_reasoning, seq(self._literal(dialect.reasoning.start), reasoning)])

    def _literal(self, text: str | Text, name: str = "", *, after: Terminal | None = None) -> str:
        """The terminal of a text with a name in its holes, with the terminal `after` before it; "" for no text."""
        regex = text_regex(text_of(text), name)
        return self._rules.terminal(seq(after or "", f"/{regex}/")) if regex else ""

    def _parameters(self, path: str, function: Mapping[str, Any]) -> Any:
        """The schema of the arguments of a tool. If `strict` is false, any object matches it."""
        name, parameters, strict = function["name"], function.get("parameters"), function.get("strict")
        if strict is False:
            return {"type": "object"}
        if not parameters:
            parameters = {"type": "object", "properties": {}, "additionalProperties": False}
        with _naming(path):
            schema = {**prepared(parameters if isinstance(parameters, dict) else {}), "type": "object"}
        if self.must_call or strict is True:
            hint = f'; with "strict": false the arguments of "{name}" may be any object'
            _check_schema(schema, parameters, path, hint)
            return schema
        # Enforce as much of it as possible, since the model need not call this tool.
        schema, refusals = loosened(schema)
        if refusals:
            places = SourcePlaces(parameters)
            for refused in refusals:
                pointer = places.pointer(refused.place.pointer, refused.keyword)
                _report(name, f"#{pointer}", refused.reason)
        return schema


@contextlib.contextmanager
def _naming(path: str) -> Iterator[None]:
    """Make an error of the block, which cannot enforce the field at this path, a BadRequest that names the field."""
    try:
        yield
    except RecursionError as error:
        raise field_error(path, "cannot be enforced: it is nested too deeply") from error
    except ValueError as error:
        raise field_error(path, f"cannot be enforced: {error}") from error


def _without_start(text: Text, start: str) -> Text:
    first, *others = text
    return text_of(first.removeprefix(start) if isinstance(first, str) else first, *others)


def _check_schema(schema: Any, source: Any, path: str, hint: str = "") -> None:
    """Refuse a prepared schema that cannot be enforced. The error has the place in its `source`, the one at `path`."""
    refused = refusal(schema)
    if refused is not None:
        pointer = SourcePlaces(source).pointer(refused.place.pointer, refused.keyword)
        raise field_error(f"{path}#{pointer}", f"cannot be enforced: {refused.reason}{hint}")


@functools.lru_cache(1000)
def _report(name: str, path: str, reason: str) -> None:
    """Log once that a constraint of a tool is not enforced: agents send the same tools with every request."""
    log.warning('%s of the tool "%s" is not enforced: %s', ascii(path), name, ascii(reason[:300])[1:-1])


def _callable_tools(request: ChatRequest) -> list[tuple[dict[str, Any], str]]:
    """The tools that may be called, and the paths of their schemas in the body."""
    paths = request.tool_paths or [f"tools[{i}].function.parameters" for i in range(len(request.tools))]
    names = {tool["function"]["name"] for tool in request.callable_tools}
    return [(tool, path) for tool, path in zip(request.tools, paths) if tool["function"]["name"] in names]


def _check(request: ChatRequest, tools: list[tuple[dict[str, Any], str]]) -> None:
    """Refuse what cannot be combined with a constraint, and tools with equal names.

    A JSON format would have to apply to the assistant prefill too. The parser finds the schema of a call by its name.
    """
    _check_sampling(request.params)
    response_format = request.response_format
    if response_format is not None and request.prefill[1] and response_format.kind in ("json_object", "json_schema"):
        path = "response_prefix" if request.response_prefix else request.messages_field
        raise BadRequest(f"'{response_format.param}' cannot be combined with an assistant prefill in '{path}'", path)
    places: dict[str, str] = {}
    for tool, path in tools:
        name, place = tool["function"]["name"], f"{path.rpartition('.')[0]}.name"
        first = places.setdefault(name, place)
        if first != place:
            raise BadRequest(f"'{first}' and '{place}' are both \"{name}\"; give each tool a unique name", place)


def _check_sampling(params: GenerationParams) -> None:
    """Refuse options that forbid end-of-generation tokens: after a complete text, no token would be allowed."""
    for name in ("ignore_eos", "min_tokens"):
        if getattr(params, name):
            raise field_error(params.at(name), "cannot be combined with tools or a response format")
