"""Draws one request's tokens: a sampler chain in C, and a grammar beside it.

The grammar is not part of the chain: it says which tokens the chain may draw from, as many of the
likeliest as the chain looks at. Where the chain looks at all of them, it is asked about the one that was drawn.
"""

from __future__ import annotations

import ctypes
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...protocol.params import SamplingParams
from ..sampling import GREEDY, Step, chain_steps
from ..values import EngineError, GenerationRequest
from .candidates import candidates, is_quick, token_array, with_others
from .grammar import Grammar
from .library import L
from .vocabulary import Vocabulary

# Steps that change each token's logit by itself.
_REORDERING = ("penalties", "dry")
# So often a draw is tried again before all tokens are asked about.
_MAX_DRAWS = 4


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
        self._is_greedy = self._steps[-1] == GREEDY
        # What must not be drawn: of the first `min_tokens`, and ever.
        self._withheld = _withheld(request, vocabulary)
        self._forbidden = sorted(vocabulary.ends) if request.params.ignore_eos else []
        self._biased = [id for id, _ in self._sampling.logit_bias]
        # What is moved whatever was drawn before.
        self._moved = self._moved_always()
        self._reasoning = request.reasoning_limit.tracker() if request.reasoning_limit else None
        constraint, visible = request.constraint, request.visible_tokens
        self._grammar = Grammar(constraint, vocabulary, visible) if constraint else None
        # What the last token was drawn from, kept where the request asks for it.
        self._keeps_candidates = request.params.post_sampling_probs and request.params.top_logprobs is not None
        self._drawn_from: Any = None
        # Drawing from all and again from what was not refused is as good where no step looks at the others.
        names = {step.name for step in self._steps}
        self._draws_alike = names <= {*_REORDERING, "temp", "dist"} and not self._keeps_candidates
        # Without a chain the likeliest token is all that is asked for.
        self._chain: Any = None
        # What penalties look at.
        self._recent: deque[int] = deque(maxlen=0)
        try:
            if self._steps != [GREEDY] or len(self._moved):
                self._build_chain(request.prompt)
        except BaseException:
            self.close()
            raise

    @property
    def n_likeliest(self) -> int | None:
        """How many of the likeliest tokens are enough to draw from; None if it needs all, or is as fast itself.

        Of a large vocabulary the library first copies all: three times as much memory as the logits take.
        """
        n_needed = self._n_needed()
        if self._chain is None or n_needed is None or (self._grammar is not None and self._grammar.is_active):
            return None
        n_needed += len(self._reordered())
        return n_needed if is_quick(self._vocabulary.n_tokens, n_needed) else None

    def draw(self, context: Any, row: int, logits: Any, likeliest: Any = None) -> int:
        """The next token, by the logits of a row, which are left as they are.

        `likeliest` are the ids of `n_likeliest` tokens or more, where they are known.
        """
        forced = self._reasoning.forced_token if self._reasoning is not None else None
        token = self._draw_freely(context, row, logits, likeliest) if forced is None else self._say(forced)
        if self._grammar is not None:
            self._grammar.accept(token)
        if self._reasoning is not None:
            self._reasoning.feed(self._vocabulary.piece(token, special=True))
        return token

    def _draw_freely(self, context: Any, row: int, logits: Any, likeliest: Any) -> int:
        if self._grammar is not None and self._grammar.is_active:
            return self._draw_constrained(logits)
        if self._chain is None:
            # A tenth of the time that the library takes, since it copies the candidates first.
            return int(logits.argmax())
        if likeliest is not None:
            ids = with_others(likeliest, self._reordered())
            return self._choose_and_accept(candidates(ids, logits[ids]))
        if self._keeps_candidates:
            return self._choose_and_accept(candidates(self._vocabulary.ids, logits))
        token = int(L.llama_sampler_sample(self._chain, context, row))
        self._recent.append(token)
        return token

    def _choose_and_accept(self, some: Any) -> int:
        token = self._choose(some)
        self._accept(token)
        return token

    def _say(self, token: int) -> int:
        """A token that was not drawn."""
        if self._grammar is not None and self._grammar.is_active and not self._grammar.allows(token):
            raise EngineError("the grammar does not allow the end of reasoning that a budget forces")
        self._drawn_from = None
        if self._chain is not None:
            self._accept(token)
        return token

    def drawn_from(self, token: int, n_top: int) -> tuple[float, list[tuple[int, float]]]:
        """The log probability that the last token had when it was drawn, and the `n_top` likeliest with theirs.

        Greedy drawing leaves one token, which is certain, and so is one that was not drawn.
        """
        if self._drawn_from is None:
            return 0.0, [(token, 0.0)][:n_top]
        left = self._drawn_from
        (own,) = left["p"][left["id"] == token]
        return math.log(own), [(int(c["id"]), math.log(c["p"])) for c in left[:n_top] if c["p"] > 0]

    def allow_ends(self) -> None:
        """The tokens withheld by `min_tokens` may come from now on; others stay forbidden."""
        if self._withheld:
            L.llama_sampler_free(L.llama_sampler_chain_remove(self._chain, 0))
            self._withheld = []
            self._moved = self._moved_always()

    def close(self) -> None:
        if self._chain is not None:
            L.llama_sampler_free(self._chain)
            self._chain = None
        if self._grammar is not None:
            self._grammar.close()

    def _draw_constrained(self, logits: Any) -> int:
        """As if all that the grammar refuses had been taken out before the first step of the chain."""
        assert self._grammar is not None
        token: int | None = None
        if self._chain is None:
            likeliest = int(logits.argmax())
            token = likeliest if self._grammar.allows(likeliest) else None
        elif self._draws_alike:
            token = self._draw_again(logits)
        if token is None:
            token = self._choose(self._allowed(logits))
        if self._chain is not None:
            self._accept(token)
        return token

    def _draw_again(self, logits: Any) -> int | None:
        """A draw from all, and after a refusal from the others: each keeps its share of what is left."""
        assert self._grammar is not None
        left = logits.copy()
        for _ in range(_MAX_DRAWS):
            token = self._choose(candidates(self._vocabulary.ids, left))
            if self._grammar.allows(token):
                return token
            left[token] = -math.inf
        return None

    def _choose(self, some: Any) -> int:
        """What the chain selects of some candidates."""
        if self._chain is None:
            return int(some["id"][some["logit"].argmax()])
        array = token_array(some)
        L.llama_sampler_apply(self._chain, ctypes.byref(array))
        if self._keeps_candidates and not self._is_greedy:
            # The steps shorten the array, some of them at its beginning.
            first = (ctypes.addressof(array.data.contents) - some.ctypes.data) // some.itemsize
            left = some[first : first + array.size]
            # The likeliest first.
            self._drawn_from = left[np.argsort(-left["p"], kind="stable")]
        return int(array.data[array.selected].id)

    def _allowed(self, logits: Any) -> Any:
        """The candidates that the grammar allows, as many as the chain could have a use for."""
        assert self._grammar is not None
        n_needed, temperature = self._n_needed(), self._sampling.temperature + self._sampling.dynatemp_range
        if n_needed is None:
            return self._grammar.all_that_count(logits, self._reordered(), temperature)
        return self._grammar.likeliest(logits, n_needed, self._reordered(), temperature)

    def _n_needed(self) -> int | None:
        """How many allowed candidates, the likeliest, draw as all of them would; None if no number says it."""
        if self._chain is None:
            return 1
        cut = next(step for step in self._steps if step.name not in _REORDERING)
        if cut == GREEDY:
            return 1
        return self._sampling.top_k if cut.name == "top_k" else None

    def _reordered(self) -> Any:
        """The tokens that a bias or a penalty may move up or down before any are cut."""
        if self._recent:
            return np.union1d(self._moved, np.fromiter(self._recent, np.int64))
        return self._moved

    def _moved_always(self) -> Any:
        return np.unique(np.array([*self._withheld, *self._forbidden, *self._biased], np.int64))

    def _build_chain(self, prompt: Sequence[int]) -> None:
        self._chain = L.llama_sampler_chain_init(L.llama_sampler_chain_default_params())
        for ids in (self._withheld, self._forbidden):  # the withheld first, so that `allow_ends` finds them
            if ids:
                self._add(self._logit_bias([(id, -math.inf) for id in ids]))
        if self._sampling.logit_bias:
            self._add(self._logit_bias(self._sampling.logit_bias))
        for step in self._steps:
            self._add(self._sampler(step))
        # Penalties know the prompt's last tokens from the start.
        lengths = {"penalties": self._sampling.penalty_last_n, "dry": self._sampling.dry_penalty_last_n}
        n = max((lengths.get(step.name, 0) for step in self._steps), default=0)
        self._recent = deque(maxlen=n)
        for token in prompt[-n:] if n else ():
            self._accept(token)

    def _accept(self, token: int) -> None:
        L.llama_sampler_accept(self._chain, token)
        self._recent.append(token)

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


def _resolved(sampling: SamplingParams, n_ctx: int) -> SamplingParams:
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


def _withheld(request: GenerationRequest, vocabulary: Vocabulary) -> list[int]:
    """Tokens that must not be among the first `min_tokens`."""
    return sorted({*vocabulary.ends, *request.params.stop_token_ids}) if request.params.min_tokens else []
