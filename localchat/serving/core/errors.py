"""API errors: the exception classes of the server, their HTTP statuses, types and codes.

    ApiError
      BadRequest                400  invalid_request_error
        ContextLengthExceeded   400  invalid_request_error / context_length_exceeded
        MalformedRequest        400, 408, 414, 431, 501, 505: the request is not HTTP as this server accepts it
      Unauthorized              401  invalid_request_error / invalid_api_key
      Forbidden                 403  invalid_request_error / forbidden
      UnknownPath               404  invalid_request_error / unknown_path
      NotFound                  404  invalid_request_error / not_found
      ModelNotFound             404  model_not_found
      MethodNotAllowed          405  invalid_request_error / method_not_allowed
      LengthRequired            411  invalid_request_error / length_required
      BodyTooLarge              413  invalid_request_error / body_too_large
      UnsupportedCoding         415  invalid_request_error / unsupported_content_encoding
      UpgradeRequired           426  invalid_request_error / upgrade_required
      QueueFull                 429  rate_limit_error / queue_full, Retry-After
      InferenceError            500  inference_error
      NotSupported              501  invalid_request_error / not_supported
      ModelLoading              503  model_loading, Retry-After
      TooManyConnections        503  rate_limit_error / too_many_connections, Retry-After
      ShuttingDown              503  inference_error / shutting_down, Retry-After

Messages name the expected and the given value. Details of internal errors are only logged.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

SHUTTING_DOWN = "the server is shutting down"
INTERNAL_ERROR = "internal error: see the server's log"

# Retry-After of QueueFull and TooManyConnections in seconds. It is short, since every request that ends frees a place.
RETRY_QUEUE_S = 2
# Retry-After of ShuttingDown (a restart may follow) in seconds, and the upper limit for ModelLoading.
RETRY_LOADING_S = 10


class ApiError(Exception):
    """An error response. If `code` is None, the response has the type as its code."""

    status = 500
    type = "inference_error"
    code: str | None = None
    retry_after_s: int | None = None

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param

    def body(self) -> dict[str, Any]:
        """The error object in OpenAI's format, for response bodies and for events of a stream."""
        code = self.code or self.type
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": code}}

    def headers(self) -> dict[str, str]:
        """The additional HTTP headers of the response."""
        return {} if self.retry_after_s is None else {"Retry-After": str(self.retry_after_s)}


class BadRequest(ApiError):
    """The request is invalid; `param` is the path of the field."""

    status = 400
    type = "invalid_request_error"


class ContextLengthExceeded(BadRequest):
    """The prompt does not fit into the context. Agents search the message for a known phrase, then shorten history."""

    code = "context_length_exceeded"

    def __init__(self, message: str, param: str | None = None, *, n_tokens: int = 0, n_ctx: int = 0) -> None:
        super().__init__(message, param)
        # Of the prompt and of the context, for the messages of other interfaces; 0 if they are unknown.
        self.n_tokens = n_tokens
        self.n_ctx = n_ctx


class MalformedRequest(BadRequest):
    """The request is not valid HTTP, or its end cannot be determined; the connection is closed."""

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
    """The request comes from a web page of another site, or has the Host of another machine."""

    status = 403
    type = "invalid_request_error"
    code = "forbidden"


class UnknownPath(ApiError):
    """The server has no such path."""

    status = 404
    type = "invalid_request_error"
    code = "unknown_path"


class NotFound(ApiError):
    """There is no stored object with this id."""

    status = 404
    type = "invalid_request_error"
    code = "not_found"

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message, param)
        self.code = code or self.code


class ModelNotFound(ApiError):
    """No model of this name is served."""

    status = 404
    type = "model_not_found"


class MethodNotAllowed(ApiError):
    """The path does not support the method of the request; `allowed` has the methods that it supports."""

    status = 405
    type = "invalid_request_error"
    code = "method_not_allowed"

    def __init__(self, message: str, allowed: Iterable[str]) -> None:
        super().__init__(message)
        self.allowed = tuple(allowed)

    def headers(self) -> dict[str, str]:
        return {"Allow": ", ".join(self.allowed)}


class LengthRequired(ApiError):
    """The request has neither Content-Length nor Transfer-Encoding, and its method needs a body."""

    status = 411
    type = "invalid_request_error"
    code = "length_required"


class BodyTooLarge(ApiError):
    """The body is larger than the server's limit."""

    status = 413
    type = "invalid_request_error"
    code = "body_too_large"


class UnsupportedCoding(ApiError):
    """The body has a content coding that the server cannot decode."""

    status = 415
    type = "invalid_request_error"
    code = "unsupported_content_encoding"

    def headers(self) -> dict[str, str]:
        return {"Accept-Encoding": "gzip, deflate"}


class UpgradeRequired(ApiError):
    """The client asks for a WebSocket. Clients that get this status send the request over HTTP instead."""

    status = 426
    type = "invalid_request_error"
    code = "upgrade_required"

    def headers(self) -> dict[str, str]:
        return {"Upgrade": "HTTP/1.1"}


class QueueFull(ApiError):
    """The queue of waiting requests is full."""

    status = 429
    type = "rate_limit_error"
    code = "queue_full"
    retry_after_s = RETRY_QUEUE_S


class InferenceError(ApiError):
    """The engine failed. `param` is None, since the request is not the cause."""


class NotSupported(ApiError):
    """The served model does not support this; another model may."""

    status = 501
    type = "invalid_request_error"
    code = "not_supported"


class ModelLoading(ApiError):
    """The model is loading, which takes about `left_s` seconds more."""

    status = 503
    type = "model_loading"

    def __init__(self, message: str, left_s: float) -> None:
        super().__init__(message, "model")
        self.retry_after_s = round(min(max(left_s, 1), RETRY_LOADING_S))


class TooManyConnections(ApiError):
    """The limit of open connections is reached."""

    status = 503
    type = "rate_limit_error"
    code = "too_many_connections"
    retry_after_s = RETRY_QUEUE_S


class ShuttingDown(ApiError):
    """The server is shutting down."""

    status = 503
    code = "shutting_down"
    retry_after_s = RETRY_LOADING_S
