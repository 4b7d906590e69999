"""Options of clients and calls: their names, their values, and prompts that are not valid."""

import inspect
import json
import math
import re
import traceback
from types import SimpleNamespace
from typing import Any

import pytest

from localchat import AsyncClient, ChatOptions, Choice, Client, Reply, Timeout, Tool, chat
from localchat.errors import IncompleteReply, NotFoundError, ProtocolError, StreamError
from localchat.reply.truncation import check_not_cut
from localchat.request.options import OPTIONS_OF, ConnectionOptions
from tests.support.clients import failure, make_client
from tests.support.deadline import DEADLINE_S
from tests.support.raw_responses import DONE, HELLO, HELLO_JSON, chunked, piece, with_length
from tests.support.raw_server import always, serving


def find(name: str) -> str:
    """Find a name."""
    return name


async def wait(*values: object) -> None:
    """Wait for nothing."""


MESSAGE = {"role": "user", "content": "hi"}
WITH_SYSTEM = [{"role": "system", "content": "be brief"}, MESSAGE]
# Prompts of chats, which are not valid, and the error.
PROMPTS: list[tuple[Any, str]] = [
    (MESSAGE, "text or a list of messages, not dict"),
    (b"hi", "text or a list of messages, not bytes"),
    (["a", "b"], "a dict with role and content, not str: client.map"),
    ([["a"]], "a dict with role and content, not list"),
]
# Options of runs and conversations.
RUNS: list[tuple[dict[str, Any], str]] = [
    ({"n": 2, "tools": [find]}, "n must be 1"),
    ({"extra_body": {"n": 2}, "tools": [find]}, "n must be 1"),
    ({"max_rounds": 0}, "at least 1, not 0"),
    ({"max_rounds": "3"}, "whole number of at least 1, not '3'"),
    ({"tools": find}, "tools is a list of functions, not <function find"),
    ({"on_call": True}, "on_call is a function, not True"),
    ({"parallel": -1}, "parallel is .* not -1"),
    ({"think_tags": "on"}, "think_tags must be one of"),
    ({"temprature": 0}, "no option 'temprature': is temperature meant"),
    ({"on_done": print}, "no option 'on_done'"),
    ({"extra_headers": {"a b": "c"}}, "a b"),
    *(({name: 5}, f"{name} is a .*, not a int") for name in ("extra_headers", "extra_body", "model")),
    ({"response_format": complex}, "no counterpart"),
    ({"max_retries": -1}, "max_retries is a whole number"),
]
MAPS: list[tuple[Any, dict[str, Any], str]] = [
    ("text", {}, "list of prompts"),
    (["a", b"b"], {}, "not bytes"),
    (["a"], {"concurency": 2}, "is concurrency meant"),
    (["a"], {"concurrency": 0}, "at least 1, not 0"),
    (["a"], {"concurrency": "2"}, "whole number of at least 1, not '2'"),
    (["a"], {"on_progress": 3}, "on_progress is a function, not 3"),
    (["a"], {"on_progress": wait}, "on_progress is a coroutine function"),
    (["a"], {"response_format": "json_object"}, "'json_object' is a text"),
    (["a"], {"retries_on_mismatch": -1}, "retries_on_mismatch"),
]
NUMBERS: list[tuple[dict[str, Any], str]] = [
    ({"temperature": math.nan}, "temperature is .*, which is not a finite number"),
    ({"temperature": math.inf}, "temperature is .*, which is not a finite number"),
    ({"logit_bias": {"1": -math.inf}}, "neither NaN nor infinity"),
    ({"extra_body": {"a": [math.nan]}}, "neither NaN nor infinity"),
    ({"timeout": math.inf}, "timeout is"),
]
WRONG: list[tuple[str, tuple[Any, ...], dict[str, Any], str]] = [
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
    ("request", ("POST", "rerank", {}), {"extra_body": {}}, "no option 'extra_body': the body is the argument json"),
    ("request", ("POST", "rerank", {"top_n": math.nan}), {}, "neither NaN nor infinity"),
    ("request", ("GET /x", "y"), {}, "not a valid HTTP method"),
    ("complete", (None,), {}, "complete takes text, .* not NoneType"),
    ("complete", (MESSAGE,), {}, "complete takes text, .* not dict"),
    ("chat", (), {}, "text or a list of messages, not NoneType"),
    *((name, ("hi",), {"images": 5}, "images is a list of files") for name in ("chat", "stream", "run")),
    ("chat", ("hi",), {"audio": 5}, "audio is a list of files"),
    ("chat", ("hi",), {"messages": [MESSAGE]}, "chat got a prompt and messages"),
    *((name, (WITH_SYSTEM,), {"system": "x"}, "the prompt has a system") for name in ("chat", "stream", "run")),
    ("map", ([WITH_SYSTEM],), {"system": "x"}, "the prompt has a system message"),
    *((name, ("hi",), {"retries_on_mismatch": 1}, "'retries_on_mismatch'") for name in ("stream", "run", "complete")),
    *((name, (prompt,), {}, words) for name in ("chat", "stream", "run") for prompt, words in PROMPTS),
    *((name, ("hi",), {"extra_body": {"messages": []}}, "messages is the first") for name in ("chat", "stream", "run")),
    ("map", (["hi"],), {"extra_body": {"messages": []}}, "messages is the first argument"),
    ("complete", ("hi",), {"extra_body": {"prompt": ["a", "b"]}}, "the field prompt is the first argument"),
    ("embed", ("hi",), {"extra_body": {"input": "a"}}, "the field input is the first argument"),
    *((name, ("hi",), {"tools": 5}, "tools is a list of tools") for name in ("chat", "stream")),
    *(("chat", ("hi",), {"tools": tools}, "tools is a list of tools") for tools in ("abc", b"abc", MESSAGE)),
    *(("chat", ("hi",), {"tools": [tool]}, "a tool is a dict") for tool in ("abc", 5)),
    *(("run_stream", ("hi",), options, words) for options, words in RUNS),
    *(("conversation", (), options, words) for options, words in RUNS),
    *(("map", (prompts,), options, words) for prompts, options, words in MAPS),
    *((name, ("hi",), options, words) for name in ("chat", "complete") for options, words in NUMBERS),
]


@pytest.mark.parametrize(("method", "arguments", "options", "words"), WRONG)
def test_wrong_prompt_or_option_is_refused_and_nothing_is_sent(method, arguments, options, words, client_class):
    server = always(HELLO)
    with server, make_client(server, client_class) as client, pytest.raises((TypeError, ValueError), match=words):
        getattr(client, method)(*arguments, **options)
    assert server.requests == []


NOT_SECONDS: Any = (0, -1, "60", [], True, (5, 10))
NO_TIMEOUT = "timeout is a number of seconds above 0, or None for no limit, not "
WRONG_URLS = "ftp://h/v1 http:// http://user:pass@h/v1 http://h:99999/v1 http://h:0 http://h:x http://[::1 http://ü..b"
WRONG_PROXIES = ("", "http://", "h:0", "http://p:99999", "http://user:zqz/x@p:80")
# Values that are secret have the letters zqz.
WRONG_VALUES: list[tuple[dict[str, Any], str]] = [
    *(({"timeout": wrong}, f"{NO_TIMEOUT}{re.escape(repr(wrong))}") for wrong in NOT_SECONDS),
    ({"timeout": math.nan}, "timeout is"),
    *(({"max_retries": wrong}, "max_retries is a whole number of at least 0") for wrong in ("2", -1, 1.5, True)),
    *(({"headers": {name: "3"}}, "sets the header") for name in ("content-length", "Transfer-Encoding", "CONNECTION")),
    *(({"headers": {name: "zqz"}}, "not a valid header name") for name in (3, "X\r\nY", "X Y", "X:", "", "\u00e9")),
    ({"headers": {"X-Api-Key": "zqz\n"}}, "X-Api-Key"),
    ({"headers": {"X-Count": 3}}, "X-Count is not text"),
    ({"headers": [("a", "b")]}, "headers is a Mapping, not a list"),
    *(({name: 5}, f"{name} is a .*, not a int") for name in ("base_url", "api_key", "model", "proxy")),
    ({"on_retry": 5}, "on_retry is a function, not 5"),
    ({"on_retry": wait}, "on_retry is a coroutine function"),
    *(({"api_key": f"zqz{end}"}, "is the API key right") for end in ("\nb", "\r\nX: y", "\0b", "k\u00e9y")),
    *(({"base_url": url}, "the base URL") for url in (*WRONG_URLS.split(), "http://a b/v1")),
    ({"max_bytes": 0}, "max_bytes is a whole number of at least 1, not 0"),
    ({"proxy": "socks5://h:1"}, "only http:// proxies are supported, not socks5://"),
    *(({"proxy": url}, "the proxy's URL") for url in WRONG_PROXIES),
    ({"verify": "/no/such/file"}, "verify must name a file of certificates, not '/no/such/file'"),
    *(({"verify": wrong}, "verify must name a file of certificates") for wrong in (0, {}, ["ca.pem"], __file__)),
]


@pytest.mark.parametrize(("options", "words"), WRONG_VALUES)
def test_wrong_value_of_an_option_names_the_option_and_shows_no_secret(options, words, client_class):
    """When the client is made, and in a call."""
    calls = [client_class, Client().with_options]
    with client_class("http://127.0.0.1:1", model="m") as client:
        if options.keys() <= {"timeout", "max_retries", "headers"}:
            names = {"headers": "extra_headers"}
            given = {names.get(name, name): value for name, value in options.items()}
            calls.append(lambda **options: client.chat("hi", **given))
        for call in calls:
            with pytest.raises((TypeError, ValueError), match=words) as caught:
                call(**options)
            assert "zqz" not in "".join(traceback.format_exception(None, caught.value, None))


def test_functions_and_limits_refuse_what_clients_refuse():
    with pytest.raises(TypeError, match=r"Client has no option 'time_out': is timeout meant\?"):
        Client(time_out=5)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="is base_url meant"):
        chat("hi", base_ulr="http://127.0.0.1:1")  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="timeout is a number"):
        Timeout(idle=math.nan)


def test_client_keeps_what_it_was_made_with(monkeypatch, client_class):
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
    "end of the context, in capitals": ("CONTEXT_WINDOW_EXCEEDED", {"max_tokens": 5}, "at the end of the model's"),
    "filter, allowed": ("content_filter", {"allow_truncated": True}, ""),
}


@pytest.mark.parametrize(("finish", "options", "words"), CUTS.values(), ids=CUTS)
def test_reply_that_was_cut_is_an_error(finish, options, words, client_class):
    with always(chunked(piece("Hello", finish), DONE)) as server, make_client(server, client_class) as client:
        conversation = client.conversation()
        for call in (client.chat, client.run, conversation.say):
            if words:
                with pytest.raises(IncompleteReply, match=words) as caught:
                    call("hi", **options)
                reply = caught.value.partial
                cut = Choice(1, finish_reason=reply.finish_reason, finish_reason_raw=finish)
                request = SimpleNamespace(fields=options, allow_truncated=False, expected=None)
                with pytest.raises(IncompleteReply):  # Also if another choice than the first was cut.
                    check_not_cut(Reply((Choice(finish_reason="stop"), cut)), request)
            else:
                reply = call("hi", **options)
            assert (reply.text, reply.finish_reason) == ("Hello", finish if finish == "content_filter" else "length")
        assert len(conversation.messages) == (0 if words else 2)
        (outcome,) = client.map(["hi"], **options)
        assert isinstance(outcome.error, IncompleteReply) == bool(words)
        assert outcome.choices[0].text == "Hello"
        assert all("allow_truncated" not in request.json for request in server.requests)


@pytest.mark.parametrize("method", ["stream", "run_stream"])
def test_finish_never_returns_a_reply_that_was_cut(method, client_class):
    """Also after the events were read, and when it is called again."""
    with always(chunked(piece("[1", "length"), DONE)) as server, make_client(server, client_class) as client:
        begin = getattr(client, method)
        read = begin("hi")
        for stream in (read, read, begin("hi"), begin("hi", response_format=list)):
            with pytest.raises(IncompleteReply):  # Not that the value does not match.
                stream.finish()
        for options in ({"allow_truncated": True}, {"max_tokens": 1}):
            assert begin("hi", **options).finish().truncated


CONNECTION = ConnectionOptions.__annotations__


def test_headers_are_merged_and_none_is_no_option(client_class, monkeypatch):
    monkeypatch.setenv("LOCALCHAT_MODEL", "")
    with always(HELLO) as server, client_class(server.url, model="m", headers={"X-A": "1", "X-B": "1"}) as client:
        other = client.with_options(headers={"x-b": "2"}, model=None, timeout=None)
        for sender in (client, other, other.with_options(headers=None, api_key="k")):
            sender.chat("hi")
        headers = [
            [request.headers.get(name) for name in ("x-a", "x-b", "authorization")] for request in server.requests
        ]
        assert headers == [["1", "1", None], ["1", "2", None], ["1", "2", "Bearer k"]]
        assert [request.json["model"] for request in server.requests] == ["m", "m", "m"]


@pytest.mark.parametrize("base", [Client, AsyncClient])
def test_with_options_keeps_the_class_and_the_attributes_of_a_subclass(base):
    class Named(base):
        def __init__(self, name: str, **options: Any) -> None:
            super().__init__("http://127.0.0.1:1/v1", **options)
            self.name = name

    client = Named("mine", model="m")
    other = client.with_options(base_url="http://127.0.0.1:2/v1")
    assert (type(other), other.name, other.base_url) == (Named, "mine", "http://127.0.0.1:2/v1")
    other.name = "another"
    assert (client.name, client.base_url) == ("mine", "http://127.0.0.1:1/v1")


@pytest.mark.parametrize("client", [Client, AsyncClient])
@pytest.mark.parametrize("method", [name for name in OPTIONS_OF if name != "Client"])
def test_help_of_a_method_says_what_each_of_its_options_means(client, method):
    shown = inspect.getdoc(getattr(client, method)) or ""
    described = dict(re.findall(r"^    (\w+) \([^\n]+?\): (.+)$", shown.partition("\nOptions:\n")[2], re.MULTILINE))
    assert described.keys() - {"response_format"} == OPTIONS_OF[method].__annotations__.keys() - {"response_format"}
    assert ("response_format" in described) == (method not in ("embed", "request"))
    assert all(len(meaning) > 5 for meaning in described.values())


@pytest.mark.parametrize("method", ["chat", "run", "map", "complete"])
def test_none_for_an_option_is_the_same_as_leaving_it_out(method, client_class):
    prompt = ["hi"] if method == "map" else "hi"
    with always(HELLO) as server, make_client(server, client_class, **dict.fromkeys(CONNECTION)) as client:
        call = getattr(client, method)
        call(prompt)
        for name in OPTIONS_OF[method].__annotations__:
            call(prompt, **{name: None})
            assert server.requests[-1].json == server.requests[0].json, name


def test_options_may_be_a_typed_dict():
    given: ChatOptions = {"temperature": 0}
    assert ChatOptions(temperature=0) == given


def test_map_requests_the_list_of_models_once(client_class):
    with always(HELLO) as server, client_class(server.url) as client:
        for _ in range(2):
            assert [str(reply) for reply in client.map(["hi"] * 20)] == ["Hello"] * 20
        assert [request.method for request in server.requests].count("GET") == 1
        assert {request.json["model"] for request in server.requests[1:]} == {"first"}


def test_prompt_and_messages_are_names_of_the_prompt(client_class):
    messages = [MESSAGE]
    with always(HELLO) as server, make_client(server, client_class) as client:
        for options in ({"prompt": "hi"}, {"messages": messages}, {"prompt": messages}):
            assert client.chat(**options).text == "Hello"
            assert [event.type for event in client.stream(**options)][-1] == "message_stop"
            assert client.run(**options).text == "Hello"
        options = {"base_url": server.url, "api_key": "sk-1", "model": "m", "max_retries": 0}
        assert chat(**options, messages=messages).text == "Hello"
        assert server.requests[-1].headers["authorization"] == "Bearer sk-1"
        assert b"sk-1" not in server.requests[-1].body
        assert all(request.json["messages"] == messages for request in server.requests)


# The fields of a request of OpenAI's API, besides messages, model, stream and response_format.
FIELDS = """
    audio frequency_penalty function_call functions logit_bias logprobs max_completion_tokens max_tokens metadata
    modalities moderation n parallel_tool_calls prediction presence_penalty prompt_cache_key prompt_cache_retention
    reasoning_effort safety_identifier seed service_tier stop store stream_options temperature tool_choice tools
    top_logprobs top_p user verbosity web_search_options
"""


def test_every_field_of_openai_is_an_option(client_class):
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
    assert second["messages"] == [MESSAGE]


def test_other_options_share_the_connections():
    with always(HELLO) as server, make_client(server) as client:
        client.chat("hi")
        other = client.with_options(model="other", headers={"X-Other": "1"}, timeout=30)
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
        "/v1/rerank": with_length(b'{"results": [1]}', "201 Created", "X-Cost: 3\r\n"),
        "/health": with_length(b"ok"),
        "/empty?a=b": with_length(b"", "204 No Content"),
        "/head": b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n",
    }
    missing, headers = with_length(b'{"error": "no such thing"}', "404 Not Found"), {"X-A": "1"}
    server = serving(lambda request, number: responses.get(request.path, missing))
    with server, make_client(server, client_class) as client:
        ranked = client.request("POST", "rerank", {"query": "q"}, extra_headers=headers)
        assert (ranked.status, ranked.headers["x-cost"], ranked.json()) == (201, "3", {"results": [1]})
        assert server.requests[0].json == {"query": "q"}
        assert server.requests[0].headers["x-a"] == "1"
        assert str(client.request("GET", "/health")) == "ok"
        empty = client.request("GET", "/empty?a=b")
        assert (empty.status, empty.content, empty.text) == (204, b"", "")
        assert [client.request(method, "/head").content for method in ("HEAD", "head")] == [b"", b""]
        assert server.connections == 1
        with pytest.raises(NotFoundError, match="no such thing"):
            client.request("GET", "nowhere")


BODIES = {
    "sound": ("audio/wav", b"RIFF\xff\xfe\x00\x80", "RIFF\ufffd\ufffd\0\ufffd"),
    "a number as text": ("text/plain", b"12", "12"),
    "blanks": ("text/plain", b" a \r\n", " a \r\n"),
    "another character set": ('text/csv; header=present; charset="ISO-8859-1"', b"gr\xfc\xdf", "grüß"),
    "UTF-16": ("text/plain; charset=utf-16", "grüß".encode("utf-16"), "grüß"),
    "an unknown character set": ("text/plain; charset=klingon", "grüß".encode(), "grüß"),
    "a codec that is no character set": ("text/plain; charset=undefined", "grüß".encode(), "grüß"),
    "a character set with a null": ("text/plain; charset=a\0", "grüß".encode(), "grüß"),
    "no type": ("", "grüß".encode(), "grüß"),
}


@pytest.mark.parametrize(("content_type", "content", "shown"), BODIES.values(), ids=BODIES)
def test_body_of_any_response_is_had_as_it_is(content_type, content, shown, client_class):
    raw = with_length(content, headers=f"Content-Type: {content_type}\r\n" if content_type else "")
    with serving(lambda request, number: raw) as server, make_client(server, client_class) as client:
        response = client.request("POST", "audio/speech", {"input": "hi"})
    assert (response.status, response.content, response.text, str(response)) == (200, content, shown, shown)
    assert response.headers.get("content-type", "") == content_type
    if content == b"12":
        assert response.json() == 12
    else:
        with pytest.raises(ProtocolError, match=f"the response is not JSON .*, {len(content)} bytes"):
            response.json()


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
def test_error_at_status_200_has_the_message_of_the_server(body, client_class):
    raw = with_length(json.dumps(body).encode())
    with always(raw, raw) as server, make_client(server, client_class) as client:
        for call in (client.models, lambda: client.embed("a")):
            with pytest.raises(StreamError, match="no luck"):
                call()
