"""The messages of one connection without I/O: requests that wait for their responses, and what the server sends.

The threads of a `Transport` give the texts of the server to `Session.receive`, and report with `Session.end` that no
others follow. Threads and tasks of the program wait with a `Waiter` or an `AsyncWaiter`, which the threads of the
transport wake.
"""

from __future__ import annotations

import itertools
import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from ..errors import LocalChatError, TimedOut
from ..reply.payloads import as_integer
from ..texts import escaped
from ..transport.secrets import Secrets
from ..transport.sockets import start_thread
from ..transport.timeouts import Deadlines, Timeout, TotalDeadline
from .features import ClientFeatures, UnsupportedRequest
from .messages import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    Json,
    encode,
    failure,
    parse_messages,
    reported_failure,
)

log = logging.getLogger("localchat.mcp")

# The levels of messages that servers want to be logged, in the order of their severity.
_LOG_LEVELS = {
    "debug": logging.DEBUG,
    **dict.fromkeys(("info", "notice"), logging.INFO),
    "warning": logging.WARNING,
    **dict.fromkeys(("error", "critical", "alert", "emergency"), logging.ERROR),
}


def least_log_level() -> str:
    """The least level of messages that the logger takes, by its name in the protocol."""
    level = log.getEffectiveLevel()
    return next((name for name, limit in _LOG_LEVELS.items() if level <= limit), "critical")


# On Windows, Ctrl-C does not interrupt a wait, so it is divided into short ones.
_STEP_S = 0.2 if os.name == "nt" else 3600.0


_MAX_FUNCTIONS = 32  # The limit of functions of the program that run for a server at a time, each in a thread.


class Progress(NamedTuple):
    """A report of the progress of a call."""

    progress: float
    total: float | None = None
    message: str = ""


class AnyWaiter(Protocol):
    """Lets a thread or a task wait for the threads of a transport: a Waiter or an AsyncWaiter (aio.py)."""

    def wake(self) -> None:
        """End the current wait, or else the next one. Called by any thread."""

    async def wait(self, seconds: float | None) -> None:
        """Wait until `wake` is called, at most for these seconds."""

    async def run(self, function: Callable[[], Any]) -> Any:
        """The result of a function that blocks."""


class Waiter:
    """Lets a thread wait for the threads of a transport; see AnyWaiter."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def wake(self) -> None:
        self._event.set()

    async def wait(self, seconds: float | None) -> None:
        end = math.inf if seconds is None else time.monotonic() + seconds
        while not self._event.wait(min(_STEP_S, max(end - time.monotonic(), 0))) and time.monotonic() < end:
            pass
        self._event.clear()

    async def run(self, function: Callable[[], Any]) -> Any:
        return function()


class CallLimits(NamedTuple):
    """The timeouts of the requests of one call, which have one total deadline."""

    timeout: Timeout
    total: TotalDeadline

    @classmethod
    def of(cls, timeout: Timeout) -> CallLimits:
        """The limits of a call that begins now."""
        return cls(timeout, TotalDeadline(timeout.total))


class Outgoing:
    """A message to the server and its outcome, like a Future without a lock. Any thread may call the methods.

    The outcome of a request is its result or an error; that of any other message is {} when it is delivered.
    """

    def __init__(self, message: Json, headers: Mapping[str, str], wake: Callable[[], object] = lambda: None) -> None:
        self.message = message
        self.headers = headers  # Those of this message alone; only HTTP has headers.
        self.stop: Callable[[], object] = lambda: None  # Ends the transfer. The transport sets it.
        self.progress: deque[Progress] = deque()  # The reports that no thread has read.
        self._wake = wake
        # Results or exceptions, of which the first one counts: two threads may add one at once.
        self._outcomes: deque[Any] = deque()

    @property
    def is_request(self) -> bool:
        """Whether the server sends a response to the message. It sends none to notifications and responses."""
        return "method" in self.message and "id" in self.message

    @property
    def is_settled(self) -> bool:
        return bool(self._outcomes)

    def settle(self, outcome: Any) -> None:
        """Set the result, or the exception that stands for it. Only the first call has an effect."""
        self._outcomes.append(outcome)
        self._wake()

    def report(self, progress: Progress) -> None:
        self.progress.append(progress)
        self._wake()

    @property
    def outcome(self) -> Any:
        """The result. Raises the exception in place of it."""
        outcome = self._outcomes[0]
        if isinstance(outcome, Exception):
            raise outcome.with_traceback(None)  # Several threads may raise it.
        return outcome


class Transport(Protocol):
    """Sends messages to a server, and receives its messages."""

    legacy_revision: str  # The negotiated revision if it is one before 2026-07-28, else empty; the negotiation sets it.

    @property
    def begins_with_discover(self) -> bool:
        """Whether the first request is `server/discover`, not `initialize`."""

    @property
    def is_listening(self) -> bool:
        """Whether messages that belong to no request would be received now."""

    def start(self, session: Session) -> None:
        """Make the transport ready to send. Raises MCPError."""

    def send(self, outgoing: Outgoing) -> None:
        """Send a message without waiting. Raises TypeError or ValueError if it is not JSON."""

    def listen(self) -> None:
        """Receive the messages that belong to no request."""

    def close(self) -> None:
        """End the session and the server."""


class Session:
    """The requests that were sent to a server, and the messages that came from it.

    Args:
        name: The name of the server, for errors and the log.
        transport: Sends the messages.
        features: The functions for requests of the server.
        secrets: Masked in errors and in the log.
    """

    def __init__(self, name: str, transport: Transport, features: ClientFeatures, secrets: Secrets) -> None:
        self.name = name
        self.has_begun = False  # Whether the server has sent a message.
        self.n_tool_changes = 0  # How often the list of tools has changed, or may have.
        self._transport = transport
        self._features = features
        self._secrets = secrets
        self._ids = itertools.count(1)
        # The requests without a response by their ids, and the error that ended the session. The lock guards both: a
        # request either fails with `end` or is refused by `_send`.
        self._pending: dict[Any, Outgoing] = {}
        self._end_error: LocalChatError | None = None
        # The requests of the server whose functions run, by their ids, without those that it has cancelled.
        self._being_answered: dict[Any, Json] = {}
        self._function_slots = threading.BoundedSemaphore(_MAX_FUNCTIONS)
        self._lock = threading.Lock()

    # What the program sends.

    async def request(
        self,
        waiter: AnyWaiter,
        method: str,
        params: Json,
        limits: CallLimits,
        *,
        headers: Mapping[str, str] | None = None,
        on_progress: Callable[[Progress], object] | None = None,
        reports_cancel: bool = True,
    ) -> Json:
        """The result of a request. Raises MCPError or TimedOut.

        After a timeout, or if the wait is interrupted, the server is told so, unless `reports_cancel` is False.
        """
        request_id = next(self._ids)
        if on_progress is not None:
            params = {**params, "_meta": {**params.get("_meta", {}), "progressToken": request_id}}
        message = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
        outgoing = Outgoing(message, headers or {}, waiter.wake)
        is_sent = False
        try:
            self._send(outgoing, request_id)
            is_sent = True
            result = await self._wait(waiter, outgoing, limits, on_progress)
        except BaseException as error:
            if is_sent and not outgoing.is_settled:
                outgoing.stop()
                if reports_cancel:
                    reason = "timeout" if isinstance(error, TimedOut) else "interrupted"
                    self.notify("notifications/cancelled", {"requestId": request_id, "reason": reason})
            raise
        finally:
            self._pending.pop(request_id, None)
        if not isinstance(result, dict):
            raise failure(self.name, f"the result of {method} is no object")
        return result

    async def notify_and_wait(self, waiter: AnyWaiter, method: str, limits: CallLimits) -> None:
        """Send a notification, and wait until the transport has delivered it."""
        outgoing = Outgoing({"jsonrpc": "2.0", "method": method}, {}, waiter.wake)
        self._send(outgoing)
        await self._wait(waiter, outgoing, limits, None)

    def notify(self, method: str, params: Json) -> None:
        """Send a notification, unless the session has ended."""
        if self._end_error is None:
            self._transport.send(Outgoing({"jsonrpc": "2.0", "method": method, "params": params}, {}))

    def check_open(self) -> None:
        """Raise the error that ended the session, if one did."""
        if self._end_error is not None:
            raise self._end_error.with_traceback(None)

    def _send(self, outgoing: Outgoing, request_id: int | None = None) -> None:
        with self._lock:
            self.check_open()
            if request_id is not None:
                self._pending[request_id] = outgoing
        self._transport.send(outgoing)

    async def _wait(
        self,
        waiter: AnyWaiter,
        outgoing: Outgoing,
        limits: CallLimits,
        on_progress: Callable[[Progress], object] | None,
    ) -> Any:
        """The outcome of a message. Each report of progress starts `Timeout.stall`."""
        deadlines = Deadlines(limits.timeout, limits.total)
        deadlines.begin("first")
        while True:
            is_settled = outgoing.is_settled  # Before the reports are read, which came before the outcome.
            while outgoing.progress:
                deadlines.restart(True)
                progress = outgoing.progress.popleft()
                if on_progress is not None:
                    on_progress(progress)
            if is_settled:
                return outgoing.outcome
            try:
                seconds, _ = deadlines.left()
            except TimedOut as error:
                reason = f"no result of {outgoing.message['method']}: {error}"
                raise TimedOut(f"MCP server {self.name}: {reason}", kind=error.kind) from None
            await waiter.wait(seconds)

    # What the server sends. Runs on the threads of the transport.

    def receive(self, text: str, outgoing: Outgoing | None = None) -> None:
        """Take a text of the server, in response to `outgoing` if the transport knows that. Raises NotAMessage."""
        for message in parse_messages(text):
            self.has_begun = True
            if not isinstance(message.get("method"), str):
                self._take_response(message, outgoing)
            elif type(message.get("id")) in (int, str):
                self._take_request(message)
            elif "id" not in message:
                params = message.get("params")
                self._take_notification(message["method"], params if isinstance(params, dict) else {})

    def _take_response(self, message: Json, outgoing: Outgoing | None) -> None:
        outgoing = self._find_outgoing(message, outgoing)
        if outgoing is None:  # It may have been cancelled meanwhile.
            log.debug("%s: a response to no request: %s", self.name, self.shown(str(message.get("error") or "")))
        elif isinstance(message.get("error"), dict):
            error = reported_failure(self.name, message["error"], self.shown)
            self._secrets.mask_error(error)
            outgoing.settle(error)
        else:
            outgoing.settle(message.get("result"))

    def _find_outgoing(self, response: Json, outgoing: Outgoing | None) -> Outgoing | None:
        """The request that a response belongs to, None if there is none. See `receive` for `outgoing`."""
        response_id, error = response.get("id"), response.get("error")
        if response_id is None and isinstance(error, dict):  # The server could not read the id of the request.
            is_unreadable = error.get("code") in (PARSE_ERROR, INVALID_REQUEST)
            pending = list(self._pending.values())
            # Over HTTP the transport knows the request. Over stdio it is known only if no other one waits.
            return outgoing or (pending[0] if is_unreadable and len(pending) == 1 else None)
        number = as_integer(response_id)  # Some servers send it as text.
        if outgoing is not None and number == outgoing.message.get("id"):
            return outgoing
        return self._pending.get(number)

    def _take_notification(self, method: str, params: Json) -> None:
        if method == "notifications/progress":
            token, progress = params.get("progressToken"), params.get("progress")
            outgoing = self._pending.get(as_integer(token))
            if outgoing is not None and isinstance(progress, (int, float)):
                total, message = params.get("total"), params.get("message")
                total = total if isinstance(total, (int, float)) else None
                outgoing.report(Progress(progress, total, message if isinstance(message, str) else ""))
        elif method == "notifications/message":
            level = _LOG_LEVELS.get(str(params.get("level")), logging.INFO)
            log.log(level, "%s: %s", self.name, self.shown(str(params.get("data"))))
        elif method == "notifications/cancelled":
            if type(params.get("requestId")) in (int, str):
                self._being_answered.pop(params["requestId"], None)
        elif method == "notifications/tools/list_changed":
            self.n_tool_changes += 1

    def _take_request(self, request: Json) -> None:
        """Answer a request of the server; a function of the program runs on a thread of its own."""
        method = request["method"]
        if method in self._features.functions:
            if self._function_slots.acquire(blocking=False):
                self._being_answered[request["id"]] = request
                start_thread(lambda: self._run_function(request))
            else:
                error = {"code": INTERNAL_ERROR, "message": f"{_MAX_FUNCTIONS} requests are in progress"}
                self._respond(request, {"error": error})
        elif method == "ping":
            self._respond(request, {"result": {}})
        else:
            error = {"code": METHOD_NOT_FOUND, "message": f"this client has no {escaped(method)}"}
            self._respond(request, {"error": error})

    def _run_function(self, request: Json) -> None:
        """Respond with the result of a function of the program, unless the server has cancelled the request."""
        try:
            outcome = self._answer(request)
        finally:
            self._function_slots.release()
        if self._being_answered.pop(request["id"], None) is not None:
            self._respond(request, outcome)

    def _answer(self, request: Json) -> Json:
        """The result or the error of a function of the program."""
        method, params = request["method"], request.get("params")
        try:
            result = self._features.answer(method, params if isinstance(params, dict) else {})
            encode(result)  # Raises if it is not JSON.
            return {"result": result}
        except UnsupportedRequest as error:
            return {"error": {"code": INVALID_PARAMS, "message": str(error)}}
        except Exception:
            log.warning("%s: the function for %s failed", self.name, method, exc_info=True)
            return {"error": {"code": INTERNAL_ERROR, "message": f"the client failed to answer {method}"}}

    def _respond(self, request: Json, outcome: Json) -> None:
        if self._end_error is None:
            self._transport.send(Outgoing({"jsonrpc": "2.0", "id": request["id"], **outcome}, {}))

    def fail_pending(self, error: LocalChatError) -> None:
        """Let all requests that wait for a response fail with this error."""
        for outgoing in list(self._pending.values()):
            outgoing.settle(error)

    def end(self, error: LocalChatError) -> None:
        """Let all requests, also later ones, fail with this error. Only the first call has an effect."""
        with self._lock:
            if self._end_error is not None:
                return
            self._end_error = error
        self.fail_pending(error)

    def shown(self, text: str) -> str:
        """The beginning of a text of the server for an error or the log: masked, on one line, without control codes."""
        return escaped(self._secrets.mask(text[: 16 * 1024]), 1000)
