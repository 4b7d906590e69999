"""An output of each model family with reasoning, text and calls, for the tests of dialects."""

import json

from localchat.serving.core.events import ToolCallArguments, ToolCallStart

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

# For each family an output with reasoning, text, and two calls: `weather` with ARGUMENTS, and `now` without arguments.
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
WITHOUT_REASONING = {"functionary-3.2": f"all\nSure.>>>weather\n{JSON}>>>now\n{{}}"}
# The call ids of families whose models generate them. The other families get new ids.
OWN_IDS = {
    "kimi-k2": ["functions.weather:0", "functions.now:1"],
    "mistral": ["abc123XYZ", "id0"],
    "solar": ["a1", "a2"],
    "cohere": ["0", "1"],
}
ALL = {**GOLDEN, **WITHOUT_REASONING}


def calls_of(events):
    heads = [event for event in events if isinstance(event, ToolCallStart)]
    pieces = {head.index: "" for head in heads}
    for event in events:
        if isinstance(event, ToolCallArguments):
            pieces[event.index] += event.text
    return [(head.name, json.loads(pieces[head.index])) for head in heads]


def text_of(events, kind):
    return "".join(event.text for event in events if isinstance(event, kind))
