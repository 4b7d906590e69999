"""Client.map, and the log records of calls."""

import dataclasses
import logging
import threading
import time
from pathlib import Path

import pytest

from localchat import Client, LocalChatError, StatusError
from tests.support.clients import make_client
from tests.support.deadline import DEADLINE_S
from tests.support.raw_responses import DONE, HELLO, OPEN, chunked, piece, with_length
from tests.support.raw_server import Request, always, serving
from tests.support.scripted import Json, playing, refusal, text

PROMPTS = [f"{number}" for number in range(20)]


def echo(body: Json) -> list[Json]:
    prompt = body["messages"][-1]["content"]
    return refusal("I do not like 7") if prompt == "7" else text(f"<{prompt}>")


def test_results_are_in_the_order_of_the_prompts_with_errors_as_values(client_class):
    progress: list[tuple[int, int]] = []
    with playing(echo, client_class=client_class) as (client, script):
        results = client.map(iter(PROMPTS), concurrency=4, on_progress=lambda *n: progress.append(n), temperature=0)
    assert isinstance(results[7].error, StatusError)
    for read in (str, lambda reply: reply.finish_reason, lambda reply: reply.message):
        with pytest.raises(StatusError, match="I do not like 7"):
            read(results[7])
    assert dataclasses.asdict(results[7])["choices"] == ()
    assert [str(result) for result in results if result.error is None] == [f"<{n}>" for n in PROMPTS if n != "7"]
    assert progress == [(n, 20) for n in range(1, 21)]
    assert all(request["temperature"] == 0 for request in script.requests)


def test_failed_request_has_its_partial_reply(client_class):
    raws = [chunked(piece("a", "stop"), DONE), chunked(piece("b")), with_length(b"{}", "400 Bad")]
    server = serving(lambda request, number: raws[int(request.json["messages"][-1]["content"])])
    with server, make_client(server, client_class) as client:
        replies = client.map(["0", "1", "2"])
    assert [[choice.text for choice in reply.choices] for reply in replies] == [["a"], ["b"], []]
    assert [type(reply.error).__name__ for reply in replies] == ["NoneType", "IncompleteStream", "BadRequestError"]
    assert replies[2].as_dict()["error"].startswith("BadRequestError: 400 from ")


def test_generator_of_images_reaches_every_prompt(client_class):
    with playing(text("x"), client_class=client_class) as (client, script):
        client.map(["a", "b"], images=(data for data in [b"GIF89a"]))
    assert [len(request["messages"][0]["content"]) for request in script.requests] == [2, 2]


def test_what_fails_for_one_prompt_is_the_error_of_its_reply(client_class):
    """Of a value that is no JSON, of a missing file, and of a function of the program that raises."""

    def raise_at_retry(number: int, delay: float, error: Exception) -> None:
        raise RuntimeError("no luck")

    def respond(request: Request, number: int) -> bytes:
        return with_length(b"{}", "503 Busy") if b"busy" in request.body else HELLO

    contents = ["a", float("nan"), b"bytes", {"a", "set"}, "busy", "b"]
    prompts = [[{"role": "user", "content": content}] for content in contents]
    options = {"max_retries": 1, "on_retry": raise_at_retry}
    with serving(respond) as server, make_client(server, client_class, **options) as client:
        replies = client.map(prompts)
        (missing,) = client.map(["a"], images=[Path("missing.png")])
    assert [reply.error is None for reply in replies] == [True, False, False, False, False, True]
    assert [str(reply) for reply in (replies[0], replies[-1])] == ["Hello", "Hello"]
    for reply, words in zip((*replies[1:5], missing), ("not JSON", "not JSON", "not JSON", "no luck", "missing.png")):
        assert isinstance(reply.error, LocalChatError)
        with pytest.raises(LocalChatError, match=words):
            str(reply)


def test_concurrency_is_used_and_bounded(client_class):
    """The server responds when three requests are in flight. With fewer, the barrier breaks after its timeout."""
    gate, n_left, most = threading.Barrier(3), threading.Semaphore(3), []

    def respond(request: Request, number: int) -> bytes:
        most.append(n_left.acquire(blocking=False))
        gate.wait(DEADLINE_S)
        n_left.release()
        return HELLO

    with serving(respond) as server, make_client(server, client_class) as client:
        results = client.map(PROMPTS[:9], concurrency=3)
    assert [str(result) for result in results] == ["Hello"] * 9
    assert most == [True] * 9


def test_error_of_the_callback_cancels_requests_in_flight():
    waiting = threading.Event()

    def respond(request: Request, number: int) -> bytes:
        if b"slow" in request.body:
            waiting.set()
            return OPEN
        assert waiting.wait(DEADLINE_S)
        return HELLO

    def stop(*progress: int) -> None:
        raise KeyboardInterrupt

    start = time.monotonic()
    with serving(respond) as server, make_client(server) as client, pytest.raises(KeyboardInterrupt):
        client.map(["slow", "fast"], on_progress=stop)
    assert time.monotonic() - start < DEADLINE_S / 2


def test_log_reports_requests_and_retries_without_key_and_prompt(caplog, monkeypatch):
    monkeypatch.setattr("localchat.transport.failures._FIRST_DELAY_S", 0.001)
    caplog.set_level(logging.DEBUG, "localchat.client")
    busy = always(with_length(b"", "503 Busy"))
    with busy as server, Client(server.url + "?key=secret-1", "secret-2", "m", max_retries=1) as client:
        assert isinstance(client.map(["my prompt"])[0].error, StatusError)
    assert [record.getMessage()[-5:] for record in caplog.records] == ["try 1", "s 503", "try 2", "s 503"]
    assert not any(word in caplog.text for word in ("secret", "my prompt"))
