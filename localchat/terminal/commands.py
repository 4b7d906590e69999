"""The commands of the chat, /help and the others: what each does to the session."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ..ask import report
from . import saved
from .session import Session


class Quit(Exception):
    """The user ends the chat."""


class Command(NamedTuple):
    """What a command does with the text after its name, and how /help describes it."""

    run: Callable[[Session, str], object]
    arguments: str
    about: str


def execute(session: Session, line: str) -> None:
    """Run a line that begins with a slash.

    Raises:
        Quit: It was /quit.
        LocalChatError, OSError, ValueError: The command failed.
    """
    name, _, text = line[1:].partition(" ")
    command = COMMANDS.get(name)
    if command is None:
        near = difflib.get_close_matches(name, COMMANDS, 1)
        hint = f"did you mean /{near[0]}?" if near else "/help lists the commands."
        raise ValueError(f"there is no command /{name}: {hint} To send such a text, begin it with a space.")
    command.run(session, text.strip())


def _model(session: Session, name: str) -> None:
    if name:
        session.model = name
    current = session.model
    for model in map(str, session.client.models()):
        report(f"{'*' if model == current else ' '} {model}")
    if name and name not in map(str, session.client.models()):
        report(f"* {name} (the server does not list it)")


def _system(session: Session, text: str) -> None:
    session.set_system(text or None)
    report(session.system or "no instructions; /system TEXT sets them")


def _save(session: Session, name: str) -> None:
    path = _path(name)
    saved.save(session.messages, path)
    report(f"saved {len(session.messages)} messages in {path}")


def _load(session: Session, name: str) -> None:
    path = _path(name)
    session.messages = saved.load(path)
    report(f"loaded {len(session.messages)} messages from {path}")


def _path(name: str) -> Path:
    if not name:
        raise ValueError("which file? /save FILE, /load FILE")
    return Path(name).expanduser()


def _retry(session: Session, text: str) -> None:
    before = list(session.messages)
    question = session.take_back()
    if question is None:
        raise ValueError("there is no question to ask again")
    try:
        session.send(question)
    except BaseException:
        session.messages = before
        raise


def _clear(session: Session, text: str) -> None:
    session.clear()
    report("all messages are forgotten" + (", the instructions are kept" if session.system else ""))


def _help(session: Session, text: str) -> None:
    names = {f"/{name} {command.arguments}".rstrip(): command.about for name, command in COMMANDS.items()}
    width = max(map(len, names))
    report("\n".join(f"{name:{width}}  {about}" for name, about in names.items()))
    report('A line that ends with \\ goes on in the next; """ begins and ends a text of several lines.')
    report("Ctrl-C ends the answer, Ctrl-D the chat.")


def _quit(session: Session, text: str) -> None:
    raise Quit


COMMANDS = {
    "help": Command(_help, "", "show this list"),
    "model": Command(_model, "[NAME]", "list the models of the server, or take another"),
    "system": Command(_system, "[TEXT]", "show the instructions that come before all, or replace them"),
    "retry": Command(_retry, "", "ask the last question again, in place of its answer"),
    "clear": Command(_clear, "", "forget the conversation"),
    "save": Command(_save, "FILE", "write the conversation to a file"),
    "load": Command(_load, "FILE", "continue the conversation of a file"),
    "quit": Command(_quit, "", "end the chat, as Ctrl-D does"),
}
