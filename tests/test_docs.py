"""Every code block of docs/ runs against a server with the built-in model, or is in a tested file."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

import localchat

from .documents import ROOT, code_blocks, run_program, with_address

DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.glob("*.md"), *(ROOT / "bench").glob("*.md")])
CLIENT, TOOLS, CLIENTS = (code_blocks(DOCS / name) for name in ("client.md", "tools.md", "clients.md"))


def first_lines(blocks: list[tuple[str, str]]) -> list[str]:
    """The ids of the tests of these blocks."""
    return [code.strip().splitlines()[0][:50] for _, code in blocks]


@pytest.mark.parametrize(("language", "code"), CLIENT, ids=first_lines(CLIENT))
def test_block_about_the_client_runs(language: str, code: str, base_url: str, tmp_path: Path):
    code = with_address(code, base_url)
    python = [sys.executable, "-W", "error", "-c", code]
    command = python if language == "python" else [sys.executable, *shlex.split(code)[1:]]
    assert run_program(command, base_url, tmp_path).stdout.strip()


# A part of the output of each block of tools.md with the built-in model.
SHOWN = ["Bonn", "ask the user", "[add gave 42]", "on the Rhine", "Ada 37\n36\n", "supports only text"]
SHOWN += ["Hello! How can I help you?", "2 256"]


@pytest.mark.parametrize(("code", "shown"), [(code, shown) for (_, code), shown in zip(TOOLS, SHOWN)], ids=SHOWN)
def test_block_about_tools_runs(code: str, shown: str, base_url: str, tmp_path: Path):
    assert len(TOOLS) == len(SHOWN)
    assert shown in run_program([sys.executable, "-W", "error", "-c", code], base_url, tmp_path).stdout


@pytest.mark.parametrize("code", [code for _, code in CLIENTS], ids=first_lines(CLIENTS))
def test_configuration_is_in_a_tested_file(code: str):
    assert any(code in path.read_text(encoding="utf-8") for path in (ROOT / "examples" / "configuration").iterdir())


def test_names_in_the_tables_are_public():
    named = re.findall(r"^\| `([A-Z]\w+)` \|", (DOCS / "client.md").read_text("utf-8"), re.MULTILINE)
    assert named
    assert set(named) <= set(localchat.__all__)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_have_targets(page: Path):
    for target in re.findall(r"\]\(((?!http)[^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target
