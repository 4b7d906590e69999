"""Every example runs against the real server with the built-in model, and prints the expected output."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from .live import running_server

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
DOCUMENTED = "http://127.0.0.1:8080"
TIMEOUT_S = 10

NOTES = """The server is started with the command make run and listens on port 8080.

The lamp in the kitchen is broken and has to be replaced before Friday.

Tomatoes, onions, bread and two bottles of milk have to be bought today.
"""
LOG = """GET /index 12 ms
GET /index 13 ms
error: cannot open /var/data/12.db: disk is full
warning: low memory, 12 MB are left
info: started on port 8080
"""

# The program, its arguments, its input, and parts of its output.
RUNS = {
    "agent, add": ("agent.py", ["What is 17 + 25?"], "", ['[add({"a": 17, "b": 25}) gave 42]', "result is: 42"]),
    "agent, files": (
        "agent.py",
        ["Count the files in ."],
        "",
        ['[count_files({"folder": "."}) gave 1]', "result is: 1"],
    ),
    "agent, refused": ("agent.py", ["Read the file ../x."], "", ["gave Error: only files of this folder may be read"]),
    "extract": (
        "extract.py",
        [],
        "",
        [f"Trip(city={pair})" for pair in ("'Oslo', day='Monday'", "'Rome', day='Tuesday'")],
    ),
    "log_summary": (
        "log_summary.py",
        [],
        LOG,
        ["5 lines of 4 kinds:\n1 x error: cannot open /var/data/#.db", "cannot summarise"],
    ),
    "many": ("many.py", [], "What is your name?\nCount to 5.\n", ["name?\n  I am localchat", "5.\n  1, 2, 3, 4, 5\n"]),
    "search": ("search.py", [".", "the broken lamp in the kitchen"], "", ["notes.md: The lamp in the kitchen"]),
    "stream": ("stream.py", ["What is your name?"], "", ["I am localchat", "[stop]", "out]"]),
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running_server() as base_url:
        yield base_url


def test_every_example_is_run():
    assert {name for name, *_ in RUNS.values()} == {path.name for path in EXAMPLES.glob("*.py")}


@pytest.mark.parametrize(("name", "arguments", "text", "shown"), RUNS.values(), ids=RUNS)
def test_example_prints_the_expected_output(
    name: str, arguments: list[str], text: str, shown: list[str], url: str, tmp_path: Path
):
    (tmp_path / "notes.md").write_text(NOTES, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments],
        cwd=tmp_path,
        env={**os.environ, "OPENAI_BASE_URL": url, "PYTHONPATH": str(ROOT)},
        input=text,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    position = 0
    for part in shown:
        assert part in done.stdout[position:], done.stdout
        position = done.stdout.index(part, position)
    if name == "search.py":
        assert done.stdout.splitlines()[0].endswith("replaced before Friday.")
    if name == "many.py":
        assert "] 1/2" in done.stderr
        assert done.stderr.endswith("] 2/2\n")


@pytest.mark.parametrize("path", sorted((EXAMPLES / "configuration").iterdir()), ids=lambda path: path.name)
def test_configuration_can_be_read_and_its_address_answers(path: Path, url: str, tmp_path: Path):
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".sh":
        subprocess.run(["sh", "-eu", str(path)], check=True, timeout=TIMEOUT_S)
    elif path.suffix == ".json":
        assert json.loads(text)
    elif path.suffix == ".toml":
        assert pytest.importorskip("tomllib").loads(text)
    else:
        assert pytest.importorskip("yaml").safe_load(text)
    (address,) = re.findall(r"http://[\w.:/]+", text)
    # The addresses for Ollama and Anthropic end with the port.
    own = address.replace(DOCUMENTED, url.removesuffix("/v1"))
    with urllib.request.urlopen(
        own + ("/models" if own.endswith("/v1") else "/v1/models"), timeout=TIMEOUT_S
    ) as answer:
        assert json.load(answer)["data"]
