"""The asynchronous client against scripted servers: what it asks, every form of an answer, statuses and retries."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import localchat.aio
import localchat.aio_call
import localchat.aio_sockets
import localchat.failures
from localchat import (
    AsyncClient,
    ConnectError,
    NotFoundError,
    ProtocolError,
    ServerError,
    StatusError,
    StreamError,
)

from .raw_server import (
    ANSWER,
    DEADLINE_S,
    DONE,
    HELLO,
    KEY,
    MODELS,
    WHOLE,
    Peer,
    Request,
    Server,
    always,
    certificate,
    chunked,
    clean_environment,
    piece,
    serving,
    truncations,
    until_close,
    with_length,
)

__all__ = ["certificate", "clean_environment"]  # Fixtures: used by name.


def run(server: Server, use: Callable[[AsyncClient], Awaitable[Any]], **options: Any) -> Any:
    """What `use` makes of a client of this server."""
    options.setdefault("max_retries", 0)
    options.setdefault("model", "m")

    async def main() -> Any:
        async with AsyncClient(server.url, **options) as client:
            return await asyncio.wait_for(use(client), DEADLINE_S)

    with server:
        return asyncio.run(main())


async def say(client: AsyncClient) -> str:
    return (await client.chat("hi")).text


def failure(server: Server, kind: type[Exception], words: str = ".", **options: Any) -> Any:
    with pytest.raises(kind, match=words) as caught:
        run(server, say, **options)
    return caught.value


# Asking


def test_chat_returns_the_reply():
    reply = run(always(HELLO), lambda client: client.chat("hi"))
    assert (str(reply), reply.finish_reason, reply.usage.total_tokens) == ("Hello", "stop", 5)


def test_events_are_those_of_the_client():
    async def types(client: AsyncClient) -> list[str]:
        async with client.stream("hi") as stream:
            seen = [event.type async for event in stream]
            assert stream.reply.text == "Hello"
            return seen

    assert run(always(HELLO), types) == ["message_start", "content_delta", "content_delta", "usage", "message_stop"]


def test_stream_text_yields_pieces():
    async def texts(client: AsyncClient) -> list[str]:
        async with client.stream("hi") as stream:
            return [text async for text in stream.text]

    assert run(always(HELLO), texts) == ["Hel", "lo"]


def test_stream_without_with_is_sent_by_the_first_step():
    server = always(HELLO)

    async def texts(client: AsyncClient) -> str:
        stream = client.stream("hi")
        assert server.requests == []
        return "".join([text async for text in stream.text])

    assert run(server, texts) == "Hello"


def test_request_is_that_of_the_client():
    server = always(HELLO)
    run(
        server,
        lambda client: client.chat("hi", system="be brief", top_k=5, extra_headers={"X-Other": "2"}),
        api_key=KEY,
    )
    request = server.requests[0]
    assert (request.method, request.path) == ("POST", "/v1/chat/completions")
    assert (request.headers["authorization"], request.headers["x-other"]) == (f"Bearer {KEY}", "2")
    assert [message["role"] for message in request.json["messages"]] == ["system", "user"]
    assert (request.json["top_k"], request.json["stream"]) == (5, True)


def test_only_model_of_a_server_is_requested_once():
    async def twice(client: AsyncClient) -> None:
        await client.chat("hi")
        await client.chat("hi")

    server = always(HELLO)
    run(server, twice, model=None)
    assert [request.method for request in server.requests] == ["GET", "POST", "POST"]
    assert server.requests[1].json["model"] == "first"


@pytest.mark.parametrize("status", ["404 Not Found", "405 Method Not Allowed", "501 Not Implemented"])
def test_server_without_list_of_models_gets_no_model(status):
    server = serving(lambda request, number: with_length(b"", status) if request.method == "GET" else HELLO)
    assert run(server, say, model=None) == "Hello"
    assert "model" not in server.requests[-1].json


def test_models_lists_names():
    assert run(always(HELLO), lambda client: client.models()) == ["first"]


def test_models_that_are_no_list():
    with pytest.raises(ProtocolError, match="not JSON"):
        run(serving(lambda request, number: with_length(b"<html>")), lambda client: client.models())


def test_text_goes_on():
    body = chunked(b'data: {"choices": [{"index": 0, "text": " blue", "finish_reason": "stop"}]}\n\n', DONE)
    server = always(body)
    assert run(server, lambda client: client.complete("The sky is")).text == " blue"
    assert (server.requests[0].path, server.requests[0].json["prompt"]) == ("/v1/completions", "The sky is")


def test_vectors():
    body = b'{"data": [{"index": 1, "embedding": [2.0]}, {"index": 0, "embedding": [1.0]}]}'
    assert run(always(with_length(body)), lambda client: client.embed(["a", "b"])) == [[1.0], [2.0]]
    one = b'{"data": [{"index": 0, "embedding": [1.0]}]}'
    assert run(always(with_length(one)), lambda client: client.embed("a")) == [1.0]
    with pytest.raises(ProtocolError, match="embeddings are not JSON"):
        run(always(with_length(b"<html>")), lambda client: client.embed("a"))


def test_value_of_a_response_format():
    answer = chunked(piece('{"name": "Ada"}', "stop"), DONE)
    reply = run(always(answer), lambda client: client.chat("who?", response_format="name"))
    assert reply.parsed == {"name": "Ada"}


def test_old_server_that_refuses_stream_options_is_asked_without():
    def answer(request: Request, number: int) -> bytes:
        refused = with_length(b'{"detail": "extra field stream_options"}', "422 Unprocessable")
        return refused if "stream_options" in request.json else HELLO

    assert run(serving(answer), say) == "Hello"


FORMS = {
    "chunked": HELLO,
    "byte-chunks": chunked(*(bytes([byte]) for byte in b"".join(ANSWER))),
    "length": with_length(b"".join(ANSWER)),
    "until-close": until_close(*ANSWER),
    "http-1.0": b"HTTP/1.0 200 OK\r\n\r\n" + b"".join(ANSWER),
    "whole-json": with_length(WHOLE),
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

    async def thrice(client: AsyncClient) -> list[str]:
        return [await say(client) for _ in range(3)]

    server = Server(handle)
    assert run(server, thrice) == ["Hello"] * 3
    assert server.connections == (3 if close else 1)


@pytest.mark.parametrize(("raw", "expected"), list(truncations()))
def test_truncation_matrix(raw, expected):
    def handle(peer: Peer, server: Server) -> None:
        if peer.request() is not None:
            peer.send(raw)

    if expected is None:
        assert run(Server(handle), say) == "Hello"
        return
    error = failure(Server(handle), expected)
    if b"Hel" in raw:
        assert error.partial.text == "Hello"


def test_error_in_the_stream():
    body = piece("a") + b'data: {"error": {"message": "bad luck"}}\n\n'
    assert failure(always(chunked(body)), StreamError, "bad luck").partial.text == "a"


# Statuses and retries


def test_nothing_listens():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ConnectError, match="nothing listens"):
        asyncio.run(AsyncClient(f"http://127.0.0.1:{port}/v1", model="m", max_retries=0).chat("hi"))


def test_unknown_model_names_those_on_offer():
    raw = with_length(b'{"error": {"message": "no such model", "code": "model_not_found"}}', "404 Not Found")
    failure(always(raw), NotFoundError, "it offers first")


def test_status_is_retried(monkeypatch):
    monkeypatch.setattr(localchat.failures, "_FIRST_DELAY_S", 0.001)
    busy = with_length(b"{}", "503 Loading")
    assert run(serving(lambda request, number: HELLO if number == 3 else busy), say, max_retries=2) == "Hello"
    failure(serving(lambda request, number: busy), ServerError, max_retries=2)


def test_dropped_request_is_retried(monkeypatch):
    monkeypatch.setattr(localchat.failures, "_FIRST_DELAY_S", 0.001)
    assert run(serving(lambda request, number: None if number < 3 else HELLO), say, max_retries=2) == "Hello"


def test_redirect_on_the_same_server_is_followed_on_request():
    def answer(request: Request, number: int) -> bytes:
        moved = with_length(b"", "308 Moved", "Location: /v2/chat?a=b\r\n")
        return HELLO if request.path == "/v2/chat?a=b" else moved

    server = serving(answer)
    assert run(server, say, follow_redirects=True) == "Hello"
    assert server.requests[0].body == server.requests[1].body
    failure(serving(answer), StatusError, "it redirects to")


def test_upload_refused_early_still_gives_the_status():
    def handle(peer: Peer, server: Server) -> None:
        peer.send(with_length(b'{"error": "too big"}', "413 Too Large", "Connection: close\r\n"))
        peer.sock.shutdown(socket.SHUT_WR)
        while peer.sock.recv(65536):
            pass

    with pytest.raises(StatusError, match="too big"):
        run(Server(handle), lambda client: client.chat("x" * 10_000_000))


def test_no_http_is_a_connect_error_without_the_key():
    error = failure(always(f"SSH {KEY}\r\n\r\n".encode()), ConnectError, "this is no HTTP", api_key=KEY)
    assert KEY not in f"{error!s} {vars(error)}"


def test_body_after_done_ends_the_connection():
    server = serving(lambda request, number: chunked(piece("a"), DONE, piece("b")) + MODELS)
    assert run(server, say) == "a"


def test_asyncio_is_imported_only_by_its_users():
    program = "import sys, localchat; localchat.Client; assert 'asyncio' not in sys.modules; localchat.AsyncClient"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=DEADLINE_S, env={**os.environ})


def test_answers_are_json_lines_too():
    lines = b"".join(
        json.dumps({"message": {"content": text}, "done": text == "lo"}).encode() + b"\n" for text in ("Hel", "lo")
    )
    assert run(always(with_length(lines)), say) == "Hello"
