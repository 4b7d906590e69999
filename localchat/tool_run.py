"""The loop around tools: ask the model, run what it calls, send the results, until it calls nothing more.

`ToolRun` does this for a Client and `AsyncToolRun` for an AsyncClient; `start_run` makes one of them.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, Union

from . import media
from .errors import Cancelled, TooManyRounds
from .events import Reply, StreamEvent
from .options import take_media
from .tools import AnyTool, OnCall, Toolbox, ToolResult

if TYPE_CHECKING:
    from .payloads import Prompt

DEFAULT_MAX_ROUNDS = 10

AnyRun = TypeVar("AnyRun", "ToolRun", "AsyncToolRun")
RunEvent = Union[StreamEvent, ToolResult]


class _Run:
    """What runs of both kinds have in common: what is asked, and what follows from an answer.

    Args:
        client: The client whose `stream` is called.
        messages: The conversation so far; the prompt is the last.
        tools: How calls are answered.
        media: `images` and `audio` to put into the last message.
        max_rounds: How often the model is asked.
        on_done: Called with the run when `done` is set.
        options: Of every round, `tool_choice` aside: it holds for the first, or the model could never answer.
    """

    def __init__(
        self,
        client: Any,
        messages: Sequence[Mapping[str, Any]],
        tools: Toolbox,
        *,
        media: Mapping[str, Any] | None = None,
        max_rounds: int = DEFAULT_MAX_ROUNDS,
        on_done: Callable[[Any], object] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        if max_rounds < 1:
            raise ValueError(f"max_rounds must be at least 1, not {max_rounds}")
        # What is asked.
        self._client = client
        self._tools = tools
        self._max_rounds = max_rounds
        self._on_done = on_done
        self._options = dict(options or {})
        self._media = media or {}
        # What has come. `_reply` is that of a round which is over.
        self.messages = [dict(message) for message in messages]
        self.done = False
        self._closed = False
        self._stream: Any = None
        self._reply: Reply[Any] | None = None

    def _attach(self) -> None:
        """Put the media into the last message. It reads files, and so may wait for a disk."""
        self.messages = media.attach(self.messages, **self._media)

    @property
    def reply(self) -> Reply[Any]:
        """The newest reply, or what has come of it."""
        return self._reply or (Reply() if self._stream is None else self._stream.reply)

    def _open(self) -> Any:
        """The stream of the next round."""
        self._stream = self._client.stream(self.messages, **self._options, tools=self._tools.definitions)
        self._reply = None
        self._check_closed()  # The run may have been closed while the stream was made.
        return self._stream

    def _check_closed(self, cause: BaseException | None = None) -> None:
        """A run that was closed does not end like one that is whole."""
        if self._closed and not self.done:
            raise Cancelled("the run was closed", partial=self.reply) from cause

    def _take(self, event: StreamEvent) -> None:
        """Add the reply at the end of a round. Before the event is handed out, so that the caller may stop at it."""
        if event.type != "message_stop" or self._reply is not None:
            return
        reply: Reply[Any] = self._stream.reply
        done = not reply.tool_calls
        self._reply = reply
        self.messages.append(reply.message)
        self.done = done
        if done and self._on_done is not None:
            self._on_done(self)

    def _check_limit(self, rounds_left: int) -> None:
        if not rounds_left:
            names = ", ".join(call.name for call in self.reply.tool_calls)
            message = f"the model still calls {names} after {self._max_rounds} rounds: raise max_rounds, or look why"
            raise TooManyRounds(message, partial=self.reply)

    def _add_result(self, result: ToolResult) -> ToolResult:
        self.messages.append(result.message)
        self._options.pop("tool_choice", None)
        return result


class ToolRun(_Run):
    """One question with tools, under way: iterate it for events, leave the `with` to cancel.

    The events are those of a Stream, round after round, and a `tool_result` for each call. `messages` is
    the conversation so far, ready for the next request. `done` is set once the model has answered
    without calling anything, before the last event is handed out.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._tools.refuse_coroutines()
        self._attach()
        # A generator that knew this object would keep it alive, and the connection with it.
        self._events = ToolRun._rounds(weakref.proxy(self))

    def __enter__(self) -> ToolRun:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[RunEvent]:
        return self

    def __next__(self) -> RunEvent:
        try:
            return next(self._events)
        except (StopIteration, ValueError) as error:  # ValueError: another thread is closing it just now.
            self._check_closed(error)
            raise

    @property
    def text(self) -> Iterator[str]:
        """The pieces of text, as they come."""
        for event in self:
            if event.type == "content_delta":
                yield event.delta

    def close(self) -> None:
        """Cancel, from any thread. A tool that is running is not interrupted, but nothing follows it."""
        self._closed = True
        if self._stream is not None:
            self._stream.close()
        with contextlib.suppress(ValueError):  # Another thread is in it, and is about to notice.
            self._events.close()

    def finish(self) -> Reply[Any]:
        """Run to the end; the last reply."""
        with self:
            for _ in self:
                pass
        return self.reply

    def _rounds(self) -> Generator[RunEvent, None, None]:
        for left in reversed(range(self._max_rounds)):
            with self._open() as stream:
                for event in stream:
                    self._take(event)
                    yield event
            if self.done:
                return
            self._check_limit(left)
            for result in self._tools.answer(self.reply.tool_calls, lambda: self._closed):
                yield self._add_result(result)
                self._check_closed()


class AsyncToolRun(_Run):
    """A ToolRun of an AsyncClient: `async for` its events, leave the `async with` or cancel the task to end it."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._events = AsyncToolRun._rounds(weakref.proxy(self))

    async def __aenter__(self) -> AsyncToolRun:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def __aiter__(self) -> AsyncIterator[RunEvent]:
        return self

    async def __anext__(self) -> RunEvent:
        try:
            return await self._events.__anext__()
        except StopAsyncIteration as error:
            self._check_closed(error)
            raise

    @property
    async def text(self) -> AsyncIterator[str]:
        """The pieces of text, as they come."""
        async for event in self:
            if event.type == "content_delta":
                yield event.delta

    async def close(self) -> None:
        """Cancel, from any task of the loop. A tool that is running is not interrupted, but nothing follows it."""
        self._closed = True
        if self._stream is not None:
            await self._stream.close()
        with contextlib.suppress(RuntimeError):  # Another task is in it, and is about to notice.
            await self._events.aclose()

    async def finish(self) -> Reply[Any]:
        """Run to the end; the last reply."""
        async with self:
            async for _ in self:
                pass
        return self.reply

    async def _rounds(self) -> AsyncGenerator[RunEvent, None]:
        if self._media:
            import asyncio

            await asyncio.to_thread(self._attach)
        for left in reversed(range(self._max_rounds)):
            async with self._open() as stream:
                async for event in stream:
                    self._take(event)
                    yield event
            if self.done:
                return
            self._check_limit(left)
            results = self._tools.answer_async(self.reply.tool_calls, lambda: self._closed)
            try:
                async for result in results:
                    yield self._add_result(result)
                    self._check_closed()
            finally:
                await results.aclose()


def start_run(
    kind: Callable[..., AnyRun],
    client: Any,
    prompt: Prompt,
    tools: Iterable[AnyTool] = (),
    *,
    before: Sequence[Mapping[str, Any]] = (),
    max_rounds: int = DEFAULT_MAX_ROUNDS,
    on_call: OnCall | None = None,
    parallel: bool | int = False,
    raise_errors: bool = False,
    on_done: Callable[[Any], object] | None = None,
    **options: Any,
) -> AnyRun:
    """The run of one question: what Client.run and Conversation do. See Toolbox and ToolRun.

    Args:
        kind: ToolRun, or AsyncToolRun if the client is an AsyncClient.
        before: Messages before the question.
    """
    if options.get("n", 1) not in (None, 1):
        raise ValueError("a run follows one choice: n must be 1")
    toolbox = Toolbox(tools, on_call=on_call, parallel=parallel, raise_errors=raise_errors)
    system: str | None = options.pop("system", None)
    sources = take_media(options)
    messages = [*([] if system is None else [{"role": "system", "content": system}]), *before]
    messages += media.attach(prompt)
    return kind(client, messages, toolbox, media=sources, max_rounds=max_rounds, on_done=on_done, options=options)
