"""Python functions as tools: their definitions, and how the calls of a model are answered.

A tool is a plain function: its name, its docstring and its annotations describe it to the model. `Toolbox` checks the
calls of a response and runs them; `tool_run` sends the results back. Mistakes of the model (an unknown name, arguments
that do not parse or are not valid) are reported to the model, not raised.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import logging
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Union

from . import schema
from .errors import DoesNotFit
from .events import ToolCall
from .shapes import plain
from .signatures import read_function

log = logging.getLogger(__name__)

# How much of an exception's text goes to the model.
_ERROR_CHARS = 500

# What OpenAI takes as a name; other servers take the same or more.
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


@dataclass(frozen=True)
class Tool:
    """A function as the model sees it. `Tool.of` reads all from the function.

    `target` is what arguments are checked with and made from (see schema); without one, `parameters` is.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    function: Callable[..., Any]
    target: Any = None

    @classmethod
    def of(cls, function: AnyTool, name: str = "", description: str = "") -> Tool:
        """The tool that a function is, with another name or description if one is given.

        Raises:
            TypeError, ValueError: It has no usable name, or parameters that a model cannot give.
        """
        if isinstance(function, Tool):
            return function
        if not callable(function) or isinstance(function, type):
            raise TypeError(f"a tool is a function, not {function!r}")
        name = name or getattr(function, "__name__", "")
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name or function!r} is no name for a tool: use Tool.of(function, name=...)")
        description = description or read_function(function)[0]
        return cls(name, description, schema.json_schema(function), function, function)

    @property
    def definition(self) -> dict[str, Any]:
        """The tool as it stands in a request."""
        described = {"description": self.description} if self.description else {}
        return {"type": "function", "function": {"name": self.name, **described, "parameters": self.parameters}}

    def read(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """What the function takes, made from what the model gave.

        Raises:
            DoesNotFit: A name or a type is wrong.
        """
        values: dict[str, Any] = schema.build(self.parameters if self.target is None else self.target, arguments)
        return values


AnyTool = Union[Callable[..., Any], Tool]


@dataclass(frozen=True)
class ToolResult:
    """A call has been answered. `content` goes to the model; `error` is set if it is no result but a failure.

    `value` is what the function returned.
    """

    type: ClassVar[Literal["tool_result"]] = "tool_result"
    call: ToolCall
    content: str
    error: str | None = None
    value: Any = field(default=None, repr=False, compare=False)
    choice_index: int = 0
    raw: Any = field(default=None, repr=False, compare=False)

    @property
    def message(self) -> dict[str, Any]:
        """The result as a message. Some templates print the name, which OpenAI does not need."""
        return {"role": "tool", "tool_call_id": self.call.id, "name": self.call.name, "content": self.content}


# Called before each call of a tool. True alone lets it run; text refuses it and is the reason that the model gets;
# every other value, such as the None of a function without return, refuses it. That of an AsyncClient may be a
# coroutine function.
OnCall = Callable[[ToolCall], object]


class Toolbox:
    """Tools by name, and how their calls are answered.

    Args:
        tools: Functions, or Tools where a function alone does not describe enough.
        on_call: The approval hook; see OnCall. Asked in the order of the calls, before any of them runs.
        parallel: Run the calls of one round in threads; a number is the most at a time.
        raise_errors: Let a tool's exception through. Otherwise it is logged, and the model gets its text.
    """

    def __init__(
        self,
        tools: Iterable[AnyTool],
        *,
        on_call: OnCall | None = None,
        parallel: bool | int = False,
        raise_errors: bool = False,
    ) -> None:
        listed = [Tool.of(tool) for tool in tools]
        self._tools = {tool.name: tool for tool in listed}
        if len(self._tools) < len(listed):
            raise ValueError(f"two tools have one name: {', '.join(tool.name for tool in listed)}")
        self._on_call = on_call
        self._parallel = parallel
        self._raise_errors = raise_errors

    @property
    def definitions(self) -> list[dict[str, Any]]:
        return [tool.definition for tool in self._tools.values()]

    def answer(self, calls: Sequence[ToolCall], is_closed: Callable[[], bool]) -> Iterator[ToolResult]:
        """The results, in the order of the calls, each as soon as those before it are there.

        Args:
            is_closed: Asked before each call runs: whether none is wanted any more.
        """
        ready = [_approved(item, self._approval(item)) for item in map(self._prepare, calls)]

        def run(item: _Ready | ToolResult) -> ToolResult:
            return _failed(item.call, "the run was closed") if is_closed() else self._run(item)

        if not self._parallel or len(calls) < 2:
            yield from map(run, ready)
            return
        from concurrent.futures import ThreadPoolExecutor  # Late: it costs some ms.

        workers = len(calls) if self._parallel is True else self._parallel
        with ThreadPoolExecutor(workers, "localchat-tool") as pool:
            yield from pool.map(run, ready)

    async def answer_async(
        self, calls: Sequence[ToolCall], is_closed: Callable[[], bool]
    ) -> AsyncGenerator[ToolResult, None]:
        """The same in an event loop: coroutine functions are awaited, others run in threads."""
        import asyncio  # Late: it costs more than the whole client.

        ready = []
        for item in map(self._prepare, calls):
            approval = self._approval(item)
            ready.append(_approved(item, await approval if inspect.isawaitable(approval) else approval))
        if not self._parallel:
            for item in ready:
                yield await self._run_async(item, is_closed)
            return
        gate = asyncio.Semaphore(len(calls) if self._parallel is True else self._parallel)
        tasks = [asyncio.ensure_future(self._run_async(item, is_closed, gate)) for item in ready]
        try:
            for task in tasks:
                yield await task
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _prepare(self, call: ToolCall) -> _Ready | ToolResult:
        """Everything before the function itself: what is wrong with a call, and whether it is allowed."""
        tool = self._tools.get(call.name)
        if tool is None:
            offered = ", ".join(self._tools) or "none"
            return _failed(call, f"there is no tool {call.name!r}; the tools are: {offered}")
        if call.arguments is None:
            return _failed(call, f"{call.error}; you wrote: {_cut(call.arguments_json)}")
        try:
            arguments = tool.read(call.arguments)
        except DoesNotFit as error:
            return _failed(call, f"the arguments are not valid: {error}")
        return _Ready(call, tool.function, arguments)

    def _approval(self, item: _Ready | ToolResult) -> object:
        return True if self._on_call is None or isinstance(item, ToolResult) else self._on_call(item.call)

    def _run(self, item: _Ready | ToolResult) -> ToolResult:
        if isinstance(item, ToolResult):
            return item
        try:
            value = _called(item)
            _refuse_awaitable(value, f"run coroutine functions: {item.call.name}")
            return ToolResult(item.call, result_text(value), value=value)
        except Exception as error:
            if self._raise_errors:
                raise
            return _crashed(item.call, error)

    async def _run_async(
        self, item: _Ready | ToolResult, is_closed: Callable[[], bool], gate: Any = None
    ) -> ToolResult:
        import asyncio

        if isinstance(item, ToolResult):
            return item
        try:
            async with gate or contextlib.AsyncExitStack():
                if is_closed():
                    return _failed(item.call, "the run was closed")
                if inspect.iscoroutinefunction(item.function):
                    value = await item.function(**item.arguments)
                else:
                    value = await asyncio.to_thread(_called, item)
                if inspect.isawaitable(value):  # As that of a lambda around a coroutine function.
                    value = await value
            return ToolResult(item.call, result_text(value), value=value)
        except Exception as error:
            if self._raise_errors:
                raise
            return _crashed(item.call, error)

    def refuse_coroutines(self) -> None:
        """Raise TypeError if some of the functions need an event loop."""
        names = [name for name, tool in self._tools.items() if inspect.iscoroutinefunction(tool.function)]
        if names:
            raise TypeError(f"only an AsyncClient can run coroutine functions: {', '.join(names)}")


@dataclass(frozen=True)
class _Ready:
    """A call that may run."""

    call: ToolCall
    function: Callable[..., Any]
    arguments: dict[str, Any]


def _called(item: _Ready) -> Any:
    """What the function returns. A generator takes StopIteration for its end, and a future cannot hold it."""
    try:
        return item.function(**item.arguments)
    except StopIteration as error:
        raise RuntimeError(f"the function raised StopIteration: {error}") from error


def _refuse_awaitable(value: object, what: str) -> None:
    """Raise TypeError for what only an event loop can wait for."""
    if inspect.iscoroutine(value):
        value.close()  # Or Python would warn that it was never awaited.
    if inspect.isawaitable(value):
        raise TypeError(f"only an AsyncClient can {what}")


def _approved(item: _Ready | ToolResult, approval: object) -> _Ready | ToolResult:
    """A call after the approval hook has been asked."""
    _refuse_awaitable(approval, "await on_call")
    if approval is True:
        return item
    if approval is not False and not isinstance(approval, str):
        log.warning(
            "on_call returned %r, which refuses the call of %s: return True to run it", approval, item.call.name
        )
    reason = approval if approval and isinstance(approval, str) else "this call was not approved and did not run"
    return _failed(item.call, reason)


def _failed(call: ToolCall, error: str) -> ToolResult:
    return ToolResult(call, f"Error: {error}", error)


def _crashed(call: ToolCall, error: Exception) -> ToolResult:
    log.warning("tool %s failed", call.name, exc_info=error)
    return _failed(call, _cut(f"{type(error).__name__}: {error}"))


def _cut(text: str) -> str:
    return text if len(text) <= _ERROR_CHARS else text[:_ERROR_CHARS] + "..."


def result_text(value: Any) -> str:
    """What the model gets to read: text as it is, all else as JSON, or as Python shows it where that cannot be."""
    try:
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=_plain)
    except (TypeError, ValueError):  # Keys that are no text, or a list that holds itself.
        return str(value)


def _plain(value: Any) -> Any:
    try:
        return plain(value)
    except TypeError:
        return str(value)
