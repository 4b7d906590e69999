"""Sampling under a grammar checks few tokens, and samples the token that a mask over the vocabulary would give."""

from __future__ import annotations

import ctypes
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

np = pytest.importorskip("numpy", reason="the real engine needs numpy")
pytest.importorskip("llama_cpp", reason="the real engine needs llama-cpp-python")

from localchat.serving.core.params import SamplingParams  # noqa: E402
from localchat.serving.engine import Constraint, InvalidGrammar  # noqa: E402 - after the checks above
from localchat.serving.engine.llama.candidates import largest  # noqa: E402
from localchat.serving.engine.llama.grammar import Grammar  # noqa: E402
from localchat.serving.engine.llama.library import L  # noqa: E402
from localchat.serving.engine.llama.sampler import Sampler  # noqa: E402
from localchat.serving.engine.llama.vocabulary import Vocabulary  # noqa: E402
from localchat.serving.grammar import schema_to_grammar  # noqa: E402

from .demo_model import read_vocabulary  # noqa: E402
from .generations import request_for  # noqa: E402

N_STEPS = 60

SCHEMA = {
    "type": "object",
    "properties": {
        "mood": {"enum": ["good", "bad", "\u00fcbel"]},
        "n": {"type": "integer", "minimum": -50, "maximum": 500},
        "words": {"type": "array", "items": {"type": "string", "maxLength": 8}, "minItems": 2},
        "text": {"type": "string"},
    },
    "required": ["mood", "n", "words", "text"],
    "additionalProperties": False,
}
GRAMMAR = schema_to_grammar(SCHEMA)


class MaskingGrammar(Grammar):
    """A grammar that checks every token of the vocabulary at every step."""

    def _candidates(self, logits: Any, n_needed: int | None, others: Any) -> Any:
        return np.array([token for token in range(len(logits)) if self._after(token) is not None])


def sampler(vocabulary: Vocabulary, sampling: SamplingParams, grammar: str = GRAMMAR) -> Sampler:
    request = request_for((1, 2, 3), sampling=sampling, constraint=Constraint(grammar))
    return Sampler(request, vocabulary, 512)


def logits_of(vocabulary: Vocabulary, seed: int) -> Any:
    """Random logits, by the seed almost flat, or peaked like those of a trained model."""
    chance = np.random.default_rng(seed)
    width = (1.0, 4.0, 12.0)[seed % 3]
    return (chance.standard_normal(vocabulary.n_tokens) * width).astype(np.float32)


OFF: dict[str, Any] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
BIAS = tuple((id, 9.0) for id in range(40, 80))
CHAINS = {
    "default": SamplingParams(seed=1),
    "few": SamplingParams(seed=2, top_k=3, temperature=2.0),
    "greedy": SamplingParams(temperature=0),
    "greedy, biased": SamplingParams(temperature=0, logit_bias=BIAS),
    "biased": SamplingParams(seed=3, top_k=4, logit_bias=BIAS),
    "penalties": SamplingParams(seed=4, top_k=4, repeat_penalty=0.5, presence_penalty=-2.0),
    "dry": SamplingParams(seed=5, top_k=4, dry_multiplier=2.0, dry_allowed_length=1),
    "top_p": SamplingParams(seed=6, **{**OFF, "top_p": 0.9}),
    "min_p": SamplingParams(seed=7, **{**OFF, "min_p": 0.05}),
    "typical": SamplingParams(seed=8, **OFF, typical_p=0.8),
    "temperature first": SamplingParams(seed=9, temperature=3.0, top_k=2, samplers=("temperature", "top_k")),
}


@pytest.mark.parametrize("sampling", CHAINS.values(), ids=CHAINS)
def test_sampled_token_is_that_of_a_mask_over_the_vocabulary(vocabulary: Vocabulary, sampling: SamplingParams):
    quick, thorough = sampler(vocabulary, sampling), sampler(vocabulary, sampling)
    thorough._grammar = MaskingGrammar(Constraint(GRAMMAR), vocabulary)
    try:
        for step in range(N_STEPS):
            logits = logits_of(vocabulary, step)
            token = quick.sample(None, 0, logits)
            assert token == thorough.sample(None, 0, logits), f"step {step}"
            if token in vocabulary.eog_tokens:
                break
    finally:
        quick.close()
        thorough.close()


@pytest.mark.parametrize("chain", ["default", "greedy", "top_p", "min_p"])
@pytest.mark.parametrize(("text", "bias"), [("a", -100.0), ("b", 100.0)])
def test_bias_is_added_before_unlikely_tokens_are_dropped(vocabulary: Vocabulary, chain: str, text: str, bias: float):
    ids = {text: vocabulary.tokenize(text, False, False)[-1] for text in "ab"}
    logits = np.full(vocabulary.n_tokens, 0.0, np.float32)
    logits[300:500] = 15.0
    logits[ids["a"]] = 40.0
    one = sampler(vocabulary, replace(CHAINS[chain], logit_bias=((ids[text], bias),)), 'root ::= "a" | "b"')
    assert one.sample(None, 0, logits) == ids["b"]
    one.close()


def test_rejected_tokens_do_not_change_the_ratios_of_the_others(vocabulary: Vocabulary):
    """With a temperature alone, a rejected token is sampled again, which must not favour any other token."""
    ids = {text: vocabulary.tokenize(text, False, False)[-1] for text in "abc"}
    logits = np.full(vocabulary.n_tokens, -20.0, np.float32)
    logits[300:330] = 3.0
    for text, logit in zip("abc", (0.0, 1.0, 2.0)):
        logits[ids[text]] = logit
    counts: Counter[int] = Counter()
    n_samples = 1500
    for seed in range(n_samples):
        one = sampler(vocabulary, SamplingParams(seed=seed, **OFF), 'root ::= "a" | "b" | "c"')
        counts[one.sample(None, 0, logits)] += 1
        one.close()
    total = sum(math.exp(logit) for logit in (0, 1, 2))
    for text, logit in zip("abc", (0, 1, 2)):
        assert counts[ids[text]] / n_samples == pytest.approx(math.exp(logit) / total, abs=0.04)


def allowed(grammar: Grammar, n_tokens: int) -> list[int]:
    """All tokens that the grammar allows next; the search and the check of each token agree."""
    found: list[int] = sorted(grammar.candidates(np.zeros(n_tokens, np.float32), None, np.zeros(0, int))["id"].tolist())
    assert found == [token for token in range(n_tokens) if grammar.allows(token)]
    return found


@pytest.mark.parametrize(
    "text", [GRAMMAR, 'root ::= [^x]+ "x" "\u00e9"* <|im_end|>?', "root ::= .*", "root ::= !<[7]>+"]
)
def test_search_finds_the_tokens_that_are_allowed_one_by_one(vocabulary: Vocabulary, text: str):
    one, chance = Grammar(Constraint(text), vocabulary), np.random.default_rng(1)
    for _ in range(N_STEPS // 4):
        token = int(chance.choice(allowed(one, vocabulary.n_tokens)))
        if token in vocabulary.eog_tokens:
            break
        one.accept(token)


def test_grammar_may_name_a_token_of_any_text(vocabulary: Vocabulary):
    end, a = vocabulary.token_named("<|im_end|>"), vocabulary.tokenize("a", False, False)[-1]
    assert end is not None
    for rule, expected in ((f"<[{a}]>", [a]), ("<|im_end|>", [end]), (f'!<[{a}]> | "a"', None)):
        one = Grammar(Constraint(f"root ::= {rule}"), vocabulary)
        assert allowed(one, vocabulary.n_tokens) == (list(range(vocabulary.n_tokens)) if expected is None else expected)
        one.accept(a if expected is None else expected[0])
        assert allowed(one, vocabulary.n_tokens) == sorted(vocabulary.eog_tokens)
    with pytest.raises(InvalidGrammar, match="which this model does not have"):
        Grammar(Constraint("root ::= <no-such-token>"), vocabulary)


@pytest.mark.parametrize("rest", ["[é]+", "[^x]*"])
@pytest.mark.parametrize("trigger", ["{", "<call>{"])
def test_last_token_of_a_trigger_may_end_within_a_character(rest: str, trigger: str, tmp_path: Path):
    pytest.importorskip("gguf", reason="part of the extra `bench`")
    from .tiny_models import write_vocabulary_with

    write_vocabulary_with("{Ã", tmp_path / "cut.gguf")
    cut = read_vocabulary(str(tmp_path / "cut.gguf"))
    one = Grammar(Constraint(f'root ::= "{trigger}" {rest}', (trigger,)), cut)
    for token in (*cut.tokenize(trigger[:-1], False, False), cut.n_tokens - 1):
        assert not one.is_active
        one.accept(token)
    assert cut.texts.piece(cut.n_tokens - 1) == b"{\xc3"
    assert one.is_active
    found = allowed(one, cut.n_tokens)
    assert cut.tokenize_bytes("é".encode(), False, False)[1] in found
    assert all(0x80 <= cut.texts.piece(token)[0] < 0xC0 for token in found)


@pytest.mark.parametrize("sampling", [SamplingParams(temperature=0), SamplingParams(seed=3, top_k=5)])
def test_token_with_a_trigger_and_text_that_the_grammar_refuses_is_not_sampled(
    sampling: SamplingParams, tmp_path: Path
):
    """Otherwise the constraint would begin with text that it does not allow, and could not be enforced."""
    pytest.importorskip("gguf", reason="part of the extra `bench`")
    from .tiny_models import write_vocabulary_with

    write_vocabulary_with("{Ã", tmp_path / "more.gguf")
    more = read_vocabulary(str(tmp_path / "more.gguf"))
    request = request_for((1, 2, 3), sampling=sampling, constraint=Constraint('root ::= "{" [a-z]', ("{",)))
    one = Sampler(request, more, 512)
    logits = np.zeros(more.n_tokens, np.float32)
    logits[-1], logits[more.tokenize("{", False, False)[-1]] = 99.0, 50.0
    assert more.texts.piece(one.sample(None, 0, logits)) == b"{"
    assert one.sample(None, 0, logits) in [
        more.tokenize(char, False, False)[-1] for char in "abcdefghijklmnopqrstuvwxyz"
    ]
    one.close()


@pytest.mark.parametrize("n", [1, 7, 100])
@pytest.mark.parametrize("n_all", [100, 5000, 40_001])
def test_largest_are_found(n: int, n_all: int):
    chance = np.random.default_rng(n)
    for logits in (chance.standard_normal(n_all), chance.integers(0, 3, n_all), np.zeros(n_all), np.arange(n_all)):
        found = logits[largest(logits.astype(np.float32), n)]
        assert n <= len(found) <= 4 * n
        assert sorted(found)[-n:] == sorted(logits)[-n:]


def test_vocabulary_refuses_tokens_that_it_does_not_have(vocabulary: Vocabulary):
    with pytest.raises(ValueError, match="token ids go from 0"):
        vocabulary.texts.piece(-1, True)
    assert ctypes.sizeof(L.llama_token_data) == 12


def test_forced_tokens_end_where_a_longer_token_is_possible(vocabulary: Vocabulary):
    """The model samples ` {"` as one token; after the token ` ` it would sample something else."""
    one = Grammar(Constraint('root ::= "\\"arguments\\": {" (":" | "\\"" [a-z] | "}")'), vocabulary)
    text = b"".join(vocabulary.texts.piece(token, special=True) for token in one.forced_tokens())
    assert vocabulary.trie.has_longer(b" {")
    assert text == b'"arguments":'
