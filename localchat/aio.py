"""The asynchronous client: the same questions, events and errors, on asyncio streams.

    async with AsyncClient() as client:
        async with client.stream("Why is the sky blue?") as stream:
            async for text in stream.text:
                print(text, end="")

All decisions are those of `client`; this module only waits for the network in another way. Cancelling
the task, or leaving the `async with`, closes the connection at once. http.client cannot be used here, so
the module brings its own reader of HTTP responses, which does no I/O either. A client belongs to the
event loop in which it is first used.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Union, overload

from .client import (
    ANSWER_ERRORS,
    DRAIN_BYTES,
    DRAIN_S,
    MAX_ERROR_BYTES,
    MAX_IDLE_CONNECTIONS,
    READ_BYTES,
    Answer,
    Caller,
    CallState,
    StaleConnection,
    Timeout,
    ended_by,
    find_proxy,
    reply_of,
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
    StreamEvent,
    TimedOut,
    UnprocessableError,
)
from .wire import Accumulator, Prompt, cut

if TYPE_CHECKING:
    from .conversation import AsyncConversation
    from .tools import AnyTool, AsyncToolRun

# The same limit as in http.client.
_MAX_LINE_BYTES = 65536
_MAX_HEAD_BYTES = 100 * _MAX_LINE_BYTES

_STATUS_LINE = re.compile(r"HTTP/1\.(\d) +(\d{3})(?: |$)")
_HEAD_END = re.compile(rb"\r?\n\r?\n")
_CHUNK_SIZE = re.compile(rb"[ \t]*([0-9a-fA-F]{1,15})[ \t]*(?:;|$)")


# HTTP without I/O


class ResponseReader:
    """One HTTP/1 response: bytes in, body out.

    `status` is 0 until the head is complete. Once `ended`, `rest` is what came after the response.
    """

    def __init__(self) -> None:
        self.status = 0
        self.headers: list[tuple[str, str]] = []
        self.keeps_alive = False
        self.ended = False
        self._held = bytearray()
        self._body: list[bytes] = []
        self._left = 0
        self._step: Callable[[], bool] = self._take_head

    @property
    def rest(self) -> bytes:
        return bytes(self._held)

    @property
    def begun(self) -> bool:
        """Whether any byte has come."""
        return bool(self.status or self._held)

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes and return what they hold of the body.

        Raises:
            ProtocolError: This is no HTTP.
        """
        self._held += data
        while not self.ended and self._step():
            pass
        body = b"".join(self._body)
        self._body.clear()
        return body

    def feed_end(self) -> None:
        """The connection has ended.

        Raises:
            IncompleteStream: Before the response did.
        """
        if self._step == self._take_rest:
            self.ended = True
        if not self.ended:
            missing = f"{self._left} bytes" if self._left else "at least one chunk"
            raise IncompleteStream(f"the connection ended {missing if self.status else 'the headers'} too early")

    # Each step consumes what it can and says whether another step can go on.

    def _take_head(self) -> bool:
        if not b"HTTP/".startswith(self._held[:5]):
            raise ProtocolError(f"this is no HTTP: {cut(self._held[:200].decode('latin-1'))}")
        end = _HEAD_END.search(self._held)
        if end is None:
            if len(self._held) > _MAX_HEAD_BYTES:
                raise ProtocolError(f"the headers have more than {_MAX_HEAD_BYTES} bytes")
            return False
        first, *lines = self._cut(end.end()).decode("latin-1").split("\n")
        match = _STATUS_LINE.match(first.rstrip("\r"))
        if match is None:
            raise ProtocolError(f"this is no HTTP: {cut(first)}")
        status = int(match[2])
        if status >= 200:  # Below, it announces something, and the answer itself follows.
            self.status = status
            pairs = [line.partition(":") for line in lines if line.strip()]
            self.headers = [(name.strip().lower(), value.strip()) for name, _, value in pairs]
            self._set_framing(match[1] != "0")
        return True

    def _set_framing(self, newer: bool) -> None:
        headers = dict(self.headers)
        connection = headers.get("connection", "").lower()
        length = headers.get("content-length", "")
        self.keeps_alive = "close" not in connection if newer else "keep-alive" in connection
        if self.status in (204, 304):
            self.ended = True
        elif headers.get("transfer-encoding", "").lower() == "chunked":
            self._step = self._take_chunk_size
        elif length.isdigit() and length.isascii():
            self._left = int(length)
            self.ended = self._left == 0
            self._step = self._take_length
        else:
            self.keeps_alive = False
            self._step = self._take_rest

    def _take_length(self) -> bool:
        self._take_body()
        self.ended = self._left == 0
        return False

    def _take_rest(self) -> bool:
        self._body.append(self._cut(len(self._held)))
        return False

    def _take_chunk_size(self) -> bool:
        line = self._line()
        if line is None:
            return False
        match = _CHUNK_SIZE.match(line)
        if match is None:
            raise ProtocolError(f"this is no size of a chunk: {cut(line.decode('latin-1'), 40)!r}")
        self._left = int(match[1], 16)
        self._step = self._take_chunk if self._left else self._take_trailer
        return True

    def _take_chunk(self) -> bool:
        self._take_body()
        if self._left == 0:
            self._step = self._take_chunk_end
        return self._left == 0

    def _take_chunk_end(self) -> bool:
        if self._line() is None:
            return False
        self._step = self._take_chunk_size
        return True

    def _take_trailer(self) -> bool:
        line = self._line()
        self.ended = line == b""
        return line is not None

    def _take_body(self) -> None:
        piece = self._cut(min(self._left, len(self._held)))
        self._left -= len(piece)
        self._body.append(piece)

    def _line(self) -> bytes | None:
        end = self._held.find(b"\n")
        if end < 0:
            if len(self._held) > _MAX_LINE_BYTES:
                raise ProtocolError(f"a line between chunks has more than {_MAX_LINE_BYTES} bytes")
            return None
        return self._cut(end + 1).rstrip(b"\r\n")

    def _cut(self, size: int) -> bytes:
        piece = bytes(self._held[:size])
        del self._held[:size]
        return piece


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
        """Whether the server has not closed it, and this is still its event loop."""
        idle = not self._reader.at_eof() and not self._writer.is_closing()
        return idle and self._loop is asyncio.get_running_loop()

    def write(self, data: bytes) -> None:
        """Send. Nothing waits for it: a server may answer before it has read everything."""
        if self._tape is not None:
            self._tape.sent(data)
        self._writer.write(data)

    async def read(self, limit: float | None, kind: str) -> bytes:
        """The next bytes, nothing at the end. A limit that runs out ends the connection."""
        # A timer costs a tenth of asyncio.wait_for, which makes a task of every read.
        expire = self._reader.set_exception
        timer = None if limit is None else self._loop.call_later(limit, expire, timed_out(kind))
        try:
            data: bytes = await self._reader.read(READ_BYTES)
        finally:
            if timer is not None:
                timer.cancel()
        if self._tape is not None:
            self._tape.received(data)
        return data

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
    loop, path = asyncio.get_running_loop(), caller.address.socket_path
    if path:
        return await _connect_socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, path, limit)
    host, port = caller.address.peer(proxy)
    failure = OSError(f"{host} has no address")
    candidates = await loop.run_in_executor(None, addresses_of, host, port)
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
    sock = await _open_socket(caller, proxy, limit)
    try:
        if caller.address.scheme != "https":
            return await asyncio.open_connection(sock=sock)
        if proxy is not None:
            await _open_tunnel(sock, caller, proxy)
        context = tls_context(caller.verify)
        return await asyncio.open_connection(sock=sock, ssl=context, server_hostname=caller.address.host)
    except BaseException:
        sock.close()
        raise


async def _open_tunnel(sock: socket.socket, caller: Caller, proxy: str) -> None:
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(sock, tunnel_request(caller.address, proxy))
    response = ResponseReader()
    while not response.status:
        data = await loop.sock_recv(sock, READ_BYTES)
        if not data:
            raise OSError("the proxy closed the connection")
        try:
            response.feed(data)
        except ProtocolError as error:
            raise OSError(f"the proxy refused the tunnel: {error}") from error
    if response.status != 200:
        raise OSError(f"the proxy refused the tunnel: {response.status}")


# Calls


class _AsyncCall(CallState):
    """A request over asyncio streams."""

    def __init__(
        self,
        client: AsyncClient,
        method: str,
        path: str,
        timeout: Timeout,
        send: Callable[[_AsyncCall], Awaitable[None]] | None = None,
    ) -> None:
        super().__init__(client, method, path, timeout)
        self._client = client
        self._send = send
        self._connection: _AnyConnection | None = None
        self._response = ResponseReader()
        # Bytes of the body that came with the head.
        self._first = b""
        self._cancelled = False
        self._pause: asyncio.Future[None] | None = None

    def cancel(self) -> None:
        """Stop at once: whoever waits for the network gets Cancelled. For other tasks of the same loop."""
        self._cancelled = True
        if self._connection is not None:
            self._connection.close()
        if self._pause is not None and not self._pause.done():
            self._pause.set_result(None)

    def check_cancelled(self, cause: BaseException | None = None) -> None:
        """What goes wrong after a cancel goes wrong because of it."""
        if self._cancelled:
            raise Cancelled("the stream was closed") from cause

    async def open(self) -> None:
        """Send the request, unless that has been done."""
        send, self._send = self._send, None
        if send is not None:
            await send(self)

    async def send(self, body: Mapping[str, Any] | None, headers: Mapping[str, str]) -> None:
        """Send the request and take the status, with retries."""
        self.prepare(body, headers)
        while True:
            try:
                await self._send_once()
                return
            except LocalChatError as error:
                self._drop()
                self.check_cancelled(error)
                delay = self.next_delay(error)
            self._pause = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._pause], timeout=delay)

    async def read(self, at_most_s: float | None = None) -> bytes:
        """The next bytes of the body, perhaps none; `ended` tells the proper end."""
        if self._first:
            data, self._first = self._first, b""
            return self.unpack(data)
        if self._connection is None or self.ended:
            return b""
        limit, kind = self.clocks.reading() if at_most_s is None else (at_most_s, "idle")
        try:
            data = await self._connection.read(limit, kind)
        except OSError as error:
            self.check_cancelled(error)
            raise IncompleteStream(f"the connection broke: {error or type(error).__name__}") from error
        if not data:
            self.check_cancelled()  # The end may be our own doing.
            self._response.feed_end()
        data = self._response.feed(data)
        self.ended = self._response.ended
        return self.unpack(data)

    async def read_body(self, limit: int | None = None) -> bytes:
        """The whole body, or what there is of it."""
        raw = b""
        while not (self.ended and not self._first) and (limit is None or len(raw) < limit):
            raw += await self.read()
        return raw

    async def drain(self) -> None:
        """Read what follows the last event, within short limits, so that the connection can be reused."""
        end, left = time.monotonic() + DRAIN_S, DRAIN_BYTES
        try:
            while left > 0 and not self.ended and time.monotonic() < end:
                left -= len(await self.read(DRAIN_S))
        except LocalChatError:
            self.ended = False  # The answer is complete, only its connection is of no further use.
        self.release()

    def release(self) -> None:
        """Give the connection back if the body was read to its end, close it otherwise."""
        connection, response = self._connection, self._response
        reusable = self.ended and response.keeps_alive and not response.rest and not self._cancelled
        if connection is not None and reusable:
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
            await self._read_error_body()
            await self._send_once()
        elif not 200 <= self.status < 300:
            error = self.status_error(await self._read_error_body())
            if self.caller.wants_names(error, self.path):
                self.caller.add_names(error, await self._client._names_on_offer())
            raise error

    async def _read_error_body(self) -> bytes:
        raw = b""
        with contextlib.suppress(LocalChatError):  # What there is of the body has to do.
            raw = await self.read_body(MAX_ERROR_BYTES)
        self.release()
        return raw

    async def _exchange(self, connection: _AnyConnection) -> None:
        """Request out, status and headers in."""
        self._connection = connection
        self.check_cancelled()
        reused, connection.used = connection.used, True
        self.clocks.sent()
        self._response = response = ResponseReader()
        try:
            connection.write(self._request(connection.proxy))
            while not response.status:
                data = await connection.read(*self.clocks.reading())
                if not data:
                    self.check_cancelled()
                    if not response.begun:
                        raise ConnectionResetError("the server closed the connection")
                    response.feed_end()
                self._first = response.feed(data)
        except (OSError, ProtocolError) as error:
            self.check_cancelled(error)
            if reused and isinstance(error, OSError):
                raise StaleConnection from error
            raise ConnectError(self.caller.broken(error)) from error
        self.take_head(response.status, response.headers)
        self.ended = response.ended

    def _request(self, proxy: str | None) -> bytes:
        target, extra = self.caller.request_line(self.target, proxy)
        body = self.body or b""
        headers = {**self.request_headers, **extra}
        if self.body is not None:
            headers["Content-Length"] = str(len(body))
        lines = [f"{self.method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        return "\r\n".join([*lines, "", ""]).encode("ascii") + body

    async def _connect(self) -> _AnyConnection:
        caller = self.caller
        tape = None if caller.transport is None else caller.transport.tape()
        if tape is not None and caller.transport.plays:
            return _PlayedConnection(tape)
        limit, kind = self.clocks.connecting()
        try:
            proxy = find_proxy(caller.address, caller.proxy)
            streams = await asyncio.wait_for(_open_streams(caller, proxy, limit), limit)
        except (asyncio.TimeoutError, socket.timeout):
            raise timed_out(kind) from None
        except (OSError, UnicodeError) as error:
            raise ConnectError(caller.unreachable(error, proxy)) from error
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
        if event is None:
            if not self._call.succeeded:
                self._call.check_cancelled()
            raise StopAsyncIteration
        return event

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
            except (IncompleteStream, TimedOut) as error:
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
        return self.read_models(await self._fetch("GET", "/models", None, {}, self.timeout))

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
        body = self.embedding_for(question, texts, question.model or await self._default_model())
        raw = await self._fetch("POST", "/embeddings", body, question.headers, question.timeout)
        vectors = self.read_vectors(raw, len(texts))
        return vectors[0] if isinstance(text, str) else vectors

    async def _fetch(
        self, method: str, path: str, body: Mapping[str, Any] | None, headers: Mapping[str, str], timeout: Timeout
    ) -> bytes:
        """The whole body of an answer that is no chat."""
        call = _AsyncCall(self, method, path, timeout)
        try:
            await call.send(body, headers)
            return await call.read_body()
        finally:
            call.release()

    def _start(
        self, prompt: Prompt, stream: bool, options: dict[str, Any], path: str = "/chat/completions"
    ) -> AsyncStream:
        question = self.question(prompt, stream, options)
        make_body = self.completion_for if path == "/completions" else self.body_for

        async def send(call: _AsyncCall) -> None:
            body = make_body(question, question.model or await self._default_model())
            try:
                await call.send(body, question.headers)
            except (BadRequestError, UnprocessableError) as error:
                await call.send(self.without_stream_options(body, error), question.headers)

        call = _AsyncCall(self, "POST", path, question.timeout, send)
        return AsyncStream(call, question.accumulator)

    async def _default_model(self) -> str | None:
        if self._model is None and self._found_model is None:
            try:
                self._found_model = next(iter(await self.models()), None)
            except (NotFoundError, ProtocolError):
                return None  # Many servers hold one model and care neither for its name nor for a list.
        return self._model or self._found_model

    async def _names_on_offer(self) -> list[str]:
        try:
            return await self.models()
        except LocalChatError:
            return []  # This only serves to explain another error.

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
