"""The tools of MCP servers in runs of the client: results, failures, media, names, and the file with servers."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from localchat import Client, Tool
from localchat.mcp import AsyncMCPServer, MCPError, MCPServer, merge_tools, read_servers
from localchat.mcp.headers import argument_headers, check_marks
from localchat.mcp.results import read_result
from localchat.testing import FakeServer
from tests.support.mcp_server import PIXEL, command


def run_calls(calls: list[tuple[str, dict[str, Any]]], **options: Any) -> list[dict[str, Any]]:
    """The messages with the results of these calls, in a run with the tools of the test server."""
    with FakeServer() as fake, MCPServer(*command(), **options) as server:
        fake.reply(calls=calls)
        fake.reply("done")
        assert Client(fake.url).run("go", tools=server.tools()).text == "done"
        return [message for message in fake.requests[-1].json["messages"] if message["role"] == "tool"]


def test_results_are_messages():
    calls = [
        ("echo", {"text": "hi"}),
        ("fail", {}),
        ("resources", {}),
        ("return", {"result": {"structuredContent": {"a": 1}}}),
        ("echo", {"text": 5}),
        ("misbehave", {"how": "exit"}),
    ]
    contents = [message["content"] for message in run_calls(calls, name="test")]
    assert contents[:2] == ["hi", "it went wrong"]
    assert contents[2].splitlines() == [
        "[resource file:///a: a, text/plain]",
        "[resource file:///b]",
        "the text of b",
        "[resource file:///c of the type application/zip, which is no text and is left out]",
        "[content of the type 'hologram', which is left out]",
    ]
    assert json.loads(contents[3]) == {"a": 1}
    assert contents[4].startswith("Error: the arguments are not valid: $.text")
    assert contents[5].startswith("Error: MCPError: MCP server test: it ended with exit code 3")


def test_failure_of_a_tool_is_no_exception():
    with FakeServer() as fake, MCPServer(*command()) as server:
        fake.reply(calls=[("fail", {})])
        fake.reply("done")
        with Client(fake.url).run_stream("go", tools=server.tools(), raise_errors=True) as run:
            (result,) = [event for event in run if event.type == "tool_result"]
    assert result.error == result.content == "it went wrong"
    assert result.value.is_error


@pytest.mark.parametrize(
    ("media", "kinds"),
    [((), ["text", "text"]), (("image",), ["image_url", "text"]), (("image", "audio"), ["image_url", "input_audio"])],
)
def test_media_are_parts_where_the_model_takes_them(media: Any, kinds: list[str]):
    (message,) = run_calls([("media", {})], media=media)
    content = message["content"]
    if not media:
        assert content.splitlines()[0] == "[an image (image/gif), which is left out: the model takes none]"
    else:
        assert [part["type"] for part in content] == kinds


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({"content": []}, ""),
        ({}, ""),
        ({"content": [{"type": "image", "data": "***", "mimeType": "image/png"}]}, "which is left out: "),
        ({"content": [{"type": "image", "data": 5}]}, "which is left out: "),
        ({"content": [{"type": "image", "data": "AAAA"}]}, "this is no image of a known format"),
        ({"content": [{"type": "image", "data": "AA\r\nAA\n"}]}, "this is no image of a known format"),
        ({"content": [{"type": "text"}]}, ""),
        ({"content": [{"type": "text", "text": None}, {"type": "text", "text": "a"}]}, "\na"),
        ({"content": [{"type": "resource"}]}, "[content of the type 'resource', which is left out]"),
    ],
)
def test_odd_results_are_read(result: Any, text: str):
    with MCPServer(*command(), media=["image"]) as server:
        read = server.call("return", {"result": result})
    assert text in read.text
    assert "None" not in read.text
    assert read.raw == result


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        ({"content": 5}, "its content is no list of objects"),
        ({"content": ["text"]}, "its content is no list of objects"),
        ({"resultType": "task"}, "has the type 'task', which is unknown"),
        ({"resultType": "input_required"}, "still requests input for tools/call after 10 rounds"),
    ],
)
def test_invalid_results_are_errors(result: Any, reason: str):
    with MCPServer(*command(), name="test") as server, pytest.raises(MCPError, match=reason):
        server.call("return", {"result": result})


def test_structured_content_is_checked():
    from tests.support import mcp_server

    code = (
        f"import sys; sys.path.insert(0, {str(mcp_server.ROOT)!r})\n"
        "from tests.support import mcp_server\n"
        "mcp_server.TOOLS['return']['outputSchema'] = mcp_server.TOOLS['add']['outputSchema']\n"
        "mcp_server.main()\n"
    )
    with MCPServer(sys.executable, "-c", code) as server:
        server.tools()
        assert server.call("return", {"result": {"structuredContent": {"sum": 1}}}).structured == {"sum": 1}
        assert server.call("return", {"result": {"isError": True}}).is_error
        for content in ({"structuredContent": {"sum": "one"}}, {}):
            with pytest.raises(MCPError, match="does not match the outputSchema: \\$"):
                server.call("return", {"result": content})


def test_wrong_tools_are_left_out(caplog: pytest.LogCaptureFixture):
    from tests.support import mcp_server

    wrong = [
        {"inputSchema": {"required": True}},
        {"inputSchema": {"$ref": "https://host/schema"}},
        {"inputSchema": 5},
        {},
    ]
    code = (
        f"import sys; sys.path.insert(0, {str(mcp_server.ROOT)!r})\n"
        "from tests.support import mcp_server\n"
        f"mcp_server.TOOLS.update((f'wrong \\x1b {{i}}', tool) for i, tool in enumerate({wrong!r}))\n"
        "mcp_server.main()\n"
    )
    with MCPServer(sys.executable, "-c", code, name="test") as server:
        assert [tool.name for tool in server.tools()] == list(mcp_server.TOOLS)
    assert caplog.text.count("test: the tool wrong \\x1b ") == len(wrong)
    with (
        MCPServer(*command(), name="test") as server,
        pytest.raises(ValueError, match="test has no tool x; it has: echo"),
    ):
        server.tools("echo", "x")


def test_names_of_tools_are_escaped_in_errors():
    with MCPServer(*command(), name="test") as server:
        server.call("grow", {"name": "evil\x1b[2J"})
        with pytest.raises(ValueError, match="has no tool x; it has: echo") as caught:
            server.tools("x")
    assert "\x1b" not in str(caught.value)
    assert "evil\\x1b[2J" in str(caught.value)


def tool(name: str) -> Tool:
    return Tool(name, "", {"type": "object"}, print)


def test_tools_of_several_servers_have_different_names():
    tools = {"files": [tool("read"), tool("list")], "web.1": [tool("read"), tool("x" * 64)], "b": [tool("x" * 64)]}
    names = [merged.name for merged in merge_tools(tools)]
    assert names == ["files_read", "list", "web_1_read", f"web_1_{'x' * 58}", f"b_{'x' * 62}"]


@pytest.mark.parametrize(
    ("content", "is_shown"),
    [
        ([], True),
        ([{"type": "text", "text": ""}], True),
        ([{"type": "image", "data": "AAAA"}], True),
        ([{"type": "resource_link", "uri": "file:///a"}], True),
        ([{"type": "text", "text": "one"}], False),
    ],
)
def test_structured_content_is_the_text_of_a_result_without_text(content: Any, is_shown: bool):
    result = read_result({"content": content, "structuredContent": {"sum": 3}}, ())
    assert ('{"sum": 3}' in result.text) is is_shown


def test_names_that_models_cannot_use_are_changed():
    from localchat.mcp.names import free_name

    assert free_name("a.b/c é", ()) == "a_b_c_"
    assert free_name("", ()) == "tool"
    assert free_name("a" * 99, {"a" * 64}) == "a" * 62 + "_2"


def test_servers_of_a_file(tmp_path: Path):
    words = command()
    servers = {
        "files": {"command": words[0], "args": words[1:], "env": {"A": "b"}, "cwd": None},
        "web": {"type": "http", "url": "https://host/mcp", "headers": {"Authorization": "Bearer x"}},
        "off": {"command": "x", "disabled": True},
    }
    path = tmp_path / "mcp.json"
    path.write_text("\ufeff" + json.dumps({"mcpServers": servers}), encoding="utf-8")
    read = read_servers(path)
    assert list(read) == ["files", "web"]
    assert [server.name for server in read.values()] == ["files", "web"]
    with read["files"] as server:
        assert json.loads(server.call("environment").text)["A"] == "b"
    assert "Bearer" not in f"{read!r}"
    (in_loop, _) = read_servers(path, AsyncMCPServer).values()
    assert isinstance(in_loop, AsyncMCPServer)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "is not JSON"),
        ("[]", "has no servers: its form is"),
        ('{"mcpServers": {"a": 5}}', "has no servers"),
        ('{"mcpServers": {"a": {}}}', "the server a needs either a command or a url"),
        ('{"mcpServers": {"a": {"command": "x", "url": "http://h"}}}', "either a command or a url"),
        ('{"mcpServers": {"a": {"command": "x", "args": "y"}}}', "args of the server a is a list of texts"),
        ('{"mcpServers": {"a": {"command": "x", "env": {"A": 1}}}}', "env of the server a is an object of texts"),
        ('{"mcpServers": {"a": {"url": "http://h", "type": "sse"}}}', "the old transport sse"),
        ('{"mcpServers": {"a": {"command": null}}}', "the server a needs either a command or a url"),
        ('{"mcpServers": {"a": {"command": "", "url": null}}}', "the server a needs either a command or a url"),
        ('{"mcpServers": {"a": {"command": 5}}}', "command of the server a is text"),
        ('{"mcpServers": {"a": {"url": "/usr/bin/x"}}}', "url of the server a begins with https:// or http://"),
        ('{"mcpServers": {"a": {"url": "host/mcp", "headers": {}}}}', "url of the server a begins with https://"),
        ('{"mcpServers": {"a": {"url": "file:///usr/bin/x"}}}', "url of the server a begins with https://"),
        ('{"mcpServers": {"a": {"command": "https://h/mcp"}}}', "command of the server a is a URL"),
    ],
)
def test_wrong_files_are_refused(text: str, reason: str, tmp_path: Path):
    path = tmp_path / "mcp.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=reason):
        read_servers(path)


MARKED = {
    "type": "object",
    "properties": {
        "region": {"type": "string", "x-mcp-header": "Region"},
        "n": {"type": "integer", "x-mcp-header": "N"},
        "flag": {"type": "boolean", "x-mcp-header": "Flag"},
        "in": {"type": "object", "properties": {"x-mcp-header": {"type": "string", "x-mcp-header": "Deep"}}},
    },
}


@pytest.mark.parametrize(
    ("value", "header"),
    {
        "us-west1": "us-west1",
        "a b": "a b",
        "": "",
        "Hello, 世界": "=?base64?SGVsbG8sIOS4lueVjA==?=",
        " padded ": "=?base64?IHBhZGRlZCA=?=",
        "line1\nline2": "=?base64?bGluZTEKbGluZTI=?=",
        "=?base64?literal?=": "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?=",
    }.items(),
)
def test_arguments_are_repeated_in_headers(value: str, header: str):
    check_marks(MARKED)
    arguments = {"region": value, "n": -7, "flag": False, "in": {"x-mcp-header": "x"}, "other": 1}
    expected = {"Mcp-Param-Region": header, "Mcp-Param-N": "-7", "Mcp-Param-Flag": "false", "Mcp-Param-Deep": "x"}
    assert argument_headers(MARKED, arguments) == expected
    assert argument_headers(MARKED, {"n": None, "in": "text"}) == {}


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"a": {"type": "string", "x-mcp-header": ""}}, "no name of a header"),
        ({"a": {"type": "string", "x-mcp-header": "A\r\nB"}}, "no name of a header"),
        ({"a": {"type": "string", "x-mcp-header": 5}}, "no name of a header"),
        ({"a": {"type": "number", "x-mcp-header": "A"}}, "marks a value of the type 'number'"),
        ({"a": {"type": "string", "x-mcp-header": "A"}, "b": {"type": "string", "x-mcp-header": "a"}}, "have one"),
        ({"a": {"type": "array", "items": {"type": "string", "x-mcp-header": "A"}}}, "not reached by properties alone"),
        ({"a": {"anyOf": [{"type": "string", "x-mcp-header": "A"}]}}, "not reached by properties alone"),
    ],
)
def test_wrong_marks_are_refused(schema: Any, reason: str):
    with pytest.raises(ValueError, match=reason):
        check_marks({"type": "object", "properties": schema})


def test_content_of_media_is_sent_unchanged():
    (message,) = run_calls([("media", {})], media=["image"])
    import base64

    url = message["content"][0]["image_url"]["url"]
    assert base64.b64decode(url.partition(",")[2]) == PIXEL
