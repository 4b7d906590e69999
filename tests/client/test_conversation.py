"""Conversations: only complete turns are added. Saving and loading."""

import contextlib
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, List

import pytest

from localchat import AsyncClient, AsyncConversation, Client, Conversation, DoesNotFit, IncompleteStream, TooManyRounds
from tests.client.test_tools import add
from tests.support.scripted import Response, Script, calls, chunk, playing, text

SYSTEM = {"role": "system", "content": "be brief"}


def user(content: Any) -> Any:
    return {"role": "user", "content": content}


def assistant(content: str, **fields: Any) -> Any:
    return {"role": "assistant", "content": content, **fields}


@contextlib.contextmanager
def started(*responses: Response, client_class: Any = Client, **options: Any) -> Iterator[tuple[Any, Script]]:
    with playing(*responses, client_class=client_class) as (client, script):
        yield client.conversation(**options), script


def test_turns_are_added_and_sent_again(client_class: Any):
    """A turn with tools has all its messages."""
    responses = text("Hello."), calls(("add", '{"a": 1, "b": 2}')), text("3")
    options = {"system": "be brief", "temperature": 0, "tools": [add], "max_tokens": 9}
    with started(*responses, client_class=client_class, **options) as (conversation, script):
        assert conversation.say("hi").text == "Hello."
        assert conversation.say("1+2?", temperature=1, max_tokens=None).text == "3"
    *messages, call, result, last = conversation.messages
    assert messages == [SYSTEM, user("hi"), assistant("Hello."), user("1+2?")]
    assert (call["role"], result["role"], last) == ("assistant", "tool", assistant("3"))
    assert script.requests[1]["messages"] == messages
    assert [request["temperature"] for request in script.requests] == [0, 1, 1]
    assert [request["max_tokens"] for request in script.requests] == [9, 9, 9]


def test_prompt_cannot_add_a_second_system_message(client_class: Any):
    with started(text("Hi."), text("Hi."), client_class=client_class, system="be brief") as (conversation, script):
        for options in ({}, {"system": "be long"}):
            with pytest.raises(ValueError, match="the prompt has a system message, and"):
                conversation.say([{"role": "system", "content": "no"}, user("one")], **options)
    assert script.requests == []
    assert conversation.messages == [SYSTEM]


def test_system_message_of_a_turn_is_not_kept_and_messages_may_be_edited(client_class: Any):
    with started(text("Hi."), client_class=client_class, system="be brief") as (conversation, script):
        conversation.say("one", system="be long")
        assert conversation.messages == [SYSTEM, user("one"), assistant("Hi.")]
        conversation.messages[1]["content"] = "two"
        conversation.say("more")
    assert script.requests[0]["messages"] == [{"role": "system", "content": "be long"}, user("one")]
    assert script.requests[1]["messages"][:2] == [SYSTEM, user("two")]


def test_turn_is_added_with_its_last_event(client_class: Any):
    """And not if the stream is cancelled before."""
    with started(text("a", "b"), client_class=client_class) as (conversation, _):
        with conversation.stream("hi") as stream:
            assert next(event for event in stream if event.type == "content_delta").delta == "a"
        assert conversation.messages == []
        with conversation.stream("hi") as stream:
            assert "message_stop" in (event.type for event in stream)
            assert conversation.messages == [user("hi"), assistant("ab")]


@pytest.mark.parametrize(
    ("responses", "options", "error"),
    [
        ([[chunk(content="half")]], {}, IncompleteStream),
        ([calls(("add", "{}"))], {"tools": [add], "max_rounds": 2}, TooManyRounds),
        ([calls(("add", "{}")), [chunk(content="half")]], {"tools": [add]}, IncompleteStream),
        ([text("no JSON")], {"response_format": int}, DoesNotFit),
    ],
    ids=["cut", "rounds", "cut-in-the-second-round", "not-valid"],
)
def test_nothing_is_added_after_an_error(responses: List[Any], options: Any, error: Any, client_class: Any):
    with started(text("Hello."), *responses, client_class=client_class) as (conversation, _):
        conversation.say("hi")
        with pytest.raises(error):
            conversation.say("more", **options)
        assert conversation.messages == [user("hi"), assistant("Hello.")]


def test_prompt_may_be_messages_and_have_images():
    with started(text("ok")) as (conversation, _):
        conversation.say([user("a"), user("b")])
        conversation.say("what?", images=[b"GIF89a"])
    assert conversation.messages[:2] == [user("a"), user("b")]
    assert conversation.messages[3]["content"][1] == {"type": "text", "text": "what?"}


@pytest.mark.parametrize("make", [Conversation, AsyncConversation])
def test_client_of_the_other_kind_is_refused(make: Any):
    allowed, refused = (AsyncClient, Client) if make is AsyncConversation else (Client, AsyncClient)
    assert make(allowed()).messages == []
    for client in (refused(), None):
        with pytest.raises(TypeError, match=rf"{make.__name__} takes a client like {allowed.__name__}, not "):
            make(client)


def test_wrong_prompt_or_messages_are_found_at_once():
    conversation = Client("http://127.0.0.1:1").conversation()
    for call in (lambda: conversation.stream(None), lambda: conversation.stream(["a"])):
        with pytest.raises(TypeError, match=r"a prompt is text|a message is a dict"):
            call()
    with pytest.raises(TypeError, match="a message is a dict"):
        Conversation(Client(), messages=["a"])
    with pytest.raises(TypeError, match="'temprature'"):
        conversation.stream("a", temprature=0)


def test_save_and_load_give_the_same_messages(tmp_path: Path):
    path = tmp_path / "saved.json"
    with started(text("Grüße \ud83d\ude00"), system="be brief") as (conversation, _):
        conversation.say("hi\u2028there")
        conversation.save(path)
        conversation.save(path)
        again = Conversation.load(path, Client(), temperature=0)
    assert again.messages == conversation.messages
    assert [file.name for file in tmp_path.iterdir()] == ["saved.json"]
    assert "Grüße" in path.read_text(encoding="utf-8")
    again.messages.append(user("\ud83d"))  # A lone surrogate, which UTF-8 cannot encode.
    again.save(path)
    assert Conversation.load(path, Client()).messages == again.messages
    again.messages.append(user(math.inf))
    with pytest.raises(ValueError, match="JSON"):
        again.save(path)


def test_load_takes_a_bare_list_and_another_system_message(tmp_path: Path):
    path = tmp_path / "saved.json"
    path.write_text(json.dumps([{"role": "system", "content": "old"}, user("hi")]))
    assert Conversation.load(path, Client(), system="be brief").messages == [SYSTEM, user("hi")]


@pytest.mark.parametrize(
    "content",
    ["3", "{}", "[3]", '{"messages": {}}', "not JSON", "[" * 100_000, '[{"a": NaN}]', '[{"a": 1e999}]'],
    ids=repr,
)
def test_load_of_anything_else_is_a_value_error(tmp_path: Path, content: str):
    path = tmp_path / "saved.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=f"{re.escape(str(path))} is not a saved conversation: "):
        Conversation.load(path, Client())


def test_failed_save_leaves_the_existing_file_unchanged(tmp_path: Path):
    path = tmp_path / "saved.json"
    conversation = Conversation(Client())
    conversation.save(path)
    nested: Any = []
    for _ in range(100_000):
        nested = [nested]
    for content, error in ((object(), TypeError), (nested, ValueError)):
        conversation.messages[:] = [user(content)]
        with pytest.raises(error):
            conversation.save(path)
    assert [file.name for file in tmp_path.iterdir()] == ["saved.json"]
    assert json.loads(path.read_text()) == {"messages": []}
