"""The client over real sockets: its requests, and every format of a response."""

import gzip
import json

import pytest

import localchat.client
import localchat.sse
import localchat.streams
from localchat import IncompleteStream, ProtocolError, StatusError, StreamError
from localchat.transport.settings import Settings
from tests.support import raw_responses
from tests.support.clients import failure, make_client
from tests.support.raw_responses import DONE, HELLO, HELLO_EVENTS, HELLO_JSON, STOP, chunked, piece, sse, with_length
from tests.support.raw_server import KEY, Peer, Request, Server, always, ends_the_connection, serving
from tests.support.scripted import playing
from tests.support.slow_servers import pinging, responding_once, waiting


def test_chat_returns_the_reply(client_class):
    with always(HELLO) as server, make_client(server, client_class) as client:
        reply = client.chat("hi")
        assert (str(reply), reply.finish_reason, reply.id, reply.model) == ("Hello", "stop", "1", "m")
        assert (reply.usage.input_tokens, reply.usage.output_tokens, reply.usage.total_tokens) == (3, 2, 5)
        assert "authorization" not in server.requests[0].headers
        stream = client.stream("hi")
        assert len(server.requests) == 1  # The first step sends the request.
        types = [event.type for event in stream]
        assert types == ["message_start", "content_delta", "content_delta", "usage", "message_stop"]
        assert [stream.finish().text for _ in range(2)] == [stream.reply.text] * 2 == ["Hello"] * 2


def test_request_contains_the_options(client_class):
    server = always(HELLO)
    options = {"api_key": KEY, "headers": {"X-Mine": "1"}, "base_url": f"{server.url}?api-version=1"}
    with server, client_class(model="m", **options) as client:
        client.chat("hi", system="be brief", temperature=0, top_k=5, tools=[], extra_headers={"X-Other": "2"})
        request = server.requests[0]
        assert (request.method, request.path) == ("POST", "/v1/chat/completions?api-version=1")
        assert request.headers["authorization"] == f"Bearer {KEY}"
        assert (request.headers["x-mine"], request.headers["x-other"]) == ("1", "2")
        assert request.headers["host"] == f"127.0.0.1:{server.port}"
        assert "text/event-stream" in request.headers["accept"]
        fields = {"temperature": 0, "top_k": 5, "stream": True, "stream_options": {"include_usage": True}}
        messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
        assert request.json == {"model": "m", "messages": messages, **fields}


@pytest.mark.parametrize("status", ["404 Not Found", "405 Method Not Allowed", "501 Unsupported method", "200 OK"])
def test_server_without_list_of_models_gets_no_model(status, client_class):
    """An http.server that handles only POST returns 501 for GET; a retry would not help."""

    with always(HELLO, with_length(b"", status)) as server, client_class(server.url) as client:
        assert client.chat("hi").text == "Hello"
        assert "model" not in server.requests[-1].json
        assert len(server.requests) == 2


def test_request_is_repeated_without_stream_options_if_they_are_refused(client_class):
    """An error that quotes the request does not turn them off."""

    def respond(request: Request, number: int) -> bytes:
        if request.json.get("temperature"):
            return with_length(json.dumps({"error": request.json}).encode(), "400 Bad Request")
        if refuses and "stream_options" in request.json:
            return with_length(b'{"detail": "extra field stream_options"}', "422 Unprocessable")
        return HELLO

    for refuses, sent in ((False, [True, False, True]), (True, [True, False, True, False, False])):
        with serving(respond) as server, make_client(server, client_class) as client:
            with pytest.raises(localchat.BadRequestError):
                client.chat("hi", temperature=9)
            assert [client.chat("hi").text for _ in range(1 + refuses)] == ["Hello"] * (1 + refuses)
            assert ["stream_options" in request.json for request in server.requests] == sent


def test_request_without_a_body_says_so(client_class):
    with serving(lambda request, number: HELLO) as server, make_client(server, client_class) as client:
        sent = {"POST": (None, "0", None), "PUT": ({}, "2", "application/json"), "GET": (None, None, None)}
        for method, (body, length, kind) in sent.items():
            client.request(method, "x", body)
            client.request(method, "x", body, extra_headers={"Content-Type": "text/mine"})
            first, second = (request.headers for request in server.requests[-2:])
            assert (first.get("content-length"), first.get("content-type")) == (length, kind)
            assert second["content-type"] == "text/mine"


BASE_URLS = {
    "trailing-slash": ("http://h/v1/", "http", "h", 80, "/v1"),
    "https": ("https://h/v1", "https", "h", 443, "/v1"),
    "no-scheme": ("localhost:8080/v1", "http", "localhost", 8080, "/v1"),
    "ipv6": ("http://[::1]:8080/v1", "http", "::1", 8080, "/v1"),
    "whole-endpoint": ("http://h/v1/chat/completions", "http", "h", 80, "/v1"),
    "endpoint of texts": ("http://h/v1/completions/", "http", "h", 80, "/v1"),
    "endpoint of vectors": ("http://h/embeddings", "http", "h", 80, ""),
    "path of models": ("http://h/models", "http", "h", 80, "/models"),
    "blanks-around": (" http://h:1/v1 \n", "http", "h", 1, "/v1"),
    "blank-in-path": ("http://h/a b/v1", "http", "h", 80, "/a%20b/v1"),
    "host-of-other-letters": ("http://b\u00fccher.example/v1", "http", "xn--bcher-kva.example", 80, "/v1"),
}


@pytest.mark.parametrize(("url", "scheme", "host", "port", "path"), BASE_URLS.values(), ids=BASE_URLS)
def test_base_url(url, scheme, host, port, path):
    address = Settings(base_url=url).address
    assert (address.scheme, address.host, address.port, address.path) == (scheme, host, port, path)


def test_halves_of_characters_in_a_prompt_are_sent_as_json():
    """Python reads invalid bytes of files and arguments as such halves."""
    with always(HELLO) as server, make_client(server) as client:
        client.chat("a\ud83d \udce9")
        assert server.requests[0].body.isascii()
        assert server.requests[0].json["messages"][0]["content"] == "a\ud83d \udce9"


EVENTS = b"".join(HELLO_EVENTS)
PRETTY_JSON = json.dumps(json.loads(HELLO_JSON), indent=2).encode()
FORMATS = {
    "chunked": HELLO,
    "length": with_length(EVENTS, headers="Content-Type: text/event-stream\r\n"),
    "until-close": raw_responses.until_close(*HELLO_EVENTS),
    "http-1.0": b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + EVENTS,
    "body-after-the-end": chunked(*HELLO_EVENTS, piece("more")),
    "wrong-type": chunked(*HELLO_EVENTS).replace(b"text/event-stream", b"text/plain"),
    "whole-json": with_length(HELLO_JSON),
    "json-without-finish-reason": with_length(HELLO_JSON.replace(b"finish_reason", b"other")),
    "pretty-json": with_length(PRETTY_JSON),
    "json-after-bom": with_length(b"\xef\xbb\xbf" + HELLO_JSON),
    "chunked-twice": HELLO.replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked, identity\r\n\r\n", 1),
    "gzip-twice": with_length(gzip.compress(EVENTS), headers="Content-Encoding: gzip\r\n" * 2),
    "gzip": with_length(gzip.compress(EVENTS), headers="Content-Encoding: gzip\r\n"),
}


@pytest.mark.parametrize("raw", FORMATS.values(), ids=FORMATS)
def test_response_in_every_format(raw, client_class):
    with always(raw) as server, make_client(server, client_class) as client:
        for _ in range(3):
            reply = client.chat("hi")
            assert (reply.text, reply.finish_reason) == ("Hello", "stop")
        assert server.connections == (3 if ends_the_connection(raw) else 1)


NOT_CHAT = {
    "html": (b"<!doctype html><title>Sign in</title>", ProtocolError, "is /v1 missing"),
    "text": (b"hello there", ProtocolError, "not a chat completion but text/html"),
    "other-json": (b'{"hello": 1}', ProtocolError, "this JSON is not a chat completion"),
    "list": (b"[1]", ProtocolError, "not an object"),
    "bad-event": (b"data: {oops\n\n", ProtocolError, "not JSON"),
    "cut-json": (b"{hello}", IncompleteStream, "ended before its first choice; it begins: {hello}"),
    "empty": (b"", IncompleteStream, "before its first choice"),
    "no-finish-reason": (piece("ab"), IncompleteStream, "cut after 2 characters"),
}


@pytest.mark.parametrize(("body", "kind", "words"), NOT_CHAT.values(), ids=NOT_CHAT)
def test_response_that_is_no_whole_chat_completion_is_an_error(body, kind, words):
    raw = with_length(body, headers="Content-Type: text/html\r\n")
    assert failure(always(raw), kind, words).partial is not None


@pytest.mark.parametrize("framing", ["chunked", "length", "until-close"])
def test_response_that_is_cut_is_incomplete_unless_it_has_its_finish_reason(framing, client_class):
    raw = FORMATS[framing]
    error = failure(responding_once(raw[: raw.index(b'"lo"')]), IncompleteStream, client_class=client_class)
    assert error.partial.text == "Hel"
    for end in (raw.index(raw_responses.USAGE) - 2, len(raw) - 1):
        with responding_once(raw[:end]) as server, make_client(server, client_class) as client:
            assert client.chat("hi").text == "Hello"


BARE = {"one line": '{"error": "bad luck"}', "indented": json.dumps([{"error": {"message": "bad luck"}}], indent=2)}


@pytest.mark.parametrize("end", ["", "\n", "\n\n", "\ndata: [DONE]\n\n"])
@pytest.mark.parametrize("bare", BARE.values(), ids=BARE)
def test_error_without_data_is_an_error(bare, end, client_class):
    """Also directly after an event without its empty line, and after the finish reason."""
    for begin in (piece("a"), piece("a").strip() + b"\n", piece("a", "stop")):
        raw = raw_responses.until_close(begin, bare.encode(), end.encode())
        assert failure(responding_once(raw), StreamError, "bad luck", client_class).partial.text == "a"


AFTER_FINISH = {
    "unquoted": b"data: DONE\n\n",
    "quoted": b'data: "[DONE]"\n\n',
    "cost": sse({"cost": 0.01}),
    "no JSON": b"data: {oops\n\n",
    "code": sse({"code": 500, "message": "late"}),
    "detail": sse({"detail": "late"}),
    "nested": b'data: {"error": ' + b"[" * 100_000 + b"\n\n",
    "too long": b"data: " + b"x" * 3_000_000 + b"\n\n",
    "JSON without data": b'{"bye": 1}\n',
}


@pytest.mark.parametrize("after", AFTER_FINISH.values(), ids=AFTER_FINISH)
def test_only_an_explicit_error_counts_after_the_finish_reason(after, client_class, monkeypatch):
    monkeypatch.setattr(localchat.sse.SSEDecoder.__init__, "__defaults__", (2_000_000,))
    for rest in (b"", raw_responses.USAGE + DONE):
        raw = chunked(piece("Hello", "stop"), after, rest or b" ")
        with always(raw) as server, make_client(server, client_class) as client:
            reply = client.chat("hi")
        assert reply.text == "Hello"
        assert [text.partition(":")[0] for text in reply.warnings] == ["ignored after the finish reason"]
    if after is not AFTER_FINISH["too long"]:  # After that, the end mark is not found.
        with always(chunked(piece("a", "because"), after, DONE)) as server, make_client(server, client_class) as client:
            assert client.chat("hi").finish_reason == "unknown"
    raw = chunked(piece("a", "stop"), sse({"error": "bad luck"}), DONE)
    failure(always(raw), StreamError, "bad luck", client_class)


def test_null_is_a_keep_alive_and_a_missing_finish_reason_a_warning(client_class):
    null = b"data: null\n\n"
    for raw in (chunked(null, piece("a"), null, DONE), with_length(b'{"choices": [{"text": "a"}]}\nnull\n')):
        with always(raw) as server, make_client(server, client_class) as client:
            reply = client.chat("hi")
        assert (reply.text, reply.finish_reason, len(reply.warnings)) == ("a", "stop", 1)
        assert "no finish reason" in reply.warnings[0]


@pytest.mark.parametrize("field", ["error", "detail"])
def test_error_that_is_nested_too_deeply_is_a_typed_error(field, client_class):
    """At every depth: some can be parsed and not written."""
    for depth in (500, 900, 960, 980, 990, 100_000):
        body = f'{{"{field}": {"[" * depth}{"]" * depth}}}'.encode()
        for raw in (chunked(piece("a"), b"data: " + body + b"\n\n"), with_length(body), with_length(body, "500 No")):
            failure(always(raw), (ProtocolError, StreamError, StatusError), ".", client_class)
        server, errors = always(HELLO, with_length(body)), (ProtocolError, StreamError)
        with server, make_client(server, client_class) as client, pytest.raises(errors):
            client.models()


@pytest.mark.parametrize("server_kind", [waiting, pinging])
def test_finish_without_done_ends_although_the_connection_stays_open(server_kind, monkeypatch):
    monkeypatch.setattr(localchat.streams, "_AFTER_FINISH_S", 0.05)
    with server_kind(chunked(piece("Hello"), STOP, end=False)) as server, make_client(server) as client:
        assert client.chat("hi").text == "Hello"


@pytest.mark.parametrize(
    ("prompt", "options"),
    [("hi", {"n": 2}), ("hi", {"extra_body": {"n": 2}}), (["a", "b"], {}), (("a", "b"), {"n": 1}), ([[1], [2]], {})],
)
def test_response_with_too_few_choices_is_incomplete(prompt, options):
    with always(chunked(piece("one", "stop"))) as server, make_client(server) as client:
        method = client.chat if prompt == "hi" else client.complete
        with pytest.raises(IncompleteStream):
            method(prompt, **options)


@pytest.mark.parametrize("at_once", [True, False])
def test_wrong_framing_after_the_finish_reason_is_ignored(at_once, client_class):
    """Before the finish reason it is an error with the partial reply."""

    def handle(peer: Peer, server: Server) -> None:
        while peer.request() is not None:
            parts = [chunked(*pieces, end=False), b"zz\r\nno chunk\r\n"]
            peer.send(*([b"".join(parts)] if at_once else parts))

    pieces = [piece("Hello"), STOP]
    with Server(handle) as server, make_client(server, client_class) as client:
        for _ in range(2):
            assert client.chat("hi").text == "Hello"
        assert server.connections == 2
        pieces.pop()
        with pytest.raises(ProtocolError, match="not the size of a chunk") as caught:
            client.chat("hi")
        assert caught.value.partial.text == "Hello"


@pytest.mark.parametrize("stream", [True, False])
def test_complete_returns_the_completion_of_a_text(stream: bool, client_class):
    completion = {"choices": [{"index": 0, "text": "<think> on", "finish_reason": "stop"}]}
    with playing([completion], client_class=client_class) as (client, script):
        reply = client.complete("go", extra_body={"stream": stream}, max_tokens=3)
    assert reply.text == "<think> on"
    assert script.paths == ["/v1/completions"]
    request = script.requests[0]
    assert (request["prompt"], request["max_tokens"], "messages" in request) == ("go", 3, False)
