"""A chat template in the sandbox: Jinja features, errors, BOS, and the assistant prefill."""

import pytest

from localchat.serving.chat.prompt import sandbox
from localchat.serving.chat.prompt.template import CHATML, ChatTemplate, TemplateError

from .chat_templates import SPECIAL, USER, call_message, render


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        pytest.param("  {% if true %}\nx\n  {% endif %}\ny", "x\ny", id="a line with only a block"),
        pytest.param(
            "{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01", id="break"
        ),
        pytest.param("{% generation %}a{{ messages[0].content }}{% endgeneration %}b", "ahib", id="generation"),
        pytest.param("{{ {'b': 'é', 'a': 1} | tojson }}", '{"b": "é", "a": 1}', id="tojson keeps letters and order"),
        pytest.param(
            "{{ {'b': 1, 'a': 2} | tojson(sort_keys=true, separators=(',', ':')) }}",
            '{"a":2,"b":1}',
            id="tojson options",
        ),
        pytest.param("{{ ['é'] | tojson(ensure_ascii=true) }}", '["\\u00e9"]', id="tojson ascii"),
        pytest.param("{{ messages | map(attribute='role') | tojson }}", '["user"]', id="tojson of a generator"),
        pytest.param("{{ ('[1]' | from_json)[0] + 1 }}", "2", id="from_json"),
        pytest.param("{{ ['a', 1] | join('-') }}{{ 'a' ~ 1 ~ none }}", "a-1a1None", id="join and tilde"),
        pytest.param("{{ messages | join('-', attribute='role') }}", "user", id="join by attribute"),
        pytest.param(
            "{% set n = namespace(a=[]) %}{% set _ = n.a.append(1) %}{{ n.a.pop() }}", "1", id="lists of its own"
        ),
        pytest.param("{{ strftime_now('%Y') | length }}", "4", id="strftime_now"),
        pytest.param("{{ tools is none }}{{ nothing is defined }}", "TrueFalse", id="no tools is none"),
    ],
)
def test_template_language(source, expected):
    assert render(source) == expected


@pytest.mark.parametrize(
    ("source", "message"),
    [
        pytest.param("{% if %}", "not valid Jinja at line 1", id="syntax"),
        pytest.param(
            "{{ raise_exception('only one user') }}", "refuses this conversation: only one user", id="raise_exception"
        ),
        pytest.param("{{ messages.__class__.__name__ }}", "unsafe", id="attribute"),
        pytest.param("{{ messages[0]['__class__'].mro() }}", "undefined|unsafe", id="item that is an attribute"),
        pytest.param("{{ messages[0].update({'role': 'x'}) }}", "unsafe", id="dict update"),
        pytest.param("{{ 'x' * 1000000000 }}", "too large", id="repetition"),
        pytest.param("{{ 9 ** 99999999 }}", "too large", id="power"),
        pytest.param("{{ '%999999999d' % 1 }}", "too large", id="width of %"),
        pytest.param("{{ '{:999999999}'.format(1) }}", "width", id="width of format"),
        pytest.param("{{ 'x'.ljust(999999999) }}", "unsafe", id="padding"),
        pytest.param(
            "{% for i in range(200) %}{% for j in range(200) %}{% endfor %}{% endfor %}",
            "loops more than 20000 times",
            id="loops",
        ),
        pytest.param("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "RecursionError", id="recursion"),
        pytest.param("{{ messages[0].content + 1 }}", "TypeError", id="type error"),
        pytest.param(
            "{% set n = namespace(t='x') %}{% for i in range(99) %}{% set n.t = n.t + n.t %}{% endfor %}",
            "too large",
            id="doubling",
        ),
        pytest.param("{% if 1 %}" * 200 + "{% endif %}" * 200, "cannot be compiled", id="nesting of the source"),
    ],
)
def test_template_error(source, message, monkeypatch):
    monkeypatch.setattr(sandbox, "MAX_LOOP_STEPS", 20_000)
    with pytest.raises(TemplateError, match=message):
        render(source)


def test_input_nested_too_deeply_is_an_error():
    deep = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(TemplateError, match="nested too deeply"):
        render(None, variables={"documents": deep})
    with pytest.raises(TemplateError, match="nested too deeply"):
        render(None, [call_message("[" * 100_000)])


def test_template_cannot_change_its_variables():
    messages = [{"role": "user", "content": "hi"}]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"required": ["a"]}}}]
    source = "{% set _ = tools[0].function.parameters.required.append('b') %}{{ tools | tojson }}"
    assert '"b"' in render(source, messages, tools=tools)
    assert tools[0]["function"]["parameters"]["required"] == ["a"]


@pytest.mark.parametrize(
    ("source", "add_bos", "content", "expected"),
    [
        pytest.param("{{ messages[0].content }}", True, "hi", "<s>hi", id="added"),
        pytest.param("{{ bos_token }}{{ messages[0].content }}", True, "hi", "<s>hi", id="not doubled (T33)"),
        pytest.param("{{ bos_token }}{{ messages[0].content }}", False, "hi", "<s>hi", id="printed by the template"),
        pytest.param("{{ messages[0].content }}", False, "hi", "hi", id="none"),
        pytest.param("{{ messages[0].content }}", True, "<s>hi", "<s><s>hi", id="in user text"),
    ],
)
def test_prompt_starts_with_one_bos(source, add_bos, content, expected):
    template = ChatTemplate(source, bos_token="<s>", add_bos=add_bos, special_texts=SPECIAL)
    assert template.render([{"role": "user", "content": content}]) == expected


THINKING = CHATML.replace(
    "assistant\n{% endif %}", "assistant\n{% if think %}<think>\n{% endif %}{% endif %}{# </think> #}"
)


HEADER = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
CHANNELS, SECTIONS = (
    f"{{# {marks} #}}{{% for m in messages %}}{{{{ m.content }}}}{{% endfor %}}{{{{ tools }}}}"
    for marks in ("<|start|> <|channel|> <|message|>", "<|open|> <|close|> <|sep|>")
)
IT_IS, HM = {"content": "It is"}, {"reasoning_content": "hm"}
CONTINUED = {"continue_final_message": "reasoning_content"}
# The template, the last message, the options, and the prompt.
PREFILLS = {
    "content": (THINKING, IT_IS, {}, HEADER + "It is"),
    "content, reasoning open": (
        THINKING, IT_IS, {"variables": {"think": True}}, HEADER + "<think>\n\n</think>\n\nIt is",
    ),
    "reasoning and content": (THINKING, {**IT_IS, **HM}, {}, HEADER + "<think>\nhm\n</think>\n\nIt is"),
    "reasoning": (THINKING, {"content": "", **HM}, CONTINUED, HEADER + "<think>\nhm"),
    "channel": (CHANNELS, IT_IS, {}, "hiNone<|channel|>final<|message|>It is"),
    "channels": (
        CHANNELS, {**IT_IS, **HM}, {},
        "hiNone<|channel|>analysis<|message|>\nhm\n<|end|><|start|>assistant<|channel|>final<|message|>It is",
    ),
    "section": (SECTIONS, IT_IS, {}, "hiNone<|open|>response<|sep|>It is"),
}  # fmt: skip


@pytest.mark.parametrize(("source", "final", "options", "prompt"), PREFILLS.values(), ids=PREFILLS)
def test_final_message_is_the_assistant_prefill(source, final, options, prompt):
    messages = [USER, {"role": "assistant", **final}]
    assert render(source, messages, **{"continue_final_message": True, **options}) == prompt


def test_prefix_is_the_assistant_prefill():
    assert render(None, prefix="Sure").endswith("assistant\nSure")
