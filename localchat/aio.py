"""The asynchronous client, with the same options, events and errors as the blocking one.

    async with AsyncClient() as client:
        async with client.stream("Why is the sky blue?") as stream:
            async for text in stream.text:
                print(text, end="")

The code differs from `client` only where it waits for the network. Cancelling the task, or leaving the `async with`
block, closes the connection at once. Use a client in one event loop at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Union, overload

from .errors import (
    BadRequestError,
    Cancelled,
    DoesNotFit,
    IncompleteStream,
    LocalChatError,
    ProtocolError,
    StatusError,
    TimedOut,
    UnprocessableError,
)
from .events import Reply, StreamEvent, Value
from .extras.model_list import Model, choose_model
from .reply.assembly import Accumulator
from .reply.payloads import Prompt, check_prompt
from .transport.aio_call import AsyncCall
from .transport.aio_sockets import AsyncPool
from .transport.call import STREAM_ERRORS, StreamReader, end_with, reply_of
from .transport.failures import lists_no_models, read_models
from .transport.keywords import (
    ChatKeywords,
    CompletionKeywords,
    EmbeddingKeywords,
    MapKeywords,
    RequestKeywords,
    RunKeywords,
    StreamKeywords,
    check_keywords,
)
from .transport.options import (
    CHAT_PATH,
    CallOptions,
    TextPrompt,
    adapted_body,
    check_text_prompt,
    parse_any_body,
    read_options,
    read_request_options,
    request_body,
    with_media,
)
from .transport.settings import BaseClient, companion
from .transport.timeouts import Timeout

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .agent.conversation import AsyncConversation
    from .agent.tool_run import AsyncToolRun
    from .agent.tools import AnyTool
    from .extras.embeddings import Embeddings

# The type that `response_format` names, and of `reply.parsed`.
T = TypeVar("T")


class AsyncStream(Generic[Value]):
    """A streamed response. Iterate it for events, or `text` for text; leave the `async with` block to cancel.

    `reply` is the reply received so far, also after an error.
    """

    def __init__(self, call: AsyncCall, accumulator: Accumulator) -> None:
        self._call = call
        self._accumulator = accumulator
        self._opened = False
        self._events = _events(call, accumulator)

    async def __aenter__(self) -> AsyncStream[Value]:
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
        """The pieces of the text of the first choice, as they are received."""
        async for event in self:
            if event.type == "content_delta" and event.choice_index == 0:
                yield event.delta

    @property
    def reply(self) -> Reply[Value]:
        """The reply received so far; complete after the last event."""
        return reply_of(self._call, self._accumulator)

    async def close(self) -> None:
        """Cancel the request at once, from any task of the event loop."""
        self._call.cancel()
        with contextlib.suppress(RuntimeError):  # Another task runs the generator: it is awake now and closes it.
            await self._events.aclose()

    async def _open(self) -> None:
        """Send the request with the first step of the generator, if this was not done before."""
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
    """Send the request and yield None; yield the events of the response; release the connection."""
    try:
        await call.open()
        yield None
        reader = StreamReader(call, accumulator)
        while not reader.ended:
            try:
                data = await call.read()
            except (IncompleteStream, TimedOut, ProtocolError) as error:
                events = reader.fail(error)
            else:
                events = reader.feed(data)
            for event in events:
                yield event
        if reader.done:
            await call.drain()
        for event in reader.finish():
            yield event
        call.succeeded = True
    except STREAM_ERRORS as error:
        for event in end_with(error, call, accumulator):
            yield event
        raise
    finally:
        call.release()


class AsyncClient(BaseClient):
    """A chat client for asyncio. The arguments are those of Client; its methods are coroutines here."""

    _pool: AsyncPool
    _new_pool = AsyncPool

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the idle connections. The client can still be used."""
        self._pool.close()
        await asyncio.sleep(0)  # The connections are closed in the next iteration of the loop.

    @overload
    async def chat(
        self, prompt: Prompt, /, *, response_format: type[T], **options: Unpack[ChatKeywords]
    ) -> Reply[T]: ...

    @overload
    async def chat(
        self, prompt: Prompt, /, *, response_format: None = None, **options: Unpack[ChatKeywords]
    ) -> Reply[None]: ...

    @overload
    async def chat(
        self, prompt: Prompt, /, *, response_format: object, **options: Unpack[ChatKeywords]
    ) -> Reply[Any]: ...

    async def chat(self, prompt: Prompt, /, **options: Any) -> Reply[Any]:
        """Send a prompt and return the complete reply; see Client.chat."""
        call_options = await _with_media(self._chat_options(prompt, options, ChatKeywords, "chat"))
        for _ in range(options.get("retries_on_mismatch") or 0):
            try:
                return await self._read_reply(call_options, CHAT_PATH)
            except DoesNotFit as error:
                call_options = companion("schema.structured").corrected(call_options, error)
        return await self._read_reply(call_options, CHAT_PATH)

    @overload
    def stream(
        self, prompt: Prompt, /, *, response_format: type[T], **options: Unpack[StreamKeywords]
    ) -> AsyncStream[T]: ...

    @overload
    def stream(
        self, prompt: Prompt, /, *, response_format: None = None, **options: Unpack[StreamKeywords]
    ) -> AsyncStream[None]: ...

    @overload
    def stream(
        self, prompt: Prompt, /, *, response_format: object, **options: Unpack[StreamKeywords]
    ) -> AsyncStream[Any]: ...

    def stream(self, prompt: Prompt, /, **options: Any) -> AsyncStream[Any]:
        """Send a prompt and return the response as a stream of events; see Client.stream."""
        call_options = self._chat_options(prompt, options, StreamKeywords, "stream")
        return self._start(call_options, CHAT_PATH)

    async def map(
        self, prompts: Iterable[Prompt], /, **options: Unpack[MapKeywords]
    ) -> list[Reply[Any] | LocalChatError]:
        """Send many prompts and return their replies in the same order; see Client.map."""
        replies: list[Reply[Any] | LocalChatError]
        replies = await companion("extras.mapping").map_prompts_async(self.chat, prompts, options)
        return replies

    async def models(self) -> list[Model]:
        """The models that the server lists; see Client.models."""
        settings = self._settings
        call = self._call(settings.timeout, settings.max_retries)
        return read_models(settings, await call.fetch("GET", "models", None, {}))

    async def request(self, method: str, path: str, json: Any = None, **options: Unpack[RequestKeywords]) -> Any:
        """Send any other request, such as POST /rerank; see Client.request."""
        call_options = read_request_options(self._settings, method, options)
        call = self._call(call_options.timeout, call_options.max_retries)
        return parse_any_body(await call.fetch(method, path, json, call_options.headers))

    async def run(self, prompt: Prompt, /, tools: Iterable[AnyTool] = (), **options: Unpack[RunKeywords]) -> Reply[Any]:
        """Send a prompt with tools, which may be coroutine functions, and run the tool calls; see Client.run."""
        return await self.run_stream(prompt, tools, **options).finish()

    def run_stream(
        self, prompt: Prompt, /, tools: Iterable[AnyTool] = (), **options: Unpack[RunKeywords]
    ) -> AsyncToolRun:
        """Like `run`, but return an iterator over the events, which include the results of tools."""
        check_prompt(prompt)
        check_keywords(options, RunKeywords, "run")
        tool_run = companion("agent.tool_run")
        run: AsyncToolRun = tool_run.start_run(tool_run.AsyncToolRun, self, prompt, tools, **options)
        return run

    def conversation(self, **options: Any) -> AsyncConversation:
        """A list of messages that grows turn by turn; see Client.conversation."""
        conversation: AsyncConversation = companion("agent.conversation").AsyncConversation(self, **options)
        return conversation

    @overload
    async def complete(
        self, prompt: TextPrompt, /, *, response_format: type[T], **options: Unpack[CompletionKeywords]
    ) -> Reply[T]: ...

    @overload
    async def complete(
        self, prompt: TextPrompt, /, *, response_format: None = None, **options: Unpack[CompletionKeywords]
    ) -> Reply[None]: ...

    @overload
    async def complete(
        self, prompt: TextPrompt, /, *, response_format: object, **options: Unpack[CompletionKeywords]
    ) -> Reply[Any]: ...

    async def complete(self, prompt: TextPrompt, /, **options: Any) -> Reply[Any]:
        """Complete a text without a chat template (/completions); see Client.complete."""
        check_text_prompt(prompt)
        call_options = read_options(
            self._settings, prompt, {"think_tags": "off", **options}, CompletionKeywords, "complete"
        )
        return await self._read_reply(call_options, "completions")

    # The overload for str is first, since a str is also a Sequence of str.
    @overload
    async def embed(  # type: ignore[overload-overlap]
        self, text: str, /, **options: Unpack[EmbeddingKeywords]
    ) -> Embeddings[float]: ...

    @overload
    async def embed(
        self, text: Sequence[str] | Sequence[Sequence[int]], /, **options: Unpack[EmbeddingKeywords]
    ) -> Embeddings[list[float]]: ...

    async def embed(
        self, text: str | Sequence[str] | Sequence[Sequence[int]], /, **options: Unpack[EmbeddingKeywords]
    ) -> Embeddings[float] | Embeddings[list[float]]:
        """The vector of a text, or the vectors of several texts; see Client.embed."""
        settings = self._settings
        call_options = read_options(settings, "", options, EmbeddingKeywords, "embed")
        embeddings = companion("extras.embeddings")
        texts, parts = embeddings.check_texts(text), []
        call = self._call(call_options.timeout, call_options.max_retries)
        for batch in embeddings.batches(texts, options.get("batch_size")):
            model = call_options.model or await self._embedding_model(call, call_options.headers)
            body = embeddings.embedding_body(call_options, batch, model)
            raw = await call.fetch("POST", "embeddings", body, call_options.headers)
            parts.append(embeddings.read_vectors(settings, call_options, raw, len(batch)))
        vectors: Embeddings[list[float]] = embeddings.joined(parts)
        if not isinstance(text, str):
            return vectors
        vector: Embeddings[float] = embeddings.first_of(vectors)
        return vector

    def _chat_options(self, prompt: Prompt, options: Mapping[str, Any], keywords: Any, what: str) -> CallOptions:
        check_prompt(prompt)
        return read_options(self._settings, prompt, options, keywords, what)

    async def _read_reply(self, call_options: CallOptions, path: str) -> Reply[Any]:
        async with self._start(call_options, path) as stream:
            async for _ in stream:
                pass
            return stream.reply

    def _start(self, call_options: CallOptions, path: str) -> AsyncStream[Any]:
        settings, expected = self._settings, call_options.expected

        async def send(call: AsyncCall) -> None:
            model = call_options.model or await self._default_model(call, call_options.headers)
            body = first = request_body(settings, await _with_media(call_options), model, path)
            while True:
                try:
                    sent = body if expected is None else expected.apply(body)
                    await call.send("POST", path, sent, call_options.headers)
                    break
                except (BadRequestError, UnprocessableError) as error:
                    body = adapted_body(call_options, body, error)
            if "stream_options" in first and "stream_options" not in body:
                settings.takes_stream_options = False

        call = self._call(call_options.timeout, call_options.max_retries, send)
        call.expected = expected
        return AsyncStream(call, Accumulator(call_options.n_choices, call_options.think_tags))

    def _call(
        self, timeout: Timeout, max_retries: int, send: Callable[[AsyncCall], Awaitable[None]] | None = None
    ) -> AsyncCall:
        return AsyncCall(self._settings, self._pool, timeout, max_retries, send)

    async def _default_model(self, call: AsyncCall, headers: Mapping[str, str]) -> str | None:
        settings = self._settings
        if settings.model is None and settings.found_model is None:
            settings.found_model = choose_model(await self._listed_models(call, headers))
        return settings.model or settings.found_model

    async def _embedding_model(self, call: AsyncCall, headers: Mapping[str, str]) -> str | None:
        embeddings = companion("extras.embeddings")
        settings = self._settings
        if settings.model is not None and embeddings.makes_embeddings(settings.model):
            return settings.model
        if settings.found_embedding_model is None:
            listed = await self._listed_models(call, headers)
            settings.found_embedding_model = embeddings.choose_embedding_model(listed, settings.model)
        return settings.found_embedding_model

    async def _listed_models(self, call: AsyncCall, headers: Mapping[str, str]) -> list[Model]:
        try:
            return read_models(self._settings, await call.fetch("GET", "models", None, headers))
        except (StatusError, ProtocolError) as error:
            if lists_no_models(error):
                return []
            raise


async def _with_media(call_options: CallOptions) -> CallOptions:
    """Add the images and the audio to the prompt. A thread reads their files."""
    return await asyncio.to_thread(with_media, call_options) if call_options.media else call_options
