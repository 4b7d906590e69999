"""The commands of the chat, such as /help and /model."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ..agent.conversation import read_messages, write_messages
from .ask import report
from .session import Session


class Quit(Exception):
    """The user ends the chat."""


class Command(NamedTuple):
    # Called with the session and the text after the name of the command.
    run: Callable[[Session, str], object]
    # The arguments and the description that /help shows.
    arguments: str
    about: str


def execute(session: Session, line: str) -> None:
    """Run the command of a line that begins with a slash.

    Raises:
        Quit: The command is /quit.
        LocalChatError, OSError, ValueError: The command failed.
    """
    name, _, text = line[1:].partition(" ")
    command = COMMANDS.get(name)
    if command is None:
        nearest = difflib.get_close_matches(name, COMMANDS, 1)
        hint = f"did you mean /{nearest[0]}?" if nearest else "/help lists the commands."
        raise ValueError(f"there is no command /{name}: {hint} To send this text as a prompt, begin it with a space.")
    command.run(session, text.strip())


def _model(session: Session, name: str) -> None:
    if name:
        session.model = name
    listed = list(map(str, session.client.models()))
    for model in listed:
        report(f"{'*' if model == session.model else ' '} {model}")
    if name and name not in listed:
        report(f"* {name} (the server does not list it)")


def _system(session: Session, text: str) -> None:
    session.set_system(text or None)
    report(session.system or "no instructions; /system TEXT sets them")


def _save(session: Session, name: str) -> None:
    path = _path(name)
    write_messages(path, session.messages, private=True)
    report(f"saved {len(session.messages)} messages in {path}")


def _load(session: Session, name: str) -> None:
    path = _path(name)
    session.messages = read_messages(path)
    report(f"loaded {len(session.messages)} messages from {path}")


def _path(name: str) -> Path:
    if not name:
        raise ValueError("give the name of a file: /save FILE or /load FILE")
    return Path(name).expanduser()


def _retry(session: Session, text: str) -> None:
    before = list(session.messages)
    message = session.remove_last_prompt()
    if message is None:
        raise ValueError("there is no question to ask again")
    try:
        session.send(message)
    except BaseException:
        session.messages = before
        raise


def _clear(session: Session, text: str) -> None:
    session.clear()
    report("the conversation is empty" + (", the instructions are kept" if session.system else ""))


def _help(session: Session, text: str) -> None:
    names = {f"/{name} {command.arguments}".rstrip(): command.about for name, command in COMMANDS.items()}
    width = max(map(len, names))
    report("\n".join(f"{name:{width}}  {about}" for name, about in names.items()))
    report('A line that ends with \\ continues on the next line; """ begins and ends a text of several lines.')
    report("Ctrl-C ends the answer, Ctrl-D the chat.")


def _quit(session: Session, text: str) -> None:
    raise Quit


COMMANDS = {
    "help": Command(_help, "", "show this list"),
    "model": Command(_model, "[NAME]", "list the models of the server, or use another"),
    "system": Command(_system, "[TEXT]", "show the instructions (the system message), or replace them"),
    "retry": Command(_retry, "", "ask the last question again and replace its answer"),
    "clear": Command(_clear, "", "remove all messages of the conversation"),
    "save": Command(_save, "FILE", "write the conversation to a file"),
    "load": Command(_load, "FILE", "continue the conversation in a file"),
    "quit": Command(_quit, "", "end the chat, like Ctrl-D"),
}
