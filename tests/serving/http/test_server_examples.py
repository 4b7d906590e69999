"""Requests as in the documentation of OpenAI, llama-server and vLLM, over HTTP, and with the package `openai`.

Each is served by the built-in model. The texts in the requests are our own.
"""

import json
from typing import Any

import pytest

from localchat.serving.models.model_file import DEMO
from tests.support.chat_requests import ALLOWED, TOOL
from tests.support.exchanges import ask
from tests.support.serving import BIG, generating, openai_client, serving


def chat(*messages: Any, **fields: Any) -> tuple[str, dict[str, Any]]:
    return "/v1/chat/completions", {"messages": list(messages) or [USER], **fields}


def complete(**fields: Any) -> tuple[str, dict[str, Any]]:
    return "/v1/completions", {"prompt": "Once upon a time", **fields}


DEVELOPER = {"role": "developer", "content": "Be brief."}
USER = {"role": "user", "content": "Hello!"}
CALLED = {"name": "look", "arguments": '{"at": "Oslo"}'}
CALL = {"role": "assistant", "content": None, "tool_calls": [{"id": "call_1", "type": "function", "function": CALLED}]}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": '{"temperature": 22}'}
OLDER_CALL = {"role": "assistant", "content": None, "function_call": CALLED}
OLDER_RESULT = {"role": "function", "name": "look", "content": "22"}
# Of llama-server.
SAMPLERS = json.loads(
    """{"dynatemp_range": 0.1, "dynatemp_exponent": 1.0, "typical_p": 1.0, "top_n_sigma": -1, "xtc_probability": 0.1,
    "xtc_threshold": 0.1, "repeat_last_n": 64, "repeat_penalty": 1.1, "dry_multiplier": 0.8, "dry_base": 1.75,
    "dry_allowed_length": 2, "dry_penalty_last_n": -1, "dry_sequence_breakers": ["\\n", ":"], "mirostat": 0,
    "mirostat_tau": 5.0, "mirostat_eta": 0.1, "adaptive_target": -1, "adaptive_decay": 0.9, "min_keep": 0, "seed": -1,
    "samplers": ["dry", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"]}"""
)
USAGE = {"include_usage": True, "continuous_usage_stats": True, "include_obfuscation": False}
# The path and the fields of each request, which has many fields that do not exclude each other.
EXAMPLES = {
    "OpenAI, calls and results": chat(DEVELOPER, USER, CALL, RESULT, OLDER_CALL, OLDER_RESULT, USER, tools=[TOOL]),
    "OpenAI, allowed tools": chat(tools=[TOOL], tool_choice=ALLOWED),
    "OpenAI, older functions": chat(functions=[TOOL["function"]], function_call="auto"),
    "OpenAI, other fields": chat(
        n=3, seed=7, temperature=1.1, max_completion_tokens=12, stop=None, logit_bias=None, tools=None, user="u",
        store=True, metadata={"topic": "greeting"}, modalities=["text"], service_tier="flex", safety_identifier="u",
        prediction={"type": "content", "content": "Hello there."}, response_format={"type": "text"}, verbosity="low",
        reasoning_effort="low", prompt_cache_key="a", prompt_cache_retention="24h", stream_options=USAGE,
    ),
    "OpenAI, prompts of tokens": complete(prompt=[[10, 11], [12]], logprobs=3),
    "OpenAI, prompt alone": complete(echo=True, max_tokens=0),
    "llama-server": chat(
        n_predict=8, logit_bias=[["Hello", -1.0], [15, False]], ignore_eos=True, cache_prompt=True, id_slot=-1,
        n_keep=0, n_discard=0, n_cache_reuse=0, timings_per_token=True, return_progress=True, return_tokens=True,
        verbose=False, chat_template_kwargs={"enable_thinking": False}, **SAMPLERS,
    ),
    "llama-server, adaptive sampling": chat(samplers=["min_p", "adaptive_p"], min_p=0.05, adaptive_target=0.5),
    "llama-server, completion": complete(t_max_predict_ms=60_000, n_predict=8, n_probs=2),
    "vLLM": chat(
        repetition_penalty=1.1, min_tokens=2, stop_token_ids=[10], priority=5, request_id="a", include_reasoning=True,
        add_generation_prompt=True, add_special_tokens=False, documents=[{"title": "a", "text": "b"}], logprobs=True,
        return_token_ids=True, return_tokens_as_token_ids=True, stream_options=USAGE,
    ),
    "vLLM, structured output": chat(structured_outputs={"regex": "[a-c]{1,4}"}),
    "vLLM, continued message": chat(
        USER, {"role": "assistant", "content": "Hi"}, continue_final_message=True, add_generation_prompt=False
    ),
}  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", EXAMPLES)
def test_example_is_served(port: int, name: str, stream: bool):
    """Every choice has exactly one end, and the requested fields are present."""
    path, fields = EXAMPLES[name]
    limit = {} if {"max_completion_tokens", "n_predict"} & set(fields) else {"max_tokens": 12}
    status, found = ask(port, path, {"model": DEMO, "stream": stream, **limit, **fields})
    assert status == 200, found
    bodies = [body for body in found if body != "[DONE]"] if stream else [found]
    choices = [choice for body in bodies for choice in body["choices"]]
    ends = {choice["index"]: choice["finish_reason"] for choice in choices if choice["finish_reason"]}
    n_prompts = 2 if isinstance(fields.get("prompt"), list) else 1
    assert sorted(ends) == list(range(n_prompts * fields.get("n", 1)))
    assert len(ends) == sum(choice["finish_reason"] is not None for choice in choices)
    assert set(ends.values()) <= {"stop", "length", "tool_calls"}
    assert any(choice["logprobs"] for choice in choices) == bool({"logprobs", "n_probs"} & set(fields))
    if "stream_options" in fields and stream:
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
{"name": "look", "arguments": {"at": "Oslo"}}
</tool_call>"""
STRICT = {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"], "additionalProperties": False}


def test_openai_stream_helper_parses_reasoning_and_a_tool_call_and_usage():
    function = {"name": "look", "parameters": STRICT, "strict": True}
    options = {"stream_options": {"include_usage": True}, "tools": [{"type": "function", "function": function}]}
    with serving(generating(TEXT_AND_CALL), **BIG) as running, openai_client(running.port) as client:
        with client.chat.completions.stream(model="Fake", messages=[USER], logprobs=True, **options) as stream:
            events = list(stream)
        final = stream.get_final_completion()
    message = final.choices[0].message
    arguments = "tool_calls.function.arguments"
    kinds = {"content.delta", "logprobs.content.delta", f"{arguments}.delta", f"{arguments}.done"}
    assert kinds <= {event.type for event in events}
    last = [event.chunk for event in events if event.type == "chunk"][-1]
    # The package does not declare this field.
    assert last.timings["predicted_n"] == last.usage.completion_tokens == len(TEXT_AND_CALL) + 1
    (call,) = message.tool_calls
    assert call.function.parsed_arguments == {"at": "Oslo"}
    assert (message.reasoning_content.strip(), message.content.strip()) == ("hm", "Let me see.")
    assert final.usage.completion_tokens_details.reasoning_tokens == len("<think>hm</think>")


def test_openai_parse_helper_makes_an_object_of_the_response():
    pydantic = pytest.importorskip("pydantic", reason="the package openai requires it")
    kind = pydantic.create_model("Steps", answer=(int, ...))
    with serving(generating('{"answer": 5}'), **BIG) as running, openai_client(running.port) as client:
        whole = client.chat.completions.parse(model="Fake", messages=[USER], response_format=kind)
    assert whole.choices[0].message.parsed == kind(answer=5)
