"""HTTP on the wire: heads and bodies, malformed, compressed, slow and unfinished requests."""

import contextlib
import gzip
import json
import select
import socket
import zlib

import pytest

from localchat.serving.core.fields import MAX_DEPTH
from localchat.serving.core.server_options import Options
from localchat.serving.http import http_server, incoming
from localchat.serving.http.exchange import SEND_BYTES
from localchat.serving.http.incoming import MAX_CHUNK_LINE_BYTES, MAX_TRAILERS
from tests.support import serving as support
from tests.support.deadline import DEADLINE_S
from tests.support.serving import GOOD, chat_request, chunked, exchange, raw_request, read_all, read_until, serving

BIG = b"x" * 100_001
HEALTH = raw_request(b"", "Connection: close", path="/health", method="GET")


@pytest.fixture(scope="module")
def running():
    with serving(settings=Options(port=0, max_body_bytes=100_000)) as running:
        yield running


BODY = GOOD.decode()
CHUNKS = chunked(f"{5:x}", BODY[:5], f"{len(BODY) - 5:X};name=value", BODY[5:], "0", "Trailer: x", "", "")


@pytest.mark.parametrize("request_bytes", [chat_request(), CHUNKS], ids=["length", "chunks"])
@pytest.mark.parametrize("n", [1, 7, 10_000])
def test_request_cut_anywhere_and_the_next_one_after_it(running, request_bytes, n):
    with running.connect() as sock:
        for i in range(0, len(request_bytes), n):
            sock.sendall(request_bytes[i : i + n])
        sock.sendall(b"\r\n" + HEALTH)
        raw = read_all(sock)
    assert raw.count(b"HTTP/1.1 200 OK") == 2
    assert raw.endswith(b'{"status":"ok"}')


def test_request_whose_head_is_cut_by_the_end_of_the_connection_is_not_carried_out(running):
    for n in range(1, len(HEALTH)):
        with running.connect() as sock:
            sock.sendall(HEALTH[:n])
            sock.shutdown(socket.SHUT_WR)
            assert not read_all(sock).startswith(b"HTTP/1.1 200"), HEALTH[:n]


def damaged(old: bytes, new: bytes, request: bytes = chat_request()) -> bytes:
    assert old in request
    return request.replace(old, new)


HELLO = chunked("5", "hello", "0", "", "")
MALFORMED = {
    "TLS": (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", 400),
    "one word": (b"hello\r\n\r\n", 400),
    "HTTP/2": (b"GET / HTTP/2.0\r\n\r\n", 505),
    "other protocol": (b"GET / FTP/1.1\r\n\r\n", 400),
    "unknown method": (b"BREW / HTTP/1.1\r\nHost: a\r\n\r\n", 501),
    "long target": (b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n", 414),
    "long header": (b"GET / HTTP/1.1\r\nA: " + b"x" * 70_000 + b"\r\n\r\n", 431),
    "many headers": (b"GET / HTTP/1.1\r\n" + b"A: x\r\n" * 200 + b"\r\n", 431),
    "no host": (b"GET /health HTTP/1.1\r\n\r\n", 400),
    "two hosts": (raw_request(GOOD, "Host: localhost"), 400),
    "two origins": (raw_request(GOOD, "Origin: http://localhost", "Origin: http://a"), 400),
    "no colon": (raw_request(GOOD, "no colon"), 400),
    "space before the colon": (damaged(b"Host:", b"Host :"), 400),
    "header over two lines": (raw_request(GOOD, "A: b\r\n c"), 400),
    "carriage return in a line": (raw_request(GOOD, "A: b\rContent-Length: 5"), 400),
    "NUL in a line": (raw_request(GOOD, "A: b\0c"), 400),
    "carriage returns in the first line": (b"GET\r/health\rHTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    "NUL in the first line": (b"GET /health\0 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    "signed length": (damaged(b"Length: ", b"Length: +"), 400),
    "negative length": (damaged(b"Length: ", b"Length: -"), 400),
    "length after a vertical tab": (damaged(b"Length: ", b"Length: \x0b"), 400),
    "two lengths": (raw_request(GOOD, "Content-Length: 5"), 400),
    "length and chunked": (raw_request(GOOD, "Transfer-Encoding: chunked"), 400),
    "coding after a vertical tab": (damaged(b": chunked", b": \x0bchunked", HELLO), 501),
    "transfer coding gzip": (damaged(b": chunked", b": gzip", HELLO), 501),
    "size ends without CR": (damaged(b"5\r\n", b"5\n", HELLO), 400),
    "chunk ends without CR": (damaged(b"o\r\n", b"o\n", HELLO), 400),
    "long chunk extension": (chunked("5;" + "x" * 5000, "hello", "0", "", ""), 400),
    "no chunk size": (chunked("xyz", ""), 400),
    "negative chunk size": (chunked("-5", "hello"), 400),
    "chunk longer than its size": (chunked("2", "hello", "0", "", ""), 400),
    "many trailers": (chunked("0", *["A: x"] * 200, "", ""), 400),
    "large body": (raw_request(BIG), 413),
    "large chunk": (chunked("186a1", BIG.decode(), "0", "", ""), 413),
    "large body of chunks": (chunked(*["ea60", "x" * 60_000] * 2, "0", "", ""), 413),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_request_gets_an_error_and_the_connection_is_closed(running, name):
    request_bytes, status = MALFORMED[name]
    head, body = exchange(running, request_bytes)
    assert int(head.split()[1]) == status
    assert b"Connection: close" in head
    assert body["error"]["type"] == "invalid_request_error"
    if name in ("no colon", "space before the colon"):
        assert body["error"]["message"].endswith("each line must be a name, a colon and a value")


FULL = GOOD + b" " * (100_000 - len(GOOD))
ALLOWED = {
    "body of the largest size": raw_request(FULL),
    "chunks of the largest size": chunked("c350", FULL[:50_000].decode(), "c350", FULL[50_000:].decode(), "0", "", ""),
    "compressed body of the largest size": raw_request(gzip.compress(FULL), "Content-Encoding: gzip"),
    "as many trailers as are allowed": chunked(f"{len(GOOD):x}", BODY, "0", *["A: x"] * (MAX_TRAILERS - 1), "", ""),
    "longest chunk extension": chunked(f"{len(GOOD):x};".ljust(MAX_CHUNK_LINE_BYTES - 2, "x"), BODY, "0", "", ""),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_request_at_a_limit_is_served(running, name):
    head, _ = exchange(running, ALLOWED[name].replace(b"Host:", b"Connection: close\r\nHost:", 1))
    assert head.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("type", ["multipart/form-data; boundary=b", "multipart/form-data", "multipart/mixed"])
def test_uploaded_file_gets_the_response_of_any_request(running, type):
    """Python's email parser reports defects of every multipart body, since it gets the head without the body."""
    headers = f"Content-Type: {type}", "Content-Transfer-Encoding: base64", "Connection: close"
    head, body = exchange(running, raw_request(b"--b--\r\n", *headers, path="/v1/audio/transcriptions"))
    assert head.startswith(b"HTTP/1.1 404")
    assert body["error"]["code"] == "unknown_path"


@pytest.mark.parametrize("n_left", [1, 2, 4, 5, 7, len(GOOD) + 5])
def test_chunked_body_that_is_cut_is_no_request(running, n_left):
    n_requests = len(running.requests)
    with running.connect(chunked(f"{len(GOOD):x}", BODY, "0", "", "")[:-n_left]) as sock:
        sock.shutdown(socket.SHUT_WR)
        assert b"200 OK" not in read_all(sock)
        assert len(running.requests) == n_requests


# --- compressed bodies ---


def deflated(body: bytes) -> bytes:
    """Without the header of zlib, as some clients send it."""
    compressor = zlib.compressobj(wbits=-15)
    return compressor.compress(body) + compressor.flush()


ZIPPED = gzip.compress(GOOD, mtime=0)
COMPRESSED = {
    "gzip": ("gzip", ZIPPED, 200, ""),
    "gzip of two members": ("gzip", gzip.compress(GOOD[:9]) + gzip.compress(GOOD[9:]), 200, ""),
    "gzip of too many members": ("gzip", gzip.compress(b"") * 16 + ZIPPED, 400, "not what Content-Encoding"),
    "x-gzip in capitals": ("X-GZIP", ZIPPED, 200, ""),
    "deflate": ("deflate", zlib.compress(GOOD), 200, ""),
    "raw deflate": ("deflate", deflated(GOOD), 200, ""),
    "identity": ("identity", GOOD, 200, ""),
    "brotli": ("br", b"\x0b\x02", 415, "'br' is not 'gzip' or 'deflate'"),
    "two codings": ("gzip, gzip", gzip.compress(ZIPPED), 415, "'gzip, gzip' is not"),
    "bomb": ("gzip", gzip.compress(bytes(50_000_000)), 413, "the limit is 100000"),
    "raw bomb": ("deflate", deflated(bytes(50_000_000))[:90_000], 413, "the limit is 100000"),
    "cut": ("gzip", ZIPPED[:-5], 400, "not what Content-Encoding 'gzip' says"),
    "with more behind it": ("deflate", zlib.compress(GOOD) + b"x", 400, "not what Content-Encoding 'deflate' says"),
    "not compressed": ("gzip", GOOD, 400, "not what Content-Encoding 'gzip' says"),
}


@pytest.mark.parametrize("name", COMPRESSED)
def test_compressed_body_is_decoded_within_the_limit(running, name):
    coding, body, status, words = COMPRESSED[name]
    head, found = exchange(running, raw_request(body, f"Content-Encoding: {coding}", "Connection: close"))
    assert int(head.split()[1]) == status
    assert words in found.get("error", {}).get("message", "")
    assert (b"Accept-Encoding: gzip, deflate" in head) == (status == 415)


# --- JSON that is nested too deeply ---


@pytest.mark.parametrize("n", [MAX_DEPTH - 2, MAX_DEPTH - 1, 1500, 45_000])
def test_body_nested_too_deeply_is_a_bad_request(running, n):
    """The body and `chat_template_kwargs` are two levels."""
    start = '{"messages": [{"role": "user", "content": "a\\ud800"}], "chat_template_kwargs": {"x": '
    status, found = running.request("POST", "/v1/chat/completions", start + "[" * n + "]" * n + "}}")
    assert (status, found.get("error", {}).get("param")) == ((400, "body") if n > MAX_DEPTH - 2 else (200, None))


@pytest.mark.parametrize("n", [900, 10_000])
def test_arguments_nested_too_deeply_are_a_bad_request(n):
    function = {"name": "f", "arguments": '{"a":' * n + "1" + "}" * n}
    call = {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": function}]}
    with serving(chat_template="{{ messages | tojson }}") as running:
        status, body = running.chat(messages=[call, {"role": "user", "content": "a"}])
    assert (status, body["error"]["type"]) == (400, "invalid_request_error")


# --- 100 Continue, and the end of a connection ---


@pytest.mark.parametrize(
    ("version", "path", "first"),
    [
        (b"1.1", b"/v1/chat/completions", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (b"1.1", b"/nothing", b"HTTP/1.1 404 Not Found\r\n"),
        (b"1.0", b"/v1/chat/completions", b"HTTP/1.1 200 OK\r\n"),
    ],
    ids=["accepted", "refused without reading", "HTTP/1.0 has no 100"],
)
def test_expect_continue(running, version, path, first):
    head, _, body = chat_request().partition(b"\r\n\r\n")
    head = head.replace(b"HTTP/1.1", b"HTTP/" + version).replace(b"/v1/chat/completions", path)
    with running.connect(head + b"\r\nExpect: 100-continue\r\n\r\n") as sock:
        if version == b"1.0":
            sock.sendall(body)
        assert read_until(sock, b"\r\n").strip() == first.strip()
        if b"100" in first:
            sock.sendall(body)
            assert b"200 OK" in read_until(sock, b"hello")


@pytest.mark.parametrize("headers", [["Connection: TE, close"], ["Connection: TE", "Connection: Close"]])
def test_close_is_recognised_among_other_connection_options(running, headers):
    """RFC 9112, 9.6: a client that sends this option may wait for the end of the connection."""
    head, body = exchange(running, raw_request(b"", *headers, path="/health", method="GET"))
    assert b"Connection: close" in head
    assert body == {"status": "ok"}


def test_connection_goes_on_after_a_whole_body_that_is_damaged(running):
    with running.connect(raw_request(ZIPPED[:-5], "Content-Encoding: gzip") + HEALTH) as sock:
        raw = read_all(sock)
    assert raw.startswith(b"HTTP/1.1 400 ")
    assert raw.endswith(b'{"status":"ok"}')


@pytest.mark.parametrize(
    "request_bytes",
    [raw_request(GOOD, "Connection: close") + b"\r\n", raw_request(BIG, path="/nothing")[:-9]],
    ids=["more than a request", "unread body"],
)
def test_client_that_is_still_sending_gets_its_response_and_no_reset(running, request_bytes):
    """Closing with unread bytes would reset the connection, on some systems before the client reads the response."""
    with running.connect(request_bytes) as sock:
        raw = read_all(sock)
        for _ in range(20):
            sock.sendall(b"more")
            select.select([], [], [], 0.002)
        assert sock.recv(1) == b""
    head, _, body = raw.partition(b"\r\n\r\n")
    assert b"Connection: close" in head
    assert json.loads(body)


def test_large_response_is_sent_whole():
    text = "x" * (3 * SEND_BYTES + 5)
    with serving(chat_template=f"{{{{ 'x' * {len(text)} }}}}") as running:
        assert running.request("POST", "/apply-template", GOOD) == (200, {"prompt": text})


# --- slow requests ---


@pytest.mark.parametrize(
    ("limit", "sent"),
    [("IDLE_TIMEOUT_S", b""), ("HEAD_TIMEOUT_S", b"GET /health HTTP/1.1\r\nA: ")],
    ids=["idle", "head"],
)
def test_connection_without_a_whole_head_is_closed(monkeypatch, limit, sent):
    monkeypatch.setattr(http_server, limit, 0.1)
    with serving() as running, running.connect(sent) as sock:
        support.trickle(sock, b"x" if sent else b"")
        with contextlib.suppress(ConnectionResetError):
            assert sock.recv(1) == b""


@pytest.mark.parametrize("sent", [chat_request()[:-9], CHUNKS[:-30], raw_request(ZIPPED)[:-9]])
@pytest.mark.parametrize("byte", [b"", b" "], ids=["stopped", "byte by byte"])
def test_body_that_is_too_slow_gets_an_error(monkeypatch, sent, byte):
    """Its limit grows with the bytes that have arrived, not with each byte's arrival."""
    monkeypatch.setattr(incoming, "BODY_TIMEOUT_S", 0.1)
    with serving() as running, running.connect(sent.replace(b"Content-Length: ", b"Content-Length: 1")) as sock:
        support.trickle(sock, byte)
        raw = read_all(sock)
    assert raw.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    assert b"send 16384 bytes per second or more" in raw


def test_body_that_takes_long_and_is_fast_enough_is_read(monkeypatch):
    monkeypatch.setattr(incoming, "BODY_TIMEOUT_S", 0.1)
    monkeypatch.setattr(incoming, "MIN_BODY_RATE", len(GOOD) // 4 / DEADLINE_S)
    head, _, body = chat_request().partition(b"\r\n\r\n")
    with serving() as running, running.connect(head + b"\r\n\r\n" + body[:-20]) as sock:
        for i in range(20):
            select.select([sock], [], [], 0.01)
            sock.sendall(body[len(body) - 20 + i :][:1])
        assert sock.recv(15) == b"HTTP/1.1 200 OK"
