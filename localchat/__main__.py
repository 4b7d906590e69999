"""`python -m localchat "text"`: one answer in the terminal, as it comes.

The text goes to stdout, everything else to stderr. Exit codes: 0 for an answer, 1 for an error, 2 for
wrong usage, 3 for an answer that was cut, 130 for Ctrl-C.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

from . import __version__
from .client import Client, Stream
from .errors import IncompleteStream, LocalChatError, TimedOut
from .events import StreamEvent

OK, FAILED, USAGE, INCOMPLETE, INTERRUPTED = 0, 1, 2, 3, 130

_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    sys.stderr = sys.stderr or io.StringIO()  # Where it is closed (2>&-), print would take stdout.
    parser = _parser()
    arguments = parser.parse_args(argv)
    try:
        code = _run(parser, arguments)
        print(end="", flush=True)  # What cannot be written is told here, not when Python ends.
        return code
    except KeyboardInterrupt:
        _note("")
        return INTERRUPTED
    except OSError as error:
        # The reader of our output is gone, or a disk is full. Without this, Python would complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            _note(f"localchat: {error}")
        return FAILED
    except (LocalChatError, ValueError, TypeError) as error:  # TypeError: an option of a wrong kind.
        _note(f"localchat: {error}")
        begun = isinstance(error, (IncompleteStream, TimedOut)) and error.partial and error.partial.choices
        return INCOMPLETE if begun else FAILED


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
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # A terminal without UTF-8 must not end the answer.
    with Client(arguments.base_url, arguments.api_key, arguments.model, on_retry=_report_retry) as client:
        if arguments.models:
            print("\n".join(client.models()))
            return OK
        prompt = _prompt(arguments.text)
        if not prompt.strip():
            parser.print_usage(sys.stderr)
            _note("localchat: nothing to ask: give a text, or pipe one in")
            return USAGE
        options = {"system": arguments.system, **dict(arguments.option)}
        _answer(client.stream(prompt, **options), arguments)
    return OK


def _prompt(words: Sequence[str]) -> str:
    """What was piped in, and the text after it."""
    try:
        piped = "" if sys.stdin is None or sys.stdin.isatty() else sys.stdin.read()
        text = "\n\n".join(part for part in (piped.rstrip(), " ".join(words)) if part)
        text.encode()  # In some locales, C.UTF-8 say, wrong bytes come as surrogates, which servers do not take.
    except UnicodeError as error:
        raise ValueError(f"the text is not UTF-8, so convert it first, with iconv say: {error}") from error
    return text


def _answer(stream: Stream, arguments: argparse.Namespace) -> None:
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
                _note("")  # A terminal would show what comes now in the line of the thoughts.
            if not arguments.no_stream:
                print(pieces[-1], end="", flush=True)
    text = "".join(pieces)
    if arguments.no_stream:
        print(text, end="")
    if text and not text.endswith("\n"):
        print(flush=True)
    if stream.reply.finish_reason in ("length", "content_filter"):
        _note(f"localchat: the server ended the answer early: {stream.reply.finish_reason}")
    if arguments.usage:
        _note(_usage(stream, start, first))


def _show(event: StreamEvent, show_reasoning: bool) -> str:
    """What of an event of the first choice goes to stdout; the rest is written to stderr here."""
    if event.type == "warning":
        _note(f"localchat: warning: {event.text}")
    if event.choice_index != 0:
        return ""
    if event.type in ("content_delta", "refusal_delta"):
        return event.delta
    if event.type == "tool_call":
        return f"{event.name}({event.arguments_json})\n"
    if event.type == "reasoning_delta" and show_reasoning:
        sys.stderr.write(f"{_DIM}{event.delta}{_PLAIN}" if sys.stderr.isatty() else event.delta)
        sys.stderr.flush()
    return ""


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
    _note(f"localchat: {error}; try {number + 1} in {delay_s:.1f} s")


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
