"""The events of a stream and the values of a reply. Data only.

Every event has `type` (a fixed string), `choice_index` and `raw`, the payload that the event was parsed from, None if
the end of the stream made the event. `raw` is not compared and not in the repr.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, NoReturn, TypeVar, Union

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform

    from .errors import LocalChatError
else:

    def dataclass_transform(**options):
        return lambda cls: cls


_MISSING: Any = object()


@dataclass_transform(frozen_default=True)
class Frozen:
    """The base of values that are like frozen dataclasses. The module dataclasses takes 6 ms to import."""

    _fields: ClassVar[dict[str, Any]] = {}  # The fields with their defaults.
    # The fields that `==`, `repr` and `as_dict` leave out, and those that only `repr` and `as_dict` leave out.
    _uncompared: ClassVar[tuple[str, ...]] = ("raw",)
    _hidden: ClassVar[tuple[str, ...]] = ("headers",)
    __match_args__: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        names = tuple(name for name, kind in cls.__annotations__.items() if "ClassVar" not in kind)
        if names:  # A subclass without fields of its own has those of its base.
            cls._fields = {name: getattr(cls, name, _MISSING) for name in names}
            cls.__match_args__ = names  # type: ignore[misc]  # mypy cannot know the names.

    def __init__(self, *values: Any, **named: Any) -> None:
        given = {**dict(zip(self._fields, values)), **named}
        fields = {**self._fields, **given}
        if len(given) < len(values) + len(named) or len(fields) > len(self._fields) or _MISSING in fields.values():
            raise TypeError(f"{type(self).__name__} takes {', '.join(self._fields)}, not {values} and {named}")
        self.__dict__.update(fields)

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"cannot change {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"cannot delete {name!r}")

    def _compared(self) -> list[Any]:
        return [value for name, value in vars(self).items() if name not in self._uncompared]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Frozen) and type(self) is type(other) and self._compared() == other._compared()

    def __hash__(self) -> int:
        """The hash of the plain fields: a dict, such as the arguments of a call, has none."""
        plain = (str, int, float, type(None))
        return hash((type(self), *(value for value in self._compared() if isinstance(value, plain))))

    def _shown(self) -> dict[str, Any]:
        hidden = (*self._uncompared, *self._hidden)
        return {name: value for name, value in vars(self).items() if name not in hidden}

    def __repr__(self) -> str:
        shown = [f"{name}={value!r}" for name, value in self._shown().items()]
        return f"{type(self).__qualname__}({', '.join(shown)})"

    def as_dict(self) -> dict[str, Any]:
        """The fields as JSON, without `raw` and `headers`, and the `type` of an event."""
        kind = {"type": self.type} if hasattr(self, "type") else {}
        return {**kind, **{name: _json_ready(value) for name, value in self._shown().items()}}


def _json_ready(value: Any) -> Any:
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, Frozen):
        return value.as_dict()
    if isinstance(value, (list, tuple)):
        return [_json_ready(item) for item in value]
    if isinstance(value, Mapping):
        return {str(name): _json_ready(item) for name, item in value.items()}
    if isinstance(value, Exception):
        return f"{type(value).__name__}: {value}"
    from .schema.shapes import to_plain_json  # Only a parsed value needs it.

    return _json_ready(to_plain_json(value))


_Copied = TypeVar("_Copied", bound=Frozen)


def changed(value: _Copied, **fields: Any) -> _Copied:
    """A copy with other values for some fields."""
    return type(value)(**{**vars(value), **fields})


_EMPTY: Mapping[str, Any] = {}

# The type of `Reply.parsed`: None without a `response_format`. `Reply` without a parameter is Reply[Any].
if TYPE_CHECKING:
    from typing_extensions import TypeVar as _TypeVar

    Value = _TypeVar("Value", covariant=True, default=Any)
else:
    Value = TypeVar("Value", covariant=True)


class Usage(Frozen):
    """Token counts as the server reports them. None means that the server does not report the count."""

    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    raw: Any = None


class MessageStart(Frozen):
    """The first payload of the response has arrived."""

    type: ClassVar[Literal["message_start"]] = "message_start"
    id: str | None = None
    model: str | None = None
    choice_index: int = 0
    raw: Any = None


class _TextDelta(Frozen):
    delta: str
    choice_index: int = 0
    raw: Any = None

    def __init__(self, delta: str, choice_index: int = 0, raw: Any = None) -> None:
        # Written out, as most events are of these classes: the general __init__ takes several times as long.
        fields = self.__dict__
        fields["delta"], fields["choice_index"], fields["raw"] = delta, choice_index, raw


class ContentDelta(_TextDelta):
    """A piece of the text of the completion, never empty."""

    type: ClassVar[Literal["content_delta"]] = "content_delta"


class ReasoningDelta(_TextDelta):
    """A piece of the reasoning, never empty."""

    type: ClassVar[Literal["reasoning_delta"]] = "reasoning_delta"


class RefusalDelta(_TextDelta):
    """A piece of the text in which the model refuses the request, never empty."""

    type: ClassVar[Literal["refusal_delta"]] = "refusal_delta"


TEXT_DELTAS: dict[str, Any] = {"content": ContentDelta, "reasoning": ReasoningDelta, "refusal": RefusalDelta}


class ToolCallDelta(Frozen):
    """A piece of the arguments of a tool call."""

    type: ClassVar[Literal["tool_call_delta"]] = "tool_call_delta"
    index: int  # The number of the call in this choice.
    id: str | None  # None if the server has not sent it yet.
    name: str
    delta: str
    choice_index: int = 0
    raw: Any = None


class ToolCall(Frozen):
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
    extra: Mapping[str, Any] = _EMPTY
    choice_index: int = 0
    raw: Any = None

    @property
    def status(self) -> Literal["succeeded", "failed"]:
        """Whether the arguments could be parsed."""
        return "succeeded" if self.error is None else "failed"

    @property
    def member(self) -> dict[str, Any]:
        """The call as an element of `tool_calls` in the assistant's message of the next request."""
        text = self.arguments_json if self.arguments and self.error is None else "{}"
        function = {"name": self.name or "unknown", "arguments": text}
        return {**self.extra, "id": self.id, "type": "function", "function": function}


class Logprobs(Frozen):
    """Log probabilities of tokens: a dict {token, logprob, bytes, top_logprobs} for each."""

    type: ClassVar[Literal["logprobs"]] = "logprobs"
    items: tuple[Any, ...]
    choice_index: int = 0
    raw: Any = None


class Annotations(Frozen):
    """Annotations of the text, such as the sources that it cites: a dict for each, as the server sent it."""

    type: ClassVar[Literal["annotations"]] = "annotations"
    items: tuple[Any, ...]
    choice_index: int = 0
    raw: Any = None


class UsageEvent(Frozen):
    """Token counts so far. They are cumulative: use the last event, do not add the counts of several."""

    type: ClassVar[Literal["usage"]] = "usage"
    usage: Usage
    choice_index: int = 0
    raw: Any = None


class MessageStop(Frozen):
    """The last event of a choice."""

    type: ClassVar[Literal["message_stop"]] = "message_stop"
    reason: str  # stop, length, tool_calls, content_filter, error or unknown.
    reason_raw: str | None = None  # The finish reason that the server sent.
    inferred: bool = False  # Whether the server sent no finish reason.
    stop_reason: Any = None  # The stop string or token that ended the text; None if the server does not report it.
    choice_index: int = 0
    raw: Any = None


class WarningEvent(Frozen):
    """A defect of the stream that the client repaired; `text` describes it."""

    type: ClassVar[Literal["warning"]] = "warning"
    text: str
    choice_index: int = 0
    raw: Any = None


class ErrorEvent(Frozen):
    """The server reported an error. The stream raises StreamError after this event."""

    type: ClassVar[Literal["error"]] = "error"
    message: str
    error_type: str | None = None
    code: str | None = None
    param: str | None = None
    choice_index: int = 0
    raw: Any = None


_Delta = Union[ContentDelta, ReasoningDelta, RefusalDelta, ToolCallDelta]
_Parts = Union[ToolCall, Logprobs, Annotations]
StreamEvent = Union[MessageStart, _Delta, _Parts, UsageEvent, MessageStop, WarningEvent, ErrorEvent]


class Choice(Frozen):
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
    annotations: tuple[Any, ...] = ()  # Sources that the text cites, for example, as the server sent them.
    # Other fields of the message that the next request has to contain unchanged, such as signed reasoning.
    extra: Mapping[str, Any] = _EMPTY

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
        if self.tool_calls:
            message["tool_calls"] = [call.member for call in self.tool_calls]
        return message


class Reply(Frozen, Generic[Value]):
    """A complete response, or the part received so far. `str(reply)` is the text of the first choice."""

    choices: tuple[Choice, ...] = ()
    id: str | None = None
    model: str | None = None
    usage: Usage | None = None
    warnings: tuple[str, ...] = ()
    request_id: str | None = None
    headers: Mapping[str, str] = _EMPTY
    # The fields of the response. Of a stream, which `chat` requests too, those outside `choices`, each with its last
    # value: what `choices` had is in the attributes of `choices` above.
    raw: Any = None
    # The value of the text if `response_format` is a type or a schema, else None.
    parsed: Value = None  # type: ignore[assignment]  # Only calls without a response_format leave it out.
    # Of `map`: why the request failed. `choices` have what was received before; `text`, `parsed` and the like raise it.
    error: LocalChatError | None = None

    def _received(self, field: str) -> Any:
        if self.error is not None:
            raise self.error.with_traceback(None)
        return vars(self)[field]

    @property
    def choice(self) -> Choice:
        """The first choice; an empty one if none was received. Raises `error` if there is one."""
        choices: tuple[Choice, ...] = self._received("choices")
        return choices[0] if choices else Choice()

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


# A property has priority over the field of its name. It is set here, since the class body has the default of the field.
Reply.parsed = property(lambda reply: reply._received("parsed"))  # type: ignore[misc]
