"""Runs the server in a child process, and restarts it when it crashes or its engine fails. Needs POSIX.

The supervisor keeps the listening socket open, so that connections wait while a new child loads the model. It forwards
SIGTERM and Ctrl-C to the child, and ends with the exit status of the child.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import FrameType

from ..core.child_processes import child_environment, signal_name
from .crashes import CrashRecord

log = logging.getLogger("localchat.server")

# The exit status of a child whose engine has failed, so that it must be restarted (EX_SOFTWARE of sysexits.h).
ENGINE_FAILED = 70

# The environment variable with the numbers of the file descriptors that a child inherits.
_VARIABLE = "LOCALCHAT_SUPERVISED"

# Seconds before a restart, by the number of crashes within the last minute.
_PAUSES_S = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0)
_MINUTE_S = 60.0


@dataclass(frozen=True)
class Inherited:
    """The objects that a supervised server shares with its supervisor."""

    listener: socket.socket
    """The listening socket."""
    record: CrashRecord
    """The record of the requests in flight."""


def inherited() -> Inherited | None:
    """The objects that this process shares with its supervisor; None without a supervisor. Call this once.

    Afterwards, this process gets SIGTERM when the supervisor ends for any reason.
    """
    numbers = os.environ.pop(_VARIABLE, None)
    if numbers is None:
        return None
    listener, record, alive = map(int, numbers.split(","))
    threading.Thread(target=_end_with_supervisor, args=(alive,), name="localchat-supervisor", daemon=True).start()
    return Inherited(socket.socket(fileno=listener), CrashRecord(record))


def _end_with_supervisor(alive: int) -> None:
    os.read(alive, 1)  # Nothing is written to this pipe: the call returns when the supervisor's end is closed.
    os.kill(os.getpid(), signal.SIGTERM)


class Supervisor:
    """Runs `command` until it ends without a crash. `listener` is the socket that its children serve."""

    def __init__(self, command: Sequence[str], listener: socket.socket) -> None:
        self._command = command
        self._listener = listener
        self._child: subprocess.Popen[bytes] | None = None
        self._is_stopping = False

    def run(self) -> int:
        """Run until the end, and return the exit status of the child, or 128 plus the signal that killed it."""
        crashes: list[float] = []
        was_ready = False
        with tempfile.TemporaryFile() as file, self._forwarding_signals():
            record = CrashRecord(file.fileno())
            while True:
                status = self._run_child(file.fileno())
                was_ready = was_ready or record.is_ready
                if self._is_stopping or (status >= 0 and status != ENGINE_FAILED):
                    return status if status >= 0 else 128 - status
                cause = "its engine failed" if status == ENGINE_FAILED else f"it was killed by {signal_name(status)}"
                if not was_ready:
                    log.error("the server ended while it loaded the model: %s", cause)
                    return 1 if status == ENGINE_FAILED else 128 - status
                now = time.monotonic()
                crashes = [at for at in crashes if now - at < _MINUTE_S] + [now]
                pause_s = _PAUSES_S[min(len(crashes), len(_PAUSES_S)) - 1]
                log.error("the server crashed, %s; %d requests were in flight; restarting it%s",
                          cause, record.add_suspects(), f" in {pause_s:g} s" if pause_s else "")  # fmt: skip
                time.sleep(pause_s)

    def _run_child(self, record: int) -> int:
        alive, ours = os.pipe()
        passed = (self._listener.fileno(), record, alive)
        environment = {**child_environment(), _VARIABLE: ",".join(map(str, passed))}
        try:
            # In its own session, the child gets Ctrl-C only from the supervisor, and not from the terminal too.
            self._child = subprocess.Popen(self._command, pass_fds=passed, env=environment, start_new_session=True)
            return self._child.wait()
        finally:
            self._child = None
            os.close(alive)
            os.close(ours)

    @contextlib.contextmanager
    def _forwarding_signals(self) -> Iterator[None]:
        def forward(number: int, frame: FrameType | None) -> None:
            self._is_stopping = True
            if self._child is None:
                sys.exit(128 + number)
            self._child.send_signal(number)

        before = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
