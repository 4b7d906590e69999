"""Large requests: the limits of bodies, prompts and schemas."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pytest

from localchat.serving.api.chat import parse_chat
from localchat.serving.api.messages import parse_messages
from localchat.serving.api.ollama import parse_ollama
from localchat.serving.api.responses import ResponseStore, parse_response
from localchat.serving.core.errors import BadRequest
from localchat.serving.core.fields import parse_body
from localchat.serving.core.text import MAX_CONTAINERS, json_bytes
from tests.support.chat_requests import HI, read
from tests.support.exchanges import ask


@pytest.mark.parametrize("item", [b"[],", b'{"a":[]},'])
def test_body_of_too_many_lists_is_refused(item: bytes):
    n = item.count(b"[") + item.count(b"{")
    body = b'{"x":[%b0]}' % (item * (MAX_CONTAINERS // n))
    with pytest.raises(
        BadRequest, match=f"it has {MAX_CONTAINERS + 2} opening brackets, the limit is {MAX_CONTAINERS}"
    ):
        parse_body(body)


def test_lone_surrogates_in_a_response_are_question_marks():
    assert json_bytes({"a": "\ud800", "b": ((1, 2), [])}) == b'{"a":"?","b":[[1,2],[]]}'


UNFIT = "a<think>" * 11_200


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": UNFIT}]}),
        ("/v1/completions", {"prompt": ["a", UNFIT]}),
    ],
)
def test_prompt_that_cannot_fit_is_refused_before_it_is_tokenized_whole(
    port: int, path: str, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    from localchat.serving.engine import inputs
    from localchat.serving.engine.llama.vocabulary import Vocabulary

    monkeypatch.setattr(inputs, "_COUNTED_TOKENS", 4)
    real = Vocabulary._tokenize_block

    def tokenized(self: Vocabulary, data: bytes, *others: Any) -> list[int]:
        assert len(data) < len(UNFIT)
        return real(self, data, *others)

    monkeypatch.setattr(Vocabulary, "_tokenize_block", tokenized)
    status, body = ask(port, path, fields)
    assert (status, body["error"]["code"]) == (400, "context_length_exceeded")
    assert re.search(r"4096 tokens.* at least \d+ tokens", body["error"]["message"])


parse_responses = partial(parse_response, ResponseStore())
LONG = {"enum": ["a" * 1000] * 2000}
LONG_TOOL = {"name": "f", "parameters": LONG}


@pytest.mark.parametrize(
    ("parse", "fields", "param"),
    [
        (parse_chat, {"tools": [{"type": "function", "function": LONG_TOOL}]}, "tools"),
        (parse_chat, {"json_schema": LONG}, "json_schema"),
        (parse_chat, {"grammar": "root ::= " + '"a" ' * 500_000}, "grammar"),
        (parse_chat, {"response_format": {"type": "json_schema", "schema": LONG}}, "response_format.schema"),
        (parse_responses, {"input": "x", "tools": [{"type": "function", **LONG_TOOL}]}, "tools"),
        (parse_messages, {"max_tokens": 1, "tools": [{"name": "f", "input_schema": LONG}]}, "tools"),
        (parse_ollama, {"format": LONG}, "format"),
    ],
)
def test_long_schema_is_refused(parse: Any, fields: dict[str, Any], param: str):
    with pytest.raises(BadRequest, match=rf"'{param}' has \d+ characters, the limit is 1048576"):
        read(parse, {"messages": HI, **fields})
