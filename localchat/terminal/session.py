"""The conversation of the terminal program: its options and its files. No commands."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..agent.conversation import Conversation, read_messages, write_messages
from ..client import Client
from ..request import media
from ..request.completion import n_system
from ..request.options import ClientOptions, MessageOptions
from .ask import finish_code, read_prompt, report, show
from .printer import DetailedPrinter, waiting

Json = dict[str, Any]


class Session(Conversation):
    """A conversation whose responses are printed, with the options of the parsed command line."""

    def __init__(self, client: Client, arguments: Namespace) -> None:
        self.client = client
        self.model: str | None = arguments.model
        # The images and sounds that the first question has.
        self._images, self._sounds = arguments.image, arguments.audio
        self._arguments = arguments
        # A response that was cut is printed, and the exit code says that.
        options = {"allow_truncated": True, **_as_options(dict(arguments.option))}
        if arguments.schema:
            options["response_format"] = _read_schema(arguments.schema)
        # Whether the conversation and the typed lines are saved. A single request of a script replaces neither.
        self.saves = not arguments.no_save and (arguments.continues or sys.stdout.isatty())
        self.unanswered: list[Json] = []  # The messages of a question that got no answer.
        messages = _load_last() if arguments.continues else []
        if arguments.system is not None:
            options["system"] = arguments.system
        super().__init__(client, messages=messages, **options)

    @property
    def system(self) -> str | None:
        """The text of the system message, content of another type as JSON; None if there is none."""
        content = self.messages[0].get("content") if n_system(self.messages) else None
        return content if content is None or isinstance(content, str) else json.dumps(content, ensure_ascii=False)

    def clear(self) -> None:
        self.messages, self.unanswered = self.messages[: n_system(self.messages)], []

    def ask(self, text: str) -> int:
        """Send a user message with this text; see `_send`."""
        images = [image if media.is_url(image) else Path(image) for image in self._images]
        self.unanswered = media.attach(text, images, map(Path, self._sounds))
        return self._send(self.unanswered)

    def retry(self) -> int:
        """Send the last user message again, without the messages after it; see `_send`."""
        if self.unanswered:
            return self._send(self.unanswered)
        users = [i for i, message in enumerate(self.messages) if message.get("role") == "user"]
        if not users:
            raise ValueError("there is no question to ask again")
        kept, last = self.messages, users[-1]
        try:
            self.messages = kept[:last]
            return self._send(kept[last : last + 1])
        except BaseException:
            self.messages = kept
            raise

    def _send(self, prompt: list[Json]) -> int:
        """Send messages, print the response, and return the exit code. An error leaves the conversation unchanged."""
        arguments = self._arguments
        with waiting(self.client) as notice:
            run = self.stream(prompt, **({"model": self.model} if self.model else {}))
            printer = DetailedPrinter(notice, arguments)
            reply = show(run, printer)
        self.unanswered = self._images = self._sounds = []
        if self.saves:
            with contextlib.suppress(OSError):  # If the file cannot be written, for example in a container.
                path = state_file("last.json")
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                write_messages(path, self.messages)
        if arguments.usage:
            report(printer.usage(reply))
        return finish_code(reply.finish_reason)


def _as_options(fields: Json) -> Json:
    """The options of a turn for fields of a request, of which unknown ones go into `extra_body`."""
    known = {*MessageOptions.__annotations__, "response_format"}
    options = {name: value for name, value in fields.items() if name in known}
    others = {name: value for name, value in fields.items() if name not in options}
    for name in others:
        if name in ClientOptions.__annotations__:
            raise ValueError(f"{name} is no field of a request: --help lists the options for the server")
    return {**options, "extra_body": {**(options.get("extra_body") or {}), **others}} if others else options


def prompt_text(words: Sequence[str], files: Sequence[str]) -> str:
    """The text of the prompt: the files, the piped input and the words, each only if it is not empty."""
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


def state_file(name: str) -> Path:
    """A file in $XDG_STATE_HOME/localchat or ~/.local/state/localchat; on Windows, in %LOCALAPPDATA%."""
    is_windows = sys.platform == "win32"
    variable, default = ("LOCALAPPDATA", "AppData/Local") if is_windows else ("XDG_STATE_HOME", ".local/state")
    try:
        return Path(os.environ.get(variable) or Path.home() / default) / "localchat" / name
    except RuntimeError:
        raise FileNotFoundError(f"this user has no home folder: set {variable}") from None


def _load_last() -> list[Json]:
    path = state_file("last.json")
    try:
        return read_messages(path)
    except FileNotFoundError:
        raise ValueError(f"there is no last conversation to continue: no file {path}") from None
