"""Every code block of the README runs, against a server on a free port."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .live import running_server

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTED = "http://127.0.0.1:8080"
# The limit of the time of a block.
TIMEOUT_S = 10


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running_server() as base_url:
        yield base_url.removesuffix("/v1")


def run(command: list[str], url: str) -> str:
    environment = {**os.environ, "OPENAI_BASE_URL": f"{url}/v1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def shell(line: str, url: str) -> str:
    """Run a line in a shell, with this interpreter and this server; `make` only prints its commands."""
    line = re.sub(r"^make ", "make --dry-run ", line)
    line = line.replace(".venv/bin/python", sys.executable).replace(DOCUMENTED, url)
    return run(["sh", "-c", line], url)


def test_every_block_has_a_language_that_is_run():
    languages = re.findall(r"^```(\w*)\n.*?^```", README, re.MULTILINE | re.DOTALL)
    assert set(languages) == {"sh", "python"}


@pytest.mark.parametrize("block", blocks("sh"))
def test_shell_block_runs(block: str, url: str):
    for line in block.splitlines():
        assert shell(line, url).strip()


@pytest.mark.parametrize("block", blocks("python"))
def test_python_block_runs(block: str, url: str):
    if "openai" in block:
        pytest.importorskip("openai", reason="no release for this Python")
    assert run([sys.executable, "-c", block.replace(DOCUMENTED, url)], url).strip()


def test_make_run_and_make_test_do_as_the_readme_describes():
    def commands(target: str) -> str:
        return subprocess.run(
            ["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, check=True, timeout=30
        ).stdout

    assert "-m localchat.server" in commands("run")
    assert "-m pytest" in commands("test")


@pytest.mark.parametrize("target", re.findall(r"\]\(((?!http)[^)]+)\)", README))
def test_links_have_targets(target: str):
    assert (ROOT / target).exists()


def test_library_for_a_gpu_is_built_where_make_runs_the_server():
    (command,) = re.findall(r"`CMAKE_ARGS=\S+ (\S+) .*--force-reinstall", README)
    assert command == ".venv/bin/python"


def test_sources_contain_the_files_that_the_readme_names():
    lines = (ROOT / "MANIFEST.in").read_text(encoding="utf-8").splitlines()
    included = {name for line in lines if line.startswith(("graft ", "include ")) for name in line.split()[1:]}
    included |= {"README.md", "LICENSE", "pyproject.toml", "localchat"}  # setuptools includes these.
    named = {target.split("/")[0] for target in re.findall(r"\]\(((?!http)[^)]+)\)", README)}
    assert named | {"Makefile", "tests", "tools", "examples"} <= included
    assert all((ROOT / name).exists() for name in included)


def test_options_in_the_readme_are_those_of_the_server(url: str):
    table = README[README.index("| option |") : README.index("| endpoint |")]
    documented = set(re.findall(r"`(--[\w-]+)`", table))
    shown = run([sys.executable, "-m", "localchat.server", "--help"], url)
    offered = {
        name for line in re.findall(r"^  (-\S.*)", shown, re.MULTILINE) for name in re.findall(r"--[\w-]+", line)
    }
    assert documented <= offered
