"""A grammar of llama.cpp beside a vocabulary: which tokens may come next, asked of as few as possible.

To ask about a whole vocabulary takes thousands of times as long as about one token. So the likeliest are asked
about first. Where few of those are allowed, most characters are not: then the tokens that begin with one of
the others need not be asked about at all.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from ...grammar import has_token_rules
from ..constraint import TriggerWatch, rest_of_character
from ..values import Constraint, InvalidGrammar
from .candidates import candidates, largest, token_array, with_others
from .library import L, problems
from .vocabulary import Vocabulary

# More of the likeliest tokens than are needed are asked about, since some of them will be refused.
_SPARE = 1.5
_GROWTH = 8
# What share of all that is allowed may be left out, unseen: where all the likeliest have been asked about and
# nearly none is allowed, and where no number says how many are needed.
_NEGLIGIBLE = 1e-6
_TOO_UNLIKELY = 1e-4
# How far below the likeliest token, in natural logarithms, others are looked for then.
_DEPTHS = (6.0, 8.0, 10.0, 12.0, 16.0, 24.0)


class Grammar:
    """A grammar from where its trigger was said, or from the start.

    What it binds is the text that is seen: so no control token may come but the ends of answers, those that
    are `visible`, and those that the grammar names.

    Raises (on making):
        InvalidGrammar: llama.cpp cannot read it.
    """

    def __init__(self, constraint: Constraint, vocabulary: Vocabulary, visible: Iterable[int] = ()):
        self._vocabulary = vocabulary
        self._origin = constraint.origin
        self._watch: TriggerWatch | None = TriggerWatch(constraint.triggers) if constraint.triggers else None
        self._sampler = L.llama_sampler_init_grammar(
            vocabulary.pointer, constraint.grammar.encode(), constraint.root.encode()
        )
        # The bytes of a character that is not complete yet.
        self._begun = b""
        # Tokens that it names are allowed whatever their text is.
        self._goes_by_text = not has_token_rules(constraint.grammar)
        self._is_unseen = vocabulary.is_control.copy()
        self._is_unseen[[*visible, *vocabulary.ends]] = False
        # The library takes an empty grammar for no grammar at all: that would fail open.
        if not self._sampler or not constraint.grammar.strip():
            self.close()
            raise InvalidGrammar(problems(), constraint.origin)

    @property
    def is_active(self) -> bool:
        return self._watch is None and bool(self._sampler)

    def allows(self, token: int) -> bool:
        return len(self.filter(_alone(token))) == 1

    def filter(self, some: Any) -> Any:
        """Those of the candidates that may come next."""
        allowed = self._matching(some)
        return allowed[~self._is_unseen[allowed["id"]]] if self._goes_by_text else allowed

    def likeliest(self, logits: Any, n_needed: int, others: Any, temperature: float) -> Any:
        """Candidates that may come next: of the likeliest as many as are needed, if there are so many, and `others`.

        Raises:
            InvalidGrammar: nothing may come next.
        """
        # Each of the others may be one of the likeliest only before it is moved.
        n_needed += len(others)
        n_asked = int(n_needed * _SPARE) + 8
        if n_asked < len(logits):
            asked = with_others(largest(logits, n_asked), others)
            allowed = self._among(asked, logits)
            if len(allowed) >= n_needed or (
                len(allowed) and _is_all(asked, allowed["id"], _shares(logits, others, temperature))
            ):
                return allowed
        possible = self._possible()
        while n_asked * _GROWTH < len(possible):
            n_asked *= _GROWTH
            allowed = self._among(with_others(possible[largest(logits[possible], n_asked)], others), logits)
            if len(allowed) >= n_needed:
                return allowed
        return self._some(self._among(possible, logits))

    def all_that_count(self, logits: Any, others: Any, temperature: float) -> Any:
        """Candidates that may come next: all but those that together are too unlikely to matter, and `others`.

        Raises:
            InvalidGrammar: nothing may come next.
        """
        shares = _shares(logits, others, temperature)
        total = float(shares.sum())
        for depth in _DEPTHS:
            is_likely = shares >= math.exp(-depth)
            rest = float(shares[~is_likely].sum())
            if rest <= _TOO_UNLIKELY * total:
                allowed = self._among(with_others(np.flatnonzero(is_likely), others), logits)
                if rest <= _TOO_UNLIKELY * float(shares[allowed["id"]].sum()):
                    return self._some(allowed)
                break
        return self._some(self._among(self._possible(), logits))

    def accept(self, token: int) -> None:
        """A token was drawn; an active grammar has allowed it."""
        if self._watch is None:
            # The library aborts the process when it is told a token that it does not allow.
            if self._sampler:
                self._accept(token)
            return
        said = self._watch.feed(self._vocabulary.piece(token, special=True))
        if said is not None:
            self._watch = None
            self._accept_text(said)

    def close(self) -> None:
        if self._sampler:
            L.llama_sampler_free(self._sampler)
            self._sampler = None

    def _matching(self, some: Any) -> Any:
        """Those of the candidates that continue the grammar's text, whether they are seen or not."""
        array = token_array(some)
        L.llama_sampler_apply(self._sampler, ctypes.byref(array))
        allowed = some[some["logit"] > -math.inf]
        return allowed[self._go_on(allowed["id"])]

    def _among(self, ids: Any, logits: Any) -> Any:
        return self.filter(candidates(ids, logits[ids]))

    def _some(self, allowed: Any) -> Any:
        if not len(allowed):
            raise InvalidGrammar("it allows only what this model has no tokens for", self._origin)
        return allowed

    def _possible(self) -> Any:
        """The tokens that are not refused for their first byte alone."""
        firsts, tokens = self._vocabulary.first_bytes, self._vocabulary.byte_tokens
        if not self._goes_by_text:
            return np.arange(len(firsts))
        asked = candidates(tokens, np.zeros(len(tokens)))
        L.llama_sampler_apply(self._sampler, ctypes.byref(token_array(asked)))
        is_refused = np.zeros(257, bool)
        is_refused[firsts[asked["id"]]] = np.isneginf(asked["logit"])
        return np.flatnonzero(~is_refused[firsts])

    def _go_on(self, tokens: Any) -> Any:
        """Which of the tokens make UTF-8 of the text; the library reads bytes that are none as characters."""
        kinds = self._vocabulary.characters[tokens]
        if not self._begun:
            return kinds > 0
        rests = (
            rest_of_character(self._begun + self._vocabulary.piece(int(token), True)) for token in tokens[kinds < 2]
        )
        goes_on = np.zeros(len(tokens), bool)
        goes_on[kinds < 2] = [rest is not None for rest in rests]
        return goes_on

    def _accept_text(self, text: bytes) -> None:
        for token in self._vocabulary.spell(text):
            if not len(self._matching(_alone(token))):
                # What came with the trigger's last token is not of the grammar: it cannot be taken back.
                self.close()
                return
            self._accept(token)

    def _accept(self, token: int) -> None:
        L.llama_sampler_accept(self._sampler, token)
        self._begun = rest_of_character(self._begun + self._vocabulary.piece(token, special=True)) or b""


def _shares(logits: Any, moved: Any, temperature: float) -> Any:
    """How likely each token is beside the likeliest one, at that temperature or as the model has it.

    0 for those that are yet to be moved: beside one that will be forbidden nothing else would seem to matter.
    """
    left = logits.copy()
    left[moved] = -math.inf
    return np.exp((left - left.max()) / max(temperature, 1.0))


def _is_all(asked: Any, allowed: Any, shares: Any) -> bool:
    """Whether what was not asked about is nothing beside what is allowed."""
    rest = float(shares.sum(dtype=np.float64)) - float(shares[asked].sum(dtype=np.float64))
    return rest <= _NEGLIGIBLE * float(shares[allowed].sum())


def _alone(token: int) -> Any:
    return candidates(np.array([token]), np.zeros(1))
