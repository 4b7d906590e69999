"""Several models of one server: loaded at their first request, swapped, unloaded, and failing, over real HTTP."""

import contextlib
import json
import math
import os
import random
import re
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from localchat.serving.api.ollama import read_keep_alive
from localchat.serving.core.errors import BadRequest, InferenceError
from localchat.serving.core.fields import Fields
from localchat.serving.core.mailbox import Mailbox
from localchat.serving.engine.values import EngineDied, EngineError
from localchat.serving.http.metrics import Metrics
from localchat.serving.loading import unloading
from localchat.serving.loading.served_model import State
from localchat.serving.loading.service import Service
from localchat.serving.models.model_file import ModelFile
from tests.support.chat_requests import HI
from tests.support.serving import wait_for
from tests.support.several_models import NAMES, Running, several_models


@pytest.fixture
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Running]:
    with several_models(tmp_path, **getattr(request, "param", {})) as running:
        yield running


def started_with(*options: dict[str, Any]) -> pytest.MarkDecorator:
    """Each of these is the options of a server."""
    return pytest.mark.parametrize("server", options, indirect=True, ids=str)


def test_first_requests_at_once_load_a_model_once(server):
    found = server.together(*({"model": name} for name in ("one", "ONE", "one.gguf")))
    assert [(status, body["model"]) for status, body in found] == [(200, "one")] * 3
    assert server.loads.names == ["one"]


def test_names_on_offer_include_a_default_model_that_the_catalog_has_under_another_name(server):
    server.service.default.file = replace(server.service.default.file, name="mine")
    status, body = server.chat("zzzzz")
    assert (status, "on offer: 'mine', 'one', 'three', 'two', 'demo'" in body["error"]["message"]) == (404, True)
    assert "did you mean 'mine' or 'one'?" in server.chat("mines")[1]["error"]["message"]


def test_request_waits_while_its_model_loads_and_the_others_answer(server):
    assert server.statuses("two") == [200]
    server.loads.gate = threading.Semaphore(0)
    waiting = server.later(server.chat, "one")
    server.wait("one", "loading")
    assert server.statuses("two", "two", "two") == [200] * 3
    states = {model["id"]: model["status"]["value"] for model in server.get("/v1/models")[1]["data"]}
    assert states == {"demo": "unloaded", "one": "loading", "two": "loaded", "three": "unloaded"}
    server.loads.gate.release()
    status, found = waiting.result(60)
    assert (status, found["choices"][0]["message"]["content"]) == (200, "hi")


COMMENT, PING = b": \n\n", b'event: ping\ndata: {"type":"ping"}\n\n'
OBJECT = rb'\{"model":"one","created_at":"[^"]+",%b,"done":false\}\n'
# For each streamed interface the body, what the stream gets while the model loads, as a pattern, and the last text.
WAITING: dict[str, tuple[dict[str, Any], bytes, str]] = {
    "/v1/chat/completions": ({}, COMMENT, '"content":"hi"'),
    "/v1/completions": ({"prompt": "hi"}, COMMENT, '"text":"hi"'),
    "/completion": ({"prompt": "hi"}, COMMENT, '"content":"hi"'),
    "/v1/responses": ({"input": "hi"}, COMMENT, '"text":"hi"'),
    "/v1/messages": ({"max_tokens": 9}, PING, '"text":"hi"'),
    "/api/chat": ({}, OBJECT % rb'"message":\{"role":"assistant","content":""\}', '"content":"hi"'),
    "/api/generate": ({"prompt": "hi"}, OBJECT % rb'"response":""', '"response":"hi"'),
}  # fmt: skip


@started_with({"ping_s": 0.02})
@pytest.mark.parametrize("error", [None, EngineError("broken")], ids=["loaded", "failed"])
@pytest.mark.parametrize("path", WAITING)
def test_stream_that_waits_for_its_model_gets_pings_and_then_its_text_or_the_reason(server, path, error):
    body, ping, text = WAITING[path]
    server.loads.gate, server.loads.error = threading.Semaphore(0), error
    with contextlib.closing(server.requested(path, stream=True, **body)) as connection:
        response = connection.getresponse()  # before the model is loaded
        assert response.status == 200
        raw = b""
        while not (pings := re.match(b"(?:%b){2}" % ping, raw)):
            raw += response.readline()
            assert len(raw) < 1000, raw
        server.loads.gate.release()
        raw += response.read()
    # The rest are more pings, and the events.
    after = re.sub(b"(?:%b)*" % ping, b"", raw[pings.end() :], count=1).decode()
    assert after.startswith(("data: ", "event: ", "{"))
    assert ("the model 'one' cannot be loaded: broken" if error else text) in after


@started_with({"ping_s": 0.02})
def test_stream_that_waits_gets_comments_also_while_other_models_change(server):
    server.loads.gate, has_ended = threading.Semaphore(0), threading.Event()

    def change() -> None:
        while not has_ended.wait(0.001):
            server.pass_time(0)

    changing = server.later(change)
    with contextlib.closing(server.requested(stream=True)) as connection:
        assert connection.getresponse().readline() == b": \n"
    has_ended.set()
    assert changing.result(60) is None


@started_with({"max_models": 1})
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_request_to_unload_moves_no_model(server, path, stream):
    assert server.statuses("one") == [200]
    status, found = server.post(path, model="two", keep_alive=0, stream=stream)
    last = found[-1] if stream else found
    assert (status, last["done"], last["done_reason"], last["model"]) == (200, True, "unload", "two")
    assert (server.loads.names, server.states("one")) == (["one"], ["loaded"])
    assert server.post(path, model="one", keep_alive=0, stream=stream)[0] == 200
    server.wait("one", "unloaded")
    assert server.loads.names == ["one"]


def test_client_that_leaves_while_its_model_loads_is_not_waited_for(server):
    server.loads.gate = threading.Semaphore(0)
    server.requested().close()
    wait_for(lambda: not server.http_server.endpoints.n_in_flight)
    server.loads.gate.release()
    server.wait("one", "loaded")


@started_with({"waits": False})
def test_without_waiting_a_request_gets_503_while_its_model_loads(server):
    server.loads.gate = threading.Semaphore(0)
    status, body = server.chat("one")
    assert (status, body["error"]["code"]) == (503, "model_loading")
    wait_for(lambda: "is loading (50%)" in server.chat("one")[1]["error"]["message"])
    server.loads.gate.release()
    server.wait("one", "loaded")
    assert server.statuses("one") == [200]


@started_with({"waits": False})
def test_server_that_refuses_requests_while_its_model_loads_again_is_not_up(server):
    server.service.request_load(server.service.default)
    server.wait("demo", "loaded")
    server.service.request_unload(server.service.default)
    server.wait("demo", "unloaded")
    assert "localchat_up 1" in server.get("/metrics")[1]
    server.loads.gate = threading.Semaphore(0)
    assert server.statuses("demo") == [503]
    assert "localchat_up 0" in server.get("/metrics")[1]
    assert server.get("/health")[0] == 200


@started_with({"max_models": 1}, {"max_models": 2})
def test_mixed_requests_to_more_models_than_may_be_loaded_are_all_served(server):
    random_ = random.Random(5)
    asked = {f"{i}.": random_.choice(NAMES) for i in range(60)}
    requests = [{"model": name, "messages": [{"role": "user", "content": text}]} for text, name in asked.items()]
    assert [body["choices"][0]["message"]["content"] for _, body in server.together(*requests)] == [*asked]
    assert server.loads.most_at_once == server.http_server.options.max_models


@started_with({"max_models": 2})
def test_least_recently_used_model_is_ended_for_another(server, tmp_path):
    assert server.statuses("one", "two", "one", "three") == [200] * 4
    assert server.states() == ["loaded", "unloaded", "loaded"]
    (tmp_path / "two.gguf").write_text("damaged")
    assert (server.statuses("two"), server.states()) == ([500], ["loaded", "failed", "loaded"])


def test_model_is_ended_if_another_one_needs_its_memory(server):
    server.loads.memory = 1
    assert server.statuses("one", "two", "one") == [200] * 3
    assert server.loads.names == ["one", "two", "two", "one", "one"]
    server.loads.n_missing = 10**12
    status, body = server.chat("three")
    assert (status, server.states("one")) == (500, ["loaded"])  # to end it would not help
    assert "the weights take too much" in body["error"]["message"]
    server.loads.memory, server.loads.n_missing = 0, 10**9
    assert (server.statuses("two"), server.states("one")) == ([500], ["unloaded"])


def test_model_at_work_is_ended_after_its_request_if_another_one_needs_its_memory(server):
    assert server.statuses("two") == [200]
    server.loads.memory = 1
    model = server.service.find("two")
    with server.service.using(model) as loaded:
        waiting = server.later(server.chat, "one")
        wait_for(lambda: model.state is State.DRAINING)
        assert model.model is loaded
    assert (waiting.result(60)[0], server.states("two")) == (200, ["unloaded"])


def test_idle_model_is_ended_for_a_larger_context_and_one_at_work_is_not(server):
    assert server.statuses("one") == [200]
    # A request uses its model a moment longer than the client waits for the response.
    wait_for(lambda: not server.service.find("one").n_users)
    server.loads.memory, server.loads.can_shrink = 1, True
    assert (server.statuses("two"), server.states("one")) == ([200], ["unloaded"])
    with server.service.using(server.service.find("two")):
        assert (server.statuses("one"), server.states("two")) == ([200], ["loaded"])
    wait_for(lambda: not server.service.find("one").n_users)
    assert (server.statuses("three"), server.states()) == ([200], ["unloaded", "unloaded", "loaded"])


def test_idle_model_that_becomes_busy_meanwhile_is_not_waited_for(server):
    """The other one then takes the memory that is free."""
    assert server.statuses("one") == [200]
    one = server.service.find("one")
    wait_for(lambda: not one.n_users)
    server.loads.memory, server.loads.can_shrink = 1, True
    with contextlib.ExitStack() as using:

        def become_busy() -> None:
            if not one.n_users:
                using.enter_context(server.service.using(one))

        server.loads.on_load = become_busy
        assert server.later(server.statuses, "two").result(60) == [200]
        assert (server.loads.names, one.state) == (["one", "two", "two"], State.READY)


def test_failed_load_is_told_and_tried_again_when_the_file_changes(server, tmp_path):
    server.loads.error = EngineError("it is broken")
    for _ in range(2):
        status, body = server.chat("one")
        assert (status, body["error"]["type"]) == (500, "inference_error")
        assert body["error"]["message"] == "the model 'one' cannot be loaded: it is broken"
    assert server.loads.names == ["one"]
    assert server.statuses("two") == [500]  # another one is tried
    assert server.get("/v1/models/one")[1]["status"] == {"value": "failed", "error": "it is broken"}
    server.loads.error = None
    os.utime(tmp_path / "one.gguf", (1, 1))
    assert server.statuses("one") == [200]


@started_with({"idle_unload": 0.05})
def test_idle_model_is_unloaded(server):
    assert server.post("/models/load", model="two")[0] == 200  # no request follows
    wait_for(lambda: "two" in server.loads.engines and server.states("two") == ["unloaded"])
    assert server.statuses("one") == [200]
    wait_for(lambda: server.states("one") == ["unloaded"] and server.loads.n_open == 0)
    assert server.statuses("one") == [200]
    assert server.get("/health")[0] == 503  # the default model has never been loaded


@started_with({"idle_unload": 3600})
def test_server_whose_models_are_all_unloaded_serves_requests(server):
    assert "localchat_up 0" in server.get("/metrics")[1]
    for _ in range(2):  # A model that is loaded again is like one that is loaded for the first time.
        assert server.statuses("demo") == [200]
        wait_for(lambda: not server.service.default.n_users)
        server.pass_time(3601)
        wait_for(lambda: server.loads.n_open == 0)
        assert server.states("demo") == ["unloaded"]
        assert (server.get("/health")[0], "localchat_up 1" in server.get("/metrics")[1]) == (200, True)


@pytest.mark.parametrize("by", ["a request", "keep_alive", "idle time", "another model"])
@started_with({"max_models": 1, "idle_unload": 3600})
def test_model_that_is_loaded_again_stays_loaded(server, by):
    assert server.statuses("one") == [200]
    if by == "a request":
        server.post("/models/unload", model="one")
    elif by == "keep_alive":
        server.post("/api/chat", model="one", messages=HI, stream=False, keep_alive=0)
    elif by == "idle time":
        wait_for(lambda: not server.service.find("one").n_users)
        server.pass_time(3601)
    else:
        assert server.statuses("two") == [200]
    server.wait("one", "unloaded")
    loaded = [name for name in server.loads.names if name == "one"]
    assert server.statuses("one", "one", "one") == [200] * 3
    assert [name for name in server.loads.names if name == "one"] == [*loaded, "one"]
    assert server.states("one") == ["loaded"]


@pytest.mark.parametrize(
    ("first", "last", "state"), [("unload", "request", "loaded"), ("request", "unload", "unloaded")]
)
def test_the_last_of_a_request_and_an_unload_decides(server, first, last, state):
    """A request that comes after an unload keeps the model, whether or not an earlier request still uses it."""
    assert server.statuses("one") == [200]
    one = server.service.find("one")
    with server.service.using(one):
        for action in (first, last):
            if action == "unload":
                assert server.post("/models/unload", model="one")[0] == 200
            else:
                assert server.post("/api/chat", model="one", messages=HI, stream=False, keep_alive=-1)[0] == 200
        wait_for(lambda: one.n_users == 1)
    if state == "loaded":
        assert unloading.time_left_s(one, server.service.clock()) > 0
    server.wait("one", state)


def test_unload_of_a_model_that_loads_takes_effect_after_the_request_that_waits(server):
    server.loads.gate = threading.Semaphore(0)
    waiting = server.later(server.chat, "one")
    server.wait("one", "loading")
    assert server.post("/models/unload", model="one")[0] == 200
    server.loads.gate.release()
    assert waiting.result(60)[0] == 200
    server.wait("one", "unloaded")


def test_model_that_is_asked_for_while_it_is_drained_is_loaded_again(server):
    """Also without a request that waits."""
    assert server.statuses("one") == [200]
    one = server.service.find("one")
    server.loads.memory = 1
    with server.service.using(one):
        waiting = server.later(server.chat, "two")
        wait_for(lambda: one.state is State.DRAINING)
        assert server.post("/models/load", model="one")[0] == 200
    assert waiting.result(60)[0] == 200
    server.wait("one", "loaded")
    assert server.states("two") == ["unloaded"]


def test_load_by_request_is_not_dropped_with_a_client_that_leaves(server):
    server.loads.gate = threading.Semaphore(0)
    for name in ("two", "one"):  # The second one waits in the queue.
        assert server.post("/models/load", model=name)[0] == 200
    server.requested().close()
    wait_for(lambda: not server.http_server.endpoints.n_in_flight)
    server.loads.gate.release(1000)
    server.wait("one", "loaded")


def test_load_after_an_unload_of_a_model_in_use_keeps_it(server):
    assert server.statuses("one") == [200]
    with server.service.using(server.service.find("one")):
        for path in ("unload", "load"):
            assert server.post(f"/models/{path}", model="one")[0] == 200
    assert server.statuses("one") == [200]
    assert server.loads.names == ["one"]


@started_with({"idle_unload": 3600})
@pytest.mark.parametrize(("keep_alive", "loaded"), [(0, []), ("0s", []), (-1, ["one"]), ("9999999h", ["one"])], ids=str)
def test_keep_alive_of_a_request_decides_when_its_model_is_unloaded(server, keep_alive, loaded):
    status, body = server.post("/api/chat", model="one", messages=HI, stream=False, keep_alive=keep_alive)
    assert (status, body["message"]["content"]) == (200, "hi")
    server.wait("one", "loaded" if loaded else "unloaded")
    assert [model["name"] for model in server.get("/api/ps")[1]["models"]] == loaded
    assert server.statuses("two") == [200]


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None), (0, 0), (1.5, 1.5), (-1, math.inf), ("-1", math.inf), ("-5m", math.inf), ("0", 0), ("5m", 300),
        ("1h30m", 5400), ("300ms", 0.3), ("1.5h", 5400), ("5us", 5e-6),
        ("5\u00b5s", 5e-6), ("5\u03bcs", 5e-6), ("1s5ns", 1.000000005), ("5 s", BadRequest),
        ("soon", BadRequest), ("", BadRequest), (True, BadRequest),
    ],
)  # fmt: skip
def test_keep_alive_is_a_number_of_seconds_or_a_duration(value, seconds):
    with pytest.raises(BadRequest) if seconds is BadRequest else contextlib.nullcontext():
        assert read_keep_alive(Fields({"keep_alive": value})) == pytest.approx(seconds)


def test_models_are_loaded_and_unloaded_by_request(server):
    def facts() -> set[tuple[str, str]]:
        return {(one["digest"], one["modified_at"]) for one in server.get("/api/tags")[1]["models"]}

    before = facts()
    assert server.post("/models/load", model="two") == (200, {"success": True})
    server.wait("two", "loaded")
    assert facts() == before
    assert server.post("/models/unload", model="two") == (200, {"success": True})
    server.wait("two", "unloaded")
    assert server.post("/models/load", model="four")[0] == 404
    for keep_alive, reason in (("1m", "load"), (0, "unload")):
        done = server.post("/api/generate", model="one", keep_alive=keep_alive, stream=False)[1]
        assert done["done_reason"] == reason
        server.wait("one", f"{reason}ed")
    server.loads.gate = threading.Semaphore(0)
    for path in ("load", "unload"):  # An unload during the load is not lost.
        assert server.post(f"/models/{path}", model="three")[0] == 200
    server.loads.gate.release()
    wait_for(lambda: "three" in server.loads.engines and server.states("three") == ["unloaded"])


def test_settings_slots_and_metrics_are_those_of_the_model_that_is_named(server):
    assert server.statuses("one", "two") == [200] * 2
    assert [server.get(f"/props?model={name}")[1]["model_alias"] for name in NAMES[:2]] == ["one", "two"]
    paths = ("slots?model=one", "props?model=none", "slots?model=none")
    assert [server.get(f"/{path}")[0] for path in paths] == [200, 404, 404]
    status, body = server.get("/slots?model=three")
    assert (status, body["error"]["message"]) == (503, "the model 'three' is not loaded")
    assert server.states("three") == ["unloaded"]
    n_slots = server.loads.engines["one"].facts.n_parallel
    lines = server.get("/metrics")[1].splitlines()
    slots = [line for line in lines if line.startswith("localchat_slots")]
    assert slots == [f'localchat_slots{{model="{name}"}} {n_slots}' for name in NAMES[:2]]
    assert 'localchat_time_to_first_token_seconds_bucket{model="two",le="+Inf"} 1' in lines
    assert 'localchat_time_to_first_token_seconds_count{model="two"} 1' in lines


def test_settings_without_a_name_are_those_of_the_default_model_or_of_the_last_one(server):
    assert server.get("/props")[0] == 503
    assert server.statuses("two", "demo", "one") == [200] * 3
    wait_for(lambda: not server.service.find("one").n_users)
    assert server.get("/props")[1]["model_alias"] == "demo"
    server.service.request_unload(server.service.default)
    server.wait("demo", "unloaded")
    assert server.get("/props")[1]["model_alias"] == "one"


def test_lists_have_all_models_and_new_files(server, tmp_path):
    (tmp_path / "four.gguf").write_bytes((tmp_path / "one.gguf").read_bytes())
    names = ["demo", "four", "one", "three", "two"]
    assert sorted(model["id"] for model in server.get("/v1/models")[1]["data"]) == names
    assert sorted(model["name"] for model in server.get("/api/tags")[1]["models"]) == names
    four = server.get("/v1/models/four")[1]
    assert (four["status"], four["meta"]["n_ctx_train"]) == ({"value": "unloaded"}, 4096)
    assert server.post("/api/show", model="demo")[1]["capabilities"] == ["completion", "tools", "thinking"]
    (tmp_path / "models.json").write_text("{bad")
    assert "demo" in {model["id"] for model in server.get("/v1/models")[1]["data"]}
    (tmp_path / "models.json").unlink()
    status, body = server.chat("thre")
    assert (status, "did you mean 'three'" in body["error"]["message"]) == (404, True)


@started_with({"n_ctx": 0}, {"n_ctx": 1024})
def test_model_that_is_not_loaded_is_shown_with_what_it_is_loaded_with(server, tmp_path):
    (tmp_path / "own.jinja").write_text("{{ tools }}")
    (tmp_path / "models.json").write_text('{"own": {"path": "two.gguf", "ctx": 512, "template": "own.jinja"}}')
    for name, own in (("one", None), ("own", 512)):
        chosen = server.http_server.options.n_ctx or own
        shown = server.post("/api/show", model=name)[1]
        assert shown["model_info"]["llama.context_length"] == (chosen or 4096)
        assert (shown["template"] == "{{ tools }}") == (name == "own")
        entry = server.get(f"/v1/models/{name}")[1]
        assert (entry.get("max_model_len"), entry["meta"].get("n_ctx")) == (chosen, chosen)
        assert entry["meta"]["n_ctx_train"] == 4096
        assert (shown["details"]["parameter_size"], "general.parameter_count" in shown["model_info"]) == (
            "unknown",
            False,
        )
        assert server.states(name) == ["unloaded"]


@pytest.mark.parametrize("stamp", [None, 10**21, -(10**21)])
def test_odd_files_spoil_no_list(server, tmp_path, stamp):
    os.mkfifo(tmp_path / "pipe.gguf")
    (tmp_path / "m\udcfcller\n.gguf").write_bytes(b"GGUF")
    (tmp_path / "models.json").write_text('{"pipe": "pipe.gguf", "folder": ".", "a\\ud800": "one.gguf"}')
    # A time that is no date, which not every file system can have.
    with mock.patch.object(ModelFile, "stamp", stamp) if stamp else contextlib.nullcontext():
        names = {model["id"] for model in server.get("/v1/models")[1]["data"]}
        assert {"pipe", "folder", "m?ller?", "a?", "two", "demo"} <= names
        assert {model["name"] for model in server.get("/api/tags")[1]["models"]} == names
        assert [server.post("/api/show", model=name)[0] for name in names] == [200] * len(names)


@started_with({"max_models": 2})
def test_crash_of_a_model_in_use_gives_its_place_to_the_model_that_waits(server):
    with server.service.using(server.service.find("one")) as crashing, server.service.using(server.service.find("two")):
        waiting = server.later(server.chat, "three")
        server.wait("three", "loading")
        crashing.engine.crash()
        again = server.later(server.chat, "one")  # The request notices the crash.
        assert waiting.result(60)[0] == 200
    assert again.result(60)[0] == 200
    assert server.loads.names == ["one", "two", "three", "one"]


@started_with({"max_models": 1})
@pytest.mark.parametrize("waits_for", ["its load", "a model in use"])
def test_server_that_closes_ends_a_request_that_waits_and_the_thread_that_loads(server, waits_for):
    one = server.service.find("one")
    with contextlib.ExitStack() as use:
        if waits_for == "a model in use":
            use.enter_context(server.service.using(one))
        server.loads.gate = threading.Semaphore(0)
        waiting = server.later(server.chat, "two")
        wait_for(lambda: one.state is State.DRAINING or "two" in server.loads.names)
        server.service.stop()
        closing = server.later(server.service.close) if waits_for == "its load" else None
        server.loads.gate.release()
        assert waiting.result(60)[0] == 503
        if closing is not None:
            closing.result(60)
        server.service._model_thread._thread.join(60)
        assert not server.service._model_thread._thread.is_alive()


def test_loaded_model_is_served_after_its_file_is_gone_and_unloaded_after_its_request(server, tmp_path):
    assert server.statuses("one") == [200]
    (tmp_path / "one.gguf").unlink()
    assert server.statuses("one") == [200]
    with server.service.using(server.service.find("one")):
        assert server.post("/models/unload", model="one")[0] == 200
        (shown,) = server.get("/api/ps")[1]["models"]
        assert (shown["name"], shown["expires_at"] < "2300") == ("one", True)
    wait_for(lambda: server.loads.n_open == 0)
    assert server.statuses("one") == [404]


def test_names_in_a_mapping_file_are_models_of_their_own_and_may_mean_another_file_later(server, tmp_path):
    mapping = tmp_path / "models.json"
    for i, path in enumerate(("one.gguf", "two.gguf")):
        mapping.write_text(json.dumps({"mine": path, "short": {"path": "one.gguf", "ctx": 512}}))
        os.utime(mapping, (i + 1, i + 1))
        assert [server.chat(name)[1]["model"] for name in ("mine", "short")] == ["mine", "short"]
        wait_for(lambda: server.loads.n_open == 2)
    names = [one["id"] for one in server.get("/v1/models")[1]["data"]]
    assert (server.loads.names, names.count("mine")) == (["mine", "short", "mine"], 1)


@started_with({"max_models": 1})
@pytest.mark.parametrize("leaves_in", ["the queue", "the wait for a busy model"])
def test_nothing_is_swapped_for_a_request_that_is_gone(server, leaves_in):
    assert server.statuses("two") == [200]
    two = server.service.find("two")
    with contextlib.ExitStack() as using:
        if leaves_in == "the queue":
            server.loads.gate = threading.Semaphore(0)
            assert server.post("/models/load", model="three")[0] == 200
            wait_for(lambda: "three" in server.loads.names)
        else:
            using.enter_context(server.service.using(two))
        server.requested().close()
        wait_for(lambda: not server.http_server.endpoints.n_in_flight)
        server.loads.gate.release(1000)
        wait_for(lambda: server.states("one") == ["unloaded"] and two.state is not State.DRAINING)
    assert "one" not in server.loads.names
    assert leaves_in == "the queue" or (server.statuses("two"), server.loads.names) == ([200], ["two"])


@started_with({"max_models": 2})
def test_first_model_that_becomes_idle_is_ended_and_no_request_for_the_other_waits(server):
    def waiting_for(name: str) -> Future[tuple[int, Any]]:
        waiting = server.later(server.chat, name)
        wait_for(lambda: server.states(name) == ["loading"] and server.service.find(name).state is State.LOADING)
        return waiting

    one = server.service.find("one")
    with server.service.using(one) as long:
        server.pass_time(1)
        with server.service.using(server.service.find("two")):
            waiting = waiting_for("three")
            assert server.statuses("one", "two") == [200] * 2
        assert waiting.result(60)[0] == 200
        assert (one.model, one.state is State.DRAINING, server.states("two")) == (long, False, ["unloaded"])
        with server.service.using(server.service.find("three")):
            waiting = waiting_for("two")
            server.pass_time(60)
            three = server.service.find("three")
            wait_for(lambda: State.DRAINING in (one.state, three.state))  # so that it gets its turn
        assert waiting.result(60)[0] == 200


@started_with({"max_models": 1})
def test_model_stays_until_the_requests_that_waited_for_it_have_begun(server):
    """Waiting models would otherwise displace each other."""
    server.loads.gate = threading.Semaphore(0)
    one, may_begin = server.service.find("one"), threading.Event()

    class LateMailbox(Mailbox):
        def take(self, sender: object, timeout_s: float | None = None) -> list[Any]:
            assert may_begin.wait(60)
            return super().take(sender, timeout_s)

    def use() -> bool:
        with server.service.using(one, mailbox=LateMailbox()):
            return "two" in server.loads.names

    first = server.later(use)
    wait_for(lambda: "one" in server.loads.names)
    second = server.later(server.chat, "two")
    server.loads.gate.release(1000)
    wait_for(lambda: one.model is not None)
    threading.Event().wait(0.1)  # in which another model could take its place
    may_begin.set()
    assert (first.result(60), second.result(60)[0]) == (False, 200)


def test_request_that_waits_for_its_model_is_woken_and_does_not_poll(server):
    timeouts: list[float | None] = []

    class RecordingMailbox(Mailbox):
        def take(self, sender: object, timeout_s: float | None = None) -> list[Any]:
            timeouts.append(timeout_s)
            return super().take(sender, timeout_s)

    def use() -> str:
        with server.service.using(server.service.find("one"), mailbox=RecordingMailbox()) as model:
            return model.name

    server.loads.gate = threading.Semaphore(0)
    use_of_one = server.later(use)
    wait_for(lambda: server.loads.names == ["one"] and timeouts)
    server.loads.gate.release(1000)
    assert use_of_one.result(60) == "one"
    assert set(timeouts) == {None}


@pytest.mark.parametrize(
    ("error", "status"),  # The first one is as of a library in Rust.
    [(BaseException("a panic"), 500), (RuntimeError("can't start new thread"), 503), (MemoryError(), 503)],
)
def test_any_error_of_the_loading_thread_is_that_of_the_request(server, error, status):
    with mock.patch("localchat.serving.loading.model_thread.summary_of", side_effect=error):
        found, body = server.chat("one")
    assert (found, body["error"]["message"].startswith("the model 'one' cannot be loaded: ")) == (status, True)
    assert server.statuses("two") == [200]


def test_loading_thread_that_cannot_start_is_503_and_starts_at_the_next_request(server):
    refusing = mock.Mock(**{"Thread.return_value.start.side_effect": RuntimeError("can't start new thread")})
    with mock.patch("localchat.serving.loading.model_thread.threading", refusing):
        assert server.statuses("one") == [503]
    assert server.statuses("one") == [200]


@started_with({"max_models": 1}, {"max_models": 2}, {})
def test_any_order_of_uses_loads_unloads_crashes_and_failures_leaves_each_model_usable(server, caplog):
    """Every use gets the model or an error, and no transition comes from a wrong state."""
    models = [server.service.find(name) for name in NAMES]

    def work(seed: int) -> int:
        random_, n_used = random.Random(seed), 0
        for _ in range(60):
            served, action = random_.choice(models), random_.random()
            with contextlib.suppress(InferenceError):
                if action < 0.6:
                    keep_alive_s = random_.choice([None, 0, 0.001])
                    with server.service.using(served, keep_alive_s) as model:
                        assert not model.engine.engine.backend.is_closed or model.engine.has_died
                        n_used += 1
                        if action < 0.05:
                            model.engine.crash()
                elif action < 0.75:
                    server.service.request_load(served)
                elif action < 0.9:
                    server.service.request_unload(served)
                elif action < 0.95:
                    server.loads.error = random_.choice([None, None, EngineDied("killed")])
                    server.pass_time(100)  # A failure is tried again after a minute.
                else:
                    server.get("/v1/models")
        return n_used

    working = [server.later(work, seed) for seed in range(8)]
    assert sum(uses.result(60) for uses in working) > 60
    assert "loading or unloading a model failed" not in caplog.text
    server.loads.error = None
    server.pass_time(100)
    assert server.statuses(*NAMES) == [200] * 3
    wait_for(lambda: not any(served.n_users + served.n_waiting for served in models))


def test_model_that_ends_while_the_metrics_are_written_is_left_out(server):
    assert server.statuses("one") == [200]
    values = iter([server.service.find("one").model])
    ending = mock.PropertyMock(side_effect=lambda: next(values, None))
    with mock.patch.object(Service, "loaded_models", return_value=[type("Ending", (), {"model": ending})()]):
        assert 'localchat_slots{model="one"}' in Metrics().text(server.service)
