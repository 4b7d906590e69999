"""Conversations of every shape: no text of them is lost, and none is refused, whatever the template expects."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from localchat.serving.chat.dialects import DIALECTS, Dialect
from localchat.serving.chat.prompt.control_tokens import without_markers
from localchat.serving.chat.prompt.jinja import TemplateError
from localchat.serving.chat.prompt.missing_text import missing_text
from localchat.serving.chat.prompt.template import ChatTemplate
from localchat.serving.core.tool_results import results_of_calls
from tests.support.dialect_outputs import calls_of, parse
from tests.support.exchanges import ask
from tests.support.serving import BIG, serving

TEMPLATES = {path.stem: path.read_text() for path in Path(__file__).parents[2].glob("data/templates/*.jinja")}

# What the templates of published models do with conversations that they do not expect.
TURNS = (
    "{% if messages[0].role == 'system' %}{% set system = messages[0].content %}"
    "{% set messages = messages[1:] %}{% endif %}"
    "{% for message in messages %}"
    "{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "[{{ message.role }}]{% if loop.first %}{{ system }}{% endif %}{{ message.content | trim }}{% endfor %}"
)
STRANGE = {
    "turns": TURNS,
    "turns, without a system message": TURNS.replace(
        "{% set system", "{{ raise_exception('no system message') }}{% set system"
    ),
    "later system messages are left out": (
        "{% for message in messages %}{% if message.role != 'system' or loop.first %}"
        "[{{ message.role }}]{{ message.content }}{{ message.tool_calls | tojson if message.tool_calls }}"
        "{% endif %}{% endfor %}"
    ),
    "a system message must be the first": (
        "{% for message in messages %}{% if message.role == 'system' and not loop.first %}"
        "{{ raise_exception('a system message must be the first') }}{% endif %}"
        "[{{ message.role }}]{{ message.content }}{{ message.tool_calls | tojson if message.tool_calls }}{% endfor %}"
    ),
    "text beside calls is left out": (
        "{% for message in messages %}[{{ message.role }}]{% if message.tool_calls %}{{ message.tool_calls | tojson }}"
        "{% else %}{{ message.content }}{% endif %}{% endfor %}"
    ),
    "results are JSON": (
        "{% for message in messages %}[{{ message.role }}]{{ message.content | tojson }}"
        "{{ message.tool_calls | tojson if message.tool_calls }}{% endfor %}"
    ),
    "tools need all of their fields": (
        "{% for tool in tools or [] %}{% for name in tool.function.parameters.properties %}"
        "{{ tool.function.parameters.properties[name].description.upper() }}{% endfor %}{% endfor %}"
        "{% for message in messages %}[{{ message.role }}]{{ message.content }}{% endfor %}"
    ),
    "tools beside the last user": (
        "{% set users = messages | selectattr('role', 'equalto', 'user') | list %}"
        "{% for message in messages %}{{ tools | tojson if users and message == users[-1] }}[{{ message.role }}]"
        "{{ message.content }}{{ message.tool_calls | tojson if message.tool_calls }}{% endfor %}"
    ),
    "the last system message": (
        "{% set ns = namespace(system='') %}{% for message in messages %}{% if message.role == 'system' %}"
        "{% set ns.system = message.content %}{% endif %}{% endfor %}{{ ns.system }}"
        "{% for message in messages %}{% if message.role != 'system' %}[{{ message.role }}]{{ message.content }}"
        "{% endif %}{% endfor %}"
    ),
    "reasoning is cut off": (
        "{% for message in messages %}[{{ message.role }}]{% if message.role == 'assistant' %}"
        "{{ message.content.split('</think>') | last }}{% else %}{{ message.content }}{% endif %}{% endfor %}"
    ),
    "a tag in reasoning is refused": (
        "{% for message in messages %}{% if '</think>' in message.reasoning_content %}{{ raise_exception('a tag') }}"
        "{% endif %}[{{ message.role }}]{{ message.content }}{% endfor %}"
    ),
    "an empty output is refused": (
        "{% for message in messages %}"
        "{% if message.role == 'assistant' and not (message.content or message.tool_calls) %}"
        "{{ raise_exception('no output') }}{% endif %}[{{ message.role }}]{{ message.content }}"
        "{{ message.tool_calls | tojson if message.tool_calls }}{% endfor %}"
    ),
    "needs a user": (
        "{% if not messages | selectattr('role', 'equalto', 'user') | list %}"
        "{{ raise_exception('no user') }}{% endif %}"
        "{% for message in messages %}[{{ message.role }}]{{ message.content }}{% endfor %}"
    ),
}

# Templates with the roles of tools are tried with adjacent messages of one role, too.
FIRST = STRANGE["a system message must be the first"]
STRANGE["a system message must be the first, beside tools"] = "{{ tools | tojson if tools }}" + FIRST


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def developer(text: str) -> dict[str, Any]:
    return {"role": "developer", "content": text}


def assistant(text: str, *calls: int) -> dict[str, Any]:
    """A message with this text and with these calls."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        functions = {i: {"name": f"look_{i}", "arguments": json.dumps({"at": f"place {i}"})} for i in calls}
        message["tool_calls"] = [{"id": f"call_{i}", "type": "function", "function": functions[i]} for i in calls]
    return message


def result(call: int, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"call_{call}", "content": text}


def call_of(name: str, **arguments: str) -> dict[str, Any]:
    return {"id": "call_1", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


CODE = "print('a\\n', \"\\\\t\")\nopen(r'C:\\new\\table')  # \\u00e9 \\d+ \\frac é <b> & </b> \\"

SHAPES: dict[str, list[dict[str, Any]]] = {
    "a system message first": [system("S1"), user("U1"), assistant("A1"), user("U2")],
    "a system message after the user": [user("U1"), system("S1"), user("U2")],
    "a second system message": [system("S1"), user("U1"), system("S2")],
    "two system messages first": [system("S1"), system("S2"), user("U1")],
    "a later system message": [system("S1"), user("U1"), assistant("A1"), system("S2"), user("U2")],
    "a system message after the output": [system("S1"), user("U1"), assistant("A1"), system("S2")],
    "a system message last": [user("U1"), assistant("A1"), user("U2"), system("S1")],
    "a later developer message": [developer("S1"), user("U1"), assistant("A1"), developer("S2"), user("U2")],
    "system and developer": [system("S1"), developer("S2"), user("U1")],
    "two users": [user("U1"), user("U2"), assistant("A1"), user("U3"), user("U4")],
    "two assistants": [user("U1"), assistant("A1"), assistant("A2"), user("U2")],
    "an empty output": [user("U1"), assistant(""), user("U2"), assistant("A1"), user("U3")],
    "assistant first": [assistant("A1"), user("U1")],
    "assistant first after the system": [system("S1"), assistant("A1"), user("U1")],
    "only a system message": [system("S1")],
    "a call": [user("U1"), assistant("", 1), result(1, "R1"), assistant("A1"), user("U2")],
    "a text and a call": [user("U1"), assistant("A1", 1), result(1, "R1")],
    "two calls": [user("U1"), assistant("", 1, 2), result(1, "R1"), result(2, "R2")],
    "a user after a result": [user("U1"), assistant("", 1), result(1, "R1"), user("U2")],
    "a system message after a result": [system("S1"), user("U1"), assistant("", 1), result(1, "R1"), system("S2")],
    "calls without a user": [assistant("", 1), result(1, "R1"), assistant("", 2), result(2, "R2")],
    "a call with a tag of reasoning": [
        user("U1"),
        {"role": "assistant", "content": "", "tool_calls": [call_of("run", code="P1 </think> P2")]},
        result(1, "R1"),
    ],
    "a result of no call": [user("U1"), assistant("A1"), result(9, "R1"), user("U2")],
    "two rounds": [user("U1"), assistant("", 1), result(1, "R1"), assistant("", 2), result(2, "R2"), user("U2")],
    "a call without a result": [user("U1"), assistant("", 1), user("U2")],
    "texts with white space and quotes": [user(" U1 \n\n'\"\\x"), assistant("\tA1 {}"), user("\n\n")],
    "texts with what looks like escapes": [
        user(CODE),
        {"role": "assistant", "content": "", "tool_calls": [call_of("run", code=CODE)]},
        result(1, CODE),
        assistant(CODE),
        user("U1"),
    ],
    "texts of one role with further fields": [
        {**system("S1"), "name": "rules"},
        {**user("U1"), "name": "ann"},
        {**user("U2"), "name": "bob"},
        {**assistant("A1"), "name": "bot"},
        {**assistant("A2"), "reasoning_content": "because"},
        user("U3"),
    ],
    "reasoning before a call, after a text": [
        user("U1"),
        assistant("A1"),
        {**assistant("", 1), "reasoning_content": "because"},
        result(1, "R1"),
    ],
    "the same text twice": [user("yes"), assistant("yes"), user("yes")],
}
LOOK = {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}
TOOLS = [
    {"type": "function", "function": {"name": f"look_{i}", "description": f"Looks at {i}", "parameters": LOOK}}
    for i in (1, 2, 9)
]
ALL = {**TEMPLATES, **STRANGE}


@pytest.mark.parametrize("name", ALL)
def test_every_text_of_every_conversation_is_in_the_prompt_once_and_in_order(name: str):
    template = ChatTemplate(ALL[name], bos_token="<s>", eos_token="</s>")
    assert template.capabilities.prints_texts
    for shape, messages in SHAPES.items():
        has_tools = any("tool_calls" in message or message["role"] == "tool" for message in messages)
        prompt = without_markers(template.render(messages, tools=TOOLS if has_tools else None))
        assert missing_text(prompt, messages, lambda text: text) is None, shape
        assert not has_tools or all(f"Looks at {i}" in prompt for i in (1, 2, 9)), shape
        results = re.findall(r"<tool_response>(.*?)</tool_response>", prompt, re.DOTALL)
        assert not any(re.search(r"\bU\d", text) for text in results), shape
        for message in messages:
            text = message["content"].strip()
            if len(text) == 2:
                assert prompt.count(text) == 1, (shape, text)


@pytest.mark.parametrize("name", ALL)
def test_tags_in_a_text_of_the_assistant_are_text(name: str):
    """Templates cut off what precedes an end tag of reasoning, and some refuse a text with a tag."""
    template = ChatTemplate(ALL[name], bos_token="<s>", eos_token="</s>")
    start, end = template.dialect.reasoning[:2]
    for text in (f"A1 {start} A2", f"A1 {end} A2", f"A1 {start} A2 {end} A3", *template.dialect.opening_markers):
        # With reasoning in its field, the text has none. Otherwise it has, if outputs begin within reasoning.
        first, second = ({**message, "reasoning_content": text} for message in (assistant(text), assistant(text, 1)))
        messages = [user("U1"), first, user("U2"), second, result(1, "R1")]
        prompt = without_markers(template.render(messages, tools=TOOLS))
        assert missing_text(prompt, messages, lambda text: text) is None, text


@pytest.mark.parametrize(
    ("generation_prompt", "text", "expected"),
    [
        ("", "<think>B1</think>A1 </think> <think> A2", "A1 </think> <think> A2"),
        ("", "A1 </think> A2", "A1 </think> A2"),
        ("<think>", "B1</think>A1 </think> A2", "A1 </think> A2"),
        ("<think>", "A1 <think> A2 </think> A3", "A1 <think> A2 </think> A3"),
    ],
)
def test_reasoning_at_the_beginning_of_a_text_is_cut_off(generation_prompt: str, text: str, expected: str):
    source = STRANGE["reasoning is cut off"] + "{{ '" + generation_prompt + "' if add_generation_prompt }}"
    prompt = without_markers(ChatTemplate(source).render([user("U1"), assistant(text), user("U2")]))
    assert prompt == f"[user]U1[assistant]{expected}[user]U2{generation_prompt}"


@pytest.mark.parametrize("key", ["reasoning_content", "thinking", "reasoning", "thought"])
def test_reasoning_of_joined_messages_is_in_the_prompt(key: str):
    source = TURNS.replace("{{ message.content", f"{{{{ message.{key} }}}}|{{{{ message.content")
    texts = [assistant("A1"), {**assistant("A2"), "reasoning_content": "B2"}]
    with_call = {**assistant("", 1), "reasoning_content": "B3"}
    messages = [system("S1"), user("U1"), *texts, with_call, result(1, "R1")]
    prompt = without_markers(ChatTemplate(source).render(messages, tools=TOOLS))
    assert "B2\n\nB3|A1\n\nA2\n" in prompt
    assert [prompt.count(text) for text in ("B2", "B3")] == [1, 1]


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("{{ message.tool_calls", ["U1", "A1", "B1", "place 1", "R1"]),  # As the templates of Gemma 4 and Command R7B.
        ("{{ message.content", ["U1", "B1", "A1", "place 1", "R1"]),
    ],
)
def test_reasoning_of_a_message_that_becomes_two_is_beside_what_the_template_prints_it_with(place: str, expected: Any):
    source = STRANGE["text beside calls is left out"].replace(place, "{{ message.reasoning_content }}" + place)
    message = {**assistant("A1", 1), "reasoning_content": "B1"}
    prompt = without_markers(ChatTemplate(source).render([user("U1"), message, result(1, "R1")], tools=TOOLS))
    assert re.findall("U1|A1|B1|place 1|R1", prompt) == expected


def without_ids(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages, where each result names its function."""
    question, calling, *results = messages
    calls = [{key: value for key, value in call.items() if key != "id"} for call in calling["tool_calls"]]
    names = {"R1": "look_1", "R2": "look_2"}
    named = [{"role": "tool", "name": names[text], "content": text} for text in (r["content"] for r in results)]
    return [question, {**calling, "tool_calls": calls}, *named]


@pytest.mark.parametrize("name", ALL)
def test_results_are_in_the_order_of_their_calls(name: str):
    """Most templates print no ids, so the model takes the first result for that of the first call."""
    template = ChatTemplate(ALL[name], bos_token="<s>", eos_token="</s>")
    in_order = [user("U1"), assistant("", 1, 2), result(1, "R1"), result(2, "R2")]
    in_other_order = [*in_order[:2], in_order[3], in_order[2]]
    prompts = [template.render(messages, tools=TOOLS) for messages in (in_order, in_other_order)]
    assert prompts[0] == prompts[1]
    # A message between the call and its results, and a result of no call.
    others = [[*m[:2], user("U2"), *m[2:], result(9, "R9")] for m in (in_order, in_other_order)]
    others.append([*others[1][:3], result(9, "R9"), *others[1][3:5]])
    prompts = [template.render(messages, tools=TOOLS) for messages in others]
    assert len(set(prompts)) == 1
    # Results without ids name their functions.
    prompts = [template.render(without_ids(messages), tools=TOOLS) for messages in (in_order, in_other_order)]
    assert prompts[0] == prompts[1]
    assert prompts[0].index("R1") < prompts[0].index("R2")


# The ids and names of the calls, those of the results, and the indexes of the results in the order of the calls. The
# calls and results have the ids and names "a" and "b", or none ("-").
MATCHES = [
    ("a:f b:f", "-:- a:-", [1, 0]),
    ("a:f b:f", "-:f a:-", [1, 0]),
    ("a:f b:g", "-:- -:f", [1, 0]),
    ("a:f b:g", "-:x -:f", [1, 0]),
    ("a:f b:f c:f", "-:- c:- a:-", [2, 0, 1]),
    ("-:f b:f", "x:- b:-", [0, 1]),
    ("-:f b:f", "b:- x:-", [1, 0]),
    ("-:f -:f", "x:- y:-", [0, 1]),
    ("a:f b:f", "b:- x:-", [None, 0]),
    ("a:f a:f", "a:- a:-", [0, 1]),
    ("a:f b:f", "", [None, None]),
    ("a:f", "a:- a:-", [0]),
]
ONE_CALL = (
    "{% for m in messages %}{% if m.tool_calls and m.tool_calls | length > 1 %}{{ raise_exception('one call') }}"
    "{% endif %}[{{ m.role }}]{{ m.content }}{% for call in m.tool_calls or [] %}{{ call.function.arguments | tojson }}"
    "{% endfor %}{% endfor %}"
)


@pytest.mark.parametrize(("call_texts", "result_texts", "expected"), MATCHES)
def test_every_call_has_the_result_that_fits_best(call_texts: str, result_texts: str, expected: list[Any]):
    calls: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    for text in call_texts.split():
        id, name = text.split(":")
        function = {"name": name, "arguments": json.dumps({"at": f"place {len(calls)}"})}
        calls.append({"type": "function", "function": function, **({} if id == "-" else {"id": id})})
    for text in result_texts.split():
        id, name = text.split(":")
        keys = {"tool_call_id": id, "name": name}
        content = {"role": "tool", "content": f"R{len(results)}"}
        results.append({**content, **{key: value for key, value in keys.items() if value != "-"}})
    assert results_of_calls(calls, results) == expected
    conversation = [user("U1"), {"role": "assistant", "content": "", "tool_calls": calls}, *results]
    prompt = without_markers(ChatTemplate(ONE_CALL).render(conversation))
    for place, index in enumerate(expected):
        after_call = prompt.partition(f"place {place}")[2].partition("[assistant]")[0]
        assert index is None or f"[tool]R{index}" in after_call


# A template that needs arguments as JSON text, and refuses calls before the first message of the user.
TEXT_ARGUMENTS = (
    "{% if messages[0].role != 'user' %}{{ raise_exception('a user first') }}{% endif %}"
    "{% for message in messages %}[{{ message.role }}]{{ message.content }}{% for call in message.tool_calls %}"
    """{{ '{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments + '}' }}{% endfor %}"""
    "{% endfor %}"
)


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
@pytest.mark.parametrize("arguments", ['{"at": "place 1"}', "{bad"], ids=["an object", "invalid"])
def test_call_that_becomes_text_has_its_arguments_once(dialect: Dialect, arguments: str):
    """The template shows calls itself in the first forms of the conversation, and in the last forms they are text."""
    template = ChatTemplate(TEXT_ARGUMENTS)
    template.dialect = dialect
    assert (template.capabilities.text_arguments, template.capabilities.shows_calls) == (True, True)
    message = {
        **assistant("A1"),
        "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "f", "arguments": arguments}}],
    }
    text = without_markers(template.render([message, result(1, "R1"), user("U1")]))
    call = text.partition("A1\n")[2].partition("[user]")[0].strip()
    expected = {"at": "place 1"} if arguments != "{bad" else "{bad" if dialect.calls[0].keys else {"arguments": "{bad"}
    assert dialect.calls[0].written([{"name": "f", "arguments": expected}]).strip() == call
    if arguments != "{bad":
        assert calls_of(parse([call], dialect, tools=[{"type": "function", "function": {"name": "f"}}])) == [
            ("f", expected)
        ]


def test_text_that_no_form_of_the_conversation_shows_is_an_error_that_names_its_message():
    template = ChatTemplate("{{ messages[-1].content }}")
    assert template.render([user("U1"), user("U2")]) == "U1\n\nU2"
    with pytest.raises(TemplateError, match=r"leaves out 'messages\[0\]', of the role 'user'") as caught:
        template.render([user("U1"), assistant("A1"), user("U2")])
    assert caught.value.param == "messages[0]"


@pytest.mark.parametrize("n_shown", range(1, 5))
def test_error_names_the_missing_one_of_equal_messages(n_shown: int):
    """The template prints only some of the messages, which have equal texts."""
    template = ChatTemplate(f"{{% for message in messages[:{n_shown}] %}}[{{{{ message.content }}}}]{{% endfor %}}")
    messages = [user("same"), assistant("same"), user("same"), assistant("same"), user("same")]
    with pytest.raises(TemplateError, match="leaves out") as caught:
        template.render(messages)
    assert caught.value.param == f"messages[{n_shown}]"


@pytest.mark.parametrize("expression", ["content.replace('/no_think', '')", 'content | replace("/no_think", "")'])
def test_word_that_the_template_takes_for_a_switch_is_not_missing(expression: str):
    content = "{% set content = message.content %}{{ '[off]' if '/no_think' in content }}"
    source = "{% for message in messages %}" + content + "[{{ message.role }}]{{ " + expression + " }}{% endfor %}"
    messages = [system("S1 /no_think"), user("U1"), assistant("A1"), user("U2")]
    assert ChatTemplate(source).render(messages) == "[off][system]S1 [user]U1[assistant]A1[user]U2"


@pytest.mark.parametrize("source", ["{{ messages[-1].content | upper }}", "{{ messages[-1].content | length }}"])
def test_template_that_prints_texts_in_another_way_is_not_checked(source: str):
    template = ChatTemplate(source)
    assert not template.capabilities.prints_texts
    assert template.render([user("U1"), assistant("A1"), user("abc")]) in ("ABC", "3")


CONVERSATION = [system("S1"), system("S0"), user("U1"), assistant("A1"), system("S2"), user("U2"), user("U3")]
LOOK_1: dict[str, Any] = {"name": "look_1", "description": "T1"}
BODIES = {
    "/v1/chat/completions": {
        "messages": CONVERSATION,
        "tools": [{"type": "function", "function": {**LOOK_1, "parameters": LOOK, "strict": False}}],
    },
    "/v1/messages": {
        "system": "S1",
        "messages": [system("S0"), user("U1"), assistant("A1"), system("S2"), user("U2"), user("U3")],
        "tools": [{**LOOK_1, "input_schema": LOOK}],
        "max_tokens": 1,
    },
    "/v1/responses": {
        "instructions": "S1",
        "input": [developer("S0"), user("U1"), assistant("A1"), developer("S2"), user("U2"), user("U3")],
        "tools": [{"type": "function", **LOOK_1, "parameters": LOOK, "strict": True}],
    },
    "/api/chat": {
        "messages": CONVERSATION,
        "tools": [{"type": "function", "function": {**LOOK_1, "parameters": LOOK}}],
    },
}


@pytest.mark.parametrize("name", STRANGE)
def test_all_interfaces_give_the_same_prompt(name: str):
    prompts = []
    with serving(chat_template=STRANGE[name], **BIG) as running:
        for path, body in BODIES.items():
            status, response = ask(running.port, path, {"stream": False, **body})
            assert status == 200, response
            prompts.append(running.last_prompt)
    assert len(set(prompts)) == 1
    assert all(text in prompts[0] for text in ("S1", "S0", "U1", "A1", "S2", "U2", "U3", "T1"))


def test_work_grows_with_the_conversation_and_not_with_its_square():
    """Also where many texts become one."""
    template = ChatTemplate(TURNS)
    messages = [user(f"text {i}") for i in range(50_000)]
    prompt = template.render(messages)
    assert prompt.endswith("text 49999")
    calls = [assistant("", *range(10_000)), *(result(i, f"R{i}") for i in reversed(range(10_000)))]
    prompt = ChatTemplate(STRANGE["text beside calls is left out"]).render([user("U1"), *calls])
    assert prompt.index("R0") < prompt.index("R9999")
