"""The rule for replies that are cut. No I/O.

A reply that a filter cut, or a limit of tokens that the call did not set, is an IncompleteReply: an incomplete text
often looks complete. With a limit of the call's own, or with `allow_truncated`, the reply is returned with its finish
reason. Whoever set the limit, a cut reply has no value for a `response_format`, and its calls are never run.
"""

from __future__ import annotations

from typing import Any

from ..errors import IncompleteReply
from ..events import Reply
from .finish_reason import CUT_REASONS

# The fields of a request that limit the tokens of the output, by the names of OpenAI, llama.cpp, Ollama and TGI.
_LIMITS = ("max_tokens", "max_completion_tokens", "n_predict", "num_predict", "max_new_tokens")


def is_cut(reply: Reply[Any]) -> bool:
    """Whether a limit or a filter cut a choice of the reply."""
    return any(choice.finish_reason in CUT_REASONS for choice in reply.choices)


def kept_message(reply: Reply[Any]) -> dict[str, Any]:
    """The message of a reply in later requests. A cut one has no calls: without results, servers would refuse them.

    They would refuse it without content too, which only a message with calls may lack.
    """
    message = reply.message
    if is_cut(reply) and message.pop("tool_calls", None):
        message["content"] = message["content"] or ""
    return message


def check_not_cut(reply: Reply[Any], request: Any) -> None:
    """Raise IncompleteReply if the reply to the request, a CompletionRequest, is cut and must not be returned."""
    if not is_cut(reply):
        return
    reasons = {choice.finish_reason: str(choice.finish_reason_raw) for choice in reply.choices}
    is_own_limit, remedy = False, ""
    if "content_filter" in reasons:
        cause = "by a content filter"
    elif "context" in reasons.get("length", "").lower():  # Not max_tokens, which may be larger.
        cause = "at the end of the model's context"
    else:
        cause = "at a limit of tokens"
        is_own_limit = any(request.fields.get(name) is not None for name in _LIMITS)
        remedy = "raise max_tokens" if is_own_limit else "set max_tokens"
    message = f"the response was cut {cause}, after {len(reply.choices[0].text)} characters"
    if request.expected is not None:
        hint = f": {remedy}" if remedy else ""
        raise IncompleteReply(f"{message}, so it has no value for response_format{hint}", partial=reply)
    if is_own_limit or request.allow_truncated:
        return
    ways = f"{remedy} or allow_truncated=True" if remedy else "set allow_truncated=True"
    raise IncompleteReply(f"{message}: {ways} to get it anyway; the error has it as `partial`", partial=reply)
