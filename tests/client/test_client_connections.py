"""The connections of the client: reuse, threads and forks, unix sockets, TLS, and proxies."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import ssl
import sys
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import PIPE, Popen

import pytest

import localchat.transport.addresses
import localchat.transport.aio_sockets
import localchat.transport.call
import localchat.transport.sockets
from localchat import AsyncClient, ConnectError, Timeout
from localchat.transport.addresses import Proxy, parse_base_url
from localchat.transport.failures import connect_message
from localchat.transport.settings import Settings
from localchat.transport.sockets import Connection, Driver, run_blocking
from tests.client.test_vendor import python
from tests.support.clients import failure, failure_at, make_client, run_async, until
from tests.support.deadline import DEADLINE_S
from tests.support.documents import ROOT, run
from tests.support.raw_responses import DONE, HELLO, MODELS, OPEN, STOP, chunks, piece, with_length
from tests.support.raw_server import CERTIFICATE, KEY, Peer, Server, always, at_unix_socket, with_tls
from tests.support.slow_servers import interrupted, responding_once, waiting

__all__ = ["python"]  # A fixture: used by name.


def test_threads_share_a_client_and_its_connections():
    with always(HELLO) as server, make_client(server) as client:
        with ThreadPoolExecutor(8) as threads:
            texts = list(threads.map(lambda n: client.chat("hi").text, range(800), timeout=6 * DEADLINE_S))
        assert texts == ["Hello"] * 800
        assert server.connections <= 8


def test_connection_that_the_server_closes_is_replaced_without_a_retry(client_class):
    """The server closes the connection while it is idle, or after the second request on it."""

    def handle(peer: Peer, server: Server) -> None:
        peer.request()
        peer.send(HELLO)
        if server.connections > 2:
            peer.request()

    with Server(handle) as server, make_client(server, client_class, max_retries=0) as client:
        for _ in range(4):
            assert client.chat("hi").text == "Hello"
        assert server.connections == 4


def test_end_of_a_body_is_read_for_the_next_request(client_class, monkeypatch):
    """The server sends the last bytes after the client has received the last event."""
    monkeypatch.setattr(localchat.transport.call, "DRAIN_S", DEADLINE_S)  # A busy machine may pause the server.
    seen = threading.Event()
    with interrupted(seen, HELLO[:-5], HELLO[-5:]) as server, make_client(server, client_class) as client:
        for _ in range(2):
            for event in client.stream("hi"):
                if event.type == "usage":
                    seen.set()
        assert server.connections == 1


def test_connection_that_was_idle_for_long_is_not_reused(client_class, monkeypatch):
    with always(HELLO) as server, make_client(server, client_class) as client:
        client.chat("hi")
        monkeypatch.setattr(localchat.transport.sockets, "_MAX_IDLE_S", 0.0)
        client.chat("hi")
        assert server.connections == 2


def test_tcp_checks_whether_the_peer_is_there():
    with socket.socket() as sock:
        localchat.transport.sockets.configure(sock)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) != 0


def test_fork_disturbs_neither_the_stream_of_the_parent_nor_the_child():
    """The child closes the stream, which both processes have, and sends a request of its own."""
    if not hasattr(os, "fork"):
        pytest.skip("no fork here")
    child_is_disconnected = threading.Event()

    def handle(peer: Peer, server: Server) -> None:
        while (request := peer.request()) is not None:
            if request.method == "GET":
                child_is_disconnected.set()
                peer.send(MODELS)
                continue
            peer.send(OPEN)
            assert child_is_disconnected.wait(DEADLINE_S)
            peer.send(chunks(piece("b"), STOP, DONE))

    program = (
        "import os, sys, localchat\n"
        "client = localchat.Client(sys.argv[1], model='m')\n"
        "with client.stream('hi') as stream:\n"
        "    assert next(stream.text) == 'a'\n"
        "    child = os.fork()\n"
        "    if not child:\n"
        "        stream.close()\n"
        "        os._exit(client.models() != ['first'])\n"
        "    assert os.waitpid(child, 0)[1] == 0\n"
        "    assert ''.join(stream.text) == 'b'\n"
    )
    with Server(handle) as server:
        assert run([sys.executable, "-c", program, server.url]).returncode == 0


def test_fork_does_not_end_an_asynchronous_stream_of_the_parent():
    """The child closes the client, whose socket and selector both processes have, and ends."""
    if not hasattr(os, "fork"):
        pytest.skip("no fork here")
    program = (
        "import asyncio, os, sys, localchat\n"
        "async def main():\n"
        "    client = localchat.AsyncClient(sys.argv[1], model='m', timeout=30, max_retries=0)\n"
        "    async with client.stream('hi') as stream:\n"
        "        assert await stream.text.__anext__() == 'a'\n"
        "        child = os.fork()\n"
        "        if not child:\n"
        "            await stream.close()\n"
        "            await client.close()\n"
        "            os._exit(0)\n"
        "        assert os.waitpid(child, 0)[1] == 0\n"
        "        await client.request('GET', '/seen')\n"
        "        print(''.join([text async for text in stream.text]))\n"
        "asyncio.run(main())\n"
    )
    child_has_ended = threading.Event()

    def handle(peer: Peer, server: Server) -> None:
        while (request := peer.request()) is not None:
            if request.method == "GET":
                child_has_ended.set()
                peer.send(MODELS)
                continue
            peer.send(OPEN)
            assert child_has_ended.wait(DEADLINE_S)
            peer.send(chunks(piece("b"), STOP, DONE))

    with Server(handle) as server:
        done = run([sys.executable, "-W", "ignore", "-c", program, server.url])
    assert (done.stdout, done.returncode) == ("b\n", 0), done.stderr


def test_blocking_calls_in_an_event_loop_leave_its_hooks_in_place():
    """The hooks let the loop close the generators that are left at its end."""
    ended = []

    async def numbers():
        try:
            yield 1
        finally:
            ended.append("closed")

    async def main(client) -> None:
        hooks = sys.get_asyncgen_hooks()
        client.chat("hi")
        assert sys.get_asyncgen_hooks() == hooks != (None, None)
        left.append(numbers())
        await left[0].__anext__()

    left = []
    with always(HELLO) as server, make_client(server) as client:
        asyncio.run(main(client))
    assert ended == ["closed"]


START = "import asyncio, os, sys, localchat\nclient = localchat.{}(sys.argv[1], model='m', timeout=30, max_retries=0)\n"
CALLS = {
    "Client": "wait = in_child = lambda value: value\n",
    "AsyncClient": "wait, in_child = asyncio.new_event_loop().run_until_complete, asyncio.run\n",
}
FORK = """
assert wait(client.chat('hi')).text == 'Hello'
child = os.fork()
if not child:
    os._exit(in_child(client.chat('hi')).text != 'Hello')
assert os.waitpid(child, 0)[1] == 0
assert wait(client.chat('hi')).text == 'Hello'
"""
ONE_DESCRIPTOR = """
import resource
free = os.dup(0)
os.close(free)
resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
for _ in range(2):
    assert wait(client.chat('hi')).text == 'Hello'
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("calls", CALLS)
@pytest.mark.parametrize("program", [FORK, ONE_DESCRIPTOR], ids=["idle connection and a fork", "one descriptor"])
def test_every_call_gets_its_reply(calls, program):
    with always(HELLO) as server:
        done = run([sys.executable, "-c", START.format(calls) + CALLS[calls] + program, server.url])
        assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("calls", CALLS)
def test_closed_stream_is_disconnected_although_a_child_has_its_socket(calls):
    program = (
        "async def step(): return await stream.__anext__()\n"
        "stream = client.stream('hi')\n"
        "next(stream) if isinstance(client, localchat.Client) else wait(step())\n"
        "if not os.fork():\n"
        "    os._exit(len(os.read(0, 1)))\n"
        "wait(stream.close())\n"
        "os._exit(os.wait()[1])\n"
    )
    code = START.format(calls) + CALLS[calls] + program
    with waiting(OPEN) as server, Popen([sys.executable, "-c", code, server.url], stdin=PIPE) as p:
        assert server.left.wait(DEADLINE_S)  # The child is alive: its input is open.
        p.communicate(timeout=DEADLINE_S)
        assert p.returncode == 0


def test_cancel_between_the_check_and_the_wait_is_not_missed():
    class CheckedDriver(Driver):
        was_cancelled = False

        @property
        def is_cancelled(self) -> bool:
            was_cancelled = self.was_cancelled
            if not threads:
                threads.append(threading.Thread(target=self.cancel))
                threads[0].start()
                threads[0].join(0.1)  # It waits for the lock, and would be done without one.
            return was_cancelled

        @is_cancelled.setter
        def is_cancelled(self, value: bool) -> None:
            self.was_cancelled = value

    threads: list[threading.Thread] = []
    driver, pair = CheckedDriver(), socket.socketpair()
    with pair[0], pair[1]:
        assert run_blocking(driver.read(DEADLINE_S, Connection(pair[0]))) == b""
    threads[0].join(DEADLINE_S)


def test_unix_socket(tmp_path, client_class, monkeypatch):
    path = tmp_path / "s"
    with at_unix_socket(always(HELLO), path) as server:
        monkeypatch.chdir(tmp_path)
        for url in (f"unix:{path}", f"unix://{path}", "unix:s"):
            with client_class(url, model="m") as client:
                assert client.chat("hi").text == "Hello"
        assert {request.path for request in server.requests} == {"/v1/chat/completions"}


@pytest.mark.parametrize("url", ["unix:", "unix:/", "unix:// "])
def test_unix_socket_needs_a_path(url: str):
    with pytest.raises(ValueError, match="names no socket: write unix:/path/to/socket"):
        parse_base_url(url)


def test_localhost_tries_ipv4_first():
    for host in ("localhost", "any.localhost"):
        addresses = localchat.transport.addresses.known_addresses(host, 80)
        assert [address[4][0] for address in addresses] == ["127.0.0.1", "::1"]
    assert localchat.transport.addresses.known_addresses("mylocalhost", 80) is None


@pytest.mark.parametrize("verify", ["path", "context", False], ids=str)
def test_tls(certificate, verify, client_class):
    if verify == "path":
        verify = f"{certificate}.crt"
    elif verify == "context":
        verify = ssl.create_default_context(cafile=f"{certificate}.crt")
    with with_tls(always(HELLO), certificate) as server, make_client(server, client_class, verify=verify) as client:
        for _ in range(3):
            assert client.chat("hi").text == "Hello"


def test_tls_offers_http_1_1_to_servers_that_require_a_protocol(certificate, client_class):
    """ALPN: a server that finds no common protocol ends the handshake."""
    server = with_tls(always(HELLO), certificate)
    server.tls.set_alpn_protocols(["http/1.1"])
    selected = []
    handle = server.handle
    server.handle = lambda peer, server: (selected.append(peer.sock.selected_alpn_protocol()), handle(peer, server))
    with server, make_client(server, client_class, verify=f"{certificate}.crt") as client:
        assert client.chat("hi").text == "Hello"
    assert selected == ["http/1.1"]


@pytest.mark.parametrize("by_variable", [True, False])
def test_each_client_reads_the_certificates_that_are_there(
    by_variable, certificate, tmp_path, client_class, monkeypatch
):
    """A file of certificates that was replaced counts for new clients."""
    path = tmp_path / "ca.pem"
    path.write_bytes(CERTIFICATE.with_name("other.pem").read_bytes())
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    options = {"verify": True if by_variable else path}
    with with_tls(always(HELLO), certificate) as server:
        with make_client(server, client_class, **options) as client, pytest.raises(ConnectError, match="not trusted"):
            client.chat("hi")
        path.write_bytes(Path(f"{certificate}.crt").read_bytes())
        with make_client(server, client_class, **options) as client:
            assert client.chat("hi").text == "Hello"


def test_tls_error_of_an_untrusted_certificate_names_the_option(certificate, client_class):
    failure(with_tls(always(HELLO), certificate), ConnectError, "verify=PATH", client_class=client_class)


def test_tls_error_of_a_certificate_of_another_host_says_so(certificate, client_class):
    with with_tls(always(HELLO), certificate) as server:
        url = f"https://other.localhost:{server.port}/v1"
        failure_at(url, ConnectError, "is that of another host", client_class, verify=f"{certificate}.crt")


@pytest.mark.parametrize("proxy", [None, Proxy("p", 80, {})], ids=["direct", "proxy"])
@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("unable to get local issuer certificate", "verify=PATH"),
        ("self-signed certificate", "verify=PATH"),
        ("certificate has expired", "needs a new one"),
        ("certificate is not yet valid", "clock of this machine"),
        ("IP address mismatch, certificate is not valid for 'h'", "that of another host"),
    ],
)
def test_error_of_a_certificate_says_what_to_do(reason, words, proxy):
    error = OSError(f"[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: {reason} (_ssl.c:1)")
    assert words in connect_message(Settings(base_url="https://h.example/v1"), error, proxy)


def test_tls_to_a_plain_server_is_named_in_the_error():
    with Server(lambda peer, server: peer.send(b"HTTP/1.1 400 Bad\r\n\r\n")) as server:
        failure_at(server.url.replace("http:", "https:"), ConnectError, "does not use TLS")


async def chat_text(client: AsyncClient) -> str:
    return (await client.chat("hi")).text


def test_idle_connection_with_unread_bytes_is_not_reused():
    """The server sends a 408 and closes the connection while it is idle."""
    left = threading.Event()

    def handle(peer: Peer, server: Server) -> None:
        peer.request()
        peer.send(HELLO, with_length(b"idle for too long", "408 Request Timeout", "Connection: close\r\n"))
        peer.sock.shutdown(socket.SHUT_WR)
        left.set()
        peer.request()

    async def twice(client: AsyncClient) -> str:
        text = await chat_text(client)
        await until(left)
        await asyncio.sleep(0.01)
        return text + await chat_text(client)

    with Server(handle) as server:
        assert run_async(server.url, twice) == "HelloHello"


def test_client_in_a_second_event_loop():
    async def call() -> str:
        text = await chat_text(client)
        await client.close()
        return text

    with always(HELLO) as server:
        client = AsyncClient(server.url, model="m")
        assert [asyncio.run(call()) for _ in range(2)] == ["Hello"] * 2


# asyncio before Python 3.11 warns of the transport of each handshake that was cancelled.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_cancels_at_any_moment_do_not_disturb_other_calls(certificate):
    """If a socket were closed while asyncio watches it, a new socket could get its file number."""

    async def call(client: AsyncClient, chance: random.Random) -> None:
        for _ in range(40):
            task = asyncio.ensure_future(chat_text(client))
            await asyncio.wait([task], timeout=chance.random() * 0.02)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                assert await task == "Hello"

    async def call_all(client: AsyncClient) -> None:
        await asyncio.gather(*(call(client, random.Random(seed)) for seed in range(6)))

    with with_tls(always(HELLO), certificate) as server:
        run_async(server.url, call_all, verify=False)


LOOPBACK = ("127.0.0.1", "127.1.2.3", "localhost", "[::1]", "a.localhost", "0.0.0.0", "[::]")
# The value of no_proxy, a URL, and whether a request goes through the proxy.
NO_PROXY: list[tuple[str, str, bool]] = [
    *(("", f"http://{host}:8080/v1", False) for host in LOOPBACK),
    ("", "http://h.example/v1", True),
    ("h.example", "http://h.example/v1", False),
    ("ample", "http://h.example/v1", True),
    ("*", "http://h.example/v1", False),
    ("h.example:81", "http://h.example:81/v1", False),
    ("10.0.0.0/8", "http://10.1.2.3/v1", False),
    ("fd00::/8", "http://[fd00::1]/v1", False),
    ("[fd00:0::1]", "http://[fd00::1]/v1", False),
]


@pytest.mark.parametrize(("no_proxy", "url", "proxied"), NO_PROXY)
def test_proxy_is_used_for_other_machines_but_those_of_no_proxy(no_proxy, url, proxied, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", no_proxy)
    assert find_proxy(url) == ("http://proxy:3128" if proxied else None)
    assert find_proxy(url, "http://mine:2") == "http://mine:2"
    assert find_proxy(url, False) is None


@pytest.mark.parametrize(
    ("path", "target"),
    {"/100%": "/100%25", "/a%20b": "/a%20b", "/a b%zz": "/a%20b%25zz", "x\r\n": "/v1/x%0D%0A"}.items(),
)
def test_path_is_quoted_where_it_has_to_be(path, target):
    assert Settings(base_url="http://h.example/v1").address.target(path) == target


def test_addresses_of_ipv6():
    """A zone has a meaning on this machine alone."""
    address = Settings(base_url="http://[fe80::1%25eth0]:8080/v1").address
    assert (address.host, address.host_header) == ("fe80::1%eth0", "[fe80::1]:8080")
    assert Settings(base_url="https://[2001:db8::1]/v1").address.authority == "[2001:db8::1]:443"


def find_proxy(url: str, proxy: str | bool | None = None) -> str | None:
    found = localchat.transport.addresses.find_proxy(Settings(base_url=url).address, proxy)
    return found and f"http://{found.host}:{found.port}"


@pytest.mark.parametrize("scheme", ["http://", ""])
def test_http_goes_through_the_proxy_with_its_whole_address(scheme, client_class):
    with always(HELLO) as server:
        proxy = f"{scheme}user:pass@127.0.0.1:{server.port}"
        with client_class("http://h.example/v1", model="m", proxy=proxy, max_retries=0) as client:
            assert client.chat("hi").text == "Hello"
        request = server.requests[0]
        assert request.path == "http://h.example/v1/chat/completions"
        assert request.headers["host"] == "h.example"
        assert request.headers["proxy-authorization"] == "Basic dXNlcjpwYXNz"


def test_https_goes_through_a_tunnel(certificate, client_class):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    connects: list[str] = []

    def handle(peer: Peer, server: Server) -> None:
        request = peer.request()
        connects.append(f"{request.method} {request.path}")
        assert "authorization" not in request.headers
        peer.send(b"HTTP/1.1 200 Connection established\r\n\r\n")
        inner = Peer(context.wrap_socket(peer.sock, server_side=True))
        request = inner.request()
        assert "proxy-authorization" not in request.headers
        assert request.headers["authorization"] == f"Bearer {KEY}"
        inner.send(HELLO)
        inner.is_disconnected()
        inner.close()

    with Server(handle) as server:
        proxy = f"http://127.0.0.1:{server.port}"
        with client_class("https://h.example/v1", KEY, "m", proxy=proxy, verify=False) as client:
            assert client.chat("hi").text == "Hello"
    assert connects == ["CONNECT h.example:443"]


@pytest.mark.parametrize("raw", [b"HTTP/1.1 407 Log in\r\n\r\n", b"text\r\n\r\n", b""], ids=["407", "text", "closed"])
def test_proxy_that_refuses_the_tunnel(raw, client_class):
    with responding_once(raw) as server:
        proxy = f"http://127.0.0.1:{server.port}"
        error = failure_at("https://h.example/v1", ConnectError, "through the proxy 127", client_class, proxy=proxy)
        assert ("requires a user" in str(error)) == (b"407" in raw)


@pytest.mark.parametrize(
    ("host", "proxy", "words"),
    [
        *((host, "", "not known|no connection") for host in ("no-such-host.invalid", "a..b", "x" * 70)),
        *(("h.example", url, "the proxy's URL cannot be read") for url in ("http://p:99999", "http://user:zqz/x@p:80")),
    ],
)
def test_host_or_proxy_that_cannot_be_used(host, proxy, words, client_class, monkeypatch):
    monkeypatch.setenv("ALL_PROXY", proxy)
    timeout = Timeout(connect=None)  # The real resolver is asked, which may take long.
    error = failure_at(f"http://{host}/v1", ConnectError, words, client_class, timeout=timeout)
    assert "zqz" not in "".join(traceback.format_exception(None, error, None))


def test_hosts_are_found_where_no_thread_can_be_started(client_class, monkeypatch):
    """As in an atexit function, in a sub-interpreter, and at the limit of threads of the system."""
    looked_up = []

    class Refused(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    class Threading:  # Of the client alone: the server starts threads.
        Thread, Event, RLock = Refused, threading.Event, threading.RLock

    def resolve(host: str, port: int, flags: int = 0) -> list:
        looked_up.append(host)
        return socket.getaddrinfo("127.0.0.1", port, type=socket.SOCK_STREAM)

    with always(HELLO) as server:
        monkeypatch.setattr(localchat.transport.sockets, "look_up", resolve)
        monkeypatch.setattr(localchat.transport.aio_sockets, "look_up", resolve)
        monkeypatch.setattr(localchat.transport.sockets, "threading", Threading)
        for host in ("localhost", "h.example"):
            with client_class(f"http://{host}:{server.port}/v1", model="m", proxy=False) as client:
                assert client.chat("hi").text == "Hello"
    assert looked_up == ["h.example"]


CALL = "from localchat import Client; print(Client({!r}, model='m', max_retries=0).chat('hi').text)"
WITHOUT_THREADS = {
    "atexit": "import atexit, sys\natexit.register(lambda: exec(sys.argv[1], {}))\n",
    "sub-interpreter": (
        "import sys\n"
        "try:\n"
        "    import _interpreters as interpreters\n"
        "except ImportError:\n"
        "    import _xxsubinterpreters as interpreters\n"
        "interpreters.run_string(interpreters.create(), sys.argv[1])\n"
    ),
}


@pytest.mark.parametrize("program", WITHOUT_THREADS.values(), ids=WITHOUT_THREADS)
def test_localhost_is_found_where_python_allows_no_thread(program, python):
    with always(HELLO) as server:
        call = CALL.format(server.url.replace("127.0.0.1", "localhost"))
        done = run([python, "-c", program, f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{call}"])
    assert (done.stdout, done.stderr) == ("Hello\n", "")


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:1", "https://127.0.0.1:1"])
def test_proxy_of_another_kind_is_an_error_only_when_used(proxy, monkeypatch):
    monkeypatch.setenv("ALL_PROXY", proxy)
    with always(HELLO) as server, make_client(server) as client:
        assert client.chat("hi").text == "Hello"
    failure_at("http://h.example/v1", ConnectError, "only http:// proxies")


@pytest.mark.parametrize("type_", [localchat.transport.call.Call, Connection])
def test_finalizers_need_nothing_of_an_interrupted_init(type_):
    """Ctrl-C may come at any moment."""
    type_.__new__(type_).__del__()
