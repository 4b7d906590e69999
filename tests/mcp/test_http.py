"""MCP servers at URLs: sessions, streams, headers, errors."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import pytest

from localchat import TimedOut, Timeout
from localchat.mcp import MCPError, MCPServer, Progress
from tests.mcp.test_stdio import REVISIONS, SHORT, server_class
from tests.support.deadline import DEADLINE_S, wait_for
from tests.support.mcp_http import CLOSE, EVENTS, NOT_ALLOWED, MCPHTTPServer, event, json_response
from tests.support.mcp_server import MODERN, TOOLS
from tests.support.raw_responses import chunks, until_close, with_length
from tests.support.raw_server import KEY, Peer, Request

__all__ = ["server_class"]  # A fixture.


@pytest.mark.parametrize("has_events", [True, False], ids=["events", "json"])
@pytest.mark.parametrize("revision", REVISIONS)
def test_server_of_each_revision(server_class: Any, revision: str, has_events: bool):
    with MCPHTTPServer(revision, has_events) as http:
        with server_class(http.url) as server:
            assert server.revision == revision
            assert server.instructions == "Be kind."
            assert [tool.name for tool in server.tools()] == list(TOOLS)
            assert server.call("echo", {"text": "a\nb \ud800 ü"}).text == "a\nb \ud800 ü"
            assert server.call("add", {"a": 1, "b": 2}).structured == {"sum": 3}
            server.ping()
            with pytest.raises(MCPError, match="there is no tool x"):
                server.call("x")
            if has_events:
                reports: list[Progress] = []
                assert server.call("count", {"n": 3}, on_progress=reports.append).text == "counted"
                assert len(reports) == 3
        assert http.sessions == []
        assert (http.requests[-1].method == "DELETE") == (revision != MODERN)


def test_requests_of_the_server_are_answered(server_class: Any):
    with (
        MCPHTTPServer() as http,
        server_class(http.url, on_request={"elicitation/create": lambda params: {"action": "decline"}}) as server,
    ):
        assert json.loads(server.call("request", {"method": "elicitation/create"}).text) == {"action": "decline"}
        refused = json.loads(server.call("request", {"method": "roots/list"}).text)
        assert refused["code"] == -32601


def test_requests_of_the_server_are_limited_and_can_be_cancelled(monkeypatch: pytest.MonkeyPatch):
    """A request that the server has cancelled gets no response."""
    monkeypatch.setattr("localchat.mcp.session._MAX_FUNCTIONS", 1)
    begun, release = threading.Event(), threading.Event()

    def answer(params: Any) -> Any:
        begun.set()
        assert release.wait(DEADLINE_S)
        return {"roots": []}

    def response(request_id: str) -> Any:
        return next((message for message in http.tools.received if message.get("id") == request_id), None)

    def send(**fields: Any) -> None:
        http.tools._send({"jsonrpc": "2.0", **fields})

    def call() -> None:
        with pytest.raises(MCPError, match="it was closed"):
            server.call("wait")

    thread = threading.Thread(target=call)
    with MCPHTTPServer() as http, MCPServer(http.url, on_request={"roots/list": answer}) as server:
        thread.start()
        wait_for(lambda: http.sent("tools/call"))  # Its stream brings the requests.
        wait_for(lambda: http.tools.received[-1].get("method") == "tools/call")
        send(id="first", method="roots/list")
        assert begun.wait(DEADLINE_S)
        send(id="second", method="roots/list")
        wait_for(lambda: response("second"))
        assert response("second")["error"] == {"code": -32603, "message": "1 requests are in progress"}
        send(method="notifications/cancelled", params={"requestId": "first"})
        send(id="ping", method="ping")
        wait_for(lambda: response("ping"))
        release.set()
        wait_for(lambda: server._session._function_slots._value == 1)
        send(id="third", method="roots/list")
        wait_for(lambda: response("third"))
        assert response("third")["result"] == {"roots": []}
        assert response("first") is None
    thread.join(DEADLINE_S)


def test_changes_come_on_the_stream_that_belongs_to_no_request():
    with MCPHTTPServer() as http, MCPServer(http.url) as server:
        n_tools = len(server.tools())
        server.call("grow", {"name": "other"})
        wait_for(lambda: len(server.tools()) == n_tools + 1)


def test_list_is_read_again_after_a_listing_that_failed():
    def respond(request: Request, peer: Peer) -> Any:
        if fails and request.body and request.json.get("method") == "tools/list":
            return with_length(b"busy", "503 Service Unavailable")
        return None

    fails: list[bool] = []
    with MCPHTTPServer(respond=respond) as http, MCPServer(http.url) as server:
        wait_for(lambda: server._transport.is_listening)
        n_tools = len(server.tools())
        n_requests = len(http.sent("tools/list"))
        assert len(server.tools()) == n_tools
        assert len(http.sent("tools/list")) == n_requests
        fails.append(True)
        server.call("grow", {"name": "other"})
        wait_for(lambda: server._session.n_tool_changes > 1)
        with pytest.raises(MCPError, match="busy"):
            server.tools()
        fails.clear()
        assert len(server.tools()) == n_tools + 1


def test_server_that_ignores_discover_gets_initialize(monkeypatch: pytest.MonkeyPatch):
    def respond(request: Request, peer: Peer) -> Any:
        if request.body and request.json.get("method") == "server/discover":
            assert peer.is_disconnected()
            return CLOSE
        return None

    monkeypatch.setattr("localchat.mcp.negotiation._DISCOVER_S", 0.2)
    with MCPHTTPServer(respond=respond) as http, MCPServer(http.url) as server:
        assert server.revision == "2025-11-25"
        server.ping()


def test_ended_session_begins_again():
    with MCPHTTPServer() as http, MCPServer(http.url) as server:
        server.call("echo", {"text": "a"})
        http.sessions.clear()
        results = []
        threads = [
            threading.Thread(target=lambda: results.append(server.call("echo", {"text": "b"}).text)) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
        assert results == ["b"] * 8
        assert http.n_sessions == 2
        first, second = http.sent("initialize")
        assert "mcp-session-id" not in second.headers
        assert first.json == second.json


def test_session_that_ends_at_once_is_an_error():
    def end(request: Request, peer: Peer) -> Any:
        if request.body and request.json.get("method") == "tools/call":
            http.sessions.clear()
        return None

    with MCPHTTPServer(respond=end) as http, MCPServer(http.url, name="test") as server:
        with pytest.raises(MCPError, match="MCP server test: status 404: no such session") as caught:
            server.call("echo", {"text": "a"})
        assert caught.value.status == 404


@pytest.mark.parametrize("ending", ["resumption", "connection"])
def test_accepted_call_is_not_repeated(ending: str):
    """Neither if the session is gone when its stream is resumed, nor if a reused connection closes."""

    def respond(request: Request, peer: Peer) -> Any:
        if request.body and request.json.get("method") == "tools/call":
            if ending == "connection":
                return CLOSE
            http.sessions.clear()
            return EVENTS + b"Connection: close\r\n\r\n" + chunks(event(None, "first", retry_ms=1))
        return None

    with MCPHTTPServer(respond=respond) as http, MCPServer(http.url, name="test") as server:
        server.ping()
        with pytest.raises(MCPError, match="MCP server test: "):
            server.call("echo", {"text": "a"})
        assert len(http.sent("tools/call")) == 1
        server.ping()  # In a new session, if it has ended.
        assert len(http.sent("tools/call")) == 1


def test_call_needs_no_idle_connection():
    """A server may close one at any time, and a call that it had read must not be sent again."""
    connections = []

    def respond(request: Request, peer: Peer) -> Any:
        connections.append((request.json.get("method") if request.body else "", peer))
        return None

    with MCPHTTPServer(respond=respond) as http, MCPServer(http.url, name="test") as server:
        server.ping()
        assert server.call("echo", {"text": "a"}).text == "a"
    methods = [method for method, _ in connections]
    earlier = connections[: methods.index("tools/call")]
    assert connections[len(earlier)][1] not in [peer for _, peer in earlier]


RESULT = {"jsonrpc": "2.0", "result": {"content": [{"type": "text", "text": "at last"}]}}


def test_server_that_allows_no_pause_is_not_reconnected_to_at_once():
    """Each connection brings one event, which is no response before the fourth one."""
    times: list[float] = []

    def respond(request: Request, peer: Peer) -> Any:
        if request.body and request.json.get("method") == "tools/call":
            call_ids.append(request.json["id"])
        elif "last-event-id" not in request.headers:
            return None
        times.append(time.monotonic())
        message = {**RESULT, "id": call_ids[0]} if len(times) == 4 else None
        return until_close(event(message, f"event-{len(times)}", retry_ms=0))

    call_ids: list[int] = []
    with MCPHTTPServer(respond=respond) as http, MCPServer(http.url) as server:
        assert server.call("echo", {"text": "a"}).text == "at last"
    assert times[-1] - times[0] > 0.25


@pytest.mark.parametrize("ends", ["with its end", "too early", "and the server is busy"])
def test_broken_stream_is_resumed(server_class: Any, ends: str):
    """After its first event, and once more before the response."""
    resumed: list[tuple[str, float]] = []
    refusals = [with_length(b"", status) for status in ("502 Bad Gateway", "503 Busy") if "busy" in ends]

    def respond(request: Request, peer: Peer) -> Any:
        if request.body and request.json.get("method") == "tools/call":
            call_ids.append(request.json["id"])
            resumed.append(("", time.monotonic()))
            events = chunks(event(None, "first", retry_ms=150), end=ends == "with its end")
            return EVENTS + b"Connection: close\r\n\r\n" + events
        if "last-event-id" in request.headers and refusals:
            return refusals.pop()
        if "last-event-id" in request.headers:
            assert request.headers["mcp-session-id"] == "id-1-aZ81kq"
            resumed.append((request.headers["last-event-id"], time.monotonic()))
            if len(resumed) == 2:
                report = {"progressToken": call_ids[0], "progress": 1}
                progress = {"jsonrpc": "2.0", "method": "notifications/progress", "params": report}
                return until_close(event(progress, "second"))
            return until_close(event({**RESULT, "id": call_ids[0]}, "third"))
        return None

    call_ids: list[int] = []
    with MCPHTTPServer(respond=respond) as http, server_class(http.url) as server:
        reports: list[Progress] = []
        assert server.call("echo", {"text": "a"}, on_progress=reports.append).text == "at last"
        assert len(reports) == 1
    assert [last_id for last_id, _ in resumed] == ["", "first", "second"]
    assert resumed[1][1] - resumed[0][1] >= 0.15


def with_body(response: bytes, method: str = "tools/call") -> Any:
    """Responds to requests of this method with these bytes."""

    def respond(request: Request, peer: Peer) -> bytes | None:
        return response if request.body and request.json.get("method") == method else None

    return respond


JSON_TYPE = "Content-Type: application/json\r\n"


@pytest.mark.parametrize(
    ("response", "reason"),
    {
        "no JSON": (with_length(b"<html>", headers=JSON_TYPE), "it is no JSON: '<html>'"),
        "no message": (with_length(b"[]", headers=JSON_TYPE), "it is no message: '\\[\\]'"),
        "another message": (json_response({"jsonrpc": "2.0", "id": 99, "result": {}}), "the response has no result"),
        "no text": (with_length(b"\xff\xff", headers=JSON_TYPE), "the response is no text: b'"),
        "result": (json_response({"jsonrpc": "2.0", "id": None, "result": {}}), "the response has no result"),
        "error without id": (
            json_response({"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "what?"}}),
            "what\\? \\(error -32700\\)",
        ),
        "empty": (with_length(b"", headers=JSON_TYPE), "the response has no result"),
        "accepted": (with_length(b"", "202 Accepted"), "the response has no result"),
        "no content type": (with_length(b"hello"), "it is no JSON: 'hello'"),
        "empty stream": (EVENTS + b"\r\n" + chunks(), "the response has no result"),
        "cut stream": (EVENTS + b"Connection: close\r\n\r\n" + chunks(event(None), end=False), "ended at least one"),
        "no event": (EVENTS + b"\r\n" + chunks(b"data: hello\n\n"), "it is no JSON: 'hello'"),
        "500": (with_length(b"Traceback", "500 Internal Server Error"), "status 500: Traceback"),
        "error with status": (
            json_response({"error": {"code": -32001, "message": "not now", "data": 7}}, "503 Busy"),
            "not now \\(error -32001\\)",
        ),
        "401": (with_length(b"who?", "401 Unauthorized"), "status 401: who\\?; is the key in the headers right\\?"),
        "redirect": (
            with_length(b"", "307 Moved", "Location: http://other.host/mcp\r\n"),
            "status 307: it redirects to http://other.host/mcp, which is not followed",
        ),
        "no HTTP": (b"hello\r\n\r\nConnection: close", "this is not HTTP: hello"),
    }.values(),
    ids=lambda value: None,
)
def test_bad_response_is_an_error_of_its_call(server_class: Any, response: bytes, reason: str):
    with MCPHTTPServer(respond=with_body(response)) as http, server_class(http.url, name="bad one") as server:
        with pytest.raises(MCPError, match=f"MCP server bad one: .*{reason}") as caught:
            server.call("echo", {"text": "a"})
        assert caught.value.server == "bad one"
        server.ping()


@pytest.mark.parametrize(
    "result",
    [{"tools": [], "nextCursor": float("inf")}, {"resultType": "input_required", "requestState": [float("nan")]}],
)
def test_value_that_is_no_json_is_not_sent_back(server_class: Any, result: Any):
    def respond(request: Request, peer: Peer) -> Any:
        is_list = request.body and request.json["method"] == "tools/list"
        return json_response({"jsonrpc": "2.0", "id": request.json["id"], "result": result}) if is_list else None

    with MCPHTTPServer(MODERN, respond=respond) as http, server_class(http.url, name="bad one") as server:
        with pytest.raises(MCPError, match="MCP server bad one: it sent a value that cannot be sent back: "):
            server.tools()
        assert len(http.sent("tools/list")) == 1


def test_large_responses_are_errors(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("localchat.mcp.http.MAX_MESSAGE_BYTES", 10_000)
    with MCPHTTPServer(has_events=False) as http, MCPServer(http.url) as server:
        with pytest.raises(MCPError, match="a message has more than 10000 bytes"):
            server.call("echo", {"text": "a" * 20_000})
        http.has_events = True
        with pytest.raises(MCPError, match="expected no more than 10000 bytes"):
            server.call("echo", {"text": "a" * 20_000})


def test_nothing_listens(server_class: Any):
    with MCPHTTPServer() as http:
        url = http.url
    with (
        pytest.raises(MCPError, match=r"MCP server gone: nothing listens on .*: is the server started"),
        server_class(url, name="gone"),
    ):
        pass


def test_keys_are_not_shown(caplog: pytest.LogCaptureFixture):
    """Although the server repeats them."""
    caplog.set_level("DEBUG")
    body = with_length(f"wrong key {KEY}".encode(), "403 Forbidden")
    message = {"jsonrpc": "2.0", "error": {"code": 1, "message": f"your key {KEY}", "data": [KEY]}}
    for response in (body, json_response(message, "403 Forbidden"), json_response({**message, "id": None})):
        with (
            MCPHTTPServer(respond=with_body(response)) as http,
            MCPServer(f"{http.url}", headers={"Authorization": f"Bearer {KEY}"}) as server,
        ):
            with pytest.raises(MCPError) as caught:
                server.call("echo")
            assert http.sent("tools/call")[0].headers["authorization"] == f"Bearer {KEY}"
            error: Any = caught.value
            while error is not None:
                assert KEY not in f"{error!r} {vars(error)}"
                error = error.__cause__
            assert "***" in str(caught.value)
    assert KEY not in caplog.text
    assert "id-1-aZ81kq" not in caplog.text


def test_key_of_the_model_is_not_sent(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with MCPHTTPServer() as http, MCPServer(http.url) as server:
        server.ping()
        assert not [request for request in http.requests if "authorization" in request.headers]


def test_redirect_is_not_followed():
    with MCPHTTPServer() as other:
        moved = with_length(b"", "307 Temporary Redirect", f"Location: {other.url}\r\n")
        with MCPHTTPServer(respond=lambda request, peer: moved) as http:
            headers = {"Authorization": f"Bearer {KEY}"}
            with pytest.raises(MCPError, match="which is not followed"), MCPServer(http.url, headers=headers):
                pass
        assert other.requests == []


def test_call_is_cancelled_after_its_timeout(server_class: Any):
    with MCPHTTPServer() as http, server_class(http.url) as server:
        with pytest.raises(TimedOut, match="no result of tools/call"):
            server.call("wait", timeout=SHORT)
        wait_for(lambda: http.tools.cancelled)
        assert http.tools.cancelled == [http.sent("tools/call")[0].json["id"]]


def test_timeout_of_a_call_is_also_that_of_the_list_that_it_needs(server_class: Any):
    def respond(request: Request, peer: Peer) -> Any:
        if request.json["method"] != "tools/list":
            return None
        assert peer.is_disconnected()
        return CLOSE

    with (
        MCPHTTPServer(MODERN, respond=respond) as http,
        server_class(http.url) as server,
        pytest.raises(TimedOut, match="no result of tools/list"),
    ):
        server.call("echo", {"text": "a"}, timeout=SHORT)


def test_call_of_a_modern_server_is_cancelled_by_closing_its_stream():
    left = threading.Event()

    def respond(request: Request, peer: Peer) -> Any:
        if request.json["method"] == "tools/call":
            params = {"progressToken": request.json["params"]["_meta"]["progressToken"], "progress": 1}
            report = event({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})
            peer.send(EVENTS + b"\r\n" + chunks(report, end=False))
            assert peer.is_disconnected()
            left.set()
            return CLOSE
        return None

    def stop(progress: Progress) -> None:
        raise InterruptedError

    with MCPHTTPServer(MODERN, respond=respond) as http, MCPServer(http.url) as server:
        with pytest.raises(InterruptedError):
            server.call("wait", on_progress=stop)
        assert left.wait(DEADLINE_S)
        server.ping()
        assert http.sent("notifications/cancelled") == []


def test_server_without_a_stream_for_other_messages():
    def respond(request: Request, peer: Peer) -> Any:
        return NOT_ALLOWED if request.method in ("GET", "DELETE") else None

    with MCPHTTPServer(respond=respond) as http:
        with MCPServer(http.url, timeout=Timeout(10)) as server:
            n_tools = len(server.tools())
            server.call("grow", {"name": "other"})
            assert len(server.tools()) == n_tools + 1  # No change was reported.
        assert [request.method for request in http.requests].count("GET") <= 1


def test_slash_at_the_end_of_the_path_is_sent():
    paths = []

    def respond(request: Request, peer: Peer) -> Any:
        paths.append(request.path)
        request.path = "/mcp"
        return None

    with MCPHTTPServer(respond=respond) as http, MCPServer(http.url + "/?version=2") as server:
        server.ping()
    assert set(paths) == {"/mcp/?version=2"}


MARKED = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}


def test_modern_requests_have_headers():
    changed = []

    def respond(request: Request, peer: Peer) -> Any:
        if request.json["method"] != "tools/call" or request.headers.get("mcp-param-region") == "eu":
            return None
        http.tools.tools["echo"] = {"inputSchema": MARKED}  # It was changed since it was listed.
        changed.append(request)
        error = {"code": -32020, "message": "a header is missing"}
        return json_response({"jsonrpc": "2.0", "id": request.json["id"], "error": error}, "400 Bad Request")

    with MCPHTTPServer(MODERN, respond=respond) as http, MCPServer(http.url) as server:
        assert server.call("echo", {"text": "a", "region": "eu"}).text == "a"
        assert len(changed) == 1
        assert http.requests[-1].headers["mcp-name"] == "echo"
        http.tools.tools["größe"] = {"inputSchema": MARKED}
        with pytest.raises(MCPError, match="a header is missing"):
            server.call("größe", {"text": "a", "region": "us"})
        assert http.requests[-1].headers["mcp-name"] == "=?base64?Z3LDtsOfZQ==?="
        assert http.requests[-1].json["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] == MODERN


@pytest.mark.parametrize("supported", [[MODERN, "2099-01-01"], ["2025-06-18", "2025-03-26"]])
def test_refused_revision_is_followed_by_one_that_the_server_supports(supported: list[str]):
    refused = []

    def respond(request: Request, peer: Peer) -> Any:
        if request.body and request.json["method"] == "server/discover" and not refused:
            refused.append(request)
            data = {"supported": supported, "requested": MODERN}
            error = {"code": -32022, "message": "Unsupported protocol version", "data": data}
            return json_response({"jsonrpc": "2.0", "id": 1, "error": error}, "400 Bad Request")
        return None

    with MCPHTTPServer(supported[0], respond=respond) as http, MCPServer(http.url) as server:
        assert server.revision == supported[0]
        server.ping()
