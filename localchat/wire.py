"""OpenAI's JSON, and what other servers make of it, to values and back; and the HTTP it comes in. No I/O.

`build_request` makes the body of a request. `ResponseReader` takes the HTTP off an answer, `parse_frame`
reads one payload of it, `Accumulator` turns payloads into typed events and at any moment into a Reply;
`parse_error` reads the error bodies that are about. The writer is strict, the reader liberal: what can be
repaired is repaired and reported in a warning event, what cannot raises a typed error, and nothing is
dropped in silence. Raw JSON ends here.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Union

from .events import (
    Choice,
    ContentDelta,
    ErrorEvent,
    IncompleteStream,
    Logprobs,
    MessageStart,
    MessageStop,
    ProtocolError,
    ReasoningDelta,
    RefusalDelta,
    Reply,
    StreamError,
    StreamEvent,
    ToolCall,
    ToolCallDelta,
    Usage,
    UsageEvent,
    WarningEvent,
    changed,
)

Json = dict[str, Any]
Prompt = Union[str, Sequence[Mapping[str, Any]]]

_DECODER = json.JSONDecoder()

# How much of a strange answer goes into an error message.
_HEAD_CHARS = 200

# Where reasoning is found, in order; the first that is text wins. During a rename vLLM sent the same text
# in two of them, so they are never added up (K8).
_REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking", "thought")

# Finish reasons, in lower case, to the five of ours. Unlike in other such tables an error stays an error.
_REASONS = {
    raw: reason
    for reason, words in {
        "stop": "stop end_turn stop_sequence eos eos_token eom complete completed load unload",
        "length": "length max_tokens max_output_tokens model_length compaction",
        "tool_calls": "tool_calls tool_call tool_use function_call",
        "content_filter": "content_filter content_filtered safety recitation refusal sensitive blocklist "
        "prohibited_content spii guardrail_intervened",
        "error": "error network_error abort insufficient_system_resource malformed_function_call",
    }.items()
    for raw in words.split()
}

# The names of token counts. A zero under one name must not hide a count under a later one (C15, K15).
_INPUT_NAMES = ("prompt_tokens", "input_tokens", "prompt_eval_count")
_OUTPUT_NAMES = ("completion_tokens", "output_tokens", "eval_count")
_TOTAL_NAMES = ("total_tokens",)
_CACHED_NAMES = (
    "prompt_tokens_details.cached_tokens",
    "input_tokens_details.cached_tokens",
    "prompt_cache_hit_tokens",
    "cache_read_input_tokens",
    "cached_tokens",
)
_REASONING_NAMES = (
    "completion_tokens_details.reasoning_tokens",
    "output_tokens_details.reasoning_tokens",
    "reasoning_tokens",
)


# Requests


def build_request(
    prompt: Prompt,
    *,
    model: str | None = None,
    system: str | None = None,
    stream: bool = True,
    options: Mapping[str, Any] | None = None,
) -> Json:
    """The body of a chat request. Text becomes one user message; every option becomes a member.

    Only what the caller set is sent: None means "not set" (K9). An empty list of tools is left out,
    since servers refuse it (C5), and a stream asks for its usage unless `stream_options` says otherwise.
    Members may also come in `extra_body`, as OpenAI's client has it.

    Raises:
        ValueError: `options` has messages too.
        TypeError: A tool is a function.
    """
    given = dict(options or {})
    given.update(given.pop("extra_body", None) or {})
    if "messages" in given:
        raise ValueError("messages are the first argument: as an option they would take the place of the prompt")
    members = {name: value for name, value in given.items() if value is not None}
    if any(map(callable, members.get("tools") or ())):
        raise TypeError("functions as tools go to run(), which calls them; chat() and stream() take tools as JSON")
    if not members.get("tools"):
        members.pop("tools", None)
        if members.get("tool_choice") in ("auto", "none"):
            del members["tool_choice"]
    body: Json = {} if model is None else {"model": model}
    body["messages"] = _messages(prompt, system)
    body.update(members)
    body["stream"] = stream
    stream_options = body.pop("stream_options", {"include_usage": True})
    if stream and stream_options:
        body["stream_options"] = stream_options
    return body


def _messages(prompt: Prompt, system: str | None) -> list[Json]:
    messages = [{"role": "system", "content": system}] if system is not None else []
    if isinstance(prompt, str):
        return [*messages, {"role": "user", "content": prompt}]
    return [*messages, *(dict(message) for message in prompt)]


# HTTP responses


# More than servers send, and enough to fill no memory.
_MAX_HEAD_BYTES = 256 * 1024
_MAX_LINE_BYTES = 65536

_STATUS_LINE = re.compile(r"HTTP/1\.(\d) +(\d{3})(?: |$)")
_EMPTY_LINE = re.compile(rb"\n\r?\n")
# The end of a chunk and the size of the next one, and how far that may have come where the bytes end.
_CHUNK_SIZE = re.compile(rb"\r?\n[ \t]*([0-9a-fA-F]{1,15})[ \t]*(?:;[^\n]*)?\r?\n")
_CHUNK_SIZE_BEGUN = re.compile(rb"\r?|\r?\n[ \t]*[0-9a-fA-F]{0,15}[ \t]*(?:;[^\n]*)?\r?")


class ResponseReader:
    """One HTTP/1 response: bytes in, body out.

    `status` is 0 until the head is complete; `begun` tells whether any byte has come. Once `ended`, `rest` is
    what came after the response. A `fault` in the framing of the body says why no more can be read of it.
    """

    def __init__(self) -> None:
        self.status = 0
        self.headers: list[tuple[str, str]] = []
        self.keeps_alive = False
        self.ended = False
        self.rest = b""
        self.begun = False
        self.fault = ""
        # What an unfinished head or line has so far, and how many bytes are missing.
        self._held = b""
        self._left = 0
        self._step = ResponseReader._take_head

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes and return what they hold of the body.

        Raises:
            ProtocolError: This is no HTTP.
        """
        self.begun = self.begun or data != b""
        if self.ended or self.fault:
            self.rest += data
            return b""
        data, self._held = self._held + data, b""
        return self._step(self, data)

    def feed_end(self) -> None:
        """The connection has ended.

        Raises:
            IncompleteStream: Before the response did.
        """
        if self._step is ResponseReader._take_rest:
            self.ended = True
        if not self.ended:
            missing = f"{self._left} bytes" if self._left else "at least one chunk"
            raise IncompleteStream(f"the connection ended {missing if self.status else 'the headers'} too early")

    # Each step takes bytes and returns body. Plain functions: bound methods would make it refer to itself.

    def _take_head(self, data: bytes) -> bytes:
        while not self.status:
            if not b"HTTP/".startswith(data[:5]):
                raise ProtocolError(f"this is no HTTP: {cut(data[:200].decode('latin-1'))}")
            end = _EMPTY_LINE.search(data)
            if end is None:
                if len(data) > _MAX_HEAD_BYTES:
                    raise ProtocolError(f"the headers have more than {_MAX_HEAD_BYTES} bytes")
                self._held = data
                return b""
            self._read_head(data[: end.end()].decode("latin-1"))
            data = data[end.end() :]
        return self.feed(data)

    def _read_head(self, head: str) -> None:
        first, *lines = head.split("\n")
        match = _STATUS_LINE.match(first.rstrip("\r"))
        if match is None:
            raise ProtocolError(f"this is no HTTP: {cut(first)}")
        status = int(match[2])
        if status >= 200:  # Below, it announces something, and the answer itself follows.
            self.status = status
            pairs = [line.partition(":") for line in lines if line.strip()]
            self.headers = [(name.strip().lower(), value.strip()) for name, _, value in pairs]
            self._set_framing(match[1] != "0")

    def _set_framing(self, newer: bool) -> None:
        connection = self._values("connection")
        lengths = set(self._values("content-length"))
        self.keeps_alive = "close" not in connection if newer else "keep-alive" in connection
        if self.status in (204, 304):
            self.ended = True
        elif self._values("transfer-encoding")[-1:] == ["chunked"]:
            self._held = b"\r\n"  # As if a chunk had been before the first one.
            self._step = ResponseReader._take_chunks
        elif lengths:
            length = lengths.pop()
            if lengths or not length.isdecimal() or len(length) > 18:
                raise ProtocolError(f"the server gives a wrong length of the answer: {cut(length, 40)!r}")
            self._left = int(length)
            self.ended = self._left == 0
            self._step = ResponseReader._take_length
        else:
            self.keeps_alive = False
            self._step = ResponseReader._take_rest

    def _values(self, name: str) -> list[str]:
        """What a header lists, in lower case; it may come more than once."""
        values = ",".join(value for known, value in self.headers if known == name)
        return [value for value in (item.strip().lower() for item in values.split(",")) if value]

    def _take_length(self, data: bytes) -> bytes:
        body, self.rest = data[: self._left], data[self._left :]
        self._left -= len(body)
        self.ended = not self._left
        return body

    def _take_rest(self, data: bytes) -> bytes:
        return data

    def _take_chunks(self, data: bytes) -> bytes:
        body: list[bytes] = []
        at = 0
        while True:
            if self._left:
                piece = data[at : at + self._left]
                body.append(piece)
                at += len(piece)
                self._left -= len(piece)
                if self._left:
                    break
            size = _CHUNK_SIZE.match(data, at)
            if size is None:
                self._hold(data[at:])
                break
            at = size.end()
            self._left = int(size[1], 16)
            if not self._left:
                self._step = ResponseReader._take_trailer
                self._take_trailer(b"\n" + data[at:])
                break
        return b"".join(body)

    def _hold(self, line: bytes) -> None:
        if len(line) > _MAX_LINE_BYTES or not _CHUNK_SIZE_BEGUN.fullmatch(line):
            self.fault = f"this is no size of a chunk: {cut(line.decode('latin-1'), 40)!r}"
        self._held = line

    def _take_trailer(self, data: bytes) -> bytes:
        """Lines that nobody reads, up to an empty one."""
        end = _EMPTY_LINE.search(data)
        if end is None:
            self._held = data[-2:]
        else:
            self.ended, self.rest = True, data[end.end() :]
        return b""


# Payloads


def cut(text: str, limit: int = _HEAD_CHARS) -> str:
    """`text` on one line and no longer than `limit`, for a message."""
    line = " ".join(text[: limit * 4].split())
    return line if len(line) <= limit else line[:limit] + "..."


def parse_frame(event: str, data: str) -> Json | bool | None:
    """One payload of an answer: a JSON object, True for the end mark [DONE], None for nothing.

    Nothing are keep-alives (blank data, or a comment that a proxy wrapped into data) and events with
    names of their own that carry neither choices nor an error.

    Raises:
        ProtocolError: The data is not a JSON object.
    """
    text = data.strip()
    if text == "[DONE]":
        return True
    if not text or text.startswith(":"):
        return None
    try:
        payload, end = _DECODER.raw_decode(text)
        if end < len(text):
            json.loads(text)  # Says what is wrong. Otherwise it is twice as slow as raw_decode on short text.
    except (ValueError, RecursionError) as error:
        if event == "error":
            return {"error": text}
        if event != "message":
            return None
        message = f"the server sent something that is not JSON ({error}): {cut(text)}"
        raise ProtocolError(message, head=cut(text)) from None
    if event == "message" and isinstance(payload, dict):
        return payload
    return _named_payload(event, payload, text)


def _named_payload(event: str, payload: Any, text: str) -> Json | None:
    if event == "error":
        has_error = isinstance(payload, dict) and payload.get("error")
        return payload if has_error else {"error": payload or text}
    if not isinstance(payload, dict):
        if event != "message":
            return None
        raise ProtocolError(f"the server sent JSON that is no object: {cut(text)}", head=cut(text))
    return payload if "choices" in payload or "error" in payload else None


def parse_error(body: Any) -> ErrorEvent:
    """What an error body says, in any of the shapes that are about (K27): text, JSON text or JSON.

    Never raises; what is not understood becomes the message, cut.
    """
    if isinstance(body, str):
        try:
            parsed = json.loads(body)
        except (ValueError, RecursionError):
            return ErrorEvent(cut(body) or "no reason given", raw=body)
        return ErrorEvent(cut(parsed), raw=body) if isinstance(parsed, str) else parse_error(parsed)
    outer = body[0] if isinstance(body, list) and body else body
    outer = outer if isinstance(outer, dict) else {"error": outer}
    inner = outer.get("error") or outer
    if not isinstance(inner, dict):
        inner = {**outer, "message": inner if isinstance(inner, str) else _dump(inner)}
    message = _error_message(inner) or _error_message(outer) or cut(_dump(body))
    kind, code, param = (_text_or_none(inner.get(name)) for name in ("type", "code", "param"))
    return ErrorEvent(message, kind, code, param, raw=body)


def _error_message(error: Json) -> str:
    """The message of an error object; FastAPI keeps it in `detail`, as text or as a list of faults."""
    for name in ("message", "detail", "msg"):
        value = error.get(name)
        if isinstance(value, str) and value.strip():
            return value.strip()
        if isinstance(value, list):
            return "; ".join(_fault(item) for item in value)
    return ""


def _fault(item: Any) -> str:
    if not isinstance(item, dict):
        return str(item)
    steps = item.get("loc") or ()
    where = ".".join(map(str, steps if isinstance(steps, (list, tuple)) else [steps]))
    return f"{where}: {item.get('msg')}" if where else str(item.get("msg"))


def parse_models(body: Any) -> list[str]:
    """The names in a list of models: OpenAI's {data: [{id}]}, Ollama's {models: [{name}]}, or a bare list.

    Raises:
        ProtocolError: It is no list of models.
    """
    if isinstance(body, dict):
        body = body.get("data", body.get("models"))
    if not isinstance(body, list):
        raise ProtocolError("the list of models has neither data nor models")
    names = [
        item if isinstance(item, str) else item.get("id") or item.get("name") or item.get("model")
        for item in body
        if isinstance(item, (str, dict))
    ]
    return [name for name in names if isinstance(name, str) and name]


def parse_embeddings(body: Any, n: int) -> list[list[float]]:
    """The vectors of an answer of /embeddings, in the order of the texts.

    Raises:
        ProtocolError: They are not `n` vectors.
    """
    data = body.get("data") if isinstance(body, dict) else None
    items = [item for item in _listed(data) if isinstance(item, dict)]
    items.sort(key=lambda item: _index(item.get("index")) or 0)
    vectors: list[Any] = [item.get("embedding") for item in items]
    if len(vectors) != n or not all(isinstance(vector, list) for vector in vectors):
        raise ProtocolError(f"the answer does not hold the embeddings of {n} texts")
    return vectors


def _dump(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:  # It was just within the limit when it was read.
        return "JSON that is nested too deeply"


def _text_or_none(value: Any) -> str | None:
    return None if value is None or value == "" else str(value)


def normal_reason(raw: str) -> str | None:
    """Ours for the server's finish reason, None if the word is unknown (K7)."""
    return _REASONS.get(raw.strip().lower())


# Usage


def _usage(raw: Json) -> Usage:
    read, written = _count(raw, _INPUT_NAMES) or 0, _count(raw, _OUTPUT_NAMES) or 0
    cached, reasoning = _count(raw, _CACHED_NAMES), _count(raw, _REASONING_NAMES)
    return Usage(read, written, _count(raw, _TOTAL_NAMES) or read + written, cached, reasoning, raw)


def _count(raw: Json, names: Sequence[str]) -> int | None:
    """The first non-zero count, 0 if there are only zeros, None if there is nothing."""
    found = None
    for name in names:
        value: Any = raw
        for step in name.split("."):
            value = value.get(step) if isinstance(value, dict) else None
        number = _integer(value)
        if number:
            return number
        found = number if found is None else found
    return found


def _integer(value: Any) -> int | None:
    """Lenient: text and floats count, NaN and infinity, which JSON readers accept, do not (C14)."""
    if value is None or isinstance(value, bool):
        return None
    try:
        return int(value)
    except (ValueError, TypeError, OverflowError):
        return None


def _find_usage(chunk: Json) -> Json | None:
    """Wherever it hides: at the top, in `x_groq` (Groq), in a choice (Moonshot), or bare (Ollama)."""
    found: Json | None = None
    places = _listed(chunk.get("choices"))
    if "usage" in chunk or "x_groq" in chunk:
        places = [chunk, chunk.get("x_groq"), *places]
    for place in places:
        usage = place.get("usage") if isinstance(place, dict) else None
        if usage and isinstance(usage, dict) and (found is None or not _usage(found).total_tokens):
            found = usage
    return chunk if found is None and ("eval_count" in chunk or "prompt_eval_count" in chunk) else found


# Reasoning inside the content


_TAGS = {"<think>": "</think>", "<thinking>": "</thinking>", "<thought>": "</thought>"}
_OPEN, _CLOSE = "<think>", "</think>"

# A model that begins with more blanks than this is not about to think.
_MAX_LEADING_BLANKS = 256


class ThinkSplitter:
    """Takes `<think>...</think>` at the start of the content apart, however the text is cut.

    Modes: "auto" looks for a tag as the first thing that is not blank; "prefilled" knows that the
    template has opened the tag already, so that only the closing one comes; "off" passes all through.
    In "auto" a closing tag that ends a line or begins one, without an opening one, means that the
    template had opened it after all: "reclassify" says that the content before was reasoning.
    """

    def __init__(self, mode: str = "auto") -> None:
        if mode not in _FIRST_STEPS:
            raise ValueError(f"think_tags must be one of {', '.join(_FIRST_STEPS)}, not {mode!r}")
        self._step = _FIRST_STEPS[mode]
        self._prefilled = mode == "prefilled"
        self._close = _CLOSE
        self._held = ""
        self._last = "\n"  # The character before what is held: the first line counts as a line start.
        self._ended = False
        self._out: list[tuple[str, str]] = []

    @property
    def unclosed(self) -> bool:
        """The template had opened the tag, and it was never closed: which part was which is unknown."""
        return self._prefilled and self._step in (ThinkSplitter._thought, ThinkSplitter._thought_start)

    def feed(self, text: str) -> list[tuple[str, str]]:
        """Pairs of "content", "reasoning" or "reclassify" and the text that is certain by now."""
        if not self._held and "<" not in text and self._step in _PASSING_STEPS:
            self._last = text[-1:] or self._last
            return [("content", text)] if text else []
        self._held += text
        return self._run()

    def flush(self) -> list[tuple[str, str]]:
        """At the end: what was held back."""
        self._ended = True
        return self._run()

    def _run(self) -> list[tuple[str, str]]:
        while self._step(self):
            pass
        out, self._out = self._out, []
        return out

    def _emit(self, kind: str, length: int) -> None:
        text, self._held = self._held[:length], self._held[length:]
        if text:
            self._last = text[-1]
            self._out.append((kind, text))

    # Each step consumes what it can of what is held and says whether another step has to go on.

    def _start(self) -> bool:
        text = self._held.lstrip()
        for tag, close in _TAGS.items():
            if text.startswith(tag):
                self._held, self._close = text[len(tag) :], close
                self._step = ThinkSplitter._thought_start
                return True
            if tag.startswith(text) and not self._ended and len(self._held) <= _MAX_LEADING_BLANKS:
                return False
        self._step = ThinkSplitter._content
        return True

    def _thought_start(self) -> bool:
        self._held = self._held.lstrip()
        if self._prefilled and not self._ended and _OPEN.startswith(self._held[: len(_OPEN)]):
            if len(self._held) < len(_OPEN):
                return False
            self._held = self._held[len(_OPEN) :].lstrip()
        if not self._held:
            return False
        self._step = ThinkSplitter._thought
        return True

    def _thought(self) -> bool:
        end = self._held.find(self._close)
        if end < 0:
            self._emit("reasoning", len(self._held) - self._tail_that_may_be(self._close))
            return False
        self._emit("reasoning", end)
        self._held = self._held[len(self._close) :]
        self._step = ThinkSplitter._after
        return True

    def _after(self) -> bool:
        self._held = self._held.lstrip()
        if not self._held:
            return False
        self._step = ThinkSplitter._plain
        return True

    def _plain(self) -> bool:
        self._emit("content", len(self._held))
        return False

    def _content(self) -> bool:
        """No tag at the start. Watch for a lone closing tag; text that merely mentions tags is text."""
        opening, closing = self._held.find(_OPEN), self._held.find(_CLOSE)
        if closing < 0 or 0 <= opening < closing:
            if opening >= 0:
                self._step = ThinkSplitter._plain
                return True
            tail = max(self._tail_that_may_be(_OPEN), self._tail_that_may_be(_CLOSE))
            self._emit("content", len(self._held) - tail)
            return False
        self._emit("content", closing)
        rest = self._held[len(_CLOSE) :]
        if not rest and not self._ended and self._last != "\n":
            return False  # Only the next character tells whether the tag ends its line.
        if self._last == "\n" or rest.startswith("\n"):
            self._out.append(("reclassify", ""))
            self._held = rest
            self._step = ThinkSplitter._after
        else:
            self._step = ThinkSplitter._plain
        return True

    def _tail_that_may_be(self, tag: str) -> int:
        """How many characters at the end of what is held may be the beginning of `tag`."""
        if self._ended:
            return 0
        sizes = range(min(len(tag) - 1, len(self._held)), 0, -1)
        return next((size for size in sizes if tag.startswith(self._held[-size:])), 0)


# Steps are plain functions: bound methods would make the splitter refer to itself.
_FIRST_STEPS = {
    "auto": ThinkSplitter._start,
    "prefilled": ThinkSplitter._thought_start,
    "off": ThinkSplitter._plain,
}
_PASSING_STEPS = (ThinkSplitter._plain, ThinkSplitter._content)


# Tool calls


class _OpenCall:
    """One call while its pieces come in."""

    def __init__(self, position: int, index: int | None) -> None:
        self.position = position
        self.index = index
        self.id: str | None = None
        self.made_id = ""
        self.name: str | None = None
        self.extra: Json = {}
        self.parts: list[str] = []
        # Pieces that came before the name, not yet handed out; whether the call has been announced.
        self.waiting: list[str] = []
        self.announced = False
        # For servers that send all the arguments so far with every delta.
        self.latest = ""
        self.cumulative = True
        # Whether the arguments are complete JSON; None if that has to be found out again.
        self._whole: bool | None = None

    def text(self) -> str:
        self.parts = ["".join(self.parts)]
        return self.parts[0]

    def is_whole(self) -> bool:
        """Whether the arguments are complete JSON by now. The last character tells most of the time."""
        if self._whole is None:
            last = next((part for part in reversed(self.parts) if part.strip()), "")
            self._whole = last.rstrip().endswith("}") and _loads(self.text())[1] is None
        return self._whole

    def take(self, piece: str) -> str:
        """Append a piece; returns what of it is new."""
        if not piece:
            return ""
        self.parts.append(piece)
        self._whole = None
        self.cumulative = self.cumulative and len(piece) > len(self.latest) and piece.startswith(self.latest)
        fresh = piece[len(self.latest) :] if self.cumulative else piece
        self.latest = piece
        return fresh


class _Warnings:
    """What was repaired in one answer, each thing once."""

    def __init__(self) -> None:
        self.texts: dict[str, None] = {}
        self.new: list[StreamEvent] = []

    def add(self, text: str, choice_index: int) -> None:
        if text not in self.texts:
            self.texts[text] = None
            self.new.append(WarningEvent(text, choice_index))

    def take(self) -> list[StreamEvent]:
        """The events for what is new."""
        new, self.new = self.new, []
        return new


class ToolCalls:
    """Assembles the calls of one choice by the rules that serve every dialect (K16, C22, L39).

    A server's index is a label, never a position: some servers give all calls the same one, or none.
    """

    def __init__(self, choice_index: int, warnings: _Warnings) -> None:
        self._choice_index = choice_index
        self._warnings = warnings
        self._calls: list[_OpenCall] = []
        self._by_id: dict[str, _OpenCall] = {}
        self._by_index: dict[int, _OpenCall] = {}

    def __bool__(self) -> bool:
        return bool(self._calls)

    def take(self, delta: Json, raw: Any = None) -> ToolCallDelta | None:
        """One element of `tool_calls`; returns the event it makes, if any."""
        function = delta.get("function")
        if not isinstance(function, dict):
            function = delta if "name" in delta else {}
        index = _index(delta.get("index", function.get("index")))
        id, name = _filled(delta.get("id")), _filled(function.get("name"))
        piece = _arguments_text(function.get("arguments"))
        extra = {key: value for key, value in delta.items() if key not in _CALL_MEMBERS}
        if not (self._calls or id or name or piece):
            return None
        call = self._find(index, id, name, piece) or self._open(index)
        self._name(call, id, name)
        call.extra.update(extra)
        return self._event(call, piece, raw)

    def take_whole(self, delta: Json, raw: Any = None) -> ToolCallDelta | None:
        """The same from a message that repeats what came before: a call that is known is not added to."""
        function = delta.get("function")
        if isinstance(function, dict):
            piece = _arguments_text(function.get("arguments"))
            id, index = _filled(delta.get("id")), _index(delta.get("index")) or 0
            known = self._by_id.get(id or "") or self._by_index.get(index)
            if known is not None and None not in (id, known.id) and id != known.id:
                known = None  # Another call of a server that numbers all calls alike.
            if known is not None and known.name == function.get("name") and known.text() == piece:
                return None
        return self.take(delta, raw)

    def finish(self, cut_off: bool = False) -> list[ToolCall]:
        """The calls, complete. Only the end of the stream is the end of a call: a prefix may parse too.

        Args:
            cut_off: Whether the answer ended by force, so that the last call may lack its arguments.
        """
        used: set[str] = set()
        return [self._finished(call, used, cut_off and call is self._calls[-1]) for call in self._calls]

    def _find(self, index: int | None, id: str | None, name: str | None, piece: str) -> _OpenCall | None:
        """The call that a delta belongs to, None if it begins a new one."""
        known = self._by_id.get(id) if id is not None else None
        if known is not None and (name is None or index is None or index == known.index):
            return known
        if index is not None and index in self._by_index:
            held = self._by_index[index]
            if self._begins_anew(held, id, name, piece):
                return None
            if name and not piece and not held.parts and None not in (id, held.id) and id != held.id:
                self._warn(f"call {name!r} came again with another id and no arguments; taken as one call")
            return held
        if name is not None:
            return self._repeated(index, id, name, piece)
        if id is not None:
            return self._calls[-1] if index is None and self._calls else None
        return self._nameless(index, piece)

    @staticmethod
    def _begins_anew(held: _OpenCall, id: str | None, name: str | None, piece: str) -> bool:
        """Whether a delta at an index in use is the next call of a server that numbers all calls alike."""
        if name is None or held.name is None:
            return False
        if name != held.name:
            return True
        other_id = id is not None and held.id is not None and id != held.id
        opens = piece.lstrip().startswith("{") or (other_id and not piece)
        return opens and held.is_whole()

    def _repeated(self, index: int | None, id: str | None, name: str, piece: str) -> _OpenCall | None:
        """A name without index or id is a new call, unless it repeats that of the call under way."""
        last = self._calls[-1] if self._calls else None
        if last is None or index is not None or id is not None or last.name not in (name, None):
            return None
        opens = piece.lstrip().startswith("{")
        return None if opens or not piece or last.is_whole() else last

    def _nameless(self, index: int | None, piece: str) -> _OpenCall | None:
        """A piece without id and name: part of the only call that is open."""
        if not self._calls:
            return None
        last = self._calls[-1]
        if index is not None:
            if piece and last.is_whole():
                return None  # Arguments before their name.
            self._by_index[index] = last
        elif len(self._calls) == 1 or not piece:
            return last
        open_calls = [call for call in self._calls if not call.is_whole()]
        if len(open_calls) == 1 and index is None:
            return open_calls[0]
        self._warn("arguments came without a call to belong to; added to the last call")
        return last

    def _open(self, index: int | None) -> _OpenCall:
        call = _OpenCall(len(self._calls), index)
        self._calls.append(call)
        if index is not None:
            self._by_index[index] = call
        return call

    def _name(self, call: _OpenCall, id: str | None, name: str | None) -> None:
        """Ids and names are set once; repeats are not appended."""
        if id is not None:
            if call.id is None:
                call.id = id
            self._by_id.setdefault(id, call)
        if name is not None and call.name is None:
            call.name = name
        elif name is not None and name != call.name:
            self._warn(f"call {call.name!r} was named {name!r} later; the first name is kept")

    def _event(self, call: _OpenCall, piece: str, raw: Any) -> ToolCallDelta | None:
        fresh = call.take(piece)
        if call.name is None:
            call.waiting.append(fresh)
            return None
        if call.waiting:
            fresh = "".join(call.waiting) + fresh
            call.waiting.clear()
        if call.announced and not fresh:
            return None
        call.announced = True
        return ToolCallDelta(call.position, call.id, call.name, fresh, self._choice_index, raw)

    def _finished(self, call: _OpenCall, used: set[str], cut_off: bool) -> ToolCall:
        text = call.text()
        arguments, error = _loads(text)
        if error is not None and call.cumulative:
            whole, whole_error = _loads(call.latest)
            if whole_error is None:
                text, arguments, error = call.latest, whole, None
                self._warn("the arguments were sent anew with every piece; the last one is used")
        if cut_off and not text.strip():
            arguments, error = None, "the answer was cut before the arguments"
        if call.name is None:
            arguments, error = None, "the call has no name"
        id = call.id
        if id in used:
            self._warn(f"two calls had the id {id!r}; the later one got another")
        if id is None or id in used:
            id = call.made_id = call.made_id or "call_" + os.urandom(12).hex()
        used.add(id)
        return ToolCall(id, call.name or "", arguments, text, error, call.position, call.extra, self._choice_index)

    def _warn(self, text: str) -> None:
        self._warnings.add(text, self._choice_index)


_CALL_MEMBERS = frozenset({"index", "id", "type", "function", "name", "arguments"})


def _index(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _filled(value: Any) -> str | None:
    """Text that is not blank; servers write "" where they mean nothing."""
    return value if isinstance(value, str) and value.strip() else None


def _arguments_text(arguments: Any) -> str:
    if isinstance(arguments, str):
        return arguments
    return _dump(arguments) if arguments else ""


def _loads(text: str) -> tuple[Json | None, str | None]:
    """Arguments and None, or None and the reason why they are none. No text at all means no arguments."""
    if not text.strip():
        return {}, None
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        return None, f"the arguments are not JSON: {error}"
    if value is None:
        return {}, None
    if not isinstance(value, dict):
        return None, f"the arguments are JSON but no object: {cut(text, 60)}"
    return value, None


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no number of JSON")


# Choices


_SPEAKING = ("content_delta", "reasoning_delta", "refusal_delta", "tool_call_delta")


class _Choice:
    """One answer while it comes in."""

    def __init__(self, index: int, think_tags: str, warnings: _Warnings) -> None:
        self.index = index
        self._warnings = warnings
        self.text: list[str] = []
        self.reasoning: list[str] = []
        self.refusal: list[str] = []
        self.logprobs: list[Any] = []
        # The content as sent, tags included: whole messages are compared with it.
        self.content: list[str] = []
        self.splitter = ThinkSplitter(think_tags)
        self.calls = ToolCalls(index, warnings)
        # The old form of a call. Some servers send it beside the new one, so it waits for the end (C13).
        self.legacy = ToolCalls(index, warnings)
        self.finished_calls: tuple[ToolCall, ...] | None = None
        self.reasoning_field: str | None = None
        self.reason_raw: str | None = None
        # Whether text came after a finish reason: some servers give one with every piece, which proves no end.
        self.went_on = False
        self.stop_reason: Any = None

    def take(self, choice: Json, chunk: Any) -> list[StreamEvent]:
        """The delta first, then the finish: some servers send both in one chunk (K3)."""
        events: list[StreamEvent] = []
        delta = choice.get("delta")
        message = choice.get("message")
        if isinstance(delta, dict) and delta:
            self._take_delta(delta, chunk, events)
        if isinstance(message, dict):
            self._take_message(message, chunk, events)
        elif not delta and isinstance(choice.get("text"), str):
            self._take_content(choice["text"], chunk, events)
        if choice.get("logprobs"):
            self._take_logprobs(choice["logprobs"], chunk, events)
        if self.reason_raw is not None and any(event.type in _SPEAKING for event in events):
            self.went_on = True
        reason = choice.get("finish_reason")
        if reason is not None and (self.reason_raw is None or self.went_on) and str(reason).strip():
            self.reason_raw = str(reason)
        stop_reason = choice.get("stop_reason", choice.get("stop_str"))
        if stop_reason is not None:
            self.stop_reason = stop_reason
        return events

    def _take_delta(self, delta: Json, chunk: Any, events: list[StreamEvent]) -> None:
        content = delta.get("content")
        if content and len(delta) == 1:  # Nearly every delta, so nothing else is looked for.
            self._take_content(content, chunk, events)
            return
        self._take_reasoning(*_reasoning(delta), chunk, events)
        if content:
            self._take_content(content, chunk, events)
        refusal = delta.get("refusal")
        if refusal and isinstance(refusal, str):
            self._emit("refusal", refusal, chunk, events)
        self._take_calls(delta, chunk, events, self.calls.take)

    def _take_message(self, message: Json, chunk: Any, events: list[StreamEvent]) -> None:
        """A whole message in place of a delta, or after deltas: only what exceeds them is new."""
        name, text = _reasoning(message)
        self._take_reasoning(name, _exceeding(text, self.reasoning), chunk, events)
        content = message.get("content")
        if isinstance(content, str):  # With the tags or, where the server has taken them out, without.
            content = _exceeding(content, self.content, self.text)
        if content:
            self._take_content(content, chunk, events)
        refusal = message.get("refusal")
        if isinstance(refusal, str) and _exceeding(refusal, self.refusal):
            self._emit("refusal", _exceeding(refusal, self.refusal), chunk, events)
        self._take_calls(message, chunk, events, self.calls.take_whole)

    def _take_calls(self, delta: Json, chunk: Any, events: list[StreamEvent], take: Any) -> None:
        for call in _listed(delta.get("tool_calls")):
            event = take(call, chunk) if isinstance(call, dict) else None
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
            self._emit("reasoning", text, chunk, events)

    def _take_content(self, content: Any, chunk: Any, events: list[StreamEvent]) -> None:
        if isinstance(content, str):
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
                self._warnings.add(f"a part of the answer is no text and was left out: {cut(text, 80)}", self.index)
            elif text:
                self._emit(kind, text, chunk, events)

    def _reclassify(self) -> None:
        """The template had opened the tag: what was handed out as text so far was reasoning."""
        self.reasoning += self.text
        self.text = []
        self._warnings.add(
            "a closing </think> came without an opening one: the text before it was reasoning", self.index
        )

    def _take_logprobs(self, logprobs: Any, chunk: Any, events: list[StreamEvent]) -> None:
        if not isinstance(logprobs, dict):
            return
        content = logprobs.get("content")
        items = content if isinstance(content, list) else _completion_logprobs(logprobs)
        if items:
            self.logprobs += items
            events.append(Logprobs(tuple(items), self.index, chunk))

    def _emit(self, kind: str, text: str, chunk: Any, events: list[StreamEvent]) -> None:
        if kind == "content":
            self.text.append(text)
            events.append(ContentDelta(text, self.index, chunk))
        elif kind == "reasoning":
            self.reasoning.append(text)
            events.append(ReasoningDelta(text, self.index, chunk))
        elif kind == "reclassify":
            self._reclassify()
        else:
            self.refusal.append(text)
            events.append(RefusalDelta(text, self.index, chunk))

    def flush(self) -> list[StreamEvent]:
        """What was held back."""
        events: list[StreamEvent] = []
        for kind, text in self.splitter.flush():
            self._emit(kind, text, None, events)
        return events

    def close(self) -> tuple[ToolCall, ...]:
        """The end of a stream that was not cut: the calls."""
        if self.splitter.unclosed:
            self._warnings.add("the reasoning was never closed: the answer may be in it", self.index)
        self.finished_calls = tuple(self._calls())
        return self.finished_calls

    def _calls(self) -> list[ToolCall]:
        cut_off = normal_reason(self.reason_raw or "") in ("length", "content_filter", "error")
        return (self.calls if self.calls else self.legacy).finish(cut_off)

    def stop(self) -> MessageStop:
        """The last event. What calls there are decides, not what the server says about them (K6)."""
        reason = normal_reason(self.reason_raw) if self.reason_raw else None
        if self.reason_raw and reason is None:
            self._warnings.add(f"unknown finish reason {self.reason_raw!r}, taken as stop", self.index)
        if reason in (None, "stop", "tool_calls"):
            reason = "tool_calls" if self.finished_calls else "stop"
        return MessageStop(reason, self.reason_raw, self.reason_raw is None, self.stop_reason, self.index)

    def value(self, succeeded: bool) -> Choice:
        text, reasoning, refusal = ("".join(parts) for parts in (self.text, self.reasoning, self.refusal))
        calls = tuple(self._calls()) if self.finished_calls is None else self.finished_calls
        reason = self.stop().reason if succeeded or self.reason_raw else None
        end = (reason, self.reason_raw, self.stop_reason)
        return Choice(self.index, text, reasoning, refusal, calls, *end, tuple(self.logprobs), self.reasoning_field)


def _listed(value: Any) -> list[Any]:
    """A list as it is, an object as its only element (some servers leave the list out), else nothing."""
    if isinstance(value, list):
        return value
    return [value] if isinstance(value, dict) else []


def _completion_logprobs(logprobs: Json) -> list[Json]:
    """Those of /completions, which are lists side by side, in the form of a chat's (L1, L7)."""
    columns = [_listed(logprobs.get(name)) for name in ("tokens", "token_logprobs", "top_logprobs")]
    items = []
    for token, value, top in itertools.zip_longest(*columns):
        options = top.items() if isinstance(top, dict) else ()
        others = [{"token": other, "logprob": number} for other, number in options]
        items.append({"token": token, "logprob": value, "bytes": None, "top_logprobs": others})
    return items


def _reasoning(delta: Json) -> tuple[str, str]:
    """The member that holds reasoning, and its text."""
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
            yield "unknown", _dump(part)


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


# The answer


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
        self._closed = False
        self._succeeded = False
        # Whether every choice that was asked for has its finish reason, and has said nothing since.
        self.complete = False
        self._id: str | None = None
        self._model: str | None = None
        self._usage: Usage | None = None
        self._zero_usage: Usage | None = None
        self._members: Json = {}
        self._n_chunks = 0
        self._warnings = _Warnings()
        # Events that `finish` owes, when it raises.
        self._held: list[StreamEvent] = []
        self.error: ErrorEvent | None = None

    @property
    def started(self) -> bool:
        """Whether any choice has come."""
        return bool(self._choices)

    def add(self, chunk: Json) -> list[StreamEvent]:
        """One payload. Order of the events: start, then per choice text and calls, usage, error."""
        events: list[StreamEvent] = []
        self._members.update(chunk)
        self._n_chunks += 1
        if not self._announced:
            events += self._start(chunk)
        choices = chunk.get("choices")
        if not isinstance(choices, list):
            choices = _native_choices(chunk)
        if "thought" in chunk and choices:
            choices = _with_thought(choices, chunk["thought"])
        error = chunk.get("error")
        for place, choice in enumerate(choices):
            if isinstance(choice, dict):
                error = error or choice.get("error")
                events += self._choice(choice, place).take(choice, chunk)
                if choice.get("finish_reason") or self.complete:
                    self._take_finish()
        usage = _find_usage(chunk)
        if usage is not None:
            events += self._take_usage(usage, chunk)
        if self.error is None:
            self.error = self._find_error(chunk, error)
            events += [] if self.error is None else [self.error]
        if self._warnings.new:
            events += self._warnings.take()
        return events

    def finish(self, done: bool = False) -> list[StreamEvent]:
        """The end of the stream: complete calls, then one message_stop per choice.

        Args:
            done: Whether the end mark [DONE] was seen, or the answer was one whole JSON body.

        Raises:
            StreamError: The server had reported a failure.
            IncompleteStream: There was neither a finish reason nor the end mark (K5, C33, L42).
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
            text = f"the server gave {len(self._choices)} of the {self._n} answers that were asked for"
            self._warnings.add(text, 0)
        self._succeeded = True
        stops = [choice.stop() for choice in self._sorted()]
        return events + self._warnings.take() + stops

    def flush(self) -> list[StreamEvent]:
        """Text that was held back since it could have become a tag. Where an answer is cut, and after
        `finish` has raised, this is the rest of what has come."""
        events = self._held + [event for choice in self._sorted() for event in choice.flush()]
        self._held = []
        return events

    def reply(self) -> Reply:
        """What there is so far."""
        is_whole = self._n_chunks == 1 and is_whole_answer(self._members)
        members = {name: value for name, value in self._members.items() if is_whole or name != "choices"}
        choices = tuple(choice.value(self._succeeded) for choice in self._sorted())
        return Reply(choices, self._id, self._model, self._usage, tuple(self._warnings.texts), raw=members)

    def _start(self, chunk: Json) -> list[StreamEvent]:
        if not chunk.get("choices") and (chunk.get("error") or _is_flat_error(chunk)):
            return []
        self._announced = True
        self._id, self._model = _filled(chunk.get("id")), _filled(chunk.get("model"))
        return [MessageStart(self._id, self._model, 0, chunk)]

    def _choice(self, choice: Json, place: int) -> _Choice:
        index = _index(choice.get("index"))
        index = place if index is None else index
        if index not in self._choices:
            self._choices[index] = _Choice(index, self._think_tags, self._warnings)
        return self._choices[index]

    def _sorted(self) -> list[_Choice]:
        return [self._choices[index] for index in sorted(self._choices)]

    def _take_usage(self, raw: Json, chunk: Json) -> list[StreamEvent]:
        """The last one that counts anything holds; some servers send zeros in every chunk (C20, K14)."""
        usage = _usage(raw)
        if not usage.total_tokens:
            self._zero_usage = usage
        if usage == self._usage or not usage.total_tokens:
            return []
        self._usage = usage
        return [UsageEvent(usage, 0, chunk)]

    def _take_finish(self) -> None:
        ended = [choice.reason_raw is not None and not choice.went_on for choice in self._choices.values()]
        self.complete = len(ended) >= self._n and all(ended)

    def _find_error(self, chunk: Json, error: Any) -> ErrorEvent | None:
        groq = chunk.get("x_groq")
        error = error or (groq.get("error") if isinstance(groq, dict) else None)
        if error:
            return changed(parse_error({**chunk, "error": error}), raw=chunk)
        if not self._choices and _is_flat_error(chunk):
            return changed(parse_error(chunk), raw=chunk)
        for choice in self._choices.values():
            if choice.reason_raw is not None and normal_reason(choice.reason_raw) == "error":
                message = f"the server ended the answer with the finish reason {choice.reason_raw!r}"
                return ErrorEvent(message, code=choice.reason_raw, choice_index=choice.index, raw=chunk)
        return None

    def _cut_message(self, done: bool) -> str:
        if done:
            return "the server ended the answer before it began"
        if not self._choices:
            return "the answer was cut before it began: the connection ended"
        texts = sum(len(part) for choice in self._choices.values() for part in choice.text)
        went_on = any(choice.went_on for choice in self._choices.values())
        proof = "with text after its finish reason" if went_on else "without a finish reason"
        return f"the answer was cut after {texts} characters: the connection ended {proof} and without [DONE]"


def is_whole_answer(payload: Json) -> bool:
    """Whether this one object is a complete answer, as servers send it when they do not stream."""
    choices = payload.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return isinstance(first, dict) and "delta" not in first and ("message" in first or "text" in first)


def _is_flat_error(chunk: Json) -> bool:
    """An error without the member `error`, as older servers send it."""
    return chunk.get("object") == "error" or "detail" in chunk


def _native_choices(chunk: Json) -> list[Json]:
    """Ollama's own format as a choice: {message, done, done_reason}."""
    message = chunk.get("message")
    if not isinstance(message, dict):
        return []
    reason = (chunk.get("done_reason") or "stop") if chunk.get("done") else None
    return [{"index": 0, "delta": message, "finish_reason": reason}]


def _with_thought(choices: list[Any], thought: Any) -> list[Any]:
    """Some servers put the reasoning of the first choice beside the choices (G34, K8)."""
    first = choices[0]
    if not isinstance(first, dict):
        return choices
    name = "message" if isinstance(first.get("message"), dict) else "delta"
    own = first.get(name)
    return [{**first, name: {"thought": thought, **(own if isinstance(own, dict) else {})}}, *choices[1:]]
