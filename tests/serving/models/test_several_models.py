"""Several models of one server: loaded at their first request, swapped, unloaded, and failing, over real HTTP.

Models are files of a folder; their engines are fakes that repeat the prompt.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from localchat.serving.api.ollama import read_keep_alive
from localchat.serving.chat.model import Model
from localchat.serving.core.errors import BadRequest
from localchat.serving.core.fields import Fields
from localchat.serving.engine.engine import Engine
from localchat.serving.engine.values import EngineError
from localchat.serving.http.metrics import Metrics
from localchat.serving.http.model_pages import state_of
from localchat.serving.loading.options import Options
from localchat.serving.loading.service import ServedModel, Service
from localchat.serving.models.catalog import Catalog
from localchat.serving.models.memory import NotEnoughMemory, OtherModels
from localchat.serving.models.model_file import DEMO_PATH, ModelFile
from tests.support.engines import started
from tests.support.exchanges import ask, events_of
from tests.support.fakes import FakeBackend
from tests.support.serving import LAST_MESSAGE, served, wait_for

HI = [{"role": "user", "content": "hello"}]
NAMES = ("one", "two", "three")


class Loads:
    """Loads fake models of 1 GB, and records what was loaded. `gate` is acquired before each load."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.engines: dict[str, Engine] = {}
        self.most_at_once = 0
        # How many models fit into memory, the bytes missing for one more, and whether a smaller context would do.
        self.memory, self.n_missing, self.can_shrink = math.inf, 10**9, False
        self.error: Exception | None = None
        self.gate = threading.Semaphore(1_000_000)

    def __call__(self, served: ServedModel, others: OtherModels) -> Model:
        name = served.file.name
        self.names.append(name)
        assert self.gate.acquire(timeout=30), "the test never opened the gate"
        if self.error is not None:
            raise self.error
        if self.n_open + 1 > self.memory and (others.n_idle or not self.can_shrink):
            raise NotEnoughMemory("the weights take too much", 0 if self.can_shrink else self.n_missing)
        backend = FakeBackend(chat_template=LAST_MESSAGE)
        backend.facts = replace(backend.facts, n_bytes=10**9)
        engine = self.engines[name] = started(backend)
        self.most_at_once = max(self.most_at_once, self.n_open)
        return Model(name, engine)

    @property
    def n_open(self) -> int:
        return sum(not engine.backend.is_closed for engine in self.engines.values())


class Running:
    """A server of three models in a folder. The built-in model, which is loaded at first, is the default."""

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.monotonic, **options: Any) -> None:
        for name in NAMES:
            (folder / f"{name}.gguf").write_bytes(DEMO_PATH.read_bytes()[:70_000])
        self.folder, self.loads = folder, Loads()
        self.catalog = Catalog([folder], environment={"HOME": str(folder)})
        self.options = Options(port=0, **options)
        demo = ModelFile(DEMO_PATH, "demo")
        self.service = Service(demo, self.options, catalog=self.catalog, load=self.loads, clock=clock)
        self.port = 0
        self.endpoints: Any = None

    def chat(self, model: str, **fields: Any) -> tuple[int, Any]:
        return ask(self.port, "/v1/chat/completions", {"model": model, "messages": HI, **fields})

    def wait_until_idle(self, model: str) -> None:
        """Wait until no request uses a model: it does a moment longer than the client waits for the response."""
        wait_for(lambda: not self.service.find(model).n_users)

    def post(self, path: str, **body: Any) -> tuple[int, Any]:
        return ask(self.port, path, body)

    def state(self, model: str) -> str:
        return state_of(self.service.find(model))


@contextlib.contextmanager
def running(folder: Path, **options: Any) -> Iterator[Running]:
    found = Running(folder, **options)
    with served(found.service, found.options) as (server, _):
        found.port, found.endpoints = server.server_port, server.endpoints
        try:
            yield found
        finally:
            found.loads.gate.release(1000)
    assert found.loads.n_open == 0


def together(calls: list[Any]) -> list[Any]:
    """The results of functions that run at the same time."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result(60) for future in [pool.submit(call) for call in calls]]


def test_first_requests_at_once_load_a_model_once(tmp_path):
    with running(tmp_path) as server:
        found = together([lambda: server.chat("one"), lambda: server.chat("ONE"), lambda: server.chat("one.gguf")])
        assert [status for status, _ in found] == [200] * 3
        assert server.loads.names == ["one"]
        assert {body["model"] for _, body in found} == {"one"}


@pytest.mark.parametrize("stream", [False, True])
def test_request_waits_while_its_model_loads_and_the_others_answer(tmp_path, stream):
    with running(tmp_path) as server, ThreadPoolExecutor() as threads:
        assert server.chat("two")[0] == 200
        server.loads.gate = threading.Semaphore(0)
        waiting = threads.submit(server.chat, "one", stream=stream)
        wait_for(lambda: server.state("one") == "loading")
        for _ in range(3):
            assert server.chat("two")[0] == 200
        states = {model["id"]: model["status"]["value"] for model in ask(server.port, "/v1/models")[1]["data"]}
        assert states == {"demo": "unloaded", "one": "loading", "two": "loaded", "three": "unloaded"}
        server.loads.gate.release()
        status, found = waiting.result(30)
        assert status == 200
        if stream:
            text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in found[:-1])
            assert (text, found[-1]) == ("hello", "[DONE]")
        else:
            assert found["choices"][0]["message"]["content"] == "hello"


def requested(server: Running, **fields: Any) -> http.client.HTTPConnection:
    """A connection on which a request for the model `one` was sent."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request("POST", "/v1/chat/completions", json.dumps({"model": "one", "messages": HI, **fields}))
    return connection


def test_stream_that_waits_for_its_model_gets_comments(tmp_path):
    with running(tmp_path, ping_s=0.02) as server:
        server.loads.gate = threading.Semaphore(0)
        with contextlib.closing(requested(server, stream=True)) as connection:
            response = connection.getresponse()  # before the model is loaded
            assert response.status == 200
            assert [response.readline() for _ in range(4)] == [b": \n", b"\n"] * 2
            server.loads.gate.release()
            text = response.read().decode()
        events = events_of(text.replace(": \n\n", ""))
        assert "".join(event["choices"][0]["delta"].get("content") or "" for event in events[:-1]) == "hello"
        assert events[-1] == "[DONE]"


def test_stream_whose_model_fails_to_load_ends_with_the_reason(tmp_path):
    with running(tmp_path, ping_s=0.02) as server:
        server.loads.gate, server.loads.error = threading.Semaphore(0), EngineError("broken")
        with contextlib.closing(requested(server, stream=True)) as connection:
            response = connection.getresponse()
            response.readline()
            server.loads.gate.release()
            text = response.read().decode()
        assert 'data: {"error":{"message":"the model \'one\' cannot be loaded: broken' in text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_request_to_unload_moves_no_model(tmp_path, path, stream):
    with running(tmp_path, max_models=1) as server:
        assert server.chat("one")[0] == 200
        status, found = server.post(path, model="two", keep_alive=0, stream=stream)
        last = found[-1] if stream else found
        assert (status, last["done"], last["done_reason"], last["model"]) == (200, True, "unload", "two")
        assert (server.loads.names, server.state("one")) == (["one"], "loaded")
        assert server.post(path, model="one", keep_alive=0, stream=stream)[0] == 200
        wait_for(lambda: server.state("one") == "unloaded")
        assert server.loads.names == ["one"]


def test_client_that_leaves_while_its_model_loads_is_not_waited_for(tmp_path):
    with running(tmp_path) as server:
        server.loads.gate = threading.Semaphore(0)
        connection = requested(server)
        wait_for(lambda: server.state("one") == "loading")
        connection.close()
        wait_for(lambda: not server.endpoints.n_in_flight)
        server.loads.gate.release()
        wait_for(lambda: server.state("one") == "loaded")


def test_without_waiting_a_request_gets_503_while_its_model_loads(tmp_path):
    with running(tmp_path, waits=False) as server:
        status, body = server.chat("one")
        assert (status, body["error"]["code"]) == (503, "model_loading")
        wait_for(lambda: server.state("one") == "loaded")
        assert server.chat("one")[0] == 200


@pytest.mark.parametrize("max_models", [1, 2])
def test_mixed_requests_to_more_models_than_may_be_loaded_are_all_served(tmp_path, max_models):
    random_ = random.Random(5)
    names = [random_.choice(NAMES) for _ in range(60)]
    with running(tmp_path, max_models=max_models) as server:
        asked = [[{"role": "user", "content": f"{i}."}] for i in range(60)]
        found = together([partial(server.chat, name, messages=messages) for name, messages in zip(names, asked)])
        texts = [body["choices"][0]["message"]["content"] for _, body in found]
        assert texts == [messages[0]["content"] for messages in asked]
        assert server.loads.most_at_once == max_models


def test_least_recently_used_model_is_ended_for_another(tmp_path):
    with running(tmp_path, max_models=2) as server:
        for name in ("one", "two", "one", "three"):
            assert server.chat(name)[0] == 200
        assert [server.state(name) for name in NAMES] == ["loaded", "unloaded", "loaded"]
        (tmp_path / "two.gguf").write_text("damaged")
        assert (server.chat("two")[0], server.state("one"), server.state("three")) == (500, "loaded", "loaded")


def test_model_is_ended_if_another_one_needs_its_memory(tmp_path):
    with running(tmp_path) as server:
        server.loads.memory = 1
        assert [server.chat(name)[0] for name in ("one", "two", "one")] == [200] * 3
        assert server.loads.names == ["one", "two", "two", "one", "one"]
        server.loads.n_missing = 10**12
        status, body = server.chat("three")
        assert (status, server.state("one")) == (500, "loaded")  # to end it would not help
        assert "the weights take too much" in body["error"]["message"]
        server.loads.memory, server.loads.n_missing = 0, 10**9
        assert (server.chat("two")[0], server.state("one")) == (500, "unloaded")


def test_model_at_work_is_ended_after_its_request_if_another_one_needs_its_memory(tmp_path):
    with running(tmp_path) as server, ThreadPoolExecutor() as threads:
        assert server.chat("two")[0] == 200
        server.loads.memory = 1
        model = server.service.find("two")
        with server.service.using(model) as loaded:
            waiting = threads.submit(server.chat, "one")
            wait_for(lambda: model.is_ending)
            assert model.model is loaded
        assert waiting.result(30)[0] == 200
        assert server.state("two") == "unloaded"


def test_idle_model_is_ended_for_a_larger_context_and_one_at_work_is_not(tmp_path):
    with running(tmp_path) as server:
        assert server.chat("one")[0] == 200
        server.wait_until_idle("one")
        server.loads.memory, server.loads.can_shrink = 1, True
        assert (server.chat("two")[0], server.state("one")) == (200, "unloaded")
        with server.service.using(server.service.find("two")):
            assert (server.chat("one")[0], server.state("two")) == (200, "loaded")
        assert server.chat("three")[0] == 200
        assert [server.state(name) for name in NAMES] == ["unloaded", "unloaded", "loaded"]


def test_failed_load_is_told_and_tried_again_when_the_file_changes(tmp_path):
    with running(tmp_path) as server:
        server.loads.error = EngineError("it is broken")
        for _ in range(2):
            status, body = server.chat("one")
            assert (status, body["error"]["type"]) == (500, "inference_error")
            assert body["error"]["message"] == "the model 'one' cannot be loaded: it is broken"
        assert server.loads.names == ["one"]
        assert server.chat("two")[0] == 500  # another one is tried
        entry = ask(server.port, "/v1/models/one")[1]
        assert entry["status"] == {"value": "failed", "error": "it is broken"}
        server.loads.error = None
        os.utime(tmp_path / "one.gguf", (1, 1))
        assert server.chat("one")[0] == 200


def test_idle_model_is_unloaded(tmp_path):
    with running(tmp_path, idle_unload=0.05) as server:
        assert server.post("/models/load", model="two")[0] == 200  # no request follows
        wait_for(lambda: "two" in server.loads.engines and server.state("two") == "unloaded")
        assert server.chat("one")[0] == 200
        wait_for(lambda: server.state("one") == "unloaded" and server.loads.n_open == 0)
        assert server.chat("one")[0] == 200
        assert ask(server.port, "/health")[0] == 503  # the default model has never been loaded


@pytest.mark.parametrize(
    ("keep_alive", "states"), [(0, ["unloaded"]), ("0s", ["unloaded"]), (-1, ["loaded"]), ("9999999h", ["loaded"])]
)
def test_keep_alive_of_a_request_decides_when_its_model_is_unloaded(tmp_path, keep_alive, states):
    with running(tmp_path, idle_unload=3600) as server:
        status, body = server.post("/api/chat", model="one", messages=HI, stream=False, keep_alive=keep_alive)
        assert (status, body["message"]["content"]) == (200, "hello")
        wait_for(lambda: [server.state("one")] == states)
        listed = ask(server.port, "/api/ps")[1]["models"]
        assert [model["name"] for model in listed] == (["one"] if states == ["loaded"] else [])
        assert server.chat("two")[0] == 200


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None), (0, 0), (1.5, 1.5), (-1, math.inf), ("-1", math.inf), ("-5m", math.inf), ("0", 0), ("5m", 300),
        ("1h30m", 5400), ("300ms", 0.3), ("1.5h", 5400), ("soon", BadRequest), ("", BadRequest), (True, BadRequest),
    ],
)  # fmt: skip
def test_keep_alive_is_a_number_of_seconds_or_a_duration(value, seconds):
    body = Fields({"keep_alive": value})
    if seconds is BadRequest:
        with pytest.raises(BadRequest):
            read_keep_alive(body)
    else:
        assert read_keep_alive(body) == (seconds if seconds is None else pytest.approx(seconds))


def test_models_are_loaded_and_unloaded_by_request(tmp_path):
    with running(tmp_path) as server:
        facts = {(one["digest"], one["modified_at"]) for one in ask(server.port, "/api/tags")[1]["models"]}
        assert server.post("/models/load", model="two") == (200, {"success": True})
        wait_for(lambda: server.state("two") == "loaded")
        assert {(one["digest"], one["modified_at"]) for one in ask(server.port, "/api/tags")[1]["models"]} == facts
        assert server.post("/models/unload", model="two") == (200, {"success": True})
        wait_for(lambda: server.state("two") == "unloaded")
        assert server.post("/models/load", model="four")[0] == 404
        assert server.post("/api/generate", model="one", keep_alive="1m", stream=False)[1]["done_reason"] == "load"
        assert server.state("one") == "loaded"
        assert server.post("/api/generate", model="one", keep_alive=0, stream=False)[1]["done_reason"] == "unload"
        wait_for(lambda: server.state("one") == "unloaded")
        server.loads.gate = threading.Semaphore(0)
        for path in ("load", "unload"):  # An unload during the load is not lost.
            assert server.post(f"/models/{path}", model="three")[0] == 200
        server.loads.gate.release()
        wait_for(lambda: "three" in server.loads.engines and server.state("three") == "unloaded")


def test_settings_slots_and_metrics_are_those_of_the_model_that_is_named(tmp_path):
    with running(tmp_path) as server:
        for name in ("one", "two"):
            assert server.chat(name)[0] == 200
        assert [ask(server.port, f"/props?model={name}")[1]["model_alias"] for name in NAMES[:2]] == ["one", "two"]
        assert ask(server.port, "/slots?model=one")[0] == 200
        assert [ask(server.port, f"/{path}?model=none")[0] for path in ("props", "slots")] == [404, 404]
        status, body = ask(server.port, "/slots?model=three")
        assert (status, body["error"]["message"]) == (503, "the model 'three' is not loaded")
        assert server.state("three") == "unloaded"
        with server.service.using(server.service.find("one")) as model:
            n_slots = model.engine.facts.n_parallel
        lines = ask(server.port, "/metrics")[1].splitlines()
        assert [line for line in lines if line.startswith("localchat_slots")] == [
            f'localchat_slots{{model="{name}"}} {n_slots}' for name in NAMES[:2]
        ]
        assert 'localchat_time_to_first_token_seconds_bucket{model="two",le="+Inf"} 1' in lines
        assert 'localchat_time_to_first_token_seconds_count{model="two"} 1' in lines


def test_names_of_one_file_with_other_settings_are_models_of_their_own(tmp_path):
    settings = {name: {"path": "one.gguf", "ctx": n_ctx} for name, n_ctx in (("short", 512), ("long", 1024))}
    (tmp_path / "models.json").write_text(json.dumps(settings))
    with running(tmp_path) as server:
        assert [server.chat(name)[1]["model"] for name in ("short", "long")] == ["short", "long"]
        assert server.loads.names == ["short", "long"]


def test_lists_have_all_models_and_new_files(tmp_path):
    with running(tmp_path) as server:
        port = server.port
        (tmp_path / "four.gguf").write_bytes(DEMO_PATH.read_bytes()[:70_000])
        names = ["demo", "four", "one", "three", "two"]
        assert sorted(model["id"] for model in ask(port, "/v1/models")[1]["data"]) == names
        assert sorted(model["name"] for model in ask(port, "/api/tags")[1]["models"]) == names
        four = ask(port, "/v1/models/four")[1]
        assert (four["status"], four["meta"]["n_ctx_train"]) == ({"value": "unloaded"}, 4096)
        assert server.post("/api/show", model="demo")[1]["capabilities"] == ["completion", "tools", "thinking"]
        (tmp_path / "models.json").write_text("{bad")
        assert "demo" in {model["id"] for model in ask(port, "/v1/models")[1]["data"]}
        (tmp_path / "models.json").unlink()
        status, body = server.chat("thre")
        assert (status, "did you mean 'three'" in body["error"]["message"]) == (404, True)


@pytest.mark.parametrize(("n_ctx", "expected"), [(0, {"one": 4096, "own": 512}), (1024, {"one": 1024, "own": 1024})])
def test_model_that_is_not_loaded_is_shown_with_what_it_is_loaded_with(tmp_path, n_ctx, expected):
    (tmp_path / "own.jinja").write_text("{{ tools }}")
    (tmp_path / "models.json").write_text('{"own": {"path": "two.gguf", "ctx": 512, "template": "own.jinja"}}')
    with running(tmp_path, n_ctx=n_ctx) as server:
        for name, size in expected.items():
            shown = server.post("/api/show", model=name)[1]
            assert shown["model_info"]["llama.context_length"] == size
            assert (shown["template"] == "{{ tools }}") == (name == "own")
            entry = ask(server.port, f"/v1/models/{name}")[1]
            chosen = None if size == 4096 else size
            assert (entry.get("max_model_len"), entry["meta"].get("n_ctx")) == (chosen, chosen)
            assert entry["meta"]["n_ctx_train"] == 4096
            assert server.state(name) == "unloaded"


def test_odd_files_spoil_no_list(tmp_path):
    with running(tmp_path) as server:
        os.mkfifo(tmp_path / "pipe.gguf")
        (tmp_path / "m\udcfcller\n.gguf").write_bytes(b"GGUF")
        (tmp_path / "models.json").write_text('{"pipe": "pipe.gguf", "folder": ".", "a\\ud800": "one.gguf"}')
        os.utime(tmp_path / "two.gguf", (1 << 33, 1 << 33))
        names = {model["id"] for model in ask(server.port, "/v1/models")[1]["data"]}
        assert {"pipe", "folder", "m?ller?", "a?", "two", "demo"} <= names
        assert {model["name"] for model in ask(server.port, "/api/tags")[1]["models"]} == names
        for name in names:
            assert server.post("/api/show", model=name)[0] == 200


def test_server_that_closes_while_a_model_loads_ends_the_request(tmp_path):
    with running(tmp_path) as server, ThreadPoolExecutor() as threads:
        server.loads.gate = threading.Semaphore(0)
        waiting = threads.submit(server.chat, "one")
        wait_for(lambda: server.state("one") == "loading")
        server.service.stop()
        closing = threads.submit(server.service.close)
        server.loads.gate.release()
        closing.result(30)
        assert waiting.result(30)[0] == 503


def test_model_in_use_is_unloaded_after_the_request(tmp_path):
    with running(tmp_path) as server:
        model = server.service.find("one")
        with server.service.using(model):
            server.service.unload(model)
            assert [one["name"] for one in ask(server.port, "/api/ps")[1]["models"]] == ["one"]
        wait_for(lambda: state_of(model) == "unloaded" and server.loads.n_open == 0)


def test_loaded_model_is_served_and_unloaded_after_its_file_is_gone(tmp_path):
    with running(tmp_path) as server:
        assert server.chat("one")[0] == 200
        (tmp_path / "one.gguf").unlink()
        assert server.chat("one")[0] == 200
        assert [one["name"] for one in ask(server.port, "/api/ps")[1]["models"]] == ["one"]
        assert server.post("/models/unload", model="one")[0] == 200
        wait_for(lambda: server.loads.n_open == 0)
        assert server.chat("one")[0] == 404


def test_name_that_means_another_file_is_loaded_from_that_file(tmp_path):
    mapping = tmp_path / "models.json"
    with running(tmp_path) as server:
        for i, path in enumerate(("one.gguf", "two.gguf")):
            mapping.write_text(json.dumps({"mine": path}))
            os.utime(mapping, (i + 1, i + 1))
            assert server.chat("mine")[0] == 200
            wait_for(lambda: server.loads.n_open == 1)
        names = [one["id"] for one in ask(server.port, "/v1/models")[1]["data"]]
        assert (server.loads.names, names.count("mine")) == (["mine", "mine"], 1)


def test_server_that_closes_while_a_load_waits_for_a_model_in_use_ends_its_thread(tmp_path):
    with running(tmp_path, max_models=1) as server, ThreadPoolExecutor() as threads:
        model = server.service.find("one")
        with server.service.using(model):
            waiting = threads.submit(server.chat, "two")
            wait_for(lambda: model.is_ending)
            server.service.stop()
            assert waiting.result(30)[0] == 503
            thread = server.service._thread
            assert thread is not None
            thread.join(30)
            assert not thread.is_alive()


# --- requests that are gone, busy models, errors of the thread ---


@pytest.mark.parametrize("leaves_in", ["the queue", "the wait for a busy model"])
def test_nothing_is_swapped_for_a_request_that_is_gone(tmp_path, leaves_in):
    with running(tmp_path, max_models=1) as server:
        assert server.chat("two")[0] == 200
        two = server.service.find("two")
        if leaves_in == "the queue":
            server.loads.gate = threading.Semaphore(0)
            assert server.post("/models/load", model="three")[0] == 200
            wait_for(lambda: "three" in server.loads.names)
        with contextlib.ExitStack() as using:
            if leaves_in != "the queue":
                using.enter_context(server.service.using(two))
            connection = requested(server)
            wait_for(lambda: server.state("one") == "loading")
            connection.close()
            wait_for(lambda: not server.endpoints.n_in_flight)
            server.loads.gate.release(1000)
            wait_for(lambda: server.state("one") == "unloaded" and not two.is_ending)
        assert "one" not in server.loads.names
        assert leaves_in == "the queue" or (server.chat("two")[0], server.loads.names) == (200, ["two"])


def test_first_model_that_becomes_idle_is_ended_and_no_request_for_the_other_waits(tmp_path):
    now = [100.0]
    with running(tmp_path, max_models=2, clock=lambda: now[0]) as server, ThreadPoolExecutor() as threads:
        one, two = (server.service.find(name) for name in ("one", "two"))
        with server.service.using(one) as long, contextlib.ExitStack() as short:
            now[0] += 1
            short.enter_context(server.service.using(two))
            waiting = threads.submit(server.chat, "three")
            wait_for(lambda: server.state("three") == "loading" and not server.service._to_load)
            assert [server.chat(name)[0] for name in ("one", "two")] == [200, 200]
            short.close()
            assert waiting.result(30)[0] == 200
            assert (one.model, one.is_ending, server.state("two")) == (long, False, "unloaded")
            with server.service.using(server.service.find("three")):
                waiting = threads.submit(server.chat, "two")
                wait_for(lambda: server.state("two") == "loading" and not server.service._to_load)
                now[0] += 60
                wait_for(lambda: one.is_ending or server.service.find("three").is_ending)  # so that it gets its turn
            assert waiting.result(30)[0] == 200


def test_model_stays_until_the_requests_that_waited_for_it_have_begun(tmp_path):
    """Waiting models would otherwise displace each other."""
    with running(tmp_path, max_models=1) as server, ThreadPoolExecutor() as threads:
        server.loads.gate = threading.Semaphore(0)
        one, may_begin = server.service.find("one"), threading.Event()

        def use() -> bool:
            with server.service.using(one, while_waiting=lambda: may_begin.wait(30) and None):
                return "two" in server.loads.names

        first = threads.submit(use)
        wait_for(lambda: "one" in server.loads.names)
        second = threads.submit(server.chat, "two")
        server.loads.gate.release(1000)
        wait_for(lambda: one.model is not None)
        threading.Event().wait(0.1)  # in which another model could take its place
        may_begin.set()
        assert (first.result(30), second.result(30)[0]) == (False, 200)


class Panic(BaseException):
    """As of a library in Rust."""


@pytest.mark.parametrize(
    ("error", "status"), [(Panic("it broke"), 500), (RuntimeError("can't start new thread"), 503), (MemoryError(), 503)]
)
def test_any_error_of_the_loading_thread_is_that_of_the_request(tmp_path, monkeypatch, error, status):
    with running(tmp_path) as server:
        with monkeypatch.context() as patched:
            patched.setattr("localchat.serving.loading.service.summary_of", mock.Mock(side_effect=error))
            found, body = server.chat("one")
            assert (found, body["error"]["message"].startswith("the model 'one' cannot be loaded: ")) == (status, True)
        assert server.chat("two")[0] == 200


def test_loading_thread_that_cannot_start_is_503_and_starts_at_the_next_request(tmp_path):
    with running(tmp_path) as server:
        start, refused = threading.Thread.start, RuntimeError("can't start new thread")

        def refusing(thread: threading.Thread) -> None:
            if thread.name == "localchat-models":
                raise refused
            start(thread)

        with mock.patch.object(threading.Thread, "start", refusing):
            assert server.chat("one")[0] == 503
        assert server.chat("one")[0] == 200


def test_model_that_ends_while_the_metrics_are_written_is_left_out(tmp_path):
    with running(tmp_path) as server:
        assert server.chat("one")[0] == 200
        one = server.service.find("one")
        values = iter([one.model])
        ending = mock.PropertyMock(side_effect=lambda: next(values, None))
        served = type("Ending", (), {"model": ending})()
        with mock.patch.object(Service, "loaded", return_value=[served]):
            assert 'localchat_slots{model="one"}' in Metrics().text(server.service)
