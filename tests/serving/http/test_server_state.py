"""The bodies of /, /v1, /props, /slots and /metrics, stored responses, and the methods HEAD and OPTIONS."""

import contextlib
import json
import re
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from localchat.serving.chat.model import Model
from localchat.serving.http.metrics import Metrics
from localchat.serving.loading.service import Service
from localchat.serving.models.model_file import ModelFile
from tests.support import exchanges
from tests.support.serving import BIG, LAST_MESSAGE, chat_request, exchange, generating, no_load, serving, wait_for
from tests.support.wire_schemas import check_stream, validate


def test_slots_are_those_of_running_sequences_then_idle_ones():
    request = chat_request("secret", stream=True, max_tokens=9)
    with serving(is_gated=True, n_parallel=2) as running, running.connect(request):
        running.gate.release(2)
        wait_for(lambda: running.engine.stats().n_sampled == 2)
        status, slots = running.request("GET", "/slots")
    busy, idle = slots
    assert status == 200
    assert (busy["is_processing"], busy["n_prompt_tokens"], busy["n_prompt_tokens_processed"]) == (True, 6, 6)
    assert busy["next_token"] == [{"has_next_token": True, "n_remain": 7, "n_decoded": 2}]
    assert idle == {"id": 1, "n_ctx": running.engine.facts.n_ctx, "is_processing": False}
    assert "secret" not in json.dumps(slots)
    validate(slots, "slots")


def test_props_have_the_names_of_llama_cpp(running):
    status, body = running.request("GET", "/props")
    assert status == 200
    assert body["default_generation_settings"]["n_ctx"] == running.engine.facts.n_ctx
    assert body["default_generation_settings"]["params"]["top_k"] >= 0
    assert (body["model_alias"], body["total_slots"]) == ("Fake", running.engine.facts.n_parallel)
    assert (body["chat_template"], body["bos_token"]) == (LAST_MESSAGE, running.engine.facts.bos)


def counts_of(metrics: str) -> list[tuple[str, ...]]:
    """The path, the status and the number of requests, except those for the metrics themselves."""
    counts = re.findall(r'requests_total{path="(.*)",status="(\d+)"} (\d+)', metrics)
    return sorted(count for count in counts if count[0] != "/metrics")


def test_metrics_are_prometheus_text():
    """Requests that are not HTTP have a label of their own, as have paths without an endpoint."""
    expected = [
        ("/chat/completions", "200", "2"), ("/health", "200", "1"), ("/models/", "200", "1"),
        ("malformed", "400", "2"), ("other", "404", "2"),
    ]  # fmt: skip
    with serving() as running:
        exchange(running, b"hello\r\n\r\n")
        exchange(running, b"GET / HTTP/1.1\r\n\r\n")
        for _ in range(2):
            assert running.chat("abc")[0] == 200
        for path in ("/v1/models/Fake", "/nothing", "/nothing/else", "/health"):
            running.request("GET", path)
        # A request is counted after its response, on the thread of its connection.
        wait_for(lambda: counts_of(running.request("GET", "/metrics")[1]) == expected)
        response, text = exchanges.exchange(running.address, "/metrics")
    assert response.getheader("Content-Type") == "text/plain; version=0.0.4; charset=utf-8"
    lines = [line for line in text.splitlines() if not line.startswith("# ")]
    label = r'[a-z]+="[^"]*"'
    assert all(re.fullmatch(rf"localchat_[a-z_]+({{{label}(,{label})*}})? [0-9.e+-]+", line) for line in lines)
    values = {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}
    assert values["localchat_request_duration_seconds_count"] >= 8
    assert values['localchat_time_to_first_token_seconds_count{model="Fake"}'] == 2
    assert values['localchat_tokens_generated_total{model="Fake"}'] == 8
    assert values['localchat_prompt_tokens_cached_total{model="Fake"}'] == 2
    assert values['localchat_requests_waiting{model="Fake"}'] == 0
    assert "# HELP localchat_request_duration_seconds Time" in text
    assert "# TYPE localchat_request_duration_seconds histogram" in text
    assert values["localchat_up"] == 1


def test_name_of_a_model_is_one_text_in_the_metrics():
    """It splits no line, and its letters stay: Prometheus knows no escapes such as \\u00fc."""
    with serving() as running:
        running.server.service.default.model = Model('Mü\u2028"\x1cb', running.engine_client)
        lines = running.request("GET", "/metrics")[1].splitlines()
    assert r'localchat_slots{model="Mü\\u2028\"\\x1cb"} 4' in lines


NO_MODEL = Service(ModelFile(path=None, name="Fake"), load=no_load)


def test_durations_are_cumulative_counts():
    metrics = Metrics()
    for seconds in (0.05, 0.3, 400.0):
        metrics.count("/x", 200, seconds)
    text = metrics.text(NO_MODEL)
    bounds = {"0.025": 0, "0.1": 1, "0.5": 2, "300.0": 2, "+Inf": 3}
    assert all(f'_duration_seconds_bucket{{le="{bound}"}} {n}\n' in text for bound, n in bounds.items())
    assert "localchat_request_duration_seconds_sum 400.35\n" in text


class YieldingPath(str):
    """A path that lets other threads run wherever it is looked up."""

    def __hash__(self) -> int:
        time.sleep(0)
        return str.__hash__(self)


def test_no_request_is_lost_if_several_threads_count():
    metrics, path = Metrics(), YieldingPath("/x")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: [metrics.count(path, 200, 0.1) for _ in range(200)], range(4), timeout=60))
    assert 'requests_total{path="/x",status="200"} 800\n' in metrics.text(NO_MODEL)


# --- stored responses ---


@pytest.mark.parametrize("stream", [False, True])
def test_response_can_be_continued_until_it_is_deleted(stream):
    template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    with serving(generating("yes"), chat_template=template, **BIG) as running:

        def create(status=200, **fields):
            body = {"input": "hello", "stream": stream and status == 200, **fields}
            found_status, found = exchanges.ask(running.port, "/v1/responses", body)
            assert found_status == status
            return check_stream(found) if body["stream"] else found

        def stored(response, tail="", method="GET"):
            return exchanges.ask(running.port, f"/v1/responses/{response['id']}{tail}", method=method)

        first = create(instructions="Be brief.")
        second = create(input="and", previous_response_id=first["id"])
        assert running.last_prompt == "[user]hello[assistant]yes[user]and"
        assert stored(second) == (200, second)
        for tail, expected in (("?stream=true", (400, "stream")), ("/input_items", (404, None))):
            status, error = stored(second, tail)
            assert (status, error["error"]["param"]) == expected
        reference = {"type": "item_reference", "id": first["output"][0]["id"]}
        create(input=[reference, {"role": "user", "content": "so?"}])
        assert running.last_prompt == "[assistant]yes[user]so?"
        assert stored(first, method="DELETE") == (200, {"id": first["id"], "object": "response", "deleted": True})
        status, error = stored(first)
        assert (status, error["error"]["type"]) == (404, "invalid_request_error")
        create(input="then", previous_response_id=second["id"])
        assert running.last_prompt == "[user]hello[assistant]yes[user]and[assistant]yes[user]then"
        error = create(404, previous_response_id=first["id"])
        assert error["error"]["code"] == "previous_response_not_found"
        assert stored(create(store=False))[0] == 404


# --- home, HEAD and OPTIONS ---


def test_home_names_the_state_and_the_list_of_endpoints():
    for is_ready, state in ((True, "the model Fake is ready"), (False, "the model is loading (0%)")):
        with serving(is_ready=is_ready) as running:
            running.server.service.request_load(running.server.service.default)
            _, text = running.request("GET", "/", headers={"Accept": "*/*"})
            _, index = running.request("GET", "/v1/")
        assert text.startswith(f"localchat: {state}")
        assert "GET /v1 lists the endpoints" in text
        assert {"POST /v1/chat/completions", "GET /v1/models"} <= set(index["endpoints"])


@pytest.mark.parametrize(
    ("method", "path", "status", "allowed"),
    [
        ("OPTIONS", "*", 204, "GET, HEAD, POST, DELETE, OPTIONS"),
        ("OPTIONS", "/health", 204, "GET, HEAD, OPTIONS"),
        ("OPTIONS", "/v1/models?limit=20&after=x", 204, "GET, HEAD, OPTIONS"),
        ("OPTIONS", "/v1/chat/completions", 204, "POST, OPTIONS"),
        ("OPTIONS", "/nothing", 404, None),
        ("HEAD", "/v1/models?limit=20&after=x", 200, None),
        ("HEAD", "HTTP://LOCALHOST/v1/models", 200, None),
        ("HEAD", "/", 200, None),
        ("HEAD", "/v1/chat/completions", 405, "POST, OPTIONS"),
        ("HEAD", "/nothing", 404, None),
        ("HEAD", "*", 404, None),
    ],
)
def test_head_and_options(running, method, path, status, allowed):
    with contextlib.closing(running.client()) as client:
        for _ in range(2):  # a body after HEAD would be read as the next response
            client.request(method, path)
            response = client.getresponse()
            assert (response.status, response.getheader("Allow")) == (status, allowed)
            assert (response.read() == b"") == (method == "HEAD" or status == 204)
            assert status == 204 or int(response.getheader("Content-Length")) > 0
