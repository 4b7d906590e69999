"""Chat completions over real sockets: every member of a request, and the order of what comes back."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import logging
import math
import re
import threading
from typing import Any

import pytest

from localchat.generation.model import Model
from localchat.protocol.params import SAMPLERS, SamplingParams, parse_default
from localchat.serving.routes import Settings

from .fakes import END, FakeBackend, endless
from .serving import (
    BIG,
    THOUGHT,
    TOOLS,
    bad,
    chat_request,
    delta_text,
    payloads,
    raw_request,
    read_until,
    says,
    serving,
    wait_for,
)

CHAT = (
    "{% for message in messages %}[{{ message.role }}]{{ message.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
ASKED = {"role": "user", "content": "hi"}
BEGUN = {"role": "assistant", "content": "Once"}


# --- drawing ---


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        pytest.param({"temperature": 0, "top_p": 0, "top_k": 0, "min_p": 0}, {"temperature": 0, "top_k": 0}, id="g3"),
        pytest.param({"typical_p": 0.5}, {"typical_p": 0.5}, id="typical_p"),
        pytest.param({"typical": 0.5}, {"typical_p": 0.5}, id="typical"),
        pytest.param({"top_n_sigma": 1.5}, {"top_n_sigma": 1.5}, id="top_n_sigma"),
        pytest.param(
            {"xtc_probability": 0.5, "xtc_threshold": 0.2}, {"xtc_probability": 0.5, "xtc_threshold": 0.2}, id="xtc"
        ),
        pytest.param(
            {"dynatemp_range": 0.5, "dynatemp_exponent": 2}, {"dynatemp_range": 0.5, "dynatemp_exponent": 2}, id="dyn"
        ),
        pytest.param(
            {
                "dry_multiplier": 0.8,
                "dry_base": 2,
                "dry_allowed_length": 3,
                "dry_penalty_last_n": 9,
                "dry_sequence_breakers": ["."],
            },
            {
                "dry_multiplier": 0.8,
                "dry_base": 2,
                "dry_allowed_length": 3,
                "dry_penalty_last_n": 9,
                "dry_sequence_breakers": (".",),
            },
            id="dry",
        ),
        pytest.param(
            {"mirostat": 2, "mirostat_tau": 4, "mirostat_eta": 0.2},
            {"mirostat": 2, "mirostat_tau": 4, "mirostat_eta": 0.2},
            id="mirostat",
        ),
        pytest.param({"repetition_penalty": 1.2}, {"repeat_penalty": 1.2}, id="k42"),
        pytest.param({"repeat_last_n": 7}, {"penalty_last_n": 7}, id="repeat_last_n"),
        pytest.param({"presence_penalty": 1, "frequency_penalty": -1}, {"presence_penalty": 1}, id="penalties"),
        pytest.param({"min_keep": 3, "seed": 11}, {"min_keep": 3, "seed": 11}, id="min_keep and seed"),
        pytest.param({"samplers": ["top_k", "typ_p"]}, {"samplers": ("top_k", "typical_p")}, id="samplers"),
        pytest.param({"samplers": "kt"}, {"samplers": ("top_k", "temperature")}, id="letters"),
        pytest.param(
            {"adaptive_target": 0.5, "adaptive_decay": 0.2, "samplers": ["min_p", "adaptive_p"]},
            {"adaptive_target": 0.5, "adaptive_decay": 0.2, "samplers": ("min_p",)},
            id="adaptive_p, which is no step but the draw",
        ),
        pytest.param({"samplers": "ka"}, {"samplers": ("top_k",)}, id="adaptive_p by its letter"),
        pytest.param({"samplers": "edskypmxt"}, {"samplers": SAMPLERS}, id="llama.cpp's own order"),
        pytest.param({"logit_bias": {"97": 5}}, {"logit_bias": ((97, 5.0),)}, id="bias by id"),
        pytest.param({"logit_bias": {"ab": -1}}, {"logit_bias": ((97, -1.0), (98, -1.0))}, id="bias by text"),
        pytest.param(
            {"logit_bias": [[97, 1], ["b", False], ["7", 2]]},
            {"logit_bias": ((97, 1.0), (98, -math.inf), (55, 2.0))},
            id="bias by pairs",
        ),
    ],
)
def test_v9_sampling_members_reach_the_engine(members, expected):
    """V9, T48, G3, K42, and llama.cpp's table of sampling members."""
    with serving() as running:
        assert running.chat(**members)[0] == 200
        sampling = running.work[-1].sampling
    assert dataclasses.replace(sampling, **expected) == sampling


@pytest.mark.parametrize(
    ("members", "attribute", "value"),
    [
        pytest.param({"max_tokens": 3}, "max_tokens", 3, id="max_tokens"),
        pytest.param({"max_completion_tokens": 3, "n_predict": 9}, "max_tokens", 3, id="k41"),
        pytest.param({"n_predict": -1}, "max_tokens", None, id="v13-no limit"),
        pytest.param({"min_tokens": 2}, "min_tokens", 2, id="min_tokens"),
        pytest.param({"ignore_eos": True, "max_tokens": 3}, "ignore_eos", True, id="ignore_eos"),
        pytest.param({"stop": ["x", "y"]}, "stop", ("x", "y"), id="t25"),
        pytest.param({"stop": None}, "stop", (), id="t25-null"),
        pytest.param({"stop_token_ids": [5]}, "stop_token_ids", (5,), id="g8"),
        pytest.param({"n_probs": 2}, "top_logprobs", 2, id="n_probs"),
        pytest.param({"t_max_predict_ms": 1500}, "max_completion_s", 1.5, id="t_max_predict_ms"),
    ],
)
def test_limits_reach_the_engine(members, attribute, value):
    """T25, G8, K11, K41, V13."""
    with serving() as running:
        assert running.chat(**members)[0] == 200
        assert getattr(running.work[-1].params, attribute) == value


def test_k9_request_then_command_line_then_model_then_built_in():
    """K9, G2, V4: and an explicit zero counts at every level (G3)."""
    with serving() as running:
        facts = dataclasses.replace(
            running.engine.facts, sampling=SamplingParams(temperature=0.5, top_k=20, top_p=0.5, min_p=0.3)
        )
        running.engine.facts = facts
        said = ("top_p=0.6", "min_p=0", "top_k=30", "seed=7")
        defaults = {name: value for one in said for name, value in parse_default(one).items()}
        running.server.service.ready(Model("Fake", running.engine, defaults=defaults))
        running.chat(top_k=0)
        running.chat(seed=-1)
        sampling = running.work[0].sampling
    assert [work.sampling.seed for work in running.work] == [7, None]
    assert (sampling.top_k, sampling.top_p, sampling.min_p) == (0, 0.6, 0)
    assert (sampling.temperature, sampling.repeat_penalty) == (0.5, 1.0)
    assert (SamplingParams().temperature, SamplingParams().top_p, SamplingParams().top_k) == (1.0, 0.95, 64)


def test_v13_without_a_limit_the_context_is_the_limit():
    """V13, K9, G32: the end of the context is `length`, as is a default limit."""
    with serving(endless, n_ctx=16) as running:
        _, body = running.chat(content="hello")
        _, more = running.chat(content="hello", max_tokens=1000)
    for answer in (body, more):
        assert answer["usage"]["total_tokens"] == 16
        assert answer["choices"][0]["finish_reason"] == "length"


def test_g32_natural_end_at_exactly_the_limit_is_stop():
    with serving() as running:
        _, body = running.chat(content="ab", max_tokens=3)
    assert body["choices"][0]["finish_reason"] == "stop"


def test_seeds_of_the_choices_differ():
    """T17: with one seed for all, n choices would say the same."""
    with serving() as running:
        running.chat(n=3, seed=5)
        assert [work.sampling.seed for work in running.work] == [5, 6, 7]


# --- the beginning of an answer ---


@pytest.mark.parametrize(
    ("members", "prompt", "opening"),
    [
        pytest.param({"messages": [ASKED]}, "[user]hi[assistant]", "", id="plain"),
        pytest.param({"messages": [ASKED, BEGUN]}, "[user]hi[assistant]Once", "Once", id="last assistant message"),
        pytest.param(
            {"messages": [ASKED, BEGUN], "continue_final_message": True},
            "[user]hi[assistant]Once",
            "Once",
            id="continue_final_message",
        ),
        pytest.param(
            {"messages": [ASKED, BEGUN], "continue_final_message": "content", "add_generation_prompt": False},
            "[user]hi[assistant]Once",
            "Once",
            id="vllm's form",
        ),
        pytest.param(
            {"messages": [ASKED, BEGUN], "add_generation_prompt": True},
            "[user]hi[assistant]Once[assistant]",
            "",
            id="a new turn after all",
        ),
        pytest.param(
            {"messages": [ASKED, BEGUN], "continue_final_message": False},
            "[user]hi[assistant]Once[assistant]",
            "",
            id="not continued",
        ),
        pytest.param(
            {"messages": [ASKED, {"role": "assistant", "content": [{"type": "text", "text": "On"}] * 2}]},
            "[user]hi[assistant]OnOn",
            "OnOn",
            id="list joined as text",
        ),
        pytest.param(
            {"messages": [ASKED], "response_prefix": "{"}, "[user]hi[assistant]{", "{", id="t32-response_prefix"
        ),
        pytest.param(
            {"messages": [ASKED, BEGUN], "response_prefix": " upon"},
            "[user]hi[assistant]Once upon",
            "Once upon",
            id="message and prefix",
        ),
        pytest.param({"messages": [ASKED], "add_generation_prompt": False}, "[user]hi", "", id="no generation prompt"),
    ],
)
def test_k24_what_opens_an_answer(members, prompt, opening):
    """K24, T32, V10, V17, V41: it is in the prompt, and in the answer only with `echo`."""
    with serving(says("!"), chat_template=CHAT) as running:
        _, plain = running.chat(**members)
        assert running.last_prompt == prompt
        _, body = running.chat(**members, echo=True, n=2)
        _, chunks = running.chat(**members, echo=True, n=2, stream=True)
    assert plain["choices"][0]["message"]["content"] == "!"
    assert [choice["message"]["content"] for choice in body["choices"]] == [opening + "!"] * 2
    assert [delta_text(chunks, i) for i in range(2)] == [opening + "!"] * 2
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert [choice["delta"]["content"] for choice in choices[:2]] == ["", ""]
    for i in range(2):
        contents = [choice["delta"].get("content") for choice in choices[2:] if choice["index"] == i]
        assert contents[0] == (opening or "!")


@pytest.mark.parametrize("thought", ["So", "So \n"])
def test_k24_thinking_may_be_left_open(thought):
    message = {"role": "assistant", "content": "", "reasoning_content": thought}
    members = {"messages": [ASKED, message], "continue_final_message": "reasoning_content"}
    with serving(says(" it is</think>42"), chat_template=CHAT) as running:
        answers = [running.chat(**members, echo=echo)[1] for echo in (False, True)]
        assert running.last_prompt.endswith("<think>\n" + thought)
    told = [body["choices"][0]["message"] for body in answers]
    assert [message["reasoning_content"] for message in told] == [" it is", thought + " it is"]
    assert [message["content"] for message in told] == ["42", "42"]


@pytest.mark.parametrize(
    ("members", "param"),
    [
        pytest.param(
            {"messages": [ASKED, BEGUN], "continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
            id="both",
        ),
        pytest.param(
            {"messages": [ASKED], "continue_final_message": True}, "continue_final_message", id="nothing to continue"
        ),
        pytest.param(
            {"messages": [ASKED], "response_prefix": "x", "add_generation_prompt": False}, "response_prefix", id="t32"
        ),
        pytest.param(
            {"messages": [ASKED, {**BEGUN, "reasoning_content": "So"}], "continue_final_message": "reasoning_content"},
            "continue_final_message",
            id="content after thinking that goes on",
        ),
        pytest.param(
            {
                "messages": [ASKED, {"role": "assistant", "content": "", "reasoning_content": "So"}],
                "continue_final_message": "reasoning_content",
                "response_prefix": "x",
            },
            "continue_final_message",
            id="prefix after thinking that goes on",
        ),
    ],
)
def test_k24_impossible_beginnings_are_refused(members, param):
    with serving(chat_template=CHAT) as running:
        status, body = running.chat(**members)
    assert (status, body["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    ("messages", "role"),
    [([ASKED], "assistant"), ([ASKED, BEGUN], "assistant"), ([{"role": "system", "content": "x"}], "system")],
)
def test_k23_role_without_a_generation_prompt(messages, role):
    """K23, V14."""
    with serving(chat_template=CHAT) as running:
        _, body = running.chat(messages=messages, add_generation_prompt=False)
        _, chunks = running.chat(messages=messages, add_generation_prompt=False, stream=True)
    assert body["choices"][0]["message"]["role"] == role
    assert chunks[0]["choices"][0]["delta"]["role"] == role


# --- templates ---


def test_k30_caller_variables_reach_the_template_and_the_servers_win():
    """K30, T30, T31, V10."""
    template = "{{ a }}{{ b }}{{ documents[0].text }}{{ enable_thinking }}{{ messages[0].content }}"
    members = {
        "template_vars": {"a": 1, "b": 1, "messages": "mine"},
        "chat_template_kwargs": {"b": 2},
        "documents": [{"text": "doc"}],
        "reasoning_effort": "none",
    }
    with serving(chat_template=template) as running:
        assert running.chat(content="hi", **members)[0] == 200
        assert running.last_prompt == "12docFalsehi"


def test_v10_template_of_a_request_needs_the_servers_leave():
    """V10, K30."""
    template = "<{{ messages[0].content }}>"
    with serving() as running:
        status, body = running.chat(chat_template=template)
    assert (status, body["error"]["param"]) == (400, "chat_template")
    assert "--allow-chat-template" in body["error"]["message"]
    with serving(settings=Settings(port=0, allow_chat_template=True)) as running:
        for _ in range(2):
            assert running.chat(content="hi", chat_template=template)[0] == 200
            assert running.last_prompt == "<hi>"
        assert running.chat(content="hi")[0] == 200
        assert running.last_prompt == "hi"
        status, body = running.chat(chat_template="{% if %}")
    assert (status, body["error"]["param"]) == (400, "chat_template")


def test_k22_none_hides_the_tools_from_the_template():
    """T34."""
    template = "{{ tools }}{{ messages[0].content }}"
    with serving(chat_template=template, **BIG) as running:
        running.chat(tools=TOOLS, tool_choice="none")
        assert "look" not in running.last_prompt
        running.chat(tools=TOOLS)
        assert "look" in running.last_prompt


def test_k22_server_may_show_the_tools_all_the_same():
    template = "{{ tools }}{{ messages[0].content }}"
    call = '<tool_call>{"name": "look", "arguments": {}}</tool_call>'
    with serving(says(call), chat_template=template, **BIG) as running:
        running.server.service.ready(Model("Fake", running.engine, keep_tools=True))
        _, body = running.chat(tools=TOOLS, tool_choice="none")
        shown = running.last_prompt
        running.chat(tools=TOOLS)
        assert running.last_prompt == shown
    assert "tool_calls" not in body["choices"][0]["message"]


def test_t47_legacy_functions_are_tools():
    """T47, K30: and they are answered as tool calls."""
    call = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
    with serving(says(call), **BIG) as running:
        _, body = running.chat(functions=[TOOLS[0]["function"]], function_call="auto")
        status, refused = running.chat(functions=[TOOLS[0]["function"]], function_call={"name": "other"})
    assert body["choices"][0]["finish_reason"] == "tool_calls"
    assert body["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "look"
    assert (status, refused["error"]["param"]) == (400, "function_call")


# --- order on the wire ---

TWO_CALLS = THOUGHT + "".join(
    f'<tool_call>\n{{"name": "look", "arguments": {{"at": {i}}}}}\n</tool_call>\n' for i in range(2)
)


def kind(choice: dict[str, Any]) -> str:
    if choice["finish_reason"] is not None:
        assert choice["delta"] == {}
        assert "stop_reason" in choice
        return "finish"
    return next(iter(choice["delta"]))


ORDER = re.compile(r"role( reasoning_content)*( content)*( tool_calls)* finish")


def assert_in_order(chunks: list[Any], n: int, *, usage: bool) -> None:
    """Appendix A's last line."""
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    *body, last = chunks
    if usage:
        assert last["choices"] == []
        assert last["usage"]["completion_tokens"] > 0
    else:
        body.append(last)
    kinds: dict[int, list[str]] = {i: [] for i in range(n)}
    for chunk in body:
        assert len(chunk["choices"]) == 1
        kinds[chunk["choices"][0]["index"]].append(kind(chunk["choices"][0]))
    assert all(ORDER.fullmatch(" ".join(of_one)) for of_one in kinds.values()), kinds
    assert [kind(chunk["choices"][0]) for chunk in body[:n]] == ["role"] * n
    assert [chunk["choices"][0]["index"] for chunk in body[:n]] == list(range(n))


@pytest.mark.parametrize("include_usage", [True, False])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize(
    ("text", "members"),
    [
        pytest.param("plain text", {}, id="v21-text"),
        pytest.param(THOUGHT, {}, id="v36-reasoning"),
        pytest.param(TWO_CALLS, {"tools": TOOLS}, id="v33-auto"),
        pytest.param(TWO_CALLS, {"tools": TOOLS, "tool_choice": "none"}, id="t34-none"),
        pytest.param("", {}, id="v20-nothing"),
        pytest.param("abc", {"stop": "b"}, id="v19-stop text"),
    ],
)
def test_appendix_a_order_in_every_mode(text, members, n, include_usage):
    """V15, V16, V19, V20, V21, V25, T16, G38, K2, K3, T45, V23."""
    with serving(says(text), **BIG) as running:
        options = {"include_usage": include_usage}
        _, chunks = running.chat(n=n, stream=True, stream_options=options, **members)
    assert_in_order(chunks, n, usage=include_usage)


def test_t13_text_that_was_held_back_comes_before_the_finish():
    """T13, V20: what could have become a stop text, a marker or a character is text at the end."""
    with serving(says("ab<tool_")) as running:
        _, chunks = running.chat(stop=["_x"], stream=True)
        _, body = running.chat(stop=["_x"])
    assert delta_text(chunks) == body["choices"][0]["message"]["content"] == "ab<tool_"
    assert chunks[-1]["choices"][0]["delta"] == {}


def test_k36_calls_of_each_choice_have_its_index_and_ids_of_their_own():
    """T44, V34, K16, K17, K36."""
    with serving(says(TWO_CALLS), **BIG) as running:
        _, chunks = running.chat(tools=TOOLS, n=2, stream=True)
        _, body = running.chat(tools=TOOLS, n=2)
    heads = [
        (choice["index"], call["index"], call["id"])
        for chunk in chunks
        for choice in chunk["choices"]
        for call in choice["delta"].get("tool_calls", ())
        if "id" in call
    ]
    assert sorted(head[:2] for head in heads) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert len({id for _, _, id in heads}) == 4
    for choice in body["choices"]:
        arguments = [call["function"]["arguments"] for call in choice["message"]["tool_calls"]]
        assert [json.loads(text) for text in arguments] == [{"at": 0}, {"at": 1}]


def test_v3_without_parallel_calls_the_answer_ends_after_one():
    """Whether it is read as it is drawn, or when all of it is there."""
    members = {"tools": TOOLS, "parallel_tool_calls": False, "return_token_ids": True}
    with serving(says(TWO_CALLS), **BIG) as running:
        _, body = running.chat(**members)
        _, chunks = running.chat(**members, stream=True)
        late = running.chat_read_late(**members)
    n_tokens = TWO_CALLS.index("}}") + 2
    for told in (body, late):
        choice = told["choices"][0]
        assert len(choice["message"]["tool_calls"]) == 1
        assert choice["finish_reason"] == "tool_calls"
        assert len(choice["token_ids"]) == told["usage"]["completion_tokens"] == n_tokens
    assert_in_order(chunks, 1, usage=False)
    calls = [call["index"] for chunk in chunks for call in chunk["choices"][0]["delta"].get("tool_calls", ())]
    assert set(calls) == {0}


def test_k35_call_to_a_name_not_offered_stays_text():
    """K35, L12, L13."""
    call = '<tool_call>\n{"name": "other", "arguments": {}}\n</tool_call>'
    with serving(says(call), **BIG) as running:
        _, body = running.chat(tools=TOOLS)
    choice = body["choices"][0]
    assert choice["message"]["content"] == call
    assert choice["finish_reason"] == "stop"


def test_k6_call_cut_by_the_limit_is_length():
    """K6, T6, K19: what came of the call is told."""
    with serving(says('<tool_call>\n{"name": "look", "arguments": {"at": 12345'), **BIG) as running:
        _, body = running.chat(tools=TOOLS, max_tokens=50)
    choice = body["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["tool_calls"][0]["function"]["arguments"].startswith('{"at": 1')


def test_e1_payload_of_a_client_that_always_sends_tools():
    """K21, C5, G5, V8: an empty list of tools, `auto`, usage and unknown members are no error."""
    members = {"tools": [], "tool_choice": "auto", "temperature": 0.2, "stream_options": {"include_usage": True}}
    with serving() as running:
        assert running.chat(**members, whatever=1)[0] == 200
        status, chunks = running.chat(**members, stream=True)
    assert status == 200
    assert_in_order(chunks, 1, usage=True)


def test_choice_that_waits_for_its_slot_holds_up_no_other():
    gate = threading.Semaphore(0)
    with serving(endless, gate=gate, n_slots=1) as running, running.connect() as sock:
        sock.sendall(chat_request(n=2, stream=True, max_tokens=30))
        for text in (b"a", b"b"):
            gate.release()
            read_until(sock, b'{"content":"%b"}' % text)
        assert running.engine.stats().n_waiting == 1
        gate.release(1000)
        read_until(sock, b"data: [DONE]\n\n")


# --- long work shows itself ---


def test_progress_of_a_long_prompt():
    """From what was cached to all of it, before the text; the status does not wait for the first token (K31)."""
    gate = threading.Semaphore(0)
    with serving(says("!"), gate=gate, n_batch=64, **BIG) as running, running.connect() as sock:
        sock.sendall(chat_request("x" * 200, stream=True, return_progress=True))
        gate.release(1)
        read_until(sock, b'"processed":64')
        gate.release(1000)
        read_until(sock, b"data: [DONE]\n\n")
        _, chunks = running.chat(content="x" * 200, stream=True, return_progress=True)
        _, plain = running.chat(content="x" * 200, stream=True)
    assert_in_order([chunk for chunk in chunks if "prompt_progress" not in chunk], 1, usage=False)
    progress = [chunk["prompt_progress"] for chunk in chunks if "prompt_progress" in chunk]
    assert progress[-1]["processed"] == progress[-1]["total"] == 200
    assert all(entry["cache"] == 199 for entry in progress)
    kinds = ["progress" if "prompt_progress" in chunk else kind(chunk["choices"][0]) for chunk in chunks]
    assert kinds == ["role", *["progress"] * len(progress), "content", "finish"]
    assert all("prompt_progress" not in chunk for chunk in plain)


def test_silent_stream_gets_comments_and_its_answer():
    """K31, C37: the status waits for the first token, but no longer than a silence may last."""
    gate = threading.Semaphore(0)
    with serving(gate=gate, settings=Settings(port=0, ping_s=0.02)) as running, running.connect() as sock:
        sock.sendall(chat_request("a", stream=True))
        head = read_until(sock, b"\r\n\r\n")
        first = read_until(sock, b": \n\n\r\n")
        gate.release()
        text = read_until(sock, b'"content":"a"')
        read_until(sock, b": \n\n\r\n")
        gate.release(1000)
        read_until(sock, b"data: [DONE]\n\n")
    assert head.startswith(b"HTTP/1.1 200 OK")
    assert b"data:" not in first
    assert b'"role":"assistant"' in text


def test_request_says_how_long_silence_may_last():
    gate = threading.Semaphore(0)
    with serving(gate=gate) as running, running.connect() as sock:
        sock.sendall(chat_request("a", stream=True, sse_ping_interval=0.01))
        assert read_until(sock, b": \n\n").startswith(b"HTTP/1.1 200 OK")
        gate.release(1000)
        read_until(sock, b"data: [DONE]\n\n")


def test_failure_after_a_comment_is_an_event():
    """K5: the status is out by then."""

    def broken(tokens: list[int], n_prompt: int) -> int:
        raise RuntimeError("broken")

    gate = threading.Semaphore(0)
    with serving(broken, gate=gate, settings=Settings(port=0, ping_s=0.01)) as running, running.connect() as sock:
        sock.sendall(chat_request("a", stream=True))
        read_until(sock, b": \n\n")
        gate.release(1000)
        rest = read_until(sock, b"0\r\n\r\n")
    assert b'"inference_error"' in rest
    assert rest.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


# --- names of requests ---


def headers_of(client: http.client.HTTPConnection, body: bytes, headers: dict[str, str]) -> Any:
    client.request("POST", "/v1/chat/completions", body, headers)
    response = client.getresponse()
    response.read()
    return response.headers


def test_k1_request_id_comes_back_and_is_logged(caplog):
    """K1, V12: it is a header and a word in the log, not part of the reply's id."""
    caplog.set_level(logging.INFO, "localchat.server")
    with serving() as running, contextlib.closing(running.client()) as client:
        assert headers_of(client, bad(), {"X-Request-Id": "mine-1"})["X-Request-Id"] == "mine-1"
        assert headers_of(client, bad(request_id="mine-2"), {})["X-Request-Id"] == "mine-2"
        assert headers_of(client, bad(stream=True), {"X-Request-Id": "mine-3"})["X-Request-Id"] == "mine-3"
        assert headers_of(client, bad(n=0), {"X-Request-Id": "mine-4"})["X-Request-Id"] == "mine-4"
        ours = [headers_of(client, bad(), {"X-Request-Id": wrong})["X-Request-Id"] for wrong in ("a b", "x" * 201, "")]
    assert all(re.fullmatch("req-[0-9a-f]{32}", id) for id in ours)
    assert len(set(ours)) == 3
    for i in range(1, 5):
        assert caplog.text.count(f"[mine-{i}]") == 1


# --- control tokens ---

MARKER = 257


class MarkedBackend(FakeBackend):
    """A model whose vocabulary has a control token for the start of a call, which it hides as text."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, n_vocab=258, **kwargs)

    def tokenize(self, text: str, *, add_bos: bool = False, parse_special: bool = True) -> list[int]:
        if text == "<tool_call>" and parse_special:
            return [MARKER]
        return super().tokenize(text)

    def piece(self, token: int, special: bool = False) -> bytes:
        if token == MARKER:
            return b"<tool_call>" if special else b""
        return super().piece(token)


def test_k37_markers_that_are_control_tokens_reach_the_parser(monkeypatch):
    """K37: the vocabulary hides them, the output parser must see them."""
    monkeypatch.setattr("tests.serving.FakeBackend", MarkedBackend)
    script = [MARKER, *b'{"name": "look", "arguments": {}}</tool_call>', END]
    with serving(lambda tokens, n_prompt: script[len(tokens) - n_prompt], **BIG) as running:
        _, body = running.chat(tools=TOOLS)
    assert body["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "look"


# --- faults ---


@pytest.mark.parametrize(
    ("members", "param"),
    [
        pytest.param({"logit_bias": [["ab", 1], [300, 1]]}, "logit_bias", id="token not in the vocabulary"),
        pytest.param({"stop_token_ids": [1, 257]}, "stop_token_ids", id="stop token not in the vocabulary"),
        pytest.param({"min_tokens": 9, "max_tokens": 3}, "min_tokens", id="min above max"),
        pytest.param({"use_beam_search": True}, "use_beam_search", id="v50"),
        pytest.param({"reasoning_format": "odd"}, "reasoning_format", id="reasoning_format"),
        pytest.param({"json_schema": {"if": {}}}, "json_schema#/if", id="schema that no grammar can hold to"),
        pytest.param({"regex": "(" * 300 + "a" + ")" * 300}, "regex", id="pattern that is nested too deeply"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_k28_fault_is_400_before_anything_runs(members, param, stream):
    """K28, G6, G9, G43, V5, V11: in both modes, and the engine has heard of nothing."""
    with serving() as running:
        status, body = running.chat(stream=stream, **members)
        assert running.work == []
    assert (status, body["error"]["param"]) == (400, param)


def test_k34_any_name_by_option_and_blank_for_the_only_one():
    """K34, K29, G40: the reply has the public name (T9)."""
    with serving() as running:
        for name in ("", "  ", "FAKE", "fake:q4", None):
            status, body = running.chat(model=name)
            assert (status, body["model"]) == (200, "Fake")


def test_k38_text_is_raw_utf_8():
    with serving() as running, running.connect() as sock:
        sock.sendall(chat_request("é😀", stream=True) + raw_request(b"", "Connection: close", path="/health"))
        raw = b"".join(iter(lambda: sock.recv(65536), b""))
    assert "é".encode() in raw
    assert "😀".encode() in raw
    assert b"\\u" not in raw


def test_k33_client_gone_while_progress_is_told_leaves_nothing():
    gate = threading.Semaphore(0)
    with serving(endless, gate=gate, n_ctx=100_000, n_cells=100_000) as running:
        with running.connect() as sock:
            sock.sendall(chat_request("x" * 500, stream=True, return_progress=True))
            gate.release()
            read_until(sock, b"prompt_progress")
        gate.release(1000)
        wait_for(lambda: running.engine.stats().n_running == 0)
        running.wait_until_idle()


def test_http_1_0_stream_has_comments_too():
    gate = threading.Semaphore(0)
    with serving(gate=gate, settings=Settings(port=0, ping_s=0.01)) as running, running.connect() as sock:
        sock.sendall(chat_request("a", stream=True).replace(b"HTTP/1.1", b"HTTP/1.0"))
        raw = read_until(sock, b": \n\n")
        gate.release(1000)
        raw += b"".join(iter(lambda: sock.recv(65536), b""))
    events = raw.partition(b"\r\n\r\n")[2].replace(b": \n\n", b"")
    assert delta_text(payloads(events)) == "a"
