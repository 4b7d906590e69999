"""The client against real sockets: small scripted servers in threads, a deadline on every wait."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import socket
import ssl
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import localchat.client
from localchat import (
    AuthenticationError,
    BadRequestError,
    Cancelled,
    Client,
    ConnectError,
    IncompleteStream,
    NotFoundError,
    ProtocolError,
    RateLimitError,
    ServerError,
    StatusError,
    StreamError,
    TimedOut,
    Timeout,
    chat,
)

from .raw_server import (
    ANSWER,
    DEADLINE_S,
    DONE,
    HELLO,
    KEY,
    MODELS,
    STOP,
    WHOLE,
    Peer,
    Request,
    Server,
    always,
    certificate,
    chunked,
    clean_environment,
    dripping,
    dripping_letters,
    full_listener,
    piece,
    pinging,
    pinging_with_pieces,
    serving,
    silent_server,
    sse,
    truncations,
    until_close,
    waiting,
    with_length,
    with_tls,
)

__all__ = ["certificate", "clean_environment"]  # Fixtures: used by name.


def make_client(server: Server, **options: Any) -> Client:
    options.setdefault("max_retries", 0)
    options.setdefault("model", "m")
    return Client(server.url, **options)


def failure(server: Server, kind: type[Exception], words: str = ".", **options: Any) -> Any:
    """The error in which one chat with this server ends."""
    with server, make_client(server, **options) as client, pytest.raises(kind, match=words) as caught:
        client.chat("hi")
    return caught.value


# Asking


def test_chat_returns_the_reply():
    with always(HELLO) as server, make_client(server) as client:
        reply = client.chat("hi")
        assert (str(reply), reply.finish_reason, reply.id, reply.model) == ("Hello", "stop", "1", "m")
        assert reply.usage is not None
        assert (reply.usage.input_tokens, reply.usage.output_tokens, reply.usage.total_tokens) == (3, 2, 5)


def test_stream_yields_typed_events():
    with always(HELLO) as server, make_client(server) as client, client.stream("hi") as stream:
        assert [event.type for event in stream] == [
            "message_start",
            "content_delta",
            "content_delta",
            "usage",
            "message_stop",
        ]
        assert stream.reply.text == "Hello"


def test_stream_text_yields_pieces():
    with always(HELLO) as server, make_client(server) as client, client.stream("hi") as stream:
        assert list(stream.text) == ["Hel", "lo"]


def test_stream_without_with_is_sent_by_the_first_step():
    with always(HELLO) as server, make_client(server) as client:
        stream = client.stream("hi")
        assert server.requests == []
        assert "".join(stream.text) == "Hello"


def test_request_carries_what_was_asked():
    with always(HELLO) as server, make_client(server, api_key=KEY, headers={"X-Mine": "1"}) as client:
        client.chat("hi", system="be brief", temperature=0, top_k=5, tools=[], extra_headers={"X-Other": "2"})
        request = server.requests[0]
        assert (request.method, request.path) == ("POST", "/v1/chat/completions")
        assert request.headers["authorization"] == f"Bearer {KEY}"
        assert (request.headers["x-mine"], request.headers["x-other"]) == ("1", "2")
        assert request.headers["host"] == f"127.0.0.1:{server.port}"
        assert "text/event-stream" in request.headers["accept"]
        assert request.json == {
            "model": "m",
            "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}],
            "temperature": 0,
            "top_k": 5,
            "stream": True,
            "stream_options": {"include_usage": True},
        }


def test_no_key_sends_no_authorization_c4():
    with always(HELLO) as server, make_client(server) as client:
        client.chat("hi")
        assert "authorization" not in server.requests[0].headers


def test_chat_without_streaming_on_the_wire():
    with always(with_length(WHOLE)) as server, make_client(server) as client:
        assert client.chat("hi", stream=False).text == "Hello"
        assert server.requests[0].json["stream"] is False
        assert "stream_options" not in server.requests[0].json


def test_large_body_is_read_in_linear_time():
    """Vectors of many texts are some hundred megabytes."""
    vectors = [{"index": i, "embedding": [0.5] * 1000} for i in range(1000)]
    raw = with_length(json.dumps({"data": vectors}).encode())
    with always(raw) as server, make_client(server) as client:
        assert len(client.embed(["a"] * 1000)) == 1000


def test_body_too_large_to_be_held_is_refused(monkeypatch):
    monkeypatch.setattr(localchat.client, "_MAX_JSON_BYTES", 10)
    with always(HELLO) as server, make_client(server) as client, pytest.raises(ProtocolError, match="more than 10"):
        client.models()


def test_models_lists_names():
    with always(HELLO) as server, make_client(server) as client:
        assert client.models() == ["first", "second"]


def test_model_is_the_first_on_offer_asked_once():
    with always(HELLO) as server, Client(server.url) as client:
        client.chat("hi")
        client.chat("hi")
        assert [request.method for request in server.requests] == ["GET", "POST", "POST"]
        assert [request.json["model"] for request in server.requests[1:]] == ["first", "first"]


def test_server_without_list_of_models_gets_no_model():
    def answer(request: Request, number: int) -> bytes:
        return with_length(b"", "404 Not Found") if request.method == "GET" else HELLO

    with serving(answer) as server, Client(server.url) as client:
        assert client.chat("hi").text == "Hello"
        assert "model" not in server.requests[-1].json


def test_environment_names_server_key_and_model(monkeypatch):
    with always(HELLO) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        monkeypatch.setenv("LOCALCHAT_MODEL", "mine")
        assert str(chat("hi")) == "Hello"
        assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"
        assert server.requests[0].json["model"] == "mine"


def test_empty_environment_is_like_none(monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", "")
    assert Client().base_url == "http://127.0.0.1:8080/v1"


def test_old_server_that_refuses_stream_options_is_asked_without():
    def answer(request: Request, number: int) -> bytes:
        if "stream_options" in request.json:
            return with_length(b'{"detail": "extra field stream_options"}', "422 Unprocessable")
        return HELLO

    with serving(answer) as server, make_client(server) as client:
        assert client.chat("hi").text == "Hello"
        assert client.chat("hi").text == "Hello"
        assert ["stream_options" in request.json for request in server.requests] == [True, False, False]


BASE_URLS = {
    "plain": ("http://h:1/v1", "http", "h", 1, "/v1"),
    "trailing-slash": ("http://h/v1/", "http", "h", 80, "/v1"),
    "https": ("https://h/v1", "https", "h", 443, "/v1"),
    "no-scheme": ("localhost:8080/v1", "http", "localhost", 8080, "/v1"),
    "no-path": ("http://h:1", "http", "h", 1, ""),
    "ipv6": ("http://[::1]:8080/v1", "http", "::1", 8080, "/v1"),
    "whole-endpoint": ("http://h/v1/chat/completions", "http", "h", 80, "/v1"),
    "upper-case": ("HTTP://H/v1", "http", "h", 80, "/v1"),
    "blank-in-path": ("http://h/a b/v1", "http", "h", 80, "/a%20b/v1"),
    "host-of-other-letters": ("http://b\u00fccher.example/v1", "http", "xn--bcher-kva.example", 80, "/v1"),
}


@pytest.mark.parametrize(("url", "scheme", "host", "port", "path"), BASE_URLS.values(), ids=BASE_URLS)
def test_base_url(url, scheme, host, port, path):
    address = Client(url).address
    assert (address.scheme, address.host, address.port, address.path) == (scheme, host, port, path)


@pytest.mark.parametrize(
    "url", ["ftp://h/v1", "http://", "http://user:pass@h/v1", "http://h:99999/v1", "http://a b/v1"]
)
def test_base_url_that_cannot_be_used(url):
    with pytest.raises(ValueError, match=r"base URL|[Pp]ort"):
        Client(url)


def test_base_url_keeps_its_query():
    with always(HELLO) as server, Client(server.url + "?api-version=1", model="m") as client:
        client.chat("hi")
        assert server.requests[0].path == "/v1/chat/completions?api-version=1"


# Forms of an answer


def with_chunks_of_one(body: bytes) -> bytes:
    """Byte by byte, so that the form of the answer cannot be told at once."""
    return chunked(*(bytes([byte]) for byte in body)).replace(b"text/event-stream", b"text/plain")


FORMS = {
    "chunked": HELLO,
    "one-chunk": chunked(b"".join(ANSWER)),
    "byte-chunks": with_chunks_of_one(b"".join(ANSWER)),
    "length": with_length(b"".join(ANSWER), headers="Content-Type: text/event-stream\r\n"),
    "until-close": until_close(*ANSWER),
    "http-1.0": b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + b"".join(ANSWER),
    "wrong-type": chunked(*ANSWER).replace(b"text/event-stream", b"text/plain"),
    "whole-json": with_length(WHOLE),
    "blank-lines-before-json": with_length(b"\n\n \r\n" + WHOLE),
    "pretty-json": with_length(json.dumps(json.loads(WHOLE), indent=2).encode() + b"\n"),
    "json-after-bom": with_length(b"\xef\xbb\xbf" + WHOLE),
    "bom-in-pieces-of-no-type": with_chunks_of_one(b"\xef\xbb\xbf" + b"".join(ANSWER)),
    "gzip": with_length(gzip.compress(b"".join(ANSWER)), headers="Content-Encoding: gzip\r\n"),
}


@pytest.mark.parametrize("raw", FORMS.values(), ids=FORMS)
def test_answer_in_every_form(raw):
    close = b"Connection: close" in raw or b"HTTP/1.0" in raw

    def handle(peer: Peer, server: Server) -> None:
        while peer.request() is not None:
            peer.send(raw)
            if close:
                return

    with Server(handle) as server, make_client(server) as client:
        for _ in range(3):
            reply = client.chat("hi")
            assert (reply.text, reply.finish_reason) == ("Hello", "stop")
        assert server.connections == (3 if close else 1)


NO_ANSWER = {
    "html": (b"<!doctype html><title>Sign in</title>", "is /v1 missing"),
    "text": (b"hello there", "no chat answer but text/html"),
    "other-json": (b'{"hello": 1}', "this JSON is no chat answer"),
    "list": (b"[1]", "no object"),
    "not-json": (b"{hello}", "is not JSON"),
    "bad-event": (b"data: {oops\n\n", "not JSON"),
}


@pytest.mark.parametrize(("body", "words"), NO_ANSWER.values(), ids=NO_ANSWER)
def test_no_chat_answer_is_a_protocol_error(body, words):
    raw = with_length(body, headers="Content-Type: text/html\r\n")
    with always(raw) as server, make_client(server) as client:
        with pytest.raises(ProtocolError, match=words) as caught:
            client.chat("hi")
        assert caught.value.partial is not None


@pytest.mark.parametrize("indent", [None, 2], ids=["one-line", "pretty"])
def test_json_body_cut_anywhere_is_incomplete(indent):
    """Also right after a brace, where it looks finished."""
    body = json.dumps(json.loads(WHOLE), indent=indent).encode()
    for end in (1, 7, len(body) // 2, body.index(b"}") + 1, body.rindex(b"]") + 1, len(body) - 1):
        for raw in (with_length(body)[: end - len(body)], until_close(body[:end])):
            failure(answering_once(raw), IncompleteStream)


def answering_once(raw: bytes) -> Server:
    """Sends the bytes and closes."""

    def handle(peer: Peer, server: Server) -> None:
        peer.request()
        peer.send(raw)

    return Server(handle)


STREAM_ERRORS = {
    "vllm": (piece("a") + b'data: {"error": {"message": "bad luck", "code": 400}}\n\n' + DONE),
    "text": piece("a") + b'data: {"error": "bad luck"}\n\n',
    "named-event": piece("a") + b'event: error\ndata: {"message": "bad luck"}\n\n',
    "llama-field": piece("a") + b'error: {"code": 500, "message": "bad luck"}\n\n' + DONE,
}


@pytest.mark.parametrize("body", STREAM_ERRORS.values(), ids=STREAM_ERRORS)
def test_error_in_the_stream_k5(body):
    with always(chunked(body)) as server, make_client(server) as client:
        seen = []
        with pytest.raises(StreamError, match="bad luck") as caught:
            seen += list(iter_into(client.stream("hi"), seen))
        assert [event.type for event in seen] == ["message_start", "content_delta", "error"]
        assert caught.value.partial is not None
        assert caught.value.partial.text == "a"


def iter_into(stream: Any, seen: list[Any]) -> Iterator[Any]:
    """Collect what comes before an error."""
    for event in stream:
        seen.append(event)
    return iter(())


def test_json_error_at_status_200_is_raised():
    failure(always(with_length(b'{"error": {"message": "bad luck"}}')), StreamError, "bad luck")


# The truncation matrix: framing by place of the cut. None stands for success.


@pytest.mark.parametrize(("raw", "expected"), list(truncations()))
def test_truncation_matrix(raw, expected):
    def handle(peer: Peer, server: Server) -> None:
        if peer.request() is not None:
            peer.send(raw)

    with Server(handle) as server, make_client(server) as client:
        if expected is None:
            assert client.chat("hi").text == "Hello"
            return
        with pytest.raises(expected) as caught:
            client.chat("hi")
        if b"Hel" in raw:
            assert caught.value.partial.text == "Hello"


ENDINGS = {
    "cut": (b"", IncompleteStream),
    "error": (b'data: {"error": "bad luck"}\n\n', StreamError),
    "no-json": (b"data: oops\n\n", ProtocolError),
}


@pytest.mark.parametrize(("ending", "kind"), ENDINGS.values(), ids=ENDINGS)
def test_text_held_back_for_a_tag_comes_before_the_error(ending, kind):
    seen: list[Any] = []
    with answering_once(until_close(piece("a <thi") + ending)) as server:
        client = make_client(server)
        with pytest.raises(kind) as caught:
            iter_into(client.stream("hi"), seen)
    assert "".join(event.delta for event in seen if event.type == "content_delta") == "a <thi"
    assert caught.value.partial.text == "a <thi"


def test_text_held_back_comes_before_a_timeout():
    seen: list[Any] = []
    with waiting(chunked(piece("a <thi"), end=False)) as server:
        client = make_client(server, timeout=0.05)
        with pytest.raises(TimedOut) as caught:
            iter_into(client.stream("hi"), seen)
    assert [event.delta for event in seen if event.type == "content_delta"] == ["a ", "<thi"]
    assert caught.value.partial is not None


def test_body_after_done_is_ignored():
    with always(chunked(piece("a"), DONE, piece("b"))) as server, make_client(server) as client:
        assert client.chat("hi").text == "a"


def test_finish_without_done_ends_although_the_connection_stays_open(monkeypatch):
    monkeypatch.setattr(localchat.client, "_AFTER_FINISH_S", 0.05)

    def handle(peer: Peer, server: Server) -> None:
        peer.request()
        peer.send(chunked(piece("Hello"), STOP, end=False))
        assert peer.is_gone()

    with Server(handle) as server, make_client(server) as client:
        assert client.chat("hi").text == "Hello"


def test_finish_without_done_ends_although_the_server_pings_for_ever(monkeypatch):
    monkeypatch.setattr(localchat.client, "_AFTER_FINISH_S", 0.05)
    with pinging(chunked(piece("Hello"), STOP, end=False)) as server, make_client(server) as client:
        assert client.chat("hi").text == "Hello"


BROKEN = b"zz\r\nno chunk\r\n"


@pytest.mark.parametrize("at_once", [True, False])
def test_wrong_framing_after_the_finish_is_only_the_end_of_the_connection(at_once):
    """And before it, an error that holds what came."""

    def handle(peer: Peer, server: Server) -> None:
        while peer.request() is not None:
            parts = [chunked(*pieces, end=False), BROKEN]
            peer.send(*([b"".join(parts)] if at_once else parts))

    pieces = [piece("Hello"), STOP]
    with Server(handle) as server, make_client(server) as client:
        for _ in range(2):
            assert client.chat("hi").text == "Hello"
        assert server.connections == 2
        pieces.pop()
        with pytest.raises(ProtocolError, match="no size of a chunk") as caught:
            client.chat("hi")
        assert caught.value.partial is not None
        assert caught.value.partial.text == "Hello"


# Clocks


OPEN = chunked(piece("a"), end=False)
CLOCKS = {
    "first-no-headers": (waiting, (), Timeout(first=0.05), "first"),
    "first-headers-only": (waiting, (chunked(end=False),), Timeout(first=0.05, idle=0.001), "first"),
    "first-only-pings": (pinging, (chunked(end=False),), Timeout(first=0.1), "first"),
    "idle": (waiting, (OPEN,), Timeout(idle=0.05), "idle"),
    "idle-from-a-number": (waiting, (OPEN,), 0.05, "idle"),
    "stall-although-pings": (pinging, (OPEN,), Timeout(idle=5, stall=0.1), "stall"),
    "stall-although-empty-pieces": (pinging_with_pieces, (OPEN,), Timeout(idle=5, stall=0.1), "stall"),
    "stall-although-a-chunk-size-drips": (dripping_letters, (OPEN, b"1;"), Timeout(idle=5, stall=0.1), "stall"),
    "first-although-the-head-drips": (dripping, (b"HTTP/1.1 200 OK\r\n",), Timeout(first=0.1), "first"),
    "first-although-announced": (
        dripping,
        (b"HTTP/1.1 102 Wait\r\n\r\nHTTP/1.1 102\r\n",),
        Timeout(first=0.1),
        "first",
    ),
    "total": (pinging, (OPEN,), Timeout(total=0.1), "total"),
    "total-although-the-head-drips": (dripping, (b"HTTP/1.1 200 OK\r\n",), Timeout(total=0.1), "total"),
}


@pytest.mark.parametrize(("kind_of_server", "parts", "timeout", "kind"), CLOCKS.values(), ids=CLOCKS)
def test_clock_runs_out(kind_of_server, parts, timeout, kind):
    with kind_of_server(*parts) as server, make_client(server, timeout=timeout) as client:
        with pytest.raises(TimedOut, match=f"Timeout.{kind}") as caught:
            client.chat("hi")
        assert caught.value.kind == kind
        assert caught.value.partial is not None or not parts


def test_clocks_do_not_run_while_nobody_reads():
    """Who reads an answer aloud takes long between two events, in which the server has been writing."""
    done = threading.Event()

    def handle(peer: Peer, server: Server) -> None:
        peer.request()
        peer.send(OPEN)
        assert done.wait(DEADLINE_S)
        peer.send(chunked(piece("b"), STOP, DONE).partition(b"\r\n\r\n")[2])

    with Server(handle) as server, make_client(server, timeout=Timeout(stall=0.5)) as client:
        texts = client.stream("hi").text
        assert next(texts) == "a"
        time.sleep(0.7)  # That is what is tested.
        done.set()
        assert list(texts) == ["b"]


def test_clock_runs_out_on_https(certificate):
    assert failure(with_tls(waiting(OPEN), certificate), TimedOut, timeout=0.05, verify=False).kind == "idle"


def test_connect_clock():
    with full_listener() as port:
        client = Client(f"http://127.0.0.1:{port}/v1", model="m", timeout=Timeout(connect=0.1), max_retries=0)
        with pytest.raises(TimedOut) as caught:
            client.chat("hi")
    assert caught.value.kind == "connect"


def test_connect_clock_holds_while_the_resolver_hangs(hanging_resolver):
    client = Client("http://h.example/v1", model="m", timeout=Timeout(connect=0.05), max_retries=0)
    with pytest.raises(TimedOut) as caught:
        client.chat("hi")
    assert caught.value.kind == "connect"


@pytest.fixture
def hanging_resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """An event that is set when the resolver has been asked."""
    asked, released = threading.Event(), threading.Event()

    def hang(*where: Any) -> list[Any]:
        asked.set()
        released.wait(DEADLINE_S)
        return []

    monkeypatch.setattr(localchat.client, "addresses", hang)
    yield asked
    released.set()


@pytest.mark.parametrize("raw", [b"", b"HTTP/1.1 200 OK\r\n"], ids=["silent", "dripping"])
def test_connect_clock_holds_for_the_tunnel_of_a_proxy(raw):
    server = dripping(raw) if raw else waiting()
    with server:
        proxy, timeout = f"http://127.0.0.1:{server.port}", Timeout(connect=0.1)
        client = Client("https://h.example/v1", model="m", proxy=proxy, timeout=timeout, max_retries=0)
        with pytest.raises(TimedOut) as caught:
            client.chat("hi")
    assert caught.value.kind == "connect"


def test_connect_clock_holds_for_the_handshake():
    with silent_server() as port, pytest.raises(TimedOut) as caught:
        Client(f"https://127.0.0.1:{port}/v1", model="m", timeout=Timeout(connect=0.1), max_retries=0).chat("hi")
    assert caught.value.kind == "connect"


def test_first_clock_holds_while_the_request_is_sent():
    """The server reads nothing, and the request is larger than any buffer."""
    with silent_server() as port:
        client = Client(f"http://127.0.0.1:{port}/v1", model="m", timeout=Timeout(first=0.1), max_retries=0)
        with pytest.raises(TimedOut) as caught:
            client.chat("x" * 30_000_000)
    assert caught.value.kind == "first"


def test_timeout_of_one_call():
    with waiting() as server, make_client(server) as client, pytest.raises(TimedOut):
        client.chat("hi", timeout=Timeout(first=0.05))


def test_timeout_of_one_call_is_that_of_the_models_too():
    """The list is asked for first, where no model is named."""
    with waiting() as server, Client(server.url, max_retries=0) as client:
        for ask in (client.chat, client.complete, client.embed):
            with pytest.raises(TimedOut):
                ask("hi", timeout=Timeout(first=0.05))


def test_total_is_that_of_all_requests_of_a_call():
    clocks = localchat.client.Clocks(Timeout(total=100))
    clocks.start()
    left = clocks.at_most(1000)
    clocks.start()
    assert clocks.at_most(1000) <= left <= 100


def test_body_of_an_error_is_waited_for_a_short_time_only(monkeypatch):
    monkeypatch.setattr(localchat.client, "ERROR_BODY_S", 0.05)
    raw = b'HTTP/1.1 503 Busy\r\nContent-Length: 100\r\n\r\n{"error": '
    assert failure(waiting(raw), ServerError).body == '{"error": '
    monkeypatch.setattr(localchat.client, "ERROR_BODY_S", DEADLINE_S)
    assert failure(waiting(raw), ServerError, timeout=Timeout(total=0.1)).body == '{"error": '


def test_clocks_hold_where_waits_are_cut_in_steps(monkeypatch):
    """As on Windows, for Ctrl-C."""
    monkeypatch.setattr(localchat.client, "_STEP_S", 0.005)
    assert failure(waiting(OPEN), TimedOut, timeout=0.05).kind == "idle"

    def handle(peer: Peer, server: Server) -> None:
        peer.request()
        time.sleep(0.03)  # Several steps.
        peer.send(HELLO)

    with Server(handle) as server, make_client(server) as client:
        assert client.chat("hi").text == "Hello"


# Cancelling


def cancel_while_reading(client: Client, stream: Any) -> float:
    """Seconds from close() in this thread to the end of the reader in another."""
    reading = threading.Event()
    outcome: list[BaseException] = []

    def read() -> None:
        try:
            for event in stream:
                if event.type == "content_delta":
                    reading.set()
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    assert reading.wait(DEADLINE_S)
    start = time.monotonic()
    stream.close()
    thread.join(DEADLINE_S)
    spent = time.monotonic() - start
    assert not thread.is_alive()
    assert [type(error) for error in outcome] == [Cancelled]
    assert outcome[0].partial.text == "a"
    return spent


def check_cancel(server: Server, client: Client) -> None:
    """Five tries, since this machine may be busy; the best one tells what the client adds."""
    with server, client:
        assert min(cancel_while_reading(client, client.stream("hi")) for _ in range(5)) < 0.05


def test_cancel_from_another_thread_http():
    server = waiting(OPEN)
    check_cancel(server, make_client(server))


@pytest.mark.parametrize("raw", [until_close(piece("a"))], ids=["until-close"])
def test_cancel_is_not_taken_for_the_end(raw):
    server = waiting(raw)
    check_cancel(server, make_client(server))


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="no unix sockets here")
def test_cancel_from_another_thread_unix(tmp_path):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "s"))
    listener.listen()
    check_cancel(waiting_on(listener, OPEN), Client(f"unix:{tmp_path}/s", model="m"))


def waiting_on(listener: socket.socket, *parts: bytes) -> Server:
    server = waiting(*parts)
    server.listener.close()
    server.listener = listener
    return server


def test_cancel_while_the_server_thinks():
    """Before any byte of an answer."""
    arrived = threading.Event()

    def handle(peer: Peer, server: Server) -> None:
        peer.request()
        arrived.set()
        assert peer.is_gone()

    with Server(handle) as server, make_client(server) as client:
        stream = client.stream("hi")
        threading.Thread(target=lambda: (arrived.wait(DEADLINE_S), stream.close())).start()
        with pytest.raises(Cancelled):
            next(stream)


def test_leaving_the_with_cancels():
    gone = threading.Event()

    def handle(peer: Peer, server: Server) -> None:
        peer.request()
        peer.send(OPEN)
        if peer.is_gone():
            gone.set()

    with Server(handle) as server, make_client(server) as client:
        with client.stream("hi") as stream:
            assert next(stream.text) == "a"
        assert gone.wait(DEADLINE_S)
        assert stream.reply.text == "a"
        with pytest.raises(Cancelled):
            next(stream)


def test_dropping_the_stream_closes_its_connection():
    """C17, without a with."""

    def handle(peer: Peer, server: Server) -> None:
        peer.request()
        peer.send(OPEN)
        assert peer.is_gone()

    with Server(handle) as server, make_client(server) as client:
        stream = client.stream("hi")
        next(stream)
        del stream


def test_close_while_another_thread_is_between_two_events():
    """Nobody waits for the network then: the next step has to notice."""
    with waiting(OPEN) as server, make_client(server) as client:
        stream = client.stream("hi")
        next(stream)
        thread = threading.Thread(target=stream.close)
        thread.start()
        thread.join(DEADLINE_S)
        with pytest.raises(Cancelled):
            next(stream)


def test_close_before_the_request_is_sent():
    with always(HELLO) as server, make_client(server) as client:
        stream = client.stream("hi")
        stream.close()
        with pytest.raises(Cancelled):
            next(stream)
        assert server.requests == []


def test_close_while_waiting_to_retry():
    waits = threading.Event()
    with always(with_length(b"{}", "503 Loading", "Retry-After: 60\r\n")) as server:
        client = make_client(server, max_retries=2, on_retry=lambda *_: waits.set())
        stream = client.stream("hi")
        thread = threading.Thread(target=lambda: (waits.wait(DEADLINE_S), stream.close()))
        thread.start()
        with client, pytest.raises(Cancelled):
            next(stream)
        thread.join(DEADLINE_S)


def test_close_while_the_models_are_listed():
    listing = threading.Event()

    def handle(peer: Peer, server: Server) -> None:
        peer.request()
        listing.set()
        assert peer.is_gone()

    with Server(handle) as server, Client(server.url) as client:
        stream = client.stream("hi")
        threading.Thread(target=lambda: (listing.wait(DEADLINE_S), stream.close())).start()
        with pytest.raises(Cancelled):
            next(stream)


@pytest.mark.parametrize(("scheme", "listening"), [("http", full_listener), ("https", silent_server)])
def test_close_while_it_connects(scheme, listening):
    """The server of http does not accept, that of https does not shake hands."""
    with listening() as port:
        stream = Client(f"{scheme}://127.0.0.1:{port}/v1", model="m", timeout=Timeout(connect=None)).stream("hi")
        threading.Timer(0.05, stream.close).start()
        start = time.monotonic()
        with pytest.raises(Cancelled):
            next(stream)
        assert time.monotonic() - start < DEADLINE_S / 2


def test_close_while_the_request_is_sent():
    with silent_server() as port:
        stream = Client(f"http://127.0.0.1:{port}/v1", model="m").stream("x" * 30_000_000)
        threading.Timer(0.3, stream.close).start()
        with pytest.raises(Cancelled):
            next(stream)


def test_close_while_the_resolver_hangs(hanging_resolver):
    stream = Client("http://h.example/v1", model="m", timeout=Timeout(connect=None)).stream("hi")
    threading.Thread(target=lambda: (hanging_resolver.wait(DEADLINE_S), stream.close())).start()
    start = time.monotonic()
    with pytest.raises(Cancelled):
        next(stream)
    assert time.monotonic() - start < DEADLINE_S / 2


def test_step_while_another_thread_closes(monkeypatch):
    closing, proceed = threading.Event(), threading.Event()
    with waiting(OPEN) as server, make_client(server) as client:
        stream = client.stream("hi")
        next(stream)
        release = stream._call.release

        def slow_release() -> None:
            closing.set()
            proceed.wait(DEADLINE_S)
            release()

        monkeypatch.setattr(stream._call, "release", slow_release)
        thread = threading.Thread(target=stream.close)
        thread.start()
        assert closing.wait(DEADLINE_S)
        with pytest.raises(Cancelled):
            next(stream)
        proceed.set()
        thread.join(DEADLINE_S)


def test_cancel_counts_although_more_has_come_already():
    """Another thread's close() cannot close the generator while it runs: the next step does."""
    with always(HELLO) as server, make_client(server) as client:
        stream = client.stream("hi")
        next(stream)
        stream._call.cancel()
        with pytest.raises(Cancelled) as caught:
            list(stream)
        assert caught.value.partial == stream.reply
        assert stream._call._connection is None


def test_cancel_does_not_end_the_encryption(certificate):
    """Another thread may be about to send the key."""
    with with_tls(waiting(OPEN), certificate) as server, make_client(server, verify=False) as client:
        stream = client.stream("hi")
        next(stream)
        sock: Any = stream._call._sock
        stream._call.cancel()
        assert sock.version() is not None
        stream.close()


def test_close_is_harmless_after_the_end_and_twice():
    with always(HELLO) as server, make_client(server) as client:
        stream = client.stream("hi")
        events = list(stream)
        stream.close()
        stream.close()
        assert events[-1].type == "message_stop"
        assert client.chat("hi").text == "Hello"
        assert server.connections == 1


# Connections


def test_thousand_calls_on_one_connection():
    with always(HELLO) as server, make_client(server) as client:
        for _ in range(1000):
            assert client.chat("hi").text == "Hello"
        assert server.connections == 1


def test_threads_share_a_client():
    with always(HELLO) as server, make_client(server) as client:
        texts: list[str] = []

        def ask() -> None:
            texts.extend(client.chat("hi").text for _ in range(100))

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
        assert texts == ["Hello"] * 800
        assert server.connections <= 8


def test_connection_closed_while_idle_is_noticed():
    """The server closes after each answer without saying so."""
    closed = threading.Semaphore(0)

    def handle(peer: Peer, server: Server) -> None:
        peer.request()
        peer.send(HELLO)
        peer.sock.shutdown(socket.SHUT_RDWR)
        closed.release()

    with Server(handle) as server, make_client(server) as client:
        for _ in range(3):
            assert client.chat("hi").text == "Hello"
            assert closed.acquire(timeout=DEADLINE_S)
        assert server.connections == 3


def test_connection_closed_as_we_write_is_retried_once_without_counting():
    """The second request of a connection is read, and the connection closed instead of an answer."""

    def handle(peer: Peer, server: Server) -> None:
        peer.request()
        peer.send(HELLO)
        peer.request()

    with Server(handle) as server, make_client(server, max_retries=0) as client:
        for _ in range(4):
            assert client.chat("hi").text == "Hello"
        assert server.connections == 4


def test_client_survives_a_fork():
    if not hasattr(os, "fork"):
        pytest.skip("no fork here")
    with always(HELLO) as server:
        program = (
            "import os, sys, localchat\n"
            "client = localchat.Client(sys.argv[1], model='m')\n"
            "assert client.chat('hi').text == 'Hello'\n"
            "child = os.fork()\n"
            "assert client.chat('hi').text == 'Hello'\n"
            "if child: assert os.waitpid(child, 0)[1] == 0\n"
        )
        done = subprocess.run([sys.executable, "-c", program, server.url], timeout=DEADLINE_S, check=False)
        assert done.returncode == 0
        assert server.connections == 2


def test_stream_of_the_parent_is_not_cut_by_a_child():
    """Which leaves the `with` that both were in."""
    if not hasattr(os, "fork"):
        pytest.skip("no fork here")
    child_is_gone = threading.Event()

    def handle(peer: Peer, server: Server) -> None:
        while (request := peer.request()) is not None:
            if request.method == "GET":
                child_is_gone.set()
                peer.send(MODELS)
                continue
            peer.send(OPEN)
            assert child_is_gone.wait(DEADLINE_S)
            peer.send(chunked(piece("b"), STOP, DONE).partition(b"\r\n\r\n")[2])

    program = (
        "import os, sys, localchat\n"
        "client = localchat.Client(sys.argv[1], model='m')\n"
        "with client.stream('hi') as stream:\n"
        "    assert next(stream.text) == 'a'\n"
        "    child = os.fork()\n"
        "    if not child:\n"
        "        stream.close()\n"
        "        os._exit(0)\n"
        "    os.waitpid(child, 0)\n"
        "    client.models()\n"
        "    assert ''.join(stream.text) == 'b'\n"
    )
    with Server(handle) as server:
        done = subprocess.run([sys.executable, "-c", program, server.url], timeout=DEADLINE_S, check=False)
        assert done.returncode == 0


def test_unix_socket(tmp_path):
    if not hasattr(socket, "AF_UNIX"):
        pytest.skip("no unix sockets here")
    path = tmp_path / "s"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    server = always(HELLO)
    server.listener.close()
    server.listener = listener
    quoted = str(path).replace("/", "%2F")
    with server:
        for url in (f"unix:{path}", f"unix://{path}", f"http+unix://{quoted}/v1"):
            with Client(url, model="m") as client:
                assert client.chat("hi").text == "Hello"
        assert {request.path for request in server.requests} == {"/v1/chat/completions"}


def test_localhost_tries_ipv4_first():
    families = [info[0] for info in localchat.client.addresses("localhost", 80)]
    assert families[0] == socket.AF_INET


@pytest.mark.parametrize("verify", ["path", "context", False], ids=str)
def test_tls(certificate, verify):
    if verify == "path":
        verify = f"{certificate}.crt"
    elif verify == "context":
        verify = ssl.create_default_context(cafile=f"{certificate}.crt")
    with with_tls(always(HELLO), certificate) as server, make_client(server, verify=verify) as client:
        for _ in range(3):
            assert client.chat("hi").text == "Hello"


@pytest.mark.parametrize("content", [None, "nonsense"])
def test_verify_that_is_no_file_of_certificates(content, tmp_path):
    path = tmp_path / "ca.pem"
    if content:
        path.write_text(content)
    with always(HELLO) as server, pytest.raises(ValueError, match=r"verify must name a file of certificates.*ca\.pem"):
        Client(server.url.replace("http:", "https:"), model="m", verify=str(path)).chat("hi")


def test_tls_untrusted_certificate_says_which_knob(certificate):
    failure(with_tls(always(HELLO), certificate), ConnectError, "verify=PATH")


def test_tls_to_a_plain_server_says_so():
    with Server(lambda peer, server: peer.send(b"HTTP/1.1 400 Bad\r\n\r\n")) as server:
        client = Client(server.url.replace("http:", "https:"), model="m", max_retries=0)
        with pytest.raises(ConnectError, match="does not speak TLS"):
            client.chat("hi")


def test_cancel_from_another_thread_https(certificate):
    server = with_tls(waiting(OPEN), certificate)
    check_cancel(server, make_client(server, verify=False))


# Proxies


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "localhost", "[::1]", "a.localhost", "0.0.0.0", "[::]"])
def test_loopback_never_uses_a_proxy(host, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert find_proxy(f"http://{host}:8080/v1") is None


NO_PROXY = {
    "none": ("", "http://h.example/v1", True),
    "name": ("h.example", "http://h.example/v1", False),
    "suffix": ("example", "http://h.example/v1", False),
    "dotted-suffix": (".example", "http://h.example/v1", False),
    "star-suffix": ("*.example", "http://h.example/v1", False),
    "no-suffix": ("ample", "http://h.example/v1", True),
    "star": ("*", "http://h.example/v1", False),
    "second": ("a, h.example", "http://h.example/v1", False),
    "port": ("h.example:81", "http://h.example:81/v1", False),
    "other-port": ("h.example:81", "http://h.example:82/v1", True),
    "cidr": ("10.0.0.0/8", "http://10.1.2.3/v1", False),
    "other-cidr": ("10.0.0.0/8", "http://11.1.2.3/v1", True),
    "cidr6": ("fd00::/8", "http://[fd00::1]/v1", False),
    "cidr-and-name": ("10.0.0.0/8", "http://h.example/v1", True),
    "nonsense": ("a/b", "http://h.example/v1", True),
}


@pytest.mark.parametrize(("no_proxy", "url", "proxied"), NO_PROXY.values(), ids=NO_PROXY)
def test_no_proxy(no_proxy, url, proxied, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", no_proxy)
    assert find_proxy(url) == ("http://proxy:3128" if proxied else None)


def find_proxy(url: str, proxy: str | bool | None = None) -> str | None:
    return localchat.client.find_proxy(Client(url).address, proxy)


def test_proxy_by_argument(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://env:1")
    assert find_proxy("http://h.example/v1", "http://mine:2") == "http://mine:2"
    assert find_proxy("http://h.example/v1", False) is None


@pytest.mark.parametrize("scheme", ["http://", ""])
def test_http_goes_through_the_proxy_with_its_whole_address(scheme):
    with always(HELLO) as server:
        proxy = f"{scheme}user:pass@127.0.0.1:{server.port}"
        with Client("http://h.example/v1", model="m", proxy=proxy, max_retries=0) as client:
            assert client.chat("hi").text == "Hello"
        request = server.requests[0]
        assert request.path == "http://h.example/v1/chat/completions"
        assert request.headers["host"] == "h.example"
        assert request.headers["proxy-authorization"] == "Basic dXNlcjpwYXNz"


def test_https_goes_through_a_tunnel(certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    connects: list[str] = []

    def handle(peer: Peer, server: Server) -> None:
        request = peer.request()
        assert request is not None
        connects.append(f"{request.method} {request.path}")
        peer.send(b"HTTP/1.1 200 Connection established\r\n\r\n")
        inner = Peer(context.wrap_socket(peer.sock, server_side=True))
        request = inner.request()
        assert request is not None
        assert "proxy-authorization" not in request.headers
        inner.send(HELLO)
        inner.is_gone()
        inner.close()

    with Server(handle) as server:
        proxy = f"http://127.0.0.1:{server.port}"
        with Client("https://h.example/v1", model="m", proxy=proxy, verify=False) as client:
            assert client.chat("hi").text == "Hello"
    assert connects == ["CONNECT h.example:443"]


@pytest.mark.parametrize(
    "raw", [b"HTTP/1.1 407 Log in\r\n\r\n", b"nonsense\r\n\r\n", b""], ids=["407", "nonsense", "closed"]
)
def test_proxy_that_gives_no_tunnel(raw):
    def handle(peer: Peer, server: Server) -> None:
        peer.request()
        peer.send(raw)

    with Server(handle) as server:
        proxy = f"http://127.0.0.1:{server.port}"
        client = Client("https://h.example/v1", model="m", proxy=proxy, max_retries=0)
        with pytest.raises(ConnectError, match="through the proxy"):
            client.chat("hi")


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a..b", "x" * 70])
def test_host_that_does_not_exist(host):
    with pytest.raises(ConnectError, match=r"not known|no connection"):
        Client(f"http://{host}/v1", model="m", max_retries=0).chat("hi")


def test_tunnel_to_an_ipv6_address():
    address = Client("https://[2001:db8::1]/v1").address
    request = localchat.client.tunnel_request(address, "http://proxy")
    assert request.startswith(b"CONNECT [2001:db8::1]:443 HTTP/1.1\r\nHost: [2001:db8::1]:443\r\n")


def test_proxy_with_a_wrong_url_is_a_connect_error():
    for proxy in ("http://p:99999", "http://user:sec/ret@p:80"):
        with pytest.raises(ConnectError, match="the proxy's URL cannot be read") as caught:
            Client("http://h.example/v1", model="m", proxy=proxy, max_retries=0).chat("hi")
        assert "sec" not in "".join(traceback.format_exception(None, caught.value, None))


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:1", "https://127.0.0.1:1"])
def test_proxy_of_another_kind_is_an_error_only_when_used(proxy, monkeypatch):
    monkeypatch.setenv("ALL_PROXY", proxy)
    with always(HELLO) as server, make_client(server) as client:
        assert client.chat("hi").text == "Hello"
    with pytest.raises(ConnectError, match="only http:// proxies"):
        Client("http://h.example/v1", model="m", max_retries=0).chat("hi")


# Statuses and retries


STATUSES = {
    "400": (400, b'{"error": {"message": "bad x", "param": "x", "code": "c"}}', BadRequestError, "bad x"),
    "401": (401, b'{"error": "no key"}', AuthenticationError, "set OPENAI_API_KEY"),
    "404-html": (404, b"<html>", NotFoundError, "<html>"),
    "429": (429, b"slow down", RateLimitError, "slow down"),
    "503": (503, b'{"message": "loading"}', ServerError, "loading"),
    "302": (302, b"", StatusError, "redirects to http://elsewhere/v1"),
    "empty": (500, b"", ServerError, "no reason given"),
    "too-long-in-words": (
        400,
        b'{"error": {"message": "This model\'s maximum context length is 40 tokens. However, you requested 50 tokens '
        b'(45 in the messages, 5 in the completion)."}}',
        BadRequestError,
        "10 more than the context of 40",
    ),
    "too-long": (
        400,
        b'{"error": {"message": "too long", "n_prompt_tokens": 50, "n_ctx": 40}}',
        BadRequestError,
        "10 more than the context of 40",
    ),
}


@pytest.mark.parametrize(("status", "body", "kind", "words"), STATUSES.values(), ids=STATUSES)
def test_status_becomes_its_error(status, body, kind, words):
    headers = "Location: http://elsewhere/v1\r\nX-Request-Id: r1\r\nRetry-After: 3\r\n"
    raw = with_length(body, f"{status} Reason", headers)
    with always(raw) as server, make_client(server) as client:
        for _ in range(2):
            with pytest.raises(kind, match=words) as caught:
                client.chat("hi")
        error = caught.value
        assert (error.status, error.request_id, error.retry_after) == (status, "r1", 3.0)
        assert error.body == body.decode()
        assert server.connections == 1


def test_unknown_model_names_those_on_offer():
    raw = with_length(b'{"error": {"message": "no such model", "code": "model_not_found"}}', "404 Not Found")
    failure(always(raw), NotFoundError, "it offers first, second")


def test_missing_v1_is_pointed_out():
    with always(with_length(b"", "404 Not Found")) as server:
        client = Client(server.url[: -len("/v1")], model="m")
        with client, pytest.raises(NotFoundError, match="is /v1 missing"):
            client.chat("hi")


def test_nothing_listens():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ConnectError, match=f"nothing listens on 127.0.0.1:{port}: start a server"):
        Client(f"http://127.0.0.1:{port}/v1", model="m", max_retries=0).chat("hi")


def test_upload_refused_early_still_gives_the_status():
    def handle(peer: Peer, server: Server) -> None:
        peer.send(with_length(b'{"error": "too big"}', "413 Too Large", "Connection: close\r\n"))
        peer.sock.shutdown(socket.SHUT_WR)
        while peer.sock.recv(65536):
            pass

    with Server(handle) as server, make_client(server) as client, pytest.raises(StatusError, match="too big"):
        client.chat("x" * 10_000_000)


@pytest.fixture
def no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(localchat.client, "_FIRST_DELAY_S", 0.001)


RETRIED = {
    "408": ("408 Timeout", "", True),
    "409": ("409 Conflict", "", True),
    "429": ("429 Many", "", True),
    "500": ("500 Bad", "", True),
    "503": ("503 Loading", "Retry-After: 0.001\r\n", True),
    "400": ("400 Bad", "", False),
    "404": ("404 Missing", "", False),
    "429-but-told-not-to": ("429 Many", "X-Should-Retry: false\r\n", False),
    "400-but-told-to": ("400 Bad", "X-Should-Retry: true\r\n", True),
    "too-long-to-wait": ("503 Loading", "Retry-After: 121\r\n", False),
}


@pytest.mark.parametrize(("status", "headers", "retried"), RETRIED.values(), ids=RETRIED)
def test_retry_by_status(status, headers, retried, no_delay):
    def answer(request: Request, number: int) -> bytes:
        return HELLO if number == 3 else with_length(b"{}", status, headers)

    reports: list[int] = []
    with serving(answer) as server:
        client = make_client(server, max_retries=2, on_retry=lambda number, *_: reports.append(number))
        if retried:
            assert client.chat("hi").text == "Hello"
            assert reports == [1, 2]
        else:
            with pytest.raises(StatusError):
                client.chat("hi")
            assert reports == []
        client.close()


def test_retries_end(no_delay):
    with always(with_length(b"{}", "500 Bad")) as server, make_client(server, max_retries=2) as client:
        with pytest.raises(ServerError):
            client.chat("hi")
        assert len(server.requests) == 3


def test_dropped_request_is_retried(no_delay):
    server = serving(lambda request, number: None if number < 3 else HELLO)
    with server, make_client(server, max_retries=2) as client:
        assert client.chat("hi").text == "Hello"


def test_answer_that_is_cut_in_its_head_is_retried(no_delay):
    server = answering_once(b"")
    raws = [b"HTTP/1.1 200 OK\r\nContent-Le", HELLO]
    server.handle = lambda peer, server: (peer.request(), peer.send(raws.pop(0)))
    with server, make_client(server, max_retries=2) as client:
        assert client.chat("hi").text == "Hello"


def test_nothing_is_retried_once_the_answer_has_begun(no_delay):
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + piece("a")

    def handle(peer: Peer, server: Server) -> None:
        peer.request()
        peer.send(raw)

    with Server(handle) as server, make_client(server, max_retries=2) as client:
        with pytest.raises(IncompleteStream):
            client.chat("hi")
        assert server.connections == 1


DELAYS = {
    "none": ({}, None),
    "seconds": ({"retry-after": "2.5"}, 2.5),
    "milliseconds-first": ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
    "nonsense": ({"retry-after": "soon"}, None),
    "nan": ({"retry-after": "nan"}, None),
}


@pytest.mark.parametrize(("headers", "seconds"), DELAYS.values(), ids=DELAYS)
def test_retry_after(headers, seconds):
    assert localchat.client._retry_after(headers) == seconds


def test_retry_after_as_a_date():
    import email.utils

    date = email.utils.formatdate(time.time() + 60, usegmt=True)
    seconds = localchat.client._retry_after({"retry-after": date})
    assert seconds is not None
    assert 55 < seconds < 65


def test_delay_grows_to_a_limit_with_jitter():
    client = Client(max_retries=100)
    for tries, longest in ((0, 0.5), (1, 1.0), (2, 2.0), (4, 8.0), (9, 8.0)):
        delay = client.retry_delay(ConnectError("x"), tries)
        assert delay is not None
        assert 0.75 * longest <= delay <= longest


# The key


def test_key_is_in_no_error(no_delay):
    echo = f'{{"error": "wrong key {KEY}"}}'.encode()
    answers = {
        "status": with_length(echo, "401 No"),
        "stream": chunked(b"data: " + echo + b"\n\n"),
        "flat": chunked(sse({"object": "error", "message": KEY})),
        "detail": with_length(f'{{"detail": "{KEY}"}}'.encode()),
        "protocol": with_length(f"hello {KEY}".encode()),
        "broken": f"{KEY}\r\n\r\n".encode(),
    }
    for raw in answers.values():
        with always(raw + b"\r\n") as server, make_client(server, api_key=KEY) as client:
            with pytest.raises(localchat.LocalChatError) as caught:
                client.chat("hi")
            error = caught.value
            assert KEY not in f"{error!s} {error!r} {vars(error)} {client!r}"
            assert KEY not in "".join(traceback.format_exception(type(error), error, error.__traceback__))
            assert KEY.encode() not in pickle.dumps(error)


def test_key_is_not_sent_to_a_redirect_target():
    with always(HELLO) as target:
        raw = with_length(b"", "307 Moved", f"Location: {target.url}\r\n")
        failure(always(raw), StatusError, "it redirects to", api_key=KEY)
        assert target.requests == []


def test_redirect_on_the_same_server_is_followed_if_asked():
    """The body is kept, and so is the key: it goes to the same server."""

    def answer(request: Request, number: int) -> bytes:
        if request.path not in MOVES:
            return HELLO
        return with_length(b"", f"{307 + number % 2} Moved", f"Location: {MOVES[request.path]}\r\n")

    with serving(answer) as server, make_client(server, api_key=KEY, follow_redirects=True) as client:
        assert client.chat("hi").text == "Hello"
        assert [request.path for request in server.requests] == ["/v1/chat/completions", "/v2/a", "/v2/b?c=d"]
        assert len({request.body for request in server.requests}) == 1
        assert server.requests[-1].headers["authorization"] == f"Bearer {KEY}"


MOVES = {"/v1/chat/completions": "/v2/a", "/v2/a": "b?c=d"}


@pytest.mark.parametrize(
    "location",
    [
        "https://127.0.0.1:{port}/v1",
        "http://localhost:{port}/v1",
        "//127.0.0.1:1/v1",
        "http://127.0.0.1:99999/",
        "http://[bad",
        "",
    ],
)
def test_redirect_to_another_origin_is_never_followed(location):
    server = always(HELLO)
    moved = with_length(b"", "307 Moved", f"Location: {location.format(port=server.port)}\r\n")
    server.handle = serving_raw(moved)
    failure(server, StatusError, "it redirects to", api_key=KEY, follow_redirects=True)
    assert len(server.requests) <= 6


def serving_raw(raw: bytes) -> Any:
    def handle(peer: Peer, server: Server) -> None:
        while (request := peer.request()) is not None:
            server.requests.append(request)
            peer.send(raw)

    return handle


def test_redirects_in_a_circle_end():
    raw = with_length(b"", "307 Moved", "Location: /v1/chat/completions\r\n")
    with always(raw) as server, make_client(server, follow_redirects=True) as client:
        with pytest.raises(StatusError, match="it redirects to"):
            client.chat("hi")
        assert len(server.requests) == 6


@pytest.mark.parametrize("key", ["a\nb", "a\r\nX: y", "a\0b", "k\u00e9y"], ids=["lf", "crlf", "nul", "non-ascii"])
def test_key_that_cannot_be_sent_is_refused_without_showing_it(key):
    with pytest.raises(ValueError, match="is the API key right") as caught:
        Client(api_key=key)
    assert key not in str(caught.value)


def test_other_header_that_cannot_be_sent_is_refused_without_showing_it():
    with pytest.raises(ValueError, match="X-Api-Key") as caught:
        Client(model="m", headers={"X-Api-Key": "secret\n"}).chat("hi")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("name", ["X\r\nY", "X Y", "X:", "", "\u00e9"])
def test_header_name_that_cannot_be_sent_is_refused(name):
    with pytest.raises(ValueError, match="no name of a header"):
        Client(model="m", headers={name: "1"}).chat("hi")


def test_header_that_is_no_text_is_refused():
    with pytest.raises(ValueError, match="X-Count is no text"):
        Client(model="m").chat("hi", extra_headers={"X-Count": 3})


def test_header_replaces_another_in_any_case():
    with always(HELLO) as server, make_client(server, api_key=KEY, headers={"AUTHORIZATION": "mine"}) as client:
        client.chat("hi", extra_headers={"content-type": "text/json"})
        client.chat("hi", extra_headers={"authorization": "theirs"})
        assert [request.headers["authorization"] for request in server.requests] == ["mine", "theirs"]
        assert server.requests[0].headers["content-type"] == "text/json"
        assert max(request.n_headers - len(request.headers) for request in server.requests) == 0


def test_client_cannot_be_pickled_with_its_key():
    for client in (Client(api_key=KEY), localchat.AsyncClient(api_key=KEY)):
        with pytest.raises(TypeError, match="it holds a key"):
            pickle.dumps(client)


def test_key_in_the_query_is_not_shown():
    assert KEY not in repr(Client(f"http://h/v1?key={KEY}"))


def test_key_is_stripped():
    with always(HELLO) as server, make_client(server, api_key=f" {KEY}\n") as client:
        client.chat("hi")
        assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"


# Vendoring


def test_four_files_work_in_another_package(tmp_path):
    package = Path(localchat.client.__file__).parent
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").touch()
    for name in ("sse.py", "events.py", "wire.py", "client.py"):
        (tmp_path / "mine" / name).write_bytes((package / name).read_bytes())
    program = "import sys; from mine.client import Client; print(Client(sys.argv[1], model='m').chat('hi'))"
    with always(HELLO) as server:
        done = subprocess.run(
            [sys.executable, "-c", program, server.url],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
    assert (done.stdout, done.stderr) == ("Hello\n", "")
