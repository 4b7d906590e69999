"""Makes the constraint of a request: one grammar of llguidance for its reasoning, tool calls and response format.

A response format and required tool calls constrain the output from its first token. Otherwise text and reasoning are
free up to the marker of a tool call, which also ends reasoning. Tool calls have the format of the model family, except
arguments that it cannot enforce (argument_rules.py). grammar.py makes the grammar, this module decides what it has.
"""

from __future__ import annotations

import functools
import importlib.util
import json
from typing import Any

from ...core.errors import BadRequest, NotSupported, field_error
from ...core.params import GenerationParams
from ...core.request import ChatRequest, CompletionRequest, ResponseFormat
from ...engine.values import Constraint
from ...schema.compiler import error_in
from ..dialects import Dialect
from ..dialects.dialect import ReasoningStart
from ..prompt.template import ChatTemplate
from .enforced import naming_field
from .grammar import GrammarSource, OutputGrammar

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
    source = GrammarSource(
        template.dialect,
        _format_json(request.response_format),
        json.dumps([(path, tool["function"]) for tool, path in tools]),
        reasoning=_reasoning_start(request, template, reasoning),
        has_prefill=bool(request.prefill[1]),
        must_call=must_call,
        max_calls=None if request.parallel_tool_calls else 1,
    )
    return _constraint(source)


def plain_constraint(request: CompletionRequest) -> Constraint | None:
    """The constraint of a text completion; None if the output is unconstrained. Raises BadRequest."""
    if request.response_format is None:
        return None
    _check_sampling(request.params)
    return _constraint(GrammarSource(Dialect(""), _format_json(request.response_format)))


def _format_json(response_format: ResponseFormat | None) -> str:
    return json.dumps(vars(response_format) if response_format else None)


def _reasoning_start(request: ChatRequest, template: ChatTemplate, at_end: ReasoningStart) -> ReasoningStart:
    """Where reasoning starts: `at_end` of the prompt, but closed if the request or the template rules reasoning out."""
    is_off = request.chat_template_kwargs.get("enable_thinking") is False
    is_impossible = is_off or bool(request.prefill[1]) or template.dialect.reasoning.start not in template.source
    return "closed" if at_end == "possible" and is_impossible else at_end


@functools.lru_cache(MAX_CACHED)
def _constraint(source: GrammarSource) -> Constraint:
    grammar = OutputGrammar(source)
    try:
        with naming_field(grammar.field):
            text = grammar.text()
            reason = error_in(text)
            if reason:
                raise ValueError(reason)
    except ImportError as error:
        raise NotSupported(_MISSING, grammar.field) from error
    return Constraint(text, grammar.field)


def _callable_tools(request: ChatRequest) -> list[tuple[dict[str, Any], str]]:
    """The tools that may be called, and the paths of their schemas in the body."""
    paths = request.tool_paths or [f"tools[{i}].function.parameters" for i in range(len(request.tools))]
    names = {tool["function"]["name"] for tool in request.callable_tools}
    return [(tool, path) for tool, path in zip(request.tools, paths) if tool["function"]["name"] in names]


def _check(request: ChatRequest, tools: list[tuple[dict[str, Any], str]]) -> None:
    """Refuse what cannot be combined with a constraint, and tools with equal names."""
    _check_sampling(request.params)
    response_format = request.response_format
    # A JSON format would have to apply to the assistant prefill, too.
    if response_format is not None and request.prefill[1] and response_format.kind in ("json_object", "json_schema"):
        path = "response_prefix" if request.response_prefix else request.messages_field
        raise BadRequest(f"'{response_format.param}' cannot be combined with an assistant prefill in '{path}'", path)
    # The parser finds the schema of a call by its name.
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
