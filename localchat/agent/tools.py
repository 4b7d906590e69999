"""Python functions as tools: their definitions, and running the calls of a model.

A tool is a plain function: its name, its docstring and its annotations describe it to the model. Mistakes of the model
(an unknown name, arguments that do not parse or are not valid) are reported to the model, not raised.
"""

from __future__ import annotations

import functools
import inspect
import json
import logging
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple, Union

from ..errors import DoesNotFit
from ..events import Record, ToolCall
from ..schema.shapes import to_plain_json
from ..schema.signatures import read_function
from ..schema.targets import build, json_schema
from ..schema.variants import with_readable_patterns
from ..texts import cut

log = logging.getLogger(__name__)

_ERROR_CHARS = 500  # A longer text of an exception is shortened to this length before it is sent to the model.

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")  # The names that OpenAI accepts; other servers accept these too.


@dataclass(frozen=True)
class Tool:
    """A function that a model may call. `Tool.of` makes one from a function."""

    name: str
    description: str
    parameters: Mapping[str, Any]  # The JSON Schema of the arguments.
    function: Callable[..., Any]
    # The target (schema/targets.py) that validates and converts the arguments. `Tool.of` sets the function. If it is
    # None, `parameters` is the target.
    target: Any = None

    def __post_init__(self) -> None:
        """Raise ValueError for a name that servers refuse."""
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise ValueError(f"{self.name or self.function!r} is no name for a tool: use Tool.of(function, name=...)")

    @classmethod
    def of(cls, function: AnyTool, name: str = "", description: str = "") -> Tool:
        """The tool for a function, or a tool with another name or description.

        Raises TypeError or ValueError if the name or the parameters cannot be sent.
        """
        if isinstance(function, Tool):
            if not (name or description):
                return function
            return replace(function, name=name or function.name, description=description or function.description)
        if not callable(function) or isinstance(function, type):
            raise TypeError(f"a tool is a function, not {function!r}")
        name = name or getattr(function, "__name__", "")
        description = description or read_function(function)[0]
        return cls(name, description, json_schema(function), function, function)

    @property
    def definition(self) -> dict[str, Any]:
        """The item of the field `tools` in a request."""
        described = {"description": self.description} if self.description else {}
        return {"type": "function", "function": {"name": self.name, **described, "parameters": self.parameters}}

    def read(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Convert the arguments of a call to the types of the function. Raises DoesNotFit if they are not valid.

        Patterns of `parameters` that Python cannot read are left to the function, such as one of an MCP server.
        """
        target = with_readable_patterns(self.parameters) if self.target is None else self.target
        values: dict[str, Any] = build(target, arguments)
        return values


AnyTool = Union[Callable[..., Any], Tool]


@dataclass(frozen=True)
class ToolOutput:
    """What a tool returns in place of a value if it has parts of a message, such as images, or reports a failure."""

    parts: Sequence[Mapping[str, Any]]  # As in the content of a message.
    is_error: bool = False

    @property
    def text(self) -> str:
        """The text of the parts."""
        return "\n".join(part["text"] for part in self.parts if part["type"] == "text")

    @property
    def content(self) -> str | list[Mapping[str, Any]]:
        """The content of the message: the text if there is nothing else, since not every server takes parts."""
        return self.text if all(part["type"] == "text" for part in self.parts) else list(self.parts)


@dataclass(frozen=True, repr=False, eq=False)
class ToolResult(Record):
    """The result of a call, or the reason why there is none. An event of a ToolRun."""

    type: ClassVar[Literal["tool_result"]] = "tool_result"
    call: ToolCall
    content: str  # The text that is sent to the model.
    error: str | None = None  # Why the call failed or did not run; None if it succeeded.
    value: Any = field(default=None, compare=False, repr=False)  # The return value of the function.
    choice_index: int = 0
    raw: Any = field(default=None, compare=False, repr=False)

    @property
    def message(self) -> dict[str, Any]:
        """The result as a message. A run adds `name` for local servers, since some chat templates use it."""
        content = self.value.content if isinstance(self.value, ToolOutput) else self.content
        return {"role": "tool", "tool_call_id": self.call.id, "content": content}


# The approval hook, of an AsyncClient also a coroutine function. Only True runs the call; a text is sent as the reason.
OnCall = Callable[[ToolCall], object]


class PreparedCall(NamedTuple):
    """A call, and either the function to run for it or the reason why none runs."""

    call: ToolCall
    function: Callable[[], Any] | None  # The function with the converted arguments; None if it must not run.
    reason: str = ""  # Why it must not run, for the model.

    def without_function(self, reason: str) -> PreparedCall:
        """The same call without its function."""
        return PreparedCall(self.call, None, reason)


def tools_by_name(tools: Iterable[AnyTool], is_async: bool) -> dict[str, Tool]:
    """The tools of a run. Raises TypeError or ValueError if they cannot be sent or run."""
    if not isinstance(tools, Iterable) or isinstance(tools, (str, Mapping)):
        raise TypeError(f"tools is a list of functions, not {tools!r:.100}")
    listed = [Tool.of(tool) for tool in tools]
    for tool in listed:
        if tool.target is None:
            json_schema(tool.parameters)  # A wrong schema would be noticed only when the model calls the tool.
    by_name = {tool.name: tool for tool in listed}
    if len(by_name) < len(listed):
        raise ValueError(f"two tools have one name: {', '.join(tool.name for tool in listed)}")
    coroutines = [
        tool.name
        for tool in listed
        if inspect.iscoroutinefunction(tool.function) or inspect.isasyncgenfunction(tool.function)
    ]
    if coroutines and not is_async:
        raise TypeError(f"only an AsyncClient can run coroutine functions: {', '.join(coroutines)}")
    return by_name


def prepare(call: ToolCall, tools: Mapping[str, Tool]) -> PreparedCall:
    """Find the function of a call and convert its arguments. A mistake of the model becomes the reason not to run."""
    tool = tools.get(call.name)
    if tool is None:
        return PreparedCall(call, None, f"there is no tool {call.name!r}; the tools are: {', '.join(tools) or 'none'}")
    if call.arguments is None:
        return PreparedCall(call, None, f"{call.error}; you wrote: {cut(call.arguments_json, _ERROR_CHARS)}")
    try:
        return PreparedCall(call, functools.partial(tool.function, **tool.read(call.arguments)))
    except DoesNotFit as error:
        return PreparedCall(call, None, f"the arguments are not valid: {error}")


async def run_call(prepared: PreparedCall, raise_errors: bool, is_async: bool) -> ToolResult:
    """Run a call. `is_async`: an event loop runs it, so coroutine functions are awaited, and others run in threads."""
    call, function, reason = prepared
    if function is None:
        return _failed(call, reason)
    try:
        value = await _value_of(function, is_async)
        refuse_awaitable(value, f"run coroutine functions: {call.name}")
        if isinstance(value, ToolOutput):
            return ToolResult(call, value.text, value.text if value.is_error else None, value)
        return ToolResult(call, result_text(value), value=value)
    except Exception as error:
        if raise_errors:
            raise
        log.warning("tool %s failed", call.name, exc_info=error)
        return _failed(call, cut(f"{type(error).__name__}: {error}", _ERROR_CHARS))


def _failed(call: ToolCall, reason: str) -> ToolResult:
    """The result of a call that failed or did not run."""
    return ToolResult(call, f"Error: {reason}", reason)


async def _value_of(function: Callable[[], Any], is_async: bool) -> Any:
    """The value of a function; of a generator, its items."""
    if not is_async:
        return _call_function(function)
    is_coroutine_function = inspect.iscoroutinefunction(function)
    value = _call_function(function) if is_coroutine_function else await call_in_thread(_call_function, function)
    if inspect.isawaitable(value):
        value = await value
    return [item async for item in value] if isinstance(value, AsyncIterator) else value


async def call_in_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a function that a thread of its own runs, while the event loop goes on."""
    from ..transport.aio_sockets import in_thread  # It imports asyncio, which takes long.

    return await in_thread(functools.partial(function, *arguments), daemon=False)


def _call_function(function: Callable[[], Any]) -> Any:
    """The result; of a generator, its items. A StopIteration, which would end generators, becomes a RuntimeError."""
    try:
        value = function()
        return list(value) if isinstance(value, Iterator) else value
    except StopIteration as error:
        raise RuntimeError(f"the function raised StopIteration: {error}") from error


def refuse_awaitable(value: object, what: str) -> None:
    """Raise TypeError for a value that must be awaited. `what` is the end of the message."""
    if inspect.iscoroutine(value):
        value.close()  # Prevents the warning that the coroutine was never awaited.
    if inspect.isawaitable(value) or isinstance(value, AsyncIterator):
        raise TypeError(f"only an AsyncClient can {what}")


def result_text(value: Any) -> str:
    """The return value of a tool as text for the model: text unchanged, other values as JSON, or else as `str`."""
    try:
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=_plain)
    except (TypeError, ValueError):  # Keys that are not text, or a list that contains itself.
        return str(value)


def _plain(value: Any) -> Any:
    try:
        return to_plain_json(value)
    except TypeError:
        return str(value)
