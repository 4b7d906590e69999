"""The constraint of a request: its grammar, matched against valid and invalid outputs."""

import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from localchat.serving.api import ollama
from localchat.serving.api.chat import parse_chat
from localchat.serving.api.messages import parse_messages
from localchat.serving.chat.constraints import constraint as constraint_module
from localchat.serving.chat.constraints import enforced
from localchat.serving.chat.constraints.constraint import constraint_for, plain_constraint
from localchat.serving.chat.dialects import DIALECTS, Dialect
from localchat.serving.chat.prompt.template import ChatTemplate
from localchat.serving.core.errors import BadRequest, NotSupported
from localchat.serving.core.events import ContentDelta, ReasoningDelta
from localchat.serving.core.fields import Fields
from localchat.serving.core.params import GenerationParams
from localchat.serving.core.request import CompletionRequest
from localchat.serving.schema import prepare
from tests.support import constraints as support
from tests.support.chat_requests import HI, parse_responses
from tests.support.constraints import PLAIN, PROMPT, TOOLS, check_fits, constraint_of, fits, formatted, required
from tests.support.dialect_outputs import parse
from tests.support.time_limit import limited_time

CITY = formatted("json_schema", support.SCHEMA)
THINKS = PLAIN + "{# <think> </think> #}"
OPEN_PROMPT = PROMPT + "<think>\n"
OPEN = (THINKS, OPEN_PROMPT)
WEATHER = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
WRONG = '<tool_call>\n{"name": "weather", "arguments": {"city": 1}}\n</tool_call>'
REASONING = "<think>\nI wonder: <tool?\n</think>\n\n"


def auto(**fields: Any) -> dict[str, Any]:
    return {"tools": TOOLS, "tool_choice": "auto", **fields}


def tools_with(parameters: Any) -> tuple[dict[str, Any], ...]:
    return ({"function": {"name": "f", "parameters": parameters}},)


PREFILLED = {"messages": (*HI, {"role": "assistant", "content": "Hi"}), "continue_final_message": "content"}
LLAMA = '{{ tools }}{"name": function name, "parameters":'
CALL_F = '<tool_call>\n{"name": "f", "arguments": {%s}}\n</tool_call>'
# Extensions restrict nothing, so the arguments are written one by one.
EXTENDED = {"x-b": 1, "properties": {"a": {"type": "string", "x-c": 2, "nullable": True}}, "required": ["a"]}
EXTENDED_CALL = "<tool_call>\n<function=f>\n<parameter=a>\n%s\n</parameter>\n</function>\n</tool_call>"
LISTED_NAMES = {"type": "object", "propertyNames": {"enum": ["a"]}, "additionalProperties": {"type": "integer"}}
# What no grammar can enforce is left out in `auto`.
IN_PART = {
    "to": {"type": "string", "pattern": "^(?!x)"}, "id": {"const": 2**60}, "n": {"type": "integer"},
    "near": {"type": "number", "exclusiveMinimum": 0, "maximum": 0.5},
}  # fmt: skip
IN_BRANCHES = {"properties": {"a": {"type": "integer"}}, "oneOf": [{"required": ["b"]}, {"required": ["c"]}]}
IN_NOT = {"properties": {"a": {"type": "integer"}}, "not": {"properties": {"b": {"const": 1}}, "required": ["b"]}}
IN_TAGS = "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n</tool_call>"
CODER = "{{ tools }}<tool_call><function=<parameter=<think></think>"
CODER_CALL = "<tool_call>\n<function=now>\n</function>\n</tool_call>"
CODER_CALLS = ["hm\n" + CODER_CALL, "hm\n<function=now>\n</function>", "hm\n</think>\n\n" + CODER_CALL]
MINIMAX = "{{ tools }}]<]minimax[>[<mm:think></mm:think>"
MINIMAX_CALL = 'P<tool_call>P<invoke name="now">P</invoke>P</tool_call>'.replace("P<", "]<]minimax[>[<")
MINIMAX_STARTS = ("", "</mm:think>", "<mm:think>hm</mm:think>\n\n")
CHANNELS = ("{{ tools }}<|start|><|channel|><|message|>", "<|start|>assistant<|channel|>analysis<|message|>")
AFTER_END = ("assistant", "", "<|end|><|start|>assistant")
CHANNEL_ENDS = [marker + after for marker in ("<|start|>", "<|call|>", "<|return|>") for after in AFTER_END]
ENDED = "hm<|end|><|start|>assistant"
FINAL = '<|channel|>final<|message|>{"city": "Rome"}'
COMMENTARY = "<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}"
SECTIONS = ("{{ tools }}<|open|><|close|><|sep|><|open|>think<|sep|><|close|>think<|sep|>", "<|open|>think<|sep|>")
SECTION_ENDS = ("<|open|>response<|sep|>", "<|close|>think<|sep|><|open|>response<|sep|>")
PARTS = "{{ tools }}>>>all"

# The fields of the request; the template, also with the prompt; valid outputs, and invalid ones.
OUTPUTS = {
    "required": (required(), PLAIN, [WEATHER, f"{WEATHER}\n{NOW}"], ["", "Sure.", WRONG, REASONING + NOW]),
    "one call": (auto(parallel_tool_calls=False), PLAIN, ["Hi.", NOW, "Hi.\n" + NOW], [f"{NOW}\n{NOW}", NOW + "Hi."]),
    "required-thinks": (
        required(), THINKS, [NOW, REASONING + WEATHER, "<think>\nhm\n" + NOW],
        [REASONING, REASONING + WRONG, "<think>", "<think>hm" + WRONG],
    ),
    "required-open": (required(), OPEN, ["hm\n</think>\n\n" + NOW, NOW, "hm" + NOW], ["hm", "hm</think>\n\nhm", WRONG]),
    "required-off": (required(chat_template_kwargs={"enable_thinking": False}), THINKS, [NOW], [REASONING + NOW]),
    "required-closed": (required(), (THINKS, OPEN_PROMPT + "\n</think>\n\n"), [NOW], [REASONING + NOW]),
    "schema": (CITY, PLAIN, ['{"city": "Rome"}'], ["", "{}", REASONING + '{"city": "Rome"}', NOW]),
    "schema-thinks": (CITY, THINKS, ['{"city":"Rome"}', REASONING + '{"city":"Rome"}'], [REASONING + "{}"]),
    "schema-or-call": (auto(**CITY), PLAIN, ['{"city":"Rome"}', NOW, f"{NOW}\n{NOW}"], ["{}", WRONG, "Hi."]),
    "grammar": (formatted("grammar", 'root ::= "a"+ b\nb ::= "b"'), THINKS, ["aab", REASONING + "ab"], ["a"]),
    "not-strict": (
        required(tools=({"function": {"name": "f", "strict": False, "parameters": {"if": {}}}},)), PLAIN,
        [CALL_F % '"any": [1]'], [CALL_F.replace("{%s}", "1")],
    ),
    "extensions": (
        required(tools=tools_with(EXTENDED)), CODER, [EXTENDED_CALL % "Hi you", EXTENDED_CALL % "null"],
        [EXTENDED_CALL.replace("=a>", "=b>") % "Hi"],
    ),
    "prefill": ({**PREFILLED, **formatted("regex", r"\d-c")}, (THINKS, PROMPT + "Hi"), ["3-c"], [REASONING + "3-c"]),
    "auto": (
        auto(), PLAIN, [f"{WEATHER}\n{NOW}", "<function=now>{}</function>", "", "Hi. <tool <", "Hi.<" + WEATHER],
        [WRONG, "<tool_call>", NOW + "Hi.", "Hi." + WRONG],
    ),
    "auto-names": (auto(tools=tools_with(LISTED_NAMES)), PLAIN, [CALL_F % '"a": 1'], [CALL_F % '"b": 1']),
    "auto-in-part": (
        auto(tools=tools_with({"properties": IN_PART})), PLAIN, [CALL_F % '"to": "x", "id": 3, "n": 1, "near": 0'],
        [CALL_F % text for text in ('"to": 1', '"n": ""', '"near": ""', '"b": 1')],
    ),
    # Names in the branches of `oneOf`, and in `not`, are allowed beside declared ones.
    "auto-branches": (
        auto(tools=tools_with(IN_BRANCHES)), PLAIN, [CALL_F % text for text in ('"a": 1, "b": 2', '"c": 1')],
        [CALL_F % '"a": ""'],
    ),
    "auto-not": (auto(tools=tools_with(IN_NOT)), PLAIN, [CALL_F % '"a": 1, "b": 2'], [CALL_F % '"a": 1, "c": 2']),
    # Calls end reasoning, so they are constrained there too.
    "auto-open": (auto(), OPEN, ["hm</think>\n\nHi", "hm" + NOW], ["hm" + WRONG]),
    "auto-bare": (auto(), LLAMA, ['{"name": "now", "parameters": {}}'], ['{"name": "now", "parameters": 1}']),
    "auto-tags": (
        auto(), "{{ tools }}<tool_call><arg_key>", [IN_TAGS, IN_TAGS + "\n<tool_call>now\n</tool_call>"],
        [IN_TAGS.replace("Rome", "Romulus"), IN_TAGS.replace("city", "town"), "<tool_call>weather\n</tool_call>"],
    ),
    "auto-thought": (auto(), (CODER, OPEN_PROMPT), CODER_CALLS, [text.replace("now", "then") for text in CODER_CALLS]),
    "empty-required": (required(), MINIMAX, [start + MINIMAX_CALL for start in MINIMAX_STARTS], ["</mm:think>"]),
    "empty-schema": (CITY, MINIMAX, [start + '{"city": "Rome"}' for start in MINIMAX_STARTS], ["</mm:think>"]),
    # The parser ends a message at any of these markers, so the text after another marker would be unconstrained.
    "channels-schema": (CITY, CHANNELS, [ENDED + FINAL], [f"hm{end}{FINAL}" for end in CHANNEL_ENDS]),
    "channels-required": (required(), CHANNELS, [ENDED + COMMENTARY], [f"hm{end}{COMMENTARY}" for end in CHANNEL_ENDS]),
    # A marker that opens the text also ends reasoning, and the response format begins after it.
    "sections-schema": (
        CITY, SECTIONS, [f'hm{end}{{"city": "Rome"}}' for end in SECTION_ENDS],
        [f"hm{end}Rome" for end in SECTION_ENDS],
    ),
    "sections-required": (required(), SECTIONS, [], ["hm<|open|>response<|sep|>Hi"]),
    "parts": (
        auto(), (PARTS, PROMPT + ">>>"),
        ["all\n", "all\nHi > now\n", 'weather\n{"city": "Rome"}', "all\nHi.>>>now\n{}>>>now\n{}", ">>>all\nHi"],
        ["", "Hi", 'weather\n{"city": 1}', "then\n{}", "all\nHi.>>>then\n{}", "now\n{} Hi", "all\nHi>>>weather\n{}"],
    ),
    "parts-prefill": (
        {**PREFILLED, **auto()}, (PARTS, PROMPT + ">>>all\nHi"), [" there.>>>now\n{}"], [" there.>>>then\n{}"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", OUTPUTS.values(), ids=OUTPUTS)
def test_output_is_constrained_as_requested(case: Any):
    fields, source, right, wrong = case
    check_fits(constraint_of(*([source] if isinstance(source, str) else source), **fields), right, wrong)


@pytest.mark.parametrize("fields", [{}, {"tools": TOOLS, "tool_choice": "none"}], ids=["plain", "none"])
def test_request_without_a_format_has_no_constraint(fields: Any):
    assert constraint_of(**fields) is None


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
def test_auto_constrains_from_every_opener_of_the_parser(dialect: Dialect):
    """A call that the parser reads and no grammar constrains could have any arguments."""
    right = "all\nHi." if dialect.recipient_mark else "Hi."
    check_fits(constraint_of("", dialect=dialect, **auto()), [right], [f"Hi. {text} then" for text in dialect.openers])


def test_completion_is_constrained_from_its_start():
    assert plain_constraint(CompletionRequest()) is None
    assert fits(plain_constraint(CompletionRequest(**CITY)), '{"city": "Rome"}')
    with pytest.raises(BadRequest, match="ignore_eos"):
        plain_constraint(CompletionRequest(**CITY, params=GenerationParams(ignore_eos=True)))


BAD = {"type": "object", "properties": {"a": {"type": "string", "if": {}}}}

# The fields of the request, the `param` of the error, and a word of its message.
REFUSED = {
    "tool": (
        required(tools=(*TOOLS, {"function": {"name": "f", "parameters": BAD}})),
        "tools[2].function.parameters#/properties/a/if", "strict",
    ),
    "tool-auto": (
        auto(tools=({"function": {"name": "f", "parameters": BAD, "strict": True}},)),
        "tools[0].function.parameters#/properties/a/if", "strict",
    ),
    "regex": (formatted("regex", "(a"), "regex", "regular expression is not supported"),
    "empty regex": (formatted("regex", r"x[^\s\S]"), "regex", "no text matches it"),
    "grammar": (formatted("grammar", "root ::= (" * 200), "grammar", "grammar"),
    "choice": (formatted("choice", ("\0",)), "choice", "NUL"),
    "choice beside tools": (required(**formatted("choice", ("\0",))), "choice", "NUL"),
    "ignore_eos": (required(params=GenerationParams(ignore_eos=True)), "ignore_eos", "ignore_eos"),
    "min_tokens": ({**CITY, "params": GenerationParams(min_tokens=5)}, "min_tokens", "min_tokens"),
    "prefix": ({**CITY, "response_prefix": "{"}, "response_prefix", "prefill"),
    "same-name": (auto(tools=(*TOOLS, TOOLS[1])), "tools[2].function.name", r"tools\[1\].*tools\[2\].*now"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_constraint_that_cannot_be_enforced_is_refused(case: Any):
    fields, param, word = case
    with pytest.raises(BadRequest, match=word) as caught:
        constraint_of(**fields)
    assert caught.value.param == param


@pytest.mark.parametrize("fields", [required(), auto()], ids=["required", "auto"])
@pytest.mark.parametrize("response_format", [{}, CITY], ids=["alone", "beside a format"])
def test_schema_that_is_too_large_is_named(fields: Any, response_format: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(prepare, "_MAX_READ", 10)
    path = "functions[0].parameters"
    large = {"type": "object", "properties": {str(i): {"type": "string"} for i in range(10)}}
    with pytest.raises(BadRequest, match="too large") as caught:
        constraint_of(**{**fields, **response_format, "tools": tools_with(large), "tool_paths": (path,)})
    assert caught.value.param == path


@pytest.mark.parametrize("tools", [(), TOOLS], ids=["alone", "or calls"])
@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
def test_constrained_text_with_markers_is_read_exactly(dialect: Dialect, tools: Any):
    """The parser reads the markers of the family as text if the response format allows them."""
    start, end = dialect.reasoning.start, dialect.reasoning.end
    value = f' \n"a" {" ".join((*dialect.openers, *dialect.preserved, *dialect.reasoning_ends))} \n'
    constraint = constraint_of(f"{{# {start} #}}", dialect=dialect, tools=tools, **formatted("choice", (value,)))
    outputs = {dialect.text_start[0] + value: [ContentDelta(value)]}
    if dialect.name != "functionary-3.2":  # This family has no reasoning.
        outputs[f"{start}hm{end}{dialect.text_start[1]}{value}"] = [ReasoningDelta("hm"), ContentDelta(value)]
    for text, expected in outputs.items():
        assert fits(constraint, text)
        for pieces in ([text], text):
            assert parse(pieces, dialect, tools=tools, prompt=PROMPT, is_constrained=True) == expected


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
def test_calls_may_follow_a_prefilled_text(dialect: Dialect):
    """The grammar requires the marker that ends the text, if the family has one."""
    template = ChatTemplate("")
    template.dialect = dialect
    prompt = template.prefilled("<|start|>assistant", "", "Hi")
    constraint = constraint_of("", prompt, dialect, **PREFILLED, **required(parallel_tool_calls=False))
    text = support.generated(constraint, random.Random(dialect.name))
    assert text is not None
    support.check_calls(dialect, TOOLS, text, prompt)


PARAMETERS = {"type": "object", "properties": {"a": {"not": {}}}}
SKIPPED = {"type": "web_search", "name": "s"}
FUNCTION = {"type": "function", "name": "f", "parameters": PARAMETERS}
# For each interface: its parser, a body, and the path of the schema in it.
PATHS = {
    "chat": (parse_chat, {"tools": [{"function": FUNCTION}]}, "tools[0].function.parameters"),
    "functions": (parse_chat, {"functions": [FUNCTION], "function_call": {"name": "f"}}, "functions[0].parameters"),
    "messages": (
        parse_messages, {"max_tokens": 9, "tools": [SKIPPED, {"name": "f", "input_schema": PARAMETERS}],
                         "tool_choice": {"type": "any"}}, "tools[1].input_schema",
    ),
    "responses": (parse_responses, {"tools": [SKIPPED, FUNCTION]}, "tools[1].parameters"),
    "namespace": (
        parse_responses, {"tools": [{"type": "namespace", "name": "n", "tools": [FUNCTION]}]},
        "tools[0].tools[0].parameters",
    ),
    "ollama": (ollama.parse_ollama, {"format": PARAMETERS}, "format"),
}  # fmt: skip


@pytest.mark.parametrize("case", PATHS.values(), ids=PATHS)
def test_place_has_the_path_of_the_interface(case: Any):
    parse, fields, path = case
    body = {"model": "m", "tool_choice": "required", "input" if parse is parse_responses else "messages": HI, **fields}
    with pytest.raises(BadRequest, match="'not' is not supported") as caught:
        constraint_for(parse(Fields(body)), ChatTemplate(PLAIN), PROMPT)
    assert caught.value.param == f"{path}#/properties/a/not"
    text = json.dumps(body).replace('{"not": {}}', '{"$ref": "#/$defs/q"}')
    with pytest.raises(BadRequest, match="leads to no part of the schema") as caught:
        parse(Fields({**json.loads(text), "tool_choice": None}))
    assert caught.value.param == f"{path}#/properties/a/$ref"


def test_without_llguidance_a_constraint_is_refused_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)  # its import fails
    constraint_module._constraint.cache_clear()
    with pytest.raises(NotSupported, match="pip install llguidance"):
        constraint_of(**formatted("json_schema", {"type": "object", "title": json.dumps("unique")}))
    assert constraint_of(**auto()) is None


# --- the tools of public MCP servers, as agents send them: names and schemas of their documentation ---


SERVERS: dict[str, dict[str, Any]] = json.loads((Path(__file__).parents[2] / "data" / "mcp_tools.json").read_text())
# The limit of processor time for the tools of half of the servers in one family. It is five times what they take.
MAX_SECONDS = 5.0
# The places that no grammar enforces in any family.
NOT_ENFORCED = {
    ("convert-contents", "#/allOf/0/if"), ("convert-contents", "#/allOf/0/then"),
    ("jq_filtered", "#/properties/coins/uniqueItems"),
}  # fmt: skip


def auto_with(tools: dict[str, Any], name: str) -> Any:
    functions = tuple({"function": {"name": tool, "parameters": schema}} for tool, schema in tools.items())
    return constraint_of("", dialect=DIALECTS[name], **auto(tools=functions))


@pytest.fixture
def not_enforced(monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, str]]:
    """The places that no grammar enforces, with their tools."""
    found: set[tuple[str, str]] = set()
    monkeypatch.setattr(enforced, "_report", lambda name, place, reason: found.add((name, place)))
    constraint_module._constraint.cache_clear()
    return found


def test_what_is_not_enforced_is_logged_once(caplog: pytest.LogCaptureFixture):
    tool = {"function": {"name": "logged_once", "parameters": {"type": "object", "properties": IN_PART}}}
    for _ in range(2):
        constraint_of(tools=(tool,), tool_choice="auto")
    texts = [record.getMessage() for record in caplog.records if "logged_once" in record.getMessage()]
    assert len(set(texts)) == len(texts) == 3
    assert texts[0].startswith("'#/properties/")
    assert all('of the tool "logged_once" is not enforced: ' in text for text in texts)


def test_place_in_the_log_is_that_of_the_schema_in_the_request(not_enforced: set[tuple[str, str]]):
    unique = {"type": "array", "uniqueItems": True}
    properties = {
        "a": {"oneOf": [{"type": "string"}, unique]},
        "b": {"allOf": [{"if": {}, **unique}]},
        "c": {"properties": {"d": {}}, "allOf": [{"$ref": "#/$defs/x"}]},
    }
    schema = {"type": "object", "properties": properties, "$defs": {"x": {"properties": {"e": unique}}}}
    assert auto_with({"f": schema}, "hermes")
    first = ("f", "#/properties/a/oneOf/1/uniqueItems")
    assert first in not_enforced
    assert all(place.startswith(("#/properties/", "#/$defs/x")) for _, place in not_enforced)


def test_tools_of_servers_become_grammars_in_a_limited_time(not_enforced: set[tuple[str, str]]):
    """Half of them in a family with arguments in tags, the others in one with its own notation."""
    for i, name in enumerate(("glm", "gemma-4")):
        with limited_time(MAX_SECONDS):
            for tools in list(SERVERS.values())[i::2]:
                assert auto_with(tools, name)
    assert not_enforced == NOT_ENFORCED


def test_tools_of_all_servers_at_once_become_a_grammar(not_enforced: set[tuple[str, str]]):
    tools = {f"{server}-{name}": schema for server, tools in SERVERS.items() for name, schema in tools.items()}
    assert len(SERVERS) > 100
    assert len(tools) > 600
    grammar = auto_with(tools, "hermes")
    assert {(name.partition("-")[2], place) for name, place in not_enforced} == NOT_ENFORCED
    assert not fits(grammar, '<tool_call>\n{"name": "linear-create_issue", "arguments": {"title": 1}}\n</tool_call>')
