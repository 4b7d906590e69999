"""The SSE decoder and encoder: every rule with the stream in one piece, byte by byte, and at every cut in two."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from localchat.serving.http.stream import frame, frame_named
from localchat.sse import ServerSentEvent, SSEDecoder, SSEError
from tests.support.fuzz import cuts, pieces_of
from tests.support.growth import assert_linear

BOM = b"\xef\xbb\xbf"


def event(data: str, event: str = "message", id: str = "", retry: int | None = None) -> ServerSentEvent:
    return ServerSentEvent(event, data, id, retry)


def decode(chunks: list[bytes], flush: bool = False, **options: Any) -> list[Any]:
    """The events, then the beginning of the error."""
    decoder, events = SSEDecoder(**options), []
    try:
        for chunk in chunks:
            events += decoder.feed(chunk)
        return events + decoder.flush() if flush else events
    except SSEError as error:
        return [*events, *error.events, str(error).partition(" of ")[0]]


def check(raw: bytes, expected: list[ServerSentEvent], flush: bool = False, **options: Any) -> None:
    for chunks in cuts(raw):
        assert decode(chunks, flush, **options) == expected, chunks


# Characters at which str.splitlines splits, and this format does not.
NO_LINE_ENDS = "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
# Rules of the WHATWG format that the web-platform-tests below do not show.
RULES = {
    "2-cut-character": (b"data: \xe2\x82\ndata: x\n\n", [event("\ufffd\nx")]),
    "2-surrogate-bytes": (b"data: \xed\xa0\x80\n\n", [event("\ufffd\ufffd\ufffd")]),
    "4-only-these": (f"data: a{NO_LINE_ENDS}b\n\n".encode(), [event(f"a{NO_LINE_ENDS}b")]),
    "5-lf-after-crlf": (b"data: a\r\n\ndata: b\n\n", [event("a"), event("b")]),
    "14-not-digits": (
        "".join(f"retry:{value}\n" for value in ("-5", "1_000", "  5", "5 ", "\u0663", "")).encode() + b"data: a\n\n",
        [event("a")],
    ),
    "14-too-many-digits": (b"retry: " + b"9" * 19 + b"\ndata: a\n\n", [event("a")]),
    "15-keep-alive-after-id": (b"id: 1\ndata: a\n\n: ping\n\n: ping\n\n", [event("a", id="1")]),
}

# The format cases of the web-platform-tests suite, by its file names.
WPT = {
    "event-data": (
        b"data:msg\ndata:msg\n\n:\nfalsefield:msg\n\nfalsefield:msg\nData:data\n\ndata\n\ndata:end\n\n",
        [event("msg\nmsg"), event(""), event("end")],
    ),
    "format-bom": (BOM + b"data:1\n\n" + BOM + b"data:2\n\ndata:3\n\n", [event("1"), event("3")]),
    "format-bom-2": (BOM + BOM + b"data:1\n\ndata:2\n\ndata:3\n\n", [event("2"), event("3")]),
    "format-comments": (
        b"data:1\r:\0\n:\r\ndata:2\n:" + b"x" * 64 + b"\rdata:3\n:data:fail\r:" + b"x" * 64 + b"\ndata:4\n\n",
        [event("1\n2\n3\n4")],
    ),
    "format-data-before-final-empty-line": (b"retry:1000\ndata:1\n\nid:test\ndata:test2", [event("1", retry=1000)]),
    "format-field-data": (b"data:\n\ndata\ndata\n\ndata:test", [event(""), event("\n")]),
    "format-field-event": (b"event:test\ndata:x\n\ndata:x\n\n", [event("x", "test"), event("x")]),
    "format-field-event-empty": (b"event: \ndata:data\n\n", [event("data")]),
    "format-field-id": (b"id: \xe2\x80\xa6\ndata:1\n\n", [event("1", id="\u2026")]),
    "format-field-id-3": (
        b"data:1\nid\n\ndata:2\nid:x\n\nid\n\ndata:3\n\n",
        [event("1"), event("2", id="x"), event("3")],
    ),
    "format-field-id-null": (b"id: a\0b\nid: \0\ndata:ok\n\n", [event("ok")]),
    "format-field-parsing": (
        b"data:\0\ndata:  2\rData:1\rdata\0:2\ndata:1\r\0data:4\nda-ta:3\rdata_5\n"
        b"data:3\rdata:\r\n data:32\ndata:4\n\n",
        [event("\0\n 2\n1\n3\n\n4")],
    ),
    "format-field-retry": (b"retry:03000\ndata:x\n\n", [event("x", retry=3000)]),
    "format-field-retry-empty": (b"retry\ndata:test\n\n", [event("test")]),
    "format-field-unknown": (
        b"data:test\n data\ndata\nfoobar:xxx\njustsometext\n:thisisacommentyay\ndata:test\n\n",
        [event("test\n\ntest")],
    ),
    "format-leading-space": (b"data:\ttest\rdata: \ndata:test\n\n", [event("\ttest\n\ntest")]),
    "format-newlines": (b"data:test\r\ndata\ndata:test\r\n\r", [event("test\n\ntest")]),
    "format-null-character": (b"data:\0\n\n\n\n", [event("\0")]),
    "format-utf-8": ("data:ok\u2026\n\n".encode(), [event("ok\u2026")]),
}


@pytest.mark.parametrize(("raw", "expected"), [*RULES.values(), *WPT.values()], ids=[*RULES, *WPT])
def test_decode_by_the_rules_of_the_standard(raw, expected):
    check(raw, expected)


# K39: the extensions for chat servers, and the unfinished event at the end.
DONE = {"sentinel": "[DONE]"}
ERROR = {"fields_as_events": ("error",)}
JSON = {"takes_json": True}
LENIENT = {
    "done-glued-to-event": (b"data: 1\ndata: [DONE]\n\n", False, DONE, [event("1"), event("[DONE]")]),
    "done-glued-to-next": (b"data:[DONE]\r\ndata: 1\n\n", False, DONE, [event("[DONE]"), event("1")]),
    "done-with-blanks": (b"data:  [DONE]\t\n", False, DONE, [event(" [DONE]\t")]),
    "done-inside-text": (b"data: x [DONE]\n\n", False, DONE, [event("x [DONE]")]),
    "done-is-text-when-strict": (b"data: 1\ndata: [DONE]\n\n", False, {}, [event("1\n[DONE]")]),
    "flush-unfinished-line": (b"event: e\ndata: {}", True, {}, [event("{}", "e")]),
    "flush-no-data": (b"id: 1\nevent: x", True, {}, []),
    "json-after-data": (b'data: 1\n{"a":\n2}\ndata: 3\n\n', False, JSON, [event("1"), event('{"a":\n2}'), event("3")]),
    "json-after-a-name": (b'event: error\n{"a": 2}\n\n', False, JSON, [event('{"a": 2}', "error")]),
    "json-before-a-blank": (b"[1\n:]\n]\n\n{\n}", True, JSON, [event("[1"), event("{\n}")]),
    "json-is-unknown-when-strict": (b'{"a": 2}\n\n', False, {}, []),
    "error-field": (b'error: {"code": 400}\n\n', False, ERROR, [event('{"code": 400}', "error")]),
}


@pytest.mark.parametrize(("raw", "flush", "options", "expected"), LENIENT.values(), ids=LENIENT.keys())
def test_decoder_accepts_what_servers_send(raw, flush, options, expected):
    check(raw, expected, flush, **options)


def test_decode_cr_completes_event_without_waiting():
    decoder = SSEDecoder()
    assert decoder.feed(b"data: a\r\r") == [event("a")]
    assert decoder.feed(b"\ndata: b\r\n\r") == [event("b")]


DAMAGE = {
    "wrong byte": (b"data: \xff\n\n", True),
    "replacement character that was sent": ("data: \ufffd\n\n".encode(), False),
    "behind the sentinel": (b"data: [DONE]\n\ndata: \xff\n\n", False),
}


@pytest.mark.parametrize(("raw", "was_damaged"), DAMAGE.values(), ids=DAMAGE)
def test_data_that_is_not_utf_8_is_noticed(raw, was_damaged):
    decoder = SSEDecoder(sentinel="[DONE]")
    decoder.feed(raw)
    assert decoder.was_damaged == was_damaged


# Streams that exceed a limit after one event, and the kind of the limit.
TOO_LONG = {
    "line-without-end": (b"data: 1\n\n" + b"x" * 11, "line"),
    "line-with-end": (b"data: 1\n\ndata: 23456\n\n", "line"),
    "comment": (b"data: 1\n\n:" + b"x" * 10, "line"),
    "data-lines": (b"data: 1\n\ndata:2345\ndata:67\ndata:9012\n\n", "event"),
}


@pytest.mark.parametrize(("raw", "what"), TOO_LONG.values(), ids=TOO_LONG.keys())
def test_too_long_raises_after_earlier_events(raw, what):
    for chunks in cuts(raw):
        assert decode(chunks, max_event_bytes=10) == [event("1"), f"SSE {what}"]
    decoder = SSEDecoder(max_event_bytes=10)
    for call in (lambda: decoder.feed(raw), lambda: decoder.feed(b"\n\n"), decoder.flush):
        with pytest.raises(SSEError):
            call()


def test_an_event_and_a_line_may_have_the_limit_of_bytes():
    line, lines = b"data: 12345\n\n", b"data:a\ndata:b\ndata:c\ndata:d\n\n"  # A line has the name of its field, too.
    for raw, limit, data in ((line, 11, "12345"), (lines, 7, "a\nb\nc\nd")):
        assert SSEDecoder(limit).feed(raw)[0].data == data
        with pytest.raises(SSEError):
            SSEDecoder(limit - 1).feed(raw)


def test_time_for_a_long_line_in_small_feeds_is_linear():
    def seconds(n: int) -> float:
        raw = b"data: " + b"x" * n + b"\n\n"
        pieces = [raw[i : i + 64] for i in range(0, len(raw), 64)]
        began_at = time.thread_time()
        assert decode(pieces) == [event("x" * n)]
        return time.thread_time() - began_at

    assert_linear(seconds, 200_000, 50, 0.002)


def test_time_for_many_empty_data_lines_is_linear():
    def seconds(n: int) -> float:
        pieces = [b"data\n"] * n + [b"\n"]
        began_at = time.thread_time()
        assert decode(pieces) == [event("\n" * (n - 1))]
        return time.thread_time() - began_at

    assert_linear(seconds, 2000, 50, 0.001)


PARTS = [
    *(b"data", b"event", b"id", b"retry", b"Data", b":", b": ", b":\t", b" ", b"\n", b"\r", b"\r\n", b"\n\n", b"\r\r"),
    *(b"data: x\n\n", b"id: 1\n", b"retry: 30\n", b": ping\n", b"event: e\n", b"data:\n", BOM, b"\0", b"[DONE]"),
    *("\u2028".encode(), "\u0085".encode(), "\u00e9".encode(), b"\xff", b"\x0b", b"\x1c", b"123"),
]


def test_random_streams_do_not_depend_on_the_cuts():
    """No error but SSEError is raised."""
    for seed in range(3000):
        chance = random.Random(seed)
        raw = b"".join(chance.choices([*PARTS, chance.randbytes(chance.randrange(4))], k=chance.randrange(60)))
        options: dict[str, Any] = chance.choice([{}, DONE, {"max_event_bytes": 25}])
        for pieces in (pieces_of(raw, chance), [raw[i : i + 1] for i in range(len(raw))]):
            assert decode(pieces, **options) == decode([raw], **options), (seed, raw)


ENCODED = {
    "plain": (frame('{"a":1}'), b'data: {"a":1}\n\n', event('{"a":1}')),
    "leading space": (frame(" x"), b"data:  x\n\n", event(" x")),
    "named": (frame_named('{"type":"e","x":1}'), b'event: e\ndata: {"type":"e","x":1}\n\n', None),
    "line separators": (frame("\u2028\x85"), b"data: \xe2\x80\xa8\xc2\x85\n\n", event("\u2028\x85")),
    "half a surrogate": (frame("\ud800"), b"data: ?\n\n", event("?")),
}


@pytest.mark.parametrize(("encoded", "raw", "decoded"), ENCODED.values(), ids=ENCODED.keys())
def test_chunks_of_the_server_are_events(encoded, raw, decoded):
    assert encoded == raw
    check(raw, [decoded or event('{"type":"e","x":1}', "e")])
