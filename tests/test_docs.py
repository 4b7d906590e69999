"""Every code block of docs/ runs, against a server with the built-in model."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import localchat

from .live import running_server

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
DOCUMENTED = "http://127.0.0.1:8080"
# The limit of the time of a block.
TIMEOUT_S = 10


def blocks(page: str) -> list[tuple[str, str]]:
    """The language and the text of each block."""
    return re.findall(r"^```(\w+)\n(.*?)^```", (DOCS / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def named(page: str) -> list[str]:
    return [f"{page}: {code.strip().splitlines()[0][:50]}" for _, code in blocks(page)]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running_server() as base_url:
        yield base_url.removesuffix("/v1")


def run(command: list[str], url: str, folder: Path) -> str:
    environment = {**os.environ, "OPENAI_BASE_URL": f"{url}/v1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("language", "code"), blocks("client.md"), ids=named("client.md"))
def test_block_about_the_client_runs(language: str, code: str, url: str, tmp_path: Path):
    code = code.replace(DOCUMENTED, url)
    python = [sys.executable, "-W", "error", "-c", code]
    command = python if language == "python" else [sys.executable, *shlex.split(code)[1:]]
    assert run(command, url, tmp_path).strip()


# A part of the output of each block of tools.md with the built-in model.
SHOWN = [
    "Bonn",
    "ask the user",
    "[add gave 42]",
    "on the Rhine",
    "Ada 37\n36\n",
    "supports only text",
    "Hello! How can I help you?",
    "2 256",
]


def test_what_the_blocks_about_tools_print_is_listed():
    assert len(blocks("tools.md")) == len(SHOWN)


@pytest.mark.parametrize(("code", "shown"), [*zip((code for _, code in blocks("tools.md")), SHOWN)])
def test_block_about_tools_runs(code: str, shown: str, url: str, tmp_path: Path):
    assert shown in run([sys.executable, "-W", "error", "-c", code], url, tmp_path)


@pytest.mark.parametrize("code", [code for _, code in blocks("clients.md")], ids=named("clients.md"))
def test_configuration_is_in_a_tested_file(code: str):
    assert any(code in path.read_text(encoding="utf-8") for path in (ROOT / "examples" / "configuration").iterdir())


@pytest.mark.parametrize(
    "name", re.findall(r"^\| `([A-Z]\w+)` \|", (DOCS / "client.md").read_text("utf-8"), re.MULTILINE)
)
def test_names_in_the_tables_are_public(name: str):
    assert name in localchat.__all__


@pytest.mark.parametrize("page", sorted(path.name for path in DOCS.glob("*.md")))
def test_links_have_targets(page: str):
    for target in re.findall(r"\]\(((?!http)[^)#]+)", (DOCS / page).read_text(encoding="utf-8")):
        assert (DOCS / target).exists(), target
