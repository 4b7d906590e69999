"""The finish reason of a choice, by the names of the client, from stop and tool_calls to content_filter. No I/O."""

from __future__ import annotations

import re
from collections.abc import Callable

# Finish reasons of servers, each with the client's name for it. Only letters are compared, in lower case.
_KNOWN_REASONS = {
    "load": "stop",
    "unload": "stop",
    "toolcalls": "tool_calls",
    "toolcall": "tool_calls",
    "tooluse": "tool_calls",
    "functioncall": "tool_calls",
    "compaction": "length",
    "pauseturn": "length",
    "repetition": "length",
    "toomanytoolcalls": "length",
    "spii": "content_filter",
}
# Patterns of the other finish reasons, by the client's names. The first that is found decides. "stop" comes last, since
# `stop_limit` is a cut.
_PATTERNS = {
    "content_filter": "filter|safety|recitation|refus|sensitive|block|prohibited|guardrail|moderat|toxic",
    "error": "error|abort|cancel|fail|malformed|unexpected|insufficient|timeout|ratelimit|quota",
    "length": "length|limit|max|context|exceed|budget|truncat|incomplete|notfinished|partial",
    # end_turn, stop_sequence, eos_token, <|end_of_text|>
    "stop": "^(stop|eos|eot|eom|end|completed?)(of|turn|text|message|sequence|string|word|token|id)*$",
}

# The finish reasons of a text that was cut: it is not complete, and its calls must not be run. `Accumulator` raises an
# error for "error"; truncation.py has the rule for the others.
CUT_REASONS = ("length", "content_filter", "error")


def normal_reason(raw: str) -> str | None:
    """The client's name for a finish reason of a server; None if it is unknown."""
    letters = re.sub("[^a-z]", "", raw.lower()).removeprefix("finishreason")
    if letters in _KNOWN_REASONS:
        return _KNOWN_REASONS[letters]
    return next((reason for reason, pattern in _PATTERNS.items() if re.search(pattern, letters)), None)


class FinishReason:
    """The finish reason of one choice. Some servers send several, or one with every delta.

    Which one is reported: the first, unless output follows it, or a later one says that the text was cut.

    Whether it marks the end of the response: not if output followed this or an earlier reason, since this server sends
    reasons before the end too. Then only an end mark such as [DONE] completes the response.
    """

    def __init__(self, warn: Callable[[str], object]) -> None:
        self.raw: str | None = None  # As the server sent it; None if none was received.
        self.is_followed = False  # Whether output came after a reason.
        self._warn = warn

    @property
    def name(self) -> str | None:
        """The client's name, "unknown" for an unknown reason; None if none was received."""
        return None if self.raw is None else normal_reason(self.raw) or "unknown"

    @property
    def is_cut(self) -> bool:
        """Whether it says that the text was cut."""
        return self.name in CUT_REASONS

    @property
    def is_at_end(self) -> bool:
        """Whether a reason was received, and no output after it or an earlier one."""
        return self.raw is not None and not self.is_followed

    def add(self, reason: str) -> None:
        """Add a finish reason that the server sent, with a warning if it is another one than before."""
        if not reason.strip() or reason == self.raw:
            return
        is_first, reasons = self.raw is None, f"{self.raw!r} and {reason!r}"
        if is_first or self.is_followed or (not self.is_cut and normal_reason(reason) in CUT_REASONS):
            self.raw = reason
        if not is_first:
            self._warn(f"the server sent two finish reasons, {reasons}; {self.raw!r} is used")
