"""Printing a response on stdout and stderr, and the notice that the program waits for it."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from threading import Timer
from typing import Any

from ..client import Client
from ..events import Reply, StreamEvent
from ..reply.finish_reason import CUT_REASONS
from .console import CUT, OK, delayed_notice, printable, report, write_error

_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"
_NOTICE_S = 10.0  # Seconds without output, after which the program reports that it waits for the server.
_LEAST_SPEED_S = 0.1  # A shorter time shows how the output was sent, not how it was generated.


def notice_of_waiting(client: Client) -> contextlib.AbstractContextManager[Timer]:
    """Report that the program waits for the server, if the block takes long; see `delayed_notice`."""
    text = f"localchat: waiting for {client._settings.shown_url}; Ctrl-C ends this"
    return delayed_notice(text, _NOTICE_S)


class Printer:
    """Prints one response: the text and the calls of its first choice on stdout, the rest on stderr.

    Args:
        notice: The timer of `notice_of_waiting`, which the first output cancels.
        as_json: Print one line of JSON when the response is complete.
        at_end: Print nothing before the response is complete and valid. `as_json` and `has_value` include this.
        has_value: The response has a value, which is printed.
        shows_reasoning: Print the reasoning.
    """

    def __init__(
        self,
        notice: Timer,
        *,
        as_json: bool = False,
        at_end: bool = False,
        has_value: bool = False,
        shows_reasoning: bool = False,
    ) -> None:
        self._notice = notice
        self._as_json = as_json
        self._shows_reasoning = shows_reasoning
        self._has_value = has_value
        self._is_buffering = at_end or as_json or has_value
        self._buffer = ""  # The output while `_is_buffering` is set.
        self._in_line = False  # Whether the last line of the output is unfinished.
        self._in_reasoning = False  # The same for the reasoning on stderr.
        # When the response was requested, and when its first and its last output came.
        self._start_s = self._end_s = time.monotonic()
        self._first_s: float | None = None

    def show(self, stream: Any, show_result: Callable[[Any], object] | None = None) -> Reply[Any]:
        """Print the events of a stream, and return its reply. The last line is ended also after an error.

        `show_result` prints the result of a tool. It is passed for runs only; their calls are not printed here, since
        the function that approves them has already shown them.
        """
        try:
            with stream:
                for event in stream:
                    if show_result is not None and event.type in ("tool_call", "tool_result"):
                        self._end_line()
                        if event.type == "tool_result":
                            show_result(event)
                    else:
                        self._add(event)
            self._end_s = time.monotonic()
            reply: Reply[Any] = stream.reply
            self._end(reply)
            return reply
        finally:
            self._end_reasoning()
            self._end_line()

    def report_usage(self, reply: Reply[Any]) -> None:
        """Report token counts and speed, as one line."""
        usage = reply.usage
        parts = [f"{usage.input_tokens} tokens in, {usage.output_tokens} out" if usage else "no token counts"]
        if self._first_s is not None:
            parts.append(f"first after {self._first_s - self._start_s:.2f} s")
            seconds = self._end_s - self._first_s
            if usage and usage.output_tokens > 1 and seconds > _LEAST_SPEED_S:
                parts.append(f"{(usage.output_tokens - 1) / seconds:.1f} tokens/s")
        report(", ".join(parts))

    def _add(self, event: StreamEvent) -> None:
        if event.type == "warning":
            report(f"localchat: warning: {event.text}")
        is_output = event.type.endswith("_delta")
        if is_output and self._first_s is None:
            self._first_s = time.monotonic()
        if is_output and (self._shows_reasoning or event.type != "reasoning_delta"):
            self._notice.cancel()
        if event.choice_index != 0:
            return
        if event.type == "reasoning_delta" and self._shows_reasoning:
            self._in_reasoning = True
            write_error(event.delta, *((_DIM, _PLAIN) if _has_styles() else ()))
        elif event.type in ("content_delta", "refusal_delta"):
            self._write(event.delta)
        elif event.type == "tool_call":
            self._end_line()
            self._write(f"{event.name}({event.arguments_json})\n")

    def _end(self, reply: Reply[Any]) -> None:
        """Print a complete response that was not printed yet: as JSON, or its parsed value, or its text."""
        if not self._is_buffering:
            return
        text = self._buffer if reply.parsed is None else json.dumps(reply.parsed, ensure_ascii=False)
        self._is_buffering = self._in_line = False  # From here on, `_write` prints.
        fields = _reply_fields(reply, self._has_value)
        self._write(json.dumps(fields, ensure_ascii=False) if self._as_json else text)

    def _write(self, text: str) -> None:
        if not text:
            return
        self._end_reasoning()
        self._in_line = not text.endswith("\n")
        if self._is_buffering:
            self._buffer += text
        else:
            print(printable(text, sys.stdout), end="", flush=True)

    def _end_line(self) -> None:
        if self._in_line:
            self._write("\n")

    def _end_reasoning(self) -> None:
        """On a terminal, the text would otherwise continue the last line of the reasoning."""
        if self._in_reasoning:
            self._in_reasoning = False
            report("")


def finish_code(finish_reason: str | None) -> int:
    """The exit code for a finish reason. Report a response that was cut."""
    if finish_reason not in CUT_REASONS:
        return OK
    report(f"localchat: the server cut the answer: {finish_reason}")
    return CUT


def _has_styles() -> bool:
    """Whether escape sequences may be written to stderr."""
    is_wanted = os.environ.get("TERM") != "dumb" and not os.environ.get("NO_COLOR")
    return is_wanted and sys.stderr is not None and sys.stderr.isatty()


def _reply_fields(reply: Reply[Any], has_value: bool) -> dict[str, Any]:
    """The fields of a reply for `--json`, without empty ones. `text` is always there, and `parsed` with a schema."""
    always = ("text", "parsed") if has_value else ("text",)
    usage = reply.usage
    fields = {
        "model": reply.model,
        "text": reply.text,
        "reasoning": reply.reasoning,
        "refusal": reply.refusal,
        "parsed": reply.parsed,
        "tool_calls": [{"name": call.name, "arguments": call.arguments_json} for call in reply.tool_calls],
        "finish_reason": reply.finish_reason,
        "usage": usage and {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens},
    }
    return {name: item for name, item in fields.items() if name in always or item not in (None, "", [])}
