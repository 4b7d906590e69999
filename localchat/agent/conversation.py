"""Conversations, to which each complete run is added."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from ..events import Reply
from ..files import read_messages, write_messages
from ..request.arguments import with_lists
from ..request.options import without_none
from ..request.prompts import Prompt, as_messages, check_one_system, set_system, split_system
from .tool_run import AsyncToolRun, ToolRun
from .tools import AnyTool

if TYPE_CHECKING:
    from typing_extensions import Self

Run = TypeVar("Run", ToolRun, AsyncToolRun)


class _BaseConversation:
    """The part of Conversation and AsyncConversation that does not wait."""

    stream: Callable[[str], Any]  # Starts a turn.
    _is_async: bool  # Whether the client has to be an AsyncClient.

    def __init__(
        self,
        client: Any,
        *,
        system: str | None = None,
        tools: Iterable[AnyTool] | None = None,
        messages: Iterable[Mapping[str, Any]] | None = None,
        **options: Any,
    ) -> None:
        chat = getattr(client, "chat", None)
        if chat is None or inspect.iscoroutinefunction(chat) != self._is_async:
            needed, other = ("AsyncClient", "") if self._is_async else ("Client", "Async")
            hint = f"use {other}Conversation, or client.conversation()"
            raise TypeError(f"{type(self).__name__} takes a client like {needed}, not {type(client).__name__}: {hint}")
        self.messages = as_messages(list(messages or ()))
        self.set_system(system)
        self._client = client
        self._options = with_lists({"tools": tools, **options})
        self.stream("")  # Raises for wrong options, and sends nothing.

    def set_system(self, text: str | None) -> None:
        """Replace or add the system message. None leaves the conversation unchanged."""
        if text is not None:
            set_system(self.messages, text)

    def _start_turn(self, run_class: Callable[..., Run], prompt: Prompt, options: dict[str, Any]) -> Run:
        """A run whose messages are added to the conversation when it is done."""
        options = {**self._options, **without_none(options)}
        new: list[dict[str, Any]] = as_messages(prompt)
        system, others = split_system(self.messages)
        replaces_system = "system" in options  # In this turn: the run adds the message in front.
        if system and not replaces_system:
            check_one_system(new, "the conversation")
        earlier: list[dict[str, Any]] = others if replaces_system else self.messages
        n_before_turn = len(earlier) + int(replaces_system)

        def add_turn(run: Run) -> None:
            self.messages += run.messages[n_before_turn:]

        return run_class(self._client, [*earlier, *new], _on_done=add_turn, **options)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the messages as JSON to a file; see `write_messages`."""
        write_messages(path, self.messages)

    @classmethod
    def load(cls, path: str | os.PathLike[str], client: Any, **options: Any) -> Self:
        """A conversation with the messages of a file; see `read_messages`. The options are those of a new one."""
        return cls(client, messages=read_messages(path), **options)


class Conversation(_BaseConversation):
    """A list of messages, all of which are sent with every request. For one thread at a time.

    A turn is added to `messages` when it is complete: after an error or a cancel the list is unchanged. Between turns
    the caller may change the list. `system` is the content of a system message, `messages` are those of an earlier
    conversation, and the options are those of Client.run and Client.stream, for every turn.
    """

    _is_async = False

    def say(self, prompt: Prompt, /, **options: Any) -> Reply[Any]:
        """Send a prompt and return the complete reply. The options override those of the conversation."""
        return self.stream(prompt, **options).finish()

    def stream(self, prompt: Prompt, /, **options: Any) -> ToolRun:
        """Send a prompt and yield the events of the response. The turn is added before the last event."""
        return self._start_turn(ToolRun, prompt, options)


class AsyncConversation(_BaseConversation):
    """A Conversation of an AsyncClient."""

    _is_async = True

    async def say(self, prompt: Prompt, /, **options: Any) -> Reply[Any]:
        """See Conversation.say."""
        return await self.stream(prompt, **options).finish()

    def stream(self, prompt: Prompt, /, **options: Any) -> AsyncToolRun:
        """See Conversation.stream."""
        return self._start_turn(AsyncToolRun, prompt, options)
