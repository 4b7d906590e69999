"""Printing a response as the options of the command line say, and the notice that the program waits for one."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from argparse import Namespace
from threading import Timer
from typing import Any

from ..client import Client
from ..events import Reply, StreamEvent
from .ask import Printer, notice, output_text, printable, report

_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"
_NOTICE_S = 10.0  # Seconds without output, after which the program reports that it waits for the server.


def waiting(client: Client) -> contextlib.AbstractContextManager[Timer]:
    """Report that the program waits for the server, if the block takes long; see `notice`."""
    return notice(f"localchat: waiting for {client.base_url.partition('?')[0]}; Ctrl-C ends this", _NOTICE_S)


class DetailedPrinter(Printer):
    """A Printer with the options of the parsed command line. The first output cancels the notice `waits`."""

    def __init__(self, waits: Timer, arguments: Namespace) -> None:
        super().__init__()
        self._waits, self._as_json, self._show_reasoning = waits, arguments.json, arguments.show_reasoning
        # Whether nothing is printed before `end`, which is not called for an incomplete or invalid response.
        self._holds = arguments.no_stream or arguments.json or arguments.schema is not None
        self._has_styles = sys.stderr.isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("NO_COLOR")
        self._held = ""
        self._in_reasoning = False  # Whether the last line of reasoning on stderr is unfinished.
        self._start_s = time.monotonic()
        self._first_s: float | None = None

    def add(self, event: StreamEvent) -> None:
        if self._first_s is None and event.type.endswith("_delta"):
            self._first_s = time.monotonic()
        if event.type.endswith("_delta") and (self._show_reasoning or event.type != "reasoning_delta"):
            self._waits.cancel()
        if event.type == "reasoning_delta" and self._show_reasoning and event.choice_index == 0:
            self._in_reasoning = True
            text = printable(event.delta, sys.stderr)
            print(f"{_DIM}{text}{_PLAIN}" if self._has_styles else text, end="", file=sys.stderr, flush=True)
        text = output_text(event)
        if self._in_reasoning and (text or event.type == "message_stop"):
            self._in_reasoning = False
            report("")  # On a terminal, the text would otherwise continue the last line of the reasoning.
        if self._holds:
            self._held += text
        else:
            self.write(text)

    def end(self, reply: Reply[Any]) -> None:
        """Print a complete response that was held back: as JSON, or its parsed value, or its text."""
        if self._as_json:
            self.write(json.dumps(_fields(reply), ensure_ascii=False))
        elif self._holds:
            self.write(self._held if reply.parsed is None else json.dumps(reply.parsed, ensure_ascii=False))

    def usage(self, reply: Reply[Any]) -> str:
        """Token counts and speed, as one line."""
        now, usage = time.monotonic(), reply.usage
        parts = [f"{usage.input_tokens} tokens in, {usage.output_tokens} out" if usage else "no token counts"]
        if self._first_s is not None:
            parts.append(f"first after {self._first_s - self._start_s:.2f} s")
            if usage and usage.output_tokens > 1 and now > self._first_s:
                parts.append(f"{(usage.output_tokens - 1) / (now - self._first_s):.1f} tokens/s")
        return ", ".join(parts)


def _fields(reply: Reply[Any]) -> dict[str, Any]:
    """The fields of a reply for `--json`, without empty ones. `text` is always there."""
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
    return {name: item for name, item in fields.items() if name == "text" or item not in (None, "", [])}
