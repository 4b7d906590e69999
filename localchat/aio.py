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
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Union, overload

from .aio_call import AsyncCall
from .aio_sockets import AsyncPool
from .assembly import Accumulator
from .call import ANSWER_ERRORS, Answer, ended_by, reply_of
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
from .failures import read_models
from .keywords import (
    ChatKeywords,
    CompletionKeywords,
    EmbeddingKeywords,
    MapKeywords,
    RequestKeywords,
    RunKeywords,
    StreamKeywords,
    check_keywords,
)
from .model_list import Model, choose_model
from .options import (
    CHAT_PATH,
    CallOptions,
    TextPrompt,
    adapted_body,
    check_text_prompt,
    read_any,
    read_options,
    read_request_options,
    request_body,
    with_media,
)
from .payloads import Prompt, check_prompt
from .settings import BaseClient, companion
from .timeouts import Timeout

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .conversation import AsyncConversation
    from .embeddings import Embeddings
    from .tool_run import AsyncToolRun
    from .tools import AnyTool

# What a call asks for as its `response_format`, and gets as `reply.parsed`.
T = TypeVar("T")


class AsyncStream(Generic[Value]):
    """One answer under way: iterate it for events, or `text` for text; leave the `async with` to cancel.

    `reply` is what has come so far, also after an error.
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
        """The pieces of the first choice's text, as they come."""
        async for event in self:
            if event.type == "content_delta" and event.choice_index == 0:
                yield event.delta

    @property
    def reply(self) -> Reply[Value]:
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

    _pool: AsyncPool
    _new_pool = AsyncPool

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the idle connections. The client stays usable."""
        self._pool.close()
        await asyncio.sleep(0)  # The connections go when the loop has its next turn.

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
        """The whole answer; see Client.chat."""
        given = await _with_media(self._chat_options(prompt, options, ChatKeywords, "chat"))
        for _ in range(options.get("retries_on_mismatch") or 0):
            try:
                return await self._whole(given, CHAT_PATH)
            except DoesNotFit as error:
                given = companion("structured").corrected(given, error)
        return await self._whole(given, CHAT_PATH)

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
        """An answer as it comes, as an asynchronous context manager; see Client.stream."""
        given = self._chat_options(prompt, options, StreamKeywords, "stream")
        return self._start(given, CHAT_PATH)

    async def map(
        self, prompts: Iterable[Prompt], /, **options: Unpack[MapKeywords]
    ) -> list[Reply[Any] | LocalChatError]:
        """The whole answers to many prompts, in the order of the prompts; see Client.map."""
        from .mapping import map_prompts_async

        return await map_prompts_async(self.chat, prompts, options)

    async def models(self) -> list[Model]:
        """The models that the server lists: each is its name, with `context_length`, `meta` and `raw`."""
        settings = self._settings
        call = self._call(settings.timeout, settings.max_retries)
        return read_models(settings, await call.fetch("GET", "models", None, {}))

    async def request(self, method: str, path: str, json: Any = None, **options: Unpack[RequestKeywords]) -> Any:
        """What a server answers to any other request, such as POST /rerank; see Client.request."""
        given = read_request_options(self._settings, method, options)
        call = self._call(given.timeout, given.max_retries)
        return read_any(await call.fetch(method, path, json, given.headers))

    async def run(self, prompt: Prompt, /, tools: Iterable[AnyTool] = (), **options: Unpack[RunKeywords]) -> Reply[Any]:
        """The answer of a model that may call functions, coroutine functions among them; see Client.run."""
        return await self.run_stream(prompt, tools, **options).finish()

    def run_stream(
        self, prompt: Prompt, /, tools: Iterable[AnyTool] = (), **options: Unpack[RunKeywords]
    ) -> AsyncToolRun:
        """The same run, to be iterated for events, those of the tools' results included."""
        check_prompt(prompt)
        check_keywords(options, RunKeywords, "run")
        from . import tool_run as home

        run: AsyncToolRun = home.start_run(home.AsyncToolRun, self, prompt, tools, **options)
        return run

    def conversation(self, **options: Any) -> AsyncConversation:
        """A list of messages that grows turn by turn; see Client.conversation."""
        from .conversation import AsyncConversation

        return AsyncConversation(self, **options)

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
        """How a text goes on, without a chat template (/completions); see Client.complete."""
        check_text_prompt(prompt)
        given = read_options(self._settings, prompt, {"think_tags": "off", **options}, CompletionKeywords, "complete")
        return await self._whole(given, "completions")

    # Type checkers take the first that fits, and a str is a Sequence of str too.
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
        """The vector of a text, or the vectors of several; see Client.embed."""
        settings = self._settings
        given = read_options(settings, "", options, EmbeddingKeywords, "embed")
        from . import embeddings as home

        texts, parts = home.check_texts(text), []
        call = self._call(given.timeout, given.max_retries)
        for batch in home.batches(texts, options.get("batch_size")):
            model = given.model or await self._embedding_model(call, given.headers)
            raw = await call.fetch("POST", "embeddings", home.embedding_body(given, batch, model), given.headers)
            parts.append(home.read_vectors(settings, given, raw, len(batch)))
        vectors: Embeddings[list[float]] = home.joined(parts)
        if not isinstance(text, str):
            return vectors
        vector: Embeddings[float] = home.first_of(vectors)
        return vector

    def _chat_options(self, prompt: Prompt, options: Mapping[str, Any], keywords: Any, what: str) -> CallOptions:
        check_prompt(prompt)
        return read_options(self._settings, prompt, options, keywords, what)

    async def _whole(self, given: CallOptions, path: str) -> Reply[Any]:
        async with self._start(given, path) as answer:
            async for _ in answer:
                pass
            return answer.reply

    def _start(self, given: CallOptions, path: str) -> AsyncStream[Any]:
        settings, expected = self._settings, given.expected

        async def send(call: AsyncCall) -> None:
            model = given.model or await self._default_model(call, given.headers)
            body = first = request_body(settings, await _with_media(given), model, path)
            while True:
                try:
                    asking = body if expected is None else expected.apply(body)
                    await call.send("POST", path, asking, given.headers)
                    break
                except (BadRequestError, UnprocessableError) as error:
                    body = adapted_body(given, body, error)
            if "stream_options" in first and "stream_options" not in body:
                settings.takes_stream_options = False

        call = self._call(given.timeout, given.max_retries, send)
        call.expected = expected
        return AsyncStream(call, Accumulator(given.n_choices, given.think_tags))

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
        from . import embeddings as home

        settings = self._settings
        if settings.model is not None and home.makes_embeddings(settings.model):
            return settings.model
        if settings.found_embedding_model is None:
            listed = await self._listed_models(call, headers)
            settings.found_embedding_model = home.choose_embedding_model(listed, settings.model)
        return settings.found_embedding_model

    async def _listed_models(self, call: AsyncCall, headers: Mapping[str, str]) -> list[Model]:
        try:
            return read_models(self._settings, await call.fetch("GET", "models", None, headers))
        except (StatusError, ProtocolError) as error:
            if getattr(error, "status", 404) not in (404, 405, 501):
                raise
            return []


async def _with_media(given: CallOptions) -> CallOptions:
    """The call with its images and audio, whose files are read in a thread."""
    return await asyncio.to_thread(with_media, given) if given.media else given
