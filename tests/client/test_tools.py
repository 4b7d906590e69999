"""Functions as tools: definitions, validation, approval and errors of calls, and runs with several rounds."""

import asyncio
import contextlib
import contextvars
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

from localchat import AsyncClient, Cancelled, Client, Tool, ToolCall, ToolResult
from localchat.agent.tools import result_text
from localchat.errors import DoesNotFit, IncompleteReply, TooManyRounds
from localchat.schema.targets import json_schema
from localchat.transport.settings import Settings
from tests.support.clients import run_async, until, waiting_client
from tests.support.deadline import DEADLINE_S
from tests.support.raw_responses import OPEN
from tests.support.raw_server import Server
from tests.support.scripted import Script, calls, chunk, playing, text
from tests.support.slow_servers import waiting

Unit = enum.Enum("Unit", {"C": "celsius", "F": "fahrenheit"})


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
    """The tool results in the last request."""
    return [message["content"] for message in script.requests[-1]["messages"] if message["role"] == "tool"]


def ran(made: Any, tools: List[Any], client_class: Any = Client, **options: Any) -> List[str]:
    """The results that a run with these calls and tools sends to the model."""
    with playing(made, text("ok"), client_class=client_class) as (client, script):
        client.run("x", tools=tools, **options)
    return results(script)


class Forecast:
    def __call__(self, days: int) -> str:
        """The weather later.

        Args:
            days: How many.
        """
        return ""


def test_function_partial_or_object_becomes_a_definition():
    tool = Tool.of(weather)
    function = {"name": "weather", "description": "The weather somewhere.", "parameters": tool.parameters}
    assert tool.definition == {"type": "function", "function": function}
    assert tool.parameters == json_schema(weather)
    assert Tool.of(fail).definition["function"] == {"name": "fail", "parameters": {"type": "object", "properties": {}}}
    partial = Tool.of(functools.partial(weather, unit=Unit.F), name="warm")
    assert partial.description == "The weather somewhere."
    assert partial.parameters["properties"]["place"]["description"] == "Where."
    forecast = Tool.of(Forecast(), name="later")
    assert forecast.description == "The weather later."
    assert forecast.parameters["properties"] == {"days": {"type": "integer", "description": "How many."}}
    named = Tool.of(lambda: 1, name="one", description="One.")
    assert (named.definition["function"]["name"], named.description) == ("one", "One.")
    assert Tool.of(named) is named


def test_bound_arguments_of_a_partial_are_neither_shown_to_the_model_nor_replaced():
    def search(query: str, site: str, token: str = "") -> str:
        return f"{query} {site} {token}"

    partial = functools.partial(search, site="s", token="secret")
    nested = functools.partial(functools.partial(search, token="secret"), site="s")
    named = functools.update_wrapper(functools.partial(search, site="s", token="secret"), search)
    made = [{"query": "q", "token": "mine"}, {"query": "q"}]
    for tool in (Tool.of(given, name="search") for given in (partial, nested, named)):
        assert list(tool.parameters["properties"]) == tool.parameters["required"] == ["query"]
        with playing(calls(*(("search", json.dumps(given)) for given in made)), text("ok")) as (client, script):
            client.run("x", tools=[tool])
        assert "secret" not in json.dumps(script.requests[0])
        assert "unknown property" in results(script)[0]
        assert results(script)[1] == "q s secret"


def test_values_that_cannot_be_tools_are_refused():
    wrong: Any
    for wrong, error in ((lambda: 1, ValueError), (3, TypeError), (Place, TypeError)):
        with pytest.raises(error):
            Tool.of(wrong)
    with pytest.raises(ValueError, match="one name: add, add"):
        Client().run_stream("hi", [add, add])
    assert Tool.of(add, name="x" * 64).name == "x" * 64
    for make in (lambda name: Tool.of(add, name=name), lambda name: Tool(name, "", {}, add)):
        with pytest.raises(ValueError, match="no name for a tool"):
            make("x" * 65)


def test_pattern_that_python_cannot_read_is_left_to_the_function():
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string", "pattern": r"^\p{L}+$"}, "b": {"pattern": "^x"}},
        "patternProperties": {r"\p{L}": {"type": "integer"}, "^n": {"type": "integer"}},
        "additionalProperties": True,
    }
    tool = Tool("f", "", schema, add)
    assert tool.read({"a": "abc", "b": "x", "n": 1}) == {"a": "abc", "b": "x", "n": 1}
    for wrong in ({"a": 1}, {"b": "y"}, {"n": "1"}):
        with pytest.raises(DoesNotFit):
            tool.read(wrong)


def test_tool_may_get_another_name_and_description():
    tool = Tool.of(add)
    other = Tool.of(tool, name="sum_of", description="Add.")
    assert (other.name, other.description, other.function) == ("sum_of", "Add.", add)
    assert Tool.of(tool, name="sum_of").description == tool.description


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("text", "text"),
        (None, "null"),
        ({"a": [1, True]}, '{"a": [1, true]}'),
        (Place("Bonn"), '{"name": "Bonn", "country": null}'),
        (Unit.F, '"fahrenheit"'),
        ({"größe": "é"}, '{"größe": "é"}'),  # Escapes would take several tokens for each letter.
        ({1}, "[1]"),
        (1 + 2j, '"(1+2j)"'),
        ({(1, 2): "free"}, "{(1, 2): 'free'}"),
    ],
)
def test_result_is_text_for_the_model(value: Any, shown: str):
    assert result_text(value) == shown


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (("sub", "{}"), "there is no tool 'sub'; the tools are: add, weather"),
        (("add", '{"a": 1'), 'you wrote: {"a": 1'),
        (("add", "[1, 2]"), "not a JSON object"),
        (("add", '{"a": "1", "b": 2}'), '$.a: expected integer, got "1"'),
        (("add", '{"a": 1}'), "$.b: missing"),
        (("weather", '{"place": {}}'), "$.place.name: missing"),
    ],
)
def test_mistake_of_the_model_is_sent_to_the_model(call: Any, error: str, client_class: Any):
    good = ("weather", '{"place": {"name": "Bonn"}, "unit": "fahrenheit"}')
    with playing(calls(call, good), text("sorry"), client_class=client_class) as (client, script):
        assert client.run("x", tools=[add, weather]).text == "sorry"
    wrong, right = results(script)
    assert wrong.startswith("Error: ")
    assert error in wrong
    assert json.loads(right) == {"place": "Bonn", "degrees": 20, "unit": "fahrenheit"}
    sent = script.requests[-1]["messages"][1]["tool_calls"][0]["function"]["arguments"]
    assert isinstance(json.loads(sent), dict)  # Servers refuse messages with arguments that do not parse.


def find(name: str) -> str:
    return next(known for known in ["a"] if known == name)


def counting(a: int) -> Iterator[int]:
    yield from range(a)
    if a == 3:
        raise ValueError("no more")


def test_results_are_text_and_exceptions_are_shortened_and_logged(caplog: pytest.LogCaptureFixture, client_class: Any):
    made = [("fail", ""), *(("find", f'{{"name": "{name}"}}') for name in "za"), ("lazy", "{}")]
    made += [("counting", f'{{"a": {a}}}') for a in (2, 3)]
    lazy = Tool.of(lambda: {"n": map(str, [1]), "m": range(2)}, name="lazy")
    with caplog.at_level(logging.WARNING):
        failed, *others = ran(calls(*made), [fail, find, counting, lazy], client_class)
    assert failed.startswith("Error: RuntimeError: no luck")
    assert len(failed) < 600
    stopped = "Error: RuntimeError: the function raised StopIteration: "
    assert others == [stopped, "a", '{"n": ["1"], "m": [0, 1]}', "[0, 1]", "Error: ValueError: no more"]
    assert "RuntimeError" in caplog.text


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize(("call", "words"), [(("fail", ""), "no luck"), (("find", '{"name": "z"}'), "StopIteration")])
def test_exception_of_a_tool_is_raised_on_request(call: Any, words: str, parallel: bool, client_class: Any):
    with playing(calls(call, ("add", '{"a": 1, "b": 1}')), client_class=client_class) as (client, script):
        with pytest.raises(RuntimeError, match=words):
            client.run("x", tools=[fail, find, add], raise_errors=True, parallel=parallel)
        assert len(script.requests) == 1


async def later(a: int) -> int:
    """Add one."""
    await asyncio.sleep(0)
    return a + 1


class Promise:
    """An awaitable that is not a coroutine."""

    def __init__(self, a: int) -> None:
        self.value = a + 1

    def __await__(self) -> Iterator[Any]:
        yield from asyncio.sleep(0).__await__()
        return self.value


async def stepwise(a: int) -> Any:
    for number in range(a):
        yield number


@pytest.mark.parametrize(("function", "result"), [(later, "3"), (Promise, "3"), (stepwise, "[0, 1]")])
def test_asynchronous_result_of_a_tool_needs_an_async_client(function: Any, result: str):
    """A coroutine function is refused at once; another function is known only when it has returned an awaitable."""
    tool, made = Tool.of(lambda a: function(a), name="f"), calls(("f", '{"a": 2}'))
    assert [ran(made, [tool], waiting_client, parallel=parallel) for parallel in (False, True)] == [[result]] * 2
    assert "only an AsyncClient can run" in ran(made, [tool])[0]
    if function is not Promise:
        assert ran(made, [Tool.of(function, name="f")], waiting_client) == [result]
        with pytest.raises(TypeError, match="only an AsyncClient"):
            Client("http://127.0.0.1:1").run_stream("x", [function])


REFUSED = "Error: this call was not approved and did not run"


@pytest.mark.parametrize(
    ("approval", "result"),
    [(True, "3"), (None, REFUSED), (1, REFUSED), ("", REFUSED), (False, REFUSED), ("ask me", "Error: ask me")],
)
def test_call_runs_only_if_the_approval_hook_returns_true(approval: Any, result: str):
    received = []

    def approve(call: ToolCall) -> Any:
        received.append((call.name, call.arguments))
        return approval

    # The hook is not called for a call that is not valid.
    assert ran(calls(("add", '{"a": 1, "b": 2}'), ("add", "{")), [add], on_call=approve)[0] == result
    assert received == [("add", {"a": 1, "b": 2})]


def test_approval_hook_may_be_a_coroutine_function_of_an_async_client_and_its_errors_end_the_run():
    async def refuse(call: ToolCall) -> bool:
        await asyncio.sleep(0)
        return False

    made = calls(("add", '{"a": 1, "b": 2}'))
    assert ran(made, [add], waiting_client, on_call=refuse) == [REFUSED]
    with playing(made) as (client, script):
        with pytest.raises(TypeError, match="only an AsyncClient can await on_call"):
            client.run("x", tools=[add], on_call=refuse)
        with pytest.raises(KeyError):  # An error of the hook ends the run as well.
            client.run("x", tools=[add], on_call=lambda call: {}["enough"])
        assert len(script.requests) == 2


@pytest.mark.parametrize("names", ["ab", "abc"])
def test_parallel_calls_run_together_and_keep_their_order(names: str, client_class: Any):
    together = threading.Barrier(len(names))

    def wait(name: str) -> str:
        together.wait(DEADLINE_S)
        return name

    made = calls(*(("wait", f'{{"name": "{name}"}}') for name in names))
    assert ran(made, [wait], client_class, parallel=True) == list(names)


@pytest.mark.parametrize("parallel", [False, True, 1, 2])
def test_tool_sees_the_context_variables_of_the_caller(parallel: Any, client_class: Any):
    user = contextvars.ContextVar("user", default="nobody")
    user.set("somebody")
    tool = Tool.of(lambda: user.get(), name="whoami")
    assert ran(calls(*[("whoami", "{}")] * 3), [tool], client_class, parallel=parallel) == ["somebody"] * 3


# --- runs: rounds, the messages that are sent back, and the end ---


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


@pytest.mark.parametrize("options", [{"tool_choice": "required"}, {"extra_body": {"tool_choice": "required"}}])
def test_choice_of_a_tool_is_sent_with_the_first_request_only(options: dict[str, Any]):
    with playing(calls(("add", '{"a": 1, "b": 2}')), text("3")) as (client, script):
        assert client.run("1+2?", tools=[add], **options).text == "3"
    assert [request.get("tool_choice") for request in script.requests] == ["required", None]


def test_message_of_a_cut_reply_has_content():
    """Servers refuse null, which the content of a message with calls may be, if the calls are left out."""
    call = {"index": 0, "id": "1", "function": {"name": "add", "arguments": "{"}}
    with playing([chunk(content=None, tool_calls=[call]), chunk("length")]) as (client, _):
        run = client.run_stream("1+2?", tools=[add], max_tokens=3)
        run.finish()
    assert run.new_messages == [{"role": "assistant", "content": ""}]


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
    assert run.new_messages == run.messages[1:]


def test_text_of_a_stream_or_a_run_prints_as_a_text():
    """All of it, also after some pieces were read, and again."""
    with playing(text("a", "b")) as (client, _):
        for begin in (client.stream, client.run_stream):
            with begin("x") as stream:
                assert next(stream.text) == "a"
                assert [f"{stream.text}", str(stream.text)] == ["ab"] * 2
            with begin("x") as stream:
                assert len(list(stream)) > 2
                assert str(stream.text) == "ab"


def test_text_of_an_asynchronous_stream_is_awaited():
    async def read(client: AsyncClient) -> list[str]:
        async with client.stream("x") as stream:
            before = str(stream.text)
            first = await stream.text.__anext__()
            return [before, first, str(stream.text), await stream.text, str(stream.text)]

    with playing(text("a", "b")) as (client, _):
        assert run_async(client.base_url, read) == ["", "a", "a", "ab", "ab"]


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


# The finish reason of a reply with a call, the options, and whether the reply is an error.
CUTS: dict[str, tuple[str, dict[str, Any], bool]] = {
    "limit of the server": ("length", {}, True),
    "limit of the call": ("length", {"max_tokens": 5}, False),
    "limit, allowed": ("max_tokens", {"allow_truncated": True}, False),
    "end of the context": ("model_context_window_exceeded", {"max_tokens": 5}, True),
    "filter": ("content_filter", {"max_tokens": 5}, True),
    "filter, allowed": ("content_filter", {"allow_truncated": True}, False),
    "limit of the call, typed": ("length", {"max_tokens": 5, "response_format": Place}, True),
}


@pytest.mark.parametrize("method", ["run", "run_stream", "say", "stream"])
@pytest.mark.parametrize(("finish", "options", "is_error"), CUTS.values(), ids=CUTS)
def test_call_of_a_reply_that_was_cut_is_never_run(finish, options, is_error, method, client_class: Any):
    """Whoever set the limit: its arguments may be incomplete, and look complete."""
    ran: list[str] = []

    def delete(path: str = "/") -> None:
        ran.append(path)

    cut_call = [*calls(("delete", '{"path": "/tmp"}'), ("delete", ""))[:-1], chunk(finish)]
    with playing([chunk(content="So "), *cut_call], client_class=client_class) as (client, script):
        conversation = client.conversation(tools=[delete])
        if method in ("say", "stream"):
            run = getattr(conversation, method)
        else:
            run = functools.partial(getattr(client, method), tools=[delete])
        reply, events = None, []
        with pytest.raises(IncompleteReply) if is_error else contextlib.nullcontext() as caught:
            given = run("x", **options)
            if method in ("run", "say"):
                reply = given
            else:
                with given as stream:
                    events += stream
                reply = given.reply
        reply = caught.value.partial if is_error else reply
        assert (ran, len(script.requests)) == ([], 1)
    assert (reply.text, [call.name for call in reply.tool_calls]) == ("So ", ["delete"] * 2)
    assert reply.finish_reason == ("content_filter" if finish == "content_filter" else "length")
    assert ("message_stop" in [event.type for event in events]) == (method in ("run_stream", "stream") and not is_error)
    # A turn that is kept has no calls without results, which servers refuse.
    kept = [] if is_error or method in ("run", "run_stream") else ["user", "assistant"]
    assert [message["role"] for message in conversation.messages] == kept
    assert all("tool_calls" not in message for message in conversation.messages)


def test_only_a_long_text_of_an_exception_is_cut_for_the_model():
    def fail_with(n: int) -> None:
        raise ValueError("x" * n)

    n = 500 - len("ValueError: ")
    whole, cut = ran(calls(("fail_with", f'{{"n": {n}}}'), ("fail_with", f'{{"n": {n + 1}}}')), [fail_with])
    assert whole == f"Error: ValueError: {'x' * n}"
    assert cut == f"{whole}..."


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
        assert client.with_options(max_retries=0).run("x", [add]).text == "3"
        assert len(script.requests) == 7  # No further one was refused.
    assert "name" not in script.requests[-1]["messages"][-1]
    urls = {"http://10.0.0.1/v1": True, "https://127.0.0.1/v1": True, "https://api.example.com/v1": False}
    assert {url: Settings(base_url=url).names_tools for url in urls} == urls


def test_field_that_the_server_refused_is_in_no_later_request(client_class: Any):
    """Neither in later rounds, whose messages have results of earlier ones, nor in later turns of a conversation."""
    refused = []

    def respond(body: Any) -> Any:
        results = [message for message in body["messages"] if message["role"] == "tool"]
        wrong = ["stream_options"] if "stream_options" in body else ["name"] if "name" in str(results) else []
        refused.extend(wrong)
        if wrong:
            return [{"error": {"message": f"{wrong[0]}: Extra inputs are not permitted"}}]
        return text("3") if len(results) % 3 == 0 and body["messages"][-1]["role"] == "tool" else made

    made = calls(("add", '{"a": 1, "b": 2}'))
    with playing(respond, client_class=client_class) as (client, script):
        conversation = client.conversation(tools=[add])
        assert [conversation.say("x").text for _ in range(2)] == ["3", "3"]
    assert refused == ["stream_options", "name"]
    assert len(script.requests) == 2 * 4 + len(refused)


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
