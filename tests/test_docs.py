"""Every code block of the reference runs, against a server of the test's own."""

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
PAGE = (ROOT / "docs" / "client.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def base_url() -> Iterator[str]:
    with running_server() as url:
        yield url


@pytest.mark.parametrize(("language", "code"), BLOCKS, ids=[code.strip().splitlines()[0][:50] for _, code in BLOCKS])
def test_block_runs(language, code, base_url, tmp_path):
    code = code.replace("http://127.0.0.1:8080/v1", base_url)
    python = [sys.executable, "-c", code]
    command = python if language == "python" else [sys.executable, *shlex.split(code)[1:]]
    environment = {**os.environ, "OPENAI_BASE_URL": base_url, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("name", re.findall(r"^\| `([A-Z]\w+)` \|", PAGE, re.MULTILINE))
def test_names_in_the_tables_are_public(name):
    assert name in localchat.__all__


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(((?!http)[^)]+)\)", PAGE):
        assert (ROOT / "docs" / target).exists()
