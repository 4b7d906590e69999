"""What a chat answer is made of: stream events, values and errors. Data only, no behaviour.

Every event has `type` (a fixed string), `choice_index` and `raw`: the payload it came with, None if it was
made at the end, and left out of comparison and repr. Snapshots live on the stream, not on the events.

    LocalChatError
    |- ConnectError          no connection, or it broke before any answer
    |- TimedOut              a clock ran out; `kind` is connect, first, idle, stall or total
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
    `- ProtocolError         not a chat answer at all; `head` shows how it begins

Errors that end an answer which had begun carry it in `partial`. Every error can be pickled, and none
contains the key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Union

__all__ = [
    "MessageStart",
    "ContentDelta",
    "ReasoningDelta",
    "RefusalDelta",
    "ToolCallDelta",
    "ToolCall",
    "Logprobs",
    "UsageEvent",
    "MessageStop",
    "WarningEvent",
    "ErrorEvent",
    "StreamEvent",
    "Usage",
    "Choice",
    "Reply",
    "LocalChatError",
    "ConnectError",
    "TimedOut",
    "Cancelled",
    "StatusError",
    "BadRequestError",
    "AuthenticationError",
    "PermissionDeniedError",
    "NotFoundError",
    "ConflictError",
    "UnprocessableError",
    "RateLimitError",
    "ServerError",
    "StreamError",
    "IncompleteStream",
    "ProtocolError",
]


@dataclass(frozen=True)
class Usage:
    """Token counts as the server gives them. None means that the server does not say (K15)."""

    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    raw: Any = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class MessageStart:
    """The first payload of the answer has come."""

    type: ClassVar[Literal["message_start"]] = "message_start"
    id: str | None = None
    model: str | None = None
    choice_index: int = 0
    raw: Any = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class ContentDelta:
    """A piece of the answer's text, never empty."""

    type: ClassVar[Literal["content_delta"]] = "content_delta"
    delta: str
    choice_index: int = 0
    raw: Any = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class ReasoningDelta:
    """A piece of what the model thinks before it answers, never empty."""

    type: ClassVar[Literal["reasoning_delta"]] = "reasoning_delta"
    delta: str
    choice_index: int = 0
    raw: Any = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class RefusalDelta:
    """A piece of the text with which the model declines, never empty."""

    type: ClassVar[Literal["refusal_delta"]] = "refusal_delta"
    delta: str
    choice_index: int = 0
    raw: Any = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class ToolCallDelta:
    """A piece of a call's arguments. `index` counts the calls of this choice; `id` may come late."""

    type: ClassVar[Literal["tool_call_delta"]] = "tool_call_delta"
    index: int
    id: str | None
    name: str
    delta: str
    choice_index: int = 0
    raw: Any = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class ToolCall:
    """A complete call. If its arguments are not a JSON object, `arguments` is None and `error` says why.

    `extra` holds members that the server wants back with the next request, unchanged.
    """

    type: ClassVar[Literal["tool_call"]] = "tool_call"
    id: str
    name: str
    arguments: dict[str, Any] | None
    arguments_json: str
    error: str | None = None
    index: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)
    choice_index: int = 0
    raw: Any = field(default=None, repr=False, compare=False)

    @property
    def status(self) -> Literal["succeeded", "failed"]:
        """Whether the arguments could be read (K18)."""
        return "succeeded" if self.error is None else "failed"


@dataclass(frozen=True)
class Logprobs:
    """Log probabilities of tokens: {token, logprob, bytes, top_logprobs} each (K26)."""

    type: ClassVar[Literal["logprobs"]] = "logprobs"
    items: tuple[Any, ...]
    choice_index: int = 0
    raw: Any = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class UsageEvent:
    """Token counts so far. They are cumulative: the last one holds, never add them up (K14)."""

    type: ClassVar[Literal["usage"]] = "usage"
    usage: Usage
    choice_index: int = 0
    raw: Any = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class MessageStop:
    """The last event of a choice, one for each.

    `reason` is stop, length, tool_calls, content_filter or error; `reason_raw` is the server's word;
    `inferred` says that the server gave none. `stop_reason` is the stop string or token that was hit,
    from the servers that tell (K12).
    """

    type: ClassVar[Literal["message_stop"]] = "message_stop"
    reason: str
    reason_raw: str | None = None
    inferred: bool = False
    stop_reason: Any = None
    choice_index: int = 0
    raw: Any = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class WarningEvent:
    """Something in the stream was off and has been repaired; `text` says how."""

    type: ClassVar[Literal["warning"]] = "warning"
    text: str
    choice_index: int = 0
    raw: Any = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class ErrorEvent:
    """The server reports a failure. A stream raises StreamError after it."""

    type: ClassVar[Literal["error"]] = "error"
    message: str
    error_type: str | None = None
    code: str | None = None
    param: str | None = None
    choice_index: int = 0
    raw: Any = field(default=None, repr=False, compare=False)


StreamEvent = Union[
    MessageStart,
    ContentDelta,
    ReasoningDelta,
    RefusalDelta,
    ToolCallDelta,
    ToolCall,
    Logprobs,
    UsageEvent,
    MessageStop,
    WarningEvent,
    ErrorEvent,
]


@dataclass(frozen=True)
class Choice:
    """One of the answers; there are several only when the request asks for `n` of them.

    `finish_reason` is None while the answer is under way. `reasoning_field` is the member in which the
    server sends reasoning, and in which it understands it when it is sent back.
    """

    index: int = 0
    text: str = ""
    reasoning: str = ""
    refusal: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str | None = None
    finish_reason_raw: str | None = None
    stop_reason: Any = None
    logprobs: tuple[Any, ...] = ()
    reasoning_field: str | None = None


@dataclass(frozen=True)
class Reply:
    """A whole answer, or what there is of it so far. `str(reply)` is the text of the first choice.

    `raw` is the JSON body; of a stream, its members outside `choices`, the last one of each name.
    """

    choices: tuple[Choice, ...] = ()
    id: str | None = None
    model: str | None = None
    usage: Usage | None = None
    warnings: tuple[str, ...] = ()
    request_id: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    raw: Any = field(default=None, repr=False, compare=False)

    @property
    def choice(self) -> Choice:
        """The first choice, empty if none has come."""
        return self.choices[0] if self.choices else Choice()

    @property
    def text(self) -> str:
        return self.choice.text

    @property
    def reasoning(self) -> str:
        return self.choice.reasoning

    @property
    def refusal(self) -> str:
        return self.choice.refusal

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        return self.choice.tool_calls

    @property
    def finish_reason(self) -> str | None:
        return self.choice.finish_reason

    @property
    def finish_reason_raw(self) -> str | None:
        return self.choice.finish_reason_raw

    def __str__(self) -> str:
        return self.text


class LocalChatError(Exception):
    """Base of every error that this package raises on purpose.

    Extras are keyword arguments with defaults, so that pickle can make the error from its message and
    then put the attributes back.
    """


class ConnectError(LocalChatError):
    """No connection could be made, or it broke before any answer."""


class _PartialError(LocalChatError):
    def __init__(self, message: str, *, partial: Reply | None = None) -> None:
        super().__init__(message)
        self.partial = partial


class TimedOut(_PartialError):
    """A clock ran out. `kind` names it: connect, first, idle, stall or total."""

    def __init__(self, message: str, *, kind: str = "", partial: Reply | None = None) -> None:
        super().__init__(message, partial=partial)
        self.kind = kind


class Cancelled(_PartialError):
    """The caller closed the stream while it was being read."""


class StatusError(LocalChatError):
    """The server answered with a status other than 2xx.

    `body` is the answer as text, cut if very long; `retry_after` is in seconds.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        error_type: str | None = None,
        code: str | None = None,
        param: str | None = None,
        retry_after: float | None = None,
        request_id: str | None = None,
        headers: Mapping[str, str] | None = None,
        body: str = "",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.error_type = error_type
        self.code = code
        self.param = param
        self.retry_after = retry_after
        self.request_id = request_id
        self.headers = dict(headers or {})
        self.body = body

    @staticmethod
    def class_for(status: int) -> type[StatusError]:
        """The class of the tree that stands for this status."""
        return _BY_STATUS.get(status, ServerError if status >= 500 else StatusError)


class BadRequestError(StatusError):
    """400: the request is wrong; `param` may name the member."""


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
    """429: too many requests; `retry_after` may say how long to wait."""


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
    """The server reported a failure in an answer that had begun (K5)."""

    def __init__(
        self,
        message: str,
        *,
        error_type: str | None = None,
        code: str | None = None,
        partial: Reply | None = None,
    ) -> None:
        super().__init__(message, partial=partial)
        self.error_type = error_type
        self.code = code


class IncompleteStream(_PartialError):
    """The answer ended without a finish reason and without [DONE]: it was cut."""


class ProtocolError(_PartialError):
    """What came is not a chat answer. `head` shows how it begins."""

    def __init__(self, message: str, *, head: str = "", partial: Reply | None = None) -> None:
        super().__init__(message, partial=partial)
        self.head = head
