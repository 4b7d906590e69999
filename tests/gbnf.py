"""llama.cpp's grammar engine, with the vocabulary of the built-in model, to test grammars independently of localchat.

No weights are loaded. llama.cpp aborts the process if a sampler accepts a token that its grammar does not allow, so
every token is checked first.
"""

from __future__ import annotations

import ctypes
import functools
import os
import random

import llama_cpp as L
import numpy as np

from localchat.serving.models.catalog import DEMO_PATH

# The layout of llama_token_data.
TOKEN_DATA = np.dtype([("id", "i4"), ("logit", "f4"), ("p", "f4")])


CLOSING = (b'"', b"}", b"]")
# How many tokens a step of a random walk checks: enough that some of them are allowed.
MAX_CHECKED = 100


class InvalidGrammar(Exception):
    """llama.cpp cannot parse the grammar."""


@L.llama_log_callback
def _be_quiet(level: int, text: bytes, data: object) -> None:
    pass


class Vocabulary:
    """The tokens of the built-in model and their bytes."""

    def __init__(self) -> None:
        L.llama_log_set(_be_quiet, ctypes.c_void_p(0))
        params = L.llama_model_default_params()
        params.vocab_only = True
        self._model = L.llama_model_load_from_file(str(DEMO_PATH).encode(), params)
        assert self._model, f"no model at {DEMO_PATH}"
        self.handle = L.llama_model_get_vocab(self._model)
        ids = range(L.llama_vocab_n_tokens(self.handle))
        self.end = next(token for token in ids if L.llama_vocab_is_eog(self.handle, token))
        self.pieces = {token: piece for token in ids if (piece := self._piece(token))}
        # The engine accepts some byte sequences that are not UTF-8, so random walks use tokens of whole characters.
        self.whole = [token for token, piece in self.pieces.items() if _is_text(piece)]
        self.token_of = {piece: token for token, piece in reversed(self.pieces.items())}
        self.bytes = [token for piece, token in self.token_of.items() if len(piece) == 1]
        self.of_first_byte = {
            byte: [token for token in self.whole if self.pieces[token].startswith(byte)]
            for byte in map(self.pieces.__getitem__, self.bytes)
        }

    def _piece(self, token: int) -> bytes:
        if L.llama_vocab_is_eog(self.handle, token) or L.llama_vocab_is_control(self.handle, token):
            return b""
        buffer = ctypes.create_string_buffer(64)
        n = L.llama_token_to_piece(self.handle, token, buffer, len(buffer), 0, True)
        return buffer.raw[:n] if n > 0 else b""

    def cut(self, data: bytes) -> list[int]:
        """The bytes as tokens of one byte each."""
        return [self.token_of[data[i : i + 1]] for i in range(len(data))]


def _is_text(piece: bytes) -> bool:
    try:
        return bool(piece.decode())
    except UnicodeDecodeError:
        return False


@functools.lru_cache(maxsize=1)
def vocabulary() -> Vocabulary:
    return Vocabulary()


class Matcher:
    """Matches one text against a grammar, token by token. Use it as a context manager."""

    def __init__(self, grammar: str, root: str = "root"):
        self._vocab = vocabulary()
        self._sampler = _quietly(grammar, root)
        if not self._sampler:
            raise InvalidGrammar(grammar)

    def __enter__(self) -> Matcher:
        return self

    def __exit__(self, *error: object) -> None:
        L.llama_sampler_free(self._sampler)

    def allowed(self, tokens: list[int]) -> list[int]:
        """The given tokens that may come next."""
        data = np.zeros(len(tokens), TOKEN_DATA)
        data["id"] = tokens
        pointer = data.ctypes.data_as(ctypes.POINTER(L.llama_token_data))
        L.llama_sampler_apply(self._sampler, ctypes.byref(L.llama_token_data_array(pointer, len(tokens), -1, False)))
        allowed: list[int] = data["id"][np.isfinite(data["logit"])].tolist()
        return allowed

    def feed(self, token: int) -> bool:
        if not self.allowed([token]):
            return False
        self.accept(token)
        return True

    def accept(self, token: int) -> None:
        """Accept a token, which must be allowed."""
        L.llama_sampler_accept(self._sampler, token)

    def may_end(self) -> bool:
        return bool(self.allowed([self._vocab.end]))


def _quietly(grammar: str, root: str) -> object:
    """A sampler, or NULL for an invalid grammar. The engine prints such a grammar on stderr, which is hidden here."""
    saved, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        return L.llama_sampler_init_grammar(vocabulary().handle, grammar.encode(), root.encode())
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(nowhere)


def n_matched(grammar: str, text: str, root: str = "root") -> int:
    """The number of bytes of the text that the grammar accepts, plus one if the text may end after the last one."""
    data = text.encode("utf-8", "surrogatepass")
    with Matcher(grammar, root) as matcher:
        for n, token in enumerate(vocabulary().cut(data)):
            if not matcher.feed(token):
                return n
        return len(data) + matcher.may_end()


def matches(grammar: str, text: str, root: str = "root") -> bool:
    return n_matched(grammar, text, root) > len(text.encode("utf-8", "surrogatepass"))


def generate(grammar: str, random_: random.Random, max_tokens: int = 300, root: str = "root") -> str | None:
    """A random text of the grammar, or None if it is not complete after `max_tokens`.

    Each step takes one of the allowed tokens at random; where the text may end, it ends with probability 1/2. After
    half of the tokens, closing tokens are preferred, and the text ends as soon as it may.
    """
    vocab, out = vocabulary(), bytearray()
    with Matcher(grammar, root) as matcher:
        for n in range(max_tokens):
            hurry = n > max_tokens // 2
            firsts = matcher.allowed([*vocab.bytes, vocab.end])
            assert firsts, f"no token is allowed after {bytes(out)!r}"
            may_end = firsts[-1] == vocab.end
            if may_end and (len(firsts) == 1 or hurry or random_.random() < 0.5):
                return out.decode()
            tokens = _some_allowed(matcher, firsts[:-1] if may_end else firsts, random_)
            token = _chosen(tokens, random_, hurry)
            matcher.accept(token)
            out += vocab.pieces[token]
    return None


def _some_allowed(matcher: Matcher, firsts: list[int], random_: random.Random) -> list[int]:
    """Some tokens that may come next, chosen at random. `firsts` are the allowed tokens of one byte.

    Checking the whole vocabulary takes too long, so only tokens that begin with one of `firsts` are checked.
    """
    vocab = vocabulary()
    possible = [token for first in firsts for token in vocab.of_first_byte[vocab.pieces[first]]]
    if len(possible) > MAX_CHECKED:
        # Closing tokens are always checked.
        closing = [token for token in firsts if vocab.pieces[token] in CLOSING]
        if tokens := matcher.allowed(random_.choices(possible, k=MAX_CHECKED) + closing):
            return tokens
    # A character without its own token is generated byte by byte.
    return matcher.allowed(possible) or firsts


def _chosen(tokens: list[int], random_: random.Random, hurry: bool) -> int:
    pieces = vocabulary().pieces
    closing = [token for token in tokens if pieces[token] in CLOSING]
    return random_.choice(closing if closing and (hurry or random_.random() < 0.2) else tokens)
