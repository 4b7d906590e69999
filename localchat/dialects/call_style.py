"""Ways of writing tool calls. A family declares each of its own once; the parser and the grammar both read it."""

from __future__ import annotations

from .call_layout import CallLayout
from .calls import Calls
from .scan import Cursor, Reader


class CallStyle:
    """One way of writing calls, and how it is read. Subclasses are the declarations."""

    @property
    def layouts(self) -> tuple[CallLayout, ...]:
        """How such calls are written, for the grammar; the usual layout first."""
        raise NotImplementedError

    @property
    def openers(self) -> tuple[str, ...]:
        """The markers after which `read` is called. Without any, calls stand at the beginning of the output only."""
        return tuple(dict.fromkeys(layout.opener for layout in self.layouts if layout.opener))

    @property
    def sections(self) -> tuple[str, ...]:
        """Markers that stand before all calls and mean nothing more; a call is read without them too."""
        return ()

    @property
    def dropped(self) -> tuple[str, ...]:
        """Markers that stand after all calls and mean nothing more."""
        return ()

    @property
    def markers(self) -> tuple[str, ...]:
        """All texts around names and arguments: their control tokens must reach the parser as text."""
        return tuple(marker for layout in self.layouts for marker in layout.markers)

    def read(self, cursor: Cursor, calls: Calls, opener: str) -> Reader[bool]:
        """Read what follows an opener. False if that is no call; then nothing was sent and all is on record."""
        raise NotImplementedError
