"""What an answer is bound to: tool_choice and the form of an answer become a grammar. Pure.

Every answer has the same build: thinking, where the model thinks; then calls, text of a form, or free text
that may turn into calls. Calls that were asked for and forms bind from the first token, so there is no way
around them. Free text and reasoning bind nothing before a mark of calls, which ends reasoning too.

Calls are written as the model has learnt to. Where its tags cannot hold a tool's arguments exactly, they hold
one JSON object instead, which the parser reads as well.
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..dialects import Dialect
from ..dialects.call_layout import CallLayout
from ..dialects.reasoning import ReasoningStart
from ..dialects.values import parameter_types
from ..engine import Constraint
from ..engine.compiling import CONVERT_STEPS, compiling
from ..grammar import (
    EMPTY,
    NEVER,
    Expr,
    GrammarError,
    Literal,
    Rules,
    SchemaError,
    ToolSchema,
    TooMuchWork,
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
from ..prompt.template import ChatTemplate
from ..protocol.chat import ChatRequest
from ..protocol.completions import CompletionRequest
from ..protocol.errors import BadRequest
from ..protocol.params import GenerationParams
from ..protocol.response_format import ResponseFormat

log = logging.getLogger("localchat.server")

# A grammar of many tools takes tens of milliseconds to make.
MAX_KEPT = 64

# Constraints of tools that are not enforced: each is logged once.
MAX_REPORTED = 1000
MAX_LOGGED_CHARS = 300

# The names of our rules where they stand beside a grammar of somebody else.
_PREFIX = "localchat-"
_SHAPED = "root"


@dataclass(frozen=True)
class _Answer:
    """What may come where the answer begins, the same after thinking, and after the mark that opens its text."""

    first: Expr
    after_reasoning: Expr
    in_section: Expr | None = None


def constraint_for(request: ChatRequest, template: ChatTemplate, prompt: str) -> Constraint | None:
    """What binds the answer to a request of which this is the prompt; None if nothing does.

    Raises:
        BadRequest: It cannot be honoured; the error names the place in the request.
    """
    tools, response_format = request.callable_tools, request.response_format
    if not tools and response_format is None:
        return None
    if response_format is not None:
        _check_opening(request, response_format)
    _check_sampling(request.params)
    _check_names(request)
    return _made(
        _Order(
            format=template.format,
            reasoning=_reasoning(request, template, prompt),
            is_opened=bool(request.opening[1]),
            # As text, so that it can be looked up: an agent sends the same tools in every turn.
            tools=tuple((request.tools.index(tool), json.dumps(tool["function"])) for tool in tools),
            must_call=request.tool_choice == "required",
            max_calls=None if request.parallel_tool_calls else 1,
            response_format=None
            if response_format is None
            else (response_format.kind, json.dumps(response_format.value), response_format.param),
        )
    )


def plain_constraint(request: CompletionRequest) -> Constraint | None:
    """What binds an answer that is plain text from its start; None if nothing does.

    Raises:
        BadRequest: It cannot be honoured; the error names the place in the request.
    """
    if request.response_format is None:
        return None
    _check_sampling(request.params)
    with compiling(CONVERT_STEPS):
        return Constraint(format_grammar(request.response_format), origin=request.response_format.param)


@dataclass(frozen=True)
class _Order:
    """All that a request's grammar is made of. `tools` come with their places in the request."""

    format: Dialect
    reasoning: ReasoningStart
    is_opened: bool
    tools: tuple[tuple[int, str], ...]
    must_call: bool
    max_calls: int | None
    response_format: tuple[str, str, str] | None


@functools.lru_cache(MAX_KEPT)
def _made(order: _Order) -> Constraint:
    try:
        with compiling(CONVERT_STEPS):
            return _built(order)
    except TooMuchWork as error:
        raise BadRequest(f"'tools' cannot be honoured: {error}", "tools") from error
    except GrammarError as error:
        # A tool's schema that JSON arguments can enforce, but not the notation in which this family writes them.
        path = error.path if error.path.startswith("tools") else "tools"
        raise BadRequest(f"'{path}' cannot be honoured: {error.message}", path) from error


def _built(order: _Order) -> Constraint:
    build = _Build(order)
    if order.must_call:
        if order.response_format is not None:
            # Calls leave no place for it, but a request that is wrong is refused in every mode.
            kind, value, param = order.response_format
            format_grammar(ResponseFormat(kind, json.loads(value), param))
        return build.required()
    if order.response_format is None:
        return build.auto()
    kind, value, param = order.response_format
    return build.formatted(ResponseFormat(kind, json.loads(value), param))


def format_grammar(response_format: ResponseFormat) -> str:
    """The grammar of the texts that have this form.

    Raises:
        BadRequest: There is no such grammar; the error names the place.
    """
    try:
        return _GRAMMARS[response_format.kind](response_format.value)
    except SchemaError as error:
        raise BadRequest(
            f"'{response_format.param}' cannot be honoured at {error}", response_format.param + error.path
        ) from error
    except ValueError as error:
        raise BadRequest(f"'{response_format.param}' cannot be honoured: {error}", response_format.param) from error


def _checked(grammar: str) -> str:
    check_grammar(grammar)
    if _PREFIX in grammar:
        raise ValueError(f"names of rules that begin with {_PREFIX} are taken")
    return grammar


_GRAMMARS: Mapping[str, Callable[[Any], str]] = {
    "json_object": lambda value: json_object_grammar(),
    "json_schema": schema_to_grammar,
    "grammar": _checked,
    "regex": regex_to_grammar,
    "choice": choice_to_grammar,
}


class _Build:
    """The parts of one request's grammar."""

    def __init__(self, order: _Order) -> None:
        self._order = order
        self._format = order.format
        self._rules = Rules(_PREFIX + "root", prefix=_PREFIX)
        self._tools = [self._tool(place, json.loads(function)) for place, function in order.tools]

    def required(self) -> Constraint:
        """Nothing but calls, after the text that the request has opened, if any."""
        calls = self._calls(self._format.layouts[:1])
        if self._order.is_opened:
            calls = replace(calls, first=seq(Literal(self._format.text_end), calls.first))
        return self._bound(calls)

    def formatted(self, response_format: ResponseFormat) -> Constraint:
        """Text of a form, or calls if there are tools."""
        grammar = format_grammar(response_format)
        # Where the answer has been opened, so has its text.
        starts = ("", "") if self._order.is_opened else self._format.text_start
        if self._order.reasoning is ReasoningStart.CLOSED and not self._tools and not starts[0]:
            return Constraint(grammar, origin=response_format.param)
        form = self._rules.external(_SHAPED)
        first, after = (seq(Literal(start), form) for start in starts)
        # And what is open is text, no call.
        if self._tools and not self._order.is_opened:
            calls = self._calls(self._format.layouts[:1])
            first, after = alt(first, calls.first), alt(after, calls.after_reasoning)
        bound = self._bound(_Answer(first, after, form))
        return replace(bound, grammar=bound.grammar + grammar)

    def auto(self) -> Constraint:
        """Free text, and where it turns into a call, that call."""
        known = [texts for texts in self._format.layouts if texts.is_native]
        if self._format.part_mark:
            return self._in_parts(known)
        triggers = dict.fromkeys(trigger for texts in known for trigger in self._triggers(texts))
        return self._rendered(alt(*map(self._calls_of, known)), tuple(triggers))

    def _in_parts(self, known: Sequence[CallLayout]) -> Constraint:
        """Parts that each begin with what they are, so that calls are told from text from the first token on."""
        mark = Literal(self._format.part_mark)
        part = self._rules.declare("part")
        text = free_text(self._rules, {self._format.part_mark: part}, may_end=True)
        opened_text = seq(Literal(self._format.text_start[0]), text)
        self._rules.define(part, alt(*map(self._calls_of, known), opened_text))
        return self._rendered(text if self._order.is_opened else alt(part, seq(mark, part)))

    def _rests(self, known: Sequence[CallLayout]) -> dict[str, Expr]:
        """What follows the openers of calls that end reasoning."""
        rests: dict[str, list[Expr]] = {}
        for texts in known:
            if texts.opener in self._format.reasoning_ends:
                rests.setdefault(texts.opener, []).append(self._rest(texts))
        return {opener: alt(*rest) for opener, rest in rests.items()}

    def _bound(self, answer: _Answer) -> Constraint:
        """Thinking as it may be, then the answer."""
        if self._order.reasoning is ReasoningStart.CLOSED:
            return self._rendered(answer.first)
        tags = self._format.reasoning
        # After other markers that end reasoning nothing would bind the text.
        ends: dict[str, Expr] = {end: NEVER for end in self._format.reasoning_ends if end not in self._format.openers}
        if self._tools:
            ends.update(self._rests(self._format.layouts))
        if answer.in_section is not None and self._format.text_start[0] in self._format.sections:
            ends[self._format.text_start[0]] = answer.in_section
        ends[tags.end] = answer.after_reasoning
        thought = free_text(self._rules, ends, may_end=False)
        if self._order.reasoning is ReasoningStart.OPEN:
            return self._rendered(thought)
        no_reasoning = Literal(self._format.no_reasoning) if self._format.no_reasoning else NEVER
        return self._rendered(alt(answer.first, seq(no_reasoning, answer.first), seq(Literal(tags.start), thought)))

    def _rendered(self, root: Expr, triggers: tuple[str, ...] = ()) -> Constraint:
        origin = self._order.response_format[2] if self._order.response_format else "tools"
        return Constraint(self._rules.render(root), triggers, _PREFIX + "root", origin)

    def _tool(self, place: int, function: Mapping[str, Any]) -> ToolSchema:
        """A tool with the rule of its arguments: any object where the tool says that it is not strict."""
        parameters = {"type": "object"} if function.get("strict") is False else function.get("parameters")
        schema = parameters or {}
        tool = ToolSchema(
            function["name"],
            parameters,
            read_types=lambda *path: parameter_types(schema, *path),
            path=f"tools[{place}].function.parameters",
        )
        if not self._order.must_call and function.get("strict") is not True and parameters is not None:
            return self._loosely(tool)
        try:
            return replace(tool, rule=arguments_rule(self._rules, tool))
        except SchemaError as error:
            raise BadRequest(
                f"'{error.path}' cannot be honoured: {error.message}; with \"strict\": false the arguments of "
                f'"{tool.name}" may be any object',
                error.path,
            ) from error

    def _loosely(self, tool: ToolSchema) -> ToolSchema:
        """The tool with what a grammar can enforce of its schema in every layout of the family's calls."""

        def convert(parameters: object) -> ToolSchema:
            loose = replace(tool, parameters=parameters)
            loose = replace(loose, rule=arguments_rule(self._rules, loose))
            for layout in self._format.layouts:
                call_rule(self._rules, loose, layout)
            return loose

        found, errors = convert_loosely(tool.parameters, convert, tool.error_path)
        for error in errors:
            _report(tool.name, error.path.removeprefix(tool.path), error.message)
        return found

    def _calls(self, ways: Sequence[CallLayout]) -> _Answer:
        made = [(texts, self._calls_of(texts)) for texts in ways]
        after = [seq(Literal(texts.after_reasoning), calls) for texts, calls in made]
        return _Answer(alt(*(calls for _, calls in made)), alt(*after))

    def _calls_of(self, texts: CallLayout) -> Expr:
        if texts.more and self._order.max_calls != 1:
            more = replace(texts.more, begin=texts.more.separator)
            return seq(self._calls_of(replace(texts, is_single=True, more=None)), alt(EMPTY, self._calls_of(more)))
        max_calls = 1 if texts.is_single else self._order.max_calls
        return calls_rule(self._rules, self._tools, texts, max_calls=max_calls)

    def _rest(self, texts: CallLayout) -> Expr:
        """Calls of which the opener has been said."""
        begun = replace(texts, begin=texts.begin.removeprefix(texts.opener))
        if texts.begin:
            return self._calls_of(begun)
        # The opener belongs to the first call, and the others bring it along.
        first = replace(texts, before_name=texts.before_name.removeprefix(texts.opener), is_single=True)
        if self._order.max_calls == 1 or texts.is_single:
            return self._calls_of(first)
        more = replace(texts, begin=texts.separator)
        return seq(self._calls_of(first), alt(EMPTY, self._calls_of(more)))

    def _triggers(self, texts: CallLayout) -> list[str]:
        if texts.opener:
            return [texts.opener]
        return [texts.begin + texts.head(tool.name) for tool in self._tools]


@functools.lru_cache(MAX_REPORTED)
def _report(name: str, place: str, reason: str) -> None:
    """Log that a constraint of a tool is not enforced, once: an agent sends its tools in every request."""
    log.warning('%s of the tool "%s" is not enforced: %s', ascii(place), name, ascii(reason[:MAX_LOGGED_CHARS])[1:-1])


def _reasoning(request: ChatRequest, template: ChatTemplate, prompt: str) -> ReasoningStart:
    if request.continue_final_message == "reasoning_content":
        return ReasoningStart.OPEN
    start = template.format.reasoning_start(prompt)
    is_named = template.format.reasoning.start in template.source
    is_off = request.template_vars.get("enable_thinking") is False or not is_named
    if start is ReasoningStart.POSSIBLE and (is_off or request.opening[1]):
        return ReasoningStart.CLOSED
    return start


def _check_sampling(params: GenerationParams) -> None:
    """What forbids the end would leave no token at all once the grammar's text is complete."""
    for name, is_asked in (("ignore_eos", params.ignore_eos), ("min_tokens", bool(params.min_tokens))):
        if is_asked:
            raise BadRequest(f"'{name}' cannot be together with tools or a form that the answer must have", name)


def _check_names(request: ChatRequest) -> None:
    """The parser finds the schema of a call by the name of the tool, so each name belongs to one tool."""
    places: dict[str, int] = {}
    offered = [tool["function"]["name"] for tool in request.callable_tools]
    for place, tool in enumerate(request.tools):
        name = tool["function"]["name"]
        if name in offered and name in places:
            raise BadRequest(
                f"'tools[{places[name]}].function.name' and 'tools[{place}].function.name' are both \"{name}\"; "
                "give each tool a name of its own",
                f"tools[{place}].function.name",
            )
        places[name] = place


def _check_opening(request: ChatRequest, response_format: ResponseFormat) -> None:
    """A form is that of the whole answer, and what opens the answer was not made by the grammar."""
    _, text = request.opening
    if text and response_format.kind in ("json_object", "json_schema"):
        member = "response_prefix" if request.prefix else "messages"
        raise BadRequest(f"'{response_format.param}' cannot be promised of an answer that '{member}' has begun", member)
