"""POST /completion in llama.cpp's form, on a fake model."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest

from .fakes import endless
from .serving import serving


def ask(running: Any, **fields: Any) -> tuple[int, str]:
    with contextlib.closing(running.client()) as client:
        client.request("POST", "/completion", json.dumps(fields))
        response = client.getresponse()
        return response.status, response.read().decode()


@pytest.mark.parametrize(
    ("fields", "content", "stop_type", "stopping_word"),
    [
        pytest.param({"n_predict": 3}, "abc", "limit", "", id="limit"),
        pytest.param({"stop": ["de"]}, "abc", "word", "de", id="stop text"),
        pytest.param({"stop_token_ids": [99]}, "ab", "eos", "", id="stop token"),
    ],
)
def test_streamed_and_whole_are_equal(fields: dict[str, Any], content: str, stop_type: str, stopping_word: str):
    with serving(endless) as running:
        status, text = ask(running, prompt="xy", **fields)
        _, streamed = ask(running, prompt="xy", stream=True, **fields)
    body, events = json.loads(text), streamed.split("\n\n")[:-1]
    assert (status, body["content"], body["stop"]) == (200, content, True)
    assert (body["stop_type"], body["stopping_word"], body["tokens_evaluated"]) == (stop_type, stopping_word, 2)
    *chunks, last = [json.loads(event[len("data: ") :]) for event in events]
    assert "".join(chunk["content"] for chunk in chunks) == content
    assert not any(chunk["stop"] for chunk in chunks)
    variable = {"timings": None, "content": None, "tokens": None}
    assert {**last, **variable} == {**body, **variable}
    assert last["content"] == ""


def test_several_outputs_are_a_list_with_tokens_and_probabilities():
    with serving() as running:
        _, text = ask(running, prompt=["ab", [99]], n_probs=1, return_tokens=True)
    bodies = json.loads(text)
    assert [(body["index"], body["content"], body["tokens"]) for body in bodies] == [
        (0, "ab", [97, 98]),
        (1, "c", [99]),
    ]
    assert [entry["token"] for entry in bodies[0]["completion_probabilities"]] == ["a", "b"]


def test_errors_name_the_field():
    with serving() as running:
        status, text = ask(running, prompt="a", n_predict=-2)
    assert (status, json.loads(text)["error"]["param"]) == (400, "n_predict")
