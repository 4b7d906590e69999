"""A record of the requests in flight that remains after a crash, to find the request that caused it.

The record is a small file that a supervisor and the server share. The server writes which requests are in flight;
after a crash the supervisor counts these as suspects. Suspects run one at a time, so that a second crash has one
cause. A suspect whose response ends is cleared, and a request that crashed the server twice is refused.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from hashlib import sha256

from ..core import errors

# A request that crashed the server this many times is refused.
MAX_CRASHES = 2

# Limit of the requests in flight in the record, and of the suspects. More than these are not recorded.
_N_ENTRIES = 1024
_DIGEST_BYTES = 16
# An entry is a fingerprint and a count of crashes. The file has one byte (1: the model is loaded), the entries of the
# suspects, and the entries of the requests in flight.
_ENTRY_BYTES = _DIGEST_BYTES + 1
_IN_FLIGHT_AT = 1 + _N_ENTRIES * _ENTRY_BYTES


class RequestCrashed(errors.ApiError):
    """The request crashed the server before. Clients do not repeat a request after status 400."""

    status = 400
    type = "invalid_request_error"
    code = "request_crashed_server"


def fingerprint(method: str, path: str, body: bytes) -> bytes:
    digest = sha256(f"{method} {path}\n".encode("utf-8", "replace"))
    digest.update(body)
    return digest.digest()[:_DIGEST_BYTES]


class CrashRecord:
    """The record in the open file with the descriptor `fd`. The file may be empty."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._suspects = dict(self._entries(1))
        # Held by the thread of a suspect while the suspect is in flight.
        self._one_suspect = threading.Lock()
        self._lock = threading.Lock()
        self._free = list(range(_N_ENTRIES))

    # --- the server ---

    def set_ready(self) -> None:
        """Record that the model is loaded."""
        os.pwrite(self._fd, b"\1", 0)

    @contextlib.contextmanager
    def during(self, request: bytes) -> Iterator[None]:
        """Record that the request with this fingerprint is in flight within the `with`.

        If the request is a suspect, wait until no other suspect is in flight.

        Raises:
            RequestCrashed: The request crashed the server too often.
        """
        n_crashes = self._suspects.get(request, 0)
        if n_crashes >= MAX_CRASHES:
            message = f"this request crashed the server {n_crashes} times and is refused until the server is restarted"
            raise RequestCrashed(f"{message}: change it, and please report it")
        if not n_crashes:
            with self._recorded(request):
                yield
            return
        with self._one_suspect:
            with self._recorded(request):
                yield
            self._clear(request)

    @contextlib.contextmanager
    def _recorded(self, request: bytes) -> Iterator[None]:
        with self._lock:
            i = self._free.pop() if self._free else None
        if i is None:
            yield
            return
        at = _IN_FLIGHT_AT + i * _ENTRY_BYTES
        os.pwrite(self._fd, request + b"\1", at)
        try:
            yield
        finally:
            os.pwrite(self._fd, bytes(_ENTRY_BYTES), at)
            with self._lock:
                self._free.append(i)

    def _clear(self, request: bytes) -> None:
        with self._lock:
            self._suspects.pop(request, None)
            self._write_suspects()

    # --- the supervisor ---

    @property
    def is_ready(self) -> bool:
        return os.pread(self._fd, 1, 0) == b"\1"

    def add_suspects(self) -> int:
        """After a crash, make the requests in flight suspects, and return their number."""
        suspects = dict(self._entries(1))
        in_flight = [request for request, _ in self._entries(_IN_FLIGHT_AT)]
        for request in in_flight:
            suspects[request] = min(suspects.get(request, 0) + 1, 255)
        # Keep those that crashed the server most often.
        self._suspects = dict(sorted(suspects.items(), key=lambda entry: -entry[1])[:_N_ENTRIES])
        self._write_suspects()
        os.ftruncate(self._fd, _IN_FLIGHT_AT)
        return len(in_flight)

    def _write_suspects(self) -> None:
        entries = b"".join(request + bytes([n]) for request, n in self._suspects.items())
        os.pwrite(self._fd, entries.ljust(_N_ENTRIES * _ENTRY_BYTES, b"\0"), 1)

    def _entries(self, at: int) -> Iterator[tuple[bytes, int]]:
        data = os.pread(self._fd, _N_ENTRIES * _ENTRY_BYTES, at)
        for start in range(0, len(data) - _DIGEST_BYTES, _ENTRY_BYTES):
            n = data[start + _DIGEST_BYTES]
            if n:
                yield data[start : start + _DIGEST_BYTES], n
