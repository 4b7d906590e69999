"""The endpoints besides chat, with the built-in model."""

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.exchanges import ask

# The tolerance for the same text, alone and beside others.
SAME = 1e-4
# The tolerance for vectors: the other inputs of a batch change how sums are rounded. A missing token would change a
# vector four times as much.
SAME_IN_A_BATCH = 5e-4


# --- vectors ---


# The last one has more tokens than a step.
TEXTS = ["hello world", *("word " * n for n in (1, 7, 40)), "é" * 30, "long text " * 120, "bye"]


def embed(port: int, given: Any, **fields: Any) -> list[list[float]]:
    status, body = ask(port, "/v1/embeddings", {"input": given, **fields})
    assert status == 200, body
    assert [entry["index"] for entry in body["data"]] == list(range(len(body["data"])))
    return [entry["embedding"] for entry in body["data"]]


def test_text_has_the_same_vector_alone_and_beside_others(port: int):
    together = embed(port, TEXTS)
    for text, vector in zip(TEXTS, together):
        assert math.isclose(sum(value * value for value in vector), 1, abs_tol=1e-5)
        alone = embed(port, text)[0]
        assert max(abs(one - other) for one, other in zip(alone, vector)) < SAME_IN_A_BATCH, text
    assert together[0] != together[1]


def test_tokens_have_the_vector_of_their_text(port: int):
    _, body = ask(port, "/tokenize", {"content": "hello world", "add_special": True, "parse_special": False})
    by_text, by_tokens = embed(port, "hello world"), embed(port, [body["tokens"]])
    assert by_text[0] == pytest.approx(by_tokens[0], abs=SAME)


def test_vectors_are_computed_beside_generated_text(port: int):
    texts = TEXTS[:-2]
    expected = embed(port, texts)
    with ThreadPoolExecutor(4) as threads:
        found = [threads.submit(embed, port, texts) for _ in range(4)]
        status, _ = ask(port, "/v1/completions", {"prompt": ["Hello"] * 8, "max_tokens": 30, "seed": 1})
    assert status == 200
    for vectors in found:
        for vector, other in zip(vectors.result(), expected):
            assert vector == pytest.approx(other, abs=SAME)


# --- invalid requests ---

WRONG = [
    ("/v1/embeddings", {"input": [[10**9]]}, "input", None),
    ("/v1/embeddings", {"input": "a", "dimensions": 10**6}, "dimensions", None),
    ("/v1/embeddings", {"input": ["a", "word " * 5000]}, "input[1]", "context_length_exceeded"),
    ("/tokenize", {}, "content", None),
    ("/detokenize", {"tokens": [10**9]}, "tokens", None),
]


@pytest.mark.parametrize(("path", "fields", "param", "code"), WRONG)
def test_error_of_a_wrong_request_names_the_field(port: int, path: str, fields: Any, param: str, code: str | None):
    status, body = ask(port, path, fields)
    error = body["error"]
    assert (status, error["param"]) == (400, param), error
    assert error["code"] == (code or error["type"])


# --- tokens ---


@pytest.mark.parametrize("text", ["hello world", "", "é漢字🙂", " a  b\n"])
def test_tokens_and_their_text_are_converted_both_ways(port: int, text: str):
    """A piece that is not valid UTF-8 is a list of bytes."""
    _, tokens = ask(port, "/v1/tokenize", {"content": text})
    status, body = ask(port, "/v1/detokenize", tokens)
    assert (status, body) == (200, {"content": text})
    _, body = ask(port, "/v1/tokenize", {"content": text, "with_pieces": True})
    pieces = [one["piece"] for one in body["tokens"]]
    assert b"".join(piece.encode() if isinstance(piece, str) else bytes(piece) for piece in pieces) == text.encode()
    assert any(isinstance(piece, list) for piece in pieces) == ("🙂" in text)


def test_template_is_applied_as_for_a_chat(port: int):
    fields = {"messages": [{"role": "user", "content": "What is your name?"}]}
    status, body = ask(port, "/apply-template", fields)
    assert status == 200
    assert "What is your name?" in body["prompt"]
    _, tokens = ask(port, "/tokenize", {"content": body["prompt"]})
    _, reply = ask(port, "/v1/chat/completions", {**fields, "max_tokens": 1})
    assert reply["usage"]["prompt_tokens"] == len(tokens["tokens"])
