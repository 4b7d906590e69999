"""`python -m localchat`: print the response to one prompt, or start a chat. It is also the program of the one file."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from . import __version__
from .client import Client
from .terminal.console import OK, USAGE, printable, report, run_command, run_program
from .terminal.printer import notice_of_waiting
from .terminal.session import ChatSession, prompt_text
from .transport.timeouts import DEFAULT_TIMEOUT

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from .terminal.toolset import Toolset

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
    toolset: Toolset | None = None
    with client, contextlib.ExitStack() as stack:
        if arguments.models:
            with notice_of_waiting(client):
                names = "\n".join(client.models())
            print(printable(names, sys.stdout))
            return OK
        if arguments.mcp or arguments.mcp_config or arguments.tools:
            from .terminal.toolset import Toolset

            if not (arguments.mcp or arguments.mcp_config):
                parser.error("--tools lists the tools of servers: name one with --mcp or --mcp-config")
            toolset = stack.enter_context(Toolset(arguments))
            if arguments.tools:
                print(toolset.description())
                return OK
        session = ChatSession(client, arguments, toolset)
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

    name = f"python -m {__package__}" if __package__ else None  # None: that of the one file.
    usage = "%(prog)s [options] [text ...]"
    parser = argparse.ArgumentParser(prog=name, usage=usage, description=_DESCRIPTION, epilog=_EPILOG)
    parser.add_argument("text", nargs="*", help="the prompt")
    parser.add_argument("--version", action="version", version=f"localchat {__version__}")

    server = parser.add_argument_group("server")
    url_help = "default: OPENAI_BASE_URL, or http://127.0.0.1:8080/v1; unix:/path for a Unix socket"
    key_help = "default: OPENAI_API_KEY. Other users can see this option in the process list"
    timeout_help = "the limit of a whole answer, and of each wait within it"
    server.add_argument("-b", "--base-url", help=url_help)
    server.add_argument("-k", "--api-key", help=key_help)
    server.add_argument("-m", "--model", help="default: LOCALCHAT_MODEL, or the only model of the server")
    server.add_argument("--models", action="store_true", help="list the server's models and stop")
    server.add_argument("--timeout", type=float, default=DEFAULT_TIMEOUT, metavar="SECONDS", help=timeout_help)
    server.add_argument("--retries", type=int, default=2, metavar="N", help="retries of a failed request (2)")

    question = parser.add_argument_group("question")
    continue_help = "continue the last conversation of this user"
    option_help = "a field of the request, as JSON or text: -o temperature=0.2 -o stop=END"
    question.add_argument("-s", "--system", metavar="TEXT", help="the system message")
    question.add_argument("-c", "--continue", dest="continues", action="store_true", help=continue_help)
    for name, help in (
        ("--file", "a text file to put before the text"),
        ("--image", "an image, by file or URL"),
        ("--audio", "a sound, by file"),
    ):
        question.add_argument(name, action="append", default=[], metavar="FILE", help=help)
    question.add_argument("--schema", metavar="FILE", help="a JSON Schema; only a valid answer is printed")
    question.add_argument(
        "-o", "--option", action="append", default=[], type=_option, metavar="KEY=VALUE", help=option_help
    )

    tools = parser.add_argument_group("tools")
    mcp_help = "an MCP server whose tools the model may call: a command, or a URL. May be repeated"
    config_help = 'a file of MCP servers, {"mcpServers": {...}}'
    tools.add_argument("--mcp", action="append", default=[], metavar="COMMAND", help=mcp_help)
    tools.add_argument("--mcp-config", metavar="FILE", help=config_help)
    tools.add_argument("--tools", action="store_true", help="list the tools of the MCP servers and stop")
    tools.add_argument("--yes", action="store_true", help="run all calls of tools without asking")

    output = parser.add_argument_group("output")
    for name, help in (
        ("--json", "print one line of JSON: text, finish_reason, usage, ..."),
        ("--no-stream", "print the answer only when it is complete"),
        ("--no-save", "do not save this conversation for --continue"),
        ("--show-reasoning", "print the reasoning of the model to stderr"),
        ("--usage", "print token counts and speed to stderr"),
    ):
        output.add_argument(name, action="store_true", help=help)
    return parser


def _option(text: str) -> tuple[str, Any]:
    """The name and the value of `--option`: JSON, or else text."""
    from argparse import ArgumentTypeError

    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ArgumentTypeError(f"expected KEY=VALUE, got {text!r}")
    try:
        return name, json.loads(value)
    except (ValueError, RecursionError):
        return name, value


if __name__ == "__main__":
    program()
