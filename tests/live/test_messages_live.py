"""The Messages API with the built-in model and the `anthropic` package."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.exchanges import DEADLINE_S, exchange
from tests.support.live import running_server

anthropic = pytest.importorskip("anthropic", reason="the extra 'clients' has the package")

KEY = "secret"
# The package has no argument for the temperature.
GREEDY = {"temperature": 0}
WEATHER = {
    "name": "get_weather",
    "description": "The weather in a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
QUESTION = [{"role": "user", "content": "What is the weather in Rome?"}]
NAME = [{"role": "user", "content": "What is your name?"}]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running_server("--api-key", KEY, "--any-name") as url:
        yield url.removesuffix("/v1")


@pytest.fixture
def client(url: str) -> Iterator[Any]:
    with anthropic.Anthropic(base_url=url, api_key=KEY, timeout=DEADLINE_S, max_retries=0) as client:
        yield client


def test_message_is_created_and_the_stream_helper_returns_the_same_one(client: Any):
    whole = client.messages.create(model="claude", max_tokens=40, messages=NAME, extra_body=GREEDY)
    assert (whole.content[0].type, whole.stop_reason) == ("text", "end_turn")
    assert "localchat" in whole.content[0].text
    assert whole.usage.output_tokens > 0
    with client.messages.stream(model="claude", max_tokens=40, messages=NAME, extra_body=GREEDY) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    assert (final.stop_reason, final.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)


def test_every_event_has_the_types_of_the_package(client: Any):
    kinds = []
    for event in client.messages.create(
        model="claude", max_tokens=60, messages=QUESTION, tools=[WEATHER], extra_body=GREEDY, stream=True
    ):
        type(event).model_validate(event.model_dump(), strict=True)
        kinds.append(event.type)
    assert (kinds[0], kinds[-2:]) == ("message_start", ["message_delta", "message_stop"])


@pytest.mark.parametrize("choice", [{"type": "auto"}, {"type": "any"}, {"type": "tool", "name": "get_weather"}])
def test_tools_in_a_loop(client: Any, choice: dict[str, str]):
    first = client.messages.create(
        model="claude", max_tokens=80, messages=QUESTION, tools=[WEATHER], tool_choice=choice, extra_body=GREEDY
    )
    call = next(block for block in first.content if block.type == "tool_use")
    assert (first.stop_reason, call.name, call.input) == ("tool_use", "get_weather", {"city": "Rome"})
    result = {
        "type": "tool_result",
        "tool_use_id": call.id,
        "content": [{"type": "text", "text": '{"temperature": 21}'}],
    }
    history = [*QUESTION, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    second = client.messages.create(model="claude", max_tokens=80, messages=history, tools=[WEATHER], extra_body=GREEDY)
    assert second.stop_reason == "end_turn"
    assert "21" in second.content[0].text


def test_tokens_are_counted_as_the_message_counts_them(client: Any):
    counted = client.messages.count_tokens(model="claude", messages=QUESTION, tools=[WEATHER])
    usage = client.messages.create(model="claude", max_tokens=1, messages=QUESTION, tools=[WEATHER]).usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens


def test_error_has_the_format_of_the_interface(url: str):
    response, body = exchange(url.removeprefix("http://"), "/v1/messages?beta=true", {"messages": NAME})
    assert (response.status, body["type"], body["error"]["type"]) == (401, "error", "authentication_error")
    assert response.getheader("Request-Id")
