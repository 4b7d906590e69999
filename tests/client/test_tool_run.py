"""Runs with tools against scripted responses: rounds, the messages that are sent back, and the end of a run."""

import asyncio
import gc
import pickle
import threading
from typing import Any

import pytest

from localchat import AsyncClient, Cancelled, Client, IncompleteReply, Tool, ToolResult, TooManyRounds
from tests.client.test_tools import Place, add
from tests.support.clients import until, waiting_client
from tests.support.raw_responses import OPEN
from tests.support.raw_server import DEADLINE_S, Server
from tests.support.scripted import calls, chunk, playing, text
from tests.support.slow_servers import waiting


def test_run_calls_the_function_and_returns_the_final_reply():
    with playing(calls(("add", '{"a": 1, "b": 2}')), text("It is ", "3.")) as (client, script):
        reply = client.run("1+2?", system="be brief", tools=[add], tool_choice="required")
        client.run("x")
    assert reply.text == "It is 3."
    first, second, without_tools = script.requests
    assert first["tools"] == second["tools"] == [Tool.of(add).definition]
    assert "tools" not in without_tools
    assert [request.get("tool_choice") for request in script.requests] == ["required", None, None]
    call = {"id": "call_0", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
    assert second["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "1+2?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_0", "name": "add", "content": "3"},
    ]


def test_stream_yields_the_results_as_events():
    with playing([chunk(content="So "), *calls(("add", '{"a": 1, "b": 2}'))], text("3")) as (client, _):
        with client.run_stream("x", tools=[add]) as run:
            events = list(run)
        assert "".join(client.run_stream("x").text) == "3"
        run.close()  # After the end, this has no effect.
        assert (run.done, run.reply.text, list(run)) == (True, "3", [])
    first = "message_start content_delta tool_call_delta tool_call message_stop tool_result"
    assert [event.type for event in events] == f"{first} message_start content_delta message_stop".split()
    result = events[5]
    assert isinstance(result, ToolResult)
    assert (result.call.name, result.content, result.error, result.value) == ("add", "3", None, 3)
    assert [message["role"] for message in run.messages] == ["user", "assistant", "tool", "assistant"]


def test_round_limit_is_an_error_with_the_last_reply(client_class: Any):
    ran = []

    def again() -> str:
        ran.append(1)
        return "more"

    with playing(calls(("again", "")), client_class=client_class) as (client, script):
        with pytest.raises(TooManyRounds, match="still calls again after 3 rounds") as caught:
            client.run("x", tools=[again], max_rounds=3)
        assert len(script.requests) == 3
    assert len(ran) == 2
    assert caught.value.partial.tool_calls[0].name == "again"
    assert pickle.loads(pickle.dumps(caught.value)).partial == caught.value.partial


def test_calls_of_a_reply_that_was_cut_are_not_run():
    with playing([*calls(("add", '{"a": 1, "b": 2}'))[:-1], chunk("length")]) as (client, script):
        with pytest.raises(IncompleteReply):
            client.run("1+2?", [add])
        assert len(script.requests) == 1


def test_missing_ids_are_generated_and_match():
    delta = {"function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
    with playing([chunk(tool_calls=[delta]), chunk("stop")], text('{"name": "Bonn"}')) as (client, script):
        assert client.run("x", tools=[add], response_format=Place).parsed == Place("Bonn")
    _, assistant, result = script.requests[-1]["messages"]
    assert result["tool_call_id"] == assistant["tool_calls"][0]["id"] != ""


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_is_sent_back_under_the_name_that_the_server_uses(name: str):
    """Like fields of a call that the client does not know."""
    reasoning, signed = chunk(**{name: "Hm."}), {"google": {"thought_signature": "abc"}}
    made = calls(("add", '{"a": 1, "b": 2}'), extra_content=signed)
    with playing([reasoning, *made], text("ok")) as (client, script):
        client.run("x", tools=[add])
    message = script.requests[-1]["messages"][1]
    assert (message[name], message["tool_calls"][0]["extra_content"]) == ("Hm.", signed)


def test_name_of_a_tool_is_sent_only_to_a_local_server_that_takes_it():
    def respond(body: Any) -> Any:
        message = body["messages"][-1]
        bad = {"error": {"message": "messages.2.tool.name: Extra inputs are not permitted"}}
        return [bad] if "name" in message else text("3") if message["role"] == "tool" else made

    made = calls(("add", '{"a": 1, "b": 2}'))
    with playing(respond) as (client, script):
        assert [client.run("x", [add]).text for _ in range(2)] == ["3", "3"]
        assert len(script.requests) == 5
        assert not client.with_options(max_retries=0)._settings.takes_tool_names
    assert "name" not in script.requests[-1]["messages"][-1]
    urls = {"http://10.0.0.1/v1": True, "https://127.0.0.1/v1": True, "https://api.example.com/v1": False}
    assert {url: Client(url)._settings.takes_tool_names for url in urls} == urls


@pytest.mark.parametrize("method", ["stream", "run_stream"])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_stream_or_run_without_references_closes_its_connection(asynchronous: bool, method: str):
    async def start(server: Server) -> None:
        async for _ in getattr(AsyncClient(server.url, model="m"), method)("x").text:
            break
        await until(server.left)

    gc.disable()  # The collector would delete a run that is part of a reference cycle.
    try:
        with waiting(OPEN) as server:
            if asynchronous:
                asyncio.run(asyncio.wait_for(start(server), DEADLINE_S))
            else:
                next(getattr(Client(server.url, model="m"), method)("x").text)
            assert server.left.wait(DEADLINE_S)
    finally:
        gc.enable()


@pytest.mark.parametrize(("parallel", "n_called"), [(False, 1), (2, 2)])
def test_run_that_is_closed_while_a_tool_runs_starts_no_other_tool(parallel: Any, n_called: int, client_class: Any):
    """And sends no other request. Another thread or task closes it."""
    called, started, go_on = [], threading.Semaphore(0), threading.Event()

    def slow(n: int) -> Any:
        called.append(n)
        started.release()
        return until(go_on) if client_class is waiting_client else go_on.wait(DEADLINE_S)

    def close() -> None:
        for _ in range(n_called):
            assert started.acquire(timeout=DEADLINE_S)
        run.close()
        go_on.set()

    with playing(calls(*(("slow", f'{{"n": {n}}}') for n in range(5))), client_class=client_class) as (client, script):
        run = client.run_stream("x", tools=[slow], parallel=parallel, raise_errors=True)
        thread = threading.Thread(target=close)
        thread.start()
        with pytest.raises(Cancelled):
            run.finish()
        thread.join(DEADLINE_S)
        assert len(script.requests) == 1
    assert sorted(called) == list(range(n_called))
