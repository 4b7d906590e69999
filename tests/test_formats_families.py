"""Every family's output, as its models write it: the same events however it is cut."""

import json
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localchat.dialects import DIALECTS, detect
from localchat.dialects.gemma import as_json
from localchat.dialects.lfm import parsed_calls
from localchat.dialects.values import parameter_types, value_json
from localchat.protocol.events import ContentDelta, ReasoningDelta, ToolCallArguments, ToolCallStart

from .test_output import N_CUTS, call, parse, parse_every_way, parser

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "opt": {"type": "object"}},
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "now"}},
]
CITY = 'Paris "x" <b>'
ARGUMENTS = {"city": CITY, "days": 3, "opt": {"a": [1, True, "q"]}}
JSON = json.dumps(ARGUMENTS)
BAR = "\uff5c"

# For each family: thinking, text, and two calls, of `weather` with ARGUMENTS and of `now` with none.
GOLDEN = {
    "hermes": (
        "<think>\nhm\n</think>\n\nSure.\n"
        f'<tool_call>\n{{"name": "weather", "arguments": {JSON}}}\n</tool_call>\n'
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    ),
    "qwen-coder": (
        "<think>\nhm\n</think>\n\nSure.\n\n"
        f"<tool_call>\n<function=weather>\n<parameter=city>\n{CITY}\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
        '<parameter=opt>\n{"a": [1, true, "q"]}\n</parameter>\n</function>\n</tool_call>\n'
        "<tool_call>\n<function=now>\n</function>\n</tool_call>"
    ),
    "seed": (
        "<seed:think>hm</seed:think>\nSure.\n"
        f"<seed:tool_call>\n<function=weather>\n<parameter=city>{CITY}</parameter>\n<parameter=days>3</parameter>\n"
        "<parameter=opt>{'a': [1, True, 'q']}</parameter>\n</function>\n</seed:tool_call>\n"
        "<seed:tool_call>\n<function=now>\n</function>\n</seed:tool_call>"
    ),
    "glm": (
        "\n<think>hm</think>\nSure.\n"
        f"<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>{CITY}</arg_value>\n<arg_key>days</arg_key>\n"
        '<arg_value>3</arg_value>\n<arg_key>opt</arg_key>\n<arg_value>{"a": [1, true, "q"]}</arg_value>\n</tool_call>\n'
        "<tool_call>now\n</tool_call>"
    ),
    "hy": (
        "<think:opensource>hm</think:opensource>Sure.<tool_calls:opensource>\n"
        "<tool_call:opensource>weather<tool_sep:opensource>\n<arg_key:opensource>city</arg_key:opensource>\n"
        f"<arg_value:opensource>{CITY}</arg_value:opensource>\n<arg_key:opensource>days</arg_key:opensource>\n"
        "<arg_value:opensource>3</arg_value:opensource>\n<arg_key:opensource>opt</arg_key:opensource>\n"
        '<arg_value:opensource>{"a": [1, true, "q"]}</arg_value:opensource>\n</tool_call:opensource>\n'
        "<tool_call:opensource>now<tool_sep:opensource>\n</tool_call:opensource>\n</tool_calls:opensource>"
    ),
    "minimax-m2": (
        "<think>\nhm\n</think>\n\nSure.\n<minimax:tool_call>\n"
        f'<invoke name="weather">\n<parameter name="city">{CITY}</parameter>\n<parameter name="days">3</parameter>\n'
        '<parameter name="opt">{"a": [1, true, "q"]}</parameter>\n</invoke>\n<invoke name="now">\n</invoke>\n'
        "</minimax:tool_call>"
    ),
    "minimax-m3": (
        "<mm:think>hm</mm:think>Sure.P<tool_call>\n"
        f'P<invoke name="weather">P<city>{CITY}P</city>P<days>3P</days>'
        "P<opt>P<a>P<item>1P</item>P<item>trueP</item>P<item>qP</item>P</a>P</opt>P</invoke>\n"
        'P<invoke name="now">P</invoke>\nP</tool_call>'
    )
    .replace("P<", "]<]minimax[>[<")
    .replace("]<]minimax[>[<aris", "Paris"),
    "deepseek-dsml": (
        "<think>hm</think>Sure.\n\n<|DSML|function_calls>\n"
        f'<|DSML|invoke name="weather">\n<|DSML|parameter name="city" string="true">{CITY}</|DSML|parameter>\n'
        '<|DSML|parameter name="days" string="false">3</|DSML|parameter>\n'
        '<|DSML|parameter name="opt" string="false">{"a": [1, true, "q"]}</|DSML|parameter>\n</|DSML|invoke>\n'
        '<|DSML|invoke name="now">\n</|DSML|invoke>\n</|DSML|function_calls>'
    ).replace("|", BAR),
    "deepseek": (
        "<think>\nhm\n</think>\n\nSure.<|tool▁calls▁begin|><|tool▁call▁begin|>weather<|tool▁sep|>"
        f"{JSON}<|tool▁call▁end|><|tool▁call▁begin|>now<|tool▁sep|>{{}}<|tool▁call▁end|><|tool▁calls▁end|>"
    ).replace("|", BAR),
    "minicpm5": (
        "<think>\nhm\n</think>\n\nSure.\n"
        f'<function name="weather"><param name="city"><![CDATA[{CITY}]]></param><param name="days">3</param>'
        "<param name=\"opt\">{'a': [1, True, 'q']}</param></function>\n<function name=\"now\"></function>"
    ),
    "kimi-k2": (
        "<think>hm</think>Sure.<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0"
        f"<|tool_call_argument_begin|>{JSON}<|tool_call_end|><|tool_call_begin|>functions.now:1"
        "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>"
    ),
    "kimi-k3": (
        "<O>think<S>hm<C>think<S><O>response<S>Sure.<C>response<S><O>tools<S>"
        f'<O>call tool="weather" index="1"<S><O>argument key="city" type="string"<S>{CITY}<C>argument<S>'
        '<O>argument key="days" type="number"<S>3<C>argument<S>'
        '<O>argument key="opt" type="object"<S>{"a": [1, true, "q"]}<C>argument<S><C>call<S>'
        '<O>call tool="now" index="2"<S><C>call<S><C>tools<S><C>message<S><|end_of_msg|>'
    )
    .replace("<O>", "<|open|>")
    .replace("<C>", "<|close|>")
    .replace("<S>", "<|sep|>"),
    "mistral": (f"<think>hm</think>Sure.[TOOL_CALLS]weather[CALL_ID]abc123XYZ[ARGS]{JSON}[TOOL_CALLS]now[ARGS]{{}}"),
    "solar": (
        "<|think|>hm<|end|><|begin|>assistant<|content|>Sure.<|end|><|begin|>assistant<|tool_calls|>"
        f"<|tool_call:begin|>a1<|tool_call:name|>weather<|tool_call:args|>{JSON}<|tool_call:end|>"
        "<|tool_call:begin|>a2<|tool_call:name|>now<|tool_call:args|>{}<|tool_call:end|><|calls|>"
    ),
    "apertus": (
        "<|inner_prefix|>hm<|inner_suffix|>Sure.<|tools_prefix|>"
        f'[{{"weather": {JSON}}}, {{"now": {{}}}}]<|tools_suffix|>'
    ),
    "lfm2": (
        "<think>hm</think>Sure.<|tool_call_start|>"
        f'[weather(city=\'{CITY}\', days=3, opt={{"a": [1, true, "q"]}}), now()]<|tool_call_end|>'
    ),
    "gemma-4": (
        "<|channel>thought\nhm\n<channel|>Sure."
        f'<|tool_call>call:weather{{city:<|"|>{CITY}<|"|>,days:3,opt:{{a:[1,True,<|"|>q<|"|>]}}}}<tool_call|>'
        "<|tool_call>call:now{}<tool_call|>"
    ),
    "functionary-3.1": f"<think>hm</think>Sure.<function=weather>{JSON}</function><function=now>{{}}</function>",
    "cohere": (
        "<|START_THINKING|>hm<|END_THINKING|><|START_RESPONSE|>Sure.<|END_RESPONSE|><|START_ACTION|>[\n"
        f'    {{"tool_call_id": "0", "tool_name": "weather", "parameters": {JSON}}},\n'
        '    {"tool_call_id": "1", "tool_name": "now", "parameters": {}}\n]<|END_ACTION|>'
    ),
    "command-r": (
        f'<think>hm</think>Sure.\nAction:\n```json\n[{{"tool_name": "weather", "parameters": {JSON}}},'
        '{"tool_name": "now", "parameters": {}}]\n```'
    ),
    "nemotron-nano-2": (
        f'<think>hm</think>Sure.\n<TOOLCALL>[{{"name": "weather", "arguments": {JSON}}}, '
        '{"name": "now", "arguments": {}}]</TOOLCALL>'
    ),
    "tool-calls": (
        f'<think>hm</think>Sure.\n<tool_calls>\n{{"name": "weather", "arguments": {JSON}}}\n'
        '{"name": "now", "arguments": {}}\n</tool_calls>'
    ),
    "firefunction": (
        f'<think>hm</think>Sure. functools[{{"name": "weather", "arguments": {JSON}}}, '
        '{"name": "now", "arguments": {}}]'
    ),
    "granite-3": (
        f'<think>hm</think><response>Sure.</response><|tool_call|>[{{"name": "weather", "arguments": {JSON}}},'
        '{"name": "now", "arguments": {}}]'
    ),
    "gigachat": (
        f'<think>hm</think>Sure.<|function_call|>{{"name": "weather", "arguments": {JSON}}}<|message_sep|>\n\n'
        'function call<|role_sep|>\n{"name": "now", "arguments": {}}'
    ),
    "llama-3": (
        f'<think>hm</think>Sure.<|python_tag|>{{"name": "weather", "parameters": {JSON}}}; '
        '{"name": "now", "parameters": {}}'
    ),
    "harmony": (
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary<|message|>Sure.<|end|>"
        f"<|start|>assistant to=functions.weather<|channel|>commentary <|constrain|>json<|message|>{JSON}<|call|>"
        "<|start|>assistant<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}"
    ),
    "muse": (
        " to=self<|message|>hm<|eom|><|start|>assistant to=user<|message|>Sure.<|eom|><|start|>assistant to=weather"
        f'<|message|><atem:function_calls>\n<atem:invoke name="weather">\n<atem:parameter name="city">{CITY}'
        '</atem:parameter>\n<atem:parameter name="days">3</atem:parameter>\n<atem:parameter name="opt">'
        '{"a": [1, true, "q"]}</atem:parameter>\n</atem:invoke>\n</atem:function_calls><|eom|><|start|>assistant to=now'
        '<|message|><atem:function_calls>\n<atem:invoke name="now">\n</atem:invoke>\n</atem:function_calls>'
    ),
}
WITHOUT_THINKING = {"functionary-3.2": f"all\nSure.>>>weather\n{JSON}>>>now\n{{}}"}
# These get ids from their models; all others new ones.
OWN_IDS = {
    "kimi-k2": ["functions.weather:0", "functions.now:1"],
    "mistral": ["abc123XYZ", "id0"],
    "solar": ["a1", "a2"],
    "cohere": ["0", "1"],
}
ALL = {**GOLDEN, **WITHOUT_THINKING}


def calls_of(events):
    heads = [event for event in events if isinstance(event, ToolCallStart)]
    pieces = {head.index: "" for head in heads}
    for event in events:
        if isinstance(event, ToolCallArguments):
            pieces[event.index] += event.text
    return [(head.name, json.loads(pieces[head.index])) for head in heads]


def text_of(events, kind):
    return "".join(event.text for event in events if isinstance(event, kind))


def test_every_family_has_a_golden_output():
    assert set(ALL) == set(DIALECTS)


@pytest.mark.parametrize("name", ALL)
def test_golden_output(name):
    events = parse_every_way(ALL[name], DIALECTS[name], tools=TOOLS)
    assert calls_of(events) == [("weather", ARGUMENTS), ("now", {})]
    assert text_of(events, ContentDelta) == "Sure."
    assert text_of(events, ReasoningDelta) == ("" if name in WITHOUT_THINKING else "hm")
    ids = [event.id for event in events if isinstance(event, ToolCallStart)]
    assert ids == OWN_IDS.get(name, ["id0", "id1"])


@pytest.mark.parametrize("name", ALL)
def test_golden_output_cut_anywhere_is_a_beginning_of_it(name):
    whole = parse([ALL[name]], DIALECTS[name], tools=TOOLS)
    for size in range(0, len(ALL[name]), 11):
        text = ALL[name][:size]
        events = parse([text], DIALECTS[name], tools=TOOLS)
        assert parse(text, DIALECTS[name], tools=TOOLS) == events
        heads = [event for event in events if isinstance(event, ToolCallStart)]
        assert heads == [event for event in whole if isinstance(event, ToolCallStart)][: len(heads)]
        assert "hm".startswith(text_of(events, ReasoningDelta).partition("<")[0].rstrip())


@pytest.mark.parametrize("name", sorted(set(ALL) - {"harmony", "muse"}))
def test_call_of_a_name_that_was_not_offered_is_content(name):
    text = ALL[name].partition("Sure.")[2].replace("weather", "storm").replace("now", "storm")
    events = parse_every_way("Sure." + text, DIALECTS[name], tools=TOOLS)
    assert calls_of(events) == []
    assert "storm" in text_of(events, ContentDelta)
    assert "Paris" in text_of(events, ContentDelta)


@pytest.mark.parametrize("name", ALL)
def test_output_without_tools_has_no_calls(name):
    events = parse_every_way(ALL[name], DIALECTS[name], tools=())
    assert calls_of(events) == []
    assert "Paris" in text_of(events, ContentDelta)


@pytest.mark.parametrize("name", ALL)
def test_spoilt_output_is_the_same_however_it_is_cut(name):
    """Golden outputs with parts left out, doubled, put elsewhere and cut: what no model should write, and some do."""
    known = re.findall(r"<[^<>\s]*>|\w+|\s+|.", ALL[name])
    for seed in range(N_CUTS // 4):
        dice = random.Random(f"{name} {seed}")
        parts = list(known)
        for _ in range(dice.randint(1, 4)):
            at = dice.randrange(len(parts))
            parts[at : at + dice.randint(0, 2)] = dice.choice([[], [], ["x"], dice.sample(known, 2)])
        text = "".join(parts)[: dice.randrange(1, 2 * len(known) + 1) if dice.random() < 0.5 else None]
        form, tools = DIALECTS[name], dice.choice([TOOLS, TOOLS, ()])
        options = {
            "tools": tools,
            "prompt": dice.choice(["", form.reasoning.start]),
            "splits_reasoning": dice.random() < 0.8,
            "is_bound": dice.random() < 0.2,
        }
        whole = parse([text], form, **options)
        cuts = sorted(dice.choices(range(len(text) + 1), k=5))
        for pieces in (text, [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)])]):
            assert parse(pieces, form, **options) == whole, (text, options)


# --- what is special about one family ---


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
    ],
)
def test_variant(name, text, events):
    found = parse_every_way(text, DIALECTS[name], tools=TOOLS)
    assert calls_of(found) == events
    if not events:
        assert text_of(found, ContentDelta) == text.replace("<|channel|>final<|message|>", "")


def test_ids_that_a_model_gives_twice_are_given_once():
    """K17."""
    call = "<|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
    heads = [
        event for event in parse([call + call], DIALECTS["kimi-k2"], tools=TOOLS) if isinstance(event, ToolCallStart)
    ]
    assert [head.id for head in heads] == ["functions.now:0", "id0"]


def test_marks_within_json_do_not_end_a_value():
    value = json.dumps({"a": "</parameter>"})
    text = f"<tool_call>\n<function=weather>\n<parameter=opt>\n{value}\n</parameter>\n</function>\n</tool_call>"
    assert calls_of(parse_every_way(text, DIALECTS["qwen-coder"], tools=TOOLS)) == [
        ("weather", {"opt": json.loads(value)})
    ]
    broken = text.replace('"}', "")
    assert calls_of(parse_every_way(broken, DIALECTS["qwen-coder"], tools=TOOLS)) == [("weather", {"opt": '{"a": "'})]


@pytest.mark.parametrize(("name", "tag"), [("glm", "<arg_value>"), ("hy", "<arg_value:opensource>")])
def test_value_without_its_opening_tag_is_that_of_its_key(name, tag):
    """It is not taken for the value of the next key."""
    text = ALL[name].replace(f"{tag}3", "3").replace(f"{tag}Paris", "Paris")
    assert calls_of(parse_every_way(text, DIALECTS[name], tools=TOOLS)) == [("weather", ARGUMENTS), ("now", {})]


def test_minimax_reads_arguments_that_are_json():
    text = 'P<tool_call>P<invoke name="weather">{"days": 3}P</invoke>P</tool_call>'.replace("P<", "]<]minimax[>[<")
    assert calls_of(parse_every_way(text, DIALECTS["minimax-m3"], tools=TOOLS)) == [("weather", {"days": 3})]


def test_arguments_that_are_no_json_are_passed_on_raw():
    """K19: after the name they can be nothing else."""
    text = "<|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>a = 1<|tool_call_end|>Hi"
    events = parse_every_way(text, DIALECTS["kimi-k2"], tools=TOOLS)
    assert events == [ToolCallStart(0, "functions.now:0", "now"), ToolCallArguments(0, "a = 1"), ContentDelta("Hi")]


PYTHON = "Type this:\n>>> 1 + 1\n2\n>>> exit()\n"


@pytest.mark.parametrize(
    ("text", "events"),
    [
        pytest.param("all\n" + PYTHON, [ContentDelta(PYTHON)], id="Python's prompt"),
        pytest.param(">>>all\n" + PYTHON, [ContentDelta(PYTHON)], id="mark repeated"),
        pytest.param(PYTHON, [ContentDelta(PYTHON)], id="no recipient at all"),
        pytest.param(">>> 1 + 1", [ContentDelta(">>> 1 + 1")], id="at the beginning"),
        pytest.param("all\nHi \n>>>", [ContentDelta("Hi \n>>>")], id="at the end"),
        pytest.param("all\nHi\n>>>weath", [ContentDelta("Hi\n>>>weath")], id="recipient that is cut"),
        pytest.param("all\nHi\n>>>storm\n{}", [ContentDelta("Hi\n>>>storm\n{}")], id="name that was not offered"),
        pytest.param("all\nHi\n>>>now {}", [ContentDelta("Hi\n>>>now {}")], id="name without the end of its line"),
        pytest.param("all\nHi\n>>> now\n{}", [ContentDelta("Hi\n>>> now\n{}")], id="space before a name"),
        pytest.param("all\nHi\n>>>all\nMore", [ContentDelta("HiMore")], id="text twice"),
        pytest.param("all\n<b>>>>now\n{}", [ContentDelta("<b>"), *call("now", "{}")], id="bracket before the mark"),
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
def test_mark_of_functionary_without_a_recipient_is_text(text, events):
    assert parse_every_way(text, DIALECTS["functionary-3.2"], tools=TOOLS) == events


def test_names_are_no_recipients_without_tools():
    text = "Hi\n>>>now\n{}"
    assert parse_every_way("all\n" + text, DIALECTS["functionary-3.2"], tools=()) == [ContentDelta(text)]


def test_only_a_possible_recipient_waits():
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
            id="after thinking",
        ),
        pytest.param(
            "<think>hm</think>\nIt:\n" + XML,
            [ReasoningDelta("hm"), ContentDelta("It:\n" + XML)],
            id="text after thinking",
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
        pytest.param("<response> </response>", [], id="nothing between them"),
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
def test_marks_of_granite_stand_around_its_text_only(text, events):
    assert parse_every_way(text, DIALECTS["granite-3"], tools=TOOLS) == events
    if not any(isinstance(event, ToolCallStart) for event in events):
        assert parse_every_way(text, DIALECTS["granite-3"], tools=()) == events


def test_end_of_a_granite_text_waits_for_what_follows():
    made = parser(DIALECTS["granite-3"], tools=())
    assert made.feed(" <response>\nHi \n</resp") == [ContentDelta("Hi")]
    assert made.feed("onse>\n") == []
    assert made.feed("x <response>") == [ContentDelta(" \n</response>\nx <response>")]


@given(text=st.lists(st.sampled_from([">>>", ">", "all", "now", "\n", " ", "x", "all\n"]), max_size=12).map("".join))
def test_functionary_loses_nothing_but_its_marks(text):
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
def test_granite_loses_nothing_of_a_text_that_it_did_not_open(pieces):
    text = "".join(pieces)
    assert parse("x" + text, DIALECTS["granite-3"], tools=()) == [ContentDelta("x" + text)]
    for tools in (TOOLS, ()):
        whole = parse([text], DIALECTS["granite-3"], tools=tools)
        assert parse(text, DIALECTS["granite-3"], tools=tools) == whole
        assert parse(pieces, DIALECTS["granite-3"], tools=tools) == whole


def test_minimax_says_that_it_does_not_think():
    assert parse_every_way("</mm:think>\nHi", DIALECTS["minimax-m3"]) == [ContentDelta("Hi")]
    assert parse_every_way("</mm:think>\nHi", DIALECTS["minimax-m3"], splits_reasoning=False) == [
        ContentDelta("</mm:think>\nHi")
    ]
    assert parse_every_way("</think>Hi", DIALECTS["hermes"]) == [ContentDelta("</think>Hi")]


@pytest.mark.parametrize("is_open", [False, True], ids=["opened", "opened by the prompt"])
@pytest.mark.parametrize("name", GOLDEN)
def test_call_ends_reasoning_that_was_never_closed(name, is_open):
    form = DIALECTS[name]
    after = GOLDEN[name].partition("Sure.")[2]
    after = after[min((at for mark in form.reasoning_ends if (at := after.find(mark)) >= 0), default=0) :]
    start = ("<|start|>assistant" if name in ("harmony", "muse") else "") + form.reasoning.start
    text, prompt = ("hm\n" + after, start) if is_open else (form.reasoning.start + "hm\n" + after, "")
    events = parse_every_way(text, form, tools=TOOLS, prompt=prompt)
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
            id="mark in reasoning that begins no call",
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
        pytest.param("kimi-k2", "Hi<|tool_calls_section_end|>", [ContentDelta("Hi")], id="end of no section"),
        pytest.param("gemma-4", "<channel|>Hi", [ContentDelta("Hi")], id="end of no reasoning"),
        pytest.param("gemma-4", "Hi <channel|>you", [ContentDelta("Hi you")], id="end of no reasoning in the text"),
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
            id="id that is none",
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
    ],
)
def test_call_reasoning_or_value_that_is_hard_to_read(name, text, events):
    assert parse_every_way(text, DIALECTS[name], tools=TOOLS) == events


def test_white_space_waits_only_where_a_mark_may_follow():
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
            "<|start|>assistant<|channel|>analysis<|message|>It", "hm", [ReasoningDelta("hm")], id="open thinking"
        ),
        pytest.param(
            "<|start|>assistant",
            "<|channel|>commentary to=browser.search<|message|>{}<|end|>",
            [ContentDelta("<|channel|>commentary to=browser.search<|message|>{}<|end|>")],
            id="foreign recipient",
        ),
    ],
)
def test_harmony_headers(prompt, text, events):
    assert parse_every_way(text, DIALECTS["harmony"], tools=TOOLS, prompt=prompt) == events


@pytest.mark.parametrize(
    ("text", "events"),
    [
        pytest.param(" to=the store", [ContentDelta(" to=the store")], id="text like a header"),
        pytest.param("Hi<|start|>x", [ContentDelta("Hi<|start|>x")], id="marker that starts nothing"),
        pytest.param(
            "Hi<|channel|>analysis<|message|>hm", [ContentDelta("Hi"), ReasoningDelta("hm")], id="text before a header"
        ),
        pytest.param(
            " to=functions.now<|channel|>commentary<|message|><|call|>",
            [ToolCallStart(0, "id0", "now"), ToolCallArguments(0, "{}")],
            id="call without arguments",
        ),
        pytest.param(
            ' to=functions.now<|channel|>commentary json<|message|>{"a": "<|end|>"}<|call|>',
            [ToolCallStart(0, "id0", "now"), ToolCallArguments(0, '{"a": "<|end|>"}')],
            id="marker in a string",
        ),
    ],
)
def test_harmony_loose_ends(text, events):
    assert parse_every_way(text, DIALECTS["harmony"], tools=TOOLS) == events


def test_harmony_thinking_may_stay_in_the_content():
    text = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Hi"
    events = parse_every_way(text, DIALECTS["harmony"], splits_reasoning=False)
    assert events == [ContentDelta("<|channel|>analysis<|message|>hm<|end|>Hi")]


# --- values ---

UNION = {"properties": {"a": {"type": ["string", "null"]}, "b": {"anyOf": [{"type": "integer"}, {"type": "string"}]}}}
NULLABLE = {"properties": {"a": {"type": "integer", "nullable": True}, "b": {"type": "integer", "nullable": False}}}
REFERENCE = {"properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"enum": [1, "one"]}}}


@pytest.mark.parametrize(
    ("schema", "key", "types"),
    [
        pytest.param(SCHEMA, "city", {"string"}, id="type"),
        pytest.param(UNION, "a", {"string", "null"}, id="list of types"),
        pytest.param(NULLABLE, "a", {"integer", "null"}, id="nullable"),
        pytest.param(NULLABLE, "b", {"integer"}, id="not nullable"),
        pytest.param(UNION, "b", {"integer", "string"}, id="anyOf"),
        pytest.param(REFERENCE, "a", {"integer", "string"}, id="reference to an enum"),
        pytest.param({"properties": {"a": {"const": None}}}, "a", {"null"}, id="const"),
    ],
)
def test_types_of_a_parameter(schema, key, types):
    assert parameter_types(schema, key) == types


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"properties": {"a": {}}},
        {"properties": {"a": {"$ref": "#"}}},
        {"properties": {"a": {"$ref": "#name"}}, "type": "object"},
        {"properties": {"a": {"$ref": "elsewhere"}}, "type": "object"},
        {"properties": {"a": True}},
        {"properties": 1},
    ],
)
def test_types_that_a_schema_does_not_tell_are_all(schema):
    assert len(parameter_types(schema, "a")) == 7


@pytest.mark.parametrize(
    ("raw", "types", "expected"),
    [
        pytest.param("3", {"integer"}, "3", id="integer"),
        pytest.param(" 3\n", {"number"}, "3", id="integer for number, white space"),
        pytest.param("3.0", {"integer"}, "3.0", id="whole float for integer"),
        pytest.param("3.5", {"integer"}, '"3.5"', id="no integer stays text"),
        pytest.param("true", {"boolean"}, "true", id="boolean"),
        pytest.param("True", {"boolean"}, "true", id="Python's boolean"),
        pytest.param("None", {"null", "string"}, "null", id="Python's null"),
        pytest.param("null", {"string"}, '"null"', id="word for a string"),
        pytest.param("3", {"string"}, '"3"', id="digits for a string"),
        pytest.param('{"a": 1}', {"object"}, '{"a": 1}', id="object as it is"),
        pytest.param("{'a': (1, True)}", {"object"}, '{"a": [1, true]}', id="Python's object"),
        pytest.param("[1, 2", {"array"}, '"[1, 2"', id="broken"),
        pytest.param("[b'x']", {"array"}, "\"[b'x']\"", id="Python that JSON has not"),
        pytest.param("NaN", {"number"}, '"NaN"', id="number that JSON has not"),
        pytest.param("[" * 5000, {"array"}, '"' + "[" * 5000 + '"', id="nested too deeply"),
        pytest.param('say "é"', {"string", "integer"}, '"say \\"é\\""', id="text"),
        pytest.param('"x"', {"integer", "string"}, '"\\"x\\""', id="quotes of its own are text"),
    ],
)
def test_value_as_json(raw, types, expected):
    assert value_json(raw, frozenset(types)) == expected


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        pytest.param("[f(a=1)]", [("f", '{"a": 1}')], id="list"),
        pytest.param("f(a=-1.5, b=null)", [("f", '{"a": -1.5, "b": null}')], id="single"),
        pytest.param("[f(a={'x': [true]})]", [("f", '{"a": {"x": [true]}}')], id="words within"),
        pytest.param("[f(1)]", [], id="without a name"),
        pytest.param("[f(a=b'x')]", [], id="no JSON value"),
        pytest.param("[f(a=-1e999)]", [("f", '{"a": -1.7976931348623157e+308}')], id="number that Python cannot hold"),
        pytest.param('f({"a": 1})', [("f", '{"a": 1}')], id="arguments as an object"),
        pytest.param("[f(**x)]", [], id="stars"),
        pytest.param("[f(a=g())]", [], id="call within"),
        pytest.param("f(", [], id="cut"),
        pytest.param("1 + 1", [], id="no call"),
    ],
)
def test_python_calls(text, calls):
    assert parsed_calls(text) == calls


@pytest.mark.parametrize(
    ("text", "offered", "calls"),
    [
        pytest.param("[get-it(a=1), f()]", ["get-it", "f"], [("get-it", '{"a": 1}'), ("f", "{}")], id="hyphen"),
        pytest.param("[return(a=1)]", ["return"], [("return", '{"a": 1}')], id="keyword"),
        pytest.param("[a-b()]", ["b-c", "a-b", "b"], [("a-b", "{}")], id="ends as another does"),
        pytest.param("[x-a-b(), a-b()]", ["a-b", "x-a-b"], [("x-a-b", "{}"), ("a-b", "{}")], id="within another"),
        pytest.param("[a-b(c='a-b(1)')]", ["a-b"], [("a-b", '{"c": "a-b(1)"}')], id="in a string"),
        pytest.param('[a-b(c="\\"a-b(")]', ["a-b"], [("a-b", '{"c": "\\"a-b("}')], id="in a string after a quote"),
        pytest.param("[x-a-b()]", ["a-b"], [], id="within one that was not offered"),
    ],
)
def test_python_calls_of_names_that_python_does_not_allow(text, offered, calls):
    assert parsed_calls(text, offered) == calls


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param('{a:<|"|>x:"y", {<|"|>,b:[1,None]}', '{"a":"x:\\"y\\", {","b":[1,null]}', id="own quotes"),
        pytest.param('{"a": "b:c"}', '{"a": "b:c"}', id="JSON already"),
    ],
)
def test_gemma_notation(text, expected):
    assert as_json(text) == expected


NESTED = {
    "properties": {
        "code": {"type": "array", "items": {"type": "string"}},
        "at": {"type": "object", "properties": {"item": {"type": "string"}, "n": {"$ref": "#/$defs/n"}}},
        "none": {"type": "array"},
        "any": {},
    },
    "$defs": {"n": {"type": "integer"}},
}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param("P<x>P<b>xP</b>P<c>2P</c>P</x>", {"x": {"b": "x", "c": 2}}, id="object without a schema"),
        pytest.param("P<x>P<item>1P</item>P</x>", {"x": [1]}, id="list without a schema"),
        pytest.param("P<code>P<item>1P</item>\nP<item>aP</item>P</code>", {"code": ["1", "a"]}, id="texts of a list"),
        pytest.param("P<at>P<item>5P</item>P</at>", {"at": {"item": "5"}}, id="member that is named as items are"),
        pytest.param("P<at>P<n>5P</n>P</at>P<none>P</none>", {"at": {"n": 5}, "none": []}, id="reference, empty list"),
        pytest.param("P<at>\nP</at>", {"at": {}}, id="empty object"),
        pytest.param('P<any>["P</any>"]P</any>', {"any": ["]<]minimax[>[</any>"]}, id="JSON within"),
        pytest.param("P<any>" + "P<a>" * 2000, None, id="deeper than anything"),
    ],
)
def test_nested_elements(body, expected):
    tools = [{"function": {"name": "f", "parameters": NESTED}}]
    text = f'P<tool_call>P<invoke name="f">{body}P</invoke>P</tool_call>'.replace("P<", "]<]minimax[>[<")
    events = parse([text], DIALECTS["minimax-m3"], tools=tools)
    assert expected is None or calls_of(parse_every_way(text, DIALECTS["minimax-m3"], tools=tools)) == [("f", expected)]
    assert [event.name for event in events if isinstance(event, ToolCallStart)] == ["f"]


def test_second_call_of_a_name_that_was_not_offered_is_content():
    text = 'P<tool_call>P<invoke name="now">P</invoke>P<invoke name="storm">P</invoke>'.replace("P<", "]<]minimax[>[<")
    events = parse_every_way(text, DIALECTS["minimax-m3"], tools=TOOLS)
    assert calls_of(events) == [("now", {})]
    assert "storm" in text_of(events, ContentDelta)


# --- detection ---


@pytest.mark.parametrize(
    ("template", "name"),
    [
        pytest.param("", "hermes", id="nothing known"),
        pytest.param("<tool_call> </tool_call>", "hermes", id="hermes"),
        pytest.param("<tool_call> <function= <parameter=", "qwen-coder", id="coder"),
        pytest.param("<tool_call> <arg_key>", "glm", id="glm"),
        pytest.param('"<function name=\\"" "<param name=\\""', "minicpm5", id="quotes within quotes"),
        pytest.param("<function= </function>", "functionary-3.1", id="functionary"),
        pytest.param("[TOOL_CALLS]", "mistral", id="mistral"),
        pytest.param("<|start|> <|channel|> <|message|>", "harmony", id="harmony"),
        pytest.param("<|python_tag|>", "llama-3", id="llama"),
    ],
)
def test_detection(template, name):
    assert detect(template).name == name


def test_detected_format_thinks_as_the_template_does():
    assert detect("[TOOL_CALLS] [THINK] [/THINK]").reasoning.start == "[THINK]"
    assert detect("<|inner_prefix|> <|tools_prefix|>").reasoning.start == "<|inner_prefix|>"


def test_preserved_markers_are_complete():
    preserved = DIALECTS["kimi-k2"].preserved
    assert {"<think>", "</think>", "<|tool_call_begin|>", "<|tool_calls_section_end|>"} <= set(preserved)
    assert "<|channel|>" in DIALECTS["harmony"].preserved


def test_lfm_reads_calls_that_are_json_too():
    text = '<|tool_call_start|>[{"name": "weather", "arguments": {"city": "[x]"}}]<|tool_call_end|>'
    head, arguments = parse_every_way(text, DIALECTS["lfm2"], tools=TOOLS)
    assert isinstance(head, ToolCallStart)
    assert (head.name, json.loads(arguments.text)) == ("weather", {"city": "[x]"})
