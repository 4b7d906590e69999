"""The base class of call styles: the layouts of tool calls in one format, and the parser of this format."""

from __future__ import annotations

from .call_layout import CallLayout
from .calls import Calls
from .scan import Cursor, Reader


class CallStyle:
    """One format of tool calls: its layouts, for writing and for the grammar, and its parser."""

    @property
    def layouts(self) -> tuple[CallLayout, ...]:
        """The layouts of such calls, for the grammar; the usual one first."""
        raise NotImplementedError

    @property
    def openers(self) -> tuple[str, ...]:
        """The markers after which `read` is called. Without any, calls are only at the beginning of the output."""
        return tuple(dict.fromkeys(layout.opener for layout in self.layouts if layout.opener))

    @property
    def sections(self) -> tuple[str, ...]:
        """Optional markers before all calls, which the parser drops."""
        return ()

    @property
    def dropped(self) -> tuple[str, ...]:
        """Optional markers after all calls, which the parser drops."""
        return ()

    @property
    def markers(self) -> tuple[str, ...]:
        """All texts around names and arguments: their control tokens must reach the parser as text."""
        return tuple(marker for layout in self.layouts for marker in layout.markers)

    def read(self, cursor: Cursor, calls: Calls, opener: str) -> Reader[bool]:
        """Parse the text after an opener. False if it is no call: then no event was sent, and the text is recorded."""
        raise NotImplementedError
