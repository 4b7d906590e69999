"""Draws one request's tokens: a sampler chain in C, and a grammar beside it.

The grammar is not part of the chain. It is asked about the one token that was drawn; only when it
refuses that, about the others, the likeliest first. Over a whole vocabulary the question takes
thousands of times as long as over one token.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Optional

import numpy as np

from ..budget import ThinkingBudget
from ..constraint import TriggerWatch, rest_of_character
from ..sampling import GREEDY, Step, chain_steps
from ..values import Constraint, EngineError, GenerationRequest, InvalidGrammar, Sampling
from .library import L, problems
from .vocabulary import Vocabulary

# How many of the likeliest tokens the grammar is asked about first, when it refused the one drawn.
_FIRST_LIKELIEST = 256
_GROWTH = 16

_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


class Sampler:
    """Draws the tokens of one request, one thread at a time.

    Raises (on making):
        InvalidGrammar: llama.cpp cannot read the grammar.
        EngineError: it refuses a sampling step.
    """

    def __init__(self, request: GenerationRequest, vocabulary: Vocabulary, n_ctx: int):
        self._vocabulary = vocabulary
        self._sampling = _resolved(request.sampling, n_ctx)
        self._steps = chain_steps(self._sampling)
        self._forbidden = _forbidden(request, vocabulary)
        self._budget = ThinkingBudget(request.thinking) if request.thinking else None
        self._grammar = _Grammar(request.constraint, vocabulary) if request.constraint else None
        # Without a chain the likeliest token is all that is asked for.
        self._chain: Any = None
        try:
            if self._steps != [GREEDY] or self._sampling.logit_bias or self._forbidden:
                self._build_chain(request.prompt)
        except BaseException:
            self.close()
            raise

    def draw(self, context: Any, row: int, logits: Any) -> int:
        """The next token, by the logits of a row, which are left as they are."""
        forced = self._budget.forced if self._budget is not None else None
        token = self._draw_freely(context, row, logits) if forced is None else self._say(forced)
        if self._grammar is not None:
            self._grammar.accept(token)
        if self._budget is not None:
            self._budget.note(token, self._vocabulary.piece(token, special=True))
        return token

    def _draw_freely(self, context: Any, row: int, logits: Any) -> int:
        if self._grammar is not None and self._grammar.is_active:
            return self._draw_constrained(logits)
        if self._chain is None:
            # A tenth of the time that the library takes, since it copies the candidates first.
            return int(logits.argmax())
        return int(L.llama_sampler_sample(self._chain, context, row))

    def _say(self, token: int) -> int:
        """A token that was not drawn."""
        if self._grammar is not None and self._grammar.is_active and not self._grammar.allows(token):
            raise EngineError("the end of thinking that a budget asks for is not of the grammar")
        if self._chain is not None:
            L.llama_sampler_accept(self._chain, token)
        return token

    def allow_ends(self) -> None:
        """The tokens forbidden by `min_tokens` may come from now on."""
        if self._forbidden:
            L.llama_sampler_free(L.llama_sampler_chain_remove(self._chain, 0))
            self._forbidden = []

    def close(self) -> None:
        if self._chain is not None:
            L.llama_sampler_free(self._chain)
            self._chain = None
        if self._grammar is not None:
            self._grammar.close()

    def _draw_constrained(self, logits: Any) -> int:
        assert self._grammar is not None
        token = self._choose(_candidates(np.arange(len(logits)), logits)) if self._chain else int(logits.argmax())
        if not self._grammar.allows(token):
            token = self._choose(self._allowed(logits))
        if self._chain is not None:
            L.llama_sampler_accept(self._chain, token)
        return token

    def _choose(self, candidates: Any) -> int:
        """What the chain selects of some candidates."""
        if self._chain is None:
            return int(candidates["id"][candidates["logit"].argmax()])
        array = _token_array(candidates)
        L.llama_sampler_apply(self._chain, ctypes.byref(array))
        return int(array.data[array.selected].id)

    def _allowed(self, logits: Any) -> Any:
        """The candidates that the grammar allows, as many as the chain could have a use for."""
        assert self._grammar is not None
        n_vocab, n_needed = len(logits), self._n_needed(len(logits))
        n_asked = min(_FIRST_LIKELIEST, n_vocab)
        while True:
            likeliest = np.argpartition(logits, -n_asked)[-n_asked:] if n_asked < n_vocab else np.arange(n_vocab)
            allowed = self._grammar.filter(_candidates(likeliest, logits[likeliest]))
            if len(allowed) >= n_needed or (n_asked == n_vocab and len(allowed)):
                return allowed
            if n_asked == n_vocab:
                raise EngineError(
                    "no token continues the grammar: it allows something that this model has no tokens for"
                )
            n_asked = min(n_asked * _GROWTH, n_vocab)

    def _n_needed(self, n_vocab: int) -> int:
        """How many allowed candidates, the likeliest, draw as all of them would."""
        if self._chain is None:
            return 1
        starts_with_top_k = self._steps[0].name == "top_k" and not self._sampling.logit_bias and not self._forbidden
        return self._sampling.top_k if starts_with_top_k else n_vocab

    def _build_chain(self, prompt: Sequence[int]) -> None:
        self._chain = L.llama_sampler_chain_init(L.llama_sampler_chain_default_params())
        if self._forbidden:  # the first, so that `allow_ends` finds it
            self._add(self._logit_bias([(id, -math.inf) for id in self._forbidden]))
        if self._sampling.logit_bias:
            self._add(self._logit_bias(self._sampling.logit_bias))
        for step in self._steps:
            self._add(self._sampler(step))
        # Penalties know the prompt's last tokens from the start.
        lengths = {"penalties": self._sampling.penalty_last_n, "dry": self._sampling.dry_penalty_last_n}
        n = max((lengths.get(step.name, 0) for step in self._steps), default=0)
        for token in prompt[-n:] if n else ():
            L.llama_sampler_accept(self._chain, token)

    def _sampler(self, step: Step) -> Any:
        construct = getattr(L, f"llama_sampler_init_{step.name}")
        n_vocab = self._vocabulary.n_tokens
        if step.name == "dry":
            breakers = [text.encode() for text in self._sampling.dry_sequence_breakers]
            array = (ctypes.c_char_p * len(breakers))(*breakers)
            return construct(self._vocabulary.pointer, *step.arguments, array, len(breakers))
        if step.name == "mirostat" or (step.name == "penalties" and len(construct.argtypes) == 5):
            return construct(n_vocab, *step.arguments)
        return construct(*step.arguments)

    def _logit_bias(self, biases: Sequence[tuple[int, float]]) -> Any:
        array = (L.llama_logit_bias * len(biases))(*biases)
        return L.llama_sampler_init_logit_bias(self._vocabulary.n_tokens, len(biases), array)

    def _add(self, sampler: Any) -> None:
        if not sampler:  # a NULL pointer; adding it would crash
            raise EngineError("llama.cpp refused a sampling step: check the sampling values")
        L.llama_sampler_chain_add(self._chain, sampler)


class _Grammar:
    """A grammar from where its trigger was said, or from the start."""

    def __init__(self, constraint: Constraint, vocabulary: Vocabulary):
        self._vocabulary = vocabulary
        self._watch: Optional[TriggerWatch] = TriggerWatch(constraint.triggers) if constraint.triggers else None
        self._sampler = L.llama_sampler_init_grammar(
            vocabulary.pointer, constraint.grammar.encode(), constraint.root.encode()
        )
        # The bytes of a character that is not complete yet.
        self._begun = b""
        # The library takes an empty grammar for no grammar at all: that would fail open.
        if not self._sampler or not constraint.grammar.strip():
            self.close()
            raise InvalidGrammar(f"llama.cpp cannot read the grammar: {problems()}")

    @property
    def is_active(self) -> bool:
        return self._watch is None and bool(self._sampler)

    def allows(self, token: int) -> bool:
        return len(self.filter(_candidates(np.array([token]), np.zeros(1)))) == 1

    def filter(self, candidates: Any) -> Any:
        """Those of the candidates that may come next."""
        array = _token_array(candidates)
        L.llama_sampler_apply(self._sampler, ctypes.byref(array))
        allowed = candidates[candidates["logit"] > -math.inf]
        return allowed[self._go_on(allowed["id"])]

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

    def _accept_text(self, text: bytes) -> None:
        for token in self._vocabulary.tokenize_bytes(text, add_bos=False, parse_special=True):
            if not self.allows(token):
                # What came with the trigger's last token is not of the grammar: it cannot be taken back.
                self.close()
                return
            self._accept(token)

    def _accept(self, token: int) -> None:
        L.llama_sampler_accept(self._sampler, token)
        self._begun = rest_of_character(self._begun + self._vocabulary.piece(token, special=True)) or b""


def _resolved(sampling: Sampling, n_ctx: int) -> Sampling:
    """With windows as long as the context at most, which -1 stands for: the library takes that for 0.

    It also takes memory for a window at once, and ends the process where there is not enough.
    """
    return replace(
        sampling,
        penalty_last_n=_window(sampling.penalty_last_n, n_ctx),
        dry_penalty_last_n=_window(sampling.dry_penalty_last_n, n_ctx),
    )


def _window(n_tokens: int, n_ctx: int) -> int:
    return n_ctx if n_tokens < 0 else min(n_tokens, n_ctx)


def _forbidden(request: GenerationRequest, vocabulary: Vocabulary) -> list[int]:
    """Tokens that must not be drawn: the ends, for ever or for the first `min_tokens`."""
    if not request.ignore_end and not request.min_tokens:
        return []
    stops = request.stop_token_ids if request.min_tokens else ()
    return sorted({*vocabulary.ends, *stops})


def _candidates(ids: Any, logits: Any) -> Any:
    candidates = np.empty(len(ids), _CANDIDATE)
    candidates["id"], candidates["logit"], candidates["p"] = ids, logits, 0
    return candidates


def _token_array(candidates: Any) -> Any:
    """The library's view of candidates; they must outlive it."""
    data = ctypes.cast(candidates.ctypes.data, ctypes.POINTER(L.llama_token_data))
    return L.llama_token_data_array(data=data, size=len(candidates), selected=-1, sorted=False)
