"""The options of `python -m localchat`."""

from __future__ import annotations

import argparse
import json
from typing import Any

from .. import __version__

_DESCRIPTION = """Send a prompt to a chat server and print the answer. Piped input and files are put before the text.
Without text, on a terminal, start a chat; /help lists its commands."""

_EPILOG = """exit codes: 0 for a complete answer, 1 for an error, 2 for wrong usage, 3 for an answer that was cut,
130 for Ctrl-C"""


class AudioFile(str):
    """The path of a sound among those of images."""


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m localchat", description=_DESCRIPTION, epilog=_EPILOG)
    parser.add_argument("text", nargs="*", help="the prompt")
    parser.add_argument("--version", action="version", version=f"localchat {__version__}")

    add = parser.add_argument_group("server").add_argument
    add("-b", "--base-url", help="default: OPENAI_BASE_URL, or http://127.0.0.1:8080/v1; unix:/path for a Unix socket")
    add("-k", "--api-key", help="default: OPENAI_API_KEY. Other users can see this option in the process list")
    add("-m", "--model", help="default: LOCALCHAT_MODEL, or the only model of the server")
    add("--models", action="store_true", help="list the server's models and stop")
    add("--timeout", type=float, metavar="SECONDS", help="the limit of a whole answer, and of each wait within it")
    add("--retries", type=int, default=2, metavar="N", help="retries of a failed request (2)")

    add = parser.add_argument_group("question").add_argument
    add("-s", "--system", metavar="TEXT", help="the system message")
    about = "continue the last conversation of this user"
    add("-c", "--continue", dest="continues", action="store_true", help=about)
    add("--file", action="append", default=[], metavar="FILE", help="a text file to put before the text")
    add("--image", action="append", default=[], metavar="FILE", help="an image, by file or URL")
    add("--audio", action="append", dest="image", type=AudioFile, metavar="FILE", help="a sound, by file")
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
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"expected KEY=VALUE, got {text!r}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
