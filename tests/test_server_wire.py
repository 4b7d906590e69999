"""HTTP on the wire: chunked bodies, malformed and unfinished requests, and timeouts."""

import contextlib
import io
import json
import random
import select
import socket
import subprocess
import sys
import time
from email.message import Message

import pytest

from localchat.serving.http import http_server as server_module
from localchat.serving.http import incoming
from localchat.serving.http.exchange import SEND_BYTES, Exchange, Head
from localchat.serving.http.settings import Settings

from .serving import DEADLINE_S, GOOD, chat_request, exchange, raw_request, read_response, read_until, serving, wait_for

CHUNKED = ("POST /v1/chat/completions HTTP/1.1", "Host: localhost", "Transfer-Encoding: chunked", "", "")


def chunked(*lines: str) -> bytes:
    return "\r\n".join(CHUNKED).encode() + "\r\n".join(lines).encode()


def test_chunked_body_in_pieces_and_the_next_request_after_it():
    body = GOOD.decode()
    request = chunked(f"{5:x}", body[:5], f"{len(body) - 5:X};name=value", body[5:], "0", "Trailer: x", "", "")
    with serving() as running, running.connect() as sock:
        for i in range(0, len(request), 7):
            sock.sendall(request[i : i + 7])
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        raw = b"".join(iter(lambda: sock.recv(65536), b""))
    assert raw.count(b"HTTP/1.1 200 OK") == 2
    assert raw.endswith(b'{"status":"ok"}')


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        pytest.param(b"\x16\x03\x01\x02\x00\x01\r\n\r\n", 400, id="TLS"),
        pytest.param(b"hello\r\n\r\n", 400, id="one word"),
        pytest.param(b"GET / HTTP/2.0\r\n\r\n", 505, id="HTTP/2"),
        pytest.param(b"GET / FTP/1.1\r\n\r\n", 400, id="other protocol"),
        pytest.param(b"BREW / HTTP/1.1\r\nHost: a\r\n\r\n", 501, id="unknown method"),
        pytest.param(b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n", 414, id="long target"),
        pytest.param(b"GET / HTTP/1.1\r\nA: " + b"x" * 70_000 + b"\r\n\r\n", 431, id="long header"),
        pytest.param(b"GET / HTTP/1.1\r\n" + b"A: x\r\n" * 200 + b"\r\n", 431, id="many headers"),
        pytest.param(b"GET /health HTTP/1.1\r\n\r\n", 400, id="H2-no host"),
        pytest.param(raw_request(GOOD, "Host: localhost"), 400, id="H1-two hosts"),
        pytest.param(raw_request(GOOD, "Origin: http://localhost", "Origin: http://a"), 400, id="H1-two origins"),
        pytest.param(b"GET /health HTTP/1.1\r\nno colon\r\nA: b\r\n\r\n", 400, id="broken header"),
        pytest.param(raw_request(GOOD).replace(b"Length: ", b"Length: +"), 400, id="signed length"),
        pytest.param(raw_request(GOOD).replace(b"Length: ", b"Length: -"), 400, id="negative length"),
        pytest.param(raw_request(GOOD, "Content-Length: 5"), 400, id="H3-two lengths"),
        pytest.param(raw_request(GOOD, "Transfer-Encoding: chunked"), 400, id="length and chunked"),
        pytest.param(raw_request(b"").replace(b"Content-Length: 0", b"Transfer-Encoding: gzip"), 501, id="gzip"),
        pytest.param(b"GET /health HTTP/1.1\r\nA: b\rContent-Length: 5\r\n\r\n", 400, id="carriage return in a line"),
        pytest.param(
            b"GET\r/health\rHTTP/1.1\r\nHost: localhost\r\n\r\n", 400, id="carriage returns in the first line"
        ),
        pytest.param(b"GET /health\0 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, id="NUL in the first line"),
        pytest.param(b"GET /health HTTP/1.1\r\nA: b\0c\r\n\r\n", 400, id="NUL in a line"),
        pytest.param(b"GET /health HTTP/1.1\r\nA: b\r\n c\r\n\r\n", 400, id="header over two lines"),
        pytest.param(raw_request(GOOD).replace(b"Length:", b"Length :"), 400, id="space before the colon"),
        pytest.param(raw_request(GOOD).replace(b"Length: ", b"Length: \x0b"), 400, id="length after a vertical tab"),
        pytest.param(
            chunked("0", "", "").replace(b": chunked", b": \x0bchunked"), 501, id="coding after a vertical tab"
        ),
        pytest.param(chunked("5", "hello", "0", "", "").replace(b"5\r\n", b"5\n"), 400, id="size ends without CR"),
        pytest.param(chunked("5", "hello", "0", "", "").replace(b"o\r\n", b"o\n"), 400, id="chunk ends without CR"),
        pytest.param(chunked("5;" + "x" * 5000, "hello", "0", "", ""), 400, id="long chunk extension"),
        pytest.param(chunked("xyz", ""), 400, id="no chunk size"),
        pytest.param(chunked("-5", "hello"), 400, id="negative chunk size"),
        pytest.param(chunked("2", "hello", "0", "", ""), 400, id="chunk longer than its size"),
        pytest.param(chunked("0", *["A: x"] * 200, "", ""), 400, id="many trailers"),
        pytest.param(raw_request(b"x" * 2000), 413, id="H18-large body"),
        pytest.param(chunked("7d0", "x" * 2000, "7d0", "x" * 2000, "0", "", ""), 413, id="large chunked body"),
    ],
)
def test_malformed_request_gets_an_error_and_the_connection_is_closed(request_bytes, status):
    with serving(settings=Settings(port=0, max_body_bytes=1000)) as running:
        head, body = exchange(running, request_bytes)
        assert int(head.split()[1]) == status
        assert b"Connection: close" in head
        assert body["error"]["type"] == "invalid_request_error"
        assert running.chat()[0] == 200


@pytest.mark.parametrize("line", ["no colon", "Host : a"])
def test_error_of_a_broken_header_names_the_right_format(line):
    with serving() as running:
        _, body = exchange(running, raw_request(b"", line))
    assert body["error"]["message"].endswith("each line must be a name, a colon and a value")


@pytest.mark.parametrize("type", ["multipart/form-data; boundary=b", "multipart/form-data", "multipart/mixed"])
def test_uploaded_file_gets_the_response_of_any_request(type):
    """Python's email parser reports defects of every multipart body, since it gets the head without the body."""
    headers = f"Content-Type: {type}", "Content-Transfer-Encoding: base64", "Connection: close"
    with serving() as running:
        head, body = exchange(running, raw_request(b"--b--\r\n", *headers, path="/v1/audio/transcriptions"))
    assert head.startswith(b"HTTP/1.1 404")
    assert "supports only text" in body["error"]["message"]


@pytest.mark.parametrize("n_left", [1, 2, 4, 5, 7, len(GOOD) + 5])
def test_chunked_body_that_is_cut_is_no_request(n_left):
    """Without its last chunk, a body is incomplete."""
    with serving() as running, running.connect() as sock:
        sock.sendall(chunked(f"{len(GOOD):x}", GOOD.decode(), "0", "", "")[:-n_left])
        sock.shutdown(socket.SHUT_WR)
        assert b"200 OK" not in b"".join(iter(lambda: sock.recv(65536), b""))
        assert running.requests == []


DEEP = "[" * 150 + "]" * 150


@pytest.mark.parametrize("n", [201, 900, 1500, 100_000])
@pytest.mark.parametrize("escape", ["", "\\ud800"], ids=["plain", "with half a surrogate"])
def test_body_nested_too_deeply_is_a_bad_request(n, escape):
    start = f'{{"messages": [{{"role": "user", "content": "a{escape}"}}], "chat_template_kwargs": {{"x": '
    with serving() as running, contextlib.closing(running.client()) as client:
        client.request("POST", "/v1/chat/completions", start + "[" * n + "]" * n + "}}")
        status, body = read_response(client)
        assert (status, body["error"]["param"]) == (400, "body")
        client.request("POST", "/v1/chat/completions", start + DEEP + "}}")
        assert read_response(client)[0] == 200


@pytest.mark.parametrize("n", [900, 100_000])
def test_arguments_nested_too_deeply_are_a_bad_request(n):
    function = {"name": "f", "arguments": '{"a":' * n + "1" + "}" * n}
    call = {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": function}]}
    with serving(chat_template="{{ messages | tojson }}") as running:
        status, body = running.chat(messages=[call, {"role": "user", "content": "a"}])
    assert (status, body["error"]["type"]) == (400, "invalid_request_error")


def test_body_larger_than_the_limit_but_soon_over_leaves_the_connection_usable():
    request = chunked("3e9", "x" * 1001, "0", "", "")
    with serving(settings=Settings(port=0, max_body_bytes=1000)) as running, running.connect() as sock:
        sock.sendall(request + b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        raw = b"".join(iter(lambda: sock.recv(65536), b""))
    assert raw.startswith(b"HTTP/1.1 413 ")
    assert raw.endswith(b'{"status":"ok"}')


def test_expect_continue_gets_100_before_the_body_is_read():
    head, _, body = chat_request().partition(b"\r\n\r\n")
    with serving() as running, running.connect() as sock:
        sock.sendall(head + b"\r\nExpect: 100-continue\r\n\r\n")
        assert read_until(sock, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(body)
        assert sock.recv(15) == b"HTTP/1.1 200 OK"


def test_expect_continue_is_refused_without_reading():
    request = raw_request(GOOD, "Expect: 100-continue", path="/nothing").partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
    with serving() as running:
        head, _ = exchange(running, request)
    assert head.startswith(b"HTTP/1.1 404")


def test_http_1_0_peer_gets_no_100_continue():
    head, _, body = chat_request().replace(b"HTTP/1.1", b"HTTP/1.0").partition(b"\r\n\r\n")
    with serving() as running, running.connect() as sock:
        sock.sendall(head + b"\r\nExpect: 100-continue\r\n\r\n" + body)
        assert sock.recv(15) == b"HTTP/1.1 200 OK"


def test_peer_that_is_still_sending_gets_its_response_and_no_reset():
    """Closing with unread bytes would reset the connection, on some systems before the client reads the response."""
    with serving() as running, running.connect() as sock:
        sock.sendall(chat_request().replace(b"Host:", b"Connection: close\r\nHost:") + b"\r\n")
        raw = b"".join(iter(lambda: sock.recv(65536), b""))
        for _ in range(50):
            sock.sendall(b"more")
            select.select([], [], [], 0.002)
        assert sock.recv(1) == b""
    assert json.loads(raw.partition(b"\r\n\r\n")[2])["choices"][0]["message"]["content"] == "hello"


class Recorder:
    """A socket that records the size of each `sendall`."""

    def __init__(self):
        self.sizes = []

    def sendall(self, data):
        self.sizes.append(len(data))


def test_large_response_is_sent_in_pieces_that_each_have_a_timeout():
    recorder = Recorder()
    head = Head("GET", "/", "HTTP/1.1", Message(), True, io.BytesIO(), recorder)
    Exchange(head, None).send_json(200, "x" * 1_000_000)
    assert sum(recorder.sizes) > 1_000_000
    assert max(recorder.sizes) <= SEND_BYTES


@pytest.mark.parametrize("headers", [["Connection: TE, close"], ["Connection: TE", "Connection: Close"]])
def test_close_is_recognised_among_other_connection_options(headers):
    """RFC 9112, 9.6: a client that sends this option may wait for the end of the connection."""
    with serving() as running:
        head, body = exchange(running, raw_request(b"", *headers, path="/health", method="GET"))
    assert b"Connection: close" in head
    assert body == {"status": "ok"}


def test_pipelined_requests_get_their_responses_in_order():
    with serving() as running, running.connect() as sock:
        sock.sendall(chat_request("one") + b"\r\n" + chat_request("two", stream=True) + chat_request("three"))
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        raw = b"".join(iter(lambda: sock.recv(65536), b""))
    positions = [raw.index(text) for text in (b'"one"', b"text/event-stream", b'"three"', b'"ok"')]
    assert positions == sorted(positions)


@pytest.mark.parametrize("seed", range(8))
def test_random_damage_to_requests_leaves_the_server_usable(seed, caplog):
    """Each connection ends without an internal error, and no sequence keeps running."""
    chance = random.Random(seed)
    body = GOOD.decode()
    whole = [
        chat_request(stream=True),
        chat_request() * 2,
        chunked("5", body[:5], f"{len(body) - 5:x}", body[5:], "0", "", ""),
    ]
    noise = [
        b"\r\n",
        b"\n",
        b"\r",
        b"\0",
        b" ",
        b":",
        b"chunked",
        b"Content-Length: 7\r\n",
        b"\xff",
        b"0\r\n\r\n",
        b"{",
        b"99",
    ]
    with serving() as running:
        for _ in range(25):
            request = bytearray(chance.choice(whole))
            for _ in range(chance.randrange(1, 5)):
                at = chance.randrange(len(request))
                request[at : at + chance.randrange(3)] = chance.choice(noise)
            with running.connect() as sock:
                sock.sendall(request)
                sock.shutdown(socket.SHUT_WR)
                with contextlib.suppress(ConnectionResetError):
                    response = b"".join(iter(lambda: sock.recv(65536), b""))
                    assert response == b"" or response.startswith(b"HTTP/1.1 ")
                    assert b" 500 " not in response
        assert running.chat()[0] == 200
        running.wait_until_idle()
    assert "Traceback" not in caplog.text


def test_head_that_comes_byte_by_byte():
    with serving() as running, running.connect() as sock:
        for byte in chat_request():
            sock.sendall(bytes([byte]))
        assert sock.recv(15) == b"HTTP/1.1 200 OK"


NO_FILES = """
import resource, socket, sys, threading, time
sys.path.insert(0, ".")
from tests.serving import serving, wait_for
with serving() as running:
    sockets = [socket.socket() for _ in range(4)]
    free = socket.socket()
    n_used, limits = free.fileno(), resource.getrlimit(resource.RLIMIT_NOFILE)
    free.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (n_used, limits[1]))
    for sock in sockets:
        sock.connect(("127.0.0.1", running.port))
    began_at, began = time.monotonic(), time.process_time()
    wait_for(lambda: time.monotonic() - began_at > 0.5)
    spent = time.process_time() - began
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    for sock in sockets:
        sock.close()
    assert running.chat()[0] == 200
    assert spent < 0.25, f"the loop used {spent} s of processor time"
"""


@pytest.mark.skipif(sys.platform == "win32", reason="files are not limited there")
def test_server_without_files_for_connections_waits_until_there_are_some():
    """In a separate process with a low limit. The loop must not call `accept` all the time."""
    done = subprocess.run([sys.executable, "-c", NO_FILES], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_idle_connection_is_closed(monkeypatch):
    monkeypatch.setattr(server_module, "IDLE_TIMEOUT_S", 0.05)
    with serving() as running, running.connect() as sock:
        assert sock.recv(1) == b""


def test_head_that_takes_too_long_closes_the_connection(monkeypatch):
    monkeypatch.setattr(server_module, "HEAD_TIMEOUT_S", 0.1)
    with serving() as running, running.connect() as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\nA: ")
        deadline = time.monotonic() + DEADLINE_S

        def dribble():
            while time.monotonic() < deadline:
                sock.sendall(b"x")
                select.select([sock], [], [], 0.005)

        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            dribble()
        with running.connect() as other:  # the timeout of the head does not apply to the body
            head, _, body = chat_request().partition(b"\r\n\r\n")
            other.sendall(head + b"\r\n\r\n")
            select.select([other], [], [], 0.2)
            other.sendall(body)
            assert other.recv(15) == b"HTTP/1.1 200 OK"


def test_body_that_is_announced_and_not_sent_holds_no_thread_without_the_key():
    """H7. The response is sent before the body is read, and the connection is closed when a new one needs its place."""
    settings = Settings(port=0, api_keys=("k",), max_connections=1)
    with serving(settings=settings) as running, running.connect() as sock:
        began_at = time.monotonic()
        sock.sendall(raw_request(GOOD)[:-5])
        assert sock.recv(12) == b"HTTP/1.1 401"
        wait_for(lambda: running.server.connections._idle)
        with contextlib.closing(running.client()) as other:
            other.request("GET", "/v1/models", headers={"Authorization": "Bearer k"})
            assert read_response(other)[0] == 200
        assert time.monotonic() - began_at < 1
        assert b"Connection: close" in b"".join(iter(lambda: sock.recv(65536), b""))


def test_small_body_without_the_key_leaves_the_connection_usable():
    """H7."""
    with serving(settings=Settings(port=0, api_keys=("k",))) as running, running.connect() as sock:
        sock.sendall(raw_request(GOOD) + raw_request(b"", "Connection: close", path="/health", method="GET"))
        raw = b"".join(iter(lambda: sock.recv(65536), b""))
    assert raw.count(b"HTTP/1.1 401") == raw.count(b"HTTP/1.1 200") == 1


def test_body_that_never_ends_closes_the_connection(monkeypatch):
    monkeypatch.setattr(incoming, "READ_TIMEOUT_S", 0.05)
    with serving() as running, running.connect() as sock:
        sock.sendall(chat_request()[:-5])
        assert sock.recv(1) == b""
