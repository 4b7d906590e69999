"""The asynchronous client: the same questions, events and errors, on asyncio.

    async with AsyncClient() as client:
        async with client.stream("Why is the sky blue?") as stream:
            async for text in stream.text:
                print(text, end="")

All decisions are those of `client`; only the waiting for the network differs. Cancelling
the task, or leaving the `async with`, closes the connection at once. A client belongs to the event loop in
which it is first used.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Union, overload

from .aio_call import AsyncCall
from .aio_sockets import AsyncPool
from .assembly import Accumulator
from .call import ANSWER_ERRORS, Answer, ended_by, reply_of
from .errors import (
    BadRequestError,
    Cancelled,
    IncompleteStream,
    ProtocolError,
    StatusError,
    TimedOut,
    UnprocessableError,
)
from .events import Reply, StreamEvent
from .failures import read_models
from .options import (
    chat_body,
    completion_body,
    embedding_body,
    read_options,
    read_vectors,
    with_value,
    without_stream_options,
)
from .payloads import Prompt
from .settings import BaseClient
from .timeouts import Timeout

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .conversation import AsyncConversation
    from .settings import ClientOptions
    from .tools import AnyTool, AsyncToolRun


class AsyncStream:
    """One answer under way: iterate it for events, or `text` for text; leave the `async with` to cancel.

    `reply` is what has come so far, also after an error.
    """

    def __init__(self, call: AsyncCall, accumulator: Accumulator) -> None:
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


async def _events(call: AsyncCall, accumulator: Accumulator) -> _Events:
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


class AsyncClient(BaseClient):
    """A chat client for asyncio; takes the arguments of Client, and has its methods as coroutines."""

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        model: str | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        super().__init__(base_url, api_key, model, **options)
        self._pool = AsyncPool()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the idle connections. The client stays usable."""
        self._pool.close()
        await asyncio.sleep(0)  # The connections go when the loop has its next turn.

    async def chat(self, prompt: Prompt, /, *, stream: bool = True, **options: Any) -> Reply:
        """The whole answer; see Client.chat."""
        async with self._start(prompt, stream, options) as answer:
            async for _ in answer:
                pass
            return with_value(answer.reply, options.get("response_format"))

    def stream(self, prompt: Prompt, /, **options: Any) -> AsyncStream:
        """An answer as it comes, as an asynchronous context manager; see Client.stream."""
        return self._start(prompt, True, options)

    async def models(self) -> list[str]:
        """The names of the models that the server offers."""
        return read_models(self._settings, await self._call(self._settings.timeout).fetch("GET", "/models", None, {}))

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
        given = read_options(self._settings, "", False, options)
        texts = [text] if isinstance(text, str) else list(text)
        call = self._call(given.timeout)
        body = embedding_body(given, texts, given.model or await self._default_model(call, given.headers))
        raw = await call.fetch("POST", "/embeddings", body, given.headers)
        vectors = read_vectors(self._settings, raw, len(texts))
        return vectors[0] if isinstance(text, str) else vectors

    def _start(
        self, prompt: Prompt, stream: bool, options: dict[str, Any], path: str = "/chat/completions"
    ) -> AsyncStream:
        settings = self._settings
        given = read_options(settings, prompt, stream, options)
        make_body = completion_body if path == "/completions" else chat_body

        async def send(call: AsyncCall) -> None:
            body = make_body(settings, given, given.model or await self._default_model(call, given.headers))
            try:
                await call.send("POST", path, body, given.headers)
            except (BadRequestError, UnprocessableError) as error:
                await call.send("POST", path, without_stream_options(body, error), given.headers)
                settings.takes_stream_options = False

        return AsyncStream(self._call(given.timeout, send), given.accumulator)

    def _call(self, timeout: Timeout, send: Callable[[AsyncCall], Awaitable[None]] | None = None) -> AsyncCall:
        return AsyncCall(self._settings, self._pool, timeout, send)

    async def _default_model(self, call: AsyncCall, headers: Mapping[str, str]) -> str | None:
        settings = self._settings
        if settings.model is None and settings.found_model is None:
            try:
                names = read_models(settings, await call.fetch("GET", "/models", None, headers))
                settings.found_model = next(iter(names), None)
            except (StatusError, ProtocolError) as error:
                if getattr(error, "status", 404) not in (404, 405, 501):
                    raise
                return None  # Many servers hold one model and care neither for its name nor for a list.
        return settings.model or settings.found_model
