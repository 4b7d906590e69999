"""Record what goes over the wire, and play it again without a server.

    Client(url, record="answers.jsonl")                      # writes all bytes, the key masked
    Client(transport=replay("answers.jsonl"), model="m")     # answers from the file

A recording is lines of JSON, one per piece as it was sent or received, so that a replay cuts an answer
where the network cut it. Secrets are replaced by as many asterisks, since the lengths that HTTP gives
have to stay true. Works under Client and AsyncClient alike: both ask a transport for a tape.
"""

from __future__ import annotations

import json
import os
import re
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NamedTuple

from .errors import LocalChatError

_SECRET_NAME = rb"[\w-]*(?:authorization|key|token|secret|password|cookie)"
_SECRET_HEADERS = re.compile(rb"(?im)^(" + _SECRET_NAME + rb"[ \t]*:[ \t]*)([^\r\n]+)")
_SECRET_QUERY = re.compile(rb"(?i)([?&]" + _SECRET_NAME + rb"=)([^&\s]+)")
# The head of an answer, after what a server may say in between.
_HEAD = re.compile(rb"(?s)\A(?:HTTP/1\.\d 1.*?\n\r?\n)*(?!HTTP/1\.\d 1).*?\n\r?\n")
# A shorter key is no secret but a word that servers without keys are asked with, and part of others.
_MIN_SECRET_CHARS = 8


def _without_secrets(head: bytes) -> bytes:
    """A head with asterisks for what its headers, and the query of its first line, hold of secrets."""
    first, end, rest = head.partition(b"\n")
    return _masked(_SECRET_QUERY, first) + end + _masked(_SECRET_HEADERS, rest)


def _masked(secrets: re.Pattern[bytes], text: bytes) -> bytes:
    return secrets.sub(lambda match: match[1] + b"*" * len(match[2]), text)


def replay(path: str | os.PathLike[str]) -> Replay:
    """A transport that answers from a recording: each request gets the next answer to its method and path.

    Raises:
        ValueError: The file is no recording, or damaged.
        OSError: It cannot be read.
    """
    return Replay(path)


class Recorder:
    """A transport that writes down what passes. An older file of the same name is replaced."""

    plays = False

    def __init__(self, path: str | os.PathLike[str], secret: str = "", transport: Any = None) -> None:
        if transport is not None:  # It would not be asked.
            raise ValueError("record and transport exclude each other: leave one of them out")
        self._path = Path(path)
        self._path.write_bytes(b"")
        self.secret = secret.encode() if len(secret) >= _MIN_SECRET_CHARS else b""
        self._lock = threading.Lock()
        self._connections = 0
        self._start = time.monotonic()

    def tape(self) -> RecordingTape:
        """The tape of a new connection."""
        with self._lock:
            self._connections += 1
            return RecordingTape(self, self._connections)

    def connect(self, connect: Callable[[], socket.socket]) -> Any:
        """A socket that keeps its tape while it is used."""
        return _TapedSocket(connect(), self.tape())

    def write(self, connection: int, kind: str, pieces: Collection[bytes]) -> None:
        """Add lines to the file. Bytes that are no UTF-8, a cut character say, become lone surrogates."""
        seconds = round(time.monotonic() - self._start, 4)
        lines = [
            json.dumps({"connection": connection, "at": seconds, kind: piece.decode("utf-8", "surrogateescape")})
            for piece in pieces
        ]
        with self._lock, self._path.open("a", encoding="ascii") as file:
            file.writelines(line + "\n" for line in lines)


class RecordingTape:
    """What passes over one connection."""

    def __init__(self, recorder: Recorder, connection: int) -> None:
        self._recorder = recorder
        self._connection = connection
        # Received pieces of a head, or that end like the key begins: whether that is the key, the next one tells.
        self._held: list[bytes] = []
        self._in_head = False

    def sent(self, data: bytes) -> None:
        self.flush()
        self._in_head = True
        self._recorder.write(self._connection, "sent", [self._mask(_without_secrets(data))])

    def received(self, data: bytes) -> None:
        """A piece, or nothing for the end of the connection."""
        self._held.append(data)
        secret, joined = self._recorder.secret, b"".join(self._held)
        if data and self._in_head and not _HEAD.match(joined):
            return
        if not data or not any(joined.endswith(secret[:length]) for length in range(1, len(secret))):
            self.flush()

    def flush(self) -> None:
        """Write what is held: nothing more can follow that belongs to it."""
        if not self._held:
            return
        joined, pieces = b"".join(self._held), []
        if self._in_head:
            head, self._in_head = _HEAD.match(joined), False
            end = head.end() if head else len(joined)  # What was cut is all head.
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


class _Exchange(NamedTuple):
    """A request as it was sent, and the pieces of its answer."""

    request: bytes
    pieces: list[bytes]


class Replay:
    """A transport that plays a recording; nothing is connected."""

    plays = True

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._lock = threading.Lock()
        self._left = _exchanges(Path(path))

    def tape(self) -> PlayingTape:
        return PlayingTape(self)

    def connect(self, connect: Callable[[], socket.socket]) -> Any:
        return _PlayingSocket(self.tape())

    def take(self, request: bytes) -> list[bytes]:
        """The pieces of the next answer to such a request.

        Raises:
            LocalChatError: There is none.
        """
        line = _request_line(request)
        with self._lock:
            for number, exchange in enumerate(self._left):
                if _request_line(exchange.request) == line:
                    return self._left.pop(number).pieces
        raise LocalChatError(f"the recording holds no further answer to {line.decode('ascii', 'replace')}")


class PlayingTape:
    """One connection of a replay, good for one answer."""

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self._request = b""
        self._pieces: deque[bytes] | None = None

    def sent(self, data: bytes) -> None:
        self._request += data

    def read(self) -> bytes:
        """The next piece, nothing at the end."""
        if self._pieces is None:
            self._pieces = deque(self._replay.take(self._request))
        return self._pieces.popleft() if self._pieces else b""


def _request_line(request: bytes) -> bytes:
    """Method and path. The query may hold a secret, which is masked in a recording and another in a replay; a proxy is
    told the host, too."""
    line = b" ".join(request.split(b"\r\n", 1)[0].split(b" ")[:2]).partition(b"?")[0]
    return re.sub(rb" http://[^/]*", b" ", line, count=1)


def _exchanges(path: Path) -> list[_Exchange]:
    """The requests of a recording and their answers, in the order of the requests.

    Raises:
        ValueError: The file is no recording.
    """
    found: list[_Exchange] = []
    latest: dict[int, _Exchange] = {}
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            item = json.loads(line)
            connection, kind = item["connection"], "received" if "received" in item else "sent"
            data = item[kind].encode("utf-8", "surrogateescape")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is no recording: line {number} holds something else ({error})") from error
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


# Sockets, as far as the client uses them


class _TapedSocket:
    """A socket of which the traffic is kept."""

    def __init__(self, sock: socket.socket, tape: RecordingTape) -> None:
        self._sock = sock
        self._tape = tape

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def sendall(self, data: bytes) -> None:
        self._tape.sent(data)
        self._sock.sendall(data)

    def recv(self, size: int) -> bytes:
        data = self._sock.recv(size)
        self._tape.received(data)
        return data

    def shutdown(self, how: int) -> None:
        socket.socket.shutdown(self._sock, how)

    def close(self) -> None:
        self._tape.flush()
        self._sock.close()


class _PlayingSocket:
    """Looks like a socket and reads from the tape. It has no file number, so it is never used again."""

    def __init__(self, tape: PlayingTape) -> None:
        self._tape = tape

    def sendall(self, data: bytes) -> None:
        self._tape.sent(data)

    def recv(self, size: int) -> bytes:
        return self._tape.read()

    def fileno(self) -> int:
        return -1

    def settimeout(self, seconds: float | None) -> None:
        """Nothing waits here."""

    def shutdown(self, how: int) -> None:
        """Nor is anything connected."""

    def close(self) -> None:
        """Nor open."""
