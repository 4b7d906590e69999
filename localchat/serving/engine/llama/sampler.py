"""Samples one request's tokens: a sampler chain in C, and a grammar beside it.

The grammar is not part of the chain. The tokens that it allows are the candidates of the chain.
"""

from __future__ import annotations

import ctypes
import math
import secrets
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from ...core.params import Bias, SamplingParams
from ..reasoning import ReasoningTracker
from ..values import EngineError, SequenceRequest
from .library import L, pointer_to
from .vocabulary import Vocabulary

_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])  # llama_token_data
# LLAMA_DEFAULT_SEED, with which llama.cpp chooses a random seed.
_RANDOM_SEED = 0xFFFFFFFF
# The number of tokens from which Mirostat estimates, as in its paper.
_MIROSTAT_M = 100
# The smallest temperature. With a much smaller one the logits overflow; with this one sampling is already greedy.
_LEAST_TEMPERATURE = 1e-4
# If more than this share of the tokens is allowed, the logits of the others are overwritten, and llama.cpp reads all of
# them. Making a list of the candidates takes as long at this share, and twice as long if nearly all are allowed.
_MANY = 0.75
# The most candidates of "infill", which compares each with every other one. With so many that takes a millisecond, with
# a vocabulary of 150,000 tokens it would take minutes, in which no other request gets a token.
_INFILL_CANDIDATES = 256
# Before steps that take logarithms of probabilities, tokens are left out that are less likely than the likeliest one by
# this factor. Their probabilities may be 0, of which the logarithm would make the choice arbitrary.
_LOGARITHMIC, _LEAST_RATIO = ("typical", "mirostat"), 1e-30
# Samplers that change which tokens are the likeliest, by the changed logits of some tokens.
_REORDERING = ("penalties", "dry")

Step = tuple[Any, ...]
"""One sampler of a chain: the name of its constructor without `llama_sampler_init_`, and its arguments."""
_GREEDY: Step = ("greedy",)


def chain_steps(s: SamplingParams) -> list[Step]:
    """The steps for one request. The last one selects a token: llama.cpp aborts the process if none does."""
    seed = seed_of(s.seed)
    names = s.samplers
    if s.temperature <= 0:
        # The other samplers do not change which token is the likeliest.
        names = tuple(name for name in names if name in _REORDERING)
    elif s.mirostat:
        names = tuple(name for name in names if name in (*_REORDERING, "temperature"))
    has_penalty = s.repeat_penalty != 1 or s.frequency_penalty or s.presence_penalty
    penalties = (s.penalty_last_n, s.repeat_penalty, s.frequency_penalty, s.presence_penalty)
    dry = (s.dry_multiplier, s.dry_base, s.dry_allowed_length, s.dry_penalty_last_n)
    # For each sampler: whether it has an effect, and its step.
    steps: dict[str, tuple[Any, Step]] = {
        "penalties": (s.penalty_last_n and has_penalty, ("penalties", *penalties)),
        "dry": (s.dry_multiplier and s.dry_penalty_last_n, ("dry", *dry)),
        "top_n_sigma": (s.top_n_sigma >= 0, ("top_n_sigma", s.top_n_sigma)),
        "top_k": (s.top_k > 0, ("top_k", s.top_k)),
        "typical_p": (s.typical_p < 1, ("typical", s.typical_p, s.min_keep)),
        "top_p": (s.top_p < 1, ("top_p", s.top_p, s.min_keep)),
        "min_p": (s.min_p > 0, ("min_p", s.min_p, s.min_keep)),
        "xtc": (s.xtc_probability > 0, ("xtc", s.xtc_probability, s.xtc_threshold, s.min_keep, seed)),
        "infill": (True, ("infill",)),
        "temperature": (s.temperature != 1 or s.dynatemp_range > 0, _temperature_step(s)),
    }
    chain = [step for name in names for has_effect, step in (steps[name],) if has_effect]
    if ("infill",) in chain:
        i = chain.index(("infill",))
        if not any(name == "top_k" and arguments[0] <= _INFILL_CANDIDATES for name, *arguments in chain[:i]):
            chain.insert(i, ("top_k", _INFILL_CANDIDATES))
    chain.append(_selecting_step(s, seed))
    cut: Step = ("min_p", _LEAST_RATIO, 1)
    return [step for last in chain for step in ((cut, last) if last[0] in _LOGARITHMIC else (last,))]


def seed_of(seed: int | None) -> int:
    """The 32-bit seed of a sampler; a random one for None."""
    return secrets.randbelow(_RANDOM_SEED) if seed is None else seed % _RANDOM_SEED


def _temperature_step(s: SamplingParams) -> Step:
    if s.dynatemp_range <= 0:
        return "temp", max(s.temperature, _LEAST_TEMPERATURE)
    lowest, highest = max(s.temperature - s.dynatemp_range, _LEAST_TEMPERATURE), s.temperature + s.dynatemp_range
    return "temp_ext", (highest + lowest) / 2, (highest - lowest) / 2, s.dynatemp_exponent


def _selecting_step(s: SamplingParams, seed: int) -> Step:
    if s.temperature <= 0:
        return _GREEDY
    if s.mirostat == 1:
        return "mirostat", seed, s.mirostat_tau, s.mirostat_eta, _MIROSTAT_M
    if s.mirostat == 2:
        return "mirostat_v2", seed, s.mirostat_tau, s.mirostat_eta
    if s.adaptive_target >= 0:
        return "adaptive_p", s.adaptive_target, s.adaptive_decay, seed
    return "dist", seed


class Sampler:
    """Samples the tokens of one request, one thread at a time."""

    def __init__(self, request: SequenceRequest, vocabulary: Vocabulary, n_ctx: int):
        """The prompt of the request has token ids alone.

        Raises what `Grammars.matcher` raises, and EngineError if llama.cpp refuses a sampling step.
        """
        params, ends = request.params, vocabulary.eog_tokens
        self._vocabulary = vocabulary
        self._sampling = _with_limited_windows(request.sampling, n_ctx)
        # How many tokens `min_tokens` still requires, and the tokens that end an output, which it forbids until then.
        self._n_required = params.min_tokens
        self._forbidden_at_first = sorted({*ends, *params.stop_token_ids}) if params.min_tokens else []
        self._forbidden_always = sorted(ends) if params.ignore_eos else []
        # The tokens that the chain forbids now, by these two and by biases, and all whose logits it changes now.
        self._forbidden, self._biased = self._biased_tokens()
        self._reasoning: ReasoningTracker | None = None
        if budget := request.reasoning_budget:
            texts = (vocabulary.tokenize(text, parse_special=is_markup) for text, is_markup in budget.closing)
            self._reasoning = ReasoningTracker(budget, [token for tokens in texts for token in tokens])
        constraint, visible = request.constraint, request.visible_tokens
        self._grammar = vocabulary.grammars.matcher(constraint, visible) if constraint else None
        # The next tokens, if the grammar allows no others. More are searched for when all of these have been used.
        self._forced: deque[int] = deque()
        # The candidates that the last token was sampled from, kept only if the request wants their probabilities, which
        # greedy sampling does not compute.
        wants_candidates = params.post_sampling_probs and params.top_logprobs is not None
        self._keeps_candidates = wants_candidates and self._sampling.temperature > 0
        self._sampled_from: Any = None
        # Whether the logits may be overwritten: nobody needs them for log probabilities.
        self._may_overwrite = params.top_logprobs is None
        # The sampler chain; None: the likeliest token is always sampled.
        self._chain: Any = None
        steps = chain_steps(self._sampling)
        if steps != [_GREEDY] or self._biased:
            self._build_chain(steps, cast("Sequence[int]", request.prompt))

    def sample(self, context: Any, row: int, logits: Any) -> int:
        """Sample the next token from the logits of a row.

        The logits may be overwritten if the request has no log probabilities.
        """
        token = self.sample_forced()
        if token is None:
            token = self._sample(context, row, logits)
            self._advance_rules(token)
        return token

    def sample_forced(self) -> int | None:
        """The next token if the reasoning limit or the grammar allows only one; None if it must be sampled."""
        token = self._reasoning.forced_token if self._reasoning is not None else None
        if token is not None:
            self._forced.clear()
            if self._grammar is not None and not self._grammar.mask()[token]:
                raise EngineError("the grammar does not allow the end of reasoning that a budget forces")
        else:
            if self._grammar is not None and not self._forced:
                forced = self._grammar.forced_tokens()
                # The model can write the same text with other tokens, so one with a changed logit is sampled as usual.
                if self._biased.isdisjoint(forced):
                    self._forced.extend(forced)
            if not self._forced:
                return None
            token = self._forced.popleft()
        self._sampled_from = None
        self._accept_in_chain(token)
        self._advance_rules(token)
        return token

    def _advance_rules(self, token: int) -> None:
        """Advance the grammar, the reasoning limit and the minimum of tokens by a token."""
        if self._grammar is not None:
            self._grammar.accept(token)
        if self._reasoning is not None:
            self._reasoning.feed(self._vocabulary.all_pieces[token])
        if self._forbidden_at_first:
            self._n_required -= 1
            if not self._n_required:
                self._end_min_tokens()

    def _sample(self, context: Any, row: int, logits: Any) -> int:
        """Sample a token in the fastest of four ways.

        1. No chain: the token with the largest logit that the grammar allows.
        2. A chain, and no grammar: llama.cpp reads all logits.
        3. A grammar that allows nearly all tokens: the same, after the logits of the others are overwritten.
        4. Otherwise, or if the request wants its candidates: the chain gets an array of the allowed tokens.
        """
        if self._chain is None:
            # argmax takes a tenth of the time of llama.cpp, which copies the candidates first.
            token = int(logits.argmax())
            if self._grammar is None or self._grammar.mask()[token]:
                return token
            allowed = self._grammar.allowed_tokens()
            return int(allowed[logits[allowed].argmax()])
        if self._grammar is None and not self._keeps_candidates:
            return int(L.llama_sampler_sample(self._chain, context, row))
        mask = None if self._grammar is None else self._grammar.mask()
        if mask is not None and self._may_overwrite and np.count_nonzero(mask) > _MANY * len(logits):
            logits[np.flatnonzero(~mask)] = -np.inf
            return int(L.llama_sampler_sample(self._chain, context, row))
        ids = self._vocabulary.ids if self._grammar is None else self._grammar.allowed_tokens()
        token = self._choose(ids, logits[ids])
        self._accept_in_chain(token)
        return token

    def _choose(self, ids: Any, logits: Any) -> int:
        """The token that the chain selects among these. If biases forbid all of them, the likeliest one."""
        if len(ids) <= len(self._forbidden) and self._forbidden.issuperset(ids.tolist()):
            self._sampled_from = None
            return int(ids[logits.argmax()])
        data = np.zeros(len(ids), _CANDIDATE)
        data["id"], data["logit"] = ids, logits
        array = L.llama_token_data_array(
            data=pointer_to(data, L.llama_token_data), size=len(data), selected=-1, sorted=False
        )
        L.llama_sampler_apply(self._chain, ctypes.byref(array))
        if self._keeps_candidates:
            # Most steps remove candidates at the end of the array, and some at its beginning.
            first = (ctypes.addressof(array.data.contents) - data.ctypes.data) // data.itemsize
            candidates = data[first : first + array.size]
            self._sampled_from = candidates[np.argsort(-candidates["p"], kind="stable")]
        return int(array.data[array.selected].id)

    def sampled_logprobs(self, token: int, n_top: int) -> tuple[float, list[tuple[int, float]]]:
        """The log probability of the last token in the chain, and the `n_top` likeliest candidates with theirs.

        With greedy sampling and for a forced token there is one candidate, whose probability is 1.
        """
        if self._sampled_from is None:
            return 0.0, [(token, 0.0)][:n_top]
        candidates = self._sampled_from
        (probability,) = candidates["p"][candidates["id"] == token]
        likeliest = [(int(id), math.log(p)) for id, _, p in candidates[:n_top] if p > 0]
        return math.log(probability), likeliest

    def _biased_tokens(self) -> tuple[set[int], set[int]]:
        """The tokens that are forbidden, and all those with biases. Penalties change the logits of further ones."""
        biases = cast("Sequence[tuple[int, float]]", self._sampling.logit_bias)
        by_bias = (id for id, bias in biases if bias == -math.inf)
        forbidden = {*self._forbidden_at_first, *self._forbidden_always, *by_bias}
        return forbidden, forbidden.union(id for id, _ in biases)

    def _build_chain(self, steps: Sequence[Step], prompt: Sequence[int]) -> None:
        self._chain = L.llama_sampler_chain_init(L.llama_sampler_chain_default_params())
        weakref.finalize(self, L.llama_sampler_free, self._chain)
        # The first sampler of the chain: `_end_min_tokens` removes it.
        self._add_biases([(id, -math.inf) for id in self._forbidden_at_first])
        self._add_biases([(id, -math.inf) for id in self._forbidden_always])
        self._add_biases(self._sampling.logit_bias)
        for name, *arguments in steps:
            # "infill" chooses the end token if the output should end.
            if name != "infill" or self._vocabulary.eog_tokens:
                self._add(name, *self._with_vocabulary(name, arguments))
        # Penalties also apply to the last tokens of the prompt.
        lengths = {"penalties": self._sampling.penalty_last_n, "dry": self._sampling.dry_penalty_last_n}
        n = max(lengths.get(name, 0) for name, *_ in steps)
        for token in prompt[-n:] if n else ():
            if token >= 0:  # The cells of images and sounds are no tokens.
                self._accept_in_chain(token)

    def _end_min_tokens(self) -> None:
        """Allow the tokens that end the output."""
        L.llama_sampler_free(L.llama_sampler_chain_remove(self._chain, 0))
        self._forbidden_at_first = []
        self._forbidden, self._biased = self._biased_tokens()

    def _accept_in_chain(self, token: int) -> None:
        if self._chain is not None:
            L.llama_sampler_accept(self._chain, token)

    def _add_biases(self, biases: Sequence[Bias]) -> None:
        if biases:
            array = (L.llama_logit_bias * len(biases))(*biases)
            self._add("logit_bias", self._vocabulary.n_tokens, len(biases), array)

    def _with_vocabulary(self, name: str, arguments: Sequence[Any]) -> Sequence[Any]:
        """The arguments of the constructor of a step: those of the step, and what it needs of the vocabulary."""
        if name == "dry":
            breakers = [text.encode() for text in self._sampling.dry_sequence_breakers]
            array = (ctypes.c_char_p * len(breakers))(*breakers)
            return (self._vocabulary.pointer, *arguments, array, len(breakers))
        if name == "infill":
            return (self._vocabulary.pointer,)
        if name in ("mirostat", "penalties"):
            return (self._vocabulary.n_tokens, *arguments)
        return arguments

    def _add(self, name: str, *arguments: Any) -> None:
        sampler = getattr(L, f"llama_sampler_init_{name}")(*arguments)
        if not sampler:  # a NULL pointer; adding it would crash
            raise EngineError("llama.cpp refused a sampling step: check the sampling values")
        L.llama_sampler_chain_add(self._chain, sampler)


def _with_limited_windows(sampling: SamplingParams, n_ctx: int) -> SamplingParams:
    """Limit the windows of penalties to the context size.

    A window of -1 means the whole context, but llama.cpp treats it as 0. llama.cpp also allocates a window at once, and
    aborts the process if there is not enough memory.
    """
    windows = sampling.penalty_last_n, sampling.dry_penalty_last_n
    recent, dry = (n_ctx if n_tokens < 0 else min(n_tokens, n_ctx) for n_tokens in windows)
    return replace(sampling, penalty_last_n=recent, dry_penalty_last_n=dry)
