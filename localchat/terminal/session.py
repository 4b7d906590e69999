"""The conversation of the terminal program: its messages, options and files, and sending one message. No commands."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..agent.conversation import n_system, read_messages, write_messages
from ..client import Client
from ..events import Reply
from ..extras import media
from ..transport.keywords import CLIENT_NAMES, StreamKeywords
from .arguments import AudioFile
from .ask import finish_code, read_prompt, report
from .printing import Printer, waiting

Json = dict[str, Any]


class Session:
    """The messages of a conversation, and the options of its requests, from the parsed command line.

    Raises ValueError if the schema, an option or the conversation to continue is not valid.
    """

    def __init__(self, client: Client, arguments: argparse.Namespace) -> None:
        self.client = client
        self.model: str | None = arguments.model
        self._arguments = arguments
        self._options = _as_options(dict(arguments.option))
        if arguments.schema:
            self._options["response_format"] = _read_schema(arguments.schema)
        # Whether this program writes files: the last conversation, and the history of typed lines. A single request of
        # a script, whose output is not a terminal, does not replace the conversation that `--continue` continues.
        self.saves = not arguments.no_save and (arguments.continues or sys.stdout.isatty())
        # The messages of a question that got no answer.
        self.unanswered: list[Json] = []
        self.messages: list[Json] = _load_last() if arguments.continues else []
        system = self._options.pop("system", None)
        self.set_system(arguments.system if arguments.system is not None else system)

    @property
    def system(self) -> str | None:
        """The text of the system message, content of another type as JSON; None if there is none."""
        content = self.messages[0].get("content") if n_system(self.messages) else None
        return content if content is None or isinstance(content, str) else json.dumps(content, ensure_ascii=False)

    def set_system(self, text: str | None) -> None:
        """Replace or add the system message. None leaves the conversation unchanged."""
        if text is not None:
            self.messages[: n_system(self.messages)] = [{"role": "system", "content": text}]

    def clear(self) -> None:
        """Remove all messages except the system message."""
        self.messages, self.unanswered = self.messages[: n_system(self.messages)], []

    def ask(self, text: str, images: Sequence[str] = ()) -> int:
        """Send a user message with this text and these images, each the path of a file or a URL, and sounds
        (AudioFile); see `_send`."""
        sounds = [Path(image) for image in images if isinstance(image, AudioFile)]
        sources = [
            image if media.is_url(image) else Path(image) for image in images if not isinstance(image, AudioFile)
        ]
        self.unanswered = media.attach(text, sources, sounds)
        return self._send([*self.messages, *self.unanswered])

    def retry(self) -> int:
        """Send the last user message again, without the messages after it; see `_send`."""
        if self.unanswered:
            return self._send([*self.messages, *self.unanswered])
        users = [i for i, message in enumerate(self.messages) if message.get("role") == "user"]
        if not users:
            raise ValueError("there is no question to ask again")
        return self._send(self.messages[: users[-1] + 1])

    def _send(self, messages: list[Json]) -> int:
        """Send these messages, print the response, keep both as the conversation, and return the exit code.

        After an error, which is raised, the conversation is unchanged.
        """
        arguments = self._arguments
        printer = Printer(
            hold=arguments.no_stream or bool(arguments.schema),
            as_json=arguments.json,
            show_reasoning=arguments.show_reasoning,
        )
        try:
            options = {**self._options, **({"model": self.model} if self.model else {})}
            with waiting(self.client) as notice, self.client.stream(messages, **options) as stream:
                for event in stream:
                    printer.add(event)
                    if event.type.endswith("_delta") and (arguments.show_reasoning or event.type != "reasoning_delta"):
                        notice.cancel()
            reply: Reply[Any] = stream.reply
            printer.end(reply)
        finally:
            printer.close()
        self.messages, self.unanswered = [*messages, reply.message], []
        if self.saves:
            _save_last(self.messages)
        if arguments.usage:
            report(printer.usage(reply))
        return finish_code(reply.finish_reason)


def _as_options(fields: Json) -> Json:
    """The options of `stream` for fields of a request. A field without an option of its own goes into `extra_body`.

    Raises ValueError for an argument of the client, such as the API key, which must not be sent in the body.
    """
    known = {*StreamKeywords.__annotations__, "response_format"}
    options = {name: value for name, value in fields.items() if name in known}
    others = {name: value for name, value in fields.items() if name not in options}
    for name in others:
        if name in CLIENT_NAMES:
            raise ValueError(f"{name} is no field of a request: --help lists the options for the server")
    return {**options, "extra_body": {**(options.get("extra_body") or {}), **others}} if others else options


def prompt_text(words: Sequence[str], files: Sequence[str]) -> str:
    """The text of the prompt: the files, the piped input and the words, each only if it is not empty.

    Raises ValueError if the input is not UTF-8.
    """
    return "\n\n".join(part for part in (*map(_file_text, files), read_prompt(words)) if part.strip())


def _file_text(path: str) -> str:
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text; for an image use --image: {error}") from error
    return f"{path}:\n\n{text.rstrip()}"


def _read_schema(path: str) -> Json:
    try:
        schema = json.loads(Path(path).read_text(encoding="utf-8-sig"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(schema, dict):
        raise ValueError(f"{path} is not a JSON Schema: it must be an object")
    return schema


# Files that only their owner can read


def state_file(name: str) -> Path:
    """A file in $XDG_STATE_HOME/localchat or ~/.local/state/localchat; on Windows, in %LOCALAPPDATA%.

    Raises OSError if the user has no home folder.
    """
    is_windows = sys.platform == "win32"
    variable, default = ("LOCALAPPDATA", "AppData/Local") if is_windows else ("XDG_STATE_HOME", ".local/state")
    try:
        return Path(os.environ.get(variable) or Path.home() / default) / "localchat" / name
    except RuntimeError:
        raise FileNotFoundError(f"this user has no home folder: set {variable}") from None


def _save_last(messages: list[Json]) -> None:
    """Save a conversation for --continue. If the file cannot be written, for example in a container, do nothing."""
    with contextlib.suppress(OSError):
        path = state_file("last.json")
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_messages(path, messages)


def _load_last() -> list[Json]:
    path = state_file("last.json")
    try:
        return read_messages(path)
    except FileNotFoundError:
        raise ValueError(f"there is no last conversation to continue: no file {path}") from None
