"""The interactive chat: read prompts and commands from the terminal until Ctrl-D."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ..client import Client
from ..errors import LocalChatError, StatusError
from . import saved
from .ask import OK, report
from .commands import Quit, execute
from .session import Session

PROMPT, MORE = "> ", "... "
QUOTES = '"""'
_HISTORY_LINES = 1000


def chat(session: Session, images: list[str]) -> int:
    """Run the chat and return the exit code. `images` are sent with the first prompt.

    Raises:
        LocalChatError: The list of models cannot be requested, for example because the server is down.
    """
    report(f"{_greeting(session.client, session.model)}. /help lists the commands, Ctrl-D ends.")
    with _history():
        while True:
            line = ""
            try:
                line = read_message()
                if line.startswith("/"):
                    execute(session, line.rstrip())
                elif line.strip():
                    session.ask(line, images)
                    images = []
            except (EOFError, Quit):
                report("")
                return OK
            except KeyboardInterrupt:
                stopped = "stopped; an incomplete answer is not kept" if line else "Ctrl-D ends the chat"
                report(f"\n({stopped})")
            except (LocalChatError, OSError, ValueError, TypeError) as error:
                report(f"localchat: {error}")


def read_message() -> str:
    '''Read one message: a line, lines that end with a backslash and the line after them, or lines between """.

    Raises:
        EOFError: The user pressed Ctrl-D.
    '''
    line = input(PROMPT)
    if line.lstrip().startswith(QUOTES):
        lines = [line.lstrip()[len(QUOTES) :]]
        while not lines[-1].rstrip().endswith(QUOTES):
            lines.append(input(MORE))
        lines[-1] = lines[-1].rstrip()[: -len(QUOTES)]
        return "\n".join(lines).strip("\n")
    lines = [line]
    while lines[-1].endswith("\\"):
        lines[-1] = lines[-1][:-1]
        lines.append(input(MORE))
    return "\n".join(lines)


def _greeting(client: Client, model: str | None) -> str:
    """The name of the model and the URL of the server, without the query."""
    try:
        names = [str(name) for name in client.models()]
    except StatusError:  # Some servers have no list of models.
        names = []
    chosen = model or (names[0] if len(names) == 1 else "the server's model")
    if model is None and len(names) > 1:
        chosen = f"{len(names)} models (/model NAME selects one)"
    return f"{chosen} at {client.base_url.partition('?')[0]}"


@contextlib.contextmanager
def _history() -> Iterator[None]:
    """Load the history of typed lines for the cursor keys, and save it at the end, if Python has readline."""
    try:
        import readline
    except ImportError:  # Python on Windows and some other builds have no readline.
        yield
        return
    path = saved.state_folder() / "history"
    with contextlib.suppress(OSError):
        readline.read_history_file(path)
    readline.set_history_length(_HISTORY_LINES)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.touch(mode=0o600)
            readline.write_history_file(path)
