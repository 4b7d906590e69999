"""The stdio transport: a server as a process, with one message on each line of its standard input and output."""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..transport.secrets import CREDENTIAL_NAMES
from .messages import LineDecoder, MCPError, NotAMessage, encode, failure
from .session import Outgoing, Session, log

_READ_BYTES = 65536
_MAX_STDERR_LINE = 10_000
_MAX_SHOWN_BYTES = 1000  # Of what is no text.

# The limits of the three steps that end a process, in seconds: closing its stdin, SIGTERM, SIGKILL.
_CLOSE_S, _TERMINATE_S, _KILL_S = 2.0, 2.0, 1.0
# After the end of its output, a process has this time to exit before the error reports that it did not.
_EXIT_S = 0.5
_POLL_S = 0.01
_MAX_UNREAD = 10_000  # How many messages wait for a process to read them; a server can request as many responses.

_HAS_GROUPS = hasattr(os, "killpg")

# The variables of this process that a server gets. Programs on Windows do not start without most of theirs.
_INHERITED = ("PATH", "HOME")
_INHERITED_ON_WINDOWS = (
    *("PATH", "PATHEXT", "SYSTEMROOT", "SYSTEMDRIVE", "COMSPEC", "TEMP", "TMP", "USERNAME", "USERPROFILE"),
    *("HOMEDRIVE", "HOMEPATH", "APPDATA", "LOCALAPPDATA", "PROGRAMDATA", "PROGRAMFILES"),
)


def server_environment(added: Mapping[str, str]) -> dict[str, str]:
    """The environment of a server: what programs need to start, and what the program gives, but no keys."""
    names = _INHERITED_ON_WINDOWS if os.name == "nt" else _INHERITED
    return {**{name: os.environ[name] for name in names if name in os.environ}, **added}


def secrets_of_environment(added: Mapping[str, str]) -> Iterator[str]:
    """The values of variables that may be secrets: others than words and the paths of this machine."""
    for name, value in added.items():
        if CREDENTIAL_NAMES.search(name.lower()) or not (value.isalpha() or os.path.exists(value)):
            yield value


def find_program(
    command: str,
    environment: Mapping[str, str],
    folder: str | os.PathLike[str] | None,
    is_windows: bool = os.name == "nt",
) -> str | None:
    """The path of a program, None if there is none.

    A name is searched in PATH alone: on Windows, `shutil.which` would take a file of the current folder, such as that
    of a project of somebody else. A relative path starts at the folder in which the program will run.
    """
    if os.path.dirname(command):
        return shutil.which(os.path.join(folder or "", command))
    if not is_windows:
        return shutil.which(command, path=environment.get("PATH"))
    extensions = environment.get("PATHEXT", ".COM;.EXE;.BAT;.CMD").split(";")
    has_extension = command.lower().endswith(tuple(extension.lower() for extension in extensions))
    names = [command] if has_extension else [command + extension for extension in extensions]
    folders = filter(None, environment.get("PATH", "").split(os.pathsep))
    paths = (os.path.join(path, name) for path in folders for name in names)
    return next(filter(os.path.isfile, paths), None)


class ProcessTransport:
    """Runs a server as a process.

    Three threads do the I/O, so that no caller waits for a server that does not read or write.

    Args:
        name: The name of the server, for errors and the log.
        command: The program and its arguments.
        env: Variables that are added to its environment.
        cwd: Its working folder; None for that of this process.
    """

    begins_with_discover = False  # Some servers end at a request before `initialize`.
    is_listening = True  # Messages that belong to no request come as all others do.

    def __init__(
        self, name: str, command: Sequence[str], env: Mapping[str, str], cwd: str | os.PathLike[str] | None
    ) -> None:
        self.legacy_revision = ""  # Only HTTP sends it.
        self._name = name
        self._command = list(map(str, command))
        self._environment = server_environment(env)
        self._cwd = cwd
        self._process: Any = None
        self._session: Any = None
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()  # None closes stdin.
        # The last line of its stderr, and whether its stderr has ended.
        self._last_stderr, self._stderr_ended = "", threading.Event()
        self._stdout_ended = threading.Event()  # No further message will be received.
        self._has_stopped = False
        self._lock = threading.Lock()  # One thread at a time starts or ends the process.

    def start(self, session: Session) -> None:
        """Start the process. Raises MCPError."""
        self._session = session
        program = find_program(self._command[0], self._environment, self._cwd)
        if program is None:
            raise self._error(f"there is no program {self._command[0]!r} in PATH: is it installed?")
        errors: list[Exception] = []

        def run() -> None:
            try:
                self._start_process(program)
            except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: there is no further thread.
                errors.append(error)

        try:
            # In a thread, which Ctrl-C does not interrupt: a process that is half started could not be ended.
            thread = threading.Thread(target=run, name="localchat-mcp", daemon=True)
            thread.start()
            thread.join()
        except RuntimeError as error:
            errors.append(error)
        if errors:
            raise self._error(f"it cannot be started: {errors[0]}") from errors[0]

    def _start_process(self, program: str) -> None:
        """Start the process and the threads, unless `close` was called meanwhile."""
        options: dict[str, Any] = {"start_new_session": True} if _HAS_GROUPS else {}
        if os.name == "nt":
            options["creationflags"] = getattr(subprocess, "CREATE_NO_WINDOW", 0)
        with self._lock:
            if self._has_stopped:
                return
            self._process = subprocess.Popen(
                [os.path.abspath(program), *self._command[1:]],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self._environment,
                cwd=self._cwd,
                bufsize=0,
                **options,
            )
            for function in (self._write, self._read, self._read_stderr):
                threading.Thread(target=function, name="localchat-mcp", daemon=True).start()

    def send(self, outgoing: Outgoing) -> None:
        self._outbox.put(encode(outgoing.message))
        if self._outbox.qsize() > _MAX_UNREAD:
            self._session.end(self._error(f"it has not read {_MAX_UNREAD} messages"))
        if not outgoing.is_request:
            outgoing.settle({})

    def listen(self) -> None:
        """Do nothing: messages that belong to no request come as all others do."""

    def close(self) -> None:
        """End the process in three steps. Returns when it has ended, also when another thread ends it."""
        if self._session is not None:
            self._session.end(self._error("it was closed"))
        self._stop()

    def _write(self) -> None:
        """Write the messages to stdin, until it is to be closed or the process has closed it."""
        with contextlib.suppress(OSError), self._process.stdin as stdin:
            while True:
                data = self._outbox.get()
                if data is None:
                    return
                view = memoryview(data)
                while view:
                    view = view[stdin.write(view) :]
        # The process has closed its stdin. Responses may still be read, and the end of stdout tells more.
        if not self._stdout_ended.wait(_EXIT_S):
            self._session.end(self._error(self._reason_of_end("it closed its stdin")))
            self._stop()

    def _read(self) -> None:
        """Give the lines of stdout to the session until its end, then end the process."""
        try:
            with self._process.stdout as stdout:
                reason = self._read_lines(stdout)
        except Exception as error:  # Those who wait must hear of every error.
            log.exception("%s: its stdout cannot be read", self._name)
            reason = f"its stdout cannot be read: {error!r}"
        # Its stdout is closed: a process that writes more gets an error.
        self._session.end(self._error(reason))
        self._stdout_ended.set()
        self._stop()

    def _read_lines(self, stdout: Any) -> str:
        """Give the lines to the session. Returns why there are no others."""
        decoder = LineDecoder()
        while True:
            data = stdout.read(_READ_BYTES)
            if not data:
                return self._reason_of_end("it closed its stdout")
            try:
                for line in decoder.feed(data):
                    self._take(line)
            except UnicodeDecodeError as error:
                shown = self._session.shown(repr(error.object[:_MAX_SHOWN_BYTES]))
                return f"it wrote bytes to its stdout that are no text: {shown}"
            except NotAMessage as error:
                return f"it wrote to its stdout: {error}"

    def _take(self, line: bytes) -> None:
        """Give a line to the session. A text that is no message is an error of all calls that wait.

        Before the first message it is only logged: some programs print a greeting. Raises UnicodeDecodeError for what
        is no text, since no message can follow that.
        """
        text = line.decode()
        if not text.strip():
            return
        try:
            self._session.receive(text)
        except NotAMessage as error:
            shown = self._session.shown(str(error))
            if self._session.has_begun:
                self._session.fail_pending(self._error(f"it wrote a line to its stdout that is no message: {shown}"))
            else:
                log.warning("%s: a line of its stdout is no message: %s", self._name, shown)

    def _reason_of_end(self, default: str) -> str:
        """Why the process has closed a pipe: its exit code, or the default if it runs."""
        code = self._wait(_EXIT_S)
        if code is not None:
            self._stderr_ended.wait(_EXIT_S)  # A process that it started may still have it.
        if code is None:
            reason = default
        elif code < 0:
            reason = f"it was ended by signal {-code}"
        else:
            reason = f"it ended with exit code {code}"
        return f"{reason}; its last line on stderr: {self._last_stderr}" if self._last_stderr else reason

    def _read_stderr(self) -> None:
        """Log the lines of stderr."""
        with self._process.stderr as stderr:
            incomplete = b""
            while True:
                data = stderr.read(_READ_BYTES)
                *lines, incomplete = (incomplete + data).split(b"\n")
                if not data or len(incomplete) > _MAX_STDERR_LINE:
                    lines, incomplete = [*lines, incomplete], b""
                for line in filter(bytes.strip, lines):
                    self._last_stderr = self._session.shown(line.decode("utf-8", "replace"))
                    log.info("%s: %s", self._name, self._last_stderr)
                if not data:
                    break
        self._stderr_ended.set()

    def _stop(self) -> None:
        """End the process, and those that it started, in three steps."""
        with self._lock:
            if self._has_stopped:
                return
            if self._process is not None:
                self._outbox.put(None)
                self._wait(_CLOSE_S)
                if self._is_alive():
                    self._signal(signal.SIGTERM, _TERMINATE_S)
                if self._is_alive():
                    self._signal(getattr(signal, "SIGKILL", signal.SIGTERM), _KILL_S)
            self._has_stopped = True

    def _wait(self, seconds: float) -> int | None:
        """The exit code of the process, or the negative number of a signal; None if it runs longer than that."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return int(self._process.wait(seconds))
        return None

    def _is_alive(self) -> bool:
        """Whether the process or one that it started runs. On Windows those that it started are not known."""
        if not _HAS_GROUPS:
            return self._process.poll() is None
        self._process.poll()
        try:
            os.killpg(self._process.pid, 0)
        except OSError:  # There is no such group, or macOS has only processes in it that have ended.
            return False
        return True

    def _signal(self, number: int, seconds: float) -> None:
        """Send a signal to the process and those that it started, and wait for their end."""
        with contextlib.suppress(OSError):  # They have ended meanwhile.
            if _HAS_GROUPS:
                os.killpg(self._process.pid, number)
            else:
                self._process.kill()
        end = time.monotonic() + seconds
        while self._is_alive() and time.monotonic() < end:
            time.sleep(_POLL_S)

    def _error(self, reason: str) -> MCPError:
        return failure(self._name, reason)
