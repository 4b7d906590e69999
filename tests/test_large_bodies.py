"""Large requests and responses are decoded and encoded in slices, so that other threads do not wait for long."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from localchat.serving.api.completion_response import CompletionStream
from localchat.serving.api.completions import parse_completion
from localchat.serving.core import json_decoder, json_text, time_slices
from localchat.serving.core.errors import BadRequest
from localchat.serving.core.events import ContentDelta, EchoedTokens, OutputToken, TokenLogprob
from localchat.serving.core.fields import parse_body, show
from localchat.serving.core.interface import ResponseHead
from localchat.serving.core.json_decoder import MAX_VALUES, decode_json
from localchat.serving.core.json_text import json_bytes, to_json

from .serving import serving

# Texts of more characters are decoded in slices in these tests.
LARGE = 10_000


@pytest.fixture(autouse=True)
def small_texts_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_decoder, "_SMALL_CHARS", LARGE)


def random_value(chance: random.Random, depth: int = 5) -> Any:
    kind = chance.randrange(8 if depth else 5)
    if kind < 5:
        return chance.choice([None, True, -5, 2.5e-3, "", 'é"\\\n', "\U0001f600", 10**30, chance.random()])
    items = [random_value(chance, depth - 1) for _ in range(chance.randrange(6))]
    return items if kind == 5 else {f"n{i}": item for i, item in enumerate(items)}


@pytest.mark.parametrize("ascii", [True, False])
def test_large_text_is_decoded_as_a_small_one(ascii: bool):
    chance = random.Random(1)
    value = [random_value(chance) for _ in range(8000)]
    text = json.dumps(value, ensure_ascii=ascii, indent=1)
    assert len(text) > LARGE
    assert decode_json(text) == value


@pytest.mark.parametrize("end", ["", "1,}", "NaN]", "1e999]", "1] 2", '"\\x"]', '{"a" 1}]', "1" * 400 + "]"])
def test_large_invalid_text_gets_the_error_of_a_small_one(end: str):
    with pytest.raises(ValueError, match=r".") as small:
        decode_json("[" + end)
    with pytest.raises(ValueError, match=r".") as large:
        decode_json("[" + " " * LARGE + end)
    assert getattr(large.value, "msg", str(large.value)) == getattr(small.value, "msg", str(small.value))


@pytest.mark.parametrize("item", ["[],", "{},", "1,", '"",', "1.5,", '{"a":[]},'])
def test_other_threads_run_while_a_large_text_is_decoded(item: str, monkeypatch: pytest.MonkeyPatch):
    """A slice is a thousand values. Between two slices, the lock is free."""
    pauses = []
    monkeypatch.setattr(time_slices.time, "sleep", lambda s: pauses.append(time_slices.working.locked()))
    text = "[" + item * 40_000 + "0]"
    decode_json(text)
    assert len(pauses) >= 35
    assert not any(pauses)


@pytest.mark.parametrize(("item", "n_values"), [("1,", 1), ("[],", 4)])
def test_body_of_too_many_values_is_refused(item: str, n_values: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(time_slices.time, "sleep", lambda s: None)
    body = b'{"x":[%b0]}' % (item.encode() * (MAX_VALUES // n_values + 1000))
    with pytest.raises(BadRequest, match=f"more than {MAX_VALUES} values"):
        parse_body(body)
    assert not time_slices.working.locked()


def test_text_of_many_lists_is_decoded_in_slices_and_one_of_an_agent_at_once(monkeypatch: pytest.MonkeyPatch):
    pauses = []
    monkeypatch.setattr(json_decoder, "_SMALL_CHARS", 1 << 20)
    monkeypatch.setattr(time_slices.time, "sleep", pauses.append)
    tools = (Path(__file__).parent / "data" / "mcp_tools.json").read_text(encoding="utf-8")
    assert decode_json(tools) == json.loads(tools)
    assert pauses == []
    decode_json("[" + "[]," * 30_000 + "0]")
    assert len(pauses) > 100


def test_large_value_is_encoded_as_a_small_one():
    chance = random.Random(2)
    for _ in range(200):
        value = random_value(chance, 9)
        assert json_bytes(value) == to_json(value).encode()
    assert json_bytes({"a": "\ud800", "b": ((1, 2), [])}) == b'{"a":"?","b":[[1,2],[]]}'
    many = [*range(4000), [1], "a"]
    assert json_bytes({"a": many, "b": tuple(many)}) == to_json({"a": many, "b": many}).encode()


@pytest.mark.parametrize("value", [[1.5] * 5000, {"a": {"enum": ["a"] * 5000}}, [[[[[[[["b"]] * 2000]]]]]], 1])
def test_length_of_a_value_is_that_of_its_text(value: Any, monkeypatch: pytest.MonkeyPatch):
    n_chars = len(to_json(value))
    assert [json_text.is_longer(value, n) for n in (n_chars - 1, n_chars)] == [True, False]
    encoded: list[str] = []
    monkeypatch.setattr(json_text, "to_json", lambda value: encoded.append(to_json(value)) or encoded[-1])
    json_text.is_longer(value, n_chars)
    assert max(map(len, encoded)) <= 10_000
    encoded.clear()
    json_text.is_longer(value, 10)
    assert sum(map(len, encoded)) <= 10_000


def test_log_probabilities_of_an_echoed_prompt_are_encoded_in_slices(monkeypatch: pytest.MonkeyPatch):
    """Also in a chunk of a stream, in which the first token has none."""
    n_chars: list[int] = []
    real = json_text.to_json
    monkeypatch.setattr(json_text, "to_json", lambda value: n_chars.append(len(real(value))) or real(value))
    request = parse_completion(b'{"prompt": "a", "echo": true, "logprobs": 3, "stream": true}')
    stream = CompletionStream(
        ResponseHead("id", 0, "m", ((1,),)), request, lambda: pytest.fail("the request asks for no usage")
    )
    top = tuple(TokenLogprob(i, b"abc", -1.0) for i in range(3))
    stream.add(0, ContentDelta("a"))
    stream.add(0, EchoedTokens((OutputToken(1, b"a"), *(OutputToken(i, b"abc", -1.0, top) for i in range(1000)))))
    (chunk,) = stream.take()
    assert len(json.loads(chunk)["choices"][0]["logprobs"]["top_logprobs"]) == 1001
    assert max(n_chars) < 20_000 < len(chunk)
    n_chars.clear()
    json_text.json_bytes({"prompt_logprobs": [None, *[{str(i): {"logprob": -1.0}} for i in range(1000)]]})
    assert max(n_chars) < 100


def test_large_value_in_a_message_is_encoded_no_further_than_shown():
    assert show(["a" * 30, "b" * 30, object()]) == f'["{"a" * 30}", "{"b" * 24}...'
    assert show({"a": [1]}) == '{"a": [1]}'


UNFIT = "a<think>" * 1400


@pytest.fixture(scope="module")
def real_model() -> Iterator[Any]:
    pytest.importorskip("llama_cpp", reason="the real engine needs llama-cpp-python")
    from localchat.serving.chat.model import Model
    from localchat.serving.engine import LoadOptions, load
    from localchat.serving.models.catalog import DEMO_PATH

    with load(str(DEMO_PATH), LoadOptions(n_ctx=512, n_parallel=2)) as engine:
        yield Model("Fake", engine)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": UNFIT}]}),
        ("/v1/completions", {"prompt": UNFIT}),
        ("/v1/completions", {"prompt": ["a", UNFIT]}),
        ("/completion", {"prompt": UNFIT}),
        ("/v1/responses", {"input": UNFIT}),
        ("/v1/messages", {"max_tokens": 4, "messages": [{"role": "user", "content": UNFIT}]}),
        ("/api/chat", {"messages": [{"role": "user", "content": UNFIT}]}),
        ("/api/generate", {"prompt": UNFIT}),
        ("/api/generate", {"prompt": UNFIT, "raw": True}),
    ],
)
def test_prompt_that_cannot_fit_is_refused_before_it_is_tokenized(
    real_model: Any, path: str, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    """No token of the built-in model has 21 bytes."""
    from localchat.serving.engine import engine
    from localchat.serving.engine.llama.vocabulary import Vocabulary

    monkeypatch.setattr(engine, "_COUNTED_TOKENS", 4)
    real = Vocabulary._tokenize_block

    def tokenized(self: Vocabulary, data: bytes, *others: Any) -> list[int]:
        assert len(data) < len(UNFIT)
        return real(self, data, *others)

    monkeypatch.setattr(Vocabulary, "_tokenize_block", tokenized)
    with serving(is_ready=False) as running:
        running.server.service.ready(real_model)
        status, body = running.request("POST", path, json.dumps({"model": "Fake", **fields}))
        running.server.service._model = None  # It is closed by the fixture.
    assert status == 400
    error = body["error"]
    assert re.search(r"the prompt has at least 56\d tokens and the context holds 512", str(error)), error
    assert path.startswith(("/api", "/v1/messages")) or error["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    ("path", "fields"),
    [("/v1/embeddings", {"input": "a b c d e f g h"}), ("/tokenize", {"content": "a b c d e f g h"})],
)
def test_text_of_more_tokens_than_any_context_holds_is_refused(
    real_model: Any, path: str, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    from localchat.serving.engine.llama import vocabulary

    monkeypatch.setattr(vocabulary, "MAX_TOKENS", 4)
    with serving(is_ready=False) as running:
        running.server.service.ready(real_model)
        status, body = running.request("POST", path, json.dumps(fields))
        running.server.service._model = None  # It is closed by the fixture.
    assert (status, body["error"]["code"]) == (400, "context_length_exceeded")
    assert "tokens, the limit is 4" in body["error"]["message"]


LONG = {"enum": ["a" * 1000] * 2000}
LONG_TOOL = {"name": "f", "parameters": LONG}


@pytest.mark.parametrize(
    ("path", "fields", "field"),
    [
        ("/v1/chat/completions", {"tools": [{"type": "function", "function": LONG_TOOL}]}, "tools"),
        ("/v1/chat/completions", {"functions": [LONG_TOOL]}, "functions"),
        ("/v1/chat/completions", {"json_schema": LONG}, "json_schema"),
        ("/v1/chat/completions", {"guided_choice": ["a" * 1000] * 2000}, "guided_choice"),
        ("/v1/chat/completions", {"grammar": "root ::= " + '"a" ' * 500_000}, "grammar"),
        (
            "/v1/chat/completions",
            {"response_format": {"type": "json_schema", "json_schema": {"schema": LONG}}},
            "response_format.json_schema.schema",
        ),
        ("/v1/responses", {"input": "x", "tools": [{"type": "function", **LONG_TOOL}]}, "tools"),
        ("/v1/messages", {"max_tokens": 1, "tools": [{"name": "f", "input_schema": LONG}]}, "tools"),
        ("/api/chat", {"format": LONG}, "format"),
    ],
)
def test_long_schema_is_refused_before_it_is_compiled(path: str, fields: dict[str, Any], field: str):
    body = json.dumps({"messages": [{"role": "user", "content": "x"}], **fields})
    with serving() as running:
        status, error = running.request("POST", path, body)
    assert status == 400
    assert re.search(rf"'{field}' has .*more than 1048576 characters, which is the limit", json.dumps(error))
