"""The number of messages from the server to the engine does not depend on how much a request has."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.fakes import FakeProjector
from tests.support.serving import Serving, serving

Body = dict[str, Any]
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,YSA0MCA0MCAxIDE="}}  # "a 40 40 1 1"


@pytest.fixture(scope="module")
def running() -> Iterator[Serving]:
    tokens, sizes = {"fim_tokens": (1, 2, 3), "fim_file": 4}, {"n_ctx": 4000, "n_cells": 16_000}
    with serving(projector=FakeProjector(), modalities=("image",), fim=tokens, **sizes) as running:
        yield running


@pytest.fixture(scope="module")
def reranker() -> Iterator[Serving]:
    metadata = {"general.architecture": "bert", "bert.pooling_type": "4"}
    with serving(metadata=metadata) as running:
        yield running


def chat(content: Any = "a", **fields: Any) -> Body:
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 1, **fields}


def tools(n: int) -> list[Body]:
    return [{"type": "function", "function": {"name": f"f{i}", "parameters": {"type": "object"}}} for i in range(n)]


# The path, and the body with n of something.
MANY: dict[str, tuple[str, Callable[[int], Body]]] = {
    "messages": ("/v1/chat/completions", lambda n: {**chat(), "messages": chat()["messages"] * n}),
    "choices": ("/v1/chat/completions", lambda n: chat(n=n)),
    "tools": ("/v1/chat/completions", lambda n: chat(tools=tools(n))),
    "stops": ("/v1/chat/completions", lambda n: chat(stop=["z" * i for i in range(1, n + 1)])),
    "images": ("/v1/chat/completions", lambda n: chat([IMAGE] * n + [{"type": "text", "text": "a"}])),
    "texts of biases": ("/completion", lambda n: {"prompt": "a", "n_predict": 1, "logit_bias": [["ab" * n, 1]] * n}),
    "prompts": ("/v1/completions", lambda n: {"prompt": ["a"] * n, "max_tokens": 1}),
    "other files": (
        "/infill", lambda n: {"input_prefix": "a", "input_extra": [{"filename": "a", "text": "b"}] * n, "n_predict": 1}
    ),
    "inputs": ("/v1/embeddings", lambda n: {"input": ["a"] * n}),
    "documents": ("/v1/rerank", lambda n: {"query": "a", "documents": ["b"] * n}),
    "tokens": ("/detokenize", lambda n: {"tokens": [97] * n}),
    "text": ("/tokenize", lambda n: {"content": "a" * n}),
    "counted messages": ("/v1/messages/count_tokens", lambda n: {"messages": chat()["messages"] * n}),
}  # fmt: skip


@pytest.mark.parametrize(("path", "body"), MANY.values(), ids=MANY)
def test_messages_to_the_engine_do_not_grow_with_the_request(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, path: str, body: Callable[[int], Body]
):
    running: Serving = request.getfixturevalue("reranker" if path == "/v1/rerank" else "running")
    client, sent = running.engine_client, []
    send = client._send

    def send_and_note(message: Any) -> None:
        if message[0] == "start":
            sent.append(message[2])
        send(message)

    monkeypatch.setattr(client, "_send", send_and_note)

    def methods(n: int) -> list[str]:
        sent.clear()
        status, found = running.request("POST", path, body(n))
        assert status == 200, found
        return sent[:]

    assert methods(2) == methods(8)
    assert len(sent) <= 4


def test_texts_of_biases_have_a_limit_of_tokens(running: Serving):
    biases = [["a" * 1000, 1]] * 5
    assert running.request("POST", "/completion", {"prompt": "a", "n_predict": 1, "logit_bias": biases[:4]})[0] == 200
    status, found = running.request("POST", "/completion", {"prompt": "a", "n_predict": 1, "logit_bias": biases})
    expected = "'logit_bias' has texts of at least 5000 tokens, the limit is 4096"
    assert (status, found["error"]["message"]) == (400, expected)
