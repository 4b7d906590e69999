"""Assistant prefill over a socket: the output continues a message, a prefix or open reasoning."""

from __future__ import annotations

import pytest

from .serving import delta_text, generating, serving

CHAT = (
    "{% for message in messages %}[{{ message.role }}]{{ message.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
ASKED = {"role": "user", "content": "hi"}
BEGUN = {"role": "assistant", "content": "Once"}
LAST = {"messages": [ASKED, BEGUN]}
CALLED = {
    "role": "assistant",
    "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
}


# The fields of the request, the prompt, and the text that `echo` repeats.
PREFILLS = {
    "plain": ({"messages": [ASKED]}, "[user]hi[assistant]", ""),
    "last assistant message": (LAST, "[user]hi[assistant]Once", "Once"),
    "continue_final_message": ({**LAST, "continue_final_message": True}, "[user]hi[assistant]Once", "Once"),
    "as in vLLM": (
        {**LAST, "continue_final_message": "content", "add_generation_prompt": False},
        "[user]hi[assistant]Once",
        "Once",
    ),
    "new turn": ({**LAST, "add_generation_prompt": True}, "[user]hi[assistant]Once[assistant]", ""),
    "not continued": ({**LAST, "continue_final_message": False}, "[user]hi[assistant]Once[assistant]", ""),
    "list joined as text": (
        {"messages": [ASKED, {"role": "assistant", "content": [{"type": "text", "text": "On"}] * 2}]},
        "[user]hi[assistant]OnOn",
        "OnOn",
    ),
    "t32-response_prefix": ({"messages": [ASKED], "response_prefix": "{"}, "[user]hi[assistant]{", "{"),
    "message and prefix": ({**LAST, "response_prefix": " upon"}, "[user]hi[assistant]Once upon", "Once upon"),
    "no generation prompt": ({"messages": [ASKED], "add_generation_prompt": False}, "[user]hi", ""),
}


@pytest.mark.parametrize(("fields", "prompt", "opening"), PREFILLS.values(), ids=PREFILLS)
def test_k24_assistant_prefill(fields, prompt, opening):
    """K24, T32, V10, V17, V41: it is in the prompt, and in the response only with `echo`."""
    with serving(generating("!"), chat_template=CHAT) as running:
        _, plain = running.chat(**fields)
        assert running.last_prompt == prompt
        _, body = running.chat(**fields, echo=True, n=2)
        _, chunks = running.chat(**fields, echo=True, n=2, stream=True)
    assert plain["choices"][0]["message"]["content"] == "!"
    assert [choice["message"]["content"] for choice in body["choices"]] == [opening + "!"] * 2
    assert [delta_text(chunks, i) for i in range(2)] == [opening + "!"] * 2
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert [choice["delta"]["content"] for choice in choices[:2]] == ["", ""]
    for i in range(2):
        contents = [choice["delta"].get("content") for choice in choices[2:] if choice["index"] == i]
        assert contents[0] == (opening or "!")


@pytest.mark.parametrize("reasoning", ["So", "So \n"])
def test_k24_reasoning_may_be_left_open(reasoning):
    message = {"role": "assistant", "content": "", "reasoning_content": reasoning}
    fields = {"messages": [ASKED, message], "continue_final_message": "reasoning_content"}
    with serving(generating(" it is</think>42"), chat_template=CHAT) as running:
        bodies = [running.chat(**fields, echo=echo)[1] for echo in (False, True)]
        assert running.last_prompt.endswith("<think>\n" + reasoning)
    messages = [body["choices"][0]["message"] for body in bodies]
    assert [message["reasoning_content"] for message in messages] == [" it is", reasoning + " it is"]
    assert [message["content"] for message in messages] == ["42", "42"]


OPEN = {"role": "assistant", "content": "", "reasoning_content": "So"}
CONTINUED = {"continue_final_message": "reasoning_content"}
IMPOSSIBLE = {
    "both": ({**LAST, "continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
    "nothing to continue": ({"messages": [ASKED], "continue_final_message": True}, "continue_final_message"),
    "tool calls": ({"messages": [ASKED, CALLED], "continue_final_message": True}, "continue_final_message"),
    "t32": ({"messages": [ASKED], "response_prefix": "x", "add_generation_prompt": False}, "response_prefix"),
    "content beside reasoning": (
        {"messages": [ASKED, {**OPEN, "content": "x"}], **CONTINUED},
        "continue_final_message",
    ),
    "prefix beside reasoning": (
        {"messages": [ASKED, OPEN], "response_prefix": "x", **CONTINUED},
        "continue_final_message",
    ),
}


@pytest.mark.parametrize(("fields", "param"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_k24_impossible_prefills_are_refused(fields, param):
    """T32."""
    with serving(chat_template=CHAT) as running:
        status, body = running.chat(**fields)
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
