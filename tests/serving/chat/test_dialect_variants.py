"""Outputs of each family in the variants that models generate, and text that looks like a call or a tag."""

import warnings

import pytest

from localchat.serving.chat.dialects import DIALECTS
from localchat.serving.core.events import ContentDelta, ReasoningDelta, ToolCallArguments, ToolCallStart
from tests.support import dialect_outputs as outputs
from tests.support.dialect_outputs import TOOLS, Reasoning, calls_of, events_of, parse, parse_every_way, parser, text_of

PYTHON = "Type this:\n>>> 1 + 1\n2\n>>> exit()\n"
XML = "<response>\n <status>ok</status>\n</response>"
K2_CALL = "<|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
K3_CALL = '<O>tools<S><O>call tool="now" index="1"<S><O>argument key="x" type="string"<S>3<C>argument<S><O>argument '
K3_CALL += 'key="y" type="number"<S>3<C>argument<S><C>call<S><C>tools<S>'
DSML = '<|DSML|invoke name="now">\n<|DSML|parameter name="x" string="true">3</|DSML|parameter>\n'
DSML += '<|DSML|parameter name="y" string="false">3</|DSML|parameter>\n</|DSML|invoke>'
M3_CALLS = 'P<tool_call>\nP<invoke name="weather">P<days>3P</invoke>\nP<invoke name="now">P</invoke>\nP</tool_call>'
M3_NESTED = 'P<invoke name="weather">P<opt>P<a>P<item>1P</item>P<item>2P</items>P</a>P<b>xP</c>P</opt>'
M3_NESTED += "P<city>RomeP<days>3P</DAYS>P</invoke>Hi"
CODER = "<function=weather>\n<parameter=city>\na\n\nb\n</parameter>\n</function>\n</tool_call>"
CODER_OPT = '<tool_call>\n<function=weather>\n<parameter=opt>\n{"a": "</parameter>%s\n</parameter>\n</function>'
PYTHON_WORDS = '<tool_call>\n{"name": "now", "arguments": {"a": [True, False], "b": None}}\n</tool_call>'
CODER_DAYS = "<tool_call>\n<function=weather>\n<parameter=days>\n3\n</function>\n</tool_call>\n"
CODER_END = "</function>\n</tool_"
CODER_CALL = "<tool_call>\n<function=now>\n</function>\n</tool_call>"
SPACED = "<function=weather><parameter=city>%s</parameter></function>"
GLM_PATH = "<tool_call>now\n<arg_key>a</arg_key><arg_value>1</arg_value>\n"
GLM_PATH += "<arg_key>/b</arg_key><arg_value>2</arg_value></tool_call>"
GEMMA = "<|tool_call>call:now%s<tool_call|>"
GIGA, GIGA_MESSAGE = '{"name": "now", "arguments": {}}', "<|message_sep|>\n\nfunction call<|role_sep|>\n"
CDATA = '<function name="weather"><param name="city"><![CDATA[a]]> <b>]]> </param></function>Hi'
ATEM = '<atem:function_calls>\n<atem:invoke name="now">\n</atem:invoke>\n</atem:function_calls>'
SELFIE = " to=selfie<|message|>Hi<|eom|>"
APERTUS = '<|tools_prefix|>[{"now": {}}, {"other": {}}]<|tools_suffix|>'
BROWSER = "<|channel|>commentary to=browser.search<|message|>{}<|end|>"
START, FINAL = "<|start|>assistant", "<|channel|>final<|message|>"
NOW, ANALYSIS, R = ("now", "{}"), ("get_analysis", "{}"), Reasoning
# For each family: the case, the text, the events, and the prompt.
LFM2 = "<|tool_call_start|>[{}]<|tool_call_end|>"
CASES = {
    "llama-3": [
        ("an answer in JSON", '{"answer": 42}', ['{"answer": 42}']),
        ("a list of calls", '[{"name": "now", "parameters": {}}]', [NOW]),
        ("text after a call", '{"name": "now", "parameters": {}}; and so', [NOW, "; and so"]),
        ("JSON within text", 'It is {"name": "now", "parameters": {}}', ['It is {"name": "now", "parameters": {}}']),
    ],
    "mistral": [
        ("no marker", '[TOOL_CALLS]now{"a": 1}', [("now", '{"a": 1}')]),
        ("id at the end", '[TOOL_CALLS][{"name": "now", "arguments": {}, "id": "123456789"}]', [(*NOW, "123456789")]),
        ("broken after", '[TOOL_CALLS][{"name": "now", "arguments": {}, "id": <}]', [NOW, '"id": <}]']),
    ],
    "deepseek-dsml": [("types of values", DSML.replace("|", outputs.BAR), [("now", '{"x": "3", "y": 3}')])],
    "qwen-coder": [
        ("opening tag left out", CODER, [("weather", '{"city": "a\\n\\nb"}')]),
        ("marker within JSON", CODER_OPT % '"}', [("weather", '{"opt": {"a": "</parameter>"}}')]),
        ("marker after a cut", CODER_OPT % "", [("weather", r'{"opt": "{\"a\": \""}'), "</parameter>\n</function>"]),
        ("JSON of another family", '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>', [NOW]),
        ("end of a call left out", CODER_CALL.replace("</function>", "") + "Hi", [NOW, "Hi"]),
        ("end of a text left out", CODER.replace("\n</parameter>", ""), [("weather", '{"city": "a\\n\\nb"}')]),
        ("end of a number left out", CODER_DAYS, [("weather", '{"days": 3}')]),
        (
            "ends of numbers left out", CODER_DAYS.replace("3", "3\n<parameter=city>\nRome\n</parameter>"),
            [("weather", '{"days": 3, "city": "Rome"}')],
        ),
        (
            "end of a call in a text", f"<tool_call>{SPACED}" % CODER_END,
            [("weather", '{"city": "</function>\\n</tool_"}')],
        ),
        ("white space", f"<tool_call>{SPACED}" % "\n\n a\n\n", [("weather", r'{"city": "\n a\n"}')]),
    ],
    "seed": [("white space", f"<seed:tool_call>{SPACED}" % "\n a\n", [("weather", r'{"city": "\n a\n"}')])],
    "hermes": [
        ("words of Python", PYTHON_WORDS, [("now", '{"a": [true, false], "b": null}')]),
        ("tags of another family", "<tool_call>\n" + CODER, [("weather", '{"city": "a\\n\\nb"}')]),
    ],
    "functionary-3.1": [("no arguments", "<function=now></function>", [NOW])],
    "apertus": [("name that was not offered", APERTUS, [NOW, ', {"other": {}}]<|tools_suffix|>'])],
    "nemotron-nano-2": [("comma at the end", '<TOOLCALL>[{"name": "now"},]</TOOLCALL>Hi', [NOW, "Hi"])],
    "kimi-k2": [
        ("no arguments", K2_CALL.replace("{}", ""), [(*NOW, "functions.now:0")]),
        ("raw arguments", K2_CALL.replace("{}", "a = 1") + "Hi", [("now", "a = 1", "functions.now:0"), "Hi"]),
        ("no prefix", K2_CALL.replace("functions.", ""), [(*NOW, "functions.now:0")]),
        ("no number", K2_CALL.replace(":0", ""), [NOW]),
        ("no prefix and no number", K2_CALL.replace("functions.now:0", "now"), [NOW]),
        ("repeated id", K2_CALL * 2, [(*NOW, "functions.now:0"), (*NOW, "id0")]),
    ],
    "kimi-k3": [
        ("types of values", K3_CALL, [("now", '{"x": "3", "y": 3}')]),
        ("no index", K3_CALL.replace(' index="1"', ""), [("now", '{"x": "3", "y": 3}')]),
        ("response in reasoning", "<O>think<S>hm<O>response<S>Hi<C>response<S>", [R("hm"), "Hi"]),
    ],
    "cohere": [("response", "<|START_THINKING|>hm<|START_RESPONSE|>Hi<|END_RESPONSE|>", [R("hm"), "Hi"])],
    "minimax-m3": [
        ("value that ends with the call", M3_CALLS, [("weather", '{"days": 3}'), NOW]),
        (
            "name that was not offered", M3_CALLS.replace("now", "no"),
            [("weather", '{"days": 3}'), 'P<invoke name="no">P</invoke>\nP</tool_call>'],
        ),
        (
            "end of a call left out", M3_CALLS.replace("3P</invoke>", "3P</days>"), [("weather", '{"days": 3}'), NOW],
        ),
        (
            "ends of all calls left out", M3_CALLS.replace("3P</invoke>", "3P</days>").replace("P</invoke>", "") + "Hi",
            [("weather", '{"days": 3}'), NOW, "Hi"],
        ),
        ("call without arguments and its end", 'P<invoke name="now">P<invoke name="now">P</invoke>', [NOW, NOW]),
        (
            "wrong and missing ends of elements", M3_NESTED,
            [("weather", '{"opt": {"a": [1, 2], "b": "x"}, "city": "Rome", "days": 3}'), "Hi"],
        ),
        ("empty reasoning", "</mm:think>\nHi", ["Hi"]),
    ],
    "minicpm5": [("white space after quotes", CDATA, [("weather", '{"city": "a]]> <b>"}'), "Hi"])],
    "gemma-4": [
        ("quotes", GEMMA % r'{a:<|"|>x:"y", {\n<|"|>,b:[1,None]}', [("now", r'{"a":"x:\"y\", {\\n","b":[1,null]}')]),
        ("JSON", GEMMA % '{"a": "b:c", n: {x: true}}', [("now", '{"a": "b:c", "n": {"x": true}}')]),
        ("no quotes", GEMMA % "{city:New York,a:Rome}" + "Hi", [("now", '{"city":"New York","a":"Rome"}'), "Hi"]),
        ("marker in a text", GEMMA % '{a:<|"|><|tool_call><|"|>}', [("now", '{"a":"<|tool_call>"}')]),
        ("end of reasoning that was not opened", "<channel|>Hi", ["Hi"]),
        ("start in part doubled", "<|channel><|channel>thought\nhm\n<channel|>Hi", [R("hm"), "Hi"]),
        ("empty reasoning in the text", "Hi <|channel>thought\n<channel|>you", ["Hi you"]),
        (
            "reasoning twice", "<|channel>thought\nhm\n<channel|>Hi\n<|channel>thought\nok<channel|>you",
            [R("hm"), "Hi\n", R("ok"), "you"],
        ),
        ("reasoning between", f"{GEMMA % '{}'}<|channel>thought\n<channel|>{GEMMA % '{}'}", [NOW, NOW]),
    ],
    "harmony": [
        ("text like a header", "<|channel|>is a tag<|end|>" + START + FINAL + "Hi", ["<|channel|>is a tagHi"]),
        ("a header that is cut", START + " to=now, say" + START + FINAL + "Hi", [START + " to=now, sayHi"]),
        ("header in the prompt", "Hi", ["Hi"], START + "<|channel|>final<|message|>"),
        ("open reasoning", "hm", [R("hm")], START + "<|channel|>analysis<|message|>It"),
        ("closed reasoning", "hm", ["hm"], START + "<|channel|>analysis<|message|>It<|end|>"),
        ("call in analysis", "<|channel|>analysis to=functions.now<|message|>{}<|call|>", [NOW], START),
        ("recipient that is not a function", BROWSER, [BROWSER], START),
        ("recipient that is no tool", "<|channel|>commentary to=assistant<|channel|>final<|message|>Hi", ["Hi"]),
        ("marker that starts nothing", "Hi<|start|>x", ["Hi<|start|>x"]),
        ("tool named like a channel", "to=get_analysis<|channel|>commentary json<|message|>{}<|call|>", [ANALYSIS]),
        ("text without a header", "Hi<|end|>", ["Hi"]),
        ("text before a header", "Hi<|channel|>analysis<|message|>hm", ["Hi", R("hm")]),
        ("no arguments", " to=functions.now<|channel|>commentary<|message|><|call|>", [NOW]),
        ("marker in a string", ' to=now<|message|>{"a": "<|end|>"}<|call|>', [("now", '{"a": "<|end|>"}')]),
    ],
    "lfm2": [
        ("a bracket after a broken call", LFM2.format('now({"a" 1})') + ") x", [("now", '{"a" 1})]'), ") x"]),
        ("object in place of named arguments", LFM2.format('now({"a": 1})') + " x", [("now", '{"a": 1}'), "x"]),
    ],
    "glm": [
        ("key that begins with a slash", GLM_PATH, [("now", '{"a": 1, "/b": 2}')]),
        ("end of a call left out", "<tool_call>now\n<tool_call>now\n</tool_call>", [NOW, NOW]),
    ],
    "muse": [
        ("tool whose name begins like the reasoning", SELFIE, [SELFIE]),
        ("no header", ' to=self<|message|>h <atem:invoke name="now"></atem:invoke>', [R("h "), NOW]),
        ("call in a text for the user", f" to=user<|message|>So: {ATEM} Ok<|eom|>", [f"So: {ATEM} Ok"]),
        ("call in the place of a text", f" to=user<|message|>{ATEM} Ok<|eom|>", [NOW, "Ok"]),
        ("text after a call", f" to=now<|message|>{ATEM} Ok<|eom|>", [NOW, "Ok"]),
        ("text in the place of a call", " to=now<|message|>Hi<|eom|>", [" to=now<|message|>Hi<|eom|>"]),
    ],
    "functionary-3.2": [
        ("text twice", "all\nHi\n>>>all\nMore", ["HiMore"]),
        ("Python's prompt", "all\n" + PYTHON, [PYTHON]),
        ("no recipient at all", PYTHON, [PYTHON]),
        ("name that was not offered", "all\nHi\n>>>storm\n{}", ["Hi\n>>>storm\n{}"]),
        ("a call after it", "all\n" + PYTHON + ">>>now\n{}", [PYTHON.rstrip(), NOW]),
        ("text after a call", "now\n{}\n" + PYTHON, [NOW, PYTHON]),
        ("name without arguments", "all\nIs it\n>>>now\nor never", ["Is it\n>>>now\nor never"]),
    ],
    "gigachat": [("calls in two messages", f"<|function_call|>{GIGA}{GIGA_MESSAGE}{GIGA}", [NOW, NOW])],
    "granite-3": [
        ("end left out", " \n<response>Hi", ["Hi"]),
        ("at the end of a text", "Write it:\n\n" + XML, ["Write it:\n\n" + XML]),
        ("text follows", "<response>Hi</response>\nThat is it.", ["HiThat is it."]),
        ("a call", '<response>Hi</response>\n<|tool_call|>[{"name": "now"}]', ["Hi", NOW]),
    ],
}  # fmt: skip

MUSE_RAW = " to=now to=self<|message|>hm<|eom|><|start|>assistant to=now<|message|>Hi<|eom|>"


@pytest.mark.parametrize(
    "text", [MUSE_RAW, f" to=now<|message|>{ATEM} Ok<|eom|>", " to=now<|message|>Hi", " to=now<|me"]
)
def test_raw_output_has_the_headers_of_messages_that_are_no_calls(text):
    events = parse_every_way(text, DIALECTS["muse"], prompt=START, is_raw=True)
    shown = "".join(event.text for event in events if not isinstance(event, (ToolCallStart, ToolCallArguments)))
    assert shown == text.replace(f" to=now<|message|>{ATEM} ", "")


# Texts of outputs that are nothing but a call without the markers of the family, and the same with other text.
SOLE_CALL = '{"name": "now", "arguments": {"a": {"b": "}"}}}'
SOLE_CALLS = [SOLE_CALL, f"\n```json\n{SOLE_CALL}\n```\n", '```{ "parameters":{"a": {"b": "}"}},\n"name" :"now"}']
NO_SOLE_CALLS = [
    *(f"```python\n{SOLE_CALL}\n```", f"So: {SOLE_CALL}", f"```\n{SOLE_CALL}\n```\nSo", SOLE_CALL * 2),
    *(SOLE_CALL.replace("now", "no"), SOLE_CALL.replace('"a"', '"a'), SOLE_CALL[:-1] + ', "id": 1}', SOLE_CALL[:-1]),
    *('{"name": "now"}', '{"name": "now", "arguments": "{}"}', '{"name": "now", "name": "now"}'),
]


def markers_of(text):
    """A text with its markers, for which the tables have short forms."""
    for short, marker in (("<O>", "<|open|>"), ("<C>", "<|close|>"), ("<S>", "<|sep|>"), ("P<", "]<]minimax[>[<")):
        text = text.replace(short, marker)
    return text


@pytest.mark.parametrize(
    ("name", "case"), [pytest.param(name, row, id=f"{name}: {row[0]}") for name, rows in CASES.items() for row in rows]
)
def test_events_of_a_special_case(name, case):
    _, text, expected, prompt = (*case, "")[:4]
    expected = [markers_of(item) if type(item) is str else item for item in expected]
    assert parse_every_way(markers_of(text), DIALECTS[name], prompt=prompt) == events_of(expected)


@pytest.mark.parametrize("name", DIALECTS)
def test_output_that_is_nothing_but_an_object_with_a_name_and_arguments_is_a_call(name):
    dialect = DIALECTS[name]
    reasoning = "" if name in outputs.WITHOUT_REASONING else dialect.reasoning.start + "hm" + dialect.reasoning.end
    texts = dialect.text_start if reasoning else dialect.text_start[:1]
    for text, before in zip(SOLE_CALLS, ("", texts[0], reasoning + texts[-1])):
        events = parse_every_way(before + text, dialect)
        assert (calls_of(events), text_of(events, ContentDelta)) == ([("now", {"a": {"b": "}"}})], "")
    for options in ({"is_constrained": True}, {"is_continued": True}, {"tools": ()}):
        assert parse([SOLE_CALLS[1]], dialect, **{"tools": TOOLS, **options}) == [ContentDelta(SOLE_CALLS[1])]


@pytest.mark.parametrize(
    ("name", "text"), [("granite-3", "<response>{}</response>"), ("solar", "<|content|>{}<|end|>")]
)
def test_markers_around_an_object_that_is_a_call_are_dropped(name, text):
    events = parse_every_way(text.format(SOLE_CALL), DIALECTS[name])
    assert (calls_of(events), text_of(events, ContentDelta)) == ([("now", {"a": {"b": "}"}})], "")


@pytest.mark.parametrize("name", ["hermes", "harmony"])
def test_other_objects_and_text_around_an_object_are_content(name):
    for text in NO_SOLE_CALLS:
        assert parse_every_way(text, DIALECTS[name]) == [ContentDelta(text)]


@pytest.mark.parametrize(("name", "tag"), [("glm", "<arg_value>"), ("hy", "<arg_value:opensource>")])
def test_value_without_its_start_tag_belongs_to_its_key(name, tag):
    """It is not parsed as the value of the next key."""
    text = outputs.ALL[name].replace(f"{tag}3", "3").replace(f"{tag}Paris", "Paris")
    assert calls_of(parse_every_way(text, DIALECTS[name])) == [("weather", outputs.ARGUMENTS), ("now", {})]


def test_gemma_writes_names_in_the_order_of_its_template():
    arguments = {"B": [True, None, "x", []], "a": {"d": 2, "C": 3}}
    text = DIALECTS["gemma-4"].calls[0].written([{"name": "f", "arguments": arguments}])
    assert text == '<|tool_call>call:f{a:{C:3,d:2},B:[true,null,<|"|>x<|"|>,[]]}<tool_call|>'


@pytest.mark.parametrize("text", ["<![CDATA[q]]>", "x</param>y", "]]>", "plain"])
def test_text_is_written_in_the_format_of_values_that_can_have_it(text):
    tools = [{"function": {"name": "f", "parameters": {"properties": {"a": {"type": "string"}}}}}]
    written = DIALECTS["minicpm5"].calls[0].written([{"name": "f", "arguments": {"a": text}}])
    assert calls_of(parse([written], DIALECTS["minicpm5"], tools=tools)) == [("f", {"a": text})]


@pytest.mark.parametrize("is_open", [False, True], ids=["opened", "opened by the prompt"])
@pytest.mark.parametrize("name", outputs.GOLDEN)
def test_call_ends_reasoning_that_was_never_closed(name, is_open):
    dialect = DIALECTS[name]
    after = outputs.GOLDEN[name].partition("Sure.")[2]
    after = after[min((at for end in dialect.reasoning_ends if (at := after.find(end)) >= 0), default=0) :]
    start = ("<|start|>assistant" if name in ("harmony", "muse") else "") + dialect.reasoning.start
    text, prompt = ("hm\n" + after, start) if is_open else (dialect.reasoning.start + "hm\n" + after, "")
    events = parse_every_way(text, dialect, prompt=prompt)
    assert text_of(events, ReasoningDelta).rstrip() == "hm"
    assert calls_of(events) == [("weather", outputs.ARGUMENTS), ("now", {})]
    assert text_of(events, ContentDelta) == ""


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
    events = parse_every_way(output, dialect)
    assert (text_of(events, ReasoningDelta), calls_of(events)) == (reasoning, [("now", {"a": 1})])
    assert text_of(events, ContentDelta) == ""


# The schema of an argument between tags, its text, and its JSON.
INTEGER_OR_TEXT = {"anyOf": [{"type": "integer"}, {"type": "string"}]}
VALUES = [
    ({"type": "string"}, "null", '"null"'),
    ({"type": "number"}, " 3\n", "3"),
    ({"type": "integer"}, "3.5", '"3.5"'),
    ({"type": "integer"}, "1_000", "1000"),
    (INTEGER_OR_TEXT, "1_000", '"1_000"'),
    (INTEGER_OR_TEXT, 'say "\u00e9"', '"say \\"\u00e9\\""'),
    (INTEGER_OR_TEXT, '"x"', '"\\"x\\""'),
    ({"type": "boolean"}, "True", "true"),
    ({"type": ["string", "null"]}, "None", "null"),
    ({"type": "integer", "nullable": True}, "null", "null"),
    ({"type": "integer", "nullable": False}, "null", '"null"'),
    ({"$ref": "#/$defs/x"}, "true", '"true"'),
    ({"$ref": "#"}, "true", '"true"'),
    ({"$ref": "elsewhere"}, "true", "true"),
    ({"const": None}, "null", "null"),
    ({"type": "object"}, "", "{}"),
    ({"type": "object"}, "{'a': (1, True)}", '{"a": [1, true]}'),
    ({"type": "array"}, "[1, 2", '"[1, 2"'),
    ({"type": "array"}, "[b'x']", "\"[b'x']\""),
    ({"type": "number"}, "NaN", '"NaN"'),
    ({"type": "integer"}, "-0x1f", "-31"),
    ({}, "[draft of it] yes", '"[draft of it] yes"'),
    ({}, "[draft]", '"[draft]"'),
    ({}, "{a: b}", '"{a: b}"'),
    ({"type": ["string", "array"]}, "{a: 1}", '"{a: 1}"'),
    ({"type": "object"}, "{a: 1}", '{"a": 1}'),
    # Python's compiler writes warnings of these.
    ({"type": "array"}, r"['\d', '\n', True]", r'["\\d", "\n", true]'),
    *(({"type": "array"}, text, f'"{text}"') for text in ("[10in x]", "[0x1for x in y]", "(1)(2)", "[1](2)", "1 is 1")),
    *(({"type": "integer"}, f"10{word}", f'"10{word}"') for word in ("in", "or more", " inches")),
    ({"type": "array"}, "[" * 5000, '"' + "[" * 5000 + '"'),
]


@pytest.mark.parametrize(("schema", "text", "expected"), VALUES, ids=lambda value: str(value)[:30])
def test_text_between_tags_gets_the_type_of_its_schema(schema, text, expected):
    parameters = {"type": "object", "properties": {"a": schema}, "$defs": {"x": {"enum": [1, "one"]}}}
    tools = [{"function": {"name": "f", "parameters": parameters}}]
    output = f"<tool_call>f<arg_key>a</arg_key><arg_value>{text}</arg_value></tool_call>"
    with warnings.catch_warnings(record=True) as written:  # Python would write them to the log.
        warnings.simplefilter("always")
        assert parse([output], DIALECTS["glm"], tools=tools)[1].text == f'{{"a": {expected}}}'
    assert not written


PYTHON_CALLS = [
    ("f(a=-1.5, b=null)", [("f", {"a": -1.5, "b": None})]),
    ("[f(a={'x': [true], 1: None}, b=('y', 2,))]", [("f", {"a": {"x": [True], "1": None}, "b": ["y", 2]})]),
    ("[f()\n, f(a=1)]", [("f", {}), ("f", {"a": 1})]),
    ("f(a=1)\nf(a=2)", [("f", {"a": 1}), ("f", {"a": 2})]),
    ('f({"a": 1})', [("f", {"a": 1})]),
    ("[f(a='b\nc')]", [("f", {"a": "b\nc"})]),
    (r"""[f(a='\'"\n\d\x41\u00e9\ud83d\ude00\U0001f600', b="'")]""", [("f", {"a": "'\"\n\\dAé😀😀", "b": "'"})]),
    ("[get-it(a=1), return()]", [("get-it", {"a": 1}), ("return", {})]),
    ("[x-get-it(), get-it()]", [("x-get-it", {}), ("get-it", {})]),
    ("[f(a=red)]", [("f", {"a": "red"})]),
    *((text, None) for text in ("[f(1)]", "[f(**x)]", "[y-get-it()]", "f(", "1 + 1")),
]


@pytest.mark.parametrize(("text", "calls"), PYTHON_CALLS, ids=lambda value: value if isinstance(value, str) else "")
def test_python_calls(text, calls):
    text = f"<|tool_call_start|>{text}<|tool_call_end|>"
    events = parse_every_way(text, DIALECTS["lfm2"])
    assert (calls_of(events) or text_of(events, ContentDelta)) == (calls or text)


CUT = [
    ("lfm2", "<|tool_call_start|>[f(a=g())]", '{"a": "g"())]'),
    ("lfm2", "<|tool_call_start|>[f(a=1", '{"a": '),
    ("lfm2", '<|tool_call_start|>[f(a="x\\', '{"a": "x'),
    ("gemma-4", '<|tool_call>call:f{a:<|"|>x<tool_call|>', '{"a":"x'),
]


@pytest.mark.parametrize(("name", "text", "raw"), CUT)
def test_call_in_a_notation_that_breaks_off_counts_as_cut(name, text, raw):
    made = parser(DIALECTS[name])
    assert parse_every_way(text, DIALECTS[name])[1].text == raw
    made.feed(text)
    made.finish()
    assert made.inside_tool_call


# The pieces of an output, and what is emitted after each: texts, and names of calls.
PARIS = {"Par": "Par", "is": "is"}
STREAMED = [
    *(("hermes", {text[:-1]: "", text[-1]: text}) for text in ("```p", '{"nam_', '{"name": "nox', '{"arguments": [')),
    ("hermes", {SOLE_CALL: "", ";": SOLE_CALL + ";"}),
    ("hermes", {"Hi <to": "Hi", "ol_box": " <tool_box", "\n": ""}),
    ("functionary-3.2", {"all\nHi\n>>>al": "Hi", "so \n>>> 1": "\n>>>also \n>>> 1"}),
    ("hermes", {'<tool_call>{"name":"f",': "f", '"arguments": {"a": "x': '{"a": "x', "y": "y", '"}': '"}', "}\n": ""}),
    ("gemma-4", {'<|tool_call>call:weather{city:<|"|>': 'weather{"city":"', **PARIS}),
    ("lfm2", {"<|tool_call_start|>[weather(city='": 'weather{"city": "', **PARIS}),
    ("mistral", {'[TOOL_CALLS]weather[ARGS]{"city": "': 'weather{"city": "', **PARIS}),
    ("minimax-m3", {'P<tool_call>P<invoke name="weather">P<city>': 'weather{"city": "', **PARIS}),
    ("minimax-m3", {'P<tool_call>P<invoke name="f">P<opt>P<a>P<item>x': 'f{"opt": {"a": [', "P</item>P</a>": '"x"]'}),
    ("qwen-coder", {"<tool_call>\n<function=weather>\n<parameter=city>\n": 'weather{"city": "', **PARIS}),
]


@pytest.mark.parametrize(("name", "pieces"), STREAMED)
def test_only_text_that_may_be_a_marker_is_held_back(name, pieces):
    made = parser(DIALECTS[name])
    for piece, emitted in pieces.items():
        events = made.feed(markers_of(piece))
        assert "".join(event.name if isinstance(event, ToolCallStart) else event.text for event in events) == emitted


def test_white_space_is_held_back_only_beside_tools():
    assert parser(tools=()).feed("Hi \n") == [ContentDelta("Hi \n")]


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
        pytest.param("P<x>P<x>P<x>1P</x>P</x>P</x>", {"x": {"x": {"x": 1}}}, id="elements of the same name"),
        pytest.param("P<code>P<item>1P</item>\nP<item>aP</item>P</code>", {"code": ["1", "a"]}, id="texts of a list"),
        pytest.param("P<at>P<item>5P</item>P</at>", {"at": {"item": "5"}}, id="field with the name of items"),
        pytest.param("P<at>P<n>5P</n>P</at>P<none>P</none>", {"at": {"n": 5}, "none": []}, id="reference, empty list"),
        pytest.param("P<at>\nP</at>", {"at": {}}, id="empty object"),
        pytest.param('P<any>["P</any>"]P</any>', {"any": ["]<]minimax[>[</any>"]}, id="JSON inside"),
        pytest.param("P<x>P<b>x", {"x": {"b": "x"}}, id="elements that end with the call"),
        pytest.param("P<x>\n  P<b>xP</b>\n  P<c>2P</c>\nP</x>", {"x": {"b": "x", "c": 2}}, id="indented elements"),
        pytest.param("P<any>" + "P<a>" * 2000, None, id="nested too deeply"),
    ],
)
def test_nested_elements(body, expected):
    tools = [{"function": {"name": "f", "parameters": NESTED}}]
    text = markers_of(f'P<tool_call>P<invoke name="f">{body}P</invoke>P</tool_call>Hi')
    events = parse([text], DIALECTS["minimax-m3"], tools=tools)
    assert [event.name for event in events if isinstance(event, ToolCallStart)] == ["f"]
    if expected is not None:
        events = parse_every_way(text, DIALECTS["minimax-m3"], tools=tools)
        assert (calls_of(events), text_of(events, ContentDelta)) == ([("f", expected)], "Hi")


@pytest.mark.parametrize("role", ["user", "assistant", "all"])
def test_message_in_channels_is_no_call_of_a_tool_that_has_the_name_of_a_role(role):
    tools = [*TOOLS, {"type": "function", "function": {"name": role, "parameters": {"type": "object"}}}]
    final, analysis = "<|channel|>final<|message|>Hello<|end|>", "<|channel|>analysis<|message|>hm<|end|>"
    cases = [
        (final, ["Hello"]),
        (analysis + START + final, [R("hm"), "Hello"]),
        (f" to={role}<|channel|>final<|message|>Hello", ["Hello"]),
        (f" to=functions.{role}<|channel|>commentary<|message|>{{}}<|call|>", [(role, "{}")]),
    ]
    for text, expected in cases:
        assert parse_every_way(text, DIALECTS["harmony"], prompt=START, tools=tools) == events_of(expected), text
    plain = f" to={role}<|message|>Hello<|eom|>"
    assert parse_every_way(plain, DIALECTS["muse"], tools=tools) == events_of(["Hello"])
