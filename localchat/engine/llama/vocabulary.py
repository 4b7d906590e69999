"""Texts and token ids of a model."""

from __future__ import annotations

import ctypes

import numpy as np

from ..constraint import rest_of_character
from .library import L, Model

# In place of a first byte, for a token that has none or does not go by it.
NO_BYTE = 256


class Vocabulary:
    """Texts and token ids. Its calls are thread-safe.

    For whoever asks about all tokens at once there are arrays: `ids`; `characters`, for each token 2 if it is
    whole characters, 1 if its last one is cut, 0 if it begins within one; `first_bytes`, NO_BYTE for the ends
    of answers; `is_control`, whether its text is only seen where it is asked for; and `byte_tokens`, one token
    for each byte that is a token.
    """

    def __init__(self, model: Model):
        self._model = model
        self.pointer = L.llama_model_get_vocab(model.pointer)
        self.n_tokens: int = L.llama_vocab_n_tokens(self.pointer)
        self._pieces: dict[int, bytes] = {}
        ids = range(self.n_tokens)
        self.ends = frozenset(id for id in ids if L.llama_vocab_is_eog(self.pointer, id))
        attributes = [L.llama_vocab_get_attr(self.pointer, id) for id in ids]
        special = L.LLAMA_TOKEN_ATTR_CONTROL | L.LLAMA_TOKEN_ATTR_USER_DEFINED
        self.special_tokens = frozenset(self._text(id) for id in ids if attributes[id] & special)
        self.bos = self._text(L.llama_vocab_bos(self.pointer))
        self.eos = self._text(L.llama_vocab_eos(self.pointer))
        self.add_bos = bool(L.llama_vocab_get_add_bos(self.pointer))
        self.fill_in = self._fill_in_tokens()
        # All at once and now: at the first grammar it would hold up everybody for a third of a second.
        self._special_pieces = [self._read_piece(id, True) for id in ids]
        self.ids = np.arange(self.n_tokens, dtype=np.int32)
        control = L.LLAMA_TOKEN_ATTR_CONTROL | L.LLAMA_TOKEN_ATTR_UNKNOWN
        self.is_control = np.array(attributes, np.int64) & control != 0
        self.characters = np.fromiter(map(_character_kind, self._special_pieces), np.int8, self.n_tokens)
        self.first_bytes = np.fromiter(map(self._first_byte, ids), np.int16, self.n_tokens)
        bytes_alone = {piece: id for id, piece in zip(reversed(ids), reversed(self._special_pieces)) if len(piece) == 1}
        self.byte_tokens = np.fromiter(bytes_alone.values(), np.int32)
        self._by_byte = {piece[0]: id for piece, id in bytes_alone.items()}

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

    def spell(self, text: bytes) -> list[int]:
        """Tokens, control tokens among them, that together are exactly this text."""
        tokens: list[int] = []
        for token in self.tokenize_bytes(text, add_bos=False, parse_special=True):
            piece = self._special_pieces[token]
            if text.startswith(piece):
                tokens.append(token)
            elif piece[:1] == b" " and text.startswith(piece[1:]):
                # SentencePiece puts a space before a text, and before what comes after a control token.
                piece = piece[1:]
                tokens += self._bytes(piece)
            else:
                # The library takes a character that is cut for another one.
                break
            text = text[len(piece) :]
        return tokens + self._bytes(text)

    def piece(self, token: int, special: bool = False) -> bytes:
        """The bytes of a token; those of a control token only if they are asked for."""
        self._check(token)
        if special:
            return self._special_pieces[token]
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = self._read_piece(token, False)
        return piece

    def is_end(self, token: int) -> bool:
        return token in self.ends

    def difference(self, other: Vocabulary) -> str:
        """What is said differently with the same ids, in words; empty if nothing is but unused ids at the end."""
        # Models of one family fill their tables up to different multiples: with tokens that never come.
        if abs(self.n_tokens - other.n_tokens) > 256:
            return f"{self.n_tokens} tokens and {other.n_tokens}"
        if self.add_bos != other.add_bos or self.bos != other.bos:
            return f"a text begins with {self.bos!r} and {other.bos!r}"
        for id in range(min(self.n_tokens, other.n_tokens)):
            texts = self._text(id), other._text(id)
            if texts[0] != texts[1]:
                return f"token {id} is {texts[0]!r} and {texts[1]!r}"
        return ""

    def _fill_in_tokens(self) -> tuple[int, int, int] | None:
        read = (L.llama_vocab_fim_pre, L.llama_vocab_fim_suf, L.llama_vocab_fim_mid)
        before, after, here = (token(self.pointer) for token in read)
        return None if min(before, after, here) < 0 else (before, after, here)

    def _check(self, token: int) -> None:
        if not 0 <= token < self.n_tokens:  # the library would abort the process
            raise ValueError(f"token ids go from 0 to {self.n_tokens - 1}, not {token}")

    def _bytes(self, text: bytes) -> list[int]:
        return [self._by_byte[byte] for byte in text]

    def _first_byte(self, token: int) -> int:
        piece = self._special_pieces[token]
        return piece[0] if piece and token not in self.ends else NO_BYTE

    def _read_piece(self, token: int, special: bool) -> bytes:
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


def _character_kind(piece: bytes) -> int:
    rest = b"" if piece.isascii() else rest_of_character(piece)
    return 0 if rest is None else 1 if rest else 2
