"""The packages `openai` and `anthropic`, of Python and of Node, with the built-in model.

tests/node has the programs of Node. `make client-tests` installs the packages and names their folder in NODE_PATH.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.deadline import DEADLINE_S
from tests.support.exchanges import exchange
from tests.support.live import running_process
from tests.support.serving import openai_client

KEY = "secret"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
NAMED = {"name": "get_weather", "description": "The weather in a city."}
WEATHER = {**NAMED, "input_schema": SCHEMA}
FUNCTION = {"type": "function", **NAMED, "parameters": SCHEMA, "strict": False}
QUESTION = "What is the weather in Rome?"
RESULT = '{"temperature": 21}'
THINKING = {"type": "enabled", "budget_tokens": 1024}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running_process("--api-key", KEY, "--any-name") as server:
        yield server.url.removesuffix("/v1")


# --- anthropic ---


@pytest.fixture
def messages(url: str) -> Iterator[Any]:
    anthropic = pytest.importorskip("anthropic", reason="the extra 'clients' has the package")
    with anthropic.Anthropic(base_url=url, api_key=KEY, timeout=DEADLINE_S, max_retries=0) as client:
        yield client.messages


def asked(question: str = QUESTION, **fields: Any) -> dict[str, Any]:
    """The arguments of a request. The package has no argument for the temperature."""
    question_message = {"role": "user", "content": question}
    greedy = {"model": "claude", "max_tokens": 80, "extra_body": {"temperature": 0}}
    return {**greedy, "messages": [question_message], **fields}


def test_message_is_created_and_the_stream_helper_returns_the_same_one(messages: Any):
    whole = messages.create(**asked("What is your name?"))
    assert (whole.content[0].type, whole.stop_reason) == ("text", "end_turn")
    assert "localchat" in whole.content[0].text
    assert whole.usage.output_tokens > 0
    with messages.stream(**asked("What is your name?")) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    assert (final.stop_reason, final.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)


def test_every_event_has_the_types_of_the_package(messages: Any):
    kinds = []
    for event in messages.create(**asked(tools=[WEATHER], stream=True)):
        type(event).model_validate(event.model_dump(), strict=True)
        kinds.append(event.type)
    assert (kinds[0], kinds[-2:]) == ("message_start", ["message_delta", "message_stop"])


@pytest.mark.parametrize("choice", [{"type": "auto"}, {"type": "any"}, {"type": "tool", "name": "get_weather"}])
def test_tools_in_a_loop(messages: Any, choice: dict[str, str]):
    request = asked(tools=[WEATHER])
    first = messages.create(**request, tool_choice=choice)
    call = next(block for block in first.content if block.type == "tool_use")
    assert (first.stop_reason, call.name, call.input) == ("tool_use", "get_weather", {"city": "Rome"})
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": RESULT}]}
    answered = [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    second = messages.create(**{**request, "messages": [*request["messages"], *answered]})
    assert second.stop_reason == "end_turn"
    assert "21" in second.content[0].text


def test_thinking_can_be_sent_back(messages: Any):
    first = messages.create(**asked("Think first: what is your name?", max_tokens=2000, thinking=THINKING))
    assert [block.type for block in first.content] == ["thinking", "text"]
    history = [{"role": "assistant", "content": first.content}, {"role": "user", "content": QUESTION}]
    request = asked("Think first: what is your name?")
    assert messages.create(**{**request, "messages": [*request["messages"], *history]}).content


def test_output_follows_a_json_schema(messages: Any):
    schema = {"type": "object", "properties": {"is_true": {"type": "boolean"}}, "required": ["is_true"]}
    fields = {"temperature": 0, "output_config": {"format": {"type": "json_schema", "schema": schema}}}
    message = messages.create(**asked("Is the sky blue?", extra_body=fields))
    assert isinstance(json.loads(message.content[0].text)["is_true"], bool)


def test_tokens_are_counted_as_the_message_counts_them(messages: Any):
    request = asked(tools=[WEATHER], max_tokens=1)
    counted = messages.count_tokens(**{name: request[name] for name in ("model", "messages", "tools")})
    usage = messages.create(**request).usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens


def test_models_are_listed_and_retrieved(messages: Any):
    (model,) = messages._client.models.list()
    assert (model.id, model.display_name, model.type, model.lifecycle) == ("demo", "demo", "model", "active")
    assert model.created_at == messages._client.models.retrieve("demo").created_at is not None


def test_error_has_the_format_of_the_interface(url: str):
    response, body = exchange(url.removeprefix("http://"), "/v1/messages?beta=true", {"messages": []})
    assert (response.status, body["type"], body["error"]["type"]) == (401, "error", "authentication_error")
    assert response.getheader("Request-Id")


# --- openai: the Responses API; test_server_examples.py has the other ones ---


@pytest.fixture(scope="module")
def responses(port: int) -> Iterator[Any]:
    with openai_client(port) as client:
        yield client.responses


def test_openai_text_and_stream(responses: Any):
    question = {"model": "demo", "input": "What is your name?", "temperature": 0}
    whole = responses.create(**question)
    with responses.stream(**question) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert whole.output_text == final.output_text != ""
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
    assert responses.retrieve(whole.id).output_text == whole.output_text
    responses.delete(whole.id)
    for event in responses.create(**{**question, "input": QUESTION}, tools=[FUNCTION], stream=True):
        type(event).model_validate(event.model_dump(), strict=True)


def test_openai_parse_helper_and_counted_tokens(responses: Any):
    pydantic = pytest.importorskip("pydantic", reason="the package openai requires it")
    kind = pydantic.create_model("Truth", is_true=(bool, ...))
    question: Any = {"model": "demo", "input": "Is the sky blue?"}
    response = responses.parse(**question, text_format=kind, temperature=0)
    assert isinstance(response.output_parsed.is_true, bool)
    assert responses.input_tokens.count(**question).input_tokens == responses.create(**question).usage.input_tokens


@pytest.mark.parametrize("stored", [True, False])
def test_openai_tools_in_a_loop(responses: Any, stored: bool):
    """The second request continues the stored response, or sends the whole history."""
    options: Any = {"model": "demo", "tools": [FUNCTION], "temperature": 0}
    first = responses.create(input=QUESTION, store=stored, **options)
    (call,) = (item for item in first.output if item.type == "function_call")
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Rome"})
    given: list[Any] = [{"type": "function_call_output", "call_id": call.call_id, "output": RESULT}]
    if stored:
        options["previous_response_id"] = first.id
    else:
        given = [{"role": "user", "content": QUESTION}, *first.output, *given]
    assert "21" in responses.create(input=given, **options).output_text


# --- Node ---


@pytest.mark.parametrize(("package", "script"), [("openai", "openai"), ("@anthropic-ai/sdk", "anthropic")])
def test_package_of_node(package: str, script: str, request: pytest.FixtureRequest):
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node")
    if not any(Path(folder, package).is_dir() for folder in os.environ.get("NODE_PATH", "").split(os.pathsep)):
        pytest.skip(f"NODE_PATH has no package {package}: `make client-tests` installs it")
    command = [node, "--test", str(Path(__file__).parents[1] / "node" / f"{script}.test.cjs")]
    environment = {**os.environ, "BASE_URL": request.getfixturevalue("url") + "/v1", "API_KEY": KEY}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
