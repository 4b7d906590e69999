"""The allowed side of each limit of the client, the values of its short waits, and a cancel at the worst moment."""

from __future__ import annotations

import json
import socket
import threading
from typing import Any

import pytest

import localchat.streams
import localchat.transport.call
import localchat.transport.pool
import localchat.transport.retries
from localchat import Client, ProtocolError, RateLimitError, SSEDecoder, SSEError, StatusError, Tool
from localchat.agent.tools import Toolbox, result_text
from localchat.embeddings import DEFAULT_BATCH_SIZE
from localchat.reply.assembly import Accumulator
from localchat.reply.tool_calls import _MAX_CALLS
from localchat.schema.structured import ExpectedValue
from localchat.terminal import ask, printing
from localchat.transport.http1 import _MAX_HEAD_BYTES, ResponseReader
from localchat.transport.sockets import Connection, Driver, run_blocking
from localchat.transport.timeouts import Timeout
from tests.support.clients import failure, make_client
from tests.support.raw_server import DEADLINE_S, HELLO, HELLO_JSON, always, with_length
from tests.support.scripted import playing, text


def test_smallest_values_of_the_options_are_allowed(client_class):
    options = {"max_retries": 0, "max_bytes": len(HELLO_JSON), "timeout": Timeout(DEADLINE_S, total=DEADLINE_S)}
    with always(with_length(HELLO_JSON)) as server, make_client(server, client_class, **options) as client:
        assert client.chat("hi", max_retries=0, retries_on_mismatch=0).text == "Hello"
        assert [reply.text for reply in client.map(["hi"], concurrency=1)] == ["Hello"]
        assert client.run("hi", max_rounds=1, parallel=0).text == "Hello"
    options = {"max_bytes": len(HELLO_JSON) - 1, "client_class": client_class}
    failure(always(with_length(HELLO_JSON)), ProtocolError, f"more than {len(HELLO_JSON) - 1} bytes", **options)


def test_smallest_batch_of_embeddings(client_class):
    body = json.dumps({"data": [{"index": 0, "embedding": [1.0]}]}).encode()
    with always(with_length(body)) as server, make_client(server, client_class) as client:
        assert client.embed(["a", "b"], batch_size=1) == [[1.0], [1.0]]
        assert [request.json["input"] for request in server.requests] == [["a"], ["b"]]
    assert DEFAULT_BATCH_SIZE == 256


def test_longest_name_of_a_tool_and_of_a_schema():
    assert Tool.of(print_nothing, name="x" * 64).name == "x" * 64
    with pytest.raises(ValueError, match="no name for a tool"):
        Tool.of(print_nothing, name="x" * 65)
    sent = ExpectedValue({"title": "y" * 65, "type": "object"}).apply({})["response_format"]["json_schema"]["name"]
    assert sent == "y" * 64


def print_nothing() -> None:
    """Do nothing."""


def test_a_choice_may_have_the_limit_of_calls():
    def add(n: int) -> Accumulator:
        accumulator = Accumulator()
        calls = [{"index": i, "id": str(i), "function": {"name": "f", "arguments": "{}"}} for i in range(n)]
        accumulator.add({"choices": [{"delta": {"tool_calls": calls}, "finish_reason": "tool_calls"}]})
        return accumulator

    assert len(add(_MAX_CALLS).reply().tool_calls) == _MAX_CALLS == 1000
    with pytest.raises(ProtocolError, match="more than 1000 tool calls"):
        add(_MAX_CALLS + 1)


def test_an_event_and_a_line_may_have_the_limit_of_bytes():
    line = b"data: 12345\n"  # The limit of a line counts the name of its field.
    assert SSEDecoder(len(line) - 1).feed(line + b"\n")[0].data == "12345"
    with pytest.raises(SSEError):
        SSEDecoder(len(line) - 2).feed(line + b"\n")
    lines = b"data:a\ndata:b\ndata:c\ndata:d\n\n"
    assert SSEDecoder(7).feed(lines)[0].data == "a\nb\nc\nd"
    with pytest.raises(SSEError):
        SSEDecoder(6).feed(lines)


def test_a_head_may_have_the_limit_of_bytes():
    start = b"HTTP/1.1 200 OK\r\nX: "
    response = ResponseReader()
    response.feed(start + b"x" * (_MAX_HEAD_BYTES - len(start)))
    response.feed(b"\r\nContent-Length: 0\r\n\r\n")
    assert response.ended


def test_longest_retry_after_is_waited_for(monkeypatch):
    waits: list[float] = []
    monkeypatch.setattr(Driver, "sleep", lambda driver, limit: done(waits.append(limit)))
    for seconds, n_tries in ((120, 2), (121, 1)):
        raw = with_length(b"{}", "429 Many", f"Retry-After: {seconds}\r\n")
        with always(raw) as server, make_client(server, max_retries=1) as client:
            with pytest.raises(RateLimitError):
                client.chat("hi")
            assert len(server.requests) == n_tries
    assert waits == [120]


async def done(value: Any) -> Any:
    return value


def test_tools_may_run_one_at_a_time():
    with playing(text("x")) as (client, _):
        assert client.run("hi", [print_nothing], parallel=1).text == "x"
    assert Toolbox([print_nothing], parallel=1).definitions[0]["function"]["name"] == "print_nothing"


@pytest.mark.parametrize(
    ("module", "name", "least", "most"),
    [
        (localchat.streams, "_AFTER_FINISH_S", 1, 10),
        (localchat.transport.call, "ERROR_BODY_S", 1, 10),
        (localchat.transport.call, "DRAIN_S", 0.02, 0.5),
        (localchat.transport.call, "_FIRST_LOOKUP_POLL_S", 0.0001, 0.001),
        (localchat.transport.call, "_MAX_LOOKUP_POLL_S", 0.001, 0.02),
        (localchat.transport.retries, "_FIRST_DELAY_S", 0.1, 1),
        (localchat.transport.retries, "_MAX_DELAY_S", 2, 20),
        (localchat.transport.pool, "_MAX_IDLE_S", 5, 60),
        (ask, "_NOTICE_S", 1, 5),
        (printing, "_NOTICE_S", 5, 20),
    ],
)
def test_waits_are_neither_too_short_nor_too_long(module: Any, name: str, least: float, most: float):
    """Tests replace these constants, so that none of them would notice another value."""
    assert least <= getattr(module, name) <= most


def test_other_letters_stay_readable_in_what_people_see():
    """And in what the model gets: escapes would take several tokens for each letter."""
    assert result_text({"größe": "é"}) == '{"größe": "é"}'
    failure(always(with_length('{"error": {"grund": "größe"}}'.encode(), "400 Bad")), StatusError, "größe")
    sent = ExpectedValue({"type": "object", "properties": {"größe": {}}})
    sent.weaken(StatusError(body="schema"))
    assert "größe" in sent.apply({"messages": []})["messages"][0]["content"]


def test_cancel_at_the_start_of_an_operation_wakes_it():
    """Between the check whether the call was cancelled and the operation, no cancel may be missed."""
    here, there = socket.socketpair()
    cancelled = threading.Event()
    driver, connection = Driver(), Connection(here)

    def cancel() -> None:
        driver.cancel()
        cancelled.set()

    class Checked(threading.Event):
        def is_set(self) -> bool:
            before = super().is_set()
            if not before and threading.current_thread() is reader:
                threading.Thread(target=cancel).start()
                cancelled.wait(0.2)  # Only an unlocked cancel can end here.
            return before

    received: list[Any] = []

    def read() -> None:
        received.append(run_blocking(driver.read(DEADLINE_S, connection)))

    driver._cancelled = Checked()
    reader = threading.Thread(target=read)
    with here, there:
        reader.start()
        assert cancelled.wait(DEADLINE_S)
        reader.join(DEADLINE_S / 2)
        assert received == [b""]


def test_client_without_a_server_ends_at_once(client_class):
    with always(HELLO) as server, make_client(server, client_class) as client:
        assert client.chat("hi").text == "Hello"
    assert Client("http://127.0.0.1:1", max_retries=0, model="m").map(["a"])[0].error is not None
