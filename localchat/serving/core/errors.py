"""API errors: the exception classes of the server, each with its HTTP status, type and code.

Messages name the expected and the given value. Details of internal errors are only logged.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .text import without_folders

INTERNAL_ERROR = "internal error: see the server's log"
# The message for a MemoryError, which has no text.
NO_MEMORY = "no memory is left: raise the limit (ulimit -v), or use a smaller --ctx or --parallel"
NO_FILES = "no file is left: raise the limit of open files (ulimit -n)"
NO_THREADS = "no process or thread can be started: raise the limit (ulimit -u, or that of the container)"
_BY_ERRNO = {
    errno.ENOMEM: NO_MEMORY, errno.EMFILE: NO_FILES, errno.ENFILE: NO_FILES, errno.EAGAIN: NO_THREADS,
}  # fmt: skip

RETRY_QUEUE_S = 2  # Retry-After of QueueFull. It is short, since every request that ends frees a place.
RETRY_LOADING_S = 10  # Retry-After of ShuttingDown (a restart may follow), and the upper limit for ModelLoading.


class ApiError(Exception):
    """An error response. If `code` is None, the response has the type as its code."""

    status = 400
    type = "invalid_request_error"
    code: str | None = None
    retry_after_s: int | None = None
    is_transient = False  # Whether another try may succeed at once.
    # Whether the text may have paths of this machine, as those of the system and of llama.cpp have. Clients get the
    # names of the files alone (`message`), the log gets the paths (`str(error)`).
    may_have_paths = False

    def __init_subclass__(cls, **attributes: Any) -> None:
        """Set class attributes, which are written as arguments: `class NotFound(ApiError, status=404)`."""
        for name, value in attributes.items():
            setattr(cls, name, value)

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = without_folders(message) if self.may_have_paths else message
        self.param = param
        self.code = code or self.code

    def __reduce__(self) -> tuple[Any, ...]:
        """For the way to another process: a copy has the same attributes, whatever the class takes as arguments."""
        return _copy_of_error, (type(self), self.args, vars(self))

    def body(self) -> dict[str, Any]:
        """The error object in OpenAI's format, for response bodies and for events of a stream."""
        code = self.code or self.type
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": code}}

    def headers(self) -> Mapping[str, str]:
        """Clients repeat a request after any status from 500 on, unless this header of OpenAI's server refuses that."""
        if self.retry_after_s is not None:
            return {"Retry-After": str(self.retry_after_s)}
        return {"X-Should-Retry": "false"} if self.status >= 500 and not self.is_transient else {}


def _copy_of_error(error_class: type[ApiError], args: tuple[Any, ...], attributes: dict[str, Any]) -> ApiError:
    error = error_class.__new__(error_class, *args)  # sets `args`
    vars(error).update(attributes)
    return error


class BadRequest(ApiError):
    """The request is invalid; `param` is the path of the field."""


class ContextLengthExceeded(BadRequest, code="context_length_exceeded"):
    """The prompt does not fit into the context. Agents search the message for a known phrase, then shorten history."""

    def __init__(self, message: str, param: str | None = None, *, n_tokens: int = 0, n_ctx: int = 0) -> None:
        super().__init__(message, param)
        # Of the prompt and of the context, for the messages of other interfaces; 0 if they are unknown.
        self.n_tokens = n_tokens
        self.n_ctx = n_ctx


class HttpError(ApiError):
    """The HTTP of the request is wrong, such as its key, path, method or framing."""

    def __init__(self, status: int, code: str | None, message: str, headers: Mapping[str, str] = {}) -> None:
        super().__init__(message, code=code)
        self.status = status
        self._headers = headers

    def headers(self) -> Mapping[str, str]:
        return {**super().headers(), **self._headers}


class NotFound(ApiError, status=404, code="not_found"):
    """There is no stored object with this id."""


class ModelNotFound(ApiError, status=404, type="model_not_found"):
    """No model of this name is served."""


class QueueFull(ApiError, status=429, type="rate_limit_error", code="queue_full", retry_after_s=RETRY_QUEUE_S):
    """The queue of waiting requests is full."""


class TooManyConnections(QueueFull, status=503, code="too_many_connections"):
    """The limit of open connections is reached."""


class InferenceError(ApiError, status=500, type="inference_error", may_have_paths=True):
    """The engine failed. `param` is None, since the request is not the cause."""


class OutOfResources(InferenceError, status=503, retry_after_s=RETRY_QUEUE_S, is_transient=True):
    """The machine has no memory, open file, process or thread left for this request."""


def out_of_resources(error: BaseException | None) -> OutOfResources | None:
    """The error response for an error of the machine; None for other errors."""
    if isinstance(error, OutOfResources):
        return error
    if isinstance(error, MemoryError):
        return OutOfResources(NO_MEMORY)
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        return OutOfResources(NO_THREADS)
    text = _BY_ERRNO.get(error.errno or 0) if isinstance(error, OSError) else None
    return None if text is None else OutOfResources(text)


class NotSupported(ApiError, status=501, code="not_supported"):
    """The served model does not support this; another model may."""


class UnusableAdapter(NotSupported, may_have_paths=True):
    """The adapter of a request could not be loaded."""


class ModelLoading(ApiError, status=503, type="model_loading"):
    """The model is loading, which takes about `left_s` seconds more."""

    def __init__(self, message: str, left_s: float) -> None:
        super().__init__(message, "model")
        self.retry_after_s = round(min(max(left_s, 1), RETRY_LOADING_S))


class ShuttingDown(ApiError, status=503, type="inference_error", code="shutting_down", retry_after_s=RETRY_LOADING_S):
    def __init__(self, message: str = "the server is shutting down") -> None:
        super().__init__(message)


def field_error(path: str, problem: str) -> BadRequest:
    """The error of the field at this path of the request."""
    return BadRequest(f"'{path}' {problem}", path)


@contextlib.contextmanager
def adding_field(path: str) -> Iterator[None]:
    """Add the path of a field of the request to the errors of the block that name none.

    The engine and the chat template do not know which field has the prompt, such as "messages".
    """
    try:
        yield
    except BadRequest as error:
        error.param = error.param or path
        raise


def item_path(name: str, items: Sequence[object], i: int) -> str:
    """The path of an item of a field, which is the field itself if it has one item."""
    return name if len(items) == 1 else f"{name}[{i}]"
