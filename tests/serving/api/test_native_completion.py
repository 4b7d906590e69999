"""POST /completion and POST /infill in llama.cpp's format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.exchanges import ask
from tests.support.fakes import echo, endless
from tests.support.serving import serving
from tests.support.wire_schemas import validate


@pytest.mark.parametrize(
    ("fields", "content", "stop_type", "stopping_word"),
    [
        ({"n_predict": 3}, "abc", "limit", ""),
        ({"stop": ["de"]}, "abc", "word", "de"),
        ({"stop_token_ids": [99]}, "ab", "eos", ""),
    ],
)
def test_streamed_and_whole_are_equal(fields: dict[str, Any], content: str, stop_type: str, stopping_word: str):
    with serving(endless) as running:
        status, body = ask(running.port, "/completion", {"prompt": "xy", **fields})
        _, (*chunks, last) = ask(running.port, "/completion", {"prompt": "xy", "stream": True, **fields})
    assert (status, body["content"], body["stop"]) == (200, content, True)
    assert (body["stop_type"], body["stopping_word"], body["tokens_evaluated"]) == (stop_type, stopping_word, 2)
    assert "".join(chunk["content"] for chunk in chunks) == content
    assert not any(chunk["stop"] for chunk in chunks)
    assert "completion_probabilities" not in body
    variable = {"timings": None, "content": None, "tokens": None}
    assert {**last, **variable} == {**body, **variable}
    assert last["content"] == ""


def test_several_outputs_are_a_list_with_tokens_and_probabilities():
    with serving() as running:
        fields = {"prompt": ["ab", [99]], "n_probs": 1, "return_tokens": True}
        first, second = ask(running.port, "/completion", fields)[1]
    assert (first["index"], first["content"], first["tokens"]) == (0, "ab", [97, 98])
    assert (second["index"], second["content"], second["tokens"]) == (1, "c", [99])
    assert [entry["token"] for entry in first["completion_probabilities"]] == ["a", "b"]


FILES = [{"filename": "a.py", "text": "A"}, {"text": "B"}]
GAP = {"input_prefix": "x", "input_suffix": "y"}


@pytest.mark.parametrize(
    ("facts", "fields", "prompt"),
    [
        ({}, GAP, "\x01x\x02y\x03"),
        ({}, {"input_prefix": "x", "prompt": "z"}, "\x01x\x02\x03z"),
        ({}, {**GAP, "input_extra": FILES}, "a.py\nA\n\nfile\nB\n\n\x01x\x02y\x03"),
        ({"fim_file": 4}, {**GAP, "input_extra": FILES}, "\x04a.py\nA\n\x04file\nB\n\x04file\n\x01x\x02y\x03"),
        (
            {"fim_file": 4, "fim_repository": 5},
            {**GAP, "input_extra": FILES[:1]},
            "\x05project\n\x04a.py\nA\n\x04file\n\x01x\x02y\x03",
        ),
    ],
    ids=["gap", "text in the gap", "files", "file tokens", "repository"],
)
def test_infill_makes_a_fim_prompt(facts: dict[str, Any], fields: dict[str, Any], prompt: str):
    with serving(echo, fim={"fim_tokens": (1, 2, 3), **facts}) as running:
        status, body = ask(running.port, "/infill", fields)
        _, events = ask(running.port, "/infill", {**fields, "stream": True})
    assert status == 200
    validate(body, "infill")
    for event in events:
        validate(event, "infill-event")
    assert (body["content"], body["tokens_evaluated"]) == (prompt, len(prompt))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (GAP, "input_suffix"),
        ({}, "input_prefix"),
        ({**GAP, "input_extra": [{"filename": "a"}]}, "input_extra[0].text"),
        ({**GAP, "input_extra": ["a"]}, "input_extra[0]"),
    ],
    ids=["model without FIM tokens", "no fields", "file without text", "no file"],
)
def test_infill_that_cannot_run_is_refused(fields: dict[str, Any], param: str):
    with serving() as running:
        status, body = ask(running.port, "/infill", fields)
    assert (status, body["error"]["param"]) == (400, param)


def test_model_file_has_the_fim_tokens(tmp_path: Path):
    pytest.importorskip("llama_cpp", reason="the real engine needs llama-cpp-python")
    from localchat.serving.engine.llama import load_backend
    from localchat.serving.engine.values import LoadOptions
    from tests.support.tiny_models import write_fim

    tokens = write_fim(tmp_path / "fim.gguf")
    backend = load_backend(str(tmp_path / "fim.gguf"), LoadOptions(n_parallel=1, n_ctx=64, n_cells=64))
    facts = backend.facts
    backend.close()
    assert facts.fim_tokens == (tokens["pre"], tokens["suf"], tokens["mid"])
    assert (facts.fim_file, facts.fim_repository) == (tokens["sep"], tokens["rep"])
