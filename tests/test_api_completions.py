"""Text completions: the validation of each field, and the format of bodies and chunks."""

from __future__ import annotations

from typing import Any

import pytest

from localchat.serving.api.completions import CompletionEncoder, LogprobWriter, parse_completion
from localchat.serving.core.errors import BadRequest
from localchat.serving.core.events import (
    ContentDelta,
    OutputEnd,
    OutputToken,
    ResponseHead,
    SampledTokens,
    TokenLogprob,
    Usage,
)

from .chat_requests import ignored, read

HEAD = ResponseHead("cmpl-1", 7, "m", ((1,), (2,)))
USAGE = Usage(n_prompt=3, n_cached=1, n_completion=2, prompt_s=0.5, completion_s=0.25)


def parse(*, strict: bool = False, **fields: Any):
    return read(parse_completion, fields, strict=strict)


def token(piece: bytes, logprob: float | None = -0.5, top: tuple[tuple[bytes, float], ...] = ()) -> OutputToken:
    return OutputToken(7, piece, logprob, tuple(TokenLogprob(8, other, value) for other, value in top))


def writer(**fields: Any) -> LogprobWriter:
    return LogprobWriter(parse(prompt="a", **{"logprobs": 5, **fields}))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": ["a", None]}, "prompt[1]"),
        ({"prompt": [1, -1]}, "prompt[0]"),
        ({"prompt": [True]}, "prompt[0]"),
        ({"prompt": ["a"] * 129}, "prompt"),
        ({"prompt": ["a"] * 65, "n": 2}, "prompt"),
        ({"prompt": "a", "n": 0}, "n"),
        ({"prompt": "a", "n": 3, "best_of": 2}, "best_of"),
        ({"prompt": "a", "logprobs": True}, "logprobs"),
        ({"prompt": "a", "logprobs": 99}, "logprobs"),
        ({"prompt": "a", "logprobs": 0, "echo": True, "suffix": "b"}, "suffix"),
        ({"prompt": "a", "post_sampling_probs": True}, "post_sampling_probs"),
        ({"prompt": "a", "echo": "yes"}, "echo"),
        ({"prompt": "a", "logprobs": 0, "echo": True, "truncate_prompt_tokens": 1}, "truncate_prompt_tokens"),
        ({"prompt": [1], "suffix": "b"}, "suffix"),
        ({"prompt": "a", "suffix": 4}, "suffix"),
        ({"prompt": "a", "temperature": "hot"}, "temperature"),
        ({"prompt": "a", "stream_options": 1}, "stream_options"),
        ({"prompt": "a", "grammar": 5}, "grammar"),
        ({"prompt": "a", "max_tokens": -2}, "max_tokens"),
        ({"prompt": "a", "max_tokens": 0, "min_tokens": 1}, "min_tokens"),
        ({"prompt": "a", "prompt_logprobs": -1}, "prompt_logprobs"),
        ({"prompt": "a", "prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"prompt": "a", "add_special_tokens": 1}, "add_special_tokens"),
    ],
)
def test_wrong_fields_are_named(fields: dict[str, Any], param: str):
    with pytest.raises(BadRequest) as wrong:
        parse(**fields)
    assert wrong.value.param == param


def test_unknown_fields_are_ignored_or_refused():
    assert ignored(parse_completion, {"prompt": "a", "colour": 1, "user": "u"}) == ("colour",)
    assert parse(strict=True, prompt="a", id_slot=1, prompt_cache_key="k")
    with pytest.raises(BadRequest, match="colour"):
        parse(strict=True, prompt="a", colour=1)


def test_logprobs_are_four_lists_with_offsets_in_characters():
    tokens = [
        token("é".encode(), -0.5, ((b"e", -1.0), ("é".encode(), -0.5))),
        token(b"\xe2\x82", float("-inf")),
        token(b"\xac!", -0.25),
    ]
    body = writer().write(tokens)
    assert body["tokens"] == ["é", "bytes:\\xe2\\x82", "bytes:\\xac\\x21"]
    assert body["token_logprobs"] == [-0.5, -9999.0, -0.25]
    assert body["top_logprobs"][0] == {"e": -1.0, "é": -0.5}
    assert body["text_offset"] == [0, 1, 1]


def test_likeliest_of_tokens_with_equal_text_is_kept():
    top = ((b"a", -0.5), (b"b", -1.0), (b"a", -2.0), (b"c", -3.0))
    body = writer().write([token(b"d", -4.0, top)])
    assert list(body["top_logprobs"][0].items()) == [("a", -0.5), ("b", -1.0), ("c", -3.0), ("d", -4.0)]


def test_whole_body():
    whole = CompletionEncoder(HEAD, parse(prompt=["a", "b"], logprobs=0), lambda: USAGE)
    for index, event in ((0, ContentDelta("a")), (1, SampledTokens((token(b"c", -1.0),))), (0, ContentDelta("b"))):
        whole.add(index, event)
    whole.add(0, OutputEnd("stop", "x"))
    whole.add(1, OutputEnd("length"))
    body = whole.body()
    assert (body["id"], body["object"], body["created"], body["model"]) == ("cmpl-1", "text_completion", 7, "m")
    assert body["choices"][0] == {
        "index": 0, "text": "ab", "logprobs": None, "finish_reason": "stop", "stop_reason": "x"
    }  # fmt: skip
    assert body["choices"][1]["logprobs"]["tokens"] == ["c"]
    assert body["usage"]["total_tokens"] == 5
    assert body["timings"]["predicted_n"] == 2
