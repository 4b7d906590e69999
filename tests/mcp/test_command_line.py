"""`python -m localchat --mcp`: the tools of servers are listed, and their calls are shown and confirmed."""

import io
import json
import shlex
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from localchat import Tool, ToolCall
from localchat.terminal import toolset
from localchat.testing import FakeServer
from tests.client.test_main import PROGRAM, environment
from tests.support import documents
from tests.support.mcp_server import ROOT, command

MCP = ["--mcp", shlex.join(command())]
CALL = [("add", {"a": 1, "b": 2})]


def run(fake: FakeServer, *arguments: str, **variables: str) -> Any:
    """Run the program without a terminal."""
    return documents.run([*PROGRAM, *arguments], **environment(fake.url), **variables)


def results(fake: FakeServer) -> list[str]:
    """The results of tools in the last request."""
    return [message["content"] for message in fake.requests[-1].json["messages"] if message["role"] == "tool"]


def test_tools_are_listed_with_escapes(tmp_path: Path):
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from tests.support import mcp_server\n"
        "schema = {'type': 'object'}\n"
        "mcp_server.TOOLS = {'evil': {'description': 'Read.\\n\\x1b[2J\\u202eHidden', 'inputSchema': schema}}\n"
        "mcp_server.main()\n"
    )
    path = tmp_path / "mcp.json"
    servers = {"files": {"command": sys.executable, "args": ["-c", code]}, "off": {"url": "http://h", "disabled": True}}
    path.write_text(json.dumps({"mcpServers": servers}))
    with FakeServer() as fake:
        done = run(fake, "--mcp-config", str(path), "--tools")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "files\n  evil()\n      Read.\n      \\x1b[2J\\u202eHidden\n"


def test_calls_run_without_questions_for_scripts():
    with FakeServer() as fake:
        fake.reply("Let me see.", calls=CALL)
        fake.reply("It is 3.")
        done = run(fake, *MCP, "--yes", "What is 1 + 2?")
        assert done.stdout == "Let me see.\nIt is 3.\n"
        assert done.stderr == 'add {"a": 1, "b": 2}\n  -> {"sum": 3}\n'
        assert results(fake) == ['{"sum": 3}']


def test_json_has_the_usage_of_all_requests():
    with FakeServer() as fake:
        fake.reply("Let me see.", calls=CALL)
        fake.reply("It is 3.")
        done = run(fake, *MCP, "--yes", "--json", "--usage", "What is 1 + 2?")
    assert json.loads(done.stdout)["usage"] == {"input_tokens": 2, "output_tokens": 2}
    assert "2 tokens in, 2 out" in done.stderr


def test_answer_that_is_cut_is_shown_as_without_tools():
    with FakeServer() as fake:
        fake.reply("half of", finish_reason="length")
        done = run(fake, *MCP, "hi")
        assert (done.returncode, done.stdout) == (3, "half of\n")
        assert done.stderr == "localchat: the server cut the answer: length\n"


def test_calls_do_not_run_without_a_terminal():
    with FakeServer() as fake:
        fake.reply(calls=CALL)
        fake.reply("It is 3.")
        done = run(fake, *MCP, "What is 1 + 2?")
        assert done.returncode == 0
        assert "needs a terminal to be confirmed on; --yes confirms all calls" in done.stderr
        assert results(fake) == ["Error: the user did not allow this call"]


def test_server_that_does_not_start_is_reported_and_others_are_used():
    with FakeServer() as fake:
        fake.reply("hello")
        done = run(fake, "--mcp", "no-such-program", *MCP, "hi")
        assert (done.returncode, done.stdout) == (0, "hello\n")
        assert "MCP server no-such-program: there is no program" in done.stderr
        assert len(fake.requests[-1].json["tools"]) > 5
        done = run(fake, "--mcp", "no-such-program", "hi")
        assert done.returncode == 1
        assert "no MCP server could be used" in done.stderr


def test_equal_tools_of_two_servers_get_the_names_of_the_servers():
    with FakeServer() as fake:
        fake.reply("hello")
        run(fake, *MCP, *MCP, "hi")
        names = [tool["function"]["name"] for tool in fake.requests[-1].json["tools"]]
    assert f"{Path(sys.executable).name}_echo" in names
    assert f"{Path(sys.executable).name}_2_echo" in names


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--mcp", " "), "--mcp needs a command or a URL"),
        (("--mcp", "a 'b"), '--mcp "a \'b": No closing quotation'),
        (("--mcp-config", "no-such-file"), "No such file or directory: 'no-such-file'"),
        (("--mcp", "http://user:pw@host"), "must not hold a user or a password"),
    ],
)
def test_wrong_options_are_errors(arguments: Any, words: str):
    with FakeServer() as fake:
        done = run(fake, *arguments, "hi")
    assert done.returncode == 1
    assert words in done.stderr


def test_calls_are_confirmed_on_the_terminal(tmp_path: Path):
    pytest.importorskip("pty", reason="there are no pseudo-terminals here")
    from tests.client.test_terminal import Terminal

    question = "[a]lways for this tool: "
    with FakeServer() as fake:
        terminal = Terminal(tmp_path, fake.url, *MCP)
        terminal.wait_for_prompt()

        def ask(calls: Any) -> str:
            """Send a prompt, and return what is shown before the question."""
            fake.reply(calls=calls)
            fake.reply("done")
            terminal.type("go\r")
            return terminal.wait_for(question)

        shown = ask([("echo", {"text": "a\x1b[2J  b"})])
        assert 'echo {"text": "a\\u001b[2J  b"}' in shown
        terminal.type("what\r")
        terminal.wait_for(question)
        terminal.type("y\r")
        terminal.wait_for("  -> a\\x1b[2J b")
        terminal.wait_for("done\n> ")
        assert results(fake) == ["a\x1b[2J  b"]

        ask(CALL)
        terminal.type("n\r")
        terminal.wait_for("done\n> ")
        assert results(fake)[-1] == "Error: the user did not allow this call"

        ask(CALL)
        terminal.type("a\r")
        terminal.wait_for("done\n> ")
        fake.reply(calls=CALL)
        fake.reply("again")
        terminal.type("go\r")
        terminal.wait_for("again\n> ")  # Without a question.
        assert results(fake)[-2:] == ['{"sum": 3}'] * 2

        ask([("grow", {"name": "new_tool"})])
        terminal.type("y\r")
        terminal.wait_for("done\n> ")
        ask([("misbehave", {"how": "exit"})])
        assert "new_tool" in [tool["function"]["name"] for tool in fake.requests[-1].json["tools"]]
        terminal.type("n\r")
        terminal.wait_for("done\n> ")

        ask([("fail", {})])
        terminal.interrupt()
        terminal.wait_for("not kept)\n> ")
        terminal.enter("go", "done")
        ask([("misbehave", {"how": "exit"})])
        terminal.type("y\r")
        assert "it ended with exit code 3" in terminal.wait_for("done\n> ")
        fake.reply("without tools")
        terminal.enter("go", "without tools")
        assert "tools" not in fake.requests[-1].json
        terminal.end()


class ListedServer:
    """A server whose list of tools the test changes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.listed: list[str] = []

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass

    def tools(self) -> list[Tool]:
        return [Tool(name, "", {}, print) for name in self.listed]


class Typing(io.StringIO):
    """What a person types on a terminal."""

    def isatty(self) -> bool:
        return True


def test_approval_is_that_of_a_tool_and_not_of_its_name(monkeypatch: pytest.MonkeyPatch):
    """The name that the model knows changes with the tools of other servers."""
    a, b = ListedServer("a"), ListedServer("b")
    monkeypatch.setattr(toolset, "MCPServer", {"a": a, "b": b}.__getitem__)
    with toolset.Toolset(Namespace(mcp=["a", "b"], mcp_config=None, yes=False)) as used:

        def approves(name: str, answer: str) -> bool:
            assert name in [tool.name for tool in used.tools()]
            monkeypatch.setattr(sys, "stdin", Typing(answer))
            return used.approve(ToolCall("id", name, "{}", {})) is True

        a.listed = ["read"]
        assert approves("read", "a\n")
        assert approves("read", "n\n")
        b.listed = ["read"]
        assert approves("a_read", "n\n")
        assert not approves("b_read", "n\n")
        a.listed = []
        assert not approves("read", "n\n")
        a.listed, b.listed = ["read"], []
        assert approves("read", "n\n")
