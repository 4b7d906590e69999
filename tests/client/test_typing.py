"""Type checkers accept correct programs that use the client, and report the errors of wrong ones."""

import json
import re
import sys
from pathlib import Path

import pytest

from tests.support.documents import ROOT, code_blocks, run

USER = ROOT / "tests" / "typing" / "user.py"
MARKED = {n for n, line in enumerate(USER.read_text(encoding="utf-8").splitlines(), 1) if line.endswith("# refused")}


def test_only_marked_lines_of_a_program_are_refused(tmp_path):
    """The programs of README.md and docs/client.md are checked in the same run, since a run checks the package too."""
    pytest.importorskip("mypy")
    pages = []
    for page in ("README.md", "docs/client.md", "docs/errors.md"):
        blocks = [code for language, code in code_blocks(ROOT / page) if language == "python"]
        for number, block in enumerate(blocks):
            path = tmp_path / f"{Path(page).stem.lower()}_{number}.py"
            path.write_text(re.sub(r"^async def main\(\):", "async def main() -> None:", block, flags=re.MULTILINE))
            pages.append(path)
    # With the settings of this project, which are strict, and its cache: `make types` has checked the package.
    done = run([sys.executable, "-m", "mypy", "--no-pretty", USER, *pages])
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = [line.replace(f"{ROOT}/", "") for line in done.stdout.splitlines() if " error:" in line]
    refused = {int(line.split(":")[1]) for line in found if line.startswith("tests/typing/user.py:")}
    assert refused == MARKED, found
    assert [line for line in found if not line.startswith("tests/typing/user.py:")] == []


def test_pyright_refuses_only_marked_lines_of_a_program(tmp_path):
    """The package basedpyright contains Node, which the package pyright would fetch at its first use."""
    pytest.importorskip("basedpyright")
    config = tmp_path / "pyrightconfig.json"
    config.write_text(json.dumps({"include": [str(USER)], "extraPaths": [str(ROOT)], "typeCheckingMode": "strict"}))
    done = run([sys.executable, "-m", "basedpyright", "--project", config, "--outputjson"])
    found = [error for error in json.loads(done.stdout)["generalDiagnostics"] if error["severity"] == "error"]
    assert {error["range"]["start"]["line"] + 1 for error in found} == MARKED, found
