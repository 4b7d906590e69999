"""The asynchronous client, with the same options, events and errors as the blocking one.

The code differs from `client` only where it waits for the network. Cancelling the task, or leaving the `async with`
block, closes the connection at once. Use a client in one event loop at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, overload

from .client import BaseClient
from .events import Reply, Value
from .request.completion import CompletionRequest
from .request.models import Model
from .request.options import (
    ChatOptions,
    CompletionOptions,
    EmbeddingOptions,
    MapOptions,
    RequestOptions,
    RunOptions,
    StreamOptions,
)
from .request.prompts import Prompt, TextPrompt, Texts
from .request.response import Response
from .streams import AsyncStream
from .transport.aio_sockets import AsyncDriver

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from .agent.conversation import AsyncConversation
    from .agent.tool_run import AsyncToolRun
    from .agent.tools import AnyTool
    from .embeddings import Embeddings


class AsyncClient(BaseClient):
    """A chat client for asyncio. The arguments are those of Client; its methods are coroutines here."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the idle connections. The client can still be used."""
        self._pool.close()
        await asyncio.sleep(0)  # The connections are closed in the next iteration of the loop.

    @overload
    async def chat(
        self, prompt: Prompt | None = None, *, response_format: type[Value], **options: Unpack[ChatOptions]
    ) -> Reply[Value]: ...

    @overload
    async def chat(
        self, prompt: Prompt | None = None, *, response_format: object = None, **options: Unpack[ChatOptions]
    ) -> Reply[Any]: ...

    async def chat(self, prompt: Prompt | None = None, **options: Any) -> Reply[Any]:
        """Send a prompt and return the complete reply; see Client.chat."""
        return await self._reply(AsyncDriver(), CompletionRequest(self._settings, prompt, options, "chat"))

    @overload
    def stream(
        self, prompt: Prompt | None = None, *, response_format: type[Value], **options: Unpack[StreamOptions]
    ) -> AsyncStream[Value]: ...

    @overload
    def stream(
        self, prompt: Prompt | None = None, *, response_format: object = None, **options: Unpack[StreamOptions]
    ) -> AsyncStream[Any]: ...

    def stream(self, prompt: Prompt | None = None, **options: Any) -> AsyncStream[Any]:
        """Send a prompt and return the response as a stream of events; see Client.stream."""
        return self._stream(CompletionRequest(self._settings, prompt, options, "stream"))

    def _stream(self, request: CompletionRequest) -> AsyncStream[Any]:
        return AsyncStream(self._call(AsyncDriver(), request), request)

    @overload
    async def map(
        self, prompts: Iterable[Prompt], /, *, response_format: type[Value], **options: Unpack[MapOptions]
    ) -> list[Reply[Value]]: ...

    @overload
    async def map(
        self, prompts: Iterable[Prompt], /, *, response_format: object = None, **options: Unpack[MapOptions]
    ) -> list[Reply[Any]]: ...

    async def map(self, prompts: Iterable[Prompt], /, **options: Any) -> list[Reply[Any]]:
        """Send many prompts and return their replies in the same order; see Client.map."""
        from .many_prompts import ManyPrompts

        return await ManyPrompts(self, prompts, options).map_async()

    async def models(self) -> list[Model]:
        """The models that the server lists; see Client.models."""
        return await self._list_models(AsyncDriver())

    async def request(self, method: str, path: str, json: Any = None, **options: Unpack[RequestOptions]) -> Response:
        """Send any other request, such as POST /rerank; see Client.request."""
        return await self._request(AsyncDriver(), method, path, json, options)

    async def run(
        self, prompt: Prompt | None = None, tools: Iterable[AnyTool] | None = None, **options: Unpack[RunOptions]
    ) -> Reply[Any]:
        """Send a prompt with tools, which may be coroutine functions, and run the tool calls; see Client.run."""
        return await self.run_stream(prompt, tools, **options).finish()

    def run_stream(
        self, prompt: Prompt | None = None, tools: Iterable[AnyTool] | None = None, **options: Unpack[RunOptions]
    ) -> AsyncToolRun:
        """Like `run`, but return an iterator over the events, which include the results of tools."""
        from .agent.tool_run import AsyncToolRun

        return AsyncToolRun(self, prompt, tools, **options)

    def conversation(
        self, *, tools: Iterable[AnyTool] | None = None, **options: Unpack[RunOptions]
    ) -> AsyncConversation:
        """A list of messages that grows turn by turn; see Client.conversation."""
        from .agent.conversation import AsyncConversation

        return AsyncConversation(self, tools=tools, **options)

    async def complete(self, prompt: TextPrompt, **options: Unpack[CompletionOptions]) -> Reply[Any]:
        """Complete a text without a chat template (/completions); see Client.complete."""
        return await self._reply(AsyncDriver(), CompletionRequest(self._settings, prompt, options, "complete"))

    # The overload for str is first, since a str is also a Sequence of str.
    @overload
    async def embed(  # type: ignore[overload-overlap]
        self, text: str, /, **options: Unpack[EmbeddingOptions]
    ) -> Embeddings[float]: ...

    @overload
    async def embed(self, text: Texts, /, **options: Unpack[EmbeddingOptions]) -> Embeddings[list[float]]: ...

    async def embed(self, text: Any, /, **options: Unpack[EmbeddingOptions]) -> Any:
        """The vector of a text, or the vectors of several texts; see Client.embed."""
        return await self._embed(AsyncDriver(), text, options)
