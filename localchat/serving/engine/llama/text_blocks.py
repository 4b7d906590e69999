"""Splits long texts into blocks with the same tokens, so that tokenizing takes linear time."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from ...core.text import pattern_of

# The minimum size of a block. A block of this size has at most a few thousand special tokens, which take milliseconds.
# The time of llama.cpp grows with the square of their number: 57,000 take 11 s.
BLOCK_BYTES = 8192
# Bytes that are searched at a time, in about a millisecond: a search holds the interpreter lock.
_WINDOW = 50_000


class TextBlocks:
    """Splits texts before special tokens. Tokenizing the blocks gives the same tokens as tokenizing the whole text."""

    def __init__(self, texts: Collection[bytes], uncut: Collection[bytes] = ()) -> None:
        """
        Args:
            texts: The texts of all special tokens that the tokenizer parses.
            uncut: The ones before which no text is split. These tokens strip the white space before them, which a
                block would keep at its end.
        """
        # A run of one character may be tokenized in several ways, so no text is split before it.
        cuts = [text for text in texts if len({*text}) > 1 and text not in uncut]
        self._all, self._cuts = _compiled(texts), _compiled(cuts)
        self._longest = max(map(len, texts), default=0)

    def split(self, data: bytes) -> Iterator[bytes]:
        """The blocks of a text. Each ends at the first possible place after `BLOCK_BYTES`."""
        begin = 0
        while len(data) - begin > BLOCK_BYTES:
            end = self._cut(data, begin + BLOCK_BYTES)
            if end is None:
                break
            yield data[begin:end]
            begin = end
        yield data[begin:]

    def _cut(self, data: bytes, begin: int) -> int | None:
        """The index of the first special token after `begin` before which the text may be split."""
        for at in range(begin, len(data), _WINDOW):
            for match in self._cuts.finditer(data, at, at + _WINDOW + self._longest):
                if self._is_alone(data, match.start(), match.end()):
                    return match.start()
        return None

    def _is_alone(self, data: bytes, start: int, end: int) -> bool:
        """Whether no other special token overlaps this one. Otherwise the tokenizer might parse the other one."""
        for at in range(max(0, start - self._longest + 1), end):
            match = self._all.match(data, at)
            if match and match.end() > start and match.span() != (start, end):
                return False
        return True


def _compiled(texts: Collection[bytes]) -> re.Pattern[bytes]:
    return re.compile(pattern_of(text.decode("latin-1") for text in texts).encode("latin-1"))
