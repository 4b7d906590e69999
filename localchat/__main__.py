"""`python -m localchat`: print the response to one prompt, or start a chat. ask.py describes the exit codes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from .client import Client
from .terminal.arguments import make_parser
from .terminal.ask import NO_PROMPT, OK, USAGE, printable, report, run_command
from .transport.timeouts import DEFAULT_TIMEOUT


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = make_parser()
    arguments = parser.parse_args(argv)
    return run_command(lambda: _run(parser, arguments))


def _run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    try:
        client = Client(
            arguments.base_url,
            arguments.api_key,
            arguments.model,
            timeout=DEFAULT_TIMEOUT if arguments.timeout is None else arguments.timeout,
            max_retries=arguments.retries,
            on_retry=lambda n, delay_s, error: report(f"localchat: {error}; try {n + 1} in {delay_s:.1f} s"),
        )
    except ValueError as error:
        parser.error(str(error))
    with client:
        if arguments.models:
            from .terminal.printing import waiting  # Imported here: --help does not need it.

            with waiting(client):
                names = "\n".join(client.models())
            print(printable(names, sys.stdout))
            return OK
        return _ask_or_chat(client, parser, arguments)


def _ask_or_chat(client: Client, parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    from .terminal.session import Session, prompt_text  # Imported here: --models and --help do not need these modules.

    session = Session(client, arguments)
    text = prompt_text(arguments.text, arguments.file)
    if text.strip():
        return session.ask(text, arguments.image)
    is_terminal = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
    if arguments.json or arguments.schema or not is_terminal:
        parser.print_usage(sys.stderr)
        report(NO_PROMPT)
        return USAGE
    from .terminal.chat import chat

    return chat(session, arguments.image)


if __name__ == "__main__":
    sys.exit(main())
