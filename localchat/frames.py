"""Bytes of a response body to payloads: event stream, lines of JSON, or one JSON body. No I/O.

`Frames` finds out which it is and takes the payloads apart; `parse_frame` reads one of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from .errors import ProtocolError, cut
from .payloads import Json
from .sse import ServerSentEvent, SSEDecoder, SSEError, is_damaged

_DECODER = json.JSONDecoder()

# How much of a body is kept for messages.
_HEAD_BYTES = 1024

# How an event stream begins. "error:" is no field of the standard, but old llama.cpp servers use it.
_SSE_BEGINNINGS = (b"data:", b":", b"event:", b"id:", b"retry:", b"error:")
_BOM = b"\xef\xbb\xbf"


class Frames:
    """The payloads of an answer, whatever its form: event stream, lines of JSON, or one JSON body.

    The first bytes decide, since servers lie in Content-Type. `feed` and `end` raise ProtocolError if
    the answer is neither of the three.
    """

    def __init__(self, content_type: str) -> None:
        self._content_type = content_type
        self._head = b""
        self._held = bytearray()
        self._sse = SSEDecoder(sentinel="[DONE]", fields_as_events=("error",))
        # None until known; "sse", "lines" (of JSON) or "json" (one body over several lines).
        self._kind: str | None = None
        # How many JSON documents came, outside an event stream, and whether one was no UTF-8.
        self.documents = 0
        self._was_damaged = False

    @property
    def head(self) -> str:
        """How the answer begins, for messages."""
        return cut(self._head.decode("utf-8", "replace"))

    @property
    def was_damaged(self) -> bool:
        """Whether something came that was no UTF-8; each wrong byte became U+FFFD."""
        return self._was_damaged or self._sse.was_damaged

    def feed(self, chunk: bytes) -> Iterable[ServerSentEvent]:
        """The payloads that these bytes complete."""
        if self._kind is None:
            self._head = (self._head + chunk).lstrip(b" \t\r\n")
            self._kind = self._sniff(self._head)
            if self._kind is None:
                return ()
            chunk, self._head = self._head, self._head[:_HEAD_BYTES]
        return self._feed_sse(chunk) if self._kind == "sse" else self._feed_json(chunk)

    def end(self) -> Iterator[ServerSentEvent]:
        """What was complete but for its line end. A tail that is cut is not handed out."""
        if self._kind is None and self._head:
            raise self._refusal()
        if self._kind == "sse":
            yield from (frame for frame in self._sse.flush() if _is_whole(frame.data))
            return
        text = self._held.decode("utf-8", "replace").strip()
        if _is_whole(text):
            yield self._document(bytes(self._held))
        elif text.endswith(("}", "]")) and (_fault_at(text) or 0) < len(text):
            raise ProtocolError(f"the answer is not JSON: {self.head}", head=self.head)

    def _sniff(self, head: bytes) -> str | None:
        if _BOM.startswith(head[: len(_BOM)]):
            head = head[len(_BOM) :]
        if not head:
            return None
        if head[:1] in b"{[":
            return "lines"
        if head.startswith(_SSE_BEGINNINGS):
            return "sse"
        if "event-stream" in self._content_type.lower() and head[:1] != b"<":
            return "sse"
        if not any(beginning.startswith(head) for beginning in _SSE_BEGINNINGS):
            raise self._refusal()
        return None

    def _refusal(self) -> ProtocolError:
        what = "HTML: is the base URL right, or is /v1 missing?" if self.head.startswith("<") else ""
        what = what or f"{self._content_type or 'of no content type'}."
        return ProtocolError(f"this is no chat answer but {what} It begins: {self.head}", head=self.head)

    def _feed_sse(self, chunk: bytes) -> Iterator[ServerSentEvent]:
        try:
            yield from self._sse.feed(chunk)
        except SSEError as error:
            yield from error.events
            raise ProtocolError(f"the answer cannot be read: {error}", head=self.head) from error

    def _feed_json(self, chunk: bytes) -> Iterator[ServerSentEvent]:
        self._held += chunk
        if self._kind == "json" or b"\n" not in chunk:
            return
        *lines, tail = bytes(self._held).split(b"\n")
        lines = [line for line in lines if line.strip()]
        if lines and not self.documents and not _is_whole(lines[0].decode("utf-8", "replace")):
            self._kind = "json"  # The first line is not JSON by itself: one body over many lines.
            return
        self._held = bytearray(tail)
        yield from (self._document(line) for line in lines)

    def _document(self, raw: bytes) -> ServerSentEvent:
        self.documents += 1
        data = raw.decode("utf-8", "replace")
        self._was_damaged = self._was_damaged or is_damaged(raw, data)
        return ServerSentEvent(data=data.lstrip("\ufeff"))


def _is_whole(text: str) -> bool:
    """Whether this is [DONE] or complete JSON: what is cut is neither."""
    text = text.strip().lstrip("\ufeff")
    return text == "[DONE]" or _fault_at(text) is None


def _fault_at(text: str) -> int | None:
    """Where this stops being JSON, None if it does not. JSON that is cut stops at its very end."""
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return error.pos
    except (ValueError, RecursionError):  # A number or a nesting beyond what Python reads.
        return 0
    return None


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
