"""Embedding models and rerankers on the real engine: tiny random encoders and a decoder."""

import contextlib
from collections.abc import Iterator
from typing import Any

import gguf
import pytest

from localchat.serving.api.completions import parse_completion
from localchat.serving.api.embeddings import parse_embeddings, parse_rerank, rerank_body
from localchat.serving.chat.model import Model
from localchat.serving.chat.runs.start import start_text
from localchat.serving.chat.runs.vectors import embed_inputs, score_documents
from localchat.serving.core.errors import ApiError, ContextLengthExceeded, NotSupported
from localchat.serving.core.fields import Fields
from localchat.serving.core.mailbox import Mailbox
from localchat.serving.engine import load
from localchat.serving.engine.engine import Engine
from localchat.serving.engine.values import LoadOptions
from tests.support import tiny_models
from tests.support.engines import client_of, request_for, submit
from tests.support.wire_schemas import validate

Engines = dict[str, Engine]
TEXTS = ["the cat sat", "a dog", "what is the mat " * 12, "b"]
# The functions that write the models, with their arguments.
MODELS: dict[str, tuple[Any, ...]] = {
    "encoder": (tiny_models.write_bert, gguf.PoolingType.MEAN),
    "reranker": (tiny_models.write_bert, gguf.PoolingType.RANK),
    "decoder": (tiny_models.write_qwen_reranker,),
}


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    with contextlib.ExitStack() as stack:
        engines = {}
        for name, (write, *more) in MODELS.items():
            path = tmp_path_factory.mktemp(name) / "tiny.gguf"
            write(path, *more)
            engines[name] = stack.enter_context(load(str(path), LoadOptions(n_parallel=2)))
        yield engines


def embed(engine: Engine, given: Any) -> list[Any]:
    return embed_inputs(Model("tiny", client_of(engine)), parse_embeddings(Fields({"input": given})), Mailbox())[0]


def test_text_alone_and_beside_others_has_the_same_vector(engines: Engines):
    together = embed(engines["encoder"], TEXTS * 30)
    for text, vector in zip(TEXTS, together):
        assert list(embed(engines["encoder"], text)[0]) == pytest.approx(list(vector), abs=1e-4)


def test_encoder_refuses_an_input_longer_than_its_positions(engines: Engines):
    with pytest.raises(ContextLengthExceeded, match=r"an input has \d+ tokens .* holds 64") as long:
        embed(engines["encoder"], ["a", "cat " * 100])
    assert long.value.param == "input[1]"
    assert len(embed(engines["encoder"], [[5] * 64])) == 1


@pytest.mark.parametrize("kind", ["encoder", "reranker"])
def test_model_that_generates_no_text_refuses_completions(kind: str, engines: Engines):
    engine = engines[kind]
    with pytest.raises(NotSupported):
        submit(engine, request_for(prompt=(2, 4, 3)))
    with pytest.raises(NotSupported):
        start_text(Model("tiny", client_of(engine)), parse_completion(Fields({"prompt": "a"})), "cmpl-", Mailbox())


def test_reranker_refuses_embeddings_and_an_encoder_refuses_rerank(engines: Engines):
    with pytest.raises(NotSupported, match="rerank"):
        embed(engines["reranker"], "a")
    request = parse_rerank(Fields({"query": "a", "documents": ["b"]}))
    with pytest.raises(NotSupported, match="reranker"):
        score_documents(Model("tiny", client_of(engines["encoder"])), request, Mailbox())


PAIRS = {
    "reranker": ("what is a cat", ["the cat", "a dog sat on the mat", "b"]),
    "decoder": ("what", ["b", "cat " * 250, "a dog", "is " * 90]),
}


@pytest.mark.parametrize("kind", PAIRS)
def test_scores_are_those_of_each_pair_alone(kind: str, engines: Engines):
    query, documents = PAIRS[kind]
    asked = parse_rerank(Fields({"query": query, "documents": documents, "top_n": 2}))
    scores, n_tokens = score_documents(Model("tiny", client_of(engines[kind])), asked, Mailbox())
    assert n_tokens > 1000 or kind == "reranker"
    for document, score in zip(asked.documents, scores):
        alone = engines[kind].vectors.embed([document], field="documents", query=asked.query)[0]
        assert alone[0][0] == pytest.approx(score, abs=1e-4)
    body = rerank_body("tiny", asked, scores, n_tokens)
    validate(body, "rerank")
    assert [result["index"] for result in body["results"]] == sorted(range(len(scores)), key=lambda i: -scores[i])[:2]


def test_pair_has_the_separators_of_its_vocabulary(engines: Engines):
    begin, separator = 2, 3
    reranker = engines["reranker"]
    what, cat = reranker.backend.tokenize("what"), reranker.backend.tokenize("cat")
    assert reranker.backend.pair_tokenizer("what", 100)("cat") == [begin, *what, separator, *cat, separator]


def test_too_long_document_is_named(engines: Engines):
    request = parse_rerank(Fields({"query": "a", "documents": ["b", "cat " * 100]}))
    with pytest.raises(ApiError) as long:
        score_documents(Model("tiny", client_of(engines["reranker"])), request, Mailbox())
    assert (long.value.code, long.value.param) == ("context_length_exceeded", "documents[1]")


@pytest.mark.parametrize("query", ["what {document}", "<|im_end|>"], ids=["placeholder", "control token"])
def test_template_renders_the_pair_and_user_text_has_no_control_tokens(engines: Engines, query: str):
    decoder = engines["decoder"]
    tokens = decoder.backend.pair_tokenizer(query, 100)("doc")
    (end,) = decoder.backend.tokenize("<|im_end|>")
    assert tokens.count(end) == 1
    text = b"".join(decoder.texts.piece(token, True) for token in tokens).decode()
    assert text == tiny_models.QWEN_PAIR.replace("{document}", "doc").replace("{query}", query)
