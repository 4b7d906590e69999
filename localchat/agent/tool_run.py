"""Runs: the loop of requests and tool calls."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import Any, Union

from ..errors import TooManyRounds
from ..events import Reply, StreamEvent, ToolCall
from ..reply.truncation import check_not_cut, is_cut
from ..request import media
from ..request.completion import Completion, Prompt, take_media
from ..request.options import check_count
from ..streams import AsyncEvents, BlockingEvents, Events
from ..transport.sockets import run_blocking
from .tools import AnyTool, OnCall, Prepared, ToolResult, in_thread, prepare, refuse_awaitable, run_call, tools_by_name

DEFAULT_MAX_ROUNDS = 10
_NOT_APPROVED = "this call was not approved and did not run"

RunEvent = Union[StreamEvent, ToolResult]


class _BaseRun(Events[RunEvent, Any]):
    """What ToolRun and AsyncToolRun do; its coroutines do not depend on how they wait.

    `on_call` is called for all calls of a response before the first of them runs. With `parallel` they run in threads,
    of which a number is the limit. An exception of a tool is logged and sent to the model, unless `raise_errors`.
    `_on_done` is called with the run when `done` is set. The option `tool_choice` is sent with the first request only:
    `required` would never let the model stop calling tools.
    """

    _in_loop: bool  # Whether the run belongs to an AsyncClient, so that its coroutines run in an event loop.

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
        _on_done: Callable[[Any], object] | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        check_count("max_rounds", max_rounds)
        if on_call is not None and not callable(on_call):
            raise TypeError(f"on_call is a function, not {on_call!r}")
        if not isinstance(parallel, int) or parallel < 0:
            raise ValueError(f"parallel is True, False or a whole number, not {parallel!r}")
        self._client = client
        self._tools = tools_by_name(tools, self._in_loop)
        if self._tools and options.get("n", 1) not in (None, 1):
            raise ValueError("a run follows one choice: n must be 1")
        self._on_call, self._parallel, self._raise_errors = on_call, parallel, raise_errors
        self._n_left = self._max_rounds = max_rounds
        self._on_done = _on_done
        # The conversation so far. The request has no media, whose files are read later.
        self._request = request = Completion(client._settings, prompt, options, "run")
        self.messages: list[dict[str, Any]] = request.prompt
        self._media = take_media(options)
        self._options = {name: value for name, value in options.items() if name not in ("messages", "system")}
        self.done = False  # Whether a response without tool calls is complete.
        # The stream of the current round, its reply as soon as it is complete, and the results of its calls.
        self._stream: Any = None
        self._reply: Reply[Any] | None = None
        self._results: Any = None

    @property
    def reply(self) -> Reply[Any]:
        """The reply of the newest round, incomplete while it is received."""
        return self._reply or (Reply() if self._stream is None else self._stream.reply)

    async def _advance(self) -> None:
        """Yield an event of the stream or the result of a call, or begin a round."""
        if self._media:  # Files are read.
            attach, self._media = functools.partial(media.attach, self.messages, **self._media), {}
            self.messages = await in_thread(attach) if self._in_loop else attach()
        elif self._results is not None:
            try:
                result = await self._results.__anext__()
            except StopAsyncIteration:
                self._results = self._stream = None
                return
            name = {"name": result.call.name} if self._client._settings.takes_tool_names else {}
            self.messages.append({**result.message, **name})
            self._options.pop("tool_choice", None)
            self._ready.append(result)
        elif self._stream is None:
            options = {**self._options, "tools": self._tools.values()}
            request = Completion(self._client._settings, self.messages, options, "stream")
            request.share_total(self._request)
            self._stream = self._client._stream(request)
            self._reply = None
            self._n_left -= 1
        else:
            event = await self._stream._next()
            if event is None:
                self._end_round()
            else:
                if event.type == "message_stop" and self._reply is None:
                    self._add_reply(self._stream.reply)
                self._ready.append(event)

    def _add_reply(self, reply: Reply[Any]) -> None:
        """Add a reply to the messages before the last event of its round. The caller may stop after this event.

        A reply that is cut and must not be returned raises IncompleteReply in place of this event.
        """
        check_not_cut(reply, self._request)
        self._reply = reply
        message = reply.message
        if is_cut(reply):  # Its calls are not run, and the next request must not contain calls without results.
            message.pop("tool_calls", None)
        self.messages.append(message)
        # Without functions there is nothing to run.
        self.done = is_cut(reply) or not (reply.tool_calls and self._tools)
        if self.done and self._on_done is not None:
            self._on_done(self)

    def _end_round(self) -> None:
        self._is_done = self.done
        calls = self.reply.tool_calls
        if not self._is_done and not self._n_left:
            names = ", ".join(call.name for call in calls)
            still = f"the model still calls {names} after {self._max_rounds} rounds"
            raise TooManyRounds(f"{still}: raise max_rounds if it needs more", partial=self.reply)
        if not self._is_done:
            self._results = self._run_calls(calls)

    async def _run_calls(self, calls: Sequence[ToolCall]) -> AsyncGenerator[ToolResult, None]:
        """Run the calls, and yield their results in the same order."""
        ready = []
        for call in calls:
            function = prepare(call, self._tools)
            if self._on_call is not None and callable(function):
                approval = self._on_call(call)
                approval = await approval if self._in_loop and inspect.isawaitable(approval) else approval
                refuse_awaitable(approval, "await on_call")
                reason = approval if isinstance(approval, str) and approval else _NOT_APPROVED
                function = function if approval is True else reason
            ready.append((call, function))

        async def run(call: ToolCall, function: Prepared) -> ToolResult:
            function = "the run was closed" if self._is_closed else function
            return await run_call(call, function, self._raise_errors, self._in_loop)

        workers = len(ready) if self._parallel is True else self._parallel
        if not workers or len(ready) < 2:
            for item in ready:
                yield await run(*item)
        elif self._in_loop:
            import asyncio  # Imported here: the import takes longer than that of the whole client.

            gate = asyncio.Semaphore(workers)

            async def run_gated(call: ToolCall, function: Prepared) -> ToolResult:
                async with gate:
                    return await run(call, function)

            tasks = [asyncio.ensure_future(run_gated(*item)) for item in ready]
            try:
                for task in tasks:
                    yield await task
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        else:
            from concurrent.futures import ThreadPoolExecutor  # Imported here: the import takes some ms.

            with ThreadPoolExecutor(workers, "localchat-tool") as pool:
                # Each call sees the context variables of the caller; threads may not share one context.
                contexts = [contextvars.copy_context() for _ in ready]
                for result in pool.map(lambda context, item: context.run(run_blocking, run(*item)), contexts, ready):
                    yield result

    async def _close(self) -> None:
        self._is_closed = True
        if self._stream is not None:
            await self._stream._close()
        if self._results is not None:
            with contextlib.suppress(RuntimeError):  # Another thread or task runs it, and will see `_is_closed`.
                await self._results.aclose()


class ToolRun(_BaseRun, BlockingEvents[RunEvent, Any]):
    """A prompt, the rounds of tool calls and the final response. Iterate it for events; leave the `with` to cancel.

    The events are those of a Stream for each round, and a `tool_result` for each call. `messages` is the conversation
    so far and can be the prompt of another request. `done` is set when a response without tool calls is complete,
    before the last event is yielded. A running tool is not interrupted by `close`, but no other tool starts.
    """

    _in_loop = False


class AsyncToolRun(_BaseRun, AsyncEvents[RunEvent, Any]):
    """A ToolRun of an AsyncClient: iterate it with `async for`; leave the `async with` or cancel the task to cancel."""

    _in_loop = True
