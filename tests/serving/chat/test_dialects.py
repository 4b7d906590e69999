"""Dialects: golden outputs, cut at any place and damaged; detection by the template; messages that templates render."""

from __future__ import annotations

import random
import re

import pytest

from localchat.serving.chat.dialects import DIALECTS, detect
from localchat.serving.chat.dialects.parser import FormatText, merged
from localchat.serving.core.events import ContentDelta, ReasoningDelta, ToolCallStart
from localchat.serving.models.model_file import DEMO_PATH
from tests.serving.chat.test_output import N_CUTS, parse, parse_every_way
from tests.support.dialect_outputs import ALL, ARGUMENTS, OWN_IDS, TOOLS, WITHOUT_REASONING, calls_of, text_of
from tools.formats import OWN, check, main, sources


@pytest.mark.parametrize("name", DIALECTS)
def test_golden_output(name):
    events = parse_every_way(ALL[name], DIALECTS[name], tools=TOOLS)
    assert calls_of(events) == [("weather", ARGUMENTS), ("now", {})]
    assert text_of(events, ContentDelta) == "Sure."
    assert text_of(events, ReasoningDelta) == ("" if name in WITHOUT_REASONING else "hm")
    ids = [event.id for event in events if isinstance(event, ToolCallStart)]
    assert ids == OWN_IDS.get(name, ["id0", "id1"])


@pytest.mark.parametrize("name", ALL)
def test_events_of_a_cut_golden_output_are_a_prefix(name):
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
def test_damaged_output_has_the_same_events_at_any_cut(name):
    """Golden outputs with parts that are left out, doubled, moved or cut. Some models generate such outputs."""
    dialect, known = DIALECTS[name], re.findall(r"<[^<>\s]*>|\w+|\s+|.", ALL[name])
    for seed in range(N_CUTS // 4):
        dice = random.Random(f"{name} {seed}")
        parts = list(known)
        for _ in range(dice.randint(1, 4)):
            at = dice.randrange(len(parts))
            parts[at : at + dice.randint(0, 2)] = dice.choice([[], [], ["x"], dice.sample(known, 2)])
        text = "".join(parts)[: dice.randrange(1, 2 * len(known) + 1) if dice.random() < 0.5 else None]
        tools = dice.choice([TOOLS, TOOLS, ()])
        options = {
            "tools": tools,
            "prompt": dice.choice(["", dialect.reasoning.start]),
            "is_constrained": dice.random() < 0.2,
        }
        whole = parse([text], dialect, **options)
        cuts = sorted(dice.choices(range(len(text) + 1), k=5))
        for pieces in (text, [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)])]):
            assert parse(pieces, dialect, **options) == whole, (text, options)
            # A raw output has the same events, and the text between them. Only the text of calls is left out.
            raw = parse(pieces, dialect, is_raw=True, **options)
            assert merged([event for event in raw if not isinstance(event, FormatText)]) == whole, (text, options)
            assert tools or text_of(raw, (ContentDelta, ReasoningDelta)) == text, options


@pytest.mark.parametrize(
    ("template", "name"),
    [
        pytest.param("", "hermes", id="nothing known"),
        pytest.param("<tool_call> <arg_key>", "glm", id="glm"),
        pytest.param('"<function name=\\"" "<param name=\\""', "minicpm5", id="quotes within quotes"),
        pytest.param("<function= </function> <|python_tag|>", "functionary-3.1", id="functionary on Llama"),
        pytest.param("<function= </function> <tool_call> <parameter=", "qwen-coder", id="coder, not functionary"),
        pytest.param("<function= </function> <seed:tool_call>", "seed", id="seed, not functionary"),
        pytest.param("<|START_ACTION|> Action: ```json tool_name", "cohere", id="cohere, not command-r"),
    ],
)
def test_detection(template, name):
    assert detect(template).name == name


def test_call_layouts_are_those_that_the_template_contains():
    dsml = "<\uff5cDSML\uff5ctool_calls>"
    assert [layout.template_text for layout in detect(dsml).calls] == [dsml, dsml]
    assert len(DIALECTS["deepseek-dsml"].calls) == 4


# --- messages that a template renders; `python -m tools.formats` tests other templates so ---


TEMPLATES = dict(sources([]))
# The families of templates that have another name than their family.
ALSO = {
    "deepseek-r1.jinja": "deepseek",
    "gigachat-3.1.jinja": "gigachat",
    "ling.jinja": "glm",
    "mistral-nemo.jinja": "mistral",
}
# Templates of models without reasoning.
TEMPLATES_WITHOUT_REASONING = {"command-r", "firefunction", "functionary-3.2", "gigachat", "gigachat-3.1", "llama-3"}


@pytest.mark.parametrize("name", TEMPLATES)
def test_messages_are_restored(name: str):
    row = check(name, TEMPLATES[name])
    assert row.failures == ()
    assert row.format == ALSO.get(name, name.removesuffix(".jinja"))
    assert bool(row.notes) == (name.removesuffix(".jinja") in TEMPLATES_WITHOUT_REASONING)


def test_every_family_has_a_template():
    assert {ALSO.get(name, name.removesuffix(".jinja")) for name in TEMPLATES} == set(DIALECTS)


def test_table_has_a_line_for_each_template_and_failures_are_counted(tmp_path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "bad.jinja").write_text(TEMPLATES["hermes.jinja"].replace('"name', '"nome'), "utf-8")
    assert main([str(OWN / "hermes.jinja"), str(DEMO_PATH)]) == 0
    assert main([str(OWN / "glm.jinja"), str(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["hermes.jinja", "hermes", "pass"]
    assert (lines[2], lines[-1]) == ("2 of 2 templates pass", "1 of 2 templates pass")
