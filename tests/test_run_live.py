"""Tools, conversations and structured output with the real server and the built-in model.

The built-in model is too small to choose tools well. These tests check what does not depend on the generated text:
the server accepts requests with tools, grammars constrain calls and JSON, and turns are added to a conversation.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from localchat import Client, TooManyRounds
from localchat.schema.schema import build, json_schema

SMALL = {"max_tokens": 12, "temperature": 0, "seed": 1}


@pytest.fixture(scope="module")
def client(base_url: str) -> Iterator[Client]:
    with Client(base_url, timeout=60) as client:
        yield client


def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


def test_run_ends_with_text_or_at_the_round_limit(client: Client):
    with client.run_stream("What is 1 + 2?", tools=[add], max_rounds=2, **SMALL) as run:
        with contextlib.suppress(TooManyRounds):
            list(run)
        reply = run.reply
    assert reply.finish_reason in ("stop", "length", "tool_calls")
    assert reply.usage is not None
    assert reply.usage.output_tokens > 0


WILD = {"temperature": 2, "top_k": 0, "top_p": 1, "min_p": 0, "max_tokens": 400}


class Mood(enum.Enum):
    GOOD = "good"
    BAD = "bad"


@dataclass
class Guest:
    name: str
    age: int
    mood: Mood
    friends: list[Mood]
    note: bool | None = None


@pytest.mark.parametrize("seed", range(5))
def test_output_as_a_dataclass_follows_the_grammar(client: Client, seed: int):
    """At this temperature the values are random, but the JSON is valid."""
    schema = json_schema(Guest)
    schema["properties"]["name"]["maxLength"] = 8
    schema["properties"]["friends"]["maxItems"] = 3
    options = {"response_format": schema, "chat_template_kwargs": {"enable_thinking": False}, **WILD}
    guest = build(Guest, client.chat("Invent a guest.", seed=seed, **options).parsed)
    assert isinstance(guest.mood, Mood)
    assert all(isinstance(friend, Mood) for friend in guest.friends)


@pytest.mark.parametrize("stream", [False, True])
def test_required_tool_is_called_with_values_of_its_types(client: Client, stream: bool):
    """Only the first round requires a call."""
    seen: list[tuple[Mood, bool]] = []

    def note(mood: Mood, sure: bool) -> str:
        """Note a mood."""
        seen.append((mood, sure))
        return "noted"

    options = {
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "chat_template_kwargs": {"enable_thinking": False},
        "seed": 3,
        **WILD,
    }
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.suppress(TooManyRounds))
        ask = client.run_stream if stream else client.run
        run = ask("Hello!", tools=[note], max_rounds=2, **options)
        list(stack.enter_context(run) if stream else ())
    assert seen
    assert all(isinstance(mood, Mood) and isinstance(sure, bool) for mood, sure in seen)


def test_messages_with_calls_and_results_are_accepted(client: Client):
    """The request has no tools, so the run ends with the first response."""
    call = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
    history: list[dict[str, Any]] = [
        {"role": "user", "content": "What is 1 + 2?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "name": "add", "content": "3"},
    ]
    with client.run_stream(history, **SMALL) as run:
        types = [event.type for event in run]
    assert (types[0], types[-1]) == ("message_start", "message_stop")
    assert [message["role"] for message in run.messages] == ["user", "assistant", "tool", "assistant"]


def test_conversation_adds_turns(client: Client):
    conversation = client.conversation(system="Be brief.", **SMALL)
    first = conversation.say("Hello!")
    second = "".join(conversation.stream("And again?").text)
    messages = conversation.messages
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user", "assistant"]
    assert (messages[2]["content"], messages[4]["content"]) == (first.text, second)
