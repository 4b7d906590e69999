"""Functions as tools, and the loop that runs what a model calls, against scripted answers."""

from __future__ import annotations

import asyncio
import enum
import functools
import gc
import json
import logging
import pickle
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Dict, List, Optional

import pytest

from localchat import (
    AsyncClient,
    Cancelled,
    Client,
    DoesNotFit,
    IncompleteStream,
    ProtocolError,
    Reply,
    Tool,
    ToolCall,
    ToolResult,
    ToolRun,
    TooManyRounds,
)
from localchat.events import Choice
from localchat.tools import Toolbox, result_text

from .raw_server import Peer, Server, chunked, piece
from .scripted import Script, calls, chunk, playing, scripted, text

DEADLINE_S = 10


class Unit(enum.Enum):
    C = "celsius"
    F = "fahrenheit"


@dataclass
class Place:
    name: str
    country: Optional[str] = None


def weather(place: Place, unit: Unit = Unit.C) -> Dict[str, Any]:
    """The weather somewhere.

    Args:
        place: Where.
    """
    assert isinstance(place, Place)
    return {"place": place.name, "degrees": 20, "unit": unit}


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def fail() -> None:
    raise RuntimeError("no luck " * 200)


def results(script: Script) -> List[str]:
    """What the model was told, in the last request."""
    return [message["content"] for message in script.requests[-1]["messages"] if message["role"] == "tool"]


# Definitions


def test_function_becomes_a_definition():
    definition = Tool.of(weather).definition
    assert definition["type"] == "function"
    assert definition["function"]["name"] == "weather"
    assert definition["function"]["description"] == "The weather somewhere."
    parameters = definition["function"]["parameters"]
    assert parameters["required"] == ["place"]
    assert parameters["properties"]["unit"] == {
        "type": "string",
        "enum": ["celsius", "fahrenheit"],
        "default": "celsius",
    }


def test_definition_without_docstring_has_no_description():
    assert Tool.of(fail).definition["function"] == {"name": "fail", "parameters": {"type": "object", "properties": {}}}


def test_partial_and_object_are_described_by_what_they_call():
    class Forecast:
        def __call__(self, days: int) -> str:
            """The weather later.

            Args:
                days: How many.
            """
            return ""

    partial = Tool.of(functools.partial(weather, unit=Unit.F), name="warm")
    assert partial.description == "The weather somewhere."
    assert partial.parameters["properties"]["place"]["description"] == "Where."
    forecast = Tool.of(Forecast(), name="later")
    assert forecast.description == "The weather later."
    assert forecast.parameters["properties"] == {"days": {"type": "integer", "description": "How many."}}


def test_tool_may_have_another_name():
    tool = Tool.of(lambda: 1, name="one", description="One.")
    assert tool.definition["function"]["name"] == "one"
    assert Tool.of(tool) is tool


@pytest.mark.parametrize(("wrong", "error"), [(lambda: 1, ValueError), (3, TypeError), (Place, TypeError)])
def test_what_is_no_tool_is_refused(wrong: Any, error: Any):
    with pytest.raises(error):
        Tool.of(wrong)


def test_two_tools_of_one_name_are_refused():
    with pytest.raises(ValueError, match="one name: add, add"):
        Toolbox([add, add])


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("text", "text"),
        (None, "null"),
        ({"a": [1, True]}, '{"a": [1, true]}'),
        (Place("Bonn"), '{"name": "Bonn", "country": null}'),
        (Unit.F, '"fahrenheit"'),
        ({1}, "[1]"),
        (1 + 2j, '"(1+2j)"'),
        ({(1, 2): "free"}, "{(1, 2): 'free'}"),
    ],
)
def test_result_is_text_for_the_model(value: Any, shown: str):
    assert result_text(value) == shown


# The loop


def test_run_calls_the_function_and_returns_the_answer():
    with playing(calls(("add", '{"a": 1, "b": 2}')), text("It is ", "3.")) as (client, script):
        reply = client.run("1+2?", tools=[add])
    assert reply.text == "It is 3."
    first, second = script.requests
    assert first["tools"] == second["tools"] == [Tool.of(add).definition]
    assert second["messages"] == [
        {"role": "user", "content": "1+2?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "call_0", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "call_0", "name": "add", "content": "3"},
    ]


def test_run_without_tools_sends_none():
    with playing(text("hi")) as (client, script):
        assert client.run("x", system="be brief").text == "hi"
    assert "tools" not in script.requests[0]
    assert script.requests[0]["messages"][0] == {"role": "system", "content": "be brief"}


def test_arguments_become_what_the_function_takes():
    with playing(calls(("weather", '{"place": {"name": "Bonn"}, "unit": "fahrenheit"}')), text("warm")) as (
        client,
        script,
    ):
        client.run("x", tools=[weather])
    assert json.loads(results(script)[0]) == {"place": "Bonn", "degrees": 20, "unit": "fahrenheit"}


def test_stream_yields_the_results_as_events():
    with playing(calls(("add", '{"a": 1, "b": 2}')), text("3")) as (client, _):
        with client.run_stream("x", tools=[add]) as run:
            events = list(run)
        assert run.done
        assert run.reply.text == "3"
    types = [event.type for event in events]
    assert types == [
        *("message_start", "tool_call_delta", "tool_call", "message_stop", "tool_result"),
        *("message_start", "content_delta", "message_stop"),
    ]
    result = events[4]
    assert isinstance(result, ToolResult)
    assert (result.call.name, result.content, result.error, result.value) == ("add", "3", None, 3)
    assert [message["role"] for message in run.messages] == ["user", "assistant", "tool", "assistant"]


def test_text_of_a_run_is_that_of_all_rounds():
    with playing([chunk(content="Let me see. "), *calls(("add", '{"a": 1, "b": 2}'))], text("3")) as (client, _):
        assert "".join(client.run_stream("x", tools=[add]).text) == "Let me see. 3"


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (("sub", "{}"), "there is no tool 'sub'; the tools are: add, weather"),
        (("add", '{"a": 1'), 'you wrote: {"a": 1'),
        (("add", "[1, 2]"), "no object"),
        (("add", '{"a": "1", "b": 2}'), '$.a: expected integer, got "1"'),
        (("add", '{"a": 1}'), "$.b: missing"),
        (("add", '{"a": 1, "b": 2, "c": 3}'), "$.c: unknown; there are a, b"),
        (("weather", '{"place": {}}'), "$.place.name: missing"),
    ],
)
def test_mistake_of_the_model_is_told_to_the_model(call: Any, told: str):
    with playing(calls(call), text("sorry")) as (client, script):
        assert client.run("x", tools=[add, weather]).text == "sorry"
    assert results(script)[0].startswith("Error: ")
    assert told in results(script)[0]
    replayed = script.requests[-1]["messages"][1]["tool_calls"][0]["function"]["arguments"]
    assert isinstance(json.loads(replayed), dict)  # Servers refuse a history that does not parse.


def test_exception_of_a_tool_is_told_shortly_and_logged(caplog: pytest.LogCaptureFixture):
    with playing(calls(("fail", "")), text("oh")) as (client, script), caplog.at_level(logging.WARNING):
        client.run("x", tools=[fail])
    assert results(script)[0].startswith("Error: RuntimeError: no luck")
    assert len(results(script)[0]) < 600
    assert "RuntimeError" in caplog.text


@pytest.mark.parametrize("parallel", [False, True])
def test_exception_of_a_tool_is_raised_if_asked(parallel: bool):
    with playing(calls(("fail", ""), ("add", '{"a": 1, "b": 1}'))) as (client, script):
        with pytest.raises(RuntimeError, match="no luck"):
            client.run("x", tools=[fail, add], raise_errors=True, parallel=parallel)
        assert len(script.requests) == 1


def test_stop_iteration_of_a_tool_is_an_exception_like_others():
    def find(name: str) -> str:
        return next(known for known in ["a"] if known == name)

    async def ask(base_url: str) -> None:
        async with AsyncClient(base_url, model="m") as client:
            await asyncio.wait_for(client.run("x", tools=[find]), DEADLINE_S)

    made = calls(("find", '{"name": "z"}'), ("find", '{"name": "a"}'))
    told = ["Error: RuntimeError: the function raised StopIteration: ", "a"]
    with playing(made, text("ok"), made) as (client, script):
        client.run("x", tools=[find])
        assert results(script) == told
        with pytest.raises(RuntimeError, match="StopIteration"):
            client.run("x", tools=[find], raise_errors=True)
    with scripted(made, text("ok")) as script:
        asyncio.run(ask(script.base_url))
        assert results(script) == told


def test_round_limit_is_an_error_with_the_last_reply():
    ran = []

    def again() -> str:
        ran.append(1)
        return "more"

    with playing(calls(("again", ""))) as (client, script):
        with pytest.raises(TooManyRounds, match="still calls again after 3 rounds") as caught:
            client.run("x", tools=[again], max_rounds=3)
        assert len(script.requests) == 3
    assert len(ran) == 2
    assert caught.value.partial is not None
    assert caught.value.partial.tool_calls[0].name == "again"
    assert pickle.loads(pickle.dumps(caught.value)).partial == caught.value.partial


def test_tool_choice_is_for_the_first_round_only():
    with playing(calls(("add", '{"a": 1, "b": 1}')), text("2")) as (client, script):
        client.run("x", tools=[add], tool_choice="required")
    assert [request.get("tool_choice") for request in script.requests] == ["required", None]


@pytest.mark.parametrize(("options", "message"), [({"n": 2}, "n must be 1"), ({"max_rounds": 0}, "at least 1")])
def test_run_refuses_what_makes_no_sense(options: Any, message: str):
    with Client("http://127.0.0.1:1") as client, pytest.raises(ValueError, match=message):
        client.run("x", **options)


def test_run_checks_the_last_answer_against_its_format():
    answers = [calls(("add", '{"a": 1, "b": 1}')), text('{"name": "Bonn"}')]
    with playing(*answers) as (client, _):
        assert client.run("x", tools=[add], response_format=Place).parsed == Place("Bonn")
    with playing(text("none")) as (client, _), pytest.raises(DoesNotFit) as caught:
        client.run("x", response_format=Place)
    assert caught.value.text == "none"


def test_run_takes_images():
    with playing(text("a cat")) as (client, script):
        client.run("what?", images=[b"GIF89a"])
    assert [part["type"] for part in script.requests[0]["messages"][0]["content"]] == ["image_url", "text"]


async def later(a: int) -> int:
    """Add one, at leisure."""
    await asyncio.sleep(0)
    return a + 1


def test_run_refuses_coroutine_functions():
    with Client("http://127.0.0.1:1") as client, pytest.raises(TypeError, match="only an AsyncClient"):
        client.run("x", tools=[later])


class Later:
    """Shows nowhere that it is to be awaited."""

    async def __call__(self, a: int) -> int:
        return await later(a)


class Promise:
    """Can be awaited, and is no coroutine."""

    def __init__(self, a: int) -> None:
        self.value = a + 1

    def __await__(self) -> Iterator[Any]:
        yield from asyncio.sleep(0).__await__()
        return self.value


@pytest.mark.parametrize("function", [Later(), lambda a: later(a), lambda a: Promise(a)])
def test_coroutine_of_a_function_that_is_none_is_awaited_or_refused(function: Any):
    tool = Tool.of(function, name="later")
    with playing(calls(("later", '{"a": 1}')), text("x")) as (client, script):
        client.run("x", tools=[tool])
        assert "only an AsyncClient can run" in script.requests[1]["messages"][-1]["content"]

    async def ask(base_url: str) -> None:
        async with AsyncClient(base_url, model="m") as client:
            await client.run("x", tools=[tool])

    with scripted(calls(("later", '{"a": 1}')), text("x")) as script:
        asyncio.run(ask(script.base_url))
        assert script.requests[1]["messages"][-1]["content"] == "2"


# Approval


@pytest.mark.parametrize(
    ("verdict", "told"),
    [
        (True, "3"),
        (None, "Error: this call was not approved and did not run"),
        (1, "Error: this call was not approved and did not run"),
        ("", "Error: this call was not approved and did not run"),
        (False, "Error: this call was not approved and did not run"),
        ("ask me later", "Error: ask me later"),
    ],
)
def test_approval_hook_decides(verdict: Any, told: str):
    asked = []

    def approve(call: ToolCall) -> Any:
        asked.append((call.name, call.arguments))
        return verdict

    with playing(calls(("add", '{"a": 1, "b": 2}')), text("ok")) as (client, script):
        client.run("x", tools=[add], on_call=approve)
    assert asked == [("add", {"a": 1, "b": 2})]
    assert results(script) == [told]


def test_approval_hook_that_is_a_coroutine_function_is_awaited_or_refused():
    async def refuse(call: ToolCall) -> bool:
        await asyncio.sleep(0)
        return False

    async def ask(base_url: str) -> None:
        async with AsyncClient(base_url, model="m") as client:
            await client.run("x", tools=[add], on_call=refuse)

    made = calls(("add", '{"a": 1, "b": 2}'))
    with scripted(made, text("ok")) as script:
        asyncio.run(ask(script.base_url))
        assert results(script) == ["Error: this call was not approved and did not run"]
    with playing(made) as (client, _), pytest.raises(TypeError, match="only an AsyncClient can await on_call"):
        client.run("x", tools=[add], on_call=refuse)


def test_approval_hook_is_not_asked_about_calls_that_cannot_run():
    def never(call: ToolCall) -> Any:
        raise AssertionError(call)

    with playing(calls(("sub", "{}"), ("add", "{")), text("ok")) as (client, _):
        assert client.run("x", tools=[add], on_call=never).text == "ok"


def test_approval_hook_can_end_the_run():
    def stop(call: ToolCall) -> Any:
        raise KeyError("enough")

    with playing(calls(("add", '{"a": 1, "b": 2}'))) as (client, script):
        with pytest.raises(KeyError):
            client.run("x", tools=[add], on_call=stop)
        assert len(script.requests) == 1


# Parallel calls


def test_parallel_calls_run_together_and_keep_their_order():
    together = threading.Barrier(3)

    def wait(name: str) -> str:
        together.wait(DEADLINE_S)
        return name

    made = calls(*(("wait", json.dumps({"name": name})) for name in "abc"))
    with playing(made, text("ok")) as (client, script):
        client.run("x", tools=[wait], parallel=True)
    assert results(script) == ["a", "b", "c"]


def test_calls_run_one_after_another_by_default():
    threads = set()

    def where(n: int) -> int:
        threads.add(threading.get_ident())
        return n

    with playing(calls(*(("where", f'{{"n": {n}}}') for n in range(3))), text("ok")) as (client, script):
        client.run("x", tools=[where])
    assert threads == {threading.get_ident()}
    assert results(script) == ["0", "1", "2"]


# The asynchronous client


@pytest.mark.parametrize("parallel", [False, True])
def test_async_run_awaits_coroutines_and_runs_functions(parallel: bool):
    made = calls(("later", '{"a": 1}'), ("add", '{"a": 1, "b": 2}'), ("fail", ""), ("sub", "{}"))
    with scripted(made, text("ok")) as script:

        async def main() -> List[str]:
            async with AsyncClient(script.base_url, model="m") as client:
                run = client.run_stream("x", tools=[later, add, fail], parallel=parallel)
                types = [event.type async for event in run]
                assert (run.done, run.reply.text) == (True, "ok")
            return types

        types = asyncio.run(main())
        assert types.count("tool_result") == 4
        assert results(script)[:2] == ["2", "3"]
        assert [told[:7] for told in results(script)[2:]] == ["Error: ", "Error: "]


def test_async_run_raises_and_limits_as_the_other():
    async def main(**options: Any) -> None:
        async with AsyncClient(script.base_url, model="m") as client:
            await client.run("x", tools=[fail], **options)

    with scripted(calls(("fail", ""))) as script:
        for parallel in (False, True):
            with pytest.raises(RuntimeError, match="no luck"):
                asyncio.run(main(raise_errors=True, parallel=parallel))
        with pytest.raises(TooManyRounds):
            asyncio.run(main(max_rounds=2))


def test_async_conversation_adds_whole_turns():
    async def main() -> Any:
        async with AsyncClient(script.base_url, model="m") as client:
            talk = client.conversation(system="be brief")
            assert [piece async for piece in talk.stream("hi").text] == ["Hel", "lo."]
            async with talk.stream("more") as answer:
                async for event in answer:
                    if event.type == "content_delta":
                        break
            with pytest.raises(IncompleteStream):
                await talk.say("again")
            assert len(talk.messages) == 3
            assert (await talk.say("at last")).text == "Yes."
            return talk.messages

    with scripted(text("Hel", "lo."), text("a", "b"), [chunk(content="half")], text("Yes.")) as script:
        messages = asyncio.run(main())
    assert [message["content"] for message in messages] == ["be brief", "hi", "Hello.", "at last", "Yes."]


# What goes back to the server


def test_missing_ids_are_made_up_and_match():
    delta = {"function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
    with playing([chunk(tool_calls=[delta]), chunk("stop")], text("ok")) as (client, script):
        client.run("x", tools=[add])
    _, assistant, result = script.requests[-1]["messages"]
    assert result["tool_call_id"] == assistant["tool_calls"][0]["id"] != ""


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_goes_back_under_its_own_name(name: str):
    thought = chunk(**{name: "Hm."})
    with playing([thought, *calls(("add", '{"a": 1, "b": 2}'))], text("ok")) as (client, script):
        client.run("x", tools=[add])
    assert script.requests[-1]["messages"][1][name] == "Hm."


def test_unknown_members_of_a_call_go_back():
    signed = {"google": {"thought_signature": "abc"}}
    with playing(calls(("add", '{"a": 1, "b": 2}'), extra_content=signed), text("ok")) as (client, script):
        client.run("x", tools=[add])
    assert script.requests[-1]["messages"][1]["tool_calls"][0]["extra_content"] == signed


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (Choice(text="hi"), {"content": "hi"}),
        (Choice(text="hi", reasoning="Hm.", reasoning_field=None), {"content": "hi"}),
        (Choice(reasoning="Hm.", reasoning_field="reasoning_details"), {"content": "", "reasoning": "Hm."}),
        (Choice(refusal="no"), {"content": "", "refusal": "no"}),
    ],
)
def test_reply_as_a_message(choice: Choice, message: Any):
    assert Reply((choice,)).message == {"role": "assistant", **message}


# Ends


def test_run_that_is_left_early_closes_its_stream():
    with playing(text("a", "b", "c")) as (client, _):
        with client.run_stream("x") as run:
            assert next(event for event in run if event.type == "content_delta").delta == "a"
        with pytest.raises(Cancelled) as caught:
            list(run)
        assert not run.done
        assert caught.value.partial == run.reply
        assert run.reply.text.startswith("a")


def test_run_that_is_closed_by_another_thread_between_two_events_does_not_end_like_a_whole_one():
    with playing(text("a", "b", "c")) as (client, _):
        run = client.run_stream("x")
        next(run)
        thread = threading.Thread(target=run.close)
        thread.start()
        thread.join(DEADLINE_S)
        with pytest.raises(Cancelled):
            run.finish()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_run_that_is_dropped_closes_its_connection(asynchronous: bool):
    gone = threading.Event()

    def handle(peer: Peer, server: Server) -> None:
        peer.request()
        peer.send(chunked(piece("a"), end=False))
        if peer.is_disconnected():
            gone.set()

    async def start(url: str) -> None:
        async for _ in AsyncClient(url, model="m").run_stream("x").text:
            break
        while not gone.is_set():
            await asyncio.sleep(0.01)

    gc.disable()  # It would drop what refers to itself, at some time.
    try:
        with Server(handle) as server:
            if asynchronous:
                asyncio.run(asyncio.wait_for(start(server.url), DEADLINE_S))
            else:
                next(Client(server.url, model="m").run_stream("x").text)
            assert gone.wait(DEADLINE_S)
    finally:
        gc.enable()


def test_run_that_is_closed_after_its_end_has_ended():
    with playing(text("a")) as (client, _):
        run = client.run_stream("x")
        assert run.finish().text == "a"
        run.close()
        assert list(run) == []


@pytest.mark.parametrize("parallel", [True, False])
def test_asynchronous_run_is_closed_by_another_task(parallel: bool):
    """While a tool works, and while nobody waits for it."""

    async def main(client: AsyncClient) -> None:
        started, go_on = asyncio.Event(), asyncio.Event()

        async def slow() -> str:
            started.set()
            await go_on.wait()
            return "done"

        run = client.run_stream("x", tools=[slow], parallel=parallel)
        task = asyncio.ensure_future(run.finish())
        await asyncio.wait_for(started.wait(), DEADLINE_S)
        await run.close()
        go_on.set()
        with pytest.raises(Cancelled):
            await asyncio.wait_for(task, DEADLINE_S)

        run = client.run_stream("x")
        await run.__anext__()
        await run.close()
        with pytest.raises(Cancelled):
            await run.finish()

    with scripted(calls(("slow", ""), ("slow", "")), text("a", "b")) as script:

        async def asked() -> None:
            async with AsyncClient(script.base_url, model="m") as client:
                await main(client)

        asyncio.run(asked())
        assert len(script.requests) == 2


def test_run_that_is_closed_while_tools_work_side_by_side_starts_no_other():
    begun, started, go_on = [], threading.Barrier(3), threading.Event()

    def slow(n: int) -> int:
        begun.append(n)
        started.wait(DEADLINE_S)
        assert go_on.wait(DEADLINE_S)
        return n

    def finish(run: ToolRun) -> None:
        with pytest.raises(Cancelled):
            run.finish()

    with playing(calls(*(("slow", f'{{"n": {n}}}') for n in range(5)))) as (client, _):
        run = client.run_stream("x", tools=[slow], parallel=2)
        thread = threading.Thread(target=finish, args=(run,))
        thread.start()
        started.wait(DEADLINE_S)
        run.close()
        go_on.set()
        thread.join(DEADLINE_S)
    assert sorted(begun) == [0, 1]


def test_run_that_is_closed_while_a_tool_works_asks_no_more():
    started, go_on = threading.Event(), threading.Event()

    def slow() -> str:
        started.set()
        assert go_on.wait(DEADLINE_S)
        return "done"

    def never() -> None:
        raise AssertionError("the run is closed")

    failures: List[BaseException] = []

    def work(run: ToolRun) -> None:
        try:
            for _ in run:
                pass
        except Exception as error:
            failures.append(error)

    with playing(calls(("slow", ""), ("never", ""))) as (client, script):
        run = client.run_stream("x", tools=[slow, never], raise_errors=True)
        thread = threading.Thread(target=work, args=(run,))
        thread.start()
        assert started.wait(DEADLINE_S)
        run.close()
        go_on.set()
        thread.join(DEADLINE_S)
        assert [type(failure).__name__ for failure in failures] == ["Cancelled"]
        assert len(script.requests) == 1


def test_answer_that_is_cut_is_an_error():
    with playing([chunk(content="a")]) as (client, _), pytest.raises(IncompleteStream):
        client.run("x")


# Client: what is not about tools but stands on the same parts


def test_chat_gives_the_value_that_was_asked_for():
    with playing(text('{"name": ', '"Bonn"}')) as (client, script):
        assert client.chat("x", response_format=Place).parsed == Place("Bonn")
        assert client.chat("x", response_format="name").parsed == {"name": "Bonn"}
        assert client.chat("x", response_format={"type": "json_object"}).parsed is None
    asked = [request["response_format"] for request in script.requests]
    assert asked[0]["json_schema"]["schema"]["required"] == ["name", "country"]
    assert asked[2] == {"type": "json_object"}


def test_chat_with_an_answer_that_does_not_fit_is_an_error():
    with playing(text('{"name": 1}')) as (client, _), pytest.raises(DoesNotFit, match="expected string") as caught:
        client.chat("x", response_format=Place)
    assert (caught.value.path, caught.value.text) == ("$.name", '{"name": 1}')
    assert caught.value.partial is not None


def test_answer_that_cannot_be_checked_is_kept_in_the_error():
    with playing(text('"abc"')) as (client, _), pytest.raises(DoesNotFit, match="Python cannot read the pattern") as no:
        client.chat("x", response_format={"type": "string", "pattern": r"^\p{L}+$"})
    assert no.value.text == '"abc"'


@pytest.mark.parametrize(("finish", "cut"), [("length", True), ("stop", False)])
def test_number_that_may_go_on_is_no_value(finish: str, cut: bool):
    with playing([chunk(content="12"), chunk(finish)]) as (client, _):
        if not cut:
            assert client.chat("x", response_format=int).parsed == 12
            return
        with pytest.raises(DoesNotFit, match=r"12 may be the beginning .*raise max_tokens"):
            client.chat("x", response_format=int)


@pytest.mark.parametrize("image", [[b"GIF89a"], {"type": "image_url", "image_url": {"url": "https://host/a.gif"}}])
@pytest.mark.parametrize("ask", [Client.chat, Client.run])
def test_images_are_taken_and_the_audio_of_the_protocol_is_left(ask: Any, image: Any):
    with playing(text("ok")) as (client, script):
        ask(client, "x", images=image, audio={"voice": "alto", "format": "wav"})
    assert [part["type"] for part in script.requests[0]["messages"][0]["content"]] == ["image_url", "text"]
    assert script.requests[0]["audio"] == {"voice": "alto", "format": "wav"}


@pytest.mark.parametrize("stream", [True, False])
def test_complete_goes_on_with_a_text(stream: bool):
    answer = {"choices": [{"index": 0, "text": "<think> on", "finish_reason": "stop"}]}
    with playing([answer]) as (client, script):
        reply = client.complete("go", extra_body={"stream": stream}, max_tokens=3)
    assert reply.text == "<think> on"
    assert script.paths == ["/v1/completions"]
    request = script.requests[0]
    assert (request["prompt"], request["max_tokens"], "messages" in request) == ("go", 3, False)


def test_complete_has_no_system_message():
    with Client("http://127.0.0.1:1", model="m") as client, pytest.raises(TypeError, match="put it into the prompt"):
        client.complete("x", system="y")


def test_embed_keeps_the_order_of_the_texts():
    data = [{"index": 1, "embedding": [2.0]}, {"index": 0, "embedding": [1.0]}]
    with playing([{"data": data}], [{"data": data[1:]}]) as (client, script):
        assert client.embed(["a", "b"], dimensions=1) == [[1.0], [2.0]]
        assert client.embed("a", extra_body={"truncate": True}) == [1.0]
    assert script.requests[1] == {"model": "m", "input": ["a"], "truncate": True}
    assert script.requests[0] == {"model": "m", "input": ["a", "b"], "dimensions": 1}
    assert script.paths[0] == "/v1/embeddings"


def test_embed_with_too_few_vectors_is_an_error():
    with playing([{"data": []}]) as (client, _), pytest.raises(ProtocolError, match="0 embeddings for 1 texts"):
        client.embed("a")
