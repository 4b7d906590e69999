"""Refused chat requests: invalid JSON, invalid values of each field, and the field that the error names."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localchat.serving.api.chat import MAX_N, parse_chat
from localchat.serving.core import errors
from localchat.serving.core.fields import parse_body
from localchat.serving.core.params import MAX_STOPS
from localchat.serving.core.request import ParseOptions

from .chat_requests import HI, NULLABLE, TOOL, parse, refused

# Wrong values of fields, by the name of the field.
WRONG: dict[str, list[Any]] = {
    "model": [5],
    "stream": ["yes", 1],
    "stream_options": [[]],
    "n": [0, MAX_N + 1],
    "max_tokens": [0, -2, 1.5, True],
    "max_completion_tokens": ["9"],
    "n_predict": [0],
    "min_tokens": [-1],
    "temperature": [-0.1, "hot", False],
    "top_p": [1.1],
    "top_k": [-2, 2**31],
    "repeat_penalty": [0],
    "adaptive_decay": [1],
    "seed": [2**64],
    "stop": ["", ["a", ""], ["a", 5], {"a": 1}, ["a"] * (MAX_STOPS + 1)],
    "stop_token_ids": [["5"], [-1], 5, [True]],
    "logit_bias": [5, {"9" * 5000: 1}],
    "dry_sequence_breakers": [[], "x", ["a\0b"]],
    "samplers": [["top_k", "magic"], ["top_k", "top_k"], "k", 5],
    "post_sampling_probs": [1],
    "t_max_predict_ms": ["1"],
    "truncate_prompt_tokens": [-2],
    "ignore_eos": [1],
    "prompt_logprobs": [21],
    "lora": [[{"id": 0, "scale": 1}]],
    "modalities": [["audio"]],
    "allowed_token_ids": [[5]],
    "guided_choice": [[""]],
    "chat_template": ["x"],
    "response_prefix": [5],
    "echo": ["yes"],
    "continue_final_message": ["all", True],
    "reasoning_format": ["deepseek-legacy"],
    "reasoning_effort": [3],
    "reasoning_budget_tokens": [-2],
    "thinking_budget": ["5"],
    "reasoning_budget_message": [5],
    "reasoning_control": [True],
    "use_beam_search": [True],
    "request_id": [5],
    "logprobs": [5],
    "top_logprobs": [2],
    "tools": [{}],
    "tool_choice": ["maybe", 5, {"type": "function"}, "required"],
    "chat_template_kwargs": [[]],
    "enable_thinking": ["no"],
    "json_schema": ["x"],
    "grammar": [5],
    "choice": [["a", ""]],
    "messages": [None, [], "hi"],
}


def using(*tools: Any, mode: str = "auto") -> dict[str, Any]:
    """A `tool_choice` with allowed tools."""
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": list(tools)}}


def said(role: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": role, **fields}]}


# Wrong fields, and the path that the error names.
WRONG_INSIDE: list[tuple[dict[str, Any], str]] = [
    ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ({"logit_bias": {"": 1}}, "logit_bias."),
    ({"logit_bias": {"5": True}}, "logit_bias.5"),
    ({"logit_bias": {"5": 101}}, "logit_bias.5"),
    ({"logit_bias": [[5, 1], [-1, 1]]}, "logit_bias[1]"),
    ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
    ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
    ({"guided_regex": "a", "regex": "b"}, "guided_regex"),
    ({"regex": "a", "choice": ["a"]}, "choice"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.schema"),
    ({"documents": ["x"]}, "documents[0]"),
    ({"chat_template_kwargs": {"enable_thinking": "false"}}, "chat_template_kwargs.enable_thinking"),
    ({"chat_template_kwargs": {"thinking_budget": 0.5}}, "chat_template_kwargs.thinking_budget"),
    ({"functions": [{}]}, "functions[0].name"),
    ({"functions": [{"name": "f"}], "function_call": 5}, "function_call"),
    ({"tools": [TOOL, {"type": "web"}]}, "tools[1].type"),
    ({"tools": [{"function": {"name": ""}}]}, "tools[0].function.name"),
    ({"tools": [{"function": {"name": "f", "parameters": []}}]}, "tools[0].function.parameters"),
    ({"tools": [TOOL], "tool_choice": using(mode="none")}, "tool_choice.allowed_tools.mode"),
    ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "tools": []}}, "tool_choice.tools"),
    ({"tools": [TOOL], "tool_choice": using({"name": "other"})}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
    ({"messages": [{"content": "x"}]}, "messages[0].role"),
    (said("bot", content="x"), "messages[0].role"),
    (said("user"), "messages[0].content"),
    (said("user", content=["x"]), "messages[0].content[0]"),
    (said("user", content=[{"text": "x"}]), "messages[0].content[0].type"),
    (said("user", content=[{"type": "video_url"}]), "messages[0].content[0]"),
    (said("user", content=[{"type": "image_url", "image_url": {"url": "u"}}]), "messages[0].content[0]"),
    (said("assistant", tool_calls=[{"function": {}}]), "messages[0].tool_calls[0].function.name"),
    (
        said("assistant", tool_calls=[{"function": {"name": "f", "arguments": 5}}]),
        "messages[0].tool_calls[0].function.arguments",
    ),
    (said("tool", content="x", tool_call_id=5), "messages[0].tool_call_id"),
]


@pytest.mark.parametrize(
    ("fields", "param"), [*(({name: value}, name) for name in WRONG for value in WRONG[name]), *WRONG_INSIDE]
)
def test_wrong_field_is_named(fields: dict[str, Any], param: str):
    """K11, K25, K41, T27, V9, V50, G6."""
    assert refused(**fields).param == param


def test_message_gives_both_numbers():
    message = refused(top_p=1.5).message
    assert "0" in message
    assert "1" in message
    assert "1.5" in message
    assert "'min_tokens' is 5 and must not exceed the length limit, 4" in refused(min_tokens=5, max_tokens=4).message


def test_k10_strict_names_the_unknown_field():
    assert parse(strict=True, user="u", temperature=0).params.sampling == {"temperature": 0}
    with pytest.raises(errors.BadRequest) as caught:
        parse(strict=True, whatever=1)
    assert caught.value.param == "whatever"


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b'{"messages": [', id="cut"),
        pytest.param(b'{"a": 1} {"b": 2}', id="g5-data after it"),
        pytest.param(b"[]", id="list"),
        pytest.param(b'{"temperature": NaN}', id="NaN"),
        pytest.param(b'{"temperature": 1e999}', id="float beyond a double"),
        pytest.param(b'{"temperature": ' + b"9" * 400 + b"}", id="integer beyond a double"),
        pytest.param(b'{"a": "\xff"}', id="not UTF-8"),
        pytest.param('{"a": 1}'.encode("utf-16"), id="UTF-16"),
        pytest.param(b"[" * 100_000, id="deep"),
    ],
)
def test_g5_body_that_is_no_object_is_refused(body):
    with pytest.raises(errors.BadRequest) as caught:
        parse_body(body)
    assert caught.value.param == "body"


def test_byte_order_mark_is_skipped():
    assert parse_chat(parse_body(b"\xef\xbb\xbf" + json.dumps({"messages": HI}).encode())) == parse()


@pytest.mark.parametrize(
    ("escaped", "text"),
    [(r"\ud83d", "�"), (r"\ud83d\ude00", "😀"), (r"a\udc00b", "a�b"), (r"\\ud83d", r"\ud83d")],
)
def test_half_a_surrogate_pair_is_replaced(escaped, text):
    body = b'{"messages": [{"role": "user", "content": "%b"}]}' % escaped.encode()
    assert parse_chat(parse_body(body)).messages[0]["content"] == text


@settings(max_examples=25)
@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_any_json_is_a_request_or_a_bad_request(value):
    for body in ({"messages": value}, value, *({"messages": HI, "tools": [TOOL], name: value} for name in NULLABLE)):
        with contextlib.suppress(errors.BadRequest):
            parse_chat(parse_body(json.dumps(body).encode("utf-8", "surrogatepass")), ParseOptions(allow_template=True))
