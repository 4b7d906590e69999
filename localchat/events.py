"""The events of a stream and the values of a reply. Data only.

All are frozen dataclasses. Every event has `type` (a fixed string), `choice_index` and `raw`, the payload that the
event was parsed from, None if the end of the stream made the event. `raw` is neither compared nor in the repr.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar, Union

if TYPE_CHECKING:
    from .errors import LocalChatError

# The type of `Reply.parsed`: None without a `response_format`. `Reply` without a parameter is Reply[Any].
if TYPE_CHECKING:
    from typing_extensions import TypeVar as _TypeVar

    Value = _TypeVar("Value", covariant=True, default=Any)
else:
    Value = TypeVar("Value", covariant=True)


class Record:
    """The base of the dataclasses here. It has their comparison and repr, and their form as JSON.

    A field with `compare=False` is in none of these but the repr: it has what the server sent, in its own form.

    If each class had a comparison and a repr of its own, the import would take 2 ms longer.
    """

    def _all_fields(self) -> tuple[Field[Any], ...]:
        return fields(self)  # type: ignore[arg-type]  # Every subclass is a dataclass.

    def _compared(self) -> dict[str, Any]:
        return {item.name: getattr(self, item.name) for item in self._all_fields() if item.compare}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Record) and type(self) is type(other) and self._compared() == other._compared()

    def __hash__(self) -> int:
        """The hash of the plain fields: a dict, such as the arguments of a call, has none."""
        plain = (str, int, float, bytes, type(None))
        return hash((type(self), *(value for value in self._compared().values() if isinstance(value, plain))))

    def __repr__(self) -> str:
        shown = [f"{item.name}={getattr(self, item.name)!r}" for item in self._all_fields() if item.repr]
        return f"{type(self).__qualname__}({', '.join(shown)})"

    def as_dict(self) -> dict[str, Any]:
        """The fields as JSON, and the `type` of an event. Bytes are base64.

        The fields that are not compared are left out: `raw`, `headers`, and the value of a ToolResult.
        """
        values = {name: _json_ready(value) for name, value in self._compared().items()}
        return {"type": self.type, **values} if hasattr(self, "type") else values


def _json_ready(value: Any) -> Any:
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, Record):
        return value.as_dict()
    if isinstance(value, (list, tuple)):
        return [_json_ready(item) for item in value]
    if isinstance(value, Mapping):
        return {str(name): _json_ready(item) for name, item in value.items()}
    if isinstance(value, bytes):
        import base64  # Only replies with sound need it.

        return base64.b64encode(value).decode()
    if isinstance(value, Exception):
        return f"{type(value).__name__}: {value}"
    from .schema.shapes import to_plain_json  # Only a parsed value needs it.

    return _json_ready(to_plain_json(value))


@dataclass(frozen=True, repr=False, eq=False)
class Usage(Record):
    """Token counts as the server reports them. None means that the server does not report the count."""

    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    raw: Any = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, repr=False, eq=False)
class MessageStart(Record):
    """The response has begun. It is made from the first payload that has an id, a model or a choice."""

    type: ClassVar[Literal["message_start"]] = "message_start"
    id: str | None = None
    model: str | None = None
    choice_index: int = 0
    raw: Any = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, init=False, repr=False, eq=False)
class _TextDelta(Record):
    """The base of events with a piece of text."""

    delta: str
    choice_index: int = 0
    raw: Any = field(default=None, compare=False, repr=False)

    def __init__(self, delta: str, choice_index: int = 0, raw: Any = None) -> None:
        # Most events are of these classes. The __init__ of a frozen dataclass takes twice as long.
        values = self.__dict__
        values["delta"], values["choice_index"], values["raw"] = delta, choice_index, raw


class ContentDelta(_TextDelta):
    """A piece of the text of the completion, never empty."""

    type: ClassVar[Literal["content_delta"]] = "content_delta"


class ReasoningDelta(_TextDelta):
    """A piece of the reasoning, never empty."""

    type: ClassVar[Literal["reasoning_delta"]] = "reasoning_delta"


class RefusalDelta(_TextDelta):
    """A piece of the text in which the model refuses the request, never empty."""

    type: ClassVar[Literal["refusal_delta"]] = "refusal_delta"


@dataclass(frozen=True, repr=False, eq=False)
class AudioDelta(Record):
    """A piece of the sound of the completion, of the text that is spoken, or of both."""

    type: ClassVar[Literal["audio_delta"]] = "audio_delta"
    data: bytes = field(default=b"", repr=False)  # Bytes of the sound, in the format of the option `audio`.
    transcript: str = ""
    choice_index: int = 0
    raw: Any = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, repr=False, eq=False)
class ToolCallDelta(Record):
    """A piece of the arguments of a tool call."""

    type: ClassVar[Literal["tool_call_delta"]] = "tool_call_delta"
    index: int  # The number of the call in this choice.
    id: str | None  # None if the server has not sent it yet.
    name: str
    delta: str
    choice_index: int = 0
    raw: Any = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, repr=False, eq=False)
class ToolCall(Record):
    """A complete tool call."""

    type: ClassVar[Literal["tool_call"]] = "tool_call"
    id: str
    name: str
    # None if they are not a JSON object, or if the stream is ambiguous; then `error` is the reason.
    arguments: dict[str, Any] | None
    arguments_json: str
    error: str | None = None
    index: int = 0
    # Other fields of the call, which some servers require back unchanged in the next request.
    extra: Mapping[str, Any] = field(default_factory=dict)
    choice_index: int = 0
    raw: Any = field(default=None, compare=False, repr=False)

    @property
    def request_item(self) -> dict[str, Any]:
        """The call as an element of `tool_calls` in the assistant's message of the next request."""
        text = self.arguments_json if self.arguments and self.error is None else "{}"
        others = self.extra.get("function")
        function = {**(others if isinstance(others, dict) else {}), "name": self.name or "unknown", "arguments": text}
        return {**self.extra, "id": self.id, "type": "function", "function": function}


@dataclass(frozen=True, repr=False, eq=False)
class _Items(Record):
    """The base of events with items that are dicts of the server."""

    items: tuple[Any, ...]
    choice_index: int = 0
    raw: Any = field(default=None, compare=False, repr=False)


class Logprobs(_Items):
    """Log probabilities of tokens: a dict {token, logprob, bytes, top_logprobs} for each."""

    type: ClassVar[Literal["logprobs"]] = "logprobs"


class Annotations(_Items):
    """Annotations of the text, such as the sources that it cites: a dict for each, as the server sent it."""

    type: ClassVar[Literal["annotations"]] = "annotations"


@dataclass(frozen=True, repr=False, eq=False)
class UsageEvent(Record):
    """Token counts so far. They are cumulative: use the last event, do not add the counts of several."""

    type: ClassVar[Literal["usage"]] = "usage"
    usage: Usage
    choice_index: int = 0
    raw: Any = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, repr=False, eq=False)
class MessageStop(Record):
    """The last event of a choice."""

    type: ClassVar[Literal["message_stop"]] = "message_stop"
    reason: str  # stop, length, tool_calls, content_filter, error or unknown.
    reason_raw: str | None = None  # The finish reason that the server sent.
    inferred: bool = False  # Whether the server sent no finish reason.
    # The stop string or token that ended the text; None if the server does not report it.
    stop_reason: Any = None
    choice_index: int = 0
    raw: Any = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, repr=False, eq=False)
class WarningEvent(Record):
    """A defect of the stream that the client repaired; `text` describes it."""

    type: ClassVar[Literal["warning"]] = "warning"
    text: str
    choice_index: int = 0
    raw: Any = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, repr=False, eq=False)
class ErrorEvent(Record):
    """The server reported an error. The stream raises StreamError after this event."""

    type: ClassVar[Literal["error"]] = "error"
    message: str
    error_type: str | None = None
    code: str | None = None
    param: str | None = None
    choice_index: int = 0
    raw: Any = field(default=None, compare=False, repr=False)


_Delta = Union[ContentDelta, ReasoningDelta, RefusalDelta, AudioDelta, ToolCallDelta]
_Parts = Union[ToolCall, Logprobs, Annotations]
StreamEvent = Union[MessageStart, _Delta, _Parts, UsageEvent, MessageStop, WarningEvent, ErrorEvent]


@dataclass(frozen=True, repr=False, eq=False)
class Audio(Record):
    """The sound of a completion."""

    id: str | None = None  # The name of the sound in the next request; None if the server sent none.
    data: bytes = field(default=b"", repr=False)  # The sound, in the format of the option `audio`.
    transcript: str = ""  # The text that is spoken.
    expires_at: int | None = None  # When the server forgets the id, in seconds of Unix time; None if it sent none.


@dataclass(frozen=True, repr=False, eq=False)
class Choice(Record):
    """One completion; a reply has several only if the request sets `n`."""

    index: int = 0
    text: str = ""
    reasoning: str = ""
    refusal: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str | None = None  # None until the choice has ended.
    finish_reason_raw: str | None = None
    stop_reason: Any = None
    logprobs: tuple[Any, ...] = ()
    # The field in which the server sends reasoning and accepts it in the next request; None if there was none.
    reasoning_field: str | None = None
    # Sources that the text cites, for example, as the server sent them.
    annotations: tuple[Any, ...] = ()
    audio: Audio | None = None  # The sound of the completion; None if there is none.
    # Other fields of the message that the next request has to contain unchanged, such as signed reasoning.
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def message(self) -> dict[str, Any]:
        """The choice as a message for the next request, with reasoning in the field in which it was received.

        Reasoning from tags is left out, as templates do; arguments that are not a JSON object are sent as `{}`.
        """
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.reasoning and self.reasoning_field:
            message[self.reasoning_field] = self.reasoning
        message.update(self.extra)
        if self.refusal:
            message["refusal"] = self.refusal
        if self.audio is not None and self.audio.id is not None:
            message["audio"] = {"id": self.audio.id}
        if self.tool_calls:
            message["tool_calls"] = [call.request_item for call in self.tool_calls]
        return message


@dataclass(frozen=True, repr=False, eq=False)
class Reply(Record, Generic[Value]):
    """A complete response, or the part received so far. `str(reply)` is the text of the first choice."""

    choices: tuple[Choice, ...] = ()
    id: str | None = None
    model: str | None = None
    usage: Usage | None = None
    warnings: tuple[str, ...] = ()
    request_id: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    # The fields of the response. For a stream, which `chat` requests too, these are the fields outside `choices`, each
    # with its last value, and in `choices` only those fields that the client does not read.
    raw: Any = field(default=None, compare=False, repr=False)
    # The value of the text if `response_format` is a type or a schema, else None.
    parsed: Value = None  # type: ignore[assignment]  # Value is None if it is left out: without a response_format.
    # Of `map`: why the request failed; None if it did not. `choices` have what was received before the error.
    error: LocalChatError | None = None

    @property
    def choice(self) -> Choice:
        """The first choice; an empty one if none was received.

        Raises `error` if there is one, and so do the properties below: a part of a text would look like all of it.
        """
        if self.error is not None:
            raise self.error.with_traceback(None)
        return self.choices[0] if self.choices else Choice()

    @property
    def text(self) -> str:
        return self.choice.text

    @property
    def message(self) -> dict[str, Any]:
        return self.choice.message

    @property
    def reasoning(self) -> str:
        return self.choice.reasoning

    @property
    def refusal(self) -> str:
        return self.choice.refusal

    @property
    def audio(self) -> Audio | None:
        return self.choice.audio

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        return self.choice.tool_calls

    @property
    def finish_reason(self) -> str | None:
        return self.choice.finish_reason

    @property
    def finish_reason_raw(self) -> str | None:
        return self.choice.finish_reason_raw

    @property
    def truncated(self) -> bool:
        """Whether a token limit cut the completion."""
        return self.finish_reason == "length"

    def __str__(self) -> str:
        return self.text
