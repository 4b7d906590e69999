"""Record what is sent and received over the network, and replay the responses without a server.

    Client(url, record="answers.jsonl")             # writes all bytes; keys and most headers are masked
    Client(transport=replay("answers.jsonl"))       # responses from the file

A recording has a line of JSON for each piece that was sent or received, so a replay cuts a response at the same places
as the network. A secret is replaced by asterisks of the same length, so that lengths in headers remain correct.
"""

from __future__ import annotations

import json
import os
import re
import stat
import threading
import time
from collections import deque
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import LocalChatError

# Headers that are recorded unchanged: none contains a secret, and a replay needs those that describe the body. The
# values of all other headers are masked.
_PLAIN_HEADER_NAMES = """
    accept accept-encoding age allow cache-control connection content-encoding content-length content-type date host
    keep-alive location retry-after retry-after-ms server transfer-encoding user-agent vary x-request-id x-should-retry
"""
_PLAIN_HEADERS = frozenset(_PLAIN_HEADER_NAMES.split())
# Fields of a request that may differ between two runs of a program. By default a replay does not compare them.
VOLATILE_FIELDS = ("metadata", "prompt_cache_key", "safety_identifier", "seed", "user")

_HEADER = re.compile(rb"([!#$%&'*+.^_`|~\w-]+)([ \t]*:[ \t]*)")
_QUERY_VALUE = re.compile(rb"([?&][^=&\s]*=)([^&\s]+)")
# The head of a request, or of a response with the 1xx responses before it.
_HEAD = re.compile(rb"(?s)\A(?:HTTP/1\.\d 1.*?\n\r?\n)*(?!HTTP/1\.\d 1).*?\n\r?\n")
# A shorter key is not masked. For a server without keys a program may pass a word like "none", which also occurs in
# other text.
_MIN_SECRET_CHARS = 8
# The limit of differences in an error message.
_MAX_DIFFERENCES = 3


def _without_secrets(head: bytes) -> bytes:
    """The head with asterisks in place of the query of its first line and of the values of most headers."""
    name = b""
    lines: list[bytes] = []
    for line in re.findall(rb"[^\n]*\n|[^\n]+", head):
        text = line.rstrip(b"\r\n")
        header = _HEADER.match(text)
        if text.startswith(b"HTTP/1."):
            name = b"server"  # A status line contains no secret.
        elif not lines:
            text = _masked_query(text)
        else:  # A line that begins with a blank continues the header before it.
            name = header[1].lower() if header else name if text[:1] in (b" ", b"\t") else b""
            if name.decode("ascii") not in _PLAIN_HEADERS:
                start = header.end() if header else 0
                text = text[:start] + b"*" * len(text[start:])
            elif name == b"location":
                text = _masked_query(text)
        lines.append(text + line[len(text) :])
    return b"".join(lines)


def _masked_query(text: bytes) -> bytes:
    return _QUERY_VALUE.sub(lambda match: match[1] + b"*" * len(match[2]), text)


def replay(path: str | os.PathLike[str], *, ignore: Collection[str] = VOLATILE_FIELDS) -> Replay:
    """A transport that returns the responses of a recording.

    Each request gets the next recorded response to a request with the same method, path and body. A request that is
    not in the recording is a LocalChatError that lists the differences.

    Args:
        path: The file that `record` wrote.
        ignore: Top-level fields of a JSON body that are not compared.

    Raises:
        ValueError: The file is not a recording, or damaged.
        OSError: The file cannot be read.
    """
    return Replay(path, ignore)


class Recorder:
    """A transport that writes what is sent and received to a file, which only its owner can read.

    An existing file is replaced.
    """

    is_replay = False

    def __init__(self, path: str | os.PathLike[str], secret: str = "") -> None:
        self._path = Path(path)
        _create_private(self._path)
        self.secret = secret.encode() if len(secret) >= _MIN_SECRET_CHARS else b""
        self._lock = threading.Lock()
        self._connections = 0
        self._start = time.monotonic()

    def tape(self) -> RecordingTape:
        """A tape for a new connection."""
        with self._lock:
            self._connections += 1
            return RecordingTape(self, self._connections)

    def write(self, connection: int, kind: str, pieces: Collection[bytes]) -> None:
        """Append lines to the file. Bytes that are not UTF-8, such as a cut character, become lone surrogates."""
        seconds = round(time.monotonic() - self._start, 4)
        lines = [
            json.dumps({"connection": connection, "at": seconds, kind: piece.decode("utf-8", "surrogateescape")})
            for piece in pieces
        ]
        with self._lock, self._path.open("a", encoding="ascii") as file:
            file.writelines(line + "\n" for line in lines)


class RecordingTape:
    """Records what is sent and received over one connection."""

    def __init__(self, recorder: Recorder, connection: int) -> None:
        self._recorder = recorder
        self._connection = connection
        # Received pieces that are not written yet: of an incomplete head, or with what may be the beginning of the key
        # at the end.
        self._held: list[bytes] = []
        self._in_head = False
        # Whether the head of the request was sent, so that the next piece belongs to its body.
        self._in_request_body = False

    def sent(self, data: bytes) -> None:
        self.flush()
        self._in_head = True
        if not self._in_request_body:
            head = _HEAD.match(data)
            end = head.end() if head else len(data)
            self._in_request_body = head is not None
            data = _without_secrets(data[:end]) + data[end:]
        self._recorder.write(self._connection, "sent", [self._mask(data)])

    def received(self, data: bytes) -> None:
        """Record a piece; empty for the end of the connection."""
        self._in_request_body = False
        self._held.append(data)
        secret, joined = self._recorder.secret, b"".join(self._held)
        if data and self._in_head and not _HEAD.match(joined):
            return
        if not data or not any(joined.endswith(secret[:length]) for length in range(1, len(secret))):
            self.flush()

    def flush(self) -> None:
        """Write the held pieces. Call this if no piece follows that could complete a head or the key."""
        if not self._held:
            return
        joined, pieces = b"".join(self._held), []
        if self._in_head:
            head, self._in_head = _HEAD.match(joined), False
            end = head.end() if head else len(joined)  # Without an end, all of it is the head.
            joined = _without_secrets(joined[:end]) + joined[end:]
        joined = self._mask(joined)
        for piece in self._held:
            pieces.append(joined[: len(piece)])
            joined = joined[len(piece) :]
        self._held = []
        self._recorder.write(self._connection, "received", pieces)

    def _mask(self, data: bytes) -> bytes:
        secret = self._recorder.secret
        return data.replace(secret, b"*" * len(secret)) if secret else data


def _create_private(path: Path) -> None:
    """Create or empty a file, and let only its owner read it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.chmod(path, 0o600)
    finally:
        os.close(descriptor)


class _Exchange(NamedTuple):
    """A recorded request, and the pieces of its response."""

    request: bytes
    pieces: list[bytes]


class Replay:
    """A transport that replays a recording. It makes no connection."""

    is_replay = True

    def __init__(self, path: str | os.PathLike[str], ignore: Collection[str] = VOLATILE_FIELDS) -> None:
        if isinstance(ignore, str):
            raise TypeError(f"ignore is a collection of field names, not the text {ignore!r}")
        self._lock = threading.Lock()
        self._left = _exchanges(Path(path))
        self._ignore = frozenset(ignore)

    def tape(self) -> ReplayTape:
        return ReplayTape(self)

    def take(self, request: bytes) -> list[bytes]:
        """Remove and return the next response to an equal request, as pieces.

        Raises:
            LocalChatError: There is none.
        """
        line, body = _request_line(request), self._body(request)
        nearest: list[str] = []
        with self._lock:
            for number, exchange in enumerate(self._left):
                if _request_line(exchange.request) != line:
                    continue
                found = list(_differences("", self._body(exchange.request), body))
                if not found:
                    return self._left.pop(number).pieces
                if not nearest or len(found) < len(nearest):
                    nearest = found
        shown = line.decode("ascii", "replace")
        if not nearest:
            raise LocalChatError(f"the recording has no further response to {shown}")
        more = f"; {len(nearest) - _MAX_DIFFERENCES} more differences" if len(nearest) > _MAX_DIFFERENCES else ""
        differences = "; ".join(nearest[:_MAX_DIFFERENCES])
        raise LocalChatError(f"the recording has no equal request {shown}: {differences}{more}")

    def _body(self, request: bytes) -> Any:
        """The part of a body that is compared: JSON without the ignored fields, or other bytes unchanged."""
        head = _HEAD.match(request)
        body = request[head.end() :] if head else b""
        try:
            value = json.loads(body)
        except ValueError:
            return body
        if isinstance(value, dict):
            return {name: item for name, item in value.items() if name not in self._ignore}
        return value


def _differences(path: str, recorded: Any, sent: Any) -> Iterator[str]:
    """The differences of two bodies, as sentences."""
    if isinstance(recorded, dict) and isinstance(sent, dict):
        for name in (*recorded, *(name for name in sent if name not in recorded)):
            where = f"{path}.{name}" if path else name
            if name not in sent:
                yield f"{where} is missing, the recording has {_shown(recorded[name])}"
            elif name not in recorded:
                yield f"{where} is {_shown(sent[name])}, the recording has none"
            else:
                yield from _differences(where, recorded[name], sent[name])
    elif isinstance(recorded, list) and isinstance(sent, list):
        for number, pair in enumerate(zip(recorded, sent)):
            yield from _differences(f"{path}[{number}]", *pair)
        if len(recorded) != len(sent):
            yield f"{path or 'the body'} has {len(sent)} items, the recording has {len(recorded)}"
    elif not _is_same(recorded, sent):
        yield f"{path or 'the body'} is {_shown(sent)}, the recording has {_shown(recorded)}"


def _is_same(recorded: Any, sent: Any) -> bool:
    """Whether two values are equal and of the same type. Recorded asterisks match any text of their length."""
    mask = "*" * _MIN_SECRET_CHARS
    if isinstance(recorded, str) and isinstance(sent, str) and mask in recorded:
        pattern = re.sub(r"(?:\\\*)+", lambda run: f".{{{len(run[0]) // 2}}}", re.escape(recorded))
        return re.fullmatch(pattern, sent, re.DOTALL) is not None
    return bool(recorded == sent) and isinstance(recorded, bool) == isinstance(sent, bool)


def _shown(value: Any) -> str:
    text = repr(value) if isinstance(value, bytes) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "..."


class ReplayTape:
    """Replays the response to one request."""

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self._request = b""
        self._pieces: deque[bytes] | None = None

    def sent(self, data: bytes) -> None:
        self._request += data

    def read(self) -> bytes:
        """The next piece; empty at the end."""
        if self._pieces is None:
            self._pieces = deque(self._replay.take(self._request))
        return self._pieces.popleft() if self._pieces else b""


def _request_line(request: bytes) -> bytes:
    """The method and the path of a request.

    The query is left out, since a secret in it is masked in a recording. So is the host, which is sent to a proxy.
    """
    line = b" ".join(request.split(b"\r\n", 1)[0].split(b" ")[:2]).partition(b"?")[0]
    return re.sub(rb" http://[^/]*", b" ", line, count=1)


def _exchanges(path: Path) -> list[_Exchange]:
    """Read a recording: its requests in their order, with their responses.

    Raises:
        ValueError: The file is not a recording.
    """
    found: list[_Exchange] = []
    latest: dict[int, _Exchange] = {}
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            item = json.loads(line)
            connection, kind = item["connection"], "received" if "received" in item else "sent"
            data = item[kind].encode("utf-8", "surrogateescape")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is not a recording: line {number} is something else ({error})") from error
        if kind == "received":
            if connection in latest:
                latest[connection].pieces.append(data)
            continue
        if connection in latest and not latest[connection].pieces:
            data = latest[connection].request + data
            found.remove(latest[connection])
        latest[connection] = _Exchange(data, [])
        found.append(latest[connection])
    return found
