"""Chat requests and responses over a socket: sampling options, limits, usage, timings, token ids, log probabilities."""

import dataclasses
import math
from typing import Any

import pytest

from localchat.serving.chat.model import Model
from localchat.serving.core.params import SamplingParams, parse_default
from localchat.serving.core.server_options import Options
from localchat.serving.engine.values import SequenceRequest, invalid_grammar
from tests.support.fakes import endless
from tests.support.serving import BIG, LAST_MESSAGE, REASONING_AND_TEXT, TOOLS, generating, serving


def test_continuous_usage_grows_over_all_choices():
    """Every chunk has the usage of the whole request, which is zero before the first text."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    with serving(endless) as running:
        _, chunks = running.chat(n=2, max_tokens=5, stream=True, stream_options=options)
        _, without = running.chat(stream=True, max_tokens=5, stream_options={"continuous_usage_stats": True})
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts[:2] == [0, 0]
    assert counts == sorted(counts)
    assert counts[-1] == counts[-2] == 10
    assert all(chunk["usage"]["prompt_tokens"] == 5 for chunk in chunks)
    assert all("usage" not in chunk for chunk in without)


def test_timings_are_on_the_last_chunk_or_on_each():
    with serving(endless) as running:
        _, body = running.chat(max_tokens=5)
        _, plain = running.chat(max_tokens=5, stream=True)
        _, each = running.chat(max_tokens=5, stream=True, timings_per_token=True)
    assert ["timings" in chunk for chunk in plain] == [False] * (len(plain) - 1) + [True]
    assert all("timings" in chunk for chunk in each)
    for timings in (body["timings"], plain[-1]["timings"], each[-1]["timings"]):
        assert timings["predicted_n"] == 5
        assert timings["prompt_n"] + timings["cache_n"] == 5
        assert timings["prompt_ms"] >= 0


CALL = "<tool_call>|\n<function=look>\n</function>\n</tool_call>"
QWEN = LAST_MESSAGE + "{{ tools }}{# <think> <tool_call> <function=f> <parameter=p> #}"
# The bar divides the reasoning from the rest.
OUTPUTS = [
    *(f"<think>\nhm\n{CALL}{CALL.replace('|', '')}", "<think>\nhm\n</think>|\n\n<b>42"),
    *("<think>hm</think>|42", "<think>hm|", "<think><|", "|<think>\n\n</think>42", "|<th42", "|42</think>"),
]


@pytest.mark.parametrize("marked", OUTPUTS)
def test_reasoning_tokens_are_exact(marked):
    """Each token is one byte. Reasoning that ends with a call counts up to its marker."""
    reasoning, _, rest = marked.partition("|")
    with serving(generating(reasoning + rest), chat_template=QWEN, **BIG) as running:
        usage = running.chat(tools=TOOLS)[1]["usage"]
    assert usage["completion_tokens_details"]["reasoning_tokens"] == len(reasoning)
    assert usage["completion_tokens"] == len(reasoning + rest) + 1


def test_error_of_a_refused_grammar_names_the_field_it_came_from():
    def refusing(request: SequenceRequest) -> Any:
        assert request.constraint is not None
        raise invalid_grammar("it is too large", request.constraint.origin)

    with serving(**BIG) as running:
        running.backend.new_sampler = refusing  # type: ignore[method-assign]  # a spy
        for param, fields in (
            ("response_format.schema", {"response_format": {"type": "json_schema", "schema": {}}}),
            ("grammar", {"grammar": 'root ::= "a"'}),
            ("tools", {"tools": TOOLS, "tool_choice": "required"}),
            ("json_schema", {"tools": TOOLS, "json_schema": {}}),
        ):
            status, body = running.chat(**fields)
            assert (status, body["error"]["param"]) == (400, param)
            assert f"'{param}' cannot be enforced" in body["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "name", "value"),
    [
        ({}, str, {"logprob": -0.5}),
        ({"top_logprobs": 1}, str, {"logprob": -0.5}),
        ({"top_logprobs": 1, "return_tokens_as_token_ids": True}, lambda a: f"token_id:{ord(a)}", {"logprob": -0.5}),
        ({"top_logprobs": 1, "post_sampling_probs": True}, str, {"prob": pytest.approx(0.75)}),
    ],
)
def test_every_token_has_its_entry_in_order(running, fields, name, value):
    """Also repeated tokens, in the body and in the stream, each in its choice."""
    _, body = running.chat(content="aaba", logprobs=True, n=2, **fields)
    _, chunks = running.chat(content="aaba", logprobs=True, n=2, stream=True, **fields)
    expected = [{"token": name(text), **value, "bytes": [ord(text)]} for text in "aaba"]
    streamed: dict[int, list[Any]] = {0: [], 1: []}
    for choice in (choice for chunk in chunks for choice in chunk["choices"] if choice["logprobs"]):
        streamed[choice["index"]] += choice["logprobs"]["content"]
    for i, choice in enumerate(body["choices"]):
        assert choice["index"] == i
        assert choice["logprobs"]["content"] == streamed[i]
        top = "top_probs" if "prob" in value else "top_logprobs"
        assert streamed[i] == [{**entry, top: [entry] if fields else []} for entry in expected]


def test_truncation_keeps_the_end_of_the_prompt(running):
    for content, n_kept, prompt in (("abcdef", 2, b"ef"), ("ab", 3, b"ab")):
        _, body = running.chat(content=content, truncate_prompt_tokens=n_kept, return_token_ids=True)
        assert (bytes(body["prompt_token_ids"]), body["usage"]["prompt_tokens"]) == (prompt, 2)


def test_reasoning_is_repeated_beside_the_choices_with_the_option():
    with serving(generating(REASONING_AND_TEXT), settings=Options(port=0, thought_field=True)) as running:
        _, body = running.chat(n=2)
        _, chunks = running.chat(n=2, stream=True)
    assert body["thought"] == body["choices"][0]["message"]["reasoning_content"] == "hm"
    assert "".join(chunk.get("thought", "") for chunk in chunks) == "hm"
    with serving(generating(REASONING_AND_TEXT)) as running:
        assert "thought" not in running.chat()[1]


def test_tokens_of_all_markers_are_visible():
    """The vocabulary hides control tokens, and the parser must see them. A marker may have several tokens."""
    with serving(chat_template=LAST_MESSAGE + "{{ tools }}{# <|tool_call:begin|> #}") as running:
        running.chat()
        assert set(b"<|begin|>assistant") <= running.requests[-1].visible_tokens


# --- sampling options and limits ---


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"temperature": 0, "top_p": 0, "top_k": 0, "min_p": 0}, None),
        ({"top_n_sigma": 1.5, "xtc_probability": 0.5, "dynatemp_range": 0.5, "mirostat_tau": 4, "seed": 11}, None),
        ({"logit_bias": {"97": 5}}, {"logit_bias": ((97, 5.0),)}),
        ({"logit_bias": {"ab": -1}}, {"logit_bias": ((97, -1.0), (98, -1.0))}),
        ({"logit_bias": [[97, 1], ["b", False]]}, {"logit_bias": ((97, 1.0), (98, -math.inf))}),
    ],
)
def test_sampling_fields_reach_the_engine(running, fields, expected):
    """With llama.cpp's table of sampling fields. None: the fields themselves."""
    assert running.chat(**fields)[0] == 200
    sampling = running.requests[-1].sampling
    assert dataclasses.replace(sampling, **(expected or fields)) == sampling


def test_request_then_command_line_then_model_then_built_in():
    """An explicit zero counts at every level."""
    with serving() as running:
        recommended = SamplingParams(temperature=0.5, top_k=20, top_p=0.5, min_p=0.3)
        running.engine_client.facts = dataclasses.replace(running.engine.facts, sampling=recommended)
        options = ("top_p=0.6", "min_p=0", "top_k=30", "seed=7")
        defaults = {name: value for option in options for name, value in parse_default(option).items()}
        running.server.service.default.model = Model("Fake", running.engine_client, defaults=defaults)
        running.chat(top_k=0)
        running.chat(seed=-1)
        sampling = running.requests[0].sampling
    assert [request.sampling.seed for request in running.requests] == [7, None]
    assert (sampling.top_k, sampling.top_p, sampling.min_p) == (0, 0.6, 0)
    assert (sampling.temperature, sampling.repeat_penalty) == (0.5, 1.0)
    assert (SamplingParams().temperature, SamplingParams().top_p, SamplingParams().top_k) == (1.0, 0.95, 64)


def test_without_a_limit_the_context_is_the_limit():
    """The end of the context is `length`, as is a default limit."""
    with serving(endless, n_ctx=16) as running:
        for fields in ({}, {"max_tokens": 1000}):
            _, found = running.chat("hello", **fields)
            assert (found["usage"]["total_tokens"], found["choices"][0]["finish_reason"]) == (16, "length")


def test_natural_end_at_exactly_the_limit_is_stop(running):
    assert running.chat(content="ab", max_tokens=3)[1]["choices"][0]["finish_reason"] == "stop"


def test_seeds_of_the_choices_differ():
    """With equal seeds, all choices would have the same text."""
    with serving() as running:
        running.chat(n=3, seed=5)
        assert [request.sampling.seed for request in running.requests] == [5, 6, 7]
