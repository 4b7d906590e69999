"""The forms of a conversation that a template is tried with.

Templates are written for conversations as models are trained with them: a system message at the start, then the user
and the assistant in turn. Clients send others. Some templates refuse these, and some print them without a message that
they do not expect. So `forms` yields the conversation in ever simpler forms, each of which has every text of it, in
order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from .capabilities import Capabilities, Message, Messages
from .missing_text import SYSTEM_ROLES


def forms(messages: Messages, capabilities: Capabilities) -> Iterator[tuple[list[Message], Capabilities]]:
    """The conversation in ever simpler forms, and the capabilities of the template that the form may use."""
    ordered = [dict(messages[index]) for index in order_of(messages)]
    yield ordered, capabilities
    simple = _systems_at_start(_split_calls(ordered))
    yield simple, capabilities
    yield _joined(simple), capabilities
    # Calls and results become text, so that only the user and the assistant remain.
    text_only = capabilities._replace(shows_calls=False, shows_results=False, one_call=False)
    in_turns = _from_user(_joined(simple))
    yield in_turns, text_only
    yield in_turns, text_only._replace(has_system_role=False)
    yield in_turns, text_only._replace(has_system_role=False, shows_tools=False)


def order_of(messages: Messages) -> list[int]:
    """The order in which a template gets the messages, as their indexes.

    The results of each message are in the order of its calls, which templates without ids rely on. A result belongs to
    the call with its id.
    """
    order: list[int] = []
    left = deque(range(len(messages)))
    while left:
        index = left.popleft()
        order.append(index)
        calls = messages[index].get("tool_calls") or ()
        results: list[int] = []
        while calls and left and messages[left[0]]["role"] == "tool":
            results.append(left.popleft())
        order += _sorted_results(messages, results, calls)
    return order


def _sorted_results(messages: Messages, results: list[int], calls: Iterable[Message]) -> list[int]:
    """The indexes of results in the order of their calls, or as they are if one of them has the id of no call."""
    places: dict[object, deque[int]] = {}
    for place, call in enumerate(calls):
        places.setdefault(call.get("id"), deque()).append(place)
    numbered: list[tuple[int, int]] = []
    for index in results:
        left = places.get(messages[index].get("tool_call_id"))
        if not left:
            return results
        numbered.append((left.popleft(), index))
    return [index for _, index in sorted(numbered)]


def _split_calls(messages: Sequence[Message]) -> Iterator[Message]:
    """The messages, where one with text and calls is two: some templates print no text beside calls."""
    for message in messages:
        if message.get("tool_calls") and message.get("content"):
            calls = {key: value for key, value in message.items() if key not in ("content", "reasoning_content")}
            yield {key: value for key, value in message.items() if key != "tool_calls"}
            yield {**calls, "content": ""}
        else:
            yield message


def _systems_at_start(messages: Iterable[Message]) -> list[Message]:
    """The messages, where those of the system at the start are one, and later ones are messages of the user."""
    groups: list[list[Message]] = []
    for message in messages:
        is_system = message["role"] in SYSTEM_ROLES
        if is_system and len(groups) == 1 and groups[0][0]["role"] in SYSTEM_ROLES:
            groups[0].append(message)
        else:
            groups.append([{**message, "role": "user"} if is_system and groups else message])
    return list(map(_one_message, groups))


def _joined(messages: Iterable[Message]) -> list[Message]:
    """The messages, where the texts of one role in a row are one message, and a text after a result belongs to it."""
    groups: list[list[Message]] = []
    for message in messages:
        first = groups[-1][0] if groups else None
        is_text = "tool_calls" not in message and message["role"] in ("user", "assistant")
        if first is None or not is_text or "tool_calls" in first:
            groups.append([message])
        elif first["role"] == message["role"] or (first["role"], message["role"]) == ("tool", "user"):
            groups[-1].append(message)
        else:
            groups.append([message])
    return list(map(_one_message, groups))


def _from_user(messages: Sequence[Message]) -> list[Message]:
    """The messages, where the first one after the system message is of the user, perhaps with an empty text."""
    n_systems = sum(message["role"] in SYSTEM_ROLES for message in messages[:1])
    after = messages[n_systems:]
    if after and after[0]["role"] == "user":
        return list(messages)
    return [*messages[:n_systems], {"role": "user", "content": ""}, *after]


def _one_message(messages: Sequence[Message]) -> Message:
    """The first message, with the texts of the others after its own, separated by blank lines."""
    if len(messages) == 1:
        return messages[0]
    texts = (message.get("content") for message in messages)
    return {**messages[0], "content": "\n\n".join(text for text in texts if text)}
