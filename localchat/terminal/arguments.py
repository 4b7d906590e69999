"""The options of `python -m localchat`, and the validation of their values."""

from __future__ import annotations

import argparse
import json
import math
from typing import Any

from .. import __version__

_DESCRIPTION = """Send a prompt to a chat server and print the answer. Piped input and files are put before the text.
Without text, on a terminal, start a chat; /help lists its commands."""

_EPILOG = """exit codes: 0 for a complete answer, 1 for an error, 2 for wrong usage, 3 for an answer that was cut,
130 for Ctrl-C"""


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m localchat", description=_DESCRIPTION, epilog=_EPILOG)
    parser.add_argument("text", nargs="*", help="the prompt")
    parser.add_argument("--version", action="version", version=f"localchat {__version__}")
    _add_server(parser.add_argument_group("server"))
    _add_question(parser.add_argument_group("question"))
    _add_output(parser.add_argument_group("output"))
    return parser


def _add_server(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "-b",
        "--base-url",
        help="default: OPENAI_BASE_URL, or http://127.0.0.1:8080/v1; unix:/path for a Unix socket",
    )
    group.add_argument(
        "-k", "--api-key", help="default: OPENAI_API_KEY. Other users can see this option in the process list"
    )
    group.add_argument("-m", "--model", help="default: LOCALCHAT_MODEL, or the only model of the server")
    group.add_argument("--models", action="store_true", help="list the server's models and stop")
    group.add_argument(
        "--timeout",
        type=_seconds,
        metavar="SECONDS",
        help="longest wait for the connection, for the first event, and for the next bytes",
    )
    group.add_argument("--retries", type=_count, metavar="N", help="retries of a failed request (2)")


def _add_question(group: argparse._ArgumentGroup) -> None:
    group.add_argument("-s", "--system", metavar="TEXT", help="the system message")
    group.add_argument(
        "-c", "--continue", dest="continues", action="store_true", help="continue the last conversation of this user"
    )
    group.add_argument("--file", action="append", default=[], metavar="FILE", help="a text file to put before the text")
    group.add_argument("--image", action="append", default=[], metavar="FILE", help="an image, by file or URL")
    group.add_argument("--schema", metavar="FILE", help="a JSON Schema; only a valid answer is printed")
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
        help="a field of the request, as JSON or text: -o temperature=0.2 -o stop=END",
    )


def _add_output(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--json", action="store_true", help="print one line of JSON: text, finish_reason, usage, ...")
    group.add_argument("--no-stream", action="store_true", help="print the answer only when it is complete")
    group.add_argument("--no-markdown", action="store_true", help="show Markdown without styles")
    group.add_argument("--no-save", action="store_true", help="do not save this conversation for --continue")
    group.add_argument("--show-reasoning", action="store_true", help="print the reasoning of the model to stderr")
    group.add_argument("--usage", action="store_true", help="print token counts and speed to stderr")


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
        raise argparse.ArgumentTypeError(f"expected a number of seconds greater than 0, got {text!r}")
    return seconds


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected an integer of at least 0, got {text!r}")
    return int(text)
