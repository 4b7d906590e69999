"""The forms of a conversation that a template is tried with.

Templates are written for conversations as models are trained with them: a system message at the start, then the user
and the assistant in turn. Clients send others. Some templates refuse these, and some print them without a message that
they do not expect. So `forms` yields the conversation in ever simpler forms, each of which has every text of it, in
order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ...core.request import SYSTEM_ROLES
from ...core.tool_results import results_of_calls
from .capabilities import Capabilities
from .messages import Messages, are_texts_of_one_role, joined


def forms(messages: Messages, capabilities: Capabilities) -> Iterator[tuple[Messages, Capabilities]]:
    """The conversation in ever simpler forms, and the capabilities of the template that the form may use.

    The first form in which a template prints all texts is used. `messages` are in the order of `with_results_in_order`.
    """
    # As it is: most templates, for most conversations.
    yield messages, capabilities
    # One system message, at the start: Qwen 3.5 refuses a later one.
    with_system_first = _systems_at_start(messages)
    yield with_system_first, capabilities
    # No text beside calls: Llama 3.1 leaves it out.
    simple = list(_split_calls(with_system_first, keeps_reasoning=not capabilities.reasons_in_texts))
    yield simple, capabilities
    # No empty output, which Ministral 3 refuses, no two texts of one role in a row, and no text of the user after a
    # result: Mistral Nemo refuses them.
    simple = [message for message in simple if not _is_empty_output(message)]
    yield joined(simple, _is_continued_by), capabilities
    # The user first, then the assistant in turn; calls and results are texts: Gemma 2 refuses other conversations.
    text_only = capabilities._replace(shows_calls=False, shows_results=False, one_call=False)
    in_turns = _from_user(joined(simple, are_texts_of_one_role))
    yield in_turns, text_only
    # The system message and the tools are texts, too: Command R+ leaves out a text beside calls otherwise.
    yield in_turns, text_only._replace(has_system_role=False, shows_tools=False)


def with_results_in_order(messages: Messages) -> Messages:
    """The messages, with the results of each message in the order of its calls, which templates without ids rely on.

    Other messages stay in their places, also those between results.
    """
    ordered = list(messages)
    with_calls = [i for i, message in enumerate(messages) if message.get("tool_calls")]
    for start, end in zip(with_calls, [*with_calls[1:], len(messages)]):
        places = [i for i in range(start, end) if messages[i]["role"] == "tool"]
        results = [messages[i] for i in places]
        for i, result in zip(places, _sorted_results(results, messages[start]["tool_calls"])):
            ordered[i] = result
    return ordered


def _sorted_results(results: Messages, calls: Sequence[Mapping[str, Any]]) -> Messages:
    """The results in the order of their calls, then those that belong to no call."""
    indexes = [index for index in results_of_calls(calls, results) if index is not None]
    return [results[i] for i in dict.fromkeys((*indexes, *range(len(results))))]


def _split_calls(messages: Messages, *, keeps_reasoning: bool) -> Iterator[Mapping[str, Any]]:
    """The messages, where one with text and calls is two: some templates print no text beside calls.

    With `keeps_reasoning`, its reasoning stays beside the calls; otherwise it precedes the text.
    """
    for message in messages:
        if message.get("tool_calls") and message.get("content"):
            with_text = {key: value for key, value in message.items() if key != "tool_calls"}
            with_calls = {**message, "content": ""}
            (with_text if keeps_reasoning else with_calls).pop("reasoning_content", None)
            yield with_text
            yield with_calls
        else:
            yield message


def _is_empty_output(message: Mapping[str, Any]) -> bool:
    has_any = any(message.get(key) for key in ("content", "reasoning_content", "tool_calls"))
    return message["role"] == "assistant" and not has_any


def _systems_at_start(messages: Iterable[Mapping[str, Any]]) -> Messages:
    """The messages, where those of the system at the start are one, and later ones are messages of the user."""
    left = deque(messages)
    at_start: list[Mapping[str, Any]] = []
    while left and left[0]["role"] in SYSTEM_ROLES:
        at_start.append(left.popleft())
    later = [{**message, "role": "user"} if message["role"] in SYSTEM_ROLES else message for message in left]
    return [*joined(at_start, lambda first, message: True), *later]


def _is_continued_by(first: Mapping[str, Any], message: Mapping[str, Any]) -> bool:
    """Whether a message has the same role, or is a text of the user after a result of a tool."""
    is_after_result = (first["role"], message["role"]) == ("tool", "user")
    return is_after_result or are_texts_of_one_role(first, message)


def _from_user(messages: Messages) -> Messages:
    """The messages, where the first one after the system message is of the user, perhaps with an empty text."""
    n_systems = sum(message["role"] in SYSTEM_ROLES for message in messages[:1])
    after = messages[n_systems:]
    if after and after[0]["role"] == "user":
        return messages
    return [*messages[:n_systems], {"role": "user", "content": ""}, *after]
