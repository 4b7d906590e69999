"""The asynchronous client: timeouts, cancels and connections, against servers that are slow, silent or gone."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import ssl
import threading
import time
from typing import Any

import pytest

import localchat.aio
import localchat.aio_call
import localchat.aio_sockets
import localchat.failures
from localchat import (
    AsyncClient,
    Cancelled,
    ConnectError,
    ServerError,
    TimedOut,
    Timeout,
)
from localchat.call import DRAIN_S

from .raw_server import (
    DEADLINE_S,
    HELLO,
    OPEN,
    STOP,
    Peer,
    Server,
    always,
    certificate,
    chunked,
    clean_environment,
    dripping,
    full_listener,
    piece,
    pinging,
    pinging_with_pieces,
    silent_server,
    waiting,
    with_length,
    with_tls,
)
from .test_aio import failure, run, say

__all__ = ["certificate", "clean_environment"]  # Fixtures: used by name.


CLOCKS = {
    "first-no-headers": (waiting, (), Timeout(first=0.05), "first"),
    "first-only-pings": (pinging, (chunked(end=False),), Timeout(first=0.1), "first"),
    "idle": (waiting, (OPEN,), Timeout(idle=0.05), "idle"),
    "stall-although-pings": (pinging, (OPEN,), Timeout(idle=5, stall=0.1), "stall"),
    "stall-although-empty-pieces": (pinging_with_pieces, (OPEN,), Timeout(idle=5, stall=0.1), "stall"),
    "first-although-the-head-drips": (dripping, (b"HTTP/1.1 200 OK\r\n",), Timeout(first=0.1), "first"),
    "total": (pinging, (OPEN,), Timeout(total=0.1), "total"),
    "total-although-the-head-drips": (dripping, (b"HTTP/1.1 200 OK\r\n",), Timeout(total=0.1), "total"),
}


@pytest.mark.parametrize(("kind_of_server", "parts", "timeout", "kind"), CLOCKS.values(), ids=CLOCKS)
def test_timeout_runs_out(kind_of_server, parts, timeout, kind):
    error = failure(kind_of_server(*parts), TimedOut, f"Timeout.{kind}", timeout=timeout)
    assert error.kind == kind


def test_connect_timeout():
    async def main(port: int) -> None:
        timeout = Timeout(connect=0.1)
        async with AsyncClient(f"http://127.0.0.1:{port}/v1", model="m", timeout=timeout, max_retries=0) as client:
            await client.chat("hi")

    with full_listener() as port, pytest.raises(TimedOut) as caught:
        asyncio.run(main(port))
    assert caught.value.kind == "connect"


@pytest.mark.parametrize("scheme", ["https", "http"])
def test_connect_clock_holds_for_handshake_and_tunnel(scheme):
    """Neither the server of https nor the proxy says anything."""

    async def main(port: int) -> None:
        proxy = None if scheme == "https" else f"http://127.0.0.1:{port}"
        url = f"https://127.0.0.1:{port}/v1" if scheme == "https" else "https://h.example/v1"
        timeout = Timeout(connect=0.1)
        async with AsyncClient(url, model="m", proxy=proxy, timeout=timeout, max_retries=0) as client:
            await client.chat("hi")

    with silent_server() as port, pytest.raises(TimedOut) as caught:
        asyncio.run(main(port))
    assert caught.value.kind == "connect"


def test_connect_timeout_holds_while_the_resolver_hangs_and_no_call_waits_for_it(monkeypatch):
    released, ended = threading.Event(), threading.Event()

    def hang(*where: Any) -> list[Any]:
        released.wait(DEADLINE_S)
        ended.set()
        return []

    async def ask() -> None:
        async with AsyncClient("http://nowhere.example", model="m", max_retries=0) as client:
            await client.chat("hi", timeout=Timeout(connect=0.05))

    monkeypatch.setattr(localchat.aio_sockets, "addresses", hang)
    with pytest.raises(TimedOut):
        asyncio.run(ask())
    assert not ended.is_set()
    released.set()


def test_unknown_host_is_reported():
    async def ask() -> None:
        async with AsyncClient("http://nowhere.invalid", model="m", max_retries=0) as client:
            await client.chat("hi")

    with pytest.raises(ConnectError, match=r"nowhere\.invalid"):
        asyncio.run(ask())


def test_body_of_an_error_is_waited_for_a_short_time_only(monkeypatch):
    monkeypatch.setattr(localchat.aio_call, "ERROR_BODY_S", 0.05)
    raw = b'HTTP/1.1 503 Busy\r\nContent-Length: 100\r\n\r\n{"error": '
    assert failure(waiting(raw), ServerError).body == '{"error": '


@pytest.mark.parametrize("at_once", [True, False])
def test_wrong_framing_after_the_finish_is_only_the_end_of_the_connection(at_once):
    def handle(peer: Peer, server: Server) -> None:
        peer.request()
        parts = [chunked(piece("Hello"), STOP, end=False), b"zz\r\nno chunk\r\n"]
        peer.send(*([b"".join(parts)] if at_once else parts))

    assert run(Server(handle), say) == "Hello"


def going(*parts: bytes) -> tuple[Server, threading.Event, list[float]]:
    """A server that notes when the client goes."""
    arrived, gone_at = threading.Event(), []

    def handle(peer: Peer, server: Server) -> None:
        peer.request()
        peer.send(*parts)
        arrived.set()
        if peer.is_disconnected():
            gone_at.append(time.monotonic())

    return Server(handle), arrived, gone_at


@pytest.mark.parametrize("parts", [(), (OPEN,)], ids=["before-the-answer", "in-the-answer"])
@pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])
def test_cancelled_task_closes_the_connection_at_once(parts, tls, certificate):
    spent = []
    for _ in range(3):  # The machine may be busy: the best one tells what the client adds.
        server, arrived, gone_at = going(*parts)
        server = with_tls(server, certificate) if tls else server

        async def cancel(client: AsyncClient, arrived=arrived) -> float:
            task = asyncio.ensure_future(client.chat("hi"))
            while not arrived.is_set():
                await asyncio.sleep(0.001)
            task.cancel()
            start = time.monotonic()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.sleep(0)
            return start

        start = run(server, cancel, verify=False)
        spent.append(gone_at[0] - start)
    assert min(spent) < 0.05


def test_leaving_the_with_cancels():
    server, _, gone_at = going(OPEN)

    async def leave(client: AsyncClient) -> None:
        async with client.stream("hi") as stream:
            async for text in stream.text:
                assert text == "a"
                break
        with pytest.raises(Cancelled):
            await stream.__anext__()

    run(server, leave)
    assert gone_at


def test_close_from_another_task_wakes_the_reader():
    async def close(client: AsyncClient) -> None:
        stream = client.stream("hi")
        await stream.__anext__()
        await stream.__anext__()
        reader = asyncio.ensure_future(stream.__anext__())
        await asyncio.sleep(0)
        await stream.close()
        with pytest.raises(Cancelled):
            await reader

    run(going(OPEN)[0], close)


def test_close_while_waiting_to_retry():
    async def close(client: AsyncClient) -> None:
        stream = client.stream("hi")
        reader = asyncio.ensure_future(stream.__anext__())
        await asyncio.wait_for(retrying.wait(), DEADLINE_S)
        await stream.close()
        with pytest.raises(Cancelled):
            await reader

    async def main() -> None:
        nonlocal retrying
        retrying = asyncio.Event()
        async with AsyncClient(server.url, model="m", on_retry=lambda *_: retrying.set()) as client:
            await close(client)

    retrying: Any = None
    with always(with_length(b"{}", "503 Loading", "Retry-After: 60\r\n")) as server:
        asyncio.run(main())


@pytest.mark.parametrize(("scheme", "listening"), [("http", full_listener), ("https", silent_server)])
def test_close_while_it_connects(scheme, listening):
    """The server of http does not accept, that of https does not shake hands."""

    async def main(port: int) -> None:
        url = f"{scheme}://127.0.0.1:{port}/v1"
        async with AsyncClient(url, model="m", timeout=Timeout(connect=None), max_retries=0) as client:
            stream = client.stream("hi")
            reader = asyncio.ensure_future(stream.__anext__())
            await asyncio.sleep(0.05)
            await stream.close()
            with pytest.raises(Cancelled):
                await asyncio.wait_for(reader, DEADLINE_S)

    with listening() as port:
        asyncio.run(main(port))


def test_close_while_the_models_are_listed():
    async def close(client: AsyncClient) -> None:
        stream = client.stream("hi")
        reader = asyncio.ensure_future(stream.__anext__())
        while not arrived.is_set():
            await asyncio.sleep(0.001)
        await stream.close()
        with pytest.raises(Cancelled):
            await reader

    server, arrived, _ = going()
    run(server, close, model=None)


# Connections


def test_connection_on_which_the_server_speaks_unasked_is_not_used_again():
    """It takes its leave, while nobody listens."""
    left = threading.Event()

    def handle(peer: Peer, server: Server) -> None:
        peer.request()
        peer.send(HELLO)
        peer.send(with_length(b"idle for too long", "408 Request Timeout", "Connection: close\r\n"))
        peer.sock.shutdown(socket.SHUT_WR)
        left.set()
        peer.request()

    async def twice(client: AsyncClient) -> str:
        texts = [await say(client)]
        while not left.is_set():
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)
        return texts[0] + await say(client)

    assert run(Server(handle), twice) == "HelloHello"


def test_limit_that_runs_out_while_the_loop_is_busy_is_none_of_the_next_call():
    """The end of the first answer is there by then, and so is the end of the time to wait for it."""
    late = threading.Event()

    def handle(peer: Peer, server: Server) -> None:
        while peer.request():
            peer.send(HELLO[:-5])
            assert late.wait(DEADLINE_S)
            peer.send(HELLO[-5:])

    def be_busy() -> None:
        late.set()
        time.sleep(2 * DRAIN_S)

    async def twice(client: AsyncClient) -> str:
        async with client.stream("hi") as stream:
            async for event in stream:
                if event.type == "usage":
                    asyncio.get_running_loop().call_later(0.001, be_busy)
        return stream.reply.text + await say(client)

    assert run(Server(handle), twice) == "HelloHello"


def test_many_calls_at_once_and_then_one_connection_each():
    server = always(HELLO)

    async def many(client: AsyncClient) -> list[str]:
        first = await asyncio.gather(*(say(client) for _ in range(8)))
        return [*first, *[await say(client) for _ in range(50)]]

    assert run(server, many) == ["Hello"] * 58
    assert server.connections <= 8


def test_connection_closed_while_idle_or_as_we_write_is_retried_without_counting():
    def handle(peer: Peer, server: Server) -> None:
        peer.request()
        peer.send(HELLO)
        peer.request()

    async def four(client: AsyncClient) -> list[str]:
        return [await say(client) for _ in range(4)]

    assert run(Server(handle), four) == ["Hello"] * 4


def test_client_in_a_second_event_loop():
    with always(HELLO) as server:
        client = AsyncClient(server.url, model="m")

        async def ask() -> str:
            text = await say(client)
            await client.close()
            return text

        assert [asyncio.run(ask()) for _ in range(2)] == ["Hello"] * 2


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="no unix sockets here")
def test_unix_socket(tmp_path):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "s"))
    listener.listen()
    server = always(HELLO)
    server.listener.close()
    server.listener = listener

    async def main() -> str:
        async with AsyncClient(f"unix:{tmp_path}/s", model="m") as client:
            return await say(client)

    with server:
        assert asyncio.run(main()) == "Hello"


def test_tls(certificate):
    server = with_tls(always(HELLO), certificate)
    assert run(server, say, verify=f"{certificate}.crt") == "Hello"


def test_cancels_at_any_moment_do_not_disturb_other_calls(certificate):
    """A socket that is closed while asyncio still waits for it is met again: the next one has its number."""
    server = with_tls(always(HELLO), certificate)

    async def ask(client: AsyncClient, chance: random.Random) -> None:
        for _ in range(40):
            task = asyncio.ensure_future(say(client))
            await asyncio.wait([task], timeout=chance.random() * 0.02)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                assert await task == "Hello"

    async def main() -> None:
        async with AsyncClient(server.url, model="m", verify=False, max_retries=0) as client:
            await asyncio.gather(*(ask(client, random.Random(seed)) for seed in range(6)))

    with server:
        asyncio.run(main())


def test_tls_error_of_an_untrusted_certificate_names_the_option(certificate):
    failure(with_tls(always(HELLO), certificate), ConnectError, "verify=PATH")


def test_http_goes_through_the_proxy_with_its_whole_address():
    server = always(HELLO)
    proxy = f"http://user:pass@127.0.0.1:{server.port}"

    async def main() -> str:
        async with AsyncClient("http://h.example/v1", model="m", proxy=proxy) as client:
            return await say(client)

    with server:
        assert asyncio.run(main()) == "Hello"
    assert server.requests[0].path == "http://h.example/v1/chat/completions"
    assert server.requests[0].headers["proxy-authorization"] == "Basic dXNlcjpwYXNz"


def test_https_goes_through_a_tunnel(certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    connects: list[str] = []

    def handle(peer: Peer, server: Server) -> None:
        request = peer.request()
        assert request is not None
        connects.append(request.path)
        peer.send(b"HTTP/1.1 200 Connection established\r\n\r\n")
        inner = Peer(context.wrap_socket(peer.sock, server_side=True))
        inner.request()
        inner.send(HELLO)
        inner.is_disconnected()
        inner.close()

    async def main(proxy: str) -> str:
        async with AsyncClient("https://h.example/v1", model="m", proxy=proxy, verify=False) as client:
            return await say(client)

    with Server(handle) as server:
        assert asyncio.run(main(f"http://127.0.0.1:{server.port}")) == "Hello"
    assert connects == ["h.example:443"]


@pytest.mark.parametrize("raw", [b"HTTP/1.1 407 Log in\r\n\r\n", b"nonsense\r\n\r\n", b""])
def test_proxy_that_gives_no_tunnel(raw):
    def handle(peer: Peer, server: Server) -> None:
        peer.request()
        peer.send(raw)

    async def main(proxy: str) -> None:
        await AsyncClient("https://h.example/v1", model="m", proxy=proxy, max_retries=0).chat("hi")

    with Server(handle) as server, pytest.raises(ConnectError, match="through the proxy"):
        asyncio.run(main(f"http://127.0.0.1:{server.port}"))
