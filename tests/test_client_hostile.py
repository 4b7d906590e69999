"""Hostile and broken servers: the limits of bytes and time, and secrets that are not sent."""

from __future__ import annotations

import gzip
import math
import threading
import time
import zlib

import pytest

import localchat.transport.call
import localchat.transport.retries
from localchat import (
    Accumulator,
    AsyncClient,
    Client,
    ProtocolError,
    ServerError,
    StatusError,
    Timeout,
)
from localchat.extras import media
from localchat.transport.http1 import Inflate

from .clients import failure, make_client, waiting_client
from .raw_server import (
    DONE,
    HELLO,
    HELLO_JSON,
    KEY,
    OPEN,
    STOP,
    always,
    choice,
    chunked,
    dripping,
    piece,
    sse,
    with_length,
)
from .scripted import playing, text

ZIPPED = "Content-Encoding: gzip\r\n"


# Compressed bodies


def test_all_members_are_inflated_however_they_are_cut():
    texts = [f"text {number} ".encode() * 5 for number in range(3)]
    packed = b"".join(map(gzip.compress, texts))
    for at in range(len(packed) + 1):
        inflate = Inflate("gzip", 10_000)
        assert inflate.feed(packed[:at]) + inflate.feed(packed[at:]) == b"".join(texts), at


RAW_DEFLATE = zlib.compress(b"slow down", wbits=-15)
ENCODED_ERRORS = {
    "brotli": ("429 Many", "br", b"\x0b\x03slow down\x03"),
    "claims gzip": ("403 No", "gzip", b"slow down"),
    "raw deflate": ("503 Busy", "deflate", RAW_DEFLATE),
    "damaged gzip": ("429 Many", "gzip", gzip.compress(b"slow down" * 99)[:60] + b"?" * 50),
    "unknown": ("429 Many", "secret", b"slow down"),
}


@pytest.mark.parametrize(("status", "encoding", "body"), ENCODED_ERRORS.values(), ids=ENCODED_ERRORS)
def test_c10_status_decides_whatever_the_encoding_of_the_body(status, encoding, body, client_class, monkeypatch):
    monkeypatch.setattr(localchat.transport.retries, "_FIRST_DELAY_S", 0.001)
    server = always(with_length(body, status, f"Content-Encoding: {encoding}\r\n"))
    error = failure(server, StatusError, "slow down", client_class, max_retries=1)
    assert error.status == int(status[:3])
    assert len(server.requests) == (1 if error.status == 403 else 2)


def test_error_that_inflates_to_63_mb_is_cut(client_class):
    raw = with_length(gzip.compress(b"x" * 63_000_000, 9), "500 No", ZIPPED)
    assert len(failure(always(raw), ServerError, "500", client_class).body) == localchat.transport.call.MAX_ERROR_BYTES


def test_inflated_response_is_limited_in_bytes(client_class):
    raw = with_length(gzip.compress(b": ping\n" * 5_000_000, 1), headers=ZIPPED)
    error = failure(always(raw), ProtocolError, "more than 3000000 bytes", client_class, max_bytes=3_000_000)
    assert error.partial is not None


def test_size_of_a_stream_is_limited(client_class):
    pieces = b"%x\r\n%s\r\n" % (len(piece("more")), piece("more"))
    error = failure(dripping(OPEN, drop=pieces), ProtocolError, "more than 1000", client_class, max_bytes=1000)
    assert error.partial.text.startswith("amore")


def test_many_choices_and_calls_take_linear_time_or_are_refused(client_class):
    accumulator, start = Accumulator(), time.process_time()  # Not the time of other programs.
    for index in range(5000):
        accumulator.add({"choices": [{"index": index, "delta": {"content": "x"}, "finish_reason": "stop"}]})
    accumulator.add({"choices": [{"index": index, "delta": {}} for index in range(5000, 15000)]})
    assert not accumulator.complete
    call = {"id": "a", "function": {"name": "f", "arguments": "{"}}
    calls = [choice({"tool_calls": [{**call, "index": index, "id": f"a{index}"}]}) for index in range(1001)]
    raw = chunked(piece("Hello"), *(sse({"choices": [item]}) for item in calls))
    assert failure(always(raw), ProtocolError, "more than 1000 tool calls", client_class).partial.text == "Hello"
    assert time.process_time() - start < 5


# Text that is not UTF-8


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (chunked(piece("a") + piece("b*c").replace(b"*", b"\xff"), STOP, DONE), "ab\ufffdc"),
        (with_length(HELLO_JSON.replace(b"Hello", b"H\xe2\x82")), "H\ufffd"),
        (with_length(HELLO_JSON.replace(b"Hello", b"\xef\xbf\xbd")), "\ufffd"),
    ],
    ids=["stream", "whole", "sent as a character"],
)
def test_text_that_is_not_utf8_gives_one_warning(raw, text):
    with always(raw) as server, make_client(server) as client, client.stream("hi") as stream:
        warnings = [event.text for event in stream if event.type == "warning"]
        assert stream.reply.text == text
        assert warnings == list(stream.reply.warnings)
        assert len(warnings) == (0 if b"\xef\xbf\xbd" in raw else 1)
        assert all("not UTF-8" in warning for warning in warnings)


@pytest.mark.parametrize("method", ["chat", "run"])
def test_files_are_read_beside_the_event_loop(method, tmp_path, monkeypatch):
    path, readers, read = tmp_path / "image.gif", [], media._read
    path.write_bytes(b"GIF89a")
    monkeypatch.setattr(media, "_read", lambda source: readers.append(threading.get_ident()) or read(source))
    with playing(text("ok"), client_class=waiting_client) as (client, script):
        getattr(client, method)("hi", images=[path])
        assert script.requests[0]["messages"][0]["content"][0]["type"] == "image_url"
    assert len(readers) == 1
    assert readers != [threading.get_ident()]


# Secrets


@pytest.mark.parametrize(
    ("url", "named", "sent"),
    [
        ("http://127.0.0.1:1/v1", None, True),
        ("http://localhost:1/v1", None, True),
        ("unix:/tmp/socket", None, True),
        ("https://h.example/v1", None, True),
        (None, "http://h.example/v1", True),
        ("http://h.example/v1", "http://h.example/v1", True),
        ("http://h.example/v1", "http://other.example/v1", False),
        ("http://h.example/v1", None, False),
        ("http://127.example.com/v1", None, False),
        ("http://localhost.example.com/v1", None, False),
    ],
)
def test_key_of_the_environment_is_sent_only_to_allowed_servers(url, named, sent, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    if named:
        monkeypatch.setenv("OPENAI_BASE_URL", named)
    for client in (Client(url), AsyncClient(url), Client("https://h.example/v1").with_options(base_url=url)):
        assert ("Authorization" in client._settings.request_headers({})) == sent
    assert "Authorization" in Client(url, api_key=KEY).with_options(max_retries=1)._settings.request_headers({})


def test_error_401_explains_that_the_key_was_not_sent(monkeypatch):
    with always(with_length(b"", "401 No")) as server, make_client(server) as client:
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        with pytest.raises(localchat.AuthenticationError, match="pass api_key: OPENAI_API_KEY goes to https"):
            client.chat("hi")


# NaN and infinity


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_are_refused_and_nothing_is_sent(number):
    with always(HELLO) as server, make_client(server) as client:
        for options, words in (
            ({"temperature": number}, "temperature is .*, which is not a finite number"),
            ({"logit_bias": {"1": number}}, "neither NaN nor infinity"),
            ({"extra_body": {"a": [number]}}, "neither NaN nor infinity"),
            ({"timeout": number}, "timeout is"),
            ({"timeout": Timeout(idle=number)}, "timeout is a number"),
        ):
            for method in (client.chat, client.complete):
                with pytest.raises(ValueError, match=words):
                    method("hi", **options)
        with pytest.raises(ValueError, match="neither NaN nor infinity"):
            client.request("POST", "rerank", {"top_n": number})
        with pytest.raises(ValueError, match="timeout is a number"):
            Client(timeout=number)
    assert server.requests == []
