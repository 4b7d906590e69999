"""Assembly of a response: payloads to typed events, and to a Reply. No I/O. A defect is repaired and reported
in a warning event, or raises a typed error.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from ..errors import IncompleteReply, IncompleteStream, ProtocolError, StreamError, cut
from ..events import ErrorEvent, MessageStart, Reply, StreamEvent, Usage, UsageEvent, WarningEvent, changed
from .choice import OpenChoice
from .payloads import Json, as_integer, dump, find_error, find_usage, is_chunk, is_keep_alive, non_blank, parse_error
from .text import ThinkSplitter


class Accumulator:
    """Converts the payloads of one response to events and to a reply. It needs no transport.

    Call `add` with every JSON object of a stream, or with the only one of a response without streaming, then `finish`.
    `reply` may be called at any time.

    Args:
        n: The number of requested choices.
        think_tags: How to treat <think> in the content: "auto", "prefilled" or "off".
        tool_names: The names of the offered tools, which distinguish a piece of a name from another name.
        mask: Masks secrets in a payload that may report an error.
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
        ThinkSplitter(think_tags)  # Raises ValueError for a wrong mode now, not in the middle of a stream.
        self._choices: dict[int, OpenChoice] = {}
        self._start: MessageStart | None = None
        self._succeeded = False
        self._usage: Usage | None = None
        self._fields: Json = {}  # All fields of all payloads, each with its last value.
        self._n_chunks = 0
        # The events of the warnings by their texts, and how many of them were returned.
        self._warnings: dict[str, StreamEvent] = {}
        self._n_returned = 0
        self.error: ErrorEvent | None = None

    @property
    def started(self) -> bool:
        """Whether a choice was received."""
        return bool(self._choices)

    @property
    def finished(self) -> bool:
        """Whether each of the requested choices has a finish reason, perhaps an unknown one, and no text after it."""
        return len(self._choices) >= self._n and all(choice.has_finished for choice in self._choices.values())

    @property
    def complete(self) -> bool:
        """Whether all requested choices are complete: each has a known finish reason, and no text after it."""
        return self.finished and all(choice.reason() != "unknown" for choice in self._choices.values())

    def add(self, chunk: Json) -> list[StreamEvent]:
        """Add a payload; return its events in this order: start, text and calls of each choice, usage, error."""
        events: list[StreamEvent] = []
        error = find_error(chunk)
        # A server may write `detail` beside choices too, if the finish reason of a choice reports the error.
        is_suspect = error is not None or "detail" in chunk or not is_chunk(chunk)
        chunk = self._mask(chunk) if error is not None or not is_chunk(chunk) else chunk
        self._fields.update(chunk)
        self._n_chunks += 1
        error = self._checked_error(chunk, find_error(chunk)) if is_suspect else None
        if self._start is None and (chunk.get("choices") or (error is None and is_chunk(chunk))):
            self._start = MessageStart(non_blank(chunk.get("id")), non_blank(chunk.get("model")), 0, chunk)
            events.append(self._start)
        failed = None
        for place, choice in enumerate(_choices_of(chunk)):
            if isinstance(choice, dict):
                state = self._choice(choice, place)
                events += state.take(choice, chunk)
                if state.reason_raw is not None and state.has_finished and state.reason() == "error":
                    failed = state
        usage = find_usage(chunk)
        if usage is not None and usage.total_tokens and usage != self._usage:  # Some servers send zeros in every chunk.
            self._usage = usage
            events.append(UsageEvent(usage, 0, chunk))
        self._usage = self._usage or usage
        if self.error is None and (error is not None or failed is not None):
            self.error = _error_event(self._mask(chunk) if error is None else chunk, error, failed)
            events.append(self.error)
        return events + self._new_warnings() if len(self._warnings) > self._n_returned else events

    def _checked_error(self, chunk: Json, error: Any) -> Any:
        """The error of a payload, or that it seems to be; None if it is none."""
        is_unknown = error is None and not is_chunk(chunk) and not is_keep_alive(chunk)
        if is_unknown and not self.started:
            shown = cut(dump(chunk))
            raise ProtocolError(f"this JSON is not a chat completion: {shown}", head=shown)
        if error is None and not is_unknown:
            return None
        is_explicit = not is_unknown and (error is not chunk or "error" in (chunk.get("object"), chunk.get("type")))
        if not is_explicit and self.finished:
            text = f"ignored after the finish reason: {cut(dump(chunk))}"
            self._warnings.setdefault(text, WarningEvent(text))
            return None
        # JSON that is unknown may be an error. Ignoring it would make a text that it cut look complete.
        unknown = "the server sent JSON that is no part of a chat completion"
        return {"message": f"{unknown}: {cut(dump(chunk))}"} if is_unknown else error

    def warn(self, text: str) -> list[StreamEvent]:
        """Add a warning about the whole response and return its event; none if the text is not new."""
        self._warnings.setdefault(text, WarningEvent(text))
        return self._new_warnings()

    def _new_warnings(self) -> list[StreamEvent]:
        """The events of the warnings that were not returned yet."""
        new = list(self._warnings.values())[self._n_returned :]
        self._n_returned = len(self._warnings)
        return new

    def finish(self, done: bool = False) -> list[StreamEvent]:
        """The events of the end: complete calls, then a message_stop for each choice. `done`: the response has ended.

        Raises StreamError if the server reported an error, and IncompleteStream if the response was cut.
        """
        if self.error is not None:
            error = self.error
            raise StreamError(error.message, error_type=error.error_type, code=error.code, partial=self.reply())
        if not self._choices or not (done or self.complete):
            raise IncompleteStream(self._cut_message(), partial=self.reply())
        events = [*self.flush(), *(event for choice in self._sorted() for event in choice.close())]
        if len(self._choices) < self._n:
            events += self.warn(f"the server sent {len(self._choices)} of the {self._n} requested choices")
        self._succeeded = True
        stops = [choice.stop() for choice in self._sorted()]
        return events + self._new_warnings() + stops

    def flush(self) -> list[StreamEvent]:
        """The events of held text, after a response that was cut. It may be the beginning of a tag or of a pair."""
        return [event for choice in self._sorted() for event in choice.flush()]

    def reply(self) -> Reply[Any]:
        """The reply received so far."""
        is_complete = self._n_chunks == 1 and is_complete_response(self._fields)
        raw = {name: value for name, value in self._fields.items() if is_complete or name != "choices"}
        choices = tuple(choice.value(self._succeeded) for choice in self._sorted())
        start = self._start or MessageStart()
        return Reply(choices, start.id, start.model, self._usage, tuple(self._warnings), raw=raw)

    def _choice(self, choice: Json, place: int) -> OpenChoice:
        index = choice.get("index")
        if type(index) is not int:
            number = as_integer(index)
            index = place if number is None else number
        if index not in self._choices:
            self._choices[index] = OpenChoice(index, self._think_tags, self._tool_names, self._warnings)
        return self._choices[index]

    def _sorted(self) -> list[OpenChoice]:
        return [self._choices[index] for index in sorted(self._choices)]

    def _cut_message(self) -> str:
        if not self._choices:
            return "the response ended before its first choice"
        n_chars = sum(len(piece) for choice in self._choices.values() for piece in choice.pieces["content"])
        reasons = [repr(choice.reason_raw) for choice in self._sorted() if choice.reason_raw]
        end = f"the finish reason {', '.join(reasons)} is unknown or not at the end" if reasons else "no finish reason"
        return f"the response was cut after {n_chars} characters: {end}, and no [DONE]"


def check_complete(reply: Reply[Any], request: Any) -> None:
    """Raise IncompleteReply if a filter cut the reply, or a token limit that the request does not set, nor allow."""
    is_limited = any(request.fields.get(name) is not None for name in ("max_tokens", "max_completion_tokens"))
    reasons = {choice.finish_reason: str(choice.finish_reason_raw) for choice in reply.choices}
    if request.allow_truncated:
        return
    if "content_filter" in reasons:
        cause, other = "by a content filter", ""
    elif "context" in reasons.get("length", ""):  # max_tokens is another limit.
        cause, other = "at the end of the model's context", ""
    elif "length" in reasons and not is_limited:
        cause, other = "at a limit of tokens", "max_tokens or "
    else:
        return
    message = f"the response was cut {cause}, after {len(reply.text)} characters: set {other}allow_truncated=True"
    raise IncompleteReply(f"{message} to get it anyway; the error has it as `partial`", partial=reply)


def _error_event(chunk: Json, error: Any, failed: OpenChoice | None) -> ErrorEvent:
    """The error that a payload reports, as `error`, or else by the finish reason of the choice `failed`."""
    if failed is None or error is not None:
        body = chunk if error is chunk else {**chunk, "error": error}
        return changed(parse_error(body), raw=chunk)
    message = f"the server ended the response with the finish reason {failed.reason_raw!r}"
    return ErrorEvent(message, code=failed.reason_raw, choice_index=failed.index, raw=chunk)


def is_complete_response(payload: Json) -> bool:
    """Whether a payload is a complete response, which servers send without streaming, and not a chunk."""
    choices = payload.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return isinstance(first, dict) and "delta" not in first and ("message" in first or "text" in first)


def _choices_of(chunk: Json) -> list[Any]:
    """The choices of a payload, also in Ollama's format {message, done}. A `thought` beside them moves into it."""
    choices = chunk.get("choices")
    if not isinstance(choices, list):
        message = chunk.get("message")
        reason = (chunk.get("done_reason") or "stop") if chunk.get("done") else None
        choices = [{"index": 0, "delta": message, "finish_reason": reason}] if isinstance(message, dict) else []
    if "thought" in chunk and choices and isinstance(choices[0], dict):
        first = choices[0]
        name = "message" if isinstance(first.get("message"), dict) else "delta"
        delta = first[name] if isinstance(first.get(name), dict) else {}
        return [{**first, name: {"thought": chunk["thought"], **delta}}, *choices[1:]]
    return choices
