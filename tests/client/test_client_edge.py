"""What programs that know httpx and openai expect of the client: timeouts, errors, options, values and help."""

from __future__ import annotations

import json
import pydoc
from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest

from localchat import (
    AsyncClient,
    ChatOptions,
    Choice,
    Client,
    DoesNotFit,
    IncompleteReply,
    Reply,
    Timeout,
    ToolCall,
    ToolResult,
    Usage,
)
from localchat.events import ContentDelta, Logprobs, MessageStop, changed
from tests.support.clients import make_client
from tests.support.raw_server import DONE, HELLO, always, chunked, piece, serving, with_length

# Timeouts

NO_LIMIT = Timeout(None)


@pytest.mark.parametrize(
    ("timeout", "limits"),
    [
        (Timeout(), (5.0, 600.0, 120.0, 600.0, None)),
        (Timeout(30), (30, 30, 30, 30, 30)),
        (Timeout(None), (None, None, None, None, None)),
        (Timeout(30, connect=5, total=None), (5, 30, 30, 30, None)),
        (Timeout(first=None), (5.0, None, 120.0, 600.0, None)),
    ],
)
def test_timeout_is_one_number_for_all_limits_or_one_for_each(timeout: Timeout, limits: Any):
    assert (timeout.connect, timeout.first, timeout.idle, timeout.stall, timeout.total) == limits


def test_none_is_no_timeout_and_the_default_is_another_value():
    with Client(timeout=3) as client:
        for options, expected in (({}, Timeout(3)), ({"timeout": None}, NO_LIMIT), ({"timeout": Timeout()}, Timeout())):
            assert client.stream("hi", **options)._request.timeout == expected
            assert client.with_options(**options)._settings.timeout == expected
    assert Client()._settings.timeout == Timeout() != NO_LIMIT


# Options


def test_headers_are_merged_and_none_is_the_default_of_an_option(client_class, monkeypatch):
    monkeypatch.setenv("LOCALCHAT_MODEL", "")
    with always(HELLO) as server, make_client(server, client_class, headers={"X-A": "1", "X-B": "1"}) as client:
        other = client.with_options(headers={"x-b": "2"}, model=None)
        request = other._settings.request_headers({})
        assert (request["X-A"], request["x-b"], "X-B" in request) == ("1", "2", False)
        assert (client._settings.model, other._settings.model) == ("m", None)
        bare = other.with_options(headers=None, api_key="k")._settings
        assert (bare.headers, bare.key, other._settings.key) == ({}, "k", "")
    with pytest.raises(TypeError, match="headers is a Mapping, not a list"):
        Client().with_options(headers=[])  # type: ignore[typeddict-item]
    with pytest.raises(TypeError):
        Client().with_options("http://127.0.0.1:1")  # type: ignore[call-arg]


def test_system_beside_a_system_message_is_an_error(client_class):
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    with always(HELLO) as server, make_client(server, client_class) as client:
        for call in (client.chat, client.stream, client.run, lambda prompt, **given: client.map([prompt], **given)):
            with pytest.raises(ValueError, match="the prompt has a system message"):
                call(messages, system="be long")
        assert server.requests == []
        assert client.chat(messages).text == "Hello"
        assert server.requests[0].json["messages"] == messages


@pytest.mark.parametrize("tools", ["abc", b"abc", {"type": "function"}, 5, ["abc"], [5]])
def test_tools_that_are_no_list_of_tools_are_refused(tools, client_class):
    with always(HELLO) as server, make_client(server, client_class) as client:
        for call in (client.chat, client.stream):
            with pytest.raises(TypeError, match=r"tools is a list of tools|a tool is a dict"):
                call("hi", tools=tools)
    assert server.requests == []


def test_help_lists_the_options_of_each_method():
    for kind in (Client, AsyncClient):
        for method, names in {
            "chat": ("temperature: float | None", "extra_body: ", "retries_on_mismatch: int"),
            "stream": ("system: str | None", "timeout: Timeout | float | None"),
            "map": ("concurrency: int", "top_p: "),
            "run": ("max_rounds: int", "on_call: "),
            "conversation": ("raise_errors: bool",),
            "complete": ("suffix: str | None",),
            "embed": ("dimensions: int | None",),
            "request": ("extra_headers: ",),
        }.items():
            shown = pydoc.render_doc(getattr(kind, method), renderer=pydoc.plaintext)
            assert [name for name in names if name not in shown] == []
    options: ChatOptions = {"temperature": 0}
    assert ChatOptions(temperature=0) == options


# Streams


def test_finish_reads_to_the_end_and_returns_the_reply(client_class):
    with always(HELLO) as server, make_client(server, client_class) as client:
        stream = client.stream("hi")
        assert next(stream).type == "message_start"
        for _ in range(2):
            assert stream.finish().text == "Hello"
        assert server.connections == 1


@pytest.mark.parametrize("method", ["stream", "run_stream"])
def test_finish_never_returns_a_reply_that_was_cut(method, client_class):
    """Also after the events were read, and when it is called again."""
    with always(chunked(piece("[1", "length"), DONE)) as server, make_client(server, client_class) as client:
        begin = getattr(client, method)
        read = begin("hi")
        assert "".join(read.text) == "[1"
        for stream in (read, read, begin("hi"), begin("hi", response_format=list)):
            with pytest.raises(IncompleteReply):  # Not that the value does not match.
                stream.finish()
        with pytest.raises(DoesNotFit):
            list(begin("hi", response_format=list))
        for options in ({"allow_truncated": True}, {"max_tokens": 1}):
            assert begin("hi", **options).finish().truncated
        assert "allow_truncated" not in server.requests[-2].json


def test_failed_request_of_map_has_its_partial_reply(client_class):
    raws = [chunked(piece("a", "stop"), DONE), chunked(piece("b")), with_length(b"{}", "400 Bad")]

    def respond(request: Any, number: int) -> bytes:
        return raws[int(request.json["messages"][-1]["content"])]

    with serving(respond) as server, make_client(server, client_class) as client:
        replies = client.map(["0", "1", "2"])
    assert [[choice.text for choice in reply.choices] for reply in replies] == [["a"], ["b"], []]
    assert [type(reply.error).__name__ for reply in replies] == ["NoneType", "IncompleteStream", "BadRequestError"]
    assert replies[2].as_dict()["error"].startswith("BadRequestError: 400 from ")


# Values


@dataclass
class Day:
    at: date


CALL = ToolCall("1", "f", {"a": [1]}, '{"a": [1]}', extra={"signature": "s"}, raw={"x": 1})


def test_values_as_json():
    reply = Reply((Choice(text="hi", tool_calls=(CALL,)),), headers={"Set-Cookie": "x"}, raw={}, parsed=Day(date.max))
    assert json.loads(json.dumps(reply.as_dict())) == reply.as_dict()
    assert reply.as_dict()["parsed"] == {"at": "9999-12-31"}
    assert not {"raw", "headers"} & {*reply.as_dict(), *reply.as_dict()["choices"][0]["tool_calls"][0]}
    assert ContentDelta("a", raw={}).as_dict() == {"type": "content_delta", "delta": "a", "choice_index": 0}
    result = ToolResult(CALL, "text", value=object()).as_dict()
    assert (result["type"], result["call"]["arguments"], "value" in result) == ("tool_result", {"a": [1]}, False)
    with always(HELLO) as server, make_client(server) as client:
        for event in client.stream("hi"):
            assert json.dumps(event.as_dict()).startswith(f'{{"type": "{event.type}"')


def test_events_are_hashable():
    """Equal events have equal hashes, whatever they contain."""
    assert len({CALL, changed(CALL, raw={"x": 2}), changed(CALL, id="2")}) == 2
    logprobs = Logprobs(({"token": "a"},))
    assert len({logprobs, MessageStop("stop"), MessageStop("stop"), Usage(1), ToolResult(CALL, "a")}) == 4
    assert ToolResult(CALL, "a", value=1) == ToolResult(CALL, "a", value=2)
