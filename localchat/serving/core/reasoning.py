"""Where reasoning begins and ends in an output that is still being generated.

The parser of outputs, in the server's process, and the budget of reasoning, in the engine process, read it with the
same class. They differ in one point: the budget takes every marker of a call for the end of reasoning, since it cannot
wait for the text behind it.
"""

from __future__ import annotations

from dataclasses import dataclass

from .scan import Cursor, Emit, Markers, Reader


@dataclass(frozen=True)
class ReasoningMarkers:
    """The texts that begin and end reasoning in the outputs of a request."""

    start: str  # The start tag.
    ends: tuple[str, ...]  # The end tag, and the markers of text and calls.
    is_open: bool = False  # Whether reasoning is open at the end of the prompt.
    opens_anywhere: bool = False  # Whether reasoning may begin after other text, and again after its end.


class ReasoningReader:
    """Reads the reasoning of an output, and knows whether the text so far ends inside it."""

    def __init__(self, markers: ReasoningMarkers, cursor: Cursor) -> None:
        self.is_open = markers.is_open
        self.may_open = True  # Whether reasoning is open or can still begin.
        self._markers = markers
        self._ends = Markers(*markers.ends)
        self._cursor = cursor

    def read_start(self, *others: str) -> Reader[str | None]:
        """Read white space and the start tag, or one of the markers `others`.

        Returns the marker. Returns None and reads nothing if another text is next.
        """
        marker = yield from self._cursor.read_whole(self._markers.start, *others)
        self.is_open = marker == self._markers.start
        self.may_open = self.is_open or self._markers.opens_anywhere
        return marker

    def read_text(self, emit: Emit, *, holds_space: bool = True) -> Reader[str | None]:
        """Emit reasoning up to a marker that may end it. Returns the marker, which stays unread.

        Returns None at the end of the output, where reasoning stays open. After a marker, reasoning counts as ended;
        the caller then calls `close`, or `read_text` again if the reasoning goes on.
        """
        self.open()
        marker = yield from self._cursor.emit_until(self._ends, emit, holds_space=holds_space)
        self.is_open = marker is None
        return marker

    def open(self) -> None:
        """Note that the text at the cursor is reasoning."""
        self.is_open = self.may_open = True

    def close(self) -> None:
        """Note that the reasoning has ended."""
        self.is_open, self.may_open = False, self._markers.opens_anywhere
