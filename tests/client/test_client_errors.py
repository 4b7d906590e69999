"""Statuses and their errors, retries, redirects, hostile servers and their limits, and secrets that are not shown."""

import gzip
import itertools
import json
import os
import pickle
import socket
import threading
import time
import traceback
import zlib

import pytest

import localchat.transport.call
import localchat.transport.failures
from localchat import Accumulator, Client, Timeout
from localchat.errors import (
    AuthenticationError,
    ConnectError,
    IncompleteStream,
    ProtocolError,
    RateLimitError,
    ServerError,
    StatusError,
)
from localchat.transport.http1 import Inflate, check_codings
from localchat.transport.settings import Settings
from localchat.transport.sockets import Driver
from tests.support.clients import failure, failure_at, make_client, waiting_client
from tests.support.fuzz import cuts
from tests.support.growth import assert_linear
from tests.support.raw_responses import DONE, HELLO, HELLO_JSON, OPEN, chunked, chunks, delta, piece, sse, with_length
from tests.support.raw_server import KEY, Peer, Request, Server, always, serving, with_tls
from tests.support.scripted import playing, text
from tests.support.slow_servers import dripping

STATUSES = {
    "400": (400, '{"error": {"message": "bad x", "param": "x", "code": "c"}}', "bad x"),
    "401": (401, '{"error": "no key"}', "set OPENAI_API_KEY"),
    "407": (407, "log in", "requires a user and a password"),
    "429": (429, "slow down", "slow down"),
    "302": (302, "", "redirects to http://elsewhere/v1"),
    "empty": (500, "", "no reason given"),
    "letters": (400, '{"error": {"grund": "größe"}}', "größe"),
    "other fields": (500, '{"success": false, "error": {"code": "E", "message": "try later"}}', "try later"),
}


@pytest.mark.parametrize(("status", "body", "words"), STATUSES.values(), ids=STATUSES)
def test_status_becomes_its_error(status, body, words):
    headers = "Location: http://elsewhere/v1\r\nX-Request-Id: r1\r\nRetry-After: 3\r\n"
    with always(with_length(body.encode(), f"{status} Reason", headers)) as server, make_client(server) as client:
        for _ in range(2):
            with pytest.raises(StatusError, match=words) as caught:
                client.chat("hi")
        error = caught.value
        assert (error.status, error.request_id, error.retry_after, error.body) == (status, "r1", 3.0, body)
        assert type(error) is StatusError.class_for(status)
        assert server.connections == 1


def test_upload_refused_early_still_gives_the_status(client_class):
    def handle(peer: Peer, server: Server) -> None:
        peer.send(with_length(b'{"error": "too big"}', "413 Too Large", "Connection: close\r\n"))
        peer.sock.shutdown(socket.SHUT_WR)
        while peer.sock.recv(65536):
            pass

    failure(Server(handle), StatusError, "too big", client_class, prompt="x" * 10_000_000)


@pytest.fixture
def no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(localchat.transport.failures, "_FIRST_DELAY_S", 0.001)


RETRIED = {
    "408": ("408 Timeout", "", True),
    "429": ("429 Many", "", True),
    "500": ("500 Bad", "", True),
    "503": ("503 Loading", "Retry-After: 0.001\r\n", True),
    "501": ("501 Not Implemented", "", False),
    "400": ("400 Bad", "", False),
    "429-should-retry-false": ("429 Many", "X-Should-Retry: false\r\n", False),
    "400-should-retry-true": ("400 Bad", "X-Should-Retry: true\r\n", True),
    "closed": ("", "", True),
    "cut-in-the-head": ("", "HTTP/1.1 200 OK\r\nContent-Le", True),
}


@pytest.mark.parametrize(("status", "headers", "retried"), RETRIED.values(), ids=RETRIED)
def test_retry_by_status(status, headers, retried, no_delay, client_class):
    raw = with_length(b"{}", status, headers) if status else headers.encode()
    raws, reports = [raw, raw, HELLO], []
    options = {"max_retries": 2, "on_retry": lambda number, *_: reports.append(number)}
    server = Server(lambda peer, server: (peer.request(), peer.send(raws.pop(0))))
    with server, make_client(server, client_class, **options) as client:
        if retried:
            assert client.chat("hi").text == "Hello"
        else:
            with pytest.raises(StatusError):
                client.chat("hi")
        assert reports == ([1, 2] if retried else [])


def test_error_is_raised_where_the_total_timeout_leaves_no_time_to_wait(client_class):
    """No timeout has expired, and the error of the server is more useful than a timeout."""
    busy = with_length(b"slow down", "429 Many", "Retry-After: 60\r\n")
    error = failure(always(busy), RateLimitError, "slow down", max_retries=2, timeout=Timeout(total=10))
    assert error.retry_after == 60
    options = {"max_retries": 2, "timeout": Timeout(total=0.2)}
    words = "nothing listens on 127.0.0.1:1: start a server"
    failure_at("http://127.0.0.1:1/v1", ConnectError, words, client_class, **options)


DELAYS = {
    "milliseconds-first": ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
    "milliseconds-infinite": ({"retry-after-ms": "inf", "retry-after": "2"}, 2.0),
    "negative": ({"retry-after": "-5"}, 0.0),
    "nonsense": ({"retry-after": "soon"}, None),
    "nan": ({"retry-after": "nan"}, None),
    "twice": ({"retry-after": "3, 3"}, 3.0),
    "no date": ({"retry-after": "\u2177 \u00e9 99999999999 ,"}, None),
    "date": ({"retry-after": "Wed, 21 Oct 2026 07:28:30 GMT", "date": "Wed, 21 Oct 2026 07:28:00 GMT"}, 30.0),
    "date of the past": ({"retry-after": "Wednesday, 21-Oct-94 07:28:00 GMT", "date": "now"}, 0.0),
}


@pytest.mark.parametrize(("headers", "seconds"), DELAYS.values(), ids=DELAYS)
def test_retry_after(headers, seconds):
    assert localchat.transport.failures.retry_after(headers) == seconds


def test_longest_retry_after_is_waited_for(monkeypatch):
    waits: list[float] = []

    async def sleep(driver: Driver, limit: float) -> None:
        waits.append(limit)

    monkeypatch.setattr(Driver, "sleep", sleep)
    for seconds, n_tries in ((120, 2), (121, 1)):
        server = always(with_length(b"{}", "429 Many", f"Retry-After: {seconds}\r\n"))
        failure(server, RateLimitError, max_retries=1)
        assert len(server.requests) == n_tries
    assert waits == [120]


@pytest.mark.parametrize("seconds", ["0", "0.0", "-3", "Wed, 21 Oct 2020 07:28:00 GMT"])
def test_retry_pauses_also_if_the_server_allows_it_at_once(seconds):
    headers = {"retry-after": seconds}
    error = ServerError(
        "busy", status=503, headers=headers, retry_after=localchat.transport.failures.retry_after(headers)
    )
    assert localchat.transport.failures.retry_delay(error, 0, 2) >= 0.3


PERMANENT = {
    "no HTTP": (b"SSH-2.0-OpenSSH_9\r\n\r\n", "http", {}),
    "no status": (b"HTTP/1.1 OK\r\n\r\n", "http", {}),
    "no TLS": (b"HTTP/1.1 400 Bad\r\n\r\n", "https", {}),
    "a certificate that is not trusted": (None, "https", {}),
    "a proxy that refuses": (b"HTTP/1.1 407 Log in\r\n\r\n", "https", {"proxy": "http://127.0.0.1:{}"}),
}


@pytest.mark.parametrize(("raw", "scheme", "options"), PERMANENT.values(), ids=PERMANENT)
def test_what_cannot_change_is_not_repeated(raw, scheme, options, client_class, certificate):
    retries = []
    server = with_tls(always(HELLO), certificate) if raw is None else Server(lambda peer, server: peer.send(raw))
    with server:
        url = "https://h.example/v1" if options else f"{scheme}://127.0.0.1:{server.port}/v1"
        options = {name: text.format(server.port) for name, text in options.items()}
        options = {**options, "max_retries": 3, "on_retry": lambda *values: retries.append(values)}
        failure_at(url, (ConnectError, ProtocolError), client_class=client_class, **options)
        assert (retries, server.connections) == ([], 1)


def test_delay_grows_to_a_limit_with_jitter():
    for tries, longest in ((0, 0.5), (1, 1.0), (2, 2.0), (4, 8.0), (9, 8.0)):
        delay = localchat.transport.failures.retry_delay(ConnectError("x"), tries, 100)
        assert 0.75 * longest <= delay <= longest


def test_key_is_in_no_error(no_delay, client_class):
    echo = f'{{"error": "wrong key {KEY}"}}'.encode()
    for words, raw in (
        ("wrong key", with_length(echo, "401 No")),
        ("wrong key", chunked(b"data: " + echo + b"\n\n")),
        (r"\*\*\*", chunked(sse({"object": "error", "message": KEY}))),
        (r"\*\*\*", with_length(f'{{"detail": "{KEY}"}}'.encode())),
        ("hello", with_length(f"hello {KEY}".encode())),
        ("this is not HTTP", f"SSH {KEY}\r\n\r\n".encode()),
    ):
        error = failure(always(raw + b"\r\n"), localchat.LocalChatError, words, client_class, api_key=KEY)
        assert KEY not in f"{error!s} {error!r} {vars(error)}"
        assert KEY not in "".join(traceback.format_exception(type(error), error, error.__traceback__))
        assert KEY.encode() not in pickle.dumps(error)


@pytest.mark.parametrize("slash", ["/", r"\/", r"\u002f", r"\u002F"])
def test_key_is_in_no_error_with_any_json_escape(slash):
    r"""PHP escapes a slash with a backslash, .NET a plus as \u002B."""
    echo = rf'{{"error": {{"message": "wrong key ab{slash}cd\u002Bef", "code": "ab{slash}cd+ef"}}}}'.encode()
    for raw in (with_length(echo, "401 No"), with_length(echo), with_length(echo.replace(b"error", b"oddity"))):
        error = failure(always(raw), localchat.LocalChatError, r"\*\*\*", api_key="ab/cd+ef")
        assert "cd" not in f"{error!r} {vars(error)}"


LATE = {
    "error": (piece("a"), sse({"error": KEY})),
    "groq": (piece("a"), sse({"x_groq": {"error": KEY}})),
    "warning": (piece("a", "stop"), f"data: {KEY}\n\n".encode()),
}


@pytest.mark.parametrize("parts", LATE.values(), ids=LATE)
def test_key_is_in_no_event(parts):
    with always(chunked(*parts)) as server, make_client(server, api_key=KEY) as client, client.stream("hi") as stream:
        seen = list(itertools.islice(stream, 3))
    assert [event.type for event in seen[:2]] == ["message_start", "content_delta"]
    assert seen[2].type in ("error", "warning")
    assert KEY not in "".join(f"{event!r} {event.raw}" for event in seen)


@pytest.mark.parametrize(("model", "host"), [(None, "http://elsewhere"), ("m", "http://elsewhere"), ("m", "")])
def test_redirect_is_not_followed_and_names_a_base_url_that_works(model, host):
    """Without a model, the request for the list of models is redirected; its URL is not a base URL."""

    def respond(request: Request, number: int) -> bytes:
        return with_length(b"", "301 Moved", f"Location: {host}{request.path}\r\n")

    shown = host or "http://127.0.0.1:[0-9]+"
    failure(serving(respond), StatusError, f"redirects to {shown}/v1: use that as the base URL", model=model)


def test_redirect_to_something_that_is_no_url_is_named_as_it_is():
    redirect = with_length(b"", "302 Found", "Location: http://[bad\r\n")
    failure(always(redirect), StatusError, r"redirects to http://\[bad: use that")


def test_header_replaces_another_in_any_case():
    with always(HELLO) as server, make_client(server, api_key=KEY, headers={"AUTHORIZATION": "mine"}) as client:
        client.chat("hi", extra_headers={"content-type": "text/json"})
        client.chat("hi", extra_headers={"authorization": "theirs"})
        assert [request.headers["authorization"] for request in server.requests] == ["mine", "theirs"]
        assert server.requests[0].headers["content-type"] == "text/json"


def test_client_neither_shows_its_key_nor_can_be_pickled():
    assert KEY not in f"{Client(f'http://h/v1?key={KEY}')!r}"
    with always(HELLO) as server, make_client(server, api_key=f" {KEY}\n") as client:
        client.chat("hi")
        assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"
    for client in (Client(api_key=KEY), localchat.AsyncClient(api_key=KEY)):
        with pytest.raises(TypeError, match="it holds a key"):
            pickle.dumps(client)


ZIPPED = "Content-Encoding: gzip\r\n"
PACKED = {
    "several members": ("gzip", b"".join(map(gzip.compress, (b"text" * 9, b"", b"more"))), b"text" * 9 + b"more"),
    "zlib": ("deflate", zlib.compress(b"text"), b"text"),
    "without a header": ("deflate", zlib.compress(b"text")[2:-4], b"text"),
    "padded gzip": ("deflate", gzip.compress(b"text") + b"\0\0", b"text"),
}


@pytest.mark.parametrize(("encoding", "packed", "text"), PACKED.values(), ids=PACKED)
def test_body_is_inflated_however_it_is_cut(encoding, packed, text):
    for parts in cuts(packed):
        assert check_codings([encoding, encoding]) == encoding
        inflate = Inflate(10_000)
        assert b"".join(map(inflate.feed, parts)) == text, parts
        inflate.feed_end()


@pytest.mark.parametrize("n_bytes", range(1, len(gzip.compress(b"b"))))
def test_further_gzip_member_that_ends_too_early_is_an_error(n_bytes):
    """Cut at any byte. Other bytes after a member are padding."""
    inflate = Inflate(10_000)
    assert inflate.feed(gzip.compress(b"a") + gzip.compress(b"b")[:n_bytes]).startswith(b"a")
    with pytest.raises(IncompleteStream, match="ends too early"):
        inflate.feed_end()
    padded = Inflate(10_000)
    assert padded.feed(gzip.compress(b"a") + bytes(n_bytes)) == b"a"
    padded.feed_end()


NUMBERS = json.dumps({"choices": [{"message": {"content": str(list(range(99)))}, "finish_reason": "stop"}]}).encode()
COMPRESSORS = {
    "gzip": ("gzip", gzip.compress),
    "zlib": ("deflate", zlib.compress),
    "without a header": ("deflate", lambda text: zlib.compress(text)[2:-4]),
    "the second member": ("gzip", lambda text: gzip.compress(b"") + gzip.compress(text)),
}


@pytest.mark.parametrize("framing", ["length", "chunked", "close"])
@pytest.mark.parametrize(("coding", "compress"), COMPRESSORS.values(), ids=COMPRESSORS)
def test_compressed_body_that_ends_too_early_is_an_error(coding, compress, framing, client_class):
    """Also within whole framing, and if only the checksum is missing. A reply that is whole by then is returned."""
    packed = compress(NUMBERS)
    headers = f"Content-Encoding: {coding}\r\n"
    for n_missing in (1, 4, len(packed) // 3):
        body = packed[:-n_missing]
        head = f"HTTP/1.1 200 OK\r\n{headers}".encode()
        raw = {
            "length": with_length(body, headers=headers),
            "chunked": head + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(body), body),
            "close": head + b"Connection: close\r\n\r\n" + body,
        }[framing]
        with always(raw) as server, make_client(server, client_class) as client:
            with pytest.raises(IncompleteStream, match="ends too early"):
                client.request("POST", "/files")
            if n_missing > 8:
                with pytest.raises(IncompleteStream):
                    client.chat("hi")


@pytest.mark.parametrize("coding", ["utf-8", "UTF8", "none", "identity", "binary", "identity, utf-8", "x-unknown"])
def test_coding_that_is_none_is_read_as_it_is(coding, client_class):
    """With a warning, unless it is the name of no coding."""
    raw = HELLO.replace(b"\r\n", f"\r\nContent-Encoding: {coding}\r\n".encode(), 1)
    with always(raw) as server, make_client(server, client_class) as client:
        with client.stream("hi") as stream:
            warnings = [event.text for event in stream if event.type == "warning"]
        assert stream.reply.text == "Hello"
        assert list(stream.reply.warnings) == warnings
        assert [coding.lower().split(", ")[-1] in text for text in warnings] == [True] * (coding != "identity")
        assert client.chat("hi").text == "Hello"


@pytest.mark.parametrize("coding", ["br", "zstd", "compress", "gzip, br", "gzip, deflate"])
def test_coding_that_cannot_be_read_is_an_error(coding, client_class):
    raw = with_length(b"Hello", headers=f"Content-Encoding: {coding}\r\n")
    failure(always(raw), ProtocolError, "compresses with .*, which the client did not offer", client_class)


RAW_DEFLATE = zlib.compress(b"slow down")[2:-4]  # without the header and the checksum of zlib
ENCODED_ERRORS = {
    "brotli": ("429 Many", "br", b"\x0b\x03slow down\x03"),
    "claims gzip": ("403 No", "gzip", b"slow down"),
    "raw deflate": ("503 Busy", "deflate", RAW_DEFLATE),
    "damaged gzip": ("429 Many", "gzip", gzip.compress(b"slow down" * 99)[:60] + b"?" * 50),
    "unknown": ("429 Many", "secret", b"slow down"),
}


@pytest.mark.parametrize(("status", "encoding", "body"), ENCODED_ERRORS.values(), ids=ENCODED_ERRORS)
def test_status_decides_whatever_the_encoding_of_the_body(status, encoding, body, client_class, no_delay):
    server = always(with_length(body, status, f"Content-Encoding: {encoding}\r\n"))
    error = failure(server, StatusError, "slow down", client_class, max_retries=1)
    assert error.status == int(status[:3])
    assert len(server.requests) == (1 if error.status == 403 else 2)


def test_size_of_a_response_is_limited(client_class):
    """Also of one that is inflated, and of a stream; the body of an error is cut."""
    zipped = with_length(gzip.compress(b": ping\n" * 5_000_000, 1), headers=ZIPPED)
    error = failure(always(zipped), ProtocolError, "more than 3000000 bytes", client_class, max_bytes=3_000_000)
    assert error.partial is not None
    server = dripping(OPEN, drop=chunks(piece("more"), end=False))
    error = failure(server, ProtocolError, "more than 1000", client_class, max_bytes=1000)
    assert error.partial.text.startswith("amore")
    raw = with_length(gzip.compress(b"x" * 63_000_000, 9), "500 No", ZIPPED)
    error = failure(always(raw), ServerError, "500", client_class)
    assert len(error.body) == localchat.transport.call.MAX_DRAINED_BYTES


def test_time_for_many_choices_is_linear():
    def seconds(n: int) -> float:
        accumulator, began_at = Accumulator(), time.thread_time()
        for index in range(n):
            accumulator.add({"choices": [{"index": index, "delta": {"content": "x"}, "finish_reason": "stop"}]})
        accumulator.add({"choices": [{"index": index, "delta": {}} for index in range(n, 3 * n)]})
        assert not accumulator.has_known_reasons
        return time.thread_time() - began_at

    assert_linear(seconds, 250, 20, 0.002)


def test_too_many_calls_are_refused():
    call = {"id": "a", "function": {"name": "f", "arguments": "{}"}}
    calls = (delta(tool_calls=[{**call, "index": index, "id": f"a{index}"}]) for index in range(1001))
    parts = [piece("Hello"), *calls]
    error = failure(always(chunked(*parts)), ProtocolError, "more than 1000 tool calls")
    assert error.partial.text == "Hello"
    with always(chunked(*parts[:-1], DONE)) as server, make_client(server) as client:
        assert len(client.chat("hi").tool_calls) == 1000


@pytest.mark.parametrize(
    ("raw", "text", "n_warnings"),
    [
        (chunked(piece("a") + piece("b*c").replace(b"*", b"\xff"), piece("", "stop"), DONE), "ab\ufffdc", 1),
        (with_length(HELLO_JSON.replace(b"Hello", b"H\xe2\x82")), "H\ufffd", 1),
        (with_length(HELLO_JSON.replace(b"Hello", b"\xef\xbf\xbd")), "\ufffd", 0),
    ],
    ids=["stream", "whole", "sent as a character"],
)
def test_text_that_is_not_utf8_gives_one_warning(raw, text, n_warnings):
    with always(raw) as server, make_client(server) as client, client.stream("hi") as stream:
        warnings = [event.text for event in stream if event.type == "warning"]
    assert (stream.reply.text, list(stream.reply.warnings), len(warnings)) == (text, warnings, n_warnings)
    assert all("not UTF-8" in warning for warning in warnings)


@pytest.mark.parametrize("method", ["chat", "run"])
def test_files_are_read_beside_the_event_loop(method, tmp_path):
    readers = set()

    class Path(os.PathLike):
        def __fspath__(self) -> str:
            readers.add(threading.get_ident())
            return str(tmp_path / "image.gif")

    path = Path()
    (tmp_path / "image.gif").write_bytes(b"GIF89a")
    with playing(text("ok"), client_class=waiting_client) as (client, script):
        getattr(client, method)("hi", images=[path])
        assert script.requests[0]["messages"][0]["content"][0]["type"] == "image_url"
    assert len(readers) == 1
    assert readers != {threading.get_ident()}


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
    assert ("Authorization" in Settings(base_url=url).request_headers({})) == sent
    assert "Authorization" in Settings(base_url=url, api_key=KEY).request_headers({})


def test_error_401_explains_that_the_key_was_not_sent(monkeypatch):
    with always(with_length(b"", "401 No")) as server, make_client(server) as client:
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        with pytest.raises(AuthenticationError, match="pass api_key: OPENAI_API_KEY goes to https"):
            client.chat("hi")
