"""Every code block of the README, and of the pages about the server, runs against a server on a free port."""

from __future__ import annotations

import re
import sys

import pytest

from .documents import ROOT, code_blocks, run_program, with_address

PATH = ROOT / "README.md"
README = PATH.read_text(encoding="utf-8")
INSTALL, SERVER, MODELS = (ROOT / "docs" / f"{name}.md" for name in ("install", "server", "models"))
BLOCKS = [block for path in (PATH, INSTALL, SERVER, MODELS) for block in code_blocks(path)]


def run(command: list[str], base_url: str) -> str:
    return run_program(command, base_url, ROOT).stdout


def run_shell(line: str, base_url: str) -> str:
    """Run a line in a shell, with this interpreter and this server; `make` only prints its commands."""
    line = re.sub(r"^make ", "make --dry-run ", line)
    line = with_address(line.replace(".venv/bin/python", sys.executable), base_url)
    return run(["sh", "-c", line], base_url)


@pytest.mark.parametrize(("language", "block"), BLOCKS)
def test_block_runs(language: str, block: str, base_url: str):
    if language == "sh":
        for line in block.splitlines():
            assert run_shell(line, base_url).strip()
        return
    assert language == "python"
    if "openai" in block:
        pytest.importorskip("openai", reason="no release for this Python")
    assert run([sys.executable, "-c", with_address(block, base_url)], base_url).strip()


def test_sources_contain_the_files_that_the_readme_names():
    lines = (ROOT / "MANIFEST.in").read_text(encoding="utf-8").splitlines()
    included = {name for line in lines if line.startswith(("graft ", "include ")) for name in line.split()[1:]}
    included |= {"README.md", "LICENSE", "pyproject.toml", "localchat"}  # setuptools includes these.
    named = {target.split("/")[0] for target in re.findall(r"\]\(((?!http)[^)]+)\)", README)}
    assert named | {"Makefile", "tests", "tools", "examples"} <= included
    assert all((ROOT / name).exists() for name in included)


def test_options_in_the_docs_are_those_of_the_server(base_url: str):
    table = SERVER.read_text(encoding="utf-8").partition("| option |")[2].partition("\n\n")[0]
    documented = set(re.findall(r"`(--[\w-]+)`", table))
    assert documented
    shown = run([sys.executable, "-m", "localchat.server", "--help"], base_url)
    assert documented <= set(re.findall(r"--[\w-]+", shown))
