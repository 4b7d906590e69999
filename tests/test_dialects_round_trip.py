"""The parser restores each message from the text that a template renders for it: a small template for each family.

`python -m tools.formats` tests other templates in the same way.
"""

from __future__ import annotations

import pytest

from localchat.serving.chat.dialects import DIALECTS
from localchat.serving.models.catalog import DEMO_PATH
from tools.formats import OWN, check, main, sources, table

TEMPLATES = dict(sources([]))
# The families of templates that have another name than their family.
ALSO = {
    "deepseek-r1.jinja": "deepseek",
    "gigachat-3.1.jinja": "gigachat",
    "ling.jinja": "glm",
    "mistral-nemo.jinja": "mistral",
}


# Templates of models without reasoning.
WITHOUT_REASONING = {"command-r", "firefunction", "functionary-3.2", "gigachat", "gigachat-3.1", "llama-3"}


@pytest.mark.parametrize("name", TEMPLATES)
def test_messages_are_restored(name: str):
    row = check(name, TEMPLATES[name])
    assert row.failures == ()
    assert row.format == ALSO.get(name, name.removesuffix(".jinja"))
    assert bool(row.notes) == (name.removesuffix(".jinja") in WITHOUT_REASONING)


def test_every_family_has_a_template():
    assert {ALSO.get(name, name.removesuffix(".jinja")) for name in TEMPLATES} == set(DIALECTS)


HERMES = TEMPLATES["hermes.jinja"]


@pytest.mark.parametrize(
    ("source", "failure"),
    [
        pytest.param(HERMES.replace("</tool_call>", "</call>"), "was parsed as", id="another end of calls"),
        pytest.param(HERMES.replace('"name', '"nome'), "was parsed as", id="another field"),
        pytest.param("{{ raise_exception('no') }}", "shows no calls", id="refuses all"),
        pytest.param("{% if %}", "template", id="no template"),
    ],
)
def test_disagreement_is_found(source: str, failure: str):
    row = check("broken", source)
    assert row.failures
    assert failure in row.failures[0]


def test_table_has_a_line_for_each_template_and_failures_are_counted(tmp_path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "bad.jinja").write_text("{{ raise_exception('no') }}", "utf-8")
    assert main([str(OWN / "hermes.jinja"), str(DEMO_PATH)]) == 0
    assert main([str(OWN / "glm.jinja"), str(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in (lines[0], lines[3])] == [
        ["hermes.jinja", "hermes", "pass"],
        ["glm.jinja", "glm", "pass"],
    ]
    assert (lines[2], lines[-1]) == ("2 of 2 templates pass", "1 of 2 templates pass")
    assert list(table([]))[-1] == "0 of 0 templates pass"
