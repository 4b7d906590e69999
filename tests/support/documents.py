"""The code blocks of documents, and programs that run in processes of their own."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DOCUMENTED_ADDRESS = "http://127.0.0.1:8080"
# The time limit of a program that hangs. Beside other work, type checkers and large packages need more than a minute.
TIMEOUT_S = 300


def code_blocks(path: Path) -> list[tuple[str, str]]:
    """The language and the text of each code block."""
    return re.findall(r"^```(\w*)\n(.*?)^```", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def with_address(text: str, base_url: str) -> str:
    """The text with the address of this server in place of the documented one."""
    return text.replace(DOCUMENTED_ADDRESS, base_url.removesuffix("/v1"))


def run(
    command: Sequence[str | Path], *, piped: str = "", cwd: Path = ROOT, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder, with these environment variables besides those of this process.

    Its texts are UTF-8; a byte that is not is a half of a surrogate, as in file names.
    """
    options: Any = {"input": piped, "cwd": cwd, "env": {**os.environ, **variables}, "capture_output": True}
    options |= {"encoding": "utf-8", "errors": "surrogateescape", "timeout": TIMEOUT_S, "check": False}
    return subprocess.run([*map(str, command)], **options)


def run_program(command: list[str], base_url: str, folder: Path, piped: str = "") -> subprocess.CompletedProcess[str]:
    """Run a program in a folder, with this server as the default one; it must succeed."""
    done = run(command, piped=piped, cwd=folder, OPENAI_BASE_URL=base_url, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr
    return done
