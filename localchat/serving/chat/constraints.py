"""Makes the constraint (a grammar) that the tools, tool_choice and response format of a request require.

Constraints are cached, since agents send the same tools with every request.
"""

from __future__ import annotations

import functools
import json

from ..api.chat import ChatRequest
from ..api.completions import CompletionRequest
from ..core.errors import BadRequest
from ..core.params import GenerationParams
from ..core.response_format import ResponseFormat
from ..engine import Constraint
from ..engine.compiling import CONVERT_STEPS, compiling
from ..grammar import GrammarError, TooMuchWork
from .output_grammar import GrammarKey, OutputGrammar, format_grammar
from .prompt.template import ChatTemplate
from .reasoning import reasoning_start

# The number of cached constraints. Compiling the grammar of many tools takes tens of milliseconds.
MAX_CACHED = 64


def constraint_for(request: ChatRequest, template: ChatTemplate, prompt: str) -> Constraint | None:
    """The constraint of a chat request with this rendered prompt; None if the output is unconstrained.

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
        GrammarKey(
            dialect=template.dialect,
            reasoning=reasoning_start(request, template, prompt),
            has_prefill=bool(request.prefill[1]),
            tools=tuple((request.tools.index(tool), json.dumps(tool["function"])) for tool in tools),
            must_call=request.tool_choice == "required",
            max_calls=None if request.parallel_tool_calls else 1,
            response_format=None
            if response_format is None
            else (response_format.kind, json.dumps(response_format.value), response_format.param),
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
    with compiling(CONVERT_STEPS):
        return Constraint(format_grammar(request.response_format), origin=request.response_format.param)


@functools.lru_cache(MAX_CACHED)
def _constraint(key: GrammarKey) -> Constraint:
    try:
        with compiling(CONVERT_STEPS):
            return OutputGrammar(key).constraint()
    except TooMuchWork as error:
        raise BadRequest(f"'tools' cannot be enforced: {error}", "tools") from error
    except GrammarError as error:
        # A grammar can enforce this schema in JSON, but not in the format that the model family has for arguments.
        path = error.path if error.path.startswith("tools") else "tools"
        raise BadRequest(f"'{path}' cannot be enforced: {error.message}", path) from error


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
