"""Requests as in the documentation of OpenAI, llama-server and vLLM, over HTTP, and with the package `openai`.

Each is served by the built-in model. The texts in the requests are our own.
"""

import json
from typing import Any

import pytest

from localchat.serving.models.model_file import DEMO
from tests.support.exchanges import ask
from tests.support.serving import BIG, generating, openai_client, serving

MAX_TOKENS = 12
Example = tuple[str, dict[str, Any]]  # The path and the fields of a request.


def chat(*messages: Any, **fields: Any) -> Example:
    return "/v1/chat/completions", {"messages": list(messages) or [USER], **fields}


def complete(prompt: Any = "Once upon a time", **fields: Any) -> Example:
    return "/v1/completions", {"prompt": prompt, **fields}


DEVELOPER = {"role": "developer", "content": "Be brief."}
USER = {"role": "user", "content": "Hello!"}
PLACE = {
    "type": "object",
    "properties": {"location": {"type": "string"}, "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}},
    "required": ["location"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "Weather now", "parameters": PLACE}}
STRICT = {"type": "function", "function": {**WEATHER["function"], "strict": True}}  # type: ignore[dict-item]
NAMED = {"type": "function", "function": {"name": "get_weather"}}
ARGUMENTS = '{"location": "Oslo"}'
CALL = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": ARGUMENTS}}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": '{"temperature": 22}'}
STEPS = {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]}
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "steps", "strict": True, "schema": STEPS}}

# --- OpenAI's reference ---

OPENAI: dict[str, Example] = {
    "a developer's words": chat(DEVELOPER, USER),
    "functions": chat(tools=[WEATHER], tool_choice="auto"),
    "required call": chat(tools=[WEATHER], tool_choice="required", max_tokens=60),
    "allowed tools": chat(
        tools=[WEATHER], tool_choice={"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}}
    ),
    "result of a call": chat(
        USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}, RESULT, tools=[WEATHER]
    ),
    "result of an older call": chat(
        USER,
        {"role": "assistant", "content": None, "function_call": {"name": "get_weather", "arguments": ARGUMENTS}},
        {"role": "function", "name": "get_weather", "content": "22"},
    ),
    "older functions": chat(functions=[WEATHER["function"]], function_call="auto"),
    "choices": chat(n=3, seed=7, temperature=1.1),
    "JSON by schema": chat(response_format=JSON_SCHEMA, max_tokens=40),
    "stored": chat(store=True, metadata={"topic": "greeting"}, modalities=["text"], service_tier="flex"),
    "predicted": chat(prediction={"type": "content", "content": "Hello there."}, response_format={"type": "text"}),
    "reasoning": chat(reasoning_effort="low", verbosity="low", max_completion_tokens=30),
    "cache and safety": chat(prompt_cache_key="a", prompt_cache_retention="24h", safety_identifier="u", user="u"),
    "no stops": chat(stop=None, logit_bias=None, tools=None, n=None),
    "usage in streams": chat(stream_options={"include_usage": True, "include_obfuscation": False}),
    "prompts of tokens": complete([[10, 11], [12]]),
    "scores": complete(logprobs=3),
    "prompt alone": complete(echo=True, max_tokens=0),
}

# --- llama-server's own ---

SAMPLERS = json.loads(
    """{"dynatemp_range": 0.1, "dynatemp_exponent": 1.0, "typical_p": 1.0, "top_n_sigma": -1, "xtc_probability": 0.1,
    "xtc_threshold": 0.1, "repeat_last_n": 64, "repeat_penalty": 1.1, "dry_multiplier": 0.8, "dry_base": 1.75,
    "dry_allowed_length": 2, "dry_penalty_last_n": -1, "dry_sequence_breakers": ["\\n", ":"], "mirostat": 0,
    "mirostat_tau": 5.0, "mirostat_eta": 0.1, "adaptive_target": -1, "adaptive_decay": 0.9, "min_keep": 0, "seed": -1,
    "samplers": ["dry", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"]}"""
)
LLAMA: dict[str, Example] = {
    "all samplers": chat(n_predict=8, **SAMPLERS),
    "adaptive sampling": chat(samplers=["min_p", "adaptive_p"], min_p=0.05, adaptive_target=0.5),
    "biases by text": chat(logit_bias=[["Hello", -1.0], [15, False]], ignore_eos=True),
    "slots and caches": chat(cache_prompt=True, id_slot=-1, n_keep=0, n_discard=0, n_cache_reuse=0),
    "timings and progress": chat(timings_per_token=True, return_progress=True, return_tokens=True, verbose=False),
    "limit of time": complete(t_max_predict_ms=60_000, n_predict=8, n_probs=2),
    "grammar": chat(grammar='root ::= "yes" | "no"'),
    "schema as a member": complete(json_schema=STEPS, max_tokens=40),
    "variables of the template": chat(chat_template_kwargs={"enable_thinking": False}),
    "continued message": chat(
        USER, {"role": "assistant", "content": "Hi"}, continue_final_message=True, add_generation_prompt=False
    ),
}

# --- vLLM's own ---

USAGE = {"include_usage": True, "continuous_usage_stats": True}
VLLM: dict[str, Example] = {
    "penalty by its name": chat(repetition_penalty=1.1, min_tokens=2, stop_token_ids=[10], priority=5, request_id="a"),
    "template flags": chat(add_generation_prompt=True, add_special_tokens=False, include_reasoning=True),
    "documents": chat(documents=[{"title": "a", "text": "b"}]),
    "structured regex": chat(structured_outputs={"regex": "[a-c]{1,4}"}),
    "guided schema": chat(guided_json=STEPS, max_tokens=40),
    "ids of tokens": chat(return_token_ids=True, logprobs=True, return_tokens_as_token_ids=True, stream_options=USAGE),
}

EXAMPLES = {
    f"{server}: {name}": example
    for server, examples in (("openai", OPENAI), ("llama.cpp", LLAMA), ("vllm", VLLM))
    for name, example in examples.items()
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_is_served(port: int, name: str):
    """Every second text is streamed."""
    path, fields = EXAMPLES[name]
    limit = {} if {"max_completion_tokens", "n_predict"} & set(fields) else {"max_tokens": MAX_TOKENS}
    fields = {"model": DEMO, "stream": list(EXAMPLES).index(name) % 2 == 0, **limit, **fields}
    status, found = ask(port, path, fields)
    assert status == 200, found
    bodies = found if fields["stream"] else [found]
    check_choices([body for body in bodies if body != "[DONE]"], fields)


def check_choices(bodies: list[Any], fields: dict[str, Any]) -> None:
    """Check that every choice has exactly one end, and that the requested fields are present."""
    n_prompts = len(fields["prompt"]) if isinstance(fields.get("prompt"), list) else 1
    n = n_prompts * (fields.get("n") or 1)
    choices = [choice for body in bodies for choice in body["choices"]]
    for i in range(n):
        ends = [choice["finish_reason"] for choice in choices if choice["index"] == i and choice["finish_reason"]]
        assert len(ends) == 1
        assert ends[0] in ("stop", "length", "tool_calls")
    assert {choice["index"] for choice in choices} == set(range(n))
    logprobs = fields.get("n_probs", fields.get("logprobs"))
    has_logprobs = logprobs is not None and logprobs is not False
    assert any(choice["logprobs"] for choice in choices) == has_logprobs
    must_call = fields.get("tool_choice") in ("required", NAMED)
    assert not must_call or any((choice.get("message") or choice["delta"]).get("tool_calls") for choice in choices)
    if (fields.get("stream_options") or {}).get("include_usage") and fields["stream"]:
        assert bodies[-1]["choices"] == []
        assert bodies[-1]["usage"]["completion_tokens"] > 0


def test_openai_package_without_chat(port: int):
    openai = pytest.importorskip("openai", reason="the real client comes with the test extra")
    with openai_client(port) as client:
        vectors = client.embeddings.create(model=DEMO, input=["one", "two"], dimensions=8)  # requests base64
        assert [len(entry.embedding) for entry in vectors.data] == [8, 8]
        assert client.completions.create(model=DEMO, prompt="Once", max_tokens=2).usage.completion_tokens == 2
        assert client.models.retrieve(DEMO).id == DEMO
        with pytest.raises(openai.NotFoundError, match="there is no model 'gpt-4o' here"):
            client.chat.completions.create(model="gpt-4o", messages=[USER])


TEXT_AND_CALL = """<think>hm</think>Let me see.
<tool_call>
{"name": "get_weather", "arguments": {"location": "Oslo"}}
</tool_call>"""


def test_openai_stream_helper_parses_reasoning_and_a_tool_call_and_usage():
    options = {"stream_options": {"include_usage": True}, "tools": [STRICT]}
    with serving(generating(TEXT_AND_CALL), **BIG) as running, openai_client(running.port) as client:
        with client.chat.completions.stream(model="Fake", messages=[USER], **options) as stream:
            events = list(stream)
        final = stream.get_final_completion()
    message = final.choices[0].message
    arguments = "tool_calls.function.arguments"
    assert {"content.delta", f"{arguments}.delta", f"{arguments}.done"} <= {event.type for event in events}
    last = [event.chunk for event in events if event.type == "chunk"][-1]
    # The package does not declare this field.
    assert last.timings["predicted_n"] == last.usage.completion_tokens == len(TEXT_AND_CALL) + 1
    (call,) = message.tool_calls
    assert call.function.parsed_arguments == {"location": "Oslo"}
    assert (message.reasoning_content.strip(), message.content.strip()) == ("hm", "Let me see.")
    assert final.usage.completion_tokens_details.reasoning_tokens == len("<think>hm</think>")


def test_openai_parse_helper_makes_an_object_of_the_response():
    pydantic = pytest.importorskip("pydantic", reason="the package openai requires it")
    kind = pydantic.create_model("Steps", answer=(int, ...))
    options = {"model": "Fake", "messages": [USER], "response_format": kind}
    with serving(generating('{"answer": 5}'), **BIG) as running, openai_client(running.port) as client:
        whole = client.chat.completions.parse(**options)
        with client.chat.completions.stream(**options, logprobs=True) as stream:
            kinds = {event.type for event in stream}
        streamed = stream.get_final_completion()
    assert whole.choices[0].message.parsed == streamed.choices[0].message.parsed == kind(answer=5)
    assert "logprobs.content.delta" in kinds
