"""Decodes the bytes of tokens to text and searches it for stop texts. Pure.

The end of the text is held back while it may be the start of a stop text or of a character. The text is the same
however its bytes are divided into pieces.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable


class StopTextDecoder:
    """Decodes UTF-8 piece by piece, up to the first stop text.

    Invalid bytes become U+FFFD. `stopped_by` is the stop text that was found; it and the text after it are not
    returned. Of stop texts that overlap, the one that ends first counts; of those that end together, the longest one.
    """

    def __init__(self, stop: Iterable[str] = ()):
        self._stop = tuple(stop)
        if "" in self._stop:
            raise ValueError("an empty stop text would end every output at once")
        # Longest first, since the longest possible start of a stop text is held back.
        prefixes = {text[:n] for text in self._stop for n in range(1, len(text))}
        self._prefixes = tuple(sorted(prefixes, key=len, reverse=True))
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self.stopped_by: str | None = None

    def feed(self, piece: bytes) -> str:
        """The text that can be shown now; empty after a stop text."""
        return self._release(self._decoder.decode(piece))

    def finish(self) -> str:
        """The text that was held back, at the end of the output."""
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
