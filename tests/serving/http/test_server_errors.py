"""The responses to invalid requests, a full queue and failures, after which the server must stay usable."""

import contextlib
import errno
import logging
from unittest import mock

import pytest

from localchat.serving.chat.runs.generation import GenerationRun
from localchat.serving.core.errors import ApiError, BadRequest, HttpError, ModelLoading, NotSupported, OutOfResources
from localchat.serving.core.server_options import Options
from localchat.serving.engine.values import EngineDied, EngineError
from localchat.serving.loading.service import Service
from localchat.serving.models.model_file import DEMO_PATH, ModelFile
from tests.support.chat_requests import HI
from tests.support.endpoint_requests import MODEL_REQUESTS
from tests.support.engines import request_for, submit
from tests.support.exchanges import exchange
from tests.support.fakes import endless
from tests.support.serving import ask, chat_body, no_load, read_response, serving, wait_for

CHAT = "/v1/chat/completions"
POST = f"POST {CHAT}"
INVALID = "invalid_request_error"
LONG = [{"role": "user", "content": "x" * 300}]


TOO_LONG = (400, "context_length_exceeded", "messages")
BAD = {
    "empty body": (POST, b"", 400, INVALID, "body"),
    "no body": (POST, None, 411, "length_required", None),
    "another encoding": (
        POST,
        '{"messages": [{"role": "user", "content": "\u4f60"}]}'.encode("gbk"),
        400,
        INVALID,
        "body",
    ),
    "empty prompt": (POST, chat_body(""), 400, INVALID, "messages"),
    "empty text": ("POST /completion", b'{"prompt": ""}', 400, INVALID, "prompt"),
    "empty text in a list": ("POST /v1/embeddings", b'{"input": ["a", ""]}', 400, INVALID, "input[1]"),
    "unknown model": (POST, chat_body(model="gpt"), 404, "model_not_found", "model"),
    "too long": (POST, chat_body(messages=LONG), *TOO_LONG),
    "too long, stream": (POST, chat_body(messages=LONG, stream=True), *TOO_LONG),
    "GET chat": ("GET /v1/chat/completions", None, 405, "method_not_allowed", None),
    "POST models": ("POST /v1/models", None, 405, "method_not_allowed", None),
    "root": ("POST /", None, 405, "method_not_allowed", None),
    "host without a path": ("POST http://localhost", None, 405, "method_not_allowed", None),
    "unknown path": ("GET /v1/nothing", None, 404, "unknown_path", None),
    "compaction": ("POST /v1/responses/compact", None, 404, "unknown_path", None),
    "cancelled response": ("POST /v1/responses/resp_1/cancel", None, 404, "unknown_path", None),
    "items of a response": ("GET /v1/responses/resp_1/input_items", None, 404, "unknown_path", None),
    "deleted model": ("DELETE /v1/models/Fake", None, 404, "unknown_path", None),
    "count by GET": ("GET /v1/responses/input_tokens", None, 405, "method_not_allowed", None),
    "v1 twice": ("DELETE /v1/v1/models", None, 404, "unknown_path", None),
}


@pytest.mark.parametrize(("line", "body", "status", "code", "param"), BAD.values(), ids=BAD.keys())
def test_bad_request_gets_its_error_and_the_connection_stays_open(running, line, body, status, code, param):
    with contextlib.closing(running.client()) as client:
        for _ in range(2):
            client.putrequest(*line.split())
            if body is not None:
                client.putheader("Content-Length", str(len(body)))
            client.endheaders(body)
            sock = client.sock
            got_status, found = read_response(client)
            assert got_status == status
            assert found == {"error": {"message": mock.ANY, "type": mock.ANY, "param": param, "code": code}}
            assert found["error"]["message"]
        assert ask(client)[0] == 200
        assert client.sock is sock


@pytest.mark.parametrize(
    ("line", "upgrade", "status"),
    [
        ("GET /v1/responses", "WebSocket", 426),
        ("GET /v1/chat/completions", "websocket", 426),
        ("GET /v1/responses", "h2c", 405),
        ("GET /v1/models", "websocket", 200),
    ],
)
def test_upgrade_to_a_websocket_is_refused_so_that_the_client_uses_http(running, line, upgrade, status):
    """Codex repeats the request after status 405, and sends it by POST after 426."""
    (method, path), headers = line.split(), {"Connection": "Upgrade", "Upgrade": upgrade}
    response, body = exchange(running.address, path, None, method, headers)
    assert response.status == status
    if status == 426:
        assert response.getheader("Upgrade") == "HTTP/1.1"
        assert "takes POST and OPTIONS over HTTP/1.1, not a WebSocket" in body["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": HI}),
        ("/v1/completions", {"prompt": "a"}),
        ("/apply-template", {"messages": HI}),
        ("/tokenize", {"content": "a"}),
        ("/detokenize", {"tokens": [1]}),
    ],
)
def test_unknown_fields_are_logged_once_or_refused_on_every_path(path, body, caplog):
    caplog.set_level(logging.INFO, "localchat.server")
    fields = {**body, "frobnicate": 1, "x" * 100_000: 1}
    for strict, expected in (False, (200, None)), (True, (400, "frobnicate")):
        with serving(settings=Options(port=0, strict=strict)) as running:
            for _ in range(2):
                status, found = running.request("POST", path, fields)
                assert (status, found.get("error", {}).get("param")) == expected
    assert caplog.text.count("the field 'frobnicate', which is ignored") == 1
    assert len(caplog.text) < 10_000


def test_template_that_refuses_is_a_bad_request():
    template = "{{ raise_exception('no bad words') if messages[0].content == 'bad' else 'x' }}"
    with serving(chat_template=template) as running:
        status, body = running.chat(content="bad")
    assert (status, body["error"]["param"]) == (400, "messages")
    assert "no bad words" in body["error"]["message"]


def test_full_queue_is_429_with_retry_after():
    """Only two of the three choices can be queued, so the whole request fails, and none of them runs."""
    with serving(endless, is_gated=True, n_parallel=1, max_queue=2) as running:
        with submit(running.engine, request_for(prompt=(1,))):
            response, body = exchange(running.address, CHAT, {"messages": HI, "n": 3})
            assert (response.status, body["error"]["code"]) == (429, "queue_full")
            assert int(response.getheader("Retry-After")) > 0
        running.gate.release(1000)
        running.wait_until_idle()
        assert running.chat(max_tokens=1)[0] == 200


@pytest.mark.parametrize(
    ("error", "headers"),
    [
        (EngineError("the file is damaged"), {"X-Should-Retry": "false"}),
        (NotSupported("this model computes no scores"), {"X-Should-Retry": "false"}),
        (HttpError(501, None, "unknown transfer coding"), {"X-Should-Retry": "false"}),
        (BadRequest("another field"), {}),
        (EngineDied("killed by SIGKILL"), {}),
        (OutOfResources("no memory is left"), {"Retry-After": "2"}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_clients_repeat_no_request_that_would_fail_again(error: ApiError, headers: dict[str, str]):
    assert error.headers() == headers


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("chat/completions", {"messages": [{"role": "user", "content": "x"}], "n": 3}, "n"),
        ("completions", {"prompt": ["x", "y", "z"]}, "prompt"),
    ],
)
def test_more_choices_than_the_server_can_run_are_a_bad_request(path, fields, param):
    """A retry would not help, so the status is not 429."""
    with serving(n_parallel=1, max_queue=1) as running:
        status, body = running.request("POST", f"/v1/{path}", fields)
    assert (status, body["error"]["param"]) == (400, param)
    assert "requests 3 sequences, and this server accepts 2 at once" in body["error"]["message"]


def test_loading_is_503_then_the_model_serves(caplog):
    caplog.set_level(logging.INFO, "localchat.server")
    with serving(is_ready=False, settings=Options(port=0, waits=False)) as running:
        running.server.service.request_load(running.server.service.default)
        for path, fields in (("/health", None), ("/props", None), (CHAT, {"messages": HI})):
            response, body = exchange(running.address, path, fields)
            assert (response.status, body["error"]["code"]) == (503, "model_loading")
            assert 1 <= int(response.getheader("Retry-After")) <= 10
        _, metrics = running.request("GET", "/metrics")
        assert ("localchat_up 0" in metrics, "localchat_slots" in metrics) == (True, False)
        # Errors that do not depend on the model are reported immediately.
        assert running.chat(temperature="hot")[0] == 400
        assert running.chat(model="gpt")[0] == 404
        running.may_load.set()
        wait_for(lambda: running.chat()[0] == 200)
    # A client that polls /health does not fill the log.
    assert "/v1/chat/completions" in caplog.text
    assert "/health" not in caplog.text


@pytest.mark.parametrize(("progress", "seconds"), [(0.0, 6), (0.1, 54), (0.5, 6), (0.9, 2 / 3), (1.0, 0)])
def test_request_while_the_model_loads_gets_retry_after(progress: float, seconds: float):
    """The estimate is based on the time so far. The error rounds and limits it."""
    service = Service(ModelFile(DEMO_PATH, "Fake"), load=no_load, clock=lambda: 106.0)
    service.default.queue(100.0)
    service.default.progress = progress
    with pytest.raises(ModelLoading) as loading:
        service.loaded_model()
    assert loading.value.headers() == ModelLoading("", seconds).headers()


def test_unknown_model_is_refused_by_every_endpoint(running):
    for path, fields in MODEL_REQUESTS.items():
        status, body = running.request("POST", path, {"model": "other", **fields})
        message = body["error"] if path.startswith("/api/") else body["error"]["message"]
        assert (status, "there is no model 'other' here" in message) == (404, True)
    assert isinstance(running.request("POST", "/api/pull", "{}")[1]["error"], str)


@pytest.mark.parametrize(
    ("error", "expected", "message", "logged"),
    [
        (ZeroDivisionError("division"), 500, "internal error: see the server's log", "Traceback"),
        (BrokenPipeError(errno.EPIPE, "of a file"), 500, "internal error: see the server's log", "Traceback"),
        (MemoryError(), 503, "no memory is left: raise the limit", "no memory is left"),
        (OSError(errno.EMFILE, "Too many open files"), 503, "no file is left: raise the limit", "no file is left"),
        (RuntimeError("can't start new thread"), 503, "no process or thread can be started", "no process"),
    ],
)
def test_bug_in_a_route_is_500_without_details_and_a_short_machine_is_503(caplog, error, expected, message, logged):
    with serving() as running, mock.patch.object(GenerationRun, "take", side_effect=error):
        status, body = running.chat()
        assert (status, body["error"]["message"].startswith(message)) == (expected, True)
        assert running.request("GET", "/health")[0] == 200
    assert logged in caplog.text
