"""The fake server that programs use in their tests, with both clients."""

import http.client
import json
import threading
from typing import Any

import pytest

from localchat import (
    BadRequestError,
    Client,
    FakeServer,
    IncompleteReply,
    IncompleteStream,
    RateLimitError,
    Tool,
)
from tests.client.test_tools import add
from tests.support.deadline import wait_for


@pytest.fixture
def server() -> Any:
    with FakeServer() as server:
        yield server


def test_replies_come_in_order_and_requests_are_kept(server: FakeServer, client_class: Any):
    server.reply("Hello, world!", reasoning="Be polite.")
    server.reply("")
    with client_class(server.url, api_key="k") as client:
        pieces = [event.delta for event in client.stream("hi") if event.type == "content_delta"]
        assert pieces == ["Hello,", " world!"]
        assert client.chat("more", temperature=0).text == ""
    first, second = server.requests
    assert (first.path, first.headers["authorization"]) == ("/v1/chat/completions", "Bearer k")
    assert (first.json["model"], first.json["messages"]) == ("fake", [{"role": "user", "content": "hi"}])
    assert second.json["temperature"] == 0


def test_reply_has_reasoning_usage_and_its_finish_reason(server: FakeServer, client_class: Any):
    server.reply("Hi", reasoning="Be brief.", finish_reason="length")
    with client_class(server.url) as client:
        reply = client.chat("hi", max_tokens=1)
    assert (reply.text, reply.reasoning, reply.finish_reason) == ("Hi", "Be brief.", "length")
    assert reply.usage.total_tokens == 2


def test_calls_are_run_with_their_arguments(server: FakeServer, client_class: Any):
    server.reply("Let me see.", calls=[("add", {"a": 1, "b": 2}), ("add", {"a": 3, "b": 4})])
    server.reply("3 and 7")
    with client_class(server.url) as client:
        assert client.run("1+2, 3+4?", tools=[add]).text == "3 and 7"
    results = [message["content"] for message in server.requests[1].json["messages"] if message["role"] == "tool"]
    assert results == ["3", "7"]
    ids = [call["id"] for call in server.requests[1].json["messages"][1]["tool_calls"]]
    server.reply(calls=[("add", {"a": 1, "b": 2})])
    with Client(server.url) as client:  # As from a real server, no id comes twice.
        assert client.chat("1+2?", tools=[Tool.of(add)]).tool_calls[0].id not in ids


def test_errors_cuts_and_a_missing_response(server: FakeServer, client_class: Any):
    server.error(429, "busy", {"Retry-After": "7"})
    server.reply("half of", finish_reason=None)
    server.reply("all of", finish_reason="length")
    with client_class(server.url, max_retries=0) as client:
        with pytest.raises(RateLimitError, match="busy") as busy:
            client.chat("hi")
        with pytest.raises(IncompleteStream) as cut:
            client.chat("hi")
        with pytest.raises(IncompleteReply):
            client.chat("hi")
        with pytest.raises(BadRequestError, match=r"no response for request 4: add one with reply\(\)"):
            client.chat("hi")
    assert (busy.value.retry_after, cut.value.partial.text) == (7.0, "half of")


def test_server_outside_its_block_is_an_error():
    """A client would wait for its timeout."""
    server = FakeServer()
    with server:
        assert server.url
    with pytest.raises(RuntimeError, match="within its `with` block"):
        Client(server.url)


@pytest.mark.parametrize("stream", [True, False])
def test_response_without_a_finish_reason_is_cut(stream: bool, server: FakeServer, client_class: Any):
    server.reply("half of", finish_reason=None)
    with client_class(server.url, max_retries=0) as client, pytest.raises(IncompleteStream):
        client.chat("hi", extra_body={"stream": stream})


def test_other_requests_and_other_clients(server: FakeServer, client_class: Any):
    server.json({"data": [{"index": 0, "embedding": [0.5]}]})
    server.reply("done")
    server.reply("done", calls=[("f", {})])
    with client_class(server.url) as client:
        assert client.embed("a") == [0.5]
        assert client.complete("once").text == "done"
        assert client.models() == ["fake"]
    connection = http.client.HTTPConnection(server.url.split("/")[2], timeout=60)
    connection.request("POST", "/v1/chat/completions", json.dumps({"messages": []}))
    choice = json.load(connection.getresponse())["choices"][0]
    connection.close()
    assert (choice["message"]["content"], choice["finish_reason"]) == ("done", "tool_calls")
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}


def raw_stream(server: FakeServer, path: str, **fields: Any) -> list[Any]:
    """The payloads of a stream, as a program without a client of its own reads them."""
    connection = http.client.HTTPConnection(server.url.split("/")[2], timeout=60)
    try:
        connection.request("POST", f"/v1/{path}", json.dumps({"stream": True, **fields}))
        lines = connection.getresponse().read().decode().split("\n\n")
    finally:
        connection.close()
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line[len("data: ") :]) for line in lines[:-2]]


def test_stream_has_the_fields_of_real_servers(server: FakeServer):
    """The usage only if it is requested: its payload has no choice."""
    for path, options in (("chat/completions", None), ("completions", {"include_usage": True})):
        server.reply("a b")
        payloads = raw_stream(server, path, stream_options=options)
        assert all({"id", "object", "created", "model"} <= payload.keys() for payload in payloads)
        choices = [choice for payload in payloads for choice in payload["choices"]]
        assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["stop"]
        assert [payload["choices"] for payload in payloads if "usage" in payload] == ([[]] if options else [])
    assert "".join(choice["text"] for choice in choices) == "a b"


def test_every_client_notices_a_cut_stream(server: FakeServer):
    server.reply("half of", finish_reason=None)
    with pytest.raises(http.client.IncompleteRead):
        raw_stream(server, "chat/completions")


def test_client_may_leave_a_stream(server: FakeServer, capfd: Any):
    server.reply("word " * 100_000)
    with Client(server.url) as client, client.stream("hi") as stream:
        next(stream)
    wait_for(lambda: not any("process_request" in thread.name for thread in threading.enumerate()))
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("body", ["[1]", "{"])
def test_body_that_is_no_object_is_refused(body: str, server: FakeServer):
    server.reply("Hello")
    with Client(server.url, max_retries=0) as client:
        connection = http.client.HTTPConnection(server.url.split("/")[2], timeout=60)
        connection.request("POST", "/v1/chat/completions", body)
        assert connection.getresponse().status == 400
        connection.close()
        assert client.chat("hi").text == "Hello"


def test_server_of_one_test_ends_with_it():
    with FakeServer() as server:
        url = server.url
    with Client(url, max_retries=0) as client, pytest.raises(ConnectionError, match="nothing listens"):
        client.chat("hi")
