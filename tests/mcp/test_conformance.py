"""The conformance suite of MCP for clients, and servers that others wrote. `make client-tests` installs them.

NODE_PATH names the folder of the packages of Node. Without them these tests are skipped.
"""

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from localchat import Timeout
from localchat.mcp import Progress
from tests.mcp.test_stdio import server_class
from tests.support.documents import ROOT

__all__ = ["server_class"]  # A fixture.

TIMEOUT_S = 120

# The scenarios of the suite that are not about OAuth, each with its revisions.
SCENARIOS = {
    "initialize": ["2025-06-18", "2025-11-25"],
    "tools_call": ["2025-06-18", "2025-11-25", "2026-07-28"],
    "elicitation-sep1034-client-defaults": ["2025-11-25"],
    "sse-retry": ["2025-11-25"],
    "request-metadata": ["2026-07-28"],
    "sep-2322-client-request-state": ["2026-07-28"],
    "http-standard-headers": ["2026-07-28"],
    "http-custom-headers": ["2026-07-28"],
    "http-invalid-tool-headers": ["2026-07-28"],
    "json-schema-ref-no-deref": ["2026-07-28"],
    "json-schema-2020-12-preservation": ["2025-11-25", "2026-07-28"],
}
RUNS = [(name, revision) for name, revisions in SCENARIOS.items() for revision in ["", *revisions]]


def node_program(package: str) -> list[str]:
    """The command of a program of a package of Node."""
    for folder in filter(None, os.environ.get("NODE_PATH", "").split(os.pathsep)):
        manifest = Path(folder, package, "package.json")
        if manifest.is_file():
            (program,) = json.loads(manifest.read_text(encoding="utf-8"))["bin"].values()
            node = Path(
                folder, "node", "bin", "node"
            )  # The package `node`: the suite needs a newer one than some have.
            return [str(node) if node.exists() else "node", str(manifest.parent / program)]
    pytest.skip(f"make client-tests installs {package}")


@pytest.mark.parametrize(("scenario", "revision"), RUNS, ids=lambda value: value or "negotiated")
def test_scenario_of_the_suite_passes(scenario: str, revision: str, tmp_path: Path):
    client = f"{sys.executable} -m tests.mcp.conformance"
    arguments = ["client", "--command", client, "--scenario", scenario, "--output-dir", str(tmp_path)]
    arguments += ["--spec-version", revision] if revision else []
    command = [*node_program("@modelcontextprotocol/conformance"), *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    passed = re.search(r"Passed: (\d+)/(\d+), 0 failed, 0 warnings", output)
    assert passed, output
    assert passed[1] == passed[2] != "0"


def test_the_suite_has_no_other_scenarios():
    command = [*node_program("@modelcontextprotocol/conformance"), "list", "--client"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    listed = dict(re.findall(r"^  - ([\w/-]+) \[(.*)\]$", done.stdout, re.MULTILINE))
    others = {name for name, revisions in listed.items() if "auth/" not in name and revisions != "extension"}
    assert others == set(SCENARIOS)


# --- servers of the project of the protocol ---


def test_filesystem_server(server_class: Any, tmp_path: Path):
    (tmp_path / "notes.txt").write_text("buy milk\n")
    with server_class(*node_program("@modelcontextprotocol/server-filesystem"), str(tmp_path)) as server:
        tools = {tool.name: tool for tool in server.tools()}
        assert {"read_text_file", "list_directory", "write_file"} <= set(tools)
        path = str(tmp_path / "notes.txt")
        assert server.call("read_text_file", {"path": path}).text == "buy milk\n"
        assert "[FILE] notes.txt" in server.call("list_directory", {"path": str(tmp_path)}).text
        server.call("write_file", {"path": path, "content": "milk is there"})
        assert (tmp_path / "notes.txt").read_text() == "milk is there"
        outside = server.call("read_text_file", {"path": "/etc/passwd"})
        assert outside.is_error
        assert "Access denied" in outside.text


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def wait_for_port(port: int) -> None:
    """Wait until a server listens there."""
    end = time.monotonic() + TIMEOUT_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            assert time.monotonic() < end
            time.sleep(0.1)


@pytest.fixture
def everything_url() -> Iterator[str]:
    """The server-everything at a URL."""
    port = free_port()
    command = [*node_program("@modelcontextprotocol/server-everything"), "streamableHttp"]
    variables = {**os.environ, "PORT": str(port)}
    process = subprocess.Popen(command, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for_port(port)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.terminate()
        process.wait(TIMEOUT_S)


@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_everything_server(server_class: Any, transport: str, request: pytest.FixtureRequest):
    words = (
        [*node_program("@modelcontextprotocol/server-everything"), "stdio"]
        if transport == "stdio"
        else [request.getfixturevalue("everything_url")]
    )
    asked: list[str] = []

    def decline(params: Any) -> Any:
        asked.append(params["message"])
        return {"action": "decline"}

    def sample(params: Any) -> Any:
        return {
            "role": "assistant",
            "content": {"type": "text", "text": "sampled"},
            "model": "m",
            "stopReason": "endTurn",
        }

    functions = {
        "elicitation/create": decline,
        "sampling/createMessage": sample,
        "roots/list": lambda params: {"roots": []},
    }
    with server_class(*words, on_request=functions, media=["image"]) as server:
        assert "echo" in [tool.name for tool in server.tools()]
        assert server.call("echo", {"message": "hello"}).text == "Echo: hello"
        assert "42" in server.call("get-sum", {"a": 17, "b": 25}).text
        image = server.call("get-tiny-image")
        assert "image_url" in [part["type"] for part in image.parts]
        structured = server.call("get-structured-content", {"location": "New York"}).structured
        assert set(structured) == {"temperature", "conditions", "humidity"}
        reports: list[Progress] = []
        arguments = {"duration": 1, "steps": 4}
        server.call("trigger-long-running-operation", arguments, on_progress=reports.append)
        assert [report.progress for report in reports] == [1, 2, 3, 4]
        assert "sampled" in server.call("trigger-sampling-request", {"prompt": "hi", "maxTokens": 5}).text
        server.call("trigger-elicitation-request")
        assert asked
        server.ping()


# --- servers written with the package `mcp` ---

PYTHON_SERVER = '''
import sys
from mcp.server.mcpserver import Context, MCPServer

server = MCPServer("weather")


@server.tool()
def forecast(city: str, days: int = 1) -> dict[str, int]:
    """The weather."""
    return {city: days}


@server.tool()
async def slowly(n: int, context: Context) -> str:
    """Report progress."""
    for number in range(n):
        await context.report_progress(number, n, "working")
    return "done"


@server.tool()
def broken() -> str:
    """Fail."""
    raise ValueError("it is broken")


server.run(*sys.argv[1:2], **({"port": int(sys.argv[2])} if sys.argv[2:] else {}))
'''


@pytest.mark.parametrize("transport", ["stdio", "streamable-http"])
def test_server_written_with_the_package_of_python(server_class: Any, transport: str, tmp_path: Path):
    pytest.importorskip("mcp", reason="the extra 'clients' has the package")
    program = tmp_path / "weather.py"
    program.write_text(PYTHON_SERVER)
    with contextlib.ExitStack() as stack:
        port = free_port()
        words = [sys.executable, str(program), transport]
        if transport != "stdio":
            process = subprocess.Popen([*words, str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            stack.callback(process.wait, TIMEOUT_S)
            stack.callback(process.terminate)
            wait_for_port(port)
            words = [f"http://127.0.0.1:{port}/mcp"]
        server = stack.enter_context(server_class(*words, timeout=Timeout(30)))
        assert [tool.name for tool in server.tools()] == ["forecast", "slowly", "broken"]
        assert server.call("forecast", {"city": "Bonn"}).structured == {"Bonn": 1}
        reports: list[Progress] = []
        assert server.call("slowly", {"n": 3}, on_progress=reports.append).text == "done"
        assert [report.message for report in reports] == ["working"] * 3
        broken = server.call("broken")
        assert broken.is_error
        assert "Error executing tool broken" in broken.text
        assert server.revision == ("2025-11-25" if transport == "stdio" else "2026-07-28")
