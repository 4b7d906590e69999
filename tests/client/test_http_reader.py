"""The parser of HTTP responses: cut into pieces, incomplete, and with bytes that are not HTTP."""

import time

import pytest

from localchat import IncompleteStream, ProtocolError
from localchat.transport.http1 import _MAX_HEAD_BYTES, ResponseReader
from tests.support.fuzz import cuts
from tests.support.growth import assert_linear

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
UNTIL_CLOSE = OK + b"\r\nhello"

RESPONSES = {
    "until-close": (UNTIL_CLOSE, b"hello", False),
    "204": (b"HTTP/1.1 204 None\r\n\r\n", b"", True),
    "304": (b"HTTP/1.1 304 Not Modified\r\n\r\n", b"", True),
    "chunked": (CHUNKED + b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n", b"hello", True),
    "chunk-extension": (CHUNKED + b"5;a=b\r\nhello\r\n0\r\nX: y\r\n\r\n", b"hello", True),
    "1xx-first": (b"HTTP/1.1 103 Hints\r\nX: y\r\n\r\nHTTP/1.1 200\r\nContent-Length: 1\r\n\r\na", b"a", True),
    "connection-close": (OK + b"Connection: close\r\nContent-Length: 1\r\n\r\na", b"a", False),
    "same-length-twice": (OK + b"Content-Length: 1, 1\r\nContent-Length: 1\r\n\r\na", b"a", True),
    "second-header": (OK + b"Connection: close\r\nConnection: x\r\nContent-Length: 1\r\n\r\na", b"a", False),
    "chunks-with-line-feeds": (b"HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n2\nab\n0\n\n", b"ab", True),
    "chunk-size-in-capitals": (CHUNKED.upper() + b" 0A \r\n0123456789\r\n00\r\n\r\n", b"0123456789", True),
    "http-1.0": (b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\na", b"a", False),
    "http-1.0-keep-alive": (b"HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 1\r\n\r\na", b"a", True),
}


@pytest.mark.parametrize(("raw", "body", "keeps_alive"), RESPONSES.values(), ids=RESPONSES)
def test_response_at_every_cut_and_incomplete_before_its_end(raw, body, keeps_alive):
    for parts in cuts(raw):
        response = ResponseReader()
        assert b"".join(response.feed(part) for part in parts) == body
        if raw is UNTIL_CLOSE:
            response.feed_end()
        assert (response.has_ended, response.keeps_alive, response.surplus) == (True, keeps_alive, b"")
        response = ResponseReader()
        response.feed(parts[0])
        if not response.has_ended and not (raw is UNTIL_CLOSE and response.status):
            with pytest.raises(IncompleteStream):
                response.feed_end()


@pytest.mark.parametrize("line_end", ["\r\n", "\n"], ids=["CRLF", "LF"])
def test_header_may_continue_on_an_indented_line(line_end):
    """The obsolete line folding of HTTP, of which no part may look like another header."""
    response = ResponseReader()
    lines = ["HTTP/1.1 200 OK", "X: a", " Content-Length: 5", "\tb", "Content-Length: 1", "", ""]
    assert response.feed(line_end.join(lines).encode() + b"z") == b"z"
    assert response.headers == {"x": "a Content-Length: 5 b", "content-length": "1"}


NOT_HTTP = {
    "ssh": b"SSH-2.0",
    "http2": b"HTTP/2 200\r\n\r\n",
    "no-status": b"HTTP/1.1 OK\r\n\r\n",
    "length-of-letters": b"HTTP/1.1 200 OK\r\nContent-Length: five\r\n\r\n",
    "negative-length": b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
    "length-of-other-digits": "HTTP/1.1 200 OK\r\nContent-Length: \u00b2\r\n\r\n".encode("latin-1"),
    "two-lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
    "endless-head": b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 100_000,
}


@pytest.mark.parametrize("raw", NOT_HTTP.values(), ids=NOT_HTTP)
def test_response_that_is_not_http(raw):
    with pytest.raises(ProtocolError):
        ResponseReader().feed(raw)


def test_a_head_may_have_the_limit_of_bytes():
    response = ResponseReader()
    response.feed((OK + b"X: ").ljust(_MAX_HEAD_BYTES, b"x"))
    response.feed(b"\r\nContent-Length: 0\r\n\r\n")
    assert response.has_ended


WRONG_CHUNKS = {
    "no-size": b"zz\r\n",
    "negative": b"-5\r\n",
    "digits-with-underscore": b"1_0\r\n",
    "long-line": b"1" * 70000,
    "long-extension": b"1;" + b"x" * 70000,
    "longer-than-its-size": b"2\r\nhello\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("raw", WRONG_CHUNKS.values(), ids=WRONG_CHUNKS)
def test_wrong_framing_is_reported_after_the_data_before_it(raw):
    whole = CHUNKED + b"3\r\nabc\r\n" + raw
    for parts in ([whole], [whole[i : i + 1] for i in range(min(len(whole), 200))] + [whole[200:]]):
        response = ResponseReader()
        body = b"".join(response.feed(part) for part in parts)
        assert body in (b"abc", b"abche")
        assert "not the size of a chunk" in response.framing_error
        assert response.feed(b"\r\n1\r\nx\r\n0\r\n\r\n") == b""
        assert not response.has_ended


def test_time_for_a_response_in_small_pieces_is_linear():
    def seconds(n: int) -> float:
        raw = f"HTTP/1.1 200 OK\r\nContent-Length: {n}\r\n\r\n".encode() + b"x" * n
        response, began_at = ResponseReader(), time.thread_time()
        assert sum(len(response.feed(raw[i : i + 64])) for i in range(0, len(raw), 64)) == n
        return time.thread_time() - began_at

    assert_linear(seconds, 100_000, 50, 0.002)
