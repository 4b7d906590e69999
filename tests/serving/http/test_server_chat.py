"""Chat completions over a socket: streams, progress, pings, tool calls, templates, model names, assistant prefills."""

import json
import logging
import re
import select
from typing import Any

import pytest

from localchat.serving.chat.model import Model
from localchat.serving.core.server_options import Options
from localchat.serving.http import exchange as exchanges
from tests.support import serving as support
from tests.support.endpoint_requests import MODEL_REQUESTS, STREAMED
from tests.support.exchanges import events_of, exchange
from tests.support.fakes import endless
from tests.support.serving import (
    BIG,
    REASONING_AND_TEXT,
    TOOLS,
    chat_request,
    dechunked,
    generating,
    raw_request,
    read_until,
    serving,
)
from tests.support.wire_schemas import check_stream


@pytest.mark.parametrize("n_taken", [1000, 7, 1])
def test_stream_byte_for_byte(n_taken: int, monkeypatch: pytest.MonkeyPatch):
    """Nothing is sent before the first token, and each token at once, also if the socket takes only a few bytes."""
    monkeypatch.setattr(exchanges, "SEND_BYTES", n_taken)
    with serving(is_gated=True) as running, running.connect() as sock:
        sock.sendall(chat_request("hé", stream=True, stream_options={"include_usage": True}))
        support.wait_for(lambda: running.engine.stats().n_running == 1)
        assert select.select([sock], [], [], 0)[0] == []
        running.gate.release()
        lines = read_until(sock, b"\r\n\r\n").split(b"\r\n")
        frames = read_until(sock, b'"content":"h"') + read_until(sock, b"\n\n\r\n")
        running.gate.release(2)
        frames += read_until(sock, '"content":"é"'.encode()) + read_until(sock, b"\n\n\r\n")
        running.gate.release()
        frames += read_until(sock, b"0\r\n\r\n")
    expected = [b"Content-Type: text/event-stream", b"Cache-Control: no-cache", b"Transfer-Encoding: chunked"]
    assert {b"HTTP/1.1 200 OK", *expected} <= set(lines)
    body = support.dechunked(frames)
    *chunks, usage = support.payloads(body)
    assert [chunk["choices"][0]["delta"].get("content") for chunk in chunks] == ["", "h", "é", None]
    assert {chunk["usage"] for chunk in chunks} == {None}
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 4)
    assert '"choices":[{"index":0,"delta":{"content":"é"},"logprobs":null,"finish_reason":null}]' in body.decode()


FIM = {"fim_tokens": (1, 2, 3)}


@pytest.mark.parametrize("path", STREAMED)
def test_stream_begins_with_the_first_step_and_has_the_later_ones(path: str):
    """The first step has half a character. In some interfaces it has no chunk, which must not end the stream."""
    body = json.dumps({**MODEL_REQUESTS[path], "max_tokens": 4, "stream": True}).encode()
    request = raw_request(body, "Connection: close", path=path)
    with serving(generating("é"), is_gated=True, fim=FIM) as running, running.connect(request) as sock:
        running.gate.release()
        assert read_until(sock, b"\r\n\r\n").startswith(b"HTTP/1.1 200 ")
        running.gate.release(1000)
        chunks = support.dechunked(support.read_all(sock)).decode()
    assert "é" in chunks


def test_http_1_0_gets_its_stream_until_the_end_of_the_connection():
    with serving() as running, running.connect(chat_request(stream=True).replace(b"HTTP/1.1", b"HTTP/1.0")) as sock:
        head, _, body = support.read_all(sock).partition(b"\r\n\r\n")
    assert (b"Connection: close" in head, b"chunked" in head) == (True, False)
    assert support.delta_text(support.payloads(body)) == "hello"


MODELS = ("/v1/models", "/models", "/v1/models?x=1", "http://localhost/v1/models", "/v1//models/", "/%76%31/models")
ONE_MODEL = ("/v1/models/Fake", "/v1/models/FAKE", "/v1/models/%46ak%65", "//v1/models//Fake", "/v1%2Fmodels/Fake")


@pytest.mark.parametrize("path", [*MODELS, *ONE_MODEL])
def test_models(running: support.Serving, path: str):
    status, body = running.request("GET", path)
    assert running.request("GET", "/v1/models/other")[0] == 404
    (model,) = [body] if path in ONE_MODEL else body["data"]
    assert (status, model["id"], model["meta"]["n_ctx"]) == (200, "Fake", 256)


# --- long prompts, and pings in a stream without output ---


def test_progress_of_a_long_prompt():
    """The progress goes from the cached prefix to the whole prompt. It comes before the first token."""
    with serving(generating("!"), is_gated=True, n_batch=64, **BIG) as running, running.connect() as sock:
        sock.sendall(chat_request("x" * 200, stream=True, return_progress=True))
        running.gate.release(1)
        read_until(sock, b'"processed":64')
        running.gate.release(1000)
        read_until(sock, b"data: [DONE]\n\n")
        _, chunks = running.chat(content="x" * 200, stream=True, return_progress=True)
        _, plain = running.chat(content="x" * 200, stream=True)
    support.assert_in_order([chunk for chunk in chunks if "prompt_progress" not in chunk], 1, usage=False)
    progress = [chunk["prompt_progress"] for chunk in chunks if "prompt_progress" in chunk]
    assert progress[-1]["processed"] == progress[-1]["total"] == 200
    assert all(entry["cache"] == 199 for entry in progress)
    kinds = ["progress" if "prompt_progress" in chunk else support.chunk_kind(chunk["choices"][0]) for chunk in chunks]
    assert kinds == ["role", *["progress"] * len(progress), "content", "finish"]
    assert all("prompt_progress" not in chunk for chunk in plain)


def test_stream_without_output_gets_pings_and_then_its_text():
    """The status line is sent with the first token, or after the ping interval, also in the queue."""
    assert Options.ping_s == 10
    with serving(is_gated=True, settings=Options(port=0, ping_s=0.02)) as running, running.connect() as sock:
        sock.sendall(chat_request("a", stream=True))
        head = read_until(sock, b"\r\n\r\n")
        first = read_until(sock, b": \n\n\r\n")
        running.gate.release()
        text = read_until(sock, b'"content":"a"')
        read_until(sock, b": \n\n\r\n")
        running.gate.release(1000)
        read_until(sock, b"data: [DONE]\n\n")
    assert head.startswith(b"HTTP/1.1 200 OK")
    assert b"data:" not in first
    assert b'"role":"assistant"' in text


def test_stream_of_responses_gets_events_as_pings():
    """Codex CLI counts events, and closes a stream without them."""
    body = json.dumps({"input": "a", "stream": True, "max_output_tokens": 2}).encode()
    with serving(is_gated=True, settings=Options(port=0, ping_s=0.02)) as running, running.connect() as sock:
        sock.sendall(raw_request(body, path="/v1/responses"))
        read_until(sock, b"\r\n\r\n")
        raw = b"".join(read_until(sock, b"event: response.in_progress") for _ in range(3))
        running.gate.release()
        raw += read_until(sock, b"event: response.output_text.delta")
        raw += read_until(sock, b"event: response.in_progress")
        running.gate.release(1000)
        raw += read_until(sock, b"\r\n0\r\n\r\n")
    # Until the engine has the request, pings are comments.
    response = check_stream(events_of(dechunked(raw).decode().replace(": \n\n", "")))
    assert (response["status"], response["output"][0]["content"][0]["text"]) == ("completed", "a")


# --- templates, tool calls and names ---


def test_variables_of_the_request_reach_the_template_and_the_servers_win():
    template = "{{ a }}{{ b }}{{ documents[0].text }}{{ enable_thinking }}{{ messages[0].content }}"
    variables = {"template_vars": {"a": 1, "b": 1, "messages": "mine"}, "chat_template_kwargs": {"b": 2}}
    with serving(chat_template=template) as running:
        assert running.chat("hi", documents=[{"text": "doc"}], reasoning_effort="none", **variables)[0] == 200
        assert running.last_prompt == "12docFalsehi"


def test_template_of_a_request_needs_an_option_of_the_server():
    template = "<{{ messages[0].content }}>"
    with serving() as running:
        status, body = running.chat(chat_template=template)
    assert (status, body["error"]["param"]) == (400, "chat_template")
    assert "--allow-chat-template" in body["error"]["message"]
    with serving(settings=Options(port=0, allow_template=True)) as running:
        for _ in range(2):
            assert running.chat(content="hi", chat_template=template)[0] == 200
            assert running.last_prompt == "<hi>"
        assert running.chat(content="hi")[0] == 200
        assert running.last_prompt == "hi"
        status, body = running.chat(chat_template="{% if %}")
    assert (status, body["error"]["param"]) == (400, "chat_template")


@pytest.mark.parametrize("template", ["{% if %}", "{{ 'a' | oops }}", "a" * 200_000])
def test_template_that_cannot_be_used_is_an_error_of_chat_requests_alone(template, caplog):
    with serving(chat_template=template, **BIG) as running:
        status, body = running.chat(content="hi")
        assert (status, body["error"]["param"]) == (400, "messages")
        assert "the chat template" in body["error"]["message"]
        assert running.request("POST", "/v1/completions", {"prompt": "hi", "max_tokens": 1})[0] == 200
        assert running.request("GET", "/props")[1]["chat_template"] == template
        assert running.request("POST", "/api/show", {"model": "Fake"})[1]["capabilities"] == ["completion"]
    assert "Fake has no chat: the chat template" in caplog.text


def test_requests_with_tools_have_the_template_for_tools_of_the_model():
    metadata = {"tokenizer.chat_template.tool_use": "{{ tools | length }} tools: {{ messages[0].content }}"}
    look = {"type": "function", "function": {"name": "look"}}
    with serving(chat_template="{{ messages[0].content }}", metadata=metadata, **BIG) as running:
        for fields, prompt in (({}, "hi"), ({"tools": [look]}, "1 tools: hi"), ({"tools": []}, "hi")):
            assert running.chat(content="hi", **fields)[0] == 200
            assert running.last_prompt == prompt
        assert "tools" in running.request("POST", "/api/show", {"model": "Fake"})[1]["capabilities"]
        assert Model("Fake", running.engine_client, chat_template="a").template_for(None, has_tools=True).source == "a"


def test_none_hides_the_tools_from_the_template_unless_an_option_shows_them():
    call = '<tool_call>{"name": "look", "arguments": {}}</tool_call>'
    with serving(generating(call), chat_template="{{ tools }}{{ messages[0].content }}", **BIG) as running:
        for keep_tools in (False, True):
            running.server.service.default.model = Model("Fake", running.engine_client, keep_tools=keep_tools)
            _, body = running.chat(tools=TOOLS, tool_choice="none")
            assert ("look" in running.last_prompt) == keep_tools
            assert body["choices"][0]["message"] == {"role": "assistant", "content": call}
            assert body["choices"][0]["finish_reason"] == "stop"
            running.chat(tools=TOOLS)
            assert "look" in running.last_prompt


TWO_CALLS = REASONING_AND_TEXT + "".join(
    f'<tool_call>\n{{"name": "look", "arguments": {{"at": {i}}}}}\n</tool_call>\n' for i in range(2)
)


@pytest.mark.parametrize("include_usage", [True, False])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("plain text", {"tools": [], "tool_choice": "auto", "whatever": 1}),  # A client that always sends tools.
        (REASONING_AND_TEXT, {}),
        (TWO_CALLS, {"tools": TOOLS}),
        (TWO_CALLS, {"tools": TOOLS, "tool_choice": "none"}),
        ("", {}),
        ("abc", {"stop": "b"}),
    ],
    ids=["text", "reasoning", "auto", "none", "nothing", "stop text"],
)
def test_order_of_a_stream_in_every_mode(text, fields, n, include_usage):
    with serving(generating(text), **BIG) as running:
        _, chunks = running.chat(n=n, stream=True, stream_options={"include_usage": include_usage}, **fields)
    support.assert_in_order(chunks, n, usage=include_usage)


def test_calls_of_each_choice_have_its_index_and_ids_of_their_own():
    with serving(generating(TWO_CALLS), **BIG) as running:
        _, chunks = running.chat(tools=TOOLS, n=2, stream=True)
        _, body = running.chat(tools=TOOLS, n=2)
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    calls = [(choice["index"], call) for choice in choices for call in choice["delta"].get("tool_calls", ())]
    ids = {call["id"]: (i, call["index"]) for i, call in calls if "id" in call}
    assert sorted(ids.values()) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    for choice in body["choices"]:
        arguments = [call["function"]["arguments"] for call in choice["message"]["tool_calls"]]
        assert [json.loads(text) for text in arguments] == [{"at": 0}, {"at": 1}]


def test_choice_that_waits_for_a_slot_does_not_delay_the_others():
    with serving(endless, is_gated=True, n_parallel=1) as running, running.connect() as sock:
        sock.sendall(chat_request(n=2, stream=True, max_tokens=30))
        for text in (b"a", b"b"):
            running.gate.release()
            read_until(sock, b'{"content":"%b"}' % text)
        assert running.engine.stats().n_waiting == 1
        running.gate.release(1000)
        read_until(sock, b"data: [DONE]\n\n")


def test_request_id_is_returned_and_logged(caplog):
    """It is in a header and in the log, and not part of the id of the response."""
    caplog.set_level(logging.INFO, "localchat.server")
    with serving() as running:

        def request_id(header: str = "", **fields: Any) -> Any:
            body, headers = {"messages": [ASKED], **fields}, {"X-Request-Id": header}
            return exchange(running.address, "/v1/chat/completions", body, headers=headers)[0].getheader("X-Request-Id")

        assert request_id("mine-1") == "mine-1"
        assert request_id(request_id="mine-2") == "mine-2"
        assert request_id("mine-3", stream=True) == "mine-3"
        assert request_id("mine-4", n=0) == "mine-4"
        assert request_id(model="none", request_id="mine-5") == "mine-5"
        ours = [request_id(wrong) for wrong in ("a b", "x" * 201, "")]
    assert all(re.fullmatch("req-[0-9a-f]{32}", id) for id in ours)
    assert len(set(ours)) == 3
    for i in range(1, 6):
        assert caplog.text.count(f"[mine-{i}]") == 1


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logit_bias": [["ab", 1], [300, 1]]}, "logit_bias"),
        ({"stop_token_ids": [1, 257]}, "stop_token_ids"),
        ({"json_schema": {"if": {}}}, "json_schema#/if"),
        ({"regex": "(" * 300 + "a" + ")" * 300}, "regex"),
    ],
    ids=["token not in the vocabulary", "such a stop token", "schema that no grammar enforces", "deep pattern"],
)
@pytest.mark.parametrize("stream", [True, False])
def test_invalid_field_is_400_before_anything_runs(running, fields, param, stream):
    n_requests = len(running.requests)
    status, body = running.chat(stream=stream, **fields)
    assert (status, body["error"]["param"], len(running.requests)) == (400, param, n_requests)


def test_model_may_be_blank_or_have_another_case_or_tag(running):
    """The response has the public name."""
    for name in ("", "  ", "FAKE", "fake:q4", None):
        status, body = running.chat(model=name)
        assert (status, body["model"]) == (200, "Fake")


# --- the assistant prefill: the output continues a message, a prefix or open reasoning ---


CHAT_TEMPLATE = (
    "{% for message in messages %}[{{ message.role }}]{{ message.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
ASKED = {"role": "user", "content": "hi"}
BEGUN = {"role": "assistant", "content": "Once"}
CONTINUING = {"messages": [ASKED, BEGUN]}
ONCE, NEXT = "[user]hi[assistant]Once", "[user]hi[assistant]Once[assistant]"
# The fields of the request, the prompt, and the text that `echo` repeats.
PREFILLS = {
    "plain": ({"messages": [ASKED]}, "[user]hi[assistant]", ""),
    "last assistant message": (CONTINUING, ONCE, "Once"),
    "continue_final_message": ({**CONTINUING, "continue_final_message": True}, ONCE, "Once"),
    "as in vLLM": ({**CONTINUING, "continue_final_message": "content", "add_generation_prompt": False}, ONCE, "Once"),
    "new turn": ({**CONTINUING, "add_generation_prompt": True}, NEXT, ""),
    "not continued": ({**CONTINUING, "continue_final_message": False}, NEXT, ""),
    "response_prefix": ({"messages": [ASKED], "response_prefix": "{"}, "[user]hi[assistant]{", "{"),
    "message and prefix": ({**CONTINUING, "response_prefix": " upon"}, "[user]hi[assistant]Once upon", "Once upon"),
    "no generation prompt": ({"messages": [ASKED], "add_generation_prompt": False}, "[user]hi", ""),
}


@pytest.mark.parametrize(("fields", "prompt", "opening"), PREFILLS.values(), ids=PREFILLS)
def test_assistant_prefill(fields, prompt, opening):
    """It is in the prompt, and in the response only with `echo`."""
    with serving(generating("!"), chat_template=CHAT_TEMPLATE) as running:
        _, plain = running.chat(**fields)
        assert running.last_prompt == prompt
        _, body = running.chat(**fields, echo=True, n=2)
        _, chunks = running.chat(**fields, echo=True, n=2, stream=True)
    assert plain["choices"][0]["message"]["content"] == "!"
    assert [choice["message"]["content"] for choice in body["choices"]] == [opening + "!"] * 2
    assert [support.delta_text(chunks, i) for i in range(2)] == [opening + "!"] * 2
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert [choice["delta"]["content"] for choice in choices[:2]] == ["", ""]
    for i in range(2):
        contents = [choice["delta"].get("content") for choice in choices[2:] if choice["index"] == i]
        assert contents[0] == (opening or "!")


def test_call_without_markers_is_one_unless_the_output_continues_a_prefill():
    with serving(generating('{"name": "look", "arguments": {}}'), chat_template=CHAT_TEMPLATE, **BIG) as running:
        _, called = running.chat(tools=TOOLS)
        _, continued = running.chat(tools=TOOLS, messages=[ASKED, BEGUN])
    assert [body["choices"][0]["finish_reason"] for body in (called, continued)] == ["tool_calls", "stop"]


def left_open(reasoning: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": "", "reasoning_content": reasoning}
    return {"messages": [ASKED, message], "continue_final_message": "reasoning_content"}


@pytest.mark.parametrize("reasoning", ["So", "So \n"])
def test_reasoning_may_be_left_open(reasoning):
    with serving(generating(" it is</think>42"), chat_template=CHAT_TEMPLATE) as running:
        bodies = [running.chat(**left_open(reasoning), echo=echo)[1] for echo in (False, True)]
        assert running.last_prompt.endswith("<think>\n" + reasoning)
    messages = [body["choices"][0]["message"] for body in bodies]
    assert [message["reasoning_content"] for message in messages] == [" it is", reasoning + " it is"]
    assert [message["content"] for message in messages] == ["42", "42"]


@pytest.mark.parametrize(
    ("fields", "echoed"),
    [
        (CONTINUING, "Once"),
        ({"messages": [ASKED, {**BEGUN, "reasoning_content": "So"}]}, "<think>\nSo\n</think>\n\nOnce"),
        (left_open("So "), "<think>\nSo "),
    ],
    ids=["text", "both", "open reasoning"],
)
def test_echo_of_a_prefill_beside_raw_text_is_its_text_in_the_prompt(fields, echoed):
    with serving(generating(" it</think>\n 42"), chat_template=CHAT_TEMPLATE) as running:
        bodies = [running.chat(**fields, echo=echo, reasoning_format="none")[1] for echo in (False, True)]
        assert running.last_prompt.endswith(echoed)
    messages = [body["choices"][0]["message"] for body in bodies]
    assert [message["content"] for message in messages] == [" it</think>\n 42", echoed + " it</think>\n 42"]
    assert not any("reasoning_content" in message for message in messages)


@pytest.mark.parametrize(
    ("messages", "role"),
    [([ASKED], "assistant"), ([ASKED, BEGUN], "assistant"), ([{"role": "system", "content": "x"}], "system")],
)
def test_role_without_a_generation_prompt(messages, role):
    with serving(chat_template=CHAT_TEMPLATE) as running:
        _, body = running.chat(messages=messages, add_generation_prompt=False)
        _, chunks = running.chat(messages=messages, add_generation_prompt=False, stream=True)
    assert body["choices"][0]["message"]["role"] == role
    assert chunks[0]["choices"][0]["delta"]["role"] == role
