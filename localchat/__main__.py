"""`python -m localchat "text"`: one answer in the terminal, as it comes. Exit codes: see ask.py."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from . import __version__
from .ask import OK, USAGE, finish_code, output_text, read_question, report, run_command
from .client import Client, Stream
from .errors import LocalChatError
from .events import StreamEvent
from .keywords import as_options

_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    return run_command(lambda: _run(parser, arguments))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m localchat",
        description="Ask a chat server and print its answer. Piped input is put before the text.",
    )
    parser.add_argument("text", nargs="*", help="what to ask")
    parser.add_argument("-s", "--system", help="instructions that come before the text")
    parser.add_argument("-m", "--model", help="else LOCALCHAT_MODEL, else the server's first")
    parser.add_argument("-k", "--api-key", help="else OPENAI_API_KEY; others can see this in the process list")
    parser.add_argument(
        "-b", "--base-url", help="else OPENAI_BASE_URL, else http://127.0.0.1:8080/v1 (unix:/path works too)"
    )
    parser.add_argument(
        "-o",
        "--option",
        action="append",
        default=[],
        type=_option,
        metavar="KEY=VALUE",
        help="any member of the request, as JSON or text: -o temperature=0.2 -o stop=END",
    )
    parser.add_argument("--usage", action="store_true", help="tokens and speed, to stderr")
    parser.add_argument("--no-stream", action="store_true", help="print the answer when it is whole")
    parser.add_argument("--show-reasoning", action="store_true", help="what the model thinks, to stderr")
    parser.add_argument("--models", action="store_true", help="list the server's models and stop")
    parser.add_argument("--version", action="version", version=f"localchat {__version__}")
    return parser


def _option(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"expected KEY=VALUE, got {text!r}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    with Client(arguments.base_url, arguments.api_key, arguments.model, on_retry=_report_retry) as client:
        if arguments.models:
            print("\n".join(client.models()))
            return OK
        prompt = read_question(arguments.text)
        if not prompt.strip():
            parser.print_usage(sys.stderr)
            report("localchat: nothing to ask: give a text, or pipe one in")
            return USAGE
        options = {"system": arguments.system, **as_options(dict(arguments.option))}
        return _answer(client.stream(prompt, **options), arguments)


def _answer(stream: Stream, arguments: argparse.Namespace) -> int:
    start = time.monotonic()
    first = None
    pieces: list[str] = []
    thinks = False
    with stream:
        for event in stream:
            if first is None and event.type.endswith("_delta"):
                first = time.monotonic()
            pieces.append(_show(event, arguments.show_reasoning))
            if event.type == "reasoning_delta" and event.choice_index == 0:
                thinks = arguments.show_reasoning
            elif thinks and (pieces[-1] or event.type == "message_stop"):
                thinks = False
                report("")  # A terminal would show what comes now in the line of the thoughts.
            if not arguments.no_stream:
                print(pieces[-1], end="", flush=True)
    text = "".join(pieces)
    if arguments.no_stream:
        print(text, end="")
    if text and not text.endswith("\n"):
        print(flush=True)
    if arguments.usage:
        report(_usage(stream, start, first))
    return finish_code(stream.reply.finish_reason)


def _show(event: StreamEvent, show_reasoning: bool) -> str:
    """What of an event of the first choice goes to stdout; the rest is written to stderr here."""
    if event.type == "reasoning_delta" and event.choice_index == 0 and show_reasoning:
        sys.stderr.write(f"{_DIM}{event.delta}{_PLAIN}" if sys.stderr.isatty() else event.delta)
        sys.stderr.flush()
    return output_text(event)


def _usage(stream: Stream, start: float, first: float | None) -> str:
    now = time.monotonic()
    usage = stream.reply.usage
    parts = [f"{usage.input_tokens} tokens in, {usage.output_tokens} out" if usage else "no token counts"]
    if first is not None:
        parts.append(f"first after {first - start:.2f} s")
        if usage and usage.output_tokens > 1 and now > first:
            parts.append(f"{(usage.output_tokens - 1) / (now - first):.1f} tokens/s")
    return ", ".join(parts)


def _report_retry(number: int, delay_s: float, error: LocalChatError) -> None:
    report(f"localchat: {error}; try {number + 1} in {delay_s:.1f} s")


if __name__ == "__main__":
    sys.exit(main())
