"""The command line of `python -m localchat`: its options, and what is wrong with their values."""

from __future__ import annotations

import argparse
import json
import math
from typing import Any

from .. import __version__

_DESCRIPTION = """Ask a chat server and print its answer. Piped input and files are put before the text.
Without text, on a terminal, it is a chat; /help lists its commands."""

_EPILOG = """exit codes: 0 for a complete answer, 1 for an error, 2 for wrong usage, 3 for an answer that was cut,
130 for Ctrl-C"""


def make_parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = argparse.ArgumentParser(prog="python -m localchat", description=_DESCRIPTION, epilog=_EPILOG)
    parser.add_argument("text", nargs="*", help="what to ask")
    parser.add_argument("--version", action="version", version=f"localchat {__version__}")
    _add_server(parser.add_argument_group("server"))
    _add_question(parser.add_argument_group("question"))
    _add_output(parser.add_argument_group("output"))
    return parser


def _add_server(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "-b", "--base-url", help="else OPENAI_BASE_URL, else http://127.0.0.1:8080/v1 (unix:/path works too)"
    )
    group.add_argument("-k", "--api-key", help="else OPENAI_API_KEY; others can see this in the process list")
    group.add_argument("-m", "--model", help="else LOCALCHAT_MODEL, else the only one of the server")
    group.add_argument("--models", action="store_true", help="list the server's models and stop")
    group.add_argument(
        "--timeout", type=_seconds, metavar="SECONDS", help="longest wait for the connection, an answer, its next piece"
    )
    group.add_argument("--retries", type=_count, metavar="N", help="how often a failed request is repeated (2)")


def _add_question(group: argparse._ArgumentGroup) -> None:
    group.add_argument("-s", "--system", metavar="TEXT", help="instructions that come before the text")
    group.add_argument(
        "-c", "--continue", dest="continues", action="store_true", help="continue the last conversation of this user"
    )
    group.add_argument("--file", action="append", default=[], metavar="FILE", help="a text file to put before the text")
    group.add_argument("--image", action="append", default=[], metavar="FILE", help="an image, by file or URL")
    group.add_argument("--schema", metavar="FILE", help="a JSON Schema; an answer is printed only if it fits")
    group.add_argument(
        "--tool",
        action="append",
        default=[],
        metavar="MODULE:FUNCTION",
        help="a Python function that the model may call; each call is shown and needs your approval",
    )
    group.add_argument("--yes", action="store_true", help="run the calls of tools without asking")
    group.add_argument(
        "-o",
        "--option",
        action="append",
        default=[],
        type=_option,
        metavar="KEY=VALUE",
        help="any field of the request, as JSON or text: -o temperature=0.2 -o stop=END",
    )


def _add_output(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--json", action="store_true", help="print one line of JSON: text, finish_reason, usage, ...")
    group.add_argument("--no-stream", action="store_true", help="print the answer when it is whole")
    group.add_argument("--no-markdown", action="store_true", help="no styles for Markdown on a terminal")
    group.add_argument("--no-save", action="store_true", help="do not keep this conversation for --continue")
    group.add_argument("--show-reasoning", action="store_true", help="the reasoning of the model, to stderr")
    group.add_argument("--usage", action="store_true", help="tokens and speed, to stderr")


def _option(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"expected KEY=VALUE, got {text!r}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"expected seconds, more than 0, got {text!r}")
    return seconds


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a whole number from 0 on, got {text!r}")
    return int(text)
