"""Prompts for the built-in model on llama.cpp, and comparisons of outputs that may differ by rounding."""

import threading
from typing import Any

from localchat.serving.core.events import OutputToken
from localchat.serving.core.params import SamplingParams
from localchat.serving.engine.engine import Engine
from localchat.serving.engine.values import SequenceRequest
from localchat.serving.models.model_file import DEMO_PATH
from tests.support.engines import Finish, submit, text_of, tokens_of

DEMO = str(DEMO_PATH)
GREEDY = SamplingParams(temperature=0)
# Two logits that differ by less can change their order between batches: the logit of a token was observed to differ by
# up to 0.2 between two batches, also without drafts.
NEAR_TIE = 0.4
# The log probability of a token differs by up to this much between batches, most for unlikely tokens.
ROUNDING = 0.5


def read_vocabulary(path: str = DEMO) -> Any:
    """The vocabulary of a model, without its weights."""
    from localchat.serving.engine.llama.library import L, LlamaModel
    from localchat.serving.engine.llama.vocabulary import Vocabulary

    params = L.llama_model_default_params()
    params.vocab_only = True
    return Vocabulary(LlamaModel(L.llama_model_load_from_file(path.encode(), params)))


def chat(engine: Engine, text: str) -> tuple[int, ...]:
    return tuple(engine.backend.tokenize(f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"))


def conversation(engine: Engine, n_turns: int) -> tuple[int, ...]:
    """A long prompt of a kind that the model was trained on."""
    greeting = "<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\nHello! How can I help you?<|im_end|>\n"
    return (*engine.backend.tokenize(greeting * n_turns), *chat(engine, "What is your name?"))


def read(engine: Engine, request: SequenceRequest) -> tuple[str, list[OutputToken], Finish]:
    with submit(engine, request) as generation:
        *items, finish = generation
    assert isinstance(finish, Finish)
    return text_of(items), tokens_of(items), finish


def wait_until_idle(engine: Engine) -> None:
    """Wait until the engine has run all functions posted before, and the step after them."""
    for _ in range(2):
        done = threading.Event()
        engine.post(done.set)
        assert done.wait(60)


def assert_same_or_near_tie(alone: list[OutputToken], together: list[OutputToken]) -> None:
    """The tokens are equal, or the first two that differ were about equally likely."""
    for one, other in zip(alone, together):
        if one.id != other.id:
            likely = {top.id: top.logprob for top in one.top}
            assert other.id in likely
            assert one.logprob - likely[other.id] < NEAR_TIE
            return
    if len(alone) != len(together):
        # One ended where the other continued. The end token has no bytes and is not reported.
        went_on = max(alone, together, key=len)[min(len(alone), len(together))]
        assert went_on.logprob - max(top.logprob for top in went_on.top if not top.piece) < NEAR_TIE


def assert_as_alone(alone: Engine, together: Engine, requests: list[SequenceRequest]) -> None:
    """One engine generates the same tokens for each request alone as another one for all at once."""
    expected = [read(alone, request)[1] for request in requests]
    generations = [submit(together, request) for request in requests]
    for tokens, generation in zip(expected, generations):
        assert_same_or_near_tie(tokens, tokens_of(generation))
