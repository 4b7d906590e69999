"""The interactive chat: reads prompts, and reads and runs commands such as /help, until Ctrl-D."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..client import Client
from ..errors import LocalChatError, ModelNotNamed, StatusError
from ..request.models import LIST_ERRORS, NO_LIST_STATUSES, Model, choose_model
from .console import OK, read_line, report
from .printer import notice_of_waiting
from .session import ChatSession, state_file

_PROMPT, _NEXT_LINE = "> ", "... "
_QUOTES = '"""'
_HISTORY_LINES = 1000


def chat(session: ChatSession) -> int:
    """Run the chat and return the exit code."""
    report(f"{greeting(session.client, session.model)}. /help lists the commands, Ctrl-D ends.")
    with _line_editing(session.saves), _Interrupts() as interrupts:
        while True:
            line, n_answers = "", session.n_answers
            try:
                with interrupts.allowed():
                    line = _read_message()
                    if line.startswith("/") and "\n" not in line:
                        _execute(session, line.rstrip())
                    elif line.strip():
                        session.ask(line)
            except EOFError:
                report("")
                return OK
            except KeyboardInterrupt:
                if not line:
                    report("\n(Ctrl-D ends the chat)")
                elif session.n_answers == n_answers:  # Otherwise the answer was complete when Ctrl-C came.
                    report("\n(stopped)" if line.startswith("/") else "\n(stopped; an incomplete answer is not kept)")
            except (LocalChatError, OSError, ImportError, ValueError, TypeError) as error:
                report(f"localchat: {error}")


class _Interrupts:
    """Ctrl-C during a chat: it ends what the chat waits for, an input or an answer, once.

    At another moment, such as the end of an answer that is being stopped, it does nothing.
    """

    def __init__(self) -> None:
        self._may_raise = False
        self._before: Any = None
        self._unraisable_hook = sys.unraisablehook

    def __enter__(self) -> _Interrupts:
        with contextlib.suppress(ValueError):  # Only the main thread gets signals and may set their handlers.
            self._before = signal.signal(signal.SIGINT, self._handle)
        sys.unraisablehook = self._handle_unraisable
        return self

    def __exit__(self, *exception: object) -> None:
        sys.unraisablehook = self._unraisable_hook
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    @contextlib.contextmanager
    def allowed(self) -> Iterator[None]:
        """The first Ctrl-C within this block raises KeyboardInterrupt."""
        self._may_raise = True
        try:
            yield
        except SystemError as error:
            # `input` may call the handler for a second Ctrl-C while the error of the first one leaves it. Python then
            # takes this error for a fault of the handler.
            if not isinstance(error.__cause__, KeyboardInterrupt):
                raise
            raise KeyboardInterrupt from None
        finally:
            self._may_raise = False

    def _handle(self, number: int, frame: object) -> None:
        if self._may_raise:
            self._may_raise = False
            raise KeyboardInterrupt

    def _handle_unraisable(self, unraisable: Any) -> None:
        """Let the next Ctrl-C raise if one was lost.

        Python cannot raise a Ctrl-C in a finalizer, or in a callback of a weak reference such as that of a thread that
        has ended. It calls this hook, which would show a traceback.
        """
        if isinstance(unraisable.exc_value, KeyboardInterrupt):
            self._may_raise = True
        else:
            self._unraisable_hook(unraisable)


def _read_message() -> str:
    '''Read a message: what is typed or pasted before Enter, with the next line after a backslash, or between """.

    Ctrl-D ends a message of several lines.
    '''
    lines = [read_line(_PROMPT)]
    try:
        if lines[0].lstrip().startswith(_QUOTES):
            lines[0] = lines[0].lstrip()[len(_QUOTES) :]
            while not lines[-1].rstrip().endswith(_QUOTES):
                lines.append(read_line(_NEXT_LINE))
            lines[-1] = lines[-1].rstrip()[: -len(_QUOTES)]
        else:
            while lines[-1].endswith("\\"):
                lines[-1] = lines[-1][:-1]
                lines.append(read_line(_NEXT_LINE))
    except EOFError:
        report("")
    return "\n".join(lines).strip("\n")


def greeting(client: Client, model: str | None) -> str:
    """The name of the model and the URL of the server, without the query."""
    models: list[Model] = []
    with contextlib.suppress(*LIST_ERRORS), notice_of_waiting(client):  # The chat works without a list.
        models = client.models()
    chosen = model or _only_model(models) or "the server's model"
    if model is None and models and _only_model(models) is None:
        chosen = f"{len(models)} models (/model NAME selects one)"
    return f"{chosen} at {client._settings.shown_url}"


def _only_model(models: list[Model]) -> str | None:
    """The model that a request without a name uses; None if one of several has to be named, or none is listed."""
    try:
        return choose_model(models)
    except ModelNotNamed:
        return None


@contextlib.contextmanager
def _line_editing(saves: bool) -> Iterator[None]:
    """Edit lines, with the history for the cursor keys, if Python has readline. `saves`: save the history."""
    try:
        import readline
    except ImportError:  # Python on Windows and some other builds have no readline.
        yield
        return
    path: Path | None = None
    with contextlib.suppress(OSError):
        path = state_file("history")
        readline.read_history_file(path)
    readline.set_history_length(_HISTORY_LINES)
    # Several lines that are pasted are one message. Python turns this off, and libedit has no such variable.
    if "libedit" not in (readline.__doc__ or "") and os.environ.get("TERM") != "dumb":
        readline.parse_and_bind("set enable-bracketed-paste on")
    try:
        yield
    finally:
        if saves and path is not None:
            with contextlib.suppress(OSError):
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                path.touch(mode=0o600)
                readline.write_history_file(path)


def _execute(session: ChatSession, line: str) -> None:
    """Run the command of a line that begins with a slash. Raises EOFError for /quit."""
    name, _, text = line[1:].partition(" ")
    if name not in _COMMANDS:
        hint = "/help lists the commands. To send this text as a prompt, begin it with a space."
        raise ValueError(f"there is no command /{name}: {hint}")
    _COMMANDS[name][0](session, text.strip())


def _model(session: ChatSession, name: str) -> None:
    session.model = name or session.model
    try:
        with notice_of_waiting(session.client):
            listed = session.client.models()
        unlisted = "the server does not list it"
    except LIST_ERRORS as error:
        if isinstance(error, StatusError) and error.status not in NO_LIST_STATUSES:
            raise
        listed, unlisted = [], "the server has no list of models"
    chosen = session.model or _only_model(listed)
    for model in listed:
        report(f"{'*' if model == chosen else ' '} {model}")
    if session.model and session.model not in listed:
        report(f"* {session.model} ({unlisted})")
    elif not listed:
        report(f"{unlisted}; /model NAME names one")


def _system(session: ChatSession, text: str) -> None:
    if text:
        session.set_system(text)
    report(session.system or "no instructions; /system TEXT sets them")


def _clear(session: ChatSession, text: str) -> None:
    session.clear()
    report("the conversation is empty" + (", the instructions are kept" if session.system else ""))


def _save(session: ChatSession, name: str) -> None:
    path = _path(name)
    session.save(path)
    report(f"saved {len(session.messages)} messages in {path}")


def _load(session: ChatSession, name: str) -> None:
    path = _path(name)
    session.load(path)
    report(f"loaded {len(session.messages)} messages from {path}")


def _path(name: str) -> Path:
    if not name:
        raise ValueError("give the name of a file: /save FILE or /load FILE")
    return Path(os.path.expanduser(name))


def _help(session: ChatSession, text: str) -> None:
    names = {f"/{name} {arguments}".rstrip(): about for name, (_, arguments, about) in _COMMANDS.items()}
    width = max(map(len, names))
    report("\n".join(f"{name:{width}}  {about}" for name, about in names.items()))
    report('Pasted lines are one message. A line that ends with \\ continues on the next line; """ begins and ends a')
    report("text of several lines. Ctrl-C ends the answer, Ctrl-D the text or the chat.")


def _quit(session: ChatSession, text: str) -> None:
    raise EOFError


# Each command: its function, which gets the session and the text after the name; the arguments and the use, for /help.
_COMMANDS: dict[str, tuple[Callable[[ChatSession, str], object], str, str]] = {
    "help": (_help, "", "show this list"),
    "model": (_model, "[NAME]", "list the models of the server, or use another"),
    "system": (_system, "[TEXT]", "show the instructions (the system message), or replace them"),
    "retry": (lambda session, text: session.retry(), "", "ask the last question again, replace its answer"),
    "clear": (_clear, "", "remove all messages of the conversation"),
    "save": (_save, "FILE", "write the conversation to a file"),
    "load": (_load, "FILE", "continue the conversation in a file"),
    "quit": (_quit, "", "end the chat, like Ctrl-D"),
}
