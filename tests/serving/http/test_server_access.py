"""Access to the server: API keys, host names and origins, and CORS."""

import pytest

from localchat.serving.core.server_options import Options
from tests.support import exchanges
from tests.support.chat_requests import HI
from tests.support.serving import GOOD, exchange, raw_request, serving

PAGE = "https://page.example"


@pytest.fixture(scope="module")
def with_keys():
    with serving(settings=Options(port=0, api_keys=("secret", "other"), cors=(PAGE,))) as running:
        yield running


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": "Bearer sécret"}, 401),
        ({"Authorization": "Basic secret"}, 401),
        ({"X-Api-Key": ""}, 401),
        ({"Authorization": "Bearer secret"}, 200),
        ({"Authorization": "bearer  secret "}, 200),
        ({"x-api-key": "other"}, 200),
        ({"Authorization": "Bearer wrong", "X-API-Key": "secret"}, 200),
    ],
)
def test_a_key_is_needed_except_for_health(with_keys, headers, status):
    request = {"messages": HI}
    response, body = exchanges.exchange(with_keys.address, "/v1/chat/completions", request, headers=headers)
    assert response.status == status
    assert with_keys.request("GET", "/health")[0] == 200
    if status == 401:
        assert response.getheader("WWW-Authenticate") == "Bearer"
        assert body["error"]["code"] == "invalid_api_key"
        assert "send the API key of this server as 'Authorization: Bearer KEY'" in body["error"]["message"]


@pytest.mark.parametrize("sent", [raw_request(GOOD), raw_request(GOOD)[:-5], raw_request(b"x" * 100_000)])
def test_response_without_the_key_does_not_wait_for_the_body(with_keys, sent):
    head, body = exchange(with_keys, sent)
    assert head.startswith(b"HTTP/1.1 401 ")
    assert b"Connection: close" in head
    assert body["error"]["code"] == "invalid_api_key"


OURS = ["localhost:8080", "[::1]:8080", "[0:0:0:0:0:0:0:1]", "localhost.:8080", "a.foo.localhost.:80"]
# The first one is a name that was made to resolve to this machine (DNS rebinding).
OTHERS = ["evil.example", "localhost.evil.example", "evil@localhost", "127.0.0.999", "["]
OUR_PAGES = [
    "http://localhost:3000",
    "HTTP://LOCALHOST:3000",
    "http://wails.localhost:34115",
    "vscode-webview://x",
    "file://",
]
OTHER_PAGES = ["https://evil.example", "http://localhost@evil.example", "null"]


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (200, {}),
        *((200, {"Host": host}) for host in OURS),
        *((403, {"Host": host}) for host in OTHERS),
        *((200, {"Origin": page}) for page in OUR_PAGES),
        *((403, {"Origin": page}) for page in OTHER_PAGES),
        (403, {"Origin": "https://evil.example", "Host": "localhost"}),
        (403, {"Sec-Fetch-Site": "cross-site"}),  # an image or a script of another site
        (200, {"Sec-Fetch-Site": "same-origin"}),
        (200, {"Sec-Fetch-Site": "cross-site", "Origin": "http://[::1]:3000"}),
    ],
    ids=str,
)
def test_web_pages_of_others_are_refused(running, with_keys, headers, status):
    """A server with keys does not check them, since no page has a key."""
    assert running.request("POST", "/v1/chat/completions", GOOD, headers)[0] == status
    assert with_keys.request("GET", "/v1/models", headers={**headers, "X-Api-Key": "secret"})[0] == 200


def test_absolute_target_names_the_host_in_place_of_the_header(running):
    """A proxy and the server must agree on the host (RFC 9112, 3.2.2)."""
    with running.connect(raw_request(GOOD, path="http://evil.example/v1/chat/completions")) as sock:
        assert sock.recv(12) == b"HTTP/1.1 403"


def test_server_in_a_network_serves_its_own_pages_under_names_that_cannot_be_forged():
    """Public DNS may point any other name to it."""
    names = {"192.168.1.7": 200, "[fd00::7]": 200, "desk": 200, "desk.local": 200, "evil.example": 403, "1.evil": 403}
    with serving(settings=Options(host="0.0.0.0", port=0)) as running:
        for name, status in names.items():
            headers = {"Host": f"{name}:8080", "Origin": f"http://{name}:3000"}
            assert running.request("POST", "/v1/chat/completions", GOOD, headers)[0] == status


@pytest.mark.parametrize("host", ["0.0.0.0", "0"])
def test_url_of_a_wildcard_address_is_one_that_clients_can_connect_to(host: str):
    with serving(settings=Options(host=host, port=0)) as running:
        assert running.server.url.startswith("http://127.0.0.1:")


# --- CORS ---


def models(running, headers, method="GET"):
    return exchanges.exchange(running.address, "/v1/models", None, method, headers)[0]


PREFLIGHT = {"Origin": PAGE, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-a"}


def test_allowed_page_may_send_and_read(with_keys):
    response = models(with_keys, PREFLIGHT, "OPTIONS")
    assert (response.status, response.headers["Access-Control-Allow-Origin"]) == (204, PAGE)
    assert response.headers["Access-Control-Allow-Headers"] == "Authorization, *"
    assert "POST" in response.headers["Access-Control-Allow-Methods"]
    assert response.headers["Access-Control-Allow-Private-Network"] is None
    response = models(with_keys, {**PREFLIGHT, "Access-Control-Request-Private-Network": "true"}, "OPTIONS")
    assert response.headers["Access-Control-Allow-Private-Network"] == "true"
    # The page can also read errors, and it still needs the key.
    response = models(with_keys, {"Origin": PAGE})
    assert (response.status, response.headers["Access-Control-Allow-Origin"]) == (401, PAGE)
    response = models(with_keys, {"Origin": PAGE, "X-Api-Key": "secret"})
    assert (response.status, response.headers["Vary"]) == (200, "Origin")


@pytest.mark.parametrize(
    ("cors", "method", "headers", "status"),
    [
        ((), "OPTIONS", PREFLIGHT, 403),
        ((PAGE,), "GET", {"Origin": "https://other.example"}, 403),
        ((PAGE,), "GET", {"Origin": PAGE + ".evil.example"}, 403),
        ((PAGE,), "GET", {"Origin": PAGE, "Host": "evil.example"}, 403),
        ((PAGE + "/", "http://b"), "GET", {"Origin": PAGE}, 200),
        ((PAGE.upper(),), "GET", {"Origin": PAGE}, 200),
        ((PAGE,), "GET", {"Origin": PAGE.upper()}, 200),
        (("*",), "GET", {"Origin": PAGE}, 200),
        ((PAGE,), "GET", {}, 200),
    ],
)
def test_page_is_served_if_its_origin_is_allowed(cors, method, headers, status):
    with serving(settings=Options(port=0, cors=cors)) as running:
        response = models(running, headers, method)
    origin = headers.get("Origin", "")
    allowed = origin if origin.lower() == PAGE and cors else None
    assert (response.status, response.headers["Access-Control-Allow-Origin"]) == (status, allowed)
    assert response.headers["Vary"] == ("Origin" if cors else None)
