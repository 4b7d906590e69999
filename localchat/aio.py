"""The asynchronous client: the same questions, events and errors, on asyncio streams.

    async with AsyncClient() as client:
        async with client.stream("Why is the sky blue?") as stream:
            async for text in stream.text:
                print(text, end="")

All decisions are those of `client`; this module only waits for the network in another way. Cancelling
the task, or leaving the `async with`, closes the connection at once. A client belongs to the event loop in
which it is first used.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Union, overload

from .client import (
    ANSWER_ERRORS,
    DRAIN_BYTES,
    DRAIN_S,
    ERROR_BODY_S,
    MAX_ERROR_BYTES,
    MAX_IDLE_CONNECTIONS,
    READ_BYTES,
    Answer,
    Caller,
    CallState,
    StaleConnection,
    Timeout,
    check_size,
    ended_by,
    find_proxy,
    is_known,
    reply_of,
    take_tunnel,
    timed_out,
    tls_context,
    tunnel_request,
)
from .client import addresses as addresses_of
from .events import (
    BadRequestError,
    Cancelled,
    ConnectError,
    IncompleteStream,
    LocalChatError,
    NotFoundError,
    ProtocolError,
    Reply,
    StatusError,
    StreamEvent,
    TimedOut,
    UnprocessableError,
)
from .wire import Accumulator, Prompt, ResponseReader

if TYPE_CHECKING:
    from .conversation import AsyncConversation
    from .tools import AnyTool, AsyncToolRun

# Connections


class _Connection:
    """One connection to the server, and the response under way on it."""

    def __init__(self, reader: Any, writer: Any, proxy: str | None, tape: Any) -> None:
        self._reader = reader
        self._writer = writer
        self._tape = tape
        self._loop = asyncio.get_running_loop()
        self.proxy = proxy
        self.used = False

    def is_usable(self) -> bool:
        """Whether the server has neither closed it nor said anything unasked, and this is still its event loop."""
        said = self._reader.at_eof() or self._reader._buffer  # at_eof() alone is false while there is something.
        return not said and not self._writer.is_closing() and self._loop is asyncio.get_running_loop()

    def write(self, data: bytes) -> None:
        """Send. Nothing waits for it: a server may answer before it has read everything."""
        if self._tape is not None:
            self._tape.sent(data)
        self._writer.write(data)

    async def read(self, limit: float | None, kind: str) -> bytes:
        """The next bytes, nothing at the end. A limit that runs out ends the connection."""
        # A timer costs a tenth of asyncio.wait_for, which makes a task of every read.
        timer = None if limit is None else self._loop.call_later(limit, self._expire, kind)
        try:
            data: bytes = await self._reader.read(READ_BYTES)
        finally:
            if timer is not None:
                timer.cancel()
        if self._tape is not None:
            self._tape.received(data)
        return data

    def _expire(self, kind: str) -> None:
        if self._reader._waiter is not None:  # Or bytes have come, in the same turn of a loop that was busy.
            self._reader.set_exception(timed_out(kind))

    def close(self) -> None:
        """At once: the polite end of TLS would wait for the server."""
        if self._tape is not None:
            self._tape.flush()
        with contextlib.suppress(RuntimeError):  # The event loop is closed, and all its connections with it.
            self._writer.transport.abort()


class _PlayedConnection:
    """Stands for a connection where a recording is played, for one answer."""

    proxy = None
    used = False

    def __init__(self, tape: Any) -> None:
        self._tape = tape

    def is_usable(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        self._tape.sent(data)

    async def read(self, limit: float | None, kind: str) -> bytes:
        data: bytes = self._tape.read()
        return data

    def close(self) -> None:
        """Nothing is connected."""


_AnyConnection = Union[_Connection, _PlayedConnection]


async def _open_socket(caller: Caller, proxy: str | None, limit: float | None) -> socket.socket:
    path = caller.address.socket_path
    if path:
        return await _connect_socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, path, limit)
    host, port = caller.address.peer(proxy)
    failure = OSError(f"{host} has no address")
    candidates = addresses_of(host, port) if is_known(host) else await _look_up(host, port)
    for family, kind, protocol, _, where in candidates:
        try:
            # Shared out, so that one dead address leaves time for the next.
            share = None if limit is None else limit / len(candidates)
            return await _connect_socket(family, kind, protocol, where, share)
        except asyncio.TimeoutError as error:
            failure = socket.timeout(str(error))
        except OSError as error:
            failure = error
    raise failure


async def _look_up(host: str, port: int) -> list[Any]:
    """What the resolver says, which knows no limit: in a thread of its own, for which no end of a loop waits."""
    loop = asyncio.get_running_loop()
    found: asyncio.Future[list[Any]] = loop.create_future()

    def settle(outcome: Any) -> None:
        if not found.done():
            (found.set_exception if isinstance(outcome, Exception) else found.set_result)(outcome)

    def look_up() -> None:
        outcome: Any
        try:
            outcome = addresses_of(host, port)
        except (OSError, UnicodeError) as error:
            outcome = error
        with contextlib.suppress(RuntimeError):  # The loop has been closed meanwhile.
            loop.call_soon_threadsafe(settle, outcome)

    threading.Thread(target=look_up, name="localchat-lookup", daemon=True).start()
    return await found


async def _connect_socket(family: int, kind: int, protocol: int, where: Any, limit: float | None) -> socket.socket:
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setblocking(False)
        await asyncio.wait_for(asyncio.get_running_loop().sock_connect(sock, where), limit)
    except BaseException:
        sock.close()
        raise
    return sock


async def _open_streams(caller: Caller, proxy: str | None, limit: float | None) -> tuple[Any, Any]:
    secure = caller.address.scheme == "https"
    sock = await _open_socket(caller, proxy, limit)
    try:
        if secure and proxy is not None:
            await _open_tunnel(sock, caller, proxy)
        tls: dict[str, Any] = (
            {"ssl": tls_context(caller.verify), "server_hostname": caller.address.host} if secure else {}
        )
    except BaseException:
        sock.close()
        raise
    # From here on asyncio closes it: below its feet, the next socket would get the number that it still waits for.
    return await asyncio.open_connection(sock=sock, **tls)


async def _open_tunnel(sock: socket.socket, caller: Caller, proxy: str) -> None:
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(sock, tunnel_request(caller.address, proxy))
    response = ResponseReader()
    while not take_tunnel(response, await loop.sock_recv(sock, READ_BYTES)):
        pass


def _abandon(connecting: asyncio.Task[Any]) -> None:
    """Close a connection that nobody waits for any more."""
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result()[1].transport.abort()


# Calls


class _AsyncCall(CallState):
    """A call over asyncio streams."""

    def __init__(
        self, client: AsyncClient, timeout: Timeout, send: Callable[[_AsyncCall], Awaitable[None]] | None = None
    ) -> None:
        super().__init__(client, timeout)
        self._client = client
        self._send = send
        self._connection: _AnyConnection | None = None
        self.is_cancelled = False
        # What `cancel` has to set while something else than bytes is waited for.
        self._woken: asyncio.Future[None] | None = None

    def cancel(self) -> None:
        """Stop at once: whoever waits for the network gets Cancelled. For other tasks of the same loop."""
        self.is_cancelled = True
        if self._connection is not None:
            self._connection.close()
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    def check_cancelled(self, cause: BaseException | None = None) -> None:
        """What goes wrong after a cancel goes wrong because of it."""
        if self.is_cancelled:
            raise Cancelled("the stream was closed") from cause

    async def open(self) -> None:
        """Send the request, unless that has been done."""
        send, self._send = self._send, None
        if send is not None:
            await send(self)

    async def send(self, method: str, path: str, body: Mapping[str, Any] | None, headers: Mapping[str, str]) -> None:
        """Send a request and take the status, with retries."""
        self.prepare(method, path, body, headers)
        try:
            await self._send_with_retries()
        except NotFoundError as error:
            if self.caller.wants_names(error, path):
                with contextlib.suppress(LocalChatError):  # This only serves to explain.
                    self.caller.add_names(error, await self.fetch("GET", "/models", None, headers))
                self.check_cancelled(error)
            raise

    async def _send_with_retries(self) -> None:
        while True:
            try:
                await self._send_once()
                return
            except LocalChatError as error:
                self._drop()
                self.check_cancelled(error)
                delay = self.next_delay(error)
            await self._wait_for((), delay)

    async def _wait_for(self, tasks: Collection[asyncio.Task[Any]], seconds: float | None) -> None:
        """Until a task is done, the time is over, or the call is cancelled."""
        self._woken = asyncio.get_running_loop().create_future()
        await asyncio.wait([*tasks, self._woken], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        self.check_cancelled()

    async def fetch(self, method: str, path: str, body: Mapping[str, Any] | None, headers: Mapping[str, str]) -> bytes:
        """The whole body of an answer that is no chat."""
        try:
            await self.send(method, path, body, headers)
            raw = bytearray()
            while not self.ended or self._first:
                raw += await self.read()
                check_size(len(raw))
            return bytes(raw)
        finally:
            self.release()

    async def read(self, at_most_s: float | None = None) -> bytes:
        """The next bytes of the body, perhaps none; `ended` tells the proper end."""
        connection, first = self._connection, self.take_first()
        if first or connection is None or self.ended:
            return first
        try:
            data = await self._receive(connection, at_most_s)
        except OSError as error:
            self.check_cancelled(error)
            raise IncompleteStream(f"the connection broke: {error or type(error).__name__}") from error
        return self.take_body(data)

    async def _receive(self, connection: _AnyConnection, at_most_s: float | None = None) -> bytes:
        limit, kind = self.clocks.reading() if at_most_s is None else (at_most_s, "idle")
        data = await connection.read(limit, kind)
        self.clocks.rest()
        self.check_cancelled()  # The end, and what comes with it, may be our own doing.
        return data

    async def drain(self, n_bytes: int = DRAIN_BYTES, seconds: float = DRAIN_S) -> bytes:
        """Read the rest of the body within these limits, and give the connection back if that was all of it."""
        raw, end = b"", time.monotonic() + self.clocks.at_most(seconds)
        with contextlib.suppress(LocalChatError):  # What matters has come.
            while len(raw) < n_bytes and time.monotonic() < end and not (self.ended and not self._first):
                raw += await self.read(max(end - time.monotonic(), 0.001))
        self.release()
        return raw

    def release(self) -> None:
        """Give the connection back if the body was read to its end, close it otherwise."""
        connection = self._connection
        if connection is not None and self.reusable and not self.is_cancelled:
            self._connection = None
            self._client._checkin(connection)
        self._drop()

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    async def _send_once(self) -> None:
        try:
            await self._exchange(self._client._checkout() or await self._connect())
        except StaleConnection:
            # The server closed an idle connection just as we wrote to it: no try is lost by that.
            self._drop()
            await self._exchange(await self._connect())
        if self.redirect():
            await self.drain()
            await self._send_once()
        elif not 200 <= self.status < 300:
            raise self.status_error(await self.drain(MAX_ERROR_BYTES, ERROR_BODY_S))

    async def _exchange(self, connection: _AnyConnection) -> None:
        """Request out, status and headers in."""
        self._connection = connection
        self.check_cancelled()
        reused, connection.used = connection.used, True
        try:
            connection.write(self.begin(connection.proxy))
            while not self.take_head(await self._receive(connection)):
                pass
        except OSError as error:
            self.check_cancelled(error)
            if reused and not self._response.begun:
                raise StaleConnection from error
            raise ConnectError(self.caller.broken(error)) from error

    async def _connect(self) -> _AnyConnection:
        caller = self.caller
        tape = None if caller.transport is None else caller.transport.tape()
        if tape is not None and caller.transport.plays:
            return _PlayedConnection(tape)
        limit, kind = self.clocks.connecting()
        proxy = find_proxy(caller.address, caller.proxy)
        # asyncio.wait_for would lose a cancel, or the connection, if both came at once (before Python 3.12).
        connecting = asyncio.ensure_future(_open_streams(caller, proxy, limit))
        try:
            await self._wait_for([connecting], limit)
            if not connecting.done():
                raise timed_out(kind)
            streams = connecting.result()
        except BaseException as error:
            connecting.add_done_callback(_abandon)
            connecting.cancel()
            if isinstance(error, socket.timeout):
                raise timed_out(kind) from None
            if isinstance(error, (OSError, UnicodeError)):
                raise ConnectError(caller.unreachable(error, proxy)) from error
            raise
        return _Connection(*streams, proxy if caller.address.scheme == "http" else None, tape)


# The public face


class AsyncStream:
    """One answer under way: iterate it for events, or `text` for text; leave the `async with` to cancel.

    `reply` is what has come so far, also after an error.
    """

    def __init__(self, call: _AsyncCall, accumulator: Accumulator) -> None:
        self._call = call
        self._accumulator = accumulator
        self._opened = False
        self._events = _events(call, accumulator)

    async def __aenter__(self) -> AsyncStream:
        await self._open()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def __aiter__(self) -> AsyncIterator[StreamEvent]:
        return self

    async def __anext__(self) -> StreamEvent:
        await self._open()
        event = await _next(self._events)
        if event is not None:
            return event
        if self._call.is_cancelled and not self._call.succeeded:
            raise Cancelled("the stream was closed", partial=self.reply)
        raise StopAsyncIteration

    @property
    async def text(self) -> AsyncIterator[str]:
        """The pieces of the first choice's text, as they come."""
        async for event in self:
            if event.type == "content_delta" and event.choice_index == 0:
                yield event.delta

    @property
    def reply(self) -> Reply:
        """What has come so far; whole after the last event."""
        return reply_of(self._call, self._accumulator)

    async def close(self) -> None:
        """Cancel, from any task of the loop, at once."""
        self._call.cancel()
        with contextlib.suppress(RuntimeError):  # Another task is in it: it is awake now, and closes.
            await self._events.aclose()

    async def _open(self) -> None:
        """Send the request, if that has not been done: the generator's first step."""
        if not self._opened:
            self._opened = True
            await _next(self._events)


_Events = AsyncGenerator[Union[StreamEvent, None], None]


async def _next(events: _Events) -> StreamEvent | None:
    try:
        return await events.__anext__()
    except StopAsyncIteration:
        return None


async def _events(call: _AsyncCall, accumulator: Accumulator) -> _Events:
    """All that happens in a stream: open and yield None; read, finish, and give the connection back."""
    try:
        await call.open()
        yield None
        answer = Answer(call, accumulator)
        while not answer.over:
            try:
                data = await call.read()
            except (IncompleteStream, TimedOut, ProtocolError) as error:
                events = answer.cut(error)
            else:
                events = answer.feed(data)
            for event in events:
                yield event
        if answer.done:
            await call.drain()
        for event in answer.finish():
            yield event
        call.succeeded = True
    except ANSWER_ERRORS as error:
        for event in ended_by(error, call, accumulator):
            yield event
        raise
    finally:
        call.release()


class AsyncClient(Caller):
    """A chat client for asyncio; takes the arguments of Client, and has its methods as coroutines."""

    def _set_up(self) -> None:
        # Idle connections; the last used is the first to be used again.
        self._idle: list[_AnyConnection] = []

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the idle connections. The client stays usable."""
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
        await asyncio.sleep(0)  # The connections go when the loop has its next turn.

    async def chat(self, prompt: Prompt, /, *, stream: bool = True, **options: Any) -> Reply:
        """The whole answer; see Client.chat."""
        async with self._start(prompt, stream, options) as answer:
            async for _ in answer:
                pass
            return self.with_value(answer.reply, options.get("response_format"))

    def stream(self, prompt: Prompt, /, **options: Any) -> AsyncStream:
        """An answer as it comes, as an asynchronous context manager; see Client.stream."""
        return self._start(prompt, True, options)

    async def models(self) -> list[str]:
        """The names of the models that the server offers."""
        return self.read_models(await _AsyncCall(self, self.timeout).fetch("GET", "/models", None, {}))

    @overload
    def run(
        self, prompt: Prompt, /, tools: Iterable[AnyTool] = (), *, stream: Literal[False] = False, **options: Any
    ) -> Awaitable[Reply]: ...

    @overload
    def run(
        self, prompt: Prompt, /, tools: Iterable[AnyTool] = (), *, stream: Literal[True], **options: Any
    ) -> AsyncToolRun: ...

    def run(
        self, prompt: Prompt, /, tools: Iterable[AnyTool] = (), *, stream: bool = False, **options: Any
    ) -> Awaitable[Reply] | AsyncToolRun:
        """The answer of a model that may call functions, coroutine functions among them; see Client.run."""
        from . import tools as home

        run = home.start_run(home.AsyncToolRun, self, prompt, tools, **options)
        return run if stream else run.finish()

    def conversation(self, **options: Any) -> AsyncConversation:
        """A list of messages that grows turn by turn; see Client.conversation."""
        from .conversation import AsyncConversation

        return AsyncConversation(self, **options)

    async def complete(self, prompt: Any, /, *, stream: bool = True, **options: Any) -> Reply:
        """How a text goes on; see Client.complete."""
        async with self._start(prompt, stream, {"think_tags": "off", **options}, "/completions") as answer:
            async for _ in answer:
                pass
            return answer.reply

    @overload
    async def embed(self, text: str, /, **options: Any) -> list[float]: ...

    @overload
    async def embed(self, text: Sequence[str], /, **options: Any) -> list[list[float]]: ...

    async def embed(self, text: str | Sequence[str], /, **options: Any) -> list[float] | list[list[float]]:
        """The vector of a text, or the vectors of several; see Client.embed."""
        question = self.question("", False, options)
        texts = [text] if isinstance(text, str) else list(text)
        call = _AsyncCall(self, question.timeout)
        model = question.model or await self._default_model(call, question.headers)
        raw = await call.fetch("POST", "/embeddings", self.embedding_for(question, texts, model), question.headers)
        vectors = self.read_vectors(raw, len(texts))
        return vectors[0] if isinstance(text, str) else vectors

    def _start(
        self, prompt: Prompt, stream: bool, options: dict[str, Any], path: str = "/chat/completions"
    ) -> AsyncStream:
        question = self.question(prompt, stream, options)
        make_body = self.completion_for if path == "/completions" else self.body_for

        async def send(call: _AsyncCall) -> None:
            body = make_body(question, question.model or await self._default_model(call, question.headers))
            try:
                await call.send("POST", path, body, question.headers)
            except (BadRequestError, UnprocessableError) as error:
                await call.send("POST", path, self.without_stream_options(body, error), question.headers)
                self._takes_stream_options = False

        return AsyncStream(_AsyncCall(self, question.timeout, send), question.accumulator)

    async def _default_model(self, call: _AsyncCall, headers: Mapping[str, str]) -> str | None:
        if self._model is None and self._found_model is None:
            try:
                raw = await call.fetch("GET", "/models", None, headers)
                self._found_model = next(iter(self.read_models(raw)), None)
            except (StatusError, ProtocolError) as error:
                if getattr(error, "status", 404) not in (404, 405, 501):
                    raise
                return None  # Many servers hold one model and care neither for its name nor for a list.
        return self._model or self._found_model

    # The idle connections.

    def _checkout(self) -> _AnyConnection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable():
                return connection
            connection.close()
        return None

    def _checkin(self, connection: _AnyConnection) -> None:
        if len(self._idle) < MAX_IDLE_CONNECTIONS and connection.is_usable():
            self._idle.append(connection)
        else:
            connection.close()
