"""The bodies of /props, /slots, /metrics and /tokenize, and the CORS headers."""

from __future__ import annotations

from email.message import Message
from typing import Any

import pytest

from localchat.serving.api.tokens import parse_detokenize, parse_tokenize, text_body, tokens_body
from localchat.serving.core.errors import BadRequest
from localchat.serving.core.server_state import (
    SequenceStats,
    Series,
    counter,
    gauge,
    histogram,
    metrics_text,
    props_body,
    slots_body,
)
from localchat.serving.http.cors import OriginPolicy
from localchat.serving.http.metrics import Metrics

from .wire_schemas import validate


def test_slots_lists_running_sequences_then_idle_slots():
    busy = SequenceStats(id=7, n_prompt=10, n_cached=4, n_computed=12, n_sampled=3, max_length=20)
    body = slots_body([busy, busy, busy], n_parallel=2, n_ctx=64)
    assert [slot["is_processing"] for slot in body] == [True, True]
    first, second = slots_body([busy], n_parallel=2, n_ctx=64)
    assert (first["id"], first["id_task"], first["n_prompt_tokens"], first["n_prompt_tokens_cache"]) == (0, 7, 10, 4)
    assert first["n_prompt_tokens_processed"] == 10
    assert first["next_token"] == [{"has_next_token": True, "n_remain": 7, "n_decoded": 3}]
    assert second == {"id": 1, "n_ctx": 64, "is_processing": False}
    full = SequenceStats(id=8, n_prompt=10, n_cached=4, n_computed=12, n_sampled=10, max_length=20)
    assert slots_body([full], n_parallel=1, n_ctx=64)[0]["next_token"][0]["has_next_token"] is False
    validate([first, second], "slots")


def test_props_have_the_names_of_llama_cpp():
    caps = {"supports_tools": True}
    body = props_body(
        "m",
        "1.2",
        n_ctx=8,
        n_parallel=2,
        sampling={"top_k": 1},
        template="t",
        template_caps=caps,
        bos="<s>",
        eos="</s>",
    )
    assert body["chat_template_caps"] == caps
    assert body["default_generation_settings"] == {"params": {"top_k": 1}, "n_ctx": 8}
    assert (body["model_alias"], body["total_slots"], body["chat_template"]) == ("m", 2, "t")


def test_metrics_are_prometheus_text():
    text = metrics_text(
        [
            counter("a_total", "As.", Series(2, (("path", 'x"\\\n'), ("status", "200")))),
            gauge("b", "Bs.", 0.5),
            histogram("c_seconds", "Cs.", bounds=(0.1, 2.0), counts=(1, 3), n=4, total=7.25),
        ]
    )
    assert text.splitlines() == [
        "# HELP localchat_a_total As.",
        "# TYPE localchat_a_total counter",
        'localchat_a_total{path="x\\"\\\\\\n",status="200"} 2',
        "# HELP localchat_b Bs.",
        "# TYPE localchat_b gauge",
        "localchat_b 0.5",
        "# HELP localchat_c_seconds Cs.",
        "# TYPE localchat_c_seconds histogram",
        'localchat_c_seconds_bucket{le="0.1"} 1',
        'localchat_c_seconds_bucket{le="2.0"} 3',
        'localchat_c_seconds_bucket{le="+Inf"} 4',
        "localchat_c_seconds_sum 7.25",
        "localchat_c_seconds_count 4",
    ]
    assert text.endswith("\n")


def test_requests_are_counted_by_path_and_status():
    metrics = Metrics()
    for status, seconds in ((200, 0.05), (200, 400.0), (None, 0.0)):
        metrics.count("/x", status, seconds)
    text = metrics_text(metrics.of_requests())
    assert 'localchat_requests_total{path="/x",status="200"} 2' in text
    assert 'localchat_requests_total{path="/x",status="0"} 1' in text
    assert 'localchat_request_duration_seconds_bucket{le="300.0"} 2' in text
    assert 'localchat_request_duration_seconds_bucket{le="+Inf"} 3' in text


# --- Tokens ---


@pytest.mark.parametrize(
    ("body", "text", "flags"),
    [
        pytest.param(b'{"content": "a"}', "a", (False, True, False), id="defaults"),
        pytest.param(b'{"prompt": "b", "add_special_tokens": true}', "b", (True, True, False), id="other names"),
        pytest.param(
            b'{"content": "", "add_special": true, "parse_special": false, "with_pieces": true}',
            "",
            (True, False, True),
            id="all",
        ),
    ],
)
def test_tokenize_takes_a_text_and_flags(body: bytes, text: str, flags: tuple[bool, ...]):
    request = parse_tokenize(body)
    assert (request.text, request.adds_special, request.parses_special, request.with_pieces) == (text, *flags)


def test_pieces_that_are_no_text_are_bytes():
    request = parse_tokenize(b'{"content": "x", "with_pieces": true}')
    body = tokens_body([1, 2], request, {1: b"ok", 2: b"\xe2"}.__getitem__)
    assert body == {"tokens": [{"id": 1, "piece": "ok"}, {"id": 2, "piece": [0xE2]}]}
    assert text_body([b"\xe2\x82", b"\xac", b"\xff"]) == {"content": "€\ufffd"}


@pytest.mark.parametrize(
    ("parse", "body", "param"),
    [
        (parse_tokenize, b"{}", "content"),
        (parse_tokenize, b'{"content": 5}', "content"),
        (parse_tokenize, b'{"content": "a", "with_pieces": 1}', "with_pieces"),
        (parse_detokenize, b"{}", "tokens"),
        (parse_detokenize, b'{"tokens": 1}', "tokens"),
        (parse_detokenize, b'{"tokens": [-1]}', "tokens"),
        (parse_detokenize, b'{"tokens": [1.5]}', "tokens"),
        (parse_detokenize, b'{"tokens": [true]}', "tokens"),
    ],
)
def test_wrong_fields_are_named(parse: Any, body: bytes, param: str):
    with pytest.raises(BadRequest) as wrong:
        parse(body)
    assert wrong.value.param == param


# --- CORS ---

PAGE = "https://page.example"


def headers(**given: str) -> Message:
    message = Message()
    for name, value in given.items():
        message[name.replace("_", "-")] = value
    return message


@pytest.mark.parametrize(
    ("origins", "origin", "allowed"),
    [
        pytest.param((), PAGE, None, id="off"),
        pytest.param((PAGE,), PAGE, PAGE, id="named"),
        pytest.param((PAGE + "/",), PAGE, PAGE, id="named with a slash"),
        pytest.param((PAGE,), "https://other.example", None, id="another"),
        pytest.param((PAGE,), PAGE + ".evil.example", None, id="prefix of another"),
        pytest.param(("*",), PAGE, PAGE, id="all"),
        pytest.param((PAGE, "http://b"), "http://b", "http://b", id="second"),
    ],
)
def test_allowed_pages_get_the_cors_header(origins: tuple[str, ...], origin: str, allowed: Any):
    pages = OriginPolicy(origins)
    assert pages.headers(headers(Origin=origin)).get("Access-Control-Allow-Origin") == allowed
    assert bool(pages.preflight(headers(Origin=origin))) is (allowed is not None)


def test_responses_vary_by_origin_only_where_pages_are_allowed():
    assert OriginPolicy().headers(headers()) == {}
    assert OriginPolicy([PAGE]).headers(headers()) == {"Vary": "Origin"}


@pytest.mark.parametrize(
    ("requested", "allowed"),
    [
        pytest.param("authorization, x-stainless-os", "authorization, x-stainless-os", id="as requested"),
        pytest.param(
            "x\x0bEvil: 1", "Authorization, Content-Type, X-Api-Key, X-Request-Id", id="with a control character"
        ),
        pytest.param("é", "Authorization, Content-Type, X-Api-Key, X-Request-Id", id="not ASCII"),
    ],
)
def test_preflight_names_the_requested_headers(requested: str, allowed: str):
    request = headers(Origin=PAGE)
    request["Access-Control-Request-Headers"] = requested
    assert OriginPolicy([PAGE]).preflight(request)["Access-Control-Allow-Headers"] == allowed


def test_preflight_of_a_private_network_is_granted():
    request = headers(Origin=PAGE, Access_Control_Request_Private_Network="true")
    assert OriginPolicy([PAGE]).preflight(request)["Access-Control-Allow-Private-Network"] == "true"
