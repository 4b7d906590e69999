"""Error bodies of the API, and unknown fields."""

import pytest

from localchat.serving.core import errors
from localchat.serving.core.fields import parse_body

INVALID = "invalid_request_error"
ERRORS = {
    "b-bad request": (errors.BadRequest("m", "p"), 400, INVALID, None, "p", {}),
    "k28-context": (errors.ContextLengthExceeded("m", "q"), 400, INVALID, "context_length_exceeded", "q", {}),
    "key": (errors.HttpError(401, "invalid_api_key", "m"), 401, INVALID, "invalid_api_key", None, {}),
    "b-model": (errors.ModelNotFound("m", "model"), 404, "model_not_found", None, "model", {}),
    "method": (errors.HttpError(405, None, "m", {"Allow": "A"}), 405, INVALID, None, None, {"Allow": "A"}),
    "k40": (errors.QueueFull("m"), 429, "rate_limit_error", "queue_full", None, {"Retry-After": "2"}),
    "b-engine": (errors.InferenceError("m"), 500, "inference_error", None, None, {}),
    "g11-soon": (errors.ModelLoading("m", 0.1), 503, "model_loading", None, "model", {"Retry-After": "1"}),
    "g11-later": (errors.ModelLoading("m", 4.4), 503, "model_loading", None, "model", {"Retry-After": "4"}),
    "g11-at most": (errors.ModelLoading("m", 99), 503, "model_loading", None, "model", {"Retry-After": "10"}),
}


@pytest.mark.parametrize(("error", "status", "type", "code", "param", "headers"), ERRORS.values(), ids=ERRORS.keys())
def test_k27_errors(error, status, type, code, param, headers):
    """K32, G10."""
    assert error.status == status
    assert error.headers() == headers
    assert error.body() == {"error": {"message": "m", "type": type, "param": param, "code": code or type}}


def test_unknown_lists_the_fields_that_were_not_read():
    body = parse_body(b'{"d": 0, "a": 1, "c": 3, "b": 2}')
    body.integer("a")
    body.report_unknown()
    assert body.ignored(strict=False) == ("d", "c", "b")
