"""Embeddings and rerank: the groups of inputs, request parsing, and the encoding of results."""

import threading
from array import array
from dataclasses import replace
from typing import Any

import pytest

from localchat.serving.api.embeddings import parse_embeddings, parse_rerank, rerank_body
from localchat.serving.chat.model import Model
from localchat.serving.chat.runs.vectors import embed_inputs
from localchat.serving.core.errors import BadRequest, ContextLengthExceeded, ShuttingDown
from localchat.serving.core.mailbox import Mailbox
from localchat.serving.engine.values import ModelFacts
from tests.support.chat_requests import read
from tests.support.deadline import DEADLINE_S
from tests.support.engines import client_of, started
from tests.support.exchanges import ask
from tests.support.fakes import FakeBackend
from tests.support.serving import serving, wait_for

LONG = "a cat " * 500
# More than the tokens up to which a text that does not fit is counted.
VERY_LONG = "a cat " * 40_000


def test_request_ends_between_two_groups_of_inputs(monkeypatch: pytest.MonkeyPatch):
    calls, may_go_on = [], threading.Event()

    class Leaving(Mailbox):
        """The mailbox of a client that leaves after the first group."""

        def take(self, sender: object, timeout_s: float | None = None) -> list[Any]:
            wait_for(lambda: calls)
            raise ShuttingDown("")

    with started(FakeBackend(n_ctx=9000)) as engine:
        compute = engine.backend.embed

        def embed(inputs, check):
            vectors = compute(inputs, check)
            calls.append(inputs)
            assert may_go_on.wait(DEADLINE_S)
            return vectors

        monkeypatch.setattr(engine.backend, "embed", embed)
        client = client_of(engine)
        with pytest.raises(ShuttingDown):
            embed_inputs(Model("m", client), read(parse_embeddings, {"input": [[1] * 3000] * 10}), Leaving())
        may_go_on.set()
        wait_for(lambda: not client.server._requests)
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("path", "fields", "status"),
    [
        ("/api/embed", {"input": LONG}, 200),
        ("/api/embed", {"input": [LONG, "a"], "truncate": True}, 200),
        ("/api/embed", {"input": VERY_LONG, "truncate": True}, 200),
        ("/api/embed", {"input": VERY_LONG, "truncate": False}, 400),
        ("/api/embed", {"input": LONG, "truncate": False}, 400),
        ("/api/embeddings", {"prompt": LONG}, 200),
        ("/v1/embeddings", {"input": LONG}, 400),
    ],
)
def test_ollama_cuts_long_inputs_unless_told_not_to(path: str, fields: Any, status: int, monkeypatch: Any):
    """The token that the tokenizer adds at the end stays there."""

    def embed(backend: FakeBackend, inputs: list[list[int]], check: Any) -> list[Any]:
        if max(map(len, inputs)) > 9:
            raise ContextLengthExceeded("it is too long", n_ctx=9)
        assert {tokens[-1] for tokens in inputs} == {7}
        return [array("f", [1])] * len(inputs)

    monkeypatch.setattr(FakeBackend, "embed", embed)
    monkeypatch.setattr(FakeBackend, "tokenize", lambda backend, text, **options: [*text.encode(), 7])
    with serving() as running:
        assert ask(running.port, path, fields)[0] == status


def facts(architecture: str, **metadata: str) -> ModelFacts:
    named = {f"{architecture}.{key.replace('__', '.')}": value for key, value in metadata.items()}
    return replace(FakeBackend().facts, metadata={"general.architecture": architecture, **named})


def test_pooling_and_attention_are_those_of_the_model():
    for value, pooling in (("0", "mean"), ("1", "mean"), ("2", "cls"), ("3", "last"), ("4", "rank"), ("x", "mean")):
        assert facts("bert", pooling_type=value).pooling == pooling
    assert (facts("bert").pooling, FakeBackend().facts.pooling) == ("mean", "mean")
    assert not facts("llama").is_non_causal
    assert not FakeBackend().facts.is_non_causal
    assert facts("llama", attention__causal="false").is_non_causal
    assert facts("nomic-bert").is_non_causal
    assert facts("gemma-embedding").is_non_causal


# --- Requests and responses ---


def test_input_is_text_or_tokens_or_a_list_of_both():
    for given, inputs in (("a", ("a",)), (["a", "b"], ("a", "b")), ([1, 2], ((1, 2),)), ([[1], [2]], ((1,), (2,)))):
        assert read(parse_embeddings, {"input": given}).input == inputs


def test_fields_that_request_the_default_are_accepted():
    fields = {"embd_normalize": 2, "truncate_prompt_tokens": -1, "add_special_tokens": True, "user": "u"}
    assert read(parse_embeddings, {"input": "a", **fields}, strict=True)


@pytest.mark.parametrize(
    ("more", "results"),
    [
        pytest.param({}, [(1, None), (2, None), (0, None)], id="all"),
        pytest.param({"top_n": 1}, [(1, None)], id="the best"),
        pytest.param({"top_n": 1, "return_documents": True}, [(1, {"text": "b"})], id="with its text"),
    ],
)
def test_documents_are_sorted_by_score(more: Any, results: Any):
    request = read(parse_rerank, {"query": "q", "documents": ["a", "b", "c"], **more})
    body = rerank_body("m", request, [-1.0, 2.0, 0.5], 9)
    assert [(result["index"], result.get("document")) for result in body["results"]] == results
    assert body["usage"]["total_tokens"] == 9


PROBABILITIES = [pytest.approx(0.8808, abs=1e-4), pytest.approx(0.2689, abs=1e-4)]


@pytest.mark.parametrize(
    ("more", "scores", "texts"),
    [
        ({"raw_scores": True}, [2.0, -1.0], [None, None]),
        ({}, PROBABILITIES, [None, None]),
        ({"raw_scores": True, "return_text": True}, [2.0, -1.0], ["b", "a"]),
    ],
)
def test_request_of_text_embeddings_inference_gets_a_list(more: Any, scores: Any, texts: Any):
    request = read(parse_rerank, {"query": "q", "texts": ["a", "b"], **more})
    body = rerank_body("m", request, [-1.0, 2.0], 9)
    assert [result["index"] for result in body] == [1, 0]
    assert [result["score"] for result in body] == scores
    assert [result.get("text") for result in body] == texts


def test_document_is_a_text_or_an_object_with_its_text():
    request = read(parse_rerank, {"query": "q", "documents": ["a", {"text": "b"}]})
    assert request.documents == ("a", "b")
    for wrong in ({"text": 1}, {"text": "a", "title": "b"}, {}):
        with pytest.raises(BadRequest) as caught:
            read(parse_rerank, {"query": "q", "documents": ["a", wrong]})
        assert caught.value.param == "documents"


@pytest.mark.parametrize("field", ["documents", "texts"])
def test_error_of_the_documents_names_their_field(field: str):
    with pytest.raises(BadRequest) as caught:
        read(parse_rerank, {"query": "q", field: []})
    assert caught.value.param == field
