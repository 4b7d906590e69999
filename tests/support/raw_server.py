"""A server that sends raw bytes, for the tests of the clients: real sockets, threads, deadlines."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.deadline import DEADLINE_S
from tests.support.raw_responses import MODELS, OPEN

KEY = "sk-very-secret-key"


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Peer:
    """The server's end of one connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._in = sock.makefile("rb")

    def request(self) -> Request | None:
        """The next request; None if the client has disconnected."""
        line = self._in.readline().decode()
        if not line:
            return None
        method, path, _ = line.split()
        headers = {}
        while line := self._in.readline().decode().strip():
            name, _, value = line.partition(": ")
            assert name.lower() not in headers, f"{name} comes twice"
            headers[name.lower()] = value
        return Request(method, path, headers, self._in.read(int(headers.get("content-length", 0))))

    def send(self, *parts: bytes) -> None:
        for part in parts:
            self.sock.sendall(part)

    def is_disconnected(self) -> bool:
        """Wait until the client closes."""
        try:
            return not self._in.read(1)
        except socket.timeout:
            return False
        except OSError:
            return True

    def close(self) -> None:
        self._in.close()
        self.sock.close()


class Server:
    """Accepts connections within the `with` block, and handles each connection in its own thread."""

    def __init__(self, handle: Callable[[Peer, Server], object]) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.tls: ssl.SSLContext | None = None
        self.handle = handle
        self.requests: list[Request] = []
        self.connections = 0
        self.failures: list[BaseException] = []
        # For `waiting`: set when the parts are sent, and when the client has disconnected.
        self.sent, self.left = threading.Event(), threading.Event()
        self._threads: list[threading.Thread] = []

    @property
    def port(self) -> int:
        return int(self.listener.getsockname()[1])

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> Server:
        self._start(self._accept)
        return self

    def __exit__(self, *exception: object) -> None:
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for thread in self._threads:
            thread.join(DEADLINE_S)
            assert not thread.is_alive()
        assert not self.failures or exception[0], self.failures

    def _start(self, run: Callable[..., None], *arguments: Any) -> None:
        self._threads.append(threading.Thread(target=run, args=arguments))
        self._threads[-1].start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            self.connections += 1
            sock.settimeout(DEADLINE_S)
            self._start(self._serve, sock)

    def _serve(self, sock: socket.socket) -> None:
        try:
            peer = Peer(self.tls.wrap_socket(sock, server_side=True) if self.tls else sock)
        except OSError:
            sock.close()
            return
        try:
            self.handle(peer, self)
        except OSError:
            pass  # The client has disconnected. Tests that depend on this check it.
        except BaseException as error:
            self.failures.append(error)
        finally:
            peer.close()


def serving(respond: Callable[[Request, int], bytes]) -> Server:
    """A keep-alive server: `respond(request, number)` returns the response. After `OPEN`, the server waits until the
    client disconnects.
    """

    def handle(peer: Peer, server: Server) -> None:
        while (request := peer.request()) is not None:
            server.requests.append(request)
            raw = respond(request, len(server.requests))
            peer.send(raw)
            if raw == OPEN:
                assert peer.is_disconnected()
                server.left.set()
            if raw == OPEN or ends_the_connection(raw):
                return

    return Server(handle)


def ends_the_connection(raw: bytes) -> bool:
    return b"Connection: close" in raw or raw.startswith(b"HTTP/1.0")


def always(raw: bytes, models: bytes | None = None) -> Server:
    """Sends the list of models for GET, else these bytes."""
    return serving(lambda request, number: (models or MODELS) if request.method == "GET" else raw)


CERTIFICATE = Path(__file__).parents[1] / "data" / "tls" / "localhost.pem"


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a key and its certificate, which is alone in the file beside it whose name ends with ".crt"."""
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    text = CERTIFICATE.read_text()
    path.write_text(text)
    Path(f"{path}.crt").write_text(text.partition("-----BEGIN PRIVATE")[0])
    return path


def at_unix_socket(server: Server, path: Path) -> Server:
    if not hasattr(socket, "AF_UNIX"):
        pytest.skip("no unix sockets here")
    server.listener.close()
    server.listener = socket.socket(socket.AF_UNIX)
    server.listener.bind(str(path))
    server.listener.listen()
    return server


def with_tls(server: Server, certificate: Path) -> Server:
    server.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.tls.load_cert_chain(certificate)
    return server
