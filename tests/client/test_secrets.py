"""Secrets are in no text that is shown: no error, repr or line of the log, in whatever form a server repeats them."""

import base64
import json
import logging
import pickle
import time
import traceback
from typing import Any
from urllib.parse import quote

import pytest

from localchat import AsyncClient, Client, LocalChatError
from localchat.transport.addresses import parse_base_url, parse_proxy
from localchat.transport.secrets import Secrets, secrets_of_headers, secrets_of_url
from tests.support.clients import failure, make_client
from tests.support.growth import assert_linear
from tests.support.raw_responses import DONE, HELLO, chunked, piece, sse, with_length
from tests.support.raw_server import Request, always, serving
from tests.support.slow_servers import responding_once

SECRET = "sk-7/Kq+ü&9"  # It has characters that are escaped in JSON, URLs and HTML.
ASCII_SECRET = "sk-7/Kq+z&9"

FORMS = {
    "as it is": lambda text: text,
    "in a URL": lambda text: quote(text, safe=""),
    "in a URL, in lower case": lambda text: quote(text, safe="").lower().replace("kq", "Kq").replace("k", "%6b", 1),
    "in a URL of a URL": lambda text: quote(quote(text, safe=""), safe=""),
    "every character in a URL": lambda text: "".join(f"%{byte:02x}" for byte in text.encode()),
    "in JSON": json.dumps,
    "in JSON of JSON": lambda text: json.dumps(json.dumps(text)),
    "escaped slashes": lambda text: text.replace("/", r"\/"),
    "escaped characters": lambda text: "".join(f"\\u{ord(char):04X}" for char in text),
    "in HTML": lambda text: text.replace("&", "&amp;").replace("/", "&#x2F;").replace("+", "&#43;"),
    "cut": lambda text: text[:8] + "...",
    "cut in quotes": lambda text: f'"{text[:9]}..."',
    "cut by the network": lambda text: text[:7],
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("secret", [SECRET, ASCII_SECRET, "0123456789abcdef" * 9])
def test_secret_is_masked_in_every_form(form: Any, secret: str):
    shown = Secrets([secret]).mask(f"the key {form(secret)}")
    assert "***" in shown
    assert secret[:6] not in shown
    assert shown.startswith("the key ")


UNCHANGED = [
    "no local file, no localhost, local: 3",
    "404 of 4096 tokens",
    "test the testing",
    "x = y",
    "the model none",
    "sk- and sk-7",
    "an empty response of Ollama",
    "a topsecret word",
]


@pytest.mark.parametrize("secret", ["SECRET", "topsecret", "hunter2", "passwort", "1234567", "Ab-9"])
def test_other_short_keys_are_masked_anywhere(secret: str):
    assert Secrets([secret]).mask(f"no {secret}, x{secret}/y") == "no ***, x***/y"


@pytest.mark.parametrize("text", UNCHANGED)
def test_ordinary_words_are_no_secrets(text: str):
    words = ["local", "404", "4096", "test", "x", "none", "-", "", "EMPTY", "ollama", "lm-studio", "TOPSECRET"]
    assert Secrets([*words, ASCII_SECRET]).mask(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("GET /v1/models?key=local", "GET /v1/models?key=***"),
        ("Authorization: Bearer local", "Authorization: Bearer ***"),
        ("Incorrect API key provided: local.", "Incorrect API key provided: ***."),
        ("invalid key 'local'", "invalid key '***'"),
    ],
)
def test_ordinary_word_is_masked_where_it_is_given_as_a_value(text: str, shown: str):
    assert Secrets(["local"]).mask(text) == shown


@pytest.mark.parametrize("part", ["\\", "%25", "sk-7/K", "&#0", "key=", "e"])
def test_time_of_masking_is_linear(part: str):
    secrets = Secrets([ASCII_SECRET, "local", "e" * 2000])

    def seconds(n: int) -> float:
        text = part * n
        began_at = time.thread_time()
        secrets.mask(text)
        return time.thread_time() - began_at

    assert_linear(seconds, 2000, 20, 0.001)


@pytest.mark.parametrize(
    ("headers", "secrets"),
    [
        ({"api-key": SECRET}, [SECRET]),
        ({"X-API-Key": SECRET, "Accept": "text/csv"}, [SECRET]),
        ({"Authorization": f"Bearer {SECRET}"}, [SECRET]),
        ({"Authorization": "Basic " + base64.b64encode(f"ada:{SECRET}".encode()).decode()}, [SECRET, f"ada:{SECRET}"]),
        ({"Cookie": f"theme=dark; session={SECRET}"}, [SECRET]),
        ({"X-Whatever": f"a b {SECRET}"}, [SECRET]),
        ({"X-Auth-Token": "topsecret"}, ["topsecret"]),
        ({"Authorization": "Bearer topsecret"}, ["topsecret"]),
    ],
)
def test_secrets_of_headers(headers: Any, secrets: Any):
    assert set(secrets) <= set(secrets_of_headers(headers))
    assert not {"Bearer", "Basic", "text/csv"} & set(secrets_of_headers(headers))


def test_words_in_headers_that_are_no_credentials_are_no_secrets():
    found = set(secrets_of_headers({"X-Team": "research platform", "X-Environment": "production"}))
    assert not found & {"research", "platform", "production"}


def test_secrets_of_a_url_are_its_userinfo_and_the_values_of_its_query():
    url = f"http://ada:{quote(SECRET, safe='')}@h:80/v1?api-version=2024-02-01&code={quote(ASCII_SECRET)}&{'b' * 20}"
    found = set(secrets_of_url(url))
    assert {SECRET, ASCII_SECRET, "b" * 20} <= found
    assert "2024-02-01" not in found


KEY = "sk-Zebra7-quagga9"
PLACES: dict[str, dict[str, Any]] = {
    "key": {"api_key": KEY},
    "query": {"query": f"?api-version=1&key={KEY}"},
    "bare query": {"query": f"?{KEY}"},
    "api-key": {"headers": {"api-key": KEY}},
    "x-api-key": {"headers": {"X-Api-Key": KEY}},
    "authorization": {"headers": {"authorization": f"Token {KEY}"}},
    "cookie": {"headers": {"Cookie": f"a=b; sid={KEY}"}},
    "header of the call": {"extra_headers": {"X-Goog-Api-Key": KEY}},
}
ECHO = f"path /v1/chat/completions?key={KEY}, header {KEY}"
RESPONSES: dict[str, bytes] = {
    "404 quotes the path": with_length(ECHO.encode(), "404 Not Found"),
    "JSON": with_length(json.dumps({"error": {"message": ECHO, "code": KEY, "param": KEY}}).encode(), "400 Bad"),
    "redirect without a target": with_length(b"", "302 Found"),
    "redirect": with_length(b"", "302 Found", f"Location: http://other/v1/login?next=%2Fv1%3Fkey%3D{KEY}\r\n"),
    "request id": with_length(b"", "500 Bad", f"X-Request-Id: {KEY}\r\n"),
    "no HTTP": f"SSH {KEY}\r\n\r\n".encode(),
    "no HTTP, long": f"{'x' * 190}{KEY}\r\n\r\n".encode(),
    "no status": f"HTTP/1.1 {KEY}\r\n\r\n".encode(),
    "no length": f"HTTP/1.1 200 OK\r\nContent-Length: {KEY}\r\n\r\n".encode(),
    "no chunk": f"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{KEY}\r\n".encode(),
    "no encoding": with_length(b"x", headers=f"Content-Encoding: br, {KEY}\r\n"),
    "page": with_length(f"<html>{KEY}".encode()),
    "long page": with_length(f"<html>{'x' * 185}{KEY}".encode()),
    "error in the stream": chunked(piece("a"), sse({"error": {"message": ECHO}})),
    "unknown payload": chunked(piece("a"), sse({"oddity": KEY})),
    "no JSON in the stream": chunked(piece("a"), f"data: {KEY}\n\n".encode()),
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("raw", RESPONSES.values(), ids=RESPONSES)
def test_no_error_shows_a_secret(place: Any, raw: bytes):
    options = {name: value for name, value in place.items() if name not in ("query", "extra_headers")}
    extra = {"extra_headers": place["extra_headers"]} if "extra_headers" in place else {}
    with responding_once(raw) as server:
        client = Client(server.url + place.get("query", ""), model="m", max_retries=0, **options)
        with client, pytest.raises(LocalChatError) as caught:
            client.chat("hi", **extra)
    error = caught.value
    shown = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    causes = [error, error.__cause__]
    shown += f"{error!r} {[vars(cause) for cause in causes if cause is not None]} {client!r}"
    assert "zebra7" not in shown.lower()  # Not even a part of it.
    vars(error).pop("partial", None)  # A reply is not masked.
    assert KEY.encode() not in pickle.dumps(error)


@pytest.mark.parametrize("method", ["models", "request", "embed"])
def test_no_error_of_other_requests_shows_a_secret(method: str, client_class: Any):
    for body, status in ((f"no {KEY}", "404 No"), (f"no {KEY}", "200 OK"), (json.dumps({"error": KEY}), "200 OK")):
        raw = with_length(body.encode(), status)
        arguments = {"models": (), "request": ("GET", "/x"), "embed": ("a",)}[method]
        if method == "request" and status == "200 OK":
            continue  # It returns whatever is no error.
        server = always(raw, raw)
        with server, make_client(server, client_class, api_key=KEY) as client, pytest.raises(LocalChatError) as caught:
            getattr(client, method)(*arguments)
        assert KEY not in f"{caught.value} {vars(caught.value)}"


def test_no_error_shows_the_password_of_a_proxy(client_class: Any):
    """On a new connection, and on one that an earlier call has made."""

    def respond(request: Request, number: int) -> bytes:
        shown = f"{request.headers['proxy-authorization']} {KEY}".encode()
        return HELLO if number == 1 else with_length(shown, "502 Bad Gateway")

    with serving(respond) as server:
        proxy = f"http://user:{KEY}@127.0.0.1:{server.port}"
        client = client_class("http://other.host/v1", model="m", proxy=proxy, max_retries=0)
        with client:
            client.chat("hi")
            for _ in range(2):
                with pytest.raises(LocalChatError, match=r"\*\*\*") as caught:
                    client.chat("hi")
                assert KEY not in f"{caught.value} {vars(caught.value)}"
                assert base64.b64encode(f"user:{KEY}".encode()).decode() not in f"{caught.value} {vars(caught.value)}"
                client.close()
        assert server.connections == 2


def test_neither_retries_nor_the_log_show_a_secret(caplog: pytest.LogCaptureFixture, client_class: Any):
    retries: list[Any] = []

    def respond(request: Request, number: int) -> bytes:
        return with_length(ECHO.encode(), "503 Busy", "Retry-After-Ms: 1\r\n") if number == 1 else HELLO

    with serving(respond) as server, caplog.at_level(logging.DEBUG):
        client = client_class(f"{server.url}?key={KEY}", KEY, "m", on_retry=lambda *values: retries.append(values))
        with client:
            client.chat("hi")
            client.request("GET", f"/health?key={KEY}")
    assert caplog.records
    assert KEY not in f"{caplog.text} {retries} {vars(retries[0][2])}"


def test_no_repr_shows_a_secret():
    for client in (Client, AsyncClient):
        assert KEY not in repr(client(f"http://h/v1?key={KEY}", KEY, headers={"api-key": KEY}))
    assert KEY not in repr(parse_proxy(f"http://user:{KEY}@h:80"))
    assert KEY not in repr(parse_base_url(f"http://h/v1?{KEY}"))
    assert KEY not in repr(Secrets([KEY]))


@pytest.mark.parametrize("url", [f"ftp://a:{KEY}@h", f"http://a:{KEY}@h", f"http://a:{KEY}/x@h", f"x{KEY}://h"[1:]])
def test_no_error_of_a_wrong_url_shows_its_password(url: str):
    for options in ({"base_url": url}, {"proxy": url.replace("http:", "https:")}):
        with pytest.raises(ValueError, match=r"URL|proxies") as caught:
            Client(**options)  # type: ignore[arg-type]
        assert f":{KEY}" not in str(caught.value)


@pytest.mark.parametrize("key", ["local", "a local file"])
@pytest.mark.parametrize("fields", [{"detail": None}, {"code": 200}, {"message": "ok"}, {"status": "x"}], ids=str)
def test_replies_are_not_masked(key: str, fields: Any, client_class: Any):
    """Only errors are: a key may be a word of the text, or the text itself."""
    payload = {**fields, "choices": [{"index": 0, "delta": {"content": "a local file"}, "finish_reason": "stop"}]}
    with always(chunked(sse(payload), DONE)) as server, make_client(server, client_class, api_key=key) as client:
        reply = client.chat("hi")
    assert reply.text == "a local file"


def test_partial_reply_of_an_error_is_not_masked():
    raw = chunked(piece("a local file"), sse({"error": "no a local file"}))
    error = failure(always(raw), LocalChatError, r"no \*\*\*", api_key="a local file")
    assert error.partial.text == "a local file"


def test_attribute_that_is_nested_too_deeply_is_not_shown():
    deep: Any = [SECRET]
    for _ in range(100_000):
        deep = [deep]
    error = LocalChatError(SECRET)
    error.data = deep  # type: ignore[attr-defined]  # As of an MCPError.
    Secrets([SECRET]).mask_error(error)
    assert vars(error) == {"data": "JSON that is nested too deeply"}
    assert str(error) == "***"
