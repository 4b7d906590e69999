"""The Node packages `openai` and `@anthropic-ai/sdk` with the built-in model; tests/node has their programs.

`make client-tests` installs the packages and names their folder in NODE_PATH.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.live import running_server

KEY = "secret"
DEADLINE_S = 120
SCRIPTS = {"openai": "openai", "@anthropic-ai/sdk": "anthropic"}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running_server("--api-key", KEY, "--any-name") as url:
        yield url


@pytest.mark.parametrize("package", SCRIPTS)
def test_package_of_node(package: str, request: pytest.FixtureRequest):
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node")
    if not any(Path(folder, package).is_dir() for folder in os.environ.get("NODE_PATH", "").split(os.pathsep)):
        pytest.skip(f"NODE_PATH has no package {package}: `make client-tests` installs it")
    script = Path(__file__).parents[1] / "node" / f"{SCRIPTS[package]}.test.cjs"
    environment = {**os.environ, "BASE_URL": request.getfixturevalue("url"), "API_KEY": KEY}
    done = subprocess.run(
        [node, "--test", str(script)], env=environment, capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
