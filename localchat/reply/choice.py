"""Assembly of one choice: its deltas and messages become events and a Choice. No I/O."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from ..events import (
    Annotations,
    AudioDelta,
    Choice,
    Logprobs,
    MessageStop,
    StreamEvent,
    ToolCall,
    WarningEvent,
)
from ..texts import excerpt
from .audio import ChoiceAudio
from .choice_text import ChoiceText
from .content_parts import is_plain_text, is_thinking, part_texts
from .fields import OF_CHOICES, OF_DELTAS, OF_REASONING, KeptFields
from .finish_reason import FinishReason
from .payloads import Json, as_list, dump, sendable
from .tool_calls import ToolCalls

# The fields of reasoning. The text of the first that is not empty is used: some versions of vLLM send it in two.
_REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking", "thought")

# Signed or encrypted reasoning, and additions of services: the next request has to contain these fields.
_SIGNED_FIELDS = ("reasoning_details", "thinking_blocks")
_RETURNED_FIELDS = ("extra_content", "provider_specific_fields")


class _Field(NamedTuple):
    """A field of a delta or of a complete message, which repeats or continues what deltas had."""

    name: str
    value: Any
    is_of_message: bool


class OpenChoice:
    """The state of one choice while its response is received.

    `take` adds an element of `choices`: a delta of a stream, or a complete message. The table `_READERS`, below the
    class, has a method for each field of these; a field without one, and a value that its method does not read, are
    kept for `Reply.raw`.

    Args:
        index: The index of the choice in the reply.
        think_tags: How to treat <think> in the content, see Accumulator.
        tool_names: The names of the offered tools.
        warnings: The warnings of the response, by their texts; those of the choice are added.
    """

    def __init__(
        self, index: int, think_tags: str, tool_names: Collection[str], warnings: dict[str, StreamEvent]
    ) -> None:
        self.index = index
        self._warnings = warnings
        # The payload that is being added, and the new events.
        self._raw: Any = None
        self._events: list[StreamEvent] = []
        # The fields that are not read: of the choice, and of its deltas and messages.
        self._other_fields = KeptFields()
        self._other_fields_of_message = KeptFields()
        self.texts = ChoiceText(index, think_tags, self._events.append, self._warn)
        self._audio = ChoiceAudio(self._warn)
        self._content_is_null = False  # Whether the content was null, and no text.
        # The field of the reasoning, and the reasoning of the current delta or message, "" if it has none.
        self._reasoning_field: str | None = None
        self._new_reasoning = ""
        self._returned = KeptFields()  # The fields of `_SIGNED_FIELDS` and `_RETURNED_FIELDS`.
        self._thinking = KeptFields()  # The parts of Mistral's reasoning, which are in `content`.
        self._calls = ToolCalls(index, self._warn, tool_names)
        # Calls in the old field `function_call`, used only without `tool_calls`: some servers send a call in both.
        self._legacy_calls = ToolCalls(index, self._warn, tool_names)
        self._finished_calls: tuple[ToolCall, ...] | None = None  # The complete calls; None before `close`.
        self._annotations: dict[str, Any] = {}  # By their JSON.
        self.logprobs: list[Any] = []
        self.finish_reason = FinishReason(self._warn)
        self._stop_reason: Any = None  # The stop string or token that ended the text.

    def take(self, choice: Json, raw: Any) -> list[StreamEvent]:
        """Add an element of `choices` of the payload `raw`: its delta or message, then its finish reason."""
        self._raw = self.texts.raw = raw
        delta = choice.get("delta")
        if isinstance(delta, dict):
            self._take_delta(delta)
        else:
            self._other_fields.add("delta", delta)
        if "message" in choice or "text" in choice:
            self._take_message_and_text(choice, delta if isinstance(delta, dict) else {})
        # An earlier reason: that of this element comes below. Services may send sources after the end of the text.
        if self.finish_reason.raw is not None and any(event.type != "annotations" for event in self._events):
            self.finish_reason.is_followed = True
        if choice.get("logprobs") is not None:
            self._take_logprobs(choice["logprobs"])
        reason = choice.get("finish_reason")
        if reason:
            self.finish_reason.add(str(reason))
        if not choice.keys() <= _USUAL_FIELDS:
            self._take_other_fields(choice)
        return self._take_events()

    def _take_events(self) -> list[StreamEvent]:
        """Remove and return the new events."""
        events = self._events.copy()
        self._events.clear()
        self._raw = self.texts.raw = None
        return events

    def _take_message_and_text(self, choice: Json, delta: Json) -> None:
        """Add a complete message, and a text of /completions. Some servers send them beside a delta.

        What the delta has is not read again. The text is read only if there is neither a delta nor a message.
        """
        message, text = choice.get("message"), choice.get("text")
        if isinstance(message, dict):
            not_in_delta = {name: value for name, value in message.items() if (name, value) not in delta.items()}
            self._read(not_in_delta, is_message=True)
        else:
            self._other_fields.add("message", message)
            message = {}
        if isinstance(text, str) and not (delta or message):
            self.texts.add("content", text)
        elif text != {**delta, **message}.get("content"):
            self._other_fields.add("text", text)

    def _take_delta(self, delta: Json) -> None:
        content = delta.get("content")
        if len(delta) == 1 and content and isinstance(content, str):  # A fast path for nearly every delta.
            self.texts.add("content", content)
        else:
            self._read(delta)

    def _read(self, fields: Json, is_message: bool = False) -> None:
        """Read the fields of a delta or of a complete message. A field that no method reads is kept."""
        self._new_reasoning = ""
        for name, value in fields.items():
            if name not in _READERS:
                self._keep_of_message(_Field(name, value, is_message))
        for name, read in _READERS.items():
            value = fields.get(name)
            if value is None:
                self._content_is_null = self._content_is_null or (name == "content" and name in fields)
                continue
            field = _Field(name, value, is_message)
            if not read(self, field):
                self._keep_of_message(field)

    def keep(self, name: str, value: Any) -> None:
        """Keep a field of the element of `choices` that is not read."""
        self._other_fields.add(name, value)

    def _keep_of_message(self, field: _Field) -> None:
        """Keep a field that is not read. A message has the whole value, of which deltas had the pieces."""
        if field.is_of_message and field.value is not None:
            self._other_fields_of_message.replace(field.name, field.value)
        else:
            self._other_fields_of_message.add(field.name, field.value)

    # The readers of `_READERS`: each takes a field, and returns whether it has read all of the value.

    def _read_role(self, field: _Field) -> bool:
        return field.value in ("assistant", "")

    def _read_text(self, field: _Field) -> bool:
        """Text of the channel that has the name of the field."""
        if not isinstance(field.value, str):
            return False
        if not field.value:
            return True
        if field.is_of_message:
            return self.texts.add_whole(field.name, field.value)
        self.texts.add(field.name, field.value)
        return True

    def _read_reasoning(self, field: _Field) -> bool:
        """Text of reasoning. If several fields of a delta have some, only that of the first one is used."""
        text = field.value
        if not isinstance(text, str):
            return False
        if not text or self._new_reasoning:
            return text in ("", self._new_reasoning)
        self._new_reasoning = text
        self._reasoning_field = self._reasoning_field or field.name
        self.texts.separate_reasoning()
        return self._read_text(field._replace(name="reasoning"))

    def _read_returned(self, field: _Field) -> bool:
        """A field that the next request has to contain."""
        self._add_returned(self._returned, field)
        return True

    def _add_returned(self, fields: KeptFields, field: _Field) -> None:
        """Add a value that the next request has to contain, unless it is empty. That of a message is the whole one."""
        value = sendable(field.value, self._warn)
        if value and field.is_of_message:
            fields.replace(field.name, value)
        elif value:
            fields.add(field.name, value)

    def _read_signed(self, field: _Field) -> bool:
        """Signed reasoning. Its text is the reasoning of a delta in which no other field has some."""
        if not self._new_reasoning:
            items = [item for item in as_list(field.value) if isinstance(item, dict)]
            texts = [item.get(text) for item in items for text in ("text", "summary", "thinking")]
            self._read_reasoning(field._replace(value="".join(text for text in texts if isinstance(text, str))))
        return self._read_returned(field)

    def _read_content(self, field: _Field) -> bool:
        if isinstance(field.value, str):
            return self._read_text(field)
        return self._read_parts(field, field.value if isinstance(field.value, list) else [field.value])

    def _read_parts(self, field: _Field, parts: list[Any]) -> bool:
        """Content in parts (Mistral). Other parts than plain text are kept, those that are no text with a warning."""
        thinking = list(filter(is_thinking, parts))
        if thinking:
            self.texts.separate_reasoning()
        self._add_returned(self._thinking, field._replace(value=thinking))
        texts: dict[str, list[str]] = {}
        others = []
        for part in parts:
            for channel, text in part_texts(part):
                if channel == "unknown":
                    self._warn(f"a content part is not text and was left out: {excerpt(text, 80)}")
                else:
                    texts.setdefault(channel, []).append(text)
            if not is_thinking(part) and not is_plain_text(part):
                others.append(part)
        for channel, pieces in texts.items():
            for piece in ["".join(pieces)] if field.is_of_message else pieces:
                if not self._read_text(_Field(channel, piece, field.is_of_message)):
                    others = parts
        if others:
            self._keep_of_message(field._replace(value=others))
        return True

    def _read_annotations(self, field: _Field) -> bool:
        new = {dump(note): note for note in as_list(field.value)}
        notes = [note for text, note in new.items() if text not in self._annotations]
        self._annotations.update(new)
        self._events += [Annotations(tuple(notes), self.index, self._raw)] if notes else []
        return isinstance(field.value, (list, dict))

    def _read_audio(self, field: _Field) -> bool:
        if not isinstance(field.value, dict):
            return False
        data, unread = self._audio.take(field.value, field.is_of_message)
        self._emit_sound(data)
        transcript = _Field("transcript", unread.get("transcript"), field.is_of_message)
        if transcript.value is not None and self._read_text(transcript):
            del unread["transcript"]
        if unread:
            self._keep_of_message(field._replace(value=unread))
        return True

    def _emit_sound(self, data: bytes) -> None:
        if data:
            self._events.append(AudioDelta(data, "", self.index, self._raw))

    def _read_calls(self, field: _Field) -> bool:
        elements = as_list(field.value)
        if field.is_of_message:
            events, unread = self._calls.take_message(elements, self._raw)
            self._events += events
        else:
            unread = []
            for element in elements:
                taken = self._calls.take(element, self._raw) if isinstance(element, dict) else None
                self._events += taken or []
                unread += [element] if taken is None else []
        if unread:
            self._keep_of_message(field._replace(value=unread))
        return isinstance(field.value, (list, dict))

    def _read_function_call(self, field: _Field) -> bool:
        if not isinstance(field.value, dict):
            return False
        element = {"index": 0, "function": field.value}
        if field.is_of_message:
            _, unread = self._legacy_calls.take_message([element])
            return not unread
        return self._legacy_calls.take(element) is not None

    def _take_logprobs(self, logprobs: Any) -> None:
        if not isinstance(logprobs, dict):
            self._other_fields.add("logprobs", logprobs)
            return
        content = logprobs.get("content")
        read = ("content",) if isinstance(content, list) else _COMPLETION_LOGPROBS
        items = content if isinstance(content, list) else _completion_logprobs(logprobs)
        self.logprobs += items
        self._events += [Logprobs(tuple(items), self.index, self._raw)] if items else []
        for name, value in logprobs.items():
            if value is not None and not (name in read and isinstance(value, list)):
                self._other_fields.add("logprobs", {name: value})

    def _take_other_fields(self, choice: Json) -> None:
        """The fields of an element of `choices` that are not those of nearly every element."""
        for name, value in choice.items():
            if name in ("stop_reason", "stop_str") and value is not None:
                self._stop_reason = value
            elif name not in _USUAL_FIELDS:
                self._other_fields.add(name, value)

    def _warn(self, text: str) -> None:
        self._warnings.setdefault(text, WarningEvent(text, self.index, self._raw))

    def flush(self) -> list[StreamEvent]:
        """The events of the held text and sound."""
        self.texts.release()
        self._emit_sound(self._audio.end())
        return self._take_events()

    def close(self) -> list[StreamEvent]:
        """The events at the end of a stream that was not cut: text after a <think> that is never closed, then calls."""
        calls = self._finished_calls = tuple(self._used_calls.calls(self.finish_reason.is_cut, self._warn))
        for call in self._legacy_calls.calls(is_cut=False) if self._calls else ():
            others = call.extra.get("function", {})
            if others or (call.name, call.arguments) not in [(other.name, other.arguments) for other in calls]:
                function = {"name": call.name, "arguments": call.arguments_json, **others}
                self._other_fields_of_message.add("function_call", function)
        self.texts.close(keeps_reasoning=self.end_reason() != "stop")
        if self.finish_reason.raw is None:
            self._warn("the server sent no finish reason: whether the text is complete is not known")
        elif self.finish_reason.name == "unknown":
            self._warn(f"unknown finish reason {self.finish_reason.raw!r}")
        return [*self._take_events(), *calls]

    @property
    def _used_calls(self) -> ToolCalls:
        """The calls of the reply."""
        return self._calls or self._legacy_calls

    @property
    def has_calls(self) -> bool:
        """Whether a call was received."""
        return bool(self._used_calls)

    @property
    def lacks_calls(self) -> bool:
        """Whether the finish reason says that the model calls tools, and there is no call."""
        return self.finish_reason.name == "tool_calls" and not self.has_calls

    def end_reason(self) -> str:
        """The reason of the last event. It is "tool_calls" if there are calls, even if the server sent "stop"."""
        reason = self.finish_reason.name
        if reason in (None, "stop", "tool_calls"):
            return "tool_calls" if self.has_calls else "stop"
        return reason or "stop"

    def stop(self) -> MessageStop:
        """The last event."""
        raw = self.finish_reason.raw
        return MessageStop(self.end_reason(), raw, raw is None, self._stop_reason, self.index)

    def value(self, succeeded: bool) -> Choice:
        """The choice so far. After success it has a finish reason, even if the server sent none."""
        text = self.texts.whole("content")
        calls = self._finished_calls
        if calls is None:
            calls = tuple(self._used_calls.calls(self.finish_reason.is_cut))
        extra = self._returned.joined(OF_REASONING)
        if self._thinking:  # In the message, the `content` of `extra` replaces the text.
            extra.update(self._thinking.joined(OF_REASONING))
            extra["content"] += [{"type": "text", "text": text}] if text else []
        elif self._content_is_null and calls and not text:
            extra["content"] = None
        return Choice(
            index=self.index,
            text=text,
            reasoning=self.texts.whole("reasoning"),
            refusal=self.texts.whole("refusal"),
            audio=self._audio.value(self.texts.whole("transcript")),
            tool_calls=calls,
            finish_reason=self.end_reason() if succeeded or self.finish_reason.raw else None,
            finish_reason_raw=self.finish_reason.raw,
            stop_reason=self._stop_reason,
            logprobs=tuple(self.logprobs),
            reasoning_field=self._reasoning_field,
            annotations=tuple(self._annotations.values()),
            extra=extra,
        )

    def other_fields(self) -> Json:
        """The fields that no event and no attribute of the choice has, at their places in an element of `choices`."""
        fields = self._other_fields.joined(OF_CHOICES)
        if self._other_fields_of_message:
            fields["message"] = self._other_fields_of_message.joined(OF_DELTAS)
        return {"index": self.index, **fields} if fields else {}


# The fields of an element of `choices` that nearly every element has.
_USUAL_FIELDS = frozenset({"index", "delta", "message", "text", "logprobs", "finish_reason"})


# The fields of a delta or a message, in the order of their events, each with the method that reads it. Reasoning comes
# first: if a field has some, the later ones with the same reasoning are skipped.
_READERS: dict[str, Callable[[OpenChoice, _Field], bool]] = {
    "role": OpenChoice._read_role,
    **dict.fromkeys(_REASONING_FIELDS, OpenChoice._read_reasoning),
    **dict.fromkeys(_SIGNED_FIELDS, OpenChoice._read_signed),
    "content": OpenChoice._read_content,
    **dict.fromkeys(_RETURNED_FIELDS, OpenChoice._read_returned),
    "annotations": OpenChoice._read_annotations,
    "refusal": OpenChoice._read_text,
    "audio": OpenChoice._read_audio,
    "tool_calls": OpenChoice._read_calls,
    "function_call": OpenChoice._read_function_call,
}

_COMPLETION_LOGPROBS = ("tokens", "token_logprobs", "top_logprobs")


def _completion_logprobs(logprobs: Json) -> list[Json]:
    """Convert the log probabilities of /completions, which are parallel lists, to the format of a chat."""
    columns = [as_list(logprobs.get(name)) for name in _COMPLETION_LOGPROBS]
    items = []
    for token, value, top in itertools.zip_longest(*columns):
        if isinstance(top, dict):
            others = [{"token": other, "logprob": number} for other, number in top.items()]
        else:
            others = as_list(top)
        items.append({"token": token, "logprob": value, "bytes": None, "top_logprobs": others})
    return items
