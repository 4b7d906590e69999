"""Access to the server: API keys, host names and origins, and CORS."""

import contextlib
import json
from email.message import Message

import pytest

from localchat.serving.http.access import Access
from localchat.serving.http.options import Options

from .serving import GOOD, exchange, raw_request, read_response, serving

PAGE = "https://page.example"


@pytest.fixture(scope="module")
def with_keys():
    settings = Options(port=0, api_keys=("secret", "other"), cors=(PAGE,))
    with serving(settings=settings) as running:
        yield running


@pytest.fixture(scope="module")
def without_keys():
    with serving() as running:
        yield running


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": "Bearer sécret"}, 401),
        ({"Authorization": "secret"}, 401),
        ({"Authorization": "Basic secret"}, 401),
        ({"X-Api-Key": "Bearer secret"}, 401),
        ({"X-Api-Key": ""}, 401),
        ({"Authorization": "Bearer secret"}, 200),
        ({"Authorization": "bearer  secret "}, 200),
        ({"Authorization": "Bearer other"}, 200),
        ({"x-api-key": "other"}, 200),
        ({"Authorization": "Bearer wrong", "X-API-Key": "secret"}, 200),
    ],
)
def test_a_key_is_needed_except_for_health(with_keys, headers, status):
    """H8, H17."""
    with contextlib.closing(with_keys.client()) as client:
        client.request("POST", "/v1/chat/completions", GOOD, headers)
        response = client.getresponse()
        body = json.loads(response.read())
        client.request("GET", "/health")
        assert read_response(client)[0] == 200
    assert response.status == status
    if status == 401:
        assert response.getheader("WWW-Authenticate") == "Bearer"
        assert body["error"]["code"] == "invalid_api_key"
        assert "send the API key of this server as 'Authorization: Bearer KEY'" in body["error"]["message"]


@pytest.mark.parametrize("sent", [raw_request(GOOD), raw_request(GOOD)[:-5], raw_request(b"x" * 100_000)])
def test_response_without_the_key_does_not_wait_for_the_body(with_keys, sent):
    """H7."""
    head, body = exchange(with_keys, sent)
    assert head.startswith(b"HTTP/1.1 401 ")
    assert b"Connection: close" in head
    assert body["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        pytest.param({}, 200, id="a program"),
        pytest.param({"Host": "localhost:8080"}, 200, id="localhost"),
        pytest.param({"Host": "[::1]:8080"}, 200, id="IPv6"),
        pytest.param({"Host": "[0:0:0:0:0:0:0:1]"}, 200, id="IPv6 in full"),
        pytest.param({"Host": "LocalHost"}, 200, id="host in any case"),
        pytest.param({"Host": "localhost.:8080"}, 200, id="host with the root's dot"),
        pytest.param({"Host": "foo.localhost"}, 200, id="name under localhost"),
        pytest.param({"Host": "a.b.localhost.:80"}, 200, id="two names under localhost"),
        pytest.param({"Host": "foolocalhost"}, 403, id="name that ends like localhost"),
        pytest.param({"Host": "localhost.evil.example"}, 403, id="name that begins with localhost"),
        pytest.param({"Host": "evil@localhost"}, 403, id="user name before the host"),
        pytest.param({"Host": "localhost/"}, 403, id="host with a path"),
        pytest.param({"Host": "127.0.0.999"}, 403, id="no address"),
        pytest.param({"Host": "evil.example"}, 403, id="rebound name"),
        pytest.param({"Host": "127.0.0.1.evil.example"}, 403, id="name like an address"),
        pytest.param({"Host": "["}, 403, id="broken host"),
        pytest.param({"Origin": "https://evil.example"}, 403, id="page of another site"),
        pytest.param({"Origin": "https://evil.example", "Host": "localhost"}, 403, id="its request to this machine"),
        pytest.param({"Origin": "null"}, 403, id="page without origin"),
        pytest.param({"Origin": "http://localhost:3000"}, 200, id="page of this machine"),
        pytest.param({"Origin": "HTTP://LOCALHOST:3000"}, 200, id="origin in any case"),
        pytest.param({"Origin": "http://tauri.localhost"}, 200, id="Tauri"),
        pytest.param({"Origin": "http://wails.localhost:34115"}, 200, id="Wails"),
        pytest.param({"Origin": "http://tauri.localhost.evil.example"}, 403, id="name that begins like Tauri's"),
        pytest.param({"Origin": "HTTPS://evil.example"}, 403, id="other site, scheme in any case"),
        pytest.param({"Origin": "http://localhost@evil.example"}, 403, id="other site behind a user name"),
        pytest.param({"Sec-Fetch-Site": "cross-site"}, 403, id="image or script of another site"),
        pytest.param({"Sec-Fetch-Site": "same-origin"}, 200, id="image of a page of this server"),
        pytest.param({"Sec-Fetch-Site": "cross-site", "Origin": "http://[::1]:3000"}, 200, id="its page, cross-site"),
        pytest.param({"Origin": "vscode-webview://x"}, 200, id="a program's page"),
    ],
)
def test_web_pages_of_others_are_refused(without_keys, with_keys, headers, status):
    """H4, H5. A server with keys does not check them, since no page has a key."""
    assert without_keys.request("POST", "/v1/chat/completions", GOOD, headers)[0] == status
    assert with_keys.request("GET", "/v1/models", headers={**headers, "X-Api-Key": "secret"})[0] == 200


def test_absolute_target_names_the_host_in_place_of_the_header(without_keys):
    """H6: a proxy and the server must agree on the host (RFC 9112, 3.2.2)."""
    with without_keys.connect() as sock:
        sock.sendall(raw_request(GOOD, path="http://evil.example/v1/chat/completions"))
        assert sock.recv(12) == b"HTTP/1.1 403"


@pytest.fixture(scope="module")
def in_network():
    with serving(settings=Options(host="0.0.0.0", port=0)) as running:
        yield running


@pytest.mark.parametrize(
    ("name", "status"),
    [
        pytest.param("192.168.1.7", 200, id="address"),
        pytest.param("[fd00::7]", 200, id="IPv6"),
        pytest.param("desk", 200, id="name of one word"),
        pytest.param("desk.local", 200, id="name of the local network"),
        pytest.param("evil.example", 403, id="name that may have been pointed here"),
        pytest.param("1.evil.example", 403, id="name that begins like an address"),
    ],
)
def test_server_in_a_network_serves_its_own_pages_under_names_that_cannot_be_forged(in_network, name, status):
    headers = {"Host": f"{name}:8080", "Origin": f"http://{name}:3000"}
    assert in_network.request("POST", "/v1/chat/completions", GOOD, headers)[0] == status


# --- CORS ---


def headers_of(**given: str) -> Message:
    message = Message()
    for name, value in given.items():
        message[name.replace("_", "-")] = value
    return message


@pytest.mark.parametrize(
    ("origins", "origin", "allowed"),
    [
        pytest.param((), PAGE, None, id="off"),
        pytest.param((PAGE,), PAGE, PAGE, id="named"),
        pytest.param((PAGE + "/",), PAGE, PAGE, id="named with a slash"),
        pytest.param((PAGE,), "https://other.example", None, id="another"),
        pytest.param((PAGE,), PAGE + ".evil.example", None, id="prefix of another"),
        pytest.param(("*",), PAGE, PAGE, id="all"),
        pytest.param((PAGE, "http://b"), "http://b", "http://b", id="second"),
    ],
)
def test_allowed_pages_get_the_cors_header(origins, origin, allowed):
    access, request = Access(Options(cors=origins)), headers_of(Origin=origin)
    assert access.cors_headers(request).get("Access-Control-Allow-Origin") == allowed
    assert access.cors_headers(headers_of()) == ({"Vary": "Origin"} if origins else {})
    assert bool(access.preflight_headers(request)) is (allowed is not None)
    assert "Access-Control-Allow-Private-Network" not in access.preflight_headers(request)
    request["Access-Control-Request-Private-Network"] = "true"
    is_private = access.preflight_headers(request).get("Access-Control-Allow-Private-Network") == "true"
    assert is_private is (allowed is not None)


def exchanged(running, method, path, headers):
    with contextlib.closing(running.client()) as client:
        client.request(method, path, headers=headers)
        response = client.getresponse()
        return response.status, response.headers, response.read()


PREFLIGHT = {"Origin": PAGE, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-a"}


def test_allowed_page_may_send_and_read(with_keys):
    status, headers, body = exchanged(with_keys, "OPTIONS", "/v1/chat/completions", PREFLIGHT)
    assert (status, body) == (204, b"")
    assert headers["Access-Control-Allow-Origin"] == PAGE
    assert headers["Access-Control-Allow-Headers"] == "Authorization, *"
    assert "POST" in headers["Access-Control-Allow-Methods"]
    # The page can also read errors, and it still needs the key.
    status, headers, _ = exchanged(with_keys, "GET", "/v1/models", {"Origin": PAGE})
    assert (status, headers["Access-Control-Allow-Origin"]) == (401, PAGE)
    status, headers, _ = exchanged(with_keys, "GET", "/v1/models", {"Origin": PAGE, "X-Api-Key": "secret"})
    assert (status, headers["Vary"]) == (200, "Origin")


@pytest.mark.parametrize(
    ("cors", "method", "headers"),
    [
        pytest.param((), "OPTIONS", PREFLIGHT, id="no page allowed"),
        pytest.param((PAGE,), "GET", {"Origin": "https://other.example"}, id="another page"),
        pytest.param((PAGE,), "GET", {"Origin": PAGE, "Host": "evil.example"}, id="rebound name"),
    ],
)
def test_other_pages_are_refused(cors, method, headers):
    with serving(settings=Options(port=0, cors=cors)) as running:
        status, found, _ = exchanged(running, method, "/v1/models", headers)
    assert status == 403
    assert found["Access-Control-Allow-Origin"] == (PAGE if headers["Origin"] == PAGE and cors else None)
