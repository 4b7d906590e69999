"""Options of clients and calls: their names, the errors for unknown ones, and prompts that are not valid."""

from __future__ import annotations

import json
from typing import Any

import pytest

from localchat import Client, IncompleteReply, NotFoundError, StreamError, Timeout, Tool, chat

from .clients import make_client
from .raw_server import DONE, HELLO, always, chunked, piece, serving, with_length

UNKNOWN: dict[str, tuple[dict[str, Any], str]] = {
    "misspelt": ({"temprature": 0}, r"chat has no option 'temprature': is temperature meant\?; extra_body"),
    "unlike any": ({"zzz": 0}, r"chat has no option 'zzz'; extra_body=\{\.\.\.\} sends any field"),
    "of the client": ({"api_key": "sk-1"}, r"belongs to the client, Client\(api_key=\.\.\.\)"),
    "server": ({"base_url": "http://x"}, r"belongs to the client, Client\(base_url"),
    "stream": ({"stream": True}, "chat, complete and run return a Reply"),
}


@pytest.mark.parametrize(("options", "words"), UNKNOWN.values(), ids=UNKNOWN)
def test_unknown_option_is_refused_and_nothing_is_sent(options, words, client_class):
    refused = pytest.raises(TypeError, match=words)
    with always(HELLO) as server, make_client(server, client_class) as client, refused:
        client.chat("hi", **options)
    assert server.requests == []


OTHERS: list[tuple[str, tuple[Any, ...], dict[str, Any], str]] = [
    ("with_options", (), {"modle": "m"}, r"Client has no option 'modle': is model meant\?"),
    ("run", ("hi",), {"max_round": 3}, r"run has no option 'max_round': is max_rounds meant\?"),
    ("embed", ("hi",), {"temperature": 1}, "embed has no option 'temperature'"),
    ("complete", ("hi",), {"system": "Be brief."}, "complete has no option 'system'"),
    ("complete", ("hi",), {"tools": []}, "complete has no option 'tools'"),
    ("request", ("POST", "rerank", {}), {"temperature": 1}, "request has no option 'temperature'"),
    *((name, ("hi",), {"retries_on_mismatch": 1}, "'retries_on_mismatch'") for name in ("stream", "run", "complete")),
]


@pytest.mark.parametrize(("method", "arguments", "options", "words"), OTHERS)
def test_unknown_option_of_other_methods(method, arguments, options, words):
    with pytest.raises(TypeError, match=words):
        getattr(Client("http://127.0.0.1:1"), method)(*arguments, **options)
    with pytest.raises(TypeError, match=r"Client has no option 'time_out': is timeout meant\?"):
        Client(time_out=5)  # type: ignore[call-arg]


PROMPTS: dict[str, tuple[Any, str]] = {
    "dict": ({"role": "user", "content": "hi"}, "text or a list of messages, not dict"),
    "bytes": (b"hi", "text or a list of messages, not bytes"),
    "texts": (["a", "b"], "a dict with role and content, not str: client.map"),
    "number": (3, "text or a list of messages, not int"),
    "list of lists": ([["a"]], "a dict with role and content, not list"),
}


@pytest.mark.parametrize(("prompt", "words"), PROMPTS.values(), ids=PROMPTS)
def test_wrong_prompt_is_explained(prompt, words):
    client: Any = Client("http://127.0.0.1:1", model="m")
    for method in (client.chat, client.stream, client.run):
        with pytest.raises(TypeError, match=words):
            method(prompt)


@pytest.mark.parametrize("prompt", [None, 3, b"hi", {"role": "user", "content": "hi"}])
def test_wrong_text_of_a_completion_is_explained(prompt, client_class):
    refused = pytest.raises(TypeError, match=f"complete takes text, .* not {type(prompt).__name__}")
    with client_class("http://127.0.0.1:1", model="m") as client, refused:
        client.complete(prompt)


WRONG_VALUES: dict[str, Any] = {
    **{f"timeout {wrong!r}": ({"timeout": wrong}, "timeout is a number") for wrong in (0, -1, "60", [], True)},
    "timeout in a Timeout": ({"timeout": Timeout(idle="60")}, "timeout is a number"),  # type: ignore[arg-type]
    **{f"retries {wrong!r}": ({"max_retries": wrong}, "max_retries is a whole") for wrong in ("2", -1, 1.5, True)},
    "length": ({"headers": {"content-length": "3"}}, "sets the header content-length itself"),
    **{
        name: ({"headers": {name: "x"}}, "sets the header")
        for name in ("Transfer-Encoding", "CONNECTION", "Upgrade", "TE", "Trailer", "Expect", "Keep-Alive")
    },
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
    "filter, allowed": ("content_filter", {"allow_truncated": True}, ""),
}


@pytest.mark.parametrize(("finish", "options", "words"), CUTS.values(), ids=CUTS)
def test_c3_reply_that_was_cut_is_an_error(finish, options, words, client_class):
    with always(chunked(piece("Hello", finish), DONE)) as server, make_client(server, client_class) as client:
        conversation = client.conversation()
        for call in (
            client.chat,
            client.run,
            conversation.say,
            lambda *a, **o: chat(*a, base_url=server.url, model="m", **o),
        ):
            if words:
                with pytest.raises(IncompleteReply, match=words) as caught:
                    call("hi", **options)
                reply = caught.value.partial
            else:
                reply = call("hi", **options)
            assert (reply.text, reply.finish_reason) == ("Hello", finish)
        assert len(conversation.messages) == (0 if words else 2)
        (outcome,) = client.map(["hi"], **options)
        assert isinstance(outcome, IncompleteReply) == bool(words)
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
    values: dict[str, Any] = {
        **dict.fromkeys(FIELDS.split(), 1),
        "audio": {"voice": "x"},
        "tools": [Tool.of(find)],
        "stream_options": {"a": 1},
    }
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
    responses = {
        "/v1/rerank": with_length(b'{"results": [1]}'),
        "/health": with_length(b"ok"),
        "/empty?a=b": with_length(b"", "200 OK"),
    }

    missing, headers = with_length(b'{"error": "no such thing"}', "404 Not Found"), {"X-A": "1"}
    server = serving(lambda request, number: responses.get(request.path, missing))
    with server, make_client(server, client_class) as client:
        assert client.request("POST", "rerank", {"query": "q"}, extra_headers=headers) == {"results": [1]}
        assert server.requests[0].json == {"query": "q"}
        assert server.requests[0].headers["x-a"] == "1"
        assert client.request("GET", "/health") == "ok"
        assert client.request("GET", "/empty?a=b") is None
        with pytest.raises(NotFoundError, match="no such thing"):
            client.request("GET", "nowhere")
        with pytest.raises(ValueError, match="not a valid HTTP method"):
            client.request("GET /x", "y")


def test_c19_response_to_head_has_no_body(client_class):
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"
    with always(head) as server, make_client(server, client_class) as client:
        assert [client.request("HEAD", "/health") for _ in range(2)] == [None, None]
        assert server.connections == 1


ERRORS_AT_200: dict[str, Any] = {
    "object": {"error": {"message": "no luck", "code": "c"}},
    "text": {"error": "no luck"},
    "flat": {"message": "no luck", "code": 500},
}


@pytest.mark.parametrize("body", ERRORS_AT_200.values(), ids=ERRORS_AT_200)
def test_c11_error_at_status_200_has_the_message_of_the_server(body, client_class):
    raw = with_length(json.dumps(body).encode())
    with always(raw, raw) as server, make_client(server, client_class) as client:
        for call in (client.models, lambda: client.embed("a"), lambda: client.embed(["a", "b"])):
            with pytest.raises(StreamError, match="no luck"):
                call()
