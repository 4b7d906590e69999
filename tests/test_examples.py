"""Every example runs against the real server."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .live import running_server

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running_server() as base_url:
        yield base_url


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_example_runs(path: Path, url: str):
    environment = {**os.environ, "OPENAI_BASE_URL": url, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(path)], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
