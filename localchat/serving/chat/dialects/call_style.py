"""The base class of call styles. A style has the layouts of one format of tool calls, and the parser of this format."""

from __future__ import annotations

from .call_layout import CallLayout
from .calls import Calls
from .scan import Cursor, Reader


class CallStyle:
    """One format of tool calls: its layouts, for the grammar and for writing calls, and its parser."""

    @property
    def layouts(self) -> tuple[CallLayout, ...]:
        """The layouts of calls in this format, the preferred one first."""
        raise NotImplementedError

    @property
    def openers(self) -> tuple[str, ...]:
        """The markers after which `read` is called. If there are none, an output can only begin with calls."""
        return tuple(dict.fromkeys(layout.opener for layout in self.layouts if layout.opener))

    @property
    def section_markers(self) -> tuple[str, ...]:
        """Optional markers before all calls, which the parser drops."""
        return ()

    @property
    def also_dropped(self) -> tuple[str, ...]:
        """Optional markers after all calls, which the parser drops."""
        return ()

    @property
    def markers(self) -> tuple[str, ...]:
        """All texts around names and arguments. The parser needs the control tokens among these as text."""
        return tuple(marker for layout in self.layouts for marker in layout.markers)

    def read(self, cursor: Cursor, calls: Calls, opener: str) -> Reader[bool]:
        """Parse the text after an opener. Returns False if it is not a call; then no event was emitted.

        In this case `cursor` has a record of the text that was read.
        """
        raise NotImplementedError
