"""Assembly of a response: payloads to typed events, and to a Reply. No I/O.

A defect is repaired and reported in a warning event, or raises a typed error.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from operator import attrgetter
from typing import Any

from ..errors import IncompleteStream, ProtocolError, StreamError
from ..events import ErrorEvent, MessageStart, Reply, StreamEvent, Usage, UsageEvent, WarningEvent
from ..texts import excerpt
from .choice import OpenChoice
from .payloads import Json, as_integer, dump, find_usage, non_blank
from .reported_errors import is_plain_payload, may_report_error, parse_error, read_report
from .text import check_think_tags


class Accumulator:
    """Converts the payloads of one response to events and to a reply. It needs no transport.

    Call `add` with every JSON object of a stream, or with the only one of a response without streaming, then `finish`.
    `reply` may be called at any time.

    Args:
        n: The number of requested choices.
        think_tags: How to treat <think> in the content: "auto", "prefilled" or "off".
        tool_names: The names of the offered tools, which distinguish a piece of a name from another name.
        mask: Masks secrets in a payload that reports an error.
    """

    def __init__(
        self,
        n: int = 1,
        think_tags: str = "auto",
        tool_names: Collection[str] = (),
        mask: Callable[[Json], Json] = lambda payload: payload,
    ) -> None:
        self._n = n
        self._think_tags = think_tags
        self._tool_names = tool_names
        self._mask = mask
        check_think_tags(think_tags)  # Now, and not in the middle of a stream.
        # The choices by the index that the server sent, and the indexes that they have in the reply.
        self._choices: dict[int, OpenChoice] = {}
        self._indexes: set[int] = set()
        self._lowest_free_index = 0
        self._has_started = False
        self._has_succeeded = False
        # The values of the first payloads that have them, and the usage of the last one.
        self._id: str | None = None
        self._model: str | None = None
        self._usage: Usage | None = None
        self._fields: Json = {}  # The fields of all payloads, each with its last value that is not null.
        self._unread_choices: list[Any] = []  # What `choices` has beside objects.
        self._complete_response: Json | None = None  # The payload, if it is the only one and a complete response.
        self._n_payloads = 0
        self._warnings: dict[str, StreamEvent] = {}  # The events of the warnings, by their texts.
        self._n_returned = 0  # How many of the warnings were returned.
        self.error: ErrorEvent | None = None  # The error that the server reported.

    @property
    def has_choices(self) -> bool:
        """Whether a choice was received."""
        return bool(self._choices)

    @property
    def has_all_reasons(self) -> bool:
        """Whether each of the requested choices has a finish reason, perhaps an unknown one, and no output after it."""
        return len(self._choices) >= self._n and all(
            choice.finish_reason.is_at_end for choice in self._choices.values()
        )

    @property
    def has_known_reasons(self) -> bool:
        """Whether each of them has a known finish reason, and no output after it."""
        return self.has_all_reasons and all(choice.finish_reason.name != "unknown" for choice in self._choices.values())

    def add(self, payload: Json) -> list[StreamEvent]:
        """Add a payload; return its events in this order: start, text and calls of each choice, usage, error."""
        error: ErrorEvent | None = None
        if is_plain_payload(payload):  # A fast path for nearly every payload.
            choices = payload["choices"]
        else:
            payload, choices, error = self._read_payload(payload)
        self._keep(payload)
        events: list[StreamEvent] = []
        for position, choice in enumerate(choices):
            if isinstance(choice, dict):
                open_choice = self._choice(choice, position)
                events += open_choice.take(choice, payload)
                if choice.get("finish_reason") and open_choice.finish_reason.name == "error":
                    error = error or _failed_choice(open_choice, payload)
            else:
                self._unread_choices.append(choice)
        usage = find_usage(payload)
        if usage is not None and usage.total_tokens and usage != self._usage:
            events.append(UsageEvent(usage, 0, payload))
        # Some servers send zeros in every payload, also after the counts.
        if usage is not None and (usage.total_tokens or not (self._usage and self._usage.total_tokens)):
            self._usage = usage
        if not self._has_started and (events or choices or self._id or self._model):
            self._has_started = True
            events.insert(0, MessageStart(self._id, self._model, 0, payload))
        if self.error is None and error is not None:
            self.error = error
            events.append(error)
        return events + self._new_warnings() if len(self._warnings) > self._n_returned else events

    def _read_payload(self, payload: Json) -> tuple[Json, list[Any], ErrorEvent | None]:
        """The payload, its choices, and the error that it reports. With an error it is masked, but for the choices."""
        choices, error = _choices_of(payload), None
        if may_report_error(payload):
            payload = self._mask(payload)
            choices = list(map(_with_texts, _choices_of(payload), choices))
            error = self._reported_error(payload)
        if not isinstance(payload.get("choices", []), list):
            self._unread_choices.append(payload["choices"])
        return payload, choices, error

    def _keep(self, payload: Json) -> None:
        """Keep the fields of a payload outside of its choices."""
        self._n_payloads += 1
        if self._n_payloads <= 2:
            is_only = self._n_payloads == 1 and is_complete_response(payload)
            self._complete_response = payload if is_only else None
        if self._id is None or self._model is None:
            self._id = self._id or non_blank(payload.get("id"))
            self._model = self._model or non_blank(payload.get("model"))
        if None in payload.values():
            payload = {name: value for name, value in payload.items() if value is not None or name not in self._fields}
        self._fields.update(payload)

    def _reported_error(self, payload: Json) -> ErrorEvent | None:
        """The error that a payload reports; None if it reports none, or one that does not count."""
        status, error = read_report(payload)
        if status == "no error":
            return None
        if status == "unknown" and not self.has_choices:
            shown = excerpt(dump(payload))
            raise ProtocolError(f"this JSON is not a chat completion: {shown}", head=shown)
        if self.has_all_reasons and status != "error":
            text = f"ignored after the finish reason: {excerpt(dump(payload))}"
            self._warnings.setdefault(text, WarningEvent(text, raw=payload))
            return None
        if status == "unknown":  # It may be an error. If it was ignored, a text that it cut would look complete.
            unknown = "the server sent JSON that is no part of a chat completion"
            return ErrorEvent(f"{unknown}: {excerpt(dump(payload))}", raw=payload)
        body = payload if error is payload else {**payload, "error": error}
        return replace(parse_error(body), raw=payload)

    def warn(self, text: str) -> list[StreamEvent]:
        """Add a warning about the whole response and return its event; none if the text is not new."""
        self._warnings.setdefault(text, WarningEvent(text))
        return self._new_warnings()

    def _new_warnings(self) -> list[StreamEvent]:
        """The events of the warnings that were not returned yet."""
        new = list(self._warnings.values())[self._n_returned :]
        self._n_returned = len(self._warnings)
        return new

    def finish(self, has_end_mark: bool = False) -> list[StreamEvent]:
        """The events of the end: complete calls, then a message_stop for each choice.

        `has_end_mark`: the server has marked the end of the response, for example with [DONE].

        Raises:
            StreamError: The server reported an error.
            IncompleteStream: The response was cut.
            ProtocolError: The finish reason says that the model calls tools, and there is no call.
        """
        if self.error is not None:
            error = self.error
            raise StreamError(error.message, error_type=error.error_type, code=error.code, partial=self.reply())
        if not self._choices or not (has_end_mark or self.has_known_reasons):
            raise IncompleteStream(self._cut_message(), partial=self.reply())
        for choice in self._sorted():
            if choice.lacks_calls:  # A run would take the response for the final one.
                reason = f"the server ended the response with the finish reason {choice.finish_reason.raw!r}"
                raise ProtocolError(f"{reason}, and sent no call", partial=self.reply())
        events = [*self.flush(), *(event for choice in self._sorted() for event in choice.close())]
        if len(self._choices) < self._n:
            events += self.warn(f"the server sent {len(self._choices)} of the {self._n} requested choices")
        self._has_succeeded = True
        return [*events, *self._new_warnings(), *(choice.stop() for choice in self._sorted())]

    def flush(self) -> list[StreamEvent]:
        """The events of held text, after a response that was cut. It may be the beginning of a tag or of a pair."""
        return [event for choice in self._sorted() for event in choice.flush()]

    def reply(self) -> Reply[Any]:
        """The reply received so far."""
        choices = tuple(choice.value(self._has_succeeded) for choice in self._sorted())
        return Reply(choices, self._id, self._model, self._usage, tuple(self._warnings), raw=self._raw())

    def _raw(self) -> Json:
        """The payload if it is the only one, otherwise the fields of all payloads, of `choices` those not read."""
        if self._complete_response is not None:
            return self._complete_response
        read = {"choices"} if "choices" in self._fields else {"message"}
        raw = {name: value for name, value in self._fields.items() if name not in read}
        unread = [fields for fields in (choice.other_fields() for choice in self._sorted()) if fields]
        if unread or self._unread_choices:
            raw["choices"] = [*unread, *self._unread_choices]
        return raw

    def _choice(self, choice: Json, position: int) -> OpenChoice:
        """The state of the choice that an element of `choices` at a position belongs to."""
        sent = as_integer(choice.get("index"))
        key = position if sent is None else sent
        if key not in self._choices:
            index = self._free_index(key)
            self._choices[key] = OpenChoice(index, self._think_tags, self._tool_names, self._warnings)
        if sent is None:
            self._choices[key].keep("index", choice.get("index"))
        return self._choices[key]

    def _free_index(self, sent: int) -> int:
        """An index for a new choice: the one that the server sent, unless it is none of the requested choices.

        Some servers count from 1, or send the only choice under any index. A reply has choices from 0 on.
        """
        while self._lowest_free_index in self._indexes:
            self._lowest_free_index += 1
        is_requested = 0 <= sent < self._n and sent not in self._indexes
        index = sent if is_requested else self._lowest_free_index
        self._indexes.add(index)
        return index

    def _sorted(self) -> list[OpenChoice]:
        """The choices in the order of the reply."""
        return sorted(self._choices.values(), key=attrgetter("index"))

    def _cut_message(self) -> str:
        if not self._choices:
            return "the response ended before its first choice"
        n_chars = sum(choice.texts.n_characters for choice in self._choices.values())
        reasons = [repr(choice.finish_reason.raw) for choice in self._sorted() if choice.finish_reason.raw]
        end = f"the finish reason {', '.join(reasons)} is unknown or not at the end" if reasons else "no finish reason"
        return f"the response was cut after {n_chars} characters: {end}, and no [DONE]"


def _failed_choice(choice: OpenChoice, payload: Json) -> ErrorEvent:
    """The error that the finish reason of a choice reports."""
    reason = choice.finish_reason.raw
    message = f"the server ended the response with the finish reason {reason!r}"
    return ErrorEvent(message, code=reason, choice_index=choice.index, raw=payload)


def _with_texts(masked: Any, choice: Any) -> Any:
    """A masked choice with its texts of the model as they are: a short key may be a word of them."""
    if not isinstance(choice, dict):
        return masked
    return {**masked, **{name: choice[name] for name in ("delta", "message", "text", "logprobs") if name in choice}}


def is_complete_response(payload: Json) -> bool:
    """Whether a payload is a complete response, which servers send without streaming, and not a part of a stream."""
    choices = payload.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return isinstance(first, dict) and "delta" not in first and ("message" in first or "text" in first)


def _choices_of(payload: Json) -> list[Any]:
    """The choices of a payload, also in Ollama's format {message, done}. A `thought` beside them moves into it."""
    choices = payload.get("choices")
    if not isinstance(choices, list):
        message = payload.get("message")
        reason = (payload.get("done_reason") or "stop") if payload.get("done") else None
        choices = [{"index": 0, "delta": message, "finish_reason": reason}] if isinstance(message, dict) else []
    if "thought" in payload and choices and isinstance(choices[0], dict):
        first = choices[0]
        name = "message" if isinstance(first.get("message"), dict) else "delta"
        delta = first[name] if isinstance(first.get(name), dict) else {}
        return [{**first, name: {"thought": payload["thought"], **delta}}, *choices[1:]]
    return choices
