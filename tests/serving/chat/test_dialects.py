"""Dialects: golden, damaged and special outputs, cut anywhere; detection by the template; messages of templates."""

import json
import random
from itertools import takewhile

import pytest

from localchat.serving.chat.dialects import DIALECTS, detect
from localchat.serving.core.events import ContentDelta, ReasoningDelta, ToolCallStart
from localchat.serving.models.model_file import DEMO_PATH
from tests.support import dialect_outputs as outputs
from tests.support import random_outputs
from tests.support.dialect_outputs import arguments_of, calls_of, parse, parse_every_way, text_of
from tools.formats import OWN, check, main, sources


@pytest.mark.parametrize("name", DIALECTS)
def test_golden_output(name):
    events = parse_every_way(outputs.ALL[name], DIALECTS[name])
    assert calls_of(events) == [("weather", outputs.ARGUMENTS), ("now", {})]
    assert text_of(events, ContentDelta) == "Sure."
    assert text_of(events, ReasoningDelta) == ("" if name in outputs.WITHOUT_REASONING else "hm")
    ids = [event.id for event in events if isinstance(event, ToolCallStart)]
    assert ids == outputs.OWN_IDS.get(name, ["id0", "id1"])


@pytest.mark.parametrize("name", outputs.ALL)
def test_events_of_a_cut_golden_output_are_a_prefix(name):
    whole = parse([outputs.ALL[name]], DIALECTS[name])
    for size in range(0, len(outputs.ALL[name]), 11):
        text = outputs.ALL[name][:size]
        events = parse([text], DIALECTS[name])
        assert parse(text, DIALECTS[name]) == events
        heads = [event for event in events if isinstance(event, ToolCallStart)]
        assert heads == [event for event in whole if isinstance(event, ToolCallStart)][: len(heads)]
        assert "hm".startswith(text_of(events, ReasoningDelta).partition("<")[0].rstrip())


@pytest.mark.parametrize("name", outputs.ALL)
def test_cut_arguments_are_a_beginning_of_the_whole_ones(name):
    """Clients parse arguments while they are streamed. In a string, the beginning of an end marker is text."""
    text = outputs.ALL[name]
    whole = arguments_of(parse([text], DIALECTS[name]))
    for size in range(len(text)):
        for arguments, cut in zip(whole, arguments_of(parse([text[:size]], DIALECTS[name]))):
            n_same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(arguments, cut)))
            assert text[:size].endswith(json.loads(f'"{cut[n_same:]}"'))


@pytest.mark.parametrize("name", sorted(set(outputs.ALL) - {"harmony", "muse"}))
def test_call_of_a_name_that_was_not_offered_is_content(name):
    text = outputs.ALL[name].partition("Sure.")[2].replace("weather", "storm").replace("now", "storm")
    events = parse_every_way("Sure." + text, DIALECTS[name])
    assert calls_of(events) == []
    assert "storm" in text_of(events, ContentDelta)
    assert "Paris" in text_of(events, ContentDelta)


@pytest.mark.parametrize("name", outputs.ALL)
def test_output_without_tools_has_no_calls(name):
    events = parse_every_way(outputs.ALL[name], DIALECTS[name], tools=())
    assert calls_of(events) == []
    assert "Paris" in text_of(events, ContentDelta)


@pytest.mark.parametrize("name", DIALECTS)
def test_nothing_of_a_random_output_is_lost_at_any_cut(name):
    """`python -m tests.soak outputs` checks more of them."""
    for seed in range(4 * outputs.N_CUTS):
        random_outputs.check(name, random.Random(f"{name} {seed}"))


@pytest.mark.parametrize(
    ("template", "name", "start"),
    [
        ("", "hermes", "<think>"),
        ("<think> </think>", "hermes", "<think>"),
        ("<seed:think>", "hermes", "<think>"),
        ("<seed:think> </seed:think>", "hermes", "<seed:think>"),
        ("[THINK] [/THINK]", "hermes", "[THINK]"),
        ("<tool_call> <arg_key>", "glm", "<think>"),
        ('"<function name=\\"" "<param name=\\""', "minicpm5", "<think>"),
        # Markers of two families.
        ("<function= </function> <|python_tag|>", "functionary-3.1", "<think>"),
        ("<function= </function> <tool_call> <parameter=", "qwen-coder", "<think>"),
        ("<function= </function> <seed:tool_call>", "seed", "<seed:think>"),
        ("<|START_ACTION|> Action: ```json tool_name", "cohere", "<|START_THINKING|>"),
        # A family with its own tags: the template has no tags, other tags, or both.
        ("<|tool_call>", "gemma-4", "<|channel>thought"),
        ("<|tool_call> <think> </think>", "gemma-4", "<think>"),
        ("<|tool_call> <think> </think> <|channel>thought <channel|>", "gemma-4", "<|channel>thought"),
    ],
)
def test_detection(template, name, start):
    assert (detect(template).name, detect(template).reasoning.start) == (name, start)


def test_call_formats_are_those_that_the_template_contains():
    dsml = "<\uff5cDSML\uff5ctool_calls>"
    assert [format.template_text for format in detect(dsml).calls] == [dsml, dsml]
    assert len(DIALECTS["deepseek-dsml"].calls) == 4


# --- messages that a template renders; `python -m tools.formats` tests other templates so ---


TEMPLATES = {name.removesuffix(".jinja"): source for name, source in sources([])}
# The families of templates that have another name than their family.
ALSO = {"deepseek-r1": "deepseek", "gigachat-3.1": "gigachat", "ling": "glm", "mistral-nemo": "mistral"}
# Templates of models without reasoning.
TEMPLATES_WITHOUT_REASONING = {"command-r", "firefunction", "functionary-3.2", "gigachat", "gigachat-3.1", "llama-3"}


@pytest.mark.parametrize("name", TEMPLATES)
def test_messages_are_restored(name: str):
    row = check(name, TEMPLATES[name])
    assert row.failures == ()
    assert row.format == ALSO.get(name, name)
    assert bool(row.notes) == (name in TEMPLATES_WITHOUT_REASONING)


def test_every_family_has_a_template():
    assert {ALSO.get(name, name) for name in TEMPLATES} == set(DIALECTS)


def test_table_has_a_line_for_each_template_and_failures_are_counted(tmp_path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "bad.jinja").write_text(TEMPLATES["hermes"].replace('"name', '"nome'), "utf-8")
    assert main([str(OWN / "hermes.jinja"), str(DEMO_PATH)]) == 0
    assert main([str(OWN / "glm.jinja"), str(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["hermes.jinja", "hermes", "pass"]
    assert (lines[2], lines[-1]) == ("2 of 2 templates pass", "1 of 2 templates pass")
