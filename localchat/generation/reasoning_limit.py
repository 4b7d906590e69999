"""How long the answer to a request may think: from the request and the template to the engine's limit. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..dialects import Format
from ..engine import ThinkingLimit
from ..protocol.chat import ChatRequest


@dataclass(frozen=True)
class ThinkingDefaults:
    """What holds where a request says nothing: tokens of thinking (None: no limit), and the last words of it."""

    max_tokens: int | None = None
    message: str = ""


def thinking_limit(
    request: ChatRequest,
    format: Format,
    prompt: str,
    tokenize: Callable[[str, bool], list[int]],
    defaults: ThinkingDefaults,
) -> ThinkingLimit | None:
    """What bounds the thinking of the answer to a request of which this is the prompt; None if nothing does.

    `tokenize(text, parse_special)` adds nothing of its own. The message counts as what the model says, and so
    do its tokens, but no token of control is read in it.
    """
    max_tokens = defaults.max_tokens if request.reasoning_budget is None else request.reasoning_budget
    if max_tokens is None or max_tokens < 0:
        return None
    message = defaults.message if request.reasoning_budget_message is None else request.reasoning_budget_message
    is_open = request.continue_final_message == "reasoning_content" or format.think.is_open(prompt)
    # Where nothing can be called the parser takes a mark of calls for a part of the thinking.
    no_ends = () if request.callable_tools else format.openers
    return ThinkingLimit(
        max_tokens=max_tokens,
        closing=(*tokenize(message, False), *tokenize(format.think.end, True)),
        start=format.think.start,
        ends=tuple(end for end in format.thought_ends if end not in no_ends),
        is_open=is_open,
        may_repeat=format.thinks_anywhere,
    )
