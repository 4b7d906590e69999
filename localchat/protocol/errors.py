"""What the server answers when it cannot do what was asked: one body (K27), one table of statuses (K28).

    ApiError
      BadRequest                400  invalid_request_error
        ContextLengthExceeded   400  invalid_request_error / context_length_exceeded
        MalformedRequest        400, 414, 431, 501, 505: what came is not HTTP as this server reads it
      Unauthorized              401  invalid_request_error / invalid_api_key
      Forbidden                 403  invalid_request_error / forbidden
      UnknownPath               404  invalid_request_error / unknown_path
      NotFound                  404  invalid_request_error / not_found
      ModelNotFound             404  model_not_found
      MethodNotAllowed          405  invalid_request_error / method_not_allowed
      LengthRequired            411  invalid_request_error / length_required
      BodyTooLarge              413  invalid_request_error / body_too_large
      QueueFull                 429  rate_limit_error / queue_full, Retry-After
      InferenceError            500  inference_error
      NotSupported              501  invalid_request_error / not_supported
      ModelLoading              503  model_loading, Retry-After
      TooManyConnections        503  rate_limit_error / too_many_connections, Retry-After
      ShuttingDown              503  inference_error / shutting_down, Retry-After

The message says what was expected and what came; details of internal errors go to the log instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

SHUTTING_DOWN = "the server is shutting down"
INTERNAL_ERROR = "internal error: the server's log says more"

# A queue moves as fast as answers end, so a client may soon try again (K32).
RETRY_QUEUE_S = 2
# Who starts a server again needs some seconds; and while a model loads, nobody should wait longer than that (G11).
RETRY_LOADING_S = 10


class ApiError(Exception):
    """An answer that is an error. Without a code of its own a class repeats its type (appendix B)."""

    status = 500
    type = "inference_error"
    code: str | None = None
    retry_after_s: int | None = None

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param

    def body(self) -> dict[str, Any]:
        """The one error shape, for answers and for events inside a stream (K5, K27)."""
        code = self.code or self.type
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": code}}

    def headers(self) -> dict[str, str]:
        """Headers that belong to this error (K32)."""
        return {} if self.retry_after_s is None else {"Retry-After": str(self.retry_after_s)}


class BadRequest(ApiError):
    """The request is wrong; `param` names the part that is."""

    status = 400
    type = "invalid_request_error"


class ContextLengthExceeded(BadRequest):
    """The prompt does not fit into the context (K28)."""

    code = "context_length_exceeded"


class MalformedRequest(BadRequest):
    """It is unclear what was asked or where the next request begins; `status` says more."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class Unauthorized(ApiError):
    """The API key is missing or wrong."""

    status = 401
    type = "invalid_request_error"
    code = "invalid_api_key"

    def headers(self) -> dict[str, str]:
        return {"WWW-Authenticate": "Bearer"}


class Forbidden(ApiError):
    """A web page of another site is asking (see server.py on Host and Origin)."""

    status = 403
    type = "invalid_request_error"
    code = "forbidden"


class UnknownPath(ApiError):
    """Nothing is served here."""

    status = 404
    type = "invalid_request_error"
    code = "unknown_path"


class NotFound(ApiError):
    """A stored object of this id does not exist."""

    status = 404
    type = "invalid_request_error"
    code = "not_found"

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message, param)
        self.code = code or self.code


class ModelNotFound(ApiError):
    """No model of this name is served (K34)."""

    status = 404
    type = "model_not_found"


class MethodNotAllowed(ApiError):
    """The path exists, for other methods."""

    status = 405
    type = "invalid_request_error"
    code = "method_not_allowed"

    def __init__(self, message: str, allowed: Iterable[str]) -> None:
        super().__init__(message)
        self.allowed = tuple(allowed)

    def headers(self) -> dict[str, str]:
        return {"Allow": ", ".join(self.allowed)}


class LengthRequired(ApiError):
    """A body was needed and none was announced."""

    status = 411
    type = "invalid_request_error"
    code = "length_required"


class BodyTooLarge(ApiError):
    """The body is larger than the server reads."""

    status = 413
    type = "invalid_request_error"
    code = "body_too_large"


class QueueFull(ApiError):
    """As many requests wait as may wait (K40)."""

    status = 429
    type = "rate_limit_error"
    code = "queue_full"
    retry_after_s = RETRY_QUEUE_S


class InferenceError(ApiError):
    """The engine failed; not a fault of the request, so it names no parameter (G13)."""


class NotSupported(ApiError):
    """The model that is served cannot do this; another one could."""

    status = 501
    type = "invalid_request_error"
    code = "not_supported"


class ModelLoading(ApiError):
    """The model is on its way, and will be there in about `left_s` seconds (K28)."""

    status = 503
    type = "model_loading"

    def __init__(self, message: str, left_s: float) -> None:
        super().__init__(message, "model")
        self.retry_after_s = round(min(max(left_s, 1), RETRY_LOADING_S))


class TooManyConnections(ApiError):
    """As many connections are open as may be, each with a thread."""

    status = 503
    type = "rate_limit_error"
    code = "too_many_connections"
    retry_after_s = RETRY_QUEUE_S


class ShuttingDown(ApiError):
    """The server is ending."""

    status = 503
    code = "shutting_down"
    retry_after_s = RETRY_LOADING_S
