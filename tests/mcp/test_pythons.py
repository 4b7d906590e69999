"""`localchat.mcp` under every installed Python, and what it costs to programs that do not use it: nothing."""

import sys
from pathlib import Path

import pytest

from tests.client.test_vendor import python
from tests.support.documents import ROOT, run
from tests.support.mcp_http import MCPHTTPServer
from tests.support.mcp_server import command
from tools import vendor

__all__ = ["python"]  # A fixture.

PROGRAM = """
import sys
import localchat.agent.tool_run, localchat.testing
assert not [name for name in sys.modules if name.startswith("localchat.mcp")]
from localchat.mcp import MCPError, MCPServer
assert "asyncio" not in sys.modules
from tests.support.mcp_server import command

for words in (command(), [sys.argv[1]]):
    with MCPServer(*words, timeout=20) as server:
        print(server.call("add", {"a": 1, "b": 2}).structured["sum"], len(server.tools()) > 9)
        try:
            server.call("no such tool")
        except MCPError as error:
            print(error.code)

import asyncio
from localchat.mcp import AsyncMCPServer

async def main():
    async with AsyncMCPServer(*command(), timeout=20) as process, AsyncMCPServer(sys.argv[1], timeout=20) as at_url:
        for server in (process, at_url):
            reported = asyncio.Event()
            task = asyncio.ensure_future(server.call("wait", {"n": 1}, on_progress=lambda report: reported.set()))
            await asyncio.wait_for(reported.wait(), 20)
            task.cancel()
            await asyncio.wait([task])
            print(task.cancelled(), (await server.call("echo", {"text": "after"})).text)

asyncio.run(main())
"""


def test_servers_are_used_under_every_python(python):
    with MCPHTTPServer() as http:
        done = run([python, "-W", "error", "-c", PROGRAM, http.url], PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["3", "True", "-32602"] * 2 + ["True", "after"] * 2
    assert done.stderr == ""


@pytest.mark.parametrize(("start", "within_functions"), [("__init__.py", True), ("__main__.py", False)])
def test_copies_of_the_client_do_not_have_it(start: str, within_functions: bool):
    assert not [name for name in vendor.files(start, within_functions) if name.startswith("mcp/")]


def test_copy_with_it_works_alone(tmp_path: Path):
    assert vendor.main([str(tmp_path / "chat"), "--mcp"]) == 0
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from chat.mcp import AsyncMCPServer, MCPServer\n"
        "with MCPServer(*sys.argv[2:]) as server:\n"
        "    print(server.call('echo', {'text': 'hello'}).text)\n"
        "assert not [name for name in sys.modules if name.startswith('localchat')]\n"
    )
    command_line = [sys.executable, "-I", "-S", "-W", "error", "-c", program, tmp_path, *command()]
    assert run(command_line).stdout == "hello\n"


def test_one_file_cannot_have_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        vendor.main([str(tmp_path / "chat.py"), "--mcp"])
    assert "--mcp needs a folder" in capsys.readouterr().err


def test_imports_of_the_client_do_not_load_it():
    program = "import sys, localchat.__main__\nprint([name for name in sys.modules if 'mcp' in name])"
    assert run([sys.executable, "-S", "-c", program]).stdout == "[]\n"
