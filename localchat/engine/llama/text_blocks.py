"""Cuts long texts where their tokens stay the same, so that a tokenizer needs linear time for them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from ...literals import pattern_of

# llama.cpp walks over all special tokens of a text for each of them: 57,000 in one text take 11 s. In a block of so
# many bytes there are a few thousand at most, which take milliseconds.
BLOCK_BYTES = 8192
# A search holds the interpreter lock: so many bytes at a time take about a millisecond.
_WINDOW = 50_000


class TextBlocks:
    """The cuts at special tokens: a text is split there before its parts are tokenized one by one.

    `texts` are those of all special tokens that are parsed, `uncut` those of them that strip the white space before
    them, which a cut would keep.
    """

    def __init__(self, texts: Collection[bytes], uncut: Collection[bytes] = ()) -> None:
        # A run of one character may be tokenized in several ways, so it gives no cut.
        cuts = [text for text in texts if len({*text}) > 1 and text not in uncut]
        self._all, self._cuts = _compiled(texts), _compiled(cuts)
        self._longest = max(map(len, texts), default=0)

    def split(self, data: bytes) -> Iterator[bytes]:
        """The text in blocks; a block ends at the first place behind `BLOCK_BYTES` at which a cut changes nothing."""
        begin = 0
        while len(data) - begin > BLOCK_BYTES:
            end = self._cut(data, begin + BLOCK_BYTES)
            if end is None:
                break
            yield data[begin:end]
            begin = end
        yield data[begin:]

    def _cut(self, data: bytes, begin: int) -> int | None:
        for at in range(begin, len(data), _WINDOW):
            for match in self._cuts.finditer(data, at, at + _WINDOW + self._longest):
                if self._is_alone(data, match.start(), match.end()):
                    return match.start()
        return None

    def _is_alone(self, data: bytes, start: int, end: int) -> bool:
        """Whether no other special token has a byte of this one: then it is found, in whatever order they are tried."""
        for at in range(max(0, start - self._longest + 1), end):
            match = self._all.match(data, at)
            if match and match.end() > start and match.span() != (start, end):
                return False
        return True


def _compiled(texts: Collection[bytes]) -> re.Pattern[bytes]:
    return re.compile(pattern_of(text.decode("latin-1") for text in texts).encode("latin-1"))
