"""Options of clients and calls: their names, the errors for unknown ones, and prompts that are not valid."""

from __future__ import annotations

import json
from typing import Any

import pytest

from localchat import Client, NotFoundError, Timeout

from .clients import client_class, make_client
from .raw_server import HELLO, Peer, Server, always, with_length

__all__ = ["client_class"]  # A fixture: used by name.

UNKNOWN: dict[str, tuple[dict[str, Any], str]] = {
    "misspelt": ({"temprature": 0}, r"chat has no option 'temprature': is temperature meant\?; extra_body"),
    "unlike any": ({"zzz": 0}, r"chat has no option 'zzz'; extra_body=\{\.\.\.\} sends any field"),
    "of the client": ({"api_key": "sk-1"}, r"belongs to the client, Client\(api_key=\.\.\.\)"),
    "server": ({"base_url": "http://x"}, r"belongs to the client, Client\(base_url"),
    "headers": ({"headers": {}}, "extra_headers"),
    "stream": ({"stream": True}, "chat, complete and run return a Reply"),
}


@pytest.mark.parametrize(("options", "words"), UNKNOWN.values(), ids=UNKNOWN)
def test_unknown_option_is_refused_and_nothing_is_sent(options, words, client_class):
    refused = pytest.raises(TypeError, match=words)
    with always(HELLO) as server, make_client(server, client_class) as client, refused:
        client.chat("hi", **options)
    assert server.requests == []


def test_unknown_option_of_other_methods_and_clients():
    client: Any = Client("http://127.0.0.1:1")
    with pytest.raises(TypeError, match=r"Client has no option 'time_out': is timeout meant\?"):
        Client(time_out=5)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"with_options has no option 'modle': is model meant\?"):
        client.with_options(modle="m")
    with pytest.raises(TypeError, match=r"run has no option 'max_round': is max_rounds meant\?"):
        client.run("hi", max_round=3)
    with pytest.raises(TypeError, match=r"embed has no option 'temperature'"):
        client.embed("hi", temperature=1)
    with pytest.raises(TypeError, match="complete has no option 'system': put it into the prompt"):
        client.complete("hi", system="Be brief.")
    with pytest.raises(TypeError, match=r"complete has no option 'tools'"):
        client.complete("hi", tools=[])
    for option, words in {
        "model": "go into `json`",
        "temperature": "go into `json`",
        "api_key": "belongs to the",
    }.items():
        with pytest.raises(TypeError, match=f"request has no option '{option}'.*{words}"):
            client.request("POST", "rerank", {}, **{option: "m"})
    for method in (client.stream, client.run, client.complete):
        with pytest.raises(TypeError, match="'retries_on_mismatch': only chat and map have it"):
            method("hi", retries_on_mismatch=1)


PROMPTS: dict[str, tuple[Any, str]] = {
    "dict": ({"role": "user", "content": "hi"}, r"goes into a list: \[message\]"),
    "bytes": (b"hi", "not bytes: decode it"),
    "texts": (["a", "b"], "not a list of texts: client.map"),
    "number": (3, "text or a list of messages, not int"),
    "list of lists": ([["a"]], "message 0 of the prompt must be a dict with role and content, not list"),
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


def test_number_as_timeout_and_its_limits():
    assert Timeout.of(60) == Timeout(connect=5, first=60, idle=60)
    assert Timeout.of(1) == Timeout(connect=1, first=1, idle=1)
    for wrong in (0, -1, float("nan")):
        with pytest.raises(ValueError, match="above 0"):
            Timeout.of(wrong)


def test_other_options_share_the_connections():
    with always(HELLO) as server, make_client(server) as client:
        client.chat("hi")
        other = client.with_options(model="other", headers={"X-Other": "1"}, timeout=3)
        assert other.chat("hi").text == "Hello"
        assert client.chat("hi").text == "Hello"
        assert server.connections == 1
        bodies = [json.loads(request.body) for request in server.requests]
        assert [body["model"] for body in bodies] == ["m", "other", "m"]
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

    def handle(peer: Peer, server: Server) -> None:
        while (request := peer.request()) is not None:
            server.requests.append(request)
            peer.send(responses.get(request.path, with_length(b'{"error": "no such thing"}', "404 Not Found")))

    with Server(handle) as server, make_client(server, client_class) as client:
        headers = {"X-A": "1"}
        assert client.request("POST", "rerank", {"query": "q"}, extra_headers=headers) == {"results": [1]}
        assert json.loads(server.requests[0].body) == {"query": "q"}
        assert server.requests[0].headers["x-a"] == "1"
        assert client.request("GET", "/health") == "ok"
        assert client.request("GET", "/empty?a=b") is None
        with pytest.raises(NotFoundError, match="no such thing"):
            client.request("GET", "nowhere")
        with pytest.raises(ValueError, match="not a valid HTTP method"):
            client.request("GET /x", "y")
