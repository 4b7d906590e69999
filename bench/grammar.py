"""Measures the time of the sampler for each token, with and without a grammar.

    python -m bench.model model.gguf --params 10M --vocab 152000
    python -m bench.grammar model.gguf

The program loads only the vocabulary. The logits are random, with the standard deviation of a trained model's logits,
and the same for all loads. It prints for each load the median, the 95th percentile and the maximum, in milliseconds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from localchat.serving.chat.dialects.call_layout import CallLayout
from localchat.serving.core.params import GenerationParams, SamplingParams
from localchat.serving.engine import Constraint, GenerationRequest
from localchat.serving.engine.llama.candidates import is_quick, largest
from localchat.serving.engine.llama.library import L, Model
from localchat.serving.engine.llama.sampler import Sampler
from localchat.serving.engine.llama.vocabulary import Vocabulary
from localchat.serving.grammar import (
    Rules,
    ToolSchema,
    calls_rule,
    free_text,
    json_object_grammar,
    schema_to_grammar,
)

TOP_K = 64
N_TOKENS = 400
LOGIT_WIDTH = 4.0

WEATHER = {
    "type": "object",
    "properties": {
        "location": {"type": "string", "maxLength": 200},
        "unit": {"enum": ["celsius", "fahrenheit"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "details": {"type": "array", "items": {"type": "string", "maxLength": 40}, "maxItems": 8},
    },
    "required": ["location", "unit", "days", "details"],
    "additionalProperties": False,
}
HERMES = CallLayout(begin="<tool_call>\n", separator="\n</tool_call>\n<tool_call>\n", end="\n</tool_call>")


def loads() -> dict[str, Constraint | None]:
    """The constraint of each load, by its name; None is free text."""
    rules, free = Rules(), Rules()
    tools = [ToolSchema("get_weather", WEATHER), ToolSchema("get_forecast", WEATHER)]
    calls = rules.render(calls_rule(rules, tools, HERMES))
    until = free_text(free, {"<tool_call>": calls_rule(free, tools, HERMES)}, may_end=True)
    return {
        "free text": None,
        "tool schema": Constraint(schema_to_grammar(WEATHER)),
        "required calls": Constraint(calls),
        "free JSON": Constraint(json_object_grammar()),
        "text until a call": Constraint(free.render(until)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a GGUF file")
    parser.add_argument("--tokens", type=int, default=N_TOKENS, help="tokens to sample for each load")
    arguments = parser.parse_args()
    vocabulary = read_vocabulary(arguments.model)
    if not is_quick(vocabulary.n_tokens, TOP_K):
        # For a small vocabulary the sampler reads the logits from a context, which does not exist here.
        raise SystemExit(f"{vocabulary.n_tokens} tokens are too few: use a model with a larger vocabulary")
    print(f"{vocabulary.n_tokens} tokens, top_k {TOP_K}, {arguments.tokens} tokens for each load; milliseconds")
    print(f"{'load':20} {'median':>8} {'p95':>8} {'max':>8}")
    for name, constraint in loads().items():
        times = sorted(times_ms(vocabulary, constraint, arguments.tokens))
        p95 = times[len(times) * 95 // 100]
        print(f"{name:20} {statistics.median(times):8.3f} {p95:8.3f} {times[-1]:8.3f}", flush=True)


def read_vocabulary(path: str) -> Vocabulary:
    params = L.llama_model_default_params()
    params.vocab_only = True
    pointer = L.llama_model_load_from_file(path.encode(), params)
    if not pointer:
        raise SystemExit(f"llama.cpp cannot load {path}")
    return Vocabulary(Model(pointer))


def times_ms(vocabulary: Vocabulary, constraint: Constraint | None, n_tokens: int) -> Iterator[float]:
    """The sampler's time for each token. After the end of a text a new text begins."""
    rng = np.random.default_rng(1)
    n_sampled, seed = 0, 0
    while n_sampled < n_tokens:
        seed += 1
        sampler = new_sampler(vocabulary, constraint, seed)
        token = -1
        while n_sampled < n_tokens and token not in vocabulary.eog_tokens:
            logits = (rng.standard_normal(vocabulary.n_tokens) * LOGIT_WIDTH).astype(np.float32)
            start = time.perf_counter()
            likeliest = largest(logits, sampler.n_likeliest) if sampler.n_likeliest else None
            token = sampler.sample(None, 0, logits, likeliest)
            yield (time.perf_counter() - start) * 1e3
            n_sampled += 1
        sampler.close()


def new_sampler(vocabulary: Vocabulary, constraint: Constraint | None, seed: int) -> Any:
    sampling = SamplingParams(seed=seed, top_k=TOP_K)
    request = GenerationRequest((1, 2, 3), GenerationParams(), sampling=sampling, constraint=constraint)
    return Sampler(request, vocabulary, 4096)


if __name__ == "__main__":
    main()
