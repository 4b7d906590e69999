"""Every error that the client raises on purpose.

    LocalChatError
    |- ConnectError          no connection, or it broke before any answer
    |- TimedOut              a timeout ran out; `kind` is connect, first, idle, stall or total
    |- Cancelled             closed by the caller
    |- StatusError           the server answered no: `status`, `code`, `param`, `retry_after`, `body`
    |  |- BadRequestError        400
    |  |- AuthenticationError    401
    |  |- PermissionDeniedError  403
    |  |- NotFoundError          404
    |  |- ConflictError          409
    |  |- UnprocessableError     422
    |  |- RateLimitError         429
    |  `- ServerError            500 and above
    |- StreamError           the server reported a failure in an answer that had begun
    |- IncompleteStream      the answer was cut
    |- ProtocolError         not a chat answer at all; `head` shows how it begins
    |- DoesNotFit            a whole answer, but not what its `response_format` asked for, at `path`
    |- IncompleteReply       an answer that a limit of tokens or a filter cut; only from the function `chat`
    |- ModelNotNamed         the server has several models, and the call names none
    `- TooManyRounds         the model kept calling tools

Errors that end an answer which had begun carry it in `partial`. Every error can be pickled, and none
contains the key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .events import Reply

_EMPTY: Mapping[str, Any] = {}

# How much of an unexpected body goes into an error message.
_HEAD_CHARS = 200


def cut(text: str, limit: int = _HEAD_CHARS) -> str:
    """`text` on one line and no longer than `limit`, for a message."""
    line = " ".join(text[: limit * 4].split())
    return line if len(line) <= limit else line[:limit] + "..."


class LocalChatError(Exception):
    """Base of every error that this package raises on purpose.

    Everything besides the message is an attribute, given by name, with a default.
    """

    def __init__(self, message: str = "", **members: Any) -> None:
        super().__init__(message)
        unknown = [name for name in members if not hasattr(type(self), name)]
        if unknown:
            raise TypeError(f"{type(self).__name__} has no {', '.join(unknown)}")
        vars(self).update(members)


class ConnectError(LocalChatError):
    """No connection could be made, or it broke before any answer."""


class _PartialError(LocalChatError):
    partial: Reply[Any] | None = None


class TimedOut(_PartialError):
    """A timeout ran out."""

    # Which: connect, first, idle, stall or total.
    kind: str = ""


class Cancelled(_PartialError):
    """The caller closed the stream while it was being read."""


class StatusError(LocalChatError):
    """The server answered with a status other than 2xx."""

    status: int = 0
    error_type: str | None = None
    code: str | None = None
    param: str | None = None
    # In seconds.
    retry_after: float | None = None
    request_id: str | None = None
    headers: Mapping[str, str] = _EMPTY
    # The body as text, cut if it is long.
    body: str = ""

    @staticmethod
    def class_for(status: int) -> type[StatusError]:
        """The class of the tree that stands for this status."""
        return _BY_STATUS.get(status, ServerError if status >= 500 else StatusError)


class BadRequestError(StatusError):
    """400: the request is wrong; `param` may name the field."""


class AuthenticationError(StatusError):
    """401: the key is missing or wrong."""


class PermissionDeniedError(StatusError):
    """403: the key may not do this."""


class NotFoundError(StatusError):
    """404: no such path or no such model."""


class ConflictError(StatusError):
    """409: try again."""


class UnprocessableError(StatusError):
    """422: the request is wrong in the eyes of a server that checks types."""


class RateLimitError(StatusError):
    """429: too many requests; `retry_after` may hold how long to wait."""


class ServerError(StatusError):
    """500 and above: the server failed, or is not ready yet."""


_BY_STATUS: dict[int, type[StatusError]] = {
    400: BadRequestError,
    401: AuthenticationError,
    403: PermissionDeniedError,
    404: NotFoundError,
    409: ConflictError,
    422: UnprocessableError,
    429: RateLimitError,
}


class StreamError(_PartialError):
    """The server reported a failure in an answer that had begun."""

    error_type: str | None = None
    code: str | None = None


class IncompleteStream(_PartialError):
    """The answer ended without a finish reason and without [DONE]: it was cut."""


class ProtocolError(_PartialError):
    """What came is not a chat answer."""

    # How it begins.
    head: str = ""


class DoesNotFit(_PartialError):
    """A value is not what its schema demands."""

    # Where in the value.
    path: str = "$"
    # The raw text of an answer.
    text: str = ""


class IncompleteReply(_PartialError):
    """A limit of tokens that the caller had not set, or a content filter, cut the answer. `partial` holds it."""


class ModelNotNamed(LocalChatError):
    """The server has several models and the call names none; the message lists them."""


class TooManyRounds(_PartialError):
    """The model called tools in every round that it was given. The last calls, in `partial`, were not run."""
