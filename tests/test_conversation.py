"""A conversation grows by whole turns only, whatever happens in one."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, List

import pytest

from localchat import Client, Conversation, DoesNotFit, IncompleteStream, TooManyRounds

from .clients import client_class
from .scripted import Answer, Script, calls, chunk, playing, text

__all__ = ["client_class"]  # A fixture: used by name.

SYSTEM = {"role": "system", "content": "be brief"}


def user(content: Any) -> Any:
    return {"role": "user", "content": content}


def assistant(content: str, **members: Any) -> Any:
    return {"role": "assistant", "content": content, **members}


@contextlib.contextmanager
def talking(*answers: Answer, client_class: Any = Client, **options: Any) -> Iterator[tuple[Any, Script]]:
    with playing(*answers, client_class=client_class) as (client, script):
        yield client.conversation(**options), script


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def test_turns_are_added_and_sent_again(client_class: Any):
    answers, options = (text("Hello."), text("Bye.")), {"system": "be brief", "temperature": 0}
    with talking(*answers, client_class=client_class, **options) as (talk, script):
        assert talk.say("hi").text == "Hello."
        assert talk.say("bye", temperature=1).text == "Bye."
    assert talk.messages == [SYSTEM, user("hi"), assistant("Hello."), user("bye"), assistant("Bye.")]
    assert script.requests[1]["messages"] == talk.messages[:-1]
    assert [request["temperature"] for request in script.requests] == [0, 1]


def test_turn_is_added_with_its_last_event():
    with talking(text("a", "b")) as (talk, _):
        with talk.stream("hi") as answer:
            for event in answer:
                if event.type == "message_stop":
                    break
                assert talk.messages == []
        assert talk.messages == [user("hi"), assistant("ab")]


def test_text_of_a_turn_is_streamed(client_class: Any):
    with talking(text("a", "b"), client_class=client_class) as (talk, _):
        assert list(talk.stream("hi").text) == ["a", "b"]
        assert talk.messages[-1] == assistant("ab")


def test_turn_with_tools_is_added_whole():
    with talking(calls(("add", '{"a": 1, "b": 2}')), text("3"), tools=[add]) as (talk, _):
        assert talk.say("1+2?").text == "3"
    assert [message["role"] for message in talk.messages] == ["user", "assistant", "tool", "assistant"]


@pytest.mark.parametrize(
    ("answers", "options", "error"),
    [
        ([[chunk(content="half")]], {}, IncompleteStream),
        ([calls(("add", "{}"))], {"tools": [add], "max_rounds": 2}, TooManyRounds),
        ([calls(("add", "{}")), [chunk(content="half")]], {"tools": [add]}, IncompleteStream),
        ([text("no JSON")], {"response_format": "name"}, DoesNotFit),
    ],
    ids=["cut", "rounds", "cut-in-the-second-round", "misfit"],
)
def test_nothing_is_added_after_an_error(answers: List[Any], options: Any, error: Any, client_class: Any):
    with talking(text("Hello."), *answers, client_class=client_class) as (talk, _):
        talk.say("hi")
        with pytest.raises(error):
            talk.say("more", **options)
        assert talk.messages == [user("hi"), assistant("Hello.")]


def test_nothing_is_added_after_a_cancel(client_class: Any):
    with talking(text("a", "b", "c"), client_class=client_class) as (talk, _):
        with talk.stream("hi") as answer:
            assert next(event for event in answer if event.type == "content_delta").delta == "a"
        assert talk.messages == []


def test_message_may_be_edited_between_turns():
    with talking(text("ok")) as (talk, script):
        talk.say("hi")
        talk.messages[0]["content"] = "hello"
        talk.say("more")
    assert script.requests[1]["messages"][0] == user("hello")


def test_system_of_one_turn_is_not_kept():
    with talking(text("ok")) as (talk, script):
        talk.say("hi", system="be brief")
    assert script.requests[0]["messages"] == [SYSTEM, user("hi")]
    assert talk.messages == [user("hi"), assistant("ok")]


def test_prompt_may_be_messages_and_have_images():
    with talking(text("ok")) as (talk, _):
        talk.say([user("a"), user("b")])
        talk.say("what?", images=[b"GIF89a"])
    assert talk.messages[:2] == [user("a"), user("b")]
    assert talk.messages[3]["content"][1] == {"type": "text", "text": "what?"}


def test_say_returns_the_requested_value():
    with talking(text('{"name": "Ann"}'), response_format="name") as (talk, _):
        assert talk.say("who?").parsed == {"name": "Ann"}


def test_reasoning_is_kept_as_it_came():
    with talking([chunk(reasoning="Hm."), *text("ok")]) as (talk, _):
        talk.say("hi")
    assert talk.messages[-1] == assistant("ok", reasoning="Hm.")


# Files


def test_save_and_load_give_the_same_messages(tmp_path: Path):
    path = tmp_path / "talk.json"
    with talking(text("Grüße \ud83d\ude00"), system="be brief") as (talk, _):
        talk.say("hi\u2028there")
        talk.save(path)
        talk.save(path)
        again = Conversation.load(path, Client(), temperature=0)
    assert again.messages == talk.messages
    assert [file.name for file in tmp_path.iterdir()] == ["talk.json"]
    assert "Grüße" in path.read_text(encoding="utf-8")


def test_load_takes_a_bare_list_and_another_system_message(tmp_path: Path):
    path = tmp_path / "talk.json"
    path.write_text(json.dumps([{"role": "system", "content": "old"}, user("hi")]))
    assert Conversation.load(path, Client(), system="be brief").messages == [SYSTEM, user("hi")]


def test_save_copes_with_half_a_surrogate_pair(tmp_path: Path):
    talk = Conversation(Client(), messages=[user("\ud83d")])
    talk.save(tmp_path / "talk.json")
    assert Conversation.load(tmp_path / "talk.json", Client()).messages == talk.messages


@pytest.mark.parametrize("content", ["3", "{}", "[3]", '{"messages": {}}', "not JSON"])
def test_load_of_anything_else_is_a_value_error(tmp_path: Path, content: str):
    path = tmp_path / "talk.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"no conversation|Expecting"):
        Conversation.load(path, Client())


def test_save_that_fails_leaves_the_older_file(tmp_path: Path):
    path = tmp_path / "talk.json"
    talk = Conversation(Client())
    talk.save(path)
    talk.messages.append(user(object()))
    with pytest.raises(TypeError):
        talk.save(path)
    assert [file.name for file in tmp_path.iterdir()] == ["talk.json"]
    assert json.loads(path.read_text()) == {"messages": []}


def test_save_keeps_links_and_permissions(tmp_path: Path):
    path, link = tmp_path / "talk.json", tmp_path / "link.json"
    path.write_text("{}", encoding="utf-8")
    path.chmod(0o600)
    link.symlink_to(path)
    talk = Conversation(Client(), messages=[{"role": "user", "content": "a"}])
    talk.save(link)
    assert link.is_symlink()
    assert Conversation.load(path, Client()).messages == talk.messages
    assert path.stat().st_mode & 0o777 == 0o600
    assert sorted(tmp_path.iterdir()) == [link, path]
