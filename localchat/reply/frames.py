"""Split a response body into payloads: an event stream, lines of JSON, or one JSON body, by its first bytes. No I/O.

A frame is the text of one payload, as a ServerSentEvent in all of these formats. `parse_frame` makes the payload of it.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable, Iterator
from typing import Any

from ..errors import ProtocolError
from ..sse import BOM, ServerSentEvent, SSEDecoder, SSEError, is_damaged
from ..texts import excerpt
from .payloads import Json

_DECODER = json.JSONDecoder()

_HEAD_BYTES = 1024  # The beginning of a body that is kept for error messages.

# The beginnings of an event stream. "error:" is not a field of the standard, but old llama.cpp servers send it.
_SSE_PREFIXES = (b"data:", b":", b"event:", b"id:", b"retry:", b"error:")


class Frames:
    """Splits a response body into frames. Its first bytes determine the format, since Content-Types may be wrong."""

    def __init__(self, content_type: str) -> None:
        self._content_type = content_type
        self._head = b""  # The beginning of the body.
        self._pending = bytearray()  # JSON whose end was not received yet.
        self._sse = SSEDecoder(sentinel="[DONE]", fields_as_events=("error",), takes_json=True)
        # "sse", "lines" (each of which is JSON) or "json" (one document of several lines); None until it is known.
        self._format: str | None = None
        # The number of JSON documents so far, 0 in an event stream; and whether one was not UTF-8.
        self._n_documents = 0
        self._was_damaged = False

    @property
    def head(self) -> str:
        """The beginning of the body, for messages."""
        return excerpt(self._head[:_HEAD_BYTES].decode("utf-8", "replace"))

    @property
    def is_one_document(self) -> bool:
        """Whether the body so far is one JSON document, and no event stream."""
        return self._n_documents == 1

    @property
    def was_damaged(self) -> bool:
        """Whether a payload was not UTF-8; each invalid byte became U+FFFD."""
        return self._was_damaged or self._sse.was_damaged

    def feed(self, data: bytes) -> Iterable[ServerSentEvent]:
        """Take the next bytes and return the frames that they complete."""
        if self._format is None:
            self._head = (self._head + data).lstrip(b" \t\r\n")
            self._format = self._detect(self._head)
            if self._format is None:
                return ()
            data, self._head = self._head, self._head[:_HEAD_BYTES]
        elif len(self._head) < _HEAD_BYTES:
            self._head = (self._head + data)[:_HEAD_BYTES]
        return self._feed_sse(data) if self._format == "sse" else self._feed_json(data)

    def end(self) -> Iterator[ServerSentEvent]:
        """The last frame, if only its line end is missing. An incomplete one is dropped."""
        if self._format is None and self._head:
            raise self._unknown_format()
        if self._format == "sse":
            yield from (frame for frame in self._sse.flush() if _is_complete(frame.data))
        elif _is_complete(self._pending.decode("utf-8", "replace")):
            yield self._document(bytes(self._pending))

    def _detect(self, head: bytes) -> str | None:
        """The format of a body that begins like this; None if more bytes are needed. Raises ProtocolError."""
        if BOM.startswith(head[: len(BOM)]):
            head = head[len(BOM) :].lstrip()
        if not head:
            return None
        if head[:1] in b"{[":
            return "lines"  # Or one document, which the first line shows.
        is_labelled = "event-stream" in self._content_type.lower() and head[:1] != b"<"
        if is_labelled or head.startswith(_SSE_PREFIXES):
            return "sse"
        # The error of an unknown format shows its beginning, which has to be received first.
        if len(self._head) >= _HEAD_BYTES and not any(prefix.startswith(head) for prefix in _SSE_PREFIXES):
            raise self._unknown_format()
        return None

    def _unknown_format(self) -> ProtocolError:
        description = "HTML: is the base URL right, or is /v1 missing?" if self.head.startswith("<") else ""
        description = description or f"{self._content_type or 'without a content type'}."
        return ProtocolError(
            f"the response is not a chat completion but {description} It begins: {self.head}", head=self.head
        )

    def _feed_sse(self, data: bytes) -> Iterator[ServerSentEvent]:
        try:
            yield from self._sse.feed(data)
        except SSEError as error:
            yield from error.events
            raise ProtocolError(f"the response cannot be parsed: {error}", head=self.head) from error

    def _feed_json(self, data: bytes) -> Iterator[ServerSentEvent]:
        self._pending += data
        if self._format == "json" or b"\n" not in data:
            return
        *lines, tail = bytes(self._pending).split(b"\n")
        lines = [line for line in lines if line.strip()]
        if lines and not self._n_documents and not _is_complete(lines[0].decode("utf-8", "replace")):
            self._format = "json"  # The first line is not JSON by itself, so the body is one document of several lines.
            return
        self._pending = bytearray(tail)
        yield from (self._document(line) for line in lines)

    def _document(self, raw: bytes) -> ServerSentEvent:
        """The frame of a JSON document outside an event stream."""
        self._n_documents += 1
        data = raw.decode("utf-8", "replace")
        self._was_damaged = self._was_damaged or is_damaged(raw, data)
        return ServerSentEvent(data=data.lstrip("\ufeff"))


def _is_complete(text: str) -> bool:
    """Whether this is [DONE] or complete JSON."""
    text = text.strip().lstrip("\ufeff")
    try:
        json.loads(text)
    except json.JSONDecodeError:
        return text == "[DONE]"
    except (ValueError, RecursionError):  # A number is too long, or the nesting too deep: `parse_frame` reports it.
        pass
    return True


class EndMark(enum.Enum):
    """The mark of the end of a stream."""

    DONE = "[DONE]"


def parse_frame(event: str, data: str) -> Json | EndMark | None:
    """Parse one payload: a JSON object, or DONE; None for a keep-alive or an event of another kind."""
    text = data.strip()
    if text == EndMark.DONE.value:
        return EndMark.DONE
    if event != "error" and (text in ("", "null") or text.startswith(":")):
        return None
    payload: Any = None
    wrong = "JSON that is not an object"
    try:
        payload, end = _DECODER.raw_decode(text)
        if end < len(text):
            json.loads(text)  # Raises the error. raw_decode is tried first, since it is twice as fast on short text.
    except (ValueError, RecursionError) as error:
        payload, wrong = None, f"something that is not JSON ({error})"
    if isinstance(payload, list) and len(payload) == 1:
        payload = payload[0]  # Google's servers report an error as a list.
    if event == "error":
        has_error = isinstance(payload, dict) and payload.get("error")
        return payload if has_error else {"error": payload or text or "no reason given"}
    if isinstance(payload, dict):
        return payload if event == "message" or "choices" in payload or "error" in payload else None
    if event == "message":
        raise ProtocolError(f"the server sent {wrong}: {excerpt(text)}", head=excerpt(text))
    return None
