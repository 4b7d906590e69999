"""What a chat answer is made of: stream events and values. Data only, no behaviour.

Every event has `type` (a fixed string), `choice_index` and `raw`: the payload it came with, None if it was
made at the end, and left out of comparison and repr. Snapshots live on the stream, not on the events.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar, Union

_Copied = TypeVar("_Copied", bound="Reply[Any] | ErrorEvent")


def changed(value: _Copied, **members: Any) -> _Copied:
    """A copy with other values for some fields: dataclasses.replace without loading dataclasses."""
    return type(value)(**{**vars(value), **members})


if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    # The classes below are frozen dataclasses in all that can be seen of them. The module that makes such
    # classes costs 6 ms to import and 0.3 ms for each class, more than all else in this package, so they are
    # made here; dataclasses.replace, fields and asdict load it when they are called.

    _NOT_SHOWN = ("raw", "headers")

    def dataclass(*, frozen):
        """What dataclasses.dataclass does, as far as it is needed: `raw` is not compared, nor shown."""
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
        copied = [name for name, value in defaults.items() if value == {}]  # What can be changed is not shared.

        def init(self, *values, **named):
            given = dict(zip(names, values), **named)
            wrong = [name for name in (*required, *given) if (name in given) != (name in names)]
            if wrong or len(given) < len(values) + len(named):
                what = ", ".join(wrong) or "one value is too many"
                raise TypeError(f"{cls.__name__} takes {', '.join(names)}; wrong or missing: {what}")
            members = self.__dict__
            members.update(blank)
            members.update(given)
            for name in copied:
                members[name] = dict(members[name])

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
        """`__dataclass_fields__` of a class, taken from a real dataclass of the same fields when it is read."""

        def __init__(self, cls):
            self._cls = cls

        def __get__(self, instance, owner):
            import dataclasses

            cls = self._cls
            members = {"__annotations__": cls.__annotations__, "__module__": cls.__module__}
            for name, default in _defaults(cls).items():
                kind = {"default_factory": dict} if default == {} else {"default": default}
                shown, compared = name not in _NOT_SHOWN, name != "raw"
                members[name] = dataclasses.field(**kind, repr=shown, compare=compared)
            twin = dataclasses.dataclass(frozen=True)(type(cls.__name__, (), members))
            cls.__dataclass_params__, cls.__dataclass_fields__ = twin.__dataclass_params__, twin.__dataclass_fields__
            return cls.__dataclass_fields__


_EMPTY: Mapping[str, Any] = {}

# The type of the value that a reply holds: None where none was asked for. `Reply` alone is Reply[Any].
if TYPE_CHECKING:
    from typing_extensions import TypeVar as _TypeVar

    Value = _TypeVar("Value", covariant=True, default=Any)
else:
    Value = TypeVar("Value", covariant=True)


@dataclass(frozen=True)
class Usage:
    """Token counts as the server gives them. None means that the server gives none."""

    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    raw: Any = None


@dataclass(frozen=True)
class MessageStart:
    """The first payload of the answer has come."""

    type: ClassVar[Literal["message_start"]] = "message_start"
    id: str | None = None
    model: str | None = None
    choice_index: int = 0
    raw: Any = None


@dataclass(frozen=True)
class ContentDelta:
    """A piece of the answer's text, never empty."""

    type: ClassVar[Literal["content_delta"]] = "content_delta"
    delta: str
    choice_index: int = 0
    raw: Any = None

    def __init__(self, delta: str, choice_index: int = 0, raw: Any = None) -> None:
        # By hand, as there is one for nearly every event: the general __init__ takes some times as long.
        members = self.__dict__
        members["delta"], members["choice_index"], members["raw"] = delta, choice_index, raw


@dataclass(frozen=True)
class ReasoningDelta:
    """A piece of the reasoning before the answer, never empty."""

    type: ClassVar[Literal["reasoning_delta"]] = "reasoning_delta"
    delta: str
    choice_index: int = 0
    raw: Any = None


@dataclass(frozen=True)
class RefusalDelta:
    """A piece of the text with which the model declines, never empty."""

    type: ClassVar[Literal["refusal_delta"]] = "refusal_delta"
    delta: str
    choice_index: int = 0
    raw: Any = None


@dataclass(frozen=True)
class ToolCallDelta:
    """A piece of a call's arguments. `index` counts the calls of this choice; `id` may come late."""

    type: ClassVar[Literal["tool_call_delta"]] = "tool_call_delta"
    index: int
    id: str | None
    name: str
    delta: str
    choice_index: int = 0
    raw: Any = None


@dataclass(frozen=True)
class ToolCall:
    """A complete call."""

    type: ClassVar[Literal["tool_call"]] = "tool_call"
    id: str
    name: str
    # None if they are not a JSON object, or not certain; then `error` is the reason.
    arguments: dict[str, Any] | None
    arguments_json: str
    error: str | None = None
    index: int = 0
    # Fields that the server wants back with the next request, unchanged.
    extra: Mapping[str, Any] = _EMPTY
    choice_index: int = 0
    raw: Any = None

    @property
    def status(self) -> Literal["succeeded", "failed"]:
        """Whether the arguments could be read."""
        return "succeeded" if self.error is None else "failed"

    @property
    def member(self) -> dict[str, Any]:
        """The call as it goes back to the server, in `tool_calls` of the assistant's message."""
        text = self.arguments_json if self.arguments and self.error is None else "{}"
        function = {"name": self.name or "unknown", "arguments": text}
        return {**self.extra, "id": self.id, "type": "function", "function": function}


@dataclass(frozen=True)
class Logprobs:
    """Log probabilities of tokens: {token, logprob, bytes, top_logprobs} each."""

    type: ClassVar[Literal["logprobs"]] = "logprobs"
    items: tuple[Any, ...]
    choice_index: int = 0
    raw: Any = None


@dataclass(frozen=True)
class UsageEvent:
    """Token counts so far. They are cumulative: the last one holds, never add them up."""

    type: ClassVar[Literal["usage"]] = "usage"
    usage: Usage
    choice_index: int = 0
    raw: Any = None


@dataclass(frozen=True)
class MessageStop:
    """The last event of a choice, one for each."""

    type: ClassVar[Literal["message_stop"]] = "message_stop"
    # stop, length, tool_calls, content_filter, error or unknown.
    reason: str
    # The server's word; `inferred` is set if it gave none.
    reason_raw: str | None = None
    inferred: bool = False
    # The stop string or token that was hit, from the servers that report it.
    stop_reason: Any = None
    choice_index: int = 0
    raw: Any = None


@dataclass(frozen=True)
class WarningEvent:
    """Something in the stream was wrong and has been repaired, as `text` describes."""

    type: ClassVar[Literal["warning"]] = "warning"
    text: str
    choice_index: int = 0
    raw: Any = None


@dataclass(frozen=True)
class ErrorEvent:
    """The server reports a failure. A stream raises StreamError after it."""

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
    """One of the answers; there are several only when the request asks for `n` of them."""

    index: int = 0
    text: str = ""
    reasoning: str = ""
    refusal: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    # None while the answer is under way.
    finish_reason: str | None = None
    finish_reason_raw: str | None = None
    stop_reason: Any = None
    logprobs: tuple[Any, ...] = ()
    # The field in which the server sends reasoning, and reads it when it is sent back.
    reasoning_field: str | None = None

    @property
    def message(self) -> dict[str, Any]:
        """The choice as a message, to be sent back with the next request.

        Reasoning goes back under the name it came with; what was between tags in the content has none, and
        templates do not want it back. Arguments that are no JSON object would make servers refuse the whole
        request, so they go back as none.
        """
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.reasoning and self.reasoning_field:
            details = self.reasoning_field == "reasoning_details"  # A list, of which we have the text.
            message["reasoning" if details else self.reasoning_field] = self.reasoning
        if self.refusal:
            message["refusal"] = self.refusal
        if self.tool_calls:
            message["tool_calls"] = [call.member for call in self.tool_calls]
        return message


@dataclass(frozen=True)
class Reply(Generic[Value]):
    """A whole answer, or what there is of it so far. `str(reply)` is the text of the first choice."""

    choices: tuple[Choice, ...] = ()
    id: str | None = None
    model: str | None = None
    usage: Usage | None = None
    warnings: tuple[str, ...] = ()
    request_id: str | None = None
    headers: Mapping[str, str] = _EMPTY
    # The JSON body; of a stream, its fields outside `choices`, the last one of each name.
    raw: Any = None
    # The value that the text holds, where the `response_format` of the call names a type or a schema.
    parsed: Value = None  # type: ignore[assignment]  # Only calls without a response_format leave it out.

    @property
    def choice(self) -> Choice:
        """The first choice, empty if none has come."""
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
        """Whether the answer ended at a limit of tokens, and not where the model would have ended it."""
        return self.finish_reason == "length"

    def __str__(self) -> str:
        return self.text
