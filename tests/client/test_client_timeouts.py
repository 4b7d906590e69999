"""Calls that wait for a server: their timeouts, in every phase, and streams that are closed at any moment."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import localchat.streams
from localchat import AsyncClient, Client, Timeout
from localchat.errors import (
    Cancelled,
    ConnectError,
    DoesNotFit,
    IncompleteStream,
    ProtocolError,
    ServerError,
    StreamError,
    TimedOut,
)
from localchat.terminal import console, printer
from localchat.transport import call, failures, sockets, timeouts
from localchat.transport.addresses import known_addresses, make_tls_context
from localchat.transport.timeouts import Deadlines, TotalDeadline
from tests.support.clients import failure, failure_at, make_client, run_async, until
from tests.support.deadline import DEADLINE_S
from tests.support.documents import run
from tests.support.raw_responses import (
    DONE,
    HELLO,
    OPEN,
    STOP,
    chunked,
    chunks,
    delta,
    piece,
    sse,
    until_close,
    with_length,
)
from tests.support.raw_server import Peer, Request, Server, always, at_unix_socket, serving, with_tls
from tests.support.slow_servers import dripping, full_listener, interrupted, pinging, responding_once, silent, waiting


@pytest.mark.parametrize(
    ("timeout", "limits"),
    [
        (Timeout(), (5.0, 600.0, 120.0, 600.0, None)),
        (Timeout(30), (30, 30, 30, 30, 30)),
        (Timeout(None), (None, None, None, None, None)),
        (Timeout(30, connect=5, total=None), (5, 30, 30, 30, None)),
        (Timeout(first=None), (5.0, None, 120.0, 600.0, None)),
    ],
)
def test_timeout_is_one_number_for_all_limits_or_one_for_each(timeout: Timeout, limits: Any):
    assert (timeout.connect, timeout.first, timeout.idle, timeout.stall, timeout.total) == limits


@pytest.mark.parametrize(
    ("method", "error_class"), [("connect", ConnectError), ("recv", ConnectError)], ids=["connect", "read"]
)
def test_timeout_of_the_system_is_none_of_the_call(method: str, error_class: Any, client_class, monkeypatch):
    """The system gives a connection up that does not respond any more, also if the call has no limit."""

    class Dead(socket.socket):
        """A socket whose peer has vanished."""

    def fail(sock: Any, *arguments: Any) -> Any:
        if sock.family == socket.AF_INET:  # asyncio has others.
            raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
        return getattr(super(Dead, sock), method)(*arguments)

    setattr(Dead, method, fail)
    with always(HELLO) as server:
        monkeypatch.setattr(socket, "socket", Dead)
        for timeout in (Timeout(None), Timeout(60)):
            failure_at(server.url, error_class, os.strerror(errno.ETIMEDOUT), client_class, timeout=timeout)
        monkeypatch.undo()


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({}, "total"),
        ({"timeout": None}, "total"),
        ({"timeout": Timeout(None)}, None),
        ({"timeout": Timeout()}, None),
        ({"timeout": Timeout(total=0.1)}, "total"),
    ],
    ids=["of the client", "none is that of the client", "no limit", "the default", "another"],
)
def test_timeout_of_a_call_replaces_that_of_the_client(options, kind, client_class):
    """The server responds after a while, which only some of the timeouts allow."""
    released = threading.Event()
    with (
        interrupted(released, b"", HELLO) as server,
        make_client(server, client_class, timeout=Timeout(total=0.1)) as client,
    ):
        for other, given in ((client, options), (client.with_options(**options), {})):
            released.clear()
            if kind is None:
                timer = threading.Timer(0.3, released.set)
                timer.start()
                assert other.chat("hi", **given).text == "Hello"
                timer.join(DEADLINE_S)
            else:
                with pytest.raises(TimedOut) as caught:
                    other.chat("hi", **given)
                assert caught.value.kind == kind
                released.set()


ANNOUNCED = b"HTTP/1.1 102 Wait\r\n\r\nHTTP/1.1 102\r\n"
TIMEOUTS = {
    "first-no-headers": (waiting, Timeout(first=0.05), "first"),
    "first-headers-only": (lambda: waiting(chunked(end=False)), Timeout(first=0.05, idle=0.001), "first"),
    "first-only-pings": (lambda: pinging(chunked(end=False)), Timeout(first=0.1), "first"),
    "idle": (lambda: waiting(OPEN), Timeout(idle=0.05), "idle"),
    "total-from-a-number": (lambda: pinging(OPEN), 0.5, "total"),
    "stall-although-pings": (lambda: pinging(OPEN), Timeout(idle=5, stall=0.1), "stall"),
    "stall-although-a-size-drips": (lambda: dripping(OPEN, b"1;", drop=b"x"), Timeout(idle=5, stall=0.1), "stall"),
    "first-although-the-head-drips": (lambda: dripping(b"HTTP/1.1 200 OK\r\n"), Timeout(first=0.1), "first"),
    "first-although-announced": (lambda: dripping(ANNOUNCED), Timeout(first=0.1), "first"),
    "total": (lambda: pinging(OPEN), Timeout(total=0.1), "total"),
}


@pytest.mark.parametrize(("make_server", "timeout", "kind"), TIMEOUTS.values(), ids=TIMEOUTS)
def test_timeout_expires(make_server, timeout, kind, client_class):
    error = failure(make_server(), TimedOut, f"Timeout.{kind}", client_class, timeout=timeout)
    assert error.kind == kind
    assert error.partial is not None


def test_a_timeout_may_be_the_largest_number_or_none():
    with always(HELLO) as server, make_client(server, timeout=10**400) as client:
        assert client.with_options(timeout=sys.maxsize).chat("hi").text == "Hello"
        assert client.chat("hi", timeout=Timeout(None)).text == client.chat("hi").text


def test_timeouts_do_not_run_between_reads():
    """A program may take long between two events, for example to read the text aloud."""
    done = threading.Event()
    server = interrupted(done, OPEN, chunks(piece("b"), STOP, DONE))
    with server, make_client(server, timeout=Timeout(stall=1)) as client:
        texts = client.stream("hi").text
        assert next(texts) == "a"
        time.sleep(1.1)  # Longer than the timeout.
        done.set()
        assert list(texts) == ["b"]


@pytest.mark.parametrize("begin", [lambda d: d.restart(True), lambda d: d.restart(False), lambda d: d.begin("first")])
def test_a_pause_extends_the_phase_in_which_it_began_and_no_later_one(begin, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(timeouts, "time", SimpleNamespace(monotonic=lambda: now[0]))
    deadlines = Deadlines(Timeout(first=10, stall=10, idle=None), TotalDeadline(None))
    deadlines.begin("first")
    for is_new_phase in (False, True):
        deadlines.pause()
        now[0] += 60
        if is_new_phase:
            begin(deadlines)
        assert deadlines.left()[0] == 10


def test_timeout_for_the_end_of_a_response_is_cancelled_if_text_follows_and_never_exceeds_the_total():
    deadlines = Deadlines(Timeout(total=60), TotalDeadline(60))
    deadlines.begin("first")
    deadlines.restart(has_output=True)
    left = []
    for seconds in (5, None, 600):
        deadlines.end_within(seconds)
        left.append(deadlines.left()[0] or 0)
    assert left[0] <= 5 < left[1] <= 60
    assert left[2] <= 60


def test_timeout_that_expires_while_the_loop_is_busy_does_not_end_the_next_call():
    """The end of the first response is received in the same iteration of the loop in which its timeout expires."""
    late = threading.Event()

    def be_busy() -> None:
        late.set()
        time.sleep(2 * call.DRAIN_S)

    async def twice(client: AsyncClient) -> str:
        async with client.stream("hi") as stream:
            async for event in stream:
                if event.type == "usage":
                    asyncio.get_running_loop().call_later(0.001, be_busy)
        return stream.reply.text + (await client.chat("hi")).text

    with interrupted(late, HELLO[:-5], HELLO[-5:]) as server:
        assert run_async(server.url, twice) == "HelloHello"


def calls_add(request: Request, number: int) -> bytes:
    """After a while, a call, or a text that is no JSON."""
    time.sleep(0.15)  # What the server takes for each request; nothing waits for it.
    if "tools" not in request.json:
        return chunked(piece("no JSON"), STOP, DONE)
    call = {"index": 0, "id": "a", "function": {"name": "add", "arguments": "{}"}}
    return chunked(delta("tool_calls", tool_calls=[call]), DONE)


def add() -> int:
    """Add."""
    return 1


SEVERAL_REQUESTS: dict[str, Any] = {
    "mismatches": lambda client: client.chat("hi", response_format=int, retries_on_mismatch=20),
    "rounds": lambda client: client.run("hi", [add], max_rounds=20),
    "rounds of a stream": lambda client: list(client.run_stream("hi", [add], max_rounds=20)),
    "rounds of a conversation": lambda client: client.conversation(tools=[add], max_rounds=20).say("hi"),
}


@pytest.mark.parametrize("use", SEVERAL_REQUESTS.values(), ids=SEVERAL_REQUESTS)
def test_total_is_the_time_of_all_requests_of_a_call(use, client_class):
    timeout = Timeout(total=0.4)
    with (
        serving(calls_add) as server,
        make_client(server, client_class, timeout=timeout) as client,
        pytest.raises(TimedOut) as caught,
    ):
        use(client)
    assert caught.value.kind == "total"
    assert len(server.requests) <= 3


def test_total_of_a_call_does_not_count_for_the_next(client_class):
    """All of them together take longer than the timeout."""
    with serving(calls_add) as server, make_client(server, client_class, timeout=Timeout(total=1)) as client:
        talk = client.conversation()
        for _ in range(4):
            assert client.chat("hi").text == talk.say("hi").text == "no JSON"


@pytest.mark.parametrize("phase", ["connect", "first", "total"])
def test_silent_server_costs_its_limit_once(phase, client_class):
    """What was silent for as long as the program allows is not asked again."""
    retries = []
    options = {"max_retries": 5, "on_retry": lambda *values: retries.append(values), "model": "m"}
    with full_listener() if phase == "connect" else silent() as port:
        client = client_class(f"http://127.0.0.1:{port}/v1", timeout=Timeout(**{phase: 0.1}), **options)
        with client, pytest.raises(TimedOut) as caught:
            client.chat("hi")
    assert (caught.value.kind, retries) == (phase, [])


BUSY = """
import asyncio, sys, threading, time
from localchat import AsyncClient, Timeout, TimedOut

async def main():
    released = threading.Event()
    loop = asyncio.get_running_loop()
    waiting = [loop.run_in_executor(None, released.wait, 20) for _ in range(64)]
    start = time.monotonic()
    try:
        options = {"verify": False, "max_retries": 0, "timeout": Timeout(total=15)}
        async with AsyncClient(sys.argv[1], model="m", **options) as client:
            print((await client.chat("hi")).text, (await client.run("hi", [len_of])).text)
    finally:
        released.set()
    await asyncio.gather(*waiting)

def len_of(text: str) -> int:
    "The length."
    return len(text)

asyncio.run(main())
"""


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_no_call_waits_for_an_executor_that_the_program_fills(scheme, certificate):
    def respond(request: Request, number: int) -> bytes:
        call = {"index": 0, "id": "a", "function": {"name": "len_of", "arguments": '{"text": "a"}'}}
        is_first_round = "tools" in request.json and request.json["messages"][-1]["role"] == "user"
        return chunked(delta("tool_calls", tool_calls=[call]), DONE) if is_first_round else HELLO

    server = serving(respond)
    with with_tls(server, certificate) if scheme == "https" else server:
        done = run([sys.executable, "-c", BUSY, server.url])
    assert (done.stdout, done.stderr) == ("Hello Hello\n", "")


def test_timeout_expires_on_https(certificate):
    server = with_tls(waiting(OPEN), certificate)
    assert failure(server, TimedOut, timeout=Timeout(idle=0.05), verify=False).kind == "idle"


@pytest.mark.parametrize(("scheme", "listening"), [("http", full_listener), ("https", silent)])
def test_connect_timeout_applies_to_the_connection_and_the_handshake(scheme, listening, client_class):
    with listening() as port:
        error = failure_at(f"{scheme}://127.0.0.1:{port}/v1", TimedOut, client_class=client_class, timeout=0.1)
    assert error.kind == "connect"


def test_connect_timeout_applies_while_the_resolver_hangs(hanging_resolver, client_class):
    timeout = Timeout(connect=0.05)
    assert failure_at("http://h.example/v1", TimedOut, client_class=client_class, timeout=timeout).kind == "connect"


@pytest.mark.parametrize("make_server", [waiting, lambda: dripping(b"HTTP/1.1 200 OK\r\n")], ids=["silent", "dripping"])
def test_connect_timeout_applies_to_the_tunnel_of_a_proxy(make_server, client_class):
    with make_server() as server:
        options = {"proxy": f"http://127.0.0.1:{server.port}", "timeout": Timeout(connect=0.1)}
        error = failure_at("https://h.example/v1", TimedOut, client_class=client_class, **options)
    assert error.kind == "connect"


def test_first_event_timeout_applies_while_the_request_is_sent():
    """The server reads nothing, and the request is larger than any buffer."""
    with silent() as port:
        url, timeout = f"http://127.0.0.1:{port}/v1", Timeout(first=0.1)
        assert failure_at(url, TimedOut, prompt="x" * 10_000_000, timeout=timeout).kind == "first"


def test_timeout_of_a_call_applies_to_its_list_of_models():
    """Without a model, the client requests the list first."""
    with waiting() as server, Client(server.url, max_retries=0) as client:
        for method in (client.chat, client.complete, client.embed):
            with pytest.raises(TimedOut):
                method("hi", timeout=Timeout(first=0.05))


def test_body_of_an_error_has_a_short_timeout(monkeypatch, client_class):
    raw = b'HTTP/1.1 503 Busy\r\nContent-Length: 100\r\n\r\n{"error": '
    monkeypatch.setattr(call, "ERROR_BODY_S", 0.05)
    assert failure(waiting(raw), ServerError, client_class=client_class).body == '{"error": '


def test_timeouts_apply_to_reads_in_steps(monkeypatch):
    """As on Windows, for Ctrl-C."""
    monkeypatch.setattr(sockets, "_STEP_S", 0.005)
    assert failure(waiting(OPEN), TimedOut, timeout=Timeout(idle=0.05)).kind == "idle"

    def handle(peer: Peer, server: Server) -> None:
        peer.request()
        time.sleep(0.03)  # Several steps.
        peer.send(HELLO)

    with Server(handle) as server, make_client(server) as client:
        assert client.chat("hi").text == "Hello"


EMPTY: dict[str, Any] = {"id": "1", "choices": []}
PROGRESS: dict[str, Any] = {"prompt_progress": {"processed": 8}}
ROLE: dict[str, Any] = {"choices": [{"delta": {"role": "assistant"}}]}
OUTPUT: dict[str, Any] = {"choices": [{"delta": {"content": "a"}}]}
# The payloads that are sent at once, the one that is then sent again and again, and the timeout that expires.
REPEATED: dict[str, tuple[list[Any], Any, str]] = {
    "an empty payload is a keep-alive": ([], EMPTY, "first"),
    "a role is no output": ([ROLE], EMPTY, "first"),
    "progress of the prefill is a sign of life": ([ROLE], PROGRESS, "total"),
    "after the output, too": ([OUTPUT], PROGRESS, "total"),
    "empty payloads after the output": ([OUTPUT], EMPTY, "stall"),
}


@pytest.mark.parametrize(("begin", "payload", "expired"), REPEATED.values(), ids=REPEATED)
def test_payload_restarts_a_timeout_if_it_has_output_or_reports_progress(begin, payload, expired, client_class):
    """Until the first output `first` applies, and neither `idle` nor `stall`."""

    def handle(peer: Peer, server: Server) -> None:
        peer.request()
        peer.send(chunked(*map(sse, begin), end=False))
        while True:
            peer.send(chunks(sse(payload), end=False))
            time.sleep(0.01)  # The pace of the payloads; nothing waits for it.

    # A busy machine may pause the server for longer than its pace.
    limits = {"total": {"first": 1, "stall": 1, "total": 1.3}, "first": {"first": 0.25, "stall": 0.1}}
    timeout = Timeout(idle=5, **limits.get(expired, {"stall": 0.25}))
    assert failure(Server(handle), TimedOut, client_class=client_class, timeout=timeout).kind == expired


def test_silence_after_the_role_of_the_message_is_limited_by_first(client_class):
    """Some servers send the role before they prefill the prompt."""
    server = waiting(chunked(sse(ROLE), end=False))
    timeout = Timeout(first=0.1, idle=0.01, stall=0.01)
    assert failure(server, TimedOut, client_class=client_class, timeout=timeout).kind == "first"


@pytest.mark.parametrize(
    ("module", "name", "least", "most"),
    [
        (localchat.streams, "_AFTER_FINISH_S", 1, 10),
        (call, "ERROR_BODY_S", 1, 10),
        (call, "DRAIN_S", 0.02, 0.5),
        (failures, "_FIRST_DELAY_S", 0.1, 1),
        (failures, "_MAX_DELAY_S", 2, 20),
        (sockets, "_MAX_IDLE_S", 5, 60),
        (console, "_PIPE_NOTICE_S", 1, 5),
        (printer, "_NOTICE_S", 5, 20),
    ],
)
def test_waits_are_neither_too_short_nor_too_long(module: Any, name: str, least: float, most: float):
    """Tests replace these constants, so that none of them would notice another value."""
    assert least <= getattr(module, name) <= most


@pytest.fixture
def close_when(client_class: Any) -> Callable[..., None]:
    """Close a stream in another thread or task when the event is set. The test fails if it does not end at once."""

    def close(waits: threading.Event, url: str, prompt: str = "hi", **options: Any) -> None:
        start = time.monotonic()
        with client_class(url, **{"model": "m", **options}) as client:
            stream = client.stream(prompt)
            thread = threading.Thread(target=lambda: (waits.wait(DEADLINE_S), stream.close()))
            thread.start()
            with pytest.raises(Cancelled):
                list(stream)
        thread.join(DEADLINE_S)
        assert time.monotonic() - start < DEADLINE_S / 2

    return close


def set_after(seconds: float) -> threading.Event:
    event = threading.Event()
    threading.Timer(seconds, event.set).start()
    return event


@pytest.mark.parametrize("model", ["m", None])
def test_close_while_waiting_for_the_response(model, close_when):
    """Without a model, the first response is the list of models."""
    with waiting() as server:
        close_when(server.sent, server.url, model=model)


@pytest.mark.parametrize("kind", ["http", "https", "unix", "until-close"])
def test_close_while_reading_the_response(kind, certificate, tmp_path, close_when):
    """A response that ends with its connection is cut as well."""
    server = waiting(until_close(piece("a")) if kind == "until-close" else OPEN)
    if kind == "https":
        with_tls(server, certificate)
    elif kind == "unix":
        at_unix_socket(server, tmp_path / "s")
    with server:
        close_when(server.sent, f"unix:{tmp_path}/s" if kind == "unix" else server.url, verify=False)


def test_close_while_waiting_to_retry(close_when):
    waits = threading.Event()
    with always(with_length(b"{}", "503 Loading", "Retry-After: 60\r\n")) as server:
        close_when(waits, server.url, max_retries=2, on_retry=lambda *_: waits.set())


@pytest.mark.parametrize(("scheme", "listening"), [("http", full_listener), ("https", silent)])
def test_close_while_it_connects(scheme, listening, close_when):
    """The http server accepts no connection, the https server does no handshake."""
    with listening() as port:
        close_when(set_after(0.05), f"{scheme}://127.0.0.1:{port}/v1", timeout=Timeout(connect=None))


def test_close_while_the_request_is_sent(close_when):
    with silent() as port:
        close_when(set_after(0.3), f"http://127.0.0.1:{port}/v1", prompt="x" * 10_000_000)


def test_close_while_the_resolver_hangs(hanging_resolver, close_when):
    close_when(hanging_resolver, "http://h.example/v1", timeout=Timeout(connect=None))


@pytest.mark.parametrize("parts", [(), (OPEN,)], ids=["before-the-response", "in-the-response"])
@pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])
def test_cancelled_task_closes_the_connection_at_once(parts, tls, certificate):
    server = with_tls(waiting(*parts), certificate) if tls else waiting(*parts)

    async def cancel(client: AsyncClient) -> None:
        task = asyncio.ensure_future(client.chat("hi"))
        await until(server.sent)
        task.cancel()
        start = time.monotonic()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(server.left)
        assert time.monotonic() - start < DEADLINE_S / 2  # A millisecond on an idle machine.

    with server:
        run_async(server.url, cancel, verify=False)


@pytest.mark.parametrize("method", ["stream", "run_stream"])
def test_stream_that_was_closed_returns_no_event(method, client_class):
    """The first payload makes two events; the second one is not returned either."""
    with waiting(OPEN) as server, make_client(server, client_class) as client:
        with getattr(client, method)("hi") as stream:
            assert next(stream).type == "message_start"
        assert server.left.wait(DEADLINE_S)
        for read in (lambda: next(stream), stream.finish):
            with pytest.raises(Cancelled, match="closed before its end") as caught:
                read()
            assert (caught.value.partial, stream.reply.text) == (stream.reply, "a")


def test_second_reader_of_a_stream_is_refused():
    """Here the callback of the first one."""
    options: Any = {"max_retries": 1, "on_retry": lambda *_: next(stream)}
    with always(with_length(b"{}", "503 Busy")) as server, make_client(server, **options) as client:
        stream = client.stream("hi")
        with pytest.raises(RuntimeError, match="another thread or task reads these events"):
            next(stream)


FAILURES = {
    "cut": (until_close(piece("<thi")), IncompleteStream),
    "reported": (chunked(piece("<thi"), sse({"error": "bad luck"})), StreamError),
    "not a completion": (chunked(piece("<thi"), b"data: oops\n\n"), ProtocolError),
    "not JSON": (chunked(piece("a", "stop"), DONE), DoesNotFit),
    "timeout": (OPEN, TimedOut),
    "status": (with_length(b"{}", "500 No"), ServerError),
}


@pytest.mark.parametrize("method", ["stream", "run_stream"])
@pytest.mark.parametrize(("raw", "kind"), FAILURES.values(), ids=FAILURES)
def test_stream_that_failed_raises_its_error_whenever_it_is_read(raw, kind, method, client_class):
    """Text that may begin a tag is emitted before the error."""
    server = waiting(raw) if kind is TimedOut else responding_once(raw)
    options: Any = {"response_format": int} if kind is DoesNotFit else {}
    with server, make_client(server, client_class) as client:
        stream = getattr(client, method)("hi", timeout=0.05 if kind is TimedOut else DEADLINE_S, **options)
        texts, seen, caught = stream.text, [], []
        for read in (lambda: seen.extend(texts), lambda: next(texts), lambda: list(stream), lambda: list(stream.text)):
            with pytest.raises(kind) as info:
                read()
            caught.append(info.value)
        with pytest.raises(kind):
            stream.finish()
        assert caught == caught[:1] * 4
        assert "".join(seen) == ("" if kind is ServerError else caught[0].partial.text)


@pytest.mark.parametrize("method", ["stream", "run_stream"])
def test_stream_whose_read_was_interrupted_raises_cancelled(method, monkeypatch):
    """By Ctrl-C, or by a time limit of asyncio."""

    def interrupt(connection: Any, limit: float | None) -> bytes:
        raise KeyboardInterrupt

    async def main(url: str) -> None:
        async with AsyncClient(url, model="m") as client:
            stream = getattr(client, method)("hi")
            assert await stream.text.__anext__() == "a"
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(stream.__anext__(), 0.05)
            for read in (stream.__anext__, stream.text.__anext__, stream.finish):
                with pytest.raises(Cancelled, match="interrupted before its end"):
                    await read()

    with waiting(OPEN) as server:
        asyncio.run(main(server.url))
    with waiting(OPEN) as server, make_client(server) as client:
        stream = getattr(client, method)("hi")
        assert next(stream.text) == "a"
        monkeypatch.setattr(sockets.Connection, "receive", interrupt)
        with pytest.raises(KeyboardInterrupt):
            next(stream)
        for read in (lambda: next(stream), lambda: list(stream.text), stream.finish):
            with pytest.raises(Cancelled, match="interrupted before its end") as caught:
                read()
            assert caught.value.partial.text == "a"


@pytest.mark.parametrize("method", ["stream", "run_stream"])
def test_blocking_client_in_the_thread_of_an_event_loop(method):
    """A stream that began there goes on after the loop."""

    async def begin() -> Any:
        stream = getattr(client, method)("hi")
        return client.chat("hi").text + next(stream.text), stream

    with always(HELLO) as server, make_client(server) as client:
        begun, stream = asyncio.run(begin())
        assert (begun, "".join(stream.text)) == ("HelloHel", "lo")


def test_cancel_does_not_end_the_encryption(certificate):
    """Another thread may be about to send the key."""
    with with_tls(waiting(OPEN), certificate) as server:
        driver, (address,) = sockets.Driver(), known_addresses("127.0.0.1", server.port) or []
        connection = sockets.run_blocking(driver.connect(DEADLINE_S, address))
        context = make_tls_context(False)
        sockets.run_blocking(driver.start_tls(DEADLINE_S, connection, context, "localhost"))
        connection.shut()  # As `cancel` does while another operation waits.
        assert connection.sock.version() is not None
        connection.close()
