"""Special cases of single model families: variants, incomplete outputs and headers."""

import json

import pytest

from localchat.serving.chat.dialects import DIALECTS
from localchat.serving.core.events import ContentDelta, ReasoningDelta, ToolCallArguments, ToolCallStart

from .dialect_outputs import ALL, ARGUMENTS, BAR, GOLDEN, TOOLS, calls_of, text_of
from .test_output import call, parse, parse_every_way, parser


@pytest.mark.parametrize(
    ("name", "text", "events"),
    [
        pytest.param("llama-3", '{"name": "now", "parameters": {}}', [("now", {})], id="llama: the answer is the call"),
        pytest.param(
            "llama-3", '{"type": "function", "function": "now", "parameters": {}}', [], id="llama: no name, no call"
        ),
        pytest.param("llama-3", '{"answer": 42}', [], id="llama: an answer in JSON"),
        pytest.param("llama-3", 'It is {"name": "now", "parameters": {}}', [], id="llama: JSON within text"),
        pytest.param(
            "mistral",
            '[TOOL_CALLS][{"name": "now", "arguments": {}, "id": "abc"}]',
            [("now", {})],
            id="mistral: a list",
        ),
        pytest.param("mistral", '[TOOL_CALLS]now{"a": 1}', [("now", {"a": 1})], id="mistral: no marker"),
        pytest.param(
            "deepseek",
            f"<{BAR}tool▁calls▁begin{BAR}><{BAR}tool▁call▁begin{BAR}>function<{BAR}tool▁sep{BAR}>now\n```json\n"
            f'{{"a": 1}}\n```<{BAR}tool▁call▁end{BAR}><{BAR}tool▁calls▁end{BAR}>',
            [("now", {"a": 1})],
            id="deepseek: R1",
        ),
        pytest.param(
            "qwen-coder",
            "<function=weather>\n<parameter=city>\na\n\nb\n</parameter>\n</function>\n</tool_call>",
            [("weather", {"city": "a\n\nb"})],
            id="coder: opening tag left out (K37)",
        ),
        pytest.param(
            "hermes",
            "<tool_call>\n<function=weather>\n<parameter=city>\nx\n</parameter>\n</function>\n</tool_call>",
            [("weather", {"city": "x"})],
            id="hermes: in the tags of another family",
        ),
        pytest.param(
            "qwen-coder",
            '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
            [("now", {})],
            id="coder: in the JSON of another family",
        ),
        pytest.param("harmony", "<|channel|>final<|message|>Hi", [], id="harmony: no call"),
        pytest.param("functionary-3.1", "<function=now></function>", [("now", {})], id="functionary: no arguments"),
        pytest.param(
            "kimi-k2",
            "<|tool_call_begin|>functions.now:0<|tool_call_argument_begin|><|tool_call_end|>",
            [("now", {})],
            id="kimi: no arguments",
        ),
        pytest.param("apertus", "<|tools_prefix|>[now]", [], id="apertus: no object"),
        pytest.param(
            "hermes",
            "<tool_call>" + '{"function": ' * 3 + '{"name": "now"}' + "}" * 3,
            [],
            id="hermes: wrapped twice",
        ),
        pytest.param(
            "minimax-m3",
            (
                'P<tool_call>\nP<invoke name="weather">P<days>3P</invoke>\n'
                'P<invoke name="now">P</invoke>\nP</tool_call>'
            ).replace("P<", "]<]minimax[>[<"),
            [("weather", {"days": 3}), ("now", {})],
            id="minimax: value that ends with the call",
        ),
        pytest.param(
            "minimax-m3",
            'P<tool_call>P<invoke name="weather">{"days": 3}P</invoke>P</tool_call>'.replace("P<", "]<]minimax[>[<"),
            [("weather", {"days": 3})],
            id="minimax: arguments in JSON",
        ),
        pytest.param(
            "deepseek-dsml",
            (
                '<|DSML|invoke name="now">\n<|DSML|parameter name="x" string="true">3</|DSML|parameter>\n'
                '<|DSML|parameter name="y" string="false">3</|DSML|parameter>\n</|DSML|invoke>'
            ).replace("|", BAR),
            [("now", {"x": "3", "y": 3})],
            id="deepseek: types of values in attributes",
        ),
        pytest.param(
            "kimi-k3",
            (
                '<O>tools<S><O>call tool="now" index="1"<S><O>argument key="x" type="string"<S>3<C>argument<S>'
                '<O>argument key="y" type="number"<S>3<C>argument<S><C>call<S><C>tools<S>'
            )
            .replace("<O>", "<|open|>")
            .replace("<C>", "<|close|>")
            .replace("<S>", "<|sep|>"),
            [("now", {"x": "3", "y": 3})],
            id="kimi: types of values in attributes",
        ),
        pytest.param(
            "lfm2",
            '<|tool_call_start|>[{"name": "weather", "arguments": {"city": "[x]"}}]<|tool_call_end|>',
            [("weather", {"city": "[x]"})],
            id="lfm: in JSON",
        ),
    ],
)
def test_variant(name, text, events):
    found = parse_every_way(text, DIALECTS[name], tools=TOOLS)
    assert calls_of(found) == events
    assert text_of(found, ContentDelta) == ("" if events else text.replace("<|channel|>final<|message|>", ""))


def test_repeated_call_id_is_replaced():
    """K17."""
    call = "<|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
    heads = [
        event for event in parse([call + call], DIALECTS["kimi-k2"], tools=TOOLS) if isinstance(event, ToolCallStart)
    ]
    assert [head.id for head in heads] == ["functions.now:0", "id0"]


def test_markers_within_json_do_not_end_a_value():
    value = json.dumps({"a": "</parameter>"})
    text = f"<tool_call>\n<function=weather>\n<parameter=opt>\n{value}\n</parameter>\n</function>\n</tool_call>"
    assert calls_of(parse_every_way(text, DIALECTS["qwen-coder"], tools=TOOLS)) == [
        ("weather", {"opt": json.loads(value)})
    ]
    broken = text.replace('"}', "")
    assert calls_of(parse_every_way(broken, DIALECTS["qwen-coder"], tools=TOOLS)) == [("weather", {"opt": '{"a": "'})]


@pytest.mark.parametrize(("name", "tag"), [("glm", "<arg_value>"), ("hy", "<arg_value:opensource>")])
def test_value_without_its_start_tag_belongs_to_its_key(name, tag):
    """It is not parsed as the value of the next key."""
    text = ALL[name].replace(f"{tag}3", "3").replace(f"{tag}Paris", "Paris")
    assert calls_of(parse_every_way(text, DIALECTS[name], tools=TOOLS)) == [("weather", ARGUMENTS), ("now", {})]


def test_gemma_writes_names_in_the_order_of_its_template():
    arguments = {"B": [True, None, "x", []], "a": {"d": 2, "C": 3}}
    text = DIALECTS["gemma-4"].write_calls([{"name": "f", "arguments": arguments}])
    assert text == '<|tool_call>call:f{a:{C:3,d:2},B:[true,null,<|"|>x<|"|>,[]]}<tool_call|>'


def test_arguments_that_are_not_json_are_emitted_raw():
    """K19: text after the name of a call is its arguments."""
    text = "<|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>a = 1<|tool_call_end|>Hi"
    events = parse_every_way(text, DIALECTS["kimi-k2"], tools=TOOLS)
    assert events == [ToolCallStart(0, "functions.now:0", "now"), ToolCallArguments(0, "a = 1"), ContentDelta("Hi")]


def test_minimax_closes_empty_reasoning():
    assert parse_every_way("</mm:think>\nHi", DIALECTS["minimax-m3"]) == [ContentDelta("Hi")]
    assert parse_every_way("</mm:think>\nHi", DIALECTS["minimax-m3"], splits_reasoning=False) == [
        ContentDelta("</mm:think>\nHi")
    ]
    assert parse_every_way("</think>Hi", DIALECTS["hermes"]) == [ContentDelta("</think>Hi")]


@pytest.mark.parametrize("is_open", [False, True], ids=["opened", "opened by the prompt"])
@pytest.mark.parametrize("name", GOLDEN)
def test_call_ends_reasoning_that_was_never_closed(name, is_open):
    dialect = DIALECTS[name]
    after = GOLDEN[name].partition("Sure.")[2]
    after = after[min((at for end in dialect.reasoning_ends if (at := after.find(end)) >= 0), default=0) :]
    start = ("<|start|>assistant" if name in ("harmony", "muse") else "") + dialect.reasoning.start
    text, prompt = ("hm\n" + after, start) if is_open else (dialect.reasoning.start + "hm\n" + after, "")
    events = parse_every_way(text, dialect, tools=TOOLS, prompt=prompt)
    assert text_of(events, ReasoningDelta).rstrip() == "hm"
    assert calls_of(events) == [("weather", ARGUMENTS), ("now", {})]
    assert text_of(events, ContentDelta) == ""


K3_RESPONSE = "<|open|>response<|sep|>"
K2_CALL = "<|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{}<|tool_call_end|>"


@pytest.mark.parametrize(
    ("name", "text", "events"),
    [
        pytest.param(
            "hermes",
            "<think>I could <tool_call> it.</think>Hi",
            [ReasoningDelta("I could <tool_call> it."), ContentDelta("Hi")],
            id="marker in reasoning that begins no call",
        ),
        pytest.param(
            "kimi-k3",
            f"<|open|>think<|sep|>hm{K3_RESPONSE}Hi<|close|>response<|sep|>",
            [ReasoningDelta("hm"), ContentDelta("Hi")],
            id="response section in reasoning",
        ),
        pytest.param(
            "cohere",
            "<|START_THINKING|>hm<|START_RESPONSE|>Hi<|END_RESPONSE|>",
            [ReasoningDelta("hm"), ContentDelta("Hi")],
            id="response section of another family",
        ),
        pytest.param(
            "kimi-k2",
            "<think>hm <|tool_calls_section_begin|>" + K2_CALL,
            [ReasoningDelta("hm"), *call("now", "{}", call_id="functions.now:0")],
            id="section of calls in reasoning",
        ),
        pytest.param(
            "harmony",
            "<|channel|>analysis<|message|>hm<|channel|>commentary to=functions.now json<|message|>{}<|call|>",
            [ReasoningDelta("hm"), *call("now", "{}")],
            id="header of a call in reasoning",
        ),
        pytest.param(
            "muse",
            ' to=self<|message|>h <atem:invoke name="now"></atem:invoke>',
            [ReasoningDelta("h "), *call("now", "{}")],
            id="call without a header in reasoning",
        ),
        pytest.param(
            "kimi-k2", "Hi<|tool_calls_section_end|>", [ContentDelta("Hi")], id="end of a section that was not opened"
        ),
        pytest.param("gemma-4", "<channel|>Hi", [ContentDelta("Hi")], id="end of reasoning that was not opened"),
        pytest.param("gemma-4", "Hi <channel|>you", [ContentDelta("Hi you")], id="the same in the text"),
        pytest.param(
            "gemma-4", "Hi <|channel>thought\n<channel|>you", [ContentDelta("Hi you")], id="empty reasoning in the text"
        ),
        pytest.param(
            "gemma-4",
            "<|channel>thought\nhm\n<channel|>Hi\n<|channel>thought\nok<channel|>you",
            [ReasoningDelta("hm"), ContentDelta("Hi\n"), ReasoningDelta("ok"), ContentDelta("you")],
            id="reasoning twice",
        ),
        pytest.param(
            "gemma-4",
            "<|tool_call>call:now{}<tool_call|><|channel>thought\n<channel|><|tool_call>call:now{}<tool_call|>",
            [*call("now", "{}"), *call("now", "{}", 1)],
            id="empty reasoning between calls",
        ),
        pytest.param(
            "mistral",
            '[TOOL_CALLS][{"name": "now", "arguments": {"a": 1}, "id": "abcdef123"}]',
            call("now", '{"a": 1}'),
            id="id after the arguments is dropped",
        ),
        pytest.param(
            "mistral", '[TOOL_CALLS][{"name": "now", "arguments": {"a', call("now", '{"a'), id="cut before the id"
        ),
        pytest.param(
            "mistral",
            '[TOOL_CALLS][{"name": "now", "arguments": {}, "id": <}]',
            call("now", '{}"id": <}]'),
            id="broken after the arguments",
        ),
        pytest.param(
            "seed",
            "<seed:tool_call><function=weather><parameter=city>\n a\n</parameter></function></seed:tool_call>",
            call("weather", '{"city": "\\n a\\n"}'),
            id="white space that no template adds",
        ),
        pytest.param(
            "qwen-coder",
            "<tool_call><function=weather><parameter=city>\n\n a\n\n</parameter></function></tool_call>",
            call("weather", '{"city": "\\n a\\n"}'),
            id="white space beside that of the template",
        ),
        pytest.param(
            "harmony",
            "to=get_analysis<|channel|>commentary json<|message|>{}<|call|>",
            call("get_analysis", "{}"),
            id="tool with the name of a channel",
        ),
        pytest.param("hermes", '<tool_call>{"name": "now", "arguments": ""}', call("now", "{}"), id="empty arguments"),
        pytest.param(
            "hermes",
            r'<tool_call>{"name": "now", "arguments": {"a": "grep \d+ \\d \u00zz \u00e9"}}',
            call("now", r'{"a": "grep \\d+ \\d \\u00zz \u00e9"}'),
            id="escapes that JSON does not have",
        ),
        pytest.param(
            "minicpm5",
            '<function name="weather"><param name="city"><![CDATA[a]]> <b>]]> </param></function>Hi',
            [*call("weather", '{"city": "a]]> <b>"}'), ContentDelta("Hi")],
            id="white space after quotes",
        ),
        pytest.param("harmony", " to=the store", [ContentDelta(" to=the store")], id="text like a header"),
        pytest.param("harmony", "Hi<|start|>x", [ContentDelta("Hi<|start|>x")], id="marker that starts nothing"),
        pytest.param(
            "harmony",
            "Hi<|channel|>analysis<|message|>hm",
            [ContentDelta("Hi"), ReasoningDelta("hm")],
            id="text before a header",
        ),
        pytest.param(
            "harmony",
            " to=functions.now<|channel|>commentary<|message|><|call|>",
            call("now", "{}"),
            id="call without arguments",
        ),
        pytest.param(
            "harmony",
            ' to=functions.now<|channel|>commentary json<|message|>{"a": "<|end|>"}<|call|>',
            call("now", '{"a": "<|end|>"}'),
            id="marker in a string",
        ),
    ],
)
def test_ambiguous_output(name, text, events):
    assert parse_every_way(text, DIALECTS[name], tools=[*TOOLS, {"function": {"name": "get_analysis"}}]) == events


CALLS_IN_REASONING = {
    "mistral": '[TOOL_CALLS]now[ARGS]{"a": 1}',
    "lfm2": "<|tool_call_start|>[now(a=1)]<|tool_call_end|>",
    "hermes": '<tool_call>\n{"name": "now", "arguments": {"a": 1}}\n</tool_call>',
    "muse": '<atem:invoke name="now">\n<atem:parameter name="a">1</atem:parameter>\n</atem:invoke>',
}


@pytest.mark.parametrize("after", ["", " and more", " <", " and again CALL"])
@pytest.mark.parametrize("name", CALLS_IN_REASONING)
def test_call_inside_closed_reasoning_is_reasoning(name, after):
    dialect, text = DIALECTS[name], CALLS_IN_REASONING[name]
    reasoning = "I write " + text + after.replace("CALL", text)
    header = "<|start|>assistant to=now<|message|>" if name == "muse" else ""
    output = f"{dialect.reasoning.start}{reasoning}{dialect.reasoning.end}{header}{text}"
    events = parse_every_way(output, dialect, tools=TOOLS)
    assert events == [ReasoningDelta(reasoning), *call("now", '{"a": 1}')]
    content = parse_every_way(output, dialect, tools=TOOLS, splits_reasoning=False)
    assert text_of(content, ContentDelta) == output.removesuffix(header + text)


def test_white_space_is_held_back_only_before_a_possible_marker():
    for tools, pieces in ((), [ContentDelta("Hi \n")]), (TOOLS, [ContentDelta("Hi")]):
        assert parser(DIALECTS["hermes"], tools=tools).feed("Hi \n") == pieces


@pytest.mark.parametrize(
    ("prompt", "text", "events"),
    [
        pytest.param("<|start|>assistant", "Hi", [ContentDelta("Hi")], id="no header"),
        pytest.param(
            "<|start|>assistant<|channel|>final<|message|>", "Hi", [ContentDelta("Hi")], id="header in the prompt"
        ),
        pytest.param(
            "<|start|>assistant<|channel|>analysis<|message|>It", "hm", [ReasoningDelta("hm")], id="open reasoning"
        ),
        pytest.param(
            "<|start|>assistant<|channel|>analysis<|message|>It<|end|>",
            "hm",
            [ContentDelta("hm")],
            id="closed reasoning",
        ),
        pytest.param(
            "<|start|>assistant",
            "<|channel|>analysis to=functions.now<|message|>{}<|call|>",
            call("now", "{}"),
            id="call in the channel of reasoning",
        ),
        pytest.param(
            "<|start|>assistant",
            "<|channel|>commentary to=browser.search<|message|>{}<|end|>",
            [ContentDelta("<|channel|>commentary to=browser.search<|message|>{}<|end|>")],
            id="recipient that is not a function",
        ),
    ],
)
def test_harmony_headers(prompt, text, events):
    assert parse_every_way(text, DIALECTS["harmony"], tools=TOOLS, prompt=prompt) == events


def test_harmony_reasoning_may_stay_in_the_content():
    text = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Hi"
    events = parse_every_way(text, DIALECTS["harmony"], splits_reasoning=False)
    assert events == [ContentDelta("<|channel|>analysis<|message|>hm<|end|>Hi")]


def test_second_call_of_a_name_that_was_not_offered_is_content():
    text = 'P<tool_call>P<invoke name="now">P</invoke>P<invoke name="storm">P</invoke>'.replace("P<", "]<]minimax[>[<")
    events = parse_every_way(text, DIALECTS["minimax-m3"], tools=TOOLS)
    assert calls_of(events) == [("now", {})]
    assert "storm" in text_of(events, ContentDelta)


@pytest.mark.parametrize(
    ("name", "text", "calls", "content"),
    [
        ("apertus", '<|tools_prefix|>[{"other": {}}]<|tools_suffix|>', [], None),
        (
            "apertus",
            'Sure.<|tools_prefix|>[{"now": {}}, {"other": {}}]<|tools_suffix|>',
            [("now", {})],
            'Sure.{"other": {}}]<|tools_suffix|>',
        ),
        ("muse", " to=now<|message|>Hi there<|eom|>", [], None),
        ("muse", "<|start|>assistant to=now<|message|>\n<atem:function_calls>\nHi<|eot|>", [], None),
    ],
)
def test_text_in_the_place_of_a_call_is_content(name, text, calls, content):
    events = parse_every_way(text, DIALECTS[name], tools=TOOLS)
    assert (calls_of(events), text_of(events, ContentDelta)) == (calls, text if content is None else content)
