"""Assembly of one choice: its deltas and messages become events and a Choice. No I/O."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from typing import Any

from ..errors import cut
from ..events import TEXT_DELTAS, Annotations, Choice, Logprobs, MessageStop, StreamEvent, ToolCall, WarningEvent
from .payloads import Json, as_list, dump, normal_reason
from .text import SurrogateJoiner, ThinkSplitter
from .tool_calls import ToolCalls

# The fields of reasoning. Only the first that is not empty is used: some versions of vLLM send the same text in two.
_REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking", "thought")

# Other fields that the next request has to contain: signed or encrypted reasoning, and additions of services.
_KEPT_FIELDS = ("reasoning_details", "thinking_blocks", "extra_content", "provider_specific_fields")
_ITEM_TEXTS = ("text", "summary", "thinking")  # The texts of an item of these lists, which arrive in pieces.
_CUTS = ("length", "content_filter", "error")  # The finish reasons that say that the text is not complete.


class OpenChoice:
    """The state of one choice."""

    def __init__(
        self, index: int, think_tags: str, tool_names: Collection[str], warnings: dict[str, StreamEvent]
    ) -> None:
        self.index = index
        self._warnings = warnings
        # The payload that is being added, and the events that are not returned yet.
        self._chunk: Any = None
        self._events: list[StreamEvent] = []
        # The pieces of each kind of text.
        self.pieces: dict[str, list[str]] = {"content": [], "reasoning": [], "refusal": []}
        # The content as received, with tags. A complete message that follows the deltas is compared with it.
        self._content: list[str] = []
        self.logprobs: list[Any] = []
        self._splitter = ThinkSplitter(think_tags)
        self._joiners = {kind: SurrogateJoiner(self._warn) for kind in self.pieces}
        self._calls = ToolCalls(index, self._warn, tool_names)
        # Calls in the old field `function_call`, used only without `tool_calls`: some servers send a call in both.
        self._legacy_calls = ToolCalls(index, self._warn, tool_names)
        self._finished_calls: tuple[ToolCall, ...] | None = None
        self._reasoning_field: str | None = None
        # The fields of `_KEPT_FIELDS`, the parts of Mistral's reasoning, and whether the content was null and no text.
        self._kept: Json = {}
        self._thinking: list[Any] = []
        self._annotations: list[Any] = []
        self._content_is_null = False
        self.reason_raw: str | None = None
        # Whether text came after a finish reason. Some servers send a finish reason with every delta.
        self._continued_after_finish = False
        self._stop_reason: Any = None

    def take(self, choice: Json, chunk: Any) -> list[StreamEvent]:
        """Add an element of `choices`: its delta or message, then its finish reason. It may have both."""
        self._chunk = chunk
        delta, message, logprobs = choice.get("delta"), choice.get("message"), choice.get("logprobs")
        if isinstance(delta, dict) and delta:
            self._take_delta(delta)
        if isinstance(message, dict):
            # Some servers send the fields of a delta again in a message beside it.
            seen = delta.items() if isinstance(delta, dict) else ()
            self._take_message({name: value for name, value in message.items() if (name, value) not in seen})
        elif not delta and isinstance(choice.get("text"), str):
            self._take_content(choice["text"])
        if self.reason_raw is not None and self._events:
            self._continued_after_finish = True
        if isinstance(logprobs, dict):
            content = logprobs.get("content")
            items = content if isinstance(content, list) else _completion_logprobs(logprobs)
            self.logprobs += items
            self._events += [Logprobs(tuple(items), self.index, chunk)] if items else []
        reason = choice.get("finish_reason")
        if reason and str(reason).strip():
            # The first reason counts, unless text or a reason that says a cut follows it.
            is_first = self.reason_raw is None or self._continued_after_finish
            if is_first or (self.reason() not in _CUTS and normal_reason(str(reason)) in _CUTS):
                self.reason_raw = str(reason)
        stop_reason = choice.get("stop_reason", choice.get("stop_str"))
        if stop_reason is not None:
            self._stop_reason = stop_reason
        return self._take_events()

    def _take_events(self) -> list[StreamEvent]:
        events, self._events, self._chunk = self._events, [], None
        return events

    def _take_delta(self, delta: Json, is_summary: bool = False) -> None:
        content = delta.get("content")
        if content and len(delta) == 1:  # A fast path for nearly every delta.
            self._take_content(content, is_summary)
            return
        self._take_reasoning(*_reasoning(delta))
        if content:
            self._take_content(content, is_summary)
        elif content is None and "content" in delta:
            self._content_is_null = True
        for name in _KEPT_FIELDS:
            if delta.get(name) and not is_summary:
                self._kept[name] = _joined(self._kept.get(name), delta[name])
        notes = [note for note in as_list(delta.get("annotations")) if note not in self._annotations]
        self._annotations += notes
        self._events += [Annotations(tuple(notes), self.index, self._chunk)] if notes else []
        refusal = delta.get("refusal")
        if refusal and isinstance(refusal, str):
            self._emit("refusal", refusal)
        for call in as_list(delta.get("tool_calls")):
            event = self._calls.take(call, self._chunk, is_summary) if isinstance(call, dict) else None
            self._events += [] if event is None else [event]
        legacy = delta.get("function_call")
        if isinstance(legacy, dict):
            self._legacy_calls.take({"index": 0, "function": legacy})

    def _take_reasoning(self, name: str, text: str) -> None:
        if text and self._reasoning_field is None:
            self._reasoning_field = name
            self._release()  # The splitter gets no more content.
        self._emit("reasoning", text)

    def _take_message(self, message: Json) -> None:
        """Add a complete message. After deltas, only what they lacked is emitted."""
        name, text = _reasoning(message)
        self._take_reasoning(name, _new_part(text, self.pieces["reasoning"]))
        self._kept.update({field: message[field] for field in _KEPT_FIELDS if message.get(field)})
        rest = {field: value for field, value in message.items() if not field.startswith(_REASONING_FIELDS)}
        # The content of the message may have the tags or not, so it is compared with the content in both forms.
        for field, *known in (("content", self._content, self.pieces["content"]), ("refusal", self.pieces["refusal"])):
            if isinstance(rest.get(field), str):
                rest[field] = _new_part(rest[field], *known)
        self._take_delta(rest, is_summary=True)

    def _take_content(self, content: Any, is_summary: bool = False) -> None:
        if not isinstance(content, str):
            self._release()
            thinking = [part for part in as_list(content) if isinstance(part, dict) and part.get("type") == "thinking"]
            self._thinking = thinking if is_summary and thinking else _joined(self._thinking, thinking)
            parts = list(_content_parts(content))
            if is_summary and any(self.pieces.values()):
                texts = {kind: "".join(text for one, text in parts if one == kind) for kind in self.pieces}
                parts = [(kind, _new_part(text, self.pieces[kind])) for kind, text in texts.items()]
            for kind, text in parts:
                if kind == "unknown":
                    self._warn(f"a content part is not text and was left out: {cut(text, 80)}")
                else:
                    self._emit(kind, text)
            return
        self._content.append(content)
        # Content is not searched for tags if the server separates the reasoning itself.
        if self._reasoning_field is not None or self._splitter.state == "text":
            self._emit("content", content)
            return
        for kind, text in self._splitter.feed(content):
            self._emit(kind, text)

    def _warn(self, text: str) -> None:
        self._warnings.setdefault(text, WarningEvent(text, self.index))

    def _emit(self, kind: str, text: str, ended: bool = False) -> None:
        text = self._joiners[kind].feed(text, ended)
        if text:
            self.pieces[kind].append(text)
            self._events.append(TEXT_DELTAS[kind](text, self.index, self._chunk))

    def _release(self) -> None:
        """Emit the text that may have been the beginning of a tag or of a surrogate pair."""
        for kind, text in self._splitter.feed("", ended=True):
            self._emit(kind, text)
        for kind in self._joiners:
            self._emit(kind, "", ended=True)

    def flush(self) -> list[StreamEvent]:
        """The events of the held text."""
        self._release()
        return self._take_events()

    def close(self) -> list[StreamEvent]:
        """The events at the end of a stream that was not cut: text after a <think> that is never closed, then calls."""
        self._finished_calls = tuple(self._current_calls())
        if self._splitter.state == "reasoning" and self.stop().reason == "stop":
            text = self._splitter.opening + "".join(self.pieces["reasoning"])
            self.pieces["reasoning"] = []
            self._emit("content", text)
            self._warn("the reasoning is never closed by </think>: all of the content is text")
        elif self._splitter.state == "reasoning":
            self._warn("the text ends inside <think>: the reasoning may contain the answer")
        before, tag, _ = "".join(self._content).partition("</think>")
        if tag and not self.pieces["reasoning"] and "<think>" not in before:
            self._warn("the text has a </think> without <think>: is it a case for think_tags='prefilled'?")
        return [*self._take_events(), *self._finished_calls]

    def _current_calls(self) -> list[ToolCall]:
        return (self._calls or self._legacy_calls).finish(cut_off=self.reason() in _CUTS)

    def reason(self) -> str | None:
        """The client's name for the finish reason, "unknown" for an unknown one; None if there is none."""
        return None if self.reason_raw is None else normal_reason(self.reason_raw) or "unknown"

    @property
    def has_finished(self) -> bool:
        """Whether a finish reason was received, and no text after it."""
        return self.reason_raw is not None and not self._continued_after_finish

    def stop(self) -> MessageStop:
        """The last event. Its reason is "tool_calls" if there are calls, even if the server sent "stop"."""
        reason = self.reason()
        if reason == "unknown":
            self._warn(f"unknown finish reason {self.reason_raw!r}")
        if reason is None:
            self._warn("the server sent no finish reason: whether the text is complete is not known")
        if reason in (None, "stop", "tool_calls"):
            reason = "tool_calls" if self._finished_calls else "stop"
        return MessageStop(reason, self.reason_raw, self.reason_raw is None, self._stop_reason, self.index)

    def value(self, succeeded: bool) -> Choice:
        """The choice so far. After success it has a finish reason, even if the server sent none."""
        text, reasoning, refusal = map("".join, self.pieces.values())
        calls = tuple(self._current_calls()) if self._finished_calls is None else self._finished_calls
        reason = self.stop().reason if succeeded or self.reason_raw else None
        end = (reason, self.reason_raw, self._stop_reason)
        items = tuple(self.logprobs), self._reasoning_field, tuple(self._annotations)
        extra = dict(self._kept)
        if self._thinking:
            extra["content"] = [*self._thinking, *([{"type": "text", "text": text}] if text else [])]
        elif self._content_is_null and calls and not text:
            extra["content"] = None
        return Choice(self.index, text, reasoning, refusal, calls, *end, *items, extra)


def _completion_logprobs(logprobs: Json) -> list[Json]:
    """Convert the log probabilities of /completions, which are parallel lists, to the format of a chat."""
    columns = [as_list(logprobs.get(name)) for name in ("tokens", "token_logprobs", "top_logprobs")]
    items = []
    for token, value, top in itertools.zip_longest(*columns):
        options = top.items() if isinstance(top, dict) else ()
        others = [{"token": other, "logprob": number} for other, number in options]
        items.append({"token": token, "logprob": value, "bytes": None, "top_logprobs": others})
    return items


def _reasoning(delta: Json) -> tuple[str, str]:
    """The name of the field with reasoning, and its text; both empty if there is none."""
    for name in _REASONING_FIELDS:
        text = delta.get(name)
        if text and isinstance(text, str):
            return name, text
    for name in ("reasoning_details", "thinking_blocks"):
        items = [item for item in as_list(delta.get(name)) if isinstance(item, dict)]
        texts = [item[field] for item in items for field in _ITEM_TEXTS if isinstance(item.get(field), str)]
        if texts:
            return name, "".join(texts)
    return "", ""


def _joined(known: Any, new: Any, is_text: bool = False) -> Any:
    """The value of a field after a delta: texts, objects and lists are joined, and an item with its pieces."""
    if is_text and isinstance(known, str) and isinstance(new, str):
        return known + new
    if isinstance(known, dict) and isinstance(new, dict):
        filled = {name: value for name, value in new.items() if value not in (None, "")}
        joined = {name: _joined(known.get(name), value, name in _ITEM_TEXTS) for name, value in filled.items()}
        return {**new, **known, **joined}
    if not isinstance(known, list) or not isinstance(new, list):
        return new
    items = list(known)
    for item in new:
        place = next((i for i, one in enumerate(items) if _continues(one, item)), len(items))
        items[place : place + 1] = [_joined(one, item) for one in items[place : place + 1]] or [item]
    return items


def _continues(known: Any, item: Any) -> bool:
    """Whether an item is a piece of a known one. A signature ends an item, and encrypted `data` comes in one piece."""
    is_open = isinstance(known, dict) and isinstance(item, dict) and not known.get("signature")
    if not is_open or "data" in {**known, **item}:
        return False
    same_id = item.get("id") in (None, known.get("id"))
    return same_id and all(known.get(name) == item.get(name) for name in ("type", "index"))


def _content_parts(content: Any) -> Iterator[tuple[str, str]]:
    """The kind and the text of each part of content that is a list (Mistral); "unknown" and JSON for another part."""
    for part in content if isinstance(content, list) else [content]:
        if isinstance(part, str):
            yield "content", part
        elif isinstance(part, dict) and part.get("type") == "thinking":
            for _, text in _content_parts(part.get("thinking") or []):
                yield "reasoning", text
        elif isinstance(part, dict) and isinstance(part.get("refusal"), str):
            yield "refusal", part["refusal"]
        elif isinstance(part, dict) and isinstance(part.get("text"), str):
            yield "content", part["text"]
        else:
            yield "unknown", dump(part)


def _new_part(text: str, *known: list[str]) -> str:
    """What `text` adds to a known text, a list of pieces, that it begins with; "" if one begins with it; else all."""
    for pieces in known:
        seen = "".join(pieces)
        pieces[:] = [seen]
        if text.startswith(seen):
            return text[len(seen) :]
        if seen.strip().startswith(text.strip()):
            return ""
    return text
