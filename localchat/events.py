"""The events of a stream and the values of a reply. Data only.

Every event has `type` (a fixed string), `choice_index` and `raw`. `raw` is the payload that the event was parsed from,
None if the end of the stream made the event; it is not compared and not in the repr. The reply received so far is an
attribute of the stream, not of the events.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar, Union

_Copied = TypeVar("_Copied", bound="Reply[Any] | ErrorEvent")


def changed(value: _Copied, **fields: Any) -> _Copied:
    """A copy with other values for some fields: dataclasses.replace without an import of dataclasses."""
    return type(value)(**{**vars(value), **fields})


if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    # The classes below behave like frozen dataclasses, also for dataclasses.replace, fields and asdict. The module
    # dataclasses takes 6 ms to import and 0.3 ms for each class, more than the rest of this package, so the code here
    # makes the classes. The module is imported only if a program uses it.

    _NOT_SHOWN = ("raw", "headers")

    def dataclass(*, frozen):
        """The part of dataclasses.dataclass that is used here; `raw` is not compared and not shown."""
        return _finish_class

    def _finish_class(cls):
        cls.__match_args__ = tuple(name for name, kind in cls.__annotations__.items() if "ClassVar" not in kind)
        cls.__dataclass_fields__ = _LateFields(cls)
        cls.__init__, cls.__replace__ = vars(cls).get("__init__") or _init_of(cls), changed
        cls.__setattr__ = cls.__delattr__ = _refuse
        cls.__eq__, cls.__hash__, cls.__repr__ = _equals, _hash, _show
        return cls

    def _defaults(cls):
        return {name: vars(cls)[name] for name in cls.__match_args__ if name in vars(cls)}

    def _init_of(cls):
        names, defaults = cls.__match_args__, _defaults(cls)
        required = names[: len(names) - len(defaults)]
        blank = {**dict.fromkeys(required), **defaults}
        copied = [name for name, value in defaults.items() if value == {}]  # Instances do not share a dict.

        def init(self, *values, **named):
            given = dict(zip(names, values), **named)
            wrong = [name for name in (*required, *given) if (name in given) != (name in names)]
            if wrong or len(given) < len(values) + len(named):
                what = ", ".join(wrong) or "one value is too many"
                raise TypeError(f"{cls.__name__} takes {', '.join(names)}; wrong or missing: {what}")
            fields = self.__dict__
            fields.update(blank)
            fields.update(given)
            for name in copied:
                fields[name] = dict(fields[name])

        return init

    def _refuse(self, name, *value):
        from dataclasses import FrozenInstanceError

        raise FrozenInstanceError(f"cannot change {name!r}")

    def _compared(self):
        return [value for name, value in vars(self).items() if name != "raw"]

    def _equals(self, other):
        return _compared(self) == _compared(other) if type(self) is type(other) else NotImplemented

    def _hash(self):
        return hash((type(self), *_compared(self)))

    def _show(self):
        shown = [f"{name}={value!r}" for name, value in vars(self).items() if name not in _NOT_SHOWN]
        return f"{type(self).__qualname__}({', '.join(shown)})"

    class _LateFields:
        """`__dataclass_fields__` of a class; the first access makes a real dataclass with the same fields."""

        def __init__(self, cls):
            self._cls = cls

        def __get__(self, instance, owner):
            import dataclasses

            cls = self._cls
            namespace = {"__annotations__": cls.__annotations__, "__module__": cls.__module__}
            for name, default in _defaults(cls).items():
                kind = {"default_factory": dict} if default == {} else {"default": default}
                shown, compared = name not in _NOT_SHOWN, name != "raw"
                namespace[name] = dataclasses.field(**kind, repr=shown, compare=compared)
            real = dataclasses.dataclass(frozen=True)(type(cls.__name__, (), namespace))
            cls.__dataclass_params__, cls.__dataclass_fields__ = real.__dataclass_params__, real.__dataclass_fields__
            return cls.__dataclass_fields__


_EMPTY: Mapping[str, Any] = {}

# The type of `Reply.parsed`: None without a `response_format`. `Reply` without a parameter is Reply[Any].
if TYPE_CHECKING:
    from typing_extensions import TypeVar as _TypeVar

    Value = _TypeVar("Value", covariant=True, default=Any)
else:
    Value = TypeVar("Value", covariant=True)


@dataclass(frozen=True)
class Usage:
    """Token counts as the server reports them. None means that the server does not report the count."""

    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    raw: Any = None


@dataclass(frozen=True)
class MessageStart:
    """The first payload of the response has arrived."""

    type: ClassVar[Literal["message_start"]] = "message_start"
    id: str | None = None
    model: str | None = None
    choice_index: int = 0
    raw: Any = None


@dataclass(frozen=True)
class ContentDelta:
    """A piece of the text of the completion, never empty."""

    type: ClassVar[Literal["content_delta"]] = "content_delta"
    delta: str
    choice_index: int = 0
    raw: Any = None

    def __init__(self, delta: str, choice_index: int = 0, raw: Any = None) -> None:
        # Written out, as most events are of this class: the general __init__ takes several times as long.
        fields = self.__dict__
        fields["delta"], fields["choice_index"], fields["raw"] = delta, choice_index, raw


@dataclass(frozen=True)
class ReasoningDelta:
    """A piece of the reasoning, never empty."""

    type: ClassVar[Literal["reasoning_delta"]] = "reasoning_delta"
    delta: str
    choice_index: int = 0
    raw: Any = None


@dataclass(frozen=True)
class RefusalDelta:
    """A piece of the text in which the model refuses the request, never empty."""

    type: ClassVar[Literal["refusal_delta"]] = "refusal_delta"
    delta: str
    choice_index: int = 0
    raw: Any = None


@dataclass(frozen=True)
class ToolCallDelta:
    """A piece of the arguments of a tool call."""

    type: ClassVar[Literal["tool_call_delta"]] = "tool_call_delta"
    # The number of the call in this choice.
    index: int
    # None if the server has not sent it yet.
    id: str | None
    name: str
    delta: str
    choice_index: int = 0
    raw: Any = None


@dataclass(frozen=True)
class ToolCall:
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


@dataclass(frozen=True)
class Logprobs:
    """Log probabilities of tokens: a dict {token, logprob, bytes, top_logprobs} for each."""

    type: ClassVar[Literal["logprobs"]] = "logprobs"
    items: tuple[Any, ...]
    choice_index: int = 0
    raw: Any = None


@dataclass(frozen=True)
class UsageEvent:
    """Token counts so far. They are cumulative: use the last event, do not add the counts of several."""

    type: ClassVar[Literal["usage"]] = "usage"
    usage: Usage
    choice_index: int = 0
    raw: Any = None


@dataclass(frozen=True)
class MessageStop:
    """The last event of a choice."""

    type: ClassVar[Literal["message_stop"]] = "message_stop"
    # stop, length, tool_calls, content_filter, error or unknown.
    reason: str
    # The finish reason that the server sent.
    reason_raw: str | None = None
    # Whether the server sent no finish reason.
    inferred: bool = False
    # The stop string or token that ended the text; None if the server does not report it.
    stop_reason: Any = None
    choice_index: int = 0
    raw: Any = None


@dataclass(frozen=True)
class WarningEvent:
    """A defect of the stream that the client repaired; `text` describes it."""

    type: ClassVar[Literal["warning"]] = "warning"
    text: str
    choice_index: int = 0
    raw: Any = None


@dataclass(frozen=True)
class ErrorEvent:
    """The server reported an error. The stream raises StreamError after this event."""

    type: ClassVar[Literal["error"]] = "error"
    message: str
    error_type: str | None = None
    code: str | None = None
    param: str | None = None
    choice_index: int = 0
    raw: Any = None


_Delta = Union[ContentDelta, ReasoningDelta, RefusalDelta, ToolCallDelta]
StreamEvent = Union[MessageStart, _Delta, ToolCall, Logprobs, UsageEvent, MessageStop, WarningEvent, ErrorEvent]


@dataclass(frozen=True)
class Choice:
    """One completion; a reply has several only if the request sets `n`."""

    index: int = 0
    text: str = ""
    reasoning: str = ""
    refusal: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    # None until the choice has ended.
    finish_reason: str | None = None
    finish_reason_raw: str | None = None
    stop_reason: Any = None
    logprobs: tuple[Any, ...] = ()
    # The field in which the server sends reasoning and accepts it in the next request; None if there was none.
    reasoning_field: str | None = None

    @property
    def message(self) -> dict[str, Any]:
        """The choice as a message for the next request.

        Reasoning is sent in the field in which it was received. Reasoning from tags in the content has no field and
        is left out, as templates do. Arguments that are not a JSON object are sent as `{}`, since a server would
        refuse the whole request.
        """
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.reasoning and self.reasoning_field:
            is_list = self.reasoning_field == "reasoning_details"  # Only the text of its items is known.
            message["reasoning" if is_list else self.reasoning_field] = self.reasoning
        if self.refusal:
            message["refusal"] = self.refusal
        if self.tool_calls:
            message["tool_calls"] = [call.member for call in self.tool_calls]
        return message


@dataclass(frozen=True)
class Reply(Generic[Value]):
    """A complete response, or the part received so far. `str(reply)` is the text of the first choice."""

    choices: tuple[Choice, ...] = ()
    id: str | None = None
    model: str | None = None
    usage: Usage | None = None
    warnings: tuple[str, ...] = ()
    request_id: str | None = None
    headers: Mapping[str, str] = _EMPTY
    # The JSON body. For a stream: the fields outside `choices`, each with its last value.
    raw: Any = None
    # The value of the text if `response_format` is a type or a schema, else None.
    parsed: Value = None  # type: ignore[assignment]  # Only calls without a response_format leave it out.

    @property
    def choice(self) -> Choice:
        """The first choice; an empty one if none was received."""
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
