"""The interactive chat: reads prompts, and reads and runs commands such as /help, until Ctrl-D."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from ..agent.conversation import read_messages, write_messages
from ..client import Client
from ..errors import LocalChatError, ProtocolError, StatusError
from .ask import OK, report
from .printer import waiting
from .session import Session, state_file

_PROMPT, _MORE = "> ", "... "
_QUOTES = '"""'
_HISTORY_LINES = 1000


def chat(session: Session) -> int:
    """Run the chat and return the exit code."""
    report(f"{greeting(session.client, session.model)}. /help lists the commands, Ctrl-D ends.")
    with _line_editing(session.saves):
        while True:
            line = ""
            try:
                line = _read_message()
                if line.startswith("/"):
                    _execute(session, line.rstrip())
                elif line.strip():
                    session.ask(line)
            except EOFError:
                report("")
                return OK
            except KeyboardInterrupt:
                stopped = "stopped; an incomplete answer is not kept" if line else "Ctrl-D ends the chat"
                report(f"\n({stopped})")
            except (LocalChatError, OSError, ValueError, TypeError) as error:
                report(f"localchat: {error}")


def _read_message() -> str:
    '''Read a message: a line, with the next one if it ends with a backslash, or lines between """.'''
    lines = [input(_PROMPT)]
    if lines[0].lstrip().startswith(_QUOTES):
        lines[0] = lines[0].lstrip()[len(_QUOTES) :]
        while not lines[-1].rstrip().endswith(_QUOTES):
            lines.append(input(_MORE))
        lines[-1] = lines[-1].rstrip()[: -len(_QUOTES)]
        return "\n".join(lines).strip("\n")
    while lines[-1].endswith("\\"):
        lines[-1] = lines[-1][:-1]
        lines.append(input(_MORE))
    return "\n".join(lines)


def greeting(client: Client, model: str | None) -> str:
    """The name of the model and the URL of the server, without the query."""
    names: list[str] = []
    with contextlib.suppress(ProtocolError, StatusError), waiting(client):  # Some servers have no list of models.
        names = list(map(str, client.models()))
    chosen = model or (names[0] if len(names) == 1 else "the server's model")
    if model is None and len(names) > 1:
        chosen = f"{len(names)} models (/model NAME selects one)"
    return f"{chosen} at {client.base_url.partition('?')[0]}"


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
    try:
        yield
    finally:
        if saves and path is not None:
            with contextlib.suppress(OSError):
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                path.touch(mode=0o600)
                readline.write_history_file(path)


def _execute(session: Session, line: str) -> None:
    """Run the command of a line that begins with a slash. Raises EOFError for /quit."""
    name, _, text = line[1:].partition(" ")
    if name not in _COMMANDS:
        hint = "/help lists the commands. To send this text as a prompt, begin it with a space."
        raise ValueError(f"there is no command /{name}: {hint}")
    _COMMANDS[name][0](session, text.strip())


def _model(session: Session, name: str) -> None:
    if name:
        session.model = name
    with waiting(session.client):
        listed = list(map(str, session.client.models()))
    for model in listed:
        report(f"{'*' if model == session.model else ' '} {model}")
    if name and name not in listed:
        report(f"* {name} (the server does not list it)")


def _system(session: Session, text: str) -> None:
    session.set_system(text or None)
    report(session.system or "no instructions; /system TEXT sets them")


def _clear(session: Session, text: str) -> None:
    session.clear()
    report("the conversation is empty" + (", the instructions are kept" if session.system else ""))


def _save(session: Session, name: str) -> None:
    path = _path(name)
    write_messages(path, session.messages)
    report(f"saved {len(session.messages)} messages in {path}")


def _load(session: Session, name: str) -> None:
    path = _path(name)
    session.messages, session.unanswered = read_messages(path), []
    report(f"loaded {len(session.messages)} messages from {path}")


def _path(name: str) -> Path:
    if not name:
        raise ValueError("give the name of a file: /save FILE or /load FILE")
    return Path(os.path.expanduser(name))


def _help(session: Session, text: str) -> None:
    names = {f"/{name} {arguments}".rstrip(): about for name, (_, arguments, about) in _COMMANDS.items()}
    width = max(map(len, names))
    report("\n".join(f"{name:{width}}  {about}" for name, about in names.items()))
    report('A line that ends with \\ continues on the next line; """ begins and ends a text of several lines.')
    report("Ctrl-C ends the answer, Ctrl-D the chat.")


def _quit(session: Session, text: str) -> None:
    raise EOFError


# Each command: its function, which gets the session and the text after the name; the arguments and the use, for /help.
_COMMANDS: dict[str, tuple[Callable[[Session, str], object], str, str]] = {
    "help": (_help, "", "show this list"),
    "model": (_model, "[NAME]", "list the models of the server, or use another"),
    "system": (_system, "[TEXT]", "show the instructions (the system message), or replace them"),
    "retry": (lambda session, text: session.retry(), "", "ask the last question again, replace its answer"),
    "clear": (_clear, "", "remove all messages of the conversation"),
    "save": (_save, "FILE", "write the conversation to a file"),
    "load": (_load, "FILE", "continue the conversation in a file"),
    "quit": (_quit, "", "end the chat, like Ctrl-D"),
}
