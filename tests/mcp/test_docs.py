"""The code blocks of docs/mcp.md run, with the test server in place of the programs and URLs that they name."""

import os
import re
import sys
from pathlib import Path

import pytest

from tests.support.documents import ROOT, code_blocks, run
from tests.support.mcp_http import MCPHTTPServer
from tests.support.mcp_server import command

PAGE = ROOT / "docs" / "mcp.md"
BLOCKS = code_blocks(PAGE)
# A part of the output of each block.
SHOWN = ["", "hello\n", "'web_echo'", "", "echo(text)\n", "Be kind."]


@pytest.fixture(scope="module")
def base_url():
    pytest.importorskip("llama_cpp", reason="the real server needs llama-cpp-python")
    from tests.support.live import running_process

    with running_process() as server:
        yield server.url


@pytest.mark.parametrize(("language", "code", "shown"), [(*block, shown) for block, shown in zip(BLOCKS, SHOWN)])
def test_block_runs(language: str, code: str, shown: str, base_url: str, tmp_path: Path):
    assert len(BLOCKS) == len(SHOWN)
    program = tmp_path / "bin" / "npx"
    program.parent.mkdir()
    words = " ".join(f"'{word}'" for word in command()).replace(f"{str(ROOT)!r}", f'"{ROOT}"')
    program.write_text(f"#!/bin/sh\nexec {words}\n")
    program.chmod(0o755)
    variables = {"PATH": f"{program.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "OPENAI_BASE_URL": base_url}
    with MCPHTTPServer() as http:
        code = code.replace("https://mcp.example.com/mcp", http.url)
        if language == "python":
            arguments = [sys.executable, "-W", "error", "-c", code]
        else:
            arguments = ["sh", "-ec", re.sub(r"^\.venv/bin/python ", f"{sys.executable} ", code, flags=re.MULTILINE)]
        done = run(arguments, cwd=tmp_path, **variables)
    assert done.returncode == 0, done.stderr
    assert shown in done.stdout
    assert done.stdout.strip()


def test_scenarios_are_those_that_the_tests_run():
    from tests.mcp.test_conformance import SCENARIOS

    rows = re.findall(r"^\| `([\w-]+)` \| ([\d, -]+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert {name: revisions.split(", ") for name, revisions in rows} == SCENARIOS
