"""Texts and token ids of a model."""

from __future__ import annotations

import ctypes
import functools
from typing import Any, Optional

import numpy as np

from ..constraint import rest_of_character
from .library import L, Model

# In place of a first byte: a token that may stand for something else than its text.
OTHER = 256
# Models of one family fill the table up to different multiples: tokens that never come.
_MAX_PADDING = 256


class Vocabulary:
    """Texts and token ids. Its calls are thread-safe."""

    def __init__(self, model: Model):
        self._model = model
        self.pointer = L.llama_model_get_vocab(model.pointer)
        self.n_tokens: int = L.llama_vocab_n_tokens(self.pointer)
        self._pieces: dict[tuple[int, bool], bytes] = {}
        ids = range(self.n_tokens)
        self.ends = frozenset(id for id in ids if L.llama_vocab_is_eog(self.pointer, id))
        special = L.LLAMA_TOKEN_ATTR_CONTROL | L.LLAMA_TOKEN_ATTR_USER_DEFINED
        self.special_tokens = frozenset(
            self._text(id) for id in ids if L.llama_vocab_get_attr(self.pointer, id) & special
        )
        self.bos = self._text(L.llama_vocab_bos(self.pointer))
        self.eos = self._text(L.llama_vocab_eos(self.pointer))
        self.add_bos = bool(L.llama_vocab_get_add_bos(self.pointer))
        self.fill_in = self._fill_in_tokens()

    def tokenize(self, text: str, add_bos: bool, parse_special: bool) -> list[int]:
        return self.tokenize_bytes(text.encode("utf-8", "surrogatepass"), add_bos, parse_special)

    def tokenize_bytes(self, data: bytes, add_bos: bool, parse_special: bool) -> list[int]:
        n_room = len(data) + 2
        while True:
            room = (L.llama_token * n_room)()
            n = L.llama_tokenize(self.pointer, data, len(data), room, n_room, add_bos, parse_special)
            if n >= 0:
                return list(room[:n])
            n_room = -n

    def piece(self, token: int, special: bool = False) -> bytes:
        """The bytes of a token; those of a control token only if they are asked for."""
        piece = self._pieces.get((token, special))
        if piece is None:
            piece = self._pieces[token, special] = self._read_piece(token, special)
        return piece

    @functools.cached_property
    def characters(self) -> Any:
        """Of each token: 2 if it is whole characters, 1 if its last one is cut, 0 if it begins within one."""
        rests = (rest_of_character(self.piece(token, special=True)) for token in range(self.n_tokens))
        return np.fromiter((0 if rest is None else 1 if rest else 2 for rest in rests), np.int8, self.n_tokens)

    def difference(self, other: Vocabulary) -> str:
        """What is said differently with the same ids, in words; empty if nothing is but unused ids at the end."""
        if abs(self.n_tokens - other.n_tokens) > _MAX_PADDING:
            return f"{self.n_tokens} tokens and {other.n_tokens}"
        if self.add_bos != other.add_bos or self.bos != other.bos:
            return f"a text begins with {self.bos!r} and {other.bos!r}"
        for id in range(min(self.n_tokens, other.n_tokens)):
            texts = self._text(id), other._text(id)
            if texts[0] != texts[1]:
                return f"token {id} is {texts[0]!r} and {texts[1]!r}"
        return ""

    def read_all(self) -> None:
        """Looks at the text of every token, as grammars want: a moment for a large vocabulary, and once."""
        _ = self.characters, self.single_bytes

    @functools.cached_property
    def first_bytes(self) -> Any:
        """Of each token the first byte of its text; 256 where a grammar may know the token by other than its text."""
        special = L.LLAMA_TOKEN_ATTR_CONTROL | L.LLAMA_TOKEN_ATTR_USER_DEFINED
        pieces = (self.piece(token, special=True) for token in range(self.n_tokens))
        firsts = np.fromiter((piece[0] if piece else OTHER for piece in pieces), np.int16, self.n_tokens)
        firsts[[id for id in range(self.n_tokens) if L.llama_vocab_get_attr(self.pointer, id) & special]] = OTHER
        firsts[list(self.ends)] = OTHER
        return firsts

    @functools.cached_property
    def single_bytes(self) -> Any:
        """The tokens that are one byte each."""
        lengths = np.fromiter((len(self.piece(token, special=True)) for token in range(self.n_tokens)), np.int32)
        return np.flatnonzero((lengths == 1) & (self.first_bytes < OTHER))

    def is_end(self, token: int) -> bool:
        return token in self.ends

    def _fill_in_tokens(self) -> Optional[tuple[int, int, int]]:
        read = (L.llama_vocab_fim_pre, L.llama_vocab_fim_suf, L.llama_vocab_fim_mid)
        before, after, here = (token(self.pointer) for token in read)
        return None if min(before, after, here) < 0 else (before, after, here)

    def _read_piece(self, token: int, special: bool) -> bytes:
        if not 0 <= token < self.n_tokens:  # the library would abort the process
            raise ValueError(f"token ids go from 0 to {self.n_tokens - 1}, not {token}")
        n_room = 64
        while True:
            room = ctypes.create_string_buffer(n_room)
            n = L.llama_token_to_piece(self.pointer, token, room, n_room, 0, special)
            if n >= 0:
                return room.raw[:n]
            n_room = -n

    def _text(self, token: int) -> str:
        if not 0 <= token < self.n_tokens:
            return ""
        text: bytes = L.llama_vocab_get_text(self.pointer, token)
        return text.decode("utf-8", "replace")
