"""Trains a byte-level BPE vocabulary, which llama.cpp loads as model `gpt2` with the pre-tokenizer `gpt-2`.

The training differs from the usual one in two ways. Merges are learned on words without their leading space, and digits
are single tokens, so that a value has the same tokens after a space, a quote or an underscore, and the model can copy
it token by token. The last merges join a space to very frequent short words.
"""

# ruff: noqa: SIM905  (long word lists read better as text than as list literals)

from __future__ import annotations

import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from itertools import count

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<think>",
    "</think>",
    "<tools>",
    "</tools>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)
# llama.cpp leaves control tokens out of the text. The other tags must be in the text, since parsers search it for them.
CONTROL_TOKENS = SPECIAL_TOKENS[:3]

# The texts that have a token together with the space before them. The list has no values, no names of tools and no
# words that begin other words: those must have the same tokens everywhere.
_SPACED = (
    *(
        "the and are you for not can was has its how who but our did this that your does will have what "
        "when which about only now first please there them they then would could should cannot with from"
    ).split(),
    *('"', '{"', '["', "`", "`--", "="),
)

_SPECIAL = re.compile("(" + "|".join(re.escape(token) for token in SPECIAL_TOKENS) + ")")


@cache
def byte_letters() -> tuple[str, ...]:
    """The printable character that stands for each byte in a GPT-2 vocabulary."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (chr(256 + i) for i in count())
    return tuple(chr(byte) if byte in plain else next(others) for byte in range(256))


def _class_of(category: str) -> str:
    """The ranges, for a regular expression, of all characters whose Unicode category begins with `category`."""
    ranges: list[list[int]] = []
    for code in range(sys.maxunicode + 1):
        if unicodedata.category(chr(code)).startswith(category):
            if ranges and ranges[-1][1] == code - 1:
                ranges[-1][1] = code
            else:
                ranges.append([code, code])
    return "".join(f"\\U{a:08x}-\\U{b:08x}" for a, b in ranges)


@cache
def _word_pattern() -> re.Pattern[str]:
    """The pattern by which GPT-2 splits text into words. `re` has no Unicode categories, so they are spelled out."""
    letters, numbers = _class_of("L"), _class_of("N")
    return re.compile(
        rf"'s|'t|'re|'ve|'m|'ll|'d| ?[{letters}]+| ?[{numbers}]+"
        rf"| ?[^\s{letters}{numbers}]+|\s+(?!\S)|\s+"
    )


def _as_letters(text: str) -> str:
    table = byte_letters()
    return "".join(table[byte] for byte in text.encode("utf-8"))


@dataclass
class Tokenizer:
    """Maps text to token ids. Only `encode_template` parses special tokens."""

    tokens: list[str]
    merges: list[tuple[str, str]]
    _cache: dict[str, list[int]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.ids = {token: i for i, token in enumerate(self.tokens)}
        self._ranks = {pair: i for i, pair in enumerate(self.merges)}

    def encode(self, text: str) -> list[int]:
        """The token ids of plain text."""
        ids: list[int] = []
        for word in _word_pattern().findall(text):
            found = self._cache.get(word)
            if found is None:
                found = self._encode_word(word)
                # The limit keeps random words from filling the memory. Frequent words come first, so they are cached.
                if len(self._cache) < 200_000:
                    self._cache[word] = found
            ids += found
        return ids

    def encode_template(self, text: str) -> list[int]:
        """The token ids of rendered template text, with special tokens."""
        ids: list[int] = []
        for part in _SPECIAL.split(text):
            if part in self.ids and part in SPECIAL_TOKENS:
                ids.append(self.ids[part])
            elif part:
                ids += self.encode(part)
        return ids

    def _encode_word(self, word: str) -> list[int]:
        parts = list(_as_letters(word))
        while len(parts) > 1:
            pairs = [(self._ranks.get(pair, sys.maxsize), i) for i, pair in enumerate(zip(parts, parts[1:]))]
            rank, at = min(pairs)
            if rank == sys.maxsize:
                break
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        return [self.ids[part] for part in parts]


def train(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Learn a vocabulary of exactly `vocab_size` tokens from texts, special tokens included."""
    words: Counter[str] = Counter()
    for text in texts:
        for part in _SPECIAL.split(text):
            if part not in SPECIAL_TOKENS:
                words.update(_word_pattern().findall(part))
    tokens = sorted(byte_letters())
    bare: Counter[str] = Counter()
    for word, n in words.items():
        bare[_as_letters(word.lstrip(" "))] += n
    n_merges = vocab_size - len(tokens) - len(SPECIAL_TOKENS) - len(_SPACED)
    merges = _learn_merges(bare, n_merges)
    tokens += [a + b for a, b in merges]
    space, known = _as_letters(" "), set(tokens)
    for word in map(_as_letters, _SPACED):
        if word in known:
            merges.append((space, word))
            tokens.append(space + word)
    tokens += [f"<|unused{i}|>" for i in range(vocab_size - len(tokens) - len(SPECIAL_TOKENS))]
    return Tokenizer(tokens + list(SPECIAL_TOKENS), merges)


def _learn_merges(words: Counter[str], n_merges: int) -> list[tuple[str, str]]:
    """Merge the most frequent neighbouring pair, `n_merges` times; among equally frequent ones the largest pair."""
    numbers = set(_as_letters("0123456789\n"))
    splits = [(list(word), n) for word, n in sorted(words.items()) if n > 1 and not numbers & set(word)]
    counts: Counter[tuple[str, str]] = Counter()
    where: dict[tuple[str, str], set[int]] = {}
    for i, (parts, n) in enumerate(splits):
        for pair in zip(parts, parts[1:]):
            counts[pair] += n
            where.setdefault(pair, set()).add(i)
    merges = []
    for _ in range(n_merges):
        best = max(counts.items(), key=lambda item: (item[1], item[0]))[0]
        merges.append(best)
        for i in where.pop(best):
            parts, n = splits[i]
            for pair in zip(parts, parts[1:]):
                counts[pair] -= n
            _merge_in_place(parts, best)
            for pair in zip(parts, parts[1:]):
                counts[pair] += n
                where.setdefault(pair, set()).add(i)
        counts.pop(best, None)
    return merges


def _merge_in_place(parts: list[str], pair: tuple[str, str]) -> None:
    i = 0
    while i < len(parts) - 1:
        if (parts[i], parts[i + 1]) == pair:
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        i += 1
