"""The conversation of the command line: its messages, its options, and the file of the last conversation."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..client import Client
from ..files import read_messages, write_messages
from ..reply.truncation import kept_message
from ..request.options import ClientOptions, MessageOptions
from ..request.prompts import as_messages, set_system, split_system
from .console import read_input
from .printer import Printer, finish_code, notice_of_waiting

if TYPE_CHECKING:
    from argparse import Namespace

    from .toolset import Toolset


class ChatSession:
    """A conversation whose responses are printed as the parsed command line says."""

    def __init__(self, client: Client, arguments: Namespace, toolset: Toolset | None = None) -> None:
        self.client = client
        self._toolset = toolset  # The tools that the model may call; None without them.
        self.messages: list[dict[str, Any]] = _load_last() if arguments.continues else []
        if arguments.system is not None:
            self.set_system(arguments.system)
        self.unanswered: list[dict[str, Any]] = []  # The messages of a question that got no answer.
        self.n_answers = 0  # The number of answers that were added to the messages.
        # The images and sounds for the next question. They are sent once, so later ones have none.
        self._images: list[str] = arguments.image
        self._sounds: list[str] = arguments.audio
        # Whether the conversation and the typed lines are saved. A single request of a script replaces neither.
        self.saves = not arguments.no_save and (arguments.continues or sys.stdout.isatty())
        self._arguments = arguments
        self._options = _as_options(dict(arguments.option))
        if arguments.schema:
            self._options["response_format"] = _read_schema(arguments.schema)
        client.stream([], **self._options)  # Raises for wrong options, and sends nothing.
        # The name of the model in the requests; None: the only one of the server.
        self.model: str | None = arguments.model or self._options.pop("model", None) or client._settings.model

    @property
    def system(self) -> str | None:
        """The text of the system message, content of another type as JSON; None if there is none."""
        content = next((message.get("content") for message in split_system(self.messages)[0]), None)
        return content if content is None or isinstance(content, str) else json.dumps(content, ensure_ascii=False)

    def set_system(self, text: str) -> None:
        set_system(self.messages, text)

    def clear(self) -> None:
        """Remove all messages but the system message."""
        self.messages, self.unanswered = split_system(self.messages)[0], []

    def load(self, path: Path) -> None:
        """Replace the messages by those of a file."""
        self.messages, self.unanswered = read_messages(path), []

    def save(self, path: Path) -> None:
        write_messages(path, self.messages)

    def ask(self, text: str) -> int:
        """Send a user message with this text; see `_send`."""
        self.unanswered = self._with_media(text) if self._images or self._sounds else as_messages(text)
        return self._send(self.messages, self.unanswered)

    def retry(self) -> int:
        """Send the last user message again, in place of the messages after it; see `_send`."""
        if self.unanswered:
            return self._send(self.messages, self.unanswered)
        users = [i for i, message in enumerate(self.messages) if message.get("role") == "user"]
        if not users:
            raise ValueError("there is no question to ask again")
        return self._send(self.messages[: users[-1]], self.messages[users[-1] : users[-1] + 1])

    def _with_media(self, text: str) -> list[dict[str, Any]]:
        from ..request import media

        images = [image if media.is_url(image) else Path(image) for image in self._images]
        return media.attach(text, images, map(Path, self._sounds))

    def _send(self, before: list[dict[str, Any]], prompt: list[dict[str, Any]]) -> int:
        """Send messages, print the response, and return the exit code. An error leaves the conversation unchanged."""
        arguments = self._arguments
        options = {**self._options, **({"model": self.model} if self.model else {})}
        with notice_of_waiting(self.client) as notice:
            printer = Printer(
                notice,
                as_json=arguments.json,
                at_end=arguments.no_stream,
                has_value=arguments.schema is not None,
                shows_reasoning=arguments.show_reasoning,
            )
            if self._toolset is None:
                reply = printer.show(self.client.stream([*before, *prompt], **options))
                new_messages = [kept_message(reply)]
            else:
                tools, approve = self._toolset.tools(), self._toolset.approve
                # A cut answer is shown and kept, as without tools.
                options["allow_truncated"] = True
                run = self.client.run_stream([*before, *prompt], tools, on_call=approve, **options)
                reply = printer.show_run(run, self._toolset.show_result)
                new_messages = run.new_messages
        # Without what options add to the prompt of each request, such as the system message of `-o system=TEXT`.
        self.messages = [*before, *prompt, *new_messages]
        self.n_answers += 1
        self.unanswered = []
        self._images, self._sounds = [], []
        self._save_last()
        if arguments.usage:
            printer.report_usage()
        return finish_code(reply.finish_reason)

    def _save_last(self) -> None:
        """Save the conversation for `--continue`, unless the file cannot be written, for example in a container."""
        if self.saves:
            with contextlib.suppress(OSError):
                path = state_file("last.json")
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self.save(path)


def _as_options(fields: dict[str, Any]) -> dict[str, Any]:
    """The options of a call for fields of a request, of which unknown ones go into `extra_body`.

    The options are those of MessageOptions and `response_format`. Other options of runs are fields: `-o max_rounds=1`
    sends a field with this name.
    """
    known = {*MessageOptions.__annotations__, "response_format"}
    options = {name: value for name, value in fields.items() if name in known}
    others = {name: value for name, value in fields.items() if name not in options}
    for name in others:
        if name in ClientOptions.__annotations__:
            raise ValueError(f"{name} is no field of a request: --help lists the options for the server")
    extra_body = options.get("extra_body") or {}
    if not others or not isinstance(extra_body, dict):  # A wrong `extra_body` is an error of the request.
        return options
    return {**options, "extra_body": {**extra_body, **others}}


def prompt_text(words: Sequence[str], files: Sequence[str]) -> str:
    """The text of the prompt: the files, the piped input and the words, each only if it is not empty."""
    return "\n\n".join(part for part in (*map(_file_text, files), read_input(words)) if part.strip())


def _file_text(path: str) -> str:
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text; for an image use --image: {error}") from error
    return f"{path}:\n\n{text.rstrip()}"


def _read_schema(path: str) -> dict[str, Any]:
    try:
        schema = json.loads(Path(path).read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
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


def _load_last() -> list[dict[str, Any]]:
    path = state_file("last.json")
    try:
        return read_messages(path)
    except FileNotFoundError:
        raise ValueError(f"there is no last conversation to continue: no file {path}") from None
