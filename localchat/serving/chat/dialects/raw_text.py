"""Raw outputs, which show the text of the format as well, such as tags (`reasoning_format: "none"`)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Callable

from ...core.scan import Cursor
from .calls import Calls


@dataclass(frozen=True)
class FormatText:
    """Text of the format in a raw output, such as tags. `chat/runs/` makes content of it; it has no stop texts."""

    text: str


class RawText:
    """Emits the text that the readers of an output have read, and that no event of theirs has.

    The text of the cursor has three parts:

        in events, or the text of a call | read, and in no event | unread
                                    _n_shown                cursor.at

    The middle part is emitted before the next event, unless it turns out to be the text of a call.
    """

    def __init__(self, cursor: Cursor, calls: Calls, emit: Callable[[FormatText], object], *, is_raw: bool) -> None:
        """With `is_raw=False`, nothing is emitted."""
        self._cursor = cursor
        self._calls = calls
        self._emit = emit
        self._is_raw = is_raw
        self._n_shown = 0
        self._is_in_call = False  # Whether the text at the cursor may belong to a call.

    def before_feed(self) -> None:
        """Note that the cursor drops the text that can no longer become unread: all of it is in events or in a call."""
        self._n_shown = max(0, self._n_shown - self._cursor.done)

    def emit_until(self, end: int) -> None:
        """Emit the middle part up to the index `end` of the cursor's text, unless it may belong to a call."""
        if self._is_raw and not self._is_in_call and self._n_shown < end:
            self._emit(FormatText(self._cursor.text[self._n_shown : end]))
            self._n_shown = end

    def skip(self) -> None:
        """Note that the text before the cursor is in an event, or the text of a call."""
        self._n_shown = self._cursor.at

    @contextlib.contextmanager
    def of_call(self) -> Iterator[None]:
        """If a call begins in this block, what the block reads is its text."""
        self.emit_until(self._cursor.at)
        n_calls, was_in_call = self._calls.n_begun, self._is_in_call
        self._is_in_call = True
        try:
            yield
        finally:
            self._is_in_call = was_in_call
            if self._calls.n_begun > n_calls:
                self.skip()
