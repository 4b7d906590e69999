"""Tools, conversations and structured output with the real server and the built-in model.

The built-in model is too small to choose tools well. These tests check what does not depend on the generated text:
the server accepts requests with tools, grammars constrain calls and JSON, and turns are added to a conversation.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from localchat import Client, TooManyRounds
from localchat.schema.schema import build, json_schema


@pytest.fixture(scope="module")
def client(base_url: str) -> Iterator[Client]:
    with Client(base_url, timeout=60) as client:
        yield client


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
