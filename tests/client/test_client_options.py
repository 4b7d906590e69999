"""Options of clients and calls: their names, the errors for unknown ones, and prompts that are not valid."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import Any

import pytest

from localchat import (
    Choice,
    Client,
    IncompleteReply,
    NotFoundError,
    ProtocolError,
    Reply,
    StreamError,
    Timeout,
    Tool,
    chat,
)
from localchat.reply.assembly import check_complete
from tests.support.clients import failure, make_client
from tests.support.raw_server import DEADLINE_S, DONE, HELLO, HELLO_JSON, always, chunked, piece, serving, with_length

UNKNOWN: list[tuple[str, tuple[Any, ...], dict[str, Any], str]] = [
    ("chat", ("hi",), {"temprature": 0}, r"chat has no option 'temprature': is temperature meant\?; extra_body"),
    ("chat", ("hi",), {"zzz": 0}, r"chat has no option 'zzz'; extra_body=\{\.\.\.\} sends any field"),
    ("chat", ("hi",), {"api_key": "sk-1"}, r"belongs to the client, Client\(api_key=\.\.\.\)"),
    ("chat", ("hi",), {"stream": True}, "chat, complete and run return a Reply"),
    ("with_options", (), {"modle": "m"}, r"Client has no option 'modle': is model meant\?"),
    ("run", ("hi",), {"max_round": 3}, r"run has no option 'max_round': is max_rounds meant\?"),
    ("embed", ("hi",), {"temperature": 1}, "embed has no option 'temperature'"),
    ("complete", ("hi",), {"system": "Be brief."}, "complete has no option 'system'"),
    ("complete", ("hi",), {"tools": []}, "complete has no option 'tools'"),
    ("request", ("POST", "rerank", {}), {"temperature": 1}, "request has no option 'temperature'"),
    *((name, ("hi",), {"retries_on_mismatch": 1}, "'retries_on_mismatch'") for name in ("stream", "run", "complete")),
]


@pytest.mark.parametrize(("method", "arguments", "options", "words"), UNKNOWN)
def test_unknown_option_is_refused_and_nothing_is_sent(method, arguments, options, words, client_class):
    with always(HELLO) as server, make_client(server, client_class) as client, pytest.raises(TypeError, match=words):
        getattr(client, method)(*arguments, **options)
    assert server.requests == []
    with pytest.raises(TypeError, match=r"Client has no option 'time_out': is timeout meant\?"):
        Client(time_out=5)  # type: ignore[call-arg]


CHATS = ("chat", "stream", "run")
PROMPTS: dict[str, tuple[tuple[str, ...], Any, str]] = {
    "dict": (CHATS, {"role": "user", "content": "hi"}, "text or a list of messages, not dict"),
    "bytes": (CHATS, b"hi", "text or a list of messages, not bytes"),
    "texts": (CHATS, ["a", "b"], "a dict with role and content, not str: client.map"),
    "list of lists": (CHATS, [["a"]], "a dict with role and content, not list"),
    "no text to complete": (("complete",), None, "complete takes text, .* not NoneType"),
    "a message to complete": (("complete",), {"role": "user", "content": "hi"}, "complete takes text, .* not dict"),
}


@pytest.mark.parametrize(("methods", "prompt", "words"), PROMPTS.values(), ids=PROMPTS)
def test_wrong_prompt_is_explained(methods, prompt, words):
    for method in methods:
        with pytest.raises(TypeError, match=words):
            getattr(Client("http://127.0.0.1:1", model="m"), method)(prompt)


NOT_SECONDS: Any = (0, -1, "60", [], True, (5, 10))
NO_TIMEOUT = "timeout is a number of seconds above 0, or None for no limit, not "
WRONG_VALUES: dict[str, Any] = {
    **{f"timeout {wrong!r}": ({"timeout": wrong}, f"{NO_TIMEOUT}{re.escape(repr(wrong))}") for wrong in NOT_SECONDS},
    **{f"retries {wrong!r}": ({"max_retries": wrong}, "max_retries is a whole") for wrong in ("2", -1, 1.5, True)},
    "length": ({"headers": {"content-length": "3"}}, "sets the header content-length itself"),
    **{name: ({"headers": {name: "x"}}, "sets the header") for name in ("Transfer-Encoding", "CONNECTION")},
}


@pytest.mark.parametrize(("options", "words"), WRONG_VALUES.values(), ids=WRONG_VALUES)
def test_c16_c17_wrong_value_of_an_option_names_the_option(options, words, client_class):
    with pytest.raises(ValueError, match=words):
        client_class("http://127.0.0.1:1", **options)
    options = {{"headers": "extra_headers"}.get(name, name): value for name, value in options.items()}
    with client_class("http://127.0.0.1:1", model="m") as client, pytest.raises(ValueError, match=words):
        client.chat("hi", **options)


def test_c1_client_keeps_what_it_was_made_with(monkeypatch, client_class):
    with always(HELLO) as server, always(HELLO) as other:
        for name, value in (("OPENAI_BASE_URL", server.url), ("OPENAI_API_KEY", "old-key"), ("LOCALCHAT_MODEL", "old")):
            monkeypatch.setenv(name, value)
        with client_class() as client:
            for name, value in (("OPENAI_BASE_URL", other.url), ("OPENAI_API_KEY", "new"), ("LOCALCHAT_MODEL", "new")):
                monkeypatch.setenv(name, value)
            client.chat("hi")
            client.map(["hi"])
            assert str(chat("hi")) == "Hello"
    assert [request.json["model"] for request in server.requests] == ["old", "old"]
    assert {request.headers["authorization"] for request in server.requests} == {"Bearer old-key"}
    assert [request.headers["authorization"] for request in other.requests] == ["Bearer new"]
    monkeypatch.setenv("OPENAI_BASE_URL", "")
    assert Client().base_url == "http://127.0.0.1:8080/v1"


CUTS: dict[str, tuple[str, dict[str, Any], str]] = {
    "limit of the server": ("length", {}, "at a limit of tokens, after 5 characters: set max_tokens or allow"),
    "limit of the call": ("length", {"max_tokens": 5}, ""),
    "limit in the body": ("length", {"extra_body": {"max_completion_tokens": 5}}, ""),
    "limit, allowed": ("length", {"allow_truncated": True}, ""),
    "filter": ("content_filter", {"max_tokens": 5}, "by a content filter, after 5 characters: set allow_truncated"),
    "end of the context": ("model_context_window_exceeded", {"max_tokens": 5}, "at the end of the model's context"),
    "filter, allowed": ("content_filter", {"allow_truncated": True}, ""),
}


@pytest.mark.parametrize(("finish", "options", "words"), CUTS.values(), ids=CUTS)
def test_c3_reply_that_was_cut_is_an_error(finish, options, words, client_class):
    with always(chunked(piece("Hello", finish), DONE)) as server, make_client(server, client_class) as client:
        conversation = client.conversation()
        for call in (client.chat, client.run, conversation.say):
            if words:
                with pytest.raises(IncompleteReply, match=words) as caught:
                    call("hi", **options)
                reply = caught.value.partial
                cut = Choice(1, finish_reason=reply.finish_reason, finish_reason_raw=finish)
                request = SimpleNamespace(fields=options, allow_truncated=False)
                with pytest.raises(IncompleteReply):  # Also if another choice than the first was cut.
                    check_complete(Reply((Choice(finish_reason="stop"), cut)), request)
            else:
                reply = call("hi", **options)
            assert (reply.text, reply.finish_reason) == ("Hello", "length" if "model" in finish else finish)
        assert len(conversation.messages) == (0 if words else 2)
        (outcome,) = client.map(["hi"], **options)
        assert isinstance(outcome.error, IncompleteReply) == bool(words)
        assert outcome.choices[0].text == "Hello"
        assert all("allow_truncated" not in request.json for request in server.requests)


def test_c12_map_requests_the_list_of_models_once(client_class):
    with always(HELLO) as server, client_class(server.url) as client:
        for _ in range(2):
            assert [str(reply) for reply in client.map(["hi"] * 20)] == ["Hello"] * 20
        assert [request.method for request in server.requests].count("GET") == 1
        assert {request.json["model"] for request in server.requests[1:]} == {"first"}


def test_c21_prompt_and_messages_are_names_of_the_prompt(client_class):
    messages = [{"role": "user", "content": "hi"}]
    with always(HELLO) as server, make_client(server, client_class) as client:
        for options in ({"prompt": "hi"}, {"messages": messages}, {"prompt": messages}):
            assert client.chat(**options).text == "Hello"
            assert [event.type for event in client.stream(**options)][-1] == "message_stop"
            assert client.run(**options).text == "Hello"
        assert chat(base_url=server.url, model="m", messages=messages).text == "Hello"
        assert all(request.json["messages"] == messages for request in server.requests)
        with pytest.raises(TypeError, match="chat got a prompt and messages"):
            client.chat("hi", messages=messages)
        with pytest.raises(TypeError, match="text or a list of messages, not NoneType"):
            client.chat()


# The fields of a request of OpenAI's API, besides messages, model, stream and response_format.
FIELDS = """
    audio frequency_penalty function_call functions logit_bias logprobs max_completion_tokens max_tokens metadata
    modalities moderation n parallel_tool_calls prediction presence_penalty prompt_cache_key prompt_cache_retention
    reasoning_effort safety_identifier seed service_tier stop store stream_options temperature tool_choice tools
    top_logprobs top_p user verbosity web_search_options
"""


def find(name: str) -> str:
    """Find a name."""
    return name


def test_c18_c22_c23_every_field_of_openai_is_an_option(client_class):
    """No images are no images, and a Tool is sent as JSON."""
    values: dict[str, Any] = dict.fromkeys(FIELDS.split(), 1)
    values.update(audio={"voice": "x"}, tools=[Tool.of(find)], stream_options={"a": 1})
    with always(HELLO) as server, make_client(server, client_class) as client:
        client.chat("hi", **values, images=[])
        client.chat("hi", images=[], audio=())
        first, second = (request.json for request in server.requests)
    values["tools"] = [Tool.of(find).definition]
    assert {name: first[name] for name in values} == values
    assert set(second) == {"model", "messages", "stream", "stream_options"}
    assert second["messages"] == [{"role": "user", "content": "hi"}]


def test_other_options_share_the_connections():
    with always(HELLO) as server, make_client(server) as client:
        client.chat("hi")
        other = client.with_options(model="other", headers={"X-Other": "1"}, timeout=3)
        assert other.chat("hi").text == "Hello"
        assert client.chat("hi").text == "Hello"
        assert server.connections == 1
        assert [request.json["model"] for request in server.requests] == ["m", "other", "m"]
        assert ["x-other" in request.headers for request in server.requests] == [False, True, False]
        elsewhere = client.with_options(base_url="http://127.0.0.1:1/v1", max_retries=0)
        with pytest.raises(Exception, match=r"nothing listens on 127\.0\.0\.1:1"):
            elsewhere.chat("hi")


def test_any_request(client_class):
    """The response to HEAD has no body, whatever its length."""
    responses = {
        "/v1/rerank": with_length(b'{"results": [1]}'),
        "/health": with_length(b"ok"),
        "/empty?a=b": with_length(b""),
        "/head": b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n",
    }
    missing, headers = with_length(b'{"error": "no such thing"}', "404 Not Found"), {"X-A": "1"}
    server = serving(lambda request, number: responses.get(request.path, missing))
    with server, make_client(server, client_class) as client:
        assert client.request("POST", "rerank", {"query": "q"}, extra_headers=headers) == {"results": [1]}
        assert server.requests[0].json == {"query": "q"}
        assert server.requests[0].headers["x-a"] == "1"
        assert client.request("GET", "/health") == "ok"
        assert client.request("GET", "/empty?a=b") is None
        assert [client.request("HEAD", "/head") for _ in range(2)] == [None, None]
        assert server.connections == 1
        with pytest.raises(NotFoundError, match="no such thing"):
            client.request("GET", "nowhere")
        with pytest.raises(ValueError, match="not a valid HTTP method"):
            client.request("GET /x", "y")


def test_smallest_values_of_the_options_are_allowed(client_class):
    options = {"max_retries": 0, "max_bytes": len(HELLO_JSON), "timeout": Timeout(DEADLINE_S, total=DEADLINE_S)}
    with always(with_length(HELLO_JSON)) as server, make_client(server, client_class, **options) as client:
        assert client.chat("hi", max_retries=0, retries_on_mismatch=0).text == "Hello"
        assert [reply.text for reply in client.map(["hi"], concurrency=1)] == ["Hello"]
        assert client.run("hi", max_rounds=1, parallel=0).text == "Hello"
    options = {"max_bytes": len(HELLO_JSON) - 1, "client_class": client_class}
    failure(always(with_length(HELLO_JSON)), ProtocolError, f"more than {len(HELLO_JSON) - 1} bytes", **options)


NO_LUCK = {"message": "no luck", "code": 500}


@pytest.mark.parametrize("body", [{"error": NO_LUCK}, {"error": "no luck"}, NO_LUCK])
def test_c11_error_at_status_200_has_the_message_of_the_server(body, client_class):
    raw = with_length(json.dumps(body).encode())
    with always(raw, raw) as server, make_client(server, client_class) as client:
        for call in (client.models, lambda: client.embed("a")):
            with pytest.raises(StreamError, match="no luck"):
                call()
