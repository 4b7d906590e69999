"""Statuses and their errors, retries, redirects, and the masking of the key."""

from __future__ import annotations

import itertools
import pickle
import socket
import traceback

import pytest

import localchat.transport.retries
from localchat import (
    AuthenticationError,
    BadRequestError,
    Client,
    ConnectError,
    RateLimitError,
    ServerError,
    StatusError,
    Timeout,
)

from .clients import failure, failure_at, make_client
from .raw_server import (
    HELLO,
    KEY,
    Peer,
    Request,
    Server,
    always,
    chunked,
    piece,
    serving,
    sse,
    with_length,
)

# Statuses and retries


STATUSES = {
    "400": (400, b'{"error": {"message": "bad x", "param": "x", "code": "c"}}', BadRequestError, "bad x"),
    "401": (401, b'{"error": "no key"}', AuthenticationError, "set OPENAI_API_KEY"),
    "429": (429, b"slow down", RateLimitError, "slow down"),
    "302": (302, b"", StatusError, "redirects to http://elsewhere/v1"),
    "empty": (500, b"", ServerError, "no reason given"),
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


def test_nothing_listens(client_class):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    words = f"nothing listens on 127.0.0.1:{port}: start a server"
    failure_at(f"http://127.0.0.1:{port}/v1", ConnectError, words, client_class)


def test_upload_refused_early_still_gives_the_status(client_class):
    def handle(peer: Peer, server: Server) -> None:
        peer.send(with_length(b'{"error": "too big"}', "413 Too Large", "Connection: close\r\n"))
        peer.sock.shutdown(socket.SHUT_WR)
        while peer.sock.recv(65536):
            pass

    failure(Server(handle), StatusError, "too big", client_class, prompt="x" * 10_000_000)


@pytest.fixture
def no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(localchat.transport.retries, "_FIRST_DELAY_S", 0.001)


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
    "too-long-to-wait": ("503 Loading", "Retry-After: 121\r\n", False),
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


def test_error_is_raised_where_the_total_timeout_leaves_no_time_to_wait():
    """No timeout has expired, and the error of the server is more useful than a timeout."""
    busy = with_length(b"slow down", "429 Many", "Retry-After: 60\r\n")
    error = failure(always(busy), RateLimitError, "slow down", max_retries=2, timeout=Timeout(total=10))
    assert error.retry_after == 60
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    failure_at(url, ConnectError, "nothing listens", max_retries=2, timeout=Timeout(total=0.2))


DELAYS = {
    "milliseconds-first": ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
    "nonsense": ({"retry-after": "soon"}, None),
    "nan": ({"retry-after": "nan"}, None),
    "date": ({"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}, None),
}


@pytest.mark.parametrize(("headers", "seconds"), DELAYS.values(), ids=DELAYS)
def test_retry_after(headers, seconds):
    assert localchat.transport.retries.retry_after(headers) == seconds


def test_delay_grows_to_a_limit_with_jitter():
    for tries, longest in ((0, 0.5), (1, 1.0), (2, 2.0), (4, 8.0), (9, 8.0)):
        delay = localchat.transport.retries.retry_delay(ConnectError("x"), tries, 100)
        assert delay is not None
        assert 0.75 * longest <= delay <= longest


# The key


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


@pytest.mark.parametrize("error", [{"error": KEY}, {"x_groq": {"error": KEY}}])
def test_key_is_in_no_event_of_an_error(error):
    with always(chunked(piece("a"), sse(error))) as server, make_client(server, api_key=KEY) as client:
        with client.stream("hi") as stream:
            seen = list(itertools.islice(stream, 3))
        assert [event.type for event in seen] == ["message_start", "content_delta", "error"]
        assert KEY not in "".join(f"{event!r} {event.raw}" for event in seen)


@pytest.mark.parametrize("model", [None, "m"])
def test_redirect_is_not_followed_and_names_a_base_url_that_works(model):
    """Without a model, the request for the list of models is redirected; its URL is not a base URL."""

    def respond(request: Request, number: int) -> bytes:
        return with_length(b"", "301 Moved", f"Location: http://elsewhere{request.path}\r\n")

    failure(serving(respond), StatusError, "redirects to http://elsewhere/v1: use that as the base URL", model=model)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        *(({"api_key": f"zqz{end}"}, "is the API key right") for end in ("\nb", "\r\nX: y", "\0b", "k\u00e9y")),
        ({"headers": {"X-Api-Key": "zqz\n"}}, "X-Api-Key"),
        ({"headers": {"X-Count": 3}}, "X-Count is not text"),
        *(({"headers": {name: "zqz"}}, "not a valid header name") for name in ("X\r\nY", "X Y", "X:", "", "\u00e9")),
    ],
)
def test_key_or_header_that_cannot_be_sent_is_refused_without_showing_it(options, words):
    with pytest.raises(ValueError, match=words) as caught:
        Client(**options)
    assert "zqz" not in str(caught.value)


def test_header_replaces_another_in_any_case():
    with always(HELLO) as server, make_client(server, api_key=KEY, headers={"AUTHORIZATION": "mine"}) as client:
        client.chat("hi", extra_headers={"content-type": "text/json"})
        client.chat("hi", extra_headers={"authorization": "theirs"})
        assert [request.headers["authorization"] for request in server.requests] == ["mine", "theirs"]
        assert server.requests[0].headers["content-type"] == "text/json"
        assert max(request.n_headers - len(request.headers) for request in server.requests) == 0


def test_client_neither_shows_its_key_nor_can_be_pickled():
    assert KEY not in f"{Client(f'http://h/v1?key={KEY}')!r}"
    assert Client(api_key=f" {KEY}\n")._settings.request_headers({})["Authorization"] == f"Bearer {KEY}"
    for client in (Client(api_key=KEY), localchat.AsyncClient(api_key=KEY)):
        with pytest.raises(TypeError, match="it holds a key"):
            pickle.dumps(client)
