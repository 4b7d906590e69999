"""A chat template in the sandbox: Jinja, errors, BOS, the assistant prefill, messages in its format, and user text."""

import faulthandler
import json
import re
import time

import jinja2
import pytest

from localchat.serving.chat.model import Model
from localchat.serving.chat.prompt import jinja
from localchat.serving.chat.prompt.capabilities import Capabilities
from localchat.serving.chat.prompt.control_tokens import without_markers
from localchat.serving.chat.prompt.jinja import TemplateError, compile_template, new_deadline, render_template
from localchat.serving.chat.prompt.template import CHATML, ChatTemplate
from localchat.serving.chat.prompt.template_messages import adapt_messages, whole_tool
from tests.support.deadline import DEADLINE_S
from tests.support.engines import client_of, stepped
from tests.support.fakes import FakeBackend
from tests.support.growth import assert_linear
from tests.support.time_limit import limited_time

SPECIAL = ("<|im_start|>", "<|im_end|>", "<s>", "</s>")
USER = {"role": "user", "content": "hi"}
CALLS = """{%- for m in messages %}
[{{ m.role }}]{{ m.content }}
{%- for call in m.tool_calls or [] %}<{{ call.function.name }}:{{ ARGUMENTS }}:{{ call.id }}>{% endfor %}
{%- endfor %}"""
JSON_CALLS = CALLS.replace("ARGUMENTS", "call.function.arguments | tojson")


def render(source, messages=(USER,), **options):
    return ChatTemplate(source).render(messages, **options)


def call_message(arguments, call_id="call_1"):
    function = {"name": "f", "arguments": arguments}
    return {"role": "assistant", "tool_calls": [{"id": call_id, "type": "function", "function": function}]}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        pytest.param("  {% if true %}\nx\n  {% endif %}\ny", "x\ny", id="a line with only a block"),
        pytest.param("{% for i in [0, 1] %}{% if i %}{% break %}{% endif %}{{ i }}{% endfor %}", "0", id="break"),
        pytest.param("{% generation %}a{{ messages[0].content }}{% endgeneration %}b", "ahib", id="generation"),
        pytest.param("{{ {'b': 'é', 'a': 1} | tojson }}", '{"b": "é", "a": 1}', id="tojson keeps letters and order"),
        ("{{ {'b': 1, 'a': 2} | tojson(sort_keys=true, separators=(',', ':')) }}", '{"a":2,"b":1}'),
        pytest.param("{{ messages | map(attribute='role') | tojson }}", '["user"]', id="tojson of a generator"),
        pytest.param("{{ ('[1]' | from_json)[0] + 1 }}", "2", id="from_json"),
        pytest.param("{{ '<' | safe + '\"' }}", '<"', id="nothing is escaped"),
        pytest.param("{{ strftime_now('%Y') | length }}", "4", id="strftime_now"),
        pytest.param("{{ tools is none }}{{ nothing is defined }}", "TrueFalse", id="no tools is none"),
    ],
)
def test_template_language(source, expected):
    assert render(source) == expected


# A value for filters that need a special one, and the arguments of filters that need some.
FILTER_VALUES = {"dictsort": {"b": 1, "a": 2}, "items": {"a": 1}, "xmlattr": {"a": 1}, "groupby": [{"x": 1}]}
FILTER_VALUES.update({name: [2, 1] for name in ("batch", "slice", "random", "max", "min", "sort", "sum", "unique")})
FILTER_VALUES.update(dict.fromkeys(("abs", "filesizeformat", "round", "int", "float"), 3))
FILTER_VALUES.update(from_json="[1]", map=[{"x": 1}], selectattr=[{"x": 1}], rejectattr=[{"x": 1}])
FILTER_ARGUMENTS = {"attr": "'x'", "batch": "2", "slice": "2", "replace": "'a', 'b'", "groupby": "'x'"}
FILTER_ARGUMENTS.update(dict.fromkeys(("selectattr", "rejectattr"), "'x'"), map="attribute='x'")


@pytest.mark.parametrize("name", sorted({*jinja2.defaults.DEFAULT_FILTERS, "from_json"}))
def test_template_has_all_filters_of_jinja(name):
    source = f"{{{{ value | {name}({FILTER_ARGUMENTS.get(name, '')}) | string | length }}}}"
    assert render(source, variables={"value": FILTER_VALUES.get(name, "a b")}).isdigit()


# A template that is refused, and a part of the message.
ERRORS = [
    ("{% if %}", "not valid Jinja at line 1"),
    ("{{ raise_exception('only one user') }}", "refuses this conversation: only one user"),
    ("{{ messages.__class__.__name__ }}", "unsafe"),
    ("{{ messages[0]['__class__'].mro() }}", "undefined|unsafe"),
    ("{{ messages[0].update({'role': 'x'}) }}", "unsafe"),
    ("{{ range(10 ** 9) }}", "Range too big"),
    ("{{ 'a' | oops }}", "No filter named"),
    ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "RecursionError"),
    ("{{ messages[0].content + 1 }}", "TypeError"),
    ("{% if 1 %}" * 200 + "{% endif %}" * 200, "cannot be compiled"),
    ("a" * 200_000, "200000 characters; the limit is 131072"),
    ("{{ ('9' * 999) | from_json }}", "an integer of 999 digits is too large"),
    ("{{ 'x' * 10 ** 9 }}", "the result of '\\*' has 1000000000 items, the limit is 33554432"),
    ("{{ 10 ** 9 * 'x' }}", "the result of '\\*' has 1000000000 items, the limit is 33554432"),
    ("{{ " + "[" * 500 + "]" * 500 + " }}", "nested too deeply"),
    ("{{ 9 ** 99999999 }}", "the result of '\\*\\*' has about 399999996 bits, the limit is 1024"),
    ("{{ 10 ** 200 * 10 ** 200 }}", "about 1330 bits"),
    ("{% for i in range(99) %}{{ 'x' * 999999 }}{% endfor %}", "prints 33999966 characters or more"),
]


@pytest.mark.parametrize(("source", "message"), ERRORS, ids=lambda text: text[:40])
def test_template_error(source, message):
    with pytest.raises(TemplateError, match=message):
        render_template(compile_template(source), {"messages": [USER]}, new_deadline())


def test_small_products_are_not_limited():
    assert render("{{ 2 ** 8 }} {{ '-' * 3 }} {{ 1700000000123 * 1000 }}") == "256 --- 1700000000123000"


NESTED = "{% for a in r %}{% for b in r %}{% for c in r %}BODY{% endfor %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    "source",
    [
        NESTED.replace("BODY", ""),
        NESTED.replace("BODY", "{{ a }}"),
        "{% set n = namespace(x=0) %}" + NESTED.replace("BODY", "{% set n.x = n.x + 1 %}"),
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
        "{% for a in r recursive %}{{ loop(r) if loop.depth < 9 }}{% endfor %}",
    ],
)
def test_template_of_a_request_ends_at_its_deadline(source, monkeypatch):
    # A loop that cannot be interrupted would stop the tests.
    faulthandler.dump_traceback_later(DEADLINE_S, exit=True)
    monkeypatch.setattr(jinja, "MAX_RENDER_S", 0.1)
    try:
        with stepped(FakeBackend()) as engine:
            template = Model("m", client_of(engine)).template_for("{% set r = range(99999) %}" + source)
        with limited_time(5), pytest.raises(TemplateError, match=r"it takes more than 0\.1 s"):
            template.render([USER])
    finally:
        faulthandler.cancel_dump_traceback_later()


def test_template_of_a_model_ends_at_its_deadline_when_it_prints(monkeypatch):
    monkeypatch.setattr(jinja, "MAX_RENDER_S", 0.1)
    template = compile_template("{% set r = range(99999) %}" + NESTED.replace("BODY", "{{ a }}"))
    with pytest.raises(TemplateError, match=r"it takes more than 0\.1 s"):
        render_template(template, {}, new_deadline())


@pytest.mark.parametrize("source", ["{{ raise_exception('a' * 9999) }}", "{{ messages['a' * 9999].b }}"])
def test_error_shows_the_start_of_a_long_text(source):
    with pytest.raises(TemplateError, match="a" * 900) as caught:
        render(source)
    assert len(str(caught.value)) < 1200


def test_input_nested_too_deeply_is_an_error():
    deep = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(TemplateError, match="nested too deeply"):
        render(None, variables={"documents": deep})
    with pytest.raises(TemplateError, match="nested too deeply"):
        render(None, [call_message("[" * 100_000)])


@pytest.mark.parametrize(
    ("variables", "prompt"),
    [
        ({"enable_thinking": True}, "on"),
        ({"enable_thinking": False}, "off"),
        ({}, "default"),
        ({"enable_thinking": False, "thinking": True}, "on"),
    ],
)
def test_variable_that_turns_on_the_reasoning_has_both_its_names(variables, prompt):
    source = (
        "{% if thinking is undefined %}default{% elif thinking %}on{% else %}off{% endif %}{{ messages[0].content }}"
    )
    assert render(source, variables=variables).startswith(prompt)


def test_template_cannot_change_its_variables():
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"required": ["a"]}}}]
    source = "{% set _ = tools[0].function.parameters.required.append('b') %}{{ tools | tojson }}"
    assert '"b"' in render(source, tools=tools)
    assert tools[0]["function"]["parameters"]["required"] == ["a"]


@pytest.mark.parametrize(
    ("source", "add_bos", "content", "expected"),
    [
        pytest.param("{{ messages[0].content }}", True, "hi", "<s>hi", id="added"),
        pytest.param("{{ bos_token }}{{ messages[0].content }}", True, "hi", "<s>hi", id="not doubled"),
        pytest.param("{{ bos_token }}{{ messages[0].content }}", False, "hi", "<s>hi", id="printed by the template"),
        pytest.param("{{ messages[0].content }}", False, "hi", "hi", id="none"),
        pytest.param("{{ messages[0].content }}", True, "<s>hi", "<s><s>hi", id="in user text"),
    ],
)
def test_prompt_starts_with_one_bos(source, add_bos, content, expected):
    template = ChatTemplate(source, bos_token="<s>", add_bos=add_bos, special_texts=SPECIAL)
    assert without_markers(template.render([{"role": "user", "content": content}])) == expected


THINKING = CHATML + "{# <think> </think> #}"
HEADER = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
CHANNELS, SECTIONS = (
    f"{{# {marks} #}}{{% for m in messages %}}{{{{ m.content }}}}{{% endfor %}}{{{{ tools }}}}"
    for marks in ("<|start|> <|channel|> <|message|>", "<|open|> <|close|> <|sep|>")
)
# The template, the reasoning and the text of the prefill, and the prompt.
PREFILLS = {
    "content": (THINKING, "", "It is", HEADER + "It is"),
    "content, reasoning open": (THINKING + "<think>{{ '\n' }}", "", "It is", HEADER + "<think>\n\n</think>\n\nIt is"),
    "reasoning and content": (THINKING, "hm", "It is", HEADER + "<think>\nhm\n</think>\n\nIt is"),
    "reasoning": (THINKING, "hm", None, HEADER + "<think>\nhm"),
    "channel": (CHANNELS, "", "It is", "hiNone<|channel|>final<|message|>It is"),
    "channels": (
        CHANNELS, "hm", "It is",
        "hiNone<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>It is",
    ),
    "section": (SECTIONS, "", "It is", "hiNone<|open|>response<|sep|>It is"),
}  # fmt: skip


@pytest.mark.parametrize(("source", "reasoning", "text", "prompt"), PREFILLS.values(), ids=PREFILLS)
def test_prefill_ends_the_prompt(source, reasoning, text, prompt):
    """Only its markers, and not its texts, may become control tokens."""
    template = ChatTemplate(source, special_texts=SPECIAL + tuple(re.findall(r"<\|\w+\|>", prompt)))
    rendered = template.render([USER])
    assert template.prefilled(rendered, reasoning, text) == prompt
    forged = template.prefilled(rendered, reasoning and "</s>", text and "<|im_end|>")
    parsed = "".join(part for part, is_parsed in template.parts(forged) if is_parsed)
    assert (parsed.count("</s>"), parsed.count("<|im_end|>")) == (0, rendered.count("<|im_end|>"))


# --- messages and tools in the format of the template ---


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        pytest.param({"role": "assistant"}, "[assistant]", id="content is absent"),
        pytest.param({"role": "developer", "content": "a"}, "[system]a", id="developer is system"),
        pytest.param(call_message('{"a": 1}'), '[assistant]<f:{"a": 1}:call_1>', id="arguments are decoded"),
        pytest.param(call_message(""), "[assistant]<f:{}:call_1>", id="empty arguments"),
        pytest.param(call_message("{oops"), '[assistant]<f:"{oops":call_1>', id="invalid JSON stays text"),
        pytest.param(call_message("[1]"), '[assistant]<f:"[1]":call_1>', id="JSON that is not an object stays text"),
    ],
)
def test_message_in_the_format_of_the_template(message, expected):
    assert render(JSON_CALLS, [message]) == expected


@pytest.mark.parametrize("decoded", ["call.function.arguments", "(call.function.arguments | from_json)"])
@pytest.mark.parametrize("written", ["{oops", "[1]"])
def test_template_that_iterates_arguments_gets_invalid_ones_as_one_argument(decoded, written):
    items = f"{{% for k, v in {decoded}.items() %}}{{{{ k ~ '=' ~ v }}}}{{% endfor %}}"
    source = CALLS.replace("{{ ARGUMENTS }}", items)
    assert render(source, [call_message('{"a": 1}')]) == "[assistant]<f:a=1:call_1>"
    assert render(source, [call_message(written)]) == f"[assistant]<f:arguments={written}:call_1>"


REFUSED = "{{ raise_exception('one!') if m.tool_calls and m.tool_calls | length > 1 }}"
# Templates that drop the other calls of a message, or refuse them.
ONE_CALL = {
    "drops": JSON_CALLS.replace("m.tool_calls or []", "(m.tool_calls or [])[:1]"),
    "refuses": JSON_CALLS.replace("[{{ m.role", REFUSED + "[{{ m.role"),
}
TWO_CALLS = [call_message({"a": i}, f"call_{i}")["tool_calls"][0] for i in (1, 2)]
SHOWN_CALLS = ('[assistant]so<f:{"a": 1}:call_1>', '[assistant]<f:{"a": 2}:call_2>')


@pytest.mark.parametrize("source", ONE_CALL.values(), ids=ONE_CALL)
@pytest.mark.parametrize(
    ("ids", "shown"),
    [
        (["call_1", "call_2"], ["[tool]call_1", "[tool]call_2"]),
        (["call_2", "call_1"], ["[tool]call_1", "[tool]call_2"]),
        ([None, None], ["[tool]None", "[tool]None"]),
        (["call_1", "x"], ["[tool]call_1", "[tool]x"]),
        ([], ["", ""]),
    ],
)
def test_template_that_shows_one_call_per_message_gets_a_message_for_each_call(source, ids, shown):
    results = [{"role": "tool", "content": str(id), "tool_call_id": id} for id in ids]
    message = {"role": "assistant", "content": "so", "tool_calls": TWO_CALLS}
    expected = [text for pair in zip(SHOWN_CALLS, shown) for text in pair]
    assert render(source, [message, *results, USER]) == "".join([*expected, "[user]hi"])


def test_calls_without_ids_match_results_in_order():
    calls = [{"type": "function", "function": call["function"]} for call in TWO_CALLS]
    results = [{"role": "tool", "content": id, "tool_call_id": id} for id in ("x", "y")]
    shown = render(ONE_CALL["drops"], [{"role": "assistant", "content": "so", "tool_calls": calls}, *results])
    assert shown == '[assistant]so<f:{"a": 1}:>[tool]x[assistant]<f:{"a": 2}:>[tool]y'


def test_time_for_many_calls_and_results_is_linear():

    def seconds(n: int) -> float:
        calls = [{**TWO_CALLS[0], "id": f"call_{i}"} for i in range(n)]
        results = [{"role": "tool", "content": "", "tool_call_id": f"call_{n - 1 - i}"} for i in range(n)]
        messages = [{"role": "assistant", "tool_calls": calls}, *results, *[USER] * n]
        began_at = time.thread_time()
        adapted = adapt_messages(messages, None, Capabilities(one_call=True, has_system_role=False), str)
        assert len(adapted) == 2 * n + 1
        return time.thread_time() - began_at

    assert_linear(seconds, 1000, 15, 0.002)


def test_template_that_requires_short_ids_gets_equal_ids_for_call_and_result():
    source = JSON_CALLS.replace("{{ call", "{{ raise_exception('nine, please') if call.id | length != 9 else call")
    result = {"role": "tool", "content": "", "tool_call_id": "call_1"}
    template = ChatTemplate(source.replace("{{ m.content }}", "{{ m.content }}{{ m.tool_call_id }}"))
    text = template.render([call_message({}), result])
    call_id, result_id = re.fullmatch(r"\[assistant\]<f:\{\}:(\w{9})>\[tool\](\w{9})", text.replace("\n", "")).groups()
    assert call_id == result_id
    assert "abc123XYZ" in template.render([call_message({}, "abc123XYZ")])


def test_tools_have_the_fields_that_templates_require_in_their_own_order():
    functions = {"name": "f"}, {"parameters": {"title": "T"}, "name": "f", "description": "d"}
    tools = [{"type": "function", "function": function} for function in functions]
    assert render("{% for tool in tools %}{{ tool.function | tojson }}\n{% endfor %}", tools=tools).splitlines() == [
        '{"name": "f", "description": "", "parameters": {"type": "object", "properties": {}}}',
        '{"parameters": {"title": "T", "type": "object", "properties": {}}, "name": "f", "description": "d"}',
    ]


def test_templates_for_the_older_functions_get_these_as_text():
    tools = [{"type": "function", "function": {"name": "f"}}]
    source = "{{ functions }}{% for message in messages %}{{ message.content }}{% endfor %}"
    text = json.dumps([whole_tool(tool) for tool in tools], indent=2)
    assert render(source, tools=tools) == text + render(source)
    # With the time, later prompts of a conversation would not begin like the first one.
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", render("{{ datetime }}" + source).removesuffix(render(source)))


OPENED = "{% for m in messages %}"
DEVELOPER = [{"role": "developer", "content": "x"}]
REASONED = {"role": "assistant", "content": "a", "reasoning_content": "b"}
REASONED_CALL = {**call_message({}), **REASONED}
NULL_CONTENT = "{% if m.content is none %}{{ m.tool_calls | tojson }}{% else %}{{ m.content }}{% endif %}{% endfor %}"
IN_PARTS = """{% if m.content is string %}{{ m.content }}{% else %}{{ m.content | length }}
{%- for p in m.content %}{{ '<' + p.thinking + '>' if p.type == 'thinking' else p.text }}{% endfor %}{% endif %}
{%- endfor %}"""
BOTH = "({{ m.thinking }}){{ m.content }}{{ (m.tool_calls or []) | tojson }}{% endfor %}"
REFUSING = "{% if m.content and m.thinking and m.tool_calls %}{{ raise_exception('both') }}{% endif %}"

# The template, the messages, and the beginning of the prompt.
FIELDS = {
    "arguments as text": (
        CALLS.replace("ARGUMENTS", "call.function.arguments"), [call_message({"a": "é"})],
        '[assistant]<f:{"a": "é"}:call_1>',
    ),
    "content in parts": (OPENED + "{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}", [USER], "hi"),
    "a list of no tools": ("{% for t in tools %}{% endfor %}{{ messages[0].content }}", [USER], "hi"),
    "developer": (OPENED + "{{ m.role }} {{ m.content }}{% endfor %}{# developer #}", DEVELOPER, "developer x"),
    "developer without effect": (
        OPENED + "{% if m.role == 'system' %}system {{ m.content }}{% endif %}{% endfor %}{# developer #}", DEVELOPER,
        "system x",
    ),
    "calls without content": (OPENED + NULL_CONTENT, [USER, call_message({})], 'hi[{"'),
    **{
        f"reasoning in {key}": (OPENED + f"{{{{ m.content }}}}({{{{ m.{key} }}}}){{% endfor %}}", [REASONED], "a(b)")
        for key in ("thinking", "reasoning", "reasoning_content")
    },
    "reasoning in a part": (OPENED + IN_PARTS, [REASONED], "2<b>a"),
    "reasoning refused beside text and calls": (OPENED + REFUSING + BOTH, [REASONED_CALL], "()b\n\na[{"),
    "reasoning beside text and calls": (OPENED + BOTH, [REASONED_CALL], "(b)a[{"),
}  # fmt: skip


@pytest.mark.parametrize(("source", "messages", "shown"), FIELDS.values(), ids=FIELDS)
def test_message_has_the_fields_that_the_template_reads(source, messages, shown):
    assert render(source, messages).startswith(shown)


PLAIN_ROLES = """{%- for m in messages %}
{%- if m.role not in ROLES %}{{ raise_exception('no ' + m.role) }}{% endif -%}
[{{ m.role }}]{{ m.content }}
{%- endfor %}"""
TOOLS = [{"type": "function", "function": {"name": "f"}}]
SYSTEM, RESULT = {"role": "system", "content": "Be brief."}, {"role": "tool", "content": "3"}
WRITTEN = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
# The roles that a template supports, the messages, and the prompt.
MOVED = {
    "call and result": (
        ["system", "user", "assistant"], [call_message({}), RESULT],
        f"[assistant]{WRITTEN}[user]<tool_response>\n3\n</tool_response>",
    ),
    "no system role": (["user", "assistant"], [SYSTEM, USER], "[user]Be brief.\n\nhi"),
    "text and call": (
        ["system", "user", "assistant", "tool"], [{**call_message({}), "content": "Well."}, RESULT],
        f"[assistant]Well.\n{WRITTEN}[tool]3",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("roles", "messages", "expected"), MOVED.values(), ids=MOVED)
def test_unsupported_content_moves_to_supported_messages(roles, messages, expected):
    assert render(PLAIN_ROLES.replace("ROLES", str(roles)), messages) == expected


@pytest.mark.parametrize("roles", [["system", "user"], ["user"]], ids=["system", "no system"])
def test_template_without_tools_gets_a_description_of_the_tools(roles):
    tools = [{"type": "function", "function": {"name": "f", "description": "Gr\u00fc\u00dfe"}}]
    text = render(PLAIN_ROLES.replace("ROLES", str(roles)), [SYSTEM, USER], tools=tools)
    assert text.startswith(f"[{roles[0]}]You can call functions.")
    described = '{"type": "function", "function": {"name": "f", "description": "Gr\u00fc\u00dfe"}}'
    assert f"\n<tools>\n{described}\n</tools>\n" in text
    call = '{"name": "the_name", "arguments": {"an_argument": "its value"}}'
    assert f"<tool_call>\n{call}\n</tool_call>\n\nBe brief." in text


DEEPSEEK = ("<｜tool▁call▁begin｜>the_name<｜tool▁sep｜>", "<｜tool▁call▁end｜>")  # noqa: RUF001
EACH = "{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.mark.parametrize(
    ("source", "messages", "shown"),
    [
        (f"{EACH}{{# {DEEPSEEK[0]} #}}", [USER], '{"an_argument": "its value"}'.join(DEEPSEEK)),
        (EACH + "{# <TOOLCALL> #}", [USER], '<TOOLCALL>[{"name": "the_name", '),
        (EACH + "{# <|tool_call_start|> tools #}", [call_message({"a": "x"})], '<|tool_call_start|>[f(a="x")]<|tool_'),
    ],
)
def test_calls_are_described_and_written_in_the_format_of_the_family(source, messages, shown):
    assert shown in render(source, messages, tools=TOOLS)


def test_missing_template_is_chatml():
    assert render(None) == render("") == HEADER


def test_test_conversations_share_one_deadline(monkeypatch):
    """A template that takes long for each of them would delay the start twenty times."""
    monkeypatch.setattr(jinja, "MAX_RENDER_S", 0.2)
    slow = "{% if messages | length > 1 %}{% for a in range(99999) %}{% for b in range(99999) %}{{ '' }}{% endfor %}"
    with limited_time(10):
        template = ChatTemplate(slow + "{% endfor %}{% endif %}{{ messages[-1].content }}")
    assert not template.capabilities.shows_results  # This test conversation comes after the deadline.
    assert template.render([USER]) == "hi"
