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
        """`texts` are those of all special tokens that the tokenizer parses.

        No text is split before those of `uncut`: they strip the white space before them, which would be left at the end
        of a block.
        """
        # No text is split before a token that another one may overlap, since the tokenizer might parse the other one:
        # with the tokens "<|" and "a<", the text "a<|" is "a<" and "|". The other one has the first byte of this token
        # after its own first, as here, or the last byte of this token before its own last.
        later, earlier = set(b"".join(text[1:] for text in texts)), set(b"".join(text[:-1] for text in texts))
        cuts = [text for text in texts if text[0] not in later and text[-1] not in earlier and text not in uncut]
        self._cuts = re.compile(pattern_of(text.decode("latin-1") for text in cuts).encode("latin-1"))
        self._longest = max(map(len, cuts), default=0)

    def split(self, data: bytes) -> Iterator[bytes]:
        """The blocks of a text. Each ends at the first possible place after `BLOCK_BYTES`."""
        begin = 0
        while len(data) - begin > BLOCK_BYTES:
            windows = range(begin + BLOCK_BYTES, len(data), _WINDOW)
            matches = (self._cuts.search(data, at, at + _WINDOW + self._longest) for at in windows)
            cut = next(filter(None, matches), None)
            if cut is None:
                break
            yield data[begin : cut.start()]
            begin = cut.start()
        yield data[begin:]
