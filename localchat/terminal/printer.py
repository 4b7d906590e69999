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
from ..events import Reply, StreamEvent, Usage
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
    """Prints one response, or those of a run: the text and the calls of its first choice on stdout, the rest on stderr.

    Args:
        notice: The timer of `notice_of_waiting`, which the first output cancels.
        as_json: Print one line of JSON when the response is complete.
        at_end: Print nothing before the response is complete and valid. `as_json` and `has_value` imply it.
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
        # When the response was requested, and when its first output came.
        self._start_s = time.monotonic()
        self._first_s: float | None = None
        # The usage of each request whose response has it, and how long their outputs took. A run has several requests,
        # and the time of its tools between them.
        self._usages: list[Usage] = []
        self._output_s = 0.0
        self._request_first_s: float | None = None  # When the first output of the current request came.

    def show(self, stream: Any) -> Reply[Any]:
        """Print the events of a stream, and return its reply. The last line is ended also after an error."""
        return self._show(stream, self._add)

    def show_run(self, run: Any, show_result: Callable[[Any], object]) -> Reply[Any]:
        """Print the events of a run; see `show`. `show_result` prints the result of a tool.

        The calls are not printed here: the function that approves them has already shown them.
        """

        def add(event: Any) -> None:
            if event.type not in ("tool_call", "tool_result"):
                self._add(event)
                return
            self._end_line()
            if event.type == "tool_result":
                show_result(event)

        return self._show(run, add)

    def _show(self, stream: Any, add: Callable[[Any], object]) -> Reply[Any]:
        try:
            with stream:
                for event in stream:
                    add(event)
                    if event.type == "message_stop" and event.choice_index == 0:
                        self._end_request(stream.reply.usage)
            reply: Reply[Any] = stream.reply
            self._end(reply)
            return reply
        finally:
            self._end_reasoning()
            self._end_line()

    def _end_request(self, usage: Usage | None) -> None:
        if usage is not None:
            self._usages.append(usage)
        if self._request_first_s is not None:
            self._output_s += time.monotonic() - self._request_first_s
            self._request_first_s = None

    def _token_counts(self) -> dict[str, int]:
        """The sums of all requests."""
        return {
            "input_tokens": sum(usage.input_tokens for usage in self._usages),
            "output_tokens": sum(usage.output_tokens for usage in self._usages),
        }

    def report_usage(self) -> None:
        """Report token counts and speed of all requests, as one line."""
        counts = self._token_counts()
        n_input, n_output = counts["input_tokens"], counts["output_tokens"]
        parts = [f"{n_input} tokens in, {n_output} out" if self._usages else "no token counts"]
        if self._first_s is not None:
            parts.append(f"first after {self._first_s - self._start_s:.2f} s")
            n_after_first = n_output - len(self._usages)  # The time begins with the first output of each request.
            if n_after_first > 0 and self._output_s > _LEAST_SPEED_S:
                parts.append(f"{n_after_first / self._output_s:.1f} tokens/s")
        report(", ".join(parts))

    def _add(self, event: StreamEvent) -> None:
        if event.type == "warning":
            report(f"localchat: warning: {event.text}")
        is_output = event.type.endswith("_delta")
        if is_output and self._request_first_s is None:
            self._request_first_s = time.monotonic()
            self._first_s = self._first_s or self._request_first_s
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
        fields = _reply_fields(reply, self._token_counts() if self._usages else None, self._has_value)
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


def _reply_fields(reply: Reply[Any], usage: dict[str, int] | None, has_value: bool) -> dict[str, Any]:
    """The fields of a reply for `--json`, without empty ones. `text` is always there, and `parsed` with a schema."""
    always = ("text", "parsed") if has_value else ("text",)
    fields = {
        "model": reply.model,
        "text": reply.text,
        "reasoning": reply.reasoning,
        "refusal": reply.refusal,
        "parsed": reply.parsed,
        "tool_calls": [{"name": call.name, "arguments": call.arguments_json} for call in reply.tool_calls],
        "finish_reason": reply.finish_reason,
        "usage": usage,
    }
    return {name: item for name, item in fields.items() if name in always or item not in (None, "", [])}
