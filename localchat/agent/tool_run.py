"""Runs: requests and tool calls in turn, until the model calls no tool.

A run is an iterator over events, which makes them step by step like a stream (streams.py): it begins a round with the
stream of a request, returns the events of the stream, runs the calls of the reply, and begins the next round.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import Any, Union

from ..errors import TooManyRounds
from ..events import Reply, StreamEvent, ToolCall
from ..reply.truncation import check_not_cut, is_cut, kept_message
from ..request import media
from ..request.completion import CompletionRequest
from ..request.options import check_count
from ..request.prompts import Prompt, take_media
from ..streams import AsyncEventIterator, BlockingEventIterator, EventIterator
from ..transport.sockets import run_blocking
from .tools import (
    AnyTool,
    OnCall,
    PreparedCall,
    ToolResult,
    call_in_thread,
    prepare,
    refuse_awaitable,
    run_call,
    tools_by_name,
)

DEFAULT_MAX_ROUNDS = 10
_NOT_APPROVED = "this call was not approved and did not run"

RunEvent = Union[StreamEvent, ToolResult]


class _BaseRun(EventIterator[RunEvent, Any]):
    """What ToolRun and AsyncToolRun do; its coroutines do not depend on how they wait.

    Args:
        client: The Client or AsyncClient that sends the requests.
        prompt: The prompt of the first request.
        tools: The functions that the model may call.
        max_rounds: The limit of requests (10).
        on_call: Called for all calls of a response before the first of them runs, see `OnCall`.
        parallel: Whether the calls of a round run in threads or tasks, of which a number is the limit.
        raise_errors: Whether an exception of a tool is raised. Otherwise it is logged and sent to the model.
        _on_done: Called with the run when `done` is set.
        options: The options of the requests. `tool_choice` is sent with the first request only.
    """

    _is_async: bool  # Whether the run belongs to an AsyncClient, so that its coroutines run in an event loop.

    def __init__(
        self,
        client: Any,
        prompt: Prompt | None,
        tools: Iterable[AnyTool] | None = None,
        *,
        max_rounds: int | None = None,
        on_call: OnCall | None = None,
        parallel: bool | int | None = None,
        raise_errors: bool | None = None,
        _on_done: Callable[[Any], object] | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        max_rounds = DEFAULT_MAX_ROUNDS if max_rounds is None else max_rounds
        check_count("max_rounds", max_rounds)
        parallel = False if parallel is None else parallel
        if on_call is not None and not callable(on_call):
            raise TypeError(f"on_call is a function, not {on_call!r}")
        if not isinstance(parallel, int) or parallel < 0:
            raise ValueError(f"parallel is True, False or a whole number, not {parallel!r}")
        self._client = client
        self._tools = tools_by_name(() if tools is None else tools, self._is_async)
        self._max_rounds = max_rounds
        self._on_call = on_call
        self._parallel = parallel
        self._raise_errors = bool(raise_errors)
        self._on_done = _on_done
        # A request that is never sent. Making it checks the options and the prompt; it has the total timeout of the run
        # and its rule for replies that are cut. Its media are not read: `_read_media` does that.
        self._template = CompletionRequest(client._settings, prompt, options, "run")
        if self._tools and self._template.n_choices != 1:
            raise ValueError("a run follows one choice: n must be 1")
        self.messages: list[dict[str, Any]] = list(self._template.prompt)  # The conversation so far.
        self._n_prompt = len(self.messages)  # The number of messages of the prompt.
        self._media = take_media(options)
        # The options of the next request.
        self._options = {name: value for name, value in options.items() if name not in ("messages", "system")}
        self.done = False  # Whether the final reply was received. Its last event may not be returned yet.
        self._n_rounds = 0  # The number of requests that were sent.
        self._stream: Any = None  # The stream of the newest request; None before it, and after its calls.
        self._reply: Reply[Any] | None = None  # The reply to the newest request; None before it is complete.
        # The results of the calls of this reply; None unless the calls run.
        self._results: AsyncGenerator[ToolResult, None] | None = None

    @property
    def new_messages(self) -> list[dict[str, Any]]:
        """The messages after the prompt: the replies so far, and the results of their calls."""
        return self.messages[self._n_prompt :]

    @property
    def reply(self) -> Reply[Any]:
        """The reply of the newest round, incomplete while it is received."""
        return self._reply or (Reply() if self._stream is None else self._stream.reply)

    async def _advance(self) -> None:
        """Do the next step of the cycle. Which one it is, three attributes say:

        _media      _stream     _results    step
        not empty   None        None        read the files of images and sounds, once
        empty       None        None        begin a round with its stream
        empty       set         None        take an event; `message_stop` adds the reply; after the last event, end
                                            the run, or let the calls run, which sets `_results`
        empty       set         set         take a result; after the last one, both are None again
        """
        if self._media:
            await self._read_media()
        elif self._stream is None:
            self._begin_round()
        elif self._results is None:
            await self._take_event(self._stream)
        else:
            await self._take_result(self._results)

    async def _read_media(self) -> None:
        """Add the images and sounds to the prompt. Their files are read."""
        attach, self._media = functools.partial(media.attach, self.messages, **self._media), {}
        self.messages = await call_in_thread(attach) if self._is_async else attach()
        self._n_prompt = len(self.messages)  # There may be a message more, for the media.

    def _begin_round(self) -> None:
        """Make the stream of the next request, which its first event sends."""
        options = {**self._options, "tools": self._tools.values()}
        request = CompletionRequest(self._client._settings, self.messages, options, "stream")
        request.share_total(self._template)
        self._stream = self._client._stream(request)
        self._reply = None
        self._n_rounds += 1

    async def _take_event(self, stream: Any) -> None:
        """Take the next event of the stream. After the last one, the run ends, or the calls begin to run."""
        event = await stream._next()
        if event is None:
            await self._end_round()
            return
        if event.type == "message_stop" and self._reply is None:  # The first one, if there are several choices.
            self._add_reply(stream.reply)
        self._ready.append(event)

    def _add_reply(self, reply: Reply[Any]) -> None:
        """Add a reply to the messages, before its `message_stop` is returned: a caller that stops reading then has it.

        A reply that is cut and must not be returned raises IncompleteReply in place of this event.
        """
        check_not_cut(reply, self._template)
        self._reply = reply
        self.messages.append(kept_message(reply))
        # Without functions there is nothing to run. The calls of a cut reply are not run either.
        self.done = is_cut(reply) or not (reply.tool_calls and self._tools)
        if self.done and self._on_done is not None:
            self._on_done(self)

    async def _end_round(self) -> None:
        """End the run, or run the calls of the reply."""
        if self.done:
            self._has_last_event = True
            return
        calls = self.reply.tool_calls
        if self._n_rounds == self._max_rounds:
            names = ", ".join(call.name for call in calls)
            still = f"the model still calls {names} after {self._max_rounds} rounds"
            raise TooManyRounds(f"{still}: raise max_rounds if it needs more", partial=self.reply)
        prepared = [await self._prepare(call) for call in calls]
        n_workers = len(prepared) if self._parallel is True else self._parallel
        if not n_workers or len(prepared) < 2:
            self._results = self._run_one_by_one(prepared)
        elif self._is_async:
            self._results = self._run_in_tasks(prepared, n_workers)
        else:
            self._results = self._run_in_threads(prepared, n_workers)

    async def _take_result(self, results: AsyncGenerator[ToolResult, None]) -> None:
        """Add the next result to the messages. After the last one, the next round begins."""
        try:
            result = await results.__anext__()
        except StopAsyncIteration:
            self._results = self._stream = None
            return
        name = {"name": result.call.name} if self._client._settings.names_tools else {}
        self.messages.append({**result.message, **name})
        self._drop_tool_choice()
        self._ready.append(result)

    def _drop_tool_choice(self) -> None:
        """With `required`, the model could never stop calling tools."""
        self._options.pop("tool_choice", None)
        extra_body = self._options.get("extra_body") or {}
        if "tool_choice" in extra_body:
            others = {name: value for name, value in extra_body.items() if name != "tool_choice"}
            self._options["extra_body"] = others

    async def _prepare(self, call: ToolCall) -> PreparedCall:
        """Prepare a call, and ask `on_call` whether it may run."""
        prepared = prepare(call, self._tools)
        if self._on_call is None or prepared.function is None:
            return prepared
        approval = self._on_call(call)
        if self._is_async and inspect.isawaitable(approval):
            approval = await approval
        refuse_awaitable(approval, "await on_call")
        if approval is True:
            return prepared
        return prepared.without_function(approval if isinstance(approval, str) and approval else _NOT_APPROVED)

    async def _run_one(self, prepared: PreparedCall) -> ToolResult:
        prepared = prepared.without_function("the run was closed") if self._is_closed else prepared
        return await run_call(prepared, self._raise_errors, self._is_async)

    # The three ways to run the calls of a round. Each yields the results in the order of the calls.

    async def _run_one_by_one(self, calls: Sequence[PreparedCall]) -> AsyncGenerator[ToolResult, None]:
        for prepared in calls:
            yield await self._run_one(prepared)

    async def _run_in_tasks(self, calls: Sequence[PreparedCall], n_workers: int) -> AsyncGenerator[ToolResult, None]:
        import asyncio  # Imported here: the import takes longer than that of the whole client.

        gate = asyncio.Semaphore(n_workers)

        async def run_gated(prepared: PreparedCall) -> ToolResult:
            async with gate:
                return await self._run_one(prepared)

        tasks = [asyncio.ensure_future(run_gated(prepared)) for prepared in calls]
        try:
            for task in tasks:
                yield await task
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _run_in_threads(self, calls: Sequence[PreparedCall], n_workers: int) -> AsyncGenerator[ToolResult, None]:
        from concurrent.futures import ThreadPoolExecutor  # Imported here: the import takes some ms.

        def run_in(context: contextvars.Context, prepared: PreparedCall) -> ToolResult:
            return context.run(run_blocking, self._run_one(prepared))

        with ThreadPoolExecutor(n_workers, "localchat-tool") as pool:
            # Each call sees the context variables of the caller; threads may not share one context.
            contexts = [contextvars.copy_context() for _ in calls]
            for result in pool.map(run_in, contexts, calls):
                yield result

    async def _close(self) -> None:
        self._is_closed = True
        if self._stream is not None:
            await self._stream._close()
        if self._results is not None:
            with contextlib.suppress(RuntimeError):  # Another thread or task runs it, and will see `_is_closed`.
                await self._results.aclose()


class ToolRun(_BaseRun, BlockingEventIterator[RunEvent, Any]):
    """A prompt, the rounds of tool calls and the final response. Iterate it for events; leave the `with` to cancel.

    The events are those of a Stream for each round, and a `tool_result` for each call. `messages` is the conversation
    so far and can be the prompt of another request; `new_messages` are those after the prompt. A running tool is not
    interrupted by `close`, but no other tool starts.

    `done` is set when the last response is complete, before its last event is yielded: it calls no tools, or it was
    cut, so that its calls are not run.
    """

    _is_async = False


class AsyncToolRun(_BaseRun, AsyncEventIterator[RunEvent, Any]):
    """A ToolRun of an AsyncClient: iterate it with `async for`; leave the `async with` or cancel the task to cancel."""

    _is_async = True
