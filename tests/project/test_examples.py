"""Every example runs against the real server with the built-in model, and prints the expected output."""

import json
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.support.documents import ROOT, TIMEOUT_S, run_program, with_address
from tests.support.mcp_server import command

EXAMPLES = ROOT / "examples"

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
TRIPS = [f"Trip(city={pair})" for pair in ("'Oslo', day='Monday'", "'Rome', day='Tuesday'")]
ERRORS = ["5 lines of 4 kinds:\n1 x error: cannot open /var/data/#.db", "cannot summarise"]
COUNTED = ['[count_files({"folder": "."}) gave 1]', "result is: 1"]
RUNS = {
    "agent, add": ("agent.py", ["What is 17 + 25?"], "", ['[add({"a": 17, "b": 25}) gave 42]', "result is: 42"]),
    "agent, files": ("agent.py", ["Count the files in ."], "", COUNTED),
    "agent, refused": ("agent.py", ["Read the file ../x."], "", ["gave Error: only files of this folder may be read"]),
    "extract": ("extract.py", [], "", TRIPS),
    "log_summary": ("log_summary.py", [], LOG, ERRORS),
    "mcp_tools": ("mcp_tools.py", ["What is 17 + 25?", *command()], "y\n", ["Run add", 'gave {"sum": 42}', "42"]),
    "many": ("many.py", [], "What is your name?\nCount to 5.\n", ["name?\n  I am localchat", "5.\n  1, 2, 3, 4, 5\n"]),
    "parallel": ("parallel.py", [], "", ["What is your name?\n  I am localchat", "Count to 5.\n  1, 2, 3, 4, 5\n"]),
    "search": ("search.py", [".", "the broken lamp in the kitchen"], "", ["notes.md: The lamp in the kitchen"]),
    "talk": ("talk.py", ["new.json"], "What is your name?\nHello!\n", ["1 messages in new.json\nI am localchat"]),
    "stream": ("stream.py", ["What is your name?"], "", ["I am localchat", "[stop]", "out]"]),
}


def test_every_example_is_run():
    """Except the module that test_llama_stack.py tests."""
    assert {name for name, *_ in RUNS.values()} == {path.name for path in EXAMPLES.glob("*.py")} - {"llama_stack.py"}


@pytest.mark.parametrize(("name", "arguments", "piped", "shown"), RUNS.values(), ids=RUNS)
def test_example_prints_the_expected_output(name, arguments, piped, shown, base_url, tmp_path):
    (tmp_path / "notes.md").write_text(NOTES, encoding="utf-8")
    command = [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments]
    done = run_program(command, base_url, tmp_path, piped)
    assert re.search(".*".join(map(re.escape, shown)), done.stdout, re.DOTALL), done.stdout
    if name == "search.py":
        assert done.stdout.splitlines()[0].endswith("replaced before Friday.")
    if name == "many.py":
        assert "] 1/2" in done.stderr
        assert done.stderr.endswith("] 2/2\n")


@pytest.mark.parametrize("path", sorted((EXAMPLES / "configuration").iterdir()), ids=lambda path: path.name)
def test_configuration_is_valid_and_its_address_is_right(path: Path, base_url: str):
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
    models = with_address(address, base_url).removesuffix("/v1") + "/v1/models"
    with urllib.request.urlopen(models, timeout=TIMEOUT_S) as response:
        assert json.load(response)["data"]
