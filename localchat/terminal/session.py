"""The conversation of the terminal program: its messages, its options, and sending one message."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from ..agent.tool_run import ToolRun, start_run
from ..client import Client
from ..events import Reply
from ..transport.keywords import CLIENT_NAMES, StreamKeywords
from . import saved
from .approval import Approval, load_tool
from .ask import finish_code, report
from .printing import Printer
from .question import read_schema, user_message

Messages = list[dict[str, Any]]


class Session:
    """The messages of a conversation, and the options of its requests.

    Args:
        client: The client that sends the requests.
        arguments: The parsed command line.

    Raises:
        ValueError: A tool, the schema, an option or the conversation to continue is not valid.
        OSError: A file cannot be read.
    """

    def __init__(self, client: Client, arguments: argparse.Namespace) -> None:
        self.client = client
        self.model: str | None = arguments.model
        self._arguments = arguments
        self._options: dict[str, Any] = _as_options(dict(arguments.option))
        self._schema = read_schema(arguments.schema) if arguments.schema else None
        if self._schema is not None:
            self._options["response_format"] = self._schema
        self._tools = [load_tool(name) for name in arguments.tool]
        self._approval = Approval(arguments.yes)
        self.messages: Messages = saved.load_last() if arguments.continues else []
        system = self._options.pop("system", None)
        self.set_system(arguments.system if arguments.system is not None else system)

    @property
    def system(self) -> str | None:
        """The content of the system message, None if there is none."""
        has_system = bool(self.messages) and self.messages[0].get("role") == "system"
        return self.messages[0].get("content") if has_system else None

    def set_system(self, text: str | None) -> None:
        """Replace or add the system message. None leaves the conversation unchanged."""
        if text is not None:
            self.messages[: int(self.system is not None)] = [{"role": "system", "content": text}]

    def clear(self) -> None:
        """Remove all messages except the system message."""
        self.messages = self.messages[: int(self.system is not None)]

    def remove_last_prompt(self) -> dict[str, Any] | None:
        """Remove the last user message and all messages after it. Return the message, None if there is none."""
        for i in reversed(range(len(self.messages))):
            if self.messages[i].get("role") == "user":
                message = self.messages[i]
                del self.messages[i:]
                return message
        return None

    def ask(self, text: str, images: list[str]) -> int:
        """Send a user message with this text and these images; see `send`."""
        return self.send(user_message(text, images))

    def send(self, message: dict[str, Any]) -> int:
        """Send a user message, print the response, add both to the messages, and return the exit code.

        Raises:
            LocalChatError: The request failed or the response is incomplete. The messages are unchanged.
        """
        messages = [*self.messages, message]
        printer = self._printer()
        try:
            with self._start(messages) as stream:
                for event in stream:
                    printer.add(event)
            reply: Reply[Any] = stream.reply
            printer.end(reply)
        finally:
            printer.close()
        self.messages = list(stream.messages) if isinstance(stream, ToolRun) else [*messages, reply.message]
        if not self._arguments.no_save:
            saved.save_last(self.messages)
        if self._arguments.usage:
            report(printer.usage(reply))
        return finish_code(reply.finish_reason)

    def _start(self, messages: Messages) -> Any:
        """Start the request. With tools, the stream includes the rounds of tool calls."""
        options = {**self._options, **({"model": self.model} if self.model else {})}
        if not self._tools:
            return self.client.stream(messages, **options)
        return start_run(ToolRun, self.client, messages, self._tools, on_call=self._approval, **options)

    def _printer(self) -> Printer:
        arguments = self._arguments
        return Printer(
            hold=arguments.no_stream or self._schema is not None,
            as_json=arguments.json,
            markdown=sys.stdout.isatty() and not arguments.no_markdown,
            show_reasoning=arguments.show_reasoning,
            runs_tools=bool(self._tools),
        )


def _as_options(fields: dict[str, Any]) -> dict[str, Any]:
    """The options of `stream` for fields of a request. A field without an option of its own goes into `extra_body`.

    Raises:
        ValueError: A field is an argument of the client, such as the API key, and must not be sent in the body.
    """
    known = {*StreamKeywords.__annotations__, "response_format"}
    options = {name: value for name, value in fields.items() if name in known}
    others = {name: value for name, value in fields.items() if name not in options}
    for name in others:
        if name in CLIENT_NAMES:
            raise ValueError(f"{name} is no field of a request: --help lists the options for the server")
    return {**options, "extra_body": {**(options.get("extra_body") or {}), **others}} if others else options
