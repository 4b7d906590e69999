"""Access to the server: API keys, host names and origins."""

import contextlib
import json

import pytest

from localchat.serving.http.settings import Settings

from .serving import GOOD, read_response, serving


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
def test_a_key_is_needed_except_for_health(headers, status):
    """H8."""
    settings = Settings(port=0, api_keys=("secret", "other"))
    with serving(settings=settings) as running, contextlib.closing(running.client()) as client:
        client.request("POST", "/v1/chat/completions", GOOD, headers)
        response = client.getresponse()
        body = json.loads(response.read())
        client.request("GET", "/health")
        assert read_response(client)[0] == 200
    assert response.status == status
    if status == 401:
        assert response.getheader("WWW-Authenticate") == "Bearer"
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
        pytest.param({"Host": "evil@localhost"}, 403, id="user name before the host"),
        pytest.param({"Host": "localhost/"}, 403, id="host with a path"),
        pytest.param({"Host": "127.0.0.999"}, 403, id="no address"),
        pytest.param({"Host": "evil.example"}, 403, id="rebound name"),
        pytest.param({"Host": "127.0.0.1.evil.example"}, 403, id="name like an address"),
        pytest.param({"Host": "["}, 403, id="broken host"),
        pytest.param({"Origin": "https://evil.example"}, 403, id="page of another site"),
        pytest.param({"Origin": "null"}, 403, id="page without origin"),
        pytest.param({"Origin": "http://localhost:3000"}, 200, id="page of this machine"),
        pytest.param({"Origin": "HTTP://LOCALHOST:3000"}, 200, id="origin in any case"),
        pytest.param({"Origin": "HTTPS://evil.example"}, 403, id="other site, scheme in any case"),
        pytest.param({"Origin": "http://localhost@evil.example"}, 403, id="other site behind a user name"),
        pytest.param({"Sec-Fetch-Site": "cross-site"}, 403, id="image or script of another site"),
        pytest.param({"Sec-Fetch-Site": "same-origin"}, 200, id="image of a page of this server"),
        pytest.param({"Sec-Fetch-Site": "cross-site", "Origin": "http://[::1]:3000"}, 200, id="its page, cross-site"),
        pytest.param({"Origin": "vscode-webview://x"}, 200, id="a program's page"),
    ],
)
def test_web_pages_of_others_are_refused(headers, status):
    """H4, H5."""
    with serving() as running:
        assert running.request("POST", "/v1/chat/completions", GOOD, headers)[0] == status
    with serving(settings=Settings(port=0, api_keys=("k",))) as running:
        assert running.request("GET", "/v1/models", headers={**headers, "Authorization": "Bearer k"})[0] == 200


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
def test_server_in_a_network_serves_its_own_pages_under_names_that_cannot_be_forged(name, status):
    headers = {"Host": f"{name}:8080", "Origin": f"http://{name}:3000"}
    with serving(settings=Settings(host="0.0.0.0", port=0)) as running:
        assert running.request("POST", "/v1/chat/completions", GOOD, headers)[0] == status


PAGE = "https://page.example"
PREFLIGHT = {"Origin": PAGE, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-a"}
KEY = {"Authorization": "Bearer secret"}


def exchanged(running, method, path, headers):
    with contextlib.closing(running.client()) as client:
        client.request(method, path, headers=headers)
        response = client.getresponse()
        return response.status, response.headers, response.read()


@pytest.mark.parametrize("allowed", [PAGE, "*"])
def test_allowed_page_may_send_and_read(allowed):
    with serving(settings=Settings(port=0, cors=(allowed,), api_keys=("secret",))) as running:
        status, headers, body = exchanged(running, "OPTIONS", "/v1/chat/completions", PREFLIGHT)
        assert (status, body) == (204, b"")
        assert headers["Access-Control-Allow-Origin"] == PAGE
        assert headers["Access-Control-Allow-Headers"] == "x-a"
        assert "POST" in headers["Access-Control-Allow-Methods"]
        # The page can also read errors, and it still needs the key.
        status, headers, _ = exchanged(running, "GET", "/v1/models", {"Origin": PAGE})
        assert (status, headers["Access-Control-Allow-Origin"]) == (401, PAGE)
        status, headers, _ = exchanged(running, "GET", "/v1/models", {"Origin": PAGE, **KEY})
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
    with serving(settings=Settings(port=0, cors=cors)) as running:
        status, found, _ = exchanged(running, method, "/v1/models", headers)
    assert status == 403
    assert found["Access-Control-Allow-Origin"] == (PAGE if headers["Origin"] == PAGE and cors else None)
