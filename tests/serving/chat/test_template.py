"""A chat template in the sandbox: Jinja, errors, BOS, the assistant prefill, messages in its format, and user text."""

import faulthandler
import re

import pytest

from localchat.serving.chat.prompt import sandbox
from localchat.serving.chat.prompt.marked import user_ranges
from localchat.serving.chat.prompt.sandbox import TemplateError, compile_template, render_template
from localchat.serving.chat.prompt.template import CHATML, ChatTemplate, prefilled

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
        pytest.param("{{ strftime_now('%Y') | length }}", "4", id="strftime_now"),
        pytest.param("{{ tools is none }}{{ nothing is defined }}", "TrueFalse", id="no tools is none"),
    ],
)
def test_template_language(source, expected):
    assert render(source) == expected


# A template that is refused, and a part of the message.
ERRORS = [
    ("{% if %}", "not valid Jinja at line 1"),
    ("{{ raise_exception('only one user') }}", "refuses this conversation: only one user"),
    ("{{ messages.__class__.__name__ }}", "unsafe"),
    ("{{ messages[0]['__class__'].mro() }}", "undefined|unsafe"),
    ("{{ messages[0].update({'role': 'x'}) }}", "unsafe"),
    ("{% for i in range(200) %}{% for j in range(200) %}{% endfor %}{% endfor %}", "loops more than 20000 times"),
    ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "RecursionError"),
    ("{{ messages[0].content + 1 }}", "TypeError"),
    ("{% if 1 %}" * 200 + "{% endif %}" * 200, "cannot be compiled"),
    *((f"{{{{ 'a' | {name} }}}}", "No filter named") for name in ("batch(3)", "slice(3)", "round(3)", "sum")),
    *((f"{{{{ 'a' | {name} }}}}", "No filter named") for name in ("striptags", "center", "urlize", "groupby")),
    *((f"{{{{ ''.{name}(1) }}}}", "unsafe") for name in ("ljust", "center", "format_map")),
    *((f"{{{{ {name}(1) }}}}", "unsafe") for name in ("{}.fromkeys", "(1).to_bytes")),
    *((f"{{{{ {name}([(1, 1)]) }}}}", "TypeError") for name in ("dict", "namespace")),
    ("{% autoescape true %}{% endautoescape %}", "autoescape is not supported"),
    ("a" * 200_000, "200000 characters; the limit is 131072"),
    ("{{ ('9' * 999) | from_json }}", "an integer of 999 digits is too large"),
]


@pytest.mark.parametrize(("source", "message"), ERRORS, ids=lambda text: text[:40])
def test_template_error(source, message, monkeypatch):
    monkeypatch.setattr(sandbox, "MAX_LOOP_STEPS", 20_000)
    with pytest.raises(TemplateError, match=message):
        render(source)


# Lists and tuples whose text doubles with each step, and texts that are near the limit of one operation.
LISTS, TUPLES = (
    f"{{% set n = namespace(x={x}) %}}{{% for i in range(40) %}}{{% set n.x = {twice} %}}{{% endfor %}}"
    for x, twice in (("[1]", "[n.x, n.x]"), ("(1, 2)", "(n.x, n.x)"))
)
OTHER = LISTS + "{% set m = n.x %}" + LISTS
TEXT = "{% set t = 'ab' * 14000 %}{% set t = t + t + t + t + t + t %}"
DEEP = "{% set n = namespace(x=()) %}{% for i in range(2000) %}{% set n.x = (n.x,) %}{% endfor %}"
PRINTED = [
    *("n.x", "n", "'a' ~ n.x", "{1: n.x}.items()", "','.join(n.x)", "'{}'.format(n.x)", "raise_exception(n.x)"),
    *("'%s' % (n.x,)", "'%r' % n.x", "(n.x * 2) | length"),
]
COMPARED = ["== m", "!= m", "< m", "in [m]", "not in [m]", "is eq(m)"]
FILTERS = ["string", "safe", "tojson", "sort", "min", "unique", "join", "upper", "trim", "select('eq', m) | list"]
HASHED = ["{n.x: 1}", "{}[n.x]", "{}.get(n.x)", "n.x in {}", "{}[[n.x]].a"]
RESULTS = [
    *("t + t", "t ~ t", "[t] * 9999", "[t, t] | join", "[1, 2, 3] | join(t)", "t.join('123')", "t | list"),
    *("t | replace('a', 'cc')", "t.replace('', 'c')", "t.split('b')", "t.split(sep='b')", "t.splitlines()"),
    *("('%(a)s' * 9) % {'a': t}", "('{0}' * 9).format(t)", "t | indent(9)", "[[t]] | tojson(indent=999999)"),
    *("t.find('ba' * 9999)", "'ba' * 9999 in t", "t.strip('ba' * 9999)", "t | trim('ba' * 9999)"),
    *("'%(a)99999d' % {'a': 1}", "'%*d' % (99999, 1)", "('9' * 9999) | int", "[{}] | map(attribute='a.' * 19999)"),
]
WORK = [
    *("{{ 'x' * 1000000000 }}", "{{ 10 ** 300 * 10 ** 300 }}", "{{ 9 ** 99999999 }}", "{{ '{:999999999}'.format(1) }}"),
    *("{{ '{:{w}}'.format('a', w=30000000) }}", "{{ 'a' | indent(30000000, true) }}"),
    "{{ ('a\n' * 9999) | indent(' ' * 9999) }}",
    "{% set n = namespace(t='x') %}{% for i in range(99) %}{% set n.t = n.t + n.t %}{% endfor %}",
    "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(40) }}",
    *(f"{LISTS}{{{{ {x} }}}}" for x in PRINTED),
    *(f"{OTHER}{{{{ n.x {x} }}}}" for x in COMPARED),
    *(f"{OTHER}{{{{ [m, n.x] | {x} }}}}" for x in FILTERS),
    OTHER + "{{ [m, n.x] | map('list') | sort }}",
    LISTS + "{% for i in range(2) %}{{ loop.changed(n.x) }}{% endfor %}",
    *(f"{TUPLES}{{{{ {x} }}}}" for x in HASHED),
    DEEP + "{{ {n.x: 1} }}",
    "{% set x = [] %}{% set _ = x.append(x) %}{{ x }}",
    *(TEXT + x for x in ("{{ t }}{{ t }}", "{% set a %}{{ t }}{{ t }}{% endset %}")),
    TEXT + "{% macro m() %}{{ t }}{{ t }}{% endmacro %}{{ m() | length }}",
    *(f"{TEXT}{{{{ ({x}) | length }}}}" for x in RESULTS),
    TEXT + "{% for i in range(999) %}{% set a = t[1:] %}{% endfor %}",
    "{% set t = [0] * 9999 %}{% for i in range(999) %}{% set a = t[1:] %}{% endfor %}",
    "{% for i in [1] recursive %}{{ loop(range(99999)) if loop.depth < 2 }}{% endfor %}",
    "{% block a %}{% for i in range(99999) %}{% endfor %}{{ self.a() }}{% endblock %}",
    # A variable with the name of the counter.
    "{% set _steps = range(9) %}{% for i in range(99999) %}{% endfor %}",
]


@pytest.mark.parametrize("source", WORK, ids=lambda source: source[-40:])
def test_operation_that_is_too_large_is_refused_before_it_runs(source, monkeypatch):
    monkeypatch.setattr(sandbox, "MAX_SIZE", 1 << 18)
    monkeypatch.setattr(sandbox, "MAX_LOOP_STEPS", 4_000)
    faulthandler.dump_traceback_later(5, exit=True)  # An operation in C would stop every other kind of timeout.
    try:
        # Without the test conversations of `ChatTemplate`, which would take ten times as long.
        with pytest.raises(TemplateError, match="refused as too much work"):
            render_template(compile_template(source), {"messages": [USER]})
    finally:
        faulthandler.cancel_dump_traceback_later()


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
    assert template.render([{"role": "user", "content": content}]) == expected


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
        "hiNone<|channel|>analysis<|message|>\nhm\n<|end|><|start|>assistant<|channel|>final<|message|>It is",
    ),
    "section": (SECTIONS, "", "It is", "hiNone<|open|>response<|sep|>It is"),
}  # fmt: skip


@pytest.mark.parametrize(("source", "reasoning", "text", "prompt"), PREFILLS.values(), ids=PREFILLS)
def test_prefill_ends_the_prompt(source, reasoning, text, prompt):
    """Only its markers, and not its texts, may become control tokens."""
    template = ChatTemplate(source)
    rendered = template.render([USER])
    found = prefilled(template.dialect, rendered, reasoning, text)
    assert found == prompt
    user_texts = [found[start:stop] for start, stop in user_ranges(found) if stop > start >= len(rendered)]
    assert user_texts == [part for part in (reasoning, text) if part]


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
    "reasoning refused beside text and calls": (OPENED + REFUSING + BOTH, [REASONED_CALL], "()a[{"),
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


def test_test_conversations_share_one_limit_of_work(monkeypatch):
    """A template that takes long for each of them would delay the start twenty times."""
    monkeypatch.setattr(sandbox, "MAX_LOOP_STEPS", 20_000)
    loops = "{% for _ in range(90) %}{% for _ in range(90) %}{% endfor %}{% endfor %}"
    template = ChatTemplate(loops + "{{ messages[-1].content }}")
    assert not template.capabilities.shows_results  # This test conversation comes after the limit.
    assert template.render([USER]) == "hi"
