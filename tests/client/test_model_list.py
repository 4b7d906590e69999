"""The list of models, the choice of a model, and embeddings."""

from __future__ import annotations

import base64
import json
import math
import pickle
import struct
import threading
from typing import Any

import pytest

from localchat import Client, ModelNotNamed, NotFoundError, ProtocolError, Timeout
from localchat.embeddings import DEFAULT_BATCH_SIZE, parse_embeddings
from tests.support.clients import make_client
from tests.support.deadline import DEADLINE_S
from tests.support.raw_responses import HELLO, with_length
from tests.support.raw_server import Request, always, serving
from tests.support.scripted import playing

ENTRIES: dict[str, tuple[dict[str, Any], int | None]] = {
    "llama-server": ({"id": "a", "meta": {"n_ctx_train": 4096, "n_params": 5}}, 4096),
    "vllm": ({"id": "a", "max_model_len": 8192}, 8192),
    "openrouter": ({"id": "a", "context_length": 1000}, 1000),
    "no length": ({"id": "a", "owned_by": "me"}, None),
    "nonsense": ({"id": "a", "context_length": "many", "meta": 3}, None),
}


def listing(*entries: Any) -> bytes:
    return with_length(json.dumps({"data": list(entries)}).encode())


@pytest.mark.parametrize(("entry", "length"), ENTRIES.values(), ids=ENTRIES)
def test_model_is_its_name_with_the_fields_that_the_server_reports(entry, length):
    with always(HELLO, listing(entry)) as server, make_client(server) as client:
        (model,) = client.models()
    assert (model, model.context_length, model.raw) == ("a", length, entry)
    assert pickle.loads(pickle.dumps(model)).raw == entry


def test_several_models_and_none_named():
    with always(HELLO, listing({"id": "first"}, {"id": "second"})) as server, Client(server.url) as client:
        with pytest.raises(ModelNotNamed, match=r"name one \(model=\.\.\., or --model\): first, second"):
            client.chat("hi")
        assert client.chat("hi", model="second").text == "Hello"


NO_LISTS = {
    "404": with_length(b"{}", "404 Not Found"),
    "401": with_length(b"{}", "401 Unauthorized"),
    "500": with_length(b"{}", "500 Bad"),
    "page": with_length(b"<html>"),
    "no list": with_length(b"{}"),
    "error": with_length(b'{"error": "no such thing"}'),
    "cut": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\nConnection: close\r\n\r\n{",
    "empty list": listing(),
}


@pytest.mark.parametrize("models", NO_LISTS.values(), ids=NO_LISTS)
def test_server_without_a_list_of_models_needs_no_name(models, client_class):
    """Nor is a call that names no model an error because of what the server returns in place of the list."""
    with always(HELLO, models) as server, client_class(server.url, max_retries=0) as client:
        assert [client.chat("hi").text for _ in range(2)] == ["Hello", "Hello"]
        assert [reply.text for reply in client.map(["hi"])] == ["Hello"]
        assert all("model" not in request.json for request in server.requests if request.method == "POST")


@pytest.mark.parametrize("missing", ["404", "page"])
def test_missing_list_is_requested_once(missing, client_class):
    with always(HELLO, NO_LISTS[missing]) as server, client_class(server.url, max_retries=0) as client:
        assert [client.chat("hi").text for _ in range(2)] == ["Hello", "Hello"]
        assert client.with_options(timeout=30).chat("hi").text == "Hello"
        assert [request.method for request in server.requests] == ["GET", "POST", "POST", "POST"]


@pytest.mark.parametrize(("extra_body", "sent"), [({"model": "b"}, {"model": "b"}), ({"model": None}, {})])
@pytest.mark.parametrize("method", ["chat", "complete", "map", "run", "embed"])
def test_model_of_the_body_is_used_as_it_is(method, extra_body, sent, client_class):
    vectors = with_length(json.dumps({"data": [{"index": 0, "embedding": [1.0]}]}).encode())
    several = listing({"id": "a"}, {"id": "b"})
    with always(vectors if method == "embed" else HELLO, several) as server, client_class(server.url) as client:
        getattr(client, method)(["hi"] if method == "map" else "hi", extra_body=extra_body)
        (request,) = server.requests
    assert {name: value for name, value in request.json.items() if name == "model"} == sent


def test_body_without_a_model_wins_over_the_option():
    with always(HELLO, listing({"id": "a"})) as server, Client(server.url) as client:
        client.chat("hi", model="a", extra_body={"model": None})
        (request,) = server.requests
    assert "model" not in request.json


def test_only_loaded_model_of_several_is_the_one_that_is_used():
    states = [{"id": name, "status": {"value": state}} for name, state in (("a", "unloaded"), ("b", "loaded"))]
    with always(HELLO, listing(*states)) as server, Client(server.url) as client:
        assert [model.state for model in client.models()] == ["unloaded", "loaded"]
        client.chat("hi")
        assert server.requests[-1].json["model"] == "b"


def test_server_that_is_started_with_another_model_is_asked_for_its_name(client_class):
    names = ["a"]

    def respond(request: Request, number: int) -> bytes:
        if request.method == "GET":
            return listing({"id": names[0]})
        return HELLO if request.json["model"] == names[0] else with_length(b"{}", "404 Not Found")

    with serving(respond) as server, client_class(server.url) as client:
        for name in ("a", "b"):
            names[0] = name
            assert client.chat("hi").text == "Hello"


def test_server_that_lists_another_model_each_time_is_an_error(client_class):
    def respond(request: Request, number: int) -> bytes:
        return listing({"id": f"m{number}"}) if request.method == "GET" else with_length(b"{}", "404 Not Found")

    timeout = Timeout(total=DEADLINE_S)
    with serving(respond) as server, client_class(server.url, timeout=timeout) as client:
        with pytest.raises(NotFoundError):
            client.chat("hi")
        sent = [request.json["model"] for request in server.requests if request.method == "POST"]
    assert sent == ["m1", "m3"]


def test_model_that_another_call_has_replaced_is_used(client_class):
    """Several calls meet the new model at once: each was sent with the old name, and one of them finds the new one."""
    names, are_sent = ["a"], threading.Barrier(3)

    def respond(request: Request, number: int) -> bytes:
        if request.method == "GET":
            return listing({"id": names[0]})
        if request.json["model"] == names[0]:
            return HELLO
        are_sent.wait(DEADLINE_S)
        return with_length(b"{}", "404 Not Found")

    with serving(respond) as server, client_class(server.url) as client:
        assert client.chat("hi").text == "Hello"
        names[0] = "b"
        assert [reply.text for reply in client.map(["hi"] * 3, concurrency=3)] == ["Hello"] * 3


def test_embeddings_use_the_model_that_is_named_or_the_only_one(client_class, monkeypatch):
    """As chat does."""
    vectors = with_length(json.dumps({"data": [{"index": 0, "embedding": [1.0]}]}).encode())
    with always(vectors, listing({"id": "a"}, {"id": "b"})) as server, client_class(server.url) as client:
        with pytest.raises(ModelNotNamed, match="a, b"):
            client.embed("text")
        client.embed("text", model="b")
        monkeypatch.setenv("LOCALCHAT_MODEL", "nomic")
        for model in ("my-vectors", None):
            with client_class(server.url, model=model) as other:
                other.embed("text")
        used = [request.json["model"] for request in server.requests if request.method == "POST"]
    assert used == ["b", "my-vectors", "nomic"]


def test_many_texts_are_sent_in_batches_and_their_vectors_are_in_order():
    def embed(body: Any) -> Any:
        data = [{"index": i or None, "embedding": [float(text)]} for i, text in enumerate(body["input"])]
        usage = {"prompt_tokens": len(data), "total_tokens": len(data)}
        return [{"data": [data[0], *data[:0:-1]], "model": "m-1", "usage": usage}]

    texts = [str(number) for number in range(10)]
    with playing(embed) as (client, script):
        vectors = client.embed(texts, batch_size=4)
        assert vectors == [[float(text)] for text in texts]
        assert [len(request["input"]) for request in script.requests] == [4, 4, 2]
        assert (vectors.model, vectors.usage.input_tokens) == ("m-1", 10)
        assert DEFAULT_BATCH_SIZE == 256
        assert client.embed(texts[:2], batch_size=1) == [[0.0], [1.0]]
        assert [len(request["input"]) for request in script.requests[3:]] == [1, 1]
        one = client.embed("7")
        assert (one, one.model) == ([7.0], "m-1")
        assert client.embed([]) == []
        for size in (0, "2"):
            with pytest.raises(ValueError, match=f"at least 1, not {size!r}"):
                client.embed(texts, batch_size=size)
        for wrong in (b"x", {"a": 1}, ["a", None], 3):
            with pytest.raises(TypeError, match="text"):
                client.embed(wrong)


def body_of(*vectors: Any, indexes: Any = None) -> dict[str, Any]:
    indexes = range(len(vectors)) if indexes is None else indexes
    return {"data": [{"index": index, "embedding": vector} for index, vector in zip(indexes, vectors)]}


PACKED = base64.b64encode(struct.pack("<2f", 0.5, -1)).decode()

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "duplicate index": (body_of([1.0], [2.0], indexes=[0, 0]), "indexes 0 to 1, each once"),
    "index beyond": (body_of([1.0], [2.0], indexes=[0, 2]), "indexes 0 to 1, each once"),
    "too few": (body_of([1.0]), "1 embeddings for 2 texts"),
    "strings": (body_of(["1", "2"], ["1", "2"]), "list of numbers"),
    "text": (body_of(PACKED, PACKED), 'no list of numbers: "'),
    "empty": (body_of([], []), "list of numbers"),
    "booleans": (body_of([True], [False]), "list of numbers"),
    "NaN": (body_of([1.0], [math.nan]), "NaN or infinity"),
    "infinity": (body_of([1.0], [-math.inf]), "NaN or infinity"),
}


@pytest.mark.parametrize(("body", "words"), WRONG.values(), ids=WRONG)
def test_embeddings_that_are_not_valid_are_refused(body, words):
    with pytest.raises(ProtocolError, match=words):
        parse_embeddings(body, 2)


def test_large_numbers_are_finite_also_if_their_sum_is_not():
    assert parse_embeddings(body_of([1e308, 1e308]), 1) == [[1e308, 1e308]]


def test_vectors_are_decoded_from_base64_if_requested():
    with playing([body_of(PACKED)]) as (client, script):
        assert client.embed("a", encoding_format="base64") == [0.5, -1.0]
        assert script.requests[0]["encoding_format"] == "base64"
    for wrong, words in (("AAA=", "base64 of 32-bit floats"), ("", "list of numbers"), ("AADAfw==", "NaN")):
        with pytest.raises(ProtocolError, match=words):
            parse_embeddings(body_of(wrong), 1, base64=True)
