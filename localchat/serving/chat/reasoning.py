"""Reasoning of a request: its state after the prompt, its parser, and its budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..api.chat import ChatRequest
from .dialects import Dialect
from .dialects.budget import ReasoningTracker
from .dialects.reasoning import ReasoningStart
from .prompt.template import ChatTemplate


@dataclass(frozen=True)
class ReasoningDefaults:
    """The reasoning budget of requests that set none."""

    max_tokens: int | None = None
    """The limit of reasoning tokens; None: no limit."""
    message: str = ""
    """The text that is appended to reasoning at the limit."""


def reasoning_start(request: ChatRequest, template: ChatTemplate, prompt: str) -> ReasoningStart:
    """Whether reasoning is open, possible or closed before the first token, given the prompt and the request."""
    start = template.dialect.reasoning_start(parser_prompt(request, template.dialect, prompt))
    is_named = template.dialect.reasoning.start in template.source
    is_off = request.template_vars.get("enable_thinking") is False or not is_named
    if start is ReasoningStart.POSSIBLE and (is_off or request.prefill[1]):
        return ReasoningStart.CLOSED
    return start


def parser_prompt(request: ChatRequest, dialect: Dialect, prompt: str) -> str:
    """The prompt for the output parser: the rendered prompt or, if the request continues reasoning, the start tag."""
    return dialect.reasoning.start if request.continue_final_message == "reasoning_content" else prompt


def parser_options(request: ChatRequest, dialect: Dialect, prompt: str) -> dict[str, Any]:
    """The options of the parsers of a request with this rendered prompt."""
    return {
        "tools": request.callable_tools,
        "prompt": parser_prompt(request, dialect, prompt),
        "is_constrained": request.response_format is not None,
    }


def budget_tracker(
    request: ChatRequest,
    dialect: Dialect,
    prompt: str,
    tokenize: Callable[[str, bool], list[int]],
    defaults: ReasoningDefaults,
) -> Callable[[], ReasoningTracker] | None:
    """Makes the tracker of the reasoning budget of a request, in the engine process; None: no limit.

    `tokenize(text, parse_special)` must not add BOS. The budget message is tokenized without control tokens, and its
    tokens count as completion tokens.
    """
    max_tokens = defaults.max_tokens if request.reasoning_budget is None else request.reasoning_budget
    if max_tokens is None or max_tokens < 0:
        return None
    message = defaults.message if request.reasoning_budget_message is None else request.reasoning_budget_message
    closing = (*tokenize(message, False), *tokenize(dialect.reasoning.end, True))
    return partial(ReasoningTracker, dialect, parser_options(request, dialect, prompt), max_tokens, closing)
