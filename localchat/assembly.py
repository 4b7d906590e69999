"""Assembly of an answer: payloads to typed events, and at any moment to a Reply. No I/O.

Feed `Accumulator` every payload of a stream, or the one of a whole answer. What can be repaired is repaired
and reported in a warning event, what cannot raises a typed error, and nothing is dropped in silence.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from .errors import IncompleteStream, StreamError, cut
from .events import (
    Choice,
    ContentDelta,
    ErrorEvent,
    Logprobs,
    MessageStart,
    MessageStop,
    ReasoningDelta,
    RefusalDelta,
    Reply,
    StreamEvent,
    ToolCall,
    Usage,
    UsageEvent,
    changed,
)
from .payloads import Json, as_index, as_list, dump, find_usage, non_blank, normal_reason, parse_error, parse_usage
from .surrogates import SurrogateJoiner
from .think_tags import ThinkSplitter
from .tool_calls import ToolCalls, Warnings

# Where reasoning is found, in order; the first that is text wins. During a rename vLLM sent the same text
# in two of them, so they are never added up.
_REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking", "thought")


_SPEAKING = ("content_delta", "reasoning_delta", "refusal_delta", "tool_call_delta")


class _Choice:
    """One answer while it comes in."""

    def __init__(self, index: int, think_tags: str, warnings: Warnings) -> None:
        self.index = index
        self._warnings = warnings
        self.text: list[str] = []
        self.reasoning: list[str] = []
        self.refusal: list[str] = []
        self.logprobs: list[Any] = []
        # The content as sent, tags included: whole messages are compared with it.
        self.content: list[str] = []
        self.splitter = ThinkSplitter(think_tags)
        self._joiners: dict[str, SurrogateJoiner] = {}  # By field.
        self.calls = ToolCalls(index, warnings)
        # The old form of a call. Some servers send it beside the new one, so it waits for the end.
        self.legacy = ToolCalls(index, warnings)
        self.finished_calls: tuple[ToolCall, ...] | None = None
        self.reasoning_field: str | None = None
        self.reason_raw: str | None = None
        # Whether text came after a finish reason: some servers give one with every piece, which proves no end.
        self.went_on = False
        # Whether the finish reason proves the end: it is known, and no text came after it.
        self.has_ended = False
        self.stop_reason: Any = None

    def take(self, choice: Json, chunk: Any) -> list[StreamEvent]:
        """The delta first, then the finish: some servers send both in one chunk."""
        events: list[StreamEvent] = []
        delta = choice.get("delta")
        message = choice.get("message")
        if isinstance(delta, dict) and delta:
            self._take_delta(delta, chunk, events)
        if isinstance(message, dict):
            self._take_message(message, chunk, events)
        elif not delta and isinstance(choice.get("text"), str):
            self._take_content(choice["text"], chunk, events)
        if isinstance(choice.get("logprobs"), dict):
            self._take_logprobs(choice["logprobs"], chunk, events)
        if self.reason_raw is not None and any(event.type in _SPEAKING for event in events):
            self.went_on = True
        reason = choice.get("finish_reason")
        if reason is not None and (self.reason_raw is None or self.went_on) and str(reason).strip():
            self.reason_raw = str(reason)
        if self.reason_raw is not None:
            self.has_ended = self._reason() != "unknown" and not self.went_on
        stop_reason = choice.get("stop_reason", choice.get("stop_str"))
        if stop_reason is not None:
            self.stop_reason = stop_reason
        return events

    def _take_delta(self, delta: Json, chunk: Any, events: list[StreamEvent], is_summary: bool = False) -> None:
        content = delta.get("content")
        if content and len(delta) == 1:  # Nearly every delta, so nothing else is looked for.
            self._take_content(content, chunk, events)
            return
        self._take_reasoning(*_reasoning(delta), chunk, events)
        if content:
            self._take_content(content, chunk, events)
        refusal = delta.get("refusal")
        if refusal and isinstance(refusal, str):
            self._emit("refusal", self._joined("refusal", refusal), chunk, events)
        self._take_calls(delta, chunk, events, is_summary)

    def _take_message(self, message: Json, chunk: Any, events: list[StreamEvent]) -> None:
        """A whole message in place of a delta, or after deltas: only what exceeds them is new."""
        name, text = _reasoning(message)
        self._take_reasoning(name, _exceeding(text, self.reasoning), chunk, events)
        rest = {name: value for name, value in message.items() if not name.startswith(_REASONING_FIELDS)}
        # The content comes with the tags or, where the server has taken them out, without.
        for field, *known in (("content", self.content, self.text), ("refusal", self.refusal)):
            if isinstance(rest.get(field), str):
                rest[field] = _exceeding(rest[field], *known)
        self._take_delta(rest, chunk, events, is_summary=True)

    def _take_calls(self, delta: Json, chunk: Any, events: list[StreamEvent], is_summary: bool) -> None:
        for call in as_list(delta.get("tool_calls")):
            event = self.calls.take(call, chunk, is_summary) if isinstance(call, dict) else None
            if event is not None:
                events.append(event)
        legacy = delta.get("function_call")
        if isinstance(legacy, dict):
            self.legacy.take({"index": 0, "function": legacy})

    def _take_reasoning(self, name: str, text: str, chunk: Any, events: list[StreamEvent]) -> None:
        if text and self.reasoning_field is None:
            self.reasoning_field = name
            events += self.flush()  # From here on content goes by the splitter.
        if text:
            self._emit("reasoning", self._joined("reasoning", text), chunk, events)

    def _joined(self, field: str, text: str) -> str:
        """Text in which no character is cut in two."""
        if field not in self._joiners:
            if text.isascii():
                return text
            self._joiners[field] = SurrogateJoiner(self._warn)
        return self._joiners[field].feed(text)

    def _warn(self, text: str) -> None:
        self._warnings.add(text, self.index)

    def _take_content(self, content: Any, chunk: Any, events: list[StreamEvent]) -> None:
        if isinstance(content, str):
            content = self._joined("content", content)
            self.content.append(content)
            if self.reasoning_field is not None:
                self._emit("content", content, chunk, events)  # The server has taken the tags out itself.
                return
            for kind, text in self.splitter.feed(content):
                self._emit(kind, text, chunk, events)
            return
        events += self.flush()
        for kind, text in _content_parts(content):
            if kind == "unknown":
                self._warn(f"a part of the answer is no text and was left out: {cut(text, 80)}")
            elif text:
                self._emit(kind, text, chunk, events)

    def _take_logprobs(self, logprobs: Json, chunk: Any, events: list[StreamEvent]) -> None:
        content = logprobs.get("content")
        items = content if isinstance(content, list) else _completion_logprobs(logprobs)
        if items:
            self.logprobs += items
            events.append(Logprobs(tuple(items), self.index, chunk))

    def _emit(self, kind: str, text: str, chunk: Any, events: list[StreamEvent]) -> None:
        if not text and kind != "reclassify":  # Half a character was all of it.
            return
        if kind == "content":
            self.text.append(text)
            events.append(ContentDelta(text, self.index, chunk))
        elif kind == "reasoning":
            self.reasoning.append(text)
            events.append(ReasoningDelta(text, self.index, chunk))
        elif kind == "reclassify":
            # The template had opened the tag.
            self.reasoning, self.text = self.reasoning + self.text, []
            self._warn("a closing </think> came without an opening one: the text before it was reasoning")
        else:
            self.refusal.append(text)
            events.append(RefusalDelta(text, self.index, chunk))

    def flush(self) -> list[StreamEvent]:
        """What was held back."""
        events: list[StreamEvent] = []
        for kind, text in self.splitter.flush():
            self._emit(kind, text, None, events)
        for field, joiner in self._joiners.items():
            kind = "reasoning" if field == "content" and self.splitter.unclosed else field
            self._emit(kind, joiner.flush(), None, events)
        return events

    def close(self) -> tuple[ToolCall, ...]:
        """The end of a stream that was not cut: the calls."""
        if self.splitter.unclosed:
            self._warn("the answer ends inside <think>: what may be its text is in the reasoning")
        self.finished_calls = tuple(self._calls())
        return self.finished_calls

    def _calls(self) -> list[ToolCall]:
        cut_off = normal_reason(self.reason_raw or "") in ("length", "content_filter", "error")
        return (self.calls if self.calls else self.legacy).finish(cut_off)

    def _reason(self) -> str | None:
        """Our word for the server's finish reason, "unknown" for one that is none of those known."""
        return None if self.reason_raw is None else normal_reason(self.reason_raw) or "unknown"

    def stop(self) -> MessageStop:
        """The last event. Whether there are calls decides, not what the server reports about them."""
        reason = self._reason()
        if reason == "unknown":
            self._warn(f"unknown finish reason {self.reason_raw!r}")
        if reason in (None, "stop", "tool_calls"):
            reason = "tool_calls" if self.finished_calls else "stop"
        return MessageStop(reason, self.reason_raw, self.reason_raw is None, self.stop_reason, self.index)

    def value(self, succeeded: bool) -> Choice:
        text, reasoning, refusal = ("".join(parts) for parts in (self.text, self.reasoning, self.refusal))
        calls = tuple(self._calls()) if self.finished_calls is None else self.finished_calls
        reason = self.stop().reason if succeeded or self.reason_raw else None
        end = (reason, self.reason_raw, self.stop_reason)
        return Choice(self.index, text, reasoning, refusal, calls, *end, tuple(self.logprobs), self.reasoning_field)


def _completion_logprobs(logprobs: Json) -> list[Json]:
    """Those of /completions, which are lists side by side, in the form of a chat's."""
    columns = [as_list(logprobs.get(name)) for name in ("tokens", "token_logprobs", "top_logprobs")]
    items = []
    for token, value, top in itertools.zip_longest(*columns):
        options = top.items() if isinstance(top, dict) else ()
        others = [{"token": other, "logprob": number} for other, number in options]
        items.append({"token": token, "logprob": value, "bytes": None, "top_logprobs": others})
    return items


def _reasoning(delta: Json) -> tuple[str, str]:
    """The field that holds reasoning, and its text."""
    for name in _REASONING_FIELDS:
        text = delta.get(name)
        if text and isinstance(text, str):
            return name, text
    details = delta.get("reasoning_details")
    if isinstance(details, list):
        texts = [item.get("text") or item.get("summary") for item in details if isinstance(item, dict)]
        return "reasoning_details", "".join(text for text in texts if isinstance(text, str))
    return "", ""


def _content_parts(content: Any) -> Iterator[tuple[str, str]]:
    """Kind and text of each part of content that is a list (Mistral and others); "unknown" if neither."""
    for part in content if isinstance(content, list) else [content]:
        if isinstance(part, str):
            yield "content", part
        elif isinstance(part, dict) and part.get("type") == "thinking":
            thinking = part.get("thinking")
            for _, text in _content_parts(thinking if thinking is not None else []):
                yield "reasoning", text
        elif isinstance(part, dict) and isinstance(part.get("refusal"), str):
            yield "refusal", part["refusal"]
        elif isinstance(part, dict) and isinstance(part.get("text"), str):
            yield "content", part["text"]
        else:
            yield "unknown", dump(part)


def _exceeding(text: str, *known: list[str]) -> str:
    """What `text` has beyond what came before, in one form or another; all of it if it is no repetition."""
    for parts in known:
        seen = "".join(parts)
        parts[:] = [seen]
        if text.startswith(seen):
            return text[len(seen) :]
        if seen.strip().startswith(text.strip()):
            return ""
    return text


class Accumulator:
    """Turns the payloads of one answer into events, and into a reply at any moment.

    Feed it every JSON object of a stream, or the one of a whole answer, then call `finish`. Usable
    without any transport.

    Args:
        n: How many choices were asked for.
        think_tags: What to do with <think> in the content: "auto", "prefilled" or "off".
    """

    def __init__(self, n: int = 1, think_tags: str = "auto") -> None:
        self._n = n
        self._think_tags = think_tags
        ThinkSplitter(think_tags)  # A wrong mode is reported here and not in the middle of a stream.
        self._choices: dict[int, _Choice] = {}
        self._announced = False
        self._n_ended = 0
        self._closed = False
        self._succeeded = False
        # Whether every choice that was asked for has its finish reason, and no text after it.
        self.complete = False
        self._id: str | None = None
        self._model: str | None = None
        self._usage: Usage | None = None
        self._zero_usage: Usage | None = None
        self._payload: Json = {}
        self._n_chunks = 0
        self._warnings = Warnings()
        # Events that `finish` owes, when it raises.
        self._held: list[StreamEvent] = []
        self.error: ErrorEvent | None = None

    @property
    def started(self) -> bool:
        """Whether any choice has come."""
        return bool(self._choices)

    def add(self, chunk: Json) -> list[StreamEvent]:
        """One payload. Order of the events: start, then per choice text and calls, usage, error.

        Raises:
            ProtocolError: There are more tool calls than any answer has.
        """
        events: list[StreamEvent] = []
        self._payload.update(chunk)
        self._n_chunks += 1
        if not self._announced:
            events += self._start(chunk)
        choices = chunk.get("choices")
        if not isinstance(choices, list):
            choices = _native_choices(chunk)
        if "thought" in chunk and choices:
            choices = _with_thought(choices, chunk["thought"])
        error, failed = chunk.get("error"), None
        for place, choice in enumerate(choices):
            if isinstance(choice, dict):
                error = error or choice.get("error")
                taker = self._choice(choice, place)
                had_ended = taker.has_ended
                events += taker.take(choice, chunk)
                self._n_ended += taker.has_ended - had_ended
                if taker.has_ended and normal_reason(taker.reason_raw or "") == "error":
                    failed = taker
        self.complete = self._n_ended >= self._n and self._n_ended == len(self._choices)
        usage = find_usage(chunk)
        if usage is not None:
            events += self._take_usage(usage, chunk)
        if self.error is None:
            self.error = _find_error(chunk, error, failed)
            events += [] if self.error is None else [self.error]
        if self._warnings.new:
            events += self._warnings.take()
        return events

    def warn(self, text: str) -> list[StreamEvent]:
        """The event of a warning about the whole answer; nothing if there was one with this text."""
        self._warnings.add(text, 0)
        return self._warnings.take()

    def finish(self, done: bool = False) -> list[StreamEvent]:
        """The end of the stream: complete calls, then one message_stop per choice.

        Args:
            done: Whether the end mark [DONE] was seen, or the answer was one whole JSON body.

        Raises:
            StreamError: The server had reported a failure.
            IncompleteStream: There was neither a finish reason nor the end mark.
        """
        if self._closed:
            return []
        self._closed = True
        self._held = self.flush()
        if self.error is not None:
            error = self.error
            raise StreamError(error.message, error_type=error.error_type, code=error.code, partial=self.reply())
        if not self._choices or not (done or self.complete):
            raise IncompleteStream(self._cut_message(done), partial=self.reply())
        events = [*self.flush(), *(event for choice in self._sorted() for event in choice.close())]
        if self._usage is None and self._zero_usage is not None:
            self._usage = self._zero_usage
            events.append(UsageEvent(self._usage))
        if len(self._choices) < self._n:
            self._warnings.add(f"the server sent {len(self._choices)} of the {self._n} requested choices", 0)
        self._succeeded = True
        stops = [choice.stop() for choice in self._sorted()]
        return events + self._warnings.take() + stops

    def flush(self) -> list[StreamEvent]:
        """Text that was held back since it could have become a tag. Where an answer is cut, and after
        `finish` has raised, this is the rest of what has come."""
        events = self._held + [event for choice in self._sorted() for event in choice.flush()]
        self._held = []
        return events

    def reply(self) -> Reply[Any]:
        """What there is so far."""
        is_whole = self._n_chunks == 1 and is_whole_answer(self._payload)
        fields = {name: value for name, value in self._payload.items() if is_whole or name != "choices"}
        choices = tuple(choice.value(self._succeeded) for choice in self._sorted())
        return Reply(choices, self._id, self._model, self._usage, tuple(self._warnings.texts), raw=fields)

    def _start(self, chunk: Json) -> list[StreamEvent]:
        if not chunk.get("choices") and (chunk.get("error") or _is_flat_error(chunk)):
            return []
        self._announced = True
        self._id, self._model = non_blank(chunk.get("id")), non_blank(chunk.get("model"))
        return [MessageStart(self._id, self._model, 0, chunk)]

    def _choice(self, choice: Json, place: int) -> _Choice:
        index = as_index(choice.get("index"))
        index = place if index is None else index
        if index not in self._choices:
            self._choices[index] = _Choice(index, self._think_tags, self._warnings)
        return self._choices[index]

    def _sorted(self) -> list[_Choice]:
        return [self._choices[index] for index in sorted(self._choices)]

    def _take_usage(self, raw: Json, chunk: Json) -> list[StreamEvent]:
        """The last one that counts anything holds; some servers send zeros in every chunk."""
        usage = parse_usage(raw)
        if not usage.total_tokens:
            self._zero_usage = usage
        if usage == self._usage or not usage.total_tokens:
            return []
        self._usage = usage
        return [UsageEvent(usage, 0, chunk)]

    def _cut_message(self, done: bool) -> str:
        if done:
            return "the server ended the answer before it began"
        if not self._choices:
            return "the answer was cut before it began: the connection ended"
        texts = sum(len(part) for choice in self._choices.values() for part in choice.text)
        proof = "without a finish reason"
        if any(choice.went_on for choice in self._choices.values()):
            proof = "with text after its finish reason"
        elif any(choice.reason_raw for choice in self._choices.values()):
            proof = "with an unknown finish reason"
        return f"the answer was cut after {texts} characters: the connection ended {proof} and without [DONE]"


def _find_error(chunk: Json, error: Any, failed: _Choice | None) -> ErrorEvent | None:
    """The failure that a payload reports: in `error`, as a flat error, or by the finish reason of a choice."""
    groq = chunk.get("x_groq")
    error = error or (groq.get("error") if isinstance(groq, dict) else None)
    if error:
        return changed(parse_error({**chunk, "error": error}), raw=chunk)
    if _is_flat_error(chunk):
        return changed(parse_error(chunk), raw=chunk)
    if failed is None:
        return None
    message = f"the server ended the answer with the finish reason {failed.reason_raw!r}"
    return ErrorEvent(message, code=failed.reason_raw, choice_index=failed.index, raw=chunk)


def is_whole_answer(payload: Json) -> bool:
    """Whether this one object is a complete answer, as servers send it when they do not stream."""
    choices = payload.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return isinstance(first, dict) and "delta" not in first and ("message" in first or "text" in first)


def _is_flat_error(chunk: Json) -> bool:
    """An error without the field `error`, as older servers send it; `detail` is where FastAPI reports one."""
    return chunk.get("object") == "error" or ("detail" in chunk and not chunk.get("choices"))


def _native_choices(chunk: Json) -> list[Json]:
    """Ollama's own format as a choice: {message, done, done_reason}."""
    message = chunk.get("message")
    if not isinstance(message, dict):
        return []
    reason = (chunk.get("done_reason") or "stop") if chunk.get("done") else None
    return [{"index": 0, "delta": message, "finish_reason": reason}]


def _with_thought(choices: list[Any], thought: Any) -> list[Any]:
    """Some servers put the reasoning of the first choice beside the choices."""
    first = choices[0]
    if not isinstance(first, dict):
        return choices
    name = "message" if isinstance(first.get("message"), dict) else "delta"
    own = first.get(name)
    return [{**first, name: {"thought": thought, **(own if isinstance(own, dict) else {})}}, *choices[1:]]
