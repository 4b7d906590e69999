"""TLS, Unix sockets, and the methods HEAD and OPTIONS."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import ssl
import stat
import sys
from pathlib import Path

import pytest

from localchat.serving.http.listener import listen_at, listening
from localchat.serving.http.settings import Settings

from .fakes import endless
from .serving import DEADLINE_S, GOOD, ask, chat_request, delta_text, raw_request, read_response, serving, wait_for

CERTIFICATE = Path(__file__).with_name("data") / "tls" / "localhost.pem"
TLS = Settings(port=0, tls_cert=CERTIFICATE)
CLIENT_TLS = ssl.create_default_context(cafile=str(CERTIFICATE))

# --- TLS ---


def https(running) -> http.client.HTTPSConnection:
    return http.client.HTTPSConnection("localhost", running.port, timeout=DEADLINE_S, context=CLIENT_TLS)


def test_tls_serves_whole_responses_and_streams_on_one_connection():
    with serving(settings=TLS) as running, contextlib.closing(https(running)) as client:
        assert ask(client)[0] == 200
        assert delta_text(ask(client, stream=True)[1]) == "hello"
        assert running.server.url.startswith("https://127.0.0.1:")


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not report it before a write fails")
def test_tls_disconnect_frees_the_slot(stream):
    with serving(endless, settings=TLS, n_ctx=100_000, n_cells=1_000_000) as running:
        with CLIENT_TLS.wrap_socket(running.connect(), server_hostname="localhost") as client:
            client.sendall(chat_request(stream=stream))
            wait_for(lambda: running.engine.stats().n_running == 1)
        running.wait_until_idle()


def test_closed_socket_is_no_disconnect():
    """The selector may report a socket whose request ends before the watcher checks the socket."""
    with serving(settings=TLS) as running:
        sock = CLIENT_TLS.wrap_socket(running.connect(), server_hostname="localhost")
        sock.close()
        running.server.watcher._check(sock)


@pytest.mark.parametrize("first_bytes", [b"", GOOD, b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00\x05hello"])
def test_connection_without_tls_is_closed_and_others_stay_open(first_bytes, caplog):
    with serving(settings=TLS) as running:
        with running.connect() as sock:
            sock.sendall(first_bytes)
            with contextlib.suppress(OSError):  # The server may have closed it already.
                sock.shutdown(socket.SHUT_WR)
                while data := sock.recv(65536):
                    assert not data.startswith(b"HTTP")
        with contextlib.closing(https(running)) as client:
            assert ask(client)[0] == 200
    assert "Traceback" not in caplog.text


# --- Unix sockets ---

unix = pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="no Unix sockets here")


@contextlib.contextmanager
def unix_client(path: Path):
    with socket.socket(socket.AF_UNIX) as sock, contextlib.closing(http.client.HTTPConnection("any.host")) as client:
        sock.settimeout(DEADLINE_S)
        sock.connect(str(path))
        client.sock = sock
        yield client


@unix
def test_unix_socket_serves_this_user_and_is_removed_at_the_end(tmp_path):
    path = tmp_path / "chat"
    with (
        listening("", 0, path) as listener,
        serving(settings=Settings(uds=path), listener=listener) as running,
        unix_client(path) as client,
    ):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert running.server.url == f"unix:{path}"
        # Any host name is accepted, since a web page cannot connect to a Unix socket.
        assert ask(client)[0] == 200
        assert delta_text(ask(client, stream=True)[1]) == "hello"
        client.request("GET", "/v1", headers={"Host": "<>"})
        assert read_response(client)[1]["base_url"] == "http://localhost/v1"
    assert not path.exists()


@unix
def test_unix_socket_that_a_server_left_behind_is_replaced_and_one_in_use_is_not(tmp_path):
    path = tmp_path / "chat"
    listen_at(path).close()
    assert path.is_socket()
    with listen_at(path), pytest.raises(OSError, match="in use"):
        listen_at(path)


@unix
def test_file_at_the_path_of_the_socket_stays(tmp_path):
    path = tmp_path / "notes"
    path.write_text("mine")
    with pytest.raises(OSError, match="in use"):
        listen_at(path)
    assert path.read_text() == "mine"


# --- HEAD and OPTIONS ---


@pytest.mark.parametrize(
    ("method", "path", "status", "allowed"),
    [
        ("OPTIONS", "*", 204, "GET, HEAD, POST, DELETE, OPTIONS"),
        ("OPTIONS", "/health", 204, "GET, HEAD, OPTIONS"),
        ("OPTIONS", "/v1/models?limit=20&after=x", 204, "GET, HEAD, OPTIONS"),
        ("OPTIONS", "/v1/chat/completions", 204, "POST, OPTIONS"),
        ("OPTIONS", "/nothing", 404, None),
        ("HEAD", "/health", 200, None),
        ("HEAD", "/v1/models?limit=20&after=x", 200, None),
        ("HEAD", "HTTP://LOCALHOST/v1/models", 200, None),
        ("HEAD", "/metrics", 200, None),
        ("HEAD", "/props", 200, None),
        ("HEAD", "/slots", 200, None),
        ("HEAD", "/v1/models/Fake", 200, None),
        ("HEAD", "/", 200, None),
        ("HEAD", "/v1", 200, None),
        ("HEAD", "/favicon.ico", 204, None),
        ("HEAD", "/v1/chat/completions", 405, "POST, OPTIONS"),
        ("HEAD", "/nothing", 404, None),
        ("HEAD", "*", 404, None),
    ],
)
def test_head_and_options(method, path, status, allowed):
    with serving() as running, contextlib.closing(running.client()) as client:
        for _ in range(2):  # a body after HEAD would be read as the next response
            client.request(method, path)
            response = client.getresponse()
            assert (response.status, response.getheader("Allow")) == (status, allowed)
            assert (response.read() == b"") == (method == "HEAD" or status == 204)
            assert status == 204 or int(response.getheader("Content-Length")) > 0


def test_absolute_target_names_the_host_in_place_of_the_header():
    """RFC 9112, 3.2.2: a proxy and the server must agree on the host."""
    with serving() as running, running.connect() as sock:
        sock.sendall(raw_request(GOOD, path="http://evil.example/v1/chat/completions"))
        assert sock.recv(12) == b"HTTP/1.1 403"


def test_keys_of_a_file_are_those_of_its_lines(tmp_path):
    from localchat.serving.http.options import read_options

    (tmp_path / "keys").write_text("one\n\n  two  \r\n", encoding="utf-8")
    options = read_options(["--api-key-file", str(tmp_path / "keys"), "--api-key", "three"])
    assert options.api_keys == ["one", "two", "three"]
    assert os.environ.get("LOCALCHAT_API_KEY") is None
