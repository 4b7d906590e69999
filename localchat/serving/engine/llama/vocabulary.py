"""The vocabulary of a model: tokenizing text, and the texts of tokens."""

from __future__ import annotations

import ctypes
from functools import cached_property, lru_cache
from itertools import compress, repeat
from typing import Any

import numpy as np

from ..values import TokenTexts, text_too_long
from .grammars import Grammars
from .library import L, LlamaModel, call_for_each
from .text_blocks import TextBlocks

MAX_TOKENS = 2_000_000
"""Limit of tokens of a text. No context has as many."""
# The pieces of most tokens have fewer bytes.
_ROW_BYTES = 64


class Vocabulary:
    """The vocabulary of a model. Any thread may use it."""

    def __init__(self, model: LlamaModel):
        self._model = model
        self.pointer = pointer = L.llama_model_get_vocab(model.pointer)
        self.n_tokens: int = L.llama_vocab_n_tokens(pointer)
        ids = range(self.n_tokens)
        self.eog_tokens = frozenset(compress(ids, call_for_each(L.llama_vocab_is_eog, pointer, ids)))
        self._attributes = np.fromiter(call_for_each(L.llama_vocab_get_attr, pointer, ids), np.int64, self.n_tokens)
        # llama.cpp makes these tokens of a text only with `parse_special`, and user-defined tokens always.
        control = L.LLAMA_TOKEN_ATTR_CONTROL | L.LLAMA_TOKEN_ATTR_UNKNOWN
        self.special_tokens = frozenset(self._text(id) for id in self._ids_with(control))
        self.bos, self.eos = self._text(L.llama_vocab_bos(pointer)), self._text(L.llama_vocab_eos(pointer))
        self.add_bos = bool(L.llama_vocab_get_add_bos(pointer))
        # Arrays over the vocabulary: the ids, and which are control tokens, whose text is empty unless it is requested.
        self.ids = np.arange(self.n_tokens, dtype=np.int32)
        self.is_control = self._attributes & control != 0
        # The bytes of each token, including control tokens.
        self.all_pieces = self._read_pieces()
        hidden = frozenset(np.flatnonzero(self.is_control).tolist())
        self.texts = TokenTexts(self.all_pieces, hidden, self.eog_tokens)
        self.grammars = Grammars(self)
        self._blocks = lru_cache(self._new_blocks)

    def tokenize(
        self, text: str, *, add_bos: bool = False, parse_special: bool = True, limit: int | None = None
    ) -> list[int]:
        """The tokens of a text. Raises ContextLengthExceeded for more than `limit` or `MAX_TOKENS` tokens."""
        n_most = MAX_TOKENS if limit is None else min(limit, MAX_TOKENS)
        return self.tokenize_bytes(text.encode("utf-8", "surrogatepass"), add_bos, parse_special, n_most)

    def tokenize_bytes(self, data: bytes, add_bos: bool, parse_special: bool, limit: int = MAX_TOKENS) -> list[int]:
        tokens: list[int] = []
        for block in [data] if add_bos and self._adds_end else self._blocks(parse_special).split(data):
            buffer, n = self._tokenize_block(block, add_bos, parse_special)
            if len(tokens) + n > limit:
                raise text_too_long(len(tokens) + n, limit)
            tokens += buffer[:n]
            add_bos = False
        return tokens

    def _tokenize_block(self, data: bytes, add_bos: bool, parse_special: bool) -> tuple[Any, int]:
        """An array that begins with the tokens, and their number."""
        n_buffer = len(data) + 2
        while True:
            buffer = (L.llama_token * n_buffer)()
            n = L.llama_tokenize(self.pointer, data, len(data), buffer, n_buffer, add_bos, parse_special)
            if n >= 0:
                return buffer, n
            n_buffer = -n

    @cached_property
    def _adds_end(self) -> bool:
        """Whether a text that begins with BOS also ends with a token, so that it must not be cut."""
        return self._tokenize_block(b"", True, False)[1] > self.add_bos

    def _new_blocks(self, parse_special: bool) -> TextBlocks:
        """The splitter of texts in which control tokens are parsed, or are ordinary text."""
        control = L.LLAMA_TOKEN_ATTR_CONTROL | L.LLAMA_TOKEN_ATTR_UNKNOWN if parse_special else 0
        special, stripping = (
            {L.llama_vocab_get_text(self.pointer, id) for id in self._ids_with(mask)} - {b""}
            for mask in (control | L.LLAMA_TOKEN_ATTR_USER_DEFINED, L.LLAMA_TOKEN_ATTR_LSTRIP)
        )
        return TextBlocks(special, stripping)

    def _ids_with(self, attributes: int) -> list[int]:
        """The ids of the tokens that have one of these attributes."""
        ids: list[int] = np.flatnonzero(self._attributes & attributes).tolist()
        return ids

    def _read_pieces(self) -> list[bytes]:
        # Each piece is written into a row of its own.
        ids, rows = range(self.n_tokens), (ctypes.c_char * _ROW_BYTES * self.n_tokens)()
        sizes = call_for_each(L.llama_token_to_piece, self.pointer, ids, rows, repeat(_ROW_BYTES), repeat(0), repeat(1))
        return [self._piece(id, -size) if size < 0 else row.raw[:size] for id, size, row in zip(ids, sizes, rows)]

    def _piece(self, token: int, n_bytes: int) -> bytes:
        buffer = ctypes.create_string_buffer(n_bytes)
        L.llama_token_to_piece(self.pointer, token, buffer, n_bytes, 0, True)
        return buffer.raw

    def _text(self, token: int) -> str:
        if not 0 <= token < self.n_tokens:
            return ""
        text: bytes = L.llama_vocab_get_text(self.pointer, token)
        return text.decode("utf-8", "replace")
