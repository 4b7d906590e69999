"""Error bodies of the API, the list of models, and unknown fields."""

import pytest

from localchat.serving.api.models import model_body, models_body
from localchat.serving.core import errors
from localchat.serving.core.fields import parse_body


@pytest.mark.parametrize(
    ("error", "status", "type", "code", "param", "headers"),
    [
        pytest.param(errors.BadRequest("m", "p"), 400, "invalid_request_error", None, "p", {}, id="b-bad request"),
        pytest.param(
            errors.ContextLengthExceeded("m", "messages"),
            400,
            "invalid_request_error",
            "context_length_exceeded",
            "messages",
            {},
            id="k28-context",
        ),
        pytest.param(
            errors.Unauthorized("m"),
            401,
            "invalid_request_error",
            "invalid_api_key",
            None,
            {"WWW-Authenticate": "Bearer"},
            id="key",
        ),
        pytest.param(errors.UnknownPath("m"), 404, "invalid_request_error", "unknown_path", None, {}, id="path"),
        pytest.param(errors.ModelNotFound("m", "model"), 404, "model_not_found", None, "model", {}, id="b-model"),
        pytest.param(
            errors.MethodNotAllowed("m", ["GET", "HEAD"]),
            405,
            "invalid_request_error",
            "method_not_allowed",
            None,
            {"Allow": "GET, HEAD"},
            id="method",
        ),
        pytest.param(
            errors.QueueFull("m"), 429, "rate_limit_error", "queue_full", None, {"Retry-After": "2"}, id="k40"
        ),
        pytest.param(errors.InferenceError("m"), 500, "inference_error", None, None, {}, id="b-engine"),
        pytest.param(
            errors.ModelLoading("m", 0.1), 503, "model_loading", None, "model", {"Retry-After": "1"}, id="g11-soon"
        ),
        pytest.param(
            errors.ModelLoading("m", 4.4), 503, "model_loading", None, "model", {"Retry-After": "4"}, id="g11-later"
        ),
        pytest.param(
            errors.ModelLoading("m", 99), 503, "model_loading", None, "model", {"Retry-After": "10"}, id="g11-at most"
        ),
        pytest.param(
            errors.TooManyConnections("m"),
            503,
            "rate_limit_error",
            "too_many_connections",
            None,
            {"Retry-After": "2"},
            id="connections",
        ),
    ],
)
def test_k27_errors(error, status, type, code, param, headers):
    """K32, G10."""
    assert error.status == status
    assert error.headers() == headers
    assert error.body() == {"error": {"message": "m", "type": type, "param": param, "code": code or type}}


def test_models_body():
    model = model_body("m", 7, {"n_ctx": 9})
    fields = {"id": "m", "object": "model", "created": 7, "owned_by": "localchat"}
    assert model == {**fields, "max_model_len": 9, "meta": {"n_ctx": 9}}
    assert models_body([model], [{"name": "m"}]) == {"object": "list", "data": [model], "models": [{"name": "m"}]}


def test_unknown_lists_the_fields_that_were_not_read():
    body = parse_body(b'{"a": 1, "b": 2}')
    body.integer("a")
    assert body.unknown() == ["b"]
