"""Special cases of single model families: variants, incomplete outputs, headers, texts that look like markers."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localchat.dialects import DIALECTS
from localchat.protocol.events import ContentDelta, ReasoningDelta, ToolCallArguments, ToolCallStart

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


PYTHON = "Type this:\n>>> 1 + 1\n2\n>>> exit()\n"


@pytest.mark.parametrize(
    ("text", "events"),
    [
        pytest.param("all\n" + PYTHON, [ContentDelta(PYTHON)], id="Python's prompt"),
        pytest.param(">>>all\n" + PYTHON, [ContentDelta(PYTHON)], id="marker repeated"),
        pytest.param(PYTHON, [ContentDelta(PYTHON)], id="no recipient at all"),
        pytest.param(">>> 1 + 1", [ContentDelta(">>> 1 + 1")], id="at the beginning"),
        pytest.param("all\nHi \n>>>", [ContentDelta("Hi \n>>>")], id="at the end"),
        pytest.param("all\nHi\n>>>weath", [ContentDelta("Hi\n>>>weath")], id="recipient that is cut"),
        pytest.param("all\nHi\n>>>storm\n{}", [ContentDelta("Hi\n>>>storm\n{}")], id="name that was not offered"),
        pytest.param("all\nHi\n>>>now {}", [ContentDelta("Hi\n>>>now {}")], id="name without the end of its line"),
        pytest.param("all\nHi\n>>> now\n{}", [ContentDelta("Hi\n>>> now\n{}")], id="space before a name"),
        pytest.param("all\nHi\n>>>all\nMore", [ContentDelta("HiMore")], id="text twice"),
        pytest.param("all\n<b>>>>now\n{}", [ContentDelta("<b>"), *call("now", "{}")], id="bracket before the marker"),
        pytest.param(
            "all\n" + PYTHON + ">>>now\n{}", [ContentDelta(PYTHON.rstrip()), *call("now", "{}")], id="a call after it"
        ),
        pytest.param("now\n{}\n" + PYTHON, [*call("now", "{}"), ContentDelta(PYTHON)], id="text after a call"),
        pytest.param("now\n{}\n>>> 1", [*call("now", "{}"), ContentDelta(">>> 1")], id="right after a call"),
        pytest.param("now\n{}>>>now\n{}", [*call("now", "{}"), *call("now", "{}", 1)], id="two calls"),
        pytest.param("now\n>>>all\nHi", [*call("now", "{}"), ContentDelta("Hi")], id="call without arguments"),
        pytest.param("now\n>>> f(1)\n>>>all\nHi", [*call("now", ">>> f(1)"), ContentDelta("Hi")], id="raw arguments"),
        pytest.param(
            'now\n{"a": x\n>>>all\nHi', [*call("now", '{"a": x\n'), ContentDelta("Hi")], id="broken arguments"
        ),
        pytest.param("now\n>>> f(1)", call("now", ">>> f(1)"), id="raw arguments to the end"),
    ],
)
def test_functionary_marker_without_a_recipient_is_text(text, events):
    assert parse_every_way(text, DIALECTS["functionary-3.2"], tools=TOOLS) == events


def test_names_are_not_recipients_without_tools():
    text = "Hi\n>>>now\n{}"
    assert parse_every_way("all\n" + text, DIALECTS["functionary-3.2"], tools=()) == [ContentDelta(text)]


def test_only_a_possible_recipient_is_held_back():
    made = parser(DIALECTS["functionary-3.2"], tools=TOOLS)
    assert made.feed("all\nHi\n>>>no") == [ContentDelta("Hi")]
    assert made.feed("t") == [ContentDelta("\n>>>not")]
    assert made.feed(" so \n>>> 1") == [ContentDelta(" so \n>>> 1")]


XML = "<response>\n <status>ok</status>\n</response>"


@pytest.mark.parametrize(
    ("text", "events"),
    [
        pytest.param("<response>\nHi \n</response>\n", [ContentDelta("Hi")], id="around the text"),
        pytest.param(" \n<response>Hi", [ContentDelta("Hi")], id="end left out"),
        pytest.param(
            "<think>hm</think>\n<response>Hi</response>",
            [ReasoningDelta("hm"), ContentDelta("Hi")],
            id="after reasoning",
        ),
        pytest.param(
            "<think>hm</think>\nIt:\n" + XML,
            [ReasoningDelta("hm"), ContentDelta("It:\n" + XML)],
            id="text after reasoning",
        ),
        pytest.param("Write it:\n\n" + XML, [ContentDelta("Write it:\n\n" + XML)], id="at the end of a text"),
        pytest.param(
            XML + "\nThat is it.", [ContentDelta(XML.partition("\n ")[2] + "\nThat is it.")], id="text follows"
        ),
        pytest.param(f"<response>So:\n{XML}\n</response>", [ContentDelta("So:\n" + XML + "\n")], id="within the text"),
        pytest.param("Hi </response>", [ContentDelta("Hi </response>")], id="never opened"),
        pytest.param("<response>Hi\n</respon", [ContentDelta("Hi\n</respon")], id="end that is cut"),
        pytest.param(" <respon", [ContentDelta(" <respon")], id="start that is cut"),
        pytest.param(" <responses>", [ContentDelta(" <responses>")], id="another tag"),
        pytest.param("<response> </response>", [], id="empty"),
        pytest.param(
            '<response>Hi</response>\n<|tool_call|>[{"name": "now"}]',
            [ContentDelta("Hi"), *call("now", "{}")],
            id="a call",
        ),
        pytest.param(
            "<response>Hi</response> <|tool_call|>no",
            [ContentDelta("Hi</response> <|tool_call|>no")],
            id="no call after it",
        ),
        pytest.param(
            "<response>Hi</response> <|tool_", [ContentDelta("Hi</response> <|tool_")], id="opener after it that is cut"
        ),
    ],
)
def test_granite_drops_its_markers_only_around_the_whole_text(text, events):
    assert parse_every_way(text, DIALECTS["granite-3"], tools=TOOLS) == events
    if not any(isinstance(event, ToolCallStart) for event in events):
        assert parse_every_way(text, DIALECTS["granite-3"], tools=()) == events


def test_granite_holds_back_an_end_marker_until_the_next_text():
    made = parser(DIALECTS["granite-3"], tools=())
    assert made.feed(" <response>\nHi \n</resp") == [ContentDelta("Hi")]
    assert made.feed("onse>\n") == []
    assert made.feed("x <response>") == [ContentDelta(" \n</response>\nx <response>")]


@given(text=st.lists(st.sampled_from([">>>", ">", "all", "now", "\n", " ", "x", "all\n"]), max_size=12).map("".join))
def test_functionary_drops_only_its_markers(text):
    first = re.sub(r"\A(>>>)?all\n", "", text)
    expected = [ContentDelta(rest)] if (rest := re.sub(r"\s*>>>all\n", "", first)) else []
    assert parse([text], DIALECTS["functionary-3.2"], tools=()) == expected
    assert parse(text, DIALECTS["functionary-3.2"], tools=()) == expected
    assert parse([text], DIALECTS["functionary-3.2"], tools=TOOLS) == parse(
        text, DIALECTS["functionary-3.2"], tools=TOOLS
    )


@given(
    pieces=st.lists(
        st.sampled_from(["<response>", "</response>", "<|tool_call|>", '[{"name": "now"}]', "<", "\n", " ", "x"]),
        max_size=12,
    )
)
def test_granite_keeps_all_of_a_text_without_a_start_marker(pieces):
    text = "".join(pieces)
    assert parse("x" + text, DIALECTS["granite-3"], tools=()) == [ContentDelta("x" + text)]
    for tools in (TOOLS, ()):
        whole = parse([text], DIALECTS["granite-3"], tools=tools)
        assert parse(text, DIALECTS["granite-3"], tools=tools) == whole
        assert parse(pieces, DIALECTS["granite-3"], tools=tools) == whole


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
            ' to=self<|message|>h <atem:invoke name="now"></atem:invoke><|eom|><|start|>assistant to=user<|message|>Hi',
            [ReasoningDelta("h "), *call("now", "{}"), ContentDelta("Hi")],
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
            call("now", '{"a": 1}', call_id="abcdef123"),
            id="id after the arguments",
        ),
        pytest.param(
            "mistral",
            '[TOOL_CALLS][{"name": "now", "arguments": {}, "id": "not valid"}]',
            call("now", "{}"),
            id="invalid id",
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
    assert parse_every_way(text, DIALECTS[name], tools=TOOLS) == events


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
