"""The loop of tool calls: send a request, run the tools that the model calls, send the results, and repeat.

A run ends with a response without tool calls. `ToolRun` is for a Client and `AsyncToolRun` for an AsyncClient.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar, Union

from ..client import check_complete
from ..errors import DoesNotFit, TooManyRounds
from ..events import Reply, StreamEvent
from ..extras import media
from ..transport.keywords import RunKeywords, check_count
from ..transport.options import take_media
from ..transport.streams import AsyncEvents, BlockingEvents
from .tools import AnyTool, OnCall, Toolbox, ToolResult, in_thread

if TYPE_CHECKING:
    from ..reply.payloads import Prompt

DEFAULT_MAX_ROUNDS = 10

AnyRun = TypeVar("AnyRun", "ToolRun", "AsyncToolRun")
RunEvent = Union[StreamEvent, ToolResult]


class _BaseRun:
    """What ToolRun and AsyncToolRun do; its coroutines do not depend on how they wait.

    `Toolbox` describes `on_call`, `parallel` and `raise_errors`. With `allow_truncated`, `finish` returns a reply that
    was cut. `_on_done` is called with the run when `done` is set. The option `tool_choice` is sent with the first
    request only: `required` would never let the model stop calling tools.
    """

    # Whether the run belongs to an AsyncClient, so that its coroutines run in an event loop.
    _in_loop: bool

    def __init__(
        self,
        client: Any,
        prompt: Prompt | None,
        tools: Iterable[AnyTool] = (),
        *,
        max_rounds: int = DEFAULT_MAX_ROUNDS,
        on_call: OnCall | None = None,
        parallel: bool | int = False,
        raise_errors: bool = False,
        allow_truncated: bool = False,
        _on_done: Callable[[Any], object] | None = None,
        **options: Any,
    ) -> None:
        check_count("max_rounds", max_rounds)
        if options.get("n", 1) not in (None, 1):
            raise ValueError("a run follows one choice: n must be 1")
        self._client = client
        self._tools = Toolbox(tools, on_call=on_call, parallel=parallel, raise_errors=raise_errors)
        self._max_rounds = max_rounds
        self._on_done = _on_done
        self._allow_truncated = allow_truncated
        # Set by `finish`, which returns a reply: a program that iterates the events sees the finish reason.
        self._finishes = False
        prompt = client._chat_options(prompt, options, RunKeywords, "run").prompt
        options.pop("messages", None)
        system = options.pop("system", None)
        self._media = take_media(options)
        self._options = options
        # The conversation so far.
        self.messages: list[dict[str, Any]] = [] if system is None else [{"role": "system", "content": system}]
        self.messages += media.attach(prompt)
        # Whether a response without tool calls is complete.
        self.done = False
        self._is_closed = False
        # The stream of the current round, and its reply as soon as it is complete.
        self._stream: Any = None
        self._reply: Reply[Any] | None = None
        if not self._in_loop:
            self._tools.refuse_coroutines()
        # The generator refers to this object weakly: a run without other references is deleted and disconnects.
        self._events = type(self)._rounds(weakref.proxy(self))

    @property
    def reply(self) -> Reply[Any]:
        """The reply of the newest round, incomplete while it is received."""
        return self._reply or (Reply() if self._stream is None else self._stream.reply)

    _is_done = property(lambda self: self.done)

    def _process(self, event: StreamEvent) -> None:
        """Add the reply to the messages at the last event of a round. The caller may stop after this event."""
        if event.type != "message_stop" or self._reply is not None:
            return
        self._reply = reply = self._checked(self._stream.reply)
        self.messages.append(reply.message)
        self.done = not reply.tool_calls
        if self.done and self._on_done is not None:
            self._on_done(self)

    def _checked(self, reply: Reply[Any]) -> Reply[Any]:
        """The reply of a round. `finish` raises IncompleteReply if it was cut."""
        if self._finishes and not self._allow_truncated:
            check_complete(reply, {**self._options, **(self._options.get("extra_body") or {})})
        return reply

    async def _rounds(self) -> AsyncGenerator[RunEvent, None]:
        """The events of all rounds. With a Client nothing in it suspends, so `run_blocking` can run it."""
        if self._media:  # Files are read.
            attach = functools.partial(media.attach, self.messages, **self._media)
            self.messages = await in_thread(attach) if self._in_loop else attach()
        for left in reversed(range(self._max_rounds)):
            self._stream = stream = self._client.stream(self.messages, **self._options, tools=self._tools.definitions)
            self._reply = None
            if self._is_closed:  # While the stream was made.
                return
            try:
                while True:
                    event = await stream._next()
                    if event is None:
                        break
                    self._process(event)
                    yield event
            except DoesNotFit:
                self._checked(stream.reply)  # A value that was cut is no mistake of the model.
                raise
            finally:
                await stream._close()
            if self.done:
                return
            if not left:
                names = ", ".join(call.name for call in self.reply.tool_calls)
                calls = f"the model still calls {names} after {self._max_rounds} rounds"
                raise TooManyRounds(f"{calls}: raise max_rounds if it needs more", partial=self.reply)
            results = self._tools.run_calls(self.reply.tool_calls, lambda: self._is_closed, in_loop=self._in_loop)
            try:
                async for result in results:
                    name = {"name": result.call.name} if self._client._settings.takes_tool_names else {}
                    self.messages.append({**result.message, **name})
                    self._options.pop("tool_choice", None)
                    yield result
                    if self._is_closed:
                        return
            finally:
                await results.aclose()

    async def _open(self) -> None:
        """The first iteration sends the first request, not the entry of the `with` block."""

    async def _close(self) -> None:
        self._is_closed = True
        if self._stream is not None:
            await self._stream._close()
        with contextlib.suppress(RuntimeError):  # Another thread or task runs the generator, and will see `_is_closed`.
            await self._events.aclose()


class ToolRun(_BaseRun, BlockingEvents[RunEvent]):
    """A prompt, the rounds of tool calls and the final response. Iterate it for events; leave the `with` to cancel.

    The events are those of a Stream for each round, and a `tool_result` for each call. `messages` is the conversation
    so far and can be the prompt of another request. `done` is set when a response without tool calls is complete,
    before the last event is yielded. A running tool is not interrupted by `close`, but no other tool starts.
    """

    _in_loop = False

    def finish(self) -> Reply[Any]:
        """Run to the end and return the last reply; raise IncompleteReply if it was cut."""
        self._finishes = True
        with self:
            for _ in self:
                pass
        return self._checked(self.reply)


class AsyncToolRun(_BaseRun, AsyncEvents[RunEvent]):
    """A ToolRun of an AsyncClient: iterate it with `async for`; leave the `async with` or cancel the task to cancel."""

    _in_loop = True

    async def finish(self) -> Reply[Any]:
        """Run to the end and return the last reply; raise IncompleteReply if it was cut."""
        self._finishes = True
        async with self:
            async for _ in self:
                pass
        return self._checked(self.reply)
