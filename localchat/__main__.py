"""`python -m localchat`: print the response to one prompt, or start a chat. It is also the program of the one file."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from . import __version__
from .client import Client
from .terminal.console import OK, USAGE, printable, report, run_command, run_program
from .terminal.printer import notice_of_waiting
from .terminal.session import Session, prompt_text
from .transport.timeouts import DEFAULT_TIMEOUT

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

_DESCRIPTION = """Send a prompt to a chat server and print the answer. Piped input and files are put before the text.
Without text, on a terminal, start a chat; /help lists its commands."""

_EPILOG = """exit codes: 0 for a complete answer, 1 for an error, 2 for wrong usage, 3 for an answer that was cut,
130 for Ctrl-C"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code. The arguments are by default those of this process."""
    parser = make_parser()
    arguments = parser.parse_args(argv)
    return run_command(lambda: _run(parser, arguments))


def program() -> None:
    """Run the command as the program of this process, which it ends."""
    run_program(main)


def _run(parser: ArgumentParser, arguments: Namespace) -> int:
    try:
        client = Client(
            arguments.base_url,
            arguments.api_key,
            arguments.model,
            timeout=arguments.timeout,
            max_retries=arguments.retries,
            on_retry=lambda n, delay_s, error: report(f"localchat: {error}; try {n + 1} in {delay_s:.1f} s"),
        )
    except ValueError as error:
        parser.error(str(error))
    with client:
        if arguments.models:
            with notice_of_waiting(client):
                names = "\n".join(client.models())
            print(printable(names, sys.stdout))
            return OK
        session = Session(client, arguments)
        text = prompt_text(arguments.text, arguments.file)
        if text.strip():
            return session.ask(text)
        is_terminal = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
        if arguments.json or arguments.schema or not is_terminal:
            parser.print_usage(sys.stderr)
            report("localchat: there is no prompt: give a text, or pipe one in; --help lists the options")
            return USAGE
        from .terminal.chat import chat

        return chat(session)


def make_parser() -> ArgumentParser:
    """The parser of the command line."""
    import argparse  # A program that imports the one file as a module does not need it.

    name = f"python -m {__package__}" if __package__ else None  # None: that of the file.
    usage = "%(prog)s [options] [text ...]"
    parser = argparse.ArgumentParser(prog=name, usage=usage, description=_DESCRIPTION, epilog=_EPILOG)
    parser.add_argument("text", nargs="*", help="the prompt")
    parser.add_argument("--version", action="version", version=f"localchat {__version__}")

    add = parser.add_argument_group("server").add_argument
    add("-b", "--base-url", help="default: OPENAI_BASE_URL, or http://127.0.0.1:8080/v1; unix:/path for a Unix socket")
    add("-k", "--api-key", help="default: OPENAI_API_KEY. Other users can see this option in the process list")
    add("-m", "--model", help="default: LOCALCHAT_MODEL, or the only model of the server")
    add("--models", action="store_true", help="list the server's models and stop")
    about = "the limit of a whole answer, and of each wait within it"
    add("--timeout", type=float, default=DEFAULT_TIMEOUT, metavar="SECONDS", help=about)
    add("--retries", type=int, default=2, metavar="N", help="retries of a failed request (2)")

    add = parser.add_argument_group("question").add_argument
    add("-s", "--system", metavar="TEXT", help="the system message")
    about = "continue the last conversation of this user"
    add("-c", "--continue", dest="continues", action="store_true", help=about)
    add("--file", action="append", default=[], metavar="FILE", help="a text file to put before the text")
    add("--image", action="append", default=[], metavar="FILE", help="an image, by file or URL")
    add("--audio", action="append", default=[], metavar="FILE", help="a sound, by file")
    add("--schema", metavar="FILE", help="a JSON Schema; only a valid answer is printed")
    about = "a field of the request, as JSON or text: -o temperature=0.2 -o stop=END"
    add("-o", "--option", action="append", default=[], type=_option, metavar="KEY=VALUE", help=about)

    add = parser.add_argument_group("output").add_argument
    add("--json", action="store_true", help="print one line of JSON: text, finish_reason, usage, ...")
    add("--no-stream", action="store_true", help="print the answer only when it is complete")
    add("--no-save", action="store_true", help="do not save this conversation for --continue")
    add("--show-reasoning", action="store_true", help="print the reasoning of the model to stderr")
    add("--usage", action="store_true", help="print token counts and speed to stderr")
    return parser


def _option(text: str) -> tuple[str, Any]:
    from argparse import ArgumentTypeError

    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ArgumentTypeError(f"expected KEY=VALUE, got {text!r}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


if __name__ == "__main__":
    program()
