"""Embeddings and rerank: the steps of the computation, request parsing, and the encoding of results."""

from __future__ import annotations

import base64
import threading
from array import array
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from localchat.serving.api.embeddings import embeddings_body, parse_embeddings, parse_rerank, rerank_body
from localchat.serving.chat.embeddings import VectorRun, normalised
from localchat.serving.core.errors import BadRequest, ContextLengthExceeded, ShuttingDown
from localchat.serving.engine import Cancelled, EngineError, EngineStopped, pooling_of
from localchat.serving.engine.embedding import Embedder, EmbeddingLimits, Piece, is_non_causal, steps

from .chat_requests import read

LIMITS = EmbeddingLimits(n_ctx=20, n_step=8, n_inputs=3, n_vocab=100)


class FakeEmbedding:
    """The vector of an input is its sum and its length. Asserts the limits of a step."""

    limits = LIMITS

    def __init__(self) -> None:
        self.steps: list[Sequence[Piece]] = []
        self.n_forgotten = 0
        self.is_closed = False
        self.fails = False

    def compute(self, inputs: Sequence[Sequence[int]], step: Sequence[Piece]) -> dict[int, array[float]]:
        assert not self.is_closed
        assert sum(piece.stop - piece.start for piece in step) <= LIMITS.n_step
        assert len(step) <= LIMITS.n_inputs
        if self.fails:
            raise EngineError("no")
        self.steps.append(step)
        done = [piece.index for piece in step if piece.stop == len(inputs[piece.index])]
        return {index: array("f", [sum(inputs[index]), len(inputs[index])]) for index in done}

    def forget(self) -> None:
        self.n_forgotten += 1

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        pytest.param([3], [[(0, 0, 3)]], id="one"),
        pytest.param([3, 3, 3], [[(0, 0, 3), (1, 0, 3)], [(2, 0, 3)]], id="what does not fit waits"),
        pytest.param([1, 1, 1, 1], [[(0, 0, 1), (1, 0, 1), (2, 0, 1)], [(3, 0, 1)]], id="no more inputs than slots"),
        pytest.param([8, 8], [[(0, 0, 8)], [(1, 0, 8)]], id="exactly a step"),
        pytest.param(
            [2, 18, 3], [[(0, 0, 2)], [(1, 0, 8)], [(1, 8, 16)], [(1, 16, 18), (2, 0, 3)]], id="longer than a step"
        ),
        pytest.param([], [], id="none"),
    ],
)
def test_steps_are_filled_in_order(lengths: list[int], expected: list[list[tuple[int, int, int]]]):
    assert [[(p.index, p.start, p.stop) for p in step] for step in steps(lengths, LIMITS)] == expected


def test_vectors_come_in_the_order_of_the_inputs():
    backend = FakeEmbedding()
    inputs = [[i] * n for i, n in enumerate((2, 18, 3, 1, 1, 1, 8, 9), 1)]
    vectors = Embedder(lambda: backend).embed(inputs)
    assert [list(vector) for vector in vectors] == [[sum(tokens), len(tokens)] for tokens in inputs]


def test_context_is_made_once_and_at_the_first_request():
    made = []
    embedder = Embedder(lambda: made.append(FakeEmbedding()) or made[-1])  # type: ignore[func-returns-value]
    assert not made
    for _ in range(3):
        embedder.embed([[1]])
    assert len(made) == 1
    embedder.close()
    embedder.close()
    assert made[0].is_closed
    with pytest.raises(EngineStopped):
        embedder.embed([[1]])


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        pytest.param([[1], [1] * 21], ContextLengthExceeded, "an input has 21 tokens .* holds 20", id="too long"),
        pytest.param([[]], BadRequest, "empty", id="empty"),
        pytest.param([[100]], BadRequest, "0 to 99", id="beyond the vocabulary"),
        pytest.param([[-1]], BadRequest, "-1", id="negative"),
    ],
)
def test_wrong_inputs_are_refused_before_any_is_computed(inputs: Any, error: type[Exception], message: str):
    backend = FakeEmbedding()
    with pytest.raises(error, match=message):
        Embedder(lambda: backend).embed(inputs)
    assert not backend.steps


class SlowEngine:
    """Cancels or stops the run while it computes the first group of inputs."""

    facts = SimpleNamespace(metadata={}, n_vocab=100, n_ctx=9000, n_ctx_train=9000)

    def __init__(self, end: str) -> None:
        self.run = VectorRun(SimpleNamespace(engine=self))  # type: ignore[arg-type]
        self.end = end
        self.n_calls = 0

    def embed(self, inputs: Sequence[Sequence[int]]) -> list[array[float]]:
        self.n_calls += 1
        getattr(self.run, self.end)()
        return [array("f", [1.0])] * len(inputs)


@pytest.mark.parametrize(("end", "error"), [("cancel", Cancelled), ("stop", ShuttingDown)])
def test_request_ends_between_two_groups_of_inputs(end: str, error: type[Exception]):
    engine = SlowEngine(end)
    with pytest.raises(error):
        engine.run.embed(read(parse_embeddings, {"input": [[1] * 3000] * 10}))
    assert engine.n_calls == 1


def test_embedder_works_after_a_failed_step():
    backend = FakeEmbedding()
    embedder = Embedder(lambda: backend)
    backend.fails = True
    with pytest.raises(EngineError):
        embedder.embed([[1] * 18])
    assert backend.n_forgotten == 1
    backend.fails = False
    assert list(embedder.embed([[4]])[0]) == [4, 1]


def test_threads_get_their_own_vectors():
    embedder = Embedder(FakeEmbedding)
    found: dict[int, Any] = {}

    def ask(i: int) -> None:
        found[i] = [list(vector) for vector in embedder.embed([[i] * n for n in (1, 12, 8)])]

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert found == {i: [[i, 1], [12 * i, 12], [8 * i, 8]] for i in range(8)}


def test_normalised_has_length_1():
    assert list(normalised([3.0, 4.0])) == pytest.approx([0.6, 0.8])
    assert list(normalised([0.0, 0.0])) == [0, 0]


def test_pooling_and_attention_are_those_of_the_model():
    for value, pooling in (("0", "mean"), ("1", "mean"), ("2", "cls"), ("3", "last"), ("4", "rank"), ("x", "mean")):
        assert pooling_of({"general.architecture": "bert", "bert.pooling_type": value}) == pooling
    assert pooling_of({"general.architecture": "bert"}) == "mean"
    assert not is_non_causal({"general.architecture": "llama"})
    assert not is_non_causal({})
    assert is_non_causal({"general.architecture": "llama", "llama.attention.causal": "false"})
    assert is_non_causal({"general.architecture": "nomic-bert"})
    assert is_non_causal({"general.architecture": "gemma-embedding"})


# --- Requests and responses ---


def test_input_is_text_or_tokens_or_a_list_of_both():
    for given, inputs in (("a", ("a",)), (["a", "b"], ("a", "b")), ([1, 2], ((1, 2),)), ([[1], [2]], ((1,), (2,)))):
        assert read(parse_embeddings, {"input": given}).inputs == inputs


WRONG = [
    (parse_embeddings, {}, "input"),
    (parse_embeddings, {"input": ""}, "input"),
    (parse_embeddings, {"input": ["a", ""]}, "input"),
    (parse_embeddings, {"input": []}, "input"),
    (parse_embeddings, {"input": ["a"] * 2049}, "input"),
    (parse_embeddings, {"input": [{"a": 1}]}, "input[0]"),
    (parse_embeddings, {"input": "a", "dimensions": 0}, "dimensions"),
    (parse_embeddings, {"input": "a", "encoding_format": "hex"}, "encoding_format"),
    (parse_embeddings, {"input": "a", "embd_normalize": -1}, "embd_normalize"),
    (parse_embeddings, {"input": "a", "truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
    (parse_embeddings, {"input": "a", "add_special_tokens": False}, "add_special_tokens"),
    (parse_rerank, {"documents": ["a"]}, "query"),
    (parse_rerank, {"query": "", "documents": ["a"]}, "query"),
    (parse_rerank, {"query": "q"}, "documents"),
    (parse_rerank, {"query": "q", "documents": []}, "documents"),
    (parse_rerank, {"query": "q", "documents": "a"}, "documents"),
    (parse_rerank, {"query": "q", "documents": ["a", 1]}, "documents[1]"),
    (parse_rerank, {"query": "q", "documents": ["a"], "top_n": 0}, "top_n"),
]


@pytest.mark.parametrize(("parse", "fields", "param"), WRONG)
def test_wrong_fields_are_named(parse: Any, fields: Any, param: str):
    with pytest.raises(BadRequest) as wrong:
        read(parse, fields)
    assert wrong.value.param == param


def test_model_and_dimensions_are_read():
    request = read(parse_embeddings, {"model": "m", "input": "a", "dimensions": 1})
    assert (request.model, request.dimensions) == ("m", 1)


def test_documents_are_texts_or_objects():
    assert read(parse_rerank, {"query": "q", "documents": ["a", {"text": "b"}]}).documents == ("a", "b")


def test_fields_that_request_the_default_are_accepted():
    fields = {"embd_normalize": 2, "truncate_prompt_tokens": -1, "add_special_tokens": True, "user": "u"}
    assert read(parse_embeddings, {"input": "a", **fields}, strict=True)


def test_vectors_are_numbers_or_base64():
    vectors = [array("f", [0.5, -1.0])]
    plain = embeddings_body("m", read(parse_embeddings, {"input": "a"}), vectors, 7)
    assert plain["data"] == [{"object": "embedding", "index": 0, "embedding": [0.5, -1.0]}]
    assert plain["usage"] == {"prompt_tokens": 7, "total_tokens": 7}
    request = read(parse_embeddings, {"input": "a", "encoding_format": "base64"})
    coded = embeddings_body("m", request, vectors, 7)["data"][0]["embedding"]
    assert base64.b64decode(coded) == b"\x00\x00\x00\x3f\x00\x00\x80\xbf"


@pytest.mark.parametrize(
    ("more", "results"),
    [
        pytest.param({}, [(1, None), (2, None), (0, None)], id="all"),
        pytest.param({"top_n": 1}, [(1, None)], id="the best"),
        pytest.param({"top_n": 1, "return_documents": True}, [(1, {"text": "b"})], id="with its text"),
    ],
)
def test_documents_are_sorted_by_score(more: Any, results: Any):
    request = read(parse_rerank, {"query": "q", "documents": ["a", {"text": "b"}, "c"], **more})
    body = rerank_body("m", request, [-1.0, 2.0, 0.5], 9)
    assert [(result["index"], result.get("document")) for result in body["results"]] == results
    assert body["usage"]["total_tokens"] == 9
