"""Responses and calls with which other clients failed, by public reports. Each row is named after what is right."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from localchat import Client, IncompleteStream, ServerError
from tests.support.raw_server import (
    DEADLINE_S,
    DONE,
    HELLO,
    OPEN,
    STOP,
    always,
    choice,
    chunked,
    piece,
    sse,
    waiting,
    with_length,
)


def calling(*deltas: dict[str, Any]) -> bytes:
    """A response with these elements of `tool_calls`."""
    parts = [sse({"choices": [choice({"tool_calls": [delta]})]}) for delta in deltas]
    return chunked(*parts, sse({"choices": [choice({}, "tool_calls")]}), DONE)


def call(arguments: str | None = None, **fields: Any) -> dict[str, Any]:
    """An element of `tool_calls` with the index 0."""
    function = {"arguments": arguments, **({"name": fields.pop("name")} if "name" in fields else {})}
    return {"index": 0, **fields, "function": {name: value for name, value in function.items() if value is not None}}


REPEATED = {"id": "x", "type": "function", "name": "look"}
# What a server sends, and the only call: its id, name and arguments.
CALLS: dict[str, tuple[bytes, tuple[str, str, Any]]] = {
    "name cut in the middle, with arguments in both pieces": (
        calling(call('{"ci', id="x", name="get_wea"), call('ty": "Bonn"}', name="ther")),
        ("x", "get_weather", {"city": "Bonn"}),
    ),
    "name cut, the id in both pieces": (
        calling(call("", id="x", name="get_"), call('{"city": "Bonn"}', id="x", name="weather")),
        ("x", "get_weather", {"city": "Bonn"}),
    ),
    "name cut before the arguments": (
        calling(call(id="x", name="edit_ex"), call(name="isting_"), call(name="file"), call('{"a": 1}')),
        ("x", "edit_existing_file", {"a": 1}),
    ),
    "name grows": (
        calling(call(id="x", name="edit"), call(id="x", name="edit_file"), call('{"a": 1}')),
        ("x", "edit_file", {"a": 1}),
    ),
    "name after the first arguments": (
        calling(call('{"com', id="x"), call('mand": "ls"}', name="bash")),
        ("x", "bash", {"command": "ls"}),
    ),
    "empty names and ids after the first piece": (
        calling(call("", id="x", name="bash"), call('{"a":', id="", name=""), call(" 1}", id="", name="")),
        ("x", "bash", {"a": 1}),
    ),
    "another id after the first piece": (
        calling(call("", id="x", name="look"), call('{"a":', id="y"), call(" 1}", id="y")),
        ("x", "look", {"a": 1}),
    ),
    "id, type and name in every piece, with a second name of null": (
        calling(*({**call(text, **REPEATED), "name": None} for text in ("", '{"a":', " 1}"))),
        ("x", "look", {"a": 1}),
    ),
    "arguments as JSON in a JSON string": (
        calling(call(json.dumps('{"a": 1}'), id="x", name="look")),
        ("x", "look", {"a": 1}),
    ),
    "line ends in strings of the arguments": (
        calling(call('{\n"text": "a\n\tb"\n}', id="x", name="write")),
        ("x", "write", {"text": "a\n\tb"}),
    ),
    "escapes outside of strings, which are an error": (
        calling(call('{"text": \\"a\\"}', id="x", name="write")),
        ("x", "write", None),
    ),
}


@pytest.mark.parametrize(("raw", "expected"), CALLS.values(), ids=CALLS)
def test_call_is_assembled_and_can_be_sent_back(raw, expected):
    with always(raw) as server, Client(server.url, model="m") as client:
        reply = client.chat("hi")
    (found,) = reply.tool_calls
    assert (found.id, found.name, found.arguments) == expected
    (sent,) = reply.message["tool_calls"]
    assert json.loads(sent["function"]["arguments"]) == (expected[2] or {})


def used(delta: dict[str, Any], finish: str | None, prompt: Any, output: Any) -> bytes:
    """A payload with a usage."""
    counts = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": None}
    usage = {name: count for name, count in counts.items() if count != "none"}
    return sse({"choices": [choice(delta, finish)] if delta or finish else [], "usage": usage})


BARE = [sse({"choices": [{"index": 0, "delta": {"role": "assistant", "content": text}}]}) for text in ("a", "b")]
# What a server sends, then the text, the finish reason and the tokens of input and output.
REPLIES: dict[str, tuple[bytes, tuple[str, str, tuple[int, int] | None]]] = {
    "usage so far in every piece": (
        chunked(used({"content": "a"}, None, 5, 1), used({"content": "b"}, "stop", 5, 2), used({}, None, 5, 2), DONE),
        ("ab", "stop", (5, 2)),
    ),
    "usage without output tokens at first": (
        chunked(used({"content": ""}, None, 11, "none"), piece("a"), used({}, "stop", 11, 1), DONE),
        ("a", "stop", (11, 1)),
    ),
    "counts that are null": (
        chunked(used({"content": "a"}, None, None, None), STOP, used({}, None, 5, None), DONE),
        ("a", "stop", (5, 0)),
    ),
    "no finish reason in any piece, then [DONE]": (chunked(*BARE, DONE), ("ab", "stop", None)),
    "text beside the finish reason, then usage alone": (
        chunked(piece("a"), piece("b", "length"), used({}, None, 5, 2), DONE),
        ("ab", "length", (5, 2)),
    ),
    "infinite log probabilities": (
        chunked(
            sse({"choices": [{**choice({"content": "a"}, "stop"), "logprobs": {"content": [{"logprob": -1e999}]}}]}),
            DONE,
        ),
        ("a", "stop", None),
    ),
}


@pytest.mark.parametrize(("raw", "expected"), REPLIES.values(), ids=REPLIES)
def test_reply_is_complete(raw, expected):
    with always(raw) as server, Client(server.url, model="m") as client:
        reply = client.chat("hi", max_tokens=2)
    usage = reply.usage and (reply.usage.input_tokens, reply.usage.output_tokens)
    assert (reply.text, reply.finish_reason, usage) == expected


@dataclass
class Note:
    text: str


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ('```json\n{"text": "a"}', "a"),
        ('```\n{"text": "a"}\n', "a"),
        ('```JSON\r\n{"text": "```x```"}\r\n```\r\n', "```x```"),
        ('```json\n{"text": "a"}```', "a"),
    ],
    ids=["not closed", "not closed, with a line end", "fences in a string", "closed on the same line"],
)
def test_value_in_a_code_fence_is_read(content, text):
    with always(chunked(piece(content, "stop"), DONE)) as server, Client(server.url, model="m") as client:
        assert client.chat("hi", response_format=Note).parsed == Note(text)


FAILED: dict[str, tuple[bytes, type[Exception], str]] = {
    "empty body": (with_length(b""), IncompleteStream, "before its first choice"),
    "empty stream": (chunked(), IncompleteStream, "before its first choice"),
    "no finish reason and no [DONE]": (chunked(*BARE), IncompleteStream, "cut after 2 characters"),
    "error beside other fields": (
        with_length(b'{"success": false, "error": {"code": "E", "status": 500, "message": "try later"}}', "500 No"),
        ServerError,
        "try later",
    ),
}


@pytest.mark.parametrize(("raw", "kind", "words"), FAILED.values(), ids=FAILED)
def test_no_reply_is_an_error(raw, kind, words):
    with (
        always(raw) as server,
        Client(server.url, model="m", max_retries=0) as client,
        pytest.raises(kind, match=words),
    ):
        client.chat("hi")


def test_halves_of_characters_in_a_prompt_are_sent_as_json():
    """Python reads invalid bytes of files and arguments as such halves."""
    with always(HELLO) as server, Client(f"{server.url}/", model="m") as client:
        client.chat("a\ud83d \udce9")
    assert (server.requests[0].path, server.requests[0].body.isascii()) == ("/v1/chat/completions", True)
    assert server.requests[0].json["messages"][0]["content"] == "a\ud83d \udce9"


def test_stream_that_is_left_without_closing_it_disconnects():
    with waiting(OPEN) as server, Client(server.url, model="m") as client:
        for _ in client.stream("hi"):
            break
        assert server.left.wait(DEADLINE_S)
