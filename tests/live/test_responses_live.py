"""The Responses API over HTTP: exact outputs with a fake model, and the `openai` package with the built-in model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.exchanges import ask
from tests.support.response_events import check_stream
from tests.support.serving import generating, openai_client, serving

ALL = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"


def create(port: int, **fields: Any) -> tuple[int, Any]:
    return ask(port, "/v1/responses", {"input": "hello", **fields})


@pytest.mark.parametrize("stream", [False, True])
def test_response_can_be_continued_until_it_is_deleted(stream):
    with serving(generating("yes"), chat_template=ALL, n_ctx=4000, n_cells=8000) as running:
        port = running.port

        def response(**fields: Any) -> Any:
            status, found = create(port, stream=stream, **fields)
            assert status == 200
            return check_stream(found) if stream else found

        first = response(instructions="Be brief.")
        second = response(input="and", previous_response_id=first["id"])
        assert running.last_prompt == "[user]hello[assistant]yes[user]and"
        assert ask(port, f"/v1/responses/{second['id']}", method="GET") == (200, second)
        for tail, expected in (("?stream=true", (400, "stream")), ("/input_items", (404, None))):
            status, error = ask(port, f"/v1/responses/{second['id']}{tail}", method="GET")
            assert (status, error["error"]["param"]) == expected
        reference = {"type": "item_reference", "id": first["output"][0]["id"]}
        response(input=[reference, {"role": "user", "content": "so?"}])
        assert running.last_prompt == "[assistant]yes[user]so?"
        _, deleted = ask(port, f"/v1/responses/{first['id']}", method="DELETE")
        assert deleted == {"id": first["id"], "object": "response", "deleted": True}
        status, error = ask(port, f"/v1/responses/{first['id']}", method="GET")
        assert (status, error["error"]["type"]) == (404, "invalid_request_error")
        response(input="then", previous_response_id=second["id"])
        assert running.last_prompt == "[user]hello[assistant]yes[user]and[assistant]yes[user]then"
        status, error = create(port, previous_response_id=first["id"])
        assert (status, error["error"]["code"]) == (404, "previous_response_not_found")
        not_stored = response(store=False)
        assert ask(port, f"/v1/responses/{not_stored['id']}", method="GET")[0] == 404


# --- The openai package and the built-in model ---


@pytest.fixture(scope="module")
def client(port: int) -> Iterator[Any]:
    with openai_client(port) as client:
        yield client


WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": False,
}
QUESTION = "What is the weather in Rome?"


def test_openai_text_and_stream(client):
    whole = client.responses.create(model="demo", input="What is your name?", temperature=0)
    with client.responses.stream(model="demo", input="What is your name?", temperature=0) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert whole.output_text == final.output_text != ""
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    assert client.responses.retrieve(whole.id).output_text == whole.output_text
    client.responses.delete(whole.id)
    for event in client.responses.create(model="demo", input=QUESTION, tools=[WEATHER], temperature=0, stream=True):
        type(event).model_validate(event.model_dump(), strict=True)


@pytest.mark.parametrize("stored", [True, False])
def test_openai_tools_in_a_loop(client, stored):
    """The second request continues the stored response, or sends the whole history."""
    first = client.responses.create(model="demo", input=QUESTION, tools=[WEATHER], temperature=0, store=stored)
    (call,) = (item for item in first.output if item.type == "function_call")
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Rome"})
    result = {"type": "function_call_output", "call_id": call.call_id, "output": '{"temperature": 21}'}
    if stored:
        given: dict[str, Any] = {"input": [result], "previous_response_id": first.id}
    else:
        given = {"input": [{"role": "user", "content": QUESTION}, *first.output, result]}
    second = client.responses.create(model="demo", tools=[WEATHER], temperature=0, **given)
    assert "21" in second.output_text
