"""The training text of the built-in model: template, tools, held-out names, statements about localchat."""

from __future__ import annotations

import functools
import itertools
import json
import random
import re
from pathlib import Path

import pytest

jinja2 = pytest.importorskip("jinja2")

from localchat.serving.models.catalog import DEMO_PATH  # noqa: E402
from tools.train_demo import everyday  # noqa: E402
from tools.train_demo.data import (  # noqa: E402
    chat_skills,
    localchat_facts,
    memory,
    mixture,
    tool_calls,
    tool_schemas,
    values,
)
from tools.train_demo.data.common_tools import common_tool  # noqa: E402
from tools.train_demo.data.mixture import dialogues  # noqa: E402
from tools.train_demo.data.sample_tools import SAMPLE_TOOLS  # noqa: E402
from tools.train_demo.data.source import Pool, Source, is_held_out, phrases, pool  # noqa: E402
from tools.train_demo.data.words import WORDS  # noqa: E402
from tools.train_demo.dialogue import Dialogue, assistant, calling, render, tool_result, user  # noqa: E402
from tools.train_demo.template import compile_template, template_source  # noqa: E402

N_DIALOGUES = 200
ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def trained():
    return list(itertools.islice(dialogues(seed=11), N_DIALOGUES))


def rendered_text(dialogue):
    return "".join(segment.text for segment in render(dialogue))


def template_text(dialogue, **variables):
    if dialogue.thinking is not None:
        variables["enable_thinking"] = dialogue.thinking
    return compiled().render(messages=dialogue.messages, tools=dialogue.tools, **variables)


@functools.lru_cache(1)
def compiled():
    return compile_template(template_source())


def test_template_renders_the_training_text(trained):
    """The server must render exactly the text that the model was trained on."""
    for dialogue in trained:
        assert template_text(dialogue) == rendered_text(dialogue)


def test_generation_prompt_is_a_prefix_of_the_training_text(trained):
    """The prompt for the last assistant message is the training text before this message."""
    for dialogue in trained:
        prompt = Dialogue(dialogue.messages[:-1], dialogue.tools, dialogue.thinking)
        assert rendered_text(dialogue).startswith(template_text(prompt, add_generation_prompt=True))


def test_template_accepts_arguments_as_text():
    """OpenAI clients send arguments as a JSON string; other programs send an object."""
    call = calling([("get_weather", {"city": "Paris"})])
    as_text = json.loads(json.dumps(call))
    as_text["tool_calls"][0]["function"]["arguments"] = '{"city": "Paris"}'
    texts = [
        template_text(Dialogue([user("Weather?"), message, tool_result("18"), assistant("The result is: 18")]))
        for message in (call, as_text)
    ]
    assert texts[0] == texts[1]


def test_template_writes_any_tool_as_one_line():
    """Also tools with schemas that no training dialogue has."""
    schema = {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "Where."},
            "unit": {"type": "string", "enum": ["c", "f"]},
            "days": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "tags": {"type": ["array", "null"]},
            "free": {},
        },
        "required": ["city", "free"],
    }
    tools = [
        {"type": "function", "function": {"name": "weather", "description": "Tells.", "parameters": schema}},
        {"type": "function", "function": {"name": "ping"}},
        {"name": "bare", "parameters": {"type": "object", "properties": {}}},
    ]
    text = template_text(Dialogue([user("Hi"), assistant("Hello!")], tools))
    line = "weather: Tells. weather(city: string, unit?: c=unit|f=unit, days?: integer, tags?: any, free: any)"
    assert f"<tools>\n{line}\nping: ping()\nbare: bare()\n</tools>" in text


def test_template_omits_earlier_reasoning():
    """Reasoning before the last user message is not rendered."""
    history = [user("Hi"), assistant("Hello!", "A greeting."), user("Bye"), assistant("Goodbye!", "The end.")]
    text = template_text(Dialogue(history))
    assert "A greeting." not in text
    assert "<think>\nThe end.\n</think>\n\nGoodbye!" in text


def test_template_accepts_a_message_without_content():
    """A message that only calls tools has no content in OpenAI's format."""
    call = {**calling([("ping", {})]), "content": None}
    assert '{"name": "ping", "arguments": {}}' in template_text(Dialogue([user("Ping"), call]))


@pytest.mark.parametrize("held_out", [False, True], ids=["trained", "held out"])
def test_calls_use_only_offered_names(held_out):
    """Every call names an offered tool and its parameters, and is valid JSON."""
    for dialogue in itertools.islice(dialogues(3, held_out), N_DIALOGUES):
        functions = [tool.get("function", tool) for tool in dialogue.tools or []]
        offered = {function["name"]: list(function["parameters"]["properties"]) for function in functions}
        text = "".join(segment.text for segment in render(dialogue) if segment.learned)
        for body in re.findall(r"<tool_call>\n(.*)\n</tool_call>", text):
            call = json.loads(body)
            assert set(call["arguments"]) <= set(offered[call["name"]])


def test_request_contains_the_arguments_in_order():
    """The model must copy these values from the request."""
    for dialogue in itertools.islice(dialogues(4), N_DIALOGUES):
        text = ""
        for message in dialogue.messages:
            if message["role"] == "user":
                text = message["content"]
            for call in message.get("tool_calls", ()):
                for value in call["function"]["arguments"].values():
                    before, found, text = text.partition(tool_calls.spoken_result(value))
                    assert found, (before, value)


def test_request_names_the_parameter_of_a_value():
    """A value has the name of its parameter before it, or is one of its options, or the parameter is the only one."""
    source = Source(random.Random(8), held_out=True)
    n_values = 0
    while n_values < 1000:
        tool = tool_schemas.random_tool(source)
        text, arguments = tool_calls.request(source, tool)
        for param in tool.params:
            if param.name in arguments and not param.options and len(tool.params) > 1:
                value = re.escape(tool_calls.spoken_result(arguments[param.name]))
                starts = [found.start() for found in re.finditer(rf" {value}(?!\w)", text)]
                texts_before = [text[:start].rstrip(" =:").removesuffix(" is").removesuffix(" to") for start in starts]
                shown = (f" {param.words}", f"({param.words}")
                assert not texts_before or any(before.endswith(shown) for before in texts_before), text
                n_values += bool(texts_before)


@pytest.mark.parametrize(
    ("text", "value", "open_ended"),
    [
        ("Write a note saying red fork", "red fork", True),
        ('Write a note saying "red fork".', "red fork", False),
        ("Write the note Hello!", "Hello!", True),
        ("Book a room in Oslo.", "Oslo", False),
        ("Count to 12.", 12, False),
    ],
)
def test_nothing_follows_an_open_ended_value(text, value, open_ended):
    """A second request in the same sentence would look like a part of the value."""
    assert tool_calls._is_open_ended(text, {"it": value}) == open_ended


@pytest.mark.parametrize("text", ["I need it", "I'd like it", "Ana needs an account"])
def test_values_keep_their_capitals_inside_a_sentence(text):
    """A value is unchanged; another word gets a lower-case first letter."""
    assert tool_calls._without_capital(text, {"name": "Ana"}) == text
    assert tool_calls._without_capital("Show it", {"name": "Ana"}) == "show it"


def test_seed_determines_the_text(trained):
    """A run can be repeated and resumed."""
    texts = [rendered_text(dialogue) for dialogue in trained]
    assert [rendered_text(dialogue) for dialogue in itertools.islice(dialogues(seed=11), N_DIALOGUES)] == texts
    assert [rendered_text(dialogue) for dialogue in itertools.islice(dialogues(seed=12), 20)] != texts[:20]


def test_held_out_names_are_never_trained(trained):
    """No listed name of the held-out half occurs in a training dialogue."""
    listed = {*values.FIRST_NAMES.held_out, *values.CITIES.held_out}
    text = " ".join(rendered_text(dialogue) for dialogue in trained)
    assert not [name for name in listed if re.search(rf"\b{name}\b", text)]


def test_held_out_tools_are_never_trained(trained):
    """No trained tool or parameter has a held-out name, and no list of names has one."""
    held = tool_schemas.NAMES_HELD_OUT
    tools = [*SAMPLE_TOOLS, *(common_tool(Source(random.Random(seed))) for seed in range(3000))]
    names = {name for tool in tools for name in (tool.name, *(param.name for param in tool.params))}
    for dialogue in trained:
        for tool in dialogue.tools or []:
            function = tool.get("function", tool)
            names |= {function["name"], *function["parameters"]["properties"]}
    assert not held & {part for name in names for part in (name, *tool_schemas.spoken(name).split())}
    listed = {name for words in tool_schemas.POOLS for name in words.trained}
    assert not held & {part for name in (*WORDS, *listed) for part in (name, *name.split("_"))}


def test_made_up_words_are_of_the_half_of_their_source():
    for held_out in (False, True):
        source = Source(random.Random(1), held_out)
        assert {is_held_out(values.word(source)) for _ in range(50)} == {held_out}


def test_pool_splits_a_list_into_trained_and_held_out_entries():
    """The parts never overlap, even if the list has an entry twice."""
    words = pool("a,b,c,d,e,f,g,g,a")
    assert not set(words.trained) & set(words.held_out)
    assert words.held_out == ("g",)


def test_phrase_expands_alternatives():
    """One alternative is chosen, also of nested ones, and fields are filled in."""
    source = Source(random.Random(2))
    pattern = phrases("{Hi|Hello}{, $name|{!|.}}", "Hey")
    texts = {source.phrase(pattern, name="Ana") for _ in range(60)}
    assert texts == {"Hi, Ana", "Hello, Ana", "Hi!", "Hi.", "Hello!", "Hello."}


def test_topics_have_many_phrasings():
    """With few phrasings, a model learns them by heart; it needs many to understand new ones."""
    source = Source(random.Random(3))
    assert len(localchat_facts.TOPICS) >= 30
    for topic in localchat_facts.TOPICS:
        assert len({source.expand(source.choice(topic.phrasings.patterns)) for _ in range(200)}) >= 15
        assert len(topic.phrasings.lines.trained) >= 100
        assert len(topic.phrasings.lines.held_out) >= 3


def pools(module):
    """All phrasings of a module, also those in tables."""
    for value in vars(module).values():
        for row in value if isinstance(value, tuple) else ((value,),):
            yield from (item for item in (row if isinstance(row, tuple) else ()) if isinstance(item, Pool))


def as_expression(pattern):
    """A regular expression for all texts that a pattern expands to. The value of a blank is its name in capitals."""
    parts = re.split(r"([{}|]|\$\w+)", pattern)
    meanings = {"{": "(?:", "}": ")", "|": "|"}
    text = "".join(meanings.get(part) or (part[1:].upper() if part[:1] == "$" else re.escape(part)) for part in parts)
    return re.compile(re.sub(r"(\\ )+", r"\\ ?", text), re.IGNORECASE)


@pytest.mark.parametrize(
    "module",
    [chat_skills, memory, mixture, tool_calls, tool_schemas],
    ids=lambda module: module.__name__.rpartition(".")[2],
)
def test_held_out_phrasings_are_never_trained(module):
    """No trained pattern expands to a held-out phrasing, apart from case and the punctuation at the end."""
    source = Source(random.Random(1))
    found = [phrasings for phrasings in pools(module) if phrasings.held_out]
    assert found
    for phrasings in found:
        assert not set(phrasings.trained) & set(phrasings.held_out)
        trained = [as_expression(pattern) for pattern in phrasings.trained]
        for _ in range(60):
            text = source.expand(source.choice(phrasings.held_out))
            text = re.sub(r"\$(\w+)", lambda blank: blank[1].upper(), text)
            for variant in (text, text.rstrip(" .!?")):
                assert not [other.pattern for other in trained if other.fullmatch(variant)]


def test_held_out_lines_are_never_trained():
    """No trained line or pattern equals a held-out line, apart from case and the punctuation at the end."""
    kinds = [topic.phrasings for topic in localchat_facts.TOPICS]
    kinds += [talk.phrasings for talk in chat_skills.TALK] + [limit.phrasings for limit in chat_skills.LIMITS]
    patterns = [as_expression(pattern) for kind in kinds for pattern in kind.patterns]
    trained = {line.lower().rstrip(" .!?") for kind in kinds for line in kind.lines.trained}
    for kind in kinds:
        assert kind.lines.held_out
        for line in kind.lines.held_out:
            assert line.lower().rstrip(" .!?") not in trained
            variants = (line, line.rstrip(" .!?"))
            assert not [pattern.pattern for pattern in patterns if any(map(pattern.fullmatch, variants))]


def test_statements_about_localchat_are_true():
    """The flags, endpoints and variables that the model names exist, with the defaults that it names."""
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "localchat").rglob("*.py")]
    code = "\n".join([*sources, *((ROOT / name).read_text(encoding="utf-8") for name in ("Makefile", "README.md"))])
    answers = " ".join(topic.answer for topic in localchat_facts.TOPICS)
    names = re.findall(r"--[a-z-]+[a-z]|/v1/[a-z/]+|/health|OPENAI_BASE_URL|\b[a-z]+\.py\b", answers)
    files = {path.name for path in (ROOT / "localchat").glob("*.py")}
    assert names
    assert not [name for name in names if name not in code and name not in files]
    assert "127.0.0.1" in code
    assert "8080" in code
    assert set(re.findall(r"`make (\w+)`", answers)) <= set(re.findall(r"^(\w+):", code, re.MULTILINE))


def test_stuttered_text_repeats_a_piece():
    """The text is up to four characters longer; the added characters repeat those before them."""
    source = Source(random.Random(5))
    for _ in range(500):
        text = values.any_text(source)
        stuttered = values.stuttered(source, text)
        n_more = len(stuttered) - len(text)
        assert 1 <= n_more <= 4
        assert any(stuttered == text[: start + n_more] + text[start:] for start in range(len(text)))


def test_request_for_a_common_tool_has_its_required_values():
    """All placeholders are replaced, each required parameter has a value, and no parameter occurs twice."""
    source = Source(random.Random(7))
    for _ in range(5000):
        tool = common_tool(source)
        text, arguments = tool_calls.request(source, tool)
        assert not set("${|}") & set(text)
        assert len({param.name for param in tool.params}) == len(tool.params)
        assert all(param.name in arguments for param in tool.params if param.required)
        assert all(tool_calls.spoken_result(value) in text for value in arguments.values())


def test_everyday_requests_contain_the_arguments_of_their_calls():
    """Every parameter has a value, every value is in the request, and no offered tool is trained."""
    source = Source(random.Random(1))
    trained_names = {tool.name for tool in (*SAMPLE_TOOLS, *(common_tool(source) for _ in range(5000)))}
    for n_tools in (1, 2, 3):
        for request in everyday.everyday_requests(n_tools):
            name, arguments = request.call
            offered = {tool["function"]["name"]: tool["function"]["parameters"] for tool in request.tools}
            assert len(offered) == n_tools
            assert not set(offered) & trained_names
            assert list(arguments) == offered[name]["required"]
            assert all(tool_calls.spoken_result(value) in request.text for value in arguments.values())


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@pytest.mark.parametrize("kind", ["LlamaRunner", "ServedRunner"])
def test_evaluation_parses_the_calls_and_the_reasoning_of_the_model(kind):
    """The model runs on llama.cpp alone or on localchat's server."""
    pytest.importorskip("llama_cpp")
    from tools.train_demo import llama_runner, served_runner
    from tools.train_demo.cases import parse_calls, without_reasoning
    from tools.train_demo.llama_runner import Request

    runner_of = {"LlamaRunner": llama_runner.LlamaRunner, "ServedRunner": served_runner.ServedRunner}
    settings = {"max_tokens": 100, "temperature": 0.0, "seed": 1}
    with runner_of[kind](DEMO_PATH) as runner:
        messages = [user("What is the weather in Paris?")]
        prompt, first = runner.generate(Request(messages, [WEATHER], None), **settings)
        assert "get_weather" in prompt
        assert parse_calls(first.text) == [("get_weather", {"city": "Paris"})]
        assert first.stopped
        messages += [calling([("get_weather", {"city": "Paris"})], ""), tool_result('{"temperature": 21}')]
        _, second = runner.generate(Request(messages, [WEATHER], None), **settings)
        assert "21" in second.text
        _, reasoning = runner.generate(Request([user("Hello!")], None, True), **settings)
        assert reasoning.text.count("</think>") == 1
        assert not reasoning.text.startswith("<think>")
        assert without_reasoning(reasoning.text) not in ("", reasoning.text)
