"""The conversation of the terminal program: its options, its files, and printing the responses. No commands."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from threading import Timer
from typing import Any

from ..agent.conversation import Conversation, read_messages, write_messages
from ..client import Client
from ..events import Reply, StreamEvent
from ..request import media
from ..request.completion import n_system
from ..request.options import ClientOptions, MessageOptions
from .ask import Printer, finish_code, notice, output_text, printable, read_prompt, report, show

Json = dict[str, Any]

_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"
_NOTICE_S = 10.0  # Seconds without output, after which the program reports that it waits for the server.


class Session(Conversation):
    """A conversation whose responses are printed, with the options of the parsed command line."""

    def __init__(self, client: Client, arguments: Namespace) -> None:
        self.client = client
        self.model: str | None = arguments.model
        # The images and sounds that the first question has.
        self._images, self._sounds = arguments.image, arguments.audio
        self._arguments = arguments
        options = _as_options(dict(arguments.option))
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
        code = self._send(self.unanswered)
        self._images = self._sounds = []
        return code

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
        self.unanswered = []
        if self.saves:
            _save_last(self.messages)
        if arguments.usage:
            report(printer.usage(reply))
        return finish_code(reply.finish_reason)


def waiting(client: Client) -> contextlib.AbstractContextManager[Timer]:
    """Report that the program waits for the server, if the block takes long; see `notice`."""
    return notice(f"localchat: waiting for {client.base_url.partition('?')[0]}; Ctrl-C ends this", _NOTICE_S)


class DetailedPrinter(Printer):
    """A Printer with the options of the parsed command line. The first output cancels the notice `waits`."""

    def __init__(self, waits: Timer, arguments: Namespace) -> None:
        super().__init__()
        self._waits, self._as_json, self._show_reasoning = waits, arguments.json, arguments.show_reasoning
        # Whether nothing is printed before `end`, which is not called for an incomplete or invalid response.
        self._holds = arguments.no_stream or arguments.json or arguments.schema is not None
        self._has_styles = sys.stderr.isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("NO_COLOR")
        self._held = ""
        self._in_reasoning = False  # Whether the last line of reasoning on stderr is unfinished.
        self._start_s = time.monotonic()
        self._first_s: float | None = None

    def add(self, event: StreamEvent) -> None:
        if self._first_s is None and event.type.endswith("_delta"):
            self._first_s = time.monotonic()
        if event.type.endswith("_delta") and (self._show_reasoning or event.type != "reasoning_delta"):
            self._waits.cancel()
        if event.type == "reasoning_delta" and self._show_reasoning and event.choice_index == 0:
            self._in_reasoning = True
            text = printable(event.delta, sys.stderr)
            print(f"{_DIM}{text}{_PLAIN}" if self._has_styles else text, end="", file=sys.stderr, flush=True)
        text = output_text(event)
        if self._in_reasoning and (text or event.type == "message_stop"):
            self._in_reasoning = False
            report("")  # On a terminal, the text would otherwise continue the last line of the reasoning.
        if self._holds:
            self._held += text
        else:
            self.write(text)

    def end(self, reply: Reply[Any]) -> None:
        """Print a complete response that was held back: as JSON, or its parsed value, or its text."""
        if self._as_json:
            self.write(json.dumps(_fields(reply), ensure_ascii=False))
        elif self._holds:
            self.write(self._held if reply.parsed is None else json.dumps(reply.parsed, ensure_ascii=False))

    def usage(self, reply: Reply[Any]) -> str:
        """Token counts and speed, as one line."""
        now, usage = time.monotonic(), reply.usage
        parts = [f"{usage.input_tokens} tokens in, {usage.output_tokens} out" if usage else "no token counts"]
        if self._first_s is not None:
            parts.append(f"first after {self._first_s - self._start_s:.2f} s")
            if usage and usage.output_tokens > 1 and now > self._first_s:
                parts.append(f"{(usage.output_tokens - 1) / (now - self._first_s):.1f} tokens/s")
        return ", ".join(parts)


def _fields(reply: Reply[Any]) -> dict[str, Any]:
    """The fields of a reply for `--json`, without empty ones. `text` is always there."""
    usage = reply.usage
    fields = {
        "model": reply.model,
        "text": reply.text,
        "reasoning": reply.reasoning,
        "refusal": reply.refusal,
        "parsed": reply.parsed,
        "tool_calls": [{"name": call.name, "arguments": call.arguments_json} for call in reply.tool_calls],
        "finish_reason": reply.finish_reason,
        "usage": usage and {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens},
    }
    return {name: item for name, item in fields.items() if name == "text" or item not in (None, "", [])}


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


# Files that only their owner can read


def state_file(name: str) -> Path:
    """A file in $XDG_STATE_HOME/localchat or ~/.local/state/localchat; on Windows, in %LOCALAPPDATA%."""
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
