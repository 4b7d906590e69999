"""Search for stop texts: token bytes become text, and what may begin a stop text or a character is held back.

Pure: pieces (bytes) in, text out. However the bytes are cut into pieces, the same text comes out.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable


class TextStream:
    """Decodes UTF-8 piece by piece and ends at the first stop text.

    Bytes that are no UTF-8 become U+FFFD. `stopped_by` is the stop text that was hit; it and what
    comes after it are never given out. Where two stop texts overlap the one that is complete
    first counts, and of two that are complete together the longer one.
    """

    def __init__(self, stop: Iterable[str] = ()):
        self._stop = tuple(stop)
        if "" in self._stop:
            raise ValueError("an empty stop text would end every answer at once")
        # Longest first: the longest tail that may still become a stop text is what is held back.
        prefixes = {text[:n] for text in self._stop for n in range(1, len(text))}
        self._prefixes = tuple(sorted(prefixes, key=len, reverse=True))
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self.stopped_by: str | None = None

    def feed(self, piece: bytes) -> str:
        """The text that is safe to show now; empty once a stop text was hit."""
        return self._release(self._decoder.decode(piece))

    def finish(self) -> str:
        """What was still held back, at the end of the generation."""
        shown = self._release(self._decoder.decode(b"", final=True))
        held, self._held = self._held, ""
        return shown + held

    def _release(self, new: str) -> str:
        if not self._stop or not new:
            return new
        if self.stopped_by is not None:
            return ""
        text = self._held + new
        end = self._find_stop(text)
        if end is None:
            end = len(text) - self._n_held(text)
            self._held = text[end:]
        else:
            self._held = ""
        return text[:end]

    def _find_stop(self, text: str) -> int | None:
        found = [(start + len(stop), start, stop) for stop in self._stop if (start := text.find(stop)) >= 0]
        if not found:
            return None
        _, start, self.stopped_by = min(found)
        return start

    def _n_held(self, text: str) -> int:
        if not text.endswith(self._prefixes):
            return 0
        return next(len(prefix) for prefix in self._prefixes if text.endswith(prefix))
