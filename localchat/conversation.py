"""A conversation: a list of plain messages that grows by whole turns only."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from .events import Reply
from .tool_run import AnyRun, AsyncToolRun, ToolRun, start_run

if TYPE_CHECKING:
    from .payloads import Prompt
    from .tools import AnyTool

_AnyTalk = TypeVar("_AnyTalk", bound="_Talk")


class _Talk:
    """What conversations of both kinds have in common."""

    def __init__(
        self,
        client: Any,
        *,
        system: str | None = None,
        tools: Iterable[AnyTool] = (),
        messages: Iterable[Mapping[str, Any]] = (),
        **options: Any,
    ) -> None:
        self.messages = [dict(message) for message in messages]
        if system is not None:  # In place of the one that was saved, if there is one.
            saved = bool(self.messages) and self.messages[0].get("role") == "system"
            self.messages[: int(saved)] = [{"role": "system", "content": system}]
        self._client = client
        self._tools = list(tools)
        self._options = options

    def _turn(self, kind: Callable[..., AnyRun], prompt: Prompt, options: dict[str, Any]) -> AnyRun:
        """One turn under way, which adds itself with its last event."""
        options = {"tools": self._tools, **self._options, **options}
        known = len(self.messages) + (options.get("system") is not None)

        def add(run: AnyRun) -> None:
            self.messages += run.messages[known:]

        return start_run(kind, self._client, prompt, before=self.messages, on_done=add, **options)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the messages as JSON. An interrupted write leaves an older file as it was; its permissions stay."""
        path = os.path.realpath(os.fsdecode(path))  # A link stays one.
        partial = f"{path}.{os.getpid()}.partial"
        try:
            with open(partial, "wb") as file:
                with contextlib.suppress(FileNotFoundError):  # What was private stays so.
                    os.chmod(partial, os.stat(path).st_mode & 0o7777)
                file.write(_encoded({"messages": self.messages}))
            os.replace(partial, path)
        finally:
            if os.path.exists(partial):
                os.remove(partial)

    @classmethod
    def load(cls: type[_AnyTalk], path: str | os.PathLike[str], client: Any, **options: Any) -> _AnyTalk:
        """Continue what was saved; options are those of a new conversation. A bare list of messages will do.

        Raises:
            ValueError: The file is not a saved conversation.
        """
        with open(path, encoding="utf-8") as file:
            saved = json.load(file)
        messages = saved.get("messages") if isinstance(saved, dict) else saved
        if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
            raise ValueError(f"{os.fspath(path)} holds no conversation: it has no list of messages")
        return cls(client, messages=messages, **options)


def _encoded(value: Any) -> bytes:
    """Readable JSON, or ASCII where it cannot be: half of a surrogate pair, which models produce, is no UTF-8."""
    try:
        return json.dumps(value, ensure_ascii=False, indent=1).encode()
    except UnicodeEncodeError:
        return json.dumps(value, indent=1).encode()


class Conversation(_Talk):
    """A list of messages that every request sends whole. For one thread at a time.

    `messages` is a plain list of dicts, as the server gets them; change it as you like between turns. A
    turn is added when it is complete: after an error or a cancel the list is as it was before. Arguments are
    the client, `system` (instructions, as the first message), `tools` (functions that the model may call),
    `messages` (those before), and options of every turn: those of Client.run and Client.stream.
    """

    def say(self, prompt: Prompt, /, **options: Any) -> Reply[Any]:
        """The whole answer. Options count for this turn and go before those of the conversation."""
        return self.stream(prompt, **options).finish()

    def stream(self, prompt: Prompt, /, **options: Any) -> ToolRun:
        """The answer as it comes; the turn is added with its last event."""
        return self._turn(ToolRun, prompt, options)


class AsyncConversation(_Talk):
    """The same for an AsyncClient."""

    async def say(self, prompt: Prompt, /, **options: Any) -> Reply[Any]:
        """The whole answer; see Conversation.say."""
        return await self.stream(prompt, **options).finish()

    def stream(self, prompt: Prompt, /, **options: Any) -> AsyncToolRun:
        """The answer as it comes; see Conversation.stream."""
        return self._turn(AsyncToolRun, prompt, options)
