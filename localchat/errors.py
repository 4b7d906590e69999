"""Every error that the client raises on purpose. docs/errors.md has the tree.

    LocalChatError
        ConnectError, ModelNotNamed            no response
        TimedOut                               no response, or a response that is not complete
        StatusError                            a status other than 2xx; subclasses for some statuses
        StreamError, IncompleteStream, ProtocolError, Cancelled
                                               a response that is not complete
        IncompleteReply, DoesNotFit, TooManyRounds
                                               a complete response that must not be used as it is

An error during or after a response has the part received so far as `partial`. Every error can be pickled, and none
contains the key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .events import Reply

_EMPTY: Mapping[str, Any] = {}


class LocalChatError(Exception):
    """Base of all errors. Subclasses declare their attributes with defaults; keyword arguments set them."""

    def __init__(self, message: str = "", **attributes: Any) -> None:
        super().__init__(message)
        unknown = [name for name in attributes if not hasattr(type(self), name)]
        if unknown:
            raise TypeError(f"{type(self).__name__} has no {', '.join(unknown)}")
        vars(self).update(attributes)


class ConnectError(LocalChatError, ConnectionError):
    """No connection could be made, or it broke before any byte of the response."""


class _PartialError(LocalChatError):
    partial: Reply[Any] | None = None  # The part received so far.


class TimedOut(_PartialError, TimeoutError):
    """A timeout expired."""

    kind: str = ""  # The field of Timeout: connect, first, idle, stall or total.


class Cancelled(_PartialError):
    """The program closed the stream before its end, or interrupted a read of it (Ctrl-C, a cancelled task)."""


class StatusError(LocalChatError):
    """The server returned a status other than 2xx."""

    status: int = 0
    error_type: str | None = None
    code: str | None = None
    param: str | None = None
    retry_after: float | None = None  # Seconds; None if the server does not send it.
    request_id: str | None = None
    headers: Mapping[str, str] = _EMPTY
    body: str = ""  # The body as text, cut if it is long.

    @staticmethod
    def class_for(status: int) -> type[StatusError]:
        """Return the error class of this status."""
        return _BY_STATUS.get(status, ServerError if status >= 500 else StatusError)


class BadRequestError(StatusError):
    """400: the request is wrong; `param` may name the field."""


class AuthenticationError(StatusError):
    """401: the key is missing or wrong."""


class PermissionDeniedError(StatusError):
    """403: the key has no permission for this request."""


class NotFoundError(StatusError):
    """404: no such path or no such model."""


class ConflictError(StatusError):
    """409: a conflict with another request; a retry may succeed."""


class UnprocessableError(StatusError):
    """422: the server's validation refused the request."""


class RateLimitError(StatusError):
    """429: too many requests; `retry_after` may be the seconds to wait."""


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
    """The server reported an error after the response had begun."""

    error_type: str | None = None
    code: str | None = None


class IncompleteStream(_PartialError):
    """The response ended without a finish reason and without [DONE]: it was cut."""


class ProtocolError(_PartialError):
    """The response is not a chat completion."""

    head: str = ""  # The beginning of the response.


class DoesNotFit(_PartialError):
    """A value does not match its schema."""

    path: str = "$"  # The place in the value, as a JSONPath.
    text: str = ""  # The text of the completion.


class IncompleteReply(_PartialError):
    """A content filter, or a token limit that the call did not set, cut the completion.

    Typed output raises it for every limit: a text that was cut has no value.
    """

    partial: Reply[Any]  # Always set.


class ModelNotNamed(LocalChatError):
    """The server has several models and the call names none; the message lists them."""


class TooManyRounds(_PartialError):
    """The model still called tools in the last of `max_rounds` rounds. These calls, in `partial`, were not run."""

    partial: Reply[Any]  # Always set.
